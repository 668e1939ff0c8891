/* HSTU attention with a bias, forward, on Hopper: one choice of tile sizes for each head dimension,
 * so that there are few kernels to compile.  Blocks are small at every length: a bias takes longer
 * than the products, and several blocks on a multiprocessor overlap the two.
 *
 * Shared memory, in KB a block: queries + keys and values + a table
 *     D = 32:   2 x 4 + 2 x 2 x 4 + 2 x 8 = 40      D = 128:  16 + 2 x 2 x 16 + 2 x 8 = 96
 *     D = 64:   2 x 8 + 2 x 2 x 8 + 2 x 8 = 64 */
#include "cuda/attn/sm90/attn_sm90_fwd.cuh"

template <attn_bias BIAS_> struct fwd_bias_sizes : fwd_sizes {
    static constexpr attn_bias BIAS = BIAS_;
    static constexpr int BOX = 16;
};
template <attn_bias BIAS_> struct fwd_bias_d32 : fwd_bias_sizes<BIAS_> {
    static constexpr int D = 32, BLOCKS = 3;
};
template <attn_bias BIAS_> struct fwd_bias_d64 : fwd_bias_sizes<BIAS_> {
    static constexpr int D = 64, BLOCKS = 3;
};
template <attn_bias BIAS_> struct fwd_bias_d128 : fwd_bias_sizes<BIAS_> {
    static constexpr int D = 128, BUFFERS = 1, BLOCKS = 2;
};

template <attn_bias BIAS> static status choose(backend *be, const attn_args *a) {
    using T = __nv_bfloat16;
    switch (a->dim_qk) {
    case 32:
        return fwd_launch<T, fwd_shape<fwd_bias_d32<BIAS>>>(be, a);
    case 64:
        return fwd_launch<T, fwd_shape<fwd_bias_d64<BIAS>>>(be, a);
    default:
        return fwd_launch<T, fwd_shape<fwd_bias_d128<BIAS>>>(be, a);
    }
}

status cuda_attn_sm90_fwd_bias(backend *be, const attn_args *a) {
    return a->bias == BIAS_TABLE ? choose<BIAS_TABLE>(be, a) : choose<BIAS_TIME>(be, a);
}
