/* Softmax attention on Hopper, forward: which calls it takes, and with which tile sizes.
 *
 * Times that set them, in us (H200, 2026-11-16; 12 heads, bfloat16, by replay; sm80: the kernel for
 * every card).  Four warpgroups a multiprocessor beat three with more registers, which compute the
 * next scores while a product runs (1243 at 16 x 4096, causal).
 *                            causal                        sliding 64   longformer 32, 32
 *              1 x 128  8 x 1024  16 x 2048  16 x 4096      16 x 4096           16 x 4096
 *     D = 64   sm80  7.5      66.9        428       1566            199                 497
 *            sparse  4.3      45.0        339       1223            142                 319
 *             dense  4.7      46.8        320       1159            167                 378
 *     D = 128  sm80            117                  3096            322                 777
 *            sparse             79                  2185            282                 618
 *             dense             88                  2050            318                 724 */
#include "cuda/attn/sm90/softmax_sm90_fwd.cuh"
#include "ops/mask_rule.h"

struct sparse_d64 : soft90_sizes {
    static constexpr int D = 64;
};
struct dense_d64 : soft90_sizes {
    static constexpr int D = 64, GROUPS = 2, STAGES = 4, BLOCKS = 2;
};
struct sparse_d128 : soft90_sizes {
    static constexpr int D = 128, BLOCKS = 2;
};
struct dense_d128 : soft90_sizes {
    static constexpr int D = 128, GROUPS = 2, BLOCKS = 1, STAGES = 3;
};

bool cuda_softmax_sm90_can_fwd(const backend *be, const softmax_attn_args *a) {
    return cuda_of(be)->sm == 90 && be->act != ACT_F32 && (a->dim == 64 || a->dim == 128) &&
           a->n_rows > 0 && is_addressable(a->q, a->stride_q) &&
           is_addressable(a->k, a->stride_k) && is_addressable(a->v, a->stride_v) &&
           a->stride_out % 2 == 0 && (uintptr_t)a->out % 4 == 0 &&
           (uintptr_t)a->mask.bits % 16 == 0;
}

static bool is_dense(const softmax_attn_args *a) {
    return mask_choice_shares(&a->mask.rule, a->mask.n_tiles, a->mask.n_begins, a->max_len);
}

/* SiLU has the sizes of sparse masks only: dense ones are those of HSTU's own kernels. */
struct silu_d64 : sparse_d64 {
    static constexpr bool IS_SILU = true;
};
struct silu_d128 : sparse_d128 {
    static constexpr bool IS_SILU = true;
};

/* Three row tiles share keys. */
static bool is_span(const softmax_attn_args *a) {
    return a->dim == 64 && a->silu_scale == 0 && mask_choice_is_span(&a->mask.rule, a->max_len);
}

/* No mask. */
static bool is_whole(const softmax_attn_args *a) {
    return a->mask.rule.kind == MASK_NONE && !a->mask.rule.is_causal;
}

template <typename T> static status launch(backend *be, const softmax_attn_args *a) {
    if (a->silu_scale != 0)
        return a->dim == 64 ? soft90_launch<T, soft90_shape<silu_d64>>(be, a)
                            : soft90_launch<T, soft90_shape<silu_d128>>(be, a);
    if (a->dim == 64) {
        if (is_dense(a)) return soft90_launch<T, soft90_shape<dense_d64>>(be, a);
        return soft90_launch<T, soft90_shape<sparse_d64>>(be, a);
    }
    return soft90_launch<T, soft90_shape<sparse_d128>>(be, a);
}

/* Not in float16: few models have such heads, and the sizes of sparse masks are 7 % slower. */
static bool is_dense_128(const backend *be, const softmax_attn_args *a) {
    return be->act == ACT_BF16 && a->dim == 128 && a->silu_scale == 0 && is_dense(a);
}

status cuda_softmax_sm90_fwd(backend *be, const softmax_attn_args *a) {
    if (is_span(a))
        return is_whole(a) ? cuda_softmax_sm90_whole(be, a) : cuda_softmax_sm90_dense(be, a);
    if (is_dense_128(be, a)) return soft90_launch<__nv_bfloat16, soft90_shape<dense_d128>>(be, a);
    if (be->act == ACT_BF16) return launch<__nv_bfloat16>(be, a);
    return launch<__half>(be, a);
}
