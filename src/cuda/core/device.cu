/* The GPUs of this machine (contract: ops/device.h). */
#include <stdio.h>
#include <string.h>

#include "cuda/core/cuda.h"
#include "ops/device.h"

/* The number of usable devices; 0 with the reason where the driver is missing, too old, broken,
 * or sees none. cudaGetLastError clears the error, so that later calls start clean. */
static int count_devices(const char **out_reason) {
    int n = 0, driver = 0;
    *out_reason = "";
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess && n > 0) return n;
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    *out_reason = driver == 0            ? "no NVIDIA driver is loaded"
                  : error == cudaSuccess ? "the driver sees no GPU"
                                         : cudaGetErrorString(error);
    return 0;
}

extern "C" void device_driver_ask(device_driver *out) {
    const char *reason;
    memset(out, 0, sizeof *out);
    count_devices(&reason);
    snprintf(out->reason, sizeof out->reason, "%s", reason);
    if (cudaRuntimeGetVersion(&out->runtime_version) != cudaSuccess)
        out->runtime_version = CUDART_VERSION;
    if (cudaDriverGetVersion(&out->driver_version) != cudaSuccess) out->driver_version = 0;
}

static status describe(int device, device_info *out) {
    cudaDeviceProp properties;
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_TRY(cudaGetDeviceProperties(&properties, device));
    CUDA_TRY(cudaSetDevice(device));
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
    snprintf(out->name, sizeof out->name, "%.127s", properties.name);
    out->sm = properties.major * 10 + properties.minor;
    out->n_multiprocessors = properties.multiProcessorCount;
    out->memory_bytes = total_bytes;
    out->free_bytes = free_bytes;
    return OK;
}

extern "C" status device_list(device_info *out, int max, int *n) {
    const char *reason;
    int n_devices = count_devices(&reason), before = 0;
    *n = 0;
    if (n_devices == 0) return OK;
    CUDA_TRY(cudaGetDevice(&before));
    for (int i = 0; i < n_devices && i < max; i++) {
        TRY(describe(i, &out[i]));
        *n = i + 1;
    }
    CUDA_TRY(cudaSetDevice(before));
    return OK;
}
