/* First values of new items: the mean of the rows of the items next to them.
 *
 * For each training event of a new item, the events right before and after it in the same user's
 * training events count, if their items have rows: the mean is over these, an item as often as it
 * stands there.  A new item without such a neighbour keeps its first values.  Sums are in float64
 * and in the order of the data, so the result depends on nothing else. */
#include <string.h>

#include "base/mem.h"
#include "train/files/warm_start_int.h"

enum { PIECE = 4096 };

typedef struct means {
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

static void means_fini(means *m) {
    mem_free(m->rows);
    mem_free(m->has_row);
    mem_free(m->place);
    mem_free(m->item);
    mem_free(m->sum);
    mem_free(m->count);
}

static status list_new(means *m) {
    const uint32_t *known = m->j->map.item;
    size_t n = (size_t)m->data->n_items + 1;
    TRY(MEM_NEW(&m->has_row, n));
    TRY(MEM_NEW(&m->place, n));
    TRY(MEM_NEW(&m->item, n));
    for (uint32_t i = 1; i < n; i++) {
        m->has_row[i] = known[i] != 0;
        if (known[i] != 0) continue;
        m->item[m->n_new++] = i;
        m->place[i] = m->n_new;
    }
    TRY(mem_alloc((void **)&m->sum, (size_t)m->n_new * m->dim, sizeof *m->sum));
    return MEM_NEW(&m->count, (size_t)m->n_new);
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
    TRY(mem_alloc((void **)&m->rows, n, sizeof *m->rows));
    if (m->dynamic != NULL) return read_dynamic(m);
    return be->ops->copy_out(be, m->rows, m->table->value, n * sizeof *m->rows);
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
    return be->ops->copy_in(be, m->table->value, m->rows, n * sizeof *m->rows);
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

status warm_set_means(warm_job *j, warm_table *count) {
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
    means_fini(&m);
    return st;
}
