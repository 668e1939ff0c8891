/* Runs another program and waits for it: the system's compiler. */
#ifndef HSTU_TUNE_PROCESS_H
#define HSTU_TUNE_PROCESS_H

#include "base/status.h"
#include "base/text.h"

enum { PROCESS_MAX_WORDS = 48, PROCESS_NOT_FOUND = 127 };

/* Runs argv[0] (looked for on PATH), with nothing on its stdin; its stdout and stderr are appended
 * to `output`, the first 64 KiB of them.  *exit_code is its exit code, 128 + the signal that ended
 * it, or PROCESS_NOT_FOUND.  Any thread. */
status process_run(char *const *argv, buf *output, int *exit_code);

#endif
