/* The forward kernel of the softmax attention on Hopper: 16-bit activations under any mask
 * (contract: softmax_attn_args in ops/ops.h).
 *
 * A block owns GROUPS row tiles of MASK_TILE queries of one sequence and head, one for each of its
 * warpgroups.  A producer warp walks over the lists of their mask, merged where there are two,
 * and loads the tiles of keys and values in which anything is seen, with the bitmaps of partial
 * ones, by TMA into a ring of stages; the warpgroups follow with scores in registers, online
 * softmax, and weights from registers.  Blocks do not persist: several of them on a multiprocessor
 * hide each other's latency, and one may start while the last kernel ends.
 * - GROUPS = 1: sparse masks, whose lists differ from row tile to row tile.  Bound by bytes and
 *   latency.
 * - GROUPS = 2: dense masks; two row tiles share what is loaded.  Bound by exponentials (16 a clock
 *   and multiprocessor, as long as the two products take at D = 64). */
#pragma once

#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/attn/common/softmax_blocks.cuh"
#include "cuda/attn/sm90/attn_sm90.cuh"

/* Products of a half tile. */
WGMMA_SHARED(wgmma_ss, "0, 0", __nv_bfloat16, "bf16", 32, 16, "16", "17", "18")
WGMMA_SHARED(wgmma_ss, "0, 0", __half, "f16", 32, 16, "16", "17", "18")

/* One launch. */
typedef struct soft90_job {
    CUtensorMap q, k, v;
    softmax_attn_args a;
    soft_order order;
    float scale; /* alpha log2(e); of SiLU: alpha / 2 */
} soft90_job;

/* A struct derived from this one names D, the head dimension, and overrides some of these. */
struct soft90_sizes {
    static constexpr int GROUPS = 1; /* warpgroups that compute */
    static constexpr int STAGES = 2;
    static constexpr int BLOCKS = 4; /* of a multiprocessor */
    static constexpr bool IS_SILU = false;
};

template <typename SIZES> struct soft90_shape {
    static constexpr int D = SIZES::D, GROUPS = SIZES::GROUPS, STAGES = SIZES::STAGES;
    static constexpr int BLOCKS = SIZES::BLOCKS;
    static constexpr bool IS_SILU = SIZES::IS_SILU;
    static_assert(GROUPS <= 2, "one numbered barrier each");
    static constexpr int THREADS = GROUPS * GROUP + 32, ROWS = GROUPS * MASK_TILE;
    /* Where a tile has only a half that is seen, the other is neither loaded nor computed. */
    static constexpr bool HAS_HALVES = GROUPS == 1;
    static constexpr int TILE = MASK_TILE * D * 2;                    /* bytes */
    static constexpr int BYTES = (GROUPS + 2 * STAGES) * TILE + 1024; /* room to align */
};

enum { SOFT90_NOTHING = -3 }; /* in the place of a bitmap: the row tile does not see the keys */

/* What the warpgroups must know about a stage. */
template <int GROUPS> struct soft90_stage {
    int key0;
    int halves; /* of the tile: bit h is set if anything of keys 32 h .. 32 h + 31 is seen */
    int bits[GROUPS];
    bool is_last;
};

/* A row tile's list as the producer walks over it. */
typedef struct soft90_list {
    int at, end;
    mask_tile tile; /* INT32_MAX: none is left */
    int halves;     /* of a tile with a bitmap */
} soft90_list;

template <typename S> struct soft90_room {
    uint64_t words[S::STAGES][S::GROUPS][MASK_TILE]; /* of a partial tile that has a bitmap */
    uint64_t queries;
    uint64_t keys[S::STAGES], values[S::STAGES]; /* they are there, keys with the words */
    uint64_t free[S::STAGES];                    /* all warps are done with the stage */
    soft90_stage<S::GROUPS> stages[S::STAGES];
};

/* The whole warp looks where tiles are halved. */
template <typename S>
__device__ static inline void soft90_look(const mask_view &m, soft90_list *l) {
    mask_tile none = {INT32_MAX, SOFT90_NOTHING};
    l->tile = l->at < l->end ? mask_tile_at(m, m.row_tiles, l->at) : none;
    if constexpr (S::HAS_HALVES) {
        if (l->tile.bits < 0) return;
        const ulonglong2 *words = (const ulonglong2 *)(m.bits + (int64_t)l->tile.bits * MASK_TILE);
        ulonglong2 two = __ldg(words + threadIdx.x % 32);
        unsigned long long any = two.x | two.y;
        uint32_t halves = ((uint32_t)any != 0 ? 1u : 0) | (any >> 32 != 0 ? 2u : 0);
        l->halves = (int)__reduce_or_sync(0xffffffffu, halves);
    }
}

