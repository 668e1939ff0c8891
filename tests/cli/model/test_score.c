/* hstu score from outside. */
#include "run_test.h"

/* A ranking run beside the retrieval one. */
static void train_ranking(void) {
    free(shell(0, "true"));
    write_text("n.gin", ranking_gin);
    free(shell(0, "./hstu train --device cpu --gin-config-file n.gin --data data --out ranking "
                  "--epochs 1"));
}

static char *asked(int want, const char *args) {
    char command[2048];
    snprintf(command, sizeof command, "./hstu score --data data --device cpu %s", args);
    return shell(want, command);
}

static void says(int want, const char *args, const char *part) {
    char *text = asked(want, args);
    CHECK_CONTAINS(text, part);
    free(text);
}

TEST(score_ratings_of_candidates) {
    train_ranking();
    arena a;
    arena_init(&a, 4096);
    char *text = asked(0, "ranking --user 3 --user 7 --candidates 5,1,5,60,9 --json");
    for (int line = 0; line < 2; line++) {
        const json_value *v = line_of(&a, text, line);
        static const int64_t ids[] = {5, 1, 5, 60, 9};
        CHECK_EQ(json_member(v, "user")->integer, line == 0 ? 3 : 7);
        CHECK_STR(json_member(v, "source")->string, "model");
        CHECK_EQ(json_member(v, "items")->n_children, 5);
        const json_value *e = json_member(v, "items")->first;
        for (int i = 0; i < 5; i++, e = e->next) {
            double sum = 0, p, rating;
            CHECK_EQ(json_member(e, "id")->integer, ids[i]);
            for (int k = 1; k <= 5; k++, sum += p)
                CHECK_OK(json_member_double(e, (char[]){'p', '_', (char)('0' + k), 0}, &p));
            CHECK_OK(json_member_double(e, "rating", &rating));
            CHECK(fabs(sum - 1) < 1e-5 && rating > 1 && rating < 5);
        }
    }
    free(text);
    arena_fini(&a);
    says(0, "ranking --user 3 --candidates 5,1 --format csv",
         "user,id,rating,p_1,p_2,p_3,p_4,p_5,title,source\n3,5,");
    says(0, "ranking --user 3 --candidates 5,1", "rating        p_1");
}

/* One user, many users, lists and files give the same lines. */
TEST(score_users_and_candidates_from_files) {
    train_ranking();
    free(shell(0, "printf '5\\r\\n1\\nzz\\n\\n9' > c.txt; printf '3\\nnobody\\n7\\n' > u.txt"));
    char *list = asked(0, "ranking --user 3 --candidates '[5,\"1\",9]' --json");
    char *file = asked(0, "ranking --users u.txt --candidates c.txt --json 2>err");
    CHECK(strncmp(file, list, strlen(list)) == 0);
    CHECK_CONTAINS(file, "{\"user\":\"nobody\",\"source\":\"no history\",");
    free(list);
    list = shell(0, "cat err");
    CHECK_CONTAINS(list, "c.txt: 1 of 4 ids is not known to the model");
    CHECK_CONTAINS(list, "u.txt: 1 of 3 users is not in the data and scored without a history");
    free(list);
    list = asked(0, "ranking --users u.txt --candidates @c.txt --json --out o.jsonl 2>/dev/null");
    CHECK_STR(list, "");
    free(list);
    list = shell(0, "cat o.jsonl");
    CHECK_STR(list, file);
    free(list);
    free(file);
    list = asked(0, "ranking --all-users --candidates 1 --json --out o.jsonl && wc -l < o.jsonl");
    CHECK_EQ(atoi(list), 40);
    free(list);
}

TEST(score_of_a_retrieval_model) {
    char *best = shell(0, "./hstu recommend run --data data --device cpu --user 3 -k 1 --json");
    char *id = strstr(best, "\"id\":") + 5, args[128], *text;
    snprintf(args, sizeof args, "run --user 3 --candidates %d --json", atoi(id));
    text = asked(0, args);
    CHECK_STR(text, best);
    free(text);
    free(best);
    says(0, "run --user nobody --candidates 1,2 --json 2>/dev/null", "\"score\":null");
    says(0, "run --user nobody --candidates 1,2 --format csv", "nobody,1,,");
}

/* One unknown id does not cost the scores of the others. */
TEST(score_names_candidates_it_does_not_know) {
    char *all = asked(0, "run --user 3 --candidates 1,9 --json 2>/dev/null");
    char *some = asked(0, "run --user 3 --candidates 1,777,9,07,+7 --json 2>err");
    CHECK_STR(some, all); /* 7 is there */
    free(some);
    some = shell(0, "cat err");
    CHECK_CONTAINS(some, "warning: --candidates: the model does not know 777, 07, +7; left out");
    free(some);
    some = asked(0, "run --user 3 --candidates '[1,\"777\",778,9]' --json 2>/dev/null");
    CHECK_STR(some, all);
    free(some);
    free(all);
}

