/* hstu bench attention: its problems and their check, the peers' figures, its rows, and the command
 * from outside. */
#include "cli/bench/attention.h"

#include "base/thread.h"
#include "test.h"

/* The CPU's ops pass the check with every mask, and wrong arguments fail it. */
TEST(attn_problem_checks_every_mask) {
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int mask = ATTN_CAUSAL; mask <= ATTN_ARBITRARY; mask++) {
        attn_shape shape = {2, 16, 5, 90, true, (attn_mask_kind)mask, BIAS_NONE};
        attn_problem p;
        double error;
        CHECK_OK(attn_problem_open(&p, be, &shape, 7, 0));
        CHECK(p.n_tokens >= 5 && p.n_tokens <= 450 && p.flops > 0);
        CHECK_OK(attn_problem_check(&p, &error));
        CHECK(error < 1e-5);
        p.copy[0].alpha *= 1.01f;
        p.copy[0].window_right = 3; /* one step into the future */
        ((float *)p.copy[0].v)[3] += 1;
        if (p.copy[0].func == NULL && mask != ATTN_TARGETS) {
            CHECK_OK(attn_problem_check(&p, &error));
            CHECK(error > 1e-4);
        }
        attn_problem_close(&p);
    }
    backend_destroy(be);
}

TEST(attn_problem_counts_the_causal_half) {
    backend *be;
    attn_shape shape = {4, 8, 3, 20, false, ATTN_CAUSAL, BIAS_NONE};
    attn_problem p;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(attn_problem_open(&p, be, &shape, 1, 0));
    CHECK_EQ(p.n_tokens, 60);
    CHECK(p.flops == 4.0 * 4 * 8 * 3 * 20 * 20 / 2);
    attn_problem_close(&p);
    backend_destroy(be);
}

TEST(attn_problem_checks_every_bias) {
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int bias = BIAS_TABLE; bias <= BIAS_TIME; bias++) {
        attn_shape shape = {2, 16, 5, 90, true, ATTN_CAUSAL, (attn_bias)bias};
        attn_problem p;
        double error;
        CHECK_OK(attn_problem_open(&p, be, &shape, 7, 0));
        CHECK_OK(attn_problem_check(&p, &error));
        CHECK(error < 1e-5);
        p.copy[0].bias = BIAS_NONE; /* forgotten */
        CHECK_OK(attn_problem_check(&p, &error));
        CHECK(error > 1e-4);
        attn_problem_close(&p);
    }
    backend_destroy(be);
}

/* Each copy holds the same numbers in its own memory; the size of the cache decides how many there
 * are. */
TEST(attn_problem_copies) {
    backend *be;
    attn_shape shape = {2, 16, 3, 40, false, ATTN_CAUSAL, BIAS_NONE};
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
    attn_shape even = {4, 128, 32, 1024, false, ATTN_CAUSAL, BIAS_NONE};
    attn_shape tiny = {4, 64, 512, 50, true, ATTN_CAUSAL, BIAS_NONE};
    CHECK(fabs(attn_peer_tflops(&even, PEER_HOPPER, TIMED_PLAIN, PASS_FORWARD) - 207) <= 0.5);
    CHECK(fabs(attn_peer_tflops(&even, PEER_AMPERE, TIMED_REPLAY, PASS_BACKWARD) - 178) <= 0.5);
    /* 63 us and "4": 13025 tokens of sequences of 1 to 50 are 0.22 GFLOP. */
    CHECK(fabs(attn_peer_tflops(&tiny, PEER_HOPPER, TIMED_REPLAY, PASS_FORWARD) - 3.56) < 0.01);
    CHECK(isnan(attn_peer_tflops(&tiny, PEER_HOPPER, TIMED_PLAIN, PASS_FORWARD)));
}

TEST(attn_peers_best) {
    attn_shape s = {4, 64, 32, 1024, false, ATTN_CAUSAL, BIAS_NONE};
    CHECK(fabs(attn_peer_best(&s, false, TIMED_PLAIN, PASS_FORWARD) - 154) <= 0.5);  /* Ampere */
    CHECK(fabs(attn_peer_best(&s, false, TIMED_PLAIN, PASS_BACKWARD) - 130) <= 0.5); /* Hopper */
    CHECK(fabs(attn_peer_best(&s, true, TIMED_PLAIN, PASS_BACKWARD) - 97) <= 0.5);
    s.bias = BIAS_TIME;
    CHECK(isnan(attn_peer_best(&s, false, TIMED_PLAIN, PASS_FORWARD)));
    s = (attn_shape){4, 32, 32, 1024, false, ATTN_CAUSAL, BIAS_NONE};
    CHECK(isnan(attn_peer_best(&s, true, TIMED_REPLAY, PASS_BACKWARD)));
}

