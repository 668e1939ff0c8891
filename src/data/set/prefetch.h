/* Prefetch: a ring of slots filled ahead of time by threads, taken in order by one consumer.
 *
 * Piece number i always goes to slot i modulo n_slots, and its content is a function of i alone, so
 * what the consumer sees does not depend on the timing or the number of threads.  The ring knows
 * nothing of the content: `fill` writes it into the caller's memory for that slot.  next, peek,
 * seek and destroy are for one thread, the consumer. */
#pragma once

#include "base/base.h"

enum { PREFETCH_MAX_SLOTS = 1024, PREFETCH_MAX_THREADS = 256 };

typedef struct prefetch prefetch;

/* Fills a slot with piece `number`; called from any of the threads, never twice at once for the
 * same slot, and never for the slot the consumer holds. */
typedef status (*prefetch_fill)(void *ctx, uint64_t number, int slot);

/* Starts the threads at piece `first`.  n_slots 2..PREFETCH_MAX_SLOTS; n_threads 0 fills on the
 * consumer's own thread, when it asks. */
status prefetch_create(prefetch **out, int n_slots, int n_threads, uint64_t first,
                       prefetch_fill fill, void *ctx);

/* Stops and joins the threads, whatever they are doing; NULL is fine. */
void prefetch_destroy(prefetch *p);

/* Waits for the next piece and returns its slot, which the consumer owns until the next call. If
 * filling it failed, that failure is returned, now and at every later call until a seek. */
status prefetch_next(prefetch *p, int *out_slot);

/* Waits for the next piece and returns its slot without taking it; the next call of prefetch_next
 * takes it. */
status prefetch_peek(prefetch *p, int *out_slot);

/* The number of the piece that prefetch_next will return next. */
uint64_t prefetch_position(const prefetch *p);

/* Drops the prefetched pieces and continues at piece `number`; releases the held slot. */
void prefetch_seek(prefetch *p, uint64_t number);
