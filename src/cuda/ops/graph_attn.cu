/* Attention on a graph (contract: graph_attn_args in ops/ops.h).
 *
 * A warp owns a piece of a row, GRAPH_PIECE edges at most, for as many heads as fit: a lane has a
 * pack of 16 bytes of a head's row (two of wide float32 rows), the lanes of one edge have its heads
 * side by side, and the rest of the warp takes other edges, U of each in flight at a time.
 * Groups of lanes have a sum (and a softmax a maximum) of their own until the piece ends; the parts
 * of a long row go to scratch memory in float32 and two further kernels combine them in order.
 * Backward is the same over columns, which keeps the gradients of scores; dq and dleft are then a
 * forward pass with them as weights.  No atomic additions.  Bound by the bytes of gathered rows. */
#include "cuda/core/kernel.cuh"
#include "ops/graph.h"

enum { GRAPH_WARPS = 4, COMBINE_ROWS = 8, WHOLE_WARP = 32 };

/* What a kernel is for: scores without q . k, whose rows alone are in flight; any sum; a maximum.
 */
enum graph_kind { KIND_TERMS, KIND_DOTS, KIND_MAX };

/* "Own" is of the row that a piece belongs to, "other" of an edge's end (cpu/graph_attn.c). */
typedef struct graph_job {
    graph_attn_args a;
    graph_side side;
    const void *own, *other; /* q and k, or k and q; or NULL */
    int64_t stride_own, stride_other;
    const void *rows; /* gathered and summed: v, dout or k; or NULL */
    int64_t stride_rows;
    const float *own_term, *other_term;
    float scale;
    int32_t lanes, heads; /* of a head and an edge; heads side by side */
    int64_t n_state;
    float *parts, *stats; /* (n_parts, n_state), (n_parts, H, 2) */
    int32_t *best_parts;
    float *delta, *dx;
} graph_job;

/* What a lane does. */
typedef struct graph_lane {
    int32_t first, head, group, groups; /* its first pack, its head, which edges */
    bool is_on, leads;                  /* has a head; writes what a head has once */
} graph_lane;

__device__ static inline graph_lane graph_lane_of(const graph_job &job) {
    int lane = threadIdx.x, edge_lanes = job.lanes * job.heads;
    graph_lane l;
    l.first = lane % job.lanes;
    l.head = (int32_t)blockIdx.y * job.heads + lane / job.lanes % job.heads;
    l.group = lane / edge_lanes;
    l.groups = WHOLE_WARP / edge_lanes;
    l.is_on = l.head < job.a.n_heads;
    l.leads = l.is_on && l.first == 0;
    return l;
}

__device__ static inline float sum_lanes(float x, int lanes) {
    for (int o = lanes / 2; o > 0; o /= 2)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}

template <typename T, bool PACKED> struct graph_pack {
    static constexpr int V = PACKED ? 16 / (int)sizeof(T) : 4;
};

/* The lane's packs of one head of a row. */
template <typename T, bool PACKED, int NP>
__device__ static inline void load_head(columns<T, graph_pack<T, PACKED>::V> (&to)[NP],
                                        const void *rows, int64_t row, int64_t stride, int32_t dim,
                                        const graph_lane &l, int32_t lanes) {
    constexpr int V = graph_pack<T, PACKED>::V;
    const T *from = (const T *)rows + row * stride + (int64_t)l.head * dim;
#pragma unroll
    for (int p = 0; p < NP; p++)
        to[p] = load_columns<PACKED, V>(from, (l.first + p * lanes) * V, dim);
}

template <typename T, bool PACKED, int NP>
__device__ static inline void store_head(void *rows, int64_t row, int64_t stride, int32_t dim,
                                         const graph_lane &l, int32_t lanes, const float *x) {
    constexpr int V = graph_pack<T, PACKED>::V;
    T *to = (T *)rows + row * stride + (int64_t)l.head * dim;
#pragma unroll
    for (int p = 0; p < NP; p++) {
        float y[V];
#pragma unroll
        for (int j = 0; j < V; j++)
            y[j] = x[p * V + j];
        store_columns<PACKED, V>(to, (l.first + p * lanes) * V, dim, y);
    }
}

/* The lane's floats of a head of a part. */
template <int NP, int V, typename N>
__device__ static inline void store_part(N *to, int32_t dim, const graph_lane &l, int32_t lanes,
                                         const N *x) {
#pragma unroll
    for (int p = 0; p < NP; p++)
#pragma unroll
        for (int j = 0; j < V; j++) {
            int c = (l.first + p * lanes) * V + j;
            if (c < dim) to[c] = x[p * V + j];
        }
}

template <typename T, int V, int NP>
__device__ static inline float dot_packs(const float (&own)[NP * V], const columns<T, V> (&x)[NP]) {
    float sum = 0;
#pragma unroll
    for (int p = 0; p < NP; p++)
#pragma unroll
        for (int j = 0; j < V; j++)
            sum += own[p * V + j] * column(x[p], j);
    return sum;
}

template <typename T, int V, int NP>
__device__ static inline void widen(float (&to)[NP * V], const columns<T, V> (&x)[NP]) {
#pragma unroll
    for (int p = 0; p < NP; p++)
#pragma unroll
        for (int j = 0; j < V; j++)
            to[p * V + j] = column(x[p], j);
}

