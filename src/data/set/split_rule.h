/* The rule of a split: how events are divided into training, validation and test, what a run
 * remembers of it, and whether one rule would test on what another one trained on.  Values; any
 * thread. */
#ifndef HSTU_DATA_SET_SPLIT_RULE_H
#define HSTU_DATA_SET_SPLIT_RULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "format/json.h"

typedef enum {
    SPLIT_LEAVE_ONE_OUT,
    SPLIT_LEAVE_TWO_OUT,
    SPLIT_BY_USER,
    SPLIT_TIME,
    SPLIT_TEST_FILE,
    SPLIT_KINDS
} split_kind;
typedef enum { PART_TRAIN, PART_VALIDATION, PART_TEST } split_part;

typedef struct split_rule {
    split_kind kind;
    bool has_validation; /* leave-two-out always has it, leave-one-out never */
    int64_t time_cut;    /* SPLIT_TIME: seconds since 1970; training sees earlier events only */
} split_rule;

/* The rule of a kind without validation (leave-two-out: with it), and a time cut of 0. */
split_rule split_rule_of(split_kind kind);

bool split_rule_is_same(const split_rule *a, const split_rule *b);
bool split_rule_has_part(const split_rule *rule, split_part part);

/* "leave-one-out", ... and back; an unknown name is ERR_USAGE.  "test-file" is not a name that a
 * user gives: it follows from --test-file. */
const char *split_kind_name(split_kind kind);
status split_kind_parse(const char *name, split_kind *out);
const char *split_part_name(split_part part); /* "train", "validation", "test" */

/* The rule in a few words: "time before 2001-01-01T00:00:00Z, with validation". */
enum { SPLIT_TEXT_BYTES = 96 };
const char *split_rule_text(const split_rule *rule, char text[SPLIT_TEXT_BYTES]);

/* A time of the command line: seconds since 1970 or, in UTC, 2001-01-31 or 2001-01-31T23:59:59Z
 * (the Z may be left out). */
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

#endif
