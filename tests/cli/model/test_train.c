/* hstu train and eval from outside. */
#include "run_test.h"

TEST(train_prints_a_table_and_where_to_look) {
    char *text = said(0, "train --gin-config-file m.gin --data data --out run");
    CHECK_CONTAINS(text, "hstu-research, retrieval,");
    CHECK_CONTAINS(text, "epoch          loss     hr@10   ndcg@10");
    CHECK_CONTAINS(text, "\n  3/3 ");
    CHECK_CONTAINS(text, "run/report.html");
    free(text);
}

TEST(train_json_is_one_object_a_line) {
    char *text = said(0, "train --gin-config-file m.gin --data data --out run --json --epochs 2");
    int n = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"), n++) {
        static const char *const events[] = {"start", "epoch", "epoch", "done"};
        arena a;
        const json_value *v;
        const char *event;
        double x;
        arena_init(&a, 4096);
        CHECK_OK(json_parse(&a, "line", line, strlen(line), &v));
        CHECK_OK(json_member_string(v, "event", &event));
        CHECK(n < 4);
        CHECK_STR(event, events[n]);
        static const char *const facts[] = {"step",  "time", "config", "parameters", "data",
                                            "split", "seed", "device", "threads"};
        for (int k = 0; k < 9 && n == 0; k++) /* what is needed to repeat the run */
            if (json_member(v, facts[k]) == NULL) FAIL_TEST("no '%s' in: %s", facts[k], line);
        if (n == 1) {
            int64_t epoch;
            CHECK_OK(json_member_int(v, "epoch", &epoch));
            CHECK_EQ(epoch, 0);
        }
        static const char *const keys[] = {"loss", "seconds", "tokens_per_s", "hr@10", "ndcg@10"};
        for (int k = 0; k < 5 && n > 0; k++)
            CHECK_OK(json_member_double(v, keys[k], &x));
        arena_fini(&a);
    }
    CHECK_EQ(n, 4);
    free(text);
}

/* Of 13 epochs every fifth is evaluated, and the last ten. */
TEST(train_evaluates_when_it_should) {
    char *text = said(0, "train --gin-config-file m.gin --data data --out run --json "
                         "--epochs 13 --eval-every 5");
    int n = -1;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"), n++) {
        if (strstr(line, "\"event\":\"epoch\"") == NULL) continue;
        CHECK_EQ(strstr(line, "\"hr@10\"") != NULL, n == 0 || n >= 3);
        CHECK(strstr(line, "\"loss\"") != NULL);
    }
    CHECK_EQ(n, 14);
    free(text);
    text = said(0, "train --gin-config-file m.gin --data data --out again --epochs 12 "
                   "--eval-every 12");
    CHECK_CONTAINS(text, "\n  2/12 ");
    CHECK_CONTAINS(text, "         -         -");
    free(text);
}

