#include "train/files/import.h"

#include <dirent.h>

#include "base/map.h"
#include "embed/snapshot.h"
#include "model/export_file.h"
#include "nn/dynamic.h"
#include "nn/input.h"
#include "train/files/checkpoint.h"

enum { NAME_BYTES = TORCH_NAME_BYTES, PATH_BYTES = 4096, MAX_DEPTH = 8, ACTIONS = -2 };

typedef struct import_job {
    session *s;
    const st_file *file;
    const char *prefix, *folder;
    import_meta_report *meta;
    import_nvidia_report *nvidia;
} import_job;

/* The tensor `name` under the prefix; NULL: it is not there. */
static const st_tensor *find_tensor(const import_job *j, const char *name) {
    char whole[NAME_BYTES];
    if (snprintf(whole, sizeof whole, "%s%s", j->prefix, name) >= (int)sizeof whole) return NULL;
    return st_find(j->file, whole);
}

/* Finds where the state_dict is by one of its tensors: train.py and others keep it under a name,
 * and DDP adds "module.". */
static bool find_prefix(import_job *j, const char *name) {
    static const char *const prefixes[] = {"model_state_dict.module.",
                                           "model_state_dict.",
                                           "state_dict.module.",
                                           "state_dict.",
                                           "module.",
                                           ""};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        j->prefix = prefixes[i];
        if (find_tensor(j, name) != NULL) return true;
    }
    return false;
}

static status check_finite(const import_job *j, const char *name, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return fail(ERR_NUMERIC, "%s: '%s' holds numbers that are not finite", j->file->path,
                        name);
    return OK;
}

static status wrong_shape(const import_job *j, const st_tensor *t, const param *p) {
    return checkpoint_fail_shape(ERR_CONFIG, j->file, t, p, "the config makes it",
                                 "give the config that the checkpoint was trained with");
}

/* The values of a parameter, (p->n) of them, to `host`. */
typedef status (*read_fn)(import_job *j, const st_tensor *t, const param *p, float *host);

static status read_whole(import_job *j, const st_tensor *t, const param *p, float *host) {
    if (!checkpoint_has_shape(t, p, 0)) return wrong_shape(j, t, p);
    return torch_read_floats(j->file, t, 0, p->n_dims > 0 ? p->shape[0] : 1, host);
}

/* Sets a parameter to what `read` gives, if all of it is finite. */
static status set_param(import_job *j, const param *p, read_fn read) {
    backend *be = j->s->be;
    const st_tensor *t = find_tensor(j, p->name);
    float *host;
    if (t == NULL)
        return fail(ERR_CONFIG,
                    "%s: has no '%s'; give the config that the checkpoint was trained with",
                    j->file->path, p->name);
    TRY(MEM_NEW_RAW(&host, (size_t)p->n));
    status st = read(j, t, p, host);
    if (st == OK) st = check_finite(j, p->name, host, p->n);
    if (st == OK) st = be->ops->copy_in(be, p->value, host, (size_t)p->n * sizeof *host);
    mem_free(host);
    return st;
}

/* Parameters that the config does not make, such as those of a third layer, mean another model:
 * ERR_CONFIG.  `is_other`: a name, without its prefix, that is no parameter. */
static status check_unused(const import_job *j, bool (*is_other)(const char *name)) {
    size_t n = strlen(j->prefix);
    for (size_t i = 0; i < j->file->n_tensors; i++) {
        const char *name = j->file->tensors[i].name;
        if (strncmp(name, j->prefix, n) != 0) continue;
        name += n;
        bool is_known = is_other(name);
        for (int k = 0; k < j->s->n_params && !is_known; k++)
            is_known = strcmp(name, j->s->params[k].name) == 0;
        if (!is_known)
            return fail(ERR_CONFIG,
                        "%s: has '%s', which this config does not make; give the config that the "
                        "checkpoint was trained with",
                        j->file->path, name);
    }
    return OK;
}

/* Rows of the item table: all that the data's ids need, in Meta's order there, in ours here. */
static status read_items(import_job *j, const st_tensor *t, const param *p, float *host) {
    const seq_file *data = j->s->data;
    int64_t n_rows = 0, dim = p->shape[1];
    if (!checkpoint_has_shape(t, p, 1)) return wrong_shape(j, t, p);
    TRY(meta_count_rows(data, &n_rows));
    if (t->shape[0] < n_rows || (data->has_text_items && t->shape[0] != n_rows))
        return fail(ERR_CONFIG,
                    "%s: its item table has %" PRId64 " rows and the data %s need %" PRId64
                    " (the row of an item is its id); give the data it was trained on",
                    j->file->path, t->shape[0], data->path, n_rows);
    for (int64_t i = 0; i < p->shape[0]; i++)
        TRY(torch_read_floats(j->file, t, meta_row(data, (uint32_t)i), 1, host + i * dim));
    j->meta->n_rows = t->shape[0] - 1;
    j->meta->n_dropped = t->shape[0] - p->shape[0];
    return OK;
}

