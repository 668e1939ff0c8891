/* hstu sweep: many trainings that differ in some options, several at a time; a sweep that was
 * stopped goes on where it was. */
#include "cli/model/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "cli/cli.h"
#include "cli/config_path.h"
#include "cli/show.h"
#include "cli/work.h"
#include "format/json.h"
#include "train/report/report.h"
#include "train/report/run_log.h"

enum { PATH_BYTES = 4096, MAX_JOBS = 64, MAX_WORDS = 2048, EXIT_WRONG = 2 };

typedef struct sweep_args {
    const char *gin, *data, *out, *metric, *device;
    arg_list ranges, set;
    int64_t jobs, epochs, n_random, seed;
} sweep_args;

typedef struct sweep_job {
    pid_t pid; /* 0: free */
    int trial;
    uint64_t start_ns;
} sweep_job;

static volatile sig_atomic_t signalled;
static sweep_job running[MAX_JOBS];

/* What ends us is meant for the trainings: they save and leave. */
static void pass_on(int number) {
    signalled = number;
    for (int i = 0; i < MAX_JOBS; i++)
        if (running[i].pid > 0) kill(running[i].pid, number);
}

static status trial_path(char path[PATH_BYTES], const sweep_args *a, int trial, const char *end) {
    char name[64];
    snprintf(name, sizeof name, "trial-%04d%s", trial, end);
    return path_join(path, PATH_BYTES, a->out, name);
}

/* The metric of the end of a run; a loss is better when it is lower. */
static double end_value(const run_history *h, const char *metric) {
    double value = history_number(h->done, metric);
    const double *y = strcmp(metric, "loss") == 0 ? h->loss : run_history_values(h, metric);
    return isfinite(value) ? value : y != NULL ? history_last(y, h->n) : NAN;
}

static bool is_lower_better(const char *metric) {
    return strstr(metric, "loss") != NULL || strncmp(metric, "rmse", 4) == 0 ||
           strncmp(metric, "mae", 3) == 0;
}

static void choose_metric(sweep *s, const run_history *h) {
    static const char *const names[] = {"ndcg@10", "auc", "hr@10", "loss"};
    for (size_t i = 0; i < sizeof names / sizeof *names && s->metric == NULL; i++)
        if (isfinite(end_value(h, names[i]))) s->metric = names[i];
    if (s->metric != NULL) s->is_lower_better = is_lower_better(s->metric);
}

/* What a trial's log says: whether it is done, and its metric. */
static status read_trial(sweep *s, const sweep_args *a, int trial) {
    char path[PATH_BYTES], log[PATH_BYTES];
    sweep_trial *t = &s->trial[trial];
    run_history h;
    TRY(trial_path(path, a, trial, ""));
    TRY(path_join(log, sizeof log, path, "log.jsonl"));
    if (!file_exists(log)) return OK;
    status st = run_history_read(&h, path);
    if (st == OK && h.done != NULL) {
        choose_metric(s, &h);
        t->is_done = true;
        t->metric = s->metric != NULL ? end_value(&h, s->metric) : NAN;
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

/* The words of a training; those that are made live in the sweep's memory. */
static status make_words(sweep *s, const sweep_args *a, int trial, const char *self,
                         const char *words[MAX_WORDS]) {
    char path[PATH_BYTES], config[PATH_BYTES], *out, *threads, *text, *epochs;
    int n = 0, n_threads;
    TRY(env_threads_of((int)a->jobs, &n_threads));
    TRY(trial_path(path, a, trial, ""));
    TRY(path_join(config, sizeof config, path, "config.json"));
    TRY(ARENA_NEW(&s->memory, &out, strlen(path) + 1));
    TRY(ARENA_NEW(&s->memory, &threads, 64));
    TRY(ARENA_NEW(&s->memory, &epochs, 32));
    memcpy(out, path, strlen(path) + 1);
    snprintf(threads, 64, "HSTU_THREADS=%d", n_threads);
    snprintf(epochs, 32, "%" PRId64, a->epochs);
    const char *const first[] = {"env",      threads,  self,    "train", "--gin-config-file",
                                 a->gin,     "--data", a->data, "--out", out,
                                 "--device", a->device};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        words[n++] = first[i];
    if (a->epochs > 0) words[n++] = "--epochs", words[n++] = epochs;
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
    if (file_exists(config)) words[n++] = "--resume";
    words[n] = NULL;
    return OK;
}

static status start(sweep *s, const sweep_args *a, const char *self, int trial, sweep_job *job) {
    const char *words[MAX_WORDS];
    char log[PATH_BYTES];
    TRY(make_words(s, a, trial, self, words));
    TRY(trial_path(log, a, trial, ".log"));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) return fail_errno("starting a training");
    if (pid == 0) {
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0) _exit(127);
        execvp(words[0], (char *const *)words);
        _exit(127);
    }
    *job = (sweep_job){pid, trial, clock_ns()};
    if (signalled) kill(pid, signalled);
    return OK;
}

