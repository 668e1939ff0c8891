/* The effective configuration of a run, whichever project's file it comes from.
 *
 * Two families of gin files are understood.  Those that bind train_fn are Meta's research files
 * (retrieval with HSTU or SASRec); those that bind *Args classes are NVIDIA's (ranking or retrieval
 * with the `hstu` layer).  Both fill this one struct; where a member means the same in both, both
 * write it.  The option table (options.h) says which name goes where.
 *
 * A config is read only once loaded.  config_load and config_destroy belong to one thread. */
#pragma once

#include "format/json.h"

/* None for an integer; a float that is None is NAN, a string that is None is NULL. */
#define CONFIG_NONE INT64_MIN

/* The order of each enumeration is the order of the choices in the option table. */
typedef enum { FAMILY_ANY, FAMILY_META, FAMILY_NVIDIA } config_family;
typedef enum { TASK_RANKING, TASK_RETRIEVAL } config_task;
typedef enum {
    MODEL_SASREC,
    MODEL_HSTU_RESEARCH,
    MODEL_FUXI,
    MODEL_ESASREC,
    MODEL_HSTU
} config_model;
/* TF32: float32 whose products round their operands. */
typedef enum { DTYPE_BFLOAT16, DTYPE_FLOAT16, DTYPE_FLOAT32, DTYPE_TF32 } config_dtype;
typedef enum { BACKEND_CUTLASS, BACKEND_TRITON, BACKEND_PYTORCH } config_backend;
typedef enum {
    OPTIMIZER_ADAM,
    OPTIMIZER_SGD,
    OPTIMIZER_ROW_WISE_ADAGRAD,
    OPTIMIZER_ADAGRAD
} config_optimizer_kind;
/* How rows of tables travel between ranks. */
typedef enum { WIRE_FLOAT32, WIRE_BFLOAT16 } config_wire;

typedef enum { SCHEDULE_CONSTANT, SCHEDULE_COSINE } config_schedule;
typedef enum { PIPELINE_NONE, PIPELINE_NATIVE, PIPELINE_PREFETCH } config_pipeline;
typedef enum { ACTIVATION_RELU, ACTIVATION_GELU } config_activation;
typedef enum { SHARDING_DATA_PARALLEL, SHARDING_MODEL_PARALLEL } config_sharding;
/* The values after STRATEGY_NONE are dynamicemb's names for the first ones; the loader replaces
 * them. */
typedef enum {
    STRATEGY_LRU,
    STRATEGY_LFU,
    STRATEGY_STEP,
    STRATEGY_NONE,
    STRATEGY_TIMESTAMP,
    STRATEGY_KLRU,
    STRATEGY_KLFU
} config_evict;
typedef enum { KEYS_CONTINUOUS, KEYS_ROUNDROBIN, KEYS_HASH_ROUNDROBIN } config_key_placement;
typedef enum { DIST_UNIFORM, DIST_NORMAL, DIST_ZIPF, DIST_LOGNORMAL } config_distribution_kind;
typedef enum { NEGATIVES_IN_BATCH, NEGATIVES_LOCAL } config_negatives;
typedef enum { LOSS_SAMPLED_SOFTMAX, LOSS_BCE, LOSS_FULL_SOFTMAX, LOSS_GBCE } config_loss;
typedef enum { NEGATIVES_UNIFORM, NEGATIVES_BY_POPULARITY } config_draw;
/* What the logarithm of an item's share of the events is subtracted from. */
typedef enum { LOGQ_NONE, LOGQ_OF_NEGATIVES, LOGQ_OF_ALL } config_logq;
typedef enum { USER_NORM_L2, USER_NORM_LAYER } config_user_norm;
typedef enum { SIMILARITY_DOT_PRODUCT, SIMILARITY_MOL } config_similarity;
typedef enum { SCORE_REL_BIAS, SCORE_HSTU_REL_BIAS, SCORE_SOFTMAX_REL_BIAS } config_score;
typedef enum { LINEAR_SILU, LINEAR_NONE } config_linear_activation;

