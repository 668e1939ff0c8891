#include "base/log.h"
#include "data/read/jsonl.h"
#include "data/read/sources.h"
#include "oom.h"
#include "prep_test.h"
#include "test.h"

static const json_value *cells[4];
static arena memory; /* of their texts */

/* Reads one line for the members user.id, item, a.b and x. */
static status read_line(const char *text) {
    static char line[4096];
    json_paths paths = {.n = 0};
    CHECK_OK(json_paths_add(&paths, "user.id", ROLE_USER));
    CHECK_OK(json_paths_add(&paths, "item", ROLE_ITEM));
    CHECK_OK(json_paths_add(&paths, "a.b", ROLE_SKIP));
    CHECK_OK(json_paths_add(&paths, "x", ROLE_SKIP));
    strcpy(line, text);
    return json_row_read(&paths, &memory, line, strlen(line), cells);
}

static void check_cell(int i, json_type type, const char *text) {
    csv_field field;
    CHECK(cells[i] != NULL && cells[i]->type == type);
    CHECK_OK(json_cell_text(&memory, cells[i], &field));
    CHECK_EQ(field.n_bytes, strlen(text));
    CHECK(memcmp(field.text, text, strlen(text)) == 0);
}

static void check_nested(int i, json_type type) {
    csv_field field;
    CHECK(cells[i] != NULL && cells[i]->type == type);
    CHECK_OK(json_cell_text(&memory, cells[i], &field));
    CHECK(field.text == NULL);
}

TEST(members_by_path) {
    CHECK_OK(read_line("{\"item\": -1.5e+3 ,\"user\":{\"x\":1,\"id\":\"ann\"},\"x\":\"\"}"));
    check_cell(0, JSON_STRING, "ann");
    check_cell(1, JSON_NUMBER, "-1.5e+3");
    CHECK(cells[2] == NULL);
    check_cell(3, JSON_STRING, "");
    /* A name with a point in it. */
    CHECK_OK(read_line("{\"a.b\":true,\"user\":null,\"item\":null,\"user.id\":0}"));
    check_cell(2, JSON_BOOL, "true");
    check_cell(0, JSON_NUMBER, "0");
    check_cell(1, JSON_NULL, "null");
    /* Members of arrays, and names that only begin alike, are others. */
    CHECK_OK(read_line("{\"user\":[{\"id\":1}],\"ite\":1,\"items\":2,\"a\":{\"b\":{\"b\":1}}} "));
    CHECK(cells[0] == NULL);
    CHECK(cells[1] == NULL);
    check_nested(2, JSON_OBJECT);
    CHECK_OK(read_line("{}"));
    CHECK(cells[3] == NULL);
    /* Arrays of values become lists in place; others are others. */
    CHECK_OK(read_line("{\"x\":[ \"a\\u00e9\" , 5,null, \"\\\"\",true ],\"item\":[]}"));
    check_cell(3, JSON_ARRAY,
               "a\xc3\xa9\x1f"
               "5\x1f\"\x1ftrue\x1f");
    check_cell(1, JSON_ARRAY, "");
    CHECK_OK(read_line("{\"x\":[\"a\",[1]],\"item\":[{}]}"));
    check_nested(3, JSON_ARRAY);
    check_nested(1, JSON_ARRAY);
    arena_fini(&memory);
}

TEST(escapes_in_names_and_values) {
    CHECK_OK(read_line("{\"\\u0069tem\":\"a\\\"b\\\\c\\/\\n\\u00e9\\ud83d\\ude00\"}"));
    check_cell(1, JSON_STRING, "a\"b\\c/\n\xc3\xa9\xf0\x9f\x98\x80");
    arena_fini(&memory);
}

