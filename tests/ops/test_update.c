#include "dense_test.h"
#include "format/safetensors.h"

static const double *golden(const st_file *f, const char *name) {
    const st_tensor *t;
    CHECK_OK(st_get(f, name, ST_F64, &t));
    return t->data;
}

static void check_golden(const char *name, float weight_decay) {
    st_file *f;
    test_backends t;
    const st_tensor *w, *g;
    float grad[64], m[64] = {0}, v[64] = {0}, now[64];
    open_backends(&t);
    CHECK_OK(st_open(&f, test_shared(name)));
    CHECK_OK(st_get(f, "w", ST_F32, &w));
    CHECK_OK(st_get(f, "g", ST_F32, &g));
    CHECK_EQ(w->n, 64);
    memcpy(now, w->data, sizeof now);
    for (int64_t step = 0; step < g->shape[0]; step++) {
        memcpy(grad, (const float *)g->data + step * 64, sizeof grad);
        update_args a = {.kind = OPT_ADAMW,
                         .n = 64,
                         .dim = 64,
                         .w = now,
                         .grad = grad,
                         .m = m,
                         .v = v,
                         .lr = 1e-3f,
                         .beta1 = 0.9f,
                         .beta2 = 0.98f,
                         .eps = 1e-8f,
                         .weight_decay = weight_decay,
                         .step = step + 1};
        CHECK_OK(t.be[1]->ops->update(t.be[1], &a, 1));
        CHECK_RULE(now, golden(f, "w_after") + step * 64, NULL, 64);
        for (int i = 0; i < 64; i++)
            CHECK(grad[i] == 0);
    }
    /* beta2 as a float32 number is off by 2e-8, so 1 - beta2 by 1e-6 of itself. */
    for (int i = 0; i < 64; i++) {
        CHECK(fabs(m[i] - golden(f, "m")[i]) <= 4e-7 * max_of(golden(f, "m"), 64));
        CHECK(fabs(v[i] - golden(f, "v")[i]) <= 2e-6 * max_of(golden(f, "v"), 64));
    }
    st_close(f);
    close_backends(&t);
}

TEST(update_adamw_golden) {
    check_golden("golden/meta_adamw_wd0.safetensors", 0);
    check_golden("golden/meta_adamw_wd01.safetensors", 0.01f);
}

enum { DIM = 5, ROWS = 6000, N = DIM * ROWS };

typedef struct state {
    float *w, *grad, *m, *v;
} state;

static state make_state(void) {
    state s = {floats(N, 1), floats(N, 2), floats(N, 3), floats(N, 4)};
    for (int i = 0; i < N; i++) {
        s.m[i] = fabsf(s.m[i]);
        s.v[i] = fabsf(s.v[i]);
    }
    return s;
}

static void free_state(state *s) {
    float *all[] = {s->w, s->grad, s->m, s->v};
    for (int i = 0; i < 4; i++)
        mem_free(all[i]);
}

static update_args args_of(opt_kind kind, const state *s) {
    return (update_args){.kind = kind,
                         .n = N,
                         .dim = DIM,
                         .w = s->w,
                         .grad = s->grad,
                         .m = s->m,
                         .v = s->v,
                         .lr = 0.01f,
                         .beta1 = 0.9f,
                         .beta2 = 0.98f,
                         .eps = 1e-6f,
                         .weight_decay = 0.1f,
                         .step = 3};
}

/* One number of a row after an update, in double. */
static double naive(opt_kind kind, const state *s, int64_t i, double scale) {
    double lr = 0.01f, b1 = 0.9f, b2 = 0.98f, eps = 1e-6f, decay = 0.1f, w = s->w[i];
    double g = s->grad[i] * scale, squares = 0;
    if (kind == OPT_SGD) return w - lr * (g + decay * w);
    if (kind == OPT_ADAGRAD) return w - lr * g / (sqrt(s->m[i] + g * g) + eps);
    if (kind == OPT_ADAMW) {
        double m = b1 * s->m[i] + (1 - b1) * g, v = b2 * s->v[i] + (1 - b2) * g * g;
        return w * (1 - lr * decay) -
               lr * (m / (1 - pow(b1, 3))) / (sqrt(v / (1 - pow(b2, 3))) + eps);
    }
    for (int64_t c = 0; c < DIM; c++)
        squares += pow(s->grad[i / DIM * DIM + c] * scale, 2);
    return w - lr * g / (sqrt(s->m[i / DIM] + squares / DIM) + eps);
}

