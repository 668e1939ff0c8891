#include <fcntl.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/prep/builder.h"
#include "test.h"

/* A small file with every kind of column. */
static const char *make_file(void) {
    static char path[256];
    builder_options options = {
        .actions = ACTION_HALF_STARS, .time_per_second = 1000, .has_text_items = true};
    builder *b;
    builder_stats stats;
    int f;
    CHECK_OK(builder_create(&b, &options, NULL));
    builder_sink *s = builder_get_sink(b, 0);
    CHECK_OK(sink_begin_block(s, 0, 50));
    for (int i = 0; i < 50; i++) {
        char item[16];
        uint32_t user, number;
        int n = snprintf(item, sizeof item, "item%d", i % 7);
        CHECK_OK(sink_user(s, i % 5, &user));
        CHECK_OK(sink_item_text(s, item, (size_t)n, &number));
        CHECK_OK(sink_add_numbered(s, user, number, (uint16_t)(i % 10), 1000 - i));
    }
    CHECK_OK(sink_end_block(s));
    CHECK_OK(builder_add_item(b, "item0", 5, "Title", 5));
    CHECK_OK(builder_add_context(b, "age", &f));
    CHECK_OK(builder_set_context(b, f, "2", 1, "old", 3));
    CHECK_OK(builder_write(b, test_folder(), "{\"name\":\"x\"}", &stats));
    builder_destroy(b);
    snprintf(path, sizeof path, "%s/data.seq", test_folder());
    return path;
}

TEST(seq_file_every_flipped_byte_is_found) {
    const char *path = make_file();
    seq_file *s;
    CHECK_OK(seq_file_open(&s, path, NULL));
    CHECK(seq_rating(s, 9) == 5.0 && seq_rating(s, 0) == .5);
    uint64_t n = s->file.map.n_bytes;
    seq_file_close(s);
    int fd = open(path, O_RDWR);
    for (uint64_t i = 0; i < n; i++) {
        unsigned char byte, flipped;
        CHECK(pread(fd, &byte, 1, (off_t)i) == 1);
        flipped = byte ^ (unsigned char)(1u << i % 8);
        CHECK(pwrite(fd, &flipped, 1, (off_t)i) == 1);
        status st = seq_file_open(&s, path, NULL);
        if (st != ERR_FORMAT) FAIL_TEST("byte %d flipped was not found", (int)i);
        CHECK_CONTAINS(status_reason(), "data.seq");
        CHECK(strstr(status_reason(), "offset") != NULL);
        CHECK(pwrite(fd, &byte, 1, (off_t)i) == 1);
    }
    close(fd);
    CHECK_OK(seq_file_open(&s, path, NULL));
    seq_file_close(s);
}

TEST(seq_file_every_cut_is_found) {
    const char *path = make_file();
    seq_file *s;
    file_map m;
    CHECK_OK(file_map_open(&m, path));
    size_t n = m.n_bytes;
    file_map_close(&m);
    for (size_t i = n; i-- > 0;) {
        CHECK(truncate(path, (off_t)i) == 0);
        CHECK_EQ(seq_file_open(&s, path, NULL), ERR_FORMAT);
        CHECK(s == NULL);
    }
}

TEST(seq_file_says_what_is_missing) {
    seq_file *s;
    CHECK_FAILS(seq_file_open(&s, test_folder(), NULL), ERR_IO, "hstu prep");
    CHECK_FAILS(seq_file_open(&s, "/no/such/place", NULL), ERR_IO, "cannot be opened");
    CHECK_EQ(test_command(NULL, "echo hello > %s/data.seq", test_folder()), 0);
    CHECK_FAILS(seq_file_open(&s, test_folder(), NULL), ERR_FORMAT, "not a sequence file");
}