TEST(train_says_what_is_missing) {
    struct {
        int code;
        const char *args, *text;
    } cases[] = {
        {2, "train", "the config is missing: hstu train FILE.gin"},
        {2, "train m.gin --gin-config-file m.gin", "the config is given twice"},
        {2, "train --config m.gin", "did you mean '--gin-config-file'?"},
        {2, "train n.gin --set num_layers=2 --data data --out r",
         "'num_layers' has no class: write NetworkArgs.num_layers"},
        {2, "train n.gin --set nothing=2 --data data --out r", "write Class.field=value"},
        {2, "train --gin-config-file m.gin --out r", "--data DIR is missing"},
        {2, "train --gin-config-file m.gin --data data", "--out RUN is missing"},
        {2, "train --gin-config-file m.gin --data data --out r --epochs 1 --max-iters 2",
         "exclude each other"},
        {2, "train --gin-config-file m.gin --data data --out r --device gpu",
         "auto, cpu, cuda and cuda:N"},
        {1, "train --gin-config-file m.gin --data data --out r --device cuda:63",
         "use --device cpu"},
        {1, "train --gin-config-file m.gin --data none --out r", "none"},
        {1, "train --resume --data data --out r", "r: no such folder"},
        {2,
         "train --gin-config-file n.gin --data data --out r "
         "--set 'RankingArgs.prediction_head_arch=[8,1]'",
         "are ratings"},
        {2, "train --init-from a --resume --data data --out r --gin-config-file m.gin",
         "--resume continues a run and --init-from starts a new one"},
        {2, "train --new-items mean --data data --out r --gin-config-file m.gin",
         "--new-items is for runs that start from another"},
        {2, "train --init-from a --new-items some --data data --out r --gin-config-file m.gin",
         "--new-items some: must be init or mean"},
        {1, "train --init-from nowhere --data data --out r", "nowhere: no such folder"},
        {1, "train --init-from nowhere --data data --out r --gin-config-file m.gin",
         "nowhere: no such folder"},
        {1, "eval run", "run: no such folder"},
        {2, "eval data", "--data DIR is missing, and data does not say what it was trained on"},
        {1, "eval run --data data", "run: no such folder"},
        {2, "eval run --data data --part train", "must be test or validation"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = said(cases[i].code, cases[i].args);
        CHECK_CONTAINS(text, cases[i].text);
        free(text);
    }
    CHECK(!folder_exists(run_path("r")));
}

/* Items' features in a run: the same bits with any number of ranks, and resumed; inference reads
 * the items' rows alone; an item without events is recommended; a new run starts from it. */
TEST(train_learns_item_features) {
#define TRAIN                                                                                      \
    "train m.gin --data own --device cpu --set train_fn.item_features=True --set "                 \
    "train_fn.item_id_dropout=0.2 --out "
    char *text;
    CHECK_EQ(
        test_command(NULL,
                     "cd %s && (echo item_id,title,genres,year; for i in 1 2 3 4 5 6 7 8 9 10 "
                     "11; do echo $i,t$i,g$((i %% 2))\\|h$((i %% 3)),$((1990 + i)); done) "
                     ">items.csv && (echo user,item,time,rating; for u in a b c d e f g h i; do "
                     "for i in 1 2 3 4 5 6 7 8 9; do echo $u,$i,$i,$((i %% 5 + 1)); done; done) "
                     ">log.csv",
                     test_folder()),
        0);
    text = said(0, "prep csv --input log.csv --items items.csv --item-features "
                   "genres:list:pipe,year:number --out own");
    CHECK_CONTAINS(text, "genres");
    free(text);
    free(said(0, TRAIN "whole --epochs 3"));
    free(said(0, TRAIN "parts --epochs 1"));
    free(said(0, "train --resume --out parts --epochs 3 --device cpu"));
    free(said(0, TRAIN "ranks --epochs 3 --ranks 2 --batch-per step"));
    CHECK(same_file(run_path("whole"), run_path("parts"), "model.safetensors"));
    CHECK(same_file(run_path("whole"), run_path("parts"), "optimizer.safetensors"));
    CHECK(same_file(run_path("whole"), run_path("ranks"), "model.safetensors"));
    text = said(0, "recommend whole --user a -k 11 --json");
    CHECK_CONTAINS(text, "\"item\":10,");
    CHECK_CONTAINS(text, "\"item\":11,");
    free(text);
    free(said(0, "eval whole"));
    free(said(0, "build whole --out engine"));
    text =
        said(0, "train m.gin --data own --device cpu --set train_fn.item_features=True --out next "
                "--epochs 1 --init-from whole");
    CHECK_CONTAINS(text, "'values of item features': ");
    CHECK_CONTAINS(text, " 0 new, 0 dropped");
    free(text);
    text = said(2, "train m.gin --data own --device cpu --out plain --epochs 1 --set "
                   "train_fn.item_id_dropout=1.5");
    CHECK_CONTAINS(text, "item_id_dropout");
    free(text);
}

/* Regularizers in a run: the same bits with ranks, and resumed, whatever is shown in between; what
 * is evaluated, and started from, are the averages. */
TEST(train_regularizes) {
#undef TRAIN
#define TRAIN                                                                                      \
    "train m.gin --data data --device cpu --set train_fn.stochastic_depth=0.3 --set "              \
    "train_fn.item_dropout=0.2 --set train_fn.weight_average=0.9 --set "                           \
    "train_fn.no_weight_decay=vectors+tables --out "
    char *text;
    free(said(0, TRAIN "whole --epochs 3"));
    free(said(0, TRAIN "parts --epochs 1"));
    free(said(0, "train --resume --out parts --epochs 3 --device cpu"));
    free(said(0, TRAIN "ranks --epochs 3 --ranks 2 --batch-per step"));
    CHECK(same_file(run_path("whole"), run_path("parts"), "model.safetensors"));
    CHECK(same_file(run_path("whole"), run_path("parts"), "optimizer.safetensors"));
    CHECK(same_file(run_path("whole"), run_path("ranks"), "model.safetensors"));
    CHECK(same_file(run_path("whole"), run_path("ranks"), "optimizer.safetensors"));
    text = said(0, "info whole/last/optimizer.safetensors");
    CHECK_CONTAINS(text, ".trained");
    free(text);
    /* Without averages training goes on from the weights, not from their average. */
    free(said(0, TRAIN "plain --epochs 3 --set train_fn.weight_average=0"));
    CHECK(!same_file(run_path("whole"), run_path("plain"), "model.safetensors"));
    free(said(0, TRAIN "next --epochs 1 --init-from whole"));
    text = said(2, TRAIN "x --epochs 1 --set train_fn.no_weight_decay=norms");
    CHECK_CONTAINS(text, "vectors+tables");
    free(text);
}

/* Without a config the data choose one, and a config that leaves out what a user brought is told;
 * the run keeps the config that was chosen. */
TEST(train_chooses_a_config) {
    char *text;
    CHECK_EQ(
        test_command(NULL,
                     "ln -s $PWD/configs %s/configs && cd %s && printf 'id,plan\\na,gold\\n' "
                     ">users.csv && (echo user,item,time,rating; for u in a b c d e f g h; do "
                     "for i in 1 2 3 4 5 6 7 8 9; do echo $u,$i,$i,$((i %% 5 + 1)); done; done) "
                     ">log.csv",
                     test_folder(), test_folder()),
        0);
    free(said(0, "prep csv --input log.csv --users users.csv --out own"));
    text = said(0, "train --data own --out run --epochs 1 --device cpu --set "
                   "train_fn.item_embedding_dim=16");
    CHECK_CONTAINS(text, "config: configs/own/small.gin, for 72 events of 9 items on the CPU, "
                         "with user features plan; actions (stars)\n");
    CHECK(strstr(text, "does not read") == NULL);
    free(text);
    free(said(0, "train --resume --out run --epochs 2 --device cpu"));
    text = said(0, "train --data own --out rank --max-iters 1 --device cpu --task ranking");
    CHECK_CONTAINS(text, "config: configs/own/ranking.gin, for 72 events of 9 items and --task "
                         "ranking, with user features plan; actions (stars)\n");
    CHECK_CONTAINS(text, "auc");
    free(text);
    text = said(0, "train m.gin --data own --out meta --max-iters 1");
    CHECK_CONTAINS(text, "note: m.gin does not read the data's user features plan; actions "
                         "(stars); train_fn.user_features, .item_features and");
    free(text);
    text = said(0, "train m.gin --data own --out meta2 --max-iters 1 --set "
                   "train_fn.user_features=True --set train_fn.action_input=True");
    CHECK(strstr(text, "does not read") == NULL);
    free(text);
    text = said(0, "train m.gin --data data --out synth --max-iters 1");
    CHECK(strstr(text, "does not read") == NULL); /* nobody brought what hstu synth makes */
    free(text);
}

/* A program that came alone has the configs of configs/own in it; ids without titles are shown
 * whole. */
TEST(train_of_a_lone_program) {
    char *text = shell(
        0, "mkdir lone && cp -L hstu lone/h && cd lone && (echo user,item,time; for u in a b c d "
           "e; do for i in 1 2 3 4 5 6; do echo \"$u,B\303\274rostuhl, 4 Rollen, Nr $i,$i\"; done; "
           "done) | sed 's/,\\(B.*\\),/,\"\\1\",/' >log.csv && ./h prep csv --input log.csv --out "
           "d && "
           "HSTU_LOG=info ./h train --data d --out r --epochs 1 --device cpu && "
           "./h recommend r --data d --user a --keep-seen -k 3");
    CHECK_CONTAINS(text, "config: configs/own/small.gin (in the program), for 30 events");
    CHECK_CONTAINS(text, "      6  B\303\274rostuhl, 4 Rollen, Nr 6     ");
    free(text);
    text = shell(1, "cd lone && ./h sweep --data d --out s --set-range "
                    "train_fn.learning_rate=1e-3,1e-2");
    CHECK_CONTAINS(text, "configs/own/small.gin: there is no such file");
    free(text);
}

/* All events are trained on, one more a user than by leave-one-out, and as long as the best of
 * another run; there is nothing to evaluate on but later events. */
TEST(train_on_everything) {
    char *text;
    free(said(0, "train m.gin --data data --out v --epochs 4 --validate"));
    text = said(0, "train m.gin --data data --out all --split none --epochs-of v");
    CHECK_CONTAINS(text, "  Split     none: trained on all events, none is held out\n");
    CHECK_CONTAINS(text, "as long as v up to its best evaluation: ");
    CHECK(strstr(text, "another config") == NULL); /* the length and the seed may differ */
    CHECK_CONTAINS(text, "Next      hstu serve all --data data\n");
    CHECK(strstr(text, "hr@10") == NULL);
    free(text);
    CHECK_EQ(test_command(&text,
                          "cd %s && grep -c step v/log.jsonl && grep -o 'best_step\":[0-9]*' "
                          "v/log.jsonl | tail -1 | cut -d: -f2 > a && tail -1 all/log.jsonl | "
                          "grep -o 'step\":[0-9]*' | cut -d: -f2 | cmp - a",
                          test_folder()),
             0);
    free(text);
    text = said(0, "train m.gin --data data --out b --epochs-of v --seed 7 --set "
                   "train_fn.learning_rate=0.5 --set train_fn.local_batch_size=4");
    CHECK_CONTAINS(text, "--epochs-of: v has another config, whose length may not fit: ");
    CHECK_CONTAINS(text, "train_fn.local_batch_size is 8 there and 4 here");
    CHECK_EQ(count_parts(text, "--epochs-of: v"), 2);
    free(text);
    text = said(2, "eval all");
    CHECK_CONTAINS(text, "trained on all events (--split none): evaluate it on later ones");
    free(text);
    free(said(2, "eval all --split leave-one-out"));
    free(said(0, "recommend all --user 1 -k 1"));
    free(said(0, "train --resume --out all --epochs 6"));
    free(said(0, "info all"));
    text = said(2, "train m.gin --data data --out x --split none --validate");
    CHECK_CONTAINS(text, "leave --validate out");
    free(text);
    text = said(2, "train m.gin --data data --out x --epochs 2 --epochs-of v");
    CHECK_CONTAINS(text, "leave --epochs and --max-iters out");
    free(text);
    free(said(0, "train n.gin --data data --out ranks --split none --max-iters 3"));
}

/* Commands without --data take that of the run, from any folder, until it is gone. */
TEST(a_run_remembers_its_data) {
    free(said(0, "train m.gin --data data --out r --epochs 1"));
    char *given = said(0, "eval r --data data --json --metrics HR@10"), *text;
    text = said(0, "eval r/last --json --metrics HR@10");
    CHECK_CONTAINS(text, "/data/data.seq, those of the run\n");
    const char *found = strstr(given, "\"hr@10\":");
    CHECK(found != NULL);
    char value[24];
    snprintf(value, sizeof value, "%.20s", found);
    CHECK_CONTAINS(text, value);
    free(text);
    free(given);
    free(said(0, "recommend r --user 1 -k 1"));
    free(said(0, "score r --user 1 --candidates 1"));
    text = said(0, "train --resume --out r --epochs 2");
    CHECK_CONTAINS(text, "those of the run\n");
    free(text);
    /* Other data in the same place: said, since figures of then and now differ. */
    free(said(0, "synth --out data --users 40 --items 60 --mean-len 10 --seed 77"));
    static const char *const commands[][2] = {
        {"eval r", "eval r --data data"},
        {"recommend r --user 1 -k 1", "recommend r --user 1 -k 1 --data data"},
        {"score r --user 1 --candidates 1", "score r --user 1 --candidates 1 --data data"}};
    for (int i = 0; i < 3; i++) {
        text = said(0, commands[i][0]);
        CHECK_CONTAINS(text, "data.seq has changed since the run was trained on it");
        free(text);
        text = said(0, commands[i][1]);
        CHECK(strstr(text, "has changed") == NULL);
        free(text);
    }
    CHECK(rename(run_path("data"), run_path("gone")) == 0);
    text = said(2, "eval r");
    CHECK_CONTAINS(text, "/data/data.seq, which is not there");
    free(text);
}

/* Slots come in buckets of 64: the printed number is the real one, here and with other data. */
TEST(train_takes_folders_from_the_config) {
    char *text =
        said(0, "train --gin-config-file n.gin --max-iters 2"
                " --set DatasetArgs.dataset_path=data --set TrainerArgs.ckpt_save_dir=there"
                " --set TrainerArgs.log_interval=7");
    CHECK_CONTAINS(text, "n.gin: read, but of no effect here: TrainerArgs.log_interval");
    CHECK(strstr(text, "ckpt_save_dir") == NULL);
    CHECK_CONTAINS(text, "hstu eval there --data data");
    free(text);
    text = said(0, "eval there --data data");
    CHECK(strstr(text, "of no effect") == NULL);
    free(text);
    text = said(0, "train --gin-config-file n.gin --max-iters 2 --data data");
    CHECK_CONTAINS(text, "./checkpoints/report.html"); /* as in NVIDIA's code */
    free(text);
}

TEST(train_says_what_a_dynamic_table_is) {
    char *text = said(0, "train --gin-config-file n.gin --data data --out r --epochs 1 "
                         "--set \"t/DynamicEmbeddingArgs.feature_names=['item']\" "
                         "--set \"t/DynamicEmbeddingArgs.table_name='t'\" "
                         "--set t/DynamicEmbeddingArgs.item_vocab_size_or_capacity=2 "
                         "--set t/DynamicEmbeddingArgs.item_vocab_gpu_capacity=1 "
                         "--set 'BenchmarkDatasetArgs.embedding_args="
                         "[@t/DynamicEmbeddingArgs()]'");
    CHECK_CONTAINS(text, "64 slots on the device and 64 below for the 60 ids of the data (the "
                         "config allows 2)");
    free(text);
    /* A table that no list names is not made; whoever forgot the list hears of it. */
    text = said(0, "train --gin-config-file n.gin --data data --out listless --epochs 1 "
                   "--set \"t/DynamicEmbeddingArgs.feature_names=['item']\"");
    CHECK_CONTAINS(text, "t/DynamicEmbeddingArgs has no effect, for no list names it");
    CHECK_CONTAINS(text, "embedding_args = [@t/DynamicEmbeddingArgs()]");
    free(text);
    text = said(0, "info r");
    CHECK_CONTAINS(text, "finished: 4 steps, 1 epoch, ");
    free(text);
    text = said(2, "info r/last");
    CHECK_CONTAINS(text, "r/last: a checkpoint; name its run");
    free(text);
    free(said(0, "info r/last/table-0-t"));
    /* The shapes of a dynamic table say nothing about the data. */
    text = said(0, "eval r --data data");
    CHECK(strstr(text, "not the data") == NULL);
    free(text);
    free(said(0, "synth --out other --users 30 --items 80 --mean-len 9"));
    text = said(2, "eval r --data other");
    CHECK_CONTAINS(text, "its split by-user would test on users it was trained on");
    free(text);
}

TEST(train_refuses_data_without_actions_for_ranking) {
    char *text;
    CHECK_EQ(
        test_command(&text,
                     "cd %s && printf 'user,item,time\\n1,1,1\\n1,2,2\\n1,3,3\\n2,1,1\\n2,3,2\\n"
                     "2,2,5\\n' > e.csv && %s prep csv --input e.csv --out plain --user-col user "
                     "--item-col item --time-col time",
                     test_folder(), test_program()),
        0);
    free(text);
    text = said(2, "train --gin-config-file n.gin --data plain --out r");
    CHECK_CONTAINS(text, "carry no actions, and ranking learns from them");
    free(text);
}

TEST(train_then_eval) {
    free(said(0, "train --gin-config-file m.gin --data data --out run"));
    char *text = said(0, "eval run --data data --json");
    arena a;
    const json_value *v;
    double from_eval, from_log;
    arena_init(&a, 4096);
    CHECK_OK(json_parse(&a, "eval", text, strlen(text), &v));
    CHECK_OK(json_member_double(v, "hr@10", &from_eval));
    free(text);
    CHECK_EQ(test_command(&text, "tail -1 %s/run/log.jsonl", test_folder()), 0);
    CHECK_OK(json_parse(&a, "log", text, strlen(text), &v));
    CHECK_OK(json_member_double(v, "hr@10", &from_log));
    CHECK(from_eval == from_log);
    free(text);
    text = said(0, "eval run/last --data data");
    CHECK_CONTAINS(text, "\n  hr@10 ");
    free(text);
    /* Other data than it was trained on. */
    free(said(0, "synth --out other --users 30 --items 80 --mean-len 6"));
    text = said(0, "eval run --data other");
    CHECK_CONTAINS(text, "events are left out: the model does not know their items (14 items, such "
                         "as '61')");
    CHECK_CONTAINS(text, "held-out events of items that the model does not know: 11 (counted as");
    CHECK_CONTAINS(text, ": 30 users, ");
    free(text);
    arena_fini(&a);
}

/* A nightly retrain: the data has grown, the run starts from yesterday's, with its config. */
TEST(train_starts_from_another_run) {
    free(said(0, "train --gin-config-file m.gin --data data --out old --epochs 1"));
    free(said(0, "synth --out grown --users 50 --items 70 --mean-len 9"));
    char *text = said(2, "train --resume --data grown --out old");
    CHECK_CONTAINS(text, "old: the run was trained on other data than grown/data.seq");
    CHECK_CONTAINS(text, "hstu train --init-from old --data DIR --out NEW");
    free(text);
    text = said(0, "train --init-from old --data grown --out new --epochs 1");
    CHECK_CONTAINS(text, "starting from old/last, step 5, with the state of its optimizer");
    CHECK_CONTAINS(text, "table 'item': 60 rows kept, 10 new, 0 dropped");
    free(text);
    /* The same from a gin file's ckpt_load_dir. */
    free(said(0, "train --gin-config-file n.gin --data data --out rank --epochs 1"));
    text = said(0, "train --gin-config-file n.gin --data grown --out rank2 --epochs 1 "
                   "--set \"TrainerArgs.ckpt_load_dir='rank'\" --new-items mean");
    CHECK_CONTAINS(text, "table 'item': 60 rows kept, 10 new (10 from their neighbours)");
    CHECK_CONTAINS(text, "table 'action': 5 rows kept, 0 new, 0 dropped");
    free(text);
}

/* Somebody of whom only features are known: the model's list, by them. */
TEST(train_learns_what_features_alone_say) {
    free(shell(
        0, "awk 'BEGIN { print \"user,item,time\"; for (u = 1; u <= 200; u++) for (i = 0; i < 6; "
           "i++) print u \",\" 1 + u % 2 + 2 * ((7 * u + 11 * i) % 20) \",\" 1000 * u + i }' > "
           "e.csv; awk 'BEGIN { print \"user,side\"; for (u = 1; u <= 200; u++) print u \",\" (u "
           "% 2 ? \"even\" : \"odd\") }' > users.csv"));
    free(said(0, "prep csv --input e.csv --users users.csv --out sides"));
    free(said(0, "train --data sides --out side --epochs 20"));
    for (int odd = 0; odd < 2; odd++) {
        char *text = said(0, odd ? "recommend side --context side=odd -k 8 --format csv"
                                 : "recommend side --context side=even -k 8 --format csv");
        int n[2] = {0};
        for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
            int rank, item; /* user,rank,id,score,title,source */
            if (sscanf(line, ",%d,%d,", &rank, &item) != 2) continue;
            CHECK(item >= 1 && item <= 40);
            n[item % 2]++;
        }
        CHECK(n[odd] >= 7 && n[odd] + n[!odd] == 8);
        free(text);
    }
    char *text = said(2, "recommend side --context country=DE");
    CHECK_CONTAINS(text, "the model has side");
    free(text);
    text = said(0, "recommend side --context side=none");
    CHECK_CONTAINS(text, "the model does not know this value");
    CHECK_CONTAINS(text, "these are the most popular items");
    free(text);
}

