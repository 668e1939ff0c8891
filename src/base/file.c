#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/escape.h"
#include "base/mem.h"
#include "base/temporary.h"

/* Opens a plain file for reading.  O_NONBLOCK: a pipe is refused, not waited for. */
static status open_plain(const char *path, int *out, struct stat *info) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail_errno("%s: cannot be opened", path);
    status st = OK;
    if (fstat(fd, info) != 0)
        st = fail_errno("%s: cannot be examined", path);
    else if (!S_ISREG(info->st_mode))
        st = fail(ERR_IO, "%s: not a plain file", path);
    if (st != OK) close(fd);
    *out = fd;
    return st;
}

static int64_t written_ns(const struct stat *info) {
    return (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
}

/* The files that are mapped, for file_map_at.  The handler of a signal sees a slot complete or not
 * at all.  Where all slots are taken, a file stays nameless. */
enum { MAX_MAPS = 64, MAP_PATH_BYTES = 512 };
static struct {
    atomic_bool is_taken;
    _Atomic uintptr_t begin; /* 0: not complete */
    file_map map;
    char path[MAP_PATH_BYTES];  /* escaped */
    char plain[MAP_PATH_BYTES]; /* as it is; "" where it is too long */
} maps[MAX_MAPS];

static void note_map(const file_map *m, const char *path) {
    for (int i = 0; i < MAX_MAPS; i++) {
        if (atomic_exchange(&maps[i].is_taken, true)) continue;
        maps[i].map = *m;
        bool fits = strlen(path) < MAP_PATH_BYTES;
        memcpy(maps[i].plain, fits ? path : "", fits ? strlen(path) + 1 : 1);
        escape_text(maps[i].path, MAP_PATH_BYTES, path);
        atomic_store(&maps[i].begin, (uintptr_t)m->bytes);
        return;
    }
}

static void forget_map(const file_map *m) {
    for (int i = 0; i < MAX_MAPS; i++)
        if (atomic_load(&maps[i].begin) == (uintptr_t)m->bytes) {
            atomic_store(&maps[i].begin, 0);
            atomic_store(&maps[i].is_taken, false);
            return;
        }
}

const char *file_map_at(const void *address) {
    for (int i = 0; i < MAX_MAPS; i++) {
        uintptr_t begin = atomic_load(&maps[i].begin);
        if (begin != 0 && (uintptr_t)address >= begin &&
            (uintptr_t)address - begin < maps[i].map.n_bytes)
            return maps[i].path;
    }
    return NULL;
}

const char *file_map_written(void) {
    for (int i = 0; i < MAX_MAPS; i++) {
        if (atomic_load(&maps[i].begin) == 0 || maps[i].plain[0] == '\0') continue;
        file_change change = file_map_changed(&maps[i].map, maps[i].plain);
        if (change == FILE_RESIZED || change == FILE_WRITTEN) return maps[i].path;
    }
    return NULL;
}

status file_map_open(file_map *out, const char *path) {
    *out = (file_map){.bytes = (const unsigned char *)""};
    int fd = -1;
    struct stat info;
    status st = OK;
    TRY(open_plain(path, &fd, &info));
    if (info.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED)
            st = fail_errno("%s: %lld bytes cannot be mapped", path, (long long)info.st_size);
        else
            *out = (file_map){.bytes = bytes,
                              .n_bytes = (size_t)info.st_size,
                              .device = info.st_dev,
                              .inode = info.st_ino,
                              .written_ns = written_ns(&info)};
    }
    close(fd);
    if (out->n_bytes > 0) note_map(out, path);
    return st;
}

void file_map_close(file_map *m) {
    if (m->n_bytes > 0) {
        forget_map(m);
        munmap((void *)m->bytes, m->n_bytes);
    }
    *m = (file_map){.bytes = (const unsigned char *)""};
}

file_change file_map_changed(const file_map *m, const char *path) {
    struct stat now;
    if (stat(path, &now) != 0 || now.st_dev != m->device || now.st_ino != m->inode)
        return FILE_MOVED;
    if ((size_t)now.st_size != m->n_bytes) return FILE_RESIZED;
    return written_ns(&now) == m->written_ns ? FILE_SAME : FILE_WRITTEN;
}

