/* Copies between host and device that do not make the host wait.
 *
 * To the device: the bytes are copied into a slot of pinned memory (so the caller may overwrite its
 * own), then, on a second stream that overlaps with the running step, to a slot on the device, and,
 * when the previous step is done, by a copy within the device to their destination.  So no step
 * waits for the bus; the host waits only when it is a whole ring of slots ahead.  Copies larger
 * than a slot go in pieces.  A copy while the device is idle goes straight to its destination: an
 * encoder's or a server's request would otherwise wait for two streams to meet.  To the host: into
 * pinned memory, with an event to wait for, or, where the host waits at once, the same way for what
 * is small: into memory that is not pinned the driver takes ten times as long.  What the caller has
 * laid out in memory of host_alloc is copied from there, also by a recorded step (op `copy`).
 *
 * Pages of keys and values move on a stream of their own (kv_move_args in ops.h): the copies start
 * after the ops called before them and overlap with those called later, until kv_wait orders these
 * after them.  So the pages of a layer are copied while the layers before it are computed. */
#include "cuda/core/kernel.cuh"

enum { N_SLOTS = 8, HOST_BLOCKS = 16 };
static const size_t SLOT_BYTES = 4 << 20;
static const size_t OUT_BYTES = 64 << 10;

typedef struct slot {
    char *pinned, *device;
    cudaEvent_t there;                                  /* on the device */
    cudaEvent_t taken;                                  /* and where it belongs: the slot is free */
    enum { SLOT_FREE, SLOT_RECORDED, SLOT_DIRECT } use; /* direct: `taken` is not recorded */
} slot;

typedef struct late {
    char *pinned; /* (FETCH_MAX) */
    void *to_host;
    size_t bytes;
    uint64_t ticket; /* 0: free */
    cudaEvent_t done;
} late;

/* Memory of host_alloc; of more blocks than HOST_BLOCKS the last ones are not known. */
typedef struct host_block {
    char *at;
    size_t bytes;
} host_block;

struct cuda_copies {
    cudaStream_t stream;
    char *out; /* (OUT_BYTES), pinned */
    slot slots[N_SLOTS];
    int next, n_direct; /* n_direct: slots of that use */
    late lates[FETCH_PENDING];
    uint64_t n_tickets;
    host_block blocks[HOST_BLOCKS]; /* (n_blocks) */
    int n_blocks;
};

static status make_slots(cuda_copies *c) {
    CUDA_TRY(cudaMallocHost((void **)&c->out, OUT_BYTES));
    for (int i = 0; i < N_SLOTS; i++) {
        slot *s = &c->slots[i];
        CUDA_TRY(cudaMallocHost((void **)&s->pinned, SLOT_BYTES));
        CUDA_TRY(cudaMalloc((void **)&s->device, SLOT_BYTES));
        CUDA_TRY(cudaEventCreateWithFlags(&s->there, cudaEventDisableTiming));
        CUDA_TRY(cudaEventCreateWithFlags(&s->taken, cudaEventDisableTiming));
    }
    for (int i = 0; i < FETCH_PENDING; i++) {
        CUDA_TRY(cudaMallocHost((void **)&c->lates[i].pinned, FETCH_MAX));
        CUDA_TRY(cudaEventCreateWithFlags(&c->lates[i].done, cudaEventDisableTiming));
    }
    return OK;
}

status cuda_copies_create(cuda_copies **out) {
    TRY(MEM_NEW(out, 1));
    CUDA_TRY(cudaStreamCreateWithFlags(&(*out)->stream, cudaStreamNonBlocking));
    return make_slots(*out);
}

static void destroy_event(cudaEvent_t event) {
    if (event != NULL) cudaEventDestroy(event);
}

void cuda_copies_destroy(cuda_copies *c) {
    if (c == NULL) return;
    if (c->stream != NULL) cudaStreamSynchronize(c->stream);
    cudaFreeHost(c->out);
    for (int i = 0; i < N_SLOTS; i++) {
        cudaFreeHost(c->slots[i].pinned);
        cudaFree(c->slots[i].device);
        destroy_event(c->slots[i].there);
        destroy_event(c->slots[i].taken);
    }
    for (int i = 0; i < FETCH_PENDING; i++) {
        cudaFreeHost(c->lates[i].pinned);
        destroy_event(c->lates[i].done);
    }
    if (c->stream != NULL) cudaStreamDestroy(c->stream);
    mem_free(c);
}

