/* hstu.h: the public API of libhstu, a generative recommender (HSTU) in C and CUDA.
 *
 * What the program `hstu` does, as a library: one header, opaque types.  Today: prepared data sets,
 * jagged batches of them, training, trained models, dynamic embedding tables, and the attention
 * kernels.
 *
 * Every function that can fail returns hstu_status, 0 for success; hstu_error() then says why, in
 * words a user can act on.  Objects are made by `open` or `create` and released by `close` or
 * `destroy`, which accept NULL.  A pointer handed out by an object is a view: never freed by the
 * caller, and valid as long as its comment says.
 *
 * Handles.  An hstu_data *, hstu_model * and so on is a handle that the library looks up and nobody
 * follows.  NULL, a closed handle and a handle of another type are HSTU_ERR_USAGE in every function
 * that returns hstu_status; closing them does nothing.  Objects are counted: one that is closed
 * during a call of another thread is released when that call ends, and a batcher keeps its data.
 * Views end when their object is closed.  At most 65,536 objects are open at a time.
 *
 * Threads.  Any thread may call any function with any handle, at any time, and close it.
 *     hstu_data                        calls run at the same time
 *     hstu_model, hstu_table,          calls on one object run one after the other, in any order:
 *     hstu_batcher, hstu_attn,         a second thread waits; open an object a thread for calls at
 *     hstu_softmax_attn,               the same time
 *     hstu_graph_attn
 *     hstu_train                       is not bound to an object: calls run at the same time
 * hstu_error() is per thread.  The batch of hstu_batcher_next is overwritten by the next call of
 * any thread.  On a GPU other than cuda:0, call from the thread that opened the object.
 *
 * fork().  A child process has none of its parent's threads and cannot use its GPU.  There every
 * handle of the parent but an hstu_data is HSTU_ERR_USAGE, and closing it frees nothing; what the
 * child opens itself works.
 *
 * Letters of shapes, as in docs/notation.md: B users of a batch, T tokens of a batch, F contextual
 * features, H heads. */
#ifndef HSTU_H
#define HSTU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HSTU_VERSION "0.1.0"

#if defined(__GNUC__)
#define HSTU_API __attribute__((visibility("default")))
#else
#define HSTU_API
#endif

typedef enum hstu_status {
    HSTU_OK = 0,
    HSTU_ERR_USAGE,       /* an argument is wrong */
    HSTU_ERR_CONFIG,      /* a setting is wrong */
    HSTU_ERR_NOMEM,       /* memory ran out */
    HSTU_ERR_IO,          /* the operating system refused */
    HSTU_ERR_FORMAT,      /* a file is not what it should be */
    HSTU_ERR_UNSUPPORTED, /* this build or version cannot do it */
    HSTU_ERR_DEVICE,      /* a GPU failed or is missing */
    HSTU_ERR_INTERRUPTED, /* a signal asked to stop */
    HSTU_ERR_NUMERIC      /* a number is not finite, or a loss exploded */
} hstu_status;

/* The version of the library in use, as in "0.1.0". */
HSTU_API const char *hstu_version(void);

/* Why this thread's last call failed; valid until its next call. */
HSTU_API const char *hstu_error(void);

/* Data sets, made by `hstu prep` or `hstu synth`. */

typedef struct hstu_data hstu_data;

typedef struct hstu_data_info {
    uint64_t users;
    uint64_t catalogue; /* all known items, numbered 1..catalogue */
    uint64_t events;
    int64_t time_per_second;                /* ticks of time to a second */
    int32_t contextual_features;            /* F */
    int32_t has_text_users, has_text_items; /* their ids are texts; else numbers */
} hstu_data_info;

/* One user's history, oldest event first. */
typedef struct hstu_history {
    uint64_t length;
    const uint32_t *item;   /* (length), 1..catalogue */
    const uint16_t *action; /* (length); 65535: unknown */
    const int64_t *time;    /* (length) */
} hstu_history;

/* Maps a data set (a folder with data.seq, or such a file) and checks all of it. */
HSTU_API hstu_status hstu_data_open(hstu_data **out, const char *path);
HSTU_API void hstu_data_close(hstu_data *data);

HSTU_API hstu_status hstu_data_get_info(const hstu_data *data, hstu_data_info *out);

/* The history of user 0..users-1: a view of the file, valid until hstu_data_close. */
HSTU_API hstu_status hstu_data_history(const hstu_data *data, uint64_t user, hstu_history *out);

/* The same as a copy, which closing the data does not end: the oldest n events, of which the user
 * must have as many.  Arrays: (n), or NULL. */
