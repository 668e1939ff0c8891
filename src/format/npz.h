/* npz: named arrays in one file that numpy opens (numpy.load, without pickle): a zip archive of
 * .npy members, stored, not compressed (zip.h).
 *
 * Arrays are written one after the other, their bytes in pieces.  The file appears whole or not at
 * all (file.h).  One thread at a time. */
#ifndef HSTU_FORMAT_NPZ_H
#define HSTU_FORMAT_NPZ_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { NPZ_MAX_DIMS = 4 };

typedef struct npz_writer npz_writer;

status npz_create(npz_writer **out, const char *path);

/* Begins an array: numpy's name of its type and the bytes of an element ("<f4" and 4, "<i8" and 8,
 * "|S12" and 12), and its shape. */
typedef struct npz_array {
    const char *name, *type;
    size_t element_bytes;
    int n_dims;
    int64_t shape[NPZ_MAX_DIMS];
} npz_array;
status npz_begin(npz_writer *w, const npz_array *a);

/* Appends little-endian bytes of the array that was begun. */
status npz_write(npz_writer *w, const void *bytes, size_t n);

/* Ends it; it must have all its bytes. */
status npz_end(npz_writer *w);

/* Makes the file visible.  The writer is gone in either case. */
status npz_commit(npz_writer *w);
void npz_abandon(npz_writer *w); /* NULL is fine */

#endif
