#include "model/checkpoint_load.h"

#include <dirent.h>

#include "data/set/batcher.h"
#include "embed/snapshot.h"
#include "model/trained.h"
#include "nn/item_content.h"

enum { CONFIG_MAX_BYTES = 1 << 24 };
enum { TENSOR_NAME_BYTES = PARAM_NAME_BYTES + 16 };

/* Finding and checking the files of a checkpoint: which folder, complete or damaged. */

enum { MANIFEST_MAX_BYTES = 1 << 16, NAME_BYTES = 256 }; /* also of state.json */

const char *const checkpoint_file_names[CHECKPOINT_FILES] = {
    "model.safetensors", "optimizer.safetensors", "state.json", "vocabulary.seq"};

/* Users choose the names of tables: characters other than letters and digits are replaced in folder
 * names. */
void checkpoint_table_folder(char name[CHECKPOINT_TABLE_BYTES], int i, const char *table) {
    snprintf(name, CHECKPOINT_TABLE_BYTES, "table-%d-%.40s", i, table);
    for (char *p = name; *p != '\0'; p++) {
        bool is_plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                        (*p >= '0' && *p <= '9') || *p == '-';
        if (!is_plain) *p = '_';
    }
}

void checkpoint_table_name(char name[CHECKPOINT_TABLE_BYTES], const dynamic_tables *tables, int i) {
    checkpoint_table_folder(name, i, tables->item[i].config->table_name);
}

/* The seal of a table's snapshot, in hexadecimal. */
static status table_seal(const char *folder, const char *name, char hex[17]) {
    char path[CHECKPOINT_PATH_BYTES];
    uint64_t seal;
    TRY(path_join(path, sizeof path, folder, name));
    TRY(embed_snapshot_seal(path, &seal));
    snprintf(hex, 17, "%016" PRIx64, seal);
    return OK;
}

status manifest_add_table(json_writer *w, const char *folder, const char *name) {
    char hex[17];
    TRY(table_seal(folder, name, hex));
    JSON_OBJECT(w, FIELD("name", name), FIELD("seal", hex));
    return OK;
}

static status check_table(const manifest *m, const json_value *entry) {
    static const char *const keys[] = {"name", "seal", NULL};
    const char *name, *seal;
    char path[CHECKPOINT_PATH_BYTES], hex[17], what[NAME_BYTES];
    snapshot_info info;
    TRY(manifest_check_keys(m, entry, keys));
    TRY(json_member_string(entry, "name", &name));
    TRY(json_member_string(entry, "seal", &seal));
    if (strncmp(name, "table-", 6) != 0 || strchr(name, '/') != NULL)
        return manifest_damaged(m, m->path, "it names a table elsewhere");
    TRY(path_join(path, sizeof path, m->folder, name));
    TRY(embed_snapshot_info(path, &info)); /* checks all of its files */
    TRY(table_seal(m->folder, name, hex));
    if (strcmp(seal, hex) == 0) return OK;
    snprintf(what, sizeof what, "the table is another one, of step %lld", (long long)info.step);
    return manifest_damaged(m, path, what);
}

status manifest_check_tables(const manifest *m) {
    const json_value *tables = json_member(m->root, "tables");
    if (tables == NULL) return OK;
    if (tables->type != JSON_ARRAY) return manifest_damaged(m, m->path, "it lists no tables");
    for (const json_value *e = tables->first; e != NULL; e = e->next)
        TRY(check_table(m, e));
    return OK;
}

static status verify_files(const manifest *m) {
    const json_value *e;
    manifest_file f;
    TRY(manifest_check_names(m, checkpoint_file_names, CHECKPOINT_FILES, &e));
    for (; e != NULL; e = e->next) {
        TRY(manifest_read_file(m, e, &f));
        TRY(manifest_check_file(m, &f));
    }
    return OK;
}

/* The name of the folder, the manifest and the state are of the same step.  A folder may have any
 * other name, as a copy for other uses has. */
static status verify_step(const manifest *m) {
    const char *folder = m->folder;
    char resolved[PATH_MAX], what[NAME_BYTES];
    checkpoint_origin origin;
    int64_t step, named = -1;
    TRY(json_member_int(m->root, "step", &step));
    TRY(checkpoint_read_origin(&origin, folder));
    if (realpath(folder, resolved) != NULL) named = checkpoint_step_of(resolved);
    if (step < 0 || origin.step != (uint64_t)step) {
        snprintf(what, sizeof what, "state.json is of step %" PRIu64 ", manifest.json of %" PRId64,
                 origin.step, step);
        return manifest_damaged(m, folder, what);
    }
    if (named < 0 || named == step) return OK;
    return fail(ERR_FORMAT,
                "%s: it holds step %" PRId64 ", which its name does not say; a copy of another "
                "checkpoint belongs outside the run",
                folder, step);
}