HSTU_API hstu_status hstu_data_copy_history(const hstu_data *data, uint64_t user, uint64_t n,
                                            uint32_t *item, uint16_t *action, int64_t *time);

/* The number of a user or an item whose id is given as text; HSTU_ERR_USAGE if there is none. */
HSTU_API hstu_status hstu_data_find_user(const hstu_data *data, const char *id, uint64_t *out);
HSTU_API hstu_status hstu_data_find_item(const hstu_data *data, const char *id, uint32_t *out);

/* The action of a name that `hstu prep --action-map` gave. */
HSTU_API hstu_status hstu_data_find_action(const hstu_data *data, const char *name, uint16_t *out);

/* The id or the title (the id where there is none) of item 1..catalogue, and the id of a user, as
 * text of at most n bytes with its NUL; longer ones are cut. */
HSTU_API hstu_status hstu_data_item_id(const hstu_data *data, uint32_t item, char *text,
                                       uint64_t n);
HSTU_API hstu_status hstu_data_item_title(const hstu_data *data, uint32_t item, char *text,
                                          uint64_t n);
HSTU_API hstu_status hstu_data_user_id(const hstu_data *data, uint64_t user, char *text,
                                       uint64_t n);

/* Batches. */

typedef struct hstu_batcher hstu_batcher;

typedef enum hstu_split {
    HSTU_LEAVE_ONE_OUT, /* the last event of a user is the test */
    HSTU_LEAVE_TWO_OUT, /* and the one before it the validation */
    HSTU_BY_USER        /* 70 % of the users train */
} hstu_split;

typedef enum hstu_part { HSTU_TRAIN, HSTU_VALIDATION, HSTU_TEST } hstu_part;

/* Start from hstu_batcher_defaults, so that fields of later versions are set too. */
typedef struct hstu_batcher_config {
    hstu_split split;
    hstu_part part;
    uint64_t seed;
    int32_t batch_size;  /* users in a batch */
    int32_t max_history; /* most recent events of a user before the targets */
    int32_t max_targets; /* last events of a user taken as targets */
    int32_t n_ranks, rank;
    int32_t n_micro; /* batches that make up one step of a rank */
    int32_t is_shuffled;
    int32_t is_balanced; /* even out the sum of squared lengths over the batches of a step */
    int32_t drops_last;  /* leave out users that do not fill a step */
    int32_t n_threads;   /* that prepare batches ahead; 0: none */
} hstu_batcher_config;

/* Jagged: user b's events are rows offsets[b] .. offsets[b + 1] - 1. */
typedef struct hstu_batch {
    int32_t n_users;          /* B */
    int32_t n_tokens;         /* T */
    int32_t n_context;        /* F */
    const int32_t *offsets;   /* (B + 1) */
    const uint64_t *users;    /* (B) */
    const int32_t *n_targets; /* (B): how many of a user's last rows are targets */
    const uint32_t *item;     /* (T) */
    const uint16_t *action;   /* (T) */
    const int64_t *time;      /* (T) */
    const uint32_t *context;  /* (B, F): 0 = unknown */
    uint64_t epoch, index;
    int32_t is_last; /* of its epoch */
} hstu_batch;

HSTU_API void hstu_batcher_defaults(hstu_batcher_config *out);

/* An endless stream of batches, the same for the same data and settings.  The data may be closed
 * before it. */
HSTU_API hstu_status hstu_batcher_create(hstu_batcher **out, const hstu_data *data,
                                         const hstu_batcher_config *config);
HSTU_API void hstu_batcher_destroy(hstu_batcher *batcher);

/* The next batch; its pointers are valid until the next call, and until hstu_batcher_destroy. */
HSTU_API hstu_status hstu_batcher_next(hstu_batcher *batcher, hstu_batch *out);

/* Batches of an epoch, and the most tokens one of them can have; 0 if the batcher is closed. */
HSTU_API uint64_t hstu_batcher_n_batches(const hstu_batcher *batcher);
HSTU_API int32_t hstu_batcher_max_tokens(const hstu_batcher *batcher);

/* Trained models. */

typedef struct hstu_model hstu_model;

typedef struct hstu_model_info {
    uint64_t users; /* of the data it was opened with */
    uint64_t items; /* of the model's catalogue, numbered 1..items */
    int64_t parameters;
    uint64_t step;        /* updates that it was trained for */
    int32_t dim;          /* of a user's state */
    int32_t item_dim;     /* of an item's embedding */
    int32_t n_scores;     /* numbers that scoring gives for a candidate */
    int32_t is_retrieval; /* else it ranks given candidates */
} hstu_model_info;

