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
#include "base/log.h"
#include "embed/snapshot.h"
#include "format/json.h"
#include "train/files/checkpoint.h"

enum { MANIFEST_MAX_BYTES = 1 << 16, NAME_BYTES = 256 };

/* A checkpoint has folders of tables, and these have one folder a rank. */
enum { MAX_DEPTH = 2 };

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

static status write_manifest(const char *folder, uint64_t step, const dynamic_tables *tables,
                             buf *text) {
    json_writer w;
    char path[CHECKPOINT_PATH_BYTES], hex[17];
    json_begin(&w, text, 2);
    json_object_open(&w);
    json_key_string(&w, "format", CHECKPOINT_FORMAT);
    json_key_int(&w, "step", (int64_t)step);
    json_key(&w, "files");
    json_array_open(&w);
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        uint64_t bytes = 0, hash = 0;
        TRY(path_join(path, sizeof path, folder, checkpoint_file_names[i]));
        TRY(checkpoint_hash_file(path, &bytes, &hash));
        snprintf(hex, sizeof hex, "%016" PRIx64, hash);
        json_object_open(&w);
        json_key_string(&w, "name", checkpoint_file_names[i]);
        json_key_int(&w, "bytes", (int64_t)bytes);
        json_key_string(&w, "xxh64", hex);
        json_object_close(&w);
    }
    json_array_close(&w);
    TRY(list_tables(&w, folder, tables));
    return json_finish_sealed(&w);
}

status checkpoint_seal(const char *folder, uint64_t step, const dynamic_tables *tables) {
    char path[CHECKPOINT_PATH_BYTES];
    buf text;
    out_file *f = NULL;
    buf_init(&text);
    status st = write_manifest(folder, step, tables, &text);
    if (st == OK) st = path_join(path, sizeof path, folder, "manifest.json");
    if (st == OK) st = out_file_create(&f, path);
    if (st == OK) st = out_file_end(f, out_file_write(f, buf_str(&text), text.n_bytes));
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
    snprintf(hidden, sizeof hidden, ".%s.tmp", name); /* the run is locked: nobody else makes it */
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

static int64_t step_of(const char *folder) {
    const char *slash = strrchr(folder, '/');
    return checkpoint_step_of(slash != NULL ? slash + 1 : folder);
}

status checkpoint_point_best(const char *run, int64_t step) {
    char path[CHECKPOINT_PATH_BYTES], name[NAME_BYTES];
    snprintf(name, sizeof name, "checkpoints/step-%08" PRId64, step);
    TRY(path_join(path, sizeof path, run, name));
    if (step >= 0 && folder_exists(path)) return point_link(run, "best", path);
    TRY(path_join(path, sizeof path, run, "best"));
    (void)unlink(path);
    return OK;
}

/* The step RUN/name points to; -1 if there is no such link. */
static int64_t linked_step(const char *run, const char *name) {
    char path[CHECKPOINT_PATH_BYTES], target[NAME_BYTES];
    if (path_join(path, sizeof path, run, name) != OK) return -1;
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n <= 0) return -1;
    target[n] = '\0';
    return step_of(target);
}

/* Renames the folder; one that is there already leaves first, under a name that checkpoint_prune
 * removes. */
static status put_in_place(const char *temporary, const char *folder) {
    char old[CHECKPOINT_PATH_BYTES];
    const char *name = strrchr(folder, '/') + 1;
    struct stat found;
    if (lstat(folder, &found) == 0) {
        if ((size_t)snprintf(old, sizeof old, "%.*s.%s.%ld.old.tmp", (int)(name - folder), folder,
                             name, (long)getpid()) >= sizeof old)
            return fail(ERR_USAGE, "%s: the path is too long", folder);
        checkpoint_remove(old);
        if (rename(folder, old) != 0) return fail_errno("%s: cannot be replaced", folder);
    }
    if (rename(temporary, folder) != 0) return fail_errno("%s: cannot be put in place", folder);
    return OK;
}

