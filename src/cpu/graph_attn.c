/* Attention on a graph, forward and backward (contract: graph_attn_args in ops/ops.h).
 *
 * A chunk owns some pieces of rows: whole rows, whose results it writes, or parts of a long row,
 * whose sums are combined in order afterwards; so the bits do not depend on the number of threads.
 * A piece walks over its edges a block at a time, and over the heads of a block: scores, weights,
 * sum; nothing of the size of all edges is stored.  The backward pass walks over columns and
 * computes scores again, so that dk and dv are sums of one chunk; the gradients of scores go to
 * memory in the order of rows, and dq and dleft are then a forward pass with them as weights.
 * Bound by the bytes of the gathered rows, which are prefetched a block ahead. */
#include "cpu/cpu.h"
#include "ops/graph.h"

#include "cpu/vec.h"

enum { EDGES = VEC, PIECES = 64, LINE = 16, FAR_LINES = 16 };

/* One pass over a side.  "own" is of the row that a piece belongs to, "other" of an edge's end. */
typedef struct graph_pass {
    backend *be;
    const graph_attn_args *a;
    const graph_side *side;
    const float *own, *other; /* q and k, or k and q; or NULL */
    int64_t stride_own, stride_other;
    const float *rows; /* what is gathered and summed: v, dout or k; or NULL */
    int64_t stride_rows;
    const float *own_term, *other_term;
    float scale;         /* of out */
    int64_t n_state;     /* floats of the sums of a piece */
    float *parts;        /* (n_parts, n_state) */
    float *delta, *dx;   /* backward: (rows, H), (n_edges, H) */
    int32_t *best_parts; /* (n_parts, H dim_v) */
} graph_pass;

/* At most EDGES edges of a piece. */
typedef struct edge_block {
    int32_t n;
    int32_t other[EDGES], place[EDGES];
    const float *score_row[EDGES], *row[EDGES]; /* of head 0; those after n repeat the first */
} edge_block;

static int64_t at_row(int32_t row, int64_t stride) {
    return (int64_t)row * stride;
}

static void fetch_row(const float *row, int64_t width) {
    int64_t n = width < FAR_LINES * LINE ? width : FAR_LINES * LINE;
    for (int64_t d = 0; d < n; d += LINE)
        __builtin_prefetch(row + d);
}

/* The rows of the block after `from`. */
static void fetch_ahead(const graph_pass *p, const graph_piece *piece, int32_t from) {
    int32_t end = piece->end - from < EDGES ? piece->end : from + EDGES;
    const graph_attn_args *a = p->a;
    for (int32_t e = from; e < end; e++) {
        int32_t j = p->side->other[e];
        if (p->own != NULL)
            fetch_row(p->other + at_row(j, p->stride_other), (int64_t)a->n_heads * a->dim_qk);
        if (p->rows != NULL)
            fetch_row(p->rows + at_row(j, p->stride_rows), (int64_t)a->n_heads * a->dim_v);
    }
}

static void take_block(const graph_pass *p, const graph_piece *piece, int32_t from, edge_block *b) {
    b->n = piece->end - from < EDGES ? piece->end - from : EDGES;
    for (int32_t e = 0; e < EDGES; e++) {
        int32_t at = from + (e < b->n ? e : 0), j = p->side->other[at];
        b->other[e] = j;
        b->place[e] = p->side->edge != NULL ? p->side->edge[at] : at;
        b->score_row[e] = p->own != NULL ? p->other + at_row(j, p->stride_other) : NULL;
        b->row[e] = p->rows != NULL ? p->rows + at_row(j, p->stride_rows) : NULL;
    }
    fetch_ahead(p, piece, from + EDGES);
}

