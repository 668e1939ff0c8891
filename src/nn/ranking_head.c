#include "nn/ranking_head.h"

static const float L2_EPS = 1e-6f;

status ranking_add_params(ranking_head *h, const mlp_config *c, bool is_bits, param_list *params) {
    *h = (ranking_head){.dim = c->width[0], .is_bits = is_bits};
    return mlp_add_params(&h->net, c, params, "_mlp._mlp.");
}

int32_t ranking_n_columns(const ranking_head *h) {
    return h->net.config.width[h->net.config.n_layers];
}

status ranking_alloc(ranking_head *h, nn_memory *memory, int64_t max_loss, int64_t max_tokens) {
    TRY(choice_alloc(&h->tokens, memory, max_loss, max_tokens, h->dim));
    TRY(mlp_alloc(&h->net, memory, max_loss));
    TRY(nn_new_act(memory, &h->normed, max_loss, h->dim));
    TRY(nn_new_act(memory, &h->d_normed, max_loss, h->dim));
    TRY(nn_new_act(memory, &h->logits, max_loss, ranking_n_columns(h)));
    TRY(nn_new_act(memory, &h->d_logits, max_loss, ranking_n_columns(h)));
    return NN_NEW(memory, &h->scale, max_loss);
}

static l2_args l2_of(const ranking_head *h, int64_t n, const void *x) {
    return (l2_args){.n = n,
                     .dim = h->dim,
                     .eps = L2_EPS,
                     .x = x,
                     .y = h->normed,
                     .scale = h->scale,
                     .dy = h->d_normed};
}

status ranking_select(ranking_head *h, backend *be, const plan *p, const void *hidden,
                      const void **out) {
    const void *x = NULL;
    TRY(choice_fwd(&h->tokens, be, p, hidden, &x));
    l2_args l2 = l2_of(h, p->n_loss, x);
    *out = h->normed;
    return be->ops->l2_fwd(be, &l2);
}

status ranking_select_bwd(ranking_head *h, backend *be, const plan *p, const void *hidden,
                          void *d_hidden) {
    l2_args l2 = l2_of(h, p->n_loss, h->tokens.is_all ? hidden : h->tokens.x);
    l2.dx = choice_gradient(&h->tokens, d_hidden);
    TRY(be->ops->l2_bwd(be, &l2));
    return choice_bwd(&h->tokens, be, p, d_hidden);
}

status ranking_score(ranking_head *h, backend *be, const plan *p, const void *hidden,
                     const void **out) {
    const void *x = NULL;
    TRY(ranking_select(h, be, p, hidden, &x));
    *out = h->logits;
    return mlp_fwd(&h->net, be, p->n_loss, x, h->logits);
}

status ranking_train(ranking_head *h, backend *be, const plan *p, const void *hidden,
                     void *d_hidden, double *loss) {
    const void *logits = NULL;
    TRY(ranking_score(h, be, p, hidden, &logits));
    logits_loss_args a = {.n = p->n_loss,
                          .n_columns = ranking_n_columns(h),
                          .is_bits = h->is_bits,
                          .logits = logits,
                          .label = p->label.device,
                          .grad_scale = p->grad_scale.device,
                          .loss = loss,
                          .dlogits = h->d_logits};
    TRY(be->ops->logits_loss(be, &a));
    TRY(mlp_bwd(&h->net, be, p->n_loss, h->normed, h->d_logits, h->d_normed));
    return ranking_select_bwd(h, be, p, hidden, d_hidden);
}
