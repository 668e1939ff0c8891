/* Pages: headers, bounds, checksums, decompression. */
#include "format/parquet_page.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "format/parquet_thrift.h"

/* A header holds statistics, with values of any length. */
enum { READ_AHEAD = 256 << 10, MAX_HEADER_BYTES = 16 << 20 };

typedef struct page_header {
    int32_t kind, page_bytes, stored_bytes, crc;
    bool has_crc, has_content, is_compressed;
    int32_t n_values, n_nulls, encoding, define_encoding, repeat_encoding;
    int32_t define_bytes, repeat_bytes;
} page_header;

void page_source_open(page_source *s, const parquet_file *file, const parquet_chunk *chunk) {
    s->file = file;
    s->chunk = chunk;
    s->at = chunk->begin;
    s->window_at = chunk->begin;
    s->window_bytes = 0;
    if (s->max_page_bytes == 0) s->max_page_bytes = PARQUET_MAX_PAGE_BYTES;
}

void page_source_fini(page_source *s) {
    mem_free(s->window);
    mem_free(s->page);
    codec_state_fini(&s->codec);
    *s = (page_source){0};
}

/* Brings n bytes at s->at into the window, or as many as the chunk has. */
static status need(page_source *s, size_t n) {
    uint64_t left = s->chunk->end - s->at;
    if (n > left) n = (size_t)left;
    size_t kept = 0;
    if (s->at >= s->window_at && s->at - s->window_at < s->window_bytes)
        kept = s->window_bytes - (size_t)(s->at - s->window_at);
    if (kept >= n && kept > 0) return OK;
    size_t wanted = n > READ_AHEAD ? n : READ_AHEAD;
    if (wanted > left) wanted = (size_t)left;
    if (kept > 0) memmove(s->window, s->window + (s->at - s->window_at), kept);
    s->window_at = s->at;
    s->window_bytes = kept;
    if (wanted > s->window_capacity) {
        TRY(MEM_RESIZE(&s->window, wanted));
        s->window_capacity = wanted;
    }
    TRY(parquet_read_at(s->file, s->at + kept, s->window + kept, wanted - kept));
    s->window_bytes = wanted;
    return OK;
}

static unsigned char *window_start(const page_source *s) {
    return s->window + (s->at - s->window_at);
}

static size_t window_left(const page_source *s) {
    return s->window_bytes - (size_t)(s->at - s->window_at);
}

/* DataPageHeader, DictionaryPageHeader and DataPageHeaderV2 differ in the numbers of their fields.
 */
static status read_content(thrift *t, const thrift_field *field, page_header *h) {
    thrift_field f = {0};
    bool is_v2 = field->id == 8, is_dictionary = field->id == 7;
    TRY(thrift_check_struct(t, field));
    h->has_content = h->kind == (is_v2           ? PAGE_DATA_V2
                                 : is_dictionary ? PAGE_DICTIONARY
                                                 : PAGE_DATA);
    for (;;) {
        TRY(thrift_next_field(t, &f));
        if (f.type == THRIFT_STOP) return OK;
        int32_t *to = NULL;
        if (f.id == 1)
            to = &h->n_values;
        else if (f.id == (is_v2 ? 4 : 2))
            to = &h->encoding;
        else if (f.id == 2 && is_v2)
            to = &h->n_nulls;
        else if (f.id == 3 && !is_v2 && !is_dictionary)
            to = &h->define_encoding;
        else if (f.id == 4 && !is_v2)
            to = &h->repeat_encoding;
        else if (f.id == 5 && is_v2)
            to = &h->define_bytes;
        else if (f.id == 6 && is_v2)
            to = &h->repeat_bytes;
        if (f.id == 7 && is_v2)
            TRY(thrift_get_bool(t, &f, &h->is_compressed));
        else
            TRY(to != NULL ? thrift_get_i32(t, &f, to) : thrift_skip(t, &f));
    }
}

static status read_header(thrift *t, page_header *h) {
    thrift_field f = {0};
    *h = (page_header){.kind = -1,
                       .page_bytes = -1,
                       .stored_bytes = -1,
                       .is_compressed = true,
                       .n_values = -1,
                       .encoding = -1,
                       .define_encoding = ENCODING_RLE,
                       .repeat_encoding = ENCODING_RLE};
    for (;;) {
        TRY(thrift_next_field(t, &f));
        if (f.type == THRIFT_STOP) return OK;
        h->has_crc |= f.id == 4;
        int32_t *to = f.id == 1   ? &h->kind
                      : f.id == 2 ? &h->page_bytes
                      : f.id == 3 ? &h->stored_bytes
                      : f.id == 4 ? &h->crc
                                  : NULL;
        if (to != NULL)
            TRY(thrift_get_i32(t, &f, to));
        else if (f.id == 5 || f.id == 7 || f.id == 8)
            TRY(read_content(t, &f, h));
        else
            TRY(thrift_skip(t, &f));
    }
}

