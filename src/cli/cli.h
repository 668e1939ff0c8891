/* The command line: the table of commands and one reader of options for all of them.
 *
 * A command is a function that declares its options in a table, calls args_parse, does its work and
 * returns a status; main prints the reason and turns the status into the exit code (0 done, 1
 * failed, 2 wrong usage or config).  Data goes to stdout, the log and progress to stderr. */
#pragma once

#include "base/base.h"

typedef enum {
    ARG_FLAG,   /* bool: --json */
    ARG_TEXT,   /* const char *: --out DIR */
    ARG_INT,    /* whole number of 32 or 64 bits, within min..max: --users N */
    ARG_DOUBLE, /* double */
    ARG_CHOICE, /* int, enum or bool: the index of one of `choices` */
    ARG_LIST    /* arg_list: may be given several times */
} arg_type;

/* {0} is an empty one; args_fini frees the memory of all of them. */
typedef struct arg_list {
    const char **item;
    size_t n_items;
} arg_list;
status args_list_add(arg_list *list, const char *text);
void args_fini(void);

typedef struct arg_option {
    const char *name; /* "--users", or "-k"; the title of a group where value is NULL */
    arg_type type;
    size_t value_bytes; /* of *value, a number */
    void *value; /* where the value is stored; its initial value is the default (a list: {0}) */
    const char *placeholder;    /* "N", "DIR"; NULL for a flag */
    const char *help;           /* one sentence, with the default where it matters */
    int64_t min, max;           /* of an ARG_INT; both 0: any */
    const char *const *choices; /* of an ARG_CHOICE; ends with NULL */
} arg_option;

/* The title of a group of options. */
static inline bool args_is_group(const arg_option *o) {
    return o->value == NULL;
}

/* The rows of an option table, which ends with {0}. */
#define OPT_GROUP(title)                                                                           \
    { title, ARG_FLAG, 0, NULL, NULL, NULL, 0, 0, NULL }
#define OPT_FLAG(name, value, help)                                                                \
    { name, ARG_FLAG, 0, value, NULL, help, 0, 0, NULL }
#define OPT_TEXT(name, value, what, help)                                                          \
    { name, ARG_TEXT, 0, value, what, help, 0, 0, NULL }
#define OPT_DOUBLE(name, value, what, help)                                                        \
    { name, ARG_DOUBLE, 0, value, what, help, 0, 0, NULL }
#define OPT_LIST(name, value, what, help)                                                          \
    { name, ARG_LIST, 0, value, what, help, 0, 0, NULL }
#define OPT_CHOICE(name, value, what, choices, help)                                               \
    { name, ARG_CHOICE, sizeof *(value), value, what, help, 0, 0, choices }
#define OPT_INT(name, value, what, min, max, help)                                                 \
    { name, ARG_INT, sizeof *(value), value, what, help, min, max, NULL }

typedef struct arg_spec {
    const char *usage;                  /* "hstu prep SOURCE --input PATH --out DIR [options]" */
    const char *summary;                /* a sentence or two */
    const arg_option *options;          /* ends with name = NULL */
    int min_positional, max_positional; /* max 0: exactly min */
    const char *notes;                  /* printed after the options; may be NULL */
} arg_spec;

/* Reads argv[1..]; options and positional arguments may be mixed; "--name value", "--name=value"
 * and "--" are understood.  Positional arguments go to positional[0..*n_positional-1], which has
 * room for all that spec allows (both may be NULL where that is 0).  --help prints the page and
 * sets *is_help: the command then returns OK at once.  An unknown option is ERR_USAGE and names the
 * nearest one; of an option given twice the last counts. */
status args_parse(const arg_spec *spec, int argc, char **argv, const char **positional,
                  int *n_positional, bool *is_help);

/* "8,4,2": *n whole numbers from 1 to max, at most max_n of them.  ERR_USAGE names the option. */
status args_read_numbers(const char *option, const char *text, int64_t max, int64_t *out, int max_n,
                         int *n);

/* The same for the argc and argv of a command, which ends here after --help or an error. */
#define ARGS_PARSE(spec, positional, n_positional)                                                 \
    do {                                                                                           \
        bool is_help;                                                                              \
        TRY(args_parse((spec), argc, argv, (positional), (n_positional), &is_help));               \
        if (is_help) return OK;                                                                    \
    } while (0)

typedef struct command {
    const char *name;
    status (*run)(int argc, char **argv); /* argv[0] is the command's name */
    const char *summary;                  /* one line of `hstu --help` */
} command;                                /* a table of them ends with name = NULL */

/* Runs the subcommand that argv[1] names; without one, or with --help, lists them: `about` says
 * what they are for. */
status run_subcommand(const char *whole, const char *about, const command *parts, int argc,
                      char **argv);

extern const command bench_commands[], mask_commands[], plan_commands[], state_commands[],
    tune_commands[];

/* All commands in the order of their use, under the headings of `hstu --help`. */
#define CLI_COMMANDS(HEADING, COMMAND)                                                             \
    HEADING("Data")                                                                                \
    COMMAND(prep, "convert a data set to a sequence file")                                         \
    COMMAND(synth, "generate a synthetic data set")                                                \
    COMMAND(info, "show what is in a data set, run, table or tensor file")                         \
    HEADING("Model")                                                                               \
    COMMAND(train, "train a model from a .gin config")                                             \
    COMMAND(sweep, "train with many option values and compare the results")                        \
    COMMAND(eval, "evaluate a trained model on held-out events")                                   \
    COMMAND(compare, "compare runs")                                                               \
    COMMAND(card, "write a model card of a run")                                                   \
    COMMAND(certify, "bound what small changes of a history do to scores")                         \
    COMMAND(recommend, "recommend items to users")                                                 \
    COMMAND(score, "score given items for users")                                                  \
    COMMAND(export, "write weights, embeddings, tables or a server's events")                      \
    COMMAND(import, "import checkpoints and embedding tables")                                     \
    HEADING("Serve")                                                                               \
    COMMAND(build, "package a run for serving")                                                    \
    COMMAND(serve, "serve models over HTTP")                                                       \
    COMMAND(state, "check, back up, restore or recover a server's state")                          \
    HEADING("Machine")                                                                             \
    COMMAND(doctor, "check this machine and list what is missing")                                 \
    COMMAND(launch, "run a command and restart it when it fails")                                  \
    HEADING("Laboratory")                                                                          \
    COMMAND(encode, "run a BERT-family encoder without padding")                                   \
    COMMAND(mask, "show an attention mask")                                                        \
    COMMAND(plan, "show, run and time fusion plans")                                               \
    COMMAND(tune, "search for the fastest fusion plan")                                            \
    COMMAND(bench, "run benchmarks")                                                               \
    COMMAND(profile, "profile a command")

#define COMMAND_DECLARE(name, summary) status cmd_##name(int argc, char **argv);
#define COMMAND_NOTHING(title)
CLI_COMMANDS(COMMAND_NOTHING, COMMAND_DECLARE)

/* An unknown name of a `what`, with the nearest of the names that there are. */
status fail_unknown(const char *what, const char *name, const char *const *names, size_t n);
