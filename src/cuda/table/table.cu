/* Dynamic tables on a GPU (ops/table.h): their memory, and the table of verbs.
 *
 * Host memory is managed memory that stays on the host.  The driver populates and maps it with
 * pages of 2 MiB; pinned memory is always mapped with small pages, and random row reads then suffer
 * TLB misses: rows of 256 bytes at random places of 16 GiB are read at 50.9 GB/s from managed
 * memory and at 9.7 GB/s from pinned memory (H200, 2026-11-15). */
#include "cuda/table/table.cuh"

/* Advises the driver on managed memory: where it stays, and who accesses it.  The functions
 * changed with CUDA 13. */
#if CUDART_VERSION >= 13000
static cudaError_t advise(void *memory, size_t bytes, cudaMemoryAdvise what, int device) {
    cudaMemLocation where = {cudaMemLocationTypeDevice, device};
    if (device == cudaCpuDeviceId) where = {cudaMemLocationTypeHost, 0};
    return cudaMemAdvise(memory, bytes, what, where);
}

static cudaError_t fill_on_host(void *memory, size_t bytes, cudaStream_t stream) {
    cudaMemLocation host = {cudaMemLocationTypeHost, 0};
    return cudaMemPrefetchAsync(memory, bytes, host, 0, stream);
}
#else
static cudaError_t advise(void *memory, size_t bytes, cudaMemoryAdvise what, int device) {
    return cudaMemAdvise(memory, bytes, what, device);
}

static cudaError_t fill_on_host(void *memory, size_t bytes, cudaStream_t stream) {
    return cudaMemPrefetchAsync(memory, bytes, cudaCpuDeviceId, stream);
}
#endif

/* The driver populates it with whole pages, in stream order. */
static cudaError_t alloc_managed(cuda_state *s, void **out, size_t bytes) {
    cudaError_t error = cudaMallocManaged(out, bytes, cudaMemAttachGlobal);
    if (error == cudaSuccess)
        error = advise(*out, bytes, cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId);
    if (error == cudaSuccess) error = advise(*out, bytes, cudaMemAdviseSetAccessedBy, s->device);
    if (error == cudaSuccess) error = fill_on_host(*out, bytes, s->stream);
    if (error != cudaSuccess && *out != NULL) cudaFree(*out);
    return error;
}

/* Where host and device cannot access managed memory concurrently, pinned memory is used. */
static status alloc_on_host(cuda_state *s, void **out, size_t bytes) {
    int can_share = 0;
    CUDA_TRY(cudaDeviceGetAttribute(&can_share, cudaDevAttrConcurrentManagedAccess, s->device));
    cudaError_t error =
        can_share ? alloc_managed(s, out, bytes) : cudaHostAlloc(out, bytes, cudaHostAllocMapped);
    if (error == cudaSuccess) return OK;
    *out = NULL;
    cudaGetLastError();
    return fail(ERR_NOMEM,
                "there is no host memory of %.1f GB that the GPU can reach (%s); give the table "
                "less",
                (double)bytes / 1e9, cudaGetErrorString(error));
}

status cuda_table_alloc(backend *be, void **out, size_t bytes, table_memory where) {
    size_t size = bytes > 0 ? bytes : 1;
    *out = NULL;
    if (where == TABLE_ON_HOST) return alloc_on_host(cuda_of(be), out, size);
    CUDA_TRY(cudaMalloc(out, size));
    return OK;
}

/* Both ways of freeing wait for the device. */
void cuda_table_release(backend *be, void *memory, table_memory where) {
    cudaPointerAttributes what;
    (void)be;
    (void)where;
    if (memory == NULL) return;
    cudaError_t error = cudaPointerGetAttributes(&what, memory);
    if (error == cudaSuccess && what.type == cudaMemoryTypeHost)
        cudaFreeHost(memory);
    else
        cudaFree(memory);
    cudaGetLastError();
}

const table_ops cuda_table_ops = {
#define TABLE_OP(result, name, parameters, test) .name = cuda_table_##name,
#include "ops/table_ops.def"
};
