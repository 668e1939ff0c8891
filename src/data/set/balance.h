/* Balance: divides the users of a global batch into groups of equal work.
 *
 * Attention costs the square of a sequence's length, so ranks with the same number of users can
 * have very different work, and the slowest one sets the pace.  Here every group gets the same
 * number of users (they differ by at most one) and nearly the same sum of squared lengths.  The
 * result is a pure function of the lengths: every rank computes it for itself and they agree.  A
 * balancer is scratch memory made once; one thread at a time. */
#pragma once

#include "base/base.h"

typedef struct balancer balancer;

/* For up to max_users users of lengths 0..max_length in n_groups groups. */
status balancer_create(balancer **out, int64_t max_users, int32_t n_groups, int32_t max_length);
void balancer_destroy(balancer *b); /* NULL is fine */

/* group[i] = 0..n_groups-1 for each of n users. */
void balancer_run(balancer *b, const int32_t *length, int64_t n, int32_t *group);
