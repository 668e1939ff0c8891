#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/build/builder.h"
#include "test.h"

/* A small file with every kind of column. */
static const char *make_file(void) {
    static char path[256];
    builder_options options = {
        .actions = ACTION_HALF_STARS, .time_per_second = 1000, .has_text_items = true};
    builder *b;
    builder_stats stats;
    int f;
    float *vector;
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
    CHECK_OK(builder_add_content(b, &(content_spec){.name = "year"}, &f));
    CHECK_OK(builder_put_content(b, f, "1999", 4));
    CHECK_OK(builder_begin_vectors(b, 1, 2));
    CHECK_OK(builder_add_vector(b, "item1", 5, &vector));
    vector[0] = 1, vector[1] = -2;
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
    CHECK(s->n_content == 1 && s->content[0].number[1] == 1999 && s->item_vector_dim == 2);
    CHECK(s->item_vector[2] == 0 && s->item_vector[4] == 1 && s->item_vector[5] == -2);
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

/* Writes at an offset of a file, in place. */
static void overwrite(const char *path, uint64_t at, char byte) {
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, &byte, 1, (off_t)at) == 1);
    close(fd);
}

/* A file that is mapped may change under its reader; only what changes the content counts. */
TEST(seq_file_says_that_somebody_wrote_into_it) {
    const char *path = make_file();
    seq_file *s;
    CHECK_OK(seq_file_open(&s, path, NULL));
    CHECK_OK(seq_file_check_unchanged(s, NULL));
    CHECK_EQ(test_command(NULL, "touch -d 2001-01-01 %s", path), 0);
    CHECK_OK(seq_file_check_unchanged(s, NULL));
    uint64_t n = s->file.map.n_bytes;
    for (uint64_t i = 0; i < n; i += i < 200 ? 1 : 37) {
        char old = (char)s->file.map.bytes[i];
        overwrite(path, i, (char)(old ^ 4));
        if (seq_file_check_unchanged(s, NULL) != ERR_IO) FAIL_TEST("byte %d", (int)i);
        CHECK_CONTAINS(status_reason(), "data.seq: somebody wrote into this file");
        overwrite(path, i, old);
        CHECK_OK(seq_file_check_unchanged(s, NULL));
    }
    /* The end is gone: reading there would be a bus error, so it is not read. */
    CHECK_EQ(test_command(NULL, "cp %s %s.kept && truncate -s 5 %s", path, path, path), 0);
    CHECK_FAILS(seq_file_check_unchanged(s, NULL), ERR_IO, "somebody wrote");
    /* Another file under the name, or none: the mapped one is what it was. */
    CHECK_EQ(test_command(NULL, "cat %s.kept >%s", path, path), 0);
    CHECK_OK(seq_file_check_unchanged(s, NULL));
    CHECK_EQ(test_command(NULL, "echo x >%s.new && mv %s.new %s", path, path, path), 0);
    CHECK_OK(seq_file_check_unchanged(s, NULL));
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(seq_file_check_unchanged(s, NULL));
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

TEST(column_file_get_says_that_there_is_nothing) {
    const uint32_t numbers[] = {4, 5};
    char path[256];
    column_writer *w;
    column_file f;
    int c;
    const void *p = numbers;
    uint64_t n = 7;
    snprintf(path, sizeof path, "%s/one.col", test_folder());
    CHECK_OK(column_writer_create(&w, path));
    CHECK_OK(column_writer_declare(w, "numbers", COLUMN_U32, 2, &c));
    column_writer_begin(w);
    CHECK_OK(column_writer_put(w, c, 0, numbers, 2));
    CHECK_OK(column_writer_commit(w, NULL));
    column_writer_abandon(w);
    CHECK_OK(column_file_open(&f, path, NULL));
    CHECK_FAILS(column_file_get(&f, path, "others", COLUMN_U32, &p, &n), ERR_FORMAT, "'others'");
    CHECK(p == NULL && n == 0);
    CHECK_OK(column_file_get(&f, path, "numbers", COLUMN_U32, &p, NULL));
    CHECK(memcmp(p, numbers, sizeof numbers) == 0);
    column_file_close(&f);
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
    column_writer_abandon(w); /* hashing 36 GB takes too long: only the layout is checked */
    if (st == ERR_IO) SKIP_TEST("this file system has no room for a sparse file of 36 GB");
    CHECK_OK(st);
}

/* A file of any columns, opened again; *out is NULL where that fails. */
typedef struct column_of {
    const char *name;
    column_type type;
    uint64_t n;
    const void *data;
} column_of;

enum { MAX_COLUMNS = 3 * CONTEXT_MAX + 16 };

static status open_columns(const column_of *columns, int n, seq_file **out) {
    char path[256];
    column_writer *w;
    int c[MAX_COLUMNS];
    snprintf(path, sizeof path, "%s/data.seq", test_folder());
    CHECK_OK(column_writer_create(&w, path));
    for (int i = 0; i < n; i++)
        CHECK_OK(column_writer_declare(w, columns[i].name, columns[i].type, columns[i].n, &c[i]));
    column_writer_begin(w);
    for (int i = 0; i < n; i++)
        CHECK_OK(column_writer_put(w, c[i], 0, columns[i].data, columns[i].n));
    CHECK_OK(column_writer_commit(w, NULL));
    column_writer_abandon(w);
    return seq_file_open(out, path, NULL);
}

static const char toy_meta[] =
    "{\"action_kind\":4,\"time_per_second\":1,\"catalogue\":2,\"source\":{}}";
static const uint64_t toy_offsets[] = {0, 2, 3}, two_ends[] = {0, 2, 5};
static const uint32_t toy_items[] = {1, 2, 1}, toy_values[] = {1, 0};
static const uint16_t toy_actions[] = {0, 7, 3};
static const int64_t toy_times[] = {1, 2, 3}, toy_ids[] = {10, 20, 30};

enum { META, OFFSETS, ITEMS, ACTIONS, TIMES, USERS, CATALOGUE, AGES, AGE_ENDS, AGE_TEXTS, N_TOY };

/* Two users, three events, a contextual feature "age" of two values. */
static void toy_columns(column_of columns[MAX_COLUMNS]) {
    const column_of all[N_TOY] = {
        [META] = {"meta", COLUMN_U8, sizeof toy_meta, toy_meta},
        [OFFSETS] = {"offsets", COLUMN_U64, 3, toy_offsets},
        [ITEMS] = {"item_index", COLUMN_U32, 3, toy_items},
        [ACTIONS] = {"action", COLUMN_U16, 3, toy_actions},
        [TIMES] = {"time", COLUMN_I64, 3, toy_times},
        [USERS] = {"user_id", COLUMN_I64, 2, toy_ids},
        [CATALOGUE] = {"item_id", COLUMN_I64, 3, toy_ids},
        [AGES] = {"ctx.age", COLUMN_U32, 2, toy_values},
        [AGE_ENDS] = {"ctx.age.o", COLUMN_U64, 3, two_ends},
        [AGE_TEXTS] = {"ctx.age.t", COLUMN_U8, 5, "youth"},
    };
    memcpy(columns, all, sizeof all);
}

/* One column of the toy replaced. */
static status open_with(int which, column_of other) {
    column_of columns[MAX_COLUMNS];
    seq_file *s;
    toy_columns(columns);
    columns[which] = other;
    status st = open_columns(columns, N_TOY, &s);
    seq_file_close(s);
    return st;
}

TEST(seq_file_names_and_ratings) {
    column_of columns[MAX_COLUMNS];
    seq_file *s;
    buf text = {0};
    toy_columns(columns);
    CHECK_OK(open_columns(columns, N_TOY, &s));
    CHECK(s->n_users == 2 && s->n_items == 2 && s->n_events == 3 && s->n_context == 1);
    CHECK_STR(s->context[0].name, "age");
    CHECK_OK(seq_item_name(s, 2, &text));
    CHECK_STR(buf_str(&text), "30");
    CHECK_FAILS(seq_item_name(s, 3, &text), ERR_FORMAT, "item 3 is not in the catalogue");
    CHECK_OK(seq_user_name(s, 1, &text));
    CHECK_STR(buf_str(&text), "20");
    CHECK_FAILS(seq_user_name(s, 2, &text), ERR_FORMAT, "user 2 is not there");
    CHECK_EQ(s->actions, ACTION_CODE);
    CHECK(seq_rating(s, 3) == 3);
    s->actions = ACTION_STARS;
    CHECK(seq_rating(s, 3) == 4);
    s->actions = ACTION_HALF_STARS;
    CHECK(seq_rating(s, 3) == 2);
    seq_file_close(s);
    /* Names as text: of items, whose number 0 is the padding, and of users. */
    columns[CATALOGUE] = (column_of){"item.o", COLUMN_U64, 4, (const uint64_t[]){0, 0, 1, 3}};
    columns[N_TOY] = (column_of){"item.t", COLUMN_U8, 3, "abc"};
    CHECK_OK(open_columns(columns, N_TOY + 1, &s));
    CHECK_OK(seq_item_name(s, 2, &text));
    CHECK_STR(buf_str(&text), "bc");
    CHECK_EQ(seq_find_item(s, "a"), 1);
    CHECK_EQ(seq_find_item(s, "bc"), 2);
    CHECK_EQ(seq_find_item(s, "x"), 0);
    seq_file_close(s);
    buf_fini(&text);
}

/* An id has one way to be written: texts that only stand for the same number are other ids. */
TEST(seq_ids_are_numbers_as_written) {
    static const struct {
        const char *text;
        int64_t number;
    } good[] = {{"0", 0},
                {"7", 7},
                {"-7", -7},
                {"10", 10},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN}};
    static const char *const bad[] = {"",
                                      "-",
                                      "+7",
                                      "07",
                                      "-0",
                                      "-07",
                                      "00",
                                      " 7",
                                      "7 ",
                                      "7.0",
                                      "0x7",
                                      "7a",
                                      "1e1",
                                      "--7",
                                      "/",
                                      ":",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "18446744073709551623"};
    int64_t number = -1;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        CHECK(seq_id_number(good[i].text, strlen(good[i].text), &number));
        CHECK_EQ(number, good[i].number);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (seq_id_number(bad[i], strlen(bad[i]), &number)) FAIL_TEST("'%s' is a number", bad[i]);
    CHECK(seq_id_number("789", 2, &number) && number == 78);
}

