#include "ops/head.h"

status head_by_steps(backend *be, const head_args *a) {
    gather_args choice = {.n = a->n,
                          .dim = a->dim,
                          .is_act = true,
                          .table = (const float *)a->x,
                          .index = a->index,
                          .scale = 1,
                          .y = a->chosen};
    l2_args l2 = {.n = a->n,
                  .dim = a->dim,
                  .eps = a->eps,
                  .x = a->index != NULL ? a->chosen : a->x,
                  .y = a->normed,
                  .scale = a->scale};
    if (a->index != NULL) TRY(be->ops->gather(be, &choice));
    TRY(be->ops->l2_fwd(be, &l2));
    TRY(be->ops->linear_fwd(be, &a->one));
    return be->ops->linear_fwd(be, &a->two);
}
