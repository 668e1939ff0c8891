#include "base/mem.h"
#include "base/rng.h"
#include "data/build/builder.h"
#include "format/json.h"
#include "oom.h"
#include "test.h"

/* One event as a plain record, for the reference: sorted by (user, time, order of the source). */
typedef struct row {
    int64_t user, item, time;
    uint16_t action;
    int order;
} row;

static int compare_rows(const void *a, const void *b) {
    const row *x = a, *y = b;
    if (x->user != y->user) return x->user < y->user ? -1 : 1;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    return x->order - y->order;
}

static row *make_rows(int n, uint32_t n_users, uint32_t n_items, uint32_t n_times, uint64_t seed) {
    row *rows = calloc((size_t)n, sizeof *rows);
    rng_key key = rng_make_key(seed, RNG_TEST);
    for (int i = 0; i < n; i++) {
        rng_block b = rng_draw(key, (uint32_t)i, 0, 0, 0);
        rows[i] = (row){.user = (int64_t)rng_below(b.word[0], n_users) * 7 - 11,
                        .item = (int64_t)rng_below(b.word[1], n_items) * 1000003 - 5,
                        .time = rng_below(b.word[2], n_times),
                        .action = (uint16_t)rng_below(b.word[3], 3),
                        .order = i};
    }
    return rows;
}

typedef struct feed {
    builder *b;
    const row *rows;
    int n, block;
} feed;

static status feed_block(void *ctx, int64_t chunk, int worker) {
    feed *f = ctx;
    builder_sink *s = builder_get_sink(f->b, worker);
    int begin = (int)chunk * f->block, end = begin + f->block < f->n ? begin + f->block : f->n;
    TRY(sink_begin_block(s, (uint64_t)chunk, (uint64_t)(f->block + 100)));
    for (int i = begin; i < end; i++)
        TRY(sink_add(s, f->rows[i].user, f->rows[i].item, f->rows[i].action, f->rows[i].time));
    return sink_end_block(s);
}

static status build(const row *rows, int n, int block, int n_threads,
                    const builder_options *options, const char *folder, builder_stats *stats) {
    pool *p = NULL;
    builder *b = NULL;
    status st = pool_create(&p, n_threads);
    if (st == OK) st = builder_create(&b, options, p);
    feed f = {b, rows, n, block};
    if (st == OK) st = pool_run(p, (n + block - 1) / block, feed_block, &f);
    if (st == OK) st = builder_add_item(b, "1000003000", 10, "A title", 7);
    if (st == OK) st = builder_write(b, folder, "{\"name\":\"test\"}", stats);
    builder_destroy(b);
    pool_destroy(p);
    return st;
}

static const builder_options plain = {.actions = ACTION_CODE, .time_per_second = 1};

TEST(builder_sorts_and_groups) {
    int n = 20000;
    row *rows = make_rows(n, 300, 500, 40, 1);
    builder_stats stats;
    CHECK_OK(build(rows, n, 777, 3, &plain, test_folder(), &stats));
    qsort(rows, (size_t)n, sizeof *rows, compare_rows);
    seq_file *s;
    CHECK_OK(seq_file_open(&s, test_folder(), NULL));
    CHECK_EQ(s->n_events, n);
    CHECK_EQ(s->n_users, 300);
    CHECK_EQ(s->n_items, 501);
    CHECK_EQ(stats.n_seen_items, 500);
    int at = 0;
    uint64_t longest = 0, duplicates = 0;
    for (uint64_t u = 0; u < s->n_users; u++) {
        CHECK_EQ(s->user_id[u], rows[at].user);
        if (seq_length(s, u) > longest) longest = seq_length(s, u);
        for (uint64_t i = s->offsets[u]; i < s->offsets[u + 1]; i++, at++) {
            CHECK_EQ(rows[at].user, s->user_id[u]);
            CHECK_EQ(s->item_id[s->item[i]], rows[at].item);
            CHECK_EQ(s->action[i], rows[at].action);
            CHECK_EQ(s->time[i], rows[at].time);
            for (uint64_t j = s->offsets[u]; j < i; j++) {
                if (s->time[j] != s->time[i] || s->item[j] != s->item[i] ||
                    s->action[j] != s->action[i])
                    continue;
                duplicates++;
                break;
            }
        }
    }
    CHECK_EQ(stats.max_len, longest);
    CHECK_EQ(stats.n_duplicates, duplicates);
    CHECK(duplicates > 0);
    CHECK(stats.n_out_of_order > 0);
    buf name = {0};
    CHECK_OK(seq_item_title(s, 501, &name));
    CHECK_STR(buf_str(&name), "A title");
    CHECK_EQ(seq_find_item(s, "1000003000"), 501);
    CHECK_EQ(seq_find_item(s, "-5"), 1);
    CHECK_EQ(seq_find_item(s, "17"), 0);
    CHECK(seq_find_user(s, "-11") == 0);
    CHECK(seq_find_user(s, "no") == UINT64_MAX);
    buf_fini(&name);
    seq_file_close(s);
    free(rows);
}

