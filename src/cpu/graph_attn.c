/* Attention on a graph, forward and backward (contract: graph_attn_args in ops/ops.h).
 *
 * A chunk owns some pieces of rows: whole rows, whose results it writes, or parts of a long row,
 * whose sums are combined in order afterwards; so the bits do not depend on the number of threads.
 * A piece takes 1, 2 or 4 heads at a time and a block of its edges: scores, weights, sum; nothing
 * of the size of all edges is stored.  What belongs to edges lies as (edges, heads), so that one
 * vector has 16 numbers whatever the number of heads, and a forward block is the whole piece: its
 * softmax needs no second pass over rows.  The backward pass walks over columns and computes scores
 * again, so that dk and dv are sums of one chunk; the gradients of scores go to memory in the order
 * of rows, and dq and dleft are then a forward pass with them as weights.
 * Bound by the bytes of the gathered rows, which are prefetched AHEAD edges before, beyond the end
 * of a piece: the edges of the next row follow. */
#include "cpu/cpu.h"
#include "ops/graph.h"

#include "cpu/vec.h"

enum {
    HEADS = 4,                    /* of a block, at most */
    EDGES = GRAPH_PIECE,          /* of a block, forward; backward it reads rows twice, so they */
    EDGES_BACK = 16,              /* stay in the first-level cache */
    AHEAD = 16,                   /* edges from a prefetch to its use */
    VALUES = EDGES * HEADS + VEC, /* of a block: a last vector may be read whole */
    STRIP = 8,                    /* vectors of sums in registers */
    PIECES = 64,                  /* of a chunk */
    LINE = 16                     /* floats of a cache line */
};

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

/* Some edges of a piece, and heads h to h + heads - 1. */
typedef struct edge_block {
    int32_t row, n, h, heads;
    const int32_t *other; /* (n), and of `left` edges altogether */
    int32_t left, first;  /* edge number `first` of the side */
    const int32_t *edge;  /* (n): as in graph_side */
} edge_block;

static int64_t at_row(int32_t row, int64_t stride) {
    return (int64_t)row * stride;
}

/* Heads of a block: a divisor of their number and of a vector's. */
static int32_t heads_of(const graph_attn_args *a) {
    return a->n_heads % HEADS == 0 ? HEADS : a->n_heads % 2 == 0 ? 2 : 1;
}

static edge_block block_at(const graph_pass *p, const graph_piece *piece, int32_t from, int32_t n,
                           int32_t h) {
    const graph_side *s = p->side;
    int64_t left = p->a->g.n_edges - from;
    edge_block b = {.row = piece->row, .h = h, .heads = heads_of(p->a), .first = from};
    b.n = piece->end - from < n ? piece->end - from : n;
    b.other = s->other + from;
    b.left = (int32_t)(left < EDGES + AHEAD ? left : EDGES + AHEAD);
    b.edge = s->edge != NULL ? s->edge + from : NULL;
    return b;
}

static int32_t place_of(const edge_block *b, int32_t e) {
    return b->edge != NULL ? b->edge[e] : b->first + e;
}

/* Values of a block, rounded up to whole vectors. */
static int32_t n_values(const edge_block *b) {
    return (b->n * b->heads + VEC - 1) / VEC * VEC;
}

/* Prefetches what edge e + AHEAD reads of `rows`. */
static inline void fetch(const edge_block *b, int32_t e, const float *rows, int64_t stride,
                         int32_t width) {
    int32_t then = e + AHEAD < b->left ? e + AHEAD : b->left - 1;
    const float *row = rows + at_row(b->other[then], stride);
    for (int32_t d = 0; d < width; d += LINE)
        __builtin_prefetch(row + d);
}

/* out[i] = own . row of head i % heads and edge e + i / heads. */
static inline __attribute__((always_inline)) void dot_vector(const edge_block *b, int32_t e,
                                                             const float *own, const float *rows,
                                                             int64_t stride, int32_t dim, int heads,
                                                             float out[VEC]) {
    const float *row[VEC];
    vec_wide x[VEC] = {{0}};
    int32_t d = 0;
    for (int i = 0; i < VEC / heads; i++) {
        row[i] = rows + at_row(b->other[e + i < b->n ? e + i : e], stride);
        fetch(b, e + i, rows, stride, heads * dim);
    }
    for (; d + VEC <= dim; d += VEC)
        for (int i = 0; i < VEC; i++) {
            int32_t at = i % heads * dim + d;
            x[i] += (vec_wide)(vec_load(own + at) * vec_load(row[i / heads] + at));
        }
    vec_store(out, (vec)vec_wide_sums(x));
    for (; d < dim; d++)
        for (int i = 0; i < VEC; i++)
            out[i] += own[i % heads * dim + d] * row[i / heads][i % heads * dim + d];
}

