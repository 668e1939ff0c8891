#include "profile/gpu_time.h"

#include "base/mem.h"
#include "test.h"

static void add(recorder *r, span_kind kind, const char *name, uint64_t start, uint64_t end,
                uint32_t correlation) {
    recorder_add(r,
                 &(span){.kind = (uint8_t)kind,
                         .start_ns = start,
                         .end_ns = end,
                         .correlation = correlation,
                         .op = RECORDER_NO_OP},
                 name, NULL);
}

/* A launch and its kernel. */
static void launch(recorder *r, uint32_t id, uint64_t call, uint64_t start, uint64_t end) {
    add(r, SPAN_KERNEL, "kernel", start, end, id);
    add(r, SPAN_CALL, "cudaLaunchKernel", call, call + 100, id);
}

TEST(gaps_have_causes) {
    recorder r;
    gpu_idle g;
    recorder_init(&r, &(recorder_schedule){0});
    launch(&r, 1, 0, 1000, 10000);
    launch(&r, 2, 500, 12000, 20000);   /* asked for in time: 2000 */
    launch(&r, 3, 25000, 26000, 30000); /* the host was late: 6000 */
    add(&r, SPAN_CALL, "cudaStreamSynchronize", 29000, 38000, 0);
    launch(&r, 4, 38500, 40000, 50000);              /* the host waited: 10000 */
    add(&r, SPAN_COPY, "copy", 45000, 60000, 0);     /* partly under the kernel */
    add(&r, SPAN_SET, "set", 60100, 60200, 0);       /* too close to be a gap */
    add(&r, SPAN_KERNEL, "graph", 70000, 71000, 99); /* nobody asked: 9800 */
    add(&r, SPAN_KERNEL, "open", 80000, 0, 0);
    CHECK_OK(gpu_idle_find(&g, &r));
    CHECK_EQ(g.span_ns, 70000);
    CHECK_EQ(g.busy_ns, 9000 + 8000 + 4000 + 20000 + 100 + 1000);
    CHECK_EQ(g.copy_ns, 15000);
    CHECK_EQ(g.cause[GAP_LAUNCH].n, 1);
    CHECK_EQ(g.cause[GAP_LAUNCH].ns, 2000);
    CHECK_EQ(g.cause[GAP_HOST].ns, 6000);
    CHECK_EQ(g.cause[GAP_SYNC].ns, 10000);
    CHECK_EQ(g.cause[GAP_UNKNOWN].ns, 9800);
    CHECK_EQ(g.n_longest, 4);
    CHECK_EQ(g.longest[0].ns, 10000);
    CHECK_EQ(g.longest_cause[0], GAP_SYNC);
    CHECK_EQ(g.longest[3].ns, 2000);
    CHECK_STR(recorder_name(&r, &r.spans[g.longest[1].n]), "graph");
    recorder_fini(&r);
}

/* A gap from 10000 to 20000: what matters is where its launch is, and the wait of the host. */
TEST(gaps_have_causes_to_the_nanosecond) {
    static const struct {
        uint64_t call, call_end, wait, wait_end;
        gap_cause cause;
    } cases[] = {
        {10400, 10500, 0, 0, GAP_LAUNCH},       {10401, 10501, 0, 0, GAP_HOST},
        {18000, 18100, 10000, 14000, GAP_HOST}, {18000, 18100, 10000, 14001, GAP_SYNC},
        {18000, 18100, 5000, 14001, GAP_SYNC},  {18000, 18100, 5000, 14000, GAP_HOST},
        {18000, 18100, 13999, 30000, GAP_SYNC}, {18000, 18100, 14000, 30000, GAP_HOST},
        {18000, 18100, 5000, 0, GAP_HOST},    /* a wait that never ended */
        {9000, 15000, 9500, 15000, GAP_SYNC}, /* another thread waits while it launches */
        {9000, 15000, 0, 10000, GAP_HOST},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        recorder r;
        gpu_idle g;
        recorder_init(&r, &(recorder_schedule){0});
        add(&r, SPAN_KERNEL, "kernel", 1000, 10000, 0);
        add(&r, SPAN_KERNEL, "kernel", 20000, 21000, 1);
        add(&r, SPAN_CALL, "cudaLaunchKernel", cases[i].call, cases[i].call_end, 1);
        add(&r, SPAN_CALL, "cudaEventSynchronize", cases[i].wait, cases[i].wait_end, 2);
        CHECK_OK(gpu_idle_find(&g, &r));
        if (g.n_longest != 1 || g.longest_cause[0] != cases[i].cause)
            FAIL_TEST("case %zu: %d gaps, %s", i, g.n_longest, gap_cause_name(g.longest_cause[0]));
        recorder_fini(&r);
    }
}