/* out[e] = own . row[e] from column `at` of the rows. */
static void dot_rows(const float *own, const float *const row[EDGES], int64_t at, int32_t dim,
                     float out[EDGES]) {
    vec_wide x[EDGES] = {{0}};
    int32_t d = 0;
    for (; d + VEC <= dim; d += VEC) {
        vec y = vec_load(own + d);
        for (int e = 0; e < EDGES; e++)
            x[e] += (vec_wide)(y * vec_load(row[e] + at + d));
    }
    vec_store(out, (vec)vec_wide_sums(x));
    for (; d < dim; d++)
        for (int e = 0; e < EDGES; e++)
            out[e] += own[d] * row[e][at + d];
}

/* sum += the sum over e of w[e] row[e]. */
static void add_rows(float *sum, const float *w, const float *const *row, int64_t at, int32_t n,
                     int32_t dim) {
    int32_t d = 0;
    for (; d + 4 * VEC <= dim; d += 4 * VEC) {
        vec s0 = vec_load(sum + d), s1 = vec_load(sum + d + VEC);
        vec s2 = vec_load(sum + d + 2 * VEC), s3 = vec_load(sum + d + 3 * VEC);
        for (int32_t e = 0; e < n; e++) {
            const float *from = row[e] + at + d;
            vec x = vec_all(w[e]);
            s0 += x * vec_load(from);
            s1 += x * vec_load(from + VEC);
            s2 += x * vec_load(from + 2 * VEC);
            s3 += x * vec_load(from + 3 * VEC);
        }
        vec_store(sum + d, s0);
        vec_store(sum + d + VEC, s1);
        vec_store(sum + d + 2 * VEC, s2);
        vec_store(sum + d + 3 * VEC, s3);
    }
    for (; d + VEC <= dim; d += VEC) {
        vec s = vec_load(sum + d), odd = vec_all(0);
        int32_t e = 0;
        for (; e + 1 < n; e += 2) {
            s += vec_all(w[e]) * vec_load(row[e] + at + d);
            odd += vec_all(w[e + 1]) * vec_load(row[e + 1] + at + d);
        }
        if (e < n) s += vec_all(w[e]) * vec_load(row[e] + at + d);
        vec_store(sum + d, s + odd);
    }
    for (int32_t e = 0; e < n && d < dim; e++)
        for (int32_t c = d; c < dim; c++)
            sum[c] += w[e] * row[e][at + c];
}

/* x of the edges of a block, and what f gets: x, or slope x where x is negative. */
static vec score(const graph_pass *p, int32_t own, int32_t h, const edge_block *b, vec *x) {
    const graph_attn_args *a = p->a;
    int32_t heads = a->n_heads;
    bool has_terms = p->own != NULL || a->left != NULL || a->right != NULL || a->bias != NULL;
    float start = has_terms ? 0.0f : 1.0f, term[EDGES];
    if (p->own_term != NULL) start += p->own_term[at_row(own, heads) + h];
    *x = vec_all(start);
    if (p->own != NULL) {
        int64_t at = (int64_t)h * a->dim_qk;
        dot_rows(p->own + at_row(own, p->stride_own) + at, b->score_row, at, a->dim_qk, term);
        *x += a->alpha * vec_load(term);
    }
    if (p->other_term != NULL) {
        for (int e = 0; e < EDGES; e++)
            term[e] = p->other_term[at_row(b->other[e], heads) + h];
        *x += vec_load(term);
    }
    if (a->bias != NULL) {
        for (int e = 0; e < EDGES; e++)
            term[e] = a->bias[at_row(b->place[e], a->bias_heads) + (a->bias_heads > 1 ? h : 0)];
        *x += vec_load(term);
    }
    return a->slope == 1 ? *x : vec_select((vec_int)(*x < 0), a->slope * *x, *x);
}

/* f(y) of SiLU, sigmoid and identity; *slope = f'(y). */
static vec weigh(graph_weight f, vec y, vec *slope) {
    *slope = vec_all(1);
    if (f == GRAPH_IDENTITY) return y;
    vec s = vecs_sigmoid(y);
    *slope = f == GRAPH_SILU ? s + s * (y - y * s) : s - s * s;
    return f == GRAPH_SILU ? y * s : s;
}

