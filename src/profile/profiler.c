#include "profile/profiler.h"

#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>

#include "profile/kernel_name.h"
#include "profile/op_timing.h"
#include "profile/peak.h"
#include "profile/record_file.h"

static profile *current;
static backend *watched; /* the one to wait for before records are read */
static profiler_options options;

static void wait_for_device(void) {
    if (watched != NULL) (void)watched->ops->sync(watched);
}

static void switch_cupti(profile *p) {
    if (p->has_counters) cupti_counters_set_on(p->recorder.is_on);
    if (!p->has_gpu || cupti_set_on(p->recorder.is_on)) return;
    p->has_gpu = false;
    snprintf(p->gpu_reason, sizeof p->gpu_reason, "%s", cupti_reason());
}

/* Signals that came since they were last asked for: an odd number of them switches. */
static atomic_int n_signals;

static void count_signal(int number) {
    atomic_fetch_add(&n_signals, 1);
}

/* Where a range begins or a step ends, on any thread: nothing is waited for, and a kernel that runs
 * just now is not counted. */
static void answer_signals(void) {
    recorder *r = &current->recorder;
    if (atomic_exchange(&n_signals, 0) % 2 == 0) return;
    if (r->is_on && current->has_gpu) cupti_flush();
    recorder_pause(r, !r->is_paused);
    switch_cupti(current);
}

/* The ranges that the calling thread is in. */
enum { MAX_RANGES = 64 };
static _Thread_local const char *ranges[MAX_RANGES];
static _Thread_local int n_ranges;

static void begin_range(const char *name, int64_t number) {
    if (n_ranges < MAX_RANGES) ranges[n_ranges] = name;
    n_ranges++;
    if (atomic_load_explicit(&n_signals, memory_order_relaxed) > 0) answer_signals();
    if (options.has_host) recorder_begin(&current->recorder, SPAN_RANGE, name, number);
}

static void end_range(void) {
    if (n_ranges > 0) n_ranges--;
    if (options.has_host) recorder_end(&current->recorder, 0);
}

/* A block belongs to the innermost range. */
static void note_memory(const void *at, uint64_t bytes) {
    if (!options.has_memory) return;
    int top = n_ranges < MAX_RANGES ? n_ranges : MAX_RANGES;
    int64_t change = (int64_t)bytes;
    if (bytes == 0)
        change = -(int64_t)memory_log_remove(&current->memory, at);
    else
        memory_log_add(&current->memory, at, bytes, top > 0 ? ranges[top - 1] : "other");
    if (options.has_host && change != 0) recorder_note_memory(&current->recorder, change);
}

/* Steps with a kernel of a new shape, or an evaluation between two of them, are why medians are
 * compared. */
static void note_step(profile *p, bool was_on, bool is_switch, uint64_t end_ns) {
    const recorder *r = &p->recorder;
    bool is_kept = r->schedule.active > 0 && r->n_active > 0; /* else it was before, or a warm-up */
    step_times *t = was_on ? &p->recorded : &p->plain;
    if (is_kept && !is_switch && p->last_end_ns != 0 && t->n < MAX_STEP_TIMES)
        t->ns[t->n++] = end_ns - p->last_end_ns;
    p->last_end_ns = is_switch ? 0 : end_ns;
}

static double median_of(const step_times *t) {
    step_times s = *t;
    sort_uint64(s.ns, (size_t)s.n);
    return ((double)s.ns[(s.n - 1) / 2] + (double)s.ns[s.n / 2]) / 2;
}

bool profile_cost(const profile *p, double *recorded_ns, double *plain_ns) {
    bool runs_ahead = p->has_gpu && strcmp(p->device, "cpu") != 0;
    int least = runs_ahead ? 30 : 3;
    if (p->recorded.n < least || p->plain.n < least) return false;
    *recorded_ns = median_of(&p->recorded);
    *plain_ns = median_of(&p->plain);
    return true;
}

static void end_step(void) {
    recorder *r = &current->recorder;
    bool was_on = r->is_on, is_switch = recorder_will_switch(r);
    if (is_switch) wait_for_device();
    uint64_t end_ns = clock_ns();
    if (is_switch && was_on && current->has_gpu) cupti_flush();
    recorder_step(r, end_ns);
    answer_signals();
    if (is_switch) switch_cupti(current);
    note_step(current, was_on, is_switch, end_ns);
}

static const range_watcher watcher = {begin_range, end_range, note_memory, end_step};
static const launch_mark mark = {cupti_mark_begin, cupti_mark_end};

