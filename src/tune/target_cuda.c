/* A GPU as a target: kernels in CUDA, compiled by NVRTC and launched through the driver.
 *
 * Both libraries are looked for when a target is made, so that a build without CUDA can use them
 * and a machine without them only lacks this target.  No header of CUDA is needed: the few
 * functions and numbers used here are part of their stable interfaces.  The only file that knows
 * NVRTC. */
#include <dlfcn.h>

#include "base/autotune.h"
#include "tune/target.h"

typedef int cu_result;
typedef void *cu_handle; /* contexts, modules, functions, streams, events, graphs */
typedef unsigned long long cu_pointer;

/* Names of the driver's attributes (cuda.h). */
enum {
    DEVICE_THREADS_PER_SM = 39,
    DEVICE_MAJOR = 75,
    DEVICE_MINOR = 76,
    DEVICE_SHARED_PER_SM = 81,
    DEVICE_REGISTERS_PER_SM = 82,
    DEVICE_SHARED_OPT_IN = 97,
    FUNC_STATIC_SHARED = 1,
    FUNC_LOCAL = 3,
    FUNC_REGISTERS = 4,
    FUNC_DYNAMIC_SHARED = 8,
    CAPTURE_THREAD_LOCAL = 1,
    STREAM_NON_BLOCKING = 1,
    MIN_SM = 80
};

#define DRIVER(X)                                                                                  \
    X(cuInit, (unsigned flags))                                                                    \
    X(cuDriverGetVersion, (int *version))                                                          \
    X(cuDeviceGet, (int *device, int ordinal))                                                     \
    X(cuDeviceGetName, (char *name, int n, int device))                                            \
    X(cuDeviceGetAttribute, (int *value, int attribute, int device))                               \
    X(cuDevicePrimaryCtxRetain, (cu_handle * context, int device))                                 \
    X(cuDevicePrimaryCtxRelease_v2, (int device))                                                  \
    X(cuCtxSetCurrent, (cu_handle context))                                                        \
    X(cuMemAlloc_v2, (cu_pointer * out, size_t bytes))                                             \
    X(cuMemFree_v2, (cu_pointer memory))                                                           \
    X(cuMemcpyHtoD_v2, (cu_pointer to, const void *from, size_t bytes))                            \
    X(cuMemcpyDtoH_v2, (void *to, cu_pointer from, size_t bytes))                                  \
    X(cuMemsetD8Async, (cu_pointer to, unsigned char byte, size_t n, cu_handle stream))            \
    X(cuStreamCreate, (cu_handle * stream, unsigned flags))                                        \
    X(cuStreamDestroy_v2, (cu_handle stream))                                                      \
    X(cuStreamSynchronize, (cu_handle stream))                                                     \
    X(cuStreamBeginCapture_v2, (cu_handle stream, int mode))                                       \
    X(cuStreamEndCapture, (cu_handle stream, cu_handle * graph))                                   \
    X(cuGraphInstantiateWithFlags, (cu_handle * out, cu_handle graph, unsigned long long flags))   \
    X(cuGraphLaunch, (cu_handle graph, cu_handle stream))                                          \
    X(cuGraphExecDestroy, (cu_handle graph))                                                       \
    X(cuGraphDestroy, (cu_handle graph))                                                           \
    X(cuModuleLoadData, (cu_handle * out, const void *image))                                      \
    X(cuModuleUnload, (cu_handle module))                                                          \
    X(cuModuleGetFunction, (cu_handle * out, cu_handle module, const char *name))                  \
    X(cuFuncSetAttribute, (cu_handle function, int attribute, int value))                          \
    X(cuFuncGetAttribute, (int *value, int attribute, cu_handle function))                         \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                 \
      (int *blocks, cu_handle function, int threads, size_t shared))                               \
    X(cuLaunchKernel,                                                                              \
      (cu_handle function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,           \
       unsigned bz, unsigned shared, cu_handle stream, void **args, void **extra))                 \
    X(cuEventCreate, (cu_handle * event, unsigned flags))                                          \
    X(cuEventRecord, (cu_handle event, cu_handle stream))                                          \
    X(cuEventSynchronize, (cu_handle event))                                                       \
    X(cuEventElapsedTime, (float *ms, cu_handle from, cu_handle to))                               \
    X(cuEventDestroy_v2, (cu_handle event))                                                        \
    X(cuGetErrorString, (cu_result result, const char **text))

