#include "nn/layer.h"

typedef enum { SITE_ATTENTION, SITE_FFN, SITE_OUT, N_SITES } site_kind;

static status add_attention(sasrec_layer *l, param_list *params, int index) {
    int64_t e = l->config.dim;
    init_rule zero = {.kind = INIT_ZERO};
    char prefix[48];
    snprintf(prefix, sizeof prefix, "attention_layers.%d.", index);
    TRY(dense_add_params(params, prefix, "in_proj_", 3 * e, e, init_xavier_normal(e, 3 * e), zero,
                         &l->in_proj, &l->in_proj_bias));
    return dense_add_params(params, prefix, "out_proj.", e, e, init_xavier_normal(e, e), zero,
                            &l->out_proj, &l->out_proj_bias);
}

/* The FFN is a pair of convolutions of kernel size 1 in the reference; hence the last 1. */
static status add_ffn(sasrec_layer *l, param_list *params, int index) {
    int64_t e = l->config.dim, f = l->config.dim_ffn;
    init_rule from_e = {.kind = INIT_UNIFORM, .scale = 1 / sqrt((double)e)};
    init_rule from_f = {.kind = INIT_UNIFORM, .scale = 1 / sqrt((double)f)};
    char prefix[48];
    snprintf(prefix, sizeof prefix, "forward_layers.%d._conv1d.", index);
    TRY(dense_add_params(params, prefix, "0.", f, e, init_xavier_normal(e, f), from_e, &l->w1,
                         &l->b1));
    TRY(dense_add_params(params, prefix, "3.", e, f, init_xavier_normal(f, e), from_f, &l->w2,
                         &l->b2));
    l->w1->n_dims = l->w2->n_dims = 3;
    l->w1->shape[2] = l->w2->shape[2] = 1;
    return OK;
}

static status add_params(layer *of, const layer_config *c, param_list *params,
                         const layer_place *place) {
    sasrec_layer *l = &of->sasrec;
    l->config = c->sasrec;
    l->site = layer_site(of->kind, place->index);
    TRY(add_attention(l, params, place->index));
    return add_ffn(l, params, place->index);
}

static status alloc(layer_acts *acts, const layer *of, const layer_scratch *scratch,
                    const nn_room *room) {
    sasrec_acts *a = &acts->sasrec;
    const sasrec_layer_config *c = &of->sasrec.config;
    nn_memory *memory = room->memory;
    int64_t n = room->max_tokens;
    *a = (sasrec_acts){.max_tokens = n};
    TRY(nn_new_act(memory, &a->normed, n, c->dim));
    TRY(nn_new_act(memory, &a->q, n, c->dim));
    TRY(nn_new_act(memory, &a->kv, n, 2 * (int64_t)c->dim));
    TRY(nn_new_act(memory, &a->attn, n, c->dim));
    TRY(nn_new_act(memory, &a->sum, n, c->dim));
    TRY(nn_new_act(memory, &a->z, n, c->dim));
    TRY(nn_new_act(memory, &a->ffn_z, n, c->dim_ffn));
    TRY(nn_new_act(memory, &a->ffn, n, c->dim_ffn));
    TRY(NN_NEW(memory, &a->log_sum, n * c->n_heads));
    return NN_NEW(memory, &a->stats, 4 * n);
}

static status alloc_scratch(layer_scratch *scratch, const layer *of, const nn_room *room) {
    sasrec_scratch *s = &scratch->sasrec;
    const sasrec_layer_config *c = &of->sasrec.config;
    nn_memory *memory = room->memory;
    int64_t n = room->max_tokens;
    TRY(nn_new_act(memory, &s->a, n, c->dim));
    TRY(nn_new_act(memory, &s->b, n, c->dim));
    TRY(nn_new_act(memory, &s->d_ffn, n, c->dim_ffn));
    TRY(nn_new_act(memory, &s->d_q, n, c->dim));
    return nn_new_act(memory, &s->d_kv, n, 2 * (int64_t)c->dim);
}

/* The first third of the rows of in_proj makes the queries, the others keys and values. */
static linear_args q_of(const sasrec_layer *l, const sasrec_acts *acts, int64_t n) {
    linear_args a = linear_of_param(l->in_proj, l->in_proj_bias, n, acts->normed, acts->q);
    a.n_out = l->config.dim;
    return a;
}

