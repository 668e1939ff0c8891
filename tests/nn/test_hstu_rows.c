/* Sequences cut over ranks (sequence parallel): a run equals one rank's but for rounding, on any
 * number of groups to the bit; a rank needs less memory; what cannot be cut is refused. */
#include "dist/mpi.h"
#include "group_run.h"
#include "nn/hstu_rows.h"
#include "ops/row_moves.h"
#include "shipped.h"

static const char ranking[] = NETWORK "DatasetArgs.max_num_candidates = 3\n"
                                      "RankingArgs.prediction_head_arch = [8, 5]\n"
                                      "RankingArgs.num_tasks = 1\n";
static const char retrieval[] = NETWORK "RetrievalArgs.num_negatives = -1\n";
static const char with_table[] =
    NETWORK "DatasetArgs.max_num_candidates = 3\n"
            "RankingArgs.prediction_head_arch = [8, 5]\n"
            "RankingArgs.num_tasks = 1\n"
            "movies/DynamicEmbeddingArgs.feature_names = ['item']\n"
            "movies/DynamicEmbeddingArgs.table_name = 'movies'\n"
            "movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 1000\n"
            "BenchmarkDatasetArgs.embedding_args = [@movies/DynamicEmbeddingArgs()]\n";

TEST(rows_are_all_somewhere_once) {
    for (int size = 1; size <= 5; size++)
        for (int64_t n = 0; n < 40; n++) {
            int64_t at = 0, n_own;
            for (int r = 0; r < size; r++) {
                comm c = {.rank = r, .size = size};
                CHECK_EQ(rows_own(n, &c, &n_own), at);
                CHECK(n_own >= 0 && n_own <= rows_most(n, &c));
                at += n_own;
            }
            CHECK_EQ(at, n);
        }
    int64_t n_own;
    CHECK(rows_own(7, NULL, &n_own) == 0 && n_own == 7 && rows_most(7, NULL) == 7);
}

/* Two parts of two blocks of a row of 12 bytes, of which the first 2 and the last 4 are others'. */
TEST(rows_pack_columns_of_heads) {
    backend *be;
    char whole[24], packed[12], want[12] = {2, 3, 6, 14, 15, 18, 4, 5, 7, 16, 17, 19};
    head_parts a = {.n = 2,
                    .n_parts = 2,
                    .n_blocks = 2,
                    .first = {2, 6},
                    .width = {2, 1},
                    .stride = 12,
                    .whole = whole,
                    .packed = packed};
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int i = 0; i < 24; i++)
        whole[i] = (char)i;
    CHECK_EQ(head_parts_row(&a), 3);
    CHECK_OK(head_parts_pack(be, &a));
    CHECK(memcmp(packed, want, sizeof want) == 0);
    for (int i = 0; i < 12; i++)
        packed[i] = (char)(packed[i] + 100);
    CHECK_OK(head_parts_unpack(be, &a));
    for (int i = 0; i < 24; i++)
        CHECK_EQ(whole[i], i % 12 >= 2 && i % 12 < 8 ? i + 100 : i);
    a.n = 0;
    CHECK_OK(head_parts_pack(be, &a));
    backend_destroy(be);
}

/* Sums in another order: up to 2.4e-6 of the largest weight of a tensor, 1.3e-6 of the largest
 * moment and 4.3e-9 of the loss were measured. */
enum { N_STEPS = 8 };
static const double WEIGHTS = 2e-5, MOMENTS = 1e-5, LOSS = 1e-7;

static void check_same_training(const char *a, const char *b) {
    double w = differ(a, b, "model.safetensors"), m = differ(a, b, "optimizer.safetensors");
    double x = loss_of(a), y = loss_of(b);
    if (!(w <= WEIGHTS && m <= MOMENTS && fabs(x - y) <= LOSS * x))
        FAIL_TEST("%s and %s: weights %g, moments %g, loss %g and %g", a, b, w, m, x, y);
}

