/* The inside of an encoder: encoder_load.c makes it, encoder.c runs it. */
#ifndef HSTU_ENCODE_ENCODER_INT_H
#define HSTU_ENCODE_ENCODER_INT_H

#include "encode/bert_layer.h"
#include "encode/encoder.h"
#include "ops/mask_tiles.h"

struct encoder {
    encoder_config config;
    bert_layer_config layer_config;
    const encoder_layers *layers; /* or NULL */
    backend *be;
    nn_memory memory;
    uint64_t n_parameters;
    bool has_int8_weights;
    double int8_moved, int8_size; /* sums of squares over the weights: of what rounding changed */

    float *words;  /* (n_words, E) */
    float *places; /* (max(n_types, 1), n_positions, E): position + type */
    bert_norm input_norm;
    bert_layer *layer; /* (n_layers) */
    bert_dense pooler;
    bool has_pooler;

    int64_t capacity;       /* tokens */
    staged_i32 word, place; /* (capacity): rows of words and places; -1 pads */
    staged_i32 offsets;     /* (capacity + 1) */
    staged_i32 input;       /* (3 capacity + 1): the three one after the other, for one copy */
    int32_t *lengths;       /* (capacity) host */
    int32_t n_sequences, max_len;
    int64_t n_tokens, n_before; /* n_before: sequences of earlier batches */
    mask_batch *mask;           /* or NULL */
    bert_acts acts;
    void *x;              /* (capacity, E) act */
    void *first, *pooled; /* (capacity, E) act: first tokens, and pooled; only with a pooler */
};

/* encoder_run that calls visit after each layer; nothing is recorded. */
typedef status (*encoder_visit_fn)(void *ctx, encoder *e, int32_t layer);
status encoder_run_visited(encoder *e, encoder_visit_fn visit, void *ctx);

/* Where weights come from. */
struct encoder_files;

/* Fills everything up to the pooler: from files, or random where files is NULL. */
status encoder_load(encoder *e, struct encoder_files *files, uint64_t seed);

#endif