/* The last line of a training's output, which says why it failed. */
static void last_line(const sweep_args *a, int trial, char out[400]) {
    char path[PATH_BYTES], *text;
    size_t n;
    out[0] = '\0';
    if (trial_path(path, a, trial, ".log") != OK || file_read_all(path, 1 << 22, &text, &n) != OK)
        return;
    while (n > 0 && text[n - 1] == '\n')
        n--;
    size_t from = n;
    while (from > 0 && text[from - 1] != '\n')
        from--;
    snprintf(out, 400, "%.*s", (int)(n - from < 399 ? n - from : 399), text + from);
    mem_free(text);
}

static void tell(const sweep *s, int trial) {
    const sweep_trial *t = &s->trial[trial];
    char line[2048];
    size_t n = 0;
    line[0] = '\0';
    for (int i = 0; i < s->n_ranges && n < sizeof line; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, " %s=%s", s->range[i].name,
                              s->range[i].value[t->at[i]]);
    log_info("trial-%04d%s: %s %.4f", trial, line, s->metric, t->metric);
}

/* One training has ended.  A wrong option is wrong in all of them: the sweep ends. */
static status end_trial(sweep *s, const sweep_args *a, const sweep_job *job, int how) {
    int code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    char why[400], path[PATH_BYTES], log[PATH_BYTES];
    if (code == 0) {
        TRY(read_trial(s, a, job->trial));
        tell(s, job->trial);
        return OK;
    }
    if (signalled) return OK;
    last_line(a, job->trial, why);
    TRY(trial_path(path, a, job->trial, ""));
    TRY(trial_path(log, a, job->trial, ".log"));
    if (code == EXIT_WRONG) return fail(ERR_CONFIG, "trial-%04d: %s", job->trial, why);
    s->trial[job->trial].is_failed = true;
    log_warn("trial-%04d ended with exit code %d: %s (%s)", job->trial, code, why, log);
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
    return st == OK && signalled ? fail(ERR_INTERRUPTED, "interrupted; the same command goes on")
                                 : st;
}

/* What the sweep is, so that another one is not mixed with it. */
static status describe(const sweep_args *a, buf *out) {
    TRY(buf_printf(out,
                   "hstu sweep 1\nconfig %s\ndata %s\nepochs %" PRId64 "\nrandom %" PRId64
                   "\nseed %" PRId64 "\n",
                   a->gin, a->data, a->epochs, a->n_random, a->seed));
    for (size_t i = 0; i < a->set.n_items; i++)
        TRY(buf_printf(out, "set %s\n", a->set.item[i]));
    for (size_t i = 0; i < a->ranges.n_items; i++)
        TRY(buf_printf(out, "range %s\n", a->ranges.item[i]));
    return OK;
}

/* Sets *is_new where this sweep made the folder. */
static status open_folder(const sweep_args *a, bool *is_new) {
    char path[PATH_BYTES], *text = NULL;
    size_t n;
    buf want;
    TRY(folder_create(a->out, is_new));
    TRY(path_join(path, sizeof path, a->out, "sweep.txt"));
    buf_init(&want);
    status st = describe(a, &want);
    if (st == OK && file_exists(path)) {
        st = file_read_all(path, 1 << 20, &text, &n);
        if (st == OK && (n != want.n_bytes || memcmp(text, buf_str(&want), n) != 0))
            st =
                fail(ERR_USAGE, "%s has another sweep (%s says which); give this one another --out",
                     a->out, path);
        mem_free(text);
    } else if (st == OK && !*is_new) {
        st = fail(ERR_USAGE, "%s is there, and no sweep; give another --out", a->out);
    } else if (st == OK) {
        st = page_save(&want, path);
    }
    buf_fini(&want);
    return st;
}

/* A wrong option stops the first trainings before they begin: of such a sweep nothing is left, so
 * that the same --out can be given again.  A folder with anything of a trial but its log stays. */
static void remove_folder(const sweep *s, const sweep_args *a) {
    char path[PATH_BYTES];
    for (int i = 0; i < s->n_trials; i++)
        if (trial_path(path, a, i, "") != OK || folder_exists(path)) return;
    for (int i = 0; i < s->n_trials; i++)
        if (trial_path(path, a, i, ".log") == OK) (void)unlink(path);
    if (path_join(path, sizeof path, a->out, "sweep.txt") == OK) (void)unlink(path);
    (void)rmdir(a->out);
}

