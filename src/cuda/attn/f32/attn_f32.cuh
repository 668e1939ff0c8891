/* What the float32 attention's kernels share: products of tiles by TF32 instructions, the mask and
 * the bias of the pairs a thread holds.
 *
 * A block owns ROWS rows of one sequence and head (queries, or keys where dk and dv are summed), a
 * warp 16 of them.  The other side is loaded into shared memory, COLUMNS rows at a time, and a warp
 * processes 16 of them at once: the scores of such a 16 x 16 square are in 8 registers of a thread
 * and are the operand of the next product without a shuffle, because the order of columns in a sum
 * is free (the fragment's columns t and t + 4 are the square's 2t and 2t + 1).  Squares without
 * visible pairs are skipped.  At small D the limit is the arithmetic per pair (bias, SiLU, mask),
 * at large D the reading of fragments from shared memory.
 *
 * EXACT: operands are split into two TF32 numbers, big + small, and small x small is left out
 * (3xTF32): the error is as in float32.  Otherwise operands are rounded once, to TF32; only up to
 * DIM = 64, where speed matters most, to keep the build short. */
#pragma once

#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/core/kernel.cuh"
#include "cuda/core/ptx.cuh"

/* DIM: dim_qk and dim_v, padded.  Rows in shared memory are padded by 4 floats, so that the eight
 * rows of a fragment are in different banks.  At DIM = 32 the block's own rows are kept in
 * registers, else in shared memory.  The most shared memory, backward at DIM = 256: (2 ROWS + 2
 * COLUMNS) * 260 * 4 = 99840 bytes, just within the 99 KB of the smaller GPUs. */
template <int DIM> struct f32_shape {
    static constexpr int ROWS = DIM <= 128 ? 64 : 32, WARPS = ROWS / 16, THREADS = 32 * WARPS;
    static constexpr int STRIDE = DIM + 4;
    static constexpr bool IS_KEPT = DIM == 32;
    static constexpr int FWD_COLUMNS = DIM == 32 ? 128 : DIM == 64 ? 64 : DIM == 128 ? 32 : 16;
    static constexpr int BWD_COLUMNS = DIM == 32 ? 64 : DIM == 64 ? 32 : 16;
};

/* A thread's place in a fragment: rows g and g + 8; columns t and t + 4, or 2t and 2t + 1. */
__device__ static inline int lane_g() {
    return (int)(threadIdx.x % 32 / 4);
}
__device__ static inline int lane_t() {
    return (int)(threadIdx.x % 4);
}

template <bool EXACT, int N> struct f32_fragment { uint32_t big[N], small[EXACT ? N : 1]; };
template <bool EXACT> using f32_a = f32_fragment<EXACT, 4>;
template <bool EXACT> using f32_b = f32_fragment<EXACT, 2>;

template <bool EXACT, int N>
__device__ static inline void split(f32_fragment<EXACT, N> *f, int i, float x) {
    f->big[i] = cvt_rna_tf32(x);
    if constexpr (EXACT) f->small[i] = cvt_rna_tf32(x - __uint_as_float(f->big[i]));
}

/* An element of a tile in shared memory: already rounded there if not EXACT. */
template <bool EXACT, int N>
__device__ static inline void take(f32_fragment<EXACT, N> *f, int i, float x) {
    if constexpr (EXACT)
        split(f, i, x);
    else
        f->big[i] = __float_as_uint(x);
}

/* The 16 x 8 numbers at `tile`. */
template <int STRIDE, bool EXACT> __device__ static inline f32_a<EXACT> rows_a(const float *tile) {
    f32_a<EXACT> a;
    const float *x = tile + lane_g() * STRIDE + lane_t();
    take(&a, 0, x[0]);
    take(&a, 1, x[8 * STRIDE]);
    take(&a, 2, x[4]);
    take(&a, 3, x[8 * STRIDE + 4]);
    return a;
}

/* The scores of a thread as the left operand of the next product. */
template <bool EXACT> __device__ static inline f32_a<EXACT> scores_a(const float c[4]) {
    f32_a<EXACT> a;
    split(&a, 0, c[0]);
    split(&a, 1, c[2]);
    split(&a, 2, c[1]);
    split(&a, 3, c[3]);
    return a;
}