/* x = own . row of all values of a block, whose first head is where own and rows begin. */
static void dots(const edge_block *b, const float *own, const float *rows, int64_t stride,
                 int32_t dim, float *x) {
    for (int32_t e = 0; e < b->n && b->heads == 4; e += VEC / 4)
        dot_vector(b, e, own, rows, stride, dim, 4, x + e * 4);
    for (int32_t e = 0; e < b->n && b->heads == 2; e += VEC / 2)
        dot_vector(b, e, own, rows, stride, dim, 2, x + e * 2);
    for (int32_t e = 0; e < b->n && b->heads == 1; e += VEC)
        dot_vector(b, e, own, rows, stride, dim, 1, x + e);
}

/* sum += the sum over e of w[e] row[e], of `vectors` vectors of each of n heads; w has `heads`
 * numbers an edge. */
static inline __attribute__((always_inline)) void sum_strip(const edge_block *b, const float *w,
                                                            const float *rows, int64_t stride,
                                                            int n, int vectors, float *sum) {
    vec s[STRIP];
    for (int i = 0; i < n * vectors; i++)
        s[i] = vec_load(sum + i * VEC);
    for (int32_t e = 0; e < b->n; e++, w += b->heads) {
        const float *row = rows + at_row(b->other[e], stride);
        fetch(b, e, rows, stride, n * vectors * VEC);
        for (int i = 0; i < n * vectors; i++)
            s[i] += w[i / vectors] * vec_load(row + i * VEC);
    }
    for (int i = 0; i < n * vectors; i++)
        vec_store(sum + i * VEC, s[i]);
}

/* Of one head. */
static void sum_head(const edge_block *b, const float *w, const float *rows, int64_t stride,
                     int32_t dim, float *sum) {
    int32_t d = 0;
    for (; d + 8 * VEC <= dim; d += 8 * VEC)
        sum_strip(b, w, rows + d, stride, 1, 8, sum + d);
    for (; d + 4 * VEC <= dim; d += 4 * VEC)
        sum_strip(b, w, rows + d, stride, 1, 4, sum + d);
    for (; d + 2 * VEC <= dim; d += 2 * VEC)
        sum_strip(b, w, rows + d, stride, 1, 2, sum + d);
    for (; d + VEC <= dim; d += VEC)
        sum_strip(b, w, rows + d, stride, 1, 1, sum + d);
    for (int32_t e = 0; e < b->n && d < dim; e++)
        for (int32_t c = d; c < dim; c++)
            sum[c] += w[e * b->heads] * rows[at_row(b->other[e], stride) + c];
}

/* sum += the sum over edges of w row; w are values of the block. */
static void sum_rows(const edge_block *b, const float *w, const float *rows, int64_t stride,
                     int32_t dim, float *sum) {
    if (b->heads == 4 && dim == VEC)
        sum_strip(b, w, rows, stride, 4, 1, sum);
    else if (b->heads == 4 && dim == 2 * VEC)
        sum_strip(b, w, rows, stride, 4, 2, sum);
    else if (b->heads == 2 && dim == 2 * VEC)
        sum_strip(b, w, rows, stride, 2, 2, sum);
    else if (b->heads == 2 && dim == 4 * VEC)
        sum_strip(b, w, rows, stride, 2, 4, sum);
    else
        for (int32_t h = 0; h < b->heads; h++)
            sum_head(b, w + h, rows + (int64_t)h * dim, stride, dim, sum + (int64_t)h * dim);
}

/* to = numbers of an array with `stride` of them a place, of edge e at place index[e], or first + e
 * without an index; `step` 0: one for all heads of an edge, else 1. */
static inline __attribute__((always_inline)) void gather_heads(const edge_block *b,
                                                               const int32_t *index,
                                                               const float *from, int64_t stride,
                                                               int step, int heads, float *to) {
    for (int32_t e = 0; e < b->n; e++) {
        const float *at = from + at_row(index != NULL ? index[e] : b->first + e, stride);
        for (int h = 0; h < heads; h++)
            to[e * heads + h] = at[h * step];
    }
}

