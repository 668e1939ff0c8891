/* The log of rows: every row that was put is found after reopening, wherever a crash cut the file.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk_fault.h"
#include "embed/store.h"
#include "oom.h"
#include "store_crash.h"
#include "table_rig.h"

enum { FLOATS = 3 };

static embed_store *open_log(const char *name) {
    char folder[4096];
    embed_store *s;
    snprintf(folder, sizeof folder, "%s/%s", test_folder(), name);
    CHECK_OK(embed_store_open_log(&s, folder, FLOATS));
    return s;
}

static const char *log_path(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s/rows.log", test_folder(), name);
    return path;
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

TEST(log_store_remembers) {
    embed_store *s = open_log("log");
    for (uint64_t key = 0; key < 100; key++)
        put(s, key * 0x9e3779b97f4a7c15ull, (float)key);
    put(s, UINT64_MAX, 7);
    put(s, UINT64_MAX, 8);
    CHECK_OK(s->erase(s, 1, (uint64_t[]){3 * 0x9e3779b97f4a7c15ull}));
    for (int round = 0; round < 2; round++) {
        CHECK(get(s, 0) == 0 && get(s, UINT64_MAX) == 8 && get(s, 12345) == -1);
        CHECK(get(s, 3 * 0x9e3779b97f4a7c15ull) == -1);
        CHECK(get(s, 99 * 0x9e3779b97f4a7c15ull) == 99);
        CHECK_OK(s->flush(s));
        embed_store_destroy(s);
        s = open_log("log");
    }
    CHECK_OK(s->clear(s));
    CHECK(get(s, 0) == -1);
    put(s, 1, 1);
    embed_store_destroy(s);
    s = open_log("log");
    CHECK(get(s, 0) == -1 && get(s, 1) == 1);
    embed_store_destroy(s);
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/log", test_folder());
    CHECK_FAILS(embed_store_open_log(&s, folder, FLOATS + 1), ERR_FORMAT, "rows of 3 floats");
}

/* The log truncated at every byte: the rows of complete records are there, and the log can be
 * appended to. */
TEST(log_store_torn_anywhere_keeps_what_was_whole) {
    embed_store *s = open_log("log");
    long end[6];
    struct stat about;
    for (uint64_t key = 0; key < 5; key++) {
        CHECK_EQ(stat(log_path("log"), &about), 0);
        end[key] = about.st_size;
        put(s, key, (float)key);
    }
    CHECK_EQ(stat(log_path("log"), &about), 0);
    end[5] = about.st_size;
    embed_store_destroy(s);
    char *bytes = malloc((size_t)end[5]);
    int fd = open(log_path("log"), O_RDONLY);
    CHECK(fd >= 0 && read(fd, bytes, (size_t)end[5]) == end[5]);
    close(fd);
    for (long cut = 0; cut < end[5]; cut++) {
        fd = open(log_path("log"), O_WRONLY | O_TRUNC);
        CHECK(fd >= 0 && write(fd, bytes, (size_t)cut) == cut);
        /* After a crash the bytes past the cut may be anything. */
        if (cut > 16 && cut % 2 == 0) CHECK(write(fd, "garbage garbage garbage", 23) == 23);
        close(fd);
        s = open_log("log");
        for (uint64_t key = 0; key < 5; key++)
            CHECK(get(s, key) == (cut >= end[key + 1] ? (float)key : -1));
        put(s, 77, 7);
        embed_store_destroy(s);
        s = open_log("log");
        CHECK(get(s, 77) == 7);
        embed_store_destroy(s);
    }
    free(bytes);
}

static status count(void *ctx, const embed_rows *rows) {
    *(int64_t *)ctx += rows->n;
    return OK;
}

enum { BIG_ROWS = 400, BIG_FLOATS = 256 };

/* Replaces all rows again and again, 0.4 MB each time. */
static void put_often(embed_store *s, int first_round, int end_round) {
    static float rows[BIG_ROWS * BIG_FLOATS];
    uint64_t keys[BIG_ROWS], scores[BIG_ROWS] = {0};
    uint32_t stamps[BIG_ROWS] = {0};
    for (uint64_t i = 0; i < BIG_ROWS; i++)
        keys[i] = i;
    for (int round = first_round; round < end_round; round++) {
        for (int i = 0; i < BIG_ROWS * BIG_FLOATS; i++)
            rows[i] = (float)(round * 1000 + i % 1000);
        embed_rows put_rows = {BIG_ROWS, keys, scores, stamps, rows, BIG_FLOATS};
        CHECK_OK(s->put(s, &put_rows));
    }
}

static embed_store *open_big(void) {
    char folder[4096];
    embed_store *s;
    snprintf(folder, sizeof folder, "%s/big", test_folder());
    CHECK_OK(embed_store_open_log(&s, folder, BIG_FLOATS));
    return s;
}

