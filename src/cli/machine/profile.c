/* hstu profile: what a command does, op by op and kernel by kernel.  From top to bottom: the HTML
 * page (timeline, tables, idle gaps, advice), the tables on stdout, another program (started with
 * CUDA's injection library set to ours, src/profile/inject.c), the command. */
#include <signal.h>
#include <sys/wait.h>

#include "cli/machine/profile.h"
#include "cli/output.h"
#include "cli/work.h"
#include "format/json.h"
#include "profile/gpu_time.h"
#include "profile/tables.h"
#include "profile/trace.h"
#include "profile/utilization.h"
#include "train/report/report.h"

/* What a browser draws with ease; of more spans the longest are drawn. */
enum { MAX_DRAWN = 40000, TOP_ROWS = 20 };

/* Names of files after the folder's are shorter than the rest. */
enum { MAX_OUT = SHOW_PATH_BYTES - 400 };

TEXT_FILE(timeline_js, "src/cli/machine/timeline.js");

/* Lanes: first the host's threads, then CUDA's calls, then streams as they come. */
typedef struct lanes {
    struct {
        int device, stream;
    } gpu[64];
    int n_gpu, n_threads;
} lanes;

static int lane_of(lanes *l, const span *s) {
    if (!span_is_on_gpu(s)) return s->kind == SPAN_CALL ? l->n_threads : s->lane;
    for (int i = 0; i < l->n_gpu; i++)
        if (l->gpu[i].device == s->device && l->gpu[i].stream == s->lane)
            return l->n_threads + 1 + i;
    if (l->n_gpu == 64) return l->n_threads + 64; /* the last one takes the rest */
    l->gpu[l->n_gpu].device = s->device;
    l->gpu[l->n_gpu].stream = s->lane;
    return l->n_threads + 1 + l->n_gpu++;
}

static int depth_of(const recorder *r, const span *s) {
    int depth = 0;
    if (span_is_on_gpu(s) || s->kind == SPAN_CALL) return 0;
    for (int64_t at = s->op; at != RECORDER_NO_OP; at = r->spans[at].op)
        depth++;
    return depth;
}

/* The length from which on spans are drawn. */
static status shortest_drawn(const recorder *r, uint64_t *ns) {
    uint64_t *all;
    *ns = 0;
    if (r->n_spans <= MAX_DRAWN) return OK;
    TRY(mem_alloc_raw((void **)&all, r->n_spans, sizeof *all));
    for (size_t i = 0; i < r->n_spans; i++)
        all[i] = r->spans[i].end_ns == 0 ? 0 : r->spans[i].end_ns - r->spans[i].start_ns;
    sort_uint64(all, r->n_spans);
    *ns = all[r->n_spans - 1 - MAX_DRAWN] + 1;
    mem_free(all);
    return OK;
}

static uint64_t first_start(const recorder *r) {
    uint64_t first = UINT64_MAX;
    for (size_t i = 0; i < r->n_spans; i++)
        if (r->spans[i].end_ns != 0 && r->spans[i].start_ns < first) first = r->spans[i].start_ns;
    return first;
}

static void put_spans(json_writer *j, const recorder *r, lanes *l, uint64_t shortest) {
    uint64_t first = first_start(r);
    json_key_array(j, "spans");
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (s->end_ns == 0 || s->end_ns - s->start_ns < shortest) continue;
        json_array_open(j);
        json_int(j, lane_of(l, s));
        json_int(j, depth_of(r, s));
        json_double(j, (double)(s->start_ns - first) / 1e3);
        json_double(j, (double)(s->end_ns - s->start_ns) / 1e3);
        json_int(j, s->name);
        json_array_close(j);
    }
    json_array_close(j);
}

static void put_names(json_writer *j, const recorder *r, const lanes *l) {
    json_key_array(j, "names");
    for (size_t i = 0; i < r->names.n; i++)
        json_string(j, recorder_text(r, i));
    json_array_close(j);
    json_key_array(j, "lanes");
    for (int i = 0; i < l->n_threads; i++)
        json_string(j, show_printf("thread %d", i));
    json_string(j, "CUDA calls");
    for (int i = 0; i < l->n_gpu; i++)
        json_string(j, show_printf("GPU %d stream %d", l->gpu[i].device, l->gpu[i].stream));
    json_array_close(j);
}

