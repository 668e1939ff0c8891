#include "data/read/blocks.h"
#include "data/read/csv.h"
#include "data/read/row_field.h"
#include "test.h"

static const csv_column four[] = {
    {ROLE_USER, "1"}, {ROLE_ITEM, "2"}, {ROLE_ACTION, "3"}, {ROLE_TIME, "4"}};

static csv_layout make_layout(const char *delimiter, action_kind actions) {
    csv_layout t = {.actions = actions};
    strcpy(t.format.delimiter, delimiter);
    t.format.has_quotes = true;
    char line[64];
    int n = snprintf(line, sizeof line, "u%si%sr%st", delimiter, delimiter, delimiter);
    CHECK_OK(csv_layout_resolve(&t, "f", line, (size_t)n, true, four, 4));
    return t;
}

typedef struct row_list {
    csv_row row[16];
    int n;
} row_list;

static status keep(void *ctx, const csv_row *row) {
    row_list *rows = ctx;
    CHECK(rows->n < 16);
    rows->row[rows->n++] = *row;
    return OK;
}

/* Parses text that is a block from line 10 on. */
static status parse(const csv_layout *t, const char *text, row_list *rows) {
    static char copy[1024];
    rows->n = 0;
    strcpy(copy, text);
    text_block b = {.text = copy, .n_bytes = strlen(copy), .first_line = 10};
    return csv_parse_block(t, "f", &b, keep, rows);
}

static void check_one(const char *delimiter, action_kind kind, const char *text, int64_t user,
                      int64_t item, int action, int64_t time) {
    row_list rows;
    csv_layout t = make_layout(delimiter, kind);
    if (parse(&t, text, &rows) != OK) FAIL_TEST("%s: %s", text, status_reason());
    CHECK_EQ(rows.n, 1);
    CHECK_EQ(rows.row[0].user, user);
    CHECK_EQ(rows.row[0].item, item);
    CHECK_EQ(rows.row[0].action, action);
    CHECK_EQ(rows.row[0].time, time);
}

TEST(rows_in_every_layout) {
    check_one(",", ACTION_HALF_STARS, "1,2,3.5,1112486027\n", 1, 2, 6, 1112486027);
    check_one("::", ACTION_STARS, "1::1193::5::978300760\n", 1, 1193, 4, 978300760);
    check_one("\t", ACTION_STARS, "196\t242\t3\t881250949\r\n", 196, 242, 2, 881250949);
    check_one("|", ACTION_CODE, "7|8|65534|-9\n", 7, 8, 65534, -9);
    check_one(",", ACTION_BITS, "7,8,255,0\n", 7, 8, 255, 0);
    check_one(" ", ACTION_CODE, "7 8 0 1\n", 7, 8, 0, 1);
}

TEST(numbers_in_quotes_blanks_and_at_their_limits) {
    check_one(",", ACTION_STARS, "\"1\",\"2\",\" 5\", 7 \n", 1, 2, 4, 7);
    check_one(",", ACTION_STARS, "9223372036854775807,-9223372036854775808,1,-1\n", INT64_MAX,
              INT64_MIN, 0, -1);
    check_one(",", ACTION_STARS, "-10,0,1.000,000000000000000000978300760.0\n", -10, 0, 0,
              978300760);
}

TEST(ratings_on_their_grids) {
    check_one(",", ACTION_HALF_STARS, "1,1,.5,0\n", 1, 1, 0, 0);
    check_one(",", ACTION_HALF_STARS, "1,1,0.5,0\n", 1, 1, 0, 0);
    check_one(",", ACTION_HALF_STARS, "1,1,5,0\n", 1, 1, 9, 0);
    check_one(",", ACTION_HALF_STARS, "1,1,4.50,0\n", 1, 1, 8, 0);
    check_one(",", ACTION_STARS, "1,1,4.0,0\n", 1, 1, 3, 0);
    check_one(",", ACTION_CODE, "1,1,12.0,0\n", 1, 1, 12, 0);
}

/* The exact message for a row in the middle of a block. */
static void check_bad(action_kind kind, bool has_text_ids, const char *row, const char *reason) {
    char text[512];
    row_list rows;
    csv_layout t = make_layout(",", kind);
    t.has_text_users = t.has_text_items = has_text_ids;
    t.is_own = true;
    snprintf(text, sizeof text, "1,1,1,1\n\n1,1,1,1\r\n%s\n1,1,1,1\n", row);
    CHECK_EQ(parse(&t, text, &rows), ERR_FORMAT);
    CHECK_STR(status_reason(), reason);
    CHECK_EQ(rows.n, 2);
}

