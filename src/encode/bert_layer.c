#include "encode/bert_layer.h"

#include "nn/mlp.h"

static linear_packed_args linear_of(const bert_dense *d, int64_t n, const void *x, void *y) {
    return (linear_packed_args){
        .layer =
            {.n = n, .n_in = d->n_in, .n_out = d->n_out, .is_transposed = true, .x = x, .y = y},
        .packed = d->packed,
        .kernel = LINEAR_FASTEST};
}

status bert_dense_init(bert_dense *d, nn_memory *memory, const float *w, const float *bias,
                       int32_t n_in, int32_t n_out, bool wants_plain, float *room) {
    backend *be = memory->be;
    int64_t n = (int64_t)n_in * n_out;
    *d = (bert_dense){.n_in = n_in, .n_out = n_out};
    TRY(NN_NEW(memory, &d->bias, n_out));
    TRY(be->ops->copy_in(be, room, w, (size_t)n * sizeof *w));
    TRY(be->ops->copy_in(be, d->bias, bias, (size_t)n_out * sizeof *bias));
    linear_packed_args a = linear_of(d, 0, NULL, NULL);
    a.layer.w = room;
    a.layer.bias = d->bias;
    TRY(nn_pack(memory, &a));
    d->packed = a.packed;
    if (!wants_plain) return OK;
    /* A GPU's packed weights are plain already. */
    d->plain = d->packed;
    if (be->ops->stream(be) != NULL) return OK;
    TRY(nn_new(memory, &d->plain, n, sizeof *w));
    return be->ops->copy_in(be, d->plain, w, (size_t)n * sizeof *w);
}

status bert_acts_alloc(bert_acts *a, const bert_layer_config *c, nn_memory *memory,
                       int64_t tokens) {
    TRY(nn_new_act(memory, &a->qkv, tokens, 3 * (int64_t)c->dim));
    TRY(nn_new_act(memory, &a->attn, tokens, c->dim));
    TRY(nn_new_act(memory, &a->sum, tokens, c->dim));
    return nn_new_act(memory, &a->ffn, tokens, c->dim_ffn);
}

status bert_dense_forward(const bert_dense *d, backend *be, int64_t n, const void *x, epilogue f,
                          bool has_bias, void *y) {
    linear_packed_args a = linear_of(d, n, x, y);
    a.layer.f = f;
    if (has_bias) a.layer.bias = d->bias;
    return be->ops->linear_packed(be, &a);
}

static status attention(const bert_layer_config *c, const bert_acts *acts, backend *be,
                        const sequences *s, const mask_view *mask) {
    size_t part = (size_t)c->dim * act_bytes(be->act);
    int64_t stride = 3 * (int64_t)c->dim;
    softmax_attn_args a = {.n_sequences = s->n_sequences,
                           .n_heads = c->n_heads,
                           .dim = c->dim / c->n_heads,
                           .max_len = s->max_len,
                           .n_rows = s->n_tokens,
                           .offsets = s->offsets,
                           .mask = *mask,
                           .q = acts->qkv,
                           .k = (char *)acts->qkv + part,
                           .v = (char *)acts->qkv + 2 * part,
                           .stride_q = stride,
                           .stride_k = stride,
                           .stride_v = stride,
                           .out = acts->attn,
                           .stride_out = c->dim,
                           .alpha = 1 / sqrtf((float)(c->dim / c->n_heads))};
    return be->ops->softmax_attn_fwd(be, &a);
}

/* x = LN(x + the projection of y and its bias) */
static status project_and_norm(const bert_layer_config *c, const bert_acts *acts, backend *be,
                               int64_t n, const bert_dense *d, const void *y, const bert_norm *norm,
                               void *x) {
    linear_norm_args a = {.linear = linear_of(d, n, y, acts->sum),
                          .norm = {.n = n,
                                   .dim = c->dim,
                                   .eps = c->eps,
                                   .x = acts->sum,
                                   .shift = d->bias,
                                   .residual = x,
                                   .weight = norm->weight,
                                   .bias = norm->bias,
                                   .y = x}};
    return be->ops->linear_norm(be, &a);
}

/* In 16 bits gelu is computed by tanh in the product's own epilogue, which saves a pass over the
 * widest activations: a layer of BERT base over 16 x 2048 tokens takes 1.56 instead of 1.88 ms
 * (H200, 2026-11-16).  It differs from erf by 5e-4 at most, and the states of an encoder are no
 * farther from float32 than with erf (.000555 against .000558 of their size in float16). */
static epilogue activation(const bert_layer_config *c, const backend *be) {
    return c->f == EPILOGUE_GELU && be->act != ACT_F32 ? EPILOGUE_GELU_TANH : c->f;
}

status bert_layer_forward(const bert_layer *l, const bert_layer_config *c, const bert_acts *a,
                          backend *be, const sequences *s, const mask_view *mask, void *x) {
    int64_t n = s->n_tokens;
    TRY(bert_dense_forward(&l->qkv, be, n, x, EPILOGUE_NONE, true, a->qkv));
    TRY(attention(c, a, be, s, mask));
    TRY(project_and_norm(c, a, be, n, &l->out, a->attn, &l->attn_norm, x));
    TRY(bert_dense_forward(&l->up, be, n, x, activation(c, be), true, a->ffn));
    return project_and_norm(c, a, be, n, &l->down, a->ffn, &l->ffn_norm, x);
}
