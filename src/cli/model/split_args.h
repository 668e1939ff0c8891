/* The options of `hstu train` and `hstu eval` that say what is held out. */
#ifndef HSTU_CLI_MODEL_SPLIT_ARGS_H
#define HSTU_CLI_MODEL_SPLIT_ARGS_H

#include "base/status.h"
#include "data/set/split.h"

typedef struct split_args {
    const char *split, *time_cut, *test_file;
    bool has_validation;
} split_args;

/* Help texts that both commands share. */
#define SPLIT_TIME_HELP                                                                            \
    "The cut of --split time: seconds since 1970, 2001-01-31 or 2001-01-31T23:59:59Z (UTC).  "     \
    "Training sees only events before it; each user's first event at or after it is the test."
#define SPLIT_FILE_HELP                                                                            \
    "Held-out events as a prepared data set ('hstu prep', such as 'hstu prep csv'), matched by "   \
    "the ids of users and items: each user's first event there is the test, all events of --data " \
    "come before it."

/* Whether --split, --time-cut or --test-file was given. */
bool split_args_given(const split_args *a);

/* The rule they give; ERR_USAGE where they do not go together.  The fingerprint of a test file is
 * left open. */
status split_args_read(const split_args *a, split_record *out);

#endif
