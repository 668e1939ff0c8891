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
    split s = split_make(&data, SPLIT_LEAVE_ONE_OUT, 0);
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
    split s = split_make(&data, SPLIT_LEAVE_TWO_OUT, 0);
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
    split s = split_make(&data, SPLIT_LEAVE_ONE_OUT, 0);
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
    split s = split_make(&data, SPLIT_BY_USER, seed);
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
    split a = split_make(&data, SPLIT_BY_USER, 1), again = split_make(&data, SPLIT_BY_USER, 1),
          b = split_make(&data, SPLIT_BY_USER, 2);
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

TEST(split_names) {
    split_kind kind;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(split_kind_parse(split_kind_name((split_kind)i), &kind));
        CHECK_EQ(kind, i);
    }
    CHECK_FAILS(split_kind_parse("random", &kind), ERR_USAGE, "leave-one-out");
}
