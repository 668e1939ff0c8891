/* CSV layout: which column of a delimited text file means what.
 *
 * One description serves every source of rows: MovieLens ("::", tab, comma), KuaiRand (columns by
 * name), Amazon (no header) and a person's own csv.  A layout is plain data, made once per file and
 * then read by all threads. */
#pragma once

#include "data/read/time_text.h"
#include "data/set/seq_file.h"

enum { CSV_MAX_COLUMNS = 1024, CSV_NAME_BYTES = 64 };

/* How rows are cut into fields. */
typedef struct csv_format {
    char delimiter[3]; /* one or two characters: ",", "\t", "|", "::" */
    bool has_quotes;   /* RFC 4180: "a field, with "" and line breaks inside" */
} csv_format;

/* A field of a row, without its quotes.  A view of the line; doubled quotes are undone in place. */
typedef struct csv_field {
    char *text;
    size_t n_bytes;
} csv_field;

/* If the quote in text.. opens a field (it is the first character of one): its closing quote, or
 * NULL if there is none before `end`.  Else the quote itself, which is text. */
const char *csv_skip_quoted(const csv_format *f, const char *text, const char *quote,
                            const char *end);

/* The bytes of the first row of a text, its line end included; n if it does not end. */
size_t csv_row_bytes(const csv_format *f, const char *text, size_t n);

/* The bytes of a row without its line end. */
static inline size_t csv_without_end(const char *row, size_t n) {
    if (n > 0 && row[n - 1] == '\n') n--;
    return n > 0 && row[n - 1] == '\r' ? n - 1 : n;
}

/* Cuts one line (without its end) into at most max fields; *n = how many there are, or max + 1 if
 * there are more.  ERR_FORMAT, without file and line, for malformed quotes. */
status csv_split(const csv_format *f, char *line, size_t n_bytes, csv_field *fields, int max,
                 int *n);

typedef enum {
    ROLE_SKIP = 0,
    ROLE_USER,
    ROLE_ITEM,
    ROLE_TIME,
    ROLE_ACTION,
    ROLE_BIT0, /* 0 or not: bit 0 of the action; ROLE_BIT0 + k is bit k */
    ROLE_BIT7 = ROLE_BIT0 + 7,
    N_ROLES
} csv_role;

/* A wanted column: by its header name, or by its number from 1. */
typedef struct csv_column {
    csv_role role;
    const char *column; /* "userId", or "1" */
} csv_column;

struct action_map;
struct bad_lines;
struct json_paths;
struct seqs_reader;

typedef struct csv_layout {
    csv_format format;
    time_plan times;                /* what the TIME column holds */
    const struct action_map *map;   /* texts of the ACTION column; NULL: numbers only */
    const struct json_paths *paths; /* JSON lines: the members that are columns */
    struct seqs_reader *seqs;       /* processed-seqs; else NULL */
    int n_lists;                    /* that a row has of events; 0: a row is an event */
    struct bad_lines *bad;          /* collects bad rows, which are then skipped; NULL: they fail */
    action_kind actions;            /* what the ACTION column holds; BITS with ROLE_BIT* too */
    bool has_text_users, has_text_items; /* ids are texts */
    bool has_stored_actions; /* actions stand there as a sequence file stores them, from 0 */
    bool is_own;   /* a person's own table: errors may advise options, actions may be missing */
    int n_columns; /* fields of a row */
    int n_needed;  /* up to the last column with a role */
    uint8_t role[CSV_MAX_COLUMNS];      /* csv_role of each column */
    char name[N_ROLES][CSV_NAME_BYTES]; /* column of each role, for messages */
} csv_layout;

/* Finds the columns in the first row of a file.  `has_names` says that the row is a header: a
 * wanted column that is not a number is looked up in it (exactly, else ignoring case).  A number is
 * always a position.  Sets n_columns, n_needed, role and name.  A missing column is ERR_FORMAT and
 * the message names those there are; two roles for one column are ERR_USAGE. */
status csv_layout_resolve(csv_layout *t, const char *file, const char *first_line, size_t n_bytes,
                          bool has_names, const csv_column *wanted, int n_wanted);

/* The name of a delimiter on the command line ("tab", "\t", "|", "::") as its characters. */
status csv_delimiter_parse(const char *text, char delimiter[3]);

/* List parser: the lists inside a field of a csv with one user per row.
 *
 * Three spellings are in use:  JSON "[1, 2, 3]" and ["a", "b"], Python's ['a', 'b'], and the bare
 * "1,2,3".  Pure; strings are decoded in place. */

typedef struct list_reader {
    char *at, *end;
    bool has_more; /* an element must follow */
} list_reader;

/* Starts on a field; ERR_FORMAT if a bracket is not closed. */
status list_begin(list_reader *r, const csv_field *field);

/* The next element without spaces and quotes around it; *has_element = false after the last. */
status list_next(list_reader *r, csv_field *element, bool *has_element);