/* x for the first n edges of a block, else 0. */
static vec of_edges(vec x, int32_t n) {
    vec_int lane = {0};
    for (int e = 0; e < EDGES; e++)
        lane[e] = e;
    return n == EDGES ? x : vec_select((vec_int)(lane < n), x, vec_all(0));
}

static float sum_of(const float x[EDGES]) {
    float sum = 0;
    for (int e = 0; e < EDGES; e++)
        sum += x[e];
    return sum;
}

/* The sums of a piece, forward.  A softmax's are scaled by exp(-largest). */
typedef struct fwd_state {
    float *out;           /* (H, dim_v) */
    float *largest, *sum; /* (H), (H, EDGES): of every EDGES-th edge */
    int32_t *best;        /* (H, dim_v), of a maximum */
} fwd_state;

static int64_t width_of(const graph_pass *p) {
    return p->rows != NULL ? (int64_t)p->a->n_heads * p->a->dim_v : 0;
}

static fwd_state fwd_state_at(const graph_pass *p, float *memory, int32_t *best) {
    int64_t width = width_of(p);
    return (fwd_state){memory, memory + width, memory + width + p->a->n_heads, best};
}

static void clear_state(const graph_pass *p, const fwd_state *s) {
    bool is_max = p->a->sum == GRAPH_MAX;
    for (int64_t c = 0; c < width_of(p); c++)
        s->out[c] = is_max ? -INFINITY : 0.0f;
    for (int64_t c = 0; c < width_of(p) && is_max; c++)
        s->best[c] = -1;
    for (int32_t h = 0; h < p->a->n_heads; h++)
        s->largest[h] = -INFINITY;
    memset(s->sum, 0, sizeof *s->sum * EDGES * (size_t)p->a->n_heads);
}

static void rescale(const graph_pass *p, const fwd_state *s, int32_t h, float largest) {
    float factor = s->largest[h] > -INFINITY ? vec_exp(s->largest[h] - largest) : 0.0f;
    s->largest[h] = largest;
    vec_store(s->sum + h * EDGES, factor * vec_load(s->sum + h * EDGES));
    for (int32_t d = 0; d < p->a->dim_v && p->rows != NULL; d++)
        s->out[(int64_t)h * p->a->dim_v + d] *= factor;
}

/* The weights of a softmax so far; a NaN stays one. */
static vec take_softmax(const graph_pass *p, const fwd_state *s, int32_t h, vec y) {
    float largest = s->largest[h];
    vec_int is_within = (vec_int)(y <= vec_all(largest));
    int32_t all = -1;
    for (int e = 0; e < EDGES; e++)
        all &= is_within[e];
    for (int e = 0; e < EDGES && all == 0; e++)
        largest = y[e] > largest || isnan(y[e]) ? y[e] : largest;
    if (all == 0) rescale(p, s, h, largest);
    return largest == -INFINITY ? vec_all(0) : vecs_exp(y - largest);
}

static void take_largest(const graph_pass *p, const fwd_state *s, int32_t h, const edge_block *b,
                         const float w[EDGES]) {
    int64_t at = (int64_t)h * p->a->dim_v;
    for (int32_t e = 0; e < b->n; e++)
        for (int64_t c = at; c < at + p->a->dim_v; c++) {
            float x = w[e] * b->row[e][c];
            if (!(x > s->out[c] || (isnan(x) && !isnan(s->out[c])))) continue;
            s->out[c] = x;
            s->best[c] = b->place[e];
        }
}

static void fwd_head(const graph_pass *p, const graph_piece *piece, const edge_block *b, int32_t h,
                     const fwd_state *s) {
    const graph_attn_args *a = p->a;
    bool is_softmax = a->f == GRAPH_SOFTMAX;
    float w[EDGES], kept[EDGES], *sum = s->sum + h * EDGES;
    vec x, y = score(p, piece->row, h, b, &x);
    vec weight = is_softmax ? take_softmax(p, s, h, y) : weigh(a->f, y, &x);
    weight = of_edges(weight, b->n);
    vec_store(w, weight);
    vec_store(kept, is_softmax ? y : weight);
    vec_store(sum, vec_load(sum) + weight);
    for (int32_t e = 0; e < b->n && a->weights != NULL; e++)
        a->weights[at_row(b->place[e], a->n_heads) + h] = kept[e];
    if (p->rows == NULL) return;
    int64_t at = (int64_t)h * a->dim_v;
    if (a->sum == GRAPH_MAX)
        take_largest(p, s, h, b, w);
    else
        add_rows(s->out + at, w, b->row, at, b->n, a->dim_v);
}