/* The span that a record becomes, and its name where the record has none. */
static const uint8_t kinds[] = {
    [GPU_KERNEL] = SPAN_KERNEL,    [GPU_MEMSET] = SPAN_SET,    [GPU_COPY_ON_DEVICE] = SPAN_COPY,
    [GPU_COPY_IN] = SPAN_COPY,     [GPU_COPY_OUT] = SPAN_COPY, [GPU_UNIFIED_IN] = SPAN_COPY,
    [GPU_UNIFIED_OUT] = SPAN_COPY, [GPU_CALL] = SPAN_CALL,     [GPU_LINK] = N_SPAN_KINDS,
    [HOST_RANGE] = SPAN_RANGE};
static const char *const names[] = {[GPU_MEMSET] = "[CUDA memset]",
                                    [GPU_COPY_ON_DEVICE] = "[CUDA memcpy Device-to-Device]",
                                    [GPU_COPY_IN] = "[CUDA memcpy Host-to-Device]",
                                    [GPU_COPY_OUT] = "[CUDA memcpy Device-to-Host]",
                                    [GPU_UNIFIED_IN] = "[CUDA Unified Memory memcpy HtoD]",
                                    [GPU_UNIFIED_OUT] = "[CUDA Unified Memory memcpy DtoH]",
                                    [GPU_LINK] = ""};

/* "cudaLaunchKernel_v7000" is cudaLaunchKernel to everybody. */
static void call_name(const char *from, char out[RECORDER_NAME_BYTES]) {
    snprintf(out, RECORDER_NAME_BYTES, "%s", from);
    char *end = strrchr(out, '_');
    if (end != NULL && end[1] == 'v' && end[2] != '\0' &&
        strspn(end + 2, "0123456789") == strlen(end + 2))
        *end = '\0';
}

/* A link has no time; it is kept as a call, and resolved when all records are there. */
static status keep_record(profile *p, const gpu_record *r) {
    char name[RECORDER_NAME_BYTES];
    bool is_of_thread = r->kind == GPU_CALL || r->kind == HOST_RANGE;
    if (r->kind == GPU_DEVICE) {
        recorder_add_gpu(&p->recorder, r->gpu);
        return OK;
    }
    if (r->kind == GPU_COUNTERS) {
        double ns = (double)(r->end_ns - r->start_ns);
        kernel_name(r->name, name, sizeof name);
        recorder_add_counters(&p->recorder, name,
                              (double[]){1, ns, ns * (double)r->occupancy, ns * (double)r->tensor,
                                         (double)r->bytes, (double)r->mark});
        return OK;
    }
    if (r->kind == HOST_STEP) {
        recorder_add_step(&p->recorder, (int64_t)r->mark, r->stream == 1, r->start_ns, r->end_ns);
        return OK;
    }
    if (r->kind == GPU_FAULT || r->kind == HOST_FAULT) {
        *(r->kind == GPU_FAULT ? &p->unified.gpu_faults : &p->unified.host_faults) += r->bytes;
        return OK;
    }
    if (r->kind == GPU_UNIFIED_IN) p->unified.in_bytes += r->bytes;
    if (r->kind == GPU_UNIFIED_OUT) p->unified.out_bytes += r->bytes;
    span s = {.start_ns = r->start_ns,
              .end_ns = r->end_ns,
              .bytes = r->bytes,
              .op = r->kind == GPU_LINK ? (int64_t)r->mark : RECORDER_NO_OP,
              .number = -1,
              .correlation = r->correlation,
              .flop = r->flop,
              .moved = r->moved,
              .of_pair = r->of_pair,
              .pair_bytes = r->pair_bytes,
              .graph_op = r->graph_op,
              .is_first = r->is_first,
              .has_work = r->has_work,
              .lane = (uint16_t)(is_of_thread ? r->thread : r->stream),
              .device = (uint8_t)r->device};
    s.kind = kinds[r->kind];
    if (r->kind == GPU_KERNEL) kernel_name(r->name, name, sizeof name);
    if (r->kind == GPU_CALL) call_name(r->name, name);
    const char *text = r->kind == GPU_KERNEL || r->kind == GPU_CALL ? name
                       : r->kind == HOST_RANGE                      ? r->name
                                                                    : names[r->kind];
    recorder_add(&p->recorder, &s, text, r->kind == GPU_KERNEL ? &r->launch : NULL);
    return OK;
}

static status add_record(void *ctx, const gpu_record *r) {
    profile *p = ctx;
    return p->recorder.is_on || r->kind == GPU_DEVICE ? keep_record(p, r) : OK;
}

/* What it costs to record a span, on this machine, today. */
static double measure_cost(void) {
    enum { N = 20000 };
    recorder r;
    const recorder_schedule all = {0};
    recorder_init(&r, &all);
    recorder_start(&r);
    uint64_t start = clock_ns();
    for (int i = 0; i < N; i++) {
        recorder_begin(&r, SPAN_OP, "linear", -1);
        recorder_end(&r, 0);
    }
    double ns = (double)(clock_ns() - start) / N;
    recorder_fini(&r);
    return ns;
}

