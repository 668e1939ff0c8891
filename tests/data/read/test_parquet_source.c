#include <unistd.h>

#include "data/read/parquet_events.h"
#include "oom.h"
#include "parquet_make.h"
#include "prep_test.h"

/* A small file: three events of two users; encodings as a simple writer would choose. */
enum { N_ROWS = 3 };

typedef struct small_file {
    made_column c[4];
    made_page user, item;
    uint32_t second_rating;
    bool rating_levels; /* the first rating is null */
} small_file;

static void put_ints(buf *b, const int64_t *v, int n) {
    for (int i = 0; i < n; i++)
        put_le(b, (uint64_t)v[i], 8);
}

static void small_init(small_file *s) {
    *s = (small_file){.c = {{.name = "user_id", .type = PARQUET_INT64, .converted = -1},
                            {.name = "item_id", .type = PARQUET_BYTE_ARRAY, .converted = 0},
                            {.name = "timestamp", .type = PARQUET_INT64, .converted = -1},
                            {.name = "rating", .type = PARQUET_INT32, .converted = -1}},
                      .user = {.kind = 0, .n_values = N_ROWS},
                      .item = {.kind = 0, .n_values = N_ROWS, .encoding = ENCODING_RLE_DICTIONARY},
                      .second_rating = 4};
}

/* Writes FOLDER/in.parquet. */
static void small_write(small_file *s, int64_t n_rows) {
    static const int64_t users[] = {7, 5, 7}, times[] = {1600000003, 1600000002, 1600000001};
    buf b = {0}, file;
    char path[4096];
    put_ints(&b, users, N_ROWS);
    make_page(&s->c[0], &s->user, &b);
    buf_clear(&b);
    put_plain_text(&b, "tea"), put_plain_text(&b, "never used"), put_plain_text(&b, "milk");
    make_page(&s->c[1], &(made_page){.kind = 2, .n_values = 3}, &b);
    buf_clear(&b);
    put_byte(&b, 2), put_packed(&b, (uint32_t[]){2, 0, 0}, 3, 2);
    make_page(&s->c[1], &s->item, &b);
    buf_clear(&b);
    put_delta(&b, times, N_ROWS);
    make_page(&s->c[2], &(made_page){.n_values = N_ROWS, .encoding = ENCODING_DELTA_BINARY_PACKED},
              &b);
    buf_clear(&b);
    if (s->rating_levels) {
        put_le(&b, 2, 4), put_packed(&b, (uint32_t[]){0, 1, 1}, 3, 1);
    } else {
        put_le(&b, 1, 4);
    }
    put_le(&b, s->second_rating, 4), put_le(&b, 5, 4);
    make_page(&s->c[3], &(made_page){.n_values = N_ROWS, .has_crc = true}, &b);
    make_file(&file, s->c, 4, n_rows);
    snprintf(path, sizeof path, "%s/in.parquet", test_folder());
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(file.data, 1, file.n_bytes, f) == file.n_bytes && fclose(f) == 0);
    buf_fini(&b);
    buf_fini(&file);
}

#define ARGS "parquet --input in.parquet --out out --action-col rating --action-kind stars"

TEST(a_small_file_is_read) {
    small_file s;
    small_init(&s);
    small_write(&s, N_ROWS);
    prep_ok(ARGS " --emit-csv out.csv");
    CHECK_STR(get_file("out.csv"),
              "user_id,item_id,rating,unix_timestamp\n"
              "5,\"[\"\"tea\"\"]\",\"[3]\",\"[1600000002]\"\n"
              "7,\"[\"\"tea\"\", \"\"milk\"\"]\",\"[4, 0]\",\"[1600000001, 1600000003]\"\n");
    prep_ok("parquet --input in.parquet --out out --user-col 1 --item-col ITEM_ID --time-col none "
            "--string-ids --emit-csv out.csv");
    CHECK_CONTAINS(get_file("out.csv"), "\"[\"\"milk\"\", \"\"tea\"\"]\"");
}

