#include "data/read/jsonl_parse.h"
#include "test.h"

static json_cell cells[4];

/* Reads one line for the members user.id, item, a.b and x. */
static status read_line(const char *text) {
    static char line[4096];
    json_paths paths = {.n = 0};
    CHECK_OK(json_paths_add(&paths, "user.id", ROLE_USER));
    CHECK_OK(json_paths_add(&paths, "item", ROLE_ITEM));
    CHECK_OK(json_paths_add(&paths, "a.b", ROLE_SKIP));
    CHECK_OK(json_paths_add(&paths, "x", ROLE_SKIP));
    strcpy(line, text);
    return json_row_read(&paths, line, strlen(line), cells);
}

static void check_cell(int i, json_cell_kind kind, const char *text) {
    CHECK_EQ(cells[i].kind, kind);
    CHECK_EQ(cells[i].field.n_bytes, strlen(text));
    CHECK(memcmp(cells[i].field.text, text, strlen(text)) == 0);
}

TEST(members_by_path) {
    CHECK_OK(read_line("{\"item\": -1.5e+3 ,\"user\":{\"x\":1,\"id\":\"ann\"},\"x\":\"\"}"));
    check_cell(0, JSON_CELL_TEXT, "ann");
    check_cell(1, JSON_CELL_NUMBER, "-1.5e+3");
    CHECK_EQ(cells[2].kind, JSON_CELL_MISSING);
    check_cell(3, JSON_CELL_TEXT, "");
    /* A name with a point in it. */
    CHECK_OK(read_line("{\"a.b\":true,\"user\":null,\"item\":null,\"user.id\":0}"));
    check_cell(2, JSON_CELL_BOOL, "true");
    check_cell(0, JSON_CELL_NUMBER, "0");
    check_cell(1, JSON_CELL_NULL, "null");
    /* Members of arrays, and names that only begin alike, are others. */
    CHECK_OK(read_line("{\"user\":[{\"id\":1}],\"ite\":1,\"items\":2,\"a\":{\"b\":{\"b\":1}}} "));
    CHECK_EQ(cells[0].kind, JSON_CELL_MISSING);
    CHECK_EQ(cells[1].kind, JSON_CELL_MISSING);
    check_cell(2, JSON_CELL_OTHER, "{\"b\":1}");
    CHECK_OK(read_line("{}"));
    CHECK_EQ(cells[3].kind, JSON_CELL_MISSING);
}

TEST(escapes_in_names_and_values) {
    CHECK_OK(read_line("{\"\\u0069tem\":\"a\\\"b\\\\c\\/\\n\\u00e9\\ud83d\\ude00\"}"));
    check_cell(1, JSON_CELL_TEXT, "a\"b\\c/\n\xc3\xa9\xf0\x9f\x98\x80");
}

TEST(what_is_not_an_object) {
    static const char *const lines[][2] = {
        {"[1]", "byte 1: an array; one object a line is needed"},
        {"", "byte 1: an object is expected"},
        {"5", "byte 1: an object is expected"},
        {"{", "byte 2: the object does not end on its line"},
        {"{\"a\":1", "byte 7: the object does not end on its line"},
        {"{\"a\"}", "byte 5: a colon is expected"},
        {"{\"a\":}", "byte 6: a value is expected"},
        {"{\"a\":1,}", "byte 8: the name of a member is expected"},
        {"{a:1}", "byte 2: the name of a member is expected"},
        {"{\"a\":1 \"b\":2}", "byte 8: a comma or a closing bracket is expected"},
        {"{\"a\":01}", "this is not a number"},
        {"{\"a\":1.}", "this is not a number"},
        {"{\"a\":1e}", "this is not a number"},
        {"{\"a\":-}", "this is not a number"},
        {"{\"a\":nul}", "a value is expected"},
        {"{\"a\":NaN}", "a value is expected"},
        {"{\"a\":\"b}", "a string has no closing quote on its line"},
        {"{\"a\":\"\\q\"}", "unknown escape"},
        {"{\"a\":\"\\ud800\"}", "not a character"},
        {"{\"a\":\"\\u0000\"}", "not a character"},
        {"{\"a\":\"\t\"}", "a control character in a string"},
        {"{\"a\":1}{", "byte 8: text follows the object"},
        {"{\"item\":1,\"item\":1}", "item is there twice"},
        {"{\"a\":[1,]}", "a value is expected"}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        CHECK_FAILS(read_line(lines[i][0]), ERR_FORMAT, lines[i][1]);
}

TEST(nesting_is_limited) {
    char line[512];
    memset(line, '[', sizeof line);
    memcpy(line, "{\"a\":", 5);
    line[300] = '\0';
    CHECK_FAILS(read_line(line), ERR_FORMAT, "values are nested too deep");
}
