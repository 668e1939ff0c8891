/* `hstu profile` runs other commands, which main.c lists. */
#ifndef HSTU_CLI_MACHINE_PROFILE_H
#define HSTU_CLI_MACHINE_PROFILE_H

#include "cli/cli.h"

void profile_set_commands(const command *commands); /* ends with name = NULL */

#endif
