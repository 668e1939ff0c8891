/* `hstu profile` runs other commands, which main.c lists, and shows a profile as tables on stdout
 * and as a folder with all of it. */
#pragma once

#include "cli/cli.h"
#include "profile/profiler.h"

void profile_set_commands(const command *commands); /* ends with name = NULL */

typedef enum { PROFILE_TABLE, PROFILE_CSV, PROFILE_JSON, PROFILE_SILENT } profile_format;

typedef struct profile_view {
    const char *out;     /* folder for trace.json and the tables as csv; it is made */
    int format;          /* of the tables on stdout: profile_format */
    const char *sort_by; /* of the table of ops; NULL: by self time */
    bool is_tensorboard; /* traces for its plugin */
    int64_t row_limit;   /* below 0: all */
    const char *range;   /* the only one that is kept, or NULL */
} profile_view;

status profile_show(const profile *p, const profile_view *v);
