/* The CUDA backend: a GPU's memory, its streams and the table of its ops; and the list of this
 * machine's GPUs (ops/device.h). */
#include "cuda/core/cuda.h"
#include "ops/device.h"
#include "ops/time_bucket.h"

enum { N_AHEAD = 2, TOKEN_BUCKET = 512 };

status cuda_failed(cudaError_t error, const char *what) {
    cudaGetLastError(); /* taken back, so that later calls start clean */
    if (error == cudaErrorMemoryAllocation) {
        size_t n_free = 0, n_all = 0;
        cudaMemGetInfo(&n_free, &n_all);
        return fail(ERR_NOMEM,
                    "the GPU's memory is full (%.1f of %.1f GB are free); make the batch, the "
                    "longest history or the model smaller, or let other programs leave the GPU",
                    (double)n_free / 1e9, (double)n_all / 1e9);
    }
    return fail(ERR_DEVICE, "%s failed: %s", what, cudaGetErrorString(error));
}

status cuda_alloc(backend *be, void **out, size_t bytes) {
    *out = NULL;
    TRY(cuda_enter(be));
    CUDA_TRY(cuda_wait_malloc(out, bytes > 0 ? bytes : 1));
    cudaError_t error = cudaMemsetAsync(*out, 0, bytes, cuda_of(be)->stream);
    if (error == cudaSuccess) return OK;
    cudaFree(*out);
    *out = NULL;
    return cuda_failed(error, "clearing new memory");
}

/* cudaFree waits for the device, so no running kernel loses its memory.  Recorded steps (CUDA
 * graphs) are dropped because they may hold the address: a model made later can get the same
 * memory, and hence the same key. */
void cuda_release(backend *be, void *memory) {
    if (memory == NULL) return;
    cuda_graphs_drop(cuda_of(be)->graphs);
    wait_kind before = waits_begin(WAIT_GPU);
    cudaFree(memory);
    waits_end(before);
}

status cuda_zero(backend *be, void *memory, size_t bytes) {
    if (bytes > 0) CUDA_TRY(cudaMemsetAsync(memory, 0, bytes, cuda_of(be)->stream));
    return OK;
}

status cuda_sync(backend *be) {
    cuda_state *s = cuda_of(be);
    CUDA_TRY(cuda_wait_stream(s->stream));
    if (s->side.has_work) CUDA_TRY(cuda_wait_stream(s->side.stream));
    return OK;
}

/* Work on the second stream is short and other work waits for it: it has the higher priority. */
static status make_side(cuda_side *side) {
    int least, greatest;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_TRY(cudaEventCreateWithFlags(&side->before, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&side->after, cudaEventDisableTiming));
    CUDA_TRY(cudaStreamCreateWithPriority(&side->stream, cudaStreamNonBlocking, greatest));
    return OK;
}

status cuda_aside(backend *be, bool is_on) {
    cuda_state *s = cuda_of(be);
    cuda_side *side = &s->side;
    if (is_on == (side->main != NULL))
        return fail(ERR_USAGE, "ops run %s already", is_on ? "aside" : "on the first stream");
    if (!is_on) {
        s->stream = side->main;
        side->main = NULL;
        return OK;
    }
    if (side->stream == NULL) TRY(make_side(side));
    CUDA_TRY(cudaEventRecord(side->before, s->stream));
    CUDA_TRY(cudaStreamWaitEvent(side->stream, side->before, 0));
    side->main = s->stream;
    s->stream = side->stream;
    side->has_work = true;
    return OK;
}

status cuda_rejoin(backend *be) {
    cuda_state *s = cuda_of(be);
    cuda_side *side = &s->side;
    if (!side->has_work) return OK;
    if (side->main != NULL) return fail(ERR_USAGE, "ops still run aside");
    CUDA_TRY(cudaEventRecord(side->after, side->stream));
    CUDA_TRY(cudaStreamWaitEvent(s->stream, side->after, 0));
    side->has_work = false;
    return OK;
}

void *cuda_stream(backend *be) {
    return cuda_of(be)->stream;
}

