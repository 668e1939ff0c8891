/* Parameters that are cut over ranks, and tables whose rows ranks hold together: where the elements
 * of a rank's part are in the whole parameter, which is what checkpoints hold and what first values
 * are drawn for.  So neither depends on the number of parts.  For a whole parameter the two are the
 * same. */
#ifndef HSTU_NN_PARAM_CUT_H
#define HSTU_NN_PARAM_CUT_H

#include "nn/params.h"

/* The shape of the whole parameter, and its elements in all. */
void param_whole_shape(const param *p, int64_t shape[4]);
int64_t param_whole_n(const param *p);

/* Where element `at` of this rank's part is in the whole parameter; *n: so many elements from there
 * on are contiguous in both. */
int64_t param_cut_run(const param *p, int64_t at, int64_t *n);

/* Copies this rank's part of a whole array of float32 on the host, of any alignment, to memory of
 * the backend. */
status param_cut_take(const param *p, backend *be, const void *whole, float *to);

#endif
