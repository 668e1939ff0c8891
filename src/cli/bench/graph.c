/* hstu bench graph: attention along the edges of power-law graphs, GAT, spmm and sddmm (contract:
 * ops/graph_args.h).
 *
 * Only some rows have gradients of their results.  These rows are computed in float64, as they are
 * and with all inputs moved to and fro, before anything is timed: so the gradients are checked,
 * too, by their sum in that direction. */
#include "ops/graph.h"
#include "cli/bench/bench.h"
#include "nn/memory.h"
#include "profile/peak.h"

enum { CHECKED = 8, HUB_SHARE = 100 /* row 0 has 1 % of the edges */, RECORD_KEY = 78 };

/* What an op may have: q and k; v; terms of vertices; values of edges; scores as results. */
enum { DOTS = 1, ROWS = 2, TERMS = 4, VALUES = 8, SCORES = 16 };
enum { Q, K, V, LEFT, RIGHT, BIAS, DOUT, DWEIGHTS, OUT, WEIGHTS, DQ, DK, DV, DLEFT, DRIGHT, DBIAS };
enum { N_ARRAYS = DBIAS + 1 };
static const struct {
    size_t at;
    int of;
} arrays[N_ARRAYS] = {
#define ARRAY(name, of)                                                                            \
    { offsetof(graph_attn_args, name), of }
    ARRAY(q, DOTS),      ARRAY(k, DOTS),         ARRAY(v, ROWS),       ARRAY(left, TERMS),
    ARRAY(right, TERMS), ARRAY(bias, VALUES),    ARRAY(dout, ROWS),    ARRAY(dweights, SCORES),
    ARRAY(out, ROWS),    ARRAY(weights, SCORES), ARRAY(dq, DOTS),      ARRAY(dk, DOTS),
    ARRAY(dv, ROWS),     ARRAY(dleft, TERMS),    ARRAY(dright, TERMS), ARRAY(dbias, VALUES)};

static const char *const names[] = {"attention", "silu", "gat", "spmm", "sddmm", "all", NULL};
enum { ALL = 5 };
static const struct graph_kind {
    graph_weight f;
    int32_t heads, dim;
    float slope;
    int has;
} kinds[] = {{GRAPH_SOFTMAX, 4, 32, 1, DOTS | ROWS},
             {GRAPH_SILU, 4, 32, 1, DOTS | ROWS},
             {GRAPH_SOFTMAX, 8, 16, .2f, TERMS | ROWS},
             {GRAPH_IDENTITY, 1, 128, 1, ROWS | VALUES},
             {GRAPH_IDENTITY, 1, 128, 1, DOTS | SCORES}};

typedef struct problem {
    backend *be;
    const struct graph_kind *kind;
    rng_key key;
    uint64_t drawn;
    int32_t n, *begin, *columns, largest; /* largest: degree */
    graph_edges g;
    float *host[N_ARRAYS]; /* inputs, and results as they are read */
    graph_attn_args a;
    double *w, *out; /* of a row and head: (largest), (dim) */
    double error;    /* of results */
    nn_memory memory;
} problem;

static double draw(problem *p) {
    return (double)rng_uniform(rng_draw64(p->key, p->drawn++, 1).word[0]);
}

/* Row 0 has its share; degrees of others, and how often a column is drawn, follow power laws. */
static status draw_graph(problem *p, int64_t edges, int64_t degree, double exponent) {
    double *weight[2], sum = 0;
    uint64_t *row;
    int64_t n = edges / degree < 64 ? 64 : edges / degree, at = 0;
    p->n = (int32_t)n;
    for (int s = 0; s < 2; s++) {
        TRY(NN_NEW_HOST(&p->memory, &weight[s], n));
        for (int64_t i = 0; i < n; i++)
            weight[s][i] = fmin(pow(1 - draw(p), -1 / (exponent - 1)), (double)n);
    }
    for (int64_t j = 1; j < n; j++) {
        sum += weight[0][j];
        weight[1][j] += weight[1][j - 1];
    }
    TRY(NN_NEW_HOST(&p->memory, &p->begin, n + 1));
    TRY(NN_NEW_HOST(&p->memory, &p->columns, edges + n));
    TRY(NN_NEW_HOST(&p->memory, &row, edges));
    for (int64_t i = 0; i < n; i++) {
        int64_t hub = edges / HUB_SHARE, first = at;
        int64_t many =
            i == 0 ? hub : (int64_t)((double)(edges - hub) * weight[0][i] / sum + draw(p));
        for (int64_t e = 0; e < many; e++) {
            double x = draw(p) * weight[1][n - 1];
            int64_t low = 0, high = n - 1;
            BISECT(low, high, weight[1][middle] <= x);
            row[e] = (uint64_t)low;
        }
        sort_uint64(row, (size_t)many);
        for (int64_t e = 0; e < many; e++)
            if (e == 0 || row[e] != row[e - 1]) p->columns[at++] = (int32_t)row[e];
        p->begin[i + 1] = (int32_t)at;
        p->largest = (int32_t)(at - first > p->largest ? at - first : p->largest);
    }
    return OK;
}

