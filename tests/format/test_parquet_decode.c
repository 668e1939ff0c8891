#include "format/parquet_decode.h"

#include "base/hash.h"
#include "parquet_make.h"

/* A copy with nothing readable after it, so that the sanitizer sees a read past the end. */
static void *exact_copy(const buf *b) {
    char *copy = malloc(b->n_bytes + (b->n_bytes == 0));
    if (b->n_bytes > 0) memcpy(copy, b->data, b->n_bytes);
    return copy;
}

TEST(runs_of_every_width_come_back) {
    for (int width = 0; width <= 32; width++) {
        uint32_t v[100], got[300], mask = width == 32 ? UINT32_MAX : (1u << width) - 1;
        buf b = {0};
        hybrid h;
        for (uint32_t i = 0; i < 100; i++)
            v[i] = (i * 2654435761u) & mask;
        put_packed(&b, v, 96, width);
        put_run(&b, 100, mask, width);
        put_packed(&b, v, 100, width);
        void *copy = exact_copy(&b);
        CHECK_OK(hybrid_init(&h, copy, b.n_bytes, (unsigned)width));
        for (size_t at = 0, k = 1; at < 296; at += k, k = 1 + at % 13) {
            if (k > 296 - at) k = 296 - at;
            CHECK_OK(hybrid_take(&h, k, got + at));
        }
        CHECK(memcmp(got, v, 96 * sizeof *v) == 0);
        for (int i = 96; i < 196; i++)
            CHECK_EQ(got[i], mask);
        CHECK(memcmp(got + 196, v, 100 * sizeof *v) == 0);
        free(copy);
        buf_fini(&b);
    }
}

TEST(runs_that_end_early_are_refused) {
    uint32_t v[16] = {1, 2, 3}, got[64];
    buf b = {0};
    hybrid h;
    size_t n_skipped;
    CHECK_FAILS(hybrid_init(&h, "", 0, 33), ERR_FORMAT, "33 bits");
    put_run(&b, 3, 2, 2);
    CHECK_OK(hybrid_init(&h, b.data, b.n_bytes, 2));
    CHECK_OK(hybrid_skip_equal(&h, 2, 2, &n_skipped));
    CHECK_EQ(n_skipped, 2);
    CHECK_OK(hybrid_skip_equal(&h, 1, 2, &n_skipped));
    CHECK_EQ(n_skipped, 0);
    CHECK_FAILS(hybrid_take(&h, 2, got), ERR_FORMAT, "end too early");
    buf_clear(&b);
    put_run(&b, 0, 1, 2);
    CHECK_OK(hybrid_init(&h, b.data, b.n_bytes, 2));
    CHECK_FAILS(hybrid_take(&h, 1, got), ERR_FORMAT, "empty run");
    buf_clear(&b);
    put_run(&b, 1, 7, 2);
    CHECK_OK(hybrid_init(&h, b.data, b.n_bytes, 2));
    CHECK_FAILS(hybrid_take(&h, 1, got), ERR_FORMAT, "more than 2 bits");
    /* Padding of the last run may be missing, values may not. */
    buf_clear(&b);
    put_packed(&b, v, 16, 9);
    CHECK_OK(hybrid_init(&h, b.data, 1 + 6, 9));
    CHECK_OK(hybrid_take(&h, 5, got));
    CHECK(got[0] == 1 && got[2] == 3);
    CHECK_FAILS(hybrid_take(&h, 1, got), ERR_FORMAT, "end");
    CHECK_OK(hybrid_init(&h, "\xff\xff\xff\xff\xff\xff", 6, 1));
    CHECK_FAILS(hybrid_take(&h, 1, got), ERR_FORMAT, "end");
    buf_fini(&b);
}