static bool is_no_meta_param(const char *name) {
    return strcmp(name, META_MASK) == 0;
}

status import_meta(session *s, const st_file *f, import_meta_report *out) {
    import_job j = {.s = s, .file = f, .meta = out};
    *out = (import_meta_report){.epoch = -1};
    if (s->config->model == MODEL_HSTU || s->config->model == MODEL_ESASREC)
        return fail(ERR_CONFIG, "the config is not of Meta's research models (train_fn.main_module "
                                "= 'HSTU', 'SASRec' or 'FuXi')");
    if (!find_prefix(&j, META_ITEMS))
        return fail(ERR_CONFIG,
                    "%s: has no '%s', so it is no checkpoint of Meta's research models; 'hstu "
                    "info' lists what it has",
                    f->path, META_ITEMS);
    (void)torch_find_int(f, "epoch", &out->epoch);
    for (int i = 0; i < s->n_params; i++) {
        bool is_items = &s->params[i] == model_rows(s->model, ITEM_FEATURE);
        TRY(set_param(&j, &s->params[i], is_items ? read_items : read_whole));
    }
    return check_unused(&j, is_no_meta_param);
}

/* One table being read: where its rows go, and which id is which number. */
typedef struct table_job {
    import_job *j;
    int32_t feature;  /* ITEM_FEATURE, ACTIONS, or a contextual feature */
    const char *name; /* of the table there */
    map known;        /* ids of a contextual feature, */
    uint32_t *number; /* (known.n) and the numbers that they have in our data */
    const param *p;   /* a static table of ours, */
    float *host;      /* (p->n) its values, */
    uint8_t *is_set;  /* (rows) which of them are there; */
    dynamic_table *t; /* or a dynamic one */
    uint64_t *keys;   /* (room) rows of a piece that are known */
    float *rows;
    int64_t room;
} table_job;

status import_nvidia_open(st_file **out, const char *path) {
    char folder[PATH_BYTES], file[PATH_BYTES];
    *out = NULL;
    if (!folder_exists(path)) return torch_open(out, path);
    TRY(path_join(folder, sizeof folder, path, "torch_module"));
    TRY(path_join(file, sizeof file, folder, "model.0.pth"));
    if (!file_exists(file))
        return fail(ERR_IO,
                    "%s: no torch_module/model.0.pth in it, so it is no checkpoint of NVIDIA's "
                    "recsys-examples",
                    path);
    return torch_open(out, file);
}

/* The folder under `root` that has a dump of the table, at any depth; "" where there is none. */
static status find_dump(const char *root, const char *table, int depth, char out[PATH_BYTES]) {
    char begin[NAME_BYTES], path[PATH_BYTES];
    out[0] = '\0';
    int n = snprintf(begin, sizeof begin, "%s_emb_keys.rank_0.world_size_", table);
    if (n < 0 || (size_t)n >= sizeof begin) return fail(ERR_CONFIG, "a table's name is too long");
    DIR *dir = opendir(root);
    if (dir == NULL) return OK;
    status st = OK;
    for (struct dirent *e = readdir(dir); e != NULL && st == OK && out[0] == '\0';
         e = readdir(dir)) {
        if (e->d_name[0] == '.') continue;
        if (strncmp(e->d_name, begin, (size_t)n) == 0) {
            snprintf(out, PATH_BYTES, "%s", root);
        } else if (depth < MAX_DEPTH) {
            st = path_join(path, sizeof path, root, e->d_name);
            if (st == OK && folder_exists(path)) st = find_dump(path, table, depth + 1, out);
        }
    }
    closedir(dir);
    return st;
}

