/* Configs: the shipped files value by value, older spellings, overrides, errors. */
#include "config_test.h"
#include "oom.h"

AFTER_TESTS {
    config_destroy(c);
}

/* A file of configs/, found from the program's place: build/VARIANT/hstu in the repository. */
static void load_shipped(const char *name) {
    char path[4400];
    snprintf(path, sizeof path, "%s", test_program());
    for (int up = 0; up < 3; up++)
        *strrchr(path, '/') = '\0';
    snprintf(path + strlen(path), 200, "/configs/%s", name);
    config_source source = {.path = path};
    log_set_level(LOG_QUIET);
    config_destroy(c);
    CHECK_OK(config_load(&c, &source));
    CHECK_OK(config_check_trainable(c));
}

typedef struct meta_row {
    const char *file, *dataset;
    config_model model;
    int length, width, blocks, heads, dim, ffn;
    double dropout;
    int negatives, epochs, prefetch, eval_interval, full_eval, partial, save;
} meta_row;

/* The table of section 1.9 of the reference notes. */
static const meta_row meta_rows[] = {
    {"ml-1m/sasrec-sampled-softmax-n128-final.gin", "ml-1m", MODEL_SASREC, 200, 50, 2, 1, 50, 50,
     0.2, 128, 101, 128, 100, 1, 32, 1000},
    {"ml-1m/hstu-sampled-softmax-n128-final.gin", "ml-1m", MODEL_HSTU_RESEARCH, 200, 50, 2, 1, 50,
     0, 0.2, 128, 101, 128, 100, 1, 32, 1000},
    {"ml-1m/hstu-sampled-softmax-n128-large-final.gin", "ml-1m", MODEL_HSTU_RESEARCH, 200, 50, 8, 2,
     25, 0, 0.2, 128, 101, 128, 100, 1, 32, 1000},
    {"ml-1m/fuxi-sampled-softmax-n128-final.gin", "ml-1m", MODEL_FUXI, 200, 50, 2, 1, 50, 50, 0.2,
     128, 101, 128, 100, 1, 32, 1000},
    {"ml-1m/fuxi-sampled-softmax-n128-large-final.gin", "ml-1m", MODEL_FUXI, 200, 50, 8, 2, 25, 50,
     0.2, 128, 101, 128, 100, 1, 32, 1000},
    {"ml-1m/esasrec-sampled-softmax-n256-final.gin", "ml-1m", MODEL_ESASREC, 200, 64, 2, 1, 64, 256,
     0.1, 256, 101, 128, 100, 1, 32, 1000},
    {"ml-1m/esasrec-sampled-softmax-n256-large-final.gin", "ml-1m", MODEL_ESASREC, 200, 64, 8, 2,
     32, 256, 0.1, 256, 101, 128, 100, 1, 32, 1000},
    {"ml-20m/sasrec-sampled-softmax-n128-final.gin", "ml-20m", MODEL_SASREC, 200, 256, 4, 4, 64,
     256, 0.2, 128, 101, 128, 100, 1, 32, 1000},
    {"ml-20m/hstu-sampled-softmax-n128-final.gin", "ml-20m", MODEL_HSTU_RESEARCH, 200, 256, 4, 4,
     64, 0, 0.2, 128, 101, 128, 100, 1, 32, 1000},
    {"ml-20m/hstu-sampled-softmax-n128-large-final.gin", "ml-20m", MODEL_HSTU_RESEARCH, 200, 256,
     16, 8, 32, 0, 0.2, 128, 101, 128, 100, 1, 32, 1000},
    {"amzn-books/sasrec-sampled-softmax-n512-final.gin", "amzn-books", MODEL_SASREC, 50, 64, 4, 4,
     16, 64, 0.5, 512, 201, 1024, 4000, 5, 64, 10},
    {"amzn-books/hstu-sampled-softmax-n512-final.gin", "amzn-books", MODEL_HSTU_RESEARCH, 50, 64, 4,
     4, 16, 0, 0.5, 512, 201, 1024, 4000, 5, 64, 1000},
    {"amzn-books/hstu-sampled-softmax-n512-large-final.gin", "amzn-books", MODEL_HSTU_RESEARCH, 50,
     64, 16, 8, 8, 0, 0.5, 512, 201, 1024, 4000, 5, 64, 1000},
};

