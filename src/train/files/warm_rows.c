/* Rows and other values of another run's checkpoint, with the state of its optimizer. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "embed/snapshot.h"
#include "nn/params.h"
#include "train/files/warm_start_int.h"

enum { NAME_BYTES = PARAM_NAME_BYTES + 8, SHAPE_BYTES = 128, MAX_TABLES = 256 };

static void shape_text(char *text, size_t n, int n_dims, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, n, "(");
    for (int d = 0; d < n_dims && used < n; d++)
        used += (size_t)snprintf(text + used, n - used, "%s%" PRId64, d > 0 ? ", " : "", shape[d]);
    if (used < n) snprintf(text + used, n - used, ")");
}

static status refuse_shape(const st_file *f, const st_tensor *t, const param *p) {
    char there[SHAPE_BYTES], here[SHAPE_BYTES];
    shape_text(there, sizeof there, t->n_dims, t->shape);
    int64_t shape[4];
    param_whole_shape(p, shape);
    shape_text(here, sizeof here, p->n_dims, shape);
    return fail(ERR_CONFIG,
                "%s: '%s' has the shape %s, but the model of this config %s; only tables may "
                "grow: use the config of that run, or train without --init-from",
                st_path(f), t->name, there, here);
}

static status find_tensor(const st_file *f, const char *name, const char *suffix,
                          const st_tensor **out) {
    char whole[NAME_BYTES];
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    if (st_find(f, whole) == NULL)
        return fail(ERR_CONFIG,
                    "%s: has no '%s', which the model of this config has; use the config of that "
                    "run, or train without --init-from",
                    st_path(f), whole);
    return st_get(f, whole, ST_F32, out);
}

/* The tensor of a table there: rows of the same width, as many as its vocabulary says. */
static status find_rows(const st_file *f, const row_source *rows, const char *suffix,
                        const param *p, const st_tensor **out) {
    TRY(find_tensor(f, rows->name, suffix, out));
    const st_tensor *t = *out;
    bool fits = t->n_dims == p->n_dims && t->shape[0] == rows->n_there;
    for (int d = 1; d < p->n_dims && fits; d++)
        fits = t->shape[d] == p->shape[d];
    return fits ? OK : refuse_shape(f, t, p);
}

static int64_t row_there(const row_source *rows, int64_t i) {
    if (i == 0) return 0;
    if (rows->from == NULL) return i < rows->n_there ? i : -1;
    return rows->from[i] > 0 && rows->from[i] < rows->n_there ? (int64_t)rows->from[i] : -1;
}

/* Overwrites the rows that there are, of values or of moments. */
static status copy_rows(const warm_job *j, const param *p, const row_source *rows,
                        const st_tensor *t, float *device) {
    backend *be = j->c->be;
    float *host;
    size_t width = (size_t)(p->n / p->shape[0]), bytes = (size_t)p->n * sizeof *host;
    TRY(MEM_NEW_RAW(&host, (size_t)p->n));
    status st = be->ops->copy_out(be, host, device, bytes);
    for (int64_t i = 0; i < p->shape[0] && st == OK; i++) {
        int64_t k = row_there(rows, i);
        if (k >= 0)
            memcpy(host + (size_t)i * width, (const char *)t->data + (size_t)k * width * 4,
                   width * 4);
    }
    if (st == OK) st = be->ops->copy_in(be, device, host, bytes);
    mem_free(host);
    return st;
}

static status copy_row_state(warm_job *j, int index, const row_source *rows) {
    const param p = optimizer_state_shape(j->c->optimizer, &j->c->params[index]);
    const moments *state = &j->c->optimizer->state[index];
    const st_tensor *t;
    if (state->m != NULL) {
        TRY(find_rows(j->moments, rows, ".m", &p, &t));
        TRY(copy_rows(j, &p, rows, t, state->m));
    }
    if (state->v == NULL) return OK;
    TRY(find_rows(j->moments, rows, ".v", &p, &t));
    return copy_rows(j, &p, rows, t, state->v);
}

/* Row 0 of items and contextual values stands for "none"; row 0 of actions is one. */
static void count_rows(const param *p, const row_source *rows, warm_table *count) {
    bool has_none = rows->from != NULL || rows->name[0] == '\0';
    int64_t first = has_none ? 1 : 0;
    if (rows->name[0] == '\0') {
        count->n_new = p->shape[0] - first;
        return;
    }
    for (int64_t i = first; i < p->shape[0]; i++) {
        bool is_kept = row_there(rows, i) >= 0;
        count->n_kept += is_kept;
        count->n_new += !is_kept;
    }
    count->n_dropped = rows->n_there - first - count->n_kept;
}

status warm_copy_rows(warm_job *j, int index, const row_source *rows, warm_table *count) {
    const param *p = &j->c->params[index];
    const st_tensor *t;
    count_rows(p, rows, count);
    if (rows->name[0] == '\0') return OK;
    TRY(find_rows(j->values, rows, "", p, &t));
    TRY(copy_rows(j, p, rows, t, p->value));
    return j->moments != NULL ? copy_row_state(j, index, rows) : OK;
}

static status copy_tensor(const warm_job *j, const st_file *f, const param *p, const char *suffix,
                          float *to) {
    const st_tensor *t;
    TRY(find_tensor(f, p->name, suffix, &t));
    bool fits = t->n_dims == p->n_dims;
    int64_t shape[4];
    param_whole_shape(p, shape);
    for (int d = 0; d < p->n_dims && fits; d++)
        fits = t->shape[d] == shape[d];
    if (!fits) return refuse_shape(f, t, p);
    return param_cut_take(p, j->c->be, t->data, to);
}

