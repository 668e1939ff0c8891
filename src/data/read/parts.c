#include "data/read/parts.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/sort.h"

enum { MAX_PARTS = 1000000, MAX_DEPTH = 16, PART_PATH_BYTES = 4096 };

bool has_ending(const char *name, const char *const *endings) {
    static const char *const compressed[] = {"", ".gz", ".xz", ".bz2", ".zst"};
    size_t n = strlen(name);
    for (size_t c = 0; c < sizeof compressed / sizeof compressed[0]; c++) {
        size_t m = strlen(compressed[c]);
        if (n < m || strcasecmp(name + n - m, compressed[c]) != 0) continue;
        for (const char *const *e = endings; *e != NULL; e++) {
            size_t k = strlen(*e);
            if (n - m > k && strncasecmp(name + n - m - k, *e, k) == 0) return true;
        }
    }
    return false;
}

static status add_part(part_list *p, const char *path, const char *member) {
    part one = {NULL, NULL};
    if (p->n == MAX_PARTS) return fail(ERR_USAGE, "--input: more than %d files", MAX_PARTS);
    TRY(MEM_RESERVE(&p->part, &p->capacity, p->n + 1));
    TRY(arena_copy_text(&p->texts, path, strlen(path), &one.path));
    if (member != NULL) TRY(arena_copy_text(&p->texts, member, strlen(member), &one.member));
    p->part[p->n++] = one;
    return OK;
}

static status add_folder(part_list *p, const char *folder, int depth);

static status add_entry(part_list *p, const char *folder, const char *name, int depth) {
    char path[PART_PATH_BYTES];
    struct stat info;
    if (name[0] == '.' || name[0] == '_') return OK;
    TRY(path_join(path, sizeof path, folder, name));
    if (stat(path, &info) != 0) return fail_errno("%s cannot be examined", path);
    if (S_ISDIR(info.st_mode)) return add_folder(p, path, depth + 1);
    return S_ISREG(info.st_mode) ? add_part(p, path, NULL) : OK;
}

/* The files of a folder, in any order: the caller sorts them. */
static status add_folder(part_list *p, const char *folder, int depth) {
    if (depth == MAX_DEPTH)
        return fail(ERR_USAGE, "--input: folders below %s are nested more than %d deep", folder,
                    MAX_DEPTH);
    DIR *dir = opendir(folder);
    if (dir == NULL) return fail_errno("the folder %s cannot be read", folder);
    status st = OK;
    for (struct dirent *entry; st == OK && (entry = readdir(dir)) != NULL;)
        st = add_entry(p, folder, entry->d_name, depth);
    closedir(dir);
    return st;
}

static int compare_paths(const void *left, const void *right) {
    return strcmp(((const part *)left)->path, ((const part *)right)->path);
}

/* Keeps the files from `first` on that have an ending of the format, if any has. */
static void keep_endings(part_list *p, size_t first, const char *const *endings) {
    size_t n = first;
    for (size_t i = first; i < p->n; i++)
        if (has_ending(p->part[i].path, endings)) p->part[n++] = p->part[i];
    if (n > first) p->n = n;
}

static status find_in_folder(part_list *p, const char *folder, const char *const *endings) {
    size_t first = p->n;
    TRY(add_folder(p, folder, 0));
    if (p->n == first) return fail(ERR_USAGE, "--input %s: the folder holds no file", folder);
    qsort(p->part + first, p->n - first, sizeof *p->part, compare_paths);
    keep_endings(p, first, endings);
    return OK;
}

