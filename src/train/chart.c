#include "train/chart.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/progress.h"

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
    if (span / step > 25)
        step *= 5;
    else if (span / step > 10)
        step *= 2;
    axis a = {.step = step};
    a.low = floor(low / step) * step;
    a.high = ceil(high / step) * step;
    if (!(a.high > a.low)) a.high = a.low + step;
    return a;
}

static bool is_drawn(const chart *c, int k, size_t i) {
    return fabs(c->curves[k].y[i]) <= LARGEST && fabs(c->x[i]) <= LARGEST;
}

static bool find_range(const chart *c, double *low, double *high) {
    bool has_any = false;
    for (int k = 0; k < c->n_curves; k++)
        for (size_t i = 0; i < c->n; i++) {
            double y = c->curves[k].y[i];
            if (!is_drawn(c, k, i)) continue;
            if (!has_any || y < *low) *low = y;
            if (!has_any || y > *high) *high = y;
            has_any = true;
        }
    return has_any;
}

/* Where a value is between the ends of its axis, 0 to 1; a log may hold steps that go back. */
static double share(const axis *a, double value) {
    return fmin(fmax((value - a->low) / (a->high - a->low), 0), 1);
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
    for (int i = 0; i < n_ticks(x); i++) {
        double v = x->low + i * x->step;
        if (v == floor(v))
            TRY(buf_printf(out, "<text x=%.1f y=%d text-anchor=middle>%.6g</text>\n", place_x(x, v),
                           HEIGHT - BOTTOM + 16, v));
    }
    return buf_printf(out, "<text x=%d y=%d text-anchor=end>%s</text>\n", WIDTH - RIGHT, HEIGHT - 4,
                      c->x_label);
}

static status write_curve(const chart *c, int k, const axis *x, const axis *y, buf *out) {
    const double *value = c->curves[k].y;
    bool is_drawing = false;
    TRY(buf_printf(out, "<path class=\"curve c%d\" d=\"", k));
    for (size_t i = 0; i < c->n; i++) {
        if (!is_drawn(c, k, i))
            continue; /* gaps are bridged: between evaluations there are no values */
        TRY(buf_printf(out, "%s%.1f %.1f", is_drawing ? "L" : "M", place_x(x, c->x[i]),
                       place_y(y, value[i])));
        is_drawing = true;
    }
    TRY(buf_text(out, "\"/>\n"));
    /* Dots show their values as tooltips; with very many points only some have one. */
    size_t stride = c->n / MAX_DOTS + 1;
    for (size_t i = c->n; i-- > 0;) {
        if (!is_drawn(c, k, i) || (c->n - 1 - i) % stride != 0) continue;
        TRY(buf_printf(out, "<circle class=c%d cx=%.1f cy=%.1f r=2.5><title>", k,
                       place_x(x, c->x[i]), place_y(y, value[i])));
        TRY(html_text(c->curves[k].name, out));
        TRY(buf_printf(out, " %.5g (%s %.6g)</title></circle>\n", value[i], c->x_label, c->x[i]));
    }
    return OK;
}

static status write_legend(const chart *c, buf *out) {
    TRY(buf_text(out, "<figcaption>"));
    TRY(html_text(c->title, out));
    for (int k = 0; k < c->n_curves && c->n_curves > 1; k++) {
        TRY(buf_printf(out, " <span class=c%d>&#9632;</span> ", k));
        TRY(html_text(c->curves[k].name, out));
    }
    return buf_text(out, "</figcaption>");
}

status chart_write(const chart *c, buf *out) {
    double low = 0, high = 0;
    if (c->n == 0 || !find_range(c, &low, &high)) return OK;
    double first = fmin(fmax(c->x[0], -LARGEST), LARGEST);
    double last = fmin(fmax(c->x[c->n - 1], first), LARGEST);
    axis y = make_axis(low, high), x = make_axis(first, last);
    /* The x axis ends at the last epoch: only values need round limits. */
    if (x.step < 1) x.step = 1;
    x.low = first;
    x.high = last > first ? last : first + x.step;
    TRY(buf_text(out, "<figure>"));
    TRY(write_legend(c, out));
    TRY(buf_printf(out, "<svg viewBox=\"0 0 %d %d\" role=img aria-label=\"", WIDTH, HEIGHT));
    TRY(html_text(c->title, out));
    TRY(buf_text(out, "\">\n"));
    TRY(write_grid(c, &x, &y, out));
    for (int k = 0; k < c->n_curves; k++)
        TRY(write_curve(c, k, &x, &y, out));
    return buf_text(out, "</svg></figure>\n");
}
