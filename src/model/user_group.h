/* User group: users of the data who are asked the same, by way of infer.h: the best items of the
 * catalogue, or the numbers of given candidates.
 *
 * Add users while they fit, run, take the results, clear: memory is bounded whatever the number of
 * users.  One thread at a time; the session must outlive it. */
#pragma once

#include "model/infer.h"

enum { ITEM_DENIED = 2 };

typedef struct user_group_config {
    int32_t max_users; /* of a batch, at most what the session was opened for */
    /* Recommending: what a user has had is left out, all of it, not only the events that the model
     * reads, as exclude_seen says (session_seen).  A user of whom nothing is known gets the items
     * with the most events of the data. */
    int32_t k; /* 1..INFER_MAX_K; more than there are items: all of them; 0: score candidates */
    bool keeps_seen; /* as exclude_seen "none" */
    const char *exclude_seen;
    /* (V + 1): 1 for items that may be recommended, ITEM_DENIED for those that may not be pinned,
     * either; NULL: all may. */
    const uint8_t *is_allowed;
    const char *rules; /* JSON (item_rules.h); NULL: none */
    mol_stages stages; /* of the search (infer_config) */
    int32_t n_measured;
    /* Scoring. */
    const uint32_t
        *candidate; /* (n_candidates): items, in any order, also twice; must outlive it */
    int32_t n_candidates;
    int32_t max_part; /* ranking: candidates of a sequence; 0: as many as the model trains on, and
                         never more */
} user_group_config;

/* The best items of one user; memory of the group, valid until it is cleared. */
typedef struct recommendation {
    int32_t n;
    const uint32_t *item;
    const float *score; /* of popular items: their events */
    bool is_popular;
} recommendation;

typedef struct user_group user_group;

/* Recommending with a ranking model is ERR_UNSUPPORTED; ERR_USAGE: no item is allowed, or a
 * candidate is not an item of the model. */
status user_group_create(user_group **out, session *s, const user_group_config *c);
void user_group_destroy(user_group *g); /* NULL is fine */

/* Other rules for an empty group: is_allowed and rules as in its config.  ERR_USAGE: what is wrong
 * with them. */
status user_group_set_rules(user_group *g, const uint8_t *is_allowed, const char *rules);

/* Whether one more user fits: always in an empty group.  Events must stay until the run. */
bool user_group_fits(const user_group *g, const user_events *u);
status user_group_add(user_group *g, const user_events *u);
int32_t user_group_n_users(const user_group *g);
status user_group_run(user_group *g);
void user_group_clear(user_group *g);
bool user_group_recall(const user_group *g, double *recall, int32_t *n_users); /* pass_recall */

/* Of a user, in the order added.  Values are (n_candidates, columns): NAN where there is no number,
 * as for an item without a row, or for a user without events whom a retrieval model knows nothing
 * of. */
recommendation user_group_best(const user_group *g, int32_t user);
const float *user_group_values(const user_group *g, int32_t user);
const score_columns *user_group_columns(const user_group *g);
