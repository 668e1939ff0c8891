#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/set/batcher.h"
#include "embed/snapshot.h"
#include "format/json.h"
#include "model/checkpoint_load.h"
#include "model/trained.h"
#include "nn/param_cut.h"

enum { STATE_MAX_BYTES = 1 << 16, CONFIG_MAX_BYTES = 1 << 24 };
enum { TENSOR_NAME_BYTES = PARAM_NAME_BYTES + 8 };

status checkpoint_table_path(char path[CHECKPOINT_PATH_BYTES], const dynamic_tables *tables, int i,
                             const char *folder) {
    char name[CHECKPOINT_TABLE_BYTES];
    checkpoint_table_name(name, tables, i);
    return path_join(path, CHECKPOINT_PATH_BYTES, folder, name);
}

static void shape_text(char *text, size_t n, int n_dims, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, n, "(");
    for (int d = 0; d < n_dims && used < n; d++)
        used += (size_t)snprintf(text + used, n - used, "%s%" PRId64, d > 0 ? ", " : "", shape[d]);
    if (used < n) snprintf(text + used, n - used, ")");
}

static status check_shape(const st_file *f, const st_tensor *t, const param *p) {
    bool is_same = t->n_dims == p->n_dims;
    int64_t shape[4];
    param_whole_shape(p, shape);
    for (int d = 0; d < p->n_dims && is_same; d++)
        is_same = t->shape[d] == shape[d];
    if (is_same) return OK;
    char there[128], here[128];
    shape_text(there, sizeof there, t->n_dims, t->shape);
    shape_text(here, sizeof here, p->n_dims, shape);
    return fail(ERR_FORMAT,
                "%s: '%s' has the shape %s, but the model here has %s; the checkpoint belongs to "
                "another config or other data: use those it was trained with, or start a new run",
                st_path(f), t->name, there, here);
}

/* Such a value would spread through every answer: all scores of a user are NaN then. */
status checkpoint_check_finite(const st_file *f, const st_tensor *t) {
    int64_t at = st_first_not_finite(t);
    if (at < 0) return OK;
    int64_t width = t->n_dims > 0 && t->shape[0] > 0 ? t->n / t->shape[0] : 1;
    return fail(ERR_NUMERIC,
                "%s: row %" PRId64 " of '%s' holds a number that is not finite; use an older "
                "checkpoint (the folders beside it), or start the run again",
                st_path(f), at / width, t->name);
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
                    st_path(f), name);
    TRY(st_get(f, name, ST_F32, &t));
    TRY(check_shape(f, t, p));
    TRY(checkpoint_check_finite(f, t));
    return param_cut_take(p, be, t->data, to);
}

/* A tensor that the model does not have is a sign of another model. */
status checkpoint_check_count(const st_file *f, size_t n) {
    if (st_n_tensors(f) == n) return OK;
    return fail(ERR_FORMAT,
                "%s: %zu tensors, but the model here has %zu; the checkpoint belongs to another "
                "config: use the one it was trained with, or start a new run",
                st_path(f), st_n_tensors(f), n);
}

status checkpoint_load_tables(dynamic_tables *tables, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    dynamic_state as_loaded;
    int64_t n_rejected;
    for (int i = 0; tables != NULL && i < tables->n; i++) {
        if (!dynamic_is_owner(&tables->item[i])) continue;
        TRY(checkpoint_table_path(path, tables, i, folder));
        TRY(embed_snapshot_read(tables->item[i].table, path, (snapshot_ranks){0, 1}, &n_rejected));
        if (n_rejected > 0)
            log_warn("%s: %" PRId64 " rows found no place and start again", path, n_rejected);
        /* What the log tells next begins here. */
        TRY(dynamic_news(&tables->item[i], &as_loaded));
    }
    return OK;
}

