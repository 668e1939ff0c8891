#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "cli/output.h"
#include "test.h"

static const char *escaped(const char *text) {
    static char out[256];
    return escape_text(out, sizeof out, text);
}

TEST(escape_leaves_what_people_write) {
    static const char *const texts[] = {
        "", "a b\\c", "Caf\xc3\xa9", "\xe7\x8c\xab", "\xf0\x9f\x98\x80", "\xc2\xa0"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        CHECK_STR(escaped(texts[i]), texts[i]);
}

TEST(escape_shows_what_a_terminal_would_obey) {
    static const struct {
        const char *text, *want;
    } cases[] = {{"\x1b[31m", "\\x1b[31m"},
                 {"a\nb\tc\rd\x7f", "a\\nb\\tc\\rd\\x7f"},
                 {"\xc2\x9b"
                  "2J",
                  "\\x9b2J"}, /* CSI in one character */
                 {"\xe2\x80\xae"
                  "gpj.exe",
                  "\\u202egpj.exe"},                               /* right to left */
                 {"\xe2\x80\xa8|\xe2\x80\xa9", "\\u2028|\\u2029"}, /* line ends */
                 {"\xe2\x81\xa6|\xe2\x80\x8f|\xd8\x9c", "\\u2066|\\u200f|\\u061c"},
                 {"\xef\xbb\xbf|\xe2\x80\x8b", "\\ufeff|\\u200b"},
                 {"\xf3\xa0\x81\x81", "\\U000e0041"}, /* tag */
                 {"\xff|\xc3|\xed\xa0\x80", "\\xff|\\xc3|\\xed\\xa0\\x80"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_STR(escaped(cases[i].text), cases[i].want);
}

/* What comes out is clean, fits, and ends with NUL, whatever goes in. */
TEST(escape_of_any_bytes) {
    uint64_t state = 1;
    for (int round = 0; round < 3000; round++) {
        char text[40], out[64];
        for (int i = 0; i < 39; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            text[i] = (char)(state >> 56);
        }
        text[39] = '\0';
        size_t size = 1 + state % sizeof out;
        memset(out, 1, sizeof out);
        escape_text(out, size, text);
        CHECK(strlen(out) < size);
        for (size_t i = 0; out[i] != '\0'; i++)
            CHECK((unsigned char)out[i] >= 0x20 && out[i] != 0x7f);
        char again[256];
        CHECK_STR(escape_text(again, sizeof again, out), out);
    }
}

/* Excerpts keep characters of any script, end between two of them, and show others as '?'. */
TEST(excerpts_keep_characters_whole) {
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"", ""},
        {"Größe", "Größe"},
        {"a\x1b[0m\xe2\x80\xae\nb", "a?[0m??b"},
        {"Gr\xf6\xdf"
         "e \xe2\x82",
         "Gr??e ??"},
        {"0123456789012345678901234567890123456789", /* 40 */
         "0123456789012345678901234567890123456789"},
        {"012345678901234567890123456789012345678ö", "012345678901234567890123456789012345678..."},
        {"01234567890123456789012345678901234567öx", "01234567890123456789012345678901234567ö..."}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[64];
        CHECK_STR(escape_excerpt(out, cases[i].text, strlen(cases[i].text)), cases[i].want);
    }
}

TEST(the_nearest_name_of_a_list) {
    char out[80], list[512] = "";
    CHECK_STR(nearest_hint(out, "Kundennumer", "Artikel, Kundennummer, Zeit"),
              " (did you mean 'Kundennummer'?)");
    CHECK_STR(nearest_hint(out, "xyz", "Artikel, Kundennummer"), "");
    CHECK_STR(nearest_hint(out, "xyz", ""), "");
    for (int i = 0; i < 200; i++)
        escape_list_add(list, sizeof list, "ab", 2);
    CHECK_STR(nearest_hint(out, "ac", list), " (did you mean 'ab'?)");
}

/* Escapes count with the characters they have; a cut never leaves half of one. */
TEST(escape_fits_a_width) {
    CHECK_STR(show_text("ab\x1b"
                        "cd",
                        5, 9),
              "ab\\x1bcd");
    CHECK_STR(show_text("ab\x1b"
                        "cd",
                        5, 8),
              "ab\\x1bcd");
    CHECK_STR(show_text("ab\x1b"
                        "cd",
                        5, 7),
              "ab\\x1b\xe2\x80\xa6");
    CHECK_STR(show_text("ab\x1b"
                        "cd",
                        5, 6),
              "ab\xe2\x80\xa6");
    CHECK_STR(show_text("ab\x1b"
                        "cd",
                        5, 3),
              "ab\xe2\x80\xa6");
    CHECK_STR(show_text("abc", 3, 3), "abc");
    CHECK_STR(show_text("abcd", 4, 3), "ab\xe2\x80\xa6");
}

/* Names in files and on the command line reach stderr through the one reason and the log. */
TEST(escape_in_every_message) {
    char *text;
    CHECK_EQ(test_command(&text, "'%s' info \"$(printf 'no\\033[2J\\nsuch\\342\\200\\256')\" 2>&1",
                          test_program()),
             1);
    CHECK_STR(text, "hstu info: no\\x1b[2J\\nsuch\\u202e: cannot be opened: No such file or "
                    "directory\n");
    free(text);
    CHECK_EQ(test_command(&text,
                          "cd %s && printf 'train_fn.x\\033]0;y\\007 = 1' >a.gin && '%s' train "
                          "--device cpu --gin-config-file a.gin --print-config 2>&1",
                          test_folder(), test_program()),
             2);
    CHECK(strchr(text, '\033') == NULL && strchr(text, '\007') == NULL);
    free(text);
}

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
