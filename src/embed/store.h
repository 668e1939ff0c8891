/* A store: the lowest tier of a dynamic table, where rows lie on disk.
 *
 * A small table of functions, so that the engine can be exchanged: the log of log_store.c, which is
 * always there, or RocksDB (rocks_store.c) where the build found it; ahead_store.c puts a thread
 * that reads ahead before one of them.  All memory is the host's.  A store keeps `n_floats` floats
 * a row with its score and stamp (ops/table.h).  Calls come from one thread at a time. */
#ifndef HSTU_EMBED_STORE_H
#define HSTU_EMBED_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Rows with what goes with them, as they travel between tiers and files; a view. */
typedef struct embed_rows {
    int64_t n;
    const uint64_t *keys;   /* (n) */
    const uint64_t *scores; /* (n) */
    const uint32_t *stamps; /* (n) */
    const float *rows;      /* (n, n_floats) */
    int32_t n_floats;
} embed_rows;

/* Takes some rows, which are valid until it returns; a failure ends the visit. */
typedef status (*embed_visit)(void *ctx, const embed_rows *rows);

typedef struct embed_store embed_store;

struct embed_store {
    int32_t n_floats;
    const char *name; /* of the engine */
    /* rows[i], scores[i], stamps[i] of keys[i] where it is there (is_found[i] = 1); others are left
     * as they are. */
    status (*get)(embed_store *s, int64_t n, const uint64_t *keys, uint8_t *is_found,
                  uint64_t *scores, uint32_t *stamps, float *rows);
    /* Writes all or none: after a crash during the call either holds. */
    status (*put)(embed_store *s, const embed_rows *rows);
    status (*erase)(embed_store *s, int64_t n, const uint64_t *keys);
    /* All rows, in pieces, in any order.  The visitor does not write to the store. */
    status (*each)(embed_store *s, embed_visit visit, void *ctx);
    status (*clear)(embed_store *s);
    status (*flush)(embed_store *s); /* what was put survives a crash from here on */
    /* These keys will be asked for soon; returns at once.  NULL: it cannot read ahead. */
    status (*ask)(embed_store *s, int64_t n, const uint64_t *keys);
    void (*destroy)(embed_store *s);
};

void embed_store_destroy(embed_store *s); /* NULL is fine */

/* A log in `folder` (made where it is missing), which holds what an earlier run left.  ERR_IO where
 * another store has it open. */
status embed_store_open_log(embed_store **out, const char *folder, int32_t n_floats);

/* A RocksDB in `folder`; ERR_UNSUPPORTED where this build is without it. */
status embed_store_open_rocks(embed_store **out, const char *folder, int32_t n_floats);

/* A store over another one that reads ahead: `ask` makes a thread of its own read the rows, while
 * the caller does something else; `get` then takes them from memory.  At most max_rows rows are
 * held; those asked for two calls ago and never taken make room first.  The one below stays the
 * caller's, and is used through this one alone. */
status embed_store_open_ahead(embed_store **out, embed_store *below, int64_t max_rows);

#endif
