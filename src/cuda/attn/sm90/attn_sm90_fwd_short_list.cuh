/* The work lists of the forward kernel for short sequences (attn_sm90_fwd_short.cuh): each block
 * writes what it will do into shared memory before it starts, so that no warp has to search or
 * synchronise with others later.
 *
 * A tile is the rows of a sequence and head that the block's warps process at the same time, a task
 * the 16 rows of one warp, assigned to warps in turn; a chunk is the keys and values that one
 * mbarrier covers.  Each chunk has a barrier of its own, which is used once.  Keys and values are
 * stored in a ring of grains (16 rows of keys or of values), chunk after chunk, the keys of a chunk
 * before its values; the places of all grains of a tile follow from its first. */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_FWD_SHORT_LIST_CUH
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_FWD_SHORT_LIST_CUH

#include "cuda/attn/sm90/attn_sm90_rows.cuh"

enum { GRAIN_ROWS = 16, SHORT_SORTED = 256 }; /* the most sequences that are sorted by length */

/* SIZES names D, the head dimension, WARPS, the consumer warps, and KEYS, the keys of a chunk.
 * TILES, CHUNKS and TASKS are the maxima for a block. */
template <typename SIZES> struct short_shape {
    static constexpr int D = SIZES::D, WARPS = SIZES::WARPS, KEYS = SIZES::KEYS;
    static constexpr int TILES = 64, CHUNKS = 96, TASKS = 512;
    static constexpr int ROWS = GRAIN_ROWS * WARPS, THREADS = 32 * (WARPS + 1);
    static constexpr int COLUMNS = D == 32 ? 32 : PART;
    static constexpr int GRAIN = GRAIN_ROWS * D * 2, NEXT_PART = GRAIN_ROWS * COLUMNS * 2;
    static constexpr int BYTES = 216 * 1024;                    /* of which 1 KB is room to align */
    static constexpr int RING = (BYTES - 1024) / GRAIN - WARPS; /* grains */
    static constexpr bool KEEPS_QUERIES = D <= 128;             /* in registers */
    static_assert(RING >= 2 * (2 * KEYS / GRAIN_ROWS), "two chunks under way");
    static_assert(THREADS >= SHORT_SORTED, "a thread for each sequence that is sorted");
};

/* A tile: the keys it sees, its first task, the number of its tasks, its first chunk, and that
 * chunk's place in the ring. */
typedef struct short_tile {
    fwd_unit u;
    int task, n_tasks, chunk, at;
} short_tile;

template <typename S> struct short_room {
    uint64_t chunks[S::CHUNKS]; /* they are there */
    uint64_t queries[S::WARPS];
    int n_done[S::CHUNKS]; /* warps that are done with a chunk */
    int n_tiles, n_tasks;
    int first[S::TILES]; /* tasks; INT32_MAX after the last tile */
    short_tile tiles[S::TILES];
    alignas(16) int keys[SHORT_SORTED]; /* to sort by */
    int ranks[SHORT_SORTED];
    uint8_t order[SHORT_SORTED];
    uint8_t sizes[S::CHUNKS], users[S::CHUNKS]; /* grains and warps; when they are asked for */
};

/* Place n of the ring, where n may be up to one turn too large. */
template <typename S> __device__ static inline int short_wrap(int n) {
    return n < S::RING ? n : n - S::RING;
}
__device__ static inline int short_grains(int n_rows, int most) {
    return (min(n_rows, most) + GRAIN_ROWS - 1) / GRAIN_ROWS;
}

/* Fills `order`: sequences sorted by the rows they read, most first; the same order in every block.
 * A sequence's rank is the number of sequences that read more; several threads count for each. */
template <typename S>
__device__ static inline void short_sort(const attn_args &a, short_room<S> *room) {
    int n = a.n_sequences, shift = n <= 32 ? 5 : n <= 64 ? 6 : n <= 128 ? 7 : 8, key = -1;
    int b = (int)threadIdx.x & ((1 << shift) - 1), part = (int)threadIdx.x >> shift;
    int n_parts = S::THREADS >> shift, rank = 0;
    if (part == 0) {
        if (b < n) {
            int n_q = a.offsets_q[b + 1] - a.offsets_q[b];
            int n_k = a.offsets_k[b + 1] - a.offsets_k[b];
            key = min(max(n_q + 2 * n_k, 0), 1 << 20) * SHORT_SORTED + SHORT_SORTED - 1 - b;
        }
        room->keys[b] = key;
        room->ranks[b] = 0;
    }
    __syncthreads();
    key = room->keys[b];
#pragma unroll 2
    for (int i = 4 * part; i < n && part < n_parts; i += 4 * n_parts) {
        int4 other = *(const int4 *)(room->keys + i);
        rank += (other.x > key) + (other.y > key) + (other.z > key) + (other.w > key);
    }
    if (rank > 0) atomicAdd(&room->ranks[b], rank);
    __syncthreads();
    if (part == 0 && b < n) room->order[room->ranks[b]] = (uint8_t)b;
    __syncthreads();
}

/* Over the first columns of a tile's chunks. */
#define SHORT_CHUNKS(S, u, j)                                                                      \
    for (int j = fwd_next<S>(u, (u)->begin); j < (u)->end; j = fwd_next<S>(u, j + S::KEYS))

