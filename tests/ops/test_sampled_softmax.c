#include <stddef.h>

#include "base/mem.h"
#include "device.h"
#include "format/safetensors.h"
#include "ops/ops.h"
#include "test.h"

/* A case and its results. */
typedef struct problem {
    sampled_softmax_args a;
    double *losses; /* (n) */
    double *dquery; /* (n, E) */
    double *dtable; /* (V, E) */
} problem;

/* Memory for the length of a test. */
static void *kept[4096];
static int n_kept;

AFTER_TESTS {
    while (n_kept > 0)
        mem_free(kept[--n_kept]);
}

static void *zeros(size_t n, size_t size) {
    CHECK(n_kept < 4096);
    CHECK_OK(mem_alloc(&kept[n_kept], n, size));
    return kept[n_kept++];
}

static const float *number(float x) {
    float *out = zeros(1, sizeof *out);
    *out = x;
    return out;
}

/* Naive code in `real`: the reference in double, and the yardstick of rounding in float. */
#define DEFINE_NAIVE(real, EXP, LOG, SQRT)                                                         \
    static real length_##real(const sampled_softmax_args *a, int32_t row) {                        \
        real squares = 0;                                                                          \
        for (int32_t c = 0; c < a->dim; c++)                                                       \
            squares += (real)a->table[row * a->dim + c] * (real)a->table[row * a->dim + c];        \
        real length = SQRT(squares);                                                               \
        return !a->normalises ? 1 : length > (real)a->eps ? length : (real)a->eps;                 \
    }                                                                                              \
    static real dot_##real(const float *x, const float *y, int32_t dim) {                          \
        real sum = 0;                                                                              \
        for (int32_t c = 0; c < dim; c++)                                                          \
            sum += (real)x[c] * (real)y[c];                                                        \
        return sum;                                                                                \
    }                                                                                              \
    static void add_##real(double *sum, real x) {                                                  \
        *sum = (double)((real)*sum + x);                                                           \
    }                                                                                              \
    static void spread_##real(problem *p, int64_t m, int32_t row, real weight) {                   \
        const sampled_softmax_args *a = &p->a;                                                     \
        const float *q = (const float *)a->query + m * a->dim, *e = a->table + row * a->dim;       \
        real length = length_##real(a, row), along = dot_##real(q, e, a->dim) / length / length;   \
        bool is_free = a->normalises && SQRT(dot_##real(e, e, a->dim)) > (real)a->eps;             \
        for (int32_t c = 0; c < a->dim; c++) {                                                     \
            real g = (real)q[c] - (is_free ? along * (real)e[c] : 0);                              \
            add_##real(&p->dquery[m * a->dim + c], weight *(real)e[c] / length);                   \
            add_##real(&p->dtable[row * a->dim + c], weight *g / length);                          \
        }                                                                                          \
    }                                                                                              \
    static void naive_##real(problem *p) {                                                         \
        const sampled_softmax_args *a = &p->a;                                                     \
        real *s = zeros((size_t)a->n_negatives + 1, sizeof *s);                                    \
        p->losses = zeros((size_t)a->n, sizeof *p->losses);                                        \
        p->dquery = zeros((size_t)(a->n * a->dim), sizeof *p->dquery);                             \
        p->dtable = zeros((size_t)a->n_rows * (size_t)a->dim, sizeof *p->dtable);                  \
        for (int64_t m = 0; m < a->n; m++) {                                                       \
            if (a->positive[m] < 0) continue;                                                      \
            real max = -1e30, sum = 0;                                                             \
            for (int32_t r = 0; r <= a->n_negatives; r++) {                                        \
                int32_t row = row_of(a, m, r);                                                     \
                s[r] = dot_##real((const float *)a->query + m * a->dim, a->table + row * a->dim,   \
                                  a->dim) /                                                        \
                       length_##real(a, row) / (real)a->temperature;                               \
                if (is_collision(a, m, r)) s[r] = -50000;                                          \
                max = s[r] > max ? s[r] : max;                                                     \
            }                                                                                      \
            for (int32_t r = 0; r <= a->n_negatives; r++)                                          \
                sum += EXP(s[r] - max);                                                            \
            p->losses[m] = (double)(LOG(sum) + max - s[0]);                                        \
            for (int32_t r = 0; r <= a->n_negatives; r++) {                                        \
                real weight = EXP(s[r] - max) / sum - (r == 0 ? 1 : 0);                            \
                weight *= (real)*a->grad_scale / (real)a->temperature;                             \
                if (!is_collision(a, m, r)) spread_##real(p, m, row_of(a, m, r), weight);          \
            }                                                                                      \
        }                                                                                          \
    }