static void check_meta_row(const meta_row *r) {
    load_shipped(r->file);
    CHECK_EQ(c->family, FAMILY_META);
    CHECK_EQ(c->task, TASK_RETRIEVAL);
    CHECK_EQ(c->model, r->model);
    CHECK_STR(c->data.dataset_name, r->dataset);
    CHECK_EQ(c->data.max_history, r->length);
    CHECK_EQ(c->network.hidden_size, r->width);
    CHECK_EQ(c->network.n_layers, r->blocks);
    CHECK_EQ(c->network.n_heads, r->heads);
    CHECK_EQ(c->network.dim_qk, r->dim);
    CHECK_EQ(c->network.dim_v, r->dim);
    CHECK_EQ(c->network.ffn_hidden_size, r->ffn);
    CHECK(c->network.input_dropout == r->dropout && c->network.dropout == r->dropout);
    CHECK_EQ(c->retrieval.n_negatives, r->negatives);
    CHECK_EQ(c->trainer.n_epochs, r->epochs);
    CHECK_EQ(c->trainer.eval_interval, r->eval_interval);
    CHECK_EQ(c->trainer.full_eval_every, r->full_eval);
    CHECK_EQ(c->trainer.partial_eval_iters, r->partial);
    CHECK_EQ(c->trainer.checkpoint_epochs, r->save);
    CHECK_EQ(c->data.prefetch_factor, r->prefetch);
}

/* Values that all nine configs share, given or by default. */
static void check_meta_common(void) {
    CHECK_EQ(c->trainer.train_batch_size, 128);
    CHECK_EQ(c->trainer.eval_batch_size, 128);
    CHECK_EQ(c->trainer.seed, 42);
    CHECK_EQ(c->data.n_workers, 8);
    CHECK_EQ(c->retrieval.negatives, NEGATIVES_LOCAL);
    CHECK_EQ(c->retrieval.loss, LOSS_SAMPLED_SOFTMAX);
    CHECK(c->retrieval.temperature == 0.05 && c->retrieval.norm_epsilon == 1e-6);
    CHECK(c->retrieval.has_item_norm);
    CHECK(c->optimizer.learning_rate == 1e-3 && c->optimizer.weight_decay == 0);
    CHECK(c->optimizer.beta1 == 0.9 && c->optimizer.beta2 == 0.98);
    CHECK_EQ(c->optimizer.n_warmup_steps, 0);
    CHECK(c->network.has_tf32 && c->network.dtype == DTYPE_FLOAT32);
    CHECK_EQ(c->network.output_length, 10);
    CHECK_EQ(c->network.user_norm, USER_NORM_L2);
}

TEST(config_meta_files) {
    for (size_t i = 0; i < sizeof meta_rows / sizeof meta_rows[0]; i++) {
        check_meta_row(&meta_rows[i]);
        check_meta_common();
    }
}

TEST(config_meta_defaults) {
    CHECK_OK(load("train_fn.main_module = 'HSTU'"));
    CHECK_STR(c->data.dataset_name, "ml-20m");
    CHECK_EQ(c->network.hidden_size, 240);
    CHECK_EQ(c->network.dim_qk, 64);
    CHECK(c->network.dropout == 0 && c->network.input_dropout == 0.2);
    CHECK(c->network.has_relative_bias && !c->network.concatenates_u);
    CHECK_EQ(c->retrieval.negatives, NEGATIVES_IN_BATCH);
    CHECK_EQ(c->retrieval.n_negatives, 1);
    CHECK(c->optimizer.weight_decay == 1e-3);
    CHECK_EQ(c->data.n_workers, CONFIG_NONE);
    CHECK_EQ(c->data.prefetch_factor, 128);
    /* The encoder that is not chosen is checked, but does not count. */
    CHECK_OK(load("sasrec_encoder.num_blocks = 7\ntrain_fn.main_module = 'HSTU'"));
    CHECK_EQ(c->network.n_layers, 2);
    CHECK_FAILS(load("sasrec_encoder.num_blocks = 'x'\ntrain_fn.main_module = 'HSTU'"), ERR_CONFIG,
                "t.gin:1: sasrec_encoder.num_blocks wants a whole number, not the string 'x'");
    CHECK_FAILS(load("train_fn.item_embedding_dim = 50\nsasrec_encoder.num_heads = 4"), ERR_CONFIG,
                "t.gin:1: item_embedding_dim = 50 does not divide among 4 heads");
}

