/* The forward kernel of the softmax attention on Hopper: 16-bit activations under any mask
 * (contract: softmax_attn_args in ops/ops.h).
 *
 * A block owns GROUPS row tiles of MASK_TILE queries of one sequence and head, one for each of its
 * warpgroups.  A producer thread walks over the lists of their mask, merged where there are two,
 * and loads the tiles of keys and values in which anything is seen, with the bitmaps of partial
 * ones, by TMA into a ring of stages; the warpgroups follow with scores in registers, online
 * softmax, and weights from registers.  Blocks do not persist: several of them on a multiprocessor
 * hide each other's latency, and one may start while the last kernel ends.
 * - GROUPS = 1: sparse masks, whose lists differ from row tile to row tile.  Bound by bytes and
 *   latency.
 * - GROUPS = 2: dense masks; two row tiles share what is loaded.  Bound by exponentials (16 a clock
 *   and multiprocessor, as long as the two products take at D = 64). */
#ifndef HSTU_CUDA_ATTN_SM90_SOFTMAX_SM90_FWD_CUH
#define HSTU_CUDA_ATTN_SM90_SOFTMAX_SM90_FWD_CUH

#include "cuda/attn/common/mask_walk.cuh"
#include "cuda/attn/common/softmax_blocks.cuh"
#include "cuda/attn/sm90/attn_sm90.cuh"

/* One launch. */
typedef struct soft90_job {
    CUtensorMap q, k, v;
    softmax_attn_args a;
    soft_order order;
    float scale; /* alpha log2(e) */
} soft90_job;

/* A struct derived from this one names D, the head dimension, and overrides some of these. */
struct soft90_sizes {
    static constexpr int GROUPS = 1; /* warpgroups that compute */
    static constexpr int STAGES = 2;
    static constexpr int BLOCKS = 4;        /* of a multiprocessor */
    static constexpr bool IS_PIPED = false; /* the next scores overlap with this tile's product */
    static constexpr bool HAS_PRODUCER = true; /* a warp of its own; else thread 0 asks between */
};

template <typename SIZES> struct soft90_shape {
    static constexpr int D = SIZES::D, GROUPS = SIZES::GROUPS, STAGES = SIZES::STAGES;
    static constexpr int BLOCKS = SIZES::BLOCKS;
    static constexpr bool IS_PIPED = SIZES::IS_PIPED;
    static constexpr bool HAS_PRODUCER = SIZES::HAS_PRODUCER;
    static constexpr int PRODUCER = HAS_PRODUCER ? GROUPS * GROUP : 0; /* thread that asks */
    static constexpr int THREADS = GROUPS * GROUP + (HAS_PRODUCER ? 32 : 0),
                         ROWS = GROUPS * MASK_TILE;
    /* Without a producer: tiles asked for before the first one is computed.  Then one for each
     * tile, into the stage of the last tile or, piped, of the one before that. */
    static constexpr int AT_FIRST = IS_PIPED ? STAGES - 1 : STAGES;
    static constexpr int TILE = MASK_TILE * D * 2;                    /* bytes */
    static constexpr int BYTES = (GROUPS + 2 * STAGES) * TILE + 1024; /* room to align */
};

enum { SOFT90_NOTHING = -3 }; /* in the place of a bitmap: the row tile does not see the keys */

/* What the warpgroups must know about a stage. */
template <int GROUPS> struct soft90_stage {
    int key0;
    int bits[GROUPS];
    bool is_last;
};

/* A row tile's list as the producer walks over it. */
typedef struct soft90_list {
    int at, end;
    mask_tile tile; /* INT32_MAX: none is left */
} soft90_list;

template <typename S> struct soft90_room {
    uint64_t words[S::STAGES][S::GROUPS][MASK_TILE]; /* of a partial tile that has a bitmap */
    uint64_t queries;
    uint64_t keys[S::STAGES], values[S::STAGES]; /* they are there, keys with the words */
    uint64_t free[S::STAGES];                    /* all warps are done with the stage */
    soft90_stage<S::GROUPS> stages[S::STAGES];
    soft90_list lists[S::GROUPS]; /* these three without a producer */
    int n_asked;
    bool is_done;
};

