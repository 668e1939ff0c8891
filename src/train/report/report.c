#include "train/report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "train/report/chart.h"
#include "train/report/page.h"
#include "train/report/run_history.h"

enum { CONFIG_MAX_BYTES = 1 << 24, MAX_CURVES = 4, MAX_BASELINES = 3 };

static const char *const main_metrics[] = {"hr@10", "ndcg@10", "mrr", "auc"};
enum { N_MAIN = sizeof main_metrics / sizeof main_metrics[0] };

/* The metrics that are drawn: the usual ones the run has, else its first ones. */
static int choose_metrics(const run_history *h, const char *names[MAX_CURVES]) {
    int n = 0;
    for (int i = 0; i < N_MAIN; i++)
        if (run_history_values(h, main_metrics[i]) != NULL) names[n++] = main_metrics[i];
    for (int i = 0; n == 0 && i < h->n_metrics && i < MAX_CURVES; i++)
        names[i] = h->metric[i];
    return n > 0 ? n : h->n_metrics < MAX_CURVES ? h->n_metrics : MAX_CURVES;
}

static status write_tiles(const run_history *h, buf *out) {
    const char *names[MAX_CURVES];
    char text[64], name[64], speed[32];
    int n = choose_metrics(h, names);
    TRY(buf_text(out, "<div class=tiles>\n"));
    snprintf(text, sizeof text, "%.0f", h->n > 0 ? history_last(h->epoch, h->n) : 0);
    TRY(page_tile(out, "epochs", text));
    if (isfinite(h->best_x)) {
        snprintf(text, sizeof text, "%.0f", h->best_x);
        TRY(page_tile(out, h->is_by_step ? "best step" : "best epoch", text));
    }
    snprintf(text, sizeof text, "%.4f", history_last(h->loss, h->n));
    TRY(page_tile(out, "loss", text));
    for (int i = 0; i < n; i++) {
        /* With validation the figure that counts is that of the test part, at the end. */
        double at_end = history_number(h->done, names[i]);
        double value =
            isfinite(at_end) ? at_end : history_last(run_history_values(h, names[i]), h->n);
        const char *part = isfinite(at_end) ? history_text(h->done, "part") : h->part;
        if (!isfinite(value)) continue;
        snprintf(text, sizeof text, "%.4f", value);
        snprintf(name, sizeof name, "%s%s%s", names[i], part[0] != '\0' ? ", " : "", part);
        TRY(page_tile(out, name, text));
    }
    human_count(speed, sizeof speed, history_last(h->tokens_per_s, h->n));
    TRY(page_tile(out, "tokens/s", speed));
    return buf_text(out, "</div>\n");
}

static curve curve_of(const run_history *h, const char *name, const double *y) {
    return (curve){.name = name, .x = run_history_x(h), .y = y, .n = h->n};
}

static chart chart_of(const run_history *h, const char *title, const curve *curves, int n) {
    return (chart){.title = title,
                   .x_label = h->is_by_step ? "step" : "epoch",
                   .curves = curves,
                   .n_curves = n};
}

static void mark_best(const run_history *h, chart *c) {
    c->mark_name = isfinite(h->best_x) ? "best" : NULL;
    c->mark = h->best_x;
}

/* A metric of the model, with the level that each baseline reaches as a dashed line. */
static status write_baselines(const run_history *h, const char *metric, buf *out) {
    curve curves[1 + MAX_BASELINES];
    double level[MAX_BASELINES][2];
    const double *x = run_history_x(h), *y = run_history_values(h, metric);
    char title[96];
    int n = 0;
    if (h->baselines == NULL || y == NULL || h->n == 0) return OK;
    const double ends[2] = {x[0], x[h->n - 1]};
    for (const json_value *v = h->baselines->first; v != NULL && n < MAX_BASELINES; v = v->next) {
        double value = v->type == JSON_OBJECT ? history_number(v, metric) : NAN;
        if (!isfinite(value)) continue;
        level[n][0] = level[n][1] = value;
        curves[1 + n] = (curve){v->key, ends, level[n], 2, true};
        n++;
    }
    if (n == 0) return OK;
    curves[0] = curve_of(h, "model", y);
    snprintf(title, sizeof title, "%s on the %s part, and baselines", metric,
             h->part[0] != '\0' ? h->part : "held-out");
    chart c = chart_of(h, title, curves, n + 1);
    mark_best(h, &c);
    return chart_write(&c, out);
}

