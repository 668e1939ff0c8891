/* What a device did, gathered interval by interval, and the sums over it: the part of busy.h that
 * needs no CUPTI to run.
 *
 * A log belongs to one thread at a time. */
#ifndef HSTU_PROFILE_BUSY_LOG_H
#define HSTU_PROFILE_BUSY_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "profile/busy.h"
#include "profile/cupti.h"

typedef struct interval {
    uint64_t start_ns, end_ns; /* end >= start */
} interval;

typedef struct interval_list {
    interval *all;
    size_t n, capacity;
} interval_list;

typedef enum {
    BUSY_KERNEL,
    BUSY_MEMSET,
    BUSY_COPY_ON_DEVICE,
    BUSY_COPY_IN,
    BUSY_COPY_OUT,
    N_BUSY_KINDS
} busy_kind;

typedef struct busy_log {
    interval_list compute; /* kernels, memsets, copies within a device */
    interval_list copies;  /* between host and device */
    uint64_t n_kind[N_BUSY_KINDS];
    uint64_t n_lost;
    struct busy_name *names; /* one for each name seen */
    size_t n_names, names_capacity;
} busy_log;

/* An empty log is all zero.  Fini makes it so again. */
void busy_log_fini(busy_log *log);

/* Adds an interval from start_ns to end_ns; `name` is a kernel's mangled name, NULL for the other
 * kinds.  Times of 0 are unknown: the interval counts as lost. */
status busy_log_add(busy_log *log, busy_kind kind, const char *name, uint64_t start_ns,
                    uint64_t end_ns);

/* Adds what a record of CUPTI tells; records of other kinds than those above say nothing of how
 * long a device was busy, and are passed over. */
status busy_log_take(busy_log *log, const gpu_record *r);

/* The sums of everything added; is_known is false if nothing was.  The log is changed: only fini
 * may follow. */
status busy_log_report(busy_log *log, busy_report *out);

/* The time in which at least one of n intervals ran.  Sorts them by start. */
uint64_t interval_union_ns(interval *all, size_t n);

#endif