/* Allocates a quarter more than asked for: batches differ a little, and growing waits for the
 * device.  Recorded steps hold the address of the old block, so they are dropped with it. */
static status grow_own(cuda_state *s, cuda_block *block, size_t bytes) {
    size_t room = bytes + bytes / 4;
    CUDA_TRY(cuda_wait_stream(s->stream));
    cuda_graphs_drop(s->graphs);
    cudaFree(block->p);
    block->p = NULL;
    block->bytes = 0;
    CUDA_TRY(cuda_wait_malloc(&block->p, room));
    block->bytes = room;
    return OK;
}

/* The caller of a guest backend may have recorded the old block's address, so old blocks are kept
 * until the end; each new block is more than twice as large, so it is larger than all old ones
 * together. */
static status grow_guest(cuda_state *s, cuda_block *block, size_t bytes) {
    void *p;
    size_t room = bytes + block->bytes;
    CUDA_TRY(cudaMalloc(&p, room));
    if (block->p != NULL) s->old_blocks[s->n_old_blocks++] = block->p;
    block->p = p;
    block->bytes = room;
    return OK;
}

static status grow(backend *be, cuda_block *block, size_t bytes, void **out) {
    cuda_state *s = cuda_of(be);
    cudaStreamCaptureStatus capture;
    *out = block->p;
    if (bytes <= block->bytes) return OK;
    *out = NULL;
    CUDA_TRY(cudaStreamIsCapturing(s->stream, &capture));
    if (capture != cudaStreamCaptureStatusNone)
        return fail(ERR_DEVICE, "an op that is being recorded needs more scratch memory than any "
                                "before it; run it once without recording");
    TRY(s->is_guest ? grow_guest(s, block, bytes) : grow_own(s, block, bytes));
    *out = block->p;
    return OK;
}

status cuda_scratch(backend *be, size_t bytes, void **out) {
    return grow(be, &cuda_of(be)->scratch, bytes, out);
}

status cuda_list_scratch(backend *be, size_t bytes, void **out) {
    return grow(be, &cuda_of(be)->lists, bytes, out);
}

status cuda_mask_scratch(backend *be, size_t bytes, void **out) {
    return grow(be, &cuda_of(be)->mask_scratch, bytes, out);
}

/* Steps recorded in one precision are of no use in another. */
status cuda_set_precision(backend *be, act_type act, bool is_tf32) {
    cuda_state *s = cuda_of(be);
    TRY(cuda_sync(be));
    cuda_graphs_drop(s->graphs);
    be->act = act;
    s->is_tf32 = is_tf32;
    return OK;
}

static const ops cuda_ops = {
#define OP(result, name, parameters, arguments, test) .name = cuda_##name,
#include "ops/ops.def"
};

static void destroy_side(cuda_side *side) {
    if (side->stream != NULL) {
        cuda_wait_stream(side->stream);
        cudaStreamDestroy(side->stream);
    }
    if (side->before != NULL) cudaEventDestroy(side->before);
    if (side->after != NULL) cudaEventDestroy(side->after);
}

static void destroy(backend *be) {
    cuda_state *s = cuda_of(be);
    cudaSetDevice(s->device);
    if (s->is_guest) s->stream = NULL; /* the caller's; cudaFree waits for what runs on it */
    if (s->side.main != NULL) s->stream = s->side.main;
    if (s->stream != NULL) cuda_wait_stream(s->stream);
    destroy_side(&s->side);
    cuda_graphs_destroy(s->graphs);
    cuda_matmuls_destroy(s->matmuls);
    cuda_copies_destroy(s->copies);
    cuda_moves_destroy(s->moves);
    cudaFree(s->scratch.p);
    cudaFree(s->mask_scratch.p);
    cudaFree(s->lists.p);
    for (int i = 0; i < s->n_old_blocks; i++)
        cudaFree(s->old_blocks[i]);
    cudaFree((void *)s->bucket_cells);
    cudaFree(s->counters);
    if (s->stream != NULL) cudaStreamDestroy(s->stream);
    cudaGetLastError();
    mem_free(s);
    mem_free(be);
}

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

