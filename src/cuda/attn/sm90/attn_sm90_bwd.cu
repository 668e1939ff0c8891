/* HSTU attention, backward, on Hopper (contract: attn_args in ops/ops.h): which kernel for which
 * heads and lengths. */
#include "cuda/attn/sm90/attn_sm90_bwd_keys.cuh"

template <typename T> static status choose(backend *be, const attn_args *a) {
    if (a->dim_qk == 32)
        return bwd_is_short(be, a) ? bwd_launch<T, bwd_shape<32, 1, true>>(be, a)
                                   : bwd_launch<T, bwd_shape<32, 2, false>>(be, a);
    if (a->dim_qk == 64)
        return bwd_is_short(be, a) ? bwd_launch<T, bwd_shape<64, 1, true>>(be, a)
                                   : bwd_launch<T, bwd_shape<64, 2, false>>(be, a);
    return bwd_is_short(be, a) ? bwd_launch<T, bwd_shape<128, 2, true>>(be, a)
                               : bwd_launch<T, bwd_shape<128, 2, false>>(be, a);
}

status cuda_attn_sm90_bwd(backend *be, const attn_args *a) {
    if (a->bias != BIAS_NONE) return cuda_attn_sm90_bwd_bias(be, a);
    if (a->dim_qk == 256)
        return bwd_is_short(be, a) ? cuda_attn_sm90_bwd_d256_short(be, a)
                                   : cuda_attn_sm90_bwd_d256(be, a);
    if (a->max_len_q <= 64 && a->max_len_k <= 64) return cuda_attn_sm90_bwd_single_tile(be, a);
    return be->act == ACT_BF16 ? choose<__nv_bfloat16>(be, a) : choose<__half>(be, a);
}
