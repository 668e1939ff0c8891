#include "cli/work.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/log.h"
#include "ops/device.h"
#include "profile/profiler.h"

enum { MAX_DEVICES = 64 };

/* "NVIDIA H200" is an H200 to its users. */
static const char *short_name(const device_info *d) {
    return strncmp(d->name, "NVIDIA ", 7) == 0 ? d->name + 7 : d->name;
}

static status open_gpu(work *w, const device_info *d, int index, bool is_deterministic) {
    cuda_options o = {.device = index, .is_deterministic = is_deterministic};
    if (d->sm < DEVICE_MIN_SM)
        return fail(
            ERR_DEVICE,
            "[GPU Check] Detected %s GPU (SM %d.%d): SM 8.0 or newer is needed (A100, H100, "
            "...); use --device cpu",
            short_name(d), d->sm / 10, d->sm % 10);
    TRY(backend_create_cuda(&w->be, &o));
    log_info("[GPU Check] Detected %s GPU (SM %d.%d) - OK", short_name(d), d->sm / 10, d->sm % 10);
    return OK;
}

/* cuda or cuda:N. */
static status open_named_gpu(work *w, const char *name, bool is_deterministic) {
    device_info device[MAX_DEVICES];
    device_driver driver;
    int n, index = 0;
    char end;
    if (strcmp(name, "cuda") != 0 &&
        (sscanf(name, "cuda:%d%c", &index, &end) != 1 || index < 0 || name[5] == '+'))
        return fail(ERR_USAGE, "--device %.40s: the devices are auto, cpu, cuda and cuda:N", name);
    TRY(device_list(device, MAX_DEVICES, &n));
    device_driver_ask(&driver);
    if (n == 0)
        return fail(ERR_DEVICE, "--device %s: there is no GPU to use (%s); use --device cpu", name,
                    driver.reason);
    if (index >= n)
        return fail(ERR_DEVICE,
                    "--device %s: this machine has %d GPU%s, cuda:0%s; use one that is there, or "
                    "use --device cpu",
                    name, n, n == 1 ? "" : "s", n == 1 ? " alone" : " and on");
    return open_gpu(w, &device[index], index, is_deterministic);
}

/* The first usable GPU; else the CPU, and why. */
static status open_any(work *w, bool is_deterministic) {
    device_info device[MAX_DEVICES];
    device_driver driver;
    int n;
    TRY(device_list(device, MAX_DEVICES, &n));
    for (int i = 0; i < n; i++)
        if (device[i].sm >= DEVICE_MIN_SM) return open_gpu(w, &device[i], i, is_deterministic);
    device_driver_ask(&driver);
    if (driver.runtime_version != 0) /* else the build is without CUDA: nothing was looked for */
        log_info("[GPU Check] no GPU to use (%s); computing on the CPU",
                 n > 0 ? "those there are older than SM 8.0" : driver.reason);
    return backend_create_cpu(&w->be, w->workers);
}

static status open_backend(work *w, const char *device, bool is_deterministic) {
    int n_threads;
    TRY(env_threads(&n_threads));
    TRY(pool_create(&w->workers, n_threads));
    if (strcmp(device, "cpu") == 0) return backend_create_cpu(&w->be, w->workers);
    if (strcmp(device, "auto") == 0) return open_any(w, is_deterministic);
    return open_named_gpu(w, device, is_deterministic);
}

static status open_all(work *w, const char *data, const char *device, bool is_deterministic) {
    *w = (work){0};
    status st = open_backend(w, device, is_deterministic);
    if (st == OK) st = profiler_watch(&w->be);
    if (st == OK && data != NULL) st = seq_file_open(&w->data, data, w->workers);
    if (st != OK) work_close(w);
    return st;
}

status work_open(work *w, const char *data, const char *device) {
    return open_all(w, data, device, false);
}

status work_open_deterministic(work *w, const char *data, const char *device) {
    return open_all(w, data, device, true);
}

status work_join_test(work *w, const char *path, bool keeps_unknown) {
    status st = seq_file_open(&w->test, path, w->workers);
    if (st != OK) return fail_prefix(st, "--test-file");
    TRY(held_out_join(&w->joined, w->data, w->test, keeps_unknown));
    held_out_counts n = held_out_count(w->joined);
    log_info("%s: %" PRIu64 " users have a held-out event", path, n.n_targets);
    if (n.n_unknown_users > 0)
        log_info("%s: %" PRIu64 " users are not in the data and are left out", path,
                 n.n_unknown_users);
    if (n.n_unknown_items > 0)
        log_info("%s: %" PRIu64 " held-out events have items that the data does not have: %s", path,
                 n.n_unknown_items, keeps_unknown ? "never found" : "left out");
    return OK;
}

const seq_file *work_data(const work *w) {
    return w->joined != NULL ? held_out_data(w->joined) : w->data;
}

void work_close(work *w) {
    held_out_destroy(w->joined);
    seq_file_close(w->test);
    seq_file_close(w->data);
    backend_destroy(w->be);
    pool_destroy(w->workers);
    *w = (work){0};
}
