#include "profile/profiler.h"

#include <signal.h>

#include "base/range.h"
#include "test.h"

static void step(const char *inside) {
    range_begin("step", RANGE_NO_NUMBER);
    range_begin(inside, 0);
    range_end();
    range_end();
    range_step();
}

static int count_named(const profile *p, const char *name) {
    int n = 0;
    for (size_t i = 0; i < p->recorder.n_spans; i++)
        n += strcmp(recorder_name(&p->recorder, &p->recorder.spans[i]), name) == 0;
    return n;
}

/* Off, on, off, by a signal each; two between two looks are none. */
TEST(profiler_is_switched_by_a_signal) {
    profile p;
    CHECK_OK(profiler_start(&p, &(profiler_options){.has_host = true, .toggle = SIGUSR1}));
    step("one");
    raise(SIGUSR1);
    step("two");
    step("two");
    raise(SIGUSR1);
    step("three");
    raise(SIGUSR1);
    raise(SIGUSR1);
    step("four");
    CHECK_OK(profiler_stop(&p));
    CHECK_EQ(count_named(&p, "one 0"), 0);
    CHECK_EQ(count_named(&p, "two 0"), 2);
    CHECK_EQ(count_named(&p, "three 0"), 0);
    CHECK_EQ(count_named(&p, "four 0"), 0);
    CHECK(profile_recorded_ns(&p) > 0 && profile_recorded_ns(&p) < p.end_ns - p.start_ns);
    profile_fini(&p);
}

TEST(profiler_keeps_a_range) {
    profile p;
    CHECK_OK(profiler_start(&p, &(profiler_options){.has_host = true, .range = "layer 0"}));
    range_begin("step", RANGE_NO_NUMBER);
    range_begin("layer", 0);
    range_begin("inner", RANGE_NO_NUMBER);
    range_end();
    range_end();
    range_begin("layer", 1);
    range_end();
    range_end();
    CHECK_OK(profiler_stop(&p));
    CHECK_EQ(p.recorder.n_spans, 2);
    const span *s = p.recorder.spans;
    CHECK_STR(recorder_name(&p.recorder, &s[0]), "layer 0");
    CHECK_STR(recorder_name(&p.recorder, &s[1]), "inner");
    CHECK_EQ(s[0].op, RECORDER_NO_OP);
    CHECK_EQ(s[1].op, 0);
    CHECK_EQ(profile_recorded_ns(&p), s[0].end_ns - s[0].start_ns);
    profile_fini(&p);
}

/* Of five recorded steps three are between two others; so are all but the first after them. */
TEST(profiler_measures_what_it_costs) {
    profile p;
    double with, without;
    profiler_options o = {.has_host = true, .schedule = {.warmup = 1, .active = 5, .repeat = 1}};
    CHECK_OK(profiler_start(&p, &o));
    for (int i = 0; i < 9; i++)
        step("layer");
    CHECK_EQ(p.recorded.n, 3);
    CHECK_EQ(p.plain.n, 2);
    CHECK(!profile_cost(&p, &with, &without));
    for (int i = 0; i < 2; i++)
        step("layer");
    CHECK_EQ(p.recorded.n, 3);
    CHECK_EQ(p.plain.n, 4);
    CHECK(profile_cost(&p, &with, &without));
    CHECK(with > 0 && without > 0);
    p.recorded.ns[0] = 100, p.recorded.ns[1] = 1000000, p.recorded.ns[2] = 300;
    p.plain.ns[0] = 100, p.plain.ns[1] = 200, p.plain.ns[2] = 300, p.plain.ns[3] = 5000000;
    CHECK(profile_cost(&p, &with, &without));
    CHECK_EQ(with, 300);
    CHECK_EQ(without, 250);
    p.has_gpu = true;
    CHECK(!profile_cost(&p, &with, &without));
    snprintf(p.device, sizeof p.device, "cuda:0, NVIDIA H200");
    CHECK(!profile_cost(&p, &with, &without));
    snprintf(p.device, sizeof p.device, "cpu"); /* a GPU is there, and the CPU works */
    CHECK(profile_cost(&p, &with, &without));
    p.has_gpu = false;
    CHECK_OK(profiler_stop(&p));
    CHECK_EQ(count_named(&p, "step"), 5);
    CHECK_EQ(p.recorder.n_active, 5);
    profile_fini(&p);
}
