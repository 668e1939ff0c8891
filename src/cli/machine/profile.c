/* hstu profile: what a command does, op by op and kernel by kernel. */
#include "cli/machine/profile.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/machine/profile_other.h"
#include "cli/machine/profile_view.h"
#include "profile/tables.h"

enum { MAX_WORDS = 256 };

typedef struct profile_args {
    int64_t wait, warmup, active, repeat;
    const char *activities, *toggle_by, *range;
    bool has_shapes, has_no_peaks, has_memory, has_unified, has_memsets;
    int toggle; /* the signal of toggle_by; 0: none */
    profile_view view;
} profile_args;

static const command *known;

void profile_set_commands(const command *commands) {
    known = commands;
}

static const command *find_command(const char *name) {
    for (const command *c = known; c != NULL && c->name != NULL; c++)
        if (c->run != NULL && strcmp(c->name, name) == 0 && strcmp(name, "profile") != 0) return c;
    return NULL;
}

static status read_activities(const char *text, profiler_options *o) {
    o->has_host = strcmp(text, "cpu") == 0 || strcmp(text, "cpu,cuda") == 0;
    o->has_gpu = strcmp(text, "cuda") == 0 || strcmp(text, "cpu,cuda") == 0;
    if (o->has_host || o->has_gpu) return OK;
    return fail(ERR_USAGE, "--activities %.40s: cpu, cuda or cpu,cuda", text);
}

