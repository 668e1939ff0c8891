/* Sequence file: a prepared data set, DIR/data.seq, mapped read-only.
 *
 * Users are numbered 0..n_users-1 and items 1..n_items, both in ascending order of their ids
 * (numbers by value, strings by bytes); item 0 is padding.  Items are the whole catalogue,
 * including items without events.  A user's events are in order of time, ties in the order of the
 * source.  Everything here is a view of the map and safe for any number of threads. */
#pragma once

#include "data/set/column_file.h"

/* What the 16-bit action of an event means. */
typedef enum {
    ACTION_NONE = 0,       /* always 0 */
    ACTION_STARS = 1,      /* rating 1..5, stored 0..4: rating = action + 1 */
    ACTION_HALF_STARS = 2, /* rating .5..5, stored 0..9: rating = (action + 1) / 2 */
    ACTION_BITS = 3,       /* bit mask: click 1, like 2, follow 4, comment 8, forward 16, hate 32,
                              long_view 64, profile_enter 128 */
    ACTION_CODE = 4        /* a number of the source, 0..65534, as it is */
} action_kind;

/* The action of an event whose source has none, of any kind, and of one that came to a model
 * without: history, but no label of ranking. */
#define ACTION_UNKNOWN UINT16_MAX

/* How many actions a kind can have: 0..n-1; any where there are none to tell. */
static inline int32_t action_kind_count(action_kind kind) {
    static const int32_t n[] = {ACTION_UNKNOWN, 5, 10, 256, ACTION_UNKNOWN};
    return n[kind];
}

/* Strings stored one after the other: string i is bytes[offsets[i] .. offsets[i + 1]). */
typedef struct text_column {
    const uint64_t *offsets; /* (n + 1) */
    const char *bytes;
    uint64_t n;
} text_column;

/* One contextual feature: value[u] is 1..n_values for user u, 0 where it is unknown. */
typedef struct context_feature {
    char name[COLUMN_NAME_BYTES];
    const uint32_t *value; /* (n_users) */
    text_column values;    /* names of the values; entry 0 is "" */
} context_feature;

enum { CONTEXT_MAX = 32, ITEM_CONTENT_MAX = 16, ITEM_VECTOR_MAX = 4096 };

/* One content feature of items, such as a genre or a year: item i has the values
 * value[offsets[i]] .. value[offsets[i + 1] - 1], ascending; none where it is unknown. */
typedef struct item_content {
    char name[COLUMN_NAME_BYTES];
    const uint64_t *offsets; /* (n_items + 2) */
    const uint32_t *value;   /* 1..n_values */
    text_column values;      /* names of the values, or of a number's buckets; entry 0 is "" */
    const double *number;    /* (n_items + 1), NaN where it is unknown; NULL: not a number */
} item_content;

/* Where a seq_file is a view in which some events of the data are left out (model/vocabulary.h):
 * the rows of the whole data.  A split is taken on the whole data, so that the event before a
 * held-out one that is left out is never mistaken for it. */
typedef struct seq_gaps {
    const uint64_t *offsets;  /* (n_users + 1) of the whole data */
    const uint64_t *is_kept;  /* (n_events / 64 + 1): one bit for each event of the whole data */
    const uint64_t *n_before; /* (n_events / 64 + 1): events kept before each word of is_kept */
    const int64_t *time;      /* (n_events) of the whole data */
} seq_gaps;

