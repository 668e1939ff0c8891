/* The arguments and the epilogue of the kernels of linear_large_sm90.cu: the norm, SiLU and pages,
 * or the sum and its moments, and the stores.
 *
 * Each warp has an epilogue of its own: 16 rows pass, 64 columns at a time, through the warp's
 * buffers in shared memory, from which TMA stores them; a residual is loaded into the same
 * buffers. */
#pragma once

#include "cuda/attn/sm90/attn_sm90.cuh"

enum {
    LINEAR_SHARED = 226 * 1024, /* bytes of shared memory for tiles and buffers */
    LINEAR_HELPERS = 96         /* threads that prepare epilogues */
};

/* SiLU, of a norm of x or of x; the sum with a residual. */
typedef enum linear_mode { LINEAR_SILU, LINEAR_SUM } linear_mode;

/* Tiles of 64 G rows x N columns, G warpgroups that compute; OPERAND: of the products. */
template <int N_, int G_, linear_mode MODE, typename OPERAND_ = __nv_bfloat16> struct large_tile {
    typedef OPERAND_ OPERAND;
    static constexpr bool IS_FP8 = sizeof(OPERAND) == 1;
    static constexpr int N = N_, G = G_;
    static constexpr int ROWS = 64 * G, WARPS = 4 * G, THREADS = (G + 1) * GROUP;
    /* registers of a thread that computes, and of one that does not */
    static constexpr int REGISTERS = G < 3 ? 216 : N < 256 ? 152 : 160;
    static constexpr int SPARE = G < 3 ? 72 : N < 256 ? 56 : 32;
    static constexpr int BYTES_X = ROWS * PART_BYTES, BYTES_W = N * PART_BYTES;
    static constexpr int STAGE = BYTES_X + BYTES_W;
    /* Products of a step, two for 256 columns: the epilogue of the first part runs beside the last
     * products of the second, and with G = 3 the compiler has no registers for all at once. */
    static constexpr int PARTS = N == 256 ? 2 : 1, PART_N = N / PARTS;
    static constexpr int COLUMNS = PART_N % PART == 0 ? PART : PART / 2; /* of a buffer, swizzled */
    static constexpr int CHUNKS = N / COLUMNS;
    static constexpr int BUFFER = 16 * COLUMNS * 2; /* bytes: 16 rows */
    /* of a warp: a residual needs all */
    static constexpr int BUFFERS = MODE == LINEAR_SUM ? CHUNKS : COLUMNS == PART ? 2 : 3;
    static constexpr int OUT = WARPS * BUFFERS * BUFFER;
    static constexpr int SIDE = 2 * N * (int)sizeof(float) + ROWS * 24;
    static constexpr int MOST = (LINEAR_SHARED - OUT - SIDE - 1024) / STAGE;
    static constexpr int STAGES = MOST < 8 ? MOST : 8;
    static constexpr int BYTES = STAGES * STAGE + OUT + SIDE + 1024;
    static_assert(N % COLUMNS == 0, "whole buffers");
};

/* All but the tensor maps. */
typedef struct linear_job {
    int64_t n_rows;
    int32_t n_in, n_out;
    int32_t n_steps;           /* tiles of 64 along k */
    int32_t n_down, n_across;  /* tiles of rows and of columns */
    const float *shift, *sums; /* (n_out); sums: of the rows of W, where there is a norm */
    const float *scales;       /* (n_rows): of 8-bit rows of x; then sums are the scales of W */
    row_moments moments;       /* of x; width 0: there is no norm */
    int32_t n_parts;           /* of the moments */
    float eps;
    kv_put_args put;            /* slot NULL: no pages */
    int32_t column_k, column_v; /* of y */
    float2 *moments_y;          /* of a sum, or NULL */
} linear_job;

typedef struct linear_maps {
    CUtensorMap x, w, y, residual;
} linear_maps;

/* Where a block's tile is. */
typedef struct linear_place {
    int row, column;
} linear_place;

template <typename S>
__device__ static inline linear_place linear_place_of(const linear_job &j, int tile) {
    return {tile / j.n_across * S::ROWS, tile % j.n_across * S::N};
}

