#include "train/files/table_files.h"

#include <dirent.h>
#include <sys/syscall.h>

#include "format/json.h"
#include "ops/comm.h"
#include "train/files/checkpoint.h"
#include "train/report/run_log.h"

enum { MAX_TABLES = 256, NAME_BYTES = 256, MERGE_BATCH = 1 << 14, MANIFEST_MAX_BYTES = 1 << 16 };

/* Buckets of 64 slots do not overflow at this load: a bucket with 21 keys on average would have to
 * get 65. */
enum { SLOTS_PER_ROW = 3 };

/* Names in a folder, ascending. */
typedef struct name_list {
    char name[MAX_TABLES][NAME_BYTES];
    int n;
} name_list;

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

static bool has_name(const name_list *l, const char *name) {
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->name[i], name) == 0) return true;
    return false;
}

static status add_name(name_list *l, const char *name) {
    if (has_name(l, name)) return OK;
    if (l->n == MAX_TABLES || strlen(name) >= NAME_BYTES)
        return fail(ERR_FORMAT, "more than %d tables, or one with a name of %zu bytes", MAX_TABLES,
                    strlen(name));
    snprintf(l->name[l->n++], NAME_BYTES, "%s", name);
    return OK;
}

/* Entries of a folder that begin with `prefix`, added to the list. */
static status list_folder(name_list *l, const char *folder, const char *prefix) {
    DIR *dir = opendir(folder);
    if (dir == NULL) return fail_errno("%s: cannot be read", folder);
    status st = OK;
    for (struct dirent *e = readdir(dir); st == OK && e != NULL; e = readdir(dir))
        if (e->d_name[0] != '.' && strncmp(e->d_name, prefix, strlen(prefix)) == 0)
            st = add_name(l, e->d_name);
    closedir(dir);
    qsort(l->name, (size_t)l->n, sizeof l->name[0], by_name);
    return st;
}

/* A new folder, which has a temporary name and a lock until it is complete. */
typedef struct new_folder {
    const char *out;
    char temporary[CHECKPOINT_PATH_BYTES];
    int lock;
} new_folder;

static status begin_folder(const char *out, new_folder *f) {
    char prefix[CHECKPOINT_PATH_BYTES];
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/')
        n--;
    *f = (new_folder){.out = out, .lock = -1};
    if (file_exists(out) || folder_exists(out))
        return fail(ERR_USAGE, "%s: is there already; choose another --out", out);
    const char *name = out + n;
    while (name > out && name[-1] != '/')
        name--;
    if (snprintf(prefix, sizeof prefix, "%.*s.%.*s.", (int)(name - out), out, (int)(out + n - name),
                 name) >= CHECKPOINT_PATH_BYTES ||
        snprintf(f->temporary, sizeof f->temporary, "%s%ld.tmp", prefix, (long)getpid()) >=
            CHECKPOINT_PATH_BYTES)
        return fail(ERR_USAGE, "--out: a path of %zu bytes", n);
    temporary_clean(prefix, 2); /* folders of tables, and of their ranks */
    TRY(folder_create(f->temporary, NULL));
    f->lock = open(f->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->lock >= 0) (void)temporary_lock(f->lock);
    return OK;
}

/* Renames a complete folder where st is OK, else removes it. */
static status put_in_place(const char *temporary, const char *folder, status st) {
    if (st == OK) {
        folder_sync(temporary);
        if (rename(temporary, folder) != 0) st = fail_errno("%s: cannot be put in place", folder);
    }
    if (st != OK) checkpoint_remove(temporary);
    return st;
}

static status end_folder(status st, const new_folder *f) {
    st = put_in_place(f->temporary, f->out, st);
    if (f->lock >= 0) close(f->lock);
    return st;
}

/* Copies the tables of `from` that are not in `but` (or NULL); *n: how many. */
static status copy_tables(const char *from, const name_list *but, const char *to, int *n) {
    char source[CHECKPOINT_PATH_BYTES], target[CHECKPOINT_PATH_BYTES];
    name_list *l;
    TRY(MEM_NEW(&l, 1));
    status st = list_folder(l, from, "table-");
    *n = 0;
    for (int i = 0; st == OK && i < l->n; i++) {
        if (but != NULL && has_name(but, l->name[i])) continue;
        st = path_join(source, sizeof source, from, l->name[i]);
        if (st == OK) st = path_join(target, sizeof target, to, l->name[i]);
        if (st == OK) st = checkpoint_copy_folder(source, target, 1);
        ++*n;
    }
    mem_free(l);
    return st;
}

