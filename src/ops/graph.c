#include "ops/graph.h"

#include "base/base.h"

static status check_row(const int32_t *begin, const int32_t *columns, int32_t row,
                        int32_t n_columns) {
    int32_t last = -1;
    if (begin[row + 1] < begin[row])
        return fail(ERR_USAGE, "graph: row %d has edges %d .. %d; indptr must ascend", row,
                    begin[row], begin[row + 1]);
    for (int32_t e = begin[row]; e < begin[row + 1]; e++) {
        if (columns[e] < 0 || columns[e] >= n_columns)
            return fail(ERR_USAGE,
                        "graph: edge %d of row %d has column %d; there are columns 0 to %d", e, row,
                        columns[e], n_columns - 1);
        if (columns[e] == last)
            return fail(ERR_USAGE,
                        "graph: row %d has column %d twice; merge such edges first (in scipy "
                        "sum_duplicates(), in torch coalesce())",
                        row, last);
        if (columns[e] < last)
            return fail(ERR_USAGE,
                        "graph: row %d has column %d after %d; sort the columns of each row first "
                        "(in scipy sort_indices())",
                        row, columns[e], last);
        last = columns[e];
    }
    return OK;
}

static status check_csr(const int32_t *begin, const int32_t *columns, int32_t n_rows,
                        int32_t n_columns) {
    if (n_rows < 0 || n_columns < 0 || n_rows == INT32_MAX || n_columns == INT32_MAX)
        return fail(ERR_USAGE, "graph: %d rows and %d columns; from 0 to 2^31 - 2", n_rows,
                    n_columns);
    if (begin == NULL || begin[0] != 0)
        return fail(ERR_USAGE, "graph: indptr must have %d numbers, the first of them 0",
                    n_rows + 1);
    if (columns == NULL && begin[n_rows] > 0)
        return fail(ERR_USAGE, "graph: indices is NULL, but indptr ends with %d", begin[n_rows]);
    for (int32_t row = 0; row < n_rows; row++)
        if (begin[row + 1] < begin[row]) TRY(check_row(begin, columns, row, n_columns));
    for (int32_t row = 0; row < n_rows; row++)
        TRY(check_row(begin, columns, row, n_columns));
    return OK;
}

/* The lists of one side in host memory. */
typedef struct side_lists {
    int32_t *begin, *other, *edge; /* of columns alone */
    graph_piece *pieces;
    graph_split *splits;
} side_lists;

static void free_lists(side_lists *l) {
    MEM_FREE(l->begin, l->other, l->edge, l->pieces, l->splits);
}

/* The edges by column: rows are visited in order, so those of a column ascend. */
static status transpose(side_lists *l, const graph_edges *g, const int32_t *begin,
                        const int32_t *columns) {
    TRY(MEM_NEW(&l->begin, (size_t)g->columns.n + 2));
    TRY(MEM_NEW_RAW(&l->other, (size_t)g->n_edges));
    TRY(MEM_NEW_RAW(&l->edge, (size_t)g->n_edges));
    int32_t *next = l->begin + 1; /* next[j]: where the next edge of column j goes */
    for (int64_t e = 0; e < g->n_edges; e++)
        next[columns[e] + 1]++;
    for (int32_t j = 0; j < g->columns.n; j++)
        next[j + 1] += next[j];
    for (int32_t i = 0; i < g->rows.n; i++)
        for (int32_t e = begin[i]; e < begin[i + 1]; e++) {
            int32_t at = next[columns[e]]++;
            l->other[at] = i;
            l->edge[at] = e;
        }
    return OK;
}

static int32_t pieces_of(const int32_t *begin, int32_t row) {
    int32_t n = begin[row + 1] - begin[row];
    return n > GRAPH_PIECE ? (n - 1) / GRAPH_PIECE + 1 : 1;
}

static status count_pieces(graph_side *s, const int32_t *begin) {
    int64_t n = 0;
    for (int32_t row = 0; row < s->n; row++) {
        int32_t of_row = pieces_of(begin, row);
        n += of_row;
        if (of_row > 1) s->n_splits++, s->n_parts += of_row;
    }
    if (n > INT32_MAX)
        return fail(ERR_UNSUPPORTED, "graph: more than 2^31 - 1 pieces of rows; split the graph");
    s->n_pieces = (int32_t)n;
    return OK;
}

/* The parts of long rows come first: they take the longest. */
static status cut_pieces(side_lists *l, graph_side *s, const int32_t *begin) {
    int32_t part = 0, split = 0, whole;
    TRY(count_pieces(s, begin));
    TRY(MEM_NEW_RAW(&l->pieces, (size_t)s->n_pieces));
    TRY(MEM_NEW_RAW(&l->splits, (size_t)s->n_splits));
    whole = s->n_parts;
    for (int32_t row = 0; row < s->n; row++) {
        int32_t n = pieces_of(begin, row), end = begin[row + 1];
        if (n == 1) {
            l->pieces[whole++] = (graph_piece){row, begin[row], end, -1};
            continue;
        }
        l->splits[split++] = (graph_split){row, part, n};
        for (int32_t e = begin[row]; n-- > 0; e += GRAPH_PIECE, part++)
            l->pieces[part] = (graph_piece){row, e, n > 0 ? e + GRAPH_PIECE : end, part};
    }
    return OK;
}

