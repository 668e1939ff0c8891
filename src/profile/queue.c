#include "profile/queue.h"

#include <stdlib.h>

#include "base/mem.h"

static int by_time(const void *a, const void *b) {
    const queue_point *x = a, *y = b;
    return x->ns < y->ns ? -1 : x->ns > y->ns;
}

static bool is_on_gpu(const span *s) {
    return s->end_ns != 0 &&
           (s->kind == SPAN_KERNEL || s->kind == SPAN_COPY || s->kind == SPAN_SET);
}

/* When the call with each correlation began; 0: none. */
static status find_calls(const recorder *r, uint64_t **out) {
    uint32_t top = 0;
    for (size_t i = 0; i < r->n_spans; i++)
        if (r->spans[i].correlation > top) top = r->spans[i].correlation;
    TRY(mem_alloc((void **)out, (size_t)top + 1, sizeof **out));
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (s->kind == SPAN_CALL && s->end_ns != 0 && s->correlation > 0)
            (*out)[s->correlation] = s->start_ns;
    }
    return OK;
}

/* From changes to sums; those of one time become one point. */
static size_t add_up(queue_point *p, size_t n) {
    size_t kept = 0;
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += p[i].waiting;
        if (kept == 0 || p[kept - 1].ns != p[i].ns) kept++;
        p[kept - 1] = (queue_point){p[i].ns, sum};
    }
    return kept;
}

status queue_find(const recorder *r, queue_point **out, size_t *out_n) {
    uint64_t *call = NULL;
    size_t n = 0;
    *out_n = 0;
    TRY(mem_alloc_raw((void **)out, 2 * r->n_spans + 1, sizeof **out));
    status st = find_calls(r, &call);
    for (size_t i = 0; st == OK && i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (!is_on_gpu(s) || call[s->correlation] == 0) continue;
        (*out)[n++] = (queue_point){call[s->correlation], 1};
        (*out)[n++] = (queue_point){s->start_ns, -1};
    }
    mem_free(call);
    if (st != OK) {
        mem_free(*out);
        *out = NULL;
        return st;
    }
    if (n > 0) qsort(*out, n, sizeof **out, by_time);
    *out_n = add_up(*out, n);
    return OK;
}
