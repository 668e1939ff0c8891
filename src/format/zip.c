#include "format/zip.h"

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

static status damaged(const reader *r, const char *what) {
    return fail(ERR_FORMAT, "%s: not a whole zip archive: %s; copy or save it again", r->path,
                what);
}

/* The end record is the last one whose comment reaches to the end of the file. */
static status find_end(const reader *r, size_t *out) {
    for (size_t back = END_BYTES; back <= r->n_bytes && back <= END_BYTES + UINT16_MAX; back++) {
        const unsigned char *p = r->bytes + r->n_bytes - back;
        if (read_little(p, 4) != END || read_little(p + 20, 2) != back - END_BYTES) continue;
        *out = r->n_bytes - back;
        return OK;
    }
    return damaged(r, "it has no directory at its end");
}

/* The zip64 form of the end record, which torch always writes. */
static status read_end64(reader *r, size_t end, uint64_t *limit) {
    const unsigned char *locator = r->bytes + end - LOCATOR_BYTES;
    uint64_t at = read_little(locator + 8, 8);
    if (end - LOCATOR_BYTES < END64_BYTES || at > end - LOCATOR_BYTES - END64_BYTES ||
        read_little(r->bytes + at, 4) != END64)
        return damaged(r, "the zip64 record of its directory is not where it should be");
    const unsigned char *p = r->bytes + at;
    if (read_little(p + 16, 4) != 0 || read_little(p + 20, 4) != 0)
        return damaged(r, "it is a part of a divided archive");
    r->n = read_little(p + 32, 8);
    r->size = read_little(p + 40, 8);
    r->first = read_little(p + 48, 8);
    *limit = at;
    return OK;
}

static status read_end(reader *r) {
    size_t end = 0;
    TRY(find_end(r, &end));
    const unsigned char *p = r->bytes + end;
    uint64_t limit = end;
    if (read_little(p + 4, 2) != 0 || read_little(p + 6, 2) != 0)
        return damaged(r, "it is a part of a divided archive");
    r->n = read_little(p + 10, 2);
    r->size = read_little(p + 12, 4);
    r->first = read_little(p + 16, 4);
    if (end >= LOCATOR_BYTES && read_little(p - LOCATOR_BYTES, 4) == LOCATOR)
        TRY(read_end64(r, end, &limit));
    if (r->first > limit || r->size > limit - r->first || r->n > r->size / CENTRAL_BYTES)
        return damaged(r, "its directory does not fit the file");
    return OK;
}