status cuda_host_alloc(backend *be, void **out, size_t bytes) {
    cuda_copies *c = cuda_of(be)->copies;
    *out = NULL;
    cudaError_t error = cudaMallocHost(out, bytes > 0 ? bytes : 1);
    if (error != cudaSuccess) {
        *out = NULL;
        cudaGetLastError();
        return fail(ERR_NOMEM,
                    "cannot allocate %.1f GB of page-locked host memory (%s); request less",
                    (double)bytes / 1e9, cudaGetErrorString(error));
    }
    if (c != NULL && c->n_blocks < HOST_BLOCKS)
        c->blocks[c->n_blocks++] = host_block{(char *)*out, bytes};
    return OK;
}

void cuda_host_release(backend *be, void *memory) {
    cuda_copies *c = cuda_of(be)->copies;
    if (memory == NULL) return;
    for (int i = 0; c != NULL && i < c->n_blocks; i++)
        if (c->blocks[i].at == memory) c->blocks[i--] = c->blocks[--c->n_blocks];
    cudaFreeHost(memory);
    cudaGetLastError();
}

static bool is_of_host(const cuda_copies *c, const void *memory) {
    const char *at = (const char *)memory;
    for (int i = 0; c != NULL && i < c->n_blocks; i++)
        if (at >= c->blocks[i].at && at < c->blocks[i].at + c->blocks[i].bytes) return true;
    return false;
}

/* Copies of at most HOST_COPY_MOST bytes between the device and pinned memory are made by a kernel:
 * cudaMemcpyAsync starts when the previous kernel is complete, this one earlier (early_begin_alone,
 * which depends on __CUDA_ARCH__).  On an H200 (2026-11-17), us with a kernel before or after and
 * the wait: to the device                               to the host 8 KB   24 KB   64 KB   192 KB
 * 288 KB      5 KB   40 KB
 *     cudaMemcpyAsync    14.9    15.3    21.8     27.2     28.3      18.4    18.4
 *     kernel             13.8    13.8    15.2     20.9     24.0      11.0    11.7 */
enum {
    HOST_COPY_THREADS = 256,
    HOST_COPY_BLOCKS = 128,
    HOST_COPY_MOST = 512 << 10 /* bytes */
};

typedef struct host_copy_job {
    int64_t n;
    const uint4 *from;
    uint4 *to;
} host_copy_job;

/* 16 bytes a thread at a time, past the caches: the host may have written other bytes since. */
static __global__ void __launch_bounds__(HOST_COPY_THREADS)
    host_copy_any_kernel(const host_copy_job j) {
    int64_t step = (int64_t)gridDim.x * HOST_COPY_THREADS;
    early_begin_alone();
    for (int64_t i = (int64_t)blockIdx.x * HOST_COPY_THREADS + threadIdx.x; i < j.n; i += step)
        j.to[i] = __ldcv(j.from + i);
}

static bool host_copy_can(const void *to, const void *from, size_t bytes) {
    const size_t size = sizeof(uint4);
    return bytes > 0 && bytes <= HOST_COPY_MOST && bytes % size == 0 && (uintptr_t)to % size == 0 &&
           (uintptr_t)from % size == 0;
}

static status host_copy(backend *be, void *to, const void *from, size_t bytes) {
    host_copy_job j = {(int64_t)(bytes / sizeof(uint4)), (const uint4 *)from, (uint4 *)to};
    int64_t n_blocks = cuda_div_up(j.n, HOST_COPY_THREADS);
    if (n_blocks > HOST_COPY_BLOCKS) n_blocks = HOST_COPY_BLOCKS;
    return cuda_launch_early(be, "a copy to or from the host", host_copy_any_kernel, n_blocks,
                             HOST_COPY_THREADS, 0, j);
}

status cuda_copy(backend *be, void *to, const void *from, size_t bytes) {
    cuda_state *s = cuda_of(be);
    if (bytes == 0) return OK;
    TRY(cuda_enter(be));
    bool is_in = is_of_host(s->copies, from);
    if (is_in && host_copy_can(to, from, bytes)) return host_copy(be, to, from, bytes);
    cudaMemcpyKind kind = is_in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice;
    CUDA_TRY(cudaMemcpyAsync(to, from, bytes, kind, s->stream));
    return OK;
}

