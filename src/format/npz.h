/* npz: named arrays in one file that numpy opens (numpy.load, without pickle): a zip archive of
 * .npy members.  And a reader of a single .npy file.
 *
 * Arrays are members of a zip_writer (zip.h): npz_begin begins one, zip_write appends little-endian
 * bytes of it, zip_end ends it. */
#pragma once

#include "format/safetensors.h"
#include "format/zip.h"

enum { NPZ_MAX_DIMS = 4 };

/* numpy's name of the type and the bytes of an element ("<f4" and 4, "<i8" and 8, "|S12" and 12),
 * and the shape. */
typedef struct npz_array {
    const char *name, *type;
    size_t element_bytes;
    int n_dims;
    int64_t shape[NPZ_MAX_DIMS];
} npz_array;
status npz_begin(zip_writer *w, const npz_array *a);

/* Opens a .npy file of a matrix of floating point, in C order, as numpy.save writes it: one tensor,
 * "vectors".  Every number in it is treated as hostile.  st_close closes it. */
status npy_open(st_file **out, const char *path);
