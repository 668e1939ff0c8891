/* The persistent forward kernel of the attention on Hopper, for any tile sizes.
 *
 * A block owns GROUPS x 64 query rows of one sequence and head at a time and goes from tile to tile
 * (attn_tiles.cuh).  A scheduler warp finds the tiles, a producer warp loads queries, keys and
 * values by TMA; both run ahead of the consumer warpgroups, also into the next tile.  There is no
 * softmax, so nothing is kept from one tile of keys to the next but the sum.
 * - One large block a multiprocessor (piped): each warpgroup computes the scores of the next keys
 *   while the weights of the current keys are multiplied by the values, and SiLU overlaps with both
 * products.  Bound by the tensor cores or, at small head dimensions, by SiLU (one tanh a score, 16
 * a clock).
 * - Several small blocks a multiprocessor (plain), which hide each other's latency: for shorter
 *   sequences, which are bound by latency and bytes, and for every bias (attn_sm90_bias.cuh). */
#pragma once

#include "cuda/attn/common/attn_tiles.cuh"
#include "cuda/attn/sm90/attn_sm90_bias.cuh"

/* One tile of work for the consumer warps; s.b < 0 marks the end.  Its rows see no keys outside
 * begin .. end - 1, and none in hole .. hole_end - 1; all of them see the keys in `full` (set if
 * one warpgroup has all rows). */
typedef struct fwd_unit {
    attn_sequence s;
    int head, row0;
    int begin, end, hole, hole_end;
    attn_span full;
    /* Of kernels that read pages (attn_sm90_paged.cuh): keys in pages, columns that hold no key
     * after them, the row of k and v that column 0 would have, and where partial sums go (-1: the
     * unit has all its keys). */
    int n_paged, pad, row_new, part;
} fwd_unit;

typedef struct fwd_maps {
    CUtensorMap q, k, v;
    CUtensorMap dout; /* of kernels that have it */
    bias_source bias; /* likewise */
} fwd_maps;

template <typename S>
__device__ static inline void fwd_walk(const attn_args &a, const attn_sequence &s, int row0,
                                       fwd_unit *u) {
    attn_span seen = attn_keys_seen(&a, &s, row0, S::ROWS), hole = attn_keys_hole(&a, &s, row0);
    u->begin = seen.begin / S::KEYS * S::KEYS;
    u->end = seen.end;
    u->hole = hole.begin;
    u->hole_end = hole.end;
}

/* The first tile of keys from j on that is not within the hole. */
template <typename S> __device__ static inline int fwd_next(const fwd_unit *u, int j) {
    while (j >= u->hole && j + S::KEYS <= u->hole_end)
        j += S::KEYS;
    return j;
}

/* A score's weight: silu(2 half x) = half x (1 + tanh(half x)).  The packed 16-bit forms of tanh
 * are no faster: the special function unit gives the same 16 results a clock. */
__device__ static inline float fwd_silu(float half, float x) {
    float h = half * x;
    return fmaf(h, tanh_approx(h), h);
}

/* The bits of a thread's columns, from `column` on in N tiles of 8, that a row sees. */
template <int N>
__device__ static inline uint32_t fwd_bits(const attn_args &a, const attn_sequence &s, int row,
                                           int column) {
    attn_row_mask m = attn_row_spans(&a, &s, row);
    uint32_t seen = attn_bits_between<N>(m.first0 - column, m.end0 - column);
    seen |= attn_bits_between<N>(m.first1 - column, m.end1 - column);
    if (attn_mask_has_more(&a)) seen |= attn_more_bits<N>(a, s, row, column);
    return seen;
}

/* Sets scores of pairs that are not visible to 0, whose weight is 0.  Of each 8 columns a thread
 * has 2 (thread % 4) and the next one; its rows are row and row + 8.  The causal mask, by far the
 * most frequent, has a path of its own. */
template <int KEYS>
__device__ static inline void fwd_mask(const attn_args &a, const attn_sequence &s, int row, int j,
                                       float (&x)[KEYS / 2]) {
    constexpr int N = KEYS / 8;
    static_assert(N <= 16, "a bit for each column");
    int column = j + 2 * ((int)threadIdx.x % 4);
    uint32_t seen[2];
    if (attn_mask_is_causal(&a) && s.shift >= 0) {
        /* Rows after the last see nothing: the gradient of a bias sums over all rows. */
        int end = row + s.shift + 1;
        int end0 = row < s.len_q ? min(end, s.len_k) : 0;
        int end1 = row + 8 < s.len_q ? min(end + 8, s.len_k) : 0;
        seen[0] = attn_bits_below<N>(end0 - column);
        seen[1] = attn_bits_below<N>(end1 - column);
    } else {
        uint64_t both = 0; /* a loop, since few tiles come here: code for one row */
#pragma unroll 1
        for (int side = 0; side < 2; side++)
            both |= (uint64_t)fwd_bits<N>(a, s, row + 8 * side, column) << 32 * side;
        seen[0] = (uint32_t)both;
        seen[1] = (uint32_t)(both >> 32);
    }
#pragma unroll
    for (int e = 0; e < KEYS / 2; e++)
        if ((seen[e / 2 % 2] >> (e / 4 * 2 + e % 2) & 1) == 0) x[e] = 0;
}