static bool is_idle(const cuda_state *s) {
    cudaError_t error = cudaStreamQuery(s->stream);
    if (error == cudaErrorNotReady) (void)cudaGetLastError(); /* it is no error, but kept as one */
    return error == cudaSuccess;
}

/* Nothing runs that the copy could overlap with. */
static status send_direct(backend *be, slot *at, char *to, size_t bytes) {
    if (at->use != slot::SLOT_DIRECT) cuda_of(be)->copies->n_direct++;
    at->use = slot::SLOT_DIRECT;
    if (host_copy_can(to, at->pinned, bytes)) return host_copy(be, to, at->pinned, bytes);
    CUDA_TRY(cudaMemcpyAsync(to, at->pinned, bytes, cudaMemcpyHostToDevice, cuda_of(be)->stream));
    return OK;
}

/* Records the events of direct copies: late, as an idle device waits for every call of the host,
 * but before their slots' turn comes, which would have to wait for all work of a busy device. */
static status record_direct(cuda_state *s) {
    cuda_copies *c = s->copies;
    cudaStream_t main = s->side.main != NULL ? s->side.main : s->stream;
    for (int i = 0; c->n_direct > 0 && i < N_SLOTS; i++) {
        slot *at = &c->slots[i];
        if (at->use != slot::SLOT_DIRECT) continue;
        CUDA_TRY(cudaEventRecord(at->taken, main));
        at->use = slot::SLOT_RECORDED;
        c->n_direct--;
    }
    return OK;
}

static status send_piece(backend *be, char *to, const char *from, size_t bytes) {
    cuda_state *s = cuda_of(be);
    cuda_copies *c = s->copies;
    slot *at = &c->slots[c->next];
    bool has_idle = s->side.main == NULL && is_idle(s);
    c->next = (c->next + 1) % N_SLOTS;
    if (!has_idle) TRY(record_direct(s));
    if (at->use == slot::SLOT_RECORDED) CUDA_TRY(cuda_wait_event(at->taken));
    memcpy(at->pinned, from, bytes);
    if (has_idle) return send_direct(be, at, to, bytes);
    CUDA_TRY(cudaMemcpyAsync(at->device, at->pinned, bytes, cudaMemcpyHostToDevice, c->stream));
    CUDA_TRY(cudaEventRecord(at->there, c->stream));
    CUDA_TRY(cudaStreamWaitEvent(s->stream, at->there, 0));
    CUDA_TRY(cudaMemcpyAsync(to, at->device, bytes, cudaMemcpyDeviceToDevice, s->stream));
    CUDA_TRY(cudaEventRecord(at->taken, s->stream));
    at->use = slot::SLOT_RECORDED;
    return OK;
}

status cuda_copy_in(backend *be, void *to, const void *from_host, size_t bytes) {
    TRY(cuda_enter(be));
    /* A guest has no slots.  From pageable memory the call returns when the bytes have been read.
     */
    if (cuda_of(be)->is_guest) {
        CUDA_TRY(
            cudaMemcpyAsync(to, from_host, bytes, cudaMemcpyHostToDevice, cuda_of(be)->stream));
        return OK;
    }
    for (size_t at = 0; at < bytes; at += SLOT_BYTES) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        TRY(send_piece(be, (char *)to + at, (const char *)from_host + at, n));
    }
    return OK;
}

/* Bytes on their way to pinned memory, where the host waits for them. */
static status read_small(backend *be, const void *from, size_t bytes) {
    cuda_state *s = cuda_of(be);
    char *to = s->copies->out;
    if (host_copy_can(to, from, bytes)) return host_copy(be, to, from, bytes);
    CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, s->stream));
    return OK;
}

status cuda_copy_out(backend *be, void *to_host, const void *from, size_t bytes) {
    cuda_state *s = cuda_of(be);
    TRY(cuda_enter(be));
    bool is_small = s->copies != NULL && bytes <= OUT_BYTES;
    if (bytes > 0 && is_small)
        TRY(read_small(be, from, bytes));
    else if (bytes > 0)
        CUDA_TRY(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, s->stream));
    CUDA_TRY(cuda_wait_stream(s->stream));
    if (is_small && bytes > 0) memcpy(to_host, s->copies->out, bytes);
    return OK;
}

