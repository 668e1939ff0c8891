/* HSTU attention, backward, on Hopper: heads of 256 numbers.
 *
 * A block owns 64 keys.  Their dk and dv fill the registers of a warpgroup each, so the work is
 * divided by what is summed: one warpgroup makes scores and weights, keeps dv, and leaves the
 * slopes in shared memory; the other makes dp, multiplies it by the slopes, keeps dk, and leaves
 * the gradients there for dq, of which each makes half of the columns, one tile late.  Both have
 * two and a half products a tile, so neither waits long.  Bound by the tensor cores. */
#include "cuda/attn_sm90a_bwd.cuh"

enum { D = 256, KEYS = 64, STAGES = 2, WARPS = 8, THREADS = 3 * GROUP };
enum {
    OWN = KEYS * D * 2,
    TILE = QUERIES * D * 2,
    DS = KEYS * DS_ROW,
    SLOPES = KEYS * QUERIES * 2
};
enum { BYTES = 2 * OWN + 2 * STAGES * TILE + 2 * DS + 2 * SLOPES };

typedef struct wide_barriers {
    uint64_t keys, values;                                 /* they are there */
    uint64_t queries[STAGES], douts[STAGES], free[STAGES]; /* free: all warps are done */
    uint64_t slopes[2], slopes_free[2], ds[2], ds_free[2];
    int tiles[KEPT]; /* tile n at n % KEPT; see bwd_describe */
} wide_barriers;

typedef struct wide_end {
    wide_barriers barriers;
    bwd_work work;
} wide_end;

typedef struct wide_room {
    char *keys, *values, *queries, *douts, *ds, *slopes; /* two of each but of keys and values */
    wide_barriers *barriers;
} wide_room;

/* ---- asking for tiles ------------------------------------------------------------------------ */

__device__ static inline void wide_ask_tile(const bwd_work &w, const wide_room &room,
                                            const bwd_maps &maps, int n, int i) {
    wide_barriers *b = room.barriers;
    int x = w.head * D, stage = n % STAGES;
    if (n == 0) {
        barrier_expect(&b->keys, OWN);
        load_rows<D, KEYS>(room.keys, &maps.k, &b->keys, x, w.s.row_k + w.key0);
    }
    barrier_expect(&b->queries[stage], TILE);
    load_rows<D, QUERIES>(room.queries + stage * TILE, &maps.q, &b->queries[stage], x,
                          w.s.row_q + i);
    if (n == 0) {
        barrier_expect(&b->values, OWN);
        load_rows<D, KEYS>(room.values, &maps.v, &b->values, x, w.s.row_k + w.key0);
    }
    barrier_expect(&b->douts[stage], TILE);
    load_rows<D, QUERIES>(room.douts + stage * TILE, &maps.dout, &b->douts[stage], x,
                          w.s.row_q + i);
}

__device__ static void wide_ask(const attn_args &a, const bwd_work &w, const wide_room &room,
                                const bwd_maps &maps) {
    wide_barriers *b = room.barriers;
    for (int n = 0, i = next_queries(a, w, w.begin);; i = next_queries(a, w, i + QUERIES), n++) {
        int stage = n % STAGES;
        bool is_one = i < w.end;
        barrier_wait(&b->free[stage], (uint32_t)(n / STAGES + 1) & 1);
        if (is_one)
            wide_ask_tile(w, room, maps, n, i);
        else
            barrier_arrive(&b->queries[stage]);
        b->tiles[n % KEPT] = is_one ? bwd_describe(a, w, i) : -1;
        barrier_arrive(&b->queries[stage]);
        if (!is_one) return;
    }
}

/* Tile n, once its queries are there. */
__device__ static inline int wide_tile(const wide_room &room, int n) {
    barrier_wait(&room.barriers->queries[n % STAGES], (uint32_t)(n / STAGES) & 1);
    return room.barriers->tiles[n % KEPT];
}

/* ---- slopes, from one warpgroup to the other ------------------------------------------------- */

/* As float16, which has more digits than what they are multiplied into; thread by thread. */
__device__ static inline void slopes_put(char *slopes, const float (&x)[32]) {
    uint4 *to = (uint4 *)slopes + threadIdx.x % GROUP;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float *v = &x[8 * j];
        to[j * GROUP] = make_uint4(pack_two<__half>(v[0], v[1]), pack_two<__half>(v[2], v[3]),
                                   pack_two<__half>(v[4], v[5]), pack_two<__half>(v[6], v[7]));
    }
    __syncwarp();
}

