#include "train/report/report.h"

#include "train/report/run_log.h"

static status html_text(const char *text, buf *out) {
    for (; *text != '\0'; text++) {
        const char *escaped = *text == '&'    ? "&amp;"
                              : *text == '<'  ? "&lt;"
                              : *text == '>'  ? "&gt;"
                              : *text == '"'  ? "&quot;"
                              : *text == '\'' ? "&#39;"
                                              : NULL;
        TRY(escaped != NULL ? buf_text(out, escaped) : buf_char(out, *text));
    }
    return OK;
}

status html_printf(buf *out, const char *format, ...) {
    status st = OK;
    va_list args;
    va_start(args, format);
    for (const char *at = format; *at != '\0' && st == OK; at++) {
        if (at[0] == '%' && at[1] == 's')
            st = html_text(va_arg(args, const char *), out), at++;
        else
            st = buf_char(out, *at);
    }
    va_end(args);
    return st;
}

TEXT_FILE(page_css, "src/train/report/page.css");

static status write_colours(buf *out) {
    for (int i = 0; i < CHART_COLOURS; i++)
        TRY(buf_printf(out,
                       ".curve.c%d{stroke:var(--c%d)}circle.c%d,span.c%d{fill:var(--c%d);"
                       "color:var(--c%d)}",
                       i, i, i, i, i, i));
    return buf_char(out, '\n');
}

status page_open(buf *out, const char *title) {
    TRY(html_printf(out,
                    "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
                    "<meta name=viewport content=\"width=device-width\"><title>%s</title>\n"
                    "<style>\n",
                    title));
    TRY(buf_text(out, page_css));
    TRY(write_colours(out));
    return buf_text(out, "</style></head><body>\n");
}

status page_close(buf *out) {
    return buf_text(out, "</body></html>\n");
}

status page_tile(buf *out, const char *name, const char *format, ...) {
    char value[128];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    return html_printf(out, "<div class=tile><b>%s</b><span>%s</span></div>\n", value, name);
}

status page_number(buf *out, double value, const char *tag, const char *format) {
    TRY(buf_printf(out, "<%s>", tag));
    if (isfinite(value)) {
        char text[64];
        snprintf(text, sizeof text, format, value);
        TRY(buf_text(out, text));
    }
    return buf_printf(out, "</%s>", tag);
}

status page_text(buf *out, const char *text, const char *tag) {
    return html_printf(out, "<%s>%s</%s>", tag, text, tag);
}

/* The drawing in its own units; the page scales it. */
enum { WIDTH = 520, HEIGHT = 260, LEFT = 56, RIGHT = 16, TOP = 14, BOTTOM = 36, MAX_DOTS = 200 };

typedef struct axis {
    double low, high, step;
} axis;

/* Values beyond these limits are not drawn: their differences would overflow or vanish. */
static const double LARGEST = 1e300, SMALLEST = 1e-300;
enum { MAX_TICKS = 100 };

/* How many steps an axis has; half a step more, so that rounding does not lose the last. */
static int n_ticks(const axis *a) {
    return (int)fmin((a->high - a->low) / a->step + 1.5, MAX_TICKS);
}

/* Round steps (1, 2 or 5 times a power of ten), about five of them.  Values that differ by less
 * than a double can tell apart on the way from low to high count as equal. */
static axis make_axis(double low, double high) {
    double size = fmax(fabs(low), fabs(high));
    double span = high - low > 1e-9 * size ? high - low : size;
    if (span < SMALLEST) span = size < SMALLEST ? 1 : SMALLEST;
    double step = pow(10, floor(log10(span / 5)));
    if (span / step > 20)
        step *= 5;
    else if (span / step > 8)
        step *= 2;
    axis a = {.step = step};
    a.low = floor(low / step) * step;
    a.high = ceil(high / step) * step;
    if (!(a.high > a.low)) a.high = a.low + step;
    return a;
}

static bool is_drawn(const curve *line, size_t i) {
    return fabs(line->y[i]) <= LARGEST && fabs(line->x[i]) <= LARGEST;
}

typedef struct limits {
    bool has_any;
    double low, high;
} limits;

static void include(limits *l, double value) {
    if (!l->has_any || value < l->low) l->low = value;
    if (!l->has_any || value > l->high) l->high = value;
    l->has_any = true;
}

