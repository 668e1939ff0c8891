/* Hardware counters by CUPTI's range profiler (CUDA 12.6 or newer), one launch at a time: a
 * callback before each launch of the driver starts the profiler, the one after it stops and reads
 * it. cupti.c opens the library; here each function is looked up when it is called. */
#include "profile/cupti.h"

#if defined(HSTU_HAS_CUPTI) && __has_include(<cupti_range_profiler.h>)

#include <cupti.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

enum { TIME_NS, OCCUPANCY, TENSOR, DRAM, L2, N_COUNTERS };

/* On GPUs of SM 7.5 to 12.0 they need one pass together: no kernel runs twice. */
static const char *metrics[N_COUNTERS] = {
    [TIME_NS] = "gpu__time_duration.sum",
    [OCCUPANCY] = "sm__warps_active.avg.pct_of_peak_sustained_active",
    [DRAM] = "dram__bytes.sum",
    [L2] = "lts__t_bytes.sum",
    [TENSOR] = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"};

static struct {
    void *library, *driver;
    CUpti_SubscriberHandle subscriber;
    atomic_bool is_on;
    pthread_mutex_t lock; /* held from before a launch until after it; guards the rest */
    cupti_sink sink;
    bool has_failed;   /* the launches that follow are not counted */
    CUcontext context; /* that the rest is for */
    uintptr_t host;    /* what makes the configuration, and metrics of counters */
    CUpti_RangeProfiler_Object *profiler;
    uint8_t *config, *data;
    size_t config_bytes, data_bytes;
} c = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local uint32_t counted; /* the launch that the thread is in; 0: none */

/* Calls a function that takes a pointer.  False: it is noted why it did not work. */
static bool call(const char *name, void *args) {
    CUptiResult (*f)(void *);
    *(void **)&f = dlsym(c.library, name);
    if (f == NULL) return cupti_refuse("counters need the libcupti of CUDA 12.6 or newer", -1);
    CUptiResult result = f(args);
    return result == CUPTI_SUCCESS || cupti_refuse("hardware counters", (int)result);
}

#define ARGS(type, name, ...) type name = {.structSize = type##_STRUCT_SIZE, __VA_ARGS__}

static bool allocate(uint8_t **out, size_t n) {
    return mem_alloc((void **)out, n, 1) == OK || cupti_refuse("no memory for counters", -1);
}

/* What the GPU must count.  cupti_profiler_host.h is C++, so the arguments of its functions are
 * arrays of words here: their size, NULL, and the rest in the order of its structs. */
static bool make_config(void) {
    int device = 0, (*find_device)(int *);
    *(void **)&find_device = dlsym(c.driver, "cuCtxGetDevice");
    if (find_device == NULL || find_device(&device) != 0)
        return cupti_refuse("the launching thread has no CUDA context", -1);
    ARGS(CUpti_Device_GetChipName_Params, chip, .deviceIndex = (size_t)device);
    if (!call("cuptiDeviceGetChipName", &chip)) return false;
    uintptr_t create[6] = {sizeof create, 0, 0 /* of ranges */, (uintptr_t)chip.pChipName};
    if (!call("cuptiProfilerHostInitialize", create)) return false;
    c.host = create[5];
    uintptr_t add[5] = {sizeof add, 0, c.host, (uintptr_t)metrics, N_COUNTERS};
    uintptr_t size[4] = {sizeof size, 0, c.host};
    if (!call("cuptiProfilerHostConfigAddMetrics", add) ||
        !call("cuptiProfilerHostGetConfigImageSize", size) || !allocate(&c.config, size[3]))
        return false;
    c.config_bytes = size[3];
    uintptr_t image[5] = {sizeof image, 0, c.host, c.config_bytes, (uintptr_t)c.config};
    return call("cuptiProfilerHostGetConfigImage", image);
}

static bool clear_data(void) {
    ARGS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, a,
         .pRangeProfilerObject = c.profiler, .counterDataSize = c.data_bytes,
         .pCounterData = c.data);
    return call("cuptiRangeProfilerCounterDataImageInitialize", &a);
}

