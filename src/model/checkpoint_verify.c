/* Finding and checking the files of a checkpoint: which folder, complete or damaged. */
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "embed/snapshot.h"
#include "format/json.h"
#include "model/engine_folder.h"

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
