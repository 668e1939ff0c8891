/* Recommender: the best items of the catalogue for users, a batch of them at a time.
 *
 * What a user has had is left out, all of it, not only the events that the model reads.  A user of
 * whom nothing is known gets the items with the most events of the data instead, and the result
 * says so.  Memory is bounded, whatever the number of users: add users while they fit, run, take
 * the results, clear.  One thread at a time; the session must outlive it. */
#ifndef HSTU_MODEL_RECOMMENDER_H
#define HSTU_MODEL_RECOMMENDER_H

#include "model/histories.h"
#include "model/item_table.h"

enum { RECOMMEND_MAX_K = 1024 }; /* what op `rank` can do on every backend */

typedef struct recommender_config {
    int32_t k;         /* 1..RECOMMEND_MAX_K; more than there are items: all of them */
    int32_t max_users; /* of a batch, at most what the session was opened for */
    bool keeps_seen;
    const uint8_t *is_allowed; /* (V + 1): items that may be recommended; NULL: all */
    uint64_t max_events;       /* of a user that is not in the data, at most */
} recommender_config;

/* The results of one user, best first; memory of the recommender, valid until it is cleared. */
typedef struct recommendation {
    int32_t n; /* at most k */
    const int32_t *item;
    const float *score; /* of popular items: their events */
    bool is_popular;
} recommendation;

typedef struct recommender recommender;

/* ERR_UNSUPPORTED for a ranking model; ERR_USAGE where no item is allowed. */
status recommender_create(recommender **out, session *s, const recommender_config *c);
void recommender_destroy(recommender *r); /* NULL is fine */

/* Whether one more user fits the batch: always in an empty one. */
bool recommender_fits(const recommender *r, const user_events *u);
status recommender_add(recommender *r, const user_events *u);
int32_t recommender_n_users(const recommender *r);

status recommender_run(recommender *r);
recommendation recommender_result(const recommender *r, int32_t user); /* in the order added */
void recommender_clear(recommender *r);

#endif
