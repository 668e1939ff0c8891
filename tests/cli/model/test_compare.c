/* hstu compare and hstu info RUN, from outside. */
#include "run_test.h"

TEST(compare_two_runs) {
    free(said(0, "train --gin-config-file m.gin --data data --out one --epochs 2"));
    free(said(0, "train --gin-config-file m.gin --data data --out two --epochs 3 "
                 "--set train_fn.learning_rate=0.01"));
    char *text = said(0, "compare one two --out c.html");
    CHECK_CONTAINS(text, "one                two\n");
    CHECK_CONTAINS(text,
                   "steps                                              10                 15\n");
    CHECK_CONTAINS(text,
                   "train_fn.learning_rate                          0.003               0.01\n");
    CHECK_CONTAINS(text, "\n  hr@10_mean10 ");
    CHECK(strstr(text, "@100 ") == NULL && strstr(text, "@500 ") == NULL);
    CHECK_CONTAINS(text, "\n  ndcg@10 ");
    CHECK_CONTAINS(text, "\n  difference from the first run ");
    CHECK_CONTAINS(text, "\n    95 % over users                                   - [");
    CHECK_EQ(count_parts(text, "\n  novelty@10 "), 2); /* the figures, and their difference */
    CHECK_EQ(count_parts(text, "\n  diversity@10 "), 2);
    CHECK_EQ(count_parts(text, "\n  coverage@10 "), 1);
    CHECK_EQ(count_parts(text, "train_fn.learning_rate"), 1);
    CHECK(strstr(text, "train_fn.item_embedding_dim") == NULL); /* the same in both */
    CHECK(strstr(text, "cannot be compared") == NULL);
    free(text);
    size_t n;
    CHECK_OK(file_read_all(run_path("c.html"), 1 << 22, &text, &n));
    CHECK_CONTAINS(text, "<figcaption>ndcg@10<br><span class=key><span class=c0>");
    CHECK_EQ(count_parts(text, "<figure>"),
             8);                              /* the loss and seven metrics of at most 60 items, */
    CHECK_EQ(count_parts(text, "<path"), 16); /* each with a curve of each run */
    CHECK(strstr(text, "nan") == NULL && strstr(text, "http") == NULL);
    mem_free(text);
    text = said(0, "compare one two --json");
    CHECK_EQ(count_parts(text, "\n"), 2);
    CHECK_EQ(count_parts(text, "\"differences\":{"), 1);
    CHECK_CONTAINS(text, "{\"run\":\"one\",\"status\":\"finished\",\"step\":10,");
    free(text);
    text = said(2, "compare one data");
    CHECK_CONTAINS(text, "data: not a run");
    free(text);
}

/* A run with itself differs by nothing; one that was trained is better than one that was not, and
 * the other way round worse; a damaged file is named. */
TEST(compare_says_better_only_where_it_holds) {
    free(
        said(0, "train m.gin --data data --out none --epochs 1 --set train_fn.learning_rate=1e-9"));
    free(said(0, "train m.gin --data data --out some --epochs 40 "
                 "--set train_fn.learning_rate=0.03"));
    char *text = said(0, "compare some some none");
    CHECK_CONTAINS(text, " +0.0000 unclear ");
    CHECK_CONTAINS(text, " worse\n");
    CHECK(strstr(text, "better") == NULL);
    const char *novelty = strstr(strstr(text, "difference from"), "novelty@10");
    CHECK(novelty != NULL);
    size_t n_line = strcspn(novelty, "\n"); /* neither is better */
    CHECK(strncmp(novelty + n_line - 6, "higher", 6) == 0 ||
          strncmp(novelty + n_line - 6, " lower", 6) == 0);
    free(text);
    text = said(0, "compare some none --json");
    CHECK_CONTAINS(text, "\"differences\":{\"hr@10\":{\"difference\":-");
    CHECK_CONTAINS(text, "\"verdict\":\"worse\"},\"ndcg@10\":{");
    free(text);
    text = said(0, "compare none some");
    CHECK_CONTAINS(text, " better\n");
    free(text);
    CHECK_OK(file_write(run_path("some/intervals.json"), "{}", 2));
    text = said(1, "compare none some");
    CHECK_CONTAINS(text, "some/intervals.json");
    free(text);
}

TEST(compare_says_what_cannot_be_compared) {
    free(said(0, "train --gin-config-file m.gin --data data --out one --epochs 1"));
    free(said(0, "train --gin-config-file m.gin --data data --out two --epochs 1 --validate"));
    char *text = said(0, "compare one two");
    CHECK_CONTAINS(
        text, "The runs differ in the split, so their metrics are different quantities and "
              "cannot be compared: one has \"leave-one-out\", two has \"leave-two-out\"; train "
              "both with the same --split");
    CHECK(strstr(text, "difference from") == NULL);
    CHECK(strstr(text, "_mean10 ") != NULL);
    CHECK_CONTAINS(text,
                   "steps                                               5                  5\n");
    free(text);
}

