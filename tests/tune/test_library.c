#include "tune/library.h"

#include "base/rng.h"
#include "test.h"
#include "tune/plan_runner.h"

typedef struct rig {
    chain_problem *p;
    target *t;
    plan_runner *r;
} rig;

static void open_rig(rig *g, chain_layer layer) {
    kernel_cache cache;
    char version[256];
    problem_options o = {.n_sequences = 3,
                         .max_len = 13,
                         .avg_len = 7,
                         .n_heads = 2,
                         .dim_head = 8,
                         .attend = ATTEND_CAUSAL,
                         .seed = 11};
    if (!target_compiler_version(version, sizeof version)) SKIP_TEST("no C compiler");
    CHECK_OK(kernel_cache_open(&cache, test_folder()));
    CHECK_OK(chain_problem_create(&g->p, chain_of(layer), &o));
    CHECK_OK(target_create_cpu(&g->t, NULL, &cache));
    CHECK_OK(plan_runner_create(&g->r, g->p, g->t, NULL));
}

static void close_rig(rig *g) {
    plan_runner_destroy(g->r);
    target_destroy(g->t);
    chain_problem_destroy(g->p);
}

/* Makes every kernel that can be an op of the backend one, and says how many there are. */
static int choose_library(plan_runner *r) {
    const chain_problem *p = plan_runner_problem(r);
    int n = 0;
    for (int first = 0; first < CHAIN_OPS; first++)
        for (int last = first; last < CHAIN_OPS; last++) {
            runner_kernel *k;
            if (plan_template(p->c, &p->shape, first, last, NULL) == TEMPLATE_NONE) continue;
            CHECK_OK(plan_runner_kernel(r, first, last, &k));
            k->tile = k->n_tiles - 1;
            if (k->params[k->tile].library == LIBRARY)
                n++;
            else
                k->tile = 0;
        }
    return n;
}

/* Plans whose products and norms are the backend's agree with float64, whatever is fused. */
static void check_layer(chain_layer layer, int n_choices) {
    rig g;
    plan_error error;
    rng_key key = rng_make_key(3, RNG_TEST);
    open_rig(&g, layer);
    CHECK_EQ(choose_library(g.r), n_choices);
    CHECK_OK(plan_runner_check(g.r, 0x5555, &error));
    for (uint32_t i = 0; i < 25; i++) {
        uint16_t value = (uint16_t)rng_draw(key, i, 1, 0, 0).word[0];
        CHECK_OK(plan_runner_check(g.r, value, &error));
        CHECK(error.allowed < 1e-4);
    }
    close_rig(&g);
}

TEST(ops_of_the_backend_in_bert) {
    /* gemm0 to gemm3 alone, each with its bias, and two norms alone, after the bias and after the
     * product */
    check_layer(CHAIN_BERT, 14);
}
TEST(ops_of_the_backend_in_hstu) {
    /* gemm_uvqk with bias, silu and split, gemm_o with bias and residual, two norms */
    check_layer(CHAIN_HSTU, 4 + 3 + 2);
}
TEST(ops_of_the_backend_in_sasrec) {
    /* Norms without weights and the product of two inputs are no ops of the backend. */
    check_layer(CHAIN_SASREC, 4);
}

/* The plan that the encoder has by hand is made of ops of the backend alone. */
TEST(the_hand_fused_plan) {
    rig g;
    plan_program p;
    uint16_t value;
    plan_error error;
    open_rig(&g, CHAIN_BERT);
    choose_library(g.r);
    CHECK_OK(plan_from_segments("1-2,3-7,8-10,11-12,13-15", true, &value));
    plan_runner_lower(g.r, value, &p);
    CHECK_EQ(p.n_kernels, 5);
    for (int i = 0; i < p.n_kernels; i++) {
        runner_kernel *k;
        CHECK_OK(plan_runner_kernel(g.r, p.kernel[i].first, p.kernel[i].last, &k));
        CHECK(p.kernel[i].from == TEMPLATE_HAND_WRITTEN || k->params[k->tile].library == LIBRARY);
    }
    CHECK_OK(plan_runner_check(g.r, value, &error));
    close_rig(&g);
}

/* gelu by tanh is offered where its error is that of rounding: in 16 bits on a GPU. */
TEST(fast_gelu_is_for_sixteen_bits) {
    const chain *c = chain_of(CHAIN_BERT);
    backend be = {0};
    target t = {.be = &be, .act = ACT_F16, .is_cuda = true};
    CHECK(library_fits(&t, c, 10, 11, LIBRARY_FAST_GELU));
    CHECK(!library_fits(&t, c, 10, 10, LIBRARY_FAST_GELU));
    t.act = ACT_F32;
    CHECK(!library_fits(&t, c, 10, 11, LIBRARY_FAST_GELU));
    CHECK(library_fits(&t, c, 10, 11, LIBRARY));
    t.be = NULL;
    CHECK(!library_fits(&t, c, 10, 11, LIBRARY));
}