/* Catalogues without gaps, with few and with many, at the ends of the numbers. */
TEST(seq_file_finds_items_by_number) {
    enum { N = 300 };
    static const int64_t starts[] = {1, 0, -7, INT64_MIN, INT64_MAX - 100000};
    int64_t ids[N + 1] = {0};
    for (size_t k = 0; k < sizeof starts / sizeof *starts; k++)
        for (int gap = 0; gap < 4; gap++) {
            seq_file s = {.n_items = N, .item_id = ids};
            ids[1] = starts[k];
            for (int i = 2; i <= N; i++)
                ids[i] = ids[i - 1] + 1 + (gap == 1 ? i % 50 == 0 : gap * (i % 3) * 40);
            for (uint32_t i = 1; i <= N; i++) {
                CHECK_EQ(seq_find_item_number(&s, ids[i]), i);
                bool is_next = i < N && ids[i + 1] == ids[i] + 1;
                CHECK_EQ(seq_find_item_number(&s, ids[i] + 1), is_next ? i + 1 : 0);
            }
            if (starts[k] != INT64_MIN) CHECK_EQ(seq_find_item_number(&s, starts[k] - 1), 0);
            CHECK_EQ(seq_find_item_number(&s, INT64_MAX), 0);
            CHECK_EQ(seq_find_item_number(&s, ids[1] == INT64_MIN ? 0 : INT64_MIN), 0);
            s.n_items = 0;
            CHECK_EQ(seq_find_item_number(&s, ids[1]), 0);
        }
}

