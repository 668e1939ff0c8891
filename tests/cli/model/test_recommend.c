/* hstu recommend from outside. */
#include "format/json.h"
#include "run_test.h"

/* ./hstu recommend run --data data ARGS, on the CPU. */
static char *asked(int want, const char *args) {
    char command[2048];
    snprintf(command, sizeof command, "./hstu recommend run --data data --device cpu %s", args);
    return shell(want, command);
}

static void says(int want, const char *args, const char *part) {
    char *text = asked(want, args);
    CHECK_CONTAINS(text, part);
    free(text);
}

static int64_t id_at(const json_value *line, size_t i) {
    const json_value *e = json_member(line, "items")->first;
    int64_t id;
    for (; i > 0; i--)
        e = e->next;
    CHECK_OK(json_member_int(e, "id", &id));
    return id;
}

static int count(const char *text, char c) {
    int n = 0;
    for (; *text != '\0'; text++)
        n += *text == c;
    return n;
}

TEST(recommend_all_users_never_what_they_had) {
    char *text = asked(0, "--all-users -k 60 --format jsonl"), *out;
    seq_file *data;
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    CHECK_EQ(count(text, '\n'), 40);
    for (uint64_t u = 0; u < 40; u++) {
        arena a;
        arena_init(&a, 4096);
        const json_value *v = line_of(&a, text, (int)u);
        int64_t id;
        CHECK_OK(json_member_int(v, "user", &id));
        CHECK_EQ(id, data->user_id[u]);
        CHECK_STR(json_member(v, "source")->string, "model");
        size_t n = json_member(v, "items")->n_children, n_had = 0;
        bool is_had[61] = {0};
        for (uint64_t i = data->offsets[u]; i < data->offsets[u + 1]; i++) {
            n_had += !is_had[data->item[i]];
            is_had[data->item[i]] = true;
        }
        CHECK_EQ(n, 60 - n_had);
        for (size_t i = 0; i < n; i++)
            CHECK(!is_had[seq_find_item(data, (char[]){(char)('0' + id_at(v, i) / 10),
                                                       (char)('0' + id_at(v, i) % 10), 0})]);
        arena_fini(&a);
    }
    seq_file_close(data);
    /* --json is the same, and so is a file. */
    out = asked(0, "--all-users -k 60 --json");
    CHECK_STR(out, text);
    free(out);
    free(asked(0, "--all-users -k 60 --json --out o.jsonl"));
    out = shell(0, "cat o.jsonl");
    CHECK_STR(out, text);
    free(out);
    free(text);
}

/* Ranks divide the users; the answers are those of one process, to the byte. */
TEST(recommend_ranks_answer_as_one) {
    static const char *const formats[] = {"jsonl", "csv", "table"};
    free(shell(0, "for i in $(seq 700); do echo $((i * 7 % 43)); done >many.txt"));
    for (int f = 0; f < 3; f++) {
        char what[256];
        snprintf(what, sizeof what, "--users many.txt -k 7 --format %s 2>/dev/null", formats[f]);
        char *one = asked(0, what);
        CHECK(strlen(one) > 10000);
        for (int n = 2; n <= 4; n++) {
            snprintf(what, sizeof what,
                     "--users many.txt -k 7 --format %s --ranks %d 2>/dev/null%s", formats[f], n,
                     n == 3 ? " --out r.txt; cat r.txt" : "");
            char *more = asked(0, what);
            CHECK_STR(one, more);
            free(more);
        }
        free(one);
    }
    says(2, "--user 3 --ranks 2", "divide the users of");
    says(2, "--users - --ranks 2", "cannot share stdin");
}

