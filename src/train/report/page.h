/* Pages for people: one self-contained HTML file (no script, nothing loaded) that works in light
 * and dark, and the parts that report.html and the page of `hstu compare` share. */
#ifndef HSTU_TRAIN_REPORT_PAGE_H
#define HSTU_TRAIN_REPORT_PAGE_H

#include "base/status.h"
#include "base/text.h"

/* <html> ... <body>, with the styles of charts, tiles and tables; and the end of it. */
status page_open(buf *out, const char *title);
status page_close(buf *out);

/* A figure with its name, inside <div class=tiles>. */
status page_tile(buf *out, const char *name, const char *value);

/* <tag>4.2500</tag>; empty where the value is not finite. */
status page_number(buf *out, double value, const char *tag, const char *format);

/* <tag>text</tag>, the text escaped. */
status page_text(buf *out, const char *text, const char *tag);

/* Writes the page to a file, whole or not at all. */
status page_save(const buf *page, const char *path);

#endif