static status read_fd(int fd, const char *path, size_t max_bytes, char **out, size_t *out_bytes) {
    size_t capacity = 0, n = 0;
    for (;;) {
        TRY(MEM_RESERVE(out, &capacity, n + 4096 + 1));
        ssize_t got = read(fd, *out + n, capacity - n - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno("%s: cannot be read", path);
        if (got == 0) break;
        n += (size_t)got;
        if (n > max_bytes)
            return fail(ERR_FORMAT, "%s: larger than the %zu bytes such a file may have", path,
                        max_bytes);
    }
    (*out)[n] = '\0';
    *out_bytes = n;
    return OK;
}

status file_read_all(const char *path, size_t max_bytes, char **out, size_t *out_bytes) {
    int fd = -1;
    *out = NULL;
    *out_bytes = 0;
    struct stat info;
    TRY(open_plain(path, &fd, &info));
    status st = read_fd(fd, path, max_bytes, out, out_bytes);
    close(fd);
    if (st != OK) {
        mem_free(*out);
        *out = NULL;
    }
    return st;
}

enum { OUT_BUFFER_BYTES = 1 << 20 };

struct out_file {
    int fd;
    uint64_t end; /* where the buffer goes */
    size_t n_buffered;
    char *buffer; /* (OUT_BUFFER_BYTES) */
    char target[4096];
    char temporary[4096 + 64]; /* "" while the file has no name */
};

static void release(out_file *f, bool keep) {
    if (f->fd >= 0) close(f->fd);
    if (!keep && f->temporary[0] != '\0') unlink(f->temporary);
    mem_free(f->buffer);
    mem_free(f);
}

/* The folder part of a path, "." where there is none. */
static void folder_of(const char *path, char *folder, size_t n) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        snprintf(folder, n, ".");
    else
        snprintf(folder, n, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

/* How the temporary names of a target begin; a long name is cut, so that they are no longer than a
 * file system allows. */
static void temporary_prefix(const out_file *f, char prefix[4096 + 8]) {
    const char *slash = strrchr(f->target, '/');
    const char *name = slash != NULL ? slash + 1 : f->target;
    snprintf(prefix, 4096 + 8, "%.*s.%.200s.", (int)(name - f->target), f->target, name);
}

/* An unused name in the target's folder; `attempt` is the number of the try. */
static void name_temporary(out_file *f, int attempt) {
    char prefix[4096 + 8];
    temporary_prefix(f, prefix);
    snprintf(f->temporary, sizeof f->temporary, "%s%ld-%d.tmp", prefix, (long)getpid(), attempt);
}

enum { NAME_ATTEMPTS = 100 };

/* A nameless file (O_TMPFILE) where the file system supports it: a process killed at any moment
 * leaves nothing.  Elsewhere it gets a temporary name. */
static status open_temporary(out_file *f) {
    char folder[4096], prefix[4096 + 8];
    folder_of(f->target, folder, sizeof folder);
    temporary_prefix(f, prefix);
    temporary_clean(prefix, 0);
    f->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (f->fd >= 0) {
        (void)temporary_lock(f->fd); /* for the moment in which it has a temporary name */
        return OK;
    }
    for (int attempt = 0; attempt < NAME_ATTEMPTS; attempt++) {
        name_temporary(f, attempt);
        f->fd = open(f->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd >= 0 && temporary_lock(f->fd)) return OK;
        if (f->fd < 0 && errno != EEXIST) break;
        if (f->fd >= 0) close(f->fd);
        f->fd = -1;
    }
    status st = fail_errno("%s: cannot be written", f->target);
    f->temporary[0] = '\0';
    return st;
}

/* Gives a nameless file its temporary name, for the rename that follows at once. */
static status name_file(out_file *f) {
    char source[64];
    if (f->temporary[0] != '\0') return OK;
    snprintf(source, sizeof source, "/proc/self/fd/%d", f->fd);
    for (int attempt = 0; attempt < NAME_ATTEMPTS; attempt++) {
        name_temporary(f, attempt);
        if (linkat(AT_FDCWD, source, AT_FDCWD, f->temporary, AT_SYMLINK_FOLLOW) == 0) return OK;
        if (errno != EEXIST) break;
    }
    status st = fail_errno("%s: cannot be put in place", f->target);
    f->temporary[0] = '\0';
    return st;
}

status out_file_create(out_file **out, const char *path) {
    out_file *f;
    *out = NULL;
    if (strlen(path) >= sizeof f->target)
        return fail(ERR_USAGE, "a path of %zu bytes is too long", strlen(path));
    if (folder_exists(path)) return fail(ERR_IO, "%s: is a folder, not a file", path);
    /* The rename at the end would put a file in the place of a device, such as /dev/null. */
    struct stat found;
    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode))
        return fail(ERR_IO, "%s: is a device or a pipe, and would be replaced; name a file", path);
    TRY(MEM_NEW(&f, 1));
    f->fd = -1;
    snprintf(f->target, sizeof f->target, "%s", path);
    status st = MEM_NEW_RAW(&f->buffer, OUT_BUFFER_BYTES);
    if (st == OK) st = open_temporary(f);
    if (st != OK) {
        release(f, false);
        return st;
    }
    *out = f;
    return OK;
}

static status write_failed(const out_file *f) {
    if (errno == ENOSPC || errno == EDQUOT)
        return fail_errno("%s: cannot be written; free some space or choose another place",
                          f->target);
    return fail_errno("%s: cannot be written", f->target);
}