/* Opens a run (its best checkpoint on validation where it has one, else its newest) or a checkpoint
 * for inference.  data: prepared data with the users to ask about, matched to the model by id;
 * NULL: none, the model has its items alone.  device: "auto", "cpu", "cuda" or "cuda:N"; NULL:
 * "auto". */
HSTU_API hstu_status hstu_model_open(hstu_model **out, const char *run, const char *data,
                                     const char *device);
HSTU_API void hstu_model_close(hstu_model *model);
HSTU_API hstu_status hstu_model_get_info(const hstu_model *model, hstu_model_info *out);

/* The data in the numbering of the model, for ids, titles and histories: users are those of the
 * data, items those of the model.  A view, valid until hstu_model_close; closing it does nothing.
 * NULL if the model is closed. */
HSTU_API const hstu_data *hstu_model_data(const hstu_model *model);

enum { HSTU_MAX_K = 1024 };

/* The k (1..HSTU_MAX_K) best items for each user, without those of the user's history unless
 * keeps_seen (below 0: as the model was evaluated, which ranks them where it learnt to predict some
 * actions only); where there are fewer, item 0 with score NAN.  A user without events gets popular
 * items.  item, score: (n_users, k).  HSTU_ERR_UNSUPPORTED for a ranking model. */
HSTU_API hstu_status hstu_model_recommend(hstu_model *model, const uint64_t *users,
                                          uint64_t n_users, int32_t k, int32_t keeps_seen,
                                          uint32_t *item, float *score);

/* The same for somebody who is not in the data.  action of the history may be NULL: unknown; time
 * may be NULL: the events are a minute apart.  item, score: (k). */
HSTU_API hstu_status hstu_model_recommend_history(hstu_model *model, const hstu_history *history,
                                                  int32_t k, int32_t keeps_seen, uint32_t *item,
                                                  float *score);

/* The same under rules: a JSON object with any of filter, allow, deny, boost, max_per and pin, as
 * docs/rules.md has them; NULL: none.  The lists are the exact best under the rules, and short
 * only where no other item may follow.  HSTU_ERR_USAGE: what is wrong with the rules; ids that the
 * model does not know are left out with a warning. */
HSTU_API hstu_status hstu_model_recommend_by_rules(hstu_model *model, const uint64_t *users,
                                                   uint64_t n_users, int32_t k, int32_t keeps_seen,
                                                   const char *rules, uint32_t *item, float *score);
HSTU_API hstu_status hstu_model_recommend_history_by_rules(hstu_model *model,
                                                           const hstu_history *history, int32_t k,
                                                           int32_t keeps_seen, const char *rules,
                                                           uint32_t *item, float *score);

/* Scores of candidates: (n_users, n_candidates, n_scores); NAN where there is no number, as for a
 * user without events.  hstu_model_score_name says what number i is: "score", "click", "p_1" (a
 * view, valid until hstu_model_close); NULL beyond the last, and if the model is closed. */
HSTU_API hstu_status hstu_model_score(hstu_model *model, const uint64_t *users, uint64_t n_users,
                                      const uint32_t *candidates, int32_t n_candidates, float *out);
HSTU_API const char *hstu_model_score_name(const hstu_model *model, int32_t i);

/* The states of users, (n_users, dim), of which an item's score is the product with its embedding;
 * a user without events has zeros.  Retrieval models only. */
HSTU_API hstu_status hstu_model_encode(hstu_model *model, const uint64_t *users, uint64_t n_users,
                                       float *out);

/* The items' embeddings as they are scored: (items + 1, item_dim); row 0, and rows of items that a
 * dynamic table does not have, are zeros. */
HSTU_API hstu_status hstu_model_item_embeddings(hstu_model *model, float *out);

/* The k (1..HSTU_MAX_K) items nearest to one by cosine of their embeddings, without itself; where
 * there are fewer, item 0 with cosine NAN.  item, cosine: (k). */
HSTU_API hstu_status hstu_model_similar(hstu_model *model, uint32_t to, int32_t k, uint32_t *item,
                                        float *cosine);

/* Training. */

/* Gets the lines of RUN/log.jsonl, one JSON object each: start, epoch, eval, done.  Anything but 0
 * stops the run, which is saved. */
typedef int32_t (*hstu_train_callback)(void *ctx, const char *json);

