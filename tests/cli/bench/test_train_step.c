#include "cli/bench/train_step.h"

#include "train_test.h"

TEST(train_step_is_checked_and_measured) {
    bench_top t;
    train_bench_result r;
    CHECK_OK(top_open(&t, retrieval_gin, NULL, 0, 1));
    CHECK_OK(train_bench_run(t.config, t.data, t.be, 3, &r));
    CHECK(r.slope.error <= r.slope.allowed && r.slope.n_users > 0);
    CHECK(r.tokens_per_s > 0 && r.peak > 0 && r.speed > 0 && r.model_mb > 0 && r.peak_mb > 0);
    CHECK(fabs(r.tokens_per_s * r.ms_per_step / 1e3 / r.tokens_per_step - 1) < 1e-9);
    CHECK(isnan(r.idle) && !r.busy.is_known);
    double ops_ms = 0;
    uint64_t n_updates = 0;
    for (int i = 0; i < r.n_ops; i++) {
        CHECK(i == 0 || r.op[i].ns <= r.op[i - 1].ns);
        ops_ms += (double)r.op[i].ns / 1e6;
        if (strcmp(r.op[i].name, "update") == 0) n_updates = r.op[i].n_calls;
    }
    CHECK(ops_ms > 0 && ops_ms <= r.total_ms);
    CHECK(n_updates >= 3);
    session same;
    CHECK_OK(session_open(&same, t.config, t.data, t.be));
    CHECK(r.model_mb * 1e6 > (double)session_memory_bytes(&same)); /* with the optimizer's state */
    session_close(&same);
    top_close(&t);
}

/* A step of two micro-batches counts the tokens of both. */
TEST(train_step_counts_every_micro_batch) {
    static const char *const whole[] = {"TrainerArgs.train_batch_size=4"};
    static const char *const twice[] = {"TrainerArgs.train_batch_size=4",
                                        "TrainingArgs.gradient_accumulation_steps=2"};
    bench_top a, b;
    train_bench_result one, two;
    CHECK_OK(top_open(&a, ranking_gin, whole, 1, 1));
    CHECK_OK(train_bench_run(a.config, a.data, a.be, 6, &one));
    CHECK_OK(top_open(&b, ranking_gin, twice, 2, 1));
    CHECK_OK(train_bench_run(b.config, b.data, b.be, 6, &two));
    CHECK(two.tokens_per_step > 1.5 * one.tokens_per_step);
    top_close(&a);
    top_close(&b);
}
