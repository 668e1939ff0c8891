#include "nn/sasrec_layer.h"

#include <math.h>
#include <stdio.h>

typedef enum { SITE_ATTENTION, SITE_FFN, SITE_OUT } site_kind;

static status add_attention(sasrec_layer *l, param_list *params, int index) {
    int64_t e = l->config.dim;
    init_rule zero = {.kind = INIT_ZERO};
    char prefix[48];
    snprintf(prefix, sizeof prefix, "attention_layers.%d.", index);
    param_spec in = {prefix, "in_proj_weight", 2, {3 * e, e}, init_xavier_normal(e, 3 * e), false};
    param_spec in_bias = {prefix, "in_proj_bias", 1, {3 * e}, zero, false};
    param_spec out = {prefix, "out_proj.weight", 2, {e, e}, init_xavier_normal(e, e), false};
    param_spec out_bias = {prefix, "out_proj.bias", 1, {e}, zero, false};
    TRY(param_add(params, &in, &l->in_proj));
    TRY(param_add(params, &in_bias, &l->in_proj_bias));
    TRY(param_add(params, &out, &l->out_proj));
    return param_add(params, &out_bias, &l->out_proj_bias);
}

/* The FFN is a pair of convolutions of kernel size 1 in the reference; hence the last 1. */
static status add_ffn(sasrec_layer *l, param_list *params, int index) {
    int64_t e = l->config.dim, f = l->config.dim_ffn;
    init_rule from_e = {.kind = INIT_UNIFORM, .scale = 1 / sqrt((double)e)};
    init_rule from_f = {.kind = INIT_UNIFORM, .scale = 1 / sqrt((double)f)};
    char prefix[48];
    snprintf(prefix, sizeof prefix, "forward_layers.%d._conv1d.", index);
    param_spec w1 = {prefix, "0.weight", 3, {f, e, 1}, init_xavier_normal(e, f), false};
    param_spec b1 = {prefix, "0.bias", 1, {f}, from_e, false};
    param_spec w2 = {prefix, "3.weight", 3, {e, f, 1}, init_xavier_normal(f, e), false};
    param_spec b2 = {prefix, "3.bias", 1, {e}, from_f, false};
    TRY(param_add(params, &w1, &l->w1));
    TRY(param_add(params, &b1, &l->b1));
    TRY(param_add(params, &w2, &l->w2));
    return param_add(params, &b2, &l->b2);
}

status sasrec_layer_add_params(sasrec_layer *l, const sasrec_layer_config *c, param_list *params,
                               int index) {
    *l = (sasrec_layer){.config = *c};
    TRY(add_attention(l, params, index));
    return add_ffn(l, params, index);
}

status sasrec_layer_alloc(sasrec_layer *l, nn_memory *memory, int64_t max_tokens) {
    const sasrec_layer_config *c = &l->config;
    l->max_tokens = max_tokens;
    TRY(nn_new_act(memory, &l->normed, max_tokens, c->dim));
    TRY(nn_new_act(memory, &l->q, max_tokens, c->dim));
    TRY(nn_new_act(memory, &l->kv, max_tokens, 2 * (int64_t)c->dim));
    TRY(nn_new_act(memory, &l->attn, max_tokens, c->dim));
    TRY(nn_new_act(memory, &l->sum, max_tokens, c->dim));
    TRY(nn_new_act(memory, &l->z, max_tokens, c->dim));
    TRY(nn_new_act(memory, &l->ffn_z, max_tokens, c->dim_ffn));
    TRY(nn_new_act(memory, &l->ffn, max_tokens, c->dim_ffn));
    TRY(NN_NEW(memory, &l->log_sum, max_tokens * c->n_heads));
    return NN_NEW(memory, &l->stats, 4 * max_tokens);
}

status sasrec_scratch_alloc(sasrec_scratch *s, const sasrec_layer_config *c, nn_memory *memory,
                            int64_t max_tokens) {
    TRY(nn_new_act(memory, &s->a, max_tokens, c->dim));
    TRY(nn_new_act(memory, &s->b, max_tokens, c->dim));
    TRY(nn_new_act(memory, &s->d_ffn, max_tokens, c->dim_ffn));
    TRY(nn_new_act(memory, &s->d_q, max_tokens, c->dim));
    return nn_new_act(memory, &s->d_kv, max_tokens, 2 * (int64_t)c->dim);
}

