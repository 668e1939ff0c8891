/* Engine: the serving of models in process, without HTTP.
 *
 * An engine holds the histories of users, in host memory, and one or more models by name.  Any
 * thread may call any function of it.  Requests for a model wait in its queue; the model's worker
 * thread, or a caller that waits for its answer, takes as many as fit a batch, by tokens and not by
 * count, the most urgent first, and answers them.  Histories belong to
 * the engine, not to a model: a model that is reloaded, or a second one beside it, reads the same
 * events, matched to its vocabulary by id.
 *
 * Keys and values of histories are cached in pages (kv_cache.h).  That is a cache and nothing else:
 * an answer is the same with and without it, and whatever else is in the batch; on the CPU bit for
 * bit.
 *
 * A request is refused before anything is done for it, and only where its predicted wait exceeds a
 * limit or its deadline, or the queue is full (job_queue.h).
 *
 * Reloading opens the new model beside the old one and replaces it between two batches: no request
 * fails.  Answers keep the model they came from until they are released.  The data, with the
 * histories that users start with, is replaced in the same way, for all models at once.
 *
 * With several devices each model has a replica on each of them, with a queue, a worker and a cache
 * of its own (replicas.h); users and their events are the engine's, once. */
#pragma once

#include "data/set/seq_file.h"

typedef struct engine engine;

enum {
    ENGINE_ID_BYTES = 255, /* of an id, at most */
    ENGINE_MAX_MODELS = 16,
    ENGINE_MAX_REPLICAS = 16,
    ENGINE_MAX_K = 1024,
    ENGINE_ERROR_BYTES = 512,
    ENGINE_BUCKETS = 26 /* of times: 5 a decade from 100 us to 10 s, and all above */
};

/* The id of a user, an item or an event, as the caller has it: a number, or text where text is not
 * NULL.  The number 7 and the text "7" are the same id. */
typedef struct engine_id {
    int64_t number;
    const char *text; /* or NULL; need not end with NUL */
    size_t n;         /* bytes of text, 1..ENGINE_ID_BYTES */
} engine_id;

/* One event of a user. */
typedef struct engine_event {
    engine_id item;
    engine_id id; /* of the event, so that a retry adds nothing twice; n = 0: none (with a number, n
                     = 1) */
    bool has_time;       /* without: now; in a whole history all or none, see untimed_seconds */
    int64_t time;        /* seconds since 1970 */
    uint32_t time_ns;    /* and nanoseconds, below 10^9 */
    uint16_t action;     /* as the data stores it, or ACTION_UNKNOWN */
    uint16_t half_stars; /* twice the rating that stands for the action until engine_read_ratings
                            has been called; 0: none */
    const char *action_name; /* and the name of an action until then; NULL: none */
    size_t action_bytes;
} engine_event;

typedef struct engine_config {
    const char *data;      /* prepared data with users' histories to start with; NULL: none */
    const char *device;    /* "auto", "cpu", "cuda", "cuda:N"; or several, "cuda:0,cuda:1": a
                              replica of each model on each; what follows is of each replica */
    int n_threads;         /* of the CPU's pool of each model; 0: its share of the cores */
    int32_t max_batch;     /* requests of a batch; 0: as an engine folder says, else 64 */
    int32_t max_tokens;    /* computed tokens of a batch; 0: likewise, else 8192; never less than
                              one request needs */
    int32_t max_queue;     /* requests that wait, of each model; 0: 1024 */
    int64_t kv_pages;      /* pages of each model's cache; 0: none, nothing is cached; below 0:
                              as an engine folder says, else a quarter GiB */
    int64_t kv_host_pages; /* of a second tier in host memory; 0: there is none */
    bool loads_always;     /* from there, also where computing is predicted to be faster: for tests
                              and benches */
    bool has_fp8_kv;       /* keys and values in 8 bits */
    bool has_int8_items;   /* a CPU searches catalogues by 8-bit numbers first, also where an
                              engine folder does not say so */
    const char *search;    /* of a mixture of logits (mol_stages_read); NULL: exact */
    uint64_t max_user_events;   /* of a history; 0: 1 << 20 */
    const char *state;          /* folder of the database of users' events (state.h); NULL: they
                                   live in memory */
    uint64_t erase_within_ns;   /* see state_open; 0: a minute */
    uint64_t deadline_ns;       /* of requests that name none; 0: they have none (job_queue.h) */
    size_t max_queue_bytes;     /* of requests that wait, of each model; 0: 1 GiB */
    struct tensor_group *group; /* the ranks that share each model, one device a rank
                                   (tensor_group.h); NULL: this process alone */
} engine_config;

