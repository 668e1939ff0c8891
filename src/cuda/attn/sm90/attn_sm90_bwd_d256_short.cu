/* HSTU attention, backward, on Hopper: head dimension 256, sequences that are worked on whole.
 *
 * A block computes with 64 keys.  Their dk and dv fill the registers of a warpgroup each, so the
 * work is divided by result: one consumer warpgroup makes scores and weights, keeps dv, and leaves
 * the slopes in shared memory; the other makes dp, multiplies it by the slopes, and keeps dk. dq
 * comes later, 64 queries a warpgroup, from gradients of scores that were kept in memory
 * (see the steps below); for a sequence of one tile it is computed
 * immediately, half of the columns by each warpgroup.  The epilogue stages results in slots whose
 * tiles are no longer needed.  Bound by L2 bandwidth, 64 KB for four products of 64 x 64 pairs;
 * with short sequences by latency.
 *
 * TFLOP/s by replay (H200, 2026-11-15; 4 heads, causal, bfloat16; sequences x lengths):
 *                                                       128 x 1..512   128 x 1..200   512 x 1..50
 *     before: parts of dq in memory; a kernel of one tile        139             77            24
 *     gradients in memory, results stored from registers *       191             81            18
 *     results staged in shared memory *                          201             92            21
 *     staged, no trace                                           212             99            23
 * (*: with a trace of the clock at a dozen points.) */
#include "cuda/attn/sm90/attn_sm90_bwd.cuh"

/* The steps of a block, and the warps that schedule and load them.  A step is one of
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

enum { THREADS = 3 * GROUP };
enum { ASKING = 72, COMPUTING = 216 }; /* registers */

/* The slot of one of a step's operands, once it is loaded. */
__device__ static inline const char *slot_wait(const wide_room &room, int slots, int place) {
    int slot = slots >> place & 7;
    barrier_wait(&room.end->full[slot], (uint32_t)(slots >> place >> 3 & 1));
    return room.slots + slot * SLOT;
}

/* Releases a slot when all lanes of the warp are done with it: otherwise a late lane could find the
 * barrier one phase ahead.  Products and __syncwarp ensure that all are done. */
__device__ static inline void slot_release(const wide_room &room, int slots, int place) {
    release(&room.end->free[slots >> place & 7]);
}

/* Releases a slot that the warp does not need.  It still waits for the load: waiting for a
 * barrier's phase is valid only if all earlier phases are known to be complete. */
__device__ static inline void slot_pass(const wide_room &room, int slots, int place) {
    slot_wait(room, slots, place);
    __syncwarp();
    slot_release(room, slots, place);
}

/* x (64 keys, 64 queries) = a b^T. */
template <typename T>
__device__ static inline void wide_scores(float (&x)[32], const char *a, const char *b) {
    uint64_t desc_a = tile_describe_grains(a, GRAIN), desc_b = tile_describe_grains(b, GRAIN);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        wgmma_ss<T, 64>(x, tile_move(desc_a, k / 4 * 1024 + k % 4 * 32),
                        tile_move(desc_b, k / 4 * 1024 + k % 4 * 32), k > 0);
    wgmma_commit();
}

/* sum (64, D) += left (64, 64 queries) times a tile of queries or dout. */
template <typename T>
__device__ static inline void wide_sum(float (&sum)[D / 2], const uint32_t (&left)[4][4],
                                       const char *tile) {
    uint64_t b = tile_describe_grains(tile, GRAIN);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_rs<T, D>(sum, left[k], tile_move(b, k * 2 * GRAIN), 1);
    wgmma_commit();
}

/* dq (64 queries, N) (+)= ds (64 keys, 64 queries) transposed times columns of the keys. */
template <typename T, int N>
__device__ static inline void wide_product(float (&dq)[N / 2], const char *ds, const char *keys,
                                           bool adds) {
    uint64_t a = tile_describe(ds, 16), b = tile_describe_grains(keys, GRAIN);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_tt<T, N>(dq, tile_move(a, k * 16 * DS_ROW), tile_move(b, k * 2 * GRAIN),
                       adds || k > 0);
    wgmma_commit();
    wgmma_wait<0>();
}

/* Stores dv or, in the second warpgroup, dk, staged in a slot that only this warpgroup still uses.
 */
