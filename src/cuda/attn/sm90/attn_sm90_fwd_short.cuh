/* The forward kernel of the attention on Hopper for short sequences, which are bound by latency,
 * and then by bytes.
 *
 * One block a multiprocessor works on a fixed share of the pairs of sequence and head, long ones
 * first (attn_sm90_fwd_short_list.cuh).  A producer warp loads keys and values by TMA as far ahead
 * as a ring in shared memory has room, across the ends of sequences.  The consumer warps each take
 * 16 query rows (mma.m16n8k16, which wastes a quarter of what wgmma wastes at the end of a sequence
 * and on the diagonal) and wait for nothing but TMA.
 *
 * A grain, 16 rows, is loaded by one instruction.  It holds D / 64 parts of 16 rows of 128 bytes (D
 * = 32: of 64 bytes), swizzled. */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_FWD_SHORT_CUH
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_FWD_SHORT_CUH

#include "cuda/attn/sm90/attn_sm90_fwd_short_list.cuh"

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
    CUDA_TRY(CUDA_ALLOW_SHARED((attn_fwd_short_sm90_kernel<T, S>), S::BYTES));
    bool is_sorted = a->n_sequences <= SHORT_SORTED && a->max_len_q > 64;
    CUDA_TRY(sm90a_launch_early(attn_fwd_short_sm90_kernel<T, S>, n_blocks, S::THREADS, S::BYTES,
                                state->stream, *a, maps, (int)cuda_div_up(a->max_len_q, S::ROWS),
                                is_sorted));
    return cuda_launched("the attention");
}

#endif
