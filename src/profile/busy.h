/* How long the GPU was really busy in a stretch of the program, and with what, as CUPTI's activity
 * records tell it: the start and the end of every kernel, copy and memset on the device's own
 * clock.
 *
 *     busy_begin();                        before the first step that may be recorded, see below
 *     ... warm up, then be->ops->sync(be)
 *     busy_begin();                        forgets what it saw so far
 *     ... the stretch, then be->ops->sync(be)
 *     busy_end(&report);
 *     if (report.is_known) share = (double)report.kernel_busy_ns / its time;
 *     else say report.reason
 *
 * Both ends of a stretch must be synchronised by the caller: work still running is neither counted
 * nor waited for.  Kernels of a replayed CUDA graph are counted one by one.  It is not documented
 * whether CUPTI also sees graphs that were recorded before it was loaded: hence the first
 * busy_begin above; without graphs one is enough.  Tracing costs time at every kernel, so a speed
 * is measured in a stretch of its own, without it; overlapping kernels still overlap.
 *
 * libcupti is opened at the first busy_begin; where it is missing or refuses, that is no failure:
 * the report says so.  All devices of the process are counted together, except for copies between
 * them.  One stretch at a time in a process, one thread. */
#pragma once

#include "profile/cupti.h"

enum { BUSY_MAX_TOP = 32, BUSY_NAME_BYTES = 96, BUSY_REASON_BYTES = 192 };

typedef struct busy_kernel {
    char name[BUSY_NAME_BYTES]; /* "gate_bwd_any_kernel<__half, tile<8>>"; cut where too long */
    uint64_t ns;                /* summed; overlapping calls count twice */
    uint64_t n_calls;
} busy_kernel;

typedef struct busy_report {
    bool is_known;                  /* if not, everything but the reason is 0 */
    char reason[BUSY_REASON_BYTES]; /* why it is not known; "" if it is */

    /* The time in which at least one kernel, memset or copy within a device ran: what the GPU
     * computes. */
    uint64_t kernel_busy_ns;
    uint64_t n_kernels; /* launches, including those inside graphs, without memsets and copies */
    uint64_t n_lost;    /* records dropped or without times: if > 0, the times are lower bounds */

    /* By time, longest first.  Memsets and copies stand among them as "(memset)", "(copy in)",
     * "(copy out)", "(copy on device)". */
    busy_kernel top[BUSY_MAX_TOP];
    int n_top;
} busy_report;

/* Starts a stretch, or restarts it.  OK also where CUPTI is missing or refuses. */
status busy_begin(void);

/* Ends the stretch and reports; without a busy_begin the report has is_known false.  Fails only if
 * out of memory; then is_known is false too. */
status busy_end(busy_report *out);

typedef struct interval {
    uint64_t start_ns, end_ns; /* end >= start */
} interval;

/* Sorts intervals and joins those that touch: *n are left.  Returns the time they cover. */
uint64_t interval_join(interval *all, size_t *n);

/* What a stretch has gathered, and the sums over it: the part that needs no CUPTI.  A log belongs
 * to one thread at a time. */
typedef struct busy_log {
    interval *compute; /* kernels, memsets, copies within a device */
    size_t n_compute, capacity;
    uint64_t n_kernels, n_lost;
    struct busy_name *names; /* one for each name seen */
    size_t n_names, names_capacity;
} busy_log;

/* An empty log is all zero.  Fini makes it so again. */
void busy_log_fini(busy_log *log);

/* Adds a kernel, memset or copy; other records do not keep a device busy and are skipped.  Times of
 * 0 are unknown: the record counts as lost. */
status busy_log_add(busy_log *log, const gpu_record *r);

/* The sums of everything added; is_known is false if nothing was.  The log is changed: only fini
 * may follow. */
void busy_log_report(busy_log *log, busy_report *out);
