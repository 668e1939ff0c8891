#include "base/log.h"
#include "data/read/sources.h"
#include "oom.h"
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
    /* Neither a Parquet file nor JSON lines. */
    CHECK_CONTAINS(read_csv("PAR1,item,time\nu,2,6\n", "--user-col 1 --item-col 2"), "\nu,");
    CHECK_CONTAINS(read_csv("{user},item,time\nu,2,6\n", "--user-col 1 --item-col 2"), "\nu,");
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
    /* A rating may have a decimal comma; of a larger number it may be one of thousands. */
    text = "user;item;ts;rating\n1;2;6;3,5\n1;3;5;4\n1;4;7;5,0\n";
    CHECK_CONTAINS(read_csv(text, ""), "\"[7, 6, 9]\"");
    CHECK_CONTAINS(read_csv("user;item;ts;rating\n1;2;6;3,0\n1;3;5;4\n", "--action-kind stars"),
                   "\"[3, 2]\"");
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

/* Rows "1,1" to "20,20" and one with the odd id, before or after them. */
static void put_odd(char *text, const char *user, const char *item, bool is_first) {
    size_t n = (size_t)sprintf(text, "user_id,item_id,timestamp\n");
    if (is_first) n += (size_t)sprintf(text + n, "%s,%s,99\n", user, item);
    for (int i = 1; i <= 20; i++)
        n += (size_t)sprintf(text + n, "%d,%d,%d\n", i, i, i);
    if (!is_first) sprintf(text + n, "%s,%s,99\n", user, item);
}

/* An id that is no number as numbers are printed is never taken for one, whatever the order. */
TEST(ids_that_are_almost_numbers) {
    static const char *const odd[] = {"01", "-0", "-07", "+7", " 7", "7.0", "1e3"};
    char text[1024], reason[64];
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++)
        for (int way = 0; way < 4; way++) {
            put_odd(text, way / 2 == 0 ? odd[i] : "1", way / 2 == 0 ? "1" : odd[i], way % 2 == 0);
            snprintf(reason, sizeof reason, "in.csv:%d: %s: '%s' is not", way % 2 == 0 ? 2 : 22,
                     way / 2 == 0 ? "user_id" : "item_id", odd[i]);
            check_bad(text, "", 1, reason);
        }
    /* As texts they are ids of their own, in any order. */
    put_odd(text, "01", " 7", true);
    const char *first = read_csv(text, "--string-ids");
    CHECK_CONTAINS(first, "\n01,\"[\"\" 7\"\"]\",");
    CHECK_CONTAINS(first, "\n1,\"[\"\"1\"\"]\",");
    put_odd(text, "01", " 7", false);
    CHECK_STR(read_csv(text, "--string-ids"), first);
}

TEST(duplicates_are_kept_or_dropped) {
    const char *text = "1,2,6\n1,2,6\n1,2,7\n";
    CHECK_CONTAINS(read_csv(text, ""), "\"[2, 2, 2]\"");
    CHECK_CONTAINS(read_csv(text, "--drop-duplicates"), "\"[2, 2]\"");
    /* Not only those that are side by side. */
    CHECK_CONTAINS(read_csv("1,2,6\n1,3,6\n1,2,6\n1,2,7\n", "--drop-duplicates"), "\"[2, 3, 2]\"");
    (void)read_csv(text, "");
    char *out = prep_ok("csv --input in.csv --out out --json");
    CHECK_CONTAINS(out, "\"duplicates\":1,\"out_of_order\":0,");
}

