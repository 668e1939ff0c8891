

/* Against what NVIDIA's occupancy calculator says for an H100 and an A100. */
#include "profile/utilization.h"

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
    buf text = {0};
    span_launch small = launch(128, 255, 0), large = launch(256, 64, 0);
    small.grid[0] = 10;
    large.local = 16;
    recorder_init(&r, &(recorder_schedule){0});
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

/* The work of ops, whose time it is, and the picture. */

static int64_t add_op(recorder *r, span_kind kind, const char *name, uint64_t start, uint64_t end,
                      int64_t by) {
    recorder_add(r, &(span){.kind = (uint8_t)kind, .start_ns = start, .end_ns = end, .op = by},
                 name, NULL);
    return (int64_t)r->n_spans - 1;
}

static const profile_row *find(const profile_table *t, const char *name) {
    for (size_t i = 0; i < t->n_rows; i++)
        if (strcmp(t->rows[i].name, name) == 0) return &t->rows[i];
    FAIL_TEST("no row of %s", name);
    return NULL;
}

/* An op with two kernels, and one whose kernels are nodes of a graph that ran twice. */
static void make(recorder *r) {
    recorder_init(r, &(recorder_schedule){0});
    r->peak_flop = 100e12;
    r->peak_bytes = 1000e9;
    int64_t op = add_op(r, SPAN_OP, "linear_fwd", 0, 100, RECORDER_NO_OP);
    recorder_set_work(r, op, 40e6, 1e6);
    add_op(r, SPAN_KERNEL, "gemm", 1000, 1500, op);
    add_op(r, SPAN_KERNEL, "bias", 1500, 2000, op);
    int64_t graph = add_op(r, SPAN_OP, "record_end", 2000, 2100, RECORDER_NO_OP);
    int32_t attn = recorder_name_id(r, "attn_fwd");
    for (int i = 0; i < 4; i++) {
        int64_t k = add_op(r, SPAN_KERNEL, "attn", 3000 + 1000 * (uint64_t)i,
                           4000 + 1000 * (uint64_t)i, graph);
        r->spans[k].graph_op = attn + 1;
        r->spans[k].is_first = i % 2 == 0;
        recorder_set_work(r, k, i % 2 == 0 ? 100e6 : 0, i % 2 == 0 ? 1e6 : 0);
        r->spans[k].has_work = true;
    }
}

TEST(roofline_counts_work_against_time) {
    recorder r;
    profile_table t;
    make(&r);
    /* A call whose work nobody knows does not count, nor does its kernel. */
    int64_t op = add_op(&r, SPAN_OP, "linear_fwd", 9000, 9100, RECORDER_NO_OP);
    add_op(&r, SPAN_KERNEL, "gemm", 9200, 9900, op);
    CHECK_OK(profile_table_make(&t, &r, REPORT_WORK));
    CHECK_EQ(t.n_rows, 2);
    const double *v = find(&t, "linear_fwd")->value;
    CHECK_EQ(v[ROOF_TOTAL], 1000);
    CHECK_EQ(v[ROOF_COUNT], 1);
    CHECK(fabs(v[ROOF_FLOP] - 40) < 1e-9); /* TFLOP/s */
    CHECK(fabs(v[ROOF_BYTES] - 1000) < 1e-9);
    CHECK(fabs(v[ROOF_OF_FLOP] - 40) < 1e-9);
    CHECK(fabs(v[ROOF_OF_BYTES] - 100) < 1e-9);
    CHECK(fabs(v[ROOF_SHARE] - 20) < 1e-9);
    v = find(&t, "attn_fwd")->value;
    CHECK_EQ(v[ROOF_TOTAL], 4000);
    CHECK_EQ(v[ROOF_COUNT], 2);
    CHECK(fabs(v[ROOF_FLOP] - 50) < 1e-9);
    CHECK(fabs(v[ROOF_INTENSITY] - 100) < 1e-9);
    profile_table_fini(&t);
    recorder_fini(&r);
}

/* In key_averages the op of a graph has its kernels, and the launch of the graph only their total.
 */
TEST(roofline_ops_of_graphs_have_their_kernels) {
    recorder r;
    profile_table t;
    make(&r);
    CHECK_OK(profile_table_make(&t, &r, REPORT_OPS));
    buf text = {0};
    CHECK_OK(profile_table_csv(&t, -1, &text));
    CHECK_CONTAINS(buf_str(&text), "\nattn_fwd,0,0,0,0,0,4000,80,4000,2000,2\n");
    CHECK_CONTAINS(buf_str(&text), "\nrecord_end,50,100,50,100,100,0,0,4000,4000,1\n");
    buf_fini(&text);
    profile_table_fini(&t);
    recorder_fini(&r);
}

TEST(roofline_is_drawn_where_there_are_peaks) {
    recorder r;
    buf svg = {0};
    make(&r);
    CHECK_OK(roofline_svg(&r, &svg));
    CHECK_CONTAINS(buf_str(&svg), "<svg viewBox=");
    CHECK_CONTAINS(buf_str(&svg),
                   "<title>attn_fwd: 50 TFLOP/s, 500 GB/s, 80.0 % of the time</title>");
    CHECK(strstr(buf_str(&svg), "nan") == NULL && strstr(buf_str(&svg), "inf") == NULL);
    buf_clear(&svg);
    CHECK_OK(roofline_advice(&r, &svg));
    CHECK_STR(buf_str(&svg), "");
    r.peak_flop *= 10; /* now it is far below */
    r.peak_bytes *= 10;
    CHECK_OK(roofline_advice(&r, &svg));
    CHECK_CONTAINS(buf_str(&svg),
                   "attn_fwd takes 80 % of the time of ops at 5 % of the arithmetic");
    buf_clear(&svg);
    r.peak_bytes = 0;
    CHECK_OK(roofline_svg(&r, &svg));
    CHECK_STR(buf_str(&svg), "");
    buf_fini(&svg);
    recorder_fini(&r);
}