typedef struct config_texts {
    const char **item; /* (n) */
    size_t n;
} config_texts;

static inline bool config_has_text(const config_texts *texts, const char *text) {
    for (size_t i = 0; i < texts->n; i++)
        if (strcmp(texts->item[i], text) == 0) return true;
    return false;
}

typedef struct config_ints {
    int64_t *item; /* (n) */
    size_t n;
} config_ints;

/* Weights by name: train_fn.loss_weights. */
typedef struct config_weights {
    const char **name; /* (n) */
    double *weight;    /* (n) */
    size_t n;
} config_weights;

/* How random lengths and ids of a benchmark are drawn; always integers >= 0. */
typedef struct config_distribution {
    const char *scope;
    config_distribution_kind kind;
    int64_t low;
    int64_t high; /* None: no bound */
    double mean;  /* mean and deviation of normal and lognormal, in real space; None: not given */
    double std;   /* None: for lognormal mean / 2 */
    double alpha; /* of zipf, > 1; None: 1.5 */
} config_distribution;

typedef struct config_distributions {
    const char **name;         /* (n) feature */
    config_distribution *item; /* (n) */
    size_t n;
} config_distributions;

/* A group of generated features that share their lengths. */
typedef struct config_feature {
    const char *scope;
    config_texts feature_names;
    int64_t max_sequence_length;
    bool is_jagged;                   /* false: every sequence has max_sequence_length */
    config_distribution *seqlen_dist; /* NULL: uniform in [0, max_sequence_length) */
    config_distributions value_dists; /* a feature not named here: uniform over its table */
} config_feature;

typedef struct config_features {
    config_feature *item; /* (n) */
    size_t n;
} config_features;

/* An embedding table.  The members after `sharding` belong to dynamic tables. */
typedef struct config_embedding {
    const char *scope; /* "item_embedding"; for a predefined table, its name */
    bool is_dynamic;
    config_texts feature_names;
    const char *table_name;
    int64_t capacity; /* rows: the vocabulary of a static table, the most keys of a dynamic one */
    config_sharding sharding;
    int64_t hbm_bytes;         /* None, or bytes of values on the device: first choice */
    double gpu_capacity;       /* None, or rows on the device: second choice */
    double gpu_capacity_ratio; /* None, or a share of capacity: third choice */
    config_evict evict;
    bool has_caching;
    config_key_placement key_placement;
    const char *store_folder;     /* None, or the folder for rows that do not fit in memory */
    int64_t admission_threshold;  /* uses before a key gets a row; 0 and 1: the first */
    double admission_probability; /* and then that of each use; 0 and 1: always */
    int64_t steps_to_live; /* a row is evicted when it was not written for more steps than this; 0:
                              never */
} config_embedding;

typedef struct config_embeddings {
    config_embedding *item; /* (n) */
    size_t n;
} config_embeddings;

typedef struct config_data {
    const char *dataset_name; /* NULL for a benchmark */
    const char *dataset_path; /* None: where prep put it */
    int64_t max_history;      /* the most events of a user that are kept, the most recent ones */
    int64_t max_candidates;   /* of those to rank; 0 for retrieval */
    bool is_shuffled;
    int64_t n_workers;       /* None: the cores of the machine */
    int64_t prefetch_factor; /* batches prepared ahead */
    bool drops_last;
    double positional_sampling_ratio;
} config_data;

/* Generated data; holds if is_benchmark. */
typedef struct config_benchmark {
    config_features features;
    const char *item_feature;
    const char *action_feature; /* NULL: none */
    config_texts contextual_features;
    int64_t n_batches; /* generated once, then cycled */
} config_benchmark;

