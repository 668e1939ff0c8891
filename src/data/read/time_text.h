/* Times as people write them: numbers in seconds, milliseconds, microseconds or nanoseconds since
 * 1970 (with a fraction, or as 1.6e9), ISO 8601 dates, and dates in a given format.
 *
 * A plan says what the times of a data set are; it is made once, from the first rows or from
 * --time-unit, and then read by all threads.  A time becomes a number of nanoseconds since 1970,
 * between the years 1900 and 2200, so that a unit taken for another is refused rather than stored.
 * Rows that do not fit the plan are faults: they show that a file mixes two forms.  But numbers
 * that can only be clocks, between 2001-09-09 and 2033-05-18, may stand beside ISO 8601 dates. */
#pragma once

#include "data/read/time_zone.h"

/* The first and last second of the years that times may have. */
#define TIME_FIRST_SECOND (-INT64_C(2208988800)) /* 1900-01-01 */
#define TIME_LAST_SECOND  INT64_C(7258118399)    /* 2199-12-31 23:59:59 */

typedef enum {
    TIME_RAW,    /* 64-bit integers without a unit, kept as they are: sources with a known layout */
    TIME_NUMBER, /* a number of units since 1970 */
    TIME_DATE,   /* 2023-02-28T13:45:00Z, ...+02:00; or in the plan's zone: 2023-02-28,
                    2023-02-28 13:45:00.5; or in the plan's format */
    N_TIME_FORMS
} time_form;

typedef enum { UNIT_S, UNIT_MS, UNIT_US, UNIT_NS, N_TIME_UNITS } time_unit;

enum { TIME_FORMAT_BYTES = 64 };

typedef struct time_plan {
    time_form form;
    time_unit unit;      /* of TIME_NUMBER */
    bool takes_dates;    /* TIME_NUMBER: all of the first rows can only be clocks */
    bool is_given;       /* by --time-unit or --time-format: only the range is checked */
    int64_t low, high;   /* integers in low..high need no other check */
    int64_t ns_per_unit; /* 1 for TIME_RAW */
    time_zone *zone;     /* of TIME_DATE: that of dates without one; NULL: UTC.  The caller's */
    char format[TIME_FORMAT_BYTES]; /* of TIME_DATE: --time-format without %f; "": ISO 8601 */
    int n_before_fraction;          /* bytes of it before %f; 0: there is none */
    char evidence[160];             /* a row that shows the form: "in.csv:2 ('978300760')" */
} time_plan;

/* What is wrong with a time. */
typedef enum {
    TIME_FINE = 0,
    TIME_NO_TIME,    /* neither a number nor a date */
    TIME_NOT_WHOLE,  /* TIME_RAW: a number with a fraction */
    TIME_TOO_LARGE,  /* TIME_RAW: more than 64 bits */
    TIME_OTHER_FORM, /* a date among numbers, or a number among dates */
    TIME_OTHER_UNIT, /* a number that looks like another unit than the rest */
    TIME_BEYOND      /* not between 1900 and 2200 */
} time_fault;

/* Nanoseconds since 1970 (TIME_RAW: the integer itself).  *digits is raised to 3, 6 or 9 if the
 * time needs as many digits after the second. */
time_fault time_parse(const time_plan *plan, const char *text, size_t n, int64_t *out, int *digits);

/* Digits after the second that a time in nanoseconds needs: 0, 3, 6 or 9. */
int time_digits(int64_t ns);

/* Records the fault of a time as ERR_FORMAT, with the remedy. */
status time_fail(const time_plan *plan, time_fault fault, const char *text, size_t n);

/* The form and unit of one text by itself; false if it is no time. */
bool time_guess(const char *text, size_t n, time_form *form, time_unit *unit);

/* Whether a text is a number between 1e9 and 2e9 seconds, or as many milliseconds, ... */
bool time_is_clock(const char *text, size_t n);

/* A plan for a form and unit. */
void time_plan_set(time_plan *plan, time_form form, time_unit unit, bool is_given);

/* A plan from --time-unit: s, ms, us, ns or iso; ERR_USAGE for another. */
status time_plan_parse(time_plan *plan, const char *name);

/* A plan from --time-format; ERR_USAGE names what is wrong with it. */
status time_plan_parse_format(time_plan *plan, const char *format);

/* Whole seconds since 1970 of an ISO 8601 date, in UTC without a zone; false: it is none. */
bool time_read_date(const char *text, int64_t *seconds);

/* "+02:00", "-0230", "Z" as seconds; false: it is no offset. */
bool time_offset_parse(const char *text, int *seconds);

/* The digits after the second that the plan's own unit has: 0, 3, 6 or 9. */
int time_plan_digits(const time_plan *plan);

enum { TIME_NAME_BYTES = 160 };

/* "milliseconds", "dates without a zone, read as UTC", ...; of dates, after they were read. */
void time_plan_name(const time_plan *plan, char out[TIME_NAME_BYTES]);
