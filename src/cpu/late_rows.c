/* Rows of large tables by lists (ops.h): list_rows, read_rows, late_step.
 *
 * Listing sorts the uses by row on one thread.  Reading is bound by cache misses: rows of a large
 * table are far apart, so those of the rows to come are prefetched. */
#include "cpu/cpu.h"

enum { AHEAD = 16 };

static status take_uses(const list_rows_args *a, const row_uses *u, sort_pair *pairs, int64_t *n,
                        uint32_t place) {
    for (int64_t i = 0; i < u->n; i++) {
        if (u->index[i] < 0) continue;
        int64_t row = (int64_t)u->index[i] + u->first;
        if (row >= a->n_table)
            return fail(ERR_FORMAT, "row %lld asks for row %lld of a table of %d rows",
                        (long long)i, (long long)row, a->n_table);
        pairs[(*n)++] = (sort_pair){(uint64_t)row, place + (uint32_t)i};
    }
    return OK;
}

/* Numbers rows by the sorted uses; number (n of all uses) has the number of each use's row. */
static int32_t number_rows(const sort_pair *pairs, int64_t n, int32_t *rows, int32_t *number) {
    int32_t n_rows = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || pairs[i].key != pairs[i - 1].key) rows[n_rows++] = (int32_t)pairs[i].key;
        number[pairs[i].place] = n_rows - 1;
    }
    return n_rows;
}

status cpu_list_rows(backend *be, const list_rows_args *a) {
    int64_t n_all = 0, n = 0;
    for (int k = 0; k < a->n_uses; k++)
        n_all += a->use[k].n;
    char *memory;
    size_t bytes = (size_t)n_all * sizeof(sort_pair);
    TRY(cpu_scratch(be, CPU_SHARED, 2 * bytes + (size_t)n_all * sizeof(int32_t), (void **)&memory));
    sort_pair *pairs = (sort_pair *)memory, *other = (sort_pair *)(memory + bytes);
    int32_t *number = (int32_t *)(memory + 2 * bytes);
    uint32_t place = 0;
    for (int k = 0; k < a->n_uses; k++) {
        TRY(take_uses(a, &a->use[k], pairs, &n, place));
        place += (uint32_t)a->use[k].n;
    }
    *a->n = number_rows(sort_pairs(pairs, other, (size_t)n), n, a->rows, number);
    for (int64_t i = *a->n; i < n_all; i++)
        a->rows[i] = -1;
    for (int k = 0; k < a->n_uses; number += a->use[k++].n)
        for (int64_t i = 0; i < a->use[k].n; i++)
            if (a->use[k].index[i] >= 0) a->use[k].index[i] = number[i];
    return OK;
}

status cpu_late_step(backend *be, const late_step_args *a) {
    bool is_skipped = a->grad_scale != NULL && *a->grad_scale == 0;
    for (int32_t i = 0; i < a->now && !is_skipped; i++)
        missed_add(&a->late.sums[i], &a->rule, &a->late.missed[i]);
    missed_begin(&a->late.sums[a->now], &a->late.missed[a->now]);
    float *rule = a->late.rules + (int64_t)a->now * LATE_RULE;
    rule[0] = is_skipped ? 1 : a->rule.decay;
    rule[1] = is_skipped ? 0 : a->rule.rate;
    rule[2] = is_skipped ? 0 : a->rule.root;
    return OK;
}

/* Inlined: GCC takes a call that only prefetches for one without effects, and leaves it out. */
static inline __attribute__((always_inline)) void prefetch(const read_rows_args *a, int64_t i) {
    int64_t row = a->rows != NULL ? a->rows[i] : i;
    if (row < 0) return;
    if (a->late.last != NULL) __builtin_prefetch(&a->late.last[row]);
    for (int32_t c = 0; c < a->dim; c += 16) {
        __builtin_prefetch(a->w + row * a->dim + c);
        if (a->late.last == NULL) continue;
        __builtin_prefetch(a->m + row * a->dim + c);
        __builtin_prefetch(a->v + row * a->dim + c);
    }
}

static void late_weights(const missed_steps *missed, int32_t dim, const float *restrict w,
                         const float *restrict m, const float *restrict v, float *restrict y) {
    const missed_steps k = *missed;
    for (int32_t c = 0; c < dim; c++)
        y[c] = missed_weight(&k, w[c], m[c], v[c]);
}

void cpu_late_catch_up(const missed_steps *missed, int32_t dim, float *restrict w,
                       float *restrict m, float *restrict v) {
    const missed_steps k = *missed;
    for (int32_t c = 0; c < dim; c++) {
        w[c] = missed_weight(&k, w[c], m[c], v[c]);
        m[c] *= k.m;
        v[c] *= k.v;
    }
}

static status read_chunk(const cpu_rows *job) {
    const read_rows_args *a = job->ctx;
    for (int64_t i = job->first; i < job->end; i++) {
        int64_t row = a->rows != NULL ? a->rows[i] : i, at = row * a->dim;
        float *y = a->y + i * a->dim;
        if (i + AHEAD < job->end) prefetch(a, i + AHEAD);
        if (row < 0)
            memset(y, 0, (size_t)a->dim * sizeof *y);
        else if (a->late.last == NULL)
            memcpy(y, a->w + at, (size_t)a->dim * sizeof *y);
        else
            late_weights(late_missed(&a->late, row), a->dim, a->w + at, a->m + at, a->v + at, y);
    }
    return OK;
}

static status catch_up_chunk(const cpu_rows *job) {
    const read_rows_args *a = job->ctx;
    for (int64_t i = job->first; i < job->end; i++) {
        int64_t row = a->rows != NULL ? a->rows[i] : i, at = row * a->dim;
        if (row < 0) continue;
        cpu_late_catch_up(late_missed(&a->late, row), a->dim, a->w + at, a->m + at, a->v + at);
        a->late.last[row] = 0;
    }
    return OK;
}

status cpu_read_rows(backend *be, const read_rows_args *a) {
    return cpu_each_row(be, a->n, a->dim, a->y != NULL ? read_chunk : catch_up_chunk, a);
}