static void gather(const edge_block *b, const int32_t *index, const float *from, int64_t stride,
                   int step, float *to) {
    if (b->n > 0) vec_store(to + n_values(b) - VEC, vec_all(0));
    from += b->h * step;
    if (b->heads == 4 && step == 1)
        gather_heads(b, index, from, stride, 1, 4, to);
    else
        gather_heads(b, index, from, stride, step, b->heads, to);
}

/* And to (n_edges, H). */
static void scatter(const graph_pass *p, const edge_block *b, const float *from, float *to) {
    int32_t heads = b->heads;
    for (int32_t e = 0; e < b->n; e++) {
        float *at = to + at_row(place_of(b, e), p->a->n_heads) + b->h;
        for (int32_t h = 0; h < heads; h++)
            at[h] = from[e * heads + h];
    }
}

static void add_values(const edge_block *b, const float *from, float *to) {
    for (int32_t c = 0; c < n_values(b); c += VEC)
        vec_store(to + c, vec_load(to + c) + vec_load(from + c));
}

static inline __attribute__((always_inline)) vec swap_lanes(vec x, int by) {
    vec swapped = {0};
    for (int i = 0; i < VEC; i++)
        swapped[i] = x[(i ^ by) % VEC];
    return swapped;
}

/* Every lane gets the sum, or the largest, of the lanes of its head. */
static vec sum_lanes(vec x, int32_t heads) {
    if (VEC > 8) x += swap_lanes(x, 8);
    if (VEC > 4) x += swap_lanes(x, 4);
    if (heads < 4) x += swap_lanes(x, 2);
    return heads < 2 ? x + swap_lanes(x, 1) : x;
}

static vec larger(vec x, vec y) {
    return vec_select((vec_int)(y > x), y, x);
}

static vec largest_lanes(vec x, int32_t heads) {
    if (VEC > 8) x = larger(x, swap_lanes(x, 8));
    if (VEC > 4) x = larger(x, swap_lanes(x, 4));
    if (heads < 4) x = larger(x, swap_lanes(x, 2));
    return heads < 2 ? larger(x, swap_lanes(x, 1)) : x;
}

/* x in the first n lanes. */
static vec first_lanes(vec x, int32_t n, float other) {
    vec_int lane = {0};
    for (int i = 0; i < VEC; i++)
        lane[i] = i;
    return vec_select((vec_int)(lane < n), x, vec_all(other));
}

static vec repeat_heads(const float *from, int32_t heads) {
    float lanes[VEC];
    for (int i = 0; i < VEC; i++)
        lanes[i] = from[i & (heads - 1)];
    return vec_load(lanes);
}

/* x of a block. */
static void take_scores(const graph_pass *p, const edge_block *b, float *x) {
    const graph_attn_args *a = p->a;
    int32_t heads = a->n_heads;
    bool has_terms = p->own != NULL || a->left != NULL || a->right != NULL || a->bias != NULL;
    vec start = vec_all(has_terms ? 0.0f : 1.0f);
    float term[VALUES];
    int64_t at = b->h * (int64_t)a->dim_qk;
    if (p->own_term != NULL)
        start = repeat_heads(p->own_term + at_row(b->row, heads) + b->h, b->heads);
    if (p->own != NULL)
        dots(b, p->own + at_row(b->row, p->stride_own) + at, p->other + at, p->stride_other,
             a->dim_qk, x);
    for (int32_t c = 0; c < n_values(b); c += VEC)
        vec_store(x + c, p->own != NULL ? start + a->alpha * vec_load(x + c) : start);
    if (p->other_term != NULL) {
        gather(b, b->other, p->other_term, heads, 1, term);
        add_values(b, term, x);
    }
    if (a->bias == NULL) return;
    gather(b, b->edge, a->bias, a->bias_heads, a->bias_heads > 1, term);
    add_values(b, term, x);
}

/* What f gets: x, or slope x where x is negative. */
static vec leaky(const graph_attn_args *a, vec x) {
    return a->slope == 1 ? x : vec_select((vec_int)(x < 0), a->slope * x, x);
}

/* f(y) of SiLU, sigmoid and identity; *slope = f'(y). */
static vec weigh(graph_weight f, vec y, vec *slope) {
    *slope = vec_all(1);
    if (f == GRAPH_IDENTITY) return y;
    vec s = vecs_sigmoid(y);
    *slope = f == GRAPH_SILU ? s + s * (y - y * s) : s - s * s;
    return f == GRAPH_SILU ? y * s : s;
}

/* The sums of a piece, forward.  A softmax's are scaled by exp(-largest). */
typedef struct fwd_state {
    float *out;           /* (H, dim_v) */
    float *largest, *sum; /* (H): of weights */
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
}