/* Histories of few and of many events, spread evenly or in bursts, and times from seconds of a
 * minute to both ends of 64 bits: each is sorted in another way. */
TEST(builder_sorts_times_of_any_range) {
    static const uint32_t users[] = {1000, 30, 6, 2, 1};
    static const struct {
        uint32_t n_times;
        int64_t scale;
    } spread[] = {{40, 1},
                  {40, 1 << 20},
                  {40, (int64_t)1 << 50},
                  {40, (int64_t)1 << 57},
                  {1 << 20, 64},
                  {1 << 30, 1000},
                  {1, 1}};
    enum { N_USERS = 5, N_SPREADS = 7 };
    int n = 5000;
    builder_stats stats;
    for (size_t k = 0; k < N_USERS * N_SPREADS; k++) {
        row *rows = make_rows(n, users[k / N_SPREADS], 500, spread[k % N_SPREADS].n_times, 3);
        for (int i = 0; i < n; i++)
            rows[i].time = (rows[i].time - 20) * spread[k % N_SPREADS].scale + i % 3;
        if (k % 2 == 0) rows[n / 2].time = (int64_t)1 << 40; /* far from all others */
        CHECK_OK(build(rows, n, 777, 1, &plain, test_folder(), &stats));
        qsort(rows, (size_t)n, sizeof *rows, compare_rows);
        seq_file *s;
        CHECK_OK(seq_file_open(&s, test_folder(), NULL));
        CHECK_EQ(s->n_events, n);
        for (int i = 0; i < n; i++) {
            CHECK_EQ(s->time[i], rows[i].time);
            CHECK_EQ(s->item_id[s->item[i]], rows[i].item);
            CHECK_EQ(s->action[i], rows[i].action);
        }
        CHECK(stats.n_out_of_order > 100);
        seq_file_close(s);
        free(rows);
    }
}

TEST(builder_bytes_do_not_depend_on_threads) {
    int n = 30000;
    row *rows = make_rows(n, 2000, 900, 1000, 2);
    char folder[3][256];
    builder_stats stats;
    for (int i = 0; i < 3; i++) {
        snprintf(folder[i], sizeof folder[i], "%s/%d", test_folder(), i);
        CHECK_OK(build(rows, n, 512, i == 0 ? 1 : 2 * i + 1, &plain, folder[i], &stats));
        CHECK_EQ(test_command(NULL, "cmp %s/data.seq %s/data.seq", folder[0], folder[i]), 0);
    }
    free(rows);
}

TEST(builder_drops_duplicates) {
    int n = 5000;
    row *rows = make_rows(n, 20, 10, 10, 3);
    builder_options options = plain;
    builder_stats kept, dropped;
    options.drop_duplicates = true;
    char a[256], b[256];
    snprintf(a, sizeof a, "%s/a", test_folder());
    snprintf(b, sizeof b, "%s/b", test_folder());
    CHECK_OK(build(rows, n, 100, 2, &plain, a, &kept));
    CHECK_OK(build(rows, n, 100, 2, &options, b, &dropped));
    CHECK_EQ(dropped.n_events, kept.n_events - kept.n_duplicates);
    CHECK_EQ(dropped.n_duplicates, kept.n_duplicates);
    seq_file *s;
    CHECK_OK(seq_file_open(&s, b, NULL));
    for (uint64_t u = 0; u < s->n_users; u++)
        for (uint64_t i = s->offsets[u]; i < s->offsets[u + 1]; i++)
            for (uint64_t j = s->offsets[u]; j < i; j++)
                CHECK(s->time[i] != s->time[j] || s->item[i] != s->item[j] ||
                      s->action[i] != s->action[j]);
    seq_file_close(s);
    free(rows);
    /* The only equal times of a history are those of a duplicate. */
    row few[3] = {{.item = 1, .time = 10}, {.item = 2, .time = 20}, {.item = 2, .time = 20}};
    CHECK_OK(build(few, 3, 100, 1, &options, b, &dropped));
    CHECK(dropped.n_events == 2 && dropped.n_duplicates == 1);
    /* Many events at one time, none twice; a user's are not compared with another's. */
    row many[40 + 39 + 38];
    n = 0;
    for (int u = 0; u < 3; u++)
        for (int i = u; i < 40; i++, n++)
            many[n] = (row){.user = u, .item = i, .time = 10};
    CHECK_OK(build(many, n, n, 1, &options, b, &dropped));
    CHECK(dropped.n_events == (uint64_t)n && dropped.n_duplicates == 0);
}

