/* What the attention kernels of 16-bit activations for every card (mma.sync, cp.async) share: the
 * job of one launch, tiles in shared memory, products of tiles over a warp, masks, biases and SiLU
 * of the scores a thread holds.
 *
 * Rows are queries and columns keys everywhere.  A warp's scores have the register layout of mma
 * results (ptx.cuh): with g = l / 4 and t = l % 4, x[m][n][e] of lane l is row 16 m + g + 8 (e /
 * 2), column 8 n + 2 t + e % 2 of the warp's tile of 32 rows.
 *
 * Rows and columns beyond the end of a sequence are zeros in shared memory, so they add nothing to
 * any sum, and masks can ignore them. */
#pragma once

#include "cuda/attn/common/attn_bias.cuh"
#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/core/kernel.cuh"
#include "cuda/core/ptx.cuh"

/* Rows of (H, dim) numbers. */
typedef struct half_matrix {
    const void *p;
    int64_t stride; /* numbers between rows */
    int dim;
} half_matrix;

/* The same to be written: sums times factor. */
typedef struct half_result {
    void *p;
    int64_t stride;
    int dim;
    float factor;
    bool is_wide; /* 8 numbers can be written at once */
} half_result;

/* One launch. */
typedef struct half_job {
    attn_args a;
    half_matrix q, k, v, dout;
    half_result out;            /* of queries: out, or dq */
    half_result dk, dv;         /* of keys */
    const int32_t *offsets_new; /* with pages: (B + 1) of the rows of k and v */
    int copy_bytes;             /* 16, 4 or 2: the alignment of all input addresses, in bytes */
    int first_head, n_heads;    /* heads of this launch */
    int n_tiles;                /* of rows or keys, of the longest sequence */
    int n_group;                /* pairs of sequence and head in a group of half_block_of */
    int n_stages;               /* of tiles that pass through shared memory: 1 or 2 */
    bool wants_dq;              /* of the kernel that owns keys */
    float *dq_sums;             /* (slots, H, tile), zeros at first; see attn_sm80_bwd.cu */
    const uint32_t *buckets;    /* (BUCKET_CELLS) */
    bool wants_bias_grad;       /* of the kernel that owns queries */
    unsigned long long *sums;   /* of attn_bias.cuh */
} half_job;

/* dq and the gradients of biases, with one owner for each query (attn_sm80_bwd_dq.cu). */
status half_queries_launch(backend *be, const half_job *job);

/* The work of a block: a tile of one sequence and head that starts at row (or key) `first`, and
 * rows begin .. end - 1 of the other side. */
typedef struct half_block {
    attn_sequence s;
    int head;
    int first;
    int begin, end;
} half_block;

/* The schedule, in the order in which blocks start.  Under a causal mask the last rows, and the
 * first keys, have the most work, so they come first: otherwise one multiprocessor might still
 * compute such a tile when all others are idle.  This order holds within a group of sequences and
 * heads; groups are processed one after the other, so that blocks that run at the same time share
 * the L2 cache.  Every thread computes this for itself, which is faster than a broadcast through
 * shared memory. */
__device__ static inline half_block half_block_of(const half_job &job, int tile_size,
                                                  bool is_last_first) {
    unsigned n_pairs = (unsigned)job.a.n_sequences * (unsigned)job.n_heads;
    unsigned group = blockIdx.x / (unsigned)(job.n_group * job.n_tiles);
    unsigned rest = blockIdx.x % (unsigned)(job.n_group * job.n_tiles);
    unsigned first = group * (unsigned)job.n_group;
    unsigned n = min((unsigned)job.n_group, n_pairs - first), pair = first + rest % n;
    int tile = (int)(rest / n);
    half_block t;
    t.s = attn_sequence_of(&job.a, (int)(pair / (unsigned)job.n_heads));
    t.head = job.first_head + (int)(pair % (unsigned)job.n_heads);
    t.first = (is_last_first ? job.n_tiles - 1 - tile : tile) * tile_size;
    t.begin = t.end = 0;
    return t;
}

/* Columns begin .. end - 1 contain all that any of the rows may see; every row sees all columns
 * full_begin .. full_end - 1. */
typedef struct half_range {
    int begin, end, full_begin, full_end;
} half_range;