template <typename T, bool IS_DK>
__device__ static inline void wide_store(const attn_args &a, const wide_step *w, char *slot,
                                         const float (&sum)[D / 2]) {
    const attn_sequence &s = w->pair.s;
    int warp = (int)threadIdx.x % GROUP / 32;
    int64_t stride = IS_DK ? a.stride_k : a.stride_v;
    T *to = (T *)(IS_DK ? a.dk : a.dv) + (int64_t)s.row_k * stride + w->pair.head * D;
    named_barrier(1 + IS_DK, GROUP); /* all of its warps are done with it */
    store_staged<T, D>(slot + warp * SLOT / 4, to, stride, w->key0 + 16 * warp, s.len_k,
                       IS_DK ? 0.5f * a.alpha * a.scale : a.scale, sum);
    shared_fence();
    __syncwarp();
}

/* Stores N columns of dq from `column` on, for 64 rows from `row` on, staged in the warpgroup's
 * half of a slot. */
template <typename T, int N>
__device__ static inline void wide_store_dq(const attn_args &a, const wide_step *w, char *half,
                                            int row, int column, const float (&dq)[N / 2]) {
    const attn_sequence &s = w->pair.s;
    int warp = (int)threadIdx.x % GROUP / 32;
    T *to = (T *)a.dq + (int64_t)s.row_q * a.stride_q + w->pair.head * D + column;
    store_staged<T, N>(half + warp * SLOT / 8, to, a.stride_q, row + 16 * warp, s.len_q,
                       0.5f * a.alpha * a.scale, dq);
}

/* Zeros for keys that no query sees. */
template <typename T, bool IS_DK>
__device__ static inline void wide_store_zeros(const attn_args &a, const wide_step *w) {
    const attn_sequence &s = w->pair.s;
    int64_t stride = IS_DK ? a.stride_k : a.stride_v;
    T *to = (T *)(IS_DK ? a.dk : a.dv) + (int64_t)s.row_k * stride + w->pair.head * D;
    float zeros[D / 2];
    clear(zeros);
    store_wide<T, D>(to, stride, w->key0 + row_of_thread(), s.len_k, 0, zeros);
}

__device__ static inline uint32_t wide_mask(const attn_args &a, const wide_step *w) {
    if (w->flags & STEP_FULL) return 0xffffffffu;
    return bwd_mask(a, w->pair.s, w->key0 + row_of_thread(), w->row);
}

/* Scores, weights and dv of tile n. */
template <typename T>
__device__ static inline void wide_tile_dv(const attn_args &a, const wide_room &room,
                                           const wide_step *w, int n, float (&dv)[D / 2]) {
    wide_end *e = room.end;
    int flags = w->flags, slots = w->slots;
    uint32_t weights[4][4], seen = wide_mask(a, w);
    float x[32];
    const char *keys = slot_wait(room, slots, AT_KEYS);
    const char *queries = slot_wait(room, slots, AT_QUERIES);
    wide_scores<T>(x, keys, queries);
    wgmma_wait<0>();
    slot_release(room, slots, AT_QUERIES);
    bool is_early = (flags & (STEP_LAST | STEP_ALONE)) == STEP_LAST;
    if (is_early) slot_release(room, slots, AT_KEYS);
    bwd_hide(0.5f * a.alpha, seen, x);
    bwd_weights<T>(0.5f * a.alpha, x, weights);
    barrier_wait(&e->slopes_free[n % 2], (uint32_t)(n / 2 + 1) & 1);
    slopes_put(room.slopes + n % 2 * SLOPES, x);
    release(&e->slopes[n % 2]);
    if (is_early) slot_pass(room, slots, AT_VALUES);
    const char *douts = slot_wait(room, slots, AT_DOUTS);
    wide_sum<T>(dv, weights, douts);
    wgmma_wait<0>();
    if (flags & STEP_LAST) {
        barrier_wait(&e->slopes_free[n % 2],
                     (uint32_t)(n / 2) & 1); /* the other warpgroup needs no dout */
        wide_store<T, false>(a, w, (char *)douts, dv);
    }
    slot_release(room, slots, AT_DOUTS);
}

/* Writes the gradients of tile n to shared memory.  By then all warps know that the bulk copy of
 * the previous tile, if any, has read its gradients. */
__device__ static inline void wide_put(const wide_room &room, int flags, int n,
                                       const uint32_t (&ds)[4][4]) {
    wide_end *e = room.end;
    if (n > 0) barrier_wait(&e->ds[(n - 1) % 2], (uint32_t)((n - 1) / 2) & 1);
    bwd_put(room.ds + n % 2 * DS, 0, ds);
    if (threadIdx.x == GROUP) {
        if (flags & STEP_STORED) {
            bulk_wait_stored();
            barrier_arrive(&e->stored);
        } else {
            bulk_wait_read();
        }
    }
    __syncwarp();
    release(&e->ds[n % 2]);
}

