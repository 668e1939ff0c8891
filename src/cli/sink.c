#include "cli/sink.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_special(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

status sink_open(sink *s, const char *path) {
    *s = (sink){0};
    if (path == NULL || strcmp(path, "-") == 0) {
        s->stream = stdout;
        return OK;
    }
    if (!is_special(path)) return out_file_create(&s->file, path);
    s->stream = fopen(path, "we");
    return s->stream != NULL ? OK : fail_errno("%s: cannot be opened", path);
}

static status write_failed(const sink *s) {
    if (errno == EPIPE) return fail(ERR_IO, "%s", "");
    return fail_errno("writing to %s failed: the output is incomplete",
                      s->stream == stdout ? "stdout" : "the device or pipe of --out");
}

status sink_write(sink *s, const void *bytes, size_t n) {
    if (s->held != NULL) return buf_append(s->held, bytes, n);
    if (s->file != NULL) return out_file_write(s->file, bytes, n);
    return fwrite(bytes, 1, n, s->stream) == n ? OK : write_failed(s);
}

status sink_close(sink *s, status st) {
    out_file *file = s->file;
    FILE *stream = s->stream;
    *s = (sink){0};
    if (file != NULL && st == OK) return out_file_commit(file);
    if (file != NULL) out_file_abandon(file);
    if (stream == stdout || stream == NULL) return st; /* main flushes it, and looks */
    bool is_written = fclose(stream) == 0;
    return st != OK || is_written ? st : write_failed(&(sink){.stream = NULL});
}

status sink_check_file(const char *option, const char *path) {
    if (path == NULL || strcmp(path, "-") != 0) return OK;
    return fail(ERR_USAGE, "%s -: this does not go to stdout; give the name of a file", option);
}

status sink_check_two(const char *option_a, const char *a, const char *option_b, const char *b) {
    if (a == NULL || b == NULL || strcmp(a, "-") == 0) return OK;
    if (strcmp(a, b) != 0 && !file_is_same(a, b)) return OK;
    return fail(ERR_USAGE, "%s and %s are both %s; give each a file of its own", option_a, option_b,
                a);
}

bool sink_is_terminal(const sink *s) {
    return s->stream != NULL && isatty(fileno(s->stream)) != 0;
}
