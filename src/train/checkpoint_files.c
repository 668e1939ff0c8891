/* The files of a checkpoint: the manifest, the rename that makes it appear, the links, and the
 * removal of old ones. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "embed/snapshot.h"
#include "train/checkpoint.h"

enum { MANIFEST_MAX_BYTES = 1 << 16, NAME_BYTES = 256 };

/* A checkpoint has folders of tables, and these have one folder a rank. */
enum { MAX_DEPTH = 3 };

/* Each table has a checksum over its own files, and the checkpoint records it: a table of another
 * step may be complete, but it is not this checkpoint's. */
static status list_tables(json_writer *w, const char *folder, const dynamic_tables *tables) {
    char name[CHECKPOINT_TABLE_BYTES], hex[17];
    if (tables == NULL || tables->n == 0) return OK;
    json_key(w, "tables");
    json_array_open(w);
    for (int i = 0; i < tables->n; i++) {
        if (!dynamic_is_owner(&tables->item[i])) continue;
        checkpoint_table_name(name, tables, i);
        TRY(checkpoint_table_seal(folder, name, hex));
        json_object_open(w);
        json_key_string(w, "name", name);
        json_key_string(w, "seal", hex);
        json_object_close(w);
    }
    json_array_close(w);
    return OK;
}

static status write_manifest(const char *folder, const char *const *names, int n,
                             const dynamic_tables *tables, buf *text) {
    json_writer w;
    char path[CHECKPOINT_PATH_BYTES], hex[17];
    json_begin(&w, text, 2);
    json_object_open(&w);
    json_key_string(&w, "format", "hstu checkpoint 1");
    json_key(&w, "files");
    json_array_open(&w);
    for (int i = 0; i < n; i++) {
        uint64_t bytes = 0, hash = 0;
        TRY(path_join(path, sizeof path, folder, names[i]));
        TRY(checkpoint_hash_file(path, &bytes, &hash));
        snprintf(hex, sizeof hex, "%016" PRIx64, hash);
        json_object_open(&w);
        json_key_string(&w, "name", names[i]);
        json_key_int(&w, "bytes", (int64_t)bytes);
        json_key_string(&w, "xxh64", hex);
        json_object_close(&w);
    }
    json_array_close(&w);
    TRY(list_tables(&w, folder, tables));
    json_object_close(&w);
    return json_finish(&w);
}

status checkpoint_seal(const char *folder, const char *const *names, int n_names,
                       const dynamic_tables *tables) {
    char path[CHECKPOINT_PATH_BYTES];
    buf text;
    out_file *f = NULL;
    buf_init(&text);
    status st = write_manifest(folder, names, n_names, tables, &text);
    if (st == OK) st = path_join(path, sizeof path, folder, "manifest.json");
    if (st == OK) st = out_file_create(&f, path);
    if (st == OK) {
        st = out_file_write(f, buf_str(&text), text.n_bytes);
        if (st == OK)
            st = out_file_commit(f);
        else
            out_file_abandon(f);
    }
    buf_fini(&text);
    return st;
}

status checkpoint_begin(const char *run, uint64_t step, char *temporary, char *folder) {
    char name[NAME_BYTES];
    TRY(path_join(folder, CHECKPOINT_PATH_BYTES, run, "checkpoints"));
    TRY(folder_create(folder, NULL));
    snprintf(name, sizeof name, "checkpoints/.step-%08" PRIu64 ".%ld.tmp", step, (long)getpid());
    TRY(path_join(temporary, CHECKPOINT_PATH_BYTES, run, name));
    snprintf(name, sizeof name, "checkpoints/step-%08" PRIu64, step);
    TRY(path_join(folder, CHECKPOINT_PATH_BYTES, run, name));
    checkpoint_remove(temporary);
    return folder_create(temporary, NULL);
}

/* Makes RUN/name a link to checkpoints/BASE, atomically. */
static status point_link(const char *run, const char *name, const char *folder) {
    char link_path[CHECKPOINT_PATH_BYTES], temporary[CHECKPOINT_PATH_BYTES],
        target[NAME_BYTES + 32];
    char hidden[NAME_BYTES];
    snprintf(target, sizeof target, "checkpoints/%.200s", strrchr(folder, '/') + 1);
    snprintf(hidden, sizeof hidden, ".%s.%ld.tmp", name, (long)getpid());
    TRY(path_join(link_path, sizeof link_path, run, name));
    TRY(path_join(temporary, sizeof temporary, run, hidden));
    (void)unlink(temporary);
    if (symlink(target, temporary) != 0) return fail_errno("%s: cannot be made", temporary);
    if (rename(temporary, link_path) != 0) {
        status st = fail_errno("%s: cannot be put in place", link_path);
        (void)unlink(temporary);
        return st;
    }
    folder_sync(run);
    return OK;
}

