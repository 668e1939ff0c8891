/* Where the time of a GPU went, from a recorder that is stopped: idle time and its causes, time of
 * communication, and the queue of what the host has asked for. */
#pragma once

#include "profile/recorder.h"

/* Why the GPU ran nothing in a gap, which ends with a kernel or a copy.  If the host asked for that
 * before the gap began, the GPU was only slow to start it (launch).  If the host asked later, it
 * was late: it waited for the GPU itself (sync), or did something else (host).  Without records of
 * calls the cause is not known. */
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

/* How long a GPU talked to others: in kernels of NCCL, waiting for late ranks included.  It is
 * hidden while the GPU runs anything else; the rest is exposed: the step is so much longer. */
typedef struct comm_time {
    uint64_t n;         /* kernels of NCCL */
    uint64_t all_ns;    /* at least one of them ran */
    uint64_t hidden_ns; /* ... beside another kernel, a copy or a memset */
} comm_time;

/* All zero where the recorder has nothing of NCCL. */
status comm_time_find(comm_time *out, const recorder *r);

typedef struct interval {
    uint64_t start_ns, end_ns; /* end >= start */
} interval;

/* Sorts intervals and joins those that touch: *n are left.  Returns the time they cover. */
uint64_t interval_join(interval *all, size_t *n);

/* How much of what the host has asked for has not begun yet, over time. */
typedef struct queue_point {
    uint64_t ns;
    int64_t waiting; /* kernels, copies and memsets, from here on */
} queue_point;

/* A point for each time at which the number changes, in order; none where no call is known that
 * asked for something.  *out is to be freed by mem_free. */
status queue_find(const recorder *r, queue_point **out, size_t *out_n);