/* Adds a later part of the row. */
static void fwd_merge(const graph_pass *p, const fwd_state *to, const fwd_state *from) {
    const graph_attn_args *a = p->a;
    int32_t dim = p->rows != NULL ? a->dim_v : 0;
    for (int32_t h = 0; h < a->n_heads; h++) {
        float largest = from->largest[h], factor = 1;
        if (a->f == GRAPH_SOFTMAX) {
            if (largest > to->largest[h] || isnan(largest)) rescale(p, to, h, largest);
            factor = largest == -INFINITY ? 0.0f : vec_exp(largest - to->largest[h]);
        }
        float *sum = to->sum + h * EDGES;
        vec_store(sum, vec_load(sum) + factor * vec_load(from->sum + h * EDGES));
        for (int64_t c = (int64_t)h * dim; c < (int64_t)(h + 1) * dim; c++) {
            float x = from->out[c];
            if (a->sum != GRAPH_MAX) {
                to->out[c] += factor * x;
            } else if (x > to->out[c] || (isnan(x) && !isnan(to->out[c]))) {
                to->out[c] = x;
                to->best[c] = from->best[c];
            }
        }
    }
}

static float mean_factor(const graph_attn_args *a, int32_t row) {
    const int32_t *begin = a->g.rows.begin;
    return a->sum == GRAPH_MEAN && begin[row + 1] > begin[row]
               ? 1.0f / (float)(begin[row + 1] - begin[row])
               : 1.0f;
}

static void fwd_finish(const graph_pass *p, int32_t row, const fwd_state *s) {
    const graph_attn_args *a = p->a;
    float *out = (float *)a->out + at_row(row, a->stride_out), factor = mean_factor(a, row);
    int64_t n_best = (int64_t)a->n_heads * a->dim_v;
    for (int32_t h = 0; h < a->n_heads; h++) {
        bool is_softmax = a->f == GRAPH_SOFTMAX, has_any = s->largest[h] != -INFINITY;
        float scale = p->scale * factor, sum = sum_of(s->sum + h * EDGES);
        if (is_softmax) scale = has_any ? scale / sum : 0.0f;
        for (int64_t c = h * (int64_t)a->dim_v; c < (h + 1) * (int64_t)a->dim_v && p->rows; c++)
            out[c] = a->sum == GRAPH_MAX && s->best[c] < 0 ? 0.0f : s->out[c] * scale;
        if (is_softmax) sum = has_any ? s->largest[h] + logf(sum) : -INFINITY;
        if (a->row_sum != NULL) a->row_sum[at_row(row, a->n_heads) + h] = sum;
    }
    if (a->sum == GRAPH_MAX && a->best != NULL && p->rows != NULL)
        memcpy(a->best + at_row(row, n_best), s->best, (size_t)n_best * sizeof *s->best);
}

/* State, and the best edges of a maximum after it. */
static status state_memory(const graph_pass *p, int worker, float **state, int32_t **best) {
    void *memory;
    size_t bytes = sizeof(float) * (size_t)p->n_state;
    TRY(cpu_scratch(p->be, worker, bytes + sizeof(int32_t) * (size_t)width_of(p), &memory));
    *state = memory;
    *best = (int32_t *)((char *)memory + bytes);
    return OK;
}

