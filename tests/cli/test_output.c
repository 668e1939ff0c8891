/* Texts for people: counts and bars. */
#include "cli/output.h"

#include <string.h>

#include "test.h"

TEST(show_count_groups_digits) {
    char text[SHOW_BYTES];
    CHECK_STR(show_count(text, 0), "0");
    CHECK_STR(show_count(text, 999), "999");
    CHECK_STR(show_count(text, 1000209), "1,000,209");
    CHECK_STR(show_count(text, UINT64_MAX), "18,446,744,073,709,551,615");
}

TEST(show_bar_in_eighths) {
    char text[SHOW_BYTES];
    CHECK_STR(show_bar(text, 0, 4), "");
    CHECK_STR(show_bar(text, 1e-9, 4), "\u258f");
    CHECK_STR(show_bar(text, .5, 4), "\u2588\u2588");
    CHECK_STR(show_bar(text, 7. / 16, 2), "\u2589");
    CHECK_STR(show_bar(text, 13. / 16, 2), "\u2588\u258b");
    CHECK_STR(show_bar(text, 1, 1), "\u2588");
    CHECK_STR(show_bar(text, 9, 2), "\u2588\u2588"); /* never wider */
    CHECK_EQ(strlen(show_bar(text, 1, 100000)), (SHOW_BYTES - 1) / 3 * 3);
}
