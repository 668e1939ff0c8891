/* What all benches print: tables whose rows are as wide as their heads, figures that fit each other
 * and the work that was asked for; the peers' figures; how calls are timed. */
#include "cli/bench/bench.h"

#include "base/thread.h"
#include "test.h"

static char *printed(const char *options) {
    char *text;
    int code =
        test_command(&text, "HSTU_THREADS=1 %s bench %s 2>/dev/null", test_program(), options);
    if (code != 0) FAIL_TEST("bench %s: code %d: %s", options, code, text);
    return text;
}

/* The number after a key of a line of JSON; NAN if it is not there. */
static double figure(const char *line, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(line, quoted), *end = strchr(line, '\n');
    return at != NULL && at < end ? strtod(at + strlen(quoted), NULL) : NAN;
}

/* A cell that is left out, or printed twice, shifts all that follow. */
TEST(bench_rows_are_as_wide_as_their_heads) {
    static const struct {
        const char *options, *head;
        int n_rows;
    } cases[] = {{"layers --device cpu --batch 3 --length 9 --new 2 --layers 1 --heads 1 --dim 8 "
                  "--candidates 2",
                  "batch length   new       ms   replay  TFLOP/s    error  float32   % H200", 1},
                 {"layers --device cpu --batch 2 --length 3 --new 3 --layers 1 --heads 1 --dim 8 "
                  "--candidates 0",
                  "batch length   new       ms   replay  TFLOP/s    error  float32   % H200", 1},
                 {"masks --device cpu --length 128 --heads 1 --dim 4",
                  "mask                              B     n density   full   part    fwd ms", 4},
                 {"search --device cpu --items 300 --queries 2 --filter",
                  "     items queries   dim     k  filter    allowed  filter ms   alone ms", 5},
                 {"graph --device cpu --edges 1000 --op gat",
                  "op        pass        edges  largest exponent    error", 4},
                 {"embedding --device cpu --max-gib 0.001 --seconds 0.001 --batch 256 --dim 6 "
                  "--slots 8192",
                  "                                       size", 14},
                 {"encode 3 2 20 2 8 --device cpu --seconds 0.01",
                  "          ms    fastest     CPU ms     tokens/s    GFLOP/s", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = printed(cases[i].options);
        const char *line = strstr(text, cases[i].head);
        CHECK(line != NULL);
        size_t width = strcspn(line, "\n");
        int n = 0;
        for (line += width + 1; *line != '\0' && *line != '\n'; line += width + 1, n++)
            if (strcspn(line, "\n") != width)
                FAIL_TEST("bench %s: %zu characters, not %zu: %.*s", cases[i].options,
                          strcspn(line, "\n"), width, (int)strcspn(line, "\n"), line);
        CHECK_EQ(n, cases[i].n_rows);
        free(text);
    }
}

/* Speeds times times are the work, which is counted by hand here. */
TEST(bench_figures_are_of_the_work_asked_for) {
    static const struct {
        const char *options, *speed, *time;
        double work; /* 1e9 times their product */
    } cases[] = {
        /* 3 users; 4 tokens x 10 E^2, (2 x 8.5 + 2 x 10) pairs x 4 E */
        {"layers --device cpu --batch 3 --length 9 --new 2 --layers 1 --heads 1 --dim 8 "
         "--candidates 2 --json",
         "tflops", "ms", 3 * (4 * 10 * 64 + 37 * 32)},
        /* likewise, with nothing cached: 3 x 2 pairs of the history, 1 x 4 of the candidate */
        {"layers --device cpu --batch 1 --length 3 --new 3 --layers 2 --heads 2 --dim 4 "
         "--candidates 1 --json",
         "tflops", "ms", 2 * (4 * 10 * 64 + 10 * 32)},
        {"search --device cpu --items 2000 --queries 3 --dim 8 --json", "tflops", "ms",
         2. * 2000 * 3 * 8},
        {"search --device cpu --items 2000 --queries 3 --dim 8 --json", "gb_per_s", "ms",
         2000 * 8 * 4 * 1e3},
        /* groups of 32 rows, with a scale and an error each */
        {"search --device cpu --items 2000 --queries 3 --dim 8 --int8 --json", "gb_per_s", "ms",
         2016 * (8 + 4 + 4) * 1e3},
        /* 2 sequences, 3 heads, 10 x 11 / 2 pairs, two products of dimension 5 */
        {"masks --device cpu --mask causal --sequences 2 --length 10 --heads 3 --dim 5 --json",
         "fwd_tflops", "fwd_ms", 2 * 3 * 55 * 4 * 5},
        {"masks --device cpu --mask causal --sequences 2 --length 10 --heads 3 --dim 5 --json",
         "bwd_tflops", "bwd_ms", 2.5 * 2 * 3 * 55 * 4 * 5},
        {"masks --device cpu --mask causal --sequences 2 --length 10 --heads 3 --dim 5 --json",
         "fwd_gb_per_s", "fwd_ms", 4 * 2 * 10 * 3 * 5 * 4 * 1e3},
        {"encode 3 2 20 2 8 --device cpu --seconds 0.01 --json", "tokens_per_s", "ms", 60e12}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = printed(cases[i].options);
        double done = figure(text, cases[i].speed) * figure(text, cases[i].time) * 1e9;
        if (!(fabs(done / cases[i].work - 1) < 1e-6))
            FAIL_TEST("bench %s: %s x %s = %g, not %g", cases[i].options, cases[i].speed,
                      cases[i].time, done, cases[i].work);
        free(text);
    }
}

/* Keys a second are keys a call by its time, and bytes a second those of rows of floats. */
TEST(bench_embedding_counts_keys) {
    char *text = printed("embedding --device cpu --max-gib 0.001 --seconds 0.001 --batch 256 "
                         "--dim 6 --slots 8192 --json");
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1) {
        double ms = figure(line, "ms"), per_s = figure(line, "per_s");
        double row = figure(line, "bytes_per_s") / per_s;
        CHECK(figure(line, "keys_a_call") == 128 && figure(line, "dim") == 6);
        CHECK(isnan(ms) || isnan(per_s) || fabs(ms * per_s / 128e3 - 1) < 1e-6);
        CHECK(isnan(row) || fabs(row - 24) < 1e-6 || fabs(row - 48) < 1e-6);
    }
    free(text);
}

