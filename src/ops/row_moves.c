#include "ops/row_moves.h"

#include <string.h>

#ifndef HSTU_HAS_CUDA
status row_moves_cuda(void *stream, const row_moves *a, bool is_put) {
    (void)stream, (void)a, (void)is_put;
    return fail(ERR_UNSUPPORTED, "this build is without CUDA");
}
#endif

static status move(backend *be, const row_moves *a, bool is_put) {
    if (a->n == 0) return OK;
    if (strcmp(be->name, "cpu") != 0) return row_moves_cuda(be->ops->stream(be), a, is_put);
    for (int64_t i = 0; i < a->n; i++) {
        char *picked = (char *)a->picked + i * a->row_bytes;
        char *row = (char *)a->rows + a->index[i] * a->row_bytes;
        memcpy(is_put ? row : picked, is_put ? picked : row, (size_t)a->row_bytes);
    }
    return OK;
}

status row_moves_pick(backend *be, const row_moves *a) {
    return move(be, a, false);
}

status row_moves_put(backend *be, const row_moves *a) {
    return move(be, a, true);
}
