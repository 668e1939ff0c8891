/* Rows picked from an array by number, and put there, within a backend's memory: for rows that
 * travel between ranks.  Rows are bytes, so their type does not matter.  Both functions have their
 * place in the backend's order of execution, like ops. */
#ifndef HSTU_OPS_ROW_MOVES_H
#define HSTU_OPS_ROW_MOVES_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct row_moves {
    int64_t n;
    int64_t row_bytes;
    const int32_t *index; /* (n): rows of `rows`; to put, all different */
    void *picked;         /* (n, row_bytes) */
    void *rows;
} row_moves;

status row_moves_pick(backend *be, const row_moves *a); /* picked[i] = rows[index[i]] */
status row_moves_put(backend *be, const row_moves *a);  /* rows[index[i]] = picked[i] */

/* The same on a stream of the GPU; in a build without CUDA ERR_UNSUPPORTED. */
status row_moves_cuda(void *stream, const row_moves *a, bool is_put);

#ifdef __cplusplus
}
#endif
#endif
