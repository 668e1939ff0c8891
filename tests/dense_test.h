/* Shared by the tests of dense ops: backends with 1, 2 and 3 threads, numbers, and the rule by
 * which a result is judged.
 *
 * A naive version is written once, in double, with each step passed through a rounding that does
 * nothing unless `is_float` is set; then it computes what naive code of the precision under test
 * does: r32 for sums and statistics, which are float32 everywhere; ract for what such code stores
 * as an activation; rfactor for a factor of a matrix product.  The error of the op may be at most
 * twice the error of that naive code, plus a few units in the last place of the largest element.
 * Inputs are exact in every precision: floats() rounds them. */
#ifndef HSTU_TESTS_DENSE_TEST_H
#define HSTU_TESTS_DENSE_TEST_H

#include "base/mem.h"
#include "base/rng.h"
#include "device.h"
#include "ops/ops.h"
#include "test.h"

enum { N_TEST_BACKENDS = 3 };

typedef struct test_backends {
    pool *workers[N_TEST_BACKENDS];
    backend *be[N_TEST_BACKENDS]; /* [i] has i + 1 threads, on the CPU */
} test_backends;

static inline void open_backends(test_backends *t) {
    for (int i = 0; i < N_TEST_BACKENDS; i++) {
        CHECK_OK(pool_create(&t->workers[i], i + 1));
        CHECK_OK(test_backend(&t->be[i], t->workers[i]));
    }
}

static inline void close_backends(test_backends *t) {
    for (int i = 0; i < N_TEST_BACKENDS; i++) {
        backend_destroy(t->be[i]);
        pool_destroy(t->workers[i]);
    }
}

/* x rounded to the precision under test. */
static inline float exact(float x) {
    return (float)precision_round_factor(test_on.p, x);
}

/* n numbers, the same for the same seed. */
static inline float *floats(int64_t n, uint64_t seed) {
    float *x;
    rng_key key = rng_make_key(seed, RNG_TEST);
    CHECK_OK(MEM_NEW(&x, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        x[i] = exact(2 * rng_uniform(rng_draw64(key, (uint64_t)i, 0).word[0]) - 1);
    return x;
}

static inline float *copy_floats(const float *from, int64_t n) {
    float *x;
    CHECK_OK(MEM_NEW(&x, (size_t)n));
    if (n > 0) memcpy(x, from, (size_t)n * sizeof *x);
    return x;
}

static inline double *doubles(int64_t n) {
    double *x;
    CHECK_OK(MEM_NEW(&x, (size_t)n));
    return x;
}

static inline double r32(double v, bool is_float) {
    return is_float ? (double)(float)v : v;
}

static inline double ract(double v, bool is_float) {
    return is_float ? precision_round_act(test_on.p, v) : v;
}

static inline double rfactor(double v, bool is_float) {
    return is_float ? precision_round_factor(test_on.p, v) : v;
}

static inline double max_of(const double *x, int64_t n) {
    double max = 0;
    for (int64_t i = 0; i < n; i++)
        max = fabs(x[i]) > max ? fabs(x[i]) : max;
    return max;
}

/* The error that a result may have on top of that, relative to the largest number: in float32 a few
 * units in the last place.  A 16-bit result is rounded once more.  Where TF32 rounds
 * the factors of a product, which the naive code's own error shows, hardware may cut them off. */
static inline double rule_slack(double naive_error) {
    bool is_rounded =
        precision_is_half(test_on.p) || (test_on.p == PRECISION_TF32 && naive_error > 1e-5);
    return is_rounded ? precision_unit(test_on.p) : 4e-7;
}

/* A fixed bound: `limit` for float32 and TF32 (where no product is involved), and what one rounding
 * of a number this large costs on top where results have 16 bits. */
static inline double with_rounding(double limit, double value) {
    return limit + (precision_is_half(test_on.p) ? precision_unit(test_on.p) * fabs(value) : 0);
}

/* Checks by the rule above; naive may be NULL where only a few units in the last place are allowed.
 * Results that are small differences of large terms, and few, can be exact in naive code by luck:
 * off the CPU's own float32 the units are then those of the largest term. */
#define CHECK_RULE(got, want, naive, n) check_rule(__LINE__, #got, got, want, naive, n, 0)
#define CHECK_RULE_OF_TERMS(got, want, naive, n, terms)                                            \
    check_rule(__LINE__, #got, got, want, naive, n, test_on.kind == ON_CPU ? 0 : (terms))
static inline void check_rule(int line, const char *name, const float *got, const double *want,
                              const double *naive, int64_t n, double terms) {
    double largest = fmax(max_of(want, n), terms), worst = 0;
    for (int64_t i = 0; naive != NULL && i < n; i++)
        worst = fabs(naive[i] - want[i]) > worst ? fabs(naive[i] - want[i]) : worst;
    double slack = naive != NULL ? rule_slack(worst / (largest > 0 ? largest : 1)) : 4e-7;
    double limit = 2 * worst + slack * largest;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= limit))
            FAIL_TEST("line %d: %s[%lld] is %.9g, not %.9g (limit %.3g)", line, name, (long long)i,
                      (double)got[i], want[i], limit);
}

/* A fixed bound in float32 (and TF32, for ops without products); the rule where numbers have 16
 * bits. */
#define CHECK_WITHIN(got, want, naive, n, limit)                                                   \
    check_within(__LINE__, #got, got, want, naive, n, limit)
static inline void check_within(int line, const char *name, const float *got, const double *want,
                                const double *naive, int64_t n, double limit) {
    if (precision_is_half(test_on.p)) {
        check_rule(line, name, got, want, naive, n, 0);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) < limit))
            FAIL_TEST("line %d: %s[%lld] is %.9g, not %.9g (limit %.3g)", line, name, (long long)i,
                      (double)got[i], want[i], limit);
}

/* The same bits with any number of threads; on a GPU, twice. */
#define CHECK_SAME(a, b, n) check_same(__LINE__, #a, a, b, n)
static inline void check_same(int line, const char *name, const float *a, const float *b,
                              int64_t n) {
    for (int64_t i = 0; test_on.is_deterministic && i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            FAIL_TEST("line %d: %s[%lld] is %.9g the next time (with more threads), %.9g at first",
                      line, name, (long long)i, (double)a[i], (double)b[i]);
}

/* Counters of `n` rows, as a batch has them, from row `first` of a longer one on. */
static inline dropout test_dropout(float rate, int64_t n, int64_t first) {
    static const uint32_t step = 11;
    uint32_t *user, *position;
    CHECK_OK(MEM_NEW(&user, (size_t)n));
    CHECK_OK(MEM_NEW(&position, (size_t)n));
    for (int64_t i = 0; i < n; i++) {
        user[i] = (uint32_t)((i + first) / 7);
        position[i] = (uint32_t)((i + first) % 7);
    }
    return (dropout){.rate = rate,
                     .key = rng_make_key(3, RNG_DROPOUT),
                     .step = &step,
                     .site = 5,
                     .user = user,
                     .position = position};
}

static inline void free_dropout(dropout *d) {
    mem_free((void *)d->user);
    mem_free((void *)d->position);
}

/* The factor of one element, straight from the contract. */
static inline double naive_factor(const dropout *d, int64_t row, int32_t column) {
    if (d->rate == 0) return 1;
    rng_block b = rng_draw(d->key, d->position[row], d->user[row], *d->step,
                           d->site << 16 | (uint32_t)column / 4);
    return rng_uniform(b.word[column % 4]) >= d->rate ? 1 / (1 - (double)d->rate) : 0;
}

#endif
