/* Mixture of logits (ops.h).
 *
 * Logits: a block has a query, whose vectors stay in shared memory, and a warp takes PAIRS of its
 * pairs at a time; a lane owns logits, so that four columns of a query's vector serve PAIRS * 4
 * multiply-adds.  Mixing: a warp has a pair, a lane its gates; bound by bytes and by the random
 * draws.  Backward: a block has a query, or an item with its pairs in order (row_groups), whose
 * sums stay in registers, 4 x 4 a lane, so that nothing is added by atomics and the bits are the
 * same in every run. */
#include "cuda/core/kernel.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, PAIRS = 4, SIDE = 4, MAX_SHARED = 200 << 10 };

template <typename T> static __global__ void mol_glu_fwd_any_kernel(const mol_glu_args a) {
    int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x, i = k / a.dim, c = k % a.dim;
    if (i >= a.n) return;
    float x = to_float(((const T *)a.z)[2 * i * a.dim + c]);
    float up = to_float(((const T *)a.z)[(2 * i + 1) * a.dim + c]);
    float f = a.f == EPILOGUE_SILU ? x / (1 + __expf(-x)) : x * normcdff(x);
    ((T *)a.y)[k] = from_float<T>(f * up);
}

template <typename T> static __global__ void mol_glu_bwd_any_kernel(const mol_glu_args a) {
    int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x, i = k / a.dim, c = k % a.dim;
    if (i >= a.n) return;
    float x = to_float(((const T *)a.z)[2 * i * a.dim + c]);
    float up = to_float(((const T *)a.z)[(2 * i + 1) * a.dim + c]);
    float g = to_float(((const T *)a.dy)[k]), f, slope;
    if (a.f == EPILOGUE_SILU) {
        float s = 1 / (1 + __expf(-x));
        f = x * s;
        slope = s * (1 + x * (1 - s));
    } else {
        float cdf = normcdff(x);
        f = x * cdf;
        slope = cdf + x * 0.39894228f * __expf(-0.5f * x * x);
    }
    ((T *)a.dz)[2 * i * a.dim + c] = from_float<T>(g * up * slope);
    ((T *)a.dz)[(2 * i + 1) * a.dim + c] = from_float<T>(g * f);
}

static unsigned blocks_of(int64_t n) {
    return (unsigned)cuda_div_up(n, THREADS);
}

status cuda_mol_glu_fwd(backend *be, const mol_glu_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    CUDA_WITH_ACT(be, return cuda_launch(be, "glu", mol_glu_fwd_any_kernel<T>,
                                         blocks_of(a->n * a->dim), THREADS, 0, *a));
}

status cuda_mol_glu_bwd(backend *be, const mol_glu_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    CUDA_WITH_ACT(be, return cuda_launch(be, "the gradient of glu", mol_glu_bwd_any_kernel<T>,
                                         blocks_of(a->n * a->dim), THREADS, 0, *a));
}

static __global__ void mol_index_any_kernel(const mol_index_args a) {
    int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int n_each = a.n_negatives + 1;
    int64_t i = k / n_each;
    int j = (int)(k % n_each);
    if (i >= a.n) return;
    bool is_empty = a.positive != NULL && a.positive[i] < 0;
    if (a.item != NULL)
        a.item[k] = is_empty            ? -1
                    : j < a.n_negatives ? a.negative[i * a.n_negatives + j]
                                        : a.positive[i];
    for (int t = 0; t < a.n_user && j == 0; t++)
        a.user_row[t * a.user_stride + i] =
            is_empty || a.user[i] == MOL_NOBODY ? -1 : (int32_t)(a.user[i] % a.hash[t]) + 1;
}

status cuda_mol_index(backend *be, const mol_index_args *a) {
    if (a->n == 0) return OK;
    return cuda_launch(be, "mol_index", mol_index_any_kernel,
                       blocks_of(a->n * (a->n_negatives + 1)), THREADS, 0, *a);
}

__device__ static inline int item_of(const mol_args &a, int64_t pair, int j) {
    return a.item != NULL ? a.item[pair] : j;
}

/* Component p of query i. */
template <typename T>
__device__ static inline const T *query_part(const mol_args &a, int64_t i, int p) {
    int n_own = a.n_query - a.n_user;
    return p < n_own ? (const T *)a.query + (i * n_own + p) * a.dim
                     : (const T *)a.user + ((p - n_own) * a.user_stride + i) * a.dim;
}

