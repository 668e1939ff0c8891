/* Sums and maxima of two arrays: the additions of collectives with a fixed order. */
#include "ops/combine.h"

#include "cuda/core/kernel.cuh"

enum { COMBINE_THREADS = 256, MAX_BLOCKS = 4096 };

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
static __global__ void __launch_bounds__(COMBINE_THREADS)
    combine_arrays_any_kernel(int64_t n, const T *from, T *to, bool is_sum) {
    int64_t step = (int64_t)gridDim.x * COMBINE_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * COMBINE_THREADS + threadIdx.x; i < n; i += step) {
        T a = to[i], b = from[i];
        to[i] = is_sum ? sum_of(a, b) : a > b ? a : b;
    }
}

template <typename T>
static void run(cudaStream_t stream, comm_rule rule, int64_t n, const void *from, void *to) {
    int64_t blocks = cuda_div_up(n, COMBINE_THREADS);
    if (blocks > MAX_BLOCKS) blocks = MAX_BLOCKS;
    combine_arrays_any_kernel<T><<<(unsigned)blocks, COMBINE_THREADS, 0, stream>>>(
        n, (const T *)from, (T *)to, rule == COMM_SUM);
}

extern "C" status combine_cuda(void *stream, comm_type type, comm_rule rule, int64_t n,
                               const void *from, void *to) {
    cudaStream_t on = (cudaStream_t)stream;
    if (n == 0) return OK;
    switch (type) {
    case COMM_F32:
        run<float>(on, rule, n, from, to);
        break;
    case COMM_F64:
        run<double>(on, rule, n, from, to);
        break;
    case COMM_I64:
        run<int64_t>(on, rule, n, from, to);
        break;
    case COMM_U8:
        run<uint8_t>(on, rule, n, from, to);
        break;
    case COMM_BF16:
        run<__nv_bfloat16>(on, rule, n, from, to);
        break;
    case COMM_F16:
        run<__half>(on, rule, n, from, to);
        break;
    }
    return cuda_launched("combine");
}