#define NVRTC(X)                                                                                   \
    X(nvrtcVersion, (int *major, int *minor))                                                      \
    X(nvrtcCreateProgram, (cu_handle * out, const char *source, const char *name, int n,           \
                           const char *const *headers, const char *const *names))                  \
    X(nvrtcCompileProgram, (cu_handle program, int n, const char *const *options))                 \
    X(nvrtcGetCUBINSize, (cu_handle program, size_t * bytes))                                      \
    X(nvrtcGetCUBIN, (cu_handle program, char *code))                                              \
    X(nvrtcGetProgramLogSize, (cu_handle program, size_t * bytes))                                 \
    X(nvrtcGetProgramLog, (cu_handle program, char *log))                                          \
    X(nvrtcDestroyProgram, (cu_handle * program))

#define AS_MEMBER(name, arguments) cu_result(*name) arguments;
typedef struct cuda_libraries {
    DRIVER(AS_MEMBER)
    NVRTC(AS_MEMBER)
    void *driver, *nvrtc; /* NULL until all functions were found; never closed */
} cuda_libraries;

static cuda_libraries cu;

#define LOOK_UP(name, arguments)                                                                   \
    if ((*(void **)&cu.name = dlsym(library, #name)) == NULL) missing = #name;

static status open_nvrtc(void) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                        "/usr/local/cuda/lib64/libnvrtc.so"};
    const char *missing = NULL;
    void *library = NULL;
    if (cu.nvrtc != NULL) return OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return fail(ERR_UNSUPPORTED, "plans on a GPU need NVRTC, but libnvrtc.so was not found: "
                                     "install NVIDIA's CUDA toolkit, "
                                     "or add its folder to LD_LIBRARY_PATH");
    NVRTC(LOOK_UP)
    if (missing != NULL)
        return fail(ERR_UNSUPPORTED, "libnvrtc has no %s; CUDA 11.2 or newer is needed", missing);
    cu.nvrtc = library;
    return OK;
}

static status open_driver(void) {
    const char *missing = NULL;
    void *library = cu.driver != NULL ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (cu.driver != NULL) return OK;
    if (library == NULL)
        return fail(
            ERR_DEVICE,
            "no NVIDIA driver: libcuda.so.1 was not found; --device cpu runs plans on the CPU");
    DRIVER(LOOK_UP)
    if (missing != NULL)
        return fail(ERR_DEVICE, "the NVIDIA driver has no %s; it is too old", missing);
    cu.driver = library;
    return OK;
}

bool target_nvrtc_version(char *text, size_t n) {
    int major, minor;
    if (open_nvrtc() != OK || cu.nvrtcVersion(&major, &minor) != 0) return false;
    snprintf(text, n, "%d.%d", major, minor);
    return true;
}

typedef struct cuda_target {
    target base;
    kernel_cache cache;
    int device, sm;
    cu_handle context, stream, before, after;
    bool has_context, has_stream;
    bool is_owner; /* of the backend */
    char name[128], identity[128];
} cuda_target;

struct target_kernel {
    cu_handle module, function;
    int threads;
    int64_t shared_bytes;
};

/* What a user can do about an error of the driver.  After the last kind no call on the device works
 * any more: a kernel failed, memory is damaged, or the card is gone. */
static const char *remedy(cu_result result) {
    static const int lost[] = {4, 46, 214, 220, 700, 709, 710, 714, 715, 716, 717, 718, 719, 999};
    if (result == 2) return "; choose a smaller batch or length";
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++)
        if (result == lost[i])
            return "; the GPU is lost to this process: 'nvidia-smi' and the system's log (NVRM: "
                   "Xid) tell why, and --device cpu runs plans on the CPU";
    return "";
}

static status check(cu_result result, const char *what) {
    const char *text = NULL;
    if (result == 0) return OK;
    cu.cuGetErrorString(result, &text);
    return fail(result == 2 ? ERR_NOMEM : ERR_DEVICE, "the GPU refuses %s: %s (error %d)%s", what,
                text != NULL ? text : "no reason given", result, remedy(result));
}
#define CU(call) TRY(check(cu.call, #call))

/* NVRTC's log, for a message. */
static status refuse_source(cu_handle program) {
    size_t n = 0;
    char *log;
    if (cu.nvrtcGetProgramLogSize(program, &n) != 0 || n == 0)
        return fail(ERR_UNSUPPORTED, "NVRTC rejected a kernel");
    TRY(mem_alloc((void **)&log, n + 1, 1));
    (void)cu.nvrtcGetProgramLog(program, log);
    status st = fail(ERR_UNSUPPORTED, "NVRTC cannot compile a generated kernel: %.800s", log);
    mem_free(log);
    return st;
}

