/* Vocabulary: the names that a model gives its numbers.
 *
 * A model knows items, contextual values and actions by number.  Which item is number 7 is decided
 * by the data it was trained on, and its checkpoints carry that: vocabulary.seq is a sequence file
 * (docs/formats.md) without users and events, but with the item ids, the titles, the content of
 * items, the contextual features with the names of their values, the kind and the number of
 * actions, and the ticks of a second.  Any other data is matched to it by id, never by number.
 *
 * A vocabulary is a seq_file with n_users = 0.  Maps and views are of one thread while they are
 * made; then any number of threads may read them. */
#pragma once

#include "data/set/seq_file.h"

/* Writes the vocabulary of `data` to a file.  n_actions: of the model; 0: it reads none.  Where the
 * file `previous` (or NULL) holds the same vocabulary, `path` becomes a hard link to it. */
status vocabulary_save(const char *path, const char *previous, const seq_file *data,
                       int32_t n_actions, pool *p);

/* Opens the vocabulary in a checkpoint's folder; seq_file_close closes it. */
status vocabulary_open(seq_file **out, const char *folder, pool *p);

/* Whether both have the same items, titles (true also if the vocabulary has none) or contextual
 * values.  Compares the checksums of the columns, which were verified when the files
 * were opened, so nothing is read. */
bool vocabulary_has_same_items(const seq_file *vocabulary, const seq_file *data);
bool vocabulary_has_same_titles(const seq_file *vocabulary, const seq_file *data);
bool vocabulary_has_same_context(const seq_file *vocabulary, const seq_file *data);

/* The numbers in a vocabulary of what is in some data, by id and by name; 0: the vocabulary does
 * not have it. */
typedef struct vocabulary_map {
    uint32_t *item;           /* (n_items of the data + 1) */
    uint64_t n_items;         /* items in both */
    int feature[CONTEXT_MAX]; /* by feature of the vocabulary: its number in the data, or -1 */
    uint32_t *context[CONTEXT_MAX]; /* by feature of the vocabulary: (values of the data's feature);
                                       NULL where the data do not have it */
} vocabulary_map;

/* ERR_CONFIG where no item is in both, with samples of the ids side by side. */
status vocabulary_map_init(vocabulary_map *m, const seq_file *vocabulary, const seq_file *data,
                           pool *p);
void vocabulary_map_fini(vocabulary_map *m); /* a failed init too */

/* What a view left out. */
typedef struct vocabulary_losses {
    uint64_t n_events, n_items; /* events, and the items they are of */
    uint64_t n_bad_actions;     /* of the events: left out because of their action */
} vocabulary_losses;

/* Data in the numbering of a vocabulary.  `data` is the original itself where nothing differs, else
 * a view of it with the ids, titles, content and values of the vocabulary; users are always those
 * of the data. Vocabulary and data must outlive it. */
typedef struct vocabulary_view {
    const seq_file *data;
    vocabulary_losses losses;
    seq_file view; /* what follows is memory of the view */
    arena memory;
    seq_gaps gaps;
    uint64_t *is_kept, *n_before, *offsets;
    uint32_t *item;
    uint16_t *action;
    int64_t *time;
    uint32_t *context[CONTEXT_MAX];
} vocabulary_view;

/* reads_actions, reads_context: whether the model reads these; if not, they need not match.  Events
 * of unknown items (and, if they are read, of unknown actions) are left out, counted and logged;
 * unknown contextual values become 0.  ERR_CONFIG: the data do not fit, and why. */
status vocabulary_view_init(vocabulary_view *v, const seq_file *vocabulary, const seq_file *data,
                            bool reads_actions, bool reads_context, pool *p);
void vocabulary_view_fini(vocabulary_view *v); /* a failed init too */