TEST(seq_seconds_round_down) {
    static const int64_t per[] = {1, 1000, 1000000, 1000000000, 10};
    for (size_t i = 0; i < sizeof per / sizeof *per; i++) {
        CHECK_EQ(seq_seconds(0, per[i]), 0);
        CHECK_EQ(seq_seconds(5 * per[i], per[i]), 5);
        CHECK_EQ(seq_seconds(-5 * per[i], per[i]), -5);
        CHECK_EQ(seq_seconds(5 * per[i] - 1, per[i]), 4);
        CHECK_EQ(seq_seconds(-5 * per[i] - 1, per[i]), -6);
        CHECK(seq_seconds(INT64_MAX, per[i]) == INT64_MAX / per[i]);
        CHECK(seq_seconds(INT64_MIN, per[i]) == INT64_MIN / per[i] - (per[i] > 1));
    }
}

TEST(seq_file_refuses_columns_that_do_not_fit) {
    const uint32_t high[] = {1, 2};
    column_of columns[MAX_COLUMNS];
    seq_file *s;
    CHECK_FAILS(open_with(AGES, (column_of){"ctx.age", COLUMN_U32, 2, high}), ERR_FORMAT,
                "user 1 has value 2 of feature 'age', which has 2");
    CHECK_FAILS(open_with(AGES, (column_of){"ctx.age", COLUMN_U32, 1, high}), ERR_FORMAT,
                "ctx.age");
    CHECK_FAILS(open_with(OFFSETS, (column_of){"other", COLUMN_U64, 3, toy_offsets}), ERR_FORMAT,
                "has no events");
    CHECK_FAILS(open_with(ITEMS, (column_of){"other", COLUMN_U32, 3, toy_items}), ERR_FORMAT,
                "has no events");
    CHECK_FAILS(open_with(TIMES, (column_of){"other", COLUMN_I64, 3, toy_times}), ERR_FORMAT,
                "has no column 'time'");
    CHECK_FAILS(open_with(ACTIONS, (column_of){"action", COLUMN_U32, 3, toy_items}), ERR_FORMAT,
                "column 'action' has type");
    CHECK_FAILS(open_with(META, (column_of){"meta", COLUMN_U8, sizeof toy_meta - 1, toy_meta}),
                ERR_FORMAT, "does not end with a zero byte");
    CHECK_FAILS(open_with(META, (column_of){"meta", COLUMN_U8, 0, toy_meta}), ERR_FORMAT,
                "does not end with a zero byte");
    static const char *const metas[] = {
        "{\"action_kind\":5,\"time_per_second\":1,\"catalogue\":2}",
        "{\"action_kind\":-1,\"time_per_second\":1,\"catalogue\":2}",
        "{\"action_kind\":4,\"time_per_second\":0,\"catalogue\":2}",
        "{\"action_kind\":4,\"time_per_second\":1000000001,\"catalogue\":2}",
        "{\"action_kind\":4,\"time_per_second\":1,\"catalogue\":-1}",
        "{\"action_kind\":4,\"time_per_second\":1,\"catalogue\":4294967295}"};
    for (size_t i = 0; i < sizeof metas / sizeof *metas; i++)
        CHECK_FAILS(open_with(META, (column_of){"meta", COLUMN_U8, strlen(metas[i]) + 1, metas[i]}),
                    ERR_FORMAT, "holds a value out of range");
    toy_columns(columns);
    columns[N_TOY] = (column_of){"title.o", COLUMN_U64, 3, two_ends};
    columns[N_TOY + 1] = (column_of){"title.t", COLUMN_U8, 5, "title"};
    CHECK_FAILS(open_columns(columns, N_TOY + 2, &s), ERR_FORMAT, "'title' has 2 entries, not 3");
    columns[N_TOY].name = "user.o";
    columns[N_TOY + 1].name = "user.t";
    CHECK_OK(open_columns(columns, N_TOY + 2, &s));
    CHECK_EQ(seq_find_user(s, "tle"), 1);
    seq_file_close(s);
    columns[N_TOY].name = "item.o";
    columns[N_TOY + 1].name = "item.t";
    CHECK_FAILS(open_columns(columns, N_TOY + 2, &s), ERR_FORMAT, "'item' has 2 entries, not 3");
    CHECK(s == NULL);
}

