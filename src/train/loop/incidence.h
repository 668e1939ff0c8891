/* Who has what: the distinct items of each user's training events, and the users of each item.
 * item-kNN and the diversity of lists come from it.  A value; any thread may read it. */
#ifndef HSTU_TRAIN_LOOP_INCIDENCE_H
#define HSTU_TRAIN_LOOP_INCIDENCE_H

#include "base/status.h"
#include "data/set/split.h"

typedef struct incidence {
    uint64_t n_users, n_items;
    uint64_t *user_begin; /* (n_users + 1) */
    uint32_t *item;       /* (user_begin[n_users]), ascending within a user */
    uint64_t *item_begin; /* (n_items + 2): where the users of each item begin in `user` */
    uint32_t *user;       /* ascending within an item */
} incidence;

/* Of the last max_events training events of every stride-th user of the data, from the first on.
 * fini frees, after a failure too. */
status incidence_init(incidence *in, const split *s, uint64_t stride, uint64_t max_events);
void incidence_fini(incidence *in);

static inline uint64_t incidence_n_users(const incidence *in, uint32_t item) {
    return in->item_begin[item + 1] - in->item_begin[item];
}

#endif
