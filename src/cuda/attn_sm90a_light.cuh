/* The light forward kernel of the attention on Hopper, for short sequences: what binds there is
 * latency and bytes.
 *
 * A block is one warpgroup and owns 64 query rows of one sequence and head; several blocks a
 * multiprocessor hide each other's waiting.  Its first thread asks the copy engine for queries,
 * keys and values: for the next keys when the scores of these are there, also for those of the next
 * unit, where the block has more than one (a fixed share: blockIdx.x, + gridDim.x, ...).
 *
 * A tile lies in groups of 8 rows; a group holds D / 64 parts of 8 rows of 128 bytes.  So one
 * instruction of the copy engine brings whole rows, and few rows are brought that are not there. */
#ifndef HSTU_CUDA_ATTN_SM90A_LIGHT_CUH
#define HSTU_CUDA_ATTN_SM90A_LIGHT_CUH

#include "cuda/attn_sm90a_rows.cuh"

/* BLOCKS: a multiprocessor's; UNITS: the most that a block can have. */
template <int D_, int BLOCKS_> struct light_shape {
    static constexpr int D = D_, BLOCKS = BLOCKS_, KEYS = 64, ROWS = 64, UNITS = 32;
    static constexpr int COLUMNS = D == 32 ? 32 : PART, BOX = D <= 64 ? 16 : 8;
    static constexpr int EIGHT = 8 * D * 2;       /* bytes of 8 rows */
    static constexpr int TILE = 64 * D * 2;       /* of queries, keys or values */
    static constexpr int BYTES = 3 * TILE + 1024; /* room to align */
    static_assert((BYTES + 1024 + 2304) * BLOCKS <= 228 * 1024, "shared memory");
};

/* A unit, and what all of its rows see. */
typedef struct light_unit {
    fwd_unit u;
    fwd_span full;
} light_unit;

template <typename S> struct light_room {
    uint64_t keys, values; /* they are there; the queries, with the first keys */
    light_unit units[S::UNITS];
    int n_units;
};

/* The next tile of keys to be asked for.  All threads know it, the first one asks. */
typedef struct light_next {
    int unit, j;
    bool is_first; /* of its unit */
} light_next;

/* ---- units ----------------------------------------------------------------------------------- */

template <typename S>
__device__ static inline bool light_describe(const attn_args &a, const tiles_unit &tile,
                                             light_unit *l) {
    fwd_unit *u = &l->u;
    u->s = attn_seq_of(a, tile.b);
    u->head = tile.head;
    u->row0 = tile.row0;
    if (tile.row0 >= u->s.len_q) return false;
    fwd_walk<S>(a, u->s, tile.row0, u);
    l->full = fwd_full(a, u->s, tile.row0);
    return true;
}

/* The units of the block, by its first warp; without those that have no rows. */
template <typename S>
__device__ static inline void light_list(const attn_args &a, const attn_tiles &tiles,
                                         light_room<S> *room) {
    int lane = (int)threadIdx.x;
    light_unit u;
    bool is_there = false;
    if (tiles.way == TILES_ONE) { /* no search: each lane finds a unit of its own */
        int n = (int)blockIdx.x + lane * (int)gridDim.x;
        is_there = n < tiles.n_units && light_describe<S>(a, tiles_find(tiles, n), &u);
    } else {
        tiles_unit tile = tiles_find(tiles, (int)blockIdx.x);
        is_there = lane == 0 && light_describe<S>(a, tile, &u);
    }
    unsigned all = __ballot_sync(0xffffffffu, is_there);
    if (is_there) room->units[__popc(all & ((1u << lane) - 1))] = u;
    if (lane == 0) room->n_units = __popc(all);
    __syncwarp();
}

/* On to the first tile of keys of the next unit that has any. */
template <typename S>
__device__ static inline void light_enter(const light_room<S> *room, light_next &next) {
    for (; next.unit < room->n_units; next.unit++) {
        const fwd_unit *u = &room->units[next.unit].u;
        next.j = fwd_next<S>(u, u->begin);
        if (next.j < u->end) break;
    }
    next.is_first = true;
}
template <typename S>
__device__ static inline void light_advance(const light_room<S> *room, light_next &next) {
    const fwd_unit *u = &room->units[next.unit].u;
    next.j = fwd_next<S>(u, next.j + S::KEYS);
    next.is_first = false;
    if (next.j < u->end) return;
    next.unit++;
    light_enter<S>(room, next);
}

/* ---- asking ---------------------------------------------------------------------------------- */

