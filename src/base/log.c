#include <stdatomic.h>

#include "base/base.h"

#include "base/log.h"

static _Atomic log_level threshold = LOG_INFO;
static log_sink current_sink;
static void *current_sink_ctx;

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

static const char CLEAR_LINE[] = "\r\033[K";

/* Guards the terminal's line: which bar is shown, whether it is drawn, and its suffix. */
static pthread_mutex_t line_mutex = PTHREAD_MUTEX_INITIALIZER;
static progress *shown;
static bool is_drawn;

/* A failure to draw on the terminal is ignored. */
static void write_line(const char *text) {
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static void clear_drawn(void) {
    if (is_drawn) write_line(CLEAR_LINE);
    is_drawn = false;
}

/* Called before each line of the log.  The redraw is postponed, so that no other thread draws the
 * bar between this call and the line. */
static void make_way_for_log(void) {
    pthread_mutex_lock(&line_mutex);
    clear_drawn();
    if (shown != NULL) __atomic_store_n(&shown->last_draw_ns, clock_ns(), __ATOMIC_RELAXED);
    pthread_mutex_unlock(&line_mutex);
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
    make_way_for_log();
    char escaped[2 * sizeof line];
    fprintf(stderr, "%s\n", escape_text(escaped, sizeof escaped, line));
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

enum { MIN_BAR_COLUMNS = 8, MAX_BAR_COLUMNS = 40, LINE_BYTES = 2048 };
static const uint64_t REDRAW_NS = 100000000;
static const uint64_t FIRST_NOTE_NS = 30000000000, LAST_NOTE_NS = 600000000000;
/* Divides by 1000 until at most three digits are left before the point; returns the prefix. */
static const char *scale_down(double *value) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    int i = 0;
    /* 999.5 and not 1000: what rounds up to 1000 belongs to the next prefix. */
    for (; *value >= 999.5 && i < 6; i++)
        *value /= 1000;
    return prefixes[i];
}

void human_count(char *text, int n, double value) {
    if (!(value > 0)) value = 0;
    const char *prefix = scale_down(&value);
    bool is_whole = prefix[0] == '\0' && value == (double)(uint64_t)value;
    int decimals = is_whole || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text, (size_t)n, "%.*f%s%s", decimals, value, prefix[0] != '\0' ? " " : "", prefix);
}

void human_bytes(char *text, int n, double bytes) {
    if (!(bytes > 0)) bytes = 0;
    const char *prefix = scale_down(&bytes);
    int decimals = prefix[0] == '\0' || bytes >= 99.95 ? 0 : 1;
    snprintf(text, (size_t)n, "%.*f %sB", decimals, bytes, prefix);
}

void human_duration(char *text, int n, double seconds) {
    if (!(seconds > 0)) seconds = 0;
    if (seconds > 1e9) seconds = 1e9;
    if (seconds < 9.95) {
        snprintf(text, (size_t)n, "%.1f s", seconds);
        return;
    }
    unsigned s = (unsigned)(seconds + 0.5);
    if (s < 60)
        snprintf(text, (size_t)n, "%u s", s);
    else if (s < 3600)
        snprintf(text, (size_t)n, "%u m %02u s", s / 60, s % 60);
    else if (s < 24 * 3600)
        snprintf(text, (size_t)n, "%u h %02u m", s / 3600, s / 60 % 60);
    else
        snprintf(text, (size_t)n, "%u d %02u h", s / (24 * 3600), s / 3600 % 24);
}

/* Columns of a text: its characters, as every byte but a continuation byte starts one. */
static int columns_of(const char *text) {
    int n = 0;
    for (; *text != '\0'; text++)
        n += (*text & 0xc0) != 0x80;
    return n;
}

/* Cuts a text to at most `columns` characters, never inside one. */
static void cut_columns(char *text, int columns) {
    int n = 0;
    for (; *text != '\0'; text++) {
        n += (*text & 0xc0) != 0x80;
        if (n > columns) break;
    }
    *text = '\0';
}

static void add_amount(char *text, size_t n, const progress *p, double value) {
    char amount[32];
    if (strcmp(p->unit, "B") == 0)
        human_bytes(amount, sizeof amount, value);
    else
        human_count(amount, sizeof amount, value);
    text_add(text, n, "%s", amount);
}

/* The text after the bar: percent, done/total, rate, time left, suffix. */
static void render_numbers(const progress *p, uint64_t done, uint64_t now_ns, char *text,
                           size_t n) {
    char part[64];
    double seconds = (double)(now_ns > p->start_ns ? now_ns - p->start_ns : 0) / 1e9;
    double gained = done > p->start_done ? (double)(done - p->start_done) : 0;
    double rate = seconds > 0 ? gained / seconds : 0;
    text[0] = '\0';
    if (p->total > 0) {
        double share = done < p->total ? (double)done / (double)p->total : 1;
        text_add(text, n, "%3d%%  ", (int)(share * 100));
    }
    add_amount(text, n, p, (double)done);
    if (p->total > 0) {
        text_add(text, n, "/");
        add_amount(text, n, p, (double)p->total);
    }
    if (strcmp(p->unit, "B") != 0) text_add(text, n, " %s", p->unit);
    text_add(text, n, "  ");
    add_amount(text, n, p, rate);
    text_add(text, n, "/s");
    if (p->total > done && rate > 0) {
        human_duration(part, sizeof part, (double)(p->total - done) / rate);
        text_add(text, n, "  ETA %s", part);
    }
    if (p->suffix[0] != '\0') text_add(text, n, "  %s", p->suffix);
}

