#include "data/set/balance.h"

#include "data/set/split.h"
#include "toy_data.h"

/* The heaviest group divided by a lower bound (the mean group, or the heaviest user if that is
 * more), and the check that groups differ by one user at most. */
static double check_groups(const int32_t *length, int64_t n, const int32_t *group,
                           int32_t n_groups) {
    double *work = calloc((size_t)n_groups, sizeof *work), total = 0, most = 0, least = 0;
    int64_t *count = calloc((size_t)n_groups, sizeof *count);
    for (int64_t i = 0; i < n; i++) {
        CHECK(group[i] >= 0 && group[i] < n_groups);
        double user_work = (double)length[i] * length[i];
        work[group[i]] += user_work;
        least = user_work > least ? user_work : least;
        count[group[i]]++;
    }
    for (int32_t g = 0; g < n_groups; g++) {
        CHECK(count[g] == n / n_groups || count[g] == (n + n_groups - 1) / n_groups);
        total += work[g];
        most = work[g] > most ? work[g] : most;
    }
    free(work);
    free(count);
    least = total / n_groups > least ? total / n_groups : least;
    return total > 0 ? most / least : 1;
}

static double run(const int32_t *length, int64_t n, int32_t n_groups, int32_t max_length) {
    balancer *b;
    int32_t *group = malloc((size_t)(n + 1) * sizeof *group);
    CHECK_OK(balancer_create(&b, n, n_groups, max_length));
    balancer_run(b, length, n, group);
    double ratio = check_groups(length, n, group, n_groups);
    /* The scratch memory keeps no state: a second run gives the same groups. */
    int32_t *again = malloc((size_t)(n + 1) * sizeof *again);
    balancer_run(b, length, n, again);
    CHECK(memcmp(group, again, (size_t)n * sizeof *group) == 0);
    balancer_destroy(b);
    free(group);
    free(again);
    return ratio;
}

static double run_slices(const int32_t *length, int64_t n, int32_t n_groups) {
    int32_t *group = malloc((size_t)n * sizeof *group);
    for (int64_t i = 0; i < n; i++)
        group[i] = (int32_t)(i * n_groups / n);
    double ratio = check_groups(length, n, group, n_groups);
    free(group);
    return ratio;
}

TEST(balance_edge_cases) {
    CHECK(run((int32_t[]){0}, 0, 3, 10) == 1);
    CHECK(run((int32_t[]){7}, 1, 1, 10) == 1);
    CHECK(run((int32_t[]){7}, 1, 4, 10) == 1);
    CHECK(run((int32_t[]){0, 0, 0, 0, 0}, 5, 2, 0) == 1);
    CHECK(run((int32_t[]){3, 3, 3, 3}, 4, 2, 3) == 1);
    CHECK(run((int32_t[]){4, 3, 5, 0}, 4, 2, 5) == 1); /* 25 + 0 = 16 + 9 */
}

/* Counts that do not divide evenly, fewer users than groups, one group: equal shares in all. */
TEST(balance_all_group_counts) {
    uint32_t lengths[257];
    toy_zipf_lengths(lengths, 257, 200, 5);
    for (int64_t n = 0; n <= 257; n += 1 + n / 9)
        for (int32_t g = 1; g <= 40; g += 1 + g / 4)
            run((const int32_t *)lengths, n, g, 200);
}

/* Histories cut at N = 200, as a training batch has them: a global batch of 8 ranks x 128 users. */
TEST(balance_evens_out_zipf_lengths) {
    enum { R = 8, B = 128 };
    double worst = 1, worst_slices = 1;
    for (uint64_t seed = 0; seed < 20; seed++) {
        uint32_t lengths[R * B];
        toy_zipf_lengths(lengths, R * B, 201, seed);
        double ratio = run((const int32_t *)lengths, R * B, R, 201);
        double slices = run_slices((const int32_t *)lengths, R * B, R);
        worst = ratio > worst ? ratio : worst;
        worst_slices = slices > worst_slices ? slices : worst_slices;
    }
    CHECK(worst < 1.0005);
    CHECK(worst_slices > 1.5);
}

/* ML-1M: log-normal lengths from 20 on, median 96, longest 2314; no cut, small batches. */
TEST(balance_evens_out_movie_lengths) {
    enum { R = 8, B = 16 };
    double sum = 0, sum_slices = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        int32_t length[R * B];
        rng_key key = rng_make_key(seed, RNG_TEST);
        for (uint64_t i = 0; i < R * B; i++) {
            double z = 0;
            for (uint32_t k = 0; k < 3; k++)
                for (int j = 0; j < 4; j++)
                    z += (double)rng_uniform(rng_draw64(key, i, k).word[j]);
            double x = 96 * exp(z - 6);
            length[i] = x < 20 ? 20 : x > 2314 ? 2314 : (int32_t)x;
        }
        sum += run(length, R * B, R, 2314);
        sum_slices += run_slices(length, R * B, R);
    }
    CHECK(sum / 50 < 1.01);
    CHECK(sum_slices / 50 > 1.4);
}

/* Swaps continue as long as they help: afterwards no exchange of two users brings two groups closer
 * together. */
TEST(balance_leaves_no_swap_that_helps) {
    enum { USERS = 12, LONGEST = 100 };
    rng_key key = rng_make_key(5, RNG_TEST);
    balancer *b;
    CHECK_OK(balancer_create(&b, USERS, 2, LONGEST));
    for (uint64_t trial = 0; trial < 300; trial++) {
        int32_t length[USERS], group[USERS];
        int64_t work[2] = {0};
        for (uint64_t i = 0; i < USERS; i++)
            length[i] = (int32_t)rng_below(rng_draw64(key, trial, i).word[0], LONGEST + 1);
        balancer_run(b, length, USERS, group);
        for (int i = 0; i < USERS; i++)
            work[group[i]] += (int64_t)length[i] * length[i];
        int64_t gap = llabs(work[0] - work[1]);
        for (int i = 0; i < USERS; i++)
            for (int j = 0; j < USERS; j++) {
                if (group[i] != 0 || group[j] != 1) continue;
                int64_t moved = (int64_t)length[i] * length[i] - (int64_t)length[j] * length[j];
                CHECK(llabs(work[0] - work[1] - 2 * moved) >= gap);
            }
    }
    balancer_destroy(b);
}
