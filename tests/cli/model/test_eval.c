/* hstu eval and the splits of hstu train, from outside. */
#include "run_test.h"

/* A number of the one JSON object in a text, after what the log says. */
static double number_in(const char *text, const char *key) {
    arena a;
    const json_value *v;
    double value;
    const char *line = strchr(text, '{');
    CHECK(line != NULL);
    arena_init(&a, 4096);
    CHECK_OK(json_parse(&a, "line", line, strcspn(line, "\n"), &v));
    CHECK_OK(json_member_double(v, key, &value));
    arena_fini(&a);
    return value;
}

/* The middle of the time of the data, as text. */
static const char *middle_time(void) {
    static char text[32];
    seq_file *data;
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    int64_t low = data->time[0], high = data->time[0];
    for (uint64_t i = 0; i < data->n_events; i++) {
        low = data->time[i] < low ? data->time[i] : low;
        high = data->time[i] > high ? data->time[i] : high;
    }
    snprintf(text, sizeof text, "%" PRId64, (low + high) / 2 / data->time_per_second);
    seq_file_close(data);
    return text;
}

TEST(eval_uses_the_split_of_the_run) {
    char args[256];
    snprintf(args, sizeof args,
             "train --gin-config-file m.gin --data data --out run --epochs 2 --split time "
             "--time-cut %s",
             middle_time());
    free(said(0, args));
    char *text = said(0, "eval run --data data --json");
    CHECK_CONTAINS(text, "\"split\":\"time\",\"time_cut\":\"20");
    double users = number_in(text, "users"), hr = number_in(text, "hr@10");
    CHECK(users >= 1 && users < 40); /* some users have no event on one side of the cut */
    free(text);
    CHECK_EQ(test_command(&text, "tail -1 %s/run/log.jsonl", test_folder()), 0);
    CHECK(number_in(text, "hr@10") == hr && number_in(text, "users") == users);
    free(text);
    CHECK_EQ(test_command(&text, "cat %s/run/config.json", test_folder()), 0);
    CHECK_CONTAINS(text, "\"split\": \"time\"");
    free(text);
    /* Another split: what it would test on was trained, or was not. */
    text = said(2, "eval run --data data --split leave-one-out");
    CHECK_CONTAINS(text, "has events that the run was trained on: its split is 'time before");
    free(text);
    free(said(2, "eval run --data data --time-cut 5"));
    snprintf(args, sizeof args, "eval run --data data --split time --time-cut %lld",
             atoll(middle_time()) + 1);
    free(said(0, args));
    text = said(2, "eval run --data data --part validation");
    CHECK_CONTAINS(text, "no validation part");
    free(text);
    /* It is resumed with the same split, without being told. */
    free(said(0, "train --resume --data data --out run --epochs 3"));
    text = said(2, "train --resume --data data --out run --epochs 4 --split leave-one-out");
    CHECK_CONTAINS(text, "the split of the run is 'time before");
    free(text);
}

TEST(eval_of_a_run_that_began_again_has_its_split) {
    free(said(0, "train --gin-config-file m.gin --data data --out run --epochs 1 --split "
                 "leave-two-out"));
    CHECK_EQ(test_command(NULL, "cd %s && rm -r run/checkpoints run/last run/best", test_folder()),
             0);
    char *text = said(0, "train --resume --data data --out run --json");
    CHECK_CONTAINS(text, "\"split\":\"leave-two-out\"");
    free(text);
    free(said(0, "eval run --data data --part validation"));
}

/* Splits by user: with other data the same numbers are other users. */
TEST(eval_by_user_wants_the_data_of_the_run) {
    free(said(0, "train --gin-config-file n.gin --data data --out run --epochs 1"));
    free(said(0, "eval run --data data"));
    free(said(0, "synth --out other --users 40 --items 60 --mean-len 9 --seed 4"));
    char *text = said(2, "eval run --data other");
    CHECK_CONTAINS(text, "would test on users it was trained on");
    free(text);
}

