/* Softmax attention, backward, on Hopper: 16-bit activations under any mask (contract:
 * softmax_attn_args in ops/ops.h).
 *
 * The kernel that owns keys is persistent.  The producer warp (softmax_sm90_bwd_producer.cuh) takes
 * column tiles of a sequence and head, GROUPS of MASK_TILE keys at once, and walks over the lists
 * of the tiles of queries that see them.  Each warpgroup has MASK_TILE keys and keeps their dk and
 * dv in registers; with keys as rows of the scores, weights and their gradients go from registers
 * into dv and dk. The gradients also pass through shared memory, where they are multiplied with the
 * keys: parts of dq, added to float32 sums that blocks share and a last kernel rounds.  The order
 * of these additions varies from run to run; where it must not, dq is left to the kernel for every
 * card, which owns queries.
 * - GROUPS = 1: short sequences; two blocks a multiprocessor, one computes while the other waits.
 * - GROUPS = 2: long ones, and head dimension 128; the warpgroups share the queries and halve the
 *   additions.  They compute dq one tile later than the scores, in turns (head dimension 128: a
 *   half of the columns each), so that neither waits for the other.
 *
 * Bound by the products where masks are dense, else by the additions to dq.
 *
 * Before: delta = out . dout, the logarithms of the sums in the order in which tiles of queries
 * load them, and zeros for the float32 sums of dq.  After: the sums are rounded into dq.  Both are
 * bound by bytes: 2 + 2 + 4 and 4 + 2 for each element.
 *
 * Times that set the sizes, in us (H200, 2026-11-16; bfloat16, all of the backward pass, by replay;
 * sm80: the kernels for every card, which compute two products twice):
 *                     causal                       sliding 64         longformer 32, 32
 *               1 x 128  8 x 1024  16 x 4096    8 x 1024  16 x 4096    8 x 1024  16 x 4096
 *     sm80         14.5       246       6068         103        689         167       1262
 *     GROUPS = 1   10.9       132       2853          71        530         142       1159
 *     GROUPS = 2   12.4       130       2651          69        499         144       1040
 * (12 heads of dimension 64).  Without dq the last column is 575, causal at 16 x 4096 1820:
 * additions to its sums take as long as memory gives them, 3 TB/s.  Head dimension 128, 6 heads, 8
 * x 4096 without a mask: 2087 beside 5397. */
#include "cuda/attn/sm90/softmax_sm90_bwd_producer.cuh"
#include "ops/mask_choice.h"

/* Rows of a tile from n on are other sequences': cleared where they are summed over, since they
 * need not be finite.  Every warpgroup clears all that it reads. */
template <int ROWS, int D>
__device__ static inline void soft90_bwd_clear_rows(char *tile, int first, int n_rows, int n) {
    int begin = max(n, first), n_clear = first + n_rows - begin;
    for (int i = (int)threadIdx.x % GROUP; i < n_clear * (D / 8); i += GROUP) {
        int c = i / (n_clear * 8), at = i % (n_clear * 8);
        *(uint4 *)(tile + (c * ROWS + begin) * PART_BYTES + at * 16) = make_uint4(0, 0, 0, 0);
    }
}

/* Clears are done: the warpgroup's products may read. */
__device__ static inline void soft90_bwd_cleared(int group) {
    shared_fence();
    if (group == 0) /* numbers known to the compiler: a block is then given no more of them */
        named_barrier(1, GROUP);
    else
        named_barrier(2, GROUP);
}

/* Which of a thread's pairs are seen: bit e for element e.  Words have a bit for each key of a
 * query; the warp's 16 keys are in one half of them. */
__device__ static inline uint32_t soft90_bwd_seen(const uint64_t *words) {
    int row = row_of_thread();
    const uint32_t *half = (const uint32_t *)words + row / 32;
    uint32_t seen = 0;
#pragma unroll
    for (int c = 0; c < 16; c++) {
        uint32_t word = half[2 * (c / 2 * 8 + (int)threadIdx.x % 4 * 2 + c % 2)] >> row % 32;
        seen |= (word & 1) << (c / 2 * 4 + c % 2);
        seen |= (word >> 8 & 1) << (c / 2 * 4 + 2 + c % 2);
    }
    return seen;
}

