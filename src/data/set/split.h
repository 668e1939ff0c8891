/* Splits: which users, and which of their events, belong to training, validation and test.
 *
 * leave-one-out  train: all but the last event; test: the last one as target
 * leave-two-out  train: all but the last two; validation: the one before last; test: the last
 * by-user        a fixed random 70 % of the users train, the others test, with all their events;
 *                with validation, half of the others (rounded down) validate instead
 * time           train: events before the cut; test: of each user with events at or after the cut,
 *                the first of them, with the events before the cut as its history
 * test-file      train: all events of the data; test: the user's first event of the test file
 *                (held_out.h), with all events of the data as its history
 *
 * With validation, time and test-file take the last event of each user's training events as the
 * validation target, and train on those before it.  A target's history never has an event that is
 * later than the target or that belongs to the test part.
 *
 * A split is a value that refers to its data; it stores nothing per user and is safe for any number
 * of threads. */
#ifndef HSTU_DATA_SET_SPLIT_H
#define HSTU_DATA_SET_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "data/set/permute.h"
#include "data/set/seq_file.h"
#include "data/set/split_rule.h"

typedef struct split {
    const seq_file *data;
    split_rule rule;
    uint64_t seed;
    permutation order;           /* of users, for by-user: the first n_train_users of it train, */
    uint64_t n_train_users;      /* by-user: round(.7 * n_users), halves up; else all */
    uint64_t n_validation_users; /* and the next so many validate */
    int64_t time_cut;            /* SPLIT_TIME, in ticks of the data */
} split;

/* The events a part uses of a user, as rows of the event columns: history and targets are
 * begin..end-1, and a target is never earlier than target_begin.  In a held-out part only the
 * held-out event can be a target; where all events belong to the part, every event except the
 * first, which has no history, can be one.  In a view with gaps (seq_file.h) the part is decided by
 * the whole data; the rows are those of the view, so that history or targets may be missing. */
typedef struct event_range {
    uint64_t begin, target_begin, end;
    uint64_t whole_target_begin, whole_end; /* rows of the whole data */
} event_range;

/* The users of a part that are long enough for it. */
typedef struct split_users {
    uint64_t n;
    uint64_t n_too_short;    /* users of this part with fewer than 2 events left: left out */
    uint64_t n_lost;         /* users all of whose targets are missing (gaps): left out */
    uint64_t n_lost_targets; /* targets that are missing, of all users */
    uint64_t *user;          /* (n), ascending; NULL if n is all users of the data */
} split_users;

split split_make(const seq_file *data, split_rule rule, uint64_t seed);

/* The user's events in this part; false if the user is not in it or has fewer than 2 there. */
bool split_range(const split *s, split_part part, uint64_t user, event_range *out);

/* The first row of the last max_targets of a range's targets; range->end where all of these are
 * missing, or max_targets is 0. */
uint64_t split_first_target(const split *s, const event_range *range, uint64_t max_targets);

/* Lists the users of a part; ERR_USAGE if the split has no such part.  split_users_fini frees. */
status split_users_init(split_users *out, const split *s, split_part part);

/* Where the data have gaps: takes users from the list that have none of their last max_targets
 * targets, and counts them; likewise users without history. */
status split_users_check(split_users *u, const split *s, split_part part, uint64_t max_targets);
void split_users_fini(split_users *u);

#endif