/* Start from hstu_train_defaults, so that fields of later versions are set too. */
typedef struct hstu_train_args {
    const char *config;           /* a gin file; NULL with is_resume: the run's own */
    const char *const *overrides; /* (n_overrides): "Class.field=value" */
    int32_t n_overrides;
    const char *data;   /* prepared data */
    const char *run;    /* the folder of the run */
    const char *device; /* as of hstu_model_open */
    int64_t epochs;     /* 0: as the config says */
    int32_t is_resume;  /* goes on with the run */
    int32_t has_validation;
    hstu_train_callback callback; /* or NULL */
    void *ctx;
    /* Read atomically after every step: anything but 0 stops the run, which is saved.  Another
     * thread or a signal handler may set it; a callback that stops the run sets it, too.  NULL:
     * none. */
    volatile int32_t *stop;
} hstu_train_args;

HSTU_API void hstu_train_defaults(hstu_train_args *out);

/* HSTU_ERR_INTERRUPTED: the callback or `stop` stopped it; the run is saved and can be resumed. The
 * callback runs on the calling thread. */
HSTU_API hstu_status hstu_train(const hstu_train_args *args);

/* Dynamic embedding tables: rows for any 64-bit id, made when an id is first seen.
 *
 * ids, rows and gradients are memory of the host.  Rows live on the device, more of them in host
 * memory where host_capacity says so; when both are full, rows are evicted. */

typedef struct hstu_table hstu_table;

typedef enum hstu_table_optimizer {
    HSTU_TABLE_SGD,
    HSTU_TABLE_ADAM,
    HSTU_TABLE_ADAGRAD,
    HSTU_TABLE_ROWWISE_ADAGRAD
} hstu_table_optimizer;

typedef enum hstu_table_eviction {
    HSTU_EVICT_NONE, /* a new id of a full table is rejected */
    HSTU_EVICT_LRU,  /* the least recently used row leaves */
    HSTU_EVICT_LFU   /* the least frequently used row leaves */
} hstu_table_eviction;

/* Start from hstu_table_defaults, so that fields of later versions are set too. */
typedef struct hstu_table_config {
    int32_t dim;
    hstu_table_optimizer optimizer; /* HSTU_TABLE_ADAM */
    hstu_table_eviction eviction;   /* HSTU_EVICT_LRU */
    int64_t capacity;               /* rows on the device, rounded up; 65536 */
    int64_t host_capacity;          /* more of them in host memory; 0 */
    int64_t max_batch;              /* ids that are worked on at a time; 65536 */
    uint64_t seed;
    float first_scale;   /* new rows are uniform in -first_scale .. first_scale; 0: zeros */
    int32_t admit_count; /* an id gets a row when it was seen this often; 1 */
    const char *device;  /* as of hstu_model_open */
} hstu_table_config;

HSTU_API void hstu_table_defaults(hstu_table_config *out);
HSTU_API hstu_status hstu_table_create(hstu_table **out, const hstu_table_config *config);
HSTU_API void hstu_table_destroy(hstu_table *table);

/* How many rows there are. */
HSTU_API hstu_status hstu_table_size(hstu_table *table, int64_t *out);

/* The rows of n ids, (n, dim), which may repeat; changes nothing.  is_found: (n) or NULL.  Rows of
 * ids that are not there are zeros. */
HSTU_API hstu_status hstu_table_find(hstu_table *table, int64_t n, const uint64_t *ids, float *rows,
                                     uint8_t *is_found);

/* The same for training: ids without a row get one. */
HSTU_API hstu_status hstu_table_lookup(hstu_table *table, int64_t n, const uint64_t *ids,
                                       float *rows);

/* Inserts n distinct ids with these rows, (n, dim), or replaces their rows; their optimizer state
 * starts again.  *n_rejected (or NULL): ids without a place.  HSTU_ERR_NUMERIC: a number is not
 * finite; nothing is inserted. */
HSTU_API hstu_status hstu_table_insert(hstu_table *table, int64_t n, const uint64_t *ids,
                                       const float *rows, int64_t *n_rejected);

/* Start from hstu_table_step_defaults. */
typedef struct hstu_table_step {
    float lr;           /* 1e-3; 0 to 1e6 */
    float beta1, beta2; /* of Adam: 0.9, 0.999; at least 0, below 1 */
    float eps;          /* 1e-8; above 0, except for SGD */
    float weight_decay; /* of Adam and SGD: 0; lr * weight_decay is at most 1 */
} hstu_table_step;

HSTU_API void hstu_table_step_defaults(hstu_table_step *out);