/* Sets the scores of columns from `end` on to 0; columns as in fwd_mask, from 0 on. */
template <int KEYS> __device__ static inline void fwd_cut(int end, float (&x)[KEYS / 2]) {
    end -= 2 * ((int)threadIdx.x % 4);
#pragma unroll
    for (int e = 0; e < KEYS / 2; e++)
        if (e / 4 * 8 + e % 2 >= end) x[e] = 0;
}

/* Stores the outputs of a warpgroup, 16 bytes a thread where the addresses allow it. */
template <typename T, int D>
__device__ static inline void fwd_store(T *to, int64_t stride, int row, int n, float scale,
                                        const float (&d)[D / 2]) {
    if (((uintptr_t)to | (uintptr_t)(stride * sizeof(T))) % 16 != 0)
        store_rows<T, D>(to, stride, row, n, scale, d);
    else
        store_wide<T, D>(to, stride, row, n, scale, d);
}

/* Registers of a thread.  A block is launched with AT_START (the multiprocessor has 64 Ki, in
 * multiples of 8 a thread); setmaxnreg then moves most of them to the consumer warpgroups.  MORE:
 * for a producer warp that also loads the times of 128 rows. */
template <int GROUPS, int BLOCKS, int MORE = 0> struct fwd_registers {
    static constexpr int AT_START = 65536 / (GROUP * (GROUPS + 1) * BLOCKS) / 8 * 8;
    static constexpr int LOWERED = (GROUPS <= 2 && BLOCKS < 4 ? 40 : 32) + MORE;
    static constexpr int RAISED = (AT_START * (GROUPS + 1) - LOWERED) / GROUPS / 8 * 8;
};

/* The tile sizes of one kernel; a struct derived from this one names D, the head dimension, and
 * overrides some of these. */
struct fwd_sizes {
    static constexpr int GROUPS = 1;  /* consumer warpgroups, each with 64 query rows */
    static constexpr int KEYS = 64;   /* keys and values of a pipeline stage */
    static constexpr int STAGES = 2;  /* pipeline stages of keys and values */
    static constexpr int BUFFERS = 2; /* tiles of queries: the next is loaded ahead */
    static constexpr int BOX = 0;     /* rows of one TMA load; fewer waste less at the end of a
                                         short sequence; 0: the whole tile */
    static constexpr int BLOCKS = 1;  /* of a multiprocessor */
    static constexpr bool IS_PIPED = false; /* the next scores overlap with this stage's product */
    static constexpr bool IS_PAGED = false; /* some keys are in pages (attn_sm90_paged.cuh) */
    static constexpr attn_bias BIAS = BIAS_NONE;
    static constexpr int OWNS = 1; /* 2: loads dout too (attn_sm90_bwd_dq_bias.cu) */
};

/* Constants derived from the sizes; D is the head dimension. */
template <typename SIZES> struct fwd_shape {
    static constexpr attn_bias BIAS = SIZES::BIAS;
    static constexpr int OWNS = SIZES::OWNS;
    static constexpr int D = SIZES::D, GROUPS = SIZES::GROUPS, KEYS = SIZES::KEYS;
    static constexpr int STAGES = SIZES::STAGES, BUFFERS = SIZES::BUFFERS, BLOCKS = SIZES::BLOCKS;
    static constexpr bool IS_PIPED = SIZES::IS_PIPED, IS_PAGED = SIZES::IS_PAGED;
    /* A unit is announced when all loads of queries of the previous unit, n, are issued.  At that
     * time a warp may still be storing unit n - BUFFERS. */
    static constexpr int UNITS = BUFFERS + 2;
    /* The next unit is dequeued when this many columns of the current one are left to load.  Late,
     * because a dequeued unit cannot move to another block: a version that took five units ahead
     * needed 97 us instead of 80 at 1024 rows (D = 128, eight units a block).  Two tiles hide the
     * latency of the counter. */
    static constexpr int AHEAD = 2 * KEYS;
    static constexpr int ROWS = 64 * GROUPS, WARPS = 4 * GROUPS, THREADS = GROUP * (GROUPS + 1);
    static constexpr int COLUMNS = D == 32 ? 32 : PART; /* of a part of a tile */
    static constexpr int BOX_Q = SIZES::BOX > 0 ? SIZES::BOX : 64;
    static constexpr int BOX_K = SIZES::BOX > 0 ? SIZES::BOX : KEYS;
    static constexpr int TILE = KEYS * D * 2, QUERIES = 64 * D * 2; /* a warpgroup's */
    static constexpr int TABLES = BIAS == BIAS_TABLE ? STAGES * GROUPS * TABLE_TILE : 0;
    static constexpr int BYTES =
        BUFFERS * GROUPS * OWNS * QUERIES + 2 * STAGES * TILE + TABLES + 1024; /* room to align */
    static constexpr int ROOM = BIAS == BIAS_TIME ? 4096 : 512;                /* of fwd_room */
    static_assert((BYTES + 1024 + ROOM) * BLOCKS <= 228 * 1024,
                  "shared memory of a multiprocessor");
    static_assert(BIAS == BIAS_NONE || (KEYS == 64 && !IS_PIPED), "what a bias is made for");
    static_assert(KEYS % BOX_K == 0 && 64 % BOX_Q == 0 && BOX_K % 8 == 0, "whole boxes");
};