status table_files_export(const char *folder, const char *out, int *n) {
    new_folder f;
    *n = 0;
    TRY(checkpoint_verify(folder));
    TRY(begin_folder(out, &f));
    status st = copy_tables(folder, NULL, f.temporary, n);
    if (st == OK && *n == 0)
        st = fail(ERR_FORMAT,
                  "%s: the model has no dynamic tables; its static ones are in --what weights",
                  folder);
    return end_folder(st, &f);
}

/* One import: the sources of the tables, and the required shape of each table. */
typedef struct import_job {
    backend *be;
    const char *const *paths;
    int n_paths;
    const table_dump *dump;
    const char *like; /* checkpoint whose tables define dimension and optimizer; or NULL */
    int64_t n_rows;
} import_job;

/* The last part of a path; that of the folder itself for "." and "..", which would lead out of the
 * new set of tables. */
static const char *base_name(const char *path, char name[NAME_BYTES]) {
    char whole[PATH_MAX];
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    snprintf(name, NAME_BYTES, "%.*s", (int)(end - begin), path + begin);
    bool is_dots = name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
    if (is_dots && realpath(path, whole) != NULL)
        snprintf(name, NAME_BYTES, "%.255s", strrchr(whole, '/') + 1);
    return name;
}

/* The folder name for a dump's table: that of the checkpoint's table with the same name. */
static status name_dump(const import_job *job, name_list *out) {
    char name[CHECKPOINT_TABLE_BYTES];
    if (job->like == NULL) {
        checkpoint_table_folder(name, 0, job->dump->name);
        return add_name(out, name);
    }
    name_list *l;
    TRY(MEM_NEW(&l, 1));
    status st = list_folder(l, job->like, "table-");
    for (int i = 0; st == OK && i < l->n; i++) {
        checkpoint_table_folder(name, atoi(l->name[i] + strlen("table-")), job->dump->name);
        if (strcmp(name, l->name[i]) == 0) st = add_name(out, name);
    }
    if (st == OK && out->n != 1)
        st = fail(ERR_USAGE, "%s: has no table '%.100s'", job->like, job->dump->name);
    mem_free(l);
    return st;
}

/* The names of all tables of the paths. */
static status name_tables(const import_job *job, name_list *out) {
    char name[NAME_BYTES];
    if (job->dump->name != NULL) return name_dump(job, out);
    for (int i = 0; i < job->n_paths; i++) {
        int before = out->n;
        if (!folder_exists(job->paths[i])) return fail(ERR_IO, "%s: no such folder", job->paths[i]);
        if (embed_is_snapshot(job->paths[i])) {
            TRY(add_name(out, base_name(job->paths[i], name)));
            continue;
        }
        TRY(list_folder(out, job->paths[i], "table-"));
        if (out->n == before && i == 0)
            return fail(ERR_FORMAT,
                        "%s: neither a snapshot of a table nor a folder of some (table-*); for a "
                        "dump of dynamicemb say --table NAME",
                        job->paths[i]);
    }
    return OK;
}

/* Finds the snapshot of a table in a path; *is_there: it has one. */
static status find_snapshot(const char *path, const char *name, char out[CHECKPOINT_PATH_BYTES],
                            bool *is_there) {
    char own[NAME_BYTES];
    *is_there = false;
    if (embed_is_snapshot(path)) {
        *is_there = strcmp(base_name(path, own), name) == 0;
        snprintf(out, CHECKPOINT_PATH_BYTES, "%s", path);
        return OK;
    }
    TRY(path_join(out, CHECKPOINT_PATH_BYTES, path, name));
    *is_there = embed_is_snapshot(out);
    return OK;
}

static status create_like(const import_job *job, const snapshot_info *info, int64_t n_rows,
                          embed_table **out) {
    embed_config c = {.dim = info->dim,
                      .capacity = {SLOTS_PER_ROW * n_rows + TABLE_SLOTS, 0},
                      .max_batch = MERGE_BATCH,
                      .first = FIRST_UNIFORM};
    TRY(embed_opt_parse(info->optimizer, &c.opt));
    TRY(embed_policy_parse(info->policy, &c.policy));
    return embed_create(out, job->be, &c);
}

