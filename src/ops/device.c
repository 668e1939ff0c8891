#include "ops/device.h"

/* A build without CUDA: no devices, and the reason.  With CUDA these functions are in
 * src/cuda/core/backend.cu. */
#ifndef HSTU_HAS_CUDA

#include <stdio.h>

status device_list(device_info *out, int max, int *n) {
    (void)out;
    (void)max;
    *n = 0;
    return OK;
}

void device_driver_ask(device_driver *out) {
    *out = (device_driver){0};
    snprintf(out->reason, sizeof out->reason, "this build is without CUDA");
}

#else

typedef int device_is_elsewhere; /* C wants a declaration in every file. */

#endif
