#include "train/files/warm_start.h"

#include "base/map.h"
#include "embed/snapshot.h"
#include "format/safetensors.h"
#include "model/vocabulary.h"
#include "nn/params.h"

typedef struct warm_job {
    checkpoint *c;
    session *s;
    const warm_options *options;
    warm_report *report;
    uint64_t n_earlier;        /* updates before those of the other run */
    config *config;            /* of the other model */
    seq_file *names;           /* the vocabulary of its checkpoint */
    vocabulary_map map;        /* the data here in `names` */
    st_file *values, *moments; /* moments NULL: the optimizer starts again */
    uint32_t *item_here;       /* (items of `names` + 1): the numbers of its items here, or 0 */
    uint32_t *value_here[CONTEXT_MAX]; /* by feature of `names`: likewise its values */
    uint32_t *content_there; /* (rows of values of items' features here): rows there, or 0 */
} warm_job;

/* Which rows of a table come from which rows there. */
typedef struct row_source {
    const uint32_t *from; /* (rows here): rows there, 0: none; row 0 comes from row 0.  NULL: row i
                             from row i, as far as there are */
    int64_t n_there;      /* rows */
    char name[PARAM_NAME_BYTES]; /* of the tensor there; "": the table is new as a whole */
} row_source;

enum { NAME_BYTES = PARAM_NAME_BYTES + 8, MAX_TABLES = 256 };

static status refuse_shape(const st_file *f, const st_tensor *t, const param *p) {
    return checkpoint_fail_shape(ERR_CONFIG, f, t, p, "the model of this config",
                                 "only tables may grow: use the config of that run, or train "
                                 "without --init-from");
}

static status find_tensor(const st_file *f, const char *name, const char *suffix,
                          const st_tensor **out) {
    char whole[NAME_BYTES];
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    if (st_find(f, whole) == NULL)
        return fail(ERR_CONFIG,
                    "%s: has no '%s', which the model of this config has; use the config of that "
                    "run, or train without --init-from",
                    f->path, whole);
    return st_get(f, whole, ST_F32, out);
}

/* The tensor of a table there: rows of the same width, as many as its vocabulary says. */
static status find_rows(const st_file *f, const row_source *rows, const char *suffix,
                        const param *p, const st_tensor **out) {
    TRY(find_tensor(f, rows->name, suffix, out));
    bool fits = checkpoint_has_shape(*out, p, 1) && (*out)->shape[0] == rows->n_there;
    return fits ? OK : refuse_shape(f, *out, p);
}

static int64_t row_there(const row_source *rows, int64_t i) {
    if (i == 0) return rows->n_there > 0 ? 0 : -1;
    if (rows->from == NULL) return i < rows->n_there ? i : -1;
    return rows->from[i] > 0 && rows->from[i] < rows->n_there ? (int64_t)rows->from[i] : -1;
}

/* What training updates. */
static float *own_rows(const param *p) {
    return p->own != NULL ? p->own : p->value;
}

static bool is_content(const param *p) {
    return strncmp(p->name, CONTENT_PREFIX, strlen(CONTENT_PREFIX)) == 0;
}

/* Overwrites the rows that there are, of values or of moments; device NULL: there are none. */
static status copy_rows(const warm_job *j, const st_file *f, const param *p, const row_source *rows,
                        const char *suffix, float *device) {
    backend *be = j->c->be;
    const st_tensor *t;
    float *host;
    size_t width = (size_t)(p->n / p->shape[0]), bytes = (size_t)p->n * sizeof *host;
    if (device == NULL) return OK;
    TRY(find_rows(f, rows, suffix, p, &t));
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

/* Row 0 of items and contextual values stands for "none"; row 0 of actions is one. */
static status count_rows(const param *p, const row_source *rows, warm_table *count) {
    bool has_none = rows->from != NULL || rows->name[0] == '\0';
    int64_t first = has_none ? 1 : 0;
    uint8_t *is_used;
    if (rows->name[0] == '\0') {
        count->n_new = p->shape[0] - first;
        return OK;
    }
    TRY(MEM_NEW(&is_used, (size_t)rows->n_there));
    for (int64_t i = first; i < p->shape[0]; i++) {
        int64_t there = row_there(rows, i);
        count->n_kept += there >= 0;
        count->n_new += there < 0;
        if (there >= 0) is_used[there] = 1;
    }
    for (int64_t i = first; i < rows->n_there; i++)
        count->n_dropped += !is_used[i];
    mem_free(is_used);
    return OK;
}

/* Copies the rows of a static table with their state. */
static status copy_row_values(warm_job *j, int index, const row_source *rows, warm_table *count) {
    const param *p = &j->c->params[index];
    const param shape = optimizer_state_shape(j->c->optimizer, p);
    const moments *state = &j->c->optimizer->state[index];
    TRY(count_rows(p, rows, count));
    if (rows->name[0] == '\0') return OK;
    TRY(copy_rows(j, j->values, p, rows, "", p->value));
    if (p->own != NULL) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s" CONTENT_OWN, p->name);
        bool has_own = st_find(j->values, name) != NULL;
        TRY(copy_rows(j, j->values, p, rows, has_own ? CONTENT_OWN : "", p->own));
    }
    if (j->moments == NULL) return OK;
    TRY(copy_rows(j, j->moments, &shape, rows, ".m", state->m));
    return copy_rows(j, j->moments, &shape, rows, ".v", state->v);
}

