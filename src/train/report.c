#include "train/report.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "train/chart.h"
#include "train/run_log.h"

enum { MAX_METRICS = 48, METRIC_BYTES = 32, CONFIG_MAX_BYTES = 1 << 20, MEAN_OF_LAST = 10 };

/* The contents of the log as columns over the epochs or, where a run also evaluates inside epochs,
 * over the steps. */
typedef struct report {
    size_t n, capacity[5];
    double *epoch, *step, *loss, *tokens_per_s, *seconds; /* (n) each */
    bool is_by_step;
    char metric[MAX_METRICS][METRIC_BYTES]; /* names, in the order they appear */
    double *value[MAX_METRICS];             /* (n) each */
    size_t value_capacity[MAX_METRICS];
    int n_metrics;
    char *start, *done; /* the lines of these events, as JSON text; NULL: none yet */
} report;

static void report_fini(report *r) {
    mem_free(r->epoch);
    mem_free(r->step);
    mem_free(r->loss);
    mem_free(r->tokens_per_s);
    mem_free(r->seconds);
    for (int i = 0; i < r->n_metrics; i++)
        mem_free(r->value[i]);
    mem_free(r->start);
    mem_free(r->done);
}

/* A metric is a number whose name is not one of the line's fixed members. */
static bool is_metric(const json_value *v) {
    static const char *const own[] = {"epoch", "step",  "loss",         "seconds",  "tokens_per_s",
                                      "lr",    "users", "eval_seconds", "grad_norm"};
    if (v->type != JSON_NUMBER || strlen(v->key) >= METRIC_BYTES) return false;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(v->key, own[i]) == 0) return false;
    return true;
}

/* The column of a metric; a new one is NAN for the epochs before. */
static status find_metric(report *r, const char *name, int *out) {
    int i = 0;
    while (i < r->n_metrics && strcmp(r->metric[i], name) != 0)
        i++;
    *out = i;
    if (i == MAX_METRICS) return OK; /* the rest is in the log */
    if (i == r->n_metrics) {
        TRY(MEM_RESERVE(&r->value[i], &r->value_capacity[i], r->n + 1));
        r->n_metrics++;
        snprintf(r->metric[i], METRIC_BYTES, "%s", name);
        for (size_t k = 0; k <= r->n; k++)
            r->value[i][k] = NAN;
    }
    return OK;
}

static double number_of(const json_value *line, const char *key) {
    const json_value *v = json_member(line, key);
    return v != NULL && v->type == JSON_NUMBER ? v->number : NAN;
}

static status add_epoch(report *r, const json_value *line) {
    size_t i = r->n;
    TRY(MEM_RESERVE(&r->epoch, &r->capacity[0], i + 1));
    TRY(MEM_RESERVE(&r->loss, &r->capacity[1], i + 1));
    TRY(MEM_RESERVE(&r->tokens_per_s, &r->capacity[2], i + 1));
    TRY(MEM_RESERVE(&r->seconds, &r->capacity[3], i + 1));
    TRY(MEM_RESERVE(&r->step, &r->capacity[4], i + 1));
    for (int m = 0; m < r->n_metrics; m++) {
        TRY(MEM_RESERVE(&r->value[m], &r->value_capacity[m], i + 1));
        r->value[m][i] = NAN;
    }
    r->epoch[i] = number_of(line, "epoch") + 1;
    r->step[i] = number_of(line, "step");
    r->loss[i] = number_of(line, "loss");
    r->tokens_per_s[i] = number_of(line, "tokens_per_s");
    r->seconds[i] = number_of(line, "seconds");
    for (const json_value *v = line->first; v != NULL; v = v->next) {
        int m;
        if (!is_metric(v)) continue;
        TRY(find_metric(r, v->key, &m));
        if (m < MAX_METRICS) r->value[m][i] = v->number;
    }
    r->n++;
    return OK;
}