/* Shared memory of the position and time bias. */
template <typename S, attn_bias BIAS> struct fwd_times {};
template <typename S> struct fwd_times<S, BIAS_TIME> {
    time_tables tables;
    time_tile<S::ROWS, S::KEYS> tiles[S::STAGES];
};

template <typename S> struct fwd_room {
    uint64_t queries[S::BUFFERS][S::GROUPS]; /* with the unit they belong to */
    uint64_t queries_free[S::BUFFERS][S::GROUPS];
    uint64_t keys[S::STAGES], values[S::STAGES];           /* they are there */
    uint64_t keys_free[S::STAGES], values_free[S::STAGES]; /* all warps are done with them */
    uint64_t bias[S::STAGES];                              /* it is there; free with the values */
    uint64_t wanted, told;                                 /* the next unit */
    fwd_unit units[S::UNITS];
    fwd_times<S, S::BIAS> times;
};

/* A stage of a ring of N stages, and the phase parity of its mbarriers. */
template <int N> struct fwd_ring {
    int at;
    uint32_t parity;
};
template <int N> __device__ static inline void advance(fwd_ring<N> &r) {
    if (++r.at < N) return;
    r.at = 0;
    r.parity ^= 1;
}

/* One thread issues the loads; with a time bias the whole warp loads the times. */
template <typename S> __device__ static inline bool fwd_asks() {
    return S::BIAS != BIAS_TIME || threadIdx.x % 32 == 0;
}

/* Loads the first n rows of a tile of R rows, from row y on, in whole boxes; arrives once at the
 * barrier. */
template <int D, int COLUMNS, int R, int BOX>
__device__ static inline void fwd_load(char *to, const CUtensorMap *map, uint64_t *barrier, int x,
                                       int y, int n) {
    int n_boxes = (max(min(n, R), 0) + BOX - 1) / BOX;
    barrier_expect(barrier, (uint32_t)(n_boxes * BOX * D * 2));
    for (int r = 0; r < n_boxes; r++) {
#pragma unroll
        for (int c = 0; c < D / COLUMNS; c++)
            tile_load(to + (c * R + r * BOX) * COLUMNS * 2, map, barrier, x + c * COLUMNS,
                      y + r * BOX);
    }
}

/* Progress of the producer warp or of a warpgroup: the unit of the block, and the pipeline stage of
 * keys and values. */
template <typename S> struct fwd_place {
    unsigned unit;
    fwd_ring<S::STAGES> keys;
};
template <typename S> __device__ static inline fwd_ring<S::BUFFERS> fwd_buffer(unsigned unit) {
    return {(int)(unit % S::BUFFERS), unit / S::BUFFERS % 2};
}

/* Queries of warpgroups group .. end - 1. */
template <typename S>
__device__ static inline void fwd_ask_queries(const fwd_maps &maps, const fwd_unit *u,
                                              fwd_room<S> *room, char *queries,
                                              const fwd_ring<S::BUFFERS> &r, int group, int end) {
    for (; group < end; group++) {
        int row = u->row0 + group * 64;
        char *to = queries + (r.at * S::GROUPS + group) * S::OWNS * S::QUERIES;
        barrier_wait(&room->queries_free[r.at][group], r.parity ^ 1);
        if (!fwd_asks<S>()) continue;
        fwd_load<S::D, S::COLUMNS, 64, S::BOX_Q>(to, &maps.q, &room->queries[r.at][group],
                                                 u->head * S::D, u->s.row_q + row,
                                                 u->s.len_q - row);
        if constexpr (S::OWNS > 1)
            fwd_load<S::D, S::COLUMNS, 64, S::BOX_Q>(to + S::QUERIES, &maps.dout,
                                                     &room->queries[r.at][group], u->head * S::D,
                                                     u->s.row_q + row, u->s.len_q - row);
    }
}

