/* A BERT-family encoder that can be opened and run: from a Hugging Face folder to hidden states.
 *
 * A batch is jagged: sequences are added until encoder_fits says no, computed together, and read.
 * Only real tokens are computed, from the embedding to the last layer.  Memory is allocated when
 * the encoder is created; running allocates nothing.  One thread at a time. */
#ifndef HSTU_ENCODE_ENCODER_H
#define HSTU_ENCODE_ENCODER_H

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
} encoder_options;

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

#endif
