/* Backward of the attention on Hopper, head dimension 256, sequences that are worked on whole: the
 * steps of a block, and the warps that schedule and load them.
 *
 * A step is one of
 * - a tile: 64 keys by 64 queries, added to dv and dk;
 * - dq: the part of 64 keys is added to dq of 128 queries;
 * - nothing to multiply: sums of zero to be stored, or only the flag STEP_STORED.
 * Steps are queued for the consumer warps, and their operands are loaded into one of six slots of
 * 32 KB, in the order in which slots become free.  So the keys of the next tile are loaded while
 * the last queries of this one are used.
 *
 * Gradients of scores go to memory as they are multiplied, 8 KB a tile in 16 bits, and are read
 * back after all keys: an eighth of the bytes of partial sums of dq, which now stay in registers.
 * The wait for the copies overlaps with the start of the next sequence.  A sequence of one tile
 * needs none of this.  The bits are the same in every run. */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_BWD_D256_STEPS_CUH
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_BWD_D256_STEPS_CUH

#include "cuda/attn/sm90/attn_sm90_bwd.cuh"

enum { D = 256, KEYS = 64, WARPS = 8, SLOTS = 6, STEPS = 8, LATE = 3 };
enum { GRAIN = 8 * D * 2, SLOT = 8 * GRAIN, DS = KEYS * DS_ROW, SLOPES = KEYS * QUERIES * 2 };
enum { BYTES = SLOTS * SLOT + 2 * DS + 2 * SLOPES };
enum { PAIR_WORDS = sizeof(bwd_pair) / sizeof(int) };

/* Flags of a step.  For a tile: FULL, all its pairs are visible; KEEP, its gradients go to memory;
 * ALONE, it is the only tile of its sequence.  For dq: HAS and the next bit say which of the two
 * warpgroups have gradients.  FIRST, LAST: the first or last step of a sum.  STORED: all gradients
 * before this step must be in memory. */
enum { STEP_TILE, STEP_DQ, STEP_NOTHING, STEP_END, STEP_KIND = 3 };
enum {
    STEP_FIRST = 4,
    STEP_LAST = 8,
    STEP_FULL = 16,
    STEP_KEEP = 32,
    STEP_ALONE = 64,
    STEP_STORED = 128,
    STEP_HAS = 256
};

/* The slots of a step's operands: four bits each, the slot and the parity of its barrier, in the
 * order of bwd_maps. */
enum { AT_QUERIES = 0, AT_KEYS = 4, AT_VALUES = 8, AT_DOUTS = 12, AT_DS = AT_QUERIES };

typedef struct wide_step {
    bwd_pair pair;
    int flags, row, key0, slots; /* first query and key */
    char *ds;                    /* the tile's gradients in memory */
} wide_step;

typedef struct wide_end {
    uint64_t full[SLOTS], free[SLOTS];
    uint64_t ready[STEPS], taken[STEPS];
    uint64_t wanted, found; /* the next sequence and head */
    uint64_t stored;        /* gradients of a sequence */
    uint64_t slopes[2], slopes_free[2], ds[2];
    wide_step steps[STEPS];
    bwd_pair pairs[2]; /* head < 0: there are no more */
    bwd_pair before;   /* whose dq is still to do */
} wide_end;

typedef struct wide_room {
    char *slots, *ds, *slopes; /* two of the latter */
    wide_end *end;
} wide_room;

/* Boxes of 64 and of 8 rows. */
typedef struct wide_job {
    bwd_job job;
    bwd_maps tiles, grains;
    int64_t room; /* bytes for the gradients of a sequence */
} wide_job;

/* State of the producer warp, the same in all its lanes. */
typedef struct wide_ask {
    int n;           /* steps */
    uint32_t queue;  /* free slots, four bits each, the next one lowest; QUEUE_END marks the end */
    uint32_t parity; /* bit i: of slot i */
    int n_kept;      /* sequences whose gradients have gone to memory */
    int late;        /* the step after the last one of a sequence whose dq is pending, or -1 */
} wide_ask;

enum { QUEUE_END = 15 };

__device__ static inline void wide_barriers_init(wide_end *e) {
    for (int i = 0; i < SLOTS; i++) {
        barrier_init(&e->full[i], 1);
        barrier_init(&e->free[i], WARPS);
    }
    for (int i = 0; i < STEPS; i++) {
        barrier_init(&e->ready[i], 1);
        barrier_init(&e->taken[i], WARPS);
    }
    for (int i = 0; i < 2; i++) {
        barrier_init(&e->slopes[i], WARPS / 2);
        barrier_init(&e->slopes_free[i], WARPS / 2);
        barrier_init(&e->ds[i], WARPS / 2);
    }
    barrier_init(&e->wanted, 1);
    barrier_init(&e->found, 1);
    barrier_init(&e->stored, 1);
    barrier_init_done();
}

