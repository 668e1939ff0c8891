/* Inside the builder: builder.c takes events; builder_write.c writes the file, with
 * builder_renumber.c (ids become numbers), builder_vocab.c (ids, titles, context as columns) and
 * partition.c (the events themselves). */
#ifndef HSTU_DATA_BUILD_BUILDER_INT_H
#define HSTU_DATA_BUILD_BUILDER_INT_H

#include <pthread.h>

#include "data/build/builder.h"
#include "data/build/dictionary.h"
#include "data/set/column_file.h"

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

/* A contextual feature: for each user of `context_users`, the index of its value in `values`, plus
 * 1. */
typedef struct feature_input {
    char name[COLUMN_NAME_BYTES];
    dictionary values;
    uint32_t *value; /* (context_users.n), 0 = none */
    size_t capacity;
} feature_input;

struct builder {
    builder_options options;
    pool *workers;
    builder_sink *sinks; /* (n_sinks) */
    uint32_t n_sinks;
    pthread_mutex_t lock; /* of the list of blocks */
    event_block **blocks; /* (n_blocks) */
    size_t n_blocks, block_capacity;

    dictionary catalogue;              /* items added by themselves */
    uint64_t *title_begin, *title_end; /* (catalogue.n), into titles */
    size_t begin_capacity, end_capacity;
    buf titles;

    dictionary context_users;
    feature_input features[CONTEXT_MAX];
    int n_features;
};

/* The four columns of a block of `capacity` events, in one allocation. */
void event_block_place(event_block *block, void *memory, uint64_t capacity);

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

void id_space_fini(id_space *s);

/* Everything builder_write holds while it works. */
typedef struct write_job {
    builder *b;
    id_space users, items;
    uint64_t *offsets;     /* (n_users + 1): places of the gathered events */
    uint64_t *out_offsets; /* (n_users + 1): offsets in the file, where duplicates may be dropped */
    int64_t ns_per_tick;   /* has_ns_times, else 1: what the added times are divided by */
    builder_stats *stats;
} write_job;

/* Merges ids, drops rare users and items, renumbers every event and chooses the ticks of the file;
 * fills job->offsets and the counts of job->stats.  A dropped event has user DROPPED. */
status builder_renumber(write_job *job);

/* The k-core: drops the events of users and items that have fewer events than the minima of the
 * options, until all that are left have enough.  Events hold places in the merged order; the counts
 * of job->users and job->items become what is left. */
status builder_k_core(write_job *job);

/* Ids, titles and context as columns: created, declared and written in this order. */
typedef struct vocab_output vocab_output;
status vocab_output_create(vocab_output **out, write_job *job);
status vocab_output_declare(vocab_output *v, column_writer *w);
status vocab_output_put(const vocab_output *v, column_writer *w);
void vocab_output_destroy(vocab_output *v); /* NULL is fine */

#endif
