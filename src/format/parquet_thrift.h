/* The Thrift compact protocol, read strictly: footers and page headers of Parquet files.
 *
 * A reader is a view of bytes; nothing is allocated and nothing is copied.  Every length and every
 * nesting in it is hostile: a value never reaches past the end, and unknown fields are skipped up
 * to a limited depth.  One thread at a time per reader. */
#ifndef HSTU_FORMAT_PARQUET_THRIFT_H
#define HSTU_FORMAT_PARQUET_THRIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum {
    THRIFT_STOP = 0,
    THRIFT_TRUE,
    THRIFT_FALSE,
    THRIFT_BYTE,
    THRIFT_I16,
    THRIFT_I32,
    THRIFT_I64,
    THRIFT_DOUBLE,
    THRIFT_BINARY,
    THRIFT_LIST,
    THRIFT_SET,
    THRIFT_MAP,
    THRIFT_STRUCT
} thrift_type;

typedef struct thrift {
    const unsigned char *at, *end;
    bool is_short; /* the last failure: the bytes end too early, more of them might help */
} thrift;

typedef struct thrift_field {
    int32_t id; /* 0 before the first field */
    uint8_t type;
} thrift_field;

/* The next field of a struct; `f` is the previous one (zero at the start of the struct).  f->type =
 * THRIFT_STOP at its end. */
status thrift_next_field(thrift *t, thrift_field *f);

/* The value of a field, which must have the type. */
status thrift_get_bool(thrift *t, const thrift_field *f, bool *out);
status thrift_get_int(thrift *t, const thrift_field *f, int64_t *out); /* of any width */
status thrift_get_i32(thrift *t, const thrift_field *f, int32_t *out); /* that fits 32 bits */
status thrift_get_binary(thrift *t, const thrift_field *f, const char **bytes, size_t *n);

/* Opens a list of this type; the caller then reads *n elements.  A struct as an element starts with
 * its first field; so does a struct as a field, which thrift_check_struct checks. */
status thrift_open_list(thrift *t, const thrift_field *f, thrift_type element, uint64_t *n);
status thrift_check_struct(const thrift *t, const thrift_field *f);

/* Skips the value of a field. */
status thrift_skip(thrift *t, const thrift_field *f);

#endif
