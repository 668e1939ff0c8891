#include "train/loop/baselines.h"

#include "oom.h"
#include "toy_data.h"

enum { ITEMS = 60, USERS = 90 };

/* Users with repeats, skewed to small item numbers, some too short for a part. */
static void open_users(seq_file *data) {
    uint32_t lengths[USERS];
    toy_zipf_lengths(lengths, USERS, 40, 4);
    lengths[3] = 0, lengths[10] = 1, lengths[20] = 2;
    toy_open(data, lengths, USERS);
    data->n_items = ITEMS;
    uint32_t *item = (uint32_t *)data->item;
    rng_key key = rng_make_key(2, RNG_TEST);
    for (uint64_t i = 0; i < data->n_events; i++) {
        double x = (double)rng_uniform(rng_draw64(key, i, 0).word[0]);
        item[i] = (uint32_t)(x * x * ITEMS) + 1;
    }
}

/* has[u][i]: user u has item i among the last max_events training events; events[i] of all. */
typedef struct tables {
    bool has[USERS][ITEMS + 1];
    int n_events[ITEMS + 1];
    float sim[ITEMS + 1][ITEMS + 1];  /* 0 where not a neighbour */
    float next[ITEMS + 1][ITEMS + 1]; /* how often j comes after i; 0 where not among the most */
} tables;

static void count(tables *t, const split *s, const baseline_config *c) {
    event_range r;
    int64_t newest = 0;
    for (uint64_t u = 0; u < USERS; u++)
        for (uint64_t row = 0; split_range(s, PART_TRAIN, u, &r) && row < r.end - r.begin; row++)
            if (s->data->time[r.begin + row] > newest) newest = s->data->time[r.begin + row];
    for (uint64_t u = 0; u < USERS; u++) {
        if (!split_range(s, PART_TRAIN, u, &r)) continue;
        for (uint64_t row = r.begin; row < r.end; row++) {
            t->n_events[s->data->item[row]] +=
                c->last_days == 0 || s->data->time[row] > newest - 86400 * c->last_days;
            if (r.end - row > (uint64_t)c->max_events) continue;
            t->has[u][s->data->item[row]] = true;
            if (row + 1 < r.end) t->next[s->data->item[row]][s->data->item[row + 1]]++;
        }
    }
}

static float plain_sim(const tables *t, int i, int j) {
    double both = 0, n_i = 0, n_j = 0;
    for (int u = 0; u < USERS; u++)
        both += t->has[u][i] && t->has[u][j], n_i += t->has[u][i], n_j += t->has[u][j];
    return i == j || both == 0 ? 0 : (float)(both / sqrt(n_i * n_j));
}

static void keep_nearest(float all[ITEMS + 1][ITEMS + 1], int n_neighbors) {
    static float kept[ITEMS + 1][ITEMS + 1];
    for (int i = 1; i <= ITEMS; i++) {
        for (int j = 1; j <= ITEMS; j++) {
            int n_nearer = 0;
            for (int k = 1; k <= ITEMS; k++)
                n_nearer += all[i][k] > all[i][j] || (all[i][k] == all[i][j] && k < j);
            kept[i][j] = n_nearer < n_neighbors ? all[i][j] : 0;
        }
    }
    memcpy(all, kept, sizeof kept);
}

static void find_neighbors(tables *t, int n_neighbors) {
    for (int i = 1; i <= ITEMS; i++)
        for (int j = 1; j <= ITEMS; j++)
            t->sim[i][j] = plain_sim(t, i, j);
    keep_nearest(t->sim, n_neighbors);
    keep_nearest(t->next, n_neighbors);
}

/* Scores of one user: by popularity, summed over the distinct items of the window, or of its last.
 */
static void score_items(const tables *t, const uint32_t *window, uint64_t n, baseline_kind kind,
                        float *score) {
    bool is_done[ITEMS + 1] = {false};
    for (int i = 1; i <= ITEMS; i++)
        score[i] = kind == BASELINE_POPULARITY ? (float)t->n_events[i]
                   : kind == BASELINE_MARKOV   ? t->next[window[n - 1]][i]
                                               : 0;
    for (uint64_t k = 0; kind == BASELINE_ITEM_KNN && k < n; k++) {
        if (is_done[window[k]]) continue;
        is_done[window[k]] = true;
        for (int i = 1; i <= ITEMS; i++)
            score[i] += t->sim[window[k]][i];
    }
}