/* Opens the data and the state; models are added by engine_load. */
status engine_create(engine **out, const engine_config *c);

/* Answers what is in the queues, refuses what comes later, waits for callers inside (not for
 * answers that are not released: release them first), frees everything. */
void engine_destroy(engine *e); /* NULL is fine */

/* From now on requests are refused (ENGINE_CLOSING); those in the queues are still answered. */
void engine_drain(engine *e);

/* Opens a run, a checkpoint or an engine folder (`hstu build`) under a name; where the name exists,
 * replaces that model between two batches, and then its content was checked.  Takes seconds for
 * large models, on the caller's thread; requests go on meanwhile.  On failure the old model stays.
 */
status engine_load(engine *e, const char *name, const char *path);

/* The same for a name that exists, and takes other data (NULL: as it is).  Users keep what they
 * added and stay erased; an event that is in the new data, too, counts once.  On failure model and
 * data stay.  ERR_CONFIG: the data does not fit a model, or its times are finer than before. */
status engine_reload(engine *e, const char *name, const char *path, const char *data);

/* Waits until the content of a model's engine folder is checked, which goes on after engine_load
 * has returned for a new name; until then its requests wait, and if it is damaged they all fail. */
status engine_wait_checked(engine *e, int model);
bool engine_is_checked(engine *e, int model); /* it would not wait */

typedef struct engine_model_info {
    char name[64];
    char version[64];                      /* grows with each load: "1", "2"; a decimal number */
    char path[4096];                       /* as it was given */
    char device[ENGINE_MAX_REPLICAS * 16]; /* of all replicas: "cuda:0,cuda:1" */
    char task[16];                         /* "retrieval" or "ranking" */
    uint64_t step;                         /* of the checkpoint */
    uint64_t n_items;
    bool has_text_items; /* their ids are text */
    int32_t dim;
    int32_t max_history;        /* events that the model reads */
    int n_columns;              /* numbers of a candidate */
    const char *const *columns; /* (n_columns): names; valid while the model is loaded: copy them */
    bool has_int8_items;        /* in the search of the catalogue */
    bool is_cached;             /* whether prefixes can be reused */
    char cache_note[128];       /* and why not, in words; "" */
    int64_t n_pages;            /* of the cache */
    int64_t n_host_pages;       /* of its second tier */
    uint64_t page_bytes;        /* of all layers */
    /* Of the choice between loading pages of the host and computing them again, as measured when
     * the model was loaded: microseconds a token, of a history of full length, and from how many
     * tokens on loading is predicted to be faster (-1: never); all 0: pages are always loaded. */
    double load_us_token, compute_us_token;
    int32_t load_from_tokens;
    bool has_fp8_kv;
    double fp8_error;      /* largest change of a result, in units of the largest one, of a
                              history that was tried when the model was loaded */
    uint64_t memory_bytes; /* weights, activations and cache; of each replica */
    double load_s;
} engine_model_info;

int engine_n_models(engine *e);

/* The number of a model; -1: no such name.  NULL or "": the first one. */
int engine_find_model(engine *e, const char *name);
status engine_model(engine *e, int model, engine_model_info *out);

/* For benches.  A batch of requests that are alike, and the work that nothing can save: FLOPs of
 * products and attention; bytes of the layers' weights, of cached and new keys and values, of the
 * rows of new tokens and of the catalogue that is searched. */
typedef struct engine_shape {
    int32_t n_users, n_candidates; /* candidates of each */
    double n_computed, n_reused;   /* tokens of each, candidates included */
} engine_shape;
typedef struct engine_work {
    double flops, bytes;
} engine_work;
status engine_work_of(engine *e, int model, const engine_shape *shape, engine_work *out);

/* Calls fn with the backend of a model, while nothing else computes. */
struct backend;
status engine_with_backend(engine *e, int model, status (*fn)(struct backend *be, void *ctx),
                           void *ctx);

typedef enum { ENGINE_RECOMMEND, ENGINE_RANK } engine_task;

/* A contextual feature of a request: its name, and a value as the vocabulary has it. */
typedef struct engine_context {
    const char *name;
    engine_id value;
} engine_context;

