#include "profile/busy.h"

#include "profile/kernel_name.h"

/* Kernels are told apart by the hash of the whole name, not by the shortened name that is shown. */
typedef struct busy_name {
    uint64_t hash;
    busy_kernel sum;
} busy_name;

static struct {
    bool has_begun, is_on;
    busy_log log;
} busy;

static status add_record(void *ctx, const gpu_record *r) {
    return busy_log_add(ctx, r);
}

static void forget(void *ctx) {
    busy_log_fini(ctx);
}

status busy_begin(void) {
    const cupti_sink sink = {&busy.log, forget, add_record};
    busy.has_begun = true;
    busy.is_on = cupti_start(&sink, 0);
    return OK;
}

status busy_end(busy_report *out) {
    bool is_complete = false;
    uint64_t n_lost = 0;
    *out = (busy_report){0};
    status st = busy.is_on ? cupti_stop(&is_complete, &n_lost) : OK;
    busy.log.n_lost += n_lost;
    if (st != OK)
        st = fail(st, "out of memory for the GPU's activity records; measure fewer steps");
    else if (is_complete)
        busy_log_report(&busy.log, out);
    else
        snprintf(out->reason, sizeof out->reason, "%s",
                 busy.has_begun ? cupti_reason() : "busy_begin was not called");
    busy_log_fini(&busy.log);
    busy.is_on = busy.has_begun = false;
    return st;
}

void busy_log_fini(busy_log *log) {
    MEM_FREE(log->compute, log->names);
    *log = (busy_log){0};
}

/* A few hundred names at most: a linear search over their hashes is cheap. */
static status find_name(busy_log *log, const gpu_record *r, busy_name **out) {
    static const char *const kinds[] = {"(kernel)", "(memset)", "(copy on device)", "(copy in)",
                                        "(copy out)"};
    const char *text = r->kind == GPU_KERNEL && r->name != NULL ? r->name : kinds[r->kind];
    uint64_t hash = hash64(text, strlen(text), 0);
    for (size_t i = 0; i < log->n_names; i++) {
        *out = &log->names[i];
        if ((*out)->hash == hash) return OK;
    }
    TRY(MEM_RESERVE(&log->names, &log->names_capacity, log->n_names + 1));
    *out = &log->names[log->n_names++];
    **out = (busy_name){.hash = hash};
    kernel_name(text, (*out)->sum.name, sizeof(*out)->sum.name);
    return OK;
}

status busy_log_add(busy_log *log, const gpu_record *r) {
    busy_name *at = NULL;
    if (r->kind > GPU_COPY_OUT) return OK;
    log->n_kernels += r->kind == GPU_KERNEL;
    if (r->start_ns == 0 || r->end_ns < r->start_ns) {
        log->n_lost++;
        return OK;
    }
    if (r->kind != GPU_COPY_IN && r->kind != GPU_COPY_OUT) {
        TRY(MEM_RESERVE(&log->compute, &log->capacity, log->n_compute + 1));
        log->compute[log->n_compute++] = (interval){r->start_ns, r->end_ns};
    }
    TRY(find_name(log, r, &at));
    at->sum.ns += r->end_ns - r->start_ns;
    at->sum.n_calls++;
    return OK;
}

static int by_start(const void *a, const void *b) {
    const interval *x = a, *y = b;
    return (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
}

uint64_t interval_join(interval *all, size_t *n) {
    uint64_t covered_ns = 0;
    size_t last = 0;
    if (*n == 0) return 0;
    qsort(all, *n, sizeof *all, by_start);
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

/* Longest first; equal ones by name, so that the table is the same every time. */
static int compare_names(const void *a, const void *b) {
    const busy_kernel *x = &((const busy_name *)a)->sum, *y = &((const busy_name *)b)->sum;
    if (x->ns != y->ns) return x->ns < y->ns ? 1 : -1;
    return strcmp(x->name, y->name);
}

static void fill_top(busy_log *log, busy_report *out) {
    if (log->n_names > 1) qsort(log->names, log->n_names, sizeof *log->names, compare_names);
    out->n_top = log->n_names < BUSY_MAX_TOP ? (int)log->n_names : BUSY_MAX_TOP;
    for (int i = 0; i < out->n_top; i++)
        out->top[i] = log->names[i].sum;
}

void busy_log_report(busy_log *log, busy_report *out) {
    *out = (busy_report){.is_known = log->n_names > 0};
    if (!out->is_known) {
        snprintf(out->reason, sizeof out->reason, "CUPTI reported no activity of a GPU");
        return;
    }
    out->kernel_busy_ns = interval_join(log->compute, &log->n_compute);
    out->n_kernels = log->n_kernels;
    out->n_lost = log->n_lost;
    fill_top(log, out);
}