/* Reads a header of unknown length: with more bytes for as long as it seems cut off. */
static status take_header(page_source *s, page_header *h) {
    for (size_t n = 1;; n *= 8) {
        TRY(need(s, n));
        thrift t = {.at = window_start(s), .end = window_start(s) + window_left(s)};
        status st = read_header(&t, h);
        if (st == OK) {
            s->at += (size_t)(t.at - window_start(s));
            return OK;
        }
        bool has_more = window_left(s) < s->chunk->end - s->at;
        if (!t.is_short || !has_more || n >= MAX_HEADER_BYTES)
            return fail_prefix(st, "a page header");
        if (n < window_left(s)) n = window_left(s);
    }
}

static status check_header(const page_source *s, const page_header *h) {
    if (h->page_bytes < 0 || h->stored_bytes < 0 ||
        (uint64_t)h->stored_bytes > s->chunk->end - s->at)
        return fail(ERR_FORMAT, "a page claims %d bytes, %d stored; the column has %llu left",
                    (int)h->page_bytes, (int)h->stored_bytes,
                    (unsigned long long)(s->chunk->end - s->at));
    if ((size_t)h->page_bytes > s->max_page_bytes)
        return fail(ERR_UNSUPPORTED, "a page has %d bytes; at most %zu are read",
                    (int)h->page_bytes, s->max_page_bytes);
    if (h->kind == PAGE_INDEX) return OK;
    if (h->kind < PAGE_DATA || h->kind > PAGE_DATA_V2 || !h->has_content || h->n_values < 0)
        return fail(ERR_FORMAT, "a page of kind %d with %d values", (int)h->kind, (int)h->n_values);
    if (h->define_encoding != ENCODING_RLE || h->repeat_encoding != ENCODING_RLE)
        return fail(ERR_UNSUPPORTED, "levels in the old encoding BIT_PACKED are not read");
    if (h->define_bytes < 0 || h->repeat_bytes < 0 || h->n_nulls < 0 || h->n_nulls > h->n_values ||
        (int64_t)h->define_bytes + h->repeat_bytes > h->stored_bytes ||
        (int64_t)h->define_bytes + h->repeat_bytes > h->page_bytes)
        return fail(ERR_FORMAT, "a page with %d + %d bytes of levels and %d nulls in %d values",
                    (int)h->repeat_bytes, (int)h->define_bytes, (int)h->n_nulls, (int)h->n_values);
    return OK;
}

/* The levels of a V2 page are in front of the compressed data and never compressed themselves. */
static status decompress(page_source *s, const page_header *h, parquet_page *out) {
    size_t stored = (size_t)h->stored_bytes, n = (size_t)h->page_bytes;
    size_t levels = (size_t)h->define_bytes + (size_t)h->repeat_bytes;
    const unsigned char *bytes = window_start(s);
    if (s->chunk->codec == PARQUET_UNCOMPRESSED || !h->is_compressed) {
        if (stored != n)
            return fail(ERR_FORMAT, "an uncompressed page of %zu bytes says it has %zu", stored, n);
        out->bytes = bytes;
        return OK;
    }
    if (n > s->page_capacity || s->page == NULL) {
        TRY(MEM_RESIZE(&s->page, n));
        s->page_capacity = n;
    }
    out->bytes = s->page;
    if (levels > 0) memcpy(s->page, bytes, levels);
    if (n == levels) return OK;
    return codec_decompress(&s->codec, s->chunk->codec, bytes + levels, stored - levels,
                            s->page + levels, n - levels);
}

status page_source_next(page_source *s, parquet_page *out) {
    page_header h;
    do {
        if (s->at >= s->chunk->end)
            return fail(ERR_FORMAT, "the column ends before its last value");
        TRY(take_header(s, &h));
        TRY(check_header(s, &h));
        if (h.kind == PAGE_INDEX) s->at += (uint64_t)h.stored_bytes;
    } while (h.kind == PAGE_INDEX);
    *out = (parquet_page){.kind = (page_kind)h.kind,
                          .n_values = h.n_values,
                          .n_nulls = h.n_nulls,
                          .encoding = h.encoding,
                          .repeat_bytes = (uint32_t)h.repeat_bytes,
                          .define_bytes = (uint32_t)h.define_bytes,
                          .n_bytes = (size_t)h.page_bytes};
    TRY(need(s, (size_t)h.stored_bytes));
    if (h.has_crc && crc32_add(0, window_start(s), (size_t)h.stored_bytes) != (uint32_t)h.crc)
        return fail(ERR_FORMAT, "a page does not match its checksum: the file is damaged");
    TRY(decompress(s, &h, out));
    s->at += (uint64_t)h.stored_bytes;
    return OK;
}
