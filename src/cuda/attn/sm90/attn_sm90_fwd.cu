/* HSTU attention, forward, on Hopper (contract: attn_args in ops/ops.h): the kernel for short
 * sequences, and which kernel with which tile sizes takes a call, by head dimension and lengths.
 * The persistent kernel for the others is in attn_sm90_fwd.cuh. */
#include "cuda/attn/sm90/attn_sm90_fwd.cuh"

/* The work lists of the kernel for short sequences: each block writes what it will do into shared
 * memory before it starts, so that no warp has to search or synchronise with others later.
 *
 * A tile is the rows of a sequence and head that the block's warps process at the same time, a task
 * the 16 rows of one warp, assigned to warps in turn; a chunk is the keys and values that one
 * mbarrier covers.  Each chunk has a barrier of its own, which is used once.  Keys and values are
 * stored in a ring of grains (16 rows of keys or of values), chunk after chunk, the keys of a chunk
 * before its values; the places of all grains of a tile follow from its first. */
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
    uint8_t sizes[S::CHUNKS], users[S::CHUNKS]; /* grains and warps; when they are loaded */
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

/* The kernel for short sequences, which are bound by latency, and then by bytes.
 *
 * One block a multiprocessor works on a fixed share of the pairs of sequence and head, long ones
 * first (the lists above).  A producer warp loads keys and values by TMA as far ahead
 * as a ring in shared memory has room, across the ends of sequences.  The consumer warps each take
 * 16 query rows (mma.m16n8k16, which wastes a quarter of what wgmma wastes at the end of a sequence
 * and on the diagonal) and wait for nothing but TMA.
 *
 * A grain, 16 rows, is loaded by one instruction.  It holds D / 64 parts of 16 rows of 128 bytes (D
 * = 32: of 64 bytes), swizzled. */
template <typename S>
__device__ static inline void short_load(char *to, const CUtensorMap *map, uint64_t *barrier,
                                         int head, int y) {
    tile_load_3d(to, map, barrier, 0, y, head * (S::D / S::COLUMNS));
}

/* The producer warp: loads all keys and values of the block.  When all consumers have read a chunk,
 * its room is used for the next. */
template <typename S>
__device__ static void short_ask(const fwd_maps &maps, short_room<S> *room, char *ring) {
    int chunk = 0, oldest = 0, n_grains = 0, at = 0;
    bool asks = elect_one();
#pragma unroll 1
    for (int i = 0; i < room->n_tiles; i++) {
        const fwd_unit u = room->tiles[i].u;
        int n_tasks = room->tiles[i].n_tasks;
#pragma unroll 1
        SHORT_CHUNKS(S, &u, j) {
            int n = short_grains(u.end - j, S::KEYS), y = u.s.row_k + j;
            int keys = at, values = short_wrap<S>(at + n);
            at = short_wrap<S>(at + 2 * n);
            for (n_grains += 2 * n; n_grains > S::RING; n_grains -= room->sizes[oldest++]) {
                while (load_acquire(&room->n_done[oldest]) < room->users[oldest])
                    continue;
            }
            if (asks) {
                uint64_t *barrier = &room->chunks[chunk];
                barrier_expect(barrier, (uint32_t)(2 * n * S::GRAIN));
                room->sizes[chunk] = (uint8_t)(2 * n);
                room->users[chunk] = (uint8_t)n_tasks;
#pragma unroll 1
                for (; n > 0; n--, y += GRAIN_ROWS) {
                    short_load<S>(ring + keys * S::GRAIN, &maps.k, barrier, u.head, y);
                    short_load<S>(ring + values * S::GRAIN, &maps.v, barrier, u.head, y);
                    keys = short_wrap<S>(keys + 1);
                    values = short_wrap<S>(values + 1);
                }
            }
            __syncwarp();
            chunk++;
        }
    }
}

/* Issues the load of a task's queries for the calling warp, if the task exists; returns its
 * tile. */
template <typename S>
__device__ static inline int short_ask_queries(const fwd_maps &maps, short_room<S> *room,
                                               char *queries, int task) {
    if (task >= room->n_tasks) return 0;
    int at = short_tile_of<S>(room, task);
    if (elect_one()) {
        const short_tile *tile = &room->tiles[at];
        uint64_t *barrier = &room->queries[threadIdx.x / 32];
        barrier_expect(barrier, S::GRAIN);
        short_load<S>(queries, &maps.q, barrier, tile->u.head,
                      tile->u.s.row_q + tile->u.row0 + (task - tile->task) * GRAIN_ROWS);
    }
    __syncwarp();
    return at;
}

