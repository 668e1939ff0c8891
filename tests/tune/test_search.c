#include "tune/search.h"

#include "base/rng.h"
#include "test.h"

static const chain_shape base = {
    .n_sequences = 1, .max_len = 128, .n_heads = 12, .dim_head = 64, .n_tokens = 128};

/* Times that are sums of kernels, with costs that make some fusions pay and others not. */
typedef struct world {
    const chain *c;
    kernel_times t;
} world;

static world make_world(chain_layer layer, uint64_t seed) {
    world w = {.c = chain_of(layer)};
    rng_key key = rng_make_key(seed, RNG_TEST);
    for (int first = 0; first < CHAIN_OPS; first++)
        for (int last = 0; last < CHAIN_OPS; last++) {
            bool is_kernel =
                last >= first && plan_template(w.c, &base, first, last, NULL) != TEMPLATE_NONE;
            double ms =
                0.5 + rng_uniform(rng_draw(key, (uint32_t)first, (uint32_t)last, 0, 0).word[0]);
            w.t.ms[first][last] = is_kernel ? ms * (1 + 0.4 * (last - first)) : NAN;
        }
    w.t.hand_written = 0.9;
    return w;
}

TEST(the_shortest_path_is_the_best_of_all_plans) {
    for (int i = 0; i < 6; i++) {
        world w = make_world((chain_layer)(i % N_CHAINS), (uint64_t)i);
        if (i >= 3) w.t.hand_written = i >= 5 ? NAN : 100;
        plan_time best = {0, INFINITY}, found = search_shortest_path(w.c, &w.t);
        for (unsigned v = 0; v < PLAN_CODES; v++) {
            double ms;
            if (plan_canonical(w.c, (uint16_t)v) != v) continue;
            ms = search_sum(w.c, &base, &w.t, (uint16_t)v);
            if (ms < best.ms) best = (plan_time){(uint16_t)v, ms};
        }
        CHECK(fabs(found.ms - best.ms) < 1e-9);
        CHECK(fabs(search_sum(w.c, &base, &w.t, found.value) - best.ms) < 1e-9);
        CHECK_EQ(plan_canonical(w.c, found.value), found.value);
    }
}

static bool stop(void) {
    return true;
}

/* The first tiles of each generated kernel, and all of a library. */
static int count_choices(plan_runner *r, int max_tiles) {
    int count = 0, n;
    for (int first = 0; first < CHAIN_OPS; first++)
        for (int last = first; last < CHAIN_OPS; last++) {
            if (plan_runner_template(r, first, last) == TEMPLATE_NONE) continue;
            CHECK_OK(plan_runner_n_tiles(r, first, last, &n));
            for (int tile = 0; tile < n; tile++) {
                plan_runner_set_tile(r, first, last, tile);
                bool is_library = plan_runner_tile_params(r, first, last).library != GENERATED;
                count += tile < max_tiles || is_library;
            }
        }
    return count;
}

/* Every kernel of a layer at a tiny shape: the found plan is right, its sum is that of its kernels,
 * and it is not slower than the one that the encoder has by hand. */
TEST(kernels_are_timed_and_the_path_is_right) {
    char version[256];
    kernel_cache cache;
    chain_problem *p;
    target *t;
    plan_runner *r;
    search_result e;
    problem_options o = {.n_sequences = 2,
                         .max_len = 5,
                         .n_heads = 2,
                         .dim_head = 4,
                         .attend = ATTEND_CAUSAL,
                         .seed = 5};
    search_options options = {
        .rounds = 1, .n_checks = 3, .max_tiles = 1, .seed = 1, .is_stopped = stop};
    if (!target_compiler_version(version, sizeof version)) SKIP_TEST("no C compiler");
    CHECK_OK(kernel_cache_open(&cache, test_folder()));
    CHECK_OK(chain_problem_create(&p, chain_of(CHAIN_BERT), &o));
    CHECK_OK(target_create_cpu(&t, NULL, &cache));
    CHECK_OK(plan_runner_create(&r, p, t, NULL));
    CHECK_FAILS(search_run(r, &options, &e), ERR_INTERRUPTED, "interrupted");
    options.is_stopped = NULL;
    CHECK_OK(search_run(r, &options, &e));
    CHECK(e.n_segments > CHAIN_OPS && e.n_segments <= 120);
    CHECK_EQ(e.n_timed, count_choices(r, options.max_tiles));
    CHECK(e.kernels.hand_written > 0 && e.found.ms > 0 && e.n_checked == 3 && e.position >= 1 &&
          e.position <= 4);
    double sum = search_sum(p->c, &p->shape, &e.kernels, e.found.value);
    CHECK(fabs(sum - e.predicted_ms) < 1e-9);
    CHECK(e.hand_fused_ms > 0 && e.found.ms <= e.hand_fused_ms);
    plan_runner_destroy(r);
    target_destroy(t);
    chain_problem_destroy(p);
}
