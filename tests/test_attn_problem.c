#include "profile/attn_problem.h"

#include "test.h"

/* Every mask, by the CPU's ops; and what is wrong is seen. */
TEST(attn_problem_checks_every_mask) {
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int mask = ATTN_CAUSAL; mask <= ATTN_ARBITRARY; mask++) {
        attn_shape shape = {2, 16, 5, 90, true, (attn_mask_kind)mask};
        attn_problem p;
        double error;
        CHECK_OK(attn_problem_open(&p, be, &shape, 7));
        CHECK(p.n_tokens >= 5 && p.n_tokens <= 450 && p.flops > 0);
        CHECK_OK(attn_problem_check(&p, &error));
        CHECK(error < 1e-5);
        p.a.alpha *= 1.01f;
        p.a.window_right = 3; /* one step into the future */
        ((float *)p.a.v)[3] += 1;
        if (p.a.func == NULL && mask != ATTN_TARGETS) {
            CHECK_OK(attn_problem_check(&p, &error));
            CHECK(error > 1e-4);
        }
        attn_problem_close(&p);
    }
    backend_destroy(be);
}

TEST(attn_problem_counts_the_causal_half) {
    backend *be;
    attn_shape shape = {4, 8, 3, 20, false, ATTN_CAUSAL};
    attn_problem p;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(attn_problem_open(&p, be, &shape, 1));
    CHECK_EQ(p.n_tokens, 60);
    CHECK(p.flops == 4.0 * 4 * 8 * 3 * 20 * 20 / 2);
    attn_problem_close(&p);
    backend_destroy(be);
}