status warm_copy_whole(warm_job *j, int index) {
    const param *p = &j->c->params[index];
    const param shape = optimizer_state_shape(j->c->optimizer, p);
    const moments *state = &j->c->optimizer->state[index];
    TRY(copy_tensor(j, j->values, p, "", p->value));
    if (j->moments == NULL) return OK;
    if (state->m != NULL) TRY(copy_tensor(j, j->moments, &shape, ".m", state->m));
    return state->v != NULL ? copy_tensor(j, j->moments, &shape, ".v", state->v) : OK;
}

/* Adam keeps m and v, AdaGrad m, SGD nothing: another optimizer shows in the number of tensors of
 * a parameter that both have, or in the row mode. */
bool warm_state_fits(const warm_job *j, const st_file *file) {
    const optimizer *o = j->c->optimizer;
    const char *rows = st_metadata(file, "rows");
    if (rows == NULL || strcmp(rows, row_mode_name(o->rows)) != 0) return false;
    for (int i = 0; i < o->n_params; i++) {
        char name[NAME_BYTES];
        if (o->params[i].is_table) continue;
        snprintf(name, sizeof name, "%s.m", o->params[i].name);
        bool has_m = st_find(file, name) != NULL;
        snprintf(name, sizeof name, "%s.v", o->params[i].name);
        bool has_v = st_find(file, name) != NULL;
        if (has_m != (o->state[i].m != NULL) || has_v != (o->state[i].v != NULL)) return false;
    }
    return true;
}

/* The keys of a dynamic table, there and here. */
typedef struct renaming {
    const warm_job *j;
    const dynamic_table *table;
    bool has_tags_there;
} renaming;

/* The feature of a key there: ITEM_FEATURE or a feature of the vocabulary. */
static bool feature_there(const renaming *r, uint64_t key, int32_t *out) {
    const dynamic_table *t = r->table;
    if (r->has_tags_there) {
        *out = (int32_t)(key >> 32) - (int32_t)INPUT_TABLE(0);
        return *out >= ITEM_FEATURE && *out < r->j->names->n_context;
    }
    if (key >> 32 != 0) return false;
    *out = ITEM_FEATURE;
    if (t->feature == ITEM_FEATURE) return true;
    for (*out = 0; *out < r->j->names->n_context; ++*out)
        if (r->j->map.feature[*out] == t->feature) return true;
    return false;
}

static const dynamic_table *feature_here(const renaming *r, int32_t there) {
    dynamic_tables *tables = r->j->c->tables;
    int32_t here = there == ITEM_FEATURE ? ITEM_FEATURE : r->j->map.feature[there];
    if (there != ITEM_FEATURE && here < 0) return NULL;
    const dynamic_table *t = dynamic_find(tables, here);
    return t != NULL && t->owner == r->table->owner ? t : NULL;
}

/* The key here of a key there; false: the data here do not have it.  Contextual value 0, "unknown",
 * has a row of its own. */
static bool rename_key(void *ctx, uint64_t *key) {
    const renaming *r = ctx;
    const seq_file *names = r->j->names;
    uint64_t number = *key & UINT32_MAX, n;
    int32_t there;
    if (!feature_there(r, *key, &there)) return false;
    const dynamic_table *t = feature_here(r, there);
    if (t == NULL) return false;
    bool is_item = there == ITEM_FEATURE;
    n = is_item ? names->n_items + 1 : names->context[there].values.n;
    if (number >= n) return false;
    uint32_t here = is_item ? r->j->item_here[number] : r->j->value_here[there][number];
    if (here == 0 && (is_item || number != 0)) return false;
    *key = here | t->key_tag;
    return true;
}

/* The folder of a table of this name; its number may be another one. */
static status find_table(const warm_job *j, const char *name, char path[CHECKPOINT_PATH_BYTES]) {
    char folder[CHECKPOINT_TABLE_BYTES];
    for (int i = 0; i < MAX_TABLES; i++) {
        checkpoint_table_folder(folder, i, name);
        TRY(path_join(path, CHECKPOINT_PATH_BYTES, j->report->folder, folder));
        if (folder_exists(path)) return OK;
    }
    return fail(ERR_CONFIG,
                "%s: has no dynamic table '%s', which this config has; use the config of that run, "
                "or train without --init-from",
                j->report->folder, name);
}

/* Whether the keys of a table there have the number of their feature: where features share it. */
static bool has_tags(const warm_job *j, const char *name) {
    for (size_t i = 0; i < j->config->embeddings.n; i++) {
        const config_embedding *e = &j->config->embeddings.item[i];
        if (e->is_dynamic && strcmp(e->table_name, name) == 0) return e->feature_names.n > 1;
    }
    return false;
}

status warm_copy_table(warm_job *j, int i, warm_table *count) {
    const dynamic_tables *tables = j->c->tables;
    dynamic_table *t = &tables->item[i];
    const char *name = t->config->table_name;
    renaming r = {.j = j, .table = t, .has_tags_there = has_tags(j, name)};
    char path[CHECKPOINT_PATH_BYTES];
    snapshot_counts rows;
    dynamic_state as_loaded;
    TRY(find_table(j, name, path));
    TRY(embed_snapshot_adopt(t->table, path, rename_key, &r, &rows));
    for (int k = 0; k < tables->n; k++)
        if (tables->item[k].owner == t)
            count->n_new += (int64_t)tables->item[k].last - tables->item[k].first + 1;
    count->n_kept = rows.n_kept;
    count->n_dropped = rows.n_left_out;
    count->n_no_place = rows.n_rejected;
    count->n_new -= rows.n_kept + rows.n_rejected;
    return dynamic_news(t, &as_loaded); /* what the log tells next begins here */
}
