#include "cli/output.h"

static char shown[1 << 16];
static size_t n_shown;

/* Room of SHOW_PATH_BYTES, of which `keep` keeps what the text takes. */
static char *next_text(void) {
    if (n_shown + SHOW_PATH_BYTES > sizeof shown) n_shown = 0;
    return shown + n_shown;
}

static const char *keep(const char *text) {
    n_shown += strlen(text) + 1;
    return text;
}

const char *show_printf(const char *format, ...) {
    char *text = next_text();
    va_list args;
    va_start(args, format);
    vsnprintf(text, SHOW_PATH_BYTES, format, args);
    va_end(args);
    return keep(text);
}

const char *show_count(uint64_t value) {
    return keep(text_grouped(next_text(), value));
}

const char *show_rounded(double value) {
    char *text = next_text();
    human_count(text, SHOW_BYTES, value);
    return keep(text);
}

const char *show_bytes(double bytes) {
    char *text = next_text();
    human_bytes(text, SHOW_BYTES, bytes);
    return keep(text);
}

const char *show_duration(double seconds) {
    char *text = next_text();
    human_duration(text, SHOW_BYTES, seconds);
    return keep(text);
}

const char *show_bar(double share, int width) {
    char *text = next_text();
    /* U+258F is one eighth of a block, U+2588 all of it. */
    static const char *const blocks[] = {"",       "\u258f", "\u258e", "\u258d", "\u258c",
                                         "\u258b", "\u258a", "\u2589", "\u2588"};
    int max_width = (SHOW_BYTES - 1) / 3, at = 0;
    if (width > max_width) width = max_width;
    int eighths = (int)(share * width * 8 + .5);
    if (eighths == 0 && share > 0) eighths = 1;
    for (; eighths > 0 && at < 3 * width; eighths -= 8)
        at +=
            snprintf(text + at, (size_t)(SHOW_BYTES - at), "%s", blocks[eighths < 8 ? eighths : 8]);
    text[at] = '\0';
    return keep(text);
}

const char *show_date(int64_t seconds) {
    char *text = next_text();
    time_t t = (time_t)seconds;
    struct tm parts;
    if (gmtime_r(&t, &parts) == NULL || strftime(text, SHOW_BYTES, "%Y-%m-%d", &parts) == 0)
        snprintf(text, SHOW_BYTES, "second %" PRId64, seconds);
    return keep(text);
}

const char *show_text(const char *from, size_t n, int width) {
    char *text = next_text();
    size_t at = 0, cut = 0;
    int n_columns = 0;
    while (n > 0 && at + ESCAPE_BYTES + 4 < SHOW_BYTES) {
        char piece[ESCAPE_BYTES];
        size_t n_piece;
        int taken = escape_next(piece, &n_piece, from, n);
        bool is_escape = piece[0] == '\\' && n_piece > 1;
        n_columns += is_escape ? (int)n_piece : 1;
        if (n_columns > width) {
            at = cut;
            at += (size_t)utf8_encode(0x2026, text + at);
            break;
        }
        memcpy(text + at, piece, n_piece);
        at += n_piece, from += taken, n -= (size_t)taken;
        if (n_columns < width) cut = at; /* room for the ellipsis */
    }
    text[at] = '\0';
    return keep(text);
}

const char *show_path(const char *path) {
    return keep(escape_text(next_text(), SHOW_PATH_BYTES, path));
}

const char *show_join(const char *dir, const char *name) {
    char *text = next_text();
    (void)path_join(text, SHOW_PATH_BYTES, dir, name);
    return keep(text);
}

int show_columns(const char *text) {
    int n = 0;
    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80; /* not the later bytes of a character */
    return n;
}

/* A word that has no character to escape is quoted as it is; others as bash's $'...'. */
static bool is_printable(const char *word) {
    char escaped[SHOW_PATH_BYTES];
    return strcmp(escape_text(escaped, sizeof escaped, word), word) == 0;
}

const char *show_word(const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_@%+=:,./-";
    const char *path = word[0] == '-' ? "./" : "";
    if (word[0] != '\0' && word[strspn(word, plain)] == '\0')
        return show_printf("%s%s", path, word);
    bool is_whole = is_printable(word);
    char *text = next_text();
    int at = sprintf(text, "%s%s", path, is_whole ? "'" : "$'");
    for (; *word != '\0' && at + 6 < SHOW_PATH_BYTES; word++) {
        unsigned char c = (unsigned char)*word;
        bool is_plain = is_whole || (c >= ' ' && c < 0x7f && c != '\\');
        if (c == '\'' && is_whole)
            at += sprintf(text + at, "'\\''");
        else
            at += sprintf(text + at, is_plain && c != '\'' ? "%c" : "\\%03o", c);
    }
    strcpy(text + at, "'");
    return keep(text);
}

show_style show_stdout_style(void) {
    if (!env_wants_colour(STDOUT_FILENO)) return (show_style){"", "", "", ""};
    return (show_style){"\033[1m", "\033[36m", "\033[2m", "\033[0m"};
}

const char *show_bold(const char *text) {
    show_style style = show_stdout_style();
    return show_printf("%s%s%s", style.bold, text, style.plain);
}

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
    return fail(ERR_USAGE, "%s -: cannot be written to stdout; name a file", option);
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

/* The line that is open. */
static buf line_text;
static json_writer line;

json_writer *json_line_open(void) {
    line_text = (buf){0};
    json_begin_object(&line, &line_text, 0);
    return &line;
}

status json_line_print(void) {
    status st = json_finish_object(&line);
    if (st == OK) printf("%s\n", buf_str(&line_text));
    (void)fflush(stdout); /* main looks whether that failed */
    buf_fini(&line_text);
    return st;
}
