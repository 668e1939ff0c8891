/* Builder: takes events in any order and writes a sequence file.
 *
 * Readers add blocks of events from several threads (one sink per worker); a block keeps its place
 * in the source by its sequence number, so the result does not depend on which thread read what.
 * Each worker numbers user and item ids in the order it meets them; at the end all are renumbered
 * in id order. An event takes 18 bytes of memory until the file is written; the file is written in
 * partitions of users, so that the peak stays near 18 bytes an event. */
#pragma once

#include "data/set/seq_file.h"

typedef struct builder builder;
typedef struct builder_sink builder_sink;

typedef struct builder_options {
    bool has_text_users, has_text_items; /* ids are strings, not 64-bit integers */
    bool
        has_user_feature; /* the first contextual feature is user_id: every user is a value of it */
    action_kind actions;
    const char *action_map;   /* ACTION_CODE: the names of codes, "view=0,cart=1"; NULL: none */
    int64_t time_per_second;  /* of the times added; ignored if they are in nanoseconds */
    bool has_ns_times;        /* times are nanoseconds since 1970; the file has the coarsest ticks
                                 that keep all of them: seconds, milli-, micro- or nanoseconds */
    int min_time_digits;      /* has_ns_times: at least 10^this ticks a second: 0, 3, 6 or 9 */
    uint32_t min_item_events; /* drop items with fewer events, counted once on the raw data; 0: keep
                                 all */
    uint32_t min_user_events; /* likewise users; again on the remaining events (amzn-books) */
    int64_t since, until;  /* keep events from `since` on and before `until`, in seconds; 0: all */
    uint32_t sample_users; /* keep that many users, drawn by their ids alone, so that they stay the
                              same when the data grows; 0: all.  Both come before the minima */
    bool is_k_core;        /* repeat both minima until every user and item left has enough events */
    bool drop_duplicates; /* drop an event equal to the one before it: same user, item, time, action
                           */
} builder_options;

/* A content feature of items: how its cells are read.
 *
 * A category is a cell; a list is cut at its separator, or at CONTENT_SEPARATOR where the source
 * has lists; a number gets a bucket, of at most 16 with about as many items each.  Without a kind
 * (CONTENT_AUTO) the cells decide.  Of more than 65536 values the most frequent ones are kept. */
typedef enum { CONTENT_AUTO, CONTENT_CATEGORY, CONTENT_LIST, CONTENT_NUMBER } content_kind;
enum { CONTENT_SEPARATOR = 0x1f, CONTENT_NAME_LENGTH = COLUMN_NAME_BYTES - 7 };

typedef struct content_spec {
    char name[COLUMN_NAME_BYTES];
    content_kind kind;
    char separator[3]; /* of a list, "": found in the cells; of a number, its decimal comma */
    bool is_optional;  /* left out where more than 100 values occur less than twice on average */
} content_spec;

/* What became of one. */
typedef struct content_report {
    char name[COLUMN_NAME_BYTES];
    content_kind kind;
    uint64_t n_values, n_items; /* items of the catalogue that have a value */
    uint64_t n_rare;            /* values left out because others occur more often */
    bool is_left_out;           /* free text, or no value at all */
    bool has_commas;            /* a category of nothing but numbers, some with a decimal comma */
} content_report;

/* Counts for the closing report. */
typedef struct builder_stats {
    uint64_t n_users, n_items, n_seen_items, n_events, max_len;
    uint64_t n_duplicates;      /* equal to an earlier one: kept unless drop_duplicates */
    uint64_t n_out_of_order;    /* events older than one read before them of the same user */
    uint64_t n_filtered_events; /* dropped by min_item_events and min_user_events */
    uint64_t n_out_of_range;    /* events dropped by since and until, */
    uint64_t n_not_sampled;     /* and of users left out by sample_users */
    uint64_t n_filtered_users, n_filtered_items; /* that had events, and have none left */
    uint64_t n_described_users;    /* users of the file that contextual features were given for */
    uint64_t n_described_items;    /* items with events that builder_add_item was called for */
    uint64_t n_unknown_actions;    /* events with ACTION_UNKNOWN */
    uint64_t n_skipped;            /* bad rows: the caller's to fill in */
    int64_t first_time, last_time; /* in ticks */
    int64_t time_per_second;       /* ticks a second of the file */
    content_report content[ITEM_CONTENT_MAX];
    int n_content;
    uint64_t n_vector_items; /* items of the catalogue that have a vector */
} builder_stats;