TEST(bad_fields_name_file_line_and_column) {
    const action_kind stars = ACTION_STARS;
    check_bad(stars, false, "abc,2,3,4",
              "f:13: u: 'abc' is not a whole number; for string ids use --string-ids");
    check_bad(stars, false, "1,2x,3,4",
              "f:13: i: '2x' is not a whole number; for string ids use --string-ids");
    check_bad(stars, false, "01,2,3,4",
              "f:13: u: '01' is not a whole number as one is written, without zeros before it; for "
              "string ids use --string-ids");
    check_bad(stars, false, "1,-0,3,4",
              "f:13: i: '-0' is not a whole number as one is written, without zeros before it; for "
              "string ids use --string-ids");
    check_bad(stars, false, "1,\"0012\",3,4",
              "f:13: i: '0012' is not a whole number as one is written, without zeros before it; "
              "for string ids use --string-ids");
    check_bad(stars, false, "1,\" 2\",3,4",
              "f:13: i: ' 2' is not a whole number; for string ids use --string-ids");
    check_bad(stars, false, "1,,3,4", "f:13: i is empty; --skip-bad 1% leaves such rows out");
    check_bad(stars, false, "1,\"\",3,4", "f:13: i is empty; --skip-bad 1% leaves such rows out");
    check_bad(stars, false, "1, ,3,4", "f:13: i is empty; --skip-bad 1% leaves such rows out");
    check_bad(stars, false, "1,2,3,", "f:13: t is empty; --skip-bad 1% leaves such rows out");
    check_bad(stars, false, "1,2,3,later", "f:13: t: 'later' is not a whole number");
    check_bad(stars, false, "1,2,3,4.5",
              "f:13: t: '4.5' is not a whole number; times have no fraction");
    check_bad(stars, false, "9223372036854775808,2,3,4",
              "f:13: u: '9223372036854775808' does not fit a 64-bit number; for string ids "
              "use --string-ids");
    check_bad(stars, false, "-9223372036854775809,2,3,4",
              "f:13: u: '-9223372036854775809' does not fit a 64-bit number; for string ids use "
              "--string-ids");
    check_bad(stars, false, "1,2,3,99999999999999999999999",
              "f:13: t: '99999999999999999999999' does not fit a 64-bit number");
    check_bad(stars, false, "-,2,3,4",
              "f:13: u: '-' is not a whole number; for string ids use --string-ids");
    check_bad(stars, false, "1,2,3.5,4",
              "f:13: r: '3.5' is not a whole number from 1 to 5 (half-stars have steps of 0.5)");
    check_bad(stars, false, "1,2,0,4",
              "f:13: r: '0' is not a whole number from 1 to 5 (half-stars have steps of 0.5)");
    check_bad(ACTION_HALF_STARS, false, "1,2,5.5,4",
              "f:13: r: '5.5' is not from 0.5 to 5 in steps of 0.5");
    check_bad(ACTION_HALF_STARS, false, "1,2,3.7,4",
              "f:13: r: '3.7' is not from 0.5 to 5 in steps of 0.5");
    check_bad(ACTION_HALF_STARS, false, "1,2,3.,4",
              "f:13: r: '3.' is not from 0.5 to 5 in steps of 0.5");
    check_bad(ACTION_CODE, false, "1,2,65536,4",
              "f:13: r: '65536' is not a whole number from 0 to 65534");
    check_bad(ACTION_BITS, false, "1,2,256,4", "f:13: r: '256' is not a bit mask from 0 to 255");
    check_bad(stars, true, ",2,3,4", "f:13: u is empty; --skip-bad 1% leaves such rows out");
}

TEST(bad_rows_name_file_and_line) {
    check_bad(ACTION_STARS, false, "1,2,3",
              "f:13: the line has 3 fields, but 4 are needed; is it cut off, or is the delimiter "
              "another one?");
    check_bad(ACTION_STARS, false, "1,2,3,4,5", "f:13: the line has more than 4 fields");
    check_bad(ACTION_STARS, true, "\"a,2,3,4", "f:13: a quoted field has no closing quote");
    check_bad(ACTION_STARS, true, "\"a\"b,2,3,4",
              "f:13: text follows the closing quote of a field");
    /* Control characters and foreign bytes do not reach the terminal. */
    check_bad(ACTION_STARS, false, "1\033[2J\xe9,2,3,4",
              "f:13: u: '1?[2J?' is not a whole number; for string ids use --string-ids");
}