static status run(sweep *s, const sweep_args *a) {
    char self[PATH_BYTES];
    int n_done = 0, n_failed = 0;
    bool is_new;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return fail_errno("/proc/self/exe");
    self[n] = '\0';
    for (size_t i = 0; i < a->ranges.n_items; i++)
        TRY(sweep_add_range(s, a->ranges.item[i]));
    TRY(sweep_make_trials(s, a->n_random, (uint64_t)a->seed));
    if (a->set.n_items + SWEEP_RANGES > MAX_WORDS / 4)
        return fail(ERR_USAGE, "%zu times --set", a->set.n_items);
    TRY(open_folder(a, &is_new));
    s->metric = a->metric;
    for (int i = 0; i < s->n_trials; i++)
        TRY(read_trial(s, a, i));
    for (int i = 0; i < s->n_trials; i++)
        n_done += s->trial[i].is_done;
    log_info("%d trials, %d of them done; %d at a time", s->n_trials, n_done, (int)a->jobs);
    status st = run_trials(s, a, self);
    if (st == ERR_CONFIG && is_new) remove_folder(s, a);
    for (int i = 0; i < s->n_trials; i++)
        n_failed += s->trial[i].is_failed;
    if (s->metric != NULL && st != ERR_CONFIG) {
        status shown = sweep_show(s, a->out);
        if (st == OK) st = shown;
    }
    if (st == OK && n_failed > 0)
        st = fail(ERR_IO, "%d of %d trials failed; the same command tries them again", n_failed,
                  s->n_trials);
    return st;
}

static status sweep_files(sweep *s, sweep_args *a, const char *gin, const char *usage) {
    char path[CONFIG_PATH_BYTES];
    if (a->data == NULL || a->out == NULL || a->ranges.n_items == 0)
        return fail(ERR_USAGE, "--set-range, --data and --out are needed; usage: %s", usage);
    config_path_find(gin, path);
    a->gin = path;
    if (!file_exists(path)) return fail(ERR_IO, "%s: there is no such file", gin);
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
    bool is_help;
    sweep_args a = {.jobs = 1, .device = "auto"};
    sweep s = {0};
    const arg_option options[] = {
        {"--set-range", ARG_LIST, &a.ranges, "NAME=VALUES",
         "An option of the config and the values to try: V1,V2,..., LO..HI:N (N values, evenly) or "
         "log:LO..HI:N; may be given several times, and every combination is a training.",
         0, 0},
        {"--data", ARG_TEXT, &a.data, "DIR", "The prepared data.", 0, 0},
        {"--out", ARG_TEXT, &a.out, "DIR",
         "The folder of the sweep: a run and its output for each trial, sweep.csv, sweep.html.", 0,
         0},
        {"--random", ARG_INT, &a.n_random, "N", "Try N combinations drawn at random, not all.", 1,
         SWEEP_TRIALS},
        {"--seed", ARG_INT, &a.seed, "N", "Of --random (default 0).", 0, UINT32_MAX},
        {"--jobs", ARG_INT, &a.jobs, "N",
         "Trainings at a time (default 1), which divide the cores.", 1, MAX_JOBS},
        {"--epochs", ARG_INT, &a.epochs, "N", "Epochs of each, instead of the config's.", 1,
         1 << 20},
        {"--set", ARG_LIST, &a.set, "Class.field=value",
         "Overrides one binding of the config in all of them.", 0, 0},
        {"--metric", ARG_TEXT, &a.metric, "NAME",
         "What the table is sorted by (default: ndcg@10, auc, hr@10 or loss, the first there is).",
         0, 0},
        {"--device", ARG_TEXT, &a.device, "DEVICE", WORK_DEVICES, 0, 0},
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu sweep FILE.gin --set-range NAME=VALUES --data DIR --out DIR [options]",
        .summary = "Trains with every combination of some options, several at a time, and shows "
                   "which is best: a "
                   "table, a csv file, and a page with a picture in which each training is a line "
                   "over the options.",
        .options = options,
        .min_positional = 1,
        .max_positional = 1,
        .notes = "The same command goes on with a sweep that was stopped: trials that are done are "
                 "kept, others resumed. A "
                 "training that fails does not stop the others; a wrong option does.\n",
    };
    status st = args_parse(&spec, argc, argv, &gin, &n, &is_help);
    if (st == OK && !is_help) st = sweep_files(&s, &a, gin, spec.usage);
    mem_free(a.ranges.item);
    mem_free(a.set.item);
    return st;
}
