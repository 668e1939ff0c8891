/* LayerNorm of one row, forward and backward: what norm.cu and gate.cu share.
 *
 * A row lives in the registers of the threads that own it, half a warp, a warp or a block, so that
 * it is read once and the variance is taken around the true mean.  Gradients of weight and bias
 * stay in registers too: each thread keeps its columns while its block walks over rows; the block
 * then writes one partial sum, and a small kernel adds those in order. */
#pragma once

#include "cuda/core/kernel.cuh"

/* The register layout of a row: LANES threads share it, half a warp, one or a whole block; each has
 * 8 columns (in half a warp 4) as PARTS packs of V, which are LANES packs apart.  That leaves
 * registers for the next row, which is loaded while the current one is processed.  FORWARD and
 * BACKWARD are the minimum numbers of blocks on a multiprocessor, which bound the registers (96 or
 * 128). */
template <int LANES_, int V_, bool IS_PACKED_> struct row_tile {
    static constexpr int LANES = LANES_, V = V_, PARTS = LANES < WARP ? 1 : 8 / V;
    static constexpr bool IS_PACKED = IS_PACKED_;
    static constexpr int COLUMNS = LANES * PARTS * V;
    static constexpr int WARPS = LANES > WARP ? LANES / WARP : 1; /* of a row */
    static constexpr int THREADS = LANES <= WARP ? 128 : LANES;
    static constexpr int ROWS = THREADS / LANES; /* of a block at a time */
    static constexpr int FORWARD = THREADS > 128 ? 1 : 5;
    static constexpr int BACKWARD = THREADS > 128 ? 1 : V == 8 ? 5 : 4;
};

enum { NORM_MAX_DIM = 4096 };

