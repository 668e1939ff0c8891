/* Of a build for cards without Hopper's instructions (CUDA_SM without 90): the kernels of attn/sm90
 * and of X_sm90.cu are not there, and no call is for them. */
#include "cuda/ops/topk.cuh"

#define ABSENT(CAN, RUN, ARGS)                                                                     \
    bool CAN(const backend *, const ARGS *) {                                                      \
        return false;                                                                              \
    }                                                                                              \
    status RUN(backend *, const ARGS *) {                                                          \
        return fail(ERR_UNSUPPORTED, "this build has no kernels for SM 9.0");                      \
    }

ABSENT(cuda_attn_sm90_can_fwd, cuda_attn_sm90_fwd, attn_args)
ABSENT(cuda_attn_sm90_can_bwd, cuda_attn_sm90_bwd, attn_args)
ABSENT(cuda_attn_sm90_can_small, cuda_attn_sm90_small, attn_args)
ABSENT(cuda_attn_sm90_can_page, cuda_attn_sm90_page, attn_args)
ABSENT(cuda_softmax_sm90_can_fwd, cuda_softmax_sm90_fwd, softmax_attn_args)
ABSENT(cuda_softmax_sm90_can_bwd, cuda_softmax_sm90_bwd, softmax_attn_args)
ABSENT(cuda_residual_norm_sm90_can, cuda_residual_norm_sm90, residual_norm_args)
ABSENT(cuda_linear_small_can, cuda_linear_small, linear_packed_args)
ABSENT(cuda_linear_norm_small_can, cuda_linear_norm_small, linear_norm_args)
ABSENT(cuda_gather_moments_can, cuda_gather_moments, gather_args)
ABSENT(cuda_head_can, cuda_head, head_args)

#define ABSENT_PACKED(CAN, RUN)                                                                    \
    bool CAN(const backend *, const linear_packed_args *) {                                        \
        return false;                                                                              \
    }                                                                                              \
    status RUN(backend *, const linear_packed_args *, const linear_parts *) {                      \
        return fail(ERR_UNSUPPORTED, "this build has no kernels for SM 9.0");                      \
    }

ABSENT_PACKED(cuda_linear_large_can, cuda_linear_large)
ABSENT_PACKED(cuda_linear_fp8_can, cuda_linear_fp8)

bool cuda_linear_large_norms(const linear_packed_args *) {
    return false;
}

status cuda_linear_fp8_pack(backend *, const linear_args *, const linear_parts *) {
    return fail(ERR_UNSUPPORTED, "fp8 products: this build has no kernels for SM 9.0; build hstu "
                                 "with CUDA_SM=90, or use --dtype bfloat16");
}

bool topk_can_sm90(const backend *, const rank_args *) {
    return false;
}

topk_scan topk_scan_sm90(const backend *, const rank_args *) {
    return {};
}
