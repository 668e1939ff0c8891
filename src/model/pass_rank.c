/* The catalogue ranked for the users of a batch: seen items, ranks of targets, top k. */
#include <stdlib.h>
#include <string.h>

#include "model/model_int.h"

static int compare_rows(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

int32_t pass_distinct_rows(int32_t *rows, int32_t n) {
    int32_t kept = 0;
    if (n > 0) qsort(rows, (size_t)n, sizeof *rows, compare_rows);
    for (int32_t i = 0; i < n; i++)
        if (i == 0 || rows[i] != rows[kept - 1]) rows[kept++] = rows[i];
    return kept;
}

void pass_seen_rows(const batch *b, const model_items *corpus, int32_t *offsets, int32_t *rows) {
    int32_t n = 0;
    offsets[0] = 0;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t n_mine = 0, end = b->offsets[u + 1] - b->n_targets[u];
        for (int32_t i = b->offsets[u]; i < end; i++) {
            int32_t row = corpus->row[b->item[i]];
            if (row >= 0) rows[n + n_mine++] = row;
        }
        n += pass_distinct_rows(rows + n, n_mine);
        offsets[u + 1] = n;
    }
}

/* The rows that the query lists; they must fit the memory of the pass. */
static status copy_seen(const pass *p, const rank_query *q, int32_t n, int32_t *offsets,
                        int32_t *seen) {
    int32_t n_seen = q->seen_offsets[n];
    if (n_seen > p->max_seen)
        return fail(ERR_CONFIG, "%d rows to leave out; the pass was made for %lld", n_seen,
                    (long long)p->max_seen);
    memcpy(offsets, q->seen_offsets, (size_t)(n + 1) * sizeof *offsets);
    memcpy(seen, q->seen, (size_t)n_seen * sizeof *seen);
    return OK;
}

/* Offsets, targets and seen rows are contiguous, so that one copy sends them. */
static status send_lists(pass *p, const batch *b, const rank_query *q, rank_args *a) {
    int32_t n = b->n_users, *offsets = p->lists.host, *target = offsets + n + 1, *seen = target + n;
    if (q->seen_offsets != NULL)
        TRY(copy_seen(p, q, n, offsets, seen));
    else
        pass_seen_rows(b, q->corpus, offsets, seen);
    if (q->target != NULL) memcpy(target, q->target, (size_t)n * sizeof *target);
    a->seen_offsets = q->keeps_seen ? NULL : p->lists.device;
    a->target = q->target != NULL ? p->lists.device + n + 1 : NULL;
    a->seen = p->lists.device + 2 * n + 1;
    return STAGED_SEND(p->m->be, &p->lists, 2 * (int64_t)n + 1 + offsets[n]);
}

status pass_rank(pass *p, const batch *b, const rank_query *q) {
    backend *be = p->m->be;
    rank_args a = {.n_queries = b->n_users,
                   .dim = p->m->dim,
                   .n_corpus = q->corpus->n,
                   .corpus = q->corpus->rows,
                   .rank = q->rank,
                   .k = q->k,
                   .best = q->best,
                   .best_score = q->score};
    if (p->plan.config.is_training)
        return fail(ERR_USAGE, "this pass was made for training, not to rank");
    TRY(pass_encode(p, b, &a.query));
    TRY(send_lists(p, b, q, &a));
    TRY(be->ops->rank(be, &a));
    for (int64_t i = 0; i < (int64_t)b->n_users * q->k; i++)
        if (q->best[i] >= 0) q->best[i] = q->corpus->item[q->best[i]];
    return OK;
}
