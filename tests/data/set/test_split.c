#include "data/set/split.h"

#include "toy_data.h"

static void check_range(const split *s, split_part part, uint64_t user, uint64_t begin,
                        uint64_t target_begin, uint64_t end) {
    event_range r;
    CHECK(split_range(s, part, user, &r));
    CHECK_EQ(r.begin, begin);
    CHECK_EQ(r.target_begin, target_begin);
    CHECK_EQ(r.end, end);
}

TEST(split_leave_one_out) {
    seq_file data;
    event_range r;
    split_users users;
    toy_open(&data, (uint32_t[]){5, 1, 2, 3}, 4);
    split s = split_make(&data, split_rule_of(SPLIT_LEAVE_ONE_OUT), 0);
    check_range(&s, PART_TRAIN, 0, 0, 1, 4);
    check_range(&s, PART_TEST, 0, 0, 4, 5);
    CHECK(!split_range(&s, PART_TRAIN, 1, &r));
    CHECK(!split_range(&s, PART_TEST, 1, &r));
    CHECK(!split_range(&s, PART_TRAIN, 2, &r)); /* one event left: nothing to predict it from */
    check_range(&s, PART_TEST, 2, 6, 7, 8);
    check_range(&s, PART_TRAIN, 3, 8, 9, 10);
    CHECK_OK(split_users_init(&users, &s, PART_TRAIN));
    CHECK_EQ(users.n, 2);
    CHECK_EQ(users.n_too_short, 2);
    CHECK_EQ(users.user[0], 0);
    CHECK_EQ(users.user[1], 3);
    split_users_fini(&users);
    CHECK_OK(split_users_init(&users, &s, PART_TEST));
    CHECK_EQ(users.n, 3);
    CHECK_EQ(users.n_too_short, 1);
    split_users_fini(&users);
    CHECK_FAILS(split_users_init(&users, &s, PART_VALIDATION), ERR_USAGE, "leave-two-out");
    CHECK(!split_range(&s, PART_VALIDATION, 0, &r));
    toy_close(&data);
}

TEST(split_leave_two_out) {
    seq_file data;
    event_range r;
    toy_open(&data, (uint32_t[]){5, 3, 4}, 3);
    split s = split_make(&data, split_rule_of(SPLIT_LEAVE_TWO_OUT), 0);
    check_range(&s, PART_TRAIN, 0, 0, 1, 3);
    check_range(&s, PART_VALIDATION, 0, 0, 3, 4);
    check_range(&s, PART_TEST, 0, 0, 4, 5);
    CHECK(!split_range(&s, PART_TRAIN, 1, &r));
    check_range(&s, PART_VALIDATION, 1, 5, 6, 7);
    check_range(&s, PART_TEST, 1, 5, 7, 8);
    check_range(&s, PART_TRAIN, 2, 8, 9, 10);
    toy_close(&data);
}

/* Everyone is long enough: no list is kept. */
TEST(split_of_all_users_needs_no_list) {
    seq_file data;
    split_users users;
    toy_open(&data, (uint32_t[]){3, 3, 9}, 3);
    split s = split_make(&data, split_rule_of(SPLIT_LEAVE_ONE_OUT), 0);
    CHECK_OK(split_users_init(&users, &s, PART_TRAIN));
    CHECK_EQ(users.n, 3);
    CHECK(users.user == NULL);
    split_users_fini(&users);
    toy_close(&data);
}

static uint64_t count_train(uint64_t n_users, uint64_t seed) {
    uint32_t *lengths = calloc(n_users + 1, sizeof *lengths);
    seq_file data;
    split_users train, test;
    for (uint64_t u = 0; u < n_users; u++)
        lengths[u] = 2;
    toy_open(&data, lengths, n_users);
    split s = split_make(&data, split_rule_of(SPLIT_BY_USER), seed);
    CHECK_OK(split_users_init(&train, &s, PART_TRAIN));
    CHECK_OK(split_users_init(&test, &s, PART_TEST));
    CHECK_EQ(train.n + test.n, n_users);
    event_range r;
    for (uint64_t u = 0; u < n_users; u++)
        CHECK(split_range(&s, PART_TRAIN, u, &r) != split_range(&s, PART_TEST, u, &r));
    uint64_t n = train.n;
    split_users_fini(&train);
    split_users_fini(&test);
    toy_close(&data);
    free(lengths);
    return n;
}

TEST(split_by_user_counts_exactly) {
    for (uint64_t n = 1; n <= 64; n++)
        CHECK_EQ(count_train(n, n), (uint64_t)floor(.7 * (double)n + .5 + 1e-9));
    CHECK_EQ(count_train(6040, 1), 4228);
}

TEST(split_by_user_is_fixed_by_the_seed) {
    enum { N = 500 };
    uint32_t lengths[N];
    seq_file data;
    event_range r;
    for (int u = 0; u < N; u++)
        lengths[u] = u % 10 == 0 ? 1 : 4;
    toy_open(&data, lengths, N);
    split a = split_make(&data, split_rule_of(SPLIT_BY_USER), 1),
          again = split_make(&data, split_rule_of(SPLIT_BY_USER), 1),
          b = split_make(&data, split_rule_of(SPLIT_BY_USER), 2);
    int n_differ = 0, n_train = 0;
    for (uint64_t u = 0; u < N; u++) {
        bool is_train = split_range(&a, PART_TRAIN, u, &r);
        CHECK_EQ(is_train, split_range(&again, PART_TRAIN, u, &r));
        n_differ += is_train != split_range(&b, PART_TRAIN, u, &r);
        n_train += is_train;
        if (is_train) CHECK_EQ(r.end - r.begin, 4);
        if (is_train) CHECK_EQ(r.target_begin - r.begin, 1);
    }
    CHECK(n_differ > N / 5); /* 2 * .7 * .3 = .42 of the users change sides */
    split_users users;
    CHECK_OK(split_users_init(&users, &a, PART_TRAIN));
    CHECK_EQ(users.n, n_train);
    CHECK_EQ(users.n + users.n_too_short, 350);
    split_users_fini(&users);
    toy_close(&data);
}