/* The terms of x without q . k; `place` is the edge's number in the order of rows. */
__device__ static inline float other_terms(const graph_job &job, const graph_lane &l, int32_t other,
                                           int64_t place) {
    const graph_attn_args &a = job.a;
    float x = 0;
    if (job.other_term != NULL) x = job.other_term[(int64_t)other * a.n_heads + l.head];
    if (a.bias != NULL) x += a.bias[place * a.bias_heads + (a.bias_heads > 1 ? l.head : 0)];
    return x;
}

__device__ static inline float own_terms(const graph_job &job, const graph_lane &l, int32_t own) {
    const graph_attn_args &a = job.a;
    if (a.q == NULL && a.left == NULL && a.right == NULL && a.bias == NULL) return 1;
    return job.own_term != NULL && l.is_on ? job.own_term[(int64_t)own * a.n_heads + l.head] : 0;
}

__device__ static inline float graph_sigmoid(float y) {
    return 1 / (1 + expf(-y));
}

__device__ static inline float weight_of(graph_weight f, float y) {
    return f == GRAPH_SILU ? y * graph_sigmoid(y) : f == GRAPH_SIGMOID ? graph_sigmoid(y) : y;
}

__device__ static inline float mean_factor(const graph_attn_args &a, int32_t row) {
    if (a.sum != GRAPH_MEAN) return 1;
    int32_t n = a.g.rows.begin[row + 1] - a.g.rows.begin[row];
    return n > 0 ? 1 / (float)n : 1;
}

/* exp(x - largest), zero where nothing is known yet; a NaN stays one. */
__device__ static inline float exp_below(float x, float largest) {
    return x == -INFINITY ? 0 : expf(x - largest);
}

__device__ static inline float larger(float x, float y) {
    return y > x || y != y ? y : x;
}

__device__ static inline bool is_better(float x, int32_t edge, float than, int32_t than_edge) {
    if (edge < 0) return false;
    return x > than || (x == than && edge < than_edge) || (x != x && than == than);
}

/* Of edge u of the U that a lane has in flight, from e0 on. */
__device__ static inline int32_t edge_of(const graph_lane &l, int32_t e0, int u) {
    return e0 + u * l.groups + l.group;
}

/* The far ends of a lane's edges, read while those before them are computed; -1: no edge. */
template <int U>
__device__ static inline void read_ends(const graph_job &job, const graph_lane &l, int32_t e0,
                                        int32_t end, int32_t (&other)[U]) {
#pragma unroll
    for (int u = 0; u < U; u++)
        other[u] = l.is_on && edge_of(l, e0, u) < end ? job.side.other[edge_of(l, e0, u)] : -1;
}

/* What both passes read of their edges: rows of k or q, rows of v or dout, terms. */
template <typename T, bool PACKED, int NP, int U> struct graph_flight {
    columns<T, graph_pack<T, PACKED>::V> score[U][NP], row[U][NP];
    float term[U];
    int32_t other[U], place[U]; /* place: the edge's number in the order of rows */
};

/* Takes the edges from e0 on, whose far ends are in `next`, and reads those of the edges after. */
template <graph_kind KIND, typename T, bool PACKED, int NP, int U>
__device__ static inline void read_edges(const graph_job &job, const graph_lane &l, int32_t e0,
                                         int32_t end, int32_t (&next)[U],
                                         graph_flight<T, PACKED, NP, U> &to) {
    const graph_attn_args &a = job.a;
    to = {};
#pragma unroll
    for (int u = 0; u < U; u++) {
        int32_t other = to.other[u] = next[u], e = to.place[u] = edge_of(l, e0, u);
        if (other < 0) continue;
        if (job.side.edge != NULL) to.place[u] = job.side.edge[e];
        if (KIND != KIND_TERMS && job.own != NULL)
            load_head<T, PACKED>(to.score[u], job.other, other, job.stride_other, a.dim_qk, l,
                                 job.lanes);
        if (job.rows != NULL)
            load_head<T, PACKED>(to.row[u], job.rows, other, job.stride_rows, a.dim_v, l,
                                 job.lanes);
        to.term[u] = other_terms(job, l, other, to.place[u]);
    }
    read_ends(job, l, e0 + U * l.groups, end, next);
}

/* x of edge u; all lanes of the warp come here. */
template <graph_kind KIND, typename T, bool PACKED, int NP, int U, int N>
__device__ static inline float score_of(const graph_job &job, float start, const float (&own)[N],
                                        const graph_flight<T, PACKED, NP, U> &f, int u) {
    if (KIND == KIND_TERMS || job.own == NULL) return start + f.term[u];
    constexpr int V = graph_pack<T, PACKED>::V;
    return start + job.a.alpha * sum_lanes(dot_packs<T, V, NP>(own, f.score[u]), job.lanes) +
           f.term[u];
}

/* Of a multiprocessor: as many as leave registers enough. */
template <typename T> static constexpr int fwd_blocks(graph_kind kind) {
    return kind == KIND_TERMS ? (sizeof(T) == 4 ? 8 : 7) : kind == KIND_MAX ? 4 : 5;
}

