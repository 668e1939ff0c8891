/* Ctrl-C and SIGTERM: the first one asks a long command to stop at a good place; a second one of
 * the same kind ends the program at once. */
#ifndef HSTU_CLI_STOP_SIGNAL_H
#define HSTU_CLI_STOP_SIGNAL_H

#include <signal.h>
#include <stdbool.h>

extern volatile sig_atomic_t stop_signal; /* not 0 once it was asked */

void stop_signal_watch(void);
bool stop_signal_came(void);

#endif
