/* Temporary data: a data set that is written, opened and deleted at once.  A mapped file stays
 * readable without its name, so nothing is left on disk, however the program ends. */
#ifndef HSTU_DATA_SET_TEMP_DATA_H
#define HSTU_DATA_SET_TEMP_DATA_H

#include "base/status.h"
#include "base/thread.h"
#include "data/set/seq_file.h"

/* Writes folder/data.seq. */
typedef status (*temp_data_writer)(void *ctx, const char *folder, pool *p);

/* Opens what the writer writes to a folder under /tmp; seq_file_close closes it. */
status temp_data_open(seq_file **out, temp_data_writer write, void *ctx, pool *p);

#endif
