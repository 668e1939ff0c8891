/* What the files that write help share: the page being made, and the forms. */
#ifndef HSTU_CLI_HELP_HELP_INT_H
#define HSTU_CLI_HELP_HELP_INT_H

#include "cli/cli.h"
#include "cli/help/help.h"

typedef enum { HELP_TEXT, HELP_MAN, HELP_BASH, HELP_ZSH, HELP_FISH } help_form;

typedef struct help_page {
    help_form form;
    const command *whole; /* of `bench attention`: bench; else NULL */
    const command *command;
} help_page;

/* A heading in the table of options: it has a title and no value. */
static inline bool help_is_heading(const arg_option *o) {
    return o->value == NULL;
}

/* Calls every command, and every part of one that has parts, so that each prints its page. */
status help_visit(help_form form, const command *commands);

/* help_man.c: the page of a command in roff; and the page that lists commands: those of `hstu`
 * (name NULL), or the parts of a command. */
void help_print_man(const help_page *page, const arg_spec *spec);
void help_print_man_list(const char *name, const char *summary, const command *commands);

/* help_completion.c: what one command adds to a completion file, and the whole file. */
void help_print_completion(const help_page *page, const arg_spec *spec);
status help_write_bash(const command *commands);
status help_write_zsh(const command *commands);
status help_write_fish(const command *commands);

#endif
