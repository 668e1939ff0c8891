/* Dynamic tables on a GPU (ops/table.h): their memory, and the table of verbs. */
#include "cuda/table.cuh"

static status table_alloc(backend *be, void **out, size_t bytes, table_memory where) {
    (void)be;
    *out = NULL;
    size_t size = bytes > 0 ? bytes : 1;
    if (where == TABLE_ON_DEVICE) {
        CUDA_TRY(cudaMalloc(out, size));
        return OK;
    }
    cudaError_t error = cudaHostAlloc(out, size, cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaSuccess) return OK;
    *out = NULL;
    cudaGetLastError();
    return fail(ERR_NOMEM,
                "%.1f GB of host memory cannot be held for the GPU (%s); give the table less host "
                "memory",
                (double)size / 1e9, cudaGetErrorString(error));
}

/* Both ways of freeing wait for the device. */
static void table_release(backend *be, void *memory, table_memory where) {
    (void)be;
    if (memory == NULL) return;
    if (where == TABLE_ON_DEVICE)
        cudaFree(memory);
    else
        cudaFreeHost(memory);
}

const table_ops cuda_table_ops = {
    /* in the order of table.h: C++ has no designated initialisers out of order */
    table_alloc,      table_release,     cuda_table_unique, cuda_table_find,      cuda_table_place,
    cuda_table_erase, cuda_table_scan,   cuda_table_stamp,  cuda_table_read,      cuda_table_write,
    cuda_table_init,  cuda_table_update, cuda_table_pool,   cuda_table_pool_grad, cuda_table_lookup,
};
