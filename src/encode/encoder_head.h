/* What follows an encoder in its folder: the classifier of a Hugging Face model, or the modules of
 * a sentence-transformers folder (modules.json).
 *
 * Both are the same: rows of hidden states are chosen or pooled, pass through dense layers, and end
 * as values, as probabilities or with length 1.  The head is computed in float32 on the CPU.  A
 * module, pooling mode, activation or option that we do not have is refused by its name.  One
 * thread at a time. */
#pragma once

#include "encode/encoder_config.h"
#include "nn/memory.h"

/* What --head takes: what the folder says; hidden states; labels; or embeddings by one pooling
 * mode, followed by what follows the pooling of the folder. */
typedef enum {
    HEAD_AUTO,
    HEAD_HIDDEN,
    HEAD_LABELS,
    HEAD_CLS,
    HEAD_MAX,
    HEAD_MEAN,
    HEAD_MEAN_SQRT, /* the sum over the square root of the length */
    HEAD_POOLER,
    N_HEADS
} head_kind;
extern const char *const encoder_head_names[N_HEADS + 1]; /* NULL at the end */

typedef enum { LABELS_SOFTMAX, LABELS_SIGMOID, LABELS_VALUES } label_kind;

enum { HEAD_MAX_MODES = 8, HEAD_MAX_STEPS = 8, HEAD_PATH_BYTES = 4096 };
typedef struct head_step head_step;

/* To be read only; out and probability are valid until the next run. */
typedef struct encoder_head {
    char model[HEAD_PATH_BYTES]; /* the folder of the encoder itself */
    encoder_config config;
    int64_t max_len;        /* tokens of a text at most */
    const char *limit_file; /* which has max_len */
    bool is_cut;            /* longer texts are cut, as sentence-transformers does */
    bool is_lower;          /* texts become lower case first */

    head_kind kind; /* HEAD_HIDDEN, HEAD_LABELS, or the first mode of an embedding */
    label_kind labels;
    bool is_of_tokens;              /* a row for each token, not for each sequence */
    head_kind mode[HEAD_MAX_MODES]; /* pooled side by side */
    int n_modes, n_steps;
    head_step *step;
    int32_t n_out;      /* width of a row */
    const char **label; /* (n_out) */
    float *out;         /* (rows, n_out): embeddings, values, or logits */
    float *probability; /* (rows, n_out); NULL for embeddings and values */

    arena memory;
    backend *cpu;
    nn_memory weights;
    float *room[3];
    size_t room_capacity[3];
} encoder_head;

/* Reads the JSON files of a folder, and by encoder_head_load the weights; workers may be NULL. */
status encoder_head_open(encoder_head **out, const char *folder, head_kind kind);
status encoder_head_load(encoder_head *h, pool *workers);
void encoder_head_close(encoder_head *h); /* NULL is fine */

/* Computes n sequences: offsets (n + 1), hidden (offsets[n], E), pooled (n, E), which is NULL where
 * the model has no pooler. */
status encoder_head_run(encoder_head *h, int32_t n, const int32_t *offsets, const float *hidden,
                        const float *pooled);

/* The JSON line of sequence b, after a run. */
status encoder_head_line(const encoder_head *h, buf *to, int32_t b, const int32_t *offsets);
