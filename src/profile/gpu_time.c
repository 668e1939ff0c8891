#include "profile/gpu_time.h"

enum { SHORT_GAP_NS = 500 }; /* less than the clocks can tell apart */

/* Spans of the GPU and calls that wait for it by start; calls by correlation. */
typedef struct gpu_index {
    const recorder *r;
    const span **gpu, **calls, **waits;
    size_t n_gpu, n_waits;
    size_t first_wait; /* those before it ended before the gaps that are still to come */
} gpu_index;

static int by_start(const void *a, const void *b) {
    const span *x = *(const span *const *)a, *y = *(const span *const *)b;
    return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

/* The call with each correlation, or NULL. */
static status find_calls(const recorder *r, const span ***out) {
    TRY(mem_alloc((void **)out, recorder_n_correlations(r), sizeof **out));
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (s->kind == SPAN_CALL && s->end_ns != 0 && s->correlation > 0)
            (*out)[s->correlation] = s;
    }
    return OK;
}

static status make_index(gpu_index *x, const recorder *r) {
    *x = (gpu_index){.r = r};
    TRY(mem_alloc_raw((void **)&x->gpu, r->n_spans + 1, sizeof *x->gpu));
    TRY(find_calls(r, &x->calls));
    TRY(mem_alloc_raw((void **)&x->waits, r->n_spans + 1, sizeof *x->waits));
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (span_is_on_gpu(s)) x->gpu[x->n_gpu++] = s;
        if (s->kind != SPAN_CALL || s->end_ns == 0) continue;
        if (strstr(recorder_name(r, s), "Synchronize") != NULL) x->waits[x->n_waits++] = s;
    }
    qsort(x->waits, x->n_waits, sizeof *x->waits, by_start);
    qsort(x->gpu, x->n_gpu, sizeof *x->gpu, by_start);
    return OK;
}

/* Whether the host spent most of a time waiting for the GPU: it cannot ask for more meanwhile. */
static bool is_waiting(gpu_index *x, uint64_t from, uint64_t to) {
    uint64_t ns = 0;
    while (x->first_wait < x->n_waits && x->waits[x->first_wait]->end_ns <= from)
        x->first_wait++;
    for (size_t i = x->first_wait; i < x->n_waits && x->waits[i]->start_ns < to; i++) {
        const span *c = x->waits[i];
        if (c->end_ns <= from) continue;
        ns += (c->end_ns < to ? c->end_ns : to) - (c->start_ns > from ? c->start_ns : from);
    }
    return 2 * ns > to - from;
}

static gap_cause cause_of(gpu_index *x, uint64_t from, const span *next) {
    const span *call = x->calls[next->correlation];
    if (call == NULL) return GAP_UNKNOWN;
    if (call->end_ns <= from + SHORT_GAP_NS) return GAP_LAUNCH;
    return is_waiting(x, from, call->start_ns > from ? call->start_ns : from + 1) ? GAP_SYNC
                                                                                  : GAP_HOST;
}

/* The longest gaps, in order. */
static void keep_longest(gpu_idle *g, uint64_t ns, uint64_t before, gap_cause cause) {
    int n = (int)(sizeof g->longest / sizeof g->longest[0]), at = g->n_longest;
    if (at == n && g->longest[n - 1].ns >= ns) return;
    if (at == n) at--;
    for (; at > 0 && g->longest[at - 1].ns < ns; at--) {
        g->longest[at] = g->longest[at - 1];
        g->longest_cause[at] = g->longest_cause[at - 1];
    }
    g->longest[at] = (gap_sum){.n = before, .ns = ns};
    g->longest_cause[at] = cause;
    if (g->n_longest < n) g->n_longest++;
}

static void walk(gpu_idle *g, gpu_index *x) {
    uint64_t end = x->gpu[0]->start_ns;
    for (size_t i = 0; i < x->n_gpu; i++) {
        const span *s = x->gpu[i];
        if (s->start_ns > end + SHORT_GAP_NS) {
            gap_cause cause = cause_of(x, end, s);
            g->cause[cause].n++;
            g->cause[cause].ns += s->start_ns - end;
            keep_longest(g, s->start_ns - end, (uint64_t)(s - x->r->spans), cause);
        }
        uint64_t from = s->start_ns > end ? s->start_ns : end;
        if (s->end_ns > from) g->busy_ns += s->end_ns - from;
        if (s->kind == SPAN_COPY) g->copy_ns += s->end_ns - s->start_ns;
        if (s->end_ns > end) end = s->end_ns;
    }
    g->span_ns = end - x->gpu[0]->start_ns;
}

