/* Histories: the events of users as a batch for inference.
 *
 * user_events is everything known of one user, whether a user of the data or one whose events were
 * given as text (given_history).  A model reads the newest events, its window; the rest still says
 * what the user has seen.  histories copies windows into a batch, followed by candidates where
 * there are any.  One thread at a time. */
#pragma once

#include "data/set/batcher.h"
#include "model/session.h"

/* A view: the events belong to the data, or to whoever made them. */
typedef struct user_events {
    uint64_t user; /* number in the data; n_users of the data: not one of its users */
    uint64_t n;
    const uint32_t *item;   /* (n), oldest first */
    const uint16_t *action; /* (n) */
    const int64_t *time;    /* (n), ticks of the data; NULL for a model that reads none */
    uint32_t context[CONTEXT_MAX];
} user_events;

/* A user of the data; with user = n_users, somebody of whom nothing is known. */
user_events user_events_of(const seq_file *data, uint64_t user);

typedef struct histories {
    batch view; /* the users added so far */
    int32_t max_users, max_history;
    int32_t max_events; /* of a user, candidates included */
    int64_t max_rows;   /* of all users */
} histories;

/* Memory for max_users users of the session's model. */
status histories_init(histories *h, const session *s, int32_t max_users);

/* The same for at most max_rows events and candidates in all, and max_targets candidates of a user:
 * for a pass with such limits. */
status histories_init_bounded(histories *h, const session *s, int32_t max_users,
                              int32_t max_targets, int64_t max_rows);
void histories_fini(histories *h);
void histories_clear(histories *h);

/* Adds a user: the newest events that fit, then the candidates.  Their actions are not known and
 * read as 0; their time is that of the newest event. */
status histories_add(histories *h, const user_events *u, const uint32_t *candidate,
                     int32_t n_candidates);

/* The same where the pass does not read the first n_skipped events (pass_n_skipped): their places
 * in the batch keep whatever is there. */
status histories_add_rest(histories *h, const user_events *u, uint64_t n_skipped,
                          const uint32_t *candidate, int32_t n_candidates);

/* The time of event i of a history without times, in seconds since 1970: a minute apart, in the
 * order given.  Commands, server and library all use it, so that one history has one score; a model
 * reads only the time between events. */
static inline int64_t untimed_seconds(uint64_t i) {
    return (int64_t)i * 60;
}

/* A history given as text, for somebody who is not a user of the data:
 *
 *     12,99,7                                          ids, oldest first, by commas or lines
 *     [12, 99, "an id, with a comma"]                  the same as JSON
 *     [{"item": 12, "time": 1900000000, "action": 1}]  events: time in seconds since 1970, action
 * as the data stores it, or "rating" as the source has it
 *
 * Either all events have a time or none has (untimed_seconds).  The text is treated as hostile. */

typedef struct given_history {
    uint32_t *item;
    uint16_t *action;
    int64_t *time;
    size_t n, capacity[3];
    bool has_times;
    bool is_list;      /* of ids */
    char unknown[256]; /* "a, b": ids that the data do not have, which are left out */
} given_history;

/* Reads n bytes of text, NUL-terminated.  ERR_USAGE names the event that is wrong;
 * given_history_fini must follow in any case.  n_actions: actions are below it; 0: as the data's
 * kind says; -1: it is a list of ids. */
status given_history_read(given_history *out, const seq_file *data, int32_t n_actions,
                          const char *text, size_t n);
void given_history_fini(given_history *g);

/* A view of it, as a user that the data does not have. */
user_events given_history_events(const given_history *g, const seq_file *data);
