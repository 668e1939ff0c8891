/* hstu certify from outside. */
#include "format/json.h"
#include "run_test.h"

/* The verdicts of a user's line, by eps. */
static const char *verdict_at(const json_value *line, const char *key, int i) {
    const json_value *v = json_member(line, key)->first;
    for (; i > 0; i--)
        v = v->next;
    return v->string;
}

TEST(certify_lists_are_those_that_recommend_gives) {
    char *text = shell(0, "./hstu certify run --all-users --eps 1e-7,10 --left-out --json"), *best;
    CHECK_EQ(count_parts(text, "\n"), 40);
    for (int u = 0; u < 40; u++) {
        char command[128];
        arena a;
        int64_t id, want, got;
        double low, high, score;
        arena_init(&a, 4096);
        const json_value *line = line_of(&a, text, u);
        CHECK_OK(json_member_int(line, "user", &id));
        snprintf(command, sizeof command,
                 "./hstu recommend run --device cpu --user %d --format jsonl", (int)id);
        best = shell(0, command);
        const json_value *item = json_member(line, "items")->first;
        const json_value *from = json_member(line_of(&a, best, 0), "items")->first;
        for (; item != NULL && from != NULL; item = item->next, from = from->next) {
            CHECK_OK(json_member_int(item, "item", &got));
            CHECK_OK(json_member_int(from, "item", &want));
            CHECK_EQ(got, want);
            CHECK_OK(json_member_double(from, "score", &score));
            low = json_member(item, "low")->first->number;
            high = json_member(item, "high")->first->number;
            CHECK(low <= score && score <= high && high - low < 1e-3);
        }
        CHECK(item == NULL && from == NULL);
        CHECK(strcmp(verdict_at(line, "first", 0), "changed") != 0);
        CHECK(strcmp(verdict_at(line, "first", 1), "unchanged") != 0);
        free(best);
        arena_fini(&a);
    }
    CHECK(count_parts(text, "\"unchanged\"") >= 40 && count_parts(text, "\"changed\"") > 0);
    free(text);
    text = shell(0, "cat run/certify.json run/report.html");
    CHECK_CONTAINS(text, "\"users\": 40");
    CHECK_CONTAINS(text, "When the history changes a little");
    CHECK_CONTAINS(text, "left out");
    free(text);
}

TEST(certify_tries_other_items_and_shows_a_table) {
    char *text = shell(0, "./hstu certify run --sample 3 --items 2 --eps 1e-6 --replaced 2 --json");
    CHECK_EQ(count_parts(text, "\"replaced_list\":[\"changed\","), 3);
    CHECK_EQ(count_parts(text, "\"list\":[\"unchanged\"]"), 3);
    free(text);
    text = shell(0, "./hstu certify run --user 1 --eps 1e-6,1e-2 --left-out --replaced 1 -k 3");
    CHECK_CONTAINS(text, "1 user, lists of 3, moved: all");
    CHECK_CONTAINS(text, "the newest but 0");
    CHECK_CONTAINS(text, "as some other item");
    CHECK_CONTAINS(text, "Scores at eps 1e-06");
    free(text);
}

TEST(certify_says_what_is_wrong) {
    static const char *const wrong[][2] = {{"--user 1 --eps 0", "--eps 0"},
                                           {"--user 1 --eps 1e-3,1e-4", "rising order"},
                                           {"--user 1 --items few", "--items few"},
                                           {"--user nobody", "no user nobody"},
                                           {"--user 1 --all-users", "give either"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char command[256];
        snprintf(command, sizeof command, "./hstu certify run %s", wrong[i][0]);
        char *text = shell(2, command);
        CHECK_CONTAINS(text, wrong[i][1]);
        free(text);
    }
    write_text("n.gin", ranking_gin);
    free(said(0, "train --gin-config-file n.gin --data data --out ranking --epochs 1"));
    char *text = said(1, "certify ranking --user 1");
    CHECK_CONTAINS(text, "bounds are for retrieval models");
    free(text);
}