__device__ static inline void soft90_look(const mask_view &m, soft90_list *l) {
    mask_tile none = {INT32_MAX, SOFT90_NOTHING};
    l->tile = l->at < l->end ? mask_tile_at(m, m.row_tiles, l->at) : none;
}

/* The producer's start, before the kernel may touch what the previous one writes: lists are copied
 * from the host, so they are there.  The sequence's length is not known yet: entries may be those
 * of a mask that follows, and are then left unread. */
template <typename S>
__device__ static inline void soft90_open_lists(const mask_view &m, const soft_block &t,
                                                soft90_list (&lists)[S::GROUPS]) {
    if (mask_rule_is_span(&m.rule)) return;
    int first = __ldg(m.first + t.b) + t.tile * S::GROUPS;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++) {
        bool is_there = first + g + 1 < m.n_begins;
        lists[g].at = is_there ? __ldg(m.row_begin + first + g) : 0;
        lists[g].end = is_there ? __ldg(m.row_begin + first + g + 1) : 0;
        soft90_look(m, &lists[g]);
    }
}

/* The rest of it, when the sequence's length is known. */
template <typename S>
__device__ static inline void soft90_place_lists(const mask_view &m, const soft_block &t,
                                                 soft90_list (&lists)[S::GROUPS]) {
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++) {
        int tile = t.tile * S::GROUPS + g;
        bool is_there = tile * MASK_TILE < t.len;
        if (is_there && !mask_rule_is_span(&m.rule)) continue;
        mask_range range = {0, 0};
        if (is_there) range = mask_keys_of(m, t.b, t.len, tile);
        lists[g].at = range.begin;
        lists[g].end = range.end;
        soft90_look(m, &lists[g]);
    }
}

/* Loads stage `at` with the tile of keys that comes first in the lists; returns whether it is the
 * last one.  Where the lists are empty, the stage says so. */
template <typename S>
__device__ static inline bool soft90_ask_tile(const soft90_job &job, const soft_block &t,
                                              soft90_list (&lists)[S::GROUPS], soft90_room<S> *room,
                                              char *keys, int at) {
    const mask_view &m = job.a.mask;
    soft90_stage<S::GROUPS> *stage = &room->stages[at];
    uint32_t bytes = 0;
    int tile = INT32_MAX, next = INT32_MAX, x = t.head * S::D;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++)
        tile = min(tile, lists[g].tile.tile);
    int key0 = tile < INT32_MAX ? tile * MASK_TILE : 0;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++) {
        int bits = SOFT90_NOTHING, row0 = t.tile * S::ROWS + g * MASK_TILE;
        if (tile < INT32_MAX && lists[g].tile.tile == tile) {
            bits = mask_bits_of(m, lists[g].tile.bits, t.len, row0, key0);
            lists[g].at++;
            soft90_look(m, &lists[g]);
        }
        if (bits >= 0) bytes += sizeof room->words[at][g];
        stage->bits[g] = bits;
        next = min(next, lists[g].tile.tile);
    }
    stage->key0 = key0;
    stage->is_last = next == INT32_MAX;
    if (tile < INT32_MAX) bytes += S::TILE;
    barrier_expect(&room->keys[at], bytes);
    if (tile < INT32_MAX)
        load_rows<S::D, MASK_TILE>(keys, &job.k, &room->keys[at], x, t.row + key0);
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++)
        if (stage->bits[g] >= 0)
            bulk_load(room->words[at][g], m.bits + (int64_t)stage->bits[g] * MASK_TILE,
                      sizeof room->words[at][g], &room->keys[at]);
    barrier_expect(&room->values[at], tile < INT32_MAX ? S::TILE : 0);
    if (tile < INT32_MAX)
        load_rows<S::D, MASK_TILE>(keys + S::TILE, &job.v, &room->values[at], x, t.row + key0);
    return next == INT32_MAX;
}