TEST(bad_files) {
    check_bad("1,1,1\n9223372036854775808,1,1\n1,1,1\n1,1,1\n1,1,1\n1,1,1\n1,1,1\n1,1,1\n1,1,1\n"
              "1,1,1\n1,1,1\n",
              "", 1,
              "in.csv:2: column 1: '9223372036854775808' does not fit a 64-bit number; for string "
              "ids use --string-ids");
    check_bad("", "", 1, "in.csv: the file is empty");
    check_bad("PAR1\x15\x04\x15", "", 1,
              "in.csv: this is a Parquet file; read it with 'hstu prep parquet'");
    check_bad("{\"user_id\": 1, \"item_id\": 2, \"ts\": 3}\n", "", 1,
              "in.csv:1: this looks like JSON lines; read it with 'hstu prep jsonl'");
    check_bad("\n\r\n\n", "", 1, "in.csv: the file is empty");
    check_bad("user_id,item_id,timestamp\n", "", 1, "in.csv: there are no events");
    check_bad("user_id,item_id,timestamp\n1,2,3\n1,2\n", "", 1,
              "in.csv:3: the line has 2 fields, but 3 are needed; is it cut off");
    check_bad("user,thing,timestamp\n1,2,3\n", "", 1,
              "in.csv:1: no column looks like the item; the header has user, thing, timestamp; "
              "name it with --item-col");
    check_bad("user,item\n1,2\n", "", 1,
              "no column looks like the time; the header has user, item; name it with --time-col, "
              "or keep the order of the file with --time-col none");
    check_bad("user_id^item_id^timestamp\n1^2^3\n", "", 1,
              "in.csv:1: no column looks like the user; the header has user_id^item_id^timestamp "
              "alone (is the delimiter another one?); name it with --user-col");
    check_bad("user_id,item_id,item_id,timestamp\n1,2,3,4\n", "", 1,
              "in.csv:1: 'item_id' and 'item_id' could both be the item");
    check_bad("user_id,item_id,item_id,timestamp\n1,2,3,4\n", "--item-col item_id", 1,
              "in.csv:1: columns 2 and 3 are both called 'item_id'; give the number of one");
    check_bad("user_id,movieId,asin,timestamp\n1,2,3,4\n", "", 1,
              "in.csv:1: 'movieId' and 'asin' could both be the item; the header has user_id, "
              "movieId, asin, timestamp; choose one with --item-col");
    check_bad("1,2,3\n", "--user-col who --header no", 2, "asked for by name");
    check_bad("1,2,3\n", "--user-col 4", 1, "in.csv:1: there is no column 4");
    check_bad("1,2\n", "", 1, "in.csv:1: there is no column 3; the first row has 2 fields");
    check_bad("1,2,3\n", "--header maybe", 2, "--header 'maybe' is unknown; use yes, no or auto");
    check_bad("1,2,3\n", "--action-kind stars", 2, "--action-kind needs --action-col");
    check_bad("1,2,3\n", "--action-kind five", 2, "--action-kind 'five' is unknown");
    check_bad("1,2,3\n", "--delimiter abc", 2, "--delimiter 'abc'");
    check_bad("1,2,3\n", "--time-unit h", 2,
              "--time-unit 'h' is unknown; use s, ms, us, ns or iso");
    check_bad("a,b,c\n", "--string-ids --time-col none", 2, "give --header yes or --header no");
    check_bad("\"a\nb,c\n", "--header no", 1, "in.csv:1: a quoted field has no closing quote");
}

/* What the program said, and the data it made, as csv. */
static char *try_csv(const char *text, const char *options, char **said) {
    char args[1024];
    put_file("in.csv", text);
    snprintf(args, sizeof args, "csv --input in.csv --out out --emit-csv out.csv %s", options);
    *said = prep_ok(args);
    return get_file("out.csv");
}

TEST(names_that_people_use_are_found_and_said) {
    char *said;
    CHECK_CONTAINS(try_csv("customer_id;asin;unixReviewTime;overall\n7;B0;1577836800;5\n"
                           "7;B1;1577836801;4\n",
                           "", &said),
                   "7,\"[\"\"B0\"\", \"\"B1\"\"]\",\"[4, 3]\"");
    CHECK_CONTAINS(said, "in.csv: semicolons; user customer_id (numbers), item asin (texts), time "
                         "unixReviewTime, action overall (stars)\n");
    CHECK_CONTAINS(said, "times: seconds, 2020-01-01 .. 2020-01-01\n");
    try_csv("User ID|Movie|ts|rating\nbob|1|1577836800|0.5\n", "", &said);
    CHECK_CONTAINS(said, "vertical bars; user User ID (texts), item Movie (numbers), time ts, "
                         "action rating (half stars)\n");
    /* Without a header, the clock shows which column is the time. */
    CHECK_CONTAINS(try_csv("196\t242\t3\t881250949\n186\t302\t3\t891717742\n", "", &said),
                   "[881250949]");
    CHECK_CONTAINS(said, "tabs, no header; user column 1 (numbers), item column 2 (numbers), time "
                         "column 4\nnote: column 3 is not read; if it holds ratings or actions: "
                         "--action-col 3\n");
    try_csv("user,item,time,action\n1,2,5,\n1,3,6,\n", "", &said);
    CHECK_CONTAINS(said, "the column action is left out: it is empty in the first rows");
    CHECK(strstr(said, "not read") == NULL); /* said once */
    /* Other columns are named before what the data are, with what reads them. */
    try_csv("user,item,time,Preis,Land\n1,2,1577836800,3.99,DE\n", "", &said);
    CHECK_CONTAINS(said,
                   "time time\nnote: not read: Preis, Land; --action-col reads ratings or "
                   "actions, --items and --users read features, also from this file\ntimes: ");
    try_csv("user,item,time,rating,Preis\n1,2,5,4,3.99\n", "", &said);
    CHECK_CONTAINS(said, "note: not read: Preis; --items and --users read features, also from");
    /* Latin-1 is kept, and said. */
    try_csv("user,item,time\na,b,5\na,M\xfcller,6\na,\xe4,7\n", "", &said);
    CHECK_CONTAINS(said, "warning: in.csv:3: not UTF-8, and neither are 2 lines in all");
    CHECK_CONTAINS(said, "iconv -f LATIN1 -t UTF-8");
    try_csv("196\t242\t3\t881250949\n", "--action-col 3", &said);
    CHECK(strstr(said, "is not read") == NULL);
    /* It is one in every row, the first included. */
    try_csv("196\t242\t3\t5\n186\t302\t4\t891717742\n", "", &said);
    CHECK_CONTAINS(said, "item column 2 (numbers), time column 3\n");
    /* Leading zeros are part of an id. */
    CHECK_CONTAINS(try_csv("user,item,time\n007,08,5\n", "", &said), "007,\"[\"\"08\"\"]\"");
    CHECK_CONTAINS(try_csv("user,item,time,rating,event_type\n1,2,5,5,view\n", "", &said), "[0]");
    CHECK_CONTAINS(said, "note: in.csv:1: 'rating' and 'event_type' could both be the action");
}

