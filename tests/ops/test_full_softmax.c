/* The softmax over a shared list of items, and the losses of pairs beside the sampled softmax,
 * against float64. */
#include <string.h>

#include "dense_test.h"

/* A case, and the results of an implementation. */
typedef struct problem {
    full_softmax_args a;
    double *losses, *dquery, *dtable;
} problem;

static void *kept[2048];
static int n_kept;

AFTER_TESTS {
    while (n_kept > 0)
        mem_free(kept[--n_kept]);
}

static void *keep(void *memory) {
    CHECK(n_kept < 2048);
    return kept[n_kept++] = memory;
}

static double unit_scale(const full_softmax_args *a, const float *row) {
    double squares = 0;
    for (int32_t c = 0; c < a->dim; c++)
        squares += (double)row[c] * (double)row[c];
    if (!a->normalises) return 1;
    return 1 / (sqrt(squares) > (double)a->eps ? sqrt(squares) : (double)a->eps);
}

static double product_of(const full_softmax_args *a, const float *q, const float *row, bool f) {
    double sum = 0, scale = unit_scale(a, row);
    for (int32_t c = 0; c < a->dim; c++)
        sum = r32(sum + r32((double)q[c] * rfactor(scale * (double)row[c], f), f), f);
    return sum;
}

/* The chain of w times the product of q and l2(row) to both gradients. */
static void chain(problem *p, int64_t m, int32_t row, double w, bool f) {
    const full_softmax_args *a = &p->a;
    const float *q = (const float *)a->query + m * a->dim, *e = a->table + row * a->dim;
    double scale = unit_scale(a, e), along = 0;
    bool is_free = a->normalises && scale < 1 / (double)a->eps;
    for (int32_t c = 0; is_free && c < a->dim; c++)
        along += (double)q[c] * scale * (double)e[c];
    for (int32_t c = 0; c < a->dim; c++) {
        double u = rfactor(scale * (double)e[c], f), *dq = &p->dquery[m * a->dim + c];
        double *dt = &p->dtable[row * a->dim + c];
        *dq = r32(*dq + rfactor(w, f) * u, f);
        *dt = r32(*dt + scale * (rfactor(w, f) * (double)q[c] - w * along * u), f);
    }
}

/* The formula of ops.h; f: with the rounding of naive code of the precision under test. */
static void naive(problem *p, bool f) {
    const full_softmax_args *a = &p->a;
    double *s = keep(doubles(a->n_items));
    p->losses = keep(doubles(a->n));
    p->dquery = keep(doubles(a->n * a->dim));
    p->dtable = keep(doubles((int64_t)a->n_rows * a->dim));
    for (int64_t m = 0; m < a->n; m++) {
        double sum = 0, max = -1e300, mean = 0, own = 0;
        if (a->positive[m] < 0) continue;
        for (int32_t c = 0; c < a->n_items; c++) {
            int32_t row = a->item != NULL ? a->item[c] : c;
            s[c] = product_of(a, (const float *)a->query + m * a->dim, a->table + row * a->dim, f);
            s[c] = r32(s[c] / (double)a->temperature, f);
            if (a->log_q != NULL) s[c] -= (double)a->log_q[c];
            if (row == a->positive[m])
                own = s[c];
            else if (a->log_count != NULL)
                s[c] += (double)a->log_count[c];
            max = s[c] > max ? s[c] : max;
            mean += s[c] / a->n_items;
        }
        for (int32_t c = 0; c < a->n_items; c++)
            sum += exp(s[c] - max);
        double smoothing = (double)a->smoothing;
        p->losses[m] = log(sum) + max - (1 - smoothing) * own - smoothing * mean;
        for (int32_t c = 0; c < a->n_items; c++) {
            int32_t row = a->item != NULL ? a->item[c] : c;
            double w = r32(exp(s[c] - max) / sum, f) - smoothing / a->n_items;
            if (row == a->positive[m]) w -= 1 - smoothing;
            chain(p, m, row, w * (double)*a->grad_scale / (double)a->temperature, f);
        }
    }
}

