#include "format/parquet_meta.h"

#include "parquet_make.h"

static thrift reader(const buf *b) {
    const unsigned char *at = (const unsigned char *)buf_str(b);
    return (thrift){.at = at, .end = at + b->n_bytes};
}

TEST(fields_have_numbers_and_types) {
    buf b;
    buf_init(&b);
    put_byte(&b, 0x15); /* field 1 by its distance: i32 */
    put_zigzag(&b, -3);
    put_byte(&b, 0x21); /* field 3: true */
    put_i64(&b, 20, INT64_MIN);
    put_text(&b, 21, "text");
    put_byte(&b, 0);
    thrift t = reader(&b);
    thrift_field f = {0};
    int32_t i = 0;
    int64_t wide = 0;
    bool flag = false;
    const char *text;
    size_t n;
    CHECK_OK(thrift_next_field(&t, &f));
    CHECK_EQ(f.id, 1);
    CHECK_OK(thrift_get_i32(&t, &f, &i));
    CHECK_EQ(i, -3);
    CHECK_OK(thrift_next_field(&t, &f));
    CHECK_EQ(f.id, 3);
    CHECK_OK(thrift_get_bool(&t, &f, &flag));
    CHECK(flag);
    CHECK_OK(thrift_next_field(&t, &f));
    CHECK_EQ(f.id, 20);
    CHECK_OK(thrift_get_int(&t, &f, &wide));
    CHECK(wide == INT64_MIN);
    CHECK_OK(thrift_next_field(&t, &f));
    CHECK_FAILS(thrift_get_i32(&t, &f, &i), ERR_FORMAT, "field 21 has type 8");
    CHECK_OK(thrift_get_binary(&t, &f, &text, &n));
    CHECK(n == 4 && memcmp(text, "text", 4) == 0);
    CHECK_OK(thrift_next_field(&t, &f));
    CHECK_EQ(f.type, THRIFT_STOP);
    buf_fini(&b);
}

TEST(a_byte_is_a_number) {
    buf b;
    buf_init(&b);
    put_field(&b, 1, THRIFT_BYTE), put_byte(&b, 0xfd);
    put_field(&b, 2, THRIFT_BYTE);
    thrift t = reader(&b);
    thrift_field f = {0};
    int32_t i = 0;
    CHECK_OK(thrift_next_field(&t, &f));
    CHECK_OK(thrift_get_i32(&t, &f, &i));
    CHECK_EQ(i, -3);
    CHECK_OK(thrift_next_field(&t, &f));
    CHECK_FAILS(thrift_get_i32(&t, &f, &i), ERR_FORMAT, "");
    buf_fini(&b);
}

TEST(unknown_fields_of_every_type_are_skipped) {
    buf b;
    buf_init(&b);
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
    thrift_field f = {0};
    int32_t last = 0;
    for (;;) {
        CHECK_OK(thrift_next_field(&t, &f));
        if (f.type == THRIFT_STOP) break;
        CHECK_OK(f.id == 8 ? thrift_get_i32(&t, &f, &last) : thrift_skip(&t, &f));
    }
    CHECK_EQ(last, 99);
    CHECK(t.at == t.end);
    buf_fini(&b);
}

/* Every shorter text must fail as "short", and never be read past its end (the sanitizer sees). */
TEST(cut_off_data_is_short) {
    buf b;
    buf_init(&b);
    put_list(&b, 1, THRIFT_STRUCT, 1), put_text(&b, 4, "name"), put_byte(&b, 0);
    put_field(&b, 2, THRIFT_DOUBLE), put_le(&b, 1, 8);
    put_byte(&b, 0);
    for (size_t n = 0; n < b.n_bytes; n++) {
        unsigned char *exact = malloc(n + 1);
        memcpy(exact, b.data, n);
        thrift t = {.at = exact, .end = exact + n};
        thrift_field f = {0};
        status st;
        while ((st = thrift_next_field(&t, &f)) == OK && f.type != THRIFT_STOP)
            if ((st = thrift_skip(&t, &f)) != OK) break;
        CHECK_EQ(st, ERR_FORMAT);
        CHECK(t.is_short);
        free(exact);
    }
    buf_fini(&b);
}

static status skip_one(const buf *b) {
    thrift t = reader(b);
    thrift_field f = {0};
    TRY(thrift_next_field(&t, &f));
    status st = thrift_skip(&t, &f);
    CHECK(st == OK || !t.is_short || strstr(status_reason(), "ends") != NULL);
    return st;
}

TEST(hostile_numbers_are_refused) {
    buf b;
    buf_init(&b);
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
