#include "format/zip_read.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum { END_BYTES = 22, LOCATOR_BYTES = 20, END64_BYTES = 56, CENTRAL_BYTES = 46, LOCAL_BYTES = 30 };
enum { END = 0x06054b50, LOCATOR = 0x07064b50, END64 = 0x06064b50 };
enum { CENTRAL = 0x02014b50, LOCAL = 0x04034b50 };

typedef struct reader {
    const char *path;
    const unsigned char *bytes;
    size_t n_bytes;
    uint64_t first, size, n; /* the directory: its place, bytes and members */
    arena *memory;
} reader;

static uint64_t number(const unsigned char *p, int n) {
    uint64_t value = 0;
    for (int i = 0; i < n; i++)
        value |= (uint64_t)p[i] << 8 * i;
    return value;
}

static status damaged(const reader *r, const char *what) {
    return fail(ERR_FORMAT, "%s: not a whole zip archive: %s; copy or save it again", r->path,
                what);
}

/* The end record is the last one whose comment reaches to the end of the file. */
static status find_end(const reader *r, size_t *out) {
    for (size_t back = END_BYTES; back <= r->n_bytes && back <= END_BYTES + UINT16_MAX; back++) {
        const unsigned char *p = r->bytes + r->n_bytes - back;
        if (number(p, 4) != END || number(p + 20, 2) != back - END_BYTES) continue;
        *out = r->n_bytes - back;
        return OK;
    }
    return damaged(r, "it has no directory at its end");
}

/* The zip64 form of the end record, which torch always writes. */
static status read_end64(reader *r, size_t end, uint64_t *limit) {
    const unsigned char *locator = r->bytes + end - LOCATOR_BYTES;
    uint64_t at = number(locator + 8, 8);
    if (end - LOCATOR_BYTES < END64_BYTES || at > end - LOCATOR_BYTES - END64_BYTES ||
        number(r->bytes + at, 4) != END64)
        return damaged(r, "the zip64 record of its directory is not where it should be");
    const unsigned char *p = r->bytes + at;
    if (number(p + 16, 4) != 0 || number(p + 20, 4) != 0)
        return damaged(r, "it is a part of a divided archive");
    r->n = number(p + 32, 8);
    r->size = number(p + 40, 8);
    r->first = number(p + 48, 8);
    *limit = at;
    return OK;
}

static status read_end(reader *r) {
    size_t end = 0;
    TRY(find_end(r, &end));
    const unsigned char *p = r->bytes + end;
    uint64_t limit = end;
    if (number(p + 4, 2) != 0 || number(p + 6, 2) != 0)
        return damaged(r, "it is a part of a divided archive");
    r->n = number(p + 10, 2);
    r->size = number(p + 12, 4);
    r->first = number(p + 16, 4);
    if (end >= LOCATOR_BYTES && number(p - LOCATOR_BYTES, 4) == LOCATOR)
        TRY(read_end64(r, end, &limit));
    if (r->first > limit || r->size > limit - r->first || r->n > r->size / CENTRAL_BYTES)
        return damaged(r, "its directory does not fit the file");
    return OK;
}

/* Values that do not fit 32 bits come in this order in the extra field with id 1. */
static status read_zip64(const reader *r, const unsigned char *extra, size_t n,
                         uint64_t *const value[3]) {
    while (n >= 4) {
        size_t id = number(extra, 2), size = number(extra + 2, 2);
        if (size > n - 4) break;
        if (id == 1) {
            const unsigned char *p = extra + 4, *end = p + size;
            for (int i = 0; i < 3; i++) {
                if (*value[i] != UINT32_MAX) continue;
                if (end - p < 8) return damaged(r, "a zip64 field is too short");
                *value[i] = number(p, 8);
                p += 8;
            }
            return OK;
        }
        extra += 4 + size;
        n -= 4 + size;
    }
    for (int i = 0; i < 3; i++)
        if (*value[i] == UINT32_MAX) return damaged(r, "a zip64 field is missing");
    return OK;
}

/* Where the content of a member begins: after its local header, whose name and extra field have
 * lengths of their own. */