/* While the command runs its output goes to stderr: stdout is for the tables. */
static status run_apart(const command *c, int argc, char **argv) {
    fflush(stdout);
    int out = dup(STDOUT_FILENO);
    if (out < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return fail_errno("stdout");
    status st = c->run(argc, argv);
    if (st != OK) st = fail_prefix(st, "%s", c->name);
    fflush(stdout);
    if (dup2(out, STDOUT_FILENO) < 0 && st == OK) st = fail_errno("stdout");
    close(out);
    return st;
}

static status check(const profile_args *a) {
    const char *formats[] = {"table", "csv", "json"};
    bool is_known = false;
    for (int i = 0; i < 3; i++)
        is_known = is_known || strcmp(a->view.format, formats[i]) == 0;
    if (!is_known) return fail(ERR_USAGE, "--format %.40s: table, csv or json", a->view.format);
    if (a->active == 0 && (a->wait > 0 || a->warmup > 0 || a->repeat > 0))
        return fail(ERR_USAGE,
                    "--wait, --warmup and --repeat need --active: how many steps to keep");
    if (a->view.sort_by == NULL) return OK;
    profile_table none = {.looks = LOOKS_TORCH};
    return profile_table_sort(&none, a->view.sort_by);
}

/* The tables come even of a program that failed: they may say why. */
static status profile_a_program(const profile_args *a, char **argv) {
    profile p;
    char failed[256];
    if (a->active > 0)
        return fail(ERR_USAGE, "--active counts steps of hstu's own training; other programs are "
                               "recorded whole, or by a signal (--toggle-by)");
    const other_options o = {a->toggle, a->has_unified, a->range};
    status st = profile_program(&p, argv, a->view.out, &o, failed);
    if (st == OK) st = profile_show(&p, &a->view);
    profile_fini(&p);
    if (st == OK && failed[0] != '\0') st = fail(ERR_IO, "%s", failed);
    return st;
}

static status read_signal(const char *text, int *out) {
    *out = text == NULL                   ? 0
           : strcmp(text, "SIGUSR1") == 0 ? SIGUSR1
           : strcmp(text, "SIGUSR2") == 0 ? SIGUSR2
                                          : -1;
    return *out >= 0 ? OK : fail(ERR_USAGE, "--toggle-by %.40s: SIGUSR1 or SIGUSR2", text);
}

/* Before the command runs, which may take hours: a folder that cannot be written to says so now. */
static status make_folder(const char *path, bool *is_new) {
    TRY(folder_create(path, is_new));
    if (access(path, W_OK | X_OK) == 0) return OK;
    return fail_errno("%s: cannot be written; choose another place with --out", path);
}

static status profile_command(const profile_args *a, int argc, char **argv) {
    profile p;
    profiler_options o = {.schedule = {a->wait, a->warmup, a->active, a->repeat},
                          .toggle = a->toggle,
                          .range = a->range,
                          .has_shapes = a->has_shapes,
                          .has_memory = a->has_memory,
                          .has_unified = a->has_unified,
                          .has_memsets = a->has_memsets,
                          .has_peaks = !a->has_no_peaks};
    const command *c = find_command(argv[0]);
    TRY(check(a));
    TRY(read_activities(a->activities, &o));
    if (c == NULL && is_program(argv[0]) && strcmp(argv[0], "profile") != 0)
        return profile_a_program(a, argv);
    if (c == NULL)
        return fail(ERR_USAGE,
                    "'%.100s' is not a command of hstu that can be profiled, nor a program on PATH",
                    argv[0]);
    bool is_new;
    TRY(make_folder(a->view.out, &is_new));
    status st = profiler_start(&p, &o);
    if (st == OK) {
        st = run_apart(c, argc, argv);
        status stopped = profiler_stop(&p);
        if (st == OK) st = stopped;
        if (st == OK) st = profile_show(&p, &a->view);
    }
    profile_fini(&p);
    if (st != OK && is_new) (void)rmdir(a->view.out); /* where nothing was written */
    return st;
}

status cmd_profile(int argc, char **argv) {
    profile_args a = {.activities = "cpu,cuda",
                      .view = {.out = "hstu-profile", .format = "table", .row_limit = 100}};
    const arg_option options[] = {
        {"What", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"--activities", ARG_TEXT, &a.activities, "LIST",
         "cpu, cuda or cpu,cuda (default: both; cuda needs CUPTI and a GPU).", 0, 0},
        {"--wait", ARG_INT, &a.wait, "N", "Steps to let pass first (default 0).", 0, 1 << 30},
        {"--warmup", ARG_INT, &a.warmup, "N", "Steps recorded and forgotten (default 0).", 0,
         1 << 30},
        {"--active", ARG_INT, &a.active, "N",
         "Steps to keep; 0, the default: everything from start to end.", 0, 1 << 30},
        {"--repeat", ARG_INT, &a.repeat, "N",
         "How often to wait, warm up and record; 0, the default: until the end.", 0, 1 << 30},
        {"--record-shapes", ARG_FLAG, &a.has_shapes, NULL,
         "Ops of different sizes are different rows, named with their sizes.", 0, 0},
        {"--memory", ARG_FLAG, &a.has_memory, NULL,
         "Which memory of the device lives when, and whose it is at the peak.", 0, 0},
        {"--unified-memory", ARG_FLAG, &a.has_unified, NULL,
         "Pages of unified memory that move between host and GPU, and page faults (slower).", 0, 0},
        {"--memsets", ARG_FLAG, &a.has_memsets, NULL,
         "Record memsets also where steps are replayed as CUDA graphs; each costs a microsecond "
         "there.",
         0, 0},
        {"--no-peaks", ARG_FLAG, &a.has_no_peaks, NULL,
         "Do not measure what the device can do at the start (a second, 1.4 GB of a GPU).", 0, 0},
        {"--toggle-by", ARG_TEXT, &a.toggle_by, "SIGNAL",
         "Record nothing until this signal comes, SIGUSR1 or SIGUSR2; the next one ends it, and so "
         "on.",
         0, 0},
        {"--range", ARG_TEXT, &a.range, "NAME",
         "Keep what happens inside the ranges of this name, such as 'optimizer' or 'layer forward "
         "0'; in other programs those of NVTX.",
         0, 0},
        {"Output", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"--out", ARG_TEXT, &a.view.out, "DIR",
         "Folder for trace.json and the tables as csv (default hstu-profile).", 0, 0},
        {"--format", ARG_TEXT, &a.view.format, "F", "Of the tables on stdout: table, csv or json.",
         0, 0},
        {"--sort-by", ARG_TEXT, &a.view.sort_by, "KEY",
         "Of the table of ops: self_cpu_time_total, cpu_time_total, self_cuda_time_total, "
         "cuda_time_total, count, or (with --memory) self_cpu_memory_usage, cpu_memory_usage and "
         "the "
         "same of cuda.",
         0, 0},
        {"--row-limit", ARG_INT, &a.view.row_limit, "N", "Rows of a table (default 100; -1: all).",
         -1, 1 << 30},
        {0}};
    const arg_spec spec = {
        .usage = "hstu profile [options] -- COMMAND ...",
        .summary = "Runs a command of hstu and shows where its time went: ranges (step, layer), "
                   "ops, and on a GPU kernels, copies and calls of CUDA, as nsys and "
                   "torch.profiler show them.  COMMAND may also be any other program that uses "
                   "CUDA, Python included.  The command's own output goes to stderr.",
        .options = options,
        .min_positional = 1,
        .max_positional = MAX_WORDS,
        .notes = "A step is a step of training; commands without steps are recorded whole.\n"
                 "Example: hstu profile --wait 2 --warmup 2 --active 10 --repeat 1 -- train ...\n"
                 "Example: hstu profile -- python3 model.py\n"};
    const char *word[MAX_WORDS + 1];
    int n = 0;
    bool is_help = false;
    TRY(args_parse(&spec, argc, argv, word, &n, &is_help));
    if (is_help) return OK;
    word[n] = NULL;
    TRY(read_signal(a.toggle_by, &a.toggle));
    return profile_command(&a, n, (char **)word);
}
