/* Record files: what CUPTI tells in a process that is not ours (inject.c), written as it comes, and
 * read again by `hstu profile` when that process has ended.
 *
 * One file a process, of this machine and this build: a header line, then items, each with its kind
 * and its size; a kernel's name stands once, before the first record that has it.  A process that
 * is killed leaves a file that ends somewhere: what is whole before that counts.  Writers and
 * readers belong to one thread at a time. */
#ifndef HSTU_PROFILE_RECORD_FILE_H
#define HSTU_PROFILE_RECORD_FILE_H

#include "base/status.h"
#include "profile/cupti.h"

enum { RECORD_NOTE_BYTES = 256 };

typedef struct record_writer record_writer;

/* Makes FOLDER/PID.records, or PID-2.records where that is there. */
status record_writer_create(record_writer **out, const char *folder);

/* Buffered.  Any failure of the file is remembered, and returned by these and by close. */
status record_writer_add(record_writer *w, const gpu_record *r);
status record_writer_note(record_writer *w, const char *text); /* why there are no records */
status record_writer_flush(record_writer *w);

/* The last item: how many records CUPTI dropped.  Ends the writer; NULL is fine. */
status record_writer_close(record_writer *w, uint64_t n_lost);

/* In a forked child the file is the parent's: nothing is written any more. */
void record_writer_forget(record_writer *w);

typedef struct record_summary {
    int64_t pid;
    char command[RECORD_NOTE_BYTES]; /* of the process; cut */
    char note[RECORD_NOTE_BYTES];    /* "" where records were taken */
    uint64_t n_records, n_lost;
    bool is_whole; /* the process ended in order */
} record_summary;

/* Hands each record to add, with a name that lasts for the call.  ERR_FORMAT for a file that is
 * none of ours or was changed; a file cut short is no failure. */
status record_file_read(const char *path, status (*add)(void *ctx, const gpu_record *r), void *ctx,
                        record_summary *out);

#endif
