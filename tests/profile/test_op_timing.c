#include "profile/op_timing.h"

#include "train_test.h"

static uint64_t count(const recorder *r, const char *name) {
    uint64_t n = 0;
    for (size_t i = 0; i < r->n_spans; i++)
        n += r->spans[i].kind == SPAN_OP && strcmp(recorder_name(r, &r->spans[i]), name) == 0;
    return n;
}

/* A run through the tracing layer computes the same, and its calls are recorded. */
TEST(traced_forwards_and_records) {
    bench_top t;
    backend *cpu, *traced;
    recorder r;
    session s;
    evaluator *e;
    eval_result plain, through;
    CHECK_OK(top_open(&t, retrieval_gin, NULL, 0, 1));
    CHECK_OK(backend_create_cpu(&cpu, NULL));
    recorder_init(&r, &(recorder_schedule){0});
    CHECK_OK(traced_create(&traced, cpu, &(traced_options){.recorder = &r}));
    CHECK(traced->tables_below == cpu);
    CHECK_OK(session_open(&s, t.config, t.data, traced));
    CHECK_OK(model_init(t.session.model, 3));
    CHECK_OK(model_init(s.model, 3));
    CHECK_OK(evaluator_create(&e, &t.session, split_rule_of(SPLIT_LEAVE_ONE_OUT), PART_TEST));
    CHECK_OK(evaluator_run(e, 0, &plain));
    evaluator_destroy(e);
    recorder_start(&r);
    CHECK_OK(evaluator_create(&e, &s, split_rule_of(SPLIT_LEAVE_ONE_OUT), PART_TEST));
    CHECK_OK(evaluator_run(e, 0, &through));
    evaluator_destroy(e);
    recorder_stop(&r);
    for (int i = 0; i < plain.n; i++)
        CHECK(plain.item[i].value == through.item[i].value);
    CHECK_EQ(count(&r, "rank"), 3); /* 40 users, 16 at a time, one layer */
    CHECK_EQ(count(&r, "attn_fwd"), 3);
    CHECK_EQ(count(&r, "update"), 0);
    session_close(&s);
    backend_destroy(traced);
    backend_destroy(NULL);
    recorder_fini(&r);
    top_close(&t);
}

static int n_recorded;

static status take(backend *be, uint64_t key, record_state *out) {
    (void)be, (void)key;
    *out = RECORD_TAKE;
    n_recorded++;
    return OK;
}

static status end_taking(backend *be) {
    (void)be;
    n_recorded += 10;
    return OK;
}

/* For hardware counters, which see single launches, ops run one by one. */
TEST(traced_ops_may_be_kept_from_graphs) {
    backend *below, *be;
    recorder r;
    record_state state = RECORD_TAKE;
    CHECK_OK(backend_create_cpu(&below, NULL));
    ops table = *below->ops;
    table.record = take;
    table.record_end = end_taking;
    below->ops = &table;
    recorder_init(&r, &(recorder_schedule){0});
    CHECK_OK(traced_create(&be, below, &(traced_options){.recorder = &r, .has_no_graphs = true}));
    CHECK_OK(be->ops->record(be, 7, &state));
    CHECK_OK(be->ops->record_end(be));
    CHECK_EQ(state, RECORD_RUN);
    CHECK_EQ(n_recorded, 0);
    be->destroy(be);
    recorder_fini(&r);
}

TEST(bench_train_checks_and_measures) {
    char *text;
    FILE *f;
    char path[512];
    snprintf(path, sizeof path, "%s/m.gin", test_folder());
    CHECK((f = fopen(path, "w")) != NULL && fputs(retrieval_gin, f) >= 0 && fclose(f) == 0);
    int code = test_command(&text,
                            "ASAN_OPTIONS=detect_leaks=0 %s bench train --gin-config-file %s "
                            "--data %s --steps 2 --device cpu",
                            test_program(), path, synth_folder());
    if (code != 0) FAIL_TEST("code %d: %s", code, text);
    CHECK_CONTAINS(text, "the slope along the gradient fits to");
    CHECK_CONTAINS(text, "Tokens/s");
    CHECK_CONTAINS(text, "sampled_softmax");
    free(text);
    code = test_command(&text,
                        "ASAN_OPTIONS=detect_leaks=0 %s profile --out %s/p --wait 3 --active 2 "
                        "--repeat 1 -- bench train --gin-config-file %s --data %s --steps 4 "
                        "--device cpu",
                        test_program(), test_folder(), path, synth_folder());
    if (code != 0) FAIL_TEST("code %d: %s", code, text);
    CHECK_CONTAINS(text, "sampled_softmax"); /* the shares of its ops */
    CHECK_CONTAINS(text, "2 steps kept of");
    free(text);
}
