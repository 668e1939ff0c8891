/* What a sweep found: a table, a csv file, and a page with a parallel-coordinates picture. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "cli/model/sweep.h"
#include "cli/show.h"
#include "format/json.h"
#include "train/report/report.h"

enum { WIDTH = 900, HEIGHT = 420, TOP = 64, BOTTOM = 48, SIDE = 70, PATH_BYTES = 4096 };

static bool is_better(const sweep *s, double a, double b) {
    return s->is_lower_better ? a < b : a > b;
}

int sweep_order(const sweep *s, const sweep_trial **out) {
    int n = 0;
    for (int i = 0; i < s->n_trials; i++) {
        int at = n;
        if (!isfinite(s->trial[i].metric)) continue;
        for (; at > 0 && is_better(s, s->trial[i].metric, out[at - 1]->metric); at--)
            out[at] = out[at - 1];
        out[at] = &s->trial[i];
        n++;
    }
    return n;
}

static int number_of(const sweep *s, const sweep_trial *t) {
    return (int)(t - s->trial);
}

static void print_table(const sweep *s, const sweep_trial *const *best, int n) {
    enum { SHOWN = 20 };
    printf("%-11s %10s %9s", "trial", s->metric, "seconds");
    for (int i = 0; i < s->n_ranges; i++)
        printf("  %s", s->range[i].name);
    printf("\n");
    for (int k = 0; k < n && k < SHOWN; k++) {
        printf("trial-%04d  %10.4f %9.1f", number_of(s, best[k]), best[k]->metric,
               best[k]->seconds);
        for (int i = 0; i < s->n_ranges; i++)
            printf("  %*s", (int)strlen(s->range[i].name), s->range[i].value[best[k]->at[i]]);
        printf("\n");
    }
    if (n > SHOWN) printf("... and %d more in sweep.csv\n", n - SHOWN);
}

static status describe_csv(const sweep *s, buf *out) {
    TRY(buf_text(out, "trial,"));
    TRY(csv_put_field(out, s->metric, strlen(s->metric)));
    TRY(buf_text(out, ",seconds,state"));
    for (int i = 0; i < s->n_ranges; i++) {
        TRY(buf_char(out, ','));
        TRY(csv_put_field(out, s->range[i].name, strlen(s->range[i].name)));
    }
    TRY(buf_char(out, '\n'));
    for (int k = 0; k < s->n_trials; k++) {
        const sweep_trial *t = &s->trial[k];
        TRY(buf_printf(out, "%d,", k));
        if (isfinite(t->metric)) TRY(buf_printf(out, "%.9g", t->metric));
        TRY(buf_printf(out, ",%.1f,%s", t->seconds,
                       t->is_done     ? "done"
                       : t->is_failed ? "failed"
                                      : "open"));
        for (int i = 0; i < s->n_ranges; i++) {
            const char *value = s->range[i].value[t->at[i]];
            TRY(buf_char(out, ','));
            TRY(csv_put_field(out, value, strlen(value)));
        }
        TRY(buf_char(out, '\n'));
    }
    return OK;
}

/* Text inside SVG and HTML. */
static status put_escaped(buf *out, const char *text) {
    for (const char *c = text; *c != '\0'; c++) {
        const char *name = *c == '&'   ? "&amp;"
                           : *c == '<' ? "&lt;"
                           : *c == '>' ? "&gt;"
                           : *c == '"' ? "&quot;"
                                       : NULL;
        TRY(name != NULL ? buf_text(out, name) : buf_char(out, *c));
    }
    return OK;
}

static status put_label(buf *out, double x, double y, const char *style, const char *text) {
    TRY(buf_printf(out, "<text x='%.1f' y='%.1f' %s>", x, y, style));
    TRY(put_escaped(out, text));
    return buf_text(out, "</text>\n");
}

static double x_of(const sweep *s, int axis) {
    return SIDE + (double)(WIDTH - 2 * SIDE) * axis / s->n_ranges;
}

