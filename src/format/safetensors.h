/* Files of named tensors; the format here is safetensors, which Python reads too.
 *
 * The file is a length, a JSON header and the raw little-endian data.  Reading maps the file and
 * treats every number in it as hostile: tensors must be within the data, in order, without gaps or
 * overlap, with a size that fits their shape.  Writing is atomic (file.h).  What is read is a view
 * of the map, valid until st_close, for any number of threads. */
#pragma once

#include "base/base.h"

enum { ST_MAX_DIMS = 8 };

typedef enum {
    ST_F64,
    ST_F32,
    ST_F16,
    ST_BF16,
    ST_I64,
    ST_I32,
    ST_I16,
    ST_I8,
    ST_U8,
    ST_BOOL
} st_dtype;

typedef struct st_tensor {
    const char *name;
    st_dtype dtype;
    int n_dims;
    int64_t shape[ST_MAX_DIMS];
    int64_t n;        /* elements: the product of the shape */
    const void *data; /* (shape), little-endian; aligned to its type if it is in the file */
    int64_t stride[ST_MAX_DIMS]; /* in elements; only of files of torch: others are contiguous */
} st_tensor;

typedef struct st_pair {
    const char *key, *value;
} st_pair;

/* An open file of any format. */
typedef struct st_file {
    char path[4096];
    st_tensor *tensors; /* (n_tensors), in the order of the data; in that of the file in torch's */
    size_t n_tensors, capacity;
    const st_tensor **by_name; /* (n_tensors), sorted by name */
    file_map map;
    arena memory;                      /* names, and what follows */
    const struct json_value *metadata; /* or NULL */
    const struct pickle_value *object; /* of a file of torch */
} st_file;

size_t st_dtype_bytes(st_dtype dtype);
const char *st_dtype_name(st_dtype dtype); /* "F32" */

status st_open(st_file **out, const char *path);
void st_close(st_file *f); /* NULL is fine */

/* For other formats: opens path and maps it; `read` checks it and sets the tensors. */
status st_open_as(st_file **out, const char *path, status (*read)(st_file *f));

/* By name; st_find gives NULL where there is none, st_get is ERR_FORMAT and also checks the type.
 */
const st_tensor *st_find(const st_file *f, const char *name);
status st_get(const st_file *f, const char *name, st_dtype dtype, const st_tensor **out);

/* The index of the first number of F32, F16 or BF16 that is infinite or NaN; -1: there is none. */
int64_t st_first_not_finite(const st_tensor *t);

/* Element i of a tensor of I64 or I32, or of floating point, which a file may have at any address.
 */
int64_t st_int_at(const st_tensor *t, int64_t i);
float st_float_at(const st_tensor *t, int64_t index);

/* Elements first .. first + n - 1 of a tensor of floating point that is contiguous. */
void st_floats(const st_tensor *t, int64_t first, int64_t n, float *to);

/* A value of the metadata, or NULL. */
const char *st_metadata(const st_file *f, const char *key);

/* Writes tensors in the order given, each aligned to 8 bytes where the order allows it without gaps
 * (put wide types first); metadata may be NULL. */
status st_write(const char *path, const st_tensor *tensors, size_t n_tensors,
                const st_pair *metadata, size_t n_metadata);

/* What a file begins with, before the tensors' data, which is not read: for a file that several
 * processes write (part_file of base/file.h).  `out` is empty before. */
status st_header(buf *out, const st_tensor *tensors, size_t n_tensors, const st_pair *metadata,
                 size_t n_metadata);

/* The same in pieces, for tensors larger than memory: starts the file with its header (the tensors'
 * data is not read); the caller appends all data in the same order (out_file_write) and commits. */
status st_begin(out_file **out, const char *path, const st_tensor *tensors, size_t n_tensors,
                const st_pair *metadata, size_t n_metadata);

/* The same for shapes that are known only at the end: begins a file with room for a header of
 * ST_LATE_BYTES; when all data is appended, st_end_late writes the header, and the caller
 * commits. */
enum { ST_LATE_BYTES = 4096 };
status st_begin_late(out_file **out, const char *path);
status st_end_late(out_file *f, const st_tensor *tensors, size_t n_tensors, const st_pair *metadata,
                   size_t n_metadata);
