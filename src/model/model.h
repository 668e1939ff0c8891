/* Model: the weights a config describes, with everything that does not depend on a batch: dynamic
 * tables, limits, the catalogue in the form that is scored.
 *
 * One struct covers the presets `hstu-research` and `sasrec` (Meta's research models, retrieval)
 * and `hstu` (NVIDIA's, ranking or retrieval); the config chooses.  Batches go through a pass
 * (pass.h), of which a model may have several at once; a model itself allocates no activations, and
 * gradients only once a pass trains.  Passes read the weights and never change them; the optimizer
 * does.  A model with dynamic tables has one buffer for the rows of a batch: its passes must not
 * run at the same time.  One thread at a time; the backend and the config must outlive it. */
#pragma once

#include "config/config.h"
#include "data/set/batcher.h"
#include "nn/item_content.h"
#include "nn/memory.h"
#include "nn/params.h"
#include "ops/ops.h"

typedef struct model model;

/* Makes the model the config describes, its parameters not yet set.  ERR_CONFIG names what does not
 * fit together. */
status model_create(model **out, backend *be, const config *c, const model_limits *limits);
void model_destroy(model *m); /* NULL is fine; after its passes */

/* All parameters, in the order of checkpoints. */
param *model_params(model *m, int *n);

/* Allocates the gradients; does nothing the second time. */
status model_alloc_grads(model *m);

/* The gradients of all dense parameters, in one range (params.h); empty before model_alloc_grads.
 */
param_range model_dense_grads(model *m);

/* Those of the layers, which are a range of it. */
param_range model_layer_grads(model *m);

/* Those of a part of the model, another range of it: of layer `part`, of the head for part =
 * model_n_layers, of the input for part = -1.  These ranges follow each other and cover all. */
param_range model_part_grads(model *m, int part);

int model_n_layers(const model *m);

/* The tables that are not parameters (nn/dynamic.h), possibly none; the model owns them. */
struct dynamic_tables *model_tables(model *m);

/* The banks of tables whose gradients are listed by row (nn/input.h); returns how many. */
struct bank;
int model_listed_banks(model *m, struct bank *out[2]);

/* The gradient of such a table, in full, to the host: for checks. */
status model_read_listed(model *m, const param *p, float *to_host);

/* The rows of a static table: of items (ITEM_FEATURE of nn/input.h) or of a contextual feature;
 * NULL where it is dynamic, or the model has none.  Likewise of actions. */
param *model_rows(model *m, int32_t feature);
param *model_action_rows(model *m);

/* Draws the first values, on the host by Philox(seed, RNG_INIT): the same on every backend.
 * Dynamic tables become empty; their rows start by the seed of the config. */
status model_init(model *m, uint64_t seed);

/* For a model that is no longer trained: packs the weights of HSTU layers and of a ranking head
 * in the type of the activations, where that is of 16 bits; and passes that are made from now on
 * read the rows of dynamic tables where they are, if that can be (dynamic_freeze).
 * model_pack_layers: of HSTU layers alone, and nothing the second time. */
status model_pack(model *m);
status model_pack_layers(model *m);

/* The content that items' rows are made of (nn/item_content.h); its item is NULL where there is
 * none. */
content_rows *model_content(model *m);

/* Which items have training events, (V) by item - 1, where items have content: before training. */
status model_set_warm(model *m, const uint8_t *is_warm);

/* Tells a model that needs them how many training events each item has, (V) counts; before it is
 * trained. */
bool model_needs_counts(const model *m);
status model_set_counts(model *m, const uint32_t *counts);

/* The ranks that share the model's layers (model_limits), or NULL. */
struct comm *model_tensor(const model *m);

/* The number of loss positions of a batch (host arithmetic). */
int64_t model_count_loss(const model *m, const batch *b);

/* Retrieval: the items that can be ranked, as evaluation scores them.  These are all items or, with
 * a dynamic table, the items that have a row: an item without a row is never recommended.  Memory
 * of the model, valid until the next training step or call. */
typedef struct model_items {
    const float *rows; /* (n, E), memory of the backend */
    int32_t n;
    const int32_t *item; /* (n) host: the item of a row, ascending */
    const int32_t *row;  /* (V + 1) host: the row of an item, or -1 */
} model_items;
status model_corpus(model *m, model_items *out);

/* Item rows in memory of somebody else, such as a file that is mapped, instead of a copy: of a
 * retrieval model on a CPU whose only table is that of the items.  The memory must outlive the
 * model, which must not be trained.  rows: (V + 1, E), with that of the padding; normed: (V, E),
 * the rows as they are scored, where the model normalises them, else NULL. */
bool model_can_map_items(const model *m);
bool model_normalises_items(const model *m);
const param *model_item_param(const model *m);
void model_map_items(model *m, const float *rows, const float *normed);

int32_t model_dim(const model *m);           /* E */
int64_t model_n_numbers(const model *m);     /* parameter count */
uint64_t model_memory_bytes(const model *m); /* of the backend; passes have their own */
