/* Copies between the device and pinned memory of the host by a kernel.  What is small and waited
 * for takes less time so than by cudaMemcpyAsync, which begins when the kernel before is complete.
 * On an H200 (2026-11-17), us with a kernel before or after and the wait:
 *                        to the device                               to the host
 *                        8 KB   24 KB   64 KB   192 KB   288 KB      5 KB   40 KB
 *     cudaMemcpyAsync    14.9    15.3    21.8     27.2     28.3      18.4    18.4
 *     kernel             13.8    13.8    15.2     20.9     24.0      11.0    11.7
 * The kernel starts early, which depends on __CUDA_ARCH__. */
#include "cuda/core/early.cuh"

enum { HOST_COPY_THREADS = 256, HOST_COPY_BLOCKS = 128 };

typedef struct host_copy_job {
    int64_t n;
    const uint4 *from;
    uint4 *to;
} host_copy_job;

/* 16 bytes a thread at a time, past the caches: the host may have written other bytes since. */
static __global__ void __launch_bounds__(HOST_COPY_THREADS)
    host_copy_any_kernel(const host_copy_job j) {
    int64_t step = (int64_t)gridDim.x * HOST_COPY_THREADS;
    early_begin_alone();
    for (int64_t i = (int64_t)blockIdx.x * HOST_COPY_THREADS + threadIdx.x; i < j.n; i += step)
        j.to[i] = __ldcv(j.from + i);
}

bool cuda_host_copy_can(const void *to, const void *from, size_t bytes) {
    const size_t size = sizeof(uint4);
    return bytes > 0 && bytes <= CUDA_HOST_COPY_MOST && bytes % size == 0 &&
           (uintptr_t)to % size == 0 && (uintptr_t)from % size == 0;
}

status cuda_host_copy(backend *be, void *to, const void *from, size_t bytes) {
    host_copy_job j = {(int64_t)(bytes / sizeof(uint4)), (const uint4 *)from, (uint4 *)to};
    int64_t n_blocks = cuda_div_up(j.n, HOST_COPY_THREADS);
    if (n_blocks > HOST_COPY_BLOCKS) n_blocks = HOST_COPY_BLOCKS;
    return early_launch(be, host_copy_any_kernel, n_blocks, HOST_COPY_THREADS, &j,
                        "a copy to or from the host");
}
