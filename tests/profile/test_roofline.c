/* The work of ops, whose time it is, and the picture. */
#include "profile/roofline.h"

#include "profile/graph_nodes.h"
#include "test.h"

static int64_t add(recorder *r, span_kind kind, const char *name, uint64_t start, uint64_t end,
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
    CHECK_OK(recorder_init(r, &(recorder_schedule){0}));
    r->peak_flop = 100e12;
    r->peak_bytes = 1000e9;
    int64_t op = add(r, SPAN_OP, "linear_fwd", 0, 100, RECORDER_NO_OP);
    recorder_set_work(r, op, 40e6, 1e6);
    add(r, SPAN_KERNEL, "gemm", 1000, 1500, op);
    add(r, SPAN_KERNEL, "bias", 1500, 2000, op);
    int64_t graph = add(r, SPAN_OP, "record_end", 2000, 2100, RECORDER_NO_OP);
    int32_t attn = recorder_name_id(r, "attn_fwd");
    for (int i = 0; i < 4; i++) {
        int64_t k = add(r, SPAN_KERNEL, "attn", 3000 + 1000 * (uint64_t)i,
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
    int64_t op = add(&r, SPAN_OP, "linear_fwd", 9000, 9100, RECORDER_NO_OP);
    add(&r, SPAN_KERNEL, "gemm", 9200, 9900, op);
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
    buf text;
    buf_init(&text);
    CHECK_OK(profile_table_csv(&t, -1, &text));
    CHECK_CONTAINS(buf_str(&text), "\nattn_fwd,0,0,0,0,0,4000,80,4000,2000,2\n");
    CHECK_CONTAINS(buf_str(&text), "\nrecord_end,50,100,50,100,100,0,0,4000,4000,1\n");
    buf_fini(&text);
    profile_table_fini(&t);
    recorder_fini(&r);
}

TEST(roofline_is_drawn_where_there_are_peaks) {
    recorder r;
    buf svg;
    make(&r);
    buf_init(&svg);
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

TEST(graph_nodes_are_found_again) {
    graph_nodes g = {0};
    graph_node n = {0};
    CHECK(!graph_nodes_find(&g, 5, &n));
    for (uint64_t i = 1; i <= 5000; i++)
        graph_nodes_add(&g, i << 20, &(graph_node){.op = (int32_t)i, .flop = (double)i});
    graph_nodes_add(&g, 7 << 20, &(graph_node){.op = 9999});
    for (uint64_t i = 1; i <= 5000; i++) {
        CHECK(graph_nodes_find(&g, i << 20, &n));
        CHECK_EQ(n.op, i == 7 ? 9999 : (int64_t)i);
    }
    CHECK(!graph_nodes_find(&g, 1, &n));
    CHECK(!graph_nodes_find(&g, 0, &n));
    CHECK_EQ(g.n, 5000);
    graph_nodes_fini(&g);
}

/* Each launch of a graph has a first kernel of each call, whichever it is. */
TEST(graph_nodes_know_the_first_kernel_of_a_call) {
    graph_nodes g = {0};
    graph_node none = {0}, a = {.op = 1, .call = 7}, b = {.op = 1, .call = 300};
    CHECK(!graph_nodes_is_first(&g, &none, 1));
    for (uint64_t launch = 1; launch < 4; launch++) {
        CHECK(graph_nodes_is_first(&g, &a, launch));
        CHECK(!graph_nodes_is_first(&g, &a, launch));
        CHECK(graph_nodes_is_first(&g, &b, launch));
        CHECK(!graph_nodes_is_first(&g, &a, launch));
        CHECK(!graph_nodes_is_first(&g, &b, launch));
    }
    graph_nodes_fini(&g);
}
