/* Help in every form: the page that `hstu COMMAND --help` prints, man pages, and completion for
 * shells, all from the tables of commands and options.
 *
 * Commands build their tables inside the function that runs them, so all forms go the same way:
 * the command is called with --help, and args_parse hands its table to help_print.  One thread. */
#pragma once

#include "cli/cli.h"

/* Prints the page of a command, in the form that is being made. */
void help_print(const arg_spec *spec);

/* hstu help --man [COMMAND] | --completion bash|zsh|fish.  The table of commands ends with name =
 * NULL; argv[0] is "help". */
status help_command(const command *commands, int argc, char **argv);

/* The second words of a command that has them (`bench attention`), ending with name = NULL; else
 * NULL. */
const command *help_parts(const command *c);

/* Whether this entry is a command, not the heading of a group. */
static inline bool help_is_command(const command *c) {
    return c->run != NULL;
}
