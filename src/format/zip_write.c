#include "format/zip_write.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"

enum { LOCAL_BYTES = 30, CRC_AT = 14, EXTRA_BYTES = 4 };
#define ZIP32_MAX UINT32_MAX

typedef struct member {
    const char *name;
    uint64_t offset, n_bytes; /* of its local header; of its content */
    uint32_t crc;
    int pad; /* bytes of the extra field that aligns the content; 0: it has none */
} member;

struct zip_writer {
    out_file *file;
    arena names;
    uint64_t at; /* bytes written so far */
    member *members;
    size_t n, capacity;
    uint64_t left; /* bytes that the open member still needs */
    bool is_open;
};

static void release(zip_writer *w) {
    arena_fini(&w->names);
    mem_free(w->members);
    mem_free(w);
}

status zip_create(zip_writer **out, const char *path) {
    zip_writer *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1));
    arena_init(&w->names, 4096);
    status st = out_file_create(&w->file, path);
    if (st != OK) {
        release(w);
        return st;
    }
    *out = w;
    return OK;
}

void zip_abandon(zip_writer *w) {
    if (w == NULL) return;
    out_file_abandon(w->file);
    release(w);
}

static status put(zip_writer *w, const void *bytes, size_t n) {
    TRY(out_file_write(w->file, bytes, n));
    w->at += n;
    return OK;
}

static status put_buf(zip_writer *w, buf *b) {
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
static int zip64_bytes(const member *m, bool is_central) {
    int n = (m->n_bytes >= ZIP32_MAX ? 16 : 0) + (is_central && m->offset >= ZIP32_MAX ? 8 : 0);
    return n > 0 ? n + EXTRA_BYTES : 0;
}

static void put_zip64(buf *b, status *st, const member *m, bool is_central) {
    int n = zip64_bytes(m, is_central);
    if (n == 0) return;
    number(b, st, 1, 2);
    number(b, st, (uint64_t)(n - EXTRA_BYTES), 2);
    if (m->n_bytes >= ZIP32_MAX) number(b, st, m->n_bytes, 8);
    if (m->n_bytes >= ZIP32_MAX) number(b, st, m->n_bytes, 8);
    if (is_central && m->offset >= ZIP32_MAX) number(b, st, m->offset, 8);
}

/* The extra field that moves the content to a multiple of `align`, under the id that torch uses. */
static int pad_bytes(const member *m, size_t align) {
    uint64_t begin = m->offset + LOCAL_BYTES + strlen(m->name) + (size_t)zip64_bytes(m, false);
    if (align <= 1 || begin % align == 0) return 0;
    return EXTRA_BYTES + (int)((align - (begin + EXTRA_BYTES) % align) % align);
}

static void put_pad(buf *b, status *st, const member *m) {
    if (m->pad == 0) return;
    number(b, st, 'F' | 'B' << 8, 2);
    number(b, st, (uint64_t)(m->pad - EXTRA_BYTES), 2);
    for (int i = EXTRA_BYTES; i < m->pad; i++)
        number(b, st, 'Z', 1);
}

static status local_header(zip_writer *w, const member *m) {
    buf b;
    status st = OK;
    buf_init(&b);
    number(&b, &st, 0x04034b50, 4);
    common_header(&b, &st, m, zip64_bytes(m, false) + m->pad);
    if (st == OK) st = buf_text(&b, m->name);
    put_zip64(&b, &st, m, false);
    put_pad(&b, &st, m);
    status end = put_buf(w, &b);
    return st != OK ? st : end;
}

status zip_begin(zip_writer *w, const char *name, uint64_t n_bytes, size_t align) {
    if (w->is_open) return fail(ERR_CONFIG, "'%s' cannot be begun: a member is open", name);
    if (strlen(name) >= ZIP_NAME_BYTES)
        return fail(ERR_UNSUPPORTED, "the name '%.60s...' is too long for an archive", name);
    TRY(MEM_RESERVE(&w->members, &w->capacity, w->n + 1));
    member m = {.offset = w->at, .n_bytes = n_bytes};
    TRY(arena_copy_text(&w->names, name, strlen(name), &m.name));
    m.pad = pad_bytes(&m, align);
    TRY(local_header(w, &m));
    w->members[w->n++] = m;
    w->is_open = true;
    w->left = n_bytes;
    return OK;
}

status zip_write(zip_writer *w, const void *bytes, size_t n) {
    if (!w->is_open || n > w->left)
        return fail(ERR_CONFIG, "%zu bytes for a member that has room for %" PRIu64, n, w->left);
    member *m = &w->members[w->n - 1];
    m->crc = crc32_add(m->crc, bytes, n);
    w->left -= n;
    return put(w, bytes, n);
}

/* The checksum is known only now.  Reading first makes the header leave the buffer for the file. */
status zip_end(zip_writer *w) {
    unsigned char crc[4];
    if (!w->is_open || w->left > 0)
        return fail(ERR_CONFIG, "a member lacks %" PRIu64 " bytes", w->left);
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
    common_header(b, &st, m, zip64_bytes(m, true));
    number(b, &st, 0, 2); /* comment */
    number(b, &st, 0, 2); /* disk */
    number(b, &st, 0, 2); /* attributes */
    number(b, &st, 0, 4);
    number(b, &st, capped(m->offset), 4);
    if (st == OK) st = buf_text(b, m->name);
    put_zip64(b, &st, m, true);
    return st;
}

/* The zip64 end record, and where it is; read where the directory is beyond 4 GiB, or where there
 * are more members than 16 bits count. */
static void zip64_end(buf *b, status *st, const zip_writer *w, uint64_t first, uint64_t n_bytes) {
    number(b, st, 0x06064b50, 4);
    number(b, st, 44, 8);
    number(b, st, 45, 2);
    number(b, st, 45, 2);
    number(b, st, 0, 4);
    number(b, st, 0, 4);
    number(b, st, w->n, 8);
    number(b, st, w->n, 8);
    number(b, st, n_bytes, 8);
    number(b, st, first, 8);
    number(b, st, 0x07064b50, 4);
    number(b, st, 0, 4);
    number(b, st, first + n_bytes, 8);
    number(b, st, 1, 4);
}

static status directory(zip_writer *w, buf *b) {
    status st = OK;
    for (size_t i = 0; i < w->n && st == OK; i++)
        st = central_header(b, &w->members[i]);
    uint64_t first = w->at, n_bytes = b->n_bytes, n = w->n < UINT16_MAX ? w->n : UINT16_MAX;
    if (first >= ZIP32_MAX || n == UINT16_MAX) zip64_end(b, &st, w, first, n_bytes);
    number(b, &st, 0x06054b50, 4);
    number(b, &st, 0, 2);
    number(b, &st, 0, 2);
    number(b, &st, n, 2);
    number(b, &st, n, 2);
    number(b, &st, capped(n_bytes), 4);
    number(b, &st, capped(first), 4);
    number(b, &st, 0, 2);
    return st;
}

status zip_commit(zip_writer *w) {
    buf b;
    buf_init(&b);
    status st = w->is_open ? fail(ERR_CONFIG, "a member is still open") : directory(w, &b);
    status end = put_buf(w, &b);
    if (st == OK) st = end;
    out_file *file = w->file;
    release(w);
    return out_file_end(file, st);
}
