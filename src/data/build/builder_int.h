/* Inside the builder: builder.c takes events and writes the file, with dictionary.c (ids become
 * numbers), builder_vocab.c (ids, titles, context as columns), builder_content.c (content of items)
 * and partition.c (the events). */
#pragma once

#include "base/map.h"
#include "data/build/builder.h"
#include "data/set/column_file.h"

/* Dictionary: ids (64-bit integers or strings) numbered 0, 1, 2, ... as they first appear, each
 * with a count of its uses.  One thread at a time. */
typedef struct dictionary {
    bool is_text;
    uint32_t n;
    map numbers;     /* the ids, unless is_text */
    text_map texts;  /* the ids, if is_text */
    uint32_t *count; /* (n): the caller's to increase */
    size_t count_capacity;
} dictionary;

void dictionary_init(dictionary *d, bool is_text);
void dictionary_fini(dictionary *d);

/* *out = the id's number, given now if it is new. */
status dictionary_number(dictionary *d, int64_t id, uint32_t *out);
status dictionary_text(dictionary *d, const char *text, size_t n, uint32_t *out);

/* An id given as text, which is parsed if the dictionary holds integers.  ERR_FORMAT if it is not
 * an integer then. */
status dictionary_parse(dictionary *d, const char *text, size_t n, uint32_t *out);

static inline int64_t dictionary_get_number(const dictionary *d, uint32_t i) {
    return (int64_t)d->numbers.key[i];
}

/* One id of many dictionaries, in the merged order. */
typedef struct merged_id {
    uint32_t part;  /* which dictionary */
    uint32_t index; /* its number there */
} merged_id;

/* All distinct ids of several dictionaries of one kind in ascending order (integers by value,
 * strings by bytes): rank[part][index] = place in that order; *out_ids (freed by mem_free) has one
 * representative per place, from the lowest part.  rank has n_parts pointers to allocated arrays,
 * freed by the caller, on failure too. */
status dictionary_merge(dictionary *const *parts, uint32_t n_parts, uint32_t **rank,
                        merged_id **out_ids, uint32_t *out_n);

/* Events of one block of the source, 18 bytes each.  Users and items are numbered by the sink's
 * dictionaries until builder_write renumbers them. */
typedef struct event_block {
    uint64_t sequence;
    uint32_t sink;
    uint64_t n, capacity;
    void *memory;     /* holds the four columns */
    int64_t *time;    /* (capacity) */
    uint32_t *user;   /* (capacity) */
    uint32_t *item;   /* (capacity) */
    uint16_t *action; /* (capacity) */
} event_block;

struct builder_sink {
    builder *owner;
    uint32_t index;
    dictionary users, items;
    event_block *open; /* the block being filled, or NULL */
    int time_digits;   /* has_ns_times: digits after the second that its times need */
};

typedef struct feature_pair {
    uint32_t of, value; /* an item or user, and its value */
} feature_pair;

/* A content feature of items of the catalogue, or a contextual one of context_users: the cells in
 * the order of the source. */
typedef struct feature_input {
    content_spec spec; /* of users: only the name */
    dictionary cells;
    feature_pair *pair; /* (n_pairs): value is a number in cells */
    size_t n_pairs, capacity;
} feature_input;

status feature_input_add(feature_input *f, uint32_t of, const char *cell, size_t n);
void feature_input_fini(feature_input *f);

struct builder {
    builder_options options;
    pool *workers;
    builder_sink *sinks; /* (n_sinks) */
    uint32_t n_sinks;
    pthread_mutex_t lock; /* of the list of blocks */
    event_block **blocks; /* (n_blocks) */
    size_t n_blocks, block_capacity;

    buf action_map;                    /* the names of codes; empty: none */
    dictionary catalogue;              /* items added by themselves */
    uint64_t *title_begin, *title_end; /* (catalogue.n), into titles */
    size_t begin_capacity, end_capacity;
    buf titles;
    uint64_t n_item_rows; /* calls of builder_add_item */
    uint32_t last_item;   /* in the catalogue */
    bool is_new_item;     /* that one */
    feature_input content[ITEM_CONTENT_MAX];
    int n_content;
    dictionary vector_items;
    float *vectors; /* (vector_items.n, vector_dim) */
    int32_t vector_dim;