/* Rows that are bad in any way are passed over, with the numbers of all lines kept; the text is not
 * left without its last line break, whatever quotes are open. */
TEST(bad_rows_are_skipped_line_by_line) {
    csv_layout t = make_layout(",", ACTION_STARS);
    row_list rows;
    t.has_text_users = t.has_text_items = true;
    CHECK_OK(bad_lines_create(&t.bad, 10));
    CHECK_OK(
        parse(&t,
              "\"a\"\"\n\"\"b\",1,x,1\n" /* two lines, a bad action: the second line is bad too */
              "u,i,5,1\n"
              "\"c\"\"\",i,5,2\n"
              "\"open\"\",i,5\"\"\n"
              "v,i,5,3\n"
              "\"\"\"\n",
              &rows));
    CHECK_EQ(rows.n, 3);
    CHECK_EQ(rows.row[1].user_bytes, 2);
    CHECK_EQ(rows.row[2].time, 3);
    static const char *const places[] = {"f:10: r: 'x'", "f:11: ", "f:14: ", "f:16: "};
    CHECK_EQ(bad_lines_count(t.bad), 4);
    for (uint64_t i = 0; i < 4; i++)
        CHECK_CONTAINS(bad_lines_get(t.bad, i), places[i]);
    bad_lines_destroy(t.bad);
}

TEST(text_ids_lose_their_quotes) {
    csv_layout t = make_layout(",", ACTION_STARS);
    row_list rows;
    t.has_text_users = t.has_text_items = true;
    CHECK_OK(parse(&t, "A1B,\"say \"\"hi\"\", you\",5.0,7\n", &rows));
    CHECK_EQ(rows.row[0].user_bytes, 3);
    CHECK(memcmp(rows.row[0].user_text, "A1B", 3) == 0);
    CHECK_EQ(rows.row[0].item_bytes, 13);
    CHECK(memcmp(rows.row[0].item_text, "say \"hi\", you", 13) == 0);
}

TEST(columns_by_name_in_any_order_and_bits) {
    static const csv_column wanted[] = {{ROLE_USER, "user_id"},
                                        {ROLE_TIME, "time_ms"},
                                        {ROLE_ITEM, "VIDEO_ID"},
                                        {ROLE_BIT0, "is_click"},
                                        {ROLE_BIT7, "is_profile_enter"}};
    const char *header = "is_profile_enter,tab,video_id,user_id,note,time_ms,is_click,rest";
    csv_layout t = {.format = {",", true}, .actions = ACTION_BITS};
    row_list rows;
    CHECK_OK(csv_layout_resolve(&t, "f", header, strlen(header), true, wanted, 5));
    CHECK_EQ(t.n_columns, 8);
    CHECK_EQ(t.n_needed, 7);
    CHECK_STR(t.name[ROLE_ITEM], "video_id");
    CHECK_OK(parse(&t,
                   "1,x,20,10,\"a, \"\"b\"\"\",1650485801301,1,\n0,,21,11,,5,0,z,too,many\n"
                   "2,,22,12,,6,-1,\n",
                   &rows));
    CHECK_EQ(rows.n, 3);
    CHECK_EQ(rows.row[0].user, 10);
    CHECK_EQ(rows.row[0].item, 20);
    CHECK_EQ(rows.row[0].time, 1650485801301);
    CHECK_EQ(rows.row[0].action, 129);
    CHECK_EQ(rows.row[1].action, 0);
    CHECK_EQ(rows.row[2].action, 129);
}

TEST(columns_that_are_not_there) {
    csv_layout t = {.format = {",", true}};
    const csv_column by_name = {ROLE_USER, "user"}, by_number = {ROLE_USER, "4"};
    const csv_column twice[] = {{ROLE_USER, "1"}, {ROLE_ITEM, "a"}};
    CHECK_FAILS(csv_layout_resolve(&t, "f", "a,b,c", 5, true, &by_name, 1), ERR_FORMAT,
                "f:1: there is no column 'user'; the header has a, b, c");
    CHECK_FAILS(csv_layout_resolve(&t, "f", "a,b,c", 5, true, &by_number, 1), ERR_FORMAT,
                "f:1: there is no column 4; the first row has 3 fields");
    CHECK_FAILS(csv_layout_resolve(&t, "f", "1,2,3", 5, false, &by_name, 1), ERR_USAGE,
                "column 'user' is asked for by name, but f has no header");
    CHECK_FAILS(csv_layout_resolve(&t, "f", "a,b,c", 5, true, twice, 2), ERR_USAGE,
                "column 'a' is given two roles");
}

