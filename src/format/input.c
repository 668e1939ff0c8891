/* An input is a stack of layers.
 *
 * The lowest layer is a file, read with read(2).  A decoder layer (libarchive) on top of it
 * decompresses it or walks through the files of an archive; a compressed member of an archive has a
 * third layer.  A layer owns the one below.  Bundles come last. */
#include <dirent.h>

#include "format/input.h"

enum { INPUT_HEAD_BYTES = 512 }; /* the magic of a tar file is at byte 257 */

typedef enum { CONTENT_PLAIN, CONTENT_COMPRESSED, CONTENT_ARCHIVE, CONTENT_FOREIGN } content_kind;

struct decoder; /* libarchive's part of a layer */

struct input {
    char *name;
    input *below;            /* NULL for a file */
    struct decoder *decoder; /* NULL for a file */
    int fd;                  /* of a file, else -1 */
    bool is_seekable;
    uint64_t file_at;     /* the offset in the file */
    uint64_t file_bytes;  /* 0 = unknown */
    unsigned char *block; /* what input_block reads a file into; made on first use */
    unsigned char head[INPUT_HEAD_BYTES]; /* looked at already, but not yet handed out */
    size_t head_at, head_bytes;
};

/* A decoder on the layer `below`, which decompresses a stream or walks through an archive, file by
 * file; the new layer owns `below`, unless it fails. */
static status input_decode(input **out, input *below, bool is_walk);

/* The next regular file of an archive, which can then be read; *out_path = NULL after the last.
 * The path is valid until the next call and holds no control characters. */
static status input_walk_next(input *in, const char **out_path);

/* The decoder's parts of input_block and input_close; at most `max` bytes, the rest is kept. */
static status decoder_block(input *in, size_t max, const void **bytes, size_t *n);
static void decoder_destroy(struct decoder *d);

enum { BLOCK_BYTES = 1 << 18, LINES_BLOCK_BYTES = 1 << 16 };

/* A layer without content; `name` is copied. */
static status input_create(input **out, const char *name) {
    size_t n = strlen(name) + 1;
    TRY(MEM_NEW(out, 1));
    (*out)->fd = -1;
    status st = MEM_NEW_RAW(&(*out)->name, n);
    if (st != OK) {
        mem_free(*out);
        *out = NULL;
        return st;
    }
    memcpy((*out)->name, name, n);
    return OK;
}

void input_close(input *in) {
    while (in != NULL) {
        input *below = in->below;
        decoder_destroy(in->decoder);
        if (in->fd >= 0) close(in->fd);
        MEM_FREE(in->block, in->name, in);
        in = below;
    }
}

static status open_file(input *in, const char *path) {
    struct stat info;
    /* The standard input may be a socket, which cannot be opened again as /dev/stdin. */
    bool is_standard = strcmp(path, "-") == 0;
    in->fd =
        is_standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0)
        return fail_errno("%s cannot be opened", is_standard ? "the standard input" : path);
    if (fstat(in->fd, &info) != 0) return fail_errno("%s cannot be examined", path);
    if (S_ISDIR(info.st_mode)) return fail(ERR_IO, "%s is a folder; a file is needed here", path);
    in->is_seekable = S_ISREG(info.st_mode) && !is_standard; /* it may be read half-way already */
    in->file_bytes = in->is_seekable ? (uint64_t)info.st_size : 0;
    /* Only a hint: the file is read all the same where the file system ignores it. */
    (void)posix_fadvise(in->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return OK;
}

/* read(2) of the bottom layer; short only at the end of what is there now. */
static status read_file(input *in, void *bytes, size_t n, size_t *got) {
    ssize_t r;
    do
        r = read(in->fd, bytes, n);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return fail_errno("%s cannot be read at byte %llu", in->name,
                          (unsigned long long)in->file_at);
    in->file_at += (uint64_t)r;
    *got = (size_t)r;
    return OK;
}

/* What input_sniff has looked at comes first. */
static size_t take_head(input *in, const void **bytes, size_t n) {
    size_t left = in->head_bytes - in->head_at;
    if (n > left) n = left;
    *bytes = in->head + in->head_at;
    in->head_at += n;
    return n;
}

