/* The decoder layer: libarchive on top of another input.
 *
 * libarchive asks the layer below for bytes through callbacks, so that archives and compression can
 * be nested in any way, nothing is ever written to disk, and we know how much of the file has been
 * read.  Of the many formats that libarchive knows we allow tar and zip, gzip, bzip2, xz and zstd
 * only: a format that is not enabled cannot be attacked. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/input_stack.h"

#ifdef HSTU_HAS_ARCHIVE
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>

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

void decoder_destroy(struct decoder *d) {
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

static status add_layer(input **out, input *below, bool is_walk) {
    TRY(input_create(out, below->name));
    (*out)->below = below;
    status st = start(*out, is_walk);
    if (st == OK) return OK;
    (*out)->below = NULL; /* still the caller's */
    input_close(*out);
    *out = NULL;
    return st;
}

status input_walk(input **out, input *below) {
    return add_layer(out, below, true);
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

status input_decompress(input **out, input *below) {
    TRY(add_layer(out, below, false));
    status st = begin_raw(*out);
    if (st == OK) return OK;
    (*out)->below = NULL;
    input_close(*out);
    *out = NULL;
    return st;
}

static uint32_t little32(const unsigned char *u) {
    return u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}

/* Compares with gzip's trailer: the checksum, and the length modulo 2^32.  With several streams the
 * trailer describes the last one only, so these are left to the decompressor's own checks. */
static status check_gzip(const input *in) {
    const struct decoder *d = in->decoder;
    uint32_t crc = little32(d->tail), length = little32(d->tail + 4);
    if (d->is_maybe_several && length != (uint32_t)d->at) return OK;
    if (length == (uint32_t)d->at && crc == d->crc) return OK;
    return fail(ERR_FORMAT,
                "%s is damaged: its checksum is %08x for %u bytes, that of its content %08x for "
                "%llu bytes; fetch it again",
                in->name, crc, length, d->crc, (unsigned long long)d->at);
}

static status check_ratio(const input *in) {
    const input *file = in->below;
    uint64_t total = in->decoder->total;
    while (file->below != NULL)
        file = file->below;
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

status decoder_block(input *in, size_t max, const void **bytes, size_t *n) {
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

status input_walk_next(input *in, const char **out_path) {
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

status input_decompress(input **out, input *below) {
    *out = NULL;
    return missing(below);
}

status input_walk(input **out, input *below) {
    *out = NULL;
    return missing(below);
}

status input_walk_next(input *in, const char **out_path) {
    *out_path = NULL;
    return missing(in);
}

status decoder_block(input *in, size_t max, const void **bytes, size_t *n) {
    (void)max;
    *bytes = NULL;
    *n = 0;
    return missing(in);
}

void decoder_destroy(struct decoder *d) {
    mem_free(d);
}

#endif
