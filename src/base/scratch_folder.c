#include "base/scratch_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { PATH_BYTES = 4096, N_LETTERS = 6, N_TRIES = 16 };

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
