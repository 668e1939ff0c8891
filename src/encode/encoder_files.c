#include "encode/encoder_files.h"

#include "format/json.h"
#include "model/checkpoint_load.h"

enum { INDEX_MAX_BYTES = 64 << 20, PATH_BYTES = 4096, NAME_BYTES = 256, MAX_NAMED = 4 };

typedef struct entry {
    const char *name;
    const st_tensor *tensor;
    bool is_used;
} entry;

struct encoder_files {
    arena names;    /* the index */
    st_file **file; /* (n_files) */
    size_t n_files, file_capacity;
    entry *tensor; /* (n_tensors), by name */
    size_t n_tensors, tensor_capacity;
    const char *folder, *prefix;
    encoder_family family;
};

static const char *const PREFIXES[N_ENCODER_FAMILIES] = {"bert.", "roberta.", "distilbert."};

/* Where the parts of the encoder itself are, after the prefix; and the buffers among them that are
 * no weights. */
static const char *const PARTS[] = {"embeddings.", "encoder.", "transformer.", "pooler."};
static const char *const BUFFERS[] = {"embeddings.position_ids", "embeddings.token_type_ids"};

static bool begins_with(const char *text, const char *begin) {
    return strncmp(text, begin, strlen(begin)) == 0;
}

static status add_tensor(encoder_files *f, const st_tensor *t) {
    TRY(MEM_RESERVE(&f->tensor, &f->tensor_capacity, f->n_tensors + 1));
    f->tensor[f->n_tensors++] = (entry){t->name, t, false};
    return OK;
}

static status add_file(encoder_files *f, const char *name, st_file **out) {
    char path[PATH_BYTES];
    TRY(path_join(path, sizeof path, f->folder, name));
    TRY(MEM_RESERVE(&f->file, &f->file_capacity, f->n_files + 1));
    TRY(st_open(out, path));
    f->file[f->n_files++] = *out;
    return OK;
}

static status open_single(encoder_files *f) {
    st_file *file;
    TRY(add_file(f, "model.safetensors", &file));
    for (size_t i = 0; i < file->n_tensors; i++)
        TRY(add_tensor(f, &file->tensors[i]));
    return OK;
}

/* Only files of the folder itself: an index must not lead elsewhere. */
static bool is_plain_name(const char *name) {
    size_t n = strlen(name);
    return n > 12 && n < NAME_BYTES && name[0] != '.' && strchr(name, '/') == NULL &&
           strcmp(name + n - 12, ".safetensors") == 0;
}

status encoder_index_parse(const char *path, const json_value *root, encoder_index_fn add,
                           void *ctx) {
    const json_value *map = json_member(root, "weight_map");
    if (map == NULL || map->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "%s: has no weight_map: not the index of a sharded model", path);
    for (const json_value *v = map->first; v != NULL; v = v->next) {
        if (v->type != JSON_STRING || !is_plain_name(v->string))
            return fail(ERR_FORMAT,
                        "%s: the file of tensor %.100s is not the name of a .safetensors file in "
                        "the same folder",
                        path, v->key);
        TRY(add(ctx, v->key, v->string));
    }
    return OK;
}

/* The shard of this name, opened if it is not yet. */
static status find_shard(encoder_files *f, const char *name, st_file **out) {
    size_t n = strlen(name);
    for (size_t i = f->n_files; i-- > 0;) {
        const char *path = f->file[i]->path;
        size_t n_path = strlen(path);
        if (n_path > n && path[n_path - n - 1] == '/' && strcmp(path + n_path - n, name) == 0) {
            *out = f->file[i];
            return OK;
        }
    }
    return add_file(f, name, out);
}

static status add_mapped(void *ctx, const char *tensor, const char *name) {
    encoder_files *f = ctx;
    st_file *file;
    TRY(find_shard(f, name, &file));
    const st_tensor *t = st_find(file, tensor);
    if (t == NULL)
        return fail(ERR_FORMAT, "%s: has no tensor %.100s, which the index says it has", file->path,
                    tensor);
    return add_tensor(f, t);
}

static status open_sharded(encoder_files *f, const char *index) {
    const json_value *root;
    arena a;
    arena_init(&a, 1 << 16);
    status st = json_read_file(&a, index, INDEX_MAX_BYTES, &root);
    if (st == OK) st = encoder_index_parse(index, root, add_mapped, f);
    arena_fini(&a);
    return st;
}

static status open_any(encoder_files *f) {
    char single[PATH_BYTES], index[PATH_BYTES];
    TRY(path_join(single, sizeof single, f->folder, "model.safetensors"));
    TRY(path_join(index, sizeof index, f->folder, "model.safetensors.index.json"));
    if (file_exists(single)) return open_single(f);
    if (file_exists(index)) return open_sharded(f, index);
    return fail(ERR_IO,
                "%s: has neither model.safetensors nor model.safetensors.index.json; save the "
                "model with save_pretrained(..., safe_serialization=True)",
                f->folder);
}

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static entry *find_exact(const encoder_files *f, const char *name) {
    entry key = {.name = name};
    if (f->n_tensors == 0) return NULL;
    return bsearch(&key, f->tensor, f->n_tensors, sizeof key, compare_entries);
}

static entry *find(const encoder_files *f, const char *name) {
    char whole[2 * NAME_BYTES];
    snprintf(whole, sizeof whole, "%s%s", f->prefix, name);
    return find_exact(f, whole);
}

