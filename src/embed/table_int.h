/* A dynamic table from inside: what its files share.  table.c makes it, fetch.c moves rows between
 * tiers for a batch, verbs.c has the single verbs and visits all rows, shards.c knows which rank
 * holds what. */
#pragma once

#include "embed/snapshot.h"
#include "embed/table.h"

/* A counting sketch: how often was a key seen?  Four rows of counters; the count of a key is the
 * smallest of its four, and only the smallest are increased (conservative update): never too low,
 * rarely too high.  After ten times as many keys as a row has counters all are halved, so that old
 * visits fade.
 *
 * A sketch has parts, one for each shard of a table, and each part its own counters: what is seen
 * of a part depends on its keys alone, whichever ranks hold the others.  Host memory; one
 * thread. */
enum { SKETCH_ROWS = 4 };

typedef struct sketch {
    uint64_t mask;     /* counters of a row of a part, less one */
    int first, n;      /* the parts that are here */
    uint16_t *counter; /* (n, SKETCH_ROWS, mask + 1) */
    uint64_t *n_seen;  /* (n): since they were halved */
} sketch;

/* Room for about n_keys keys in n_parts parts, of which first .. end - 1 are kept here. */
status sketch_init(sketch *s, int64_t n_keys, int n_parts, int first, int end);
void sketch_fini(sketch *s);
void sketch_clear(sketch *s); /* counts from zero again; one that was not made is fine */

/* Adds `times` to the count of the key with this hash, of a part that is here, and returns the
 * count. */
uint32_t sketch_add(sketch *s, int part, uint64_t hash, uint32_t times);

/* Counters of a part. */
static inline size_t sketch_part_n(const sketch *s) {
    return (size_t)(s->mask + 1) * SKETCH_ROWS;
}

/* Where a key of the batch is. */
typedef enum {
    IN_LEVEL0,
    IN_LEVEL1,
    IN_STORE,
    IS_NEW,
    IS_REFUSED,
    IS_REJECTED,
    IS_ABSENT
} whereabouts;

/* Counts of an embed_take_rows call that does not wait: the results of place in each level, and the
 * keys that moved up. */
enum { LATE_LEVEL0, LATE_LEVEL1 = PLACED_COUNTS, LATE_LIFTED = 2 * PLACED_COUNTS, LATE_COUNTS };

/* Most calls of embed_take_rows whose counts may stay on the device; and number of bucket counters,
 * each shared by all buckets with the same low bits. */
enum { EMBED_LATE = 256, EMBED_CROWDS = 1 << 16 };

/* Device buffers for a batch of M keys (max_batch, at least a bucket), and lists of some of the
 * keys. */
typedef struct embed_device {
    uint64_t *ids, *keys;             /* (M) */
    int32_t *inverse, *order, *begin; /* (M), (M), (M + 1) */
    int64_t *n_unique;                /* (1) */
    int64_t *counts;                  /* (PLACED_COUNTS) */
    int64_t *late;               /* (EMBED_LATE, LATE_COUNTS): counts of calls that do not wait */
    uint8_t *is_below;           /* (M): which keys come from level 1 */
    int64_t *slot[EMBED_LEVELS]; /* (M): of the batch's keys, or -1 */
    uint64_t *list_keys, *list_scores;
    uint32_t *list_stamps;
    int64_t *list_slot;
    uint8_t *is_new;
    table_evicted evicted; /* (M) each */
    float *staging;        /* (M, stride) */
    float *moved, *pushed; /* (M, n_floats): rows that move up; rows that move down */
    uint64_t *ahead;       /* (M): ids of a batch to come */
    int64_t *ahead_slot;   /* (M) */
} embed_device;