/* Number 0 is the positive. */
static int32_t row_of(const sampled_softmax_args *a, int64_t m, int32_t r) {
    return r == 0 ? a->positive[m] : a->negative[m * a->n_negatives + r - 1];
}

static bool is_collision(const sampled_softmax_args *a, int64_t m, int32_t r) {
    int32_t row = row_of(a, m, r), positive = a->positive[m];
    if (a->row_id == NULL) return r > 0 && row == positive;
    return r > 0 && a->row_id[row] == a->row_id[positive];
}

DEFINE_NAIVE(double, exp, log, sqrt)
DEFINE_NAIVE(float, expf, logf, sqrtf)

/* Runs it with a pool of n_threads; results into p, gradients on top of what dtable holds. */
static void run_op(problem *p, int n_threads) {
    pool *workers;
    backend *be;
    sampled_softmax_args *a = &p->a;
    CHECK_OK(pool_create(&workers, n_threads));
    CHECK_OK(test_backend(&be, workers));
    a->scratch =
        zeros(be->ops->sampled_softmax_scratch(be, a->n, a->n_negatives, a->dim, a->n_rows), 1);
    a->row_loss = zeros((size_t)a->n, sizeof *a->row_loss);
    a->loss = zeros(1, sizeof *a->loss);
    a->dquery = zeros((size_t)(a->n * a->dim), sizeof(float));
    a->dtable = zeros((size_t)a->n_rows * (size_t)a->dim, sizeof(float));
    CHECK_OK(be->ops->sampled_softmax(be, a));
    backend_destroy(be);
    pool_destroy(workers);
}

static uint32_t word(uint64_t seed, uint64_t i) {
    return rng_draw64(rng_make_key(seed, RNG_TEST), i, 0).word[0];
}

