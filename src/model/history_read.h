/* A history given by hand: text to events, for somebody who is not a user of the data.
 *
 *     12,99,7                                          ids, oldest first, parted by commas or lines
 *     [12, 99, "an id, with a comma"]                  the same as JSON
 *     [{"item": 12, "time": 1900000000, "action": 1}]  events: time in seconds since 1970, action
 * as the data stores it, or "rating" as the source has it
 *
 * Either all events have a time or none has; without times they are a minute apart, after the
 * newest event of the data.  The text is treated as hostile. */
#ifndef HSTU_MODEL_HISTORY_READ_H
#define HSTU_MODEL_HISTORY_READ_H

#include "model/histories.h"

typedef struct given_history {
    uint32_t *item;
    uint16_t *action;
    int64_t *time;
    size_t n, capacity[3];
    bool has_times;
} given_history;

/* Reads n bytes of text, NUL-terminated.  ERR_USAGE names the event that is wrong;
 * given_history_fini must follow in any case.  n_actions: actions are below it; 0: as the data's
 * kind says. */
status given_history_read(given_history *out, const seq_file *data, int32_t n_actions,
                          const char *text, size_t n);
void given_history_fini(given_history *g);

/* A view of it, as a user that the data does not have. */
user_events given_history_events(const given_history *g, const seq_file *data);

#endif
