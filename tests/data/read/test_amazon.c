#include "data/set/seq_file.h"
#include "prep_test.h"

/* u1 has five ratings of items with five ratings; u2 has five, but one of a rare item; u3 has four;
 * i5 is rated five times, two of them by users that are dropped. */
static const char ratings[] = "u1,i1,5.0,10\nu1,i2,4.0,9\nu1,i3,3.0,8\nu1,i4,2.0,7\nu1,i5,1.0,6\n"
                              "u2,i1,5.0,1\nu2,i2,5.0,2\nu2,i3,5.0,3\nu2,i4,5.0,4\nu2,rare,5.0,5\n"
                              "u3,i1,5.0,1\nu3,i2,5.0,2\nu3,i3,5.0,3\nu3,i4,5.0,4\n"
                              "u4,i1,5.0,1\nu4,i2,5.0,2\nu4,i3,5.0,3\nu4,i4,5.0,4\nu4,i5,5.0,5\n"
                              "u5,i1,5.0,1\nu5,i2,5.0,2\nu5,i3,5.0,3\nu5,i4,5.0,4\nu5,i5,5.0,5\n"
                              "u6,i5,1.0,1\nu7,i5,1.0,1\n";

TEST(amazon_counts_once_on_the_raw_data) {
    put_file("ratings_Books.csv", ratings);
    char *out = prep_ok("amzn-books --input ratings_Books.csv --out out --emit-csv out.csv --json");
    CHECK_CONTAINS(out, "\"users\":3,\"items\":5,\"catalogue\":5,\"events\":15,\"max_len\":5,");
    CHECK_CONTAINS(out, "\"filtered\":11,");
    /* JSON texts inside a quoted field: quotes are doubled. */
    CHECK_STR(get_file("out.csv"),
              "user_id,item_id,rating,unix_timestamp\n"
              "u1,\"[\"\"i5\"\", \"\"i4\"\", \"\"i3\"\", \"\"i2\"\", \"\"i1\"\"]\","
              "\"[0, 1, 2, 3, 4]\",\"[6, 7, 8, 9, 10]\"\n"
              "u4,\"[\"\"i1\"\", \"\"i2\"\", \"\"i3\"\", \"\"i4\"\", \"\"i5\"\"]\","
              "\"[4, 4, 4, 4, 4]\",\"[1, 2, 3, 4, 5]\"\n"
              "u5,\"[\"\"i1\"\", \"\"i2\"\", \"\"i3\"\", \"\"i4\"\", \"\"i5\"\"]\","
              "\"[4, 4, 4, 4, 4]\",\"[1, 2, 3, 4, 5]\"\n");
}

TEST(amazon_numbers_items_in_order_of_their_bytes) {
    char path[4096];
    seq_file *s;
    put_file("in/ratings_Books.csv", ratings);
    prep_ok("amzn-books --input in --out out");
    snprintf(path, sizeof path, "%s/out/data.seq", test_folder());
    CHECK_OK(seq_file_open(&s, path, NULL));
    CHECK(s->has_text_users && s->has_text_items);
    CHECK_EQ(seq_find_item(s, "i1"), 1);
    CHECK_EQ(seq_find_item(s, "i5"), 5);
    CHECK_EQ(seq_find_item(s, "rare"), 0);
    seq_file_close(s);
}

TEST(amazon_bad_rows) {
    put_file("ratings_Books.csv", "u1,i1,6.0,10\n");
    prep_fails("amzn-books --input ratings_Books.csv --out out", 1,
               "ratings_Books.csv:1: column 3: '6.0' is not a whole number from 1 to 5");
    put_file("ratings_Books.csv", "u1,i1,5.0,10\nu1,,5.0,10\n");
    prep_fails("amzn-books --input ratings_Books.csv --out out", 1,
               "ratings_Books.csv:2: column 2 is empty");
    put_file("ratings_Books.csv", "u1,i1,5.0,10\n");
    prep_fails("amzn-books --input ratings_Books.csv --out out", 1, "");
}
