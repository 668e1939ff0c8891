/* Temporary files and folders that killed processes leave behind.
 *
 * Their names are NAME, a part of digits and '-' (the process, the attempt), and ".tmp".  Whoever
 * makes one holds a lock on it, which ends with the process; whoever makes the next one of the same
 * NAME removes those without a lock.  Where a file system has no locks, nothing is removed. */
#ifndef HSTU_BASE_TEMPORARY_H
#define HSTU_BASE_TEMPORARY_H

#include <stdbool.h>

/* Marks an open file or folder as in use, until it is closed.  False where another process removed
 * it before it was marked: make a new one. */
bool temporary_lock(int fd);

/* Removes the abandoned ones whose path begins with `prefix`; of folders, also what is in them,
 * down to `depth` levels of folders. */
void temporary_clean(const char *prefix, int depth);

#endif