static status load_params(const char *path, backend *be, const param *params, int n_params) {
    st_file *f;
    TRY(st_open(&f, path));
    status st = OK;
    for (int i = 0; i < n_params && st == OK; i++)
        st = checkpoint_load_tensor(f, be, &params[i], "", params[i].value);
    if (st == OK) st = checkpoint_check_count(f, (size_t)n_params);
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

static status parse_origin(checkpoint_origin *o, const json_value *root) {
    const json_value *batches = json_member(root, "batches");
    batcher_state state;
    int64_t step, n_earlier = 0;
    if (batches == NULL || batches->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "'batches' is missing");
    TRY(json_member_int(root, "step", &step));
    if (step < 0) return fail(ERR_FORMAT, "'step' is negative");
    if (json_member(root, "earlier_steps") != NULL)
        TRY(json_member_int(root, "earlier_steps", &n_earlier));
    if (n_earlier < 0) return fail(ERR_FORMAT, "'earlier_steps' is negative");
    TRY(split_record_read(&o->split, root));
    TRY(batcher_state_read(&state, batches));
    o->step = (uint64_t)step;
    o->n_earlier = (uint64_t)n_earlier;
    o->data = state.data;
    return OK;
}

status checkpoint_read_origin(checkpoint_origin *out, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES], *text;
    size_t n;
    arena a;
    const json_value *root;
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_STATE]));
    TRY(file_read_all(path, STATE_MAX_BYTES, &text, &n));
    arena_init(&a, 4096);
    status st = json_parse(&a, path, text, n, &root);
    if (st == OK && root->type != JSON_OBJECT) st = fail(ERR_FORMAT, "%s: no object", path);
    if (st == OK) {
        st = parse_origin(out, root);
        if (st != OK) st = fail_prefix(st, "%s", path);
    }
    arena_fini(&a);
    mem_free(text);
    return st;
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
                             : fail(ERR_FORMAT, "%s: it carries no config", path);
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
static status read_run_split(split_record *out, const char *path) {
    char *text;
    size_t n;
    arena a;
    const json_value *root;
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &n));
    arena_init(&a, 4096);
    status st = json_parse(&a, path, text, n, &root);
    const json_value *run = st == OK ? json_member(root, "run") : NULL;
    if (st == OK && (run == NULL || run->type != JSON_OBJECT))
        st = fail(ERR_FORMAT, "%s: 'run' is missing", path);
    if (st == OK) {
        st = split_record_read(out, run);
        if (st != OK) st = fail_prefix(st, "%s", path);
    }
    arena_fini(&a);
    mem_free(text);
    return st;
}

status checkpoint_run_split(split_record *out, const char *run) {
    char path[CHECKPOINT_PATH_BYTES];
    checkpoint_origin origin;
    if (checkpoint_is_to_come(run)) {
        TRY(path_join(path, sizeof path, run, "config.json"));
        return read_run_split(out, path);
    }
    TRY(checkpoint_find_last(run, path));
    TRY(checkpoint_read_origin(&origin, path));
    *out = origin.split;
    return OK;
}

/* Finding and checking the files of a checkpoint: which folder, complete or damaged. */

enum { MANIFEST_MAX_BYTES = 1 << 16, NAME_BYTES = 256 };

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

status checkpoint_hash_file(const char *path, uint64_t *bytes, uint64_t *hash) {
    file_map map;
    TRY(file_map_open(&map, path));
    *bytes = map.n_bytes;
    *hash = hash64(map.bytes, map.n_bytes, 0);
    file_map_close(&map);
    return OK;
}

/* The seal of a table's snapshot, in hexadecimal. */
status checkpoint_table_seal(const char *folder, const char *name, char hex[17]) {
    char path[CHECKPOINT_PATH_BYTES];
    uint64_t seal;
    TRY(path_join(path, sizeof path, folder, name));
    TRY(embed_snapshot_seal(path, &seal));
    snprintf(hex, 17, "%016" PRIx64, seal);
    return OK;
}

#define REMEDY                                                                                     \
    "this checkpoint is damaged. Use an older one (the folders beside it), or start the run again"

static status damaged(const char *path, const char *what) {
    return fail(ERR_FORMAT, "%s: %s; " REMEDY, path, what);
}

/* Adds to the last failure what to do about it, unless it says so itself, and the manifest's path
 * where it names no file. */