typedef struct config_network {
    int64_t n_layers;
    int64_t hidden_size;  /* E */
    int64_t n_heads;      /* H */
    int64_t dim_qk;       /* D of q and k, per head */
    int64_t dim_v;        /* D of v and u, per head */
    double input_dropout; /* on the embedded sequence */
    bool has_item_features;
    double item_id_dropout;
    double stochastic_depth; /* of the last layer; earlier ones in proportion */
    double item_dropout;     /* share of the events whose item a training step does not see */
    double dropout;          /* rate before a layer's output projection (sasrec: in the FFN) */
    double attention_dropout;
    double norm_epsilon;
    bool is_causal;
    config_dtype dtype;
    bool is_bf16; /* Meta's spelling of dtype */
    bool has_tf32;
    bool is_fp8; /* no option: an engine folder says so (model/trained.h) */
    config_backend backend;
    int64_t target_group_size;
    int64_t n_position_buckets;
    bool recomputes_norm, recomputes_silu;
    int64_t item_dim;       /* of the item table; -1: hidden_size */
    int64_t contextual_dim; /* of the contextual tables; -1: hidden_size */
    int64_t scaling_length; /* N of 1/N; -1: the longest possible sequence */
    const char *embedding_backend;
    bool has_no_contextual_mask;
    /* Meta's research encoders */
    int64_t output_length;   /* slots after the history, besides the target's */
    int64_t ffn_hidden_size; /* sasrec; of the other two, times hidden_size: */
    int64_t ffn_multiply;
    bool has_single_stage; /* fuxi: no feed-forward stage */
    config_activation ffn_activation;
    config_score score;
    config_linear_activation linear_activation;
    int linear_config;
    bool concatenates_u; /* concat_ua */
    bool has_relative_bias;
    config_user_norm user_norm;
    bool has_user_features, has_action_input, has_first_loss; /* ours */
    const char *target_actions; /* of retrieval: "purchase,cart"; "" or NULL: all */
} config_network;

/* Groups of parameters without weight decay; the order is that of the choices. */
enum { NO_DECAY_VECTORS = 1, NO_DECAY_TABLES = 2 };

typedef struct config_optimizer {
    config_optimizer_kind kind;
    double learning_rate, beta1, beta2, epsilon;
    double weight_decay; /* decoupled */
    int no_decay;        /* groups without it: bits of NO_DECAY_ */
    double average;      /* decay of the moving average of the weights; 0: none */
    bool is_sparse;      /* of embedding tables only the rows of a batch are updated */
    int64_t n_warmup_steps;
    config_schedule schedule; /* after the warm-up */
} config_optimizer;

typedef struct config_trainer {
    int64_t train_batch_size; /* users; None: not given, and `train` requires it */
    int64_t eval_batch_size;
    int64_t eval_user_max_batch_size; /* None: no limit */
    int64_t accumulation_steps;
    int64_t n_epochs;
    int64_t max_train_iters; /* None: n_epochs decide */
    int64_t max_eval_iters;  /* None: all users */
    int64_t log_interval, eval_interval;
    int64_t full_eval_every; /* epochs; between them partial_eval_iters batches */
    int64_t partial_eval_iters;
    int64_t checkpoint_interval; /* steps; -1: never */
    int64_t checkpoint_epochs;   /* epochs; -1: not counted in epochs */
    const char *checkpoint_folder;
    const char *resume_folder; /* checkpoint or run to start from; "" or NULL: none */
    bool has_mean_items;       /* and rows of new items start as the mean of their neighbours' */
    int64_t seed;
    bool has_profile;
    int64_t profile_first, profile_last;
    config_pipeline pipeline;
    bool is_balanced;                           /* balance batches by the sum of squared lengths */
    double clip_grad;                           /* largest norm of the gradient; 0: off */
    int64_t tensor_parallel, sequence_parallel; /* ranks that share layers, or tokens; 1: none */
    int64_t batch_ranks; /* whose batches of train_batch_size make up a step */
    config_wire wire;
} config_trainer;

typedef struct config_ranking {
    config_ints head; /* widths of the layers; the last is the tasks or the classes */
    config_activation activation;
    bool has_bias;
    int64_t n_tasks;
    config_texts metrics;
} config_ranking;