#ifdef HSTU_HAS_ARCHIVE
/* The next bytes of a layer, in memory of the layer itself; *n = 0 only at the end. */
static status input_block(input *in, const void **bytes, size_t *n) {
    *n = take_head(in, bytes, INPUT_HEAD_BYTES);
    if (*n > 0) return OK;
    if (in->decoder != NULL) return decoder_block(in, SIZE_MAX, bytes, n);
    if (in->block == NULL) TRY(MEM_NEW_RAW(&in->block, BLOCK_BYTES));
    *bytes = in->block;
    return read_file(in, in->block, BLOCK_BYTES, n);
}
#endif

status input_read(input *in, void *bytes, size_t n, size_t *got) {
    const void *from;
    *got = 0;
    if (n == 0) return OK;
    *got = take_head(in, &from, n);
    if (*got == 0 && in->decoder == NULL) return read_file(in, bytes, n, got);
    if (*got == 0) TRY(decoder_block(in, n, &from, got));
    if (*got > 0) memcpy(bytes, from, *got);
    return OK;
}

const char *input_name(const input *in) {
    return in->name;
}

static const input *file_of(const input *in) {
    while (in->below != NULL)
        in = in->below;
    return in;
}

void input_progress(const input *in, uint64_t *done_bytes, uint64_t *total_bytes) {
    *done_bytes = file_of(in)->file_at;
    *total_bytes = file_of(in)->file_bytes;
}

/* The first bytes of the file types that we read, and of those that we recognise to refuse them. */
typedef struct signature {
    size_t at;
    const char *bytes;
    size_t n_bytes;
    content_kind kind;
    const char *what;
} signature;

static const signature signatures[] = {
    {0, "\x1f\x8b", 2, CONTENT_COMPRESSED, "gzip"},
    {0, "BZh", 3, CONTENT_COMPRESSED, "bzip2"},
    {0,
     "\xfd"
     "7zXZ\0",
     6, CONTENT_COMPRESSED, "xz"},
    {0, "\x28\xb5\x2f\xfd", 4, CONTENT_COMPRESSED, "zstd"},
    {0, "PK\3\4", 4, CONTENT_ARCHIVE, "zip"},
    {0, "PK\5\6", 4, CONTENT_ARCHIVE, "zip"}, /* one without files */
    {257, "ustar", 5, CONTENT_ARCHIVE, "tar"},
    {0, "7z\xbc\xaf\x27\x1c", 6, CONTENT_FOREIGN, "7-Zip"},
    {0, "Rar!\x1a\x07", 6, CONTENT_FOREIGN, "RAR"},
    {0, "\x04\x22\x4d\x18", 4, CONTENT_FOREIGN, "lz4"},
};

/* Fills the head as far as there is content. */
static status fill_head(input *in) {
    size_t used = 0;
    while (used < INPUT_HEAD_BYTES) {
        size_t got;
        TRY(input_read(in, in->head + used, INPUT_HEAD_BYTES - used, &got));
        if (got == 0) break;
        used += got;
    }
    in->head_at = 0;
    in->head_bytes = used;
    return OK;
}

/* Peeks at the first bytes without consuming them; *out_what is a word for messages. */
static status input_sniff(input *in, content_kind *out_kind, const char **out_what) {
    *out_kind = CONTENT_PLAIN;
    *out_what = "plain";
    TRY(fill_head(in));
    for (size_t i = 0; i < sizeof signatures / sizeof signatures[0]; i++) {
        const signature *s = &signatures[i];
        if (s->at + s->n_bytes > in->head_bytes) continue;
        if (memcmp(in->head + s->at, s->bytes, s->n_bytes) != 0) continue;
        *out_kind = s->kind;
        *out_what = s->what;
        break;
    }
#ifndef HSTU_HAS_ARCHIVE
    if (*out_kind == CONTENT_COMPRESSED || *out_kind == CONTENT_ARCHIVE)
        return fail(ERR_UNSUPPORTED,
                    "%s: this build cannot read %s files; unpack it by hand, or install "
                    "libarchive-dev and build again",
                    in->name, *out_what);
#endif
    if (*out_kind == CONTENT_FOREIGN)
        return fail(ERR_UNSUPPORTED, "%s: %s files are not supported; unpack it by hand", in->name,
                    *out_what);
    return OK;
}