/* e^(y - largest), with y in x; a NaN stays one. */
static vec take_softmax(const graph_attn_args *a, const edge_block *b, float *x, float *w,
                        float *largest) {
    int32_t n = b->n * b->heads;
    vec most = vec_all(-INFINITY), sum = vec_all(0);
    for (int32_t c = 0; c < n; c += VEC) {
        vec y = leaky(a, vec_load(x + c));
        vec_store(x + c, y);
        most = larger(most, first_lanes(y, n - c, -INFINITY));
    }
    most = largest_lanes(most, b->heads);
    vec_store_part(largest, most, b->heads);
    most = vec_select((vec_int)(most == -INFINITY), vec_all(0), most);
    for (int32_t c = 0; c < n; c += VEC) {
        vec y = vec_load(x + c);
        y = vec_select((vec_int)(y == -INFINITY), vec_all(0), vecs_exp(y - most));
        y = first_lanes(y, n - c, 0);
        vec_store(w + c, y);
        sum += y;
    }
    return sum;
}

static vec take_weights(const graph_attn_args *a, const edge_block *b, const float *x, float *w) {
    int32_t n = b->n * b->heads;
    vec sum = vec_all(0), slope;
    for (int32_t c = 0; c < n; c += VEC) {
        vec y = first_lanes(weigh(a->f, leaky(a, vec_load(x + c)), &slope), n - c, 0);
        vec_store(w + c, y);
        sum += y;
    }
    return sum;
}

/* The largest w row of each column, and its edge. */
static void largest_row(float w, const float *restrict row, int32_t dim, int32_t place,
                        float *restrict most, int32_t *restrict best) {
    for (int32_t c = 0; c < dim; c++) {
        float x = w * row[c];
        bool is_larger = (x > most[c]) | (isnan(x) & !isnan(most[c]));
        most[c] = is_larger ? x : most[c];
        best[c] = is_larger ? place : best[c];
    }
}

static void largest_rows(const graph_pass *p, const edge_block *b, const float *w,
                         const fwd_state *s) {
    int32_t dim = p->a->dim_v;
    for (int32_t h = 0; h < b->heads; h++)
        for (int32_t e = 0; e < b->n; e++) {
            int64_t at = (int64_t)(b->h + h) * dim;
            fetch(b, e, p->rows + at, p->stride_rows, dim);
            largest_row(w[e * b->heads + h], p->rows + at_row(b->other[e], p->stride_rows) + at,
                        dim, place_of(b, e), s->out + at, s->best + at);
        }
}

static void fwd_block(const graph_pass *p, const edge_block *b, const fwd_state *s) {
    const graph_attn_args *a = p->a;
    bool is_softmax = a->f == GRAPH_SOFTMAX;
    float x[VALUES], w[VALUES];
    take_scores(p, b, x);
    vec sum = is_softmax ? take_softmax(a, b, x, w, s->largest + b->h) : take_weights(a, b, x, w);
    vec_store_part(s->sum + b->h, sum_lanes(sum, b->heads), b->heads);
    if (a->weights != NULL) scatter(p, b, is_softmax ? x : w, a->weights);
    int64_t at = b->h * (int64_t)a->dim_v;
    if (p->rows == NULL) return;
    if (a->sum == GRAPH_MAX)
        largest_rows(p, b, w, s);
    else
        sum_rows(b, w, p->rows + at, p->stride_rows, a->dim_v, s->out + at);
}