__device__ static inline void soft90_bwd_hide(uint32_t seen, float value, float (&x)[32]) {
#pragma unroll
    for (int e = 0; e < 32; e++)
        x[e] = (seen >> e & 1) != 0 ? x[e] : value;
}

/* Scores become weights exp(alpha score - log_sum), which are also packed as an operand. */
template <typename T>
__device__ static inline void soft90_bwd_weights(float scale, const float *log_sums, float (&x)[32],
                                                 uint32_t (&left)[4][4]) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 sums = *(const float2 *)(log_sums + 8 * j + threadIdx.x % 4 * 2);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float *y = &x[4 * j + 2 * r];
            y[0] = ex2_approx(fmaf(y[0], scale, -sums.x));
            y[1] = ex2_approx(fmaf(y[1], scale, -sums.y));
            left[j / 2][j % 2 * 2 + r] = cvt_pack<T>(y[0], y[1]);
        }
    }
}

/* Gradients of the scores, weight (dp - delta), without alpha. */
template <typename T>
__device__ static inline void soft90_bwd_gradients(const float *deltas, const float (&p)[32],
                                                   const float (&dp)[32], uint32_t (&left)[4][4]) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 d = *(const float2 *)(deltas + 8 * j + threadIdx.x % 4 * 2);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int e = 4 * j + 2 * r;
            left[j / 2][j % 2 * 2 + r] =
                cvt_pack<T>(p[e] * (dp[e] - d.x), p[e + 1] * (dp[e + 1] - d.y));
        }
    }
}

/* Likewise, with weights that waited as pairs of float16. */
template <typename T>
__device__ static inline void soft90_bwd_gradients(const float *deltas, const uint32_t (&kept)[16],
                                                   const float (&dp)[32], uint32_t (&left)[4][4]) {
    float p[32];
#pragma unroll
    for (int e = 0; e < 16; e++) {
        float2 two = __half22float2(*(const __half2 *)&kept[e]);
        p[2 * e] = two.x;
        p[2 * e + 1] = two.y;
    }
    soft90_bwd_gradients<T>(deltas, p, dp, left);
}

