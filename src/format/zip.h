/* Zip archives whose members are stored, not compressed: what numpy and torch write and read.
 * Compressed members are listed, so that a caller can say what the archive is, and cannot be used.
 *
 * The reader takes the directory of an archive in memory and treats every number in it as hostile:
 * members must lie between the start of the file and its directory, without overlap, under names
 * that differ.  Sizes and places come from the directory, never from local headers, which torch
 * leaves empty.  What is read are views of the caller's bytes.  Any thread.
 *
 * The writer writes members one after the other, their bytes in pieces; sizes beyond 4 GiB in the
 * zip64 form.  The same members give the same bytes in every run.  The file appears whole or not at
 * all (file.h).  One thread at a time. */
#pragma once

#include "base/base.h"

typedef struct zip_member {
    const char *name; /* memory of the arena */
    const unsigned char *bytes;
    size_t n_bytes;
    uint32_t crc;   /* as the directory has it */
    bool is_stored; /* else compressed: `bytes` cannot be used */
} zip_member;

typedef struct zip_list {
    zip_member *member; /* (n), by name; memory of the arena */
    size_t n;
} zip_list;

/* path: for messages.  ERR_FORMAT names what is wrong, and of which member. */
status zip_read(zip_list *out, arena *a, const char *path, const unsigned char *bytes,
                size_t n_bytes);

/* NULL where there is none. */
const zip_member *zip_find(const zip_list *l, const char *name);

/* ERR_FORMAT where the content is compressed, or does not have the checksum of the directory. */
status zip_verify(const zip_member *m, const char *path);

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