__device__ static inline half_range half_range_of(const attn_args &a, const attn_sequence &s,
                                                  int row, int n_rows) {
    half_range r = {0, 0, 0, 0};
    if (row >= s.len_q) return r;
    attn_span seen = attn_keys_seen(&a, &s, row, n_rows),
              full = attn_keys_full(&a, &s, row, n_rows);
    r = {seen.begin, seen.end, full.begin, full.end};
    /* Columns beyond the last key need no mask: they are zeros. */
    if (r.full_end == s.len_k) r.full_end = 1 << 30;
    return r;
}

/* The work of a block and the ranges of its warps, kept in shared memory because registers are
 * scarce.  Visible after a barrier. */
typedef struct half_walk {
    half_block block;
    half_range warps[8];
} half_walk;

__device__ static inline void half_walk_put(half_walk *walk, const half_block &t,
                                            const half_range &range) {
    if (threadIdx.x == 0) walk->block = t;
    if (threadIdx.x % 32 == 0) walk->warps[threadIdx.x / 32] = range;
}

/* The loop of half_next.  Not inlined: kernels would have two or three copies of it to compile. */
static __device__ __noinline__ int half_skip(const attn_args &a, attn_sequence s, int row,
                                             int n_rows, int col, int n_cols, int end) {
    while (col < end && attn_tile_is_empty(&a, &s, row, row + n_rows, col, col + n_cols))
        col += n_cols;
    return col;
}

/* The first column of the first tile, from `col` on, that may have visible pairs; at least `end` if
 * there is none.  Only targets leave holes. */
template <int ROWS, int COLS>
__device__ static inline int half_next(const half_job &job, const half_block &t, int col) {
    if (job.a.n_targets == NULL) return col;
    return half_skip(job.a, t.s, t.first, ROWS, col, COLS, t.end);
}

/* The swizzle: the address of a 16-byte chunk in a tile whose rows have WIDTH elements.  The
 * chunk's place in the row is XORed with the row's number, so that the same column of eight rows is
 * in eight different groups of banks.  A tile's address is a multiple of its row size, so XOR
 * selects columns. */
template <int WIDTH> __device__ static inline uint32_t half_place(int row, int chunk) {
    int turn = WIDTH >= 64 ? row & 7 : row >> 1 & 3;
    return (uint32_t)(row * WIDTH * 2 + ((chunk ^ turn) << 4));
}

/* Copies for addresses that are not 16-byte aligned (head dimensions or strides such as 100 or 75)
 * into wide tiles, of n rows of 1 << bits elements.  Not inlined: kernels would have up to
 * four copies of it to compile.  Tiles of 64 elements a row, which models with such head dimensions
 * have, inline theirs: a training step with head dimension 25 is 1 to 2 % faster. */
static __device__ __noinline__ void half_load_odd_wide(char *to, const uint16_t *from,
                                                       int64_t stride, int dim, int n_rows, int n,
                                                       int bits, int copy_bytes) {
    int per_row = bits - (copy_bytes == 4 ? 1 : 3);
    uint32_t address = shared_address(to);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < n << per_row; i += (int)blockDim.x) {
        int row = i >> per_row, part = i & ((1 << per_row) - 1);
        int chunk = copy_bytes == 4 ? part / 4 : part;
        uint32_t place = ((uint32_t)(row << bits) * 2) + (uint32_t)((chunk ^ (row & 7)) << 4);
        if (copy_bytes == 4) {
            bool is_there = row < n_rows && 2 * part < dim;
            cp_async<4>(address + place + (uint32_t)(part % 4 * 4),
                        is_there ? from + row * stride + 2 * part : from, is_there ? 4 : 0);
            continue;
        }
        pack<uint16_t, 8> x;
#pragma unroll
        for (int c = 0; c < 8; c++) {
            bool is_there = row < n_rows && 8 * part + c < dim;
            x.v[c] = is_there ? from[row * stride + 8 * part + c] : (uint16_t)0;
        }
        *(pack<uint16_t, 8> *)(to + place) = x;
    }
}

/* Copies for addresses that are not 16-byte aligned: head dimensions or strides such as 50 or
 * 25. */
