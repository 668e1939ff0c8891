/* The GPU's part of exchanges between ranks, on a stream of the caller: sums and maxima of two
 * arrays in a fixed order (ops/comm.h), columns of heads packed for an exchange
 * (ops/row_moves.h), and rows picked and put by number (ops/row_moves.h).  Threads move 16 bytes
 * at a time where widths and addresses allow that; bound by bytes. */
#include "cuda/core/kernel.cuh"
#include "ops/comm.h"
#include "ops/row_moves.h"

enum { EXCHANGE_THREADS = 256 };
static const int64_t COMBINE_BLOCKS = 4096, MOVE_BLOCKS = 1 << 16;

static unsigned blocks_of(int64_t n, int64_t most) {
    int64_t n_blocks = cuda_div_up(n, EXCHANGE_THREADS);
    return (unsigned)(n_blocks < most ? n_blocks : most);
}

/* 16-bit numbers are added as floats, and rounded. */
template <typename T> __device__ static inline T sum_of(T a, T b) {
    return (T)(a + b);
}
__device__ static inline __nv_bfloat16 sum_of(__nv_bfloat16 a, __nv_bfloat16 b) {
    return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}
__device__ static inline __half sum_of(__half a, __half b) {
    return __float2half_rn(__half2float(a) + __half2float(b));
}

template <typename T>
static __global__ void __launch_bounds__(EXCHANGE_THREADS)
    combine_arrays_any_kernel(int64_t n, const T *from, T *to, bool is_sum) {
    int64_t step = (int64_t)gridDim.x * EXCHANGE_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * EXCHANGE_THREADS + threadIdx.x; i < n; i += step) {
        T a = to[i], b = from[i];
        to[i] = is_sum ? sum_of(a, b) : a > b ? a : b;
    }
}

template <typename T>
static status combine_run(void *stream, bool is_sum, int64_t n, const void *from, void *to) {
    combine_arrays_any_kernel<T>
        <<<blocks_of(n, COMBINE_BLOCKS), EXCHANGE_THREADS, 0, (cudaStream_t)stream>>>(
            n, (const T *)from, (T *)to, is_sum);
    return cuda_launched("combine");
}

extern "C" status combine_cuda(void *stream, comm_type type, comm_rule rule, int64_t n,
                               const void *from, void *to) {
    bool is_sum = rule == COMM_SUM;
    if (n == 0) return OK;
    switch (type) {
    case COMM_F32:
        return combine_run<float>(stream, is_sum, n, from, to);
    case COMM_F64:
        return combine_run<double>(stream, is_sum, n, from, to);
    case COMM_I64:
        return combine_run<int64_t>(stream, is_sum, n, from, to);
    case COMM_U8:
        return combine_run<uint8_t>(stream, is_sum, n, from, to);
    case COMM_BF16:
        return combine_run<__nv_bfloat16>(stream, is_sum, n, from, to);
    case COMM_F16:
        return combine_run<__half>(stream, is_sum, n, from, to);
    }
    return OK;
}

/* Widths, strides and places of `a` count elements of P. */
template <typename P>
static __global__ void __launch_bounds__(EXCHANGE_THREADS)
    head_parts_any_kernel(const __grid_constant__ head_parts a, int64_t row, bool is_back) {
    P *packed = (P *)a.packed, *whole = (P *)a.whole;
    int64_t n = a.n * a.n_parts * row, step = (int64_t)gridDim.x * EXCHANGE_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * EXCHANGE_THREADS + threadIdx.x; at < n; at += step) {
        int64_t column = at % row, i = at / row % a.n, part = at / row / a.n, to = 0;
#pragma unroll
        for (int b = 0; b < HEAD_BLOCKS; b++) {
            int64_t width = b < a.n_blocks ? a.width[b] : 0;
            if (column >= 0 && column < width) to = a.first[b] + part * width + column;
            column -= width;
        }
        P *there = whole + i * a.stride + to;
        if (is_back)
            *there = packed[at];
        else
            packed[at] = *there;
    }
}

template <typename P> static status run(cudaStream_t stream, head_parts a, bool is_back) {
    const int64_t size = (int64_t)sizeof(P);
    for (int b = 0; b < a.n_blocks; b++) {
        a.first[b] /= size;
        a.width[b] /= size;
    }
    a.stride /= size;
    int64_t row = head_parts_row(&a), n = a.n * a.n_parts * row;
    if (n == 0) return OK;
    head_parts_any_kernel<P>
        <<<blocks_of(n, MOVE_BLOCKS), EXCHANGE_THREADS, 0, stream>>>(a, row, is_back);
    return cuda_launched("columns of heads");
}

extern "C" status head_parts_cuda(void *stream, const head_parts *a, bool is_back) {
    uint64_t all =
        (uint64_t)(uintptr_t)a->whole | (uint64_t)(uintptr_t)a->packed | (uint64_t)a->stride;
    for (int b = 0; b < a->n_blocks; b++)
        all |= (uint64_t)(a->first[b] | a->width[b]);
    if (all % 16 == 0) return run<uint4>((cudaStream_t)stream, *a, is_back);
    return run<uint16_t>((cudaStream_t)stream, *a, is_back);
}

/* `width` elements of P are a row. */
template <typename P>
static __global__ void __launch_bounds__(EXCHANGE_THREADS)
    row_moves_any_kernel(const __grid_constant__ row_moves a, int64_t width, bool is_put) {
    P *picked = (P *)a.picked, *rows = (P *)a.rows;
    int64_t n = a.n * width, step = (int64_t)gridDim.x * EXCHANGE_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * EXCHANGE_THREADS + threadIdx.x; at < n; at += step) {
        P *there = rows + a.index[at / width] * width + at % width;
        if (is_put)
            *there = picked[at];
        else
            picked[at] = *there;
    }
}

template <typename P> static status run(cudaStream_t stream, const row_moves *a, bool is_put) {
    int64_t width = a->row_bytes / (int64_t)sizeof(P);
    if (a->n * width == 0) return OK;
    row_moves_any_kernel<P>
        <<<blocks_of(a->n * width, MOVE_BLOCKS), EXCHANGE_THREADS, 0, stream>>>(*a, width, is_put);
    return cuda_launched("rows by number");
}

extern "C" status row_moves_cuda(void *stream, const row_moves *a, bool is_put) {
    uint64_t all =
        (uint64_t)(uintptr_t)a->picked | (uint64_t)(uintptr_t)a->rows | (uint64_t)a->row_bytes;
    if (all % 16 == 0) return run<uint4>((cudaStream_t)stream, a, is_put);
    if (all % 4 == 0) return run<uint32_t>((cudaStream_t)stream, a, is_put);
    return run<uint8_t>((cudaStream_t)stream, a, is_put);
}
