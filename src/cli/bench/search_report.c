#include "cli/bench/search_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "train/report/report.h"

static const int marks[REPORT_MARKS] = {32, 64, 128};

/* curve[kind][i]: the mean over the seeds of the best after i + 1 measurements. */
typedef struct report_data {
    const plan_oracle *o;
    int budget;
    double *x, *curve[N_SEARCHES];
    double best[N_SEARCHES][REPORT_SEEDS][REPORT_MARKS];
    search_comparison *out;
} report_data;

static void take(report_data *d, search_kind kind, int seed, const search_result *r) {
    double best = INFINITY;
    for (int i = 0; i < d->budget; i++) {
        if ((size_t)i < r->measured.n) best = fmin(best, r->measured.item[i].ms);
        d->curve[kind][i] += best / REPORT_SEEDS;
    }
    for (int m = 0; m < REPORT_MARKS; m++)
        d->best[kind][seed][m] = search_best_after(r, (size_t)marks[m]);
    if (r->best.ms < d->out->optimum.ms) d->out->optimum = r->best;
    d->out->row[kind].best_ms =
        seed == 0 ? r->best.ms : fmin(d->out->row[kind].best_ms, r->best.ms);
}

static status run_search(report_data *d, search_kind kind) {
    search_row *row = &d->out->row[kind];
    for (int seed = 0; seed < REPORT_SEEDS; seed++) {
        search_result r;
        status st = search_run(kind, d->o, d->budget, (uint64_t)seed + 1, &r);
        if (st == ERR_UNSUPPORTED) {
            snprintf(row->why, sizeof row->why, "%.190s", status_reason());
            return OK;
        }
        if (st != OK) return st;
        take(d, kind, seed, &r);
        search_result_fini(&r);
    }
    row->has_run = true;
    return OK;
}

/* Where every time is known, the fastest of all; else the fastest that any search found. */
static status find_optimum(report_data *d) {
    d->out->optimum.ms = INFINITY;
    for (unsigned v = 0; v < PLAN_CODES && d->o->contains != NULL; v++) {
        double ms;
        if (!d->o->contains(d->o->ctx, (uint16_t)v)) continue;
        TRY(d->o->measure(d->o->ctx, (uint16_t)v, &ms));
        if (ms < d->out->optimum.ms) d->out->optimum = (plan_time){(uint16_t)v, ms};
    }
    return OK;
}

static void find_regret(report_data *d) {
    double optimum = d->out->optimum.ms;
    for (int i = 0; i < N_SEARCHES * REPORT_SEEDS * REPORT_MARKS; i++) {
        int kind = i / (REPORT_SEEDS * REPORT_MARKS), mark = i % REPORT_MARKS;
        double best = d->best[kind][i / REPORT_MARKS % REPORT_SEEDS][mark];
        d->out->row[kind].regret[mark] += (best - optimum) / optimum / REPORT_SEEDS;
    }
}

static status write_table(const report_data *d, buf *page) {
    TRY(buf_text(page, "<table><tr><th>search</th><th>best ms</th><th>regret after "
                       "32</th><th>after 64</th><th>after "
                       "128</th></tr>\n"));
    for (int kind = 0; kind < N_SEARCHES; kind++) {
        const search_row *r = &d->out->row[kind];
        TRY(buf_text(page, "<tr>"));
        TRY(page_text(page, search_name((search_kind)kind), "td"));
        if (r->has_run) TRY(page_number(page, r->best_ms, "td", "%.4f"));
        for (int m = 0; m < REPORT_MARKS && r->has_run; m++)
            TRY(page_number(page, 100 * r->regret[m], "td", "%.2f %%"));
        if (!r->has_run) TRY(page_text(page, r->why, "td"));
        TRY(buf_text(page, "</tr>\n"));
    }
    return buf_text(page, "</table>\n");
}

static status write_page(const report_data *d, const char *from, buf *page) {
    curve curves[N_SEARCHES + 1];
    double flat_x[2] = {1, d->budget}, flat_y[2] = {d->out->optimum.ms, d->out->optimum.ms};
    char text[64];
    int n = 0;
    for (int kind = 0; kind < N_SEARCHES; kind++)
        if (d->out->row[kind].has_run)
            curves[n++] = (curve){.name = search_name((search_kind)kind),
                                  .x = d->x,
                                  .y = d->curve[kind],
                                  .n = (size_t)d->budget};
    curves[n++] =
        (curve){.name = "fastest known", .x = flat_x, .y = flat_y, .n = 2, .is_dashed = true};
    chart best = {.title = "Best plan so far, ms (mean of 5 seeds)",
                  .x_label = "measurements",
                  .curves = curves,
                  .n_curves = n};
    TRY(page_open(page, "Searches for a fusion plan"));
    TRY(buf_printf(page, "<h1>Searches for a fusion plan: %s</h1>\n<p>Times: ", d->o->c->name));
    TRY(html_text(from != NULL ? from : "measured now", page));
    TRY(buf_text(page, "</p>\n<div class=tiles>\n"));
    snprintf(text, sizeof text, "%d", d->out->optimum.value);
    TRY(page_tile(page, "fastest plan", text));
    snprintf(text, sizeof text, "%.4f ms", d->out->optimum.ms);
    TRY(page_tile(page, "its time", text));
    TRY(buf_text(page, "</div>\n"));
    TRY(chart_write(&best, page));
    TRY(write_table(d, page));
    return page_close(page);
}

static status compare(report_data *d, const char *from, const char *path) {
    buf page;
    TRY(find_optimum(d));
    TRY(MEM_NEW(&d->x, (size_t)d->budget));
    for (int i = 0; i < d->budget; i++)
        d->x[i] = i + 1;
    for (int kind = 0; kind < N_SEARCHES; kind++) {
        TRY(MEM_NEW(&d->curve[kind], (size_t)d->budget));
        TRY(run_search(d, (search_kind)kind));
    }
    find_regret(d);
    buf_init(&page);
    status st = write_page(d, from, &page);
    if (st == OK) st = page_save(&page, path);
    buf_fini(&page);
    return st;
}

status search_compare(const plan_oracle *o, int budget, const char *from, const char *path,
                      search_comparison *out) {
    report_data *d;
    *out = (search_comparison){0};
    TRY(MEM_NEW(&d, 1));
    d->o = o;
    d->budget = budget;
    d->out = out;
    status st = compare(d, from, path);
    mem_free(d->x);
    for (int kind = 0; kind < N_SEARCHES; kind++)
        mem_free(d->curve[kind]);
    mem_free(d);
    return st;
}
