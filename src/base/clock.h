/* The clock: monotonic nanoseconds, for rates and times of runs. */
#ifndef HSTU_BASE_CLOCK_H
#define HSTU_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_ns(void);

#endif
