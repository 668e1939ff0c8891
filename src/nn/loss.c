#include "nn/loss.h"

static status train_logits(const loss_config *c, const loss_acts *a, backend *be, const plan *p,
                           const loss_rows *rows) {
    logits_loss_args args = {.n = p->n_loss,
                             .n_columns = c->width,
                             .is_bits = c->type == LOSS_BITS,
                             .logits = rows->x,
                             .label = p->label.device,
                             .grad_scale = p->grad_scale.device,
                             .loss = rows->sum,
                             .dlogits = rows->dx};
    (void)a;
    return be->ops->logits_loss(be, &args);
}

static const loss_kind kinds[] = {
    [LOSS_BITS] = {"bits", NULL, train_logits},
    [LOSS_CLASSES] = {"classes", NULL, train_logits},
    [LOSS_CATALOGUE] = {"catalogue", sampled_loss_alloc, sampled_loss_train},
    [LOSS_IN_BATCH] = {"in-batch", sampled_loss_alloc, sampled_loss_train}};

const loss_kind *loss_kind_of(loss_type type) {
    return &kinds[type];
}

status loss_alloc(loss_acts *a, const loss_config *c, const nn_room *room) {
    const loss_kind *kind = loss_kind_of(c->type);
    *a = (loss_acts){0};
    return room->is_training && kind->alloc != NULL ? kind->alloc(a, c, room) : OK;
}

status loss_train(const loss_config *c, const loss_acts *a, backend *be, const plan *p,
                  const loss_rows *rows) {
    return loss_kind_of(c->type)->train(c, a, be, p, rows);
}