/* A model of what is bought: users look at items, and buy those of the other kind. */
TEST(train_predicts_target_actions) {
    free(shell(0,
               "awk 'BEGIN { print \"user,item,time,event\"; for (u = 1; u <= 120; u++) for (i = "
               "0; i < 9; i++) print u \",\" 1 + (i % 3 == 2 ? 20 : 0) + (7 * u + 11 * i) % 20 "
               "\",\" 1000 * u + i \",\" (i % 3 == 2 ? \"buy\" : \"view\") }' > e.csv"));
    free(said(0, "prep csv --input e.csv --action-map view=0,buy=1 --out shop"));
    char *text = said(0, "train --data shop --out buys --epochs 15 --target-action buy");
    CHECK_CONTAINS(text, "the last event of each user, of the actions buy");
    CHECK_CONTAINS(text, "none, items of the history stay in the ranking");
    free(text);
    text = said(0, "eval buys");
    CHECK_CONTAINS(text, "of the actions buy\n");
    CHECK_CONTAINS(text, ": 120 users, ");
    free(text);
    text = said(2, "eval buys --target-action view");
    CHECK_CONTAINS(text, "no event of the test part has a target action");
    free(text);
    free(said(0, "eval buys --target-action all"));
    free(said(0, "train --data shop --out seen --epochs 1"));
    text = said(0, "compare seen buys");
    CHECK_CONTAINS(text, "differ in the target actions");
    CHECK_CONTAINS(text, "seen has \"all\", buys has \"buy\"");
    free(text);
    text = said(0, "recommend buys --history 3,5 -k 10 --exclude-seen all --format csv");
    int n = 0, n_bought = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        int rank, item; /* user,rank,id,score,title,source */
        if (sscanf(line, ",%d,%d,", &rank, &item) != 2) continue;
        n++;
        n_bought += item > 20;
    }
    CHECK(n == 10 && n_bought == 10);
    free(text);
    static const char *const rules[][2] = {{"", "40\n"},
                                           {"--exclude-seen buy", "37\n"},
                                           {"--exclude-seen all", "31\n"},
                                           {"--keep-seen", "40\n"}};
    for (int i = 0; i < 4; i++) {
        char words[100];
        snprintf(words, sizeof words, "recommend buys --user 7 -k 40 --format csv --out l %s",
                 rules[i][0]);
        free(said(0, words));
        text = shell(0, "grep -c '^7,' l");
        CHECK_STR(text, rules[i][1]);
        free(text);
    }
    text = said(2, "recommend buys --user 7 --exclude-seen rent");
    CHECK_CONTAINS(text, "seen items (all, none, or actions): there is no action 'rent'");
    free(text);
    text = said(2, "train --data shop --out x --target-action sell");
    CHECK_CONTAINS(text, "there is no action 'sell' below 64");
    CHECK_CONTAINS(text, "it has view=0,buy=1");
    free(text);
    text = said(2, "train configs/own/ranking.gin --data shop --out x --target-action buy");
    CHECK_CONTAINS(text, "they are for retrieval");
    free(text);
}

