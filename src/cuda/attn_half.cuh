/* What the attention kernels of 16-bit activations share: the job of one launch, tiles in shared
 * memory, products of tiles over a warp, masks and biases of the scores a thread holds.
 *
 * A block owns a tile of rows and walks over tiles of columns.  Rows are queries and columns keys,
 * or, transposed, the other way round: the gradient of the values is the forward pass with the
 * roles exchanged (dv_j = sum_i a_ij dout_i), and that of the keys is that of the queries.  So two
 * kernels do all, and only masks and biases ask which way round it is.
 *
 * A warp's scores lie as the products leave them (ptx.cuh): with g = l / 4 and t = l % 4,
 * x[m][n][e] of lane l is row 16 m + g + 8 (e / 2), column 8 n + 2 t + e % 2 of the warp's tile of
 * 32 rows. */
#ifndef HSTU_CUDA_ATTN_HALF_CUH
#define HSTU_CUDA_ATTN_HALF_CUH

#include "cuda/act.cuh"
#include "cuda/attn_bias.cuh"
#include "cuda/attn_mask.cuh"
#include "cuda/ptx.cuh"

/* Rows of (H, dim) numbers. */
typedef struct half_matrix {
    const void *p;
    int64_t stride; /* numbers between rows */
    int dim;
} half_matrix;

/* One launch. */
typedef struct half_job {
    attn_args a;
    bool is_transposed;       /* rows are keys */
    half_matrix row0, row1;   /* of rows: q, dout; transposed k, v */
    half_matrix col0, col1;   /* of columns: k, v; transposed q, dout */
    half_matrix out;          /* of rows */
    float factor;             /* of out */
    int copy_bytes;           /* 16, 4 or 2: what every address of the inputs is a multiple of */
    bool is_out_even;         /* pairs of outputs can be written at once */
    int first_head, n_heads;  /* heads of this launch */
    int n_tiles;              /* of rows, of the longest sequence */
    const uint32_t *buckets;  /* (BUCKET_CELLS) */
    bool wants_bias_grad;     /* backward, not transposed */
    bool is_table_shared;     /* other blocks add to the same numbers of dtable */
    unsigned long long *sums; /* of attn_bias.cuh */
} half_job;

/* The forward kernel's launcher, which the backward pass calls for dv. */
status half_fwd_launch(backend *be, const half_job *job);

/* What a block is about. */
typedef struct half_block {
    attn_seq s;
    int head;
    int first;          /* its first row */
    int n_rows, n_cols; /* lengths of the sequence */
    int begin, end;     /* columns that something of the tile may see are among these */
    int64_t row, col;   /* first rows of the sequence in the jagged arrays */
} half_block;

/* Bounds of the columns by the window alone, so that the walk does not pass over them one tile
 * after the other. */
template <int ROWS> __device__ static inline void half_bounds(const half_job &job, half_block *t) {
    const attn_args &a = job.a;
    const attn_seq &s = t->s;
    long long first = t->first, last = min(t->first + ROWS, t->n_rows) - 1, begin = 0;
    long long end = t->n_cols;
    if (a.func == NULL && !job.is_transposed) {
        first += s.shift, last += s.shift;
        if (a.window_left >= 0) begin = first - a.window_left;
        if (a.window_right >= 0) end = min(end, last + a.window_right + 1);
        if (first < s.n_contexts) end = max(end, (long long)s.history);
    } else if (a.func == NULL) {
        first -= s.shift, last -= s.shift;
        if (a.window_right >= 0 && s.n_contexts <= 0) begin = first - a.window_right;
        if (a.window_left >= 0) end = min(end, last + a.window_left + 1);
    }
    t->begin = (int)max(begin, 0ll);
    t->end = (int)max(end, 0ll);
}

/* Tiles of one sequence and head follow each other, so that the blocks which run at the same time
 * find the columns in the second cache; of these, tiles that see most come first.  What a block is
 * about lies in shared memory: registers are wanted elsewhere.  False if the sequence is not that
 * long. */
template <int ROWS>
__device__ static inline bool half_block_make(const half_job &job, half_block *t) {
    int tile = (int)(blockIdx.x % (unsigned)job.n_tiles);
    int pair = (int)(blockIdx.x / (unsigned)job.n_tiles);
    if (!job.is_transposed) tile = job.n_tiles - 1 - tile;
    if (threadIdx.x == 0) {
        attn_seq s = attn_seq_of(job.a, pair / job.n_heads);
        t->s = s;
        t->head = job.first_head + pair % job.n_heads;
        t->first = tile * ROWS;
        t->n_rows = job.is_transposed ? s.len_k : s.len_q;
        t->n_cols = job.is_transposed ? s.len_q : s.len_k;
        t->row = job.is_transposed ? s.row_k : s.row_q;
        t->col = job.is_transposed ? s.row_q : s.row_k;
        half_bounds<ROWS>(job, t);
    }
    __syncthreads();
    return t->first < t->n_rows;
}

