/* Attention on a graph against its formulas in float64, whose gradients are compared with finite
 * differences. */
#include "dense_test.h"
#include "oom.h"
#include "ops/graph.h"

enum { Q, K, V, LEFT, RIGHT, BIAS, DOUT, DWEIGHTS, N_INPUTS };
enum { OUT, ROW_SUM, WEIGHTS, DQ, DK, DV, DLEFT, DRIGHT, DBIAS, N_RESULTS };
static const char *const result_names[] = {"out", "row_sum", "weights", "dq",   "dk",
                                           "dv",  "dleft",   "dright",  "dbias"};

/* What a test asks for. */
typedef struct shape {
    int32_t n_rows, n_columns;
    int32_t degree; /* about; of the first row and the last column `hub` */
    int32_t hub, heads, dim_qk, dim_v, bias_heads, pad;
    graph_weight f;
    graph_sum sum;
    unsigned given; /* bits 1 << Q, ...; K comes with Q, DOUT with V */
    float slope;
} shape;

enum { ALL_TERMS = 1 << Q | 1 << V | 1 << LEFT | 1 << RIGHT | 1 << BIAS | 1 << DWEIGHTS };

typedef struct sample {
    shape s;
    int32_t *begin, *columns;
    int64_t n_edges;
    int64_t rows[N_INPUTS], stride[N_INPUTS], width[N_INPUTS]; /* elements */
    float *in[N_INPUTS];
    double *exact_in[N_INPUTS];
    float *got[N_RESULTS];
    double *want[2][N_RESULTS]; /* exact, and as naive float code has it */
    int32_t *best;
} sample;

static uint32_t draw(uint32_t below) {
    static uint64_t n;
    return rng_below(rng_draw64(rng_make_key(77, RNG_TEST), n++, 0).word[0], below);
}

/* Every seventh row is empty; the last column is in most rows where there is a hub. */
static void make_edges(sample *x) {
    const shape *s = &x->s;
    int64_t room = (int64_t)s->n_rows * (s->degree * 2 + 3) + s->hub + 1;
    CHECK_OK(MEM_NEW(&x->begin, (size_t)s->n_rows + 1));
    CHECK_OK(MEM_NEW(&x->columns, (size_t)room));
    for (int32_t i = 0; i < s->n_rows; i++) {
        int32_t degree = i == 0 && s->hub > 0 ? s->hub : s->degree;
        int32_t most = s->n_columns, step = most / (degree > 0 ? degree : 1);
        int64_t first = x->n_edges;
        bool is_empty = i % 7 == 3 || degree == 0;
        for (int32_t j = step > 1 ? (int32_t)draw((uint32_t)step) : 0; j < most && !is_empty;
             j += 1 + (step > 1 ? (int32_t)draw(2 * (uint32_t)step - 1) : 0)) {
            if (x->n_edges - first == (i == 0 && s->hub > 0 ? s->hub : 2 * s->degree)) break;
            x->columns[x->n_edges++] = j;
        }
        bool has_last = x->n_edges > first && x->columns[x->n_edges - 1] == most - 1;
        if (s->hub > 0 && !is_empty && !has_last) x->columns[x->n_edges++] = most - 1;
        x->begin[i + 1] = (int32_t)x->n_edges;
        CHECK(x->n_edges < room);
    }
}

static int input_of(int result) {
    static const int inputs[] = {DOUT, LEFT, DWEIGHTS, Q, K, V, LEFT, RIGHT, BIAS};
    return inputs[result];
}

static bool has(const sample *x, int input) {
    int with = input == K ? Q : input == DOUT ? V : input;
    return (x->s.given >> with & 1) != 0;
}

