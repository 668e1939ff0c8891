/* Infer: the inference path of a trained model, for commands, the library and the server alike.
 *
 * A query is one user's history and what is asked of it: the best items of the catalogue, or the
 * numbers of given candidates.  infer_run answers up to max_users queries together.  A result
 * depends on its query alone, never on the queries beside it: candidates do not see each other, and
 * more of them than one sequence takes are scored in several sequences, with the same bits.
 *
 * Keys and values of histories may be kept between batches: whoever has such a cache gives
 * infer_hooks.  Results with and without it are equal; on the CPU bit for bit.
 *
 * One thread at a time, but for infer_finish; the session must outlive it. */
#pragma once

#include "model/histories.h"
#include "model/item_rules.h"
#include "model/item_table.h"
#include "model/kv_store.h"
#include "model/score_columns.h"

enum { INFER_MAX_K = 1024 }; /* what op `rank` can do on every backend */

typedef struct infer_config {
    int32_t max_users;   /* sequences of a batch, at most what the session was opened for */
    int32_t max_tokens;  /* of a batch; 0: as many as max_users users can have */
    int32_t max_part;    /* ranking: candidates of a sequence; 0: as many as the model trains on */
    bool has_int8_items; /* a CPU searches the catalogue by 8-bit numbers first */
    bool is_serving; /* worth recorded steps (pass_config), and a 16-bit copy of the catalogue */
    kv_store *store; /* where infer_hooks lease pages; NULL: nothing is kept */
    bool has_fp8_kv; /* keys and values in 8 bits, kept or not */
    /* Of a mixture of logits: how the catalogue is searched, and for how many queries pass_recall
     * is measured. */
    mol_stages stages;
    int32_t n_measured;
} infer_config;

/* One user's question.  Lists and the memory of results are the caller's, and stay until the run;
 * rows are those of infer.table. */
typedef struct infer_query {
    user_events events; /* the newest ones are read; the model's item numbers */
    /* The best k items, if k > 0, without `seen` and of the rows that are allowed. */
    int32_t k;
    const int32_t *seen; /* (n_seen), ascending and distinct */
    int32_t n_seen, n_allow;
    const uint64_t *allowed; /* bits of the rows; NULL: all */
    const int32_t *allow;    /* (n_allow): the same without `seen`, where they are few; or NULL */
    const item_rules *rules; /* how else the list is made (item_rules_order); or NULL */
    uint32_t *item;          /* (k): the n_best items, best first */
    float *score;            /* (k) */
    int32_t n_best;
    /* Candidates: item numbers in any order, also twice; 0: the model does not know it. */
    const uint32_t *candidate; /* (n_candidates) */
    int32_t n_candidates;
    float *values; /* (n_candidates, columns); NAN: no result; may be set in while_busy */
    /* Ranking: (n_candidates, columns.width) act, of which n_logits rows are there: those of the
     * candidates that the model knows.  infer_finish makes the values of them. */
    void *logits;
    int32_t n_logits;
    float *vector;                /* retrieval: (dim) for the encoded user; NULL: not wanted */
    int32_t n_computed, n_reused; /* tokens of all its sequences, candidates included */
} infer_query;

/* What the server does while queries run.  Its cache leases pages for each sequence of a batch. */
typedef struct infer_lease {
    int32_t n_reused, n_stored; /* as in layout_cache */
    const int32_t *page;
} infer_lease;
typedef struct infer_hooks {
    void *ctx;
    status (*lease)(void *ctx, const infer_query *q, int32_t n_tokens, infer_lease *out);
    void (*begin)(void *ctx);                 /* the leases of a batch are complete */
    void (*end)(void *ctx, bool was_written); /* its pages are written, or it failed */
    /* Called while the device computes the sequences of these queries. */
    status (*while_busy)(void *ctx, infer_query *const *q, int32_t n);
} infer_hooks;

typedef struct infer {
    session *s;
    bool is_ranking;
    bool has_first;               /* retrieval: it has learnt to predict from features alone */
    int32_t n_context, per_event; /* tokens before the events, and of an event */
    int32_t max_users, max_tokens, max_part;
    score_columns columns;
    item_table table;     /* retrieval: the catalogue */
    filter_cache filters; /* of its rows; any thread */
    pass *pass;
    histories batch;
    kv_store *store;
    /* Leases of the batch that is built (layout_cache). */
    int32_t *n_reused, *n_stored; /* (max_users) */
    const int32_t **page;         /* (max_users) */
    arena scratch;                /* of a run */
    void *room;                   /* (room_bytes) of the backend, for a batch's searches */
    size_t room_bytes;
    uint64_t build_ns, layers_ns, head_ns; /* of the last run */
} infer;

status infer_init(infer *f, session *s, const infer_config *c);
void infer_fini(infer *f); /* a failed init too */

/* Tokens of a history that the model reads. */
static inline int32_t infer_tokens(const infer *f, uint64_t n_events) {
    uint64_t most = (uint64_t)f->s->max_history;
    return f->n_context + f->per_event * (int32_t)(n_events < most ? n_events : most);
}

/* Whether the model has an answer to a query: to one without events it may have one by features. */
bool infer_knows(const infer *f, const infer_query *q);

/* Answers n queries, at most max_users; hooks may be NULL.  Retrieval: nothing is written for a
 * query whose answer it does not know, and all histories together have at most max_tokens tokens.
 */
status infer_run(infer *f, infer_query *const *q, int32_t n, const infer_hooks *hooks);

/* Ranking: makes a query's values of its logits.  wide: (n_candidates, columns.width) for them as
 * floats; not needed where activations are floats.  Any thread. */
void infer_finish(const infer *f, infer_query *q, float *wide);

/* Sorts rows of the catalogue, such as those a user has had, and keeps one of each. */
status infer_distinct(const infer *f, arena *scratch, int32_t *rows, int32_t *n);

/* For users of whom nothing is known: an item and its events. */
typedef struct popular_item {
    uint64_t n_events;
    uint32_t item;
} popular_item;

/* Most events first, of equal ones the lower number. */
void popular_sort(popular_item *all, size_t n);

/* Gives a query the allowed rows of its rules, as a list where that is searched faster, and the
 * rules themselves where they are more than that.  After `seen`; any thread. */
status infer_use_rules(const infer *f, arena *a, const item_rules *r, infer_query *q);

/* The best k of a sorted list as a query's answer, then items that are not in it; the scores are
 * their events. */
status infer_popular(const infer *f, arena *a, infer_query *q, const popular_item *all, size_t n);

/* The items most similar to those of `seen` as a query's answer; the scores are cosines.  The
 * device's thread, but for a CPU's, where it may be any. */
status infer_similar(const infer *f, arena *a, infer_query *q);