static int64_t size_of(const problem *p, int i) {
    int64_t of = arrays[i].of, heads = p->kind->heads;
    if ((p->kind->has & of) == 0) return 0;
    if (of == DOTS || of == ROWS) return p->n * heads * p->kind->dim;
    return of == TERMS ? p->n * heads : of == VALUES ? p->g.n_edges : p->g.n_edges * heads;
}

static size_t element(const problem *p, int i) {
    return arrays[i].of == DOTS || arrays[i].of == ROWS ? act_bytes(p->be->act) : sizeof(float);
}

static void *array_of(const problem *p, int i) {
    return *(void **)((char *)&p->a + arrays[i].at);
}

static bool is_checked(const problem *p, int64_t row) {
    return row % (p->n / CHECKED) == 0;
}

/* Multiples of 1/128 in [-1, 1), exact in every type; `right` between them, so that no x is 0. */
static status make_arrays(problem *p) {
    const struct graph_kind *k = p->kind;
    int64_t width = (int64_t)k->heads * k->dim, row = 0;
    char *room;
    p->a = (graph_attn_args){.g = p->g, .f = k->f, .n_heads = k->heads, .bias_heads = 1};
    p->a.dim_qk = p->a.dim_v = k->dim, p->a.slope = k->slope, p->a.alpha = 1 / sqrtf((float)k->dim);
    p->a.stride_q = p->a.stride_k = p->a.stride_v = p->a.stride_out = width;
    if (k->f == GRAPH_SOFTMAX) TRY(NN_NEW(&p->memory, &p->a.row_sum, p->n * k->heads));
    TRY(NN_NEW_HOST(&p->memory, &p->w, p->largest + k->dim));
    TRY(nn_new_host(&p->memory, (void **)&room, p->n * width + p->g.n_edges, sizeof(float)));
    p->out = p->w + p->largest;
    for (int i = 0; i < N_ARRAYS; i++) {
        int64_t n = size_of(p, i);
        size_t size = element(p, i);
        if (n == 0) continue;
        TRY(nn_new(&p->memory, (void **)((char *)&p->a + arrays[i].at), n, size));
        TRY(NN_NEW_HOST(&p->memory, &p->host[i], n));
        for (int64_t c = 0; c < n && i < OUT; c++) {
            double x = (floor(draw(p) * 256) + (i == RIGHT ? .5 : 0)) / 128 - 1;
            row = i == DOUT ? c / width : c == 0 ? 0 : row;
            while (i == DWEIGHTS && p->begin[row + 1] * k->heads <= c)
                row++;
            p->host[i][c] = i < DOUT || is_checked(p, row) ? (float)x : 0;
            bench_put_act(size == sizeof(float) ? ACT_F32 : p->be->act, room + (size_t)c * size,
                          p->host[i][c]);
        }
        if (i < OUT) TRY(p->be->ops->copy_in(p->be, array_of(p, i), room, (size_t)n * size));
    }
    return OK;
}

static status forward(void *ctx, int i) {
    problem *p = ctx;
    return p->be->ops->graph_attn_fwd(p->be, &p->a);
}

static status both(void *ctx, int i) {
    TRY(forward(ctx, i));
    problem *p = ctx;
    return p->be->ops->graph_attn_bwd(p->be, &p->a);
}

/* The direction in which number c of an input moves. */
static double direction(int64_t c) {
    return (uint64_t)c * 0x9e3779b97f4a7c15u >> 63 ? 1 : -1;
}

/* Number c of an input, moved by a step; 0 where there is none. */
static double at(const problem *p, int array, int64_t c, double step) {
    return p->host[array] != NULL ? (double)p->host[array][c] + step * direction(c + array) : 0;
}

