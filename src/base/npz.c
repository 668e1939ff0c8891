#include "base/npz.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/crc32.h"
#include "base/file.h"
#include "base/mem.h"

enum { NPY_ALIGN = 64, CRC_AT = 14 }; /* of the checksum in a local header */
#define ZIP32_MAX UINT32_MAX

/* A member of the archive. */
typedef struct member {
    char name[NPZ_NAME_BYTES + 4]; /* "embedding.npy" */
    uint64_t offset, n_bytes;      /* of its local header; of its content */
    uint32_t crc;
} member;

struct npz_writer {
    out_file *file;
    uint64_t at; /* bytes written so far */
    member members[NPZ_MAX_ARRAYS];
    int n;
    uint64_t left; /* bytes that the open array still needs */
    bool is_open;
};

status npz_create(npz_writer **out, const char *path) {
    npz_writer *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1));
    status st = out_file_create(&w->file, path);
    if (st != OK) {
        mem_free(w);
        return st;
    }
    *out = w;
    return OK;
}

void npz_abandon(npz_writer *w) {
    if (w == NULL) return;
    out_file_abandon(w->file);
    mem_free(w);
}

static status put(npz_writer *w, const void *bytes, size_t n) {
    TRY(out_file_write(w->file, bytes, n));
    w->at += n;
    return OK;
}

static status put_buf(npz_writer *w, buf *b) {
    status st = put(w, buf_str(b), b->n_bytes);
    buf_fini(b);
    return st;
}

/* Little-endian numbers of a zip header. */
static void number(buf *b, status *st, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes && *st == OK; i++)
        *st = buf_char(b, (char)(value >> 8 * i));
}

static uint64_t capped(uint64_t value) {
    return value < ZIP32_MAX ? value : ZIP32_MAX;
}

/* What local and central headers share, from the version that is needed to the lengths of name and
 * extra field. */
static void common_header(buf *b, status *st, const member *m, int extra_bytes) {
    number(b, st, 45, 2); /* the version that knows zip64 */
    number(b, st, 0, 2);  /* flags */
    number(b, st, 0, 2);  /* stored */
    number(b, st, 0, 2);  /* time, and the first day there is: the same bytes in every run */
    number(b, st, 0x0021, 2);
    number(b, st, m->crc, 4);
    number(b, st, capped(m->n_bytes), 4);
    number(b, st, capped(m->n_bytes), 4);
    number(b, st, strlen(m->name), 2);
    number(b, st, (uint64_t)extra_bytes, 2);
}

/* The extra field with what does not fit 32 bits: sizes, and in the central directory the offset.
 */
static int extra_bytes(const member *m, bool is_central) {
    int n = (m->n_bytes >= ZIP32_MAX ? 16 : 0) + (is_central && m->offset >= ZIP32_MAX ? 8 : 0);
    return n > 0 ? n + 4 : 0;
}

static void put_extra(buf *b, status *st, const member *m, bool is_central) {
    int n = extra_bytes(m, is_central);
    if (n == 0) return;
    number(b, st, 1, 2);
    number(b, st, (uint64_t)(n - 4), 2);
    if (m->n_bytes >= ZIP32_MAX) number(b, st, m->n_bytes, 8);
    if (m->n_bytes >= ZIP32_MAX) number(b, st, m->n_bytes, 8);
    if (is_central && m->offset >= ZIP32_MAX) number(b, st, m->offset, 8);
}

static status local_header(npz_writer *w, const member *m) {
    buf b;
    status st = OK;
    buf_init(&b);
    number(&b, &st, 0x04034b50, 4);
    common_header(&b, &st, m, extra_bytes(m, false));
    if (st == OK) st = buf_text(&b, m->name);
    put_extra(&b, &st, m, false);
    status end = put_buf(w, &b);
    return st != OK ? st : end;
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
    member *m = &w->members[w->n];
    uint64_t n_bytes = 0;
    TRY(count_bytes(a, &n_bytes));
    TRY(npy_header(header, a));
    *m = (member){.offset = w->at, .n_bytes = n_bytes + header->n_bytes};
    snprintf(m->name, sizeof m->name, "%.*s.npy", NPZ_NAME_BYTES - 1, a->name);
    TRY(local_header(w, m));
    w->n++;
    w->is_open = true;
    w->left = m->n_bytes;
    return npz_write(w, header->data, header->n_bytes);
}