static status verify_manifest(const manifest *m) {
    static const char *const keys[] = {"format", "step", "files", "tables", "crc32", NULL};
    const char *format;
    TRY(json_member_string(m->root, "format", &format));
    if (strcmp(format, CHECKPOINT_FORMAT) != 0)
        return fail(ERR_UNSUPPORTED,
                    "%s: '%.60s' is a format this version does not know (it reads '%s'); use the "
                    "version that wrote it, or train again",
                    m->folder, format, CHECKPOINT_FORMAT);
    if (!m->is_sealed) return manifest_damaged(m, m->path, "it does not fit its own checksum");
    TRY(manifest_check_keys(m, m->root, keys));
    TRY(verify_files(m));
    TRY(manifest_check_tables(m));
    return verify_step(m);
}

status checkpoint_verify(const char *folder) {
    static const char remedy[] = "this checkpoint is damaged. Use an older one (the folders beside "
                                 "it), or start the run again";
    char path[CHECKPOINT_PATH_BYTES];
    manifest m;
    if (!folder_exists(folder)) return fail(ERR_IO, "%s: no such checkpoint", folder);
    TRY(path_join(path, sizeof path, folder, "manifest.json"));
    if (!file_exists(path))
        return fail(ERR_FORMAT, "%s: the file is missing, so the checkpoint was never finished; %s",
                    path, remedy);
    status st = manifest_open(&m, folder, "manifest.json", MANIFEST_MAX_BYTES, remedy);
    if (st == OK) st = verify_manifest(&m);
    return manifest_close(&m, st);
}

/* Only the very name that checkpoint_begin gives: step-00000005, not step-5. */
int64_t checkpoint_step_of(const char *folder) {
    char again[NAME_BYTES];
    const char *slash = strrchr(folder, '/'), *name = slash != NULL ? slash + 1 : folder;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    long long step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%08lld", step);
    return strcmp(name, again) == 0 ? step : -1;
}

int64_t checkpoint_linked_step(const char *run, const char *name) {
    char path[CHECKPOINT_PATH_BYTES], target[NAME_BYTES];
    if (path_join(path, sizeof path, run, name) != OK) return -1;
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n <= 0) return -1;
    target[n] = '\0';
    return checkpoint_step_of(target);
}

/* The step of the newest checkpoint; -1: none. */
static int64_t newest_step(const char *run) {
    char parent[CHECKPOINT_PATH_BYTES];
    int64_t newest = -1;
    if (path_join(parent, sizeof parent, run, "checkpoints") != OK) return -1;
    DIR *dir = opendir(parent);
    if (dir == NULL) return -1;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        char path[CHECKPOINT_PATH_BYTES];
        if (checkpoint_step_of(e->d_name) > newest &&
            path_join(path, sizeof path, parent, e->d_name) == OK && folder_exists(path))
            newest = checkpoint_step_of(e->d_name);
    }
    closedir(dir);
    return newest;
}

bool checkpoint_is_to_come(const char *run) {
    char last[CHECKPOINT_PATH_BYTES];
    if (path_join(last, sizeof last, run, "last") != OK) return false;
    return folder_has(run, "config.json") && !folder_exists(last) && newest_step(run) < 0;
}

status checkpoint_find(const char *path, char folder[CHECKPOINT_PATH_BYTES]) {
    char inside[CHECKPOINT_PATH_BYTES];
    TRY(path_join(inside, sizeof inside, path, "manifest.json"));
    TRY(path_join(folder, CHECKPOINT_PATH_BYTES, path, "best"));
    if (!file_exists(inside) && folder_exists(folder)) return OK;
    return checkpoint_find_last(path, folder);
}

bool checkpoint_is_best(const char *folder) {
    const char *slash = strrchr(folder, '/');
    return strcmp(slash != NULL ? slash + 1 : folder, "best") == 0;
}

status checkpoint_step_folder(const char *run, int64_t step, char folder[CHECKPOINT_PATH_BYTES]) {
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "checkpoints/step-%08" PRId64, step);
    return path_join(folder, CHECKPOINT_PATH_BYTES, run, name);
}