template <typename T, bool PACKED, int NP, graph_kind KIND>
static __global__ void __launch_bounds__(32 * GRAPH_WARPS, fwd_blocks<T>(KIND))
    graph_attn_fwd_any_kernel(const __grid_constant__ graph_job job) {
    constexpr int V = graph_pack<T, PACKED>::V, N = NP * V;
    constexpr int U = NP == 1 ? 4 : 2;
    constexpr bool IS_MAX = KIND == KIND_MAX;
    const graph_attn_args &a = job.a;
    const graph_lane l = graph_lane_of(job);
    int64_t at = (int64_t)blockIdx.x * GRAPH_WARPS + threadIdx.y;
    if (at >= job.side.n_pieces) return;
    const graph_piece piece = job.side.pieces[at];
    const bool is_softmax = a.f == GRAPH_SOFTMAX, has_v = job.rows != NULL;
    float own[N] = {}, sums[N], largest = -INFINITY, sum = 0;
    int32_t best[IS_MAX ? N : 1];
#pragma unroll
    for (int j = 0; j < N; j++)
        sums[j] = IS_MAX ? -INFINITY : 0;
#pragma unroll
    for (int j = 0; j < (IS_MAX ? N : 1); j++)
        best[j] = -1;
    if (KIND != KIND_TERMS && job.own != NULL && l.is_on) {
        columns<T, V> q[NP];
        load_head<T, PACKED>(q, job.own, piece.row, job.stride_own, a.dim_qk, l, job.lanes);
        widen(own, q);
    }
    const float start = own_terms(job, l, piece.row);
    int32_t next[U];
    read_ends(job, l, piece.begin, piece.end, next);
    for (int32_t e0 = piece.begin; e0 < piece.end; e0 += U * l.groups) {
        graph_flight<T, PACKED, NP, U> f;
        float y[U], w[U];
        read_edges<KIND>(job, l, e0, piece.end, next, f);
        float now = largest;
#pragma unroll
        for (int u = 0; u < U; u++) {
            bool is_edge = f.other[u] >= 0;
            float x = score_of<KIND>(job, start, own, f, u);
            y[u] = x < 0 ? a.slope * x : x;
            w[u] = !is_edge ? 0 : is_softmax ? y[u] : weight_of(a.f, y[u]);
            if (is_edge) now = larger(now, y[u]);
            if (a.weights != NULL && is_edge && l.leads)
                a.weights[(int64_t)f.place[u] * a.n_heads + l.head] = w[u];
        }
        if (is_softmax) {
            float factor = exp_below(largest, now);
            largest = now;
            sum *= factor;
#pragma unroll
            for (int j = 0; j < N; j++)
                sums[j] *= factor;
#pragma unroll
            for (int u = 0; u < U; u++)
                w[u] = f.other[u] >= 0 ? exp_below(y[u], largest) : 0;
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            sum += w[u];
#pragma unroll
            for (int j = 0; j < N; j++) {
                float x = w[u] * column(f.row[u][j / V], j % V);
                if constexpr (!IS_MAX) {
                    sums[j] += x;
                } else if (f.other[u] >= 0 && (x > sums[j] || (x != x && sums[j] == sums[j]))) {
                    sums[j] = x;
                    best[j] = f.place[u];
                }
            }
        }
    }
    for (int o = job.lanes * job.heads; o < WHOLE_WARP; o *= 2) {
        float other_largest = __shfl_xor_sync(~0u, largest, o), mine = 1, theirs = 1;
        if (is_softmax) {
            float now = larger(largest, other_largest);
            mine = exp_below(largest, now), theirs = exp_below(other_largest, now);
            largest = now;
        }
        sum = mine * sum + theirs * __shfl_xor_sync(~0u, sum, o);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float x = __shfl_xor_sync(~0u, sums[j], o);
            if constexpr (IS_MAX) {
                int32_t edge = __shfl_xor_sync(~0u, best[j], o);
                if (is_better(x, edge, sums[j], best[j])) sums[j] = x, best[j] = edge;
            } else {
                sums[j] = mine * sums[j] + theirs * x;
            }
        }
    }
    if (l.group != 0 || !l.is_on) return;
    if (piece.part >= 0) {
        int64_t to = (int64_t)piece.part * a.n_heads + l.head;
        if (has_v) store_part<NP, V>(job.parts + to * a.dim_v, a.dim_v, l, job.lanes, sums);
        if constexpr (IS_MAX)
            if (has_v)
                store_part<NP, V>(job.best_parts + to * a.dim_v, a.dim_v, l, job.lanes, best);
        if (l.leads) job.stats[2 * to] = largest, job.stats[2 * to + 1] = sum;
        return;
    }
    float scale = job.scale * mean_factor(a, piece.row);
    int64_t to = (int64_t)piece.row * a.n_heads + l.head;
    if (is_softmax) {
        scale = largest == -INFINITY ? 0 : scale / sum;
        sum = largest == -INFINITY ? largest : largest + logf(sum);
    }
    if (a.row_sum != NULL && l.leads) a.row_sum[to] = sum;
    if (!has_v) return;