__device__ static inline bool half_is_empty(const half_job &job, const half_block &t, int row,
                                            int n_rows, int col, int n_cols) {
    return job.is_transposed ? attn_tile_is_empty(job.a, t.s, col, col + n_cols, row, row + n_rows)
                             : attn_tile_is_empty(job.a, t.s, row, row + n_rows, col, col + n_cols);
}

__device__ static inline bool half_is_full(const half_job &job, const half_block &t, int row,
                                           int n_rows, int col, int n_cols) {
    return job.is_transposed ? attn_tile_is_full(job.a, t.s, col, col + n_cols, row, row + n_rows)
                             : attn_tile_is_full(job.a, t.s, row, row + n_rows, col, col + n_cols);
}

/* The first column of the first tile from `col` on in which something may be seen; a number not
 * less than `end` if there is none. */
template <int ROWS, int COLS>
__device__ static inline int half_next(const half_job &job, const half_block &t, int col) {
    while (col < t.end && half_is_empty(job, t, t.first, ROWS, col, COLS))
        col += COLS;
    return col;
}

/* ---- tiles in shared memory ----------------------------------------------------------------- */

/* Where 16 bytes of a tile of rows of WIDTH numbers lie: their place in the row is turned by the
 * row's number, so that the same column of eight rows is in eight different groups of banks.  A
 * tile starts at a multiple of its row's bytes, so columns can be chosen by exclusive or. */
template <int WIDTH> __device__ static inline uint32_t half_place(int row, int chunk) {
    int turn = WIDTH >= 64 ? row & 7 : row >> 1 & 3;
    return (uint32_t)(row * WIDTH * 2 + ((chunk ^ turn) << 4));
}

