/* Bundles: the place a data set is kept, as a folder, an archive or a single file. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/sort.h"
#include "format/input.h"
#include "format/input_stack.h"

/* Far more than any data set has; an archive may claim any number. */
enum { MAX_MEMBERS = 100000, BUNDLE_PATH_BYTES = 4096, SHOWN_NAMES = 8 };

typedef enum { BUNDLE_FOLDER, BUNDLE_FILE, BUNDLE_ARCHIVE } bundle_kind;

struct bundle {
    const char *path;
    bundle_kind kind;
    bool is_listed;
    arena texts;        /* path and names */
    const char **names; /* (n_names) */
    size_t n_names;
    size_t names_capacity;
};

static const char *base_name(const char *path) {
    const char *base = path;
    for (; *path != '\0'; path++)
        if ((*path == '/' || *path == '\\') && path[1] != '\0') base = path + 1;
    return base;
}

/* `found` is `wanted`, or `wanted` followed by the suffix of a compression format. */
static bool is_match(const char *found, const char *wanted) {
    static const char *const endings[] = {"", ".gz", ".xz", ".bz2", ".zst"};
    size_t n = strlen(wanted);
    if (strncmp(found, wanted, n) != 0) return false;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (strcmp(found + n, endings[i]) == 0) return true;
    return false;
}

static status open_bundle(bundle *b, const char *path) {
    struct stat info;
    arena_init(&b->texts, 4096);
    TRY(arena_copy_text(&b->texts, path, strlen(path), &b->path));
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        b->kind = BUNDLE_FOLDER;
        return OK;
    }
    input *in;
    content_kind kind;
    TRY(input_open_stack(&in, path, &kind));
    input_close(in);
    b->kind = kind == CONTENT_ARCHIVE ? BUNDLE_ARCHIVE : BUNDLE_FILE;
    return OK;
}

status bundle_open(bundle **out, const char *path) {
    TRY(MEM_NEW(out, 1));
    status st = open_bundle(*out, path);
    if (st == OK) return OK;
    bundle_close(*out);
    *out = NULL;
    return st;
}

void bundle_close(bundle *b) {
    if (b == NULL) return;
    arena_fini(&b->texts);
    mem_free(b->names);
    mem_free(b);
}

static status add_name(bundle *b, const char *name) {
    if (b->n_names == MAX_MEMBERS)
        return fail(ERR_FORMAT, "%s holds more than %d files, too many for a data set", b->path,
                    MAX_MEMBERS);
    TRY(MEM_RESERVE(&b->names, &b->names_capacity, b->n_names + 1));
    TRY(arena_copy_text(&b->texts, name, strlen(name), &b->names[b->n_names]));
    b->n_names++;
    return OK;
}

/* What to do with each file of a folder; *stop ends the visit. */
typedef struct visitor {
    status (*file)(struct visitor *v, const char *path, const char *name);
    bundle *bundle;
    const char *wanted; /* by find_file */
    input **out;
    bool stop;
} visitor;

/* The names in one folder, sorted, so that two machines visit them in the same order. */
typedef struct folder_names {
    arena texts;
    const char **name; /* (n) */
    size_t n, capacity;
} folder_names;

static status add_entry(folder_names *names, const char *name) {
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return OK;
    TRY(MEM_RESERVE(&names->name, &names->capacity, names->n + 1));
    TRY(arena_copy_text(&names->texts, name, strlen(name), &names->name[names->n]));
    names->n++;
    return OK;
}

static status read_folder(const char *folder, folder_names *names) {
    DIR *dir = opendir(folder);
    if (dir == NULL) return fail_errno("the folder %s cannot be read", folder);
    status st = OK;
    for (struct dirent *entry; st == OK && (entry = readdir(dir)) != NULL;)
        st = add_entry(names, entry->d_name);
    closedir(dir);
    sort_texts(names->name, names->n);
    return st;
}

static bool is_mode(const char *path, mode_t mode) {
    struct stat info;
    return stat(path, &info) == 0 && (info.st_mode & S_IFMT) == mode;
}

static status visit_entry(visitor *v, const char *folder, const char *name, mode_t mode);

/* Visits the entries of one kind. */
static status visit_folder(visitor *v, const char *folder, mode_t mode) {
    folder_names names = {.name = NULL};
    arena_init(&names.texts, 4096);
    status st = read_folder(folder, &names);
    for (size_t i = 0; i < names.n && st == OK && !v->stop; i++)
        st = visit_entry(v, folder, names.name[i], mode);
    mem_free(names.name);
    arena_fini(&names.texts);
    return st;
}

static status visit_entry(visitor *v, const char *folder, const char *name, mode_t mode) {
    char path[BUNDLE_PATH_BYTES];
    TRY(path_join(path, sizeof path, folder, name));
    if (!is_mode(path, mode)) return OK;
    if (mode == S_IFREG) return v->file(v, path, name);
    /* A sub-folder that we may not read (lost+found, say) is not part of the data set. */
    return access(path, R_OK | X_OK) == 0 ? visit_folder(v, path, S_IFREG) : OK;
}

