/* Status codes with reasons.
 *
 * Every fallible function returns `status`; 0 is success.  The reason is recorded where the failure
 * happens, by fail(), in words a user can act on; TRY adds one frame (file and line) per level on
 * the way up.  Reason and frames live in thread-local storage: a worker thread hands its failure to
 * the caller with failure_save() / failure_restore(), which the thread pool does by itself.
 *
 * The integer and boolean types come with this header, so that those which include it, nearly all,
 * need not name them. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    OK = 0,
    ERR_USAGE,       /* the command line is wrong: exit code 2 */
    ERR_CONFIG,      /* a config file or override is wrong: exit code 2 */
    ERR_NOMEM,       /* host or device memory ran out */
    ERR_IO,          /* the operating system refused: open, read, write, rename, network */
    ERR_FORMAT,      /* the content of a file is not what it should be */
    ERR_UNSUPPORTED, /* right, but this build or this version cannot do it */
    ERR_DEVICE,      /* a GPU failed or is missing */
    ERR_INTERRUPTED, /* SIGINT or SIGTERM */
    ERR_NUMERIC      /* a number that should be finite is not, or a loss exploded */
} status;

enum { FAILURE_REASON_BYTES = 1024, FAILURE_TRACE_BYTES = 1024 };

/* A failure as a value, to carry from one thread to another. */
typedef struct failure {
    status code;
    char reason[FAILURE_REASON_BYTES];
    char trace[FAILURE_TRACE_BYTES];
} failure;

#if defined(__GNUC__)
#define PRINTF_LIKE(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
#else
#define PRINTF_LIKE(fmt_index, first_arg)
#endif

/* Records the reason for this thread, drops older frames, and returns `code`. */
status fail(status code, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Like fail(ERR_IO, ...), with ": " and the text of errno after the message. */
status fail_errno(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* Puts "text: " before the recorded reason: a place, say, that only a caller knows. */
status fail_prefix(status code, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Adds a frame to the trace; used by TRY. */
status status_frame(status code, const char *file, int line);

#define TRY(call)                                                                                  \
    do {                                                                                           \
        status try_status_ = (call);                                                               \
        if (try_status_ != OK) return status_frame(try_status_, __FILE__, __LINE__);               \
    } while (0)

/* The end of a function that creates: hands the object out or, after a failure, destroys it. */
#define CREATED(st, out, object, destroy)                                                          \
    ((st) == OK ? (void)(*(out) = (object)) : (void)destroy(object), (st))

/* The reason of this thread's last failure ("" if none), and its frames, innermost first. */
const char *status_reason(void);
const char *status_trace(void);

/* A lower-case word for a code, as in "format". */
const char *status_name(status code);

/* The exit code of the program: 0 done, 1 failed, 2 wrong usage or config. */
int status_exit_code(status code);

void failure_save(failure *out, status code);
status failure_restore(const failure *saved);