TEST(attention_rows_are_measured) {
    backend *be;
    pool *p;
    attn_bench b;
    attn_row r;
    CHECK_OK(pool_create(&p, 2));
    CHECK_OK(backend_create_cpu(&be, p));
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.dim = 32, .length = 50}, false));
    CHECK(b.peak > 1e8 && !b.has_peers);
    const attn_shape *s = attn_bench_next(&b);
    CHECK(s != NULL && s->dim == 32 && s->max_len == 50 && s->is_jagged);
    CHECK(attn_bench_next(&b) == NULL);
    CHECK_OK(attn_measure(&b, s, &r));
    CHECK(r.error < 1e-3);
    double fwd = r.seconds[PASS_FORWARD][TIMED_PLAIN], bwd = r.seconds[PASS_BACKWARD][TIMED_PLAIN];
    CHECK(fabs(r.tflops[PASS_FORWARD][TIMED_PLAIN] * 1e12 * fwd / r.flops - 1) < 1e-9);
    CHECK(fabs(r.tflops[PASS_BACKWARD][TIMED_PLAIN] * 1e12 * bwd / r.flops - 2.5) < 1e-9);
    CHECK(isnan(r.seconds[PASS_FORWARD][TIMED_REPLAY])); /* a CPU records nothing */
    CHECK(isnan(r.ratio[PASS_FORWARD][TIMED_PLAIN]));    /* the peers ran on a GPU */
    CHECK_EQ(b.n_ratios[PASS_FORWARD][TIMED_PLAIN], 0);
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
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.dim = 64, .length = 200, .seed = 3}, false));
    const attn_shape *s = attn_bench_next(&b);
    b.has_peers = true;
    CHECK_OK(attn_measure(&b, s, &r));
    for (int pass = 0; pass < N_PASSES; pass++) {
        double best = attn_peer_best(s, false, TIMED_PLAIN, (bench_pass)pass);
        double ratio = r.ratio[pass][TIMED_PLAIN];
        CHECK(best > 1 && fabs(ratio * best / r.tflops[pass][TIMED_PLAIN] - 1) < 1e-9);
        CHECK(b.n_ratios[pass][TIMED_PLAIN] == 1 && b.n_ratios[pass][TIMED_REPLAY] == 0);
        CHECK(b.log_ratio[pass][TIMED_PLAIN] == log(ratio));
    }
    backend_destroy(be);
}

TEST(attention_filters_shapes) {
    backend *be;
    attn_bench b;
    int n = 0;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_FAILS(attn_bench_open(&b, be, &(attn_filter){.mask = "spiral"}, false), ERR_USAGE,
                "no row has this --dim, --length and --mask");
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.length = 50}, false));
    while (attn_bench_next(&b) != NULL)
        n++;
    CHECK_EQ(n, 4); /* four head dimensions */
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.length = 16384}, false));
    CHECK(attn_bench_next(&b) == NULL); /* only for a GPU */
    CHECK_EQ(b.n_left_out, 2);
    backend_destroy(be);
}

/* The lengths that were drawn show in the count of operations. */
TEST(attention_draws_by_its_seed) {
    backend *be;
    attn_bench b, other;
    attn_row r, again;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.dim = 32, .length = 50}, false));
    CHECK_OK(attn_bench_open(&other, be, &(attn_filter){.dim = 32, .length = 50}, false));
    CHECK(b.seed != other.seed);
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.dim = 32, .length = 50, .seed = 7}, false));
    CHECK_EQ(b.seed, 7);
    if (!test_is_brief()) { /* a sanitizer sees these lines in another test */
        const attn_shape *s = attn_bench_next(&b);
        CHECK_OK(attn_measure(&b, s, &r));
        CHECK_OK(attn_measure(&b, s, &again));
        CHECK(r.flops == again.flops);
    }
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
        CHECK_CONTAINS(text, "  32  512     1-50  causal ");
        const char *last =
            strstr(text, "  backward "); /* the second line of the row, and the end */
        CHECK(last != NULL && strchr(last, '\n')[1] == '\0');
        CHECK(strstr(text, " 64  512") == NULL && strstr(text, "1-200") == NULL);
        free(text);
    }
    text = said(0, JSON_ROW " --json");
    CHECK_CONTAINS(text, JSON_BIAS);
    CHECK_CONTAINS(text, "\"fwd_tflops\":");
    CHECK(strstr(text, "ratio") == NULL); /* peers were measured on a GPU */
    free(text);
}

TEST(bench_attention_without_rows) {
    char *text = said(2, "--dim 33");
    CHECK_CONTAINS(text, "no row has this --dim");
    free(text);
}