static status fwd_chunk(const cpu_rows *w) {
    const graph_pass *p = w->ctx;
    float *memory = NULL;
    int32_t *best = NULL;
    edge_block b;
    TRY(state_memory(p, w->worker, &memory, &best));
    for (int64_t i = w->first; i < w->end; i++) {
        const graph_piece *piece = &p->side->pieces[i];
        fwd_state s = fwd_state_at(p, memory, best);
        if (piece->part >= 0)
            s = fwd_state_at(p, p->parts + (int64_t)piece->part * p->n_state,
                             p->best_parts + (int64_t)piece->part * width_of(p));
        clear_state(p, &s);
        for (int32_t e = piece->begin; e < piece->end; e += EDGES) {
            take_block(p, piece, e, &b);
            for (int32_t h = 0; h < p->a->n_heads; h++)
                fwd_head(p, piece, &b, h, &s);
        }
        if (piece->part < 0) fwd_finish(p, piece->row, &s);
    }
    return OK;
}

static fwd_state part_at(const graph_pass *p, int64_t part) {
    return fwd_state_at(p, p->parts + part * p->n_state, p->best_parts + part * width_of(p));
}

static status fwd_combine(const cpu_rows *w) {
    const graph_pass *p = w->ctx;
    for (int64_t i = w->first; i < w->end; i++) {
        const graph_split *split = &p->side->splits[i];
        fwd_state to = part_at(p, split->part);
        for (int32_t k = 1; k < split->n_parts; k++) {
            fwd_state from = part_at(p, split->part + k);
            fwd_merge(p, &to, &from);
        }
        fwd_finish(p, split->row, &to);
    }
    return OK;
}

/* The weights of a softmax from the scores that were stored in their place. */
static status normalise_chunk(const cpu_rows *w) {
    const graph_attn_args *a = w->ctx;
    for (int64_t i = w->first; i < w->end; i++) {
        const graph_piece *piece = &a->g.rows.pieces[i];
        const float *sum = a->row_sum + at_row(piece->row, a->n_heads);
        for (int32_t e = piece->begin; e < piece->end; e++)
            for (int32_t h = 0; h < a->n_heads; h++) {
                float *x = a->weights + at_row(e, a->n_heads) + h;
                *x = sum[h] == -INFINITY ? 0.0f : vec_exp(*x - sum[h]);
            }
    }
    return OK;
}

static int64_t fwd_floats(const graph_attn_args *a) {
    return (int64_t)a->n_heads * ((a->v != NULL ? a->dim_v : 0) + 1 + EDGES);
}

/* Bytes of the parts of a forward pass. */
static size_t fwd_bytes(const graph_attn_args *a) {
    int64_t n_best = a->sum == GRAPH_MAX ? (int64_t)a->n_heads * a->dim_v : 0;
    return sizeof(float) * (size_t)a->g.rows.n_parts * (size_t)(fwd_floats(a) + n_best);
}

static status run_fwd(backend *be, const graph_attn_args *a, float scale, void *memory) {
    graph_pass p = {.be = be, .a = a, .side = &a->g.rows, .scale = scale};
    p.own = a->q, p.stride_own = a->stride_q;
    p.other = a->k, p.stride_other = a->stride_k;
    p.rows = a->v, p.stride_rows = a->stride_v;
    p.own_term = a->left, p.other_term = a->right;
    p.n_state = fwd_floats(a);
    p.parts = memory;
    p.best_parts = (int32_t *)(p.parts + (int64_t)a->g.rows.n_parts * p.n_state);
    TRY(cpu_each(be, a->g.rows.n_pieces, PIECES, fwd_chunk, &p));
    return cpu_each(be, a->g.rows.n_splits, 1, fwd_combine, &p);
}

status cpu_graph_attn_fwd(backend *be, const graph_attn_args *args) {
    graph_attn_args a = *args;
    void *memory;
    TRY(graph_attn_args_check(&a, false));
    bool normalises = a.weights != NULL && a.f == GRAPH_SOFTMAX;
    size_t bytes = fwd_bytes(&a), sums = sizeof(float) * (size_t)a.g.rows.n * (size_t)a.n_heads;
    TRY(cpu_scratch(be, CPU_SHARED, bytes + sums, &memory));
    if (normalises && a.row_sum == NULL) a.row_sum = (float *)((char *)memory + bytes);
    TRY(run_fwd(be, &a, 1, memory));
    return normalises ? cpu_each(be, a.g.rows.n_pieces, PIECES, normalise_chunk, &a) : OK;
}