/* New items with features are recommended by them at once, without training: to users of even items
 * the even one first, to users of odd ones the odd one. */
TEST(train_takes_weights_over_to_new_items) {
    free(shell(
        0, "awk 'BEGIN { print \"user,item,time\"; for (u = 1; u <= 120; u++) for (i = 0; i < 12; "
           "i++) print u \",\" 1 + u % 2 + 2 * ((7 * u + 11 * i + i * i) % 20) \",\" 1000 * u + i "
           "}' > e.csv; awk 'BEGIN { print \"item,kind,price\"; for (i = 1; i <= 40; i++) print i "
           "\",\" (i % 2 ? \"odd\" : \"even\") \",\" i }' > old.csv; (cat old.csv; echo "
           "101,even,20.5; echo 102,odd,20.5; echo 103,,) > new.csv; printf '101\\n102\\n' > two"));
    free(said(0, "prep csv --input e.csv --items old.csv --out told"));
    free(said(0, "prep csv --input e.csv --items new.csv --out tnew"));
    free(said(0, "train --data told --out first --epochs 30"));
    char *text = said(0, "train --data tnew --out second --init-from first --epochs 0");
    CHECK_CONTAINS(text, "table 'item': 40 rows kept, 3 new, 0 dropped");
    CHECK_CONTAINS(text, "table 'values of item features': 18 rows kept, 0 new");
    CHECK_CONTAINS(text, "Done: 0 steps");
    free(text);
    text = said(0, "recommend second --user 3 --allow two --json"); /* even items */
    CHECK(strstr(text, "101") != NULL && strstr(text, "101") < strstr(text, "102"));
    free(text);
    text = said(0, "recommend second --user 4 --allow two --json");
    CHECK(strstr(text, "102") != NULL && strstr(text, "102") < strstr(text, "101"));
    free(text);
    free(said(0, "prep csv --input e.csv --out bare"));
    text = said(2, "train --data tnew --out third --epochs 0");
    CHECK_CONTAINS(text, "give --init-from RUN");
    free(text);
}

