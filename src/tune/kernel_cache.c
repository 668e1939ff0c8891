#include "tune/kernel_cache.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

enum { MAX_ENTRY = 64 << 20 };

/* After the code; the dynamic loader ignores what follows the sections. */
typedef struct trailer {
    char magic[8];
    uint64_t n_bytes, checksum;
} trailer;

static const char magic[8] = "hstuker1";

/* Another user who can write there could have us run his code. */
static status check_owner(const char *folder) {
    struct stat s;
    if (stat(folder, &s) != 0) return fail_errno("%s", folder);
    if (s.st_uid != geteuid() || (s.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return fail(ERR_IO,
                    "%s: code is loaded from this folder, so it must be yours and not writable by "
                    "others (chmod go-w), "
                    "or choose another with --cache",
                    folder);
    return OK;
}

status kernel_cache_open(kernel_cache *k, const char *folder) {
    if (folder == NULL) {
        TRY(env_cache_folder(k->folder, sizeof k->folder, "kernels"));
    } else if ((size_t)snprintf(k->folder, sizeof k->folder, "%s", folder) >= sizeof k->folder) {
        return fail(ERR_USAGE, "--cache: the path is too long");
    }
    bool is_new = false;
    status st = folder_create(k->folder, &is_new);
    if (st != OK)
        return fail_prefix(st, "the cache of compiled kernels (--cache chooses another folder)");
    if (is_new) (void)chmod(k->folder, 0700);
    return check_owner(k->folder);
}

kernel_key kernel_key_of(const buf *source, const char *compiler) {
    kernel_key key;
    for (uint64_t i = 0; i < 2; i++) {
        uint64_t h = hash64(compiler, strlen(compiler), i);
        h = hash64(buf_str(source), source->n_bytes, h);
        snprintf(key.name + 16 * i, 17, "%016llx", (unsigned long long)h);
    }
    return key;
}

static status path_of(const kernel_cache *k, const kernel_key *key, const char *suffix,
                      char path[4096]) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", key->name, suffix);
    return path_join(path, 4096, k->folder, name);
}

/* The checksum covers the name, so that an entry under another's name is damaged too. */
static uint64_t checksum_of(const kernel_key *key, const void *bytes, size_t n) {
    return hash64(bytes, n, hash64(key->name, sizeof key->name - 1, 0));
}

static bool is_whole(const kernel_key *key, const char *bytes, size_t n) {
    trailer t;
    if (n <= sizeof t) return false;
    memcpy(&t, bytes + n - sizeof t, sizeof t);
    return memcmp(t.magic, magic, sizeof magic) == 0 && t.n_bytes == n - sizeof t &&
           t.checksum == checksum_of(key, bytes, n - sizeof t);
}

status kernel_cache_find(const kernel_cache *k, const kernel_key *key, const char *suffix, buf *out,
                         bool *is_found, char *path) {
    char own_path[4096], *at = path != NULL ? path : own_path, *bytes;
    size_t n;
    *is_found = false;
    TRY(path_of(k, key, suffix, at));
    if (!file_exists(at)) return OK;
    status st = file_read_all(at, MAX_ENTRY, &bytes, &n);
    if (st == ERR_NOMEM) return st;
    if (st != OK) return OK; /* unreadable: compiled again, and replaced */
    if (is_whole(key, bytes, n)) {
        st = buf_append(out, bytes, n - sizeof(trailer));
        *is_found = st == OK;
    }
    mem_free(bytes);
    return st;
}

status kernel_cache_store(const kernel_cache *k, const kernel_key *key, const char *suffix,
                          const void *bytes, size_t n) {
    char path[4096];
    out_file *f = NULL;
    trailer t = {.n_bytes = n, .checksum = checksum_of(key, bytes, n)};
    memcpy(t.magic, magic, sizeof magic);
    TRY(path_of(k, key, suffix, path));
    status st = out_file_create(&f, path);
    if (st == OK) st = out_file_write(f, bytes, n);
    if (st == OK) st = out_file_write(f, &t, sizeof t);
    return out_file_end(f, st);
}