/* Replaced rows are dropped: the file does not grow for ever. */
static void flip_bit(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && fseek(f, at, SEEK_SET) == 0);
    int byte = fgetc(f);
    CHECK(byte != EOF && fseek(f, at, SEEK_SET) == 0 && fputc(byte ^ 4, f) != EOF);
    CHECK_EQ(fclose(f), 0);
}

/* A bit flipped at every byte before the last mark: the log is refused and stays as it is, so that
 * the flip can be taken back; after the mark it is a torn end. */
TEST(log_store_refuses_damage_before_a_mark) {
    char folder[4096];
    struct stat before, after;
    embed_store *s = open_log("log");
    for (uint64_t key = 0; key < 3; key++) {
        put(s, key, (float)key);
        CHECK_OK(s->flush(s));
        CHECK_OK(s->flush(s)); /* nothing new: no mark */
    }
    CHECK_OK(s->erase(s, 1, (uint64_t[]){1}));
    CHECK_OK(s->flush(s));
    CHECK_EQ(stat(log_path("log"), &before), 0);
    put(s, 9, 9);
    embed_store_destroy(s);
    snprintf(folder, sizeof folder, "%s/log", test_folder());
    for (long at = 16; at < (long)before.st_size - 16; at++) {
        flip_bit(log_path("log"), at);
        CHECK_FAILS(embed_store_open_log(&s, folder, FLOATS), ERR_FORMAT, "damaged at byte");
        flip_bit(log_path("log"), at);
    }
    flip_bit(log_path("log"), (long)before.st_size + 20);
    s = open_log("log");
    CHECK(get(s, 0) == 0 && get(s, 1) == -1 && get(s, 2) == 2 && get(s, 9) == -1);
    embed_store_destroy(s);
    CHECK_EQ(stat(log_path("log"), &after), 0);
    CHECK_EQ(after.st_size, before.st_size);
}

/* The search for a mark reads pieces of 16384 bytes, of which the last 15 are read again: here the
 * last piece is the mark alone, seven pieces after the damaged record. */
TEST(log_store_finds_a_mark_in_the_last_bytes) {
    enum { N = (7 * (16384 - 15) + 1 - 16) / 8 };
    static uint64_t keys[N], scores[N];
    static uint32_t stamps[N];
    static float rows[N * FLOATS];
    char folder[4096];
    struct stat about;
    embed_store *s = open_log("log");
    for (uint64_t i = 0; i < N; i++)
        keys[i] = i + 100;
    put(s, 1, 1);
    CHECK_OK(s->put(s, &(embed_rows){N, keys, scores, stamps, rows, FLOATS}));
    CHECK_OK(s->flush(s));
    CHECK_OK(s->erase(s, N, keys));
    CHECK_OK(s->flush(s));
    CHECK_EQ(stat(log_path("log"), &about), 0);
    embed_store_destroy(s);
    snprintf(folder, sizeof folder, "%s/log", test_folder());
    flip_bit(log_path("log"), (long)about.st_size - 16 - 8 * N - 16);
    CHECK_FAILS(embed_store_open_log(&s, folder, FLOATS), ERR_FORMAT, "damaged at byte");
}

/* What is erased is not found any more, though it was read ahead. */
TEST(ahead_store_forgets_erased_keys) {
    embed_store *log = open_log("log"), *s;
    CHECK_OK(embed_store_open_ahead(&s, log, 8));
    for (uint64_t key = 1; key < 4; key++)
        put(s, key, (float)key);
    CHECK_OK(s->ask(s, 3, (uint64_t[]){1, 2, 3}));
    CHECK(get(s, 3) == 3); /* read in the order of the keys: the other two are there, too */
    CHECK_OK(s->erase(s, 2, (uint64_t[]){1, 2}));
    CHECK(get(s, 1) == -1 && get(s, 2) == -1);
    embed_store_destroy(s);
    embed_store_destroy(log);
}

TEST(log_store_compacts) {
    enum { N = BIG_ROWS, F = BIG_FLOATS };
    char folder[4096];
    embed_store *s = open_big();
    struct stat about;
    uint64_t keys[N] = {0, 1, 2, 3}, scores[N] = {0};
    uint32_t stamps[N] = {0};
    put_often(s, 0, 60);
    snprintf(folder, sizeof folder, "%s/big/rows.log", test_folder());
    CHECK_EQ(stat(folder, &about), 0);
    CHECK(about.st_size < 8 << 20); /* 60 times 0.4 MB were put */
    float row[F];
    uint8_t is_found;
    int64_t n = 0;
    CHECK_OK(s->get(s, 1, &keys[3], &is_found, scores, stamps, row));
    CHECK(is_found && row[5] == (float)(59000 + (3 * F + 5) % 1000));
    CHECK_OK(s->each(s, count, &n));
    CHECK_EQ(n, N);
    embed_store_destroy(s);
}