static void find_limits(const chart *c, limits *x, limits *y) {
    for (int k = 0; k < c->n_curves; k++)
        for (size_t i = 0; i < c->curves[k].n; i++) {
            if (!is_drawn(&c->curves[k], i)) continue;
            include(x, c->curves[k].x[i]);
            include(y, c->curves[k].y[i]);
        }
}

/* Where a value is between the ends of its axis, 0 to 1; at 0 where rounding makes the ends one. */
static double share(const axis *a, double value) {
    return fmax((value - a->low) / (a->high - a->low), 0);
}

static double place_x(const axis *a, double x) {
    return LEFT + share(a, x) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const axis *a, double y) {
    return HEIGHT - BOTTOM - share(a, y) * (HEIGHT - TOP - BOTTOM);
}

/* "0.45", "4.2", but "120 k" rather than 1.2e+05. */
static void label(char *text, int n, double value) {
    if (fabs(value) >= 1000 && fabs(value) < 1e15)
        human_count(text, n, value);
    else
        snprintf(text, (size_t)n, "%.4g", value);
}

static status write_grid(const chart *c, const axis *x, const axis *y, buf *out) {
    for (int i = 0; i < n_ticks(y); i++) {
        double v = y->low + i * y->step, at = place_y(y, v);
        char text[32];
        label(text, sizeof text, fabs(v) < y->step / 1000 ? 0 : v);
        TRY(buf_printf(out,
                       "<line class=grid x1=%d x2=%d y1=%.1f y2=%.1f />"
                       "<text x=%d y=%.1f text-anchor=end>%s</text>\n",
                       LEFT, WIDTH - RIGHT, at, at, LEFT - 6, at + 4, text));
    }
    /* Multiples of the step, wherever the axis begins. */
    axis ticks = {ceil(x->low / x->step) * x->step, x->high, x->step};
    for (int i = 0; i < n_ticks(&ticks); i++) {
        double v = ticks.low + i * x->step;
        if (v > x->high) break;
        if (v == floor(v) || c->has_fractions)
            TRY(buf_printf(out, "<text x=%.1f y=%d text-anchor=middle>%.6g</text>\n", place_x(x, v),
                           HEIGHT - BOTTOM + 16, v));
    }
    return buf_printf(out, "<text x=%d y=%d text-anchor=end>%s</text>\n", WIDTH - RIGHT, HEIGHT - 4,
                      c->x_label);
}

static status write_path(const curve *line, int k, const axis *x, const axis *y, buf *out) {
    bool is_drawing = false;
    TRY(buf_printf(out, "<path class=\"curve%s c%d\" d=\"", line->is_dashed ? " dash" : "",
                   k % CHART_COLOURS));
    for (size_t i = 0; i < line->n; i++) {
        if (!is_drawn(line, i))
            continue; /* gaps are bridged: between evaluations there are no values */
        TRY(buf_printf(out, "%s%.1f %.1f", is_drawing ? "L" : "M", place_x(x, line->x[i]),
                       place_y(y, line->y[i])));
        is_drawing = true;
    }
    return buf_text(out, "\"/>\n");
}

/* Dots show their values as tooltips; with very many points only some have one. */
static status write_dots(const chart *c, int k, const axis *x, const axis *y, buf *out) {
    const curve *line = &c->curves[k];
    size_t stride = line->n / MAX_DOTS + 1;
    for (size_t i = line->n; i-- > 0;) {
        if (!is_drawn(line, i) || (line->n - 1 - i) % stride != 0) continue;
        TRY(buf_printf(out, "<circle class=c%d cx=%.1f cy=%.1f r=2.5><title>", k % CHART_COLOURS,
                       place_x(x, line->x[i]), place_y(y, line->y[i])));
        TRY(html_text(line->name, out));
        TRY(buf_printf(out, " %.5g (%s %.6g)</title></circle>\n", line->y[i], c->x_label,
                       line->x[i]));
    }
    return OK;
}

static status write_mark(const chart *c, const axis *x, buf *out) {
    if (c->mark_name == NULL || !(c->mark >= x->low && c->mark <= x->high)) return OK;
    double at = place_x(x, c->mark);
    bool is_right = at > WIDTH - 80;
    TRY(buf_printf(out,
                   "<line class=mark x1=%.1f x2=%.1f y1=%d y2=%d /><text x=%.1f y=%d "
                   "text-anchor=%s>",
                   at, at, TOP, HEIGHT - BOTTOM, at + (is_right ? -4 : 4), HEIGHT - BOTTOM - 6,
                   is_right ? "end" : "start"));
    return html_printf(out, "%s</text>\n", c->mark_name);
}

