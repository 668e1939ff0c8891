/* Model: parameters, and the passes over a batch: straight C over ops, forward and backward.
 *
 * One struct covers the presets `hstu-research` and `sasrec` (Meta's research models, retrieval)
 * and `hstu` (NVIDIA's, ranking or retrieval); the config chooses.  A model owns its parameters,
 * their gradients and every activation it needs for the largest batch it was made for: the passes
 * allocate nothing.  One thread at a time; the backend and the config must outlive it. */
#ifndef HSTU_NN_MODEL_H
#define HSTU_NN_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "config/config.h"
#include "data/set/batcher.h"
#include "nn/limits.h"
#include "nn/params.h"
#include "ops/ops.h"

typedef struct model model;

/* Makes the model the config describes, its parameters not yet set.  ERR_CONFIG names what does not
 * fit together. */
status model_create(model **out, backend *be, const config *c, const model_limits *limits);
void model_destroy(model *m); /* NULL is fine */

/* All parameters, in the order of checkpoints. */
param *model_params(model *m, int *n);

/* The gradients of all dense parameters, in one range (params.h). */
param_range model_dense_gradients(model *m);

/* The tables that are no parameters (dynamic.h), perhaps none; they stay the model's. */
struct dynamic_tables *model_tables(model *m);

/* First values, on the host by Philox(seed, RNG_INIT): the same on every backend.  Dynamic tables
 * become empty; their rows start by the seed of the config. */
status model_init(model *m, uint64_t seed);

/* Where a batch stands in a run: what dropout and negatives depend on, besides user and position.
 */
typedef struct model_step {
    uint64_t seed;
    uint32_t step;    /* of the run, from 0 */
    float grad_scale; /* of the gradients: 1 / loss positions of the step, say */
} model_step;

/* The number of loss positions of a batch (host arithmetic). */
int64_t model_count_loss(const model *m, const batch *b);

/* Of those of the last batch for training, the number that had no loss, as a dynamic table had no
 * place for the item to be foretold. */
int64_t model_n_unlabelled(const model *m);

/* Forward and backward of one batch: adds gradients of grad_scale * (sum of the losses) to every
 * param's grad, and the losses to a sum the model keeps.  negatives (host, (loss positions, R) item
 * numbers) replaces the draw where it is not NULL: for tests.  The passes may still run when this
 * returns. */
status model_train_batch(model *m, const batch *b, const model_step *at, const int32_t *negatives);

/* The batch that will follow the one model_train_batch gets next, which must stay until then: rows
 * of it that are on disk are read beside the passes, where tables can (dynamic.h). */
void model_expect(model *m, const batch *next);

/* Asks for the sum of the losses since it was last asked for: *to has it once `wait` for the ticket
 * (ops.h) returned.  model_take_loss waits itself. */
status model_fetch_loss(model *m, double *to, uint64_t *ticket);
status model_take_loss(model *m, double *sum);

/* Retrieval: the encoded state behind the last history event of every user (its targets are labels,
 * not input): *out = (B, E) act, normalised as the loss has it; memory of the model, valid until
 * the next pass. */
status model_encode(model *m, const batch *b, const void **out);

/* Retrieval: the items that can be ranked, as evaluation scores them.  These are all items, or
 * those with a row where their table is dynamic: an item the table knows nothing of is recommended
 * to nobody.  Memory of the model, valid until it is trained or asked again. */
typedef struct model_items {
    const float *rows; /* (n, E), memory of the backend */
    int32_t n;
    const int32_t *item; /* (n) host: the item of a row, ascending */
    const int32_t *row;  /* (V + 1) host: the row of an item, or -1 */
} model_items;
status model_corpus(model *m, model_items *out);

/* Ranking: logits of every target event of the batch, in order: *out = (sum of n_targets, columns)
 * act; where there are no candidates (max_candidates 0), of every event. */
status model_score(model *m, const batch *b, const void **out, int64_t *n_rows);

int32_t model_dim(const model *m);           /* E */
int64_t model_n_numbers(const model *m);     /* parameters in all */
uint64_t model_memory_bytes(const model *m); /* of the backend */

#endif
