/* Zip archives of stored members, as numpy and torch read them: npz.h and torch_file.h write them.
 *
 * Members are written one after the other, their bytes in pieces; sizes beyond 4 GiB are written in
 * the zip64 form.  The same members give the same bytes in every run.  The file appears whole or
 * not at all (file.h).  One thread at a time. */
#ifndef HSTU_FORMAT_ZIP_WRITE_H
#define HSTU_FORMAT_ZIP_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { ZIP_NAME_BYTES = 512 };

typedef struct zip_writer zip_writer;

status zip_create(zip_writer **out, const char *path);

/* Begins a member of n_bytes.  Its content starts at a multiple of `align`, after an extra field
 * that fills the gap; 1: right after its header. */
status zip_begin(zip_writer *w, const char *name, uint64_t n_bytes, size_t align);

/* Appends bytes of the member that was begun. */
status zip_write(zip_writer *w, const void *bytes, size_t n);

/* Ends it; it must have all its bytes. */
status zip_end(zip_writer *w);

/* Makes the file visible.  The writer is gone in either case. */
status zip_commit(zip_writer *w);
void zip_abandon(zip_writer *w); /* NULL is fine */

#endif