/* Copies that 16 bytes at once cannot do: head dims or strides such as 50 or 25. */
template <typename T, int D, int N, int THREADS>
__device__ static inline void half_load_odd(char *to, const T *from, int64_t stride, int dim,
                                            int n_rows, int copy_bytes) {
    if (copy_bytes == 4) {
        uint32_t address = shared_address(to);
#pragma unroll 4
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

/* Begins to copy a tile of N rows: row .. row + n_rows - 1 of the jagged rows, and zeros beyond
 * them and beyond dim. */
template <typename T, int D, int N, int THREADS>
__device__ static inline void half_load(char *to, const half_matrix &m, int64_t row, int n_rows,
                                        int head, int copy_bytes) {
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;
    static_assert(N % STEP == 0, "every thread copies the same number of chunks");
    const T *from = (const T *)m.p + row * m.stride + (int64_t)head * m.dim;
    if (copy_bytes != 16) {
        half_load_odd<T, D, N, THREADS>(to, from, m.stride, m.dim, n_rows, copy_bytes);
        return;
    }
    int first = (int)threadIdx.x / CHUNKS, chunk = (int)threadIdx.x % CHUNKS;
    uint32_t address = shared_address(to);
    if (8 * chunk >= m.dim) n_rows = 0;
    from += first * m.stride + 8 * chunk;
#pragma unroll
    for (int r = 0; r < N; r += STEP) {
        bool is_there = first + r < n_rows;
        cp_async<16>(address + half_place<D>(first + r, chunk), is_there ? (const void *)from : m.p,
                     is_there ? 16 : 0);
        from += STEP * m.stride;
    }
}

/* Writes a thread's outputs of the warp's tile that starts at row `row` of the sequence and column
 * `col` of the head: acc as scores lie, N columns / 8 of them. */
template <typename T, int N>
__device__ static inline void half_store(const half_job &job, const half_block &t, int row, int col,
                                         const float (*acc)[N][4]) {
    int lane = (int)threadIdx.x % 32;
    T *out = (T *)job.out.p + t.row * job.out.stride + (int64_t)t.head * job.out.dim;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + 16 * m + 8 * half + lane / 4;
            if (r >= t.n_rows) continue;
            T *to = out + (int64_t)r * job.out.stride;
#pragma unroll
            for (int n = 0; n < N; n++) {
                int c = col + 8 * n + 2 * (lane % 4);
                float x = acc[m][n][2 * half] * job.factor;
                float y = acc[m][n][2 * half + 1] * job.factor;
                if (job.is_out_even) {
                    if (c < job.out.dim) *(uint32_t *)(to + c) = cvt_pack<T>(x, y);
                } else {
                    if (c < job.out.dim) to[c] = from_float<T>(x);
                    if (c + 1 < job.out.dim) to[c + 1] = from_float<T>(y);
                }
            }
        }
}

/* ---- products over a warp ------------------------------------------------------------------- */

/* The lane's address in a tile for operands whose rows are rows of the product (A), or that
 * ldmatrix transposes (B of half_add_product): lanes 0 .. 15 are rows, 16 .. 31 the next chunk. */
template <int WIDTH>
__device__ static inline uint32_t half_lane_a(const char *tile, int row, int chunk) {
    int lane = (int)threadIdx.x % 32;
    return shared_address(tile) + half_place<WIDTH>(row + lane % 16, chunk + lane / 16);
}

/* ... and for operands whose rows are columns of the product (B of half_scores). */
template <int WIDTH> __device__ static inline uint32_t half_lane_b(const char *tile, int row) {
    int lane = (int)threadIdx.x % 32;
    return shared_address(tile) + half_place<WIDTH>(row + lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/* Two chunks k times further in the row of a lane's address: turned within 128 bytes, and then
 * added, which the instruction that loads does itself. */
__device__ static inline uint32_t half_chunks(uint32_t address, uint32_t k) {
    return (address ^ k % 4 << 5) + k / 4 * 128;
}

/* x = rows columns^T: 32 rows at `a`, 8 N columns at `b`, over D numbers. */
template <typename T, int D, int N>
__device__ static inline void half_scores(float (*x)[N][4], uint32_t a, uint32_t b) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[m][n][e] = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t row[2][4];
#pragma unroll
        for (uint32_t m = 0; m < 2; m++)
            ldmatrix_x4(row[m], half_chunks(a, k) + m * 16 * D * 2);
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
}

/* Columns 16 n .. 16 n + 15 of acc += p y: p 32 rows by 16 columns, y 16 rows at `b`. */
template <typename T, int N>
__device__ static inline void half_add_columns(float (*acc)[N][4], const uint32_t (*p)[4],
                                               uint32_t b, int n) {
    uint32_t y[4];
    ldmatrix_x4_trans(y, half_chunks(b, (uint32_t)n));
#pragma unroll
    for (int m = 0; m < 2; m++) {
        mma_m16n8k16<T>(acc[m][2 * n], p[m], y[0], y[1]);
        mma_m16n8k16<T>(acc[m][2 * n + 1], p[m], y[2], y[3]);
    }
}

/* All columns of it. */
template <typename T, int N>
__device__ static inline void half_add_product(float (*acc)[N][4], const uint32_t (*p)[4],
                                               uint32_t b) {
#pragma unroll
    for (int n = 0; n < N / 2; n++)
        half_add_columns<T>(acc, p, b, n);
}

/* Columns 16 k .. 16 k + 15 of what a thread holds as the left operand of half_add_product. */
template <typename T, int N>
__device__ static inline void half_operand(uint32_t (*p)[4], const float (*x)[N][4], int k) {
#pragma unroll
    for (int m = 0; m < 2; m++) {
        p[m][0] = cvt_pack<T>(x[m][2 * k][0], x[m][2 * k][1]);
        p[m][1] = cvt_pack<T>(x[m][2 * k][2], x[m][2 * k][3]);
        p[m][2] = cvt_pack<T>(x[m][2 * k + 1][0], x[m][2 * k + 1][1]);
        p[m][3] = cvt_pack<T>(x[m][2 * k + 1][2], x[m][2 * k + 1][3]);
    }
}

/* Puts columns 8 n .. 8 n + 7 of what the warp holds into a tile of WIDTH columns, from row `row`,
 * as its chunk `chunk`, for warps that need all columns of these rows. */
template <typename T, int WIDTH>
__device__ static inline void half_put(char *tile, int row, int chunk, const float *x0,
                                       const float *x1) {
    int lane = (int)threadIdx.x % 32;
    const float *x[2] = {x0, x1};
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + 16 * m + 8 * half + lane / 4;
            *(uint32_t *)(tile + half_place<WIDTH>(r, chunk) + lane % 4 * 4) =
                cvt_pack<T>(x[m][2 * half], x[m][2 * half + 1]);
        }
}

/* ---- masks ---------------------------------------------------------------------------------- */

/* The mask of the row that another lane has in hand. */
__device__ static inline attn_row_mask half_mask_from(const attn_row_mask &mask, int lane) {
    attn_row_mask m;
    m.first0 = __shfl_sync(0xffffffffu, mask.first0, lane);
    m.end0 = __shfl_sync(0xffffffffu, mask.end0, lane);
    m.first1 = __shfl_sync(0xffffffffu, mask.first1, lane);
    m.end1 = __shfl_sync(0xffffffffu, mask.end1, lane);
    return m;
}

/* Which of a thread's scores are seen: bit 4 n + e of seen[m].  (row, col) is where the warp's tile
 * starts.  Four lanes have the same rows: each computes the mask of one of a thread's four. */
template <int N>
__device__ static inline void half_see(const half_job &job, const attn_seq &s, int row, int col,
                                       uint32_t seen[2]) {
    int lane = (int)threadIdx.x % 32;
    row += lane / 4;
    col += lane % 4 * 2;
    attn_row_mask own = attn_mask_of(job.a, s, row + lane % 4 * 8);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        seen[m] = 0;
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            attn_row_mask mask = half_mask_from(own, lane / 4 * 4 + 2 * m + half);
#pragma unroll 2
            for (int c = 0; c < 2 * N; c++)
                seen[m] |= (uint32_t)attn_sees(job.a, s, mask, row + 16 * m + 8 * half,
                                               col + c / 2 * 8 + c % 2)
                           << (c / 2 * 4 + c % 2 + 2 * half);
        }
    }
}