/* The bias of keys from j on: the loads that a lane can issue before a stage is free ... */
template <typename S>
__device__ static inline void fwd_fetch_bias(const attn_args &a, const fwd_unit *u, int j,
                                             time_share<S::ROWS, S::KEYS> &share) {
    if constexpr (S::BIAS == BIAS_TIME)
        time_fetch(a, a.key_time + u->s.row_k, j, u->s.len_k,
                   a.bias_len - 1 + j - (u->row0 + u->s.shift + S::ROWS - 1), 1, share);
}

/* ... and all of it. */
template <typename S>
__device__ static inline void fwd_ask_bias(const attn_args &a, const fwd_maps &maps,
                                           const fwd_unit *u, int j, int at, int64_t base,
                                           const time_share<S::ROWS, S::KEYS> &share,
                                           fwd_room<S> *room, char *tables) {
    if constexpr (S::BIAS == BIAS_TIME)
        time_put(share, base, &room->times.tiles[at], &room->bias[at]);
    if constexpr (S::BIAS == BIAS_TABLE) {
        int n_boxes = 0;
        for (int group = 0; group < S::GROUPS; group++)
            n_boxes += table_boxes(u->s.len_q - u->row0 - group * 64);
        barrier_expect(&room->bias[at], (uint32_t)(n_boxes * TABLE_BOX * PART_BYTES));
        for (int group = 0; group < S::GROUPS; group++)
            table_load(tables + (at * S::GROUPS + group) * TABLE_TILE, &maps.bias.table,
                       &room->bias[at], a, u->s, u->head, u->row0 + group * 64, j);
    }
}

/* Loads one unit: keys and values, tile by tile.  The first warpgroup sees the fewest keys and is
 * the first to finish the previous unit, so its queries are loaded before the first keys, the
 * queries of the other warpgroups after them. */
template <typename S>
__device__ static inline void fwd_ask_unit(const attn_args &a, const fwd_maps &maps,
                                           const fwd_unit *u, fwd_room<S> *room, char *queries,
                                           char *keys, fwd_place<S> &p) {
    constexpr int D = S::D, COLUMNS = S::COLUMNS;
    int x = u->head * D, n_asked = 1;
    bool is_wanted = false, asks = fwd_asks<S>(); /* is_wanted: the next unit */
    char *values = keys + S::STAGES * S::TILE;
    int64_t base = S::BIAS == BIAS_TIME ? time_base(a, u->s) : 0;
    time_share<S::ROWS, S::KEYS> share;
    fwd_ring<S::BUFFERS> buffer = fwd_buffer<S>(p.unit);
    fwd_ask_queries<S>(maps, u, room, queries, buffer, 0, 1);
    for (int j = fwd_next<S>(u, u->begin); j < u->end; j = fwd_next<S>(u, j + S::KEYS)) {
        int at = p.keys.at;
        fwd_fetch_bias<S>(a, u, j, share);
        barrier_wait(&room->keys_free[at], p.keys.parity ^ 1);
        if (asks)
            fwd_load<D, COLUMNS, S::KEYS, S::BOX_K>(keys + at * S::TILE, &maps.k, &room->keys[at],
                                                    x, u->s.row_k + j, u->s.len_k - j);
        fwd_ask_queries<S>(maps, u, room, queries, buffer, n_asked, S::GROUPS);
        n_asked = S::GROUPS;
        if (!is_wanted && u->end - j <= S::AHEAD) {
            if (asks) barrier_arrive(&room->wanted);
            is_wanted = true;
        }
        barrier_wait(&room->values_free[at], p.keys.parity ^ 1);
        fwd_ask_bias<S>(a, maps, u, j, at, base, share, room, values + S::STAGES * S::TILE);
        if (asks)
            fwd_load<D, COLUMNS, S::KEYS, S::BOX_K>(values + at * S::TILE, &maps.v,
                                                    &room->values[at], x, u->s.row_k + j,
                                                    u->s.len_k - j);
        advance(p.keys);
    }
    fwd_ask_queries<S>(maps, u, room, queries, buffer, n_asked, S::GROUPS);
    if (!is_wanted && asks) barrier_arrive(&room->wanted);
}

