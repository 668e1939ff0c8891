/* The backend that a user names: the CPU, a GPU, or the best there is. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "ops/device.h"
#include "ops/ops.h"

enum { MAX_DEVICES = 64 };

/* "NVIDIA H200" is an H200 to its users. */
static const char *short_name(const device_info *d) {
    return strncmp(d->name, "NVIDIA ", 7) == 0 ? d->name + 7 : d->name;
}

static status open_gpu(backend **out, const device_info *d, int index, bool is_deterministic) {
    cuda_options o = {.device = index, .is_deterministic = is_deterministic};
    if (d->sm < DEVICE_MIN_SM)
        return fail(
            ERR_DEVICE,
            "[GPU Check] Detected %s GPU (SM %d.%d): SM 8.0 or newer is needed (A100, H100, "
            "...); use --device cpu",
            short_name(d), d->sm / 10, d->sm % 10);
    TRY(backend_create_cuda(out, &o));
    log_info("[GPU Check] Detected %s GPU (SM %d.%d) - OK", short_name(d), d->sm / 10, d->sm % 10);
    return OK;
}

/* cuda or cuda:N. */
static status open_named_gpu(backend **out, const char *name, bool is_deterministic) {
    device_info device[MAX_DEVICES];
    device_driver driver;
    int n, index = 0;
    char end;
    if (strcmp(name, "cuda") != 0 &&
        (sscanf(name, "cuda:%d%c", &index, &end) != 1 || index < 0 || name[5] == '+'))
        return fail(ERR_USAGE, "the devices are auto, cpu, cuda and cuda:N");
    TRY(device_list(device, MAX_DEVICES, &n));
    device_driver_ask(&driver);
    if (n == 0)
        return fail(ERR_DEVICE, "there is no GPU to use (%s); use --device cpu", driver.reason);
    if (index >= n)
        return fail(ERR_DEVICE,
                    "this machine has %d GPU%s, cuda:0%s; use one that is there, or "
                    "use --device cpu",
                    n, n == 1 ? "" : "s", n == 1 ? " alone" : " and on");
    return open_gpu(out, &device[index], index, is_deterministic);
}

/* The first usable GPU; else the CPU, and why. */
static status open_any(backend **out, pool *workers, bool is_deterministic) {
    device_info device[MAX_DEVICES];
    device_driver driver;
    int n;
    TRY(device_list(device, MAX_DEVICES, &n));
    for (int i = 0; i < n; i++)
        if (device[i].sm >= DEVICE_MIN_SM) return open_gpu(out, &device[i], i, is_deterministic);
    device_driver_ask(&driver);
    if (driver.runtime_version != 0) /* else the build is without CUDA: nothing was looked for */
        log_info("[GPU Check] no GPU to use (%s); computing on the CPU",
                 n > 0 ? "those there are older than SM 8.0" : driver.reason);
    return backend_create_cpu(out, workers);
}

status backend_open(backend **out, pool *workers, const char *device, bool is_deterministic) {
    *out = NULL;
    if (strcmp(device, "cpu") == 0) return backend_create_cpu(out, workers);
    if (strcmp(device, "auto") == 0) return open_any(out, workers, is_deterministic);
    return open_named_gpu(out, device, is_deterministic);
}