TEST(config_movielen_files) {
    load_shipped("movielen_ranking.gin");
    CHECK_EQ(c->family, FAMILY_NVIDIA);
    CHECK_EQ(c->task, TASK_RANKING);
    CHECK_EQ(c->model, MODEL_HSTU);
    CHECK_EQ(c->trainer.train_batch_size, 128);
    CHECK_EQ(c->trainer.max_train_iters, 1000);
    CHECK_EQ(c->trainer.pipeline, PIPELINE_PREFETCH);
    CHECK(c->trainer.is_balanced && c->trainer.has_profile);
    CHECK_EQ(c->data.max_history, 200);
    CHECK_EQ(c->data.max_candidates, 20);
    CHECK_EQ(c->network.dim_qk, 128);
    CHECK(c->network.dropout == 0.2 && c->network.norm_epsilon == 1e-5);
    CHECK_EQ(c->ranking.head.n, 2);
    CHECK_EQ(c->ranking.head.item[1], 10);
    CHECK_EQ(c->ranking.n_tasks, 1);
    CHECK(c->optimizer.beta2 == 0.98 && c->optimizer.weight_decay == 0);
    CHECK_EQ(c->embeddings.n, 3);
    CHECK_STR(c->embeddings.item[1].table_name, "movie_id");
    CHECK(c->embeddings.item[1].is_dynamic && c->embeddings.item[1].has_caching);
    c->optimizer.average = .9;
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "use static tables");
    load_shipped("movielen_retrieval.gin");
    CHECK_EQ(c->task, TASK_RETRIEVAL);
    CHECK_EQ(c->network.n_layers, 4);
    CHECK(c->network.dropout == 0 && c->network.norm_epsilon == 1e-6);
    CHECK_EQ(c->retrieval.n_negatives, 128);
    CHECK_EQ(c->retrieval.metrics.n, 3);
    CHECK_STR(c->retrieval.metrics.item[1], "NDCG@20");
    CHECK(c->data.is_shuffled);
    CHECK(!c->embeddings.item[1].has_caching && c->embeddings.item[2].has_caching);
}

TEST(config_kuairand_files) {
    static const struct {
        const char *file, *dataset;
        int batch, interval, history, candidates, layers, width;
        bool is_shuffled;
        int first_vocab, actions;
        int64_t videos;
    } rows[] = {
        {"kuairand_pure_ranking.gin", "kuairand-pure", 32, 50, 910, 20, 1, 128, true, 10, 226,
         10000000},
        {"kuairand_1k_ranking.gin", "kuairand-1k", 8, 10, 4096, 100, 3, 512, false, 8, 233,
         10000000},
        {"kuairand_27k_ranking.gin", "kuairand-27k", 32, 50, 8000, 256, 1, 128, true, 10, 246,
         32038725},
    };
    for (size_t i = 0; i < 3; i++) {
        load_shipped(rows[i].file);
        CHECK_STR(c->data.dataset_name, rows[i].dataset);
        CHECK_EQ(c->trainer.train_batch_size, rows[i].batch);
        CHECK_EQ(c->trainer.log_interval, rows[i].interval);
        CHECK_EQ(c->data.max_history, rows[i].history);
        CHECK_EQ(c->data.max_candidates, rows[i].candidates);
        CHECK_EQ(c->data.is_shuffled, rows[i].is_shuffled);
        CHECK_EQ(c->network.n_layers, rows[i].layers);
        CHECK_EQ(c->network.hidden_size, rows[i].width);
        CHECK_EQ(c->network.has_no_contextual_mask, i == 1);
        CHECK_EQ(c->ranking.n_tasks, 8);
        CHECK_EQ(c->embeddings.n, 8);
        CHECK_EQ(c->embeddings.item[0].capacity, rows[i].first_vocab);
        CHECK_EQ(c->embeddings.item[0].sharding, SHARDING_DATA_PARALLEL);
        CHECK_EQ(c->embeddings.item[5].capacity, rows[i].actions);
        CHECK_EQ(c->embeddings.item[6].capacity, rows[i].videos);
        CHECK(c->embeddings.item[6].gpu_capacity_ratio == 0.5);
        CHECK(!c->embeddings.item[6].has_caching);
    }
}

TEST(config_benchmark_files) {
    load_shipped("benchmark_ranking.gin");
    CHECK(c->is_benchmark && c->data.dataset_name == NULL);
    CHECK_EQ(c->benchmark.features.n, 1);
    const config_feature *f = &c->benchmark.features.item[0];
    CHECK_STR(f->scope, "item_and_action_feature");
    CHECK_EQ(f->max_sequence_length, 4096);
    CHECK(!f->is_jagged);
    CHECK_EQ(f->seqlen_dist->kind, DIST_ZIPF);
    CHECK(f->seqlen_dist->alpha == 1.5 && f->seqlen_dist->low == 1 && f->seqlen_dist->high == 4096);
    CHECK_STR(f->value_dists.name[0], "item");
    CHECK(f->value_dists.item[0].alpha == 1.2 && f->value_dists.item[0].high == CONFIG_NONE);
    CHECK_EQ(c->embeddings.n, 2);
    CHECK_EQ(c->embeddings.item[0].capacity, 50000000);
    CHECK(c->embeddings.item[0].gpu_capacity_ratio == 0.1);
    CHECK_EQ(c->network.item_dim, 128);
    CHECK_EQ(c->network.contextual_dim, 256);
    CHECK(c->network.recomputes_norm);
    CHECK_EQ(c->trainer.max_train_iters, 512);
    CHECK_EQ(c->trainer.profile_first, 50);
    CHECK_EQ(c->trainer.profile_last, 80);
    load_shipped("benchmark_ranking_fixed.gin");
    CHECK_EQ(c->data.max_history, 2048);
    CHECK_EQ(c->benchmark.contextual_features.n, 3);
    CHECK_STR(c->benchmark.contextual_features.item[2], "item_category_l1");
    CHECK_EQ(c->embeddings.n, 5);
    CHECK_EQ(c->network.n_layers, 8);
    CHECK_EQ(c->network.dim_v, 256);
    CHECK_EQ(c->network.dtype, DTYPE_BFLOAT16);
    CHECK_EQ(c->trainer.train_batch_size, 32);
    CHECK_EQ(c->ranking.head.item[0], 512);
}