/* The total number of rows in the snapshots of a table, and the shape in the first one. */
static status look_at_chain(const import_job *job, const char *name, snapshot_info *first,
                            int64_t *n_rows) {
    char path[CHECKPOINT_PATH_BYTES];
    bool is_there, has_first = false;
    *n_rows = 0;
    for (int i = 0; i < job->n_paths; i++) {
        snapshot_info info;
        TRY(find_snapshot(job->paths[i], name, path, &is_there));
        if (!is_there) continue;
        TRY(embed_snapshot_info(path, &info));
        *n_rows += info.n_rows;
        if (!has_first && info.since > 0)
            return fail(ERR_USAGE,
                        "%s: changes since step %lld; name the full snapshot and those in between "
                        "before it",
                        path, (long long)info.since);
        if (!has_first) *first = info;
        has_first = true;
    }
    if (has_first) return OK;
    return fail(ERR_FORMAT, "%s: no snapshot of a dynamic table (no rank-0-of-1 folder)", path);
}

static status read_chain(const import_job *job, const char *name, embed_table *t) {
    char path[CHECKPOINT_PATH_BYTES];
    bool is_there;
    for (int i = 0; i < job->n_paths; i++) {
        int64_t n_rejected = 0;
        TRY(find_snapshot(job->paths[i], name, path, &is_there));
        if (is_there) TRY(embed_snapshot_read(t, path, &n_rejected));
        if (n_rejected > 0)
            return fail(ERR_FORMAT, "%s: %lld rows found no room", path, (long long)n_rejected);
    }
    return OK;
}

/* A checkpoint's own table defines the shape of the new one. */
static status check_like(const import_job *job, const char *name, snapshot_info *info) {
    char path[CHECKPOINT_PATH_BYTES];
    snapshot_info own;
    if (job->like == NULL) return OK;
    TRY(path_join(path, sizeof path, job->like, name));
    if (!embed_is_snapshot(path))
        return fail(ERR_USAGE,
                    "%s: has no table '%s'; rename the folder of the snapshot to one "
                    "of its table-*",
                    job->like, name);
    TRY(embed_snapshot_info(path, &own));
    if (own.dim != info->dim || strcmp(own.optimizer, info->optimizer) != 0)
        return fail(ERR_CONFIG, "%s: rows of %d values for %s; %s has %d for %s", name, info->dim,
                    info->optimizer, path, own.dim, own.optimizer);
    snprintf(info->policy, sizeof info->policy, "%s", own.policy);
    info->step = own.step;
    return OK;
}

/* The table's shape from a dump's files and the user's options. */
static status look_at_dump(const import_job *job, snapshot_info *info, int64_t *n_rows) {
    opt_kind opt;
    TRY(embed_dump_shape(job->paths[0], job->dump->name, &info->dim, &opt, n_rows));
    snprintf(info->optimizer, sizeof info->optimizer, "%s", embed_opt_name(opt));
    snprintf(info->policy, sizeof info->policy, "%s", job->dump->policy);
    return OK;
}

static status read_dump(const import_job *job, embed_table *t) {
    bool has_ages = embed_config_of(t)->policy == POLICY_LRU;
    int64_t n_imported, n_rows;
    TRY(embed_import_dump(t, job->paths[0], job->dump->name, has_ages, &n_imported));
    TRY(embed_size(t, &n_rows));
    if (n_rows != n_imported)
        log_warn("%s: %" PRId64 " keys are there more than once; the last rows count",
                 job->paths[0], n_imported - n_rows);
    return OK;
}

static status make_table(import_job *job, const char *name, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    snapshot_info info = {0};
    embed_table *t = NULL;
    int64_t n_rows;
    bool is_dump = job->dump->name != NULL;
    TRY(is_dump ? look_at_dump(job, &info, &n_rows) : look_at_chain(job, name, &info, &n_rows));
    TRY(check_like(job, name, &info));
    TRY(path_join(path, sizeof path, folder, name));
    TRY(create_like(job, &info, n_rows, &t));
    /* A dump does not say when its rows were written: now, or those of a run with steps_to_live
     * would expire at once. */
    status st = is_dump && job->like != NULL ? embed_set_step(t, info.step) : OK;
    if (st == OK) st = is_dump ? read_dump(job, t) : read_chain(job, name, t);
    if (st == OK && embed_counts_of(t)->n_evicted > 0)
        st = fail(ERR_FORMAT, "%s: %lld rows found no room", name,
                  (long long)embed_counts_of(t)->n_evicted);
    if (st == OK) st = embed_size(t, &n_rows);
    if (st == OK) st = embed_snapshot_write(t, path, 0);
    job->n_rows += n_rows;
    embed_destroy(t);
    return st;
}

static status import_table(import_job *job, const char *name, const char *folder) {
    status st = make_table(job, name, folder);
    return st != OK && strstr(status_reason(), name) == NULL ? fail_prefix(st, "%s", name) : st;
}

/* The manifest of a checkpoint has a checksum of fixed width after the name of each table: the new
 * one overwrites it, and the seal of the manifest follows.  Two tables may have the same
 * checksum. */
