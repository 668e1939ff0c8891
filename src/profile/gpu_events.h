/* Two CUDA events around what is recorded: the GPU's own measure of that time, to hold the records
 * against.  By the driver that the process already has; where there is none, nothing is measured.
 * One stretch at a time, one thread, whose context is the device's. */
#ifndef HSTU_PROFILE_GPU_EVENTS_H
#define HSTU_PROFILE_GPU_EVENTS_H

#include <stdint.h>

/* The device is idle at both. */
void gpu_events_begin(void);

/* The time since then in nanoseconds; 0: not known. */
uint64_t gpu_events_end(void);

#endif
