/* What the attention's Hopper kernels share: tiles of 64 columns by 64 rows that TMA loads,
 * swizzled, into shared memory, products of warpgroups, and the epilogues that store their sums.
 *
 * A tile of R rows and D columns is stored as D / 64 parts of R rows of 128 bytes; with D = 32, as
 * one part with rows of 64 bytes. */
#pragma once

#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/core/kernel.cuh"
#include "cuda/core/ptx_sm90.cuh"

enum { PART = 64, PART_BYTES = 128, GROUP = 128 }; /* numbers and bytes of a part's row; threads */

/* Numbers of a part's row. */
template <int D> struct part {
    static constexpr int COLUMNS = D < PART ? D : PART, BYTES = COLUMNS * 2;
    static_assert(D == 32 || D % PART == 0, "heads there are");
};

/* The wgmma descriptor of a part; next: see tile_describe. */
template <int D> __device__ static inline uint64_t part_describe(const void *tile, uint32_t next) {
    return D == 32 ? tile_describe_64(tile) : tile_describe(tile, next);
}

/* The tensor map of rows of a jagged array: a box is 64 rows of 64 columns. */
status sm90a_map(CUtensorMap *map, act_type act, const void *rows, int64_t n_rows,
                 int64_t n_columns, int64_t stride);

/* The tensor map of rows with boxes of `box_rows` rows x `box_columns` columns: 64 columns,
 * swizzled by 128 bytes, or 32, swizzled by 64. */
status sm90a_map_box(CUtensorMap *map, act_type act, const void *rows, int64_t n_rows,
                     int64_t n_columns, int64_t stride, int box_columns, int box_rows);

/* A tensor map of three dimensions, so that a box holds all `dim` columns of a head: part z of the
 * box holds `box_rows` rows of columns from z * `box_columns` on. */
status sm90a_map_heads(CUtensorMap *map, act_type act, const void *rows, int64_t n_rows,
                       int64_t n_columns, int64_t stride, int box_columns, int box_rows, int dim);

/* A tensor map of four dimensions, of pages, each `page_rows` rows of n_columns, pages `stride`
 * elements apart: a box is all `dim` columns of a head in `box_rows` rows of one page, parts of 64
 * one after the other. */
status sm90a_map_pages(CUtensorMap *map, act_type act, const void *rows, int64_t n_columns,
                       int64_t page_rows, int64_t n_pages, int64_t stride, int box_rows, int dim);

/* Whether TMA can address rows that are `stride` 16-bit numbers apart. */
static inline bool is_addressable(const void *rows, int64_t stride) {
    return (uintptr_t)rows % 16 == 0 && stride % 8 == 0 && stride > 0;
}

/* Loads R rows x D columns from row y, column x on; the barrier must expect R * D * 2 bytes. */
template <int D, int R>
__device__ static inline void load_rows(char *to, const CUtensorMap *map, uint64_t *barrier, int x,
                                        int y) {
#pragma unroll
    for (int c = 0; c < D / part<D>::COLUMNS; c++) {
#pragma unroll
        for (int r = 0; r < R; r += 64)
            tile_load(to + (c * R + r) * part<D>::BYTES, map, barrier, x + c * PART, y + r);
    }
}

/* A warp is done with the buffer of this barrier. */
__device__ static inline void release(uint64_t *barrier) {
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

/* d (64, N) (+)= A B^T over D columns; ROWS_A and N are the rows of the whole tiles of A and B. */
template <typename T, int D, int ROWS_A, int N>
__device__ static inline void product_of_rows(float (&d)[N / 2], const char *a, const char *b) {
    uint64_t desc_a = part_describe<D>(a, 16), desc_b = part_describe<D>(b, 16);
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        wgmma_ss<T, N>(d, tile_move(desc_a, k / 4 * ROWS_A * PART_BYTES + k % 4 * 32),
                       tile_move(desc_b, k / 4 * N * PART_BYTES + k % 4 * 32), k > 0);
}

/* d (64, D) += A (64, K), in registers, times a tile of K rows x D columns. */
template <typename T, int D, int K>
__device__ static inline void product_with_rows(float (&d)[D / 2], const uint32_t (&a)[K / 16][4],
                                                const char *b) {
    uint64_t desc_b = part_describe<D>(b, K * PART_BYTES);
#pragma unroll
    for (int k = 0; k < K / 16; k++)
        wgmma_rs<T, D>(d, a[k], tile_move(desc_b, k * 16 * part<D>::BYTES), 1);
}

/* Rounds the sums of a warpgroup into the left operand of the next product. */
template <typename T, int N>
__device__ static inline void pack_left(uint32_t (&a)[N / 16][4], const float (&d)[N / 2]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[k][i] = cvt_pack<T>(d[8 * k + 2 * i], d[8 * k + 2 * i + 1]);
    }
}

