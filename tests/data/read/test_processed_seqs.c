#include "data/set/seq_file.h"
#include "prep_test.h"

static const char seqs[] = "user_id,movie_id,rating,unix_timestamp,sex,zip_code\n"
                           "5,\"[30, 10, 20]\",\"[4, 0, 2]\",\"[300, 100, 200]\",1,17\n"
                           "2,\"[7]\",\"[3]\",\"[978300760]\",2,\n";

static seq_file *open_out(void) {
    char path[4096];
    seq_file *s;
    snprintf(path, sizeof path, "%s/out", test_folder());
    CHECK_OK(seq_file_open(&s, path, NULL));
    return s;
}

TEST(processed_seqs_are_read_and_sorted_by_time) {
    put_file("in.csv", seqs);
    char *out = prep_ok("processed-seqs --input in.csv --out out --emit-csv out.csv --json");
    CHECK_CONTAINS(out, "\"users\":2,\"items\":4,\"catalogue\":4,\"events\":4,\"max_len\":3,");
    CHECK_STR(get_file("out.csv"), "user_id,movie_id,rating,unix_timestamp\n"
                                   "2,\"[7]\",\"[3]\",\"[978300760]\"\n"
                                   "5,\"[10, 20, 30]\",\"[0, 2, 4]\",\"[100, 200, 300]\"\n");
    seq_file *s = open_out();
    CHECK_EQ(s->actions, ACTION_CODE);
    CHECK_EQ(s->n_context, 3); /* in the order of NVIDIA's tokens */
    CHECK_STR(s->context[0].name, "user_id");
    CHECK_STR(s->context[1].name, "sex");
    CHECK_STR(s->context[2].name, "zip_code");
    CHECK(s->context[2].value[0] == 0 && s->context[2].value[1] != 0);
    seq_file_close(s);
}

/* Columns by the names on the command line, even where usual names exist. */
TEST(processed_seqs_columns_by_given_names) {
    put_file("in.csv", "when,who,movie_id,what,score,rating,unix_timestamp\n"
                       "\"[2, 1]\",5,\"[9, 9]\",\"[30, 10]\",\"[4, 0]\",\"[1, 1]\",\"[8, 8]\"\n");
    prep_ok("processed-seqs --input in.csv --out out --emit-csv out.csv --user-col who --item-col "
            "what --action-col score --time-col when");
    CHECK_STR(get_file("out.csv"), "user_id,what,rating,unix_timestamp\n"
                                   "5,\"[10, 30]\",\"[0, 4]\",\"[1, 2]\"\n");
}

TEST(processed_seqs_columns_that_are_not_there) {
    put_file("in.csv", seqs);
    prep_fails("processed-seqs --input in.csv --out out --user-col who", 1,
               "the header has no column 'who'; name it with --user-col");
    prep_fails("processed-seqs --input in.csv --out out --item-col what", 1,
               "the header has no column 'what'; name it with --item-col");
    prep_fails("processed-seqs --input in.csv --out out --header no", 2,
               "processed-seqs files have a header");
}

/* What we write we read: the same bytes come out again. */
TEST(emit_and_read_again_gives_the_same_file) {
    put_file("in.csv", "user,asin,when\nU \"1\",\"a,b\",3\nU \"1\",c\\d\xc3\xa9,1\n\"x,y\",a,2\n");
    prep_ok("csv --input in.csv --out one --string-ids --header yes --user-col user --item-col "
            "asin --time-col when --emit-csv one.csv");
    CHECK_STR(get_file("one.csv"),
              "user_id,asin,rating,unix_timestamp\n"
              "\"U \"\"1\"\"\",\"[\"\"c\\\\d\xc3\xa9\"\", \"\"a,b\"\"]\",\"[0, 0]\",\"[1, 3]\"\n"
              "\"x,y\",\"[\"\"a\"\"]\",\"[0]\",\"[2]\"\n");
    prep_ok("processed-seqs --string-ids --input one.csv --out two --emit-csv two.csv");
    CHECK_STR(get_file("two.csv"), get_file("one.csv"));
}

TEST(columns_of_kuairand_files) {
    put_file("in.csv", "user_id,video_id,time_ms,action_weights,play_time_ms,user_active_degree\n"
                       "1,\"[4, 5]\",\"[2, 1]\",\"[255, 0]\",\"[9, 9]\",3\n");
    prep_ok("processed-seqs --input in.csv --out out --emit-csv out.csv --action-kind bits");
    CHECK_STR(get_file("out.csv"), "user_id,video_id,rating,unix_timestamp\n"
                                   "1,\"[5, 4]\",\"[0, 255]\",\"[1, 2]\"\n");
    seq_file *s = open_out();
    CHECK_EQ(s->time_per_second, 1000);
    CHECK_EQ(s->actions, ACTION_BITS);
    CHECK_EQ(s->n_context, 2);
    CHECK_STR(s->context[0].name, "user_id");
    CHECK_STR(s->context[1].name, "user_active_degree");
    seq_file_close(s);
}

/* Features stand anywhere among the columns, the first place included. */
TEST(a_feature_may_be_the_first_column) {
    put_file("in.csv", "sex,user_id,video_id,time_ms,action_weights\n"
                       "F,1,\"[4, 5]\",\"[2, 1]\",\"[255, 0]\"\n");
    prep_ok("processed-seqs --input in.csv --out out --action-kind bits");
    seq_file *s = open_out();
    CHECK_EQ(s->n_context, 2);
    CHECK_STR(s->context[1].name, "sex");
    seq_file_close(s);
}