status npz_begin(npz_writer *w, const npz_array *a) {
    buf header;
    if (w->is_open || w->n == NPZ_MAX_ARRAYS || a->n_dims > NPZ_MAX_DIMS)
        return fail(ERR_CONFIG, "the array '%s' cannot be begun here", a->name);
    buf_init(&header);
    status st = begin(w, a, &header);
    buf_fini(&header);
    return st;
}

status npz_write(npz_writer *w, const void *bytes, size_t n) {
    if (!w->is_open || n > w->left)
        return fail(ERR_CONFIG, "%zu bytes for an array that has room for %" PRIu64, n, w->left);
    member *m = &w->members[w->n - 1];
    m->crc = crc32_add(m->crc, bytes, n);
    w->left -= n;
    return put(w, bytes, n);
}

/* The checksum is known only now.  Reading first makes the header leave the buffer for the file. */
status npz_end(npz_writer *w) {
    unsigned char crc[4];
    if (!w->is_open || w->left > 0)
        return fail(ERR_CONFIG, "an array lacks %" PRIu64 " bytes", w->left);
    const member *m = &w->members[w->n - 1];
    w->is_open = false;
    TRY(out_file_read_at(w->file, m->offset + CRC_AT, crc, sizeof crc));
    for (int i = 0; i < 4; i++)
        crc[i] = (unsigned char)(m->crc >> 8 * i);
    return out_file_write_at(w->file, m->offset + CRC_AT, crc, sizeof crc);
}

static status central_header(buf *b, const member *m) {
    status st = OK;
    number(b, &st, 0x02014b50, 4);
    number(b, &st, 45, 2); /* made by */
    common_header(b, &st, m, extra_bytes(m, true));
    number(b, &st, 0, 2); /* comment */
    number(b, &st, 0, 2); /* disk */
    number(b, &st, 0, 2); /* attributes */
    number(b, &st, 0, 4);
    number(b, &st, capped(m->offset), 4);
    if (st == OK) st = buf_text(b, m->name);
    put_extra(b, &st, m, true);
    return st;
}

/* The zip64 end record, and where it is; read where the directory is beyond 4 GiB. */
static void zip64_end(buf *b, status *st, const npz_writer *w, uint64_t first, uint64_t n_bytes) {
    number(b, st, 0x06064b50, 4);
    number(b, st, 44, 8);
    number(b, st, 45, 2);
    number(b, st, 45, 2);
    number(b, st, 0, 4);
    number(b, st, 0, 4);
    number(b, st, (uint64_t)w->n, 8);
    number(b, st, (uint64_t)w->n, 8);
    number(b, st, n_bytes, 8);
    number(b, st, first, 8);
    number(b, st, 0x07064b50, 4);
    number(b, st, 0, 4);
    number(b, st, first + n_bytes, 8);
    number(b, st, 1, 4);
}

static status directory(npz_writer *w, buf *b) {
    status st = OK;
    for (int i = 0; i < w->n && st == OK; i++)
        st = central_header(b, &w->members[i]);
    uint64_t first = w->at, n_bytes = b->n_bytes;
    if (first >= ZIP32_MAX) zip64_end(b, &st, w, first, n_bytes);
    number(b, &st, 0x06054b50, 4);
    number(b, &st, 0, 2);
    number(b, &st, 0, 2);
    number(b, &st, (uint64_t)w->n, 2);
    number(b, &st, (uint64_t)w->n, 2);
    number(b, &st, n_bytes, 4);
    number(b, &st, capped(first), 4);
    number(b, &st, 0, 2);
    return st;
}

status npz_commit(npz_writer *w) {
    buf b;
    buf_init(&b);
    status st = w->is_open ? fail(ERR_CONFIG, "an array is still open") : directory(w, &b);
    status end = put_buf(w, &b);
    if (st == OK) st = end;
    out_file *file = w->file;
    mem_free(w);
    if (st == OK) return out_file_commit(file);
    out_file_abandon(file);
    return st;
}
