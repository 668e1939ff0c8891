/* Signals.  Ctrl-C and SIGTERM: the first one asks a long command to stop at a good place; a second
 * one of the same kind ends the program at once.  SIGBUS and SIGSEGV: mapped files that change
 * while they are read. */
#pragma once

#include <signal.h>

#include "base/base.h"

extern volatile sig_atomic_t stop_signal; /* not 0 once it was asked */

void stop_signal_watch(void);
bool stop_signal_came(void);

/* A mapped file that is truncated raises SIGBUS; one whose numbers change after they were checked
 * may lead anywhere (SIGSEGV).  From now on such an access ends the program with exit code 1 and a
 * line on stderr that names the file.  A SIGSEGV while no mapped file has changed is handled as
 * before. */
void bus_error_watch(void);
