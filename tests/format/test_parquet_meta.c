#include "format/parquet_meta.h"

#include "parquet_make.h"

static thrift reader(const buf *b) {
    const unsigned char *at = (const unsigned char *)buf_str(b);
    return (thrift){.at = at, .end = at + b->n_bytes};
}

typedef struct wanted {
    int32_t narrow, last, id, n;
    int64_t wide;
    bool flag, is_there, is_missing;
    thrift_bytes text;
} wanted;

static const thrift_want nothing[] = {{0}};

TEST(fields_have_numbers_and_types) {
    static const thrift_want inner[] = {WANT(1, I32, wanted, last), {0}};
    static const thrift_want wants[] = {WANT(1, I32, wanted, narrow),
                                        WANT(3, BOOL, wanted, flag),
                                        WANT(20, I64, wanted, wide),
                                        WANT(21, BYTES, wanted, text),
                                        WANT(21, SEEN, wanted, is_there),
                                        {22, WANT_STRUCT, 0, inner, NULL},
                                        WANT(23, SEEN, wanted, is_missing),
                                        WANT(THRIFT_ANY, ID, wanted, id),
                                        {0}};
    buf b = {0};
    put_byte(&b, 0x15); /* field 1 by its distance: i32 */
    put_zigzag(&b, -3);
    put_byte(&b, 0x21); /* field 3: true */
    put_i64(&b, 20, INT64_MIN);
    put_text(&b, 21, "text");
    put_field(&b, 22, THRIFT_STRUCT), put_i32(&b, 1, 7), put_byte(&b, 0);
    put_byte(&b, 0);
    thrift t = reader(&b);
    wanted w = {0};
    CHECK_OK(thrift_read(&t, wants, &w));
    CHECK(t.at == t.end);
    CHECK_EQ(w.narrow, -3);
    CHECK(w.flag && w.is_there && !w.is_missing);
    CHECK(w.wide == INT64_MIN);
    CHECK(w.text.n == 4 && memcmp(w.text.at, "text", 4) == 0);
    CHECK_EQ(w.last, 7);
    CHECK_EQ(w.id, 22);
    buf_fini(&b);
}

static status read_as(want_kind kind, int type) {
    const thrift_want wants[] = {{1, kind, 0, nothing, NULL}, {0}};
    wanted w = {0};
    buf b = {0};
    put_field(&b, 1, type), put_le(&b, 0, 9);
    thrift t = reader(&b);
    status st = thrift_read(&t, wants, &w);
    buf_fini(&b);
    return st;
}

TEST(a_value_of_another_type_is_refused) {
    CHECK_FAILS(read_as(WANT_I32, THRIFT_BINARY), ERR_FORMAT,
                "field 1 has type 8 and should be a number");
    CHECK_FAILS(read_as(WANT_I64, THRIFT_TRUE), ERR_FORMAT, "should be a number");
    CHECK_FAILS(read_as(WANT_BOOL, THRIFT_I32), ERR_FORMAT, "should be a boolean");
    CHECK_FAILS(read_as(WANT_BYTES, THRIFT_LIST), ERR_FORMAT, "should be a string");
    CHECK_FAILS(read_as(WANT_STRUCT, THRIFT_MAP), ERR_FORMAT, "should be a struct");
    CHECK_FAILS(read_as(WANT_LIST, THRIFT_STRUCT), ERR_FORMAT, "should be a list");
}

static status count_element(void *to, thrift *t, uint64_t i, uint64_t n) {
    static const thrift_want wants[] = {WANT(1, I32, wanted, last), {0}};
    wanted *w = to;
    CHECK_EQ(i, w->n);
    w->n++;
    CHECK_EQ(n, 2);
    return thrift_read(t, wants, w);
}

TEST(lists_are_read_element_by_element) {
    static const thrift_want wants[] = {{1, WANT_LIST, 0, NULL, count_element}, {0}};
    wanted w = {0};
    buf b = {0};
    put_list(&b, 1, THRIFT_STRUCT, 2), put_i32(&b, 1, 5), put_byte(&b, 0), put_byte(&b, 0);
    put_byte(&b, 0);
    thrift t = reader(&b);
    CHECK_OK(thrift_read(&t, wants, &w));
    CHECK(w.n == 2 && w.last == 5 && t.at == t.end);
    buf_clear(&b);
    put_list(&b, 1, THRIFT_I32, 1), put_zigzag(&b, 1), put_byte(&b, 0);
    t = reader(&b);
    CHECK_FAILS(thrift_read(&t, wants, &w), ERR_FORMAT,
                "field 1 is a list of type 5 and should be of type 12");
    buf_fini(&b);
}

