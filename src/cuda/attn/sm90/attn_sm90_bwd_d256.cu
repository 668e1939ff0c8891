/* HSTU attention, backward, on Hopper: head dimension 256, long sequences.
 *
 * A block computes with 64 keys.  Their dk and dv fill the registers of a warpgroup each, so the
 * work is divided by result: one consumer warpgroup makes scores and weights, keeps dv, and leaves
 * the slopes in shared memory; the other makes dp, multiplies it by the slopes, and keeps dk.  Both
 * have two products a tile, so neither waits long.  Another kernel recomputes dq
 * (attn_sm90_bwd_dq.cu).  Bound by the tensor cores. */
#include "cuda/attn/sm90/attn_sm90_bwd.cuh"

typedef struct wide_shape {
    static constexpr bool IS_WHOLE = false;
    static constexpr int D = 256, KEYS = 64, STAGES = 2, OWNS = 1, WARPS = 8;
} wide_shape;

enum { D = wide_shape::D, KEYS = wide_shape::KEYS, STAGES = wide_shape::STAGES };
enum { WARPS = wide_shape::WARPS, THREADS = 3 * GROUP };
enum { ASKING = 40, COMPUTING = 232 }; /* registers */
enum { OWN = KEYS * D * 2, TILE = QUERIES * D * 2, SLOPES = KEYS * QUERIES * 2 };
enum { BYTES = 2 * OWN + 2 * STAGES * TILE + 2 * SLOPES };

typedef struct wide_end {
    walk_end<wide_shape> walk;
    uint64_t slopes[2], slopes_free[2];
} wide_end;

typedef struct wide_room {
    walk_room<wide_shape> walk;
    char *slopes; /* two */
    wide_end *end;
} wide_room;

/* The word that describes tile n, once its queries have arrived. */
__device__ static inline int wide_word(const wide_room &room, int n) {
    walk_end<wide_shape> *e = room.walk.end;
    barrier_wait(&e->queries[n % STAGES], (uint32_t)(n / STAGES) & 1);
    return e->tiles[n % KEPT];
}

__device__ static inline uint32_t wide_mask(const attn_args &a, const bwd_keys &w, int word) {
    if (word & 1) return 0xffffffffu;
    return bwd_mask(a, w.pair.s, w.key0 + row_of_thread(), word / TILE_NUMBER * QUERIES);
}

/* dv of a tile of keys, over tiles of queries from n on.  Returns the first tile after them. */
template <typename T>
__device__ static inline int wide_tiles_dv(const attn_args &a, const wide_room &room, int n,
                                           float (&dv)[D / 2]) {
    const bwd_keys &w = room.walk.end->records[0];
    wide_end *e = room.end;
    for (int word = 0; (word & TILE_FINAL) == 0; n++) {
        int stage = n % STAGES;
        uint32_t weights[4][4];
        float x[32];
        word = wide_word(room, n);
        uint32_t seen = wide_mask(a, w, word);
        wgmma_fence();
        product_of_rows<T, D, KEYS, 64>(x, room.walk.keys, room.walk.queries + stage * TILE);
        wgmma_commit();
        wgmma_wait<0>();
        bwd_hide(0.5f * a.alpha, seen, x);
        bwd_weights<T>(0.5f * a.alpha, x, weights);
        barrier_wait(&e->slopes_free[n % 2], (uint32_t)(n / 2 + 1) & 1);
        slopes_put(room.slopes + n % 2 * SLOPES, x);
        release(&e->slopes[n % 2]);
        barrier_wait(&e->walk.douts[stage], (uint32_t)(n / STAGES) & 1);
        wgmma_fence();
        add_tile<T, D>(dv, weights, room.walk.douts + stage * TILE);
        wgmma_wait<0>();
        release(&e->walk.free[stage]);
    }
    return n;
}

