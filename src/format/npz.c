#include "format/npz.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/text.h"

enum { NPY_ALIGN = 64 };

/* The header of a .npy file: a dictionary in Python's notation, padded so that the data is
 * aligned. */
static status npy_header(buf *b, const npz_array *a) {
    TRY(buf_append(b, "\x93NUMPY\x01\x00\x00\x00", 10));
    TRY(buf_printf(b, "{'descr': '%s', 'fortran_order': False, 'shape': (", a->type));
    for (int d = 0; d < a->n_dims; d++)
        TRY(buf_printf(b, "%" PRId64 ", ", a->shape[d]));
    TRY(buf_text(b, "), }"));
    while (b->n_bytes % NPY_ALIGN != NPY_ALIGN - 1)
        TRY(buf_char(b, ' '));
    TRY(buf_char(b, '\n'));
    b->data[8] = (char)((b->n_bytes - 10) & 0xff);
    b->data[9] = (char)((b->n_bytes - 10) >> 8);
    return OK;
}

static status count_bytes(const npz_array *a, uint64_t *out) {
    uint64_t n = a->element_bytes;
    for (int d = 0; d < a->n_dims; d++)
        if (__builtin_mul_overflow(n, (uint64_t)a->shape[d], &n) || n > INT64_MAX)
            return fail(ERR_UNSUPPORTED, "the array '%s' is larger than a file can be", a->name);
    *out = n;
    return OK;
}

static status begin(zip_writer *w, const npz_array *a, buf *header) {
    char name[ZIP_NAME_BYTES];
    uint64_t n_bytes = 0;
    if (snprintf(name, sizeof name, "%s.npy", a->name) >= (int)sizeof name)
        return fail(ERR_UNSUPPORTED, "the array's name '%.60s...' is too long", a->name);
    TRY(count_bytes(a, &n_bytes));
    TRY(npy_header(header, a));
    TRY(zip_begin(w, name, n_bytes + header->n_bytes, 1));
    return zip_write(w, header->data, header->n_bytes);
}

status npz_begin(zip_writer *w, const npz_array *a) {
    buf header = {0};
    if (a->n_dims > NPZ_MAX_DIMS)
        return fail(ERR_CONFIG, "the array '%s' has more than %d dimensions", a->name,
                    NPZ_MAX_DIMS);
    status st = begin(w, a, &header);
    buf_fini(&header);
    return st;
}
