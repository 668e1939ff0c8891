/* Sample: the first rows of a table of events as texts, to find out what its columns hold.
 *
 * Made from csv or JSON lines; the functions that look at it need not know which. */
#pragma once

#include "data/read/csv.h"

enum { SAMPLE_BYTES = 64 << 10, SAMPLE_ROWS = 500 };

typedef struct sample {
    arena memory;
    const char *file; /* for messages; the caller's */
    bool has_lists;   /* of JSON lines: arrays are columns too, without cells; the caller's */
    bool has_names;
    const char **name; /* (n_columns); their texts, where has_names */
    int n_columns;
    csv_field *cell;            /* (n_rows, n_columns); text NULL where the row has none */
    uint64_t line[SAMPLE_ROWS]; /* (n_rows) */
    int n_rows;
    failure first_failure; /* of JSON lines: the reason of the first row that is no object */
} sample;

void sample_init(sample *s, const char *file);
void sample_fini(sample *s);

static inline const csv_field *sample_cell(const sample *s, int row, int col) {
    return &s->cell[(size_t)row * (size_t)s->n_columns + (size_t)col];
}

/* The first rows of a csv text that starts at line `first_line`; the first row has the names if
 * has_names.  Rows that cannot be cut into fields are left out: the parser reports them. */
status sample_csv(sample *s, const csv_format *f, const char *text, size_t n, uint64_t first_line,
                  bool has_names);

/* The first rows of a text of JSON lines.  Names are those of all values, of arrays only where
 * has_lists, "a.b" for members of nested objects, in the order in which they first appear. */
status sample_jsonl(sample *s, const char *text, size_t n, uint64_t first_line);

/* The delimiter of a csv text: of ',', tab, ';', '|' and "::" the one that cuts most rows into the
 * same number of fields, at least two, and that into the most; "," if none does. */
void sample_find_delimiter(const char *text, size_t n, char delimiter[3]);