/* Shared memory: rows of `dim` floats, padded so that rows begin in different banks. */
static inline __host__ __device__ int padded(int dim) {
    return (dim + 3) / 4 * 4 + 4;
}

template <typename T>
__device__ static inline void copy_part(float *to, const T *from, int dim, int lane) {
    for (int c = lane; c < padded(dim); c += WARP)
        to[c] = c < dim && from != NULL ? to_float(from[c]) : 0;
}

/* Blocks (n, tiles of pairs). */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    mol_pairs_fwd_any_kernel(const mol_args a, int tile) {
    extern __shared__ float4 shared4[];
    int width = padded(a.dim), warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int n_logits = a.n_query * a.n_item;
    float *query = (float *)shared4, *items = query + (a.n_query + warp * PAIRS * a.n_item) * width;
    float scale = 1 / a.temperature;
    int64_t i = blockIdx.x;
    int first = (int)blockIdx.y * tile, end = min(first + tile, a.n_each);
    for (int p = warp; p < a.n_query; p += WARPS)
        copy_part(query + p * width, query_part<T>(a, i, p), a.dim, lane);
    __syncthreads();
    drop_row drop = drop_begin(a.drop_pair, i);
    for (int j = first + warp * PAIRS; j < end; j += WARPS * PAIRS) {
        for (int v = 0; v < PAIRS * a.n_item; v++) {
            int at = j + v / a.n_item;
            int item = at < end ? item_of(a, i * a.n_each + at, at) : -1;
            const T *from = (const T *)a.items + ((int64_t)item * a.n_item + v % a.n_item) * a.dim;
            copy_part<T>(items + v * width, item >= 0 ? from : NULL, a.dim, lane);
        }
        __syncwarp();
        for (int c = lane; c < n_logits; c += WARP) {
            const float4 *x = (const float4 *)(query + c / a.n_item * width);
            const float *y = items + c % a.n_item * width;
            float sum[PAIRS] = {0};
            for (int k = 0; k < width / 4; k++) {
                float4 q = x[k];
#pragma unroll
                for (int v = 0; v < PAIRS; v++) {
                    float4 own = *(const float4 *)(y + v * a.n_item * width + 4 * k);
                    sum[v] += q.x * own.x + q.y * own.y + q.z * own.z + q.w * own.w;
                }
            }
#pragma unroll
            for (int v = 0; v < PAIRS; v++) {
                int64_t at = (i * a.n_each + j + v) * n_logits + c;
                if (j + v >= end) continue;
                a.s[at] = scale * sum[v];
                if (a.s_dropped == NULL) continue;
                uint32_t column = (uint32_t)((a.first_pair + j + v) * n_logits + c);
                ((T *)a.s_dropped)[at] = from_float<T>(scale * sum[v] * drop_factor(drop, column));
            }
        }
        __syncwarp();
    }
}

status cuda_mol_pairs_fwd(backend *be, const mol_args *a) {
    size_t shared = (size_t)(a->n_query + WARPS * PAIRS * a->n_item) * (size_t)padded(a->dim) * 4;
    int tile = a->n < 256 ? 128 : 1024;
    dim3 blocks((unsigned)a->n, (unsigned)cuda_div_up(a->n_each, tile));
    if (a->n == 0 || a->n_each == 0) return OK;
    if (shared > MAX_SHARED)
        return fail(ERR_UNSUPPORTED, "%d components of %d numbers are more than a GPU takes",
                    a->n_item, a->dim);
    CUDA_WITH_ACT(be, return cuda_launch(be, "mol_pairs", mol_pairs_fwd_any_kernel<T>, blocks,
                                         THREADS, shared, *a, tile));
}

/* The gates of a pair, K of them a lane: lane, lane + 32, ... */
template <int K> struct mixture { float g[K], soft[K], gate[K], factor[K], sum; };

template <typename T, int K>
__device__ static inline void mix(const mol_args &a, int64_t pair, int64_t i, int j, int item,
                                  const drop_row &drop, mixture<K> &m) {
    int n = a.n_query * a.n_item, lane = (int)threadIdx.x % WARP;
    float largest = -INFINITY, sum = 0, kept = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = lane + k * WARP;
        if (c >= n) continue;
        float own = item < 0 ? 0
                             : to_float(((const T *)a.query_gate)[i * n + c]) *
                                   to_float(((const T *)a.item_gate)[(int64_t)item * n + c]);
        m.g[k] = own + to_float(((const T *)a.pair_gate)[pair * n + c]);
        m.soft[k] = m.g[k] / (1 + __expf(-m.g[k]));
        largest = fmaxf(largest, m.soft[k]);
    }
    largest = warp_max(largest);