/* One step of the optimizer on the rows of n ids, with gradients (n, dim); those of an id that
 * repeats are added up.  Ids without a row get one.  HSTU_ERR_NUMERIC: a gradient is not finite,
 * or those of an id add up to more than 1e15; no row is changed.  The new rows are not checked: an
 * eps close to 0 can let one overflow, which hstu_table_save then refuses; erase or insert it. */
HSTU_API hstu_status hstu_table_update(hstu_table *table, int64_t n, const uint64_t *ids,
                                       const float *gradients, const hstu_table_step *step);

/* Bags of ids, whose rows are pooled into one (torch's EmbeddingBag).  Zero the fields that you do
 * not use.  The largest bag has max_batch ids. */
typedef enum hstu_pooling {
    HSTU_POOL_SUM,
    HSTU_POOL_MEAN /* the sum divided by the number of ids, also where they have weights */
} hstu_pooling;

typedef struct hstu_bags {
    int64_t n_bags;
    const int64_t *offsets; /* (n_bags + 1) from 0, n ids at the end: bag b has the ids
                               offsets[b] .. offsets[b + 1] - 1; none: it is pooled to zeros */
    const uint64_t *ids;    /* (n), which may repeat */
    const float *weights;   /* (n), factors of the rows, or NULL: ones */
    hstu_pooling pooling;
    int32_t is_read_only; /* lookups change nothing, and rows of ids that are not there are zeros;
                             else such ids get a row */
} hstu_bags;

/* The pooled rows of the bags: out (n_bags, dim).  A call of more than max_batch ids works on as
 * many whole bags at a time as fit.  HSTU_ERR_USAGE: offsets that decrease, a bag of more than
 * max_batch ids; HSTU_ERR_NUMERIC: a weight that is not finite.  The table is then not changed, and
 * nothing is written. */
HSTU_API hstu_status hstu_table_lookup_pooled(hstu_table *table, const hstu_bags *bags, float *out);

/* hstu_table_update with the gradients of the pooled rows, (n_bags, dim): a row's gradient is the
 * sum over its ids of weight times the gradient of the bag, of a mean divided by its number of ids.
 * At most max_batch ids in one call. */
HSTU_API hstu_status hstu_table_update_pooled(hstu_table *table, const hstu_bags *bags,
                                              const float *gradients, const hstu_table_step *step);

/* The gradients of the weights: out (n), for the rows as they are now; call it before the update.
 * Changes nothing; an id without a row has the values that it would get (is_read_only: zeros). */
HSTU_API hstu_status hstu_table_weight_gradients(hstu_table *table, const hstu_bags *bags,
                                                 const float *gradients, float *out);

/* One lookup of a collection of tables. */
typedef struct hstu_table_request {
    hstu_table *table;
    const char *name; /* of the table, for messages; or NULL */
    hstu_bags bags;
    float *out; /* (n_bags, dim of the table) */
} hstu_table_request;

/* hstu_table_lookup_pooled of several tables, one after the other; a table may occur more than
 * once.  All arguments are checked first: if one is wrong, no table is changed. */
HSTU_API hstu_status hstu_tables_lookup_pooled(int32_t n_requests,
                                               const hstu_table_request *requests);

/* *n_erased (or NULL): how many of them were there. */
HSTU_API hstu_status hstu_table_erase(hstu_table *table, int64_t n, const uint64_t *ids,
                                      int64_t *n_erased);

/* Rows with optimizer state, as a new folder of safetensors ('hstu info' shows it,
 * docs/formats.md); loading replaces the content of a table of the same dim and optimizer.
 * *n_rejected (or NULL): rows without a place. */
HSTU_API hstu_status hstu_table_save(hstu_table *table, const char *folder);
HSTU_API hstu_status hstu_table_load(hstu_table *table, const char *folder, int64_t *n_rejected);

/* HSTU attention on a GPU or the CPU: the kernels alone, for programs with a model of their own.
 *
 * Over jagged sequences of Lq queries and Lk >= Lq keys; per sequence and head, with i the query's
 * place among the keys (i = its row + Lk - Lq):
 *     a[i, j] = silu(alpha (q_i . k_j + rab[i, j])) / scaling_seqlen   where i sees j, else 0
 *     out_i   = sum over j of a[i, j] v_j
 * i sees j if i - window_left <= j <= i + window_right (negative: no bound).  Besides, with c =
 * num_contexts[b], h = Lk - num_targets[b]: rows i < c see every j < h, and a target i >= h does
 * not see the targets of groups before its own (groups of target_group_size, counted from h).  With
 * func, instead of all that: j < func[0][row], or func[2m - 1][row] <= j < func[2m][row], where row
 * is the row of q.
 *
 * The arguments have the names and meanings of NVIDIA's hstu_attn_varlen_func.  Nothing of size
 * length x length is stored; the backward pass computes scores again and needs no result of the
 * forward pass.  A call launches on the given stream and returns; it may be captured into a
 * graph. */

