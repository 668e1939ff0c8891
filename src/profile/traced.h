/* The tracing layer: a backend that passes every op on to another one and records when it was
 * called, and the memory that is allocated.
 *
 * Unlike the timing layer (timed.h) it waits for nothing: work overlaps as it does without it.  On
 * the CPU an op's span is its work; on a GPU it is the launch, and the kernels come from CUPTI.
 * Steps that a GPU replays as a graph call no ops. */
#ifndef HSTU_PROFILE_TRACED_H
#define HSTU_PROFILE_TRACED_H

#include "base/status.h"
#include "ops/ops.h"
#include "profile/recorder.h"

/* Called around each op where it is recorded: CUPTI learns which op launches a kernel. */
typedef struct launch_mark {
    void (*begin)(int64_t index); /* of the span of the op */
    void (*end)(void);
} launch_mark;

/* backend_destroy ends the layer and the backend below.  mark may be NULL. */
status traced_create(backend **out, backend *below, recorder *r, const launch_mark *mark);

#endif