typedef struct seq_file {
    column_file file;
    char path[4096];
    uint64_t n_users, n_items, n_events;
    const uint64_t *offsets; /* (n_users + 1), into the event columns */
    const uint32_t *item;    /* (n_events), 1..n_items */
    const uint16_t *action;  /* (n_events) */
    const int64_t *time;     /* (n_events), in ticks: time_per_second to a second */
    const seq_gaps *gaps;    /* NULL: no event of the data is left out */
    action_kind actions;
    const char *action_map;  /* ACTION_CODE: "view=0,cart=1", the names of codes; NULL: none */
    int32_t n_actions;       /* of a model's vocabulary: actions are 0..n_actions-1; 0: not said */
    int64_t time_per_second; /* 1, 10^3, 10^6 or 10^9 */
    bool has_text_users, has_text_items;
    const int64_t *user_id; /* (n_users), unless has_text_users */
    const int64_t *item_id; /* (n_items + 1), entry 0 is 0, unless has_text_items */
    text_column user_text;  /* (n_users), if has_text_users */
    text_column item_text;  /* (n_items + 1), if has_text_items */
    text_column title;      /* (n_items + 1); n = 0 if the source has no titles */
    /* (n_users): the user's first row, of the whole data, from a test file (held_out.h), its
     * end where there is none; NULL where no test file was joined. */
    const uint64_t *test_begin;
    uint64_t n_test_events; /* of n_events, from the test file */
    context_feature context[CONTEXT_MAX];
    int n_context;
    item_content content[ITEM_CONTENT_MAX];
    int n_content;
    const float *item_vector; /* (n_items + 1, item_vector_dim), zeros where unknown; or NULL */
    int32_t item_vector_dim;
    const char
        *meta_json; /* JSON: counts, and under "source" where the data came from; ends with NUL */
    uint64_t meta_bytes;
} seq_file;

/* `path` is a folder with data.seq in it, or such a file.  Checks everything (column_file.h). */
status seq_file_open(seq_file **out, const char *path, pool *p);
void seq_file_close(seq_file *s); /* NULL is fine */

/* ERR_IO if somebody wrote into the file since (column_file.h): for readers that take long. */
status seq_file_check_unchanged(const seq_file *s, pool *p);

static inline uint64_t seq_length(const seq_file *s, uint64_t user) {
    return s->offsets[user + 1] - s->offsets[user];
}

/* Whole seconds of a time in ticks, rounded down.  Ticks are powers of ten: a division by a
 * constant takes a tenth of the time of one by a variable, and servers do this for every event. */
static inline int64_t seq_seconds(int64_t time, int64_t per_second) {
    int64_t s = per_second == 1            ? time
                : per_second == 1000       ? time / 1000
                : per_second == 1000000    ? time / 1000000
                : per_second == 1000000000 ? time / 1000000000
                                           : time / per_second;
    return s - (s * per_second > time);
}

/* A user's first row in the whole data, without gaps; user n_users: the end. */
static inline uint64_t seq_whole_begin(const seq_file *s, uint64_t user) {
    return s->gaps != NULL ? s->gaps->offsets[user] : s->offsets[user];
}

/* Times of the whole data. */
static inline const int64_t *seq_whole_time(const seq_file *s) {
    return s->gaps != NULL ? s->gaps->time : s->time;
}

/* The row, in this view, of a row of the whole data; if that event is not in the view, the row of
 * the next one that is. */
static inline uint64_t seq_row(const seq_file *s, uint64_t whole) {
    if (s->gaps == NULL) return whole;
    uint64_t below = ((uint64_t)1 << whole % 64) - 1;
    return s->gaps->n_before[whole / 64] +
           (uint64_t)__builtin_popcountll(s->gaps->is_kept[whole / 64] & below);
}

/* The item's or user's id, or title, for display; valid until the next call with the same buf. */
status seq_item_name(const seq_file *s, uint32_t item, buf *out); /* the id as text */
status seq_user_name(const seq_file *s, uint64_t user, buf *out);
status seq_item_title(const seq_file *s, uint32_t item,
                      buf *out); /* the id where there is no title */
static inline bool seq_has_title(const seq_file *s, uint32_t item) {
    return item <= s->n_items && s->title.n > 0 &&
           s->title.offsets[item + 1] > s->title.offsets[item];
}

/* Whether a text is a whole number of 64 bits as it is written out: "7" is, "+7", "07" and "-0" are
 * not.  The one rule for ids: where ids are numbers, a text that is none is an unknown id; where
 * ids are texts, all of these differ. */
