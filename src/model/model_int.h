/* The inside of a model and of a pass, for the files that make and run them, and for tests. */
#pragma once

#include "model/model.h"
#include "model/pass.h"
#include "nn/dynamic.h"
#include "nn/heads.h"
#include "nn/input.h"
#include "nn/layer.h"

/* The catalogue of a retrieval model. */
typedef struct catalogue {
    int32_t n;
    int32_t *item, *row; /* host: model_items */
    float *rows;         /* (V, E): for a dynamic item table, its rows; else NULL */
    float *normed; /* (V, E): normalised items; NULL where items are scored without normalisation */
    float *scale;  /* (V) of the norm */
    const float *mapped; /* (V, E): the normalised items, in memory of the caller; or NULL */
} catalogue;

struct model {
    backend *be;
    bool is_ranking;
    int32_t dim;    /* E */
    comm *tensor;   /* the ranks that share the layers, or NULL */
    comm *sequence; /* the ranks that share the tokens, or NULL */
    nn_memory memory;
    param_list params;
    dynamic_tables dynamic;
    input input;
    int n_layers;
    layer *layers;                         /* (n_layers) */
    int first_layer_param, n_layer_params; /* their parameters, one after the other */
    layout_config plan;                    /* of every pass, but for its size and purpose */
    bool has_packed_layers;
    bool can_record; /* passes run the same ops for every batch of a shape */
    catalogue corpus;
    retrieval_head retrieval;
    mol mol; /* where that has one */
    ranking_head ranking;
    content_rows content; /* of items; zeros: none */
};

enum { PASS_SHAPES = 64 };

struct pass {
    model *m;
    uint64_t id;                  /* no two passes of a process have the same */
    uint64_t shapes[PASS_SHAPES]; /* keys of the last shapes that were not rounded up, */
    unsigned n_shapes;            /* and how many came */
    nn_memory memory;
    batch_layout plan;
    int32_t
        *n_skipped; /* (max_users) host: events of the batch that runs whose rows are not needed */
    input_acts input;
    layer_acts *layers; /* (n_layers): one for each layer in training, else one shared by all */
    layer_scratch scratch;
    void **hidden; /* (n_layers + 1) of (T, E) act: input and output of each layer; without training
                      two buffers, alternating.  Where ranks share the tokens, all but the first and
                      the last have this rank's rows alone */
    void *d_hidden; /* (T, E) act; NULL without training */
    double *loss;   /* (1): sum of the losses since the last fetch; may be NULL as well */
    retrieval_acts retrieval;
    ranking_acts ranking;
    staged_i32 lists;       /* of pass_rank; not for training */
    mol_search search;      /* likewise */
    const batch *expected;  /* the batch after the next one, or NULL */
    const batch *whole;     /* what the current batch is a part of, or NULL */
    struct kv_store *store; /* of the batch that runs, or NULL */
    pass_grads_fn on_grads; /* or NULL */
    void *grads_ctx;
    bool has_fp8_kv; /* keys and values are rounded */
    pass_lead lead;  /* of the ranks that share the layers; begin NULL: none */
};

/* The key of a recorded step: different for each pass and each shape. */
uint64_t pass_record_key(const pass *p, uint64_t seed);