/* The title and, under it, the names of several curves, each beside its colour. */
static status write_legend(const chart *c, buf *out) {
    TRY(html_printf(out, "<figcaption>%s", c->title));
    for (int k = 0; k < c->n_curves && c->n_curves > 1; k++) {
        TRY(buf_printf(out, "%s<span class=key><span class=c%d>%s</span> ", k == 0 ? "<br>" : " ",
                       k % CHART_COLOURS, c->curves[k].is_dashed ? "&#9476;&#9476;" : "&#9632;"));
        TRY(html_printf(out, "%s</span>", c->curves[k].name));
    }
    return buf_text(out, "</figcaption>");
}

status chart_write(const chart *c, buf *out) {
    limits across = {0}, up = {0};
    find_limits(c, &across, &up);
    if (!up.has_any) return OK;
    axis y = make_axis(up.low, up.high), x = make_axis(across.low, across.high);
    /* The x axis ends at the last epoch: only values need round limits. */
    if (x.step < 1 && !c->has_fractions) x.step = 1;
    x.low = across.low;
    x.high = across.high > across.low ? across.high : across.low + x.step;
    TRY(buf_text(out, "<figure>"));
    TRY(write_legend(c, out));
    TRY(buf_printf(out, "<svg viewBox=\"0 0 %d %d\" role=img aria-label=\"", WIDTH, HEIGHT));
    TRY(html_printf(out, "%s\">\n", c->title));
    TRY(write_grid(c, &x, &y, out));
    TRY(write_mark(c, &x, out));
    for (int k = 0; k < c->n_curves; k++) {
        TRY(write_path(&c->curves[k], k, &x, &y, out));
        if (!c->curves[k].is_dashed) TRY(write_dots(c, k, &x, &y, out));
    }
    return buf_text(out, "</svg></figure>\n");
}

enum { CONFIG_MAX_BYTES = 1 << 24, MAX_CURVES = 4, MAX_BASELINES = 4 };

/* The metrics that are drawn: the usual ones the run has, else its first ones. */
static int choose_metrics(const run_history *h, const char *names[MAX_CURVES]) {
    int n = 0;
    for (int i = 0; i < MAIN_METRICS; i++)
        if (run_history_values(h, main_metrics[i]) != NULL) names[n++] = main_metrics[i];
    for (int i = 0; n == 0 && i < h->n_metrics && i < MAX_CURVES; i++)
        names[i] = h->metric[i];
    return n > 0 ? n : h->n_metrics < MAX_CURVES ? h->n_metrics : MAX_CURVES;
}

static status write_tiles(const run_history *h, buf *out) {
    const char *names[MAX_CURVES];
    char name[64], speed[32];
    int n = choose_metrics(h, names);
    TRY(buf_text(out, "<div class=tiles>\n"));
    TRY(page_tile(out, "epochs", "%.0f", h->n > 0 ? history_last(h->epoch, h->n) : 0));
    if (isfinite(h->best_x))
        TRY(page_tile(out, h->is_by_step ? "best step" : "best epoch", "%.0f", h->best_x));
    TRY(page_tile(out, "loss", "%.4f", history_last(h->loss, h->n)));
    for (int i = 0; i < n; i++) {
        /* With validation the figure that counts is that of the test part, at the end. */
        double at_end = history_number(h->done, names[i]);
        double value =
            isfinite(at_end) ? at_end : history_last(run_history_values(h, names[i]), h->n);
        const char *part = isfinite(at_end) ? history_text(h->done, "part") : h->part;
        if (!isfinite(value)) continue;
        snprintf(name, sizeof name, "%s%s%s", names[i], part[0] != '\0' ? ", " : "", part);
        TRY(page_tile(out, name, "%.4f", value));
    }
    human_count(speed, sizeof speed, history_last(h->tokens_per_s, h->n));
    TRY(page_tile(out, "tokens/s", "%s", speed));
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
    int count = 0;
    (void)history_mean_of_last(h->n_metrics > 0 ? h->value[0] : h->loss, h->n, &count);
    TRY(is_mean ? buf_printf(out, "<tr><td>mean of the last %d</td>", count)
                : buf_text(out, "<tr><td>last</td>"));
    for (int m = -1; m < h->n_metrics; m++) {
        const double *y = m < 0 ? h->loss : h->value[m];
        double value = is_mean ? history_mean_of_last(y, h->n, &count) : history_last(y, h->n);
        TRY(page_number(out, value, "td", "%.4f"));
    }
    return buf_text(out, "<td></td></tr>\n");
}

