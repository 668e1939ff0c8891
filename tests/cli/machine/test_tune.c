#include "format/json.h"
#include "test.h"
#include "tune/cost_model.h"
#include "tune/target.h"

/* Lines for 2,000 plans: fewer boundaries are faster. */
static void write_times(char *path, size_t n) {
    snprintf(path, n, "%s/times.txt", test_folder());
    FILE *f = fopen(path, "w");
    for (unsigned v = 0; v < 2000; v++) {
        char bits[PLAN_BITS + 1];
        plan_bits((uint16_t)v, bits);
        fprintf(f, "%s  %.4f\n", bits,
                1 + 0.1 * __builtin_popcount((v ^ v >> 1) & 0x3fff) + 0.01 * (v % 7));
    }
    fclose(f);
}

TEST(searches_replay_a_traversal) {
    char path[4096], *text;
    arena memory;
    const json_value *root;
    int64_t value;
    write_times(path, sizeof path);
    CHECK_EQ(test_command(
                 &text, "'%s' tune --search anneal --replay '%s' --budget 100 --out '%s/plan.json'",
                 test_program(), path, test_folder()),
             0);
    CHECK_CONTAINS(text, "anneal: plan ");
    free(text);
    CHECK_EQ(test_command(&text, "cat '%s/plan.json'", test_folder()), 0);
    CHECK(json_is_sealed(text, strlen(text)));
    CHECK_STR(text + strlen(text) - 2, "}\n");
    CHECK(json_is_sealed(text, strlen(text) - 1)); /* without a newline, as once */
    arena_init(&memory, 1 << 12);
    CHECK_OK(json_parse(&memory, "plan", text, strlen(text), &root));
    CHECK_OK(json_member_int(root, "value", &value));
    CHECK(value < 2000);
    char version[256], *run;
    if (target_compiler_version(version, sizeof version)) { /* it runs as it was kept */
        CHECK_EQ(test_command(&run,
                              "'%s' plan run '%s/plan.json' --device cpu --length 5 --heads 2 "
                              "--dim 4 --json --cache '%s/cache'",
                              test_program(), test_folder(), test_folder()),
                 0);
        snprintf(version, sizeof version, "{\"value\":%d,", (int)value);
        CHECK_CONTAINS(run, version);
        free(run);
        CHECK_EQ(test_command(&run,
                              "cd '%s' && '%s' tune --search random --replay '%s' --batch 2 "
                              "--length 5 --heads 3 --dim 4 --mask sliding,window=1 --ffn 7 --out "
                              "small.json >/dev/null && '%s' plan run small.json --device cpu "
                              "--length 6 --cache cache",
                              test_folder(), test_program(), path, test_program()),
                 0);
        CHECK_CONTAINS(run, "batch 2, length 6, 12 tokens, 3 x 4, FFN 7, mask sliding,window=1");
        free(run);
        CHECK_EQ(test_command(&run,
                              "'%s' plan run '%s/plan.json' --layer hstu --device cpu --length 5 "
                              "--heads 2 --dim 4 --cache '%s/cache'",
                              test_program(), test_folder(), test_folder()),
                 2);
        CHECK_CONTAINS(run, "pass --layer bert");
        free(run);
    }
    arena_fini(&memory);
    free(text);
}

TEST(a_report_of_all_searches) {
    char path[4096], *text;
    write_times(path, sizeof path);
    CHECK_EQ(test_command(&text,
                          "HSTU_XGBOOST=/nowhere/libxgboost.so '%s' tune search --search random "
                          "--replay '%s' --budget 128 "
                          "--report '%s/report.html'",
                          test_program(), path, test_folder()),
             0);
    CHECK_CONTAINS(text, "xgboost   left out: XGBoost is required");
    CHECK_CONTAINS(text, "optimum 1.0000 ms, plan 0\n");
    free(text);
    CHECK_EQ(test_command(&text, "cat '%s/report.html'", test_folder()), 0);
    CHECK_CONTAINS(text, "<svg");
    CHECK_CONTAINS(text, "grouped");
    CHECK_CONTAINS(text, "</html>");
    free(text);
}