/* The sums of a piece of a column, backward; NULL: not wanted. */
typedef struct bwd_state {
    float *dk, *dv, *dright; /* (H, dim_qk), (H, dim_v), (H) */
} bwd_state;

static bwd_state bwd_state_at(const graph_attn_args *a, float *memory) {
    float *dv = memory + (a->dk != NULL ? (int64_t)a->n_heads * a->dim_qk : 0);
    float *dright = dv + (a->dv != NULL ? (int64_t)a->n_heads * a->dim_v : 0);
    return (bwd_state){a->dk != NULL ? memory : NULL, a->dv != NULL ? dv : NULL, dright};
}

static int64_t bwd_floats(const graph_attn_args *a) {
    int64_t n = (a->dk != NULL ? a->dim_qk : 0) + (a->dv != NULL ? a->dim_v : 0) + 1;
    return n * a->n_heads;
}

static bool wants_dx(const graph_attn_args *a) {
    return a->dq != NULL || a->dk != NULL || a->dleft != NULL || a->dright != NULL ||
           a->dbias != NULL;
}

/* The same of dout where the edge is the largest: dw, and dv. */
static void bwd_largest(const graph_pass *p, int32_t column, const edge_block *b, int32_t h,
                        const float w[EDGES], float dw[EDGES], float *dv) {
    const graph_attn_args *a = p->a;
    int64_t width = (int64_t)a->n_heads * a->dim_v, at = (int64_t)h * a->dim_v;
    const float *v = (const float *)a->v + at_row(column, a->stride_v);
    for (int32_t e = 0; e < b->n; e++) {
        const int32_t *best = a->best + at_row(b->other[e], width);
        for (int64_t c = at; c < at + a->dim_v; c++) {
            if (best[c] != b->place[e]) continue;
            dw[e] += b->row[e][c] * v[c];
            if (dv != NULL) dv[c] += w[e] * b->row[e][c];
        }
    }
}

/* The gradients of weights: dout . v, which sums of dv are added to, and dweights. */
static void bwd_weights(const graph_pass *p, int32_t column, const edge_block *b, int32_t h,
                        const float w[EDGES], float dw[EDGES], const bwd_state *s) {
    const graph_attn_args *a = p->a;
    int64_t at = (int64_t)h * a->dim_v;
    float scaled[EDGES];
    memset(dw, 0, EDGES * sizeof *dw);
    if (a->v != NULL && a->sum == GRAPH_MAX) {
        bwd_largest(p, column, b, h, w, dw, s->dv);
    } else if (a->v != NULL) {
        const float *v = (const float *)a->v + at_row(column, a->stride_v) + at;
        if (wants_dx(a)) dot_rows(v, b->row, at, a->dim_v, dw);
        for (int e = 0; e < EDGES; e++) {
            float factor = mean_factor(a, b->other[e]);
            dw[e] *= factor;
            scaled[e] = w[e] * factor;
        }
        if (s->dv != NULL) add_rows(s->dv + at, scaled, b->row, at, b->n, a->dim_v);
    }
    for (int e = 0; e < EDGES && a->dweights != NULL; e++)
        dw[e] += a->dweights[at_row(b->place[e], a->n_heads) + h];
}

