/* What the writer and the reader of snapshots share. */
#ifndef HSTU_EMBED_SNAPSHOT_INT_H
#define HSTU_EMBED_SNAPSHOT_INT_H

#include "embed/snapshot.h"
#include "embed/table_int.h"

enum { SNAPSHOT_PATH_BYTES = 4096, SNAPSHOT_MAX_RANKS = 65536 };

#define SNAPSHOT_FORMAT "hstu table 1"

/* ERR_USAGE unless 0 <= rank < n_ranks: no key would belong to it. */
status snapshot_check_ranks(snapshot_ranks ranks);

/* FOLDER/rank-R-of-N. */
status snapshot_part(char path[SNAPSHOT_PATH_BYTES], const char *folder, snapshot_ranks ranks);

/* Bytes and checksum of a file. */
status snapshot_hash(const char *path, int64_t *bytes, char hex[17]);

#endif
