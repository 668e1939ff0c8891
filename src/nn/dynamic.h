/* Dynamic tables of a model: the features whose rows live in an embed_table instead of an array;
 * and static tables whose rows several ranks hold together.
 *
 * The dense model never sees them.  Before a pass the ids of a batch are numbered 1, 2, ... (0, 1,
 * ... for contextual values) in ascending order, their rows are copied to these places of the bank
 * (input.h), and the pass runs on a copy of the batch with these numbers instead of ids.  So all
 * later code works as with a static table that holds only the rows of the batch, and adds in the
 * same order.  After the pass the rows' gradients go back to the table.  Where a step has several
 * batches, the ids of each are appended to those before, and all rows are updated after the last
 * batch.
 *
 * Ranks of a training hold tables together (embed/table.h): each has the rows of its shards.  Every
 * rank knows the ids of the whole batch, so that no ids travel.  The
 * holder of a row takes it from the table, puts it into its bank, and sends it to the ranks whose
 * part of the batch reads it; gradients go the other way (dist/grad_exchange.c; between GPUs they
 * are summed on all ranks), and the holder updates the row.  Reads without training are of another
 * batch on each rank: there ids travel first.  Everything that says `all ranks call it` must then
 * be called by all, in the same order.
 *
 * A static table that ranks hold together (dynamic_ranks.c) goes the same way.  Its rows are a
 * parameter of which each rank has the rows of its shards, so that gradient, optimizer state and
 * checkpoint are those of a parameter; every id has a row.
 *
 * The key of a row is the number of an item, or of a contextual value, in the data that the model
 * was trained on (model/vocabulary.h says which that is); where
 * several features share a table, with the feature's number in the upper 32 bits.  A model owns its
 * tables, and has one buffer for the rows of a batch: one pass at a time, one thread at a time. */
#pragma once

#include "config/config.h"
#include "data/set/batcher.h"
#include "embed/table.h"
#include "nn/input.h"
#include "nn/memory.h"
#include "nn/params.h"

enum { DYNAMIC_MAX_RANKS = 64 };

/* The rank of `size` that holds row `id` of a static table: 1024 virtual shards by the hash of the
 * id, shared out evenly. */
static inline int dynamic_rank_of_row(uint64_t id, int size) {
    return (int)(table_bucket(table_hash(id), EMBED_SHARDS) * size / EMBED_SHARDS);
}

/* Bytes that this rank sent to others, rows and gradients; and what it would send and get if each
 * row that its part of a batch reads came once, and its gradient left once. */
typedef struct dynamic_traffic {
    int64_t sent, least;
} dynamic_traffic;

/* Rows of a step that ranks hold together; sets of ranks are bits. */
typedef struct dynamic_holders {
    uint8_t *rank;   /* (max_rows): which rank holds each row; NULL: this one holds all */
    uint64_t *has;   /* (max_rows): ranks that have the row in their bank */
    uint64_t *reads; /* (max_rows): ranks whose part of the last batch reads it */
    int32_t *own;    /* (max_rows): numbers of the rows of this rank */
    uint64_t *ids;   /* (max_rows): their ids */
    uint64_t *uses;  /* (max_rows) or NULL: as of the table */
    float *rows;     /* (max_rows, dim), of the backend: their values or gradients */
    int64_t n;       /* of these */
    dynamic_traffic traffic;
} dynamic_holders;