static status reseal(const char *folder, const name_list *l, const char *old) {
    char path[CHECKPOINT_PATH_BYTES], quoted[NAME_BYTES + 2], before[17], after[17], *text;
    uint64_t seal;
    size_t n;
    TRY(path_join(path, sizeof path, old, "manifest.json"));
    TRY(file_read_all(path, MANIFEST_MAX_BYTES, &text, &n));
    status st = OK;
    for (int i = 0; st == OK && i < l->n; i++) {
        st = path_join(path, sizeof path, old, l->name[i]);
        if (st == OK) st = embed_snapshot_seal(path, &seal);
        snprintf(before, sizeof before, "%016" PRIx64, seal);
        if (st == OK) st = path_join(path, sizeof path, folder, l->name[i]);
        if (st == OK) st = embed_snapshot_seal(path, &seal);
        snprintf(after, sizeof after, "%016" PRIx64, seal);
        snprintf(quoted, sizeof quoted, "\"%s\"", l->name[i]);
        char *at = strstr(text, quoted);
        if (at != NULL) at = strstr(at, before);
        if (st == OK && at == NULL) st = fail(ERR_FORMAT, "%s: no seal of %s", old, l->name[i]);
        if (st == OK) memcpy(at, after, 16);
    }
    char *digits = json_seal(text, n, before);
    if (st == OK && digits == NULL) st = fail(ERR_FORMAT, "%s: no seal of its manifest", old);
    if (st == OK) memcpy(digits, before, 8);
    if (st == OK) st = path_join(path, sizeof path, folder, "manifest.json");
    if (st == OK) st = file_write(path, text, n);
    mem_free(text);
    return st;
}

/* Both folders are complete; exchanges them atomically where the file system can do that. */
static status exchange(const char *a, const char *b) {
    enum { EXCHANGE = 2 }; /* RENAME_EXCHANGE */
    char aside[CHECKPOINT_PATH_BYTES];
    if (syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, EXCHANGE) == 0) return OK;
    snprintf(aside, sizeof aside, "%.4000s.old", a);
    if (rename(b, aside) != 0) return fail_errno("%s: cannot be put in place", b);
    if (rename(a, b) == 0 && rename(aside, a) == 0) return OK;
    status st = fail_errno("%s: cannot be put in place", b);
    (void)rename(aside, b);
    return st;
}

/* A new checkpoint beside the old one, with its files, its other tables and the new ones. */
static status replace_tables(import_job *job, const name_list *l, const char *old,
                             const char *temporary) {
    int n_others;
    checkpoint_remove(temporary);
    status st = checkpoint_copy_folder(old, temporary, 0);
    if (st == OK) st = copy_tables(old, l, temporary, &n_others);
    for (int i = 0; st == OK && i < l->n; i++)
        st = import_table(job, l->name[i], temporary);
    if (st == OK) st = reseal(temporary, l, old);
    if (st == OK) st = checkpoint_verify(temporary);
    if (st == OK) st = exchange(temporary, old);
    checkpoint_remove(temporary);
    return st;
}

/* Locks the run that the checkpoint RUN/checkpoints/step-N belongs to, and removes what killed
 * processes left in it. */
static status keep_run(const char *folder, int *lock) {
    char run[CHECKPOINT_PATH_BYTES];
    snprintf(run, sizeof run, "%s", folder);
    *strrchr(run, '/') = '\0';
    char *slash = strrchr(run, '/');
    *lock = -1;
    if (slash == NULL || slash == run || strcmp(slash, "/checkpoints") != 0) return OK;
    *slash = '\0';
    TRY(run_lock(run, lock));
    checkpoint_prune(run, 1 << 30);
    return OK;
}

static status import_into_checkpoint(import_job *job, const name_list *l, const char *folder) {
    char temporary[CHECKPOINT_PATH_BYTES + 64], old[CHECKPOINT_PATH_BYTES];
    int lock;
    if (realpath(folder, old) == NULL) return fail_errno("%s: cannot be read", folder);
    char *slash = strrchr(old, '/');
    snprintf(temporary, sizeof temporary, "%.*s/.%.200s.%ld.tmp", (int)(slash - old), old,
             slash + 1, (long)getpid());
    TRY(keep_run(old, &lock));
    status st = replace_tables(job, l, old, temporary);
    run_unlock(lock);
    return st;
}

static status import_into_folder(import_job *job, const name_list *l, const char *out) {
    new_folder f;
    TRY(begin_folder(out, &f));
    status st = OK;
    for (int i = 0; st == OK && i < l->n; i++)
        st = import_table(job, l->name[i], f.temporary);
    return end_folder(st, &f);
}