status out_file_write_at(out_file *f, uint64_t offset, const void *bytes, size_t n) {
    const char *p = bytes;
    while (n > 0) {
        ssize_t done = pwrite(f->fd, p, n, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return write_failed(f);
        p += done, offset += (uint64_t)done, n -= (size_t)done;
    }
    return OK;
}

static status flush(out_file *f) {
    TRY(out_file_write_at(f, f->end, f->buffer, f->n_buffered));
    f->end += f->n_buffered;
    f->n_buffered = 0;
    return OK;
}

status out_file_write(out_file *f, const void *bytes, size_t n) {
    const char *p = bytes;
    while (n > 0) {
        size_t room = OUT_BUFFER_BYTES - f->n_buffered, take = n < room ? n : room;
        memcpy(f->buffer + f->n_buffered, p, take);
        f->n_buffered += take;
        p += take, n -= take;
        if (f->n_buffered == OUT_BUFFER_BYTES) TRY(flush(f));
    }
    return OK;
}

status out_file_set_size(out_file *f, uint64_t bytes) {
    return ftruncate(f->fd, (off_t)bytes) == 0 ? OK : write_failed(f);
}

status out_file_set_private(out_file *f) {
    return fchmod(f->fd, 0600) == 0 ? OK : write_failed(f);
}

status out_file_read_at(out_file *f, uint64_t offset, void *bytes, size_t n) {
    char *p = bytes;
    if (f->n_buffered > 0) TRY(flush(f));
    while (n > 0) {
        ssize_t got = pread(f->fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno("%s: cannot be read back", f->target);
        if (got == 0)
            return fail(ERR_IO, "%s: ends before byte %llu", f->target, (unsigned long long)offset);
        p += got, offset += (uint64_t)got, n -= (size_t)got;
    }
    return OK;
}

int file_sync(int fd) {
    int code;
    do
        code = fsync(fd);
    while (code != 0 && errno == EINTR);
    return code;
}

void folder_sync(const char *folder) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)file_sync(fd);
    close(fd);
}

void folder_sync_of(const char *path) {
    char folder[4096];
    folder_of(path, folder, sizeof folder);
    folder_sync(folder);
}

status out_file_commit(out_file *f) {
    status st = flush(f);
    if (st == OK && file_sync(f->fd) != 0) st = write_failed(f);
    if (st == OK) st = name_file(f);
    if (st == OK && rename(f->temporary, f->target) != 0)
        st = fail_errno("%s: cannot be put in place", f->target);
    if (st == OK) folder_sync_of(f->target);
    release(f, st == OK);
    return st;
}

void out_file_abandon(out_file *f) {
    if (f != NULL) release(f, false);
}

status out_file_end(out_file *f, status st) {
    if (st == OK) return out_file_commit(f);
    out_file_abandon(f);
    return st;
}

status folder_create(const char *path, bool *out_created) {
    char part[4096];
    size_t n = strlen(path);
    bool is_made = false;
    if (n == 0 || n >= sizeof part) return fail(ERR_USAGE, "'%s' is not a name for a folder", path);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != '\0') continue;
        char kept = part[i];
        part[i] = '\0';
        is_made = mkdir(part, 0777) == 0;
        if (!is_made && errno != EEXIST) return fail_errno("%s: cannot be created", part);
        if (is_made) folder_sync_of(part);
        part[i] = kept;
    }
    if (!folder_exists(path)) return fail(ERR_IO, "%s: exists but is not a folder", path);
    if (out_created != NULL) *out_created = is_made;
    return OK;
}

/* Goes by descriptors: a folder that is replaced by a link in the meantime is not followed. */
static void remove_entries(int fd, int depth) {
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        close(fd);
        return;
    }
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (unlinkat(fd, e->d_name, 0) == 0 || depth == 0) continue;
        int inside = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (inside < 0) continue;
        remove_entries(inside, depth - 1);
        (void)unlinkat(fd, e->d_name, AT_REMOVEDIR);
    }
    closedir(dir);
}

void folder_remove(const char *path, int depth) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        struct stat found;
        if (lstat(path, &found) == 0 && S_ISLNK(found.st_mode)) (void)unlink(path);
        return;
    }
    remove_entries(fd, depth);
    (void)rmdir(path);
}

bool file_is_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool folder_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

status path_join(char *text, size_t n, const char *dir, const char *name) {
    size_t length = strlen(dir);
    const char *slash = length > 0 && dir[length - 1] == '/' ? "" : "/";
    if ((size_t)snprintf(text, n, "%s%s%s", dir, slash, name) >= n)
        return fail(ERR_USAGE, "the path %s%s%s is too long", dir, slash, name);
    return OK;
}
