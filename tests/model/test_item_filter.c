#include "model/item_filter.h"

#include "base/mem.h"
#include "content_test.h"
#include "test.h"

static made_content made;
static seq_file data = {.n_items = 200};
static uint64_t bits[CONTENT_ITEMS / 64 + 1];

static status run(const char *text) {
    return item_filter_run(&data, text, strlen(text), NULL, (int64_t)data.n_items + 1, bits);
}

/* Runs an expression and compares it with what each item's features say. */
#define CHECK_FILTER(text, truth)                                                                  \
    do {                                                                                           \
        CHECK_OK(run(text));                                                                       \
        CHECK((bits[0] & 1) == 0);                                                                 \
        for (uint64_t i = 1; i <= data.n_items; i++) {                                             \
            double year = made.year[i];                                                            \
            (void)year;                                                                            \
            if ((bits[i / 64] >> i % 64 & 1) != (uint64_t)(truth))                                 \
                FAIL_TEST("%s: item %d", text, (int)i);                                            \
        }                                                                                          \
    } while (0)

static bool genre(uint64_t item, uint32_t value) {
    return content_has(&data, 0, item, value);
}

static bool maker(uint64_t item, uint32_t value) {
    return content_has(&data, 1, item, value);
}

TEST(filter_operators_mean_what_they_say) {
    made_content_fill(&made, &data, 1);
    CHECK_FILTER("genre = \"Drama\"", genre(i, 1));
    CHECK_FILTER("genre=='Drama'", genre(i, 1));
    CHECK_FILTER("genre != 'Drama'", !genre(i, 1));
    CHECK_FILTER("genre in ('Drama', \"Crime\")", genre(i, 1) || genre(i, 2));
    CHECK_FILTER("genre not  in('Drama','Crime')", !genre(i, 1) && !genre(i, 2));
    CHECK_FILTER("genre in ('Drama', 'nothing has this')", genre(i, 1));
    CHECK_FILTER("year = 1993", year == 1993);
    CHECK_FILTER("year != 1993", !(year == 1993)); /* unknown ones, too */
    CHECK_FILTER("year < 1993", year < 1993);
    CHECK_FILTER("year <= 1993", year <= 1993);
    CHECK_FILTER("year > 1993", year > 1993);
    CHECK_FILTER("year >= 1.993e3", year >= 1993);
    CHECK_FILTER("year >= -5", year >= -5);
    CHECK_FILTER("year in (1991, 1995.0, 1993)", year == 1991 || year == 1993 || year == 1995);
    CHECK_FILTER("year not in (1991)", !(year == 1991));
    CHECK_FILTER("not year < 1993", !(year < 1993));
}

TEST(filter_parts_bind_as_in_other_languages) {
    made_content_fill(&made, &data, 2);
    CHECK_FILTER("genre = 'Drama' or genre = 'Crime' and year > 1993",
                 genre(i, 1) || (genre(i, 2) && year > 1993));
    CHECK_FILTER("(genre = 'Drama' or genre = 'Crime') and year > 1993",
                 (genre(i, 1) || genre(i, 2)) && year > 1993);
    CHECK_FILTER("NOT genre = 'Drama' AND year > 1993", !genre(i, 1) && year > 1993);
    CHECK_FILTER("not (genre = 'Drama' And not not year > 1993)", !(genre(i, 1) && year > 1993));
    CHECK_FILTER("\tnot not not year>1993\n", !(year > 1993));
}

TEST(filter_names_and_quotes) {
    made_content_fill(&made, &data, 3);
    CHECK_FILTER("`the maker` = 'Drama'", maker(i, 1));
    CHECK_FILTER("genre = 'It\\'s \"odd\"\\\\'", genre(i, 3));
    CHECK_FILTER("genre = \"It's \\\"odd\\\"\\\\\"", genre(i, 3));
    CHECK_FILTER("genre = 'Комедия'", genre(i, 4));
    CHECK_FILTER("genre = '7'", genre(i, 5));
    /* A feature may be called as a word of the language is, and is found in backquotes. */
    strcpy(data.content[2].name, "not");
    CHECK_FILTER("`not` > 1993", year > 1993);
    strcpy(data.content[2].name, "and_so.on-2");
    CHECK_FILTER("and_so.on-2>1993", year > 1993);
}

