/* The scheduler of persistent kernels: which tile of which sequence and head a block works on.
 * Blocks dequeue tiles from a counter in memory, so that none is idle while there is work.
 *
 * A tile is `rows` rows of one sequence and head.  Three ways to number them, none of which needs
 * the host to know the lengths:
 * - TILES_ONE: no sequence has more than one tile; heads of a sequence follow each other.
 * - TILES_SLOTS: sequence b owns the slots offsets[b] / rows + b up to offsets[b + 1] / rows + b,
 *   which are enough for its tiles and at most one too many; heads of a slot follow each other.
 * - TILES_CHUNKS: a chunk is as many sequences and heads as fit in the L2 cache with all that their
 * tiles read; in a chunk the tiles that see the most come first, so that only short work is left at
 * the end.  With a plan (tiles_plan: a small kernel that runs before) sequences are ordered by
 * length, longest first. */
#pragma once

#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/core/kernel.cuh"

enum { TILES_PLAN_THREADS = 1024, TILES_PLAN_SEQUENCES = 2048 };
enum { TILES_FEW = 1024 }; /* that are one chunk: long tiles of a second one would come last */

typedef enum { TILES_ONE, TILES_SLOTS, TILES_CHUNKS } tiles_way;

typedef struct attn_tiles {
    tiles_way way;
    const int32_t *offsets; /* (B + 1): of the rows that are cut into tiles */
    int n_sequences, n_heads, rows;
    bool is_keys;         /* tiles of keys: the first ones see the most; else the last ones do */
    int n_units;          /* number of tiles, including empty ones; with a plan starts[n_chunks] */
    int chunk, n_tiles;   /* pairs of sequence and head in a chunk; tiles of the longest sequence */
    int n_chunks;         /* with a plan */
    const int32_t *order; /* (B): sequences by length; NULL without a plan */
    const int32_t *starts; /* (n_chunks + 1): first units of the chunks */
    unsigned *counter;     /* (2): tiles dequeued, blocks done; zeros before and after a kernel */
} attn_tiles;

/* One tile; row0 is beyond the sequence's end if the tile is empty. */
typedef struct tiles_unit {
    int b, head, row0;
} tiles_unit;

/* The last i of 0 .. n - 1 with first(i) <= x, where first ascends and first(0) <= x; first(i) =
 * offsets[i] / rows + i or, with rows 0, offsets[i].  The whole warp searches, 32 places at a
 * time. */
__device__ static inline int tiles_search(const int32_t *offsets, int rows, int n, int x) {
    int low = 0, lane = (int)threadIdx.x % 32;
    while (n > 1) {
        int step = (n + 31) / 32, i = low + lane * step;
        bool is_below = lane * step < n;
        if (is_below) {
            int at = __ldg(offsets + i);
            is_below = (rows > 0 ? at / rows + i : at) <= x;
        }
        int place = (__popc(__ballot_sync(0xffffffffu, is_below)) - 1) * step;
        low += place;
        n = min(step, n - place);
    }
    return low;
}

__device__ static inline tiles_unit tiles_find_chunk(const attn_tiles &t, int n) {
    int n_pairs = t.n_sequences * t.n_heads;
    int chunk, first, n_tiles = t.n_tiles;
    if (t.order != NULL) {
        chunk = tiles_search(t.starts, 0, t.n_chunks, n);
        first = __ldg(t.starts + chunk);
    } else {
        chunk = n / (t.chunk * n_tiles);
        first = chunk * t.chunk * n_tiles;
    }
    int width = min(t.chunk, n_pairs - chunk * t.chunk);
    if (t.order != NULL) n_tiles = (__ldg(t.starts + chunk + 1) - first) / width;
    int pair = chunk * t.chunk + (n - first) % width;
    tiles_unit u = {pair / t.n_heads, pair % t.n_heads, 0};
    if (t.order != NULL) u.b = __ldg(t.order + u.b);
    int i = (n - first) / width;
    u.row0 = (t.is_keys ? i : n_tiles - 1 - i) * t.rows;
    return u;
}

/* Unit n; all lanes of a warp call it together. */
__device__ static inline tiles_unit tiles_find(const attn_tiles &t, int n) {
    if (t.way == TILES_CHUNKS) return tiles_find_chunk(t, n);
    int slot = n / t.n_heads;
    tiles_unit u = {slot, n - slot * t.n_heads, 0};
    if (t.way == TILES_ONE) return u;
    u.b = tiles_search(t.offsets, t.rows, t.n_sequences, slot);
    int begin = __ldg(t.offsets + u.b), end = __ldg(t.offsets + u.b + 1);
    int n_tiles = (end - begin + t.rows - 1) / t.rows, i = slot - (begin / t.rows + u.b);
    u.row0 = (i < n_tiles && !t.is_keys ? n_tiles - 1 - i : i) * t.rows;
    return u;
}

/* How many units there are. */
__device__ static inline int tiles_count(const attn_tiles &t) {
    return t.order != NULL ? __ldg(t.starts + t.n_chunks) : t.n_units;
}

/* Dequeues the next unit, by one thread; a block's first unit is blockIdx.x. */
__device__ static inline int tiles_take(const attn_tiles &t) {
    return (int)(gridDim.x + atomicAdd(t.counter, 1u));
}