#pragma unroll
    for (int k = 0; k < K; k++) {
        bool is_own = lane + k * WARP < n;
        m.soft[k] = is_own ? __expf(m.soft[k] - largest) : 0;
        sum += m.soft[k];
    }
    sum = 1 / warp_sum(sum);
#pragma unroll
    for (int k = 0; k < K; k++) {
        uint32_t column = (uint32_t)((a.first_pair + j) * n + lane + k * WARP);
        m.factor[k] = drop_factor(drop, column);
        m.soft[k] *= sum;
        m.gate[k] = m.soft[k] * m.factor[k];
        kept += m.gate[k];
    }
    m.sum = fmaxf(warp_sum(kept), 1e-6f);
#pragma unroll
    for (int k = 0; k < K; k++)
        m.gate[k] /= m.sum;
}

/* The pair of a warp. */
#define MOL_PAIR_OF_WARP                                                                           \
    int64_t pair = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, i = pair / a.n_each;          \
    int lane = (int)threadIdx.x % WARP, n = a.n_query * a.n_item, j = (int)(pair % a.n_each);      \
    if (i >= a.n) return;                                                                          \
    int item = item_of(a, pair, j);                                                                \
    drop_row drop = drop_begin(a.drop_gate, i);                                                    \
    mixture<K> m = {};                                                                             \
    mix<T, K>(a, pair, i, j, item, drop, m)

template <typename T, int K>
static __global__ void __launch_bounds__(THREADS) mol_mix_fwd_any_kernel(const mol_args a) {
    MOL_PAIR_OF_WARP;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = lane + k * WARP;
        if (c >= n) continue;
        sum += m.gate[k] * a.s[pair * n + c];
        if (a.gate != NULL) a.gate[pair * n + c] = m.gate[k];
    }
    sum = warp_sum(sum);
    if (lane == 0) a.sim[i * a.sim_row + j * a.sim_pair] = sum;
}

template <typename T, int K>
static __global__ void __launch_bounds__(THREADS) mol_mix_bwd_any_kernel(const mol_args a) {
    MOL_PAIR_OF_WARP;
    bool is_balanced = a.balance > 0 && j == a.n_each - 1;
    float g = item < 0 ? 0 : a.dsim[pair], d[K], along = 0;
    const float e = 1e-6f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = lane + k * WARP;
        d[k] = 0;
        if (c >= n) continue;
        d[k] = g * a.s[pair * n + c];
        ((T *)a.ds)[pair * n + c] = from_float<T>(g * m.gate[k]);
        if (is_balanced) {
            float mean = a.mean[c], gate = m.gate[k];
            d[k] += *a.grad_scale * a.balance *
                    (logf(mean + e) + mean / (mean + e) - logf(gate + e) - gate / (gate + e));
        }
        along += d[k] * m.gate[k];
    }
    along = m.sum > e ? warp_sum(along) : 0;
    float total = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        d[k] = (d[k] - along) / m.sum * m.factor[k];
        total += d[k] * m.soft[k];
    }
    total = warp_sum(total);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = lane + k * WARP;
        float s = 1 / (1 + __expf(-m.g[k]));
        float dg = m.soft[k] * (d[k] - total) * s * (1 + m.g[k] * (1 - s));
        if (c < n) ((T *)a.dpair_gate)[pair * n + c] = from_float<T>(item < 0 ? 0 : dg);
    }
}

template <typename T, int K> static status launch_mix(backend *be, const mol_args *a, bool is_bwd) {
    unsigned n_blocks = (unsigned)cuda_div_up(a->n * a->n_each, WARPS);
    return is_bwd
               ? cuda_launch(be, "the gradient of mol_mix", mol_mix_bwd_any_kernel<T, K>, n_blocks,
                             THREADS, 0, *a)
               : cuda_launch(be, "mol_mix", mol_mix_fwd_any_kernel<T, K>, n_blocks, THREADS, 0, *a);
}