TEST(delimiters_by_name) {
    char d[3];
    CHECK_OK(csv_delimiter_parse("tab", d));
    CHECK_STR(d, "\t");
    CHECK_OK(csv_delimiter_parse("\\t", d));
    CHECK_STR(d, "\t");
    CHECK_OK(csv_delimiter_parse("::", d));
    CHECK_STR(d, "::");
    CHECK_FAILS(csv_delimiter_parse(":::", d), ERR_USAGE, "--delimiter ':::'");
    CHECK_FAILS(csv_delimiter_parse("", d), ERR_USAGE, "--delimiter ''");
    CHECK_FAILS(csv_delimiter_parse("5", d), ERR_USAGE, "other than a digit");
}

/* The elements of a list, joined with '/'. */
static status join_list(const char *text, char *joined) {
    static char copy[256];
    list_reader r;
    csv_field f = {copy, strlen(text)}, element;
    bool has_element;
    strcpy(copy, text);
    joined[0] = '\0';
    TRY(list_begin(&r, &f));
    for (;;) {
        TRY(list_next(&r, &element, &has_element));
        if (!has_element) return OK;
        strncat(joined, element.text, element.n_bytes);
        strcat(joined, "/");
    }
}

TEST(lists_in_all_three_spellings) {
    char joined[256];
    CHECK_OK(join_list("[1, 2, 3]", joined));
    CHECK_STR(joined, "1/2/3/");
    CHECK_OK(join_list(" [ 1 ,2,  3 ] ", joined));
    CHECK_STR(joined, "1/2/3/");
    CHECK_OK(join_list("1,2,3", joined));
    CHECK_STR(joined, "1/2/3/");
    CHECK_OK(join_list("7", joined));
    CHECK_STR(joined, "7/");
    CHECK_OK(join_list("[]", joined));
    CHECK_STR(joined, "");
    CHECK_OK(join_list("", joined));
    CHECK_STR(joined, "");
    CHECK_OK(join_list("['a', 'b,c']", joined));
    CHECK_STR(joined, "a/b,c/");
    CHECK_OK(join_list("[\"a\\\"b\", \"\\u00e9\\ud83d\\ude00\\n\"]", joined));
    CHECK_STR(joined, "a\"b/\xc3\xa9\xf0\x9f\x98\x80\n/");
    CHECK_OK(join_list("[\"\\u0041\\u007F\\u0080\\u07FF\\u0800\\uFfFd\"]", joined));
    CHECK_STR(joined, "A\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbd/");
}

TEST(lists_that_are_broken) {
    char joined[256];
    CHECK_FAILS(join_list("[1, 2", joined), ERR_FORMAT, "no closing bracket");
    CHECK_FAILS(join_list("[", joined), ERR_FORMAT, "no closing bracket");
    CHECK_FAILS(join_list("[1,,2]", joined), ERR_FORMAT, "empty element");
    CHECK_FAILS(join_list("[1,]", joined), ERR_FORMAT, "empty element");
    CHECK_FAILS(join_list("[,1]", joined), ERR_FORMAT, "empty element");
    CHECK_FAILS(join_list("1, ", joined), ERR_FORMAT, "empty element");
    CHECK_FAILS(join_list("['a' 'b']", joined), ERR_FORMAT, "no comma");
    CHECK_FAILS(join_list("['a]", joined), ERR_FORMAT, "no closing quote");
    CHECK_FAILS(join_list("[\"a\\\"]", joined), ERR_FORMAT, "no closing quote");
    CHECK_FAILS(join_list("[\"\\q\"]", joined), ERR_FORMAT, "unknown escape");
    CHECK_FAILS(join_list("[\"\\ud800\"]", joined), ERR_FORMAT, "not a character");
    CHECK_FAILS(join_list("[\"\\u00\"]", joined), ERR_FORMAT, "not a character");
    char nul[] = "[\"\\\0\"]"; /* a NUL byte is no escape */
    csv_field f = {nul, sizeof nul - 1}, element;
    list_reader r;
    bool has_element;
    CHECK_OK(list_begin(&r, &f));
    CHECK_FAILS(list_next(&r, &element, &has_element), ERR_FORMAT, "unknown escape");
}