static status write_evaluations(const run_history *h, buf *out) {
    const double *x = run_history_x(h);
    bool has_part = h->part[0] != '\0';
    TRY(html_printf(out, "<h2>Evaluations%s%s%s</h2><div class=scroll><table><tr><th>%s<th>loss",
                    has_part ? " on the " : "", h->part, has_part ? " part" : "",
                    h->is_by_step ? "step" : "epoch"));
    for (int m = 0; m < h->n_metrics; m++)
        TRY(html_printf(out, "<th>%s", h->metric[m]));
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

static status write_fact(const json_value *v, const json_value *intervals, buf *out) {
    const json_value *interval = intervals != NULL ? json_member(intervals, v->key) : NULL;
    TRY(html_printf(out, "<tr><td class=dim>%s</td><td>%s", v->key,
                    v->type == JSON_STRING ? v->string : ""));
    if (v->type == JSON_NUMBER) TRY(buf_printf(out, v->is_integer ? "%.0f" : "%.6g", v->number));
    if (v->type == JSON_BOOL) TRY(buf_text(out, v->boolean ? "yes" : "no"));
    if (interval != NULL && interval->type == JSON_ARRAY && interval->n_children == 2)
        TRY(buf_printf(out, " <span class=dim>[%.4f, %.4f]</span>", interval->first->number,
                       interval->first->next->number));
    return buf_text(out, "</td></tr>\n");
}

/* A table of the flat members of an object. */
static status write_facts(const char *title, const json_value *object, buf *out) {
    if (object == NULL || object->type != JSON_OBJECT) return OK;
    const json_value *intervals = json_member(object, "intervals");
    TRY(page_text(out, title, "h2"));
    TRY(buf_text(out, "<table class=text>\n"));
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        bool is_flat = v->type == JSON_STRING || v->type == JSON_NUMBER || v->type == JSON_BOOL;
        if (is_flat && strcmp(v->key, "event") != 0) TRY(write_fact(v, intervals, out));
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
        TRY(html_printf(out, is_hit ? "<li class=hit>%s &#10003;</li>" : "<li>%s</li>", title));
    }
    return buf_printf(out, "</%s>", tag);
}

/* Pages are passed around: users are numbered, not named. */
static status write_sample(const json_value *v, int number, buf *out) {
    const char *target = history_text(v, "target");
    double position = history_number(v, "rank");
    TRY(buf_printf(out, "<div class=card><h3>example %d</h3><span class=dim>newest events</span>",
                   number));
    TRY(write_list(json_member(v, "history"), "ul", "", out));
    TRY(buf_text(out, "<span class=dim>recommended</span>"));
    TRY(write_list(json_member(v, "items"), "ol", target, out));
    TRY(html_printf(out, "<span class=dim>held out: </span>%s", target));
    if (isfinite(position))
        TRY(buf_printf(out, " <span class=dim>(position %.0f)</span>", position));
    return buf_text(out, "</div>\n");
}

static status write_samples(const run_history *h, buf *out) {
    const json_value *users = h->samples != NULL ? json_member(h->samples, "users") : NULL;
    if (users == NULL || users->type != JSON_ARRAY) return OK;
    TRY(buf_text(out, "<h2>Sample recommendations</h2><div class=charts>\n"));
    int number = 0;
    for (const json_value *v = users->first; v != NULL; v = v->next)
        if (v->type == JSON_OBJECT) TRY(write_sample(v, ++number, out));
    return buf_text(out, "</div>\n");
}

static status write_config(const char *run, buf *out) {
    char path[4096], *text;
    size_t n;
    TRY(path_join(path, sizeof path, run, "config.json"));
    if (!file_exists(path)) return OK;
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &n));
    status st = html_printf(out,
                            "<h2>Config</h2><details><summary>effective values, defaults "
                            "included</summary><pre>%s</pre></details>\n",
                            text);
    mem_free(text);
    return st;
}