/* The host's copies and lists, (M) each. */
typedef struct embed_host {
    uint64_t *keys, *scores;     /* for the batch's keys; scores: what place is to write */
    uint32_t *stamps;            /* likewise */
    int64_t *slot[EMBED_LEVELS]; /* */
    uint8_t *where;              /* whereabouts */
    int32_t *at;                 /* IN_STORE: its row in store_rows */
    uint64_t *list_keys, *list_scores;
    uint32_t *list_stamps;
    int64_t *list_slot;
    int32_t *list_of; /* which key of the batch */
    uint8_t *flags;
    uint64_t *rejected, *refused;
    uint64_t *out_keys, *out_scores; /* rows that leave the levels */
    uint32_t *out_stamps;
    float *store_rows, *out_rows; /* (M, n_floats) */
    uint64_t *ahead;              /* ids of a batch to come */
    int64_t *ahead_slot;
    /* What a caller gave, by key of the batch. */
    int32_t *inverse;
    uint64_t *given_scores, *given_uses;
    uint32_t *given_stamps;
} embed_host;

/* The shards of the table, and those of this rank (shards.c).  A unit is the smallest range of
 * hashes that no bucket of any level crosses; a shard is a range of units. */
typedef struct embed_shards {
    int64_t n_units;
    int n, rank, size;
    int first, end;                                              /* of this rank */
    int64_t first_bucket[EMBED_LEVELS], n_buckets[EMBED_LEVELS]; /* of this rank */
} embed_shards;

/* A key that left, and when. */
typedef struct embed_gone {
    uint64_t key;
    int64_t step;
} embed_gone;

struct embed_table {
    embed_config config;
    backend *be;
    const table_ops *v;
    /* This rank has some of the buckets.  Index and rows point to where bucket 0 would be if it had
     * all of them, so that verbs need not know which it has. */
    table_level level[EMBED_LEVELS];
    void *memory[EMBED_LEVELS][2]; /* of this rank's buckets: index, rows */
    int n_levels;
    embed_shards shards;
    int32_t n_floats, stride;
    table_first first;
    int64_t step;
    uint64_t clock; /* fetches that updated scores: the time of LRU */
    sketch seen;    /* with admit_count > 1 */
    embed_counts counts;
    embed_batch batch;
    bool slots_hold;    /* the slots of the last fetch still belong to its keys */
    bool has_below;     /* some of them in level 1 */
    bool is_direct;     /* the last fetch was an embed_take_rows that needed no dedup */
    bool is_retaken;    /* the running fetch admits no keys, and counts none */
    bool is_staged;     /* staging has the rows of level 0 already */
    bool leaves_absent; /* uncounted, where counting means to wait for the device */
    int n_late;         /* calls whose counts are not in `counts` yet */
    int64_t n_late_keys;
    uint8_t *crowd; /* (EMBED_CROWDS): all 0 between two calls */
    bool is_torn;   /* a batch failed between placing keys and rows: embed_check_whole */
    embed_device d;
    embed_host h;
    int64_t n_room; /* M */
    embed_gone *gone;
    size_t n_gone, gone_capacity;
    int64_t file_rows; /* of a snapshot's file, for tests; 0: by their size */
};

/* Fails where a batch was interrupted: then some keys point to the rows of others, and rows that
 * were moving down are lost.  embed_clear makes the table whole again. */
status embed_check_whole(const embed_table *t);

/* Divides n_buckets (n_levels) into shards, and finds those of this rank. */
embed_shards embed_shards_make(const comm *c, const int64_t *n_buckets, int n_levels);

static inline bool embed_is_own(const embed_table *t, uint64_t key) {
    return t->shards.size == 1 || embed_rank_of(t, key) == t->shards.rank;
}

/* The rows of this rank out of `rows`: *own, which is a view of `rows`, or of memory that the
 * caller frees. */
status embed_keep_own(const embed_table *t, const embed_rows *rows, embed_rows *own, void **memory);

/* What a snapshot has besides rows, of all ranks. */
typedef struct embed_totals {
    int64_t tier_rows[EMBED_TIERS];
    uint64_t *gone; /* (n_gone), ascending: embed_left_since */
    int64_t n_gone;
    sketch seen; /* of all shards; n = 0: the table has none */
} embed_totals;