template <typename S>
__device__ static inline void soft90_ask_queries(const soft90_job &job, const soft_block &t,
                                                 soft90_room<S> *room, char *queries) {
    int row0 = t.tile * S::ROWS;
    int n_groups = min((t.len - row0 + MASK_TILE - 1) / MASK_TILE, S::GROUPS);
    barrier_expect(&room->queries, (uint32_t)(n_groups * S::TILE));
    for (int g = 0; g < n_groups; g++)
        load_rows<S::D, MASK_TILE>(queries + g * S::TILE, &job.q, &room->queries, t.head * S::D,
                                   t.row + row0 + g * MASK_TILE);
}

/* The producer: one thread. */
template <typename S>
__device__ static void soft90_ask(const soft90_job &job, const soft_block &t,
                                  soft90_list (&lists)[S::GROUPS], soft90_room<S> *room,
                                  char *keys) {
    int at = 0;
    uint32_t parity = 1;
    for (;;) {
        barrier_wait(&room->free[at], parity);
        if (soft90_ask_tile<S>(job, t, lists, room, keys + at * 2 * S::TILE, at)) break;
        if (++at == S::STAGES) {
            at = 0;
            parity ^= 1;
        }
    }
}

/* Without a producer: thread 0 asks for the next tile, if there is one. */
template <typename S>
__device__ static inline void soft90_ask_next(const soft90_job &job, const soft_block &t,
                                              soft90_room<S> *room, char *keys) {
    if (threadIdx.x != 0 || room->is_done) return;
    int i = room->n_asked++, at = i % S::STAGES;
    barrier_wait(&room->free[at], (uint32_t)(i / S::STAGES % 2) ^ 1);
    room->is_done = soft90_ask_tile<S>(job, t, room->lists, room, keys + at * 2 * S::TILE, at);
}

/* A warpgroup's rows as it walks: the thread's are row and row + 8. */
typedef struct soft90_rows {
    int row;
    float largest[2]; /* of the scores before alpha; -infinity: none yet */
    float sum[2];     /* of exp(alpha (score - largest)): this thread's part */
    float factor[2];  /* by which the last tile's larger scores shrink what there was */
} soft90_rows;

/* Hides what a partial tile hides; of each 8 columns a thread has 2 (thread % 4) and the next. */
template <typename S>
__device__ static inline void soft90_hide(const soft90_job &job, const soft_block &t,
                                          const soft90_rows &rows, int bits, int key0,
                                          const uint64_t *words, float (&x)[MASK_TILE / 2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = rows.row + 8 * r;
        uint64_t word = bits >= 0 ? words[row % MASK_TILE]
                                  : mask_word(job.a.mask, MASK_BY_RULE, t.len, row, key0);
        word >>= threadIdx.x % 4 * 2;
        uint32_t half[2] = {(uint32_t)word, (uint32_t)(word >> 32)};
#pragma unroll
        for (int c = 0; c < MASK_TILE / 4; c++) {
            bool is_seen = half[c / 8] & 1u << (c / 2 % 4 * 8 + c % 2);
            float *score = &x[c / 2 * 4 + 2 * r + c % 2];
            *score = is_seen ? *score : -INFINITY;
        }
    }
}

/* Scores become weights exp(alpha (score - largest)).  Returns whether any factor of the warp's
 * rows is not 1. */
__device__ static inline bool soft90_softmax(float (&x)[MASK_TILE / 2], soft90_rows *rows,
                                             float scale) {
    bool is_larger = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float a = rows->largest[r], b = x[2 * r];
#pragma unroll
        for (int c = 0; c < MASK_TILE / 4; c += 2) {
            a = fmaxf(a, x[c / 2 * 4 + 2 * r]);
            b = fmaxf(b, x[c / 2 * 4 + 2 * r + 1]);
        }
        a = fmaxf(a, b);
        a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 1));
        a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 2));
        float shift = a == -INFINITY ? 0.0f : a * scale;
        rows->factor[r] = ex2_approx(fmaf(rows->largest[r], scale, -shift));
        is_larger |= a > rows->largest[r];
        rows->largest[r] = a;
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int c = 0; c < MASK_TILE / 4; c++) {
            float *y = &x[c / 2 * 4 + 2 * r + c % 2];
            *y = ex2_approx(fmaf(*y, scale, -shift));
            sum[c % 2] += *y;
        }
        rows->sum[r] = fmaf(rows->sum[r], rows->factor[r], sum[0] + sum[1]);
    }
    return __any_sync(0xffffffffu, is_larger);
}

