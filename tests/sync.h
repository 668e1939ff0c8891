/* fsync of the programs of tests: may be interrupted, as by a signal, and counts. */
#ifndef HSTU_TESTS_SYNC_H
#define HSTU_TESTS_SYNC_H

extern int sync_interrupts; /* so many calls fail with EINTR before one succeeds */
extern int sync_files, sync_folders;

#endif
