#include "base/mem.h"
#include "data/set/split.h"
#include "test.h"
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

TEST(split_none_trains_on_all_events) {
    seq_file data;
    event_range r;
    split_users users;
    toy_open(&data, (uint32_t[]){5, 1, 2}, 3);
    split s = split_make(&data, split_rule_of(SPLIT_NONE), 0);
    check_range(&s, PART_TRAIN, 0, 0, 1, 5);
    check_range(&s, PART_TRAIN, 2, 6, 7, 8);
    CHECK(!split_range(&s, PART_TRAIN, 1, &r) && !split_range(&s, PART_TEST, 0, &r));
    CHECK(!split_range(&s, PART_VALIDATION, 0, &r));
    CHECK_FAILS(split_users_init(&users, &s, PART_TEST), ERR_USAGE, "--test-file DIR");
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
static bool has_user(const split_users *u, uint64_t user) {
    for (uint64_t i = 0; i < u->n; i++)
        if ((u->user != NULL ? u->user[i] : i) == user) return true;
    return false;
}

/* A sample has users of its part alone, ascending and from everywhere; it does not depend on the
 * seed, and a smaller one is part of it.  Training has no sample. */
TEST(split_samples_users) {
    enum { N = 500 };
    uint32_t lengths[N];
    seq_file data;
    split_users all, many, few, train;
    for (int u = 0; u < N; u++)
        lengths[u] = u % 10 == 0 ? 1 : 4;
    toy_open(&data, lengths, N);
    for (int kind = SPLIT_LEAVE_ONE_OUT; kind <= SPLIT_BY_USER; kind += SPLIT_BY_USER) {
        split_rule rule = split_rule_of((split_kind)kind);
        split s = split_make(&data, rule, 1), other = s;
        CHECK_OK(split_users_init(&all, &s, PART_TEST));
        CHECK_OK(split_users_init(&train, &s, PART_TRAIN));
        uint64_t n_train = train.n, n_upper = 0;
        split_users_fini(&train);
        s.rule.n_sample = 100;
        CHECK_OK(split_users_init(&many, &s, PART_TEST));
        CHECK_OK(split_users_init(&train, &s, PART_TRAIN));
        CHECK_EQ(train.n, n_train);
        CHECK_EQ(many.n, 100);
        other.rule.n_sample = 40;
        if (kind == SPLIT_LEAVE_ONE_OUT) other.seed = 2;
        CHECK_OK(split_users_init(&few, &other, PART_TEST));
        CHECK_EQ(few.n, 40);
        for (uint64_t i = 0; i < many.n; i++) {
            CHECK(has_user(&all, many.user[i]));
            CHECK(i == 0 || many.user[i - 1] < many.user[i]);
            n_upper += many.user[i] >= N / 2;
        }
        for (uint64_t i = 0; i < few.n; i++)
            CHECK(has_user(&many, few.user[i]));
        CHECK(n_upper > 30 && n_upper < 70);
        split_users_fini(&few);
        other.rule.n_sample = (int64_t)all.n;
        CHECK_OK(split_users_init(&few, &other, PART_TEST));
        CHECK_EQ(few.n, all.n);
        split_users_fini(&few);
        split_users_fini(&many);
        split_users_fini(&train);
        split_users_fini(&all);
    }
    toy_close(&data);
}

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

TEST(split_rule_names) {
    split_kind kind;
    for (int i = 0; i < SPLIT_TEST_FILE; i++) {
        CHECK_OK(split_kind_parse(split_kind_name((split_kind)i), &kind));
        CHECK_EQ(kind, i);
    }
    CHECK_FAILS(split_kind_parse("random", &kind), ERR_USAGE, "leave-one-out");
    CHECK_FAILS(split_kind_parse("test-file", &kind), ERR_USAGE, "unknown");
}

TEST(split_rule_reads_times) {
    struct {
        const char *text;
        int64_t seconds;
    } good[] = {
        {"0", 0},
        {"-5", -5},
        {"978307200", 978307200},
        {"1970-01-01", 0},
        {"1969-12-31", -86400},
        {"2001-01-01", 978307200},
        {"2001-01-01T00:00:01", 978307201},
        {"2000-02-29T23:59:59Z", 951868799},
        {"2000-03-01", 951868800},
        {"2001-01-01T00:00:01.9+01:00", 978303601},
        {"2100-03-01", 4107542400}, /* 2100 is no leap year */
        {"0001-01-01", -62135596800},
        {"9999-12-31T23:59:59Z", 253402300799},
        {"9223372036854775807", INT64_MAX},
    };
    const char *const bad[] = {"",
                               "yesterday",
                               "2001-1-1",
                               "2001-02-29",
                               "2001-13-01",
                               "2001-00-10",
                               "2001-01-32",
                               "2001-01-01T24:00:00",
                               "1e9",
                               "12 ",
                               " 12",
                               "-",
                               "0x10",
                               "0000-01-01",
                               "9223372036854775808",
                               "2001-01-00",
                               "2001-04-31",
                               "2001-01-01Z",
                               "2001-01-01T00:60:00"};
    int64_t t;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK_OK(split_time_parse(good[i].text, &t));
        if (t != good[i].seconds) FAIL_TEST("%s: %" PRId64, good[i].text, t);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_FAILS(split_time_parse(bad[i], &t), ERR_USAGE, "is no time");
}

static split_rule rule_at(split_kind kind, bool has_validation, int64_t cut) {
    return (split_rule){.kind = kind,
                        .has_validation = has_validation || kind == SPLIT_LEAVE_TWO_OUT,
                        .time_cut = cut};
}

TEST(split_rule_in_words) {
    char text[SPLIT_TEXT_BYTES];
    split_rule r = rule_at(SPLIT_TIME, true, 978307200);
    CHECK_STR(split_rule_text(&r, text), "time before 2001-01-01T00:00:00Z, with validation");
    r = rule_at(SPLIT_TIME, false, INT64_MAX);
    CHECK_STR(split_rule_text(&r, text), "time before 9223372036854775807");
    r = rule_at(SPLIT_TIME, false, 253402300799);
    CHECK_STR(split_rule_text(&r, text), "time before 9999-12-31T23:59:59Z");
    r = rule_at(SPLIT_TIME, false, -62135596800);
    CHECK_STR(split_rule_text(&r, text), "time before 0001-01-01T00:00:00Z");
    r = rule_at(SPLIT_TIME, false, -62135596801);
    CHECK_STR(split_rule_text(&r, text), "time before -62135596801");
    r = rule_at(SPLIT_LEAVE_TWO_OUT, true, 0);
    CHECK_STR(split_rule_text(&r, text), "leave-two-out");
    r = rule_at(SPLIT_BY_USER, true, 7);
    CHECK_STR(split_rule_text(&r, text), "by-user, with validation");
}

/* Which parts of which splits a model of another split may be tested on. */
TEST(split_rule_never_tests_on_trained_events) {
    const split_rule one = rule_at(SPLIT_LEAVE_ONE_OUT, false, 0),
                     two = rule_at(SPLIT_LEAVE_TWO_OUT, true, 0),
                     user = rule_at(SPLIT_BY_USER, false, 0),
                     user_v = rule_at(SPLIT_BY_USER, true, 0),
                     time = rule_at(SPLIT_TIME, false, 100),
                     time_v = rule_at(SPLIT_TIME, true, 100),
                     later = rule_at(SPLIT_TIME, false, 101),
                     file = rule_at(SPLIT_TEST_FILE, false, 0),
                     file_v = rule_at(SPLIT_TEST_FILE, true, 0),
                     none = rule_at(SPLIT_NONE, false, 0);
    const struct {
        const split_rule *trained, *wanted;
        bool test, validation;
    } cases[] = {
        {&one, &one, true, true},      {&one, &two, true, false},     {&two, &one, true, false},
        {&two, &two, true, true},      {&one, &user, false, false},   {&user, &one, false, false},
        {&user, &user_v, true, true},  {&user_v, &user, true, true},  {&time, &later, true, false},
        {&later, &time, false, false}, {&time, &time_v, true, false}, {&time_v, &time, true, false},
        {&time, &one, false, false},   {&one, &time, false, false},   {&one, &file, true, false},
        {&file, &one, false, false},   {&file, &file_v, true, false}, {&user, &file, true, false},
        {&none, &one, false, false},   {&none, &user, false, false},  {&none, &time, false, false},
        {&none, &file, true, false},   {&one, &none, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool test = split_check_unseen(cases[i].trained, cases[i].wanted, PART_TEST) == OK;
        bool val = split_check_unseen(cases[i].trained, cases[i].wanted, PART_VALIDATION) == OK;
        if (test != cases[i].test || val != cases[i].validation) FAIL_TEST("case %zu", i);
    }
    CHECK_FAILS(split_check_unseen(&one, &time, PART_TEST), ERR_USAGE,
                "the test part of 'time before 1970-01-01T00:01:40Z' has events that the run was "
                "trained on: its split is 'leave-one-out'");
}

static status read_back(split_record *out, const char *text) {
    arena a;
    const json_value *v;
    arena_init(&a, 1024);
    status st = json_parse(&a, "t", text, strlen(text), &v);
    if (st == OK) st = split_record_read(out, v);
    arena_fini(&a);
    return st;
}

TEST(split_record_survives_json) {
    static split_record from, to;
    for (int kind = 0; kind < SPLIT_KINDS; kind++) {
        for (int v = 0; v < 2; v++) {
            json_writer w;
            buf text = {0};
            from = (split_record){0};
            from.rule = split_rule_of((split_kind)kind);
            if (kind > SPLIT_LEAVE_TWO_OUT && kind != SPLIT_NONE) from.rule.has_validation = v;
            if (kind == SPLIT_TIME) from.rule.time_cut = -3;
            from.rule.n_sample = v * 70000;
            if (kind == SPLIT_TEST_FILE) {
                snprintf(from.test_file, sizeof from.test_file, "/a/b \"c");
                from.test_data = UINT64_C(0xfedcba9876543210);
            }
            from.rule.target_actions = kind == SPLIT_TIME ? 0 : UINT64_C(1) << 63 | 5;
            json_begin(&w, &text, 0);
            json_object_open(&w);
            split_record_write(&from, &w);
            json_object_close(&w);
            CHECK_OK(json_finish(&w));
            CHECK_OK(read_back(&to, buf_str(&text)));
            CHECK(split_rule_is_same(&from.rule, &to.rule));
            CHECK_EQ(from.rule.n_sample, to.rule.n_sample);
            CHECK_EQ(from.rule.target_actions, to.rule.target_actions);
            CHECK_STR(to.test_file, from.test_file);
            CHECK_EQ(to.test_data, from.test_data);
            buf_fini(&text);
        }
    }
    /* Before 0.2 a cut was a number of seconds. */
    CHECK_OK(read_back(&to, "{\"split\":\"time\",\"time_cut\":978307200}"));
    CHECK_EQ(to.rule.time_cut, 978307200);
    CHECK_OK(read_back(&to, "{\"split\":\"time\",\"time_cut\":\"2001-01-01T00:00:00Z\"}"));
    CHECK_EQ(to.rule.time_cut, 978307200);
    CHECK_FAILS(read_back(&to, "{\"split\":\"time\",\"time_cut\":\"soon\"}"), ERR_FORMAT,
                "is no time");
    /* Whether there is a validation part follows from the kind where only one is possible. */
    CHECK_OK(read_back(&to, "{\"split\":\"leave-one-out\",\"has_validation\":true}"));
    CHECK(!to.rule.has_validation);
    CHECK_OK(read_back(&to, "{\"split\":\"leave-two-out\",\"has_validation\":false}"));
    CHECK(to.rule.has_validation);
    static char path[SPLIT_PATH_BYTES + 100];
    snprintf(path, sizeof path,
             "{\"split\":\"test-file\",\"test_data\":\"0123456789abcdef\",\"test_file\":\"/%*d\"}",
             SPLIT_PATH_BYTES - 1, 1);
    CHECK_FAILS(read_back(&to, path), ERR_FORMAT, "too long");
    CHECK_FAILS(read_back(&to, "{\"split\":\"test-file\",\"test_file\":\"x\","
                               "\"test_data\":\"0123456789abcdef0\"}"),
                ERR_FORMAT, "hexadecimal digits");
    CHECK_FAILS(read_back(&to, "{\"split\":\"odd\"}"), ERR_FORMAT, "unknown to this version");
    CHECK_FAILS(read_back(&to, "{\"split\":\"time\"}"), ERR_FORMAT, "time_cut");
    CHECK_FAILS(read_back(&to, "{\"split\":\"none\",\"eval_users\":-1}"), ERR_FORMAT, "below 0");
    CHECK_FAILS(read_back(&to, "{\"split\":\"by-user\",\"has_validation\":1}"), ERR_FORMAT,
                "neither true nor false");
    CHECK_FAILS(read_back(&to, "{\"split\":\"test-file\",\"test_file\":\"x\"}"), ERR_FORMAT,
                "test_data");
    CHECK_FAILS(read_back(&to, "{\"split\":\"test-file\",\"test_file\":\"x\","
                               "\"test_data\":\"+edcba9876543210\"}"),
                ERR_FORMAT, "hexadecimal digits");
}

static void check_bijective(uint64_t n, uint64_t seed, uint64_t epoch) {
    permutation p = permutation_make(n, seed, RNG_SHUFFLE, epoch);
    uint8_t *seen = calloc(n, 1);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t value = permutation_at(&p, i);
        CHECK(value < n);
        CHECK(!seen[value]);
        seen[value] = 1;
        CHECK_EQ(permutation_find(&p, value), i);
    }
    free(seen);
}

TEST(permutation_is_bijective) {
    for (uint64_t n = 1; n <= 130; n++)
        for (uint64_t seed = 0; seed < 4; seed++)
            check_bijective(n, seed, seed);
    static const uint64_t sizes[] = {255, 256, 257, 997, 1024, 4093, 65535, 65537, 100003};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_bijective(sizes[i], 42, i);
}

/* There is no table: the far end of a huge permutation takes no time, and its inverse finds it
 * again. */
TEST(permutation_of_huge_ranges) {
    static const uint64_t sizes[] = {1000000000, (uint64_t)1 << 40, ((uint64_t)1 << 62) + 1,
                                     (uint64_t)1 << 63};
    for (size_t i = 0; i < 4; i++) {
        permutation p = permutation_make(sizes[i], 7, RNG_SHUFFLE, 3);
        for (uint64_t k = 0; k < 100; k++) {
            uint64_t position = sizes[i] - 1 - k, value = permutation_at(&p, position);
            CHECK(value < sizes[i]);
            CHECK_EQ(permutation_find(&p, value), position);
        }
    }
}

TEST(permutation_depends_on_seed_stream_and_epoch) {
    enum { N = 1000 };
    permutation p[4] = {
        permutation_make(N, 1, RNG_SHUFFLE, 0), permutation_make(N, 1, RNG_SHUFFLE, 1),
        permutation_make(N, 2, RNG_SHUFFLE, 0), permutation_make(N, 1, RNG_SPLIT, 0)};
    for (int a = 0; a < 4; a++) {
        for (int b = a + 1; b < 4; b++) {
            int n_equal = 0;
            for (uint64_t i = 0; i < N; i++)
                n_equal += permutation_at(&p[a], i) == permutation_at(&p[b], i);
            CHECK(n_equal < 12); /* 1 is expected of two random ones */
        }
    }
    permutation again = permutation_make(N, 1, RNG_SHUFFLE, 1);
    for (uint64_t i = 0; i < N; i++)
        CHECK_EQ(permutation_at(&p[1], i), permutation_at(&again, i));
}

/* Chi-square of where element 0 lands over many seeds: n - 1 degrees of freedom, so the mean is
 * n - 1 and five standard deviations above it are as good as never reached by chance. */
static void check_uniform(uint64_t n) {
    enum { DRAWS = 40000 };
    uint32_t count[64] = {0};
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        permutation p = permutation_make(n, seed, RNG_SHUFFLE, seed % 3);
        count[permutation_find(&p, 0)]++;
    }
    double expected = (double)DRAWS / (double)n, chi2 = 0;
    for (uint64_t i = 0; i < n; i++)
        chi2 += (count[i] - expected) * (count[i] - expected) / expected;
    double limit = (double)(n - 1) + 5 * sqrt(2.0 * (double)(n - 1)) + 5;
    if (chi2 > limit) FAIL_TEST("n = %d: chi2 = %.1f > %.1f", (int)n, chi2, limit);
}

TEST(permutation_places_are_uniform) {
    static const uint64_t sizes[] = {2, 3, 4, 5, 7, 10, 16, 31, 64};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_uniform(sizes[i]);
}
