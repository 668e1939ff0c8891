#include "format/manifest.h"

status manifest_damaged(const manifest *m, const char *path, const char *what) {
    return fail(ERR_FORMAT, "%s: %s; %s", path, what, m->remedy);
}

status manifest_open(manifest *m, const char *folder, const char *name, size_t max_bytes,
                     const char *remedy) {
    size_t n;
    *m = (manifest){.folder = folder, .remedy = remedy};
    arena_init(&m->memory, 4096);
    TRY(path_join(m->path, sizeof m->path, folder, name));
    TRY(file_read_all(m->path, max_bytes, &m->text, &n));
    TRY(json_parse(&m->memory, m->path, m->text, n, &m->root));
    if (m->root->type != JSON_OBJECT) return fail(ERR_FORMAT, "%s: no object", m->path);
    m->is_sealed = json_is_sealed(m->text, n);
    return OK;
}

status manifest_close(manifest *m, status st) {
    if (st != OK && strstr(status_reason(), m->folder) == NULL) st = fail_prefix(st, "%s", m->path);
    if (st == ERR_FORMAT && m->remedy != NULL && strstr(status_reason(), m->remedy) == NULL) {
        char reason[FAILURE_REASON_BYTES];
        snprintf(reason, sizeof reason, "%s", status_reason());
        st = fail(st, "%.800s; %s", reason, m->remedy);
    }
    arena_fini(&m->memory);
    mem_free(m->text);
    m->text = NULL;
    return st;
}

status manifest_check_keys(const manifest *m, const json_value *object, const char *const *keys) {
    char what[256];
    if (object == NULL || object->type != JSON_OBJECT)
        return manifest_damaged(m, m->path, "it lists no object");
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        const char *const *k = keys;
        while (*k != NULL && strcmp(*k, v->key) != 0)
            k++;
        if (*k != NULL) continue;
        snprintf(what, sizeof what, "it has the unknown key '%.60s'", v->key);
        return manifest_damaged(m, m->path, what);
    }
    return OK;
}

/* A name with a slash could lead anywhere. */
status manifest_read_file(const manifest *m, const json_value *entry, manifest_file *out) {
    static const char *const keys[] = {"name", "bytes", "xxh64", NULL};
    const char *hex;
    char *end;
    TRY(manifest_check_keys(m, entry, keys));
    TRY(json_member_string(entry, "name", &out->name));
    TRY(json_member_int(entry, "bytes", &out->bytes));
    TRY(json_member_string(entry, "xxh64", &hex));
    if (strchr(out->name, '/') != NULL || out->name[0] == '\0')
        return manifest_damaged(m, m->path, "it names a file elsewhere");
    out->hash = strtoull(hex, &end, 16);
    if (strlen(hex) != 16 || *end != '\0')
        return manifest_damaged(m, m->path, "a checksum is not a number");
    TRY(path_join(out->path, sizeof out->path, m->folder, out->name));
    return file_exists(out->path) ? OK : manifest_damaged(m, out->path, "the file is missing");
}

status manifest_check_file(const manifest *m, const manifest_file *f) {
    int64_t bytes = 0;
    uint64_t hash = 0;
    char what[256];
    TRY(manifest_hash_file(f->path, &bytes, &hash));
    if (bytes != f->bytes) {
        snprintf(what, sizeof what, "%" PRId64 " bytes, but %" PRId64 " were written", bytes,
                 f->bytes);
        return manifest_damaged(m, f->path, what);
    }
    return hash == f->hash ? OK
                           : manifest_damaged(m, f->path, "the content does not fit its checksum");
}

static bool is_listed(const json_value *files, const char *wanted) {
    for (const json_value *e = files->first; e != NULL; e = e->next) {
        const json_value *name = e->type == JSON_OBJECT ? json_member(e, "name") : NULL;
        if (name != NULL && name->type == JSON_STRING && strcmp(name->string, wanted) == 0)
            return true;
    }
    return false;
}

status manifest_check_names(const manifest *m, const char *const *names, int n,
                            const json_value **first) {
    const json_value *files = json_member(m->root, "files");
    if (files == NULL || files->type != JSON_ARRAY)
        return manifest_damaged(m, m->path, "it lists no files");
    for (int i = 0; i < n; i++)
        if (!is_listed(files, names[i]))
            return manifest_damaged(m, m->path, "it does not list all files");
    *first = files->first;
    return OK;
}

status manifest_hash_file(const char *path, int64_t *bytes, uint64_t *hash) {
    file_map map;
    TRY(file_map_open(&map, path));
    *bytes = (int64_t)map.n_bytes;
    *hash = hash64(map.bytes, map.n_bytes, 0);
    file_map_close(&map);
    return OK;
}

void manifest_list_file(json_writer *w, const char *name, int64_t bytes, uint64_t hash) {
    char hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    JSON_OBJECT(w, FIELD("name", name), FIELD("bytes", bytes), FIELD("xxh64", hex));
}

status manifest_add_file(json_writer *w, const char *folder, const char *name, int64_t *bytes) {
    char path[MANIFEST_PATH_BYTES];
    uint64_t hash;
    TRY(path_join(path, sizeof path, folder, name));
    TRY(manifest_hash_file(path, bytes, &hash));
    manifest_list_file(w, name, *bytes, hash);
    return OK;
}