/* One group of two, two groups of two, and, where is_all, four ranks with a head each. */
static void check_cuts(const char *gin, const char *set, bool is_all) {
    static const struct {
        const char *run;
        int n, size;
    } cuts[] = {{"1", 1, 1}, {"2", 2, 2}, {"4x2", 4, 2}, {"4", 4, 4}};
    for (int i = 0; i < 3 + is_all; i++) {
        job j = {
            .gin = gin, .set = set, .run = cuts[i].run, .n_steps = N_STEPS, .is_sequence = true};
        CHECK_OK(train_on(&j, cuts[i].n, cuts[i].size));
        if (i > 0) check_same_training(cuts[0].run, cuts[i].run);
    }
    CHECK(same_run("2", "4x2"));
    CHECK(!same_run("1", "2"));
}

TEST(sequence_equals_one_rank_ranking) {
    check_cuts(ranking, NULL, true);
}

TEST(sequence_equals_one_rank_retrieval) {
    check_cuts(retrieval, NULL, false);
}

TEST(sequence_equals_one_rank_dynamic_table) {
    check_cuts(with_table, NULL, false);
}

/* Values that are computed again in the backward pass, and three micro-batches a step. */
TEST(sequence_equals_one_rank_recomputing) {
    check_cuts(NETWORK "DatasetArgs.max_num_candidates = 3\n"
                       "RankingArgs.prediction_head_arch = [8, 5]\n"
                       "RankingArgs.num_tasks = 1\n"
                       "TrainingArgs.gradient_accumulation_steps = 3\n"
                       "NetworkArgs.recompute_input_layernorm = True\n"
                       "NetworkArgs.recompute_input_silu = True\n",
               NULL, false);
}

/* Meta's layers: the bias by position and time gets a part of its gradient from each head. */
TEST(sequence_equals_one_rank_research) {
    check_cuts(retrieval_gin, "hstu_encoder.num_heads=2", false);
}

/* Fewer tokens than ranks: some have no rows. */
TEST(sequence_of_few_tokens) {
    job one = {.gin = ranking, .set = "TrainerArgs.train_batch_size=1", .run = "1", .n_steps = 4};
    job cut = one;
    cut.run = "4";
    cut.is_sequence = true;
    CHECK_OK(train_on(&one, 1, 1));
    CHECK_OK(train_on(&cut, 4, 4));
    check_same_training("1", "4");
}

TEST(sequence_resumes_with_another_cut) {
    static const struct { int n, size; } parts[] = {{2, 2}, {1, 1}, {4, 2}, {4, 4}};
    job whole = {.gin = ranking, .run = "whole", .n_steps = N_STEPS};
    CHECK_OK(train_on(&whole, 1, 1));
    for (int i = 0; i < 4; i++) {
        job j = {.gin = ranking,
                 .run = "parts",
                 .n_steps = 2 * (i + 1),
                 .is_resume = i > 0,
                 .is_sequence = true};
        CHECK_OK(train_on(&j, parts[i].n, parts[i].size));
    }
    check_same_training("whole", "parts");
}

static uint64_t pass_bytes(int size) {
    place p;
    shm_job *board;
    transport *t;
    CHECK_OK(shm_job_create(&board, 4, 0));
    CHECK_OK(shm_create(&t, board, 1));
    CHECK_OK(place_open(&p, ranking, NULL, size > 1 ? t : NULL, size, true));
    uint64_t bytes = pass_memory_bytes(p.top.session.train);
    place_close(&p);
    transport_destroy(t);
    shm_job_destroy(board);
    return bytes;
}

/* E = 8, H D = 24, W = 96, 2 layers: of a token each layer keeps a normed and a hidden row, z and
 * y, attention and gated rows, four statistics; once there are their gradients and what is
 * exchanged: three times v, q and k, once the result.  First and last hidden row are whole. */