TEST(config_older_files) {
    CHECK_OK(load("DatasetArgs.dataset_name = 'ml-1m'\nDatasetArgs.max_sequence_length = 128\n"
                  "DataArgs.train_batch_size = 64\nDataArgs.num_workers = 4\n"
                  "DataArgs.prefetch_factor = 8\nTrainingArgs.gradient_accumulation_steps = 2\n"
                  "TrainingArgs.bf16 = True\nNetworkArgs.num_layers = 2\n"
                  "NetworkArgs.hidden_size = 256\nNetworkArgs.kernel_backend = 'CUTLASS'\n"
                  "RankingArgs.num_tasks = 3\nNetworkArgs.layer_type = 'fused'\n"
                  "TensorModelParallelArgs.tensor_model_parallel_size = 1\n"));
    CHECK_EQ(c->task, TASK_RANKING);
    CHECK_EQ(c->data.max_history, 128);
    CHECK_EQ(c->trainer.train_batch_size, 64);
    CHECK_EQ(c->trainer.eval_batch_size, 64);
    CHECK_EQ(c->data.n_workers, 4);
    CHECK_EQ(c->data.prefetch_factor, 8);
    CHECK_EQ(c->trainer.accumulation_steps, 2);
    CHECK_EQ(c->network.dtype, DTYPE_BFLOAT16);
    CHECK_EQ(c->network.n_heads, 4);
    CHECK_EQ(c->network.dim_qk, 64);
    CHECK_EQ(c->optimizer.kind, OPTIMIZER_ADAM);
    CHECK(c->optimizer.learning_rate == 1e-3);
    CHECK_EQ(c->ranking.head.n, 2);
    CHECK_EQ(c->ranking.head.item[0], 512);
    CHECK_EQ(c->ranking.head.item[1], 3);
    CHECK_EQ(c->embeddings.n, 7);
    CHECK_OK(config_check_trainable(c));
    CHECK_OK(load(SMALL "RankingArgs.prediction_head_arch = [[233],]"));
    CHECK_EQ(c->ranking.head.item[0], 233);
    CHECK_OK(load(SMALL)); /* neither task is bound: ranking */
    CHECK_EQ(c->task, TASK_RANKING);
}

TEST(config_spellings_agree_or_fail) {
    CHECK_OK(load(SMALL "TrainerArgs.train_batch_size = 8\nDataArgs.train_batch_size = 8"));
    CHECK_FAILS(
        load(SMALL "TrainerArgs.train_batch_size = 8\nDataArgs.train_batch_size = 9"), ERR_CONFIG,
        "t.gin:6: DataArgs.train_batch_size contradicts TrainerArgs.train_batch_size at t.gin:5");
    CHECK_FAILS(load(SMALL "DatasetArgs.max_sequence_length = 100"), ERR_CONFIG,
                "t.gin:5: DatasetArgs.max_sequence_length contradicts "
                "DatasetArgs.max_history_seqlen at t.gin:2");
    CHECK_FAILS(load(SMALL "TrainingArgs.bf16 = True\nNetworkArgs.dtype_str = 'float16'"),
                ERR_CONFIG,
                "t.gin:5: TrainingArgs.bf16 contradicts NetworkArgs.dtype_str at t.gin:6");
    CHECK_FAILS(load(SMALL "TrainingArgs.bf16 = False\nNetworkArgs.dtype_str = 'bfloat16'"),
                ERR_CONFIG, "contradicts");
    CHECK_OK(load(SMALL "TrainingArgs.bf16 = False\nNetworkArgs.dtype_str = 'float16'"));
    CHECK_EQ(c->network.dtype, DTYPE_FLOAT16);
    CHECK_OK(load(SMALL "TrainingArgs.bf16 = False"));
    CHECK_EQ(c->network.dtype, DTYPE_FLOAT32);
    CHECK_FAILS(load(SMALL "TrainingArgs.bf16 = 1"), ERR_CONFIG,
                "t.gin:5: TrainingArgs.bf16 wants True or False, not 1");
    CHECK_FAILS(load(SMALL "DataArgs.train_batch_size = 0"), ERR_CONFIG,
                "t.gin:5: DataArgs.train_batch_size = 0 is out of range");
    /* The command line beats the file, whatever the spelling. */
    static const char *const newer[] = {"TrainerArgs.train_batch_size=4"};
    CHECK_OK(load_text(SMALL "DataArgs.train_batch_size = 8", newer, 1, NULL));
    CHECK_EQ(c->trainer.train_batch_size, 4);
    static const char *const older[] = {"DataArgs.train_batch_size=5"};
    CHECK_OK(load_text(SMALL "TrainerArgs.train_batch_size = 8", older, 1, NULL));
    CHECK_EQ(c->trainer.train_batch_size, 5);
}