status target_compile_cuda(const buf *source, int sm, buf *cubin) {
    char arch[32];
    const char *options[] = {arch, "--std=c++17", "--extra-device-vectorization"};
    cu_handle program;
    size_t n = 0;
    TRY(open_nvrtc());
    snprintf(arch, sizeof arch, sm == 90 ? "--gpu-architecture=sm_90a" : "--gpu-architecture=sm_%d",
             sm);
    if (cu.nvrtcCreateProgram(&program, buf_str(source), "kernel.cu", 0, NULL, NULL) != 0)
        return fail(ERR_NOMEM, "NVRTC is out of memory");
    status st = cu.nvrtcCompileProgram(program, 3, options) == 0 ? OK : refuse_source(program);
    if (st == OK && (cu.nvrtcGetCUBINSize(program, &n) != 0 || n == 0))
        st = fail(ERR_UNSUPPORTED, "this NVRTC cannot generate code for sm_%d", sm);
    if (st == OK) st = buf_reserve(cubin, n);
    if (st == OK) {
        (void)cu.nvrtcGetCUBIN(program, cubin->data + cubin->n_bytes);
        cubin->n_bytes += n;
    }
    (void)cu.nvrtcDestroyProgram(&program);
    return st;
}

static status find_code(cuda_target *t, const buf *source, buf *cubin) {
    kernel_key key = kernel_key_of(source, t->identity);
    bool is_found;
    TRY(kernel_cache_find(&t->cache, &key, "cubin", cubin, &is_found, NULL));
    if (is_found) return OK;
    TRY(target_compile_cuda(source, t->sm, cubin));
    status st = kernel_cache_store(&t->cache, &key, "cubin", cubin->data, cubin->n_bytes);
    return st != ERR_IO ? st : fail_prefix(st, "keeping a kernel (--cache chooses another folder)");
}

static status load(cuda_target *t, const buf *cubin, const char *name, target_kernel *k) {
    CU(cuCtxSetCurrent(t->context));
    CU(cuModuleLoadData(&k->module, cubin->data));
    CU(cuModuleGetFunction(&k->function, k->module, name));
    if (k->shared_bytes > 0)
        CU(cuFuncSetAttribute(k->function, FUNC_DYNAMIC_SHARED, (int)k->shared_bytes));
    return OK;
}

static void release(target *base, target_kernel *k) {
    if (k == NULL) return;
    (void)cu.cuCtxSetCurrent(((cuda_target *)base)->context);
    if (k->module != NULL) (void)cu.cuModuleUnload(k->module);
    mem_free(k);
}

static status compile(target *base, const kernel_spec *s, target_kernel **out) {
    cuda_target *t = (cuda_target *)base;
    char name[EMIT_NAME_BYTES];
    buf source = {0}, cubin = {0};
    target_kernel *k;
    *out = NULL;
    TRY(MEM_NEW(&k, 1));
    emit_name(s, name);
    k->threads = emit_threads(s);
    status st = emit_kernel(s, &source, &k->shared_bytes);
    if (st == OK) st = find_code(t, &source, &cubin);
    if (st == OK) st = load(t, &cubin, name, k);
    buf_fini(&source);
    buf_fini(&cubin);
    if (st == OK)
        *out = k;
    else
        release(base, k);
    return st;
}

static int attribute(const cuda_target *t, int which) {
    int value = 0;
    (void)cu.cuDeviceGetAttribute(&value, which, t->device);
    return value;
}

/* The resource of which a multiprocessor has too little for one more block. */
static const char *limit_of(const cuda_target *t, const kernel_facts *f) {
    int64_t shared =
        f->shared_bytes + f->static_shared_bytes + 1024; /* the driver's own kilobyte */
    int next = f->blocks_per_sm + 1;
    int64_t registers = (f->registers + 7) / 8 * 8; /* handed out by eight a thread */
    if (next * f->threads > attribute(t, DEVICE_THREADS_PER_SM)) return "threads";
    if (next * shared > attribute(t, DEVICE_SHARED_PER_SM)) return "shared memory";
    if (next * f->threads * registers > attribute(t, DEVICE_REGISTERS_PER_SM)) return "registers";
    return "blocks";
}

