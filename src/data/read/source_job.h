/* A source being read: what the readers of src/data share.  One thread calls; the parsing inside
 * runs on the whole pool. */
#pragma once

#include "data/build/builder.h"
#include "data/read/blocks.h"
#include "data/read/csv.h"
#include "data/read/row_field.h"
#include "data/read/sources.h"
#include "format/input.h"

struct source_job {
    const source *src;
    const source_request *request;
    const char *const *inputs; /* (n_inputs) */
    size_t n_inputs;
    const char *path; /* of the first input, for messages */
    bundle *in;       /* of a source that is not a table */
    pool *p;
    builder *build;
    builder_options options;        /* set before the builder is made */
    uint64_t next_sequence;         /* of blocks, over all files */
    bad_lines *bad;                 /* --skip-bad; else NULL */
    time_zone *zone;                /* of dates without one */
    char times[TIME_NAME_BYTES];    /* what the times were taken for; "": known before */
    char item_name[CSV_NAME_BYTES]; /* starts as src->item_name */
    char user_name[CSV_NAME_BYTES]; /* of the column of a table; "" */
    const content_spec *known;      /* (n_known): kinds of item features without a given one */
    int n_known;
};

/* Makes the builder from job->options.  Readers whose options depend on the file call it when they
 * know them; for other readers it already exists. */
status job_create_builder(source_job *job);

/* Opens a member of the input by name.  Unlike bundle_open_member it never opens a file of another
 * name in place of an optional one.  *out = NULL if it is missing and not required. */
status job_open(source_job *job, const char *name, bool is_required, input **out);

/* A layout with this format and the source's kinds of ids and actions. */
void job_layout(const source_job *job, csv_layout *t, const char *delimiter, bool has_quotes);

/* Reads a table of events, a required member of the input, into the builder, in parallel.  If
 * has_header, the columns are looked up in the header, which is then skipped. */
status job_read_member(source_job *job, const char *name, csv_layout *t, bool has_header,
                       const csv_column *wanted, int n_wanted);
/* Like job_read_member for a stream already cut into blocks, with the header skipped and the
 * layout resolved. */
typedef status (*parse_block_fn)(const csv_layout *t, const char *file, text_block *block,
                                 csv_row_fn fn, void *ctx);
status job_read_blocks(source_job *job, blocks *b, const csv_layout *t, parse_block_fn parse);

/* Cuts a stream into blocks and calls fn with them, under a progress bar. */
typedef status (*job_blocks_fn)(source_job *job, blocks *b, void *ctx);
status job_with_blocks(source_job *job, input *in, size_t max_line_bytes, job_blocks_fn fn,
                       void *ctx);

/* Opens the one file the input must be, cuts it into blocks with this limit on the length of a
 * line, and calls fn, under a progress bar. */
status job_with_only_file(source_job *job, size_t max_line_bytes, job_blocks_fn fn, void *ctx);

/* Side files: rows of strings, on this thread.  `columns` are names if the file has a header, else
 * numbers from 1. */
typedef struct side_file {
    const char *name; /* of the member */
    csv_format format;
    bool has_header;
    const char *const *columns;
    int n_columns;
    const content_spec *content; /* of items; n_content of the columns, unless is_movies */
    int n_content;
    bool is_movies; /* content is {genre, year}: of the columns after the title, and in the title */
} side_file;

/* The files of --items and --users (side_table.c), and of --item-vectors (item_vectors.c), where
 * they are given. */
status job_read_side_tables(source_job *job);
status job_read_vectors(source_job *job);

/* Reads a side file of the input: items, columns {id, title, content...} or {id, content...}, where
 * features is NULL; else
 * users, whose first column is the id and the others are contextual features by these names. Titles
 * that are not UTF-8 are read as Latin-1.  A missing file is noted in the log. */
status job_read_side(source_job *job, const side_file *f, const char *const *features);

/* The readers. */
status read_ml_100k(source_job *job);
status read_ml_1m(source_job *job);
status read_ml_20m(source_job *job);
status read_kuairand(source_job *job);
status read_kuairec(source_job *job);
status read_amazon_books(source_job *job);
status read_amazon_reviews(source_job *job);
status read_processed_seqs(source_job *job);
status read_csv(source_job *job);
status read_jsonl(source_job *job);
status read_parquet(source_job *job);

/* Parts: the files that --input names, one after the other as one table.
 *
 * An input is a file (compressed or not), an archive, a folder of parts, a pipe, or "-", the
 * standard input.  Of a folder all files count, at any depth and in the order of their paths,
 * except hidden ones and those that start with '_' (Spark's _SUCCESS); if some have an ending of
 * the format, such as ".csv" or ".csv.gz", only those.  A file that is named twice is refused. */
typedef struct part {
    const char *path;
    const char *member; /* name of a file in the archive `path`; NULL: the file itself */
} part;

typedef struct part_list {
    part *part; /* (n) */
    size_t n, capacity;
    arena texts;
} part_list;

/* Finds the parts of n inputs.  `endings` (ends with NULL) are those of the format.  Pipes are not
 * opened yet.  An input without any file is ERR_USAGE. */
status parts_find(part_list *out, const char *const *inputs, size_t n, const char *const *endings);
void parts_fini(part_list *p);

status part_open(const part *p, input **out);

/* Whether a file's name has one of these endings, compressed or not. */
bool has_ending(const char *name, const char *const *endings);
