/* Record files: what CUPTI tells in a process that is not ours (inject.c), written as it comes, and
 * read again by `hstu profile` when that process has ended.
 *
 * One file a process, of this machine and this build: a header line, then items, each with its kind
 * and its size; a kernel's name stands once, before the first record that has it.  A process that
 * is killed leaves a file that ends somewhere: what is whole before that counts.  Writers and
 * readers belong to one thread at a time. */
#pragma once

#include "profile/cupti.h"
#include "profile/recorder.h"

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

/* What the writer and the reader of record files share: the header and the items. */

/* The size of a record is in the header: a file of another build is refused. */
#define RECORD_HEADER "hstu records 3, %d bytes\n"
enum { RECORD_HEADER_BYTES = 32, RECORD_MAX_NAME = 4096, RECORD_MAX_NAMES = 1 << 20 };
enum { RECORD_KEPT_NAMES = 1 << 16 }; /* the writer's limit; one more says that it was reached */

typedef enum { ITEM_PROCESS = 1, ITEM_NAME, ITEM_RECORD, ITEM_NOTE, ITEM_GPU, ITEM_END } item_kind;

typedef struct item {
    uint32_t kind, bytes; /* of what follows */
} item;

/* The pointers of the record mean nothing. */
typedef struct stored_record {
    gpu_record record;
    int32_t name; /* the number of the name item, or -1 */
} stored_record;
