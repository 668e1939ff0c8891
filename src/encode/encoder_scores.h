/* The attention weights of an encoder, counted: would a sparse mask be safe?
 *
 * While sequences are encoded, the weights of every layer and head are computed once more on the
 * host, row by row, from the queries and keys of the layer, and only sums of them are kept: the
 * share of weights below thresholds, the entropy of a row, and how much of its weight lies within a
 * window around the query or on the first token.  Much slower than encoding: for a sample. */
#ifndef HSTU_ENCODE_ENCODER_SCORES_H
#define HSTU_ENCODE_ENCODER_SCORES_H

#include "base/text.h"
#include "encode/encoder.h"

enum { SCORE_THRESHOLDS = 4, SCORE_WINDOWS = 5 };
extern const double score_thresholds[SCORE_THRESHOLDS]; /* .00001 to .01 */
extern const int32_t score_windows[SCORE_WINDOWS];      /* 0 to 64 */

/* Of one head: sums over rows (queries) and over pairs that the mask allows. */
typedef struct head_scores {
    int64_t n_rows, n_pairs;
    double entropy;                  /* sum over rows of -sum p ln p */
    double within[SCORE_WINDOWS];    /* sum over rows of the weights with |i - j| <= window */
    double first;                    /* sum over rows of the weight of key 0 */
    int64_t below[SCORE_THRESHOLDS]; /* pairs with a smaller weight */
} head_scores;

typedef struct encoder_scores encoder_scores;

status encoder_scores_create(encoder_scores **out, const encoder *e, const mask *m);
void encoder_scores_destroy(encoder_scores *s); /* NULL is fine */

/* encoder_run, with the scores of the batch added. */
status encoder_run_scored(encoder *e, encoder_scores *s);

const head_scores *encoder_scores_at(const encoder_scores *s, int32_t layer, int32_t head);

/* A JSON object with an entry for each layer and head. */
status encoder_scores_json(const encoder_scores *s, buf *to);

/* A picture: layers down, heads across; how much of the weight lies within 16 tokens, and the
 * entropy. */
status encoder_scores_svg(const encoder_scores *s, buf *to);

#endif
