#include "cli/bench/attn_problem.h"

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
