/* RocksDB as a store (store.h), through its C API.
 *
 * A row is stored under its key (8 bytes, little-endian) as score (8), stamp (4) and floats.  Bloom
 * filters avoid most reads for missing keys. */
#include "embed/store.h"

#ifndef HSTU_HAS_ROCKSDB

status embed_store_open_rocks(embed_store **out, const char *folder, int32_t n_floats) {
    *out = NULL;
    return fail(
        ERR_UNSUPPORTED,
        "%s: this build is without RocksDB; install librocksdb-dev and run make, or use the "
        "log",
        folder);
}

#else

#include <rocksdb/c.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum { AT_ONCE = 256, KEY_BYTES = 8, HEAD_BYTES = 12, BLOOM_BITS = 10 };

typedef struct rocks_store {
    embed_store base; /* first: a store is a rocks_store */
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_readoptions_t *read;
    rocksdb_writeoptions_t *write;
    char *value; /* one row as it is stored */
    size_t value_bytes;
    float *rows; /* (AT_ONCE, n_floats): of each */
} rocks_store;

/* Turns RocksDB's text into ours, and frees it. */
static status told(char *error, const char *what) {
    if (error == NULL) return OK;
    status st = fail(ERR_IO, "RocksDB: %s: %.400s", what, error);
    rocksdb_free(error);
    return st;
}

static status damaged(size_t n) {
    return fail(ERR_FORMAT, "RocksDB: a row of %zu bytes is none of this table", n);
}

static void unpack(const rocks_store *s, const char *value, uint64_t *score, uint32_t *stamp,
                   float *row) {
    memcpy(score, value, 8);
    memcpy(stamp, value + 8, 4);
    memcpy(row, value + HEAD_BYTES, (size_t)s->base.n_floats * sizeof(float));
}

/* The first failure is kept; results are freed either way. */
static status take(const rocks_store *s, char *value, size_t bytes, char *error, status so_far,
                   uint8_t *is_found, uint64_t *score, uint32_t *stamp, float *row) {
    status st = error != NULL && so_far == OK ? told(error, "get") : so_far;
    if (error != NULL && so_far != OK) rocksdb_free(error);
    *is_found = value != NULL;
    if (value != NULL && st == OK && bytes != s->value_bytes) st = damaged(bytes);
    if (value != NULL && st == OK) unpack(s, value, score, stamp, row);
    if (value != NULL) rocksdb_free(value);
    return st;
}

static status get_some(rocks_store *s, int64_t n, const uint64_t *keys, uint8_t *is_found,
                       uint64_t *scores, uint32_t *stamps, float *rows) {
    const char *names[AT_ONCE] = {0};
    size_t name_bytes[AT_ONCE] = {0}, bytes[AT_ONCE] = {0};
    char *values[AT_ONCE] = {0}, *errors[AT_ONCE] = {0};
    status st = OK;
    for (int64_t i = 0; i < n; i++) {
        names[i] = (const char *)&keys[i];
        name_bytes[i] = KEY_BYTES;
    }
    rocksdb_multi_get(s->db, s->read, (size_t)n, names, name_bytes, values, bytes, errors);
    for (int64_t i = 0; i < n; i++)
        st = take(s, values[i], bytes[i], errors[i], st, &is_found[i], &scores[i], &stamps[i],
                  rows + i * s->base.n_floats);
    return st;
}

static status rocks_get(embed_store *base, int64_t n, const uint64_t *keys, uint8_t *is_found,
                        uint64_t *scores, uint32_t *stamps, float *rows) {
    for (int64_t first = 0; first < n; first += AT_ONCE)
        TRY(get_some((rocks_store *)base, n - first < AT_ONCE ? n - first : AT_ONCE, keys + first,
                     is_found + first, scores + first, stamps + first,
                     rows + first * base->n_floats));
    return OK;
}

static status write_batch(rocks_store *s, rocksdb_writebatch_t *batch, const char *what) {
    char *error = NULL;
    rocksdb_write(s->db, s->write, batch, &error);
    rocksdb_writebatch_destroy(batch);
    return told(error, what);
}

static status rocks_put(embed_store *base, const embed_rows *rows) {
    rocks_store *s = (rocks_store *)base;
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    for (int64_t i = 0; i < rows->n; i++) {
        memcpy(s->value, &rows->scores[i], 8);
        memcpy(s->value + 8, &rows->stamps[i], 4);
        memcpy(s->value + HEAD_BYTES, rows->rows + i * base->n_floats, s->value_bytes - HEAD_BYTES);
        rocksdb_writebatch_put(batch, (const char *)&rows->keys[i], KEY_BYTES, s->value,
                               s->value_bytes);
    }
    return write_batch(s, batch, "put");
}

