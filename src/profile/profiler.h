/* Profiler: records what the commands of this process do, on the CPU and on a GPU.
 *
 * profiler_start, then the command runs, with each backend it opens passed through profiler_watch;
 * then profiler_stop, after which the recorder holds everything.  One at a time in a process. */
#pragma once

#include "ops/ops.h"
#include "profile/cupti.h"
#include "profile/memory_log.h"
#include "profile/recorder.h"

typedef struct profiler_options {
    recorder_schedule schedule;
    bool has_host, has_gpu; /* which activities */
    int toggle;             /* a signal: nothing is recorded until it comes, and so on; 0: none */
    bool has_shapes;        /* names of ops have the sizes of their arguments */
    bool has_unified;       /* unified memory: pages that move, faults */
    bool has_memory;        /* which memory lives when */
    bool has_counters;      /* hardware counters of kernels instead of records of the GPU */
    bool has_memsets;  /* memsets too where steps are replayed as graphs, which cost most there */
    bool has_peaks;    /* the peaks of the device are measured first, outside of the records */
    const char *range; /* keep what is inside ranges of this name; NULL: everything */
    const char *step;  /* of another program: the NVTX range that is a step; NULL: none */
} profiler_options;

/* How long steps took, from the end of one to the end of the next; not those in which recording was
 * switched, for which the device was waited. */
enum { MAX_STEP_TIMES = 256 };
typedef struct step_times {
    uint64_t ns[MAX_STEP_TIMES];
    int n;
} step_times;

/* Pages of unified memory that moved, and what made them move. */
typedef struct unified_sums {
    uint64_t in_bytes, out_bytes, gpu_faults, host_faults;
} unified_sums;

/* A thread of another program. */
typedef struct profile_lane {
    int64_t pid;
    uint32_t thread;
    bool may_overlap; /* ranges that do not nest have a row of their own */
} profile_lane;

typedef struct profile {
    recorder recorder;
    profile_lane *lanes; /* what the lanes of the host are; NULL: threads of this process */
    size_t n_lanes;
    unified_sums unified;
    memory_log memory; /* empty where it was not asked for */
    uint64_t start_ns, end_ns;
    bool has_gpu;                        /* records of a GPU were taken */
    bool has_counters;                   /* ... counters were */
    char gpu_reason[CUPTI_REASON_BYTES]; /* why not; "" */
    uint64_t n_gpu_lost;                 /* records that CUPTI dropped */
    bool skips_memsets;         /* there were graphs, so memsets are not among the records */
    step_times recorded, plain; /* steps that were recorded, and those after them that were not */
    uint64_t last_end_ns;       /* of the step before; 0: none that counts */
    double span_ns;             /* what one recorded span costs, measured */
    char device[128];           /* of the last backend watched */
} profile;

/* ERR_UNSUPPORTED where counters are asked for and cannot be read here. */
status profiler_start(profile *p, const profiler_options *o);

bool profiler_is_running(void);

/* Wraps the backend where a profiler runs; else leaves it as it is. */
status profiler_watch(backend **be);

/* After the last backend is gone, or idle. */
status profiler_stop(profile *p);

void profile_fini(profile *p);

/* What recording costs, as a share of a step: the medians compared.  False where there are not
 * three steps of each kind; thirty where a GPU works, as the host runs ahead of it for some steps
 * after each wait, and then they look short. */
bool profile_cost(const profile *p, double *recorded_ns, double *plain_ns);

/* The time in which spans were recorded. */
uint64_t profile_recorded_ns(const profile *p);

/* A profile of other programs: reads all record files (record_file.h) of a folder, one for each
 * process that used a GPU; schedule: how they were recorded, each process by its own steps.  A
 * folder without files gives a profile without records, and gpu_reason says what that means.
 * *out_text gets a line for each process: its number, its command, how many records, and what went
 * wrong.  The profile is to be ended by profile_fini in any case. */
status profile_load(profile *p, const char *folder, const recorder_schedule *schedule,
                    buf *out_text);
