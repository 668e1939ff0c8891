#include "profile/comm_time.h"

#include "test.h"

static void add(recorder *r, span_kind kind, const char *name, uint64_t start, uint64_t end) {
    recorder_add(
        r, &(span){.kind = (uint8_t)kind, .start_ns = start, .end_ns = end, .op = RECORDER_NO_OP},
        name, NULL);
}

TEST(comm_time_is_hidden_beside_other_work) {
    static const char *const sum = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
    recorder r;
    comm_time t;
    CHECK_OK(recorder_init(&r, &(recorder_schedule){0}));
    CHECK_OK(comm_time_find(&t, &r));
    CHECK(t.n == 0 && t.all_ns == 0);
    add(&r, SPAN_KERNEL, "linear", 1000, 5000);
    add(&r, SPAN_KERNEL, sum, 4000, 9000); /* 1000 hidden */
    add(&r, SPAN_KERNEL, "ncclDevKernel_SendRecv", 8000, 10000);
    add(&r, SPAN_COPY, "copy", 9500, 9700); /* 200 */
    add(&r, SPAN_CALL, "ncclAllReduce", 0, 100000);
    add(&r, SPAN_SET, "set", 10000, 10100);  /* after it */
    add(&r, SPAN_KERNEL, sum, 20000, 23000); /* 3000: in two kernels that touch */
    add(&r, SPAN_KERNEL, "gate", 18000, 21000);
    add(&r, SPAN_KERNEL, "attn", 21000, 29000);
    add(&r, SPAN_KERNEL, sum, 26000, 0); /* not ended */
    CHECK_OK(comm_time_find(&t, &r));
    CHECK_EQ(t.n, 3);
    CHECK_EQ(t.all_ns, 6000 + 3000);
    CHECK_EQ(t.hidden_ns, 1000 + 200 + 3000);
    recorder_fini(&r);
}
