/* A command's page for a terminal; man pages (section 1, in roff with the man macros); completion
 * for bash, zsh and fish, where the value of an option is a file name if its placeholder says so.
 */
#include "cli/help/help.h"

#include "hstu.h"

typedef enum { HELP_TEXT, HELP_MAN, HELP_BASH, HELP_ZSH, HELP_FISH } help_form;

typedef struct help_page {
    help_form form;
    const command *whole; /* of `bench attention`: bench; else NULL */
    const command *command;
} help_page;

/* Columns of the text of a page. */
enum { HELP_INDENT = 6, HELP_WIDTH = 92 };

/* The page being made. */
static help_page page;

static status visit(help_page at) {
    char *argv[] = {(char *)at.command->name, "--help", NULL};
    page = at;
    status st = at.command->run(2, argv);
    page = (help_page){0};
    return st;
}

const command *help_parts(const command *c) {
    if (c->run == cmd_bench) return bench_commands;
    if (c->run == cmd_mask) return mask_commands;
    if (c->run == cmd_plan) return plan_commands;
    if (c->run == cmd_state) return state_commands;
    return c->run == cmd_tune ? tune_commands : NULL;
}

/* Calls every command, and every part of one that has parts, so that each prints its page. */
static status visit_all(help_form form, const command *commands) {
    for (const command *c = commands; c->name != NULL; c++) {
        if (!help_is_command(c)) continue;
        const command *part = help_parts(c);
        if (part == NULL) TRY(visit((help_page){form, NULL, c}));
        for (; part != NULL && part->name != NULL; part++)
            TRY(visit((help_page){form, c, part}));
    }
    return OK;
}

/* Text with what roff would take for its own escaped: backslashes, hyphens (so that options can be
 * copied), and lines that begin with a dot or a quote. */
static void print_roff(const char *text) {
    bool is_line_start = true;
    for (; *text != '\0'; text++) {
        if (is_line_start && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
        is_line_start = *text == '\n';
    }
}

static void print_upper(const char *text) {
    for (; *text != '\0'; text++)
        putchar(toupper((unsigned char)*text));
}

/* .TH and NAME; part names the second word of `bench attention`, or is NULL. */
static void print_head(const char *name, const char *part, const char *summary) {
    printf(".TH \"HSTU");
    for (int i = 0; i < 2; i++) {
        const char *word = i == 0 ? name : part;
        if (word == NULL) continue;
        putchar('-');
        print_upper(word);
    }
    printf("\" 1 \"\" \"hstu %s\" \"User Commands\"\n.SH NAME\nhstu", HSTU_VERSION);
    if (name != NULL) printf("\\-%s", name);
    if (part != NULL) printf("\\-%s", part);
    printf(" \\- ");
    print_roff(summary);
    putchar('\n');
}

static void print_option(const arg_option *o) {
    printf(".TP\n\\fB");
    print_roff(o->name);
    printf("\\fR");
    if (o->placeholder != NULL) {
        printf(" \\fI");
        print_roff(o->placeholder);
        printf("\\fR");
    }
    putchar('\n');
    print_roff(o->help);
    putchar('\n');
}

/* help_man.c: the page of a command in roff; and the page that lists commands: those of `hstu`
 * (name NULL), or the parts of a command. */
static void print_man(const arg_spec *spec) {
    const command *whole = page.whole, *c = page.command;
    print_head(whole != NULL ? whole->name : c->name, whole != NULL ? c->name : NULL, c->summary);
    printf(".SH SYNOPSIS\n");
    print_roff(spec->usage);
    printf("\n.SH DESCRIPTION\n");
    print_roff(spec->summary);
    printf("\n.SH OPTIONS\n");
    for (const arg_option *o = spec->options; o->name != NULL; o++) {
        if (!args_is_group(o)) {
            print_option(o);
            continue;
        }
        printf(".SS ");
        print_roff(o->name);
        putchar('\n');
    }
    printf(".TP\n\\fB\\-\\-help\\fR\nPrint help.\n");
    if (spec->notes != NULL) {
        printf(".SH NOTES\n");
        print_roff(spec->notes);
        putchar('\n');
    }
    printf(".SH EXIT STATUS\n0 success, 1 failure, 2 wrong usage or config.\n"
           ".SH SEE ALSO\n.BR hstu (1)\n");
}

static void print_entry(const char *name, const command *c) {
    printf(".TP\n.BR hstu%s%s\\-%s (1)\n", name != NULL ? "\\-" : "", name != NULL ? name : "",
           c->name);
    print_roff(c->summary);
    putchar('\n');
}

static void print_man_list(const char *name, const char *summary, const command *commands) {
    print_head(name, NULL, summary != NULL ? summary : "a generative recommender in C and CUDA");
    printf(".SH SYNOPSIS\nhstu %s%s [options]\n.SH COMMANDS\n", name != NULL ? name : "",
           name != NULL ? " WHAT" : "COMMAND");
    for (const command *c = commands; c->name != NULL; c++) {
        if (help_is_command(c))
            print_entry(name, c);
        else
            printf(".SS %s\n", c->name);
    }
    printf(
        ".SH ENVIRONMENT\n.TP\nHSTU_LOG\nLog level on stderr: debug, info, warn or quiet.\n"
        ".TP\nHSTU_THREADS\nNumber of threads (default: the available cores, within the quota of "
        "the container).\n.TP\nHSTU_STALL_SECONDS\nExit when all ranks have only waited for each "
        "other for this many seconds (default: 30, or 120 with mpirun and TCP; 0: never).\n"
        ".TP\nNO_COLOR\nAny value disables colours.\n"
        ".SH EXIT STATUS\n0 success, 1 failure, 2 wrong usage or config.\n");
}

enum { MAX_TEXT = 72 }; /* of a description */

static bool takes_file(const arg_option *o) {
    static const char *const words[] = {"FILE", "DIR", "PATH", "RUN", "FOLDER", "CHECKPOINT"};
    for (size_t i = 0; o->placeholder != NULL && i < sizeof words / sizeof words[0]; i++)
        if (strstr(o->placeholder, words[i]) != NULL) return true;
    return false;
}

/* The beginning of a sentence, to its first full stop, semicolon or colon, for use inside single
 * quotes: a quote in it becomes a typographic one; `bad` are characters that become spaces. */
static void print_short(const char *text, const char *bad) {
    size_t n = strcspn(text, ";:\n");
    const char *stop = strstr(text, ". ");
    if (stop != NULL && (size_t)(stop - text) < n) n = (size_t)(stop - text);
    while (n > 0 && text[n - 1] == '.')
        n--;
    if (n > MAX_TEXT)
        for (n = MAX_TEXT; n > 0 && text[n] != ' ';)
            n--;
    const char *open = memchr(text, '(', n); /* no half of a remark in brackets */
    if (open != NULL && memchr(open, ')', n - (size_t)(open - text)) == NULL)
        n = (size_t)(open - text) - (open > text && open[-1] == ' ');
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\'')
            fputs("\u2019", stdout);
        else
            putchar(strchr(bad, text[i]) != NULL ? ' ' : text[i]);
    }
}

