#include "cli/bench/slope.h"

#include "base/log.h"
#include "shipped.h"
#include "train/loop/generated.h"
#include "train_test.h"

static const batch *first_batch(bench_top *t, batcher **batches) {
    const batch *b;
    batcher_config bc = session_train_batches(&t->session, session_split(t->config, false), 1);
    CHECK_OK(batcher_create(batches, t->data, &bc));
    CHECK_OK(batcher_next(*batches, &b));
    return b;
}

/* Fits for both families, and leaves everything as it was. */
TEST(slope_fits_and_leaves_no_trace) {
    static const char *const gins[] = {retrieval_gin, ranking_gin};
    for (int g = 0; g < 2; g++) {
        bench_top t;
        batcher *batches;
        slope_result r;
        CHECK_OK(top_open(&t, gins[g], NULL, 0, 1));
        CHECK_OK(model_init(t.session.model, 5));
        const param *p = &t.session.params[0];
        float first = p->value[p->n / 2];
        const batch *b = first_batch(&t, &batches);
        CHECK_OK(slope_check(&t.session, b, 9, &r));
        CHECK(r.error < .02 && r.allowed == .05);
        CHECK_EQ(r.n_users, b->n_users);
        CHECK(p->value[p->n / 2] == first);
        for (int i = 0; i < t.session.n_params; i++)
            for (int64_t k = 0; k < t.session.params[i].n; k++)
                CHECK(t.session.params[i].grad[k] == 0);
        batcher_destroy(batches);
        top_close(&t);
    }
}

/* A gradient that exists before the check stands for a kernel that computes a wrong one. */
TEST(slope_finds_a_wrong_gradient) {
    bench_top t;
    batcher *batches;
    slope_result r;
    CHECK_OK(top_open(&t, ranking_gin, NULL, 0, 1));
    CHECK_OK(model_init(t.session.model, 5));
    const batch *b = first_batch(&t, &batches);
    for (int i = 0; i < t.session.n_params; i++)
        t.session.params[i].grad[0] += .5f;
    CHECK_FAILS(slope_check(&t.session, b, 9, &r), ERR_NUMERIC, "does not fit the loss");
    batcher_destroy(batches);
    top_close(&t);
}
