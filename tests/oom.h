/* Out-of-memory injection: runs a function with its k-th allocation failing, for k = 1, 2, ...
 * until it succeeds. */
#ifndef HSTU_TESTS_OOM_H
#define HSTU_TESTS_OOM_H

#include "base/status.h"

/* Each failing run must return ERR_NOMEM with a reason.  Returns the number of failing runs. */
int oom_at_each_allocation(status (*run)(void *ctx), void *ctx);

#endif
