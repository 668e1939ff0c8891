/* The inside of a plan, for the files that make it up. */
#ifndef HSTU_NN_PLAN_INT_H
#define HSTU_NN_PLAN_INT_H

#include "nn/plan.h"

static inline int32_t plan_per_event(const plan_config *c) {
    return c->has_actions ? 2 : 1;
}

/* The rows of a contextual feature's ids, where they are not in the order of the ids. */
static inline plan_rows plan_rows_of(const plan_config *c, int32_t feature) {
    return c->contexts != NULL ? c->contexts[feature] : (plan_rows){0};
}

/* Whether a batch is one that the model was made for; events that are not read are not checked. */
status plan_check(const plan *p, const batch *b, const plan_cache *cache);

#endif
