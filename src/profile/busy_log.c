#include "profile/busy_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "profile/kernel_name.h"

/* Kernels are told apart by the hash of the whole name, not by the shortened name that is shown. */
typedef struct busy_name {
    uint64_t hash;
    busy_kernel sum;
} busy_name;

static const char *const kind_names[N_BUSY_KINDS] = {"(kernel)", "(memset)", "(copy on device)",
                                                     "(copy in)", "(copy out)"};

void busy_log_fini(busy_log *log) {
    mem_free(log->compute.all);
    mem_free(log->copies.all);
    mem_free(log->names);
    *log = (busy_log){0};
}

static status append(interval_list *list, interval x) {
    TRY(MEM_RESERVE(&list->all, &list->capacity, list->n + 1));
    list->all[list->n++] = x;
    return OK;
}

/* A few hundred names at most: a linear search over their hashes is cheap. */
static status find_name(busy_log *log, busy_kind kind, const char *name, busy_name **out) {
    const char *text = kind == BUSY_KERNEL && name != NULL ? name : kind_names[kind];
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

status busy_log_add(busy_log *log, busy_kind kind, const char *name, uint64_t start_ns,
                    uint64_t end_ns) {
    busy_name *at = NULL;
    bool is_between = kind == BUSY_COPY_IN || kind == BUSY_COPY_OUT;
    log->n_kind[kind]++;
    if (start_ns == 0 || end_ns < start_ns) {
        log->n_lost++;
        return OK;
    }
    TRY(append(is_between ? &log->copies : &log->compute, (interval){start_ns, end_ns}));
    TRY(find_name(log, kind, name, &at));
    at->sum.ns += end_ns - start_ns;
    at->sum.n_calls++;
    return OK;
}

status busy_log_take(busy_log *log, const gpu_record *r) {
    busy_kind kind;
    switch (r->kind) {
    case GPU_KERNEL:
        kind = BUSY_KERNEL;
        break;
    case GPU_MEMSET:
        kind = BUSY_MEMSET;
        break;
    case GPU_COPY_ON_DEVICE:
        kind = BUSY_COPY_ON_DEVICE;
        break;
    case GPU_COPY_IN:
        kind = BUSY_COPY_IN;
        break;
    case GPU_COPY_OUT:
        kind = BUSY_COPY_OUT;
        break;
    default:
        return OK;
    }
    return busy_log_add(log, kind, r->name, r->start_ns, r->end_ns);
}

static int compare_intervals(const void *a, const void *b) {
    const interval *x = a, *y = b;
    return (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
}

uint64_t interval_union_ns(interval *all, size_t n) {
    uint64_t sum = 0, covered_to = 0;
    if (n > 1) qsort(all, n, sizeof *all, compare_intervals);
    for (size_t i = 0; i < n; i++) {
        uint64_t from = all[i].start_ns > covered_to ? all[i].start_ns : covered_to;
        if (all[i].end_ns <= from) continue;
        sum += all[i].end_ns - from;
        covered_to = all[i].end_ns;
    }
    return sum;
}

/* From the first start to the last end; the intervals are sorted by start. */
static uint64_t span_ns(const interval *all, size_t n) {
    uint64_t last = all[0].end_ns;
    for (size_t i = 1; i < n; i++)
        if (all[i].end_ns > last) last = all[i].end_ns;
    return last - all[0].start_ns;
}

/* Longest first; equal ones by name, so that the table is the same every time. */
static int compare_names(const void *a, const void *b) {
    const busy_kernel *x = &((const busy_name *)a)->sum, *y = &((const busy_name *)b)->sum;
    if (x->ns != y->ns) return x->ns < y->ns ? 1 : -1;
    return strcmp(x->name, y->name);
}

static void fill_top(busy_log *log, busy_report *out) {
    if (log->n_names > 1) qsort(log->names, log->n_names, sizeof *log->names, compare_names);
    out->n_names = (int)log->n_names;
    out->n_top = out->n_names < BUSY_MAX_TOP ? out->n_names : BUSY_MAX_TOP;
    for (int i = 0; i < out->n_top; i++)
        out->top[i] = log->names[i].sum;
}

status busy_log_report(busy_log *log, busy_report *out) {
    interval_list *all = &log->compute;
    *out = (busy_report){0};
    if (all->n + log->copies.n == 0) {
        snprintf(out->reason, sizeof out->reason, "CUPTI reported no activity of a GPU");
        return OK;
    }
    uint64_t kernel_busy_ns = interval_union_ns(all->all, all->n);
    for (size_t i = 0; i < log->copies.n; i++)
        TRY(append(all, log->copies.all[i]));
    out->is_known = true;
    out->kernel_busy_ns = kernel_busy_ns;
    out->busy_ns = interval_union_ns(all->all, all->n);
    out->span_ns = span_ns(all->all, all->n);
    out->n_kernels = log->n_kind[BUSY_KERNEL];
    out->n_memsets = log->n_kind[BUSY_MEMSET];
    for (int kind = BUSY_COPY_ON_DEVICE; kind <= BUSY_COPY_OUT; kind++)
        out->n_copies += log->n_kind[kind];
    out->n_lost = log->n_lost;
    fill_top(log, out);
    return OK;
}
