/* Encoder input and output: sequences from a file of any size, and hidden states to a file.
 *
 * Input, one sequence at a time:
 * - JSON lines, plain or compressed, "-" for stdin: {"ids": [101, 7592, 102], "types": [0, 0, 0]},
 *   where types are optional; or {"text": "hello"}, with "pair": "..." for a second text, if there
 *   is a tokenizer.  Other members are ignored, with one message.
 * - safetensors (by the file name): lengths (B), ids (T), and optionally types (T), int32 or int64.
 * Every number is checked for its range here, and by encoder_add for the model's.
 *
 * Output, written while the input is read; only the offsets of the sequences stay in memory.  The
 * file appears whole or not at all:
 * - safetensors: offsets (B + 1, int64), and one or two tensors of float32 rows: hidden (T, E)
 *   and, where the model has a pooler, pooled (B, E); or what a head makes of them.
 * - JSON lines: {"hidden": [[...], ...], "pooled": [...]} for each sequence. */
#pragma once

#include "encode/tokenizer.h"

/* A sequence; the arrays are valid until the next one is read. */
typedef struct encoder_sequence {
    const int32_t *ids, *types; /* (n) each; types may be NULL: all 0 */
    int64_t n;
} encoder_sequence;

typedef struct encoder_input encoder_input;

/* words: the tokenizer for texts, or NULL; it must outlive the input.  max_len: with is_cut a text
 * is cut to so many tokens, as transformers' truncation=True does. */
status encoder_input_open(encoder_input **out, const char *path, const tokenizer *words,
                          int64_t max_len, bool is_cut);
void encoder_input_close(encoder_input *in); /* NULL is fine */

/* The next sequence, or *is_end.  ERR_FORMAT names the line. */
status encoder_input_next(encoder_input *in, encoder_sequence *out, bool *is_end);

/* Puts the place of the last sequence before the reason of a failure: "FILE: line 5". */
status encoder_input_blame(const encoder_input *in, status st);

/* How far it is, for a progress bar: in bytes ("B") of JSON lines, else in sequences. */
void encoder_input_progress(const encoder_input *in, uint64_t *done, uint64_t *total);
const char *encoder_input_unit(const encoder_input *in);

/* One line of JSON, for encoder_input_next and the fuzzer: appends nothing on failure. */
typedef struct encoder_line {
    int32_t *ids, *types;
    size_t n, ids_capacity, types_capacity;
    bool has_types;
    char unknown[32]; /* a member that was ignored, or "" */
} encoder_line;
void encoder_line_fini(encoder_line *l); /* {0} is an empty one */
status encoder_line_parse(encoder_line *l, const char *text, size_t n, const tokenizer *words,
                          int64_t max_len, bool is_cut);

typedef struct encoder_output encoder_output;

/* A tensor: a row for each token or sequence. */
typedef struct encoder_rows {
    const char *name; /* NULL: there is no second tensor */
    int32_t dim;
    bool is_of_tokens;
} encoder_rows;

/* labels: the columns of the tensors as text, for the metadata of the file; or NULL. */
status encoder_output_create(encoder_output **out, const char *path, const encoder_rows rows[2],
                             const char *labels);

/* Appends n sequences: offsets (n + 1) from 0, and the rows of both tensors. */
status encoder_output_add(encoder_output *o, int32_t n, const int32_t *offsets, const float *first,
                          const float *second);

/* Ends it: where st is OK the file appears; else the place is as it was, and st is returned.
 * Destroys o either way; NULL is fine. */
status encoder_output_close(encoder_output *o, status st);

/* The JSON line of one sequence of n tokens, appended to a buffer. */
status encoder_output_line(buf *to, int32_t n, int32_t dim, const float *hidden,
                           const float *pooled);
