#include "data/set/held_out.h"

#include "data/set/batcher.h"
#include "oom.h"
#include "toy_data.h"

/* The toy data has no ids: the number of an item is its id, user u is called 10 u. */
static int64_t item_ids[TOY_ITEMS + 2], user_ids[64];

static void give_ids(seq_file *s) {
    for (int i = 0; i < TOY_ITEMS + 2; i++)
        item_ids[i] = i;
    for (int u = 0; u < 64; u++)
        user_ids[u] = 10 * u;
    s->item_id = item_ids;
    s->user_id = user_ids;
}

/* Test users 0..n-1 with one or two events each, later than all training events. */
static void open_test(seq_file *s, const uint32_t *lengths, uint64_t n) {
    toy_open(s, lengths, n);
    give_ids(s);
    for (uint64_t i = 0; i < s->n_events; i++)
        ((int64_t *)s->time)[i] = toy_time(1000 + i);
}

TEST(held_out_joins_the_first_event_of_each_user) {
    seq_file data, test;
    held_out *h;
    event_range r;
    toy_open(&data, (uint32_t[]){3, 2, 0, 4}, 4);
    give_ids(&data);
    open_test(&test, (uint32_t[]){2, 0, 1, 1, 2}, 5); /* user 40 is not in the data */
    ((uint32_t *)test.item)[0] = 77;
    ((uint16_t *)test.action)[0] = 4;
    CHECK_OK(held_out_join(&h, &data, &test, true));
    const seq_file *all = held_out_data(h);
    held_out_counts n = held_out_count(h);
    CHECK(n.n_targets == 3 && n.n_unknown_users == 1 && n.n_unknown_items == 0);
    CHECK(all->n_events == 12 && all->n_users == 4);
    CHECK_EQ(batcher_fingerprint(all), batcher_fingerprint(&data));
    split s = split_make(all, split_rule_of(SPLIT_TEST_FILE), 0);
    CHECK(split_range(&s, PART_TEST, 0, &r) && r.begin == 0 && r.target_begin == 3 && r.end == 4);
    CHECK(all->item[3] == 77 && all->time[3] == toy_time(1000));
    CHECK_EQ(all->action[3], test.action[0]);
    CHECK(split_range(&s, PART_TRAIN, 0, &r) && r.end == 3);
    CHECK(!split_range(&s, PART_TEST, 1, &r)); /* nothing held out */
    CHECK(split_range(&s, PART_TRAIN, 1, &r) && r.begin == 4 && r.end == 6);
    CHECK(!split_range(&s, PART_TEST, 2, &r)); /* no history */
    CHECK(split_range(&s, PART_TEST, 3, &r) && r.end - r.begin == 5);
    CHECK_EQ(all->item[r.begin], data.item[5]);
    CHECK_EQ(all->action[r.end - 2], data.action[8]);
    held_out_destroy(h);
    toy_close(&data);
    toy_close(&test);
}

TEST(held_out_items_that_the_data_does_not_have) {
    seq_file data, test;
    held_out *h;
    toy_open(&data, (uint32_t[]){3, 2}, 2);
    give_ids(&data);
    open_test(&test, (uint32_t[]){1, 1}, 2);
    test.n_items = TOY_ITEMS + 1;
    ((uint32_t *)test.item)[1] = TOY_ITEMS + 1;
    CHECK_OK(held_out_join(&h, &data, &test, true));
    CHECK(held_out_count(h).n_targets == 2 && held_out_count(h).n_unknown_items == 1);
    CHECK_EQ(held_out_data(h)->item[6], 0);
    held_out_destroy(h);
    CHECK_OK(held_out_join(&h, &data, &test, false));
    CHECK(held_out_count(h).n_targets == 1 && held_out_count(h).n_unknown_items == 1);
    CHECK_EQ(held_out_data(h)->n_events, 6);
    held_out_destroy(h);
    ((uint32_t *)test.item)[0] = TOY_ITEMS + 1;
    CHECK_FAILS(held_out_join(&h, &data, &test, false), ERR_USAGE, "are the ids the same?");
    CHECK(h == NULL);
    toy_close(&data);
    toy_close(&test);
}

TEST(held_out_refuses_events_of_the_past_and_trained_ones) {
    seq_file data, test;
    held_out *h;
    toy_open(&data, (uint32_t[]){3, 3}, 2);
    give_ids(&data);
    open_test(&test, (uint32_t[]){1, 1}, 2);
    int64_t *time = (int64_t *)test.time;
    uint32_t *item = (uint32_t *)test.item;
    time[1] = data.time[5] - 1;
    CHECK_FAILS(held_out_join(&h, &data, &test, true), ERR_USAGE,
                "the first event of user '10' is earlier than its last event");
    time[1] = data.time[5];
    item[1] = data.item[5];
    CHECK_FAILS(held_out_join(&h, &data, &test, true), ERR_USAGE, "must not be tested on");
    item[1] = data.item[4]; /* at the same time another item is another event */
    CHECK_OK(held_out_join(&h, &data, &test, true));
    held_out_destroy(h);
    ((int64_t *)data.time)[4] = data.time[5]; /* found among several of one time */
    CHECK_FAILS(held_out_join(&h, &data, &test, true), ERR_USAGE, "must not be tested on");
    for (int i = 3; i < 6; i++) /* up to the first of them */
        ((int64_t *)data.time)[i] = data.time[5];
    item[1] = data.item[3];
    CHECK_FAILS(held_out_join(&h, &data, &test, true), ERR_USAGE, "must not be tested on");
    test.time_per_second = 1000;
    CHECK_FAILS(held_out_join(&h, &data, &test, true), ERR_USAGE, "count time differently");
    test.time_per_second = 1, test.actions = ACTION_BITS;
    CHECK_FAILS(held_out_join(&h, &data, &test, true), ERR_USAGE, "kinds of actions");
    toy_close(&data);
    toy_close(&test);
}

static status join_both(void *ctx) {
    const seq_file *const *pair = ctx;
    held_out *h;
    status st = held_out_join(&h, pair[0], pair[1], true);
    held_out_destroy(h);
    return st;
}

TEST(held_out_without_memory) {
    seq_file data, test;
    toy_open(&data, (uint32_t[]){3, 3}, 2);
    give_ids(&data);
    open_test(&test, (uint32_t[]){1, 1}, 2);
    const seq_file *pair[] = {&data, &test};
    CHECK(oom_at_each_allocation(join_both, pair) >= 7);
    toy_close(&data);
    toy_close(&test);
}
