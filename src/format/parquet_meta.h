/* Parquet metadata: the footer of a file, its schema, and where the wanted columns are.
 *
 * parquet_file_open reads and checks the footer; parquet_find_column finds a column and says what
 * is in it; parquet_read_groups lists, for the wanted columns, the byte range of every row group.
 * All numbers of a footer are checked here against the size of the file, so that the page reader
 * can trust ranges, though not what is in them.  What we do not read (encryption, structs, maps,
 * lists of lists, decimals) is refused with the names of column and file.  One thread. */
#pragma once

#include "base/base.h"

/* The Thrift compact protocol, read strictly: footers and page headers of Parquet files.
 *
 * A reader is a view of bytes; nothing is allocated and nothing is copied.  Every length and every
 * nesting in it is hostile: a value never reaches past the end, and unknown fields are skipped up
 * to a limited depth.  One thread at a time per reader. */
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

/* A field of a struct that is wanted, by its number, and what goes where in the C struct that
 * thrift_read fills.  A table of them ends with {0}. */
enum { THRIFT_ANY = -1 };
typedef enum {
    WANT_END = 0,
    WANT_ID,     /* int32_t: the field's number, for unions */
    WANT_SEEN,   /* bool: the field is there */
    WANT_BOOL,   /* bool */
    WANT_I32,    /* int32_t: a number of any width that fits */
    WANT_I64,    /* int64_t: a number of any width */
    WANT_BYTES,  /* thrift_bytes */
    WANT_STRUCT, /* a struct, whose wanted fields go to the same C struct */
    WANT_LIST    /* a list of structs: `each` reads element i of n, with thrift_read */
} want_kind;

typedef struct thrift_bytes {
    const char *at; /* a view */
    size_t n;
} thrift_bytes;

typedef struct thrift_want {
    int32_t id; /* THRIFT_ANY: of every field */
    want_kind kind;
    size_t at;
    const struct thrift_want *fields;
    status (*each)(void *to, thrift *t, uint64_t i, uint64_t n);
} thrift_want;
#define WANT(id, kind, type, member)                                                               \
    { id, WANT_##kind, offsetof(type, member), NULL, NULL }

/* Reads a struct from its first field to its end; what is not wanted is skipped. */
status thrift_read(thrift *t, const thrift_want *wants, void *to);

/* Numbers as in the format's definition. */
typedef enum {
    PARQUET_BOOLEAN = 0,
    PARQUET_INT32,
    PARQUET_INT64,
    PARQUET_INT96,
    PARQUET_FLOAT,
    PARQUET_DOUBLE,
    PARQUET_BYTE_ARRAY,
    PARQUET_FIXED
} parquet_type;

typedef enum {
    PARQUET_UNCOMPRESSED = 0,
    PARQUET_SNAPPY,
    PARQUET_GZIP,
    PARQUET_LZO,
    PARQUET_BROTLI,
    PARQUET_LZ4,
    PARQUET_ZSTD,
    PARQUET_LZ4_RAW
} parquet_codec;

/* What the values mean, as far as it matters here. */
typedef enum {
    MEANS_PLAIN = 0, /* what the type says */
    MEANS_TEXT,
    MEANS_UNSIGNED,
    MEANS_DATE,
    MEANS_MILLISECONDS, /* since 1970, as the next two */
    MEANS_MICROSECONDS,
    MEANS_NANOSECONDS,
    MEANS_UUID,
    MEANS_DECIMAL, /* from here on refused */
    MEANS_TIME_OF_DAY,
    MEANS_OTHER /* intervals, half floats, BSON, ... */
} parquet_meaning;

enum { PARQUET_NAME_BYTES = 64, PARQUET_VALUE_BYTES = 1 << 16 };

/* A column: one leaf of the schema. */
typedef struct parquet_column {
    char name[PARQUET_NAME_BYTES]; /* for messages: cut and cleaned */
    uint32_t leaf;                 /* its number among all leaves */
    parquet_type type;
    uint32_t fixed_bytes; /* of PARQUET_FIXED */
    parquet_meaning meaning;
    bool is_local;      /* a time without a zone */
    uint8_t max_repeat; /* 1: a list in each row */
    uint8_t max_define; /* at this definition level a value is there, below it is null or nothing */
    uint8_t element_define; /* from this level on a list has an element here */
} parquet_column;

/* Where one column of one row group is. */
typedef struct parquet_chunk {
    parquet_codec codec;
    uint64_t begin, end; /* bytes of the file: the dictionary page, if any, and the data pages */
    uint64_t n_values;   /* nulls and empty lists included */
} parquet_chunk;

/* One entry of the schema, a tree in depth-first order; the name is a view of the footer. */
typedef struct schema_element {
    thrift_bytes name;
    uint32_t n_children;
    int32_t type;        /* parquet_type; -1: a group */
    int32_t fixed_bytes; /* of PARQUET_FIXED */
    uint32_t first_leaf; /* of a top-level column */
    uint8_t repetition;  /* required, optional, repeated */
    bool is_list, is_map;
    bool is_local; /* a timestamp that is not in UTC */
    parquet_meaning meaning;
} schema_element;

typedef struct parquet_file {
    const char *path; /* the caller's */
    int fd;
    uint64_t data_bytes; /* where the footer begins */
    char *footer;        /* (footer_bytes) */
    size_t footer_bytes;
    schema_element *schema; /* (n_elements), views of the footer */
    size_t n_elements, element_capacity;
    const schema_element **column; /* (schema[0].n_children): the top-level ones */
    uint32_t n_leaves;
    int64_t n_rows;
    bool is_encrypted;
} parquet_file;

/* Opens a file and reads its footer and schema.  On failure nothing is left open. */
status parquet_file_open(parquet_file *f, const char *path);
void parquet_file_close(parquet_file *f); /* fine after a failed open, and for {.fd = -1} */

/* Reads exactly n bytes; the caller has checked that the range lies in the file.  Any thread. */
status parquet_read_at(const parquet_file *f, uint64_t offset, void *out, size_t n);

/* The top-level column of this name (exactly, else ignoring case) or number from 1.  *is_found =
 * false if there is none. */
status parquet_find_column(const parquet_file *f, const char *wanted, parquet_column *out,
                           bool *is_found);

/* Appends the names of the columns to a message, as "a, b, c". */
void parquet_list_names(const parquet_file *f, char *out, size_t size);

/* The names of the top-level columns, as texts in memory of the arena. */
status parquet_get_names(const parquet_file *f, arena *memory, const char ***out, int *n);

/* One row group: chunk[i] is that of columns[i]. */
typedef struct parquet_group {
    uint64_t n_rows, first_row;
    const parquet_chunk *chunk; /* (n_columns) */
} parquet_group;

/* Calls fn for each row group with rows. */
typedef status (*parquet_group_fn)(void *ctx, const parquet_group *g);
enum { PARQUET_MAX_WANTED = 8 };
status parquet_read_groups(const parquet_file *f, const parquet_column *columns, int n_columns,
                           parquet_group_fn fn, void *ctx);

const char *parquet_type_name(parquet_type type);