template <typename T, int D, int N, int THREADS>
__device__ static inline void half_load_odd(char *to, const T *from, int64_t stride, int dim,
                                            int n_rows, int copy_bytes) {
    if constexpr (D > 64) {
        half_load_odd_wide(to, (const uint16_t *)from, stride, dim, n_rows, N, D == 128 ? 7 : 8,
                           copy_bytes);
        return;
    }
    if (copy_bytes == 4) {
        uint32_t address = shared_address(to);
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < N * D / 2; i += THREADS) {
            int row = i / (D / 2), pair = i % (D / 2);
            bool is_there = row < n_rows && 2 * pair < dim;
            cp_async<4>(address + half_place<D>(row, pair / 4) + (uint32_t)(pair % 4 * 4),
                        is_there ? from + row * stride + 2 * pair : from, is_there ? 4 : 0);
        }
        return;
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < N * D / 8; i += THREADS) {
        int row = i / (D / 8), chunk = i % (D / 8);
        pack<T, 8> x;
        for (int c = 0; c < 8; c++) {
            bool is_there = row < n_rows && 8 * chunk + c < dim;
            x.v[c] = is_there ? from[row * stride + 8 * chunk + c] : from_float<T>(0.0f);
        }
        *(pack<T, 8> *)(to + half_place<D>(row, chunk)) = x;
    }
}

/* The 16 bytes at once of half_load. */
template <typename T, int D, int N, int THREADS>
__device__ static inline void half_load_even(char *to, const T *from, int64_t stride, int dim,
                                             int n_rows, unsigned thread) {
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;
    static_assert(N % STEP == 0, "every thread copies the same number of chunks");
    int first = (int)(thread / CHUNKS), chunk = (int)(thread % CHUNKS);
    uint32_t address = shared_address(to);
    if (8 * chunk >= dim) n_rows = 0;
    from += first * stride + 8 * chunk;
#pragma unroll
    for (int r = 0; r < N; r += STEP) {
        uint32_t to_row = half_place<D>(first + r % 8, chunk) + (uint32_t)(r / 8 * 8 * D * 2);
        cp_async<16>(address + to_row, from, first + r < n_rows ? 16 : 0);
        from += STEP * stride;
    }
}

/* The first of a head's numbers in a row. */
template <typename T>
__device__ static inline const T *half_at(const half_matrix &m, int64_t row, int head) {
    return (const T *)m.p + row * m.stride + (int64_t)head * m.dim;
}

/* Starts the copy of a tile of N rows: row .. row + n_rows - 1 of the jagged rows, and zeros
 * beyond them and beyond dim.  A loop in which registers are scarce passes thread_index(). */
template <typename T, int D, int N, int THREADS>
__device__ static inline void half_load(char *to, const half_matrix &m, int64_t row, int n_rows,
                                        int head, int copy_bytes, unsigned thread = threadIdx.x) {
    const T *from = half_at<T>(m, row, head);
    if (copy_bytes == 16)
        half_load_even<T, D, N, THREADS>(to, from, m.stride, m.dim, n_rows, thread);
    else
        half_load_odd<T, D, N, THREADS>(to, from, m.stride, m.dim, n_rows, copy_bytes);
}

/* Like half_load for two matrices, the second tile `step` bytes after the first: half as much
 * code to compile for the rare copies. */
template <typename T, int D, int N, int THREADS>
__device__ static inline void
half_load_two(char *to, int step, const half_matrix &m0, const half_matrix &m1, int64_t row,
              int n_rows, int head, int copy_bytes, unsigned thread = threadIdx.x) {
    if (copy_bytes == 16) {
        half_load_even<T, D, N, THREADS>(to, half_at<T>(m0, row, head), m0.stride, m0.dim, n_rows,
                                         thread);
        half_load_even<T, D, N, THREADS>(to + step, half_at<T>(m1, row, head), m1.stride, m1.dim,
                                         n_rows, thread);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const half_matrix &m = i == 0 ? m0 : m1;
        half_load_odd<T, D, N, THREADS>(to + i * step, half_at<T>(m, row, head), m.stride, m.dim,
                                        n_rows, copy_bytes);
    }
}

/* Stores the warp's tile acc, 16 M rows in the layout of scores, at row `row` of the sequence and
 * column `col` of the head. The sequence has n_rows rows and starts at jagged row `origin`. Where
 * the alignment allows it, the four lanes of a row exchange their pairs and store 64 bytes at once.
 */
