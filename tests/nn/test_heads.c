/* The pieces of a sampled softmax fit the scratch memory that was made for them. */
#include "train_test.h"

static struct {
    int64_t max_n, n_negatives, n_calls, n_whole; /* n_whole: calls of as many rows as fit */
    const ops *below;
} seen;

static size_t note_scratch(backend *be, int64_t max_n, int32_t n_negatives, int32_t dim,
                           int32_t n_rows) {
    seen.max_n = max_n;
    seen.n_negatives = n_negatives;
    return seen.below->sampled_softmax_scratch(be, max_n, n_negatives, dim, n_rows);
}

static status check_piece(backend *be, const sampled_softmax_args *a) {
    CHECK(a->n <= seen.max_n && a->n_negatives <= seen.n_negatives);
    seen.n_calls++;
    seen.n_whole += a->n == seen.max_n;
    return seen.below->sampled_softmax(be, a);
}

/* As many negatives as loss positions: a batch of short histories has fewer than the most, for
 * which the memory is made, and more than one piece. */
TEST(sampled_loss_of_a_smaller_batch_fits) {
    static const char gin[] = "TrainerArgs.train_batch_size = 40\n"
                              "TrainerArgs.eval_interval = 1000\n"
                              "DatasetArgs.dataset_name = 'synth'\n"
                              "DatasetArgs.max_history_seqlen = 400\n"
                              "NetworkArgs.dtype_str = 'float32'\n"
                              "NetworkArgs.num_layers = 1\n"
                              "NetworkArgs.num_attention_heads = 1\n"
                              "NetworkArgs.hidden_size = 4\n"
                              "NetworkArgs.num_position_buckets = 512\n"
                              "RetrievalArgs.num_negatives = -1\n";
    bench_top top;
    model_step at = {.seed = 1, .grad_scale = 1};
    batcher *b;
    const batch *next;
    CHECK_OK(top_open(&top, gin, NULL, 0, 2));
    session_close(&top.session);
    ops checked = *top.be->ops;
    seen.below = top.be->ops;
    checked.sampled_softmax_scratch = note_scratch;
    checked.sampled_softmax = check_piece;
    top.be->ops = &checked;
    CHECK_OK(session_open(&top.session, top.config, top.data, top.be));
    split_rule rule = session_split(top.config, false);
    batcher_config c = session_train_batches(&top.session, rule, 1);
    CHECK_OK(model_init(top.session.model, 1));
    CHECK_OK(batcher_create(&b, top.data, &c));
    CHECK_OK(batcher_next(b, &next));
    int64_t n_loss = model_count_loss(top.session.model, next);
    CHECK(n_loss > seen.max_n && n_loss < seen.n_negatives / 2);
    CHECK_OK(pass_train(top.session.train, next, &at, NULL));
    CHECK(seen.n_calls > 1);
    CHECK_EQ(seen.n_whole, n_loss / seen.max_n);
    CHECK_EQ(seen.n_calls, (n_loss + seen.max_n - 1) / seen.max_n);
    batcher_destroy(b);
    top.be->ops = seen.below;
    top_close(&top);
}