/* A window that holds every history is the same protocol as none; a shorter one is not. */
TEST(compare_lists_with_a_run_of_a_long_window) {
    free(said(0, "train m.gin --data data --out run --epochs 1 "
                 "--set train_fn.max_sequence_length=100"));
    free(said(0, "recommend run --all-users -k 20 --json --out l.jsonl"));
    free(said(0, "eval --recommendations l.jsonl --data data --out all"));
    free(said(0, "eval --recommendations l.jsonl --data data --out two --window 2"));
    char *text = said(0, "compare run all");
    CHECK_CONTAINS(text, "difference from the first run");
    CHECK(strstr(text, "cannot be compared") == NULL);
    free(text);
    text = said(0, "compare run two");
    CHECK_CONTAINS(text, "The runs differ in the items left out of the ranking");
    CHECK_CONTAINS(text, "run has \"items of all events before the target\", two has \"items of "
                         "the last 2 events before the target\"; ");
    CHECK_CONTAINS(text, "'hstu eval --recommendations FILE --window N'");
    free(text);
    text = said(0, "compare run two --out p.html");
    free(text);
    CHECK_EQ(test_command(&text, "cat %s/p.html", test_folder()), 0);
    CHECK_CONTAINS(text, "items of the last 2 events");
    free(text);
}

TEST(compare_info_of_a_run) {
    free(said(0, "train --gin-config-file m.gin --data data --out run --epochs 3 --validate "
                 "--keep 5"));
    char *text = said(0, "info run");
    CHECK_CONTAINS(text, "  Split       leave-two-out\n");
    CHECK_CONTAINS(text, "  Progress    finished: 15 steps, 3 epochs, ");
    CHECK_CONTAINS(text, "  Best        step ");
    CHECK_CONTAINS(text, "Metrics on the test part, with the best weights");
    CHECK_CONTAINS(text, "\n  step 15 ");
    CHECK_CONTAINS(text, "  last");
    free(text);
    text = said(0, "info run --json");
    arena a;
    const json_value *v;
    arena_init(&a, 4096);
    CHECK_OK(json_parse(&a, "info", text, strlen(text), &v));
    CHECK_EQ(json_member(v, "checkpoints")->n_children, 3);
    CHECK(json_member(json_member(v, "config"), "train_fn") != NULL);
    CHECK(json_member(json_member(v, "metrics"), "ndcg@10") != NULL);
    arena_fini(&a);
    free(text);
    text = said(2, "info run/last");
    CHECK_CONTAINS(text, "run/last: a checkpoint; name its run");
    free(text);
}

/* A resumed run with other options: what is true now, and what was true until when. */
TEST(compare_info_of_a_run_that_was_changed) {
    free(said(0, "train --gin-config-file m.gin --data data --out run --epochs 2"));
    char *text = said(0, "train --resume --gin-config-file m.gin --data data --out run --epochs 3 "
                         "--set train_fn.learning_rate=0.01");
    CHECK_CONTAINS(text, "changed: train_fn.learning_rate is 0.01 (was 0.003)");
    free(text);
    free(said(0, "train --resume --gin-config-file m.gin --data data --out run --epochs 4 "
                 "--set train_fn.learning_rate=0.02"));
    CHECK_EQ(test_command(&text, "cat %s/run/config.json", test_folder()), 0);
    CHECK_CONTAINS(text, "\"learning_rate\": 0.02");
    CHECK_EQ(count_parts(text, "\"key\": \"train_fn.learning_rate\""), 2);
    CHECK_CONTAINS(text, "\"step\": 10,\n        \"key\": \"train_fn.learning_rate\",\n        "
                         "\"from\": \"0.003\",\n        \"to\": \"0.01\"");
    CHECK_CONTAINS(text, "\"step\": 15,\n        \"key\": \"train_fn.learning_rate\",\n        "
                         "\"from\": \"0.01\",\n        \"to\": \"0.02\"");
    free(text);
    CHECK_EQ(test_command(&text, "cat %s/run/report.html", test_folder()), 0);
    CHECK_CONTAINS(text,
                   "<tr><td>10</td><td>train_fn.learning_rate</td><td>0.003</td><td>0.01</td>");
    CHECK_CONTAINS(text,
                   "<tr><td>15</td><td>train_fn.learning_rate</td><td>0.01</td><td>0.02</td>");
    free(text);
    text = said(0, "info run");
    CHECK_CONTAINS(text, "options were changed by --resume");
    free(text);
    /* Resumed as it is, nothing is recorded. */
    free(said(0, "train --resume --data data --out run"));
    CHECK_EQ(test_command(&text, "cat %s/run/config.json", test_folder()), 0);
    CHECK_EQ(count_parts(text, "\"key\": "),
             6); /* twice the rate, and twice two names of the epochs */
    free(text);
}
