/* dq of the attention on Hopper, recomputed: in deterministic mode, and at head dimension 256.
 *
 * A block owns 128 queries and sums dq over the keys, in their order: scores and dp are computed a
 * second time, but each sum has one owner.  A producer warp loads tiles of keys and values, two
 * consumer warpgroups of 64 rows compute; the sum over a tile overlaps with the scores of the next
 * one.  Bound by the tensor cores. */
#include "cuda/attn/sm90/attn_sm90_bwd.cuh"

enum { DQ_STAGES = 2, DQ_WARPS = 8 };

/* Slopes are kept as float16, which has more digits than the products they go into: the scores'
 * registers are then free for dp. */
__device__ static inline void pack_slopes(uint32_t (&slope)[16], float half, const float (&x)[32]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
        float v[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float h = half * x[e + i], t = tanh_approx(h);
            v[i] = fmaf(0.5f, t, 0.5f) * fmaf(h, 1.0f - t, 1.0f);
        }
        slope[e / 2] = cvt_pack<__half>(v[0], v[1]);
    }
}

/* The gradients of scores, as the left operand of the next product; bit e of `seen`: pair e is
 * visible. */
template <typename T>
__device__ static inline void pack_gradients(uint32_t (&left)[4][4], uint32_t seen,
                                             const uint32_t (&slope)[16], const float (&dp)[32]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
        float2 d = __half22float2(*(const __half2 *)&slope[e / 2]);
        left[e / 8][e / 2 % 4] = cvt_pack<T>((seen >> e & 1) != 0 ? dp[e] * d.x : 0,
                                             (seen >> e & 2) != 0 ? dp[e + 1] * d.y : 0);
    }
}

/* The buffer of a tile's values is free as soon as dp is computed, so that one stage is enough;
 * keys are needed to the end of the tile. */
template <int D> struct q_shape {
    static constexpr int ROWS = DQ_ROWS, KEYS = 64, THREADS = 3 * GROUP;
    static constexpr int OWN = ROWS * D * 2, TILE = KEYS * D * 2;
    static constexpr int BYTES = 2 * OWN + (DQ_STAGES + 1) * TILE + 1024;
};

typedef struct q_barriers {
    uint64_t own, keys[DQ_STAGES], keys_free[DQ_STAGES], values, values_free;
} q_barriers;

template <int D> struct q_work {
    attn_sequence s;
    int head, row0;
    char *queries, *douts, *keys, *values; /* keys: DQ_STAGES tiles */
    q_barriers *barriers;
};

template <int D>
__device__ static inline int next_keys(const attn_args &a, const q_work<D> &w, int j) {
    using shape = q_shape<D>;
    while (j < w.s.len_k &&
           attn_tile_is_empty(&a, &w.s, w.row0, w.row0 + shape::ROWS, j, j + shape::KEYS))
        j += shape::KEYS;
    return j;
}