/* Files of an archive are opened by their base name, which must then be one of a kind. */
static status refuse_same_names(const char *path, const char *const *names, size_t n) {
    const char **sorted;
    status st = OK;
    TRY(MEM_NEW(&sorted, n));
    memcpy(sorted, names, n * sizeof *sorted);
    sort_texts(sorted, n);
    for (size_t i = 1; st == OK && i < n; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            st = fail(ERR_FORMAT, "%s holds two files called %s; unpack it and give the folder",
                      path, sorted[i]);
    mem_free(sorted);
    return st;
}

/* A file, or the files of an archive. */
static status find_in_file(part_list *p, const char *path, const char *const *endings) {
    bundle *b;
    const char *const *names;
    size_t n, n_fit = 0, n_found = 0;
    TRY(bundle_open(&b, path));
    status st = bundle_list(b, &names, &n);
    for (size_t i = 0; st == OK && i < n; i++)
        n_fit += has_ending(names[i], endings);
    if (st == OK && n > 1) st = refuse_same_names(path, names, n);
    for (size_t i = 0; st == OK && n > 1 && i < n; i++) {
        if (n_fit > 0 && !has_ending(names[i], endings)) continue;
        st = add_part(p, path, names[i]);
        n_found++;
    }
    if (st == OK && n == 0) st = fail(ERR_USAGE, "--input %s: the archive holds no file", path);
    if (st == OK && n_found == 0) st = add_part(p, path, NULL);
    bundle_close(b);
    return st;
}

static status find_parts(part_list *p, const char *path, const char *const *endings) {
    struct stat info;
    if (strcmp(path, "-") == 0) return add_part(p, path, NULL);
    if (stat(path, &info) != 0) return fail_errno("%s cannot be opened", path);
    if (S_ISDIR(info.st_mode)) return find_in_folder(p, path, endings);
    /* A pipe can be opened once only, and an archive not at all through one. */
    return S_ISREG(info.st_mode) ? find_in_file(p, path, endings) : add_part(p, path, NULL);
}

typedef struct file_id {
    dev_t device;
    ino_t inode;
    size_t part;
} file_id;

static int compare_ids(const void *left, const void *right) {
    const file_id *a = left, *b = right;
    if (a->device != b->device) return a->device < b->device ? -1 : 1;
    if (a->inode != b->inode) return a->inode < b->inode ? -1 : 1;
    return (a->part > b->part) - (a->part < b->part);
}

/* The same file under two names would count all its events twice. */
static status refuse_twice(const part_list *p) {
    file_id *ids;
    size_t n = 0;
    status st = OK;
    TRY(MEM_NEW(&ids, p->n));
    for (size_t i = 0; i < p->n; i++) {
        struct stat info;
        if (p->part[i].member != NULL || stat(p->part[i].path, &info) != 0 ||
            !S_ISREG(info.st_mode))
            continue;
        ids[n++] = (file_id){info.st_dev, info.st_ino, i};
    }
    if (n > 1) qsort(ids, n, sizeof *ids, compare_ids);
    for (size_t i = 1; st == OK && i < n; i++) {
        const part *a = &p->part[ids[i - 1].part], *b = &p->part[ids[i].part];
        if (ids[i].device == ids[i - 1].device && ids[i].inode == ids[i - 1].inode)
            st = fail(ERR_USAGE, "--input: %s is the same file as %s; its events would count twice",
                      b->path, a->path);
    }
    mem_free(ids);
    return st;
}

status parts_find(part_list *out, const char *const *inputs, size_t n, const char *const *endings) {
    status st = OK;
    *out = (part_list){.n = 0};
    arena_init(&out->texts, 4096);
    for (size_t i = 0; st == OK && i < n; i++)
        st = find_parts(out, inputs[i], endings);
    if (st == OK) st = refuse_twice(out);
    if (st != OK) parts_fini(out);
    return st;
}

void parts_fini(part_list *p) {
    mem_free(p->part);
    arena_fini(&p->texts);
    *p = (part_list){.n = 0};
}

status part_open(const part *p, input **out) {
    bundle *b;
    *out = NULL;
    if (p->member == NULL) return input_open(out, p->path);
    TRY(bundle_open(&b, p->path));
    status st = bundle_open_member(b, p->member, true, out);
    bundle_close(b);
    return st;
}
