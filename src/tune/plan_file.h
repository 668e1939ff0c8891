/* Files of plans.
 *
 * A plan as `hstu tune --out` keeps it is one sealed JSON object with the plan, what it was tuned
 * for, and the tile parameters of its kernels.  A changed file is refused.
 *
 * The store is a folder of plans that searches found, by what they were found for: architecture,
 * layer, heads and head dimension, tokens of the batch, longest sequence, mask and type.  An entry
 * appears whole or not at all; a damaged one counts as missing.  Any number of processes. */
#pragma once

#include "tune/plan_runner.h"

typedef struct plan_file_tile {
    int first, last;
    tile_params params;
} plan_file_tile;

typedef struct plan_file {
    char layer[16];
    uint16_t value;
    /* What it was found for; empty or 0 where the file does not say. */
    char arch[16], dtype[16], mask[512];
    int32_t n_sequences, n_heads, dim_head, dim_ffn, max_len;
    int64_t n_tokens;
    double ms;
    int n_tiles;
    plan_file_tile tile[CHAIN_OPS];
} plan_file;

/* Fills what a plan is found for: `rule` and the text it was made from may be NULL, for no mask. */
void plan_file_key(plan_file *out, const target *t, const chain *c, const chain_shape *shape,
                   const mask *rule, const char *mask_text);

/* ERR_FORMAT: not such a file, or one that was changed. */
status plan_file_read(plan_file *out, const char *path);

/* Makes the runner use its tile parameters.  ERR_USAGE where it is the plan of another layer; tile
 * parameters that this target does not have are left at their defaults. */
status plan_file_apply(const plan_file *f, plan_runner *r);

typedef struct plan_store {
    char folder[4096];
} plan_store;

/* cache NULL: the user's, $XDG_CACHE_HOME/hstu/plans or ~/.cache/hstu/plans; else CACHE/plans.  The
 * folder need not exist. */
status plan_store_open(plan_store *s, const char *cache);

/* Keeps `text`, the JSON of `f`, unless a faster plan of the same key is kept; *is_kept says which.
 * `path` gets the name of the entry. */
status plan_store_put(const plan_store *s, const plan_file *f, const buf *text, bool *is_kept,
                      char path[4096]);

/* The kept plan of the architecture, layer, heads, head dimension, mask and type of `want` that is
 * nearest in tokens and longest sequence; *is_found is false where none is within a factor of four,
 * both ratios multiplied. */
status plan_store_find(const plan_store *s, const plan_file *want, plan_file *out, bool *is_found);