/* y = x W^T + b with rows first_row .. of a weight stored (n_out, n_in). */
static linear_args linear_of(const param *w, const param *b, int64_t first_row, int64_t n,
                             int32_t n_in, int32_t n_out) {
    return (linear_args){.n = n,
                         .n_in = n_in,
                         .n_out = n_out,
                         .is_transposed = true,
                         .f = EPILOGUE_NONE,
                         .w = w->value + first_row * n_in,
                         .bias = b->value + first_row,
                         .dw = w->grad + first_row * n_in,
                         .dbias = b->grad + first_row};
}

static linear_args q_of(const sasrec_layer *l, int64_t n) {
    int32_t e = l->config.dim;
    return linear_of(l->in_proj, l->in_proj_bias, 0, n, e, e);
}

static linear_args kv_of(const sasrec_layer *l, int64_t n) {
    int32_t e = l->config.dim;
    return linear_of(l->in_proj, l->in_proj_bias, e, n, e, 2 * e);
}

static linear_args out_of(const sasrec_layer *l, int64_t n) {
    int32_t e = l->config.dim;
    linear_args a = linear_of(l->out_proj, l->out_proj_bias, 0, n, e, e);
    a.x = l->attn;
    return a;
}

static linear_args ffn1_of(const sasrec_layer *l, int64_t n) {
    linear_args a = linear_of(l->w1, l->b1, 0, n, l->config.dim, l->config.dim_ffn);
    a.f = l->config.f;
    a.x = l->z;
    a.z = l->ffn_z;
    a.y = l->ffn;
    return a;
}

static linear_args ffn2_of(const sasrec_layer *l, int64_t n) {
    linear_args a = linear_of(l->w2, l->b2, 0, n, l->config.dim_ffn, l->config.dim);
    a.x = l->ffn;
    return a;
}

/* Norm 0 is that of the queries, norm 1 that behind the attention. */
static norm_args norm_of(const sasrec_layer *l, int64_t n, int which, const void *x, void *y) {
    return (norm_args){.n = n,
                       .dim = l->config.dim,
                       .eps = l->config.eps,
                       .x = x,
                       .y = y,
                       .mean = l->stats + 2 * which * l->max_tokens,
                       .rstd = l->stats + (2 * which + 1) * l->max_tokens};
}

static softmax_attn_args attn_of(const sasrec_layer *l, const backend *be, const sequences *s) {
    const sasrec_layer_config *c = &l->config;
    int32_t d = c->dim / c->n_heads;
    return (softmax_attn_args){
        .n_sequences = s->n_sequences,
        .n_heads = c->n_heads,
        .dim = d,
        .max_len = s->len_bound, /* the dropout's columns must not depend on the batch */
        .offsets = s->offsets,
        .q = l->q,
        .k = l->kv,
        .v = (char *)l->kv + (size_t)c->dim * act_bytes(be->act),
        .stride_q = c->dim,
        .stride_k = 2 * (int64_t)c->dim,
        .stride_v = 2 * (int64_t)c->dim,
        .out = l->attn,
        .stride_out = c->dim,
        .alpha = 1 / sqrtf((float)d),
        .drop = sequences_drop(s, c->dropout_rate, c->site + SITE_ATTENTION),
        .log_sum = l->log_sum};
}

/* y = dropped(x) at one of the block's sites; nothing where it is in place and off. */
static status drop(const sasrec_layer *l, backend *be, const sequences *s, site_kind site,
                   int32_t dim, const void *x, void *y) {
    dropout_args a = {.n = s->n_tokens, .dim = dim, .x = x, .y = y};
    a.drop = sequences_drop(s, l->config.dropout_rate, l->config.site + (uint32_t)site);
    return a.drop.rate == 0 && x == y ? OK : be->ops->dropout(be, &a);
}

