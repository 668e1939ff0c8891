/* Configs for own data: which file of configs/own 'hstu train' takes where none is given, and which
 * parts of the data a config leaves out. */
#pragma once

#include "cli/cli.h"
#include "cli/work.h"
#include "config/config.h"
#include "data/set/seq_file.h"

typedef struct own_config {
    char path[CONFIG_PATH_BYTES];
    const char *text;   /* the program's own copy, where no file is found; or NULL */
    char set[2][80];    /* what the data decide: the head of a ranking model */
    arg_list overrides; /* these, then the caller's; args_fini frees them */
} own_config;

/* Chooses by the size and the actions of the data and by the device, and says on stderr what and
 * why.  task: "ranking", or anything else; overrides: of the command line. */
status own_config_choose(own_config *out, const char *data, const char *task, const char *device,
                         const arg_list *overrides);

/* Says in a line which features of users and items, and whether actions, the config does not read.
 */
void own_config_tell_unused(const config *c, const seq_file *data);
