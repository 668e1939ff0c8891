#include "profile/recorder.h"

#include <time.h>

#include "base/thread.h"
#include "test.h"

static void op(recorder *r, const char *name) {
    recorder_begin(r, SPAN_OP, name, -1);
    recorder_end(r, 0);
}

/* A step of training: a range around two ops. */
static void step(recorder *r) {
    recorder_begin(r, SPAN_RANGE, "step", -1);
    op(r, "linear");
    op(r, "attn");
    recorder_end(r, 0);
    recorder_step(r, clock_ns());
}

TEST(recorder_spans_nest) {
    recorder r;
    recorder_init(&r, &(recorder_schedule){0});
    recorder_start(&r);
    recorder_begin(&r, SPAN_RANGE, "step", -1);
    recorder_begin(&r, SPAN_RANGE, "layer", 3);
    op(&r, "linear");
    op(&r, "linear");
    recorder_end(&r, 0);
    recorder_end(&r, 7);
    recorder_stop(&r);
    CHECK_EQ(r.n_spans, 4);
    CHECK_STR(recorder_name(&r, &r.spans[1]), "layer 3");
    CHECK_STR(recorder_name(&r, &r.spans[2]), "linear");
    CHECK_EQ(r.spans[2].name, r.spans[3].name);
    CHECK_EQ(r.spans[0].op, RECORDER_NO_OP);
    CHECK_EQ(r.spans[1].op, 0);
    CHECK_EQ(r.spans[3].op, 1);
    CHECK_EQ(r.spans[0].bytes, 7);
    for (int i = 0; i < 4; i++)
        CHECK(r.spans[i].end_ns >= r.spans[i].start_ns && r.spans[i].start_ns > 0);
    uint64_t ops =
        r.spans[2].end_ns - r.spans[2].start_ns + r.spans[3].end_ns - r.spans[3].start_ns;
    CHECK_EQ(r.spans[1].child_ns, ops);
    CHECK_EQ(r.spans[0].child_ns, r.spans[1].end_ns - r.spans[1].start_ns);
    recorder_fini(&r);
}

/* wait 2, warm up 1, keep 3, twice: of 20 steps 3 + 3 are kept, warm-ups are not. */
TEST(recorder_follows_the_schedule) {
    recorder r;
    recorder_init(&r, &(recorder_schedule){2, 1, 3, 2});
    recorder_start(&r);
    for (int i = 0; i < 20; i++) {
        step(&r);
        CHECK_EQ(r.n_active, i < 3 ? 0 : i < 6 ? i - 2 : i < 9 ? 3 : i < 12 ? i - 5 : 6);
    }
    recorder_stop(&r);
    CHECK_EQ(r.n_active, 6);
    CHECK_EQ(r.step, 20);
    CHECK_EQ(r.n_spans, 6 * 3);
    CHECK(r.active_ns > 0);
    recorder_fini(&r);
}

/* Time that passes outside the steps that are kept is not theirs. */
TEST(recorder_times_what_it_keeps) {
    recorder r;
    recorder_init(&r, &(recorder_schedule){1, 0, 1, 1});
    recorder_start(&r);
    struct timespec rest = {.tv_nsec = 50000000};
    nanosleep(&rest, NULL);
    step(&r);
    uint64_t start = clock_ns();
    step(&r);
    uint64_t end = clock_ns();
    nanosleep(&rest, NULL);
    recorder_stop(&r);
    CHECK_EQ(r.n_active, 1);
    CHECK(r.active_ns > 0 && r.active_ns < end - start + 40000000);
    recorder_fini(&r);
}

/* What is open when recording begins or ends is not kept, and its end hits nothing else. */
TEST(recorder_keeps_whole_spans) {
    recorder r;
    recorder_init(&r, &(recorder_schedule){0, 1, 1, 1});
    recorder_start(&r);
    recorder_begin(&r, SPAN_RANGE, "epoch", -1);
    step(&r); /* warm-up: forgotten */
    step(&r); /* kept */
    recorder_end(&r, 0);
    recorder_end(&r, 0); /* one too many */
    recorder_stop(&r);
    CHECK_EQ(r.n_spans, 3);
    for (size_t i = 0; i < r.n_spans; i++)
        CHECK(strcmp(recorder_name(&r, &r.spans[i]), "epoch") != 0 && r.spans[i].end_ns > 0);
    recorder_fini(&r);
}

