#include <string.h>

#include "data/read/number.h"
#include "test.h"

static number_kind read_text(const char *text, int64_t *out) {
    return number_read(text, strlen(text), out);
}

TEST(whole_numbers) {
    static const struct {
        const char *text;
        int64_t value;
    } cases[] = {{"0", 0},
                 {"-0", 0},
                 {"7", 7},
                 {"-12", -12},
                 {"000000000000000000000000007", 7},
                 {"9223372036854775807", INT64_MAX},
                 {"-9223372036854775808", INT64_MIN}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t value = 99;
        CHECK_EQ(read_text(cases[i].text, &value), NUMBER_WHOLE);
        CHECK_EQ(value, cases[i].value);
    }
    int64_t value;
    CHECK_EQ(number_read("123456", 3, &value),
             NUMBER_WHOLE); /* bytes after the text do not count */
    CHECK_EQ(value, 123);
}

/* An id is a number only where printing that number gives the id. */
TEST(ids_are_numbers_as_they_are_printed) {
    static const char *const plain[] = {
        "0", "7", "-12", "10", "-10", "9223372036854775807", "-9223372036854775808"};
    static const char *const zeros[] = {"01", "00", "-0", "-01", "007", "0123456789012345678901"};
    static const char *const no[] = {"", "-", "+7", " 7", "7 ", "7.0", "1e3", "0x7", "01x"};
    char again[32];
    int64_t value;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        CHECK_EQ(number_read_id(plain[i], strlen(plain[i]), &value), NUMBER_WHOLE);
        snprintf(again, sizeof again, "%lld", (long long)value);
        CHECK_STR(again, plain[i]);
    }
    for (size_t i = 0; i < sizeof zeros / sizeof zeros[0]; i++)
        CHECK_EQ(number_read_id(zeros[i], strlen(zeros[i]), &value), NUMBER_NOT_PLAIN);
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
        CHECK_EQ(number_read_id(no[i], strlen(no[i]), &value), NUMBER_NOT_WHOLE);
}

TEST(what_is_no_number_leaves_the_result_alone) {
    static const char *const no[] = {"",   "-",   "+",    "+7",  "--7",
                                     " 7", "7 ",  "7.0",  "1e3", "x",
                                     "7x", "0x7", "\xd9", "1-",  "99999999999999999999x"};
    int64_t value = 99;
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
        CHECK_EQ(read_text(no[i], &value), NUMBER_NOT_WHOLE);
    static const char *const large[] = {"9223372036854775808", "-9223372036854775809",
                                        "18446744073709551617", "99999999999999999999999999999"};
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++)
        CHECK_EQ(read_text(large[i], &value), NUMBER_TOO_LARGE);
    CHECK_EQ(value, 99);
}