static int32_t plain_rank(const tables *t, const uint32_t *window, uint64_t n, uint32_t target,
                          baseline_kind kind, bool keeps_seen) {
    float score[ITEMS + 1];
    bool is_seen[ITEMS + 1] = {false};
    int32_t rank = 1;
    score_items(t, window, n, kind, score);
    for (uint64_t k = 0; k < n && !keeps_seen; k++)
        is_seen[window[k]] = true;
    if (is_seen[target]) return ITEMS + 1;
    for (uint32_t i = 1; i <= ITEMS; i++)
        rank +=
            !is_seen[i] && (score[i] > score[target] || (score[i] == score[target] && i < target));
    return rank;
}

static void plain_baseline(const split *s, split_part part, const baseline_config *c,
                           baseline_kind kind, position_counts *out) {
    static tables t;
    static position_counts counts;
    memset(&t, 0, sizeof t);
    memset(&counts, 0, sizeof counts);
    count(&t, s, c);
    find_neighbors(&t, c->n_neighbors);
    for (uint64_t u = 0; u < USERS; u++) {
        event_range r;
        if (!split_range(s, part, u, &r)) continue;
        uint64_t n = r.end - 1 - r.begin;
        n = n < (uint64_t)c->max_history ? n : (uint64_t)c->max_history;
        const uint32_t *target = s->data->item + r.end - 1;
        int32_t rank = plain_rank(&t, target - n, n, *target, kind, c->keeps_seen);
        position_counts_add(&counts, &rank, 1, ITEMS);
    }
    *out = counts;
}

static void check_baselines(const split *s, split_part part, const baseline_config *c) {
    static const baseline_kind kinds[3] = {BASELINE_POPULARITY, BASELINE_ITEM_KNN, BASELINE_MARKOV};
    static position_counts got, want;
    for (int i = 0; i < 9; i++) {
        pool *p;
        CHECK_OK(pool_create(&p, 1 + i / 3));
        CHECK_OK(baseline_measure(kinds[i % 3], s, part, c, p, &got));
        pool_destroy(p);
        plain_baseline(s, part, c, kinds[i % 3], &want);
        CHECK(position_counts_metric(&want, &(metric){METRIC_HR, POSITION_LAST}) > 0.3);
        CHECK(memcmp(&want, &got, sizeof want) == 0);
    }
}

TEST(baselines_equal_plain_code) {
    seq_file data;
    open_users(&data);
    baseline_config c = {.max_history = 5, .n_neighbors = 4, .max_events = 12};
    for (int kind = 0; kind < 3; kind++) {
        split s = split_make(&data, split_rule_of((split_kind)kind), 3);
        check_baselines(&s, PART_TEST, &c);
        if (kind == SPLIT_LEAVE_TWO_OUT) check_baselines(&s, PART_VALIDATION, &c);
    }
    split s = split_make(&data, split_rule_of(SPLIT_LEAVE_ONE_OUT), 3);
    c = baseline_config_default(s.data->n_items);
    check_baselines(&s, PART_TEST, &c);
    c = (baseline_config){.max_history = 1, .n_neighbors = 1, .max_events = 1};
    check_baselines(&s, PART_TEST, &c);
    c = (baseline_config){.max_history = 5, .n_neighbors = 4, .max_events = 12, .keeps_seen = true};
    check_baselines(&s, PART_TEST, &c);
    /* Events a fifth of a day apart: the last days have some of them. */
    for (uint64_t i = 0; i < data.n_events; i++)
        ((int64_t *)data.time)[i] = (int64_t)(i * 17 % data.n_events) * 17280;
    c = (baseline_config){.max_history = 5, .n_neighbors = 4, .max_events = 12, .last_days = 7};
    check_baselines(&s, PART_TEST, &c);
    toy_close(&data);
}

/* Exactly seven days before the newest training event an event no longer counts, and the held-out
 * events, newer than all, do not matter. */