/* A lane's address for ldmatrix in a grain: 16 columns of 16 rows, as rows (queries, and values,
 * transposed) or as columns (keys) of a product.  For the next 16 columns: short_move. */
template <typename S> __device__ static inline uint32_t short_lane(int row, int side) {
    int turn = S::D == 32 ? row / 2 % 4 : row % 8;
    return (uint32_t)(row * S::COLUMNS * 2 + (side ^ turn) * 16);
}
template <typename S> __device__ static inline uint32_t short_lane_rows() {
    int lane = (int)threadIdx.x % 32;
    return short_lane<S>(lane % 16, lane / 16);
}
template <typename S> __device__ static inline uint32_t short_lane_columns() {
    int lane = (int)threadIdx.x % 32;
    return short_lane<S>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}
template <typename S> __device__ static inline uint32_t short_move(uint32_t address, int k) {
    return (address ^ (uint32_t)(k % 4 * 32)) + (uint32_t)(k / 4 * S::NEXT_PART);
}

/* State of a consumer warp's 16 rows. */
template <typename S> struct short_own {
    const attn_sequence *s;
    int row; /* of the thread; the other is row + 8 */
    attn_span seen, full;
    float half;
    uint32_t queries; /* address */
    uint32_t kept[S::KEEPS_QUERIES ? S::D / 16 : 1][4];
};

/* x (16, 16 N) = queries times keys. */
template <typename T, typename S, int N>
__device__ static inline void short_scores(const short_own<S> &own, const uint32_t (&keys)[N],
                                           float (&x)[8 * N]) {
#pragma unroll
    for (int e = 0; e < 8 * N; e++)
        x[e] = 0;
#pragma unroll
    for (int k = 0; k < S::D / 16; k++) {
        uint32_t q[4], b[4];
        if constexpr (!S::KEEPS_QUERIES) ldmatrix_x4(q, short_move<S>(own.queries, k));
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint32_t *left = S::KEEPS_QUERIES ? own.kept[S::KEEPS_QUERIES ? k : 0] : q;
            ldmatrix_x4(b, short_move<S>(keys[n], k));
            mma_m16n8k16<T>(x + 8 * n, left, b[0], b[1]);
            mma_m16n8k16<T>(x + 8 * n + 4, left, b[2], b[3]);
        }
    }
}

/* out (16, D) += weights times values. */
template <typename T, typename S, int N>
__device__ static inline void short_add(float (&out)[S::D / 2], const uint32_t (&left)[N][4],
                                        const uint32_t (&values)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int k = 0; k < S::D / 16; k++) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, short_move<S>(values[n], k));
            mma_m16n8k16<T>(out + 8 * k, left[n], b[0], b[1]);
            mma_m16n8k16<T>(out + 8 * k + 4, left[n], b[2], b[3]);
        }
    }
}

/* Sets scores of pairs that are not visible to 0, whose weight is 0.  The causal mask, by far the
 * most frequent, has a path of its own. */
template <int N>
__device__ static inline void short_mask(const attn_args &a, const attn_sequence &s, int row, int j,
                                         float (&x)[8 * N]) {
    int column = j + 2 * ((int)threadIdx.x % 4);
    unsigned seen = 0;
    if (attn_mask_is_causal(&a) && s.shift >= 0) {
        int end = row + s.shift + 1;
        seen = attn_bits_below<2 * N>(min(end, s.len_k) - column);
        seen |= attn_bits_below<2 * N>(min(end + 8, s.len_k) - column) << 8;
    } else {
#pragma unroll 1
        for (int side = 0; side < 2; side++)
            seen |= fwd_bits<2 * N>(a, s, row + 8 * side, column) << 8 * side;
    }
#pragma unroll
    for (int c = 0; c < 4 * N; c++) {
        if ((seen >> c & 1) == 0) x[c / 2 * 4 + c % 2] = 0;
        if ((seen >> (8 + c) & 1) == 0) x[c / 2 * 4 + 2 + c % 2] = 0;
    }
}

/* Adds the products with N grains of keys and values from column j on; `keys` and `values` are
 * their places in the ring. */
