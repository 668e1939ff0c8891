#include "nn/memory.h"

void nn_memory_init(nn_memory *mem, backend *be) {
    memset(mem, 0, sizeof *mem);
    mem->be = be;
}

void nn_memory_fini(nn_memory *mem) {
    for (size_t i = 0; i < mem->n_device; i++)
        mem->be->ops->release(mem->be, mem->device[i].at);
    mem_free(mem->lent);
    for (size_t i = 0; i < mem->n_host; i++)
        mem_free(mem->host[i]);
    for (size_t i = 0; i < mem->n_pinned; i++)
        mem->be->ops->host_release(mem->be, mem->pinned[i]);
    MEM_FREE(mem->device, mem->host, mem->pinned);
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
    mem->device[mem->n_device++] = (nn_block){.at = *out, .bytes = bytes};
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

status nn_new_pinned(nn_memory *mem, void **out, size_t bytes) {
    *out = NULL;
    TRY(MEM_RESERVE(&mem->pinned, &mem->pinned_capacity, mem->n_pinned + 1));
    TRY(mem->be->ops->host_alloc(mem->be, out, bytes));
    memset(*out, 0, bytes);
    mem->pinned[mem->n_pinned++] = *out;
    return OK;
}

status nn_memory_borrow(nn_memory *mem, const nn_memory *lender) {
    TRY(MEM_NEW(&mem->lent, lender->n_device));
    mem->lender = lender;
    return OK;
}

/* The first block of the lender's activations with enough free bytes; NULL: there is none. */
static void *borrow(nn_memory *mem, uint64_t bytes) {
    enum { ALIGNED = 256 };
    for (size_t i = 0; mem->lender != NULL && i < mem->lender->n_device; i++) {
        const nn_block *b = &mem->lender->device[i];
        if (!b->is_act || bytes > b->bytes - mem->lent[i]) continue;
        char *at = b->at + mem->lent[i];
        uint64_t end = mem->lent[i] + (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
        mem->lent[i] = end < b->bytes ? (size_t)end : b->bytes;
        return at;
    }
    return NULL;
}

status nn_new_act(nn_memory *mem, void **out, int64_t rows, int64_t dim) {
    size_t size = act_bytes(mem->be->act);
    if (rows > 0 && dim > 0 && rows <= INT64_MAX / 4 / dim) {
        *out = borrow(mem, (uint64_t)(rows * dim) * size);
        if (*out != NULL) return OK;
    }
    TRY(nn_new(mem, out, rows * dim, size));
    mem->device[mem->n_device - 1].is_act = true;
    return OK;
}