enum { MAX_POINTS = 32 };

/* A list of [x, y], the y NAN where it is no number; returns how many. */
static size_t read_points(const json_value *list, double x[MAX_POINTS], double y[MAX_POINTS]) {
    size_t n = 0;
    const json_value *point = list != NULL && list->type == JSON_ARRAY ? list->first : NULL;
    for (; point != NULL && n < MAX_POINTS; point = point->next) {
        const json_value *first = point->type == JSON_ARRAY ? point->first : NULL;
        if (first == NULL || first->type != JSON_NUMBER || first->next == NULL) continue;
        x[n] = first->number;
        y[n++] = first->next->type == JSON_NUMBER ? first->next->number : NAN;
    }
    return n;
}

/* Of each task how often what was predicted came true, by bins: on the dashed line a model is
 * calibrated. */
static status write_calibration(const json_value *tasks, buf *out) {
    if (tasks == NULL || tasks->type != JSON_OBJECT) return OK;
    TRY(buf_text(out, "<h2>Calibration on the test part</h2><div class=charts>\n"));
    for (const json_value *v = tasks->first; v != NULL; v = v->next) {
        double x[MAX_POINTS], y[MAX_POINTS];
        char title[96];
        size_t n = read_points(v, x, y);
        curve curves[2] = {{v->key, x, y, n, false}, {"calibrated", x, x, n, true}};
        snprintf(title, sizeof title, "%.40s: share of positives by predicted probability", v->key);
        chart c = {.title = title,
                   .x_label = "predicted probability",
                   .curves = curves,
                   .n_curves = 2,
                   .has_fractions = true};
        TRY(chart_write(&c, out));
    }
    return buf_text(out, "</div>\n");
}

static status write_certified_chart(const json_value *v, buf *out) {
    double x[MAX_CURVES][MAX_POINTS], y[MAX_CURVES][MAX_POINTS];
    curve curves[MAX_CURVES];
    chart c = {.title = history_text(v, "title"),
               .x_label = history_text(v, "x"),
               .curves = curves,
               .has_fractions = true};
    const json_value *all = json_member(v, "curves");
    for (const json_value *k = all != NULL && all->type == JSON_OBJECT ? all->first : NULL;
         k != NULL && c.n_curves < MAX_CURVES; k = k->next, c.n_curves++) {
        size_t n = read_points(k, x[c.n_curves], y[c.n_curves]);
        curves[c.n_curves] = (curve){k->key, x[c.n_curves], y[c.n_curves], n, false};
    }
    return c.n_curves > 0 ? chart_write(&c, out) : OK;
}

/* What `hstu certify` found of the run. */
static status write_certified(const char *run, buf *out) {
    char path[4096];
    const json_value *root, *charts = NULL;
    arena a;
    TRY(path_join(path, sizeof path, run, REPORT_CERTIFIED));
    if (!file_exists(path)) return OK;
    arena_init(&a, 1 << 14);
    status st = json_read_file(&a, path, CONFIG_MAX_BYTES, &root);
    if (st == OK) charts = json_member(root, "charts");
    if (st == OK)
        st = buf_text(out, "<h2>When the history changes a little</h2><div class=charts>\n");
    for (const json_value *v = charts != NULL && charts->type == JSON_ARRAY ? charts->first : NULL;
         st == OK && v != NULL; v = v->next)
        if (v->type == JSON_OBJECT) st = write_certified_chart(v, out);
    if (st == OK) st = buf_text(out, "</div>\n");
    arena_fini(&a);
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
    TRY(html_printf(out, "<h1>hstu run <span class=dim>%s</span></h1>\n<p class=dim>%s</p>\n", run,
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
    TRY(write_calibration(h->done != NULL ? json_member(h->done, "calibration") : NULL, out));
    TRY(write_certified(run, out));
    TRY(write_facts("Protocol", newest != NULL ? json_member(newest, "protocol") : NULL, out));
    TRY(write_facts("Environment", newest, out));
    TRY(write_config(run, out));
    return page_close(out);
}

status report_write(const char *run) {
    run_history h;
    buf page = {0};
    status st = run_history_read(&h, run);
    if (st == OK) st = write_page(&h, run, &page);
    run_history_fini(&h);
    return file_save(run, "report.html", &page, st);
}
