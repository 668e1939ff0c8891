#include "base/temporary.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum { PATH_BYTES = 4096 };

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
