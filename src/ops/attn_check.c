#include "ops/attn_check.h"

#include <math.h>

status attn_args_check(const attn_args *a) {
    if (a->n_heads < 1 || a->dim_qk < 1 || a->dim_v < 1)
        return fail(ERR_USAGE,
                    "attention: %d heads of dimension %d and %d; each must be at least 1",
                    a->n_heads, a->dim_qk, a->dim_v);
    if (a->pages.table != NULL && (a->pages.page_len < 1 || a->func != NULL || a->dq != NULL))
        return fail(ERR_USAGE, "attention: keys in pages are for the forward pass, without func");
    if (a->func != NULL && (a->n_func < 1 || a->n_func % 2 == 0))
        return fail(ERR_USAGE, "attention: n_func is %d; it must be odd", a->n_func);
    if (a->n_targets != NULL && a->target_group < 1)
        return fail(ERR_USAGE, "attention: target_group is %d; it must be at least 1",
                    a->target_group);
    if (a->bias == BIAS_TIME && a->bias_len < a->max_len_k)
        return fail(ERR_USAGE,
                    "attention: the position bias is made for sequences of %d, but they may have "
                    "%d; raise bias_len",
                    a->bias_len, a->max_len_k);
    if (a->bias == BIAS_TABLE &&
        (a->table_len < a->max_len_k || (a->table_heads != 1 && a->table_heads != a->n_heads)))
        return fail(ERR_USAGE,
                    "attention: a bias table of %d heads and length %d does not fit %d heads and "
                    "length %d",
                    a->table_heads, a->table_len, a->n_heads, a->max_len_k);
    return OK;
}

status softmax_attn_args_check(const softmax_attn_args *a) {
    if (a->n_heads < 1 || a->dim < 1 || a->dim > SOFTMAX_ATTN_MAX_DIM)
        return fail(ERR_USAGE,
                    "softmax attention: %d heads of dimension %d; at least 1 of dimension 1 to %d",
                    a->n_heads, a->dim, SOFTMAX_ATTN_MAX_DIM);
    if (!(a->silu_scale >= 0 && isfinite(a->silu_scale)))
        return fail(ERR_USAGE, "softmax attention: silu_scale is %g; 0 for a softmax, or positive",
                    (double)a->silu_scale);
    if (!mask_rule_is_span(&a->mask.rule) && a->mask.first == NULL && a->n_sequences > 0)
        return fail(ERR_USAGE,
                    "softmax attention: this kind of mask needs lists of tiles (mask_batch)");
    return OK;
}
