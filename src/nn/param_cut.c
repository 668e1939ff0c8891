#include "nn/param_cut.h"

#include <string.h>

static bool is_cut(const param *p) {
    return p->cut.n_parts > 1;
}

/* Elements of a row where ranks hold the rows of a table. */
static int64_t row_len(const param *p) {
    int64_t n = 1;
    for (int d = 1; d < p->n_dims; d++)
        n *= p->shape[d];
    return n;
}

void param_whole_shape(const param *p, int64_t shape[4]) {
    memcpy(shape, p->shape, sizeof p->shape);
    if (is_cut(p)) shape[p->cut.dim] *= p->cut.n_parts;
    if (p->rows != NULL) shape[0] = p->whole_rows;
}

int64_t param_whole_n(const param *p) {
    if (p->rows != NULL) return p->whole_rows * row_len(p);
    return p->n * (is_cut(p) ? p->cut.n_parts : 1);
}

/* A row is what the cut dimension and those after it span. */
static int64_t find_run(const param *p, int part, int64_t at, int64_t *n) {
    const param_cut *c = &p->cut;
    int64_t inner = 1, first = 0;
    *n = p->n - at;
    if (p->rows != NULL) {
        int64_t len = row_len(p);
        *n = len - at % len;
        return p->rows[at / len] * len + at % len;
    }
    if (!is_cut(p)) return at;
    for (int d = c->dim + 1; d < p->n_dims; d++)
        inner *= p->shape[d];
    int64_t len_all = p->shape[c->dim] * inner, row = at / len_all, column = at % len_all;
    int b = 0;
    for (; column >= first + c->block[b] * inner; b++)
        first += c->block[b] * inner;
    int64_t len = c->block[b] * inner;
    *n = first + len - column;
    return row * len_all * c->n_parts + first * c->n_parts + part * len + column - first;
}

int64_t param_cut_run(const param *p, int64_t at, int64_t *n) {
    return find_run(p, p->cut.part, at, n);
}

/* Short runs, such as single rows, are put together on the host before they are sent. */
status param_cut_take(const param *p, backend *be, const void *whole, float *to) {
    enum { PIECE = 4096 };
    float piece[PIECE];
    for (int64_t at = 0, n, n_piece; at < p->n; at += n_piece) {
        const char *from = (const char *)whole + param_cut_run(p, at, &n) * (int64_t)sizeof *to;
        n_piece = n;
        if (n <= PIECE) {
            memcpy(piece, from, (size_t)n * sizeof *to);
            for (; at + n_piece < p->n; n_piece += n) {
                int64_t next = param_cut_run(p, at + n_piece, &n);
                if (n_piece + n > PIECE) break;
                memcpy(piece + n_piece, (const char *)whole + next * (int64_t)sizeof *to,
                       (size_t)n * sizeof *to);
            }
            from = (const char *)piece;
        }
        TRY(be->ops->copy_in(be, to + at, from, (size_t)n_piece * sizeof *to));
    }
    return OK;
}