/* Not NVIDIA's: no token for the user. */
TEST(sasrec_format_of_meta) {
    put_file("in.csv", "index,user_id,sequence_item_ids,sequence_ratings,sequence_timestamps,sex\n"
                       "0,9,\"1193,661\",\"5,3\",\"20,10\",F\n1,8,7,3.5,1,M\n");
    prep_ok("processed-seqs --input in.csv --out out --emit-csv out.csv");
    CHECK_STR(get_file("out.csv"), "user_id,movie_id,rating,unix_timestamp\n"
                                   "8,\"[7]\",\"[6]\",\"[1]\"\n"
                                   "9,\"[661, 1193]\",\"[5, 9]\",\"[10, 20]\"\n");
    seq_file *s = open_out();
    CHECK_EQ(s->actions, ACTION_HALF_STARS);
    CHECK_EQ(s->n_context, 1);
    seq_file_close(s);
}

TEST(sasrec_format_with_other_ratings) {
    put_file("in.csv", "user_id,sequence_item_ids,sequence_ratings,sequence_timestamps\n"
                       "9,\"1193,661\",\"5,3\",\"20,10\"\n8,7,3.5,1\n");
    prep_fails("processed-seqs --input in.csv --out out --action-kind stars", 1,
               "in.csv:3: sequence_ratings: '3.5' is not a whole number from 1 to 5");
}

static void check_bad(const char *text, int code, const char *reason) {
    put_file("in.csv", text);
    prep_fails("processed-seqs --input in.csv --out out", code, reason);
}

#define HEADER "user_id,movie_id,rating,unix_timestamp\n"

TEST(bad_lists_name_file_line_and_column) {
    check_bad(HEADER "1,\"[1, 2]\",\"[1]\",\"[1, 2]\"\n", 1,
              "in.csv:2: rating: the list has 1 values, but movie_id has 2");
    check_bad(HEADER "1,\"[1, 2]\",\"[1, 2]\",\"[1, 2, 3]\"\n", 1,
              "in.csv:2: unix_timestamp: the list has 3 values, but movie_id has 2");
    check_bad(HEADER "\n1,\"[1, x]\",\"[1, 2]\",\"[1, 2]\"\n", 1,
              "in.csv:3: movie_id: 'x' is not a whole number; for string ids use");
    check_bad(HEADER "1,\"[1]\",\"[-1]\",\"[1]\"\n", 1,
              "in.csv:2: rating: '-1' is not an action from 0 to 65534");
    check_bad(HEADER "1,\"[1]\",\"[1]\",\"[soon]\"\n", 1,
              "in.csv:2: unix_timestamp: 'soon' is not a whole number");
    check_bad(HEADER "x,\"[1]\",\"[1]\",\"[1]\"\n", 1,
              "in.csv:2: user_id: 'x' is not a whole number");
    check_bad(HEADER "1,\"[1]\",\"[1]\",\"[1]\"\n01,\"[1]\",\"[1]\",\"[1]\"\n", 1,
              "in.csv:3: user_id: '01' is not a whole number as one is written");
    check_bad(HEADER "1,\"[1, 02]\",\"[1, 1]\",\"[1, 2]\"\n", 1,
              "in.csv:2: movie_id: '02' is not a whole number as one is written");
    check_bad(HEADER ",\"[1]\",\"[1]\",\"[1]\"\n", 1, "in.csv:2: user_id is empty");
    check_bad(HEADER "1,\"[1, 2\",\"[1, 2]\",\"[1, 2]\"\n", 1,
              "in.csv:2: movie_id: the list has no closing bracket");
    check_bad(HEADER "1,\"[1, 2]\",\"[1, 2]\n", 1, "in.csv:2: a quoted field has no closing quote");
    check_bad(HEADER "1,\"[1]\",\"[1]\"\n", 1,
              "in.csv:2: the line has 3 fields, but the header has 4; is it cut off?");
    check_bad("a,b,c\n1,2,3\n", 1, "in.csv:1: the header has no column 'user_id'");
    check_bad("user_id,rating,unix_timestamp\n", 1,
              "in.csv:1: the header has no column 'movie_id'; name it with --item-col");
    check_bad("user_id,movie_id,rating\n", 1,
              "in.csv:1: the header has no column 'unix_timestamp'; name it with --time-col");
    check_bad("", 1, "in.csv: the file is empty");
    check_bad(HEADER, 1, "");
}

/* Many blocks, several threads: the same bytes. */
TEST(processed_seqs_do_not_depend_on_threads) {
    char *out;
    int code = run_shell(
        &out,
        "awk 'BEGIN { print \"user_id,item,rating,unix_timestamp,colour\"; "
        "for (u = 1; u <= 3000; u++) { i = r = t = \"\"; for (k = 0; k < 150; k++) { "
        "s = k ? \", \" : \"\"; i = i s (u * 31 + k * k) %% 5000; r = r s k %% 5; "
        "t = t s (k * 7919) %% 1000 } "
        "print u * 17 %% 3001 \",\\\"[\" i \"]\\\",\\\"[\" r \"]\\\",\\\"[\" t \"]\\\",c\" u %% 7 "
        "} }' > in.csv && "
        "HSTU_THREADS=1 %s prep processed-seqs --input in.csv --out a --emit-csv a.csv && "
        "HSTU_THREADS=3 %s prep processed-seqs --input in.csv --out b --emit-csv b.csv && "
        "cmp a/data.seq b/data.seq && cmp a.csv b.csv && "
        "HSTU_THREADS=2 %s prep processed-seqs --input a.csv --out c --emit-csv c.csv && "
        "cmp a.csv c.csv",
        test_program(), test_program(), test_program());
    if (code != 0) FAIL_TEST("%s", out);
    CHECK_CONTAINS(out, "450,000   longest history 150");
}
