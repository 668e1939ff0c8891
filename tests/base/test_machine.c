#include "base/machine.h"
#include "base/rng.h"
#include "prep_test.h"
#include "test.h"
#include "tune/library.h"
#include "tune/plan_runner.h"

TEST(machine_parses_memory) {
    const char *text =
        "MemTotal:       25000000 kB\nMemFree:   1 kB\nMemAvailable:   24000000 kB\n";
    CHECK_EQ(machine_parse_meminfo(text, "MemTotal"), 25000000ll * 1024);
    CHECK_EQ(machine_parse_meminfo(text, "MemAvailable"), 24000000ll * 1024);
    CHECK_EQ(machine_parse_meminfo(text, "Mem"), 0);
    CHECK_EQ(machine_parse_meminfo("", "MemTotal"), 0);
}

TEST(machine_names_the_cpu) {
    char name[64];
    machine_parse_cpu("processor\t: 0\nmodel name\t: AMD EPYC 9654\nmodel\t: 1\n", name, 64);
    CHECK_STR(name, "AMD EPYC 9654");
    machine_parse_cpu("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", name, 64);
    CHECK_STR(name, "Neoverse V2");
    machine_parse_cpu("CPU implementer\t: 0x99\nCPU part\t: 0x001\n", name, 64);
    CHECK_STR(name, "Arm core 0x99/0x1");
    machine_parse_cpu("nothing of use", name, 64);
    CHECK_STR(name, "");
}

TEST(machine_parses_limits) {
    CHECK_EQ(machine_parse_limit("1073741824\n"), 1 << 30);
    CHECK_EQ(machine_parse_limit("max\n"), 0);
    CHECK_EQ(machine_parse_limit("9223372036854771712\n"), 0); /* "none" of version 1 */
}

TEST(machine_knows_this_machine) {
    machine m;
    machine_ask(&m);
    CHECK(m.n_usable_cores >= 1 && m.n_cores >= m.n_usable_cores);
    CHECK(m.total_bytes >= m.available_bytes && m.available_bytes > 0);
    CHECK_CONTAINS(m.system, "Linux");
}

/* The quota of a process in these cgroups, whose files are in the test's folder. */
static double quota_of(const char *own) {
    char path[4096];
    put_file("own", own);
    snprintf(path, sizeof path, "%s/own", test_folder());
    return cpu_quota(path, test_folder());
}

TEST(cpu_quota_of_version_2) {
    CHECK(quota_of("0::/\n") == 0);
    put_file("cpu.max", "max 100000\n");
    CHECK(quota_of("0::/\n") == 0);
    put_file("cpu.max", "250000 100000\n");
    CHECK(quota_of("0::/\n") == 2.5);
    CHECK(quota_of("0::/kubepods/pod1\n") == 2.5); /* a path that only the host has */
    put_file("kubepods/cpu.max", "150000 100000\n");
    put_file("kubepods/pod1/cpu.max", "max 100000\n");
    CHECK(quota_of("0::/kubepods/pod1\n") == 1.5);
    put_file("kubepods/pod1/cpu.max", "1000 100000\n");
    CHECK(quota_of("0::/kubepods/pod1\n") == .01);
    CHECK(quota_of("0::/kubepods\n") == 1.5);
}

TEST(cpu_quota_of_version_1) {
    put_file("cpu/cpu.cfs_quota_us", "-1\n");
    put_file("cpu/cpu.cfs_period_us", "100000\n");
    CHECK(quota_of("4:cpu,cpuacct:/\n") == 0);
    put_file("cpu/cpu.cfs_quota_us", "400000\n");
    CHECK(quota_of("7:memory:/x\n4:cpuacct,cpu:/docker/1\n0::/\n") == 4);
    CHECK(quota_of("7:cpuset:/\n3:cpuacct:/\n") == 0);
    put_file("cpu/docker/cpu.cfs_quota_us", "50000\n");
    put_file("cpu/docker/cpu.cfs_period_us", "100000\n");
    CHECK(quota_of("4:cpu:/docker/1\n") == .5);
}

TEST(cpu_quota_of_files_that_make_no_sense) {
    static const char *const bad[] = {
        "", "1", "100000", "-5 100000", "100000 0", "nan 1", "1e300 1e-300", "x y", "5 -5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_file("cpu.max", bad[i]);
        CHECK(quota_of("0::/\n") == 0);
    }
    put_file("cpu.max", "200000 100000\n");
    CHECK(quota_of("\n0\n0:\n0::\n0::x\n::\n") == 0);
    CHECK(cpu_quota("/nonexistent", test_folder()) == 0);
}

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
    int n = 0;
    for (int first = 0; first < CHAIN_OPS; first++)
        for (int last = first; last < CHAIN_OPS; last++) {
            if (plan_runner_template(r, first, last) == TEMPLATE_NONE) continue;
            int choice = plan_runner_find_library(r, first, last, LIBRARY);
            if (choice < 0) continue;
            plan_runner_set_tile(r, first, last, choice);
            n++;
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
    for (int i = 0; i < p.n_kernels; i++)
        CHECK(p.kernel[i].from == TEMPLATE_HAND_WRITTEN ||
              plan_runner_tile_params(g.r, p.kernel[i].first, p.kernel[i].last).library == LIBRARY);
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