/* csv holds what JSON holds. */
TEST(recommend_formats_agree) {
    char *json = asked(0, "--user 3 --user 9 -k 5 --json");
    char *csv = asked(0, "--user 3 --user 9 -k 5 --format csv");
    arena a;
    arena_init(&a, 4096);
    CHECK(strncmp(csv, "user,rank,id,score,title,source\n", 32) == 0);
    const char *row = strchr(csv, '\n') + 1;
    for (int line = 0; line < 2; line++) {
        const json_value *v = line_of(&a, json, line);
        const json_value *e = json_member(v, "items")->first;
        for (int i = 0; i < 5; i++, e = e->next, row = strchr(row, '\n') + 1) {
            long long user, rank, id;
            float score;
            CHECK_EQ(sscanf(row, "%lld,%lld,%lld,%f,", &user, &rank, &id, &score), 4);
            CHECK(user == (line == 0 ? 3 : 9) && rank == i + 1);
            CHECK(id == id_at(v, (size_t)i));
            CHECK(score == (float)json_member(e, "score")->number);
            CHECK(strncmp(row + strcspn(row, "\n") - 6, ",model", 6) == 0);
        }
    }
    CHECK_STR(row, "");
    free(json);
    free(csv);
    arena_fini(&a);
    says(0, "--user 3 --user 9 -k 2", "User 9\n\n      1  ");
    says(0, "--user 3 -k 2", "Recommended\n\n      1  ");
    says(0, "--user 3 -k 2", "History: ");
    says(2, "--user 3 --format xml", "table, csv or jsonl");
    says(2, "--user 3 --format csv --json", "contradicts");
}

/* Users that nobody knows get what is popular, and the output says so. */
TEST(recommend_unknown_users_get_popularity) {
    char *text = asked(0, "--user nobody -k 3");
    CHECK_CONTAINS(text, "warning: --user: 1 of 1 users is not in the data");
    CHECK_CONTAINS(text, "Recommended: not in the data; these are the most popular items");
    CHECK(strstr(text, "repeat --user") == NULL);
    free(text);
    says(0, "--user 3,9", "the first is '3,9', which is one id; for several users repeat --user");
    free(shell(0, "printf '\\357\\273\\2773\\r\\n\\r\\n77\\n3\\n\"x\\ny' > u.txt"));
    text = asked(0, "--users u.txt -k 2 --json 2>err");
    CHECK_EQ(count(text, '\n'), 5);
    arena a;
    arena_init(&a, 4096);
    static const char *const sources[] = {"model", "popular", "model", "popular", "popular"};
    for (int i = 0; i < 5; i++)
        CHECK_STR(json_member(line_of(&a, text, i), "source")->string, sources[i]);
    CHECK_EQ(json_member(line_of(&a, text, 1), "user")->integer, 77);
    CHECK_STR(json_member(line_of(&a, text, 3), "user")->string, "\"x");
    CHECK_EQ(id_at(line_of(&a, text, 1), 0), id_at(line_of(&a, text, 4), 0));
    CHECK_EQ(id_at(line_of(&a, text, 0), 0), id_at(line_of(&a, text, 2), 0));
    free(text);
    arena_fini(&a);
    text = shell(0, "cat err");
    CHECK_CONTAINS(text, "u.txt: 3 of 5 users are not in the data");
    free(text);
    text = shell(0, "cat u.txt | ./hstu recommend run --data data --device cpu --users - "
                    "--format csv -k 1 2>/dev/null");
    CHECK_EQ(count(text, '\n'), 6);
    CHECK_CONTAINS(text, "\n\"\"\"x\",1,");
    CHECK_CONTAINS(text, ",popular\n");
    free(text);
}

TEST(recommend_refuses_lists_that_are_none) {
    free(shell(0,
               ": > empty; printf 'a\\000b\\n' > nul; head -c 9000 /dev/zero | tr '\\0' x > long; "
               "echo 777 > strange; seq 1 60 > every"));
    says(1, "--users empty", "empty: contains no users");
    says(1, "--users nul", "nul: line 1 has a zero byte");
    says(1, "--users long", "long: line 1 is longer");
    says(1, "--users none.txt", "none.txt");
    says(2, "--user 3 --filter 'year > 1'", "filter: character 1");
    says(2, "--user 3 --rules '{'", "not JSON");
    says(1, "--user 3 --rules @nothere", "nothere");
    says(2, "--similar 3 --rules '{}'", "--rules are for users");
    says(0, "--user 3 --rules '{\"pin\": [\"no\"]}'", "rules: 1 ids are no items of the model");
    says(2, "--user 3 --allow empty", "none is an item of the model");
    says(2, "--user 3 --allow strange", "none is an item of the model");
    says(1, "--user 3 --deny nul", "zero byte");
    says(2, "--user 3 --deny every", "no item to recommend");
    says(2, "--user 3 --deny every --rules '{\"pin\": [5]}'", "pin: item 1 of the list is denied");
    says(2, "--user 3 --rules '{\"boost\": [{\"filter\": \"id > 0\", \"times\": 1e-300}]}'",
         "times");
    says(2, "--user 3 -k 0", "from 1 to 1024");
    says(2, "--user 3 -k 99999999999999999999", "out of range");
    says(2, "", "give either --user ID, --users FILE");
    says(2, "--user 3 --all-users", "give either");
    says(2, "--user ''", "the value is empty");
}

