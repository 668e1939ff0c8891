/* Certify: whether a user's best items stay the best while the embeddings of events move
 * (bounds.h).
 *
 * "unchanged" is proved: the bounds of every score difference that matters are above 0.  "changed"
 * is shown by an example: a movement inside the balls after which the order is certainly another
 * one.  Everything else is "unknown".  One thread at a time; model, items and bounds must outlive
 * it. */
#pragma once

#include "model/bounds.h"

typedef enum { VERDICT_UNCHANGED, VERDICT_CHANGED, VERDICT_UNKNOWN, VERDICTS } verdict;
extern const char *const verdict_names[VERDICTS];

typedef struct certify certify;

/* k: items of a list. */
status certify_create(certify **out, const model *m, const model_items *items, int32_t k);
void certify_destroy(certify *c); /* NULL is fine */

/* The best items without movement; seen (n_seen): rows of the items that are left out, distinct.
 * Further calls are about this history, of which the newest q->n_moved events move. */
status certify_user(certify *c, const bounds_query *q, const int32_t *seen, int32_t n_seen);

typedef struct certified {
    verdict first, list; /* the best item; the set of the k best */
} certified;

/* The events move by at most eps.  before: the verdicts at a smaller eps, or NULL: what has changed
 * there is changed, and what was unknown is not tried to be proved. */
status certify_ball(certify *c, double eps, const certified *before, certified *out);

/* The list, best first, with the scores that 'hstu recommend' shows: what they can become within
 * the balls of the last certify_ball. */
typedef struct certified_item {
    uint32_t item;
    double score, low, high;
} certified_item;
int32_t certify_list(const certify *c, const certified_item **out);
