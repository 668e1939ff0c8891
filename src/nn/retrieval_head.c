#include "nn/retrieval_head.h"

status retrieval_alloc(retrieval_acts *a, const retrieval_head *h, const nn_room *room) {
    *a = (retrieval_acts){.max_loss = room->max_loss};
    TRY(choice_alloc(&a->tokens, room, h->dim));
    TRY(nn_new_act(room->memory, &a->query, room->max_loss, h->dim));
    if (room->is_training) TRY(nn_new_act(room->memory, &a->d_query, room->max_loss, h->dim));
    TRY(NN_NEW(room->memory, &a->stats, 2 * room->max_loss));
    return loss_alloc(&a->loss, &h->loss, room);
}

static l2_args l2_of(const retrieval_head *h, const retrieval_acts *a, int64_t n, const void *x) {
    return (l2_args){.n = n,
                     .dim = h->dim,
                     .eps = h->eps,
                     .x = x,
                     .y = a->query,
                     .scale = a->stats,
                     .dy = a->d_query};
}

static norm_args norm_of(const retrieval_head *h, const retrieval_acts *a, int64_t n,
                         const void *x) {
    return (norm_args){.n = n,
                       .dim = h->dim,
                       .eps = h->eps,
                       .x = x,
                       .y = a->query,
                       .mean = a->stats,
                       .rstd = a->stats + a->max_loss,
                       .dy = a->d_query};
}

status retrieval_encode(const retrieval_head *h, retrieval_acts *a, backend *be, const plan *p,
                        const void *hidden, const void **out) {
    const void *x = NULL;
    TRY(choice_fwd(&a->tokens, be, p, hidden, &x));
    l2_args l2 = l2_of(h, a, p->n_loss, x);
    norm_args norm = norm_of(h, a, p->n_loss, x);
    *out = a->query;
    return h->has_layer_norm ? be->ops->norm_fwd(be, &norm) : be->ops->l2_fwd(be, &l2);
}

static status encode_bwd(const retrieval_head *h, retrieval_acts *a, backend *be, const plan *p,
                         const void *hidden, void *d_hidden) {
    const void *x = a->tokens.is_all ? hidden : a->tokens.x;
    l2_args l2 = l2_of(h, a, p->n_loss, x);
    norm_args norm = norm_of(h, a, p->n_loss, x);
    l2.dx = norm.dx = choice_gradient(&a->tokens, d_hidden);
    TRY(h->has_layer_norm ? be->ops->norm_bwd(be, &norm) : be->ops->l2_bwd(be, &l2));
    return choice_bwd(&a->tokens, be, p, d_hidden);
}

status retrieval_train(const retrieval_head *h, retrieval_acts *a, backend *be, const plan *p,
                       loss_rows rows, const void *hidden, void *d_hidden) {
    TRY(retrieval_encode(h, a, be, p, hidden, &rows.x));
    rows.dx = a->d_query;
    TRY(loss_train(&h->loss, &a->loss, be, p, &rows));
    return encode_bwd(h, a, be, p, hidden, d_hidden);
}
