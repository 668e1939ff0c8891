/* The only file that includes CUPTI's headers.
 *
 * The library is opened by name at the first start instead of being linked, so that the program
 * runs where it is missing.  CUPTI requests buffers and returns them full, on its own
 * thread: a lock guards the sink that they are read into. */
#include "profile/cupti.h"

void graph_nodes_add(graph_nodes *g, uint64_t number, const graph_node *n) {
    uint32_t at;
    if (number == 0 || MEM_RESERVE(&g->node, &g->capacity, g->numbers.n + 1) != OK ||
        map_put(&g->numbers, number, &at) != OK)
        return;
    g->node[at] = *n;
}

bool graph_nodes_find(const graph_nodes *g, uint64_t number, graph_node *out) {
    uint32_t at = map_find(&g->numbers, number);
    if (at == MAP_NONE) return false;
    *out = g->node[at];
    return true;
}

static bool has_place(graph_nodes *g, size_t call) {
    if (call < g->n_calls) return true;
    size_t n = g->n_calls > 0 ? g->n_calls : 256;
    while (n <= call)
        n *= 2;
    if (MEM_RESIZE(&g->launch_of_call, n) != OK) return false;
    memset(g->launch_of_call + g->n_calls, 0, (n - g->n_calls) * sizeof *g->launch_of_call);
    g->n_calls = n;
    return true;
}

bool graph_nodes_is_first(graph_nodes *g, const graph_node *n, uint64_t launch) {
    if (n->call == 0 || !has_place(g, n->call)) return false;
    bool is_first = g->launch_of_call[n->call] != launch;
    g->launch_of_call[n->call] = launch;
    return is_first;
}

void graph_nodes_fini(graph_nodes *g) {
    MEM_FREE(g->launch_of_call, g->node);
    map_fini(&g->numbers);
    *g = (graph_nodes){0};
}

#ifdef HSTU_HAS_CUPTI

#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/env.h"
#include "base/thread.h"

/* CUPTI numbers the versions of each record struct; a newer version only appends members, so the
 * members read here are at the same offsets in every libcupti. */
#if CUPTI_API_VERSION >= 130200
typedef CUpti_ActivityKernel11 kernel_record;
#elif CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 kernel_record;
#else
typedef CUpti_ActivityKernel9 kernel_record; /* 12.0 to 12.9 */
#endif
#if CUPTI_API_VERSION >= 26
typedef CUpti_ActivityMemcpy6 copy_record; /* since 12.8 */
#else
typedef CUpti_ActivityMemcpy5 copy_record;
#endif
typedef CUpti_ActivityMemset4 memset_record;
#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityUnifiedMemoryCounter3 unified_record;
#else
typedef CUpti_ActivityUnifiedMemoryCounter2 unified_record;
#endif

/* From 13.0 on the version has the form xxyyzz. */
#if CUPTI_API_VERSION >= 130000
enum { CUPTI_MAJOR = CUPTI_API_VERSION / 10000 };
#else
enum { CUPTI_MAJOR = 12 };
#endif

#ifndef HSTU_CUPTI_DIR
#define HSTU_CUPTI_DIR ""
#endif

/* Room for some 30 000 kernels; CUPTI advises 1 to 10 MB. */
enum { BUFFER_BYTES = 8 << 20 };

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                           CUPTI_ACTIVITY_KIND_MEMCPY,
                                           CUPTI_ACTIVITY_KIND_MEMSET,
                                           CUPTI_ACTIVITY_KIND_RUNTIME,
                                           CUPTI_ACTIVITY_KIND_DRIVER,
                                           CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};
enum { N_KINDS = sizeof kinds / sizeof kinds[0], N_GPU_KINDS = 3 };