static void make_sample(sample *x, const shape *s) {
    int32_t h = s->heads;
    *x = (sample){.s = *s};
    make_edges(x);
    int64_t rows[] = {s->n_rows,    s->n_columns, s->n_columns, s->n_rows,
                      s->n_columns, x->n_edges,   s->n_rows,    x->n_edges};
    int64_t width[] = {
        h * s->dim_qk, h * s->dim_qk, h * s->dim_v, h, h, s->bias_heads, h * s->dim_v, h};
    for (int t = 0; t < N_INPUTS; t++) {
        bool is_act = t <= V || t == DOUT;
        x->rows[t] = rows[t];
        x->width[t] = width[t];
        x->stride[t] = width[t] + (is_act ? s->pad : 0);
        x->in[t] = floats(rows[t] * x->stride[t], 900 + (uint64_t)t);
        x->exact_in[t] = doubles(rows[t] * x->stride[t]);
        for (int64_t i = 0; i < rows[t] * x->stride[t]; i++)
            x->exact_in[t][i] = (double)x->in[t][i];
    }
    for (int r = 0; r < N_RESULTS; r++) {
        int t = input_of(r);
        CHECK_OK(MEM_NEW(&x->got[r], (size_t)(rows[t] * x->stride[t])));
        for (int64_t i = 0; i < rows[t] * x->stride[t]; i++)
            x->got[r][i] = i % x->stride[t] < width[t] ? 9 : 0;
        for (int f = 0; f < 2; f++)
            x->want[f][r] = doubles(rows[t] * x->stride[t]);
    }
    CHECK_OK(MEM_NEW(&x->best, (size_t)(s->n_rows * width[V])));
}

static void free_sample(sample *x) {
    for (int t = 0; t < N_INPUTS; t++)
        MEM_FREE(x->in[t], x->exact_in[t]);
    for (int r = 0; r < N_RESULTS; r++)
        MEM_FREE(x->got[r], x->want[0][r], x->want[1][r]);
    MEM_FREE(x->begin, x->columns, x->best);
}

static graph_attn_args args_of(const sample *x, const graph_edges *g) {
    const shape *s = &x->s;
    graph_attn_args a = {.g = *g, .f = s->f, .sum = s->sum, .n_heads = s->heads};
    a.dim_qk = s->dim_qk, a.dim_v = s->dim_v;
    a.alpha = .6f, a.slope = s->slope;
    if (has(x, Q)) a.q = x->in[Q], a.k = x->in[K], a.dq = x->got[DQ], a.dk = x->got[DK];
    if (has(x, V)) a.v = x->in[V], a.out = x->got[OUT], a.dout = x->in[DOUT], a.dv = x->got[DV];
    a.stride_q = x->stride[Q], a.stride_k = x->stride[K];
    a.stride_v = x->stride[V], a.stride_out = x->stride[DOUT];
    if (has(x, LEFT)) a.left = x->in[LEFT];
    if (has(x, RIGHT)) a.right = x->in[RIGHT];
    if (has(x, BIAS)) a.bias = x->in[BIAS];
    a.bias_heads = s->bias_heads;
    a.row_sum = x->got[ROW_SUM];
    if (has(x, DWEIGHTS)) a.weights = x->got[WEIGHTS], a.dweights = x->in[DWEIGHTS];
    a.dleft = x->got[DLEFT], a.dright = x->got[DRIGHT], a.dbias = x->got[DBIAS];
    a.best = x->best;
    return a;
}

/* One head by the formulas of ops.h. */
typedef struct naive {
    const sample *x;
    int32_t h;
    bool is_float;
    double *const *to; /* (N_RESULTS) */
    double *raw;       /* (n_edges): x */
} naive;

static double in_of(const naive *v, int t, int64_t row, int64_t c) {
    return v->x->exact_in[t][row * v->x->stride[t] + c];
}

static double *to_of(const naive *v, int r, int64_t row, int64_t c) {
    return &v->to[r][row * v->x->stride[input_of(r)] + c];
}

static double raw_of(const naive *v, int64_t i, int64_t j, int64_t e) {
    const sample *x = v->x;
    int64_t h = v->h, at = h * x->s.dim_qk;
    double sum = 0;
    bool has_any = has(x, Q) || has(x, LEFT) || has(x, RIGHT) || has(x, BIAS);
    for (int64_t d = 0; d < x->s.dim_qk && has(x, Q); d++)
        sum = r32(sum + in_of(v, Q, i, at + d) * in_of(v, K, j, at + d), v->is_float);
    sum *= (double).6f;
    if (has(x, LEFT)) sum += in_of(v, LEFT, i, h);
    if (has(x, RIGHT)) sum += in_of(v, RIGHT, j, h);
    if (has(x, BIAS)) sum += in_of(v, BIAS, e, x->s.bias_heads > 1 ? h : 0);
    return has_any ? r32(sum, v->is_float) : 1;
}

