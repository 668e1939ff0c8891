/* Mapped files that change while they are read.  One that is cut short is answered by the system
 * with SIGBUS; numbers that were checked when the file was opened, and are others now, may lead
 * anywhere (SIGSEGV).  Both would end the program without a word. */
#ifndef HSTU_CLI_BUS_ERROR_H
#define HSTU_CLI_BUS_ERROR_H

/* From now on such an access ends the program with exit code 1, and a line on stderr that names the
 * file.  A SIGSEGV while no mapped file has changed is handled as before. */
void bus_error_watch(void);

#endif
