#include "train/files/import_nvidia.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "embed/snapshot.h"
#include "nn/dynamic.h"
#include "nn/input.h"
#include "train/files/import_params.h"

enum { NAME_BYTES = TORCH_NAME_BYTES, PATH_BYTES = 4096, MAX_DEPTH = 8, ACTIONS = -2 };

static const char *const prefixes[] = {"model_state_dict.", "model_state_dict.module.", "module.",
                                       ""};

/* An id and the number that it has in our data. */
typedef struct known_id {
    uint64_t id;
    uint32_t number;
} known_id;

typedef struct import_job {
    session *s;
    const torch_file *file;
    const char *prefix, *folder;
    import_nvidia_report *report;
} import_job;

/* One table being read: where its rows go, and which id is which number. */
typedef struct table_job {
    import_job *j;
    int32_t feature;  /* ITEM_FEATURE, ACTIONS, or a contextual feature */
    const char *name; /* of the table there */
    known_id *known;  /* (n_known) by id; NULL for items: the data finds them */
    size_t n_known;
    const param *p;   /* a static table of ours, */
    float *host;      /* (p->n) its values, */
    uint8_t *is_set;  /* (rows) which of them are there; */
    dynamic_table *t; /* or a dynamic one */
    uint64_t *keys;   /* (room) rows of a piece that are known */
    float *rows;
    int64_t room;
} table_job;

status import_nvidia_open(torch_file **out, const char *path) {
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

static status find_prefix(import_job *j) {
    static const char first[] = "_hstu_block._attention_layers.0._linear_uvqk_weight";
    static const char native[] = "_hstu_block._attention_layers.0._linear_uvqk.weight";
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (import_find(j->file, prefixes[i], native) != NULL)
            return fail(ERR_UNSUPPORTED,
                        "%s: is of NVIDIA's native layer (or of tensor parallelism), which orders "
                        "its weights by head; checkpoints of its fused layer can be imported",
                        torch_path(j->file));
        if (import_find(j->file, prefixes[i], first) == NULL) continue;
        j->prefix = prefixes[i];
        return OK;
    }
    return fail(ERR_CONFIG,
                "%s: has no '%s', so it is no checkpoint of NVIDIA's recsys-examples; 'hstu info' "
                "lists what it has",
                torch_path(j->file), first);
}

static status read_dense(void *ctx, const param *p, float *host) {
    const import_job *j = ctx;
    const torch_tensor *t = import_find(j->file, j->prefix, p->name);
    bool is_same = t != NULL && t->n_dims == p->n_dims;
    for (int d = 0; is_same && d < p->n_dims; d++)
        is_same = t->shape[d] == p->shape[d];
    if (!is_same)
        return fail(ERR_CONFIG,
                    "%s: %s '%s'%s; give the config that the checkpoint was trained with",
                    torch_path(j->file), t == NULL ? "has no" : "has", p->name,
                    t == NULL ? "" : " of another shape");
    return torch_read_floats(j->file, t, 0, p->n_dims > 0 ? p->shape[0] : 1, host);
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

static int by_id(const void *a, const void *b) {
    uint64_t x = ((const known_id *)a)->id, y = ((const known_id *)b)->id;
    return x < y ? -1 : x > y;
}

/* Values of contextual features are numbers there; ours have texts, which must be such numbers. */
static status know_values(table_job *w) {
    const context_feature *f = &w->j->s->data->context[w->feature];
    TRY(MEM_NEW(&w->known, (size_t)f->values.n));
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
        w->known[w->n_known++] = (known_id){id, (uint32_t)i};
    }
    qsort(w->known, w->n_known, sizeof *w->known, by_id);
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
    known_id want = {id, 0}, *at;
    if (id == 0 && (w->n_known == 0 || w->known[0].id != 0)) { /* "unknown" has the number 0 */
        *out = 0;
        return true;
    }
    at = bsearch(&want, w->known, w->n_known, sizeof want, by_id);
    if (at != NULL) *out = at->number;
    return at != NULL;
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
    TRY(import_check_finite(w->j->file, w->name, r->rows, r->n * dim));
    if (w->t != NULL && r->n > w->room) {
        mem_free(w->keys);
        mem_free(w->rows);
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
    w->j->report->n_rows += r->n;
    if (w->t != NULL && n > 0) TRY(embed_insert(w->t->table, n, w->keys, w->rows, &n_rejected));
    w->j->report->n_dropped += r->n - n + n_rejected;
    return OK;
}

/* A table that is a tensor there: the row of an id is its number. */
static status take_tensor(table_job *w, const torch_tensor *t) {
    enum { PIECE = 1024 };
    uint64_t keys[PIECE];
    float *rows;
    if (t->n_dims != 2 || t->shape[1] < 1 || t->shape[1] > 65536)
        return fail(ERR_CONFIG, "%s: '%s' is not a table", torch_path(w->j->file), t->name);
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

static const torch_tensor *find_tensor(const import_job *j, const char *table) {
    static const char *const places[] = {
        "_embedding_collection._data_parallel_embedding_collection.embeddings.",
        "_embedding_collection._model_parallel_embedding_collection.embeddings.",
        "_embedding_collection.embeddings."};
    char name[NAME_BYTES];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (snprintf(name, sizeof name, "%s%s.weight", places[i], table) >= (int)sizeof name)
            continue;
        const torch_tensor *t = import_find(j->file, j->prefix, name);
        if (t != NULL) return t;
    }
    return NULL;
}

static status take_table(table_job *w) {
    char root[PATH_BYTES], dump[PATH_BYTES];
    const torch_tensor *t = find_tensor(w->j, w->name);
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
        j->report->n_missing += !w.is_set[i];
    if (st == OK) st = be->ops->copy_in(be, p->value, w.host, (size_t)p->n * sizeof *w.host);
    mem_free(w.host);
    mem_free(w.is_set);
    mem_free(w.known);
    return st;
}

static status set_dynamic(import_job *j, dynamic_table *t) {
    table_job w = {.j = j, .feature = t->feature, .name = table_name(j, t->feature), .t = t};
    status st = take_table(&w);
    mem_free(w.keys);
    mem_free(w.rows);
    mem_free(w.known);
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
static bool is_other(const char *name) {
    return strncmp(name, "_hstu_block.", 12) != 0 && strncmp(name, "_mlp.", 5) != 0;
}

status import_nvidia(session *s, const torch_file *f, const char *folder,
                     import_nvidia_report *out) {
    import_job j = {.s = s, .file = f, .folder = folder, .report = out};
    dynamic_tables *tables = model_tables(s->model);
    int32_t feature;
    *out = (import_nvidia_report){0};
    if (s->config->model != MODEL_HSTU)
        return fail(ERR_CONFIG,
                    "the config is not of NVIDIA's models; 'hstu import meta' takes those "
                    "of Meta's");
    TRY(find_prefix(&j));
    for (int i = 0; i < s->n_params; i++)
        TRY(find_feature(&j, &s->params[i], &feature)
                ? set_static(&j, &s->params[i], feature)
                : import_set(s, f, &s->params[i], read_dense, &j));
    for (int i = 0; tables != NULL && i < tables->n; i++)
        TRY(set_dynamic(&j, &tables->item[i]));
    return import_check_unused(s, f, j.prefix, is_other);
}