static void bwd_head(const graph_pass *p, const graph_piece *piece, const edge_block *b, int32_t h,
                     const bwd_state *s) {
    const graph_attn_args *a = p->a;
    float w[EDGES], dw[EDGES], dx[EDGES], term[EDGES];
    vec x, slope = vec_all(0), y = score(p, piece->row, h, b, &x);
    if (a->f == GRAPH_SOFTMAX) {
        for (int e = 0; e < EDGES; e++)
            term[e] = a->row_sum[at_row(b->other[e], a->n_heads) + h];
        vec sum = vec_load(term);
        vec_store(w, vec_select((vec_int)(sum == -INFINITY), vec_all(0), vecs_exp(y - sum)));
    } else {
        vec_store(w, weigh(a->f, y, &slope));
    }
    bwd_weights(p, piece->row, b, h, w, dw, s);
    if (!wants_dx(a)) return;
    vec d = vec_load(dw) * slope;
    if (a->f == GRAPH_SOFTMAX) {
        for (int e = 0; e < EDGES; e++)
            term[e] = p->delta[at_row(b->other[e], a->n_heads) + h];
        d = vec_load(w) * (vec_load(dw) - vec_load(term));
    }
    vec_store(dx, vec_select((vec_int)(x < 0), a->slope * d, d));
    for (int32_t e = 0; e < b->n; e++)
        s->dright[h] += dx[e];
    for (int32_t e = 0; e < b->n && p->dx != NULL; e++)
        p->dx[at_row(b->place[e], a->n_heads) + h] = dx[e];
    if (s->dk == NULL) return;
    int64_t at = (int64_t)h * a->dim_qk;
    for (int e = 0; e < EDGES; e++)
        dx[e] *= a->alpha;
    add_rows(s->dk + at, dx, b->score_row, at, b->n, a->dim_qk);
}

static void bwd_finish(const graph_attn_args *a, int32_t column, const float *memory) {
    bwd_state s = bwd_state_at(a, (float *)memory);
    size_t heads = (size_t)a->n_heads * sizeof(float);
    if (a->dk != NULL)
        memcpy((float *)a->dk + at_row(column, a->stride_k), s.dk, heads * (size_t)a->dim_qk);
    if (a->dv != NULL)
        memcpy((float *)a->dv + at_row(column, a->stride_v), s.dv, heads * (size_t)a->dim_v);
    if (a->dright != NULL) memcpy(a->dright + at_row(column, a->n_heads), s.dright, heads);
}

static status bwd_chunk(const cpu_rows *w) {
    const graph_pass *p = w->ctx;
    float *memory = NULL;
    int32_t *unused;
    edge_block b;
    TRY(state_memory(p, w->worker, &memory, &unused));
    for (int64_t i = w->first; i < w->end; i++) {
        const graph_piece *piece = &p->side->pieces[i];
        float *to = piece->part < 0 ? memory : p->parts + (int64_t)piece->part * p->n_state;
        bwd_state s = bwd_state_at(p->a, to);
        memset(to, 0, sizeof *to * (size_t)p->n_state);
        for (int32_t e = piece->begin; e < piece->end; e += EDGES) {
            take_block(p, piece, e, &b);
            for (int32_t h = 0; h < p->a->n_heads; h++)
                bwd_head(p, piece, &b, h, &s);
        }
        if (piece->part < 0) bwd_finish(p->a, piece->row, to);
    }
    return OK;
}

static status bwd_combine(const cpu_rows *w) {
    const graph_pass *p = w->ctx;
    for (int64_t i = w->first; i < w->end; i++) {
        const graph_split *split = &p->side->splits[i];
        float *to = p->parts + (int64_t)split->part * p->n_state;
        cpu_add_partials(to, p->n_state, to + p->n_state, split->n_parts - 1, p->n_state);
        bwd_finish(p->a, split->row, to);
    }
    return OK;
}

/* delta_i = the sum over j of w_ij dw_ij, which is out_i . dout_i and what dweights adds. */
static status delta_chunk(const cpu_rows *w) {
    const graph_pass *p = w->ctx;
    const graph_attn_args *a = p->a;
    const int32_t *begin = a->g.rows.begin;
    for (int64_t i = w->first; i < w->end; i++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            int64_t at = i * a->stride_out + (int64_t)h * a->dim_v;
            double delta = 0;
            for (int32_t d = 0; d < a->dim_v && a->v != NULL; d++)
                delta += (double)((const float *)a->out)[at + d] *
                         (double)((const float *)a->dout)[at + d];
            for (int64_t e = begin[i]; e < begin[i + 1] && a->dweights != NULL; e++)
                delta += (double)a->weights[e * a->n_heads + h] *
                         (double)a->dweights[e * a->n_heads + h];
            p->delta[i * a->n_heads + h] = (float)delta;
        }
    return OK;
}

