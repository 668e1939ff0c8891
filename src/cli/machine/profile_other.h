/* `hstu profile -- PROGRAM ...` for a program that is not a command of hstu: it is started with
 * CUDA's injection library set to ours (src/profile/inject.c), and its records are read when it has
 * ended. */
#ifndef HSTU_CLI_MACHINE_PROFILE_OTHER_H
#define HSTU_CLI_MACHINE_PROFILE_OTHER_H

#include "base/status.h"
#include "profile/profiler.h"

/* Whether a name is a path of, or on PATH, a program that may be started. */
bool is_program(const char *name);

typedef struct other_options {
    int toggle;        /* the signal that switches recording on and off, or 0 */
    bool has_unified;  /* unified memory too */
    const char *range; /* keep what is inside NVTX's ranges of this name; NULL: everything */
} other_options;

/* Runs the program with its output on stderr, waits, and fills the profile, which is to be ended by
 * profile_fini in any case.  The records go to a folder inside `out` for the time being.  *failed:
 * how the program ended, where that was not exit code 0; else "". */
status profile_program(profile *p, char **argv, const char *out, const other_options *o,
                       char failed[256]);

#endif
