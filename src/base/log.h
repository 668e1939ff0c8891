/* The log: short lines for people, on stderr.  Data never goes here (it goes to stdout, from
 * src/cli).  Levels are set by HSTU_LOG=debug|info|warn|quiet or by log_set_level().  Any thread
 * may log; a line is written with one call, so lines of two threads never mix. */
#ifndef HSTU_BASE_LOG_H
#define HSTU_BASE_LOG_H

#include "base/status.h"

typedef enum { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_QUIET } log_level;

void log_set_level(log_level level);
log_level log_get_level(void);

/* Parses a level's name; ERR_USAGE names the choices. */
status log_level_parse(const char *name, log_level *out);

void log_info(const char *fmt, ...)
    PRINTF_LIKE(1, 2); /* write "note: ..." where a line needs a label */
void log_warn(const char *fmt, ...) PRINTF_LIKE(1, 2); /* printed as "warning: ..." */

/* A sink for tests and for the progress bar, which must clear its line first; NULL restores
 * stderr.  `line` has no newline. */
typedef void (*log_sink)(void *ctx, log_level level, const char *line);
void log_set_sink(log_sink sink, void *ctx);

/* Called before each line goes to stderr, so that a progress bar can clear itself; NULL: none. */
void log_set_before_line(void (*hook)(void));

#endif