/* What the config calls the table of a feature; else its first feature's own name. */
static bool names_feature(const import_job *j, const char *name, int32_t feature) {
    static const char *const items[] = {"movie_id", "video_id", "item"};
    static const char *const actions[] = {"rating", "action_weights", "action"};
    if (feature >= 0) return strcmp(name, j->s->context_names[feature]) == 0;
    const char *const *names = feature == ITEM_FEATURE ? items : actions;
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static const char *table_name(const import_job *j, int32_t feature) {
    const config_embeddings *e = &j->s->config->embeddings;
    for (size_t i = 0; i < e->n; i++)
        for (size_t k = 0; k < e->item[i].feature_names.n; k++)
            if (names_feature(j, e->item[i].feature_names.item[k], feature))
                return e->item[i].table_name;
    return feature == ITEM_FEATURE ? "item"
           : feature == ACTIONS    ? "action"
                                   : j->s->context_names[feature];
}

/* Values of contextual features are numbers there; ours have texts, which must be such numbers. */
static status know_values(table_job *w) {
    const context_feature *f = &w->j->s->data->context[w->feature];
    uint32_t k;
    TRY(MEM_NEW(&w->number, (size_t)f->values.n));
    for (uint64_t i = 1; i < f->values.n; i++) {
        char text[32], *end;
        uint64_t n = f->values.offsets[i + 1] - f->values.offsets[i];
        if (n == 0 || n >= sizeof text) n = 0;
        memcpy(text, f->values.bytes + f->values.offsets[i], (size_t)n);
        text[n] = '\0';
        errno = 0;
        uint64_t id = strtoull(text, &end, 10);
        if (n == 0 || *end != '\0' || errno != 0 || text[0] < '0' || text[0] > '9')
            return fail(ERR_CONFIG,
                        "the values of the contextual feature '%s' are texts, and NVIDIA's are "
                        "numbers; prepare its processed_seqs.csv with 'hstu prep processed-seqs'",
                        f->name);
        TRY(map_put(&w->known, id, &k));
        w->number[k] = (uint32_t)i;
    }
    return OK;
}

/* The number of an id in our data; 0: there is none (padding, or an unknown value, has 0 too). */
static bool find_number(const table_job *w, uint64_t id, uint32_t *out) {
    if (w->feature == ACTIONS) {
        *out = (uint32_t)id;
        return id < (uint64_t)w->p->shape[0];
    }
    if (w->feature == ITEM_FEATURE) {
        char text[32];
        snprintf(text, sizeof text, "%" PRId64, (int64_t)id);
        *out = seq_find_item(w->j->s->data, text);
        return *out != 0;
    }
    uint32_t at = map_find(&w->known, id);
    *out = at != MAP_NONE ? w->number[at] : 0; /* "unknown" has the id 0, unless a value has it */
    return at != MAP_NONE || id == 0;
}

static status take_rows(void *ctx, const embed_rows *r) {
    table_job *w = ctx;
    int32_t dim = w->p != NULL ? (int32_t)w->p->shape[1] : w->t->dim;
    int64_t n = 0, n_rejected = 0;
    uint32_t number = 0;
    if (r->n_floats != dim)
        return fail(ERR_CONFIG,
                    "the table '%s' there has rows of %d, but the config makes them %d; give the "
                    "config that the checkpoint was trained with",
                    w->name, r->n_floats, dim);
    TRY(check_finite(w->j, w->name, r->rows, r->n * dim));
    if (w->t != NULL && r->n > w->room) {
        MEM_FREE(w->keys, w->rows);
        w->keys = NULL;
        w->rows = NULL;
        TRY(MEM_NEW(&w->keys, (size_t)r->n));
        TRY(MEM_NEW(&w->rows, (size_t)r->n * (size_t)dim));
        w->room = r->n;
    }
    for (int64_t i = 0; i < r->n; i++) {
        if (!find_number(w, r->keys[i], &number)) continue;
        float *to = w->t != NULL ? w->rows + n * dim : w->host + (int64_t)number * dim;
        memcpy(to, r->rows + i * dim, (size_t)dim * sizeof(float));
        if (w->t != NULL)
            w->keys[n] = w->t->key_tag | number;
        else
            w->is_set[number] = 1;
        n++;
    }
    w->j->nvidia->n_rows += r->n;
    if (w->t != NULL && n > 0) TRY(embed_insert(w->t->table, n, w->keys, w->rows, &n_rejected));
    w->j->nvidia->n_dropped += r->n - n + n_rejected;
    return OK;
}

/* A table that is a tensor there: the row of an id is its number. */
static status take_tensor(table_job *w, const st_tensor *t) {
    enum { PIECE = 1024 };
    uint64_t keys[PIECE];
    float *rows;
    if (t->n_dims != 2 || t->shape[1] < 1 || t->shape[1] > 65536)
        return fail(ERR_CONFIG, "%s: '%s' is not a table", w->j->file->path, t->name);
    TRY(MEM_NEW_RAW(&rows, (size_t)PIECE * (size_t)t->shape[1]));
    status st = OK;
    for (int64_t first = 0; first < t->shape[0] && st == OK; first += PIECE) {
        int64_t n = t->shape[0] - first < PIECE ? t->shape[0] - first : PIECE;
        for (int64_t i = 0; i < n; i++)
            keys[i] = (uint64_t)(first + i);
        embed_rows piece = {n, keys, NULL, NULL, rows, (int32_t)t->shape[1]};
        st = torch_read_floats(w->j->file, t, first, n, rows);
        if (st == OK) st = take_rows(w, &piece);
    }
    mem_free(rows);
    return st;
}

static const st_tensor *find_table(const import_job *j, const char *table) {
    static const char *const places[] = {
        "_embedding_collection._data_parallel_embedding_collection.embeddings.",
        "_embedding_collection._model_parallel_embedding_collection.embeddings.",
        "_embedding_collection.embeddings."};
    char name[NAME_BYTES];
    const st_tensor *t = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places && t == NULL; i++)
        if (snprintf(name, sizeof name, "%s%s.weight", places[i], table) < (int)sizeof name)
            t = find_tensor(j, name);
    return t;
}