/* The last events of the toy data as a test file: the same figures as leave-one-out. */
static void write_test_file(void) {
    seq_file *data;
    FILE *train = fopen(run_path("train.csv"), "w"), *test = fopen(run_path("test.csv"), "w");
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    fprintf(train, "user,item,time\n");
    fprintf(test, "user,item,time\n");
    for (uint64_t u = 0; u < data->n_users; u++)
        for (uint64_t i = data->offsets[u]; i < data->offsets[u + 1]; i++)
            fprintf(i + 1 < data->offsets[u + 1] ? train : test,
                    "%" PRId64 ",%" PRId64 ",%" PRId64 "\n", data->user_id[u],
                    data->item_id[data->item[i]], data->time[i] / data->time_per_second);
    fprintf(test, "999999,1,2000000000\n");
    CHECK(fclose(train) == 0 && fclose(test) == 0);
    seq_file_close(data);
}

TEST(eval_with_a_test_file) {
    const char *columns = "--user-col user --item-col item --time-col time";
    char args[256];
    free(said(0, "synth --help"));
    write_test_file();
    snprintf(args, sizeof args, "prep csv --input train.csv --out 'the data' %s", columns);
    free(said(0, args));
    snprintf(args, sizeof args, "prep csv --input test.csv --out 'the test' %s", columns);
    free(said(0, args));
    char *text = said(0, "train --gin-config-file m.gin --data 'the data' --test-file 'the test' "
                         "--out run --epochs 2");
    CHECK_CONTAINS(text, "1 users are not in the data and are left out");
    free(text);
    text = said(0, "eval run --data 'the data' --json"); /* it knows the test file */
    CHECK_CONTAINS(text, "\"split\":\"test-file\"");
    double users = number_in(text, "users"), mrr = number_in(text, "mrr");
    CHECK(users > 30);
    free(text);
    CHECK_EQ(test_command(&text, "tail -1 %s/run/log.jsonl", test_folder()), 0);
    CHECK(number_in(text, "mrr") == mrr);
    free(text);
    /* Any run can be tested on events that its data does not have. */
    free(said(0, "train --gin-config-file m.gin --data 'the data' --out other --epochs 2"));
    text = said(0, "eval other --data 'the data' --test-file 'the test' --baselines --json");
    CHECK(number_in(text, "users") == users);
    free(text);
    free(said(0, "train --resume --data 'the data' --out run --epochs 3"));
    text = said(2, "train --resume --data 'the data' --out run --test-file 'the data'");
    CHECK_CONTAINS(text, "the first event of user");
    free(text);
    text = said(2, "eval run --data 'the data' --split leave-one-out");
    CHECK_CONTAINS(text, "its split is 'test-file'");
    free(text);
}

/* Groups add up to all users, on any number of ranks; a row a user; what there is to group by. */
TEST(eval_by_group_and_per_user) {
    static const char *const by[] = {"length", "popularity", "age_group"};
    char args[256], *text, *two;
    free(said(0, "train m.gin --data data --out r --epochs 2"));
    for (int i = 0; i < 3; i++) {
        snprintf(args, sizeof args, "eval r --json --metrics HR@10 --by %s", by[i]);
        text = said(0, args);
        double users = number_in(text, "users"), sum = 0, hits = 0;
        const char *at = strstr(text, "\"groups\":");
        CHECK(at != NULL);
        while ((at = strstr(at, "\"users\":")) != NULL) {
            double n = strtod(at + 8, NULL);
            CHECK((at = strstr(at, "\"hr@10\":")) != NULL);
            hits += n * strtod(at + 8, NULL);
            sum += n;
        }
        CHECK(sum == users && fabs(hits / sum - number_in(text, "hr@10")) < 1e-9);
        snprintf(args, sizeof args, "eval r --json --metrics HR@10 --ranks 2 --by %s", by[i]);
        two = said(0, args);
        CHECK_STR(strstr(two, "\"groups\":"), strstr(text, "\"groups\":"));
        free(two);
        free(text);
    }
    free(said(0, "eval r --per-user u.csv"));
    CHECK_EQ(test_command(&text, "cd %s && head -1 u.csv && wc -l < u.csv", test_folder()), 0);
    CHECK_STR(text, "user,events,position\n41\n");
    free(text);
    text = said(2, "eval r --by age_grup");
    CHECK_CONTAINS(text, "--by age_grup: must be length, popularity, ");
    CHECK_CONTAINS(text, "(did you mean 'age_group'?)");
    free(text);
    free(said(0, "train n.gin --data data --out n --max-iters 2"));
    text = said(0, "eval n --by length --per-user v.csv");
    CHECK_CONTAINS(text, " events ");
    free(text);
    text = said(2, "eval n --by popularity");
    CHECK_CONTAINS(text, "must be length");
    free(text);
}

