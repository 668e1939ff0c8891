/* Splits: which users, and which of their events, belong to training, validation and test.
 *
 * leave-one-out  train: all but the last event; test: the last one as target
 * leave-two-out  train: all but the last two; validation: the one before last; test: the last
 * by-user        a fixed random 70 % of the users train, the others test, with all their events;
 *                with validation, half of the others (rounded down) validate instead
 * time           train: events before the cut; test: of each user with events at or after the cut,
 *                the first of them, with the events before the cut as its history
 * none           train: all events; nothing is held out
 * test-file      train: all events of the data; test: the user's first event of the test file
 *                (held_out.h), with all events of the data as its history
 *
 * With validation, time and test-file take the last event of each user's training events as the
 * validation target, and train on those before it.  A target's history never has an event that is
 * later than the target or that belongs to the test part.
 *
 * A split is a value that refers to its data; it stores nothing per user and is safe for any number
 * of threads. */
#pragma once

#include "data/set/seq_file.h"
#include "format/json.h"

/* The rule of a split: how events are divided into training, validation and test, what a run
 * remembers of it, and whether one rule would test on what another one trained on.  Values; any
 * thread. */
typedef enum {
    SPLIT_LEAVE_ONE_OUT,
    SPLIT_LEAVE_TWO_OUT,
    SPLIT_BY_USER,
    SPLIT_TIME,
    SPLIT_NONE,
    SPLIT_TEST_FILE,
    SPLIT_KINDS
} split_kind;
typedef enum { PART_TRAIN, PART_VALIDATION, PART_TEST } split_part;

typedef struct split_rule {
    split_kind kind;
    bool has_validation;     /* leave-two-out always has it, leave-one-out never */
    int64_t time_cut;        /* SPLIT_TIME: seconds since 1970; training sees earlier events only */
    uint64_t target_actions; /* bits of the actions whose events are held-out targets; 0: all */
    int64_t n_sample;        /* users of a held-out part that are evaluated; 0: all */
} split_rule;

/* The rule of a kind without validation (leave-two-out: with it), and a time cut of 0. */
split_rule split_rule_of(split_kind kind);

/* Whatever their samples are. */
bool split_rule_is_same(const split_rule *a, const split_rule *b);

/* "leave-one-out", ... and back; an unknown name is ERR_USAGE.  "test-file" is not a name that a
 * user gives: it follows from --test-file. */
const char *split_kind_name(split_kind kind);
status split_kind_parse(const char *name, split_kind *out);
const char *split_part_name(split_part part); /* "train", "validation", "test" */

/* The rule in a few words: "time before 2001-01-01T00:00:00Z, with validation". */
enum { SPLIT_TEXT_BYTES = 96 };
const char *split_rule_text(const split_rule *rule, char text[SPLIT_TEXT_BYTES]);

/* A time of the command line: seconds since 1970, or an ISO 8601 date, in UTC unless it has a zone:
 * 2001-01-31, 2001-01-31T23:59:59Z; fractions are dropped. */
status split_time_parse(const char *text, int64_t *seconds);

/* OK if no event that `trained` trains on is a target of `part` under `wanted`, on the same data;
 * else ERR_USAGE, with both rules. */
status split_check_unseen(const split_rule *trained, const split_rule *wanted, split_part part);

/* What a run remembers of its split. */
enum { SPLIT_PATH_BYTES = 4096 };
typedef struct split_record {
    split_rule rule;
    /* SPLIT_TEST_FILE: the data set with the held-out events, and its fingerprint. */
    char test_file[SPLIT_PATH_BYTES];
    uint64_t test_data;
} split_record;

/* As members of an open JSON object, and back. */
void split_record_write(const split_record *r, json_writer *w);
status split_record_read(split_record *out, const json_value *object);

/* A pseudo-random permutation of 0..n-1 that stores nothing.
 *
 * Any position can be asked for at any time, in either direction, so a shuffle of a billion users
 * costs no memory and a run resumes in the middle of an epoch.  It is a Feistel network, its round
 * keys drawn by Philox, on the smallest power of two >= n; a value outside 0..n-1 is mapped again
 * until it is inside (cycle walking), which keeps the mapping one to one.  A permutation is a
 * value: copy it, share it between threads.
 *
 * Four rounds make a Feistel network as good as random when its halves are wide; ours are a few
 * bits for small n, where more rounds are needed for a good shuffle. */
enum { PERMUTATION_ROUNDS = 8 };

typedef struct permutation {
    uint64_t n; /* 0..2^63 */
    uint64_t round_key[PERMUTATION_ROUNDS];
    int left_bits, right_bits; /* 2^(left_bits + right_bits) >= n, each at most 32 */
} permutation;

/* The permutation of 0..n-1 that belongs to (seed, stream, epoch). */
permutation permutation_make(uint64_t n, uint64_t seed, rng_stream stream, uint64_t epoch);

/* The value at a position (both 0..n-1), and the position of a value. */
uint64_t permutation_at(const permutation *p, uint64_t position);
uint64_t permutation_find(const permutation *p, uint64_t value);

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

/* Lists the users of a part; ERR_USAGE if the split has no such part.  split_users_fini frees.  A
 * sample depends on the data and its size alone, and a smaller one is part of a larger one. */
status split_users_init(split_users *out, const split *s, split_part part);

/* Where the data have gaps: takes users from the list that have none of their last max_targets
 * targets, and counts them; likewise users without history. */
status split_users_check(split_users *u, const split *s, split_part part, uint64_t max_targets);
void split_users_fini(split_users *u);
