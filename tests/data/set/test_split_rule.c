#include "data/set/split_rule.h"

#include "base/mem.h"
#include "test.h"

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
                               "2001-01-01T00:00:00+01",
                               "-",
                               "0x10",
                               "0000-01-01",
                               "9223372036854775808",
                               "2001-01-01T00:00:60",
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
    return (split_rule){kind, has_validation || kind == SPLIT_LEAVE_TWO_OUT, cut};
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
                     file_v = rule_at(SPLIT_TEST_FILE, true, 0);
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
            buf text;
            from = (split_record){0};
            from.rule = split_rule_of((split_kind)kind);
            if (kind > SPLIT_LEAVE_TWO_OUT) from.rule.has_validation = v;
            if (kind == SPLIT_TIME) from.rule.time_cut = -3;
            if (kind == SPLIT_TEST_FILE) {
                snprintf(from.test_file, sizeof from.test_file, "/a/b \"c");
                from.test_data = UINT64_C(0xfedcba9876543210);
            }
            buf_init(&text);
            json_begin(&w, &text, 0);
            json_object_open(&w);
            split_record_write(&from, &w);
            json_object_close(&w);
            CHECK_OK(json_finish(&w));
            CHECK_OK(read_back(&to, buf_str(&text)));
            CHECK(split_rule_is_same(&from.rule, &to.rule));
            CHECK_STR(to.test_file, from.test_file);
            CHECK_EQ(to.test_data, from.test_data);
            buf_fini(&text);
        }
    }
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
                ERR_FORMAT, "no fingerprint");
    CHECK_FAILS(read_back(&to, "{\"split\":\"odd\"}"), ERR_FORMAT, "unknown to this version");
    CHECK_FAILS(read_back(&to, "{\"split\":\"time\"}"), ERR_FORMAT, "time_cut");
    CHECK_FAILS(read_back(&to, "{\"split\":\"by-user\",\"has_validation\":1}"), ERR_FORMAT,
                "neither true nor false");
    CHECK_FAILS(read_back(&to, "{\"split\":\"test-file\",\"test_file\":\"x\"}"), ERR_FORMAT,
                "test_data");
    CHECK_FAILS(read_back(&to, "{\"split\":\"test-file\",\"test_file\":\"x\","
                               "\"test_data\":\"+edcba9876543210\"}"),
                ERR_FORMAT, "no fingerprint");
}
