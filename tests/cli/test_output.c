/* Texts for people: counts, bars, dates, texts that are cut, words for a shell. */
#include "cli/output.h"

#include <string.h>
#include <unistd.h>

#include "test.h"

TEST(show_count_groups_digits) {
    CHECK_STR(show_count(0), "0");
    CHECK_STR(show_count(999), "999");
    CHECK_STR(show_count(1000209), "1,000,209");
    CHECK_STR(show_count(UINT64_MAX), "18,446,744,073,709,551,615");
}

/* Texts stay while as many others are made as a table has, and each is whole. */
TEST(show_texts_stay) {
    char path[SHOW_PATH_BYTES + 10];
    const char *first = show_printf("%s %d", "first", 1), *texts[200];
    for (int i = 0; i < 200; i++)
        texts[i] = show_join(show_count((uint64_t)i * 1000), "name");
    CHECK_STR(first, "first 1");
    CHECK_STR(texts[0], "0/name");
    CHECK_STR(texts[199], "199,000/name");
    memset(path, 'a', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    for (int i = 0; i < 40; i++) {
        const char *before = show_path("before"), *long_one = show_path(path);
        CHECK_STR(before, "before");
        CHECK_EQ(strlen(long_one), SHOW_PATH_BYTES - 1);
        CHECK_EQ(long_one[0], 'a');
    }
    CHECK_STR(show_bold("no terminal"), "no terminal");
    CHECK_STR(show_rounded(45600), "45.6 k");
    CHECK_STR(show_bytes(1.2e9), "1.2 GB");
    CHECK_STR(show_duration(185), "3 m 05 s");
}

TEST(show_bar_in_eighths) {
    CHECK_STR(show_bar(0, 4), "");
    CHECK_STR(show_bar(1e-9, 4), "\u258f");
    CHECK_STR(show_bar(.5, 4), "\u2588\u2588");
    CHECK_STR(show_bar(7. / 16, 2), "\u2589");
    CHECK_STR(show_bar(13. / 16, 2), "\u2588\u258b");
    CHECK_STR(show_bar(1, 1), "\u2588");
    CHECK_STR(show_bar(9, 2), "\u2588\u2588"); /* never wider */
    CHECK_EQ(strlen(show_bar(1, 100000)), (SHOW_BYTES - 1) / 3 * 3);
}

TEST(show_date_of_any_second) {
    CHECK_STR(show_date(0), "1970-01-01");
    CHECK_STR(show_date(956703965), "2000-04-25");
    CHECK_STR(show_date(-1), "1969-12-31");
    CHECK_STR(show_date(INT64_MAX), "second 9223372036854775807");
}

/* What fits stays whole; what does not is cut where no escape and no character is parted. */
TEST(show_text_cuts_to_a_width) {
    static const struct {
        const char *from;
        int width;
        const char *want;
    } cases[] = {{"", 3, ""},
                 {"abc", 3, "abc"},
                 {"abcd", 3, "ab\u2026"},
                 {"abcd", 1, "\u2026"},
                 {"\u00e4\u00f6\u00fc", 3, "\u00e4\u00f6\u00fc"},
                 {"\u00e4\u00f6\u00fc\u00df", 3, "\u00e4\u00f6\u2026"},
                 {"a\033[1m", 20, "a\\x1b[1m"},
                 {"ab\033cd", 5, "ab\u2026"},
                 {"ab\033", 6, "ab\\x1b"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = show_text(cases[i].from, strlen(cases[i].from), cases[i].width);
        CHECK_STR(text, cases[i].want);
        CHECK(show_columns(text) <= cases[i].width);
    }
}

/* As a shell would read it: the same bytes come back, and none is an option. */
TEST(show_word_can_be_pasted) {
    static const char *const words[][2] = {{"plain_1./@", "plain_1./@"},
                                           {"", "''"},
                                           {"two words", "'two words'"},
                                           {"don't", "'don'\\''t'"},
                                           {"-rf", "./-rf"},
                                           {"a\033b", "$'a\\033b'"},
                                           {"a\177b", "$'a\\177b'"},
                                           {"a\nb'\\", "$'a\\012b\\047\\134'"},
                                           {"~", "'~'"},
                                           {"$HOME", "'$HOME'"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        CHECK_STR(show_word(words[i][0]), words[i][1]);
}

TEST(sink_checks_for_one_file_under_two_names) {
    char a[600], b[600];
    snprintf(a, sizeof a, "%s/a", test_folder());
    snprintf(b, sizeof b, "%s/b", test_folder());
    FILE *f = fopen(a, "w");
    CHECK(f != NULL && fclose(f) == 0);
    CHECK_OK(sink_check_two("--x", a, "--y", b));
    CHECK_OK(sink_check_two("--x", "-", "--y", "-"));
    CHECK_OK(sink_check_two("--x", NULL, "--y", a));
    CHECK_OK(sink_check_two("--x", a, "--y", NULL));
    CHECK_FAILS(sink_check_two("--x", a, "--y", a), ERR_USAGE, "--x and --y are both");
    CHECK_EQ(link(a, b), 0);
    CHECK_FAILS(sink_check_two("--x", a, "--y", b), ERR_USAGE, "give each a file of its own");
}
