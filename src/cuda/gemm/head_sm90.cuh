/* What the kernels of the head of a ranking model share (head_args in ops/ops.h). */
#ifndef HSTU_CUDA_GEMM_HEAD_SM90_CUH
#define HSTU_CUDA_GEMM_HEAD_SM90_CUH

#include "cuda/core/kernel.cuh"
#include "cuda/core/ptx.cuh"
#include "cuda/gemm/linear_f.cuh"

enum {
    HEAD_ROWS = 16,
    HEAD_WARPS = 8,
    HEAD_THREADS = 32 * HEAD_WARPS,
    HEAD_MID = 128, /* most columns between the layers */
    HEAD_OUT = 16,  /* most columns of y */
    HEAD_STEP = 32  /* of dim: a lane reads 16 bytes of a row */
};

typedef struct head_job {
    int64_t n;
    int32_t dim, n_mid, n_out;
    float eps;
    epilogue f;
    const __nv_bfloat16 *x;  /* (T, dim) */
    const int32_t *index;    /* (n) or NULL */
    const __nv_bfloat16 *w1; /* (n_mid, dim) */
    const float *bias1;      /* (n_mid) or NULL */
    const float *w2;         /* (n_out, n_mid) */
    const float *bias2;      /* (n_out) or NULL */
    __nv_bfloat16 *y;        /* (n, n_out) */
} head_job;

/* Row i of the chosen ones, or NULL: it is all zeros. */
__device__ static inline const __nv_bfloat16 *head_row(const head_job &j, int64_t i) {
    if (i >= j.n) return NULL;
    int64_t token = j.index != NULL ? j.index[i] : i;
    return token >= 0 ? j.x + token * j.dim : NULL;
}

__device__ static inline float square_sum(uint4 x) {
    const uint32_t word[4] = {x.x, x.y, x.z, x.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 v = __bfloat1622float2(*(const __nv_bfloat162 *)&word[i]);
        sum += v.x * v.x + v.y * v.y;
    }
    return sum;
}

/* Few rows (head_few_sm90.cu). */
bool cuda_head_is_few(const backend *be, const head_job *j);
status cuda_head_few(backend *be, const head_job *j);

#endif
