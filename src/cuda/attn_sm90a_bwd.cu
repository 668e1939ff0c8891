/* HSTU attention, backward, on Hopper: heads of 64 and 128 numbers.
 *
 * A block owns 64 keys for each of its warpgroups, who keep dk and dv of theirs in registers; one
 * warp asks for the queries and dout, tile by tile.  For each tile a warpgroup makes scores and
 * dp, weights and their gradients, adds to dv and dk, and leaves the gradients in shared memory
 * for dq.  That product is one tile late, so that no warpgroup waits for another; while one
 * computes weights the others' products run.  Bound by the tensor cores. */
#include "cuda/attn_sm90a_bwd.cuh"

/* One warpgroup alone needs no warp that asks, and takes the place of half a block or less. */
template <int D, int GROUPS> struct bwd_shape {
    static constexpr int KEYS = 64 * GROUPS, WARPS = 4 * GROUPS, STAGES = GROUPS > 1 ? 3 : 2;
    static constexpr int BLOCKS = GROUPS > 1 ? 1 : 2; /* a multiprocessor */
    static constexpr int THREADS = GROUPS > 1 ? (GROUPS + 1) * GROUP : GROUP;
    static constexpr int MORE = GROUPS == 3 ? 160 : 240;  /* registers of those who compute */
    static constexpr int DQ = D / (D == 64 ? 1 : GROUPS); /* columns of dq that a warpgroup makes */
    static constexpr int DQ_WARPS = D == 64 ? 4 : WARPS;
    static constexpr int OWN = KEYS * D * 2, TILE = QUERIES * D * 2, DS = KEYS * DS_ROW;
    static constexpr int BYTES = 2 * OWN + 2 * STAGES * TILE + 2 * DS;
};

template <int STAGES> struct bwd_barriers {
    uint64_t keys, values;                                 /* they are there */
    uint64_t queries[STAGES], douts[STAGES], free[STAGES]; /* free: all warps are done */
    uint64_t ds[2], ds_free[2];
    int tiles[KEPT]; /* tile n at n % KEPT; see bwd_describe */
};

/* What stands behind the tiles: the block's work too, since registers are wanted elsewhere. */
template <int STAGES> struct bwd_end {
    bwd_barriers<STAGES> barriers;
    bwd_work work;
};

template <int D, int GROUPS> struct bwd_room {
    char *keys, *values, *queries, *douts, *ds; /* queries and douts: STAGES tiles; ds: 2 */
    bwd_barriers<bwd_shape<D, GROUPS>::STAGES> *barriers;
};

/* ---- asking for tiles ------------------------------------------------------------------------ */

/* Tile n of the queries, from row i on; with the first come the keys and values, each before what
 * needs it. */
template <int D, int GROUPS>
__device__ static inline void bwd_ask_tile(const bwd_work &w, const bwd_room<D, GROUPS> &room,
                                           const bwd_maps &maps, int n, int i) {
    using shape = bwd_shape<D, GROUPS>;
    auto *b = room.barriers;
    int x = w.head * D, stage = n % shape::STAGES;
    if (n == 0) {
        barrier_expect(&b->keys, shape::OWN);
        load_rows<D, shape::KEYS>(room.keys, &maps.k, &b->keys, x, w.s.row_k + w.key0);
    }
    barrier_expect(&b->queries[stage], shape::TILE);
    load_rows<D, QUERIES>(room.queries + stage * shape::TILE, &maps.q, &b->queries[stage], x,
                          w.s.row_q + i);
    if (n == 0) {
        barrier_expect(&b->values, shape::OWN);
        load_rows<D, shape::KEYS>(room.values, &maps.v, &b->values, x, w.s.row_k + w.key0);
    }
    barrier_expect(&b->douts[stage], shape::TILE);
    load_rows<D, QUERIES>(room.douts + stage * shape::TILE, &maps.dout, &b->douts[stage], x,
                          w.s.row_q + i);
}

