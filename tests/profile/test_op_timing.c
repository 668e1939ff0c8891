#include "profile/op_timing.h"

#include "train_test.h"

/* A run through the timing layer computes the same, and its calls are counted. */
TEST(timed_forwards_and_counts) {
    bench_top t;
    backend *timed;
    session s;
    evaluator *e;
    eval_result plain, through;
    int n;
    CHECK_OK(top_open(&t, retrieval_gin, NULL, 0, 1));
    CHECK_OK(timed_create(&timed, t.be));
    /* `hstu profile -- bench train` has one layer over another: tables belong to the lowest. */
    backend *over;
    CHECK_OK(timed_create(&over, timed));
    CHECK(timed->tables_below == t.be && over->tables_below == t.be);
    over->destroy(over);
    CHECK_OK(session_open(&s, t.config, t.data, timed));
    CHECK_OK(model_init(t.session.model, 3));
    CHECK_OK(model_init(s.model, 3));
    CHECK_OK(evaluator_create(&e, &t.session, split_rule_of(SPLIT_LEAVE_ONE_OUT), PART_TEST));
    CHECK_OK(evaluator_run(e, 0, &plain));
    evaluator_destroy(e);
    timed_reset(timed);
    CHECK_OK(evaluator_create(&e, &s, split_rule_of(SPLIT_LEAVE_ONE_OUT), PART_TEST));
    CHECK_OK(evaluator_run(e, 0, &through));
    evaluator_destroy(e);
    for (int i = 0; i < plain.n; i++)
        CHECK(plain.item[i].value == through.item[i].value);
    const timed_op *op = timed_ops(timed, &n);
    uint64_t n_rank = 0, n_attn = 0, n_update = 0;
    for (int i = 0; i < n; i++) {
        CHECK((op[i].n_calls == 0) == (op[i].ns == 0));
        if (strcmp(op[i].name, "rank") == 0) n_rank = op[i].n_calls;
        if (strcmp(op[i].name, "attn_fwd") == 0) n_attn = op[i].n_calls;
        if (strcmp(op[i].name, "update") == 0) n_update = op[i].n_calls;
    }
    CHECK(n_rank == 3 && n_attn == 3 && n_update == 0); /* 40 users, 16 at a time, one layer */
    timed_reset(timed);
    CHECK_EQ(op[0].n_calls, 0);
    session_close(&s);
    backend_destroy(timed);
    backend_destroy(NULL);
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

TEST(timed_bench_train_checks_and_measures) {
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
    CHECK_CONTAINS(text, "(between ops)");
    free(text);
}