/* "</script>" inside a name would end the script. */
static status put_safely(buf *out, const char *json) {
    for (; *json != '\0'; json++)
        TRY(*json == '<' ? buf_text(out, "\\u003c") : buf_char(out, *json));
    return OK;
}

static status put_timeline(const recorder *r, buf *out) {
    lanes l = {.n_threads = r->n_threads > 0 ? r->n_threads : 1};
    uint64_t shortest;
    json_writer j;
    buf data = {0};
    TRY(shortest_drawn(r, &shortest));
    TRY(buf_text(out, "<h2>Timeline</h2>\n"));
    if (shortest > 0)
        TRY(buf_printf(out, "<p class=dim>%zu spans; the %d longest are drawn.</p>\n", r->n_spans,
                       MAX_DRAWN));
    TRY(buf_text(out, "<p class=dim>The wheel, or + and -, zooms; dragging, or the arrows, "
                      "moves.</p>\n<canvas id=t tabindex=0 style=\"width:100%;touch-action:none\" "
                      "aria-label=\"Timeline\"></canvas><pre id=tip> </pre>\n<script>\nconst D="));
    json_begin_object(&j, &data, 0);
    put_spans(&j, r, &l, shortest);
    put_names(&j, r, &l);
    status st = json_finish_object(&j);
    if (st == OK) st = put_safely(out, buf_str(&data));
    buf_fini(&data);
    TRY(st);
    TRY(buf_text(out, ";\n"));
    TRY(buf_text(out, timeline_js));
    return buf_text(out, "</script>\n");
}

/* A report, or, as one more of them, whose memory it was. */
enum { TABLE_MEMORY = N_REPORTS, N_TABLES };
static status make_table(const profile *p, int kind, profile_table *out) {
    return kind == TABLE_MEMORY ? memory_log_table(&p->memory, out)
                                : profile_table_make(out, &p->recorder, (report_kind)kind);
}

static status put_table(const profile *p, int kind, buf *out) {
    profile_table t;
    buf text = {0};
    TRY(make_table(p, kind, &t));
    status st = t.n_rows > 0 ? profile_table_text(&t, TOP_ROWS, &text) : OK;
    if (st == OK && t.n_rows > 0) st = page_text(out, t.title, "h2");
    if (st == OK && t.n_rows > 0) st = page_text(out, buf_str(&text), "pre");
    buf_fini(&text);
    profile_table_fini(&t);
    return st;
}

static status put_gaps(const gpu_idle *g, const recorder *r, buf *out) {
    TRY(buf_text(out,
                 "<h2>Where the GPU was idle</h2>\n<table class=text><tr><th>cause<th>gaps<th>ms"
                 "<th>share\n"));
    for (int i = 0; i < N_GAP_CAUSES; i++) {
        if (g->cause[i].n == 0) continue;
        TRY(buf_text(out, "<tr>"));
        TRY(page_text(out, gap_cause_name((gap_cause)i), "td"));
        TRY(buf_printf(out, "<td>%" PRIu64 "<td>%.3f<td>%.1f %%\n", g->cause[i].n,
                       (double)g->cause[i].ns / 1e6,
                       100 * (double)g->cause[i].ns / (double)g->span_ns));
    }
    TRY(buf_text(
        out, "</table>\n<p>The longest:</p>\n<table class=text><tr><th>us<th>before<th>cause\n"));
    for (int i = 0; i < g->n_longest; i++) {
        TRY(buf_printf(out, "<tr><td>%.1f", (double)g->longest[i].ns / 1e3));
        TRY(page_text(out, recorder_name(r, &r->spans[g->longest[i].n]), "td"));
        TRY(page_text(out, gap_cause_name(g->longest_cause[i]), "td"));
    }
    return buf_text(out, "</table>\n");
}

static status put_tiles(const profile *p, const gpu_idle *g, buf *out) {
    const recorder *r = &p->recorder;
    TRY(buf_text(out, "<div class=tiles>\n"));
    TRY(page_tile(out, "device", "%s", p->device[0] != '\0' ? p->device : "none"));
    TRY(page_tile(out, "recorded", "%.3f s", (double)profile_recorded_ns(p) / 1e9));
    if (r->n_active > 0) TRY(page_tile(out, "steps", "%" PRId64, r->n_active));
    if (g->span_ns > 0)
        TRY(page_tile(out, "GPU busy", "%.1f %%", 100 * (double)g->busy_ns / (double)g->span_ns));
    return buf_text(out, "</div>\n");
}

