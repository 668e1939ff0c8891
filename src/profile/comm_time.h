/* How long a GPU talked to others, and how much of that other work hid.
 *
 * Communication is what kernels of NCCL do, the waiting for ranks that are late included.  It is
 * hidden while the GPU runs anything else; the rest is exposed: the step is so much longer. */
#ifndef HSTU_PROFILE_COMM_TIME_H
#define HSTU_PROFILE_COMM_TIME_H

#include "profile/recorder.h"

typedef struct comm_time {
    uint64_t n;         /* kernels of NCCL */
    uint64_t all_ns;    /* at least one of them ran */
    uint64_t hidden_ns; /* ... beside another kernel, a copy or a memset */
} comm_time;

/* All zero where the recorder has nothing of NCCL. */
status comm_time_find(comm_time *out, const recorder *r);

#endif
