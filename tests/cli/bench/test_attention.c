/* hstu bench attention: its problems and their check, the peers' figures, its rows, and the command
 * from outside. */
#include "cli/bench/attention.h"

#include "base/thread.h"
#include "cpu/attn_naive.h"
#include "test.h"

static attn_shape shape_of(int32_t n_heads, int32_t dim, int32_t n_sequences, int32_t max_len,
                           bool is_jagged) {
    return (attn_shape){.n_heads = n_heads,
                        .dim = dim,
                        .n_sequences = n_sequences,
                        .max_len = max_len,
                        .is_jagged = is_jagged};
}

static double worst_of(attn_problem *p) {
    double error[N_ATTN_RESULTS], worst = 0;
    CHECK_OK(attn_problem_check(p, error));
    for (int i = 0; i < N_ATTN_RESULTS; i++)
        worst = bench_worse(worst, error[i]);
    return worst;
}

/* The CPU's ops pass the check with every mask, with a query for each key and with fewer, and wrong
 * arguments fail it. */
TEST(attn_problem_checks_every_mask) {
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int i = 0; i < 2 * (ATTN_TARGETS + 1); i++) {
        attn_shape shape = shape_of(2, 16, 5, 90, true);
        attn_problem p;
        shape.mask = (attn_mask_kind)(i / 2);
        shape.max_queries = i % 2 * 20;
        CHECK_OK(attn_problem_open(&p, be, &shape, 7, 0));
        CHECK(p.host.n_rows_k >= 5 && p.host.n_rows_k <= 450 && p.flops > 0);
        if (i % 2 == 1) CHECK(p.host.n_rows_q < p.host.n_rows_k && p.host.n_rows_q <= 100);
        CHECK(worst_of(&p) < 1e-5);
        p.copy[0].alpha *= 1.01f;
        CHECK(worst_of(&p) > 1e-4);
        p.copy[0].alpha = p.host.alpha;
        p.copy[0].window_right = 3; /* one step into the future */
        if (p.copy[0].func == NULL) CHECK(worst_of(&p) > 1e-4);
        attn_problem_close(&p);
    }
    backend_destroy(be);
}

/* Results begin as NAN, which no later number hides. */
TEST(attn_problem_finds_rows_that_are_not_written) {
    backend *be;
    attn_shape shape = shape_of(2, 16, 1, 40, false);
    attn_problem p;
    double error[N_ATTN_RESULTS];
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(attn_problem_open(&p, be, &shape, 7, 0));
    p.copy[0].n_sequences = 0;
    CHECK_OK(attn_problem_check(&p, error));
    for (int i = 0; i < N_ATTN_RESULTS; i++)
        CHECK(isnan(error[i]));
    attn_problem_close(&p);
    CHECK(isnan(bench_worse(bench_worse(1, NAN), 2)) && bench_worse(1, 2) == 2);
    backend_destroy(be);
}

/* FLOPs of a random shape: those of the pairs that are let through, counted one by one. */
TEST(attn_problem_counts_the_pairs_of_random_shapes) {
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int mask = ATTN_CAUSAL; mask <= ATTN_TARGETS; mask++) {
        attn_shape shape = shape_of(1, 8, 6, 70, true);
        attn_problem p;
        double n = 0;
        shape.is_random = true;
        shape.mask = (attn_mask_kind)mask;
        shape.max_queries = mask % 2 * 30;
        CHECK_OK(attn_problem_open(&p, be, &shape, 3, 0));
        for (int32_t b = 0; b < 6; b++)
            for (int32_t i = p.offsets[0][b]; i < p.offsets[0][b + 1]; i++)
                for (int32_t j = p.offsets[1][b]; j < p.offsets[1][b + 1]; j++)
                    n += attn_naive_sees(&p.host, b, i - p.offsets[0][b], j - p.offsets[1][b]);
        CHECK(p.flops == 4 * 8 * n);
        attn_problem_close(&p);
    }
    backend_destroy(be);
}

