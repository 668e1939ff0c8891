/* CUPTI's activity records, one at a time, in our own words: what the GPU ran, and which call of
 * CUDA asked for it.
 *
 * The library is opened at the first start and never before; where it is missing or refuses, that
 * is no failure: cupti_start returns false and cupti_reason says why.  Records come in any order,
 * on a thread of CUPTI's own, under a lock; times are those of clock_ns.  One user at a time in a
 * process. */
#ifndef HSTU_PROFILE_CUPTI_H
#define HSTU_PROFILE_CUPTI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "profile/recorder.h"

enum { CUPTI_REASON_BYTES = 256 };

typedef enum {
    GPU_KERNEL,
    GPU_MEMSET,
    GPU_COPY_ON_DEVICE,
    GPU_COPY_IN,
    GPU_COPY_OUT,
    GPU_CALL,  /* of CUDA's runtime or driver, on the host */
    GPU_LINK,  /* what was launched under `correlation` belongs to the mark `mark` */
    GPU_DEVICE /* what a GPU is: no time */
} gpu_record_kind;

typedef struct gpu_record {
    gpu_record_kind kind;
    uint64_t start_ns, end_ns;
    const char *name; /* of a kernel, mangled; of a call; else NULL */
    uint64_t bytes;   /* of a copy or a memset */
    uint32_t correlation, device, stream, thread;
    uint64_t mark;
    span_launch launch;   /* of a kernel */
    const gpu_facts *gpu; /* of GPU_DEVICE; else NULL */
} gpu_record;

typedef struct cupti_sink {
    void *ctx;
    void (*begin)(void *ctx); /* before the first record: forget what was before; or NULL */
    status (*add)(void *ctx, const gpu_record *r);
} cupti_sink;

/* Starts to hand records to the sink; with_calls: calls and links too, which cost more.  Records of
 * the time before are dropped. */
bool cupti_start(const cupti_sink *sink, bool with_calls);

/* Hands over what CUPTI has so far; the device must be idle.  Returns whether it could. */
bool cupti_flush(void);

/* Hands over what is complete, whatever the device does. */
void cupti_flush_complete(void);

/* Between start and stop: CUPTI stops to record, and with it to cost time; or goes on. */
bool cupti_set_on(bool is_on);

/* The same, and ends.  *n_lost: records that CUPTI dropped.  A status that the sink returned is
 * returned here. */
status cupti_stop(bool *is_complete, uint64_t *n_lost);

/* Why the last of these failed; "" where nothing did. */
const char *cupti_reason(void);

/* What the calling thread launches from here to cupti_mark_end belongs to this mark. */
void cupti_mark_begin(int64_t mark);
void cupti_mark_end(void);

#endif