TEST(seq_file_limits_contextual_features) {
    static char names[MAX_COLUMNS][3][24];
    column_of columns[MAX_COLUMNS];
    seq_file *s;
    toy_columns(columns);
    int n = AGES;
    for (int f = 0; f <= CONTEXT_MAX && n + 3 <= MAX_COLUMNS; f++) {
        static const char *const ends[] = {"", ".o", ".t"};
        for (int k = 0; k < 3; k++)
            snprintf(names[f][k], sizeof names[f][k], "ctx.f%d%s", f, ends[k]);
        columns[n++] = (column_of){names[f][0], COLUMN_U32, 2, toy_values};
        columns[n++] = (column_of){names[f][1], COLUMN_U64, 3, two_ends};
        columns[n++] = (column_of){names[f][2], COLUMN_U8, 5, "youth"};
    }
    CHECK_EQ(n, AGES + 3 * (CONTEXT_MAX + 1));
    CHECK_FAILS(open_columns(columns, n, &s), ERR_FORMAT, "contextual features");
    CHECK_OK(open_columns(columns, n - 3, &s));
    CHECK_EQ(s->n_context, CONTEXT_MAX);
    seq_file_close(s);
}

TEST(jagged_offsets) {
    const uint64_t good[] = {0, 2, 2, 5}, falling[] = {0, 3, 2, 5}, late[] = {1, 2, 3, 5},
                   over[] = {0, 9, 9, 9};
    CHECK_OK(seq_check_offsets(good, 3, 5));
    CHECK_FAILS(seq_check_offsets(falling, 3, 5), ERR_FORMAT, "offset 2 is 2");
    CHECK_FAILS(seq_check_offsets(late, 3, 5), ERR_FORMAT, "offset 0 is 1");
    CHECK_FAILS(seq_check_offsets(over, 3, 5), ERR_FORMAT, "offset 1 is 9");
    CHECK_FAILS(seq_check_offsets(good, 3, 6), ERR_FORMAT, "last offset is 5, not 6");
}