/* All rows, or every third one only: the others must stay as they are, gradient included. */
static void check_kind(test_backends *t, opt_kind kind, bool is_lazy, bool is_clipped) {
    static const float scale = 0.25f;
    state before = make_state(), after[N_TEST_BACKENDS];
    uint8_t marks[ROWS];
    double *want = doubles(N);
    for (int64_t i = 0; i < N; i++)
        want[i] = is_lazy && i / DIM % 3 != 2 ? before.w[i]
                                              : naive(kind, &before, i, is_clipped ? scale : 1);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        after[b] = make_state();
        update_args a = args_of(kind, &after[b]);
        a.grad_scale = is_clipped ? &scale : NULL;
        for (int32_t i = 0; i < ROWS; i++)
            marks[i] = i % 3 == 2;
        if (is_lazy) a.marks = marks;
        CHECK_OK(t->be[b]->ops->update(t->be[b], &a, 1));
        for (int32_t i = 0; i < ROWS; i++)
            CHECK(marks[i] == (!is_lazy && i % 3 == 2));
        CHECK_SAME(after[b].w, after[0].w, N);
        CHECK_SAME(after[b].m, after[0].m, N);
    }
    CHECK_RULE(after[0].w, want, NULL, N);
    for (int64_t i = 0; i < N; i++) {
        bool is_used = !is_lazy || i / DIM % 3 == 2;
        CHECK(after[0].grad[i] == (is_used ? 0 : before.grad[i]));
        CHECK(is_used || after[0].w[i] == before.w[i]);
        if (kind == OPT_ADAMW && !is_used) CHECK(after[0].v[i] == before.v[i]);
    }
    for (int b = 0; b < N_TEST_BACKENDS; b++)
        free_state(&after[b]);
    free_state(&before);
    mem_free(want);
}

TEST(update_kinds_dense_lazy_and_clipped) {
    static const opt_kind kinds[] = {OPT_ADAMW, OPT_SGD, OPT_ROWWISE_ADAGRAD, OPT_ADAGRAD};
    test_backends t;
    open_backends(&t);
    for (int k = 0; k < 4; k++)
        for (int options = 0; options < 4; options++)
            check_kind(&t, kinds[k], options & 1, options & 2);
    close_backends(&t);
}

/* A factor of 0 skips a step: weights and moments stay, the gradient is zeroed. */
TEST(update_with_a_factor_of_0) {
    static const float zero = 0;
    test_backends t;
    open_backends(&t);
    for (int kind = OPT_SGD; kind <= OPT_ROWWISE_ADAGRAD; kind++)
        for (int is_lazy = 0; is_lazy < 2; is_lazy++) {
            state before = make_state(), after = make_state();
            update_args a = args_of((opt_kind)kind, &after);
            uint8_t marks[ROWS] = {0};
            marks[7] = 1;
            after.grad[7 * DIM] = NAN;
            a.grad_scale = &zero;
            if (is_lazy) a.marks = marks;
            CHECK_OK(t.be[1]->ops->update(t.be[1], &a, 1));
            CHECK_SAME(after.w, before.w, N);
            CHECK_SAME(after.m, before.m, N);
            CHECK_SAME(after.v, before.v, N);
            for (int i = 0; i < N; i++)
                CHECK(after.grad[i] == 0 || (is_lazy && i / DIM != 7));
            CHECK(!is_lazy || marks[7] == 0);
            free_state(&before);
            free_state(&after);
        }
    close_backends(&t);
}

