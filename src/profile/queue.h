/* Queue of the GPU: how much of what the host has asked for has not begun yet, over time. */
#ifndef HSTU_PROFILE_QUEUE_H
#define HSTU_PROFILE_QUEUE_H

#include "profile/recorder.h"

typedef struct queue_point {
    uint64_t ns;
    int64_t waiting; /* kernels, copies and memsets, from here on */
} queue_point;

/* A point for each time at which the number changes, in order; none where no call is known that
 * asked for something.  *out is to be freed by mem_free. */
status queue_find(const recorder *r, queue_point **out, size_t *out_n);

#endif
