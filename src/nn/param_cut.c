#include "nn/param_cut.h"

#include <string.h>

static bool is_cut(const param *p) {
    return p->cut.n_parts > 1;
}

void param_whole_shape(const param *p, int64_t shape[4]) {
    memcpy(shape, p->shape, sizeof p->shape);
    if (is_cut(p)) shape[p->cut.dim] *= p->cut.n_parts;
}

int64_t param_whole_n(const param *p) {
    return p->n * (is_cut(p) ? p->cut.n_parts : 1);
}

/* A row is what the cut dimension and those after it span. */
static int64_t find_run(const param *p, int part, int64_t at, int64_t *n) {
    const param_cut *c = &p->cut;
    int64_t inner = 1, first = 0;
    *n = p->n - at;
    if (!is_cut(p)) return at;
    for (int d = c->dim + 1; d < p->n_dims; d++)
        inner *= p->shape[d];
    int64_t row_len = p->shape[c->dim] * inner, row = at / row_len, column = at % row_len;
    int b = 0;
    for (; column >= first + c->block[b] * inner; b++)
        first += c->block[b] * inner;
    int64_t len = c->block[b] * inner;
    *n = first + len - column;
    return row * row_len * c->n_parts + first * c->n_parts + part * len + column - first;
}

int64_t param_cut_run(const param *p, int64_t at, int64_t *n) {
    return find_run(p, p->cut.part, at, n);
}

status param_cut_take(const param *p, backend *be, const void *whole, float *to) {
    for (int64_t at = 0, n; at < p->n; at += n) {
        int64_t from = param_cut_run(p, at, &n);
        const char *bytes = (const char *)whole + from * (int64_t)sizeof *to;
        TRY(be->ops->copy_in(be, to + at, bytes, (size_t)n * sizeof *to));
    }
    return OK;
}

void param_cut_put(const param *p, int part, const float *own, float *whole) {
    for (int64_t at = 0, n; at < p->n; at += n) {
        int64_t to = find_run(p, part, at, &n);
        memcpy(whole + to, own + at, (size_t)n * sizeof *own);
    }
}
