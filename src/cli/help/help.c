/* The page of a command on a terminal, and `hstu help --man|--completion`. */
#include "cli/help/help.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "cli/bench/bench.h"
#include "cli/help/help_int.h"
#include "cli/machine/plan.h"
#include "hstu.h"

enum { HELP_INDENT = 6, HELP_WIDTH = 92 };

/* The page being made. */
static help_page page;

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
    if (!help_is_heading(&spec->options[0]) || spec->options[0].name == NULL)
        printf("\n%sOptions:%s\n", bold, plain);
    for (const arg_option *o = spec->options; o->name != NULL; o++) {
        if (help_is_heading(o)) {
            printf("\n%s%s:%s\n", bold, o->name, plain);
            continue;
        }
        printf("  %s%s%s%s%s\n", bold, o->name, plain, o->placeholder != NULL ? " " : "",
               o->placeholder != NULL ? o->placeholder : "");
        print_wrapped(o->help, HELP_INDENT, width);
    }
    printf("  %s--help%s\n%*sPrint this page.\n", bold, plain, HELP_INDENT, "");
    if (spec->notes != NULL) {
        printf("\n");
        print_wrapped(spec->notes, 0, width);
    }
}

void help_print(const arg_spec *spec) {
    if (page.form == HELP_TEXT)
        print_text(spec);
    else if (page.form == HELP_MAN)
        help_print_man(&page, spec);
    else
        help_print_completion(&page, spec);
}

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

status help_visit(help_form form, const command *commands) {
    for (const command *c = commands; c->name != NULL; c++) {
        if (!help_is_command(c)) continue;
        const command *part = help_parts(c);
        if (part == NULL) TRY(visit((help_page){form, NULL, c}));
        for (; part != NULL && part->name != NULL; part++)
            TRY(visit((help_page){form, c, part}));
    }
    return OK;
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
    help_print_man_list(whole != NULL ? whole->name : NULL, whole != NULL ? whole->summary : NULL,
                        whole != NULL ? help_parts(whole) : commands);
    return OK;
}

status help_command(const command *commands, int argc, char **argv) {
    const char *form = argc > 1 ? argv[1] : "", *shell = argc > 2 ? argv[2] : "";
    if (strcmp(form, "--man") == 0) return print_man_of(commands, argc - 2, argv + 2);
    if (strcmp(form, "--completion") == 0 && argc == 3) {
        if (strcmp(shell, "bash") == 0) return help_write_bash(commands);
        if (strcmp(shell, "zsh") == 0) return help_write_zsh(commands);
        if (strcmp(shell, "fish") == 0) return help_write_fish(commands);
    }
    return fail(ERR_USAGE,
                "help: give a COMMAND, --man [COMMAND], or --completion bash, zsh or fish");
}