TEST(times_in_every_form) {
    char *said;
    CHECK_CONTAINS(try_csv("u,i,ts\n1,2,1577836800123\n", "--user-col u --item-col i", &said),
                   "[1577836800123]");
    CHECK_CONTAINS(said, "times: milliseconds, 2020-01-01 .. 2020-01-01\n");
    CHECK_CONTAINS(try_csv("1,2,1577836800123456\n", "", &said), "[1577836800123456]");
    CHECK_CONTAINS(said, "times: microseconds, 2020-01-01");
    CHECK_CONTAINS(try_csv("1,2,1577836800123456789\n", "", &said), "[1577836800123456789]");
    CHECK_CONTAINS(said, "times: nanoseconds, 2020-01-01");
    /* Fractions are kept, in the coarsest ticks that can. */
    CHECK_CONTAINS(try_csv("1,2,1577836800\n1,3,1577836800.5\n1,4,1.577836801e9\n", "", &said),
                   "[1577836800000, 1577836800500, 1577836801000]");
    CHECK_CONTAINS(try_csv("1,2,2020-01-01\n1,3,2020-01-01 00:00:01\n", "", &said),
                   "[1577836800, 1577836801]");
    CHECK_CONTAINS(said, "times: dates without a zone, read as UTC, 2020-01-01 .. 2020-01-01");
    CHECK_CONTAINS(
        try_csv("1,2,2020-01-01T02:00:00+02:00\n1,3,2020-01-01T00:00:00.000001Z\n", "", &said),
        "[1577836800000000, 1577836800000001]");
    CHECK_CONTAINS(said, "times: dates with a zone, 2020-01-01 .. 2020-01-01");
    /* With and without a zone in one column; both count as dates. */
    CHECK_CONTAINS(try_csv("1,2,2020-01-01T02:00\n1,3,2020-01-01T02:00:00Z\n", "", &said),
                   "[1577844000, 1577844000]");
    CHECK_CONTAINS(said, "times: dates with a zone and without one; those without are read as UTC");
    CHECK_CONTAINS(
        try_csv("1,2,2020-01-01T02:00\n1,3,2020-01-01T02:00:00Z\n", "--time-zone +02:00", &said),
        "[1577836800, 1577844000]");
    CHECK_CONTAINS(said, "those without are read as +02:00, 2020-01-01");
    CHECK_CONTAINS(try_csv("1,2,31.12.2019 16:00\n",
                           "--header no --time-format '%d.%m.%Y %H:%M' --time-zone -08:00", &said),
                   "[1577836800]");
    CHECK_CONTAINS(said, "times: dates without a zone, read as -08:00, 2020-01-01");
    CHECK_CONTAINS(try_csv("1,2,86400\n", "--time-unit ms", &said), "[86400]");
    CHECK_CONTAINS(said, "times: milliseconds, 1970-01-01 .. 1970-01-01");
}

