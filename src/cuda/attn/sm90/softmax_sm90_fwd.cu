/* Softmax attention on Hopper, forward: which calls it takes, and with which tile sizes. */
#include "cuda/attn/sm90/softmax_sm90_fwd.cuh"

struct sparse_d64 : soft90_sizes {
    static constexpr int D = 64;
};
struct dense_d64 : soft90_sizes {
    static constexpr int D = 64, GROUPS = 2, STAGES = 3, BLOCKS = 2;
};
struct sparse_d128 : soft90_sizes {
    static constexpr int D = 128, BLOCKS = 2;
};
struct dense_d128 : soft90_sizes {
    static constexpr int D = 128, GROUPS = 2, BLOCKS = 1, STAGES = 3;
    static constexpr bool IS_PIPED = true;
};

static bool is_addressable(const void *rows, int64_t stride) {
    return (uintptr_t)rows % 16 == 0 && stride % 8 == 0 && stride > 0;
}

bool cuda_softmax_sm90_can_fwd(const backend *be, const softmax_attn_args *a) {
    return cuda_of(be)->sm == 90 && be->act != ACT_F32 && (a->dim == 64 || a->dim == 128) &&
           a->n_rows > 0 && is_addressable(a->q, a->stride_q) &&
           is_addressable(a->k, a->stride_k) && is_addressable(a->v, a->stride_v) &&
           a->stride_out % 2 == 0 && (uintptr_t)a->out % 4 == 0 &&
           (uintptr_t)a->mask.bits % 16 == 0;
}

/* Whether two row tiles should share the keys they load: rows see many tiles. */
static bool is_dense(const softmax_attn_args *a) {
    const mask_view *m = &a->mask;
    if (!mask_rule_is_span(&m->rule)) return m->n_tiles > 8 * m->n_begins;
    return m->rule.kind != MASK_SLIDING && a->max_len > 1024;
}

template <typename T> static status launch(backend *be, const softmax_attn_args *a) {
    if (a->dim == 64) {
        if (is_dense(a)) return soft90_launch<T, soft90_shape<dense_d64>>(be, a);
        return soft90_launch<T, soft90_shape<sparse_d64>>(be, a);
    }
    if (is_dense(a)) return soft90_launch<T, soft90_shape<dense_d128>>(be, a);
    return soft90_launch<T, soft90_shape<sparse_d128>>(be, a);
}

status cuda_softmax_sm90_fwd(backend *be, const softmax_attn_args *a) {
    if (be->act == ACT_BF16) return launch<__nv_bfloat16>(be, a);
    return launch<__half>(be, a);
}