static float *random_floats(uint64_t seed, int64_t n, float scale) {
    float *x = zeros((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)precision_round_factor(
            test_on.p, scale * (2 * rng_uniform(word(seed, (uint64_t)i)) - 1));
    return x;
}

static int32_t *random_rows(uint64_t seed, int64_t n, int32_t n_rows) {
    int32_t *x = zeros((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (int32_t)rng_below(word(seed, (uint64_t)i), (uint32_t)n_rows);
    return x;
}

static problem random_problem(uint64_t seed, int64_t n, int32_t n_negatives, int32_t dim,
                              int32_t n_rows) {
    float *table = random_floats(seed + 1, (int64_t)n_rows * dim, 0.1f);
    for (int32_t c = 0; c < dim; c++)
        table[c] *= n_rows > 2 ? 1e-8f : 1; /* a row shorter than eps */
    return (problem){.a = {.n = n,
                           .n_negatives = n_negatives,
                           .dim = dim,
                           .n_rows = n_rows,
                           .query = random_floats(seed, n * dim, 1 / sqrtf((float)dim)),
                           .table = table,
                           .positive = random_rows(seed + 2, n, n_rows),
                           .negative = random_rows(seed + 3, n * n_negatives, n_rows),
                           .normalises = true,
                           .eps = 1e-6f,
                           .temperature = 0.05f,
                           .grad_scale = number(n > 0 ? 1 / (float)n : 1)}};
}

/* Largest difference over largest value. */
static double error_of(const float *got, const double *want, int64_t n) {
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        worst = d > worst || isnan(d) ? d : worst;
        scale = fabs(want[i]) > scale ? fabs(want[i]) : scale;
    }
    return scale > 0 ? worst / scale : worst;
}

static double error_of64(const double *got, const double *want, int64_t n) {
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        worst = fabs(got[i] - want[i]) > worst ? fabs(got[i] - want[i]) : worst;
        scale = fabs(want[i]) > scale ? fabs(want[i]) : scale;
    }
    return scale > 0 ? worst / scale : worst;
}

/* Only dquery is an activation, which 16 bits round once more; all else stays float32.  Naive code
 * can be exact by luck, where there are few numbers: except in float32 on the CPU one unit in the
 * scores, divided by the temperature, is allowed. */
static void check_errors(const char *what, const float *got, const double *want,
                         const double *naive, int64_t n, bool is_act) {
    double error = error_of(got, want, n), allowed = 2 * error_of64(naive, want, n) + 3e-7;
    if (test_on.kind != ON_CPU) allowed += 6e-8 / 0.05;
    if (is_act && precision_is_half(test_on.p)) allowed += precision_unit(test_on.p);
    if (!(error <= allowed)) FAIL_TEST("%s: error %g, allowed %g", what, error, allowed);
}

/* The op against float64, with the error of naive float32 for scale. */
static void check_problem(problem p) {
    problem wanted = p, plain = p;
    naive_double(&wanted);
    naive_float(&plain);
    run_op(&p, 2);
    double sum = 0;
    for (int64_t m = 0; m < p.a.n; m++)
        sum += wanted.losses[m];
    CHECK(fabs(*p.a.loss - sum) <= 1e-5 * fabs(sum) + 1e-12);
    check_errors("losses", p.a.row_loss, wanted.losses, plain.losses, p.a.n, false);
    check_errors("dquery", p.a.dquery, wanted.dquery, plain.dquery, p.a.n * p.a.dim, true);
    check_errors("dtable", p.a.dtable, wanted.dtable, plain.dtable, (int64_t)p.a.n_rows * p.a.dim,
                 false);
}

TEST(sampled_softmax_equals_float64) {
    static const struct {
        int64_t n;
        int32_t n_negatives, dim, n_rows;
    } shapes[] = {{1, 1, 1, 1},    {1, 1, 1, 2},    {7, 3, 5, 4},      {33, 128, 50, 400},
                  {512, 4, 4, 9},  {513, 5, 16, 9}, {511, 3, 17, 300}, {1100, 2, 64, 257},
                  {20, 9, 63, 60}, {20, 9, 65, 60}, {12, 6, 131, 256}, {40, 30, 256, 100}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        problem p = random_problem(10 * i, shapes[i].n, shapes[i].n_negatives, shapes[i].dim,
                                   shapes[i].n_rows);
        check_problem(p);
        p.a.normalises = false;
        check_problem(p);
    }
}

/* The losses beside the plain one, in double. */
static double corrected(const problem *p, int64_t m, int32_t r) {
    const sampled_softmax_args *a = &p->a;
    int32_t row = row_of(a, m, r);
    const float *q = (const float *)a->query + m * a->dim, *e = a->table + row * a->dim;
    double s = dot_double(q, e, a->dim) / length_double(a, row) / (double)a->temperature;
    bool is_corrected = a->log_q != NULL && (r > 0 || a->corrects_positive);
    return s - (is_corrected ? (double)a->log_q[row] : 0);
}

/* d loss / d score of use r of row m; `loss` gets the row's loss. */
static double slope_of(const problem *p, int64_t m, int32_t r, double *loss) {
    const sampled_softmax_args *a = &p->a;
    int32_t n = a->n_negatives, n_left = 0;
    double sum = 0, slope = 0, own = corrected(p, m, 0), beta = (double)a->beta;
    for (int32_t i = 1; i <= n; i++)
        n_left += !is_collision(a, m, i) || a->kind == PAIRS_GBCE;
    bool is_out = r > 0 && is_collision(a, m, r) && a->kind != PAIRS_GBCE;
    for (int32_t i = 1; i <= n; i++)
        if (!is_collision(a, m, i) || a->kind == PAIRS_GBCE)
            sum += a->kind == PAIRS_SOFTMAX ? exp(corrected(p, m, i) - own)
                                            : log1p(exp(corrected(p, m, i)));
    if (a->kind == PAIRS_SOFTMAX) {
        *loss = log1p(sum);
        slope = exp(corrected(p, m, r) - own) / (1 + sum) - (r == 0);
    } else {
        double at = corrected(p, m, r);
        *loss = (beta * log1p(exp(-own)) + sum) / (n + 1);
        slope = (r == 0 ? -beta / (1 + exp(at)) : 1 / (1 + exp(-at))) / (n + 1);
        if (a->kind == PAIRS_BCE && n_left == 0 && n > 0) *loss = slope = 0;
    }
    return is_out ? 0 : slope;
}

static void check_pairs(problem p) {
    problem want = p;
    const sampled_softmax_args *a = &p.a;
    want.losses = zeros((size_t)a->n, sizeof *want.losses);
    want.dquery = zeros((size_t)(a->n * a->dim), sizeof *want.dquery);
    want.dtable = zeros((size_t)a->n_rows * (size_t)a->dim, sizeof *want.dtable);
    for (int64_t m = 0; m < a->n; m++)
        for (int32_t r = 0; a->positive[m] >= 0 && r <= a->n_negatives; r++) {
            double slope = slope_of(&p, m, r, &want.losses[m]);
            slope *= (double)*a->grad_scale / (double)a->temperature;
            spread_double(&want, m, row_of(a, m, r), slope);
        }
    run_op(&p, 2);
    check_errors("losses", p.a.row_loss, want.losses, want.losses, a->n, false);
    check_errors("dquery", p.a.dquery, want.dquery, want.dquery, a->n * a->dim, true);
    check_errors("dtable", p.a.dtable, want.dtable, want.dtable, (int64_t)a->n_rows * a->dim,
                 false);
}

TEST(losses_of_pairs_equal_float64) {
    static const int32_t shapes[][4] = {
        {1, 1, 3, 2}, {9, 1, 5, 4}, {33, 40, 50, 70}, {20, 9, 64, 60}, {12, 6, 131, 256}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int kind = 0; kind < 5; kind++) {
            problem p =
                random_problem(20 * i, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
            int32_t *positive = (int32_t *)(uintptr_t)p.a.positive;
            p.a.temperature = 0.3f;
            p.a.normalises = kind != 1;
            p.a.kind = kind < 3 ? (pairs_loss)kind : PAIRS_SOFTMAX;
            p.a.beta = kind == 2 ? 0.4f : 1;
            p.a.log_q = kind >= 3 ? random_floats(7, shapes[i][3], 2) : NULL;
            p.a.corrects_positive = kind == 4;
            if (shapes[i][0] > 5) positive[5] = -1;
            check_pairs(p);
        }
}

/* Chunks are longer where the table is long and the negatives are few. */
TEST(sampled_softmax_takes_long_tables) {
    check_problem(random_problem(3, 1500, 1, 3, 5000));
    check_problem(random_problem(4, 700, 0, 3, 3000));
}

TEST(sampled_softmax_masks_collisions) {
    problem p = random_problem(77, 40, 12, 10, 6);
    int32_t *name = random_rows(5, 6, 3);
    p.a.row_id = name;
    check_problem(p);
    /* Every negative collides: nothing to tell apart, so no loss and no gradient. */
    for (int i = 0; i < 6; i++)
        name[i] = 4;
    run_op(&p, 1);
    CHECK(*p.a.loss == 0);
    for (int64_t i = 0; i < p.a.n * p.a.dim; i++)
        CHECK(((float *)p.a.dquery)[i] == 0);
    for (int64_t i = 0; i < (int64_t)p.a.n_rows * p.a.dim; i++)
        CHECK(p.a.dtable[i] == 0);
}

/* Where all scores are as low as that of a collision, it still counts in the sum, and still gets no
 * gradient. */
TEST(sampled_softmax_masks_among_low_scores) {
    enum { N = 12, ROWS = 6 };
    problem p = random_problem(78, N, 5, 2, ROWS);
    float *table = zeros((size_t)ROWS * 2, sizeof *table),
          *query = zeros((size_t)N * 2, sizeof *query);
    for (int i = 0; i < ROWS; i++)
        table[2 * i] = 200, table[2 * i + 1] = (float)i / 4 - 1; /* scores -50001 to -49999.75 */
    for (int m = 0; m < N; m++)
        query[2 * m] = -250, query[2 * m + 1] = 1;
    p.a.table = table;
    p.a.query = query;
    p.a.normalises = false;
    p.a.temperature = 1;
    check_problem(p);
}

/* Rows without a positive only fill the batch up. */
TEST(sampled_softmax_of_padding_rows) {
    problem p = random_problem(41, 40, 12, 10, 30);
    int32_t *positive = (int32_t *)(uintptr_t)p.a.positive;
    for (int i = 0; i < 40; i += 3)
        positive[i] = -1;
    check_problem(p);
    run_op(&p, 2);
    for (int i = 0; i < 40; i += 3)
        CHECK(p.a.row_loss[i] == 0 && ((float *)p.a.dquery)[i * 10] == 0);
}

TEST(sampled_softmax_of_nothing) {
    problem p = random_problem(1, 0, 5, 8, 9);
    run_op(&p, 2);
    CHECK(*p.a.loss == 0);
    p = random_problem(1, 6, 0, 8, 9);
    run_op(&p, 2);
    CHECK(*p.a.loss == 0);
    for (int64_t i = 0; i < p.a.n * p.a.dim; i++)
        CHECK(((float *)p.a.dquery)[i] == 0);
}

/* A score far above the others leaves a loss that float32 cannot hold as ln(1 + x), and the
 * gradient must be that small too, not 0. */
TEST(sampled_softmax_keeps_small_losses) {
    if (test_on.p == PRECISION_F16) SKIP_TEST("float16 hardly holds 1e-7");
    float query[2] = {1, 0}, table[4] = {1, 0, 0.05f, 1};
    int32_t positive = 0, negative = 1;
    problem p = {.a = {.n = 1,
                       .n_negatives = 1,
                       .dim = 2,
                       .n_rows = 2,
                       .query = query,
                       .table = table,
                       .positive = &positive,
                       .negative = &negative,
                       .normalises = true,
                       .eps = 1e-6f,
                       .temperature = 0.05f,
                       .grad_scale = number(1)}};
    check_problem(p);
    run_op(&p, 1);
    CHECK(*p.a.loss > 5e-9 && *p.a.loss < 6e-9);
    CHECK(((float *)p.a.dquery)[1] > 1e-7f);
}

TEST(sampled_softmax_adds_to_its_sums) {
    problem p = random_problem(6, 20, 4, 6, 8);
    run_op(&p, 1);
    double once = *p.a.loss;
    float first = p.a.dtable[9];
    backend *be;
    CHECK_OK(test_backend(&be, NULL));
    p.a.scratch = zeros(be->ops->sampled_softmax_scratch(be, p.a.n, 4, 6, 8), 1);
    CHECK_OK(be->ops->sampled_softmax(be, &p.a));
    CHECK(fabs(*p.a.loss - 2 * once) < 1e-12 * once);
    /* Sums in no fixed order differ by the rounding of the largest of them. */
    float largest = fabsf(first);
    for (int i = 6; !test_on.is_deterministic && i < 12; i++) /* those of its row */
        largest = fmaxf(largest, fabsf(p.a.dtable[i]));
    CHECK(fabsf(p.a.dtable[9] - 2 * first) <= 1e-6f * largest);
    first = p.a.dtable[9];
    /* Without dquery there are no gradients, and the loss is the same. */
    p.a.dquery = NULL;
    CHECK_OK(be->ops->sampled_softmax(be, &p.a));
    CHECK(fabs(*p.a.loss - 3 * once) < 1e-12 * once && p.a.dtable[9] == first);
    backend_destroy(be);
}

TEST(sampled_softmax_is_the_same_with_any_threads) {
    if (!test_on.is_deterministic) SKIP_TEST("not asked to be deterministic");
    problem base = random_problem(8, 2600, 7, 50, 900);
    run_op(&base, 1);
    for (int n_threads = 2; n_threads <= 3; n_threads++) {
        problem p = random_problem(8, 2600, 7, 50, 900);
        run_op(&p, n_threads);
        CHECK(*p.a.loss == *base.a.loss);
        CHECK(memcmp(p.a.row_loss, base.a.row_loss, 2600 * sizeof(float)) == 0);
        CHECK(memcmp(p.a.dquery, base.a.dquery, 2600 * 50 * sizeof(float)) == 0);
        CHECK(memcmp(p.a.dtable, base.a.dtable, 900 * 50 * sizeof(float)) == 0);
    }
}

TEST(sampled_softmax_shows_broken_weights) {
    problem p = random_problem(9, 30, 4, 6, 8);
    ((float *)p.a.query)[7] = NAN;
    run_op(&p, 1);
    CHECK(isnan(*p.a.loss));
    p = random_problem(9, 30, 4, 6, 8);
    ((float *)p.a.table)[p.a.negative[1] * 6] = NAN;
    run_op(&p, 1);
    CHECK(isnan(*p.a.loss));
}

static double naive_sum(problem *p) {
    double sum = 0;
    naive_double(p);
    for (int64_t m = 0; m < p->a.n; m++)
        sum += p->losses[m];
    return sum;
}

/* (loss(x + h) - loss(x - h)) / 2h for each number of x, with steps that float32 holds exactly. */
static void check_differences(problem *p, float *x, const double *grad, int64_t n) {
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        float old = x[i], step = 1.0f / 4096;
        x[i] = old + step;
        double above = x[i], up = naive_sum(p);
        x[i] = old - step;
        double below = x[i], down = naive_sum(p);
        x[i] = old;
        double difference = fabs((up - down) / (above - below) - grad[i]);
        worst = difference > worst ? difference : worst;
        scale = fabs(grad[i]) > scale ? fabs(grad[i]) : scale;
    }
    if (worst > 1e-3 * scale) FAIL_TEST("finite differences: off by %g of %g", worst, scale);
}

TEST(sampled_softmax_gradient_is_the_difference_quotient) {
    problem p = random_problem(21, 6, 5, 4, 7);
    float *table = random_floats(30, 28, 1);
    p.a.table = table;
    p.a.grad_scale = number(1);
    p.a.temperature = 0.5f;
    naive_double(&p);
    double *dquery = p.dquery, *dtable = p.dtable;
    check_differences(&p, (float *)p.a.query, dquery, 24);
    check_differences(&p, table, dtable, 28);
}

static const void *tensor(st_file *f, const char *name, st_dtype dtype, const st_tensor **info) {
    const st_tensor *t;
    CHECK_OK(st_get(f, name, dtype, &t));
    if (info != NULL) *info = t;
    return t->data;
}

static int32_t *narrow(const int64_t *x, int64_t n) {
    int32_t *out = zeros((size_t)n, sizeof *out);
    for (int64_t i = 0; i < n; i++)
        out[i] = (int32_t)x[i];
    return out;
}

/* 1e-5 in float32 (the loss: 1e-6).  Where the queries are rounded to 16 bits, scores are off by u
 * / temperature, and with them the loss and the weights of the gradients. */
static void check_golden(st_file *f, problem *p, const char *table_grad) {
    double limit = 1e-5;
    if (precision_is_half(test_on.p)) limit += precision_unit(test_on.p) / (double)p->a.temperature;
    const double *losses = tensor(f, "losses", ST_F64, NULL),
                 *loss = tensor(f, "loss", ST_F64, NULL);
    run_op(p, 2);
    CHECK(error_of(p->a.row_loss, losses, p->a.n) <= limit);
    CHECK(fabs(*p->a.loss / (double)p->a.n - *loss) <=
          (precision_is_half(test_on.p) ? limit : 1e-6) * *loss);
    double error = error_of(p->a.dquery, tensor(f, "grad.pred", ST_F64, NULL), p->a.n * p->a.dim);
    if (!(error <= limit)) FAIL_TEST("grad.pred: %g", error);
    error =
        error_of(p->a.dtable, tensor(f, table_grad, ST_F64, NULL), (int64_t)p->a.n_rows * p->a.dim);
    if (!(error <= limit)) FAIL_TEST("%s: %g", table_grad, error);
}

/* Once over the item table, once over the supervision embeddings, where rows have names and
 * negatives are the last occurrence of theirs. */
static void check_golden_file(const char *name) {
    st_file *f;
    const st_tensor *pred, *sampled, *items;
    CHECK_OK(st_open(&f, test_shared(name)));
    const float *query = tensor(f, "pred", ST_F32, &pred);
    const int64_t *index = tensor(f, "sampled_indices", ST_I64, &sampled);
    const float *table = tensor(f, "w.item_table", ST_F32, &items);
    const int64_t *last_row = tensor(f, "cand_last_row", ST_I64, NULL);
    int64_t n = pred->shape[0], dim = pred->shape[1];
    int32_t *id = narrow(tensor(f, "supervision_ids", ST_I64, NULL), n);
    problem p = {.a = {.n = n,
                       .n_negatives = (int32_t)sampled->shape[1],
                       .dim = (int32_t)dim,
                       .n_rows = (int32_t)items->shape[0],
                       .query = query,
                       .table = table,
                       .positive = id,
                       .negative = narrow(tensor(f, "neg_ids", ST_I64, NULL), sampled->n),
                       .normalises = true,
                       .eps = 1e-6f,
                       .temperature = (float)atof(st_metadata(f, "temperature")),
                       .grad_scale = number(1 / (float)n)}};
    check_golden(f, &p, "grad.item_table");

    float *rows = zeros((size_t)(n * dim), sizeof *rows);
    int32_t *positive = zeros((size_t)n, sizeof *positive);
    int32_t *negative = zeros((size_t)sampled->n, sizeof *negative);
    for (int64_t m = 0; m < n; m++) {
        positive[m] = (int32_t)m;
        memcpy(rows + m * dim, table + id[m] * dim, (size_t)dim * sizeof *rows);
    }
    for (int64_t i = 0; i < sampled->n; i++)
        negative[i] = (int32_t)last_row[index[i]];
    p.a.table = rows, p.a.n_rows = (int32_t)n, p.a.row_id = id;
    p.a.positive = positive, p.a.negative = negative;
    check_golden(f, &p, "grad.supervision_emb");
    st_close(f);
}

TEST(sampled_softmax_golden) {
    check_golden_file("golden/nv_retr_loss.safetensors");
    check_golden_file("golden/nv_retr_loss_all.safetensors");
}
