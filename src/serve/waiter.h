/* Waiter: a caller that waits for the answer of its request.
 *
 * It looks out for the batch to begin, sleeps while that is computed, and looks out again for its
 * end, shortly before it is due: a thread that sleeps takes 20 to 50 us to wake, and eight of them
 * twice as long.  Where cores are few, or the batch waits for others, it sleeps.  The waiter may go
 * as soon as it knows that it is done: whoever wakes it then looks at its address alone. */
#ifndef HSTU_SERVE_WAITER_H
#define HSTU_SERVE_WAITER_H

#include "serve/slot.h"

typedef struct waiter {
    atomic_uint state;
} waiter;

void waiter_init(waiter *w);

/* An engine_done; ctx is the waiter. */
void waiter_wake(void *ctx, engine_answer *out);

/* Returns when it was woken.  The job is one that the caller awaits, in a queue of the slot, with
 * its candidates named; NULL: it has been answered, or soon will be. */
void waiter_wait(waiter *w, slot *s, job *j);

#endif
