/* HSTU attention with a bias, backward, on Hopper: one choice of tile sizes for each head
 * dimension, so that there are few kernels to compile.  One warpgroup a block takes 0.81 to 0.98 of
 * the time of two (H200, 2026-11-15; head dimensions 32 and 64, sequences up to 200, 512 and 1024).
 *
 * The gradients of a bias are computed by another kernel (attn_sm90_bwd_dq_bias.cu); where they are
 * wanted, the kernel that owns keys computes only dk and dv. */
#include "cuda/attn/sm90/attn_sm90_bwd_keys.cuh"

template <attn_bias BIAS_> struct bwd_bias_d32 : bwd_sizes {
    static constexpr attn_bias BIAS = BIAS_;
    static constexpr int D = 32, GROUPS = 1;
};
template <attn_bias BIAS_> struct bwd_bias_d64 : bwd_sizes {
    static constexpr attn_bias BIAS = BIAS_;
    static constexpr int D = 64, GROUPS = 1;
};
template <attn_bias BIAS_> struct bwd_bias_d128 : bwd_sizes {
    static constexpr attn_bias BIAS = BIAS_;
    static constexpr int D = 128, GROUPS = 2;
};

template <attn_bias BIAS> static status choose(backend *be, const attn_args *a) {
    using T = __nv_bfloat16;
    if (a->dim_qk == 32) return bwd_launch<T, bwd_shape<bwd_bias_d32<BIAS>>>(be, a);
    if (a->dim_qk == 64) return bwd_launch<T, bwd_shape<bwd_bias_d64<BIAS>>>(be, a);
    return bwd_launch<T, bwd_shape<bwd_bias_d128<BIAS>>>(be, a);
}

status cuda_attn_sm90_bwd_bias(backend *be, const attn_args *a) {
    return a->bias == BIAS_TABLE ? choose<BIAS_TABLE>(be, a) : choose<BIAS_TIME>(be, a);
}
