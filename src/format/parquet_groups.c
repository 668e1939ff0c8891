/* The row groups of a footer: where the chunks of the wanted columns are. */
#include <string.h>

#include "format/parquet_meta.h"
#include "format/parquet_thrift.h"

enum { MAGIC_BYTES = 4 };

/* What a footer says of a column chunk, before it is checked. */
typedef struct chunk_claims {
    int32_t type, codec;
    int64_t n_values, compressed_bytes, data_offset, dictionary_offset;
    bool has_meta, is_elsewhere, is_encrypted;
} chunk_claims;

static status read_chunk_meta(thrift *t, const thrift_field *field, chunk_claims *c) {
    thrift_field f = {0};
    TRY(thrift_check_struct(t, field));
    c->has_meta = true;
    for (;;) {
        TRY(thrift_next_field(t, &f));
        if (f.type == THRIFT_STOP) return OK;
        if (f.id == 1)
            TRY(thrift_get_i32(t, &f, &c->type));
        else if (f.id == 4)
            TRY(thrift_get_i32(t, &f, &c->codec));
        else if (f.id == 5)
            TRY(thrift_get_int(t, &f, &c->n_values));
        else if (f.id == 7)
            TRY(thrift_get_int(t, &f, &c->compressed_bytes));
        else if (f.id == 9)
            TRY(thrift_get_int(t, &f, &c->data_offset));
        else if (f.id == 11)
            TRY(thrift_get_int(t, &f, &c->dictionary_offset));
        else
            TRY(thrift_skip(t, &f));
    }
}

static status read_claims(thrift *t, chunk_claims *c) {
    thrift_field f = {0};
    *c = (chunk_claims){.type = -1,
                        .codec = -1,
                        .n_values = -1,
                        .compressed_bytes = -1,
                        .data_offset = -1,
                        .dictionary_offset = -1};
    for (;;) {
        TRY(thrift_next_field(t, &f));
        if (f.type == THRIFT_STOP) return OK;
        c->is_elsewhere |= f.id == 1;
        c->is_encrypted |= f.id == 8 || f.id == 9;
        if (f.id == 3)
            TRY(read_chunk_meta(t, &f, c));
        else
            TRY(thrift_skip(t, &f));
    }
}

static status check_codec(int32_t codec) {
    static const char *const refused[] = {NULL,     NULL,  NULL, "LZO",
                                          "BROTLI", "LZ4", NULL, "LZ4_RAW"};
    if (codec < 0 || codec > PARQUET_LZ4_RAW)
        return fail(ERR_UNSUPPORTED, "it is compressed by method %d, which is unknown", (int)codec);
    if (refused[codec] != NULL)
        return fail(ERR_UNSUPPORTED,
                    "it is compressed by %s; write it again with SNAPPY, ZSTD, GZIP or none",
                    refused[codec]);
    return OK;
}

/* Offsets of 0 or less mean "none" to some writers. */
static status check_claims(const parquet_file *f, const parquet_column *column,
                           const chunk_claims *c, parquet_chunk *out) {
    if (c->is_encrypted) return fail(ERR_UNSUPPORTED, "it is encrypted");
    if (c->is_elsewhere)
        return fail(ERR_UNSUPPORTED, "its data is in another file, which is not read");
    if (!c->has_meta) return fail(ERR_FORMAT, "the footer does not say where its data is");
    if (c->type != (int32_t)column->type)
        return fail(ERR_FORMAT, "its type is %d in a row group and %d in the schema", (int)c->type,
                    (int)column->type);
    TRY(check_codec(c->codec));
    int64_t begin = c->data_offset;
    if (c->dictionary_offset > 0 && c->dictionary_offset < begin) begin = c->dictionary_offset;
    bool is_inside = begin >= MAGIC_BYTES && (uint64_t)begin <= f->data_bytes &&
                     c->compressed_bytes >= 0 &&
                     (uint64_t)c->compressed_bytes <= f->data_bytes - (uint64_t)begin;
    if (!is_inside || c->n_values < 0)
        return fail(
            ERR_FORMAT,
            "the footer claims %lld values in %lld bytes at byte %lld, but the data ends at "
            "byte %llu",
            (long long)c->n_values, (long long)c->compressed_bytes, (long long)begin,
            (unsigned long long)f->data_bytes);
    *out = (parquet_chunk){.codec = (parquet_codec)c->codec,
                           .begin = (uint64_t)begin,
                           .end = (uint64_t)begin + (uint64_t)c->compressed_bytes,
                           .n_values = (uint64_t)c->n_values};
    return OK;
}