TEST(attn_problem_counts_the_causal_half) {
    backend *be;
    attn_shape shape = shape_of(4, 8, 3, 20, false);
    attn_problem p;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(attn_problem_open(&p, be, &shape, 1, 0));
    CHECK_EQ(p.host.n_rows_k, 60);
    CHECK(p.flops == 4.0 * 4 * 8 * 3 * 20 * 20 / 2);
    attn_problem_close(&p);
    backend_destroy(be);
}

TEST(attn_problem_checks_every_bias) {
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int bias = BIAS_TABLE; bias <= BIAS_TIME; bias++) {
        attn_shape shape = shape_of(2, 16, 5, 90, true);
        attn_problem p;
        shape.bias = (attn_bias)bias;
        CHECK_OK(attn_problem_open(&p, be, &shape, 7, 0));
        CHECK(worst_of(&p) < 1e-5);
        p.copy[0].bias = BIAS_NONE; /* forgotten */
        CHECK(worst_of(&p) > 1e-4);
        attn_problem_close(&p);
    }
    backend_destroy(be);
}

/* Each copy holds the same numbers in its own memory; the size of the cache decides how many there
 * are. */
TEST(attn_problem_copies) {
    backend *be;
    attn_shape shape = shape_of(2, 16, 3, 40, false);
    int64_t bytes = 4 * 120 * 32 * 4;
    attn_problem p;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(attn_problem_open(&p, be, &shape, 1, 3 * bytes));
    CHECK(p.bytes == (double)bytes);
    CHECK_EQ(p.n_copies, 5);
    for (int c = 1; c < p.n_copies; c++) {
        CHECK(p.copy[c].q != p.copy[c - 1].q && p.copy[c].dv != p.copy[c - 1].dv);
        CHECK(memcmp(p.copy[c].dout, p.copy[0].dout, (size_t)bytes / 4) == 0);
        CHECK(p.copy[c].offsets_k == p.copy[0].offsets_k);
    }
    attn_problem_close(&p);
    CHECK_OK(attn_problem_open(&p, be, &shape, 1, bytes));
    CHECK_EQ(p.n_copies, 1);
    attn_problem_close(&p);
    CHECK_OK(attn_problem_open(&p, be, &shape, 1, 1000 * bytes));
    CHECK_EQ(p.n_copies, ATTN_MAX_COPIES);
    attn_problem_close(&p);
    backend_destroy(be);
}

/* Figures as they were published, and the range that a rounded figure stands for. */
TEST(attn_peers_figures) {
    attn_shape even = shape_of(4, 128, 32, 1024, false);
    attn_shape tiny = shape_of(4, 64, 512, 50, true);
    CHECK(fabs(attn_peer_tflops(&even, PEER_HOPPER, TIMED_PLAIN, PASS_FORWARD) - 207) <= 0.5);
    CHECK(fabs(attn_peer_tflops(&even, PEER_AMPERE, TIMED_REPLAY, PASS_BACKWARD) - 178) <= 0.5);
    /* 63 us and "4": 13025 tokens of sequences of 1 to 50 are 0.22 GFLOP. */
    CHECK(fabs(attn_peer_tflops(&tiny, PEER_HOPPER, TIMED_REPLAY, PASS_FORWARD) - 3.56) < 0.01);
    CHECK(isnan(attn_peer_tflops(&tiny, PEER_HOPPER, TIMED_PLAIN, PASS_FORWARD)));
}