/* 8 columns of the 8 rows at `tile`, as B = tile transposed. */
template <int STRIDE, bool EXACT> __device__ static inline f32_b<EXACT> rows_b(const float *tile) {
    f32_b<EXACT> b;
    const float *x = tile + lane_g() * STRIDE + lane_t();
    take(&b, 0, x[0]);
    take(&b, 1, x[4]);
    return b;
}

/* The 8 rows at `tile` in the order of scores_a. */
template <int STRIDE, bool EXACT>
__device__ static inline f32_b<EXACT> columns_b(const float *tile) {
    f32_b<EXACT> b;
    const float *x = tile + 2 * lane_t() * STRIDE + lane_g();
    take(&b, 0, x[0]);
    take(&b, 1, x[STRIDE]);
    return b;
}

/* Tensor cores truncate sums instead of rounding them, which adds up in a long sum: in EXACT mode
 * they sum only eight products, and float32 additions do the rest. */
template <bool EXACT>
__device__ static inline void mma(float c[4], const f32_a<EXACT> &a, const f32_b<EXACT> &b) {
    if constexpr (EXACT) {
        float part[4] = {0, 0, 0, 0};
        mma_m16n8k8_tf32(part, a.small, b.big[0], b.big[1]);
        mma_m16n8k8_tf32(part, a.big, b.small[0], b.small[1]);
        mma_m16n8k8_tf32(part, a.big, b.big[0], b.big[1]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[i] += part[i];
    } else {
        mma_m16n8k8_tf32(c, a.big, b.big[0], b.big[1]);
    }
}

/* How a block's threads share a tile of N rows: thread t copies column c0, c0 + WIDTH, ... of rows
 * r0, r0 + STEP, ...  Elements are copied one by one: with head dimension 25 rows are aligned to 4
 * bytes only. */
template <int DIM, int N> struct f32_copy {
    static constexpr int THREADS = f32_shape<DIM>::THREADS;
    static constexpr int WIDTH = DIM < THREADS ? DIM : THREADS, STEP = THREADS / WIDTH;
    static constexpr int TIMES = N / STEP, UNROLL = DIM == 256 ? 4 : TIMES < 16 ? TIMES : 16;
    static_assert(N % STEP == 0 && DIM % WIDTH == 0, "every thread copies as many rows");
};

/* Copies N rows of `dim` floats to shared memory; rows from n on and columns from dim on become
 * zeros. The copy is asynchronous: tile_end must follow, then a barrier. */
template <int DIM, int N>
__device__ static inline void tile_begin(float *to, const float *from, int64_t stride, int dim,
                                         int n) {
    using copy = f32_copy<DIM, N>;
    int r0 = (int)threadIdx.x / copy::WIDTH, c0 = (int)threadIdx.x % copy::WIDTH;
#pragma unroll 1
    for (int c = c0; c < DIM; c += copy::WIDTH) {
        const float *x = from + r0 * stride + c;
        uint32_t at = shared_address(to + r0 * f32_shape<DIM>::STRIDE + c);
#pragma unroll copy::UNROLL
        for (int k = 0; k < copy::TIMES; k++) {
            bool is_there = c < dim && r0 + k * copy::STEP < n;
            cp_async<4>(at, is_there ? x : from, is_there ? 4 : 0);
            at += (uint32_t)(copy::STEP * f32_shape<DIM>::STRIDE * sizeof(float));
            x += copy::STEP * stride;
        }
    }
}

/* 16-bit numbers pass through registers; one loop for both types, to compile less. */
template <int DIM, int N>
__device__ static inline void tile_begin(float *to, const uint16_t *from, bool is_bf16,
                                         int64_t stride, int dim, int n) {
    using copy = f32_copy<DIM, N>;
    int r0 = (int)threadIdx.x / copy::WIDTH, c0 = (int)threadIdx.x % copy::WIDTH;
#pragma unroll 1
    for (int c = c0; c < DIM; c += copy::WIDTH) {
        const uint16_t *from_row = from + r0 * stride + c;
#pragma unroll 4
        for (int k = 0; k < copy::TIMES; k++) {
            int r = r0 + k * copy::STEP;
            uint32_t x = c < dim && r < n ? from_row[k * copy::STEP * stride] : 0u;
            to[r * f32_shape<DIM>::STRIDE + c] =
                is_bf16 ? __uint_as_float(x << 16) : __half2float(__ushort_as_half((uint16_t)x));
        }
    }
}

/* Waits for the thread's copies and, if not EXACT, rounds what the thread copied; a thread sees its
 * own copies before any barrier. */
template <int DIM, int N, bool EXACT> __device__ static inline void tile_end(float *to) {
    using copy = f32_copy<DIM, N>;
    cp_async_commit_group();
    cp_async_wait_group<0>();
    if constexpr (!EXACT) {
        int r0 = (int)threadIdx.x / copy::WIDTH, c0 = (int)threadIdx.x % copy::WIDTH;
#pragma unroll 1
        for (int c = c0; c < DIM; c += copy::WIDTH) {
            float *x = to + r0 * f32_shape<DIM>::STRIDE + c;
#pragma unroll copy::UNROLL
            for (int k = 0; k < copy::TIMES; k++) {
                float *y = x + k * copy::STEP * f32_shape<DIM>::STRIDE;
                *y = __uint_as_float(cvt_rna_tf32(*y));
            }
        }
    }
}

/* A warp's part of the block's own rows: fragments in registers, or an address in shared memory. */
template <int DIM, bool EXACT> struct f32_rows {
    f32_a<EXACT> kept[f32_shape<DIM>::IS_KEPT ? DIM / 8 : 1];
    const float *tile;
};

/* All threads of the block; rows from n on are zeros.  A barrier must follow before they are used.
 * `tile` (ROWS, STRIDE) is not used where rows are kept in registers. */
template <int DIM, bool EXACT>
__device__ static inline void rows_load(f32_rows<DIM, EXACT> *rows, float *tile, const float *from,
                                        int64_t stride, int dim, int n) {
    using shape = f32_shape<DIM>;
    int first = (int)threadIdx.x / 32 * 16;
    if constexpr (shape::IS_KEPT) {
#pragma unroll
        for (int k = 0; k < DIM / 8; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int r = first + lane_g() + i % 2 * 8, c = k * 8 + lane_t() + i / 2 * 4;
                split(&rows->kept[k], i, r < n && c < dim ? from[r * stride + c] : 0.0f);
            }
        }
    } else {
        tile_begin<DIM, shape::ROWS>(tile, from, stride, dim, n);
        tile_end<DIM, shape::ROWS, EXACT>(tile);
        rows->tile = tile + first * shape::STRIDE;
    }
}