static status facts(target *base, const target_kernel *k, kernel_facts *out) {
    const cuda_target *t = (cuda_target *)base;
    int value;
    CU(cuCtxSetCurrent(t->context));
    out->threads = k->threads;
    out->shared_bytes = k->shared_bytes;
    CU(cuFuncGetAttribute(&value, FUNC_STATIC_SHARED, k->function));
    out->static_shared_bytes = value;
    CU(cuFuncGetAttribute(&value, FUNC_LOCAL, k->function));
    out->local_bytes = value;
    CU(cuFuncGetAttribute(&out->registers, FUNC_REGISTERS, k->function));
    CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&out->blocks_per_sm, k->function, k->threads,
                                                   (size_t)k->shared_bytes));
    out->max_warps_per_sm = attribute(t, DEVICE_THREADS_PER_SM) / 32;
    out->limited_by = limit_of(t, out);
    return OK;
}

static status launch(target *base, const target_kernel *k, const kernel_args *args,
                     int64_t n_blocks) {
    cuda_target *t = (cuda_target *)base;
    void *list[] = {(void *)args};
    if (n_blocks == 0) return OK;
    if (n_blocks > INT32_MAX)
        return fail(ERR_USAGE, "a kernel would need %lld blocks", (long long)n_blocks);
    CU(cuLaunchKernel(k->function, (unsigned)n_blocks, 1, 1, (unsigned)k->threads, 1, 1,
                      (unsigned)k->shared_bytes, t->stream, list, NULL));
    return OK;
}

static status alloc(target *base, void **out, size_t bytes) {
    cuda_target *t = (cuda_target *)base;
    cu_pointer memory = 0;
    *out = NULL;
    CU(cuCtxSetCurrent(t->context));
    CU(cuMemAlloc_v2(&memory, bytes > 0 ? bytes : 1));
    *out = (void *)(uintptr_t)memory;
    return OK;
}

static void release_memory(target *base, void *memory) {
    if (memory != NULL) (void)cu.cuMemFree_v2((cu_pointer)(uintptr_t)memory);
}

static status wait_all(target *base) {
    CU(cuStreamSynchronize(((cuda_target *)base)->stream));
    return OK;
}

static status write_memory(target *base, void *to, const void *from, size_t bytes) {
    TRY(wait_all(base));
    CU(cuMemcpyHtoD_v2((cu_pointer)(uintptr_t)to, from, bytes));
    return OK;
}

static status read_memory(target *base, void *to, const void *from, size_t bytes) {
    TRY(wait_all(base));
    CU(cuMemcpyDtoH_v2(to, (cu_pointer)(uintptr_t)from, bytes));
    return OK;
}

static status fill(target *base, void *to, int byte, size_t bytes) {
    CU(cuMemsetD8Async((cu_pointer)(uintptr_t)to, (unsigned char)byte, bytes,
                       ((cuda_target *)base)->stream));
    return OK;
}

/* Launches the graph n times between two events. */
static status time_round(cuda_target *t, cu_handle graph, int n, double *out) {
    float ms;
    CU(cuEventRecord(t->before, t->stream));
    for (int i = 0; i < n; i++)
        CU(cuGraphLaunch(graph, t->stream));
    CU(cuEventRecord(t->after, t->stream));
    CU(cuEventSynchronize(t->after));
    CU(cuEventElapsedTime(&ms, t->before, t->after));
    *out = ms * 1e-3 / n;
    return OK;
}

static status time_graph(cuda_target *t, cu_handle graph, int rounds, double *seconds) {
    double once = 0;
    CU(cuGraphLaunch(graph, t->stream));
    TRY(time_round(t, graph, 1, &once));
    int n = autotune_calls(once, TARGET_ROUND);
    for (int i = 0; i < rounds; i++)
        TRY(time_round(t, graph, n, &seconds[i]));
    return OK;
}

/* A plan runs as one CUDA graph: launches cost the device's time, not the host's.  A first call
 * outside makes whatever the plan allocates. */