/* Replaces *top by a decoder on top of it, and looks at the decompressed bytes. */
static status unwrap(input **top, content_kind *out_kind) {
    const char *what;
    input *decoded;
    TRY(input_sniff(*top, out_kind, &what));
    if (*out_kind != CONTENT_COMPRESSED) return OK;
    TRY(input_decode(&decoded, *top, false));
    *top = decoded;
    return input_sniff(decoded, out_kind, &what);
}

/* Opens a file, with a decoder if it is compressed; *out_kind says whether the result is an archive
 * or plain bytes. */
static status input_open_stack(input **out, const char *path, content_kind *out_kind) {
    input *top;
    *out = NULL;
    TRY(input_create(&top, strcmp(path, "-") == 0 ? "stdin" : path));
    status st = open_file(top, path);
    if (st == OK) st = unwrap(&top, out_kind);
    return CREATED(st, out, top, input_close);
}

/* The only file of an archive; any other number of files is refused, with their names. */
static status open_only_member(input **out, const char *path) {
    bundle *b;
    const char *const *names;
    size_t n;
    TRY(bundle_open(&b, path));
    status st = bundle_list(b, &names, &n);
    if (st == OK && n != 1)
        st = fail(ERR_FORMAT,
                  "%s holds %zu files%s%s%s; one file is needed here: unpack it and name the file",
                  path, n, n > 0 ? " (" : "", n > 0 ? names[0] : "", n > 0 ? ", ...)" : "");
    if (st == OK) st = bundle_open_member(b, names[0], true, out);
    bundle_close(b);
    return st;
}

status input_open(input **out, const char *path) {
    content_kind kind;
    TRY(input_open_stack(out, path, &kind));
    if (kind != CONTENT_ARCHIVE) return OK;
    bool is_file = file_of(*out)->is_seekable;
    input_close(*out);
    *out = NULL;
    if (!is_file)
        return fail(ERR_UNSUPPORTED, "%s: an archive cannot come through a pipe; give the file",
                    path);
    return open_only_member(out, path);
}

status input_lines_open(input_lines *l, const char *path) {
    *l = (input_lines){0};
    TRY(MEM_NEW_RAW(&l->block, LINES_BLOCK_BYTES));
    return input_open(&l->in, path);
}

void input_lines_close(input_lines *l) {
    input_close(l->in);
    buf_fini(&l->line);
    mem_free(l->block);
    *l = (input_lines){0};
}

status input_lines_next(input_lines *l, size_t max_bytes, bool *is_end) {
    bool is_whole = false;
    buf_clear(&l->line);
    while (!is_whole) {
        if (l->at == l->end) {
            l->at = 0;
            TRY(input_read(l->in, l->block, LINES_BLOCK_BYTES, &l->end));
        }
        if (l->end == 0) break;
        const char *from = l->block + l->at, *stop = memchr(from, '\n', l->end - l->at);
        size_t n = stop != NULL ? (size_t)(stop - from) : l->end - l->at;
        if (l->line.n_bytes + n > max_bytes)
            return fail(ERR_FORMAT, "%s: line %" PRIu64 " is longer than %zu bytes",
                        input_name(l->in), l->n + 1, max_bytes);
        TRY(buf_append(&l->line, from, n));
        l->at += n + (stop != NULL);
        is_whole = stop != NULL;
    }
    *is_end = !is_whole && l->line.n_bytes == 0;
    l->n += !*is_end;
    return OK;
}

/* The decoder layer: libarchive on top of another input.
 *
 * libarchive asks the layer below for bytes through callbacks, so that archives and compression can
 * be nested in any way, nothing is ever written to disk, and we know how much of the file has been
 * read.  Of the many formats that libarchive knows we allow tar and zip, gzip, bzip2, xz and zstd
 * only: a format that is not enabled cannot be attacked. */

#ifdef HSTU_HAS_ARCHIVE
#include <archive.h>
#include <archive_entry.h>

#include "base/hash.h"

enum { PATH_BYTES = 512 };

/* Text compresses to a fifth or a tenth.  What unpacks to this many times the size of its file was
 * made to fill memory; small files may do so. */
enum { MAX_RATIO = 250, FREE_BYTES = 64 << 20 };