/* Weights of several sizes in one call are each updated as in a call of their own. */
TEST(update_of_several_weights) {
    enum { WEIGHTS = 70 }; /* more than one launch of a GPU takes */
    test_backends t;
    state one = make_state(), all = make_state();
    update_args alone[WEIGHTS], together[WEIGHTS];
    int64_t first = 0;
    open_backends(&t);
    for (int i = 0; i < WEIGHTS; i++) {
        alone[i] = args_of((opt_kind)(i % 4), &one);
        together[i] = args_of((opt_kind)(i % 4), &all);
        update_args *both[2] = {&alone[i], &together[i]};
        for (int k = 0; k < 2; k++) {
            both[k]->n = DIM * (1 + i * i % 97);
            both[k]->w += first, both[k]->grad += first, both[k]->m += first, both[k]->v += first;
        }
        first += alone[i].n;
        CHECK(first <= N);
        CHECK_OK(t.be[0]->ops->update(t.be[0], &alone[i], 1));
    }
    CHECK_OK(t.be[0]->ops->update(t.be[0], together, WEIGHTS));
    CHECK_SAME(all.w, one.w, N);
    CHECK_SAME(all.m, one.m, N);
    CHECK_SAME(all.v, one.v, N);
    CHECK_SAME(all.grad, one.grad, N);
    free_state(&one);
    free_state(&all);
    close_backends(&t);
}

TEST(update_marks_rows) {
    test_backends t;
    int32_t index[] = {3, -1, 0, 3};
    uint8_t marks[8] = {0, 0, 0, 0, 0, 0, 1, 0};
    static const uint8_t want[8] = {0, 0, 1, 0, 0, 1, 1, 0};
    open_backends(&t);
    CHECK_OK(t.be[0]->ops->mark(t.be[0], 4, index, 2, marks));
    CHECK_OK(t.be[0]->ops->mark(t.be[0], 0, index, 2, marks));
    CHECK(memcmp(marks, want, sizeof want) == 0);
    close_backends(&t);
}

TEST(update_grad_factor) {
    static const struct {
        double sum;
        float base, clip, factor;
        double norm;
    } cases[] = {{4, 0.5f, 0, 0.5f, 1},
                 {4, 0.5f, 2, 0.5f, 1},
                 {4, 0.5f, 0.25f, 0.125f, 1},
                 {0, 0.5f, 0.25f, 0.5f, 0},
                 {INFINITY, 0.5f, 1, 0, INFINITY},
                 {NAN, 0.5f, 0, 0, NAN}};
    test_backends t;
    open_backends(&t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float factor = 9;
        double norm = 9;
        grad_factor_args a = {.sum = &cases[i].sum,
                              .base = cases[i].base,
                              .clip = cases[i].clip,
                              .factor = &factor,
                              .norm = &norm};
        CHECK_OK(t.be[0]->ops->grad_factor(t.be[0], &a));
        CHECK(fabs(factor - cases[i].factor) <= 1e-7 * fabs((double)factor));
        CHECK(!isfinite(cases[i].sum) || norm == cases[i].norm);
        a.norm = NULL;
        CHECK_OK(t.be[0]->ops->grad_factor(t.be[0], &a));
    }
    close_backends(&t);
}

/* Of more weights than a launch takes, in float64; a count of 0 does nothing. */
TEST(update_average) {
    enum { WEIGHTS = 170, MOST = 9000 };
    test_backends t;
    float *w = floats(WEIGHTS + MOST, 3), *first = floats(WEIGHTS + MOST, 4);
    open_backends(&t);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        average_args list[WEIGHTS];
        float *average = copy_floats(first, WEIGHTS + MOST);
        for (int i = 0, at = 0; i < WEIGHTS; i++) {
            int64_t n = i == 5 ? MOST : i == 7 ? 0 : 1;
            list[i] = (average_args){n, w + at, average + at};
            at += (int)n;
        }
        CHECK_OK(t.be[b]->ops->average(t.be[b], list, WEIGHTS, .75f));
        CHECK_OK(t.be[b]->ops->average(t.be[b], list, 0, .75f));
        for (int i = 0; i < WEIGHTS + MOST; i++) {
            bool is_used = i < WEIGHTS + MOST - 2;
            double want = is_used ? .75 * first[i] + .25 * w[i] : first[i];
            if (!(fabs(average[i] - want) <= 2e-7 * (fabs(w[i]) + fabs(first[i]))))
                FAIL_TEST("average[%d] is %g, not %g", i, (double)average[i], want);
        }
        mem_free(average);
    }
    mem_free(w);
    mem_free(first);
    close_backends(&t);
}