/* The program is asked to stop, stops, and continues to the same end. */
TEST(train_sigterm_saves_and_resumes) {
    char *text = said(0, "train --gin-config-file m.gin --data data --out whole --epochs 15");
    free(text);
    int code = test_command(&text,
                            "export ASAN_OPTIONS=detect_leaks=0; cd %s && (%s train "
                            "--device cpu --gin-config-file m.gin --data data --out parts "
                            "--epochs 15 --json > parts.out 2> parts.err & pid=$!; "
                            "until [ \"$(cat parts.out 2>/dev/null | grep -c tokens_per_s)\" -ge 2 "
                            "]; do sleep 0.02; done; "
                            "kill -TERM $pid; wait $pid)",
                            test_folder(), test_program());
    free(text);
    if (code != 1 && code != 0) FAIL_TEST("code %d", code); /* 0: done before the signal came */
    if (code == 1) {
        CHECK_EQ(test_command(&text, "cat %s/parts.err", test_folder()), 0);
        CHECK_CONTAINS(text, "and saved; continue with --resume");
        free(text);
    }
    free(said(0, "train --resume --data data --out parts"));
    CHECK(same_file(run_path("whole"), run_path("parts"), "model.safetensors"));
    CHECK(same_file(run_path("whole"), run_path("parts"), "optimizer.safetensors"));
}