/* What a warpgroup does with a tile of keys. */
template <typename T, typename S> struct soft90_bwd_group {
    const soft90_bwd_job &job;
    const soft90_bwd_room<S> &room;
    int group;
    int own; /* which buffer of keys */

    __device__ inline const soft90_bwd_record &record() const {
        return room.end->records[own];
    }
    __device__ inline const char *own_rows(const char *tiles) const {
        return tiles + own * S::OWN + group * 64 * PART_BYTES;
    }
    /* Waits for the queries of tile n; what there is to know of it. */
    __device__ inline soft90_bwd_stage<S::GROUPS> find(int n) const {
        barrier_wait(&room.end->queries[n % S::STAGES], (uint32_t)(n / S::STAGES) & 1);
        return room.end->stages[n % S::STAGES];
    }
    /* A score whose weight is 0; of SiLU also with the slope that makes its gradient 0. */
    __device__ inline float hidden() const {
        return S::IS_SILU ? __fdividef(-1e4f, job.scale) : -INFINITY;
    }
    /* The sequence ends within the tile of queries. */
    __device__ inline void clear_tail(int stage, int n) const {
        soft90_bwd_clear_rows<QUERIES, S::D>(room.queries + stage * S::TILE, 0, QUERIES, n);
        soft90_bwd_clear_rows<QUERIES, S::D>(room.douts + stage * S::TILE, 0, QUERIES, n);
        soft90_bwd_cleared(group);
    }
    /* Weights and gradients of tile n: adds to dv, and returns the gradients as the left operand of
     * a product.  The addition is not complete on return. */
    __device__ inline void step(int n, const soft90_bwd_stage<S::GROUPS> &tile,
                                float (&dv)[S::D / 2], uint32_t (&ds)[4][4]) const {
        int stage = n % S::STAGES, bits = tile.bits_of(group);
        int left = record().t.len - tile.tile * QUERIES;
        uint32_t weights[4][4], seen = 0xffffffffu, parity = (uint32_t)(n / S::STAGES) & 1;
        const char *queries = room.queries + stage * S::TILE;
        const char *douts = room.douts + stage * S::TILE;
        const soft90_bwd_sums *sums = &room.end->sums[stage];
        float x[32];
        if (left < QUERIES) {
            barrier_wait(&room.end->douts[stage], parity);
            clear_tail(stage, left);
        }
        wgmma_fence();
        product_of_rows<T, S::D, S::KEYS, 64>(x, own_rows(room.keys), queries);
        wgmma_commit();
        barrier_wait(&room.end->douts[stage], parity);
        if (bits != MASK_FULL) seen = soft90_bwd_seen(room.end->words[stage][group]);
        if constexpr (S::D <= 64) {
            float dp[32];
            wgmma_fence();
            product_of_rows<T, S::D, S::KEYS, 64>(dp, own_rows(room.values), douts);
            wgmma_commit();
            wgmma_wait<1>();
            if (bits != MASK_FULL) soft90_bwd_hide(seen, hidden(), x);
            if constexpr (S::IS_SILU)
                bwd_weights<T>(job.scale, x, weights);
            else
                soft90_bwd_weights<T>(job.scale, sums->log_sum, x, weights);
            wgmma_fence();
            add_tile<T, S::D>(dv, weights, douts);
            wgmma_wait<1>();
            if (bits != MASK_FULL) soft90_bwd_hide(seen, 0.0f, dp);
            if constexpr (S::IS_SILU)
                bwd_gradients<T>(x, dp, ds);
            else
                soft90_bwd_gradients<T>(sums->delta, x, dp, ds);
        } else { /* registers are scarce: weights wait as float16, dp has the scores' registers */
            uint32_t kept[16];
            wgmma_wait<0>();
            if (bits != MASK_FULL) soft90_bwd_hide(seen, hidden(), x);
            if constexpr (S::IS_SILU) {
                bwd_weights<T>(job.scale, x, weights, kept);
            } else {
                soft90_bwd_weights<T>(job.scale, sums->log_sum, x, weights);
#pragma unroll
                for (int e = 0; e < 16; e++)
                    kept[e] = cvt_pack<__half>(x[2 * e], x[2 * e + 1]);
            }
            wgmma_fence();
            product_of_rows<T, S::D, S::KEYS, 64>(x, own_rows(room.values), douts);
            wgmma_commit();
            add_tile<T, S::D>(dv, weights, douts);
            wgmma_wait<1>();
            if (bits != MASK_FULL) soft90_bwd_hide(seen, 0.0f, x);
            if constexpr (S::IS_SILU)
                bwd_gradients<T>(kept, x, ds);
            else
                soft90_bwd_gradients<T>(sums->delta, kept, x, ds);
        }
    }
    /* Adds 64 columns of dq to the sums; they are in a warpgroup's register order, so that the
     * additions fill whole cache lines. */
    __device__ inline void add_dq(const soft90_bwd_stage<S::GROUPS> &tile, int column,
                                  const float (&dq)[32]) const {
        float *to = record().sums + tile.tile * record().step + column * QUERIES;
        float4 *at = (float4 *)to + threadIdx.x % GROUP;
        uint32_t any = 1;
        if (!tile.is_full()) { /* additions are slow: none for rows that see none of the keys */
            any = 0;
#pragma unroll
            for (int e = 0; e < 32; e++)
                any |= __float_as_uint(dq[e]) << 1; /* without the sign */
        }
        if (any == 0) return;
#pragma unroll
        for (int j = 0; j < 8; j++)
            add_four((float *)(at + j * GROUP), dq[4 * j], dq[4 * j + 1], dq[4 * j + 2],
                     dq[4 * j + 3]);
    }
};