/* Numbers that can only be clocks, and ISO dates: both are taken, and told. */
TEST(clocks_beside_dates) {
    char *said;
    CHECK_CONTAINS(try_csv("1,2,2020-01-01\n1,3,1577836801\n1,4,1577836802000\n",
                           "--header no --time-zone +00:00", &said),
                   "[1577836800, 1577836801, 1577836802]");
    CHECK_CONTAINS(said, "times: numbers since 1970, and dates without a zone, read as +00:00");
    CHECK_CONTAINS(try_csv("1,2,1577836800\n1,3,1577836801\n1,4,2020-01-01T00:00:02Z\n", "", &said),
                   "[1577836800, 1577836801, 1577836802]");
    CHECK_CONTAINS(said, "times: seconds, and dates with a zone, 2020-01-01");
}

TEST(times_that_are_mixed_or_far_off) {
    check_bad("1,2,1577836800\n1,2,1577836801\n1,3,1700000000000\n", "", 1,
              "in.csv:3: column 3: '1700000000000' looks like milliseconds, but in.csv:1 "
              "('1577836800') like seconds");
    check_bad("1,2,77836800\n1,2,77836801\n1,3,2020-01-01\n", "", 1,
              "in.csv:3: column 3: '2020-01-01' is of another form than in.csv:1 ('77836800'), "
              "which is a number; give all times one form");
    check_bad("1,2,2020-01-01\n1,3,20200102\n", "--header no", 1,
              "in.csv:2: column 3: '20200102' is of another form than in.csv:1 ('2020-01-01')");
    check_bad("1,2,2020-01-01\n1,3,1577836800\n", "--header no --time-unit iso", 1,
              "'1577836800' is not what --time-unit says: dates");
    check_bad("1,2,5.1.2020\n", "--header no", 1,
              "give other forms with --time-format, perhaps '%d.%m.%Y'");
    check_bad("1,2,5/28/2020 1:02:03\n", "--header no", 1, "perhaps '%m/%d/%Y %H:%M:%S'");
    check_bad("1,2,28/5/2020 01:02\n", "--header no", 1, "perhaps '%d/%m/%Y %H:%M'");
    check_bad("1,2,28.5.2020 noon\n", "--header no", 1, "with --time-format");
    check_bad("1,2,5.1.2020\n1,2,2020-01-05\n", "--header no --time-format %d.%m.%Y", 1,
              "in.csv:2: column 3: '2020-01-05' does not fit --time-format");
    check_bad("1,2,2020-01-01\n", "--time-zone Nowhere/Land", 2, "--time-zone 'Nowhere/Land' is");
    check_bad("1,2,1577836800\n", "--time-zone +02:00", 2,
              "--time-zone is for dates; the times are numbers, which have no zone: in.csv:1");
    check_bad("1,2,1577836800\n", "--time-zone +02:00 --time-unit s", 2, "are numbers");
    check_bad("1,2,2020-01-01\n", "--time-format %F --time-unit iso", 2, "exclude each other");
    check_bad("1,2,2020-01-01\n", "--time-format %Q", 2, "'%Q' is unknown");
    check_bad("1,2,1700000000000\n", "--time-unit s", 1,
              "in.csv:1: column 3: '1700000000000' in seconds is the year 55840; it looks like "
              "milliseconds: give --time-unit ms if all times are");
    check_bad("1,2,1577836800\n1,3,99999999999999999999\n", "", 1, "in.csv:2: column 3:");
    check_bad("1,2,9999-01-01\n", "", 1, "is not between the years 1900 and 2199");
    check_bad("1,2,1577836800\n", "--time-unit iso", 1, "is not what --time-unit says: dates");
}

