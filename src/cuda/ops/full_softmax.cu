/* full_softmax (ops.h): not on a GPU yet. */
#include "cuda/core/kernel.cuh"

size_t cuda_full_softmax_scratch(backend *be, int64_t max_n, int32_t n_items, int32_t dim) {
    (void)be, (void)max_n, (void)n_items, (void)dim;
    return 0;
}

status cuda_full_softmax(backend *be, const full_softmax_args *a) {
    (void)be, (void)a;
    return fail(ERR_UNSUPPORTED, "FullSoftmaxLoss and shared labels of a batch run on the CPU");
}