#pragma unroll
    for (int j = 0; j < N; j++) {
        sums[j] *= scale;
        if constexpr (IS_MAX)
            if (best[j] < 0) sums[j] = 0;
    }
    store_head<T, PACKED, NP>(a.out, piece.row, a.stride_out, a.dim_v, l, job.lanes, sums);
    if constexpr (IS_MAX)
        if (a.best != NULL) store_part<NP, V>(a.best + to * a.dim_v, a.dim_v, l, job.lanes, best);
}

/* A warp has the statistics of a long row and head: row_sum, and what a softmax multiplies each
 * part by, in place of its sum. */
static __global__ void graph_attn_stats_any_kernel(const __grid_constant__ graph_job job) {
    const graph_attn_args &a = job.a;
    const graph_split split = job.side.splits[blockIdx.x];
    int32_t head = (int32_t)blockIdx.y, lane = threadIdx.x;
    float *stats = job.stats + 2 * ((int64_t)split.part * a.n_heads + head);
    const int64_t step = 2 * (int64_t)a.n_heads;
    float largest = -INFINITY, sum = 0, scale = 0;
    const bool is_softmax = a.f == GRAPH_SOFTMAX;
    for (int32_t p = lane; p < split.n_parts; p += WHOLE_WARP)
        largest = larger(largest, stats[p * step]);
    for (int o = WHOLE_WARP / 2; o > 0; o /= 2)
        largest = larger(largest, __shfl_xor_sync(~0u, largest, o));
    for (int32_t p = lane; p < split.n_parts; p += WHOLE_WARP)
        sum += stats[p * step + 1] * (is_softmax ? exp_below(stats[p * step], largest) : 1);
    sum = sum_lanes(sum, WHOLE_WARP);
    if (largest != -INFINITY) scale = job.scale * mean_factor(a, split.row) / sum;
    for (int32_t p = lane; p < split.n_parts && is_softmax; p += WHOLE_WARP)
        stats[p * step + 1] = scale * exp_below(stats[p * step], largest);
    if (is_softmax) sum = largest == -INFINITY ? largest : largest + logf(sum);
    if (lane == 0 && a.row_sum != NULL) a.row_sum[(int64_t)split.row * a.n_heads + head] = sum;
}

/* Sums of n_state columns to their place: out, or dk, dv and dright one after the other. */
template <typename T>
__device__ static inline void store_state(const graph_job &job, int32_t row, int64_t c, float x,
                                          bool is_bwd) {
    const graph_attn_args &a = job.a;
    int64_t n_k = a.dk != NULL ? (int64_t)a.n_heads * a.dim_qk : 0;
    int64_t n_v = a.dv != NULL ? (int64_t)a.n_heads * a.dim_v : 0;
    if (!is_bwd)
        ((T *)a.out)[row * a.stride_out + c] = from_float<T>(x);
    else if (c < n_k)
        ((T *)a.dk)[row * a.stride_k + c] = from_float<T>(x);
    else if (c < n_k + n_v)
        ((T *)a.dv)[row * a.stride_v + c - n_k] = from_float<T>(x);
    else if (a.dright != NULL)
        a.dright[(int64_t)row * a.n_heads + c - n_k - n_v] = x;
}

/* A block has a long row and 32 columns of its parts at a time. */
template <typename T, bool IS_BWD>
static __global__ void graph_attn_parts_any_kernel(const __grid_constant__ graph_job job) {
    __shared__ float sums[COMBINE_ROWS][WHOLE_WARP];
    __shared__ int32_t edges[COMBINE_ROWS][WHOLE_WARP];
    const graph_attn_args &a = job.a;
    const graph_split split = job.side.splits[blockIdx.x];
    const bool is_max = !IS_BWD && a.sum == GRAPH_MAX, is_softmax = a.f == GRAPH_SOFTMAX;
    const float scale = IS_BWD ? 1 : job.scale * mean_factor(a, split.row);
    const int x = threadIdx.x, y = threadIdx.y;
    for (int64_t c0 = (int64_t)blockIdx.y * WHOLE_WARP; c0 < job.n_state;
         c0 += (int64_t)gridDim.y * WHOLE_WARP) {
        int64_t c = c0 + x, head = IS_BWD ? 0 : c / a.dim_v;
        float sum = is_max ? -INFINITY : 0;
        int32_t best = -1;
        for (int32_t p = split.part + y; p < split.part + split.n_parts && c < job.n_state;
             p += COMBINE_ROWS) {
            float of_part = job.parts[p * job.n_state + c];
            float factor = scale;
            if (!IS_BWD && is_softmax) factor = job.stats[2 * ((int64_t)p * a.n_heads + head) + 1];
            int32_t edge = is_max ? job.best_parts[p * job.n_state + c] : -1;
            if (!is_max)
                sum += factor * of_part;
            else if (is_better(of_part, edge, sum, best))
                sum = of_part, best = edge;
        }
        sums[y][x] = sum, edges[y][x] = best;
        __syncthreads();
        for (int k = 1; k < COMBINE_ROWS && y == 0; k++) {
            if (!is_max)
                sum += sums[k][x];
            else if (is_better(sums[k][x], edges[k][x], sum, best))
                sum = sums[k][x], best = edges[k][x];
        }
        if (y == 0 && c < job.n_state) {
            if (is_max && best < 0) sum = 0;
            store_state<T>(job, split.row, c, sum, IS_BWD);
            if (is_max && a.best != NULL) a.best[split.row * job.n_state + c] = best;
        }
        __syncthreads();
    }
}