static status write_charts(const run_history *h, buf *out) {
    const char *names[MAX_CURVES];
    curve curves[MAX_CURVES], one = curve_of(h, "loss", h->loss);
    char title[64];
    int n = choose_metrics(h, names);
    for (int i = 0; i < n; i++)
        curves[i] = curve_of(h, names[i], run_history_values(h, names[i]));
    TRY(buf_text(out, "<h2>Curves</h2><div class=charts>\n"));
    chart c = chart_of(h, "Training loss (mean over the loss positions)", &one, 1);
    TRY(chart_write(&c, out));
    snprintf(title, sizeof title, "Metrics on the %s part",
             h->part[0] != '\0' ? h->part : "held-out");
    c = chart_of(h, title, curves, n);
    mark_best(h, &c);
    TRY(chart_write(&c, out));
    for (int i = 0; i < n; i++)
        TRY(write_baselines(h, names[i], out));
    one = curve_of(h, "learning rate", h->rate);
    c = chart_of(h, "Learning rate", &one, 1);
    TRY(chart_write(&c, out));
    one = curve_of(h, "tokens/s", h->tokens_per_s);
    c = chart_of(h, "Tokens per second", &one, 1);
    TRY(chart_write(&c, out));
    return buf_text(out, "</div>\n");
}

static status write_summary_row(const run_history *h, buf *out, bool is_mean) {
    TRY(buf_printf(out, "<tr><td>%s</td>", is_mean ? "mean of the last ten" : "last"));
    for (int m = -1; m < h->n_metrics; m++) {
        const double *y = m < 0 ? h->loss : h->value[m];
        double value = is_mean ? history_mean_of_last(y, h->n) : history_last(y, h->n);
        TRY(page_number(out, value, "td", "%.4f"));
    }
    return buf_text(out, "<td></td></tr>\n");
}

static status write_evaluations(const run_history *h, buf *out) {
    const double *x = run_history_x(h);
    TRY(buf_text(out, "<h2>Evaluations"));
    if (h->part[0] != '\0') TRY(buf_text(out, " on the "));
    TRY(html_text(h->part, out));
    TRY(buf_printf(out, "%s</h2><div class=scroll><table><tr><th>%s<th>loss",
                   h->part[0] != '\0' ? " part" : "", h->is_by_step ? "step" : "epoch"));
    for (int m = 0; m < h->n_metrics; m++) {
        TRY(buf_text(out, "<th>"));
        TRY(html_text(h->metric[m], out));
    }
    TRY(buf_text(out, "<th>s</tr>\n"));
    TRY(write_summary_row(h, out, false));
    TRY(write_summary_row(h, out, true));
    for (size_t i = h->n; i-- > 0;) {
        bool is_best = h->step[i] == h->best_step;
        TRY(buf_printf(out, "<tr><td>%.0f%s</td>", x[i], is_best ? " (best)" : ""));
        TRY(page_number(out, h->loss[i], "td", "%.4f"));
        for (int m = 0; m < h->n_metrics; m++)
            TRY(page_number(out, h->value[m][i], "td", "%.4f"));
        TRY(page_number(out, h->seconds[i], "td", "%.1f"));
        TRY(buf_text(out, "</tr>\n"));
    }
    return buf_text(out, "</table></div>\n");
}

static status write_fact(const json_value *v, buf *out) {
    TRY(buf_text(out, "<tr><td class=dim>"));
    TRY(html_text(v->key, out));
    TRY(buf_text(out, "</td><td>"));
    if (v->type == JSON_STRING) TRY(html_text(v->string, out));
    if (v->type == JSON_NUMBER) TRY(buf_printf(out, v->is_integer ? "%.0f" : "%.6g", v->number));
    if (v->type == JSON_BOOL) TRY(buf_text(out, v->boolean ? "yes" : "no"));
    return buf_text(out, "</td></tr>\n");
}

/* A table of the flat members of an object. */
static status write_facts(const char *title, const json_value *object, buf *out) {
    if (object == NULL || object->type != JSON_OBJECT) return OK;
    TRY(page_text(out, title, "h2"));
    TRY(buf_text(out, "<table class=text>\n"));
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        bool is_flat = v->type == JSON_STRING || v->type == JSON_NUMBER || v->type == JSON_BOOL;
        if (is_flat && strcmp(v->key, "event") != 0) TRY(write_fact(v, out));
    }
    return buf_text(out, "</table>\n");
}

static status write_value_cell(const json_value *v, buf *out) {
    return page_text(out, v != NULL && v->type == JSON_STRING ? v->string : "", "td");
}