TEST(score_says_what_is_wrong) {
    free(shell(0, ": > empty; echo 777 > strange; printf '1\\000\\n' > nul"));
    says(2, "run --user 3", "--candidates FILE|LIST is missing");
    says(2, "run --candidates 1", "give either --user ID");
    says(2, "run --user 3 --all-users --candidates 1", "give either --user ID");
    says(2, "run --user 3 --candidates 777,888", "has no item 777, 888");
    says(2, "run --user 3 --candidates '[{\"item\":1}]'", "a whole number or a string");
    says(0, "run --user +3 --candidates 1", "User +3: not in the data");
    says(2, "run --user 3 --candidates none.txt", "neither a file nor a list");
    says(2, "run --user 3 --candidates empty", "none is an item");
    says(2, "run --user 3 --candidates strange", "none is an item");
    says(1, "run --user 3 --candidates nul", "zero byte");
    says(1, "run --user 3 --candidates @none.txt", "none.txt");
    says(1, "run --users empty --candidates 1", "empty: contains no users");
    says(1, "run --all-users --candidates 1 --out /dev/full", "No space left");
    says(1, "none --user 3 --candidates 1", "none");
}

/* What --action-map calls a code, it is called everywhere; a history may say either.  Other data
 * that calls other codes so is refused, and data without names is taken as before. */
TEST(score_knows_actions_by_their_names) {
    train_ranking();
    free(shell(0, "awk 'BEGIN { print \"user,item,time,event\"; split(\"view cart buy\", a, \" "
                  "\"); for (u = 1; u <= "
                  "30; u++) for (i = 1; i <= 12; i++) print u \",\" 1 + (u * i) % 20 \",\" 1000 * "
                  "u + i \",\" "
                  "a[1 + (u + i * i) % 3] }' > e.csv && ./hstu prep csv --input e.csv --out named "
                  "--action-map view=0,cart=1,buy=2"));
    free(shell(0,
               "./hstu train --device cpu n.gin --data named --out own --epochs 1 && "
               "./hstu build own --out engine && ./hstu prep csv --input e.csv --out other "
               "--action-map view=0,cart=2,buy=1 && sed 's/view/0/; s/cart/1/; s/buy/2/' e.csv > "
               "codes.csv && ./hstu prep csv --input codes.csv --action-col event --out codes"));
    char *text = shell(0, "./hstu info named"), *other;
    CHECK_CONTAINS(text, " 1 cart ");
    free(text);
    text = shell(0, "./hstu info named --json");
    CHECK_CONTAINS(text, "\"cart\":");
    free(text);
    text = shell(0, "./hstu eval own --device cpu");
    CHECK_CONTAINS(text, "auc:buy ");
    CHECK(strstr(text, "class0") == NULL);
    free(text);
    static const char *const runs[] = {"own --data named", "engine --data codes",
                                       "own --data codes"};
    for (size_t i = 0; i < 3; i++) {
        char line[400];
        snprintf(line, sizeof line,
                 "./hstu score %s --device cpu --json --candidates 3,4 --history "
                 "'[{\"item\": 1, \"action\": \"buy\"}, {\"item\": 2, \"action\": \"view\"}]'",
                 runs[i]);
        text = shell(0, line);
        CHECK_CONTAINS(text, "\"p_cart\":");
        snprintf(line, sizeof line,
                 "./hstu score %s --device cpu --json --candidates 3,4 --history "
                 "'[{\"item\": 1, \"action\": 2}, {\"item\": 2, \"action\": 0}]'",
                 runs[i]);
        other = shell(0, line);
        CHECK_STR(text, other);
        free(text);
        free(other);
    }
    text = shell(2, "./hstu score own --device cpu --candidates 3 --history "
                    "'[{\"item\": 1, \"action\": \"sell\"}]'");
    CHECK_CONTAINS(text, "from 0 to 2, or a name of view=0,cart=1,buy=2");
    free(text);
    text = shell(2, "./hstu score own --device cpu --data other --user 3 --candidates 3");
    CHECK_CONTAINS(text, "its action names are view=0,cart=2,buy=1, but those of ");
    free(text);
    text = shell(2, "./hstu train --device cpu n.gin --data other --init-from own --out next");
    CHECK_CONTAINS(text, "prepare the data again with the same numbers for the same names");
    free(text);
}
