/* hstu sweep: many trainings that differ in some options.  From top to bottom: ranges become
 * trials, trials become a table and a page with a parallel-coordinates picture, the command runs
 * them. */
#include <signal.h>
#include <sys/wait.h>

#include "cli/cli.h"
#include "cli/model/own_config.h"
#include "cli/model/sweep.h"
#include "cli/output.h"
#include "cli/work.h"
#include "config/metric_list.h"
#include "format/json.h"
#include "train/report/report.h"
#include "train/report/run_log.h"

static status bad(const char *text, const char *why) {
    return fail(ERR_USAGE,
                "--set-range %.200s: %s; it is NAME=V1,V2,... or NAME=LO..HI:N or "
                "NAME=log:LO..HI:N",
                text, why);
}

static status check_characters(const char *text) {
    for (const char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) return bad("?", "it has control characters");
    return OK;
}

static status add_value(sweep *s, sweep_range *r, const char *text, const char *from, size_t n) {
    const char *value;
    while (n > 0 && *from == ' ')
        from++, n--;
    while (n > 0 && from[n - 1] == ' ')
        n--;
    if (n == 0) return bad(text, "a value is empty");
    if (r->n == SWEEP_VALUES) return bad(text, "it has more than 256 values");
    TRY(arena_copy_text(&s->memory, from, n, &value));
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->value[i], value) == 0) return bad(text, "a value is given twice");
    r->value[r->n++] = value;
    return OK;
}

/* Commas in brackets and quotes belong to a value: [8, 5] is one. */
static status split_values(sweep *s, sweep_range *r, const char *text, const char *list) {
    int depth = 0;
    char quote = '\0';
    const char *from = list;
    for (const char *c = list;; c++) {
        if (*c == '\0' || (*c == ',' && depth == 0 && quote == '\0')) {
            if (*c == '\0' && (depth != 0 || quote != '\0'))
                return bad(text, "a bracket or quote is open");
            TRY(add_value(s, r, text, from, (size_t)(c - from)));
            if (*c == '\0') return OK;
            from = c + 1;
        } else if (quote != '\0') {
            if (*c == quote) quote = '\0';
        } else if (*c == '\'' || *c == '"') {
            quote = *c;
        } else if (*c == '[' || *c == '(') {
            depth++;
        } else if (*c == ']' || *c == ')') {
            if (--depth < 0) return bad(text, "a bracket is closed that was not open");
        }
    }
}

/* LO..HI:N; integers stay integers where they are even steps. */
static status spread_values(sweep *s, sweep_range *r, const char *text, const char *list) {
    const char *points = strstr(list, "..");
    char first[64], *end;
    size_t n_first = points != NULL ? (size_t)(points - list) : 0;
    if (n_first == 0 || n_first >= sizeof first) return bad(text, "LO is no number");
    memcpy(first, list, n_first); /* alone: "2..8" would begin with the number "2." */
    first[n_first] = '\0';
    double low = strtod(first, &end);
    if (end != first + n_first) return bad(text, "LO is no number");
    const char *second = points + 2;
    double high = strtod(second, &end);
    if (end == second || *end != ':') return bad(text, "HI is no number");
    const char *third = end + 1;
    long n = strtol(third, &end, 10);
    if (end == third || *end != '\0' || n < 2 || n > SWEEP_VALUES)
        return bad(text, "N is not 2..256");
    if (!isfinite(low) || !isfinite(high) || !(low < high)) return bad(text, "LO is not below HI");
    if (r->is_log && low <= 0) return bad(text, "a log range starts above 0");
    bool is_whole = !r->is_log && low == floor(low) && high == floor(high) && fabs(low) < 1e15 &&
                    fabs(high) < 1e15 && strpbrk(list, "eE") == NULL &&
                    fmod(high - low, (double)(n - 1)) == 0;
    for (long i = 0; i < n; i++) {
        double share = (double)i / (double)(n - 1);
        double x = r->is_log ? low * pow(high / low, share) : low + share * (high - low);
        if (i == n - 1) x = high;
        const char *value = is_whole ? show_printf("%.0f", x) : show_printf("%.6g", x);
        TRY(add_value(s, r, text, value, strlen(value)));
    }
    return OK;
}

/* The list begins with a number, two points and another: no value of a config looks like that. */
static bool is_spread(const char *list) {
    const char *points = strstr(list, "..");
    return points != NULL && strchr(points, ':') != NULL && strchr(list, ',') == NULL &&
           strpbrk(list, "'\"[") == NULL;
}

