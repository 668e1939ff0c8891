/* The peak of a backend: how fast it multiplies large matrices, with which the speed of a model is
 * compared.  It is measured through the backend's own linear op in its activation type: the peak of
 * this machine, not that of a data sheet. */
#pragma once

#include "ops/ops.h"

/* *out = FLOP a second, the median of several products of random numbers.  On a GPU it needs about
 * 1.4 GB of device memory. */
status peak_measure(backend *be, double *out);

/* *out = bytes a second of its memory, read and written, by the backend's own copy: 512 MB on a
 * GPU, 64 MB on a CPU. */
status peak_measure_bytes(backend *be, double *out);
