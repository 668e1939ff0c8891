/* Where a config file is: as given, or among the configs that were installed with the program. */
#ifndef HSTU_CLI_CONFIG_PATH_H
#define HSTU_CLI_CONFIG_PATH_H

#include "base/status.h"

enum { CONFIG_PATH_BYTES = 4096 };

/* A relative name that is not there, such as configs/demo.gin, is looked for in ../share/hstu
 * beside the program's own folder, and the log says so.  A name found nowhere is kept: opening it
 * says what is wrong. */
void config_path_find(const char *name, char path[CONFIG_PATH_BYTES]);

/* The same for a program in the file `program`. */
void config_path_find_for(const char *program, const char *name, char path[CONFIG_PATH_BYTES]);

#endif