static status put_roofline(const profile *p, buf *out) {
    const recorder *r = &p->recorder;
    buf picture = {0};
    status st = roofline_svg(r, &picture);
    if (st == OK && picture.n_bytes > 0)
        st =
            buf_printf(out,
                       "<h2>Roofline</h2>\n<p class=dim>The line is what this device reaches: %.3g "
                       "TFLOP/s in large products, %.0f GB/s in copies, both measured before the "
                       "run. A circle is an op; its size is its share of the time.</p>\n%s",
                       r->peak_flop / 1e12, r->peak_bytes / 1e9, buf_str(&picture));
    buf_fini(&picture);
    TRY(st);
    return put_table(p, REPORT_WORK, out);
}

static status put_page(const profile *p, buf *out) {
    const recorder *r = &p->recorder;
    gpu_idle g;
    buf advice = {0};
    TRY(gpu_idle_find(&g, r));
    TRY(page_open(out, "Profile"));
    TRY(buf_text(out, "<h1>Profile</h1>\n"));
    TRY(put_tiles(p, &g, out));
    status st = gpu_idle_advice(&g, &advice);
    if (st == OK) st = launches_advice(r, &advice);
    if (st == OK) st = roofline_advice(r, &advice);
    if (st == OK && advice.n_bytes > 0) st = page_text(out, buf_str(&advice), "p");
    buf_fini(&advice);
    TRY(st);
    TRY(put_timeline(r, out));
    if (g.span_ns > 0) TRY(put_gaps(&g, r, out));
    TRY(put_roofline(p, out));
    static const int tables[] = {REPORT_OPS,      REPORT_KERNELS, REPORT_LAUNCHES,
                                 REPORT_COUNTERS, REPORT_COPIES,  TABLE_MEMORY};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        TRY(put_table(p, tables[i], out));
    return page_close(out);
}

static status profile_page_write(const profile *p, const char *path) {
    buf page = {0};
    return file_save(NULL, path, &page, put_page(p, &page));
}

/* A table without rows has no file; one of an earlier profile is removed. */
static status write_csv(const char *folder, const char *name, const buf *text) {
    const char *path = show_join(folder, show_printf("%s.csv", name));
    if (text->n_bytes > 0) return file_write(path, buf_str(text), text->n_bytes);
    return unlink(path) == 0 || errno == ENOENT ? OK : fail_errno("%s", path);
}

static status print_table(profile_table *t, const profile_view *v, buf *text) {
    bool is_json = v->format == PROFILE_JSON;
    if (v->sort_by != NULL && t->looks == LOOKS_TORCH) TRY(profile_table_sort(t, v->sort_by));
    buf_clear(text);
    if (is_json)
        TRY(profile_table_json(t, v->row_limit, text));
    else if (v->format == PROFILE_CSV)
        TRY(profile_table_csv(t, v->row_limit, text));
    else
        TRY(profile_table_text(t, v->row_limit, text));
    printf("%s%s", buf_str(text), is_json ? "" : "\n");
    return OK;
}

/* In the folder every row as csv, on stdout what was asked for. */
static status show_table(const profile *p, int kind, const profile_view *v) {
    profile_table t;
    buf text = {0};
    TRY(make_table(p, kind, &t));
    status st = t.n_rows > 0 ? profile_table_csv(&t, -1, &text) : OK;
    if (st == OK) st = write_csv(v->out, t.id, &text);
    if (st == OK && t.n_rows > 0 && v->format != PROFILE_SILENT) st = print_table(&t, v, &text);
    buf_fini(&text);
    profile_table_fini(&t);
    return st;
}