static status send(backend *be, const void *from, size_t n, size_t size, const void *field) {
    void *to;
    TRY(be->ops->alloc(be, &to, n > 0 ? n * size : size));
    memcpy((void *)field, &to, sizeof to);
    return n > 0 ? be->ops->copy_in(be, to, from, n * size) : OK;
}

static status send_side(backend *be, graph_side *s, const side_lists *l, int64_t n_edges) {
    TRY(send(be, l->begin, (size_t)s->n + 1, sizeof *s->begin, &s->begin));
    TRY(send(be, l->other, (size_t)n_edges, sizeof *s->other, &s->other));
    if (l->edge != NULL) TRY(send(be, l->edge, (size_t)n_edges, sizeof *s->edge, &s->edge));
    TRY(send(be, l->pieces, (size_t)s->n_pieces, sizeof *s->pieces, &s->pieces));
    return send(be, l->splits, (size_t)s->n_splits, sizeof *s->splits, &s->splits);
}

static status init_side(backend *be, graph_side *s, side_lists *l, int64_t n_edges) {
    TRY(cut_pieces(l, s, l->begin));
    return send_side(be, s, l, n_edges);
}

status graph_init(graph_edges *g, backend *be, int32_t n_rows, int32_t n_columns,
                  const int32_t *begin, const int32_t *columns) {
    side_lists rows = {0}, across = {0};
    *g = (graph_edges){0};
    TRY(check_csr(begin, columns, n_rows, n_columns));
    g->rows.n = n_rows;
    g->columns.n = n_columns;
    g->n_edges = begin[n_rows];
    rows.begin = (int32_t *)begin;
    rows.other = (int32_t *)columns;
    status st = transpose(&across, g, begin, columns);
    if (st == OK) st = init_side(be, &g->rows, &rows, g->n_edges);
    if (st == OK) st = init_side(be, &g->columns, &across, g->n_edges);
    if (st == OK) st = be->ops->sync(be);
    rows.begin = rows.other = NULL; /* the caller's */
    free_lists(&rows);
    free_lists(&across);
    if (st == OK) return OK;
    failure f;
    failure_save(&f, st);
    graph_fini(g, be);
    return failure_restore(&f);
}

void graph_fini(graph_edges *g, backend *be) {
    graph_side *sides[] = {&g->rows, &g->columns};
    for (int i = 0; i < 2; i++) {
        const graph_side *s = sides[i];
        const void *lists[] = {s->begin, s->other, s->edge, s->pieces, s->splits};
        for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
            be->ops->release(be, (void *)lists[k]);
    }
    *g = (graph_edges){0};
}

static status check_dim(const char *name, int32_t dim) {
    if (dim >= 1 && dim <= GRAPH_ATTN_MAX_DIM) return OK;
    return fail(ERR_USAGE, "graph attention: %s is %d; it is 1 to %d", name, dim,
                GRAPH_ATTN_MAX_DIM);
}

static status check_kind(const graph_attn_args *a) {
    if (a->f < GRAPH_SOFTMAX || a->f > GRAPH_IDENTITY || a->sum < GRAPH_SUM || a->sum > GRAPH_MAX)
        return fail(ERR_USAGE, "graph attention: there is no weight function %d or reduction %d",
                    (int)a->f, (int)a->sum);
    if (a->sum == GRAPH_MAX && a->f == GRAPH_SOFTMAX)
        return fail(ERR_USAGE, "graph attention: the maximum of a softmax's terms; take another "
                               "weight function, or the sum");
    if (!isfinite(a->alpha) || !isfinite(a->slope))
        return fail(ERR_USAGE, "graph attention: alpha is %g and slope %g; both must be finite",
                    (double)a->alpha, (double)a->slope);
    return OK;
}

static status check_backward(const graph_attn_args *a) {
    if ((a->v == NULL) != (a->dout == NULL))
        return fail(ERR_USAGE, "graph attention: v and dout go together");
    if (a->sum == GRAPH_MAX && a->v != NULL && a->best == NULL)
        return fail(ERR_USAGE, "graph attention: the backward pass of a maximum needs best");
    if (a->f == GRAPH_SOFTMAX &&
        (a->row_sum == NULL || (a->dweights != NULL && a->weights == NULL)))
        return fail(ERR_USAGE, "graph attention: the softmax's backward pass needs row_sum, and "
                               "weights beside dweights");
    if (((a->dq != NULL || a->dk != NULL) && a->q == NULL) || (a->dv != NULL && a->v == NULL))
        return fail(ERR_USAGE, "graph attention: a gradient of a tensor that is NULL");
    return OK;
}

status graph_attn_args_check(const graph_attn_args *a, bool is_backward) {
    if (a->n_heads < 1 || a->n_heads > 65535)
        return fail(ERR_USAGE, "graph attention: %d heads; it has 1 to 65535", a->n_heads);
    if ((a->q == NULL) != (a->k == NULL))
        return fail(ERR_USAGE, "graph attention: q and k go together");
    if (a->q != NULL) TRY(check_dim("dim_qk", a->dim_qk));
    if (a->v != NULL) TRY(check_dim("dim_v", a->dim_v));
    if (a->bias != NULL && a->bias_heads != 1 && a->bias_heads != a->n_heads)
        return fail(ERR_USAGE, "graph attention: bias_heads is %d; it is 1 or %d", a->bias_heads,
                    a->n_heads);
    TRY(check_kind(a));
    return is_backward ? check_backward(a) : OK;
}
