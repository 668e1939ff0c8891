/* Splits: which users, and which of their events, belong to training, validation and test.
 *
 * leave-one-out  train: all but the last event; test: the last one as target
 * leave-two-out  train: all but the last two; validation: the one before last; test: the last
 * by-user        a fixed random 70 % of the users train, the others test, with all their events
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

typedef enum { SPLIT_LEAVE_ONE_OUT, SPLIT_LEAVE_TWO_OUT, SPLIT_BY_USER } split_kind;
typedef enum { PART_TRAIN, PART_VALIDATION, PART_TEST } split_part;

typedef struct split {
    const seq_file *data;
    split_kind kind;
    uint64_t seed;
    permutation order;      /* of users, for by-user: the first n_train_users of it train */
    uint64_t n_train_users; /* by-user: round(.7 * n_users), halves up; else all */
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

/* "leave-one-out", ... and back; an unknown name is ERR_USAGE. */
const char *split_kind_name(split_kind kind);
status split_kind_parse(const char *name, split_kind *out);
const char *split_part_name(split_part part); /* "train", "validation", "test" */

split split_make(const seq_file *data, split_kind kind, uint64_t seed);

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
