/* The program: a table of commands.  Everything a command can do is in its own file; here are only
 * the way in (environment, standard streams) and the way out (reason, exit code). */
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>

#include "cli/cli.h"
#include "cli/help/help.h"
#include "cli/machine/profile.h"
#include "cli/signals.h"
#include "hstu.h"

/* A line without a function is a heading of `hstu --help`. */
#define HEADING(title)         {title, NULL, NULL},
#define COMMAND(name, summary) {#name, cmd_##name, summary},
static const command commands[] = {CLI_COMMANDS(HEADING, COMMAND){0}};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] - 1 };

static const command *find_command(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i].run != NULL && strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static void print_overview(void) {
    bool has_colour = env_wants_colour(STDOUT_FILENO);
    const char *bold = has_colour ? "\033[1m" : "", *plain = has_colour ? "\033[0m" : "";
    printf("%shstu%s %s: a generative recommender (HSTU) in C and CUDA\n\n", bold, plain,
           HSTU_VERSION);
    printf("%sUsage:%s hstu COMMAND [options]\n", bold, plain);
    for (int i = 0; i < N_COMMANDS; i++) {
        if (commands[i].run == NULL)
            printf("\n%s%s:%s\n", bold, commands[i].name, plain);
        else
            printf("  %s%-9s%s  %s\n", bold, commands[i].name, plain, commands[i].summary);
    }
    printf("\n%sEnvironment:%s\n", bold, plain);
    printf("  HSTU_LOG=debug|info|warn|quiet   log level\n");
    printf("  HSTU_THREADS=N                   number of threads (default: available cores)\n");
    printf("  HSTU_STALL_SECONDS=N             exit when all ranks have waited this long\n");
    printf("  NO_COLOR=1                       disable colours\n");
    printf("\nRun 'hstu COMMAND --help' for details. Data goes to stdout, the log to stderr.\n"
           "Exit codes: 0 success, 1 failure, 2 wrong usage or config.\n");
}

static status unknown_command(const char *name) {
    const char *names[N_COMMANDS];
    size_t n = 0;
    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i].run != NULL) names[n++] = commands[i].name;
    return fail_unknown("command", name, names, n);
}

/* Without this, a file opened by a program started as `hstu ... >&-` would become its stdout, and
 * what we print would end up in the user's data.  Read-only, so that printing there still fails. */
static void hold_standard_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd) _exit(1);
}

/* Whether the reader of our stdout has gone, as in `hstu info DIR | head -1`. */
static bool is_reader_gone(void) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

/* A command has only done its work when its output has arrived.  A reader that went away gives a
 * failing exit code without a message; a full disk gives both. */
static status finish_output(void) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return OK;
    if (is_reader_gone()) return fail(ERR_IO, "%s", "");
    if (errno == 0) return fail(ERR_IO, "writing to stdout failed: the output is incomplete");
    return fail_errno("writing to stdout failed");
}

/* The part that argv names, as masks of `hstu bench masks`: its help has the options; or "". */
static const char *part_name(const char *name, int argc, char **argv) {
    const command *c = argc > 2 ? find_command(name) : NULL;
    const command *part = c != NULL ? help_parts(c) : NULL;
    for (; part != NULL && part->name != NULL; part++)
        if (strcmp(argv[2], part->name) == 0) return part->name;
    return "";
}

/* "hstu prep: REASON"; the call frames only with HSTU_LOG=debug. */
static int report(const char *name, const char *part, status st) {
    if (st == OK) return 0;
    const char *gap = name[0] != '\0' ? " " : "";
    char reason[2 * FAILURE_REASON_BYTES];
    escape_text(reason, sizeof reason, status_reason());
    if (reason[0] != '\0') fprintf(stderr, "hstu%s%s: %s\n", gap, name, reason);
    if (st == ERR_USAGE)
        fprintf(stderr, "Try 'hstu%s%s%s%s --help'.\n", gap, name, part[0] != '\0' ? " " : "",
                part);
    if (log_get_level() == LOG_DEBUG && status_trace()[0] != '\0')
        fprintf(stderr, "debug: %s error at %s\n", status_name(st), status_trace());
    return status_exit_code(st);
}

/* Paths and lists of metrics are on the stack, and threads get one of the same size: a stack that
 * is too small is said here, and not by a segmentation fault. */
static status check_stack(void) {
    enum { NEEDED_KB = 1024 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= (rlim_t)NEEDED_KB << 10)
        return OK;
    return fail(ERR_UNSUPPORTED,
                "the stack is limited to %llu kB, but %d kB are needed; raise the limit with "
                "'ulimit -s 8192'",
                (unsigned long long)(limit.rlim_cur >> 10), NEEDED_KB);
}

/* Runs what argv names; *out_name is the command's name once it is known. */
static status run(int argc, char **argv, const char **out_name) {
    TRY(env_apply_log_level());
    TRY(check_stack());
    const char *word = argc > 1 ? argv[1] : "--help";
    if (strcmp(word, "--version") == 0) {
        printf("hstu %s\n", HSTU_VERSION);
        return OK;
    }
    bool is_help =
        strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
    if (is_help && argc < 3) {
        print_overview();
        return OK;
    }
    if (strcmp(word, "help") == 0 && argv[2][0] == '-')
        return help_command(commands, argc - 1, argv + 1);
    /* `hstu help prep` is `hstu prep --help`. */
    const command *c = find_command(is_help ? argv[2] : word);
    if (c == NULL) return unknown_command(is_help ? argv[2] : word);
    *out_name = c->name;
    char *help_argv[] = {argv[0], "--help", NULL};
    return is_help ? c->run(2, help_argv) : c->run(argc - 1, argv + 1);
}

/* In the build for faults every command, failed ones included, frees what it took: each test that
 * runs the program is a test of that. */
static int check_leaks(int code) {
#ifdef __SANITIZE_ADDRESS__
    if (mem_n_live() == 0) return code;
    fprintf(stderr, "hstu: %lld blocks of memory were not freed\n", (long long)mem_n_live());
    return 3;
#else
    return code;
#endif
}

int main(int argc, char **argv) {
    const char *name = "";
    profile_set_commands(commands);
    hold_standard_streams();
    bus_error_watch();
    signal(SIGXFSZ, SIG_IGN); /* `ulimit -f` is a failed write, too */
    signal(SIGPIPE, SIG_IGN); /* A closed pipe is a failed write, handled like any other. */
    status st = run(argc, argv, &name);
    if (st == OK) {
        st = finish_output();
    } else {
        fflush(stdout);
    }
    args_fini();
    return check_leaks(report(name, part_name(name, argc, argv), st));
}
