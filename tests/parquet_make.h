/* Parquet files by hand, for tests: a writer of single row groups that lets a test say anything in
 * footers and headers, true or not.  Small enough to be read beside the reader it checks. */
#ifndef HSTU_TESTS_PARQUET_MAKE_H
#define HSTU_TESTS_PARQUET_MAKE_H

#include "base/hash.h"
#include "base/text.h"
#include "format/parquet_decode.h"
#include "test.h"

/* Thrift compact. */
static inline void put_byte(buf *b, unsigned byte) {
    CHECK_OK(buf_char(b, (char)byte));
}

static inline void put_varint(buf *b, uint64_t u) {
    for (; u >= 0x80; u >>= 7)
        put_byte(b, (unsigned)(u & 0x7f) | 0x80);
    put_byte(b, (unsigned)u);
}

static inline void put_zigzag(buf *b, int64_t v) {
    put_varint(b, (uint64_t)v << 1 ^ (uint64_t)(v >> 63));
}

/* A field by the long form of its header, so that no state is needed. */
static inline void put_field(buf *b, int id, int type) {
    put_byte(b, (unsigned)type);
    put_zigzag(b, id);
}

static inline void put_i32(buf *b, int id, int64_t v) {
    put_field(b, id, 5);
    put_zigzag(b, v);
}

static inline void put_i64(buf *b, int id, int64_t v) {
    put_field(b, id, 6);
    put_zigzag(b, v);
}

static inline void put_text(buf *b, int id, const char *text) {
    put_field(b, id, 8);
    put_varint(b, strlen(text));
    CHECK_OK(buf_text(b, text));
}

static inline void put_list(buf *b, int id, int type, size_t n) {
    put_field(b, id, 9);
    put_byte(b, 0xf0u | (unsigned)type);
    put_varint(b, n);
}

/* Encodings. */
static inline void put_le(buf *b, uint64_t v, int n_bytes) {
    for (int i = 0; i < n_bytes; i++)
        put_byte(b, i < 8 ? (unsigned)(v >> (8 * i)) & 0xff : 0);
}

static inline void put_plain_text(buf *b, const char *text) {
    put_le(b, strlen(text), 4);
    CHECK_OK(buf_text(b, text));
}

static inline void put_run(buf *b, uint64_t n, uint32_t value, int width) {
    put_varint(b, n << 1);
    put_le(b, value, (width + 7) / 8);
}

/* A run of packed numbers, padded to a multiple of eight. */
static inline void put_packed(buf *b, const uint32_t *v, size_t n, int width) {
    size_t n_groups = (n + 7) / 8, bit = 0;
    put_varint(b, n_groups << 1 | 1);
    size_t start = b->n_bytes;
    for (size_t i = 0; i < n_groups * (size_t)width; i++)
        put_byte(b, 0);
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < width; k++, bit++)
            if (v[i] >> k & 1) b->data[start + bit / 8] |= (char)(1 << bit % 8);
}

/* DELTA_BINARY_PACKED: blocks of 128 in four miniblocks, each as wide as it needs. */
static inline void put_delta(buf *b, const int64_t *v, size_t n) {
    put_varint(b, 128);
    put_varint(b, 4);
    put_varint(b, n);
    put_zigzag(b, n > 0 ? v[0] : 0);
    for (size_t from = 1; from < n; from += 128) {
        size_t count = n - from < 128 ? n - from : 128;
        int64_t least = INT64_MAX;
        unsigned width[4] = {0};
        for (size_t i = from; i < from + count; i++) {
            int64_t d = (int64_t)((uint64_t)v[i] - (uint64_t)v[i - 1]);
            if (d < least) least = d;
        }
        for (size_t i = 0; i < count; i++) {
            uint64_t d = (uint64_t)v[from + i] - (uint64_t)v[from + i - 1] - (uint64_t)least;
            while (width[i / 32] < 64 && d >> width[i / 32] != 0)
                width[i / 32]++;
        }
        put_zigzag(b, least);
        for (int m = 0; m < 4; m++)
            put_byte(b, width[m]);
        for (size_t m = 0; m * 32 < count; m++) {
            size_t start = b->n_bytes, bit = 0;
            for (unsigned i = 0; i < 4 * width[m]; i++)
                put_byte(b, 0);
            for (size_t i = m * 32; i < count && i < m * 32 + 32; i++) {
                uint64_t d = (uint64_t)v[from + i] - (uint64_t)v[from + i - 1] - (uint64_t)least;
                for (unsigned k = 0; k < width[m]; k++, bit++)
                    if (d >> k & 1) b->data[start + bit / 8] |= (char)(1 << bit % 8);
            }
        }
    }
}

/* A column of the file being made. */
enum { MADE_REQUIRED = 0, MADE_OPTIONAL = 1, MADE_REPEATED = 2 };

typedef struct made_column {
    const char *name;
    int type, repetition, converted; /* converted: -1 none */
    int fixed_bytes;
    bool is_uuid;  /* by the newer annotation, the only one for it */
    bool is_local; /* by the newer annotation: a timestamp in microseconds, not in UTC */
    bool is_list;  /* three levels, all optional */
    int codec;
    int64_t n_values;
    buf pages;
    bool has_dictionary;
    int64_t data_at;      /* of the first data page in `pages` */
    int64_t claim_offset; /* added to the true offset, for wrong ones */
    int64_t claim_bytes;  /* added to the true size */
} made_column;

typedef struct made_page {
    int kind, n_values, encoding;            /* kind: 0 data, 2 dictionary, 3 data V2 */
    int n_nulls, repeat_bytes, define_bytes; /* V2 */
    int define_encoding, repeat_encoding;    /* V1; 0: RLE */
    int claim_bytes;                         /* added to the uncompressed size */
    bool has_crc, has_wrong_crc;
} made_page;

