#include "profile/trace_rows.h"

#include <stdlib.h>

#include "base/mem.h"

enum { CLOCKS_NS = 5000, MAX_DEPTH = 128 };

typedef struct bar {
    uint64_t row, start_ns, end_ns;
    size_t index;
    bool is_call;
} bar;

static int by_row(const void *a, const void *b) {
    const bar *x = a, *y = b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    if (x->start_ns != y->start_ns) return x->start_ns < y->start_ns ? -1 : 1;
    if (x->end_ns != y->end_ns) return x->end_ns > y->end_ns ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* The ends of the bars that are open in a row, the innermost last. */
typedef struct open_bars {
    uint64_t end_ns[MAX_DEPTH];
    int n;
} open_bars;

static void close_before(open_bars *o, uint64_t ns) {
    while (o->n > 0 && o->end_ns[o->n - 1] <= ns)
        o->n--;
}

static bool fits(const open_bars *o, uint64_t end_ns) {
    return o->n == 0 || (o->n < MAX_DEPTH && o->end_ns[o->n - 1] >= end_ns);
}

static void put(open_bars *o, uint64_t end_ns) {
    if (o->n < MAX_DEPTH) o->end_ns[o->n++] = end_ns;
}

/* The row itself where it fits there, or nearly; else the first beside it; in the last it is cut.
 */
static row_place place(open_bars rows[ROWS_MAX_BESIDE + 1], const bar *b) {
    for (int i = 0; i <= ROWS_MAX_BESIDE; i++)
        close_before(&rows[i], b->start_ns);
    for (int i = 0; i <= ROWS_MAX_BESIDE; i++) {
        uint64_t end = b->end_ns, open_end = rows[i].n > 0 ? rows[i].end_ns[rows[i].n - 1] : end;
        bool is_near = b->is_call && end > open_end && end - open_end <= CLOCKS_NS;
        if ((is_near || i == ROWS_MAX_BESIDE) && end > open_end) end = open_end;
        if (!fits(&rows[i], end) && i < ROWS_MAX_BESIDE) continue;
        put(&rows[i], end);
        return (row_place){b->start_ns, end, (uint8_t)i};
    }
    return (row_place){b->start_ns, b->end_ns, 0};
}

/* A call is inside the op that made it, whatever the clocks say. */
static bar bar_of(const recorder *r, size_t index, uint64_t row) {
    const span *s = &r->spans[index], *op = s->op >= 0 ? &r->spans[s->op] : NULL;
    bar b = {row, s->start_ns, s->end_ns, index, s->kind == SPAN_CALL};
    if (!b.is_call || op == NULL || op->end_ns == 0 || s->start_ns >= op->end_ns) return b;
    if (b.start_ns < op->start_ns && op->start_ns - b.start_ns <= CLOCKS_NS)
        b.start_ns = op->start_ns < b.end_ns ? op->start_ns : b.end_ns;
    if (b.end_ns > op->end_ns && b.end_ns - op->end_ns <= CLOCKS_NS) b.end_ns = op->end_ns;
    return b;
}

status rows_arrange(const recorder *r, uint64_t (*row_of)(const void *ctx, const span *s),
                    const void *ctx, row_place **out) {
    bar *bars;
    size_t n = 0;
    open_bars *rows = NULL;
    *out = NULL;
    TRY(mem_alloc_raw((void **)&bars, r->n_spans + 1, sizeof *bars));
    status st = mem_alloc((void **)out, r->n_spans + 1, sizeof **out);
    if (st == OK) st = mem_alloc((void **)&rows, ROWS_MAX_BESIDE + 1, sizeof *rows);
    for (size_t i = 0; st == OK && i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (s->end_ns != 0) bars[n++] = bar_of(r, i, row_of(ctx, s));
    }
    if (n > 0) qsort(bars, n, sizeof *bars, by_row);
    for (size_t i = 0; i < n; i++) {
        bool is_new = i == 0 || bars[i].row != bars[i - 1].row;
        for (int k = 0; is_new && k <= ROWS_MAX_BESIDE; k++)
            rows[k].n = 0;
        (*out)[bars[i].index] = place(rows, &bars[i]);
    }
    mem_free(rows);
    mem_free(bars);
    if (st != OK) {
        mem_free(*out);
        *out = NULL;
    }
    return st;
}