/* An event without an action is kept; missing ones do not change what the column is taken for. */
TEST(actions_that_are_missing) {
    char *said;
    const char *text = "user,item,ts,rating\n1,2,5,\n1,3,6,4\n1,4,7, \n1,5,8,3\n1,6,9,NaN\n";
    CHECK_CONTAINS(try_csv(text, "", &said), "\"[null, 3, null, 2, null]\"");
    CHECK_CONTAINS(said, "action rating (stars)");
    CHECK_CONTAINS(said, "Unknown                3   events without an action");
    CHECK_CONTAINS(try_csv("user,item,ts,rating\n1,2,5,\n1,3,6,0.5\n", "", &said), "[null, 0]");
    CHECK_CONTAINS(prep_ok("csv --input in.csv --out out --json"), "\"unknown_actions\":1,");
    /* What --emit-csv writes is read again. */
    prep_ok("processed-seqs --input out.csv --out out --emit-csv again.csv");
    CHECK_STR(get_file("again.csv"), get_file("out.csv"));
    CHECK_CONTAINS(try_csv("user,item,ts,event\n1,2,5,\n1,3,6,buy\n1,4,7,NA\n1,5,8,x\n",
                           "--action-map 'buy=1,*=0'", &said),
                   "\"[null, 1, null, 0]\"");
    CHECK_CONTAINS(try_csv("user,item,ts,event\n1,2,5,none\n1,3,6,buy\n1,4,7,x\n",
                           "--action-map 'none=3,buy=1,*=unknown'", &said),
                   "\"[3, 1, null]\"");
    /* Numbers that are no actions, and no values at all: said, without a map of numbers. */
    try_csv("user,item,ts,rating\n1,2,5,3.7\n1,2,6,-2\n", "", &said);
    CHECK_CONTAINS(said, "note: the column rating is left out: its first rows hold neither whole "
                         "numbers from 0 to 65534 nor half stars");
    CHECK(strstr(said, "--action-map") == NULL);
    try_csv("user,item,ts,rating\n1,2,5,\n", "", &said);
    CHECK_CONTAINS(said, "note: the column rating is left out");
    CHECK_CONTAINS(try_csv("user,item,ts,rating\n1,2,5,\n1,3,6,\n",
                           "--action-col rating --action-kind stars", &said),
                   "[null, null]");
    run_shell(&said, "rm -r out out.csv");
    /* A few bad values among numbers are errors, not a reason to leave the column out. */
    check_bad("user,item,ts,rating\n1,2,5,1\n1,2,5,2\n1,2,5,3\n1,2,5,3\n1,2,5,3\n1,2,5,3\n"
              "1,2,5,3\n1,2,5,3\n1,2,5,3\n1,2,5,bad\n",
              "", 1, "in.csv:11: rating: 'bad' is not a whole number from 1 to 5");
    check_bad("1,2,3,65535\n", "--action-col 4", 1,
              "'65535' is not a whole number from 0 to 65534");
}

/* A share of the rows that were read, over all files. */
TEST(bad_rows_by_their_share) {
    char *said;
    const char *text = "1,2,3\n1,2,x\n1,4,5\n1,5,6\n";
    CHECK_CONTAINS(try_csv(text, "--skip-bad 25%", &said), "1,\"[2, 4, 5]\"");
    CHECK_CONTAINS(said, "1 bad row was skipped");
    CHECK_CONTAINS(get_file("out/skipped.txt"), "in.csv:2: column 3: 'x'");
    put_file("more.csv", "1,9,9\n");
    prep_ok("csv --input in.csv more.csv --out out --skip-bad 20%");
    run_shell(&said, "rm -r out out.csv");
    check_bad(text, "--skip-bad 24.9%", 1,
              "1 of 4 rows are bad, and --skip-bad allows 24.9 %; the first: in.csv:2: ");
    check_bad("1,1,a\n1,y\n1,2,3\n1,4,z\n1,5,v\n", "--header no --skip-bad 50%", 1,
              "4 of 5 rows are bad, and --skip-bad allows 50 %; the first: in.csv:1: ");
    check_bad(text, "--skip-bad 101%", 2, "is neither a number of rows up to 1000000 nor a share");
    check_bad(text, "--skip-bad 1.5", 2, "is neither a number of rows");
    check_bad(text, "--skip-bad=-1", 2, "is neither a number of rows");
    check_bad(text, "--skip-bad %", 2, "is neither a number of rows");
    check_bad(text, "--skip-bad 0%", 1, "in.csv:2: column 3: 'x'");
    check_bad(text, "--skip-bad 1000001", 2, "is neither a number of rows");
}

TEST(text_actions_by_a_map) {
    char *said;
    const char *text = "uid,sku,ts,event_type\n1,2,5,view\n1,3,6,buy\n1,4,7,9\n";
    CHECK_CONTAINS(try_csv(text, "--action-map view=1,buy=2", &said), "\"[1, 2, 9]\"");
    CHECK_CONTAINS(said, "action event_type (by --action-map)");
    CHECK_CONTAINS(try_csv(text, "--action-map 'buy=2,*=0'", &said), "\"[0, 2, 0]\"");
    CHECK_CONTAINS(try_csv(text, "", &said), "\"[0, 0, 0]\"");
    CHECK_CONTAINS(said, "note: the column event_type is left out, as it holds texts; to use it: "
                         "--action-map view=0,buy=1\n");
    run_shell(&said, "rm -r out out.csv");
    check_bad(text, "--action-map view=1", 1,
              "in.csv:3: event_type: 'buy' is not in --action-map; add 'buy=NUMBER'");
    check_bad(text, "--action-col event_type", 1,
              "in.csv:2: event_type: 'view' is not a whole number from 0 to 65534; give texts "
              "their numbers with --action-map");
    check_bad(text, "--action-map view", 2, "--action-map: 'view' is not TEXT=NUMBER");
    check_bad(text, "--action-map view=1,view=2", 2, "--action-map: 'view' is given twice");
    check_bad("user_id,item_id,rating,timestamp\n1,2,4.5,5\n1,3,-0.5,6\n",
              "--action-col rating --action-kind half-stars", 1, ":3: rating: '-0.5' is not");
    check_bad("user;item;ts;rating\n1;2;6;3,5\n", "--action-col rating --action-kind code", 1,
              "in.csv:2: rating: '3,5' is not a whole number from 0 to 65534");
    check_bad(text, "--action-map view=65536", 2, "--action-map: the number of 'view=65536'");
    check_bad("1,2,5\n", "--action-map view=1", 2, "--action-map needs --action-col");
}

