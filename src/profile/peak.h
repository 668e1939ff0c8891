/* The peak of a backend: how fast it multiplies large matrices, which is what the speed of a model
 * is held against.  Measured, through the backend's own linear op, in the type of its activations:
 * so it is what this machine does today, not what a data sheet says. */
#ifndef HSTU_PROFILE_PEAK_H
#define HSTU_PROFILE_PEAK_H

#include "base/status.h"
#include "ops/ops.h"

/* *out = FLOP a second, the median of several products of random numbers.  On a GPU it takes about
 * 1.4 GB of its memory for the while. */
status peak_measure(backend *be, double *out);

#endif
