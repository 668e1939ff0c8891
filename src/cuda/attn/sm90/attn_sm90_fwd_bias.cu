/* HSTU attention with a bias, forward, on Hopper: one shape of tiles for each head dim, so that
 * there are few kernels to compile.  Blocks are small, whatever the length: a bias takes longer
 * than the products, and several blocks a multiprocessor have both at the same time.
 *
 * Shared memory, in KB a block: queries + keys and values + a table
 *     D = 32:   2 x 4 + 2 x 2 x 4 + 2 x 8 = 40      D = 128:  16 + 2 x 2 x 16 + 2 x 8 = 96
 *     D = 64:   2 x 8 + 2 x 2 x 8 + 2 x 8 = 64      D = 256:  32 + 2 x 32 + 8 = 104 */
#include "cuda/attn/sm90/attn_sm90_fwd.cuh"

template <attn_bias BIAS> using bias_32 = fwd_shape<32, 1, 64, 2, 2, 16, 3, false, BIAS>;
template <attn_bias BIAS> using bias_64 = fwd_shape<64, 1, 64, 2, 2, 16, 3, false, BIAS>;
template <attn_bias BIAS> using bias_128 = fwd_shape<128, 1, 64, 2, 1, 16, 2, false, BIAS>;
template <attn_bias BIAS> using bias_256 = fwd_shape<256, 1, 64, 1, 1, 16, 2, false, BIAS>;

template <typename T, attn_bias BIAS> static status choose(backend *be, const attn_args *a) {
    switch (a->dim_qk) {
    case 32:
        return fwd_launch<T, bias_32<BIAS>>(be, a);
    case 64:
        return fwd_launch<T, bias_64<BIAS>>(be, a);
    case 128:
        return fwd_launch<T, bias_128<BIAS>>(be, a);
    default:
        return fwd_launch<T, bias_256<BIAS>>(be, a);
    }
}

template <typename T> static status launch(backend *be, const attn_args *a) {
    return a->bias == BIAS_TABLE ? choose<T, BIAS_TABLE>(be, a) : choose<T, BIAS_TIME>(be, a);
}

status cuda_attn_sm90_fwd_bias(backend *be, const attn_args *a) {
    return be->act == ACT_BF16 ? launch<__nv_bfloat16>(be, a) : launch<__half>(be, a);
}