static void tell_cost(const profile *p) {
    const recorder *r = &p->recorder;
    if (r->peak_flop > 0)
        log_info("peaks, measured before: %.4g TFLOP/s in products, %.0f GB/s in copies",
                 r->peak_flop / 1e12, r->peak_bytes / 1e9);
    double wall = (double)profile_recorded_ns(p);
    double share = wall > 0 ? 100 * (double)r->n_spans * p->span_ns / wall : 0;
    if (p->span_ns > 0)
        log_info("%zu spans in %.3f s; recording took about %.2f %% of it (%.0f ns a span)",
                 r->n_spans, wall / 1e9, share, p->span_ns);
    else
        log_info("%zu spans in %.3f s", r->n_spans, wall / 1e9);
    if (r->schedule.active > 0)
        log_info("%" PRId64 " step%s kept of %" PRId64, r->n_active, r->n_active == 1 ? "" : "s",
                 r->step);
    double with, without;
    if (profile_cost(p, &with, &without))
        log_info("a recorded step took %.3f ms, one of the %d after it without recording %.3f ms "
                 "(medians): recording costs %.2f %%",
                 with / 1e6, p->plain.n, without / 1e6, 100 * (with / without - 1));
    const unified_sums *u = &p->unified;
    if (u->in_bytes + u->out_bytes + u->gpu_faults + u->host_faults > 0)
        log_info("unified memory: %.3f MB moved to the GPU, %.3f MB back; %" PRIu64
                 " page faults of the GPU, %" PRIu64 " of the CPU",
                 (double)u->in_bytes / 1e6, (double)u->out_bytes / 1e6, u->gpu_faults,
                 u->host_faults);
    if (p->memory.n_owners > 0)
        log_info("device memory at the peak: %.3f MB", (double)p->memory.peak / 1e6);
    if (r->n_dropped > 0) log_warn("%" PRIu64 " spans were dropped: too many", r->n_dropped);
    if (p->skips_memsets)
        log_info(
            "steps were replayed as CUDA graphs, where the record of a memset costs most: there "
            "are none of memsets (--memsets)");
    if (p->n_gpu_lost > 0) log_warn("CUPTI dropped %" PRIu64 " records", p->n_gpu_lost);
    if (!p->has_gpu) log_info("No records of a GPU: %s", p->gpu_reason);
}

/* A line of the log for each. */
static void tell_lines(const char *text) {
    for (size_t n; *text != '\0'; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        log_info("%.*s", (int)n, text);
    }
}

/* What ranks say to each other: of a step, or of everything. */
static status tell_comm(const recorder *r) {
    comm_time t;
    int64_t n = r->schedule.active > 0 ? r->n_active : r->step;
    TRY(comm_time_find(&t, r));
    if (t.n == 0) return OK;
    double ms = (double)t.all_ns / 1e6 / (double)(n > 0 ? n : 1);
    double hidden = (double)t.hidden_ns / (double)(t.all_ns > 0 ? t.all_ns : 1);
    log_info(
        "communication: %.3f ms%s, %.1f %% of it beside other work of the GPU; exposed %.3f ms", ms,
        n > 0 ? " a step" : "", 100 * hidden, ms * (1 - hidden));
    return OK;
}

/* Busy and idle time of the GPU, and what the figures suggest. */
static status tell_idle(const profile *p) {
    const recorder *r = &p->recorder;
    gpu_idle g;
    buf text = {0};
    TRY(gpu_idle_find(&g, r));
    if (g.span_ns == 0) return OK;
    log_info("GPU busy %.1f %% of %.3f ms", 100 * (double)g.busy_ns / (double)g.span_ns,
             (double)g.span_ns / 1e6);
    for (int i = 0; i < N_GAP_CAUSES; i++)
        if (g.cause[i].n > 0)
            log_info("  idle %.1f %% in %" PRIu64 " gaps: %s",
                     100 * (double)g.cause[i].ns / (double)g.span_ns, g.cause[i].n,
                     gap_cause_name((gap_cause)i));
    TRY(tell_comm(r));
    status st = gpu_idle_advice(&g, &text);
    if (st == OK) st = launches_advice(r, &text);
    if (st == OK) st = roofline_advice(r, &text);
    if (st == OK) tell_lines(buf_str(&text));
    buf_fini(&text);
    return st;
}

/* trace.json, or what torch.profiler.tensorboard_trace_handler calls it: the worker, and the time,
 * by which the plugin puts traces of one worker in order. */
