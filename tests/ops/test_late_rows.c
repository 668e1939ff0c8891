#include "dense_test.h"

TEST(late_list_rows) {
    test_backends t;
    open_backends(&t);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        int32_t one[] = {7, -1, 0, 7, 3}, two[] = {6, 2, -1}, three[] = {0}, rows[9], n = -1;
        static const int32_t want[] = {0, 3, 7}, numbers[] = {2, -1, 0, 2, 1};
        static const int32_t of_two[] = {2, 1, -1};
        list_rows_args a = {.n_table = 8,
                            .n_uses = 3,
                            .use = {{5, one, 0}, {3, two, 1}, {1, three, 0}},
                            .rows = rows,
                            .n = &n};
        CHECK_OK(t.be[b]->ops->list_rows(t.be[b], &a));
        CHECK_EQ(n, 3);
        CHECK(memcmp(rows, want, sizeof want) == 0);
        for (int i = 3; i < 9; i++)
            CHECK_EQ(rows[i], -1);
        CHECK(memcmp(one, numbers, sizeof one) == 0);
        CHECK(memcmp(two, of_two, sizeof two) == 0);
        CHECK_EQ(three[0], 0);
        a.n_uses = 0;
        CHECK_OK(t.be[b]->ops->list_rows(t.be[b], &a));
        CHECK_EQ(n, 0);
    }
    close_backends(&t);
}

/* Many uses: as many as a GPU sorts in several blocks. */
TEST(late_list_of_many_rows) {
    enum { USES = 70000, TABLE = 50000 };
    test_backends t;
    int32_t *index, *at, *rows, n;
    uint8_t *is_used;
    open_backends(&t);
    CHECK_OK(MEM_NEW(&index, USES));
    CHECK_OK(MEM_NEW(&at, USES));
    CHECK_OK(MEM_NEW(&rows, USES));
    CHECK_OK(MEM_NEW(&is_used, TABLE));
    for (int i = 0; i < USES; i++) {
        uint32_t word = rng_draw(rng_make_key(5, 0), (uint32_t)i, 0, 0, 0).word[0];
        at[i] = index[i] = word % 11 == 0 ? -1 : (int32_t)(word / 11 % TABLE);
        if (at[i] >= 0) is_used[at[i]] = 1;
    }
    list_rows_args a = {
        .n_table = TABLE, .n_uses = 1, .use = {{USES, index, 0}}, .rows = rows, .n = &n};
    CHECK_OK(t.be[1]->ops->list_rows(t.be[1], &a));
    int32_t k = 0;
    for (int32_t row = 0; row < TABLE; row++)
        if (is_used[row]) CHECK_EQ(rows[k++], row);
    CHECK_EQ(n, k);
    for (int i = 0; i < USES; i++)
        CHECK(at[i] < 0 ? index[i] == -1 : rows[index[i]] == at[i]);
    mem_free(index);
    mem_free(at);
    mem_free(rows);
    mem_free(is_used);
    close_backends(&t);
}

TEST(late_list_refuses_rows_beyond_the_table) {
    test_backends t;
    int32_t index[] = {7, 8}, rows[2], n;
    list_rows_args a = {.n_table = 8, .n_uses = 1, .use = {{2, index, 0}}, .rows = rows, .n = &n};
    open_backends(&t);
    if (t.be[0]->is_host) CHECK_FAILS(t.be[0]->ops->list_rows(t.be[0], &a), ERR_FORMAT, "row 8");
    close_backends(&t);
}

enum { DIM = 6, ROWS = 64, N = DIM * ROWS, MOST = 24 };

/* A table by its late rows, and by plain dense AdamW in float32 and in double. */
typedef struct twins {
    backend *be;
    float *w, *m, *v;
    late_rows late;
    int32_t now;
    float w32[N], m32[N], v32[N];
    double w64[N], m64[N], v64[N];
    float weight_decay, beta2;
} twins;

static void twins_open(twins *s, backend *be, float weight_decay, float beta2) {
    *s = (twins){.be = be, .weight_decay = weight_decay, .beta2 = beta2};
    s->w = floats(N, 1);
    CHECK_OK(MEM_NEW(&s->m, N));
    CHECK_OK(MEM_NEW(&s->v, N));
    CHECK_OK(MEM_NEW(&s->late.last, ROWS));
    CHECK_OK(MEM_NEW(&s->late.sums, LATE_STEPS + 1));
    CHECK_OK(MEM_NEW(&s->late.missed, LATE_STEPS + 1));
    CHECK_OK(MEM_NEW(&s->late.rules, (LATE_STEPS + 1) * LATE_RULE));
    for (int i = 0; i < N; i++) {
        s->w[i] *= .05f;
        s->w64[i] = s->w32[i] = s->w[i];
    }
    CHECK_OK(be->ops->late_step(be, &(late_step_args){.late = s->late}));
}

