/* HSTU attention, forward, on Hopper: products of warpgroups on tiles that the copy engine brings.
 *
 * A block owns 128 query rows of one sequence and head, in shared memory.  One warp asks for keys
 * and values, tile by tile, two ahead; two warpgroups of 64 rows compute.  There is no softmax, so
 * nothing is kept from tile to tile but the sum: the scores of the next tile are computed while
 * those of this one meet the values, and SiLU runs under both.  Bound by the tensor cores. */
#include "cuda/attn_sm90a.cuh"

/* ---- tiles ----------------------------------------------------------------------------------- */

template <int D> struct fwd_shape {
    static constexpr int ROWS = 128, KEYS = D == 256 ? 64 : 128, STAGES = 2, WARPS = 8;
    static constexpr int THREADS = 3 * GROUP;
    static constexpr int TILE = KEYS * D * 2, QUERIES = ROWS * D * 2;
    static constexpr int BYTES = QUERIES + 2 * STAGES * TILE + 1024; /* and room to align */
};

typedef struct fwd_barriers {
    uint64_t queries, keys[2], values[2];  /* they are there */
    uint64_t keys_free[2], values_free[2]; /* all warps are done with them */
} fwd_barriers;

typedef struct fwd_maps {
    CUtensorMap q, k, v;
} fwd_maps;

/* One block's part of the work, and where its tiles lie. */
template <int D> struct fwd_work {
    attn_seq s;
    int head, row0;
    char *queries, *keys, *values; /* keys and values: STAGES tiles */
    fwd_barriers *barriers;
};

/* The first column of the next tile that is not empty, from j on. */
template <int D>
__device__ static inline int next_tile(const attn_args &a, const fwd_work<D> &w, int j) {
    while (j < w.s.len_k && attn_tile_is_empty(a, w.s, w.row0, w.row0 + fwd_shape<D>::ROWS, j,
                                               j + fwd_shape<D>::KEYS))
        j += fwd_shape<D>::KEYS;
    return j;
}

/* ---- the warp that asks ---------------------------------------------------------------------- */

template <int D>
__device__ static void fwd_ask(const attn_args &a, const fwd_work<D> &w, const fwd_maps &maps) {
    using shape = fwd_shape<D>;
    fwd_barriers *b = w.barriers;
    int x = w.head * D, n = 0;
    barrier_expect(&b->queries, shape::QUERIES);
    load_rows<D, shape::ROWS>(w.queries, &maps.q, &b->queries, x, w.s.row_q + w.row0);
    for (int j = next_tile(a, w, 0); j < w.s.len_k; j = next_tile(a, w, j + shape::KEYS), n++) {
        int stage = n % shape::STAGES;
        uint32_t parity = (uint32_t)(n / shape::STAGES + 1) & 1;
        barrier_wait(&b->keys_free[stage], parity);
        barrier_expect(&b->keys[stage], shape::TILE);
        load_rows<D, shape::KEYS>(w.keys + stage * shape::TILE, &maps.k, &b->keys[stage], x,
                                  w.s.row_k + j);
        barrier_wait(&b->values_free[stage], parity);
        barrier_expect(&b->values[stage], shape::TILE);
        load_rows<D, shape::KEYS>(w.values + stage * shape::TILE, &maps.v, &b->values[stage], x,
                                  w.s.row_k + j);
    }
}

/* ---- the warpgroups that compute ------------------------------------------------------------- */

