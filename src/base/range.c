#include <stdatomic.h>
#include <stddef.h>

#include "base/range.h"

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

static _Thread_local _Atomic uint64_t *shared;

void waits_share(void *word) {
    shared = word;
}

/* The number of changes, and what is waited for now. */
static wait_kind change(wait_kind to) {
    if (shared == NULL) return WAIT_NONE;
    uint64_t word = atomic_load_explicit(shared, memory_order_relaxed);
    uint64_t next = (word / WAIT_KINDS + 1) * WAIT_KINDS + (uint64_t)to;
    atomic_store_explicit(shared, next, memory_order_relaxed);
    return waits_kind(word);
}

wait_kind waits_begin(wait_kind kind) {
    return change(kind);
}

void waits_end(wait_kind before) {
    (void)change(before);
}

uint64_t waits_read(const void *word) {
    return atomic_load_explicit((_Atomic uint64_t *)(uintptr_t)word, memory_order_relaxed);
}

wait_kind waits_kind(uint64_t word) {
    return (wait_kind)(word % WAIT_KINDS);
}

const char *waits_name(wait_kind kind) {
    static const char *const names[WAIT_KINDS] = {"nothing", "the GPU", "NCCL", "other ranks"};
    return names[kind];
}