static void print_names(const command *commands) {
    for (const command *c = commands; c->name != NULL; c++)
        if (help_is_command(c)) printf("%s ", c->name);
}

/* The options of a kind, in quotes: 0 flags, 1 with a file, 2 with another value. */
static void print_bash_options(const char *name, const arg_spec *spec, int kind) {
    printf("%s='", name);
    for (const arg_option *o = spec->options; o->name != NULL; o++)
        if (!args_is_group(o) && (o->placeholder == NULL ? 0 : takes_file(o) ? 1 : 2) == kind)
            printf(" %s", o->name);
    printf("' ");
}

static void print_bash(const arg_spec *spec) {
    printf("    '%s%s%s')\n        ", page.whole != NULL ? page.whole->name : "",
           page.whole != NULL ? " " : "", page.command->name);
    print_bash_options("flags", spec, 0);
    print_bash_options("files", spec, 1);
    print_bash_options("values", spec, 2);
    printf(";;\n");
}

static status write_bash(const command *commands) {
    printf("# bash completion of hstu, written by 'hstu help --completion bash'\n"
           "_hstu() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    local command=${COMP_WORDS[1]} flags= files= values=\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        COMPREPLY=($(compgen -W '");
    print_names(commands);
    printf("help --version --help' -- \"$cur\"))\n        return\n    fi\n");
    for (const command *c = commands; c->name != NULL; c++) {
        if (help_parts(c) == NULL) continue;
        printf("    if [ \"$command\" = %s ]; then\n"
               "        if [ \"$COMP_CWORD\" -eq 2 ]; then\n"
               "            COMPREPLY=($(compgen -W '",
               c->name);
        print_names(help_parts(c));
        printf("' -- \"$cur\"))\n            return\n        fi\n"
               "        command=\"$command ${COMP_WORDS[2]}\"\n    fi\n");
    }
    printf("    case $command in\n");
    TRY(visit_all(HELP_BASH, commands));
    /* With nothing in COMPREPLY, bash completes file names. */
    printf("    esac\n"
           "    if [ \"$prev\" = --device ]; then\n"
           "        COMPREPLY=($(compgen -W 'auto cpu cuda' -- \"$cur\"))\n"
           "        return\n    fi\n"
           "    case \" $values \" in *\" $prev \"*) compopt +o default; return ;; esac\n"
           "    case \" $files \" in *\" $prev \"*) return ;; esac\n"
           "    case $cur in\n"
           "    -*) COMPREPLY=($(compgen -W \"$flags $files $values --help\" -- \"$cur\")) ;;\n"
           "    esac\n}\n"
           "complete -o default -F _hstu hstu\n");
    return OK;
}