static status rocks_erase(embed_store *base, int64_t n, const uint64_t *keys) {
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    for (int64_t i = 0; i < n; i++)
        rocksdb_writebatch_delete(batch, (const char *)&keys[i], KEY_BYTES);
    return write_batch((rocks_store *)base, batch, "erase");
}

static status visit_all(rocks_store *s, rocksdb_iterator_t *it, embed_visit visit, void *ctx) {
    uint64_t keys[AT_ONCE], scores[AT_ONCE];
    uint32_t stamps[AT_ONCE];
    int64_t n = 0;
    bool is_valid = rocksdb_iter_valid(it) != 0;
    while (is_valid) {
        size_t key_bytes, bytes;
        const char *key = rocksdb_iter_key(it, &key_bytes);
        const char *value = rocksdb_iter_value(it, &bytes);
        if (key_bytes != KEY_BYTES || bytes != s->value_bytes) return damaged(bytes);
        memcpy(&keys[n], key, KEY_BYTES);
        unpack(s, value, &scores[n], &stamps[n], s->rows + n * s->base.n_floats);
        n++;
        rocksdb_iter_next(it);
        is_valid = rocksdb_iter_valid(it) != 0;
        if (n < AT_ONCE && is_valid) continue;
        embed_rows piece = {n, keys, scores, stamps, s->rows, s->base.n_floats};
        TRY(visit(ctx, &piece));
        n = 0;
    }
    char *error = NULL;
    rocksdb_iter_get_error(it, &error);
    return told(error, "read");
}

static status rocks_each(embed_store *base, embed_visit visit, void *ctx) {
    rocks_store *s = (rocks_store *)base;
    rocksdb_iterator_t *it = rocksdb_create_iterator(s->db, s->read);
    rocksdb_iter_seek_to_first(it);
    status st = visit_all(s, it, visit, ctx);
    rocksdb_iter_destroy(it);
    return st;
}

static status erase_piece(void *ctx, const embed_rows *rows) {
    return rocks_erase(ctx, rows->n, rows->keys);
}

/* An iterator sees the rows as of its creation, so they can be erased during the visit. */
static status rocks_clear(embed_store *base) {
    return rocks_each(base, erase_piece, base);
}

static void rocks_destroy(embed_store *base) {
    rocks_store *s = (rocks_store *)base;
    if (s->db != NULL) rocksdb_close(s->db);
    rocksdb_readoptions_destroy(s->read);
    rocksdb_writeoptions_destroy(s->write);
    rocksdb_options_destroy(s->options);
    MEM_FREE(s->value, s->rows, s);
}

static rocksdb_options_t *make_options(void) {
    rocksdb_options_t *o = rocksdb_options_create();
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_filter_policy(
        table, rocksdb_filterpolicy_create_bloom_full(BLOOM_BITS));
    rocksdb_options_set_block_based_table_factory(o, table);
    rocksdb_block_based_options_destroy(table); /* the options keep a copy */
    rocksdb_options_set_create_if_missing(o, 1);
    rocksdb_options_set_compression(o, rocksdb_no_compression); /* floats do not shrink */
    return o;
}

static status open_db(rocks_store *s, const char *folder) {
    char *error = NULL;
    s->value_bytes = HEAD_BYTES + (size_t)s->base.n_floats * sizeof(float);
    TRY(mem_alloc((void **)&s->value, s->value_bytes, 1));
    TRY(mem_alloc((void **)&s->rows, AT_ONCE * (size_t)s->base.n_floats, sizeof *s->rows));
    s->db = rocksdb_open(s->options, folder, &error);
    return told(error, folder);
}

status embed_store_open_rocks(embed_store **out, const char *folder, int32_t n_floats) {
    rocks_store *s;
    *out = NULL;
    TRY(folder_create(folder, NULL));
    TRY(MEM_NEW(&s, 1));
    s->base = (embed_store){.n_floats = n_floats,
                            .name = "rocksdb",
                            .get = rocks_get,
                            .put = rocks_put,
                            .erase = rocks_erase,
                            .each = rocks_each,
                            .clear = rocks_clear,
                            .destroy = rocks_destroy};
    s->options = make_options();
    s->read = rocksdb_readoptions_create();
    s->write = rocksdb_writeoptions_create();
    status st = open_db(s, folder);
    if (st == OK)
        *out = &s->base;
    else
        rocks_destroy(&s->base);
    return st;
}

#endif
