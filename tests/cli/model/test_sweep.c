/* hstu sweep: ranges become trials, trials become a table; stopped and wrong sweeps. */
#include "cli/model/sweep.h"

#include "run_test.h"
#include "shipped.h"

static void says(int code, const char *command, const char *what) {
    char *text = shell(code, command);
    CHECK_CONTAINS(text, what);
    free(text);
}

static void add(sweep *s, const char *text) {
    CHECK_OK(sweep_add_range(s, text));
}

TEST(sweep_reads_ranges) {
    sweep s = {0};
    arena_init(&s.memory, 1 << 16);
    add(&s, "a.b=1, 2,[8, 5],'x,y'");
    CHECK_EQ(s.range[0].n, 4);
    CHECK_STR(s.range[0].value[1], "2");
    CHECK_STR(s.range[0].value[2], "[8, 5]");
    CHECK_STR(s.range[0].value[3], "'x,y'");
    add(&s, "c=2..8:4");
    CHECK_EQ(s.range[1].n, 4);
    CHECK_STR(s.range[1].value[2], "6");
    add(&s, "d=log:1e-4..1e-2:3");
    CHECK_STR(s.range[2].value[1], "0.001");
    CHECK(s.range[2].is_log);
    add(&s, "e=0..1:5");
    CHECK_STR(s.range[3].value[1], "0.25");
    CHECK_OK(sweep_make_trials(&s, 0, 0));
    CHECK_EQ(s.n_trials, 4 * 4 * 3 * 5);
    CHECK_EQ(s.trial[1].at[3], 1); /* the last range changes first */
    CHECK_EQ(s.trial[5].at[2], 1);
    CHECK_OK(sweep_make_trials(&s, 7, 3));
    CHECK_EQ(s.n_trials, 7);
    for (int i = 1; i < 7; i++)
        CHECK(memcmp(s.trial[i].at, s.trial[i - 1].at, sizeof s.trial[i].at) != 0);
    arena_fini(&s.memory);
}

TEST(sweep_refuses_ranges) {
    static const char *const bad[][2] = {
        {"=1", "no NAME="},          {"a", "no NAME="},           {"a=", "empty"},
        {"a=1,,2", "empty"},         {"a=1,1", "twice"},          {"a=[1,2", "open"},
        {"a=1]", "not open"},        {"a=1..0:3", "not below"},   {"a=0..1:1", "2..256"},
        {"a=0..nan:3", "not below"}, {"a=log:0..1:3", "above 0"}, {"a=log:1,2", "LO is no number"},
        {"a\n=1", "control"}};
    sweep s = {0};
    arena_init(&s.memory, 1 << 16);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_FAILS(sweep_add_range(&s, bad[i][0]), ERR_USAGE, bad[i][1]);
    add(&s, "a=1,2");
    CHECK_FAILS(sweep_add_range(&s, "a=3"), ERR_USAGE, "a range already");
    add(&s, "b=1..200:200");
    add(&s, "c=1..200:200");
    CHECK_FAILS(sweep_make_trials(&s, 0, 0), ERR_USAGE, "80000 combinations");
    arena_fini(&s.memory);
    for (int more = 0; more < 2; more++) { /* as many as can be tried, and one value more */
        arena_init(&s.memory, 4096);
        s.n_ranges = 0;
        add(&s, "a=1..100:100");
        add(&s, more ? "b=1..101:101" : "b=1..100:100");
        if (more)
            CHECK_FAILS(sweep_make_trials(&s, 0, 0), ERR_USAGE,
                        "10100 combinations, and 10000 can");
        else
            CHECK_OK(sweep_make_trials(&s, 0, 0));
        arena_fini(&s.memory);
    }
}

#define SWEEP                                                                                      \
    "./hstu sweep m.gin --data data --device cpu --epochs 1 --out s --set-range "                  \
    "train_fn.learning_rate=1e-3,1e-2 "

/* Two trials at a time; the same command again trains nothing; the table is sorted. */
TEST(sweep_trains_and_goes_on) {
    char *text = shell(0, SWEEP "--set-range hstu_encoder.num_blocks=1..2:2 --jobs 2");
    CHECK_CONTAINS(text, "trial-0003");
    double last = INFINITY;
    int n = 0;
    for (const char *at = strstr(text, "\ntrial-"); at != NULL; at = strstr(at + 1, "\ntrial-")) {
        double value = strtod(at + 12, NULL);
        CHECK(value <= last);
        last = value;
        n++;
    }
    CHECK_EQ(n, 4);
    free(text);
    text = shell(0, "cat s/sweep.csv; grep -c '<polyline' s/sweep.html; grep -c '<script' "
                    "s/sweep.html || true");
    CHECK_CONTAINS(text, "trial,ndcg@10,part,epochs,seconds,state,train_fn.learning_rate,hstu_"
                         "encoder.num_blocks\n0,");
    CHECK_CONTAINS(text, "\n4\n0\n");
    free(text);
    free(shell(
        0, "rm -r s/trial-0002 && ls -l --time-style=full-iso s/trial-0001/log.jsonl > before"));
    free(shell(0, SWEEP "--set-range hstu_encoder.num_blocks=1..2:2"));
    free(shell(0, "ls -l --time-style=full-iso s/trial-0001/log.jsonl | cmp - before && test -e "
                  "s/trial-0002/log.jsonl"));
    says(2, SWEEP, "has another sweep");
}

