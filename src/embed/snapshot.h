/* Snapshots of dynamic tables: a folder with the rows of a table, or with what changed since a
 * step.
 *
 * FOLDER/rank-0-of-1 has rows-00000.safetensors, ... (keys, scores, values, state, stamps; Python
 * can open them), gone.safetensors (keys that left; incremental only), seen.safetensors (the sketch
 * of the admission, by shard), and manifest.json with the table's shape, sizes and checksums of all
 * files and of itself, written last.  The folder appears by a rename: a crash never leaves a
 * partial snapshot.
 *
 * Where ranks hold the table together (table.h), nothing in the folder depends on their number, but
 * for the order of rows that were in a store.  Every rank reads the whole folder and keeps the rows
 * of its shards. */
#pragma once

#include "embed/table.h"

/* Writes all rows (since 0), or those written at step `since` or later with the keys that left
 * since then (the table must track them).  ERR_USAGE if there is a snapshot already, ERR_NUMERIC
 * for a value that is not finite.  All ranks that hold the table together call it, with the same
 * arguments, and each writes its rows: the files do not depend on the number of ranks. */
status embed_snapshot_write(embed_table *t, const char *folder, int64_t since);

/* What manifest.json says. */
typedef struct snapshot_info {
    int64_t step, since;
    uint64_t clock, n_seen;
    int32_t dim, n_floats;
    int64_t n_rows, n_gone;
    int64_t slots[EMBED_LEVELS], tier_rows[EMBED_TIERS]; /* when it was written */
    int n_files;                                         /* of rows */
    char optimizer[32], policy[32];
} snapshot_info;

/* Reads a folder into the table.  A full snapshot replaces the table's content, an incremental one
 * is applied to it.  Checksums are verified before anything changes. *n_rejected (may be NULL):
 * rows without a place in the table. */
status embed_snapshot_read(embed_table *t, const char *folder, int64_t *n_rejected);

/* Gives a row another key; false: the row is left out. */
typedef bool (*snapshot_rename)(void *ctx, uint64_t *key);

/* What became of the rows of a snapshot. */
typedef struct snapshot_counts {
    int64_t n_kept, n_left_out, n_rejected; /* rejected: without a place in the table */
} snapshot_counts;

/* Like embed_snapshot_read of a full snapshot, with other keys: no two rows may get the
 * same.  Keys that were counted but not admitted yet are forgotten: a sketch has no keys to rename.
 */
status embed_snapshot_adopt(embed_table *t, const char *folder, snapshot_rename rename, void *ctx,
                            snapshot_counts *out);

/* One number for the whole snapshot: the hash of its manifest, which has the checksums of its
 * files.  It identifies this snapshot among others of the same table. */
status embed_snapshot_seal(const char *folder, uint64_t *out);

/* What its manifest says, checked. */
status embed_snapshot_info(const char *folder, snapshot_info *out);

/* Visits all rows, one file at a time: for `hstu info`. */
status embed_snapshot_each(const char *folder, embed_visit visit, void *ctx);

/* Is this such a folder? */
bool embed_is_snapshot(const char *folder);

/* Imports the raw dump that dynamicemb writes: NAME_emb_keys, _emb_values, _emb_scores and
 * _emb_opt_values, each with .rank_R.world_size_W, for all R.  Without scores rows get score 0, and
 * without optimizer values their first state.  has_ages: scores are ages, as its LRU writes them.
 * *n_imported counts the rows that were placed. */
status embed_import_dump(embed_table *t, const char *folder, const char *name, bool has_ages,
                         int64_t *n_imported);

/* Reads the shape of the table from the files of such a dump: the dimension, the optimizer (by the
 * size of its values: none is sgd, 2 dim adam, dim adagrad, other sizes row-wise AdaGrad) and the
 * number of rows. */
status embed_dump_shape(const char *folder, const char *name, int32_t *dim, opt_kind *opt,
                        int64_t *n_rows);

/* Visits the keys and values of such a dump in pieces, without scores and stamps (NULL). */
status embed_dump_each(const char *folder, const char *name, embed_visit visit, void *ctx);

const char *embed_policy_name(embed_policy policy); /* "lru" */
const char *embed_opt_name(opt_kind opt);           /* "adam" */

/* The policy or optimizer of a name; ERR_FORMAT: there is no such name. */
status embed_policy_parse(const char *name, embed_policy *out);
status embed_opt_parse(const char *name, opt_kind *out);