TEST(filter_errors_name_the_place_and_the_nearest_name) {
    made_content_fill(&made, &data, 4);
    CHECK_FAILS(run(""), ERR_USAGE, "filter: character 1: expected the name of a feature");
    CHECK_FAILS(run("  gnre = 'Drama'"), ERR_USAGE,
                "character 3: items have no feature 'gnre'; did you mean 'genre'?");
    CHECK_FAILS(run("zzzzzzzzz = 1"), ERR_USAGE, "there is genre, the maker, year");
    CHECK_FAILS(run("genre = 'drama'"), ERR_USAGE,
                "character 9: no item has the value 'drama'; did you mean 'Drama'?");
    CHECK_FAILS(run("genre = 'Комедия' and year > 'x'"), ERR_USAGE,
                "character 30: year is a number: expected a decimal number");
    CHECK_FAILS(run("genre = 7"), ERR_USAGE, "character 9: genre is a category: expected a value");
    CHECK_FAILS(run("genre < 'Drama'"), ERR_USAGE, "has no order");
    CHECK_FAILS(run("genre 'Drama'"), ERR_USAGE, "character 7: expected = != <");
    CHECK_FAILS(run("genre not 'Drama'"), ERR_USAGE, "expected in");
    CHECK_FAILS(run("genre in 'Drama'"), ERR_USAGE, "character 10: expected (");
    CHECK_FAILS(run("genre in ()"), ERR_USAGE, "expected a value in quotes");
    CHECK_FAILS(run("genre in ('Drama'"), ERR_USAGE, "character 18: expected )");
    CHECK_FAILS(run("genre in ('Drama',"), ERR_USAGE, "expected a value");
    CHECK_FAILS(run("(genre = 'Drama'"), ERR_USAGE, "expected )");
    CHECK_FAILS(run("genre = 'Drama') "), ERR_USAGE, "character 16: expected 'and', 'or'");
    CHECK_FAILS(run("genre = 'Drama"), ERR_USAGE, "character 9: the quote ' is not closed");
    CHECK_FAILS(run("genre = 'Drama\\"), ERR_USAGE, "is not closed");
    CHECK_FAILS(run("genre = 'Drama\\'"), ERR_USAGE, "is not closed");
    CHECK_FAILS(run("year > 1e999"), ERR_USAGE, "year is a number");
    CHECK_FAILS(run("year > nan"), ERR_USAGE, "year is a number");
    CHECK_FAILS(run("year > 0x10"), ERR_USAGE,
                "character 8: year is a number: expected a decimal number");
    CHECK_FAILS(run("year in (1, 0X7D0)"), ERR_USAGE, "character 13: year is a number");
    CHECK_FAILS(run("year > "), ERR_USAGE, "year is a number");
    CHECK_FAILS(run("not"), ERR_USAGE, "expected the name");
    CHECK_FAILS(run("year > 1 and"), ERR_USAGE, "character 13");
    CHECK_FAILS(item_filter_run(&data, "year\0> 1", 8, NULL, 1, bits), ERR_USAGE, "NUL");
    data.n_content = 0;
    CHECK_FAILS(run("year > 1"), ERR_USAGE, "have no features; 'hstu prep --items FILE'");
}

