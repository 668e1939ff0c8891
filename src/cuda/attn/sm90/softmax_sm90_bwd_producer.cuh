/* The producer warp of the softmax attention's backward kernel on Hopper, and what it shares with
 * the warpgroups.
 *
 * What a unit of work needs to know (its sequence, where its lists begin, their first entries) are
 * loads that depend on each other.  A unit passes through them one a turn, while the units before
 * it are loaded, so that the warp waits for none of them. */
#pragma once

#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/attn/common/softmax_blocks.cuh"
#include "cuda/attn/sm90/attn_sm90_bwd.cuh"

enum { SOFT90_BWD_NOTHING = -3 }; /* in the place of a bitmap: no pair of the tile is seen */

/* Of the queries of a tile. */
typedef struct soft90_bwd_sums {
    float log_sum[QUERIES]; /* times log2(e) */
    float delta[QUERIES];
} soft90_bwd_sums;

/* One launch.  Tiles of queries have slots: sequence b's begin at offsets[b] / 64 + b, room for a
 * partial last one. */
typedef struct soft90_bwd_job {
    CUtensorMap q, k, v, dout;
    softmax_attn_args a;
    soft_order order;
    int n_units;
    int *counter;                /* of units taken, beyond the first of each block */
    const soft90_bwd_sums *sums; /* (slot, head) */
    float *dq;                   /* sums: (slot, head, D / 64) blocks of 64 columns */
    bool has_dq;
    float scale; /* alpha log2(e); of SiLU: alpha / 2 */
} soft90_bwd_job;

/* A struct derived from this one names D, the head dimension, and overrides some of these. */
struct soft90_bwd_sizes {
    static constexpr int GROUPS = 2; /* warpgroups that compute */
    static constexpr int STAGES = 3, OWNS = 2;
    static constexpr int BLOCKS = 1; /* of a multiprocessor */
    /* Registers of a thread that computes, and of a producer (setmaxnreg): 64 Ki in all. */
    static constexpr int COMPUTING = 208, ASKING = 88;
    static constexpr bool LOOKS_AHEAD = true; /* false: in fewer registers */
    static constexpr bool IS_SILU = false;
};

template <typename SIZES> struct soft90_bwd_shape {
    static constexpr int D = SIZES::D, GROUPS = SIZES::GROUPS, STAGES = SIZES::STAGES;
    static constexpr int OWNS = SIZES::OWNS, BLOCKS = SIZES::BLOCKS;
    static_assert(GROUPS <= 2, "one numbered barrier each");
    static constexpr int KEYS = 64 * GROUPS, WARPS = 4 * GROUPS, THREADS = (GROUPS + 1) * GROUP;
    static constexpr int COMPUTING = SIZES::COMPUTING, ASKING = SIZES::ASKING;
    static constexpr bool LOOKS_AHEAD = SIZES::LOOKS_AHEAD, IS_SILU = SIZES::IS_SILU;
    static_assert(GROUPS * COMPUTING + ASKING <= (GROUPS > 1 ? 504 : 256), "registers");
    static constexpr int OWN = KEYS * D * 2, TILE = QUERIES * D * 2, DS = KEYS * DS_ROW;
    static constexpr int BYTES = 2 * OWNS * OWN + 2 * STAGES * TILE + 2 * DS;
};

/* A tile of keys. */
typedef struct soft90_bwd_record {
    soft_block t; /* head < 0: there are no more */
    bool has_tiles;
    float *sums;  /* of dq, of the sequence's first tile of queries */
    int64_t step; /* and from tile to tile */
} soft90_bwd_record;

/* What the warpgroups must know about a tile of queries. */
template <int GROUPS> struct soft90_bwd_stage {
    int tile;
    int bits[GROUPS];
    bool is_last;                             /* that sees the current keys */
    __device__ int bits_of(int group) const { /* without an array in memory */
        return GROUPS == 1 || group == 0 ? bits[0] : bits[GROUPS - 1];
    }
    __device__ bool is_full() const {
        return bits[0] == MASK_FULL && bits[GROUPS - 1] == MASK_FULL;
    }
};

/* Shared memory after the tiles. */
template <typename S> struct soft90_bwd_end {
    __align__(16) uint64_t words[S::STAGES][S::GROUPS][QUERIES]; /* of partial tiles */
    soft90_bwd_sums sums[S::STAGES];
    uint64_t keys[S::OWNS], values[S::OWNS], own_free[S::OWNS];
    uint64_t queries[S::STAGES], douts[S::STAGES]; /* queries: with words and sums */
    uint64_t free[S::STAGES];
    uint64_t ds[2], ds_free[2]; /* gradients of scores that pass between two warpgroups */
    soft90_bwd_record records[S::OWNS];
    soft90_bwd_stage<S::GROUPS> stages[S::STAGES];
};

template <typename S> struct soft90_bwd_room {
    char *keys, *values, *queries, *douts;
    char *ds; /* two */
    soft90_bwd_end<S> *end;
};

