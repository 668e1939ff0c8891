/* Folders on disk for temporary files, which last as long as the process.
 *
 * Each is locked while it is open, by a lock that ends with the process.  Whoever opens a folder in
 * the same place removes those that killed processes left, so that they do not fill the disk.  Any
 * number of processes may share a place.  A scratch folder belongs to one thread. */
#ifndef HSTU_BASE_SCRATCH_FOLDER_H
#define HSTU_BASE_SCRATCH_FOLDER_H

#include "base/status.h"

typedef struct scratch_folder scratch_folder;

/* Makes PARENT (and what is above it) if need be, and in it PREFIX followed by six letters.
 * Folders of that name in PARENT that nobody has open are removed. */
status scratch_folder_create(scratch_folder **out, const char *parent, const char *prefix);

const char *scratch_folder_path(const scratch_folder *s);

/* Removes the folder with the files in it.  NULL is fine. */
void scratch_folder_destroy(scratch_folder *s);

#endif
