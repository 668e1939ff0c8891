/* Biases of scores in the attention's Hopper kernels (what they are: attn_args in ops/ops.h).
 *
 * A warpgroup adds them to its scores in registers, 64 rows by some columns; rows are queries in
 * the forward kernels and keys in the backward ones.
 * - A table comes tile by tile through TMA, 64 queries by 64 keys.  Bound by its bytes.
 * - For position and time the producer warp writes, beside each tile, the times of its columns and
 *   the position weights of its diagonals.  A score then costs a subtraction and two look-ups: the
 *   table of ops/time_bucket.h and the weights of the buckets.  Bound by these look-ups and the
 *   instructions around them, about fifteen a score. */
#pragma once

#include "cuda/attn/sm90/attn_sm90.cuh"

/* Where a kernel finds its bias. */
typedef struct bias_source {
    CUtensorMap table;       /* of a table: boxes of 16 queries by 64 keys */
    const uint32_t *buckets; /* of times: (BUCKET_CELLS) */
} bias_source;

/* Fills in what the bias of a call needs; does nothing without a bias. */
status sm90a_bias_source(const backend *be, const attn_args *a, bias_source *out);

enum { TABLE_BOX = 16, TABLE_TILE = 64 * PART_BYTES };

/* Boxes that bring n queries. */
__device__ static inline int table_boxes(int n) {
    return (min(max(n, 0), 64) + TABLE_BOX - 1) / TABLE_BOX;
}

/* Loads the table's tile of queries from `row` on, as many as there are, and 64 keys from j on; by
 * one thread. */
__device__ static inline void table_load(char *to, const CUtensorMap *map, uint64_t *barrier,
                                         const attn_args &a, const attn_sequence &s, int head,
                                         int row, int j) {
    int z = s.b * a.table_heads + (a.table_heads == 1 ? 0 : head);
    for (int r = 0; r < table_boxes(s.len_q - row); r++)
        tile_load_3d(to + r * TABLE_BOX * PART_BYTES, map, barrier, j,
                     row + s.shift + r * TABLE_BOX, z);
}

/* Two numbers of a table, which is of bfloat16. */
__device__ static inline float2 unpack_two(uint32_t pair) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

/* Adds a tile of the table to the warpgroup's scores.  IS_TURNED: rows of the scores are keys. */
template <bool IS_TURNED>
__device__ static inline void table_add(const char *tile, float (&x)[32]) {
    int thread = (int)thread_index(), lane = thread % 32, warp = thread % GROUP / 32;
    int row = IS_TURNED ? lane / 16 * 8 + lane % 8 : 16 * warp + lane % 16;
    int chunk = IS_TURNED ? 2 * warp + lane / 8 % 2 : lane / 16;
    uint32_t at = shared_address(tile) + (uint32_t)(row * PART_BYTES);
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        uint32_t pair[4];
        if (IS_TURNED)
            ldmatrix_x4_trans(pair, at + (uint32_t)(n * 8 * PART_BYTES) +
                                        (uint32_t)((chunk ^ (row & 7)) << 4));
        else
            ldmatrix_x4(pair, at + (uint32_t)(((chunk + n) ^ (row & 7)) << 4));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 v = unpack_two(pair[i]);
            x[(n + i / 2) * 4 + i % 2 * 2] += v.x;
            x[(n + i / 2) * 4 + i % 2 * 2 + 1] += v.y;
        }
    }
}

/* The look-ups.  A cell is a cell of ops/time_bucket.h minus the bits of its index, which are added
 * back with the bits of the distance. */
typedef struct time_tables {
    uint32_t cells[BUCKET_CELLS];
    float weights[ATTN_TIME_BUCKETS + 1];
} time_tables;

