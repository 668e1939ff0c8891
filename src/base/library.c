#include "base/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"

/* The newest match of FOLDER/MIDDLE/FILE that can be loaded.  Folders that are not whole paths
 * would mean whatever lies below the current one. */
static void *open_matching(const char *folder, const char *middle, const char *file) {
    char pattern[PATH_MAX];
    glob_t found = {0};
    void *library = NULL;
    if (folder == NULL || folder[0] != '/') return NULL;
    if (snprintf(pattern, sizeof pattern, "%s/%s/%s", folder, middle, file) >= (int)sizeof pattern)
        return NULL;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = found.gl_pathc; i-- > 0 && library == NULL;)
            library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    return library;
}

/* A wheel's library is at PACKAGES/hstu/libhstu.so, and other packages beside its folder. */
static void *open_beside(const char *file) {
    static const char here;
    Dl_info own;
    char folder[PATH_MAX];
    if (dladdr(&here, &own) == 0 || own.dli_fname == NULL) return NULL;
    if (snprintf(folder, sizeof folder, "%s", own.dli_fname) >= (int)sizeof folder) return NULL;
    char *end = strrchr(folder, '/');
    if (end == NULL) return NULL;
    *end = '\0';
    return open_matching(folder, "..", file);
}

void *library_find(const char *name, const char *in_packages) {
    static const char any[] = "lib/python3*/*-packages";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) library = open_beside(in_packages);
    if (library == NULL) library = open_matching(env_python_folder(), any, in_packages);
    if (library == NULL) library = open_matching("/usr/local", any, in_packages);
    if (library == NULL) library = open_matching("/usr", any, in_packages);
    if (library == NULL) library = open_matching("/opt/*", any, in_packages);
    if (library == NULL)
        library = open_matching(env_home(), ".local/lib/python3*/*-packages", in_packages);
    return library;
}
