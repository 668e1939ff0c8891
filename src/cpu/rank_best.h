/* The k best rows of a corpus for each query, where no target is ranked: a part of op `rank`. */
#ifndef HSTU_CPU_RANK_BEST_H
#define HSTU_CPU_RANK_BEST_H

#include "ops/ops.h"

/* a->rank is NULL, a->k above 0, the corpus not empty. */
status cpu_rank_best(backend *be, const rank_args *a);

#endif
