/* HSTU attention, backward, on Hopper (contract: attn_args in ops/ops.h): which kernel for which
 * head dimensions and lengths. "whole": blocks work on whole sequences; "tiled": on tiles of keys,
 * for float16 always.
 */
#include "cuda/attn/sm90/attn_sm90_bwd_keys.cuh"

struct whole_d32 : bwd_sizes {
    static constexpr int D = 32, GROUPS = 1;
    static constexpr bool IS_WHOLE = true;
};
struct whole_d64 : bwd_sizes {
    static constexpr int D = 64, GROUPS = 1;
    static constexpr bool IS_WHOLE = true;
};
struct whole_d128 : bwd_sizes {
    static constexpr int D = 128, GROUPS = 2;
    static constexpr bool IS_WHOLE = true;
};
struct tiled_d32 : bwd_sizes {
    static constexpr int D = 32, GROUPS = 2;
};
struct tiled_d64 : bwd_sizes {
    static constexpr int D = 64, GROUPS = 2;
};
struct tiled_d128 : bwd_sizes {
    static constexpr int D = 128, GROUPS = 2;
};

static status choose_whole(backend *be, const attn_args *a) {
    using T = __nv_bfloat16;
    if (a->dim_qk == 32) return bwd_launch<T, bwd_shape<whole_d32>>(be, a);
    if (a->dim_qk == 64) return bwd_launch<T, bwd_shape<whole_d64>>(be, a);
    return bwd_launch<T, bwd_shape<whole_d128>>(be, a);
}

template <typename T> static status choose_tiled(backend *be, const attn_args *a) {
    if (a->dim_qk == 32) return bwd_launch<T, bwd_shape<tiled_d32>>(be, a);
    if (a->dim_qk == 64) return bwd_launch<T, bwd_shape<tiled_d64>>(be, a);
    return bwd_launch<T, bwd_shape<tiled_d128>>(be, a);
}

status cuda_attn_sm90_bwd(backend *be, const attn_args *a) {
    if (a->bias != BIAS_NONE) return cuda_attn_sm90_bwd_bias(be, a);
    if (be->act == ACT_F16) return choose_tiled<__half>(be, a);
    if (a->dim_qk == 256)
        return bwd_is_whole(be, a) ? cuda_attn_sm90_bwd_d256_short(be, a)
                                   : cuda_attn_sm90_bwd_d256(be, a);
    if (a->max_len_q <= 64 && a->max_len_k <= 64) return cuda_attn_sm90_bwd_single_tile(be, a);
    return bwd_is_whole(be, a) ? choose_whole(be, a) : choose_tiled<__nv_bfloat16>(be, a);
}