status sweep_add_range(sweep *s, const char *text) {
    const char *is = strchr(text, '=');
    sweep_range r = {0};
    TRY(check_characters(text));
    if (is == NULL || is == text) return bad(text, "there is no NAME=");
    if (s->n_ranges == SWEEP_RANGES) return bad(text, "there are 16 ranges already");
    TRY(arena_copy_text(&s->memory, text, (size_t)(is - text), &r.name));
    for (int i = 0; i < s->n_ranges; i++)
        if (strcmp(s->range[i].name, r.name) == 0) return bad(text, "its NAME has a range already");
    TRY(ARENA_NEW(&s->memory, &r.value, SWEEP_VALUES));
    const char *list = is + 1;
    if (strncmp(list, "log:", 4) == 0) {
        r.is_log = true;
        list += 4;
    }
    if (r.is_log || is_spread(list))
        TRY(spread_values(s, &r, text, list));
    else
        TRY(split_values(s, &r, text, list));
    s->range[s->n_ranges++] = r;
    return OK;
}

static void set_trial(const sweep *s, sweep_trial *t, uint64_t number) {
    *t = (sweep_trial){.metric = NAN};
    for (int i = s->n_ranges - 1; i >= 0; i--) { /* the last range changes first */
        t->at[i] = (int)(number % (uint64_t)s->range[i].n);
        number /= (uint64_t)s->range[i].n;
    }
}

/* n different numbers below `total`, ascending. */
static void draw(uint64_t *out, int n, uint64_t total, uint64_t seed) {
    rng_key key = rng_make_key(seed, RNG_TEST);
    uint64_t k = 0;
    for (int i = 0; i < n;) {
        rng_block b = rng_draw64(key, k++, 0);
        uint64_t x = ((uint64_t)b.word[0] << 32 | b.word[1]) % total;
        bool is_new = true;
        for (int j = 0; j < i && is_new; j++)
            is_new = out[j] != x;
        if (is_new) out[i++] = x;
    }
    sort_uint64(out, (size_t)n);
}

status sweep_make_trials(sweep *s, int64_t n_random, uint64_t seed) {
    uint64_t total = 1, *number;
    for (int i = 0; i < s->n_ranges; i++) {
        if (total > UINT64_MAX / 4 / (uint64_t)s->range[i].n)
            return fail(ERR_USAGE, "the ranges have more than 2^62 combinations");
        total *= (uint64_t)s->range[i].n;
    }
    bool is_drawn = n_random > 0 && (uint64_t)n_random < total;
    uint64_t n = is_drawn ? (uint64_t)n_random : total;
    if (n > SWEEP_TRIALS)
        return fail(ERR_USAGE,
                    "the ranges have %" PRIu64 " combinations, and %d can be tried; --random N "
                    "draws some of them",
                    total, (int)SWEEP_TRIALS);
    TRY(ARENA_NEW(&s->memory, &s->trial, n));
    TRY(ARENA_NEW(&s->memory, &number, n));
    if (is_drawn)
        draw(number, (int)n, total, seed);
    else
        for (uint64_t i = 0; i < n; i++)
            number[i] = i;
    s->n_trials = (int)n;
    for (uint64_t i = 0; i < n; i++)
        set_trial(s, &s->trial[i], number[i]);
    return OK;
}

enum { WIDTH = 900, HEIGHT = 420, TOP = 64, BOTTOM = 48, SIDE = 70 };

static bool is_better(const sweep *s, double a, double b) {
    return s->is_lower_better ? a < b : a > b;
}

static int sweep_order(const sweep *s, const sweep_trial **out) {
    int n = 0;
    for (int i = 0; i < s->n_trials; i++) {
        int at = n;
        if (!isfinite(s->trial[i].metric)) continue;
        for (; at > 0 && is_better(s, s->trial[i].metric, out[at - 1]->metric); at--)
            out[at] = out[at - 1];
        out[at] = &s->trial[i];
        n++;
    }
    return n;
}

static int number_of(const sweep *s, const sweep_trial *t) {
    return (int)(t - s->trial);
}

/* Said wherever trials are sorted by it. */
#define ON_TEST                                                                                    \
    ": the best of many trials on it is no estimate of what to expect; select on validation"

static void print_table(const sweep *s, const sweep_trial *const *best, int n) {
    enum { SHOWN = 20 };
    show_style style = show_stdout_style();
    printf("%s%-11s %10s %7s %9s", style.bold, "trial", s->metric, "epochs", "seconds");
    for (int i = 0; i < s->n_ranges; i++)
        printf("  %s", s->range[i].name);
    printf("%s\n", style.plain);
    for (int k = 0; k < n && k < SHOWN; k++) {
        printf("trial-%04d  %10.4f %7" PRId64 " %9.1f", number_of(s, best[k]), best[k]->metric,
               best[k]->epochs, best[k]->seconds);
        for (int i = 0; i < s->n_ranges; i++)
            printf("  %*s", (int)strlen(s->range[i].name), s->range[i].value[best[k]->at[i]]);
        printf("\n");
    }
    if (n > SHOWN) printf("... and %d more in sweep.csv\n", n - SHOWN);
    printf("\n%s is of the %s part%s\n", s->metric, s->part,
           strcmp(s->part, "test") == 0 ? ON_TEST : "");
}

