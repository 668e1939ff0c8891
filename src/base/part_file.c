#include "base/part_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

/* Sums of up to 256 writers can be added without overflow. */
enum { SUM_BITS = 55, CHECK_BYTES = 1 << 20 };
static const uint64_t SUM_MASK = (1ull << SUM_BITS) - 1;

struct part_file {
    int fd;
    uint64_t sum;
    char path[4096];
};

static status write_failed(const char *path) {
    if (errno == ENOSPC || errno == EDQUOT)
        return fail_errno("%s: cannot be written; free some space or choose another place", path);
    return fail_errno("%s: cannot be written", path);
}

static status write_at(int fd, const char *path, uint64_t offset, const void *bytes, size_t n) {
    const char *p = bytes;
    while (n > 0) {
        ssize_t done = pwrite(fd, p, n, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return write_failed(path);
        p += done, offset += (uint64_t)done, n -= (size_t)done;
    }
    return OK;
}

status part_file_make(const char *path, const buf *header, uint64_t bytes) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return write_failed(path);
    status st = ftruncate(fd, (off_t)bytes) == 0 ? OK : write_failed(path);
    if (st == OK) st = write_at(fd, path, 0, header->data, header->n_bytes);
    if (st == OK && file_sync(fd) != 0) st = write_failed(path);
    if (close(fd) != 0 && st == OK) st = write_failed(path);
    return st;
}

/* Not for reading: a network file system then writes only the bytes that were written here, also
 * where another machine writes to the same page. */
status part_file_open(part_file **out, const char *path) {
    part_file *f;
    *out = NULL;
    if (strlen(path) >= sizeof f->path)
        return fail(ERR_USAGE, "a path of %zu bytes is too long", strlen(path));
    TRY(MEM_NEW(&f, 1));
    snprintf(f->path, sizeof f->path, "%s", path);
    f->fd = open(path, O_WRONLY | O_CLOEXEC);
    if (f->fd < 0) {
        status st = fail_errno("%s: cannot be written here; all ranks must see the folder of the "
                               "run",
                               path);
        mem_free(f);
        return st;
    }
    *out = f;
    return OK;
}

/* Words that change places, or are another's, change it. */
static uint64_t sum_words(uint64_t offset, const void *bytes, size_t n) {
    const char *p = bytes;
    uint64_t sum = 0;
    for (size_t i = 0; i + 4 <= n; i += 4) {
        uint32_t word;
        memcpy(&word, p + i, sizeof word);
        uint64_t x = ((offset + i) << 30 ^ word) * 0x9e3779b97f4a7c15u;
        sum += (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    }
    return sum & SUM_MASK;
}

status part_file_write(part_file *f, uint64_t offset, const void *bytes, size_t n) {
    TRY(write_at(f->fd, f->path, offset, bytes, n));
    f->sum = (f->sum + sum_words(offset, bytes, n)) & SUM_MASK;
    return OK;
}

uint64_t part_file_sum(const part_file *f) {
    return f->sum;
}

static status sum_from(int fd, const char *path, uint64_t at, char *piece, uint64_t *sum) {
    for (size_t n = 0;;) {
        ssize_t got = pread(fd, piece + n, CHECK_BYTES - n, (off_t)(at + n));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno("%s: cannot be read", path);
        n += (size_t)got;
        if (got > 0 && n < CHECK_BYTES) continue;
        *sum = (*sum + sum_words(at, piece, n)) & SUM_MASK;
        at += n;
        if (got == 0) return OK;
        n = 0;
    }
}

status part_file_check(const char *path, uint64_t begin, uint64_t sum) {
    uint64_t found = 0;
    char *piece;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail_errno("%s: cannot be read", path);
    status st = mem_alloc_raw((void **)&piece, CHECK_BYTES, 1);
    if (st == OK) st = sum_from(fd, path, begin, piece, &found);
    if (st == OK && found != (sum & SUM_MASK))
        st =
            fail(ERR_IO,
                 "%s: what is read here is not what the ranks wrote; the folder of the run must be "
                 "on a file system that shows each machine what the others have written",
                 path);
    mem_free(piece);
    close(fd);
    return st;
}

status part_file_close(part_file *f, status st) {
    if (f == NULL) return st;
    if (st == OK && file_sync(f->fd) != 0) st = write_failed(f->path);
    if (close(f->fd) != 0 && st == OK) st = write_failed(f->path);
    mem_free(f);
    return st;
}
