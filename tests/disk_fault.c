#include "disk_fault.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

int sync_interrupts, sync_files, sync_folders;

static atomic_int fault, n_good;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the path */
static char wanted[4200];

void disk_fault_after(int n, disk_fault f, const char *part) {
    disk_fault_set(f, part);
    atomic_store(&n_good, n);
}

void disk_fault_set(disk_fault f, const char *part) {
    atomic_store(&n_good, 0);
    pthread_mutex_lock(&lock);
    snprintf(wanted, sizeof wanted, "%s", part);
    pthread_mutex_unlock(&lock);
    atomic_store(&fault, f);
}

static int fails(int fd, disk_fault f) {
    char link[64], path[4200];
    if (atomic_load(&fault) != (int)f) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = '\0';
    pthread_mutex_lock(&lock);
    int is_wanted = strstr(path, wanted) != NULL;
    pthread_mutex_unlock(&lock);
    return is_wanted && (f != DISK_FULL || atomic_fetch_sub(&n_good, 1) <= 0);
}

#define REPLACED __attribute__((visibility("default")))
#define NEXT(name)                                                                                 \
    static __typeof__(name) *next;                                                                 \
    if (next == NULL) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

REPLACED ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at) {
    NEXT(pwrite);
    if (!fails(fd, DISK_FULL)) return next(fd, bytes, n, at);
    errno = ENOSPC;
    return -1;
}

REPLACED ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at) {
    NEXT(pwrite64);
    if (!fails(fd, DISK_FULL)) return next(fd, bytes, n, at);
    errno = ENOSPC;
    return -1;
}

REPLACED int fdatasync(int fd) {
    NEXT(fdatasync);
    if (!fails(fd, DISK_SYNC)) return next(fd);
    errno = EIO;
    return -1;
}

REPLACED int fsync(int fd) {
    struct stat s;
    NEXT(fsync);
    if (fails(fd, DISK_SYNC)) {
        errno = EIO;
        return -1;
    }
    if (sync_interrupts > 0) {
        sync_interrupts--;
        errno = EINTR;
        return -1;
    }
    *(fstat(fd, &s) == 0 && S_ISDIR(s.st_mode) ? &sync_folders : &sync_files) += 1;
    return next(fd);
}