status encoder_files_open(encoder_files **out, const char *folder, encoder_family family) {
    encoder_files *f = NULL;
    *out = NULL;
    TRY(MEM_NEW(&f, 1));
    arena_init(&f->names, 1 << 16);
    f->folder = folder;
    f->family = family;
    f->prefix = PREFIXES[family];
    status st = arena_copy_text(&f->names, folder, strlen(folder), &f->folder);
    if (st == OK) st = open_any(f);
    if (st == OK) {
        if (f->n_tensors > 0) qsort(f->tensor, f->n_tensors, sizeof *f->tensor, compare_entries);
        if (find(f, "embeddings.word_embeddings.weight") == NULL) f->prefix = "";
        *out = f;
        return OK;
    }
    encoder_files_close(f);
    return st;
}

void encoder_files_close(encoder_files *f) {
    if (f == NULL) return;
    for (size_t i = 0; i < f->n_files; i++)
        st_close(f->file[i]);
    MEM_FREE(f->file, f->tensor);
    arena_fini(&f->names);
    mem_free(f);
}

bool encoder_files_has(const encoder_files *f, const char *name) {
    return find(f, name) != NULL;
}

static status check_tensor(const encoder_files *f, const st_tensor *t, int64_t rows,
                           int64_t columns) {
    int n_dims = columns > 0 ? 2 : 1;
    char got[SHAPE_TEXT_BYTES], want[SHAPE_TEXT_BYTES];
    if (t->dtype != ST_F32 && t->dtype != ST_F16 && t->dtype != ST_BF16)
        return fail(ERR_UNSUPPORTED,
                    "%s: tensor %s is %s; float32, float16 and bfloat16 are supported", f->folder,
                    t->name, st_dtype_name(t->dtype));
    if (t->n_dims == n_dims && t->shape[0] == rows && (n_dims == 1 || t->shape[1] == columns))
        return OK;
    return fail(ERR_FORMAT, "%s: tensor %s has the shape %s, and config.json asks for %s",
                f->folder, t->name, tensor_shape_text(got, t->n_dims, t->shape),
                tensor_shape_text(want, n_dims, (int64_t[]){rows, columns}));
}

/* One such weight would make every state NaN. */
static status check_finite(const encoder_files *f, const st_tensor *t) {
    int64_t at = st_first_not_finite(t);
    if (at < 0) return OK;
    int64_t width = t->n_dims == 2 ? t->shape[1] : 1;
    return fail(ERR_NUMERIC,
                "%s: row %lld of tensor %s holds a number that is not finite; save the model again",
                f->folder, (long long)(at / width), t->name);
}

/* Whether a name, without the prefix, is of the encoder itself. */
static bool is_part(const char *name) {
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (begins_with(name, PARTS[i])) return true;
    return false;
}

status encoder_files_get(encoder_files *f, const char *name, int64_t rows, int64_t columns,
                         const st_tensor **out) {
    entry *e = find(f, name);
    if (e == NULL) e = find_exact(f, name);
    if (e == NULL && !is_part(name))
        return fail(ERR_FORMAT, "%s: the head's tensor %s is missing; --head hidden needs no head",
                    f->folder, name);
    if (e == NULL)
        return fail(ERR_FORMAT, "%s: tensor %s%s is missing: this is not a whole %s model",
                    f->folder, f->prefix, name, encoder_family_name(f->family));
    e->is_used = true;
    *out = e->tensor;
    TRY(check_tensor(f, e->tensor, rows, columns));
    return check_finite(f, e->tensor);
}

status encoder_files_get_norm(encoder_files *f, const char *name, const char *part, int64_t rows,
                              const st_tensor **out) {
    char whole[NAME_BYTES], old[NAME_BYTES];
    snprintf(whole, sizeof whole, "%s.%s", name, part);
    snprintf(old, sizeof old, "%s.%s", name, strcmp(part, "weight") == 0 ? "gamma" : "beta");
    bool is_old = !encoder_files_has(f, whole) && encoder_files_has(f, old);
    return encoder_files_get(f, is_old ? old : whole, rows, 0, out);
}

static bool is_of_encoder(const encoder_files *f, const char *name) {
    return begins_with(name, f->prefix) && is_part(name + strlen(f->prefix));
}

static bool is_buffer(const encoder_files *f, const char *name) {
    if (!begins_with(name, f->prefix)) return false;
    for (size_t i = 0; i < sizeof BUFFERS / sizeof *BUFFERS; i++)
        if (strcmp(name + strlen(f->prefix), BUFFERS[i]) == 0) return true;
    return false;
}

status encoder_files_finish(const encoder_files *f, bool has_head) {
    char names[MAX_NAMED * 64] = "";
    size_t n = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const entry *e = &f->tensor[i];
        if (e->is_used || is_buffer(f, e->name)) continue;
        if (is_of_encoder(f, e->name))
            return fail(ERR_UNSUPPORTED,
                        "%s: tensor %s is not part of the %s model that config.json describes, and "
                        "would change its result",
                        f->folder, e->name, encoder_family_name(f->family));
        size_t at = strlen(names);
        if (n++ < MAX_NAMED)
            snprintf(names + at, sizeof names - at, "%s%.60s", n > 1 ? ", " : "", e->name);
    }
    if (n > 0 && !has_head)
        log_info("%s: %zu tensor%s of heads left out (%s%s)", f->folder, n, n == 1 ? "" : "s",
                 names, n > MAX_NAMED ? ", ..." : "");
    return OK;
}
