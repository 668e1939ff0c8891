#include "ops/row_moves.h"

enum { ROWS = 64 }; /* of a chunk */

#ifndef HSTU_HAS_CUDA
status row_moves_cuda(void *stream, const row_moves *a, bool is_put) {
    return fail(ERR_UNSUPPORTED, "this build is without CUDA");
}

status head_parts_cuda(void *stream, const head_parts *a, bool is_back) {
    return fail(ERR_UNSUPPORTED, "this build is without CUDA");
}
#endif

status row_moves_run(backend *be, const row_moves *a, bool is_put) {
    if (a->n == 0) return OK;
    if (!be->is_host) return row_moves_cuda(be->ops->stream(be), a, is_put);
    for (int64_t i = 0; i < a->n; i++) {
        char *picked = (char *)a->picked + i * a->row_bytes;
        char *row = (char *)a->rows + a->index[i] * a->row_bytes;
        memcpy(is_put ? row : picked, is_put ? picked : row, (size_t)a->row_bytes);
    }
    return OK;
}

typedef struct parts_job {
    const head_parts *a;
    bool is_back;
} parts_job;

static void move_row_parts(const head_parts *a, int64_t i, bool is_back) {
    int64_t row = head_parts_row(a);
    for (int32_t p = 0; p < a->n_parts; p++) {
        char *packed = (char *)a->packed + (p * a->n + i) * row;
        for (int32_t b = 0; b < a->n_blocks; b++) {
            char *whole = (char *)a->whole + i * a->stride + a->first[b] + p * a->width[b];
            memcpy(is_back ? whole : packed, is_back ? packed : whole, (size_t)a->width[b]);
            packed += a->width[b];
        }
    }
}

static status parts_chunk(void *ctx, int64_t chunk, int worker) {
    const parts_job *job = ctx;
    for (int64_t i = chunk * ROWS; i < (chunk + 1) * ROWS && i < job->a->n; i++)
        move_row_parts(job->a, i, job->is_back);
    return OK;
}

static status move_parts(backend *be, const head_parts *a, bool is_back) {
    parts_job job = {a, is_back};
    void *stream = be->ops->stream(be);
    if (a->n == 0) return OK;
    /* Not by is_host: the tests' mirror of a GPU has its arrays on the host, and no stream. */
    if (stream != NULL) return head_parts_cuda(stream, a, is_back);
    return pool_run(be->workers, (a->n + ROWS - 1) / ROWS, parts_chunk, &job);
}

status head_parts_pack(backend *be, const head_parts *a) {
    return move_parts(be, a, false);
}

status head_parts_unpack(backend *be, const head_parts *a) {
    return move_parts(be, a, true);
}
