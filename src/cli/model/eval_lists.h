/* hstu eval --recommendations: lists that somebody else made (another library, a query), measured
 * by the protocol and with the intervals of hstu eval. */
#pragma once

#include "cli/work.h"
#include "data/set/split.h"

typedef struct eval_lists_args {
    const char *file, *data, *metrics, *out; /* metrics, out: may be NULL */
    split_record split;
    split_part part;
    int64_t window; /* events of the history whose items count as seen */
    bool is_json, keeps_seen;
} eval_lists_args;

status eval_lists(const eval_lists_args *a);
