/* The bookkeeping of steps: losses that are read late, diverging runs, the loss scale of
 * float16. */
#include "train/loop/trainer_int.h"
#include "train/loop/trainer_step.h"
#include "train_test.h"

/* A trainer with the fields that trainer_settle uses, with one step in flight. */
static trainer pending_step(session *s, uint64_t step, double loss, double norm) {
    return (trainer){.s = s,
                     .saved_step = UINT64_MAX,
                     .saved = {.state = {.first_loss = 0.5}},
                     .pending = {{.step = step,
                                  .sums = {.loss = 2 * loss, .n_loss = 2, .n_tokens = 7},
                                  .norm = norm}},
                     .n_pending = 1};
}

/* 1000 times the first loss and one is the limit; the first step only sets the reference. */
TEST(trainer_step_sees_a_loss_explode) {
    session s = {0};
    CHECK_OK(backend_create_cpu(&s.be, NULL));
    trainer t = pending_step(&s, 9, 1500, 0);
    CHECK_OK(trainer_settle(&t));
    t = pending_step(&s, 9, 1500.001, 0);
    CHECK_FAILS(trainer_settle(&t), ERR_NUMERIC, "the loss of step 9 is 1500");
    CHECK_CONTAINS(status_reason(), "after 0.5 in the first step");
    CHECK_CONTAINS(status_reason(), "there is no checkpoint yet");
    t = pending_step(&s, 9, 1500.001, 0);
    t.saved_step = 4;
    CHECK_FAILS(trainer_settle(&t), ERR_NUMERIC, "the last checkpoint (step 4) is kept");
    t = pending_step(&s, 9, NAN, 0);
    CHECK_FAILS(trainer_settle(&t), ERR_NUMERIC, "the loss of step 9 is nan");
    t = pending_step(&s, 0, NAN, 0);
    CHECK_FAILS(trainer_settle(&t), ERR_NUMERIC, "the loss of step 0 is nan");
    t = pending_step(&s, 0, 1e9, 0);
    CHECK_OK(trainer_settle(&t));
    CHECK(t.saved.state.first_loss == 1e9);
    t = pending_step(&s, 1, 3, 0);
    CHECK_OK(trainer_settle(&t));
    CHECK(t.saved.state.first_loss == 0.5);
    backend_destroy(s.be);
}

/* Every sum has each step once, in whatever order they were enqueued. */
TEST(trainer_step_books_each_step_once) {
    session s = {0};
    CHECK_OK(backend_create_cpu(&s.be, NULL));
    trainer t = pending_step(&s, 5, 3, 0);
    t.first_pending = TRAIN_MAX_PENDING - 1;
    t.n_pending = 2;
    t.pending[TRAIN_MAX_PENDING - 1] =
        (train_pending){.step = 4, .sums = {.loss = 10, .n_loss = 4, .n_tokens = 5}};
    CHECK_OK(trainer_settle(&t));
    CHECK_EQ(t.n_pending, 0);
    CHECK_EQ(t.first_pending, 1);
    const train_sums *sums[] = {&t.whole, &t.saved.state.in_epoch, &t.saved.state.in_round};
    for (int i = 0; i < 3; i++) {
        CHECK(sums[i]->loss == 16 && sums[i]->seconds > 0 && sums[i]->seconds < 60);
        CHECK_EQ(sums[i]->n_loss, 6);
        CHECK_EQ(sums[i]->n_tokens, 12);
    }
    backend_destroy(s.be);
}

/* The same step once more. */
static status settle_again(trainer *t) {
    t->n_pending = 1;
    t->first_pending = 0;
    return trainer_settle(t);
}

/* Doubled after 2000 good steps in a row, halved by an overflow, which also starts the count again;
 * at 1 there is nothing left to halve. */
TEST(trainer_step_scales_the_loss) {
    session s = {0};
    CHECK_OK(backend_create_cpu(&s.be, NULL));
    s.be->act = ACT_F16;
    trainer t = pending_step(&s, 1, 1, 0.25);
    train_state *state = &t.saved.state;
    t.optimizer.is_watched = true;
    state->loss_scale = 8;
    for (int i = 1; i <= 4000; i++) {
        CHECK_OK(settle_again(&t));
        CHECK_EQ(state->n_good_steps, i);
        CHECK(state->loss_scale == (i < 2000 ? 8 : i < 4000 ? 16 : 32));
    }
    log_set_level(LOG_WARN);
    t.pending[0].norm = INFINITY;
    for (double scale = 16; scale >= 1; scale /= 2) {
        CHECK_OK(settle_again(&t));
        CHECK(state->loss_scale == scale && state->n_good_steps == 0);
    }
    CHECK_FAILS(settle_again(&t), ERR_NUMERIC, "the gradient of step 1 is not finite");
    s.be->act = ACT_F32; /* which has no loss scale: an infinite norm is an error at once */
    state->loss_scale = 8;
    CHECK_FAILS(settle_again(&t), ERR_NUMERIC, "the gradient of step 1 is not finite");
    t.optimizer.is_watched = false;
    CHECK_OK(settle_again(&t));
    CHECK(state->loss_scale == 8 && state->n_good_steps == 0);
    backend_destroy(s.be);
}

static void count_tokens(void *ctx, const batch *b) {
    *(int64_t *)ctx += b->n_tokens;
}

static bool same_params(const session *a, const session *b) {
    for (int i = 0; i < a->n_params; i++)
        if (memcmp(a->params[i].value, b->params[i].value,
                   (size_t)a->params[i].n * sizeof(float)) != 0)
            return false;
    return true;
}

/* A step that is timed alone equals a step of trainer_run: the same bits after the same steps. */
static void compare_with_a_run(const char *gin, const char *const *set, size_t n_set) {
    bench_top a, b;
    trainer *t;
    int64_t n_tokens = 0;
    bool is_last = false;
    train_options o = train_options_default();
    o.max_steps = 7;
    o.run = run_path("run");
    CHECK_OK(top_open(&a, gin, set, n_set, 1));
    CHECK_OK(trainer_run(&a.session, &o));
    CHECK_OK(top_open(&b, gin, set, n_set, 1));
    uint64_t seed = (uint64_t)b.config->trainer.seed;
    trainer_steps steps = {seed, 7, count_tokens, &n_tokens};
    CHECK_OK(trainer_create(&t, &b.session, &steps));
    CHECK_OK(model_init(b.session.model, seed));
    for (int i = 0; i < 6; i++)
        CHECK_OK(trainer_step(t, &is_last));
    CHECK_OK(trainer_settle(t));
    CHECK(!same_params(&a.session, &b.session));
    CHECK_OK(trainer_step(t, &is_last));
    CHECK_OK(trainer_settle(t));
    CHECK(same_params(&a.session, &b.session));
    CHECK(n_tokens > 0);
    CHECK(optimizer_bytes(trainer_optimizer(t)) > 0);
    trainer_destroy(t);
    trainer_destroy(NULL);
    top_close(&a);
    top_close(&b);
}

TEST(trainer_step_is_that_of_a_run) {
    compare_with_a_run(retrieval_gin, NULL, 0);
}

/* Clipping, accumulation and a schedule belong to the step. */
TEST(trainer_step_clips_and_accumulates_as_a_run) {
    static const char *const set[] = {"TrainerArgs.train_batch_size=4", "TrainerArgs.clip_grad=0.1",
                                      "TrainingArgs.gradient_accumulation_steps=2"};
    compare_with_a_run(ranking_gin, set, 3);
}
