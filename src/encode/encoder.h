/* A BERT-family encoder that can be opened and run: from a Hugging Face folder to hidden states.
 *
 * A batch is jagged: sequences are added until encoder_fits says no, computed together, and read.
 * Only real tokens are computed, from the embedding to the last layer.  Memory is allocated when
 * the encoder is created; running allocates nothing.  One thread at a time. */
#pragma once

#include "encode/encoder_config.h"
#include "ops/mask.h"
#include "ops/ops.h"

typedef struct encoder encoder;

/* Another way to run the layers than src/encode/bert_layer.c: a fusion plan (tune/encoder_plan.h).
 */
struct bert_layer;
struct sequences;
typedef struct encoder_layers {
    void *ctx;
    /* Called before a batch, not while a CUDA graph is captured: allocates what this shape needs.
     * A graph may be replayed for batches with the same *key; 0: run this batch without a graph. */
    status (*begin)(void *ctx, const struct sequences *s, uint64_t *key);
    /* x (T, E) becomes the output of layer l. */
    status (*run)(void *ctx, const struct bert_layer *l, const struct sequences *s,
                  const mask_view *view, void *x);
} encoder_layers;

typedef struct encoder_options {
    int64_t batch_tokens; /* tokens of a batch at most; a sequence as long as the model is allowed
                             to be fits anyway */
    const mask *mask;     /* must outlive the encoder; NULL: every token sees every token */
    const encoder_layers *layers; /* the same; NULL: the usual layers */
    /* The weights of dense layers are rounded to 8 bits, with a scale for each output channel;
     * products are computed in the backend's precision. */
    bool has_int8_weights;
    bool has_head; /* somebody else reads the tensors of the head (encoder_head.h) */
} encoder_options;

/* What --dtype may name: the types of backends, then weights in int8, whose products are in float16
 * (on the CPU in float32). */
enum { ENCODER_INT8 = ACT_F16 + 1 };
extern const char *const encoder_dtypes[];

/* Sets the backend's precision, and has_int8_weights of o. */
status encoder_set_dtype(backend *be, int dtype, encoder_options *o);

/* Opens FOLDER/config.json and its weights.  The precision is that of the backend
 * (set_precision). */
status encoder_create(encoder **out, const char *folder, backend *be, const encoder_options *o);

/* An encoder of the given shape with random weights, without a folder: for benchmarks. */
status encoder_create_random(encoder **out, const encoder_config *c, uint64_t seed, backend *be,
                             const encoder_options *o);
void encoder_destroy(encoder *e); /* NULL is fine */

const encoder_config *encoder_config_of(const encoder *e);
bool encoder_has_pooler(const encoder *e);
uint64_t encoder_n_parameters(const encoder *e);
int64_t encoder_capacity(const encoder *e); /* tokens of a batch at most */

/* How far has_int8_weights moved the weights: root mean square, relative to theirs; 0 without. */
double encoder_int8_error(const encoder *e);

/* Whether a sequence of n tokens still fits into the waiting batch; an empty batch takes any that
 * the model takes. */
bool encoder_fits(const encoder *e, int64_t n);

/* Adds a sequence; types may be NULL: all 0.  ERR_FORMAT names what the model cannot take: no
 * token, too many, an id or a type beyond its embeddings. */
status encoder_add(encoder *e, const int32_t *ids, const int32_t *types, int64_t n);

int32_t encoder_n_sequences(const encoder *e);    /* of the waiting batch */
const int32_t *encoder_offsets(const encoder *e); /* (n_sequences + 1) */

/* Computes the batch; then encoder_read copies the hidden states (T, E) and, where the model has a
 * pooler, the pooled vectors (B, E) as float32; either may be NULL. */
status encoder_run(encoder *e);
status encoder_read(encoder *e, float *hidden, float *pooled);

/* Ends the batch: the next one begins with no sequence. */
void encoder_clear(encoder *e);

/* Scores: the attention weights of an encoder, counted, to tell whether a sparse mask is safe.
 * While sequences are encoded, the weights of every layer and head are computed again on the host,
 * row by row, and only sums are kept: the share of weights below thresholds, the entropy of a row,
 * and the weight within a window around the query or on the first token.  Much slower than
 * encoding: for a sample. */
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