struct decoder {
    struct archive *archive;
    input *below;
    bool is_walk;              /* through an archive; else one compressed stream */
    status below_status;       /* a failure of the layer below, whose reason is kept */
    bool is_done;              /* the current stream has ended */
    uint64_t at;               /* bytes of the current stream so far */
    uint64_t total;            /* of all streams */
    const unsigned char *left; /* the rest of a block that did not fit into the caller's buffer */
    size_t n_left;
    char path[PATH_BYTES]; /* of the current member */
    /* libarchive does not check gzip's checksum: we do. */
    bool is_gzip;
    bool is_maybe_several; /* gzip streams, one after the other */
    uint32_t crc;
    uint64_t below_bytes;  /* read from below */
    unsigned char tail[8]; /* the last of them: gzip's checksum and length */
};

static status damaged(const input *in) {
    struct decoder *d = in->decoder;
    if (d->below_status != OK) return d->below_status;
    if (archive_errno(d->archive) == ENOMEM)
        return fail(ERR_NOMEM, "%s: out of memory while unpacking", in->name);
    const char *reason = archive_error_string(d->archive);
    return fail(ERR_FORMAT, "%s is damaged after byte %llu: %s; fetch it again", in->name,
                (unsigned long long)d->at, reason != NULL ? reason : "it ends too early");
}

/* Sees every byte of a compressed stream pass.  A second gzip stream starts with 1f 8b 08; if these
 * bytes occur only at the start, there is only one stream. */
static void note_block(struct decoder *d, const unsigned char *bytes, size_t n) {
    static const char magic[] = "\x1f\x8b\x08";
    unsigned char seam[4];
    size_t size = sizeof d->tail, is_first = d->below_bytes == 0, head = n < 2 ? n : 2;
    memcpy(seam, d->tail + size - 2, 2);
    memcpy(seam + 2, bytes, head);
    if (memmem(bytes + is_first, n - is_first, magic, 3) != NULL ||
        (!is_first && memmem(seam, 2 + head, magic, 3) != NULL))
        d->is_maybe_several = true;
    size_t fresh = n < size ? n : size;
    memmove(d->tail, d->tail + fresh, size - fresh);
    memcpy(d->tail + size - fresh, bytes + n - fresh, fresh);
    d->below_bytes += n;
}

static la_ssize_t on_read(struct archive *a, void *ctx, const void **bytes) {
    struct decoder *d = ctx;
    size_t n = 0;
    d->below_status = input_block(d->below, bytes, &n);
    if (d->below_status != OK) {
        archive_set_error(a, EIO, "the data below cannot be read");
        return ARCHIVE_FATAL;
    }
    if (n > 0 && !d->is_walk) note_block(d, *bytes, n);
    return (la_ssize_t)n;
}

/* Only zip seeks, to its directory at the end and back to each member. */
static la_int64_t on_seek(struct archive *a, void *ctx, la_int64_t offset, int whence) {
    input *file = ((struct decoder *)ctx)->below;
    if (whence == SEEK_CUR) {
        offset += (la_int64_t)(file->file_at - (file->head_bytes - file->head_at));
        whence = SEEK_SET;
    }
    off_t at = lseek(file->fd, offset, whence);
    if (at < 0) {
        archive_set_error(a, errno, "cannot move to byte %lld", (long long)offset);
        return ARCHIVE_FATAL;
    }
    file->head_at = file->head_bytes;
    file->file_at = (uint64_t)at;
    return at;
}

static void decoder_destroy(struct decoder *d) {
    if (d == NULL) return;
    if (d->archive != NULL) archive_read_free(d->archive);
    mem_free(d);
}

static void allow_formats(struct archive *a, bool is_walk) {
    if (is_walk) {
        archive_read_support_format_tar(a);
        archive_read_support_format_zip(a);
    } else {
        archive_read_support_filter_gzip(a);
        archive_read_support_filter_bzip2(a);
        archive_read_support_filter_xz(a);
        archive_read_support_filter_zstd(a);
        archive_read_support_format_raw(a);
        archive_read_support_format_empty(a); /* raw refuses what decompresses to nothing */
    }
}

/* Adds the decoder to the layer `in`, which knows the one below already. */
static status start(input *in, bool is_walk) {
    TRY(MEM_NEW(&in->decoder, 1));
    struct decoder *d = in->decoder;
    d->below = in->below;
    d->is_walk = is_walk;
    d->archive = archive_read_new();
    if (d->archive == NULL) return fail(ERR_NOMEM, "%s: out of memory while opening", in->name);
    allow_formats(d->archive, is_walk);
    archive_read_set_read_callback(d->archive, on_read);
    if (is_walk && in->below->is_seekable) archive_read_set_seek_callback(d->archive, on_seek);
    archive_read_set_callback_data(d->archive, d);
    if (archive_read_open1(d->archive) != ARCHIVE_OK) return damaged(in);
    return OK;
}

