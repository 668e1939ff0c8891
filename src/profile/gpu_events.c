#include "profile/gpu_events.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

static struct {
    void *driver, *event[2];
    bool has_begun;
    int (*create)(void **event, unsigned flags);
    int (*record)(void *event, void *stream);
    int (*synchronize)(void *event);
    int (*elapsed)(float *ms, void *start, void *end);
} gpu;

static bool load(void) {
    if (gpu.driver != NULL) return true;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver == NULL) return false;
    *(void **)&gpu.create = dlsym(driver, "cuEventCreate");
    *(void **)&gpu.record = dlsym(driver, "cuEventRecord");
    *(void **)&gpu.synchronize = dlsym(driver, "cuEventSynchronize");
    *(void **)&gpu.elapsed = dlsym(driver, "cuEventElapsedTime");
    if (gpu.create == NULL || gpu.record == NULL || gpu.synchronize == NULL ||
        gpu.elapsed == NULL || gpu.create(&gpu.event[0], 0) != 0 ||
        gpu.create(&gpu.event[1], 0) != 0)
        return false;
    gpu.driver = driver; /* the process keeps it anyway, and the events with it */
    return true;
}

void gpu_events_begin(void) {
    gpu.has_begun = load() && gpu.record(gpu.event[0], NULL) == 0;
}

uint64_t gpu_events_end(void) {
    float ms = 0;
    if (!gpu.has_begun || gpu.record(gpu.event[1], NULL) != 0 ||
        gpu.synchronize(gpu.event[1]) != 0 || gpu.elapsed(&ms, gpu.event[0], gpu.event[1]) != 0)
        return 0;
    gpu.has_begun = false;
    return (uint64_t)((double)ms * 1e6);
}