/* All units of the block. */
template <typename S>
__device__ static void fwd_ask(const attn_args &a, const fwd_maps &maps, fwd_room<S> *room,
                               char *queries, char *keys) {
    fwd_place<S> p = {};
    tile_prefetch_map(&maps.q);
    tile_prefetch_map(&maps.k);
    tile_prefetch_map(&maps.v);
    for (;; p.unit++) {
        const fwd_unit *u = &room->units[p.unit % S::UNITS];
        barrier_wait(&room->told, p.unit % 2);
        if (u->s.b < 0) break;
        fwd_ask_unit<S>(a, maps, u, room, queries, keys, p);
    }
    fwd_ring<S::BUFFERS> buffer = fwd_buffer<S>(p.unit);
    for (int group = 0; group < S::GROUPS; group++) {
        barrier_wait(&room->queries_free[buffer.at][group], buffer.parity ^ 1);
        for (int i = 0; i < S::OWNS && fwd_asks<S>(); i++)
            barrier_arrive(&room->queries[buffer.at][group]);
    }
}

/* Announces all units of the block, each when it is needed, and then the end. */
template <typename S>
__device__ static void fwd_find(const attn_args &a, const attn_tiles &tiles, fwd_room<S> *room) {
    int n_units = tiles_count(tiles), n = (int)blockIdx.x, lane = (int)threadIdx.x % 32;
    bool is_shared = n_units > (int)gridDim.x;
    unsigned n_told = 0;
    while (n < n_units) {
        tiles_unit tile = tiles_find(tiles, n);
        attn_sequence s = attn_sequence_of(&a, tile.b);
        if (tile.row0 < s.len_q) {
            if (lane == 0) {
                fwd_unit *u = &room->units[n_told % S::UNITS];
                u->s = s;
                u->head = tile.head;
                u->row0 = tile.row0;
                fwd_walk<S>(a, s, tile.row0, u);
                if constexpr (S::GROUPS == 1) u->full = attn_keys_full(&a, &s, tile.row0, S::ROWS);
                barrier_arrive(&room->told);
            }
            barrier_wait(&room->wanted, n_told++ % 2);
        }
        n = n_units;
        if (is_shared && lane == 0) n = tiles_take(tiles);
        n = __shfl_sync(0xffffffffu, n, 0);
    }
    if (lane != 0) return;
    room->units[n_told % S::UNITS].s.b = -1;
    barrier_arrive(&room->told);
    if (is_shared) tiles_done(tiles);
}

/* out (64, D) += 16 columns of weights times 16 rows of values, step k.  An instruction may not
 * name more registers than the block is launched with, so several do the work of a wide one. */
template <typename T, typename S>
__device__ static inline void fwd_add(float (&out)[S::D / 2], const uint32_t (&left)[4],
                                      uint64_t values, int k) {
    constexpr int AT_START = fwd_registers<S::GROUPS, S::BLOCKS>::AT_START;
    constexpr int MOST = AT_START >= 160 ? 256 : AT_START >= 96 ? 128 : 64;
    constexpr int N = S::D < MOST ? S::D : MOST;
#pragma unroll
    for (int n = 0; n < S::D; n += N)
        wgmma_rs<T, N>(*(float(*)[N / 2])(out + n / 2), left,
                       tile_move(values, n * S::KEYS * 2 + k * 16 * S::COLUMNS * 2), 1);
}
template <typename S> __device__ static inline uint64_t fwd_describe_values(const char *values) {
    return S::D == 32 ? tile_describe_64(values) : tile_describe(values, S::KEYS * PART_BYTES);
}

/* What a warpgroup knows of its unit. */
template <typename S> struct fwd_own {
    const fwd_unit *unit;
    uint64_t *queries_free;
    const char *queries;
    int row; /* of the thread; the other is row + 8 */
    attn_span full;
    int end; /* of the columns that its rows may see */
    float half;
    time_rows times; /* with that bias */
};

/* Adds the bias of keys from j on, which are in stage r; buckets: see time_add. */
template <typename S>
__device__ static inline void fwd_add_bias(const attn_args &a, const fwd_own<S> &own, int j,
                                           fwd_room<S> *room, const char *tables,
                                           const fwd_ring<S::STAGES> &r, float (&x)[S::KEYS / 2],
                                           uint32_t (&buckets)[S::KEYS / 8]) {
    const fwd_unit *u = own.unit;
    int row = own.row - u->row0;
    if constexpr (S::BIAS != BIAS_NONE) barrier_wait(&room->bias[r.at], r.parity);
    if constexpr (S::BIAS == BIAS_TABLE)
        table_add<false>(tables + (r.at * S::GROUPS + row / 64) * TABLE_TILE, x);
    if constexpr (S::BIAS == BIAS_TIME) {
        const time_tile<S::ROWS, S::KEYS> *tile = &room->times.tiles[r.at];
        if (own.times.is_wide || tile->is_wide)
            time_add_wide(&room->times.tables, tile, a.query_time + u->s.row_q, u->row0, u->s.len_q,
                          a.key_time + u->s.row_k, j, u->s.len_k, row, x, buckets);
        else
            time_add(&room->times.tables, tile, own.times, row, x, buckets);
    }
}