/* By all threads of a block; a barrier must follow. */
__device__ static inline void time_tables_load(const attn_args &a, const uint32_t *buckets,
                                               time_tables *t) {
    for (int i = (int)threadIdx.x; i < BUCKET_CELLS; i += (int)blockDim.x)
        t->cells[i] = buckets[i] - ((uint32_t)(i + 4 * 127) << BUCKET_BITS);
    for (int i = (int)threadIdx.x; i <= ATTN_TIME_BUCKETS; i += (int)blockDim.x)
        t->weights[i] = a.time_w[i];
}

/* Stored with each tile.  Times are differences from a reference time of the sequence, in 31 bits;
 * a tile with a difference that does not fit is "wide". positions: the weight of column c and row r
 * of the tile is at c - r + ROWS - 1. */
template <int ROWS, int COLUMNS> struct time_tile {
    int2 times[COLUMNS / 2];
    float positions[ROWS + COLUMNS];
    int is_wide;
};

/* The reference time of a sequence. */
__device__ static inline int64_t time_base(const attn_args &a, const attn_sequence &s) {
    return s.len_k > 0 ? __ldg(a.key_time + s.row_k) : 0;
}

/* The difference from the reference time; sets is_wide where it does not fit. */
__device__ static inline int time_short(int64_t time, int64_t base, bool *is_wide) {
    uint64_t x = (uint64_t)time - (uint64_t)base;
    *is_wide |= x + (1u << 30) >= 1u << 31 || (time < base) != ((int64_t)x < 0);
    return (int)x;
}

/* A lane's share of a tile in the producer warp: first into registers, so that the load overlaps
 * with the wait for a free stage. */
template <int ROWS, int COLUMNS> struct time_share {
    int64_t times[COLUMNS / 32];
    float positions[(ROWS + COLUMNS) / 32];
};

/* The tile's columns are rows `column` and on of `times`, which has n rows.  The first diagonal has
 * position weight `origin`, the next ones follow by `step`.  Beyond the ends the nearest valid
 * element is used. */
template <int ROWS, int COLUMNS>
__device__ static inline void time_fetch(const attn_args &a, const int64_t *times, int column,
                                         int n, int origin, int step,
                                         time_share<ROWS, COLUMNS> &share) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COLUMNS / 32; i++)
        share.times[i] = __ldg(times + min(column + 32 * i + lane, n - 1));
#pragma unroll
    for (int i = 0; i < (ROWS + COLUMNS) / 32; i++)
        share.positions[i] =
            __ldg(a.position_w + min(max(origin + step * (32 * i + lane), 0), 2 * a.bias_len - 2));
}

/* Writes the shares into the tile and arrives at its barrier; by the whole warp. */
template <int ROWS, int COLUMNS>
__device__ static inline void time_put(const time_share<ROWS, COLUMNS> &share, int64_t base,
                                       time_tile<ROWS, COLUMNS> *tile, uint64_t *barrier) {
    int lane = (int)threadIdx.x % 32;
    bool is_wide = false;
#pragma unroll
    for (int i = 0; i < COLUMNS / 32; i++)
        ((int *)tile->times)[32 * i + lane] = time_short(share.times[i], base, &is_wide);
#pragma unroll
    for (int i = 0; i < (ROWS + COLUMNS) / 32; i++)
        tile->positions[32 * i + lane] = share.positions[i];
    is_wide = __any_sync(0xffffffffu, is_wide);
    if (lane == 0) tile->is_wide = is_wide;
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
}

/* The times of a thread's rows, row and row + 8; a row beyond the end gets the time of the last
 * row. */
typedef struct time_rows {
    int times[2];
    bool is_wide; /* one of the warp's does not fit */
} time_rows;

__device__ static inline time_rows time_rows_of(const int64_t *times, int row, int n,
                                                int64_t base) {
    time_rows rows;
    bool is_wide = false;
#pragma unroll
    for (int side = 0; side < 2; side++)
        rows.times[side] = time_short(__ldg(times + min(row + 8 * side, n - 1)), base, &is_wide);
    rows.is_wide = __any_sync(0xffffffffu, is_wide);
    return rows;
}

