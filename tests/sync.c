#include "sync.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int sync_interrupts, sync_files, sync_folders;

/* In place of the C library's. */
__attribute__((visibility("default"))) int fsync(int fd) {
    struct stat s;
    if (sync_interrupts > 0) {
        sync_interrupts--;
        errno = EINTR;
        return -1;
    }
    *(fstat(fd, &s) == 0 && S_ISDIR(s.st_mode) ? &sync_folders : &sync_files) += 1;
    return (int)syscall(SYS_fsync, fd);
}
