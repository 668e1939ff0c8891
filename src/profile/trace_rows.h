/* Rows of a trace: viewers draw what is in one row as bars inside bars, and Perfetto drops a bar
 * that begins inside another and ends after it.
 *
 * Such pairs come from two clocks (a call of CUDA that ends some nanoseconds after the op around
 * it), which are made to end together, and from work that really overlaps (kernels of one stream,
 * branches of a graph), which gets a row beside. */
#ifndef HSTU_PROFILE_TRACE_ROWS_H
#define HSTU_PROFILE_TRACE_ROWS_H

#include "profile/recorder.h"

enum { ROWS_MAX_BESIDE = 8 };

typedef struct row_place {
    uint64_t start_ns, end_ns; /* as it is to be drawn */
    uint8_t beside;            /* 0: the row itself, else the number of the row beside it */
} row_place;

/* row_of gives spans that share a row one number.  *out has a place for each span, to be freed by
 * mem_free; those without an end have none that counts. */
status rows_arrange(const recorder *r, uint64_t (*row_of)(const void *ctx, const span *s),
                    const void *ctx, row_place **out);

#endif
