/* The backward kernel of the attention on Hopper that owns keys: head dimensions 32 to 128.
 *
 * A persistent kernel with one producer warp.  A consumer warpgroup computes with 64 keys and keeps
 * their dk and dv in registers.  For each tile of queries it makes scores and dp, weights and their
 * gradients, adds to dv and dk, and leaves the gradients in shared memory for dq.
 * - One warpgroup a block, two blocks a multiprocessor, for short sequences at head dimensions 32
 * and 64, and for biases at these dimensions: while one block waits the other computes.
 * - Else two warpgroups: they share the tiles of queries and halve the additions to dq.  Each
 * computes half of the columns of dq (head dimensions up to 64: every second tile), one tile later
 * than the scores, so that neither waits for the other. Bound by the tensor cores, with short
 * sequences by latency; with a bias see attn_sm90_bias.cuh. */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_BWD_KEYS_CUH
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_BWD_KEYS_CUH

#include "cuda/attn/sm90/attn_sm90_bwd_producer.cuh"

/* Default tile sizes; a kernel's own struct overrides some of them.  D is the head dimension,
 * GROUPS the consumer warpgroups, each with 64 keys. */
struct bwd_sizes {
    static constexpr bool IS_WHOLE = false; /* true: blocks always work on whole sequences */
    static constexpr attn_bias BIAS = BIAS_NONE;
};

/* All that follows from the sizes. */
template <typename SIZES> struct bwd_shape {
    static constexpr attn_bias BIAS = SIZES::BIAS;
    static constexpr bool IS_WHOLE = SIZES::IS_WHOLE;
    static constexpr int D = SIZES::D, GROUPS = SIZES::GROUPS, KEYS = 64 * GROUPS;
    static constexpr int WARPS = 4 * GROUPS;
    /* A block that works on whole sequences changes its keys often, so the next keys are loaded
     * ahead.  A bias table takes the room of the third stage. */
    static constexpr int STAGES = (D > 64 && IS_WHOLE) || BIAS == BIAS_TABLE ? 2 : 3;
    static constexpr int OWNS = D <= 64 || IS_WHOLE ? 2 : 1;
    static constexpr int BLOCKS = 3 - GROUPS, THREADS = (GROUPS + 1) * GROUP;
    /* Registers of a producer and of a consumer thread (setmaxnreg): 64 Ki in all. */
    static constexpr bool ASKS_MORE = GROUPS == 1 ? BIAS != BIAS_NONE : D > 64 && BIAS == BIAS_TIME;
    static constexpr int COMPUTING = (D > 64 ? 232 : 216) - (ASKS_MORE ? 8 : 0);
    static constexpr int ASKING = (GROUPS > 1 && D <= 64 ? 72 : 40) + (ASKS_MORE ? 8 * GROUPS : 0);
    static_assert(GROUPS * COMPUTING + ASKING <= (GROUPS > 1 ? 504 : 256), "registers");
    static constexpr int OWN = KEYS * D * 2, TILE = QUERIES * D * 2, DS = KEYS * DS_ROW;
    static constexpr int TABLES = BIAS == BIAS_TABLE ? STAGES * GROUPS * TABLE_TILE : 0;
    static constexpr int BYTES = 2 * OWNS * OWN + 2 * STAGES * TILE + 2 * DS + TABLES;
};

template <typename SIZES> struct walk_bias<bwd_shape<SIZES>> {
    static constexpr attn_bias KIND = SIZES::BIAS;
};

/* Shared memory after the tiles. */
template <typename S> struct bwd_end {
    walk_end<S> walk;
    uint64_t ds[2], ds_free[2]; /* of two warpgroups */
};

template <typename S> struct bwd_room {
    walk_room<S> walk;
    char *ds; /* two */
    bwd_end<S> *end;
};

/* The current tile of keys: which of OWNS buffers, and which 64 keys of it are the warpgroup's.
 * Everything else is recomputed where it is needed: registers are scarce. */
template <typename S> struct bwd_own {
    int at, group;
    __device__ int bytes() const {
        return at * S::OWN + group * 64 * part<S::D>::BYTES;
    }
};

