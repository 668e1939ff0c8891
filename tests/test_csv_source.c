#include "prep_test.h"

/* Reads text as a csv with these options; returns the resulting csv of sequences. */
static char *read_csv(const char *text, const char *options) {
    char args[1024];
    put_file("in.csv", text);
    snprintf(args, sizeof args, "csv --input in.csv --out out --emit-csv out.csv %s", options);
    prep_ok(args);
    return get_file("out.csv");
}

static void check_bad(const char *text, const char *options, int code, const char *reason) {
    char args[1024];
    put_file("in.csv", text);
    snprintf(args, sizeof args, "csv --input in.csv --out out %s", options);
    prep_fails(args, code, reason);
}

#define WANTED "user_id,item_id,rating,unix_timestamp\n1,\"[3, 2]\",\"[0, 0]\",\"[5, 6]\"\n"

TEST(header_is_recognised_and_usual_names_found) {
    CHECK_STR(read_csv("user_id,item_id,timestamp\n1,2,6\n1,3,5\n", ""), WANTED);
    CHECK_STR(read_csv("timestamp,USER_ID,item_id\n6,1,2\n5,1,3\n", ""), WANTED);
    CHECK_STR(read_csv("1,2,6\n1,3,5\n", ""), WANTED);
    CHECK_STR(read_csv("1,2,6\n1,3,5", "--header no"), WANTED);
    CHECK_STR(read_csv("\xef\xbb\xbfuser_id,item_id,timestamp\r\n1,2,6\r\n1,3,5\r\n\r\n", ""),
              WANTED);
}

TEST(columns_by_name_and_by_number) {
    CHECK_STR(read_csv("a;b;c;d\n6;9;2;1\n5;9;3;1\n",
                       "--user-col d --item-col c --time-col a --delimiter semicolon"),
              "user_id,c,rating,unix_timestamp\n1,\"[3, 2]\",\"[0, 0]\",\"[5, 6]\"\n");
    CHECK_STR(read_csv("6\t9\t2\t1\n5\t9\t3\t1\n",
                       "--user-col 4 --item-col 3 --time-col 1 --delimiter tab"),
              WANTED);
    CHECK_STR(read_csv("1::2::6\n1::3::5\n", "--delimiter ::"), WANTED);
    CHECK_STR(read_csv("1,2,x\n1,3,y\n", "--time-col none --item-name sku"),
              "user_id,sku,rating,unix_timestamp\n1,\"[2, 3]\",\"[0, 0]\",\"[0, 0]\"\n");
}

TEST(actions_by_kind) {
    const char *text = "1,2,6,3\n1,3,5,4\n";
    CHECK_CONTAINS(read_csv(text, "--action-col 4"), "\"[4, 3]\"");
    CHECK_CONTAINS(read_csv(text, "--action-col 4 --action-kind stars"), "\"[3, 2]\"");
    CHECK_CONTAINS(read_csv(text, "--action-col 4 --action-kind half-stars"), "\"[7, 5]\"");
    CHECK_CONTAINS(read_csv(text, "--action-col 4 --action-kind bits"), "\"[4, 3]\"");
    CHECK_CONTAINS(read_csv(text, "--action-col 4 --action-kind none"), "\"[0, 0]\"");
    CHECK_CONTAINS(prep_ok("csv --input in.csv --out out2 --time-unit ms --json"),
                   "\"first_time\":5");
}

TEST(ids_of_64_bits_and_below_zero) {
    CHECK_STR(read_csv("-5,9223372036854775807,1\n-5,-9223372036854775808,2\n3,0,1\n", ""),
              "user_id,item_id,rating,unix_timestamp\n"
              "-5,\"[9223372036854775807, -9223372036854775808]\",\"[0, 0]\",\"[1, 2]\"\n"
              "3,\"[0]\",\"[0]\",\"[1]\"\n");
}

TEST(string_ids) {
    CHECK_STR(read_csv("user_id,item_id,timestamp\nbob,x1,2\nbob,x0,1\nAl,x1,1\n", "--string-ids"),
              "user_id,item_id,rating,unix_timestamp\n"
              "Al,\"[\"\"x1\"\"]\",\"[0]\",\"[1]\"\n"
              "bob,\"[\"\"x0\"\", \"\"x1\"\"]\",\"[0, 0]\",\"[1, 2]\"\n");
}

TEST(duplicates_are_kept_or_dropped) {
    const char *text = "1,2,6\n1,2,6\n1,2,7\n";
    CHECK_CONTAINS(read_csv(text, ""), "\"[2, 2, 2]\"");
    CHECK_CONTAINS(read_csv(text, "--drop-duplicates"), "\"[2, 2]\"");
    char *out = prep_ok("csv --input in.csv --out out --json");
    CHECK_CONTAINS(out, "\"duplicates\":1,\"out_of_order\":0,");
}

TEST(bad_files) {
    check_bad("9223372036854775808,1,1\n", "", 1,
              "in.csv:1: column 1: '9223372036854775808' does not fit a 64-bit number; for string "
              "ids use --string-ids");
    check_bad("", "", 1, "in.csv: the file is empty");
    check_bad("user_id,item_id,timestamp\n", "", 1, "in.csv: there are no events");
    check_bad("\n\n", "", 1,
              "in.csv:1: the first line is empty; the header or an event is expected\n");
    check_bad("user_id,item_id,timestamp\n1,2,3\n1,2\n", "", 1,
              "in.csv:3: the line has 2 fields, but 3 are needed; is it cut off");
    check_bad("user_id,item_id,timestamp\n1,2,3\n1,two,3\n", "", 1,
              "in.csv:3: item_id: 'two' is not a whole number; for string ids use");
    check_bad("user,thing,timestamp\n1,2,3\n", "", 1,
              "in.csv:1: there is no column 'item_id'; the header has user, thing, timestamp; name "
              "the column with --item-col");
    check_bad("user_id;item_id;timestamp\n1;2;3\n", "", 1,
              "in.csv:1: there is no column 'user_id'; the header has user_id;item_id;timestamp "
              "alone (is the delimiter another one?); name the column with --user-col");
    check_bad("user_id,item_id,item_id,timestamp\n1,2,3,4\n", "", 1,
              "in.csv:1: columns 2 and 3 are both called 'item_id'; give the number of one");
    put_file("two/a.csv", "1,2,3\n");
    put_file("two/b.csv", "1,2,3\n");
    prep_fails(
        "csv --input two --out out", 2,
        "--input two holds 2 files, but the source csv is one; give that file, or an archive "
        "or folder with it alone");
    check_bad("1,2,3\n", "--user-col who --header no", 2, "asked for by name");
    check_bad("1,2,3\n", "--user-col 4", 1, "in.csv:1: there is no column 4");
    check_bad("1,2\n", "", 1, "in.csv:1: there is no column 3; the first row has 2 fields");
    check_bad("1,2,3\n", "--header maybe", 2, "--header 'maybe' is unknown; use yes, no or auto");
    check_bad("1,2,3\n", "--action-kind stars", 2, "--action-kind stars needs --action-col");
    check_bad("1,2,3\n", "--action-kind five", 2, "--action-kind 'five' is unknown");
    check_bad("1,2,3\n", "--delimiter abc", 2, "--delimiter 'abc'");
    check_bad("1,2,3\n", "--time-unit h", 2, "--time-unit 'h' is unknown; use s or ms");
    check_bad("a,b,c\n", "--string-ids --time-col none", 2, "give --header yes or --header no");
}