static inline void make_page(made_column *c, const made_page *p, const buf *payload) {
    buf *b = &c->pages;
    put_i32(b, 1, p->kind);
    put_i32(b, 2, (int64_t)payload->n_bytes + p->claim_bytes);
    put_i32(b, 3, (int64_t)payload->n_bytes);
    if (p->has_crc)
        put_i32(b, 4, (int32_t)(crc32_add(0, payload->data, payload->n_bytes) + p->has_wrong_crc));
    put_field(b, p->kind == 0 ? 5 : p->kind == 2 ? 7 : 8, 12);
    put_i32(b, 1, p->n_values);
    if (p->kind == 3) {
        put_i32(b, 2, p->n_nulls);
        put_i32(b, 3, p->n_values);
        put_i32(b, 4, p->encoding);
        put_i32(b, 5, p->define_bytes);
        put_i32(b, 6, p->repeat_bytes);
    } else {
        put_i32(b, 2, p->encoding);
        if (p->kind == 0) put_i32(b, 3, p->define_encoding != 0 ? p->define_encoding : 3);
        if (p->kind == 0) put_i32(b, 4, p->repeat_encoding != 0 ? p->repeat_encoding : 3);
    }
    put_byte(b, 0);
    put_byte(b, 0);
    CHECK_OK(buf_append(b, payload->data != NULL ? payload->data : "", payload->n_bytes));
    if (p->kind == 2) {
        c->has_dictionary = true;
        c->data_at = (int64_t)b->n_bytes;
    } else {
        c->n_values += p->n_values;
    }
}

static inline void put_element(buf *b, const char *name, int type, int repetition, int n_children,
                               int converted, int fixed_bytes, bool is_uuid, bool is_local) {
    if (type >= 0) put_i32(b, 1, type);
    if (fixed_bytes > 0) put_i32(b, 2, fixed_bytes);
    put_i32(b, 3, repetition);
    put_text(b, 4, name);
    if (n_children > 0) put_i32(b, 5, n_children);
    if (converted >= 0) put_i32(b, 6, converted);
    if (is_uuid) put_field(b, 10, 12), put_le(b, 0xec, 3);
    if (is_local) {
        put_field(b, 10, 12), put_field(b, 8, 12), put_field(b, 1, 2);
        put_field(b, 2, 12), put_field(b, 2, 12), put_le(b, 0, 4);
    }
    put_byte(b, 0);
}

static inline void put_schema(buf *b, const made_column *c, int n) {
    size_t n_elements = 1;
    for (int i = 0; i < n; i++)
        n_elements += c[i].is_list ? 3 : 1;
    put_list(b, 2, 12, n_elements);
    put_element(b, "root", -1, 0, n, -1, 0, false, false);
    for (int i = 0; i < n; i++) {
        if (c[i].is_list) {
            put_element(b, c[i].name, -1, MADE_OPTIONAL, 1, 3, 0, false, false);
            put_element(b, "list", -1, MADE_REPEATED, 1, -1, 0, false, false);
            put_element(b, "element", c[i].type, MADE_OPTIONAL, 0, c[i].converted, 0, false, false);
        } else {
            put_element(b, c[i].name, c[i].type, c[i].repetition, 0, c[i].converted,
                        c[i].fixed_bytes, c[i].is_uuid, c[i].is_local);
        }
    }
}

static inline void put_chunk(buf *b, const made_column *c, int64_t at) {
    put_i64(b, 2, 0);
    put_field(b, 3, 12);
    put_i32(b, 1, c->type);
    put_list(b, 2, 5, 1);
    put_zigzag(b, 0);
    put_list(b, 3, 8, 1);
    put_varint(b, strlen(c->name));
    CHECK_OK(buf_text(b, c->name));
    put_i32(b, 4, c->codec);
    put_i64(b, 5, c->n_values);
    put_i64(b, 6, (int64_t)c->pages.n_bytes);
    put_i64(b, 7, (int64_t)c->pages.n_bytes + c->claim_bytes);
    put_i64(b, 9, at + c->data_at + c->claim_offset);
    if (c->has_dictionary) put_i64(b, 11, at + c->claim_offset);
    put_byte(b, 0);
    put_byte(b, 0);
}

/* The whole file in `out`; n_rows in one row group.  The columns' pages are freed. */
static inline void make_file(buf *out, made_column *c, int n, int64_t n_rows) {
    buf footer = {0};
    int64_t at[8];
    *out = (buf){0};
    CHECK_OK(buf_text(out, "PAR1"));
    for (int i = 0; i < n; i++) {
        at[i] = (int64_t)out->n_bytes;
        CHECK_OK(buf_append(out, buf_str(&c[i].pages), c[i].pages.n_bytes));
    }
    put_i32(&footer, 1, 2);
    put_schema(&footer, c, n);
    put_i64(&footer, 3, n_rows);
    put_list(&footer, 4, 12, 1);
    put_list(&footer, 1, 12, (size_t)n);
    for (int i = 0; i < n; i++)
        put_chunk(&footer, &c[i], at[i]);
    put_i64(&footer, 2, 0);
    put_i64(&footer, 3, n_rows);
    put_byte(&footer, 0);
    put_byte(&footer, 0);
    CHECK_OK(buf_append(out, footer.data, footer.n_bytes));
    put_le(out, footer.n_bytes, 4);
    CHECK_OK(buf_text(out, "PAR1"));
    buf_fini(&footer);
    for (int i = 0; i < n; i++)
        buf_fini(&c[i].pages);
}

#endif
