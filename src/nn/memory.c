#include "nn/memory.h"

#include <string.h>

void nn_memory_init(nn_memory *mem, backend *be) {
    memset(mem, 0, sizeof *mem);
    mem->be = be;
}

void nn_memory_fini(nn_memory *mem) {
    for (size_t i = 0; i < mem->n_device; i++)
        mem->be->ops->release(mem->be, mem->device[i]);
    for (size_t i = 0; i < mem->n_host; i++)
        mem_free(mem->host[i]);
    mem_free(mem->device);
    mem_free(mem->host);
    nn_memory_init(mem, mem->be);
}

status nn_new(nn_memory *mem, void **out, int64_t n, size_t size) {
    *out = NULL;
    if (n < 0 || (uint64_t)n > SIZE_MAX / 2 / size)
        return fail(ERR_NOMEM, "%lld elements of %zu bytes are too many for one block",
                    (long long)n, size);
    TRY(MEM_RESERVE(&mem->device, &mem->device_capacity, mem->n_device + 1));
    size_t bytes = (size_t)(n > 0 ? n : 1) * size;
    TRY(mem->be->ops->alloc(mem->be, out, bytes));
    mem->device[mem->n_device++] = *out;
    mem->device_bytes += bytes;
    return OK;
}

status nn_new_host(nn_memory *mem, void **out, int64_t n, size_t size) {
    *out = NULL;
    if (n < 0) return fail(ERR_NOMEM, "%lld elements are too many for one block", (long long)n);
    TRY(MEM_RESERVE(&mem->host, &mem->host_capacity, mem->n_host + 1));
    TRY(mem_alloc(out, (size_t)n, size));
    mem->host[mem->n_host++] = *out;
    return OK;
}

status nn_new_act(nn_memory *mem, void **out, int64_t rows, int64_t dim) {
    return nn_new(mem, out, rows * dim, act_bytes(mem->be->act));
}
