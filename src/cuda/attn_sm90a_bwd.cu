/* HSTU attention, backward, on Hopper, in two kernels without atomics: the same bits every time.
 *
 * The first owns keys and sums dk and dv over the queries: scores are computed with keys as rows,
 * so that they go from registers into the sums; one warpgroup keeps dv and the other dk, since the
 * registers of one hold no more.  The second owns queries and sums dq over the keys.  Scores are
 * computed anew three times, eight products instead of five, but there is no float32 buffer and no
 * order to keep.  As in the forward pass one warp asks for tiles and two warpgroups compute; a sum
 * over a tile runs while the scores of the next one are computed.  Bound by the tensor cores and
 * the shared memory that feeds them. */
#include "cuda/attn_sm90a.cuh"

enum { STAGES = 2, WARPS = 8 };

typedef struct bwd_maps {
    CUtensorMap q, k, v, dout;
} bwd_maps;

/* What becomes of a score x: its weight silu(alpha x), and the slope silu'(alpha x).  half is alpha
 * / 2. */
__device__ static inline float weight_of(float half, float x) {
    float h = half * x;
    return fmaf(h, tanh_approx(h), h);
}
__device__ static inline float slope_of(float half, float x) {
    float h = half * x, t = tanh_approx(h);
    return fmaf(0.5f, t, 0.5f) * fmaf(h, 1.0f - t, 1.0f);
}

/* A warpgroup's scores as weights, on the left of the next product; bit e of `seen`: pair e is. */
template <typename T>
__device__ static inline void pack_weights(uint32_t (&left)[4][4], float half, uint32_t seen,
                                           const float (&x)[32]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2)
        left[e / 8][e / 2 % 4] = pack_two<T>((seen >> e & 1) != 0 ? weight_of(half, x[e]) : 0,
                                             (seen >> e & 2) != 0 ? weight_of(half, x[e + 1]) : 0);
}

/* Slopes are kept as float16, which has twice the digits of the products they go into: the scores'
 * registers are then free for dp. */
__device__ static inline void pack_slopes(__half2 (&slope)[16], float half, const float (&x)[32]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2)
        slope[e / 2] = __floats2half2_rn(slope_of(half, x[e]), slope_of(half, x[e + 1]));
}

template <typename T>
__device__ static inline void pack_gradients(uint32_t (&left)[4][4], uint32_t seen,
                                             const __half2 (&slope)[16], const float (&dp)[32]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
        float2 d = __half22float2(slope[e / 2]);
        left[e / 8][e / 2 % 4] = pack_two<T>((seen >> e & 1) != 0 ? dp[e] * d.x : 0,
                                             (seen >> e & 2) != 0 ? dp[e + 1] * d.y : 0);
    }
}

