/* The GPUs of this machine, as far as this build can see them.
 *
 * Implemented by src/cuda/core/backend.cu, or by src/ops/backend.c in a build without CUDA, where
 * there are none.  A machine without a GPU or without a driver is not a failure: it has no devices,
 * and device_driver says why.  Any thread may call. */
#pragma once

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The oldest GPU our kernels run on, in the form of device_info: A100. */
enum { DEVICE_MIN_SM = 80 };

typedef struct device_info {
    char name[128];
    int sm;                /* compute capability times ten: 90 is SM 9.0 */
    int n_multiprocessors; /* SMs */
    uint64_t memory_bytes;
    uint64_t free_bytes;
} device_info;

/* Versions as CUDA writes them: 13000 is 13.0; 0 where there is none. */
typedef struct device_driver {
    int runtime_version; /* of the toolkit this was built with */
    int driver_version;  /* the newest CUDA the installed driver can run */
    char reason[256];    /* why there are no devices; "" if there are */
} device_driver;

/* Fills out[0..*n-1], at most max of them.  Fails only if an existing device cannot be queried. */
status device_list(device_info *out, int max, int *n);

void device_driver_ask(device_driver *out);

/* Makes the backend that a name stands for: "cpu", "cuda", "cuda:N", or "auto", the first usable
 * GPU and else the CPU.  The pool must outlive it. */
struct backend;
struct pool;
status backend_open(struct backend **out, struct pool *workers, const char *device,
                    bool is_deterministic);

#ifdef __cplusplus
}
#endif