template <typename T, int M, int N>
__device__ static inline void half_store(const half_result &result, int64_t origin, int n_rows,
                                         int head, int row, int col, const float (*acc)[N][4]) {
    static_assert(N % 4 == 0, "four pairs are turned");
    int lane = (int)threadIdx.x % 32, step = result.is_wide ? 8 : 2;
    int left = result.dim - col - step * (lane % 4); /* columns from the lane's first on */
    T *to = (T *)result.p + (origin + row + lane / 4) * result.stride + (int64_t)head * result.dim +
            col + step * (lane % 4);
    row += lane / 4;
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        int limit = row + 8 * i < n_rows ? left : 0;
        uint32_t pair[N / 4][4];
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float *x = &acc[i / 2][n][i % 2 * 2];
            pair[n / 4][n % 4] = cvt_pack<T>(x[0] * result.factor, x[1] * result.factor);
        }
        if (result.is_wide) {
#pragma unroll
            for (int n = 0; n < N; n += 4) {
                transpose_quad(pair[n / 4]);
                store_wide_below(to + 8 * n, pair[n / 4], 8 * n, limit);
            }
        } else {
#pragma unroll
            for (int n = 0; n < N; n++)
                store_two_below(to + 8 * n, pair[n / 4][n % 4], 8 * n, limit);
        }
        to += 8 * result.stride;
    }
}

/* The lane's address in a tile for operands whose rows are rows of the product (A), or that
 * ldmatrix transposes (B of half_add_product): lanes 0 .. 15 are rows, 16 .. 31 the next chunk. */
template <int WIDTH>
__device__ static inline uint32_t half_lane_a(const char *tile, int row, int chunk,
                                              int lane = (int)threadIdx.x % 32) {
    return shared_address(tile) + half_place<WIDTH>(row + lane % 16, chunk + lane / 16);
}

/* ... and for operands whose rows are columns of the product: B of half_scores, or A with
 * ldmatrix.trans. */
template <int WIDTH>
__device__ static inline uint32_t half_lane_b(const char *tile, int row,
                                              int lane = (int)threadIdx.x % 32) {
    return shared_address(tile) + half_place<WIDTH>(row + lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/* A lane's address moved on by 2 k chunks in its row: XOR within 128 bytes, then an addition, which
 * the load instruction does itself. */
__device__ static inline uint32_t half_chunks(uint32_t address, uint32_t k) {
    return (address ^ k % 4 << 5) + k / 4 * 128;
}

template <int M, int N> __device__ static inline void half_clear(float (*x)[N][4]) {
#pragma unroll
    for (int i = 0; i < M * N * 4; i++)
        x[i / 4 / N][i / 4 % N][i % 4] = 0.0f;
}

/* x += rows columns^T over the k-th 16 elements of the head dimension: rows as fragments, 8 N
 * columns at `b`. */
template <typename T, int D, int N>
__device__ static inline void half_add_scores(float (*x)[N][4], const uint32_t (*row)[4],
                                              uint32_t b, uint32_t k) {
#pragma unroll
    for (uint32_t n = 0; n < N / 2; n++) {
        uint32_t col[4];
        ldmatrix_x4(col, half_chunks(b, k) + n * 16 * D * 2);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mma_m16n8k16<T>(x[m][2 * n], row[m], col[0], col[1]);
            mma_m16n8k16<T>(x[m][2 * n + 1], row[m], col[2], col[3]);
        }
    }
}

/* x = rows columns^T: 32 rows at `a`, 8 N columns at `b`, over D elements. */
template <typename T, int D, int N>
__device__ static inline void half_scores(float (*x)[N][4], uint32_t a, uint32_t b) {
    half_clear<2>(x);
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t row[2][4];
#pragma unroll
        for (uint32_t m = 0; m < 2; m++)
            ldmatrix_x4(row[m], half_chunks(a, k) + m * 16 * D * 2);
        half_add_scores<T, D>(x, row, b, k);
    }
}

