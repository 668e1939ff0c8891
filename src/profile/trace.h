/* A profile as a Chrome trace, the JSON that Kineto writes and chrome://tracing and Perfetto open:
 * ranges and ops by thread, CUDA's calls, kernels and copies by stream, and an arrow from each
 * launch to its kernel. */
#pragma once

#include "profile/profiler.h"

/* Replaces the file, whole or not at all, with what began in one cycle of the schedule; without
 * steps all is in the first, 0.  is_tensorboard: calls of CUDA and other programs' ranges have the
 * categories that TensorBoard's plugin torch-tb-profiler takes for calls and operators. */
status trace_write(const profile *p, uint16_t cycle, bool is_tensorboard, const char *path);

/* Where a span is drawn.  Viewers draw what is in one row as bars inside bars, and Perfetto drops a
 * bar that begins inside another and ends after it.  Such pairs come from two clocks (a call of
 * CUDA that ends some nanoseconds after the op around it), which are made to end together, and from
 * work that really overlaps (kernels of one stream, branches of a graph), which gets a row beside.
 */
enum { ROWS_MAX_BESIDE = 8 };

typedef struct row_place {
    uint64_t start_ns, end_ns; /* as it is to be drawn */
    uint8_t beside;            /* 0: the row itself, else the number of the row beside it */
} row_place;

/* row_of gives spans that share a row one number, and those that are not drawn ROWS_NONE.  *out has
 * a place for each span, to be freed by mem_free; of those without an end or a row it is zero. */
#define ROWS_NONE UINT64_MAX
status rows_arrange(const recorder *r, uint64_t (*row_of)(const void *ctx, const span *s),
                    const void *ctx, row_place **out);
