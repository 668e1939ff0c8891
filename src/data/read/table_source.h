/* Tables of events: csv and JSON lines, in one file or many, with the columns that people have.
 *
 * The first file shows the columns and what they hold; the others must agree.  All
 * files are read as one stream of rows: in parallel, in one pass, so that pipes will do. */
#pragma once

#include "data/build/builder.h"
#include "data/read/row_field.h"
#include "data/read/sample.h"
#include "data/read/source_job.h"
#include "data/read/sources.h"

/* Columns: which column of a table is the user, the item, the time and the action, by the names
 * that people use, and what each holds, by its first rows.
 *
 * The column of a role by its usual names; -1 if there is none.  Case and everything but letters
 * and digits do not count: user_id, userId and "User ID" are one name.  Two that fit equally well
 * are ERR_FORMAT, with the option to give. */
status columns_find_usual(const char *file, csv_role role, const char *const *names, int n,
                          int *out);

/* The error that no column looks like the role: lists the names, and the option to give. */
status columns_fail_missing(const char *file, csv_role role, const char *const *names, int n);

/* The columns of a table by role, from ROLE_USER to ROLE_ACTION; -1: none. */
typedef struct column_choice {
    int of[N_ROLES];
    bool is_action_guessed; /* by its name, not by --action-col */
} column_choice;

typedef struct table_reader table_reader;

/* What a format adds. */
typedef struct table_format {
    const char *const *endings; /* of its files; ends with NULL */
    parse_block_fn parse;
    /* Sets r->layout and r->choice from the first rows of the first file, and skips its header. */
    status (*begin)(table_reader *r, blocks *b);
    /* Sets *t for a later file, and skips its header. */
    status (*resume)(table_reader *r, blocks *b, csv_layout *t);
} table_format;

struct table_reader {
    source_job *job;
    const table_format *format;
    bool has_begun; /* the first file with rows was seen */
    csv_layout layout;
    column_choice choice;
    csv_column wanted[4]; /* the columns, by name or number; texts in `names` */
    int n_wanted;
    arena names;
    action_map map;
    /* csv */
    const char *header; /* the first row of the first file, if it is a header; else NULL */
    size_t header_bytes;
    const char *first_file;
};

/* Reads job->inputs. */
status table_read(source_job *job, const table_format *format);

/* Which columns are meant: by the options, else by the usual names of the sample; adds them to
 * r->wanted, with column numbers where the sample has no names. */
status table_choose_columns(table_reader *r, const sample *s);

/* What they hold; r->choice must be set.  Makes the builder. */
status table_set_kinds(table_reader *r, const sample *s, const char *form);

/* After the rows were read: sets job->times. */
void table_name_times(const table_reader *r);
