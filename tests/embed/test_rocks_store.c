/* RocksDB as a store, where the build has it. */
#ifdef HSTU_HAS_ROCKSDB
#include <rocksdb/c.h>
#endif

#include "embed/store.h"
#include "table_rig.h"

enum { FLOATS = 3 };

static embed_store *open_rocks(void) {
    char folder[4096];
    embed_store *s;
    snprintf(folder, sizeof folder, "%s/rocks", test_folder());
    status st = embed_store_open_rocks(&s, folder, FLOATS);
    if (st == ERR_UNSUPPORTED) SKIP_TEST("%s", status_reason());
    CHECK_OK(st);
    return s;
}

static status count(void *ctx, const embed_rows *rows) {
    *(int64_t *)ctx += rows->n;
    return OK;
}

TEST(rocks_store_remembers) {
    enum { N = 1000 };
    embed_store *s = open_rocks();
    static uint64_t keys[N], scores[N];
    static uint32_t stamps[N];
    static float rows[N * FLOATS];
    static uint8_t is_found[N];
    int64_t n = 0;
    for (int i = 0; i < N; i++) {
        keys[i] = i == 0 ? UINT64_MAX : (uint64_t)i * 0x9e3779b97f4a7c15ull;
        scores[i] = (uint64_t)i * 3;
        stamps[i] = (uint32_t)i;
        for (int c = 0; c < FLOATS; c++)
            rows[i * FLOATS + c] = (float)(i * 10 + c);
    }
    embed_rows put = {N, keys, scores, stamps, rows, FLOATS};
    CHECK_OK(s->put(s, &put));
    CHECK_OK(s->erase(s, 10, keys + 20));
    memset(rows, 0, sizeof rows);
    memset(scores, 0, sizeof scores);
    CHECK_OK(s->get(s, N, keys, is_found, scores, stamps, rows));
    for (int i = 0; i < N; i++) {
        bool is_erased = i >= 20 && i < 30;
        CHECK_EQ(is_found[i], !is_erased);
        CHECK(is_erased || (scores[i] == (uint64_t)i * 3 && stamps[i] == (uint32_t)i &&
                            rows[i * FLOATS + 2] == (float)(i * 10 + 2)));
    }
    CHECK_OK(s->each(s, count, &n));
    CHECK_EQ(n, N - 10);
    CHECK_OK(s->clear(s));
    n = 0;
    CHECK_OK(s->each(s, count, &n));
    CHECK_EQ(n, 0);
    embed_store_destroy(s);
}

#ifdef HSTU_HAS_ROCKSDB
/* A stored value of another length is not a row of this table, and is refused. */
TEST(rocks_store_refuses_rows_of_another_length) {
    const uint64_t keys[] = {5, 6};
    uint64_t scores[2] = {0};
    uint32_t stamps[2] = {0};
    float rows[2 * FLOATS] = {0};
    uint8_t is_found[2];
    char folder[4096], *error = NULL;
    int64_t n = 0;
    embed_store *s = open_rocks();
    CHECK_OK(s->put(s, &(embed_rows){2, keys, scores, stamps, rows, FLOATS}));
    embed_store_destroy(s);
    snprintf(folder, sizeof folder, "%s/rocks", test_folder());
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_writeoptions_t *write = rocksdb_writeoptions_create();
    rocksdb_t *db = rocksdb_open(options, folder, &error);
    CHECK(error == NULL);
    rocksdb_put(db, write, (const char *)&keys[0], sizeof keys[0], "short", 5, &error);
    CHECK(error == NULL);
    rocksdb_close(db);
    rocksdb_writeoptions_destroy(write);
    rocksdb_options_destroy(options);
    s = open_rocks();
    CHECK_FAILS(s->get(s, 2, keys, is_found, scores, stamps, rows), ERR_FORMAT, "a row of 5 bytes");
    CHECK_OK(s->get(s, 1, keys + 1, is_found, scores, stamps, rows));
    CHECK_FAILS(s->each(s, count, &n), ERR_FORMAT, "a row of 5 bytes");
    embed_store_destroy(s);
}
#endif