static void check_delta(const int64_t *v, size_t n) {
    int64_t *got = malloc((n + 1) * sizeof *got);
    buf b = {0};
    delta d;
    put_delta(&b, v, n);
    void *copy = exact_copy(&b);
    CHECK_OK(delta_init(&d, copy, b.n_bytes));
    for (size_t at = 0, k = 1; at < n; at += k, k = 1 + at % 41) {
        if (k > n - at) k = n - at;
        CHECK_OK(delta_take(&d, k, got + at));
    }
    CHECK(memcmp(got, v, n * sizeof *v) == 0);
    CHECK_FAILS(delta_take(&d, 1, got), ERR_FORMAT, "fewer deltas");
    CHECK_OK(delta_init(&d, copy, b.n_bytes));
    CHECK_OK(delta_skip(&d));
    CHECK(d.at == d.end);
    /* Cut anywhere, it must fail; the padding of the last miniblock alone may be missing. */
    for (size_t cut = 0; cut < b.n_bytes; cut += 1 + cut / 7) {
        char *shorter = malloc(cut + 1);
        memcpy(shorter, copy, cut);
        if (delta_init(&d, shorter, cut) == OK && delta_take(&d, n, got) == OK)
            CHECK(cut == 0 ? n == 0 : memcmp(got, v, n * sizeof *v) == 0);
        free(shorter);
    }
    free(copy);
    free(got);
    buf_fini(&b);
}

TEST(deltas_of_every_size_come_back) {
    static const size_t sizes[] = {1, 2, 32, 33, 34, 128, 129, 130, 257, 1000};
    int64_t v[1000];
    for (int spread = 0; spread <= 63; spread += 7) {
        for (size_t i = 0; i < 1000; i++)
            v[i] = (int64_t)(hash64_mix(i + 1) >> (63 - spread));
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            check_delta(v, sizes[s]);
    }
    for (size_t i = 0; i < 1000; i++) /* differences that overflow wrap around */
        v[i] = i % 2 ? INT64_MAX - (int64_t)i : INT64_MIN + (int64_t)i;
    check_delta(v, 1000);
}

TEST(delta_headers_that_cannot_be_are_refused) {
    static const uint64_t bad[][3] = {
        {0, 4, 1}, {128, 0, 1}, {128, 3, 1}, {100, 4, 1}, {128, 4, (uint64_t)1 << 40}};
    buf b = {0};
    delta d;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        buf_clear(&b);
        for (int k = 0; k < 3; k++)
            put_varint(&b, bad[i][k]);
        put_zigzag(&b, 5);
        CHECK_FAILS(delta_init(&d, b.data, b.n_bytes), ERR_FORMAT, "cannot be");
    }
    buf_clear(&b);
    put_varint(&b, 128), put_varint(&b, 4), put_varint(&b, 40), put_zigzag(&b, 5);
    put_zigzag(&b, 1), put_byte(&b, 65), put_le(&b, 0, 100);
    int64_t got[40];
    CHECK_OK(delta_init(&d, b.data, b.n_bytes));
    CHECK_FAILS(delta_take(&d, 40, got), ERR_FORMAT, "65 bits");
    CHECK_OK(delta_init(&d, b.data, b.n_bytes));
    CHECK_FAILS(delta_skip(&d), ERR_FORMAT, "65 bits");
    buf_fini(&b);
}

/* Texts of the three string encodings. */
static const char *const texts[] = {"alpha", "alphabet", "", "al", "beta", "betamax"};
enum { N_TEXTS = 6 };

static void put_texts(buf *b, int encoding) {
    int64_t prefix[N_TEXTS] = {0}, suffix[N_TEXTS];
    for (int i = 0; i < N_TEXTS; i++) {
        if (i > 0 && encoding == ENCODING_DELTA_BYTE_ARRAY)
            while (texts[i][prefix[i]] != '\0' && texts[i][prefix[i]] == texts[i - 1][prefix[i]])
                prefix[i]++;
        suffix[i] = (int64_t)strlen(texts[i]) - prefix[i];
    }
    if (encoding == ENCODING_DELTA_BYTE_ARRAY) put_delta(b, prefix, N_TEXTS);
    if (encoding != ENCODING_PLAIN) put_delta(b, suffix, N_TEXTS);
    for (int i = 0; i < N_TEXTS; i++) {
        if (encoding == ENCODING_PLAIN) put_le(b, strlen(texts[i]), 4);
        CHECK_OK(buf_text(b, texts[i] + prefix[i]));
    }
}