TEST(quoted_line_breaks_and_delimiters) {
    char *said;
    CHECK_CONTAINS(try_csv("\n\nuser,\"no\nte\",item,time\r\n\"a\nb\",\"x\",1,5\r\n\r\n"
                           "c,\"say \"\"hi\"\"\n\",2,6",
                           "", &said),
                   "\"a\nb\",\"[1]\"");
    CHECK_CONTAINS(get_file("out.csv"), "c,\"[2]\"");
    /* A quote inside a field is text. */
    CHECK_CONTAINS(try_csv("user,note,item,time\na,5\" disk,1,5\nb,x,2,6\n", "", &said),
                   "b,\"[2]\"");
    run_shell(&said, "rm -r out out.csv");
    check_bad("user,item,time\n1,2,3\n\"1,2,4\n1,2,5\n1,2,6\n", "", 1,
              "in.csv:3: a quoted field has no closing quote");
}

TEST(bad_lines_are_skipped_up_to_a_limit) {
    char *said;
    const char *text = "user,item,time\n1,2,3\n1,3,x\n1,3\n1,4,5\n\"1,2\n1,5,9\n";
    CHECK_CONTAINS(try_csv(text, "--skip-bad 3", &said), "1,\"[2, 4, 5]\"");
    CHECK_CONTAINS(said, "warning: 3 bad rows were skipped; all of them: out/skipped.txt\n"
                         "  in.csv:3: time: 'x' is not a time");
    CHECK_STR(get_file("out/skipped.txt"),
              "in.csv:3: time: 'x' is not a time: neither a number nor 2023-02-28T13:45:00Z; give "
              "other forms with --time-format\n"
              "in.csv:4: the line has 2 fields, but 3 are needed; is it cut off, or is the "
              "delimiter another one?\n"
              "in.csv:6: a quoted field has no closing quote\n");
    CHECK_CONTAINS(prep_ok("csv --input in.csv --out out --skip-bad 3 --json"), "\"skipped\":3,");
    /* A run without bad lines leaves no old list. */
    try_csv("1,2,3\n", "--skip-bad 3", &said);
    CHECK_STR(get_file("out/skipped.txt"), "");
    run_shell(&said, "rm -r out out.csv");
    check_bad(text, "--skip-bad 2", 1,
              "in.csv:6: a quoted field has no closing quote; this is bad line 3, and --skip-bad "
              "allows 2");
}

TEST(the_first_bad_line_beyond_the_limit_is_told) {
    char *out, want[300];
    int n_runs = test_is_brief() ? 1 : 3;
    int code = run_shell(
        &out,
        "awk 'BEGIN { for (i = 1; i < 900000; i++) print (i %% 1000 == 0 ? \"x\" : 1) \",1,\" i }' "
        "> in.csv && for i in $(seq %d); do HSTU_THREADS=3 %s prep csv --input in.csv --skip-bad "
        "700 "
        "--out o 2>&1 | grep -o 'in.csv:[0-9]*: column.*line [0-9]*'; done | uniq -c | sed 's/^ "
        "*//'; ls",
        n_runs, test_program());
    CHECK_EQ(code, 0);
    snprintf(want, sizeof want,
             "%d in.csv:701000: column 1: 'x' is not a whole number; for string ids use "
             "--string-ids; this is bad line 701\nin.csv\n",
             n_runs);
    CHECK_STR(out, want);
}

/* Folders in folders, up to sixteen. */
TEST(folders_are_nested_up_to_a_depth) {
    char *said;
    CHECK_EQ(run_shell(&said, "mkdir -p in/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15"), 0);
    put_file("in/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/a.csv", "user_id,item_id,timestamp\n1,2,3\n");
    put_file("in/b.csv", "user_id,item_id,timestamp\n1,3,4\n");
    prep_ok("csv --input in --out out --emit-csv out.csv");
    CHECK_CONTAINS(get_file("out.csv"), "1,\"[2, 3]\"");
    CHECK_EQ(run_shell(&said, "rm -r out*; mkdir in/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16"), 0);
    prep_fails("csv --input in --out out", 2, "are nested more than 16 deep");
}