/* The functions of the library that are used here, each with the type its header gives it. */
#define FUNCTIONS(X)                                                                               \
    X(cuptiActivityRegisterCallbacks)                                                              \
    X(cuptiActivityEnable)                                                                         \
    X(cuptiActivityDisable)                                                                        \
    X(cuptiActivityFlushAll)                                                                       \
    X(cuptiActivityGetNextRecord)                                                                  \
    X(cuptiActivityGetNumDroppedRecords)                                                           \
    X(cuptiActivityPushExternalCorrelationId)                                                      \
    X(cuptiActivityPopExternalCorrelationId)                                                       \
    X(cuptiGetCallbackName)                                                                        \
    X(cuptiActivityConfigureUnifiedMemoryCounter)                                                  \
    X(cuptiSetThreadIdType)                                                                        \
    X(cuptiSubscribe)                                                                              \
    X(cuptiUnsubscribe)                                                                            \
    X(cuptiEnableCallback)                                                                         \
    X(cuptiGetGraphNodeId)                                                                         \
    X(cuptiGetTimestamp)                                                                           \
    X(cuptiGetResultString)

#define AS_MEMBER(name) __typeof__(name) *name;
static struct {
    FUNCTIONS(AS_MEMBER)
    void *library;      /* NULL until all of the above are found */
    bool is_registered; /* CUPTI has our callbacks, once a process */
    int n_on;           /* kinds that are enabled */
    int n_wanted;       /* those of the last start */
    bool has_devices;   /* what the GPUs are was handed over before the end */
    bool wants_unified, has_unified;
    bool skips_memsets;
    bool has_run; /* records of an earlier time may be there */
    char reason[CUPTI_REASON_BYTES];

    pthread_mutex_t lock; /* guards the rest */
    bool is_taking;       /* between start and stop; outside, records are dropped */
    cupti_sink sink;
    graph_nodes nodes;
    CUpti_SubscriberHandle subscriber;
    bool is_subscribed;
    status failed; /* of the sink */
    uint64_t n_lost;
    int64_t ahead_ns; /* of CUPTI's clock: what clock_ns has to be added */
} cupti = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The op that the calling thread is in, and the number of that call. */
static _Thread_local op_mark marked = {.index = RECORDER_NO_OP, .name = -1};
static _Thread_local uint32_t marked_call;

bool cupti_refuse(const char *what, int result) {
    const char *text = NULL, *remedy = "";
    if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
        remedy = "; be root (in a container with CAP_SYS_ADMIN), or load the driver with "
                 "NVreg_RestrictProfilingToAdminUsers=0";
    if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
        remedy = "; another profiler (nsys, ncu, torch.profiler) is at work in this process";
    if (result >= 0) cupti.cuptiGetResultString((CUptiResult)result, &text);
    snprintf(cupti.reason, sizeof cupti.reason, result < 0 ? "%s" : "CUPTI refuses %s: %s%s", what,
             text != NULL ? text : "no reason given", remedy);
    return false;
}

/* Tries the version this was built with first, where the loader looks, then in the toolkit. */
static void *open_library(void) {
    char name[4][512];
    const char *given = env_cupti();
    if (given != NULL) {
        void *library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL)
            snprintf(cupti.reason, sizeof cupti.reason, "HSTU_CUPTI: %.200s", dlerror());
        return library;
    }
    snprintf(name[0], sizeof name[0], "libcupti.so.%d", CUPTI_MAJOR);
    snprintf(name[1], sizeof name[1], "%s/libcupti.so.%d", HSTU_CUPTI_DIR, CUPTI_MAJOR);
    snprintf(name[2], sizeof name[2], "%s/libcupti.so", HSTU_CUPTI_DIR);
    snprintf(name[3], sizeof name[3], "libcupti.so");
    for (int i = 0; i < 4; i++) {
        void *library = dlopen(name[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) return library;
    }
    snprintf(cupti.reason, sizeof cupti.reason,
             "libcupti.so.%d was not found; add its folder to LD_LIBRARY_PATH, or say where it is "
             "with HSTU_CUPTI",
             CUPTI_MAJOR);
    return NULL;
}

/* POSIX returns functions as void pointers; this stores through one. */
#define AS_LOOKUP(name)                                                                            \
    *(void **)&cupti.name = dlsym(library, #name);                                                 \
    if (cupti.name == NULL) missing = #name;

static bool load(void) {
    if (cupti.library != NULL) return true;
    const char *missing = NULL;
    void *library = open_library();
    if (library == NULL) return false;
    FUNCTIONS(AS_LOOKUP)
    if (missing == NULL) {
        cupti.library = library; /* never closed: CUPTI has threads and callbacks of its own */
        cupti.cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM); /* as nvtx.c has them */
        return true;
    }
    snprintf(cupti.reason, sizeof cupti.reason, "libcupti has no %s", missing);
    dlclose(library);
    return false;
}

