/* State tools: what `hstu state` does with the database of a folder.  Each opens the folder itself.
 */
#pragma once

#include "serve/state/state.h"

/* Checks a folder's database, also while a server has it: structure, references, checksums.
 * ERR_FORMAT: it is damaged; *out says as much as could be found. */
status state_check(const char *folder, state_counts *out);
/* Reads all rows of a folder's database as of now, also while a server has it.  *out counts them.
 */
status state_read(const char *folder, const state_reader *reader, state_counts *out);
/* A copy of a folder's database as of now, also while a server has it, as one file that appears
 * whole or not at all. */
status state_backup(const char *folder, const char *file, state_counts *out);
/* Puts a backup in place of a folder's database, which is kept as state.db.before-N. */
status state_restore(const char *folder, const char *file, state_counts *out);
/* Writes what can be read of a damaged database to a new one; the damaged one is kept as
 * state.db.damaged-N.  *out counts what was kept, and n_damaged what was not. */
status state_recover(const char *folder, state_counts *out);