status table_files_import(backend *be, const char *const *paths, int n_paths,
                          const table_dump *dump, const char *out, bool is_checkpoint,
                          int *n_tables, int64_t *n_rows) {
    import_job job = {.be = be,
                      .paths = paths,
                      .n_paths = n_paths,
                      .dump = dump,
                      .like = is_checkpoint ? out : NULL};
    name_list *l;
    if (is_checkpoint) TRY(checkpoint_verify(out));
    TRY(MEM_NEW(&l, 1));
    status st = name_tables(&job, l);
    if (st == OK)
        st =
            is_checkpoint ? import_into_checkpoint(&job, l, out) : import_into_folder(&job, l, out);
    *n_tables = l->n;
    *n_rows = job.n_rows;
    mem_free(l);
    return st;
}

/* Whether this is a snapshot of a later step, or what a killed process left of one. */
static bool is_later(const char *name, uint64_t step) {
    char *end;
    if (name[0] == '.') return strncmp(name, ".step-", 6) == 0;
    if (strncmp(name, "step-", 5) != 0) return false;
    return strtoull(name + 5, &end, 10) > step && *end == '\0';
}

static void remove_later(const char *parent, uint64_t step) {
    char path[CHECKPOINT_PATH_BYTES];
    DIR *dir = opendir(parent);
    if (dir == NULL) return;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        if (is_later(e->d_name, step) && path_join(path, sizeof path, parent, e->d_name) == OK)
            checkpoint_remove(path);
    closedir(dir);
}

status table_snapshots_check(const dynamic_tables *tables) {
    if (tables->n > 0) return OK;
    return fail(ERR_CONFIG, "--snapshot-every is for dynamic tables, and the config has none; "
                            "checkpoints have the static ones");
}

status table_snapshots_init(table_snapshots *s, dynamic_tables *tables, const char *run,
                            uint64_t step, bool is_first) {
    char parent[CHECKPOINT_PATH_BYTES];
    TRY(path_join(parent, sizeof parent, run, "snapshots"));
    if (is_first) remove_later(parent, step);
    if (is_first) TRY(folder_create(parent, NULL));
    TRY(MEM_NEW(&s->since, (size_t)tables->n));
    s->run = run;
    s->is_first = is_first;
    s->tables = tables;
    for (int i = 0; i < tables->n; i++)
        embed_track_left(tables->item[i].table);
    return OK;
}

void table_snapshots_fini(table_snapshots *s) {
    mem_free(s->since);
    *s = (table_snapshots){0};
}

static status write_tables(table_snapshots *s, const char *folder) {
    char name[CHECKPOINT_TABLE_BYTES], path[CHECKPOINT_PATH_BYTES];
    for (int i = 0; i < s->tables->n; i++) {
        if (!dynamic_is_owner(&s->tables->item[i])) continue;
        checkpoint_table_name(name, s->tables, i);
        TRY(path_join(path, sizeof path, folder, name));
        TRY(embed_snapshot_write(s->tables->item[i].table, path, s->since[i]));
    }
    return OK;
}

/* The next snapshot begins with the current step, not after it: rows that the next batch fetches
 * are stamped with the current step until their update. */
static void remember_steps(table_snapshots *s) {
    for (int i = 0; i < s->tables->n; i++) {
        s->since[i] = embed_step(s->tables->item[i].table);
        embed_forget_left(s->tables->item[i].table, s->since[i]);
    }
}

/* The first rank makes the folder, and names it when all ranks have written their rows. */
static status make_empty(const char *temporary) {
    checkpoint_remove(temporary);
    return folder_create(temporary, NULL);
}

status table_snapshots_write(table_snapshots *s, uint64_t step) {
    char temporary[CHECKPOINT_PATH_BYTES], folder[CHECKPOINT_PATH_BYTES], name[NAME_BYTES];
    comm *c = s->tables->comm;
    if (c == NULL && !s->is_first) return OK;
    snprintf(name, sizeof name, "snapshots/.step-%08" PRIu64 ".tmp", step);
    TRY(path_join(temporary, sizeof temporary, s->run, name));
    snprintf(name, sizeof name, "snapshots/step-%08" PRIu64, step);
    TRY(path_join(folder, sizeof folder, s->run, name));
    TRY(comm_host_agree(c, s->is_first ? make_empty(temporary) : OK));
    status st = write_tables(s, temporary);
    TRY(comm_host_agree(c, s->is_first ? put_in_place(temporary, folder, st) : st));
    remember_steps(s);
    return OK;
}
