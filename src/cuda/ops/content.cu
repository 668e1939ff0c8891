/* Rows of items made of their content (ops.h).  A warp owns a row of the result, its lanes the
 * columns, and a sum runs in the order of its elements; the limit is bytes.  Products with vectors
 * are in float32 whatever the activations are. */
#include "cuda/core/kernel.cuh"

enum { CONTENT_THREADS = 128, CONTENT_ROWS = CONTENT_THREADS / WARP };

/* The warp's row, or -1 after the last. */
__device__ static inline int32_t row_of_warp(int32_t n) {
    int64_t i = (int64_t)blockIdx.x * CONTENT_ROWS + (int)threadIdx.x / WARP;
    return i < n ? (int32_t)i : -1;
}

__device__ static inline float sum_column(const sparse_rows &rows, int32_t i, const float *x,
                                          int dim, int c) {
    float sum = 0;
    int32_t end = rows.begin[i + 1];
#pragma unroll 4
    for (int32_t k = rows.begin[i]; k < end; k++)
        sum += rows.weight[k] * x[(int64_t)rows.index[k] * dim + c];
    return sum;
}

static __global__ void __launch_bounds__(CONTENT_THREADS)
    content_fwd_any_kernel(const content_args a) {
    int32_t i = row_of_warp(a.n);
    if (i < 0) return;
    bool keeps = content_keeps(&a, i);
    for (int c = (int)threadIdx.x % WARP; c < a.dim; c += WARP) {
        int64_t at = (int64_t)i * a.dim + c;
        float y = a.n_vector > 0 ? a.y[at] : 0;
        if (keeps) y += a.own[at];
        a.y[at] = y + sum_column(a.values, i, a.table, a.dim, c);
    }
}

/* y (+)= rows x */
static __global__ void __launch_bounds__(CONTENT_THREADS)
    content_sum_any_kernel(const sparse_rows rows, int dim, const float *x, bool adds, float *y) {
    int32_t i = row_of_warp(rows.n);
    if (i < 0) return;
    for (int c = (int)threadIdx.x % WARP; c < dim; c += WARP) {
        int64_t at = (int64_t)i * dim + c;
        y[at] = (adds ? y[at] : 0) + sum_column(rows, i, x, dim, c);
    }
}

static __global__ void __launch_bounds__(CONTENT_THREADS)
    content_clear_any_kernel(const content_args a) {
    int32_t i = row_of_warp(a.n);
    if (i < 0 || content_keeps(&a, i)) return;
    for (int c = (int)threadIdx.x % WARP; c < a.dim; c += WARP)
        a.dy[(int64_t)i * a.dim + c] = 0;
}

static unsigned blocks_of(int32_t n) {
    return (unsigned)cuda_div_up(n, CONTENT_ROWS);
}

/* y = vector W, or dw += vector^T dy */
static status multiply(backend *be, const content_args *a, bool is_forward) {
    cuda_product p = {};
    if (a->n_vector == 0) return OK;
    p.m = is_forward ? a->n : a->n_vector, p.n = a->dim, p.k = is_forward ? a->n_vector : a->n;
    p.a = a->vector, p.row_a = a->n_vector, p.is_a_transposed = !is_forward;
    p.b = is_forward ? a->w : a->dy, p.row_b = p.row_d = a->dim;
    p.type = p.type_d = CUDA_R_32F;
    p.d = is_forward ? a->y : a->dw, p.c = is_forward ? NULL : p.d;
    return cuda_matmul(be, &p);
}

status cuda_content_fwd(backend *be, const content_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    TRY(multiply(be, a, true));
    return cuda_launch(be, "content_fwd", content_fwd_any_kernel, blocks_of(a->n), CONTENT_THREADS,
                       0, *a);
}

status cuda_content_bwd(backend *be, const content_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    TRY(multiply(be, a, false));
    if (a->pieces.n > 0) {
        TRY(cuda_launch(be, "content_bwd", content_sum_any_kernel, blocks_of(a->pieces.n),
                        CONTENT_THREADS, 0, a->pieces, a->dim, a->dy, false, a->sums));
        TRY(cuda_launch(be, "content_bwd", content_sum_any_kernel, blocks_of(a->items.n),
                        CONTENT_THREADS, 0, a->items, a->dim, a->sums, true, a->dtable));
    }
    return cuda_launch(be, "content_bwd", content_clear_any_kernel, blocks_of(a->n),
                       CONTENT_THREADS, 0, *a);
}