TEST(recorder_of_deep_ranges_counts_what_it_drops) {
    recorder r;
    recorder_init(&r, &(recorder_schedule){0});
    recorder_start(&r);
    for (int i = 0; i < RECORDER_MAX_DEPTH + 5; i++)
        recorder_begin(&r, SPAN_RANGE, "deep", i);
    for (int i = 0; i < RECORDER_MAX_DEPTH + 5; i++)
        recorder_end(&r, 0);
    op(&r, "after");
    recorder_stop(&r);
    CHECK_EQ(r.n_dropped, 5);
    CHECK_EQ(r.n_spans, RECORDER_MAX_DEPTH + 1);
    CHECK_EQ(r.spans[RECORDER_MAX_DEPTH].op, RECORDER_NO_OP);
    recorder_fini(&r);
}

TEST(recorder_keeps_thousands_of_names) {
    recorder r;
    recorder_init(&r, &(recorder_schedule){0});
    recorder_start(&r);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 3000; i++) {
            recorder_begin(&r, SPAN_RANGE, "name", i);
            recorder_end(&r, 0);
        }
    recorder_stop(&r);
    CHECK_EQ(r.names.n, 3000);
    CHECK_EQ(r.n_spans, 6000);
    CHECK_STR(recorder_name(&r, &r.spans[2999]), "name 2999");
    CHECK_EQ(r.spans[1234].name, r.spans[4234].name);
    recorder_fini(&r);
}

static void *many(void *ctx) {
    recorder *r = ctx;
    for (int i = 0; i < 500; i++) {
        recorder_begin(r, SPAN_RANGE, "outer", -1);
        op(r, "inner");
        recorder_end(r, 0);
    }
    return NULL;
}

TEST(recorder_keeps_threads_apart) {
    recorder r;
    pthread_t thread[4];
    recorder_init(&r, &(recorder_schedule){0});
    recorder_start(&r);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, many, &r), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    recorder_stop(&r);
    CHECK_EQ(r.n_spans, 4 * 1000);
    for (size_t i = 0; i < r.n_spans; i++) {
        const span *s = &r.spans[i];
        if (s->kind != SPAN_OP) continue;
        CHECK(s->op >= 0 && r.spans[s->op].lane == s->lane);
        CHECK(r.spans[s->op].start_ns <= s->start_ns && r.spans[s->op].end_ns >= s->end_ns);
    }
    recorder_fini(&r);
}

/* What is known of a GPU is replaced; one more than there is room for is not kept. */
/* What begins in a cycle, or between two, belongs to the next step's; what follows the last, to it.
 */
TEST(recorder_cuts_spans_into_cycles) {
    recorder r;
    recorder_init(&r, &(recorder_schedule){.wait = 1, .active = 2});
    static const struct {
        uint64_t start_ns;
        int cycle;
    } spans[] = {{5, 0}, {10, 0}, {39, 0}, {40, 1}, {45, 1}, {59, 1}, {61, 3}, {1000, 3}};
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
        recorder_add(&r, &(span){.start_ns = spans[i].start_ns, .end_ns = spans[i].start_ns + 100},
                     "x", NULL);
    recorder_cut(&r, 0, 0); /* without steps there is one */
    recorder_add_step(&r, 0, false, 1, 9);
    recorder_add_step(&r, 1, true, 10, 20);
    recorder_add_step(&r, 2, true, 20, 40);
    recorder_add_step(&r, 4, true, 50, 60);
    recorder_add_step(&r, 10, true, 70, 80);
    CHECK_EQ(r.step, 5);
    CHECK_EQ(r.n_active, 4);
    CHECK_EQ(r.active_ns, 50);
    CHECK_EQ(r.steps[2].cycle, 1);
    recorder_cut(&r, 3, 0);
    CHECK_EQ(r.spans[3].cycle, 1);
    CHECK_EQ(r.spans[6].cycle, 3);
    recorder_cut(&r, 0, 0);
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
        CHECK_EQ(r.spans[i].cycle, spans[i].cycle);
    recorder_cut(&r, 0, 3); /* of the process that had the last step alone */
    CHECK_EQ(r.spans[0].cycle, 3);
    recorder_fini(&r);
}