TEST(queue_counts_what_has_not_begun) {
    static const queue_point want[] = {{100, 2}, {500, 1}, {1000, 1}, {2000, 0}};
    recorder r;
    queue_point *points;
    size_t n;
    recorder_init(&r, &(recorder_schedule){0});
    launch(&r, 1, 100, 1000, 1500);
    launch(&r, 2, 100, 500, 800);
    launch(&r, 3, 1000, 2000, 2500);
    add(&r, SPAN_KERNEL, "nobody asked", 300, 400, 99);
    add(&r, SPAN_CALL, "launches nothing", 300, 400, 98);
    CHECK_OK(queue_find(&r, &points, &n));
    CHECK_EQ(n, 4);
    for (size_t i = 0; i < n; i++)
        CHECK(points[i].ns == want[i].ns && points[i].waiting == want[i].waiting);
    mem_free(points);
    recorder_fini(&r);
}

TEST(gaps_give_advice_where_something_stands_out) {
    buf text = {0};
    gpu_idle g = {.span_ns = 1000, .busy_ns = 950};
    g.cause[GAP_HOST] = (gap_sum){5, 50};
    CHECK_OK(gpu_idle_advice(&g, &text));
    CHECK_STR(buf_str(&text), "");
    g.cause[GAP_HOST].ns = 400;
    CHECK_OK(gpu_idle_advice(&g, &text));
    CHECK_CONTAINS(buf_str(&text), "idle for 40 % of the time because the host was late");
    g = (gpu_idle){0};
    buf_clear(&text);
    CHECK_OK(gpu_idle_advice(&g, &text));
    CHECK_STR(buf_str(&text), "");
    static const char *const words[] = {
        "30 % of the time because the host was late", "20 % of the time while the host waited",
        "11 % of the time starting kernels", "Copies between host and GPU took 21 %"};
    g = (gpu_idle){.span_ns = 1000, .copy_ns = 210};
    g.cause[GAP_HOST].ns = 300;
    g.cause[GAP_SYNC].ns = 200;
    g.cause[GAP_LAUNCH].ns = 110;
    g.cause[GAP_UNKNOWN].ns = 900; /* nothing to advise */
    CHECK_OK(gpu_idle_advice(&g, &text));
    for (int i = 0; i < 4; i++)
        CHECK_CONTAINS(buf_str(&text), words[i]);
    buf_clear(&text);
    g.copy_ns = 200; /* at its limit, as the rest */
    g.cause[GAP_HOST].ns = g.cause[GAP_SYNC].ns = g.cause[GAP_LAUNCH].ns = 100;
    CHECK_OK(gpu_idle_advice(&g, &text));
    CHECK_STR(buf_str(&text), "");
    buf_fini(&text);
}

TEST(gaps_of_many_kernels_keep_the_longest) {
    recorder r;
    gpu_idle g;
    recorder_init(&r, &(recorder_schedule){0});
    uint64_t at = 1000;
    for (uint32_t i = 0; i < 100; i++) {
        uint64_t gap = 1000 + (uint64_t)(i * 37 % 100) * 100;
        add(&r, SPAN_KERNEL, "kernel", at, at + 500, 0);
        at += 500 + gap;
    }
    CHECK_OK(gpu_idle_find(&g, &r));
    CHECK_EQ(g.n_longest, 8);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(g.longest[i].ns, 1000 + (uint64_t)(99 - i) * 100);
    recorder_fini(&r);
}