typedef struct hstu_attn hstu_attn;

typedef enum hstu_dtype { HSTU_FLOAT32, HSTU_BFLOAT16, HSTU_FLOAT16 } hstu_dtype;

/* Every pointer is memory of the GPU, aligned to its elements (rows at multiples of 16 bytes are
 * fastest).  "dtype" is the type below.  Start from hstu_attn_varlen_defaults, so that fields of
 * later versions are set too. */
typedef struct hstu_attn_varlen_args {
    hstu_dtype dtype;
    int32_t batch_size;    /* B */
    int32_t num_heads;     /* H */
    int32_t dim_qk, dim_v; /* numbers of a head, 1..256 each */
    int64_t total_q, total_k;
    int32_t max_seqlen_q, max_seqlen_k; /* no sequence is longer; q's at most k's */
    /* (B + 1): sequence b is rows [b] .. [b + 1] - 1 of q; [0] is 0 and [B] is total_q.  The CPU
     * checks that, a GPU does not. */
    const int32_t *cu_seqlens_q;
    const int32_t *cu_seqlens_k; /* (B + 1): likewise for k and v */
    const void *q;               /* (total_q, H, dim_qk) dtype */
    const void *k;               /* (total_k, H, dim_qk) dtype */
    const void *v;               /* (total_k, H, dim_v) dtype */
    void *out;                   /* (total_q, H, dim_v) dtype; forward */
    /* Elements between rows, so that q, k, v may be parts of one array; 0: H times dim.  Each
     * gradient has the layout of its tensor. */
    int64_t stride_q, stride_k, stride_v, stride_out;
    float alpha;                 /* 1 */
    int32_t scaling_seqlen;      /* -1: max_seqlen_q */
    int32_t window_left;         /* -1 */
    int32_t window_right;        /* -1; 0 is causal */
    const int32_t *num_contexts; /* (B) or NULL; either count needs window -1, 0 */
    const int32_t *num_targets;  /* (B) or NULL */
    int32_t target_group_size;   /* 1 */
    const int32_t *func;         /* (n_func, func_stride) or NULL */
    int32_t n_func;              /* odd */
    int64_t func_stride;         /* 0: total_q */
    const void *rab;             /* (B, rab_heads, max_seqlen_k, max_seqlen_k) dtype, or NULL */
    int32_t rab_heads;           /* 1 (shared) or H */
    /* backward */
    const void *dout; /* (total_q, H, dim_v) dtype */
    void *dq;         /* (total_q, H, dim_qk) dtype */
    void *dk;         /* (total_k, H, dim_qk) dtype */
    void *dv;         /* (total_k, H, dim_v) dtype */
    float *drab;      /* as rab, but float32; added to; or NULL */
    /* The same bits every time, at some cost. */
    int32_t is_deterministic;
} hstu_attn_varlen_args;

HSTU_API void hstu_attn_varlen_defaults(hstu_attn_varlen_args *out);

/* What calls need on a GPU besides their arguments: scratch memory, which grows with the largest
 * call, and a table.  Makes `device` the current device.  HSTU_ERR_DEVICE: there is no such GPU of
 * SM 8.0 or newer; HSTU_ERR_UNSUPPORTED: this build is without CUDA.  With HSTU_ATTN_CPU in place
 * of a device, pointers are memory of the host, the type is HSTU_FLOAT32 and streams are not used.
 */
enum { HSTU_ATTN_CPU = -1 };

HSTU_API hstu_status hstu_attn_create(hstu_attn **out, int32_t device);
HSTU_API void hstu_attn_destroy(hstu_attn *attn);

/* Forward: writes out.  Backward: writes dq, dk and dv, and adds to drab.  `stream` is a
 * cudaStream_t, NULL the default one; its device must be the current one.  Calls of one hstu_attn
 * share its scratch memory: order them, by one stream or by events.  Before a call is captured into
 * a graph, a call with shapes at least as large must have run; the graph stays valid until
 * hstu_attn_destroy. */
HSTU_API hstu_status hstu_attn_varlen_fwd(hstu_attn *attn, const hstu_attn_varlen_args *args,
                                          void *stream);
HSTU_API hstu_status hstu_attn_varlen_bwd(hstu_attn *attn, const hstu_attn_varlen_args *args,
                                          void *stream);