bool seq_id_number(const char *id, size_t n, int64_t *out);

/* The number of an id given as text; 0 for an unknown item, UINT64_MAX for an unknown user. */
uint32_t seq_find_item(const seq_file *s, const char *id);
uint32_t seq_find_item_number(const seq_file *s, int64_t id); /* unless has_text_items */
uint64_t seq_find_user(const seq_file *s, const char *id);

/* The rating an action stands for, as in the source (the inverse of action = 2 r - 1, for
 * instance). */
double seq_rating(const seq_file *s, uint16_t action);

/* The action of a rating; false if the data have none, or not this one. */
bool seq_find_rating(const seq_file *s, double rating, uint16_t *out);

/* Whether an action is in a set of bits; 0 is the set of all. */
static inline bool action_in(uint64_t set, uint16_t action) {
    return set == 0 || (action < 64 && set >> action & 1);
}

/* The set of actions of a text, "purchase,3": names of the map, or codes below 64; "": all.
 * ERR_USAGE names the one that the data do not have.  And back, in words. */
status seq_actions_parse(const seq_file *s, const char *text, uint64_t *set);
enum { SEQ_ACTIONS_BYTES = 256 };
const char *seq_actions_text(const seq_file *s, uint64_t set, char text[SEQ_ACTIONS_BYTES]);

/* The number of a feature's value; 0: there is no such value. */
uint32_t seq_find_value(const context_feature *f, const char *text, size_t n);

/* The action of a name of the map; false if there is none. */
bool seq_find_action(const seq_file *s, const char *name, size_t n, uint16_t *out);

/* The first name of a code, where it is short and plain enough to be part of other names. */
enum { SEQ_TASK_BYTES = 24 };
bool seq_action_name(const seq_file *s, uint16_t action, char name[SEQ_TASK_BYTES]);

/* ERR_CONFIG where a name has another code in `data` than in `known`, which says what numbers mean,
 * or a code another name.  Data without names fit all. */
status seq_check_action_names(const seq_file *known, const seq_file *data);

/* The name of a bit of ACTION_BITS: "click", "like", ...; NULL beyond the eight there are. */
const char *seq_signal_name(int bit);

/* Declares the columns of a content feature, which must live until column_writer_begin. */
status seq_content_add(column_writer *w, const item_content *f, uint64_t n_items);

/* What task k of a ranking model is called: "click" where actions are bits, "rating4" where a class
 * is a rating, the name of a code, else by its number: "task0", "class0". */
void seq_task_name(const seq_file *data, bool is_bits, int k, char name[SEQ_TASK_BYTES]);

/* Jagged offsets: sequence b is rows offsets[b] .. offsets[b + 1] - 1.  ERR_FORMAT names the first
 * bad one unless they start at 0, never decrease, and end at n_rows. */
status seq_check_offsets(const uint64_t *offsets, uint64_t n_sequences, uint64_t n_rows);

/* Writes a prepared data set as processed_seqs.csv: one user per row, JSON lists, RFC 4180 quotes.
 *
 * Columns: user_id, the item column's name, rating, unix_timestamp.  Ids are those of the source;
 * ratings are the stored actions, from 0 (the form the reference reads); times are in the data
 * set's ticks.  `hstu prep processed-seqs` reads the file back.  Appends to f, which the caller
 * commits. */
status emit_csv(const seq_file *s, const char *item_name, out_file *f);

/* Temporary data: a data set that is written, opened and deleted at once.  A mapped file stays
 * readable without its name, so nothing is left on disk, however the program ends.
 *
 * Writes folder/data.seq: */
typedef status (*temp_data_writer)(void *ctx, const char *folder, pool *p);

/* Opens what the writer writes to a folder under /tmp; seq_file_close closes it. */
status temp_data_open(seq_file **out, temp_data_writer write, void *ctx, pool *p);