/* By a feature of the target: an item of several values counts for each, one of none is unknown;
 * what a category of one value an item says is what the groups of single users add up to.  Metrics
 * at the size of the catalogue are not shown. */
TEST(eval_by_features_of_the_target) {
    free(said(0, "synth --help"));
    write_text("e.csv", "user,item,time\na,1,1\na,2,2\na,3,3\nb,2,1\nb,1,2\nb,4,3\nc,4,1\nc,3,2\n"
                        "c,2,3\nd,1,5\nd,4,7\nd,3,9\n");
    write_text("i.csv", "item,tags,price\n1,x,1\n2,x|y,2\n3,y|z,3\n4,,9\n");
    free(said(0, "prep csv --input e.csv --items i.csv --item-features tags:list,price --out d"));
    free(said(0, "train m.gin --data d --out t --epochs 1"));
    char *text = said(0, "eval t --json --metrics HR@2 --by tags"); /* of targets 3, 4, 2, 3 */
    CHECK_CONTAINS(text, "{\"name\":\"unknown\",\"users\":1,");
    CHECK_CONTAINS(text, "{\"name\":\"x\",\"users\":1,");
    CHECK_CONTAINS(text, "{\"name\":\"y\",\"users\":3,");
    CHECK_CONTAINS(text, "{\"name\":\"z\",\"users\":2,");
    CHECK(strstr(text, "all others") == NULL);
    free(text);
    text = said(0, "eval t --metrics HR@1,HR@3,HR@4,NDCG@10 --by price");
    CHECK_CONTAINS(text, "  3                              2 ");
    CHECK_CONTAINS(text, "  hr@3 ");
    CHECK(strstr(text, "  hr@4 ") == NULL && strstr(text, "  ndcg@10 ") == NULL);
    CHECK_CONTAINS(text, "Not shown: metrics at 4, the items ranked, and above\n");
    free(text);
    write_text("l.csv", "user,item\na,3\n");
    text = said(0, "eval --recommendations l.csv --data d --metrics HR@1,HR@5");
    CHECK_CONTAINS(text, "  hr@1             0.2500 ");
    CHECK(strstr(text, "hr@5") == NULL);
    CHECK_CONTAINS(text, "Not shown: metrics at 4");
    free(text);
    text = said(0, "eval t --metrics HR@1,HR@3");
    CHECK(strstr(text, "Not shown") == NULL);
    free(text);
    free(said(0, "train n.gin --data data --out n --max-iters 2"));
    text = said(2, "eval n --by tags");
    free(text);
}

/* The lists of a model are measured as the model is, in JSON lines and in CSV, and by `compare`
 * they are the same.  Without a time bias: an evaluation knows the time of the target. */
