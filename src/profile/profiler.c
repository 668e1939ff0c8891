#include "profile/profiler.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/range.h"
#include "profile/busy_log.h"
#include "profile/cupti.h"
#include "profile/traced.h"

static profile *current;
static backend *watched; /* the one to wait for before records are read */
static profiler_options options;

static void begin_range(const char *name, int64_t number) {
    if (options.has_host) recorder_begin(&current->recorder, SPAN_RANGE, name, number);
}

static void end_range(void) {
    if (options.has_host) recorder_end(&current->recorder, 0);
}

static void end_step(void) {
    if (current->has_gpu && recorder_will_switch(&current->recorder)) {
        if (watched != NULL) (void)watched->ops->sync(watched);
        cupti_flush();
    }
    recorder_step(&current->recorder);
}

static const range_watcher watcher = {begin_range, end_range, end_step};
static const launch_mark mark = {cupti_mark_begin, cupti_mark_end};

static const char *copy_name(gpu_record_kind kind) {
    switch (kind) {
    case GPU_COPY_IN:
        return "[CUDA memcpy Host-to-Device]";
    case GPU_COPY_OUT:
        return "[CUDA memcpy Device-to-Host]";
    case GPU_COPY_ON_DEVICE:
        return "[CUDA memcpy Device-to-Device]";
    default:
        return "[CUDA memset]";
    }
}

/* "cudaLaunchKernel_v7000" is cudaLaunchKernel to everybody. */
static void call_name(const char *from, char out[BUSY_NAME_BYTES]) {
    snprintf(out, BUSY_NAME_BYTES, "%s", from);
    char *end = strrchr(out, '_');
    if (end != NULL && end[1] == 'v' && end[2] != '\0' &&
        strspn(end + 2, "0123456789") == strlen(end + 2))
        *end = '\0';
}

/* A link has no time; it is kept as a call, and resolved when all records are there. */
static status add_record(void *ctx, const gpu_record *r) {
    profile *p = ctx;
    char name[BUSY_NAME_BYTES];
    span s = {.start_ns = r->start_ns,
              .end_ns = r->end_ns,
              .bytes = r->bytes,
              .op = r->kind == GPU_LINK ? (int64_t)r->mark : RECORDER_NO_OP,
              .number = -1,
              .correlation = r->correlation,
              .lane = (uint16_t)(r->kind == GPU_CALL ? r->thread : r->stream),
              .device = (uint8_t)r->device};
    if (!p->recorder.is_on) return OK;
    if (r->kind == GPU_LINK) {
        s.kind = N_SPAN_KINDS;
        recorder_add(&p->recorder, &s, "", NULL);
    } else if (r->kind == GPU_KERNEL) {
        s.kind = SPAN_KERNEL;
        busy_kernel_name(r->name, name);
        recorder_add(&p->recorder, &s, name, &r->launch);
    } else if (r->kind == GPU_CALL) {
        s.kind = SPAN_CALL;
        call_name(r->name, name);
        recorder_add(&p->recorder, &s, name, NULL);
    } else {
        s.kind = r->kind == GPU_MEMSET ? SPAN_SET : SPAN_COPY;
        recorder_add(&p->recorder, &s, copy_name(r->kind), NULL);
    }
    return OK;
}

/* What it costs to record a span, on this machine, today. */
static status measure_cost(double *ns) {
    enum { N = 20000 };
    recorder r;
    const recorder_schedule all = {0};
    status st = recorder_init(&r, &all);
    recorder_start(&r);
    uint64_t start = clock_ns();
    for (int i = 0; i < N; i++) {
        recorder_begin(&r, SPAN_OP, "linear", -1);
        recorder_end(&r, 0);
    }
    *ns = (double)(clock_ns() - start) / N;
    recorder_fini(&r);
    return st;
}

status profiler_start(profile *p, const profiler_options *o) {
    *p = (profile){0};
    TRY(recorder_init(&p->recorder, &o->schedule));
    TRY(measure_cost(&p->span_ns));
    options = *o;
    current = p;
    watched = NULL;
    range_watch(&watcher);
    p->start_ns = clock_ns();
    const cupti_sink sink = {p, NULL, add_record};
    p->has_gpu = o->has_gpu && cupti_start(&sink, true);
    if (!p->has_gpu)
        snprintf(p->gpu_reason, sizeof p->gpu_reason, "%s",
                 o->has_gpu ? cupti_reason() : "not asked for");
    recorder_start(&p->recorder);
    return OK;
}

bool profiler_is_running(void) {
    return current != NULL;
}

status profiler_watch(backend **be) {
    if (current == NULL) return OK;
    snprintf(current->device, sizeof current->device, "%s%s%s", (*be)->name,
             (*be)->card != NULL ? ", " : "", (*be)->card != NULL ? (*be)->card : "");
    if (options.has_host)
        TRY(traced_create(be, *be, &current->recorder, current->has_gpu ? &mark : NULL));
    watched = *be;
    return OK;
}

/* Gives what the GPU ran the op that launched it, and takes the links out. */
static status resolve_links(recorder *r) {
    uint32_t top = 0;
    int64_t *op_of;
    for (size_t i = 0; i < r->n_spans; i++)
        if (r->spans[i].correlation > top) top = r->spans[i].correlation;
    TRY(mem_alloc_raw((void **)&op_of, (size_t)top + 1, sizeof *op_of));
    for (uint32_t i = 0; i <= top && top < UINT32_MAX; i++)
        op_of[i] = RECORDER_NO_OP;
    for (size_t i = 0; i < r->n_spans; i++)
        if (r->spans[i].kind == N_SPAN_KINDS) op_of[r->spans[i].correlation] = r->spans[i].op;
    size_t n = 0, *moved;
    status st = mem_alloc_raw((void **)&moved, r->n_spans + 1, sizeof *moved);
    for (size_t i = 0; st == OK && i < r->n_spans; i++) {
        moved[i] = n;
        if (r->spans[i].kind == N_SPAN_KINDS) continue;
        r->spans[n] = r->spans[i];
        if (r->spans[n].correlation > 0) r->spans[n].op = op_of[r->spans[n].correlation];
        n++;
    }
    for (size_t i = 0; st == OK && i < n; i++) {
        span *s = &r->spans[i];
        bool is_known = s->op >= 0 && (size_t)s->op < r->n_spans;
        s->op = is_known ? (int64_t)moved[s->op] : RECORDER_NO_OP;
    }
    if (st == OK) r->n_spans = n;
    mem_free(op_of);
    mem_free(moved);
    return st;
}

status profiler_stop(profile *p) {
    bool is_complete;
    status st = p->has_gpu ? cupti_stop(&is_complete, &p->n_gpu_lost) : OK;
    recorder_stop(&p->recorder);
    p->end_ns = clock_ns();
    range_watch(NULL);
    current = NULL;
    if (st == OK && p->has_gpu) st = resolve_links(&p->recorder);
    return st;
}

void profile_fini(profile *p) {
    recorder_fini(&p->recorder);
}