/* Adds a later part of the row. */
static void fwd_merge(const graph_pass *p, const fwd_state *to, const fwd_state *from) {
    const graph_attn_args *a = p->a;
    int32_t dim = p->rows != NULL ? a->dim_v : 0;
    for (int32_t h = 0; h < a->n_heads; h++) {
        float old = 1, factor = 1, most = fmaxf(to->largest[h], from->largest[h]);
        if (a->f == GRAPH_SOFTMAX) {
            old = to->largest[h] == -INFINITY ? 0.0f : vec_exp(to->largest[h] - most);
            factor = from->largest[h] == -INFINITY ? 0.0f : vec_exp(from->largest[h] - most);
            to->largest[h] = most;
        }
        to->sum[h] = old * to->sum[h] + factor * from->sum[h];
        for (int64_t c = (int64_t)h * dim; c < (int64_t)(h + 1) * dim; c++) {
            float x = from->out[c];
            if (a->sum != GRAPH_MAX) {
                to->out[c] = old * to->out[c] + factor * x;
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
    int64_t dim = p->rows != NULL ? a->dim_v : 0, n_best = a->n_heads * dim;
    for (int32_t h = 0; h < a->n_heads; h++) {
        float scale = p->scale * factor, sum = s->sum[h];
        if (a->f == GRAPH_SOFTMAX) scale = sum != 0 ? scale / sum : 0.0f;
        for (int64_t c = h * dim; c < (h + 1) * dim; c++)
            out[c] = s->out[c] * scale;
        for (int64_t c = h * dim; c < (h + 1) * dim && a->sum == GRAPH_MAX; c++)
            out[c] = s->best[c] < 0 ? 0.0f : out[c];
        if (a->row_sum == NULL) continue;
        if (a->f == GRAPH_SOFTMAX) sum = sum != 0 ? s->largest[h] + logf(sum) : -INFINITY;
        a->row_sum[at_row(row, a->n_heads) + h] = sum;
    }
    if (a->sum == GRAPH_MAX && a->best != NULL && n_best > 0)
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
    int32_t *best = NULL, heads = heads_of(p->a);
    TRY(state_memory(p, w->worker, &memory, &best));
    for (int64_t i = w->first; i < w->end; i++) {
        const graph_piece *piece = &p->side->pieces[i];
        fwd_state s = fwd_state_at(p, memory, best);
        if (piece->part >= 0)
            s = fwd_state_at(p, p->parts + (int64_t)piece->part * p->n_state,
                             p->best_parts + (int64_t)piece->part * width_of(p));
        clear_state(p, &s);
        for (int32_t h = 0; h < p->a->n_heads; h += heads) {
            edge_block b = block_at(p, piece, piece->begin, EDGES, h);
            fwd_block(p, &b, &s);
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
    return (int64_t)a->n_heads * ((a->v != NULL ? a->dim_v : 0) + 2);
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

/* dw = dout . v, and dv; w is scaled as they are. */
static void bwd_products(const graph_pass *p, const edge_block *b, const float *dout,
                         int64_t stride, const float *w, float *dw, float *dv) {
    const graph_attn_args *a = p->a;
    int64_t at = b->h * (int64_t)a->dim_v;
    const float *v = (const float *)a->v + at_row(b->row, a->stride_v) + at;
    if (wants_dx(a)) dots(b, v, dout, stride, a->dim_v, dw);
    if (dv != NULL) sum_rows(b, w, dout, stride, a->dim_v, dv + at);
}

/* The same with dout where an edge is the largest, else 0. */
static void bwd_largest(const graph_pass *p, const edge_block *b, const float *w, float *dw,
                        float *dv) {
    float masked[EDGES_BACK * HEADS * GRAPH_ATTN_MAX_DIM];
    int32_t row[EDGES_BACK], width = b->heads * p->a->dim_v;
    int64_t all = (int64_t)p->a->n_heads * p->a->dim_v, at = b->h * (int64_t)p->a->dim_v;
    edge_block of_masked = *b;
    of_masked.other = row, of_masked.left = b->n;
    for (int32_t e = 0; e < b->n; e++) {
        const float *dout = p->rows + at_row(b->other[e], p->stride_rows) + at;
        const int32_t *best = p->a->best + at_row(b->other[e], all) + at, place = place_of(b, e);
        fetch(b, e, p->rows + at, p->stride_rows, width);
        fetch(b, e, (const float *)p->a->best + at, all, width);
        row[e] = e;
        for (int32_t c = 0; c < width; c++)
            masked[e * width + c] = best[c] == place ? dout[c] : 0.0f;
    }
    bwd_products(p, &of_masked, masked, width, w, dw, dv);
}

/* The gradients of weights, and dv. */
static void bwd_weights(const graph_pass *p, const edge_block *b, float *dv, const float *w,
                        float *dw) {
    const graph_attn_args *a = p->a;
    float term[VALUES];
    bool is_mean = a->sum == GRAPH_MEAN;
    for (int32_t c = 0; c < n_values(b); c += VEC)
        vec_store(dw + c, vec_all(0));
    for (int32_t c = 0; c < b->n * b->heads && is_mean; c++)
        term[c] = w[c] * mean_factor(a, b->other[c / b->heads]);
    if (a->v != NULL && a->sum == GRAPH_MAX)
        bwd_largest(p, b, w, dw, dv);
    else if (a->v != NULL)
        bwd_products(p, b, p->rows + b->h * (int64_t)a->dim_v, p->stride_rows, is_mean ? term : w,
                     dw, dv);
    for (int32_t c = 0; c < b->n * b->heads && is_mean; c++)
        dw[c] *= mean_factor(a, b->other[c / b->heads]);
    if (a->dweights == NULL) return;
    gather(b, b->edge, a->dweights, a->n_heads, 1, term);
    add_values(b, term, dw);
}

/* w, and f' or, of a softmax, delta. */
static void bwd_scores(const graph_pass *p, const edge_block *b, const float *x, float *w,
                       float *slope) {
    const graph_attn_args *a = p->a;
    bool is_softmax = a->f == GRAPH_SOFTMAX;
    if (is_softmax) gather(b, b->other, a->row_sum, a->n_heads, 1, w);
    if (is_softmax && wants_dx(a)) gather(b, b->other, p->delta, a->n_heads, 1, slope);
    for (int32_t c = 0; c < n_values(b); c += VEC) {
        vec y = leaky(a, vec_load(x + c)), of_y;
        if (!is_softmax) {
            vec_store(w + c, weigh(a->f, y, &of_y));
            vec_store(slope + c, of_y);
            continue;
        }
        vec sum = vec_load(w + c);
        vec_store(w + c, vec_select((vec_int)(sum == -INFINITY), vec_all(0), vecs_exp(y - sum)));
    }
}

static void bwd_block(const graph_pass *p, const edge_block *b, const bwd_state *s) {
    const graph_attn_args *a = p->a;
    float x[VALUES], w[VALUES], dw[VALUES], slope[VALUES];
    vec sum = vec_all(0), alpha = vec_all(a->alpha);
    take_scores(p, b, x);
    bwd_scores(p, b, x, w, slope);
    bwd_weights(p, b, s->dv, w, dw);
    if (!wants_dx(a)) return;
    for (int32_t c = 0; c < n_values(b); c += VEC) {
        vec d = vec_load(dw + c), y = vec_load(slope + c);
        d = a->f == GRAPH_SOFTMAX ? vec_load(w + c) * (d - y) : d * y;
        d = vec_select((vec_int)(vec_load(x + c) < 0), a->slope * d, d);
        d = first_lanes(d, b->n * b->heads - c, 0);
        sum += d;
        vec_store(dw + c, d);
        vec_store(x + c, alpha * d);
    }
    sum = sum_lanes(sum, b->heads);
    for (int32_t h = 0; h < b->heads; h++)
        s->dright[b->h + h] += sum[h];
    if (p->dx != NULL) scatter(p, b, dw, p->dx);
    int64_t at = b->h * (int64_t)a->dim_qk;
    if (s->dk != NULL) sum_rows(b, x, p->other + at, p->stride_other, a->dim_qk, s->dk + at);
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
    int32_t *unused, heads = heads_of(p->a);
    TRY(state_memory(p, w->worker, &memory, &unused));
    for (int64_t i = w->first; i < w->end; i++) {
        const graph_piece *piece = &p->side->pieces[i];
        float *to = piece->part < 0 ? memory : p->parts + (int64_t)piece->part * p->n_state;
        bwd_state s = bwd_state_at(p->a, to);
        memset(to, 0, sizeof *to * (size_t)p->n_state);
        for (int32_t h = 0; h < p->a->n_heads; h += heads)
            for (int32_t e = piece->begin; e < piece->end; e += EDGES_BACK) {
                edge_block b = block_at(p, piece, e, EDGES_BACK, h);
                bwd_block(p, &b, &s);
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

static float dot(const float *x, const float *y, int32_t dim) {
    vec lanes = vec_all(0);
    int32_t d = 0;
    for (; d + VEC <= dim; d += VEC)
        lanes += vec_load(x + d) * vec_load(y + d);
    float sum = sum_lanes(lanes, 1)[0];
    for (; d < dim; d++)
        sum += x[d] * y[d];
    return sum;
}

/* delta_i = the sum over j of w_ij dw_ij, which is out_i . dout_i and what dweights adds. */
static status delta_chunk(const cpu_rows *w) {
    const graph_pass *p = w->ctx;
    const graph_attn_args *a = p->a;
    const int32_t *begin = a->g.rows.begin;
    for (int64_t i = w->first; i < w->end; i++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            int64_t at = i * a->stride_out + (int64_t)h * a->dim_v;
            double delta = a->v != NULL ? (double)dot((const float *)a->out + at,
                                                      (const float *)a->dout + at, a->dim_v)
                                        : 0;
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
