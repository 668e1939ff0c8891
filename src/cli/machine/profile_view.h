/* How a profile is shown: tables on stdout, and a folder with all of it. */
#ifndef HSTU_CLI_MACHINE_PROFILE_VIEW_H
#define HSTU_CLI_MACHINE_PROFILE_VIEW_H

#include "profile/profiler.h"

typedef struct profile_view {
    const char *out;     /* folder for trace.json and the tables as csv; it is made */
    const char *format;  /* of the tables on stdout: table, csv, json; NULL: none */
    const char *sort_by; /* of the table of ops; NULL: by self time */
    int64_t row_limit;   /* below 0: all */
} profile_view;

status profile_show(const profile *p, const profile_view *v);

#endif