TEST(recorder_knows_its_gpus) {
    recorder r;
    recorder_init(&r, &(recorder_schedule){0});
    CHECK(recorder_gpu(&r, 0) == NULL);
    for (uint32_t i = 0; i <= RECORDER_MAX_GPUS; i++)
        recorder_add_gpu(&r, &(gpu_facts){.device = i + 3, .sm = 80});
    recorder_add_gpu(&r, &(gpu_facts){.device = 4, .sm = 90});
    CHECK_EQ(r.n_gpus, RECORDER_MAX_GPUS);
    CHECK(recorder_gpu(&r, 3)->sm == 80 && recorder_gpu(&r, 4)->sm == 90);
    CHECK(recorder_gpu(&r, 2 + RECORDER_MAX_GPUS)->sm == 80);
    CHECK(recorder_gpu(&r, 3 + RECORDER_MAX_GPUS) == NULL && recorder_gpu(&r, 2) == NULL);
    recorder_fini(&r);
}

/* A range inside another one of its name is kept, and its time counts once. */
TEST(recorder_keeps_a_range_inside_its_own_name) {
    static const struct {
        const char *name;
        uint64_t start, end;
        int64_t op;
    } spans[] = {{"step", 100, 900, RECORDER_NO_OP},
                 {"a", 200, 500, 0},
                 {"a", 250, 300, 1},
                 {"b", 600, 700, 0},
                 {"a", 610, 620, 3},
                 {"a", 950, 0, RECORDER_NO_OP}}; /* has not ended */
    recorder r;
    recorder_init(&r, &(recorder_schedule){0});
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
        recorder_add(&r,
                     &(span){.kind = SPAN_RANGE,
                             .start_ns = spans[i].start,
                             .end_ns = spans[i].end,
                             .op = spans[i].op},
                     spans[i].name, NULL);
    CHECK_OK(recorder_keep_range(&r, "a"));
    CHECK_EQ(r.n_spans, 4);
    CHECK_EQ(r.active_ns, 300 + 10);
    CHECK(r.spans[0].op == RECORDER_NO_OP && r.spans[1].op == 0);
    CHECK(r.spans[2].op == RECORDER_NO_OP && r.spans[2].start_ns == 610);
    recorder_fini(&r);
}

/* Kernels of attention in a graph: the first one of an op has its work, the others none. */
TEST(recorder_gives_attention_in_graphs_its_work) {
    recorder r;
    recorder_init(&r, &(recorder_schedule){0});
    span op = {.kind = SPAN_OP, .start_ns = 1, .end_ns = 2, .op = RECORDER_NO_OP, .pairs = 50};
    recorder_add(&r, &op, "graph", NULL);
    op.pairs = 0; /* not known */
    recorder_add(&r, &op, "graph", NULL);
    for (uint32_t i = 0; i < 2; i++)
        recorder_add(&r, &(span){.kind = N_SPAN_KINDS, .correlation = i + 1, .op = i}, "", NULL);
    for (uint32_t i = 0; i < 4; i++)
        recorder_add(&r,
                     &(span){.kind = SPAN_KERNEL,
                             .start_ns = 1,
                             .end_ns = 2,
                             .correlation = i / 2 + 1,
                             .of_pair = 6,
                             .pair_bytes = 1000,
                             .is_first = i % 2 == 0},
                     "attn", NULL);
    CHECK_OK(recorder_link(&r));
    CHECK_EQ(r.n_spans, 6); /* without the links */
    for (int i = 0; i < 4; i++) {
        const span *s = &r.spans[2 + i];
        CHECK_EQ(s->op, i / 2);
        CHECK_EQ(s->has_work, i < 2);
        CHECK(s->flop == (i == 0 ? 300 : 0) && s->moved == (i == 0 ? 1000 : 0));
    }
    recorder_fini(&r);
}
