/* What an encoder computed, as a file that appears whole or not at all, written while the input is
 * read: nothing but the offsets of the sequences is kept in memory.
 *
 * - safetensors: offsets (B + 1, int64), hidden (T, E) and, where the model has a pooler, pooled
 *   (B, E), both float32.
 * - JSON lines: {"hidden": [[...], ...], "pooled": [...]} for each sequence. */
#ifndef HSTU_ENCODE_ENCODER_OUTPUT_H
#define HSTU_ENCODE_ENCODER_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef struct encoder_output encoder_output;

status encoder_output_create(encoder_output **out, const char *path, int32_t dim, bool has_pooled);

/* Appends n sequences: offsets (n + 1) from 0, hidden (offsets[n], E), pooled (n, E) or NULL. */
status encoder_output_add(encoder_output *o, int32_t n, const int32_t *offsets, const float *hidden,
                          const float *pooled);

/* Ends it: where st is OK the file appears; else the place is as it was, and st is returned.
 * Destroys o either way; NULL is fine. */
status encoder_output_close(encoder_output *o, status st);

/* The JSON line of one sequence of n tokens, appended to a buffer. */
status encoder_output_line(buf *to, int32_t n, int32_t dim, const float *hidden,
                           const float *pooled);

#endif
