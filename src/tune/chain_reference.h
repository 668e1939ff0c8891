/* The formulas of the operators as plain loops, operator by operator, in float64, and in float32
 * with every operator's result rounded to a type: the measure of what an honest program of that
 * type may be off.
 *
 * A row of the output depends on its own sequence only, so one sequence is computed, and from the
 * scores on only the rows that were asked for.  Any thread. */
#ifndef HSTU_TUNE_CHAIN_REFERENCE_H
#define HSTU_TUNE_CHAIN_REFERENCE_H

#include "base/thread.h"
#include "tune/chain_problem.h"

/* Rows are shared out over the threads of `workers` (NULL: one).  out (n_rows, E): rows
 * rows[0..n_rows-1] (within the sequence) of the layer's output. */
status chain_reference64(const chain_problem *p, int32_t sequence, const int32_t *rows,
                         int32_t n_rows, pool *workers, double *out);
status chain_reference32(const chain_problem *p, int32_t sequence, const int32_t *rows,
                         int32_t n_rows, pool *workers, float *out);

#endif
