/* Batch layout: a batch of events laid out as the tokens of a model, and its loss positions.
 *
 * retrieval   F contextual tokens, then the items of the history; the item at t predicts that at
 *             t + 1, the last one the target, which is a label only.  With has_first_loss the last
 *             contextual token predicts the first item
 * ranking     F contextual tokens, then item, action, item, action, ... (or items only); the loss
 *             is at the items of the candidates, or of all events where there are no candidates.
 *             In training the actions of the candidates are tokens too, which no token with a loss
 *             sees; for scoring they are left out.
 *
 * Everything is computed on the host, checked against what the model was made for, and sent to the
 * backend by batch_layout_build, or batch_layout_send, in one copy.  Where steps are recorded, a
 * training batch is padded to a multiple of the backend's token_bucket by a few extra sequences
 * whose tokens have no rows and whose losses have no labels: they read as zeros and give no
 * gradient.  Other small batches are rounded up by tokens and outputs that belong to no sequence,
 * and by empty sequences, so that few shapes have to be recorded.  A batch_layout belongs to one
 * thread. */
#pragma once

#include "data/set/batcher.h"
#include "nn/memory.h"
#include "nn/sequences.h"

typedef enum { LAYOUT_TRAIN, LAYOUT_ENCODE, LAYOUT_SCORE } layout_purpose;

/* Tokens of a batch that is rounded up, at most: larger ones keep a GPU busy for longer than their
 * kernels take to launch. */
enum { LAYOUT_ROUND_MOST = 1024 };

/* Which row of the tables each id of a feature has. */
typedef struct layout_rows {
    int32_t n;          /* ids are 0 .. n - 1 */
    const int32_t *row; /* host (n); -1: none, it reads as zeros */
} layout_rows;

typedef struct layout_config {
    bool is_ranking;
    bool is_training;    /* for training batches too, not only to encode or score */
    bool has_actions;    /* action tokens between the items */
    bool adds_actions;   /* actions are added to the tokens of their items; not with has_actions */
    bool has_candidates; /* ranking: the batch's targets are candidates */
    bool has_first_loss; /* retrieval: only where there are contextual tokens */
    uint64_t target_actions; /* retrieval: bits of the actions whose events are labels; 0: all */
    bool has_context_mask;   /* contextual tokens see the whole history */
    bool has_times;          /* for the time bias */
    int32_t n_items, n_actions, n_context;
    const int32_t *n_context_values; /* (F) */
    int32_t n_labels; /* ranking: actions that can be labels, 0..n_labels-1; 0: any (bits) */
    int32_t n_places; /* rows of the position table */
    int32_t max_len;  /* most tokens of a sequence, more is an error; 0: no bound */
    int32_t max_users, max_events;
    int32_t max_tokens;  /* of a batch; 0: as many as max_users users of max_events events have */
    int32_t max_targets; /* most candidates of a user; not used without candidates */
    int64_t time_per_second;
    int32_t page_len, max_pages; /* of keys and values that are kept; 0: every sequence is whole */
    int32_t bucket;              /* tokens and losses are padded to a multiple; 0: no padding */
    bool is_rounded;             /* without training: shapes of small batches are rounded up */
    float item_dropout; /* share of a user's items that are no input of training: they read as zeros
                         */
    /* Rows of tables: item i is row i, action a row action_row + a of the tables of events; value v
     * of contextual feature f is row context_row[f] + v.  Merged: all are rows of one array. */
    bool is_merged;
    int32_t action_row;
    const int32_t *context_row; /* (F) */
    /* Other rows for items, and for contextual features (F, or NULL); row NULL: as above. */
    layout_rows items;
    const layout_rows *contexts;
} layout_config;

