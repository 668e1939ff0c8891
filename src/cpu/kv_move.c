/* kv_move, as ops.h states it: done when it returns. */
#include <string.h>

#include "cpu/cpu.h"

enum { PIECE_BYTES = 1 << 16 };

/* A piece of every page, in the order of the moves: a page may come to where another one left. */
static status move_pieces(void *ctx, int64_t chunk, int worker) {
    const kv_move_args *a = ctx;
    size_t at = (size_t)chunk * PIECE_BYTES, left = a->page_bytes - at;
    size_t n = left < PIECE_BYTES ? left : PIECE_BYTES;
    char *device = (char *)a->device + at, *host = (char *)a->host + at;
    (void)worker;
    for (int32_t i = 0; i < a->n_out; i++)
        memcpy(host + (size_t)a->out[i].host * a->page_bytes,
               device + (size_t)a->out[i].device * a->page_bytes, n);
    for (int32_t i = 0; i < a->n_in; i++)
        memcpy(device + (size_t)a->in[i].device * a->page_bytes,
               host + (size_t)a->in[i].host * a->page_bytes, n);
    return OK;
}

status cpu_kv_move(backend *be, const kv_move_args *a) {
    kv_move_args args = *a;
    int64_t n = (int64_t)((a->page_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
    return pool_run(be->workers, n, move_pieces, &args);
}

status cpu_kv_wait(backend *be, int stage) {
    (void)be;
    (void)stage;
    return OK;
}
