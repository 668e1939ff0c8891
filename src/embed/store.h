/* A store: the lowest tier of a dynamic table, where rows are on disk (file_store.c); a small table
 * of functions, so that tests can put others in its place.
 *
 * All memory is host memory.  A store keeps `n_floats` floats a row with its score and stamp
 * (ops/table.h).  It is scratch: what a table keeps is in its checkpoints, and nobody opens a store
 * again.  Calls come from one thread at a time. */
#pragma once

#include "base/base.h"

/* Rows with their keys, scores and stamps, as passed between tiers and files; a view. */
typedef struct embed_rows {
    int64_t n;
    const uint64_t *keys;   /* (n) */
    const uint64_t *scores; /* (n) */
    const uint32_t *stamps; /* (n) */
    const float *rows;      /* (n, n_floats) */
    int32_t n_floats;
} embed_rows;

/* Rows from `first` on, at most so many. */
static inline embed_rows embed_rows_part(const embed_rows *r, int64_t first, int64_t most) {
    int64_t left = r->n - first;
    return (embed_rows){.n = left < most ? left : most,
                        .keys = r->keys + first,
                        .scores = r->scores + first,
                        .stamps = r->stamps + first,
                        .rows = r->rows + first * r->n_floats,
                        .n_floats = r->n_floats};
}

/* Gets some rows, which are valid until it returns; a failure ends the visit. */
typedef status (*embed_visit)(void *ctx, const embed_rows *rows);

typedef struct embed_store embed_store;

struct embed_store {
    int32_t n_floats;
    /* rows[i], scores[i], stamps[i] of keys[i] if the store has it (is_found[i] = 1); others are
     * unchanged. */
    status (*get)(embed_store *s, int64_t n, const uint64_t *keys, uint8_t *is_found,
                  uint64_t *scores, uint32_t *stamps, float *rows);
    /* After a failure to write, as on a full disk, the rows of the call are lost. */
    status (*put)(embed_store *s, const embed_rows *rows);
    status (*erase)(embed_store *s, int64_t n, const uint64_t *keys);
    /* Visits all rows, in pieces, in any order.  The visitor must not write to the store. */
    status (*each)(embed_store *s, embed_visit visit, void *ctx);
    status (*clear)(embed_store *s);
    /* Announces keys of a later get: the system reads their rows meanwhile. */
    status (*ask)(embed_store *s, int64_t n, const uint64_t *keys);
    void (*destroy)(embed_store *s);
};

void embed_store_destroy(embed_store *s); /* NULL is fine */

/* An empty file of rows in `folder`, which is created if missing. */
status embed_store_open_file(embed_store **out, const char *folder, int32_t n_floats);
