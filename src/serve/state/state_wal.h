/* The end of a SQLite write-ahead log, read before SQLite does.
 *
 * SQLite reads a log up to the first frame whose checksum is wrong and drops the rest in silence:
 * after a crash that is a transaction nobody was told of, but a flipped bit looks the same and then
 * what is dropped was acknowledged.  Here the two are told apart as far as can be, so that a
 * damaged log is kept and its owner is told.  The format: sqlite.org/fileformat2.html, section 4.
 */
#ifndef HSTU_SERVE_STATE_STATE_WAL_H
#define HSTU_SERVE_STATE_STATE_WAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WAL_HEADER_BYTES = 32, WAL_FRAME_BYTES = 24, WAL_SALT_AT = 16, WAL_SALT_BYTES = 8 };

typedef struct wal_end {
    uint64_t n_good;  /* bytes that SQLite uses: up to the last whole transaction */
    bool is_damaged;  /* frames of this log follow that are there but wrong: SQLite drops them */
    uint64_t damaged; /* offset of the first one */
} wal_end;

wal_end wal_inspect(const unsigned char *bytes, size_t n);

#endif