/* The mixture of logits (nn/mol.h). */
typedef struct config_mol {
    int64_t n_query, n_item, dim; /* component vectors, and their width */
    int64_t query_hidden, item_hidden, query_gate, item_gate, pair_gate;
    double temperature, query_dropout, item_dropout, item_gate_dropout, pair_gate_dropout,
        gate_dropout, user_dropout, user_decay, epsilon;
    int query_glu, item_glu, combination; /* geglu, swiglu */
    bool has_norm, is_query_identity, is_item_identity, drops_users, has_query_gate, has_item_gate,
        is_bf16, evaluates_bf16;
    config_ints user_hash;
} config_mol;

typedef struct config_retrieval {
    config_mol mol;
    int64_t n_negatives; /* <= 0: as many as positions */
    double temperature;
    double norm_epsilon;
    config_negatives negatives;
    config_loss loss;
    config_draw draw;      /* of the catalogue's negatives */
    bool shares_negatives; /* all positions have the same ones; in a batch: all its labels */
    config_logq logq;
    double gbce_calibration; /* t */
    double label_smoothing;
    config_weights loss_weights;
    config_similarity similarity;
    int top_k_method, embedding_module;
    bool has_loss_checkpoint;
    bool has_item_norm;
    config_texts metrics;
} config_retrieval;

typedef struct config {
    arena memory;   /* owns the arrays and structs below, */
    arena gin_text; /* and this the strings of the gin files */
    config_family family;
    config_task task;
    config_model model;
    bool is_benchmark;
    const char *file;
    config_texts overrides; /* as given: "Class.field=value" */
    config_data data;
    config_benchmark benchmark;
    config_network network;
    config_optimizer optimizer;
    config_trainer trainer;
    config_ranking ranking;
    config_retrieval retrieval;
    config_embeddings embeddings; /* NVIDIA: given, or predefined for the data set */
} config;

/* Where a config comes from. */
typedef struct config_source {
    const char *path; /* a gin file; NULL: text */
    const char *text; /* gin text instead of a file; messages call it `text_name` */
    const char *text_name;
    size_t text_bytes;
    const char *const *overrides; /* (n_overrides) "Class.field=value" */
    size_t n_overrides;
    const char *task; /* "ranking" or "retrieval"; NULL: as the file says */
} config_source;

/* Reads, checks, and fills in every default.  ERR_CONFIG names the file and the line. */
status config_load(config **out, const config_source *source);
void config_destroy(config *c); /* NULL is fine */

/* Whether the model reads contextual features, or actions, of the data.  Ranking has a token for
 * each action; Meta's models add an action's row to the token of its event. */
static inline bool config_reads_context(const config *c) {
    return c->family == FAMILY_NVIDIA || c->network.has_user_features;
}
static inline bool config_reads_actions(const config *c) {
    return c->task == TASK_RANKING || c->network.has_action_input;
}

/* Whether only the rows of embedding tables that a batch uses are updated. */
static inline bool config_has_sparse_rows(const config *c) {
    return c->family == FAMILY_NVIDIA || c->optimizer.is_sparse;
}

/* Whether training needs to know how many events each item has. */
static inline bool config_needs_popularity(const config *c) {
    const config_retrieval *r = &c->retrieval;
    return c->task == TASK_RETRIEVAL && (r->draw != NEGATIVES_UNIFORM || r->logq != LOGQ_NONE);
}

/* Refuses what parses but cannot be trained by this version; the message says what. */
status config_check_trainable(const config *c);

/* All effective values as one JSON object, grouped by class in the family's own names. */
status config_write_json(const config *c, buf *out, int indent);

/* The same as members of an open object, for a file that has more of them. */
void config_write_members(const config *c, json_writer *w);

/* Loads what config_write_json wrote (of real data, not of a benchmark); messages call it `name`.
 */
status config_load_json(config **out, const char *name, const char *json, size_t n);

const char *config_task_name(config_task task);
const char *config_model_name(config_model model);