/* Runs `...` with R as the tile for rows of `dim` activations of type T. */
#define NORM_WITH_TILE(T, dim, is_packed, ...)                                                     \
    do {                                                                                           \
        constexpr int V_ = columns_of<T>::PACKED;                                                  \
        if ((is_packed) && (dim) <= 256) {                                                         \
            using R = row_tile<32, V_, true>;                                                      \
            __VA_ARGS__;                                                                           \
        } else if ((is_packed) && (dim) <= 1024) {                                                 \
            using R = row_tile<128, V_, true>;                                                     \
            __VA_ARGS__;                                                                           \
        } else if (is_packed) {                                                                    \
            using R = row_tile<512, V_, true>;                                                     \
            __VA_ARGS__;                                                                           \
        } else if ((dim) <= 64) {                                                                  \
            using R = row_tile<16, 4, false>;                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using R = row_tile<512, 4, false>;                                                     \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* A part of a row, in its memory format and as floats. */
template <typename T, typename R> struct row_packs { columns<T, R::V> part[R::PARTS]; };
template <typename R> struct row_floats { float part[R::PARTS][R::V]; };

template <typename R> __device__ static inline int row_lane(void) {
    return (int)threadIdx.x % R::LANES;
}

/* The first column of part p. */
template <typename R> __device__ static inline int row_column(int p) {
    return (p * R::LANES + row_lane<R>()) * R::V;
}

/* Shared memory for the sums of one row's warps.  A sum has one barrier, before the warps' parts
 * are read; so between two sums in the same room there must be a sum in another room. */
template <typename R> struct row_room { float2 part[R::WARPS]; };

/* Two sums over a row at once; every thread gets them.  Two rows of a warp may be at different
 * places: their lanes do not wait for each other. */
template <typename R> __device__ static inline float2 row_sum2(float2 x, row_room<R> *room) {
    constexpr int LANES = R::LANES < WARP ? R::LANES : WARP;
    unsigned all = 0xffffffffu >> (WARP - LANES) << threadIdx.x % WARP / LANES * LANES;
#pragma unroll
    for (int lane = LANES / 2; lane > 0; lane /= 2) {
        x.x += __shfl_xor_sync(all, x.x, lane);
        x.y += __shfl_xor_sync(all, x.y, lane);
    }
    if (R::WARPS == 1) return x;
    if (threadIdx.x % WARP == 0) room->part[threadIdx.x / WARP] = x;
    __syncthreads();
    x = room->part[0];
#pragma unroll
    for (int w = 1; w < R::WARPS; w++) {
        x.x += room->part[w].x;
        x.y += room->part[w].y;
    }
    return x;
}

template <typename T, typename R>
__device__ static inline void row_load(row_packs<T, R> &x, const T *row, int dim) {
#pragma unroll
    for (int p = 0; p < R::PARTS; p++)
        x.part[p] = load_columns<R::IS_PACKED, R::V>(row, row_column<R>(p), dim);
}

/* Mean and 1 / sqrt(variance + eps); an rms norm takes the variance around 0.  Columns beyond the
 * end are zeros, which do not change the mean; the variance must leave them out. */
template <typename T, typename R>
__device__ static inline void norm_row_statistics(const row_packs<T, R> &x, int dim, float eps,
                                                  row_room<R> (&room)[2], float *mean, float *rstd,
                                                  bool is_rms = false) {
    float sum = 0, squares = 0, share = 1.0f / (float)dim;
#pragma unroll
    for (int p = 0; p < R::PARTS; p++)
#pragma unroll
        for (int j = 0; j < R::V; j++)
            sum += column(x.part[p], j);
    float m = row_sum2<R>(make_float2(sum, 0), &room[0]).x * share;
    if (is_rms) m = 0;
#pragma unroll
    for (int p = 0; p < R::PARTS; p++)
#pragma unroll
        for (int j = 0; j < R::V; j++) {
            float d = column(x.part[p], j) - m;
            if (row_column<R>(p) + (R::IS_PACKED ? 0 : j) < dim) squares += d * d;
        }
    *mean = m;
    squares = row_sum2<R>(make_float2(squares, 0), &room[1]).x;
    *rstd = 1.0f / sqrtf(squares * share + eps);
}

/* The affine part, (dim) or NULL each, for the columns of a thread. */
template <typename R> struct row_affine { float weight[R::PARTS][R::V], bias[R::PARTS][R::V]; };

template <typename R>
__device__ static inline void row_affine_load(row_affine<R> &affine, const float *weight,
                                              const float *bias, int dim) {
#pragma unroll
    for (int p = 0; p < R::PARTS; p++) {
        columns<float, R::V> w, b;
        if (weight != NULL) w = load_columns<R::IS_PACKED, R::V>(weight, row_column<R>(p), dim);
        if (bias != NULL) b = load_columns<R::IS_PACKED, R::V>(bias, row_column<R>(p), dim);
#pragma unroll
        for (int j = 0; j < R::V; j++) {
            affine.weight[p][j] = weight != NULL ? column(w, j) : 1;
            affine.bias[p][j] = bias != NULL ? column(b, j) : 0;
        }
    }
}

/* y = (x - mean) rstd * weight + bias of part p. */
template <typename R, typename T>
__device__ static inline void norm_row_apply(const columns<T, R::V> &x, int p, float mean,
                                             float rstd, const row_affine<R> &affine,
                                             float (&y)[R::V]) {
#pragma unroll
    for (int j = 0; j < R::V; j++)
        y[j] = (column(x, j) - mean) * rstd * affine.weight[p][j] + affine.bias[p][j];
}

/* A thread's sums over the rows of its block, for the columns it owns. */
template <typename R> struct norm_sums { float dweight[R::PARTS][R::V], dbias[R::PARTS][R::V]; };

template <typename R> __device__ static inline void norm_sums_clear(norm_sums<R> &sums) {
#pragma unroll
    for (int p = 0; p < R::PARTS; p++)
#pragma unroll
        for (int j = 0; j < R::V; j++)
            sums.dweight[p][j] = sums.dbias[p][j] = 0;
}

/* Turns d from the gradient of the norm's output into the gradient of its input, rstd (g - mean(g)
 * - h mean(g h)), where g = d * weight and h is the normalised x; adds the gradients of weight and
 * bias to sums.  An rms norm has no mean(g).  In columns beyond the end d is 0. */
template <typename T, typename R>
__device__ static inline void norm_row_backward(const row_packs<T, R> &x, int dim, float mean,
                                                float rstd, const row_affine<R> &affine,
                                                row_room<R> *room, row_floats<R> &d,
                                                norm_sums<R> &sums, bool is_rms = false) {
    float sum = 0, dot = 0, share = 1.0f / (float)dim;
    row_floats<R> h;
#pragma unroll
    for (int p = 0; p < R::PARTS; p++)
#pragma unroll
        for (int j = 0; j < R::V; j++) {
            h.part[p][j] = (column(x.part[p], j) - mean) * rstd;
            sums.dweight[p][j] += d.part[p][j] * h.part[p][j];
            sums.dbias[p][j] += d.part[p][j];
            d.part[p][j] *= affine.weight[p][j];
            sum += d.part[p][j];
            dot += d.part[p][j] * h.part[p][j];
        }
    float2 total = row_sum2<R>(make_float2(sum, dot), room);
    float level = is_rms ? 0 : rstd * total.x * share, slope = rstd * total.y * share;
#pragma unroll
    for (int p = 0; p < R::PARTS; p++)
#pragma unroll
        for (int j = 0; j < R::V; j++)
            d.part[p][j] = rstd * d.part[p][j] - level - h.part[p][j] * slope;
}

/* The block's sums become its partials: (2, dim), dweight and dbias.  The rows of a block add in
 * turn, so the order is fixed. */
template <typename R>
__device__ static inline void norm_sums_write(const norm_sums<R> &sums, int dim, float *partials) {
    __shared__ float total[2][R::ROWS > 1 ? R::COLUMNS : 1];
    float *out = partials + (int64_t)blockIdx.x * 2 * dim;
    for (int row = 0; row < R::ROWS; row++) {
        if ((int)threadIdx.x / R::LANES == row) {
#pragma unroll
            for (int i = 0; i < R::PARTS * R::V; i++) {
                int p = i / R::V, j = i % R::V, c = row_column<R>(p) + j;
                if (R::ROWS > 1) {
                    total[0][c] = (row > 0 ? total[0][c] : 0) + sums.dweight[p][j];
                    total[1][c] = (row > 0 ? total[1][c] : 0) + sums.dbias[p][j];
                } else if (c < dim) {
                    out[c] = sums.dweight[p][j];
                    out[dim + c] = sums.dbias[p][j];
                }
            }
        }
        __syncthreads();
    }
    for (int c = (int)threadIdx.x; R::ROWS > 1 && c < dim; c += R::THREADS) {
        out[c] = total[0][c];
        out[dim + c] = total[1][c];
    }
}

/* The first row of a thread, and the distance to its next row. */
template <typename R> __device__ static inline int64_t row_first(void) {
    return (int64_t)blockIdx.x * R::ROWS + (int)threadIdx.x / R::LANES;
}
template <typename R> __device__ static inline int64_t row_step(void) {
    return (int64_t)gridDim.x * R::ROWS;
}

/* Blocks of a kernel over n rows: as many as run at once, each over many rows. */
template <typename R, typename K>
static inline status norm_blocks(const backend *be, K *kernel, int64_t n, int64_t *out) {
    int n_resident;
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n_resident, kernel, R::THREADS, 0));
    int64_t most = (int64_t)cuda_of(be)->n_multiprocessors * (n_resident > 0 ? n_resident : 1);
    int64_t needed = cuda_div_up(n, R::ROWS);
    *out = needed < most ? needed : most;
    return OK;
}