status cuda_fetch(backend *be, void *to_host, const void *from, size_t bytes, uint64_t *ticket) {
    cuda_state *s = cuda_of(be);
    cuda_copies *c = s->copies;
    late *l = &c->lates[c->n_tickets % FETCH_PENDING];
    if (l->ticket != 0 || bytes > FETCH_MAX)
        return fail(ERR_USAGE, "a fetch of %zu bytes with %d under way; at most %d bytes and %d",
                    bytes, (int)FETCH_PENDING, (int)FETCH_MAX, (int)FETCH_PENDING);
    CUDA_TRY(cudaMemcpyAsync(l->pinned, from, bytes, cudaMemcpyDeviceToHost, s->stream));
    CUDA_TRY(cudaEventRecord(l->done, s->stream));
    l->to_host = to_host;
    l->bytes = bytes;
    l->ticket = *ticket = ++c->n_tickets;
    return OK;
}

status cuda_wait(backend *be, uint64_t ticket) {
    cuda_copies *c = cuda_of(be)->copies;
    if (ticket == 0) return OK;
    late *l = &c->lates[(ticket - 1) % FETCH_PENDING];
    if (l->ticket != ticket)
        return fail(ERR_USAGE, "ticket %llu was waited for already, or never given",
                    (unsigned long long)ticket);
    l->ticket = 0;
    CUDA_TRY(cuda_wait_event(l->done));
    memcpy(l->to_host, l->pinned, l->bytes);
    return OK;
}

struct cuda_moves {
    cudaStream_t stream;
    cudaEvent_t before;               /* of the ops' stream */
    cudaEvent_t done[KV_MOVE_STAGES]; /* of the copies of a stage */
};

void cuda_moves_destroy(cuda_moves *m) {
    if (m == NULL) return;
    if (m->stream != NULL) cudaStreamSynchronize(m->stream);
    if (m->before != NULL) cudaEventDestroy(m->before);
    for (int i = 0; i < KV_MOVE_STAGES; i++)
        if (m->done[i] != NULL) cudaEventDestroy(m->done[i]);
    if (m->stream != NULL) cudaStreamDestroy(m->stream);
    mem_free(m);
}

/* What a failure leaves half made is destroyed with the backend. */
static status moves_of(cuda_state *s, cuda_moves **out) {
    *out = s->moves;
    if (s->moves != NULL) return OK;
    TRY(MEM_NEW(&s->moves, 1));
    cuda_moves *m = *out = s->moves;
    CUDA_TRY(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&m->before, cudaEventDisableTiming));
    for (int i = 0; i < KV_MOVE_STAGES; i++)
        CUDA_TRY(cudaEventCreateWithFlags(&m->done[i], cudaEventDisableTiming));
    return OK;
}

status cuda_kv_move(backend *be, const kv_move_args *a) {
    cuda_state *s = cuda_of(be);
    cuda_moves *m;
    char *device = (char *)a->device, *host = (char *)a->host;
    TRY(moves_of(s, &m));
    if (a->stage == 0) {
        CUDA_TRY(cudaEventRecord(m->before, s->stream));
        CUDA_TRY(cudaStreamWaitEvent(m->stream, m->before, 0));
    }
    for (int32_t i = 0; i < a->n_out; i++)
        CUDA_TRY(cudaMemcpyAsync(host + (size_t)a->out[i].host * a->page_bytes,
                                 device + (size_t)a->out[i].device * a->page_bytes, a->page_bytes,
                                 cudaMemcpyDeviceToHost, m->stream));
    for (int32_t i = 0; i < a->n_in; i++)
        CUDA_TRY(cudaMemcpyAsync(device + (size_t)a->in[i].device * a->page_bytes,
                                 host + (size_t)a->in[i].host * a->page_bytes, a->page_bytes,
                                 cudaMemcpyHostToDevice, m->stream));
    CUDA_TRY(cudaEventRecord(m->done[a->stage], m->stream));
    return OK;
}

status cuda_kv_wait(backend *be, int stage) {
    cuda_state *s = cuda_of(be);
    if (s->moves == NULL) return OK;
    if (stage >= 0)
        CUDA_TRY(cudaStreamWaitEvent(s->stream, s->moves->done[stage], 0));
    else
        CUDA_TRY(cudaStreamSynchronize(s->moves->stream));
    return OK;
}