/* Moves to the next header; *entry = NULL at the end.  A warning about a header (a name in an
 * unknown encoding, say) does not stop us from reading the data. */
static status next_header(input *in, struct archive_entry **entry) {
    int r;
    do
        r = archive_read_next_header(in->decoder->archive, entry);
    while (r == ARCHIVE_RETRY);
    if (r == ARCHIVE_EOF) *entry = NULL;
    return r == ARCHIVE_EOF || r >= ARCHIVE_WARN ? OK : damaged(in);
}

/* format_raw shows the content of a compressed file as a single member. */
static status begin_raw(input *in) {
    struct decoder *d = in->decoder;
    struct archive_entry *entry;
    /* The last filter is always "none".  If it is alone, no decompressor knew the first bytes, and
     * the compressed bytes themselves would be handed out as data. */
    if (archive_filter_count(d->archive) < 2)
        return fail(ERR_FORMAT,
                    "%s is damaged: its compression header is cut off or invalid; fetch it again",
                    in->name);
    TRY(next_header(in, &entry));
    d->is_done = entry == NULL;
    d->is_gzip = archive_filter_count(d->archive) == 2 &&
                 archive_filter_code(d->archive, 0) == ARCHIVE_FILTER_GZIP;
    return OK;
}

static status input_decode(input **out, input *below, bool is_walk) {
    TRY(input_create(out, below->name));
    (*out)->below = below;
    status st = start(*out, is_walk);
    if (st == OK && !is_walk) st = begin_raw(*out);
    if (st == OK) return OK;
    (*out)->below = NULL; /* still the caller's */
    input_close(*out);
    *out = NULL;
    return st;
}

/* Compares with gzip's trailer: the checksum, and the length modulo 2^32.  With several streams the
 * trailer describes the last one only, so these are left to the decompressor's own checks. */
static status check_gzip(const input *in) {
    const struct decoder *d = in->decoder;
    uint32_t crc = (uint32_t)read_little(d->tail, 4);
    uint32_t length = (uint32_t)read_little(d->tail + 4, 4);
    if (d->is_maybe_several && length != (uint32_t)d->at) return OK;
    if (length == (uint32_t)d->at && crc == d->crc) return OK;
    return fail(ERR_FORMAT,
                "%s is damaged: its checksum is %08x for %u bytes, that of its content %08x for "
                "%llu bytes; fetch it again",
                in->name, crc, length, d->crc, (unsigned long long)d->at);
}

static status check_ratio(const input *in) {
    const input *file = file_of(in);
    uint64_t total = in->decoder->total;
    uint64_t packed = file->file_bytes > file->file_at ? file->file_bytes : file->file_at;
    if (total <= FREE_BYTES || total / MAX_RATIO <= packed) return OK;
    return fail(ERR_FORMAT,
                "%s unpacks to more than %d times its %llu bytes, as no data set does; if you "
                "trust it, unpack it by hand",
                file->name, MAX_RATIO, (unsigned long long)packed);
}

/* Fetches the next block.  Here a warning is a failure, as it means a wrong checksum. */
static status fetch_block(input *in) {
    struct decoder *d = in->decoder;
    const void *bytes = NULL;
    size_t n = 0;
    la_int64_t offset = 0;
    int r;
    do
        r = archive_read_data_block(d->archive, &bytes, &n, &offset);
    while (r == ARCHIVE_RETRY || (r == ARCHIVE_OK && n == 0));
    if (r == ARCHIVE_EOF) {
        d->is_done = true;
        return d->is_gzip ? check_gzip(in) : OK;
    }
    if (r != ARCHIVE_OK) return damaged(in);
    if ((uint64_t)offset != d->at)
        return fail(ERR_UNSUPPORTED, "%s is stored as a sparse file; unpack it by hand", in->name);
    if (d->is_gzip) d->crc = crc32_add(d->crc, bytes, n);
    d->left = bytes;
    d->n_left = n;
    d->at += n;
    d->total += n;
    return check_ratio(in);
}