template <typename S> __device__ static inline int light_boxes(int n, int most) {
    return (min(n, most) + S::BOX - 1) / S::BOX;
}
template <typename S>
__device__ static inline void light_load(char *to, const CUtensorMap *map, uint64_t *barrier,
                                         int head, int y, int n_boxes) {
#pragma unroll 1
    for (int i = 0; i < n_boxes; i++)
        tile_load_3d(to + i * (S::BOX / 8) * S::EIGHT, map, barrier, 0, y + i * S::BOX,
                     head * (S::D / S::COLUMNS));
}

/* Keys, and before the first ones the queries. */
template <typename S>
__device__ static inline void light_ask_keys(const fwd_maps &maps, light_room<S> *room,
                                             const light_next &next, char *queries, char *keys) {
    const fwd_unit *u = &room->units[next.unit].u;
    int n_keys = light_boxes<S>(u->s.len_k - next.j, S::KEYS);
    int n_queries = next.is_first ? light_boxes<S>(u->s.len_q - u->row0, S::ROWS) : 0;
    barrier_expect(&room->keys, (uint32_t)((n_keys + n_queries) * (S::BOX / 8) * S::EIGHT));
    light_load<S>(queries, &maps.q, &room->keys, u->head, u->s.row_q + u->row0, n_queries);
    light_load<S>(keys, &maps.k, &room->keys, u->head, u->s.row_k + next.j, n_keys);
}
template <typename S>
__device__ static inline void light_ask_values(const fwd_maps &maps, light_room<S> *room,
                                               const light_next &next, char *values) {
    const fwd_unit *u = &room->units[next.unit].u;
    int n = light_boxes<S>(u->s.len_k - next.j, S::KEYS);
    barrier_expect(&room->values, (uint32_t)(n * (S::BOX / 8) * S::EIGHT));
    light_load<S>(values, &maps.v, &room->values, u->head, u->s.row_k + next.j, n);
}

/* ---- products -------------------------------------------------------------------------------- */

template <typename S>
__device__ static inline uint64_t light_describe_tile(const char *tile, uint32_t next) {
    return S::D == 32 ? tile_describe_64(tile) : tile_describe_rows(tile, next, S::EIGHT);
}

/* x (64, KEYS) = queries times keys. */
template <typename T, typename S>
__device__ static inline void light_scores(float (&x)[S::KEYS / 2], const char *queries,
                                           const char *keys) {
    uint64_t a = light_describe_tile<S>(queries, 16), b = light_describe_tile<S>(keys, 16);
#pragma unroll
    for (int k = 0; k < S::D / 16; k++)
        wgmma_ss<T, S::KEYS>(x, tile_move(a, k / 4 * 1024 + k % 4 * 32),
                             tile_move(b, k / 4 * 1024 + k % 4 * 32), k > 0);
}

/* out (64, D) += weights times values. */
template <typename T, typename S>
__device__ static inline void
light_add(float (&out)[S::D / 2], const uint32_t (&left)[S::KEYS / 16][4], const char *values) {
    uint64_t b = light_describe_tile<S>(values, 1024);
#pragma unroll
    for (int k = 0; k < S::KEYS / 16; k++)
        wgmma_rs<T, S::D>(out, left[k], tile_move(b, k * 2 * S::EIGHT), 1);
}