TEST(what_is_not_an_object) {
    static const char *const lines[][2] = {
        {"[1]", "byte 1: an array; one object a line is needed"},
        {"", "byte 1: an object is expected"},
        {"5", "byte 1: an object is expected"},
        {"{", "byte 2: expected a key in double quotes, but the line ends here; one object a line "
              "is needed ('jq -c .' makes them)"},
        {"{\"a\":1", "byte 7: expected ',' or '}', but the line ends here; one object a line"},
        {"{\"a\"}", "byte 5: expected ':' after the key, found '}'"},
        {"{\"a\":}", "byte 6: expected a value"},
        {"{\"a\":1,}", "byte 8: expected a key in double quotes, found '}'"},
        {"{a:1}", "byte 2: expected a key in double quotes, found 'a'"},
        {"{\"a\":1 \"b\":2}", "byte 8: expected ',' or '}', found '\"'"},
        {"{\"a\":01}", "byte 6: a number must not start with 0"},
        {"{\"a\":1.}", "byte 8: expected a digit after the decimal point, found '}'"},
        {"{\"a\":1e}", "expected a digit in the exponent"},
        {"{\"a\":-}", "expected a digit"},
        {"{\"a\":nul}", "expected a value"},
        {"{\"a\":NaN}", "expected a value"},
        {"{\"a\":\"b}", "byte 6: this string has no closing quote"},
        {"{\"a\":\"\\q\"}", "expected one of \"\\/bfnrtu after a backslash, found 'q'"},
        {"{\"a\":\"\\ud800\"}", "a lone surrogate"},
        {"{\"a\":\"\\u0000\"}", "\\u0000 cannot be part of a string"},
        {"{\"a\":\"\t\"}", "byte 7: control byte 0x09 in a string"},
        {"{\"a\":1}{", "byte 8: expected the end of the text, found '{'"},
        {"{\"item\":1,\"item\":1}", "item is there twice"},
        {"{\"a\":[1,]}", "expected a value"}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        CHECK_FAILS(read_line(lines[i][0]), ERR_FORMAT, lines[i][1]);
    arena_fini(&memory);
}

TEST(nesting_is_limited) {
    char line[512];
    memset(line, '[', sizeof line);
    memcpy(line, "{\"a\":", 5);
    line[300] = '\0';
    CHECK_FAILS(read_line(line), ERR_FORMAT, "nested deeper than 64 levels");
    arena_fini(&memory);
}

/* Reads text as JSON lines; the data as csv, and what was said. */
static char *read_jsonl(const char *text, const char *options, char **said) {
    char args[1024];
    put_file("in.jsonl", text);
    snprintf(args, sizeof args, "jsonl --input in.jsonl --out out --emit-csv out.csv %s", options);
    *said = prep_ok(args);
    return get_file("out.csv");
}

static void check_bad(const char *text, const char *options, int code, const char *reason) {
    char args[1024];
    put_file("in.jsonl", text);
    snprintf(args, sizeof args, "jsonl --input in.jsonl --out out %s", options);
    prep_fails(args, code, reason);
}

TEST(columns_ids_and_times) {
    char *said;
    CHECK_STR(
        read_jsonl("{\"user_id\":1,\"asin\":\"x\",\"timestamp\":1577836800123,\"rating\":5.0,"
                   "\"text\":\"\\\"\\n\",\"images\":[{}]}\r\n\r\n"
                   "{\"rating\":1,\"timestamp\":1577836800000,\"asin\":\"y\",\"user_id\":\"1\"}",
                   "", &said),
        "user_id,asin,rating,unix_timestamp\n"
        "1,\"[\"\"y\"\", \"\"x\"\"]\",\"[0, 4]\",\"[1577836800000, 1577836800123]\"\n");
    CHECK_CONTAINS(said, "in.jsonl: JSON lines; user user_id (numbers), item asin (texts), time "
                         "timestamp, action rating (stars)\n"
                         "note: not read: text; --items and --users read features, also from this "
                         "file\ntimes: milliseconds, 2020-01-01 .. 2020-01-01\n");
    CHECK_CONTAINS(
        read_jsonl("{\"who\":{\"id\":7},\"what\":5,\"when\":\"2020-01-01\",\"ok\":true}\n",
                   "--user who.id --item what --time when --action ok", &said),
        "7,\"[5]\",\"[1]\",\"[1577836800]\"");
}

/* A member that is null, empty or not there is an unknown action. */
TEST(actions_that_are_missing) {
    char *said;
    CHECK_CONTAINS(read_jsonl("{\"user\":1,\"item\":2,\"ts\":1,\"rating\":null}\n"
                              "{\"user\":1,\"item\":2,\"ts\":2,\"rating\":4}\n"
                              "{\"user\":1,\"item\":2,\"ts\":3}\n"
                              "{\"user\":1,\"item\":2,\"ts\":4,\"rating\":\"\"}\n",
                              "", &said),
                   "\"[null, 3, null, null]\"");
    CHECK_CONTAINS(said, "action rating (stars)");
    CHECK_CONTAINS(said, "Unknown                3   events without an action");
    CHECK_CONTAINS(read_jsonl("{\"user\":1,\"item\":2,\"ts\":\"2020-01-01T01:00\"}\n"
                              "{\"user\":1,\"item\":3,\"ts\":\"2020-01-01T01:00Z\"}\nx\n",
                              "--time-zone +01 --skip-bad 34%", &said),
                   "[1577836800, 1577840400]");
}

/* An id that is no number as numbers are printed is never taken for one, whatever the order. */
TEST(ids_that_are_almost_numbers) {
    static const char *const odd[] = {"\"01\"", "-0", "\"+7\"", "\" 7\"", "7.0", "1e3"};
    char text[2048], wanted[64];
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++)
        for (int at = 0; at < 20; at += 19) {
            size_t n = 0;
            for (int k = 0; k < 20; k++)
                n += (size_t)sprintf(text + n, "{\"user_id\":1,\"item\":%s,\"ts\":1}\n",
                                     k == at ? odd[i] : "7");
            snprintf(wanted, sizeof wanted, "in.jsonl:%d: item: '%.*s' is not", at + 1,
                     (int)strlen(odd[i]) - (odd[i][0] == '"' ? 2 : 0), odd[i] + (odd[i][0] == '"'));
            check_bad(text, "", 1, wanted);
        }
}