TEST(eval_of_recommendations_is_that_of_their_model) {
    static const char *const metrics[] = {"hr@10",       "ndcg@10",    "mrr",
                                          "coverage@10", "novelty@10", "diversity@10"};
    char *lists = "eval --recommendations lists.jsonl --data 'the data' --test-file 'the test' "
                  "--metrics HR@10,NDCG@10,MRR,COVERAGE@10,NOVELTY@10,DIVERSITY@10 --window 100 ";
    char args[512];
    free(said(0, "synth --help"));
    write_test_file();
    free(said(0, "prep csv --input train.csv --out 'the data' --user-col user --item-col item "
                 "--time-col time"));
    free(said(0, "prep csv --input test.csv --out 'the test' --user-col user --item-col item "
                 "--time-col time"));
    free(said(0, "train m.gin --data 'the data' --test-file 'the test' --out run --epochs 3 "
                 "--set train_fn.max_sequence_length=100 "
                 "--set hstu_encoder.enable_relative_attention_bias=False"));
    free(said(0, "recommend run --all-users -k 60 --json --out lists.jsonl"));
    free(said(0, "recommend run --all-users -k 60 --format csv --out lists.csv"));
    char *other =
        said(0, "eval run --json --metrics HR@10,NDCG@10,MRR,COVERAGE@10,NOVELTY@10,DIVERSITY@10");
    snprintf(args, sizeof args, "%s --json", lists);
    char *text = said(0, args);
    for (int i = 0; i < 6; i++)
        CHECK(number_in(text, metrics[i]) == number_in(other, metrics[i]));
    free(other);
    free(text);
    snprintf(args, sizeof args, "%s --out lists", lists);
    text = said(0, args);
    CHECK_CONTAINS(text, "lists.jsonl: lists of 40 of 40 users\n");
    CHECK_CONTAINS(text, "  Left out  items of all events before the target\n");
    free(text);
    free(said(2, args)); /* the folder exists */
    text = said(0, "compare run lists");
    CHECK_CONTAINS(text,
                   "hr@10                                               -    +0.0000 unclear");
    CHECK_CONTAINS(text,
                   "model                                   hstu-research              lists");
    CHECK(strstr(text, "train_fn.") == NULL);
    free(text);
    text = said(
        0, "eval --recommendations lists.csv --data 'the data' --test-file 'the test' "
           "--metrics HR@10,NDCG@10,MRR,COVERAGE@10,NOVELTY@10,DIVERSITY@10 --window 100 --json");
    snprintf(args, sizeof args, "%s --json", lists);
    other = said(0, args);
    for (int i = 0; i < 6; i++)
        CHECK(number_in(text, metrics[i]) == number_in(other, metrics[i]));
    free(text);
    /* In any order, as the column rank says. */
    CHECK_EQ(test_command(&text, "cd %s && (head -1 lists.csv; tail -n +2 lists.csv | sort -r) > r",
                          test_folder()),
             0);
    free(text);
    text = said(
        0, "eval --recommendations r --data 'the data' --test-file 'the test' "
           "--metrics HR@10,NDCG@10,MRR,COVERAGE@10,NOVELTY@10,DIVERSITY@10 --window 100 --json");
    for (int i = 0; i < 6; i++)
        CHECK(number_in(text, metrics[i]) == number_in(other, metrics[i]));
    free(other);
    free(text);
}