template <typename T> static status mix_of(backend *be, const mol_args *a, bool is_bwd) {
    int n = a->n_query * a->n_item;
    if (a->n == 0 || a->n_each == 0) return OK;
    if (n <= WARP) return launch_mix<T, 1>(be, a, is_bwd);
    if (n <= 2 * WARP) return launch_mix<T, 2>(be, a, is_bwd);
    if (n <= 4 * WARP) return launch_mix<T, 4>(be, a, is_bwd);
    return fail(ERR_UNSUPPORTED, "a GPU takes at most %d logits of a pair, not %d", 4 * WARP, n);
}

status cuda_mol_mix_fwd(backend *be, const mol_args *a) {
    CUDA_WITH_ACT(be, return mix_of<T>(be, a, false));
}

status cuda_mol_mix_bwd(backend *be, const mol_args *a) {
    CUDA_WITH_ACT(be, return mix_of<T>(be, a, true));
}

template <typename T> __device__ static inline float4 load4(const T *row, int c, int dim) {
    columns<T, 4> x = load_columns<false, 4>(row, c, dim);
    return make_float4(column(x, 0), column(x, 1), column(x, 2), column(x, 3));
}

/* The sums of a block's owner, a query or an item, over its pairs: of outputs x columns, in tiles
 * of SIDE x 4, TILES of them a lane.  A warp has every WARPS-th pair. */
template <typename T, bool IS_ITEM, int TILES>
static __global__ void __launch_bounds__(THREADS, 2) mol_pairs_bwd_any_kernel(const mol_args a) {
    extern __shared__ float shared[];
    const int n = a.n_query * a.n_item, lane = (int)threadIdx.x % WARP;
    const int warp = (int)threadIdx.x / WARP, n_out = IS_ITEM ? a.n_item : a.n_query;
    const int n_in = IS_ITEM ? a.n_query : a.n_item, out_width = (n_out + SIDE - 1) / SIDE * SIDE;
    const int n_columns = (a.dim + 3) / 4, n_tiles = out_width / SIDE * n_columns;
    const int64_t owner = blockIdx.x;
    const float scale = 1 / a.temperature;
    float *weight = shared + warp * n_in * out_width, *gates = shared + WARPS * n_in * out_width;
    float *sums = gates + WARPS * n;
    float sum[TILES][SIDE][4] = {};
    int64_t first = IS_ITEM ? a.groups.begin[owner] : owner * a.n_each;
    int64_t end = IS_ITEM ? a.groups.begin[owner + 1] : first + a.n_each;
    if (first == end) return;
    for (int c = lane; c < n_in * out_width; c += WARP)
        weight[c] = 0;
    for (int c = lane; c < n; c += WARP)
        gates[warp * n + c] = 0;
    for (int64_t k = first + warp; k < end; k += WARPS) {
        int64_t pair = IS_ITEM ? a.groups.order[k] : k, i = pair / a.n_each;
        int j = (int)(pair % a.n_each), item = a.item[pair];
        drop_row drop = drop_begin(a.drop_pair, i);
        __syncwarp();
        for (int c = lane; c < n; c += WARP) {
            int p = c / a.n_item, x = c % a.n_item;
            T *ds = (T *)a.ds + pair * n + c;
            float w = to_float(*ds), dg = to_float(((const T *)a.dpair_gate)[pair * n + c]);
            if (!IS_ITEM) {
                uint32_t at = (uint32_t)((a.first_pair + j) * n + c);
                w += to_float(((const T *)a.ds_dropped)[pair * n + c]) * drop_factor(drop, at);
                *ds = from_float<T>(w);
            }
            weight[(IS_ITEM ? p : x) * out_width + (IS_ITEM ? x : p)] = w;
            if (item < 0) continue;
            gates[warp * n + c] +=
                dg * to_float(IS_ITEM ? ((const T *)a.query_gate)[i * n + c]
                                      : ((const T *)a.item_gate)[(int64_t)item * n + c]);
        }
        __syncwarp();
        if (item < 0) continue;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            int tile = lane + t * WARP, c = tile % n_columns * 4, o = tile / n_columns * SIDE;
            if (tile >= n_tiles) continue;
            for (int v = 0; v < n_in; v++) {
                const T *row = IS_ITEM ? query_part<T>(a, i, v)
                                       : (const T *)a.items + ((int64_t)item * n_in + v) * a.dim;
                float4 x = load4(row, c, a.dim);
                float4 w4 = *(const float4 *)(weight + v * out_width + o);
                const float w[SIDE] = {w4.x, w4.y, w4.z, w4.w};
#pragma unroll
                for (int r = 0; r < SIDE; r++) {
                    sum[t][r][0] += w[r] * x.x;
                    sum[t][r][1] += w[r] * x.y;
                    sum[t][r][2] += w[r] * x.z;
                    sum[t][r][3] += w[r] * x.w;
                }
            }
        }
    }
    /* One warp after the other adds its sums: (out_width, 4 n_columns). */
    for (int turn = 0; turn < WARPS; turn++) {
        __syncthreads();
        if (warp != turn) continue;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            int tile = lane + t * WARP, c = tile % n_columns * 4, o = tile / n_columns * SIDE;
#pragma unroll
            for (int r = 0; r < SIDE && tile < n_tiles; r++)
                for (int x = 0; x < 4; x++) {
                    float *to = sums + (o + r) * 4 * n_columns + c + x;
                    *to = turn == 0 ? sum[t][r][x] : *to + sum[t][r][x];
                }
        }
    }
    __syncthreads();
    for (int k = (int)threadIdx.x; k < n_out * a.dim; k += THREADS) {
        int o = k / a.dim, c = k % a.dim, n_own = a.n_query - a.n_user;
        float x = scale * sums[o * 4 * n_columns + c];
        if (IS_ITEM)
            a.ditem[(owner * n_out + o) * a.dim + c] += x;
        else if (o < n_own)
            ((T *)a.dquery)[(owner * n_own + o) * a.dim + c] = from_float<T>(x);
        else
            ((T *)a.duser)[((o - n_own) * a.user_stride + owner) * a.dim + c] = from_float<T>(x);
    }
    for (int c = (int)threadIdx.x; c < n; c += THREADS) {
        float x = 0;
        for (int w = 0; w < WARPS; w++)
            x += gates[w * n + c];
        if (IS_ITEM)
            a.ditem_gate[owner * n + c] += x;
        else
            ((T *)a.dquery_gate)[owner * n + c] = from_float<T>(x);
    }
}

