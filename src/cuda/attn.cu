/* HSTU attention (contract: attn_args in ops/ops.h): the choice between the kernels of float32,
 * those of 16-bit activations for any card, and those for Hopper alone. */
#include "cuda/cuda.h"
#include "ops/attn_check.h"

status cuda_attn_fwd(backend *be, const attn_args *a) {
    TRY(attn_args_check(a));
    if (be->act == ACT_F32) return cuda_attn_f32_fwd(be, a);
    return cuda_attn_sm90a_can_fwd(be, a) ? cuda_attn_sm90a_fwd(be, a) : cuda_attn_half_fwd(be, a);
}

status cuda_attn_bwd(backend *be, const attn_args *a) {
    TRY(attn_args_check(a));
    if (be->act == ACT_F32) return cuda_attn_f32_bwd(be, a);
    return cuda_attn_sm90a_can_bwd(be, a) ? cuda_attn_sm90a_bwd(be, a) : cuda_attn_half_bwd(be, a);
}