/* By one thread of each block after its last unit: the last block sets the counters back to zero.
 */
__device__ static inline void tiles_done(const attn_tiles &t) {
    __threadfence();
    if (atomicAdd(t.counter + 1, 1u) + 1 < gridDim.x) return;
    t.counter[0] = 0;
    t.counter[1] = 0;
}

/* Sum over the threads before this one; all TILES_PLAN_THREADS call it. */
__device__ static inline int tiles_sum_before(int x) {
    __shared__ int sums[TILES_PLAN_THREADS / 32];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, sum = x;
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        sum += sums[w];
    return sum - x;
}

/* One block: sorts sequences by length, equal lengths by number, and finds the first unit of each
 * chunk. */
static __global__ void __launch_bounds__(TILES_PLAN_THREADS)
    attn_plan_tiles_any_kernel(attn_tiles t, int32_t *order, int32_t *starts) {
    __shared__ int lengths[TILES_PLAN_SEQUENCES], sorted[TILES_PLAN_SEQUENCES];
    int i = (int)threadIdx.x, n_pairs = t.n_sequences * t.n_heads;
    for (int b = i; b < t.n_sequences; b += TILES_PLAN_THREADS)
        lengths[b] = t.offsets[b + 1] - t.offsets[b];
    __syncthreads();
    for (int b = i; b < t.n_sequences; b += TILES_PLAN_THREADS) {
        int length = lengths[b], rank = 0;
        for (int other = 0; other < t.n_sequences; other++)
            rank += lengths[other] > length || (lengths[other] == length && other < b);
        order[rank] = b;
        sorted[rank] = length;
    }
    __syncthreads();
    int n = 0;
    if (i < t.n_chunks) {
        int width = min(t.chunk, n_pairs - i * t.chunk);
        n = (sorted[i * t.chunk / t.n_heads] + t.rows - 1) / t.rows * width;
    }
    int before = tiles_sum_before(n);
    if (i <= t.n_chunks && i < TILES_PLAN_THREADS) starts[i] = before;
}

/* The schedule of a call with tiles of `rows` rows; `cache_bytes` is the L2 cache footprint of one
 * row of the other side, which all tiles of a sequence and head share. n_rows: rows of the jagged
 * array, 0 where they are not known.  Jagged sequences of up to `slots_most` rows are not worth a
 * plan. */
static inline attn_tiles tiles_make(const attn_args *a, const int32_t *offsets, int max_len,
                                    int64_t n_rows, int rows, int other_len, int cache_bytes,
                                    int slots_most = 1024) {
    attn_tiles t = {};
    t.offsets = offsets;
    t.n_sequences = a->n_sequences;
    t.n_heads = a->n_heads;
    t.rows = rows;
    t.n_tiles = (int)cuda_div_up(max_len, rows);
    int64_t n_pairs = (int64_t)a->n_sequences * a->n_heads;
    bool is_jagged = n_rows > 0 && n_rows < (int64_t)a->n_sequences * max_len / 16 * 15;
    if (t.n_tiles <= 1) {
        t.way = TILES_ONE;
        t.n_units = (int)n_pairs * t.n_tiles;
    } else if (is_jagged && max_len <= slots_most) {
        t.way = TILES_SLOTS;
        t.n_units = (int)((n_rows / rows + a->n_sequences) * a->n_heads);
    } else {
        int64_t pair_bytes = (int64_t)other_len * cache_bytes;
        int64_t chunk = pair_bytes > 0 ? (32 << 20) / pair_bytes : n_pairs;
        chunk = chunk > 16 ? 16 : chunk < 1 ? 1 : chunk;
        int64_t least = cuda_div_up(n_pairs, TILES_PLAN_THREADS - 1);
        if (n_pairs * t.n_tiles <= TILES_FEW) least = n_pairs;
        t.way = TILES_CHUNKS;
        t.chunk = (int)(chunk > least ? chunk : least);
        t.n_units = (int)(n_pairs * t.n_tiles);
        t.n_chunks = (int)cuda_div_up(n_pairs, t.chunk);
    }
    return t;
}

/* Whether ordering the sequences pays: lengths differ and work is long. */
static inline bool tiles_wants_plan(const attn_tiles *t, int max_len, int64_t n_rows) {
    return t->way == TILES_CHUNKS && n_rows > 0 && t->n_sequences <= TILES_PLAN_SEQUENCES &&
           n_rows < (int64_t)t->n_sequences * max_len / 16 * 15;
}

static inline size_t tiles_plan_bytes(const attn_tiles *t) {
    return cuda_align((size_t)(t->n_sequences + t->n_chunks + 1) * sizeof(int32_t));
}

/* Makes the plan in `scratch` (tiles_plan_bytes) and sets t to use it. */
static inline status tiles_plan(attn_tiles *t, void *scratch, cudaStream_t stream) {
    int32_t *order = (int32_t *)scratch, *starts = order + t->n_sequences;
    attn_plan_tiles_any_kernel<<<1, TILES_PLAN_THREADS, 0, stream>>>(*t, order, starts);
    t->order = order;
    t->starts = starts;
    return cuda_launched("the plan of the attention's tiles");
}
