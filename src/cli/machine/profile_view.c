#include "cli/machine/profile_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/machine/profile_page.h"
#include "cli/show.h"
#include "profile/gpu_time.h"
#include "profile/tables.h"
#include "profile/trace.h"
#include "profile/utilization.h"

static status write_file(const char *folder, const char *name, const char *suffix,
                         const buf *text) {
    char path[SHOW_PATH_BYTES];
    out_file *f;
    if (snprintf(path, sizeof path, "%s/%s%s", folder, name, suffix) >= (int)sizeof path)
        return fail(ERR_USAGE, "--out: the path is too long");
    TRY(out_file_create(&f, path));
    return out_file_end(f, out_file_write(f, buf_str(text), text->n_bytes));
}

static status print_table(profile_table *t, const profile_view *v, buf *text) {
    bool is_json = strcmp(v->format, "json") == 0;
    if (v->sort_by != NULL && t->looks == LOOKS_TORCH) TRY(profile_table_sort(t, v->sort_by));
    buf_clear(text);
    if (is_json)
        TRY(profile_table_json(t, v->row_limit, text));
    else if (strcmp(v->format, "csv") == 0)
        TRY(profile_table_csv(t, v->row_limit, text));
    else
        TRY(profile_table_text(t, v->row_limit, text));
    printf("%s%s", buf_str(text), is_json ? "" : "\n");
    return OK;
}

/* In the folder every row as csv, on stdout what was asked for. */
static status show_report(const profile *p, report_kind kind, const profile_view *v) {
    profile_table t;
    buf text;
    TRY(profile_table_make(&t, &p->recorder, kind));
    status st = OK;
    buf_init(&text);
    if (t.n_rows > 0) {
        st = profile_table_csv(&t, -1, &text);
        if (st == OK) st = write_file(v->out, t.id, ".csv", &text);
        if (st == OK && v->format != NULL) st = print_table(&t, v, &text);
    }
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
        log_info("%" PRId64 " steps kept of %" PRId64, r->n_active, r->step);
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
    if (r->n_dropped > 0) log_warn("%" PRIu64 " spans were dropped: too many", r->n_dropped);
    if (p->skips_memsets)
        log_info(
            "steps were replayed as CUDA graphs, where the record of a memset costs most: there "
            "are none of memsets (--memsets)");
    if (p->n_gpu_lost > 0) log_warn("CUPTI dropped %" PRIu64 " records", p->n_gpu_lost);
    if (!p->has_gpu) log_info("No records of a GPU: %s", p->gpu_reason);
}

static status path_in(char path[SHOW_PATH_BYTES], const char *folder, const char *name) {
    if (snprintf(path, SHOW_PATH_BYTES, "%s/%s", folder, name) < SHOW_PATH_BYTES) return OK;
    return fail(ERR_USAGE, "--out: the path is too long");
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
    buf text;
    TRY(gpu_idle_find(&g, r));
    if (g.span_ns == 0) return OK;
    log_info("GPU busy %.1f %% of %.3f ms", 100 * (double)g.busy_ns / (double)g.span_ns,
             (double)g.span_ns / 1e6);
    /* Of several stretches the records span what is between them as well. */
    if (p->n_stretches == 1 && p->n_measured == 1)
        log_info(
            "CUDA events around the recorded steps: %.3f ms, of which the records span %.2f %%",
            (double)p->event_ns / 1e6, 100 * (double)g.span_ns / (double)p->event_ns);
    for (int i = 0; i < N_GAP_CAUSES; i++)
        if (g.cause[i].n > 0)
            log_info("  idle %.1f %% in %" PRIu64 " gaps: %s",
                     100 * (double)g.cause[i].ns / (double)g.span_ns, g.cause[i].n,
                     gap_cause_name((gap_cause)i));
    TRY(tell_comm(r));
    buf_init(&text);
    status st = gpu_idle_advice(&g, &text);
    if (st == OK) st = launches_advice(r, &text);
    if (st == OK) st = roofline_advice(r, &text);
    if (st == OK) tell_lines(buf_str(&text));
    buf_fini(&text);
    return st;
}

static status show_memory(const memory_log *m, const profile_view *v) {
    buf text;
    buf_init(&text);
    status st = memory_log_csv(m, &text);
    if (st == OK && text.n_bytes > 0) st = write_file(v->out, "memory_by_owner", ".csv", &text);
    bool is_csv = v->format != NULL && strcmp(v->format, "csv") == 0;
    if (st == OK && is_csv && text.n_bytes > 0) printf("%s\n", buf_str(&text));
    buf_clear(&text);
    bool is_json = v->format != NULL && strcmp(v->format, "json") == 0;
    if (st == OK && is_json) st = memory_log_json(m, &text);
    if (st == OK && is_json) printf("%s", buf_str(&text));
    buf_clear(&text);
    if (st == OK) st = memory_log_text(m, &text);
    bool is_table = v->format != NULL && strcmp(v->format, "table") == 0;
    if (st == OK && is_table && text.n_bytes > 0) printf("%s\n", buf_str(&text));
    buf_fini(&text);
    return st;
}

status profile_show(const profile *p, const profile_view *v) {
    char path[SHOW_PATH_BYTES], shown[SHOW_PATH_BYTES];
    TRY(folder_create(v->out, NULL));
    for (int i = 0; i < N_REPORTS; i++)
        TRY(show_report(p, (report_kind)i, v));
    TRY(show_memory(&p->memory, v));
    TRY(path_in(path, v->out, "trace.json"));
    TRY(trace_write(p, path));
    TRY(tell_idle(p));
    tell_cost(p);
    log_info("%s   for chrome://tracing or ui.perfetto.dev; every table is beside it as csv",
             show_path(shown, path));
    TRY(path_in(path, v->out, "report.html"));
    TRY(profile_page_write(p, path));
    log_info("%s   timeline, tables and idle gaps in one page", show_path(shown, path));
    return OK;
}