TEST(attn_peers_best) {
    attn_shape s = shape_of(4, 64, 32, 1024, false);
    CHECK(fabs(attn_peer_best(&s, false, TIMED_PLAIN, PASS_FORWARD) - 154) <= 0.5);  /* Ampere */
    CHECK(fabs(attn_peer_best(&s, false, TIMED_PLAIN, PASS_BACKWARD) - 130) <= 0.5); /* Hopper */
    CHECK(fabs(attn_peer_best(&s, true, TIMED_PLAIN, PASS_BACKWARD) - 97) <= 0.5);
    s.bias = BIAS_TIME;
    CHECK(isnan(attn_peer_best(&s, false, TIMED_PLAIN, PASS_FORWARD)));
    s = shape_of(4, 32, 32, 1024, false);
    CHECK(isnan(attn_peer_best(&s, true, TIMED_REPLAY, PASS_BACKWARD)));
}

TEST(attention_rows_are_measured) {
    backend *be;
    pool *p;
    attn_bench b;
    attn_row r;
    CHECK_OK(pool_create(&p, 2));
    CHECK_OK(backend_create_cpu(&be, p));
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.dim = 32, .length = 50}));
    CHECK(b.peak > 1e8 && !b.has_peers);
    const attn_shape *s = attn_bench_next(&b);
    CHECK(s != NULL && s->dim == 32 && s->max_len == 50 && s->is_jagged);
    CHECK(attn_bench_next(&b) == NULL);
    CHECK_OK(attn_measure(&b, s, &r));
    CHECK(!r.is_wrong && r.error[RESULT_DQ] < 1e-5 && b.error < 1e-5);
    CHECK(attn_bench_end(&b) == OK);
    double fwd = r.seconds[PASS_FORWARD][TIMED_PLAIN], bwd = r.seconds[PASS_BACKWARD][TIMED_PLAIN];
    CHECK(fabs(r.tflops[PASS_FORWARD][TIMED_PLAIN] * 1e12 * fwd / r.flops - 1) < 1e-9);
    CHECK(fabs(r.tflops[PASS_BACKWARD][TIMED_PLAIN] * 1e12 * bwd / r.flops - 2.5) < 1e-9);
    CHECK(isnan(r.seconds[PASS_FORWARD][TIMED_REPLAY])); /* a CPU records nothing */
    CHECK(isnan(r.ratio[PASS_FORWARD][TIMED_PLAIN]));    /* the peers ran on a GPU */
    CHECK(b.x_peer[PASS_FORWARD].n == 0 && b.share[PASS_FORWARD].n == 1);
    CHECK(b.share[PASS_FORWARD].lowest == r.tflops[PASS_FORWARD][TIMED_PLAIN] * 1e12 / b.peak);
    backend_destroy(be);
    pool_destroy(p);
}

/* As on the peers' GPU: a row that they have published adds to the means. */
TEST(attention_rows_are_compared_with_peers) {
    backend *be;
    attn_bench b;
    attn_row r;
    if (test_is_brief()) SKIP_TEST("minutes with a sanitizer");
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.dim = 64, .length = 200, .seed = 3}));
    const attn_shape *s = attn_bench_next(&b);
    b.has_peers = true;
    CHECK_OK(attn_measure(&b, s, &r));
    for (int pass = 0; pass < N_PASSES; pass++) {
        double best = attn_peer_best(s, false, TIMED_PLAIN, (bench_pass)pass);
        double ratio = r.ratio[pass][TIMED_PLAIN];
        CHECK(best > 1 && fabs(ratio * best / r.tflops[pass][TIMED_PLAIN] - 1) < 1e-9);
        CHECK(b.x_peer[pass].n == 1 && b.x_peer[pass].log_sum == log(ratio));
        CHECK(b.x_peer[pass].lowest == ratio && b.x_peer[pass].lowest_row == r.number);
    }
    backend_destroy(be);
}

TEST(attention_filters_shapes) {
    backend *be;
    attn_bench b;
    int n = 0;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_FAILS(attn_bench_open(&b, be, &(attn_filter){.mask = "spiral"}), ERR_USAGE,
                "no row has this --dim, --length, --mask and --only");
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.length = 50, .is_check = true}));
    while (attn_bench_next(&b) != NULL)
        n++;
    CHECK_EQ(n, 4); /* four head dimensions */
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.length = 16384, .is_check = true}));
    CHECK(attn_bench_next(&b) == NULL); /* only for a GPU */
    CHECK_EQ(b.n_left_out, 2);
    backend_destroy(be);
}