/* The N of "step-N", with or without leading zeros; -1: not such a text. */
static int64_t chosen_step(const char *choice) {
    if (strncmp(choice, "step-", 5) != 0) return -1;
    size_t n = strspn(choice + 5, "0123456789");
    return n > 0 && n <= 18 && choice[5 + n] == '\0' ? strtoll(choice + 5, NULL, 10) : -1;
}

status checkpoint_choose(const char *run, const char *choice, char folder[CHECKPOINT_PATH_BYTES]) {
    if (engine_folder_is(run)) {
        if (choice != NULL)
            return fail(ERR_USAGE, "--checkpoint %s: %s is an engine folder, which holds one model",
                        choice, run);
        snprintf(folder, CHECKPOINT_PATH_BYTES, "%s", run);
        return OK;
    }
    if (choice == NULL) return checkpoint_find(run, folder);
    if (strcmp(choice, "last") == 0) return checkpoint_find_last(run, folder);
    int64_t step = chosen_step(choice);
    if (strcmp(choice, "best") == 0)
        TRY(path_join(folder, CHECKPOINT_PATH_BYTES, run, "best"));
    else if (step >= 0)
        TRY(checkpoint_step_folder(run, step, folder));
    else
        return checkpoint_find(choice, folder);
    if (folder_exists(folder)) return OK;
    return fail(ERR_USAGE, "--checkpoint %s: %s has no such checkpoint%s", choice, run,
                step < 0 ? "; training keeps a best one with --validate" : "");
}

status checkpoint_find_last(const char *path, char folder[CHECKPOINT_PATH_BYTES]) {
    char inside[CHECKPOINT_PATH_BYTES];
    TRY(path_join(inside, sizeof inside, path, "manifest.json"));
    if (file_exists(inside)) {
        snprintf(folder, CHECKPOINT_PATH_BYTES, "%s", path);
        return OK;
    }
    TRY(path_join(folder, CHECKPOINT_PATH_BYTES, path, "last"));
    if (folder_exists(folder)) return OK;
    if (!folder_exists(path)) return fail(ERR_IO, "%s: no such folder", path);
    int64_t step = newest_step(path);
    if (step >= 0) { /* the run was killed between its first checkpoint and the link to it */
        return checkpoint_step_folder(path, step, folder);
    }
    if (engine_folder_is(path))
        return fail(ERR_USAGE,
                    "%s: an engine folder, made to be served; name the run that it was built from",
                    path);
    if (checkpoint_is_to_come(path))
        return fail(ERR_FORMAT,
                    "%s: the run has no checkpoint yet; let it train on, with 'hstu train --resume "
                    "--out %s' if it was stopped",
                    path, path);
    return fail(ERR_FORMAT,
                "%s: neither a checkpoint (no manifest.json) nor a run with one (no 'last'); "
                "'hstu train --out RUN' makes both",
                path);
}

/* One entry of a folder.  A table has folders of ranks; what else a user put there, links to
 * folders and pipes among it, is not part of it. */
static status copy_entry(const char *from, const char *to, const char *name, int depth) {
    char source[CHECKPOINT_PATH_BYTES], target[CHECKPOINT_PATH_BYTES];
    TRY(path_join(source, sizeof source, from, name));
    TRY(path_join(target, sizeof target, to, name));
    if (file_exists(source)) return file_copy(source, target);
    if (depth == 0 || strncmp(name, "rank-", 5) != 0 || !folder_exists(source)) return OK;
    return checkpoint_copy_folder(source, target, depth - 1);
}

status checkpoint_copy_folder(const char *from, const char *to, int depth) {
    TRY(folder_create(to, NULL));
    DIR *dir = opendir(from);
    if (dir == NULL) return fail_errno("%s: cannot be read", from);
    status st = OK;
    for (struct dirent *e = readdir(dir); st == OK && e != NULL; e = readdir(dir))
        if (e->d_name[0] != '.') st = copy_entry(from, to, e->d_name, depth);
    closedir(dir);
    return st;
}

/* Reading it. */

status checkpoint_table_path(char path[CHECKPOINT_PATH_BYTES], const dynamic_tables *tables, int i,
                             const char *folder) {
    char name[CHECKPOINT_TABLE_BYTES];
    checkpoint_table_name(name, tables, i);
    return path_join(path, CHECKPOINT_PATH_BYTES, folder, name);
}