TEST(strings_of_every_encoding_come_back) {
    static const int encodings[] = {ENCODING_PLAIN, ENCODING_DELTA_LENGTH_BYTE_ARRAY,
                                    ENCODING_DELTA_BYTE_ARRAY};
    const parquet_column c = {.type = PARQUET_BYTE_ARRAY};
    for (int e = 0; e < 3; e++) {
        parquet_values v;
        parquet_text got[N_TEXTS];
        buf b = {0};
        put_texts(&b, encodings[e]);
        void *copy = exact_copy(&b);
        parquet_values_init(&v);
        CHECK_OK(parquet_values_begin(&v, &c, encodings[e], copy, b.n_bytes));
        for (int i = 0; i < N_TEXTS; i += 2) { /* a prefix reaches over two calls */
            CHECK_OK(parquet_values_texts(&v, 2, got));
            for (int k = 0; k < 2; k++) {
                CHECK_EQ(got[k].n_bytes, strlen(texts[i + k]));
                CHECK(memcmp(got[k].bytes, texts[i + k], got[k].n_bytes) == 0);
            }
        }
        CHECK(parquet_values_texts(&v, 1, got) == ERR_FORMAT);
        for (size_t cut = 0; cut < b.n_bytes; cut++) {
            if (parquet_values_begin(&v, &c, encodings[e], copy, cut) != OK) continue;
            CHECK(parquet_values_texts(&v, N_TEXTS, got) == ERR_FORMAT);
        }
        parquet_values_fini(&v);
        free(copy);
        buf_fini(&b);
    }
}

TEST(strings_with_wrong_lengths_are_refused) {
    const parquet_column c = {.type = PARQUET_BYTE_ARRAY};
    static const int64_t prefixes[][2] = {{1, 0}, {0, 4}, {0, -1}}, suffixes[] = {3, 3};
    parquet_values v;
    parquet_text got[2];
    buf b = {0};
    parquet_values_init(&v);
    for (int i = 0; i < 3; i++) {
        buf_clear(&b);
        put_delta(&b, prefixes[i], 2);
        put_delta(&b, suffixes, 2);
        CHECK_OK(buf_text(&b, "abcdef"));
        CHECK_OK(parquet_values_begin(&v, &c, ENCODING_DELTA_BYTE_ARRAY, b.data, b.n_bytes));
        CHECK_FAILS(parquet_values_texts(&v, 2, got), ERR_FORMAT, "shares more");
    }
    buf_clear(&b);
    put_le(&b, UINT32_MAX, 4);
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_PLAIN, b.data, b.n_bytes));
    CHECK_FAILS(parquet_values_texts(&v, 1, got), ERR_FORMAT, "a string of 4294967295 bytes");
    buf_clear(&b);
    put_delta(&b, (int64_t[]){-5, 3}, 2);
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_DELTA_LENGTH_BYTE_ARRAY, b.data, b.n_bytes));
    CHECK_FAILS(parquet_values_texts(&v, 2, got), ERR_FORMAT, "a string of -5 bytes");
    parquet_values_fini(&v);
    buf_fini(&b);
}

