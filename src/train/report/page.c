#include "train/report/page.h"

#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "train/report/chart.h"

static const char styles[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1c2128;--dim:#66707c;--line:#e3e6ea;"
    "--c0:#1769c4;--c1:#c4541b;--c2:#2c8a4b;--c3:#8446b8;--c4:#b8860b;--c5:#0f8a8a;--c6:#c2377a;"
    "--c7:#5c6670}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e7eb;--dim:#98a2ae;"
    "--line:#2c3238;--c0:#6ab0ff;--c1:#ff9a62;--c2:#6fce8e;--c3:#c596f2;--c4:#e3bd4d;--c5:#4fcaca;"
    "--c6:#f489bd;--c7:#aab4bf}}\n"
    "body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:72rem;"
    "margin:2rem auto;padding:0 1rem}\nh1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}"
    "h3{font-size:1rem;margin:.2rem 0}\n"
    ".tiles{display:flex;flex-wrap:wrap;gap:1rem}.charts{display:grid;gap:1rem;"
    "grid-template-columns:repeat(auto-fill,minmax(22rem,1fr))}.tile{border:1px solid var(--line);"
    "border-radius:8px;padding:.6rem 1rem;min-width:8rem}.tile b{display:block;font-size:1.5rem}\n"
    ".tile span,.dim{color:var(--dim)}figure,.card{margin:0;border:1px solid var(--line);"
    "border-radius:8px;padding:.6rem .8rem}svg{width:100%;height:auto}svg text{fill:var(--dim);"
    "font-size:11px}\n.grid{stroke:var(--line)}.mark{stroke:var(--dim);stroke-dasharray:2 3}"
    ".curve{fill:none;stroke-width:2;stroke-linejoin:round}.dash{stroke-dasharray:6 4;"
    "stroke-width:1.5}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.15rem .7rem;"
    "border-bottom:1px solid var(--line);text-align:right}td:first-child,th:first-child,.text td,"
    ".text th{text-align:left}td:first-child,.text td:first-child{white-space:nowrap}"
    ".scroll{overflow:auto;max-height:24rem}ul,ol{margin:.2rem 0;padding-left:1.6rem}"
    ".key{white-space:nowrap;margin-right:.6rem;font-size:.9em}"
    "li.hit{font-weight:600}\n"
    "pre{overflow:auto;border:1px solid var(--line);border-radius:8px;padding:.8rem}\n";

static status write_colours(buf *out) {
    for (int i = 0; i < CHART_COLOURS; i++)
        TRY(buf_printf(out,
                       ".curve.c%d{stroke:var(--c%d)}circle.c%d,span.c%d{fill:var(--c%d);"
                       "color:var(--c%d)}",
                       i, i, i, i, i, i));
    return buf_char(out, '\n');
}

status page_open(buf *out, const char *title) {
    TRY(buf_text(out, "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
                      "<meta name=viewport content=\"width=device-width\"><title>"));
    TRY(html_text(title, out));
    TRY(buf_text(out, "</title>\n<style>\n"));
    TRY(buf_text(out, styles));
    TRY(write_colours(out));
    return buf_text(out, "</style></head><body>\n");
}

status page_close(buf *out) {
    return buf_text(out, "</body></html>\n");
}

status page_tile(buf *out, const char *name, const char *value) {
    TRY(buf_text(out, "<div class=tile><b>"));
    TRY(html_text(value, out));
    TRY(buf_text(out, "</b><span>"));
    TRY(html_text(name, out));
    return buf_text(out, "</span></div>\n");
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
    TRY(buf_printf(out, "<%s>", tag));
    TRY(html_text(text, out));
    return buf_printf(out, "</%s>", tag);
}

status page_save(const buf *page, const char *path) {
    out_file *f;
    TRY(out_file_create(&f, path));
    return out_file_end(f, out_file_write(f, buf_str(page), page->n_bytes));
}
