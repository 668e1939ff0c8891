/* Sums and maxima of two arrays: the additions of collectives with a fixed order. */
#include "ops/combine.h"

#include "cuda/core/cuda.h"

enum { THREADS = 256, MAX_BLOCKS = 4096 };

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    combine_arrays_any_kernel(int64_t n, const T *from, T *to, bool is_sum) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        T a = to[i], b = from[i];
        to[i] = is_sum ? (T)(a + b) : a > b ? a : b;
    }
}

template <typename T>
static void run(cudaStream_t stream, comm_rule rule, int64_t n, const void *from, void *to) {
    int64_t blocks = cuda_div_up(n, THREADS);
    if (blocks > MAX_BLOCKS) blocks = MAX_BLOCKS;
    combine_arrays_any_kernel<T>
        <<<(unsigned)blocks, THREADS, 0, stream>>>(n, (const T *)from, (T *)to, rule == COMM_SUM);
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
    }
    return cuda_launched("combine");
}
