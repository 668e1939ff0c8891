/* A chart: curves over epochs as inline SVG, for report.html and `hstu compare`.  Colours come from
 * the page's CSS (page.h: classes c0, c1, ...), so that it works in light and dark. */
#ifndef HSTU_TRAIN_REPORT_CHART_H
#define HSTU_TRAIN_REPORT_CHART_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

typedef struct curve {
    const char *name;
    const double *x; /* (n) ascending */
    const double *y; /* (n); NAN: no value there */
    size_t n;
    bool is_dashed; /* a line to compare with, without dots */
} curve;

typedef struct chart {
    const char *title;
    const char *x_label; /* "epoch" */
    const curve *curves; /* (n_curves) */
    int n_curves;
    const char *mark_name; /* a vertical line at `mark`; NULL: none */
    double mark;
} chart;

enum { CHART_COLOURS = 8 };

/* Appends a <figure>; nothing at all if no curve has a finite value. */
status chart_write(const chart *c, buf *out);

/* Text with &, <, > and quotes escaped, for HTML and its attributes. */
status html_text(const char *text, buf *out);

#endif
