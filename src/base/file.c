#include <dirent.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mman.h>

#include "base/base.h"

#include "base/file.h"

enum { PATH_BYTES = 4096, N_LETTERS = 6, N_TRIES = 16 };

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
    char target[PATH_BYTES];
    char temporary[PATH_BYTES + 64]; /* "" while the file has no name */
};

static void release(out_file *f, bool keep) {
    if (f->fd >= 0) close(f->fd);
    if (!keep && f->temporary[0] != '\0') unlink(f->temporary);
    MEM_FREE(f->buffer, f);
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
static void temporary_prefix(const out_file *f, char prefix[PATH_BYTES + 8]) {
    const char *slash = strrchr(f->target, '/');
    const char *name = slash != NULL ? slash + 1 : f->target;
    snprintf(prefix, PATH_BYTES + 8, "%.*s.%.200s.", (int)(name - f->target), f->target, name);
}

/* An unused name in the target's folder; `attempt` is the number of the try. */
static void name_temporary(out_file *f, int attempt) {
    char prefix[PATH_BYTES + 8];
    temporary_prefix(f, prefix);
    snprintf(f->temporary, sizeof f->temporary, "%s%ld-%d.tmp", prefix, (long)getpid(), attempt);
}

enum { NAME_ATTEMPTS = 100 };

/* A nameless file (O_TMPFILE) where the file system supports it: a process killed at any moment
 * leaves nothing.  Elsewhere it gets a temporary name. */
static status open_temporary(out_file *f) {
    char folder[PATH_BYTES], prefix[PATH_BYTES + 8];
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
    if (st == OK)
        *out = f;
    else
        release(f, false);
    return st;
}

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

status out_file_write_at(out_file *f, uint64_t offset, const void *bytes, size_t n) {
    return write_at(f->fd, f->target, offset, bytes, n);
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
    return ftruncate(f->fd, (off_t)bytes) == 0 ? OK : write_failed(f->target);
}

status out_file_set_private(out_file *f) {
    return fchmod(f->fd, 0600) == 0 ? OK : write_failed(f->target);
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
    char folder[PATH_BYTES];
    folder_of(path, folder, sizeof folder);
    folder_sync(folder);
}

status out_file_commit(out_file *f) {
    status st = flush(f);
    if (st == OK && file_sync(f->fd) != 0) st = write_failed(f->target);
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

status file_write(const char *path, const void *bytes, size_t n) {
    out_file *f;
    TRY(out_file_create(&f, path));
    return out_file_end(f, out_file_write(f, bytes, n));
}

status file_copy(const char *from, const char *to) {
    file_map map;
    TRY(file_map_open(&map, from));
    status st = file_write(to, map.bytes, map.n_bytes);
    file_map_close(&map);
    return st;
}

status file_save(const char *folder, const char *name, buf *text, status st) {
    char path[PATH_BYTES];
    if (st == OK && folder != NULL) st = path_join(path, sizeof path, folder, name);
    if (st == OK) st = file_write(folder != NULL ? path : name, buf_str(text), text->n_bytes);
    buf_fini(text);
    return st;
}

status folder_create(const char *path, bool *out_created) {
    char part[PATH_BYTES];
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

bool folder_has(const char *folder, const char *name) {
    char path[PATH_MAX];
    return path_join(path, sizeof path, folder, name) == OK && file_exists(path);
}

status path_join(char *text, size_t n, const char *dir, const char *name) {
    size_t length = strlen(dir);
    const char *slash = length > 0 && dir[length - 1] == '/' ? "" : "/";
    if ((size_t)snprintf(text, n, "%s%s%s", dir, slash, name) >= n)
        return fail(ERR_USAGE, "the path %s%s%s is too long", dir, slash, name);
    return OK;
}

bool temporary_lock(int fd) {
    struct stat info;
    (void)flock(fd, LOCK_EX | LOCK_NB); /* without locks nobody removes it either */
    return fstat(fd, &info) == 0 && (info.st_nlink > 0 || !S_ISREG(info.st_mode));
}

/* "4711-0.tmp" after the prefix. */
static bool is_rest(const char *rest) {
    size_t n = strspn(rest, "0123456789-");
    return n > 0 && strcmp(rest + n, ".tmp") == 0;
}

/* The lock is held until the entry is gone, so that only one process removes it.  O_NONBLOCK: a
 * pipe of that name is not waited for. */
static void remove_abandoned(const char *path, int depth) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0) {
        if (S_ISDIR(info.st_mode)) folder_remove(path, depth);
        if (S_ISREG(info.st_mode)) (void)unlink(path);
    }
    close(fd);
}

void temporary_clean(const char *prefix, int depth) {
    char folder[PATH_BYTES], path[PATH_BYTES];
    const char *slash = strrchr(prefix, '/'), *name = slash != NULL ? slash + 1 : prefix;
    if (snprintf(folder, sizeof folder, "%.*s", (int)(name - prefix), prefix) >= PATH_BYTES) return;
    DIR *dir = opendir(folder[0] == '\0' ? "." : folder);
    if (dir == NULL) return;
    size_t n = strlen(name);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        if (strncmp(e->d_name, name, n) == 0 && is_rest(e->d_name + n) &&
            snprintf(path, sizeof path, "%s%s", folder, e->d_name) < PATH_BYTES)
            remove_abandoned(path, depth);
    closedir(dir);
}

static const char lock_name[] = ".hstu-lock";

struct scratch_folder {
    char path[PATH_BYTES];
    int lock;
};

/* A folder without a lock file is being created, or is not ours; one whose lock is held is open.
 * We hold the lock until the folder is removed, so that only one of two processes removes it. */
static void remove_if_left(const char *folder) {
    char path[PATH_BYTES];
    if (path_join(path, sizeof path, folder, lock_name) != OK) return;
    int lock = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0) return;
    if (flock(lock, LOCK_EX | LOCK_NB) == 0) folder_remove(folder, 0);
    close(lock);
}

