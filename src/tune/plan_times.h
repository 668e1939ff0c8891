/* Times of plans as text, a line each: 16 bits, blanks, a number of milliseconds (the format of
 * STOF's train_data_xgboost.txt).  Blank lines are skipped. */
#pragma once

#include "tune/fusion_plan.h"
#include "tune/plan_runner.h"

typedef struct plan_time {
    uint16_t value;
    double ms;
} plan_time;

typedef struct plan_times {
    plan_time *item; /* (n) in the order of the lines */
    size_t n, capacity;
} plan_times;

void plan_times_fini(plan_times *t);
status plan_times_add(plan_times *t, uint16_t value, double ms);

/* Reads n bytes of text; ERR_FORMAT names NAME:LINE of a line that is not 16 bits and a finite
 * number. */
status plan_times_parse(plan_times *t, const char *name, const char *text, size_t n);

/* Reads a file; one without any line is ERR_FORMAT. */
status plan_times_read(plan_times *t, const char *path);

/* For qsort: the fastest first. */
int plan_time_by_ms(const void *a, const void *b);

/* One line, with a newline. */
status plan_time_line(uint16_t value, double ms, buf *out);

/* A traversal runs every plan of a range: each distinct program is checked and timed once.  Lines
 * are appended to FILE.partial as they are known, and the file gets its name when all are there; an
 * interrupted traversal continues from FILE.partial. */
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