void *cupti_library(void) {
    return load() ? cupti.library : NULL;
}

/* Without a buffer CUPTI drops records, and counts them. */
static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *max_records) {
    *max_records = 0; /* as many as fit */
    *bytes = 0;
    if (mem_alloc_raw((void **)buffer, BUFFER_BYTES, 1) == OK) *bytes = BUFFER_BYTES;
}

static gpu_record_kind copy_kind(uint8_t kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOA:
        return GPU_COPY_IN;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOH:
        return GPU_COPY_OUT;
    default:
        return GPU_COPY_ON_DEVICE;
    }
}

/* 0 stays 0: a time that is not known. */
static uint64_t host_time(uint64_t ns) {
    return ns == 0 ? 0 : (uint64_t)((int64_t)ns + cupti.ahead_ns);
}

static gpu_record read_kernel(const kernel_record *k) {
    graph_node node = {0};
    if (k->graphNodeId != 0) graph_nodes_find(&cupti.nodes, k->graphNodeId, &node);
    bool is_first = graph_nodes_is_first(&cupti.nodes, &node, k->correlationId);
    return (gpu_record){
        .graph_op = node.op,
        .is_first = is_first,
        .has_work = node.has_work,
        .flop = is_first ? node.flop : 0,
        .moved = is_first ? node.moved : 0,
        .of_pair = node.of_pair,
        .pair_bytes = node.pair_bytes,
        .kind = GPU_KERNEL,
        .start_ns = host_time(k->start),
        .end_ns = host_time(k->end),
        .name = k->name,
        .correlation = k->correlationId,
        .device = k->deviceId,
        .stream = k->streamId,
        .launch = {.grid = {k->gridX, k->gridY, k->gridZ},
                   .block = {k->blockX, k->blockY, k->blockZ},
                   .registers = k->registersPerThread,
                   .static_shared = (uint32_t)k->staticSharedMemory,
                   .dynamic_shared = (uint32_t)k->dynamicSharedMemory,
                   .local = k->localMemoryPerThread},
    };
}

/* What the GPUs are, by the driver that the process already has: CUPTI's own records of devices do
 * not come where it was started before the driver. */
static void hand_over_devices(void) {
    static const int attributes[] = {16, 39, 106, 82, 81, 75, 76};
    enum { N = sizeof attributes / sizeof *attributes };
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    int (*ask)(int *, int, int), (*count)(int *), (*name)(char *, int, int), n = 0;
    int (*memory)(size_t *, int);
    size_t bytes;
    if (driver == NULL) return;
    *(void **)&ask = dlsym(driver, "cuDeviceGetAttribute");
    *(void **)&count = dlsym(driver, "cuDeviceGetCount");
    *(void **)&name = dlsym(driver, "cuDeviceGetName");
    *(void **)&memory = dlsym(driver, "cuDeviceTotalMem_v2");
    bool is_there = ask != NULL && count != NULL && name != NULL && count(&n) == 0;
    for (int i = 0; is_there && i < n && i < RECORDER_MAX_GPUS; i++) {
        int v[N] = {0};
        for (int k = 0; k < N; k++)
            if (ask(&v[k], attributes[k], i) != 0) v[k] = 0;
        gpu_facts f = {.device = (uint32_t)i,
                       .n_multiprocessors = (uint32_t)v[0],
                       .max_warps = (uint32_t)v[1] / 32,
                       .max_blocks = (uint32_t)v[2],
                       .max_registers = (uint32_t)v[3],
                       .max_shared = (uint32_t)v[4],
                       .sm = (uint32_t)(10 * v[5] + v[6])};
        if (name(f.name, (int)sizeof f.name, i) != 0) snprintf(f.name, sizeof f.name, "GPU");
        if (memory != NULL && memory(&bytes, i) == 0) f.memory_bytes = bytes;
        gpu_record r = {.kind = GPU_DEVICE, .device = f.device, .gpu = &f};
        pthread_mutex_lock(&cupti.lock);
        if (cupti.is_taking && cupti.failed == OK)
            cupti.failed = cupti.sink.add(cupti.sink.ctx, &r);
        pthread_mutex_unlock(&cupti.lock);
    }
    dlclose(driver);
}