status gpu_idle_find(gpu_idle *out, const recorder *r) {
    gpu_index x;
    *out = (gpu_idle){0};
    status st = make_index(&x, r);
    if (st == OK && x.n_gpu > 0) walk(out, &x);
    MEM_FREE(x.gpu, x.calls, x.waits);
    return st;
}

const char *gap_cause_name(gap_cause c) {
    static const char *const names[N_GAP_CAUSES] = {
        "the next kernel was asked for in time, and took long to start",
        "the host waited for the GPU, and only then asked for more",
        "the host was late: it asked for the next kernel after the last one had ended",
        "not known: there is no record of who asked for what came next"};
    return names[c];
}

status gpu_idle_advice(const gpu_idle *g, buf *out) {
    if (g->span_ns == 0) return OK;
    const struct {
        uint64_t ns;
        double limit; /* share of the time above which it is worth a sentence */
        const char *before, *after;
    } advice[] = {
        {g->cause[GAP_HOST].ns, .1, "The GPU was idle for ",
         "% of the time because the host was late. Larger batches give it more to do at a time; "
         "while steps are recorded as CUDA graphs (--device cuda, batches of one size) the host "
         "has little to do."},
        {g->cause[GAP_SYNC].ns, .1, "The GPU was idle for ",
         "% of the time while the host waited for it. Results that are read later, or less often "
         "(log_interval, eval_interval), let it go on."},
        {g->cause[GAP_LAUNCH].ns, .1, "The GPU spent ",
         "% of the time starting kernels: many short ones. Larger batches, or CUDA graphs, make "
         "that less."},
        {g->copy_ns, .2, "Copies between host and GPU took ",
         "% of the time. Tables that fit the GPU belong there."}};
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
        double share = (double)advice[i].ns / (double)g->span_ns;
        if (share > advice[i].limit)
            TRY(buf_printf(out, "%s%.0f %s\n", advice[i].before, 100 * share, advice[i].after));
    }
    return OK;
}

static int by_interval(const void *a, const void *b) {
    const interval *x = a, *y = b;
    return (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
}

uint64_t interval_join(interval *all, size_t *n) {
    uint64_t covered_ns = 0;
    size_t last = 0;
    if (*n == 0) return 0;
    qsort(all, *n, sizeof *all, by_interval);
    for (size_t i = 1; i < *n; i++) {
        if (all[i].start_ns > all[last].end_ns)
            all[++last] = all[i];
        else if (all[i].end_ns > all[last].end_ns)
            all[last].end_ns = all[i].end_ns;
    }
    *n = last + 1;
    for (size_t i = 0; i < *n; i++)
        covered_ns += all[i].end_ns - all[i].start_ns;
    return covered_ns;
}

/* The time that two lists of joined intervals share. */
static uint64_t common(const interval *a, size_t n_a, const interval *b, size_t n_b) {
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
    interval *talk = NULL, *work = NULL;
    size_t n_work = 0;
    *out = (comm_time){0};
    TRY(mem_alloc_raw((void **)&talk, r->n_spans + 1, sizeof *talk));
    status st = mem_alloc_raw((void **)&work, r->n_spans + 1, sizeof *work);
    for (size_t i = 0; i < r->n_spans && st == OK; i++) {
        const span *s = &r->spans[i];
        interval own = {s->start_ns, s->end_ns};
        if (!span_is_on_gpu(s)) continue;
        if (s->kind == SPAN_KERNEL && strstr(recorder_name(r, s), "nccl") != NULL)
            talk[out->n++] = own;
        else
            work[n_work++] = own;
    }
    if (st == OK) {
        size_t n_talk = out->n;
        out->all_ns = interval_join(talk, &n_talk);
        interval_join(work, &n_work);
        out->hidden_ns = common(talk, n_talk, work, n_work);
    }
    MEM_FREE(talk, work);
    return st;
}

static int by_time(const void *a, const void *b) {
    const queue_point *x = a, *y = b;
    return x->ns < y->ns ? -1 : x->ns > y->ns;
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
    const span **call = NULL;
    size_t n = 0;
    *out_n = 0;
    TRY(mem_alloc_raw((void **)out, 2 * r->n_spans + 1, sizeof **out));
    status st = find_calls(r, &call);
    for (size_t i = 0; st == OK && i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (!span_is_on_gpu(s) || call[s->correlation] == NULL) continue;
        (*out)[n++] = (queue_point){call[s->correlation]->start_ns, 1};
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