/* What the epilogue of a tile needs, prepared by warps that do not compute. */
template <typename S> struct linear_side {
    float shift[S::N]; /* half of it before SiLU */
    float sum[S::N];
    float2 norm[S::ROWS];   /* mean and half of 1 / deviation of the rows; of 8-bit rows: 0 and the
                               scale, half of it before SiLU */
    char *kept[2][S::ROWS]; /* where column 0 of y would be in their pages of keys and of values;
                               NULL: they are not kept */
};

template <typename T> __device__ static inline float2 linear_pair(uint32_t v);
template <> __device__ inline float2 linear_pair<__nv_bfloat16>(uint32_t v) {
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
template <> __device__ inline float2 linear_pair<__half>(uint32_t v) {
    return __half22float2(*(const __half2 *)&v);
}

/* The place of 16 bytes in a buffer, swizzled as TMA reads it. */
template <typename S> __device__ static inline uint32_t linear_swizzle(int row, int piece) {
    int x = S::COLUMNS == PART ? row % 8 : row / 2 % 4;
    return (uint32_t)(row * S::COLUMNS * 2 + (piece ^ x) * 16);
}

/* Whether columns of the tile are keys or values that may be kept. */
template <typename S>
__device__ static inline bool linear_keeps(const linear_job &j, const linear_place &at) {
    int key = at.column + S::N - j.column_k, value = at.column + S::N - j.column_v;
    return j.put.slot != NULL &&
           ((key > 0 && key < j.put.dim_k + S::N) || (value > 0 && value < j.put.dim_v + S::N));
}

/* A thread's place of block b of 8 columns among its sums. */
template <typename S> __device__ static constexpr int linear_part(int b) {
    return 8 * b / S::PART_N;
}
template <typename S> __device__ static constexpr int linear_at(int b) {
    return 4 * b % (S::PART_N / 2);
}

/* Mean and squared deviations of numbers that come one after the other: sums of what they differ
 * from the first, which is near enough to the mean that nothing cancels. */
typedef struct linear_sums {
    float first, sum, square;
} linear_sums;

__device__ static inline void linear_add(linear_sums &s, float x, bool is_first) {
    if (is_first) s.first = x;
    float apart = x - s.first;
    s.sum = is_first ? 0 : s.sum + apart;
    s.square = is_first ? 0 : fmaf(apart, apart, s.square);
}

/* The results of 8 columns, block b of the tile, in two rows; norm and sums: of these, v: the
 * residual before. */
template <typename T, typename S, linear_mode MODE>
__device__ static inline void
linear_finish(const float (&d)[S::PARTS][S::PART_N / 2], const linear_side<S> &side,
              const float2 (&norm)[2], linear_sums (&sums)[2], int b, int n_blocks, uint32_t *v) {
    int own = 8 * b + 2 * ((int)threadIdx.x % 4);
    float2 shift = *(const float2 *)(side.shift + own);
    const float *z = d[linear_part<S>(b)] + linear_at<S>(b);
    float f[4], scaled[4];
    if constexpr (S::IS_FP8) {
        float2 scale = *(const float2 *)(side.sum + own);
#pragma unroll
        for (int i = 0; i < 4; i++)
            scaled[i] = z[i] * (norm[i / 2].y * (i % 2 == 0 ? scale.x : scale.y));
        z = scaled;
    }
    if constexpr (MODE == LINEAR_SUM) {
        float2 low = linear_pair<T>(v[0]), high = linear_pair<T>(v[1]);
        f[0] = z[0] + shift.x + low.x, f[1] = z[1] + shift.y + low.y;
        f[2] = z[2] + shift.x + high.x, f[3] = z[3] + shift.y + high.y;
    } else {
        float2 sum = *(const float2 *)(side.sum + own);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float low = i % 2 == 0 ? shift.x : shift.y, mean = i % 2 == 0 ? sum.x : sum.y;
            f[i] =
                S::IS_FP8 ? z[i] + low : fmaf(norm[i / 2].y, fmaf(-norm[i / 2].x, mean, z[i]), low);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) /* silu(2 h) = h + h tanh h, as in the attention's kernels */
            f[i] = fmaf(f[i], tanh_approx(f[i]), f[i]);
    }
    v[0] = cvt_pack<T>(f[0], f[1]);
    v[1] = cvt_pack<T>(f[2], f[3]);
    if constexpr (MODE == LINEAR_SUM) { /* as they are stored */
        if (b >= n_blocks) return;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 x = linear_pair<T>(v[i]);
            linear_add(sums[i], x.x, b == 0);
            linear_add(sums[i], x.y, false);
        }
    }
}