/* One warpgroup a block. */
template <typename T, typename S>
__device__ static inline int soft90_bwd_alone(const soft90_bwd_group<T, S> &g, int n,
                                              float (&dk)[S::D / 2], float (&dv)[S::D / 2]) {
    static_assert(S::GROUPS > 1 || S::D == 64, "registers for one part of dq");
    bool is_last;
    do {
        soft90_bwd_stage<S::GROUPS> tile = g.find(n);
        char *gradients = g.room.ds + n % 2 * S::DS;
        uint32_t ds[4][4];
        is_last = tile.is_last;
        g.step(n, tile, dv, ds);
        if (g.job.has_dq) {
            bwd_put(gradients, 0, ds);
            named_barrier(1, GROUP); /* and all warps are done with the previous gradients */
        }
        wgmma_fence();
        add_tile<T, S::D>(dk, ds, g.room.queries + n % S::STAGES * S::TILE);
        if (g.job.has_dq) {
            float dq[32];
            wgmma_fence();
            dq_product<T, 64, 64>(dq, gradients, g.own_rows(g.room.keys));
            wgmma_wait<0>();
            release(&g.room.end->free[n % S::STAGES]);
            g.add_dq(tile, 0, dq);
        } else {
            wgmma_wait<0>();
            release(&g.room.end->free[n % S::STAGES]);
        }
        n++;
    } while (!is_last);
    return n;
}

/* The warpgroup's part of dq of tile n, from the gradients of the warpgroups that see it. */
template <typename T, typename S>
__device__ static inline void soft90_bwd_late(const soft90_bwd_group<T, S> &g, int n,
                                              const soft90_bwd_stage<S::GROUPS> &tile) {
    int column = S::D > 64 ? g.group * 64 : 0;
    const char *keys = g.room.keys + g.own * S::OWN + column * S::KEYS * 2;
    const char *ds = g.room.ds + n % 2 * S::DS;
    float dq[32];
    if (S::D == 64 && n % 2 != g.group) return; /* the warpgroups take turns */
    barrier_wait(&g.room.end->ds[n % 2], (uint32_t)(n / 2) & 1);
    if (tile.bits[0] == SOFT90_BWD_NOTHING || tile.bits[1] == SOFT90_BWD_NOTHING) {
        int first = tile.bits[0] == SOFT90_BWD_NOTHING ? 64 : 0;
        wgmma_fence();
        dq_product<T, 64, 64>(dq, ds + first * DS_ROW, keys + first * PART_BYTES);
        wgmma_wait<0>();
    } else {
        wgmma_fence();
        dq_product<T, 128, 64>(dq, ds, keys);
        wgmma_wait<0>();
    }
    release(&g.room.end->ds_free[n % 2]);
    g.add_dq(tile, column, dq);
}

/* Two warpgroups a block. */
template <typename T, typename S>
__device__ static inline int soft90_bwd_together(const soft90_bwd_group<T, S> &g, int n,
                                                 float (&dk)[S::D / 2], float (&dv)[S::D / 2]) {
    soft90_bwd_end<S> *e = g.room.end;
    soft90_bwd_stage<S::GROUPS> before, tile = {};
    tile.tile = -1;
    do {
        int stage = n % S::STAGES;
        bool is_seen;
        uint32_t ds[4][4];
        before = tile;
        tile = g.find(n);
        is_seen = tile.bits_of(g.group) != SOFT90_BWD_NOTHING;
        if (is_seen)
            g.step(n, tile, dv, ds);
        else
            barrier_wait(&e->douts[stage], (uint32_t)(n / S::STAGES) & 1);
        if (g.job.has_dq) {
            barrier_wait(&e->ds_free[n % 2], (uint32_t)(n / 2 + 1) & 1);
            if (is_seen) bwd_put(g.room.ds + n % 2 * S::DS, g.group * 64, ds);
            __syncwarp();
            release(&e->ds[n % 2]);
        }
        if (is_seen) {
            wgmma_fence();
            add_tile<T, S::D>(dk, ds, g.room.queries + stage * S::TILE);
        }
        if (g.job.has_dq && before.tile >= 0) soft90_bwd_late<T, S>(g, n - 1, before);
        wgmma_wait<0>();
        release(&e->free[stage]);
        n++;
    } while (!tile.is_last);
    if (g.job.has_dq) soft90_bwd_late<T, S>(g, n - 1, tile);
    return n;
}

