/* Idle time of a GPU: the gaps in which it ran nothing, and what it waited for.
 *
 * A gap ends with a kernel or a copy.  Where the host asked for that before the gap began, the GPU
 * was only slow to start it (launch); where the host asked later, it was late, and what the host
 * did meanwhile is the cause: waiting for the GPU itself (sync), a call of CUDA, an op or a range.
 * Without records of calls the cause is not known. */
#ifndef HSTU_PROFILE_GAPS_H
#define HSTU_PROFILE_GAPS_H

#include "base/text.h"
#include "profile/recorder.h"

typedef enum { GAP_LAUNCH, GAP_SYNC, GAP_HOST, GAP_UNKNOWN, N_GAP_CAUSES } gap_cause;

typedef struct gap_sum {
    uint64_t n, ns;
} gap_sum;

typedef struct gpu_idle {
    uint64_t span_ns; /* from the first start to the last end of what the GPU ran */
    uint64_t busy_ns; /* at least one thing ran */
    uint64_t copy_ns; /* copies, also under kernels */
    gap_sum cause[N_GAP_CAUSES];
    gap_sum longest[8]; /* n: number of the span after it */
    int n_longest;
    gap_cause longest_cause[8];
} gpu_idle;

/* All zero where the recorder has nothing of a GPU. */
status gpu_idle_find(gpu_idle *out, const recorder *r);

const char *gap_cause_name(gap_cause c); /* "the host was late" */

/* Sentences for people: what the figures suggest.  Nothing where nothing stands out. */
status gpu_idle_advice(const gpu_idle *g, buf *out);

#endif
