#include "data/set/stats.h"

#include "oom.h"
#include "toy_data.h"

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Everything counted again the plain way. */
static void check_stats(uint32_t *lengths, uint64_t n_users) {
    seq_file data;
    data_stats stats;
    toy_open(&data, lengths, n_users);
    CHECK_OK(data_stats_init(&stats, &data));
    uint64_t *item = calloc(TOY_ITEMS + 1, sizeof *item), action[5] = {0}, n_seen = 0;
    for (uint64_t i = 0; i < data.n_events; i++)
        item[toy_item(i)]++, action[toy_action(i)]++;
    for (uint32_t i = 1; i <= TOY_ITEMS; i++) {
        CHECK_EQ(stats.item_count[i], item[i]);
        n_seen += item[i] > 0;
    }
    for (int a = 0; a < 5; a++)
        CHECK_EQ(stats.action_count[a], action[a]);
    CHECK_EQ(stats.n_seen_items, n_seen);
    CHECK_EQ(stats.first_time, data.n_events > 0 ? toy_time(0) : 0);
    CHECK_EQ(stats.last_time, data.n_events > 0 ? toy_time(data.n_events - 1) : 0);
    uint64_t n_in_bins = 0, next = stats.n_bins > 0 ? stats.bins[0].first : 0;
    for (int i = 0; i < stats.n_bins; i++) {
        uint64_t n = 0;
        for (uint64_t u = 0; u < n_users; u++)
            n += lengths[u] >= stats.bins[i].first && lengths[u] <= stats.bins[i].last;
        CHECK_EQ(stats.bins[i].n_users, n);
        CHECK_EQ(stats.bins[i].first, next); /* no gaps */
        next = stats.bins[i].last + 1;
        n_in_bins += n;
    }
    CHECK_EQ(n_in_bins, n_users);
    CHECK(stats.n_bins <= 22);
    qsort(lengths, n_users, sizeof *lengths, compare_u32);
    if (n_users > 0) {
        CHECK_EQ(stats.min_len, lengths[0]);
        CHECK_EQ(stats.max_len, lengths[n_users - 1]);
        CHECK(stats.median_len == (lengths[(n_users - 1) / 2] + lengths[n_users / 2]) / 2.0);
        CHECK(stats.mean_len == (double)data.n_events / (double)n_users);
    }
    free(item);
    data_stats_fini(&stats);
    toy_close(&data);
}

TEST(stats_of_small_data) {
    check_stats((uint32_t[]){0}, 0);
    check_stats((uint32_t[]){0}, 1);
    check_stats((uint32_t[]){1}, 1);
    check_stats((uint32_t[]){9, 1}, 2);
    check_stats((uint32_t[]){4, 0, 5}, 3);
    check_stats((uint32_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16, 19, 20}, 16);
}

TEST(stats_of_many_users) {
    enum { N = 150000 };
    uint32_t *lengths = malloc(N * sizeof *lengths);
    toy_zipf_lengths(lengths, N, 100000, 3);
    check_stats(lengths, N);
    free(lengths);
}

TEST(stats_popular_items_come_in_order) {
    seq_file data;
    data_stats stats;
    uint32_t items[10];
    int n;
    toy_open(&data, (uint32_t[]){3}, 1);
    data.n_items = 6;
    const uint32_t *toy_items = data.item;
    data.item = (uint32_t[]){5, 2, 5};
    CHECK_OK(data_stats_init(&stats, &data));
    data_stats_popular(&stats, &data, items, 10, &n);
    CHECK_EQ(n, 2);
    CHECK_EQ(items[0], 5);
    CHECK_EQ(items[1], 2);
    stats.item_count[1] = stats.item_count[6] = 1, stats.item_count[4] = 7;
    data_stats_popular(&stats, &data, items, 4, &n);
    CHECK_EQ(n, 4);
    CHECK(items[0] == 4 && items[1] == 5 && items[2] == 1 && items[3] == 2);
    data_stats_popular(&stats, &data, items, 0, &n);
    CHECK_EQ(n, 0);
    data_stats_fini(&stats);
    data.item = toy_items;
    toy_close(&data);
}

TEST(stats_of_empty_data_are_zero) {
    seq_file data;
    data_stats stats;
    toy_open(&data, (uint32_t[]){0}, 0);
    CHECK_OK(data_stats_init(&stats, &data));
    CHECK_EQ(stats.n_bins, 0);
    CHECK(stats.density == 0 && stats.mean_len == 0);
    data_stats_fini(&stats);
    toy_close(&data);
}

static status make_stats(void *ctx) {
    data_stats stats;
    TRY(data_stats_init(&stats, ctx));
    data_stats_fini(&stats);
    return OK;
}

TEST(stats_survive_every_failed_allocation) {
    seq_file data;
    toy_open(&data, (uint32_t[]){3, 4}, 2);
    CHECK(oom_at_each_allocation(make_stats, &data) == 3);
    toy_close(&data);
}