typedef struct batch_layout {
    layout_config config;
    int32_t max_tokens, len_bound; /* T and the length of a sequence, at most */
    int32_t round_most;            /* LAYOUT_ROUND_MOST, but for tests */
    int32_t n_users;               /* of the batch */
    int32_t n_sequences;           /* B: the users, and padding sequences */
    int32_t n_tokens, max_len;     /* T, the longest sequence */
    int32_t n_events;              /* tokens that are not contextual */
    char *packed;                  /* what a batch has of it, as it is sent; pinned if is_rounded */
    size_t unsent_bytes;           /* of it: batch_layout_send sends them */
    staging block;                 /* of all that follows */
    staged_u32 step;               /* (1): what dropout and negatives depend on */
    staged_f32 grad_scale;         /* (1): of the losses' gradients */
    staged_i32 offsets;            /* (B + 1) */
    staged_i32 row; /* (T): merged: table row; else index of the event token, or after all events of
                       the contextual token */
    staged_i32 event_row, context_row; /* (n_events), (B F): table rows */
    staged_i32 place;                  /* (T): row of the position table */
    staged_i32 added_action;           /* (T): with adds_actions; -1: none, or not known */
    staged_u32 user, position;         /* (T): what dropout depends on; for training only */
    staged_i64 query_time, key_time;   /* (T): seconds; key_time of all keys with a cache */
    bool has_cache;                    /* of the batch: what follows is set */
    int32_t max_keys;                  /* the longest sequence, its tokens in pages included */
    staged_i32 page_table;             /* (B, max_pages) */
    staged_i32 key_offsets;            /* (B + 1): of all keys */
    staged_i32 slot;                   /* (T): where a token's key and value go; -1: nowhere */
    staged_i32 n_contexts, n_targets;  /* (B): tokens, for the masks */
    int32_t n_loss;                    /* M */
    int32_t n_rows;                    /* of these, those of the batch: the others round it up */
    bool is_round;                     /* the batch was rounded up, and can be recorded */
    staged_i32 loss_token;             /* (M): the token that predicts; -1: none */
    bool takes_all;                    /* loss_token is 0, 1, ... T - 1: nothing need be chosen */
    bool takes_last;           /* in order, they are the last tokens of their sequences: none is -1
                                  but those that round the batch up */
    int32_t max_chosen;        /* with takes_last: the most chosen tokens of a sequence, */
    staged_i32 chosen_offsets; /* (B + 1): and the first one of each, and their end */
    staged_i32 label; /* (M): item - 1, or the action; -1: none.  Without training: not read */
    staged_u32 loss_user, loss_position; /* (M); with label: sent for training only */
    int32_t n_unlabelled;                /* losses left out: their label has no row */
} batch_layout;

status batch_layout_alloc(batch_layout *p, const layout_config *c, nn_memory *memory);

/* How many events have all their tokens among the first n of a sequence. */
int32_t batch_layout_n_reused(const batch_layout *p, int32_t n);

/* How many events a batch need not have, the first ones of a sequence whose first n tokens are in
 * pages. */
int32_t batch_layout_n_skipped(const batch_layout *p, int32_t n);

/* Tokens of a batch whose keys and values are in pages, host; they are not laid out.  Sequence b
 * has n_reused[b] of them, the first ones, and those up to n_stored[b] are to be put into pages;
 * page[b] are the pages of the first n_stored[b] tokens. */
typedef struct layout_cache {
    const int32_t *n_reused, *n_stored; /* (B) */
    const int32_t *const *page;         /* (B) */
} layout_cache;

/* What a batch is laid out for. */
typedef struct layout_request {
    layout_purpose purpose;
    uint32_t step;
    uint64_t seed; /* of item_dropout */
    float grad_scale;
    const int32_t *start; /* host (B): how many tokens of the sequence come before its first one in
                             the batch; or NULL */
    /* Retrieval, host (V), by item - 1, or NULL: items that a dynamic table has no row for, so that
     * nothing can be learnt from them as labels. */
    const uint8_t *has_no_row;
    const layout_cache *cache; /* not for training; or NULL */
} layout_request;

/* Lays out and sends a batch; where shapes are rounded up, batch_layout_send does that, as a step
 * that can be recorded, and all of it must have run before the next batch is laid out.  ERR_FORMAT:
 * the data are not those the model was made for. */
status batch_layout_build(batch_layout *p, backend *be, const batch *b,
                          const layout_request *request);
status batch_layout_send(batch_layout *p, backend *be);

/* A key that is equal for all batches whose passes run the same ops on the same shapes. */
uint64_t batch_layout_record_key(const batch_layout *p);

/* The most loss positions a batch can have; without training a user of retrieval has one. */
int64_t batch_layout_max_loss(const layout_config *c);

/* The number of loss positions of a batch. */
int64_t batch_layout_count_loss(const layout_config *c, const batch *b);

/* Retrieval: the labels of a training batch, item - 1, as keys; returns the number of its loss
 * positions, of which each has one; has_no_row as in layout_request. */
int64_t batch_layout_list_labels(const layout_config *c, const batch *b, const uint8_t *has_no_row,
                                 sort_pair *label);

/* The view that layers get; dropout is off until the caller sets it. */
sequences batch_layout_sequences(const batch_layout *p);
