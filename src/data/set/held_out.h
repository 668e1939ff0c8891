/* Held-out events: the training data with the events of a test file after them, as one data set in
 * memory, for the split `test-file` (split.h).
 *
 * The test file is a prepared data set of its own, matched by the ids of users and items.  Of each
 * user it gives the first event: the target.  A target must not be earlier than the user's training
 * events, nor be one of them: the training data would have seen what it is tested on.  The result
 * has the users, items and fingerprint of the training data, which must outlive it.  Read only once
 * made; any thread. */
#pragma once

#include "data/set/seq_file.h"

typedef struct held_out held_out;

typedef struct held_out_counts {
    uint64_t n_targets;       /* users with a target */
    uint64_t n_unknown_users; /* users of the test file that the data does not have: left out */
    uint64_t n_unknown_items; /* targets that are no items of the data */
} held_out_counts;

/* Joins.  Where keeps_unknown is set, a target that is no item of the data becomes item 0, which no
 * model finds; else it is left out.  ERR_USAGE names the first user whose target is not after the
 * training events. */
status held_out_join(held_out **out, const seq_file *data, const seq_file *test,
                     bool keeps_unknown);
void held_out_destroy(held_out *h); /* NULL is fine */

const seq_file *held_out_data(const held_out *h);
held_out_counts held_out_count(const held_out *h);
