/* The measured peaks of a target, with which the rates of kernels are compared: bytes a second of a
 * large copy (bytes read plus bytes written), and FLOP a second of a large product of its backend
 * (profile/peak.h). */
#ifndef HSTU_TUNE_TARGET_PEAK_H
#define HSTU_TUNE_TARGET_PEAK_H

#include "tune/target.h"

typedef struct target_peak {
    double bytes_per_s, flop_per_s; /* 0: not measured, without a backend */
} target_peak;

/* Needs about 1.4 GB of device memory on a GPU. */
status target_peak_measure(target *t, target_peak *out);

#endif