static double leaky(const sample *x, double raw) {
    return raw < 0 ? (double)x->s.slope * raw : raw;
}

static double sigmoid(double y) {
    return 1 / (1 + exp(-y));
}

static void naive_weights(const naive *v, int64_t i, double *w) {
    const sample *x = v->x;
    double sum = 0;
    int64_t begin = x->begin[i], end = x->begin[i + 1];
    for (int64_t e = begin; e < end; e++) {
        v->raw[e] = raw_of(v, i, x->columns[e], e);
        double y = leaky(x, v->raw[e]);
        w[e] = x->s.f == GRAPH_SOFTMAX   ? exp(y)
               : x->s.f == GRAPH_SILU    ? y * sigmoid(y)
               : x->s.f == GRAPH_SIGMOID ? sigmoid(y)
                                         : y;
        w[e] = r32(w[e], v->is_float);
        sum = r32(sum + w[e], v->is_float);
    }
    for (int64_t e = begin; e < end; e++) {
        if (x->s.f == GRAPH_SOFTMAX) w[e] = r32(w[e] / sum, v->is_float);
        *to_of(v, WEIGHTS, e, v->h) = w[e];
    }
    *to_of(v, ROW_SUM, i, v->h) = x->s.f != GRAPH_SOFTMAX ? sum : begin == end ? -1e30 : log(sum);
}

static double mean_of(const sample *x, int64_t i) {
    int32_t n = x->begin[i + 1] - x->begin[i];
    return x->s.sum == GRAPH_MEAN && n > 0 ? 1.0 / n : 1;
}

/* The edge of a maximum; -1: of none. */
static int64_t best_of(const naive *v, int64_t i, int64_t c, const double *w) {
    const sample *x = v->x;
    int64_t best = -1;
    double largest = -INFINITY;
    for (int64_t e = x->begin[i]; e < x->begin[i + 1]; e++) {
        double y = w[e] * in_of(v, V, x->columns[e], c);
        if (y > largest) largest = y, best = e;
    }
    return best;
}

static bool counts(const naive *v, int64_t i, int64_t e, int64_t c, const double *w) {
    return v->x->s.sum != GRAPH_MAX || best_of(v, i, c, w) == e;
}

static void naive_row(const naive *v, int64_t i, double *w) {
    const sample *x = v->x;
    int64_t at = (int64_t)v->h * x->s.dim_v, aq = (int64_t)v->h * x->s.dim_qk;
    bool f = v->is_float;
    double scale = mean_of(x, i), delta = 0, left = 0;
    naive_weights(v, i, w);
    for (int64_t d = at; d < at + x->s.dim_v && has(x, V); d++) {
        double sum = 0;
        for (int64_t e = x->begin[i]; e < x->begin[i + 1]; e++)
            if (counts(v, i, e, d, w)) sum = r32(sum + w[e] * in_of(v, V, x->columns[e], d), f);
        *to_of(v, OUT, i, d) = ract(sum * scale, f);
        delta += *to_of(v, OUT, i, d) * in_of(v, DOUT, i, d);
    }
    for (int64_t e = x->begin[i]; e < x->begin[i + 1] && has(x, DWEIGHTS); e++)
        delta += w[e] * in_of(v, DWEIGHTS, e, v->h);
    for (int64_t e = x->begin[i]; e < x->begin[i + 1]; e++) {
        int64_t j = x->columns[e];
        double dw = 0, y = leaky(x, v->raw[e]), s = sigmoid(y), dy;
        for (int64_t d = at; d < at + x->s.dim_v && has(x, V); d++) {
            if (!counts(v, i, e, d, w)) continue;
            dw = r32(dw + scale * in_of(v, V, j, d) * in_of(v, DOUT, i, d), f);
            double *dv = to_of(v, DV, j, d);
            *dv = r32(*dv + scale * w[e] * in_of(v, DOUT, i, d), f);
        }
        if (has(x, DWEIGHTS)) dw += in_of(v, DWEIGHTS, e, v->h);
        dy = x->s.f == GRAPH_SOFTMAX   ? w[e] * r32(dw - r32(delta, f), f)
             : x->s.f == GRAPH_SILU    ? dw * (s + y * s * (1 - s))
             : x->s.f == GRAPH_SIGMOID ? dw * s * (1 - s)
                                       : dw;
        double dx = r32(v->raw[e] < 0 ? (double)x->s.slope * dy : dy, f);
        left = r32(left + dx, f);
        *to_of(v, DRIGHT, j, v->h) = r32(*to_of(v, DRIGHT, j, v->h) + dx, f);
        *to_of(v, DBIAS, e, x->s.bias_heads > 1 ? v->h : 0) += dx;
        for (int64_t d = aq; d < aq + x->s.dim_qk && has(x, Q); d++) {
            double *dq = to_of(v, DQ, i, d), *dk = to_of(v, DK, j, d);
            *dq = r32(*dq + (double).6f * dx * in_of(v, K, j, d), f);
            *dk = r32(*dk + (double).6f * dx * in_of(v, Q, i, d), f);
        }
    }
    *to_of(v, DLEFT, i, v->h) = left;
}