__device__ static inline void release(uint64_t *barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

/* The pairs of a tile that are seen, 32 bits for each 64 columns.  Made before the scores are,
 * while registers are free. */
template <int KEYS> struct fwd_seen { uint32_t bits[KEYS / 64]; };

template <int KEYS>
__device__ static inline fwd_seen<KEYS> fwd_mask(const attn_args &a, const attn_seq &s, int first,
                                                 int row, int j) {
    fwd_seen<KEYS> seen;
#pragma unroll
    for (int part = 0; part < KEYS / 64; part++)
        seen.bits[part] = rows_mask(a, s, first, row, j + part * 64);
    return seen;
}

/* x = silu(alpha x) where the pair is seen, else 0; half is alpha / 2. */
template <int KEYS>
__device__ static inline void apply(float half, const fwd_seen<KEYS> &seen, float (&x)[KEYS / 2]) {
#pragma unroll
    for (int e = 0; e < KEYS / 2; e++) {
        float h = half * x[e];
        x[e] = (seen.bits[e / 32] >> e % 32 & 1) != 0 ? fmaf(h, tanh_approx(h), h) : 0;
    }
}

template <typename T, int D>
__device__ static void fwd_compute(const attn_args &a, const fwd_work<D> &w) {
    using shape = fwd_shape<D>;
    constexpr int KEYS = shape::KEYS;
    fwd_barriers *b = w.barriers;
    int group = (int)threadIdx.x / GROUP - 1;
    int first = w.row0 + group * 64;
    int row = first + (int)threadIdx.x % GROUP / 32 * 16 + (int)threadIdx.x % 32 / 4;
    const char *queries = w.queries + group * 64 * PART_BYTES;
    float out[D / 2], x[KEYS / 2], half = 0.5f * a.alpha;
    uint32_t left[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        out[i] = 0;
    barrier_wait(&b->queries, 0);
    int j = next_tile(a, w, 0), n = 0;
    if (j < w.s.len_k) {
        fwd_seen<KEYS> seen = fwd_mask<KEYS>(a, w.s, first, row, j);
        barrier_wait(&b->keys[0], 0);
        wgmma_fence();
        product_of_rows<T, D, shape::ROWS, KEYS>(x, queries, w.keys);
        wgmma_commit();
        wgmma_wait<0>();
        release(&b->keys_free[0]);
        apply<KEYS>(half, seen, x);
        pack_left<T, KEYS>(left, x);
        /* Each turn meets the values of one tile and makes the scores of the next; the last tile
         * has no next. */
        for (j = next_tile(a, w, j + KEYS); j < w.s.len_k; j = next_tile(a, w, j + KEYS), n++) {
            int stage = n % shape::STAGES, next = (n + 1) % shape::STAGES;
            seen = fwd_mask<KEYS>(a, w.s, first, row, j);
            barrier_wait(&b->keys[next], (uint32_t)((n + 1) / shape::STAGES) & 1);
            wgmma_fence();
            product_of_rows<T, D, shape::ROWS, KEYS>(x, queries, w.keys + next * shape::TILE);
            wgmma_commit();
            barrier_wait(&b->values[stage], (uint32_t)(n / shape::STAGES) & 1);
            product_with_rows<T, D, KEYS>(out, left, w.values + stage * shape::TILE);
            wgmma_commit();
            wgmma_wait<1>();
            release(&b->keys_free[next]);
            apply<KEYS>(half, seen, x);
            wgmma_wait<0>();
            release(&b->values_free[stage]);
            pack_left<T, KEYS>(left, x);
        }
        barrier_wait(&b->values[n % shape::STAGES], (uint32_t)(n / shape::STAGES) & 1);
        wgmma_fence();
        product_with_rows<T, D, KEYS>(out, left, w.values + n % shape::STAGES * shape::TILE);
        wgmma_commit();
        wgmma_wait<0>();
    }
    T *to = (T *)a.out + (int64_t)w.s.row_q * a.stride_out + w.head * D;
    store_rows<T, D>(to, a.stride_out, row, w.s.len_q, a.scale, out);
}

/* Blocks of one sequence and head follow each other, so that its keys and values are read from
 * memory once; of these the last rows, which see most, come first. */
template <typename T, int D>
__global__ void __launch_bounds__(fwd_shape<D>::THREADS, 1)
    fwd_kernel(const attn_args a, const __grid_constant__ fwd_maps maps, int n_tiles) {
    extern __shared__ char room[];
    __shared__ fwd_barriers barriers;
    using shape = fwd_shape<D>;
    fwd_work<D> w;
    int place = (int)(blockIdx.x / n_tiles);
    w.s = attn_seq_of(a, place / a.n_heads);
    w.head = place % a.n_heads;
    w.row0 = (n_tiles - 1 - (int)(blockIdx.x % n_tiles)) * shape::ROWS;
    if (w.row0 >= w.s.len_q) return;
    w.queries = room + (1024 - shared_address(room) % 1024) % 1024;
    w.keys = w.queries + shape::QUERIES;
    w.values = w.keys + shape::STAGES * shape::TILE;
    w.barriers = &barriers;
    if (threadIdx.x == 0) {
        barrier_init(&barriers.queries, 1);
        for (int i = 0; i < shape::STAGES; i++) {
            barrier_init(&barriers.keys[i], 1);
            barrier_init(&barriers.values[i], 1);
            barrier_init(&barriers.keys_free[i], shape::WARPS);
            barrier_init(&barriers.values_free[i], shape::WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < GROUP) {
        registers_lower<24>();
        if (threadIdx.x == 0) fwd_ask<D>(a, w, maps);
    } else {
        registers_raise<240>();
        fwd_compute<T, D>(a, w);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

template <typename T, int D> static status launch(backend *be, const attn_args *a) {
    using shape = fwd_shape<D>;
    fwd_maps maps;
    int64_t columns = (int64_t)a->n_heads * D;
    int64_t n_tiles = cuda_div_up(a->max_len_q, shape::ROWS);
    int64_t n_blocks = n_tiles * a->n_heads * a->n_sequences;
    if (n_blocks == 0) return OK;
    TRY(sm90a_map(&maps.q, be->act, a->q, a->n_rows_q, columns, a->stride_q));
    TRY(sm90a_map(&maps.k, be->act, a->k, a->n_rows_k, columns, a->stride_k));
    TRY(sm90a_map(&maps.v, be->act, a->v, a->n_rows_k, columns, a->stride_v));
    CUDA_TRY(CUDA_ALLOW_SHARED((fwd_kernel<T, D>), shape::BYTES));
    fwd_kernel<T, D><<<(unsigned)n_blocks, shape::THREADS, shape::BYTES, cuda_of(be)->stream>>>(
        *a, maps, (int)n_tiles);
    return cuda_launched("the attention");
}

template <typename T> static status launch_dim(backend *be, const attn_args *a) {
    return a->dim_qk == 128 ? launch<T, 128>(be, a) : launch<T, 256>(be, a);
}

status cuda_attn_sm90a_fwd(backend *be, const attn_args *a) {
    if (be->act == ACT_BF16) return launch_dim<__nv_bfloat16>(be, a);
    return launch_dim<__half>(be, a);
}