TEST(rows_that_cannot_be_read) {
    check_bad("", "", 1, "in.jsonl: the file is empty");
    check_bad("user,item\n1,2\n", "", 1,
              "in.jsonl:1: byte 1: an object is expected: {...}; tables are read with 'hstu prep "
              "csv'");
    check_bad("[{\"user_id\":1}]\n", "", 1, "in.jsonl:1: byte 1: an array; one object a line");
    check_bad("{\n\"user_id\":1}\n", "", 1,
              "in.jsonl:1: byte 2: expected a key in double quotes, but the line ends here");
    check_bad("{}\n", "", 1, "in.jsonl:1: the object has no members");
    check_bad("{\"user_id\":1,\"ts\":1}\n", "", 1,
              "in.jsonl:1: no column looks like the item; the header has user_id, ts; name it with "
              "--item-col");
    check_bad("{\"user_id\":1,\"item\":2,\"ts\":1}\n{\"user_id\":1,\"ts\":1}\n", "", 1,
              "in.jsonl:2: item is missing");
    check_bad("{\"user_id\":1,\"item\":2,\"ts\":1}\n{\"user_id\":1,\"item\":null,\"ts\":1}\n", "",
              1, "in.jsonl:2: item is null");
    check_bad("{\"user_id\":1,\"item\":2,\"ts\":1}\n{\"user_id\":1,\"item\":[2],\"ts\":1}\n", "", 1,
              "in.jsonl:2: item is an object or an array, not a value");
    check_bad("{\"user_id\":1,\"item\":2,\"ts\":1}\n{\"user_id\":true,\"item\":2,\"ts\":1}\n", "",
              1, "in.jsonl:2: user_id is true");
    check_bad(
        "{\"user_id\":1,\"item\":2,\"ts\":1}\n{\"user_id\":1,\"item\":2,\"ts\":\"2020-01-01\"}", "",
        1, "in.jsonl:2: ts: '2020-01-01' is of another form than in.jsonl:1 ('1')");
    check_bad("{\"user_id\":1,\"item\":2,\"ts\":1}\n", "--item user_id", 2,
              "column 'user_id' is given two roles");
    check_bad("{\"user_id\":1,\"item\":2,\"ts\":1}\n", "--header yes", 2, "are for csv");
    char *said;
    read_jsonl("{\"user_id\":1,\"item\":2,\"ts\":1}\n{\n\n{\"user_id\":1,\"item\":3,\"ts\":1.5}\n",
               "--skip-bad 1", &said);
    CHECK_CONTAINS(get_file("out.csv"), "1,\"[2, 3]\",\"[0, 0]\",\"[1000, 1500]\"");
    CHECK_CONTAINS(get_file("out/skipped.txt"),
                   "in.jsonl:2: byte 2: expected a key in double quotes, but the line ends here");
}