static void close_context(void) {
    ARGS(CUpti_RangeProfiler_Disable_Params, disable, .pRangeProfilerObject = c.profiler);
    uintptr_t destroy[3] = {sizeof destroy, 0, c.host};
    if (c.profiler != NULL) (void)call("cuptiRangeProfilerDisable", &disable);
    if (c.host != 0) (void)call("cuptiProfilerHostDeinitialize", destroy);
    MEM_FREE(c.config, c.data);
    c.config = c.data = NULL;
    c.profiler = NULL;
    c.host = 0;
    c.context = NULL;
}

/* One context at a time: a program that launches on several in turn is counted, slowly. */
static bool open_context(CUcontext context) {
    ARGS(CUpti_Profiler_Initialize_Params, initialize, .pPriv = NULL);
    ARGS(CUpti_RangeProfiler_Enable_Params, enable, .ctx = context);
    close_context();
    c.context = context;
    if (!call("cuptiProfilerInitialize", &initialize) || !make_config() ||
        !call("cuptiRangeProfilerEnable", &enable))
        return false;
    c.profiler = enable.pRangeProfilerObject;
    ARGS(CUpti_RangeProfiler_GetCounterDataSize_Params, size, .pRangeProfilerObject = c.profiler,
         .pMetricNames = metrics, .numMetrics = N_COUNTERS, .maxNumOfRanges = 1,
         .maxNumRangeTreeNodes = 1);
    if (!call("cuptiRangeProfilerGetCounterDataSize", &size) ||
        !allocate(&c.data, size.counterDataSize))
        return false;
    c.data_bytes = size.counterDataSize;
    ARGS(CUpti_RangeProfiler_SetConfig_Params, set, .pRangeProfilerObject = c.profiler,
         .configSize = c.config_bytes, .pConfig = c.config, .counterDataImageSize = c.data_bytes,
         .pCounterDataImage = c.data, .range = CUPTI_AutoRange, .replayMode = CUPTI_KernelReplay,
         .maxRangesPerPass = 1, .numNestingLevels = 1, .minNestingLevel = 1,
         .targetNestingLevel = 1);
    return clear_data() && call("cuptiRangeProfilerSetConfig", &set);
}

static bool begin_launch(CUcontext context) {
    if (c.context != context && !open_context(context)) return false;
    ARGS(CUpti_RangeProfiler_Start_Params, start, .pRangeProfilerObject = c.profiler);
    return call("cuptiRangeProfilerStart", &start);
}

static void add(const char *name, const double v[N_COUNTERS]) {
    gpu_record r = {.kind = GPU_COUNTERS,
                    .end_ns = (uint64_t)v[TIME_NS],
                    .name = name != NULL ? name : "[kernel]",
                    .bytes = (uint64_t)v[DRAM],
                    .mark = (uint64_t)v[L2],
                    .occupancy = (float)v[OCCUPANCY],
                    .tensor = (float)v[TENSOR]};
    (void)c.sink.add(c.sink.ctx, &r);
}

static bool end_launch(const char *name) {
    ARGS(CUpti_RangeProfiler_Stop_Params, stop, .pRangeProfilerObject = c.profiler);
    ARGS(CUpti_RangeProfiler_DecodeData_Params, decode, .pRangeProfilerObject = c.profiler);
    ARGS(CUpti_RangeProfiler_GetCounterDataInfo_Params, info, .pCounterDataImage = c.data,
         .counterDataImageSize = c.data_bytes);
    if (!call("cuptiRangeProfilerStop", &stop) || !call("cuptiRangeProfilerDecodeData", &decode) ||
        !call("cuptiRangeProfilerGetCounterDataInfo", &info))
        return false;
    double v[N_COUNTERS] = {0};
    uintptr_t a[9] = {sizeof a, 0, c.host, (uintptr_t)c.data, c.data_bytes, 0 /* the range */};
    a[6] = (uintptr_t)metrics;
    a[7] = N_COUNTERS;
    a[8] = (uintptr_t)v;
    if (info.numTotalRanges > 0 && !call("cuptiProfilerHostEvaluateToGpuValues", a)) return false;
    for (int k = 0; k < N_COUNTERS; k++)
        if (!(v[k] > 0 && v[k] < 1e18)) v[k] = 0; /* a percentage of nothing */
    add(name, v);
    return clear_data();
}

