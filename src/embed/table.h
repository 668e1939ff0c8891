/* A dynamic embedding table: rows for any 64-bit id, made when an id is first seen.
 *
 * Rows live in up to three tiers: level 0 in memory of the device, level 1 in host memory (both
 * indexed on the device, ops/table.h), and a store on disk (store.h).  A key is in one of the two
 * levels at most; the store may keep an older copy of a row that moved up.  A batch's rows move to
 * level 0; the rows they evict move to the next tier, and rows that the lowest tier cannot hold
 * leave the table.  A key that cannot be placed is reported (`rejected`), never dropped silently;
 * with a store rows leave only when they are erased or expire.  Where a batch fails halfway (most
 * likely because the store cannot write) the rows it was moving are lost: all verbs fail from then
 * on, until embed_clear or the reading of a full snapshot.
 *
 * The training interface: embed_fetch deduplicates the ids and copies the rows of the distinct ones
 * to a staging buffer; the dense step reads staging by the inverse index and writes a gradient for
 * each staging row; embed_update runs the optimizer on the rows in their tiers.
 *
 * Several ranks can hold a table together.  Its keys are in EMBED_SHARDS virtual shards by their
 * hash, in fewer where it has fewer buckets; a shard is a range of buckets with their rows, and
 * counters of the admission, and every rank holds consecutive shards.  What happens in a shard
 * depends on the shard's keys alone, so all ranks together hold what one rank would hold.  The
 * verbs work on the rows of this rank: rows of other ranks are not found, and are left out by
 * imports.  Fetches are for keys of this rank (embed_rank_of), and every rank makes the same number
 * of them, if need be with no ids.
 *
 * Results do not depend on the order of ids in a batch, nor on the number of threads.  One thread
 * calls a table at a time.  ids, keys and rows of the verbs are host memory; what embed_batch
 * points to is memory of the backend, but for the fields that say host. */
#pragma once

#include "embed/store.h"
#include "ops/comm.h"
#include "ops/table.h"

/* Which key is evicted from a full bucket. */
typedef enum {
    POLICY_NONE, /* none: a new key of a full bucket is rejected.  One level only */
    POLICY_LRU,  /* the least recently used, by calls of embed_fetch */
    POLICY_LFU,  /* the least frequently used; ties: the least recently used */
    POLICY_STEP  /* the row with the smallest step of last use (embed_set_step) */
} embed_policy;

enum { EMBED_LEVELS = 2, EMBED_TIERS = 3, EMBED_SHARDS = 1024 };

typedef struct embed_config {
    int32_t dim;
    opt_kind opt;
    embed_policy policy;
    int64_t capacity[EMBED_LEVELS]; /* slots, rounded up to buckets; level 1: 0 for none */
    bool is_on_host;                /* the rows of level 0 too */
    bool is_sparse;                 /* less than half of the slots will be used */
    int64_t max_batch;              /* ids of one fetch */
    uint64_t seed;
    first_kind first; /* values of new rows */
    float first_scale;
    float first_state;    /* of the optimizer */
    uint32_t admit_count; /* a key gets a row after it was seen this often; 0 and 1: at once */
    float admit_rate;     /* probability of a row at each use from then on; 0 and 1: always */
    uint32_t ttl;       /* embed_expire erases rows not written for more steps than this; 0: none */
    bool tracks_left;   /* keeps a list of keys that leave, for incremental snapshots */
    embed_store *store; /* or NULL; stays the caller's */
    comm *comm;         /* ranks that hold the table together, or NULL; stays the caller's */
} embed_config;

/* The largest admit_count: the sketch's counters saturate there. */
enum { EMBED_MAX_ADMIT_COUNT = 65535 };

/* Counts since the table was created; embed_take_rows adds its counts at embed_catch_up. */
typedef struct embed_counts {
    int64_t hits[EMBED_TIERS];    /* distinct keys of fetched batches, by where they were found */
    int64_t n_new, n_refused;     /* not found: given a row; not admitted (yet) */
    int64_t n_rejected;           /* found no place */
    int64_t n_evicted, n_expired; /* left the table */
    int64_t n_written;            /* to the store; clean rows are not */
} embed_counts;