template <typename T, typename S, int N>
__device__ static inline void short_step(const attn_args &a, const short_own<S> &own, int j,
                                         uint32_t ring, int keys, int values,
                                         float (&out)[S::D / 2]) {
    uint32_t k[N], v[N], left[N][4];
    float x[8 * N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        k[n] = ring + (uint32_t)(short_wrap<S>(keys + n) * S::GRAIN) + short_lane_columns<S>();
        v[n] = ring + (uint32_t)(short_wrap<S>(values + n) * S::GRAIN) + short_lane_rows<S>();
    }
    short_scores<T, S, N>(own, k, x);
    if (j < own.full.begin || j + 16 * N > own.full.end) short_mask<N>(a, *own.s, own.row, j, x);
#pragma unroll
    for (int e = 0; e < 8 * N; e++)
        x[e] = fwd_silu(own.half, x[e]);
    pack_left<T, 16 * N>(left, x);
    short_add<T, S, N>(out, left, v);
}

/* A chunk of n grains from column j on. */
template <typename T, typename S>
__device__ static inline void short_chunk(const attn_args &a, const short_own<S> &own, int j, int n,
                                          uint32_t ring, int at, float (&out)[S::D / 2]) {
    int end = min(j + n * GRAIN_ROWS, own.seen.end);
#pragma unroll 1
    for (int i = 0; j < end; i += 2, j += 32) {
        int keys = short_wrap<S>(at + i), values = short_wrap<S>(at + n + i);
        if (j + 32 <= own.seen.begin) continue;
        if (j + 16 < end)
            short_step<T, S, 2>(a, own, j, ring, keys, values, out);
        else
            short_step<T, S, 1>(a, own, j, ring, keys, values, out);
    }
}

/* All chunks of the tile. */
template <typename T, typename S>
__device__ static inline void short_walk(const attn_args &a, const short_own<S> &own,
                                         const short_tile *tile, short_room<S> *room, uint32_t ring,
                                         float (&out)[S::D / 2]) {
    int chunk = tile->chunk, at = tile->at;
#pragma unroll 1
    SHORT_CHUNKS(S, &tile->u, j) {
        int n = short_grains(tile->u.end - j, S::KEYS);
        barrier_wait(&room->chunks[chunk], 0);
        __syncwarp();
        short_chunk<T, S>(a, own, j, n, ring, at, out);
        __syncwarp();
        if (threadIdx.x % 32 == 0) add_release(&room->n_done[chunk], 1);
        chunk++;
        at = short_wrap<S>(at + 2 * n);
    }
}

/* Processes a task of a tile: waits for the queries, sums, issues the load of the next task's
 * queries, and stores.  Returns the next task's tile. */
template <typename T, typename S>
__device__ static inline int short_rows(const attn_args &a, const fwd_maps &maps, int task, int at,
                                        short_room<S> *room, char *queries, uint32_t parity,
                                        uint32_t ring) {
    const short_tile *tile = &room->tiles[at];
    const attn_sequence *s = &tile->u.s;
    int row = tile->u.row0 + (task - tile->task) * GRAIN_ROWS, next = 0;
    short_own<S> own;
    own.s = s;
    own.row = row + (int)threadIdx.x % 32 / 4;
    own.seen = attn_keys_seen(&a, s, row, GRAIN_ROWS);
    own.full = attn_keys_full(&a, s, row, GRAIN_ROWS);
    own.half = 0.5f * a.alpha;
    own.queries = shared_address(queries) + short_lane_rows<S>();
    float out[S::D / 2];
#pragma unroll
    for (int e = 0; e < S::D / 2; e++)
        out[e] = 0;
    barrier_wait(&room->queries[threadIdx.x / 32], parity);
    __syncwarp();
    if constexpr (S::KEEPS_QUERIES) {
#pragma unroll
        for (int k = 0; k < S::D / 16; k++)
            ldmatrix_x4(own.kept[k], short_move<S>(own.queries, k));
        __syncwarp();
        next = short_ask_queries<S>(maps, room, queries, task + S::WARPS);
    }
    short_walk<T, S>(a, own, tile, room, ring, out);
    if constexpr (!S::KEEPS_QUERIES)
        next = short_ask_queries<S>(maps, room, queries, task + S::WARPS);
    T *to = (T *)a.out + (int64_t)s->row_q * a.stride_out + tile->u.head * S::D;
    fwd_store<T, S::D>(to, a.stride_out, own.row, s->len_q, a.scale, out);
    return next;
}

