#include "nn/ranking_head.h"

static const float L2_EPS = 1e-6f;

status ranking_add_params(ranking_head *h, const mlp_config *c, loss_type loss,
                          param_list *params) {
    *h = (ranking_head){.dim = c->width[0], .loss = {.type = loss, .width = c->width[c->n_layers]}};
    return mlp_add_params(&h->net, c, params, "_mlp._mlp.");
}

int32_t ranking_n_columns(const ranking_head *h) {
    return h->loss.width;
}

status ranking_alloc(ranking_acts *a, const ranking_head *h, const nn_room *room) {
    int64_t n = room->max_loss;
    nn_memory *memory = room->memory;
    *a = (ranking_acts){0};
    TRY(choice_alloc(&a->tokens, room, h->dim));
    TRY(mlp_alloc(&a->net, &h->net, room, n));
    TRY(nn_new_act(memory, &a->normed, n, h->dim));
    TRY(nn_new_act(memory, &a->logits, n, ranking_n_columns(h)));
    TRY(NN_NEW(memory, &a->scale, n));
    if (!room->is_training) return OK;
    TRY(nn_new_act(memory, &a->d_normed, n, h->dim));
    TRY(nn_new_act(memory, &a->d_logits, n, ranking_n_columns(h)));
    return loss_alloc(&a->loss, &h->loss, room);
}

static l2_args l2_of(const ranking_head *h, const ranking_acts *a, int64_t n, const void *x) {
    return (l2_args){.n = n,
                     .dim = h->dim,
                     .eps = L2_EPS,
                     .x = x,
                     .y = a->normed,
                     .scale = a->scale,
                     .dy = a->d_normed};
}

status ranking_select(const ranking_head *h, ranking_acts *a, backend *be, const plan *p,
                      const void *hidden, const void **out) {
    const void *x = NULL;
    TRY(choice_fwd(&a->tokens, be, p, hidden, &x));
    l2_args l2 = l2_of(h, a, p->n_loss, x);
    *out = a->normed;
    return be->ops->l2_fwd(be, &l2);
}

status ranking_select_bwd(const ranking_head *h, ranking_acts *a, backend *be, const plan *p,
                          const void *hidden, void *d_hidden) {
    l2_args l2 = l2_of(h, a, p->n_loss, a->tokens.is_all ? hidden : a->tokens.x);
    l2.dx = choice_gradient(&a->tokens, d_hidden);
    TRY(be->ops->l2_bwd(be, &l2));
    return choice_bwd(&a->tokens, be, p, d_hidden);
}

status ranking_pack(ranking_head *h, nn_memory *memory) {
    return mlp_pack(&h->net, memory);
}

/* The whole head as one op: two layers whose weights are packed, and nothing kept for training. */
static bool is_one_op(const ranking_head *h, const ranking_acts *a) {
    return h->net.config.n_layers == 2 && h->net.packed[0] != NULL && a->d_normed == NULL;
}

static status score_at_once(const ranking_head *h, ranking_acts *a, backend *be, const plan *p,
                            const void *hidden) {
    head_args head = {.n = p->n_loss,
                      .dim = h->dim,
                      .eps = L2_EPS,
                      .x = hidden,
                      .index = p->takes_all || a->tokens.is_done ? NULL : p->loss_token.device,
                      .chosen = a->tokens.x,
                      .scale = a->scale,
                      .normed = a->normed,
                      .one = mlp_layer(&h->net, &a->net, 0, p->n_loss, a->normed),
                      .two = mlp_layer(&h->net, &a->net, 1, p->n_loss, NULL)};
    head.one.z = NULL;
    head.two.y = a->logits;
    return be->ops->head_fwd(be, &head);
}

status ranking_score(const ranking_head *h, ranking_acts *a, backend *be, const plan *p,
                     const void *hidden, const void **out) {
    const void *x = NULL;
    *out = a->logits;
    if (is_one_op(h, a)) return score_at_once(h, a, be, p, hidden);
    TRY(ranking_select(h, a, be, p, hidden, &x));
    return mlp_fwd(&h->net, &a->net, be, p->n_loss, x, a->logits);
}

status ranking_train(const ranking_head *h, ranking_acts *a, backend *be, const plan *p,
                     loss_rows rows, const void *hidden, void *d_hidden) {
    TRY(ranking_score(h, a, be, p, hidden, &rows.x));
    rows.dx = a->d_logits;
    TRY(loss_train(&h->loss, &a->loss, be, p, &rows));
    TRY(mlp_bwd(&h->net, &a->net, be, p->n_loss, a->normed, a->d_logits, a->d_normed));
    return ranking_select_bwd(h, a, be, p, hidden, d_hidden);
}