/* Columns 16 n .. 16 n + 15 of acc += p y: p 16 M rows by 16 columns, y 16 rows at `b`. */
template <typename T, int M, int N>
__device__ static inline void half_add_columns(float (*acc)[N][4], const uint32_t (*p)[4],
                                               uint32_t b, int n) {
    uint32_t y[4];
    ldmatrix_x4_trans(y, half_chunks(b, (uint32_t)n));
#pragma unroll
    for (int m = 0; m < M; m++) {
        mma_m16n8k16<T>(acc[m][2 * n], p[m], y[0], y[1]);
        mma_m16n8k16<T>(acc[m][2 * n + 1], p[m], y[2], y[3]);
    }
}

/* All columns of it. */
template <typename T, int M, int N>
__device__ static inline void half_add_product(float (*acc)[N][4], const uint32_t (*p)[4],
                                               uint32_t b) {
#pragma unroll
    for (int n = 0; n < N / 2; n++)
        half_add_columns<T, M>(acc, p, b, n);
}

/* acc += p y: 32 rows of p at `a` in a tile of K columns, K rows of y at `b` in a tile of D
 * columns. */
template <typename T, int D, int K, int N>
__device__ static inline void half_add_tile(float (*acc)[N][4], uint32_t a, uint32_t b) {
#pragma unroll
    for (uint32_t k = 0; k < K / 16; k++) {
        uint32_t p[2][4];
        ldmatrix_x4(p[0], half_chunks(a, k));
        ldmatrix_x4(p[1], half_chunks(a, k) + 16 * K * 2);
        half_add_product<T, 2>(acc, p, b + k * 16 * D * 2);
    }
}

/* Writes 8 columns of the warp's tile to shared memory, into a tile of WIDTH columns, from row
 * `row`, as chunk `chunk`: pair[i] is the thread's pair of row 8 i + g. */
template <int WIDTH>
__device__ static inline void half_put(char *tile, int row, int chunk, const uint32_t pair[4]) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(uint32_t *)(tile + half_place<WIDTH>(row + 8 * i + lane / 4, chunk) + lane % 4 * 4) =
            pair[i];
}

/* attn_more_bits.  Not inlined: few masks need it, and kernels would have four copies of it. */
template <int N>
static __device__ __noinline__ uint32_t half_see_more(const attn_args &a, attn_sequence s, int row,
                                                      int col) {
    return attn_more_bits<N>(a, s, row, col);
}

/* Which of a thread's scores are visible: bit 2 n + e of seen[i] is column 8 n + e of row 8 i.
 * (row, col) is where the warp's tile starts.  Four lanes share the same four rows: each computes
 * the mask of one row. */
template <int N>
__device__ static inline void half_see(const half_job &job, const attn_sequence &s, int row,
                                       int col, uint32_t seen[4]) {
    int lane = (int)(thread_index() % 32);
    bool has_two = job.a.func != NULL || job.a.n_targets != NULL;
    row += lane / 4;
    col += lane % 4 * 2;
    attn_row_mask own = attn_row_spans(&job.a, &s, row + lane % 4 * 8);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int from = lane / 4 * 4 + i;
        seen[i] = attn_bits_between<N>(__shfl_sync(0xffffffffu, own.first0, from) - col,
                                       __shfl_sync(0xffffffffu, own.end0, from) - col);
        if (has_two)
            seen[i] |= attn_bits_between<N>(__shfl_sync(0xffffffffu, own.first1, from) - col,
                                            __shfl_sync(0xffffffffu, own.end1, from) - col);
        if (attn_mask_has_more(&job.a)) seen[i] |= half_see_more<N>(job.a, s, row + 8 * i, col);
    }
}

/* Sets scores of pairs that are not visible to zero.  SiLU of zero is zero, so these pairs
 * contribute nothing later. */
template <int N> __device__ static inline void half_hide(const uint32_t seen[4], float (*x)[N][4]) {
#pragma unroll
    for (int i = 0; i < 8 * N; i++) {
        float *score = &x[i / 4 / N][i / 4 % N][i % 4];
        uint32_t bit = seen[i / 4 / N * 2 + i % 4 / 2] >> (i / 4 % N * 2 + i % 2) & 1;
        *score = bit != 0 ? *score : 0.0f;
    }
}

