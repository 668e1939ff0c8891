/* Pages: headers, bounds, checksums, decompression; and batches of entries: the dictionary, levels
 * and values of a chunk's pages. */
#include "format/parquet_page.h"

#ifdef HSTU_HAS_SNAPPY
#include <snappy-c.h>
#endif
#ifdef HSTU_HAS_ZSTD
#include <zstd.h>
#endif
#ifdef HSTU_HAS_ZLIB
#include <zlib.h>
#endif

static status damaged(const char *codec) {
    return fail(ERR_FORMAT, "the %s data of a page is damaged or has another size than it says",
                codec);
}

static status lacks(const char *codec, const char *package) {
    return fail(
        ERR_UNSUPPORTED,
        "it is compressed by %s, which this build cannot read; install %s and make again, or "
        "write the file with another compression",
        codec, package);
}

/* ERR_UNSUPPORTED with what to install, if this build lacks the library. */
static status codec_check(parquet_codec codec) {
#ifndef HSTU_HAS_SNAPPY
    if (codec == PARQUET_SNAPPY) return lacks("SNAPPY", "libsnappy-dev");
#endif
#ifndef HSTU_HAS_ZSTD
    if (codec == PARQUET_ZSTD) return lacks("ZSTD", "libzstd-dev");
#endif
#ifndef HSTU_HAS_ZLIB
    if (codec == PARQUET_GZIP) return lacks("GZIP", "zlib1g-dev");
#endif
    (void)codec, (void)lacks, (void)damaged; /* a build may need none of them */
    return OK;
}

#ifdef HSTU_HAS_SNAPPY
static status from_snappy(const void *bytes, size_t n, void *out, size_t out_bytes) {
    size_t length;
    /* The library trusts that the room is as large as the data says. */
    if (snappy_uncompressed_length(bytes, n, &length) != SNAPPY_OK || length != out_bytes ||
        snappy_uncompress(bytes, n, out, &length) != SNAPPY_OK)
        return damaged("SNAPPY");
    return OK;
}
#endif

#ifdef HSTU_HAS_ZSTD
static status from_zstd(codec_state *s, const void *bytes, size_t n, void *out, size_t out_bytes) {
    if (s->zstd == NULL) s->zstd = ZSTD_createDCtx();
    if (s->zstd == NULL) return fail(ERR_NOMEM, "no memory for a ZSTD decompressor");
    size_t got = ZSTD_decompressDCtx(s->zstd, out, out_bytes, bytes, n);
    return ZSTD_isError(got) || got != out_bytes ? damaged("ZSTD") : OK;
}
#endif

#ifdef HSTU_HAS_ZLIB
/* Gzip data may have several members, one after the other. */
static status from_gzip(const void *bytes, size_t n, void *out, size_t out_bytes) {
    z_stream z = {.next_in = (Bytef *)(uintptr_t)bytes, .next_out = out};
    if (n > UINT_MAX || out_bytes > UINT_MAX) return damaged("GZIP");
    z.avail_in = (uInt)n;
    z.avail_out = (uInt)out_bytes;
    if (inflateInit2(&z, MAX_WBITS + 32) != Z_OK)
        return fail(ERR_NOMEM, "no memory for a GZIP decompressor");
    int code = inflate(&z, Z_FINISH);
    while (code == Z_STREAM_END && z.avail_in > 0 && inflateReset(&z) == Z_OK)
        code = inflate(&z, Z_FINISH);
    bool is_whole = code == Z_STREAM_END && z.avail_out == 0;
    inflateEnd(&z);
    return is_whole ? OK : damaged("GZIP");
}
#endif

/* Decompresses n bytes to exactly out_bytes. */
static status codec_decompress(codec_state *s, parquet_codec codec, const void *bytes, size_t n,
                               void *out, size_t out_bytes) {
#ifdef HSTU_HAS_SNAPPY
    if (codec == PARQUET_SNAPPY) return from_snappy(bytes, n, out, out_bytes);
#endif
#ifdef HSTU_HAS_ZSTD
    if (codec == PARQUET_ZSTD) return from_zstd(s, bytes, n, out, out_bytes);
#endif
#ifdef HSTU_HAS_ZLIB
    if (codec == PARQUET_GZIP) return from_gzip(bytes, n, out, out_bytes);
#endif
    if (codec != PARQUET_UNCOMPRESSED) return codec_check(codec);
    if (n != out_bytes)
        return fail(ERR_FORMAT, "an uncompressed page of %zu bytes says it has %zu", n, out_bytes);
    if (n > 0) memcpy(out, bytes, n);
    return OK;
}