TEST(eval_of_recommendations_says_what_is_wrong) {
    static const struct {
        const char *file, *args, *text;
        int code;
    } cases[] = {
        {"", "--data data", "l: has no list of a user of the data", 1},
        {"{\"user\": 1, \"items\": [99999, \"x\"]}\n", "--data data",
         "2 of 2 listed items are not in the data (each takes its place)", 0},
        {"{\"user\": 1, \"items\": [9007199254740993]}\n", "--data data",
         "the first is '9007199254740993'", 0},
        {"{\"user\": 1, \"items\": [1]}\n", "--data data", "have no list: each counts as a miss",
         0},
        {"{\"user\": 1, \"items\": [99999, \"x\"]}\n{\"user\": 77777, \"items\": [1]}\n",
         "--data data", "1 of 2 users are not in the data (left out); the first is '77777'", 0},
        {"user,item\n1,2\n", "--data data --keep-seen --window 3", "keeps everything", 2},
        {"user,item\n1,2\n", "--data data --split none", "holds nothing out", 2},
        {"{\"user\": 1, \"items\": [1]}\n\n{\"user\": 1, \"items\": []}\n", "--data data",
         "l, line 3: a second list of user 1", 1},
        {"{\"user\": 1}\n", "--data data", "l, line 1: no {\"user\": ..., \"items\": [...]}", 1},
        {"{\"user\": 1, \"items\": [1.5]}\n", "--data data", "l, line 1: no id", 1},
        {"{\"user\": 1, \"items\": [\n", "--data data", "l, line 1", 1},
        {"user,thing\n1,2\n", "--data data", "l, line 1: the header has no columns", 1},
        {"user,item\n1\n", "--data data", "l, line 2: 1 fields", 1},
        {"\r\n\nuser,item\n1\n", "--data data", "l, line 4: 1 fields", 1},
        {"\n\tuser,item\n1,2\n", "--data data", "l, line 2: the header has no columns", 1},
        {"\n  {\"user\": 1, \"items\": [1.5]}\n", "--data data", "l, line 2: no id", 1},
        {"user,item,rank\n1,2,1\n1,3\n", "--data data", "l, line 3: 2 fields: user, item or rank",
         1},
        {"user,Rank,item\n1,first,2\n", "--data data",
         "l, line 2: the rank 'first' is not a whole number", 1},
        {"user,item\n1,2\n", "", "also needs --data", 2},
        {"user,item\n1,2\n", "run --data data", "leave out RUN", 2},
        {"user,item\n1,2\n", "--data data --metrics AUC", "HR@k", 2},
        {"user,item\n1,2\n", "--data data --metrics NOVELTY@1001", "DIVERSITY up to 1000", 2},
    };
    free(said(0, "synth --help"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[256];
        write_text("l", cases[i].file);
        snprintf(args, sizeof args, "eval --recommendations l %s", cases[i].args);
        char *text = said(cases[i].code, args);
        CHECK_CONTAINS(text, cases[i].text);
        free(text);
    }
    free(said(2, "eval --window 3 run"));
}

TEST(eval_and_train_refuse_splits_that_contradict_themselves) {
    struct {
        const char *args, *text;
    } cases[] = {
        {"--split time", "--split time needs a date"},
        {"--split by-user --time-cut 5", "--time-cut belongs to --split time"},
        {"--time-cut soon", "--time-cut: 'soon' is no time"},
        {"--split odd", "split 'odd' is unknown"},
        {"--split leave-one-out --validate", "use --split leave-two-out"},
        {"--test-file data --split time", "holds its own events out"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char args[256];
        snprintf(args, sizeof args, "train --gin-config-file m.gin --data data --out r %s",
                 cases[i].args);
        char *text = said(2, args);
        CHECK_CONTAINS(text, cases[i].text);
        free(text);
    }
    char *text = said(2, "train --gin-config-file n.gin --data data --out r --validate "
                         "--set DatasetArgs.max_num_candidates=0");
    CHECK_CONTAINS(text, "ranking without candidates scores every event");
    free(text);
    CHECK(!folder_exists(run_path("r")));
}

/* Validation chooses the checkpoint that is used afterwards; the end of the run measures it. */
TEST(eval_and_recommend_use_the_best) {
    free(said(0, "train --gin-config-file m.gin --data data --out run --epochs 6 --validate "
                 "--keep 10 --set train_fn.learning_rate=0.1"));
    char *text, best[512];
    CHECK_EQ(test_command(&text, "cd %s/run && basename $(readlink best)", test_folder()), 0);
    snprintf(best, sizeof best, "%.13s", text);
    free(text);
    text = said(0, "eval run --data data --json");
    CHECK_CONTAINS(text, "using the best checkpoint on validation, of step");
    CHECK_CONTAINS(text, "\"checkpoint\":\"run/best\"");
    CHECK_CONTAINS(text, "\"is_best\":true");
    double mrr = number_in(text, "mrr");
    CHECK(number_in(text, "step") == atoi(best + 5));
    free(text);
    CHECK_EQ(test_command(&text, "tail -1 %s/run/log.jsonl", test_folder()), 0);
    CHECK(number_in(text, "mrr") == mrr);
    free(text);
    text = said(0, "eval run --data data --json --checkpoint last");
    CHECK(number_in(text, "step") == 30 && strstr(text, "using the best") == NULL);
    free(text);
    text = said(0, "eval run --data data --json --checkpoint step-10");
    CHECK(number_in(text, "step") == 10);
    free(text);
    text = said(0, "eval run --data data --json --checkpoint run/checkpoints/step-00000015");
    CHECK(number_in(text, "step") == 15);
    free(text);
    text = said(2, "eval run --data data --checkpoint step-11");
    CHECK_CONTAINS(text, "--checkpoint step-11: run has no such checkpoint\n");
    free(text);
    text = said(2, "eval run --data data --checkpoint step-0");
    CHECK_CONTAINS(text, "--checkpoint step-0: run has no such checkpoint\n");
    free(text);
    /* Other splits by name: leave-one-out has no validation, leave-two-out is that of the run. */
    text = said(0, "eval run --data data --json --split leave-one-out");
    CHECK_CONTAINS(text, "\"split\":\"leave-one-out\"");
    free(text);
    text = said(0, "eval run --data data --json --split leave-two-out");
    CHECK_CONTAINS(text, "\"split\":\"leave-two-out\"");
    CHECK(number_in(text, "mrr") == mrr);
    free(text);
    text = said(0, "recommend run --data data --user 2 -k 3");
    CHECK_CONTAINS(text, "using the best checkpoint");
    free(text);
    free(said(0, "train --gin-config-file m.gin --data data --out plain --epochs 1"));
    text = said(2, "eval plain --data data --checkpoint best");
    CHECK_CONTAINS(text, "training keeps a best one with --validate");
    free(text);
}

/* What the end of a run says can be pasted into a shell. */
TEST(eval_is_the_next_command) {
    free(said(0, "synth --out \"it's data\" --users 30 --items 40 --mean-len 8"));
    char *text = said(0, "train --gin-config-file m.gin --data \"it's data\" --out 'a run' "
                         "--epochs 1");
    const char *next = strstr(text, "  Next      hstu eval");
    CHECK(next != NULL);
    CHECK_CONTAINS(next, "hstu eval 'a run' --data 'it'\\''s data' --baselines\n");
    char line[512];
    snprintf(line, sizeof line, "%.*s", (int)strcspn(next + 17, "\n"), next + 17);
    free(text);
    free(said(0, line));
}

/* Nothing in the name of a run moves the cursor. */
TEST(eval_shows_the_path_escaped) {
    free(said(0, "train --gin-config-file m.gin --data data --epochs 1 --out 'a\033[2Jrun'"));
    char *text = said(0, "eval 'a\033[2Jrun' --data data");
    CHECK_CONTAINS(text, "a\\x1b[2Jrun/last at step 5");
    CHECK(strchr(text, '\033') == NULL);
    free(text);
}

/* The bounds of a metric in a line of JSON. */
static void bounds_of(const char *text, const char *name, double *low, double *high) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":[", name);
    const char *at = strstr(text, "\"intervals\":");
    CHECK(at != NULL && (at = strstr(at, key)) != NULL);
    CHECK_EQ(sscanf(at + strlen(key), "%lf,%lf", low, high), 2);
}