/* Like half_hide for pairs of float16: pair[n][i] holds columns 8 n, 8 n + 1 of row 8 i. */
template <int N>
__device__ static inline void half_hide_pairs(const uint32_t seen[4], uint32_t (*pair)[4]) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) {
        uint32_t bits = seen[i % 4] >> (i / 4 * 2);
        pair[i / 4][i % 4] &= ((bits & 1) != 0 ? 0xffffu : 0) | ((bits & 2) != 0 ? 0xffff0000u : 0);
    }
}

/* Tables of the time bias in shared memory. */
typedef struct half_tables {
    uint32_t buckets[BUCKET_CELLS];
    float time_w[BIAS_TIME_CELLS];
} half_tables;

/* A barrier must follow. */
__device__ static inline void half_tables_load(const half_job &job, half_tables *tables) {
    if (job.a.bias != BIAS_TIME) return;
    for (int i = (int)threadIdx.x; i < BUCKET_CELLS; i += (int)blockDim.x)
        tables->buckets[i] = job.buckets[i];
    for (int i = (int)threadIdx.x; i < BIAS_TIME_CELLS; i += (int)blockDim.x)
        tables->time_w[i] = job.a.time_w[i];
}

/* The address in the table of row 0, column 0 of a sequence. */
__device__ static inline int64_t half_table_at(const half_job &job, const half_block &t) {
    const attn_args &a = job.a;
    int64_t head = (int64_t)t.s.b * a.table_heads + (a.table_heads == 1 ? 0 : t.head);
    return (head * a.table_len + t.s.shift) * a.table_len;
}

/* Pairs beyond the end take the biases of the last valid ones: they contribute nothing in the end,
 * and there is no branch. */
template <typename T, int N>
__device__ static inline void half_add_table(const half_job &job, const half_block &t, int row,
                                             int col, float (*x)[N][4]) {
    const T *table = (const T *)job.a.table + half_table_at(job, t);
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const T *from = table + (int64_t)min(row + 8 * m, t.s.len_q - 1) * job.a.table_len;
#pragma unroll
        for (int n = 0; n < 2 * N; n++)
            x[m / 2][n / 2][m % 2 * 2 + n % 2] +=
                to_float(from[min(col + n / 2 * 8 + n % 2, t.s.len_k - 1)]);
    }
}

template <int N>
__device__ static inline void half_add_time(const half_job &job, const half_block &t,
                                            const half_tables *tables, int row, int col,
                                            float (*x)[N][4]) {
    const int64_t *row_time = job.a.query_time + t.s.row_q, *col_time = job.a.key_time + t.s.row_k;
    const float *position = job.a.position_w + job.a.bias_len - 1 - t.s.shift;
#pragma unroll
    for (int n = 0; n < 2 * N; n++) {
        int c = min(col + n / 2 * 8 + n % 2, t.s.len_k - 1);
        int64_t time = __ldg(col_time + c);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            int r = min(row + 8 * m, t.s.len_q - 1);
            int bucket = attn_bucket(tables->buckets, __ldg(row_time + r), time);
            x[m / 2][n / 2][m % 2 * 2 + n % 2] +=
                __ldg(position + (c - r)) + tables->time_w[bucket];
        }
    }
}

/* Adds the biases to the scores of the warp's tile that starts at (row, col); the sequence has a
 * query and a key. */
template <typename T, int N>
__device__ static inline void half_add_bias(const half_job &job, const half_block &t,
                                            const half_tables *tables, int row, int col,
                                            float (*x)[N][4]) {
    int lane = (int)threadIdx.x % 32;
    if (job.a.bias == BIAS_TABLE)
        half_add_table<T, N>(job, t, row + lane / 4, col + lane % 4 * 2, x);
    else if (job.a.bias == BIAS_TIME)
        half_add_time<N>(job, t, tables, row + lane / 4, col + lane % 4 * 2, x);
}

/* With h = x / 2: silu(x) = h (1 + tanh h), one instruction of the special function unit (its
 * packed 16-bit form counts as two).  Returns two scores as one register of a fragment. */
template <typename T>
__device__ static inline uint32_t half_weights(const float *score, float half_alpha) {
    float h0 = score[0] * half_alpha, h1 = score[1] * half_alpha;
    return cvt_pack<T>(fmaf(h0, tanh_approx(h0), h0), fmaf(h1, tanh_approx(h1), h1));
}

