#include "ops/ops.h"

void backend_destroy(backend *be) {
    if (be != NULL) be->destroy(be);
}

/* With CUDA, src/cuda/backend.cu makes one. */
#ifndef HSTU_HAS_CUDA
status backend_create_cuda(backend **out, const cuda_options *options) {
    (void)options;
    *out = NULL;
    return fail(ERR_UNSUPPORTED, "this build is without CUDA; put nvcc on PATH and run make");
}
#endif
