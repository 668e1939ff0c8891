#include "model/similar.h"

#include <math.h>

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
        if (item == skip || (is_allowed != NULL && !is_allowed[item])) continue;
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
    mem_free(own);
    mem_free(piece);
    *n = l.n;
    return st;
}