static linear_args kv_of(const sasrec_layer *l, const sasrec_acts *acts, int64_t n, const void *x) {
    int32_t e = l->config.dim;
    linear_args a = linear_of_param(l->in_proj, l->in_proj_bias, n, x, acts->kv);
    a.n_out = 2 * e;
    a.w += (int64_t)e * e;
    a.bias += e;
    if (a.dw != NULL) a.dw += (int64_t)e * e;
    if (a.dbias != NULL) a.dbias += e;
    return a;
}

static linear_args ffn1_of(const sasrec_layer *l, const sasrec_acts *acts, int64_t n) {
    linear_args a = linear_of_param(l->w1, l->b1, n, acts->z, acts->ffn);
    a.f = l->config.f;
    a.z = acts->ffn_z;
    return a;
}

/* Norm 0 normalises the queries, norm 1 the sum after the attention. */
static norm_args norm_of(const sasrec_layer *l, const sasrec_acts *acts, int64_t n, int which,
                         const void *x, void *y) {
    return (norm_args){.n = n,
                       .dim = l->config.dim,
                       .eps = l->config.eps,
                       .x = x,
                       .y = y,
                       .mean = acts->stats + 2 * which * acts->max_tokens,
                       .rstd = acts->stats + (2 * which + 1) * acts->max_tokens};
}

static softmax_attn_args attn_of(const sasrec_layer *l, const sasrec_acts *acts, const backend *be,
                                 const sequences *s) {
    const sasrec_layer_config *c = &l->config;
    softmax_attn_args a =
        sequences_attn(s, c->dim, c->n_heads, c->dropout_rate, l->site + SITE_ATTENTION);
    a.q = acts->q;
    a.k = acts->kv;
    a.v = nn_act_at(be, acts->kv, c->dim);
    a.stride_q = c->dim;
    a.stride_k = a.stride_v = 2 * (int64_t)c->dim;
    a.out = acts->attn;
    a.log_sum = acts->log_sum;
    return a;
}

/* y = dropped(x) at one of the block's sites; does nothing where x is y and the rate is 0. */
static status drop(const sasrec_layer *l, backend *be, const sequences *s, site_kind site,
                   int32_t dim, const void *x, void *y) {
    dropout_args a = {.n = s->n_tokens, .dim = dim, .x = x, .y = y};
    a.drop = sequences_drop(s, l->config.dropout_rate, l->site + (uint32_t)site);
    return a.drop.rate == 0 && x == y ? OK : be->ops->dropout(be, &a);
}

/* y = x (+ residual), x being what a branch adds, or its gradient, with stochastic depth. */
static status drop_path(const layer *of, backend *be, const sequences *s, site_kind site,
                        const void *x, const void *residual, void *y) {
    const sasrec_layer *l = &of->sasrec;
    dropout_args a = sequences_path(s, of->path_rate, l->site + (uint32_t)site, l->config.dim);
    a.x = x;
    a.residual = residual;
    a.y = y;
    return be->ops->dropout(be, &a);
}

static bool has_path(const layer *of, const sequences *s) {
    return s->has_dropout && of->path_rate > 0;
}

static status attention_fwd(const layer *of, const sasrec_acts *acts, backend *be,
                            const sequences *s, const void *x) {
    const sasrec_layer *l = &of->sasrec;
    int64_t n = s->n_tokens;
    norm_args norm = norm_of(l, acts, n, 0, x, acts->normed),
              norm2 = norm_of(l, acts, n, 1, acts->sum, acts->z);
    linear_args q = q_of(l, acts, n), kv = kv_of(l, acts, n, x),
                out = linear_of_param(l->out_proj, l->out_proj_bias, n, acts->attn, acts->sum);
    softmax_attn_args attn = attn_of(l, acts, be, s);
    out.residual = has_path(of, s) ? NULL : acts->normed;
    TRY(be->ops->norm_fwd(be, &norm));
    TRY(be->ops->linear_fwd(be, &q));
    TRY(be->ops->linear_fwd(be, &kv));
    TRY(be->ops->softmax_attn_fwd(be, &attn));
    TRY(be->ops->linear_fwd(be, &out));
    if (has_path(of, s))
        TRY(drop_path(of, be, s, SITE_ATTENTION, acts->sum, acts->normed, acts->sum));
    return be->ops->norm_fwd(be, &norm2);
}

