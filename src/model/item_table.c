#include "model/item_table.h"

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

static double dot(const float *a, const float *b, int32_t dim) {
    double sum = 0;
    for (int32_t c = 0; c < dim; c++)
        sum += (double)a[c] * (double)b[c];
    return sum;
}

static status add_unit(const item_table *t, int32_t row, float *own, float *sum) {
    TRY(item_table_read(t, row, 1, own));
    double size = sqrt(dot(own, own, t->dim));
    for (int32_t c = 0; c < t->dim && isnormal(size); c++)
        sum[c] += (float)((double)own[c] / size);
    return OK;
}

status similar_direction(const item_table *t, const int32_t *rows, int32_t n, float *out) {
    float *own;
    if (n == 1) return item_table_read(t, rows[0], 1, out);
    TRY(MEM_NEW_RAW(&own, (size_t)t->dim));
    memset(out, 0, (size_t)t->dim * sizeof *out);
    status st = OK;
    for (int32_t i = 0; i < n && st == OK; i++)
        st = add_unit(t, rows[i], own, out);
    mem_free(own);
    return st;
}

/* Rows come in ascending order, so that of equal ones the first stays in front; -1: a free place.
 */
static void insert(int32_t *best, float *cosine, int32_t k, int32_t row, float value) {
    int32_t i = k;
    for (; i > 0 && (best[i - 1] < 0 || cosine[i - 1] < value); i--) {
        if (i == k) continue;
        best[i] = best[i - 1];
        cosine[i] = cosine[i - 1];
    }
    if (i == k) return;
    best[i] = row;
    cosine[i] = value;
}

static void search_piece(const similar_search *s, double size, const float *piece, int32_t first,
                         int32_t n_rows, int32_t n, const uint64_t *const *allowed, int32_t k,
                         int32_t *best, float *cosine) {
    int32_t dim = s->t->dim;
    for (int32_t i = 0; i < n_rows; i++) {
        const float *row = piece + (int64_t)i * dim;
        int32_t at = first + i;
        bool is_any = false;
        for (int32_t c = 0; c < n; c++)
            is_any |= allowed[c][at / 64] >> at % 64 & 1;
        if (!is_any) continue;
        double value = dot(s->direction, row, dim) / (size * sqrt(dot(row, row, dim)));
        for (int32_t c = 0; c < n && isfinite(value); c++)
            if (allowed[c][at / 64] >> at % 64 & 1)
                insert(best + (int64_t)c * k, cosine + (int64_t)c * k, k, at, (float)value);
    }
}

status similar_rows(void *search, int32_t n, const uint64_t *const *allowed, int32_t k,
                    int32_t *row, float *cosine) {
    const similar_search *s = search;
    const item_table *t = s->t;
    double size = sqrt(dot(s->direction, s->direction, t->dim));
    float *piece;
    status st = OK;
    memset(row, 0xff, (size_t)n * (size_t)k * sizeof *row);
    TRY(MEM_NEW_RAW(&piece, (size_t)PIECE_ROWS * (size_t)t->dim));
    for (int32_t first = 0; first < t->items.n && st == OK; first += PIECE_ROWS) {
        int32_t left = t->items.n - first, n_rows = left < PIECE_ROWS ? left : PIECE_ROWS;
        st = item_table_read(t, first, n_rows, piece);
        if (st == OK) search_piece(s, size, piece, first, n_rows, n, allowed, k, row, cosine);
    }
    mem_free(piece);
    return st;
}

static status search_near(const item_table *t, int32_t own, const uint8_t *is_allowed, int32_t k,
                          int32_t *out_item, float *cosine, float *direction, uint64_t *bits) {
    similar_search s = {t, direction};
    TRY(similar_direction(t, &own, 1, direction));
    for (int32_t row = 0; row < t->items.n; row++)
        if (row != own && (is_allowed == NULL || is_allowed[t->items.item[row]] == 1))
            bits[row / 64] |= (uint64_t)1 << row % 64;
    return similar_rows(&s, 1, (const uint64_t *[]){bits}, k, out_item, cosine);
}

status similar_items(const item_table *t, uint32_t item, const uint8_t *is_allowed, int32_t k,
                     int32_t *out_item, float *cosine, int32_t *n) {
    float *direction = NULL;
    uint64_t *bits = NULL;
    *n = 0;
    if (item > (uint32_t)t->n_items || t->items.row[item] < 0)
        return fail(ERR_USAGE, "item number %u has no row in the model", item);
    status st = MEM_NEW_RAW(&direction, (size_t)t->dim);
    if (st == OK) st = MEM_NEW(&bits, (size_t)t->items.n / 64 + 1);
    if (st == OK)
        st = search_near(t, t->items.row[item], is_allowed, k, out_item, cosine, direction, bits);
    MEM_FREE(direction, bits);
    for (; st == OK && *n < k && out_item[*n] >= 0; ++*n)
        out_item[*n] = t->items.item[out_item[*n]];
    return st;
}