/* The weights of a softmax from the scores in their place: a warp a piece. */
static __global__ void graph_attn_normalise_any_kernel(const __grid_constant__ graph_attn_args a) {
    int64_t at = (int64_t)blockIdx.x * GRAPH_WARPS + threadIdx.y;
    if (at >= a.g.rows.n_pieces) return;
    const graph_piece piece = a.g.rows.pieces[at];
    int64_t end = (int64_t)piece.end * a.n_heads;
    for (int64_t i = (int64_t)piece.begin * a.n_heads + threadIdx.x; i < end; i += WHOLE_WARP) {
        float sum = a.row_sum[(int64_t)piece.row * a.n_heads + i % a.n_heads];
        a.weights[i] = sum == -INFINITY ? 0 : expf(a.weights[i] - sum);
    }
}

/* delta_i = out_i . dout_i + what dweights adds: the lanes of a head have a row. */
template <typename T>
static __global__ void graph_attn_delta_any_kernel(const __grid_constant__ graph_job job) {
    const graph_attn_args &a = job.a;
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / job.lanes;
    int32_t lane = threadIdx.x % job.lanes;
    bool is_on = i < (int64_t)a.g.rows.n * a.n_heads;
    int64_t row = i / a.n_heads, head = i % a.n_heads, at = row * a.stride_out + head * a.dim_v;
    float sum = 0;
    for (int32_t d = lane; d < a.dim_v && a.v != NULL && is_on; d += job.lanes)
        sum += to_float(((const T *)a.out)[at + d]) * to_float(((const T *)a.dout)[at + d]);
    if (a.dweights != NULL && is_on)
        for (int64_t e = a.g.rows.begin[row] + lane; e < a.g.rows.begin[row + 1]; e += job.lanes)
            sum += a.weights[e * a.n_heads + head] * a.dweights[e * a.n_heads + head];
    sum = sum_lanes(sum, job.lanes);
    if (is_on && lane == 0) job.delta[i] = sum;
}

__device__ static inline float weight_slope(graph_weight f, float y) {
    float s = graph_sigmoid(y);
    return f == GRAPH_SILU ? s + s * (y - y * s) : f == GRAPH_SIGMOID ? s - s * s : 1;
}