static void run_naive(sample *x, bool is_float) {
    double *w = doubles(x->n_edges), *raw = doubles(x->n_edges);
    for (int r = 0; r < N_RESULTS; r++) {
        int t = input_of(r);
        if (x->rows[t] * x->stride[t] > 0)
            memset(x->want[is_float][r], 0, sizeof(double) * (size_t)(x->rows[t] * x->stride[t]));
    }
    for (int32_t h = 0; h < x->s.heads; h++) {
        naive v = {x, h, is_float, x->want[is_float], raw};
        for (int64_t i = 0; i < x->s.n_rows; i++)
            naive_row(&v, i, w);
    }
    for (int r = DQ; r <= DV && is_float; r++)
        for (int64_t i = 0; i < x->rows[input_of(r)] * x->stride[input_of(r)]; i++)
            x->want[1][r][i] = ract(x->want[1][r][i], true);
    MEM_FREE(w, raw);
}

static bool is_result(const sample *x, int r) {
    if (r == OUT || r == DV) return has(x, V);
    if (r == DQ || r == DK) return has(x, Q);
    return r == WEIGHTS ? has(x, DWEIGHTS) : true;
}

static void check_results(sample *x) {
    for (int r = 0; r < N_RESULTS; r++) {
        int64_t n = x->rows[input_of(r)] * x->stride[input_of(r)];
        if (!is_result(x, r)) continue;
        for (int64_t i = 0; i < n && r == ROW_SUM; i++)
            if (x->want[0][r][i] == -1e30) {
                CHECK(x->got[r][i] == -INFINITY);
                x->got[r][i] = 0, x->want[0][r][i] = x->want[1][r][i] = 0;
            }
        /* Terms cancel; and a hub's sum of 1,100 terms is one number, where the naive code's error
         * is luck: from 1e-7 to 3e-5 over the functions and reductions, and ours alike. */
        check_rule(__LINE__, result_names[r], x->got[r], x->want[0][r], x->want[1][r], n,
                   r == ROW_SUM || r > WEIGHTS ? 1 + x->s.hub / 25.0 : 0);
    }
}

static void run_op(sample *x, backend *be) {
    graph_edges g;
    CHECK_OK(graph_init(&g, be, x->s.n_rows, x->s.n_columns, x->begin, x->columns));
    graph_attn_args a = args_of(x, &g);
    CHECK_OK(be->ops->graph_attn_fwd(be, &a));
    CHECK_OK(be->ops->graph_attn_bwd(be, &a));
    graph_fini(&g, be);
}

static void check_shape(const shape *s, test_backends *t) {
    sample x;
    float *first[N_RESULTS];
    make_sample(&x, s);
    run_op(&x, t->be[0]);
    for (int r = 0; r < N_RESULTS; r++)
        first[r] = copy_floats(x.got[r], x.rows[input_of(r)] * x.stride[input_of(r)]);
    run_op(&x, t->be[2]);
    for (int r = 0; r < N_RESULTS; r++) {
        CHECK_SAME(x.got[r], first[r], x.rows[input_of(r)] * x.stride[input_of(r)]);
        mem_free(first[r]);
    }
    run_naive(&x, false);
    run_naive(&x, true);
    check_results(&x);
    free_sample(&x);
}

