/* A file that several processes write at the same time, each its own ranges.
 *
 * One process makes it, of its whole size; then all open it by its path.  Unlike an out_file
 * (file.h) it is visible from the beginning, so it belongs into a folder that gets its final name
 * when all is written.  One thread at a time for each part_file. */
#ifndef HSTU_BASE_PART_FILE_H
#define HSTU_BASE_PART_FILE_H

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

typedef struct part_file part_file;

/* Makes a new file of `bytes` bytes that begins with `header`; the rest is zero. */
status part_file_make(const char *path, const buf *header, uint64_t bytes);

/* Opens what part_file_make made, in this or another process, which may be on another machine. */
status part_file_open(part_file **out, const char *path);

/* On failure, a full disk above all, the reason names the path. */
status part_file_write(part_file *f, uint64_t offset, const void *bytes, size_t n);

/* A sum of what was written to f so far, which does not depend on the order or the size of pieces:
 * the sums of several writers, added, are that of the whole.  Pieces are whole words of 4 bytes, at
 * multiples of 4. */
uint64_t part_file_sum(const part_file *f);

/* Reads the file from byte `begin` on, and fails where that is not what was written: sum is the sum
 * of all writers. */
status part_file_check(const char *path, uint64_t begin, uint64_t sum);

/* Makes what was written durable, and closes f either way; NULL is fine.  With st, a failure from
 * before, it only closes; returns st, or why it is not durable. */
status part_file_close(part_file *f, status st);

#endif
