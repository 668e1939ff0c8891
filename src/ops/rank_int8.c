#include "ops/ops.h"

#include <float.h>

enum { CHUNK = 64 }; /* groups that a thread takes at a time */

typedef struct making {
    rank_int8 *to;
    const float *rows;
    int64_t n, n_groups;
    int32_t dim;
} making;

static int64_t count_groups(int64_t n) {
    return (n + RANK_INT8_GROUP - 1) / RANK_INT8_GROUP;
}

/* Rounding of a product of dim terms, in any order, is below dim * epsilon times the lengths; twice
 * that also covers the few roundings of the scan itself. */
static float bound(double difference, double length, int32_t dim) {
    double all = difference + (2.0 * dim + 8) * (double)FLT_EPSILON * length;
    return (float)(1.0001 * all + (double)FLT_MIN);
}

static void make_row(const making *m, int64_t row) {
    const float *x = m->rows + row * m->dim;
    int8_t *to =
        m->to->rows + row / RANK_INT8_GROUP * RANK_INT8_GROUP * m->dim + row % RANK_INT8_GROUP;
    double length = 0, difference = 0;
    float most = 0;
    for (int32_t d = 0; d < m->dim; d++) {
        length += (double)x[d] * (double)x[d];
        if (!(fabsf(x[d]) <= most)) most = fabsf(x[d]);
    }
    m->to->error[row] = INFINITY;
    if (!isfinite(length)) return; /* its numbers stay 0 */
    float scale = most > 1e-30f ? most / 127 : 0;
    for (int32_t d = 0; d < m->dim; d++) {
        float c = scale > 0 ? rintf(x[d] / scale) : 0;
        c = c > 127 ? 127 : c < -127 ? -127 : c;
        to[(int64_t)d * RANK_INT8_GROUP] = (int8_t)c;
        double off = (double)x[d] - (double)scale * (double)c;
        difference += off * off;
    }
    m->to->scale[row] = scale;
    m->to->error[row] = bound(sqrt(difference), sqrt(length), m->dim);
}

static status make_chunk(void *ctx, int64_t chunk, int worker) {
    const making *m = ctx;
    int64_t first = chunk * CHUNK * RANK_INT8_GROUP, end = first + CHUNK * RANK_INT8_GROUP;
    for (int64_t row = first; row < end && row < m->n; row++)
        make_row(m, row);
    return OK;
}

size_t rank_int8_bytes(int64_t n, int32_t dim) {
    return (size_t)count_groups(n) * RANK_INT8_GROUP * ((size_t)dim + 2 * sizeof(float));
}

status rank_int8_init(rank_int8 *r, const float *rows, int64_t n, int32_t dim, pool *workers) {
    making m = {.to = r, .rows = rows, .n = n, .n_groups = count_groups(n), .dim = dim};
    size_t n_rows = (size_t)m.n_groups * RANK_INT8_GROUP;
    *r = (rank_int8){0};
    status st = MEM_NEW(&r->rows, n_rows * (size_t)dim + 1);
    if (st == OK) st = MEM_NEW(&r->scale, n_rows + 1);
    if (st == OK) st = MEM_NEW(&r->error, n_rows + 1);
    if (st == OK) st = pool_run(workers, (m.n_groups + CHUNK - 1) / CHUNK, make_chunk, &m);
    if (st != OK) rank_int8_fini(r);
    return st;
}

void rank_int8_fini(rank_int8 *r) {
    MEM_FREE(r->rows, r->scale, r->error);
    *r = (rank_int8){0};
}

status rank_in_nothing(const rank_args *a) {
    for (int32_t q = 0; a->rank != NULL && q < a->n_queries; q++)
        a->rank[q] = 1;
    for (int64_t i = 0; i < (int64_t)a->n_queries * a->k; i++)
        a->best[i] = -1, a->best_score[i] = -INFINITY;
    return OK;
}
