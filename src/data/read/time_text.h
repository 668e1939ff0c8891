/* Times as people write them: numbers in seconds, milliseconds, microseconds or nanoseconds since
 * 1970 (with a fraction, or as 1.6e9), and ISO 8601 dates.
 *
 * A plan says what the times of a data set are; it is made once, from the first rows or from
 * --time-unit, and then read by all threads.  A time becomes a number of nanoseconds since 1970,
 * between the years 1900 and 2200, so that a unit taken for another is refused rather than stored.
 * Rows that do not fit the plan are faults: they show that a file mixes two forms. */
#ifndef HSTU_DATA_READ_TIME_TEXT_H
#define HSTU_DATA_READ_TIME_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum {
    TIME_RAW,    /* 64-bit integers without a unit, kept as they are: sources with a known layout */
    TIME_NUMBER, /* a number of units since 1970 */
    TIME_DATE,   /* 2023-02-28, 2023-02-28 13:45:00.5: in UTC, as no zone is given */
    TIME_ZONED   /* 2023-02-28T13:45:00Z, ...+02:00 */
} time_form;

typedef enum { UNIT_S, UNIT_MS, UNIT_US, UNIT_NS, N_TIME_UNITS } time_unit;

typedef struct time_plan {
    time_form form;
    time_unit unit;      /* of TIME_NUMBER */
    bool is_given;       /* by --time-unit, so that only the range is checked */
    int64_t low, high;   /* integers in low..high need no other check */
    int64_t ns_per_unit; /* 1 for TIME_RAW */
    char evidence[160];  /* a row that shows the form: "in.csv:2 ('978300760')" */
} time_plan;

/* What is wrong with a time. */
typedef enum {
    TIME_FINE = 0,
    TIME_NO_TIME,    /* neither a number nor a date */
    TIME_NOT_WHOLE,  /* TIME_RAW: a number with a fraction */
    TIME_TOO_LARGE,  /* TIME_RAW: more than 64 bits */
    TIME_OTHER_FORM, /* a date among numbers, a zone where others have none, ... */
    TIME_OTHER_UNIT, /* a number that looks like another unit than the rest */
    TIME_BEYOND      /* not between 1900 and 2200 */
} time_fault;

/* Nanoseconds since 1970 (TIME_RAW: the integer itself).  *digits is raised to 3, 6 or 9 if the
 * time needs as many digits after the second. */
time_fault time_parse(const time_plan *plan, const char *text, size_t n, int64_t *out, int *digits);

/* Records the fault of a time as ERR_FORMAT, with the remedy. */
status time_fail(const time_plan *plan, time_fault fault, const char *text, size_t n);

/* The form and unit of one text by itself; false if it is no time. */
bool time_guess(const char *text, size_t n, time_form *form, time_unit *unit);

/* A plan for a form and unit. */
void time_plan_set(time_plan *plan, time_form form, time_unit unit, bool is_given);

/* A plan from --time-unit: s, ms, us, ns or iso; ERR_USAGE for another. */
status time_plan_parse(time_plan *plan, const char *name);

/* The digits after the second that the plan's own unit has: 0, 3, 6 or 9. */
int time_plan_digits(const time_plan *plan);

/* "milliseconds", "dates without a zone, read as UTC", ... */
const char *time_plan_name(const time_plan *plan);

#endif
