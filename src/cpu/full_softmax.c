/* full_softmax, as ops.h states it.
 *
 * Rows are taken in pieces, and items in tiles: the scores of a piece with a tile are one product,
 * which becomes their weights in place; two more products give the gradients of the queries and of
 * the items.  A chunk of a piece's rows stays in the L2 cache from its scores to the gradient of
 * its queries.  Where the list has several tiles, a first pass over all of them finds the largest
 * score and the sum of each row, and the scores are computed again.  Chunks and pieces depend on
 * the sizes alone, and items sum the pieces in order, so the bits do not depend on threads.  Bound
 * by FLOPs. */
#include "cpu/cpu.h"
#include "cpu/product.h"

#include "cpu/vec.h"

enum { CHUNK = 48, UNIT_CHUNK = 64, ITEM_CHUNK = 96 };

/* What is known of a row: the largest score, the sum of exp(score - top) over all items but the
 * positive, the sum of all scores, and the positive's place and score. */
typedef struct row_stats {
    float top, own;
    int32_t place; /* -1: the row only fills the batch up */
    double others, sum;
} row_stats;

typedef struct softmax_job {
    backend *be;
    const full_softmax_args *a;
    const product_isa *isa;
    int64_t n_items, n_tiles, tile; /* the tile at hand */
    int64_t packed_row;             /* floats of a packed row of E columns */
    cpu_range piece;
    float *unit, *scale; /* (C, E), (C): items, normalised */
    float *packed_t;     /* of each tile (E, items) */
    float *packed;       /* of each tile (items, E) */
    float *packed_query; /* of the piece (rows, E) */
    float *d_unit;       /* (C, E) */
    float *score;        /* (FULL_SOFTMAX_ROWS, items of a tile): scores, then weights */
    row_stats *row;      /* (FULL_SOFTMAX_ROWS) */
    double *loss;        /* (FULL_SOFTMAX_ROWS) */
} softmax_job;

static int64_t smaller(int64_t x, int64_t y) {
    return x < y ? x : y;
}

/* Lays out the scratch memory; returns its bytes. */
static size_t lay_out(softmax_job *j, int64_t n, int64_t dim, char *memory) {
    cpu_carve at = {memory, 0};
    int64_t rows = smaller(n, FULL_SOFTMAX_ROWS), width = smaller(j->n_items, FULL_SOFTMAX_ITEMS);
    j->isa = product_choose();
    j->packed_row = product_packed_size(j->isa, 1, dim);
    j->n_tiles = cpu_n_chunks(j->n_items, FULL_SOFTMAX_ITEMS);
    j->unit = cpu_take(&at, (size_t)(j->n_items * dim), sizeof *j->unit);
    j->scale = cpu_take(&at, (size_t)j->n_items, sizeof *j->scale);
    j->packed_t =
        cpu_take(&at, (size_t)(dim * product_packed_size(j->isa, 1, j->n_items)), sizeof(float));
    j->packed = cpu_take(&at, (size_t)(j->n_items * j->packed_row), sizeof(float));
    j->packed_query = cpu_take(&at, (size_t)(rows * j->packed_row), sizeof(float));
    j->d_unit = cpu_take(&at, (size_t)(j->n_items * dim), sizeof(float));
    j->score = cpu_take(&at, (size_t)(rows * width), sizeof(float));
    j->row = cpu_take(&at, (size_t)rows, sizeof *j->row);
    j->loss = cpu_take(&at, (size_t)rows, sizeof *j->loss);
    return at.used;
}

size_t cpu_full_softmax_scratch(backend *be, int64_t max_n, int32_t n_items, int32_t dim) {
    softmax_job j = {.n_items = n_items};
    return lay_out(&j, max_n, dim, NULL);
}

static cpu_range tile_items(const softmax_job *j, int64_t tile) {
    return cpu_chunk(tile, FULL_SOFTMAX_ITEMS, j->n_items);
}

/* The items of a tile as right operands: (E, items), and (items, E). */
static product_panels tile_transposed(const softmax_job *j, int64_t tile) {
    cpu_range items = tile_items(j, tile);
    return (product_panels){j->isa, j->a->dim, items.end - items.first,
                            j->packed_t + items.first * j->a->dim};
}

static product_panels tile_rows(const softmax_job *j, int64_t tile) {
    cpu_range items = tile_items(j, tile);
    return (product_panels){j->isa, items.end - items.first, j->a->dim,
                            j->packed + items.first * j->packed_row};
}

static status unit_chunk(const cpu_rows *w) {
    const softmax_job *j = w->ctx;
    const full_softmax_args *a = j->a;
    for (int64_t c = w->first; c < w->end; c++) {
        int64_t row = a->item != NULL ? a->item[c] : c;
        j->scale[c] = cpu_unit_row(a->table + row * a->dim, a->dim, a->normalises, a->eps,
                                   j->unit + c * a->dim, a->dim);
    }
    return OK;
}