/* The same where columns are queries.  Eight lanes have the same columns: each computes the masks
 * of two that are neighbours. */
template <int N>
__device__ static inline void half_see_transposed(const half_job &job, const attn_seq &s, int row,
                                                  int col, uint32_t seen[2]) {
    int lane = (int)threadIdx.x % 32, query = col + lane % 4 * 2 + lane / 4 % N * 8;
    attn_row_mask own0 = attn_mask_of(job.a, s, query), own1 = attn_mask_of(job.a, s, query + 1);
    row += lane / 4;
    seen[0] = seen[1] = 0;
#pragma unroll 1
    for (int n = 0; n < N; n++) {
        attn_row_mask mask0 = half_mask_from(own0, 4 * n + lane % 4);
        attn_row_mask mask1 = half_mask_from(own1, 4 * n + lane % 4);
        query = col + lane % 4 * 2 + 8 * n;
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t bits = (uint32_t)attn_sees(job.a, s, mask0, query, row + 8 * m) |
                            (uint32_t)attn_sees(job.a, s, mask1, query + 1, row + 8 * m) << 1;
            seen[m / 2] |= bits << (4 * n + m % 2 * 2);
        }
    }
}

/* Sets the scores x of pairs that do not see each other to zero, and y if it is not NULL.  The
 * SiLU of zero is zero, so these pairs have no part in what follows, whatever was there before. */
template <int N>
__device__ static inline void half_mask(const half_job &job, const half_block &t, int row, int col,
                                        float (*x)[N][4], float (*y)[N][4]) {
    uint32_t seen[2];
    if (job.is_transposed)
        half_see_transposed<N>(job, t.s, row, col, seen);
    else
        half_see<N>(job, t.s, row, col, seen);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                bool is_seen = seen[m] >> (4 * n + e) & 1;
                x[m][n][e] = is_seen ? x[m][n][e] : 0.0f;
                if (y != NULL) y[m][n][e] = is_seen ? y[m][n][e] : 0.0f;
            }
}

/* ---- biases --------------------------------------------------------------------------------- */

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

/* Where the biases of a block's pairs are.  Pairs that do not exist take those of the last ones
 * that do: nothing of them is left once the mask was applied, and there is no branch. */
typedef struct half_biases {
    int64_t table;           /* of row 0, column 0 of the sequence, in the table */
    int row_step, col_step;  /* in the table */
    const int64_t *row_time; /* of the sequence */
    const int64_t *col_time; /* of the sequence */
    const float *position;   /* of row 0, column 0 */
    int sign;                /* of a step along the columns in position; the rows' is opposite */
} half_biases;

__device__ static inline half_biases half_biases_of(const half_job &job, const half_block &t) {
    const attn_args &a = job.a;
    bool is_t = job.is_transposed;
    int64_t head = (int64_t)t.s.b * a.table_heads + (a.table_heads == 1 ? 0 : t.head);
    half_biases b;
    b.table = (head * a.table_len + t.s.shift) * a.table_len;
    b.row_step = is_t ? 1 : a.table_len;
    b.col_step = is_t ? a.table_len : 1;
    b.row_time = is_t ? a.key_time + t.s.row_k : a.query_time + t.s.row_q;
    b.col_time = is_t ? a.query_time + t.s.row_q : a.key_time + t.s.row_k;
    b.position = a.position_w + a.bias_len - 1 - t.s.shift;
    b.sign = is_t ? -1 : 1;
    return b;
}