template <typename T, bool IS_ITEM> static status launch_bwd(backend *be, const mol_args *a) {
    const int n_out = IS_ITEM ? a->n_item : a->n_query, n_in = IS_ITEM ? a->n_query : a->n_item;
    const int out_width = (n_out + SIDE - 1) / SIDE * SIDE, n_columns = (a->dim + 3) / 4;
    const int n_tiles = out_width / SIDE * n_columns;
    unsigned n_blocks = (unsigned)(IS_ITEM ? a->groups.n_rows : a->n);
    size_t shared = 4 * (size_t)(WARPS * n_in * out_width + WARPS * a->n_query * a->n_item +
                                 out_width * 4 * n_columns);
    const char *what = "the gradients of mol_pairs";
    if (n_blocks == 0) return OK;
    if (n_tiles <= WARP)
        return cuda_launch(be, what, mol_pairs_bwd_any_kernel<T, IS_ITEM, 1>, n_blocks, THREADS,
                           shared, *a);
    if (n_tiles <= 2 * WARP)
        return cuda_launch(be, what, mol_pairs_bwd_any_kernel<T, IS_ITEM, 2>, n_blocks, THREADS,
                           shared, *a);
    if (n_tiles <= 4 * WARP)
        return cuda_launch(be, what, mol_pairs_bwd_any_kernel<T, IS_ITEM, 4>, n_blocks, THREADS,
                           shared, *a);
    return fail(ERR_UNSUPPORTED, "%d components of %d numbers are more than a GPU takes", n_out,
                a->dim);
}

template <typename T> static status bwd_of(backend *be, const mol_args *a) {
    TRY((launch_bwd<T, false>(be, a)));
    return launch_bwd<T, true>(be, a);
}

status cuda_mol_pairs_bwd(backend *be, const mol_args *a) {
    if (a->n == 0 || a->n_each == 0) return OK;
    CUDA_WITH_ACT(be, return bwd_of<T>(be, a));
}

/* One block for each column, then one for all. */
static __global__ void __launch_bounds__(THREADS)
    mol_balance_columns_any_kernel(const mol_balance_args a, double *parts) {
    __shared__ double room[WARP];
    int c = (int)blockIdx.x;
    double sum = 0, entropy = 0, n = 0;
    for (int64_t i = threadIdx.x; i < a.n; i += THREADS) {
        if (a.item[i] < 0) continue;
        float gate = a.gate[i * a.dim + c];
        sum += (double)gate;
        entropy -= (double)(gate * logf(gate + 1e-6f));
        n += 1;
    }
    sum = block_sum(sum, room);
    entropy = block_sum(entropy, room);
    n = block_sum(n, room);
    if (threadIdx.x != 0) return;
    double mean = sum / fmax(n, 1.0);
    a.mean[c] = (float)mean;
    parts[c] = entropy + n * mean * log(mean + 1e-6);
}