TEST(bench_peer_finds_published_figures) {
    CHECK(bench_peer("masks", "1,128,\"causal\"", 0) == .0064);
    CHECK(bench_peer("embedding", "find", 0) == 3.215 &&
          bench_peer("embedding", "find", 1) == 3.361);
    CHECK(isnan(bench_peer("embedding", "find", 2)));  /* no such cell */
    CHECK(isnan(bench_peer("embedding", "fin", 0)));   /* a part of a key */
    CHECK(isnan(bench_peer("embedding", "call", 0)));  /* not a number */
    CHECK(isnan(bench_peer("embeddings", "find", 0))); /* no such file */
    backend be = {.act = ACT_BF16, .card = "NVIDIA H200"}, other = be;
    CHECK(bench_has_peers(&be));
    other.act = ACT_F16;
    CHECK(!bench_has_peers(&other));
    be.card = "NVIDIA H100";
    CHECK(!bench_has_peers(&be));
    be.card = NULL;
    CHECK(!bench_has_peers(&be));
}

typedef struct calls {
    int n, n_good;
} calls;

/* Every fourth call takes long: the median does not count it. */
static status called(void *ctx, int i) {
    calls *c = ctx;
    uint64_t until = clock_ns() + (i % 4 == 0 ? 20000000 : 1000000);
    if (c->n++ == c->n_good) return fail(ERR_IO, "call %d", c->n);
    while (clock_ns() < until)
        ;
    return OK;
}

TEST(bench_timing_is_the_median_of_calls) {
    backend *be;
    double seconds = 0;
    CHECK_OK(backend_create_cpu(&be, NULL));
    calls c = {0, 1000};
    CHECK_OK(timing_plain(be, called, &c, &seconds));
    CHECK(seconds >= 1e-3 && seconds < 15e-3 && c.n > 10);
    for (int n_good = 0; n_good < 3; n_good++) {
        c = (calls){0, n_good};
        CHECK_FAILS(timing_plain(be, called, &c, &seconds), ERR_IO, "call");
    }
    CHECK_OK(timing_replay(be, 7, called, &c, &seconds));
    CHECK(isnan(seconds)); /* a CPU records nothing */
    backend_destroy(be);
}

/* The defaults are those that the help says. */
TEST(bench_dataset_draws_by_its_defaults) {
    char *text;
    CHECK_EQ(test_command(&text,
                          "cd %s && p=%s && $p bench dataset --out a.jsonl && $p bench dataset "
                          "--requests 1000 --users 1000000 --zipf 1 --returning .8 --history-mean "
                          "100 --history-stdev 30 --new-mean 3 --new-stdev 2 --top-k 10 --items "
                          "1000 --seed 1 --out b.jsonl && cmp a.jsonl b.jsonl",
                          test_folder(), test_program()),
             0);
    CHECK_STR(text, "a.jsonl: 1000 requests\nb.jsonl: 1000 requests\n");
    free(text);
}

TEST(bench_names_a_device_that_is_none) {
    char *text;
    CHECK_EQ(test_command(&text, "%s bench search --device tpu", test_program()), 2);
    CHECK_CONTAINS(text, "--device tpu: the devices are auto, cpu, cuda and cuda:N");
    free(text);
}

/* What is beyond the ends of a number is refused with both of them. */
TEST(bench_numbers_have_ends) {
    static const char *const cases[][2] = {{"search --items 0", "from 1 to 1073741824"},
                                           {"search --queries 65537", "from 1 to 65536"},
                                           {"search --dim 4097", "from 1 to 4096"},
                                           {"search --k 1025", "from 1 to 1024"},
                                           {"layers --batch 4097", "from 1 to 4096"},
                                           {"layers --layers 65", "from 1 to 64"},
                                           {"layers --candidates -1", "from 0 to 65536"},
                                           {"layers --dim 257", "from 1 to 256"},
                                           {"masks --dim 257", "from 1 to 256"},
                                           {"masks --heads 1025", "from 1 to 1024"},
                                           {"train --steps 0", "from 1 to 1048576"},
                                           {"throughput x --concurrency 1025", "from 1 to 1024"},
                                           {"throughput x --rounds 31", "from 1 to 30"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text;
        CHECK_EQ(test_command(&text, "%s bench %s --device cpu", test_program(), cases[i][0]), 2);
        CHECK_CONTAINS(text, cases[i][1]);
        free(text);
    }
}