/* Around the figure, as wide as theory says, and the same on two ranks; of ranking, too. */
TEST(eval_has_intervals_over_users) {
    double low, high, low2, high2;
    free(said(0, "train m.gin --data data --out r --epochs 3"));
    char *one = said(0, "eval r --json --metrics HR@10,MRR,COVERAGE@5,NOVELTY@5,DIVERSITY@5");
    char *two = said(0, "eval r --json --ranks 2 --metrics "
                        "HR@10,MRR,COVERAGE@5,NOVELTY@5,DIVERSITY@5");
    static const char *const of_lists[] = {"coverage@5", "novelty@5", "diversity@5"};
    for (int i = 0; i < 3; i++) {
        CHECK(number_in(one, of_lists[i]) == number_in(two, of_lists[i]));
        if (i == 0) continue;
        bounds_of(one, of_lists[i], &low, &high);
        bounds_of(two, of_lists[i], &low2, &high2);
        CHECK(low == low2 && high == high2);
        CHECK(low < number_in(one, of_lists[i]) && number_in(one, of_lists[i]) < high);
    }
    double users = strtod(strstr(one, "\"users\":") + 8, NULL);
    double hr = strtod(strstr(one, "\"hr@10\":") + 8, NULL);
    bounds_of(one, "hr@10", &low, &high);
    bounds_of(two, "hr@10", &low2, &high2);
    CHECK(low == low2 && high == high2);
    CHECK(low < hr && hr < high);
    double width = 2 * 1.96 * sqrt(hr * (1 - hr) / users);
    CHECK(high - low > .8 * width && high - low < 1.25 * width);
    CHECK(strstr(one, "\"coverage@5\":[") == NULL);
    free(one);
    free(two);
    free(said(0, "train n.gin --data data --out rank --max-iters 4"));
    one = said(0, "eval rank --json --metrics AUC,ACC,LOGLOSS,NE,GAUC,ECE");
    two = said(0, "eval rank --json --metrics AUC,ACC,LOGLOSS,NE,GAUC,ECE --ranks 2");
    static const char *const names[] = {"auc", "acc", "logloss", "ne", "gauc"};
    const char *tasks = strstr(one, "\"gauc_left_out\":"), *end = strstr(one, ",\"seconds\":");
    CHECK(tasks != NULL && tasks < end);
    CHECK(strncmp(tasks, strstr(two, "\"gauc_left_out\":"), (size_t)(end - tasks)) == 0);
    CHECK(number_in(one, "auc:class2") == number_in(one, "auc:rating3")); /* its name before */
    char *text = said(0, "eval rank");
    CHECK_CONTAINS(text, "\n  ece:rating3 ");
    CHECK_CONTAINS(text, "left out of gauc: rating1 12, rating2 ");
    CHECK(strstr(text, "auc:class") == NULL);
    free(text);
    CHECK(strstr(one, "\"ece\":[") == NULL); /* no interval */
    for (int i = 0; i < 5; i++) {
        char key[32];
        snprintf(key, sizeof key, "\"%s\":", names[i]);
        double value = strtod(strstr(one, key) + strlen(key), NULL);
        bounds_of(one, names[i], &low, &high);
        bounds_of(two, names[i], &low2, &high2);
        CHECK(low == low2 && high == high2);
        CHECK(low < value && value < high);
    }
    free(one);
    free(two);
}

