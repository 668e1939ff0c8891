/* hstu launch: runs a training, and starts it again from its last checkpoint when it fails. */
#include <signal.h>
#include <sys/wait.h>

#include "cli/cli.h"
#include "cli/output.h"

enum { MAX_STARTS = 64, MAX_RANKS = 1 << 20 };
enum { MAX_WORDS = 1000, EXIT_USAGE = 2, EXIT_NO_PROGRAM = 127 };

static volatile sig_atomic_t signalled;
static volatile pid_t running;

/* What ends us is meant for the command: it saves and leaves, and is not started again. */
static void pass_on(int number) {
    signalled = number;
    if (running > 0) kill(running, number);
}

static void watch_signals(void) {
    struct sigaction action = {.sa_handler = pass_on};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* The folder of the training's run: the value of --out in the command; NULL: it has none. */
static const char *find_run(const char *const *words, int n) {
    for (int i = 0; i < n; i++) {
        if (strcmp(words[i], "--out") == 0 && i + 1 < n) return words[i + 1];
        if (strncmp(words[i], "--out=", 6) == 0) return words[i] + 6;
    }
    return NULL;
}

static bool has_word(const char *const *words, int n, const char *word) {
    for (int i = 0; i < n; i++)
        if (strcmp(words[i], word) == 0) return true;
    return false;
}

/* Runs the words and waits; *code: its exit code, 128 + the signal if it was killed. */
static status run_once(const char *const *words, int *code) {
    int how;
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) return fail_errno("starting '%s'", words[0]);
    if (pid == 0) {
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        execvp(words[0], (char *const *)words);
        fprintf(stderr, "hstu launch: %s: %s\n", words[0], strerror(errno));
        _exit(EXIT_NO_PROGRAM);
    }
    running = pid;
    if (signalled) kill(pid, signalled);
    while (waitpid(pid, &how, 0) < 0)
        if (errno != EINTR) return fail_errno("waiting for '%s'", words[0]);
    running = 0;
    *code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    return OK;
}

/* A wrong command line or config is as wrong the second time. */
static bool is_worth_another(int code) {
    return code != 0 && code != EXIT_USAGE && code != EXIT_NO_PROGRAM && !signalled;
}

/* How often to start, and with how many ranks the first time, the second, ... */
typedef struct launch_plan {
    int64_t restarts, pause_s;
    int64_t ranks[MAX_STARTS]; /* the last one stays; in place of {} */
    int n_ranks;
} launch_plan;

/* The words of a start, with its number of ranks. */
static void take_words(const char **words, const char *const *given, int n, const launch_plan *p,
                       int64_t start) {
    int64_t at = start < p->n_ranks ? start : p->n_ranks - 1;
    for (int i = 0; i < n; i++)
        words[i] = p->n_ranks > 0 && strcmp(given[i], "{}") == 0
                       ? show_printf("%" PRId64, p->ranks[at])
                       : given[i];
}

static status launch(const char *const *given, int n, const launch_plan *p) {
    const char *words[MAX_WORDS + 2];
    const struct timespec pause = {.tv_sec = p->pause_s};
    bool resumes = has_word(given, n, "--resume");
    const char *run = find_run(given, n);
    int64_t restarts = p->restarts;
    int code = 0;
    for (int64_t i = 0;; i++) {
        take_words(words, given, n, p, i);
        /* One that was killed before there was a run begins again. */
        bool has_run = i > 0 && run != NULL && folder_has(run, "config.json");
        words[n] = has_run && !resumes ? "--resume" : NULL;
        words[n + 1] = NULL;
        TRY(run_once(words, &code));
        if (!is_worth_another(code) || i == restarts) break;
        log_warn("'%s' ended with exit code %d; restarting it (%" PRId64 " of %" PRId64 ")",
                 words[0], code, i + 1, restarts);
        nanosleep(&pause, NULL);
        if (signalled) break;
    }
    if (code == 0) return OK;
    if (code == EXIT_USAGE || signalled) /* it has said why */
        return fail(code == EXIT_USAGE ? ERR_CONFIG : ERR_INTERRUPTED, "%s", "");
    return fail(ERR_IO, "'%s' ended with exit code %d%s", words[0], code,
                restarts > 0 ? ", and has been started as often as --restarts allows" : "");
}

status cmd_launch(int argc, char **argv) {
    const char *words[MAX_WORDS];
    launch_plan plan = {.restarts = 3, .pause_s = 1};
    const char *ranks = NULL;
    int n = 0;
    const arg_option options[] = {
        OPT_INT("--restarts", &plan.restarts, "R", 0, 1 << 20,
                "Maximum number of restarts (default 3)."),
        OPT_INT("--pause", &plan.pause_s, "S", 0, 86400, "Seconds between restarts (default 1)."),
        OPT_TEXT("--ranks", &ranks, "LIST",
                 "Number of ranks for each start, the last one for all later starts; replaces the "
                 "word {} of the command."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu launch [options] -- COMMAND...",
        .summary = "Run a command, such as 'hstu train ... --ranks 4' or 'mpirun -n 4 hstu train "
                   "...', and restart it when it fails. From the second start on it gets --resume "
                   "if its --out folder contains a run.",
        .options = options,
        .min_positional = 1,
        .max_positional = MAX_WORDS,
        .notes = "A wrong command line or config (exit code 2) is not retried, nor is an "
                 "interrupted command: SIGINT and SIGTERM are forwarded to it.\nExample: hstu "
                 "launch --ranks 8,4 -- mpirun -n {} hstu train ...\n",
    };
    ARGS_PARSE(&spec, words, &n);
    if (ranks != NULL)
        TRY(args_read_numbers("--ranks", ranks, MAX_RANKS, plan.ranks, MAX_STARTS, &plan.n_ranks));
    if (plan.n_ranks > 0 && !has_word(words, n, "{}"))
        return fail(ERR_USAGE, "--ranks %.60s: the command has no {} to put a number in", ranks);
    watch_signals();
    return launch(words, n, &plan);
}