static status write_trace(const profile *p, const profile_view *v, uint16_t cycle) {
    char host[256] = "localhost";
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    gethostname(host, sizeof host - 1);
    const char *name = cycle > 0 ? show_printf("trace-%d.json", cycle + 1) : "trace.json";
    if (v->is_tensorboard)
        name = show_printf("%s_%ld.%lld%09ld.pt.trace.json", host, (long)getpid(),
                           (long long)now.tv_sec, now.tv_nsec);
    const char *path = show_join(v->out, name);
    TRY(trace_write(p, cycle, v->is_tensorboard, path));
    log_info("%s   for %s; every table is beside it as csv", show_path(path),
             v->is_tensorboard ? "tensorboard --logdir (with the package torch-tb-profiler)"
                               : "chrome://tracing or ui.perfetto.dev");
    return OK;
}

/* One for each cycle; each takes time with the number of all spans. */
static status write_traces(const profile *p, const profile_view *v) {
    enum { MAX_TRACES = 100 };
    int last = 0;
    for (size_t i = 0; i < p->recorder.n_steps; i++)
        if (p->recorder.steps[i].cycle > last) last = p->recorder.steps[i].cycle;
    status st = OK;
    for (int cycle = 0; st == OK && cycle <= last && cycle < MAX_TRACES; cycle++)
        st = write_trace(p, v, (uint16_t)cycle);
    /* An earlier profile may have had more cycles. */
    for (int i = last + 2; st == OK && !v->is_tensorboard && i <= MAX_TRACES; i++)
        (void)unlink(show_join(v->out, show_printf("trace-%d.json", i)));
    if (last >= MAX_TRACES)
        log_warn("only the first %d of %d cycles have a trace; --repeat ends after fewer",
                 MAX_TRACES, last + 1);
    return st;
}

status profile_show(const profile *p, const profile_view *v) {
    if (strlen(v->out) > MAX_OUT) return fail(ERR_USAGE, "--out: the path is too long");
    TRY(folder_create(v->out, NULL));
    for (int i = 0; i < N_TABLES; i++)
        TRY(show_table(p, i, v));
    TRY(tell_idle(p));
    tell_cost(p);
    if (v->range != NULL && p->recorder.n_spans == 0)
        log_warn("no range '%s' was recorded; a profile without --range lists all", v->range);
    TRY(write_traces(p, v));
    TRY(profile_page_write(p, show_join(v->out, "report.html")));
    log_info("%s   timeline, tables and idle gaps in one page",
             show_path(show_join(v->out, "report.html")));
    return OK;
}

enum { EXIT_NOT_STARTED = 127 };

static bool is_program(const char *path) {
    return access(path, X_OK) == 0 && !folder_exists(path);
}

/* Where a program that may be started is: its name is a path, or on PATH; NULL: nowhere. */
static const char *find_program(const char *name) {
    const char *folders = env_path();
    if (strchr(name, '/') != NULL) return is_program(name) ? name : NULL;
    while (folders != NULL && *folders != '\0') {
        size_t n = strcspn(folders, ":");
        const char *path = show_printf("%.*s/%s", (int)n, folders, name);
        if (n > 0 && is_program(path)) return path;
        folders += n + (folders[n] == ':');
    }
    return NULL;
}

/* Whether a path is this very program. */
static bool is_own(const char *path) {
    char own[CONFIG_PATH_BYTES];
    return work_own_path(own) == OK && file_is_same(own, path);
}

/* hstu-inject.so beside the program, or where `make install` puts it. */
static status find_library(char path[PATH_MAX]) {
    static const char *const places[] = {"hstu-inject.so", "../hstu-inject.so",
                                         "../lib/hstu/hstu-inject.so"};
    char program[CONFIG_PATH_BYTES], near[PATH_MAX];
    TRY(work_own_path(program));
    char *end = strrchr(program, '/');
    if (end != NULL) *end = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (path_join(near, sizeof near, program, places[i]) == OK && realpath(near, path) != NULL)
            return OK;
    return fail(ERR_UNSUPPORTED, "hstu-inject.so, which records in other programs, is not beside "
                                 "the program; run make again");
}

/* In the child.  Output goes to stderr: stdout is for the tables. */
static void start_program(char **argv, const char *library, const char *folder,
                          const profiler_options *o) {
    const recorder_schedule *s = &o->schedule;
    const injection told = {.folder = folder,
                            .step = o->step != NULL ? o->step : "",
                            .schedule = {s->wait, s->warmup, s->active, s->repeat},
                            .signal = o->toggle,
                            .has_unified = o->has_unified,
                            .has_counters = o->has_counters};
    if (dup2(STDERR_FILENO, STDOUT_FILENO) >= 0 && env_set_injection(library, &told) == OK) {
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        execvp(argv[0], argv);
    }
    log_warn("%s cannot be started: %s", argv[0], strerror(errno));
    _exit(EXIT_NOT_STARTED);
}

