/* Users: the histories of all users, in host memory.
 *
 * A user of the data whose history never changed is read from the data where it is; the first
 * change copies its events.  Events are kept in order of time, those of equal times in the order in
 * which they came.  Items are numbered as in the data; an id that the data does not have gets the
 * next number, so that no event is lost because a model does not know its item (yet): which model
 * knows which number is the business of served.h.
 *
 * An event counts once: one whose id the user has already, or that is an event of the data, by
 * item, time and action, is a duplicate.  So a server can start with newer data that has events of
 * its own state in it.
 *
 * A change has two steps, so that it can be made durable between them: it is prepared, which may
 * fail and shows nothing yet, and then applied, which cannot fail, or reverted.
 *
 * Times are ticks of the data; without data, nanoseconds.  One thread at a time: the engine has a
 * lock around it. */
#pragma once

#include "base/map.h"
#include "serve/engine/engine.h"

/* An id as text that ends with NUL. */
typedef struct id_text {
    size_t n;
    char text[ENGINE_ID_BYTES + 1];
} id_text;

/* The i-th id of a file: of its texts, or of its numbers where it has none. */
static inline engine_id id_at(bool has_text, const text_column *text, const int64_t *number,
                              uint64_t i) {
    if (!has_text) return (engine_id){.number = number[i]};
    return (engine_id){.text = text->bytes + text->offsets[i],
                       .n = (size_t)(text->offsets[i + 1] - text->offsets[i])};
}

/* The digits of a number, with a NUL; returns their count. */
enum { ID_DIGITS = 24 };
size_t id_digits(char out[ID_DIGITS], int64_t number);

/* ERR_USAGE where an id is empty, too long or has a NUL in it; what: "the user", for the reason. */
status id_text_make(id_text *out, const engine_id *id, const char *what);

typedef struct stored_event {
    int64_t time;  /* ticks */
    uint32_t item; /* number, see users_item_name */
    uint32_t id;   /* of the event: number + 1 in the user's ids; 0: none */
    uint16_t action;
    bool is_added;  /* not of the data */
    bool is_stored; /* of the data, and in the database, too */
} stored_event;

typedef struct user_state {
    int64_t row;        /* of the database (state.h); 0: none */
    uint64_t data_user; /* number in the data; n_users: not one of its users */
    uint64_t version;   /* changes so far */
    bool is_erased;     /* the events of the data no longer count */
    size_t n, capacity;
    size_t n_prepared; /* events of changes that are not applied yet */
    uint32_t n_ids;    /* of `ids`: those of events that are applied */
    stored_event *events;
    text_map ids;
} user_state;

typedef struct users {
    const seq_file *data; /* or NULL */
    uint64_t n_data_users, n_data_items;
    int64_t ticks; /* of a second */
    uint64_t max_events;
    uint64_t seed;
    text_map names; /* of the users below */
    user_state **state;
    size_t state_capacity;
    text_map items;   /* items that the data does not have: number n_data_items + 1 + index */
    uint32_t *counts; /* events of each item number, of all users */
    size_t counts_capacity, n_counts;
    uint64_t n_added, n_duplicates; /* of changes that were applied */
    uint64_t n_changes;             /* of all users */
    uint64_t n_known; /* users of the data that are not erased, and others with events */
    size_t n_prepared, prepared_item_bytes; /* of events, of all users */
} users;

/* data may be NULL, and must outlive it. */
status users_init(users *u, const seq_file *data, uint64_t max_events);
void users_fini(users *u); /* a failed init too */

/* The events of a user; valid until the next change. */
typedef struct user_history {
    const seq_file *data;
    uint64_t data_user, begin, version;
    const stored_event *own; /* NULL: rows begin .. begin + n - 1 of the data */
    size_t n;
    bool is_known; /* in the data and not erased, or has had events */
} user_history;
user_history users_history(const users *u, const id_text *user);

static inline stored_event user_history_at(const user_history *h, size_t i) {
    if (h->own != NULL) return h->own[i];
    uint64_t row = h->begin + i;
    return (stored_event){
        .time = h->data->time[row], .item = h->data->item[row], .action = h->data->action[row]};
}

/* Ticks of an event's time, and back; without a time, `now`.  ERR_USAGE where they do not fit 64
 * bits. */
status users_ticks(const users *u, const engine_event *e, int64_t now, int64_t *out);
int64_t users_now(const users *u);
void users_time(const users *u, int64_t ticks, int64_t *seconds, uint32_t *ns);

/* An event on its way in. */
typedef struct incoming_event {
    stored_event event;
    const engine_id *given; /* of the item */
    engine_id item, id;     /* as texts that end with NUL, in memory of the change; n 0: none */
    size_t order;
    bool is_duplicate;
} incoming_event;

/* A change of one user that is prepared. */
typedef struct user_change {
    user_state *user;
    uint32_t name;      /* of the user: number in users.names */
    incoming_event *in; /* (n), in the order given; NULL: an erasure */
    size_t n, n_new;
    uint32_t n_ids_before, n_ids; /* of the user, and those that are new */
    bool made_user;               /* it is the user's first */
    bool existed;                 /* erasure: there was something to erase */
    bool made_row;                /* the caller's: it gave the user its row */
} user_change;

/* The events must stay until the change is applied or reverted.  What was prepared first is applied
 * first, or reverted last.  Counts of unknown items are the caller's. */
status users_prepare_add(users *u, const id_text *user, const engine_event *events, size_t n,
                         user_change *out);
/* While no other change of the user is prepared. */
status users_prepare_erase(users *u, const id_text *user, user_change *out);
void users_apply(users *u, user_change *c, engine_added *out); /* out: NULL for an erasure */
void users_revert(users *u, user_change *c);

/* Whether n more events fit the history of a user. */
status users_have_room(const users *u, const id_text *user, size_t n);
/* Whether an event would be a duplicate now. */
status users_has_event(const users *u, const id_text *user, const engine_event *e, bool *out);

/* Restores what a database has, before anything is prepared: a user, and its events in the order in
 * which they were added.  *is_known: an event that is in the data, too, and is left out. */
status users_restore_user(users *u, const char *name, size_t n, int64_t row, user_state **out);
status users_restore_event(users *u, user_state *s, const engine_event *e, bool *is_known);
/* The id of a user of the data, also as text; and that it was erased. */
status users_data_name(const users *u, uint64_t data_user, engine_id *id, id_text *out);
status users_restore_erased(users *u, uint64_t data_user);

/* Gives `u`, which has other data, what the users of `from` added, counted once where it is in that
 * data, too, their event ids, and who was erased.  While no change is prepared. */
status users_take(users *u, const users *from);

/* The id of an item number. */
engine_id users_item_id(const users *u, uint32_t item);

/* Items that have a number: 1 .. n. */
static inline uint32_t users_n_items(const users *u) {
    return (uint32_t)u->n_data_items + u->items.n;
}
