/* What the writer and the reader of record files share: the header and the items. */
#ifndef HSTU_PROFILE_RECORD_ITEM_H
#define HSTU_PROFILE_RECORD_ITEM_H

#include <stdint.h>

#include "profile/recorder.h"

/* The size of a record is in the header: a file of another build is refused. */
#define RECORD_HEADER "hstu records 2, %d bytes\n"
enum { RECORD_HEADER_BYTES = 32, RECORD_MAX_NAME = 4096, RECORD_MAX_NAMES = 1 << 20 };
enum { RECORD_KEPT_NAMES = 1 << 16 }; /* the writer's limit; one more says that it was reached */

typedef enum { ITEM_PROCESS = 1, ITEM_NAME, ITEM_RECORD, ITEM_NOTE, ITEM_GPU, ITEM_END } item_kind;

typedef struct item {
    uint32_t kind, bytes; /* of what follows */
} item;

/* A gpu_record without pointers. */
typedef struct stored_record {
    uint64_t start_ns, end_ns, bytes, mark;
    uint32_t correlation, device, stream, thread, kind;
    int32_t name; /* the number of the name item, or -1 */
    span_launch launch;
} stored_record;

#endif
