/* Against what NVIDIA's occupancy calculator says for an H100 and an A100. */
#include "profile/occupancy.h"

#include "profile/launches.h"
#include "test.h"

static const gpu_facts h100 = {.name = "H100",
                               .sm = 90,
                               .n_multiprocessors = 132,
                               .max_warps = 64,
                               .max_blocks = 32,
                               .max_registers = 65536,
                               .max_shared = 233472};
static const gpu_facts a100 = {.name = "A100",
                               .sm = 80,
                               .n_multiprocessors = 108,
                               .max_warps = 64,
                               .max_blocks = 32,
                               .max_registers = 65536,
                               .max_shared = 167936};

static span_launch launch(int threads, uint32_t registers, uint32_t shared) {
    return (span_launch){.grid = {264, 1, 1},
                         .block = {threads, 1, 1},
                         .registers = registers,
                         .dynamic_shared = shared};
}

TEST(occupancy_is_that_of_the_calculator) {
    static const struct {
        const gpu_facts *gpu;
        int threads;
        uint32_t registers, shared, blocks, warps;
        occupancy_limit limit;
    } cases[] = {
        {&h100, 256, 32, 0, 8, 64, LIMIT_NONE},
        {&h100, 256, 64, 0, 4, 32, LIMIT_REGISTERS},
        {&h100, 256, 65, 0, 3, 24, LIMIT_REGISTERS}, /* 72 a thread, 28 warps fit, whole blocks */
        {&h100, 384, 168, 200000, 1, 12, LIMIT_REGISTERS},
        {&h100, 128, 255, 0, 2, 8, LIMIT_REGISTERS},
        {&h100, 128, 32, 100000, 2, 8, LIMIT_SHARED},
        {&h100, 128, 32, 115712, 2, 8, LIMIT_SHARED}, /* 113 KiB and 1 KiB: just two */
        {&h100, 128, 32, 115713, 1, 4, LIMIT_SHARED},
        {&h100, 32, 16, 0, 32, 32, LIMIT_BLOCKS},
        {&h100, 768, 32, 0, 2, 48, LIMIT_BLOCK},
        {&h100, 33, 16, 0, 32, 64, LIMIT_NONE}, /* 33 threads are two warps */
        {&a100, 256, 128, 0, 2, 16, LIMIT_REGISTERS},
        {&a100, 128, 32, 82944, 2, 8, LIMIT_SHARED},
        {&a100, 1024, 128, 0, 0, 0, LIMIT_TOO_LARGE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        span_launch l = launch(cases[i].threads, cases[i].registers, cases[i].shared);
        occupancy o = occupancy_find(cases[i].gpu, &l);
        if (o.blocks != cases[i].blocks || o.warps != cases[i].warps || o.limit != cases[i].limit)
            FAIL_TEST("case %zu: %u blocks, %u warps, %s", i, o.blocks, o.warps,
                      occupancy_limit_name(o.limit));
    }
    span_launch l = launch(256, 64, 0);
    occupancy o = occupancy_find(&h100, &l);
    CHECK(fabs(o.share - .5) < 1e-12);
    CHECK(fabs(o.waves - 264.0 / (4 * 132)) < 1e-12);
}

static void add(recorder *r, const char *name, uint64_t start, uint64_t end, const span_launch *l) {
    recorder_add(
        r, &(span){.kind = SPAN_KERNEL, .start_ns = start, .end_ns = end, .op = RECORDER_NO_OP},
        name, l);
}

TEST(launches_are_those_of_the_longest) {
    recorder r;
    profile_table t;
    buf text;
    span_launch small = launch(128, 255, 0), large = launch(256, 64, 0);
    small.grid[0] = 10;
    large.local = 16;
    CHECK_OK(recorder_init(&r, &(recorder_schedule){0}));
    recorder_add_gpu(&r, &h100);
    add(&r, "one", 0, 1000, &small);
    add(&r, "one", 2000, 5000, &large);
    add(&r, "two", 6000, 12000, &small);
    CHECK_OK(profile_table_make(&t, &r, REPORT_LAUNCHES));
    CHECK_EQ(t.n_rows, 2);
    CHECK_STR(t.rows[0].name, "two");
    CHECK_STR(t.rows[0].text[LAUNCH_LIMIT], "registers");
    CHECK_STR(t.rows[1].text[LAUNCH_GRID], "264,1,1");
    CHECK_EQ(t.rows[1].value[LAUNCH_COUNT], 2);
    CHECK_EQ(t.rows[1].value[LAUNCH_AVERAGE], 2000);
    CHECK_EQ(t.rows[1].value[LAUNCH_WARPS], 32);
    buf_init(&text);
    CHECK_OK(profile_table_csv(&t, -1, &text));
    CHECK_CONTAINS(buf_str(&text),
                   "\n40,2,2000,\"264,1,1\",\"256,1,1\",64,0,0,16,32,50,0.5,registers,one\n");
    buf_clear(&text);
    CHECK_OK(launches_advice(&r, &text));
    CHECK_CONTAINS(buf_str(&text), "two (60 % of the time) fills 4 % of the GPU once");
    CHECK_CONTAINS(buf_str(&text), "one (40 % of the time) uses 16 bytes of local memory");
    buf_fini(&text);
    profile_table_fini(&t);
    recorder_fini(&r);
}