    dictionary context_users;
    feature_input features[CONTEXT_MAX];
    int n_features;
};

enum { EVENT_BYTES = 8 + 4 + 4 + 2 };

/* An event, user or item that does not go into the file. */
#define DROPPED UINT32_MAX

/* The merged ids of one kind. */
typedef struct id_space {
    dictionary **parts; /* (n_parts): dictionaries of the sinks, then the builder's own */
    uint32_t n_parts;
    uint32_t **rank; /* (n_parts) -> (parts[p]->n): place in the merged order */
    merged_id *ids;  /* (n): a representative of each place */
    uint32_t n;
    uint32_t *count;  /* (n): events */
    uint32_t *number; /* (n): final number, or DROPPED */
    uint32_t n_kept;
} id_space;

/* Everything builder_write holds while it works. */
typedef struct write_job {
    builder *b;
    id_space users, items;
    uint64_t *offsets;     /* (n_users + 1): places of the gathered events */
    uint64_t *out_offsets; /* (n_users + 1): offsets in the file, where duplicates may be dropped */
    int64_t ns_per_tick;   /* has_ns_times, else 1: what the added times are divided by */
    builder_stats *stats;
} write_job;

/* A column of strings, collected in memory (ids, titles, values: small compared with the events).
 */
typedef struct text_output {
    buf bytes;
    uint64_t *offsets; /* (n + 1) */
    uint64_t n;
} text_output;
status text_output_init(text_output *t, uint64_t capacity);
status text_output_add(text_output *t, const char *text, size_t n);
status text_output_declare(const text_output *t, column_writer *w, const char *name);
void text_output_fini(text_output *t);

/* Writes the texts of `values` in order, after "", and order[v] = place (1..) of value v.  Of more
 * than `most` values the rarest are left out, all that occur as often as one of them: order 0. */
status order_values(const dictionary *values, uint32_t most, text_output *out, uint32_t *order);

/* A content feature as columns (seq_file.h); zeroed before it is filled. */
typedef struct content_output {
    content_report report;
    const char *separator;
    dictionary names;
    feature_pair *pair; /* (n_pairs): values of items, in the order of the source */
    size_t n_pairs, capacity;
    uint64_t *offsets; /* (n_items + 2) */
    uint32_t *value;
    double *number; /* (n_items + 1), or NULL */
    text_output values;
} content_output;

/* All features of the builder, and their reports in job->stats. */
status content_output_fill(content_output *out, write_job *job);
status content_output_declare(const content_output *o, column_writer *w, uint64_t n_items);
void content_output_fini(content_output *o);

/* Fills the column of vectors, once columns may be filled. */
status vectors_write(write_job *job, column_writer *w, int index);

/* Ids, titles, context and content as columns: created, and declared with their content, which must
 * live until column_writer_begin. */
typedef struct vocab_output vocab_output;
status vocab_output_create(vocab_output **out, write_job *job);
status vocab_output_declare(const vocab_output *v, column_writer *w);
void vocab_output_destroy(vocab_output *v); /* NULL is fine */

/* Partition: sorts and writes the events of a builder, one range of users at a time.
 *
 * A worker takes a range of users, gathers their events from all blocks (in the order of the
 * source), sorts each user's by time (stable) and writes the three columns.  A range is a small
 * part of all events, so this step needs little memory besides the blocks.
 *
 * Where the events go: */
typedef struct event_columns {
    column_writer *writer;
    int item, action, time; /* indices of the declared columns */
} event_columns;

/* Sets job->out_offsets to job->offsets minus the duplicates, which partition_write then drops. */
status partition_count_duplicates(write_job *job);

/* Writes every event to its place by job->out_offsets; fills the remaining fields of job->stats. */
status partition_write(write_job *job, const event_columns *columns);
