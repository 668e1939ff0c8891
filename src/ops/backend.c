#include "ops/ops.h"

#include <string.h>

#include "base/half.h"

void backend_destroy(backend *be) {
    if (be != NULL) be->destroy(be);
}

/* Two-byte elements are widened in place, from the last to the first. */
status backend_read_act(backend *be, float *to_host, const void *from, size_t n) {
    TRY(be->ops->copy_out(be, to_host, from, n * act_bytes(be->act)));
    for (size_t i = n; be->act != ACT_F32 && i-- > 0;) {
        uint16_t x;
        memcpy(&x, (const char *)to_host + i * sizeof x, sizeof x);
        to_host[i] = be->act == ACT_BF16 ? half_bf16_to_float(x) : half_f16_to_float(x);
    }
    return OK;
}

/* With CUDA, src/cuda/core/backend.cu makes one. */
#ifndef HSTU_HAS_CUDA
status backend_create_cuda(backend **out, const cuda_options *options) {
    (void)options;
    *out = NULL;
    return fail(ERR_UNSUPPORTED, "this build is without CUDA; put nvcc on PATH and run make");
}

status backend_visit_cuda(backend *be, const cuda_visit *visit) {
    (void)visit;
    return fail(ERR_UNSUPPORTED, "%s is not a GPU", be->name);
}
#endif