/* The same file with something wrong in it; the message names file and column. */
static void fails(small_file *s, const char *text) {
    small_write(s, N_ROWS);
    prep_fails(ARGS, 1, text);
}

/* Rows with a bad value are kept apart, those before and after it are not. */
TEST(bad_rows_are_skipped_where_it_is_allowed) {
    small_file s;
    small_init(&s);
    s.second_rating = 9;
    fails(&s, "9");
    char *out = prep_ok(ARGS " --skip-bad 1 --emit-csv out.csv");
    CHECK_CONTAINS(out, "1 bad");
    CHECK_STR(get_file("out.csv"),
              "user_id,item_id,rating,unix_timestamp\n"
              "7,\"[\"\"tea\"\", \"\"milk\"\"]\",\"[4, 0]\",\"[1600000001, 1600000003]\"\n");
}

TEST(footers_that_lie_are_refused) {
    small_file s;
    small_init(&s);
    s.c[1].claim_offset = 1 << 20;
    fails(&s, "in.parquet: column 'item_id': the footer claims");
    small_init(&s);
    s.c[1].claim_bytes = 1 << 20;
    fails(&s, "column 'item_id': the footer claims");
    small_init(&s);
    s.c[1].claim_bytes = -5;
    fails(&s, "column 'item_id'");
    small_init(&s);
    s.c[0].n_values = 2;
    fails(&s, "column 'user_id' has 5 values in a row group of 3 rows");
    small_init(&s);
    small_write(&s, N_ROWS + 1);
    prep_fails(ARGS, 1, "has 3 values in a row group of 4 rows");
    small_init(&s);
    s.c[2].codec = PARQUET_LZ4_RAW;
    fails(&s, "column 'timestamp': it is compressed by LZ4_RAW");
    small_init(&s);
    s.c[2].codec = 77;
    fails(&s, "method 77, which is unknown");
}

TEST(pages_that_lie_are_refused) {
    small_file s;
    small_init(&s);
    s.user.n_values = 4, s.c[0].n_values = -1;
    fails(&s, "in.parquet: column 'user_id', before byte");
    small_init(&s);
    s.user.claim_bytes = 1;
    fails(&s, "an uncompressed page of 24 bytes says it has 25");
    small_init(&s);
    s.user.claim_bytes = 1 << 30;
    fails(&s, "a page has 1073741848 bytes; at most 268435456");
    small_init(&s);
    s.user.has_crc = s.user.has_wrong_crc = true;
    fails(&s, "column 'user_id', before byte 36: a page does not match its checksum");
    small_init(&s);
    s.user.encoding = ENCODING_BIT_PACKED;
    fails(&s, "the encoding BIT_PACKED of INT64 values is not read");
    small_init(&s);
    s.user.encoding = ENCODING_RLE_DICTIONARY;
    fails(&s, "a page needs a dictionary that is not there");
}