/* Values that do not fit 32 bits come in this order in the extra field with id 1. */
static status read_zip64(const reader *r, const unsigned char *extra, size_t n,
                         uint64_t *const value[3]) {
    while (n >= 4) {
        size_t id = read_little(extra, 2), size = read_little(extra + 2, 2);
        if (size > n - 4) break;
        if (id == 1) {
            const unsigned char *p = extra + 4, *end = p + size;
            for (int i = 0; i < 3; i++) {
                if (*value[i] != UINT32_MAX) continue;
                if (end - p < 8) return damaged(r, "a zip64 field is too short");
                *value[i] = read_little(p, 8);
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
        read_little(r->bytes + offset, 4) != LOCAL)
        return damaged(r, "a member is not where the directory says");
    const unsigned char *p = r->bytes + offset;
    size_t n_name = read_little(p + 26, 2), n_extra = read_little(p + 28, 2);
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
    if (left < CENTRAL_BYTES || read_little(p, 4) != CENTRAL)
        return damaged(r, "an entry of its directory is cut short");
    size_t n_name = read_little(p + 28, 2), n_extra = read_little(p + 30, 2);
    uint64_t compressed = read_little(p + 20, 4), plain = read_little(p + 24, 4),
             offset = read_little(p + 42, 4);
    *used = CENTRAL_BYTES + n_name + n_extra + read_little(p + 32, 2);
    if (*used > left) return damaged(r, "an entry of its directory is cut short");
    const unsigned char *name = p + CENTRAL_BYTES;
    if (n_name == 0 || memchr(name, '\0', n_name) != NULL)
        return damaged(r, "a member has no usable name");
    TRY(arena_copy_text(r->memory, (const char *)name, n_name, &m->name));
    TRY(read_zip64(r, name + n_name, n_extra, (uint64_t *const[]){&plain, &compressed, &offset}));
    if (read_little(p + 8, 2) & 1)
        return fail(ERR_FORMAT, "%s: '%.100s' in it is encrypted", r->path, m->name);
    m->is_stored = read_little(p + 10, 2) == 0;
    if ((m->is_stored && compressed != plain) || compressed > r->n_bytes)
        return damaged(r, "the sizes of a member differ");
    m->n_bytes = (size_t)compressed;
    m->crc = (uint32_t)read_little(p + 16, 4);
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

enum { CRC_AT = 14, EXTRA_BYTES = 4 };
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
    MEM_FREE(w->members, w);
}

status zip_create(zip_writer **out, const char *path) {
    zip_writer *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1));
    arena_init(&w->names, 4096);
    status st = out_file_create(&w->file, path);
    return CREATED(st, out, w, release);
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

/* Little-endian numbers of a zip header; `bytes` has the digit of each one's length. */
static void put_numbers(buf *b, status *st, const char *bytes, const uint64_t *value) {
    for (; *bytes != '\0' && *st == OK; bytes++, value++)
        *st = buf_little(b, *value, *bytes - '0');
}
#define PUT(b, st, bytes, ...) put_numbers(b, st, bytes, (const uint64_t[]){__VA_ARGS__})

static uint64_t capped(uint64_t value) {
    return value < ZIP32_MAX ? value : ZIP32_MAX;
}

/* What local and central headers share, from the version that is needed to the lengths of name and
 * extra field. */
static void common_header(buf *b, status *st, const member *m, int extra_bytes) {
    /* The version that knows zip64; flags; stored; time, and the first day there is: the same bytes
     * in every run. */
    PUT(b, st, "22222", 45, 0, 0, 0, 0x0021);
    PUT(b, st, "44422", m->crc, capped(m->n_bytes), capped(m->n_bytes), strlen(m->name),
        (uint64_t)extra_bytes);
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
    PUT(b, st, "22", 1, (uint64_t)(n - EXTRA_BYTES));
    if (m->n_bytes >= ZIP32_MAX) PUT(b, st, "88", m->n_bytes, m->n_bytes);
    if (is_central && m->offset >= ZIP32_MAX) PUT(b, st, "8", m->offset);
}

/* The extra field that moves the content to a multiple of `align`, under the id that torch uses. */
static int pad_bytes(const member *m, size_t align) {
    uint64_t begin = m->offset + LOCAL_BYTES + strlen(m->name) + (size_t)zip64_bytes(m, false);
    if (align <= 1 || begin % align == 0) return 0;
    return EXTRA_BYTES + (int)((align - (begin + EXTRA_BYTES) % align) % align);
}

static void put_pad(buf *b, status *st, const member *m) {
    if (m->pad == 0) return;
    PUT(b, st, "22", 'F' | 'B' << 8, (uint64_t)(m->pad - EXTRA_BYTES));
    for (int i = EXTRA_BYTES; i < m->pad; i++)
        PUT(b, st, "1", 'Z');
}

static status local_header(zip_writer *w, const member *m) {
    buf b = {0};
    status st = OK;
    PUT(&b, &st, "4", LOCAL);
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
    PUT(b, &st, "42", CENTRAL, 45); /* made by this version */
    common_header(b, &st, m, zip64_bytes(m, true));
    PUT(b, &st, "22244", 0, 0, 0, 0, capped(m->offset)); /* comment, disk, attributes */
    if (st == OK) st = buf_text(b, m->name);
    put_zip64(b, &st, m, true);
    return st;
}

/* The zip64 end record, and where it is; read where the directory is beyond 4 GiB, or where there
 * are more members than 16 bits count. */
static void zip64_end(buf *b, status *st, const zip_writer *w, uint64_t first, uint64_t n_bytes) {
    PUT(b, st, "4822448888", END64, 44, 45, 45, 0, 0, w->n, w->n, n_bytes, first);
    PUT(b, st, "4484", LOCATOR, 0, first + n_bytes, 1);
}

static status directory(zip_writer *w, buf *b) {
    status st = OK;
    for (size_t i = 0; i < w->n && st == OK; i++)
        st = central_header(b, &w->members[i]);
    uint64_t first = w->at, n_bytes = b->n_bytes, n = w->n < UINT16_MAX ? w->n : UINT16_MAX;
    if (first >= ZIP32_MAX || n == UINT16_MAX) zip64_end(b, &st, w, first, n_bytes);
    PUT(b, &st, "42222442", END, 0, 0, n, n, capped(n_bytes), capped(first), 0);
    return st;
}

status zip_commit(zip_writer *w) {
    buf b = {0};
    status st = w->is_open ? fail(ERR_CONFIG, "a member is still open") : directory(w, &b);
    status end = put_buf(w, &b);
    if (st == OK) st = end;
    out_file *file = w->file;
    release(w);
    return out_file_end(file, st);
}
