/* Batches of entries: the dictionary, levels, and values of a chunk's pages. */
#include <string.h>

#include "base/mem.h"
#include "format/parquet_page.h"

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
    page_source_open(&r->source, file, chunk);
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
        const unsigned char *p = page->bytes + *at;
        n = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
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