static void print_zsh(const arg_spec *spec) {
    printf("    '%s%s%s')\n        _arguments \\\n", page.whole != NULL ? page.whole->name : "",
           page.whole != NULL ? " " : "", page.command->name);
    for (const arg_option *o = spec->options; o->name != NULL; o++) {
        if (args_is_group(o)) continue;
        printf("            '%s%s[", o->type == ARG_LIST ? "*" : "", o->name);
        print_short(o->help, "[]:\\");
        printf("]");
        if (strcmp(o->name, "--device") == 0)
            printf(":device:(auto cpu cuda)");
        else if (o->placeholder != NULL)
            printf(":value:%s", takes_file(o) ? "_files" : "");
        printf("' \\\n");
    }
    printf("            '--help[print help]' '*:file:_files' ;;\n");
}

static void print_zsh_names(const char *indent, const command *commands) {
    printf("%slocal -a names=(\n", indent);
    for (const command *c = commands; c->name != NULL; c++) {
        if (!help_is_command(c)) continue;
        printf("%s    '%s:", indent, c->name);
        print_short(c->summary, ":\\");
        printf("'\n");
    }
    printf("%s)\n%s_describe command names\n%sreturn\n", indent, indent, indent);
}

static status write_zsh(const command *commands) {
    printf("#compdef hstu\n# zsh completion of hstu, written by 'hstu help --completion zsh'\n"
           "_hstu() {\n    local command=$words[2]\n    if (( CURRENT == 2 )); then\n");
    print_zsh_names("        ", commands);
    printf("    fi\n");
    for (const command *c = commands; c->name != NULL; c++) {
        if (help_parts(c) == NULL) continue;
        printf("    if [[ $command == %s ]]; then\n        if (( CURRENT == 3 )); then\n", c->name);
        print_zsh_names("            ", help_parts(c));
        printf("        fi\n        command=\"$command $words[3]\"\n    fi\n");
    }
    printf("    shift words\n    (( CURRENT-- ))\n    case $command in\n");
    TRY(visit_all(HELP_ZSH, commands));
    printf("    esac\n}\n_hstu \"$@\"\n");
    return OK;
}

/* Names of parts are also names of commands (`bench train`), so a command without parts must not
 * follow one that has them. */
static void print_fish_condition(const command *whole, const command *c) {
    if (whole != NULL)
        printf("'__fish_seen_subcommand_from %s; and __fish_seen_subcommand_from %s'", whole->name,
               c->name);
    else
        printf("'__fish_seen_subcommand_from %s; and not __fish_seen_subcommand_from bench'",
               c->name);
}

static void print_fish(const arg_spec *spec) {
    for (const arg_option *o = spec->options; o->name != NULL; o++) {
        if (args_is_group(o)) continue;
        bool is_long = strncmp(o->name, "--", 2) == 0;
        printf("complete -c hstu -n ");
        print_fish_condition(page.whole, page.command);
        printf(" -%c %s", is_long ? 'l' : 's', o->name + (is_long ? 2 : 1));
        if (o->placeholder != NULL) printf(takes_file(o) ? " -r -F" : " -x");
        if (strcmp(o->name, "--device") == 0) printf(" -a 'auto cpu cuda'");
        printf(" -d '");
        print_short(o->help, "\\");
        printf("'\n");
    }
}

static void print_fish_names(const command *whole, const command *commands) {
    for (const command *c = commands; c->name != NULL; c++) {
        if (!help_is_command(c)) continue;
        printf("complete -c hstu -f -n ");
        if (whole == NULL)
            printf("__fish_use_subcommand");
        else
            printf("'__fish_seen_subcommand_from %s'", whole->name);
        printf(" -a %s -d '", c->name);
        print_short(c->summary, "\\");
        printf("'\n");
        if (help_parts(c) != NULL) print_fish_names(c, help_parts(c));
    }
}