template <typename T> static inline bool is_packed(const norm_args *a, bool is_backward) {
    const int v = columns_of<T>::PACKED;
    bool is = can_pack(a->x, a->dim, a->dim, sizeof(T), v) &&
              can_pack(a->weight, a->dim, a->dim, sizeof(float), v);
    if (is_backward)
        return is && can_pack(a->dy, a->dim, a->dim, sizeof(T), v) &&
               can_pack(a->dx, a->dim, a->dim, sizeof(T), v);
    return is && can_pack(a->y, a->dim, a->dim, sizeof(T), v) &&
           can_pack(a->bias, a->dim, a->dim, sizeof(float), v);
}

/* Adds n_partials partials of (2, dim) to the gradients, each of which may be NULL; in norm.cu. */
status cuda_norm_add_partials(backend *be, const float *partials, int64_t n_partials, int32_t dim,
                              float *dweight, float *dbias);

/* Launches a forward kernel of tile R over the rows of `a` (norm_args or gate_args); `what` is the
 * op's name, for messages. */
template <typename R, typename A>
static inline status norm_launch_fwd(backend *be, void (*kernel)(A), const A *a, const char *what) {
    int64_t n_blocks = 0;
    TRY(norm_blocks<R>(be, kernel, a->n, &n_blocks));
    return cuda_launch_early(be, what, kernel, n_blocks, R::THREADS, 0, *a);
}

/* Likewise for a backward kernel, with partial sums where the weight or the bias has a gradient;
 * the kernel may take one more argument. */
template <typename R, typename A, typename... MORE>
static inline status norm_launch_bwd(backend *be, void (*kernel)(A, float *, MORE...), const A *a,
                                     const char *what, const MORE &...more) {
    int64_t n_blocks = 0;
    void *partials = NULL;
    TRY(norm_blocks<R>(be, kernel, a->n, &n_blocks));
    if (a->dweight != NULL || a->dbias != NULL)
        TRY(cuda_scratch(be, (size_t)(n_blocks * 2 * a->dim) * sizeof(float), &partials));
    TRY(cuda_launch(be, what, kernel, n_blocks, R::THREADS, 0, *a, (float *)partials, more...));
    if (partials == NULL) return OK;
    return cuda_norm_add_partials(be, (const float *)partials, n_blocks, a->dim, a->dweight,
                                  a->dbias);
}

/* Whether a row is narrow enough to be kept in registers. */
static inline status norm_check_dim(int32_t dim) {
    if (dim <= NORM_MAX_DIM) return OK;
    return fail(ERR_UNSUPPORTED, "a norm over %d columns; a GPU supports at most %d", dim,
                NORM_MAX_DIM);
}

/* The body of an op over rows: runs `...`, which returns, with T as the type of activations and R
 * as the tile.  is_packed<T>(a, is_backward) is the op's own. */
#define NORM_RUN(be, a, is_backward, ...)                                                          \
    do {                                                                                           \
        if ((a)->n == 0 || (a)->dim == 0) return OK;                                               \
        TRY(norm_check_dim((a)->dim));                                                             \
        CUDA_WITH_ACT(be,                                                                          \
                      NORM_WITH_TILE(T, (a)->dim, (is_packed<T>((a), is_backward)), __VA_ARGS__)); \
    } while (0)