/* The files of the folder itself, then those of its sub-folders. */
static status visit_files(visitor *v) {
    TRY(visit_folder(v, v->bundle->path, S_IFREG));
    return v->stop ? OK : visit_folder(v, v->bundle->path, S_IFDIR);
}

static status list_file(visitor *v, const char *path, const char *name) {
    (void)path;
    return add_name(v->bundle, name);
}

static status find_file(visitor *v, const char *path, const char *name) {
    if (!is_match(name, v->wanted)) return OK;
    v->stop = true;
    return input_open(v->out, path);
}

/* Starts a walk through the archive from its beginning. */
static status begin_walk(const bundle *b, input **out) {
    content_kind kind;
    input *below;
    *out = NULL;
    TRY(input_open_stack(&below, b->path, &kind));
    status st = kind == CONTENT_ARCHIVE
                    ? input_walk(out, below)
                    : fail(ERR_IO, "%s was replaced while it was read", b->path);
    if (st != OK) input_close(below);
    return st;
}

static status list_archive(bundle *b) {
    input *walk;
    const char *path;
    TRY(begin_walk(b, &walk));
    status st = input_walk_next(walk, &path);
    while (st == OK && path != NULL) {
        st = add_name(b, base_name(path));
        if (st == OK) st = input_walk_next(walk, &path);
    }
    input_close(walk);
    return st;
}

status bundle_list(bundle *b, const char *const **out_names, size_t *out_n) {
    visitor v = {.file = list_file, .bundle = b};
    if (!b->is_listed) {
        b->n_names = 0;
        TRY(b->kind == BUNDLE_FOLDER    ? visit_files(&v)
            : b->kind == BUNDLE_ARCHIVE ? list_archive(b)
                                        : add_name(b, base_name(b->path)));
        b->is_listed = true;
    }
    *out_names = b->names;
    *out_n = b->n_names;
    return OK;
}

/* Names the walk after its current member, and decompresses the member if it is compressed itself.
 */
static status enter_member(input **walk, const bundle *b, const char *path) {
    char name[BUNDLE_PATH_BYTES];
    content_kind kind;
    const char *what;
    snprintf(name, sizeof name, "%s:%s", b->path, path);
    size_t n = strlen(name) + 1;
    TRY(MEM_RESIZE(&(*walk)->name, n));
    memcpy((*walk)->name, name, n);
    TRY(input_sniff(*walk, &kind, &what));
    if (kind == CONTENT_ARCHIVE)
        return fail(ERR_UNSUPPORTED, "%s is an archive within an archive; unpack it by hand", name);
    if (kind != CONTENT_COMPRESSED) return OK;
    input *decoded;
    TRY(input_decompress(&decoded, *walk));
    *walk = decoded;
    return OK;
}

static status find_in_archive(bundle *b, const char *wanted, input **out) {
    const char *path;
    input *walk;
    TRY(begin_walk(b, &walk));
    status st;
    do
        st = input_walk_next(walk, &path);
    while (st == OK && path != NULL && !is_match(base_name(path), wanted));
    if (st == OK && path != NULL) st = enter_member(&walk, b, path);
    if (st != OK || path == NULL)
        input_close(walk);
    else
        *out = walk;
    return st;
}

/* Says what was looked for and what is there. */
static status not_found(bundle *b, const char *wanted) {
    const char *const *names;
    size_t n;
    TRY(bundle_list(b, &names, &n));
    char list[512] = "nothing at all";
    size_t used = 0;
    for (size_t i = 0; i < n && i < SHOWN_NAMES && used < sizeof list - 1; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%.60s", i > 0 ? ", " : "",
                                 names[i]);
    return fail(ERR_IO,
                "%s holds no file '%s' (nor one ending in .gz, .xz, .bz2 or .zst); there "
                "is %s%s",
                b->path, wanted, list, n > SHOWN_NAMES ? ", ..." : "");
}

status bundle_has(bundle *b, const char *name, bool *out) {
    const char *const *names;
    size_t n;
    *out = false;
    TRY(bundle_list(b, &names, &n));
    for (size_t i = 0; i < n && !*out; i++)
        *out = is_match(names[i], name);
    return OK;
}

status bundle_open_member(bundle *b, const char *name, bool is_required, input **out) {
    visitor v = {.file = find_file, .bundle = b, .wanted = name, .out = out};
    *out = NULL;
    TRY(b->kind == BUNDLE_FOLDER    ? visit_files(&v)
        : b->kind == BUNDLE_ARCHIVE ? find_in_archive(b, name, out)
                                    : input_open(out, b->path));
    return *out == NULL && is_required ? not_found(b, name) : OK;
}
