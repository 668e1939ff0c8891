#include "tune/search.h"

#include "base/rng.h"
#include "test.h"
#include "tune/cost_model.h"

static const chain_shape base = {
    .n_sequences = 1, .max_len = 128, .n_heads = 12, .dim_head = 64, .n_tokens = 128};

/* Times that are sums of kernels, with costs that make some fusions pay and others not. */
typedef struct world {
    const chain *c;
    kernel_times t;
    int n_asked;
    uint16_t hidden; /* plans below it are not known */
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

static status measure(void *ctx, uint16_t value, double *ms) {
    world *w = ctx;
    CHECK_EQ(plan_canonical(w->c, value), value);
    w->n_asked++;
    *ms = search_sum(w->c, &base, &w->t, value);
    return OK;
}

static bool contains(void *ctx, uint16_t value) {
    return value >= ((world *)ctx)->hidden;
}

static plan_oracle oracle_of(world *w) {
    return (plan_oracle){.c = w->c, .shape = base, .ctx = w, .measure = measure};
}

static plan_time best_of(const world *w, uint16_t from) {
    plan_time best = {0, INFINITY};
    for (unsigned v = from; v < PLAN_CODES; v++) {
        double ms = search_sum(w->c, &base, &w->t, (uint16_t)v);
        if (plan_canonical(w->c, (uint16_t)v) == v && ms < best.ms)
            best = (plan_time){(uint16_t)v, ms};
    }
    return best;
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

static bool same_questions(const search_result *a, const search_result *b) {
    for (size_t i = 0; i < a->measured.n; i++)
        if (a->measured.item[i].value != b->measured.item[i].value) return false;
    return a->measured.n == b->measured.n;
}

static bool is_runnable(search_kind kind) {
    char version[64];
    return kind != SEARCH_XGBOOST || cost_model_version(version, sizeof version);
}

/* Each program once, within the budget, the best of them reported, and the same again. */
TEST(every_search_keeps_to_its_budget) {
    for (int kind = 0; kind < N_SEARCHES; kind++) {
        world w = make_world(CHAIN_BERT, 3);
        plan_oracle o = oracle_of(&w);
        search_result r, again;
        if (!is_runnable((search_kind)kind)) continue;
        CHECK_OK(search_run((search_kind)kind, &o, 60, 5, &r));
        CHECK_EQ(r.measured.n, 60);
        CHECK_EQ(w.n_asked, 60);
        double best = INFINITY;
        static bool is_seen[PLAN_CODES];
        memset(is_seen, 0, sizeof is_seen);
        for (size_t i = 0; i < r.measured.n; i++) {
            CHECK(!is_seen[r.measured.item[i].value]);
            is_seen[r.measured.item[i].value] = true;
            best = fmin(best, r.measured.item[i].ms);
        }
        CHECK(best == r.best.ms);
        CHECK_OK(search_run((search_kind)kind, &o, 60, 5, &again));
        CHECK(same_questions(&again, &r));
        search_result_fini(&again);
        CHECK_OK(search_run((search_kind)kind, &o, 60, 6, &again));
        CHECK(!same_questions(&again, &r));
        search_result_fini(&again);
        search_result_fini(&r);
    }
}

/* Where times add up, solving for the kernels finds the optimum; blind draws do not. */
TEST(searches_find_what_they_should) {
    double regret[N_SEARCHES] = {0};
    for (int i = 0; i < (test_is_brief() ? 1 : 3); i++) {
        world w = make_world((chain_layer)(i % N_CHAINS), (uint64_t)i + 20);
        plan_oracle o = oracle_of(&w);
        double optimum = search_shortest_path(w.c, &w.t).ms;
        for (int kind = 0; kind < N_SEARCHES; kind++) {
            search_result r;
            if (!is_runnable((search_kind)kind)) continue;
            CHECK_OK(search_run((search_kind)kind, &o, 128, (uint64_t)i, &r));
            regret[kind] += (r.best.ms / optimum - 1) / 3;
            search_result_fini(&r);
        }
    }
    CHECK(regret[SEARCH_EXACT] < 0.005);
    if (test_is_brief()) return; /* one world is not enough to tell the others apart */
    CHECK(regret[SEARCH_RANDOM] > 0.02);
    CHECK(regret[SEARCH_ANNEAL] < regret[SEARCH_RANDOM]);
    CHECK(regret[SEARCH_GROUPED] < regret[SEARCH_RANDOM]);
    if (is_runnable(SEARCH_XGBOOST)) CHECK(regret[SEARCH_XGBOOST] < regret[SEARCH_RANDOM]);
}

/* A replay of few plans: all of them are asked, and no other. */
TEST(searches_of_few_known_plans) {
    for (int kind = 0; kind < N_SEARCHES; kind++) {
        world w = make_world(CHAIN_HSTU, 9);
        plan_oracle o = oracle_of(&w);
        search_result r;
        o.contains = contains;
        w.hidden = 0x3fe0; /* 32 plans without bit 0, and those with it */
        plan_time best = best_of(&w, w.hidden);
        if (!is_runnable((search_kind)kind)) continue;
        CHECK_OK(search_run((search_kind)kind, &o, 5000, 1, &r));
        for (size_t i = 0; i < r.measured.n; i++)
            CHECK(r.measured.item[i].value >= w.hidden);
        if (kind == SEARCH_RANDOM || kind == SEARCH_EXACT) CHECK(r.best.ms == best.ms);
        search_result_fini(&r);
    }
    world w = make_world(CHAIN_HSTU, 9);
    plan_oracle o = oracle_of(&w);
    search_result r;
    o.contains = contains;
    w.hidden = 0xffff;
    CHECK_FAILS(search_run(SEARCH_RANDOM, &o, 5, 1, &r), ERR_FORMAT, "no plan times");
}

static bool stop(void) {
    return true;
}

/* The first tiles of each generated kernel, and all of a library. */
static int count_choices(plan_runner *r, int max_tiles) {
    const chain_problem *p = plan_runner_problem(r);
    int count = 0;
    for (int first = 0; first < CHAIN_OPS; first++)
        for (int last = first; last < CHAIN_OPS; last++) {
            runner_kernel *k;
            if (plan_template(p->c, &p->shape, first, last, NULL) == TEMPLATE_NONE) continue;
            CHECK_OK(plan_runner_kernel(r, first, last, &k));
            for (int tile = 0; tile < k->n_tiles; tile++)
                count += tile < max_tiles || k->params[tile].library != GENERATED;
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
    CHECK(e.n_segments > CHAIN_OPS && e.n_segments <= 120);
    CHECK_EQ(e.n_timed, count_choices(r, options.max_tiles));
    CHECK(e.kernels.hand_written > 0 && e.found.ms > 0 && e.n_checked == 3 && e.position >= 1 &&
          e.position <= 4);
    double sum = search_sum(p->c, &p->shape, &e.kernels, e.found.value);
    CHECK(fabs(sum - e.predicted_ms) < 1e-9);
    CHECK(e.hand_fused_ms > 0 && e.found.ms <= e.hand_fused_ms);
    exact_result_fini(&e);
    plan_runner_destroy(r);
    target_destroy(t);
    chain_problem_destroy(p);
}