static void codec_state_fini(codec_state *s) {
#ifdef HSTU_HAS_ZSTD
    ZSTD_freeDCtx(s->zstd);
#endif
    s->zstd = NULL;
}

/* A header holds statistics, with values of any length. */
enum { READ_AHEAD = 256 << 10, MAX_HEADER_BYTES = 16 << 20 };

typedef struct page_header {
    int32_t kind, page_bytes, stored_bytes, crc;
    bool has_crc, is_compressed;
    int32_t content; /* the number of the field that has it */
    int32_t n_values, n_nulls, encoding, define_encoding, repeat_encoding;
    int32_t define_bytes, repeat_bytes;
} page_header;

static void page_source_open(page_source *s, const parquet_file *file, const parquet_column *column,
                             const parquet_chunk *chunk) {
    s->file = file;
    s->column = column;
    s->chunk = chunk;
    s->at = chunk->begin;
    s->window_at = chunk->begin;
    s->window_bytes = 0;
    if (s->max_page_bytes == 0) s->max_page_bytes = PARQUET_MAX_PAGE_BYTES;
}

static void page_source_fini(page_source *s) {
    MEM_FREE(s->window, s->page);
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

static const thrift_want DATA[] = {WANT(1, I32, page_header, n_values),
                                   WANT(2, I32, page_header, encoding),
                                   WANT(3, I32, page_header, define_encoding),
                                   WANT(4, I32, page_header, repeat_encoding),
                                   {0}};
static const thrift_want DICTIONARY[] = {
    WANT(1, I32, page_header, n_values), WANT(2, I32, page_header, encoding), {0}};
static const thrift_want DATA_V2[] = {WANT(1, I32, page_header, n_values),
                                      WANT(2, I32, page_header, n_nulls),
                                      WANT(4, I32, page_header, encoding),
                                      WANT(5, I32, page_header, define_bytes),
                                      WANT(6, I32, page_header, repeat_bytes),
                                      WANT(7, BOOL, page_header, is_compressed),
                                      {0}};
static const thrift_want HEADER[] = {
    WANT(1, I32, page_header, kind),         WANT(2, I32, page_header, page_bytes),
    WANT(3, I32, page_header, stored_bytes), WANT(4, SEEN, page_header, has_crc),
    WANT(4, I32, page_header, crc),          WANT(5, ID, page_header, content),
    {5, WANT_STRUCT, 0, DATA, NULL},         WANT(7, ID, page_header, content),
    {7, WANT_STRUCT, 0, DICTIONARY, NULL},   WANT(8, ID, page_header, content),
    {8, WANT_STRUCT, 0, DATA_V2, NULL},      {0}};
/* By page_kind. */
static const int32_t CONTENTS[] = {5, -1, 7, 8};

/* Reads a header of unknown length: with more bytes for as long as it seems cut off. */
static status take_header(page_source *s, page_header *h) {
    for (size_t n = 1;; n *= 8) {
        TRY(need(s, n));
        thrift t = {.at = window_start(s), .end = window_start(s) + window_left(s)};
        *h = (page_header){.kind = -1,
                           .page_bytes = -1,
                           .stored_bytes = -1,
                           .is_compressed = true,
                           .n_values = -1,
                           .encoding = -1,
                           .define_encoding = ENCODING_RLE,
                           .repeat_encoding = ENCODING_RLE};
        status st = thrift_read(&t, HEADER, h);
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
    if (h->kind < PAGE_DATA || h->kind > PAGE_DATA_V2 || h->content != CONTENTS[h->kind] ||
        h->n_values < 0)
        return fail(ERR_FORMAT, "a page of kind %d with %d values", (int)h->kind, (int)h->n_values);
    /* parquet-java and fastparquet name BIT_PACKED where a column has no such levels at all. */
    bool has_old_define = h->define_encoding != ENCODING_RLE && s->column->max_define > 0;
    bool has_old_repeat = h->repeat_encoding != ENCODING_RLE && s->column->max_repeat > 0;
    if (has_old_define || has_old_repeat)
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

/* The next page; its bytes are valid until the next call.  A chunk that ends instead is
 * ERR_FORMAT. */
static status page_source_next(page_source *s, parquet_page *out) {
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

typedef enum { KIND_INTS, KIND_DOUBLES, KIND_TEXTS } value_kind;

static value_kind kind_of(const parquet_column *c) {
    if (c->type == PARQUET_FLOAT || c->type == PARQUET_DOUBLE) return KIND_DOUBLES;
    return c->type == PARQUET_BYTE_ARRAY || c->type == PARQUET_FIXED ? KIND_TEXTS : KIND_INTS;
}

status parquet_reader_init(parquet_reader *r) {
    *r = (parquet_reader){0};
    parquet_values_init(&r->values);
    TRY(MEM_NEW_RAW(&r->batch_repeat, PARQUET_BATCH));
    TRY(MEM_NEW_RAW(&r->batch_define, PARQUET_BATCH));
    TRY(MEM_NEW_RAW(&r->batch_index, PARQUET_BATCH));
    TRY(MEM_NEW_RAW(&r->batch.ints, PARQUET_BATCH));
    TRY(MEM_NEW_RAW(&r->batch.doubles, PARQUET_BATCH));
    return MEM_NEW_RAW(&r->batch.texts, PARQUET_BATCH);
}

void parquet_reader_fini(parquet_reader *r) {
    void *const blocks[] = {r->batch_repeat,          r->batch_define,
                            r->batch_index,           r->batch.ints,
                            r->batch.doubles,         r->batch.texts,
                            r->dictionary.data.ints,  r->dictionary.data.doubles,
                            r->dictionary.data.texts, r->dictionary.page};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        mem_free(blocks[i]);
    parquet_values_fini(&r->values);
    page_source_fini(&r->source);
    *r = (parquet_reader){0};
}

status parquet_reader_open(parquet_reader *r, const parquet_file *file,
                           const parquet_column *column, const parquet_chunk *chunk) {
    page_source_open(&r->source, file, column, chunk);
    r->column = column;
    r->n_left = chunk->n_values;
    r->page_left = 0;
    r->dictionary.is_there = false;
    r->dictionary.n = 0;
    status st = codec_check(chunk->codec);
    return st == OK ? OK : fail_prefix(st, "%s: column '%s'", file->path, column->name);
}

static status take_values(parquet_reader *r, size_t n, parquet_data *out) {
    switch (kind_of(r->column)) {
    case KIND_DOUBLES:
        return parquet_values_doubles(&r->values, n, out->doubles);
    case KIND_TEXTS:
        return parquet_values_texts(&r->values, n, out->texts);
    default:
        return parquet_values_ints(&r->values, n, out->ints);
    }
}

/* Strings are views of the page: they need a copy of it, as the next page takes its place. */
static status keep_page(parquet_dictionary *d, const parquet_page *page) {
    if (page->n_bytes > d->page_capacity) {
        TRY(MEM_RESIZE(&d->page, page->n_bytes));
        d->page_capacity = page->n_bytes;
    }
    if (page->n_bytes > 0) memcpy(d->page, page->bytes, page->n_bytes);
    return OK;
}

static status reserve_dictionary(parquet_dictionary *d, value_kind kind, size_t n) {
    if (kind == KIND_INTS) return MEM_RESERVE(&d->data.ints, &d->int_capacity, n);
    if (kind == KIND_DOUBLES) return MEM_RESERVE(&d->data.doubles, &d->double_capacity, n);
    return MEM_RESERVE(&d->data.texts, &d->text_capacity, n);
}

static status read_dictionary(parquet_reader *r, const parquet_page *page) {
    parquet_dictionary *d = &r->dictionary;
    size_t n = (size_t)page->n_values;
    if (d->is_there || r->n_left != r->source.chunk->n_values)
        return fail(ERR_FORMAT, "a dictionary that is not the first page");
    if (page->encoding != ENCODING_PLAIN && page->encoding != ENCODING_PLAIN_DICTIONARY)
        return fail(ERR_UNSUPPORTED, "a dictionary in encoding %d is not read", page->encoding);
    /* Every value but a boolean has four bytes or more, a fixed one at least one. */
    size_t smallest = r->column->type == PARQUET_FIXED ? r->column->fixed_bytes : 4;
    if (r->column->type == PARQUET_BOOLEAN || n > page->n_bytes / smallest)
        return fail(ERR_FORMAT, "a dictionary of %zu values in %zu bytes", n, page->n_bytes);
    TRY(reserve_dictionary(d, kind_of(r->column), n));
    const unsigned char *bytes = page->bytes;
    if (kind_of(r->column) == KIND_TEXTS) {
        TRY(keep_page(d, page));
        bytes = (unsigned char *)d->page;
    }
    TRY(parquet_values_begin(&r->values, r->column, ENCODING_PLAIN, bytes, page->n_bytes));
    TRY(take_values(r, n, &d->data));
    d->n = (uint32_t)n;
    d->is_there = true;
    return OK;
}

/* Opens one kind of levels.  V1 has their length in front, V2 in the header. */
static status open_levels(hybrid *h, const parquet_page *page, uint8_t max, uint32_t v2_bytes,
                          size_t *at) {
    uint32_t n = v2_bytes;
    size_t left = page->n_bytes - *at;
    if (page->kind == PAGE_DATA) {
        if (max == 0) return hybrid_init(h, page->bytes, 0, 0);
        if (left < 4) return fail(ERR_FORMAT, "a page ends before its levels");
        n = (uint32_t)read_little(page->bytes + *at, 4);
        *at += 4;
        left -= 4;
    }
    if (n > left) return fail(ERR_FORMAT, "a page ends in its levels");
    TRY(hybrid_init(h, page->bytes + *at, n, max > 1 ? 2 : max));
    *at += n;
    return OK;
}

static status open_data(parquet_reader *r, const parquet_page *page) {
    const parquet_column *c = r->column;
    size_t at = 0;
    if ((uint64_t)page->n_values > r->n_left)
        return fail(ERR_FORMAT, "a page of %d values, but the column has only %llu left",
                    (int)page->n_values, (unsigned long long)r->n_left);
    TRY(open_levels(&r->repeat, page, c->max_repeat, page->repeat_bytes, &at));
    TRY(open_levels(&r->define, page, c->max_define, page->define_bytes, &at));
    if (parquet_is_dictionary((parquet_encoding)page->encoding) && !r->dictionary.is_there)
        return fail(ERR_FORMAT, "a page needs a dictionary that is not there");
    r->page_left = (size_t)page->n_values;
    r->page_nulls = page->kind == PAGE_DATA_V2 ? page->n_nulls : -1;
    return parquet_values_begin(&r->values, c, page->encoding, page->bytes + at,
                                page->n_bytes - at);
}

static status open_page(parquet_reader *r) {
    parquet_page page;
    while (r->page_left == 0) {
        TRY(page_source_next(&r->source, &page));
        TRY(page.kind == PAGE_DICTIONARY ? read_dictionary(r, &page) : open_data(r, &page));
    }
    return OK;
}

/* Definition levels of the next entries.  A long run of values that are all there, the usual case,
 * is skipped, and the batch ends with it. */
static status take_define(parquet_reader *r, parquet_batch *b) {
    const parquet_column *c = r->column;
    size_t n_skipped = 0;
    b->n_values = b->n;
    if (c->max_define == 0) return OK;
    if (c->max_repeat == 0) TRY(hybrid_skip_equal(&r->define, c->max_define, b->n, &n_skipped));
    if (n_skipped > 0) {
        b->n = b->n_values = n_skipped;
        return OK;
    }
    TRY(hybrid_take(&r->define, b->n, r->batch_define));
    b->define = r->batch_define;
    b->n_values = 0;
    for (size_t i = 0; i < b->n; i++) {
        if (r->batch_define[i] > c->max_define)
            return fail(ERR_FORMAT, "a definition level of %u, above %d", r->batch_define[i],
                        c->max_define);
        b->n_values += r->batch_define[i] == c->max_define;
    }
    return OK;
}

static status count_nulls(parquet_reader *r, const parquet_batch *b) {
    if (r->page_nulls < 0) return OK;
    int64_t n = (int64_t)(b->n - b->n_values);
    bool is_last = r->page_left == b->n;
    if (n > r->page_nulls || (is_last && n != r->page_nulls))
        return fail(ERR_FORMAT, "a page has more or fewer nulls than it says");
    r->page_nulls -= n;
    return OK;
}

static status take_batch(parquet_reader *r, size_t max_entries, parquet_batch *b) {
    *b = (parquet_batch){.data = r->batch};
    TRY(open_page(r));
    size_t limit =
        r->values.encoding == ENCODING_DELTA_BYTE_ARRAY ? PARQUET_TEXT_BATCH : PARQUET_BATCH;
    if (limit > max_entries) limit = max_entries;
    b->n = r->page_left < limit ? r->page_left : limit;
    if (r->column->max_repeat > 0) {
        TRY(hybrid_take(&r->repeat, b->n, r->batch_repeat));
        b->repeat = r->batch_repeat;
    }
    TRY(take_define(r, b));
    TRY(count_nulls(r, b));
    r->page_left -= b->n;
    r->n_left -= b->n;
    if (!parquet_is_dictionary(r->values.encoding)) return take_values(r, b->n_values, &r->batch);
    b->index = r->batch_index;
    return parquet_values_indices(&r->values, b->n_values, r->dictionary.n, r->batch_index);
}

status parquet_reader_next(parquet_reader *r, size_t max_entries, parquet_batch *out) {
    status st = take_batch(r, max_entries, out);
    if (st == OK || st == ERR_NOMEM) return st;
    return fail_prefix(st, "%s: column '%s', before byte %llu", r->source.file->path,
                       r->column->name, (unsigned long long)r->source.at);
}