status checkpoint_publish(const char *run, const char *temporary, const char *folder,
                          bool is_best) {
    char parent[CHECKPOINT_PATH_BYTES];
    TRY(path_join(parent, sizeof parent, run, "checkpoints"));
    folder_sync(temporary);
    /* A run that was killed between the rename and the link gets here again with the same step: the
     * existing folder is kept if it is complete, and removed if it is not. */
    if (folder_exists(folder) && checkpoint_verify(folder) != OK) checkpoint_remove(folder);
    if (folder_exists(folder))
        checkpoint_remove(temporary);
    else if (rename(temporary, folder) != 0)
        return fail_errno("%s: cannot be put in place", folder);
    folder_sync(parent);
    TRY(point_link(run, "last", folder));
    return is_best ? point_link(run, "best", folder) : OK;
}

/* An entry that cannot be unlinked may be a folder; links are never followed, since they can be
 * unlinked. */
static void remove_folder(const char *folder, int depth) {
    char path[CHECKPOINT_PATH_BYTES];
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (path_join(path, sizeof path, folder, e->d_name) != OK) continue;
        if (unlink(path) != 0 && depth < MAX_DEPTH) remove_folder(path, depth + 1);
    }
    closedir(dir);
    (void)rmdir(folder);
}

void checkpoint_remove(const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    struct stat found;
    /* A link is removed, never what it points to. */
    if (lstat(folder, &found) == 0 && S_ISLNK(found.st_mode)) {
        (void)unlink(folder);
        return;
    }
    /* The manifest is removed first: if the removal is killed, the remaining files are not a
     * checkpoint. */
    if (path_join(path, sizeof path, folder, "manifest.json") == OK) (void)unlink(path);
    remove_folder(folder, 1);
}

/* The step RUN/name points to; -1 if there is no such link. */
static int64_t linked_step(const char *run, const char *name) {
    char path[CHECKPOINT_PATH_BYTES], target[NAME_BYTES];
    if (path_join(path, sizeof path, run, name) != OK) return -1;
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n <= 0) return -1;
    target[n] = '\0';
    const char *slash = strrchr(target, '/');
    return checkpoint_step_of(slash != NULL ? slash + 1 : target);
}

/* How many checkpoints there are, and the oldest that is neither `last` nor `best`; -1: none. */
static int count_steps(const char *parent, int64_t last, int64_t best, int64_t *oldest) {
    int n = 0;
    DIR *dir = opendir(parent);
    *oldest = -1;
    if (dir == NULL) return 0;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        int64_t step = checkpoint_step_of(e->d_name);
        if (step < 0) continue;
        n++;
        if (step == last || step == best) continue;
        if (*oldest < 0 || step < *oldest) *oldest = step;
    }
    closedir(dir);
    return n;
}

static void remove_remains(const char *parent) {
    char path[CHECKPOINT_PATH_BYTES];
    DIR *dir = opendir(parent);
    if (dir == NULL) return;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        size_t n = strlen(e->d_name);
        if (strncmp(e->d_name, ".step-", 6) != 0 || n < 4 || strcmp(e->d_name + n - 4, ".tmp") != 0)
            continue;
        if (path_join(path, sizeof path, parent, e->d_name) == OK) checkpoint_remove(path);
    }
    closedir(dir);
}

void checkpoint_prune(const char *run, int keep) {
    char parent[CHECKPOINT_PATH_BYTES], path[CHECKPOINT_PATH_BYTES], name[NAME_BYTES];
    int64_t oldest, last = linked_step(run, "last"), best = linked_step(run, "best");
    if (path_join(parent, sizeof parent, run, "checkpoints") != OK) return;
    remove_remains(parent);
    /* The best checkpoint is kept in addition to the newest ones, unless it is one of them. */
    while (count_steps(parent, last, best, &oldest) > keep + (best >= 0 && best != last) &&
           oldest >= 0) {
        snprintf(name, sizeof name, "step-%08" PRId64, oldest);
        if (path_join(path, sizeof path, parent, name) != OK) return;
        checkpoint_remove(path);
        if (folder_exists(path)) return; /* not ours to remove: no endless loop over it */
    }
}