static void add_named(recorder *r, span_kind kind, const char *name, uint64_t start, uint64_t end) {
    recorder_add(
        r, &(span){.kind = (uint8_t)kind, .start_ns = start, .end_ns = end, .op = RECORDER_NO_OP},
        name, NULL);
}

TEST(comm_time_is_hidden_beside_other_work) {
    static const char *const sum = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
    recorder r;
    comm_time t;
    recorder_init(&r, &(recorder_schedule){0});
    CHECK_OK(comm_time_find(&t, &r));
    CHECK(t.n == 0 && t.all_ns == 0);
    add_named(&r, SPAN_KERNEL, "linear", 1000, 5000);
    add_named(&r, SPAN_KERNEL, sum, 4000, 9000); /* 1000 hidden */
    add_named(&r, SPAN_KERNEL, "ncclDevKernel_SendRecv", 8000, 10000);
    add_named(&r, SPAN_COPY, "copy", 9500, 9700); /* 200 */
    add_named(&r, SPAN_CALL, "ncclAllReduce", 0, 100000);
    add_named(&r, SPAN_SET, "set", 10000, 10100);  /* after it */
    add_named(&r, SPAN_KERNEL, sum, 20000, 23000); /* 3000: in two kernels that touch */
    add_named(&r, SPAN_KERNEL, "gate", 18000, 21000);
    add_named(&r, SPAN_KERNEL, "attn", 21000, 29000);
    add_named(&r, SPAN_KERNEL, sum, 26000, 0); /* not ended */
    CHECK_OK(comm_time_find(&t, &r));
    CHECK_EQ(t.n, 3);
    CHECK_EQ(t.all_ns, 6000 + 3000);
    CHECK_EQ(t.hidden_ns, 1000 + 200 + 3000);
    recorder_fini(&r);
}

static uint64_t union_ns(interval *all, size_t n) {
    return interval_join(all, &n);
}

#define UNION(...)                                                                                 \
    union_ns((interval[]){__VA_ARGS__}, sizeof((interval[]){__VA_ARGS__}) / sizeof(interval))

TEST(interval_union_counts_time_once) {
    CHECK_EQ(union_ns(NULL, 0), 0);
    CHECK_EQ(UNION({10, 30}), 20);
    CHECK_EQ(UNION({10, 10}), 0);
    CHECK_EQ(UNION({10, 20}, {30, 35}), 15);
    CHECK_EQ(UNION({30, 35}, {10, 20}), 15);                      /* in any order */
    CHECK_EQ(UNION({10, 20}, {20, 30}), 20);                      /* touching */
    CHECK_EQ(UNION({10, 20}, {15, 30}), 20);                      /* overlapping */
    CHECK_EQ(UNION({10, 100}, {20, 30}, {40, 50}, {90, 95}), 90); /* one inside the other */
    CHECK_EQ(UNION({10, 20}, {10, 20}, {10, 15}), 10);
    CHECK_EQ(UNION({10, 20}, {12, 14}, {18, 25}, {40, 41}, {24, 30}), 21);
    /* Device clocks count nanoseconds of years. */
    uint64_t now = UINT64_C(1790000000000000000);
    CHECK_EQ(UNION({now + 5, now + 9}, {now, now + 6}), 9);
}

/* Against marks on a line, for all sorts of overlaps. */
TEST(interval_union_is_that_of_a_drawn_line) {
    uint32_t seed = 1;
    for (int round = 0; round < 200; round++) {
        interval all[24];
        bool mark[128] = {false};
        int n = round % 24 + 1, n_marked = 0;
        for (int i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            all[i].start_ns = seed >> 25;
            all[i].end_ns = all[i].start_ns + (seed >> 8) % 20;
            if (all[i].end_ns > 128) all[i].end_ns = 128;
            for (uint64_t t = all[i].start_ns; t < all[i].end_ns; t++)
                mark[t] = true;
        }
        for (int t = 0; t < 128; t++)
            n_marked += mark[t];
        CHECK_EQ(union_ns(all, (size_t)n), n_marked);
    }
}
