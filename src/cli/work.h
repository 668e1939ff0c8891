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

#endif