template <typename T, int N>
__device__ static inline void half_add_table(const half_job &job, const half_block &t, int row,
                                             int col, float (*x)[N][4]) {
    half_biases b = half_biases_of(job, t);
    const T *table = (const T *)job.a.table + b.table;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const T *from = table + (int64_t)min(row + 8 * m, t.n_rows - 1) * b.row_step;
#pragma unroll
        for (int n = 0; n < 2 * N; n++) {
            int64_t c = min(col + n / 2 * 8 + n % 2, t.n_cols - 1);
            x[m / 2][n / 2][m % 2 * 2 + n % 2] += to_float(from[c * b.col_step]);
        }
    }
}

template <int N>
__device__ static inline void half_add_time(const half_job &job, const half_block &t,
                                            const half_tables *tables, int row, int col,
                                            float (*x)[N][4]) {
    half_biases b = half_biases_of(job, t);
#pragma unroll
    for (int n = 0; n < 2 * N; n++) {
        int c = min(col + n / 2 * 8 + n % 2, t.n_cols - 1);
        int64_t time = __ldg(b.col_time + c);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            int r = min(row + 8 * m, t.n_rows - 1);
            int bucket = attn_bucket(tables->buckets, __ldg(b.row_time + r), time);
            x[m / 2][n / 2][m % 2 * 2 + n % 2] +=
                __ldg(b.position + (c - r) * b.sign) + tables->time_w[bucket];
        }
    }
}

/* Adds the biases to the scores of the warp's tile that starts at (row, col). */
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

/* ---- SiLU ----------------------------------------------------------------------------------- */

/* With h = x / 2: silu(x) = h (1 + tanh h), one instruction of the slow kind. */
__device__ static inline float half_silu(float score, float half_alpha) {
    float h = score * half_alpha;
    return fmaf(h, tanh_approx(h), h);
}

/* 2 silu'(x) = (1 + tanh h) (1 + h (1 - tanh h)). */
__device__ static inline float half_slope(float score, float half_alpha) {
    float h = score * half_alpha, t = tanh_approx(h);
    return (1.0f + t) * fmaf(-h, t, 1.0f + h);
}

/* ---- the host's side ------------------------------------------------------------------------ */

static inline int half_copy_bytes(const half_job *job) {
    const half_matrix *m[4] = {&job->row0, &job->row1, &job->col0, &job->col1};
    int bytes = 16;
    for (int i = 0; i < 4; i++)
        while (m[i]->p != NULL && !can_pack(m[i]->p, m[i]->stride, m[i]->dim, 2, bytes / 2))
            bytes = bytes == 16 ? 4 : 2;
    return bytes;
}

/* A job of queries, or transposed of keys, but for its outputs. */
static inline half_job half_job_of(backend *be, const attn_args *a, bool is_transposed) {
    half_matrix q = {a->q, a->stride_q, a->dim_qk}, k = {a->k, a->stride_k, a->dim_qk};
    half_matrix v = {a->v, a->stride_v, a->dim_v}, dout = {a->dout, a->stride_out, a->dim_v};
    half_job job = {};
    job.a = *a;
    job.is_transposed = is_transposed;
    job.row0 = is_transposed ? k : q;
    job.row1 = is_transposed ? v : dout;
    job.col0 = is_transposed ? q : k;
    job.col1 = is_transposed ? dout : v;
    job.copy_bytes = half_copy_bytes(&job);
    job.n_heads = a->n_heads;
    job.buckets = cuda_of(be)->bucket_cells;
    return job;
}

static inline void half_job_out(half_job *job, void *out, int64_t stride, int dim, float factor) {
    job->out.p = out;
    job->out.stride = stride;
    job->out.dim = dim;
    job->factor = factor;
    job->is_out_even = can_pack(out, stride, dim, 2, 2);
}

/* Blocks of a launch with tiles of `rows` rows; sets n_tiles. */
static inline int64_t half_grid(half_job *job, int rows) {
    int max_len = job->is_transposed ? job->a.max_len_k : job->a.max_len_q;
    job->n_tiles = (int)cuda_div_up(max_len, rows);
    return (int64_t)job->n_tiles * job->a.n_sequences * job->n_heads;
}

/* The padded head dim; 0 if it is too large. */
static inline int half_dim(const attn_args *a) {
    int dim = a->dim_qk > a->dim_v ? a->dim_qk : a->dim_v;
    return dim <= 64 ? 64 : dim <= 128 ? 128 : dim <= 256 ? 256 : 0;
}

#endif