static status copy_tensor(const warm_job *j, const st_file *f, const param *p, const char *suffix,
                          float *to) {
    const st_tensor *t;
    TRY(find_tensor(f, p->name, suffix, &t));
    if (!checkpoint_has_shape(t, p, 0)) return refuse_shape(f, t, p);
    return param_cut_take(p, j->c->be, t->data, to);
}

/* Copies a parameter of the same shape with its state. */
static status copy_whole(warm_job *j, int index) {
    const param *p = &j->c->params[index];
    const st_tensor *there = st_find(j->values, p->name);
    if (is_content(p) && (there == NULL || !checkpoint_has_shape(there, p, 0)))
        return OK; /* vectors of another kind: new */
    const param shape = optimizer_state_shape(j->c->optimizer, p);
    const moments *state = &j->c->optimizer->state[index];
    TRY(copy_tensor(j, j->values, p, "", p->value));
    if (j->moments == NULL) return OK;
    if (state->m != NULL) TRY(copy_tensor(j, j->moments, &shape, ".m", state->m));
    return state->v != NULL ? copy_tensor(j, j->moments, &shape, ".v", state->v) : OK;
}

/* Adam keeps m and v, AdaGrad m, SGD nothing: another optimizer shows in the number of tensors of
 * a parameter that both have, or in the row mode. */