/* x = the warp's rows times 16 rows of a tile, transposed, over dim rounded up to a multiple of
 * 32. */
template <int DIM, bool EXACT>
__device__ static inline void score_square(float x[2][4], const f32_rows<DIM, EXACT> &rows,
                                           const float *tile, int dim) {
    constexpr int STRIDE = f32_shape<DIM>::STRIDE;
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i / 4][i % 4] = 0.0f;
#pragma unroll 1
    for (int first = 0; first < (f32_shape<DIM>::IS_KEPT ? DIM : dim); first += 32) {
#pragma unroll
        for (int k = first; k < first + 32; k += 8) {
            f32_a<EXACT> a;
            if constexpr (f32_shape<DIM>::IS_KEPT)
                a = rows.kept[k / 8];
            else
                a = rows_a<STRIDE, EXACT>(rows.tile + k);
            mma(x[0], a, rows_b<STRIDE, EXACT>(tile + k));
            mma(x[1], a, rows_b<STRIDE, EXACT>(tile + 8 * STRIDE + k));
        }
    }
}

/* sum += scores (16 x 16) times 16 rows of a tile. */
template <int DIM, bool EXACT>
__device__ static inline void add_product(float (*sum)[4], const float x[2][4], const float *tile,
                                          int dim) {
    constexpr int STRIDE = f32_shape<DIM>::STRIDE;
    f32_a<EXACT> a[2] = {scores_a<EXACT>(x[0]), scores_a<EXACT>(x[1])};
#pragma unroll
    for (int first = 0; first < DIM; first += 32) {
        if (first >= dim) break;
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int d = first; d < first + 32; d += 8)
                mma(sum[d / 8], a[n], columns_b<STRIDE, EXACT>(tile + n * 8 * STRIDE + d));
        }
    }
}

/* Stores the warp's 16 rows of sums; `to` is the block's first row, n the number of its valid
 * rows.  IS_TIGHT: in a kernel that has no register left for the limits of predicated stores. */