/* Many blocks, on one thread and on three, give the bytes that the same rows give as csv. */
TEST(the_same_events_as_csv) {
    char *out;
    int code = run_shell(
        &out,
        "mkdir j && awk 'BEGIN { for (i = 0; i < 120000; i++) { x = (i * 7919) %% 400009; "
        "printf "
        "\"{\\\"user_id\\\":%%d,\\\"item_id\\\":\\\"i%%d\\\",\\\"ts\\\":%%d.5,\\\"rating\\\":"
        "%%d}\\n\", x %% 977, x * 31 %% 5003, x * 17 %% 9973, 1 + x %% 5 > \"j/\" (i < 70000) "
        "\".jsonl\"; printf \"%%d,i%%d,%%d.5,%%d\\n\", x %% 977, x * 31 %% 5003, x * 17 %% 9973, "
        "1 + x %% 5 > \"in\" (i < 70000) \".csv\" } }' && for t in 1 3; do HSTU_THREADS=$t %s prep "
        "jsonl --input j --out o$t --emit-csv o$t.csv || exit 9; done && %s prep csv --input "
        "in0.csv "
        "in1.csv --out c --emit-csv c.csv --action-col 4 --action-kind stars && cmp o1/data.seq "
        "o3/data.seq && cmp o1.csv c.csv",
        test_program(), test_program());
    if (code != 0) FAIL_TEST("%s", out);
    CHECK_CONTAINS(out, "  Events           120,000");
}

typedef struct read_job {
    char path[4096], folder[4096];
    pool *p;
} read_job;

static status read_and_write(void *ctx) {
    read_job *job = ctx;
    const source_request request = {.skip_bad = 1};
    const char *inputs[] = {job->path};
    const source *jsonl;
    source_result r;
    builder_stats stats;
    TRY(source_find("jsonl", &jsonl));
    TRY(source_read(jsonl, &request, inputs, 1, job->p, &r));
    status st = builder_write(r.build, job->folder, "{}", &stats);
    if (st == OK) CHECK_EQ(stats.n_events, 2);
    source_result_fini(&r);
    return st;
}

/* The columns of events may come after hundreds of others. */
TEST(rows_of_many_columns) {
    buf text = {0};
    for (int row = 0; row < 2; row++) {
        for (int i = 0; i < 600; i++)
            CHECK_OK(buf_printf(&text, "%s\"c%d\":%d", i == 0 ? "{" : ",", i, row));
        CHECK_OK(buf_printf(&text, ",\"user_id\":7,\"item_id\":%d,\"timestamp\":%d}\n", row + 1,
                            1600000000 + row));
    }
    put_file("in.jsonl", buf_str(&text));
    prep_ok("jsonl --input in.jsonl --out out --emit-csv out.csv");
    CHECK_CONTAINS(get_file("out.csv"), "7,\"[1, 2]\"");
    buf_fini(&text);
}

TEST(memory_that_runs_out_anywhere_is_reported) {
    read_job job;
    put_file("in.jsonl", "{\"user\":{\"id\":1},\"item\":\"a\",\"ts\":1,\"rating\":1}\n{\n"
                         "{\"user\":{\"id\":2},\"item\":\"b\",\"ts\":1,\"rating\":1}\n");
    snprintf(job.path, sizeof job.path, "%s/in.jsonl", test_folder());
    snprintf(job.folder, sizeof job.folder, "%s/out", test_folder());
    CHECK_OK(pool_create(&job.p, 1));
    log_set_level(LOG_QUIET);
    CHECK(oom_at_each_allocation(read_and_write, &job) > 20);
    pool_destroy(job.p);
}
