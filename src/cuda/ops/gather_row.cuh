/* Where a row of the tables of a gather is (gather_args in ops/ops.h). */
#ifndef HSTU_CUDA_OPS_GATHER_ROW_CUH
#define HSTU_CUDA_OPS_GATHER_ROW_CUH

#include "ops/ops.h"

template <typename S>
__device__ static inline const S *gather_row(const gather_args &a, int64_t i) {
    const S *row = (const S *)a.table + i * a.dim;
    if (sizeof(S) == sizeof(float))
        for (int k = 0; k < a.n_far && i >= a.far[k].from; k++)
            row = (const S *)(a.far[k].rows + (i - a.far[k].from) * a.far[k].stride);
    return row;
}

#endif