template <int DIM, bool IS_TIGHT = false, typename T>
__device__ static inline void store_rows(T *to, int64_t stride, int dim, int n,
                                         const float (*sum)[4]) {
    int row = (int)threadIdx.x / 32 * 16 + lane_g(), column = 2 * lane_t();
    if constexpr (IS_TIGHT) {
#pragma unroll
        for (int i = 0; i < DIM / 8 * 4; i++) {
            int r = row + i % 4 / 2 * 8, c = column + i / 4 * 8 + i % 2;
            if (r < n && c < dim) to[r * stride + c] = from_float<T>(sum[i / 4][i % 4]);
        }
    } else {
        int limit0 = row < n ? dim - column : 0, limit1 = row + 8 < n ? dim - column : 0;
        T *to0 = to + row * stride + column, *to1 = to0 + 8 * stride;
#pragma unroll
        for (int i = 0; i < DIM / 8 * 2; i++) {
            int c = i / 2 * 8 + i % 2;
            store_below(to0 + c, from_float<T>(sum[i / 2][i % 2]), c, limit0);
            store_below(to1 + c, from_float<T>(sum[i / 2][2 + i % 2]), c, limit1);
        }
    }
}

/* The first two spans a query row sees: `n` columns from `first` on each. */
typedef struct alignas(16) f32_spans {
    int first0, n0, first1, n1;
} f32_spans;

__device__ static inline f32_spans spans_of(const attn_args &a, const attn_sequence &s, int row) {
    attn_row_mask m = attn_row_spans(&a, &s, row);
    f32_spans spans = {m.first0, max(m.end0 - m.first0, 0), m.first1, max(m.end1 - m.first1, 0)};
    return spans;
}

__device__ static inline bool spans_have(const f32_spans &m, int j) {
    return (unsigned)(j - m.first0) < (unsigned)m.n0 || (unsigned)(j - m.first1) < (unsigned)m.n1;
}

/* Whether query row `row` sees column j through a span after the second. */
__device__ static inline bool more_spans_have(const attn_args &a, const attn_sequence &s, int row,
                                              int j) {
    attn_row_mask none = {0, 0, 0, 0};
    return attn_row_sees(&a, &s, &none, row, j);
}

/* The keys that the query rows of a block may see: begin .. end - 1 without the hole, in which no
 * row sees any.  Found once, before the loop over tiles, whose registers are scarce. */
typedef struct f32_reach {
    int begin, end, hole_begin, hole_end;
} f32_reach;

template <int COLUMNS>
__device__ static inline f32_reach reach_of(const attn_args &a, const attn_sequence &s, int row0,
                                            int n) {
    attn_span seen = attn_keys_seen(&a, &s, row0, n), hole = attn_keys_hole(&a, &s, row0);
    f32_reach r = {seen.begin / COLUMNS * COLUMNS, seen.end, hole.begin, hole.end};
    return r;
}

/* Whether a tile of keys is inside the hole. */
template <int COLUMNS> __device__ static inline bool reach_skips(const f32_reach &r, int j0) {
    return j0 >= r.hole_begin && j0 + COLUMNS <= r.hole_end;
}

/* attn_tile_is_empty, once a tile: not inlined, so that the loops keep their registers. */
__device__ static __noinline__ bool tile_is_empty(const attn_args &a, attn_sequence s, int row0,
                                                  int row1, int j0, int j1) {
    return attn_tile_is_empty(&a, &s, row0, row1, j0, j1);
}

/* The hull of the columns that the rows of n consecutive lanes see: *begin >= *end where they see
 * none. n is a power of two; all lanes of the warp call. */
__device__ static inline void spans_hull(const attn_args &a, const attn_sequence &s,
                                         const f32_spans &m, int n, int *begin, int *end) {
    *begin = INT32_MAX;
    *end = 0;
    if (m.n0 > 0) {
        *begin = m.first0;
        *end = m.first0 + m.n0;
    }
    if (m.n1 > 0) {
        *begin = min(*begin, m.first1);
        *end = max(*end, m.first1 + m.n1);
    }
    if (attn_mask_has_more(&a)) {
        *begin = 0;
        *end = s.len_k;
    }
    for (int lane = n / 2; lane > 0; lane /= 2) {
        *begin = min(*begin, __shfl_xor_sync(0xffffffffu, *begin, lane));
        *end = max(*end, __shfl_xor_sync(0xffffffffu, *end, lane));
    }
}

/* The elements of a square in a thread: [n][2 r + e] is row g + 8 r, column 8 n + 2 t + e; bit 4 n
 * + 2 r + e of a mask.  Position of [0][0] in a tile: */
typedef struct f32_place {
    int row, column;
} f32_place;

