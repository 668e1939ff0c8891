#include "tune/search_exact.h"

#include "test.h"

static bool stop(void) {
    return true;
}

/* Every kernel of a layer at a tiny shape: the found plan is right, its sum is that of its kernels,
 * and it is not slower than the one that the encoder has by hand. */
TEST(kernels_are_timed_and_the_path_is_right) {
    char version[256];
    kernel_cache cache;
    chain_problem *p;
    target *t;
    plan_runner *r;
    exact_result e;
    problem_options o = {.n_sequences = 2,
                         .max_len = 5,
                         .n_heads = 2,
                         .dim_head = 4,
                         .attend = ATTEND_CAUSAL,
                         .seed = 5};
    exact_options options = {
        .rounds = 1, .n_checks = 3, .max_tiles = 1, .seed = 1, .is_stopped = stop};
    if (!target_compiler_version(version, sizeof version)) SKIP_TEST("no C compiler");
    CHECK_OK(kernel_cache_open(&cache, test_folder()));
    CHECK_OK(chain_problem_create(&p, chain_of(CHAIN_BERT), &o));
    CHECK_OK(target_create_cpu(&t, NULL, &cache));
    CHECK_OK(plan_runner_create(&r, p, t, NULL));
    CHECK_FAILS(exact_search(r, &options, &e), ERR_INTERRUPTED, "interrupted");
    options.is_stopped = NULL;
    CHECK_OK(exact_search(r, &options, &e));
    CHECK(e.n_segments > CHAIN_OPS && e.n_segments <= 120 && e.n_timed >= e.n_segments);
    CHECK(e.kernels.hand_written > 0 && e.found.ms > 0 && e.n_checked == 3 && e.rank >= 1 &&
          e.rank <= 4);
    double sum = search_sum(p->c, &p->shape, &e.kernels, e.found.value);
    CHECK(fabs(sum - e.predicted_ms) < 1e-9);
    CHECK(e.hand_fused_ms > 0 && e.found.ms <= e.hand_fused_ms);
    exact_result_fini(&e);
    plan_runner_destroy(r);
    target_destroy(t);
    chain_problem_destroy(p);
}