template <typename S> __device__ static inline void soft90_bwd_barriers_init(soft90_bwd_end<S> *e) {
    for (int i = 0; i < S::OWNS; i++) {
        barrier_init(&e->keys[i], 1);
        barrier_init(&e->values[i], 1);
        barrier_init(&e->own_free[i], S::WARPS);
    }
    for (int i = 0; i < S::STAGES; i++) {
        barrier_init(&e->queries[i], 1);
        barrier_init(&e->douts[i], 1);
        barrier_init(&e->free[i], S::WARPS);
    }
    for (int i = 0; i < 2; i++) {
        barrier_init(&e->ds[i], S::WARPS);
        barrier_init(&e->ds_free[i], S::D > 64 ? S::WARPS : 4);
    }
    barrier_init_done();
}

/* A column tile's list: each lane holds one of the 32 entries from `base` on. */
typedef struct soft90_bwd_list {
    int at, end, base;
    mask_tile held;
    mask_tile next; /* the entry at `at`; tile INT32_MAX: none is left */
} soft90_bwd_list;

__device__ static inline void soft90_bwd_hold(const mask_view &m, soft90_bwd_list *l) {
    int i = l->base + (int)threadIdx.x % 32;
    l->held = {INT32_MAX, SOFT90_BWD_NOTHING};
    if (i < l->end) l->held = mask_tile_at(m, m.col_tiles, i);
}

__device__ static inline void soft90_bwd_look(const mask_view &m, soft90_bwd_list *l) {
    if (l->at - l->base == 32) {
        l->base = l->at;
        soft90_bwd_hold(m, l);
    }
    l->next.tile = __shfl_sync(0xffffffffu, l->held.tile, l->at - l->base);
    l->next.bits = __shfl_sync(0xffffffffu, l->held.bits, l->at - l->base);
}

/* A unit of work on its way. */
template <typename S> struct soft90_bwd_unit {
    int id; /* from n_units on: none */
    soft_block t;
    soft90_bwd_list lists[S::GROUPS];
};

/* The first load: the unit's number.  The atomic addition is one lane's. */
template <typename S>
__device__ static inline void soft90_bwd_take(const soft90_bwd_job &job, soft90_bwd_unit<S> *u) {
    int id = 0;
    if (threadIdx.x % 32 == 0) id = (int)gridDim.x + atomicAdd(job.counter, 1);
    u->id = id;
}

/* The second: where the sequence is. */
template <typename S>
__device__ static inline void soft90_bwd_place(const soft90_bwd_job &job, soft90_bwd_unit<S> *u) {
    u->id = __shfl_sync(0xffffffffu, u->id, 0);
    if (u->id >= job.n_units) return;
    u->t = soft_block_at(job.a, job.order, (unsigned)u->id);
    soft_block_place(job.a, &u->t);
}

/* The third: where the lists are. */
template <typename S>
__device__ static inline void soft90_bwd_open(const soft90_bwd_job &job, soft90_bwd_unit<S> *u) {
    if (u->id >= job.n_units) return;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++) {
        int tile = u->t.tile * S::GROUPS + g;
        mask_range range = {0, 0};
        if (tile * MASK_TILE < u->t.len)
            range = mask_queries_of(job.a.mask, u->t.b, u->t.len, tile);
        u->lists[g].at = u->lists[g].base = range.begin;
        u->lists[g].end = range.end;
    }
}

/* The fourth: their first entries. */
template <typename S>
__device__ static inline void soft90_bwd_hold_all(const soft90_bwd_job &job,
                                                  soft90_bwd_unit<S> *u) {
    if (u->id >= job.n_units) return;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++)
        soft90_bwd_hold(job.a.mask, &u->lists[g]);
}

/* Loads the n-th tile of keys of the block. */
template <typename S>
__device__ static inline void soft90_bwd_ask_keys(const soft90_bwd_job &job,
                                                  const soft90_bwd_room<S> &room,
                                                  const soft_block &t, bool has_tiles, int n) {
    soft90_bwd_end<S> *e = room.end;
    int own = n % S::OWNS, x = t.head * S::D, y = t.row + t.tile * S::KEYS;
    barrier_wait(&e->own_free[own], (uint32_t)(n / S::OWNS + 1) & 1);
    if (threadIdx.x % 32 != 0) return;
    soft90_bwd_record *r = &e->records[own];
    int64_t slot = t.row / QUERIES + t.b;
    r->t = t;
    r->has_tiles = has_tiles;
    r->sums = job.dq + (slot * job.a.n_heads + t.head) * (QUERIES * S::D);
    r->step = (int64_t)job.a.n_heads * (QUERIES * S::D);
    barrier_expect(&e->keys[own], S::OWN);
    load_rows<S::D, S::KEYS>(room.keys + own * S::OWN, &job.k, &e->keys[own], x, y);
    barrier_expect(&e->values[own], S::OWN);
    load_rows<S::D, S::KEYS>(room.values + own * S::OWN, &job.v, &e->values[own], x, y);
}