/* Dequeues the next free slot, encoded as in a step. */
__device__ static inline int slot_take(wide_ask *at) {
    int slot = (int)(at->queue & 15), parity = (int)(at->parity >> slot & 1);
    at->queue >>= 4;
    at->parity ^= 1u << slot;
    return slot | parity << 3;
}

/* Enqueues a slot; slots become free in the order of these calls. */
__device__ static inline void slot_give(wide_ask *at, int slot) {
    int end = (31 - __clz((int)at->queue)) / 4 * 4;
    at->queue ^= (uint32_t)(QUEUE_END ^ (slot & 7) ^ QUEUE_END << 4) << end;
}

/* Loads rows y and on of a head into a slot of a step, n rows or as many as fit: a whole tile by
 * one instruction if it ends within the array, else grain by grain. */
__device__ static inline void slot_load(const wide_job &job, const wide_room &room, int slots,
                                        int place, int head, int y, int n) {
    int slot = slots >> place & 7;
    bool is_key = place == AT_KEYS || place == AT_VALUES;
    int64_t n_rows = is_key ? job.job.a.n_rows_k : job.job.a.n_rows_q;
    uint64_t *full = &room.end->full[slot];
    char *to = room.slots + slot * SLOT;
    barrier_wait(&room.end->free[slot], (uint32_t)(~slots >> place >> 3 & 1));
    if (n > 56 && y + 64 <= n_rows) {
        barrier_expect(full, SLOT);
        tile_load_4d(to, &job.tiles.q + place / 4, full, 0, y, head * (D / PART), 0);
        return;
    }
    n = (max(min(n, 64), 0) + 7) / 8;
    barrier_expect(full, (uint32_t)(n * GRAIN));
    for (int i = 0; i < n; i++)
        tile_load_3d(to + i * GRAIN, &job.grains.q + place / 4, full, 0, y + 8 * i,
                     head * (D / PART));
}

/* Queues a step; by all lanes. */
__device__ static inline void step_put(const wide_room &room, wide_ask *at, const bwd_pair &p,
                                       int flags, int row, int key0, int slots, char *ds) {
    int lane = (int)threadIdx.x % 32, place = at->n % STEPS;
    wide_step *w = &room.end->steps[place];
    if (lane == 0) barrier_wait(&room.end->taken[place], (uint32_t)(at->n / STEPS + 1) & 1);
    __syncwarp();
    if (lane < PAIR_WORDS) ((int *)&w->pair)[lane] = ((const int *)&p)[lane];
    if (lane == 0) {
        w->flags = flags | (at->late == at->n ? STEP_STORED : 0);
        w->row = row;
        w->key0 = key0;
        w->slots = slots;
        w->ds = ds;
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&room.end->ready[place]);
    at->n++;
}

/* Where the gradients of a sequence's tiles are kept: the gradients of one tile of keys are
 * contiguous.  Sequences alternate between two buffers of the block. */
__device__ static inline char *ds_of(const wide_job &job, const bwd_pair &p, int turn, int tile,
                                     int keys) {
    int n_tiles = (p.s.len_q + QUERIES - 1) / QUERIES;
    char *room = (char *)job.job.sums + (2 * (int64_t)blockIdx.x + (turn & 1)) * job.room;
    return room + (keys * n_tiles + tile) * DS;
}

/* What all steps of one tile of keys share. */
typedef struct wide_keys {
    int key0, flags, slots; /* slots of keys and values */
} wide_keys;

/* Queues and loads the step of the current keys and the queries from `row` on.  The keys' slots are
 * taken with the first tile and released with the last, or after dq where dq follows
 * immediately. */