TEST(columns_that_cannot_be_read_are_refused) {
    small_file s;
    small_init(&s);
    s.c[0].converted = 5;
    fails(&s, "in.parquet: column 'user_id': decimals are not read");
    small_init(&s);
    s.c[0].converted = 10;
    fails(&s, "column 'user_id' (a time as INT64) cannot be the user");
    small_init(&s);
    s.c[3].converted = 0;
    fails(&s, "column 'rating': its logical type does not fit its type INT32");
    small_init(&s);
    small_write(&s, N_ROWS);
    prep_fails("parquet --input in.parquet --out out --user-col who", 1,
               "there is no column 'who'");
    prep_fails("parquet --input in.parquet --out out --user-col item_id", 2, "two roles");
    prep_fails("parquet --input in.parquet --out out --header no", 2, "--header");
    prep_fails("parquet --input in.parquet --out out --time-unit h", 2, "--time-unit");
    put_file("in.parquet", "user_id,item_id\n1,2\n");
    prep_fails(ARGS, 1, "it does not begin with PAR1; if it is text, 'hstu prep csv' reads it");
    put_file("in.parquet", "{\"user_id\": 1, \"item_id\": 2}\n");
    prep_fails(ARGS, 1, "it looks like JSON lines: 'hstu prep jsonl' reads them");
    char *said;
    CHECK_EQ(run_shell(&said, "gzip -f in.parquet && mv in.parquet.gz in.parquet"), 0);
    prep_fails(ARGS, 1, "unpack it"); /* without libarchive in other words */
    put_file("in.parquet", "a\tb\1----------");
    CHECK(run_prep(&said, ARGS) == 1 && strstr(said, "if it is text") == NULL);
    put_file("in.parquet", "PAR1----------");
    prep_fails(ARGS, 1, "it does not end with PAR1; was it cut off?");
    put_file("in.parquet", "PAR1");
    prep_fails(ARGS, 1, "not a Parquet file");
    CHECK_EQ(run_shell(&said, "rm in.parquet && mkfifo in.parquet"), 0);
    prep_fails("parquet --input in.parquet --out out", 2, "a pipe cannot be");
    CHECK_EQ(run_shell(&said, "rm in.parquet"), 0);
    put_file("in.parquet", "PARE12345678PARE");
    prep_fails(ARGS, 1, "encrypted");
}

TEST(nulls_and_bad_values_are_named_by_row) {
    small_file s;
    buf b = {0};
    char *said;
    small_init(&s);
    /* The user column becomes optional; of four rows the third is null. */
    s.c[0].repetition = MADE_OPTIONAL;
    put_le(&b, 2, 4), put_packed(&b, (uint32_t[]){1, 1, 0}, 3, 1);
    put_ints(&b, (int64_t[]){7, 5}, 2);
    make_page(&s.c[0], &(made_page){.n_values = 3}, &b);
    s.user.n_values = 0;
    small_write(&s, N_ROWS);
    prep_fails(ARGS, 1, "in.parquet: row 3: user_id: it is null");
    /* A null action is an unknown one, and the column is taken for what it is without it. */
    small_init(&s);
    s.c[3].repetition = MADE_OPTIONAL;
    s.rating_levels = true;
    small_write(&s, N_ROWS);
    prep_ok("parquet --input in.parquet --out out --emit-csv out.csv");
    CHECK_CONTAINS(get_file("out.csv"), "7,\"[\"\"tea\"\", \"\"milk\"\"]\",\"[4, null]\"");
    run_shell(&said, "rm -r out out.csv");
    small_init(&s);
    small_write(&s, N_ROWS);
    prep_fails("parquet --input in.parquet --out out --action-col user_id --user-col item_id "
               "--item-col rating --action-kind stars",
               1, "row 1: user_id: '7' is not a whole number from 1 to 5");
    buf_fini(&b);
}

/* parquet-java (Spark) and fastparquet write BIT_PACKED where there are no levels. */
TEST(levels_that_are_not_there_may_have_any_encoding) {
    small_file s;
    char *said;
    small_init(&s);
    s.user.define_encoding = s.user.repeat_encoding = ENCODING_BIT_PACKED;
    small_write(&s, N_ROWS);
    prep_ok(ARGS);
    for (int is_old = 0; is_old < 2; is_old++) {
        buf b = {0};
        made_page page = {.n_values = N_ROWS, .repeat_encoding = ENCODING_BIT_PACKED};
        small_init(&s);
        s.c[0].repetition = MADE_OPTIONAL;
        put_le(&b, 2, 4), put_packed(&b, (uint32_t[]){1, 1, 1}, N_ROWS, 1);
        put_ints(&b, (int64_t[]){7, 5, 7}, N_ROWS);
        if (is_old) page.define_encoding = ENCODING_BIT_PACKED;
        make_page(&s.c[0], &page, &b);
        s.user.n_values = 0;
        small_write(&s, N_ROWS);
        run_shell(&said, "rm -r out");
        if (is_old)
            prep_fails(ARGS, 1, "levels in the old encoding BIT_PACKED are not read");
        else
            prep_ok(ARGS);
        buf_fini(&b);
    }
}

