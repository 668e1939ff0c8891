/* hstu state: look after the database of `hstu serve --state DIR`. */
#include "serve/state/state.h"

#include "cli/cli.h"
#include "cli/output.h"
#include "serve/state/state_tools.h"

typedef struct state_args {
    const char *word[2]; /* folder, file */
    bool is_json;
} state_args;

static status print_counts(const state_args *a, const state_counts *c, const char *what) {
    if (a->is_json)
        return JSON_LINE(FIELD("users", c->n_users), FIELD("events", c->n_events),
                         FIELD("erased", c->n_erased), FIELD("not_swept", c->n_unswept),
                         FIELD("damaged", c->n_damaged));
    printf("%s: %" PRIu64 " users, %" PRIu64 " events, %" PRIu64 " erased users\n", what,
           c->n_users, c->n_events, c->n_erased);
    if (c->n_unswept > 0)
        printf("  %" PRIu64 " erased users still have rows on disk; a running server removes "
               "them\n",
               c->n_unswept);
    if (c->n_damaged > 0)
        printf("  %" PRIu64 " damaged places were left out, the first one: %s\n", c->n_damaged,
               c->place);
    return OK;
}

/* What is done with a state alone, or with a state and a file. */
typedef struct state_verb {
    const char *name, *usage, *summary;
    status (*alone)(const char *folder, state_counts *out);
    status (*with_file)(const char *folder, const char *file, state_counts *out);
    const char *done; /* printed before the counts; NULL: the word of this number */
    int word;
} state_verb;

static const state_verb verbs[] = {
    {"check", "hstu state check DIR",
     "Check a state: structure, references and checksums. The server may be running.", state_check,
     NULL, "sound", 0},
    {"backup", "hstu state backup DIR FILE",
     "Copy a state to a file and check the copy. The server may be running.", NULL, state_backup,
     NULL, 1},
    {"restore", "hstu state restore DIR FILE",
     "Replace a state with a backup. Stop the server first; the current state is kept as "
     "state.db.before-N.",
     NULL, state_restore, NULL, 0},
    {"recover", "hstu state recover DIR",
     "Recover what is readable of a damaged state. Stop the server first; the damaged file is kept "
     "as state.db.damaged-N.",
     state_recover, NULL, "saved", 0},
};

static status cmd_verb(int argc, char **argv) {
    state_args a = {0};
    state_counts counts;
    const state_verb *v = verbs;
    while (strcmp(v->name, argv[0]) != 0)
        v++;
    int n = v->with_file != NULL ? 2 : 1;
    const arg_option options[] = {
        OPT_FLAG("--json", &a.is_json, "Print the counts as a JSON object."), {0}};
    const arg_spec spec = {
        .usage = v->usage, .summary = v->summary, .options = options, .min_positional = n};
    ARGS_PARSE(&spec, a.word, NULL);
    TRY(n == 2 ? v->with_file(a.word[0], a.word[1], &counts) : v->alone(a.word[0], &counts));
    return print_counts(&a, &counts, v->done != NULL ? v->done : a.word[v->word]);
}

const command state_commands[] = {
    {"check", cmd_verb, "check a state and count users and events"},
    {"backup", cmd_verb, "copy a state to a file, even while a server uses it"},
    {"restore", cmd_verb, "replace a state with a backup"},
    {"recover", cmd_verb, "recover what is readable of a damaged state"},
    {0},
};

status cmd_state(int argc, char **argv) {
    return run_subcommand("state", "Users' events, as 'hstu serve --state DIR' keeps them.",
                          state_commands, argc, argv);
}