/* Waits until the work of earlier calls on a stream is done; the CPU never has any left. */
HSTU_API hstu_status hstu_attn_wait(hstu_attn *attn, void *stream);

/* Softmax attention under any mask, on a GPU or the CPU.
 *
 * Over jagged sequences; per sequence and head:
 *     p = softmax over the keys j that i sees of alpha q_i . k_j,    out_i = sum over j of p[i, j]
 * v_j A row that sees no key has out = 0.  The mask is a text, as 'hstu mask show' takes it:
 * "none", "causal", "sliding,window=64,causal", "longformer,window=32,global=32", "bits:FILE", ...
 * Nothing of size length x length is stored, unless a file brings it. */

typedef struct hstu_softmax_attn hstu_softmax_attn;

/* Every pointer is memory of the device.  Start from hstu_softmax_attn_varlen_defaults, so that
 * fields of later versions are set too. */
typedef struct hstu_softmax_attn_varlen_args {
    hstu_dtype dtype;          /* the CPU takes HSTU_FLOAT32 only */
    int32_t batch_size;        /* B */
    int32_t num_heads;         /* H */
    int32_t dim;               /* numbers of a head, 1..256 */
    int64_t total;             /* rows */
    int32_t max_seqlen;        /* no sequence is longer */
    const int32_t *cu_seqlens; /* (B + 1), as cu_seqlens_q of hstu_attn_varlen_args */
    const void *q, *k, *v;     /* (total, H, dim) dtype */
    void *out;                 /* (total, H, dim) dtype; written forward, read backward */
    /* Elements between rows; 0: H times dim.  Each gradient has the layout of its tensor. */
    int64_t stride_q, stride_k, stride_v, stride_out;
    float alpha;    /* 0: 1 / sqrt(dim) */
    float *log_sum; /* (total, H): written forward (or NULL), read backward */
    /* backward */
    const void *dout;   /* (total, H, dim) dtype */
    void *dq, *dk, *dv; /* (total, H, dim) dtype */
    /* Not 0: weights are silu_scale silu(alpha q_i . k_j), as HSTU has them, instead of the
     * softmax; log_sum is neither written nor read. */
    float silu_scale;
} hstu_softmax_attn_varlen_args;

HSTU_API void hstu_softmax_attn_varlen_defaults(hstu_softmax_attn_varlen_args *out);

/* device: a GPU, or -1 for the CPU.  The mask is read and parsed once.  HSTU_ERR_USAGE: the mask's
 * text; HSTU_ERR_DEVICE and HSTU_ERR_UNSUPPORTED as of hstu_attn_create. */
HSTU_API hstu_status hstu_softmax_attn_create(hstu_softmax_attn **out, int32_t device,
                                              const char *mask);
HSTU_API void hstu_softmax_attn_destroy(hstu_softmax_attn *attn);

/* The lengths of the sequences of the next calls, in host memory; `first` is the number of the
 * first of them in the whole input, at least 0, for files with one mask a sequence.  Masks other
 * than none, causal and sliding need it before a call, and again when the lengths change: the mask
 * of each new length is then made and copied to the device on the stream, and kept.  Not while a
 * graph is captured. */
HSTU_API hstu_status hstu_softmax_attn_set_lengths(hstu_softmax_attn *attn, int64_t first,
                                                   const int32_t *lengths, int32_t n_lengths,
                                                   void *stream);

/* Forward: writes out and log_sum.  Backward: writes dq, dk and dv.  Streams, scratch memory and
 * graphs: as of hstu_attn_varlen_fwd; the CPU has no stream (NULL). */
HSTU_API hstu_status hstu_softmax_attn_varlen_fwd(hstu_softmax_attn *attn,
                                                  const hstu_softmax_attn_varlen_args *args,
                                                  void *stream);
HSTU_API hstu_status hstu_softmax_attn_varlen_bwd(hstu_softmax_attn *attn,
                                                  const hstu_softmax_attn_varlen_args *args,
                                                  void *stream);

/* Attention on a graph, on a GPU or the CPU.
 *
 * The graph is bipartite, n rows by m columns, in CSR; for each edge (i, j) and head, where terms
 * whose pointers are NULL are left out, and without any of them x = 1:
 *     x = alpha q_i . k_j + left_i + right_j + bias_ij
 *     w_ij = f(x < 0 ? slope x : x)
 *     out_i = sum over j of w_ij v_j
 * f is the softmax over the edges of row i, SiLU, sigmoid or the identity.  The sum may be a mean
 * (divided by the number of edges) or the largest w_ij v_j of each number.  A row without edges has
 * out = 0.  Among its cases are
 *     GAT:    left = a_l . h, right = a_r . h, slope = .2, v = h, softmax
 *     spmm:   v and bias (the values of the edges; none: ones), identity
 *     sddmm:  q, k and weights, without v, identity
 * Several graphs in one call are one graph of blocks; relations are calls with graphs of their own.
 * Sums are float32 in a fixed order: the same bits every time. */