template <typename S>
__device__ static inline void fwd_mask_tile(const attn_args &a, const fwd_own<S> &own, int j,
                                            float (&x)[S::KEYS / 2]) {
    if constexpr (S::IS_PAGED) { /* the column's key */
        const fwd_unit *u = own.unit;
        if (j >= u->n_paged + u->pad)
            j -= u->pad;
        else if (j + S::KEYS > u->n_paged)
            fwd_cut<S::KEYS>(u->n_paged - j, x);
    }
    if (j < own.full.begin || j + S::KEYS > own.full.end)
        fwd_mask<S::KEYS>(a, own.unit->s, own.row, j, x);
}

/* Sums a unit over its tiles of keys from j on and returns the first tile after them.  Other
 * blocks compute while this warpgroup waits. */
template <typename T, typename S>
__device__ static inline int fwd_sum_plain(const attn_args &a, const fwd_own<S> &own, int j,
                                           fwd_room<S> *room, const char *keys,
                                           fwd_ring<S::STAGES> &r, float (&out)[S::D / 2]) {
    const char *values = keys + S::STAGES * S::TILE;
    while (j < own.end) {
        float x[S::KEYS / 2];
        int next = fwd_next<S>(own.unit, j + S::KEYS);
        barrier_wait(&room->keys[r.at], r.parity);
        wgmma_fence();
        product_of_rows<T, S::D, 64, S::KEYS>(x, own.queries, keys + r.at * S::TILE);
        wgmma_commit();
        wgmma_wait<0>();
        release(&room->keys_free[r.at]);
        if (next >= own.end) release(own.queries_free);
        uint32_t buckets[S::KEYS / 8];
        fwd_add_bias<S>(a, own, j, room, values + S::STAGES * S::TILE, r, x, buckets);
        fwd_mask_tile<S>(a, own, j, x);
        uint32_t left[S::KEYS / 16][4];
#pragma unroll
        for (int e = 0; e < S::KEYS / 2; e += 2)
            left[e / 8][e / 2 % 4] =
                cvt_pack<T>(fwd_silu(own.half, x[e]), fwd_silu(own.half, x[e + 1]));
        barrier_wait(&room->values[r.at], r.parity);
        wgmma_fence();
        uint64_t b = fwd_describe_values<S>(values + r.at * S::TILE);
#pragma unroll
        for (int k = 0; k < S::KEYS / 16; k++)
            fwd_add<T, S>(out, left[k], b, k);
        wgmma_commit();
        wgmma_wait<0>();
        release(&room->values_free[r.at]);
        advance(r);
        j = next;
    }
    return j;
}

/* Like the function above, pipelined: the scores of the next keys are computed while the current
 * weights are multiplied by the values. */
template <typename T, typename S>
__device__ static inline int fwd_sum_piped(const attn_args &a, const fwd_own<S> &own, int j,
                                           fwd_room<S> *room, const char *keys,
                                           fwd_ring<S::STAGES> &r, float (&out)[S::D / 2]) {
    constexpr int KEYS = S::KEYS;
    const char *values = keys + S::STAGES * S::TILE;
    float x[KEYS / 2];
    uint32_t left[KEYS / 16][4];
    barrier_wait(&room->keys[r.at], r.parity);
    wgmma_fence();
    product_of_rows<T, S::D, 64, S::KEYS>(x, own.queries, keys + r.at * S::TILE);
    wgmma_commit();
    wgmma_wait<0>();
    release(&room->keys_free[r.at]);
    int next = fwd_next<S>(own.unit, j + KEYS);
    if (next >= own.end) release(own.queries_free);
    fwd_mask_tile<S>(a, own, j, x);
#pragma unroll
    for (int e = 0; e < KEYS / 2; e++)
        x[e] = fwd_silu(own.half, x[e]);
    pack_left<T, KEYS>(left, x);
    while (next < own.end) {
        j = next;
        fwd_ring<S::STAGES> now = r;
        advance(r);
        barrier_wait(&room->keys[r.at], r.parity);
        wgmma_fence();
        product_of_rows<T, S::D, 64, S::KEYS>(x, own.queries, keys + r.at * S::TILE);
        wgmma_commit();
        barrier_wait(&room->values[now.at], now.parity);
        wgmma_fence();
        uint64_t b = fwd_describe_values<S>(values + now.at * S::TILE);
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            fwd_add<T, S>(out, left[k], b, k);
        wgmma_commit();
        next = fwd_next<S>(own.unit, j + KEYS);
        wgmma_wait<1>();
        release(&room->keys_free[r.at]);
        if (next >= own.end) release(own.queries_free);
        fwd_mask_tile<S>(a, own, j, x);
#pragma unroll
        for (int e = 0; e < KEYS / 2; e++)
            x[e] = fwd_silu(own.half, x[e]);
        /* The values have arrived, so this does not wait.  Its branch keeps the compiler from
         * moving the wait for the product before the weights, which are to be computed while the
         * product runs. */
        barrier_wait(&room->values[now.at], now.parity);
        wgmma_wait<0>();
        release(&room->values_free[now.at]);
        pack_left<T, KEYS>(left, x);
    }
    barrier_wait(&room->values[r.at], r.parity);
    wgmma_fence();
    uint64_t b = fwd_describe_values<S>(values + r.at * S::TILE);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        fwd_add<T, S>(out, left[k], b, k);
    wgmma_commit();
    wgmma_wait<0>();
    release(&room->values_free[r.at]);
    advance(r);
    return next;
}