/* All ranks call it, and all get the totals. */
status embed_totals_gather(embed_totals *out, embed_table *t, int64_t since);
void embed_totals_fini(embed_totals *a);

/* Visits the rows of one tier, of this rank, and counts what it visits. */
status embed_walk_tier(embed_table *t, int tier, int64_t since, embed_visit visit, void *ctx);
status embed_tier_count(embed_table *t, int tier, int64_t since, int64_t *out);

/* Deduplicates n ids: fills d.keys, h.keys and the batch. */
status embed_dedup(embed_table *t, int64_t n, const uint64_t *ids);

/* Finds the U keys of the batch: h.where, h.slot and, for keys below level 0, h.scores and
 * h.stamps; the rows of keys in the store go to h.store_rows. */
status embed_locate(embed_table *t);

/* How embed_settle places the keys. */
typedef struct embed_bring {
    score_rule rule;
    uint64_t score;
    const uint64_t *scores; /* (U) host or NULL */
    const uint64_t *uses;   /* (U) host or NULL: what the admission counts */
    const uint32_t *stamps; /* (U) host or NULL: the step */
    bool is_import;         /* no admission, and scores and stamps are taken as they are */
} embed_bring;

/* Places the U keys in level 0, makes new rows, moves evicted rows down; counts and rejects.  A
 * failure after keys were placed leaves the table torn. */
status embed_settle(embed_table *t, const embed_bring *bring);

/* How a fetch scores the keys of the batch. */
embed_bring embed_bring_of(const embed_table *t);

/* The LFU score of a key that was used this often in the current fetch. */
uint64_t embed_lfu_score(const embed_table *t, uint64_t n_uses);

bool embed_has_admission(const embed_table *t);

/* Which entry goes where a bucket is full. */
evict_rule embed_evict_of(const embed_table *t, const embed_bring *bring);

/* Packed rows of n_floats, to or from the slots of a level. */
static inline table_rows_args embed_rows_args(int64_t n, const int64_t *slot, int32_t n_floats,
                                              float *packed) {
    return (table_rows_args){
        .n = n, .slot = slot, .n_floats = n_floats, .staging = packed, .stride = n_floats};
}

/* First values and states of new keys, to their slots in a level. */
static inline table_init_args embed_init_args(const embed_table *t, int64_t n, const int64_t *slot,
                                              const uint64_t *keys) {
    return (table_init_args){.n = n,
                             .slot = slot,
                             .keys = keys,
                             .dim = t->config.dim,
                             .n_state = t->n_floats - t->config.dim,
                             .first = t->first};
}

/* The n rows in h.out_*; and row i of others to its place `at` there. */
static inline embed_rows embed_out_rows(const embed_table *t, int64_t n) {
    const embed_host *h = &t->h;
    return (embed_rows){n, h->out_keys, h->out_scores, h->out_stamps, h->out_rows, t->n_floats};
}
void embed_out_add(embed_table *t, int64_t at, const embed_rows *rows, int64_t i);

/* Staging as a level, for the verbs that take rows by slot. */
table_level embed_staging_level(const embed_table *t);

/* Finds the keys of the batch again in each level: d.slot. */
status embed_find_slots(embed_table *t);

status embed_note_left(embed_table *t, int64_t n, const uint64_t *keys);

#define EMBED_IN(t, to, from, n)                                                                   \
    (t)->be->ops->copy_in((t)->be, (to), (from), (size_t)(n) * sizeof *(to))
#define EMBED_OUT(t, to, from, n)                                                                  \
    (t)->be->ops->copy_out((t)->be, (to), (from), (size_t)(n) * sizeof *(to))

/* What the writer and the reader of snapshots (snapshot.h) share. */
enum { SNAPSHOT_PATH_BYTES = 4096 };

#define SNAPSHOT_FORMAT "hstu table 1"

/* The folder in a snapshot's folder that has its files. */
#define SNAPSHOT_PART "rank-0-of-1"

void snapshot_rows_name(char name[32], int file);
