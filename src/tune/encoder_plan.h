/* The layers of an encoder run by a fusion plan instead of the ops of src/encode/bert_layer.c:
 * generated kernels, ops of the backend and the hand-written attention, in the order of the plan.
 * On a GPU they are recorded with the rest of the pass as one CUDA graph.
 *
 * The plan is given, or looked up for each batch among those that searches kept (plan_store.h); a
 * batch without one runs as if there were no plan.  In an encoder the attention must be one kernel,
 * and under a mask other than none and causal the hand-written one, so that nothing of size length
 * x length is stored.  One thread at a time. */
#pragma once

#include "encode/encoder.h"
#include "tune/plan_file.h"

typedef struct encoder_plan encoder_plan;

typedef struct encoder_plan_options {
    const char *plan;      /* "auto", the file of a plan, a value or 16 bits */
    const char *cache;     /* folder of compiled kernels and kept plans; NULL: the user's */
    const mask *mask;      /* as in encoder_options */
    const char *mask_text; /* what the mask was made from; NULL: none */
    pool *workers;         /* compile and run kernels on the CPU; NULL: one thread */
} encoder_plan_options;

/* For a model of this shape on this backend, in its precision now; the backend must outlive it.
 * ERR_UNSUPPORTED says what the model or the plan has that the other has not. */
status encoder_plan_create(encoder_plan **out, backend *be, const encoder_config *c,
                           const encoder_plan_options *o);
void encoder_plan_destroy(encoder_plan *p); /* NULL is fine; after the encoder */

/* ERR_UNSUPPORTED says why an encoder whose attention is of this kind cannot run a plan, lowered
 * for its shape. */
status encoder_plan_check(const chain *c, attend_kind attend, const plan_program *program);

/* What encoder_options takes. */
const encoder_layers *encoder_plan_layers(const encoder_plan *p);

/* Batches that ran by a plan, those that did not, and the value of the last plan. */
typedef struct encoder_plan_use {
    uint64_t n_by_plan, n_built_in;
    uint16_t value;
} encoder_plan_use;
encoder_plan_use encoder_plan_used(const encoder_plan *p);
