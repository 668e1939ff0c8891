/* How benches time an op: the median of plain calls, each waited for, and of the replay of a
 * recording of TIMING_REPLAYED calls, which leaves out the host's time. */
#ifndef HSTU_CLI_BENCH_TIMING_H
#define HSTU_CLI_BENCH_TIMING_H

#include "ops/ops.h"

enum { TIMING_REPLAYED = 20 };

/* Call number i of what is timed: it may use copies of its inputs in turn. */
typedef status (*timing_fn)(void *ctx, int i);

/* Seconds of one call. */
status timing_plain(backend *be, timing_fn fn, void *ctx, double *out);

/* Seconds of one call; NAN where the backend does not record.  `key` is that of the recording. */
status timing_replay(backend *be, uint64_t key, timing_fn fn, void *ctx, double *out);

#endif