TEST(a_byte_is_a_number) {
    static const thrift_want wants[] = {WANT(1, I32, wanted, narrow), {0}};
    wanted w = {0};
    buf b = {0};
    put_field(&b, 1, THRIFT_BYTE), put_byte(&b, 0xfd), put_byte(&b, 0);
    thrift t = reader(&b);
    CHECK_OK(thrift_read(&t, wants, &w));
    CHECK_EQ(w.narrow, -3);
    buf_clear(&b);
    put_field(&b, 1, THRIFT_BYTE);
    t = reader(&b);
    CHECK_FAILS(thrift_read(&t, wants, &w), ERR_FORMAT, "");
    buf_clear(&b);
    put_i64(&b, 1, INT64_C(1) << 31), put_byte(&b, 0);
    t = reader(&b);
    CHECK_FAILS(thrift_read(&t, wants, &w), ERR_FORMAT, "field 1 does not fit 32 bits");
    buf_fini(&b);
}

TEST(unknown_fields_of_every_type_are_skipped) {
    buf b = {0};
    put_field(&b, 1, THRIFT_TRUE);
    put_field(&b, 2, THRIFT_BYTE), put_byte(&b, 7);
    put_field(&b, 3, THRIFT_DOUBLE), put_le(&b, 0, 8);
    put_list(&b, 4, THRIFT_TRUE, 3), put_le(&b, 0, 3);
    put_list(&b, 5, THRIFT_STRUCT, 2), put_i32(&b, 1, 5), put_byte(&b, 0), put_byte(&b, 0);
    put_field(&b, 6, THRIFT_MAP), put_varint(&b, 2), put_byte(&b, 0x85); /* text -> i32 */
    for (int i = 0; i < 2; i++)
        put_varint(&b, 1), put_byte(&b, 'k'), put_zigzag(&b, 70000);
    put_field(&b, 7, THRIFT_MAP), put_varint(&b, 0);
    put_i32(&b, 8, 99);
    put_byte(&b, 0);
    thrift t = reader(&b);
    static const thrift_want wants[] = {WANT(8, I32, wanted, last), {0}};
    wanted w = {0};
    CHECK_OK(thrift_read(&t, wants, &w));
    CHECK_EQ(w.last, 99);
    CHECK(t.at == t.end);
    buf_fini(&b);
}

/* Every shorter text must fail as "short", and never be read past its end (the sanitizer sees). */
TEST(cut_off_data_is_short) {
    buf b = {0};
    put_list(&b, 1, THRIFT_STRUCT, 1), put_text(&b, 4, "name"), put_byte(&b, 0);
    put_field(&b, 2, THRIFT_DOUBLE), put_le(&b, 1, 8);
    put_byte(&b, 0);
    for (size_t n = 0; n < b.n_bytes; n++) {
        unsigned char *exact = malloc(n + 1);
        memcpy(exact, b.data, n);
        thrift t = {.at = exact, .end = exact + n};
        CHECK_EQ(thrift_read(&t, nothing, NULL), ERR_FORMAT);
        CHECK(t.is_short);
        free(exact);
    }
    buf_fini(&b);
}

static status skip_one(const buf *b) {
    thrift t = reader(b);
    status st = thrift_read(&t, nothing, NULL);
    CHECK(st == OK || !t.is_short || strstr(status_reason(), "ends") != NULL);
    return st;
}

TEST(hostile_numbers_are_refused) {
    buf b = {0};
    put_field(&b, 1, THRIFT_I64);
    for (int i = 0; i < 11; i++)
        put_byte(&b, 0xff);
    CHECK_FAILS(skip_one(&b), ERR_FORMAT, "more than 64 bits");
    buf_clear(&b);
    put_field(&b, 1, THRIFT_LIST);
    for (int i = 0; i < 40; i++)
        put_byte(&b, 0x19); /* a list with one list */
    CHECK_FAILS(skip_one(&b), ERR_FORMAT, "nests more than");
    buf_clear(&b);
    put_list(&b, 1, THRIFT_I32, SIZE_MAX);
    CHECK_FAILS(skip_one(&b), ERR_FORMAT, "ends in the middle");
    buf_clear(&b);
    put_field(&b, 1, 14);
    CHECK_FAILS(skip_one(&b), ERR_FORMAT, "type 14 is unknown");
    buf_clear(&b);
    put_field(&b, 40000, THRIFT_I32);
    CHECK_FAILS(skip_one(&b), ERR_FORMAT, "16 bits");
    buf_fini(&b);
}

/* Opens a file without rows whose one column has a converted type (-1: none) and, as field 10 of a
 * Thrift type (0: none), these bytes of a logical type. */