/* dbias of all heads together. */
static status share_chunk(const cpu_rows *w) {
    const graph_pass *p = w->ctx;
    for (int64_t e = w->first; e < w->end; e++) {
        double sum = 0;
        for (int32_t h = 0; h < p->a->n_heads; h++)
            sum += (double)p->dx[e * p->a->n_heads + h];
        p->a->dbias[e] = (float)sum;
    }
    return OK;
}

/* dq and dleft: sums over rows with weights dx. */
static graph_attn_args row_gradients(const graph_attn_args *a, float *dx) {
    return (graph_attn_args){.g = a->g,
                             .f = GRAPH_IDENTITY,
                             .sum = GRAPH_SUM,
                             .n_heads = a->n_heads,
                             .dim_v = a->dq != NULL ? a->dim_qk : 0,
                             .v = a->dq != NULL ? a->k : NULL,
                             .stride_v = a->stride_k,
                             .slope = 1,
                             .bias = dx,
                             .bias_heads = a->n_heads,
                             .out = a->dq,
                             .stride_out = a->stride_q,
                             .row_sum = a->dleft};
}

static size_t cut(size_t *bytes, size_t n) {
    size_t at = *bytes;
    *bytes += (n + 63) / 64 * 64;
    return at;
}

status cpu_graph_attn_bwd(backend *be, const graph_attn_args *a) {
    graph_pass p = {.be = be, .a = a, .side = &a->g.columns};
    TRY(graph_attn_args_check(a, true));
    p.own = a->k, p.stride_own = a->stride_k;
    p.other = a->q, p.stride_other = a->stride_q;
    p.rows = a->dout, p.stride_rows = a->stride_out;
    p.own_term = a->right, p.other_term = a->left;
    p.n_state = bwd_floats(a);
    bool is_own = a->dbias != NULL && a->bias_heads == a->n_heads;
    bool keeps_dx = (a->dbias != NULL && !is_own) || a->dq != NULL || a->dleft != NULL;
    size_t heads = sizeof(float) * (size_t)a->n_heads, bytes = 0;
    graph_attn_args by_rows = row_gradients(a, NULL);
    size_t parts = sizeof(float) * (size_t)a->g.columns.n_parts * (size_t)p.n_state;
    size_t row_parts = fwd_bytes(&by_rows);
    size_t at_parts = cut(&bytes, parts > row_parts ? parts : row_parts);
    size_t at_delta = cut(&bytes, heads * (size_t)a->g.rows.n);
    size_t at_dx = cut(&bytes, keeps_dx && !is_own ? heads * (size_t)a->g.n_edges : 0);
    void *memory;
    TRY(cpu_scratch(be, CPU_SHARED, bytes, &memory));
    p.parts = (float *)((char *)memory + at_parts);
    p.delta = (float *)((char *)memory + at_delta);
    p.dx = is_own ? a->dbias : keeps_dx ? (float *)((char *)memory + at_dx) : NULL;
    if (a->f == GRAPH_SOFTMAX && wants_dx(a)) TRY(cpu_each(be, a->g.rows.n, 256, delta_chunk, &p));
    TRY(cpu_each(be, a->g.columns.n_pieces, PIECES, bwd_chunk, &p));
    TRY(cpu_each(be, a->g.columns.n_splits, 1, bwd_combine, &p));
    if (a->dbias != NULL && !is_own) TRY(cpu_each(be, a->g.n_edges, 4096, share_chunk, &p));
    by_rows.bias = p.dx;
    if (a->dq == NULL && a->dleft == NULL) return OK;
    return run_fwd(be, &by_rows, a->alpha, p.parts);
}