static status pack_items(const softmax_job *j) {
    for (int64_t tile = 0; tile < j->n_tiles; tile++) {
        matrix items = matrix_rows(j->unit + tile_items(j, tile).first * j->a->dim, j->a->dim);
        product_panels transposed = tile_transposed(j, tile), rows = tile_rows(j, tile);
        TRY(product_pack(&transposed, matrix_transposed(items), j->be->workers));
        TRY(product_pack(&rows, items, j->be->workers));
    }
    return OK;
}

/* The scores of row i of the piece with the items of a tile, from their products. */
static void correct(const softmax_job *j, int64_t i, cpu_range items, float *score) {
    const full_softmax_args *a = j->a;
    const row_stats *r = &j->row[i];
    int64_t n = items.end - items.first, own = r->place - items.first;
    float sharpness = 1 / a->temperature;
    for (int64_t c = 0; c < n; c++)
        score[c] *= sharpness;
    for (int64_t c = 0; a->log_q != NULL && c < n; c++)
        score[c] -= a->log_q[items.first + c];
    float at_own = own >= 0 && own < n ? score[own] : 0;
    for (int64_t c = 0; a->log_count != NULL && c < n; c++)
        score[c] += a->log_count[items.first + c];
    if (own >= 0 && own < n) score[own] = at_own;
}

static int64_t stride_of(const softmax_job *j) {
    return smaller(j->n_items, FULL_SOFTMAX_ITEMS);
}

static float *row_score(const softmax_job *j, int64_t i) {
    return j->score + i * stride_of(j);
}

static void score_tile(const softmax_job *j, cpu_range rows, int64_t tile) {
    const full_softmax_args *a = j->a;
    product_panels items = tile_transposed(j, tile);
    const float *query = (const float *)a->query + (j->piece.first + rows.first) * a->dim;
    product_run(matrix_rows(query, a->dim), rows.end - rows.first, &items, 0, items.n, false,
                row_score(j, rows.first), stride_of(j));
    for (int64_t i = rows.first; i < rows.end; i++)
        if (j->row[i].place >= 0) correct(j, i, tile_items(j, tile), row_score(j, i));
}

static float largest_of(const float *x, int64_t n) {
    vec top = vec_all(x[0]);
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec next = vec_load(x + i);
        top = vec_select((vec_int)(next > top), next, top);
    }
    float max = x[0];
    for (int lane = 0; lane < VEC; lane++)
        max = top[lane] > max ? top[lane] : max;
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* The sum of x in an order of its own that depends on n alone. */
static double sum_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t first = 0; first < n; first += 16 * VEC) {
        int64_t end = smaller(first + 16 * VEC, n), i = first;
        vec lanes = {0};
        for (; i + VEC <= end; i += VEC)
            lanes += vec_load(x + i);
        for (int lane = 0; lane < VEC; lane++)
            sum += (double)lanes[lane];
        for (; i < end; i++)
            sum += (double)x[i];
    }
    return sum;
}

static void exponentials(float *x, int64_t n, float top) {
    for (int64_t i = 0; i < n; i++)
        x[i] = vec_exp(x[i] - top);
}

/* Adds the scores of a tile to what is known of the row, and makes them exp(score - top).  vec_exp
 * is never 0: a share of e^-87 is nothing beside that of the top. */
static void fold(row_stats *r, float *score, cpu_range items, bool sums_scores) {
    int64_t n = items.end - items.first, own = r->place - items.first;
    bool has_own = own >= 0 && own < n;
    float top = largest_of(score, n);
    if (has_own) r->own = score[own];
    if (sums_scores) r->sum += sum_of(score, n);
    top = top > r->top ? top : r->top;
    exponentials(score, n, top);
    if (has_own) score[own] = 0;
    r->others = r->others * exp((double)r->top - (double)top) + sum_of(score, n);
    r->top = top;
}

/* Shares to weights: d loss / d product. */
static void weigh(const full_softmax_args *a, const row_stats *r, cpu_range items, float *score) {
    int64_t n = items.end - items.first, own = r->place - items.first;
    double total = r->others + exp((double)r->own - (double)r->top);
    float factor = *a->grad_scale / a->temperature, share = factor * (float)(1 / total);
    float even = factor * a->smoothing / (float)a->n_items;
    for (int64_t c = 0; c < n; c++)
        score[c] = score[c] * share - even;
    if (own >= 0 && own < n)
        score[own] = factor * (a->smoothing - (float)(r->others / total)) - even;
}

/* The gradient of the queries of `rows` by the weights of a tile. */
static void weigh_tile(const softmax_job *j, cpu_range rows, int64_t tile) {
    const full_softmax_args *a = j->a;
    product_panels items = tile_rows(j, tile);
    float *dquery = (float *)a->dquery + (j->piece.first + rows.first) * a->dim;
    for (int64_t i = rows.first; i < rows.end; i++) {
        if (j->row[i].place >= 0)
            weigh(a, &j->row[i], tile_items(j, tile), row_score(j, i));
        else
            memset(row_score(j, i), 0, (size_t)items.k * sizeof(float));
    }
    product_run(matrix_rows(row_score(j, rows.first), stride_of(j)), rows.end - rows.first, &items,
                0, a->dim, tile > 0, dquery, a->dim);
}