template <typename T, bool PACKED, int NP, graph_kind KIND>
static __global__ void __launch_bounds__(32 * GRAPH_WARPS, NP == 1 ? 5 : 4)
    graph_attn_bwd_any_kernel(const __grid_constant__ graph_job job) {
    constexpr int V = graph_pack<T, PACKED>::V, N = NP * V, U = KIND == KIND_TERMS ? 4 : 2;
    constexpr bool IS_MAX = KIND == KIND_MAX;
    const graph_attn_args &a = job.a;
    const graph_lane l = graph_lane_of(job);
    int64_t at = (int64_t)blockIdx.x * GRAPH_WARPS + threadIdx.y;
    if (at >= job.side.n_pieces) return;
    const graph_piece piece = job.side.pieces[at];
    const bool is_softmax = a.f == GRAPH_SOFTMAX, has_v = job.rows != NULL;
    const bool has_q = KIND != KIND_TERMS && job.own != NULL;
    float k[N] = {}, v[N] = {}, dk[N] = {}, dv[N] = {}, dright = 0;
    columns<T, V> own[NP];
    if (has_q && l.is_on) {
        load_head<T, PACKED>(own, job.own, piece.row, job.stride_own, a.dim_qk, l, job.lanes);
        widen(k, own);
    }
    if (has_v && l.is_on) {
        load_head<T, PACKED>(own, a.v, piece.row, a.stride_v, a.dim_v, l, job.lanes);
        widen(v, own);
    }
    const float start = own_terms(job, l, piece.row);
    int32_t next[U];
    read_ends(job, l, piece.begin, piece.end, next);
    for (int32_t e0 = piece.begin; e0 < piece.end; e0 += U * l.groups) {
        graph_flight<T, PACKED, NP, U> f;
        read_edges<KIND>(job, l, e0, piece.end, next, f);
#pragma unroll
        for (int u = 0; u < U; u++) {
            int64_t of_edge = (int64_t)f.place[u] * a.n_heads + l.head;
            int64_t of_row = (int64_t)f.other[u] * a.n_heads + l.head;
            float x = score_of<KIND>(job, start, k, f, u), w, dw = 0, scale = 1, g[N];
            widen(g, f.row[u]);
            if constexpr (IS_MAX) {
#pragma unroll
                for (int j = 0; j < N; j++) {
                    int c = (l.first + j / V * job.lanes) * V + j % V;
                    bool counts = f.other[u] >= 0 && has_v && c < a.dim_v &&
                                  a.best[of_row * a.dim_v + c] == f.place[u];
                    g[j] = counts ? g[j] : 0;
                }
            }
            if (has_v) {
#pragma unroll
                for (int j = 0; j < N; j++)
                    dw += v[j] * g[j];
                dw = sum_lanes(dw, job.lanes);
            }
            if (f.other[u] < 0) continue;
            float y = x < 0 ? a.slope * x : x, dx;
            scale = mean_factor(a, f.other[u]);
            dw *= scale;
            if (a.dweights != NULL) dw += a.dweights[of_edge];
            if (is_softmax) {
                float sum = a.row_sum[of_row];
                w = sum == -INFINITY ? 0 : expf(y - sum);
                dx = job.delta != NULL ? w * (dw - job.delta[of_row]) : 0;
            } else {
                w = weight_of(a.f, y);
                dx = dw * weight_slope(a.f, y);
            }
            dx = x < 0 ? a.slope * dx : dx;
            dright += dx;
            if (job.dx != NULL && l.leads) job.dx[of_edge] = dx;
#pragma unroll
            for (int j = 0; j < N; j++) {
                if (KIND != KIND_TERMS) dk[j] += a.alpha * dx * column(f.score[u][j / V], j % V);
                dv[j] += w * scale * g[j];
            }
        }
    }
    for (int o = job.lanes * job.heads; o < WHOLE_WARP; o *= 2) {
        dright += __shfl_xor_sync(~0u, dright, o);
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (KIND != KIND_TERMS) dk[j] += __shfl_xor_sync(~0u, dk[j], o);
            dv[j] += __shfl_xor_sync(~0u, dv[j], o);
        }
    }
    if (l.group != 0 || !l.is_on) return;
    if (piece.part < 0) {
        if (a.dk != NULL)
            store_head<T, PACKED, NP>(a.dk, piece.row, a.stride_k, a.dim_qk, l, job.lanes, dk);
        if (a.dv != NULL)
            store_head<T, PACKED, NP>(a.dv, piece.row, a.stride_v, a.dim_v, l, job.lanes, dv);
        if (a.dright != NULL && l.leads) a.dright[(int64_t)piece.row * a.n_heads + l.head] = dright;
        return;
    }
    float *to = job.parts + piece.part * job.n_state;
    if (a.dk != NULL) {
        store_part<NP, V>(to + (int64_t)l.head * a.dim_qk, a.dim_qk, l, job.lanes, dk);
        to += (int64_t)a.n_heads * a.dim_qk;
    }
    if (a.dv != NULL) {
        store_part<NP, V>(to + (int64_t)l.head * a.dim_v, a.dim_v, l, job.lanes, dv);
        to += (int64_t)a.n_heads * a.dim_v;
    }
    if (l.leads) to[l.head] = dright;
}

/* dbias of all heads together. */
static __global__ void graph_attn_share_any_kernel(const float *dx, int64_t n, int32_t heads,
                                                   float *dbias) {
    int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int32_t h = 0; h < heads && e < n; h++)
        sum += dx[e * heads + h];
    if (e < n) dbias[e] = sum;
}

static int32_t power_of_two(int32_t n, int32_t most) {
    int32_t p = 1;
    while (p < n && p < most)
        p *= 2;
    return p;
}

/* Whether all rows can be read in packs of 16 bytes. */
static bool is_packed(const backend *be, const graph_attn_args *a) {
    const void *of_q[] = {a->q, a->k, a->dq, a->dk}, *of_v[] = {a->v, a->out, a->dout, a->dv};
    const int64_t strides_q[] = {a->stride_q, a->stride_k, a->stride_q, a->stride_k};
    const int64_t strides_v[] = {a->stride_v, a->stride_out, a->stride_out, a->stride_v};
    size_t size = act_bytes(be->act);
    int n = 16 / (int)size;
    for (int i = 0; i < 4; i++) {
        if (of_q[i] != NULL && !can_pack(of_q[i], strides_q[i], a->dim_qk, size, n)) return false;
        if (of_v[i] != NULL && !can_pack(of_v[i], strides_v[i], a->dim_v, size, n)) return false;
    }
    return true;
}

typedef struct graph_shape {
    bool is_packed;
    int packs; /* of a lane */
} graph_shape;

static graph_shape shape_of(const backend *be, graph_job *job) {
    const graph_attn_args *a = &job->a;
    graph_shape s = {is_packed(be, a), 1};
    int v = s.is_packed ? 16 / (int)act_bytes(be->act) : 4;
    int32_t qk = a->q != NULL ? a->dim_qk : 0, width = a->v != NULL ? a->dim_v : 0;
    int32_t packs = (int32_t)cuda_div_up(qk > width ? qk : width, v);
    if (packs > WHOLE_WARP || !s.is_packed) s.packs = 2;
    job->lanes = power_of_two((int32_t)cuda_div_up(packs, s.packs), WHOLE_WARP);
    job->heads = power_of_two(a->n_heads, WHOLE_WARP / job->lanes);
    return s;
}