TEST(update_of_nothing) {
    test_backends t;
    open_backends(&t);
    for (int kind = OPT_SGD; kind <= OPT_ROWWISE_ADAGRAD; kind++) {
        update_args a = {
            .kind = (opt_kind)kind, .dim = 4, .lr = 1, .beta1 = 0.9f, .beta2 = 0.98f, .step = 1};
        CHECK_OK(t.be[0]->ops->update(t.be[0], &a, 1));
        a.dim = 0;
        CHECK_OK(t.be[0]->ops->update(t.be[0], &a, 1));
    }
    close_backends(&t);
}

/* On a GPU whose sums are fixed that of squares depends neither on the order nor on zeros between:
 * a table in shards has the norm of a whole one. */
static double squares_on(backend *be, int64_t n, const float *x) {
    double sum = 0.5;
    void *grad, *out;
    CHECK_OK(be->ops->alloc(be, &grad, (size_t)n * sizeof *x));
    CHECK_OK(be->ops->alloc(be, &out, sizeof sum));
    CHECK_OK(be->ops->copy_in(be, grad, x, (size_t)n * sizeof *x));
    CHECK_OK(be->ops->copy_in(be, out, &sum, sizeof sum));
    CHECK_OK(be->ops->sum_squares(be, n, grad, out));
    CHECK_OK(be->ops->copy_out(be, &sum, out, sizeof sum));
    be->ops->release(be, grad);
    be->ops->release(be, out);
    return sum;
}

TEST(update_sum_squares_in_any_order) {
    enum { COUNT = 30001, ROOM = 3 * COUNT };
    static float there[ROOM], back[COUNT];
    backend *be;
    double want = 0.5;
    CHECK_OK(test_real_backend(&be, NULL));
    if (be->is_host || !test_on.is_deterministic) {
        test_real_backend_end(be);
        SKIP_TEST("on a GPU, with fixed orders of sums");
    }
    float *x = floats(COUNT, 3);
    for (int i = 0; i < COUNT; i++) {
        x[i] *= i % 7 == 0 ? 1e-12f : i == 123 ? 3e6f : 1; /* small ones count, too */
        want += (double)x[i] * x[i];
        there[3 * i + i % 2] = x[i];
        back[COUNT - 1 - i] = x[i];
    }
    double sum = squares_on(be, COUNT, x);
    CHECK(fabs(sum - want) <= 1e-12 * want);
    CHECK(squares_on(be, ROOM, there) == sum);
    CHECK(squares_on(be, COUNT, back) == sum);
    CHECK(squares_on(be, 1, x + 8) == 0.5 + (double)x[8] * x[8]);
    memset(there, 0, sizeof there);
    CHECK(squares_on(be, ROOM, there) == 0.5);
    x[77] = INFINITY;
    CHECK(squares_on(be, COUNT, x) == INFINITY);
    x[78] = -NAN;
    CHECK(isnan(squares_on(be, COUNT, x)));
    mem_free(x);
    test_real_backend_end(be);
}

TEST(update_sum_squares_and_add) {
    static const int64_t sizes[] = {0, 1, 16383, 16384, 16385, 50000};
    test_backends t;
    open_backends(&t);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s];
        float *x = floats(n, 1), *y = floats(n, 2);
        double want = 2, first = 0;
        for (int64_t i = 0; i < n; i++)
            want += (double)x[i] * x[i];
        for (int b = 0; b < N_TEST_BACKENDS; b++) {
            double got = 2;
            float *sum = copy_floats(y, n);
            CHECK_OK(t.be[b]->ops->sum_squares(t.be[b], n, x, &got));
            if (b == 0) first = got;
            CHECK(got == first);
            CHECK(fabs(got - want) <= 1e-12 * want);
            CHECK_OK(t.be[b]->ops->add(t.be[b], n, x, sum));
            for (int64_t i = 0; i < n; i++)
                CHECK(sum[i] == (float)ract(x[i] + y[i], true));
            mem_free(sum);
        }
        mem_free(x);
        mem_free(y);
    }
    close_backends(&t);
}