/* dp, gradients and dk of tile n. */
template <typename T>
__device__ static inline void wide_tile_dk(const attn_args &a, const wide_room &room,
                                           const wide_step *w, int n, float (&dk)[D / 2]) {
    wide_end *e = room.end;
    int flags = w->flags, slots = w->slots;
    uint32_t ds[4][4];
    float dp[32];
    const char *values = slot_wait(room, slots, AT_VALUES);
    const char *douts = slot_wait(room, slots, AT_DOUTS);
    wide_scores<T>(dp, values, douts);
    wgmma_wait<0>();
    slot_release(room, slots, AT_DOUTS);
    bool is_early = (flags & (STEP_LAST | STEP_ALONE)) == STEP_LAST;
    if (is_early) slot_release(room, slots, AT_VALUES);
    if (is_early) slot_pass(room, slots, AT_KEYS);
    barrier_wait(&e->slopes[n % 2], (uint32_t)(n / 2) & 1);
    slopes_apply<T>(room.slopes + n % 2 * SLOPES, dp, ds);
    if (flags & (STEP_KEEP | STEP_ALONE)) wide_put(room, flags, n, ds);
    __syncwarp();
    release(&e->slopes_free[n % 2]);
    const char *queries = slot_wait(room, slots, AT_QUERIES);
    wide_sum<T>(dk, ds, queries);
    if ((flags & STEP_KEEP) != 0 && threadIdx.x == GROUP) {
        barrier_wait(&e->ds[n % 2], (uint32_t)(n / 2) & 1);
        bulk_store(w->ds, room.ds + n % 2 * DS, DS);
    }
    __syncwarp();
    wgmma_wait<0>();
    /* The slopes have arrived, so the other warpgroup no longer needs the queries. */
    if (flags & STEP_LAST) wide_store<T, true>(a, w, (char *)queries, dk);
    slot_release(room, slots, AT_QUERIES);
}

/* Adds the part of 64 keys to dq of the warpgroup's 64 queries; after the last keys stores dq, in
 * two halves. */
template <typename T>
__device__ static inline void wide_dq(const attn_args &a, const wide_room &room, const wide_step *w,
                                      int group, float (&dq)[D / 2]) {
    int slots = w->slots, flags = w->flags, row = w->row + group * QUERIES;
    const char *keys = slot_wait(room, slots, AT_KEYS);
    char *half = (char *)slot_wait(room, slots, AT_DS) + group * SLOT / 2;
    if (flags & STEP_HAS << group) wide_product<T, D>(dq, half, keys, true);
    __syncwarp();
    slot_release(room, slots, AT_KEYS);
    if (flags & STEP_LAST) {
        named_barrier(1 + group, GROUP);
        wide_store_dq<T, D / 2>(a, w, half, row, 0, *(const float(*)[D / 4]) dq);
        wide_store_dq<T, D / 2>(a, w, half, row, D / 2, *(const float(*)[D / 4])(dq + D / 4));
        shared_fence();
        __syncwarp();
    }
    slot_release(room, slots, AT_DS);
}

/* Computes half of the columns of dq for a sequence of one tile, n; staged in the values' slot. */
template <typename T>
__device__ static inline void wide_dq_alone(const attn_args &a, const wide_room &room,
                                            const wide_step *w, int n, int group) {
    int slots = w->slots, column = group * D / 2;
    float dq[D / 4];
    const char *keys = slot_wait(room, slots, AT_KEYS);
    char *half = (char *)slot_wait(room, slots, AT_VALUES) + group * SLOT / 2;
    barrier_wait(&room.end->ds[n % 2], (uint32_t)(n / 2) & 1);
    wide_product<T, D / 2>(dq, room.ds + n % 2 * DS, keys + column / PART * 1024, false);
    slot_release(room, slots, AT_KEYS);
    wide_store_dq<T, D / 2>(a, w, half, 0, column, dq);
    shared_fence();
    __syncwarp();
    slot_release(room, slots, AT_VALUES);
}

/* The thread that copies gradients to memory signals that its copies are complete. (In the step of
 * a tile it signals where it waits for its copies anyway.) */
__device__ static inline void wide_say_stored(wide_end *e, int flags) {
    bool is_tile = (flags & STEP_KIND) == STEP_TILE;
    if ((flags & STEP_STORED) == 0 || is_tile || threadIdx.x != GROUP) return;
    bulk_wait_stored();
    barrier_arrive(&e->stored);
}