static void twins_close(twins *s) {
    mem_free(s->w);
    mem_free(s->m);
    mem_free(s->v);
    mem_free(s->late.last);
    mem_free(s->late.sums);
    mem_free(s->late.missed);
    mem_free(s->late.rules);
}

static uint32_t draw(int64_t step, uint32_t k) {
    return rng_draw(rng_make_key(9, 0), (uint32_t)step, k, 0, 0).word[0];
}

/* Popular rows in nearly every step, others seldom, some never. */
static int32_t choose_rows(int64_t step, int32_t *rows) {
    int32_t n = 0;
    for (int32_t r = 0; r < ROWS && n < MOST; r++)
        if (r % 16 != 5 && draw(step, (uint32_t)r) % (uint32_t)(1 + r * r / 4) == 0) rows[n++] = r;
    return n;
}

static void dense_step(twins *s, const float *grad, float lr, int64_t step) {
    double b1 = .9f, b2 = s->beta2, eps = 1e-8f, wd = s->weight_decay, l = lr;
    double c1 = 1 - pow(b1, (double)step), c2 = 1 - pow(b2, (double)step);
    for (int i = 0; i < N; i++) {
        double g = grad[i];
        s->m64[i] = b1 * s->m64[i] + (1 - b1) * g;
        s->v64[i] = b2 * s->v64[i] + (1 - b2) * g * g;
        s->w64[i] -= l * wd * s->w64[i];
        s->w64[i] -= l * (s->m64[i] / c1) / (sqrt(s->v64[i] / c2) + eps);
        s->m32[i] = .9f * s->m32[i] + (1 - .9f) * grad[i];
        s->v32[i] = s->beta2 * s->v32[i] + (1 - s->beta2) * (grad[i] * grad[i]);
        s->w32[i] =
            s->w32[i] * (float)(1 - l * wd) -
            (float)(l / c1) * s->m32[i] / (sqrtf(s->v32[i]) * (float)(1 / sqrt(c2)) + 1e-8f);
    }
}

/* One step of both; gradients of all magnitudes from 1e-6 to 1. */
static void twins_step(twins *s, int64_t step, bool is_skipped) {
    static const float zero = 0;
    float whole[N] = {0}, grad[MOST * DIM], lr = 1e-2f * (float)(1 + step % 7) / 7;
    int32_t rows[MOST], n = choose_rows(step, rows);
    rows[n] = -1;
    for (int i = 0; i < n * DIM; i++) {
        uint32_t word = draw(step, 1000 + (uint32_t)i);
        grad[i] = powf(10, -6.f * (float)(word >> 8 & 255) / 255) * (word & 1 ? 1 : -1);
        whole[rows[i / DIM] * DIM + i % DIM] = grad[i];
    }
    if (!is_skipped) dense_step(s, whole, lr, step);
    s->now++;
    update_args a = {.kind = OPT_ADAMW,
                     .n = (n + (n < MOST)) * DIM, /* with padding */
                     .dim = DIM,
                     .rows = rows,
                     .late = s->late,
                     .now = s->now,
                     .w = s->w,
                     .grad = grad,
                     .m = s->m,
                     .v = s->v,
                     .lr = lr,
                     .beta1 = .9f,
                     .beta2 = s->beta2,
                     .eps = 1e-8f,
                     .weight_decay = s->weight_decay,
                     .step = step,
                     .grad_scale = is_skipped ? &zero : NULL};
    late_step_args late = {
        .late = s->late,
        .now = s->now,
        .rule = optimizer_rule_make(OPT_ADAMW, lr, .9f, s->beta2, 1e-8f, s->weight_decay, step),
        .grad_scale = a.grad_scale};
    CHECK_OK(s->be->ops->update(s->be, &a, 1));
    CHECK_OK(s->be->ops->late_step(s->be, &late));
}