typedef struct hstu_graph_attn hstu_graph_attn;

typedef enum hstu_graph_weight {
    HSTU_GRAPH_SOFTMAX,
    HSTU_GRAPH_SILU,
    HSTU_GRAPH_SIGMOID,
    HSTU_GRAPH_IDENTITY
} hstu_graph_weight;

typedef enum hstu_graph_sum { HSTU_GRAPH_SUM, HSTU_GRAPH_MEAN, HSTU_GRAPH_MAX } hstu_graph_sum;

/* Every pointer is memory of the device, of the sizes that the graph gives: n rows, m columns, E
 * edges.  Start from hstu_graph_attn_defaults, so that fields of later versions are set too. */
typedef struct hstu_graph_attn_args {
    hstu_dtype dtype;         /* the CPU takes HSTU_FLOAT32 only */
    int32_t num_heads;        /* H */
    int32_t dim_qk, dim_v;    /* numbers of a head, 1..256 each */
    hstu_graph_weight weight; /* HSTU_GRAPH_SOFTMAX */
    hstu_graph_sum sum;       /* HSTU_GRAPH_SUM; HSTU_GRAPH_MAX not with the softmax */
    const void *q;            /* (n, H, dim_qk) dtype, with k; or NULL */
    const void *k;            /* (m, H, dim_qk) dtype */
    const void *v; /* (m, H, dim_v) dtype, or NULL: only weights and row_sum are wanted */
    void *out;     /* (n, H, dim_v) dtype; written forward, read backward */
    /* Elements between rows; 0: H times dim.  Each gradient has the layout of its tensor. */
    int64_t stride_q, stride_k, stride_v, stride_out;
    float alpha;        /* 1 */
    float slope;        /* 1; LeakyReLU's */
    const float *left;  /* (n, H) or NULL */
    const float *right; /* (m, H) or NULL */
    const float *bias;  /* (E, bias_heads) or NULL */
    int32_t bias_heads; /* 1 (shared) or H */
    /* (n, H) or NULL: the logarithm of the softmax's sum, else the sum of w.  Written forward; the
     * softmax's backward pass reads it. */
    float *row_sum;
    float
        *weights; /* (E, H) or NULL: w, written forward; read backward by a softmax with dweights */
    int32_t *best; /* (n, H, dim_v): HSTU_GRAPH_MAX: the first edge with the largest value, -1 in a
                      row without; written forward (or NULL), read backward */
    /* backward; gradients that are NULL are not computed */
    const void *dout;      /* (n, H, dim_v) dtype, with v */
    const float *dweights; /* (E, H) or NULL */
    void *dq, *dk, *dv;
    float *dleft, *dright, *dbias;
} hstu_graph_attn_args;

HSTU_API void hstu_graph_attn_defaults(hstu_graph_attn_args *out);

/* Row i has the edges indptr[i] .. indptr[i + 1] - 1, which lead to the columns indices[edge],
 * ascending.  indptr (n_rows + 1) and indices are host memory and are copied, together with the
 * edges by column and the pieces in which long rows are computed.  device: a GPU, or -1 for the
 * CPU.  HSTU_ERR_USAGE names the first row with an edge out of range, out of order or twice;
 * HSTU_ERR_DEVICE and HSTU_ERR_UNSUPPORTED as of hstu_attn_create. */
HSTU_API hstu_status hstu_graph_attn_create(hstu_graph_attn **out, int32_t device, int32_t n_rows,
                                            int32_t n_columns, const int32_t *indptr,
                                            const int32_t *indices);
HSTU_API void hstu_graph_attn_destroy(hstu_graph_attn *attn);

/* Forward: writes out and what else has a pointer.  Backward: writes the gradients.  Streams,
 * scratch memory and graphs of CUDA: as of hstu_attn_varlen_fwd; the CPU has no stream (NULL). */
HSTU_API hstu_status hstu_graph_attn_fwd(hstu_graph_attn *attn, const hstu_graph_attn_args *args,
                                         void *stream);
HSTU_API hstu_status hstu_graph_attn_bwd(hstu_graph_attn *attn, const hstu_graph_attn_args *args,
                                         void *stream);

#ifdef __cplusplus
}
#endif
#endif
