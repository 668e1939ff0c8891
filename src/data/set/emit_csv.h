/* Writes a prepared data set as processed_seqs.csv: one user per row, JSON lists, RFC 4180 quotes.
 *
 * Columns: user_id, the item column's name, rating, unix_timestamp.  Ids are those of the source;
 * ratings are the stored actions, from 0 (the form the reference reads); times are in the data
 * set's ticks.  `hstu prep processed-seqs` reads the file back. */
#ifndef HSTU_DATA_SET_EMIT_CSV_H
#define HSTU_DATA_SET_EMIT_CSV_H

#include "base/file.h"
#include "base/status.h"
#include "data/set/seq_file.h"

/* Appends the whole file to f; the caller commits it. */
status emit_csv(const seq_file *s, const char *item_name, out_file *f);

#endif