/* A feature and its table, which other features may share. */
typedef struct dynamic_table {
    const config_embedding *config; /* of a dynamic one */
    const char *name;
    struct dynamic_table *owner; /* the first feature that uses the table: this one or another */
    int n_features;              /* of the owner */
    uint64_t key_tag;            /* the key of a row is the id with these bits set */
    int32_t feature;             /* number of the contextual feature, or ITEM_FEATURE */
    int32_t first, last; /* ids in the data: items 1..V, values of a feature 0..n-1.  In a batch the
                            distinct ids are numbered from `first` on */
    int32_t max_rows;    /* different ids of a step, at most */
    int32_t dim;
    embed_table *table;
    uint64_t *seen; /* host, one bit for each id; all 0 between two calls */
    int32_t *place; /* host (last + 1): index + 1 of an id in `ids`; 0: not there */
    uint64_t *ids;  /* host (max_rows): ids of this step's batches, ascending in each batch */
    uint64_t *uses; /* host (max_rows): occurrences of each id in its batch; NULL: not needed */
    uint8_t *has_no_row;    /* host (max_rows): whether the table rejected or refused each id */
    int64_t n;              /* of these */
    int64_t n_missing;      /* ids of the last training batch that were rejected or not admitted */
    float *value, *grad;    /* (max_rows, dim): places in the bank */
    embed_counts told;      /* of the last dynamic_news */
    embed_store *store;     /* below the levels, or NULL */
    bool reads_ahead;       /* its rows are announced to it */
    scratch_folder *folder; /* of the store; or NULL */
    uint64_t *coming;       /* host (max_rows): ids announced; NULL where nothing reads ahead */
    int64_t n_read;         /* distinct ids of read-only batches since dynamic_begin_reads */
    int64_t n_absent;       /* of them, those without a row, that this rank holds */
    double *squares;        /* host (max_rows): sums of squares of the rows' gradients, or NULL */
    dynamic_holders held;
    /* A static table that ranks hold together; `table` is NULL: */
    param *own;       /* the rows of this rank (n_own, dim) */
    int32_t *rows;    /* host (n_own): which these are, ascending */
    int32_t *own_row; /* host (last + 1): where they are in `own`, or -1 */
    int64_t n_own;
    int32_t *index; /* host (max_rows): places in `own` */
    uint8_t *marks; /* (max_rows): rows of the batch that got a gradient; NULL: updates are dense */
    uint8_t *own_marks; /* (max_rows): those of this rank's rows, on their way to `own` */
} dynamic_table;

typedef struct dynamic_buffer {
    void *memory;
    size_t bytes;
} dynamic_buffer;

typedef struct dynamic_tables {
    backend *be;
    dynamic_table *item; /* (n_all) */
    int n;               /* dynamic ones */
    int n_all;           /* and after them static ones that ranks hold together */
    batch numbered;      /* the batch, its ids replaced by their numbers */
    uint32_t *items, *context;
    int64_t max_tokens, max_users;
    int n_taken;         /* batches for training since the last update */
    bool is_host_memory; /* the backend's memory is the host's */
    comm *comm;          /* ranks that hold the tables together, or NULL */
    bool has_bf16_wire;
    bool reads_whole;            /* each rank reads the rows of the whole batch */
    const uint8_t *user_ranks;   /* (B): which rank has each user of the next batch; NULL: all do */
    int64_t *n_send, *n_receive; /* host (size of comm) */
    dynamic_buffer out, in, index;    /* of the backend */
    dynamic_buffer ids, in_ids, list; /* of the host */
} dynamic_tables;

/* Finds the features that the config gives dynamic tables, and replaces their number of ids, in *l
 * and in n_context_values (F), by the most distinct ids that a step can have. */
status dynamic_choose(dynamic_tables *d, const config *c, model_limits *l,
                      int32_t *n_context_values, nn_memory *memory);
void dynamic_fini(dynamic_tables *d);

/* The table of a feature, or NULL: it is static. */
dynamic_table *dynamic_find(dynamic_tables *d, int32_t feature);

/* When features share a table, the first one owns it; per-table work runs for the owner only. */
static inline bool dynamic_is_owner(const dynamic_table *t) {
    return t->owner == t;
}

/* Makes a chosen table for the rows of p: its part of the bank, after row 0 where that is
 * padding. */
status dynamic_attach(dynamic_tables *d, dynamic_table *t, const config *c, const param *p,
                      nn_memory *memory);

/* The same for a static table that ranks hold together, whose rows on this rank are `own`. */
status dynamic_attach_static(dynamic_tables *d, dynamic_table *t, const param *p, param *own,
                             nn_memory *memory);

/* Sets where the gradients of the table's rows are: in the gradient of p, which must exist by
 * now. */
void dynamic_set_grad(dynamic_table *t, const param *p);