static status forward(const layer *of, const layer_acts *all, backend *be, const sequences *s,
                      const void *x, void *out) {
    const sasrec_layer *l = &of->sasrec;
    const sasrec_acts *acts = &all->sasrec;
    int64_t n = s->n_tokens;
    linear_args ffn1 = ffn1_of(l, acts, n), ffn2 = linear_of_param(l->w2, l->b2, n, acts->ffn, out);
    TRY(attention_fwd(of, acts, be, s, x));
    TRY(be->ops->linear_fwd(be, &ffn1));
    TRY(drop(l, be, s, SITE_FFN, l->config.dim_ffn, acts->ffn, acts->ffn));
    TRY(be->ops->linear_fwd(be, &ffn2));
    TRY(drop(l, be, s, SITE_OUT, l->config.dim, out, out));
    if (has_path(of, s)) return drop_path(of, be, s, SITE_OUT, out, acts->z, out);
    return be->ops->add(be, n * l->config.dim, acts->z, out);
}

/* d: gradient of out, then of z, to which the FFN adds its part. */
static status ffn_bwd(const layer *of, const sasrec_acts *acts, backend *be, const sequences *s,
                      const sasrec_scratch *scratch, void *d) {
    const sasrec_layer *l = &of->sasrec;
    int64_t n = s->n_tokens;
    linear_args ffn1 = ffn1_of(l, acts, n),
                ffn2 = linear_of_param(l->w2, l->b2, n, acts->ffn, NULL);
    TRY(drop(l, be, s, SITE_OUT, l->config.dim, d, scratch->a));
    if (has_path(of, s)) TRY(drop_path(of, be, s, SITE_OUT, scratch->a, NULL, scratch->a));
    ffn2.dy = scratch->a;
    ffn2.dx = scratch->d_ffn;
    TRY(be->ops->linear_bwd(be, &ffn2));
    TRY(drop(l, be, s, SITE_FFN, l->config.dim_ffn, scratch->d_ffn, scratch->d_ffn));
    ffn1.dy = scratch->d_ffn;
    ffn1.dx = d;
    ffn1.adds_dx = true;
    return be->ops->linear_bwd(be, &ffn1);
}

/* a: gradient of Q + attention; b: of the attention's output; then the queries' part is added to
 * a. */
static status attention_bwd(const layer *of, const sasrec_acts *acts, backend *be,
                            const sequences *s, const sasrec_scratch *scratch, const void *x,
                            void *d) {
    const sasrec_layer *l = &of->sasrec;
    int64_t n = s->n_tokens;
    linear_args q = q_of(l, acts, n), kv = kv_of(l, acts, n, x),
                out = linear_of_param(l->out_proj, l->out_proj_bias, n, acts->attn, NULL);
    softmax_attn_args attn = attn_of(l, acts, be, s);
    out.dy = has_path(of, s) ? scratch->d_q : scratch->a;
    if (has_path(of, s)) TRY(drop_path(of, be, s, SITE_ATTENTION, scratch->a, NULL, out.dy));
    out.dx = scratch->b;
    TRY(be->ops->linear_bwd(be, &out));
    attn.dout = scratch->b;
    attn.dq = scratch->d_q;
    attn.dk = scratch->d_kv;
    attn.dv = nn_act_at(be, scratch->d_kv, l->config.dim);
    TRY(be->ops->softmax_attn_bwd(be, &attn));
    q.dy = scratch->d_q;
    q.dx = scratch->a;
    q.adds_dx = true;
    TRY(be->ops->linear_bwd(be, &q));
    kv.dy = scratch->d_kv;
    kv.dx = d;
    return be->ops->linear_bwd(be, &kv);
}

static status backward(const layer *of, const layer_acts *all, const layer_scratch *shared,
                       backend *be, const sequences *s, const void *x, void *d) {
    const sasrec_layer *l = &of->sasrec;
    const sasrec_acts *acts = &all->sasrec;
    const sasrec_scratch *scratch = &shared->sasrec;
    int64_t n = s->n_tokens;
    TRY(ffn_bwd(of, acts, be, s, scratch, d));
    norm_args norm2 = norm_of(l, acts, n, 1, acts->sum, acts->z),
              norm = norm_of(l, acts, n, 0, x, acts->normed);
    norm2.dy = d;
    norm2.dx = scratch->a;
    TRY(be->ops->norm_bwd(be, &norm2));
    TRY(attention_bwd(of, acts, be, s, scratch, x, d));
    norm.dy = scratch->a;
    norm.dx = d;
    norm.adds_dx = true;
    return be->ops->norm_bwd(be, &norm);
}

const layer_kind sasrec_layer_kind = {.name = "sasrec",
                                      .n_sites = N_SITES,
                                      .add_params = add_params,
                                      .alloc_scratch = alloc_scratch,
                                      .alloc = alloc,
                                      .forward = forward,
                                      .backward = backward};