template <int D>
__device__ static inline void soft90_shrink(float (&acc)[D / 2], const soft90_rows &rows) {
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        acc[i] *= rows.factor[i % 4 / 2];
}

/* Values after the sequence's end are other rows', which need not be finite, times weights of 0. */
template <typename S>
__device__ static inline void soft90_clear_tail(char *values, int n, int group) {
    int n_rows = MASK_TILE - n;
    for (int i = (int)threadIdx.x % GROUP; i < n_rows * (S::D / 8); i += GROUP) {
        int part = i / (n_rows * 8), at = i % (n_rows * 8);
        *(uint4 *)(values + part * MASK_TILE * PART_BYTES + n * PART_BYTES + at * 16) =
            make_uint4(0, 0, 0, 0);
    }
    shared_fence();
    if (group == 0) /* numbers known to the compiler: a block is then given no more of them */
        named_barrier(1, GROUP);
    else if (group == 1)
        named_barrier(2, GROUP);
    else
        named_barrier(3, GROUP);
}

/* A warpgroup's place in the ring. */
typedef struct soft90_place {
    int at;
    uint32_t parity;
    int n; /* tiles before this one */
} soft90_place;

template <typename S> __device__ static inline void soft90_advance(soft90_place *p) {
    p->n++;
    if (++p->at < S::STAGES) return;
    p->at = 0;
    p->parity ^= 1;
}

/* What a warpgroup does with a block; keys: the ring. */
template <typename T, typename S> struct soft90_group {
    const soft90_job &job;
    const soft_block &t;
    soft90_room<S> *room;
    const char *queries; /* the warpgroup's own */
    char *keys;
    int group;

    __device__ inline bool sees(const soft90_place &p) const {
        return room->stages[p.at].bits[group] != SOFT90_NOTHING;
    }
    /* Of tile n; once for each tile that passes. */
    __device__ inline void refill(int n) const {
        if constexpr (!S::HAS_PRODUCER) {
            if (group == 0 && n > 0) soft90_ask_next<S>(job, t, room, keys);
            __syncwarp();
        }
    }
    /* Waits for the stage's keys; skips stages that the row tile does not see.  False: none. */
    __device__ inline bool find(soft90_place *p, bool *is_last) const {
        for (;;) {
            barrier_wait(&room->keys[p->at], p->parity);
            *is_last = room->stages[p->at].is_last;
            if (sees(*p)) return true;
            barrier_wait(&room->values[p->at], p->parity);
            __syncwarp();
            refill(p->n);
            release(&room->free[p->at]);
            if (*is_last) return false;
            soft90_advance<S>(p);
        }
    }
    __device__ inline void scores(float (&x)[MASK_TILE / 2], const soft90_place &p) const {
        wgmma_fence();
        product_of_rows<T, S::D, MASK_TILE, MASK_TILE>(x, queries, keys + p.at * 2 * S::TILE);
        wgmma_commit();
    }
    __device__ inline void hide(float (&x)[MASK_TILE / 2], const soft90_rows &rows,
                                const soft90_place &p) const {
        int bits = room->stages[p.at].bits[group];
        if (bits != MASK_FULL)
            soft90_hide<S>(job, t, rows, bits, room->stages[p.at].key0, room->words[p.at][group],
                           x);
    }
    /* acc += weights times values; not complete on return. */
    __device__ inline void add(float (&acc)[S::D / 2], const uint32_t (&left)[MASK_TILE / 16][4],
                               const soft90_place &p) const {
        char *values = keys + p.at * 2 * S::TILE + S::TILE;
        int n = t.len - room->stages[p.at].key0;
        barrier_wait(&room->values[p.at], p.parity);
        if (n < MASK_TILE) soft90_clear_tail<S>(values, n, group);
        wgmma_fence();
        product_with_rows<T, S::D, MASK_TILE>(acc, left, values);
        wgmma_commit();
    }
};