static status decoder_block(input *in, size_t max, const void **bytes, size_t *n) {
    struct decoder *d = in->decoder;
    *n = 0;
    if (d->n_left == 0 && !d->is_done) TRY(fetch_block(in));
    *n = d->n_left < max ? d->n_left : max;
    *bytes = d->left;
    if (*n > 0) d->left += *n; /* NULL + 0 is undefined */
    d->n_left -= *n;
    return OK;
}

/* A member's path for messages and for comparison; bytes that are not text become '?'. */
static void copy_path(struct decoder *d, struct archive_entry *entry) {
    const char *path = archive_entry_pathname_utf8(entry);
    if (path == NULL) path = archive_entry_pathname(entry);
    snprintf(d->path, sizeof d->path, "%s", path != NULL ? path : "?");
    for (char *c = d->path; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
}

/* Whether the member is a plain file with content of its own: no link, folder or device. */
static bool is_file(struct archive_entry *entry) {
    return archive_entry_filetype(entry) == AE_IFREG && archive_entry_hardlink(entry) == NULL &&
           archive_entry_symlink(entry) == NULL;
}

/* Zip knows methods whose header decides how much memory is taken (lzma: up to 4 GiB), and others
 * that nobody uses for data.  libarchive names the method: "ZIP 2.0 (deflation)". */
static status check_method(const input *in) {
    static const char *const fine[] = {"uncompressed", "deflation", "bzip", "zstd"};
    const struct decoder *d = in->decoder;
    const char *name = archive_format_name(d->archive);
    const char *method = name != NULL ? strchr(name, '(') : NULL;
    if ((archive_format(d->archive) & ARCHIVE_FORMAT_BASE_MASK) != ARCHIVE_FORMAT_ZIP ||
        method == NULL)
        return OK;
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++)
        if (strncmp(method + 1, fine[i], strlen(fine[i])) == 0 &&
            method[1 + strlen(fine[i])] == ')')
            return OK;
    return fail(ERR_UNSUPPORTED,
                "%s: %s is compressed by a method %s that is not read here; unpack "
                "it by hand",
                in->name, d->path, method);
}

/* After the last member: reads the compressed stream to its end, where its checksum is. */
static status finish_walk(input *in) {
    const void *bytes;
    size_t n = in->below->decoder != NULL;
    while (n > 0)
        TRY(input_block(in->below, &bytes, &n));
    return OK;
}

static status input_walk_next(input *in, const char **out_path) {
    struct decoder *d = in->decoder;
    struct archive_entry *entry;
    *out_path = NULL;
    d->is_done = true;
    d->n_left = 0;
    do
        TRY(next_header(in, &entry));
    while (entry != NULL && !is_file(entry));
    if (entry == NULL) return finish_walk(in);
    d->is_done = false;
    d->at = 0;
    copy_path(d, entry);
    if (archive_entry_is_encrypted(entry))
        return fail(ERR_UNSUPPORTED, "%s: %s is encrypted; unpack it by hand", in->name, d->path);
    TRY(check_method(in));
    *out_path = d->path;
    return OK;
}

#else

/* Without libarchive input_sniff has refused already: nothing gets here. */
static status missing(const input *below) {
    return fail(ERR_UNSUPPORTED, "%s: this build is without libarchive", below->name);
}

static status input_decode(input **out, input *below, bool is_walk) {
    *out = NULL;
    return missing(below);
}

static status input_walk_next(input *in, const char **out_path) {
    *out_path = NULL;
    return missing(in);
}

static status decoder_block(input *in, size_t max, const void **bytes, size_t *n) {
    *bytes = NULL;
    *n = 0;
    return missing(in);
}

static void decoder_destroy(struct decoder *d) {
    mem_free(d);
}

#endif

/* Bundles: the place a data set is kept, as a folder, an archive or a single file. */

/* Far more than any data set has; an archive may claim any number. */
enum { MAX_MEMBERS = 100000, BUNDLE_PATH_BYTES = 4096, SHOWN_NAMES = 8 };

typedef enum { BUNDLE_FOLDER, BUNDLE_FILE, BUNDLE_ARCHIVE } bundle_kind;