/* Launches KERNEL<T, packed, packs, kind> on all pieces. */
#define GRAPH_LAUNCH(KERNEL, what)                                                                 \
    do {                                                                                           \
        bool is_max = job->a.sum == GRAPH_MAX && job->a.v != NULL, has_q = job->a.q != NULL;       \
        graph_shape s = shape_of(be, job);                                                         \
        dim3 blocks((unsigned)cuda_div_up(job->side.n_pieces, GRAPH_WARPS),                        \
                    (unsigned)cuda_div_up(job->a.n_heads, job->heads));                            \
        dim3 threads(WHOLE_WARP, GRAPH_WARPS);                                                     \
        if (job->side.n_pieces == 0) return OK;                                                    \
        auto kernel = is_max ? KERNEL<T, false, 2, KIND_MAX> : KERNEL<T, false, 2, KIND_DOTS>;     \
        if (s.is_packed)                                                                           \
            kernel = is_max  ? KERNEL<T, true, 1, KIND_MAX>                                        \
                     : has_q ? KERNEL<T, true, 1, KIND_DOTS>                                       \
                             : KERNEL<T, true, 1, KIND_TERMS>;                                     \
        if constexpr (sizeof(T) == 4)                                                              \
            if (s.is_packed && s.packs == 2)                                                       \
                kernel = is_max  ? KERNEL<T, true, 2, KIND_MAX>                                    \
                         : has_q ? KERNEL<T, true, 2, KIND_DOTS>                                   \
                                 : KERNEL<T, true, 2, KIND_TERMS>;                                 \
        return cuda_launch(be, what, kernel, blocks, threads, 0, *job);                            \
    } while (0)

template <typename T> static status launch_fwd(backend *be, graph_job *job) {
    GRAPH_LAUNCH(graph_attn_fwd_any_kernel, "the graph attention");
}

template <typename T> static status launch_bwd(backend *be, graph_job *job) {
    GRAPH_LAUNCH(graph_attn_bwd_any_kernel, "the graph attention's gradients");
}

template <typename T, bool IS_BWD> static status combine(backend *be, const graph_job *job) {
    int64_t n = cuda_div_up(job->n_state, WHOLE_WARP);
    dim3 blocks((unsigned)job->side.n_splits, (unsigned)(n < 65535 ? n : 65535));
    if (job->side.n_splits == 0 || n == 0) return OK;
    return cuda_launch(be, "the graph attention's long rows",
                       graph_attn_parts_any_kernel<T, IS_BWD>, blocks,
                       dim3(WHOLE_WARP, COMBINE_ROWS), 0, *job);
}

/* Cuts the parts of a forward pass from scratch memory. */
static void cut_fwd(char **at, graph_job *job) {
    const graph_attn_args *a = &job->a;
    size_t n_parts = (size_t)a->g.rows.n_parts;
    job->n_state = a->v != NULL ? (int64_t)a->n_heads * a->dim_v : 0;
    cuda_cut(at, n_parts * (size_t)job->n_state, &job->parts);
    cuda_cut(at, n_parts * (size_t)a->n_heads * 2, &job->stats);
    cuda_cut(at, a->sum == GRAPH_MAX ? n_parts * (size_t)job->n_state : 0, &job->best_parts);
}

static graph_job fwd_job(const graph_attn_args *a, float scale) {
    graph_job job = {};
    job.a = *a;
    job.side = a->g.rows;
    job.own = a->q, job.stride_own = a->stride_q;
    job.other = a->k, job.stride_other = a->stride_k;
    job.rows = a->v, job.stride_rows = a->stride_v;
    job.own_term = a->left, job.other_term = a->right;
    job.scale = scale;
    return job;
}

static status run_fwd(backend *be, graph_job *job) {
    CUDA_WITH_ACT(be, TRY(launch_fwd<T>(be, job)));
    if (job->side.n_splits == 0) return OK;
    if (job->a.f == GRAPH_SOFTMAX || job->a.row_sum != NULL)
        TRY(cuda_launch(be, "the graph attention's long rows", graph_attn_stats_any_kernel,
                        dim3((unsigned)job->side.n_splits, (unsigned)job->a.n_heads), WHOLE_WARP, 0,
                        *job));
    CUDA_WITH_ACT(be, return combine<T, false>(be, job));
}

static status forward(backend *be, const graph_attn_args *a) {
    graph_job job = fwd_job(a, 1);
    bool normalises = a->weights != NULL && a->f == GRAPH_SOFTMAX;
    size_t sums = normalises && a->row_sum == NULL ? (size_t)a->g.rows.n * (size_t)a->n_heads : 0;
    char *memory = NULL;
    float *row_sum = NULL;
    for (int pass = 0; pass < 2; pass++) {
        char *at = memory;
        cut_fwd(&at, &job);
        cuda_cut(&at, sums, &row_sum);
        if (pass == 0) TRY(cuda_scratch(be, (size_t)at, (void **)&memory));
    }
    if (sums > 0) job.a.row_sum = row_sum;
    TRY(run_fwd(be, &job));
    if (!normalises || a->g.rows.n_pieces == 0) return OK;
    return cuda_launch(be, "the graph attention's weights", graph_attn_normalise_any_kernel,
                       dim3((unsigned)cuda_div_up(a->g.rows.n_pieces, GRAPH_WARPS)),
                       dim3(WHOLE_WARP, GRAPH_WARPS), 0, job.a);
}