__device__ static inline void release(uint64_t *barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

template <int N> __device__ static inline void clear(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = 0;
}

/* ---- dk and dv ------------------------------------------------------------------------------- */

template <int D> struct keys_shape {
    static constexpr int KEYS = 64, QUERIES = 64, THREADS = 3 * GROUP;
    static constexpr int OWN = KEYS * D * 2, TILE = QUERIES * D * 2;
    static constexpr int BYTES = 2 * OWN + 2 * STAGES * TILE + 1024;
};

typedef struct keys_barriers {
    uint64_t own, there[STAGES], free[STAGES];
} keys_barriers;

template <int D> struct keys_work {
    attn_seq s;
    int head, key0;
    char *keys, *values, *queries, *douts; /* queries and douts: STAGES tiles */
    keys_barriers *barriers;
};

/* The first row of the next tile of queries that sees any of the keys, from i on. */
template <int D>
__device__ static inline int next_queries(const attn_args &a, const keys_work<D> &w, int i) {
    using shape = keys_shape<D>;
    while (i < w.s.len_q &&
           attn_tile_is_empty(a, w.s, i, i + shape::QUERIES, w.key0, w.key0 + shape::KEYS))
        i += shape::QUERIES;
    return i;
}

template <int D>
__device__ static void keys_ask(const attn_args &a, const keys_work<D> &w, const bwd_maps &maps) {
    using shape = keys_shape<D>;
    keys_barriers *b = w.barriers;
    int x = w.head * D, n = 0;
    barrier_expect(&b->own, 2 * shape::OWN);
    load_rows<D, shape::KEYS>(w.keys, &maps.k, &b->own, x, w.s.row_k + w.key0);
    load_rows<D, shape::KEYS>(w.values, &maps.v, &b->own, x, w.s.row_k + w.key0);
    for (int i = next_queries(a, w, 0); i < w.s.len_q;
         i = next_queries(a, w, i + shape::QUERIES), n++) {
        int stage = n % STAGES;
        barrier_wait(&b->free[stage], (uint32_t)(n / STAGES + 1) & 1);
        barrier_expect(&b->there[stage], 2 * shape::TILE);
        load_rows<D, shape::QUERIES>(w.queries + stage * shape::TILE, &maps.q, &b->there[stage], x,
                                     w.s.row_q + i);
        load_rows<D, shape::QUERIES>(w.douts + stage * shape::TILE, &maps.dout, &b->there[stage], x,
                                     w.s.row_q + i);
    }
}

/* Bit e: pair e of the thread is seen.  Rows are keys, columns queries from i0 on.  Few tiles need
 * it, so it is kept small: its registers are the sums'. */
__device__ static inline uint32_t keys_seen(const attn_args &a, const attn_seq &s, int key,
                                            int i0) {
    int first = i0 + 2 * ((int)threadIdx.x % 4);
    uint32_t seen = 0;
#pragma unroll 1
    for (int c = 0; c < 16; c++) {
        int row = first + c / 2 * 8 + c % 2, bit = c / 2 * 4 + c % 2;
        attn_row_mask mask = attn_mask_of(a, s, row);
        seen |= (uint32_t)attn_sees(a, s, mask, row, key) << bit;
        seen |= (uint32_t)attn_sees(a, s, mask, row, key + 8) << (bit + 2);
    }
    return seen;
}

template <int D>
__device__ static inline uint32_t keys_mask(const attn_args &a, const keys_work<D> &w, int key,
                                            int i) {
    bool is_full = attn_tile_is_full(a, w.s, i, i + 64, w.key0, w.key0 + 64);
    return is_full ? 0xffffffffu : keys_seen(a, w.s, key, i);
}

/* Tile n of the queries, once it is there. */
template <int D> __device__ static inline int keys_wait(const keys_work<D> &w, int n) {
    barrier_wait(&w.barriers->there[n % STAGES], (uint32_t)(n / STAGES) & 1);
    return n % STAGES * keys_shape<D>::TILE;
}

/* sum (64, D) += left times a tile. */
template <typename T, int D>
__device__ static inline void add_tile(float (&sum)[D / 2], const uint32_t (&left)[4][4],
                                       const char *tile) {
    product_with_rows<T, D, 64>(sum, left, tile);
    wgmma_commit();
}

/* Each turn sums over one tile and makes what the next takes on its left; the last has no next. */
template <typename T, int D>
__device__ static void keys_compute_dv(const attn_args &a, const keys_work<D> &w) {
    using shape = keys_shape<D>;
    int n = 0, i = next_queries(a, w, 0);
    int key = w.key0 + (int)threadIdx.x % GROUP / 32 * 16 + (int)threadIdx.x % 32 / 4;
    float sum[D / 2], x[32], half = 0.5f * a.alpha;
    uint32_t left[4][4];
    clear(sum);
    barrier_wait(&w.barriers->own, 0);
    if (i < w.s.len_q) {
        uint32_t seen = keys_mask(a, w, key, i);
        int at = keys_wait(w, 0);
        wgmma_fence();
        product_of_rows<T, D, shape::KEYS, 64>(x, w.keys, w.queries + at);
        wgmma_commit();
        wgmma_wait<0>();
        pack_weights<T>(left, half, seen, x);
        for (i = next_queries(a, w, i + shape::QUERIES); i < w.s.len_q;
             i = next_queries(a, w, i + shape::QUERIES), n++) {
            seen = keys_mask(a, w, key, i);
            at = keys_wait(w, n + 1);
            wgmma_fence();
            product_of_rows<T, D, shape::KEYS, 64>(x, w.keys, w.queries + at);
            wgmma_commit();
            add_tile<T, D>(sum, left, w.douts + n % STAGES * shape::TILE);
            wgmma_wait<0>();
            release(&w.barriers->free[n % STAGES]);
            pack_weights<T>(left, half, seen, x);
        }
        wgmma_fence();
        add_tile<T, D>(sum, left, w.douts + n % STAGES * shape::TILE);
        wgmma_wait<0>();
    }
    T *to = (T *)a.dv + w.s.row_k * a.stride_v + w.head * D;
    store_rows<T, D>(to, a.stride_v, key, w.s.len_k, a.scale, sum);
}

template <typename T, int D>
__device__ static void keys_compute_dk(const attn_args &a, const keys_work<D> &w) {
    using shape = keys_shape<D>;
    int n = 0, i = next_queries(a, w, 0);
    int key = w.key0 + (int)threadIdx.x % GROUP / 32 * 16 + (int)threadIdx.x % 32 / 4;
    float sum[D / 2], x[32], half = 0.5f * a.alpha; /* x: scores, then dp */
    __half2 slope[16];
    uint32_t left[4][4];
    clear(sum);
    barrier_wait(&w.barriers->own, 0);
    if (i < w.s.len_q) {
        uint32_t seen = keys_mask(a, w, key, i);
        int at = keys_wait(w, 0);
        wgmma_fence();
        product_of_rows<T, D, shape::KEYS, 64>(x, w.keys, w.queries + at);
        wgmma_commit();
        wgmma_wait<0>();
        pack_slopes(slope, half, x);
        wgmma_fence();
        product_of_rows<T, D, shape::KEYS, 64>(x, w.values, w.douts + at);
        wgmma_commit();
        wgmma_wait<0>();
        pack_gradients<T>(left, seen, slope, x);
        for (i = next_queries(a, w, i + shape::QUERIES); i < w.s.len_q;
             i = next_queries(a, w, i + shape::QUERIES), n++) {
            seen = keys_mask(a, w, key, i);
            at = keys_wait(w, n + 1);
            wgmma_fence();
            product_of_rows<T, D, shape::KEYS, 64>(x, w.keys, w.queries + at);
            wgmma_commit();
            add_tile<T, D>(sum, left, w.queries + n % STAGES * shape::TILE);
            wgmma_wait<1>();
            pack_slopes(slope, half, x);
            wgmma_fence();
            product_of_rows<T, D, shape::KEYS, 64>(x, w.values, w.douts + at);
            wgmma_commit();
            wgmma_wait<0>();
            release(&w.barriers->free[n % STAGES]);
            pack_gradients<T>(left, seen, slope, x);
        }
        wgmma_fence();
        add_tile<T, D>(sum, left, w.queries + n % STAGES * shape::TILE);
        wgmma_wait<0>();
    }
    T *to = (T *)a.dk + w.s.row_k * a.stride_k + w.head * D;
    store_rows<T, D>(to, a.stride_k, key, w.s.len_k, a.alpha * a.scale, sum);
}

template <typename T, int D>
__global__ void __launch_bounds__(keys_shape<D>::THREADS, 1)
    keys_kernel(const attn_args a, const __grid_constant__ bwd_maps maps, int n_tiles) {
    extern __shared__ char room[];
    __shared__ keys_barriers barriers;
    using shape = keys_shape<D>;
    keys_work<D> w;
    int place = (int)(blockIdx.x / n_tiles), group = (int)threadIdx.x / GROUP - 1;
    w.s = attn_seq_of(a, place / a.n_heads);
    w.head = place % a.n_heads;
    w.key0 = (int)(blockIdx.x % n_tiles) * shape::KEYS;
    if (w.key0 >= w.s.len_k) return;
    w.keys = room + (1024 - shared_address(room) % 1024) % 1024;
    w.values = w.keys + shape::OWN;
    w.queries = w.values + shape::OWN;
    w.douts = w.queries + STAGES * shape::TILE;
    w.barriers = &barriers;
    if (threadIdx.x == 0) {
        barrier_init(&barriers.own, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&barriers.there[i], 1);
            barrier_init(&barriers.free[i], WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (group < 0) {
        registers_lower<24>();
        if (threadIdx.x == 0) keys_ask<D>(a, w, maps);
        return;
    }
    registers_raise<240>();
    if (group == 0)
        keys_compute_dv<T, D>(a, w);
    else
        keys_compute_dk<T, D>(a, w);
}

/* ---- dq -------------------------------------------------------------------------------------- */

/* The values of a tile are free as soon as dp is there, so that one of them is enough; keys are
 * needed to the end. */
template <int D> struct queries_shape {
    static constexpr int ROWS = 128, KEYS = 64, THREADS = 3 * GROUP;
    static constexpr int OWN = ROWS * D * 2, TILE = KEYS * D * 2;
    static constexpr int BYTES = 2 * OWN + (STAGES + 1) * TILE + 1024;
};

typedef struct queries_barriers {
    uint64_t own, keys[STAGES], keys_free[STAGES], values, values_free;
} queries_barriers;

template <int D> struct queries_work {
    attn_seq s;
    int head, row0;
    char *queries, *douts, *keys, *values; /* keys: STAGES tiles */
    queries_barriers *barriers;
};

template <int D>
__device__ static inline int next_keys(const attn_args &a, const queries_work<D> &w, int j) {
    using shape = queries_shape<D>;
    while (j < w.s.len_k &&
           attn_tile_is_empty(a, w.s, w.row0, w.row0 + shape::ROWS, j, j + shape::KEYS))
        j += shape::KEYS;
    return j;
}

template <int D>
__device__ static void queries_ask(const attn_args &a, const queries_work<D> &w,
                                   const bwd_maps &maps) {
    using shape = queries_shape<D>;
    queries_barriers *b = w.barriers;
    int x = w.head * D, n = 0;
    barrier_expect(&b->own, 2 * shape::OWN);
    load_rows<D, shape::ROWS>(w.queries, &maps.q, &b->own, x, w.s.row_q + w.row0);
    load_rows<D, shape::ROWS>(w.douts, &maps.dout, &b->own, x, w.s.row_q + w.row0);
    for (int j = next_keys(a, w, 0); j < w.s.len_k; j = next_keys(a, w, j + shape::KEYS), n++) {
        int stage = n % STAGES;
        barrier_wait(&b->keys_free[stage], (uint32_t)(n / STAGES + 1) & 1);
        barrier_expect(&b->keys[stage], shape::TILE);
        load_rows<D, shape::KEYS>(w.keys + stage * shape::TILE, &maps.k, &b->keys[stage], x,
                                  w.s.row_k + j);
        barrier_wait(&b->values_free, (uint32_t)(n + 1) & 1);
        barrier_expect(&b->values, shape::TILE);
        load_rows<D, shape::KEYS>(w.values, &maps.v, &b->values, x, w.s.row_k + j);
    }
}

/* The scores of tile n of the keys. */
template <typename T, int D>
__device__ static inline void queries_scores(const queries_work<D> &w, int own, int n,
                                             float (&x)[32]) {
    using shape = queries_shape<D>;
    int stage = n % STAGES;
    barrier_wait(&w.barriers->keys[stage], (uint32_t)(n / STAGES) & 1);
    wgmma_fence();
    product_of_rows<T, D, shape::ROWS, 64>(x, w.queries + own, w.keys + stage * shape::TILE);
    wgmma_commit();
}

/* And the gradients of their weights. */
template <typename T, int D>
__device__ static inline void queries_dp(const queries_work<D> &w, int own, int n, float (&x)[32]) {
    barrier_wait(&w.barriers->values, (uint32_t)n & 1);
    wgmma_fence();
    product_of_rows<T, D, queries_shape<D>::ROWS, 64>(x, w.douts + own, w.values);
    wgmma_commit();
}

template <typename T, int D>
__device__ static void queries_compute(const attn_args &a, const queries_work<D> &w, int group) {
    using shape = queries_shape<D>;
    queries_barriers *b = w.barriers;
    int first = w.row0 + group * 64, own = group * 64 * PART_BYTES, n = 0, j = next_keys(a, w, 0);
    int row = first + (int)threadIdx.x % GROUP / 32 * 16 + (int)threadIdx.x % 32 / 4;
    float sum[D / 2], x[32], half = 0.5f * a.alpha; /* x: scores, then dp */
    __half2 slope[16];
    uint32_t left[4][4];
    clear(sum);
    barrier_wait(&b->own, 0);
    if (j < w.s.len_k) {
        uint32_t seen = rows_mask(a, w.s, first, row, j);
        queries_scores<T, D>(w, own, 0, x);
        wgmma_wait<0>();
        pack_slopes(slope, half, x);
        queries_dp<T, D>(w, own, 0, x);
        wgmma_wait<0>();
        release(&b->values_free);
        pack_gradients<T>(left, seen, slope, x);
        for (j = next_keys(a, w, j + shape::KEYS); j < w.s.len_k;
             j = next_keys(a, w, j + shape::KEYS), n++) {
            seen = rows_mask(a, w.s, first, row, j);
            queries_scores<T, D>(w, own, n + 1, x);
            add_tile<T, D>(sum, left, w.keys + n % STAGES * shape::TILE);
            wgmma_wait<1>();
            pack_slopes(slope, half, x);
            queries_dp<T, D>(w, own, n + 1, x);
            wgmma_wait<0>();
            release(&b->values_free);
            release(&b->keys_free[n % STAGES]);
            pack_gradients<T>(left, seen, slope, x);
        }
        wgmma_fence();
        add_tile<T, D>(sum, left, w.keys + n % STAGES * shape::TILE);
        wgmma_wait<0>();
    }
    store_rows<T, D>((T *)a.dq + (int64_t)w.s.row_q * a.stride_q + w.head * D, a.stride_q, row,
                     w.s.len_q, a.alpha * a.scale, sum);
}

template <typename T, int D>
__global__ void __launch_bounds__(queries_shape<D>::THREADS, 1)
    queries_kernel(const attn_args a, const __grid_constant__ bwd_maps maps, int n_tiles) {
    extern __shared__ char room[];
    __shared__ queries_barriers barriers;
    using shape = queries_shape<D>;
    queries_work<D> w;
    int place = (int)(blockIdx.x / n_tiles), group = (int)threadIdx.x / GROUP - 1;
    w.s = attn_seq_of(a, place / a.n_heads);
    w.head = place % a.n_heads;
    w.row0 = (n_tiles - 1 - (int)(blockIdx.x % n_tiles)) * shape::ROWS;
    if (w.row0 >= w.s.len_q) return;
    w.queries = room + (1024 - shared_address(room) % 1024) % 1024;
    w.douts = w.queries + shape::OWN;
    w.keys = w.douts + shape::OWN;
    w.values = w.keys + STAGES * shape::TILE;
    w.barriers = &barriers;
    if (threadIdx.x == 0) {
        barrier_init(&barriers.own, 1);
        barrier_init(&barriers.values, 1);
        barrier_init(&barriers.values_free, WARPS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&barriers.keys[i], 1);
            barrier_init(&barriers.keys_free[i], WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (group < 0) {
        registers_lower<24>();
        if (threadIdx.x == 0) queries_ask<D>(a, w, maps);
    } else {
        registers_raise<240>();
        queries_compute<T, D>(a, w, group);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

template <typename T, int D> static status launch(backend *be, const attn_args *a) {
    using by_keys = keys_shape<D>;
    using by_queries = queries_shape<D>;
    bwd_maps maps;
    cudaStream_t stream = cuda_of(be)->stream;
    int64_t columns = (int64_t)a->n_heads * D, n_pairs = (int64_t)a->n_heads * a->n_sequences;
    int64_t n_keys = cuda_div_up(a->max_len_k, by_keys::KEYS);
    int64_t n_queries = cuda_div_up(a->max_len_q, by_queries::ROWS);
    TRY(sm90a_map(&maps.q, be->act, a->q, a->n_rows_q, columns, a->stride_q));
    TRY(sm90a_map(&maps.k, be->act, a->k, a->n_rows_k, columns, a->stride_k));
    TRY(sm90a_map(&maps.v, be->act, a->v, a->n_rows_k, columns, a->stride_v));
    TRY(sm90a_map(&maps.dout, be->act, a->dout, a->n_rows_q, columns, a->stride_out));
    CUDA_TRY(CUDA_ALLOW_SHARED((keys_kernel<T, D>), by_keys::BYTES));
    CUDA_TRY(CUDA_ALLOW_SHARED((queries_kernel<T, D>), by_queries::BYTES));
    if (n_keys * n_pairs > 0)
        keys_kernel<T, D>
            <<<(unsigned)(n_keys * n_pairs), by_keys::THREADS, by_keys::BYTES, stream>>>(
                *a, maps, (int)n_keys);
    TRY(cuda_launched("the gradient of the attention's keys"));
    if (n_queries * n_pairs > 0)
        queries_kernel<T, D>
            <<<(unsigned)(n_queries * n_pairs), by_queries::THREADS, by_queries::BYTES, stream>>>(
                *a, maps, (int)n_queries);
    return cuda_launched("the gradient of the attention's queries");
}

template <typename T> static status launch_dim(backend *be, const attn_args *a) {
    return a->dim_qk == 128 ? launch<T, 128>(be, a) : launch<T, 256>(be, a);
}

status cuda_attn_sm90a_bwd(backend *be, const attn_args *a) {
    if (be->act == ACT_BF16) return launch_dim<__nv_bfloat16>(be, a);
    return launch_dim<__half>(be, a);
}
