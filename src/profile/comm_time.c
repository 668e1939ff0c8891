#include "profile/comm_time.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

typedef struct stretch {
    uint64_t start_ns, end_ns;
} stretch;

static int by_start(const void *a, const void *b) {
    const stretch *x = a, *y = b;
    return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

/* Joins stretches that touch; returns how many are left. */
static size_t join(stretch *s, size_t n) {
    size_t last = 0;
    if (n == 0) return 0;
    qsort(s, n, sizeof *s, by_start);
    for (size_t i = 1; i < n; i++) {
        if (s[i].start_ns > s[last].end_ns)
            s[++last] = s[i];
        else if (s[i].end_ns > s[last].end_ns)
            s[last].end_ns = s[i].end_ns;
    }
    return last + 1;
}

static uint64_t length(const stretch *s, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += s[i].end_ns - s[i].start_ns;
    return sum;
}

/* The time that both lists, joined, have. */
static uint64_t common(const stretch *a, size_t n_a, const stretch *b, size_t n_b) {
    uint64_t sum = 0;
    for (size_t i = 0, k = 0; i < n_a && k < n_b;) {
        uint64_t start = a[i].start_ns > b[k].start_ns ? a[i].start_ns : b[k].start_ns;
        uint64_t end = a[i].end_ns < b[k].end_ns ? a[i].end_ns : b[k].end_ns;
        if (end > start) sum += end - start;
        if (a[i].end_ns < b[k].end_ns)
            i++;
        else
            k++;
    }
    return sum;
}

status comm_time_find(comm_time *out, const recorder *r) {
    stretch *talk = NULL, *work = NULL;
    size_t n_work = 0;
    *out = (comm_time){0};
    TRY(mem_alloc_raw((void **)&talk, r->n_spans + 1, sizeof *talk));
    status st = mem_alloc_raw((void **)&work, r->n_spans + 1, sizeof *work);
    for (size_t i = 0; i < r->n_spans && st == OK; i++) {
        const span *s = &r->spans[i];
        stretch own = {s->start_ns, s->end_ns};
        bool is_kernel = s->kind == SPAN_KERNEL;
        if (s->end_ns == 0 || (!is_kernel && s->kind != SPAN_COPY && s->kind != SPAN_SET)) continue;
        if (is_kernel && strstr(recorder_name(r, s), "nccl") != NULL)
            talk[out->n++] = own;
        else
            work[n_work++] = own;
    }
    if (st == OK) {
        size_t n_talk = join(talk, out->n);
        n_work = join(work, n_work);
        out->all_ns = length(talk, n_talk);
        out->hidden_ns = common(talk, n_talk, work, n_work);
    }
    mem_free(talk);
    mem_free(work);
    return st;
}