template <typename S>
__device__ static inline const bwd_keys &bwd_record(const bwd_room<S> &room,
                                                    const bwd_own<S> &own) {
    return room.walk.end->records[own.at];
}
template <typename S>
__device__ static inline int bwd_key(const bwd_room<S> &room, const bwd_own<S> &own) {
    return bwd_record<S>(room, own).key0 + own.group * 64 + row_of_thread();
}

/* The word that describes tile n, once its queries have arrived. */
template <typename S> __device__ static inline int bwd_word(const bwd_room<S> &room, int n) {
    walk_end<S> *e = room.walk.end;
    barrier_wait(&e->queries[n % S::STAGES], (uint32_t)(n / S::STAGES) & 1);
    return e->tiles[n % KEPT];
}

/* Adds the bias of tile n. */
template <typename S>
__device__ static inline void bwd_add_bias(const attn_args &a, const bwd_room<S> &room,
                                           const bwd_own<S> &own, int n, int word, float (&x)[32]) {
    if constexpr (S::BIAS != BIAS_NONE) {
        int stage = n % S::STAGES, row = own.group * 64 + row_of_thread();
        walk_biases<S, S::BIAS> &bias = room.walk.end->bias;
        barrier_wait(&bias.there[stage], (uint32_t)(n / S::STAGES) & 1);
        if constexpr (S::BIAS == BIAS_TABLE) {
            table_add<true>(room.walk.tables + (stage * S::GROUPS + own.group) * TABLE_TILE, x);
        } else {
            const bwd_keys &w = bwd_record<S>(room, own);
            const attn_sequence &s = w.pair.s;
            const time_tile<S::KEYS, QUERIES> *tile = &bias.tiles[stage];
            const int *times = bias.times[own.at] + row;
            time_rows rows = {{times[0], times[8]}, bias.are_wide[own.at] != 0};
            uint32_t buckets[8];
            if (rows.is_wide || tile->is_wide)
                time_add_wide(&bias.tables, tile, a.key_time + s.row_k, w.key0, s.len_k,
                              a.query_time + s.row_q, word / TILE_NUMBER * QUERIES, s.len_q, row, x,
                              buckets);
            else
                time_add(&bias.tables, tile, rows, row, x, buckets);
        }
    }
}

/* Scores, weights and gradients of tile n: adds to dv, and returns the gradients as the left
 * operand of a product. */
template <typename T, typename S>
__device__ static inline void bwd_tile(const attn_args &a, const bwd_room<S> &room,
                                       const bwd_own<S> &own, int n, int word,
                                       float (&dv)[S::D / 2], uint32_t (&ds)[4][4]) {
    int stage = n % S::STAGES;
    uint32_t weights[4][4], seen = 0xffffffffu, parity = (uint32_t)(n / S::STAGES) & 1;
    const char *keys = room.walk.keys + own.bytes(), *values = room.walk.values + own.bytes();
    const char *queries = room.walk.queries + stage * S::TILE;
    const char *douts = room.walk.douts + stage * S::TILE;
    float x[32];
    if ((word >> own.group & 1) == 0)
        seen = bwd_mask(a, bwd_record<S>(room, own).pair.s, bwd_key<S>(room, own),
                        word / TILE_NUMBER * QUERIES);
    wgmma_fence();
    product_of_rows<T, S::D, S::KEYS, 64>(x, keys, queries);
    wgmma_commit();
    barrier_wait(&room.walk.end->douts[stage], parity);
    if constexpr (S::D <= 64) {
        float dp[32];
        wgmma_fence();
        product_of_rows<T, S::D, S::KEYS, 64>(dp, values, douts);
        wgmma_commit();
        wgmma_wait<1>();
        bwd_add_bias<S>(a, room, own, n, word, x);
        bwd_hide(0.5f * a.alpha, seen, x);
        bwd_weights<T>(0.5f * a.alpha, x, weights);
        wgmma_fence();
        add_tile<T, S::D>(dv, weights, douts);
        wgmma_wait<1>();
        bwd_gradients<T>(x, dp, ds);
    } else { /* registers are scarce: dp reuses the registers of the scores */
        uint32_t slope[16];
        wgmma_wait<0>();
        bwd_add_bias<S>(a, room, own, n, word, x);
        bwd_hide(0.5f * a.alpha, seen, x);
        bwd_weights<T>(0.5f * a.alpha, x, weights, slope);
        wgmma_fence();
        product_of_rows<T, S::D, S::KEYS, 64>(x, values, douts);
        wgmma_commit();
        add_tile<T, S::D>(dv, weights, douts);
        wgmma_wait<1>();
        bwd_gradients<T>(slope, x, ds);
    }
}