/* Fetches the rows of a batch, for training or read-only; *out is the batch to run, b itself where
 * no table is dynamic.  An id without a row reads as zeros.  All ranks call it: for training with
 * the same batch, after setting user_ranks. */
status dynamic_take(dynamic_tables *d, const batch *b, bool is_training, const batch **out);

/* The same, read-only, for a pass that skips the first n_skipped[u] events of user u: no rows are
 * fetched for them, and the row index they get is arbitrary and never read. */
status dynamic_take_rest(dynamic_tables *d, const batch *b, const int32_t *n_skipped,
                         const batch **out);

/* For a model that is no longer trained: where each table's rows are one array of the device's
 * memory, passes read them there, by the row of each id, which is found now: *items and *contexts
 * (n_context) for layout_config, or left as they are.  Saves a request the search for its ids and
 * the copy of its rows. */
status dynamic_freeze(dynamic_tables *d, input *in, nn_memory *memory, layout_rows *items,
                      const layout_rows **contexts);

/* What a rank calls that has no batch while others read one. */
status dynamic_take_nothing(dynamic_tables *d);

/* Announces the training batch after the current one: its rows on disk are read while the current
 * batch runs, where the config enables that (pipeline_type 'prefetch'). */
status dynamic_announce(dynamic_tables *d, const batch *b);
bool dynamic_reads_ahead(const dynamic_tables *d);

/* Flags of the items that got no row in the last training batch, because the table had no place for
 * them or did not admit them: (max_rows) host, indexed by item - 1, with items numbered as in the
 * passes.  NULL: none. */
const uint8_t *dynamic_missing_items(dynamic_tables *d);

/* Reads the n items that have a row: their rows (n, dim), memory of the backend with room for all
 * items; host: item (n), ascending, and row (V + 1), -1 for items without a row.  All ranks call
 * it, and all get all items. */
status dynamic_read_items(dynamic_tables *d, float *rows, int32_t *item, int32_t *row, int32_t *n);

/* Starts counting ids that are read: n_read, n_absent of the tables.  Before, n_absent may be too
 * small: a server does not wait for the device to know it. */
void dynamic_begin_reads(dynamic_tables *d);

/* Adds the squares of the rows' gradients to *sum, memory of the backend.  All ranks call it. */
status dynamic_add_squares(dynamic_tables *d, double *sum);

/* Static tables that ranks hold together: the gradients of this rank's rows go to its parameters,
 * before the optimizer's update. */
status dynamic_put_grads(dynamic_tables *d);

/* Then adds the squares of such a parameter's gradient, of all ranks, to *sum, row by row. */
status dynamic_add_static_squares(dynamic_tables *d, const param *own, double *sum);
double dynamic_row_squares(const float *row, int32_t dim);

/* Updates the rows of all training batches since the last update. */
status dynamic_update(dynamic_tables *d, const embed_step_args *args);

/* Forgets these batches instead. */
void dynamic_forget(dynamic_tables *d);

/* A row on the wire, of floats or, with is_bf16, rounded to bfloat16. */
void dynamic_pack_row(void *to, const float *row, int32_t dim, bool is_bf16);
void dynamic_unpack_row(float *row, const void *from, int32_t dim, bool is_bf16);

/* Tables without rows. */
status dynamic_clear(dynamic_tables *d);

/* How full a table is, and its counts since the last call. */
typedef struct dynamic_state {
    int64_t n_rows, n_slots; /* of the levels */
    bool has_store;
    embed_counts since;
    int n_ranks, n_shards;   /* n_ranks: that hold the table */
    int64_t n_most;          /* rows of the rank that holds most */
    dynamic_traffic traffic; /* of the owner's features */
} dynamic_state;

/* Of what this rank holds. */
status dynamic_news(dynamic_table *t, dynamic_state *out);

/* Of all ranks, which all call it; dynamic_static_state: of a static table that they hold. */
status dynamic_static_state(dynamic_tables *d, dynamic_table *t, dynamic_state *out);
status dynamic_news_of_all(dynamic_tables *d, dynamic_table *t, dynamic_state *out);

/* Bytes of all rows of this rank, wherever they are. */
uint64_t dynamic_bytes(const dynamic_tables *d);