/* Bit e: pair e of a thread is visible, for rows row and row + 8 and 64 columns from j0 on.  Few
 * tiles need this mask, so it is compact code: the registers belong to the sums. */
__device__ static inline uint32_t rows_seen(const attn_args &a, const attn_sequence &s, int row,
                                            int j0) {
    int column = j0 + 2 * ((int)threadIdx.x % 4);
    uint32_t seen = 0;
#pragma unroll 1
    for (int side = 0; side < 2; side++) {
        attn_row_mask mask = attn_row_spans(&a, &s, row + 8 * side);
#pragma unroll 1
        for (int c = 0; c < 16; c++)
            seen |=
                (uint32_t)attn_row_sees(&a, &s, &mask, row + 8 * side, column + c / 2 * 8 + c % 2)
                << (c / 2 * 4 + side * 2 + c % 2);
    }
    return seen;
}

/* Like the mask above, with a short cut where all pairs are visible; first: the warpgroup's first
 * row. */
__device__ static inline uint32_t rows_mask(const attn_args &a, const attn_sequence &s, int first,
                                            int row, int j0) {
    bool is_full = attn_tile_is_full(&a, &s, first, first + 64, j0, j0 + 64);
    return is_full ? 0xffffffffu : rows_seen(a, s, row, j0);
}

/* Stores a warpgroup's sums: the thread's rows are row and row + 8; rows from n on are not
 * stored. */
template <typename T, int D>
__device__ static inline void store_rows(T *to, int64_t stride, int row, int n, float scale,
                                         const float (&d)[D / 2]) {
    int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + 8 * r >= n) continue;
        T *at = to + (row + 8 * r) * stride + 2 * t;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            *(uint32_t *)(at + 8 * j) =
                cvt_pack<T>(d[4 * j + 2 * r] * scale, d[4 * j + 2 * r + 1] * scale);
    }
}

/* Like store_rows with 16 bytes a thread, 64 bytes of a row at once: rows are multiples of 16
 * bytes. */
template <typename T, int D>
__device__ static inline void store_wide(T *to, int64_t stride, int row, int n, float scale,
                                         const float (&d)[D / 2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        T *at = to + (int64_t)(row + 8 * r) * stride + 8 * (threadIdx.x % 4);
#pragma unroll
        for (int j = 0; j < D / 8; j += 4) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] =
                    cvt_pack<T>(d[4 * (j + i) + 2 * r] * scale, d[4 * (j + i) + 2 * r + 1] * scale);
            transpose_quad(v);
            if (row + 8 * r < n) store_four(at + 8 * j, v);
        }
    }
}

/* Like store_rows, staged in shared memory: each warp writes its 16 rows (from row0 on, of the
 * warpgroup's 64) to a buffer of 16 rows of its own, swizzled like TMA.  Then neighbouring lanes
 * store neighbouring 16 bytes, whole rows at once: four times as fast. */
template <typename T, int D>
__device__ static inline void store_staged(char *room, T *to, int64_t stride, int row0, int n,
                                           float scale, const float (&d)[D / 2]) {
    constexpr int BLOCKS = D / 8, ROWS = 32 / BLOCKS; /* blocks of a row; rows at once */
    int lane = (int)threadIdx.x % 32, row = lane % 16;
    uint32_t at = shared_address(room) + (uint32_t)(row * D * 2);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = cvt_pack<T>(d[8 * k + 2 * i] * scale, d[8 * k + 2 * i + 1] * scale);
        stmatrix_x4(at + (uint32_t)(((2 * k + lane / 16) ^ (row & 7)) << 4), v);
    }
    __syncwarp();
    to += lane % BLOCKS * 8;
#pragma unroll 4
    for (int r = lane / BLOCKS; r < 16; r += ROWS) {
        if (row0 + r >= n) break;
        uint4 v = *(const uint4 *)(room + r * D * 2 + ((lane % BLOCKS ^ (r & 7)) << 4));
        __stcs((uint4 *)(to + (int64_t)(row0 + r) * stride), v);
    }
    __syncwarp();
}
