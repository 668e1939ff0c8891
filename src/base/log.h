/* What people see on stderr while the program works: log lines, and a progress bar.  Data never
 * goes here (it goes to stdout, from src/cli).  Levels are set by HSTU_LOG=debug|info|warn|quiet or
 * by log_set_level().  Any thread may log; a line is written with one call, so lines of two threads
 * never mix. */
#pragma once

#include "base/status.h"

typedef enum { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_QUIET } log_level;

void log_set_level(log_level level);
log_level log_get_level(void);

/* Parses a level's name; ERR_USAGE names the choices. */
status log_level_parse(const char *name, log_level *out);

void log_info(const char *fmt, ...)
    PRINTF_LIKE(1, 2); /* write "note: ..." where a line needs a label */
void log_warn(const char *fmt, ...) PRINTF_LIKE(1, 2); /* printed as "warning: ..." */

/* A sink for tests; NULL restores stderr.  `line` has no newline. */
typedef void (*log_sink)(void *ctx, log_level level, const char *line);
void log_set_sink(log_sink sink, void *ctx);

/* A progress bar on stderr: what, bar, percent, rate, ETA.  Redrawn at most ten times a second,
 * only where stderr is a terminal and the log is not quiet; otherwise nothing is printed but
 * (optionally) the closing line.  A log line printed meanwhile clears the bar first.
 * progress_update and progress_suffix may be called from several threads.  One bar at a time per
 * process: one that begins while another is shown stays silent. */
typedef struct progress {
    const char *what; /* "reading ratings.dat" */
    const char *unit; /* "B" (bytes, shown as kB, MB, ...), "users", "events" */
    uint64_t total;   /* 0 = unknown: no bar, no ETA, just count and rate */
    uint64_t start_ns;
    uint64_t last_draw_ns;
    uint64_t done;
    uint64_t start_done; /* set after progress_begin where work resumes; excluded from the rate */
    int is_active;
    uint64_t note_ns; /* without a terminal: a line this long after the last one; 0: none */
    char suffix[96];  /* free text after the rate, as in "loss 4.95" */
} progress;

void progress_begin(progress *p, const char *what, const char *unit, uint64_t total);
void progress_update(progress *p, uint64_t done);
void progress_suffix(progress *p, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Clears the bar's line. */
void progress_end(progress *p);

/* Renders a bar into text of at most n bytes, for `width` columns; pure, so that it can be tested.
 */
void progress_render(const progress *p, uint64_t now_ns, int width, char *text, size_t n);

/* "1.23 M", "45.6 k", "789"; and "1.2 GB" (powers of 1000); and "3 m 05 s". */
void human_count(char *text, int n, double value);
void human_bytes(char *text, int n, double bytes);
void human_duration(char *text, int n, double seconds);