/* Sound checksums, hostile content: an item outside the catalogue, offsets that fall. */
static status write_hostile(const uint64_t *offsets, const uint32_t *items, const char *meta) {
    char path[256];
    column_writer *w;
    int c[7];
    uint16_t actions[3] = {0};
    int64_t times[3] = {1, 2, 3}, ids[3] = {0, 1, 2};
    snprintf(path, sizeof path, "%s/data.seq", test_folder());
    CHECK_OK(column_writer_create(&w, path));
    CHECK_OK(column_writer_declare(w, "meta", COLUMN_U8, strlen(meta) + 1, &c[0]));
    CHECK_OK(column_writer_declare(w, "offsets", COLUMN_U64, 3, &c[1]));
    CHECK_OK(column_writer_declare(w, "item_index", COLUMN_U32, 3, &c[2]));
    CHECK_OK(column_writer_declare(w, "action", COLUMN_U16, 3, &c[3]));
    CHECK_OK(column_writer_declare(w, "time", COLUMN_I64, 3, &c[4]));
    CHECK_OK(column_writer_declare(w, "user_id", COLUMN_I64, 2, &c[5]));
    CHECK_OK(column_writer_declare(w, "item_id", COLUMN_I64, 3, &c[6]));
    column_writer_begin(w);
    CHECK_OK(column_writer_put(w, c[0], 0, meta, strlen(meta) + 1));
    CHECK_OK(column_writer_put(w, c[1], 0, offsets, 3));
    CHECK_OK(column_writer_put(w, c[2], 0, items, 3));
    CHECK_OK(column_writer_put(w, c[3], 0, actions, 3));
    CHECK_OK(column_writer_put(w, c[4], 0, times, 3));
    CHECK_OK(column_writer_put(w, c[5], 0, ids, 2));
    CHECK_OK(column_writer_put(w, c[6], 0, ids, 3));
    CHECK_FAILS(column_writer_put(w, c[6], 1, ids, 3), ERR_FORMAT, "has 3 elements");
    CHECK_OK(column_writer_commit(w, NULL));
    column_writer_abandon(w);
    seq_file *s;
    status st = seq_file_open(&s, path, NULL);
    seq_file_close(s);
    return st;
}

TEST(seq_file_checks_content_behind_checksums) {
    static const char meta[] =
        "{\"action_kind\":0,\"time_per_second\":1,\"catalogue\":2,\"source\":{}}";
    const uint64_t offsets[] = {0, 2, 3}, falling[] = {0, 4, 3};
    const uint32_t items[] = {1, 2, 1}, zero[] = {0, 1, 2}, beyond[] = {1, 2, 3};
    CHECK_OK(write_hostile(offsets, items, meta));
    CHECK_FAILS(write_hostile(falling, items, meta), ERR_FORMAT, "offset 1 is 4");
    CHECK_FAILS(write_hostile(offsets, zero, meta), ERR_FORMAT, "outside the catalogue");
    CHECK_FAILS(write_hostile(offsets, beyond, meta), ERR_FORMAT, "outside the catalogue");
    CHECK_FAILS(write_hostile(offsets, items, "{}"), ERR_FORMAT, "action_kind");
    CHECK_FAILS(
        write_hostile(offsets, items, "{\"action_kind\":9,\"time_per_second\":1,\"catalogue\":2}"),
        ERR_FORMAT, "out of range");
    CHECK_FAILS(
        write_hostile(offsets, items, "{\"action_kind\":0,\"time_per_second\":1,\"catalogue\":3}"),
        ERR_FORMAT, "item_id");
    CHECK_FAILS(write_hostile(offsets, items, "nonsense"), ERR_FORMAT, "meta");
}

/* 3 billion events: offsets beyond 2^32 must be laid out and found again (sparse file). */
TEST(column_file_lays_out_billions) {
    char path[256];
    column_writer *w;
    int a, b;
    uint32_t last = 7;
    snprintf(path, sizeof path, "%s/big", test_folder());
    CHECK_OK(column_writer_create(&w, path));
    CHECK_OK(column_writer_declare(w, "item_index", COLUMN_U32, 3000000000u, &a));
    CHECK_OK(column_writer_declare(w, "time", COLUMN_I64, 3000000000u, &b));
    column_writer_begin(w);
    int64_t time = 9;
    status st = column_writer_put(w, a, 2999999999u, &last, 1);
    if (st == OK) st = column_writer_put(w, b, 2999999999u, &time, 1);
    column_writer_abandon(w); /* Hashing 36 GB is not for a test: the layout is what counts. */
    if (st == ERR_IO) SKIP_TEST("this file system has no room for a sparse file of 36 GB");
    CHECK_OK(st);
}