/* kill -9 at any moment; the run is resumed until it is done, and equals one that was not.
 * --foreground: else timeout kills itself too, and the next training may find the lock of the last.
 */
TEST(train_killed_again_and_again_equals_uninterrupted) {
    free(said(0, "train --gin-config-file m.gin --data data --out whole --epochs 15"));
    char *text;
    int code = test_command(
        &text,
        "export ASAN_OPTIONS=detect_leaks=0; cd %s && %s train --device cpu --gin-config-file "
        "m.gin --data data --out parts --max-iters 1 "
        ">/dev/null "
        "&& for t in 0.05 0.08 0.11 0.14 0.17 0.2; do (timeout --foreground -s KILL $t %s train "
        "--device cpu "
        "--gin-config-file "
        "m.gin --resume --data data --out parts --epochs 15; true) >/dev/null 2>&1; done; %s train "
        "--device cpu --gin-config-file m.gin --resume --data data --out parts --epochs 15",
        test_folder(), test_program(), test_program(), test_program());
    if (code != 0) FAIL_TEST("code %d: %s", code, text);
    free(text);
    CHECK(same_file(run_path("whole"), run_path("parts"), "model.safetensors"));
    CHECK(same_file(run_path("whole"), run_path("parts"), "optimizer.safetensors"));
}