/* Depth, tests and length end in an error, never in an overflow of the stack. */
TEST(filter_limits) {
    enum { LONG = FILTER_BYTES + 2 };
    char *text = malloc(LONG + 1);
    made_content_fill(&made, &data, 5);
    memset(text, '(', LONG);
    text[LONG] = '\0';
    CHECK_FAILS(run(text), ERR_USAGE, "at most 65536 are taken");
    text[LONG - 2] = '\0';
    CHECK_FAILS(run(text), ERR_USAGE, "more than 32 parentheses");
    for (size_t i = 0; i + 4 < LONG; i += 4)
        memcpy(text + i, "not ", 4);
    text[LONG / 4 * 4 - 8] = '\0';
    CHECK_FAILS(run(text), ERR_USAGE, "expected the name of a feature");
    for (int n = 1; n <= 2; n++) { /* 64 tests are taken, 128 are not */
        text[0] = '\0';
        for (int i = 0; i < 64 * n; i++)
            strcat(text, i > 0 ? " or year = 1" : "year = 1");
        if (n == 1)
            CHECK_FILTER(text, year == 1);
        else
            CHECK_FAILS(run(text), ERR_USAGE, "more than 64 tests");
    }
    strcpy(text, "(year > 1993)");
    for (int i = 0; i < 40; i++) /* beside each other, not within */
        strcat(text, " or (year > 1993)");
    CHECK_FILTER(text, year > 1993);
    strcpy(text, ""); /* 32 levels with 'not' at each, the right side deeper and deeper */
    for (int i = 0; i < 32; i++)
        strcat(text, "year > 1992 and not (");
    strcat(text, "year > 1993");
    for (int i = 0; i < 32; i++)
        strcat(text, ")");
    CHECK_OK(run(text));
    strcpy(text, "year in (0");
    for (size_t n = strlen(text); n + 8 < FILTER_BYTES; n += 5)
        strcpy(text + n, ",1993");
    strcat(text, ")");
    CHECK_FILTER(text, year == 1993);
    free(text);
}

/* Any bytes at all: an answer or an error. */
TEST(filter_random_texts) {
    static const char *const parts[] = {"genre", "year", "`the maker`", "'Drama'", "\"Crime", "(",
                                        ")",     "and",  "or",          "not",     "in",      ",",
                                        "=",     "<",    ">=",          "!",       "1993",    "-",
                                        "\\",    "'",    "\xff",        " "};
    enum { N = sizeof parts / sizeof *parts };
    made_content_fill(&made, &data, 6);
    for (uint64_t round = 0; round < 20000; round++) {
        char text[256] = "";
        for (uint32_t i = 0, n = content_draw(round, 999, 12); i < n; i++)
            strcat(text, parts[content_draw(round, i, N)]);
        status st = run(text);
        CHECK(st == OK || st == ERR_USAGE);
    }
}

TEST(filter_cache_evaluates_an_expression_once) {
    uint64_t again[CONTENT_ITEMS / 64 + 1];
    int32_t item[150];
    filter_cache c;
    made_content_fill(&made, &data, 7);
    for (int32_t r = 0; r < 150; r++)
        item[r] = 150 - r;
    filter_cache_init(&c, &data, item, 150);
    CHECK_OK(filter_cache_bits(&c, "year > 1993", 11, bits));
    CHECK_OK(filter_cache_bits(&c, "year > 1993", 11, again));
    CHECK(c.n_misses == 1 && memcmp(bits, again, 3 * sizeof *bits) == 0);
    for (int32_t r = 0; r < 150; r++)
        CHECK((bits[r / 64] >> r % 64 & 1) == (uint64_t)(made.year[item[r]] > 1993));
    CHECK_OK(filter_cache_bits(&c, "year > 1994", 11, again));
    CHECK(c.n_misses == 2 && memcmp(bits, again, 3 * sizeof *bits) != 0);
    CHECK_FAILS(filter_cache_bits(&c, "year >", 6, again), ERR_USAGE, "number");
    CHECK_EQ(c.n_misses, 2);
    for (int i = 0; i < FILTER_CACHED; i++) { /* the first one is evicted */
        char text[32];
        snprintf(text, sizeof text, "year > %d", 100 + i);
        CHECK_OK(filter_cache_bits(&c, text, strlen(text), again));
    }
    CHECK_OK(filter_cache_bits(&c, "year > 1993", 11, again));
    CHECK(c.n_misses == 3 + FILTER_CACHED && memcmp(bits, again, 3 * sizeof *bits) == 0);
    filter_cache_fini(&c);
}
