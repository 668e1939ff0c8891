/* How many pairs of a query and a key attention computes, of one head, by its mask.
 *
 * On the CPU every mask is counted row by row: lengths, contexts, targets, spans and pages are in
 * memory there.  On a GPU they are not read: pairs are known where all sequences have one length,
 * and contexts and targets are then taken for history.  0: not known. */
#ifndef HSTU_PROFILE_WORK_PAIRS_H
#define HSTU_PROFILE_WORK_PAIRS_H

#include "ops/ops.h"

double work_pairs_attn(const backend *be, const attn_args *a);
double work_pairs_softmax(const backend *be, const softmax_attn_args *a);

#endif
