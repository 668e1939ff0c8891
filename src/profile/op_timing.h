/* Two backends that pass every op on to another one, the backend below, and take its time.
 *
 * The timing layer keeps the time and the number of calls of each op.  It waits for the device
 * after each, so it measures the cost of each op without overlap: the shares are right, the sum is
 * an upper bound.
 *
 * The tracing layer records when each op was called, and the memory that is allocated.  It waits
 * for nothing: work overlaps as it does without it.  On the CPU an op's span is its work; on a GPU
 * it is the launch, and the kernels come from CUPTI.  Steps that a GPU replays as a graph call no
 * ops.  One thread at a time, as for the backend below. */
#pragma once

#include "ops/ops.h"
#include "profile/cupti.h"
#include "profile/recorder.h"

enum { TIMED_MAX_OPS = 96 };

typedef struct timed_op {
    const char *name; /* as in ops.def */
    uint64_t ns;
    uint64_t n_calls;
} timed_op;

/* backend_destroy ends the layer and leaves the backend below, which must outlive it. */
status timed_create(backend **out, backend *below);

/* The ops that do work, in the order of ops.def; valid as long as the backend. */
const timed_op *timed_ops(const backend *be, int *n);

void timed_reset(backend *be);

/* Called around each op that is recorded, or captured into a graph: CUPTI learns which op launches
 * a kernel. */
typedef struct launch_mark {
    void (*begin)(const op_mark *m);
    void (*end)(void);
} launch_mark;

typedef struct traced_options {
    recorder *recorder;
    const launch_mark *mark;              /* may be NULL */
    bool has_shapes;                      /* the names of ops have the sizes of their arguments */
    void (*on_precision)(backend *below); /* after set_precision; may be NULL */
    bool has_no_graphs;                   /* ops run one by one instead of being recorded */
    void (*on_graph)(void);               /* when ops are first recorded as a graph; may be NULL */
} traced_options;

/* backend_destroy ends the layer and the backend below. */
status traced_create(backend **out, backend *below, const traced_options *o);