/* Tile n is the next from row *i on; false if there is none, which is told, too. */
template <int D, int GROUPS>
__device__ static inline bool bwd_ask_next(const attn_args &a, const bwd_work &w,
                                           const bwd_room<D, GROUPS> &room, const bwd_maps &maps,
                                           int n, int *i) {
    auto *b = room.barriers;
    uint64_t *queries = &b->queries[n % bwd_shape<D, GROUPS>::STAGES];
    *i = next_queries(a, w, *i);
    bool is_one = *i < w.end;
    if (is_one)
        bwd_ask_tile<D, GROUPS>(w, room, maps, n, *i);
    else
        barrier_arrive(queries);
    b->tiles[n % KEPT] = is_one ? bwd_describe(a, w, *i) : -1;
    barrier_arrive(queries);
    *i += QUERIES;
    return is_one;
}

template <int D, int GROUPS>
__device__ static void bwd_ask(const attn_args &a, const bwd_work &w,
                               const bwd_room<D, GROUPS> &room, const bwd_maps &maps) {
    constexpr int STAGES = bwd_shape<D, GROUPS>::STAGES;
    int n = 0, i = w.begin;
    do
        barrier_wait(&room.barriers->free[n % STAGES], (uint32_t)(n / STAGES + 1) & 1);
    while (bwd_ask_next<D, GROUPS>(a, w, room, maps, n++, &i));
}

/* ---- computing ------------------------------------------------------------------------------- */

/* dq of tile n: each warpgroup has its columns, or, where there is but one block of them, its turn.
 */
template <typename T, int D, int GROUPS>
__device__ static inline void bwd_dq(const attn_args &a, const bwd_work &w,
                                     const bwd_room<D, GROUPS> &room, int group, int n) {
    using shape = bwd_shape<D, GROUPS>;
    constexpr bool IS_SHARED = shape::DQ == D;
    float dq[shape::DQ / 2];
    if (IS_SHARED && GROUPS > 1 && n % GROUPS != group) return;
    int column = IS_SHARED ? 0 : group * shape::DQ;
    if constexpr (GROUPS > 1) barrier_wait(&room.barriers->ds[n % 2], (uint32_t)(n / 2) & 1);
    wgmma_fence();
    dq_product<T, shape::KEYS, shape::DQ>(dq, room.ds + n % 2 * shape::DS,
                                          room.keys + column / PART * shape::KEYS * PART_BYTES);
    wgmma_wait<0>();
    if constexpr (GROUPS > 1) release(&room.barriers->ds_free[n % 2]);
    dq_add<T, D, shape::DQ>(a, w, room.barriers->tiles[n % KEPT] / QUERIES * QUERIES, column, dq);
}

/* Scores, weights and gradients of tile n: dv and the gradients in shared memory. */
template <typename T, int D, int GROUPS>
__device__ static inline void bwd_tile(const bwd_work &w, const bwd_room<D, GROUPS> &room,
                                       int group, int n, float half, uint32_t seen,
                                       float (&dv)[D / 2], uint32_t (&ds)[4][4]) {
    using shape = bwd_shape<D, GROUPS>;
    auto *b = room.barriers;
    int stage = n % shape::STAGES, own = group * 64 * PART_BYTES;
    uint32_t parity = (uint32_t)(n / shape::STAGES) & 1, weights[4][4];
    const char *douts = room.douts + stage * shape::TILE;
    float x[32], dp[32];
    if (n == 0) barrier_wait(&b->keys, 0);
    wgmma_fence();
    product_of_rows<T, D, shape::KEYS, 64>(x, room.keys + own, room.queries + stage * shape::TILE);
    wgmma_commit();
    if (n == 0) barrier_wait(&b->values, 0);
    barrier_wait(&b->douts[stage], parity);
    wgmma_fence();
    product_of_rows<T, D, shape::KEYS, 64>(dp, room.values + own, douts);
    wgmma_commit();
    wgmma_wait<1>();
    bwd_hide(seen, x);
    bwd_weights<T>(half, x, weights);
    wgmma_fence();
    add_tile<T, D>(dv, weights, douts);
    wgmma_wait<1>();
    bwd_hide(seen, dp);
    bwd_gradients<T>(x, dp, ds);
    if (!w.has_dq) return;
    if constexpr (GROUPS > 1) barrier_wait(&b->ds_free[n % 2], (uint32_t)(n / 2 + 1) & 1);
    bwd_put(room.ds + n % 2 * shape::DS, group * 64, ds);
}