typedef struct engine_request {
    engine_task task;
    int model; /* number; 0: the first one loaded */
    /* Whose: a user, or a whole history, or both: then the history counts, and the user's is
     * neither read nor changed.  A user that is not known has no events. */
    bool has_user;
    engine_id user;
    bool has_history;
    const engine_event *history; /* (n_history), in any order; sorted by time */
    size_t n_history;
    /* Events that are added to the history for this request only: "what if". */
    const engine_event *extra;
    size_t n_extra;
    /* Contextual features that count instead of the user's own; unknown values read as unknown. */
    const engine_context *context;
    size_t n_context;
    int32_t top_k;               /* recommend: 1..ENGINE_MAX_K; rank: 0 = all, in the order given */
    const engine_id *candidates; /* rank: (n_candidates) */
    size_t n_candidates;
    bool keeps_seen;          /* also items of the history: as exclude_seen "none" */
    const char *exclude_seen; /* session_seen */
    /* recommend: an object with rules about the items (model/item_rules.h); or NULL. */
    const struct json_value *rules;
    bool wants_vector;    /* the user's encoded state, where the model has one */
    uint64_t arrived_ns;  /* by clock_ns: when it came; 0: now */
    uint64_t deadline_ns; /* from then on; 0: the engine's */
    uint64_t after_ns;    /* of that, what the caller needs once it has the answer */
    bool was_asked;       /* engine_has_time said yes: it is not refused for its time any more */
    int priority;         /* 0 is normal; higher ones are taken first among equal deadlines */
    /* engine_submit: the caller's thread runs a batch that may begin and is predicted to take at
     * most so long, before it returns; 0: it runs none.  engine_ask always runs it. */
    uint64_t run_ns;
    /* Asked with the context of `done` before the request would run, by the thread that computes:
     * true where nobody waits for the answer any more.  NULL: somebody does. */
    bool (*is_gone)(void *ctx);
} engine_request;

typedef enum {
    ENGINE_OK,
    ENGINE_BAD,      /* the request is wrong: HTTP 400 */
    ENGINE_NO_MODEL, /* 404 */
    ENGINE_OVERLOAD, /* it would wait too long, or the queue is full: 503, retry_after_s */
    ENGINE_CLOSING,  /* 503; also where a rank is lost */
    ENGINE_GONE,     /* whoever asked is gone, so it did not run: 499 */
    ENGINE_FAILED    /* 500 */
} engine_outcome;

typedef enum { ENGINE_FROM_MODEL, ENGINE_FROM_POPULAR, ENGINE_FROM_NOTHING } engine_source;

/* An item of an answer.  Its text belongs to the model: valid until the answer is released. */
typedef struct engine_item {
    engine_id id;      /* as the vocabulary has it: a number, or text */
    const char *title; /* (title_bytes); NULL: it has none */
    size_t title_bytes;
    uint32_t number;     /* of the model; 0: the model does not know the item, all values are NAN */
    uint32_t place;      /* rank: its number among the candidates of the request */
    const float *values; /* (n_columns); recommend: the score, of popular items their events */
} engine_item;

typedef struct engine_answer {
    engine_outcome outcome;
    char error[ENGINE_ERROR_BYTES]; /* what is wrong and what to do; "" */
    uint32_t retry_after_s;         /* of an overload */
    char model[64], version[64];
    engine_source source; /* FROM_NOTHING: ranked by retrieval without any history */
    size_t n_items;
    const engine_item *items;
    int n_columns;
    const char *const *columns; /* (n_columns) */
    const float *vector;        /* (dim), or NULL */
    int32_t dim;
    uint64_t n_events;         /* of the history, unknown items included */
    int32_t n_window;          /* events of it that the model read */
    uint64_t n_unknown_events; /* of the history: of items that the model does not know */
    size_t n_unknown;          /* ids of candidates or rules that it does not know */
    int32_t tokens_reused, tokens_computed;
    int32_t tokens_loaded;                           /* of the reused ones: from host memory */
    int32_t batch_requests, batch_tokens;            /* of the batch it was in, tokens computed */
    uint64_t queue_ns, build_ns, layers_ns, head_ns; /* of the batch, but for the queue */
    struct engine_answer_memory *memory;             /* the engine's own */
} engine_answer;

/* Answers a request; *out must be released, whatever the outcome. */
void engine_ask(engine *e, const engine_request *r, engine_answer *out);

/* The same without waiting: `done` is called once, from a thread of the engine or, for what is
 * refused at once or may be run by the caller, from the caller's thread before this returns; it
 * must not wait, and may release the answer.  The request is copied where it is needed; *out must
 * stay until `done`. */
