/* Times of plans as text, a line each: 16 bits, blanks, a number of milliseconds (the format of
 * STOF's train_data_xgboost.txt).  Blank lines are skipped. */
#ifndef HSTU_TUNE_PLAN_TIMES_H
#define HSTU_TUNE_PLAN_TIMES_H

#include <stddef.h>

#include "base/text.h"
#include "tune/fusion_plan.h"

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

/* One line, with a newline. */
status plan_time_line(uint16_t value, double ms, buf *out);

#endif
