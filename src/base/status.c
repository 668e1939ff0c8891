#include "base/status.h"

#include "base/base.h"

static _Thread_local char reason[FAILURE_REASON_BYTES];
static _Thread_local char trace[FAILURE_TRACE_BYTES];

status fail(status code, const char *fmt, ...) {
    /* Formats into a buffer first: an argument may be status_reason() itself. */
    char text[FAILURE_REASON_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    memcpy(reason, text, sizeof text);
    trace[0] = '\0';
    return code;
}

status fail_errno(const char *fmt, ...) {
    int error = errno;
    char text[FAILURE_REASON_BYTES - 128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return fail(ERR_IO, "%s: %s", text, strerror(error));
}

status fail_prefix(status code, const char *fmt, ...) {
    char text[FAILURE_REASON_BYTES], old[FAILURE_REASON_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    memcpy(old, reason, sizeof old);
    size_t used = strnlen(text, sizeof text - 1);
    snprintf(text + used, sizeof text - used, ": %.*s", (int)(sizeof text - used), old);
    memcpy(reason, text, sizeof text);
    return code;
}

status status_frame(status code, const char *file, int line) {
    size_t used = strlen(trace);
    snprintf(trace + used, sizeof trace - used, "%s%s:%d", used ? " < " : "", file, line);
    return code;
}

const char *status_reason(void) {
    return reason;
}

const char *status_trace(void) {
    return trace;
}

const char *status_name(status code) {
    static const char *const names[] = {"ok",          "usage",  "config",      "memory",
                                        "io",          "format", "unsupported", "device",
                                        "interrupted", "numeric"};
    return (size_t)code < sizeof names / sizeof names[0] ? names[code] : "unknown";
}

int status_exit_code(status code) {
    if (code == OK) return 0;
    return code == ERR_USAGE || code == ERR_CONFIG ? 2 : 1;
}

void failure_save(failure *out, status code) {
    out->code = code;
    memcpy(out->reason, reason, sizeof reason);
    memcpy(out->trace, trace, sizeof trace);
}

status failure_restore(const failure *saved) {
    memcpy(reason, saved->reason, sizeof reason);
    memcpy(trace, saved->trace, sizeof trace);
    return saved->code;
}