__device__ static inline void ask_tile(const wide_job &job, const wide_room &room, wide_ask *at,
                                       const bwd_pair &p, wide_keys *k, int row, int flags) {
    flags |= k->flags;
    if (flags & STEP_FIRST) k->slots = slot_take(at) << AT_KEYS;
    int slots = slot_take(at) << AT_QUERIES;
    if (flags & STEP_FIRST) k->slots |= slot_take(at) << AT_VALUES;
    slots |= k->slots | slot_take(at) << AT_DOUTS;
    char *ds = NULL;
    if (flags & STEP_KEEP) ds = ds_of(job, p, at->n_kept, row / QUERIES, k->key0 / KEYS);
    step_put(room, at, p, flags, row, k->key0, slots, ds);
    bool is_early = (flags & (STEP_LAST | STEP_ALONE)) == STEP_LAST;
    if (is_early) slot_give(at, slots >> AT_KEYS);
    if (is_early) slot_give(at, slots >> AT_VALUES);
    slot_give(at, slots >> AT_QUERIES);
    slot_give(at, slots >> AT_DOUTS);
    if (flags & STEP_ALONE) slot_give(at, slots >> AT_KEYS);
    if (flags & STEP_ALONE) slot_give(at, slots >> AT_VALUES);
    if (threadIdx.x % 32 != 0) return;
#pragma unroll 1
    for (uint32_t places = AT_KEYS | AT_QUERIES << 4 | AT_VALUES << 8 | AT_DOUTS << 12, i = 0;
         i < 4; i++, places >>= 4) { /* in the order in which they are needed */
        int place = (int)(places & 15);
        bool is_key = place == AT_KEYS || place == AT_VALUES;
        if (is_key && (flags & STEP_FIRST) == 0) continue;
        slot_load(job, room, slots, place, p.head, is_key ? p.s.row_k + k->key0 : p.s.row_q + row,
                  is_key ? p.s.len_k - k->key0 : p.s.len_q - row);
    }
}

/* One tile of keys with all tiles of queries that see it: each lane stands for a tile of queries,
 * and a bit of its `sees` for each tile of keys. */
__device__ static inline void ask_keys(const wide_job &job, const wide_room &room, wide_ask *at,
                                       const bwd_pair &p, wide_keys *k, uint32_t sees) {
    int row = (int)threadIdx.x % 32 * QUERIES;
    bool is_full = attn_tile_is_full(&job.job.a, &p.s, row, row + QUERIES, k->key0, k->key0 + KEYS);
    uint32_t left = __ballot_sync(0xffffffffu, sees >> k->key0 / KEYS & 1);
    uint32_t full = __ballot_sync(0xffffffffu, is_full);
    if (left == 0)
        step_put(room, at, p, STEP_NOTHING | STEP_FIRST | STEP_LAST, 0, k->key0, 0, NULL);
    for (int flags = STEP_TILE | STEP_FIRST; left != 0; flags = STEP_TILE) {
        int i = __ffs((int)left) - 1;
        left &= left - 1;
        if (left == 0) flags |= STEP_LAST;
        if (full >> i & 1) flags |= STEP_FULL;
        ask_tile(job, room, at, p, k, i * QUERIES, flags);
    }
}

/* Bits of the tiles of keys that this lane's queries, 64 lane and on, see.  Queries that see no key
 * are still paired with the first keys: their dq is zero, and must be written. */
__device__ static inline uint32_t ask_sees(const attn_args &a, const attn_sequence &s) {
    int row = (int)threadIdx.x % 32 * QUERIES;
    uint32_t sees = 0;
    if (row >= s.len_q) return 0;
    for (int j = 0; j < s.len_k; j += KEYS)
        if (!attn_tile_is_empty(&a, &s, row, row + QUERIES, j, j + KEYS)) sees |= 1u << j / KEYS;
    return sees != 0 ? sees : 1;
}

/* Queues dq of tiles `tile` and `tile` + 1, which see the keys in s0 and s1. */
__device__ static inline void ask_dq_rows(const wide_job &job, const wide_room &room, wide_ask *at,
                                          int tile, uint32_t s0, uint32_t s1) {
    const bwd_pair &p = room.end->before;
    uint32_t both = s0 | s1;
    for (uint32_t left = both; left != 0; left &= left - 1) {
        int j = __ffs((int)left) - 1, has0 = (int)(s0 >> j & 1), has1 = (int)(s1 >> j & 1);
        int flags = STEP_DQ | has0 * STEP_HAS | has1 * 2 * STEP_HAS;
        int slots = slot_take(at) << AT_KEYS;
        slots |= slot_take(at) << AT_DS;
        if (left == both) flags |= STEP_FIRST;
        if ((left & (left - 1)) == 0) flags |= STEP_LAST;
        step_put(room, at, p, flags, tile * QUERIES, j * KEYS, slots, NULL);
        slot_give(at, slots >> AT_KEYS);
        slot_give(at, slots >> AT_DS);
        if (threadIdx.x % 32 != 0) continue;
        slot_load(job, room, slots, AT_KEYS, p.head, p.s.row_k + j * KEYS, p.s.len_k - j * KEYS);
        uint64_t *full = &room.end->full[slots >> AT_DS & 7];
        char *to = room.slots + (slots >> AT_DS & 7) * SLOT;
        barrier_wait(&room.end->free[slots >> AT_DS & 7], (uint32_t)(~slots >> AT_DS >> 3 & 1));
        barrier_expect(full, (uint32_t)((has0 + has1) * DS));
        if (has0) bulk_load(to, ds_of(job, p, at->n_kept - 1, tile, j), DS, full);
        if (has1) bulk_load(to + SLOT / 2, ds_of(job, p, at->n_kept - 1, tile + 1, j), DS, full);
    }
    __syncwarp();
}