/* A random case; of the table's rows every third is in the list where it is one. */
static problem random_problem(uint64_t seed, int64_t n, int32_t n_rows, int32_t dim, bool is_list) {
    problem p = {.a = {.n = n, .dim = dim, .n_rows = n_rows, .n_items = n_rows}};
    int32_t *item, *positive;
    float *scale, *table = keep(floats((int64_t)n_rows * dim, seed + 1));
    for (int32_t c = 0; n_rows > 2 && c < dim; c++)
        table[dim + c] *= 1e-9f; /* a row shorter than eps */
    CHECK_OK(MEM_NEW(&item, (size_t)n_rows));
    CHECK_OK(MEM_NEW(&positive, (size_t)n));
    CHECK_OK(MEM_NEW(&scale, 1));
    p.a.item = is_list ? keep(item) : NULL;
    if (!is_list) keep(item);
    *scale = n > 0 ? 1 / (float)n : 1;
    for (int32_t row = 0, k = 0; is_list && row < n_rows; row += 3)
        item[k++] = row, p.a.n_items = k;
    for (int64_t m = 0; m < n; m++) {
        uint32_t drawn = rng_draw64(rng_make_key(seed, RNG_TEST), (uint64_t)m, 7).word[0];
        int32_t c = (int32_t)rng_below(drawn, (uint32_t)p.a.n_items);
        positive[m] = m % 7 == 3 ? -1 : is_list ? item[c] : c;
    }
    p.a.positive = keep(positive);
    p.a.query = keep(floats(n * dim, seed));
    p.a.table = table;
    p.a.normalises = true;
    p.a.eps = 1e-6f;
    p.a.temperature = 0.2f;
    p.a.grad_scale = keep(scale);
    return p;
}

static void run_op(backend *be, full_softmax_args *a) {
    float *row_loss, *dquery, *dtable;
    double *loss;
    char *scratch;
    CHECK_OK(MEM_NEW(&scratch, be->ops->full_softmax_scratch(be, a->n, a->n_items, a->dim)));
    CHECK_OK(MEM_NEW(&row_loss, (size_t)a->n));
    CHECK_OK(MEM_NEW(&dquery, (size_t)(a->n * a->dim)));
    CHECK_OK(MEM_NEW(&dtable, (size_t)a->n_rows * (size_t)a->dim));
    CHECK_OK(MEM_NEW(&loss, 1));
    a->row_loss = keep(row_loss);
    a->dquery = keep(dquery);
    a->dtable = keep(dtable);
    a->loss = keep(loss);
    a->scratch = scratch;
    CHECK_OK(be->ops->full_softmax(be, a));
    mem_free(scratch);
}

/* Any number of threads gives the same bits. */
static void check_problem(problem p) {
    problem wanted = p, plain = p;
    test_backends t;
    double sum = 0, slack = precision_is_half(test_on.p)  ? .05
                            : test_on.p == PRECISION_TF32 ? .01
                                                          : 1e-5;
    naive(&wanted, false);
    naive(&plain, true);
    open_backends(&t);
    for (int i = 0; i < N_TEST_BACKENDS; i++) {
        full_softmax_args a = p.a;
        run_op(t.be[i], &a);
        if (i > 0 && test_on.kind == ON_CPU) {
            size_t bytes = (size_t)a.n_rows * (size_t)a.dim * sizeof(float);
            CHECK(memcmp(a.dtable, p.a.dtable, bytes) == 0 && *a.loss == *p.a.loss);
            bytes = (size_t)(a.n * a.dim) * sizeof(float);
            CHECK(memcmp(a.dquery, p.a.dquery, bytes) == 0);
        }
        if (i == 0) p.a = a;
    }
    close_backends(&t);
    for (int64_t m = 0; m < p.a.n; m++)
        sum += wanted.losses[m];
    CHECK(fabs(*p.a.loss - sum) <= slack * fabs(sum) + 1e-9);
    CHECK_RULE_OF_TERMS(p.a.row_loss, wanted.losses, plain.losses, p.a.n, 5);
    CHECK_RULE(p.a.dquery, wanted.dquery, plain.dquery, p.a.n * p.a.dim);
    CHECK_RULE(p.a.dtable, wanted.dtable, plain.dtable, (int64_t)p.a.n_rows * p.a.dim);
}