/* The minima as amzn-books has them, against counts made by hand. */
TEST(builder_applies_minima_once) {
    /* user 1: items 1 1 1 2; user 2: items 1 2; user 3: items 2 2 3.  Item 3 is rare. */
    static const int64_t events[][2] = {{1, 1}, {1, 1}, {1, 1}, {1, 2}, {2, 1},
                                        {2, 2}, {3, 2}, {3, 2}, {3, 3}};
    row rows[9] = {0};
    for (int i = 0; i < 9; i++)
        rows[i] = (row){.user = events[i][0], .item = events[i][1], .time = i, .order = i};
    builder_options options = plain;
    options.min_item_events = 2;
    options.min_user_events = 3;
    builder_stats stats;
    CHECK_OK(build(rows, 9, 4, 2, &options, test_folder(), &stats));
    /* User 2 has 2 events: dropped.  Item 3 has 1: dropped; user 3 is left with 2 events: dropped
     * too, but item 2 keeps its number from the step before. */
    CHECK_EQ(stats.n_users, 1);
    CHECK_EQ(stats.n_items, 2);
    CHECK_EQ(stats.n_events, 4);
    CHECK_EQ(stats.n_filtered_events, 5);
    options.min_user_events = 100;
    CHECK_FAILS(build(rows, 9, 4, 2, &options, test_folder(), &stats), ERR_FORMAT,
                "no user is left");
}

static status add_text(builder_sink *s, const char *user, size_t user_bytes, const char *item,
                       size_t item_bytes, uint16_t action, int64_t time) {
    uint32_t u, i;
    TRY(sink_user_text(s, user, user_bytes, &u));
    TRY(sink_item_text(s, item, item_bytes, &i));
    return sink_add_numbered(s, u, i, action, time);
}

TEST(builder_keeps_context_and_texts) {
    builder_options options = {.has_text_users = true,
                               .has_text_items = true,
                               .actions = ACTION_STARS,
                               .time_per_second = 1};
    builder *b;
    builder_stats stats;
    int age, sex;
    CHECK_OK(builder_create(&b, &options, NULL));
    builder_sink *s = builder_get_sink(b, 0);
    CHECK_OK(sink_begin_block(s, 0, 10));
    CHECK_OK(add_text(s, "zoe", 3, "B2", 2, 4, 10));
    CHECK_OK(add_text(s, "bob", 3, "A10", 3, 0, 12));
    CHECK_OK(add_text(s, "zoe", 3, "A1", 2, 2, 9));
    CHECK_OK(sink_end_block(s));
    CHECK_OK(builder_add_context(b, "age", &age));
    CHECK_FAILS(builder_add_context(b, "age", &age), ERR_FORMAT, "two user features");
    CHECK_OK(builder_add_context(b, "friend_user_num_range", &sex));
    CHECK_OK(builder_set_context(b, age, "bob", 3, "25", 2));
    CHECK_OK(builder_set_context(b, age, "zoe", 3, "3", 1));
    CHECK_OK(builder_set_context(b, age, "nobody", 6, "100", 3));
    CHECK_OK(builder_set_context(b, sex, "zoe", 3, "F", 1));
    CHECK_OK(builder_write(b, test_folder(), "{}", &stats));
    builder_destroy(b);
    seq_file *f;
    CHECK_OK(seq_file_open(&f, test_folder(), NULL));
    CHECK_EQ(f->n_users, 2);
    CHECK_EQ(f->n_context, 2);
    CHECK_EQ(seq_find_user(f, "bob"), 0);
    CHECK_EQ(seq_find_user(f, "zoe"), 1);
    CHECK_EQ(seq_find_item(f, "A1"), 1);
    CHECK_EQ(seq_find_item(f, "A10"), 2);
    CHECK_EQ(seq_find_item(f, "B2"), 3);
    CHECK_EQ(f->item[1], 1);
    CHECK_EQ(f->item[2], 3);
    CHECK_EQ(f->context[0].value[0], 2); /* 3 < 25 < 100, as numbers */
    CHECK_EQ(f->context[0].value[1], 1);
    CHECK_EQ(f->context[0].values.n, 4);
    CHECK_EQ(f->context[1].value[0], 0);
    CHECK_EQ(f->context[1].value[1], 1);
    CHECK_STR(f->context[1].name, "friend_user_num_range");
    CHECK(seq_rating(f, 4) == 5.0);
    seq_file_close(f);
}

TEST(builder_refuses_no_events) {
    builder *b;
    builder_stats stats;
    char folder[256];
    snprintf(folder, sizeof folder, "%s/new", test_folder());
    CHECK_OK(builder_create(&b, &plain, NULL));
    CHECK_FAILS(builder_write(b, folder, "{}", &stats), ERR_FORMAT, "no events");
    builder_destroy(b);
    CHECK_EQ(test_command(NULL, "test -e %s", folder), 1);
}

static status build_small(void *ctx) {
    builder_stats stats;
    return build(ctx, 2000, 300, 2, &plain, test_folder(), &stats);
}

/* Half of the items have small ids, which are looked up in an array that grows once; one of
 * millions would have each run clear that. */
TEST(builder_survives_no_memory) {
    row *rows = make_rows(2000, 50, 60, 100, 4);
    for (int i = 0; i < 2000; i++) {
        int64_t item = (rows[i].item + 5) / 1000003;
        rows[i].item = item < 30 ? item * 200 : item << 40;
    }
    CHECK(oom_at_each_allocation(build_small, rows) > 20);
    free(rows);
}
