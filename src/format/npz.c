#include "format/npz.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "format/zip.h"

enum { NPY_ALIGN = 64 };

struct npz_writer {
    zip_writer *zip;
    uint64_t left; /* bytes that the open array still needs */
    bool is_open;
};

status npz_create(npz_writer **out, const char *path) {
    npz_writer *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1));
    status st = zip_create(&w->zip, path);
    if (st != OK) {
        mem_free(w);
        return st;
    }
    *out = w;
    return OK;
}

void npz_abandon(npz_writer *w) {
    if (w == NULL) return;
    zip_abandon(w->zip);
    mem_free(w);
}

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

static status begin(npz_writer *w, const npz_array *a, buf *header) {
    char name[ZIP_NAME_BYTES];
    uint64_t n_bytes = 0;
    if (snprintf(name, sizeof name, "%s.npy", a->name) >= (int)sizeof name)
        return fail(ERR_UNSUPPORTED, "the array's name '%.60s...' is too long", a->name);
    TRY(count_bytes(a, &n_bytes));
    TRY(npy_header(header, a));
    TRY(zip_begin(w->zip, name, n_bytes + header->n_bytes, 1));
    w->is_open = true;
    w->left = n_bytes;
    return zip_write(w->zip, header->data, header->n_bytes);
}

status npz_begin(npz_writer *w, const npz_array *a) {
    buf header;
    if (w->is_open || a->n_dims > NPZ_MAX_DIMS)
        return fail(ERR_CONFIG, "the array '%s' cannot be begun here", a->name);
    buf_init(&header);
    status st = begin(w, a, &header);
    buf_fini(&header);
    return st;
}

status npz_write(npz_writer *w, const void *bytes, size_t n) {
    if (!w->is_open || n > w->left)
        return fail(ERR_CONFIG, "%zu bytes for an array that has room for %" PRIu64, n, w->left);
    w->left -= n;
    return zip_write(w->zip, bytes, n);
}

status npz_end(npz_writer *w) {
    if (!w->is_open || w->left > 0)
        return fail(ERR_CONFIG, "an array lacks %" PRIu64 " bytes", w->left);
    w->is_open = false;
    return zip_end(w->zip);
}

status npz_commit(npz_writer *w) {
    if (w->is_open) {
        npz_abandon(w);
        return fail(ERR_CONFIG, "an array is still open");
    }
    zip_writer *zip = w->zip;
    mem_free(w);
    return zip_commit(zip);
}