/* As if the run had been killed before its newest checkpoint: the one before is the last. */
static void take_newest_away(const char *run) {
    CHECK_EQ(test_command(NULL,
                          "cd %s && rm -r \"$(readlink last)\" && ln -sfn checkpoints/$(ls "
                          "checkpoints) last",
                          run_path(run)),
             0);
}

/* A length given on the command line belongs to the run, even if the config has no option for
 * it. */
TEST(train_resumes_to_the_end_it_was_given) {
    static const char *const lengths[] = {
        "train --gin-config-file n.gin --data data --out %s --epochs 3",
        ("train --gin-config-file n.gin --data data --out %s --epochs 3 "
         "--set TrainerArgs.max_train_iters=5"),
        "train --gin-config-file m.gin --data data --out %s --max-iters 11"};
    for (int i = 0; i < 3; i++) {
        char args[256], run[32], whole[32];
        snprintf(run, sizeof run, "run%d", i);
        snprintf(whole, sizeof whole, "whole%d", i);
        snprintf(args, sizeof args, lengths[i], run);
        free(said(0, args));
        CHECK_EQ(test_command(NULL, "cd %s && cp -a %s %s", test_folder(), run, whole), 0);
        take_newest_away(run);
        snprintf(args, sizeof args, "train --resume --data data --out %s", run);
        free(said(0, args));
        CHECK(same_file(run_path(whole), run_path(run), "model.safetensors"));
    }
}

TEST(train_killed_before_its_first_checkpoint_begins_again) {
    free(said(0, "train --gin-config-file m.gin --data data --out run --epochs 2"));
    CHECK_EQ(test_command(NULL, "cd %s && cp -a run whole && rm -r run/checkpoints run/last",
                          test_folder()),
             0);
    char *text = said(1, "eval run --data data");
    CHECK_CONTAINS(text, "no checkpoint yet");
    free(text);
    /* Its config is sealed: a changed digit would train another model. */
    CHECK_EQ(test_command(NULL, "cd %s/run && cp config.json c && sed -i s/0/1/ config.json",
                          test_folder()),
             0);
    text = said(1, "train --resume --data data --out run");
    CHECK_CONTAINS(text, "config.json: it was changed or is damaged");
    free(text);
    CHECK_EQ(test_command(NULL, "cd %s/run && mv c config.json", test_folder()), 0);
    text = said(0, "train --resume --data data --out run");
    CHECK_CONTAINS(text, "starting over");
    free(text);
    CHECK(same_file(run_path("whole"), run_path("run"), "model.safetensors"));
    CHECK_EQ(test_command(&text, "grep -c '\"event\":\"epoch\"' %s/run/log.jsonl", test_folder()),
             0);
    CHECK_STR(text, "2\n");
    free(text);
    CHECK_EQ(test_command(&text, "grep -c baselines %s/run/log.jsonl", test_folder()), 0);
    CHECK_STR(text, "1\n"); /* once, not of both beginnings */
    free(text);
    /* Killed between the first checkpoint and the link to it. */
    CHECK_EQ(test_command(NULL, "rm %s/run/last", test_folder()), 0);
    free(said(0, "eval run --data data"));
    free(said(0, "train --resume --data data --out run --epochs 3"));
    CHECK_OK(checkpoint_verify(run_path("run/last")));
    /* A resume that has nothing to save removes what killed processes left, too. */
    CHECK_EQ(test_command(NULL,
                          "cd %s/run && mkdir checkpoints/.step-00000009.99.tmp && ln -s x "
                          ".last.tmp && ln -s x .best.tmp",
                          test_folder()),
             0);
    free(said(0, "train --resume --data data --out run --epochs 3"));
    CHECK_EQ(test_command(&text, "find %s/run -name '.*'", test_folder()), 0);
    CHECK_STR(text, "");
    free(text);
}

TEST(train_full_disk_says_so_and_keeps_the_last) {
    free(said(0, "train --gin-config-file m.gin --data data --out run --epochs 1"));
    char *text;
    int code = test_command(&text,
                            "export ASAN_OPTIONS=detect_leaks=0; cd %s && (ulimit -f 4; "
                            "exec %s train --device cpu --resume "
                            "--gin-config-file m.gin --data data --out run --epochs 3)",
                            test_folder(), test_program());
    CHECK_EQ(code, 1);
    CHECK_CONTAINS(text, "cannot be written");
    free(text);
    CHECK_OK(checkpoint_verify(run_path("run/last")));
    free(said(0, "train --resume --gin-config-file m.gin --data data --out run --epochs 3"));
}

