/* The sizes that a session takes from its config. */
#include "train_test.h"

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
        CHECK_EQ(session_eval_batches(&t.session, SPLIT_LEAVE_ONE_OUT, PART_TEST).batch_size, want);
        CHECK_EQ(session_train_batches(&t.session, SPLIT_LEAVE_ONE_OUT, 1).batch_size, 8);
        CHECK_EQ(t.session.limits.max_users, i == 0 ? 8 : 16);
        top_close(&t);
    }
}
