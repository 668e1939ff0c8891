/* Ranges: what the program is doing, for whoever watches: "step", "layer 3", "save".
 *
 * Code marks its parts with range_begin and range_end; without a watcher that costs one test of a
 * pointer.  A profiler (src/profile) sets a watcher, which is called on the thread that marks, so
 * ranges of one thread nest.  Names are literals: they are kept by pointer. */
#ifndef HSTU_BASE_RANGE_H
#define HSTU_BASE_RANGE_H

#include <stdint.h>

enum { RANGE_NO_NUMBER = -1 };

typedef struct range_watcher {
    void (*begin)(const char *name, int64_t number); /* number: RANGE_NO_NUMBER, or of a layer */
    void (*end)(void);
    void (*memory)(const void *at, uint64_t bytes); /* of the backend: a block; 0: it is gone */
    void (*step)(void); /* a step of training, or a batch of other work, has ended */
} range_watcher;

/* NULL: nobody watches.  The watcher must outlive what it watches. */
void range_watch(const range_watcher *w);

void range_begin(const char *name, int64_t number);
void range_end(void);
void range_step(void);
void range_memory(const void *at, uint64_t bytes);

#endif