static volatile sig_atomic_t child;

/* Whoever ends or switches the profiler means the program. */
static void pass_on(int number) {
    if (child > 0) kill((pid_t)child, number);
}

static status wait_for_child(pid_t pid, int *how) {
    while (waitpid(pid, how, 0) < 0)
        if (errno != EINTR) return fail_errno("waiting for the program");
    child = 0;
    return OK;
}

static status check_end(const char *name, int how) {
    if (WIFSIGNALED(how))
        return fail(ERR_IO, "%.100s was ended by signal %d (%s)", name, WTERMSIG(how),
                    strsignal(WTERMSIG(how)));
    if (!WIFEXITED(how) || WEXITSTATUS(how) == 0) return OK;
    return fail(ERR_IO, "%.100s ended with exit code %d", name, WEXITSTATUS(how));
}

static status run_program(char **argv, const char *folder, const profiler_options *o, int *how) {
    char library[PATH_MAX];
    TRY(find_library(library));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) return fail_errno("fork");
    if (pid == 0) start_program(argv, library, folder, o);
    child = pid;
    struct sigaction ours = {.sa_handler = pass_on}, ignored = {.sa_handler = SIG_IGN};
    sigaction(SIGINT, &ignored, NULL); /* a terminal sends it to the program as well */
    sigaction(SIGTERM, &ours, NULL);
    if (o->toggle > 0) sigaction(o->toggle, &ours, NULL);
    return wait_for_child(pid, how);
}

/* Runs the program with its output on stderr, waits, and fills the profile, which is to be ended by
 * profile_fini in any case.  The records go to a folder inside `out` for the time being.  *how: how
 * the program ended, as of wait. */
static status profile_program(profile *p, char **argv, const char *out, const profiler_options *o,
                              int *how) {
    scratch_folder *records = NULL;
    char folder[PATH_MAX];
    buf text = {0};
    *p = (profile){0};
    *how = 0;
    TRY(scratch_folder_create(&records, out, "records-"));
    status st = realpath(scratch_folder_path(records), folder) != NULL ? OK : fail_errno("%s", out);
    if (st == OK) st = run_program(argv, folder, o, how);
    if (st == OK) st = profile_load(p, folder, &o->schedule, &text);
    if (st == OK) tell_lines(buf_str(&text));
    if (st == OK && o->step != NULL && p->recorder.step == 0)
        log_warn("no NVTX range '%s' ended in the program, so nothing was recorded; run it without "
                 "--step and --active to see which ranges it has",
                 o->step);
    if (st == OK && o->range != NULL) st = recorder_keep_range(&p->recorder, o->range);
    buf_fini(&text);
    scratch_folder_destroy(records);
    return st;
}

enum { MAX_WORDS = 256 };

static const char *const activity_names[] = {"cpu", "cuda", "cpu,cuda", NULL};
static const char *const signal_names[] = {"SIGUSR1", "SIGUSR2", NULL};
static const char *const format_names[] = {"table", "csv", "json", NULL}; /* profile_format */

typedef struct profile_args {
    profiler_options o;
    int activities, toggle_by; /* of activity_names, of signal_names; toggle_by -1: none */
    bool has_no_peaks;
    profile_view view;
} profile_args;

static const command *known;

void profile_set_commands(const command *commands) {
    known = commands;
}

static const command *find_command(const char *name) {
    for (const command *c = known; c != NULL && c->name != NULL; c++)
        if (c->run != NULL && strcmp(c->name, name) == 0 && strcmp(name, "profile") != 0) return c;
    return NULL;
}

