/* What commands that compute have in common: threads, a backend and data, opened and closed
 * together. */
#ifndef HSTU_CLI_WORK_H
#define HSTU_CLI_WORK_H

#include "base/pool.h"
#include "base/status.h"
#include "data/set/seq_file.h"
#include "ops/ops.h"

typedef struct work {
    pool *workers;
    backend *be;
    seq_file *data;
} work;

/* What --device takes: "auto" (the first usable GPU, else the CPU), "cpu", "cuda", "cuda:N". */
#define WORK_DEVICES "auto, cpu, cuda or cuda:N (default auto)."

/* data: a folder, or NULL for none. */
status work_open(work *w, const char *data, const char *device);

/* Like work_open; on a GPU two runs then give the same bits. */
status work_open_deterministic(work *w, const char *data, const char *device);

void work_close(work *w); /* a failed open too */

/* For commands that need ids and titles but no events: the data if it is given, else the vocabulary
 * that the checkpoint in `folder` carries, whose path is put in `vocabulary`.  ERR_USAGE where
 * there is neither. */
enum { WORK_PATH_BYTES = 4096 };
status work_find_ids(const char *data, const char *folder, char vocabulary[WORK_PATH_BYTES],
                     const char **out);

#endif