static double row_loss(const full_softmax_args *a, const row_stats *r) {
    if (r->place < 0) return 0;
    double own = (double)r->own - (double)r->top, total = r->others + exp(own);
    double even = a->smoothing > 0 ? r->sum / a->n_items - (double)r->own : 0;
    return log(total) - own - (double)a->smoothing * even;
}

/* Losses of a chunk of rows; of a list of one tile, the gradient of their queries, too. */
static status query_chunk(const cpu_rows *w) {
    const softmax_job *j = w->ctx;
    const full_softmax_args *a = j->a;
    cpu_range rows = {w->first, w->end};
    for (int64_t i = rows.first; i < rows.end; i++)
        j->row[i] = (row_stats){
            .top = -INFINITY,
            .place = full_softmax_place(a->item, a->n_items, a->positive[j->piece.first + i])};
    for (int64_t tile = 0; tile < j->n_tiles; tile++) {
        score_tile(j, rows, tile);
        for (int64_t i = rows.first; i < rows.end; i++)
            if (j->row[i].place >= 0)
                fold(&j->row[i], row_score(j, i), tile_items(j, tile), a->smoothing > 0);
    }
    for (int64_t i = rows.first; i < rows.end; i++) {
        j->loss[i] = row_loss(a, &j->row[i]);
        if (a->row_loss != NULL) a->row_loss[j->piece.first + i] = (float)j->loss[i];
    }
    if (j->n_tiles == 1 && a->dquery != NULL) weigh_tile(j, rows, 0);
    return OK;
}

/* The scores of a tile again, now that the sums over all tiles are known. */
static status tile_chunk(const cpu_rows *w) {
    const softmax_job *j = w->ctx;
    cpu_range rows = {w->first, w->end}, items = tile_items(j, j->tile);
    score_tile(j, rows, j->tile);
    for (int64_t i = rows.first; i < rows.end; i++)
        exponentials(row_score(j, i), items.end - items.first, j->row[i].top);
    weigh_tile(j, rows, j->tile);
    return OK;
}

/* The gradient of some items of the tile by the rows of the piece. */
static status item_chunk(const cpu_rows *w) {
    const softmax_job *j = w->ctx;
    int64_t n = j->piece.end - j->piece.first, dim = j->a->dim;
    cpu_range items = tile_items(j, j->tile);
    matrix weights = matrix_rows(j->score, stride_of(j));
    product_panels query = {j->isa, n, dim, j->packed_query};
    product_run(matrix_transposed(matrix_at(weights, 0, w->first)), w->end - w->first, &query, 0,
                dim, true, j->d_unit + (items.first + w->first) * dim, dim);
    return OK;
}

static status gradient_chunk(const cpu_rows *w) {
    const softmax_job *j = w->ctx;
    const full_softmax_args *a = j->a;
    for (int64_t c = w->first; c < w->end; c++) {
        int64_t row = a->item != NULL ? a->item[c] : c;
        cpu_unit_gradient(j->unit + c * a->dim, j->scale[c], a->dim, j->d_unit + c * a->dim,
                          a->dtable + row * a->dim);
    }
    return OK;
}

static status run_piece(softmax_job *j) {
    const full_softmax_args *a = j->a;
    int64_t n = j->piece.end - j->piece.first;
    product_panels query = {j->isa, n, a->dim, j->packed_query};
    TRY(cpu_each(j->be, n, CHUNK, query_chunk, j));
    for (int64_t i = 0; i < n; i++)
        *a->loss += j->loss[i];
    if (a->dquery == NULL) return OK;
    matrix rows = matrix_rows((const float *)a->query + j->piece.first * a->dim, a->dim);
    TRY(product_pack(&query, rows, j->be->workers));
    for (j->tile = 0; j->tile < j->n_tiles; j->tile++) {
        cpu_range items = tile_items(j, j->tile);
        if (j->n_tiles > 1) TRY(cpu_each(j->be, n, CHUNK, tile_chunk, j));
        TRY(cpu_each(j->be, items.end - items.first, ITEM_CHUNK, item_chunk, j));
    }
    return OK;
}

status cpu_full_softmax(backend *be, const full_softmax_args *a) {
    softmax_job j = {.be = be, .a = a, .n_items = a->n_items};
    if (a->n == 0 || a->n_items == 0) return OK;
    lay_out(&j, a->n, a->dim, a->scratch);
    TRY(cpu_each(be, a->n_items, UNIT_CHUNK, unit_chunk, &j));
    TRY(pack_items(&j));
    memset(j.d_unit, 0, (size_t)(a->n_items * (int64_t)a->dim) * sizeof *j.d_unit);
    for (int64_t piece = 0; piece < cpu_n_chunks(a->n, FULL_SOFTMAX_ROWS); piece++) {
        j.piece = cpu_chunk(piece, FULL_SOFTMAX_ROWS, a->n);
        TRY(run_piece(&j));
    }
    return a->dquery == NULL ? OK : cpu_each(be, a->n_items, UNIT_CHUNK, gradient_chunk, &j);
}
