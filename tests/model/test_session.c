#include "model/session.h"

#include "train_test.h"

/* A session without training, of the tiny retrieval model with one more binding. */
static void open_with(bench_top *t, const char *gin, const char *set, int32_t max_users,
                      session *out) {
    CHECK_OK(top_open(t, gin, &set, set != NULL, 1));
    CHECK_OK(session_open_inference(out, t->config, t->data, t->be, max_users, NULL));
}

static void close_both(bench_top *t, session *s) {
    session_close(s);
    top_close(t);
}

/* The largest batch: that of training or of evaluation, whichever is larger; without training that
 * of evaluation, which eval_user_max_batch_size bounds. */
TEST(session_is_made_for_the_largest_batch) {
    bench_top t;
    session s;
    open_with(&t, retrieval_gin, NULL, 0, &s);
    CHECK(t.session.train_batch == 8 && t.session.eval_batch == 16);
    CHECK(t.session.limits.max_users == 16 && t.session.train != NULL);
    CHECK(s.limits.max_users == 16 && s.train == NULL);
    CHECK_EQ(s.limits.n_actions, 0); /* retrieval reads none, so they are not counted */
    CHECK_EQ(session_eval_batches(&s, split_rule_of(SPLIT_LEAVE_ONE_OUT), PART_TEST).batch_size,
             16);
    close_both(&t, &s);
    open_with(&t, retrieval_gin, "train_fn.eval_user_max_batch_size=5", 0, &s);
    CHECK(t.session.eval_batch == 5 && t.session.limits.max_users == 8);
    CHECK(s.eval_batch == 5 && s.limits.max_users == 5);
    CHECK_EQ(session_eval_batches(&s, split_rule_of(SPLIT_LEAVE_ONE_OUT), PART_TEST).batch_size, 5);
    close_both(&t, &s);
    open_with(&t, retrieval_gin, "train_fn.eval_user_max_batch_size=50", 1, &s);
    CHECK(t.session.eval_batch == 16 && s.limits.max_users == 1);
    close_both(&t, &s);
}

/* What cannot be trained is refused before a model is made, whoever opens the session. */
TEST(session_refuses_what_cannot_be_trained) {
    const char *set = "train_fn.positional_sampling_ratio=0.5";
    bench_top t;
    CHECK_FAILS(top_open(&t, retrieval_gin, &set, 1, 1), ERR_UNSUPPORTED,
                "positional_sampling_ratio below 1");
    top_close(&t);
}

/* Batches of training and of evaluation: what is shuffled, and what has targets. */
TEST(session_batches_follow_the_config) {
    bench_top t;
    session s;
    open_with(&t, ranking_gin, NULL, 2, &s);
    batcher_config train = session_train_batches(&t.session, split_rule_of(SPLIT_BY_USER), 9);
    batcher_config eval = session_eval_batches(&t.session, split_rule_of(SPLIT_BY_USER), PART_TEST);
    CHECK(train.part == PART_TRAIN && train.batch_size == 8 && train.seed == 9);
    CHECK(train.is_shuffled && !eval.is_shuffled && !eval.drops_last && eval.n_micro == 1);
    CHECK(eval.part == PART_TEST && eval.max_targets == 3 && eval.max_history == 12);
    CHECK_EQ(session_split(t.config, false).kind, SPLIT_BY_USER);
    CHECK_EQ(session_split(t.config, true).kind, SPLIT_LEAVE_TWO_OUT);
    CHECK(session_memory_bytes(&t.session) > 2 * session_memory_bytes(&s));
    close_both(&t, &s);
}

/* Users of an evaluation batch: at most eval_user_max_batch_size, if it is given. */
TEST(session_eval_batch_size) {
    static const char *const set[] = {"train_fn.eval_user_max_batch_size=5",
                                      "train_fn.eval_user_max_batch_size=16",
                                      "train_fn.eval_user_max_batch_size=99"};
    for (int i = -1; i < 3; i++) {
        bench_top t;
        CHECK_OK(top_open(&t, retrieval_gin, &set[i < 0 ? 0 : i], i >= 0, 1));
        int32_t want = i == 0 ? 5 : 16;
        CHECK_EQ(t.session.eval_batch, want);
        CHECK_EQ(session_eval_batches(&t.session, split_rule_of(SPLIT_LEAVE_ONE_OUT), PART_TEST)
                     .batch_size,
                 want);
        CHECK_EQ(
            session_train_batches(&t.session, split_rule_of(SPLIT_LEAVE_ONE_OUT), 1).batch_size, 8);
        CHECK_EQ(t.session.limits.max_users, i == 0 ? 8 : 16);
        top_close(&t);
    }
}