static status describe_csv(const sweep *s, buf *out) {
    TRY(buf_text(out, "trial,"));
    TRY(csv_put_field(out, s->metric, strlen(s->metric)));
    TRY(buf_text(out, ",part,epochs,seconds,state"));
    for (int i = 0; i < s->n_ranges; i++) {
        TRY(buf_char(out, ','));
        TRY(csv_put_field(out, s->range[i].name, strlen(s->range[i].name)));
    }
    TRY(buf_char(out, '\n'));
    for (int k = 0; k < s->n_trials; k++) {
        const sweep_trial *t = &s->trial[k];
        TRY(buf_printf(out, "%d,", k));
        if (isfinite(t->metric)) TRY(buf_printf(out, "%.9g", t->metric));
        TRY(buf_printf(out, ",%s,%" PRId64 ",%.1f,%s", s->part, t->epochs, t->seconds,
                       t->is_done     ? "done"
                       : t->is_failed ? "failed"
                                      : "open"));
        for (int i = 0; i < s->n_ranges; i++) {
            const char *value = s->range[i].value[t->at[i]];
            TRY(buf_char(out, ','));
            TRY(csv_put_field(out, value, strlen(value)));
        }
        TRY(buf_char(out, '\n'));
    }
    return OK;
}

static status put_label(buf *out, double x, double y, const char *style, const char *text) {
    TRY(buf_printf(out, "<text x='%.1f' y='%.1f' %s>", x, y, style));
    return html_printf(out, "%s</text>\n", text);
}

static double x_of(const sweep *s, int axis) {
    return SIDE + (double)(WIDTH - 2 * SIDE) * axis / s->n_ranges;
}