/* The gradients of a tile, twice as large as they are, on the left of a product. */
template <typename T>
__device__ static inline void slopes_apply(const char *slopes, const float (&dp)[32],
                                           uint32_t (&ds)[4][4]) {
    const uint4 *from = (const uint4 *)slopes + threadIdx.x % GROUP;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint4 four = from[j * GROUP];
        uint32_t pair[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 v = __half22float2(*(__half2 *)&pair[i]);
            const float *d = &dp[8 * j + 2 * i];
            ds[j][i] = pack_two<T>(fmaf(d[0], v.x, d[0]), fmaf(d[1], v.y, d[1]));
        }
    }
}

/* ---- computing ------------------------------------------------------------------------------- */

/* Half of the columns of dq of tile n. */
template <typename T>
__device__ static inline void wide_dq(const attn_args &a, const bwd_work &w, const wide_room &room,
                                      int group, int n) {
    float dq[64];
    barrier_wait(&room.barriers->ds[n % 2], (uint32_t)(n / 2) & 1);
    wgmma_fence();
    dq_product<T, KEYS, 128>(dq, room.ds + n % 2 * DS, room.keys + group * 2 * KEYS * PART_BYTES);
    wgmma_wait<0>();
    release(&room.barriers->ds_free[n % 2]);
    dq_add<T, D, 128>(a, w, room.barriers->tiles[n % KEPT] / QUERIES * QUERIES, group * 128, dq);
}

template <typename T>
__device__ static void wide_compute_dv(const attn_args &a, const bwd_work &w,
                                       const wide_room &room) {
    wide_barriers *b = room.barriers;
    int key = w.key0 + row_of_thread(), n = 0, tile;
    float dv[D / 2], half = 0.5f * a.alpha;
    clear(dv);
    for (; (tile = wide_tile(room, n)) >= 0; n++) {
        int stage = n % STAGES;
        uint32_t parity = (uint32_t)(n / STAGES) & 1, weights[4][4], seen = 0xffffffffu;
        float x[32];
        if ((tile & 1) == 0) seen = bwd_mask(a, w.s, key, tile / QUERIES * QUERIES);
        if (n == 0) barrier_wait(&b->keys, 0);
        wgmma_fence();
        product_of_rows<T, D, KEYS, 64>(x, room.keys, room.queries + stage * TILE);
        wgmma_commit();
        wgmma_wait<0>();
        bwd_hide(seen, x);
        bwd_weights<T>(half, x, weights);
        barrier_wait(&b->slopes_free[n % 2], (uint32_t)(n / 2 + 1) & 1);
        slopes_put(room.slopes + n % 2 * SLOPES, x);
        release(&b->slopes[n % 2]);
        barrier_wait(&b->douts[stage], parity);
        wgmma_fence();
        add_tile<T, D>(dv, weights, room.douts + stage * TILE);
        wgmma_wait<0>();
        release(&b->free[stage]);
        if (n > 0 && w.has_dq) wide_dq<T>(a, w, room, 0, n - 1);
    }
    if (n > 0 && w.has_dq) wide_dq<T>(a, w, room, 0, n - 1);
    store_wide<T, D>((T *)a.dv + (int64_t)w.s.row_k * a.stride_v + w.head * D, a.stride_v, key,
                     w.s.len_k, a.scale, dv);
}