/* Tile n of the block, where sequences have at most n_tiles; false: there is none.  In each round
 * of gridDim.x pairs of sequence and head a block gets one, in alternating directions, so that the
 * block with the longest pair of one round gets the shortest of the next.  The last rows of a
 * sequence come first. */
template <typename S>
__device__ static inline bool short_find(const attn_args &a, int n_tiles, bool is_sorted, int n,
                                         const short_room<S> *room, fwd_unit *u) {
    int round = n_tiles == 1 ? n : n / n_tiles, n_pairs = a.n_sequences * a.n_heads;
    int place = (int)(round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    int pair = round * (int)gridDim.x + place, at = pair / a.n_heads;
    if (n >= S::TILES || pair >= n_pairs) return false;
    u->s = attn_sequence_of(&a, is_sorted ? room->order[at] : at);
    u->s.len_q = min(u->s.len_q, a.max_len_q); /* lists have no more room, whatever offsets say */
    u->s.len_k = min(u->s.len_k, a.max_len_k);
    u->head = pair - at * a.n_heads;
    u->row0 = (n_tiles - 1 - n % n_tiles) * S::ROWS;
    if (u->row0 >= u->s.len_q) return false;
    fwd_walk<S>(a, u->s, u->row0, u);
    return true;
}

/* Counts of tasks, chunks and grains packed into one word, so that one prefix sum adds all three.
 */
enum { ONE_TASK = 1, ONE_CHUNK = 1 << 10, ONE_GRAIN = 1 << 20 };

/* The sum of x over the lanes up to this one. */
__device__ static inline unsigned short_sum(unsigned x) {
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned d = 1; d < 32; d *= 2) {
        unsigned other = __shfl_up_sync(0xffffffffu, x, d);
        if (lane >= d) x += other;
    }
    return x;
}

/* A tile's counts of each. */
template <typename S>
__device__ static inline unsigned short_counts(const fwd_unit &u, int n_tasks) {
    unsigned n_chunks = 0, n_grains = 0;
    SHORT_CHUNKS(S, &u, j) {
        n_chunks++;
        n_grains += 2 * (unsigned)short_grains(u.end - j, S::KEYS);
    }
    return (unsigned)n_tasks * ONE_TASK + n_chunks * ONE_CHUNK + n_grains * ONE_GRAIN;
}

/* By one warp: lists the tiles of the block; sequences have at most n_tiles. */
template <typename S>
__device__ static inline void short_list(const attn_args &a, int n_tiles, bool is_sorted,
                                         short_room<S> *room) {
    int n_most = (a.n_sequences * a.n_heads + (int)gridDim.x - 1) / (int)gridDim.x * n_tiles;
    unsigned lane = threadIdx.x % 32, sum = 0, n_listed = 0;
    for (int n = 0; n < S::TILES; n += 32)
        room->first[n + (int)lane] = INT32_MAX;
    for (int n = 0; n < n_most; n += 32) {
        fwd_unit u = {};
        bool is_there = short_find<S>(a, n_tiles, is_sorted, n + (int)lane, room, &u);
        __syncwarp();
        int n_tasks = is_there ? short_grains(u.s.len_q - u.row0, S::ROWS) : 0;
        unsigned own = short_counts<S>(u, n_tasks), there = __ballot_sync(0xffffffffu, is_there);
        __syncwarp();
        unsigned with = short_sum(own), before = sum + with - own;
        if (is_there) {
            unsigned at = n_listed + __popc(there & ((1u << lane) - 1));
            short_tile tile = {u, (int)(before % ONE_CHUNK), n_tasks,
                               (int)(before / ONE_CHUNK % 1024),
                               (int)(before / ONE_GRAIN) % S::RING};
            room->tiles[at] = tile;
            room->first[at] = tile.task;
        }
        __syncwarp();
        sum += __shfl_sync(0xffffffffu, with, 31);
        n_listed += __popc(there);
    }
    if (lane > 0) return;
    room->n_tiles = (int)n_listed;
    room->n_tasks = (int)(sum % ONE_CHUNK);
}

/* The tile of a task, by a warp. */
template <typename S>
__device__ static inline int short_tile_of(const short_room<S> *room, int task) {
    int lane = (int)threadIdx.x % 32, n = 0;
#pragma unroll
    for (int i = 0; i < S::TILES; i += 32)
        n += __popc(__ballot_sync(0xffffffffu, room->first[i + lane] <= task));
    return n - 1;
}

/* The most pairs of sequence and head for which a block's lists are large enough; 0: not even one,
 * so the kernel must not be launched. */
template <typename S> static int64_t short_most(const attn_args *a) {
    int64_t n_tiles = cuda_div_up(a->max_len_q, S::ROWS), most = S::TILES;
    int64_t n_chunks = n_tiles * cuda_div_up(a->max_len_k, S::KEYS);
    int64_t n_tasks = cuda_div_up(a->max_len_q, GRAIN_ROWS);
    if (most * n_tiles > S::TILES) most = S::TILES / n_tiles;
    if (most * n_chunks > S::CHUNKS) most = S::CHUNKS / n_chunks;
    if (most * n_tasks > S::TASKS) most = S::TASKS / n_tasks;
    return most;
}

#endif