status cuda_graph_attn_fwd(backend *be, const graph_attn_args *a) {
    TRY(graph_attn_args_check(a, false));
    TRY(cuda_enter(be));
    return forward(be, a);
}

/* dv alone, with weights that need nothing else of a row: the forward pass of the graph whose rows
 * are the columns. */
static graph_attn_args across(const graph_attn_args *a) {
    graph_attn_args by_columns = *a;
    by_columns.g.rows = a->g.columns, by_columns.g.columns = a->g.rows;
    by_columns.q = a->k, by_columns.stride_q = a->stride_k;
    by_columns.k = a->q, by_columns.stride_k = a->stride_q;
    by_columns.left = a->right, by_columns.right = a->left;
    by_columns.v = a->dout, by_columns.stride_v = a->stride_out;
    by_columns.out = a->dv, by_columns.stride_out = a->stride_v;
    by_columns.row_sum = by_columns.weights = NULL;
    return by_columns;
}

/* dq and dleft: sums over rows with weights dx. */
static graph_job row_gradients(const graph_attn_args *a) {
    graph_attn_args by_rows = {};
    by_rows.g = a->g;
    by_rows.f = GRAPH_IDENTITY;
    by_rows.n_heads = by_rows.bias_heads = a->n_heads;
    by_rows.slope = 1;
    by_rows.row_sum = a->dleft;
    if (a->dq != NULL) {
        by_rows.dim_v = a->dim_qk;
        by_rows.v = a->k, by_rows.stride_v = a->stride_k;
        by_rows.out = a->dq, by_rows.stride_out = a->stride_q;
    }
    return fwd_job(&by_rows, a->alpha);
}

template <typename T> static status launch_delta(backend *be, graph_job job) {
    const graph_attn_args *a = &job.a;
    job.lanes = power_of_two(a->v != NULL ? a->dim_v / 4 : WHOLE_WARP, WHOLE_WARP);
    int64_t n = (int64_t)a->g.rows.n * a->n_heads * job.lanes;
    if (n == 0) return OK;
    return cuda_launch(be, "the graph attention's delta", graph_attn_delta_any_kernel<T>,
                       dim3((unsigned)cuda_div_up(n, 256)), 256, 0, job);
}

static status share_dbias(backend *be, const graph_job *job) {
    int64_t n = job->a.g.n_edges;
    if (n == 0) return OK;
    return cuda_launch(be, "the graph attention's dbias", graph_attn_share_any_kernel,
                       dim3((unsigned)cuda_div_up(n, 256)), 256, 0, job->dx, n, job->a.n_heads,
                       job->a.dbias);
}

status cuda_graph_attn_bwd(backend *be, const graph_attn_args *a) {
    TRY(graph_attn_args_check(a, true));
    TRY(cuda_enter(be));
    graph_job job = {}, by_rows = row_gradients(a);
    job.a = *a;
    job.side = a->g.columns;
    job.own = a->k, job.stride_own = a->stride_k;
    job.other = a->q, job.stride_other = a->stride_q;
    job.rows = a->dout, job.stride_rows = a->stride_out;
    job.own_term = a->right, job.other_term = a->left;
    job.n_state = a->n_heads *
                  ((a->dk != NULL ? a->dim_qk : 0) + (a->dv != NULL ? a->dim_v : 0) + (int64_t)1);
    bool is_own = a->dbias != NULL && a->bias_heads == a->n_heads;
    bool is_shared = a->dbias != NULL && !is_own, has_rows = a->dq != NULL || a->dleft != NULL;
    bool has_dx = has_rows || a->dbias != NULL || a->dk != NULL || a->dright != NULL;
    bool has_delta = a->f == GRAPH_SOFTMAX && has_dx;
    if (!has_dx && a->dv != NULL && a->f != GRAPH_SOFTMAX && a->sum == GRAPH_SUM) {
        graph_attn_args by_columns = across(a);
        return forward(be, &by_columns);
    }
    size_t heads = (size_t)a->n_heads;
    char *memory = NULL;
    float *own_dx = NULL;
    for (int pass = 0; pass < 2; pass++) {
        char *at = memory;
        cuda_cut(&at, (size_t)a->g.columns.n_parts * (size_t)job.n_state, &job.parts);
        cuda_cut(&at, has_delta ? heads * (size_t)a->g.rows.n : 0, &job.delta);
        cuda_cut(&at, is_shared || (has_rows && !is_own) ? heads * (size_t)a->g.n_edges : 0,
                 &own_dx);
        cut_fwd(&at, &by_rows);
        if (pass == 0) TRY(cuda_scratch(be, (size_t)at, (void **)&memory));
    }
    if (!has_delta) job.delta = NULL;
    job.dx = is_own ? a->dbias : is_shared || has_rows ? own_dx : NULL;
    if (has_delta) CUDA_WITH_ACT(be, TRY(launch_delta<T>(be, job)));
    CUDA_WITH_ACT(be, TRY(launch_bwd<T>(be, &job)));
    CUDA_WITH_ACT(be, TRY((combine<T, true>(be, &job))));
    if (is_shared) TRY(share_dbias(be, &job));
    by_rows.a.bias = job.dx;
    return has_rows ? run_fwd(be, &by_rows) : OK;
}