template <typename T, int D>
__device__ static inline void bwd_store(const attn_args &a, const bwd_work &w, int key,
                                        const float (&dk)[D / 2], const float (&dv)[D / 2]) {
    int64_t column = (int64_t)w.head * D;
    store_wide<T, D>((T *)a.dv + (int64_t)w.s.row_k * a.stride_v + column, a.stride_v, key,
                     w.s.len_k, a.scale, dv);
    store_wide<T, D>((T *)a.dk + (int64_t)w.s.row_k * a.stride_k + column, a.stride_k, key,
                     w.s.len_k, 0.5f * a.alpha * a.scale, dk);
}

template <typename T, int D, int GROUPS>
__device__ static void bwd_compute(const attn_args &a, const bwd_work &w,
                                   const bwd_room<D, GROUPS> &room, int group) {
    using shape = bwd_shape<D, GROUPS>;
    auto *b = room.barriers;
    int key = w.key0 + group * 64 + row_of_thread(), n = 0;
    float dk[D / 2], dv[D / 2], half = 0.5f * a.alpha;
    clear(dk);
    clear(dv);
    for (;; n++) {
        int stage = n % shape::STAGES;
        uint32_t ds[4][4], seen = 0xffffffffu;
        barrier_wait(&b->queries[stage], (uint32_t)(n / shape::STAGES) & 1);
        int tile = b->tiles[n % KEPT];
        if (tile < 0) break;
        if ((tile >> group & 1) == 0) seen = bwd_mask(a, w.s, key, tile / QUERIES * QUERIES);
        bwd_tile<T, D, GROUPS>(w, room, group, n, half, seen, dv, ds);
        release(&b->ds[n % 2]);
        wgmma_fence();
        add_tile<T, D>(dk, ds, room.queries + stage * shape::TILE);
        if (n > 0 && w.has_dq) bwd_dq<T, D, GROUPS>(a, w, room, group, n - 1);
        wgmma_wait<0>();
        release(&b->free[stage]);
    }
    if (n > 0 && w.has_dq) bwd_dq<T, D, GROUPS>(a, w, room, group, n - 1);
    bwd_store<T, D>(a, w, key, dk, dv);
}

/* A warpgroup alone: it asks for its own tiles, and dq need not wait. */
template <typename T, int D>
__device__ static void bwd_compute_alone(const attn_args &a, const bwd_work &w,
                                         const bwd_room<D, 1> &room, const bwd_maps &maps) {
    using shape = bwd_shape<D, 1>;
    auto *b = room.barriers;
    int key = w.key0 + row_of_thread(), i = w.begin;
    bool is_asking = threadIdx.x == 0;
    float dk[D / 2], dv[D / 2], half = 0.5f * a.alpha;
    for (int n = 0; n < 2 && is_asking; n++)
        is_asking = bwd_ask_next<D, 1>(a, w, room, maps, n, &i);
    clear(dk);
    clear(dv);
    for (int n = 0;; n++) {
        int stage = n % shape::STAGES;
        uint32_t ds[4][4], seen = 0xffffffffu;
        barrier_wait(&b->queries[stage], (uint32_t)(n / shape::STAGES) & 1);
        int tile = b->tiles[n % KEPT];
        if (tile < 0) break;
        if ((tile & 1) == 0) seen = bwd_mask(a, w.s, key, tile / QUERIES * QUERIES);
        bwd_tile<T, D, 1>(w, room, 0, n, half, seen, dv, ds);
        named_barrier(1, GROUP); /* and all are done with the tile before */
        if (n > 0 && is_asking) is_asking = bwd_ask_next<D, 1>(a, w, room, maps, n + 1, &i);
        wgmma_fence();
        add_tile<T, D>(dk, ds, room.queries + stage * shape::TILE);
        if (w.has_dq) bwd_dq<T, D, 1>(a, w, room, 0, n);
        wgmma_wait<0>();
    }
    bwd_store<T, D>(a, w, key, dk, dv);
}

