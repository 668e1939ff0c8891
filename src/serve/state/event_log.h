/* Event log: how versions before 0.1 kept users' events, read so that they can be imported.
 *
 * events.log is a header and groups of records, each group with its length, its own offset and a
 * checksum.  A group that was committed is whole; behind damage reading goes on at the next whole
 * one. */
#ifndef HSTU_SERVE_STATE_EVENT_LOG_H
#define HSTU_SERVE_STATE_EVENT_LOG_H

#include "serve/state/state.h"

/* A record: an event of a user, or that the user was erased. */
typedef struct log_record {
    const char *user;
    size_t n_user;
    bool is_erasure;
    state_event event; /* its user is not set */
} log_record;

typedef struct log_counts {
    uint64_t n_events, n_erasures;
    uint64_t n_damaged; /* bytes that belong to no whole group */
    uint64_t damaged;   /* offset of the first one */
} log_counts;

typedef status (*log_record_fn)(void *ctx, const log_record *r);

/* Calls fn for the records of a log in memory, in order.  ERR_FORMAT: it is no such log. */
status event_log_read(const char *name, const unsigned char *bytes, size_t n, log_record_fn fn,
                      void *ctx, log_counts *out);

/* Makes the database of a folder from its events.log, which then is called events.log.imported.
 * Where the log is damaged nothing is changed unless `recovers`: then what is whole is imported. */
status event_log_import(const char *folder, bool recovers, log_counts *out);

#endif