/* Loads the block's n-th tile of queries. */
template <typename S>
__device__ static inline void
soft90_bwd_ask_queries(const soft90_bwd_job &job, const soft90_bwd_room<S> &room,
                       const soft_block &t, const soft90_bwd_stage<S::GROUPS> &tile, int n) {
    soft90_bwd_end<S> *e = room.end;
    const mask_view &m = job.a.mask;
    int at = n % S::STAGES, row0 = tile.tile * QUERIES, x = t.head * S::D, y = t.row + row0;
    uint32_t bytes = S::TILE + sizeof(soft90_bwd_sums);
    barrier_wait(&e->free[at], (uint32_t)(n / S::STAGES + 1) & 1);
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++) {
        if (tile.bits[g] >= 0) bytes += sizeof e->words[at][g];
        if (tile.bits[g] != MASK_BY_RULE) continue;
        int key0 = t.tile * S::KEYS + g * MASK_TILE;
#pragma unroll
        for (int i = (int)threadIdx.x % 32; i < QUERIES; i += 32)
            e->words[at][g][i] = mask_word(m, MASK_BY_RULE, t.len, row0 + i, key0);
    }
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    int64_t slot = t.row / QUERIES + t.b + tile.tile;
    e->stages[at] = tile;
    barrier_expect(&e->queries[at], bytes);
    load_rows<S::D, QUERIES>(room.queries + at * S::TILE, &job.q, &e->queries[at], x, y);
    bulk_load(&e->sums[at], job.sums + slot * job.a.n_heads + t.head, sizeof(soft90_bwd_sums),
              &e->queries[at]);
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++)
        if (tile.bits[g] >= 0)
            bulk_load(e->words[at][g], m.bits + (int64_t)tile.bits[g] * MASK_TILE,
                      sizeof e->words[at][g], &e->queries[at]);
    barrier_expect(&e->douts[at], S::TILE);
    load_rows<S::D, QUERIES>(room.douts + at * S::TILE, &job.dout, &e->douts[at], x, y);
}

/* Loads a unit: its keys, and the tiles of queries that see any of them, in ascending order.
 * Returns how many tiles of queries the block has loaded. */
template <typename S>
__device__ static inline int soft90_bwd_walk(const soft90_bwd_job &job,
                                             const soft90_bwd_room<S> &room, soft90_bwd_unit<S> *u,
                                             int n_keys, int n) {
    const mask_view &m = job.a.mask;
    int next = INT32_MAX;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++) {
        soft90_bwd_look(m, &u->lists[g]);
        next = min(next, u->lists[g].next.tile);
    }
    soft90_bwd_ask_keys<S>(job, room, u->t, next != INT32_MAX, n_keys);
    for (; next != INT32_MAX; n++) {
        soft90_bwd_stage<S::GROUPS> tile;
        tile.tile = next;
        next = INT32_MAX;
#pragma unroll
        for (int g = 0; g < S::GROUPS; g++) {
            soft90_bwd_list *l = &u->lists[g];
            tile.bits[g] = SOFT90_BWD_NOTHING;
            if (l->next.tile == tile.tile) {
                tile.bits[g] = mask_bits_of(m, l->next.bits, u->t.len, tile.tile * QUERIES,
                                            u->t.tile * S::KEYS + g * MASK_TILE);
                l->at++;
                soft90_bwd_look(m, l);
            }
            next = min(next, l->next.tile);
        }
        tile.is_last = next == INT32_MAX;
        soft90_bwd_ask_queries<S>(job, room, u->t, tile, n);
    }
    return n;
}

/* The producer warp: loads all of the block's work.  A record without a head marks the end. */
template <typename S>
__device__ static void soft90_bwd_ask(const soft90_bwd_job &job, const soft90_bwd_room<S> &room) {
    soft90_bwd_unit<S> taken, placed, opened, held;
    int n_keys = 0, n = 0;
    taken.id = (int)blockIdx.x;
    placed.id = opened.id = job.n_units;
    if (threadIdx.x % 32 == 0) {
        tile_prefetch_map(&job.q);
        tile_prefetch_map(&job.k);
        tile_prefetch_map(&job.v);
        tile_prefetch_map(&job.dout);
    }
    for (int turn = 0;; turn++) {
        if constexpr (S::LOOKS_AHEAD) {
            held = opened;
            soft90_bwd_hold_all<S>(job, &held);
            opened = placed;
            soft90_bwd_open<S>(job, &opened);
            placed = taken;
            soft90_bwd_place<S>(job, &placed);
        } else {
            held = taken;
            soft90_bwd_place<S>(job, &held);
            soft90_bwd_open<S>(job, &held);
            soft90_bwd_hold_all<S>(job, &held);
        }
        soft90_bwd_take<S>(job, &taken);
        if (S::LOOKS_AHEAD && turn < 2) continue;
        if (held.id >= job.n_units) break; /* numbers ascend */
        if (held.t.tile * S::KEYS < held.t.len)
            n = soft90_bwd_walk<S>(job, room, &held, n_keys++, n);
    }
    if (threadIdx.x % 32 != 0) return;
    soft90_bwd_end<S> *e = room.end;
    int own = n_keys % S::OWNS;
    barrier_wait(&e->own_free[own], (uint32_t)(n_keys / S::OWNS + 1) & 1);
    e->records[own].t.head = -1;
    barrier_arrive(&e->keys[own]);
}