/* Faults of the GPU come with their number; each of the CPU has a record, one time, and in `value`
 * the instruction's address. */
static gpu_record read_unified(const unified_record *u) {
    gpu_record r = {.kind = GPU_UNIFIED_IN,
                    .start_ns = host_time(u->start),
                    .end_ns = host_time(u->end),
                    .bytes = u->value,
                    .device = u->dstId,
                    .stream = u->streamId};
    if (u->counterKind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH) {
        r.kind = GPU_UNIFIED_OUT;
        r.device = u->srcId;
    } else if (u->counterKind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT) {
        r.kind = GPU_FAULT;
        r.device = u->srcId;
    } else if (u->counterKind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT) {
        r.kind = HOST_FAULT;
        r.device = 0;
        r.bytes = 1;
    }
    if (r.end_ns < r.start_ns) r.end_ns = r.start_ns;
    if (r.device >= RECORDER_MAX_GPUS) r.device = 0;
    return r;
}

static gpu_record read_call(const CUpti_ActivityAPI *a) {
    const char *name = NULL;
    CUpti_CallbackDomain domain = a->kind == CUPTI_ACTIVITY_KIND_RUNTIME
                                      ? CUPTI_CB_DOMAIN_RUNTIME_API
                                      : CUPTI_CB_DOMAIN_DRIVER_API;
    if (cupti.cuptiGetCallbackName(domain, a->cbid, &name) != CUPTI_SUCCESS) name = NULL;
    return (gpu_record){.kind = GPU_CALL,
                        .start_ns = host_time(a->start),
                        .end_ns = host_time(a->end),
                        .name = name != NULL ? name : "CUDA call",
                        .correlation = a->correlationId,
                        .thread = a->threadId};
}

static status add_record(const CUpti_Activity *record) {
    gpu_record r;
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        r = read_kernel((const kernel_record *)record);
        break;
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const copy_record *c = (const copy_record *)record;
        if (c->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOH) return OK; /* no GPU has part in it */
        r = (gpu_record){.kind = copy_kind(c->copyKind),
                         .start_ns = host_time(c->start),
                         .end_ns = host_time(c->end),
                         .bytes = c->bytes,
                         .correlation = c->correlationId,
                         .device = c->deviceId,
                         .stream = c->streamId};
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const memset_record *m = (const memset_record *)record;
        r = (gpu_record){.kind = GPU_MEMSET,
                         .start_ns = host_time(m->start),
                         .end_ns = host_time(m->end),
                         .bytes = m->bytes,
                         .correlation = m->correlationId,
                         .device = m->deviceId,
                         .stream = m->streamId};
        break;
    }
    case CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER:
        r = read_unified((const unified_record *)record);
        break;
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
        r = read_call((const CUpti_ActivityAPI *)record);
        break;
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const CUpti_ActivityExternalCorrelation *e =
            (const CUpti_ActivityExternalCorrelation *)record;
        r = (gpu_record){.kind = GPU_LINK, .correlation = e->correlationId, .mark = e->externalId};
        break;
    }
    default:
        return OK;
    }
    return cupti.sink.add(cupti.sink.ctx, &r);
}

/* Reading ends with the buffer, or at a record that is not complete. */
static void add_records(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes) {
    CUpti_Activity *record = NULL;
    size_t n_dropped = 0;
    while (cupti.failed == OK &&
           cupti.cuptiActivityGetNextRecord(buffer, bytes, &record) == CUPTI_SUCCESS)
        cupti.failed = add_record(record);
    if (cupti.cuptiActivityGetNumDroppedRecords(context, stream, &n_dropped) == CUPTI_SUCCESS)
        cupti.n_lost += n_dropped;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t bytes) {
    pthread_mutex_lock(&cupti.lock);
    if (cupti.is_taking && bytes > 0) add_records(context, stream, buffer, bytes);
    pthread_mutex_unlock(&cupti.lock);
    mem_free(buffer);
}

