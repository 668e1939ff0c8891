#include "base/range.h"

#include <stdatomic.h>
#include <stddef.h>

static _Atomic(const range_watcher *) watcher;

void range_watch(const range_watcher *w) {
    atomic_store(&watcher, w);
}

void range_begin(const char *name, int64_t number) {
    const range_watcher *w = atomic_load_explicit(&watcher, memory_order_relaxed);
    if (w != NULL) w->begin(name, number);
}

void range_end(void) {
    const range_watcher *w = atomic_load_explicit(&watcher, memory_order_relaxed);
    if (w != NULL) w->end();
}

void range_memory(const void *at, uint64_t bytes) {
    const range_watcher *w = atomic_load_explicit(&watcher, memory_order_relaxed);
    if (w != NULL && w->memory != NULL) w->memory(at, bytes);
}

void range_step(void) {
    const range_watcher *w = atomic_load_explicit(&watcher, memory_order_relaxed);
    if (w != NULL) w->step();
}
