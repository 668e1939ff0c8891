/* Runs every plan of a range: each distinct program is checked and timed once.
 *
 * The lines of plan_times.h are appended to FILE.partial as they are known, and the file gets its
 * name when all are there; an interrupted traversal continues from FILE.partial. */
#ifndef HSTU_TUNE_TRAVERSE_H
#define HSTU_TUNE_TRAVERSE_H

#include "tune/plan_runner.h"
#include "tune/plan_times.h"

typedef struct traverse_options {
    int32_t from, to;   /* values from <= v < to */
    int rounds;         /* of timing; 0: programs are only checked, and no file is written */
    const char *path;   /* FILE */
    const char *header; /* what is traversed: a partial file of something else is refused */
    bool (*is_stopped)(void);
} traverse_options;

typedef struct traverse_summary {
    int64_t n_values, n_programs; /* programs: distinct ones */
    int64_t n_failed;             /* programs that are off by more than is allowed */
    double largest_error, allowed;
    plan_time fastest, slowest;
    double median_ms;
    char failure[512]; /* of the first that failed */
} traverse_summary;

/* ERR_INTERRUPTED after is_stopped: what is known so far is in FILE.partial.  A plan that is wrong
 * is counted and has no line; other failures end it. */
status traverse_run(plan_runner *r, const traverse_options *o, traverse_summary *out);

#endif