/* Computes dq of tile n, one part of its columns after another: registers are scarce. */
template <typename T, typename S>
__device__ static inline void bwd_dq_now(const bwd_job &job, const bwd_room<S> &room,
                                         const bwd_own<S> &own, int n, int word,
                                         float (&dk)[S::D / 2], const uint32_t (&ds)[4][4]) {
    constexpr int N = part<S::D>::COLUMNS;
    char *gradients = room.ds + n % 2 * S::DS;
    if (job.has_dq) {
        bwd_put(gradients, 0, ds);
        named_barrier(1, GROUP); /* and all warps are done with the previous tile's gradients */
    }
    wgmma_fence();
    add_tile<T, S::D>(dk, ds, room.walk.queries + n % S::STAGES * S::TILE);
    if (!job.has_dq) return;
#pragma unroll
    for (int c = 0; c < S::D; c += N) {
        float dq[N / 2];
        wgmma_fence();
        dq_product<T, S::KEYS, N>(dq, gradients, room.walk.keys + own.bytes() + c * S::KEYS * 2);
        wgmma_wait<0>();
        dq_end<T, S::D, N>(job.a, bwd_record<S>(room, own), word, c, dq);
    }
}

template <typename T, typename S>
__device__ static inline int bwd_tiles_alone(const bwd_job &job, const bwd_room<S> &room,
                                             const bwd_own<S> &own, int n, float (&dk)[S::D / 2],
                                             float (&dv)[S::D / 2]) {
    for (int word = 0; (word & TILE_FINAL) == 0; n++) {
        uint32_t ds[4][4];
        word = bwd_word<S>(room, n);
        bwd_tile<T, S>(job.a, room, own, n, word, dv, ds);
        bwd_dq_now<T, S>(job, room, own, n, word, dk, ds);
        wgmma_wait<0>();
        release(&room.walk.end->free[n % S::STAGES]);
    }
    return n;
}

/* The warpgroup's columns of dq of tile n. */
template <typename T, typename S>
__device__ static inline void bwd_dq_late(const attn_args &a, const bwd_room<S> &room,
                                          const bwd_own<S> &own, int n) {
    constexpr int N = part<S::D>::COLUMNS;
    int column = S::D > N ? own.group * N : 0, word = room.walk.end->tiles[n % KEPT];
    const char *keys = room.walk.keys + own.at * S::OWN + column * S::KEYS * 2;
    float dq[N / 2];
    if (S::D == N && n % 2 != own.group) return; /* the warpgroups take turns */
    barrier_wait(&room.end->ds[n % 2], (uint32_t)(n / 2) & 1);
    wgmma_fence();
    dq_product<T, S::KEYS, N>(dq, room.ds + n % 2 * S::DS, keys);
    wgmma_wait<0>();
    release(&room.end->ds_free[n % 2]);
    dq_end<T, S::D, N>(a, bwd_record<S>(room, own), word, column, dq);
}

template <typename T, typename S>
__device__ static inline int bwd_tiles_together(const bwd_job &job, const bwd_room<S> &room,
                                                const bwd_own<S> &own, int n, float (&dk)[S::D / 2],
                                                float (&dv)[S::D / 2]) {
    bool is_first = true;
    for (int word = 0; (word & TILE_FINAL) == 0; n++) {
        int stage = n % S::STAGES;
        uint32_t ds[4][4];
        word = bwd_word<S>(room, n);
        bwd_tile<T, S>(job.a, room, own, n, word, dv, ds);
        if (S::IS_WHOLE || job.has_dq) {
            barrier_wait(&room.end->ds_free[n % 2], (uint32_t)(n / 2 + 1) & 1);
            bwd_put(room.ds + n % 2 * S::DS, own.group * 64, ds);
            release(&room.end->ds[n % 2]);
        }
        wgmma_fence();
        add_tile<T, S::D>(dk, ds, room.walk.queries + stage * S::TILE);
        if (!is_first && (S::IS_WHOLE || job.has_dq)) bwd_dq_late<T, S>(job.a, room, own, n - 1);
        wgmma_wait<0>();
        release(&room.walk.end->free[stage]);
        is_first = false;
    }
    if (S::IS_WHOLE || job.has_dq) bwd_dq_late<T, S>(job.a, room, own, n - 1);
    return n;
}