status profiler_start(profile *p, const profiler_options *o) {
    *p = (profile){0};
    memory_log_init(&p->memory);
    recorder_init(&p->recorder, &o->schedule);
    const cupti_sink sink = {p, add_record};
    p->has_counters = o->has_counters && cupti_counters_start(&sink);
    if (p->has_counters != o->has_counters)
        return fail(ERR_UNSUPPORTED, "--counters: %s", cupti_reason());
    p->span_ns = measure_cost();
    options = *o;
    current = p;
    p->recorder.has_memory = o->has_memory && o->has_host;
    watched = NULL;
    range_watch(&watcher);
    p->start_ns = clock_ns();
    unsigned what = CUPTI_GRAPHS | (o->has_host ? CUPTI_CALLS : 0);
    if (o->has_unified) what |= CUPTI_UNIFIED;
    p->has_gpu = o->has_gpu && !o->has_counters && cupti_start(&sink, what);
    if (!p->has_gpu)
        snprintf(p->gpu_reason, sizeof p->gpu_reason, "%s",
                 o->has_counters ? "counters were read instead (--counters)"
                 : o->has_gpu    ? cupti_reason()
                                 : "not asked for");
    atomic_store(&n_signals, 0);
    if (o->toggle > 0) {
        struct sigaction ours = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
        if (sigaction(o->toggle, &ours, NULL) != 0) return fail_errno("a handler of signals");
        recorder_pause(&p->recorder, true);
    }
    recorder_start(&p->recorder);
    switch_cupti(p);
    return OK;
}

bool profiler_is_running(void) {
    return current != NULL;
}

/* Outside of what is recorded.  A device without room for it has no peaks, and nothing fails. */
static void measure_peaks(profile *p, backend *be) {
    recorder *r = &p->recorder;
    bool was_paused = r->is_paused;
    failure before;
    failure_save(&before, OK);
    recorder_pause(r, true);
    switch_cupti(p);
    if (peak_measure(be, &r->peak_flop) != OK) r->peak_flop = 0;
    if (peak_measure_bytes(be, &r->peak_bytes) != OK) r->peak_bytes = 0;
    (void)failure_restore(&before);
    recorder_pause(r, was_paused);
    switch_cupti(p);
}

/* In the precision that the model computes in. */
static void measure_again(backend *be) {
    if (current != NULL) measure_peaks(current, be);
}

static void skip_memsets(void) {
    if (current == NULL || !current->has_gpu || options.has_memsets) return;
    current->skips_memsets = true;
    cupti_skip_memsets();
}

status profiler_watch(backend **be) {
    if (current == NULL) return OK;
    snprintf(current->device, sizeof current->device, "%s%s%s", (*be)->name,
             (*be)->card != NULL ? ", " : "", (*be)->card != NULL ? (*be)->card : "");
    if (options.has_peaks) measure_peaks(current, *be);
    const traced_options o = {.recorder = &current->recorder,
                              .mark = current->has_gpu ? &mark : NULL,
                              .on_precision = options.has_peaks ? measure_again : NULL,
                              .on_graph = skip_memsets,
                              .has_no_graphs = options.has_counters,
                              .has_shapes = options.has_shapes};
    if (options.has_host || options.has_counters) TRY(traced_create(be, *be, &o));
    cupti_flush_complete(); /* with the driver there, what needs it can begin */
    watched = *be;
    return OK;
}

status profiler_stop(profile *p) {
    status st = p->has_gpu ? cupti_stop(&p->n_gpu_lost) : OK;
    if (p->has_counters && !cupti_counters_stop())
        snprintf(p->gpu_reason, sizeof p->gpu_reason, "%s", cupti_reason());
    recorder_stop(&p->recorder);
    p->end_ns = clock_ns();
    range_watch(NULL);
    current = NULL;
    if (st == OK && p->has_gpu) st = recorder_link(&p->recorder);
    recorder_cut(&p->recorder, 0, 0);
    if (st == OK && options.range != NULL) st = recorder_keep_range(&p->recorder, options.range);
    return st;
}

uint64_t profile_recorded_ns(const profile *p) {
    const recorder *r = &p->recorder;
    bool is_partial = r->schedule.active > 0 || r->active_ns > 0;
    return is_partial ? r->active_ns : p->end_ns - p->start_ns;
}

void profile_fini(profile *p) {
    memory_log_fini(&p->memory);
    recorder_fini(&p->recorder);
    mem_free(p->lanes);
    p->lanes = NULL;
}

/* Correlation numbers begin again in each process, so each gets a range of its own. */
typedef struct loader {
    profile *p;
    uint32_t base, top;
    size_t first_lane, last_lane, capacity; /* of this process; the one found last */
    bool has_gpu;
} loader;

enum { MAX_LANES = 4096 }; /* the threads after that share the last one's */