/* Queues dq of the sequence whose dq is pending. */
__device__ static inline void ask_late(const wide_job &job, const wide_room &room, wide_ask *at) {
    int n_tiles = (room.end->before.s.len_q + QUERIES - 1) / QUERIES;
    uint32_t sees = ask_sees(job.job.a, room.end->before.s);
    if (at->late == at->n) step_put(room, at, room.end->before, STEP_NOTHING, 0, 0, 0, NULL);
    if (threadIdx.x % 32 == 0) barrier_wait(&room.end->stored, (uint32_t)(at->n_kept - 1) & 1);
    copies_fence();
    for (int i = 0; i < n_tiles; i += 2) {
        uint32_t s0 = __shfl_sync(0xffffffffu, sees, i);
        uint32_t s1 = __shfl_sync(0xffffffffu, sees, i + 1);
        ask_dq_rows(job, room, at, i, s0, s1);
    }
    at->late = -1;
}

/* Queues all steps of a sequence and head; at the end of the work, only the pending dq.  The next
 * sequence is dequeued shortly before the end of this one: work claimed early cannot be
 * balanced. */
__device__ static inline void ask_pair(const wide_job &job, const wide_room &room, wide_ask *at,
                                       const bwd_pair &p) {
    int lane = (int)threadIdx.x % 32, len_q = p.s.len_q, n = (max(p.s.len_k, 1) + KEYS - 1) / KEYS;
    bool is_alone = len_q > 0 && len_q <= QUERIES && n == 1, is_kept = len_q > 0 && !is_alone;
    uint32_t sees = ask_sees(job.job.a, p.s);
    for (int j = 0; j < n; j++) {
        wide_keys k = {j * KEYS, is_alone ? STEP_ALONE : is_kept ? STEP_KEEP : 0, 0};
        if (lane == 0 && j == max(n - 2, 0)) barrier_arrive(&room.end->wanted);
        if (len_q > 0 || p.s.len_k > 0) ask_keys(job, room, at, p, &k, sees);
        bool is_due = p.head < 0 || (is_kept && j == n - 1) || at->n - at->late >= LATE;
        if (at->late >= 0 && is_due) ask_late(job, room, at);
    }
    if (!is_kept) return;
    if (lane < PAIR_WORDS) ((int *)&room.end->before)[lane] = ((const int *)&p)[lane];
    __syncwarp();
    at->n_kept++;
    at->late = at->n;
}

/* The producer warp.  One lane waits for all lanes, here and above: a late lane may find a barrier
 * one phase ahead. */
__device__ static inline void ask_all(const wide_job &job, const wide_room &room) {
    wide_end *e = room.end;
    wide_ask at = {0, QUEUE_END << 4 * SLOTS | 0x543210, 0, 0, -1};
    bool is_end = false;
    if (threadIdx.x % 32 == 0) barrier_arrive(&e->wanted);
    for (int m = 0; !is_end; m++) {
        if (threadIdx.x % 32 == 0) barrier_wait(&e->found, (uint32_t)m & 1);
        __syncwarp();
        is_end = e->pairs[m % 2].head < 0;
        ask_pair(job, room, &at, e->pairs[m % 2]);
    }
    step_put(room, &at, e->before, STEP_END, 0, 0, 0, NULL);
}

/* The scheduler warp: dequeues pairs of sequence and head, the longest first, each when the
 * producer needs it. */
__device__ static inline void find_all(const bwd_job &job, wide_end *e) {
    int n = (int)blockIdx.x;
    for (int m = 0, b = 0; b >= 0; m++) {
        bwd_pair p = {};
        barrier_wait(&e->wanted, (uint32_t)m & 1);
        if (m > 0) n = tiles_take(job.tiles);
        b = n < job.n_pairs ? n / job.a.n_heads : -1;
        if (b >= 0)
            p.s = attn_sequence_of(&job.a, job.tiles.order != NULL ? job.tiles.order[b] : b);
        p.head = b >= 0 ? n % job.a.n_heads : -1;
        e->pairs[m % 2] = p;
        barrier_arrive(&e->found);
    }
    tiles_done(job.tiles);
}

#endif