/* w and out of a row and head, from inputs that are moved by a step. */
static void compute_row(problem *p, int64_t i, int64_t h, double step) {
    const struct graph_kind *k = p->kind;
    int32_t first = p->begin[i], n = p->begin[i + 1] - first;
    double sum = 0;
    memset(p->out, 0, (size_t)k->dim * sizeof *p->out);
    for (int32_t e = 0; e < n; e++) {
        int64_t own = i * k->heads + h, other = (int64_t)p->columns[first + e] * k->heads + h;
        double x =
            at(p, LEFT, own, step) + at(p, RIGHT, other, step) + at(p, BIAS, first + e, step);
        for (int64_t c = 0; c < k->dim && p->host[Q] != NULL; c++)
            x += (double)p->a.alpha * at(p, Q, own * k->dim + c, step) *
                 at(p, K, other * k->dim + c, step);
        x *= x < 0 ? (double)k->slope : 1;
        p->w[e] = k->f == GRAPH_SOFTMAX ? exp(x) : k->f == GRAPH_SILU ? x / (1 + exp(-x)) : x;
        sum += p->w[e];
    }
    for (int32_t e = 0; e < n; e++) {
        int64_t other = (int64_t)p->columns[first + e] * k->heads + h;
        if (k->f == GRAPH_SOFTMAX) p->w[e] /= sum;
        for (int64_t c = 0; c < k->dim && p->host[V] != NULL; c++)
            p->out[c] += p->w[e] * at(p, V, other * k->dim + c, step);
    }
}

/* The sum of the results of checked rows times their gradients.  With step 0 the results are
 * compared with those of the op. */
static double loss(problem *p, double step) {
    const struct graph_kind *k = p->kind;
    double sum = 0, off = 0, most = 0;
    for (int64_t at_head = 0; at_head < p->n * k->heads; at_head++) {
        int64_t i = at_head / k->heads, h = at_head % k->heads, n = p->begin[i + 1] - p->begin[i];
        bool is_out = p->host[OUT] != NULL;
        if (!is_checked(p, i)) continue;
        compute_row(p, i, h, step);
        for (int64_t c = 0; c < (is_out ? k->dim : n); c++) {
            double x = is_out ? p->out[c] : p->w[c];
            int64_t where = is_out ? at_head * k->dim + c : (p->begin[i] + c) * k->heads + h;
            sum += x * (double)p->host[is_out ? DOUT : DWEIGHTS][where];
            most = fmax(most, fabs(x));
            off = bench_worse(off, fabs(x - (double)p->host[is_out ? OUT : WEIGHTS][where]));
        }
    }
    if (step == 0) p->error = bench_worse(p->error, off / most);
    return sum;
}

static status check(problem *p) {
    double along = 0, all = 0;
    TRY(both(p, 0));
    for (int i = OUT; i < N_ARRAYS; i++) {
        int64_t n = size_of(p, i);
        if (n > 0 && element(p, i) == sizeof(float))
            TRY(p->be->ops->copy_out(p->be, p->host[i], array_of(p, i), (size_t)n * sizeof(float)));
        else if (n > 0)
            TRY(backend_read_act(p->be, p->host[i], array_of(p, i), (size_t)n));
        for (int64_t c = 0; c < n && i >= DQ; c++) {
            along += (double)p->host[i][c] * direction(c + i - DQ);
            all += (double)p->host[i][c] * (double)p->host[i][c];
        }
    }
    loss(p, 0);
    double want = (loss(p, 1e-5) - loss(p, -1e-5)) / 2e-5;
    p->error = bench_worse(p->error, fabs(along - want) / sqrt(all));
    if (p->error <= (p->be->act == ACT_F32 ? 1e-5 : p->be->act == ACT_F16 ? 2e-3 : 1.5e-2))
        return OK;
    return fail(ERR_NUMERIC,
                "%s: results differ from float64 by %.1e of their size; nothing was timed",
                names[p->kind - kinds], p->error);
}

typedef struct bench_args {
    bench io;
    int op;
    int64_t edges;
    double bytes_per_second; /* of a copy */
} bench_args;