static void remove_left(const char *parent, const char *prefix) {
    char path[PATH_BYTES];
    size_t n = strlen(prefix);
    DIR *dir = opendir(parent);
    if (dir == NULL) return;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        if (strncmp(e->d_name, prefix, n) == 0 && strlen(e->d_name) == n + N_LETTERS &&
            path_join(path, sizeof path, parent, e->d_name) == OK)
            remove_if_left(path);
    closedir(dir);
}

/* Locks the new folder.  *is_ours is false where another process removed the folder as abandoned,
 * which can happen between creating the lock file and locking it.  Where a file system has no
 * locks, nobody gets one and nothing is removed. */
static status lock_folder(scratch_folder *s, bool *is_ours) {
    char path[PATH_BYTES];
    struct stat about;
    TRY(path_join(path, sizeof path, s->path, lock_name));
    s->lock = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    *is_ours = s->lock >= 0 || errno != ENOENT;
    if (s->lock < 0) return *is_ours ? fail_errno("%s: cannot be created", path) : OK;
    bool is_taken = flock(s->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    *is_ours = !is_taken && fstat(s->lock, &about) == 0 && about.st_nlink > 0;
    if (!*is_ours) {
        close(s->lock);
        s->lock = -1;
    }
    return OK;
}

static status make_folder(scratch_folder *s, const char *parent, const char *prefix) {
    char name[256];
    bool is_ours = false;
    if (snprintf(name, sizeof name, "%sXXXXXX", prefix) >= (int)sizeof name)
        return fail(ERR_USAGE, "%s: too long for a name", prefix);
    for (int i = 0; i < N_TRIES && !is_ours; i++) {
        TRY(path_join(s->path, sizeof s->path, parent, name));
        if (mkdtemp(s->path) == NULL) {
            s->path[0] = '\0';
            return fail_errno("%s: a folder in it cannot be created", parent);
        }
        TRY(lock_folder(s, &is_ours));
    }
    return is_ours ? OK
                   : fail(ERR_IO, "%s: another process removes every folder made in it", parent);
}

status scratch_folder_create(scratch_folder **out, const char *parent, const char *prefix) {
    *out = NULL;
    TRY(folder_create(parent, NULL));
    remove_left(parent, prefix);
    TRY(MEM_NEW(out, 1));
    (*out)->lock = -1;
    status st = make_folder(*out, parent, prefix);
    if (st != OK) {
        failure f;
        failure_save(&f, st);
        scratch_folder_destroy(*out);
        *out = NULL;
        st = failure_restore(&f);
    }
    return st;
}

const char *scratch_folder_path(const scratch_folder *s) {
    return s->path;
}

void scratch_folder_destroy(scratch_folder *s) {
    if (s == NULL) return;
    if (s->path[0] != '\0') folder_remove(s->path, 0);
    if (s->lock >= 0) close(s->lock);
    mem_free(s);
}

/* Sums of up to 256 writers can be added without overflow. */
enum { SUM_BITS = 55, CHECK_BYTES = 1 << 20 };
static const uint64_t SUM_MASK = (1ull << SUM_BITS) - 1;

struct part_file {
    int fd;
    uint64_t sum;
    char path[PATH_BYTES];
};

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