static status ask_card(cuda_state *s) {
    int most;
    cudaDeviceProp properties;
    CUDA_TRY(cudaGetDeviceProperties(&properties, s->device));
    snprintf(s->card, sizeof s->card, "%.127s", properties.name);
    s->n_multiprocessors = properties.multiProcessorCount;
    s->max_block_shared = (int)properties.sharedMemPerBlockOptin;
    s->sm = 10 * properties.major + properties.minor;
    if (s->sm < DEVICE_MIN_SM)
        return fail(ERR_DEVICE, "cuda:%d has SM %d.%d; SM 8.0 or newer is needed; use the CPU",
                    s->device, properties.major, properties.minor);
    TRY(env_cuda_sm(&most));
    if (most < s->sm) s->sm = most;
    return OK;
}

static status send_buckets(cuda_state *s) {
    const bucket_table *table = bucket_table_get();
    void *there;
    CUDA_TRY(cudaMalloc(&there, sizeof table->cell));
    s->bucket_cells = (const uint32_t *)there;
    CUDA_TRY(cudaMemcpy(there, table->cell, sizeof table->cell, cudaMemcpyHostToDevice));
    return OK;
}

static status make_counters(cuda_state *s) {
    const unsigned zeros[2] = {0, 0};
    CUDA_TRY(cudaMalloc((void **)&s->counters, sizeof zeros));
    CUDA_TRY(cudaMemcpy(s->counters, zeros, sizeof zeros, cudaMemcpyHostToDevice));
    return OK;
}

static status begin(cuda_state *s, const cuda_options *o) {
    const char *reason;
    int n = count_devices(&reason);
    s->device = o->device;
    s->is_deterministic = o->is_deterministic;
    s->is_guest = o->is_guest;
    snprintf(s->name, sizeof s->name, "cuda:%d", o->device);
    if (n == 0) return fail(ERR_DEVICE, "there is no GPU to use (%s); use the CPU", reason);
    if (o->device < 0 || o->device >= n)
        return fail(ERR_DEVICE, "there is no cuda:%d; this machine has cuda:0 to cuda:%d",
                    o->device, n - 1);
    CUDA_TRY(cudaSetDevice(o->device));
    TRY(ask_card(s));
    TRY(send_buckets(s));
    TRY(make_counters(s));
    if (s->is_guest) return OK;
    CUDA_TRY(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    TRY(cuda_copies_create(&s->copies));
    TRY(cuda_matmuls_create(&s->matmuls));
    return cuda_graphs_create(&s->graphs);
}

extern "C" status backend_create_cuda(backend **out, const cuda_options *options) {
    backend *be;
    cuda_state *s = NULL;
    *out = NULL;
    TRY(MEM_NEW(&be, 1));
    status st = MEM_NEW(&s, 1);
    if (st != OK) {
        mem_free(be);
        return st;
    }
    be->ops = &cuda_ops;
    be->tables = &cuda_table_ops;
    be->act = ACT_F32;
    be->name = s->name;
    be->card = s->card;
    be->state = s;
    be->destroy = destroy;
    be->n_ahead = N_AHEAD;
    be->token_bucket = TOKEN_BUCKET;
    wait_kind before = waits_begin(WAIT_GPU);
    st = begin(s, options);
    waits_end(before);
    if (st != OK) {
        failure f;
        failure_save(&f, st);
        destroy(be);
        return failure_restore(&f);
    }
    *out = be;
    return OK;
}

extern "C" status backend_visit_cuda(backend *be, const cuda_visit *visit) {
    cuda_state *s = cuda_of(be);
    int device;
    CUDA_TRY(cudaGetDevice(&device));
    if (device != s->device)
        return fail(ERR_USAGE,
                    "the current device is cuda:%d, but this was made for cuda:%d; call "
                    "cudaSetDevice(%d) first",
                    device, s->device, s->device);
    s->stream = (cudaStream_t)visit->stream;
    s->is_deterministic = visit->is_deterministic;
    be->act = visit->act;
    return OK;
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