TEST(numbers_of_every_type_come_back) {
    parquet_values v;
    int64_t got[20];
    double real[20];
    uint32_t index[20];
    buf b = {0};
    parquet_values_init(&v);
    parquet_column c = {.type = PARQUET_INT32};
    put_le(&b, (uint32_t)-7, 4);
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_PLAIN, b.data, 4));
    CHECK_OK(parquet_values_ints(&v, 1, got));
    CHECK_EQ(got[0], -7);
    CHECK_FAILS(parquet_values_ints(&v, 1, got), ERR_FORMAT, "fewer values");
    c.meaning = MEANS_UNSIGNED;
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_PLAIN, b.data, 4));
    CHECK_OK(parquet_values_ints(&v, 1, got));
    CHECK_EQ(got[0], 4294967289);
    c = (parquet_column){.type = PARQUET_BOOLEAN};
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_PLAIN, "\xa5\x01", 2));
    CHECK_OK(parquet_values_ints(&v, 9, got));
    CHECK(got[0] == 1 && got[1] == 0 && got[2] == 1 && got[7] == 1 && got[8] == 1);
    CHECK_OK(parquet_values_ints(&v, 7, got));
    CHECK_FAILS(parquet_values_ints(&v, 1, got), ERR_FORMAT, "fewer values");
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_RLE, "\x02\0\0\0\x0a\x01", 6));
    CHECK_OK(parquet_values_ints(&v, 5, got));
    CHECK(got[0] == 1 && got[4] == 1);
    CHECK_FAILS(parquet_values_begin(&v, &c, ENCODING_RLE, "\x03\0\0\0\x0a\x01", 6), ERR_FORMAT,
                "cut off");
    c = (parquet_column){.type = PARQUET_INT96};
    buf_clear(&b);
    put_le(&b, 1500, 8), put_le(&b, 2440589, 4);
    put_le(&b, 0, 8), put_le(&b, UINT32_MAX, 4);
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_PLAIN, b.data, b.n_bytes));
    CHECK_OK(parquet_values_ints(&v, 1, got));
    CHECK_EQ(got[0], (int64_t)86400 * 1000000000 + 1500);
    CHECK_FAILS(parquet_values_ints(&v, 1, got), ERR_FORMAT, "1678 to 2261");
    /* Two floats, byte by byte: 1.5 and -2. */
    c = (parquet_column){.type = PARQUET_FLOAT};
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_BYTE_STREAM_SPLIT, "\0\0\0\0\xc0\0\x3f\xc0", 8));
    CHECK_OK(parquet_values_doubles(&v, 1, real));
    CHECK_OK(parquet_values_doubles(&v, 1, real + 1));
    CHECK(real[0] == 1.5 && real[1] == -2);
    CHECK_FAILS(parquet_values_doubles(&v, 1, real), ERR_FORMAT, "fewer values");
    CHECK_FAILS(parquet_values_begin(&v, &c, ENCODING_BYTE_STREAM_SPLIT, "\0\0\0", 3), ERR_FORMAT,
                "cannot be values");
    /* Every byte of a number counts, the lowest too: 1.1 and -3e-5 as doubles, then integers. */
    const double parts[] = {1.1, -3e-5};
    char streams[16];
    for (int i = 0; i < 16; i++)
        streams[i] = ((const char *)&parts[i % 2])[i / 2];
    c = (parquet_column){.type = PARQUET_DOUBLE};
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_BYTE_STREAM_SPLIT, streams, 16));
    CHECK_OK(parquet_values_doubles(&v, 2, real));
    CHECK(real[0] == parts[0] && real[1] == parts[1]);
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_PLAIN, (const char *)parts, 16));
    CHECK_OK(parquet_values_doubles(&v, 2, real));
    CHECK(real[0] == parts[0] && real[1] == parts[1]);
    c = (parquet_column){.type = PARQUET_INT32};
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_BYTE_STREAM_SPLIT, "\x07\x2a\x01\0\0\0\0\0", 8));
    CHECK_OK(parquet_values_ints(&v, 2, got));
    CHECK(got[0] == 0x107 && got[1] == 0x2a);
    c = (parquet_column){.type = PARQUET_FLOAT};
    CHECK_FAILS(parquet_values_begin(&v, &c, ENCODING_DELTA_BINARY_PACKED, "", 0), ERR_UNSUPPORTED,
                "DELTA_BINARY_PACKED of FLOAT");
    CHECK_FAILS(parquet_values_begin(&v, &c, 17, "", 0), ERR_UNSUPPORTED, "encoding 17");
    buf_clear(&b);
    put_byte(&b, 3), put_run(&b, 5, 4, 3);
    CHECK_OK(parquet_values_begin(&v, &c, ENCODING_RLE_DICTIONARY, b.data, b.n_bytes));
    CHECK_OK(parquet_values_indices(&v, 2, 5, index));
    CHECK_EQ(index[1], 4);
    CHECK_FAILS(parquet_values_indices(&v, 1, 4, index), ERR_FORMAT,
                "value 4 of a dictionary of 4");
    parquet_values_fini(&v);
    buf_fini(&b);
}