/* The moments of a row, of the sums of the four threads that have n numbers of it each. */
__device__ static inline float2 linear_moments(const linear_sums &s, float n) {
    float mean = s.first + s.sum / n, square = s.square - s.sum * s.sum / n;
#pragma unroll
    for (int i = 1; i <= 2; i *= 2) {
        float other = __shfl_xor_sync(0xffffffffu, mean, i), apart = other - mean;
        square += __shfl_xor_sync(0xffffffffu, square, i);
        square = fmaf(apart * apart, (float)i * n * .5f, square);
        mean = .5f * (mean + other);
    }
    return make_float2(mean * 4 * n, square);
}

/* Mean and half of 1 / deviation of a row of x, of the moments of its parts, which are summed
 * around the mean of the first one in one pass; so many of them are on their way at once as there
 * are registers for. */
template <typename S> __device__ static inline float2 linear_norm_of(const linear_job &j, int row) {
    constexpr int AT_ONCE = S::SPARE > 32 ? 8 : 2;
    const float2 *parts = (const float2 *)j.moments.parts + (int64_t)row * j.n_parts;
    float middle = 0, sum = 0, square = 0;
#pragma unroll 1
    for (int first = 0; first < j.n_parts; first += AT_ONCE) {
        float2 part[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i < j.n_parts) part[i] = parts[first + i];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (first + i >= j.n_parts) break;
            float n = (float)min(j.moments.width, j.n_in - (first + i) * j.moments.width);
            if (first + i == 0) middle = __fdividef(part[i].x, n);
            float apart = fmaf(-n, middle, part[i].x); /* n times the difference of the means */
            sum += apart;
            square += part[i].y + __fdividef(apart * apart, n);
        }
    }
    float apart = sum / (float)j.n_in;
    return make_float2(middle + apart,
                       .5f * rsqrtf((square - sum * apart) / (float)j.n_in + j.eps));
}

/* Where column 0 of y would be in the page of a slot. */
template <typename T>
__device__ static inline char *linear_page(const kv_put_args &p, int slot, void *pages, int dim,
                                           int column) {
    int64_t at = slot / p.page_len * p.stride + (int64_t)(slot % p.page_len) * dim - column;
    return slot < 0 ? NULL : (char *)((T *)pages + at);
}

/* Where row k of the tile goes in the pages. */
template <typename T, typename S>
__device__ static inline void linear_pages(const linear_job &j, const linear_place &at,
                                           linear_side<S> *side, int k) {
    int slot = at.row + k < j.n_rows ? j.put.slot[at.row + k] : -1;
    side->kept[0][k] = linear_page<T>(j.put, slot, j.put.pages_k, j.put.dim_k, j.column_k);
    side->kept[1][k] = linear_page<T>(j.put, slot, j.put.pages_v, j.put.dim_v, j.column_v);
}

/* A warp's rows of the residual are on their way to its buffers while the tile is computed. */
template <typename S>
__device__ static inline void linear_fetch(const linear_maps &maps, const linear_place &at, int row,
                                           char *buffers, uint64_t *barrier) {
    static_assert(S::CHUNKS <= S::BUFFERS, "a buffer for each");
    if (threadIdx.x % 32 != 0) return;
    tile_stores_wait<0>(); /* of the last tile */
    barrier_expect(barrier, (uint32_t)(S::CHUNKS * S::BUFFER));
    for (int c = 0; c < S::CHUNKS; c++)
        tile_load(buffers + c * S::BUFFER, &maps.residual, barrier, at.column + c * S::COLUMNS,
                  row);
}