/* The last fetch. */
typedef struct embed_batch {
    int64_t n;                /* ids */
    int64_t n_unique;         /* U */
    uint64_t *keys;           /* (U) by ascending hash */
    int32_t *inverse;         /* (n): which of the U */
    int32_t *order, *begin;   /* (n), (U + 1): row_groups of the inverse */
    float *rows;              /* (U, stride): values, the first dim of each */
    int32_t stride;           /* dim rounded up to 4 */
    const uint64_t *rejected; /* (n_rejected) host: keys without a place; their staging rows hold
                                 first values (FETCH_INSERT_ZERO: zeros), or the store's row */
    const uint64_t *refused;  /* (n_refused) host: keys that were not admitted; their staging rows
                                 are as for rejected keys */
    int64_t n_rejected, n_refused;
    int64_t n_absent; /* FETCH_ZERO, FETCH_FIRST: keys without a row */
} embed_batch;

typedef struct embed_table embed_table;

/* ERR_CONFIG says what does not fit together. */
status embed_create(embed_table **out, backend *be, const embed_config *config);
void embed_destroy(embed_table *t); /* NULL is fine */

const embed_config *embed_config_of(const embed_table *t);
const embed_counts *embed_counts_of(const embed_table *t);
int32_t embed_n_floats(const embed_table *t); /* of a row: dim and state */

/* The rank that holds a key; its shard, and the number of shards. */
int embed_rank_of(const embed_table *t, uint64_t key);
int embed_shard_of(const embed_table *t, uint64_t key);
int embed_n_shards(const embed_table *t);

/* Slots of the levels, of this rank. */
int64_t embed_n_own_slots(const embed_table *t);

/* Waits for the counts that embed_take_rows left on the device. */
status embed_catch_up(embed_table *t);

/* Sets the step that stamps rows from now on; 1 at the beginning, below 2^31, never decreasing. */
status embed_set_step(embed_table *t, int64_t step);
int64_t embed_step(const embed_table *t);

typedef enum {
    FETCH_INSERT,      /* makes rows for new ids, touches scores, moves rows to level 0 */
    FETCH_INSERT_ZERO, /* like FETCH_INSERT, but ids without a row read as zeros, not as first
                          values */
    FETCH_ZERO,        /* changes nothing; ids without a row read as zeros */
    FETCH_FIRST /* changes nothing; ids without a row read as the first values they would get */
} fetch_mode;

/* Finds or makes the rows of n <= max_batch ids.  uses (n) or NULL: how often each was used, which
 * POLICY_LFU and the admission by frequency count; repeats of an id are added up.  NULL: an id
 * counts once for the policy, and once per occurrence in the batch for the admission.  The table
 * owns *out, which is valid until the next call of a verb. */
status embed_fetch(embed_table *t, fetch_mode mode, int64_t n, const uint64_t *ids,
                   const uint64_t *uses, const embed_batch **out);

/* Like embed_fetch for distinct ids, without reordering: rows[i] = the values of ids[i], in rows
 * (n, dim), memory of the backend, or NULL; ids without a row read as
 * zeros. makes_rows: as FETCH_INSERT_ZERO, else as FETCH_ZERO.  Only n, keys and rejected of *out
 * are set, and n_absent where rows are wanted and not made. This does not wait for the device if
 * the table evicts, has no store and no admission, does not track keys that leave, and no bucket
 * has more than 64 of the ids; counts are then read later (embed_catch_up). */
status embed_take_rows(embed_table *t, bool makes_rows, int64_t n, const uint64_t *ids,
                       const uint64_t *uses, float *rows, const embed_batch **out);

/* Whether embed_take_rows counts n_absent even where it has to wait for the device for that; it
 * does unless told otherwise. */
void embed_count_absent(embed_table *t, bool is_counted);

/* The rows of a table that lie in one array of the backend's memory: slot s is row s. */
typedef struct embed_array {
    const float *rows; /* (n_slots, stride) */
    int64_t n_slots, stride;
} embed_array;

/* Whether all rows are in one array of the device's memory: no second level, no store, one rank. */
bool embed_is_array(const embed_table *t, embed_array *out);