/* Nodes of graphs, as they are made: a graph that is instantiated has copies of them. */
static void CUPTIAPI on_node(void *ctx, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                             const void *data) {
    const CUpti_GraphData *g = ((const CUpti_ResourceData *)data)->resourceDescriptor;
    uint64_t node = 0, original = 0;
    if (g == NULL || cupti.cuptiGetGraphNodeId(g->node, &node) != CUPTI_SUCCESS) return;
    pthread_mutex_lock(&cupti.lock);
    if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED && marked.name >= 0) {
        graph_node n = {.op = marked.name + 1,
                        .call = marked_call,
                        .has_work = marked.flop > 0 || marked.moved > 0,
                        .flop = marked.flop,
                        .moved = marked.moved,
                        .of_pair = marked.of_pair,
                        .pair_bytes = marked.pair_bytes};
        graph_nodes_add(&cupti.nodes, node, &n);
    } else if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED &&
               cupti.cuptiGetGraphNodeId(g->originalNode, &original) == CUPTI_SUCCESS) {
        graph_node n;
        if (graph_nodes_find(&cupti.nodes, original, &n)) graph_nodes_add(&cupti.nodes, node, &n);
    }
    pthread_mutex_unlock(&cupti.lock);
}

/* Where somebody else has subscribed, kernels of graphs are not known by their ops; nothing else is
 * lost. */
static void subscribe(void) {
    if (cupti.is_subscribed || cupti.cuptiSubscribe(&cupti.subscriber, on_node, NULL) != 0) return;
    cupti.is_subscribed = true;
    cupti.cuptiEnableCallback(1, cupti.subscriber, CUPTI_CB_DOMAIN_RESOURCE,
                              CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
    cupti.cuptiEnableCallback(1, cupti.subscriber, CUPTI_CB_DOMAIN_RESOURCE,
                              CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED);
}

static void unsubscribe(void) {
    if (cupti.is_subscribed) cupti.cuptiUnsubscribe(cupti.subscriber);
    cupti.is_subscribed = false;
    graph_nodes_fini(&cupti.nodes);
}

/* It needs the driver, which may not run yet: then the next call tries again. */
static void try_unified(void) {
    static const CUpti_ActivityUnifiedMemoryCounterKind all[] = {
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD,
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH,
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT,
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT};
    CUpti_ActivityUnifiedMemoryCounterConfig config[4];
    if (!cupti.wants_unified || cupti.has_unified) return;
    for (int i = 0; i < 4; i++)
        config[i] = (CUpti_ActivityUnifiedMemoryCounterConfig){
            .scope = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE,
            .kind = all[i],
            .deviceId = 0,
            .enable = 1};
    cupti.has_unified =
        cupti.cuptiActivityConfigureUnifiedMemoryCounter(config, 4) == CUPTI_SUCCESS &&
        cupti.cuptiActivityEnable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER) == CUPTI_SUCCESS;
}

static void end_unified(void) {
    if (cupti.has_unified) cupti.cuptiActivityDisable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER);
    cupti.has_unified = false;
}

static bool is_skipped(CUpti_ActivityKind kind) {
    return kind == CUPTI_ACTIVITY_KIND_MEMSET && cupti.skips_memsets;
}

void cupti_skip_memsets(void) {
    if (cupti.skips_memsets) return;
    cupti.skips_memsets = true;
    if (cupti.n_on > 0) cupti.cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MEMSET);
}

static void disable(void) {
    end_unified();
    while (cupti.n_on > 0)
        cupti.cuptiActivityDisable(kinds[--cupti.n_on]);
}