const char *tensor_shape_text(char text[SHAPE_TEXT_BYTES], int n_dims, const int64_t *shape) {
    snprintf(text, SHAPE_TEXT_BYTES, "(");
    for (int d = 0; d < n_dims; d++)
        text_add(text, SHAPE_TEXT_BYTES, "%s%" PRId64, d > 0 ? ", " : "", shape[d]);
    text_add(text, SHAPE_TEXT_BYTES, ")");
    return text;
}

bool checkpoint_has_shape(const st_tensor *t, const param *p, int first) {
    bool is_same = t->n_dims == p->n_dims;
    int64_t shape[4];
    param_whole_shape(p, shape);
    for (int d = first; d < p->n_dims && is_same; d++)
        is_same = t->shape[d] == shape[d];
    return is_same;
}

status checkpoint_fail_shape(status st, const st_file *f, const st_tensor *t, const param *p,
                             const char *but, const char *remedy) {
    char there[SHAPE_TEXT_BYTES], here[SHAPE_TEXT_BYTES];
    int64_t shape[4];
    param_whole_shape(p, shape);
    return fail(st, "%s: '%s' has the shape %s, but %s %s; %s", f->path, t->name,
                tensor_shape_text(there, t->n_dims, t->shape), but,
                tensor_shape_text(here, p->n_dims, shape), remedy);
}

/* Such a value would spread through every answer: all scores of a user are NaN then. */
status checkpoint_check_finite(const st_file *f, const st_tensor *t) {
    int64_t at = st_first_not_finite(t);
    if (at < 0) return OK;
    int64_t width = t->n_dims > 0 && t->shape[0] > 0 ? t->n / t->shape[0] : 1;
    return fail(ERR_NUMERIC,
                "%s: row %" PRId64 " of '%s' holds a number that is not finite; use an older "
                "checkpoint (the folders beside it), or start the run again",
                f->path, at / width, t->name);
}

status checkpoint_load_tensor(const st_file *f, backend *be, const param *p, const char *suffix,
                              float *to) {
    char name[TENSOR_NAME_BYTES];
    const st_tensor *t;
    snprintf(name, sizeof name, "%s%s", p->name, suffix);
    if (st_find(f, name) == NULL)
        return fail(ERR_FORMAT,
                    "%s: '%s' is missing; the checkpoint belongs to another config: use the one it "
                    "was trained with, or start a new run",
                    f->path, name);
    TRY(st_get(f, name, ST_F32, &t));
    if (!checkpoint_has_shape(t, p, 0))
        return checkpoint_fail_shape(ERR_FORMAT, f, t, p, "the model here has",
                                     "the checkpoint belongs to another config or other data: use "
                                     "those it was trained with, or start a new run");
    TRY(checkpoint_check_finite(f, t));
    return param_cut_take(p, be, t->data, to);
}

/* A tensor that the model does not have is a sign of another model. */
status checkpoint_check_count(const st_file *f, size_t n) {
    if (f->n_tensors == n) return OK;
    return fail(ERR_FORMAT,
                "%s: %zu tensors, but the model here has %zu; the checkpoint belongs to another "
                "config: use the one it was trained with, or start a new run",
                f->path, f->n_tensors, n);
}

status checkpoint_load_tables(dynamic_tables *tables, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    dynamic_state as_loaded;
    int64_t n_rejected;
    for (int i = 0; tables != NULL && i < tables->n; i++) {
        if (!dynamic_is_owner(&tables->item[i])) continue;
        TRY(checkpoint_table_path(path, tables, i, folder));
        TRY(embed_snapshot_read(tables->item[i].table, path, &n_rejected));
        if (n_rejected > 0)
            log_warn("%s: %" PRId64 " rows did not fit into the table and start again", path,
                     n_rejected);
        /* What the log tells next begins here. */
        TRY(dynamic_news(&tables->item[i], &as_loaded));
    }
    return OK;
}

bool checkpoint_is_for_training(const st_tensor *t) {
    size_t n = strlen(t->name), own = strlen(CONTENT_OWN);
    return strncmp(t->name, CONTENT_PREFIX, strlen(CONTENT_PREFIX)) == 0 ||
           (n > own && strcmp(t->name + n - own, CONTENT_OWN) == 0);
}

static size_t count_for_training(const st_file *f) {
    size_t n = 0;
    for (size_t i = 0; i < f->n_tensors; i++)
        n += checkpoint_is_for_training(&f->tensors[i]);
    return n;
}