/* One tile after the other; other warpgroups compute while this one waits. */
template <typename T, typename S>
__device__ static inline void soft90_walk_plain(const soft90_group<T, S> &g, soft90_rows *rows,
                                                float (&acc)[S::D / 2]) {
    soft90_place p = {0, 0, 0};
    bool is_last;
    while (g.find(&p, &is_last)) {
        float x[MASK_TILE / 2];
        uint32_t left[MASK_TILE / 16][4];
        g.scores(x, p);
        wgmma_wait<0>();
        g.refill(p.n);
        g.hide(x, *rows, p);
        if (soft90_softmax(x, rows, g.job.scale)) soft90_shrink<S::D>(acc, *rows);
        pack_left<T, MASK_TILE>(left, x);
        g.add(acc, left, p);
        wgmma_wait<0>();
        release(&g.room->free[p.at]);
        if (is_last) break;
        soft90_advance<S>(&p);
    }
}

/* The scores of the next tile are computed, and their weights found, while the weights of this one
 * are multiplied by the values.  A tile that the row tile does not see ends such a run: a stage
 * that is held while others pass could be the one that the producer waits for. */
template <typename T, typename S>
__device__ static inline void soft90_walk_piped(const soft90_group<T, S> &g, soft90_rows *rows,
                                                float (&acc)[S::D / 2]) {
    soft90_place next = {0, 0, 0};
    bool is_last;
    while (g.find(&next, &is_last)) {
        float x[MASK_TILE / 2];
        uint32_t left[MASK_TILE / 16][4];
        soft90_place now = next;
        g.scores(x, now);
        wgmma_wait<0>();
        g.refill(now.n);
        g.hide(x, *rows, now);
        if (soft90_softmax(x, rows, g.job.scale)) soft90_shrink<S::D>(acc, *rows);
        pack_left<T, MASK_TILE>(left, x);
        soft90_advance<S>(&next);
        while (!is_last) {
            barrier_wait(&g.room->keys[next.at], next.parity);
            if (!g.sees(next)) break;
            is_last = g.room->stages[next.at].is_last;
            g.scores(x, next);
            g.add(acc, left, now);
            wgmma_wait<1>();
            g.hide(x, *rows, next);
            bool is_larger = soft90_softmax(x, rows, g.job.scale);
            /* Keeps the compiler from moving the wait before the weights (cf. fwd_sum_piped). */
            barrier_wait(&g.room->values[now.at], now.parity);
            wgmma_wait<0>();
            release(&g.room->free[now.at]);
            g.refill(next.n);
            if (is_larger) soft90_shrink<S::D>(acc, *rows);
            pack_left<T, MASK_TILE>(left, x);
            now = next;
            soft90_advance<S>(&next);
        }
        g.add(acc, left, now);
        wgmma_wait<0>();
        release(&g.room->free[now.at]);
        if (is_last) break;
    }
}

/* Divides by the sums, and stores. */
template <typename T, int D>
__device__ static inline void soft90_store(const softmax_attn_args &a, const soft_block &t,
                                           const soft90_rows &rows, float (&acc)[D / 2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = rows.row + 8 * r;
        float sum = rows.sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int c = 0; c < D / 4; c++)
            acc[c / 2 * 4 + 2 * r + c % 2] *= inverse;
        if (a.log_sum != NULL && threadIdx.x % 4 == 0 && row < t.len)
            a.log_sum[(int64_t)(t.row + row) * a.n_heads + t.head] =
                sum > 0.0f ? fmaf(rows.largest[r], a.alpha, logf(sum)) : -INFINITY;
    }
    T *to = (T *)a.out + (int64_t)t.row * a.stride_out + t.head * D;
    if (((uintptr_t)to | (uintptr_t)(a.stride_out * sizeof(T))) % 16 != 0)
        store_rows<T, D>(to, a.stride_out, rows.row, t.len, 1.0f, acc);
    else
        store_wide<T, D>(to, a.stride_out, rows.row, t.len, 1.0f, acc);
}

