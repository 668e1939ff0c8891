#include "tune/plan_runner.h"

#include "base/rng.h"
#include "test.h"

/* Two sequences that are no multiples of any tile. */
static problem_options small(attend_kind attend) {
    return (problem_options){.n_sequences = 3,
                             .max_len = 21,
                             .avg_len = 12,
                             .n_heads = 3,
                             .dim_head = 8,
                             .attend = attend,
                             .act = ACT_F32,
                             .seed = 7};
}

typedef struct rig {
    chain_problem *p;
    target *t;
    plan_runner *r;
} rig;

static void open_rig(rig *g, chain_layer layer, const problem_options *o) {
    kernel_cache cache;
    char version[256];
    if (!target_compiler_version(version, sizeof version)) SKIP_TEST("no C compiler");
    CHECK_OK(kernel_cache_open(&cache, test_folder()));
    CHECK_OK(chain_problem_create(&g->p, chain_of(layer), o));
    CHECK_OK(target_create_cpu(&g->t, NULL, &cache));
    CHECK_OK(plan_runner_create(&g->r, g->p, g->t, NULL));
}

static void close_rig(rig *g) {
    plan_runner_destroy(g->r);
    target_destroy(g->t);
    chain_problem_destroy(g->p);
}

/* 200 random plans; every kernel that any plan can have is among them with near certainty, and the
 * two ends of the chain's fusion are added. */
static void check_random_plans(chain_layer layer) {
    rig g;
    problem_options o = small(ATTEND_CAUSAL);
    if (layer == CHAIN_BERT) o.dim_ffn = 70;
    open_rig(&g, layer, &o);
    rng_key key = rng_make_key(19, RNG_TEST);
    uint32_t n = test_is_brief() ? 4 : 200;
    for (uint32_t i = 0; i < n + 2; i++) {
        uint16_t value = (uint16_t)rng_draw(key, i, 1, 0, 0).word[0];
        plan_error error;
        if (i == n) value = 0;
        if (i == n + 1) value = 0x5555;
        CHECK_OK(plan_runner_check(g.r, value, &error));
        CHECK(error.found <= error.allowed && error.allowed < 1e-4);
    }
    close_rig(&g);
}

TEST(random_plans_of_bert_are_right) {
    check_random_plans(CHAIN_BERT);
}
TEST(random_plans_of_hstu_are_right) {
    check_random_plans(CHAIN_HSTU);
}
TEST(random_plans_of_sasrec_are_right) {
    check_random_plans(CHAIN_SASREC);
}

/* A mask that no formula of the kernels has: random blocks beside a window, with all templates and
 * the hand-written attention. */
TEST(masks_are_bytes) {
    static const uint16_t plans[] = {0, 0xa0ff, 0x5555};
    mask *rule;
    CHECK_OK(mask_create(&rule, "bigbird,window=2,global=1"));
    for (int layer = 0; layer < N_CHAINS; layer++) {
        rig g;
        problem_options o = small(ATTEND_ALL);
        o.rule = rule;
        open_rig(&g, (chain_layer)layer, &o);
        CHECK_EQ(g.p->attend, ATTEND_BYTES);
        for (int i = 0; i < (layer == CHAIN_BERT && !test_is_brief() ? 3 : 1); i++) {
            plan_error error;
            CHECK_OK(plan_runner_check(g.r, plans[i], &error));
        }
        close_rig(&g);
    }
    mask_destroy(rule);
}

/* A damaged entry of the cache is compiled again. */
TEST(damaged_kernels_are_rebuilt) {
    rig g;
    problem_options o = small(ATTEND_ALL);
    plan_error error;
    open_rig(&g, CHAIN_SASREC, &o);
    CHECK_OK(plan_runner_check(g.r, 0, &error));
    close_rig(&g);
    CHECK_EQ(test_command(NULL,
                          "for f in '%s'/*.so; do printf x | dd of=$f bs=1 seek=700 conv=notrunc "
                          "2>/dev/null; done",
                          test_folder()),
             0);
    open_rig(&g, CHAIN_SASREC, &o);
    CHECK_OK(plan_runner_check(g.r, 0, &error));
    close_rig(&g);
}
