/* Pages for people: self-contained HTML files (no script, nothing loaded) that work in light and
 * dark, the parts that such pages share, and the report of a run.
 *
 * RUN/report.html has curves of loss, metrics (beside baselines), learning rate and speed, sample
 * recommendations, what --resume changed, all evaluations, the environment and the config.  It is
 * made from RUN/log.jsonl and RUN/config.json alone, so it can be made again at any time, and is
 * replaced atomically: a browser that reloads never sees half a page. */
#pragma once

#include "base/base.h"

status report_write(const char *run);

/* A file of a run: charts that `hstu certify` adds to its page. */
#define REPORT_CERTIFIED "certify.json"

/* <html> ... <body>, with the styles of charts, tiles and tables; and the end of it. */
status page_open(buf *out, const char *title);
status page_close(buf *out);

/* A figure, formatted, with its name, inside <div class=tiles>. */
status page_tile(buf *out, const char *name, const char *format, ...) PRINTF_LIKE(3, 4);

/* <tag>4.2500</tag>; empty where the value is not finite. */
status page_number(buf *out, double value, const char *tag, const char *format);

/* <tag>text</tag>, the text escaped. */
status page_text(buf *out, const char *text, const char *tag);

/* A chart: curves over epochs as inline SVG.  Colours come from the page's CSS (classes c0, c1,
 * ...), so that it works in light and dark. */
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
    bool has_fractions; /* x values are no whole numbers */
} chart;

enum { CHART_COLOURS = 8 };

/* Appends a <figure>; nothing at all if no curve has a finite value. */
status chart_write(const chart *c, buf *out);

/* As buf_printf with nothing but %s: in each text &, <, > and quotes are escaped, for HTML and its
 * attributes. */
status html_printf(buf *out, const char *format, ...) PRINTF_LIKE(2, 3);