/* As 'hstu train' without a config. */
TEST(sweep_chooses_a_config) {
    char *text = shell(0, "HSTU_LOG=info ./hstu sweep --data data --device cpu --epochs 1 --out s "
                          "--set-range train_fn.learning_rate=1e-3,1e-2");
    CHECK_CONTAINS(text, "configs/own/small.gin, for ");
    CHECK_CONTAINS(text, "ndcg@10 is of the validation part");
    free(text);
}

TEST(sweep_refuses_what_cannot_be) {
    says(2, "./hstu sweep m.gin --data data --out s", "--set-range, --data and --out are needed");
    says(1, "./hstu sweep none.gin --data data --out s --set-range a=1", "no such file");
    says(2, "mkdir t && ./hstu sweep m.gin --data data --out t --set-range a=1,2",
         "is not a sweep");
    /* A wrong option is wrong in every trial: the first one says so, and nothing is left. */
    says(2,
         "./hstu sweep m.gin --data data --device cpu --out s --set-range "
         "'train_fn.learning_rat=1,2,3'",
         "learning_rate");
    free(shell(0, "test ! -e s"));
    /* After a training a wrong one ends the sweep, and what was trained stays. */
    says(2,
         "./hstu sweep m.gin --data data --device cpu --epochs 1 --out w --set-range "
         "train_fn.learning_rate=1e-3,none,1e-2",
         "trial-0001");
    free(shell(0, "cd w && test -e trial-0000/log.jsonl && test $(ls *.log | wc -l) = 2 && ! ls "
                  "sweep.csv 2>/dev/null"));
    says(2,
         "./hstu sweep m.gin --data data --device cpu --epochs 1 --out u --metric moods "
         "--set-range train_fn.learning_rate=1e-3",
         "--metric moods: trials have hr@1, ");
    /* Before any trial; and what only the end of a run has is not of validation. */
    says(2,
         "./hstu sweep m.gin --data data --device cpu --epochs 1 --out u --metric novelty@10 "
         "--set-range train_fn.learning_rate=1e-3",
         "mrr, and loss");
    free(shell(0, "test ! -e u"));
    free(shell(0, "./hstu sweep m.gin --data data --device cpu --epochs 1 --out u --part test "
                  "--metric novelty@10 --set-range train_fn.learning_rate=1e-3"));
}

/* What decides is the best evaluation on validation, as the log has it; the test part must be asked
 * for, and is named wherever trials are sorted by it. */
TEST(sweep_selects_on_validation) {
    free(shell(0, SWEEP "--epochs 3"));
    char *text = shell(0, "cat s/sweep.csv s/trial-0001/log.jsonl");
    const char *row = strstr(text, "\n1,"), *best = strstr(text, "\"best_validation\":");
    CHECK(row != NULL && best != NULL);
    CHECK(fabs(strtod(row + 3, NULL) - strtod(best + 18, NULL)) < 1e-8);
    CHECK_CONTAINS(row, ",validation,3,");
    free(text);
    says(0, "grep -c 'ndcg@10 is of the validation part[.]' s/sweep.html", "1");
    says(2, SWEEP "--epochs 3 --part test", "has another sweep");
    says(2,
         "./hstu sweep m.gin --data data --out x --set-range train_fn.learning_rate=1,2 --split "
         "none",
         "holds nothing out to select by");
    says(2, "./hstu sweep m.gin --data data --device cpu --out y --set-range learning_rate=1,2",
         "trial-0000: hstu train: --set learning_rate=1: 'learning_rate' has no class");
    free(shell(0, "rm -r s"));
    says(0, SWEEP "--part test --split leave-one-out",
         "ndcg@10 is of the test part: the best of many trials on it is no estimate");
    says(0, "grep -c 'is of the test part: the best of many' s/sweep.html", "1");
    says(0, "tail -1 s/trial-0001/log.jsonl; cat s/sweep.csv", ",test,1,");
}