TEST(config_overrides) {
    static const char *const sets[] = {"NetworkArgs.num_layers=3", "NetworkArgs.dtype_str=float32",
                                       "RankingArgs.prediction_head_arch=[16, 1]",
                                       "NetworkArgs.num_layers=5"};
    CHECK_OK(load_text(SMALL, sets, 4, NULL));
    CHECK_EQ(c->network.n_layers, 5);
    CHECK_EQ(c->network.dtype, DTYPE_FLOAT32);
    CHECK_EQ(c->ranking.head.item[0], 16);
    CHECK_EQ(c->overrides.n, 4);
    static const char *const bad[] = {"NetworkArgs.num_layer=3"};
    CHECK_FAILS(load_text(SMALL, bad, 1, NULL), ERR_CONFIG,
                "--set NetworkArgs.num_layer=3: unknown option 'NetworkArgs.num_layer'; did you "
                "mean 'NetworkArgs.num_layers'?");
    static const char *const type[] = {"NetworkArgs.num_layers=many"};
    CHECK_FAILS(load_text(SMALL, type, 1, NULL), ERR_CONFIG,
                "--set NetworkArgs.num_layers=many: NetworkArgs.num_layers wants a whole number, "
                "not the string 'many'");
}

TEST(config_errors_name_the_place) {
    CHECK_FAILS(
        load(SMALL "\nNetworkArgs.num_layer = 3"), ERR_CONFIG,
        "t.gin:6: unknown option 'NetworkArgs.num_layer'; did you mean 'NetworkArgs.num_layers'?");
    CHECK_FAILS(load("train_fn.learning_rat = 1"), ERR_CONFIG,
                "did you mean 'train_fn.learning_rate'?");
    CHECK_FAILS(load("NetworkArg.hidden_size = 1"), ERR_CONFIG,
                "did you mean 'NetworkArgs.hidden_size'?");
    CHECK_FAILS(load("Zebra.quux = 1"), ERR_CONFIG,
                "t.gin:1: unknown option 'Zebra.quux'; 'hstu train --help-config'");
    CHECK_FAILS(load(SMALL "NetworkArgs.num_layers = 2.0"), ERR_CONFIG,
                "t.gin:5: NetworkArgs.num_layers wants a whole number, not 2");
    CHECK_FAILS(load(SMALL "NetworkArgs.num_layers = True"), ERR_CONFIG,
                "wants a whole number, not True");
    CHECK_FAILS(load(SMALL "NetworkArgs.num_layers = None"), ERR_CONFIG,
                "wants a whole number, not None");
    CHECK_FAILS(load(SMALL "NetworkArgs.is_causal = 1"), ERR_CONFIG, "wants True or False, not 1");
    CHECK_FAILS(load(SMALL "OptimizerArgs.learning_rate = '1e-3'"), ERR_CONFIG,
                "wants a number, not the string '1e-3'");
    CHECK_FAILS(load(SMALL "RankingArgs.prediction_head_arch = 512"), ERR_CONFIG,
                "wants a list of whole numbers or None, not 512");
    CHECK_FAILS(load(SMALL "RankingArgs.prediction_head_arch = [512, 'x']"), ERR_CONFIG,
                "wants whole numbers");
    CHECK_FAILS(load(SMALL "NetworkArgs.num_layers = 0"), ERR_CONFIG,
                "t.gin:5: NetworkArgs.num_layers = 0 is out of range; it must be at least 1 and at "
                "most 1024");
    CHECK_FAILS(
        load(SMALL "NetworkArgs.hidden_dropout = 1"), ERR_CONFIG,
        "NetworkArgs.hidden_dropout = 1 is out of range; it must be at least 0 and below 1");
    CHECK_FAILS(load(SMALL "TrainerArgs.log_interval = 9223372036854775807"), ERR_CONFIG,
                "it must be at least 1 and at most 9.007199255e+15");
    CHECK_FAILS(load(SMALL "OptimizerArgs.learning_rate = 0"), ERR_CONFIG, "it must be above 0");
    CHECK_FAILS(
        load(SMALL "OptimizerArgs.optimizer_str = 'adan'"), ERR_CONFIG,
        "t.gin:5: OptimizerArgs.optimizer_str = 'adan' is not one of its choices: adam|sgd");
    CHECK_FAILS(
        load(SMALL "NetworkArgs.kernel_backend = 'triton'"), ERR_CONFIG,
        "t.gin:5: NetworkArgs.kernel_backend = 'triton' is not here: hstu.c has its own kernels");
    CHECK_FAILS(load(SMALL "NetworkArgs.kernel_backend = 'pytorch'"), ERR_CONFIG,
                "'pytorch' is not here");
    CHECK_FAILS(load(SMALL "NetworkArgs.num_attention_heads = 3"), ERR_CONFIG,
                "t.gin:4: hidden_size = 64 does not divide among 3 heads");
    CHECK_FAILS(
        load(SMALL "RankingArgs.num_tasks = 8\nRankingArgs.prediction_head_arch = [512, 4]"),
        ERR_CONFIG, "t.gin:6: RankingArgs.prediction_head_arch ends with 4, but there are 8 tasks");
    CHECK_FAILS(load(SMALL "NetworkArgs.scaling_seqlen = 0"), ERR_CONFIG,
                "t.gin:5: NetworkArgs.scaling_seqlen = 0 would divide by zero");
    CHECK_FAILS(load(SMALL "RankingArgs.prediction_head_arch = []"), ERR_CONFIG,
                "t.gin:5: RankingArgs.prediction_head_arch is empty");
    CHECK_FAILS(load(SMALL "RankingArgs.eval_metrics = ('RMSE',)"), ERR_CONFIG,
                "'RMSE' is not one of its choices: AUC|GAUC|ACC|LOGLOSS|NE|ECE|NDCG|HR");
    CHECK_FAILS(load(SMALL "RetrievalArgs.eval_metrics = ('HR@0',)"), ERR_CONFIG,
                "t.gin:5: RetrievalArgs.eval_metrics: 'HR@0' is none of");
    CHECK_FAILS(load("NetworkArgs.num_layers = 1"), ERR_CONFIG,
                "t.gin: required options are not bound: DatasetArgs.dataset_name, "
                "DatasetArgs.max_history_seqlen, NetworkArgs.hidden_size");
    CHECK_FAILS(load(""), ERR_CONFIG, "t.gin binds no option");
    CHECK_FAILS(load("train_fn.num_epochs = 1\nNetworkArgs.num_layers = 1"), ERR_CONFIG,
                "t.gin:1 binds train_fn.num_epochs, which is Meta's, but t.gin:2 binds "
                "NetworkArgs.num_layers");
}

