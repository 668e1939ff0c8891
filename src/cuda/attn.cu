/* HSTU attention (contract: attn_args in ops/ops.h): the choice between the kernels of 16-bit
 * activations, which tensor cores multiply, and those of float32. */
#include "cuda/cuda.h"
#include "ops/attn_check.h"

status cuda_attn_fwd(backend *be, const attn_args *a) {
    TRY(attn_args_check(a));
    return be->act == ACT_F32 ? cuda_attn_f32_fwd(be, a) : cuda_attn_half_fwd(be, a);
}

status cuda_attn_bwd(backend *be, const attn_args *a) {
    TRY(attn_args_check(a));
    return be->act == ACT_F32 ? cuda_attn_f32_bwd(be, a) : cuda_attn_half_bwd(be, a);
}