template <typename T, typename S>
__device__ static void short_compute(const attn_args &a, const fwd_maps &maps, short_room<S> *room,
                                     char *queries, const char *ring) {
    int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); /* known to be uniform */
    uint32_t parity = 0;
    queries += warp * S::GRAIN;
    int tile = short_ask_queries<S>(maps, room, queries, warp);
#pragma unroll 1
    for (int task = warp; task < room->n_tasks; task += S::WARPS, parity ^= 1)
        tile = short_rows<T, S>(a, maps, task, tile, room, queries, parity, shared_address(ring));
}

/* Initialises barriers, by four warps, and writes the work lists.  Only code after grid_wait may
 * touch memory. */
template <typename S>
__device__ static inline void short_begin(const attn_args &a, const fwd_maps &maps, int n_tiles,
                                          bool is_sorted, short_room<S> *room) {
    static_assert(S::CHUNKS % 4 == 0 && S::CHUNKS <= S::THREADS && S::WARPS > 4, "who does what");
#pragma unroll
    for (int warp = 1; warp < 5; warp++) {
        if ((int)threadIdx.x != 32 * warp) continue;
        for (int i = 0; i < S::CHUNKS / 4; i++)
            barrier_init(&room->chunks[(warp - 1) * S::CHUNKS / 4 + i], 1);
        for (int i = warp - 1; i < S::WARPS; i += 4)
            barrier_init(&room->queries[i], 1);
        barrier_init_done();
    }
    if (threadIdx.x == 32 * S::WARPS) {
        tile_prefetch_map(&maps.q);
        tile_prefetch_map(&maps.k);
        tile_prefetch_map(&maps.v);
    }
    if (threadIdx.x < S::CHUNKS) room->n_done[threadIdx.x] = 0;
    __syncwarp();
    grid_launch_next();
    grid_wait();
    if (is_sorted) short_sort<S>(a, room);
    if (threadIdx.x < 32) short_list<S>(a, n_tiles, is_sorted, room);
    __syncthreads();
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, 1)
    attn_fwd_short_sm90_kernel(const __grid_constant__ attn_args a,
                               const __grid_constant__ fwd_maps maps, int n_tiles, bool is_sorted) {
    extern __shared__ char shared[];
    __shared__ short_room<S> room;
    char *queries = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *ring = queries + S::WARPS * S::GRAIN;
    short_begin<S>(a, maps, n_tiles, is_sorted, &room);
    if (threadIdx.x < 32 * S::WARPS)
        short_compute<T, S>(a, maps, &room, queries, ring);
    else
        short_ask<S>(maps, &room, ring);
}

template <typename S>
static status short_map(CUtensorMap *map, const backend *be, const attn_args *a, const void *rows,
                        int64_t n_rows, int64_t stride) {
    return sm90a_map_heads(map, be->act, rows, n_rows, (int64_t)a->n_heads * S::D, stride,
                           S::COLUMNS, GRAIN_ROWS, S::D);
}

template <typename T, typename S> status short_launch(backend *be, const attn_args *a) {
    cuda_state *state = cuda_of(be);
    fwd_maps maps;
    int64_t n_pairs = (int64_t)a->n_sequences * a->n_heads;
    /* One block for each multiprocessor, or more waves where the lists need them.  Sorting
     * sequences of at most 64 rows costs more than it gains. */
    int64_t n_blocks = state->n_multiprocessors;
    n_blocks *= cuda_div_up(n_pairs, n_blocks * short_most<S>(a));
    if (n_blocks > n_pairs) n_blocks = n_pairs;
    if (n_blocks == 0 || a->max_len_q == 0) return OK;
    TRY(short_map<S>(&maps.q, be, a, a->q, a->n_rows_q, a->stride_q));
    TRY(short_map<S>(&maps.k, be, a, a->k, a->n_rows_k, a->stride_k));
    TRY(short_map<S>(&maps.v, be, a, a->v, a->n_rows_k, a->stride_v));
    bool is_sorted = a->n_sequences <= SHORT_SORTED && a->max_len_q > 64;
    return cuda_launch_early(be, "the attention", attn_fwd_short_sm90_kernel<T, S>, n_blocks,
                             S::THREADS, S::BYTES, *a, maps,
                             (int)cuda_div_up(a->max_len_q, S::ROWS), is_sorted);
}