/* loss += weight * the sum of n parts. */
static __global__ void __launch_bounds__(THREADS)
    mol_sum_any_kernel(int64_t n, const double *parts, double weight, double *loss) {
    __shared__ double room[WARP];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum += parts[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) *loss += weight * sum;
}

static status add_parts(backend *be, int64_t n, const double *parts, double weight, double *loss) {
    return cuda_launch(be, "the sum of losses", mol_sum_any_kernel, 1, THREADS, 0, n, parts, weight,
                       loss);
}

status cuda_mol_balance(backend *be, const mol_balance_args *a) {
    void *parts;
    TRY(cuda_scratch(be, (size_t)a->dim * sizeof(double), &parts));
    TRY(cuda_launch(be, "mol_balance", mol_balance_columns_any_kernel, (unsigned)a->dim, THREADS, 0,
                    *a, (double *)parts));
    return add_parts(be, a->dim, (double *)parts, (double)a->weight, a->loss);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    mol_penalty_any_kernel(const mol_penalty_args a, double *parts) {
    __shared__ double room[WARP];
    float factor = 2 * *a.grad_scale * a.weight;
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.n;
         i += (int64_t)gridDim.x * THREADS) {
        float x = to_float(((const T *)a.x)[i]);
        T *dx = (T *)a.dx + i;
        sum += (double)(x * x);
        *dx = from_float<T>(to_float(*dx) + factor * x);
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

template <typename T>
static status penalty_of(backend *be, const mol_penalty_args *a, double *parts, unsigned n_blocks) {
    return cuda_launch(be, "mol_penalty", mol_penalty_any_kernel<T>, n_blocks, THREADS, 0, *a,
                       parts);
}

status cuda_mol_penalty(backend *be, const mol_penalty_args *a) {
    enum { MOST_BLOCKS = 256 };
    unsigned n_blocks = blocks_of(a->n);
    void *parts;
    if (a->n == 0) return OK;
    if (n_blocks > MOST_BLOCKS) n_blocks = MOST_BLOCKS;
    TRY(cuda_scratch(be, n_blocks * sizeof(double), &parts));
    CUDA_WITH_ACT(be, TRY(penalty_of<T>(be, a, (double *)parts, n_blocks)));
    return add_parts(be, n_blocks, (double *)parts, (double)a->weight, a->loss);
}

/* A warp for a row. */
static __global__ void __launch_bounds__(THREADS)
    mol_loss_any_kernel(const mol_loss_args a, double *parts) {
    int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int n = a.n_negatives, lane = (int)threadIdx.x % WARP;
    if (i >= a.n) return;
    const int32_t *item = a.item + i * (n + 1);
    float *sim = a.sim + i * (n + 1), scale = 1 / a.temperature, largest = -INFINITY, sum = 0;
    bool is_empty = item[n] < 0;
    float positive = sim[n] * scale;
    __syncwarp();
    for (int j = lane; j <= n; j += WARP)
        largest = fmaxf(largest, j < n && item[j] == item[n] ? -50000.0f : sim[j] * scale);
    largest = warp_max(largest);
    for (int j = lane; j <= n; j += WARP)
        sum += expf((j < n && item[j] == item[n] ? -50000.0f : sim[j] * scale) - largest);
    sum = warp_sum(sum);
    for (int j = lane; j <= n; j += WARP) {
        float p = expf(sim[j] * scale - largest) / sum - (j == n ? 1.0f : 0.0f);
        bool is_hit = j < n && item[j] == item[n];
        sim[j] = is_empty || is_hit ? 0 : *a.grad_scale * scale * p;
    }
    if (lane == 0) parts[i] = is_empty ? 0 : (double)(logf(sum) + largest - positive);
}

status cuda_mol_loss(backend *be, const mol_loss_args *a) {
    void *parts;
    if (a->n == 0) return OK;
    TRY(cuda_scratch(be, (size_t)a->n * sizeof(double), &parts));
    TRY(cuda_launch(be, "mol_loss", mol_loss_any_kernel, (unsigned)cuda_div_up(a->n, WARPS),
                    THREADS, 0, *a, (double *)parts));
    return add_parts(be, a->n, (double *)parts, 1, a->loss);
}