static status load_params(const char *path, backend *be, const param *params, int n_params) {
    st_file *f;
    TRY(st_open(&f, path));
    status st = OK;
    size_t n = (size_t)n_params, n_own = 0;
    for (int i = 0; i < n_params && st == OK; i++) {
        st = checkpoint_load_tensor(f, be, &params[i], "", params[i].value);
        if (st != OK || params[i].own == NULL) continue;
        st = checkpoint_load_tensor(f, be, &params[i], CONTENT_OWN, params[i].own);
        n_own++;
    }
    n += n_own > 0 ? n_own : count_for_training(f);
    if (st == OK) st = checkpoint_check_count(f, n);
    st_close(f);
    return st;
}

status checkpoint_load_weights(const char *folder, backend *be, const param *params, int n_params,
                               dynamic_tables *tables) {
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_MODEL]));
    TRY(load_params(path, be, params, n_params));
    return checkpoint_load_tables(tables, folder);
}

/* What a training adds to a count on top of this does not overflow. */
#define COUNT_MAX ((int64_t)1 << 53)

status checkpoint_member_count(const json_value *object, const char *key, uint64_t *out) {
    int64_t value;
    TRY(json_member_int(object, key, &value));
    if (value < 0 || value > COUNT_MAX)
        return fail(ERR_FORMAT, "'%s' is %" PRId64 ", which no run reaches", key, value);
    *out = (uint64_t)value;
    return OK;
}

status checkpoint_parse_origin(checkpoint_origin *o, const json_value *root) {
    const json_value *batches = json_member(root, "batches");
    o->n_earlier = 0;
    if (batches == NULL || batches->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "'batches' is missing");
    TRY(checkpoint_member_count(root, "step", &o->step));
    if (json_member(root, "earlier_steps") != NULL)
        TRY(checkpoint_member_count(root, "earlier_steps", &o->n_earlier));
    TRY(split_record_read(&o->split, root));
    TRY(batcher_state_read(&o->batches, batches));
    o->data = o->batches.data;
    return OK;
}

status checkpoint_read_origin(checkpoint_origin *out, const char *folder) {
    manifest m;
    status st = manifest_open(&m, folder, checkpoint_file_names[CHECKPOINT_STATE],
                              MANIFEST_MAX_BYTES, NULL);
    if (st == OK) st = checkpoint_parse_origin(out, m.root);
    return manifest_close(&m, st);
}

status checkpoint_config(config **out, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    st_file *f;
    *out = NULL;
    TRY(checkpoint_verify(folder));
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_MODEL]));
    TRY(st_open(&f, path));
    const char *json = st_metadata(f, "config");
    status st = json != NULL ? config_load_json(out, path, json, strlen(json))
                             : fail(ERR_FORMAT, "%s: it contains no config", path);
    st_close(f);
    return st;
}

status checkpoint_run_config(config **out, const char *run) {
    char path[CHECKPOINT_PATH_BYTES], *text;
    size_t n;
    *out = NULL;
    if (!checkpoint_is_to_come(run)) {
        TRY(checkpoint_find_last(run, path));
        return checkpoint_config(out, path);
    }
    TRY(path_join(path, sizeof path, run, "config.json"));
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &n));
    bool is_sealed = n > 0 && text[n - 1] == '\n' && json_is_sealed(text, n - 1);
    status st = is_sealed ? config_load_json(out, path, text, n)
                          : fail(ERR_FORMAT,
                                 "%s: it was changed or is damaged; resume with "
                                 "--gin-config-file, or start the run again",
                                 path);
    mem_free(text);
    return st;
}

/* The member "run" of config.json, which the trainer writes (trainer_log.c). */
static status read_run_split(split_record *out, const char *run_folder) {
    manifest m;
    status st = manifest_open(&m, run_folder, "config.json", CONFIG_MAX_BYTES, NULL);
    const json_value *run = st == OK ? json_member(m.root, "run") : NULL;
    if (st == OK && (run == NULL || run->type != JSON_OBJECT))
        st = fail(ERR_FORMAT, "'run' is missing");
    if (st == OK) st = split_record_read(out, run);
    return manifest_close(&m, st);
}

status checkpoint_run_split(split_record *out, const char *run) {
    char path[CHECKPOINT_PATH_BYTES];
    checkpoint_origin origin;
    if (checkpoint_is_to_come(run)) return read_run_split(out, run);
    TRY(checkpoint_find_last(run, path));
    TRY(checkpoint_read_origin(&origin, path));
    *out = origin.split;
    return OK;
}
