/* The config.json of a Hugging Face encoder: BERT, RoBERTa and DistilBERT.
 *
 * Every field is honoured, or ignored because it cannot change the hidden states (dropout, labels,
 * how a tokenizer is called), or refused with its name: a model that we would compute differently
 * from transformers is never run. */
#pragma once

#include "format/json.h"
#include "ops/ops.h"

typedef enum {
    ENCODER_BERT,
    ENCODER_ROBERTA,
    ENCODER_DISTILBERT,
    N_ENCODER_FAMILIES
} encoder_family;

typedef struct encoder_config {
    encoder_family family;
    int32_t n_layers, dim, n_heads, dim_ffn; /* dim: E */
    int32_t n_words, n_positions;            /* rows of the embeddings */
    int32_t n_types;                         /* 0: the model has no types */
    epilogue f;
    float eps;
    int32_t padding_id; /* RoBERTa: positions count from the id after it; else not used */
} encoder_config;

/* Reads the object of a config.json; `path` appears in messages.  ERR_UNSUPPORTED names a field or
 * an architecture that we do not have, ERR_FORMAT what is wrong. */
status encoder_config_parse(encoder_config *out, const char *path, const json_value *root);

/* The same of FOLDER/config.json. */
status encoder_config_read(encoder_config *out, const char *folder);

const char *encoder_family_name(encoder_family family); /* "bert" */

/* The longest sequence that has a position for each token. */
int32_t encoder_max_len(const encoder_config *c);
