#include "ops/head_parts.h"

#include <string.h>

enum { ROWS = 64 }; /* of a chunk */

typedef struct move_job {
    const head_parts *a;
    bool is_back;
} move_job;

static void move_row(const head_parts *a, int64_t i, bool is_back) {
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

static status move_chunk(void *ctx, int64_t chunk, int worker) {
    const move_job *job = ctx;
    (void)worker;
    for (int64_t i = chunk * ROWS; i < (chunk + 1) * ROWS && i < job->a->n; i++)
        move_row(job->a, i, job->is_back);
    return OK;
}

#ifndef HSTU_HAS_CUDA
status head_parts_cuda(void *stream, const head_parts *a, bool is_back) {
    (void)stream, (void)a, (void)is_back;
    return fail(ERR_UNSUPPORTED, "this build is without CUDA");
}
#endif

static status move(backend *be, const head_parts *a, bool is_back) {
    move_job job = {a, is_back};
    void *stream = be->ops->stream(be);
    if (a->n == 0) return OK;
    if (stream != NULL) return head_parts_cuda(stream, a, is_back);
    return pool_run(be->workers, (a->n + ROWS - 1) / ROWS, move_chunk, &job);
}

status head_parts_pack(backend *be, const head_parts *a) {
    return move(be, a, false);
}

status head_parts_unpack(backend *be, const head_parts *a) {
    return move(be, a, true);
}
