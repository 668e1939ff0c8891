#include "format/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/input_stack.h"

enum { BLOCK_BYTES = 1 << 18 };

status input_create(input **out, const char *name) {
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
        mem_free(in->block);
        mem_free(in->name);
        mem_free(in);
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

status input_block(input *in, const void **bytes, size_t *n) {
    *n = take_head(in, bytes, INPUT_HEAD_BYTES);
    if (*n > 0) return OK;
    if (in->decoder != NULL) return decoder_block(in, SIZE_MAX, bytes, n);
    if (in->block == NULL) TRY(MEM_NEW_RAW(&in->block, BLOCK_BYTES));
    *bytes = in->block;
    return read_file(in, in->block, BLOCK_BYTES, n);
}

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

void input_progress(const input *in, uint64_t *done_bytes, uint64_t *total_bytes) {
    while (in->below != NULL)
        in = in->below;
    *done_bytes = in->file_at;
    *total_bytes = in->file_bytes;
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

status input_sniff(input *in, content_kind *out_kind, const char **out_what) {
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
    TRY(input_decompress(&decoded, *top));
    *top = decoded;
    return input_sniff(decoded, out_kind, &what);
}

status input_open_stack(input **out, const char *path, content_kind *out_kind) {
    input *top;
    *out = NULL;
    TRY(input_create(&top, strcmp(path, "-") == 0 ? "stdin" : path));
    status st = open_file(top, path);
    if (st == OK) st = unwrap(&top, out_kind);
    if (st != OK) {
        input_close(top);
        return st;
    }
    *out = top;
    return OK;
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
    const input *file = *out;
    while (file->below != NULL)
        file = file->below;
    bool is_file = file->is_seekable;
    input_close(*out);
    *out = NULL;
    if (!is_file)
        return fail(ERR_UNSUPPORTED, "%s: an archive cannot come through a pipe; give the file",
                    path);
    return open_only_member(out, path);
}