/* Sound checksums, hostile content of items: one thing wrong at a time. */
typedef struct bad_content {
    const char *reason; /* NULL: it is fine */
    uint32_t value[3];
    uint64_t offsets[4];
    double number[3];
    float vector[6];
    uint64_t n_values, n_numbers, n_floats;
    uint64_t ends[3];
} bad_content;

static status open_content(const bad_content *c) {
    column_of columns[MAX_COLUMNS];
    seq_file *s;
    int n = N_TOY;
    toy_columns(columns);
    columns[n++] = (column_of){"con.g", COLUMN_U32, c->n_values, c->value};
    columns[n++] =
        (column_of){"con.g.o", COLUMN_U64, 4, (uint64_t[]){c->ends[0], c->ends[1], 2, 5}};
    columns[n++] = (column_of){"con.g.t", COLUMN_U8, 5, "youth"};
    columns[n++] = (column_of){"con.g.b", COLUMN_U64, 4, c->offsets};
    if (c->n_numbers > 0)
        columns[n++] = (column_of){"con.g.n", COLUMN_F64, c->n_numbers, c->number};
    if (c->n_floats > 0)
        columns[n++] = (column_of){"item_vector", COLUMN_F32, c->n_floats, c->vector};
    status st = open_columns(columns, n, &s);
    seq_file_close(s);
    return st;
}

TEST(seq_file_checks_content_of_items) {
    const double no = NAN;
    const bad_content cases[] = {
        {NULL, {1, 2, 2}, {0, 0, 2, 3}, {0}, {0}, 3, 0, 0, {0}},
        {NULL, {2, 1, 0}, {0, 0, 1, 2}, {no, 5, -1}, {0, 0, 1, 2, 3, 4}, 2, 3, 6, {0}},
        {"item 1 has a bad value of feature 'g'", {2, 1, 2}, {0, 0, 2, 3}, {0}, {0}, 3, 0, 0, {0}},
        {"item 1 has a bad value", {1, 1, 2}, {0, 0, 2, 3}, {0}, {0}, 3, 0, 0, {0}},
        {"item 1 has a bad value", {0, 1, 2}, {0, 0, 2, 3}, {0}, {0}, 3, 0, 0, {0}},
        {"item 2 has a bad value", {1, 2, 3}, {0, 0, 2, 3}, {0}, {0}, 3, 0, 0, {0}},
        {"item 0 has a bad value", {1, 2, 2}, {0, 1, 2, 3}, {0}, {0}, 3, 0, 0, {0}},
        {"con.g.b'", {1, 2, 2}, {0, 2, 1, 3}, {0}, {0}, 3, 0, 0, {0}},
        {"con.g.b'", {1, 2, 2}, {0, 0, 2, 4}, {0}, {0}, 3, 0, 0, {0}},
        {"item 1 has a bad value", {2, 1, 0}, {0, 0, 1, 2}, {no, no, 1}, {0}, 2, 3, 0, {0}},
        {"item 2 has a bad value", {2, 1, 0}, {0, 0, 1, 2}, {no, 1, INFINITY}, {0}, 2, 3, 0, {0}},
        {"item 2 has a bad value", {2, 1, 0}, {0, 0, 1, 1}, {no, 1, 1}, {0}, 1, 3, 0, {0}},
        {"item 1 has a bad value", {1, 2, 0}, {0, 0, 2, 2}, {no, 1, no}, {0}, 2, 3, 0, {0}},
        {"item 0 has a bad value", {2, 1, 0}, {0, 0, 1, 2}, {3, 5, 1}, {0}, 2, 3, 0, {0}},
        {"con.g.n'", {2, 1, 0}, {0, 0, 1, 2}, {no, 5}, {0}, 2, 2, 0, {0}},
        {"item 2 has a bad vector",
         {1, 2, 2},
         {0, 0, 2, 3},
         {0},
         {0, 0, 1, 2, 3, NAN},
         3,
         0,
         6,
         {0}},
        {"item 0 has a bad vector", {1, 2, 2}, {0, 0, 2, 3}, {0}, {0, 1, 1, 2, 3, 4}, 3, 0, 6, {0}},
        {"item_vector'", {1, 2, 2}, {0, 0, 2, 3}, {0}, {0}, 3, 0, 5, {0}},
        {"vectors of 0 numbers", {1, 2, 2}, {0, 0, 2, 3}, {0}, {0}, 3, 0, 2, {0}},
        {"no empty name for value 0", {1, 2, 2}, {0, 0, 2, 3}, {0}, {0}, 3, 0, 0, {0, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cases[i].reason == NULL)
            CHECK_OK(open_content(&cases[i]));
        else
            CHECK_FAILS(open_content(&cases[i]), ERR_FORMAT, cases[i].reason);
}