TEST(config_task) {
    CHECK_FAILS(
        load(SMALL "RankingArgs.num_tasks = 1\nRetrievalArgs.num_negatives = 8"), ERR_CONFIG,
        "RankingArgs is bound at t.gin:5 and RetrievalArgs at t.gin:6; say which with --task");
    CHECK_OK(load_text(SMALL "RankingArgs.num_tasks = 1\nRetrievalArgs.num_negatives = 8", NULL, 0,
                       "retrieval"));
    CHECK_EQ(c->task, TASK_RETRIEVAL);
    CHECK_EQ(c->retrieval.n_negatives, 8);
    CHECK_FAILS(load_text(SMALL, NULL, 0, "both"), ERR_USAGE, "--task both: the tasks are");
    CHECK_FAILS(load_text("train_fn.num_epochs = 1", NULL, 0, "ranking"), ERR_CONFIG,
                "train retrieval");
}

TEST(config_instances) {
    CHECK_OK(load(GENERATED));
    CHECK_EQ(c->data.max_history, 10);
    CHECK(c->benchmark.features.item[0].seqlen_dist == NULL);
    /* An unscoped binding is the fallback of every scope; a scope without bindings is fine. */
    CHECK_OK(load(GENERATED
                  "FeatureArgs.is_jagged = True\nRandomDistribution.dist_type = 'uniform'\n"
                  "f/FeatureArgs.seqlen_dist = @unbound/RandomDistribution()"));
    CHECK(c->benchmark.features.item[0].is_jagged);
    CHECK_EQ(c->benchmark.features.item[0].seqlen_dist->high, 10);
    CHECK_FAILS(load(GENERATED "f/FeatureArgs.seqlen_dist = @d/RandomDistribution()"), ERR_CONFIG,
                "t.gin:14: d/RandomDistribution is used but not bound: dist_type");
    CHECK_FAILS(load(GENERATED "BenchmarkDatasetArgs.embedding_args = [@x/EmbeddingArgs()]"),
                ERR_CONFIG,
                "t.gin:14: x/EmbeddingArgs is used but not bound: feature_names, table_name, "
                "item_vocab_size_or_capacity, sharding_type");
    CHECK_FAILS(load(GENERATED "e/EmbeddingArgs.feature_names = []"), ERR_CONFIG,
                "e/EmbeddingArgs has no feature_names");
    CHECK_FAILS(load(GENERATED "f/FeatureArgs.feature_names = []"), ERR_CONFIG,
                "f/FeatureArgs has no feature_names");
    CHECK_FAILS(load(GENERATED "f/FeatureArgs.seqlen_dist = @d/RandomDistribution()\n"
                               "d/RandomDistribution.dist_type = 'uniform'\n"
                               "d/RandomDistribution.low = 5\nd/RandomDistribution.high = 5"),
                ERR_CONFIG, "RandomDistribution has no value between low and high");
    CHECK_OK(load(GENERATED "f/FeatureArgs.seqlen_dist = @d/RandomDistribution()\n"
                            "d/RandomDistribution.dist_type = 'uniform'\n"
                            "d/RandomDistribution.low = 5\nd/RandomDistribution.high = 6"));
    CHECK_FAILS(load(GENERATED "e/EmbeddingArgs.table = 'x'"), ERR_CONFIG,
                "t.gin:14: unknown option 'EmbeddingArgs.table'");
    CHECK_FAILS(load(GENERATED "q/DynamicEmbeddingArgs.evict_strategy = 'fifo'"), ERR_CONFIG,
                "t.gin:14: DynamicEmbeddingArgs.evict_strategy = 'fifo' is not one of its choices: "
                "lru|lfu");
    CHECK_FAILS(
        load(GENERATED "BenchmarkDatasetArgs.embedding_args = [@f/FeatureArgs()]"), ERR_CONFIG,
        "wants @scope/EmbeddingArgs|DynamicEmbeddingArgs(), not the reference @f/FeatureArgs");
    CHECK_FAILS(
        load(GENERATED
             "BenchmarkDatasetArgs.embedding_args = [@e/EmbeddingArgs(), @e/EmbeddingArgs()]"),
        ERR_CONFIG, "two tables have the table_name 'item'");
    CHECK_FAILS(load(GENERATED "BenchmarkDatasetArgs.action_feature_name = 'act'"), ERR_CONFIG,
                "t.gin:14: BenchmarkDatasetArgs.action_feature_name: the feature 'act' is in no "
                "FeatureArgs");
    CHECK_FAILS(load(GENERATED "d/RandomDistribution.dist_type = 'uniform'\n"
                               "f/FeatureArgs.value_dists = {'item': @d/RandomDistribution()}"),
                ERR_CONFIG, "is uniform and needs 'high'");
    CHECK_FAILS(load(GENERATED
                     "d/RandomDistribution.dist_type = 'zipf'\nd/RandomDistribution.high = 11\n"
                     "f/FeatureArgs.seqlen_dist = @d/RandomDistribution()"),
                ERR_CONFIG, "seqlen_dist.high above its max_sequence_length");
    CHECK_FAILS(load(GENERATED "d/RandomDistribution.alpha = 1.0"), ERR_CONFIG,
                "it must be above 1");
    CHECK_FAILS(load(GENERATED "f/FeatureArgs.value_dists = {'a': 1, 'a': 2}"), ERR_CONFIG,
                "has the key 'a' twice");
}