#define PARTS_WANTED                                                                               \
    "user_id,item_id,rating,unix_timestamp\n1,\"[2, 3, 4]\",\"[0, 0, 0]\",\"[5, 6, 7]\"\n"

TEST(several_files_folders_and_pipes) {
    char *out;
    put_file("p/part-0.csv", "user_id,item_id,timestamp\n1,2,5\n");
    put_file("p/part-1.csv", "timestamp,user_id,item_id\n6,1,3\n");
    put_file("p/z=2/part-0.csv", "1,4,7\n");
    put_file("p/_SUCCESS", "");
    put_file("p/.part-0.csv.crc", "x");
    put_file("p/README.md", "x\n");
    put_file("p/empty.csv", "");
    CHECK_CONTAINS(prep_ok("csv --input p --out out --emit-csv out.csv"),
                   "note: p/empty.csv is empty");
    CHECK_STR(get_file("out.csv"), PARTS_WANTED);
    prep_ok("csv --input p/part-0.csv p/part-1.csv p/z=2/part-0.csv --out out --emit-csv out.csv");
    CHECK_STR(get_file("out.csv"), PARTS_WANTED);
    prep_ok("csv --input p/part-0.csv --input p/part-1.csv --input=p/z=2/part-0.csv --out out "
            "--emit-csv out.csv");
    CHECK_STR(get_file("out.csv"), PARTS_WANTED);
    CHECK_EQ(run_shell(&out,
                       "cat p/part-0.csv p/z=2/part-0.csv | %s prep csv --input - p/part-1.csv "
                       "--out out --emit-csv out.csv && ls -A out",
                       test_program()),
             0);
    CHECK_STR(get_file("out.csv"), PARTS_WANTED);
    CHECK_CONTAINS(out, "stdin: commas;");
#ifdef HSTU_HAS_ARCHIVE
    CHECK_EQ(run_shell(&out,
                       "mkfifo f && (gzip < p/part-0.csv > f & %s prep csv --input f p/part-1.csv "
                       "p/z=2/part-0.csv --out out --emit-csv out.csv)",
                       test_program()),
             0);
    CHECK_STR(get_file("out.csv"), PARTS_WANTED);
    /* The files of an archive, by their names. */
    CHECK_EQ(
        run_shell(&out,
                  "mv p/z=2/part-0.csv p/z=2/part-2.csv; tar cf p.tar p/part* p/z=2 p/README.md"),
        0);
    prep_ok("csv --input p.tar --out out --emit-csv out.csv");
    CHECK_STR(get_file("out.csv"), PARTS_WANTED);
    CHECK_EQ(run_shell(&out, "mv p/z=2/part-2.csv p/z=2/part-0.csv; tar cf p.tar p"), 0);
    CHECK_EQ(run_prep(&out, "csv --input p.tar --out out"), 1);
    CHECK_CONTAINS(out, "p.tar holds two files called part-0.csv; unpack it and give the folder");
#endif
    CHECK_EQ(run_shell(&out, "%s prep csv --input - --out out < p/part-0.csv", test_program()), 0);
    CHECK_EQ(run_shell(&out, "rm -r out out.csv"), 0);
    prep_fails("csv --input p p/part-1.csv --out out", 2,
               "p/part-1.csv is the same file as p/part-1.csv; its events would count twice");
    put_file("q/a.csv", "user_id,item_id,timestamp\n1,2,5\n");
    put_file("q/b.csv", "user_id,item,timestamp\n1,2,5\n");
    prep_fails("csv --input q --out out", 1,
               "q/b.csv:1: there is no column 'item_id' (did you mean 'item'?); the header has "
               "user_id, item, timestamp; "
               "all files need the columns of the first one, q/a.csv");
    prep_fails("ml-1m --input p q --out out", 2, "unexpected argument 'q'");
    prep_fails("ml-1m --input p --input q --out out", 2, "the source ml-1m has one --input");
    prep_fails("csv --input nowhere --out out", 1, "nowhere cannot be opened");
}