template <typename T>
__device__ static void wide_compute_dk(const attn_args &a, const bwd_work &w,
                                       const wide_room &room) {
    wide_barriers *b = room.barriers;
    int key = w.key0 + row_of_thread(), n = 0, tile;
    float dk[D / 2];
    clear(dk);
    for (; (tile = wide_tile(room, n)) >= 0; n++) {
        int stage = n % STAGES;
        uint32_t parity = (uint32_t)(n / STAGES) & 1, ds[4][4], seen = 0xffffffffu;
        float dp[32];
        if ((tile & 1) == 0) seen = bwd_mask(a, w.s, key, tile / QUERIES * QUERIES);
        if (n == 0) {
            barrier_wait(&b->keys, 0); /* for dq */
            barrier_wait(&b->values, 0);
        }
        barrier_wait(&b->douts[stage], parity);
        wgmma_fence();
        product_of_rows<T, D, KEYS, 64>(dp, room.values, room.douts + stage * TILE);
        wgmma_commit();
        wgmma_wait<0>();
        bwd_hide(seen, dp);
        barrier_wait(&b->slopes[n % 2], (uint32_t)(n / 2) & 1);
        slopes_apply<T>(room.slopes + n % 2 * SLOPES, dp, ds);
        __syncwarp();
        release(&b->slopes_free[n % 2]);
        if (w.has_dq) {
            barrier_wait(&b->ds_free[n % 2], (uint32_t)(n / 2 + 1) & 1);
            bwd_put(room.ds + n % 2 * DS, 0, ds);
            release(&b->ds[n % 2]);
        }
        wgmma_fence();
        add_tile<T, D>(dk, ds, room.queries + stage * TILE);
        wgmma_wait<0>();
        release(&b->free[stage]);
        if (n > 0 && w.has_dq) wide_dq<T>(a, w, room, 1, n - 1);
    }
    if (n > 0 && w.has_dq) wide_dq<T>(a, w, room, 1, n - 1);
    store_wide<T, D>((T *)a.dk + (int64_t)w.s.row_k * a.stride_k + w.head * D, a.stride_k, key,
                     w.s.len_k, 0.5f * a.alpha * a.scale, dk);
}

__device__ static inline void wide_barriers_init(wide_barriers *b) {
    barrier_init(&b->keys, 1);
    barrier_init(&b->values, 1);
    for (int i = 0; i < 2; i++) {
        barrier_init(&b->queries[i], 2); /* the copy and the description */
        barrier_init(&b->douts[i], 1);
        barrier_init(&b->free[i], WARPS);
        barrier_init(&b->slopes[i], WARPS / 2);
        barrier_init(&b->slopes_free[i], WARPS / 2);
        barrier_init(&b->ds[i], WARPS / 2);
        barrier_init(&b->ds_free[i], WARPS);
    }
    barrier_init_done();
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1) wide_kernel(const __grid_constant__ bwd_job job) {
    extern __shared__ __align__(1024) char shared[];
    wide_end *end = (wide_end *)(shared + BYTES);
    const bwd_work &w = end->work;
    wide_room room;
    room.keys = shared;
    room.values = room.keys + OWN;
    room.queries = room.values + OWN;
    room.douts = room.queries + STAGES * TILE;
    room.ds = room.douts + STAGES * TILE;
    room.slopes = room.ds + 2 * DS;
    room.barriers = &end->barriers;
    if (threadIdx.x == 0) {
        wide_barriers_init(room.barriers);
        bwd_find(job, KEYS, (int)blockIdx.x, &end->work);
    }
    __syncthreads();
    if (w.key0 >= w.s.len_k) return;
    if (threadIdx.x >= 2 * GROUP) {
        registers_lower<24>();
        if (threadIdx.x == 2 * GROUP) wide_ask(job.a, w, room, job.maps);
    } else {
        registers_raise<240>();
        if (threadIdx.x < GROUP)
            wide_compute_dv<T>(job.a, w, room);
        else
            wide_compute_dk<T>(job.a, w, room);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

template <typename T> static status launch(backend *be, const attn_args *a) {
    constexpr int ROOM = BYTES + (int)sizeof(wide_end);
    bwd_job job;
    TRY(bwd_prepare(be, a, KEYS, &job));
    int64_t n_blocks = (int64_t)job.n_tiles * a->n_heads * a->n_sequences;
    if (n_blocks > 0) {
        CUDA_TRY(CUDA_ALLOW_SHARED(wide_kernel<T>, ROOM));
        wide_kernel<T><<<(unsigned)n_blocks, THREADS, ROOM, cuda_of(be)->stream>>>(job);
        TRY(cuda_launched("the gradient of the attention"));
    }
    return bwd_finish(be, &job);
}

status cuda_attn_sm90a_bwd_256(backend *be, const attn_args *a) {
    return be->act == ACT_BF16 ? launch<__nv_bfloat16>(be, a) : launch<__half>(be, a);
}
