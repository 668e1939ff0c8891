#include "base/part_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

struct part_file {
    int fd;
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
    if (st == OK && fsync(fd) != 0) st = write_failed(path);
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

status part_file_write(part_file *f, uint64_t offset, const void *bytes, size_t n) {
    return write_at(f->fd, f->path, offset, bytes, n);
}

status part_file_close(part_file *f, status st) {
    if (f == NULL) return st;
    if (st == OK && fsync(f->fd) != 0) st = write_failed(f->path);
    if (close(f->fd) != 0 && st == OK) st = write_failed(f->path);
    mem_free(f);
    return st;
}