/* The number of a thread's lane. */
static status find_lane(loader *l, uint32_t thread, bool may_overlap, uint32_t *out) {
    profile *p = l->p;
    size_t at = l->last_lane;
    if (at >= p->n_lanes || p->lanes[at].thread != thread ||
        p->lanes[at].may_overlap != may_overlap)
        for (at = l->first_lane; at < p->n_lanes; at++)
            if (p->lanes[at].thread == thread && p->lanes[at].may_overlap == may_overlap) break;
    if (at == p->n_lanes && at >= MAX_LANES) at--;
    if (at == p->n_lanes) {
        TRY(MEM_RESERVE(&p->lanes, &l->capacity, at + 1));
        p->lanes[p->n_lanes++] = (profile_lane){0, thread, may_overlap};
    }
    l->last_lane = at;
    *out = (uint32_t)at;
    return OK;
}

static void widen(profile *p, uint64_t start_ns, uint64_t end_ns) {
    if (start_ns == 0 || end_ns == 0) return; /* not known */
    if (p->start_ns == 0 || start_ns < p->start_ns) p->start_ns = start_ns;
    if (end_ns > p->end_ns) p->end_ns = end_ns;
}

static status load_record(void *ctx, const gpu_record *r) {
    loader *l = ctx;
    gpu_record moved = *r;
    if (r->correlation > 0) moved.correlation += l->base;
    if (moved.correlation > l->top) l->top = moved.correlation;
    if (r->kind != HOST_STEP) widen(l->p, r->start_ns, r->end_ns);
    if (r->kind == GPU_CALL || r->kind == HOST_RANGE)
        TRY(find_lane(l, r->thread, r->kind == HOST_RANGE && r->stream == 1, &moved.thread));
    if (r->kind < HOST_RANGE || r->kind == GPU_COUNTERS) l->has_gpu = true;
    return keep_record(l->p, &moved);
}

static status describe(const record_summary *s, buf *text) {
    TRY(buf_printf(text, "process %" PRId64 " (%s): %" PRIu64 " records", s->pid, s->command,
                   s->n_records));
    if (s->n_lost > 0) TRY(buf_printf(text, ", %" PRIu64 " dropped by CUPTI", s->n_lost));
    if (s->note[0] != '\0') TRY(buf_printf(text, "; %s", s->note));
    if (!s->is_whole)
        TRY(buf_text(text, "; it did not exit cleanly, so its last records may be missing"));
    return buf_char(text, '\n');
}

static status load_file(loader *l, const char *path, buf *text) {
    record_summary s;
    l->has_gpu = false;
    l->first_lane = l->last_lane = l->p->n_lanes;
    size_t first_span = l->p->recorder.n_spans, first_step = l->p->recorder.n_steps;
    TRY(record_file_read(path, load_record, l, &s));
    recorder_cut(&l->p->recorder, first_span, first_step);
    for (size_t i = l->first_lane; i < l->p->n_lanes; i++)
        l->p->lanes[i].pid = s.pid;
    l->base = l->top;
    l->p->n_gpu_lost += s.n_lost;
    l->p->has_gpu = l->p->has_gpu || l->has_gpu;
    if (s.note[0] != '\0') snprintf(l->p->gpu_reason, sizeof l->p->gpu_reason, "%s", s.note);
    return describe(&s, text);
}

static bool is_record_file(const char *name) {
    size_t n = strlen(name);
    return n > 8 && strcmp(name + n - 8, ".records") == 0;
}

static status load_all(loader *l, const char *folder, buf *text) {
    char path[4096];
    DIR *dir = opendir(folder);
    if (dir == NULL) return fail_errno("%s", folder);
    status st = OK;
    for (struct dirent *e = readdir(dir); st == OK && e != NULL; e = readdir(dir)) {
        if (!is_record_file(e->d_name)) continue;
        st = path_join(path, sizeof path, folder, e->d_name);
        if (st == OK) st = load_file(l, path, text);
    }
    closedir(dir);
    return st;
}

status profile_load(profile *p, const char *folder, const recorder_schedule *schedule,
                    buf *out_text) {
    loader l = {.p = p};
    *p = (profile){0};
    memory_log_init(&p->memory);
    recorder_init(&p->recorder, schedule);
    TRY(load_all(&l, folder, out_text));
    if (!p->has_gpu && p->gpu_reason[0] == '\0')
        snprintf(p->gpu_reason, sizeof p->gpu_reason,
                 "no process of the program used CUDA's driver (or CUDA_INJECTION64_PATH was "
                 "removed from its environment)");
    if (p->recorder.n_gpus > 0)
        snprintf(p->device, sizeof p->device, "cuda, %s", p->recorder.gpus[0].name);
    TRY(recorder_link(&p->recorder));
    return recorder_nest(&p->recorder);
}