static status write_json_value(json_writer *w, const json_value *v) {
    if (v->type == JSON_STRING)
        json_string(w, v->string);
    else if (v->type == JSON_BOOL)
        json_bool(w, v->boolean);
    else if (v->type == JSON_NUMBER && v->is_integer)
        json_int(w, v->integer);
    else if (v->type == JSON_NUMBER)
        json_double(w, v->number);
    else
        json_null(w);
    return w->state;
}

/* Keeps a copy of the flat members of a line, for the tables. */
static status keep_line(char **out, const json_value *line) {
    json_writer w;
    buf text;
    buf_init(&text);
    json_begin(&w, &text, 0);
    json_object_open(&w);
    for (const json_value *v = line->first; v != NULL; v = v->next) {
        json_key(&w, v->key);
        (void)write_json_value(&w, v);
    }
    json_object_close(&w);
    status st = json_finish(&w);
    if (st != OK) {
        buf_fini(&text);
        return st;
    }
    mem_free(*out);
    *out = text.data;
    return OK;
}

static status read_line(void *ctx, const json_value *line) {
    report *r = ctx;
    const json_value *event = json_member(line, "event");
    if (event == NULL || event->type != JSON_STRING) return OK;
    if (strcmp(event->string, "eval") == 0) r->is_by_step = true;
    if (strcmp(event->string, "eval") == 0 || strcmp(event->string, "epoch") == 0)
        return add_epoch(r, line);
    if (strcmp(event->string, "start") == 0) return keep_line(&r->start, line);
    if (strcmp(event->string, "done") == 0) return keep_line(&r->done, line);
    return OK;
}

static const char page_head[] =
    "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
    "<meta name=viewport content=\"width=device-width\"><title>hstu run</title>\n<style>\n"
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1c2128;--dim:#66707c;--line:#e3e6ea;--a:#1769c4;"
    "--b:#c4541b;--c:#2c8a4b;--d:#8446b8}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e7eb;--dim:#98a2ae;--line:#"
    "2c3238;"
    "--a:#6ab0ff;--b:#ff9a62;--c:#6fce8e;--d:#c596f2}}\n"
    "body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:72rem;"
    "margin:2rem auto;padding:0 1rem}\nh1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}\n"
    ".tiles{display:flex;flex-wrap:wrap;gap:1rem}.charts{display:grid;gap:1rem;"
    "grid-template-columns:repeat(auto-fill,minmax(22rem,1fr))}.tile{border:1px solid var(--line);"
    "border-radius:8px;padding:.6rem 1rem;min-width:8rem}.tile b{display:block;font-size:1.5rem}\n"
    ".tile span,.dim{color:var(--dim)}figure{margin:0;border:1px solid var(--line);"
    "border-radius:8px;padding:.6rem}svg{width:100%;height:auto}svg text{fill:var(--dim);"
    "font-size:11px}\n.grid{stroke:var(--line)}.curve{fill:none;stroke-width:2;stroke-linejoin:"
    "round}\n.curve.c0{stroke:var(--a)}.curve.c1{stroke:var(--b)}.curve.c2{stroke:var(--c)}"
    ".curve.c3{stroke:var(--d)}\ncircle.c0,span.c0{fill:var(--a);color:var(--a)}circle.c1,span.c1"
    "{fill:var(--b);color:var(--b)}circle.c2,span.c2{fill:var(--c);color:var(--c)}circle.c3,span.c3"
    "{fill:var(--d);color:var(--d)}\ntable{border-collapse:collapse;font-variant-numeric:"
    "tabular-nums}td,th{padding:.15rem .7rem;border-bottom:1px solid var(--line);text-align:right}"
    "td:first-child,th:first-child,.text "
    "td{text-align:left;white-space:nowrap}.scroll{overflow:auto;max-height:24rem}"
    "\npre{overflow:auto;border:1px solid var(--line);border-radius:8px;padding:.8rem}\n"
    "</style></head><body>\n";

static status write_tile(buf *out, const char *name, const char *value) {
    TRY(buf_text(out, "<div class=tile><b>"));
    TRY(html_text(value, out));
    TRY(buf_text(out, "</b><span>"));
    TRY(html_text(name, out));
    return buf_text(out, "</span></div>\n");
}