static status attention_fwd(sasrec_layer *l, backend *be, const sequences *s, const void *x) {
    int64_t n = s->n_tokens;
    norm_args norm = norm_of(l, n, 0, x, l->normed), norm2 = norm_of(l, n, 1, l->sum, l->z);
    linear_args q = q_of(l, n), kv = kv_of(l, n), out = out_of(l, n);
    softmax_attn_args attn = attn_of(l, be, s);
    q.x = l->normed;
    q.y = l->q;
    kv.x = x;
    kv.y = l->kv;
    out.residual = l->normed;
    out.y = l->sum;
    TRY(be->ops->norm_fwd(be, &norm));
    TRY(be->ops->linear_fwd(be, &q));
    TRY(be->ops->linear_fwd(be, &kv));
    TRY(be->ops->softmax_attn_fwd(be, &attn));
    TRY(be->ops->linear_fwd(be, &out));
    return be->ops->norm_fwd(be, &norm2);
}

status sasrec_layer_fwd(sasrec_layer *l, backend *be, const sequences *s, const void *x,
                        void *out) {
    int64_t n = s->n_tokens;
    linear_args ffn1 = ffn1_of(l, n), ffn2 = ffn2_of(l, n);
    ffn2.y = out;
    TRY(attention_fwd(l, be, s, x));
    TRY(be->ops->linear_fwd(be, &ffn1));
    TRY(drop(l, be, s, SITE_FFN, l->config.dim_ffn, l->ffn, l->ffn));
    TRY(be->ops->linear_fwd(be, &ffn2));
    TRY(drop(l, be, s, SITE_OUT, l->config.dim, out, out));
    return be->ops->add(be, n * l->config.dim, l->z, out);
}

/* d: gradient of out, then of z, to which the FFN adds its part. */
static status ffn_bwd(sasrec_layer *l, backend *be, const sequences *s,
                      const sasrec_scratch *scratch, void *d) {
    linear_args ffn1 = ffn1_of(l, s->n_tokens), ffn2 = ffn2_of(l, s->n_tokens);
    TRY(drop(l, be, s, SITE_OUT, l->config.dim, d, scratch->a));
    ffn2.dy = scratch->a;
    ffn2.dx = scratch->d_ffn;
    TRY(be->ops->linear_bwd(be, &ffn2));
    TRY(drop(l, be, s, SITE_FFN, l->config.dim_ffn, scratch->d_ffn, scratch->d_ffn));
    ffn1.dy = scratch->d_ffn;
    ffn1.dx = d;
    ffn1.adds_dx = true;
    return be->ops->linear_bwd(be, &ffn1);
}

/* a: gradient of Q + attention; b: of the attention's output; then the queries' part joins a. */
static status attention_bwd(sasrec_layer *l, backend *be, const sequences *s,
                            const sasrec_scratch *scratch, const void *x, void *d) {
    int64_t n = s->n_tokens;
    linear_args q = q_of(l, n), kv = kv_of(l, n), out = out_of(l, n);
    softmax_attn_args attn = attn_of(l, be, s);
    out.dy = scratch->a;
    out.dx = scratch->b;
    TRY(be->ops->linear_bwd(be, &out));
    attn.dout = scratch->b;
    attn.dq = scratch->d_q;
    attn.dk = scratch->d_kv;
    attn.dv = (char *)scratch->d_kv + (size_t)l->config.dim * act_bytes(be->act);
    TRY(be->ops->softmax_attn_bwd(be, &attn));
    q.x = l->normed;
    q.dy = scratch->d_q;
    q.dx = scratch->a;
    q.adds_dx = true;
    TRY(be->ops->linear_bwd(be, &q));
    kv.x = x;
    kv.dy = scratch->d_kv;
    kv.dx = d;
    return be->ops->linear_bwd(be, &kv);
}

status sasrec_layer_bwd(sasrec_layer *l, backend *be, const sequences *s,
                        const sasrec_scratch *scratch, const void *x, void *d) {
    int64_t n = s->n_tokens;
    TRY(ffn_bwd(l, be, s, scratch, d));
    norm_args norm2 = norm_of(l, n, 1, l->sum, l->z), norm = norm_of(l, n, 0, x, l->normed);
    norm2.dy = d;
    norm2.dx = scratch->a;
    TRY(be->ops->norm_bwd(be, &norm2));
    TRY(attention_bwd(l, be, s, scratch, x, d));
    norm.dy = scratch->a;
    norm.dx = d;
    norm.adds_dx = true;
    return be->ops->norm_bwd(be, &norm);
}