static bool state_fits(const warm_job *j, const st_file *file) {
    const optimizer *o = j->c->optimizer;
    const char *rows = st_metadata(file, "rows");
    if (rows == NULL || strcmp(rows, row_mode_name(o->rows)) != 0) return false;
    for (int i = 0; i < o->n_params; i++) {
        char name[NAME_BYTES];
        if (o->params[i].is_table || is_content(&o->params[i])) continue;
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
static bool feature_of_key(const renaming *r, uint64_t key, int32_t *out) {
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
    if (!feature_of_key(r, *key, &there)) return false;
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

/* Copies the rows of a dynamic table: number i of the model's. */
static status copy_table(warm_job *j, int i, warm_table *count) {
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

/* First values of new items: the mean of the rows of the items next to them.
 *
 * For each training event of a new item, the events right before and after it in the same user's
 * training events count, if their items have rows: the mean is over these, an item as often as it
 * stands there.  A new item without such a neighbour keeps its first values.  Sums are in float64
 * and in the order of the data, so the result depends on nothing else. */
enum { PIECE = 4096 };

typedef struct means {
    arena memory; /* of the arrays */
    warm_job *j;
    const seq_file *data;
    dynamic_table *dynamic; /* the item table if it is dynamic, else NULL */
    param *table;           /* else this */
    size_t dim;
    float *rows;      /* (V + 1, dim): of all items */
    uint8_t *has_row; /* (V + 1): items that the other model knows, with a row */
    uint32_t *place;  /* (V + 1): number + 1 of a new item among the new ones; 0: it is none */
    uint32_t *item;   /* (n_new) */
    uint32_t n_new;
    double *sum;     /* (n_new, dim) */
    uint64_t *count; /* (n_new) */
} means;

static status list_new(means *m) {
    const uint32_t *known = m->j->map.item;
    size_t n = (size_t)m->data->n_items + 1;
    TRY(ARENA_NEW(&m->memory, &m->has_row, n));
    TRY(ARENA_NEW(&m->memory, &m->place, n));
    TRY(ARENA_NEW(&m->memory, &m->item, n));
    for (uint32_t i = 1; i < n; i++) {
        m->has_row[i] = known[i] != 0;
        if (known[i] != 0) continue;
        m->item[m->n_new++] = i;
        m->place[i] = m->n_new;
    }
    TRY(arena_alloc(&m->memory, (void **)&m->sum, (size_t)m->n_new * m->dim, sizeof *m->sum));
    return ARENA_NEW(&m->memory, &m->count, (size_t)m->n_new);
}

/* Rows of a dynamic table, a piece of the catalogue at a time. */
static status read_piece(means *m, uint32_t first, uint32_t n, float *rows, uint8_t *is_found) {
    uint64_t keys[PIECE];
    int32_t n_floats = embed_n_floats(m->dynamic->table);
    for (uint32_t i = 0; i < n; i++)
        keys[i] = (first + i) | m->dynamic->key_tag;
    TRY(embed_find(m->dynamic->table, n, keys, n_floats, rows, is_found));
    for (uint32_t i = 0; i < n; i++) {
        m->has_row[first + i] &= is_found[i];
        memcpy(m->rows + (size_t)(first + i) * m->dim, rows + (size_t)i * (size_t)n_floats,
               m->dim * sizeof *rows);
    }
    return OK;
}

/* Where ranks hold the table together, each has read its own rows: others are zeros there. */
static status share_rows(means *m) {
    comm *c = m->j->c->tables->comm;
    int64_t n = (int64_t)m->data->n_items + 1;
    if (c == NULL) return OK;
    all_reduce_args rows = {COMM_F32, COMM_SUM, n * (int64_t)m->dim, m->rows, m->rows};
    all_reduce_args flags = {COMM_U8, COMM_MAX, n, m->has_row, m->has_row};
    TRY(c->ops->all_reduce(c, &rows));
    return c->ops->all_reduce(c, &flags);
}

static status read_dynamic(means *m) {
    float *rows = NULL;
    uint8_t is_found[PIECE];
    uint32_t end = (uint32_t)m->data->n_items + 1;
    status st =
        mem_alloc((void **)&rows, PIECE * (size_t)embed_n_floats(m->dynamic->table), sizeof *rows);
    for (uint32_t first = 1; first < end && st == OK; first += PIECE)
        st = read_piece(m, first, end - first < PIECE ? end - first : PIECE, rows, is_found);
    mem_free(rows);
    return st == OK ? share_rows(m) : st;
}

static status read_rows(means *m) {
    backend *be = m->j->c->be;
    size_t n = ((size_t)m->data->n_items + 1) * m->dim;
    TRY(arena_alloc(&m->memory, (void **)&m->rows, n, sizeof *m->rows));
    if (m->dynamic != NULL) return read_dynamic(m);
    return be->ops->copy_out(be, m->rows, own_rows(m->table), n * sizeof *m->rows);
}

static void add_neighbor(means *m, uint32_t new_item, uint32_t neighbor) {
    if (!m->has_row[neighbor]) return;
    const float *row = m->rows + (size_t)neighbor * m->dim;
    double *sum = m->sum + (size_t)(m->place[new_item] - 1) * m->dim;
    for (size_t k = 0; k < m->dim; k++)
        sum[k] += (double)row[k];
    m->count[m->place[new_item] - 1]++;
}

static void add_neighbors(means *m) {
    split s = split_make(m->data, m->j->options->split, SESSION_SPLIT_SEED);
    const uint32_t *item = m->data->item;
    event_range range;
    for (uint64_t u = 0; u < m->data->n_users; u++) {
        if (!split_range(&s, PART_TRAIN, u, &range)) continue;
        for (uint64_t i = range.begin; i < range.end; i++) {
            if (m->place[item[i]] == 0) continue;
            if (i > range.begin) add_neighbor(m, item[i], item[i - 1]);
            if (i + 1 < range.end) add_neighbor(m, item[i], item[i + 1]);
        }
    }
}

static void mean_of(const means *m, uint32_t i, float *row) {
    for (size_t k = 0; k < m->dim; k++)
        row[k] = (float)(m->sum[(size_t)i * m->dim + k] / (double)m->count[i]);
}

static status write_static(means *m, warm_table *count) {
    backend *be = m->j->c->be;
    size_t n = ((size_t)m->data->n_items + 1) * m->dim;
    for (uint32_t i = 0; i < m->n_new; i++) {
        if (m->count[i] == 0) continue;
        mean_of(m, i, m->rows + (size_t)m->item[i] * m->dim);
        count->n_mean++;
    }
    return be->ops->copy_in(be, own_rows(m->table), m->rows, n * sizeof *m->rows);
}

/* Rows with the lowest score: where the table is full they find no place, and no trained row gives
 * way to them. */
static status write_dynamic(means *m, warm_table *count) {
    embed_table *t = m->dynamic->table;
    size_t n_floats = (size_t)embed_n_floats(t);
    float *row;
    dynamic_state as_loaded;
    TRY(mem_alloc((void **)&row, n_floats, sizeof *row));
    status st = OK;
    for (size_t k = m->dim; k < n_floats; k++)
        row[k] = embed_config_of(t)->first_state;
    for (uint32_t i = 0; i < m->n_new && st == OK; i++) {
        uint64_t key = m->item[i] | m->dynamic->key_tag, score = 0;
        uint32_t stamp = (uint32_t)embed_step(t);
        int64_t n_rejected;
        if (m->count[i] == 0) continue;
        mean_of(m, i, row);
        embed_rows rows = {1, &key, &score, &stamp, row, (int32_t)n_floats};
        st = embed_import(t, &rows, &n_rejected);
        count->n_mean += 1 - n_rejected;
    }
    mem_free(row);
    return st == OK ? dynamic_news(m->dynamic, &as_loaded) : st;
}

/* count: of the item table. */
static status set_means(warm_job *j, warm_table *count) {
    means m = {.j = j,
               .data = j->s->data,
               .dynamic = dynamic_find(j->c->tables, ITEM_FEATURE),
               .table = model_rows(j->s->model, ITEM_FEATURE)};
    m.dim = (size_t)(m.dynamic != NULL ? m.dynamic->dim : m.table->shape[1]);
    status st = list_new(&m);
    if (st == OK && m.n_new > 0) {
        st = read_rows(&m);
        if (st == OK) add_neighbors(&m);
        if (st == OK) st = m.dynamic != NULL ? write_dynamic(&m, count) : write_static(&m, count);
    }
    arena_fini(&m.memory);
    return st;
}

static status check_model(const warm_job *j) {
    const config *there = j->config, *here = j->s->config;
    if (there->task == here->task && there->model == here->model) return OK;
    return fail(ERR_CONFIG,
                "%s: a model '%s' for %s, but this config is of '%s' for %s; use the config of "
                "that run, or train without --init-from",
                j->report->folder, config_model_name(there->model), config_task_name(there->task),
                config_model_name(here->model), config_task_name(here->task));
}

/* Actions are known by what they mean: stars are no signals. */
static status check_actions(const warm_job *j) {
    if (j->s->config->task != TASK_RANKING || j->names->actions == j->s->data->actions) return OK;
    return fail(ERR_CONFIG,
                "%s: its model learnt from another kind of actions than those of %s; use data with "
                "the same kind, or train without --init-from",
                j->report->folder, j->s->data->path);
}

/* Weights that have seen what is held out here would make its figures too good. */
static bool saw_held_out(const split_rule *there, const split_rule *here) {
    if (here->kind == SPLIT_NONE) return false;
    return split_check_unseen(there, here, PART_TEST) != OK ||
           (here->has_validation && split_check_unseen(there, here, PART_VALIDATION) != OK);
}

/* The names that the other model knows. */
static status open_names(warm_job *j) {
    checkpoint_origin origin;
    pool *workers = j->c->be->workers;
    TRY(checkpoint_read_origin(&origin, j->report->folder));
    TRY(vocabulary_open(&j->names, j->report->folder, workers));
    j->report->step = origin.step;
    j->n_earlier = origin.n_earlier;
    j->report->saw_held_out = saw_held_out(&origin.split.rule, &j->options->split);
    TRY(check_actions(j));
    if (model_action_rows(j->s->model) != NULL) TRY(seq_check_action_names(j->names, j->s->data));
    return vocabulary_map_init(&j->map, j->names, j->s->data, workers);
}

/* here[number there] = number here. */
static status invert(uint32_t **here, uint64_t n_there, const uint32_t *there, uint64_t n_here) {
    TRY(MEM_NEW(here, (size_t)n_there + 1));
    for (uint64_t i = 1; i < n_here; i++)
        if (there[i] != 0 && there[i] <= n_there) (*here)[there[i]] = (uint32_t)i;
    return OK;
}

static status invert_maps(warm_job *j) {
    const seq_file *data = j->s->data;
    if (j->c->tables->n == 0) return OK;
    TRY(invert(&j->item_here, j->names->n_items, j->map.item, data->n_items + 1));
    for (int f = 0; f < j->names->n_context; f++) {
        if (j->map.feature[f] < 0) continue;
        TRY(invert(&j->value_here[f], j->names->context[f].values.n, j->map.context[f],
                   data->context[j->map.feature[f]].values.n));
    }
    return OK;
}

static status open_files(warm_job *j) {
    char path[CHECKPOINT_PATH_BYTES];
    st_file *file;
    TRY(path_join(path, sizeof path, j->report->folder, checkpoint_file_names[CHECKPOINT_MODEL]));
    TRY(st_open(&j->values, path));
    TRY(path_join(path, sizeof path, j->report->folder,
                  checkpoint_file_names[CHECKPOINT_OPTIMIZER]));
    TRY(st_open(&file, path));
    j->report->has_state = state_fits(j, file);
    if (j->report->has_state)
        j->moments = file;
    else
        st_close(file);
    return OK;
}

/* The feature there that is feature f here, or -1. */
static int feature_there(const warm_job *j, int32_t f) {
    for (int k = 0; k < j->names->n_context; k++)
        if (j->map.feature[k] == f) return k;
    return -1;
}

/* Contextual tables are called by number, and numbers may differ: "...context.2.weight". */
static status name_there(const param *p, int32_t here, int there, char name[PARAM_NAME_BYTES]) {
    char part[32];
    snprintf(part, sizeof part, ".%d.", here);
    const char *at = strstr(p->name, part);
    if (at == NULL) return fail(ERR_CONFIG, "'%s' has no number", p->name);
    snprintf(name, PARAM_NAME_BYTES, "%.*s.%d.%s", (int)(at - p->name), p->name, there,
             at + strlen(part));
    return OK;
}

/* The name of a number's bucket: its least number. */
static double least_of(const item_content *c, uint64_t v) {
    char text[40];
    const uint64_t *at = &c->values.offsets[v];
    size_t n = at[1] - at[0] < sizeof text ? (size_t)(at[1] - at[0]) : sizeof text - 1;
    memcpy(text, c->values.bytes + at[0], n);
    text[n] = '\0';
    return strtod(text, NULL);
}

/* The bucket in which a number lies: of those that begin at or below it the last, else the first.
 */
static uint64_t bucket_of(const item_content *c, double number) {
    uint64_t best = 0;
    for (uint64_t v = 1; v < c->values.n; v++) {
        double least = least_of(c, v), so_far = best > 0 ? least_of(c, best) : INFINITY;
        bool is_below = least <= number, was_below = so_far <= number;
        if (is_below ? !was_below || least > so_far : !was_below && least < so_far) best = v;
    }
    return best;
}

/* Buckets move with the catalogue: one without a row takes that of the bucket there in which its
 * least number lies. */
static void find_buckets(warm_job *j, const map *there) {
    const seq_file *d = j->s->data, *names = j->names;
    uint32_t *row = j->content_there;
    for (int f = 0; f < d->n_content; f++) {
        const item_content *c = &d->content[f], *old = NULL;
        for (int k = 0; k < names->n_content; k++)
            if (strcmp(names->content[k].name, c->name) == 0) old = &names->content[k];
        bool has_buckets = c->number != NULL && old != NULL && old->number != NULL;
        for (uint64_t v = 1; v < c->values.n; v++) {
            row++;
            uint64_t b = has_buckets && *row == 0 ? bucket_of(old, least_of(c, v)) : 0;
            uint32_t number = b > 0 ? map_find(there, content_value_key(old, b)) : MAP_NONE;
            if (number != MAP_NONE) *row = number;
        }
    }
}

/* Rows of items' features have keys in the file. */
static status find_content(warm_job *j, const param *p, row_source *rows) {
    const char *text = st_metadata(j->values, CONTENT_KEYS);
    int64_t n = p->shape[0];
    uint64_t *keys;
    map there = {0};
    if (text == NULL || st_find(j->values, p->name) == NULL) return OK; /* new as a whole */
    if (strlen(text) % 16 != 0 || strspn(text, "0123456789abcdef") != strlen(text))
        return fail(ERR_FORMAT, "%s: its '" CONTENT_KEYS "' is damaged; train without --init-from",
                    j->values->path);
    rows->n_there = (int64_t)strlen(text) / 16;
    memcpy(rows->name, p->name, sizeof rows->name);
    TRY(MEM_NEW(&j->content_there, (size_t)n));
    TRY(MEM_NEW(&keys, (size_t)n));
    content_value_keys(j->s->data, keys);
    status st = OK;
    for (int64_t i = 0; i < rows->n_there && st == OK; i++) {
        char digits[17] = "";
        uint32_t number;
        memcpy(digits, text + 16 * i, 16);
        st = map_put(&there, strtoull(digits, NULL, 16), &number);
        if (st == OK && number != i) st = fail(ERR_FORMAT, "%s: a key twice", j->values->path);
    }
    for (int64_t i = 1; i < n && st == OK; i++) {
        uint32_t number = map_find(&there, keys[i]);
        j->content_there[i] = number != MAP_NONE ? number : 0;
    }
    if (st == OK) find_buckets(j, &there);
    rows->from = j->content_there;
    map_fini(&there);
    mem_free(keys);
    return st;
}

/* Where the rows of a parameter come from; false: it is no table of ids. */
static status find_source(warm_job *j, const param *p, row_source *rows, const char **name,
                          bool *is_rows) {
    model *m = j->s->model;
    *is_rows = true;
    *rows = (row_source){0};
    if (p == model_rows(m, ITEM_FEATURE)) {
        *name = "item";
        rows->from = j->map.item;
        rows->n_there = (int64_t)j->names->n_items + 1;
        memcpy(rows->name, p->name, sizeof rows->name);
        return OK;
    }
    if (p == model_action_rows(m)) {
        *name = "action";
        rows->n_there = j->names->n_actions;
        memcpy(rows->name, p->name, sizeof rows->name);
        return OK;
    }
    if (p == model_content(m)->values) {
        *name = "values of item features";
        return find_content(j, p, rows);
    }
    for (int32_t f = 0; f < j->s->limits.n_context; f++) {
        if (p != model_rows(m, f)) continue;
        int there = feature_there(j, f);
        *name = j->s->data->context[f].name;
        if (there < 0) return OK; /* new as a whole */
        rows->from = j->map.context[there];
        rows->n_there = (int64_t)j->names->context[there].values.n;
        return name_there(p, f, there, rows->name);
    }
    *is_rows = false;
    return OK;
}

static warm_table *add_table(warm_report *r, const char *name) {
    warm_table *t = &r->table[r->n < WARM_MAX_TABLES - 1 ? r->n++ : r->n];
    *t = (warm_table){.name = name};
    return t;
}

static status copy_params(warm_job *j) {
    for (int i = 0; i < j->c->n_params; i++) {
        row_source rows;
        const char *name = NULL;
        bool is_rows;
        TRY(find_source(j, &j->c->params[i], &rows, &name, &is_rows));
        TRY(is_rows ? copy_row_values(j, i, &rows, add_table(j->report, name)) : copy_whole(j, i));
    }
    return OK;
}

static status copy_tables(warm_job *j) {
    for (int i = 0; i < j->c->tables->n; i++) {
        const dynamic_table *t = &j->c->tables->item[i];
        if (dynamic_is_owner(t)) TRY(copy_table(j, i, add_table(j->report, t->config->table_name)));
    }
    return OK;
}

/* The count of the table that has the items. */
static warm_table *item_count(warm_job *j) {
    const dynamic_table *t = dynamic_find(j->c->tables, ITEM_FEATURE);
    const char *name = t != NULL ? t->config->table_name : "item";
    for (int i = 0; i < j->report->n; i++)
        if (strcmp(j->report->table[i].name, name) == 0) return &j->report->table[i];
    return &j->report->table[0];
}

/* The first values of new items' own rows say nothing: they are left out beside content. */
static status leave_new_out(warm_job *j) {
    content_rows *c = model_content(j->s->model);
    size_t n = (size_t)c->args.n;
    uint8_t *has_own;
    if (c->item == NULL) {
        if (item_count(j)->n_new > 0 && !j->options->means)
            log_warn("new items without item features have random rows until they are trained; "
                     "--new-items mean starts those with events from their neighbours");
        return OK;
    }
    if (j->options->means) return OK;
    TRY(MEM_NEW(&has_own, n));
    status st = c->be->ops->copy_out(c->be, has_own, c->has_own, n);
    for (size_t i = 0; i < n; i++)
        has_own[i] &= j->map.item[i + 1] != 0;
    if (st == OK) st = content_set_warm(c, has_own);
    mem_free(has_own);
    return st;
}

static status run(warm_job *j) {
    TRY(checkpoint_find(j->options->from, j->report->folder));
    TRY(checkpoint_config(&j->config, j->report->folder));
    TRY(check_model(j));
    TRY(open_names(j));
    TRY(invert_maps(j));
    TRY(open_files(j));
    status st = copy_params(j);
    if (st == ERR_CONFIG && j->names->n_context != j->s->data->n_context)
        st = fail_prefix(st, "%s has %d contextual features, the data of that run %d",
                         j->s->data->path, j->s->data->n_context, j->names->n_context);
    TRY(st);
    TRY(copy_tables(j));
    if (j->options->means) TRY(set_means(j, item_count(j)));
    if (j->options->is_final) TRY(leave_new_out(j));
    TRY(content_make(model_content(j->s->model)));
    if (j->report->has_state) j->c->state.n_earlier = j->n_earlier + j->report->step;
    return OK;
}

status warm_start(checkpoint *c, session *s, const warm_options *options, warm_report *out) {
    warm_job j = {.c = c, .s = s, .options = options, .report = out};
    *out = (warm_report){0};
    status st = run(&j);
    st_close(j.values);
    st_close(j.moments);
    vocabulary_map_fini(&j.map);
    MEM_FREE(j.item_here, j.content_there);
    for (int f = 0; f < CONTEXT_MAX; f++)
        mem_free(j.value_here[f]);
    seq_file_close(j.names);
    config_destroy(j.config);
    return st;
}

void warm_report_log(const warm_report *r) {
    log_info("starting from %s, step %" PRIu64 "%s", r->folder, r->step,
             r->has_state ? ", with the state of its optimizer"
                          : "; its optimizer differs, so the optimizer state starts from zero");
    if (r->saw_held_out)
        log_warn("%s was trained on events that are held out here, where its data have them: the "
                 "figures of this run are too good; start from a run of the same --split",
                 r->folder);
    for (int i = 0; i < r->n; i++) {
        const warm_table *t = &r->table[i];
        char mean[64] = "", no_place[64] = "";
        if (t->n_mean > 0)
            snprintf(mean, sizeof mean, " (%" PRId64 " from their neighbours)", t->n_mean);
        if (t->n_no_place > 0)
            snprintf(no_place, sizeof no_place, ", %" PRId64 " without room", t->n_no_place);
        log_info("  table '%s': %" PRId64 " rows kept, %" PRId64 " new%s, %" PRId64 " dropped%s",
                 t->name, t->n_kept, t->n_new, mean, t->n_dropped, no_place);
    }
}

void warm_report_write(const warm_report *r, json_writer *w) {
    if (r->folder[0] == '\0') return;
    json_key_object(w, "init_from");
    JSON_FIELDS(w, FIELD("checkpoint", r->folder), FIELD("step", r->step),
                FIELD("optimizer_state", r->has_state), FIELD("saw_held_out", r->saw_held_out));
    json_key_array(w, "tables");
    for (int i = 0; i < r->n; i++) {
        const warm_table *t = &r->table[i];
        JSON_OBJECT(w, FIELD("name", t->name), FIELD("kept", t->n_kept), FIELD("new", t->n_new),
                    FIELD("from_neighbors", t->n_mean), FIELD("dropped", t->n_dropped),
                    FIELD("without_place", t->n_no_place));
    }
    json_array_close(w);
    json_object_close(w);
}
