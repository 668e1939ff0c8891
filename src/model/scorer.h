/* Scorer: numbers for given candidates, for users, a batch of them at a time.
 *
 * Ranking: the probability of every task or, where the head predicts classes, the expected rating
 * and the probability of each class.  Retrieval: the score that recommending would rank by.  A
 * candidate's numbers depend on the user and on it alone: candidates do not see each other, and
 * more of them than the model takes at once are scored in parts, with the same bits.  Used as a
 * recommender is: add users while they fit, run, take the results, clear.  One thread at a time;
 * the session must outlive it. */
#ifndef HSTU_MODEL_SCORER_H
#define HSTU_MODEL_SCORER_H

#include "model/histories.h"

typedef struct scorer_config {
    const uint32_t
        *candidate;       /* (n_candidates): items, in any order, also twice; must outlive it */
    int32_t n_candidates; /* 1 at least */
    int32_t max_users;    /* of a pass, at most what the session was opened for */
    int32_t max_part;     /* ranking: candidates of a user in a pass; 0: as many as the model
                             takes, and never more */
} scorer_config;

typedef struct scorer scorer;

status scorer_create(scorer **out, session *s, const scorer_config *c);
void scorer_destroy(scorer *r); /* NULL is fine */

/* The numbers of a candidate and their names: "click", "like", ...; "rating", "p_1", "p_2", ...;
 * "score". */
int scorer_n_columns(const scorer *r);
const char *const *scorer_columns(const scorer *r);

bool scorer_fits(const scorer *r);
status scorer_add(scorer *r, const user_events *u); /* its events must stay until the run */
int32_t scorer_n_users(const scorer *r);
status scorer_run(scorer *r);

/* (n_candidates, columns) of a user, in the order added: NAN where there is no number, as for an
 * item without a row, or for a user without a history whom a retrieval model knows nothing of. */
const float *scorer_result(const scorer *r, int32_t user);
void scorer_clear(scorer *r);

#endif
