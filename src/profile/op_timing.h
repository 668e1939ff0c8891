/* The tracing layer: a backend that passes every op on to another one, the backend below, and
 * records when each was called, and the memory that is allocated.  It waits for nothing: work
 * overlaps as it does without it.  On the CPU an op's span is its work; on a GPU it is the launch,
 * and the kernels come from CUPTI.  Steps that a GPU replays as a graph call no ops.  One thread at
 * a time, as for the backend below. */
#pragma once

#include "ops/ops.h"
#include "profile/cupti.h"
#include "profile/recorder.h"

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