TEST(recommend_filters) {
    arena a;
    arena_init(&a, 4096);
    free(shell(0, "printf '5\\n6\\n5\\n7\\n999\\n' > allow; printf '6\\nzz\\n' > deny"));
    char *text = asked(0, "--history 1,2,3 --allow allow --deny deny -k 1024 --json 2>err");
    const json_value *v = line_of(&a, text, 0);
    CHECK_EQ(json_member(v, "items")->n_children, 2);
    CHECK_EQ(json_member(v, "user")->type, JSON_NULL);
    CHECK_EQ(id_at(v, 0) + id_at(v, 1), 12);
    free(text);
    text = shell(0, "cat err");
    CHECK_CONTAINS(text, "allow: 1 of 5 ids is not known");
    CHECK_CONTAINS(text,
                   "deny: 1 of 2 ids is not known to the model and left out; the first is 'zz'");
    free(text);
    text = asked(0, "--history 5,7 --allow allow --deny deny --json 2>/dev/null");
    CHECK_EQ(json_member(line_of(&a, text, 0), "items")->n_children, 0);
    free(text);
    says(0, "--history 5,7 --allow allow --deny deny", "nothing: no item is left");
    text = asked(0, "--history 5,7 --allow allow --deny deny --keep-seen --json 2>/dev/null");
    CHECK_EQ(json_member(line_of(&a, text, 0), "items")->n_children, 2);
    free(text);
    arena_fini(&a);
}

TEST(recommend_histories_are_the_same_in_all_forms) {
    free(shell(0, "echo '[3, 5, 8]' > h.json; printf '3\\n5\\n8\\n' > h.txt"));
    char *list = asked(0, "--history 3,5,8 -k 60 --json");
    static const char *const forms[] = {"'[3,\"5\",{\"item\":8}]'", "@h.json", "@h.txt"};
    for (int i = 0; i < 3; i++) {
        char args[256];
        snprintf(args, sizeof args, "--history %s -k 60 --json", forms[i]);
        char *text = asked(0, args);
        CHECK_STR(text, list);
        free(text);
    }
    arena a;
    arena_init(&a, 4096);
    CHECK_EQ(json_member(line_of(&a, list, 0), "items")->n_children, 57);
    arena_fini(&a);
    free(list);
    /* Times count: the same items long apart are another history. */
    says(0,
         "--history '[{\"item\":3,\"time\":5},{\"item\":5,\"time\":900000000,\"rating\":2}]' -k 2",
         "1998-07-09");
    says(2, "--history 1,,2", "--history: separate ids by");
    says(0, "--history 1,999", "has no item 999; these events are left out");
    says(2, "--history 999,1000", "no item 999, 1000");
    says(2, "--history '[{\"item\":1,\"action\":9}]'", "from 0 to 4");
    says(1, "--history @none", "none");
}

TEST(recommend_similar_items) {
    arena a;
    arena_init(&a, 4096);
    char *text = asked(0, "--similar 4 --similar 9 -k 1024 --json");
    for (int i = 0; i < 2; i++) {
        const json_value *v = line_of(&a, text, i);
        CHECK_EQ(json_member(v, "item")->integer, i == 0 ? 4 : 9);
        CHECK_EQ(json_member(v, "items")->n_children, 59);
    }
    free(text);
    arena_fini(&a);
    says(2, "--similar 999", "no such item");
    /* Without data: the run knows its items. */
    text = shell(0, "./hstu recommend run --device cpu --similar 4 -k 3 --format csv");
    CHECK_CONTAINS(text, "item,rank,id,score,title,source\n4,1,");
    free(text);
    says(0, "--similar 4 -k 3 --format csv", "item,rank,id,score,title,source\n4,1,");
}