/* Keys that any of a warpgroup's 64 rows from `first` on may see, and keys that all of them see.
 * Where one warpgroup has all rows of the unit, the scheduler warp, which runs ahead, has found
 * both. */
template <typename S>
__device__ static inline attn_span fwd_seen(const attn_args &a, const fwd_unit *u, int first) {
    attn_span unit = {u->begin, u->end};
    if constexpr (S::GROUPS == 1) return unit;
    return attn_keys_seen(&a, &u->s, first, 64);
}
template <typename S>
__device__ static inline attn_span fwd_full(const attn_args &a, const fwd_unit *u, int first) {
    if constexpr (S::GROUPS == 1) return u->full;
    return attn_keys_full(&a, &u->s, first, 64);
}

/* Skips tiles of keys that the warpgroup does not see, from j to the first one that extends beyond
 * column begin.  It still waits for their loads: otherwise it could mistake the next phase of their
 * barriers for this one. */
template <typename S>
__device__ static inline int fwd_skip(const fwd_unit *u, int j, int begin, fwd_room<S> *room,
                                      fwd_ring<S::STAGES> &r) {
    while (j < u->end && j + S::KEYS <= begin) {
        barrier_wait(&room->keys[r.at], r.parity);
        release(&room->keys_free[r.at]);
        barrier_wait(&room->values[r.at], r.parity);
        if constexpr (S::BIAS != BIAS_NONE) barrier_wait(&room->bias[r.at], r.parity);
        release(&room->values_free[r.at]);
        __syncwarp();
        advance(r);
        j = fwd_next<S>(u, j + S::KEYS);
    }
    return j;
}

template <typename T, typename S>
__device__ static void fwd_compute(const attn_args &a, fwd_room<S> *room, const char *queries,
                                   const char *keys) {
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0); /* known to be uniform */
    fwd_place<S> p = {};
    fwd_own<S> own;
    own.half = 0.5f * a.alpha;
    for (;;) {
        fwd_ring<S::BUFFERS> buffer = fwd_buffer<S>(p.unit);
        barrier_wait(&room->queries[buffer.at][group], buffer.parity);
        const fwd_unit *u = own.unit = &room->units[p.unit % S::UNITS];
        if (u->s.b < 0) break;
        int first = u->row0 + group * 64;
        attn_span seen = fwd_seen<S>(a, u, first);
        own.row = first + (int)threadIdx.x % GROUP / 32 * 16 + (int)threadIdx.x % 32 / 4;
        own.full = fwd_full<S>(a, u, first);
        own.queries = queries + (buffer.at * S::GROUPS + group) * S::OWNS * S::QUERIES;
        own.queries_free = &room->queries_free[buffer.at][group];
        if constexpr (S::BIAS == BIAS_TIME)
            own.times =
                time_rows_of(a.query_time + u->s.row_q, own.row, u->s.len_q, time_base(a, u->s));
        float out[S::D / 2];
#pragma unroll
        for (int i = 0; i < S::D / 2; i++)
            out[i] = 0;
        int j = fwd_next<S>(u, u->begin);
        j = fwd_skip<S>(u, j, seen.begin, room, p.keys);
        own.end = min(u->end, seen.end);
        if (j >= own.end) {
            __syncwarp();
            release(own.queries_free);
        } else if constexpr (S::IS_PIPED)
            j = fwd_sum_piped<T, S>(a, own, j, room, keys, p.keys, out);
        else
            j = fwd_sum_plain<T, S>(a, own, j, room, keys, p.keys, out);
        T *to = (T *)a.out + (int64_t)u->s.row_q * a.stride_out + u->head * S::D;
        fwd_store<T, S::D>(to, a.stride_out, own.row, u->s.len_q, a.scale, out);
        fwd_skip<S>(u, j, INT32_MAX, room, p.keys);
        p.unit++;
    }
}

