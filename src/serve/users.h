/* Users: the histories of all users, in host memory.
 *
 * A user of the data whose history never changed is read from the data where it is; the first
 * change copies its events.  Events are kept in order of time, those of equal times in the order in
 * which they came.  Items are numbered as in the data; an id that the data does not have gets the
 * next number, so that no event is lost because a model does not know its item (yet): which model
 * knows which number is the business of served.h.  An event that carries an id is added once.
 *
 * Times are ticks of the data; without data, nanoseconds.  One thread at a time: the engine has a
 * lock around it. */
#ifndef HSTU_SERVE_USERS_H
#define HSTU_SERVE_USERS_H

#include "serve/engine.h"
#include "serve/text_map.h"

/* An id as text that ends with NUL. */
typedef struct id_text {
    size_t n;
    char text[ENGINE_ID_BYTES + 1];
} id_text;

/* ERR_USAGE where an id is empty, too long or has a NUL in it; what: "the user", for the reason. */
status id_text_make(id_text *out, const engine_id *id, const char *what);

typedef struct stored_event {
    int64_t time;  /* ticks */
    uint32_t item; /* number, see users_item_name */
    uint32_t id;   /* of the event: number + 1 in the user's ids; 0: none */
    uint16_t action;
    bool is_added; /* not of the data */
} stored_event;

typedef struct user_state {
    uint64_t data_user; /* number in the data; n_users: not one of its users */
    uint64_t version;   /* changes so far */
    bool is_erased;     /* the events of the data do not count any more */
    size_t n, capacity;
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
    uint64_t n_changes; /* of all users */
    uint64_t n_touched; /* users that had one */
    uint64_t n_known;   /* users of the data that are not erased, and others with events */
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

/* Adds events, all of them or none: written to the journal (NULL: none) before anything changes.
 * Counts of unknown items are the caller's. */
status users_add(users *u, const id_text *user, const engine_event *events, size_t n,
                 const engine_journal *journal, uint64_t *ticket, engine_added *out);
status users_erase(users *u, const id_text *user, const engine_journal *journal, uint64_t *ticket,
                   bool *existed);

/* Calls fn with records that lead from the data to the present state. */
status users_visit(const users *u, engine_record_fn fn, void *ctx);

/* The id of an item number. */
engine_id users_item_id(const users *u, uint32_t item);

/* Items that have a number: 1 .. n. */
static inline uint32_t users_n_items(const users *u) {
    return (uint32_t)u->n_data_items + u->items.n;
}

#endif
