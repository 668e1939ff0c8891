/* Rows, and columns of heads, packed for an exchange between ranks and unpacked after it, within a
 * backend's memory.  Rows and columns are bytes, so their type does not matter.  The functions have
 * their place in the backend's order of execution, like ops. */
#pragma once

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

/* picked[i] = rows[index[i]]; with is_put rows[index[i]] = picked[i]. */
status row_moves_run(backend *be, const row_moves *a, bool is_put);

/* The same on a stream of the GPU; in a build without CUDA ERR_UNSUPPORTED. */
status row_moves_cuda(void *stream, const row_moves *a, bool is_put);

/* A whole row has a few blocks of columns (v, q and k, say), each of them the columns of all heads.
 * Packed, the columns of the heads of the first part come first, for all rows, then those of the
 * second: what an all_to_all of ops/comm.h sends or has received. */
enum { HEAD_BLOCKS = 3 };

typedef struct head_parts {
    int64_t n;                  /* rows */
    int32_t n_parts, n_blocks;  /* at most HEAD_BLOCKS */
    int64_t first[HEAD_BLOCKS]; /* where a block begins in a whole row */
    int64_t width[HEAD_BLOCKS]; /* of one part of it */
    int64_t stride;             /* between whole rows */
    void *whole;                /* (n) rows */
    void *packed;               /* (n_parts, n, sum of the widths) */
} head_parts;

/* Bytes of a packed row. */
static inline int64_t head_parts_row(const head_parts *a) {
    int64_t n = 0;
    for (int32_t b = 0; b < a->n_blocks; b++)
        n += a->width[b];
    return n;
}

/* packed = the columns of whole; and back, where other columns of whole keep their values. */
status head_parts_pack(backend *be, const head_parts *a);
status head_parts_unpack(backend *be, const head_parts *a);

/* The same on a stream of the GPU; in a build without CUDA ERR_UNSUPPORTED. */
status head_parts_cuda(void *stream, const head_parts *a, bool is_back);

#ifdef __cplusplus
}
#endif