static status time_calls(target *base, status (*run)(void *ctx), void *ctx, int rounds,
                         double *seconds) {
    cuda_target *t = (cuda_target *)base;
    cu_handle graph = NULL, ready = NULL;
    TRY(run(ctx));
    TRY(wait_all(base));
    CU(cuStreamBeginCapture_v2(t->stream, CAPTURE_THREAD_LOCAL));
    status st = run(ctx);
    status ended = check(cu.cuStreamEndCapture(t->stream, &graph), "the capture of a plan");
    if (st == OK) st = ended;
    if (st == OK) st = check(cu.cuGraphInstantiateWithFlags(&ready, graph, 0), "a graph");
    if (st == OK) st = time_graph(t, ready, rounds, seconds);
    if (ready != NULL) (void)cu.cuGraphExecDestroy(ready);
    if (graph != NULL) (void)cu.cuGraphDestroy(graph);
    return st;
}

static void destroy(target *base) {
    cuda_target *t = (cuda_target *)base;
    if (t->is_owner) backend_destroy(t->base.be);
    if (t->before != NULL) (void)cu.cuEventDestroy_v2(t->before);
    if (t->after != NULL) (void)cu.cuEventDestroy_v2(t->after);
    if (t->has_stream) (void)cu.cuStreamDestroy_v2(t->stream);
    if (t->has_context) (void)cu.cuDevicePrimaryCtxRelease_v2(t->device);
    mem_free(t);
}

static status open_device(cuda_target *t, int ordinal) {
    int major, minor;
    CU(cuInit(0));
    CU(cuDeviceGet(&t->device, ordinal));
    CU(cuDeviceGetName(t->name, sizeof t->name, t->device));
    CU(cuDevicePrimaryCtxRetain(&t->context, t->device));
    t->has_context = true;
    CU(cuCtxSetCurrent(t->context));
    t->sm = attribute(t, DEVICE_MAJOR) * 10 + attribute(t, DEVICE_MINOR);
    if (t->sm < MIN_SM)
        return fail(ERR_DEVICE, "%s has compute capability %d.%d; 8.0 is needed", t->name,
                    t->sm / 10, t->sm % 10);
    snprintf(t->base.arch, sizeof t->base.arch, "sm_%d", t->sm);
    t->base.shared_limit = attribute(t, DEVICE_SHARED_OPT_IN);
    CU(cuEventCreate(&t->before, 0));
    CU(cuEventCreate(&t->after, 0));
    if (cu.nvrtcVersion(&major, &minor) != 0) major = minor = 0;
    snprintf(t->identity, sizeof t->identity, "NVRTC %d.%d sm_%d", major, minor, t->sm);
    return OK;
}

/* Kernels run on the backend's stream, in order with its ops.  A build without CUDA has no backend:
 * then generated kernels run on a stream of their own, and nothing else. */
static status open_stream(cuda_target *t, int ordinal, act_type act) {
    cuda_options own = {.device = ordinal};
    backend *be = t->base.be;
    if (be == NULL && backend_create_cuda(&be, &own) == OK) {
        t->is_owner = true;
        t->base.be = be;
        TRY(be->ops->set_precision(be, act, false));
    }
    if (be != NULL) {
        t->stream = be->ops->stream(be);
        return OK;
    }
    CU(cuStreamCreate(&t->stream, STREAM_NON_BLOCKING));
    t->has_stream = true;
    return OK;
}

static status create(target **out, backend *be, int device, act_type act,
                     const kernel_cache *cache) {
    cuda_target *t;
    *out = NULL;
    TRY(open_driver());
    TRY(open_nvrtc());
    TRY(MEM_NEW(&t, 1));
    t->cache = *cache;
    t->base = (target){.name = t->name,
                       .is_cuda = true,
                       .act = act,
                       .be = be,
                       .compile = compile,
                       .release = release,
                       .facts = facts,
                       .launch = launch,
                       .alloc = alloc,
                       .release_memory = release_memory,
                       .write = write_memory,
                       .read = read_memory,
                       .fill = fill,
                       .wait = wait_all,
                       .time = time_calls,
                       .destroy = destroy};
    status st = open_device(t, device);
    if (st == OK) st = open_stream(t, device, act);
    if (st == OK)
        *out = &t->base;
    else
        destroy(&t->base);
    return st;
}

status target_create_cuda(target **out, int device, act_type act, const kernel_cache *cache) {
    return create(out, NULL, device, act, cache);
}

status target_create_cuda_on(target **out, backend *be, const kernel_cache *cache) {
    int device = 0;
    if (sscanf(be->name, "cuda:%d", &device) != 1)
        return fail(ERR_DEVICE, "'%s' is not the name of a GPU", be->name);
    return create(out, be, device, be->act, cache);
}
