#include "train/report/chart.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/log.h"

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

status html_text(const char *text, buf *out) {
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
        if (v == floor(v))
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
    TRY(html_text(c->mark_name, out));
    return buf_text(out, "</text>\n");
}

/* The title and, under it, the names of several curves, each beside its colour. */
static status write_legend(const chart *c, buf *out) {
    TRY(buf_text(out, "<figcaption>"));
    TRY(html_text(c->title, out));
    for (int k = 0; k < c->n_curves && c->n_curves > 1; k++) {
        TRY(buf_printf(out, "%s<span class=key><span class=c%d>%s</span> ", k == 0 ? "<br>" : " ",
                       k % CHART_COLOURS, c->curves[k].is_dashed ? "&#9476;&#9476;" : "&#9632;"));
        TRY(html_text(c->curves[k].name, out));
        TRY(buf_text(out, "</span>"));
    }
    return buf_text(out, "</figcaption>");
}

status chart_write(const chart *c, buf *out) {
    limits across = {0}, up = {0};
    find_limits(c, &across, &up);
    if (!up.has_any) return OK;
    axis y = make_axis(up.low, up.high), x = make_axis(across.low, across.high);
    /* The x axis ends at the last epoch: only values need round limits. */
    if (x.step < 1) x.step = 1;
    x.low = across.low;
    x.high = across.high > across.low ? across.high : across.low + x.step;
    TRY(buf_text(out, "<figure>"));
    TRY(write_legend(c, out));
    TRY(buf_printf(out, "<svg viewBox=\"0 0 %d %d\" role=img aria-label=\"", WIDTH, HEIGHT));
    TRY(html_text(c->title, out));
    TRY(buf_text(out, "\">\n"));
    TRY(write_grid(c, &x, &y, out));
    TRY(write_mark(c, &x, out));
    for (int k = 0; k < c->n_curves; k++) {
        TRY(write_path(&c->curves[k], k, &x, &y, out));
        if (!c->curves[k].is_dashed) TRY(write_dots(c, k, &x, &y, out));
    }
    return buf_text(out, "</svg></figure>\n");
}