__device__ static inline uint32_t time_bucket(const time_tables *t, float distance) {
    uint32_t bits = __float_as_uint(distance);
    return (t->cells[(bits >> BUCKET_BITS) - (127u << 2)] + bits) >> BUCKET_BITS;
}

/* Of two of a tile that is not wide. */
__device__ static inline float time_distance(int row, int column) {
    return fmaxf(fabsf(__int2float_rn(row - column)), 1.0f);
}
__device__ static inline float time_distance_wide(int64_t row, int64_t column) {
    uint64_t distance =
        row > column ? (uint64_t)row - (uint64_t)column : (uint64_t)column - (uint64_t)row;
    return fmaxf(__ull2float_rn(distance), 1.0f);
}

/* Adds the tile's biases to the scores; `row` is the thread's row in the tile.  Scores of row + 8,
 * 8 columns further, are on the same diagonal and share a position weight. buckets: the bucket of
 * score e is byte e % 4 of word e / 4. */
template <int ROWS, int COLUMNS>
__device__ static inline void time_add(const time_tables *t, const time_tile<ROWS, COLUMNS> *tile,
                                       const time_rows &rows, int row, float (&x)[COLUMNS / 2],
                                       uint32_t (&buckets)[COLUMNS / 8]) {
    int first = (int)thread_index() % 4;
    const float *positions = tile->positions + ROWS - 1 - row + 2 * first;
    float before[2] = {positions[-8], positions[-7]};
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
        int2 times = tile->times[4 * n + first];
        float now[2] = {positions[8 * n], positions[8 * n + 1]};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float distance = time_distance(rows.times[i / 2], i % 2 == 0 ? times.x : times.y);
            uint32_t bucket = time_bucket(t, distance);
            x[4 * n + i] += (i < 2 ? now : before)[i % 2] + t->weights[bucket];
            buckets[n] = i == 0 ? bucket : buckets[n] | bucket << 8 * i;
        }
        before[0] = now[0];
        before[1] = now[1];
    }
}

/* Rotates an array in registers by N places: the first N come last. */
template <int N, typename X, int SIZE> __device__ static inline void turn(X (&x)[SIZE]) {
    X first[N];
#pragma unroll
    for (int i = 0; i < SIZE; i++) {
        if (i < N) first[i] = x[i];
        x[i] = i + N < SIZE ? x[i + N] : first[i + N - SIZE];
    }
}

/* Like time_add for a wide tile, which is rare: 16 columns in a round, then the registers are
 * rotated. row_times: the times of rows `first_row` and on, of n_rows; column times likewise. */
template <int ROWS, int COLUMNS>
__device__ static inline void
time_add_wide(const time_tables *t, const time_tile<ROWS, COLUMNS> *tile, const int64_t *row_times,
              int first_row, int n_rows, const int64_t *column_times, int first_column,
              int n_columns, int row, float (&x)[COLUMNS / 2], uint32_t (&buckets)[COLUMNS / 8]) {
    int first = (int)thread_index() % 4 * 2;
#pragma unroll 1
    for (int c = 0; c < COLUMNS; c += 16) {
        const float *positions = tile->positions + ROWS - 1 - row + first + c;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int column = i / 4 * 8 + i % 2, side = i / 2 % 2;
            int64_t time =
                __ldg(column_times + min(first_column + c + first + column, n_columns - 1));
            int64_t other = __ldg(row_times + min(first_row + row + 8 * side, n_rows - 1));
            uint32_t bucket = time_bucket(t, time_distance_wide(other, time));
            x[i] += positions[column - 8 * side] + t->weights[bucket];
            buckets[i / 4] = i % 4 == 0 ? bucket : buckets[i / 4] | bucket << 8 * (i % 4);
        }
        turn<8>(x);
        turn<2>(buckets);
    }
}