/* While the command runs its output goes to stderr: stdout is for the tables. */
static status run_apart(const command *c, int argc, char **argv) {
    fflush(stdout);
    setvbuf(stdout, NULL, _IOLBF, 0); /* no line of the log comes in the middle of one */
    int out = dup(STDOUT_FILENO);
    if (out < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return fail_errno("stdout");
    status st = c->run(argc, argv);
    if (st != OK) st = fail_prefix(st, "%s", c->name);
    fflush(stdout);
    if (dup2(out, STDOUT_FILENO) < 0 && st == OK) st = fail_errno("stdout");
    close(out);
    return st;
}

static status check(const profile_args *a) {
    const recorder_schedule *s = &a->o.schedule;
    bool has_schedule = s->wait > 0 || s->warmup > 0 || s->active > 0 || s->repeat > 0;
    if (a->o.toggle > 0 && (has_schedule || a->o.step != NULL))
        return fail(ERR_USAGE, "--toggle-by excludes --wait, --warmup, --active, --repeat and "
                               "--step: either a signal or a schedule switches recording");
    if (s->active == 0 && has_schedule)
        return fail(ERR_USAGE,
                    "--wait, --warmup and --repeat need --active: how many steps to keep");
    if (a->o.step != NULL && s->active == 0)
        return fail(ERR_USAGE, "--step needs --active: how many steps to keep");
    if (a->view.sort_by == NULL) return OK;
    profile_table none = {.looks = LOOKS_TORCH};
    return profile_table_sort(&none, a->view.sort_by);
}

/* The tables come even of a program that failed: they may say why. */
static status profile_a_program(const profile_args *a, char **argv) {
    profile p;
    int how;
    if (a->o.schedule.active > 0 && a->o.step == NULL)
        return fail(ERR_USAGE, "--active counts steps: say which NVTX range of the program is one "
                               "with --step NAME ('step*' for every name that begins so)");
    status st = profile_program(&p, argv, a->view.out, &a->o, &how);
    if (st == OK) st = profile_show(&p, &a->view);
    profile_fini(&p);
    return st == OK ? check_end(argv[0], how) : st;
}

/* Before the command runs, which may take hours: a folder that cannot be written to says so now. */
static status make_folder(const char *path, bool *is_new) {
    TRY(folder_create(path, is_new));
    if (access(path, W_OK | X_OK) == 0) return OK;
    return fail_errno("%s: cannot be written; choose another place with --out", path);
}

static status profile_command(const profile_args *a, int argc, char **argv) {
    profile p;
    const command *c = find_command(argv[0]);
    TRY(check(a));
    const char *path = c == NULL && strcmp(argv[0], "profile") != 0 ? find_program(argv[0]) : NULL;
    bool is_us = path != NULL ? is_own(path) : strcmp(argv[0], "hstu") == 0;
    if (is_us && argc > 1) return profile_command(a, argc - 1, argv + 1);
    if (path != NULL) return profile_a_program(a, argv);
    if (c == NULL)
        return fail(ERR_USAGE,
                    "'%.100s' is not a command of hstu that can be profiled, nor a program on PATH",
                    argv[0]);
    if (a->o.step != NULL)
        return fail(ERR_USAGE, "--step is for other programs; the steps of '%s' are known",
                    argv[0]);
    bool is_new;
    TRY(make_folder(a->view.out, &is_new));
    status st = profiler_start(&p, &a->o);
    if (st == OK) {
        st = run_apart(c, argc, argv);
        status stopped = profiler_stop(&p);
        if (st == OK) st = stopped;
        if (st == OK) st = profile_show(&p, &a->view);
    }
    profile_fini(&p);
    if (st != OK && is_new) (void)rmdir(a->view.out); /* where nothing was written */
    return st;
}

status cmd_profile(int argc, char **argv) {
    profile_args a = {
        .activities = 2, .toggle_by = -1, .view = {.out = "hstu-profile", .row_limit = 100}};
    const arg_option options[] = {
        OPT_GROUP("Recording"),
        OPT_CHOICE(
            "--activities", &a.activities, "LIST", activity_names,
            "What to record: cpu, cuda or cpu,cuda (default: both; cuda needs CUPTI and a GPU)."),
        OPT_INT("--wait", &a.o.schedule.wait, "N", 0, 1 << 30, "Steps to skip first (default 0)."),
        OPT_INT("--warmup", &a.o.schedule.warmup, "N", 0, 1 << 30,
                "Steps to record and discard (default 0)."),
        OPT_INT("--active", &a.o.schedule.active, "N", 0, 1 << 30,
                "Steps to keep (default 0: everything from start to end)."),
        OPT_INT("--repeat", &a.o.schedule.repeat, "N", 0, 1 << 30,
                "How often to wait, warm up and record (default 0: until the end)."),
        OPT_TEXT("--step", &a.o.step, "NAME",
                 "In other programs: the NVTX range that is a step, for the four options above; "
                 "'step*' stands for every name that begins so."),
        OPT_FLAG("--record-shapes", &a.o.has_shapes,
                 "List ops of different sizes in separate rows."),
        OPT_FLAG("--memory", &a.o.has_memory,
                 "Record allocations of device memory, and what owns them at the peak."),
        OPT_FLAG("--unified-memory", &a.o.has_unified,
                 "Record page migrations of unified memory and page faults (slower)."),
        OPT_FLAG("--memsets", &a.o.has_memsets,
                 "Record memsets even where steps are replayed as CUDA graphs; each costs a "
                 "microsecond there."),
        OPT_FLAG("--counters", &a.o.has_counters,
                 "Read hardware counters of every kernel instead of times of the GPU: achieved "
                 "occupancy, tensor cores, bytes of DRAM and L2. Kernels run one at a time, and "
                 "much slower; --active keeps that short."),
        OPT_FLAG("--no-peaks", &a.has_no_peaks,
                 "Do not measure the peak speed of the device at the start (takes a second and 1.4 "
                 "GB of GPU memory)."),
        OPT_CHOICE("--toggle-by", &a.toggle_by, "SIGNAL", signal_names,
                   "Record nothing until this signal (SIGUSR1 or SIGUSR2); the next one stops "
                   "recording, and so on."),
        OPT_TEXT("--range", &a.o.range, "NAME",
                 "Keep only what happens inside ranges of this name, such as 'optimizer' or 'layer "
                 "forward 0'; in other programs, NVTX ranges."),
        OPT_GROUP("Output"),
        OPT_TEXT("--out", &a.view.out, "DIR",
                 "Folder for trace.json and the tables as CSV (default hstu-profile). A "
                 "second cycle of --repeat has trace-2.json, and so on; traces and tables of an "
                 "earlier profile are replaced or removed."),
        OPT_FLAG("--tensorboard", &a.view.is_tensorboard,
                 "Write traces for TensorBoard's plugin torch-tb-profiler instead: "
                 "HOST_PID.TIME.pt.trace.json, as torch.profiler.tensorboard_trace_handler does."),
        OPT_CHOICE("--format", &a.view.format, "F", format_names,
                   "Format of the tables on stdout: table (default), csv or json."),
        OPT_TEXT("--sort-by", &a.view.sort_by, "KEY",
                 "Sort the op table by self_cpu_time_total, cpu_time_total, self_cuda_time_total, "
                 "cuda_time_total, count, or (with --memory) self_cpu_memory_usage, "
                 "cpu_memory_usage, self_cuda_memory_usage or cuda_memory_usage."),
        OPT_INT("--row-limit", &a.view.row_limit, "N", -1, 1 << 30,
                "Rows per table (default 100; -1: all)."),
        {0}};
    const arg_spec spec = {
        .usage = "hstu profile [options] -- COMMAND ...",
        .summary = "Run an hstu command and show where its time goes: ranges (step, layer), ops "
                   "and, on a GPU, kernels, copies and CUDA calls, as nsys and torch.profiler do. "
                   "COMMAND may begin with hstu, or be any other program that uses CUDA, including "
                   "Python. The "
                   "command's own output goes to stderr.",
        .options = options,
        .min_positional = 1,
        .max_positional = MAX_WORDS,
        .notes =
            "A step is a training step; commands without steps are recorded whole.\nExamples:\n"
            "  hstu profile --wait 2 --warmup 2 --active 10 --repeat 1 -- train ...\n"
            "  hstu profile -- python3 model.py\n"
            "  hstu profile --step 'step*' --active 3 --tensorboard -- python3 model.py\n"};
    const char *word[MAX_WORDS + 1];
    int n = 0;
    ARGS_PARSE(&spec, word, &n);
    word[n] = NULL;
    a.o.toggle = a.toggle_by < 0 ? 0 : a.toggle_by == 0 ? SIGUSR1 : SIGUSR2;
    a.o.has_host = a.activities != 1;
    a.o.has_gpu = a.activities != 0;
    a.o.has_peaks = !a.has_no_peaks;
    a.view.range = a.o.range;
    return profile_command(&a, n, (char **)word);
}