/* Tile sizes.  Shared memory, in KB a block: queries + keys and values
 *     D = 32:   large 2 x 12 + 2 x 2 x 8 = 56                                        short 15 + 200
 *     D = 64:   large 2 x 24 + 2 x 2 x 16 = 112    small 2 x 8 + 2 x 2 x 8 = 48      short 30 + 184
 *     D = 128:  large 2 x 32 + 2 x 2 x 32 = 192    tall 2 x 48 + 3 x 2 x 16 = 192    short 44 + 168
 *     D = 256:  large 64 + 2 x 2 x 32 = 192        small 32 + 2 x 32 = 96            short 56 + 152
 *
 * Times that set the switch points, in us (H200, 2026-11-15; 4 heads, causal, bfloat16; lengths
 * from 1 to the number named, "full": all of that length).  For the persistent kernel they are the
 * better of two older versions, which dequeued tiles earlier than the current one.
 *                                 4096 full   1024 full   512     200     50
 *     D = 32    large                   501        58.5    44.5    23.5   39.7
 *     D = 64    large                   585        63.6    45.6    23.6   41.2
 *               small                   706        59.8    42.0    16.9   17.1
 *     D = 128   large                   927        80.0    69.5    33.0   46.4
 *               tall                    944        86.5    63.7    29.4   44.2
 *     D = 256   large                  1823       149.6   114.7    43.1   50.7
 *               small                  2388       172     129      39.5   35.9
 * The kernel for short sequences and its competitor, in one run (sequences x longest; at D = 32 and
 * 128 a third kernel, since removed):
 *                      128 x 512   128 x 200   512 x 50   2048 x 20   64 x 256 full   32 x 200
 *     D = 32    before      40.7        15.7       13.4        38.7            17.7        8.5
 *               short       33.0        10.4        9.9        25.5            16.5        7.1
 *     D = 64    small       32.7        15.2       17.1        49.8            15.9        8.0
 *               short       37.5        12.4       10.8        29.4            20.7        8.4
 *     D = 128   before      49.8        27.3       23.2        70.4            32.4       12.4
 *               short       64.1        21.3       19.5        33.5            28.3       15.5
 *     D = 256   small       86.5        37.3       35.2       121.2            45.6       18.4
 *               short      153.8        39.2       34.7        59.5            64.0       24.3 */

/* One pipelined block for each multiprocessor; at D = 128 there are two kinds: 128 rows by 128 keys
 * or, tall, 192 rows by 64 keys, which wastes less at the end of the keys. */
struct large_sizes : fwd_sizes {
    static constexpr bool IS_PIPED = true;
};
struct large_d32 : large_sizes {
    static constexpr int D = 32, GROUPS = 3, KEYS = 128;
};
struct large_d64 : large_sizes {
    static constexpr int D = 64, GROUPS = 3, KEYS = 128;
};
struct large_d128 : large_sizes {
    static constexpr int D = 128, GROUPS = 2, KEYS = 128;
};
struct tall_d128 : large_sizes {
    static constexpr int D = 128, GROUPS = 3, STAGES = 3;
};
struct large_d256 : large_sizes {
    static constexpr int D = 256, GROUPS = 2, BUFFERS = 1;
};

/* Several blocks of 64 rows a multiprocessor. */
struct small_d64 : fwd_sizes {
    static constexpr int D = 64, BOX = 16, BLOCKS = 3;
};
struct small_d256 : fwd_sizes {
    static constexpr int D = 256, STAGES = 1, BUFFERS = 1, BOX = 16, BLOCKS = 2;
};

/* Consumer warps of 16 rows each.  With the producer warp they are a multiple of four, since
 * registers are allocated to four warps at a time: 128 a thread at D = 64, 168 at 128, 255 at
 * 256. */
struct short_d32 {
    static constexpr int D = 32, WARPS = 15, KEYS = 64;
};
struct short_d64 {
    static constexpr int D = 64, WARPS = 15, KEYS = 64;
};
struct short_d128 {
    static constexpr int D = 128, WARPS = 11, KEYS = 64;
};
struct short_d256 {
    static constexpr int D = 256, WARPS = 7, KEYS = 32;
};

/* Whether the kernel for short sequences is the faster one: no sequence is longer than `most`,
 * their mean length is at most `mean`, and, where one is longer than `alone`, every
 * multiprocessor has several of them: the kernel does not split a sequence and head over
 * multiprocessors. */
