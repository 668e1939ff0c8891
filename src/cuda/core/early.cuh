/* Kernels that start while the last blocks of the previous one still run (programmatic dependent
 * launch, SM 9.0): between short kernels this saves the time to start one.
 *
 * Each thread of such a kernel calls early_begin before the kernel touches memory that another
 * kernel may write or read: it lets the next kernel start where there is room, and waits until the
 * previous one is complete.  Files that use it are compiled for each card on its own. */
#ifndef HSTU_CUDA_CORE_EARLY_CUH
#define HSTU_CUDA_CORE_EARLY_CUH

#include "cuda/core/cuda.h"

__device__ static inline void early_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

/* The same without letting the next kernel start: it, and those after it, may read what this one
 * writes before they wait (as the attention reads sequences and pages, attn_args.is_repeated). */
__device__ static inline void early_begin_alone() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <typename A>
static inline status early_launch(backend *be, void (*kernel)(A), int64_t n_blocks, int n_threads,
                                  const A *a, const char *name) {
    const cuda_state *cuda = cuda_of(be);
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)n_blocks);
    config.blockDim = dim3((unsigned)n_threads);
    config.stream = cuda->stream;
    config.attrs = &attribute;
    config.numAttrs = cuda->sm >= 90 ? 1 : 0;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, *a);
    return error == cudaSuccess ? OK : cuda_failed(error, name);
}

#endif