TEST(baselines_last_week_is_seven_days) {
    const int64_t day = 86400;
    seq_file data;
    static position_counts n;
    toy_open(&data, (uint32_t[]){3, 3, 3}, 3);
    data.n_items = 4;
    uint32_t *item = (uint32_t *)data.item;
    int64_t *time = (int64_t *)data.time;
    const uint32_t items[9] = {1, 1, 4, 1, 3, 4, 2, 2, 4}; /* all but the last of three train */
    const int64_t times[9] = {0,        3 * day,     99 * day, 3 * day, 10 * day,
                              99 * day, 3 * day + 1, 10 * day, 99 * day};
    memcpy(item, items, sizeof items);
    memcpy(time, times, sizeof times);
    split s = split_make(&data, split_rule_of(SPLIT_LEAVE_ONE_OUT), 0);
    baseline_config c = baseline_config_default(s.data->n_items);
    c.last_days = 7;
    item[2] = 2, item[5] = 2, item[8] = 3; /* targets: 2 was counted twice, 3 once, 1 not at all */
    CHECK_OK(baseline_measure(BASELINE_POPULARITY, &s, PART_TEST, &c, NULL, &n));
    CHECK(n.count[1] == 3); /* users 0, 1: 2 is first; user 2 has seen 2, and 3 is next */
    item[2] = 3;            /* user 0 has seen 1: 2, 3, 4 remain */
    CHECK_OK(baseline_measure(BASELINE_POPULARITY, &s, PART_TEST, &c, NULL, &n));
    CHECK(n.count[1] == 2 && n.count[2] == 1);
    time[1] = 3 * day + 1, time[3] = 3 * day + 1,
    time[0] = 3 * day + 1; /* now 1 counts three times */
    item[8] = 1;
    CHECK_OK(baseline_measure(BASELINE_POPULARITY, &s, PART_TEST, &c, NULL, &n));
    CHECK(n.count[1] == 2);
    time[1] = time[3] = time[0] = 3 * day; /* and now not at all: 3 comes before it */
    CHECK_OK(baseline_measure(BASELINE_POPULARITY, &s, PART_TEST, &c, NULL, &n));
    CHECK(n.count[1] == 1 && n.count[2] == 2);
    toy_close(&data);
}

/* Held-out users whose last event is not in the view: that event is the target, and missed, though
 * the one before it is there. */
TEST(baselines_miss_targets_that_are_left_out) {
    enum { N = 10, LEN = 4, KEPT = N * (LEN - 1) };
    seq_file data;
    static position_counts n;
    uint32_t lengths[N], item[KEPT];
    uint64_t is_kept = 0, n_before = 0, offsets[N + 1];
    for (int u = 0; u < N; u++)
        lengths[u] = LEN, is_kept |= (uint64_t)7 << (u * LEN);
    for (uint64_t u = 0; u <= N; u++)
        offsets[u] = u * (LEN - 1);
    for (uint32_t i = 0; i < KEPT; i++)
        item[i] = i % 7 + 1;
    toy_open(&data, lengths, N);
    const seq_gaps gaps = {data.offsets, &is_kept, &n_before, data.time};
    seq_file view = data;
    view.gaps = &gaps, view.offsets = offsets, view.item = item, view.n_events = KEPT;
    split s = split_make(&view, split_rule_of(SPLIT_BY_USER), 1);
    baseline_config c = baseline_config_default(s.data->n_items);
    CHECK_OK(baseline_measure(BASELINE_POPULARITY, &s, PART_TEST, &c, NULL, &n));
    CHECK_EQ(n.count[POSITION_MISS], 3);
    toy_close(&data);
}