/* By which sums of dq and dk are multiplied: SiLU's are twice the gradients of the scores. */
__device__ static inline float soft90_bwd_scale(const softmax_attn_args &a) {
    return a.silu_scale != 0 ? 0.5f * a.alpha * a.silu_scale : a.alpha;
}

template <typename T, int D>
__device__ static inline void soft90_bwd_store(const softmax_attn_args &a, const soft_block &t,
                                               int key, const float (&dk)[D / 2],
                                               const float (&dv)[D / 2]) {
    int64_t column = (int64_t)t.head * D;
    store_wide<T, D>((T *)a.dv + (int64_t)t.row * a.stride_v + column, a.stride_v, key, t.len,
                     a.silu_scale != 0 ? a.silu_scale : 1.0f, dv);
    store_wide<T, D>((T *)a.dk + (int64_t)t.row * a.stride_k + column, a.stride_k, key, t.len,
                     soft90_bwd_scale(a), dk);
}

/* Consumes tiles of keys until there are no more.  The buffer of the keys is released before the
 * epilogue stores their gradients. */
template <typename T, typename S>
__device__ static void soft90_bwd_compute(const soft90_bwd_job &job,
                                          const soft90_bwd_room<S> &room) {
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0); /* known to be uniform */
    soft90_bwd_end<S> *e = room.end;
    for (int m = 0, n = 0;; m++) {
        soft90_bwd_group<T, S> g = {job, room, group, m % S::OWNS};
        uint32_t parity = (uint32_t)(m / S::OWNS) & 1;
        float dk[S::D / 2], dv[S::D / 2];
        barrier_wait(&e->keys[g.own], parity);
        if (g.record().t.head < 0) return;
        barrier_wait(&e->values[g.own], parity);
        clear(dk);
        clear(dv);
        int n_keys = g.record().t.len - g.record().t.tile * S::KEYS;
        if (n_keys < (group + 1) * 64) {
            soft90_bwd_clear_rows<S::KEYS, S::D>(room.keys + g.own * S::OWN, group * 64, 64,
                                                 n_keys);
            soft90_bwd_cleared(group);
        }
        if (g.record().has_tiles) {
            if constexpr (S::GROUPS == 1)
                n = soft90_bwd_alone<T, S>(g, n, dk, dv);
            else
                n = soft90_bwd_together<T, S>(g, n, dk, dv);
        }
        soft_block t = g.record().t;
        __syncwarp();
        release(&e->own_free[g.own]);
        soft90_bwd_store<T, S::D>(job.a, t, t.tile * S::KEYS + group * 64 + row_of_thread(), dk,
                                  dv);
    }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    softmax_attn_bwd_sm90_kernel(const __grid_constant__ soft90_bwd_job job) {
    extern __shared__ __align__(1024) char shared[];
    soft90_bwd_room<S> room;
    room.keys = shared;
    room.values = room.keys + S::OWNS * S::OWN;
    room.queries = room.values + S::OWNS * S::OWN;
    room.douts = room.queries + S::STAGES * S::TILE;
    room.ds = room.douts + S::STAGES * S::TILE;
    room.end = (soft90_bwd_end<S> *)(shared + S::BYTES);
    if (threadIdx.x == 0) soft90_bwd_barriers_init<S>(room.end);
    __syncthreads();
    grid_wait();
    if (threadIdx.x >= S::GROUPS * GROUP) {
        registers_lower<S::ASKING>();
        if (threadIdx.x < S::GROUPS * GROUP + 32) soft90_bwd_ask<S>(job, room);
    } else {
        registers_raise<S::COMPUTING>();
        soft90_bwd_compute<T, S>(job, room);
    }
}