static status take_table(table_job *w) {
    char root[PATH_BYTES], dump[PATH_BYTES];
    const st_tensor *t = find_table(w->j, w->name);
    if (w->feature >= 0) TRY(know_values(w));
    TRY(path_join(root, sizeof root, w->j->folder, "dynamicemb_module"));
    TRY(find_dump(root, w->name, 0, dump));
    if (dump[0] != '\0') return embed_dump_each(dump, w->name, take_rows, w);
    if (t != NULL) return take_tensor(w, t);
    return fail(
        ERR_CONFIG,
        "%s: no %s_emb_keys of the table '%s' under dynamicemb_module, nor a tensor of it in "
        "model.0.pth",
        w->j->folder, w->name, w->name);
}

static status set_static(import_job *j, const param *p, int32_t feature) {
    table_job w = {.j = j, .feature = feature, .name = table_name(j, feature), .p = p};
    backend *be = j->s->be;
    status st = MEM_NEW(&w.host, (size_t)p->n);
    if (st == OK) st = MEM_NEW(&w.is_set, (size_t)p->shape[0]);
    if (st == OK) st = take_table(&w);
    for (int64_t i = feature == ACTIONS ? 0 : 1; st == OK && i < p->shape[0]; i++)
        j->nvidia->n_missing += !w.is_set[i];
    if (st == OK) st = be->ops->copy_in(be, p->value, w.host, (size_t)p->n * sizeof *w.host);
    MEM_FREE(w.host, w.is_set);
    map_fini(&w.known);
    mem_free(w.number);
    return st;
}

static status set_dynamic(import_job *j, dynamic_table *t) {
    table_job w = {.j = j, .feature = t->feature, .name = table_name(j, t->feature), .t = t};
    status st = take_table(&w);
    MEM_FREE(w.keys, w.rows);
    map_fini(&w.known);
    mem_free(w.number);
    return st;
}

/* The feature of a static table's parameter; false: it is dense. */
static bool find_feature(const import_job *j, const param *p, int32_t *out) {
    *out = ITEM_FEATURE;
    if (p == model_rows(j->s->model, ITEM_FEATURE)) return true;
    *out = ACTIONS;
    if (p == model_action_rows(j->s->model)) return true;
    for (*out = 0; *out < j->s->data->n_context; ++*out)
        if (p == model_rows(j->s->model, *out)) return true;
    return false;
}

/* Tables have their own keys; "_hstu_block." and "_mlp." are what the model has besides. */
static bool is_no_nvidia_param(const char *name) {
    return strncmp(name, "_hstu_block.", 12) != 0 && strncmp(name, "_mlp.", 5) != 0;
}

static status check_layer(import_job *j) {
    static const char first[] = "_hstu_block._attention_layers.0._linear_uvqk_weight";
    static const char native[] = "_hstu_block._attention_layers.0._linear_uvqk.weight";
    if (find_prefix(j, native))
        return fail(ERR_UNSUPPORTED,
                    "%s: is of NVIDIA's native layer (or of tensor parallelism), which orders its "
                    "weights by head; checkpoints of its fused layer can be imported",
                    j->file->path);
    if (find_prefix(j, first)) return OK;
    return fail(ERR_CONFIG,
                "%s: has no '%s', so it is no checkpoint of NVIDIA's recsys-examples; 'hstu info' "
                "lists what it has",
                j->file->path, first);
}

status import_nvidia(session *s, const st_file *f, const char *folder, import_nvidia_report *out) {
    import_job j = {.s = s, .file = f, .folder = folder, .nvidia = out};
    dynamic_tables *tables = model_tables(s->model);
    int32_t feature;
    *out = (import_nvidia_report){0};
    if (s->config->model != MODEL_HSTU)
        return fail(ERR_CONFIG,
                    "the config is not of NVIDIA's models; 'hstu import meta' takes those "
                    "of Meta's");
    TRY(check_layer(&j));
    for (int i = 0; i < s->n_params; i++)
        TRY(find_feature(&j, &s->params[i], &feature) ? set_static(&j, &s->params[i], feature)
                                                      : set_param(&j, &s->params[i], read_whole));
    for (int i = 0; tables != NULL && i < tables->n; i++)
        TRY(set_dynamic(&j, &tables->item[i]));
    return check_unused(&j, is_no_nvidia_param);
}