/* The lengths that were drawn show in the count of operations. */
TEST(attention_draws_by_its_seed) {
    backend *be;
    attn_bench b, other;
    attn_row r, again;
    attn_filter filter = {.dim = 32, .length = 50, .is_check = true};
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(attn_bench_open(&b, be, &filter));
    CHECK_OK(attn_bench_open(&other, be, &filter));
    CHECK(b.seed != other.seed);
    filter.seed = 7;
    CHECK_OK(attn_bench_open(&b, be, &filter));
    CHECK_EQ(b.seed, 7);
    const attn_shape *s = attn_bench_next(&b);
    CHECK_OK(attn_measure(&b, s, &r));
    CHECK_OK(attn_measure(&b, s, &again));
    CHECK(r.flops == again.flops && memcmp(r.error, again.error, sizeof r.error) == 0);
    backend_destroy(be);
}

/* A random case depends on the seed and its number alone, and none is above the limits. */
TEST(attention_draws_random_shapes) {
    backend *be;
    attn_bench b, one;
    bool has_mask[ATTN_TARGETS + 1] = {0}, has_delta = false;
    int n = 0;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.n_random = 200, .seed = 5, .is_check = true}));
    for (const attn_shape *s; (s = attn_bench_next(&b)) != NULL; n++) {
        double pairs = (double)s->n_sequences * s->max_len * s->max_len / 2;
        CHECK(s->is_random && s->max_len >= 16 && s->max_len <= 8192 && s->n_sequences <= 256);
        CHECK(s->max_len == 16 || 4 * pairs * s->n_heads * s->dim <= 2e8);
        has_mask[s->mask] = true;
        has_delta |= s->max_queries > 0;
    }
    CHECK_EQ(n, 200);
    CHECK(has_mask[ATTN_CAUSAL] && has_mask[ATTN_TARGETS] && has_mask[ATTN_CONTEXTS]);
    CHECK(has_mask[ATTN_BOTH] && !has_mask[ATTN_WINDOW] && has_delta);
    attn_filter only = {.n_random = 9, .seed = 5, .only = 9, .is_check = true};
    CHECK_OK(attn_bench_open(&one, be, &only));
    const attn_shape *s = attn_bench_next(&one);
    CHECK(s != NULL && one.next == 9 && attn_bench_next(&one) == NULL);
    b.next = 8;
    CHECK(memcmp(s, attn_bench_next(&b), sizeof *s) == 0);
    be->n_ahead = 1; /* a GPU gets them as they are drawn */
    b.next = 0;
    for (int longest = 0; (s = attn_bench_next(&b)) != NULL || longest < 4000;) {
        int64_t n_tokens = s == NULL ? INT64_MAX : (int64_t)s->n_sequences * s->max_len;
        CHECK(n_tokens <= 400000 && n_tokens * s->n_heads * s->dim <= 1 << 28);
        longest = s->max_len > longest ? s->max_len : longest;
    }
    backend_destroy(be);
}

static status (*right_bwd)(backend *be, const attn_args *a);
static status wrong_bwd(backend *be, const attn_args *a) {
    status st = right_bwd(be, a);
    for (int64_t i = 0; i < a->n_rows_k * a->stride_k; i++)
        ((float *)a->dk)[i] *= 1.001f;
    return st;
}