/* Consumes tiles of keys until there are no more.  The buffer of the keys is released before the
 * epilogue stores their gradients. */
template <typename T, typename S>
__device__ static void bwd_compute(const bwd_job &job, const bwd_room<S> &room, int group) {
    walk_end<S> *e = room.walk.end;
    for (int m = 0, n = 0;; m++) {
        bwd_own<S> own = {m % S::OWNS, group};
        uint32_t parity = (uint32_t)(m / S::OWNS) & 1;
        float dk[S::D / 2], dv[S::D / 2];
        barrier_wait(&e->keys[own.at], parity);
        if (e->records[own.at].pair.head < 0) return;
        barrier_wait(&e->values[own.at], parity);
        clear(dk);
        clear(dv);
        if (e->records[own.at].has_tiles) {
            if constexpr (S::GROUPS == 1)
                n = bwd_tiles_alone<T, S>(job, room, own, n, dk, dv);
            else
                n = bwd_tiles_together<T, S>(job, room, own, n, dk, dv);
        }
        bwd_pair p = bwd_record<S>(room, own).pair;
        int key = bwd_key<S>(room, own);
        __syncwarp();
        release(&e->own_free[own.at]);
        bwd_store<T, S::D>(job.a, p.s, p.head, key, dk, dv);
    }
}

template <typename S> __device__ static inline void bwd_barriers_init(bwd_end<S> *e) {
    for (int i = 0; i < 2; i++) {
        barrier_init(&e->ds[i], S::WARPS);
        barrier_init(&e->ds_free[i], S::D > PART ? S::WARPS : 4);
    }
    walk_barriers_init<S>(&e->walk);
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attn_bwd_sm90_kernel(const __grid_constant__ bwd_job job) {
    extern __shared__ __align__(1024) char shared[];
    bwd_room<S> room;
    room.walk.keys = shared;
    room.walk.values = room.walk.keys + S::OWNS * S::OWN;
    room.walk.queries = room.walk.values + S::OWNS * S::OWN;
    room.walk.douts = room.walk.queries + S::STAGES * S::TILE;
    room.ds = room.walk.douts + S::STAGES * S::TILE;
    room.walk.tables = room.ds + 2 * S::DS;
    room.end = (bwd_end<S> *)(shared + S::BYTES);
    room.walk.end = &room.end->walk;
    if (threadIdx.x == 0) bwd_barriers_init<S>(room.end);
    __syncthreads();
    grid_wait();
    if constexpr (S::BIAS == BIAS_TIME) {
        time_tables_load(job.a, job.bias.buckets, &room.walk.end->bias.tables);
        __syncthreads();
    }
    if (threadIdx.x >= S::GROUPS * GROUP) {
        registers_lower<S::ASKING>();
        if (threadIdx.x < S::GROUPS * GROUP + 32) walk<S>(job, room.walk);
    } else {
        registers_raise<S::COMPUTING>();
        bwd_compute<T, S>(job, room, (int)threadIdx.x / GROUP);
    }
}

/* Calls with a bias (attn_sm90_bwd_bias.cu). */
status cuda_attn_sm90_bwd_bias(backend *be, const attn_args *a);

template <typename T, typename S> static status bwd_launch(backend *be, const attn_args *a) {
    constexpr int BYTES = S::BYTES + (int)sizeof(bwd_end<S>);
    static_assert((BYTES + 1024) * S::BLOCKS <= 228 * 1024, "shared memory");
    int64_t n_blocks = (int64_t)S::BLOCKS * cuda_of(be)->n_multiprocessors;
    bwd_job job;
    TRY(bwd_prepare(be, a, S::KEYS, &n_blocks, &job));
    if (n_blocks > 0) {
        CUDA_TRY(CUDA_ALLOW_SHARED((attn_bwd_sm90_kernel<T, S>), BYTES));
        CUDA_TRY(sm90a_launch_early(attn_bwd_sm90_kernel<T, S>, n_blocks, S::THREADS, BYTES,
                                    cuda_of(be)->stream, job));
        TRY(cuda_launched("the gradient of the attention"));
    }
    return bwd_finish(be, &job);
}

#endif