static double y_of(double share) {
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

/* Where a value is on its axis, 0..1: values of a list evenly, in the order given. */
static double place(const sweep_range *r, int at) {
    return r->n > 1 ? (double)at / (r->n - 1) : 0.5;
}

static status put_axes(const sweep *s, buf *out, double low, double high) {
    static const char middle[] = "text-anchor='middle' font-size='12' font-weight='bold'";
    static const char side[] = "font-size='11' class='dim'";
    char text[64];
    for (int i = 0; i <= s->n_ranges; i++) {
        double x = x_of(s, i);
        TRY(buf_printf(out,
                       "<line x1='%.1f' x2='%.1f' y1='%d' y2='%d' stroke='currentColor' "
                       "stroke-opacity='.4'/>\n",
                       x, x, TOP, HEIGHT - BOTTOM));
        if (i == s->n_ranges) break;
        TRY(put_label(out, x, i % 2 == 0 ? TOP - 28 : HEIGHT - 14, middle, s->range[i].name));
        int step = s->range[i].n > 12 ? s->range[i].n / 8 : 1;
        for (int k = 0; k < s->range[i].n; k += step)
            TRY(put_label(out, x + 4, y_of(place(&s->range[i], k)) - 3, side,
                          s->range[i].value[k]));
    }
    TRY(put_label(out, x_of(s, s->n_ranges), TOP - 28, middle, s->metric));
    snprintf(text, sizeof text, "%.4g", s->is_lower_better ? low : high);
    TRY(put_label(out, x_of(s, s->n_ranges) + 4, y_of(1) + 4, side, text));
    snprintf(text, sizeof text, "%.4g", s->is_lower_better ? high : low);
    return put_label(out, x_of(s, s->n_ranges) + 4, y_of(0), side, text);
}

/* A line a trial, the best ones drawn last; the better, the warmer. */
static status put_lines(const sweep *s, buf *out, const sweep_trial *const *best, int n, double low,
                        double high) {
    for (int k = n - 1; k >= 0; k--) {
        double share = high > low ? (best[k]->metric - low) / (high - low) : 1;
        if (s->is_lower_better) share = 1 - share;
        TRY(buf_text(out, "<polyline fill='none' points='"));
        for (int i = 0; i < s->n_ranges; i++)
            TRY(buf_printf(out, "%.1f,%.1f ", x_of(s, i),
                           y_of(place(&s->range[i], best[k]->at[i]))));
        TRY(buf_printf(
            out,
            "%.1f,%.1f' stroke='rgb(%d,%d,%d)' stroke-width='%s' stroke-opacity='%.2f'><title>",
            x_of(s, s->n_ranges), y_of(share), (int)(70 + 170 * share), (int)(120 - 10 * share),
            (int)(190 - 150 * share), k == 0 ? "3" : "1.3", 0.35 + 0.6 * share));
        TRY(buf_printf(out, "trial-%04d: ", number_of(s, best[k])));
        TRY(put_escaped(out, s->metric));
        TRY(buf_printf(out, " %.4g", best[k]->metric));
        for (int i = 0; i < s->n_ranges; i++) {
            TRY(buf_text(out, "\n"));
            TRY(put_escaped(out, s->range[i].name));
            TRY(buf_text(out, " = "));
            TRY(put_escaped(out, s->range[i].value[best[k]->at[i]]));
        }
        TRY(buf_text(out, "</title></polyline>\n"));
    }
    return OK;
}

static status put_table(const sweep *s, buf *out, const sweep_trial *const *best, int n) {
    TRY(buf_text(out, "<table><tr><th>trial</th>"));
    TRY(page_text(out, s->metric, "th"));
    TRY(buf_text(out, "<th>seconds</th>"));
    for (int i = 0; i < s->n_ranges; i++)
        TRY(page_text(out, s->range[i].name, "th"));
    TRY(buf_text(out, "</tr>\n"));
    for (int k = 0; k < n; k++) {
        TRY(buf_printf(out, "<tr><td>trial-%04d</td>", number_of(s, best[k])));
        TRY(page_number(out, best[k]->metric, "td", "%.4f"));
        TRY(page_number(out, best[k]->seconds, "td", "%.1f"));
        for (int i = 0; i < s->n_ranges; i++)
            TRY(page_text(out, s->range[i].value[best[k]->at[i]], "td"));
        TRY(buf_text(out, "</tr>\n"));
    }
    return buf_text(out, "</table>\n");
}

static status describe_page(const sweep *s, buf *out, const sweep_trial *const *best, int n) {
    double low = n > 0 ? best[n - 1]->metric : 0, high = n > 0 ? best[0]->metric : 0;
    if (s->is_lower_better) {
        double swap = low;
        low = high;
        high = swap;
    }
    TRY(page_open(out, "Sweep"));
    TRY(buf_printf(
        out,
        "<h1>Sweep</h1>\n<p>%d of %d trials have a result; the best are warm and drawn last.</p>\n",
        n, s->n_trials));
    TRY(buf_printf(out, "<svg viewBox='0 0 %d %d' width='100%%' role='img' fill='currentColor'>\n",
                   WIDTH, HEIGHT));
    TRY(put_axes(s, out, low, high));
    TRY(put_lines(s, out, best, n, low, high));
    TRY(buf_text(out, "</svg>\n"));
    TRY(put_table(s, out, best, n));
    return page_close(out);
}

static status save(const buf *text, const char *dir, const char *name) {
    char path[PATH_BYTES];
    TRY(path_join(path, sizeof path, dir, name));
    return page_save(text, path);
}

status sweep_show(const sweep *s, const char *dir) {
    const sweep_trial **best;
    buf text;
    TRY(MEM_NEW(&best, (size_t)s->n_trials));
    int n = sweep_order(s, best);
    buf_init(&text);
    status st = describe_csv(s, &text);
    if (st == OK) st = save(&text, dir, "sweep.csv");
    buf_clear(&text);
    if (st == OK) st = describe_page(s, &text, best, n);
    if (st == OK) st = save(&text, dir, "sweep.html");
    if (st == OK) print_table(s, best, n);
    buf_fini(&text);
    mem_free(best);
    return st;
}