/* The position bias and the times of the current tile, in shared memory. */
template <int QUERIES, int KEYS, int COLUMNS> struct f32_time_room {
    alignas(16) int64_t time[COLUMNS]; /* two are read at once */
    float position[QUERIES + KEYS];    /* [key - query + QUERIES - 1], places in the tile */
};

/* The table of buckets and the weight of each, in shared memory except at DIM = 256, where there is
 * no room. */
template <int DIM> struct f32_buckets {
    static constexpr bool IS_STAGED = DIM < 256;
    uint32_t cell[IS_STAGED ? BUCKET_CELLS : 1];
    float weight[IS_STAGED ? ATTN_TIME_BUCKETS + 4 : 1];
};

template <int DIM>
__device__ static inline void buckets_load(f32_buckets<DIM> *m, const attn_args &a,
                                           const uint32_t *cells) {
    if constexpr (f32_buckets<DIM>::IS_STAGED) {
        for (int i = (int)threadIdx.x; i < BUCKET_CELLS; i += f32_shape<DIM>::THREADS)
            m->cell[i] = cells[i];
        for (int i = (int)threadIdx.x; i <= ATTN_TIME_BUCKETS; i += f32_shape<DIM>::THREADS)
            m->weight[i] = a.time_w[i];
    }
}

/* The tile starts at query i0 and key j0; `time` has the n times of its columns. */
template <int THREADS, int Q, int K, int C>
__device__ static inline void time_room_tile(f32_time_room<Q, K, C> *m, const attn_args &a,
                                             const int64_t *time, int n, int i0, int j0) {
    for (int i = (int)threadIdx.x; i < C; i += THREADS)
        m->time[i] = i < n ? time[i] : 0;
    for (int i = (int)threadIdx.x; i < Q + K - 1; i += THREADS) {
        int at = a.bias_len - 1 + j0 - i0 + i - (Q - 1);
        m->position[i] = at >= 0 && at < 2 * a.bias_len - 1 ? a.position_w[at] : 0.0f;
    }
}

/* Adds the bias to the scores and returns the buckets.  IS_KEY: the rows are keys. `cell` and
 * `weight` come from f32_buckets. */
template <bool IS_KEY, int Q, int K, int C>
__device__ static inline void
add_time_bias(float x[2][4], int bucket[2][4], const f32_time_room<Q, K, C> &m,
              const uint32_t *cell, const float *weight, const int64_t time[2], f32_place at) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        longlong2 pair = *(const longlong2 *)&m.time[at.column + 8 * n];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = at.row + i / 2 * 8, column = at.column + 8 * n + i % 2;
            int diagonal = (IS_KEY ? row - column : column - row) + Q - 1;
            bucket[n][i] = attn_bucket(cell, time[i / 2], i % 2 == 0 ? pair.x : pair.y);
            x[n][i] += m.position[diagonal] + weight[bucket[n][i]];
        }
    }
}

/* Where a sequence's and head's table begins. */
__device__ static inline int64_t table_begin(const attn_args &a, const attn_sequence &s, int head) {
    int64_t plane = (int64_t)s.b * a.table_heads + (a.table_heads == 1 ? 0 : head);
    return plane * a.table_len * a.table_len;
}

/* Index in the table of pair i of block n of a square, in the tile that starts at i0, j0. */
template <bool IS_KEY>
__device__ static inline int64_t table_at(const attn_args &a, f32_place at, int i0, int j0, int n,
                                          int i) {
    int row = at.row + i / 2 * 8, column = at.column + 8 * n + i % 2;
    return (int64_t)(i0 + (IS_KEY ? column : row)) * a.table_len + j0 + (IS_KEY ? row : column);
}

template <bool IS_KEY>
__device__ static inline void add_table_bias(float x[2][4], const attn_args &a, const float *table,
                                             f32_place at, int i0, int j0, unsigned seen) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (seen >> (4 * n + i) & 1) x[n][i] += table[table_at<IS_KEY>(a, at, i0, j0, n, i)];
    }
}

/* Each pair belongs to one thread of the grid. */
__device__ static inline void add_table_grad(const attn_args &a, int64_t table, f32_place at,
                                             int i0, int j0, unsigned seen, const float ds[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (seen >> (4 * n + i) & 1)
                a.dtable[table + table_at<false>(a, at, i0, j0, n, i)] += ds[n][i];
    }
}

