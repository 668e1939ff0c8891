/* The file of rows: what was put is found, until it is replaced or erased, and slots are used
 * again. */
#include <sys/stat.h>

#include "disk_fault.h"
#include "embed/store.h"
#include "oom.h"
#include "table_rig.h"

enum { FLOATS = 3 };

static embed_store *open_file(const char *name) {
    char folder[4096];
    embed_store *s;
    snprintf(folder, sizeof folder, "%s/%s", test_folder(), name);
    CHECK_OK(embed_store_open_file(&s, folder, FLOATS));
    return s;
}

static int64_t file_rows(const char *name) {
    char path[4096];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s/rows", test_folder(), name);
    CHECK_EQ(stat(path, &about), 0);
    return about.st_size / (int64_t)(FLOATS * sizeof(float));
}

static void put(embed_store *s, uint64_t key, float value) {
    float row[FLOATS] = {value, value + 1, value + 2};
    uint64_t score = key + 5;
    uint32_t stamp = (uint32_t)value;
    embed_rows rows = {1, &key, &score, &stamp, row, FLOATS};
    CHECK_OK(s->put(s, &rows));
}

/* The value of a key, or -1. */
static float get(embed_store *s, uint64_t key) {
    float row[FLOATS];
    uint64_t score = 0;
    uint32_t stamp = 0;
    uint8_t is_found;
    CHECK_OK(s->get(s, 1, &key, &is_found, &score, &stamp, row));
    if (!is_found) return -1;
    CHECK(score == key + 5 && stamp == (uint32_t)row[0] && row[2] == row[0] + 2);
    return row[0];
}

TEST(file_store_remembers) {
    embed_store *s = open_file("file");
    for (uint64_t key = 0; key < 100; key++)
        put(s, key * 0x9e3779b97f4a7c15ull, (float)key);
    put(s, UINT64_MAX, 7);
    put(s, UINT64_MAX, 8);
    CHECK_OK(s->erase(s, 1, (uint64_t[]){3 * 0x9e3779b97f4a7c15ull}));
    CHECK(get(s, 0) == 0 && get(s, UINT64_MAX) == 8 && get(s, 12345) == -1);
    CHECK(get(s, 3 * 0x9e3779b97f4a7c15ull) == -1);
    CHECK(get(s, 99 * 0x9e3779b97f4a7c15ull) == 99);
    CHECK_OK(s->clear(s));
    CHECK(get(s, 0) == -1);
    put(s, 1, 1);
    CHECK(get(s, 0) == -1 && get(s, 1) == 1);
    CHECK_EQ(file_rows("file"), 1);
    embed_store_destroy(s);
    s = open_file("file"); /* it is scratch */
    CHECK(get(s, 1) == -1);
    embed_store_destroy(s);
}

static status sum(void *ctx, const embed_rows *rows) {
    for (int64_t i = 0; i < rows->n; i++) {
        CHECK(rows->rows[i * FLOATS] == (float)rows->keys[i] && rows->scores[i] == rows->keys[i]);
        *(uint64_t *)ctx += rows->keys[i];
    }
    return OK;
}

/* Batches of new keys, of keys that are there and of both, whose slots follow each other or not:
 * each row is its own, and the file is as long as the most rows at a time. */
TEST(file_store_puts_batches_and_uses_slots_again) {
    enum { N = 3000, AT_ONCE = 500 };
    static uint64_t keys[AT_ONCE], all;
    static uint32_t stamps[AT_ONCE];
    static float rows[AT_ONCE * FLOATS];
    embed_store *s = open_file("file");
    for (int round = 0; round < 40; round++) {
        for (uint64_t i = 0; i < AT_ONCE; i++) {
            keys[i] = ((uint64_t)round * 331 + i * (round % 3 == 0 ? 1 : 7)) % N;
            rows[i * FLOATS] = (float)keys[i];
        }
        CHECK_OK(s->put(s, &(embed_rows){AT_ONCE, keys, keys, stamps, rows, FLOATS}));
        if (round % 4 == 3) CHECK_OK(s->erase(s, 200, keys + 100));
    }
    CHECK(file_rows("file") <= N);
    CHECK_OK(s->each(s, sum, &all));
    CHECK(all > 0);
    for (uint64_t key = 0; key < N; key++) {
        uint64_t score = key;
        uint32_t stamp;
        uint8_t is_found;
        float row[FLOATS] = {(float)key};
        CHECK_OK(s->get(s, 1, &key, &is_found, &score, &stamp, row));
        CHECK(row[0] == (float)key && score == key);
        if (is_found) all -= key;
    }
    CHECK_EQ(all, 0);
    embed_store_destroy(s);
}

TEST(file_store_names_a_full_disk) {
    uint64_t key = 1, score = 1;
    uint32_t stamp = 1;
    float row[FLOATS] = {1};
    embed_store *s = open_file("full");
    disk_fault_set(DISK_FULL, "full/rows");
    CHECK_FAILS(s->put(s, &(embed_rows){1, &key, &score, &stamp, row, FLOATS}), ERR_IO,
                "is the disk full?");
    disk_fault_set(DISK_GOOD, "");
    embed_store_destroy(s);
}

/* Asking changes nothing, whatever is asked for. */
TEST(file_store_asked_for_rows_keeps_them) {
    embed_store *s = open_file("file");
    for (uint64_t key = 1; key < 4; key++)
        put(s, key, (float)key);
    CHECK_OK(s->ask(s, 4, (uint64_t[]){1, 2, 3, 99}));
    CHECK_OK(s->erase(s, 1, (uint64_t[]){1}));
    CHECK(get(s, 1) == -1 && get(s, 2) == 2 && get(s, 3) == 3 && get(s, 99) == -1);
    embed_store_destroy(s);
}

enum { MANY = 3000 };

/* A put of keys that make the map grow, then a clear; a failed call must change nothing. */
static status fill_and_clear(void *ctx) {
    static uint64_t keys[MANY], scores[MANY];
    static uint32_t stamps[MANY];
    static float rows[MANY * FLOATS];
    char folder[4096];
    embed_store *s;
    int64_t n = 0;
    snprintf(folder, sizeof folder, "%s/oom-%d", test_folder(), (*(int *)ctx)++);
    for (uint64_t i = 0; i < MANY; i++)
        keys[i] = i % 2 == 0 ? i : i << 40;
    embed_rows all = {MANY, keys, scores, stamps, rows, FLOATS};
    TRY(embed_store_open_file(&s, folder, FLOATS));
    status st = s->put(s, &all);
    bool is_put = st == OK;
    if (is_put) st = s->clear(s);
    uint64_t score;
    uint32_t stamp;
    float row[FLOATS];
    for (uint64_t i = 0; i < MANY; i++) {
        uint8_t is_found;
        CHECK_OK(s->get(s, 1, &keys[i], &is_found, &score, &stamp, row));
        n += is_found;
    }
    embed_store_destroy(s);
    CHECK_EQ(n, is_put && st != OK ? MANY : 0);
    return st;
}

TEST(file_store_out_of_memory_is_all_or_nothing) {
    int round = 0;
    CHECK(oom_at_each_allocation(fill_and_clear, &round) > 5);
}
