/* Bars of a trace nest in their rows. */
#include "profile/trace.h"

#include <stdlib.h>

#include "base/mem.h"
#include "test.h"

static uint64_t row_of(const void *ctx, const span *s) {
    (void)ctx;
    return s->lane;
}

static void add(recorder *r, span_kind kind, int lane, uint64_t start, uint64_t end, int64_t op) {
    span s = {.kind = (uint8_t)kind, .lane = (uint16_t)lane, .start_ns = start, .end_ns = end};
    s.op = op;
    recorder_add(r, &s, "x", NULL);
}

TEST(trace_rows_of_calls_and_kernels) {
    recorder r;
    const recorder_schedule all = {0};
    row_place *at;
    recorder_init(&r, &all);
    add(&r, SPAN_OP, 0, 1000, 9000, RECORDER_NO_OP);      /* 0 */
    add(&r, SPAN_CALL, 0, 990, 2000, 0);                  /* 1: begins a little before its op */
    add(&r, SPAN_CALL, 0, 8000, 9100, 0);                 /* 2: ends a little after it */
    add(&r, SPAN_CALL, 0, 8990, 9300, RECORDER_NO_OP);    /* 3: its op is not known */
    add(&r, SPAN_CALL, 0, 5000, 900000, RECORDER_NO_OP);  /* 4: of another thread */
    add(&r, SPAN_KERNEL, 7, 1000, 3000, RECORDER_NO_OP);  /* 5 */
    add(&r, SPAN_KERNEL, 7, 2900, 5000, RECORDER_NO_OP);  /* 6: begins before the last one ends */
    add(&r, SPAN_KERNEL, 7, 5000, 6000, RECORDER_NO_OP);  /* 7 */
    add(&r, SPAN_KERNEL, 7, 2950, 70000, RECORDER_NO_OP); /* 8: so does this one */
    CHECK_OK(rows_arrange(&r, row_of, NULL, &at));
    CHECK_EQ(at[0].start_ns, 1000);
    CHECK_EQ(at[0].end_ns, 9000);
    CHECK_EQ(at[1].start_ns, 1000);
    CHECK_EQ(at[1].end_ns, 2000);
    CHECK_EQ(at[2].end_ns, 9000);
    CHECK_EQ(at[3].end_ns, 9000);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(at[i].beside, 0);
    CHECK_EQ(at[4].beside, 1);
    CHECK_EQ(at[4].end_ns, 900000);
    CHECK_EQ(at[5].beside, 0);
    CHECK_EQ(at[6].beside, 1);
    CHECK_EQ(at[6].end_ns, 5000);
    CHECK_EQ(at[7].beside, 0);
    CHECK_EQ(at[8].beside, 2);
    mem_free(at);
    recorder_fini(&r);
}

/* Whatever there is, in no row does a bar begin inside another and end after it. */
TEST(trace_rows_always_nest) {
    recorder r;
    const recorder_schedule all = {0};
    row_place *at;
    recorder_init(&r, &all);
    uint64_t state = 3;
    for (int i = 0; i < 400; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t start = (state >> 33) % 100000, length = (state >> 20) % 9000;
        add(&r, i % 3 == 0 ? SPAN_CALL : SPAN_KERNEL, i % 2, start + 1, start + 1 + length,
            RECORDER_NO_OP);
    }
    CHECK_OK(rows_arrange(&r, row_of, NULL, &at));
    for (size_t i = 0; i < r.n_spans; i++)
        for (size_t k = 0; k < r.n_spans; k++) {
            CHECK(at[i].end_ns >= at[i].start_ns && at[i].beside <= ROWS_MAX_BESIDE);
            if (r.spans[i].lane != r.spans[k].lane || at[i].beside != at[k].beside) continue;
            bool crosses = at[i].start_ns < at[k].start_ns && at[k].start_ns < at[i].end_ns &&
                           at[i].end_ns < at[k].end_ns;
            CHECK(!crosses);
        }
    mem_free(at);
    recorder_fini(&r);
}