/* The slots of n distinct keys in such a table, -1: no row.  They hold until a row is made, evicted
 * or removed. */
status embed_list_slots(embed_table *t, int64_t n, const uint64_t *keys, int64_t *slot);

/* Makes ids of an earlier embed_take_rows the batch of embed_step_rows again: rows that were
 * evicted to the store since then are moved up.  An id that was not admitted is not counted a
 * second time. */
status embed_retake_rows(embed_table *t, int64_t n, const uint64_t *ids);

/* Announces the ids of one of the next fetches: rows that are in the store are read while the
 * caller does something else.  Changes nothing else: the last fetch stays as it is.  n <=
 * max_batch. */
status embed_prefetch(embed_table *t, int64_t n, const uint64_t *ids);

/* y[i] = the values of ids[i] in its table (ids[begin[k]] .. ids[begin[k + 1] - 1] belong to
 * tables[k]); ids without a row read as zeros.  All tables in one pass, without dedup, changing
 * nothing: for evaluation and serving.  The tables are of one backend and one dim, with one level
 * and no store (else ERR_UNSUPPORTED: use embed_fetch).  ids (n), y (n, dim) and is_found (n, or
 * NULL) are memory of the backend. */
status embed_lookup(embed_table *const *tables, int n_tables, const int64_t *begin,
                    const uint64_t *ids, float *y, uint8_t *is_found);

/* How an optimizer steps: the fields of table_update_args. */
typedef struct embed_step_args {
    float lr, beta1, beta2, eps, weight_decay;
    const float *grad_scale; /* memory of the backend, or NULL */
    int64_t step;            /* of Adam, from 1 */
} embed_step_args;

/* Updates the rows of the last fetch. grad (U, dim): memory of the backend. */
status embed_update(embed_table *t, const float *grad, const embed_step_args *args);

/* Like embed_update for the ids of the last embed_take_rows. grad (n, dim): in their order. */
status embed_step_rows(embed_table *t, const float *grad, const embed_step_args *args);

/* rows (n, n_floats) or NULL: only is_found (n) is wanted (contains).  Absent rows are zeros. */
status embed_find(embed_table *t, int64_t n, const uint64_t *keys, int32_t n_floats, float *rows,
                  uint8_t *is_found);

/* Inserts or replaces whole rows with their scores and stamps.  Keys must be distinct. *n_rejected:
 * how many have no place. */
status embed_import(embed_table *t, const embed_rows *rows, int64_t *n_rejected);

/* Inserts or replaces rows with these values (n, dim) and the optimizer's first state, scored and
 * stamped as by a fetch.  Keys must be distinct.  *n_rejected: as of embed_import. */
status embed_insert(embed_table *t, int64_t n, const uint64_t *keys, const float *values,
                    int64_t *n_rejected);

/* Like embed_import for keys that are not in the table, into one level: how rows come back to where
 * they were.  Nothing is evicted for them. */
status embed_restore(embed_table *t, int level, const embed_rows *rows, int64_t *n_rejected);

status embed_erase(embed_table *t, int64_t n, const uint64_t *keys, int64_t *n_erased);

/* Erases the rows not written for more than ttl steps.  Does nothing without a ttl. */
status embed_expire(embed_table *t, int64_t *n_expired);

/* Every row written at step `since` or later (0: all), from every tier, each once.  The visitor
 * does not call the table. */
status embed_export(embed_table *t, int64_t since, embed_visit visit, void *ctx);

/* From now on keeps a list of keys that leave the table, for incremental snapshots. */
void embed_track_left(embed_table *t);

/* Keys that left since step `since`, and are not in the table now; with tracks_left. */
status embed_left_since(embed_table *t, int64_t since, uint64_t **keys, int64_t *n);

/* Forgets the keys that left before a step: they are in a snapshot. */
void embed_forget_left(embed_table *t, int64_t before);

/* Rows of a tier, and of all. */
status embed_tier_size(embed_table *t, int tier, int64_t *out);
status embed_size(embed_table *t, int64_t *out);

status embed_clear(embed_table *t);