static status find_content(const reader *r, uint64_t offset, zip_member *m) {
    if (r->first < LOCAL_BYTES || offset > r->first - LOCAL_BYTES ||
        number(r->bytes + offset, 4) != LOCAL)
        return damaged(r, "a member is not where the directory says");
    const unsigned char *p = r->bytes + offset;
    size_t n_name = number(p + 26, 2), n_extra = number(p + 28, 2);
    uint64_t left = r->first - offset - LOCAL_BYTES;
    if (n_name + n_extra > left || m->n_bytes > left - n_name - n_extra)
        return damaged(r, "a member does not fit before the directory");
    if (n_name != strlen(m->name) || memcmp(p + LOCAL_BYTES, m->name, n_name) != 0)
        return damaged(r, "a member has another name than in the directory");
    m->bytes = p + LOCAL_BYTES + n_name + n_extra;
    return OK;
}

/* Reads the entry at p, of at most `left` bytes, and sets *used to its length. */
static status read_entry(const reader *r, const unsigned char *p, uint64_t left, zip_member *m,
                         uint64_t *used) {
    if (left < CENTRAL_BYTES || number(p, 4) != CENTRAL)
        return damaged(r, "an entry of its directory is cut short");
    size_t n_name = number(p + 28, 2), n_extra = number(p + 30, 2);
    uint64_t compressed = number(p + 20, 4), plain = number(p + 24, 4), offset = number(p + 42, 4);
    *used = CENTRAL_BYTES + n_name + n_extra + number(p + 32, 2);
    if (*used > left) return damaged(r, "an entry of its directory is cut short");
    const unsigned char *name = p + CENTRAL_BYTES;
    if (n_name == 0 || memchr(name, '\0', n_name) != NULL)
        return damaged(r, "a member has no usable name");
    TRY(arena_copy_text(r->memory, (const char *)name, n_name, &m->name));
    TRY(read_zip64(r, name + n_name, n_extra, (uint64_t *const[]){&plain, &compressed, &offset}));
    if (number(p + 8, 2) & 1)
        return fail(ERR_FORMAT, "%s: '%.100s' in it is encrypted", r->path, m->name);
    m->is_stored = number(p + 10, 2) == 0;
    if ((m->is_stored && compressed != plain) || compressed > r->n_bytes)
        return damaged(r, "the sizes of a member differ");
    m->n_bytes = (size_t)compressed;
    m->crc = (uint32_t)number(p + 16, 4);
    return find_content(r, offset, m);
}

static int by_place(const void *a, const void *b) {
    const zip_member *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const zip_member *)a)->name, ((const zip_member *)b)->name);
}

static status check_members(const reader *r, zip_list *l) {
    if (l->n == 0) return OK;
    qsort(l->member, l->n, sizeof *l->member, by_place);
    for (size_t i = 1; i < l->n; i++)
        if (l->member[i - 1].bytes + l->member[i - 1].n_bytes > l->member[i].bytes)
            return damaged(r, "two members overlap");
    qsort(l->member, l->n, sizeof *l->member, by_name);
    for (size_t i = 1; i < l->n; i++)
        if (by_name(&l->member[i - 1], &l->member[i]) == 0)
            return fail(ERR_FORMAT, "%s: '%.100s' is in it twice", r->path, l->member[i].name);
    return OK;
}

status zip_read(zip_list *out, arena *a, const char *path, const unsigned char *bytes,
                size_t n_bytes) {
    reader r = {.path = path, .bytes = bytes, .n_bytes = n_bytes, .memory = a};
    zip_list l = {0};
    *out = l;
    TRY(read_end(&r));
    TRY(ARENA_NEW(a, &l.member, (size_t)r.n));
    const unsigned char *p = bytes + r.first;
    for (uint64_t left = r.size; l.n < r.n; l.n++) {
        uint64_t used = 0;
        TRY(read_entry(&r, p, left, &l.member[l.n], &used));
        p += used;
        left -= used;
    }
    TRY(check_members(&r, &l));
    *out = l;
    return OK;
}

const zip_member *zip_find(const zip_list *l, const char *name) {
    const zip_member key = {.name = name};
    return l->n > 0 ? bsearch(&key, l->member, l->n, sizeof key, by_name) : NULL;
}

status zip_verify(const zip_member *m, const char *path) {
    if (!m->is_stored)
        return fail(ERR_FORMAT,
                    "%s: '%.100s' in it is compressed; torch.save stores its members plainly, so "
                    "unpack this archive first",
                    path, m->name);
    uint32_t crc = crc32_add(0, m->bytes, m->n_bytes);
    if (crc == m->crc) return OK;
    return fail(ERR_FORMAT,
                "%s: '%.100s' in it has the checksum %08" PRIx32 ", not %08" PRIx32
                ": the file is damaged; copy or save it again",
                path, m->name, crc, m->crc);
}