TEST(sequence_takes_less_memory) {
    uint64_t one = pass_bytes(1);
    int64_t n_tokens = 8 * 2 * (12 + 3);
    for (int size = 2; size <= 4; size += 2) {
        int64_t one_layer = 8 + 96 + 96 + 24 + 24 + 4, once = 24 + 24 + 96 + 8, middle = 8;
        int64_t row = 2 * one_layer + once + middle, exchanged = 3 * 72 + 24;
        int64_t less = row - row / size - exchanged / size;
        uint64_t part = pass_bytes(size);
        CHECK(one > part);
        CHECK(one - part >= (uint64_t)(less * n_tokens * 4) * 97 / 100);
    }
}

static void cut_refused(const char *gin, const char *set, status wanted, const char *text) {
    place p;
    shm_job *board;
    transport *t;
    CHECK_OK(shm_job_create(&board, 2, 0));
    CHECK_OK(shm_create(&t, board, 0));
    CHECK_FAILS(place_open(&p, gin, set, t, 2, true), wanted, text);
    place_close(&p);
    transport_destroy(t);
    shm_job_destroy(board);
}

TEST(sequence_refuses_what_it_cannot_cut) {
    cut_refused(ranking, "NetworkArgs.num_attention_heads=3", ERR_CONFIG,
                "test.gin: the 3 attention heads do not divide among --sequence-parallel 2 ranks");
    static const char *const others[] = {"train_fn.main_module='SASRec'",
                                         "train_fn.main_module='FuXi'",
                                         "train_fn.main_module='eSASRec'"};
    for (int i = 0; i < 3; i++)
        cut_refused(retrieval_gin, others[i], ERR_UNSUPPORTED,
                    "test.gin: its sequences cannot be cut over ranks");
}

#define TRAIN "train --gin-config-file c.gin --data data --device cpu --max-iters 2 "

TEST(sequence_tells_the_cut) {
    (void)synth_folder();
    write_text("c.gin", ranking);
    CHECK_CONTAINS(command(0, "", TRAIN "--out r4 --ranks 4 --sequence-parallel 2"),
                   "4 ranks = 2 data x 2 sequence: the groups divide the users of a step, and each "
                   "rank has 1/2 of the tokens, and in the attention 2 of the 4 heads");
    CHECK_CONTAINS(command(0, "", TRAIN "--out r1 --sequence-parallel 2"),
                   "one rank trains whole sequences; --ranks cuts them");
    CHECK_CONTAINS(command(2, "", TRAIN "--out r3 --ranks 3 --sequence-parallel 2"),
                   "3 ranks cannot form groups of so many; start a multiple of 2 ranks");
    CHECK(!folder_exists(run_path("r3")));
    CHECK_CONTAINS(command(2, "",
                           TRAIN "--out r5 --ranks 2 --sequence-parallel 2 --set "
                                 "TensorModelParallelArgs.tensor_model_parallel_size=2"),
                   "ranks share layers or sequences, not both");
    /* It belongs to the run, and another number may go on with it. */
    CHECK_CONTAINS(command(0, "", "train --resume --out r4 --data data --device cpu --ranks 2"),
                   "2 ranks = 1 data x 2 sequence");
    CHECK_CONTAINS(command(0, "", "eval r4 --data data --device cpu --ranks 2"), "auc");
    forget_said();
}

TEST(sequence_same_bits_by_mpirun) {
    char why[512], before[256];
    if (mpi_library(why, sizeof why) == NULL) exit(TEST_SKIPPED);
    snprintf(before, sizeof before, "%s -n 2", mpirun);
    if (test_command(&said, "%s true", before) != 0) exit(TEST_SKIPPED);
    (void)synth_folder();
    write_text("c.gin", ranking);
    command(0, "", TRAIN "--out forked --ranks 4 --sequence-parallel 2");
    snprintf(before, sizeof before, "%s -n 4", mpirun);
    command(0, before, TRAIN "--out mpi --sequence-parallel 2");
    CHECK(same_run("forked", "mpi"));
    forget_said();
}
