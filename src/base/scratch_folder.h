/* Folders that last as long as the process: on disk, for what it can do without afterwards.
 *
 * Each is locked while it is open, by a lock that goes with the process however it ends.  So
 * whoever opens one in the same place removes those that a killed process left, and a disk does not
 * fill up with them.  Any number of processes share a place.  A scratch folder belongs to one
 * thread. */
#ifndef HSTU_BASE_SCRATCH_FOLDER_H
#define HSTU_BASE_SCRATCH_FOLDER_H

#include "base/status.h"

typedef struct scratch_folder scratch_folder;

/* Makes PARENT (and what is above it) if need be, and in it PREFIX with six letters behind it.
 * Folders of that name in PARENT that nobody has open are removed. */
status scratch_folder_create(scratch_folder **out, const char *parent, const char *prefix);

const char *scratch_folder_path(const scratch_folder *s);

/* Removes the folder with the files in it.  NULL is fine. */
void scratch_folder_destroy(scratch_folder *s);

#endif
