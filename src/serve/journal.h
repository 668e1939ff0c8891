/* Journal: the changes of users' histories on disk, so that what the server has acknowledged
 * survives kill -9 and a power cut.
 *
 * FOLDER/events.log is a header and groups of records, each group with its length, its own offset
 * and a checksum.  Changes are appended to a buffer; the first thread that has to be sure writes
 * everything that has gathered as one group and calls fdatasync, while the others wait for the same
 * call.  Opening replays the log.  A last group that a crash left incomplete was never acknowledged
 * and is cut off; damage before a whole group is an error, never a loss in silence.
 *
 * Compaction writes the present state as a new log and renames it over the old one.
 *
 * Any thread may call any function; journal_open and journal_close one at a time. */
#ifndef HSTU_SERVE_JOURNAL_H
#define HSTU_SERVE_JOURNAL_H

#include "serve/engine.h"

typedef struct journal journal;

/* Opens the folder's log, made where there is none, and calls fn for each record in it, in order.
 * ERR_IO where another process has the folder. */
status journal_open(journal **out, const char *folder, engine_record_fn fn, void *ctx);
void journal_close(journal *j); /* writes what is left; NULL is fine */

/* What the engine calls (engine.h). */
engine_journal journal_hooks(journal *j);

/* As engine_visit: calls fn with the records that make the present state, while none is appended.
 */
typedef status (*journal_source)(void *ctx, engine_record_fn fn, void *fn_ctx);

/* Replaces the log by the records of `source`.  On failure the old one stays. */
status journal_compact(journal *j, journal_source source, void *ctx);

typedef struct journal_stats {
    uint64_t n_bytes;         /* of the log */
    uint64_t n_cut;           /* bytes of an incomplete group, cut off at the start */
    uint64_t n_records;       /* replayed and appended since the log was last rewritten */
    uint64_t n_syncs;         /* calls of fdatasync */
    uint64_t compacted_bytes; /* length after the last compaction, or when it was opened */
} journal_stats;
journal_stats journal_get_stats(journal *j);

/* Whether compaction is worth its time: the log is long, and four times as long as after the last
 * one. */
bool journal_wants_compaction(journal *j);

/* For fuzzing and tests: the records of a log in memory; *n_good: its bytes up to the incomplete
 * group.  ERR_FORMAT: it is damaged. */
status journal_scan(const char *name, const unsigned char *bytes, size_t n, engine_record_fn fn,
                    void *ctx, size_t *n_good);

#endif
