/* Out-of-memory injection: runs a function with its k-th allocation failing, for k = 1, 2, ...
 * until it succeeds; then again with all allocations from the k-th on failing, as when memory
 * really runs out: a way out that allocates itself is found only there. */
#ifndef HSTU_TESTS_OOM_H
#define HSTU_TESTS_OOM_H

#include "base/status.h"

/* Each failing run must return ERR_NOMEM with a reason, and leave no block behind.  Returns the
 * number of runs in which one allocation failed. */
int oom_at_each_allocation(status (*run)(void *ctx), void *ctx);

/* The two halves of it, for what takes long; both return the number of failing runs. */
int oom_at_one_allocation(status (*run)(void *ctx), void *ctx);
int oom_from_one_allocation_on(status (*run)(void *ctx), void *ctx);

#endif