/* A file is there whole or not at all, and a failed write is an error. */
TEST(recommend_output_arrives_or_fails) {
    free(shell(0, "echo old > o.csv"));
    says(1, "--all-users --json --out none/o.csv", "none/o.csv");
    says(1, "--all-users --json --out data", "is a folder");
    says(1, "--all-users --json --out /dev/full", "No space left");
    says(1, "--users none.txt --json --out o.csv", "none.txt");
    char *text = shell(0, "cat o.csv; ls -a | grep -c tmp || true");
    CHECK_STR(text, "old\n0\n");
    free(text);
    text = asked(0, "--user 1 --json --out - > o.csv; wc -l < o.csv");
    CHECK_STR(text, "1\n");
    free(text);
    says(1, "--all-users --json > /dev/full", "writing to stdout failed");
    says(1, "--all-users --json >&-", "writing to stdout failed");
    text = asked(0, "--all-users -k 60 --json 2>err | head -c 10 > /dev/null; cat err");
    CHECK_STR(text, "");
    free(text);
    text = shell(0, "test -c /dev/full && echo is a device");
    CHECK_CONTAINS(text, "is a device");
    free(text);
}

/* Ids of any bytes: quotes, commas, line noise that is no UTF-8. */
TEST(recommend_ids_are_what_the_data_has) {
    free(shell(
        0,
        "{ echo user,item,time; for t in 1 2 3 4 5 6; do printf '\"u,1\",\"a,%d\",%d\\n"
        "u\\3772,\"a,%d\",%d\\n' $t $t $((7 - t)) $t; done; } > e.csv && ./hstu prep csv "
        "--input e.csv --string-ids --out text --user-col user --item-col item --time-col time && "
        "./hstu train --device cpu --gin-config-file m.gin --data text --out trun "
        "--epochs 1"));
    char *text = shell(0, "./hstu recommend trun --data text --device cpu --all-users --keep-seen "
                          "-k 2 --format csv");
    CHECK_CONTAINS(text, "\n\"u,1\",1,\"a,");
    CHECK_CONTAINS(text, "\nu\377"
                         "2,2,\"a,");
    free(text);
    text = shell(0, "./hstu recommend trun --data text --device cpu --user 'u,1' --keep-seen -k 2 "
                    "--json");
    CHECK_CONTAINS(text, "{\"user\":\"u,1\",\"source\":\"model\",\"items\":[{\"id\":\"a,");
    free(text);
    text = shell(0, "printf 'u\\3772\\n' | ./hstu recommend trun --data text --device cpu --users "
                    "- --keep-seen --json");
    CHECK_CONTAINS(text, "\"source\":\"model\"");
    CHECK_CONTAINS(text, "{\"user\":\"u\xef\xbf\xbd"
                         "2\"");
    free(text);
    text = shell(0, "./hstu recommend trun --data text --device cpu --history '[\"a,1\",\"a,2\"]' "
                    "--json");
    CHECK_CONTAINS(text, "\"source\":\"model\"");
    free(text);
    text = shell(2, "./hstu recommend trun --data text --device cpu --history a,1");
    CHECK_CONTAINS(text, "no item a, 1");
    free(text);
}

/* An item without a title is shown by its id alone; counts of events are whole numbers. */
TEST(recommend_shows_ids_once) {
    free(shell(0,
               "python3 -c 'print(\"user,item,time\"); [print(f\"u{u},item-{(u * 7 + t * 3) % 30},"
               "{1700000000 + t * 60}\") for u in range(30) for t in range(8)]' >log.csv && "
               "echo 'item_id,title\nitem-1,One\nitem-2,Two' >items.csv && "
               "./hstu prep csv --input log.csv --items items.csv --out text && ./hstu train "
               "--device cpu --gin-config-file m.gin --data text --out strings --epochs 1"));
#define STRINGS "./hstu recommend strings --data text --device cpu -k 30 "
    char *text = shell(0, STRINGS "--user nobody 2>/dev/null");
    CHECK_EQ(count_parts(text, "item-3 "), 1);
    CHECK_EQ(count_parts(text, " One "), 1);
    CHECK_CONTAINS(text, " 8\n");
    CHECK(strstr(text, ".0000") == NULL);
    free(text);
    text = shell(0, STRINGS "--user nobody --json 2>/dev/null");
    CHECK_EQ(count_parts(text, "\"title\":"), 2);
    free(text);
    text = shell(0, STRINGS "--similar item-3 --format csv");
    CHECK_EQ(count_parts(text, ",,model\n"), 27); /* without those two and itself */
    free(text);
}