template <typename T, typename S>
static status soft90_bwd_launch(backend *be, const soft90_bwd_job *job) {
    constexpr int BYTES = S::BYTES + (int)sizeof(soft90_bwd_end<S>);
    static_assert((BYTES + 1024) * S::BLOCKS <= 228 * 1024, "shared memory");
    soft90_bwd_job own = *job;
    int64_t n_blocks = (int64_t)S::BLOCKS * cuda_of(be)->n_multiprocessors;
    own.order = soft_order_of(be, &job->a, S::KEYS, S::BLOCKS);
    own.order.is_last_first = false; /* most queries see the first keys */
    own.n_units = (int)soft_count_blocks(&job->a, &own.order);
    if (n_blocks > own.n_units) n_blocks = own.n_units;
    return cuda_launch_early(be, "the gradient of the softmax attention",
                             softmax_attn_bwd_sm90_kernel<T, S>, n_blocks, S::THREADS, BYTES, own);
}

struct bwd_short_d64 : soft90_bwd_sizes {
    static constexpr int D = 64, GROUPS = 1, BLOCKS = 2, COMPUTING = 184, ASKING = 72;
};
struct bwd_long_d64 : soft90_bwd_sizes {
    static constexpr int D = 64;
};
struct bwd_d128 : soft90_bwd_sizes {
    static constexpr int D = 128, OWNS = 1, COMPUTING = 224, ASKING = 56;
    static constexpr bool LOOKS_AHEAD = false;
};

struct bwd_silu_d64 : bwd_long_d64 {
    static constexpr bool IS_SILU = true;
};
struct bwd_silu_d128 : bwd_d128 {
    static constexpr bool IS_SILU = true;
};

/* Slots of tiles of queries. */
static int64_t count_slots(const softmax_attn_args *a) {
    return a->n_rows / QUERIES + a->n_sequences;
}

bool cuda_softmax_sm90_can_bwd(const backend *be, const softmax_attn_args *a) {
    int64_t n_tiles = cuda_div_up(a->max_len, QUERIES) * a->n_sequences * a->n_heads;
    if (a->silu_scale != 0 && cuda_of(be)->is_deterministic) return false;
    return cuda_of(be)->sm == 90 && be->act != ACT_F32 && (a->dim == 64 || a->dim == 128) &&
           a->n_rows > 0 && is_addressable(a->q, a->stride_q) &&
           is_addressable(a->k, a->stride_k) && is_addressable(a->v, a->stride_v) &&
           is_addressable(a->out, a->stride_out) && is_addressable(a->dout, a->stride_out) &&
           is_addressable(a->dq, a->stride_q) && is_addressable(a->dk, a->stride_k) &&
           is_addressable(a->dv, a->stride_v) && (uintptr_t)a->mask.bits % 16 == 0 &&
           n_tiles < (int64_t)1 << 30 && count_slots(a) * a->n_heads < (int64_t)1 << 30;
}

/* A tile of queries that there is. */
typedef struct slot_place {
    int head, row, i0, n; /* the sequence's first row, the tile's first query, queries of it */
    int64_t at;           /* of slot and head */
} slot_place;

/* The tile of (slot, head) `id`; n <= 0: none. */
__device__ static inline slot_place slot_find(const softmax_attn_args &a, unsigned id) {
    slot_place p;
    int slot = (int)(id / (unsigned)a.n_heads);
    int b = tiles_search(a.offsets, QUERIES, a.n_sequences, slot);
    p.head = (int)(id % (unsigned)a.n_heads);
    p.row = __ldg(a.offsets + b);
    p.i0 = (slot - p.row / QUERIES - b) * QUERIES;
    p.n = min(__ldg(a.offsets + b + 1) - p.row - p.i0, (int)QUERIES);
    p.at = id;
    return p;
}