template <typename T>
__device__ static inline int wide_tiles_dk(const wide_room &room, int n, float (&dk)[D / 2]) {
    wide_end *e = room.end;
    for (int word = 0; (word & TILE_FINAL) == 0; n++) {
        int stage = n % STAGES;
        uint32_t ds[4][4];
        float dp[32];
        word = wide_word(room, n);
        barrier_wait(&e->walk.douts[stage], (uint32_t)(n / STAGES) & 1);
        wgmma_fence();
        product_of_rows<T, D, KEYS, 64>(dp, room.walk.values, room.walk.douts + stage * TILE);
        wgmma_commit();
        wgmma_wait<0>();
        barrier_wait(&e->slopes[n % 2], (uint32_t)(n / 2) & 1);
        slopes_apply<T>(room.slopes + n % 2 * SLOPES, dp, ds);
        __syncwarp();
        release(&e->slopes_free[n % 2]);
        wgmma_fence();
        add_tile<T, D>(dk, ds, room.walk.queries + stage * TILE);
        wgmma_wait<0>();
        release(&e->walk.free[stage]);
    }
    return n;
}

/* A warpgroup's sums over all tiles of keys: dv or, in the second warpgroup, dk. */
template <typename T, bool IS_DK>
__device__ static void wide_compute(const attn_args &a, const wide_room &room) {
    walk_end<wide_shape> *e = room.walk.end;
    for (int m = 0, n = 0;; m++) {
        float sum[D / 2];
        barrier_wait(&e->keys[0], (uint32_t)m & 1);
        if (e->records[0].pair.head < 0) return;
        barrier_wait(&e->values[0], (uint32_t)m & 1);
        clear(sum);
        if (e->records[0].has_tiles)
            n = IS_DK ? wide_tiles_dk<T>(room, n, sum) : wide_tiles_dv<T>(a, room, n, sum);
        int64_t row0 = e->records[0].pair.s.row_k, column = e->records[0].pair.head * D;
        int key = e->records[0].key0 + row_of_thread(), len_k = e->records[0].pair.s.len_k;
        __syncwarp();
        release(&e->own_free[0]);
        if (IS_DK)
            store_wide<T, D>((T *)a.dk + row0 * a.stride_k + column, a.stride_k, key, len_k,
                             0.5f * a.alpha * a.scale, sum);
        else
            store_wide<T, D>((T *)a.dv + row0 * a.stride_v + column, a.stride_v, key, len_k,
                             a.scale, sum);
    }
}

__device__ static inline void wide_barriers_init(wide_end *e) {
    for (int i = 0; i < 2; i++) {
        barrier_init(&e->slopes[i], WARPS / 2);
        barrier_init(&e->slopes_free[i], WARPS / 2);
    }
    walk_barriers_init<wide_shape>(&e->walk);
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    attn_bwd_d256_sm90_kernel(const __grid_constant__ bwd_job job) {
    extern __shared__ __align__(1024) char shared[];
    wide_room room;
    room.walk.keys = shared;
    room.walk.values = room.walk.keys + OWN;
    room.walk.queries = room.walk.values + OWN;
    room.walk.douts = room.walk.queries + STAGES * TILE;
    room.slopes = room.walk.douts + STAGES * TILE;
    room.end = (wide_end *)(shared + BYTES);
    room.walk.end = &room.end->walk;
    if (threadIdx.x == 0) wide_barriers_init(room.end);
    __syncthreads();
    grid_wait();
    if (threadIdx.x >= 2 * GROUP) {
        registers_lower<ASKING>();
        if (threadIdx.x < 2 * GROUP + 32) walk<wide_shape>(job, room.walk);
    } else {
        registers_raise<COMPUTING>();
        if (threadIdx.x < GROUP)
            wide_compute<T, false>(job.a, room);
        else
            wide_compute<T, true>(job.a, room);
    }
}

status cuda_attn_sm90_bwd_d256(backend *be, const attn_args *a) {
    using T = __nv_bfloat16;
    constexpr int ROOM = BYTES + (int)sizeof(wide_end);
    static_assert(ROOM <= 227 * 1024, "shared memory");
    int64_t n_blocks = cuda_of(be)->n_multiprocessors;
    bwd_job job;
    TRY(bwd_prepare(be, a, KEYS, &n_blocks, &job));
    if (n_blocks > 0) {
        TRY((cuda_launch_early(be, "the gradient of the attention", attn_bwd_d256_sm90_kernel<T>,
                               n_blocks, THREADS, ROOM, job)));
    }
    return bwd_finish(be, &job);
}