static const shape usual = {.n_rows = 23,
                            .n_columns = 31,
                            .degree = 6,
                            .heads = 2,
                            .dim_qk = 16,
                            .dim_v = 8,
                            .bias_heads = 2,
                            .given = ALL_TERMS,
                            .slope = .2f};

static void check_one(shape s) {
    test_backends t;
    open_backends(&t);
    check_shape(&s, &t);
    close_backends(&t);
}

/* Every weight function and reduction with every set of terms. */
TEST(graph_attn_every_term) {
    test_backends t;
    open_backends(&t);
    for (int f = GRAPH_SOFTMAX; f <= GRAPH_IDENTITY; f++)
        for (int sum = GRAPH_SUM; sum <= GRAPH_MAX; sum++)
            for (unsigned terms = 0; terms < 64; terms++) {
                shape s = usual;
                s.f = (graph_weight)f, s.sum = (graph_sum)sum;
                s.given = (terms & 1) << Q | (terms >> 1 & 1) << LEFT | (terms >> 2 & 1) << RIGHT |
                          (terms >> 3 & 1) << BIAS | (terms >> 4 & 1) << V |
                          (terms >> 5 & 1) << DWEIGHTS;
                s.bias_heads = terms % 3 == 0 ? 1 : 2;
                if (sum != GRAPH_MAX || f != GRAPH_SOFTMAX) check_shape(&s, &t);
            }
    close_backends(&t);
}

TEST(graph_attn_heads_and_dims) {
    const int32_t dims[] = {1, 3, 4, 7, 8, 15, 17, 32, 48, 64, 80, 100, 128, 200, 256};
    test_backends t;
    open_backends(&t);
    for (int i = 0; i < (int)(sizeof dims / sizeof *dims); i++)
        for (int32_t heads = 1; heads <= 5; heads += 2 - (heads == 1)) {
            shape s = usual;
            s.heads = heads, s.dim_qk = dims[i], s.dim_v = dims[(i * 7 + heads) % 15];
            s.pad = (i + heads) % 3 == 0 ? 0 : (i + heads) % 3 == 1 ? 8 : 3;
            s.bias_heads = i % 2 == 0 ? 1 : heads;
            s.f = (graph_weight)(i % 4);
            s.sum = heads == 3 && s.f != GRAPH_SOFTMAX ? GRAPH_MAX : (graph_sum)(i % 2);
            check_shape(&s, &t);
        }
    close_backends(&t);
}

/* Rows and columns with more edges than a piece, of every function and reduction. */
TEST(graph_attn_hubs) {
    for (int f = GRAPH_SOFTMAX; f <= GRAPH_IDENTITY; f++)
        for (int sum = GRAPH_SUM; sum <= GRAPH_MAX; sum++) {
            shape s = usual;
            s.n_rows = 1400, s.n_columns = 1300, s.degree = 3, s.hub = 1100;
            s.dim_qk = 8, s.heads = 1 + f % 2, s.bias_heads = 1;
            s.f = (graph_weight)f, s.sum = (graph_sum)sum;
            if (sum != GRAPH_MAX || f != GRAPH_SOFTMAX) check_one(s);
        }
}

TEST(graph_attn_degenerate_graphs) {
    shape s = usual;
    s.n_columns = 1, s.degree = 1;
    check_one(s);
    s.n_rows = 1, s.n_columns = 600, s.degree = 600;
    check_one(s);
    s.n_rows = 9, s.degree = 0;
    check_one(s);
    s.n_columns = 0;
    check_one(s);
    s.n_rows = 0;
    check_one(s);
}

/* The sum of a loss over both results of the float64 formulas. */
static double loss_of(sample *x) {
    double loss = 0;
    run_naive(x, false);
    for (int r = OUT; r <= WEIGHTS; r += WEIGHTS - OUT) {
        int t = input_of(r);
        for (int64_t i = 0; i < x->rows[t]; i++)
            for (int64_t c = 0; c < x->width[t]; c++)
                loss += x->want[0][r][i * x->stride[t] + c] * x->exact_in[t][i * x->stride[t] + c];
    }
    return loss;
}

