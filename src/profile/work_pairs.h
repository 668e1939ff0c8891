/* How many pairs of a query and a key attention computes, of one head, by its mask.
 *
 * On the CPU every mask is counted row by row: lengths, contexts, targets, spans and pages are in
 * memory there.  On a GPU they are not read: pairs are known where all sequences have one length,
 * and contexts and targets are then taken for history; of others there is a question, which can be
 * answered where somebody knows the lengths (lengths.h).  0: not known. */
#ifndef HSTU_PROFILE_WORK_PAIRS_H
#define HSTU_PROFILE_WORK_PAIRS_H

#include "ops/ops.h"

/* What the pairs depend on.  Its bytes are compared: made by the functions below, or all zero. */
typedef struct pairs_ask {
    const int32_t *offsets_q, *offsets_k;  /* (n_sequences + 1) */
    const int32_t *n_contexts, *n_targets; /* (n_sequences) or NULL */
    int32_t n_sequences;                   /* 0: there is no question */
    int32_t window_left, window_right, target_group;
    bool is_softmax;
    mask_rule rule; /* of softmax attention */
} pairs_ask;

void work_pairs_ask_attn(pairs_ask *out, const attn_args *a);
void work_pairs_ask_softmax(pairs_ask *out, const softmax_attn_args *a);

/* With all arrays in the memory of the host. */
double work_pairs_answer(const pairs_ask *ask);

double work_pairs_attn(const backend *be, const attn_args *a);
double work_pairs_softmax(const backend *be, const softmax_attn_args *a);

#endif
