/* Everything the environment may say: the only place that calls getenv.
 *
 * HSTU_LOG      debug | info | warn | quiet
 * HSTU_THREADS  threads of the CPU backend and of prep; default: the cores this process may use
 * NO_COLOR      any value: no colours */
#ifndef HSTU_BASE_ENV_H
#define HSTU_BASE_ENV_H

#include <stdbool.h>

#include "base/status.h"

/* Applies HSTU_LOG to the log; ERR_USAGE for a value that is none. */
status env_apply_log_level(void);

/* The number of threads to use, 1..256: HSTU_THREADS, or the cores this process may run on.
 * ERR_USAGE for a value that is no number in that range. */
status env_threads(int *out);

/* Colours are wanted on this file descriptor: it is a terminal, TERM is not dumb, NO_COLOR unset.
 */
bool env_wants_colour(int fd);

/* Columns of the terminal behind this file descriptor (COLUMNS, or asked); 80 if it is none. */
int env_columns(int fd);

#endif