/* A wrong case is named with what reproduces it, and the others go on. */
TEST(attention_reports_wrong_cases) {
    backend *be;
    attn_bench b;
    attn_row r;
    CHECK_OK(backend_create_cpu(&be, NULL));
    attn_filter filter = {.n_random = 3, .seed = 5, .is_check = true};
    CHECK_OK(attn_bench_open(&b, be, &filter));
    const ops *right = be->ops;
    ops wrong = *right;
    right_bwd = right->attn_bwd;
    wrong.attn_bwd = wrong_bwd;
    for (int i = 1; i <= 3; i++) {
        be->ops = i == 2 ? &wrong : right;
        CHECK_OK(attn_measure(&b, attn_bench_next(&b), &r));
        CHECK_EQ(r.is_wrong, i == 2);
        CHECK((r.error[RESULT_DK] > 5e-4) == r.is_wrong && r.error[RESULT_DV] < 1e-5);
        CHECK(isnan(r.seconds[PASS_FORWARD][TIMED_PLAIN]));
    }
    CHECK_FAILS(attn_bench_end(&b), ERR_NUMERIC,
                "1 cases differ from float64 by more than 2.0e-05 and were not timed; the first "
                "again: hstu bench attention --device cpu --dtype float32 --random 2 --seed 5 "
                "--only 2");
    be->ops = right;
    backend_destroy(be);
}

static char *said(int code, const char *options) {
    char *text;
    CHECK_EQ(test_command(&text, "%s bench attention --device cpu %s", test_program(), options),
             code);
    return text;
}

/* A row with a bias is a long one: a sanitizer takes minutes for the float64 it is checked
 * against. */
#ifdef __SANITIZE_ADDRESS__
#define JSON_ROW  "--dim 32 --length 50"
#define JSON_BIAS "\"bias\":\"none\""
#else
#define JSON_ROW  "--mask bias --length 200 --dim 64"
#define JSON_BIAS "\"bias\":\"time\""
#endif

TEST(bench_attention_of_some_rows) {
    char *text;
    if (!test_is_brief()) {
        text = said(0, "--dim 32 --length 50");
        CHECK_CONTAINS(text, "TFLOP/s");
        CHECK_CONTAINS(text, "   6   32  4  512      50 ");
        CHECK_CONTAINS(text, "backward  %: geometric mean ");
        CHECK(strstr(text, " 64  4  512") == NULL && strstr(text, " 200 ") == NULL);
        free(text);
    }
    text = said(0, JSON_ROW " --json");
    CHECK_CONTAINS(text, JSON_BIAS);
    CHECK_CONTAINS(text, "\"fwd_tflops\":");
    CHECK(strstr(text, "ratio") == NULL); /* peers were measured on a GPU */
    free(text);
}

/* What continuous integration checks of the attention's shapes: the same seeds every time. */
TEST(bench_attention_random_shapes_are_right) {
    char options[64];
    for (int seed = 1; seed <= (test_is_brief() ? 1 : 3); seed++) {
        snprintf(options, sizeof options, "--random %d --seed %d --check", test_is_brief() ? 4 : 24,
                 seed);
        char *text = said(0, options);
        CHECK_CONTAINS(text, "Largest error: ");
        CHECK_CONTAINS(text, "On a CPU sequences are shortened");
        CHECK(strstr(text, "WRONG") == NULL && strstr(text, "forward us") == NULL);
        free(text);
    }
}

TEST(bench_attention_of_one_random_shape) {
    char *text = said(0, "--random 5 --seed 3 --only 4 --json");
    CHECK_CONTAINS(text, "\"seed\":3,\"case\":4,\"random\":true,");
    CHECK_CONTAINS(text, "\"error_dv\":");
    CHECK_CONTAINS(text, "\"bwd_tflops\":");
    CHECK(strstr(text, "\"case\":5") == NULL && strchr(text, '\n')[1] == '\0');
    free(text);
    text = said(2, "--random 5 --only 6");
    CHECK_CONTAINS(text, "without them all 5 rows are measured");
    free(text);
}

TEST(bench_attention_without_rows) {
    char *text = said(2, "--dim 33");
    CHECK_CONTAINS(text, "no row has this --dim");
    free(text);
}
