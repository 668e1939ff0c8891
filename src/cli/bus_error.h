/* Mapped files that are cut short while they are read: the system answers with SIGBUS, which would
 * end the program without a word. */
#ifndef HSTU_CLI_BUS_ERROR_H
#define HSTU_CLI_BUS_ERROR_H

/* From now on such an access ends the program with exit code 1, and a line on stderr that names the
 * file. */
void bus_error_watch(void);

#endif
