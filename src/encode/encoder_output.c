#include "encode/encoder_output.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "format/json.h"
#include "format/safetensors.h"

enum { PIECE_BYTES = 1 << 20, PATH_BYTES = 4096 };

struct encoder_output {
    out_file *file;
    out_file *pooled; /* beside it, until the hidden states are complete; or NULL */
    int32_t dim;
    bool has_pooled;
    int64_t *offsets; /* (n + 1) */
    size_t n, capacity;
};

status encoder_output_create(encoder_output **out, const char *path, int32_t dim, bool has_pooled) {
    encoder_output *o = NULL;
    char beside[PATH_BYTES];
    *out = NULL;
    TRY(MEM_NEW(&o, 1));
    *o = (encoder_output){.dim = dim, .has_pooled = has_pooled};
    status st = OK;
    if (snprintf(beside, sizeof beside, "%s.pooled", path) >= (int)sizeof beside)
        st = fail(ERR_USAGE, "--out: the path is too long");
    if (st == OK) st = MEM_RESERVE(&o->offsets, &o->capacity, 1);
    if (st == OK) o->offsets[0] = 0;
    if (st == OK) st = st_begin_late(&o->file, path);
    if (st == OK && has_pooled) st = out_file_create(&o->pooled, beside);
    if (st == OK)
        *out = o;
    else
        st = encoder_output_close(o, st);
    return st;
}

status encoder_output_add(encoder_output *o, int32_t n, const int32_t *offsets, const float *hidden,
                          const float *pooled) {
    size_t dim = (size_t)o->dim;
    TRY(MEM_RESERVE(&o->offsets, &o->capacity, o->n + (size_t)n + 1));
    for (int32_t b = 0; b < n; b++, o->n++)
        o->offsets[o->n + 1] = o->offsets[o->n] + offsets[b + 1] - offsets[b];
    TRY(out_file_write(o->file, hidden, (size_t)offsets[n] * dim * sizeof *hidden));
    if (o->pooled == NULL) return OK;
    return out_file_write(o->pooled, pooled, (size_t)n * dim * sizeof *pooled);
}

/* Appends the pooled vectors, which were written beside, and the offsets. */
static status append_rest(encoder_output *o) {
    uint64_t n = o->has_pooled ? (uint64_t)o->n * (uint64_t)o->dim * sizeof(float) : 0;
    char *piece;
    status st = MEM_NEW_RAW(&piece, PIECE_BYTES);
    for (uint64_t at = 0; st == OK && at < n; at += PIECE_BYTES) {
        size_t bytes = n - at < PIECE_BYTES ? (size_t)(n - at) : PIECE_BYTES;
        st = out_file_read_at(o->pooled, at, piece, bytes);
        if (st == OK) st = out_file_write(o->file, piece, bytes);
    }
    mem_free(piece);
    return st;
}

/* Offsets are int64 and last, so they must begin at a multiple of 8 bytes: an odd number of floats
 * before them is made even by a tensor of one float. */
static status write_end(encoder_output *o) {
    int64_t n = (int64_t)o->n, n_tokens = o->offsets[o->n], dim = o->dim;
    bool is_odd = (n_tokens + (o->has_pooled ? n : 0)) * dim % 2 != 0;
    const float nothing = 0;
    st_tensor t[4];
    size_t n_tensors = 0;
    t[n_tensors++] = (st_tensor){.name = "hidden",
                                 .dtype = ST_F32,
                                 .n_dims = 2,
                                 .shape = {n_tokens, dim},
                                 .n = n_tokens * dim};
    if (o->has_pooled)
        t[n_tensors++] = (st_tensor){
            .name = "pooled", .dtype = ST_F32, .n_dims = 2, .shape = {n, dim}, .n = n * dim};
    if (is_odd)
        t[n_tensors++] =
            (st_tensor){.name = "padding", .dtype = ST_F32, .n_dims = 1, .shape = {1}, .n = 1};
    t[n_tensors++] =
        (st_tensor){.name = "offsets", .dtype = ST_I64, .n_dims = 1, .shape = {n + 1}, .n = n + 1};
    TRY(append_rest(o));
    if (is_odd) TRY(out_file_write(o->file, &nothing, sizeof nothing));
    TRY(out_file_write(o->file, o->offsets, (o->n + 1) * sizeof *o->offsets));
    const st_pair made_by[] = {{"made_by", "hstu encode"}};
    return st_end_late(o->file, t, n_tensors, made_by, 1);
}

status encoder_output_close(encoder_output *o, status st) {
    if (o == NULL) return st;
    if (st == OK) st = write_end(o);
    out_file_abandon(o->pooled);
    st = out_file_end(o->file, st);
    mem_free(o->offsets);
    mem_free(o);
    return st;
}

static void put_vector(json_writer *w, const float *x, int32_t dim) {
    json_array_open(w);
    for (int32_t c = 0; c < dim; c++)
        json_float(w, x[c]);
    json_array_close(w);
}

status encoder_output_line(buf *to, int32_t n, int32_t dim, const float *hidden,
                           const float *pooled) {
    json_writer w;
    json_begin(&w, to, 0);
    json_object_open(&w);
    json_key(&w, "hidden");
    json_array_open(&w);
    for (int64_t i = 0; i < n; i++)
        put_vector(&w, hidden + i * dim, dim);
    json_array_close(&w);
    if (pooled != NULL) {
        json_key(&w, "pooled");
        put_vector(&w, pooled, dim);
    }
    json_object_close(&w);
    TRY(json_finish(&w));
    return buf_char(to, '\n');
}