/* The last finite value of a column; NAN if there is none. */
static double last_of(const double *y, size_t n) {
    while (n > 0 && !isfinite(y[n - 1]))
        n--;
    return n > 0 ? y[n - 1] : NAN;
}

/* The mean of the last ten values that are there. */
static double mean_of_last(const double *y, size_t n) {
    double sum = 0;
    int count = 0;
    while (n-- > 0 && count < MEAN_OF_LAST)
        if (isfinite(y[n])) sum += y[n], count++;
    return count > 0 ? sum / count : NAN;
}

static int metric_index(const report *r, const char *name) {
    for (int i = 0; i < r->n_metrics; i++)
        if (strcmp(r->metric[i], name) == 0) return i;
    return -1;
}

static status write_tiles(const report *r, buf *out) {
    static const char *const shown[] = {"hr@10", "ndcg@10", "mrr", "auc"};
    char text[64], speed[32];
    TRY(buf_text(out, "<div class=tiles>\n"));
    snprintf(text, sizeof text, "%.0f", last_of(r->epoch, r->n));
    TRY(write_tile(out, "epochs", text));
    snprintf(text, sizeof text, "%.4f", last_of(r->loss, r->n));
    TRY(write_tile(out, "loss", text));
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        int m = metric_index(r, shown[i]);
        if (m < 0) continue;
        snprintf(text, sizeof text, "%.4f", last_of(r->value[m], r->n));
        TRY(write_tile(out, shown[i], text));
    }
    human_count(speed, sizeof speed, last_of(r->tokens_per_s, r->n));
    TRY(write_tile(out, "tokens/s", speed));
    return buf_text(out, "</div>\n");
}

static status write_charts(const report *r, buf *out) {
    static const char *const wanted[] = {"hr@10", "ndcg@10", "mrr", "auc"};
    curve curves[4], one = {"loss", r->loss};
    int n = 0;
    chart c = {.title = "Loss (mean over the loss positions)",
               .x_label = r->is_by_step ? "step" : "epoch",
               .x = r->is_by_step ? r->step : r->epoch,
               .n = r->n,
               .curves = &one,
               .n_curves = 1};
    for (size_t i = 0; i < 4; i++) {
        int m = metric_index(r, wanted[i]);
        if (m >= 0) curves[n++] = (curve){r->metric[m], r->value[m]};
    }
    TRY(buf_text(out, "<h2>Curves</h2><div class=charts>\n"));
    TRY(chart_write(&c, out));
    c.title = "Metrics", c.curves = curves, c.n_curves = n;
    TRY(chart_write(&c, out));
    one = (curve){"tokens/s", r->tokens_per_s};
    c.title = "Tokens per second", c.curves = &one, c.n_curves = 1;
    TRY(chart_write(&c, out));
    return buf_text(out, "</div>\n");
}

static status write_number(buf *out, double value, const char *tag, const char *format) {
    TRY(buf_printf(out, "<%s>", tag));
    if (isfinite(value)) {
        char text[64];
        snprintf(text, sizeof text, format, value);
        TRY(buf_text(out, text));
    }
    return buf_printf(out, "</%s>", tag);
}

static status write_summary_row(const report *r, buf *out, bool is_mean) {
    TRY(buf_printf(out, "<tr><td>%s</td>", is_mean ? "mean of the last ten" : "last"));
    for (int m = -1; m < r->n_metrics; m++) {
        const double *y = m < 0 ? r->loss : r->value[m];
        TRY(write_number(out, is_mean ? mean_of_last(y, r->n) : last_of(y, r->n), "td", "%.4f"));
    }
    return buf_text(out, "<td></td></tr>\n");
}