/* A bar of `columns` columns between two thin lines, drawn to an eighth of a column. */
static void render_bar(const progress *p, uint64_t done, int columns, char *text, size_t n) {
    static const char *const eighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int inner = columns - 2;
    double share = done < p->total ? (double)done / (double)p->total : 1;
    int filled = (int)(share * inner * 8);
    text_add(text, n, "▕");
    for (int i = 0; i < inner; i++, filled -= 8)
        text_add(text, n, "%s", filled >= 8 ? "█" : eighths[filled > 0 ? filled : 0]);
    text_add(text, n, "▏");
}

void progress_render(const progress *p, uint64_t now_ns, int width, char *text, size_t n) {
    char numbers[256];
    uint64_t done = __atomic_load_n(&p->done, __ATOMIC_RELAXED);
    render_numbers(p, done, now_ns, numbers, sizeof numbers);
    escape_text(text, n, p->what);
    int what_columns = width / 3;
    if (columns_of(text) > what_columns) {
        cut_columns(text, what_columns - 1);
        text_add(text, n, "…");
    }
    int bar_columns = width - columns_of(text) - 3 - columns_of(numbers);
    if (bar_columns > MAX_BAR_COLUMNS) bar_columns = MAX_BAR_COLUMNS;
    text_add(text, n, "  ");
    if (p->total > 0 && bar_columns >= MIN_BAR_COLUMNS) {
        render_bar(p, done, bar_columns, text, n);
        text_add(text, n, " ");
    }
    text_add(text, n, "%s", numbers);
    cut_columns(text, width);
}

void progress_begin(progress *p, const char *what, const char *unit, uint64_t total) {
    uint64_t now = clock_ns();
    *p = (progress){
        .what = what, .unit = unit, .total = total, .start_ns = now, .last_draw_ns = now};
    bool is_quiet = log_get_level() == LOG_QUIET, has_terminal = isatty(STDERR_FILENO);
    p->note_ns = is_quiet || has_terminal ? 0 : FIRST_NOTE_NS;
    if (is_quiet || !has_terminal) return;
    pthread_mutex_lock(&line_mutex);
    p->is_active = shown == NULL;
    if (p->is_active) shown = p;
    pthread_mutex_unlock(&line_mutex);
}

static void draw(progress *p, uint64_t now) {
    char text[LINE_BYTES];
    size_t clear = sizeof CLEAR_LINE - 1;
    memcpy(text, CLEAR_LINE, clear);
    /* One column stays empty: a full line would wrap on some terminals. */
    progress_render(p, now, env_columns(STDERR_FILENO) - 1, text + clear, sizeof text - clear);
    write_line(text);
    is_drawn = true;
    __atomic_store_n(&p->last_draw_ns, now, __ATOMIC_RELAXED);
}

/* Without a terminal: a line with the time left after half a minute, then each time twice as long
 * after the last one, at most ten minutes. */
static void note(progress *p) {
    char numbers[256];
    uint64_t now = clock_ns(), last = __atomic_load_n(&p->last_draw_ns, __ATOMIC_RELAXED);
    uint64_t wait = __atomic_load_n(&p->note_ns, __ATOMIC_RELAXED);
    if (now < last + wait || !__atomic_compare_exchange_n(&p->last_draw_ns, &last, now, false,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    wait = 2 * wait < LAST_NOTE_NS ? 2 * wait : LAST_NOTE_NS;
    __atomic_store_n(&p->note_ns, wait, __ATOMIC_RELAXED);
    pthread_mutex_lock(&line_mutex);
    render_numbers(p, __atomic_load_n(&p->done, __ATOMIC_RELAXED), now, numbers, sizeof numbers);
    pthread_mutex_unlock(&line_mutex);
    log_info("%s: %s", p->what, numbers);
}

void progress_update(progress *p, uint64_t done) {
    __atomic_store_n(&p->done, done, __ATOMIC_RELAXED);
    if (!p->is_active && p->note_ns > 0) note(p);
    if (!p->is_active) return;
    uint64_t now = clock_ns(), last = __atomic_load_n(&p->last_draw_ns, __ATOMIC_RELAXED);
    if (now < last + REDRAW_NS) return;
    /* Whoever holds the lock is drawing already: nobody waits for a terminal. */
    if (pthread_mutex_trylock(&line_mutex) != 0) return;
    draw(p, now);
    pthread_mutex_unlock(&line_mutex);
}

void progress_suffix(progress *p, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    pthread_mutex_lock(&line_mutex);
    vsnprintf(p->suffix, sizeof p->suffix, fmt, args);
    pthread_mutex_unlock(&line_mutex);
    va_end(args);
}

void progress_end(progress *p) {
    if (!p->is_active) return;
    pthread_mutex_lock(&line_mutex);
    clear_drawn();
    shown = NULL;
    p->is_active = 0;
    pthread_mutex_unlock(&line_mutex);
}
