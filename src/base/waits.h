/* What this rank waits for, written where the watchdog of its job sees it: one rank that waits is
 * nothing, all of them waiting and none going on is a job that will never end.
 *
 * Only the thread that called waits_share is watched.  Waits may be nested: the inner one counts.
 */
#ifndef HSTU_BASE_WAITS_H
#define HSTU_BASE_WAITS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
