/* The device of a thread: a backend may be used by one thread after another, a server's worker and
 * its callers, say, and CUDA remembers for each thread which device it uses. */
#ifndef HSTU_CUDA_CORE_ENTER_H
#define HSTU_CUDA_CORE_ENTER_H

#include "cuda/core/cuda.h"

/* At the beginning of ops that a batch, or a call on the thread that computes (slot_call), may
 * begin with.  A guest's caller has set the device. */
static inline status cuda_enter(const backend *be) {
    const cuda_state *s = cuda_of(be);
    int device;
    if (s->is_guest) return OK;
    CUDA_TRY(cudaGetDevice(&device)); /* some nanoseconds: it does not ask the driver */
    if (device != s->device) CUDA_TRY(cudaSetDevice(s->device));
    return OK;
}

#endif