static bool begins(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}

/* A launch into a graph that is being captured runs nothing, and the profiler would break it. */
static bool is_captured(const char *name, const void *args) {
    int state = 0, (*ask)(CUstream, int *);
    CUstream stream;
    *(void **)&ask = dlsym(c.driver, "cuStreamIsCapturing");
    if (begins(name, "cuLaunchKernelEx"))
        stream = ((const cuLaunchKernelEx_params *)args)->config->hStream;
    else
        stream = ((const cuLaunchKernel_params *)args)->hStream; /* cooperative ones are alike */
    if (stream == NULL && strstr(name, "_ptsz") != NULL) stream = CU_STREAM_PER_THREAD;
    return ask == NULL || ask(stream, &state) != 0 || state != 0;
}

static void CUPTIAPI on_call(void *ctx, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                             const void *data) {
    const CUpti_CallbackData *d = data;
    if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
        if (id != CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING) return;
        pthread_mutex_lock(&c.lock);
        if (((const CUpti_ResourceData *)data)->context == c.context) close_context();
        pthread_mutex_unlock(&c.lock);
        return;
    }
    if (begins(d->functionName, "cuGraphLaunch") && d->callbackSite == CUPTI_API_EXIT && c.is_on &&
        !c.has_failed)
        add("[CUDA graph, not counted]", (double[N_COUNTERS]){0});
    if (!begins(d->functionName, "cuLaunchKernel") &&
        !begins(d->functionName, "cuLaunchCooperativeKernel"))
        return;
    if (d->callbackSite == CUPTI_API_EXIT && counted != 0 && counted == d->correlationId) {
        c.has_failed = !end_launch(d->symbolName);
        counted = 0;
        pthread_mutex_unlock(&c.lock);
    } else if (d->callbackSite == CUPTI_API_ENTER && counted == 0 && c.is_on &&
               !is_captured(d->functionName, d->functionParams)) {
        counted = d->correlationId;
        pthread_mutex_lock(&c.lock);
        c.has_failed = c.has_failed || !begin_launch(d->context);
        if (!c.has_failed) return;
        counted = 0;
        pthread_mutex_unlock(&c.lock);
    }
}

bool cupti_counters_start(const cupti_sink *sink) {
    c.library = cupti_library();
    if (c.library == NULL) return false;
    c.driver = dlopen("libcuda.so.1", RTLD_LAZY); /* both stay open: CUPTI's own threads use them */
    if (c.driver == NULL) return cupti_refuse("NVIDIA's driver (libcuda.so.1) was not found", -1);
    __typeof__(cuptiSubscribe) *subscribe;
    __typeof__(cuptiEnableDomain) *enable;
    *(void **)&subscribe = dlsym(c.library, "cuptiSubscribe");
    *(void **)&enable = dlsym(c.library, "cuptiEnableDomain");
    c.sink = *sink;
    c.has_failed = false;
    CUptiResult result = subscribe(&c.subscriber, on_call, NULL);
    if (result == CUPTI_SUCCESS) result = enable(1, c.subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
    if (result == CUPTI_SUCCESS) result = enable(1, c.subscriber, CUPTI_CB_DOMAIN_RESOURCE);
    return result == CUPTI_SUCCESS || cupti_refuse("hardware counters", (int)result);
}

void cupti_counters_set_on(bool is_on) {
    c.is_on = is_on;
}

bool cupti_counters_stop(void) {
    c.is_on = false;
    pthread_mutex_lock(&c.lock);
    close_context();
    pthread_mutex_unlock(&c.lock);
    (void)call("cuptiUnsubscribe", c.subscriber);
    return !c.has_failed;
}

#else

bool cupti_counters_start(const cupti_sink *sink) {
    return cupti_refuse("this build's CUPTI is older than 12.6, which has counters", -1);
}

void cupti_counters_set_on(bool is_on) {
}

bool cupti_counters_stop(void) {
    return false;
}

#endif