typedef void (*engine_done)(void *ctx, engine_answer *out);
void engine_submit(engine *e, const engine_request *r, engine_answer *out, engine_done done,
                   void *ctx);

/* Makes the items of a submitted request's answer: before they are read, once `done` was called, on
 * any thread, so that the worker can go on.  Fails for lack of memory. */
status engine_make_items(engine_answer *a);

/* Answers with the top_k items most similar to the request's candidates, under its rules; the score
 * is the cosine of the model's embeddings, with several candidates that of the sum of their unit
 * vectors.  Items the model does not know count in n_unknown; FROM_NOTHING: it knows none.  On a
 * GPU it takes turns with batches.  *out must be released, whatever the outcome. */
status engine_similar(engine *e, const engine_request *r, engine_answer *out);

/* Whether a request is admitted now, by the average cost of one: cheap, and without looking at its
 * ids.  False: *out is an answer that says why, counted like any other; release it. */
bool engine_has_time(engine *e, const engine_request *r, engine_answer *out);

void engine_answer_release(engine_answer *a); /* twice is fine */

typedef struct engine_added {
    size_t n_added, n_duplicates; /* duplicates: their event ids are there already */
    size_t n_unknown;             /* of all: no model knows the item (they are kept) */
    size_t n_late;                /* of the added ones: older than the newest event before */
    uint64_t n_events;            /* of the history now */
} engine_added;

typedef struct engine_user_events {
    engine_id user;
    const engine_event *events;
    size_t n_events;
} engine_user_events;

/* A change of histories: events of one or more users, each at its place by time, or the erasure of
 * a user: events, those of the data included, and event ids.  All of it or nothing; where the
 * engine has a state, what succeeded is on disk. */
typedef struct engine_change {
    const engine_user_events *users; /* (n_users); NULL: erase `user` */
    size_t n_users;
    engine_id user;
    engine_added *added; /* (n_users), the caller's */
    bool existed;        /* erasure: there was something to erase */
    status st;           /* ERR_USAGE: what is wrong with an event; ERR_UNSUPPORTED: a history would
                            be too long; ERR_IO: it could not be stored now */
    failure why;
    /* The engine's own. */
    void (*done)(void *ctx, struct engine_change *c);
    void *ctx;
    struct user_change *parts;
    struct engine_change *next;
} engine_change;

/* `done` is called once, by a thread of the engine or before this returns; it must not wait.  The
 * change and what it points to must stay until then. */
typedef void (*engine_change_done)(void *ctx, engine_change *c);
void engine_submit_change(engine *e, engine_change *c, engine_change_done done, void *ctx);

/* The same, and waits. */
status engine_add_events(engine *e, engine_id user, const engine_event *events, size_t n,
                         engine_added *out);
status engine_erase_user(engine *e, engine_id user, bool *existed);

/* Sets the actions of events that have half_stars or action_name, by the ratings and the names of a
 * model's data.  ERR_USAGE if they have no such rating or name. */
status engine_read_ratings(engine *e, int index, engine_event *events, size_t n);

/* Those of n events that would not be duplicates now, in their order: (n_out) of `out`, which has
 * room for n.  Fails as engine_submit_change would, where that can be known. */
status engine_new_events(engine *e, engine_id user, const engine_event *events, size_t n,
                         engine_event *out, size_t *n_out);

bool engine_knows_item(engine *e, const engine_id *item); /* one of its models does */

/* Of the state. */
typedef struct engine_state_stats {
    bool is_durable;              /* it has one */
    uint64_t n_restored, n_known; /* events at the start; those of them that the data has, too */
    uint64_t n_commits, n_failed; /* transactions */
    uint64_t n_refused;           /* changes, because too many waited */
    uint64_t n_unswept;           /* erased users with rows still on disk */
    uint64_t queue_bytes;         /* of changes that wait */
    uint64_t log_bytes;           /* of the write-ahead log */
    bool is_failing;              /* the last transaction failed, */
    char why[256];                /* and why */
    char warning[1024];           /* of the start: damage at the end of the log; "" */
} engine_state_stats;
void engine_get_state(engine *e, engine_state_stats *out);

/* An event of a history as it is read back. */
typedef struct engine_past_event {
    engine_id item;
    const char *title; /* of the first model that has one; or NULL */
    size_t title_bytes;
    int64_t time;
    uint32_t time_ns;
    uint16_t action;
    bool is_known; /* by the first model */
} engine_past_event;