/* Erased rows are garbage, too. */
TEST(log_store_compacts_what_is_erased) {
    uint64_t keys[BIG_ROWS];
    embed_store *s = open_big();
    struct stat about;
    for (uint64_t i = 0; i < BIG_ROWS; i++)
        keys[i] = i;
    for (int round = 0; round < 40; round++) {
        put_often(s, round, round + 1);
        CHECK_OK(s->erase(s, BIG_ROWS, keys));
    }
    CHECK_EQ(stat(log_path("big"), &about), 0);
    CHECK(about.st_size < 8 << 20); /* 40 times 0.4 MB were put */
    embed_store_destroy(s);
}

/* What is flushed is marked once, also when the log is opened again. */
TEST(log_store_marks_once) {
    struct stat first, second;
    embed_store *s = open_log("log");
    put(s, 1, 1);
    CHECK_OK(s->flush(s));
    CHECK_EQ(stat(log_path("log"), &first), 0);
    CHECK_OK(s->flush(s));
    embed_store_destroy(s);
    s = open_log("log");
    CHECK_OK(s->flush(s));
    CHECK_EQ(stat(log_path("log"), &second), 0);
    CHECK_EQ(first.st_size, second.st_size);
    embed_store_destroy(s);
}

static int64_t log_bytes(void) {
    struct stat about;
    CHECK_EQ(stat(log_path("big"), &about), 0);
    return about.st_size;
}

/* Puts until the log is compacted; returns the size that it had before, and *put_bytes. */
static int64_t put_until_compacted(embed_store *s, int64_t *put_bytes) {
    int64_t before = log_bytes(), now = before;
    do {
        *put_bytes = now - before;
        before = now;
        put_often(s, 0, 1);
        now = log_bytes();
    } while (now >= before);
    return before + *put_bytes;
}

/* The name of a compacted log is durable before anything is appended to it; a compaction that
 * failed is tried again when the log has grown by a quarter, not with every put. */
TEST(log_store_compacts_durably_and_not_too_often) {
    char fresh[4200], inside[4300];
    int64_t piece;
    embed_store *s = open_big();
    sync_folders = 0;
    int64_t due = put_until_compacted(s, &piece);
    CHECK_EQ(sync_folders, 1);
    snprintf(fresh, sizeof fresh, "%s.new", log_path("big"));
    snprintf(inside, sizeof inside, "%s/in-the-way", fresh);
    CHECK(mkdir(fresh, 0777) == 0 && mkdir(inside, 0777) == 0);
    while (log_bytes() < due)
        put_often(s, 0, 1);
    CHECK(rmdir(inside) == 0 && rmdir(fresh) == 0);
    int64_t again = put_until_compacted(s, &piece);
    CHECK(again >= due + due / 4 && again < due + due / 4 + piece);
    int64_t last = put_until_compacted(s, &piece);
    CHECK(last >= due && last < due + piece);
    CHECK_EQ(sync_folders, 3);
    embed_store_destroy(s);
}

/* A failed compaction loses nothing: rows are still put, no other file is left, and a later
 * compaction succeeds. */
TEST(log_store_goes_on_when_it_cannot_compact) {
    char fresh[4200], inside[4300];
    struct stat about;
    embed_store *s = open_big();
    snprintf(fresh, sizeof fresh, "%s.new", log_path("big"));
    snprintf(inside, sizeof inside, "%s/in-the-way", fresh);
    CHECK(mkdir(fresh, 0777) == 0 && mkdir(inside, 0777) == 0);
    put_often(s, 0, 30);
    CHECK_EQ(stat(log_path("big"), &about), 0);
    CHECK(about.st_size > 12000000);
    CHECK(rmdir(inside) == 0 && rmdir(fresh) == 0);
    put_often(s, 30, 60);
    CHECK_EQ(stat(log_path("big"), &about), 0);
    CHECK(about.st_size < 12000000 && stat(fresh, &about) != 0);
    embed_store_destroy(s);
    s = open_big();
    int64_t n = 0;
    CHECK_OK(s->each(s, count, &n));
    CHECK_EQ(n, BIG_ROWS);
    embed_store_destroy(s);
}

TEST(log_store_belongs_to_one) {
    char folder[4096];
    embed_store *s = open_log("log"), *other;
    put(s, 1, 1);
    snprintf(folder, sizeof folder, "%s/log", test_folder());
    CHECK_FAILS(embed_store_open_log(&other, folder, FLOATS), ERR_IO, "another table");
    CHECK(get(s, 1) == 1);
    embed_store_destroy(s);
    s = open_big();
    put_often(s, 0, 30); /* a log that took the place of another is locked as well */
    snprintf(folder, sizeof folder, "%s/big", test_folder());
    CHECK_FAILS(embed_store_open_log(&other, folder, BIG_FLOATS), ERR_IO, "another table");
    embed_store_destroy(s);
    embed_store_destroy(open_log("log"));
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
    TRY(embed_store_open_log(&s, folder, FLOATS));
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

TEST(log_store_out_of_memory_is_all_or_nothing) {
    int round = 0;
    CHECK(oom_at_each_allocation(fill_and_clear, &round) > 5);
}

TEST(log_store_survives_kills) {
    store_survives_kills(embed_store_open_log);
}