/* A row a user, with null and empty lists; levels as the format wants them: definition 0 is a null
 * list, 1 an empty one, 3 a value. */
static void put_list_levels(buf *b, bool has_lengths, int *repeat_bytes, int *define_bytes) {
    static const uint32_t repeat[] = {0, 1, 0, 0, 0, 1, 1}, define[] = {3, 3, 0, 1, 3, 3, 3};
    for (int k = 0; k < 2; k++) {
        buf levels = {0};
        put_packed(&levels, k == 0 ? repeat : define, 7, k == 0 ? 1 : 2);
        if (has_lengths) put_le(b, levels.n_bytes, 4);
        CHECK_OK(buf_append(b, levels.data, levels.n_bytes));
        *(k == 0 ? repeat_bytes : define_bytes) = (int)levels.n_bytes;
        buf_fini(&levels);
    }
}

static void write_lists(bool is_v2, bool is_uneven) {
    made_column c[3] = {
        {.name = "user_id", .type = PARQUET_INT64, .converted = -1},
        {.name = "item_id", .type = PARQUET_INT64, .converted = -1, .is_list = true},
        {.name = "timestamp", .type = PARQUET_INT64, .converted = -1, .is_list = true}};
    buf b = {0}, file;
    char path[4096];
    put_ints(&b, (int64_t[]){1, 2, 3, 4}, 4);
    make_page(&c[0], &(made_page){.n_values = 4}, &b);
    for (int i = 1; i < 3; i++) {
        int repeat_bytes = 0, define_bytes = 0;
        buf_clear(&b);
        put_list_levels(&b, !is_v2, &repeat_bytes, &define_bytes);
        if (is_uneven && i == 2) b.data[is_v2 ? 1 : 5] ^= 6; /* another row begins */
        put_ints(&b,
                 i == 1 ? (int64_t[]){11, 12, 13, 14, 15}
                        : (int64_t[]){1600000005, 1600000004, 1600000003, 1600000002, 1600000001},
                 5);
        made_page page = {.kind = is_v2 ? 3 : 0, .n_values = 7, .n_nulls = 2};
        if (is_v2) page.repeat_bytes = repeat_bytes, page.define_bytes = define_bytes;
        make_page(&c[i], &page, &b);
    }
    make_file(&file, c, 3, 4);
    snprintf(path, sizeof path, "%s/in.parquet", test_folder());
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(file.data, 1, file.n_bytes, f) == file.n_bytes && fclose(f) == 0);
    buf_fini(&b);
    buf_fini(&file);
}

TEST(lists_become_events) {
    for (int v2 = 0; v2 < 2; v2++) {
        write_lists(v2, false);
        prep_ok("parquet --input in.parquet --out out --emit-csv out.csv");
        CHECK_STR(get_file("out.csv"),
                  "user_id,item_id,rating,unix_timestamp\n"
                  "1,\"[12, 11]\",\"[0, 0]\",\"[1600000004, 1600000005]\"\n"
                  "4,\"[15, 14, 13]\",\"[0, 0, 0]\",\"[1600000001, 1600000002, 1600000003]\"\n");
        write_lists(v2, true);
        run_shell(&(char *){NULL}, "rm -rf out out.csv");
        prep_fails("parquet --input in.parquet --out out", 1,
                   "row 1: the lists of item_id and timestamp have different lengths");
    }
}

/* Three values of a column; as many as its type takes are read. */
typedef struct typed_values {
    int type, converted; /* converted: 0 for none here, as text needs none */
    bool is_uuid, is_local;
    int64_t i[3];
    double d[3];
    const char *t[3];
} typed_values;

