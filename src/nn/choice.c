#include "nn/choice.h"

status choice_alloc(choice *c, const nn_room *room, int32_t dim) {
    *c = (choice){.dim = dim};
    TRY(nn_new_act(room->memory, &c->x, room->max_loss, dim));
    if (!room->is_training) return OK;
    TRY(nn_new_act(room->memory, &c->dx, room->max_loss, dim));
    TRY(NN_NEW(room->memory, &c->groups.order, room->max_loss));
    return NN_NEW(room->memory, &c->groups.begin, room->max_tokens + 1);
}

status choice_fwd(choice *c, backend *be, const plan *p, const void *hidden, const void **out) {
    c->is_all = p->takes_all || c->is_done;
    *out = c->is_all ? hidden : c->x;
    if (c->is_all) return OK;
    gather_args a = {.n = p->n_loss,
                     .dim = c->dim,
                     .is_act = true,
                     .table = (const float *)hidden,
                     .index = p->loss_token.device,
                     .scale = 1,
                     .y = c->x};
    return be->ops->gather(be, &a);
}

void *choice_gradient(const choice *c, void *d_hidden) {
    return c->is_all ? d_hidden : c->dx;
}

status choice_bwd(choice *c, backend *be, const plan *p, void *d_hidden) {
    if (c->is_all) return OK;
    size_t bytes = (size_t)p->n_tokens * (size_t)c->dim * act_bytes(be->act);
    TRY(be->ops->zero(be, d_hidden, bytes));
    c->groups.n = p->n_loss;
    c->groups.n_rows = p->n_tokens;
    TRY(be->ops->group(be, p->loss_token.device, &c->groups));
    scatter_args a = {.groups = c->groups,
                      .dim = c->dim,
                      .scale = 1,
                      .dy = c->dx,
                      .is_act = true,
                      .grad = (float *)d_hidden};
    return be->ops->scatter(be, &a);
}