/* What --resume changed, and from which step on. */
static status write_changes(const run_history *h, buf *out) {
    if (h->n_changes == 0) return OK;
    TRY(buf_text(out, "<h2>Changed by --resume</h2><table class=text><tr><th>from step<th>option"
                      "<th>before<th>after</tr>\n"));
    for (int i = 0; i < h->n_changes; i++) {
        const json_value *list = json_member(h->changes[i], "changes");
        for (const json_value *v = list->first; v != NULL; v = v->next) {
            if (v->type != JSON_OBJECT) continue;
            TRY(buf_printf(out, "<tr><td>%.0f</td>", history_number(h->changes[i], "step")));
            TRY(write_value_cell(json_member(v, "key"), out));
            TRY(write_value_cell(json_member(v, "from"), out));
            TRY(write_value_cell(json_member(v, "to"), out));
            TRY(buf_text(out, "</tr>\n"));
        }
    }
    return buf_text(out, "</table>\n");
}

static status write_list(const json_value *list, const char *tag, const char *target, buf *out) {
    TRY(buf_printf(out, "<%s>", tag));
    for (const json_value *v = list != NULL ? list->first : NULL; v != NULL; v = v->next) {
        const char *title = v->type == JSON_STRING ? v->string : history_text(v, "title");
        bool is_hit = target[0] != '\0' && strcmp(title, target) == 0;
        TRY(buf_printf(out, "<li%s>", is_hit ? " class=hit" : ""));
        TRY(html_text(title, out));
        if (is_hit) TRY(buf_text(out, " &#10003;"));
        TRY(buf_text(out, "</li>"));
    }
    return buf_printf(out, "</%s>", tag);
}

static status write_sample(const json_value *v, buf *out) {
    const char *target = history_text(v, "target");
    double rank = history_number(v, "rank");
    TRY(buf_text(out, "<div class=card><h3>user "));
    TRY(html_text(history_text(v, "user"), out));
    TRY(buf_text(out, "</h3><span class=dim>newest events</span>"));
    TRY(write_list(json_member(v, "history"), "ul", "", out));
    TRY(buf_text(out, "<span class=dim>recommended</span>"));
    TRY(write_list(json_member(v, "items"), "ol", target, out));
    TRY(buf_text(out, "<span class=dim>held out: </span>"));
    TRY(html_text(target, out));
    if (isfinite(rank)) TRY(buf_printf(out, " <span class=dim>(rank %.0f)</span>", rank));
    return buf_text(out, "</div>\n");
}

static status write_samples(const run_history *h, buf *out) {
    const json_value *users = h->samples != NULL ? json_member(h->samples, "users") : NULL;
    if (users == NULL || users->type != JSON_ARRAY) return OK;
    TRY(buf_text(out, "<h2>Sample recommendations</h2><div class=charts>\n"));
    for (const json_value *v = users->first; v != NULL; v = v->next)
        if (v->type == JSON_OBJECT) TRY(write_sample(v, out));
    return buf_text(out, "</div>\n");
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

static status write_result(const run_history *h, buf *out) {
    char title[96];
    const char *part = history_text(h->done, "part");
    snprintf(title, sizeof title, "Result%s%.20s%s%s", part[0] != '\0' ? " on the " : "", part,
             part[0] != '\0' ? " part" : "", isfinite(h->best_x) ? ", with the best weights" : "");
    return write_facts(title, h->done, out);
}

static status write_page(const run_history *h, const char *run, buf *out) {
    const json_value *newest = h->start;
    TRY(page_open(out, "hstu run"));
    TRY(buf_text(out, "<h1>hstu run <span class=dim>"));
    TRY(html_text(run, out));
    TRY(buf_printf(out, "</span></h1>\n<p class=dim>%s</p>\n",
                   h->done == NULL ? "under way; reload for news"
                   : json_member(h->done, "stopped_early") == NULL ||
                           !json_member(h->done, "stopped_early")->boolean
                       ? "finished"
                       : "finished early: validation got no better"));
    TRY(write_tiles(h, out));
    TRY(write_charts(h, out));
    TRY(write_samples(h, out));
    TRY(write_changes(h, out));
    TRY(write_evaluations(h, out));
    TRY(write_result(h, out));
    TRY(write_facts("Protocol", newest != NULL ? json_member(newest, "protocol") : NULL, out));
    TRY(write_facts("Environment", newest, out));
    TRY(write_config(run, out));
    return page_close(out);
}

status report_write(const char *run) {
    char path[4096];
    run_history h;
    buf page;
    buf_init(&page);
    status st = run_history_read(&h, run);
    if (st == OK) st = write_page(&h, run, &page);
    if (st == OK) st = path_join(path, sizeof path, run, "report.html");
    if (st == OK) st = page_save(&page, path);
    buf_fini(&page);
    run_history_fini(&h);
    return st;
}