static bool is_short(const backend *be, const attn_args *a, int most, int mean, int alone) {
    int64_t n_pairs = (int64_t)a->n_sequences * a->n_heads;
    bool are_enough = n_pairs >= 2 * (int64_t)cuda_of(be)->n_multiprocessors;
    return a->max_len_q <= most && a->max_len_k <= 2 * most &&
           a->n_rows_q <= (int64_t)mean * a->n_sequences && (are_enough || a->max_len_q <= alone);
}

/* The length that tile sizes go by: few queries of many keys count as long. */
static int length_of(const attn_args *a) {
    return a->max_len_q > a->max_len_k / 2 ? a->max_len_q : a->max_len_k / 2;
}

template <typename S> static status launch(backend *be, const attn_args *a) {
    return fwd_launch<__nv_bfloat16, fwd_shape<S>>(be, a);
}
template <typename S> static status launch_short(backend *be, const attn_args *a) {
    return short_launch<__nv_bfloat16, short_shape<S>>(be, a);
}

static status launch_32(backend *be, const attn_args *a) {
    if (is_short(be, a, 512, 512, 256)) return launch_short<short_d32>(be, a);
    return launch<large_d32>(be, a);
}
static status launch_64(backend *be, const attn_args *a) {
    if (is_short(be, a, 256, 128, 64)) return launch_short<short_d64>(be, a);
    return length_of(a) <= 1024 ? launch<small_d64>(be, a) : launch<large_d64>(be, a);
}
static status launch_128(backend *be, const attn_args *a) {
    if (is_short(be, a, 256, 256, 64)) return launch_short<short_d128>(be, a);
    return length_of(a) <= 512 ? launch<tall_d128>(be, a) : launch<large_d128>(be, a);
}
static status launch_256(backend *be, const attn_args *a) {
    if (is_short(be, a, 256, 24, 64)) return launch_short<short_d256>(be, a);
    return length_of(a) <= 256 ? launch<small_d256>(be, a) : launch<large_d256>(be, a);
}

/* float16 has one kernel for each head dimension, the one that suits most lengths: HSTU is trained
 * and served in bfloat16, and the other kernels would be half as many again to compile. */
static status launch_f16(backend *be, const attn_args *a) {
    if (a->dim_qk == 32) return fwd_launch<__half, fwd_shape<large_d32>>(be, a);
    if (a->dim_qk == 64) return fwd_launch<__half, fwd_shape<small_d64>>(be, a);
    if (a->dim_qk == 128) return fwd_launch<__half, fwd_shape<tall_d128>>(be, a);
    return fwd_launch<__half, fwd_shape<large_d256>>(be, a);
}

/* With a bias: one choice of tile sizes for each head dimension,
 * so that there are few kernels to compile.  Blocks are small at every length: a bias takes longer
 * than the products, and several blocks on a multiprocessor overlap the two.
 *
 * Shared memory, in KB a block: queries + keys and values + a table
 *     D = 32:   2 x 4 + 2 x 2 x 4 + 2 x 8 = 40      D = 128:  16 + 2 x 2 x 16 + 2 x 8 = 96
 *     D = 64:   2 x 8 + 2 x 2 x 8 + 2 x 8 = 64 */
template <attn_bias BIAS_, int D_> struct fwd_bias_sizes : fwd_sizes {
    static constexpr attn_bias BIAS = BIAS_;
    static constexpr int D = D_, BOX = 16;
    static constexpr int BLOCKS = D < 128 ? 3 : 2, BUFFERS = D < 128 ? fwd_sizes::BUFFERS : 1;
};

template <attn_bias BIAS> static status choose_bias(backend *be, const attn_args *a) {
    if (a->dim_qk == 32) return launch<fwd_bias_sizes<BIAS, 32>>(be, a);
    if (a->dim_qk == 64) return launch<fwd_bias_sizes<BIAS, 64>>(be, a);
    return launch<fwd_bias_sizes<BIAS, 128>>(be, a);
}

status cuda_attn_sm90_fwd(backend *be, const attn_args *a) {
    if (a->bias == BIAS_TABLE) return choose_bias<BIAS_TABLE>(be, a);
    if (a->bias == BIAS_TIME) return choose_bias<BIAS_TIME>(be, a);
    if (be->act == ACT_F16) return launch_f16(be, a);
    if (a->dim_qk == 32) return launch_32(be, a);
    if (a->dim_qk == 64) return launch_64(be, a);
    return a->dim_qk == 128 ? launch_128(be, a) : launch_256(be, a);
}
