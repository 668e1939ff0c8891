#include "dist/nccl_lib.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/file.h"

/* ncclSend and ncclRecv came with 2.7; the bits of the rest are older. */
enum { MIN_VERSION = 2700, PATTERN_BYTES = 4096 };

static status find_symbols(nccl_lib *l, void *library) {
    const struct {
        const char *name;
        void **to;
    } all[] = {{"ncclGetVersion", (void **)&l->get_version},
               {"ncclGetUniqueId", (void **)&l->get_id},
               {"ncclCommInitRank", (void **)&l->init_rank},
               {"ncclCommDestroy", (void **)&l->destroy},
               {"ncclCommAbort", (void **)&l->abort},
               {"ncclCommGetAsyncError", (void **)&l->async_error},
               {"ncclGetErrorString", (void **)&l->error_text},
               {"ncclAllReduce", (void **)&l->all_reduce},
               {"ncclBroadcast", (void **)&l->broadcast},
               {"ncclSend", (void **)&l->send},
               {"ncclRecv", (void **)&l->receive},
               {"ncclGroupStart", (void **)&l->group_start},
               {"ncclGroupEnd", (void **)&l->group_end}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *all[i].to = dlsym(library, all[i].name);
        if (*all[i].to == NULL)
            return fail(ERR_UNSUPPORTED, "%s: not NCCL 2.7 or newer: it has no %s", l->path,
                        all[i].name);
    }
    if (l->get_version(&l->version) != NCCL_OK || l->version < MIN_VERSION)
        return fail(ERR_UNSUPPORTED, "%s: NCCL %d; 2.7 or newer is needed", l->path, l->version);
    return OK;
}

static status load(nccl_lib *l, const char *path) {
    snprintf(l->path, sizeof l->path, "%s", path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return fail(ERR_UNSUPPORTED, "%.400s", dlerror());
    return find_symbols(l, library);
}

/* The first file of a pattern that can be loaded. */
static status load_matching(nccl_lib *l, const char *folder, const char *rest) {
    char pattern[PATTERN_BYTES];
    glob_t found = {0};
    status st = fail(ERR_UNSUPPORTED, "%s", "");
    if (folder == NULL || folder[0] != '/') return st;
    if (snprintf(pattern, sizeof pattern, "%s%s", folder, rest) >= (int)sizeof pattern) return st;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = found.gl_pathc; i-- > 0 && st != OK;) /* the newest Python first */
            st = load(l, found.gl_pathv[i]);
    globfree(&found);
    return st;
}

static status load_found(nccl_lib *l) {
    const char *in_packages = "/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2";
    if (load(l, "libnccl.so.2") == OK) return OK;
    if (load_matching(l, env_python_folder(), in_packages) == OK) return OK;
    if (load_matching(l, "/usr/local", in_packages) == OK) return OK;
    if (load_matching(l, "/usr", in_packages) == OK) return OK;
    if (load_matching(l, "/opt", "/*/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2") == OK)
        return OK;
    if (load_matching(l, env_home(),
                      "/.local/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2") == OK)
        return OK;
    return fail(ERR_UNSUPPORTED,
                "NCCL was not found (libnccl.so.2, also in Python's packages): install libnccl2 or "
                "'pip install nvidia-nccl-cu13', or say where it is with --nccl PATH");
}

status nccl_lib_load(nccl_lib *out, const char *path) {
    char file[PATTERN_BYTES];
    *out = (nccl_lib){0};
    if (path == NULL) return load_found(out);
    if (!folder_exists(path)) return load(out, path);
    TRY(path_join(file, sizeof file, path, "libnccl.so.2"));
    return load(out, file);
}