TEST(graph_attn_formulas_have_these_gradients) {
    static const int inputs[] = {Q, K, V, LEFT, RIGHT, BIAS},
                     results[] = {DQ, DK, DV, DLEFT, DRIGHT, DBIAS};
    for (int kind = 0; kind < 12; kind++) {
        sample x;
        shape s = usual;
        s.n_rows = 5, s.n_columns = 4, s.degree = 3, s.dim_qk = s.dim_v = 2;
        s.f = (graph_weight)(kind % 4), s.sum = (graph_sum)(kind / 4);
        if (s.f == GRAPH_SOFTMAX && s.sum == GRAPH_MAX) continue;
        make_sample(&x, &s);
        for (int t = 0; t < 6; t++) {
            int64_t n = x.rows[inputs[t]] * x.stride[inputs[t]];
            run_naive(&x, false);
            double *gradient = doubles(n);
            memcpy(gradient, x.want[0][results[t]], sizeof(double) * (size_t)n);
            for (int64_t i = 0; i < n; i++) {
                double *at = &x.exact_in[inputs[t]][i], value = *at;
                *at = value + 1e-5;
                double above = loss_of(&x);
                *at = value - 1e-5;
                double slope = (above - loss_of(&x)) / 2e-5;
                *at = value;
                if (!(fabs(slope - gradient[i]) < 1e-7 * (1 + fabs(slope))))
                    FAIL_TEST("kind %d: %s[%d] is %.12g, not %.12g", kind, result_names[results[t]],
                              (int)i, gradient[i], slope);
            }
            mem_free(gradient);
        }
        free_sample(&x);
    }
}

/* Gradients one by one are those of all together: the same bits, but for dleft off the CPU, where a
 * sum without dq beside it is cut differently. */
static void gradients_alone(const shape *s) {
    sample x;
    backend *be;
    graph_edges g;
    CHECK_OK(test_backend(&be, NULL));
    make_sample(&x, s);
    CHECK_OK(graph_init(&g, be, s->n_rows, s->n_columns, x.begin, x.columns));
    graph_attn_args all = args_of(&x, &g);
    CHECK_OK(be->ops->graph_attn_fwd(be, &all));
    CHECK_OK(be->ops->graph_attn_bwd(be, &all));
    for (int r = DQ; r < N_RESULTS; r++) {
        graph_attn_args one = all;
        int64_t n = x.rows[input_of(r)] * x.stride[input_of(r)];
        if (!has(&x, input_of(r))) continue;
        float *alone = copy_floats(x.got[r], n);
        for (int64_t i = 0; i < n; i++)
            alone[i] = 9;
        one.dq = r == DQ ? alone : NULL;
        one.dk = r == DK ? alone : NULL;
        one.dv = r == DV ? alone : NULL;
        one.dleft = r == DLEFT ? alone : NULL;
        one.dright = r == DRIGHT ? alone : NULL;
        one.dbias = r == DBIAS ? alone : NULL;
        CHECK_OK(be->ops->graph_attn_bwd(be, &one));
        for (int64_t i = 0; i < n && r == DLEFT; i++)
            CHECK(fabsf(alone[i] - x.got[r][i]) < 2e-6f);
        if (r != DLEFT || test_on.kind == ON_CPU) CHECK_SAME(alone, x.got[r], n);
        mem_free(alone);
    }
    graph_fini(&g, be);
    free_sample(&x);
    backend_destroy(be);
}

TEST(graph_attn_gradients_alone) {
    gradients_alone(&usual);
    for (graph_weight f = GRAPH_SILU; f <= GRAPH_IDENTITY; f++) {
        shape s = usual;
        s.f = f, s.n_rows = 2000, s.hub = 1500; /* the last column has parts */
        if (f == GRAPH_IDENTITY) s.given = 1 << V | 1 << BIAS | 1 << DWEIGHTS;
        gradients_alone(&s);
    }
}