/* Weight p and 2 silu'(x) = (1 + p) + tanh h (1 - p). */
__device__ static inline float2 half_weight_slope(float score, float half_alpha) {
    float h = score * half_alpha, t = tanh_approx(h), p = fmaf(h, t, h);
    return {p, fmaf(t, 1.0f - p, 1.0f + p)};
}

static inline half_job half_job_of(backend *be, const attn_args *a) {
    half_job job = {};
    job.a = *a;
    job.q = {a->q, a->stride_q, a->dim_qk};
    job.k = {a->k, a->stride_k, a->dim_qk};
    job.v = {a->v, a->stride_v, a->dim_v};
    job.dout = {a->dout, a->stride_out, a->dim_v};
    const half_matrix *m[4] = {&job.q, &job.k, &job.v, &job.dout};
    job.copy_bytes = 16;
    for (int i = 0; i < 4; i++)
        while (m[i]->p != NULL &&
               !can_pack(m[i]->p, m[i]->stride, m[i]->dim, 2, job.copy_bytes / 2))
            job.copy_bytes = job.copy_bytes == 16 ? 4 : 2;
    job.n_heads = a->n_heads;
    job.n_stages = 2;
    job.buckets = cuda_of(be)->bucket_cells;
    return job;
}

static inline half_result half_result_of(void *p, int64_t stride, int dim, float factor) {
    return {p, stride, dim, factor, can_pack(p, stride, dim, 2, 8)};
}

/* Number of blocks of a launch with tiles of `size`, sequences of at most max_len, and n_at_once
 * blocks on a multiprocessor; sets n_tiles and n_group.  A group is the work of about four waves of
 * blocks.  On an H200 (2026-11-15) groups of one wave cost up to 13 % on long sequences; groups of
 * 16 waves made the backward pass of D = 256 up to 1.3 times as slow, while D = 64 gained 6 % on
 * jagged sequences of 4096. */
static inline int64_t half_grid(backend *be, half_job *job, int max_len, int size, int n_at_once) {
    int64_t n_pairs = (int64_t)job->a.n_sequences * job->n_heads;
    job->n_tiles = (int)cuda_div_up(max_len, size);
    if (job->n_tiles == 0) return 0;
    int64_t n = cuda_div_up(4 * (int64_t)n_at_once * cuda_of(be)->n_multiprocessors, job->n_tiles);
    job->n_group = (int)(n < n_pairs ? n : n_pairs);
    return job->n_tiles * n_pairs;
}

/* The larger of the two head dimensions. */
static inline int half_dim(const attn_args *a) {
    return a->dim_qk > a->dim_v ? a->dim_qk : a->dim_v;
}

/* float16 has the kernels for every bias alone: models are trained in bfloat16.  So has bfloat16
 * in a build for Hopper alone, whose own kernels take the usual head dimensions. */
template <typename T> static constexpr bool half_is_tuned = false;
#ifndef HSTU_HOPPER_ALONE
template <> constexpr bool half_is_tuned<__nv_bfloat16> = true;
#endif

/* Runs `...` with T as the 16-bit type of activations and D as the head dimension, padded to 64,
 * 128 or 256: kernels are few so that they compile in reasonable time. */
#define HALF_WITH_DIM(be, dim, ...)                                                                \
    do {                                                                                           \
        if ((be)->act == ACT_BF16) {                                                               \
            using T = __nv_bfloat16;                                                               \
            HALF_WITH_DIM_OF(dim, __VA_ARGS__);                                                    \
        } else {                                                                                   \
            using T = __half;                                                                      \
            HALF_WITH_DIM_OF(dim, __VA_ARGS__);                                                    \
        }                                                                                          \
    } while (0)
#define HALF_WITH_DIM_OF(dim, ...)                                                                 \
    do {                                                                                           \
        if ((dim) <= 64) {                                                                         \
            constexpr int D = 64;                                                                  \
            __VA_ARGS__;                                                                           \
        } else if ((dim) <= 128) {                                                                 \
            constexpr int D = 128;                                                                 \
            __VA_ARGS__;                                                                           \
        } else if ((dim) <= 256) {                                                                 \
            constexpr int D = 256;                                                                 \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            return fail(ERR_UNSUPPORTED,                                                           \
                        "attention: head dimension %d; on a GPU in 16 bits at most 256", (dim));   \
        }                                                                                          \
    } while (0)