static status write_epochs(const report *r, buf *out) {
    const double *x = r->is_by_step ? r->step : r->epoch;
    TRY(buf_printf(out, "<h2>Evaluations</h2><div class=scroll><table><tr><th>%s<th>loss",
                   r->is_by_step ? "step" : "epoch"));
    for (int m = 0; m < r->n_metrics; m++) {
        TRY(buf_text(out, "<th>"));
        TRY(html_text(r->metric[m], out));
    }
    TRY(buf_text(out, "<th>s</tr>\n"));
    TRY(write_summary_row(r, out, false));
    TRY(write_summary_row(r, out, true));
    for (size_t i = r->n; i-- > 0;) {
        TRY(buf_text(out, "<tr>"));
        TRY(write_number(out, x[i], "td", "%.0f"));
        TRY(write_number(out, r->loss[i], "td", "%.4f"));
        for (int m = 0; m < r->n_metrics; m++)
            TRY(write_number(out, r->value[m][i], "td", "%.4f"));
        TRY(write_number(out, r->seconds[i], "td", "%.1f"));
        TRY(buf_text(out, "</tr>\n"));
    }
    return buf_text(out, "</table></div>\n");
}

/* A table of the flat members of a line of the log. */
static status write_facts(const char *title, const char *json, buf *out) {
    arena a;
    const json_value *line;
    if (json == NULL) return OK;
    arena_init(&a, 4096);
    status st = json_parse(&a, "log.jsonl", json, strlen(json), &line);
    if (st == OK) st = buf_printf(out, "<h2>%s</h2><table class=text>\n", title);
    for (const json_value *v = st == OK ? line->first : NULL; v != NULL && st == OK; v = v->next) {
        if (strcmp(v->key, "event") == 0 || v->type == JSON_NULL) continue;
        st = buf_text(out, "<tr><td class=dim>");
        if (st == OK) st = html_text(v->key, out);
        if (st == OK) st = buf_text(out, "</td><td>");
        if (st == OK && v->type == JSON_STRING) st = html_text(v->string, out);
        if (st == OK && v->type == JSON_NUMBER) st = buf_printf(out, "%.10g", v->number);
        if (st == OK && v->type == JSON_BOOL) st = buf_text(out, v->boolean ? "yes" : "no");
        if (st == OK) st = buf_text(out, "</td></tr>\n");
    }
    if (st == OK) st = buf_text(out, "</table>\n");
    arena_fini(&a);
    return st;
}

static status write_config(const char *run, buf *out) {
    char path[4096], *text;
    size_t n;
    TRY(path_join(path, sizeof path, run, "config.json"));
    if (!file_exists(path)) return OK;
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &n));
    status st = buf_text(out, "<h2>Config</h2><details><summary>effective values, defaults "
                              "included</summary><pre>");
    if (st == OK) st = html_text(text, out);
    if (st == OK) st = buf_text(out, "</pre></details>\n");
    mem_free(text);
    return st;
}

static status write_page(const report *r, const char *run, buf *out) {
    TRY(buf_text(out, page_head));
    TRY(buf_text(out, "<h1>hstu run <span class=dim>"));
    TRY(html_text(run, out));
    TRY(buf_printf(out, "</span></h1>\n<p class=dim>%s</p>\n",
                   r->done != NULL ? "finished" : "under way; reload for news"));
    TRY(write_tiles(r, out));
    TRY(write_charts(r, out));
    TRY(write_epochs(r, out));
    TRY(write_facts("Result", r->done, out));
    TRY(write_facts("Environment", r->start, out));
    TRY(write_config(run, out));
    return buf_text(out, "</body></html>\n");
}

static status save_page(const char *run, const buf *page) {
    char path[4096];
    out_file *f;
    TRY(path_join(path, sizeof path, run, "report.html"));
    TRY(out_file_create(&f, path));
    status st = out_file_write(f, buf_str(page), page->n_bytes);
    if (st == OK) return out_file_commit(f);
    out_file_abandon(f);
    return st;
}

status report_write(const char *run) {
    report r = {0};
    buf page;
    buf_init(&page);
    status st = run_log_read(run, read_line, &r);
    if (st == OK) st = write_page(&r, run, &page);
    if (st == OK) st = save_page(run, &page);
    buf_fini(&page);
    report_fini(&r);
    return st;
}
