/* Score columns: the numbers that a model gives a candidate, and their names.
 *
 * Ranking: the probability of every task ("click", "like", ...) or, where the head predicts
 * classes, the expected rating and the probability of each class ("rating", "p_1", "p_2", ...).
 * Retrieval: "score", the product that recommending ranks by. */
#pragma once

#include "model/session.h"

enum { SCORE_NAME_BYTES = 32 };

typedef struct score_columns {
    const seq_file *data;
    int n; /* numbers of a candidate */
    char (*name)[SCORE_NAME_BYTES];
    const char **names; /* (n) */
    int32_t width;      /* of the head */
    int32_t n_classes;  /* of these, the ones that the data's actions can be; not with bits */
    double *rating;     /* (n_classes): what each class stands for */
    bool is_bits;
} score_columns;

status score_columns_init(score_columns *c, const session *s);
void score_columns_fini(score_columns *c); /* a failed init too */

/* Ranking: the numbers (n, columns) of n candidates from their logits (n, width). */
void score_columns_finish(const score_columns *c, int32_t n, const float *logits, float *to);