/* Sum of the products of two vectors of 8. */
template <typename T> __device__ static inline float dot_eight(const T *x, const T *y) {
    uint4 a = __ldg((const uint4 *)x), b = __ldg((const uint4 *)y);
    const T *u = (const T *)&a, *v = (const T *)&b;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum = fmaf(to_float(u[i]), to_float(v[i]), sum);
    return sum;
}

enum { BEFORE_THREADS = 4 * QUERIES }; /* four threads a row */

/* delta: (T, H) or NULL. */
template <typename T, int D>
__global__ void __launch_bounds__(BEFORE_THREADS)
    softmax_attn_bwd_before_sm90_kernel(const __grid_constant__ softmax_attn_args a,
                                        soft90_bwd_sums *sums, float *dq, float *delta,
                                        int *counter) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *counter = 0;
    slot_place p = slot_find(a, blockIdx.x);
    if (p.n <= 0) return;
    int i = (int)threadIdx.x / 4, lane = (int)threadIdx.x % 4;
    float sum = 0, log_sum = 0;
    int64_t row = p.row + p.i0 + i, at = row * a.n_heads + p.head;
    if (i < p.n && a.silu_scale == 0) {
        const T *out = (const T *)a.out + row * a.stride_out + p.head * D;
        const T *dout = (const T *)a.dout + row * a.stride_out + p.head * D;
        if (lane == 0) log_sum = a.log_sum[at];
#pragma unroll
        for (int d = 0; d < D; d += 32)
            sum += dot_eight(out + d + 8 * lane, dout + d + 8 * lane);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (lane == 0) {
        /* the log of an empty sum is replaced, so that no NaN arises before a pair is hidden */
        sums[p.at].log_sum[i] = log_sum == -INFINITY ? 0.0f : log_sum * 1.44269504f;
        sums[p.at].delta[i] = sum;
        if (delta != NULL && i < p.n) delta[at] = sum;
    }
    if (dq == NULL) return;
    float4 *to = (float4 *)(dq + p.at * (QUERIES * D)) + threadIdx.x;
#pragma unroll
    for (int j = 0; j < QUERIES * D / 4; j += BEFORE_THREADS)
        to[j] = make_float4(0, 0, 0, 0);
}

/* Rounds 64 columns of dq of a slot and head: a warpgroup reads the sums in the register order in
 * which others added them. */
template <typename T, int D>
__global__ void __launch_bounds__(GROUP)
    softmax_attn_bwd_after_sm90_kernel(const __grid_constant__ softmax_attn_args a,
                                       const float *sums) {
    int column = (int)(blockIdx.x % (D / 64)) * 64;
    slot_place p = slot_find(a, blockIdx.x / (D / 64));
    if (p.n <= 0) return;
    const float4 *from = (const float4 *)(sums + p.at * (QUERIES * D) + column * QUERIES);
    float dq[32];
#pragma unroll
    for (int j = 0; j < 8; j++)
        *(float4 *)&dq[4 * j] = __ldcs(from + j * GROUP + threadIdx.x);
    T *to = (T *)a.dq + (p.row + p.i0) * a.stride_q + p.head * D + column;
    store_wide<T, 64>(to, a.stride_q, row_of_thread(), p.n, soft90_bwd_scale(a), dq);
}

/* The scratch memory of a call, in this order. */
typedef struct bwd_parts {
    size_t sums, dq, delta; /* bytes; the counter follows */
} bwd_parts;

