#include "base/float_text.h"

#include "format/csv_write.h"
#include "test.h"

static const char *text_of(float value) {
    static char text[FLOAT_TEXT_BYTES];
    CHECK_EQ(float_text(text, value), strlen(text));
    return text;
}

TEST(float_text_is_short_and_plain) {
    struct {
        float value;
        const char *text;
    } cases[] = {{0.1f, "0.1"},
                 {1, "1"},
                 {100, "100"},
                 {-12.25f, "-12.25"},
                 {0, "0"},
                 {-0.0f, "-0"},
                 {0.001f, "0.001"},
                 {9999999, "9999999"},
                 {1e30f, "1e+30"},
                 {INFINITY, "inf"},
                 {-INFINITY, "-inf"},
                 {NAN, "nan"},
                 {16777216, "16777216"},
                 {0.33420005f, "0.33420005"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_STR(text_of(cases[i].value), cases[i].text);
}

/* Over all exponents, and densely where the fast way is taken, its borders included. */
TEST(float_text_reads_back) {
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 81919) {
        uint32_t half = (uint32_t)bits;
        float value;
        memcpy(&value, &half, sizeof value);
        if (isfinite(value)) CHECK(strtof(text_of(value), NULL) == value);
    }
    static const float borders[] = {1e-3f, 1e-2f, .1f, 1, 10, 1e5f, 1e6f, 1e7f};
    for (int i = 0; i < 8; i++) {
        float low = borders[i], high = borders[i];
        for (int k = 0; k < 300; k++) {
            CHECK(strtof(text_of(low), NULL) == low && strtof(text_of(-high), NULL) == -high);
            low = nextafterf(low, 0);
            high = nextafterf(high, INFINITY);
        }
    }
}

TEST(csv_write_quotes_what_needs_it) {
    struct {
        const char *in, *out;
        size_t n;
    } cases[] = {{"plain", "plain", 5},      {"", "\"\"", 0},
                 {"a,b", "\"a,b\"", 3},      {"say \"x\"", "\"say \"\"x\"\"\"", 7},
                 {"a\nb", "\"a\nb\"", 3},    {"a\rb", "\"a\rb\"", 3},
                 {"\xff\xfe", "\xff\xfe", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf b;
        buf_init(&b);
        CHECK_OK(csv_put_field(&b, cases[i].in, cases[i].n));
        CHECK_STR(buf_str(&b), cases[i].out);
        buf_fini(&b);
    }
}
