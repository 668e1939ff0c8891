/* Profiler: records what the commands of this process do, on the CPU and on a GPU.
 *
 * profiler_start, then the command runs, with each backend it opens passed through profiler_watch;
 * then profiler_stop, after which the recorder holds everything.  One at a time in a process. */
#ifndef HSTU_PROFILE_PROFILER_H
#define HSTU_PROFILE_PROFILER_H

#include "base/status.h"
#include "ops/ops.h"
#include "profile/recorder.h"

typedef struct profiler_options {
    recorder_schedule schedule;
    bool has_host, has_gpu; /* which activities */
} profiler_options;

typedef struct profile {
    recorder recorder;
    uint64_t start_ns, end_ns;
    bool has_gpu;         /* records of a GPU were taken */
    char gpu_reason[192]; /* why not; "" */
    uint64_t n_gpu_lost;  /* records that CUPTI dropped */
    double span_ns;       /* what one recorded span costs, measured */
    char device[128];     /* of the last backend watched */
} profile;

status profiler_start(profile *p, const profiler_options *o);

bool profiler_is_running(void);

/* Wraps the backend where a profiler runs; else leaves it as it is. */
status profiler_watch(backend **be);

/* After the last backend is gone, or idle. */
status profiler_stop(profile *p);

void profile_fini(profile *p);

#endif