static bwd_parts parts_of(const softmax_attn_args *a, bool has_dq) {
    size_t n = (size_t)(count_slots(a) * a->n_heads);
    bwd_parts p = {cuda_align(n * sizeof(soft90_bwd_sums)), 0, 0};
    if (has_dq)
        p.dq = cuda_align(n * QUERIES * (size_t)a->dim * sizeof(float));
    else
        p.delta = cuda_align((size_t)(a->n_rows * a->n_heads) * sizeof(float));
    return p;
}

/* Whether two column tiles share the queries they load. */
static bool shares(const softmax_attn_args *a) {
    return a->max_len > MASK_SHARED_LENGTH ||
           mask_choice_shares(&a->mask.rule, a->mask.n_tiles, a->mask.n_begins, a->max_len);
}

/* float16 has one kernel for every length, which keeps the build short. */
static bool is_short(const backend *be, const softmax_attn_args *a) {
    return be->act == ACT_BF16 && a->dim == 64 && a->silu_scale == 0 && !shares(a);
}

template <typename T, int D> static status run(backend *be, const softmax_attn_args *a) {
    soft90_bwd_job job = {};
    int64_t columns = (int64_t)a->n_heads * D;
    unsigned n_slots = (unsigned)(count_slots(a) * a->n_heads);
    char *room;
    job.a = *a;
    job.scale = a->alpha * (a->silu_scale != 0 ? 0.5f : 1.44269504f);
    job.has_dq = !cuda_of(be)->is_deterministic;
    bwd_parts parts = parts_of(a, job.has_dq);
    TRY(cuda_scratch(be, parts.sums + parts.dq + parts.delta + sizeof(int), (void **)&room));
    soft90_bwd_sums *sums = (soft90_bwd_sums *)room;
    float *delta = job.has_dq ? NULL : (float *)(room + parts.sums + parts.dq);
    job.sums = sums;
    job.dq = job.has_dq ? (float *)(room + parts.sums) : NULL;
    job.counter = (int *)(room + parts.sums + parts.dq + parts.delta);
    TRY(sm90a_map(&job.q, be->act, a->q, a->n_rows, columns, a->stride_q));
    TRY(sm90a_map(&job.k, be->act, a->k, a->n_rows, columns, a->stride_k));
    TRY(sm90a_map(&job.v, be->act, a->v, a->n_rows, columns, a->stride_v));
    TRY(sm90a_map(&job.dout, be->act, a->dout, a->n_rows, columns, a->stride_out));
    TRY((cuda_launch(be, "the softmax attention's delta", softmax_attn_bwd_before_sm90_kernel<T, D>,
                     n_slots, BEFORE_THREADS, 0, *a, sums, job.dq, delta, job.counter)));
    if (is_short(be, a)) {
        TRY((soft90_bwd_launch<__nv_bfloat16, soft90_bwd_shape<bwd_short_d64>>(be, &job)));
    } else if constexpr (D == 64) {
        if (a->silu_scale != 0)
            TRY((soft90_bwd_launch<T, soft90_bwd_shape<bwd_silu_d64>>(be, &job)));
        else
            TRY((soft90_bwd_launch<T, soft90_bwd_shape<bwd_long_d64>>(be, &job)));
    } else if (a->silu_scale != 0) {
        TRY((soft90_bwd_launch<T, soft90_bwd_shape<bwd_silu_d128>>(be, &job)));
    } else {
        TRY((soft90_bwd_launch<T, soft90_bwd_shape<bwd_d128>>(be, &job)));
    }
    if (!job.has_dq) return cuda_softmax_sm80_dq(be, a, delta);
    return cuda_launch(be, "the softmax attention's dq", softmax_attn_bwd_after_sm90_kernel<T, D>,
                       n_slots * (D / 64), GROUP, 0, *a, job.dq);
}

status cuda_softmax_sm90_bwd(backend *be, const softmax_attn_args *a) {
    if (be->act == ACT_BF16)
        return a->dim == 64 ? run<__nv_bfloat16, 64>(be, a) : run<__nv_bfloat16, 128>(be, a);
    return a->dim == 64 ? run<__half, 64>(be, a) : run<__half, 128>(be, a);
}