/* The halves of a tile of keys that a row tile sees. */
template <typename S>
__device__ static inline int soft90_halves(const mask_view &m, const soft90_list &l, int bits,
                                           int n, int row0, int key0) {
    if (!S::HAS_HALVES || bits == MASK_FULL) return 3;
    if (bits >= 0) return l.halves;
    mask_span seen = mask_rule_seen(&m.rule, n, row0, min(row0 + MASK_TILE, n));
    return (seen.begin < key0 + 32 ? 1 : 0) | (seen.end > key0 + 32 ? 2 : 0);
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
        soft90_look<S>(m, &lists[g]);
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
        soft90_look<S>(m, &lists[g]);
    }
}

/* Loads the halves of a tile. */
template <int D>
__device__ static inline void soft90_load(char *to, const CUtensorMap *map, uint64_t *barrier,
                                          int x, int y, int halves) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if ((halves >> i & 1) == 0) continue;
#pragma unroll
        for (int c = 0; c < D / PART; c++)
            tile_load(to + (c * MASK_TILE + 32 * i) * PART_BYTES, map, barrier, x + c * PART,
                      y + 32 * i);
    }
}

/* Loads stage `at` with the tile of keys that comes first in the lists; returns whether it is the
 * last one.  Where the lists are empty, the stage says so. */
template <typename S>
__device__ static inline bool soft90_ask_tile(const soft90_job &job, const soft_block &t,
                                              soft90_list (&lists)[S::GROUPS], soft90_room<S> *room,
                                              char *keys, int at) {
    const mask_view &m = job.a.mask;
    soft90_stage<S::GROUPS> stage;
    uint32_t bytes = 0;
    int tile = INT32_MAX, next = INT32_MAX, x = t.head * S::D;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++)
        tile = min(tile, lists[g].tile.tile);
    stage.key0 = tile < INT32_MAX ? tile * MASK_TILE : 0;
    stage.halves = 0;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++) {
        int bits = SOFT90_NOTHING, row0 = t.tile * S::ROWS + g * MASK_TILE;
        if (tile < INT32_MAX && lists[g].tile.tile == tile) {
            bits = mask_bits_of(m, lists[g].tile.bits, t.len, row0, stage.key0);
            stage.halves |= soft90_halves<S>(m, lists[g], bits, t.len, row0, stage.key0);
            lists[g].at++;
            soft90_look<S>(m, &lists[g]);
        }
        if (bits >= 0) bytes += sizeof room->words[at][g];
        stage.bits[g] = bits;
        next = min(next, lists[g].tile.tile);
    }
    stage.is_last = next == INT32_MAX;
    if (threadIdx.x % 32 != 0) return stage.is_last;
    uint32_t tile_bytes = (uint32_t)(__popc((unsigned)stage.halves) * S::TILE / 2);
    room->stages[at] = stage;
    barrier_expect(&room->keys[at], bytes + tile_bytes);
    soft90_load<S::D>(keys, &job.k, &room->keys[at], x, t.row + stage.key0, stage.halves);
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++)
        if (stage.bits[g] >= 0)
            bulk_load(room->words[at][g], m.bits + (int64_t)stage.bits[g] * MASK_TILE,
                      sizeof room->words[at][g], &room->keys[at]);
    barrier_expect(&room->values[at], tile_bytes);
    soft90_load<S::D>(keys + S::TILE, &job.v, &room->values[at], x, t.row + stage.key0,
                      stage.halves);
    return stage.is_last;
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

/* The producer: a warp, whose first lane issues the loads. */
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

/* A warpgroup's rows as it walks: the thread's are row and row + 8. */
typedef struct soft90_rows {
    int row;
    float largest[2]; /* of the scores before alpha; -infinity: none yet */
    float sum[2];     /* of exp(alpha (score - largest)): this thread's part */
    float factor[2];  /* by which the last tile's larger scores shrink what there was */
} soft90_rows;

/* Hides what a partial tile hides, of N columns from its column `first` on, with a score whose
 * weight is 0; of each 8 columns a thread has 2 (thread % 4) and the next. */