/* Lists of references to dicts of references: small to write, a million to build. */
TEST(config_instance_bomb) {
    static char text[200000];
    strcpy(text, GENERATED "d/RandomDistribution.dist_type = 'zipf'\nr = @d/RandomDistribution()\n"
                           "f/FeatureArgs.value_dists = {");
    for (int i = 0; i < 1000; i++)
        sprintf(text + strlen(text), "'%d': %%r,", i);
    strcat(text, "}\nBenchmarkDatasetArgs.feature_args = [");
    for (int i = 0; i < 1000; i++)
        strcat(text, "@f/FeatureArgs(),");
    strcat(text, "]\n");
    CHECK_FAILS(load(text), ERR_CONFIG, "is one instance too many");
}

/* Losses and negatives that do not go together. */
TEST(config_losses) {
#define LOCAL   "train_fn.sampling_strategy = 'local'\n"
#define MIXED   "train_fn.interaction_module_type = 'MoL'\n"
#define POPULAR "train_fn.negative_distribution = 'popularity'\n"
    static const struct {
        const char *gin, *why; /* NULL: trainable */
    } tries[] = {
        {"train_fn.loss_module = 'BCELoss'", NULL},
        {"train_fn.loss_module = 'GBCELoss'\ntrain_fn.gbce_calibration = 1.0", NULL},
        {"train_fn.loss_module = 'FullSoftmaxLoss'\ntrain_fn.label_smoothing = 0.1", NULL},
        {LOCAL POPULAR "train_fn.logq_correction = 'negatives'", NULL},
        {LOCAL "train_fn.shared_negatives = True", NULL},
        {"train_fn.shared_negatives = True\ntrain_fn.logq_correction = 'all'", NULL},
        {"train_fn.loss_module = 'BCELoss'\ntrain_fn.item_l2_norm = True", "item_l2_norm"},
        {"train_fn.label_smoothing = 0.1", "'FullSoftmaxLoss'"},
        {"train_fn.loss_module = 'FullSoftmaxLoss'\ntrain_fn.shared_negatives = True",
         "draws no negatives"},
        {"train_fn.logq_correction = 'all'\ntrain_fn.loss_module = 'BCELoss'", "sampled softmax"},
        {POPULAR, "sampling_strategy = 'local'"},
        {"train_fn.logq_correction = 'all'", "shared_negatives = True"},
        {"train_fn.shared_negatives = True\ntrain_fn.loss_module = 'GBCELoss'", "'local'"},
        {LOCAL "train_fn.logq_correction = 'all'", "'popularity'"},
        {MIXED "train_fn.loss_module = 'FullSoftmaxLoss'", "'MoL' trains"},
        {MIXED "train_fn.loss_module = 'GBCELoss'", "'MoL' trains"},
        {MIXED "train_fn.shared_negatives = True", "'MoL' trains"},
        {MIXED LOCAL POPULAR "train_fn.logq_correction = 'all'", "'MoL' trains"},
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        CHECK_OK(load(tries[i].gin));
        if (tries[i].why == NULL)
            CHECK_OK(config_check_trainable(c));
        else
            CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, tries[i].why);
    }
    config_destroy(c);
    c = NULL;
}