static status write_fish(const command *commands) {
    printf("# fish completion of hstu, written by 'hstu help --completion fish'\n");
    print_fish_names(NULL, commands);
    return visit_all(HELP_FISH, commands);
}

/* help_completion.c: what one command adds to a completion file, and the whole file. */
/* Prints text wrapped at spaces; newlines are kept.  Every line starts at `indent`. */
static void print_wrapped(const char *text, int indent, int width) {
    while (*text != '\0') {
        size_t line = strcspn(text, "\n"), room = (size_t)(width - indent);
        if (line > room) {
            size_t cut = room;
            while (cut > 0 && text[cut] != ' ')
                cut--;
            line =
                cut > 0 ? cut : strcspn(text, " \n"); /* a word longer than the line stays whole */
        }
        printf("%*s%.*s\n", line > 0 ? indent : 0, "", (int)line, text);
        text += line;
        if (*text == ' ' || *text == '\n') text++;
    }
}

static int page_width(void) {
    int columns = env_columns(STDOUT_FILENO);
    return columns < HELP_WIDTH ? columns : HELP_WIDTH;
}

/* Usage, summary, the options in groups, notes. */
static void print_text(const arg_spec *spec) {
    bool has_colour = env_wants_colour(STDOUT_FILENO);
    const char *bold = has_colour ? "\033[1m" : "", *plain = has_colour ? "\033[0m" : "";
    int width = page_width();
    printf("%sUsage:%s %s\n\n", bold, plain, spec->usage);
    print_wrapped(spec->summary, 0, width);
    if (!args_is_group(&spec->options[0]) || spec->options[0].name == NULL)
        printf("\n%sOptions:%s\n", bold, plain);
    for (const arg_option *o = spec->options; o->name != NULL; o++) {
        if (args_is_group(o)) {
            printf("\n%s%s:%s\n", bold, o->name, plain);
            continue;
        }
        printf("  %s%s%s%s%s\n", bold, o->name, plain, o->placeholder != NULL ? " " : "",
               o->placeholder != NULL ? o->placeholder : "");
        print_wrapped(o->help, HELP_INDENT, width);
    }
    printf("  %s--help%s\n%*sPrint this help.\n", bold, plain, HELP_INDENT, "");
    if (spec->notes != NULL) {
        printf("\n");
        print_wrapped(spec->notes, 0, width);
    }
}

void help_print(const arg_spec *spec) {
    static void (*const print[])(const arg_spec *) = {[HELP_TEXT] = print_text,
                                                      [HELP_MAN] = print_man,
                                                      [HELP_BASH] = print_bash,
                                                      [HELP_ZSH] = print_zsh,
                                                      [HELP_FISH] = print_fish};
    print[page.form](spec);
}

/* The page of one command, "train" or "bench attention"; words beyond it are an error. */
static status print_man_of(const command *commands, int argc, char **argv) {
    const command *whole = NULL;
    for (int i = 0; i < argc; i++) {
        const command *c = whole == NULL ? commands : help_parts(whole);
        while (c != NULL && c->name != NULL &&
               (!help_is_command(c) || strcmp(c->name, argv[i]) != 0))
            c++;
        if (c == NULL || c->name == NULL)
            return fail(ERR_USAGE, "help --man: there is no command '%.100s'", argv[i]);
        if (i + 1 == argc && help_parts(c) == NULL) return visit((help_page){HELP_MAN, whole, c});
        whole = c;
    }
    print_man_list(whole != NULL ? whole->name : NULL, whole != NULL ? whole->summary : NULL,
                   whole != NULL ? help_parts(whole) : commands);
    return OK;
}

status help_command(const command *commands, int argc, char **argv) {
    const char *form = argc > 1 ? argv[1] : "", *shell = argc > 2 ? argv[2] : "";
    if (strcmp(form, "--man") == 0) return print_man_of(commands, argc - 2, argv + 2);
    if (strcmp(form, "--completion") == 0 && argc == 3) {
        if (strcmp(shell, "bash") == 0) return write_bash(commands);
        if (strcmp(shell, "zsh") == 0) return write_zsh(commands);
        if (strcmp(shell, "fish") == 0) return write_fish(commands);
    }
    return fail(ERR_USAGE,
                "help: give a COMMAND, --man [COMMAND], or --completion bash, zsh or fish");
}