typedef struct engine_user {
    bool is_known; /* in the data, or has had events */
    bool is_from_data;
    uint64_t version; /* grows with each change */
    size_t n_total;   /* events that there are */
    size_t first;     /* of them, the first below */
    size_t n_events;
    const engine_past_event *events; /* oldest first */
    struct engine_answer_memory *memory;
} engine_user;

/* A copy of a part of a user's history: n events from the first-th on, as far as there are any, or
 * the newest n.  Others wait for it: ask for a few thousand at most. */
#define ENGINE_NEWEST SIZE_MAX
status engine_get_user(engine *e, engine_id user, size_t first, size_t n, engine_user *out);
void engine_user_release(engine_user *u);

/* Users of the data whose ids begin with a text, from a place in its list on: at most n, and after
 * a few million others none.  Their texts are in the arena.  *next: the place to go on from, 0:
 * there are no more. */
status engine_list_users(engine *e, arena *a, const char *prefix, uint64_t from, size_t n,
                         engine_id *out, size_t *n_found, uint64_t *next);

uint64_t engine_n_users(engine *e); /* of the data, and those that came later */

/* Whether the data's user ids are texts; without data they are unknown, and it is false. */
bool engine_has_text_users(engine *e);

/* The embedding rows of items first .. first + n - 1 (from 1): (n, dim); zeros where an item has no
 * row. For a map of the items. */
status engine_item_rows(engine *e, int model, uint32_t first, uint32_t n, float *out);
/* Ids and titles; valid while the model is loaded: copy them. */
status engine_item_of(engine *e, int model, uint32_t number, engine_item *out);

/* Times: count[i] of the bucket below bound engine_bucket_s(i), the last one of all above. */
typedef struct engine_times {
    uint64_t count[ENGINE_BUCKETS + 1];
    uint64_t n;
    uint64_t sum_ns;
} engine_times;
double engine_bucket_s(int i); /* 0.0001, 0.00016, 0.00025, 0.0004, 0.00063, 0.001, ... 10 */
int engine_bucket_of(uint64_t ns);

typedef enum { STAGE_QUEUE, STAGE_BUILD, STAGE_LAYERS, STAGE_HEAD, ENGINE_STAGES } engine_stage;
const char *engine_stage_name(engine_stage s); /* "queue", "build", "layers", "head" */

typedef struct engine_stats {
    uint64_t requests[2][ENGINE_FAILED + 1]; /* by task and outcome */
    uint64_t n_late;                         /* began after their deadlines */
    uint64_t n_moved;                   /* taken over, as the user's own replica was full or lost */
    uint64_t n_up;                      /* replicas that are not lost */
    uint64_t n_batches, batch_requests; /* their requests, summed */
    uint64_t tokens_reused, tokens_computed;
    uint64_t tokens_device, tokens_loaded;    /* of the reused ones, from the device and the host */
    uint64_t kv_evictions, kv_host_evictions; /* pages */
    uint64_t kv_bytes_out, kv_bytes_in;       /* to the host and from there */
    uint64_t kv_computed_again;               /* pages that were not loaded, by predicted cost */
    int64_t kv_pages_free, kv_pages_used, kv_pages_pinned;
    int64_t kv_host_free, kv_host_used;
    uint64_t queue_requests, queue_tokens; /* now */
    uint64_t events_added, events_duplicate, reloads;
    engine_times stages[ENGINE_STAGES];
    engine_times total;  /* from submission to answer */
    double wait_limit_s; /* longest predicted wait of those that name no deadline */
} engine_stats;
status engine_model_stats(engine *e, int model, engine_stats *out); /* users' counts are of all */

/* One replica of a model. */
typedef struct engine_replica {
    char device[64];
    bool is_lost; /* its device failed: it gets no requests until a load opens it again, */
    char why[ENGINE_ERROR_BYTES];
    engine_stats stats; /* without users' counts */
} engine_replica;
int engine_n_replicas(engine *e);                                                /* of each model */
bool engine_get_replica(engine *e, int model, int replica, engine_replica *out); /* if there is */

/* A page of the cache, for its map. */
typedef struct engine_page {
    int64_t page;
    uint64_t owner;   /* a hash of the sequence up to it; 0: free */
    int32_t n_tokens; /* of 64 */
    int32_t first;    /* place of its first token in the sequence */
    uint64_t age;     /* batches since it was last used */
    bool is_pinned;
    bool is_host; /* of the second tier: numbered after those of the device */
} engine_page;
/* The first pages of a model's cache, at most `most`; *n: how many pages there are. */
status engine_pages(engine *e, int model, int64_t most, engine_page *out, int64_t *n);
