#include "serve/waiter.h"

#include <sched.h>

#include "base/clock.h"
#include "base/thread.h"

enum { WAITS, SLEEPS, IS_DONE };

/* How long a waiter looks out for its batch to begin, and how often anybody looks before it asks
 * for the time and lets others go first: the system may have put the worker on this core. */
enum { BEGIN_NS = 500000, LOOKS = 32 };

static bool has_time(uint64_t until) {
    sched_yield();
    return clock_ns() < until;
}

void waiter_init(waiter *w) {
    atomic_init(&w->state, WAITS);
}

void waiter_wake(void *ctx, engine_answer *out) {
    waiter *w = ctx;
    (void)out;
    if (atomic_exchange(&w->state, IS_DONE) == SLEEPS) thread_wake(&w->state);
}

static bool is_done(waiter *w) {
    return atomic_load_explicit(&w->state, memory_order_acquire) == IS_DONE;
}

/* Until the time `until`, 0: without a limit; may return early. */
static void sleep_until(waiter *w, uint64_t until) {
    unsigned waits = WAITS, sleeps = SLEEPS;
    if (!atomic_compare_exchange_strong(&w->state, &waits, SLEEPS)) return; /* it is done */
    thread_sleep_while(&w->state, SLEEPS, until);
    atomic_compare_exchange_strong(&w->state, &sleeps, WAITS);
}

/* Until the time `until`, or until a batch with the job begins. */
static uint64_t look_for_begin(waiter *w, const job *j, uint64_t until) {
    uint64_t due = 0;
    do
        for (int i = 0; i < LOOKS && due == 0 && !is_done(w); i++) {
            thread_pause();
            due = atomic_load(&j->due_ns);
        }
    while (due == 0 && !is_done(w) && has_time(until));
    return due;
}

static void look_for_end(waiter *w, uint64_t until) {
    do
        for (int i = 0; i < LOOKS && !is_done(w); i++)
            thread_pause();
    while (!is_done(w) && has_time(until));
}

void waiter_wait(waiter *w, slot *s, job *j) {
    if (j != NULL && slot_look_begin(s, j)) {
        uint64_t due = look_for_begin(w, j, clock_ns() + BEGIN_NS);
        while (!is_done(w) && clock_ns() < due)
            sleep_until(w, due);
        if (due > 0 && !is_done(w)) {
            job_rehearse(j);
            look_for_end(w, j->look_ns);
        }
        slot_look_end(s);
    }
    while (!is_done(w))
        sleep_until(w, 0);
}