template <typename T, typename S>
__device__ static void soft90_compute(const soft90_job &job, const soft_block &t,
                                      soft90_room<S> *room, const char *queries, char *keys) {
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0); /* known to be uniform */
    soft90_group<T, S> g = {job, t, room, queries + group * S::TILE, keys, group};
    soft90_rows rows = {};
    rows.row = t.tile * S::ROWS + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    rows.largest[0] = rows.largest[1] = -INFINITY;
    float acc[S::D / 2];
#pragma unroll
    for (int i = 0; i < S::D / 2; i++)
        acc[i] = 0.0f;
    barrier_wait(&room->queries, 0);
    if constexpr (S::IS_PIPED)
        soft90_walk_piped<T, S>(g, &rows, acc);
    else
        soft90_walk_plain<T, S>(g, &rows, acc);
    soft90_store<T, S::D>(job.a, t, rows, acc);
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    softmax_attn_fwd_sm90_kernel(const __grid_constant__ soft90_job job) {
    extern __shared__ char shared[];
    __shared__ __align__(128) soft90_room<S> room;
    char *queries = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *keys = queries + S::GROUPS * S::TILE;
    const mask_view &mask = job.a.mask;
    bool is_asker = threadIdx.x == S::PRODUCER;
    soft_block t = soft_block_find(job.a, job.order);
    soft90_list lists[S::GROUPS];
    if (is_asker) {
        tile_prefetch_map(&job.q);
        tile_prefetch_map(&job.k);
        tile_prefetch_map(&job.v);
        barrier_init(&room.queries, 1);
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&room.keys[i], 1);
            barrier_init(&room.values[i], 1);
            barrier_init(&room.free[i], S::GROUPS * GROUP / 32);
        }
        barrier_init_done();
        soft90_open_lists<S>(mask, t, lists);
    }
    grid_launch_next();
    grid_wait();
    soft_block_place(job.a, &t);
    if (t.tile * S::ROWS >= t.len) return;
    if (is_asker) {
        soft90_ask_queries<S>(job, t, &room, queries);
        soft90_place_lists<S>(mask, t, lists);
        if constexpr (!S::HAS_PRODUCER) {
            for (int g = 0; g < S::GROUPS; g++)
                room.lists[g] = lists[g];
            room.n_asked = 0;
            room.is_done = false;
            for (int i = 0; i < S::AT_FIRST; i++)
                soft90_ask_next<S>(job, t, &room, keys);
        }
    }
    __syncthreads();
    if (threadIdx.x < S::GROUPS * GROUP)
        soft90_compute<T, S>(job, t, &room, queries, keys);
    else if (is_asker)
        soft90_ask<S>(job, t, lists, &room, keys);
}

template <typename T, typename S> status soft90_launch(backend *be, const softmax_attn_args *a) {
    soft90_job job = {};
    int64_t columns = (int64_t)a->n_heads * S::D;
    job.a = *a;
    job.scale = a->alpha * 1.44269504f;
    job.order = soft_order_of(be, a, S::ROWS, S::BLOCKS);
    TRY(sm90a_map(&job.q, be->act, a->q, a->n_rows, columns, a->stride_q));
    TRY(sm90a_map(&job.k, be->act, a->k, a->n_rows, columns, a->stride_k));
    TRY(sm90a_map(&job.v, be->act, a->v, a->n_rows, columns, a->stride_v));
    CUDA_TRY(CUDA_ALLOW_SHARED((softmax_attn_fwd_sm90_kernel<T, S>), S::BYTES));
    CUDA_TRY(sm90a_launch_early(softmax_attn_fwd_sm90_kernel<T, S>,
                                soft_count_blocks(a, &job.order), S::THREADS, S::BYTES,
                                cuda_of(be)->stream, job));
    return cuda_launched("the softmax attention");
}

#endif