struct bundle {
    const char *path;
    bundle_kind kind;
    bool is_listed;
    arena texts;        /* path, names and paths */
    const char **names; /* (n_names) */
    const char **paths; /* (n_names): of the files of a folder, else NULL */
    size_t n_names, names_capacity, paths_capacity;
};

static const char *base_name(const char *path) {
    const char *base = path;
    for (; *path != '\0'; path++)
        if ((*path == '/' || *path == '\\') && path[1] != '\0') base = path + 1;
    return base;
}

/* `found` is `wanted`, or `wanted` followed by the suffix of a compression format. */
static bool is_match(const char *found, const char *wanted) {
    static const char *const endings[] = {"", ".gz", ".xz", ".bz2", ".zst"};
    size_t n = strlen(wanted);
    if (strncmp(found, wanted, n) != 0) return false;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (strcmp(found + n, endings[i]) == 0) return true;
    return false;
}

static status open_bundle(bundle *b, const char *path) {
    struct stat info;
    arena_init(&b->texts, 4096);
    TRY(arena_copy_text(&b->texts, path, strlen(path), &b->path));
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        b->kind = BUNDLE_FOLDER;
        return OK;
    }
    input *in;
    content_kind kind;
    TRY(input_open_stack(&in, path, &kind));
    input_close(in);
    b->kind = kind == CONTENT_ARCHIVE ? BUNDLE_ARCHIVE : BUNDLE_FILE;
    return OK;
}

status bundle_open(bundle **out, const char *path) {
    TRY(MEM_NEW(out, 1));
    status st = open_bundle(*out, path);
    if (st == OK) return OK;
    bundle_close(*out);
    *out = NULL;
    return st;
}

void bundle_close(bundle *b) {
    if (b == NULL) return;
    arena_fini(&b->texts);
    MEM_FREE(b->names, b->paths, b);
}

static status add_name(bundle *b, const char *name, const char *path) {
    if (b->n_names == MAX_MEMBERS)
        return fail(ERR_FORMAT, "%s holds more than %d files, too many for a data set", b->path,
                    MAX_MEMBERS);
    TRY(MEM_RESERVE(&b->names, &b->names_capacity, b->n_names + 1));
    TRY(MEM_RESERVE(&b->paths, &b->paths_capacity, b->n_names + 1));
    TRY(arena_copy_text(&b->texts, name, strlen(name), &b->names[b->n_names]));
    b->paths[b->n_names] = NULL;
    if (path != NULL) TRY(arena_copy_text(&b->texts, path, strlen(path), &b->paths[b->n_names]));
    b->n_names++;
    return OK;
}

/* The names in a folder, in the bundle's memory, sorted, so that two machines list them in the same
 * order. */