/* Copies what is kept of a buffer, 16 rows from row `first` of the tile on, to the pages. */
template <typename T, typename S>
__device__ static inline void linear_keep(const linear_job &j, const char *buffer,
                                          const linear_side<S> &side, int first, int column) {
    constexpr int PIECES = S::COLUMNS / 8, ROWS = 32 / PIECES;
    int lane = (int)threadIdx.x % 32, own = column + 8 * (lane % PIECES);
    bool is_key = (unsigned)(own - j.column_k) < (unsigned)j.put.dim_k;
    bool is_value = (unsigned)(own - j.column_v) < (unsigned)j.put.dim_v;
    char *const *kept = side.kept[is_key ? 0 : 1] + first + lane / PIECES;
    if (!is_key && !is_value) return;
#pragma unroll
    for (int i = 0; i < 16; i += ROWS) {
        char *to = kept[i];
        if (to == NULL) continue;
        *(uint4 *)(to + own * (int)sizeof(T)) =
            *(const uint4 *)(buffer + linear_swizzle<S>(i + lane / PIECES, lane % PIECES));
    }
}

/* Stores a warp's 16 rows, from row `first` of the tile on, chunks of columns from FROM to END;
 * buffers: BUFFERS, of the warp, which hold the residual where there is one. */
template <typename T, typename S, linear_mode MODE, int FROM, int END>
__device__ static inline void
linear_store(const linear_job &j, const linear_maps &maps, const linear_place &at, int first,
             const float (&d)[S::PARTS][S::PART_N / 2], const linear_side<S> &side,
             linear_sums (&sums)[2], char *buffers) {
    constexpr int HALF = PART / 2; /* columns of 16 bytes a row and matrix: enough to keep busy */
    int lane = (int)threadIdx.x % 32, n_blocks = min((int)S::N, j.n_out - at.column) / 8;
    if constexpr (FROM > 0) /* so that no addresses of the first half are kept: registers */
        asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    uint32_t fragment = linear_swizzle<S>(lane % 16, lane / 16); /* the lane's row, of stmatrix */
    float2 norm[2] = {side.norm[first + lane / 4], side.norm[first + lane / 4 + 8]};
    bool keeps = MODE != LINEAR_SUM && linear_keeps<S>(j, at);
#pragma unroll
    for (int c = FROM; c < END; c++) {
        char *buffer = buffers + c % S::BUFFERS * S::BUFFER;
#pragma unroll
        for (int h = 0; h < S::COLUMNS / HALF; h++) {
            uint32_t v[2][4], to = shared_address(buffer) + fragment;
            asm volatile("" : "+r"(to)); /* not kept for the next time: registers */
            to ^= (uint32_t)h * HALF * 2;
            if constexpr (MODE == LINEAR_SUM) {
                ldmatrix_x4(v[0], to);
                ldmatrix_x4(v[1], to ^ 32);
            }
#pragma unroll
            for (int p = 0; p < 4; p++)
                linear_finish<T, S, MODE>(d, side, norm, sums, (c * S::COLUMNS + h * HALF) / 8 + p,
                                          n_blocks, v[p / 2] + p % 2 * 2);
            if (MODE != LINEAR_SUM && h == 0) { /* the buffer's last content has been stored */
                if (lane == 0 && c == 0) tile_stores_wait<0>(); /* that of the last tile */
                if (lane == 0 && c >= S::BUFFERS) tile_stores_wait<S::BUFFERS - 1>();
                __syncwarp();
            }
            stmatrix_x4(to, v[0]);
            stmatrix_x4(to ^ 32, v[1]);
        }
        shared_fence();
        __syncwarp();
        if (lane == 0)
            tile_store(&maps.y, shared_address(buffer), at.column + c * S::COLUMNS, at.row + first);
        if (keeps) linear_keep<T, S>(j, buffer, side, first, at.column + c * S::COLUMNS);
    }
    if constexpr (MODE == LINEAR_SUM && END == S::CHUNKS) {
#pragma unroll
        for (int i = 0; i < 2 && j.moments_y != NULL; i++) {
            int64_t row = at.row + first + lane / 4 + 8 * i;
            float2 m = linear_moments(sums[i], 2 * (float)n_blocks);
            if (lane % 4 == 0 && row < j.n_rows)
                j.moments_y[row * j.n_across + at.column / S::N] = m;
        }
    }
}
