/* kv_put, as ops.h states it. */
#include <string.h>

#include "cpu/cpu.h"

enum { ROWS = 256 }; /* of a chunk */

static void put_row(float *pages, int64_t stride, int32_t slot, const kv_put_args *a,
                    const float *row, int32_t dim) {
    memcpy(pages + slot / a->page_len * stride + (int64_t)(slot % a->page_len) * dim, row,
           (size_t)dim * sizeof *row);
}

static status put_rows(void *ctx, int64_t chunk, int worker) {
    const kv_put_args *a = ctx;
    cpu_range r = cpu_chunk(chunk, ROWS, a->n);
    (void)worker;
    for (int64_t i = r.first; i < r.end; i++) {
        if (a->slot[i] < 0) continue;
        put_row(a->pages_k, a->stride, a->slot[i], a, (const float *)a->k + i * a->stride_k,
                a->dim_k);
        put_row(a->pages_v, a->stride, a->slot[i], a, (const float *)a->v + i * a->stride_v,
                a->dim_v);
    }
    return OK;
}

status cpu_kv_put(backend *be, const kv_put_args *a) {
    kv_put_args args = *a;
    return pool_run(be->workers, cpu_n_chunks(a->n, ROWS), put_rows, &args);
}
