#include "tune/kernel_cache.h"

enum { MAX_ENTRY = 64 << 20 };

/* After the code; the dynamic loader ignores what follows the sections. */
typedef struct trailer {
    char magic[8];
    uint64_t n_bytes, checksum;
} trailer;

static const char magic[8] = "hstuker1";

/* Another user who can write there could have us run his code. */
static bool is_ours(const struct stat *s) {
    return s->st_uid == geteuid() && (s->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* A link is followed now, and not again when code is loaded. */
static status check_folder(kernel_cache *k) {
    struct stat s;
    char path[PATH_MAX];
    bool is_there = lstat(k->folder, &s) == 0;
    if (is_there && S_ISLNK(s.st_mode)) {
        is_there = realpath(k->folder, path) != NULL && lstat(path, &s) == 0;
        if (is_there) snprintf(k->folder, sizeof k->folder, "%s", path);
    }
    if (!is_there) return fail_errno("%s", k->folder);
    if (is_ours(&s)) return OK;
    return fail(ERR_IO,
                "%s: code is loaded from this folder, so it must be yours and not writable by "
                "others (chmod go-w), or choose another with --cache",
                k->folder);
}

/* Whether there is an entry that only this user can have written: one that was put there while the
 * folder was open to others, or a link, counts as missing and is replaced. */
static bool has_entry(const char *path) {
    struct stat s;
    return lstat(path, &s) == 0 && S_ISREG(s.st_mode) && is_ours(&s);
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
    return check_folder(k);
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
    if (!has_entry(at)) return OK;
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
    if (st == OK) st = out_file_set_private(f);
    if (st == OK) st = out_file_write(f, bytes, n);
    if (st == OK) st = out_file_write(f, &t, sizeof t);
    return out_file_end(f, st);
}