template <int D, int GROUPS>
__device__ static inline void bwd_barriers_init(const bwd_room<D, GROUPS> &room) {
    using shape = bwd_shape<D, GROUPS>;
    auto *b = room.barriers;
    barrier_init(&b->keys, 1);
    barrier_init(&b->values, 1);
    for (int i = 0; i < shape::STAGES; i++) {
        barrier_init(&b->queries[i], 2); /* the copy and the description */
        barrier_init(&b->douts[i], 1);
        barrier_init(&b->free[i], shape::WARPS);
    }
    for (int i = 0; i < 2; i++) {
        barrier_init(&b->ds[i], shape::WARPS);
        barrier_init(&b->ds_free[i], shape::DQ_WARPS);
    }
    barrier_init_done();
}

template <typename T, int D, int GROUPS>
__global__ void __launch_bounds__(bwd_shape<D, GROUPS>::THREADS, bwd_shape<D, GROUPS>::BLOCKS)
    bwd_kernel(const __grid_constant__ bwd_job job) {
    using shape = bwd_shape<D, GROUPS>;
    extern __shared__ __align__(1024) char shared[];
    auto *end = (bwd_end<shape::STAGES> *)(shared + shape::BYTES);
    const bwd_work &w = end->work;
    bwd_room<D, GROUPS> room;
    room.keys = shared;
    room.values = room.keys + shape::OWN;
    room.queries = room.values + shape::OWN;
    room.douts = room.queries + shape::STAGES * shape::TILE;
    room.ds = room.douts + shape::STAGES * shape::TILE;
    room.barriers = &end->barriers;
    if (threadIdx.x == 0) {
        bwd_barriers_init<D, GROUPS>(room);
        bwd_find(job, shape::KEYS, (int)blockIdx.x, &end->work);
    }
    __syncthreads();
    if (w.key0 >= w.s.len_k) return;
    if constexpr (GROUPS == 1) {
        bwd_compute_alone<T, D>(job.a, w, room, job.maps);
    } else if (threadIdx.x >= GROUPS * GROUP) {
        registers_lower<24>();
        if (threadIdx.x == GROUPS * GROUP) bwd_ask<D, GROUPS>(job.a, w, room, job.maps);
    } else {
        registers_raise<shape::MORE>();
        bwd_compute<T, D, GROUPS>(job.a, w, room, (int)threadIdx.x / GROUP);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

template <typename T, int D, int GROUPS> static status launch(backend *be, const attn_args *a) {
    using shape = bwd_shape<D, GROUPS>;
    constexpr int BYTES = shape::BYTES + (int)sizeof(bwd_end<shape::STAGES>);
    bwd_job job;
    TRY(bwd_prepare(be, a, shape::KEYS, &job));
    int64_t n_blocks = (int64_t)job.n_tiles * a->n_heads * a->n_sequences;
    if (n_blocks > 0) {
        CUDA_TRY(CUDA_ALLOW_SHARED((bwd_kernel<T, D, GROUPS>), BYTES));
        bwd_kernel<T, D, GROUPS>
            <<<(unsigned)n_blocks, shape::THREADS, BYTES, cuda_of(be)->stream>>>(job);
        TRY(cuda_launched("the gradient of the attention"));
    }
    return bwd_finish(be, &job);
}

/* Short sequences want many small blocks, long ones many keys for each tile of queries. */
template <typename T> static status choose(backend *be, const attn_args *a) {
    enum { SHORT = 256 };
    if (a->dim_qk == 64)
        return a->max_len_k <= SHORT ? launch<T, 64, 1>(be, a) : launch<T, 64, 2>(be, a);
    return a->max_len_k <= SHORT ? launch<T, 128, 1>(be, a) : launch<T, 128, 2>(be, a);
}

status cuda_attn_sm90a_bwd(backend *be, const attn_args *a) {
    if (a->dim_qk == 256) return cuda_attn_sm90a_bwd_256(be, a);
    return be->act == ACT_BF16 ? choose<__nv_bfloat16>(be, a) : choose<__half>(be, a);
}