/* The first of the thread's two rows; the other is 8 further on. */
__device__ static inline int light_row(const light_unit *l) {
    return l->u.row0 + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Barriers, units and the first tiles.  Values that no box brings meet weights of 0, but must be
 * numbers: the room of the values is cleared before they are asked for. */
template <typename S>
__device__ static inline light_next light_begin(const attn_args &a, const attn_tiles &tiles,
                                                const fwd_maps &maps, light_room<S> *room,
                                                char *queries, char *keys, char *values) {
    light_next next = {};
    bool asks = threadIdx.x == 0;
    if (threadIdx.x < 32) {
        if (asks) {
            tile_prefetch_map(&maps.q);
            tile_prefetch_map(&maps.k);
            tile_prefetch_map(&maps.v);
            barrier_init(&room->keys, 1);
            barrier_init(&room->values, 1);
            barrier_init_done();
        }
        light_list<S>(a, tiles, room);
        light_enter<S>(room, next);
        if (asks && next.unit < room->n_units) light_ask_keys<S>(maps, room, next, queries, keys);
    } else {
        for (int i = (int)threadIdx.x - 32; i < S::TILE / 16; i += GROUP - 32)
            ((uint4 *)values)[i] = make_uint4(0, 0, 0, 0);
        shared_fence();
    }
    __syncthreads();
    if (threadIdx.x >= 32) light_enter<S>(room, next);
    if (next.unit < room->n_units) {
        if (asks) light_ask_values<S>(maps, room, next, values);
        light_advance<S>(room, next);
    }
    return next;
}

template <typename T, typename S>
__global__ void __launch_bounds__(GROUP, S::BLOCKS)
    light_kernel(const __grid_constant__ attn_args a, const __grid_constant__ attn_tiles tiles,
                 const __grid_constant__ fwd_maps maps) {
    extern __shared__ char shared[];
    __shared__ light_room<S> room;
    char *queries = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *keys = queries + S::TILE, *values = keys + S::TILE;
    light_next next = light_begin<S>(a, tiles, maps, &room, queries, keys, values);
    uint32_t parity = 0;
    int n_units = room.n_units;
    float half = 0.5f * a.alpha;
#pragma unroll 1
    for (int i = 0; i < n_units; i++) {
        const light_unit *l = &room.units[i];
        int j = fwd_next<S>(&l->u, l->u.begin);
        float out[S::D / 2];
#pragma unroll
        for (int e = 0; e < S::D / 2; e++)
            out[e] = 0;
        while (j < l->u.end) {
            float x[S::KEYS / 2];
            uint32_t left[S::KEYS / 16][4];
            barrier_wait(&room.keys, parity);
            wgmma_fence();
            light_scores<T, S>(x, queries, keys);
            wgmma_commit();
            wgmma_wait<0>();
            bool is_more = next.unit < n_units; /* room that is done with is filled again */
            if (is_more) __syncthreads();
            if (is_more && threadIdx.x == 0) light_ask_keys<S>(maps, &room, next, queries, keys);
            if (j < l->full.begin || j + S::KEYS > l->full.end)
                fwd_mask<S::KEYS>(a, l->u.s, light_row(l), j, x);
#pragma unroll
            for (int e = 0; e < S::KEYS / 2; e++)
                x[e] = fwd_silu(half, x[e]);
            pack_left<T, S::KEYS>(left, x);
            barrier_wait(&room.values, parity);
            wgmma_fence();
            light_add<T, S>(out, left, values);
            wgmma_commit();
            wgmma_wait<0>();
            if (is_more) {
                __syncthreads();
                if (threadIdx.x == 0) light_ask_values<S>(maps, &room, next, values);
                light_advance<S>(&room, next);
            }
            parity ^= 1;
            j = fwd_next<S>(&l->u, j + S::KEYS);
        }
        T *to = (T *)a.out + (int64_t)l->u.s.row_q * a.stride_out + l->u.head * S::D;
        fwd_store<T, S::D>(to, a.stride_out, light_row(l), l->u.s.len_q, a.scale, out);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

template <typename S>
static status light_map(CUtensorMap *map, const backend *be, const attn_args *a, const void *rows,
                        int64_t n_rows, int64_t stride) {
    return sm90a_map_heads(map, be->act, rows, n_rows, (int64_t)a->n_heads * S::D, stride,
                           S::COLUMNS, S::BOX, S::D);
}

template <typename T, typename S> status light_launch(backend *be, const attn_args *a) {
    cuda_state *state = cuda_of(be);
    fwd_maps maps;
    attn_tiles tiles = tiles_make(a, a->offsets_q, a->max_len_q, a->n_rows_q, S::ROWS, a->max_len_k,
                                  2 * S::D * (int)sizeof(T));
    if (tiles.n_units == 0) return OK;
    TRY(light_map<S>(&maps.q, be, a, a->q, a->n_rows_q, a->stride_q));
    TRY(light_map<S>(&maps.k, be, a, a->k, a->n_rows_k, a->stride_k));
    TRY(light_map<S>(&maps.v, be, a, a->v, a->n_rows_k, a->stride_v));
    CUDA_TRY(CUDA_ALLOW_SHARED((light_kernel<T, S>), S::BYTES));
    CUDA_TRY(cudaFuncSetAttribute((light_kernel<T, S>),
                                  cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared));
    int64_t n_blocks = tiles.n_units;
    if (tiles.way == TILES_ONE) {
        /* Where a unit is one tile of keys, to start a block costs more than to work on it. */
        int64_t least = cuda_div_up(n_blocks, S::UNITS);
        int64_t room = (int64_t)S::BLOCKS * state->n_multiprocessors;
        n_blocks = n_blocks < room ? n_blocks : room > least ? room : least;
    }
    light_kernel<T, S><<<(unsigned)n_blocks, GROUP, S::BYTES, state->stream>>>(*a, tiles, maps);
    return cuda_launched("the attention");
}

#endif