static status add_remedy(const char *manifest, const char *folder) {
    char reason[FAILURE_REASON_BYTES];
    if (strstr(status_reason(), REMEDY) != NULL) return ERR_FORMAT;
    bool has_place = strstr(status_reason(), folder) != NULL;
    snprintf(reason, sizeof reason, "%s", status_reason());
    return fail(ERR_FORMAT, "%.400s%s%.700s; " REMEDY, has_place ? "" : manifest,
                has_place ? "" : ": ", reason);
}

/* One entry of the manifest.  A name with a slash could lead anywhere. */
static status verify_file(const char *folder, const json_value *entry) {
    const char *name, *hex;
    int64_t bytes;
    uint64_t got_bytes = 0, got_hash = 0;
    char path[CHECKPOINT_PATH_BYTES], text[17];
    TRY(json_member_string(entry, "name", &name));
    TRY(json_member_int(entry, "bytes", &bytes));
    TRY(json_member_string(entry, "xxh64", &hex));
    if (strchr(name, '/') != NULL || name[0] == '\0')
        return damaged(folder, "manifest.json names a file elsewhere");
    TRY(path_join(path, sizeof path, folder, name));
    if (!file_exists(path)) return damaged(path, "the file is missing");
    TRY(checkpoint_hash_file(path, &got_bytes, &got_hash));
    snprintf(text, sizeof text, "%016" PRIx64, got_hash);
    if ((int64_t)got_bytes != bytes) {
        char what[128];
        snprintf(what, sizeof what, "%" PRIu64 " bytes, but %" PRId64 " were written", got_bytes,
                 bytes);
        return damaged(path, what);
    }
    return strcmp(text, hex) == 0 ? OK : damaged(path, "the content does not fit its checksum");
}

/* Every key is one that checkpoint_seal writes: a misspelt one would leave something unchecked. */
static status check_keys(const char *folder, const json_value *object, const char *const *keys) {
    char what[NAME_BYTES];
    if (object->type != JSON_OBJECT) return damaged(folder, "manifest.json lists no object");
    for (const json_value *m = object->first; m != NULL; m = m->next) {
        const char *const *k = keys;
        while (*k != NULL && strcmp(*k, m->key) != 0)
            k++;
        if (*k != NULL) continue;
        snprintf(what, sizeof what, "manifest.json has the unknown key '%.60s'", m->key);
        return damaged(folder, what);
    }
    return OK;
}

static status verify_tables(const char *folder, const json_value *root) {
    static const char *const keys[] = {"name", "seal", NULL};
    const json_value *tables = json_member(root, "tables");
    char path[CHECKPOINT_PATH_BYTES], hex[17];
    if (tables == NULL) return OK;
    if (tables->type != JSON_ARRAY) return damaged(folder, "manifest.json lists no tables");
    for (const json_value *e = tables->first; e != NULL; e = e->next) {
        TRY(check_keys(folder, e, keys));
        const char *name, *seal;
        snapshot_info info;
        TRY(json_member_string(e, "name", &name));
        TRY(json_member_string(e, "seal", &seal));
        if (strncmp(name, "table-", 6) != 0 || strchr(name, '/') != NULL)
            return damaged(folder, "manifest.json names a table elsewhere");
        TRY(path_join(path, sizeof path, folder, name));
        TRY(embed_snapshot_info(path, &info));
        TRY(checkpoint_table_seal(folder, name, hex));
        if (strcmp(seal, hex) != 0) {
            char what[NAME_BYTES];
            snprintf(what, sizeof what, "the table is not this checkpoint's, but one of step %lld",
                     (long long)info.step);
            return damaged(path, what);
        }
    }
    return OK;
}

static status verify_files(const char *folder, const json_value *root) {
    static const char *const keys[] = {"name", "bytes", "xxh64", NULL};
    const json_value *files = json_member(root, "files");
    if (files == NULL || files->type != JSON_ARRAY)
        return damaged(folder, "manifest.json lists no files");
    for (const json_value *e = files->first; e != NULL; e = e->next)
        TRY(check_keys(folder, e, keys));
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        bool is_there = false;
        for (const json_value *e = files->first; e != NULL; e = e->next) {
            const json_value *name = json_member(e, "name");
            is_there |= name != NULL && name->type == JSON_STRING &&
                        strcmp(name->string, checkpoint_file_names[i]) == 0;
        }
        if (!is_there) return damaged(folder, "manifest.json does not list all files");
    }
    for (const json_value *e = files->first; e != NULL; e = e->next)
        TRY(verify_file(folder, e));
    return OK;
}