/* 9 trials for 1 epoch, 3 for 3, 1 for 9; the same command again trains nothing. */
TEST(sweep_halving_goes_on_with_the_best) {
    const char *command = "./hstu sweep m.gin --data data --device cpu,cpu --jobs 2 --out s "
                          "--set-range train_fn.learning_rate=log:1e-4..1e-1:9 --halving ";
    char whole[512];
    says(2, command, "--halving also needs --epochs");
    snprintf(whole, sizeof whole, "rm -rf s; HSTU_LOG=info %s --epochs 9 2>&1", command);
    says(0, whole, "round 3 of 3: 1 trial, up to epoch 9");
    says(0, "cut -d, -f4 s/sweep.csv | sort | uniq -c | tr -s ' ' | tr '\\n' ';'",
         " 6 1; 2 3; 1 9; 1 epochs;");
    char *text = shell(0, "sort -t, -k2,2gr s/sweep.csv | grep ',[39],' | head -1");
    CHECK_CONTAINS(text, ",done,");
    free(text);
    free(shell(0, "ls -l --time-style=full-iso s/*/log.jsonl > before"));
    snprintf(whole, sizeof whole, "HSTU_LOG=info %s --epochs 9 2>&1", command);
    says(0, whole, "9 trials, 9 of them done");
    free(shell(0, "ls -l --time-style=full-iso s/*/log.jsonl | cmp - before"));
}

/* A trial that fails does not stop the others, and the sweep ends with code 1. */
TEST(sweep_goes_on_after_a_trial_that_fails) {
    free(shell(0, "mkdir v && printf 'hstu sweep 2\\nconfig m.gin\\ndata data\\nepochs 1\\nrandom "
                  "0\\nseed 0\\npart validation\\nsplit -\\nhalving 0\\nrange "
                  "train_fn.learning_rate=1e-3,1e-2\\n' > v/sweep.txt && touch v/trial-0000"));
    char *text =
        shell(1, "./hstu sweep m.gin --data data --device cpu --epochs 1 --out v --set-range "
                 "train_fn.learning_rate=1e-3,1e-2");
    CHECK_CONTAINS(text, "1 of 2 trials failed");
    free(text);
    free(shell(0, "grep '^0,.*,failed,' v/sweep.csv && grep '^1,.*,done,' v/sweep.csv"));
}

/* bench/ladder.sh: rungs of a file, each started from another; rows that are there are not run
 * again, and no run is started that would end too late. */
TEST(ladder_keeps_its_rows) {
    char script[4600], ladder[5000], all[12000], *text;
    snprintf(script, sizeof script, "%s", shipped_path("../bench/ladder.sh"));
    free(shell(0, "mkdir d && ln -s ../data d/mixed && ln -s ../data d/source && printf '# rungs\n"
                  "one %s/m.gin train_fn.num_epochs=2\ntwo one train_fn.num_negatives=3 "
                  "train_fn.num_epochs=1\n' \"$PWD\" > rungs.txt"));
    snprintf(ladder, sizeof ladder,
             "export HSTU=$PWD/hstu; ladder() { what=$1; shift; %s $what --ladder rungs.txt --out "
             "l.csv --data d --device cpu --seeds 1,2 \"$@\"; }; ",
             script);
#define LADDER(code, what, says_what)                                                              \
    (snprintf(all, sizeof all, "%s%s", ladder, what), says(code, all, says_what))
    LADDER(0, "ladder run --rungs two", "l.csv: 2 runs; 0 of this command are left");
    LADDER(0, "ladder run --seconds 0", "later: one, seed 2, validation, ties mixed");
    LADDER(0, "ladder run --jobs 2", "l.csv: 4 runs; 0 of this command are left");
    LADDER(0, "ladder final --rungs two --ties mixed", "l.csv: 6 runs; 0 of this");
    LADDER(0, "cut -d, -f1-5 l.csv | sort | tr '\\n' ' '",
           "rung,seed,part,ties,epochs two,1,test,mixed,1 two,1,validation,mixed,1 "
           "two,2,test,mixed,1 two,2,validation,mixed,1");
    LADDER(0, "tail -1 l.csv",
           "--set train_fn.num_epochs=2 --set train_fn.num_negatives=3 --set "
           "train_fn.num_epochs=1 --data d/mixed --seed ");
    LADDER(2, "ladder run --rungs three", "no rung three in rungs.txt");
    /* A median, a mean and its interval by hand: t is 4.303 for three seeds. */
    free(shell(0, "for s in 1 2 3; do echo one,$s,validation,mixed,$((s * s)),.$s,.2,1.0,2,1,c; "
                  "done > rows; (head -1 l.csv; cat rows) > l.csv.new; mv l.csv.new l.csv"));
    LADDER(0, "ladder table",
           "| one | validation | mixed | 3 | 5 | 0.2000 ± 0.2484 | 0.2000 ± 0.0000 | 1.0 | 1 |");
    snprintf(all, sizeof all,
             "%s%s show final --rungs one --ties mixed --ladder rungs.txt --out "
             "l.csv --data d --device cpu --seeds 9",
             ladder, script);
    text = shell(0, all);
    CHECK_CONTAINS(text, "--eval-every 100000 --epochs 4\n");
    free(text);
#undef LADDER
}
