/* For the tests of training: a small synthetic data set, a config from text, and a run in this
 * process. */
#ifndef HSTU_TESTS_TRAIN_TEST_H
#define HSTU_TESTS_TRAIN_TEST_H

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "data/synth/synth.h"
#include "test.h"
#include "train/files/checkpoint.h"
#include "train/loop/trainer.h"

/* A tiny model of Meta's family, and one of NVIDIA's that ranks. */
static const char retrieval_gin[] = "train_fn.dataset_name = 'synth'\n"
                                    "train_fn.max_sequence_length = 12\n"
                                    "train_fn.local_batch_size = 8\n"
                                    "train_fn.eval_batch_size = 16\n"
                                    "train_fn.main_module = 'HSTU'\n"
                                    "train_fn.item_embedding_dim = 8\n"
                                    "train_fn.num_negatives = 16\n"
                                    "train_fn.sampling_strategy = 'local'\n"
                                    "train_fn.item_l2_norm = True\n"
                                    "train_fn.num_epochs = 3\n"
                                    "train_fn.learning_rate = 3e-3\n"
                                    "hstu_encoder.num_blocks = 1\n"
                                    "hstu_encoder.dqk = 8\n"
                                    "hstu_encoder.dv = 8\n"
                                    "hstu_encoder.linear_dropout_rate = 0.2\n";
static const char ranking_gin[] = "TrainerArgs.train_batch_size = 8\n"
                                  "TrainerArgs.eval_interval = 1000\n"
                                  "DatasetArgs.dataset_name = 'synth'\n"
                                  "DatasetArgs.max_history_seqlen = 12\n"
                                  "DatasetArgs.max_num_candidates = 3\n"
                                  "DatasetArgs.shuffle = True\n"
                                  "NetworkArgs.dtype_str = 'float32'\n"
                                  "NetworkArgs.num_layers = 1\n"
                                  "NetworkArgs.num_attention_heads = 1\n"
                                  "NetworkArgs.hidden_size = 8\n"
                                  "NetworkArgs.num_position_buckets = 64\n"
                                  "RankingArgs.prediction_head_arch = [8, 5]\n"
                                  "RankingArgs.num_tasks = 1\n";

/* Data, config, threads and backend of a test. */
typedef struct bench_top {
    pool *workers;
    backend *be;
    seq_file *data;
    config *config;
    session session;
} bench_top;

static inline const char *synth_folder(void) {
    static char folder[256];
    snprintf(folder, sizeof folder, "%s/data", test_folder());
    if (!folder_exists(folder)) {
        synth_config c = {.n_users = 40, .n_items = 60, .mean_len = 9, .seed = 3};
        synth_report report;
        CHECK_OK(synth_write(&c, folder, NULL, &report));
    }
    return folder;
}

static inline status top_open_on(bench_top *t, const char *folder, const char *gin,
                                 const char *const *set, size_t n_set, int n_threads) {
    config_source source = {.text = gin,
                            .text_name = "test.gin",
                            .text_bytes = strlen(gin),
                            .overrides = set,
                            .n_overrides = n_set};
    *t = (bench_top){0};
    log_set_level(LOG_WARN);
    status st = config_load(&t->config, &source);
    if (st == OK) st = pool_create(&t->workers, n_threads);
    if (st == OK) st = backend_create_cpu(&t->be, t->workers);
    if (st == OK) st = seq_file_open(&t->data, folder, t->workers);
    if (st == OK) st = session_open(&t->session, t->config, t->data, t->be);
    return st;
}

static inline status top_open(bench_top *t, const char *gin, const char *const *set, size_t n_set,
                              int n_threads) {
    return top_open_on(t, synth_folder(), gin, set, n_set, n_threads);
}

static inline void top_close(bench_top *t) {
    session_close(&t->session);
    seq_file_close(t->data);
    backend_destroy(t->be);
    pool_destroy(t->workers);
    config_destroy(t->config);
}

/* RUN as a path in the test's folder. */
static inline const char *run_path(const char *name) {
    static char path[4][512];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", test_folder(), name);
    return p;
}

/* Whether two files of two runs' last checkpoints are the same bytes. */
static inline bool same_file(const char *run_a, const char *run_b, const char *name) {
    char a[1024], b[1024];
    file_map x, y;
    snprintf(a, sizeof a, "%s/last/%s", run_a, name);
    snprintf(b, sizeof b, "%s/last/%s", run_b, name);
    CHECK_OK(file_map_open(&x, a));
    CHECK_OK(file_map_open(&y, b));
    bool is_same = x.n_bytes == y.n_bytes && memcmp(x.bytes, y.bytes, x.n_bytes) == 0;
    file_map_close(&x);
    file_map_close(&y);
    return is_same;
}

#endif
