/* What the program is doing, for whoever watches: ranges ("step", "layer 3", "save") for profilers,
 * waits for the watchdog of a job.
 *
 * Code marks its parts with range_begin and range_end; without a watcher that costs one test of a
 * pointer.  A profiler (src/profile) sets a watcher, which is called on the thread that marks, so
 * ranges of one thread nest.  Names are literals: they are kept by pointer. */
#pragma once

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

/* What this rank waits for, written where the watchdog of its job reads it: if all ranks wait and
 * none makes progress, the job will never end.  Only the thread that called waits_share is watched.
 * Waits may be nested: the inner one counts. */
typedef enum { WAIT_NONE, WAIT_GPU, WAIT_NCCL, WAIT_RANKS, WAIT_KINDS } wait_kind;

/* From now on this thread's waits can be read at `word`; NULL: nowhere. */
void waits_share(void *word);

/* Begins a wait, and returns what was waited for before: for waits_end. */
wait_kind waits_begin(wait_kind kind);
void waits_end(wait_kind before);

/* What a word says: it changes with every wait that begins or ends. */
uint64_t waits_read(const void *word);
wait_kind waits_kind(uint64_t word);

/* "the GPU", for messages. */
const char *waits_name(wait_kind kind);
