/* Sources: the data sets `hstu prep` knows, and the options of each.
 *
 * A source names its files, their layout and what else it brings (titles, the catalogue, contextual
 * features); its reader fills a builder.  Every event of every user is kept, whatever the side
 * files say: a user without a row there has no context, an item without one has no title. */
#pragma once

#include "data/build/builder.h"
#include "data/read/blocks.h"
#include "data/read/csv.h"

typedef struct source_job source_job;

typedef struct source {
    const char *name;                /* "ml-1m" */
    const char *summary;             /* one line for help pages */
    const char *item_name;           /* name of the item column in a csv written from it */
    status (*read)(source_job *job); /* the events first, then catalogue and context */
    action_kind actions;
    int64_t time_per_second;
    bool has_text_ids;
    bool has_ns_times;        /* builder_options: its reader sets a plan for them */
    bool has_user_feature;    /* builder_options: as in NVIDIA's preprocessing of the same data */
    bool has_columns;         /* takes --user-col and the other column options */
    bool is_table;            /* one event a row, in one or more files: see table_source.c */
    uint32_t min_item_events; /* builder_options of the same names */
    uint32_t min_user_events;
} source;

/* The table; n_sources entries. */
extern const source sources[];
extern const size_t n_sources;

/* The source of this name; an unknown one is ERR_USAGE with the nearest and the list. */
status source_find(const char *name, const source **out);

/* The options besides the name; all zero is the default. */
typedef struct source_request {
    const char *user_col, *item_col, *time_col, *action_col; /* header names, or numbers from 1 */
    const char *action_kind;                                 /* none|stars|half-stars|bits|code */
    const char *delimiter;                                   /* default: found in the data */
    const char *header;                                      /* yes|no|auto */
    const char *time_unit;                                   /* s|ms|us|ns|iso */
    const char *time_zone;                                   /* of dates without one: UTC */
    const char *time_format;                                 /* "%d.%m.%Y %H:%M" */
    const char *action_map;                                  /* "view=1,buy=2,*=0" */
    int64_t skip_bad;                                        /* bad rows that may be skipped */
    double skip_bad_percent;                                 /* or their share; 0: not given */
    int64_t min_user_events, min_item_events;                /* a k-core; 0: all */
    const char *since, *until;                               /* seconds or dates; of all sources */
    int64_t sample_users;                                    /* 0: all */
    const char *items, *items_id, *items_title;   /* side file with titles, its columns */
    const char *item_features;                    /* "a,b:list,c:number" of it, or "none" */
    const char *item_vectors, *item_vector_ids;   /* .npy or .safetensors; a file of ids */
    const char *users, *users_id, *user_features; /* side file with features, "a,b,c" */
    bool has_text_ids;
    bool has_random_logs; /* KuaiRand: the logs of randomly exposed videos too */
    bool drop_duplicates;
} source_request;

/* Sets the options of a builder that every source has: since, until and sample_users. */
status source_choose_events(const source_request *r, builder_options *out);

/* The result of source_read; source_result_fini frees it. */
typedef struct source_result {
    builder *build;
    action_kind actions;
    char item_name[CSV_NAME_BYTES];
    char times[TIME_NAME_BYTES]; /* what the times were taken for: "milliseconds"; "": known before
                                  */
    bad_lines *bad;              /* the rows that were skipped; NULL without --skip-bad */
} source_result;

/* ERR_USAGE for options that are not for this source, or need others. */
status source_check(const source *s, const source_request *r);

/* Reads a source from its inputs (folders, files, archives, pipes) into a new builder.  Only tables
 * have several.  Column options for a source with its own layout are ERR_USAGE. */
status source_read(const source *s, const source_request *request, const char *const *inputs,
                   size_t n_inputs, pool *p, source_result *out);
void source_result_fini(source_result *r);

/* The name of a kind of action, as on the command line, and back. */
const char *action_kind_name(action_kind kind);