template <int N>
__device__ static inline void soft90_hide(const soft90_job &job, const soft_block &t,
                                          const soft90_rows &rows, int bits, int key0, int first,
                                          const uint64_t *words, float hidden, float (&x)[N / 2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = rows.row + 8 * r;
        uint64_t word = bits >= 0 ? words[row % MASK_TILE]
                                  : mask_word(job.a.mask, MASK_BY_RULE, t.len, row, key0);
        word >>= threadIdx.x % 4 * 2 + first;
        uint32_t half[2] = {(uint32_t)word, (uint32_t)(word >> 32)};
#pragma unroll
        for (int c = 0; c < N / 4; c++) {
            bool is_seen = half[c / 8] & 1u << (c / 2 % 4 * 8 + c % 2);
            float *score = &x[c / 2 * 4 + 2 * r + c % 2];
            *score = is_seen ? *score : hidden;
        }
    }
}

/* Scores become weights exp(alpha (score - largest)).  Returns whether any factor of the warp's
 * rows is not 1. */
template <int N>
__device__ static inline bool soft90_softmax(float (&x)[N / 2], soft90_rows *rows, float scale) {
    bool is_larger = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float a = rows->largest[r], b = x[2 * r];
#pragma unroll
        for (int c = 0; c < N / 4; c += 2) {
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
        for (int c = 0; c < N / 4; c++) {
            float *y = &x[c / 2 * 4 + 2 * r + c % 2];
            *y = ex2_approx(fmaf(*y, scale, -shift));
            sum[c % 2] += *y;
        }
        rows->sum[r] = fmaf(rows->sum[r], rows->factor[r], sum[0] + sum[1]);
    }
    return __any_sync(0xffffffffu, is_larger);
}

/* Scores become weights silu(alpha score). */
template <int N> __device__ static inline void soft90_silu(float (&x)[N / 2], float half) {
#pragma unroll
    for (int e = 0; e < N / 2; e++) {
        float h = half * x[e];
        x[e] = fmaf(h, tanh_approx(h), h);
    }
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
    else
        named_barrier(2, GROUP);
}

/* A warpgroup's place in the ring. */
typedef struct soft90_place {
    int at;
    uint32_t parity;
} soft90_place;

template <typename S> __device__ static inline void soft90_advance(soft90_place *p) {
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
    /* Waits for the stage's keys; skips stages that the row tile does not see.  False: none. */
    __device__ inline bool find(soft90_place *p, bool *is_last) const {
        for (;;) {
            barrier_wait(&room->keys[p->at], p->parity);
            *is_last = room->stages[p->at].is_last;
            if (sees(*p)) return true;
            barrier_wait(&room->values[p->at], p->parity);
            __syncwarp();
            release(&room->free[p->at]);
            if (*is_last) return false;
            soft90_advance<S>(p);
        }
    }
    /* Scores of N keys from key `first` of the tile on; not complete on return. */
    template <int N>
    __device__ inline void scores(float (&x)[N / 2], const soft90_place &p, int first = 0) const {
        uint64_t a = tile_describe(queries, 16);
        uint64_t b = tile_describe(keys + p.at * 2 * S::TILE + first * PART_BYTES, 16);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < S::D / 16; k++) {
            uint32_t at = k / 4 * MASK_TILE * PART_BYTES + k % 4 * 32;
            wgmma_ss<T, N>(x, tile_move(a, at), tile_move(b, at), k > 0);
        }
        wgmma_commit();
    }
    template <int N>
    __device__ inline void hide(float (&x)[N / 2], const soft90_rows &rows, const soft90_place &p,
                                int first = 0) const {
        int bits = room->stages[p.at].bits[group];
        if (bits != MASK_FULL)
            soft90_hide<N>(job, t, rows, bits, room->stages[p.at].key0, first,
                           room->words[p.at][group], S::IS_SILU ? 0.0f : -INFINITY, x);
    }
    /* acc += weights times values, likewise. */
    template <int N>
    __device__ inline void add(float (&acc)[S::D / 2], const uint32_t (&left)[N / 16][4],
                               const soft90_place &p, int first = 0) const {
        char *values = keys + p.at * 2 * S::TILE + S::TILE;
        int n = t.len - room->stages[p.at].key0;
        barrier_wait(&room->values[p.at], p.parity);
        if (n < MASK_TILE) soft90_clear_tail<S>(values, n, group);
        uint64_t b = tile_describe(values + first * PART_BYTES, MASK_TILE * PART_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < N / 16; k++)
            wgmma_rs<T, S::D>(acc, left[k], tile_move(b, k * 16 * PART_BYTES), 1);
        wgmma_commit();
    }
    /* All of N keys from key `first` of the tile on. */
    template <int N>
    __device__ inline void step(soft90_rows *rows, float (&acc)[S::D / 2], const soft90_place &p,
                                int first) const {
        float x[N / 2];
        uint32_t left[N / 16][4];
        scores<N>(x, p, first);
        wgmma_wait<0>();
        hide<N>(x, *rows, p, first);
        if constexpr (S::IS_SILU)
            soft90_silu<N>(x, job.scale);
        else if (soft90_softmax<N>(x, rows, job.scale))
            soft90_shrink<S::D>(acc, *rows);
        pack_left<T, N>(left, x);
        add<N>(acc, left, p, first);
        wgmma_wait<0>();
    }
};

