/* HSTU attention (contract: attn_args in ops/ops.h): the choice between the kernels of float32,
 * those of 16-bit activations for any card, and those for Hopper alone. */
#include "cuda/core/cuda.h"
#include "ops/attn_check.h"

status cuda_attn_fwd(backend *be, const attn_args *a) {
    TRY(attn_args_check(a));
    if (be->act == ACT_F32) return cuda_attn_f32_fwd(be, a);
    return cuda_attn_sm90_can_fwd(be, a) ? cuda_attn_sm90_fwd(be, a) : cuda_attn_sm80_fwd(be, a);
}

status cuda_attn_bwd(backend *be, const attn_args *a) {
    TRY(attn_args_check(a));
    if (be->act == ACT_F32) return cuda_attn_f32_bwd(be, a);
    return cuda_attn_sm90_can_bwd(be, a) ? cuda_attn_sm90_bwd(be, a) : cuda_attn_sm80_bwd(be, a);
}