/* The name of the folder, the manifest and the state are of the same step.  A folder may have any
 * other name, as a copy for other uses has. */
static status verify_step(const char *folder, const json_value *root) {
    char resolved[PATH_MAX], what[NAME_BYTES];
    checkpoint_origin origin;
    int64_t step, named = -1;
    TRY(json_member_int(root, "step", &step));
    TRY(checkpoint_read_origin(&origin, folder));
    if (realpath(folder, resolved) != NULL && strrchr(resolved, '/') != NULL)
        named = checkpoint_step_of(strrchr(resolved, '/') + 1);
    if (step < 0 || origin.step != (uint64_t)step) {
        snprintf(what, sizeof what, "state.json is of step %" PRIu64 ", manifest.json of %" PRId64,
                 origin.step, step);
        return damaged(folder, what);
    }
    if (named < 0 || named == step) return OK;
    return fail(ERR_FORMAT,
                "%s: it holds step %" PRId64 ", which its name does not say; a copy of another "
                "checkpoint belongs outside the run",
                folder, step);
}

static status verify_manifest(const char *folder, const json_value *root, bool is_sealed) {
    static const char *const keys[] = {"format", "step", "files", "tables", "crc32", NULL};
    const char *format;
    TRY(json_member_string(root, "format", &format));
    if (strcmp(format, CHECKPOINT_FORMAT) != 0)
        return fail(ERR_UNSUPPORTED,
                    "%s: '%.60s' is a format this version does not know (it reads '%s'); use the "
                    "version that wrote it, or train again",
                    folder, format, CHECKPOINT_FORMAT);
    if (!is_sealed) return damaged(folder, "manifest.json does not fit its own checksum");
    TRY(check_keys(folder, root, keys));
    TRY(verify_files(folder, root));
    TRY(verify_tables(folder, root));
    return verify_step(folder, root);
}

status checkpoint_verify(const char *folder) {
    char path[CHECKPOINT_PATH_BYTES], *text = NULL;
    size_t n;
    arena a;
    const json_value *root;
    if (!folder_exists(folder)) return fail(ERR_IO, "%s: no such checkpoint", folder);
    TRY(path_join(path, sizeof path, folder, "manifest.json"));
    if (!file_exists(path))
        return damaged(path, "the file is missing, so the checkpoint was never finished");
    TRY(file_read_all(path, MANIFEST_MAX_BYTES, &text, &n));
    arena_init(&a, 4096);
    status st = json_parse(&a, path, text, n, &root);
    if (st == OK && root->type != JSON_OBJECT) st = fail(ERR_FORMAT, "%s: no object", path);
    if (st == OK) st = verify_manifest(folder, root, json_is_sealed(text, n));
    if (st == ERR_FORMAT) st = add_remedy(path, folder);
    arena_fini(&a);
    mem_free(text);
    return st;
}

/* Only the very name that checkpoint_begin gives: step-00000005, not step-5. */
int64_t checkpoint_step_of(const char *name) {
    char again[NAME_BYTES];
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    long long step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%08lld", step);
    return strcmp(name, again) == 0 ? step : -1;
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
    char options[CHECKPOINT_PATH_BYTES], last[CHECKPOINT_PATH_BYTES];
    if (path_join(options, sizeof options, run, "config.json") != OK ||
        path_join(last, sizeof last, run, "last") != OK)
        return false;
    return file_exists(options) && !folder_exists(last) && newest_step(run) < 0;
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

/* step-480 is the folder checkpoints/step-00000480. */
static status find_step(const char *run, int64_t step, char folder[CHECKPOINT_PATH_BYTES]) {
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
        TRY(find_step(run, step, folder));
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
        return find_step(path, step, folder);
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