/* All steps of a warpgroup. */
template <typename T, bool IS_DK>
__device__ static void wide_compute(const attn_args &a, const wide_room &room) {
    wide_end *e = room.end;
    float sum[D / 2];
    for (int m = 0, n = 0;; m++) { /* n: tiles */
        const wide_step *w = &e->steps[m % STEPS];
        barrier_wait(&e->ready[m % STEPS], (uint32_t)(m / STEPS) & 1);
        int flags = w->flags, kind = flags & STEP_KIND;
        if (kind == STEP_END) return;
        if (flags & STEP_FIRST) clear(sum);
        if (IS_DK) wide_say_stored(e, flags);
        __syncwarp();
        if (kind == STEP_DQ) {
            wide_dq<T>(a, room, w, IS_DK, sum);
        } else if (kind == STEP_TILE) {
            if (IS_DK)
                wide_tile_dk<T>(a, room, w, n, sum);
            else
                wide_tile_dv<T>(a, room, w, n, sum);
        } else if (flags & STEP_LAST) {
            wide_store_zeros<T, IS_DK>(a, w);
        }
        if (flags & STEP_ALONE) {
            wide_dq_alone<T>(a, room, w, n, IS_DK);
            clear(sum); /* tells the compiler that its registers were free */
        }
        n += kind == STEP_TILE;
        __syncwarp();
        release(&e->taken[m % STEPS]);
    }
}

/* Rows that no box loads are multiplied by weights of 0, but must be finite: all slots are
 * cleared. */
__device__ static inline void wide_clear(char *slots) {
    for (int i = (int)threadIdx.x; i < SLOTS * SLOT / 16; i += THREADS)
        ((uint4 *)slots)[i] = make_uint4(0, 0, 0, 0);
    shared_fence();
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    attn_bwd_d256_short_sm90_kernel(const __grid_constant__ wide_job job) {
    extern __shared__ __align__(1024) char shared[];
    wide_room room;
    room.slots = shared;
    room.ds = room.slots + SLOTS * SLOT;
    room.slopes = room.ds + 2 * DS;
    room.end = (wide_end *)(shared + BYTES);
    if (threadIdx.x == 0) wide_barriers_init(room.end);
    wide_clear(room.slots);
    __syncthreads();
    grid_wait();
    if (threadIdx.x < GROUP) {
        registers_raise<COMPUTING>();
        wide_compute<T, false>(job.job.a, room);
    } else if (threadIdx.x < 2 * GROUP) {
        registers_raise<COMPUTING>();
        wide_compute<T, true>(job.job.a, room);
    } else {
        registers_lower<ASKING>();
        if (threadIdx.x < 2 * GROUP + 32)
            ask_all(job, room);
        else if (threadIdx.x == 2 * GROUP + 32)
            find_all(job.job, room.end);
    }
}

/* Tensor maps of the four arrays: with boxes of one grain (8 rows) and of a whole tile (64 rows).
 */
static status make_maps(backend *be, const attn_args *a, bwd_maps *tiles, bwd_maps *grains) {
    int64_t columns = (int64_t)a->n_heads * D, n_q = a->n_rows_q, n_k = a->n_rows_k;
    const void *arrays[] = {a->q, a->k, a->v, a->dout};
    int64_t n_rows[] = {n_q, n_k, n_k, n_q};
    int64_t strides[] = {a->stride_q, a->stride_k, a->stride_v, a->stride_out};
    for (int i = 0; i < 4; i++) {
        TRY(sm90a_map_grains(&tiles->q + i, be->act, arrays[i], n_rows[i], columns, strides[i], 64,
                             D));
        TRY(sm90a_map_heads(&grains->q + i, be->act, arrays[i], n_rows[i], columns, strides[i],
                            PART, 8, D));
    }
    return OK;
}

status cuda_attn_sm90_bwd_d256_short(backend *be, const attn_args *a) {
    using T = __nv_bfloat16;
    constexpr int ROOM = BYTES + (int)sizeof(wide_end);
    static_assert(ROOM <= 227 * 1024, "shared memory");
    int64_t n_blocks = cuda_of(be)->n_multiprocessors;
    wide_job job;
    TRY(bwd_prepare(be, a, KEYS, &n_blocks, &job.job));
    TRY(make_maps(be, a, &job.tiles, &job.grains));
    job.room = bwd_kept_bytes(a);
    if (n_blocks > 0) {
        TRY((cuda_launch_early(be, "the gradient of the attention",
                               attn_bwd_d256_short_sm90_kernel<T>, n_blocks, THREADS, ROOM, job)));
    }
    return OK;
}