/* The error of late rows is that of float32: at most twice that of plain dense AdamW. */
static void twins_compare(const twins *s, const float *w) {
    double most = 0, plain = 0;
    for (int i = 0; i < N; i++) {
        most = fmax(most, fabs(w[i] - s->w64[i]));
        plain = fmax(plain, fabs(s->w32[i] - s->w64[i]));
    }
    if (!(most <= 2 * plain + 1e-8)) printf("late %g plain %g\n", most, plain);
    CHECK(most <= 2 * plain + 1e-8);
}

static void check_twins(backend *be, float weight_decay, float beta2) {
    enum { STEPS = 600, CATCH_UP = 450 };
    twins s;
    float y[N];
    twins_open(&s, be, weight_decay, beta2);
    for (int64_t step = 1; step <= STEPS; step++) {
        read_rows_args all = {
            .n = ROWS, .dim = DIM, .late = s.late, .w = s.w, .m = s.m, .v = s.v, .y = y};
        twins_step(&s, step, step % 50 == 0);
        if (step % 10 == 0) {
            CHECK_OK(be->ops->read_rows(be, &all));
            twins_compare(&s, y);
        }
        if (step != CATCH_UP) continue;
        all.y = NULL;
        CHECK_OK(be->ops->read_rows(be, &all));
        CHECK_OK(be->ops->late_step(be, &(late_step_args){.late = s.late}));
        s.now = 0;
        CHECK_SAME(s.w, y, N);
        for (int i = 0; i < N; i++)
            CHECK(fabs(s.m[i] - s.m64[i]) <= 1e-5 * sqrt(s.v64[i]) &&
                  fabs(s.v[i] - s.v64[i]) <= 1e-4 * s.v64[i]);
        for (int r = 0; r < ROWS; r++)
            CHECK(s.late.last[r] == 0);
    }
    twins_close(&s);
}

TEST(late_rows_equal_dense_adamw) {
    test_backends t;
    open_backends(&t);
    check_twins(t.be[1], 0, .98f);
    check_twins(t.be[1], .1f, .98f);
    check_twins(t.be[1], 0, .999f);
    close_backends(&t);
}

/* Without late steps rows are read and updated as they are; -1 reads as zeros. */
TEST(late_rows_of_sparse_optimizers) {
    static const opt_kind kinds[] = {OPT_ADAMW, OPT_SGD, OPT_ROWWISE_ADAGRAD, OPT_ADAGRAD};
    test_backends t;
    open_backends(&t);
    for (int k = 0; k < 4; k++) {
        float *w = floats(N, 1), *m = floats(N, 2), *v = floats(N, 3), *grad = floats(4 * DIM, 4);
        int32_t rows[] = {3, 9, 63, -1};
        for (int i = 0; i < N; i++)
            m[i] = fabsf(m[i]), v[i] = fabsf(v[i]);
        float *w2 = copy_floats(w, N), *m2 = copy_floats(m, N), *v2 = copy_floats(v, N);
        float whole[N] = {0}, y[4 * DIM];
        uint8_t marks[ROWS] = {0};
        for (int i = 0; i < 3; i++) {
            marks[rows[i]] = 1;
            memcpy(whole + rows[i] * DIM, grad + i * DIM, DIM * sizeof *grad);
        }
        update_args a = {.kind = kinds[k],
                         .n = N,
                         .dim = DIM,
                         .marks = marks,
                         .w = w,
                         .grad = whole,
                         .m = m,
                         .v = v,
                         .lr = .1f,
                         .beta1 = .9f,
                         .beta2 = .98f,
                         .eps = 1e-6f,
                         .step = 2};
        CHECK_OK(t.be[0]->ops->update(t.be[0], &a, 1));
        a.n = 4 * DIM, a.marks = NULL, a.rows = rows, a.grad = grad, a.w = w2, a.m = m2, a.v = v2;
        CHECK_OK(t.be[0]->ops->update(t.be[0], &a, 1));
        CHECK_SAME(w2, w, N);
        CHECK_SAME(m2, m, N);
        CHECK_SAME(v2, v, N);
        read_rows_args read = {.n = 4, .dim = DIM, .rows = rows, .w = w, .y = y};
        CHECK_OK(t.be[0]->ops->read_rows(t.be[0], &read));
        for (int i = 0; i < 4 * DIM; i++)
            CHECK(y[i] == (i < 3 * DIM ? w[rows[i / DIM] * DIM + i % DIM] : 0));
        float *all[] = {w, m, v, grad, w2, m2, v2};
        for (int i = 0; i < 7; i++)
            mem_free(all[i]);
    }
    close_backends(&t);
}
