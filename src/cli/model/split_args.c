#include "cli/model/split_args.h"

#include <stdlib.h>
#include <string.h>

bool split_args_given(const split_args *a) {
    return a->split != NULL || a->time_cut != NULL || a->test_file != NULL;
}

/* Absolute, so that the run finds it from any folder; a path that leads nowhere stays as it is, and
 * fails when it is opened. */
static status read_test_file(const split_args *a, split_record *out) {
    char absolute[SPLIT_PATH_BYTES];
    const char *path = realpath(a->test_file, absolute) != NULL ? absolute : a->test_file;
    if (a->split != NULL || a->time_cut != NULL)
        return fail(ERR_USAGE, "--test-file holds its own events out; leave --split and --time-cut "
                               "out");
    if (strlen(path) >= sizeof out->test_file)
        return fail(ERR_USAGE, "--test-file: the path is too long");
    out->rule = split_rule_of(SPLIT_TEST_FILE);
    memcpy(out->test_file, path, strlen(path) + 1);
    return OK;
}

static status read_kind(const split_args *a, split_rule *out) {
    split_kind kind = SPLIT_TIME; /* a cut alone says enough */
    if (a->split != NULL) TRY(split_kind_parse(a->split, &kind));
    *out = split_rule_of(kind);
    if (kind == SPLIT_TIME && a->time_cut == NULL)
        return fail(ERR_USAGE, "--split time needs the time: --time-cut T");
    if (kind != SPLIT_TIME && a->time_cut != NULL)
        return fail(ERR_USAGE, "--time-cut belongs to --split time, not to %s", a->split);
    if (a->time_cut == NULL) return OK;
    status st = split_time_parse(a->time_cut, &out->time_cut);
    return st == OK ? OK : fail_prefix(st, "--time-cut");
}

status split_args_read(const split_args *a, split_record *out) {
    *out = (split_record){0};
    if (a->test_file != NULL)
        TRY(read_test_file(a, out));
    else
        TRY(read_kind(a, &out->rule));
    if (!a->has_validation) return OK;
    if (out->rule.kind == SPLIT_LEAVE_ONE_OUT)
        return fail(ERR_USAGE, "--validate needs a second event of each user: use --split "
                               "leave-two-out");
    out->rule.has_validation = true;
    return OK;
}