TEST(fit_and_predict) {
    char path[4096], version[64], *text;
    write_times(path, sizeof path);
    if (!cost_model_version(version, sizeof version)) SKIP_TEST("no XGBoost here");
    CHECK_EQ(test_command(&text, "'%s' tune fit '%s' --out '%s/model'", test_program(), path,
                          test_folder()),
             0);
    CHECK_CONTAINS(text, "rank correlation 0.");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' tune predict '%s/model' 0000000000000000 0000010101010101",
                          test_program(), test_folder()),
             0);
    double fast, slow;
    int is_fast, is_slow;
    CHECK_EQ(sscanf(text, "%lf %d\n%lf %d\n", &fast, &is_fast, &slow, &is_slow), 4);
    CHECK(is_fast == 1 && is_slow == 0 && fast < slow);
    free(text);
}

/* Complements are one program: its time is the mean of all lines, in whatever order they come. */
TEST(equal_programs_of_a_file_have_their_mean) {
    char *text;
    CHECK_EQ(test_command(&text,
                          "cd '%s'; printf '0001101010101010 1\\n0110010101010101 1\\n"
                          "0001101010101010 7\\n' > three.txt; "
                          "'%s' tune --search random --replay three.txt",
                          test_folder(), test_program()),
             0);
    CHECK_CONTAINS(text, "plan 6826 = 0001101010101010, 3.0000 ms");
    free(text);
}

/* Before a search, which may take long: the replay is not even read. */
TEST(a_plan_that_cannot_be_kept_is_said_first) {
    char *text, path[4096];
    write_times(path, sizeof path);
    CHECK_EQ(test_command(&text, "'%s' tune --replay '%s' --out '%s'", test_program(), path, path),
             2);
    CHECK_CONTAINS(text, "times.txt is the file of --replay");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' tune --replay '%s/none.txt' --out '%s/no/plan.json'",
                          test_program(), test_folder(), test_folder()),
             1);
    CHECK_CONTAINS(text, "no/plan.json: cannot be written");
    free(text);
}

TEST(bad_input_is_a_sentence) {
    char path[4096], *text;
    write_times(path, sizeof path);
    CHECK_EQ(test_command(NULL, "sed -i '17s/.*/01 2/' '%s'", path), 0);
    CHECK_EQ(test_command(&text, "'%s' tune fit '%s' --out '%s/model'", test_program(), path,
                          test_folder()),
             1);
    CHECK_CONTAINS(text, "times.txt:17: not 16 bits and a number");
    free(text);
    CHECK_EQ(test_command(NULL, "test ! -e '%s/model'", test_folder()), 0);
    CHECK_EQ(test_command(&text, "'%s' tune --search random --replay '%s'", test_program(), path),
             1);
    CHECK_CONTAINS(text, "times.txt:17");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' tune --search genetic --replay '%s'", test_program(), path),
             2);
    CHECK_CONTAINS(text, "must be exact, xgboost, random, anneal or grouped");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' tune fit '%s'", test_program(), path), 2);
    CHECK_CONTAINS(text, "--out MODEL is missing");
    free(text);
    CHECK_EQ(test_command(&text, "HSTU_XGBOOST=/nowhere/x.so '%s' tune predict m 0000000000000000",
                          test_program()),
             1);
    CHECK_CONTAINS(text, "libxgboost.so was not found");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' tune predict m 65536", test_program()), 2);
    CHECK_CONTAINS(text, "beyond 65535");
    free(text);
}

TEST(outputs_are_files_of_their_own) {
    static const struct {
        const char *command, *says;
    } cases[] = {
        {"tune --replay t --out p --report p", "--out and --report are both p"},
        {"tune --replay t --out -", "--out -: cannot be written to stdout"},
        {"tune --replay t --report -", "--report -: cannot be written to stdout"},
        {"tune fit t --out -", "--out -: cannot be written to stdout"},
        {"plan traverse --from 1 --to 2 --out -", "--out -: cannot be written to stdout"},
    };
    char *text;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_EQ(test_command(&text, "cd '%s' && '%s' %s", test_folder(), test_program(),
                              cases[i].command),
                 2);
        CHECK_CONTAINS(text, cases[i].says);
        free(text);
    }
    CHECK_EQ(test_command(NULL, "cd '%s' && test ! -e - && test ! -e p", test_folder()), 0);
}