static void put_typed(buf *b, const typed_values *v, int row) {
    float narrow = (float)v->d[row];
    uint32_t float_bits;
    uint64_t bits;
    memcpy(&bits, &v->d[row], 8);
    memcpy(&float_bits, &narrow, 4);
    if (v->type == PARQUET_DOUBLE) put_le(b, bits, 8);
    if (v->type == PARQUET_FLOAT) put_le(b, float_bits, 4);
    if (v->type == PARQUET_INT64) put_le(b, (uint64_t)v->i[row], 8);
    if (v->type == PARQUET_INT32) put_le(b, (uint64_t)v->i[row], 4);
    if (v->type == PARQUET_BYTE_ARRAY) put_plain_text(b, v->t[row]);
    for (int k = 0; v->type == PARQUET_FIXED && k < 16; k++)
        put_byte(b, (unsigned)(16 * k + v->i[row]) & 0xff);
}

static const typed_values int_users = {.type = PARQUET_INT64, .i = {7, 5, 7}},
                          int_items = {.type = PARQUET_INT64, .i = {11, 12, 13}},
                          int_times = {.type = PARQUET_INT64,
                                       .i = {1600000003, 1600000002, 1600000001}};

/* Writes FOLDER/name: users, items and times. */
static void write_typed(const char *name, const typed_values *users, const typed_values *items,
                        const typed_values *times) {
    static const char *const names[] = {"user_id", "item_id", "timestamp"};
    const typed_values *all[] = {users, items, times};
    made_column c[3];
    buf b = {0}, file;
    char path[4096];
    for (int i = 0; i < 3; i++) {
        c[i] = (made_column){.name = names[i],
                             .type = all[i]->type,
                             .converted = all[i]->type == PARQUET_BYTE_ARRAY ? 0
                                          : all[i]->converted > 0            ? all[i]->converted
                                                                             : -1,
                             .fixed_bytes = all[i]->type == PARQUET_FIXED ? 16 : 0,
                             .is_uuid = all[i]->is_uuid,
                             .is_local = all[i]->is_local};
        buf_clear(&b);
        for (int row = 0; row < 3; row++)
            put_typed(&b, all[i], row);
        make_page(&c[i], &(made_page){.n_values = 3}, &b);
    }
    make_file(&file, c, 3, 3);
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(file.data, 1, file.n_bytes, f) == file.n_bytes && fclose(f) == 0);
    buf_fini(&b);
    buf_fini(&file);
}

/* Refuses an input, and writes nothing. */
static void refuses(const char *input, const char *reason) {
    char args[128], *said;
    run_shell(&said, "rm -rf out out.csv");
    snprintf(args, sizeof args, "parquet --input %s --out out", input);
    prep_fails(args, 1, reason);
}

