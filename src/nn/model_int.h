/* The inside of a model, for the files that make and run it, and for tests of its parts. */
#ifndef HSTU_NN_MODEL_INT_H
#define HSTU_NN_MODEL_INT_H

#include "nn/dynamic.h"
#include "nn/hstu_layer.h"
#include "nn/input.h"
#include "nn/model.h"
#include "nn/ranking_head.h"
#include "nn/retrieval_head.h"
#include "nn/sasrec_layer.h"

struct model {
    backend *be;
    bool is_ranking;
    int32_t dim; /* E */
    nn_memory memory;
    param_list params;
    dynamic_tables dynamic;
    const batch *expected; /* the batch after the next one, or NULL */
    plan plan;
    input input;
    int n_layers;
    hstu_layer *hstu;     /* (n_layers), or NULL */
    sasrec_layer *sasrec; /* (n_layers), or NULL */
    hstu_scratch hstu_scratch;
    sasrec_scratch sasrec_scratch;
    void **hidden;  /* (n_layers + 1) of (T, E) act: what goes into each layer and comes out */
    void *d_hidden; /* (T, E) act */
    double *loss;   /* (1): the sum of the losses since it was last asked for */
    float *corpus;  /* (V, E): where items are dynamic, rows of those that have one */
    int32_t n_corpus;
    int32_t *corpus_item, *corpus_row; /* host: model_items */
    retrieval_head retrieval;
    ranking_head ranking;
};

/* Fills a zeroed model: its parts, their parameters and memory. */
status model_make(model *m, const config *c, const model_limits *limits);

/* The tokens of the plan through all layers: m->hidden. */
status model_forward(model *m, const sequences *s);

/* From the gradient of the last hidden state, in m->d_hidden, to those of all parameters. */
status model_backward(model *m, const sequences *s);

#endif