status checkpoint_publish(const char *run, const char *temporary, const char *folder,
                          bool is_best) {
    char parent[CHECKPOINT_PATH_BYTES];
    TRY(path_join(parent, sizeof parent, run, "checkpoints"));
    folder_sync(temporary);
    /* A step is saved again where it turned out to be the best: the folder that `last` points to
     * stays.  Any other folder of that name is from a run that was killed before its link, or from
     * before the run went back to an older checkpoint: its weights are not those of the log. */
    bool is_last = folder_exists(folder) && linked_step(run, "last") == step_of(folder) &&
                   step_of(folder) >= 0;
    if (is_last && checkpoint_verify(folder) == OK)
        checkpoint_remove(temporary);
    else
        TRY(put_in_place(temporary, folder));
    folder_sync(parent);
    TRY(point_link(run, "last", folder));
    return is_best ? point_link(run, "best", folder) : OK;
}

void checkpoint_remove(const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    struct stat found;
    /* The manifest is removed first: if the removal is killed, the remaining files are not a
     * checkpoint.  Of a link nothing but the link is removed. */
    if (lstat(folder, &found) == 0 && S_ISDIR(found.st_mode) &&
        path_join(path, sizeof path, folder, "manifest.json") == OK)
        (void)unlink(path);
    folder_remove(folder, MAX_DEPTH);
}

/* A folder, or a link to one: what a checkpoint's name may stand for. */
static bool is_checkpoint(const char *parent, const char *name) {
    char path[CHECKPOINT_PATH_BYTES];
    return checkpoint_step_of(name) >= 0 && path_join(path, sizeof path, parent, name) == OK &&
           folder_exists(path);
}

status checkpoint_check_run(const char *run) {
    char parent[CHECKPOINT_PATH_BYTES];
    status st = OK;
    TRY(path_join(parent, sizeof parent, run, "checkpoints"));
    DIR *dir = opendir(parent);
    if (dir == NULL && errno != ENOENT) return fail_errno("%s: cannot be read", parent);
    if (dir == NULL) return OK;
    for (struct dirent *e = readdir(dir); e != NULL && st == OK; e = readdir(dir))
        if (strncmp(e->d_name, "step-", 5) == 0 && !is_checkpoint(parent, e->d_name))
            st = fail(ERR_FORMAT,
                      "%s/%.200s: no checkpoint's folder, which is named like step-00000005; move "
                      "it away",
                      parent, e->d_name);
    closedir(dir);
    return st;
}

/* How many checkpoints there are, and the oldest that is neither `last` nor `best`; -1: none. */
static int count_steps(const char *parent, int64_t last, int64_t best, int64_t *oldest) {
    int n = 0;
    DIR *dir = opendir(parent);
    *oldest = -1;
    if (dir == NULL) return 0;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        int64_t step = checkpoint_step_of(e->d_name);
        if (!is_checkpoint(parent, e->d_name)) continue;
        n++;
        if (step == last || step == best) continue;
        if (*oldest < 0 || step < *oldest) *oldest = step;
    }
    closedir(dir);
    return n;
}

static void remove_remains(const char *run, const char *parent) {
    char path[CHECKPOINT_PATH_BYTES];
    if (path_join(path, sizeof path, run, ".last.tmp") == OK) (void)unlink(path);
    if (path_join(path, sizeof path, run, ".best.tmp") == OK) (void)unlink(path);
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
    remove_remains(run, parent);
    /* The best checkpoint is kept in addition to the newest ones, unless it is one of them. */
    while (count_steps(parent, last, best, &oldest) > keep + (best >= 0 && best != last) &&
           oldest >= 0) {
        snprintf(name, sizeof name, "step-%08" PRId64, oldest);
        if (path_join(path, sizeof path, parent, name) != OK) return;
        checkpoint_remove(path);
        if (folder_exists(path)) { /* no endless loop over it */
            log_warn("%s: this old checkpoint cannot be removed", path);
            return;
        }
    }
}