/* Whether an item of the data has a value of a feature. */
static bool has_value(const seq_file *data, const item_content *f, int64_t id, uint32_t value) {
    uint32_t item = seq_find_item_number(data, id);
    for (uint64_t i = f->offsets[item]; i < f->offsets[item + 1]; i++)
        if (f->value[i] == value) return true;
    return false;
}

/* Filters, limits and boosts by the features that prep stored and the run carries: what they leave
 * of the whole list, in its order. */
TEST(recommend_filters_by_features) {
    seq_file *data;
    arena a = {0};
    const json_value *whole, *part;
    char args[400];
    size_t n_found = 0, n_want = 0;
    char *all = asked(0, "--user 3 -k 60 --keep-seen --json 2>/dev/null");
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    CHECK_OK(json_parse(&a, "all", all, strlen(all), &whole));
    free(all);
    const item_content *f = &data->content[0];
    uint32_t value = f->value[f->offsets[seq_find_item_number(data, id_at(whole, 59))]];
    const text_column *t = &f->values;
    snprintf(args, sizeof args,
             "--user 3 -k 60 --keep-seen --json --filter '%s = \"%.*s\"' 2>/dev/null", f->name,
             (int)(t->offsets[value + 1] - t->offsets[value]), t->bytes + t->offsets[value]);
    char *text = asked(0, args);
    CHECK_OK(json_parse(&a, "part", text, strlen(text), &part));
    free(text);
    for (size_t i = 0; i < 60; i++)
        if (has_value(data, f, id_at(whole, i), value))
            CHECK_EQ(id_at(part, n_want++), id_at(whole, i));
    CHECK_EQ(json_member(part, "items")->n_children, n_want);
    CHECK(n_want > 0 && n_want < 60);
    /* One item of each value, of the boosted value first. */
    snprintf(args, sizeof args,
             "--user 3 -k 60 --keep-seen --json --rules '{\"max_per\": {\"%s\": 1}, \"boost\": "
             "[{\"filter\": \"%s in (\\\"%.*s\\\")\", \"add\": 100}]}' 2>/dev/null",
             f->name, f->name, (int)(t->offsets[value + 1] - t->offsets[value]),
             t->bytes + t->offsets[value]);
    text = asked(0, args);
    CHECK_OK(json_parse(&a, "part", text, strlen(text), &part));
    free(text);
    for (size_t i = 0; i < json_member(part, "items")->n_children; i++)
        n_found += has_value(data, f, id_at(part, i), value);
    CHECK(n_found == 1 && has_value(data, f, id_at(part, 0), value));
    seq_file_close(data);
    arena_fini(&a);
}

/* Two stages with every item as a candidate write the exact lists, filters included. */
TEST(recommend_in_two_stages) {
    says(2, "--user 1 --search mean:9", "only a mixture of logits is searched in two stages");
    says(2, "--user 1 --search mean:", "a number belongs after mean:");
    says(2, "--similar 1 --search mean:9", "--search is for users");
    free(shell(0, "./hstu train m.gin --data data --device cpu --out mol --epochs 1 --set "
                  "train_fn.interaction_module_type=MoL --set train_fn.item_l2_norm=False --set "
                  "create_mol_interaction_module.query_dot_product_groups=4 --set "
                  "create_mol_interaction_module.item_dot_product_groups=2 --set "
                  "create_mol_interaction_module.dot_product_dimension=8 --set "
                  "train_fn.num_negatives=4 --set train_fn.sampling_strategy=local"));
    free(shell(0, "./hstu info data --json | tr , '\\n' | grep '\"items\"' | tr -dc 0-9 > n"));
    char *text = shell(
        0, "export HSTU_LOG=info; ask() { ./hstu recommend mol --data data --device cpu "
           "--all-users -k 7 --format csv \"$@\"; }; seq 1 2 999 > odd; ask > a; ask --deny odd > "
           "b; ask --search mean:1000 > c && cmp a c; ask --search components:1000+x || true; ask "
           "--search components:300 --deny odd > d; cmp b d; ask --search mean:8 > e; wc -l < e; "
           "wc -l < a; cmp -s a e || echo differs");
    CHECK_CONTAINS(text, "recall@7 1.0000 against the exact search, of ");
    CHECK_CONTAINS(text, "differs");
    free(text);
}
