#include "dense_test.h"

enum { N = 37, DIM = 19, VALUES = 5, VECTOR = 7, PIECES = 6 };

/* Items of values, with an item without any and a value of every item; its transpose in pieces. */
typedef struct sample {
    int32_t begin[N + 1], index[3 * N], piece_begin[PIECES + 1], piece_index[3 * N];
    int32_t item_begin[VALUES + 1], item_index[PIECES];
    float weight[3 * N], piece_weight[3 * N], item_weight[PIECES];
    uint8_t has_own[N];
    content_args a;
} sample;

static bool has_value(int i, int v) {
    return i != 4 && (v == 0 || (i * 7 + v * 3) % 4 == 0);
}

static float weight_of(int i, int v) {
    return exact(0.25f + 0.125f * (float)((i + v) % 3));
}

/* Value 0 has two pieces, all others one. */
static void sample_make(sample *s, float rate) {
    int32_t n = 0, n_turned = 0, piece = 0;
    for (int i = 0; i < N; i++) {
        s->begin[i] = n;
        s->has_own[i] = i % 5 != 2;
        for (int v = 0; v < VALUES && n < 3 * N; v++)
            if (has_value(i, v)) s->index[n] = v, s->weight[n++] = weight_of(i, v);
    }
    s->begin[N] = n;
    for (int v = 0; v < VALUES; v++) {
        s->item_begin[v] = piece;
        s->piece_begin[piece] = n_turned;
        s->item_index[piece] = piece;
        s->item_weight[piece++] = 1;
        for (int i = 0; i < N; i++) {
            if (v == 0 && i == 20) {
                s->piece_begin[piece] = n_turned;
                s->item_index[piece] = piece;
                s->item_weight[piece++] = 1;
            }
            for (int32_t k = s->begin[i]; k < s->begin[i + 1]; k++)
                if (s->index[k] == v)
                    s->piece_index[n_turned] = i, s->piece_weight[n_turned++] = s->weight[k];
        }
    }
    CHECK_EQ(piece, PIECES);
    CHECK_EQ(n_turned, n);
    s->item_begin[VALUES] = piece;
    s->piece_begin[piece] = n;
    s->a = (content_args){.n = N,
                          .dim = DIM,
                          .values = {N, s->begin, s->index, s->weight},
                          .pieces = {PIECES, s->piece_begin, s->piece_index, s->piece_weight},
                          .items = {VALUES, s->item_begin, s->item_index, s->item_weight},
                          .n_vector = VECTOR,
                          .vector = floats(N * VECTOR, 1),
                          .has_own = s->has_own,
                          .rate = rate,
                          .key = rng_make_key(5, RNG_CONTENT),
                          .step = 3,
                          .own = floats(N * DIM, 2),
                          .table = floats(VALUES * DIM, 3),
                          .w = floats(VECTOR * DIM, 4)};
}

/* The contract, in float64: y, and from dy the gradients. */
static void naive(const sample *s, const float *dy, double *y, double *dtable, double *dw) {
    const content_args *a = &s->a;
    for (int i = 0; i < N; i++)
        for (int c = 0; c < DIM; c++) {
            y[i * DIM + c] = content_keeps(a, i) ? (double)a->own[i * DIM + c] : 0;
            for (int32_t k = s->begin[i]; k < s->begin[i + 1]; k++) {
                double w = (double)s->weight[k];
                y[i * DIM + c] += w * (double)a->table[s->index[k] * DIM + c];
                dtable[s->index[k] * DIM + c] += w * (double)dy[i * DIM + c];
            }
            for (int k = 0; k < VECTOR; k++) {
                double v = (double)a->vector[i * VECTOR + k];
                y[i * DIM + c] += v * (double)a->w[k * DIM + c];
                dw[k * DIM + c] += v * (double)dy[i * DIM + c];
            }
        }
}

static void check_near(const char *what, const float *got, const double *want, int n) {
    /* TF32 rounds the factors of the product. */
    double limit = test_on.p == PRECISION_TF32 ? 1e-2 : 1e-5;
    for (int i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= limit))
            FAIL_TEST("%s[%d] is %g, not %g", what, i, (double)got[i], want[i]);
}

static void check_content(float rate, bool has_vectors) {
    static sample s;
    test_backends t;
    float *dy = floats(N * DIM, 7);
    double *y = doubles(N * DIM), *dtable = doubles(VALUES * DIM), *dw = doubles(VECTOR * DIM);
    sample_make(&s, rate);
    if (!has_vectors) memset((float *)(uintptr_t)s.a.vector, 0, N * VECTOR * sizeof *dy);
    naive(&s, dy, y, dtable, dw);
    open_backends(&t);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        content_args a = s.a;
        a.y = floats(N * DIM, 9), a.dy = copy_floats(dy, N * DIM);
        a.sums = floats(PIECES * DIM, 9);
        CHECK_OK(MEM_NEW(&a.dtable, VALUES * DIM));
        CHECK_OK(MEM_NEW(&a.dw, VECTOR * DIM));
        if (!has_vectors) a.n_vector = 0, a.vector = a.w = NULL;
        CHECK_OK(t.be[b]->ops->content_fwd(t.be[b], &a));
        CHECK_OK(t.be[b]->ops->content_bwd(t.be[b], &a));
        check_near("y", a.y, y, N * DIM);
        check_near("dtable", a.dtable, dtable, VALUES * DIM);
        check_near("dw", a.dw, dw, has_vectors ? VECTOR * DIM : 0);
        for (int i = 0; i < N; i++)
            for (int c = 0; c < DIM; c++)
                CHECK(a.dy[i * DIM + c] == (content_keeps(&s.a, i) ? dy[i * DIM + c] : 0));
        void *all[] = {a.y, a.dy, a.sums, a.dtable, a.dw};
        for (int i = 0; i < 5; i++)
            mem_free(all[i]);
    }
    close_backends(&t);
    void *all[] = {dy, y, dtable, dw};
    for (int i = 0; i < 4; i++)
        mem_free(all[i]);
    const float *inputs[] = {s.a.vector, s.a.own, s.a.table, s.a.w};
    for (int i = 0; i < 4; i++)
        mem_free((void *)(uintptr_t)inputs[i]);
}

TEST(content_against_double) {
    check_content(0, true);
    check_content(0, false);
}

/* A share of own rows is left out, others in the next step. */
TEST(content_leaves_own_rows_out) {
    static uint8_t all[10000];
    memset(all, 1, sizeof all);
    content_args a = {.has_own = all, .rate = 0.3f, .key = rng_make_key(5, RNG_CONTENT), .step = 1};
    content_args next = a;
    int n = 0, n_same = 0;
    next.step = 2;
    for (int i = 0; i < 10000; i++) {
        n += content_keeps(&a, i);
        n_same += content_keeps(&a, i) == content_keeps(&next, i);
    }
    CHECK(n > 6800 && n < 7200);
    CHECK(n_same > 5500 && n_same < 6100);
    check_content(0.3f, true);
}
