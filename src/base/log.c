#include "base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/escape.h"

static _Atomic log_level threshold = LOG_INFO;
static log_sink current_sink;
static void *current_sink_ctx;
static void (*_Atomic before_line)(void);

void log_set_level(log_level level) {
    threshold = level;
}

log_level log_get_level(void) {
    return threshold;
}

status log_level_parse(const char *name, log_level *out) {
    static const char *const names[] = {"debug", "info", "warn", "quiet"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (log_level)i;
            return OK;
        }
    }
    return fail(ERR_USAGE, "log level '%s' is unknown; use debug, info, warn or quiet", name);
}

void log_set_sink(log_sink sink, void *ctx) {
    current_sink = sink;
    current_sink_ctx = ctx;
}

void log_set_before_line(void (*hook)(void)) {
    before_line = hook;
}

static void log_line(log_level level, const char *prefix, const char *fmt, va_list args) {
    if (level < threshold) return;
    char line[2048];
    size_t used = (size_t)snprintf(line, sizeof line, "%s", prefix);
    vsnprintf(line + used, sizeof line - used, fmt, args);
    if (current_sink != NULL) {
        current_sink(current_sink_ctx, level, line);
        return;
    }
    void (*hook)(void) = before_line;
    if (hook != NULL) hook();
    char shown[2 * sizeof line];
    fprintf(stderr, "%s\n", escape_text(shown, sizeof shown, line));
}

#define LOG_BODY(level, prefix)                                                                    \
    va_list args;                                                                                  \
    va_start(args, fmt);                                                                           \
    log_line(level, prefix, fmt, args);                                                            \
    va_end(args)

void log_info(const char *fmt, ...) {
    LOG_BODY(LOG_INFO, "");
}

void log_warn(const char *fmt, ...) {
    LOG_BODY(LOG_WARN, "warning: ");
}