/* Rows whose scores are all -infinity have out = 0; a NaN stays in its row. */
TEST(graph_attn_of_infinite_scores) {
    const int32_t begin[] = {0, 2, 4, 6}, columns[] = {0, 1, 0, 1, 0, 1};
    const float v[] = {2, 3}, bias[] = {-INFINITY, 1, -INFINITY, -INFINITY, NAN, 1};
    float out[3], sums[3];
    backend *be;
    graph_edges g;
    CHECK_OK(test_backend(&be, NULL));
    CHECK_OK(graph_init(&g, be, 3, 2, begin, columns));
    graph_attn_args a = {.g = g, .n_heads = 1, .dim_v = 1, .v = v, .stride_v = 1, .slope = 1};
    a.bias = bias, a.bias_heads = 1, a.out = out, a.stride_out = 1, a.row_sum = sums;
    CHECK_OK(be->ops->graph_attn_fwd(be, &a));
    CHECK(out[0] == 3 && out[1] == 0 && isnan(out[2]));
    CHECK(sums[0] == 1 && sums[1] == -INFINITY && isnan(sums[2]));
    graph_fini(&g, be);
    backend_destroy(be);
}

TEST(graph_refuses) {
    static const int32_t good[] = {0, 2, 3}, falls[] = {0, 3, 2}, late[] = {1, 2, 3};
    static const int32_t columns[] = {0, 4, 1}, far[] = {0, 5, 1}, below[] = {-1, 2, 1};
    static const int32_t twice[] = {4, 4, 1}, unsorted[] = {4, 0, 1};
    backend *be;
    graph_edges g;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(graph_init(&g, be, 2, 5, good, columns));
    graph_attn_args a = {.g = g, .n_heads = 1, .dim_v = 1, .v = good, .slope = 1};
    a.sum = GRAPH_MAX;
    CHECK_FAILS(graph_attn_args_check(&a, false), ERR_USAGE, "maximum of a softmax");
    a.sum = GRAPH_SUM, a.dim_v = 257;
    CHECK_FAILS(graph_attn_args_check(&a, false), ERR_USAGE, "dim_v is 257; it is 1 to 256");
    a.dim_v = 1;
    CHECK_FAILS(graph_attn_args_check(&a, true), ERR_USAGE, "v and dout go together");
    a.dout = good;
    CHECK_FAILS(graph_attn_args_check(&a, true), ERR_USAGE, "needs row_sum");
    a.q = good;
    CHECK_FAILS(graph_attn_args_check(&a, false), ERR_USAGE, "q and k go together");
    graph_fini(&g, be);
    CHECK_FAILS(graph_init(&g, be, 2, 5, falls, columns), ERR_USAGE, "row 1 has edges 3 .. 2");
    CHECK_FAILS(graph_init(&g, be, 2, 5, late, columns), ERR_USAGE, "the first of them 0");
    CHECK_FAILS(graph_init(&g, be, 2, 5, good, far), ERR_USAGE, "edge 1 of row 0 has column 5");
    CHECK_FAILS(graph_init(&g, be, 2, 5, good, below), ERR_USAGE, "has column -1");
    CHECK_FAILS(graph_init(&g, be, 2, 5, good, twice), ERR_USAGE, "row 0 has column 4 twice");
    CHECK_FAILS(graph_init(&g, be, 2, 5, good, unsorted), ERR_USAGE, "column 0 after 4; sort");
    CHECK_FAILS(graph_init(&g, be, -1, 5, good, columns), ERR_USAGE, "-1 rows");
    CHECK_FAILS(graph_init(&g, be, 2, 5, NULL, columns), ERR_USAGE, "indptr");
    CHECK_FAILS(graph_init(&g, be, 2, 5, good, NULL), ERR_USAGE, "indices is NULL");
    backend_destroy(be);
}

static status make_and_run(void *ctx) {
    sample *x = ctx;
    graph_edges g;
    backend *be;
    TRY(backend_create_cpu(&be, NULL));
    status st = graph_init(&g, be, x->s.n_rows, x->s.n_columns, x->begin, x->columns);
    if (st == OK) {
        graph_attn_args a = args_of(x, &g);
        st = be->ops->graph_attn_fwd(be, &a);
        if (st == OK) st = be->ops->graph_attn_bwd(be, &a);
        graph_fini(&g, be);
    }
    backend_destroy(be);
    return st;
}

TEST(graph_attn_out_of_memory) {
    sample x;
    shape s = usual;
    s.n_columns = 1300, s.hub = 1100;
    make_sample(&x, &s);
    CHECK(oom_at_each_allocation(make_and_run, &x) > 12);
    free_sample(&x);
}