/* Gathered bytes are those of the rows that edges read; at least each array moves once. */
static status measure(bench_args *a, problem *p, double exponent) {
    bool dots = (p->kind->has & DOTS) != 0, rows = (p->kind->has & ROWS) != 0;
    double edges = (double)p->g.n_edges, row = (double)p->kind->heads * p->kind->dim;
    TRY(make_arrays(p));
    TRY(check(p));
    for (int is_both = 0; is_both < 2; is_both++) {
        double plain, replay, least = 4 * edges;
        TRY(timing_plain(p->be, is_both ? both : forward, p, &plain));
        TRY(timing_replay(p->be, RECORD_KEY + (uint64_t)is_both, is_both ? both : forward, p,
                          &replay));
        double s = bench_best(plain, replay);
        for (int i = 0; i < N_ARRAYS; i++)
            if (is_both || i < DOUT || i == OUT || i == WEIGHTS)
                least += (double)size_of(p, i) * (double)element(p, i);
        double gathered = edges * row * (double)act_bytes(p->be->act) *
                          (dots + rows + is_both * (2 * dots + rows));
        TRY(BENCH_ROW(
            &a->io, COLUMN("op", "-9", "op", names[p->kind - kinds]),
            COLUMN("pass", " -7", "pass", is_both ? "both" : "forward"),
            COLUMN("edges", " 9", "edges", p->g.n_edges),
            COLUMN("largest", " 8", "largest", p->largest),
            COLUMN("exponent", " 8.2g", "exponent", exponent),
            COLUMN("error", " 8.1e", "error", p->error), COLUMN("us", " 10.1f", "us", plain * 1e6),
            COLUMN("replay us", " 10.1f", "replay_us", s * 1e6),
            COLUMN("edges/s", " 10.3g", "edges_per_s", edges / s),
            COLUMN("GB/s", " 8.1f", "gb_per_s", gathered / s / 1e9),
            COLUMN("% floor", " 7.1f", "percent_of_floor", 100 * least / a->bytes_per_second / s)));
    }
    return OK;
}

/* One graph and op; recordings of the op before hold its memory, so they are dropped. */
static status run_one(bench_args *a, int kind, int64_t edges, bool is_dense) {
    backend *be = a->io.be;
    double exponent = is_dense ? 2.1 : 2.5;
    problem p = {
        .be = be, .kind = &kinds[kind], .key = rng_make_key((uint64_t)a->io.seed, RNG_TEST)};
    TRY(be->ops->set_precision(be, be->act, false));
    nn_memory_init(&p.memory, be);
    status st = draw_graph(&p, edges, is_dense ? 100 : 14, exponent);
    if (st == OK) st = graph_init(&p.g, be, p.n, p.n, p.begin, p.columns);
    if (st == OK) st = measure(a, &p, exponent);
    graph_fini(&p.g, be);
    nn_memory_fini(&p.memory);
    return st;
}

static status run(void *ctx) {
    bench_args *a = ctx;
    int64_t first = a->edges != 0 ? a->edges : 10000, last = a->io.be->is_host ? 1000000 : 10000000;
    TRY(peak_measure_bytes(a->io.be, &a->bytes_per_second));
    bench_title(&a->io, "Graphs on %s in %s; a copy moves %.0f GB/s", bench_device(a->io.be),
                a->io.dtype, a->bytes_per_second / 1e9);
    for (int64_t edges = first; edges <= (a->edges != 0 ? first : last); edges *= 10)
        for (int i = 0; i < 2 * ALL; i++)
            if (a->op == ALL || a->op == i / 2) TRY(run_one(a, i / 2, edges, i % 2));
    return OK;
}

status bench_graph(int argc, char **argv) {
    bench_args a = {.io = {.name = "graph", .device = "auto", .act = ACT_F32, .seed = 1},
                    .op = ALL};
    const arg_option options[] = {
        BENCH_OPTIONS(&a.io, work_dtypes, "float32 (default), bfloat16 or float16.",
                      "Seed of the graphs and inputs (default 1)."),
        OPT_CHOICE("--op", &a.op, "NAME", names,
                   "attention, silu, gat, spmm, sddmm or all (default)."),
        OPT_INT("--edges", &a.edges, "N", 1000, 100000000,
                "Edges of each graph (default 10^4 to 10^7 in turn, on a CPU to 10^6)."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench graph [options]",
        .summary = "Measure attention along the edges of graphs, GAT, spmm and sddmm, forward and "
                   "with gradients. Each result is first compared with float64.",
        .options = options,
        .notes =
            "Degrees follow power laws: exponent 2.5 and 14 edges a row (as ogbn-arxiv), 2.1 and "
            "100 (towards Reddit); row 0 has 1 % of the edges. GB/s counts the rows that edges "
            "gather; % floor is the time to move each array once at the speed of a copy, of the "
            "time taken. A GPU's calls are also recorded and replayed, without the host's time."};
    ARGS_PARSE(&spec, NULL, NULL);
    return bench_run(&a.io, run, &a);
}
