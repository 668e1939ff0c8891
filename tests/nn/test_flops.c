#include "nn/flops.h"

#include "base/log.h"
#include "shipped.h"

static config *load(const char *gin) {
    config *c;
    config_source source = {.text = gin, .text_name = "t.gin", .text_bytes = strlen(gin)};
    log_set_level(LOG_WARN);
    CHECK_OK(config_load(&c, &source));
    return c;
}

/* The figures of docs and configs: 63.89 TFLOP a step, to all the digits that are stated. */
TEST(flops_of_the_fixed_benchmark) {
    config *c = shipped_load("benchmark_ranking_fixed.gin", NULL, 0);
    int32_t offsets[33], n_targets[32] = {0};
    for (int i = 0; i <= 32; i++)
        offsets[i] = 2048 * i;
    batch b = {.n_users = 32, .offsets = offsets, .n_targets = n_targets};
    flops f = flops_of_batch(c, 3, &b, true);
    CHECK_EQ(f.n_tokens, 131168);
    CHECK_EQ(f.n_loss, 65536);
    CHECK_EQ(llround(f.uvqk / 1e10), 2641);
    CHECK_EQ(llround(f.projection / 1e10), 660);
    CHECK_EQ(llround(f.attention / 1e10), 3088);
    CHECK_EQ(llround(flops_layers(&f) / 1e10), 6389);
    /* 128 -> 1024 -> 1024 of each event token and of each contextual one; 1024 -> 512 -> 8. */
    CHECK(f.input == 3 * 131168.0 * 2 * (128 * 1024 + 1024 * 1024));
    CHECK(f.head == 3 * 65536.0 * 2 * (1024 * 512 + 512 * 8));
    flops forward = flops_of_batch(c, 3, &b, false);
    CHECK(forward.uvqk * 3 == f.uvqk && forward.head * 3 == f.head);
    CHECK(forward.attention * 3.5 == f.attention);
    config_destroy(c);
}

/* Two users, by hand. */
TEST(flops_of_a_jagged_retrieval_batch) {
    config *c = load("train_fn.main_module = 'HSTU'\n"
                     "train_fn.item_embedding_dim = 6\n"
                     "train_fn.num_negatives = 5\n"
                     "hstu_encoder.num_blocks = 2\n"
                     "hstu_encoder.num_heads = 2\n"
                     "hstu_encoder.dqk = 3\n"
                     "hstu_encoder.dv = 4\n");
    int32_t offsets[] = {0, 4, 4, 11}, n_targets[] = {1, 0, 1};
    batch b = {.n_users = 3, .offsets = offsets, .n_targets = n_targets};
    flops f = flops_of_batch(c, 0, &b, false);
    CHECK_EQ(f.n_tokens, 3 + 6);
    CHECK_EQ(f.n_loss, 3 + 6);
    CHECK(f.uvqk == 2 * (2 * 9 * 6 * (2 * 2 * 7)));
    CHECK(f.projection == 2 * (2 * 9 * (2 * 4) * 6));
    CHECK(f.attention == 2 * (2 * 2 * 7 * (9.0 + 36) / 2));
    CHECK(f.input == 0);
    CHECK(f.head == 2 * 9 * 6 * (1 + 5));
    /* Without targets, the last event of a user predicts nothing; nor does the only one. */
    int32_t ends[] = {0, 4, 4, 5}, none[] = {0, 0, 0};
    b = (batch){.n_users = 3, .offsets = ends, .n_targets = none};
    f = flops_of_batch(c, 0, &b, false);
    CHECK_EQ(f.n_tokens, 5);
    CHECK_EQ(f.n_loss, 3);
    config_destroy(c);
}

/* Candidates see the history and themselves, not each other. */
TEST(flops_of_candidates) {
    config *c = load("TrainerArgs.train_batch_size = 8\n"
                     "DatasetArgs.dataset_name = 'synth'\n"
                     "DatasetArgs.max_history_seqlen = 12\n"
                     "DatasetArgs.max_num_candidates = 3\n"
                     "NetworkArgs.num_layers = 1\n"
                     "NetworkArgs.num_attention_heads = 1\n"
                     "NetworkArgs.hidden_size = 8\n"
                     "NetworkArgs.item_embedding_dim = 1\n"
                     "RankingArgs.prediction_head_arch = [16, 5]\n"
                     "RankingArgs.num_tasks = 1\n");
    int32_t offsets[] = {0, 10}, n_targets[] = {3};
    batch b = {.n_users = 1, .offsets = offsets, .n_targets = n_targets};
    flops f = flops_of_batch(c, 2, &b, false);
    CHECK_EQ(f.n_tokens, 22);
    CHECK_EQ(f.n_loss, 3);
    CHECK(f.attention == 4 * 8 * (22 * 16 - 14 * 14 / 2 + 6));
    CHECK(f.input == 2 * 20 * (1 * 8 + 8 * 8)); /* items and actions of width 1 have an MLP too */
    CHECK(f.head == 2 * 3 * (8 * 16 + 16 * 5));
    config_destroy(c);
}

/* One layer, five events of which four are history. */
static flops flops_of(const char *gin) {
    config *c = load(gin);
    int32_t offsets[] = {0, 5}, n_targets[] = {1};
    batch b = {.n_users = 1, .offsets = offsets, .n_targets = n_targets};
    flops f = flops_of_batch(c, 0, &b, false);
    config_destroy(c);
    return f;
}

TEST(flops_of_fuxi_and_esasrec) {
    flops f = flops_of("train_fn.main_module = 'FuXi'\n"
                       "train_fn.item_embedding_dim = 6\n"
                       "fuxi_encoder.num_blocks = 1\n"
                       "fuxi_encoder.num_heads = 2\n"
                       "fuxi_encoder.dqk = 4\n"
                       "fuxi_encoder.dv = 5\n"
                       "fuxi_encoder.ffn_multiply = 2\n");
    CHECK(f.uvqk == 2 * 4 * 6 * (2 * (4 * 5 + 2 * 4)));
    CHECK(f.projection == 2 * 4 * 6 * (3 * 2 * 5 + 3 * 12));
    CHECK(f.attention == 2 * 2 * (4 + 3 * 5) * 16 / 2);
    f = flops_of("train_fn.main_module = 'eSASRec'\n"
                 "train_fn.item_embedding_dim = 6\n"
                 "esasrec_encoder.num_blocks = 1\n"
                 "esasrec_encoder.num_heads = 2\n");
    CHECK(f.uvqk == 2 * 4 * 6 * 18);
    CHECK(f.projection == 2 * 4 * 6 * (6 + 2 * 6 + 3 * 24));
    CHECK(f.attention == 4 * 6 * 16 / 2);
}

TEST(flops_of_sasrec) {
    config *c = load("train_fn.main_module = 'SASRec'\n"
                     "train_fn.item_embedding_dim = 6\n"
                     "train_fn.num_negatives = 5\n"
                     "sasrec_encoder.num_blocks = 1\n"
                     "sasrec_encoder.num_heads = 2\n"
                     "sasrec_encoder.ffn_hidden_dim = 10\n");
    int32_t offsets[] = {0, 5}, n_targets[] = {1};
    batch b = {.n_users = 1, .offsets = offsets, .n_targets = n_targets};
    flops f = flops_of_batch(c, 0, &b, false);
    CHECK(f.uvqk == 2 * 4 * 6 * 18);
    CHECK(f.projection == 2 * 4 * 6 * (6 + 10 + 10));
    CHECK(f.attention == 4 * 6 * 16 / 2);
    config_destroy(c);
}