TEST(full_softmax_equals_float64) {
    static const struct {
        int64_t n;
        int32_t n_rows, dim;
    } shapes[] = {{1, 1, 1},    {1, 2, 3},    {7, 5, 4},     {47, 130, 50},
                  {49, 97, 17}, {20, 63, 64}, {97, 300, 33}, {12, 40, 200}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        problem p =
            random_problem(10 * i, shapes[i].n, shapes[i].n_rows, shapes[i].dim, i % 3 == 2);
        check_problem(p);
        p.a.normalises = false;
        p.a.smoothing = shapes[i].n_rows > 1 ? 0.3f : 0;
        check_problem(p);
    }
}

/* More rows than a piece, more items than a tile, and a tile of one item. */
TEST(full_softmax_of_pieces_and_tiles) {
    check_problem(random_problem(3, FULL_SOFTMAX_ROWS + 5, 9, 3, false));
    problem p = random_problem(4, 9, FULL_SOFTMAX_ITEMS + 1, 5, false);
    check_problem(p);
    p = random_problem(5, 8, 6 * FULL_SOFTMAX_ITEMS + 50, 4, true);
    p.a.smoothing = 0.1f;
    check_problem(p);
}

TEST(full_softmax_corrects_for_popularity) {
    problem p = random_problem(6, 40, 90, 12, true);
    float *log_q = keep(floats(p.a.n_items, 8)), *log_count = keep(floats(p.a.n_items, 9));
    p.a.log_q = log_q;
    check_problem(p);
    p.a.log_count = log_count;
    check_problem(p);
}

TEST(full_softmax_of_nothing) {
    check_problem(random_problem(1, 0, 5, 8, false));
}

/* A score far above the others leaves a loss that float32 cannot hold as ln(1 + x). */
TEST(full_softmax_keeps_small_losses) {
    if (test_on.p == PRECISION_F16) SKIP_TEST("float16 hardly holds 1e-7");
    problem p = random_problem(2, 1, 2, 2, false);
    float *query = keep(floats(2, 0)), *table = keep(floats(4, 0));
    int32_t *positive = (int32_t *)(uintptr_t)p.a.positive;
    query[0] = 1, query[1] = 0;
    table[0] = 1, table[1] = 0, table[2] = 0.0625f, table[3] = 1;
    *positive = 0;
    p.a.query = query;
    p.a.table = table;
    p.a.normalises = false;
    p.a.temperature = 0.05f;
    test_backends t;
    open_backends(&t);
    run_op(t.be[0], &p.a);
    close_backends(&t);
    CHECK(fabs(*p.a.loss - exp(-(1 - 0.0625) / (double)p.a.temperature)) < 1e-3 * *p.a.loss);
    CHECK(((float *)p.a.dquery)[1] > 1e-8f);
}

TEST(full_softmax_adds_to_its_sums) {
    problem p = random_problem(6, 20, 8, 6, false);
    test_backends t;
    char *scratch;
    open_backends(&t);
    run_op(t.be[1], &p.a);
    double once = *p.a.loss;
    float first = p.a.dtable[13];
    CHECK_OK(MEM_NEW(&scratch, t.be[1]->ops->full_softmax_scratch(t.be[1], 20, 8, 6)));
    p.a.scratch = keep(scratch);
    CHECK_OK(t.be[1]->ops->full_softmax(t.be[1], &p.a));
    CHECK(fabs(*p.a.loss - 2 * once) < 1e-12 * once);
    CHECK(fabsf(p.a.dtable[13] - 2 * first) <= 1e-6f * fabsf(first));
    close_backends(&t);
}
