/* Which memory of the backend lives when, and whose it is.
 *
 * A block belongs to the range that was open when it was allocated ("weights", "activations").  At
 * each new peak the share of every owner is kept, so that the largest peak can be explained.  Any
 * thread may add; the rest is for a log that nobody adds to any more. */
#pragma once

#include "base/map.h"
#include "profile/tables.h"

enum { MEMORY_MAX_OWNERS = 64, MEMORY_MAX_EVENTS = 1 << 20 };

typedef struct memory_owner {
    char name[64];
    uint64_t live, at_peak, largest; /* bytes: now, at the peak of all, its own peak */
    uint64_t n_blocks;               /* allocated, in all */
} memory_owner;

/* After a block came or went. */
typedef struct memory_event {
    uint64_t ns, live;
} memory_event;

typedef struct memory_log {
    pthread_mutex_t lock;
    map addresses;              /* of the blocks that live */
    struct memory_block *block; /* (addresses.n) */
    size_t block_capacity;
    memory_owner owners[MEMORY_MAX_OWNERS]; /* the last one takes the rest */
    int n_owners;
    memory_event *events;
    size_t n_events, capacity;
    uint64_t live, peak;
} memory_log;

void memory_log_init(memory_log *log);
void memory_log_fini(memory_log *log);

/* Without memory of its own the log loses a block, and says nothing. */
void memory_log_add(memory_log *log, const void *at, uint64_t bytes, const char *owner);
uint64_t memory_log_remove(memory_log *log, const void *at); /* how many bytes; 0: not known */

/* Owner, bytes at the peak, its own peak, what is still there, blocks.  The log must outlive it. */
status memory_log_table(const memory_log *log, profile_table *out);