/* The tokens of an epoch are those that its batches have, over all users. */
TEST(session_epoch_tokens_are_those_of_the_batches) {
    bench_top t;
    CHECK_OK(top_open(&t, retrieval_gin, NULL, 0, 1));
    batcher_config c = session_train_batches(&t.session, split_rule_of(SPLIT_LEAVE_ONE_OUT), 1);
    batcher *batches;
    const batch *b;
    uint64_t n = 0;
    CHECK_OK(batcher_create(&batches, t.data, &c));
    do {
        CHECK_OK(batcher_next(batches, &b));
        n += (uint64_t)b->offsets[b->n_users];
    } while (!b->is_last);
    CHECK_EQ(session_epoch_tokens(&t.session, split_rule_of(SPLIT_LEAVE_ONE_OUT)), n);
    batcher_destroy(batches);
    top_close(&t);
}

/* The classes that a head must have follow from the kind of actions in the data. */
TEST(session_actions_of_the_data) {
    static const char *const set[] = {"RankingArgs.prediction_head_arch=[8, 9]",
                                      "RankingArgs.prediction_head_arch=[8, 255]"};
    static const char *const enough[] = {"RankingArgs.prediction_head_arch=[8, 10]",
                                         "RankingArgs.prediction_head_arch=[8, 256]"};
    static const char *const bits[] = {"RankingArgs.prediction_head_arch=[8, 9]",
                                       "RankingArgs.num_tasks=9"};
    static const char *const fewer[] = {"RankingArgs.prediction_head_arch=[8, 8]",
                                        "RankingArgs.num_tasks=8"};
    bench_top t;
    session s;
    CHECK_OK(top_open(&t, ranking_gin, NULL, 0, 1));
    CHECK_EQ(t.session.limits.n_actions, 5);
    seq_file data = *t.data;
    for (int i = 0; i < 2; i++) {
        bench_top small, large;
        data.actions = i == 0 ? ACTION_HALF_STARS : ACTION_BITS;
        CHECK_OK(top_open(&small, ranking_gin, &set[i], 1, 1));
        CHECK_FAILS(session_open(&s, small.config, &data, t.be), ERR_CONFIG,
                    i == 0 ? "classes, but the actions of" : "with at least 256");
        CHECK_OK(top_open(&large, ranking_gin, &enough[i], 1, 1));
        CHECK_OK(session_open(&s, large.config, &data, t.be));
        CHECK_EQ(s.limits.n_actions, i == 0 ? 10 : 256);
        session_close(&s);
        top_close(&small);
        top_close(&large);
    }
    bench_top nine, eight;
    CHECK_FAILS(top_open(&nine, ranking_gin, bits, 2, 1), ERR_CONFIG,
                "the head predicts 9 signals");
    CHECK_FAILS(session_open(&s, nine.config, &data, t.be), ERR_CONFIG,
                "RankingArgs.num_tasks = 9, but the actions of");
    CHECK_FAILS(top_open(&eight, ranking_gin, fewer, 2, 1), ERR_CONFIG,
                "the head predicts 8 signals");
    CHECK_OK(session_open(&s, eight.config, &data, t.be));
    session_close(&s);
    data.actions = ACTION_CODE;
    uint16_t codes[3];
    data.action = codes;
    data.n_events = 3;
    bench_top other;
    CHECK_OK(top_open(&other, ranking_gin, &set[0], 1, 1));
    for (int i = 0; i < 3; i++) { /* wherever the largest is */
        memcpy(codes, (uint16_t[]){0, 3, 0}, sizeof codes);
        codes[i] = 9;
        CHECK_FAILS(session_open(&s, other.config, &data, t.be), ERR_CONFIG, "with at least 10");
    }
    data.actions = ACTION_NONE;
    CHECK_FAILS(session_open(&s, other.config, &data, t.be), ERR_CONFIG, "carry no actions");
    top_close(&nine);
    top_close(&eight);
    top_close(&other);
    top_close(&t);
}