TEST(eval_prints_its_protocol_and_baselines) {
    free(said(0, "train --gin-config-file m.gin --data data --out run --epochs 2"));
    char *text = said(0, "eval run --data data --metrics HR@5,ndcg@20,PRECISION@5,COVERAGE@10 "
                         "--baselines");
    CHECK_CONTAINS(
        text,
        "model  95 % over users        popularity      last-week       item-knn         markov");
    CHECK_CONTAINS(text, "\n  hr@5 ");
    CHECK_CONTAINS(text, "\n  coverage@10 ");
    CHECK_CONTAINS(text, "  Split     leave-one-out, test part\n");
    CHECK_CONTAINS(text, "  Target    the last event of each user\n");
    CHECK_CONTAINS(text, "  Ranked    all 60 items of the catalogue\n");
    CHECK_CONTAINS(text, "  Left out  items of the last 12 events before the target\n");
    CHECK_CONTAINS(text,
                   "  Ties      of equal scores the item with the smaller number comes first");
    CHECK_CONTAINS(text, "of 40 targets (");
    CHECK(strstr(text, "hr@10") == NULL && strstr(text, "mrr") == NULL);
    free(text);
    text = said(0, "eval run --data data --metrics MRR --keep-seen --baselines --json");
    CHECK_CONTAINS(text, "\"left_out\":\"none, items of the history stay in the ranking\"");
    CHECK_CONTAINS(text, "\"candidates\":60,\"catalogue\":60");
    CHECK_CONTAINS(text, "\"repeated_targets\":");
    CHECK_CONTAINS(text, "\"baselines\":{\"popularity\":{\"mrr\":");
    CHECK_CONTAINS(text, "\"last-week\":{\"mrr\":");
    double kept = number_in(text, "mrr");
    free(text);
    text = said(0, "eval run --data data --metrics MRR --json");
    CHECK(number_in(text, "mrr") != kept);
    free(text);
    text = said(2, "eval run --data data --metrics AUC");
    CHECK_CONTAINS(text, "--metrics: 'AUC' is none of HR@k");
    free(text);
}

/* A run keeps its sample; an evaluation takes all users unless told otherwise, and of a sample the
 * same ones as any run, whatever the model knows of their items. */