TEST(rare_users_and_items_until_none_is_left) {
    char *out;
    /* Item 9 is rare; without it user 3 is; without user 3 item 5 is. */
    put_file("in.csv", "1,1,1\n1,2,2\n2,1,3\n2,2,4\n3,5,5\n3,9,6\n1,5,7\n");
    out = prep_ok("csv --input in.csv --out out --emit-csv out.csv --min-user-events 2 "
                  "--min-item-events 2");
    CHECK_STR(get_file("out.csv"), "user_id,item_id,rating,unix_timestamp\n"
                                   "1,\"[1, 2]\",\"[0, 0]\",\"[1, 2]\"\n"
                                   "2,\"[1, 2]\",\"[0, 0]\",\"[3, 4]\"\n");
    CHECK_CONTAINS(out, "  Left out               3   events of 1 rare users and 2 rare items\n");
    run_shell(&out, "rm -r out out.csv");
    prep_fails("csv --input in.csv --out out --min-user-events 9", 1, "no user is left");
    prep_fails("amzn-books --input in.csv --out out --min-user-events 9", 2,
               "amzn-books has a filter of its own");
}

typedef struct read_job {
    const char *inputs[2];
    char folder[4096];
    pool *p;
} read_job;

static status read_and_write(void *ctx) {
    read_job *job = ctx;
    const source_request request = {
        .action_map = "view=1,buy=2", .skip_bad = 3, .min_user_events = 1};
    const source *csv;
    source_result r;
    builder_stats stats;
    TRY(source_find("csv", &csv));
    TRY(source_read(csv, &request, job->inputs, 2, job->p, &r));
    status st = builder_write(r.build, job->folder, "{}", &stats);
    if (st == OK) CHECK_EQ(stats.n_events, 3);
    if (st == OK) CHECK_EQ(bad_lines_count(r.bad), 1);
    source_result_fini(&r);
    return st;
}

TEST(memory_that_runs_out_anywhere_is_reported) {
    char one[4096], two[4096];
    read_job job = {.inputs = {one, two}};
    put_file("in/a.csv", "user_id,asin,ts,event_type\n1,x,5,view\n1,y,2020,buy\n2,z,5,sell\n");
    put_file("b.csv", "user_id,asin,ts,event_type\n2,x,6.5,view\n");
    snprintf(one, sizeof one, "%s/in", test_folder());
    snprintf(two, sizeof two, "%s/b.csv", test_folder());
    snprintf(job.folder, sizeof job.folder, "%s/out", test_folder());
    CHECK_OK(pool_create(&job.p, 1));
    log_set_level(LOG_QUIET);
    CHECK(oom_at_each_allocation(read_and_write, &job) > 20);
    pool_destroy(job.p);
}

/* Events from --since on and before --until; the same users in every sample, and of those that a
 * larger sample has. */
TEST(events_are_chosen_by_time_and_users_by_a_sample) {
    char *said, path[4096];
    seq_file *few, *more;
    snprintf(path, sizeof path, "%s/log.csv", test_folder());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fputs("user_id,item_id,timestamp\n", f) >= 0);
    for (int u = 1; u <= 40; u++)
        for (int i = 0; i < 4; i++) /* 2001-09-09T01:46:40Z and three days after it */
            fprintf(f, "u%d,%d,%d.5\n", u, u % 3 + i, 1000000000 + 86400 * i);
    CHECK(fclose(f) == 0);
    said = prep_ok("csv --input log.csv --out few --sample-users 7 --since "
                   "2001-09-10T01:46:40Z --until 1000172800");
    CHECK_CONTAINS(said, " 120   events out of --since and --until\n");
    CHECK_CONTAINS(said, " 33   events of users who are not in the sample\n");
    prep_ok("csv --input log.csv --out more --sample-users 20 --min-user-events 4");
    snprintf(path, sizeof path, "%s/few", test_folder());
    CHECK_OK(seq_file_open(&few, path, NULL));
    snprintf(path, sizeof path, "%s/more", test_folder());
    CHECK_OK(seq_file_open(&more, path, NULL));
    CHECK(few->n_users == 7 && few->n_events == 7);
    CHECK(more->n_users == 20 && more->n_events == 80);
    for (uint64_t u = 0; u < few->n_users; u++) {
        buf id = {0};
        CHECK_OK(seq_user_name(few, u, &id));
        CHECK(seq_find_user(more, buf_str(&id)) < more->n_users);
        buf_fini(&id);
        CHECK_EQ(few->time[few->offsets[u]], (int64_t)1000086400500);
    }
    seq_file_close(few);
    seq_file_close(more);
    prep_fails("csv --input log.csv --out x --since 2030-01-01", 1, "from --since to --until");
    prep_fails("csv --input log.csv --out x --since 9 --until 8", 2, "is not before --until 8");
    prep_fails("csv --input log.csv --out x --since yesterday", 2, "'yesterday' is no time");
}