status builder_create(builder **out, const builder_options *options, pool *p);
void builder_destroy(builder *b); /* NULL is fine */

/* The sink of a worker (pool worker number); one thread at a time uses it. */
builder_sink *builder_get_sink(builder *b, int worker);

/* Opens block number `sequence` of the source on this sink, with room for at most max_events.
 * Blocks of a source are numbered from 0 in the order of the source, over all its files. */
status sink_begin_block(builder_sink *s, uint64_t sequence, uint64_t max_events);
status sink_end_block(builder_sink *s);

/* has_ns_times: an added time needs 3, 6 or 9 digits after the second (0: none). */
void sink_keep_digits(builder_sink *s, int digits);

/* Adds an event with integer ids. */
status sink_add(builder_sink *s, int64_t user, int64_t item, uint16_t action, int64_t time);
/* Number of an id in this sink, for readers with string ids or with many events of one user; and
 * an event of such numbers. */
status sink_user(builder_sink *s, int64_t id, uint32_t *out);
status sink_user_text(builder_sink *s, const char *id, size_t n, uint32_t *out);
status sink_item(builder_sink *s, int64_t id, uint32_t *out);
status sink_item_text(builder_sink *s, const char *id, size_t n, uint32_t *out);
status sink_add_numbered(builder_sink *s, uint32_t user, uint32_t item, uint16_t action,
                         int64_t time);

/* Adds n events given by columns. */
status sink_add_columns(builder_sink *s, size_t n, const int64_t *user, const int64_t *item,
                        const int64_t *action, const int64_t *time);

/* The events added so far, when no block is open. */
uint64_t builder_n_events(const builder *b);

/* Adds an item to the catalogue, seen in events or not; title may be NULL.  One thread.  The id is
 * given as text (parsed if ids are integers).  The first title of an id is kept. */
status builder_add_item(builder *b, const char *id, size_t id_bytes, const char *title,
                        size_t title_bytes);

/* Calls of builder_add_item so far; 0 where one named an item again.  The id of item i, in the
 * order of the calls, as text. */
uint64_t builder_n_item_rows(const builder *b);
status builder_item_id(const builder *b, uint32_t i, buf *out);
bool builder_item_is_new(const builder *b); /* the last call named it for the first time */

/* Declares a content feature, and gives the item that was added last a cell of it; an empty one is
 * none.  Of several cells of an item the first counts, of lists all do.  One thread. */
status builder_add_content(builder *b, const content_spec *spec, int *out_feature);
status builder_put_content(builder *b, int feature, const char *cell, size_t n);

/* The content feature, or the contextual one, of this name; -1 if there is none. */
int builder_find_feature(const builder *b, bool is_content, const char *name);

/* Makes room for n vectors; *out = where the caller puts that of an item, which need not be in the
 * catalogue (then it is dropped).  ERR_FORMAT for an id that has one.  One thread. */
status builder_begin_vectors(builder *b, uint64_t n, int32_t dim);
status builder_add_vector(builder *b, const char *id, size_t id_bytes, float **out);

/* Declares a contextual feature, and gives a user a value of it, of several the first.  Values of
 * users without events are dropped; users without a value have 0.  One thread. */
status builder_add_context(builder *b, const char *name, int *out_feature);
status builder_set_context(builder *b, int feature, const char *user_id, size_t id_bytes,
                           const char *value, size_t value_bytes);
/* Distinct values so far, and the rows that have one. */
uint64_t builder_count_values(const builder *b, int feature, uint64_t *n_rows);

/* Writes DIR/data.seq (creates DIR if it does not exist, and removes it again on failure).
 * meta_json is one JSON object; it becomes "source" in the file's meta.  No events at all is
 * ERR_FORMAT.  The builder is used up: only builder_destroy may follow. */
status builder_write(builder *b, const char *folder, const char *meta_json, builder_stats *stats);