/* Ids of every type that can be one: as whole numbers, or as text. */
TEST(ids_of_every_type_are_read) {
    static const struct {
        typed_values items;
        const char *reads; /* of user 7, in the order of the times; else the reason */
    } cases[] = {
        {{.type = PARQUET_INT32, .i = {-4, 5, 6}}, "[6, -4]"},
        {{.type = PARQUET_INT64, .i = {INT64_MIN + 1, 5, INT64_MAX - 1}},
         "[9223372036854775806, -9223372036854775807]"},
        {{.type = PARQUET_DOUBLE, .d = {-3, 4, 9007199254740992.}}, "[9007199254740992, -3]"},
        {{.type = PARQUET_FLOAT, .d = {16777216, 4, 5}}, "[5, 16777216]"},
        {{.type = PARQUET_BYTE_ARRAY, .t = {"tea", "x", "a b"}}, "[\"\"a b\"\", \"\"tea\"\"]"},
        {{.type = PARQUET_FIXED, .is_uuid = true, .i = {0, 5, 10}},
         "[\"\"0a1a2a3a-4a5a-6a7a-8a9a-aabacadaeafa\"\", "
         "\"\"00102030-4050-6070-8090-a0b0c0d0e0f0\"\"]"},
        {{.type = PARQUET_DOUBLE, .d = {3, 4.5, 5}},
         "row 2: item_id: 4.5 is not a whole number that can be an id"},
        {{.type = PARQUET_DOUBLE, .d = {3, 4, 9007199254740994.}},
         "row 3: item_id: 90071992547409"},
        {{.type = PARQUET_DOUBLE, .d = {NAN, 4, 5}}, "row 1: item_id: nan is not a whole number"},
        {{.type = PARQUET_BYTE_ARRAY, .t = {"a", "", "b"}}, "row 2: item_id: it is empty"},
        {{.type = PARQUET_BYTE_ARRAY, .t = {"a", "b", "c\xff"}},
         "row 3: item_id: 'c?' is not UTF-8 text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_typed("in.parquet", &int_users, &cases[i].items, &int_times);
        if (cases[i].reads[0] == '[') {
            char want[256];
            prep_ok("parquet --input in.parquet --out out --emit-csv out.csv");
            snprintf(want, sizeof want, "\n7,\"%s\",", cases[i].reads);
            CHECK_CONTAINS(get_file("out.csv"), want);
        } else {
            refuses("in.parquet", cases[i].reads);
        }
    }
}

/* Times of every type; ticks are as fine as the values need. */
TEST(times_of_every_type_are_read) {
    static const struct {
        typed_values times;
        const char *options, *reads;
    } cases[] = {
        {{.type = PARQUET_INT64, .i = {1600000003, 2, 1600000001}}, "", "[1600000001, 1600000003]"},
        {{.type = PARQUET_INT64, .i = {1600000003500, 2, 1600000001000}},
         "--time-unit ms",
         "[1600000001000, 1600000003500]"},
        {{.type = PARQUET_INT32, .converted = 6, .i = {18000, 5, -5}}, "", "[-432000, 1555200000]"},
        {{.type = PARQUET_INT64, .converted = 9, .i = {1600000003000, 2000, 1000}},
         "",
         "[1, 1600000003]"},
        {{.type = PARQUET_INT64, .converted = 10, .i = {1600000003000001, 1, 1000000}},
         "",
         "[1000000, 1600000003000001]"},
        {{.type = PARQUET_DOUBLE, .d = {1600000003.25, 2, 1600000001}},
         "",
         "[1600000001000, 1600000003250]"},
        {{.type = PARQUET_BYTE_ARRAY,
          .t = {"2020-09-13T12:26:43Z", "2020-09-13T12:26:43Z", "2020-09-13T12:26:41Z"}},
         "",
         "[1600000001, 1600000003]"},
        {{.type = PARQUET_DOUBLE, .d = {1600000003, 1e300, 1600000001}}, "", "!row 2: timestamp: "},
        {{.type = PARQUET_DOUBLE, .d = {1600000003, 5, NAN}}, "", "!row 3: timestamp: "},
        {{.type = PARQUET_INT32, .converted = 6, .i = {18000, 1, INT32_MAX}},
         "",
         "!row 3: timestamp: "},
        {{.type = PARQUET_INT64, .converted = 9, .i = {1, 1, 1}},
         "--time-unit s",
         "!column 'timestamp' has timestamps, which have their unit"},
        /* Timestamps without a zone are local times; others are not. */
        {{.type = PARQUET_INT64, .is_local = true, .i = {1600000003000000, 2, 1600000001000000}},
         "",
         "[1600000001000000, 1600000003000000]"},
        {{.type = PARQUET_INT64, .is_local = true, .i = {1600000003000000, 1, 1600000001000001}},
         "--time-zone +01:00",
         "[1599996401000001, 1599996403000000]"},
        {{.type = PARQUET_INT32, .converted = 6, .i = {18000, 5, -5}},
         "--time-zone -01:00",
         "[-428400, 1555203600]"},
        {{.type = PARQUET_INT64, .converted = 9, .i = {1, 1, 1}},
         "--time-zone +01:00",
         "!has timestamps, which have their zone, UTC; leave --time-zone out"},
        {{.type = PARQUET_INT64, .converted = 9, .i = {1, 1, 1}},
         "--time-format %F",
         "!has timestamps, which have their form; leave --time-format out"},
        {{.type = PARQUET_BYTE_ARRAY, .t = {"13.9.2020", "14.9.2020", "12.9.2020"}},
         "--time-format %d.%m.%Y --time-zone -01:00",
         "[1599872400, 1599958800]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[256], want[256], *said;
        write_typed("in.parquet", &int_users, &int_items, &cases[i].times);
        snprintf(args, sizeof args, "parquet --input in.parquet --out out %s --emit-csv out.csv",
                 cases[i].options);
        if (cases[i].reads[0] == '!') {
            CHECK(run_prep(&said, args) != 0);
            CHECK_CONTAINS(said, cases[i].reads + 1);
            continue;
        }
        prep_ok(args);
        snprintf(want, sizeof want, "\n7,\"[13, 11]\",\"[0, 0]\",\"%s\"\n", cases[i].reads);
        CHECK_CONTAINS(get_file("out.csv"), want);
    }
}

/* Halves of stars are exact; none is below zero. */
TEST(actions_of_doubles_are_read) {
    typed_values stars = {.type = PARQUET_DOUBLE, .d = {4.5, .5, 5}};
    const char *args = "parquet --input in.parquet --out out --emit-csv out.csv --time-col none "
                       "--action-col timestamp --action-kind half-stars";
    char *said;
    write_typed("in.parquet", &int_users, &int_items, &stars);
    prep_ok(args);
    CHECK_STR(get_file("out.csv"), "user_id,item_id,rating,unix_timestamp\n5,\"[12]\",\"[0]\",\"[0]"
                                   "\"\n7,\"[11, 13]\",\"[8, 9]\",\"[0, 0]\"\n");
    stars.d[1] = NAN;
    write_typed("in.parquet", &int_users, &int_items, &stars);
    CHECK_CONTAINS(prep_ok(args), "Unknown                1   events without an action");
    CHECK_CONTAINS(get_file("out.csv"), "\n5,\"[12]\",\"[null]\"");
    for (int i = 0; i < 3; i++) {
        stars.d[1] = (double[]){-.5, 5.5, .25}[i];
        write_typed("in.parquet", &int_users, &int_items, &stars);
        int code = run_prep(&said, args);
        if (code != 1 || strstr(said, "row 2: timestamp: ") == NULL)
            FAIL_TEST("%g: code %d: %s", stars.d[1], code, said);
    }
}

/* The parts of a data set have ids and times of one kind each. */
TEST(parts_must_agree) {
    static const typed_values wide = {.type = PARQUET_INT32, .i = {1, 2, 3}},
                              text = {.type = PARQUET_BYTE_ARRAY, .t = {"1", "2", "3"}},
                              dates = {.type = PARQUET_INT32, .converted = 6, .i = {1, 2, 3}};
    char *said;
    CHECK_EQ(run_shell(&said, "mkdir in"), 0);
    write_typed("in/a.parquet", &int_users, &int_items, &int_times);
    write_typed("in/b.parquet", &wide, &wide, &int_times);
    prep_ok("parquet --input in --out out");
    write_typed("in/b.parquet", &int_users, &text, &int_times);
    refuses("in",
            "in/b.parquet: column 'item_id' has BYTE_ARRAY, but INT64 in in/a.parquet; the parts "
            "of a data set must agree");
    prep_ok("parquet --input in --out out --string-ids");
    write_typed("in/b.parquet", &int_users, &int_items, &dates);
    refuses("in", "in/b.parquet: column 'timestamp' has dates, but INT64 in in/a.parquet");
}

/* The packages without which a build cannot read a codec; NULL: it can. */
#ifdef HSTU_HAS_SNAPPY
#define SNAPPY_LACKS NULL
#else
#define SNAPPY_LACKS "SNAPPY, which this build cannot read; install libsnappy-dev"
#endif
#ifdef HSTU_HAS_ZSTD
#define ZSTD_LACKS NULL
#else
#define ZSTD_LACKS "ZSTD, which this build cannot read; install libzstd-dev"
#endif
#ifdef HSTU_HAS_ZLIB
#define GZIP_LACKS NULL
#else
#define GZIP_LACKS "GZIP, which this build cannot read; install zlib1g-dev"
#endif

/* The files of tests/parquet were written by pyarrow, polars and duckdb (matrix.py --golden); the
 * csv beside each is what Python read of it. */
TEST(files_of_three_writers_are_read) {
    static const struct {
        const char *name, *lacks;
    } files[] = {
        {"pyarrow_v1", SNAPPY_LACKS},  {"pyarrow_v2", ZSTD_LACKS},  {"pyarrow_delta", NULL},
        {"pyarrow_lists", GZIP_LACKS}, {"polars", ZSTD_LACKS},      {"polars_lists", SNAPPY_LACKS},
        {"duckdb_v1", SNAPPY_LACKS},   {"duckdb_v2", SNAPPY_LACKS}, {"duckdb_lists", SNAPPY_LACKS},
    };
    char args[8192], root[2048], *out;
    CHECK(getcwd(root, sizeof root) != NULL);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(args, sizeof args, "parquet --input '%s/tests/parquet/%s.parquet' --out out", root,
                 files[i].name);
        if (files[i].lacks != NULL) {
            prep_fails(args, 1, files[i].lacks);
            continue;
        }
        strcat(args, " --emit-csv parquet.csv");
        prep_ok(args);
        snprintf(args, sizeof args,
                 "csv --input '%s/tests/parquet/%s.csv' --out out --emit-csv csv.csv", root,
                 files[i].name);
        prep_ok(args);
        char *got = get_file("parquet.csv");
        CHECK(strlen(got) > 1000);
        CHECK_STR(got, get_file("csv.csv"));
        run_shell(&out, "rm -rf out csv.csv parquet.csv");
    }
}

typedef struct read_once {
    const char *path;
} read_once;

static status add_group(void *ctx, const parquet_group *g) {
    events_group *to = ctx;
    *to = (events_group){.n_rows = g->n_rows, .first_row = g->first_row};
    for (int i = 0; i < N_EVENT_ROLES; i++)
        to->chunk[i] = g->chunk[i];
    return OK;
}

/* Everything the reader allocates: footer, schema, pages, dictionaries, blocks. */
static status read_file(void *ctx) {
    static const char *const names[] = {"user_id", "item_id", "timestamp", "rating"};
    const read_once *r = ctx;
    const builder_options options = {
        .has_text_items = true, .actions = ACTION_STARS, .has_ns_times = true};
    csv_layout layout = {.has_text_items = true, .actions = ACTION_STARS};
    parquet_file f = {.fd = -1};
    events_file file = {.path = r->path, .n_columns = N_EVENT_ROLES};
    events_group group = {0};
    events_worker *w = NULL;
    builder *b = NULL;
    bool is_found = true;
    time_plan_set(&layout.times, TIME_NUMBER, UNIT_S, true);
    status st = parquet_file_open(&f, r->path);
    for (int i = 0; st == OK && i < N_EVENT_ROLES; i++) {
        file.role[i] = (event_role)i;
        st = parquet_find_column(&f, names[i], &file.column[i], &is_found);
        CHECK(st != OK || is_found);
    }
    if (st == OK) st = parquet_read_groups(&f, file.column, N_EVENT_ROLES, add_group, &group);
    if (st == OK) st = builder_create(&b, &options, NULL);
    if (st == OK) st = events_worker_create(&w, builder_get_sink(b, 0), &layout);
    if (st == OK) st = events_worker_read(w, &file, &group, 0);
    events_worker_destroy(w);
    builder_destroy(b);
    parquet_file_close(&f);
    return st;
}

TEST(every_allocation_may_fail) {
    char path[4096];
    small_file s;
    small_init(&s);
    small_write(&s, N_ROWS);
    snprintf(path, sizeof path, "%s/in.parquet", test_folder());
    read_once r = {path};
    CHECK_OK(read_file(&r));
    CHECK(oom_at_each_allocation(read_file, &r) > 20);
}
