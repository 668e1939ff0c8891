#include "profile/nesting.h"

#include <stdlib.h>

#include "base/mem.h"

/* By lane, then by time; what begins together by length, so that what is around comes first. */
static int by_place(const void *a, const void *b, void *spans) {
    const span *x = (const span *)spans + *(const size_t *)a;
    const span *y = (const span *)spans + *(const size_t *)b;
    if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
    if (x->start_ns != y->start_ns) return x->start_ns < y->start_ns ? -1 : 1;
    if (x->end_ns != y->end_ns) return x->end_ns > y->end_ns ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1; /* a range before a call */
    return x < y ? -1 : x > y;
}

/* The innermost range around a span, found from the last one that began: those that ended before
 * are around nothing that is still to come. */
static int64_t find_around(const recorder *r, int64_t last, const span *s) {
    while (last != RECORDER_NO_OP &&
           (r->spans[last].lane != s->lane || r->spans[last].end_ns <= s->start_ns))
        last = r->spans[last].op;
    return last;
}

/* One that ends inside another, and began before it, is around it only in part. */
static bool is_within(const span *inner, const span *outer) {
    return inner->end_ns <= outer->end_ns;
}

static void nest(recorder *r, const size_t *order, size_t n, int64_t *op_of) {
    int64_t last = RECORDER_NO_OP;
    for (size_t i = 0; i < n; i++) {
        span *s = &r->spans[order[i]];
        last = find_around(r, last, s);
        if (s->kind == SPAN_CALL) {
            if (s->correlation > 0) op_of[s->correlation] = last;
            continue;
        }
        s->op = last;
        s->child_ns = 0;
        if (last != RECORDER_NO_OP && is_within(s, &r->spans[last]))
            r->spans[last].child_ns += s->end_ns - s->start_ns;
        last = (int64_t)order[i];
    }
}

static bool is_on_host(const span *s) {
    return s->end_ns != 0 && (s->kind == SPAN_RANGE || s->kind == SPAN_CALL);
}

status ranges_nest(recorder *r) {
    uint32_t top = 0;
    size_t n = 0, *order;
    int64_t *op_of = NULL;
    for (size_t i = 0; i < r->n_spans; i++)
        if (r->spans[i].correlation > top) top = r->spans[i].correlation;
    TRY(mem_alloc_raw((void **)&order, r->n_spans + 1, sizeof *order));
    status st = mem_alloc_raw((void **)&op_of, (size_t)top + 1, sizeof *op_of);
    if (st == OK) {
        for (size_t i = 0; i <= top; i++)
            op_of[i] = RECORDER_NO_OP;
        for (size_t i = 0; i < r->n_spans; i++)
            if (is_on_host(&r->spans[i])) order[n++] = i;
        qsort_r(order, n, sizeof *order, by_place, r->spans);
        nest(r, order, n, op_of);
        for (size_t i = 0; i < r->n_spans; i++)
            if (!is_on_host(&r->spans[i])) r->spans[i].op = op_of[r->spans[i].correlation];
    }
    mem_free(order);
    mem_free(op_of);
    return st;
}
