/* A column chunk, read page by page: headers, checksums, decompression, the dictionary, levels.
 *
 * Memory: one page compressed and one decompressed, the dictionary, and one batch of values,
 * whatever the size of the chunk.  A reader is made once and reused for chunk after chunk.  One
 * thread at a time. */
#pragma once

#include "format/parquet_decode.h"
#include "format/parquet_meta.h"

/* Decompression of Parquet pages: SNAPPY, ZSTD and GZIP, each through its library where the build
 * has it.  The size of the result is known beforehand and never exceeded.  One thread at a time per
 * state. */
typedef struct codec_state {
    void *zstd; /* a ZSTD_DCtx, created with the first page */
} codec_state;

enum { PARQUET_BATCH = 4096, PARQUET_MAX_PAGE_BYTES = 256 << 20 };

/* One page: what its header says, and its bytes, levels included, decompressed. */
typedef enum { PAGE_DATA = 0, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_V2 } page_kind;

typedef struct parquet_page {
    page_kind kind;
    int32_t n_values, n_nulls; /* nulls: of PAGE_DATA_V2 */
    int encoding;
    uint32_t repeat_bytes, define_bytes; /* of PAGE_DATA_V2: levels in front, never compressed */
    const unsigned char *bytes;
    size_t n_bytes;
} parquet_page;

/* The pages of a chunk, one after the other. */
typedef struct page_source {
    const parquet_file *file;
    const parquet_column *column;
    const parquet_chunk *chunk;
    size_t max_page_bytes; /* PARQUET_MAX_PAGE_BYTES; tests set less */
    uint64_t at;           /* of the next page, in the file */
    unsigned char *window; /* (window_bytes): the file from window_at on */
    size_t window_bytes, window_capacity;
    uint64_t window_at;
    unsigned char *page; /* (page_capacity), decompressed */
    size_t page_capacity;
    codec_state codec;
} page_source;

/* Values of one kind: integers, floating point or strings. */
typedef struct parquet_data {
    int64_t *ints;
    double *doubles;
    parquet_text *texts;
} parquet_data;

/* The next entries of a column: values, nulls, and empty lists, all from one page. */
typedef struct parquet_batch {
    size_t n;               /* entries, at most PARQUET_BATCH */
    const uint32_t *repeat; /* (n): 0 begins a row; NULL: each does */
    const uint32_t
        *define; /* (n): the column's max_define where there is a value; NULL: each has */
    size_t n_values;
    const uint32_t *index; /* (n_values) into the dictionary, or NULL: */
    parquet_data data;     /* (n_values) */
} parquet_batch;

/* A dictionary; the texts are views of its own copy of the page. */
typedef struct parquet_dictionary {
    parquet_data data; /* (n) */
    uint32_t n;
    bool is_there;
    size_t int_capacity, double_capacity, text_capacity;
    char *page;
    size_t page_capacity;
} parquet_dictionary;

typedef struct parquet_reader {
    const parquet_column *column;
    uint64_t n_left; /* entries of the chunk not read yet */

    page_source source;

    size_t page_left;   /* entries of the page not read yet */
    int64_t page_nulls; /* entries without a value that are still to come; -1: not known */
    hybrid repeat, define;
    parquet_values values;
    parquet_dictionary dictionary;
    uint32_t *batch_repeat, *batch_define, *batch_index; /* (PARQUET_BATCH) */
    parquet_data batch;                                  /* (PARQUET_BATCH) */
} parquet_reader;

status parquet_reader_init(parquet_reader *r);
void parquet_reader_fini(parquet_reader *r); /* fine after a failed init */

/* Starts a chunk; file, column and chunk must outlive its reading. */
status parquet_reader_open(parquet_reader *r, const parquet_file *file,
                           const parquet_column *column, const parquet_chunk *chunk);

/* The next entries, at most max_entries and at least one; there must be some left. */
status parquet_reader_next(parquet_reader *r, size_t max_entries, parquet_batch *out);
