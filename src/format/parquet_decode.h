/* The encodings of Parquet's values and levels: PLAIN, dictionary indices, RLE, the three DELTA
 * ones and BYTE_STREAM_SPLIT.
 *
 * A decoder is a view of a page's bytes that hands out the next n values, so that a page of any
 * number of values needs no array of its own.  The bytes are hostile: a decoder never reads past
 * their end, and asking for more values than there are is ERR_FORMAT.  One thread at a time. */
#pragma once

#include "format/parquet_meta.h"

/* Numbers as in the format's definition. */
typedef enum {
    ENCODING_PLAIN = 0,
    ENCODING_PLAIN_DICTIONARY = 2,
    ENCODING_RLE = 3,
    ENCODING_BIT_PACKED = 4,
    ENCODING_DELTA_BINARY_PACKED = 5,
    ENCODING_DELTA_LENGTH_BYTE_ARRAY = 6,
    ENCODING_DELTA_BYTE_ARRAY = 7,
    ENCODING_RLE_DICTIONARY = 8,
    ENCODING_BYTE_STREAM_SPLIT = 9
} parquet_encoding;

typedef struct parquet_text {
    const char *bytes;
    uint32_t n_bytes;
} parquet_text;

/* Runs of equal numbers and of packed ones in turn: levels, dictionary indices, booleans. */
typedef struct hybrid {
    const unsigned char *at, *end;
    unsigned width;    /* bits of a number, 0..32 */
    uint64_t n_equal;  /* left in a run of equal numbers */
    uint32_t value;    /* of that run */
    uint64_t n_packed; /* left in a run of packed ones */
    const unsigned char *packed;
    uint64_t packed_bit; /* where the next one begins, from `packed` */
} hybrid;

status hybrid_init(hybrid *h, const void *bytes, size_t n_bytes, unsigned width);
status hybrid_take(hybrid *h, size_t n, uint32_t *out);

/* *n_skipped = how many of the next n numbers are in one run of `value`, which are then skipped. */
status hybrid_skip_equal(hybrid *h, uint32_t value, size_t n, size_t *n_skipped);

/* DELTA_BINARY_PACKED: blocks of miniblocks, each with a width of its own. */
typedef struct delta {
    const unsigned char *at, *end;
    uint64_t n_left; /* values not handed out yet */
    uint64_t n_minis, values_per_mini;
    const unsigned char *widths; /* (n_minis) of the block */
    uint64_t mini;               /* next miniblock of the block */
    uint64_t n_in_mini;          /* left in the open one */
    const unsigned char *packed; /* the open one */
    uint64_t packed_bit;
    unsigned width;
    uint64_t min_delta, last;
    bool is_first;
} delta;

status delta_init(delta *d, const void *bytes, size_t n_bytes);
status delta_take(delta *d, size_t n, int64_t *out);

/* Skips all values; d->at is then the byte after them. */
status delta_skip(delta *d);

/* The values of one page. */
typedef struct parquet_values {
    const parquet_column *column;
    parquet_encoding encoding;
    const unsigned char *at, *end;
    hybrid runs;         /* dictionary indices, booleans */
    delta first, second; /* numbers or lengths; lengths of suffixes */
    uint64_t bit;        /* of plain booleans */
    size_t stride;       /* BYTE_STREAM_SPLIT: values in the page */
    buf joined;          /* DELTA_BYTE_ARRAY: the values handed out last, and the one before them */
    size_t previous, previous_bytes; /* its last value */
} parquet_values;

void parquet_values_init(parquet_values *v);
void parquet_values_fini(parquet_values *v);

/* Starts a page.  An encoding that does not fit the column's type is refused. */
status parquet_values_begin(parquet_values *v, const parquet_column *column, int encoding,
                            const void *bytes, size_t n_bytes);

/* The next n values, by the kind of the type: integers, INT96 (as nanoseconds since 1970) and
 * booleans; floating point; strings (views, valid until the next call).  At most
 * PARQUET_TEXT_BATCH strings a call where they are DELTA_BYTE_ARRAY. */
enum { PARQUET_TEXT_BATCH = 64 };
status parquet_values_ints(parquet_values *v, size_t n, int64_t *out);
status parquet_values_doubles(parquet_values *v, size_t n, double *out);
status parquet_values_texts(parquet_values *v, size_t n, parquet_text *out);

/* The next n places in the dictionary, each below n_dictionary; for the two dictionary encodings.
 */
status parquet_values_indices(parquet_values *v, size_t n, uint32_t n_dictionary, uint32_t *out);

static inline bool parquet_is_dictionary(parquet_encoding e) {
    return e == ENCODING_PLAIN_DICTIONARY || e == ENCODING_RLE_DICTIONARY;
}