/* Pairs of items that always go together: the neighbour is found, and popularity is not. */
TEST(baselines_find_what_goes_together) {
    seq_file data;
    uint32_t lengths[USERS];
    for (int u = 0; u < USERS; u++)
        lengths[u] = 4;
    toy_open(&data, lengths, USERS);
    data.n_items = ITEMS;
    uint32_t *item = (uint32_t *)data.item;
    for (uint32_t u = 0; u < USERS; u++) {
        uint32_t a = u * 7 % 30, b = (u * 11 + 1) % 30;
        const uint32_t pattern[4] = {2 * b + 1, 2 * b + 2, 2 * a + 1, 2 * a + 2};
        for (int k = 0; k < 4; k++)
            item[4 * u + (uint32_t)k] = pattern[k];
    }
    split s = split_make(&data, split_rule_of(SPLIT_LEAVE_ONE_OUT), 0);
    baseline_config c = baseline_config_default(s.data->n_items);
    static position_counts popular, near, next;
    CHECK_OK(baseline_measure(BASELINE_POPULARITY, &s, PART_TEST, &c, NULL, &popular));
    CHECK_OK(baseline_measure(BASELINE_ITEM_KNN, &s, PART_TEST, &c, NULL, &near));
    CHECK_OK(baseline_measure(BASELINE_MARKOV, &s, PART_TEST, &c, NULL, &next));
    CHECK(position_counts_metric(&next, &(metric){METRIC_HR, 1}) > 0.9);
    CHECK(position_counts_metric(&near, &(metric){METRIC_HR, 10}) > 0.9 &&
          position_counts_metric(&popular, &(metric){METRIC_HR, 10}) < 0.5);
    toy_close(&data);
}

/* A number of items that fills its pieces of work: each item, the first and the last included, has
 * its one partner for neighbour.  Of every pair one user has both, twice one of them; two users
 * have one each, and are to be recommended the other. */
TEST(baselines_find_the_neighbour_of_every_item) {
    enum { PAIRS = 32, N = 3 * PAIRS };
    seq_file data;
    uint32_t lengths[N];
    for (int u = 0; u < N; u++)
        lengths[u] = u % 3 == 0 ? 3 : 2;
    toy_open(&data, lengths, N);
    data.n_items = 2 * PAIRS;
    uint32_t *item = (uint32_t *)data.item;
    for (uint32_t a = 1; a <= PAIRS; a++, item += 7) {
        const uint32_t b = a + PAIRS, pattern[7] = {a, b, a, a, b, b, a};
        memcpy(item, pattern, sizeof pattern);
    }
    split s = split_make(&data, split_rule_of(SPLIT_LEAVE_ONE_OUT), 0);
    baseline_config c = baseline_config_default(s.data->n_items);
    static position_counts near;
    CHECK_OK(baseline_measure(BASELINE_ITEM_KNN, &s, PART_TEST, &c, NULL, &near));
    CHECK_EQ(near.count[1], 2 * PAIRS);
    toy_close(&data);
}

TEST(baselines_refuse_what_they_cannot_do) {
    seq_file data;
    open_users(&data);
    split s = split_make(&data, split_rule_of(SPLIT_LEAVE_ONE_OUT), 0);
    baseline_config c = baseline_config_default(s.data->n_items);
    static position_counts m;
    CHECK_FAILS(baseline_measure(BASELINE_POPULARITY, &s, PART_VALIDATION, &c, NULL, &m), ERR_USAGE,
                "no validation part");
    CHECK_FAILS(baseline_measure(BASELINE_ITEM_KNN, &s, PART_VALIDATION, &c, NULL, &m), ERR_USAGE,
                "no validation part");
    /* What 'train' and 'eval' ask for always fits. */
    CHECK_EQ(baseline_config_default(1000000).n_neighbors, 100);
    CHECK_EQ(baseline_config_default(9999999).n_neighbors, 26);
    c.n_neighbors = 100000000;
    CHECK_FAILS(baseline_measure(BASELINE_ITEM_KNN, &s, PART_TEST, &c, NULL, &m), ERR_UNSUPPORTED,
                "more than 2 GiB; ask for fewer");
    c.n_neighbors = 0;
    CHECK_FAILS(baseline_measure(BASELINE_ITEM_KNN, &s, PART_TEST, &c, NULL, &m), ERR_CONFIG,
                "at least 1");
    toy_close(&data);
}

static status all_baselines(void *ctx) {
    baseline_config c = baseline_config_default(((const split *)ctx)->data->n_items);
    static position_counts m;
    for (int i = 0; i < N_BASELINES; i++)
        TRY(baseline_measure((baseline_kind)i, ctx, PART_TEST, &c, NULL, &m));
    return OK;
}

TEST(baselines_survive_out_of_memory) {
    seq_file data;
    open_users(&data);
    split s = split_make(&data, split_rule_of(SPLIT_LEAVE_ONE_OUT), 0);
    CHECK(oom_at_each_allocation(all_baselines, &s) > 10);
    toy_close(&data);
}