/* Events are 3 s apart; the rows of user u begin where those of user u - 1 end. */
TEST(split_by_time_cuts_between_events) {
    seq_file data;
    event_range r;
    split_users users;
    toy_open(&data, (uint32_t[]){5, 4, 2, 3}, 4); /* rows 0-4, 5-8, 9-10, 11-13 */
    split_rule rule = split_rule_of(SPLIT_TIME);
    rule.time_cut = toy_time(7);
    split s = split_make(&data, rule, 0);
    check_range(&s, PART_TRAIN, 0, 0, 1, 5); /* all its events are before the cut */
    CHECK(!split_range(&s, PART_TEST, 0, &r));
    check_range(&s, PART_TRAIN, 1, 5, 6, 7); /* the event at the cut is not seen, */
    check_range(&s, PART_TEST, 1, 5, 7, 8);  /* it is the test, and the last event is neither */
    CHECK(!split_range(&s, PART_TRAIN, 2, &r));
    CHECK(!split_range(&s, PART_TEST, 2, &r)); /* no history before the cut */
    CHECK(!split_range(&s, PART_VALIDATION, 1, &r));
    CHECK_OK(split_users_init(&users, &s, PART_TEST));
    CHECK(users.n == 1 && users.user[0] == 1);
    CHECK_EQ(users.n_too_short, 2); /* users 2 and 3; user 0 is not of this part */
    split_users_fini(&users);
    rule.time_cut++; /* one second later the event at the old cut trains */
    s = split_make(&data, rule, 0);
    check_range(&s, PART_TRAIN, 1, 5, 6, 8);
    check_range(&s, PART_TEST, 1, 5, 8, 9);
    data.time_per_second = 1000; /* ticks are milliseconds: the cut is after every event */
    s = split_make(&data, rule, 0);
    check_range(&s, PART_TRAIN, 3, 11, 12, 14);
    rule.time_cut = INT64_MIN / 10;
    s = split_make(&data, rule, 0);
    CHECK(!split_range(&s, PART_TRAIN, 3, &r));
    toy_close(&data);
}

/* In a view without the event at the cut that event is lost; the next one never takes its place. */
TEST(split_by_time_with_gaps) {
    seq_file data, view;
    event_range r;
    toy_open(&data, (uint32_t[]){5}, 1);
    const uint64_t is_kept = 0x17, n_before = 0, offsets[] = {0, 4}; /* without row 3 */
    int64_t kept_time[] = {data.time[0], data.time[1], data.time[2], data.time[4]};
    const seq_gaps gaps = {data.offsets, &is_kept, &n_before, data.time};
    view = data;
    view.gaps = &gaps, view.offsets = offsets, view.time = kept_time, view.n_events = 4;
    split_rule rule = split_rule_of(SPLIT_TIME);
    rule.time_cut = toy_time(3);
    split s = split_make(&view, rule, 0);
    CHECK(split_range(&s, PART_TEST, 0, &r) && r.target_begin == 3 && r.end == 3);
    CHECK(split_range(&s, PART_TRAIN, 0, &r) && r.begin == 0 && r.end == 3);
    rule.time_cut = toy_time(4);
    s = split_make(&view, rule, 0);
    CHECK(split_range(&s, PART_TEST, 0, &r) && r.target_begin == 3 && r.end == 4);
    toy_close(&data);
}

TEST(split_by_time_validates_on_the_last_event_before_the_cut) {
    seq_file data;
    event_range r;
    toy_open(&data, (uint32_t[]){5, 4, 1}, 3);
    split_rule rule = split_rule_of(SPLIT_TIME);
    rule.time_cut = toy_time(7);
    rule.has_validation = true;
    split s = split_make(&data, rule, 0);
    check_range(&s, PART_TRAIN, 0, 0, 1, 4);
    check_range(&s, PART_VALIDATION, 0, 0, 4, 5);
    CHECK(!split_range(&s, PART_TRAIN, 1, &r)); /* one event is left */
    check_range(&s, PART_VALIDATION, 1, 5, 6, 7);
    check_range(&s, PART_TEST, 1, 5, 7, 8); /* the same test as without validation */
    CHECK(!split_range(&s, PART_TRAIN, 2, &r) && !split_range(&s, PART_VALIDATION, 2, &r));
    toy_close(&data);
}

TEST(split_by_user_validates_on_half_of_the_others) {
    enum { N = 101 };
    uint32_t lengths[N];
    seq_file data;
    event_range r;
    int n[3] = {0};
    for (int u = 0; u < N; u++)
        lengths[u] = 3;
    toy_open(&data, lengths, N);
    split_rule rule = split_rule_of(SPLIT_BY_USER);
    split plain = split_make(&data, rule, 5);
    rule.has_validation = true;
    split s = split_make(&data, rule, 5);
    for (uint64_t u = 0; u < N; u++) {
        int n_parts = 0;
        for (int part = 0; part < 3; part++)
            if (split_range(&s, (split_part)part, u, &r)) n[part]++, n_parts++;
        CHECK_EQ(n_parts, 1);
        CHECK_EQ(split_range(&s, PART_TRAIN, u, &r), split_range(&plain, PART_TRAIN, u, &r));
    }
    CHECK(n[PART_TRAIN] == 71 && n[PART_VALIDATION] == 15 && n[PART_TEST] == 15);
    toy_close(&data);
}
