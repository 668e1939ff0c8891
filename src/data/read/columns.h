/* Columns: which column of a table is the user, the item, the time and the action, by the names
 * that people use, and what each holds, by its first rows. */
#ifndef HSTU_DATA_READ_COLUMNS_H
#define HSTU_DATA_READ_COLUMNS_H

#include "data/build/builder.h"
#include "data/read/sample.h"
#include "data/read/sources.h"

/* The column of a role by its usual names; -1 if there is none.  Case and everything but letters
 * and digits do not count: user_id, userId and "User ID" are one name.  Two that fit equally well
 * are ERR_FORMAT, with the option to give. */
status columns_find_usual(const char *file, csv_role role, const char *const *names, int n,
                          int *out);

/* The error that no column looks like the role: lists the names, and the option to give. */
status columns_fail_missing(const char *file, csv_role role, const char *const *names, int n);

/* "--user-col" for ROLE_USER, ... */
const char *columns_option(csv_role role);

/* The columns of a table; -1: none. */
typedef struct column_choice {
    int user, item, time, action;
    bool is_action_guessed; /* by its name, not by --action-col */
} column_choice;

/* What the chosen columns hold, by the options and the sample: sets the kinds of ids, times and
 * actions of `t` and of `options`.  A guessed action column that no kind of action fits is left out
 * with a note: choice->action = -1. */
status columns_guess_kinds(const source_request *r, const sample *s, column_choice *choice,
                           csv_layout *t, builder_options *options);

/* Logs what was taken for what: one line. */
void columns_say(const sample *s, const char *form, const column_choice *choice,
                 const csv_layout *t);

/* Without names, the time is the only column from the third on with numbers or dates of a clock; 2
 * (the third) if none or several are. */
int columns_find_clock(const sample *s);

#endif