typedef struct groups_reader {
    const parquet_file *file;
    const parquet_column *columns;
    int n_columns;
    parquet_chunk chunk[PARQUET_MAX_WANTED];
} groups_reader;

/* Chunks are in the order of the leaves; those of other columns are skipped. */
static status read_chunks(groups_reader *r, thrift *t, const thrift_field *field) {
    uint64_t n;
    TRY(thrift_open_list(t, field, THRIFT_STRUCT, &n));
    if (n != r->file->n_leaves)
        return fail(ERR_FORMAT, "a row group has %llu columns, but the schema has %u",
                    (unsigned long long)n, r->file->n_leaves);
    for (uint64_t leaf = 0; leaf < n; leaf++) {
        chunk_claims claims;
        TRY(read_claims(t, &claims));
        for (int i = 0; i < r->n_columns; i++) {
            if (r->columns[i].leaf != leaf) continue;
            status st = check_claims(r->file, &r->columns[i], &claims, &r->chunk[i]);
            if (st != OK) return fail_prefix(st, "column '%s'", r->columns[i].name);
        }
    }
    return OK;
}

static status check_group(const groups_reader *r, int64_t n_rows, bool has_chunks) {
    if (n_rows < 0 || !has_chunks)
        return fail(ERR_FORMAT, "a row group does not say how many rows or columns it has");
    for (int i = 0; i < r->n_columns; i++)
        if (r->columns[i].max_repeat == 0 && r->chunk[i].n_values != (uint64_t)n_rows)
            return fail(ERR_FORMAT, "column '%s' has %llu values in a row group of %lld rows",
                        r->columns[i].name, (unsigned long long)r->chunk[i].n_values,
                        (long long)n_rows);
    return OK;
}

static status read_group(groups_reader *r, thrift *t, parquet_group *g) {
    thrift_field f = {0};
    int64_t n_rows = -1;
    bool has_chunks = false;
    for (;;) {
        TRY(thrift_next_field(t, &f));
        if (f.type == THRIFT_STOP) break;
        if (f.id == 1) {
            TRY(read_chunks(r, t, &f));
            has_chunks = true;
        } else if (f.id == 3) {
            TRY(thrift_get_int(t, &f, &n_rows));
        } else {
            TRY(thrift_skip(t, &f));
        }
    }
    TRY(check_group(r, n_rows, has_chunks));
    g->n_rows = (uint64_t)n_rows;
    return OK;
}

static status read_all(groups_reader *r, thrift *t, const thrift_field *field, parquet_group_fn fn,
                       void *ctx) {
    uint64_t n, n_rows = 0;
    TRY(thrift_open_list(t, field, THRIFT_STRUCT, &n));
    for (uint64_t i = 0; i < n; i++) {
        parquet_group g = {.chunk = r->chunk, .first_row = n_rows};
        TRY(read_group(r, t, &g));
        if (g.n_rows > r->file->n_rows - n_rows)
            return fail(ERR_FORMAT, "the row groups have more rows than the %llu of the file",
                        (unsigned long long)r->file->n_rows);
        n_rows += g.n_rows;
        if (g.n_rows > 0) TRY(fn(ctx, &g));
    }
    if (n_rows != r->file->n_rows)
        return fail(ERR_FORMAT, "the row groups have %llu rows in all, but the file %llu",
                    (unsigned long long)n_rows, (unsigned long long)r->file->n_rows);
    return OK;
}

static status read_groups(groups_reader *r, parquet_group_fn fn, void *ctx) {
    thrift t = {.at = (unsigned char *)r->file->footer,
                .end = (unsigned char *)r->file->footer + r->file->footer_bytes};
    thrift_field f = {0};
    bool is_read = false;
    for (;;) {
        TRY(thrift_next_field(&t, &f));
        if (f.type == THRIFT_STOP) break;
        if (f.id == 4 && !is_read) {
            TRY(read_all(r, &t, &f, fn, ctx));
            is_read = true;
        } else {
            TRY(thrift_skip(&t, &f));
        }
    }
    return is_read ? OK : fail(ERR_FORMAT, "the footer has no list of row groups");
}

status parquet_read_groups(const parquet_file *f, const parquet_column *columns, int n_columns,
                           parquet_group_fn fn, void *ctx) {
    groups_reader r = {.file = f, .columns = columns, .n_columns = n_columns};
    status st = read_groups(&r, fn, ctx);
    return st == OK || st == ERR_NOMEM ? st : fail_prefix(st, "%s", f->path);
}
