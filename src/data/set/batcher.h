/* Batcher: an endless stream of jagged batches of users' most recent events.
 *
 * Each epoch visits every user of a part of a split once, shuffled by (seed, epoch) or in file
 * order.  Batch number i is a pure function of the data and the settings, so any thread can fill
 * it, and a restored stream continues exactly as the saved one would have.  All memory is allocated
 * at creation; taking batches allocates nothing.  One thread at a time uses a batcher; the data it
 * reads must outlive it.
 *
 * A user contributes the last max_history events before its targets, and the targets: the last
 * max_targets events of the part's range that may be targets (split.h).  Retrieval has max_targets
 * 1; ranking has as many as there are candidates, or 0 where every event is a loss position. */
#pragma once

#include "data/set/seq_file.h"
#include "data/set/split.h"
#include "format/json.h"

/* B users, T tokens, F contextual features.  A view of memory of the batcher. */
typedef struct batch {
    int32_t n_users;    /* B: batch_size, or fewer in the last global batch (0 at worst) */
    int32_t n_tokens;   /* T = offsets[B] */
    int32_t n_context;  /* F */
    int32_t *offsets;   /* (B + 1): user b's events are rows offsets[b] .. offsets[b + 1] - 1 */
    uint64_t *users;    /* (B): user numbers of the data */
    int32_t *n_targets; /* (B): how many of a user's last rows are targets */
    uint32_t *item;     /* (T): 1..n_items */
    uint16_t *action;   /* (T): as the data's action_kind says */
    int64_t *time;      /* (T): in ticks of the data */
    uint32_t *context;  /* (B, F): 0 = unknown, else 1..n_values of the feature */
    uint64_t epoch;     /* from 0 */
    uint64_t index;     /* in its epoch, from 0 */
    bool is_last;       /* of its epoch */
} batch;

/* Zeroed memory for so many users and rows in all; batch_fini frees it, after a failure too. */
status batch_init(batch *b, size_t n_users, size_t n_tokens, int32_t n_context);
void batch_fini(batch *b);

typedef struct batcher_config {
    split_rule split;
    split_part part;
    uint64_t split_seed; /* which users train, by-user only */
    uint64_t seed;       /* of the shuffle */
    int32_t batch_size;  /* users in a batch */
    int32_t max_history; /* N: at least 1 */
    int32_t max_targets; /* C: 0 or more */
    int32_t n_ranks, rank;
    int32_t n_micro; /* batches of one rank that make up one step; 1 if there is no accumulation */
    bool is_shuffled;
    bool is_balanced; /* even out the sum of squared lengths over the n_ranks * n_micro batches of a
                         step; else each takes its slice of the order */
    bool drops_last;  /* leave out the users that do not fill a step */
    int n_threads;    /* 0: batches are made when they are taken */
    int n_slots;      /* batches kept ready, 2 at least */
} batcher_config;

/* leave-one-out training of one rank, 128 users a batch, N = 200, C = 1, shuffled, 2 threads. */
batcher_config batcher_config_default(void);

/* The position in a stream.  Small enough to copy; it names the data and settings it belongs to. */
typedef struct batcher_state {
    uint64_t seed;
    uint64_t epoch;
    uint64_t next_batch; /* index in the epoch of the first batch not yet taken */
    uint64_t data;       /* fingerprint of the events */
    char settings[256];  /* what the stream depends on, in words */
} batcher_state;

typedef struct batcher batcher;

/* ERR_CONFIG for settings out of range or too large for 32-bit offsets; ERR_FORMAT if the part has
 * no user, or drops_last leaves none. */
status batcher_create(batcher **out, const seq_file *data, const batcher_config *config);
void batcher_destroy(batcher *b); /* NULL is fine */

/* The next batch; the view is valid until the next call.  Epochs follow one another for ever. */
status batcher_next(batcher *b, const batch **out);

/* The batch that the next call of batcher_next will take, without taking it. */
status batcher_peek(batcher *b, const batch **out);

uint64_t batcher_n_batches(const batcher *b); /* of this rank, in an epoch */
uint64_t batcher_n_users(const batcher *b);   /* visited in an epoch, over all ranks */
int32_t batcher_max_tokens(const batcher *b); /* the most a batch can have */

/* Where the data is a view with gaps: targets that are missing, of all users. */
uint64_t batcher_n_lost_targets(const batcher *b);

/* The value of batcher_state.data: a hash of the names, sizes and checksums of all columns but the
 * description, so that data prepared twice from the same source has the same one.  The events of a
 * test file (held_out.h) do not count. */
uint64_t batcher_fingerprint(const seq_file *data);

/* The state after the batches taken so far; prefetched batches do not count. */
void batcher_save(const batcher *b, batcher_state *out);

/* Continues from a saved state; ERR_CONFIG if it belongs to other data or settings. */
status batcher_restore(batcher *b, const batcher_state *state);

/* A state as a JSON object, and back; numbers beyond 2^53 are kept as strings. */
void batcher_state_write(const batcher_state *state, json_writer *w);
status batcher_state_read(batcher_state *out, const json_value *object);
