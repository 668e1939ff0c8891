/* A plan as `hstu tune --out` keeps it: one sealed JSON object with the plan, what it was tuned
 * for, and the tile parameters of its kernels.  A changed file is refused. */
#ifndef HSTU_TUNE_PLAN_FILE_H
#define HSTU_TUNE_PLAN_FILE_H

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

#endif