static bool enable(int n) {
    CUptiResult result;
    if (!cupti.is_registered) {
        result = cupti.cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
        if (result != CUPTI_SUCCESS) return cupti_refuse("callbacks", result);
        cupti.is_registered = true;
    }
    if (cupti.n_on != n) disable();
    while (cupti.n_on < n) {
        CUpti_ActivityKind kind = kinds[cupti.n_on];
        result = is_skipped(kind) ? CUPTI_SUCCESS : cupti.cuptiActivityEnable(kind);
        if (result != CUPTI_SUCCESS) {
            disable();
            return cupti_refuse("activity records", result);
        }
        cupti.n_on++;
    }
    try_unified();
    return true;
}

bool cupti_flush(void) {
    CUptiResult result = cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    return result == CUPTI_SUCCESS || cupti_refuse("to hand out records", result);
}

void cupti_flush_complete(void) {
    if (cupti.n_on == 0) return;
    try_unified();
    cupti.cuptiActivityFlushAll(0);
    if (!cupti.has_devices) hand_over_devices();
    cupti.has_devices = true;
}

bool cupti_set_on(bool is_on) {
    if (is_on) return enable(cupti.n_wanted);
    disable();
    return true;
}

static void set_taking(const cupti_sink *sink, int64_t ahead_ns) {
    pthread_mutex_lock(&cupti.lock);
    cupti.is_taking = sink != NULL;
    if (sink != NULL) {
        cupti.sink = *sink;
        cupti.failed = OK;
        cupti.n_lost = 0;
        cupti.ahead_ns = ahead_ns;
    }
    pthread_mutex_unlock(&cupti.lock);
}

bool cupti_start(const cupti_sink *sink, unsigned what) {
    uint64_t theirs = 0;
    cupti.reason[0] = '\0';
    cupti.skips_memsets = false;
    set_taking(NULL, 0);
    if (!load()) return false;
    /* Records of the time before are dropped first. */
    if (cupti.has_run && !cupti_flush()) return false;
    cupti.cuptiGetTimestamp(&theirs);
    set_taking(sink, (int64_t)(clock_ns() - theirs));
    cupti.n_wanted = what & CUPTI_CALLS ? N_KINDS : N_GPU_KINDS;
    cupti.wants_unified = what & CUPTI_UNIFIED;
    bool is_on = enable(cupti.n_wanted);
    if (!is_on) set_taking(NULL, 0);
    if (is_on && (what & CUPTI_GRAPHS)) subscribe();
    cupti.has_run = cupti.has_run || is_on;
    return is_on;
}

status cupti_stop(uint64_t *n_lost) {
    if (cupti.has_run) (void)cupti_flush();
    hand_over_devices();
    disable();
    unsubscribe();
    set_taking(NULL, 0);
    *n_lost = cupti.n_lost;
    return cupti.failed;
}

const char *cupti_reason(void) {
    return cupti.reason;
}

void cupti_mark_begin(const op_mark *m) {
    static atomic_uint n_calls;
    marked = *m;
    marked_call = atomic_fetch_add(&n_calls, 1) + 1;
    if (m->index != RECORDER_NO_OP && cupti.n_on == N_KINDS)
        cupti.cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                     (uint64_t)m->index);
}

void cupti_mark_end(void) {
    uint64_t mark;
    if (marked.index != RECORDER_NO_OP && cupti.n_on == N_KINDS)
        cupti.cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &mark);
    marked = (op_mark){.index = RECORDER_NO_OP, .name = -1};
}

#else

#ifdef HSTU_HAS_CUDA
static const char no_cupti[] = "this build is without CUPTI (cupti.h was not found beside nvcc)";
#else
static const char no_cupti[] = "this build is without CUDA; rebuild with nvcc (docs/install.md)";
#endif

bool cupti_start(const cupti_sink *sink, unsigned what) {
    return false;
}

bool cupti_flush(void) {
    return false;
}

void cupti_flush_complete(void) {
}

bool cupti_set_on(bool is_on) {
    return false;
}

status cupti_stop(uint64_t *n_lost) {
    *n_lost = 0;
    return OK;
}

const char *cupti_reason(void) {
    return no_cupti;
}

void cupti_skip_memsets(void) {
}

bool cupti_refuse(const char *what, int result) {
    return false;
}

void cupti_mark_begin(const op_mark *m) {
}

void cupti_mark_end(void) {
}

#endif