static status read_folder(bundle *b, const char *folder, const char ***names, size_t *n) {
    size_t capacity = 0;
    status st = OK;
    DIR *dir = opendir(folder);
    if (dir == NULL) return fail_errno("the folder %s cannot be read", folder);
    for (struct dirent *e; st == OK && (e = readdir(dir)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        st = MEM_RESERVE(names, &capacity, *n + 1);
        if (st == OK)
            st = arena_copy_text(&b->texts, e->d_name, strlen(e->d_name), &(*names)[(*n)++]);
    }
    closedir(dir);
    if (st == OK) sort_texts(*names, *n);
    return st;
}

static status list_folder(bundle *b, const char *folder, int depth);

static status list_entry(bundle *b, const char *folder, const char *name, mode_t mode) {
    char path[BUNDLE_PATH_BYTES];
    struct stat info;
    TRY(path_join(path, sizeof path, folder, name));
    if (stat(path, &info) != 0 || (info.st_mode & S_IFMT) != mode) return OK;
    if (mode == S_IFREG) return add_name(b, name, path);
    /* A sub-folder that we may not read (lost+found, say) is not part of the data set. */
    return access(path, R_OK | X_OK) == 0 ? list_folder(b, path, 0) : OK;
}

/* The files of the folder itself, then with depth 1 those of its sub-folders. */
static status list_folder(bundle *b, const char *folder, int depth) {
    const char **names = NULL;
    size_t n = 0;
    status st = read_folder(b, folder, &names, &n);
    for (int pass = 0; pass <= depth; pass++)
        for (size_t i = 0; i < n && st == OK; i++)
            st = list_entry(b, folder, names[i], pass == 0 ? S_IFREG : S_IFDIR);
    mem_free(names);
    return st;
}

/* Starts a walk through the archive from its beginning. */
static status begin_walk(const bundle *b, input **out) {
    content_kind kind;
    input *below;
    *out = NULL;
    TRY(input_open_stack(&below, b->path, &kind));
    status st = kind == CONTENT_ARCHIVE
                    ? input_decode(out, below, true)
                    : fail(ERR_IO, "%s was replaced while it was read", b->path);
    if (st != OK) input_close(below);
    return st;
}

static status list_archive(bundle *b) {
    input *walk;
    const char *path;
    TRY(begin_walk(b, &walk));
    status st = input_walk_next(walk, &path);
    while (st == OK && path != NULL) {
        st = add_name(b, base_name(path), NULL);
        if (st == OK) st = input_walk_next(walk, &path);
    }
    input_close(walk);
    return st;
}

status bundle_list(bundle *b, const char *const **out_names, size_t *out_n) {
    if (!b->is_listed) {
        b->n_names = 0;
        TRY(b->kind == BUNDLE_FOLDER    ? list_folder(b, b->path, 1)
            : b->kind == BUNDLE_ARCHIVE ? list_archive(b)
                                        : add_name(b, base_name(b->path), NULL));
        b->is_listed = true;
    }
    *out_names = b->names;
    *out_n = b->n_names;
    return OK;
}

/* Names the walk after its current member, and decompresses the member if it is compressed itself.
 */
static status enter_member(input **walk, const bundle *b, const char *path) {
    char name[BUNDLE_PATH_BYTES];
    content_kind kind;
    const char *what;
    snprintf(name, sizeof name, "%s:%s", b->path, path);
    size_t n = strlen(name) + 1;
    TRY(MEM_RESIZE(&(*walk)->name, n));
    memcpy((*walk)->name, name, n);
    TRY(input_sniff(*walk, &kind, &what));
    if (kind == CONTENT_ARCHIVE)
        return fail(ERR_UNSUPPORTED, "%s is an archive within an archive; unpack it by hand", name);
    if (kind != CONTENT_COMPRESSED) return OK;
    input *decoded;
    TRY(input_decode(&decoded, *walk, false));
    *walk = decoded;
    return OK;
}

static status find_in_archive(bundle *b, const char *wanted, input **out) {
    const char *path;
    input *walk;
    TRY(begin_walk(b, &walk));
    status st;
    do
        st = input_walk_next(walk, &path);
    while (st == OK && path != NULL && !is_match(base_name(path), wanted));
    if (st == OK && path != NULL) st = enter_member(&walk, b, path);
    if (st != OK || path == NULL)
        input_close(walk);
    else
        *out = walk;
    return st;
}

static status find_in_folder(bundle *b, const char *wanted, input **out) {
    const char *const *names;
    size_t n;
    TRY(bundle_list(b, &names, &n));
    for (size_t i = 0; i < n; i++)
        if (is_match(names[i], wanted)) return input_open(out, b->paths[i]);
    return OK;
}

/* Says what was looked for and what is there. */
static status not_found(bundle *b, const char *wanted) {
    const char *const *names;
    size_t n;
    TRY(bundle_list(b, &names, &n));
    char list[512] = "nothing at all";
    size_t used = 0;
    for (size_t i = 0; i < n && i < SHOWN_NAMES && used < sizeof list - 1; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%.60s", i > 0 ? ", " : "",
                                 names[i]);
    return fail(ERR_IO,
                "%s holds no file '%s' (nor one ending in .gz, .xz, .bz2 or .zst); there "
                "is %s%s",
                b->path, wanted, list, n > SHOWN_NAMES ? ", ..." : "");
}

status bundle_has(bundle *b, const char *name, bool *out) {
    const char *const *names;
    size_t n;
    *out = false;
    TRY(bundle_list(b, &names, &n));
    for (size_t i = 0; i < n && !*out; i++)
        *out = is_match(names[i], name);
    return OK;
}

status bundle_open_member(bundle *b, const char *name, bool is_required, input **out) {
    *out = NULL;
    TRY(b->kind == BUNDLE_FOLDER    ? find_in_folder(b, name, out)
        : b->kind == BUNDLE_ARCHIVE ? find_in_archive(b, name, out)
                                    : input_open(out, b->path));
    return *out == NULL && is_required ? not_found(b, name) : OK;
}