/* One tile after the other; other warpgroups compute while this one waits. */
template <typename T, typename S>
__device__ static inline void soft90_walk(const soft90_group<T, S> &g, soft90_rows *rows,
                                          float (&acc)[S::D / 2]) {
    soft90_place p = {0, 0};
    bool is_last;
    while (g.find(&p, &is_last)) {
        int halves = g.room->stages[p.at].halves;
        if (!S::HAS_HALVES || halves == 3)
            g.template step<MASK_TILE>(rows, acc, p, 0);
        else
            g.template step<MASK_TILE / 2>(rows, acc, p, halves == 2 ? MASK_TILE / 2 : 0);
        release(&g.room->free[p.at]);
        if (is_last) break;
        soft90_advance<S>(&p);
    }
}

/* Divides by the sums, unless weights are SiLU's, and stores. */
template <typename T, int D, bool IS_SILU>
__device__ static inline void soft90_store(const softmax_attn_args &a, const soft_block &t,
                                           const soft90_rows &rows, float (&acc)[D / 2]) {
    float scale = IS_SILU ? a.silu_scale : 1.0f;
#pragma unroll
    for (int r = 0; r < 2 && !IS_SILU; r++) {
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
        store_rows<T, D>(to, a.stride_out, rows.row, t.len, scale, acc);
    else
        store_wide<T, D>(to, a.stride_out, rows.row, t.len, scale, acc);
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
    soft90_walk<T, S>(g, &rows, acc);
    soft90_store<T, S::D, S::IS_SILU>(job.a, t, rows, acc);
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    softmax_attn_fwd_sm90_kernel(const __grid_constant__ soft90_job job) {
    extern __shared__ char shared[];
    __shared__ __align__(128) soft90_room<S> room;
    char *queries = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *keys = queries + S::GROUPS * S::TILE;
    const mask_view &mask = job.a.mask;
    /* the producer warp walks over the lists, its first lane issues the loads */
    bool is_asker = threadIdx.x == S::GROUPS * GROUP, is_walker = threadIdx.x >= S::GROUPS * GROUP;
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
    }
    __syncwarp();
    if (is_walker) soft90_open_lists<S>(mask, t, lists);
    grid_launch_next();
    grid_wait();
    soft_block_place(job.a, &t);
    if (t.tile * S::ROWS >= t.len) return;
    if (is_asker) soft90_ask_queries<S>(job, t, &room, queries);
    if (is_walker) soft90_place_lists<S>(mask, t, lists);
    __syncthreads();
    if (threadIdx.x < S::GROUPS * GROUP)
        soft90_compute<T, S>(job, t, &room, queries, keys);
    else
        soft90_ask<S>(job, t, lists, &room, keys);
}

template <typename T, typename S> status soft90_launch(backend *be, const softmax_attn_args *a) {
    soft90_job job = {};
    int64_t columns = (int64_t)a->n_heads * S::D;
    job.a = *a;
    job.scale = a->alpha * (S::IS_SILU ? 0.5f : 1.44269504f);
    job.order = soft_order_of(be, a, S::ROWS, S::BLOCKS);
    TRY(sm90a_map(&job.q, be->act, a->q, a->n_rows, columns, a->stride_q));
    TRY(sm90a_map_box(&job.k, be->act, a->k, a->n_rows, columns, a->stride_k, PART, 32));
    TRY(sm90a_map_box(&job.v, be->act, a->v, a->n_rows, columns, a->stride_v, PART, 32));
    return cuda_launch_early(be, "the softmax attention", softmax_attn_fwd_sm90_kernel<T, S>,
                             soft_count_blocks(a, &job.order), S::THREADS, S::BYTES, job);
}