TEST(config_untrainable) {
    CHECK_OK(load(SMALL "TrainerArgs.train_batch_size = 8\n"
                        "TensorModelParallelArgs.tensor_model_parallel_size = 2"));
    CHECK_EQ(c->trainer.tensor_parallel, 2);
    CHECK_OK(config_check_trainable(c)); /* on any number of ranks that it divides, and on one */
    CHECK_OK(load(SMALL));
    CHECK_FAILS(config_check_trainable(c), ERR_CONFIG,
                "TrainerArgs.train_batch_size is needed to train");
    CHECK_OK(load(SMALL "TrainerArgs.train_batch_size = 8\nNetworkArgs.is_causal = False"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "is_causal = False");
    CHECK_OK(load(SMALL "TrainerArgs.train_batch_size = 8\nRetrievalArgs.num_negatives = 8\n"
                        "DatasetArgs.max_num_candidates = 5"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "max_num_candidates must be 0");
    CHECK_OK(load(SMALL "TrainerArgs.train_batch_size = 8\nNetworkArgs.item_dropout = 0.1"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "item_dropout is for retrieval");
#define MOL "train_fn.interaction_module_type = 'MoL'\n"
    CHECK_OK(load(MOL "train_fn.loss_weights = {'mi_loss': 0.001, 'uid_embedding_l2_norm': 0.1}"));
    CHECK_OK(config_check_trainable(c));
    CHECK_OK(load(MOL "train_fn.loss_weights = {'aux': 0.5}"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "there is no loss 'aux'");
    CHECK_OK(load(MOL "train_fn.item_l2_norm = True"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "item_l2_norm");
    CHECK_OK(load(MOL "create_mol_interaction_module.gating_item_fn = False"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "gating_item_fn");
    CHECK_OK(load(MOL "create_mol_interaction_module.item_use_identity_fn = True"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "item_use_identity_fn");
    CHECK_OK(load(MOL "create_mol_interaction_module.gating_item_dropout_rate = 0.1"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "gating_item_dropout_rate");
#undef MOL
    CHECK_OK(load("train_fn.top_k_method = 'MoLBruteForceTopK'"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "MIPSBruteForceTopK");
    CHECK_OK(load("train_fn.loss_weights = {'aux': 0.5}"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "loss_weights");
    CHECK_OK(load("train_fn.positional_sampling_ratio = 0.5"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "positional_sampling_ratio below 1");
    CHECK_OK(
        load("train_fn.main_module = 'HSTU'\nhstu_encoder.normalization = 'softmax_rel_bias'"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "'softmax_rel_bias' and concat_ua");
    CHECK_OK(load("train_fn.main_module = 'HSTU'\nhstu_encoder.concat_ua = True"));
    CHECK_FAILS(config_check_trainable(c), ERR_UNSUPPORTED, "'softmax_rel_bias' and concat_ua");
}

static status load_generated(void *ctx) {
    (void)ctx;
    status st = load(GENERATED "long = 'a' 'b'\nBenchmarkDatasetArgs.action_feature_name = None");
    config_destroy(c);
    c = NULL;
    return st;
}

TEST(config_out_of_memory) {
    CHECK(oom_at_each_allocation(load_generated, NULL) > 5);
}