/* An option that does nothing says so. */
TEST(train_says_where_the_wire_has_no_effect) {
    static const char command[] =
        "'%s' train --gin-config-file configs/demo.gin --data '%s' --out '%s/run' --max-iters 1 "
        "--device cpu --wire %s";
    char *text;
    CHECK_EQ(test_command(&text, command, test_program(), synth_folder(), test_folder(), "int4"),
             2);
    CHECK_CONTAINS(text, "--wire int4: must be float32 or bfloat16");
    free(text);
    CHECK_EQ(
        test_command(&text, command, test_program(), synth_folder(), test_folder(), "bfloat16"), 0);
    CHECK_CONTAINS(text, "--wire bfloat16 has no effect");
    free(text);
}

/* The last "batch" of a run's log. */
static int batch_of(const char *run) {
    char *text;
    CHECK_EQ(test_command(&text, "grep -o '\"batch\":[0-9]*' %s/%s/log.jsonl | tail -n 1",
                          test_folder(), run),
             0);
    int n = atoi(text + strlen("\"batch\":"));
    free(text);
    return n;
}

/* The weights depend on the users of a step, whether one rank has them or several. */
TEST(train_batch_is_that_of_a_rank) {
    static const char *const sizes[] = {"TrainerArgs.train_batch_size",
                                        "train_fn.local_batch_size"};
    static const char *const files[] = {"n.gin", "m.gin"};
    for (int i = 0; i < 2; i++) {
        char args[512], ranks[16], one[16];
        snprintf(ranks, sizeof ranks, "ranks%d", i);
        snprintf(one, sizeof one, "one%d", i);
        snprintf(args, sizeof args,
                 "train --gin-config-file %s --data data --out %s --max-iters 3 --ranks 2 --set "
                 "%s=3",
                 files[i], ranks, sizes[i]);
        char *text = said(0, args);
        CHECK_CONTAINS(text, "batch: 6 users per step, 2 ranks x 3");
        CHECK_CONTAINS(text, "3 steps of 6 users");
        free(text);
        snprintf(args, sizeof args,
                 "train --gin-config-file %s --data data --out %s --max-iters 3 --set %s=6",
                 files[i], one, sizes[i]);
        free(said(0, args));
        CHECK(same_file(run_path(ranks), run_path(one), "optimizer.safetensors"));
    }
    CHECK_EQ(batch_of("ranks0"), 6);
    char *text = said(0, "train --gin-config-file n.gin --data data --out step --max-iters 3 "
                         "--ranks 2 --batch-per step --set TrainerArgs.train_batch_size=6");
    CHECK_CONTAINS(text, "batch: 6 users per step, divided among the ranks");
    free(text);
    CHECK(same_file(run_path("step"), run_path("one0"), "optimizer.safetensors"));
    text = said(2, "train --gin-config-file n.gin --data data --out big --max-iters 3 --ranks 2 "
                   "--set TrainerArgs.train_batch_size=1048576");
    CHECK_CONTAINS(text, "--batch-per step");
    free(text);
}

/* A resumed run keeps the users of its steps, on any number of ranks. */
TEST(train_resumes_with_the_batch_of_the_run) {
    static const char *const resumes[] = {"--resume", "--resume --gin-config-file n.gin",
                                          "--resume --gin-config-file n.gin --ranks 3"};
    free(said(0, "train --gin-config-file n.gin --data data --out whole --max-iters 4 --ranks 2"));
    int wanted = batch_of("whole");
    for (int i = 0; i < 3; i++) {
        char args[256], run[16];
        snprintf(run, sizeof run, "part%d", i);
        snprintf(args, sizeof args,
                 "train --gin-config-file n.gin --data data --out %s --max-iters 2 --ranks 2", run);
        free(said(0, args));
        snprintf(args, sizeof args, "train %s --data data --out %s --max-iters 4", resumes[i], run);
        char *text = said(0, args);
        CHECK_CONTAINS(text, "2 ranks x");
        free(text);
        CHECK_EQ(batch_of(run), wanted);
        CHECK(same_file(run_path("whole"), run_path(run), "optimizer.safetensors"));
    }
    char *text = said(2, "train --resume --data data --out whole --max-iters 6 --batch-per rank");
    CHECK_CONTAINS(text, "keeps them; leave the option out");
    free(text);
}

TEST(train_tf32_is_a_precision) {
    char *text = said(0, "train --gin-config-file n.gin --data data --out run --max-iters 1 --set "
                         "NetworkArgs.dtype_str=\\'tf32\\'");
    CHECK(strstr(text, "the CPU computes in float32") == NULL); /* nothing is lost there */
    free(text);
    CHECK_EQ(test_command(&text, "grep -o '\"dtype_str\": *\"[a-z0-9]*\"' %s/run/config.json",
                          test_folder()),
             0);
    CHECK_CONTAINS(text, "tf32");
    free(text);
    free(said(0, "train --resume --data data --out run --max-iters 2"));
    free(said(0, "eval run --data data"));
    text = said(2, "train --gin-config-file n.gin --data data --out no --set "
                   "NetworkArgs.dtype_str=\\'tf33\\'");
    CHECK_CONTAINS(text, "tf32");
    free(text);
}