TEST(eval_of_a_sample_of_users) {
    free(said(0, "train m.gin --data data --out a --epochs 1 --eval-users 15"));
    char *text = said(0, "eval a --json --eval-users 15 --baselines --metrics HR@10,MRR");
    CHECK_CONTAINS(text, "\"split\":\"leave-one-out\",\"eval_users\":15,");
    CHECK_CONTAINS(text, ",\"eval_users\":15}"); /* of the protocol */
    double mrr = number_in(text, "mrr");
    CHECK(number_in(text, "users") == 15);
    free(text);
    CHECK_EQ(test_command(&text, "tail -1 %s/a/log.jsonl", test_folder()), 0);
    CHECK(number_in(text, "mrr") == mrr);
    free(text);
    text = said(0, "eval a --json --ranks 2 --eval-users 15 --metrics MRR");
    CHECK(number_in(text, "mrr") == mrr);
    free(text);
    text = said(0, "eval a --json --metrics MRR");
    CHECK(number_in(text, "users") == 40 && number_in(text, "mrr") != mrr);
    free(text);
    text = said(0, "train --resume --data data --out a --epochs 2");
    CHECK_CONTAINS(text, "  Users     a fixed random sample of 15 (--eval-users)\n");
    free(text);
    CHECK_EQ(test_command(&text, "tail -1 %s/a/log.jsonl", test_folder()), 0);
    CHECK(number_in(text, "users") == 15);
    free(text);
    text = said(2, "train --resume --data data --out a --epochs 3 --eval-users 20");
    CHECK_CONTAINS(text, "leave --eval-users out to resume it");
    free(text);
    free(said(0, "train m.gin --data data --out b --epochs 1 --eval-users 15 --seed 7"));
    free(said(0, "train m.gin --data data --out c --epochs 1"));
    text = said(0, "compare a b");
    CHECK_CONTAINS(text,
                   "users evaluated                          sample of 15       sample of 15");
    CHECK_CONTAINS(text, "difference from the first run"); /* pairs */
    free(text);
    text = said(0, "compare a c");
    CHECK_CONTAINS(text,
                   "users evaluated                          sample of 15                all");
    CHECK_CONTAINS(text, "evaluated on the same users (--eval-users)");
    free(text);
    free(said(0, "synth --out more --users 40 --items 90 --mean-len 12 --seed 9"));
    text = said(0, "eval a --data more --json --eval-users 20");
    CHECK(number_in(text, "users") == 20 && number_in(text, "targets_unknown") > 0);
    free(text);
    text = said(2, "train m.gin --data data --out d --epochs 1 --split none --eval-users 5");
    CHECK_CONTAINS(text, "leave --eval-users out");
    free(text);
    text = said(2, "eval --recommendations x --data data --eval-users 5");
    CHECK_CONTAINS(text, "leave out RUN");
    free(text);
}

/* The config's metrics are those of training and of the evaluation afterwards. */
TEST(eval_metrics_of_the_config_act) {
    free(said(0, "synth --help"));
    write_text("r.gin", "TrainerArgs.train_batch_size = 8\n"
                        "DatasetArgs.dataset_name = 'synth'\n"
                        "DatasetArgs.max_history_seqlen = 12\n"
                        "NetworkArgs.dtype_str = 'float32'\n"
                        "NetworkArgs.num_layers = 1\n"
                        "NetworkArgs.num_attention_heads = 1\n"
                        "NetworkArgs.hidden_size = 8\n"
                        "NetworkArgs.num_position_buckets = 64\n"
                        "RetrievalArgs.num_negatives = 4\n"
                        "RetrievalArgs.eval_metrics = ('HR@5', 'NDCG@20')\n");
    char *text =
        said(0, "train --gin-config-file r.gin --data data --out run --epochs 1 --validate");
    CHECK_CONTAINS(text, "  loss      hr@5   ndcg@20   tokens/s");
    free(text);
    CHECK_EQ(test_command(&text, "cat %s/run/last/state.json", test_folder()), 0);
    CHECK_CONTAINS(text, "\"best_by\": \"hr@5\"");
    free(text);
    text = said(0, "eval run --data data --json");
    CHECK(number_in(text, "hr@5") >= 0 && number_in(text, "ndcg@20") >= 0);
    CHECK(strstr(text, "hr@10") == NULL);
    free(text);
    text = said(2, "train --resume --gin-config-file r.gin --data data --out run --epochs 2 "
                   "--set \"RetrievalArgs.eval_metrics=('MRR',)\"");
    CHECK_CONTAINS(text, "its best checkpoint is chosen by hr@5");
    free(text);
    text = said(1, "train --gin-config-file n.gin --data data --out r "
                   "--set \"RankingArgs.eval_metrics=('AUC', 'NDCG')\"");
    CHECK_CONTAINS(text, "NDCG and HR rank a catalogue");
    free(text);
}