template <int D>
__device__ static void q_ask(const attn_args &a, const q_work<D> &w, const bwd_maps &maps) {
    using shape = q_shape<D>;
    q_barriers *b = w.barriers;
    int x = w.head * D, n = 0;
    barrier_expect(&b->own, 2 * shape::OWN);
    load_rows<D, shape::ROWS>(w.queries, &maps.q, &b->own, x, w.s.row_q + w.row0);
    load_rows<D, shape::ROWS>(w.douts, &maps.dout, &b->own, x, w.s.row_q + w.row0);
    for (int j = next_keys(a, w, 0); j < w.s.len_k; j = next_keys(a, w, j + shape::KEYS), n++) {
        int stage = n % DQ_STAGES;
        barrier_wait(&b->keys_free[stage], (uint32_t)(n / DQ_STAGES + 1) & 1);
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
__device__ static inline void q_scores(const q_work<D> &w, int own, int n, float (&x)[32]) {
    using shape = q_shape<D>;
    int stage = n % DQ_STAGES;
    barrier_wait(&w.barriers->keys[stage], (uint32_t)(n / DQ_STAGES) & 1);
    wgmma_fence();
    product_of_rows<T, D, shape::ROWS, 64>(x, w.queries + own, w.keys + stage * shape::TILE);
    wgmma_commit();
}

/* And the gradients of their weights. */
template <typename T, int D>
__device__ static inline void q_dp(const q_work<D> &w, int own, int n, float (&x)[32]) {
    barrier_wait(&w.barriers->values, (uint32_t)n & 1);
    wgmma_fence();
    product_of_rows<T, D, q_shape<D>::ROWS, 64>(x, w.douts + own, w.values);
    wgmma_commit();
}

template <typename T, int D>
__device__ static void q_compute(const attn_args &a, const q_work<D> &w, int group) {
    using shape = q_shape<D>;
    q_barriers *b = w.barriers;
    int first = w.row0 + group * 64, own = group * 64 * part<D>::BYTES, n = 0,
        j = next_keys(a, w, 0);
    int row = first + (int)threadIdx.x % GROUP / 32 * 16 + (int)threadIdx.x % 32 / 4;
    float sum[D / 2], x[32], half = 0.5f * a.alpha; /* x: scores, then dp */
    uint32_t slope[16];
    uint32_t left[4][4];
    clear(sum);
    barrier_wait(&b->own, 0);
    if (j < w.s.len_k) {
        uint32_t seen = rows_mask(a, w.s, first, row, j);
        q_scores<T, D>(w, own, 0, x);
        wgmma_wait<0>();
        pack_slopes(slope, half, x);
        q_dp<T, D>(w, own, 0, x);
        wgmma_wait<0>();
        release(&b->values_free);
        pack_gradients<T>(left, seen, slope, x);
        for (j = next_keys(a, w, j + shape::KEYS); j < w.s.len_k;
             j = next_keys(a, w, j + shape::KEYS), n++) {
            seen = rows_mask(a, w.s, first, row, j);
            q_scores<T, D>(w, own, n + 1, x);
            add_tile<T, D>(sum, left, w.keys + n % DQ_STAGES * shape::TILE);
            wgmma_wait<1>();
            pack_slopes(slope, half, x);
            q_dp<T, D>(w, own, n + 1, x);
            wgmma_wait<0>();
            release(&b->values_free);
            release(&b->keys_free[n % DQ_STAGES]);
            pack_gradients<T>(left, seen, slope, x);
        }
        wgmma_fence();
        add_tile<T, D>(sum, left, w.keys + n % DQ_STAGES * shape::TILE);
        wgmma_wait<0>();
    }
    store_wide<T, D>((T *)a.dq + (int64_t)w.s.row_q * a.stride_q + w.head * D, a.stride_q, row,
                     w.s.len_q, a.alpha * a.scale, sum);
}

template <typename T, int D>
__global__ void __launch_bounds__(q_shape<D>::THREADS, 1)
    attn_bwd_dq_sm90_kernel(const attn_args a, const __grid_constant__ bwd_maps maps,
                            const attn_tiles tiles) {
    extern __shared__ char room[];
    __shared__ q_barriers barriers;
    __shared__ tiles_unit unit;
    using shape = q_shape<D>;
    q_work<D> w;
    int group = (int)threadIdx.x / GROUP - 1;
    if ((int)blockIdx.x >= tiles_count(tiles)) return;
    if (threadIdx.x < 32) {
        tiles_unit u = tiles_find(tiles, (int)blockIdx.x);
        if (threadIdx.x == 0) unit = u;
    }
    __syncthreads();
    w.s = attn_sequence_of(&a, unit.b);
    w.head = unit.head;
    w.row0 = unit.row0;
    if (w.row0 >= w.s.len_q) return;
    w.queries = room + (1024 - shared_address(room) % 1024) % 1024;
    w.douts = w.queries + shape::OWN;
    w.keys = w.douts + shape::OWN;
    w.values = w.keys + DQ_STAGES * shape::TILE;
    w.barriers = &barriers;
    if (threadIdx.x == 0) {
        barrier_init(&barriers.own, 1);
        barrier_init(&barriers.values, 1);
        barrier_init(&barriers.values_free, DQ_WARPS);
        for (int i = 0; i < DQ_STAGES; i++) {
            barrier_init(&barriers.keys[i], 1);
            barrier_init(&barriers.keys_free[i], DQ_WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (group < 0) {
        registers_lower<24>();
        if (threadIdx.x == 0) q_ask<D>(a, w, maps);
    } else {
        registers_raise<240>();
        q_compute<T, D>(a, w, group);
    }
}

template <typename T, int D> static status launch(backend *be, const bwd_job *job) {
    using shape = q_shape<D>;
    int n_blocks = job->query_tiles.n_units;
    if (n_blocks == 0) return OK;
    return cuda_launch(be, "the gradient of the attention's queries", attn_bwd_dq_sm90_kernel<T, D>,
                       n_blocks, shape::THREADS, shape::BYTES, job->a, job->maps, job->query_tiles);
}

status bwd_queries(backend *be, const bwd_job *job) {
    using T = __nv_bfloat16;
    if (job->a.dim_qk == 32) return launch<T, 32>(be, job);
    if (job->a.dim_qk == 64) return launch<T, 64>(be, job);
    return job->a.dim_qk == 128 ? launch<T, 128>(be, job) : launch<T, 256>(be, job);
}
