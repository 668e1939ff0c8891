/* Waiting for the GPU, seen by the watchdog of a job of ranks (base/range.h). */
#ifndef HSTU_CUDA_CORE_WAIT_H
#define HSTU_CUDA_CORE_WAIT_H

#include <cuda_runtime.h>

#include "base/range.h"

static inline cudaError_t cuda_wait_stream(cudaStream_t stream) {
    wait_kind before = waits_begin(WAIT_GPU);
    cudaError_t error = cudaStreamSynchronize(stream);
    waits_end(before);
    return error;
}

static inline cudaError_t cuda_wait_event(cudaEvent_t event) {
    wait_kind before = waits_begin(WAIT_GPU);
    cudaError_t error = cudaEventSynchronize(event);
    waits_end(before);
    return error;
}

/* A daemon that shares the GPU among processes can leave one waiting for its memory. */
static inline cudaError_t cuda_wait_malloc(void **out, size_t bytes) {
    wait_kind before = waits_begin(WAIT_GPU);
    cudaError_t error = cudaMalloc(out, bytes);
    waits_end(before);
    return error;
}

#endif