static status open_schema(parquet_file *f, int converted, int logical, const char *bytes,
                          size_t n_bytes) {
    static char path[512];
    buf b = {0};
    CHECK_OK(buf_text(&b, "PAR1"));
    put_list(&b, 2, THRIFT_STRUCT, 2);
    put_element(&b, "root", -1, 0, 1, -1, 0, false, false);
    put_i32(&b, 1, PARQUET_INT64), put_text(&b, 4, "c");
    if (converted >= 0) put_i32(&b, 6, converted);
    if (logical > 0) put_field(&b, 10, logical);
    CHECK_OK(buf_append(&b, bytes, n_bytes));
    put_byte(&b, 0);
    put_i64(&b, 3, 0);
    put_byte(&b, 0);
    put_le(&b, b.n_bytes - 4, 4);
    CHECK_OK(buf_text(&b, "PAR1"));
    snprintf(path, sizeof path, "%s/a.parquet", test_folder());
    FILE *out = fopen(path, "wb");
    CHECK(out != NULL && fwrite(b.data, 1, b.n_bytes, out) == b.n_bytes && fclose(out) == 0);
    buf_fini(&b);
    return parquet_file_open(f, path);
}

/* Both annotations of a column; the newer one wins.  Numbers are those of the format. */
TEST(columns_mean_what_their_annotations_say) {
    static const struct {
        int converted;
        parquet_meaning meaning;
    } older[] = {
        {0, MEANS_TEXT},         {4, MEANS_TEXT},          {5, MEANS_DECIMAL},
        {6, MEANS_DATE},         {7, MEANS_TIME_OF_DAY},   {8, MEANS_TIME_OF_DAY},
        {9, MEANS_MILLISECONDS}, {10, MEANS_MICROSECONDS}, {11, MEANS_UNSIGNED},
        {14, MEANS_UNSIGNED},    {15, MEANS_PLAIN},        {18, MEANS_PLAIN},
        {19, MEANS_TEXT},        {20, MEANS_OTHER},        {21, MEANS_OTHER},
        {22, MEANS_OTHER},       {1000000, MEANS_OTHER},
    };
    static const struct {
        const char *bytes; /* of the union: fields in Thrift's short form */
        size_t n;
        parquet_meaning meaning;
    } newer[] = {
        {"\x1c\0\0", 3, MEANS_TEXT},
        {"\x4c\0\0", 3, MEANS_TEXT},
        {"\x5c\0\0", 3, MEANS_DECIMAL},
        {"\x6c\0\0", 3, MEANS_DATE},
        {"\x7c\0\0", 3, MEANS_TIME_OF_DAY},
        {"\xcc\0\0", 3, MEANS_TEXT},
        {"\xdc\0\0", 3, MEANS_OTHER},
        {"\xec\0\0", 3, MEANS_UUID},
        {"\xfc\0\0", 3, MEANS_OTHER},
        {"\x0c\x20\0\0", 4, MEANS_OTHER}, /* field 16, by its number */
        {"\xac\x13\x40\x11\0\0", 6, MEANS_PLAIN},
        {"\xac\x13\x40\x12\0\0", 6, MEANS_UNSIGNED},
        {"\x8c\x11\x1c\x1c\0\0\0\0", 8, MEANS_MILLISECONDS},
        {"\x8c\x12\x1c\x2c\0\0\0\0", 8, MEANS_MICROSECONDS},
        {"\x8c\x11\x1c\x3c\0\0\0\0", 8, MEANS_NANOSECONDS},
        {"\x8c\x11\x1c\x4c\0\0\0\0", 8, MEANS_OTHER},
    };
    parquet_file f;
    for (size_t i = 0; i < sizeof older / sizeof *older; i++) {
        CHECK_OK(open_schema(&f, older[i].converted, 0, "", 0));
        CHECK_EQ(f.schema[1].meaning, older[i].meaning);
        CHECK(!f.schema[1].is_list && !f.schema[1].is_map);
        parquet_file_close(&f);
    }
    for (size_t i = 0; i < 2 * sizeof newer / sizeof *newer; i++) {
        CHECK_OK(
            open_schema(&f, i % 2 ? 5 : -1, THRIFT_STRUCT, newer[i / 2].bytes, newer[i / 2].n));
        CHECK_EQ(f.schema[1].meaning, newer[i / 2].meaning);
        parquet_file_close(&f);
    }
}

/* A number where a struct must be, at every level of the annotation. */
TEST(annotations_of_other_types_are_refused) {
    parquet_file f;
    CHECK_FAILS(open_schema(&f, -1, THRIFT_I32, "\2", 1), ERR_FORMAT,
                "field 10 has type 5 and should be a struct");
    CHECK_FAILS(open_schema(&f, -1, THRIFT_STRUCT, "\x85\0\0", 3), ERR_FORMAT,
                "field 8 has type 5 and should be a struct");
    CHECK_FAILS(open_schema(&f, -1, THRIFT_STRUCT, "\x8c\x11\x15\0\0\0", 6), ERR_FORMAT,
                "field 2 has type 5 and should be a struct");
    CHECK_FAILS(open_schema(&f, -1, THRIFT_STRUCT, "\xac\x13\x40\x15\0\0\0", 7), ERR_FORMAT,
                "field 2 has type 5 and should be a boolean");
}
