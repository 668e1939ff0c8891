/* Zip archives whose members are stored, not compressed: what torch.save writes.  Compressed
 * members are listed, so that a caller can say what the archive is, and cannot be used.
 *
 * Reads the directory of an archive in memory and treats every number in it as hostile: members
 * must lie between the start of the file and its directory, without overlap, under names that
 * differ.  Sizes and places come from the directory, never from local headers, which torch leaves
 * empty.  What is read are views of the caller's bytes.  Any thread. */
#ifndef HSTU_FORMAT_ZIP_READ_H
#define HSTU_FORMAT_ZIP_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/status.h"

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

#endif