/* Finite for any x. */
template <bool EXACT> __device__ static inline float sigmoid_of(float x) {
    if constexpr (EXACT) return 1.0f / (1.0f + expf(-x));
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

/* For rows that are queries: the spans and the times of a thread's two rows. */
typedef struct f32_queries {
    int row; /* query rows of the sequence: the thread's are row and row + 8 */
    f32_spans spans[2];
    int64_t time[2];
    int begin, end; /* the columns any row of the warp sees */
} f32_queries;

__device__ static inline f32_queries queries_of(const attn_args &a, const attn_sequence &s,
                                                int row0) {
    f32_queries q;
    int begin, end;
    q.row = row0 + (int)threadIdx.x / 32 * 16 + lane_g();
    for (int r = 0; r < 2; r++) {
        bool is_time = a.bias == BIAS_TIME && q.row + 8 * r < s.len_q;
        q.spans[r] = spans_of(a, s, q.row + 8 * r);
        q.time[r] = is_time ? a.query_time[s.row_q + q.row + 8 * r] : 0;
    }
    spans_hull(a, s, q.spans[0], 32, &q.begin, &q.end);
    spans_hull(a, s, q.spans[1], 32, &begin, &end);
    q.begin = min(q.begin, begin);
    q.end = max(q.end, end);
    return q;
}

/* The part of func's spans after the second in a square's mask.  Not inlined: it would take
 * registers from every mask. */
__device__ static __noinline__ unsigned queries_see_more(const attn_args &a, attn_sequence s,
                                                         int row, int j) {
    unsigned seen = 0;
#pragma unroll 1
    for (int i = 0; i < 8; i++)
        seen |= (unsigned)more_spans_have(a, s, row + i % 4 / 2 * 8, j + i / 4 * 8 + i % 2) << i;
    return seen;
}

/* The mask of a square; its first column for this thread is key j of the sequence. */
__device__ static inline unsigned queries_see(const attn_args &a, const attn_sequence &s,
                                              const f32_queries &q, int j) {
    unsigned seen = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        seen |= (unsigned)spans_have(q.spans[i % 4 / 2], j + i / 4 * 8 + i % 2) << i;
    if (attn_mask_has_more(&a)) seen |= queries_see_more(a, s, q.row, j);
    return seen;
}

/* The range of columns, in a tile of COLUMNS keys from j0 on, that the warp must process, in
 * multiples of 16. */
template <int COLUMNS>
__device__ static inline void queries_squares(const f32_queries &q, int j0, int *begin, int *end) {
    *begin = max(q.begin - j0, 0) / 16 * 16;
    *end = (min(q.end - j0, COLUMNS) + 15) / 16 * 16;
}

/* For columns that are queries: the spans of each one, and the hull of every 16. */
template <int COLUMNS> struct f32_masks {
    f32_spans spans[COLUMNS];
    int begin[COLUMNS / 16], end[COLUMNS / 16];
};

template <int COLUMNS>
__device__ static inline void masks_load(f32_masks<COLUMNS> *m, const attn_args &a,
                                         const attn_sequence &s, int row0) {
    int c = (int)threadIdx.x, begin, end;
    if (c >= (COLUMNS > 32 ? COLUMNS : 32)) return;
    f32_spans spans = spans_of(a, s, row0 + c);
    spans_hull(a, s, spans, 16, &begin, &end);
    if (c >= COLUMNS) return;
    m->spans[c] = spans;
    if (c % 16 != 0) return;
    m->begin[c / 16] = begin;
    m->end[c / 16] = end;
}

/* The mask of a square: the thread's first row is key j, its first column query row `row`. */
template <int COLUMNS>
__device__ static inline unsigned masks_see(const attn_args &a, const attn_sequence &s,
                                            const f32_masks<COLUMNS> &m, f32_place at, int row,
                                            int j) {
    unsigned seen = 0;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int column = n / 2 * 8 + n % 2;
        f32_spans spans = m.spans[at.column + column];
        seen |= (unsigned)spans_have(spans, j) << (n / 2 * 4 + n % 2);
        seen |= (unsigned)spans_have(spans, j + 8) << (n / 2 * 4 + n % 2 + 2);
    }
    if (attn_mask_has_more(&a)) {
#pragma unroll 1
        for (int i = 0; i < 8; i++)
            seen |= (unsigned)more_spans_have(a, s, row + i / 4 * 8 + i % 2, j + i % 4 / 2 * 8)
                    << i;
    }
    return seen;
}
