/* A folder in memory for targets whose parser reads a folder: made once a process, removed at its
 * end. */
#ifndef HSTU_TESTS_FUZZ_FOLDER_H
#define HSTU_TESTS_FUZZ_FOLDER_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char fuzz_folder[128];

static int fuzz_remove_entry(const char *path, const struct stat *about, int kind,
                             struct FTW *where) {
    (void)about, (void)kind, (void)where;
    return remove(path);
}

static void fuzz_folder_remove(void) {
    (void)nftw(fuzz_folder, fuzz_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void fuzz_folder_make(const char *stem) {
    snprintf(fuzz_folder, sizeof fuzz_folder, "/dev/shm/hstu-fuzz-%s-%ld", stem, (long)getpid());
    fuzz_folder_remove(); /* that of a killed process with the same number */
    if (mkdir(fuzz_folder, 0700) != 0) abort();
    atexit(fuzz_folder_remove);
}

/* name: of a file in the folder; folders between must exist. */
static void fuzz_file_write(const char *name, const void *bytes, size_t n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder, name);
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
}

#endif
