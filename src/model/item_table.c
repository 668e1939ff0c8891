#include "model/item_table.h"

#include <math.h>
#include <string.h>

#include "model/model_int.h"

enum { LARGE = 1 << 16 };

/* A ranking model has no catalogue in the form that is scored. */
static status read_ranking(item_table *t, model *m) {
    dynamic_table *dynamic = dynamic_find(&m->dynamic, ITEM_FEATURE);
    int32_t n = dynamic != NULL ? dynamic->last : m->input.config.n_items, *item, *row;
    float *rows;
    t->dim = (int32_t)m->input.item->shape[1];
    TRY(NN_NEW_HOST(&t->memory, &item, n));
    TRY(NN_NEW_HOST(&t->memory, &row, (int64_t)n + 1));
    t->items = (model_items){.n = n, .item = item, .row = row};
    t->n_items = n;
    if (dynamic != NULL) {
        TRY(NN_NEW(&t->memory, &rows, (int64_t)n * t->dim));
        t->items.rows = rows;
        return dynamic_read_items(&m->dynamic, rows, item, row, &t->items.n);
    }
    t->items.rows = m->input.item->value + t->dim; /* after the row of the padding */
    for (int32_t i = 0; i < n; i++)
        item[i] = i + 1, row[i + 1] = i;
    row[0] = -1;
    return OK;
}

status item_table_init(item_table *t, model *m) {
    *t = (item_table){.dim = m->dim, .n_items = m->corpus.n};
    nn_memory_init(&t->memory, m->be);
    return m->is_ranking ? read_ranking(t, m) : model_corpus(m, &t->items);
}

void item_table_fini(item_table *t) {
    rank_int8_fini(&t->small);
    if (t->memory.be != NULL) nn_memory_fini(&t->memory);
    *t = (item_table){0};
}

/* `index` has the numbers of a piece's rows, from 0. */
static status narrow_rows(const item_table *t, const staged_i32 *index, int32_t piece, char *to) {
    backend *be = t->memory.be;
    size_t row_bytes = (size_t)t->dim * act_bytes(be->act);
    for (int32_t i = 0; i < piece; i++)
        index->host[i] = i;
    TRY(STAGED_SEND(be, index, piece));
    for (int32_t first = 0; first < t->items.n; first += piece) {
        int32_t left = t->items.n - first;
        gather_args g = {.n = left < piece ? left : piece,
                         .dim = t->dim,
                         .table = t->items.rows + (int64_t)first * t->dim,
                         .index = index->device,
                         .scale = 1,
                         .y = to + (size_t)first * row_bytes};
        TRY(be->ops->gather(be, &g));
    }
    return OK;
}

status item_table_narrow(item_table *t) {
    backend *be = t->memory.be;
    staged_i32 index;
    void *rows;
    if (be->act == ACT_F32 || t->items.n < LARGE) return OK;
    TRY(nn_new(&t->memory, &rows, (int64_t)t->items.n * t->dim, act_bytes(be->act)));
    TRY(STAGED_NEW(&t->memory, &index, LARGE));
    TRY(narrow_rows(t, &index, LARGE, rows));
    t->narrow = rows;
    return OK;
}

status item_table_shrink(item_table *t) {
    backend *be = t->memory.be;
    if (be->card != NULL) return OK;
    return rank_int8_init(&t->small, t->items.rows, t->items.n, t->dim, be->workers);
}

status item_table_read(const item_table *t, int32_t first, int32_t n, float *to_host) {
    backend *be = t->memory.be;
    return be->ops->copy_out(be, to_host, t->items.rows + (int64_t)first * t->dim,
                             (size_t)n * (size_t)t->dim * sizeof *to_host);
}

enum { PIECE_ROWS = 4096 };

/* The best so far. */
typedef struct nearest_list {
    int32_t k, n;
    int32_t *item;
    float *cosine;
} nearest_list;

/* Items come in ascending order, so that of equal ones the first stays in front. */
static void insert(nearest_list *l, int32_t item, float cosine) {
    if (l->n == l->k && cosine <= l->cosine[l->k - 1]) return;
    int32_t i = l->n < l->k ? l->n++ : l->k - 1;
    for (; i > 0 && l->cosine[i - 1] < cosine; i--) {
        l->item[i] = l->item[i - 1];
        l->cosine[i] = l->cosine[i - 1];
    }
    l->item[i] = item;
    l->cosine[i] = cosine;
}

static double dot(const float *a, const float *b, int32_t dim) {
    double sum = 0;
    for (int32_t c = 0; c < dim; c++)
        sum += (double)a[c] * (double)b[c];
    return sum;
}

static void search_piece(const item_table *t, const float *own, const float *piece, int32_t first,
                         int32_t n, int32_t skip, const uint8_t *is_allowed, nearest_list *l) {
    double own_size = sqrt(dot(own, own, t->dim));
    for (int32_t i = 0; i < n; i++) {
        int32_t item = t->items.item[first + i];
        if (item == skip || (is_allowed != NULL && is_allowed[item] != 1)) continue;
        const float *row = piece + (int64_t)i * t->dim;
        double cosine = dot(own, row, t->dim) / (own_size * sqrt(dot(row, row, t->dim)));
        if (isfinite(cosine)) insert(l, item, (float)cosine);
    }
}

static status search(const item_table *t, uint32_t item, const uint8_t *is_allowed, float *own,
                     float *piece, nearest_list *l) {
    TRY(item_table_read(t, t->items.row[item], 1, own));
    for (int32_t first = 0; first < t->items.n; first += PIECE_ROWS) {
        int32_t n = t->items.n - first < PIECE_ROWS ? t->items.n - first : PIECE_ROWS;
        TRY(item_table_read(t, first, n, piece));
        search_piece(t, own, piece, first, n, (int32_t)item, is_allowed, l);
    }
    return OK;
}

status similar_items(const item_table *t, uint32_t item, const uint8_t *is_allowed, int32_t k,
                     int32_t *out_item, float *cosine, int32_t *n) {
    nearest_list l = {.k = k, .item = out_item, .cosine = cosine};
    float *own = NULL, *piece = NULL;
    *n = 0;
    if (item > (uint32_t)t->n_items || t->items.row[item] < 0)
        return fail(ERR_USAGE, "item number %u has no row in the model", item);
    status st = MEM_NEW_RAW(&own, (size_t)t->dim);
    if (st == OK) st = MEM_NEW_RAW(&piece, (size_t)PIECE_ROWS * (size_t)t->dim);
    if (st == OK) st = search(t, item, is_allowed, own, piece, &l);
    MEM_FREE(own, piece);
    *n = l.n;
    return st;
}