static double y_of(double share) {
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

/* Where a value is on its axis, 0..1: values of a list evenly, in the order given. */
static double place(const sweep_range *r, int at) {
    return r->n > 1 ? (double)at / (r->n - 1) : 0.5;
}

static status put_axes(const sweep *s, buf *out, double worst, double best) {
    static const char middle[] = "text-anchor='middle' font-size='12' font-weight='bold'";
    static const char side[] = "font-size='11' class='dim'";
    for (int i = 0; i <= s->n_ranges; i++) {
        double x = x_of(s, i);
        TRY(buf_printf(out,
                       "<line x1='%.1f' x2='%.1f' y1='%d' y2='%d' stroke='currentColor' "
                       "stroke-opacity='.4'/>\n",
                       x, x, TOP, HEIGHT - BOTTOM));
        if (i == s->n_ranges) break;
        TRY(put_label(out, x, i % 2 == 0 ? TOP - 28 : HEIGHT - 14, middle, s->range[i].name));
        int step = s->range[i].n > 12 ? s->range[i].n / 8 : 1;
        for (int k = 0; k < s->range[i].n; k += step)
            TRY(put_label(out, x + 4, y_of(place(&s->range[i], k)) - 3, side,
                          s->range[i].value[k]));
    }
    TRY(put_label(out, x_of(s, s->n_ranges), TOP - 28, middle, s->metric));
    TRY(put_label(out, x_of(s, s->n_ranges) + 4, y_of(1) + 4, side, show_printf("%.4g", best)));
    return put_label(out, x_of(s, s->n_ranges) + 4, y_of(0), side, show_printf("%.4g", worst));
}

/* A line a trial, the best ones drawn last; the better, the warmer. */
static status put_lines(const sweep *s, buf *out, const sweep_trial *const *best, int n) {
    for (int k = n - 1; k >= 0; k--) {
        double worst = best[n - 1]->metric, range = best[0]->metric - worst;
        double share = range != 0 ? (best[k]->metric - worst) / range : 1;
        TRY(buf_text(out, "<polyline fill='none' points='"));
        for (int i = 0; i < s->n_ranges; i++)
            TRY(buf_printf(out, "%.1f,%.1f ", x_of(s, i),
                           y_of(place(&s->range[i], best[k]->at[i]))));
        TRY(buf_printf(
            out,
            "%.1f,%.1f' stroke='rgb(%d,%d,%d)' stroke-width='%s' stroke-opacity='%.2f'><title>",
            x_of(s, s->n_ranges), y_of(share), (int)(70 + 170 * share), (int)(120 - 10 * share),
            (int)(190 - 150 * share), k == 0 ? "3" : "1.3", 0.35 + 0.6 * share));
        TRY(buf_printf(out, "trial-%04d: ", number_of(s, best[k])));
        TRY(html_printf(out, "%s", s->metric));
        TRY(buf_printf(out, " %.4g", best[k]->metric));
        for (int i = 0; i < s->n_ranges; i++)
            TRY(html_printf(out, "\n%s = %s", s->range[i].name, s->range[i].value[best[k]->at[i]]));
        TRY(buf_text(out, "</title></polyline>\n"));
    }
    return OK;
}

static status put_table(const sweep *s, buf *out, const sweep_trial *const *best, int n) {
    TRY(buf_text(out, "<table><tr><th>trial</th>"));
    TRY(page_text(out, s->metric, "th"));
    TRY(buf_text(out, "<th>seconds</th>"));
    for (int i = 0; i < s->n_ranges; i++)
        TRY(page_text(out, s->range[i].name, "th"));
    TRY(buf_text(out, "</tr>\n"));
    for (int k = 0; k < n; k++) {
        TRY(buf_printf(out, "<tr><td>trial-%04d</td>", number_of(s, best[k])));
        TRY(page_number(out, best[k]->metric, "td", "%.4f"));
        TRY(page_number(out, best[k]->seconds, "td", "%.1f"));
        for (int i = 0; i < s->n_ranges; i++)
            TRY(page_text(out, s->range[i].value[best[k]->at[i]], "td"));
        TRY(buf_text(out, "</tr>\n"));
    }
    return buf_text(out, "</table>\n");
}

static status describe_page(const sweep *s, buf *out, const sweep_trial *const *best, int n) {
    TRY(page_open(out, "Sweep"));
    TRY(buf_printf(
        out,
        "<h1>Sweep</h1>\n<p>%d of %d trials have a result; the best are warm and drawn last.</p>\n"
        "<p>%s is of the %s part%s.</p>\n",
        n, s->n_trials, s->metric, s->part, strcmp(s->part, "test") == 0 ? ON_TEST : ""));
    TRY(buf_printf(out, "<svg viewBox='0 0 %d %d' width='100%%' role='img' fill='currentColor'>\n",
                   WIDTH, HEIGHT));
    TRY(put_axes(s, out, n > 0 ? best[n - 1]->metric : 0, n > 0 ? best[0]->metric : 0));
    TRY(put_lines(s, out, best, n));
    TRY(buf_text(out, "</svg>\n"));
    TRY(put_table(s, out, best, n));
    return page_close(out);
}

static status sweep_show(const sweep *s, const char *dir) {
    const sweep_trial **best;
    buf text = {0};
    TRY(MEM_NEW(&best, (size_t)s->n_trials));
    int n = sweep_order(s, best);
    status st = file_save(dir, "sweep.csv", &text, describe_csv(s, &text));
    if (st == OK) st = describe_page(s, &text, best, n);
    st = file_save(dir, "sweep.html", &text, st);
    if (st == OK) print_table(s, best, n);
    mem_free(best);
    return st;
}

/* hstu sweep: many trainings that differ in some options, several at a time; a sweep that was
 * stopped goes on where it was. */

enum { MAX_OUT = SHOW_PATH_BYTES - 32, MAX_JOBS = 64, MAX_WORDS = 2048, EXIT_WRONG = 2 };

typedef struct sweep_args {
    const char *gin, *data, *out, *metric, *device, *split;
    arg_list ranges, set;
    int64_t jobs, epochs, n_random, seed;
    int part; /* of parts */
    bool is_halving;
    int64_t is_enough; /* epochs of a trial that is done; 0: any */
} sweep_args;

static const char *const parts[] = {"validation", "test", NULL};
enum { ON_VALIDATION, ON_TEST_PART };

/* --halving: of each round the best third goes on, three times as long. */
enum { HALVING = 3 };

typedef struct sweep_job {
    pid_t pid; /* 0: free */
    int trial;
} sweep_job;

static volatile sig_atomic_t signalled;
static sweep_job running[MAX_JOBS];

/* What ends us is meant for the trainings: they save and leave. */
static void pass_on(int number) {
    signalled = number;
    for (int i = 0; i < MAX_JOBS; i++)
        if (running[i].pid > 0) kill(running[i].pid, number);
}

static const char *trial_path(const sweep_args *a, int trial, const char *end) {
    return show_join(a->out, show_printf("trial-%04d%s", trial, end));
}

/* On validation: the metric of the best evaluation.  On test: that of the end.  A loss is better
 * when it is lower. */
static double end_value(const sweep_args *a, const run_history *h, const char *name) {
    double value = a->part == ON_VALIDATION ? NAN : history_number(h->done, name);
    const double *y = strcmp(name, "loss") == 0 ? h->loss : run_history_values(h, name);
    for (size_t i = 0; a->part == ON_VALIDATION && y != NULL && i < h->n; i++)
        if (h->step[i] == h->best_step) value = y[i];
    return isfinite(value) ? value : y != NULL ? history_last(y, h->n) : NAN;
}

static void choose_metric(sweep *s, const sweep_args *a, const run_history *h) {
    static const char *const names[] = {"ndcg@10", "auc", "hr@10", "loss"};
    for (size_t i = 0; i < sizeof names / sizeof *names && s->metric == NULL; i++)
        if (isfinite(end_value(a, h, names[i]))) s->metric = names[i];
    if (s->metric != NULL) s->is_lower_better = metric_is_smaller_better(s->metric);
}

/* What a trial's log says: whether it is done, and its metric. */
static status read_trial(sweep *s, const sweep_args *a, int trial) {
    const char *path = trial_path(a, trial, "");
    sweep_trial *t = &s->trial[trial];
    run_history h;
    if (!folder_has(path, "log.jsonl")) return OK;
    status st = run_history_read(&h, path);
    if (st == OK && h.done != NULL) {
        choose_metric(s, a, &h);
        t->epochs = (int64_t)history_number(h.done, "epoch");
        t->is_done = t->epochs >= a->is_enough;
        t->metric = s->metric != NULL ? end_value(a, &h, s->metric) : NAN;
        t->seconds = 0;
        for (size_t i = 0; i < h.n; i++)
            if (isfinite(h.seconds[i])) t->seconds += h.seconds[i];
        if (!isfinite(t->metric))
            st = fail(ERR_USAGE, "%s has no metric '%.60s'", path,
                      s->metric != NULL ? s->metric : "?");
    }
    run_history_fini(&h);
    return st;
}

/* Jobs take the devices of a list in turn. */
static const char *take_device(const char *list, int job) {
    int n = 1;
    for (const char *c = list; *c != '\0'; c++)
        n += *c == ',';
    for (int i = job % n; i > 0; i--)
        list = strchr(list, ',') + 1;
    return show_printf("%.*s", (int)strcspn(list, ","), list);
}

/* The words of a training, which begins at once. */
static status make_words(sweep *s, const sweep_args *a, int trial, int job, const char *self,
                         const char *words[MAX_WORDS]) {
    const char *path = trial_path(a, trial, "");
    char *text;
    int n = 0, n_threads;
    TRY(env_threads_of((int)a->jobs, &n_threads));
    const char *epochs = show_printf("%" PRId64, a->is_enough > 0 ? a->is_enough : a->epochs);
    const char *const first[] = {"env",
                                 show_printf("HSTU_THREADS=%d", n_threads),
                                 self,
                                 "train",
                                 a->gin,
                                 "--data",
                                 a->data,
                                 "--out",
                                 path,
                                 "--device",
                                 take_device(a->device, job)};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        words[n++] = first[i];
    if (a->epochs > 0) words[n++] = "--epochs", words[n++] = epochs;
    if (a->part == ON_VALIDATION) words[n++] = "--validate";
    if (a->split != NULL) words[n++] = "--split", words[n++] = a->split;
    for (size_t i = 0; i < a->set.n_items; i++)
        words[n++] = "--set", words[n++] = a->set.item[i];
    for (int i = 0; i < s->n_ranges; i++) {
        const sweep_range *r = &s->range[i];
        const char *value = r->value[s->trial[trial].at[i]];
        size_t bytes = strlen(r->name) + strlen(value) + 2;
        TRY(ARENA_NEW(&s->memory, &text, bytes));
        snprintf(text, bytes, "%s=%s", r->name, value);
        words[n++] = "--set", words[n++] = text;
    }
    if (folder_has(path, "config.json")) words[n++] = "--resume";
    words[n] = NULL;
    return OK;
}

static status start(sweep *s, const sweep_args *a, const char *self, int trial, sweep_job *job) {
    const char *words[MAX_WORDS];
    TRY(make_words(s, a, trial, (int)(job - running), self, words));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) return fail_errno("starting a training");
    if (pid == 0) {
        int fd = open(trial_path(a, trial, ".log"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0) _exit(127);
        execvp(words[0], (char *const *)words);
        _exit(127);
    }
    *job = (sweep_job){pid, trial};
    if (signalled) kill(pid, signalled);
    return OK;
}

/* The last line of a training's output but the hint at --help: it says why it failed. */
static const char *last_line(const sweep_args *a, int trial) {
    char *text;
    size_t n;
    if (file_read_all(trial_path(a, trial, ".log"), 1 << 22, &text, &n) != OK) return "";
    const char *line = text;
    do {
        while (n > 0 && text[n - 1] == '\n')
            n--;
        text[n] = '\0';
        line = strrchr(text, '\n') != NULL ? strrchr(text, '\n') + 1 : text;
        n = (size_t)(line - text);
    } while (n > 0 && strncmp(line, "Try 'hstu ", 10) == 0);
    line = show_printf("%.399s", line);
    mem_free(text);
    return line;
}

static void tell(const sweep *s, int trial) {
    const sweep_trial *t = &s->trial[trial];
    const char *line = "";
    for (int i = 0; i < s->n_ranges; i++)
        line = show_printf("%s %s=%s", line, s->range[i].name, s->range[i].value[t->at[i]]);
    log_info("trial-%04d%s: %s %.4f", trial, line, s->metric, t->metric);
}

/* One training has ended.  A wrong option is wrong in all of them: the sweep ends. */
static status end_trial(sweep *s, const sweep_args *a, const sweep_job *job, int how) {
    int code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    if (code == 0) {
        TRY(read_trial(s, a, job->trial));
        tell(s, job->trial);
        return OK;
    }
    if (signalled) return OK;
    const char *why = last_line(a, job->trial);
    if (code == EXIT_WRONG) return fail(ERR_CONFIG, "trial-%04d: %s", job->trial, why);
    s->trial[job->trial].is_failed = true;
    log_warn("trial-%04d ended with exit code %d: %s (%s)", job->trial, code, why,
             trial_path(a, job->trial, ".log"));
    return OK;
}

static status wait_one(sweep *s, const sweep_args *a, int *n_running) {
    int how;
    pid_t pid = waitpid(-1, &how, 0);
    if (pid < 0 && errno == EINTR) return OK;
    if (pid < 0) return fail_errno("waiting for trainings");
    for (int i = 0; i < MAX_JOBS; i++) {
        if (running[i].pid != pid) continue;
        sweep_job job = running[i];
        running[i].pid = 0;
        --*n_running;
        return end_trial(s, a, &job, how);
    }
    return OK;
}

static status run_trials(sweep *s, const sweep_args *a, const char *self) {
    int next = 0, n_running = 0;
    status st = OK;
    while (st == OK || n_running > 0) {
        while (next < s->n_trials && s->trial[next].is_done)
            next++;
        bool has_more = st == OK && !signalled && next < s->n_trials;
        if (!has_more && n_running == 0) break;
        if (has_more && n_running < a->jobs) {
            int free_job = 0;
            while (running[free_job].pid != 0)
                free_job++;
            status started = start(s, a, self, next++, &running[free_job]);
            if (started == OK)
                n_running++;
            else
                st = started;
            continue;
        }
        status ended = wait_one(s, a, &n_running);
        if (st == OK) st = ended; /* the others are waited for */
    }
    return st == OK && signalled
               ? fail(ERR_INTERRUPTED, "interrupted; run the same command again to continue")
               : st;
}

/* All but the best `n` of the trials have had enough. */
static void keep_best(sweep *s, const sweep_trial **best, int n) {
    int n_with = sweep_order(s, best);
    for (int i = 0; i < s->n_trials; i++)
        s->trial[i].is_done = true;
    for (int i = 0; i < n && i < n_with; i++)
        s->trial[best[i] - s->trial].is_done = false;
}

/* Successive halving: all trials for a few epochs, the best third of them for three times as many,
 * and so on up to --epochs. */
static status run_rounds(sweep *s, sweep_args *a, const char *self) {
    const sweep_trial **best;
    int64_t epochs = a->epochs;
    int n = s->n_trials, n_rounds = 1;
    for (; n > 1 && epochs >= HALVING; n /= HALVING, n_rounds++)
        epochs /= HALVING;
    TRY(MEM_NEW(&best, (size_t)s->n_trials));
    status st = OK;
    n = s->n_trials;
    for (int round = 1; round <= n_rounds && st == OK; round++) {
        a->is_enough = round == n_rounds ? a->epochs : epochs;
        for (int i = 0; i < s->n_trials; i++)
            if (s->trial[i].epochs >= a->is_enough) s->trial[i].is_done = true;
        log_info("round %d of %d: %d trial%s, up to epoch %" PRId64, round, n_rounds, n,
                 n == 1 ? "" : "s", a->is_enough);
        st = run_trials(s, a, self);
        n = n > HALVING ? n / HALVING : 1;
        epochs *= HALVING;
        if (st == OK && round < n_rounds) keep_best(s, best, n);
    }
    mem_free(best);
    return st;
}

/* What the sweep is, so that another one is not mixed with it; is_old: as the first version, which
 * selected on the test part, wrote it. */
static status describe(const sweep_args *a, bool is_old, buf *out) {
    TRY(buf_printf(out,
                   "hstu sweep %d\nconfig %s\ndata %s\nepochs %" PRId64 "\nrandom %" PRId64
                   "\nseed %" PRId64 "\n",
                   is_old ? 1 : 2, a->gin, a->data, a->epochs, a->n_random, a->seed));
    if (!is_old)
        TRY(buf_printf(out, "part %s\nsplit %s\nhalving %d\n", parts[a->part],
                       a->split != NULL ? a->split : "-", a->is_halving));
    for (size_t i = 0; i < a->set.n_items; i++)
        TRY(buf_printf(out, "set %s\n", a->set.item[i]));
    for (size_t i = 0; i < a->ranges.n_items; i++)
        TRY(buf_printf(out, "range %s\n", a->ranges.item[i]));
    return OK;
}

/* Whether sweep.txt describes this sweep.  An old one goes on as it began. */
static status check_folder(sweep_args *a, const char *path, bool *is_same) {
    char *text;
    size_t n;
    *is_same = false;
    TRY(file_read_all(path, 1 << 20, &text, &n));
    status st = OK;
    for (int is_old = 0; is_old < 2 && st == OK && !*is_same; is_old++) {
        buf want = {0};
        st = describe(a, is_old, &want);
        *is_same = st == OK && n == want.n_bytes && memcmp(text, buf_str(&want), n) == 0;
        if (*is_same && is_old && (a->split != NULL || a->is_halving)) *is_same = false;
        if (*is_same && is_old) {
            a->part = ON_TEST_PART;
            log_info("note: %s was begun by an older version, which selects on the test part",
                     a->out);
        }
        buf_fini(&want);
    }
    mem_free(text);
    return st;
}

/* Sets *is_new where this sweep made the folder. */
static status open_folder(sweep_args *a, bool *is_new) {
    const char *path = show_join(a->out, "sweep.txt");
    bool is_same;
    buf want = {0};
    if (strlen(a->out) > MAX_OUT) return fail(ERR_USAGE, "--out: the path is too long");
    TRY(folder_create(a->out, is_new));
    if (file_exists(path)) {
        TRY(check_folder(a, path, &is_same));
        if (is_same) return OK;
        return fail(ERR_USAGE, "%s has another sweep (%s says which); give this one another --out",
                    a->out, path);
    }
    if (!*is_new)
        return fail(ERR_USAGE, "%s exists and is not a sweep; give another --out", a->out);
    return file_save(NULL, path, &want, describe(a, false, &want));
}

/* A wrong option stops the first trainings before they begin: of such a sweep nothing is left, so
 * that the same --out can be given again.  A folder with anything of a trial but its log stays. */
static void remove_folder(const sweep *s, const sweep_args *a) {
    for (int i = 0; i < s->n_trials; i++)
        if (folder_exists(trial_path(a, i, ""))) return;
    for (int i = 0; i < s->n_trials; i++)
        (void)unlink(trial_path(a, i, ".log"));
    (void)unlink(show_join(a->out, "sweep.txt"));
    (void)rmdir(a->out);
}

/* --metric before any trial: one that the config's evaluations have, a task's too ("auc:click"), or
 * on the test part one of the end.  A config that cannot be read is the trials' to refuse. */
static status check_metric(const sweep_args *a) {
    config *c;
    metric_list list;
    bool is_known = a->metric == NULL || strcmp(a->metric, "loss") == 0;
    char name[METRIC_NAME_BYTES];
    const char *all = "";
    size_t n_name = is_known ? 0 : strcspn(a->metric, ":");
    for (size_t i = 0; i < a->ranges.n_items; i++)
        is_known |= strstr(a->ranges.item[i], "eval_metrics") != NULL;
    config_source source = {
        .path = a->gin, .overrides = a->set.item, .n_overrides = a->set.n_items};
    if (is_known || config_load(&c, &source) != OK) return OK;
    status st = metric_list_of(&list, c);
    if (st == OK && a->part == ON_TEST_PART) metric_list_add_final(&list, c->task);
    config_destroy(c);
    for (int i = 0; i < list.n && st == OK; i++) {
        all = show_printf("%s%s, ", all, metric_name(&list.item[i], name));
        is_known |= strlen(name) == n_name && strncmp(name, a->metric, n_name) == 0;
    }
    if (st != OK || is_known) return st;
    return fail(ERR_USAGE, "--metric %.60s: trials have %sand loss", a->metric, all);
}

static status run(sweep *s, sweep_args *a) {
    char self[CONFIG_PATH_BYTES];
    int n_done = 0, n_failed = 0;
    bool is_new;
    TRY(work_own_path(self));
    for (size_t i = 0; i < a->ranges.n_items; i++)
        TRY(sweep_add_range(s, a->ranges.item[i]));
    TRY(sweep_make_trials(s, a->n_random, (uint64_t)a->seed));
    if (a->set.n_items + SWEEP_RANGES > MAX_WORDS / 4)
        return fail(ERR_USAGE, "%zu times --set", a->set.n_items);
    TRY(check_metric(a));
    TRY(open_folder(a, &is_new));
    s->metric = a->metric;
    s->part = parts[a->part];
    if (a->split != NULL && strcmp(a->split, "none") == 0)
        return fail(ERR_USAGE, "--split none holds nothing out to select by; choose another split");
    if (a->is_halving && a->epochs == 0)
        return fail(ERR_USAGE, "--halving also needs --epochs N, of the last round");
    for (int i = 0; i < s->n_trials; i++)
        TRY(read_trial(s, a, i));
    for (int i = 0; i < s->n_trials; i++)
        n_done += s->trial[i].is_done;
    log_info("%d trials, %d of them done; %d at a time", s->n_trials, n_done, (int)a->jobs);
    status st = a->is_halving ? run_rounds(s, a, self) : run_trials(s, a, self);
    if (st == ERR_CONFIG && is_new) remove_folder(s, a);
    for (int i = 0; i < s->n_trials; i++)
        n_failed += s->trial[i].is_failed;
    if (s->metric != NULL && st != ERR_CONFIG) {
        status shown = sweep_show(s, a->out);
        if (st == OK) st = shown;
    }
    if (st == OK && n_failed > 0)
        st = fail(ERR_IO, "%d of %d trials failed; run the same command again to retry them",
                  n_failed, s->n_trials);
    return st;
}

static status sweep_files(sweep *s, sweep_args *a, const char *gin, const char *usage) {
    char path[CONFIG_PATH_BYTES];
    own_config own;
    if (a->data == NULL || a->out == NULL || a->ranges.n_items == 0)
        return fail(ERR_USAGE, "--set-range, --data and --out are needed; usage: %s", usage);
    if (gin == NULL) TRY(own_config_choose(&own, a->data, NULL, a->device, &a->set));
    config_path_find(gin != NULL ? gin : own.path, path);
    a->gin = path;
    if (!file_exists(path)) return fail(ERR_IO, "%s: there is no such file", path);
    struct sigaction action = {.sa_handler = pass_on};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    arena_init(&s->memory, 64 << 10);
    status st = run(s, a);
    arena_fini(&s->memory);
    return st;
}

status cmd_sweep(int argc, char **argv) {
    const char *gin = NULL;
    int n = 0;
    sweep_args a = {.jobs = 1, .device = "auto"};
    sweep s = {0};
    const arg_option options[] = {
        OPT_LIST("--set-range", &a.ranges, "NAME=VALUES",
                 "Config option and the values to try: V1,V2,..., LO..HI:N (N evenly spaced "
                 "values) or log:LO..HI:N; may be repeated: every combination is a trial."),
        OPT_TEXT("--data", &a.data, "DIR", "Prepared data."),
        OPT_TEXT("--out", &a.out, "DIR",
                 "Folder of the sweep: a run and its output per trial, sweep.csv, sweep.html."),
        OPT_INT("--random", &a.n_random, "N", 1, SWEEP_TRIALS,
                "Try N random combinations instead of all."),
        OPT_INT("--seed", &a.seed, "N", 0, UINT32_MAX, "Seed of --random (default 0)."),
        OPT_INT("--jobs", &a.jobs, "N", 1, MAX_JOBS,
                "Trials to run at the same time (default 1); they share the cores."),
        OPT_INT("--epochs", &a.epochs, "N", 1, 1 << 20,
                "Epochs per trial, instead of the config's."),
        OPT_LIST("--set", &a.set, "Class.field=value",
                 "Override one binding of the config in all trials; may be repeated."),
        OPT_TEXT(
            "--metric", &a.metric, "NAME",
            "Metric to sort by (default: the first of ndcg@10, auc, hr@10 and loss that exists)."),
        OPT_CHOICE("--part", &a.part, "PART", parts,
                   "Part that the metric is of: validation (default; trials train with --validate, "
                   "and their best evaluation counts) or test."),
        OPT_TEXT("--split", &a.split, "SPLIT", "Split of the trials, as for 'hstu train'."),
        OPT_FLAG("--halving", &a.is_halving,
                 "Train all trials for a few epochs, the best third of them three times as long, "
                 "and so on up to --epochs."),
        OPT_TEXT("--device", &a.device, "DEVICE,...",
                 "Device: auto (default), cpu, cuda or cuda:N; of several, trials that run at the "
                 "same time take one each."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu sweep [FILE.gin] --set-range NAME=VALUES --data DIR --out DIR [options]",
        .summary =
            "Train with every combination of some options, several at a time, and show which is "
            "best: a table, a CSV file, and a page with a parallel-coordinates plot.",
        .options = options,
        .min_positional = 0,
        .max_positional = 1,
        .notes = "Without FILE.gin, a file of configs/own is chosen as by 'hstu train'.\n\n"
                 "Run the same command again to continue a stopped sweep: finished trials are "
                 "kept, others are resumed. A failed trial does not stop the others; an invalid "
                 "option does.\n",
    };
    ARGS_PARSE(&spec, &gin, &n);
    return sweep_files(&s, &a, gin, spec.usage);
}