template <typename S> __device__ static inline void fwd_begin(fwd_room<S> *room, char *keys) {
    if (threadIdx.x == S::GROUPS * GROUP) {
        for (int i = 0; i < S::BUFFERS; i++) {
            for (int group = 0; group < S::GROUPS; group++) {
                barrier_init(&room->queries[i][group], S::OWNS);
                barrier_init(&room->queries_free[i][group], GROUP / 32);
            }
        }
        barrier_init(&room->wanted, 1);
        barrier_init(&room->told, 1);
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&room->keys[i], 1);
            barrier_init(&room->values[i], 1);
            barrier_init(&room->keys_free[i], S::WARPS);
            barrier_init(&room->values_free[i], S::WARPS);
            barrier_init(&room->bias[i], 1);
        }
        barrier_init_done();
    }
    if (S::BOX_K < S::KEYS) {
        /* Values that no box loads are multiplied by weights of 0, but must be finite; with dout,
         * keys likewise. */
        int n = S::STAGES * S::TILE / 16;
        for (int i = (int)threadIdx.x + (S::OWNS > 1 ? 0 : n); i < 2 * n; i += S::THREADS)
            ((uint4 *)keys)[i] = make_uint4(0, 0, 0, 0);
        shared_fence();
    }
    __syncthreads();
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attn_fwd_sm90_kernel(const __grid_constant__ attn_args a,
                         const __grid_constant__ attn_tiles tiles,
                         const __grid_constant__ fwd_maps maps) {
    extern __shared__ char shared[];
    __shared__ fwd_room<S> room;
    char *queries = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *keys = queries + S::BUFFERS * S::GROUPS * S::QUERIES;
    grid_launch_next();
    if constexpr (S::BIAS == BIAS_TIME) {
        grid_wait();
        time_tables_load(a, maps.bias.buckets, &room.times.tables);
    }
    fwd_begin<S>(&room, keys);
    grid_wait();
    if (threadIdx.x >= S::GROUPS * GROUP) {
        constexpr int ASKERS = S::BIAS == BIAS_TIME ? 32 : 1;
        registers_lower<fwd_registers<S::GROUPS, S::BLOCKS>::LOWERED>();
        if (threadIdx.x < S::GROUPS * GROUP + ASKERS)
            fwd_ask<S>(a, maps, &room, queries, keys);
        else if (threadIdx.x >= S::THREADS - 32)
            fwd_find<S>(a, tiles, &room);
    } else {
        registers_raise<fwd_registers<S::GROUPS, S::BLOCKS>::RAISED>();
        fwd_compute<T, S>(a, &room, queries, keys);
    }
}

/* The tensor maps of queries, keys and values. */
template <typename S> status fwd_map_inputs(backend *be, const attn_args *a, fwd_maps *maps) {
    int64_t columns = (int64_t)a->n_heads * S::D;
    TRY(sm90a_map_box(&maps->q, be->act, a->q, a->n_rows_q, columns, a->stride_q, S::COLUMNS,
                      S::BOX_Q));
    TRY(sm90a_map_box(&maps->k, be->act, a->k, a->n_rows_k, columns, a->stride_k, S::COLUMNS,
                      S::BOX_K));
    return sm90a_map_box(&maps->v, be->act, a->v, a->n_rows_k, columns, a->stride_v, S::COLUMNS,
                         S::BOX_K);
}

template <typename T, typename S> status fwd_launch(backend *be, const attn_args *a) {
    cuda_state *state = cuda_of(be);
    fwd_maps maps;
    attn_tiles tiles = tiles_make(a, a->offsets_q, a->max_len_q, a->n_rows_q, S::ROWS, a->max_len_k,
                                  2 * S::D * (int)sizeof(T));
    if (tiles.n_units == 0) return OK;
    tiles.counter = state->counters;
    TRY(fwd_map_inputs<S>(be, a, &maps));
    TRY(sm90a_bias_source(be, a, &maps.bias));
    if (tiles_wants_plan(&tiles, a->max_len_q, a->n_rows_q)) {
        void *scratch = NULL;
        TRY(cuda_scratch(be, tiles_plan_bytes(&tiles), &scratch));
        TRY(tiles_plan(&tiles, scratch, state->stream));
    }
    int n_blocks = S::BLOCKS * state->n_multiprocessors;
    if (n_blocks > tiles.n_units) n_blocks = tiles.n_units;
    return cuda_launch_early(be, "the attention", attn_fwd_sm90_kernel<T, S>, n_blocks, S::THREADS,
                             S::BYTES, *a, tiles, maps);
}
