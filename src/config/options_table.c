/* The rows.  Names, meanings and defaults are those of the reference projects; where ours differ,
 * the sentence says so.  The order here is the order of the echo and of docs/config.md. */
#include "config/metric_list.h"
#include "config/options.h"

#define IN(member)              offsetof(config, member)
#define OF_TABLE(member)        offsetof(config_embedding, member)
#define OF_FEATURE(member)      offsetof(config_feature, member)
#define OF_DISTRIBUTION(member) offsetof(config_distribution, member)

/* One macro per type keeps a row on two lines: name and member, then default and meaning. */
#define TYPED(n, t, fl, at, def, text)                                                             \
    { .name = n, .type = t, .flags = fl, .offset = at, .value = def, .help = text }
#define NUMBER(n, t, fl, at, lo, hi, def, text)                                                    \
    {                                                                                              \
        .name = n, .type = t, .flags = fl, .offset = at, .min = lo, .max = hi, .value = def,       \
        .help = text                                                                               \
    }
#define INT_OR_NONE(n, at, lo, hi, words, text)                                                    \
    {                                                                                              \
        .name = n, .type = OPT_INT, .flags = OPT_NULLABLE, .offset = at, .min = lo, .max = hi,     \
        .value = "None", .default_words = words, .help = text                                      \
    }
#define CHOSEN(n, t, fl, at, list, def, text)                                                      \
    { .name = n, .type = t, .flags = fl, .offset = at, .choices = list, .value = def, .help = text }
#define ALIAS(n, fl, target, text)                                                                 \
    { .name = n, .type = OPT_ALIAS, .flags = fl, .choices = target, .help = text }
#define RETIRED(n, list, text)                                                                     \
    { .name = n, .type = OPT_RETIRED, .choices = list, .help = text }
#define FLAG(n, at, def, text)              TYPED(n, OPT_BOOL, 0, at, def, text)
#define TEXT(n, fl, at, def, text)          TYPED(n, OPT_TEXT, fl, at, def, text)
#define INT(n, at, lo, hi, def, text)       NUMBER(n, OPT_INT, 0, at, lo, hi, def, text)
#define INT_OURS(n, at, lo, hi, def, text)  NUMBER(n, OPT_INT, OPT_OURS, at, lo, hi, def, text)
#define INT_REQUIRED(n, at, lo, hi, text)   NUMBER(n, OPT_INT, OPT_REQUIRED, at, lo, hi, NULL, text)
#define FLOAT(n, at, fl, lo, hi, def, text) NUMBER(n, OPT_FLOAT, fl, at, lo, hi, def, text)
#define CHOICE(n, at, list, def, text)      CHOSEN(n, OPT_CHOICE, 0, at, list, def, text)

/* A rate of dropout or decay, [0, 1), and a number above 0. */
#define RATE(n, at, def, text)     FLOAT(n, at, OPT_BELOW_MAX, 0, 1, def, text)
#define POSITIVE(n, at, def, text) FLOAT(n, at, OPT_ABOVE_MIN, 0, 1e30, def, text)

/* Of both projects' files. */
#define ITEM_FEATURES(class)                                                                       \
    TYPED(class ".item_features", OPT_BOOL, OPT_OURS, IN(network.has_item_features), "False",      \
          "Items' rows are made of their features and vectors, too, where the data have them."),   \
        FLOAT(class ".item_id_dropout", IN(network.item_id_dropout), OPT_OURS | OPT_BELOW_MAX, 0,  \
              1, "0.1",                                                                            \
              "With item_features: share of items that a training step knows by these alone.")

#define REGULARIZERS(class)                                                                        \
    FLOAT(                                                                                         \
        class ".stochastic_depth", IN(network.stochastic_depth), OPT_OURS | OPT_BELOW_MAX, 0, 1,   \
        "0",                                                                                       \
        "Share of the sequences for which training skips what the last layer adds; layer l of L "  \
        "l/L of it."),                                                                             \
        FLOAT(class ".item_dropout", IN(network.item_dropout), OPT_OURS | OPT_BELOW_MAX, 0, 1,     \
              "0",                                                                                 \
              "Share of the items of a history that a training step reads as zeros; labels and "   \
              "negatives keep theirs.")

/* Of the optimizer. */
#define WEIGHT_RULES(class)                                                                        \
    CHOSEN(                                                                                        \
        class ".no_weight_decay", OPT_CHOICE, OPT_OURS, IN(optimizer.no_decay),                    \
        "none|vectors|tables|vectors+tables", "'none'",                                            \
        "Parameters without weight decay: vectors (norms, biases, the attention's position and "   \
        "time bias), tables (embeddings of items, actions and user features), or both."),          \
        FLOAT(class ".weight_average", IN(optimizer.average), OPT_OURS | OPT_BELOW_MAX, 0, 1, "0", \
              "Decay of a moving average of the weights (EMA), which evaluations and checkpoints " \
              "have; 0 is off, .999 averages about the last 1,000 steps.")

#define LOSSES(class)                                                                              \
    CHOSEN(class ".negative_distribution", OPT_CHOICE, OPT_OURS, IN(retrieval.draw),               \
           "uniform|popularity", "'uniform'",                                                      \
           "Negatives of the catalogue: every item alike, or by its number of training events."),  \
        TYPED(class ".shared_negatives", OPT_BOOL, OPT_OURS, IN(retrieval.shares_negatives),       \
              "False",                                                                             \
              "All positions of a step have the same negatives; from the batch: all its labels."), \
        CHOSEN(class ".logq_correction", OPT_CHOICE, OPT_OURS, IN(retrieval.logq),                 \
               "none|negatives|all", "'none'",                                                     \
               "Sampled softmax: subtract ln of the expected draws of an item from the scores of " \
               "negatives, or of the label too."),                                                 \
        FLOAT(class ".gbce_calibration", IN(retrieval.gbce_calibration), OPT_OURS, 0, 1, "0.75",   \
              "t of GBCELoss: 0 is plain BCE, 1 makes its scores those of all items."),            \
        FLOAT(class ".label_smoothing", IN(retrieval.label_smoothing), OPT_OURS | OPT_BELOW_MAX,   \
              0, 1, "0", "FullSoftmaxLoss: share of the label that is spread over all items.")

#define LOSS_MODULES "SampledSoftmaxLoss|BCELoss|FullSoftmaxLoss|GBCELoss"

#define MANY 9007199254740992.0 /* 2^53: counts that only memory limits */
#define LONG 16777216           /* tokens of one sequence */

const option option_table[] = {
    /* NVIDIA recsys-examples */
    INT_OR_NONE("TrainerArgs.train_batch_size", IN(trainer.train_batch_size), 1, 1048576,
                "needed to train", "Users in a training batch, per rank: see batch_ranks."),
    INT_OR_NONE("TrainerArgs.eval_batch_size", IN(trainer.eval_batch_size), 1, 1048576,
                "train_batch_size", "Users in an evaluation batch."),
    INT("TrainerArgs.eval_interval", IN(trainer.eval_interval), 1, MANY, "100",
        "Steps between evaluations."),
    NUMBER("TrainerArgs.log_interval", OPT_INT, OPT_NO_EFFECT, IN(trainer.log_interval), 1, MANY,
           "100", "Steps between lines of the log; here a line comes with each evaluation."),
    INT_OR_NONE("TrainerArgs.max_train_iters", IN(trainer.max_train_iters), 1, MANY, NULL,
                "Steps of training; None is one epoch, after an epoch the next one begins."),
    INT_OR_NONE("TrainerArgs.max_eval_iters", IN(trainer.max_eval_iters), 1, MANY, NULL,
                "Batches of an evaluation; None is all users."),
    INT("TrainerArgs.seed", IN(trainer.seed), 0, 4294967295.0, "1234",
        "Seed of everything random: weights, dropout, order of users, negatives."),
    FLAG("TrainerArgs.profile", IN(trainer.has_profile), "False",
         "Record steps of this training in RUN/profile, as 'hstu profile' does; on one rank."),
    INT("TrainerArgs.profile_step_start", IN(trainer.profile_first), 0, MANY, "100",
        "First step of the profile, counted from where this training starts."),
    INT("TrainerArgs.profile_step_end", IN(trainer.profile_last), 0, MANY, "200",
        "Step at which the profile ends."),
    INT("TrainerArgs.ckpt_save_interval", IN(trainer.checkpoint_interval), -1, MANY, "-1",
        "Steps between checkpoints; -1 writes none on the way."),
    TEXT("TrainerArgs.ckpt_save_dir", 0, IN(trainer.checkpoint_folder), "'./checkpoints'",
         "Folder of the run, with its checkpoints; --out overrides it."),
    TEXT("TrainerArgs.ckpt_load_dir", 0, IN(trainer.resume_folder), "''",
         "Run or checkpoint to start from, as --init-from does; empty: none."),
    CHOICE("TrainerArgs.pipeline_type", IN(trainer.pipeline), "none|native|prefetch", "'native'",
           "Overlap of loading and computing; 'prefetch' also fetches embedding rows ahead."),
    FLAG("TrainerArgs.enable_balanced_shuffler", IN(trainer.is_balanced), "False",
         "Spread users over ranks or micro-batches so that the sum of squared lengths is even."),
    FLOAT("TrainerArgs.clip_grad", IN(trainer.clip_grad), OPT_OURS, 0, 1e30, "0",
          "Largest norm of the dense gradient; 0 is off (the reference clips at 1.0 unasked)."),
    RETIRED("TrainerArgs.enable_prefetch_pipeline", NULL, "Older form of pipeline_type."),

    INT_OR_NONE("DataArgs.num_workers", IN(data.n_workers), 0, 1024, "the cores of the machine",
                "Threads that prepare batches."),
    INT("DataArgs.prefetch_factor", IN(data.prefetch_factor), 1, 65536, "2",
        "Batches prepared ahead."),
    ALIAS("DataArgs.train_batch_size", 0, "TrainerArgs.train_batch_size", "Older spelling."),
    ALIAS("DataArgs.eval_batch_size", 0, "TrainerArgs.eval_batch_size", "Older spelling."),

    INT("TrainingArgs.gradient_accumulation_steps", IN(trainer.accumulation_steps), 1, 65536, "1",
        "Batches whose gradients are added before a step of the optimizer."),
    ALIAS("TrainingArgs.bf16", OPT_BF16, "NetworkArgs.dtype_str",
          "Older spelling: True is 'bfloat16', False 'float32'."),

    TEXT("DatasetArgs.dataset_name", OPT_REQUIRED, IN(data.dataset_name), NULL,
         "Name of the data set; ml-1m, ml-20m and kuairand-pure/1k/27k have predefined tables."),
    INT_REQUIRED("DatasetArgs.max_history_seqlen", IN(data.max_history), 1, LONG,
                 "Events of a user's history that are kept, the most recent ones."),
    TEXT("DatasetArgs.dataset_path", OPT_NULLABLE, IN(data.dataset_path), "None",
         "Folder of the prepared data; --data overrides it."),
    INT("DatasetArgs.max_num_candidates", IN(data.max_candidates), 0, LONG, "0",
        "Last events of a user that are ranked as candidates; 0 ranks the whole history."),
    FLAG("DatasetArgs.shuffle", IN(data.is_shuffled), "False", "Shuffle the users in each epoch."),
    ALIAS("DatasetArgs.max_sequence_length", 0, "DatasetArgs.max_history_seqlen",
          "Older spelling."),

    TYPED("BenchmarkDatasetArgs.feature_args", OPT_FEATURES, OPT_REQUIRED, IN(benchmark.features),
          NULL, "Features to generate: a list of @scope/FeatureArgs()."),
    TYPED("BenchmarkDatasetArgs.embedding_args", OPT_EMBEDDINGS, OPT_REQUIRED, IN(embeddings), NULL,
          "Tables: a list of @scope/EmbeddingArgs() and @scope/DynamicEmbeddingArgs().  With "
          "DatasetArgs it is the tables of real data, instead of predefined ones."),
    TEXT("BenchmarkDatasetArgs.item_feature_name", OPT_REQUIRED, IN(benchmark.item_feature), NULL,
         "The feature that holds the items."),
    TYPED("BenchmarkDatasetArgs.contextual_feature_names", OPT_TEXTS, OPT_REQUIRED,
          IN(benchmark.contextual_features), NULL,
          "Features that become one token each before the history."),
    TEXT("BenchmarkDatasetArgs.action_feature_name", OPT_NULLABLE, IN(benchmark.action_feature),
         "None",
         "The feature that holds the actions, put between the items; None has no action tokens."),
    INT("BenchmarkDatasetArgs.max_num_candidates", IN(data.max_candidates), 0, LONG, "0",
        "As in DatasetArgs."),
    INT("BenchmarkDatasetArgs.num_generated_batches", IN(benchmark.n_batches), 1, 1048576, "100",
        "Batches generated once and then cycled."),

    INT_REQUIRED("NetworkArgs.num_layers", IN(network.n_layers), 1, 1024, "HSTU layers."),
    INT_REQUIRED("NetworkArgs.hidden_size", IN(network.hidden_size), 1, 65536,
                 "Width of a token, E."),
    INT("NetworkArgs.num_attention_heads", IN(network.n_heads), 1, 1024, "4",
        "Heads, H (required by the reference)."),
    INT_OR_NONE("NetworkArgs.kv_channels", IN(network.dim_qk), 1, 4096,
                "hidden_size / num_attention_heads", "Width of q, k, v and u per head, D."),
    RATE("NetworkArgs.hidden_dropout", IN(network.dropout), "0.2",
         "Dropout on the embedded sequence and before the output projection of each layer."),
    ITEM_FEATURES("NetworkArgs"),
    REGULARIZERS("NetworkArgs"),
    POSITIVE("NetworkArgs.norm_epsilon", IN(network.norm_epsilon), "1e-5",
             "Added to the variance in LayerNorm."),
    FLAG("NetworkArgs.is_causal", IN(network.is_causal), "True",
         "A token sees only what came before."),
    CHOICE("NetworkArgs.dtype_str", IN(network.dtype), "bfloat16|float16|float32|tf32",
           "'bfloat16'",
           "Precision of the model on a GPU; the CPU computes in float32 whatever it says."),
    CHOICE("NetworkArgs.kernel_backend", IN(network.backend), "cutlass|triton|pytorch", "'cutlass'",
           "Only 'cutlass', which here means our own kernels; the other two are refused."),
    INT("NetworkArgs.target_group_size", IN(network.target_group_size), 1, LONG, "1",
        "Candidates that see each other; 1 is each by itself."),
    INT("NetworkArgs.num_position_buckets", IN(network.n_position_buckets), 1, LONG, "8192",
        "Rows of the position table."),
    FLAG("NetworkArgs.recompute_input_layernorm", IN(network.recomputes_norm), "False",
         "Save memory: compute the first LayerNorm again in the backward pass."),
    FLAG("NetworkArgs.recompute_input_silu", IN(network.recomputes_silu), "False",
         "Save memory: compute SiLU(uvqk) again in the backward pass."),
    INT("NetworkArgs.item_embedding_dim", IN(network.item_dim), -1, 65536, "-1",
        "Width of the item and action tables, brought to hidden_size by an MLP; -1 is "
        "hidden_size."),
    INT("NetworkArgs.contextual_embedding_dim", IN(network.contextual_dim), -1, 65536, "-1",
        "Width of the contextual tables, likewise."),
    INT("NetworkArgs.scaling_seqlen", IN(network.scaling_length), -1, LONG, "-1",
        "N of the 1/N after the attention; -1 is the longest possible sequence."),
    TEXT("NetworkArgs.embedding_backend", OPT_NULLABLE | OPT_NO_EFFECT,
         IN(network.embedding_backend), "None",
         "Kept for the reference's files; there is one backend of tables here."),
    FLAG("NetworkArgs.disable_contextual_mask", IN(network.has_no_contextual_mask), "False",
         "Contextual tokens see only each other, not the whole history."),
    RETIRED("NetworkArgs.layer_type", "fused|native|debug", "Older; the layers compute the same."),
    RETIRED("NetworkArgs.dense_initializer_type", "xavier_uniform",
            "Older; dense weights always start so."),

    CHOICE("OptimizerArgs.optimizer_str", IN(optimizer.kind), "adam|sgd|row_wise_adagrad|adagrad",
           "'adam'",
           "Optimizer (required by the reference); row_wise_adagrad and adagrad are those of "
           "embedding rows, with adam for the weights.  adagrad is not in the reference's configs, "
           "but in dynamicemb."),
    POSITIVE("OptimizerArgs.learning_rate", IN(optimizer.learning_rate), "1e-3",
             "Step size (required by the reference)."),
    RATE("OptimizerArgs.adam_beta1", IN(optimizer.beta1), "0.9", "Decay of the first moment."),
    RATE("OptimizerArgs.adam_beta2", IN(optimizer.beta2), "0.999", "Decay of the second moment."),
    POSITIVE("OptimizerArgs.adam_eps", IN(optimizer.epsilon), "1e-8",
             "Added to the root of the second moment."),
    FLOAT("OptimizerArgs.weight_decay", IN(optimizer.weight_decay), OPT_OURS, 0, 1e30, "0",
          "Decoupled decay of the dense weights; 0 is off (the reference uses 0.01 unasked)."),
    WEIGHT_RULES("OptimizerArgs"),
    INT_OURS("OptimizerArgs.num_warmup_steps", IN(optimizer.n_warmup_steps), 0, MANY, "0",
             "Steps over which the step size grows to its full value."),
    CHOSEN("OptimizerArgs.lr_schedule", OPT_CHOICE, OPT_OURS, IN(optimizer.schedule),
           "constant|cosine", "'constant'",
           "Step size after the warm-up: constant, or a half cosine down to 0 at the last step."),

    INT("TensorModelParallelArgs.tensor_model_parallel_size", IN(trainer.tensor_parallel), 1, 1024,
        "1",
        "Ranks that share every layer by its heads; the groups of so many ranks divide the batch. "
        "On one rank layers stay whole."),
    INT_OURS(
        "TensorModelParallelArgs.sequence_parallel_size", IN(trainer.sequence_parallel), 1, 1024,
        "1",
        "Ranks that share the tokens of a batch, and in the attention the heads: for very long "
        "histories. The groups of so many ranks divide the batch."),
    INT_OURS("TensorModelParallelArgs.batch_ranks", IN(trainer.batch_ranks), 1, 65536, "1",
             "Ranks, or groups of ranks that share layers or tokens, whose batches make up a step. "
             "'hstu train' sets it: to their number, or with --batch-per step to 1."),
    CHOSEN("TensorModelParallelArgs.wire", OPT_CHOICE, OPT_OURS, IN(trainer.wire),
           "float32|bfloat16", "'float32'",
           "How rows of dynamic tables and their gradients travel between ranks."),
    RETIRED("DistributedDataParallelArgs.check_for_nan_in_grad", NULL, "Older switch of a check."),

    {.name = "RankingArgs.prediction_head_arch",
     .type = OPT_INTS,
     .flags = OPT_NULLABLE | OPT_UNWRAP,
     .offset = IN(ranking.head),
     .min = 1,
     .max = 65536,
     .value = "None",
     .default_words = "[512, num_tasks]",
     .help = "Widths of the head's layers; the last is num_tasks, or the classes of one task."},
    CHOICE("RankingArgs.prediction_head_act_type", IN(ranking.activation), "relu|gelu", "'relu'",
           "Activation between the head's layers."),
    FLAG("RankingArgs.prediction_head_bias", IN(ranking.has_bias), "True", "Biases in the head."),
    INT("RankingArgs.num_tasks", IN(ranking.n_tasks), 1, 64, "1",
        "Actions predicted at once: bit k of the action is task k."),
    CHOSEN(
        "RankingArgs.eval_metrics", OPT_TEXTS, 0, IN(ranking.metrics),
        METRIC_RANKING_CHOICES "NDCG|HR", "('AUC',)",
        "Metrics of an evaluation (NDCG and HR, which the reference lists, cannot be computed for "
        "ranking)."),

    INT("RetrievalArgs.num_negatives", IN(retrieval.n_negatives), -1, 1048576, "-1",
        "Negatives per position, from the batch; -1 or 0 is as many as positions."),
    POSITIVE("RetrievalArgs.temperature", IN(retrieval.temperature), "0.05",
             "Divides the scores (documented but fixed in the reference)."),
    POSITIVE(
        "RetrievalArgs.l2_norm_eps", IN(retrieval.norm_epsilon), "1e-6",
        "Smallest norm in the normalisation of items (documented but fixed in the reference)."),
    CHOSEN("RetrievalArgs.loss_module", OPT_CHOICE, OPT_OURS, IN(retrieval.loss), LOSS_MODULES,
           "'SampledSoftmaxLoss'", "The loss; FullSoftmaxLoss needs no negatives."),
    CHOSEN("RetrievalArgs.sampling_strategy", OPT_CHOICE, OPT_OURS, IN(retrieval.negatives),
           "in-batch|local", "'in-batch'",
           "Negatives from the items of the batch, or from the whole catalogue."),
    LOSSES("RetrievalArgs"),
    TYPED("RetrievalArgs.eval_metrics", OPT_TEXTS, 0, IN(retrieval.metrics), "('HR@10', 'NDCG@10')",
          "Metrics of an evaluation: any of " METRIC_RETRIEVAL_WORDS "with cut-offs k."),

    TYPED("EmbeddingArgs.feature_names", OPT_TEXTS, OPT_REQUIRED, OF_TABLE(feature_names), NULL,
          "Features looked up in this table."),
    TEXT("EmbeddingArgs.table_name", OPT_REQUIRED, OF_TABLE(table_name), NULL,
         "Name of the table."),
    INT_REQUIRED("EmbeddingArgs.item_vocab_size_or_capacity", OF_TABLE(capacity), 1, MANY,
                 "Rows of the table."),
    CHOSEN("EmbeddingArgs.sharding_type", OPT_CHOICE, OPT_REQUIRED, OF_TABLE(sharding),
           "data_parallel|model_parallel", NULL,
           "Every rank holds the whole table, or the rows are spread over the ranks."),
    RETIRED("EmbeddingArgs.allowed_compute_kernels", NULL, "Older hint to TorchRec."),

    TYPED("DynamicEmbeddingArgs.feature_names", OPT_TEXTS, OPT_REQUIRED, OF_TABLE(feature_names),
          NULL,
          "Features looked up in this table; several share its room, with keys of their own."),
    TEXT("DynamicEmbeddingArgs.table_name", OPT_REQUIRED, OF_TABLE(table_name), NULL,
         "Name of the table."),
    INT_REQUIRED(
        "DynamicEmbeddingArgs.item_vocab_size_or_capacity", OF_TABLE(capacity), 1, MANY,
        "Most keys the table holds before it evicts, in buckets of 64; five slots for two ids of "
        "the data are made at most."),
    CHOICE("DynamicEmbeddingArgs.sharding_type", OF_TABLE(sharding), "data_parallel|model_parallel",
           "'model_parallel'", "Always 'model_parallel', whatever is bound."),
    INT_OR_NONE(
        "DynamicEmbeddingArgs.global_hbm_for_values", OF_TABLE(hbm_bytes), 0, MANY, NULL,
        "Bytes of device memory for values and optimizer state, over all ranks; first choice."),
    FLOAT("DynamicEmbeddingArgs.item_vocab_gpu_capacity", OF_TABLE(gpu_capacity), OPT_NULLABLE, 0,
          MANY, "None", "Rows in device memory; second choice."),
    FLOAT("DynamicEmbeddingArgs.item_vocab_gpu_capacity_ratio", OF_TABLE(gpu_capacity_ratio),
          OPT_NULLABLE, 0, 1, "None",
          "Share of the rows in device memory; third choice.  0 is none; with none of the three "
          "bound "
          "it is all."),
    CHOICE(
        "DynamicEmbeddingArgs.evict_strategy", OF_TABLE(evict),
        "lru|lfu|step|no_eviction|timestamp|KLru|KLfu", "'lru'",
        "Which key leaves a full bucket: the least recently used by batches (lru, or "
        "dynamicemb's timestamp and KLru), the least frequently used (lfu, KLfu), the one of the "
        "smallest step of training (step), or none: new keys are rejected (no_eviction).  "
        "dynamicemb's epoch and customized scores are not here."),
    FLAG("DynamicEmbeddingArgs.caching", OF_TABLE(has_caching), "False",
         "Device memory is a cache of rows in host memory; here used rows always move there."),
    CHOICE("DynamicEmbeddingArgs.dist_type", OF_TABLE(key_placement),
           "continuous|roundrobin|hash_roundrobin", "'roundrobin'",
           "How keys are spread over ranks; of no effect on one."),
    TEXT("DynamicEmbeddingArgs.store_folder", OPT_NULLABLE, OF_TABLE(store_folder), "None",
         "A folder on disk for rows that do not fit in memory, so that none is lost: a run makes "
         "one of its own in it, and removes it.  None evicts them.  Not in the reference."),
    RETIRED("DynamicEmbeddingArgs.store_engine", "log|rocksdb",
            "Older; rows are in a file, with about 40 bytes of memory a row."),
    INT("DynamicEmbeddingArgs.admission_threshold", OF_TABLE(admission_threshold), 0, 65535, "0",
        "Uses before a key gets a row, as dynamicemb's FrequencyAdmissionStrategy(threshold) with "
        "a "
        "counter; until then it reads as zeros.  0 and 1 admit every key at its first use."),
    FLOAT("DynamicEmbeddingArgs.admission_probability", OF_TABLE(admission_probability),
          OPT_ABOVE_MIN, 0, 1, "1.0",
          "Probability that a key without a row gets one at a use, once admission_threshold is "
          "reached."),
    INT("DynamicEmbeddingArgs.steps_to_live", OF_TABLE(steps_to_live), 0, 2147483647, "0",
        "Training steps after which a row that got no gradient is erased, at most 1/16 later; 0 "
        "keeps it.  Not in the reference."),
    RETIRED("DynamicEmbeddingArgs.bucket_capacity", NULL, "Older size of a hash bucket."),

    TYPED("FeatureArgs.feature_names", OPT_TEXTS, OPT_REQUIRED, OF_FEATURE(feature_names), NULL,
          "Features that share their lengths."),
    INT_REQUIRED("FeatureArgs.max_sequence_length", OF_FEATURE(max_sequence_length), 1, LONG,
                 "Longest sequence of these features."),
    FLAG("FeatureArgs.is_jagged", OF_FEATURE(is_jagged), "False",
         "Lengths vary; else every sequence has max_sequence_length."),
    TYPED("FeatureArgs.seqlen_dist", OPT_DISTRIBUTION, OPT_NULLABLE, OF_FEATURE(seqlen_dist),
          "None", "Lengths, where is_jagged; None is uniform in [0, max_sequence_length)."),
    TYPED("FeatureArgs.value_dists", OPT_DISTRIBUTIONS, OPT_NULLABLE, OF_FEATURE(value_dists),
          "None", "Values by feature; a feature left out is uniform over its table."),

    CHOSEN("RandomDistribution.dist_type", OPT_CHOICE, OPT_REQUIRED, OF_DISTRIBUTION(kind),
           "uniform|normal|zipf|lognormal", NULL, "Kind of distribution; all give whole numbers."),
    INT("RandomDistribution.low", OF_DISTRIBUTION(low), 0, MANY, "0", "Smallest value."),
    INT_OR_NONE("RandomDistribution.high", OF_DISTRIBUTION(high), 0, MANY, NULL,
                "Largest value (of uniform: one more than the largest, and required)."),
    FLOAT("RandomDistribution.mean", OF_DISTRIBUTION(mean), OPT_NULLABLE, 0, 1e18, "None",
          "Mean of normal and lognormal."),
    FLOAT("RandomDistribution.std", OF_DISTRIBUTION(std), OPT_NULLABLE, 0, 1e18, "None",
          "Standard deviation of normal and lognormal; for lognormal None is mean / 2."),
    FLOAT("RandomDistribution.alpha", OF_DISTRIBUTION(alpha), OPT_NULLABLE | OPT_ABOVE_MIN, 1, 100,
          "None", "Exponent of zipf; None is 1.5."),

    /* Meta generative-recommenders, research */
    TEXT("train_fn.dataset_name", 0, IN(data.dataset_name), "'ml-20m'", "Name of the data set."),
    INT("train_fn.max_sequence_length", IN(data.max_history), 1, LONG, "200",
        "Events of a user's history that are kept, the most recent ones."),
    FLOAT("train_fn.positional_sampling_ratio", IN(data.positional_sampling_ratio), OPT_ABOVE_MIN,
          0, 1, "1.0", "Share of the positions that are trained on."),
    INT("train_fn.local_batch_size", IN(trainer.train_batch_size), 1, 1048576, "128",
        "Users in a training batch, per rank: see batch_ranks."),
    INT("train_fn.eval_batch_size", IN(trainer.eval_batch_size), 1, 1048576, "128",
        "Users in an evaluation batch."),
    INT_OR_NONE("train_fn.eval_user_max_batch_size", IN(trainer.eval_user_max_batch_size), 1,
                1048576, NULL, "Users scored at once in an evaluation; None is the whole batch."),
    CHOICE("train_fn.main_module", IN(model), "SASRec|HSTU|FuXi|eSASRec", "'SASRec'", "The model."),
    FLAG("train_fn.main_module_bf16", IN(network.is_bf16), "False", "Train the model in bfloat16."),
    RATE("train_fn.dropout_rate", IN(network.input_dropout), "0.2",
         "Dropout on the embedded sequence."),
    CHOICE("train_fn.user_embedding_norm", IN(network.user_norm), "l2_norm|layer_norm", "'l2_norm'",
           "Normalisation of the model's output."),
    CHOICE("train_fn.sampling_strategy", IN(retrieval.negatives), "in-batch|local", "'in-batch'",
           "Negatives from the items of the batch, or from the whole catalogue."),
    CHOICE("train_fn.loss_module", IN(retrieval.loss), LOSS_MODULES, "'SampledSoftmaxLoss'",
           "The loss (FullSoftmaxLoss, which needs no negatives, and GBCELoss are ours)."),
    LOSSES("train_fn"),
    TYPED("train_fn.loss_weights", OPT_WEIGHTS, OPT_NULLABLE, IN(retrieval.loss_weights), "{}",
          "Weights of auxiliary losses by name."),
    INT("train_fn.num_negatives", IN(retrieval.n_negatives), 1, 1048576, "1",
        "Negatives per position."),
    TYPED("train_fn.loss_activation_checkpoint", OPT_BOOL, OPT_NO_EFFECT,
          IN(retrieval.has_loss_checkpoint), "False",
          "Save memory: compute the loss again in the backward pass; here the loss stores "
          "no activations."),
    FLAG("train_fn.item_l2_norm", IN(retrieval.has_item_norm), "False",
         "Scores use items divided by their norm."),
    ITEM_FEATURES("train_fn"),
    REGULARIZERS("train_fn"),
    POSITIVE("train_fn.temperature", IN(retrieval.temperature), "0.05", "Divides the scores."),
    INT("train_fn.num_epochs", IN(trainer.n_epochs), 1, 1048576, "101", "Passes over the users."),
    POSITIVE("train_fn.learning_rate", IN(optimizer.learning_rate), "1e-3", "Step size of AdamW."),
    INT("train_fn.num_warmup_steps", IN(optimizer.n_warmup_steps), 0, MANY, "0",
        "Steps over which the step size grows to its full value."),
    FLOAT("train_fn.weight_decay", IN(optimizer.weight_decay), 0, 0, 1e30, "1e-3",
          "Decoupled weight decay."),
    WEIGHT_RULES("train_fn"),
    TYPED(
        "train_fn.sparse_adam", OPT_BOOL, OPT_OURS, IN(optimizer.is_sparse), "False",
        "Update only the embedding rows that a batch uses, as torch.optim.SparseAdam does, without "
        "weight decay. False: every row moves in every step, as in the reference."),
    CHOSEN("train_fn.lr_schedule", OPT_CHOICE, OPT_OURS, IN(optimizer.schedule), "constant|cosine",
           "'constant'",
           "Step size after the warm-up: constant, or a half cosine down to 0 at the last step."),
    TYPED("train_fn.user_features", OPT_BOOL, OPT_OURS, IN(network.has_user_features), "False",
          "Put a token for each contextual feature of the data before the history."),
    TYPED("train_fn.first_item_loss", OPT_BOOL, OPT_OURS, IN(network.has_first_loss), "False",
          "The last contextual token predicts the first item of the history, so that users of whom "
          "only features are known get a list of the model's."),
    TYPED("train_fn.target_actions", OPT_TEXT, OPT_OURS, IN(network.target_actions), "''",
          "Learn to predict events of these actions only, by name or code ('purchase,cart'); the "
          "history keeps all. Empty: all events."),
    TYPED("train_fn.action_input", OPT_BOOL, OPT_OURS, IN(network.has_action_input), "False",
          "Add the row of an event's action to the event's token."),
    INT_OURS(
        "train_fn.sequence_parallel_size", IN(trainer.sequence_parallel), 1, 1024, "1",
        "Ranks that share the tokens of a batch, and in the attention the heads: for very long "
        "histories. The groups of so many ranks divide the batch."),
    INT_OURS("train_fn.batch_ranks", IN(trainer.batch_ranks), 1, 65536, "1",
             "Ranks, or groups of ranks that share layers or tokens, whose batches make up a step. "
             "'hstu train' sets it: to their number, or with --batch-per step to 1."),
    FLOAT("train_fn.clip_grad", IN(trainer.clip_grad), OPT_OURS, 0, 1e30, "0",
          "Largest norm of the gradient; 0 is off."),
    INT_OURS("train_fn.gradient_accumulation_steps", IN(trainer.accumulation_steps), 1, 65536, "1",
             "Batches whose gradients are added before a step of the optimizer."),
    CHOICE("train_fn.top_k_method", IN(retrieval.top_k_method),
           "MIPSBruteForceTopK|MoLBruteForceTopK", "'MIPSBruteForceTopK'",
           "Search of an evaluation."),
    INT("train_fn.eval_interval", IN(trainer.eval_interval), 1, MANY, "100",
        "Steps between evaluations of one batch."),
    INT("train_fn.full_eval_every_n", IN(trainer.full_eval_every), 1, 1048576, "1",
        "Epochs between evaluations of all users."),
    NUMBER("train_fn.save_ckpt_every_n", OPT_INT, OPT_NO_EFFECT, IN(trainer.checkpoint_epochs), 1,
           1048576, "1000",
           "Epochs between checkpoints of the reference; here --save-every says it (default 1)."),
    TYPED("train_fn.eval_bf16", OPT_BOOL, OPT_NO_EFFECT, IN(retrieval.mol.evaluates_bf16), "False",
          "Evaluate in bfloat16; here an evaluation has the type of the model."),
    INT("train_fn.partial_eval_num_iters", IN(trainer.partial_eval_iters), 1, MANY, "32",
        "Batches evaluated in the epochs between."),
    CHOICE("train_fn.embedding_module_type", IN(retrieval.embedding_module), "local", "'local'",
           "Item table."),
    INT("train_fn.item_embedding_dim", IN(network.hidden_size), 1, 65536, "240",
        "Width of a token, E."),
    CHOICE("train_fn.interaction_module_type", IN(retrieval.similarity), "DotProduct|MoL",
           "'DotProduct'",
           "Score of a user and an item (the reference's default is empty and fails)."),
    INT("train_fn.gr_output_length", IN(network.output_length), 0, LONG, "10",
        "Slots after the history; N = max_sequence_length + gr_output_length + 1."),
    POSITIVE("train_fn.l2_norm_eps", IN(retrieval.norm_epsilon), "1e-6",
             "Smallest norm in the normalisation of items."),
    FLAG("train_fn.enable_tf32", IN(network.has_tf32), "False",
         "Matrix products on a GPU in TF32; False is true float32."),
    INT("train_fn.random_seed", IN(trainer.seed), 0, 4294967295.0, "42",
        "Seed of everything random."),
    RETIRED("train_fn.item_feature_embedding_dim", NULL, "Older; was 0 in every file."),

    INT("hstu_encoder.num_blocks", IN(network.n_layers), 1, 1024, "2", "Layers."),
    INT("hstu_encoder.num_heads", IN(network.n_heads), 1, 1024, "1", "Heads, H."),
    INT("hstu_encoder.dqk", IN(network.dim_qk), 1, 4096, "64", "Width of q and k per head."),
    INT("hstu_encoder.dv", IN(network.dim_v), 1, 4096, "64", "Width of v and u per head."),
    RATE("hstu_encoder.linear_dropout_rate", IN(network.dropout), "0.0",
         "Dropout before the output projection of a layer."),
    FLOAT("hstu_encoder.attn_dropout_rate", IN(network.attention_dropout),
          OPT_BELOW_MAX | OPT_NO_EFFECT, 0, 1, "0.0",
          "Stored by the reference but never applied; nor is it here."),
    CHOICE("hstu_encoder.normalization", IN(network.score),
           "rel_bias|hstu_rel_bias|softmax_rel_bias", "'rel_bias'",
           "SiLU of score and bias over N, or their softmax."),
    CHOICE("hstu_encoder.linear_config", IN(network.linear_config), "uvqk", "'uvqk'",
           "What the first projection computes."),
    CHOICE("hstu_encoder.linear_activation", IN(network.linear_activation), "silu|none", "'silu'",
           "Activation of the first projection."),
    FLAG("hstu_encoder.concat_ua", IN(network.concatenates_u), "False",
         "The output projection takes [u, LN(o), u * LN(o)]."),
    FLAG("hstu_encoder.enable_relative_attention_bias", IN(network.has_relative_bias), "True",
         "Add the learned bias of position and time to the scores."),

    INT("sasrec_encoder.ffn_hidden_dim", IN(network.ffn_hidden_size), 1, 65536, "64",
        "Width inside the feed-forward part."),
    CHOICE("sasrec_encoder.ffn_activation_fn", IN(network.ffn_activation), "relu|gelu", "'relu'",
           "Activation of the feed-forward part."),
    RATE("sasrec_encoder.ffn_dropout_rate", IN(network.dropout), "0.2",
         "Dropout in the feed-forward part and on the attention weights."),
    INT("sasrec_encoder.num_blocks", IN(network.n_layers), 1, 1024, "2", "Layers."),
    INT("sasrec_encoder.num_heads", IN(network.n_heads), 1, 1024, "1", "Heads, H."),

    INT("fuxi_encoder.num_blocks", IN(network.n_layers), 1, 1024, "2", "Layers."),
    INT("fuxi_encoder.num_heads", IN(network.n_heads), 1, 1024, "1", "Heads, H."),
    INT("fuxi_encoder.dqk", IN(network.dim_qk), 1, 4096, "64", "Width of q and k per head."),
    INT("fuxi_encoder.dv", IN(network.dim_v), 1, 4096, "64",
        "Width of v per head; u has three times as many columns."),
    RATE("fuxi_encoder.linear_dropout_rate", IN(network.dropout), "0.0",
         "Dropout before the output projection and the feed-forward stage of a layer."),
    FLOAT("fuxi_encoder.attn_dropout_rate", IN(network.attention_dropout),
          OPT_BELOW_MAX | OPT_NO_EFFECT, 0, 1, "0.0",
          "Stored by the reference but never applied; nor is it here."),
    INT("fuxi_encoder.ffn_multiply", IN(network.ffn_multiply), 1, 64, "1",
        "Width inside the feed-forward stage, as a multiple of the model's."),
    FLAG("fuxi_encoder.ffn_single_stage", IN(network.has_single_stage), "False",
         "Leave the feed-forward stage out."),
    CHOICE("fuxi_encoder.normalization", IN(network.score), "rel_bias", "'rel_bias'",
           "SiLU of the scores over N; biases have channels of their own."),
    CHOICE("fuxi_encoder.linear_config", IN(network.linear_config), "uvqk", "'uvqk'",
           "What the first projection computes."),
    CHOICE("fuxi_encoder.linear_activation", IN(network.linear_activation), "silu|none", "'silu'",
           "Activation of the first projection."),
    FLAG("fuxi_encoder.enable_relative_attention_bias", IN(network.has_relative_bias), "True",
         "The channels by position and time, which FuXi cannot do without."),

    INT_OURS("esasrec_encoder.num_blocks", IN(network.n_layers), 1, 1024, "2", "Layers."),
    INT_OURS("esasrec_encoder.num_heads", IN(network.n_heads), 1, 1024, "1", "Heads, H."),
    INT_OURS("esasrec_encoder.ffn_multiply", IN(network.ffn_multiply), 1, 64, "4",
             "Width inside the feed-forward stage, as a multiple of the model's."),
    FLOAT("esasrec_encoder.dropout_rate", IN(network.dropout), OPT_OURS | OPT_BELOW_MAX, 0, 1,
          "0.1", "Dropout in the feed-forward stage, on the attention weights and on branches."),
#define MOL(name) "create_mol_interaction_module." name
    INT(MOL("query_dot_product_groups"), IN(retrieval.mol.n_query), 1, 1024, "8",
        "Component vectors of a query, those of its user included (the reference has no default)."),
    INT(MOL("item_dot_product_groups"), IN(retrieval.mol.n_item), 1, 1024, "4",
        "Component vectors of an item (the reference has no default)."),
    INT(MOL("dot_product_dimension"), IN(retrieval.mol.dim), 1, 4096, "64",
        "Width of a component vector (the reference has no default)."),
    FLAG(MOL("dot_product_l2_norm"), IN(retrieval.mol.has_norm), "True",
         "Component vectors have length 1."),
    POSITIVE(MOL("temperature"), IN(retrieval.mol.temperature), "0.05",
             "Divides the products of components (the reference has no default)."),
    POSITIVE(MOL("eps"), IN(retrieval.mol.epsilon), "1e-6", "Smallest norm of a component."),
    INT(MOL("query_hidden_dim"), IN(retrieval.mol.query_hidden), -1, 65536, "512",
        "Width of the query's gated layer; -1: its components are linear in it."),
    RATE(MOL("query_dropout_rate"), IN(retrieval.mol.query_dropout), "0.0",
         "Dropout of the query before its projection."),
    CHOICE(MOL("query_nonlinearity"), IN(retrieval.mol.query_glu), "geglu|swiglu", "'geglu'",
           "The query's gated layer."),
    FLAG(MOL("query_use_identity_fn"), IN(retrieval.mol.is_query_identity), "False",
         "The query itself is the first component."),
    INT(MOL("item_hidden_dim"), IN(retrieval.mol.item_hidden), -1, 65536, "-1",
        "Width of the item's gated layer; -1: its components are linear in it."),
    RATE(MOL("item_dropout_rate"), IN(retrieval.mol.item_dropout), "0.1",
         "Dropout of an item before its projection: one mask of an item in a step."),
    CHOICE(MOL("item_nonlinearity"), IN(retrieval.mol.item_glu), "geglu|swiglu", "'geglu'",
           "The item's gated layer."),
    FLAG(MOL("item_use_identity_fn"), IN(retrieval.mol.is_item_identity), "False",
         "The item itself is the first component."),
    {.name = MOL("uid_embedding_hash_sizes"),
     .type = OPT_INTS,
     .flags = OPT_NULLABLE,
     .offset = IN(retrieval.mol.user_hash),
     .min = 1,
     .max = 1 << 30,
     .value = "None",
     .help = "Rows of tables of users, each of which gives a query one component; None: no table."},
    RATE(MOL("uid_dropout_rate"), IN(retrieval.mol.user_dropout), "0.5",
         "Dropout of the components of users."),
    FLAG(MOL("uid_embedding_level_dropout"), IN(retrieval.mol.drops_users), "False",
         "Drop the whole component of a user."),
    FLOAT(MOL("uid_embedding_l2_weight_decay"), IN(retrieval.mol.user_decay), OPT_NO_EFFECT, 0,
          1e30, "0.0", "Older form of train_fn.loss_weights' 'uid_embedding_l2_norm'."),
    INT(MOL("gating_query_hidden_dim"), IN(retrieval.mol.query_gate), 1, 65536, "128",
        "Width of the gate's layer on the query."),
    FLAG(MOL("gating_query_fn"), IN(retrieval.mol.has_query_gate), "True",
         "The gate depends on the query."),
    INT(MOL("gating_item_hidden_dim"), IN(retrieval.mol.item_gate), 1, 65536, "128",
        "Width of the gate's layer on the item."),
    FLAG(MOL("gating_item_fn"), IN(retrieval.mol.has_item_gate), "True",
         "The gate depends on the item."),
    RATE(MOL("gating_item_dropout_rate"), IN(retrieval.mol.item_gate_dropout), "0.0",
         "Dropout of an item before its gate."),
    INT(MOL("gating_qi_hidden_dim"), IN(retrieval.mol.pair_gate), -1, 65536, "128",
        "Width of the gate's layer on the logits of a pair."),
    RATE(MOL("gating_qi_dropout_rate"), IN(retrieval.mol.pair_gate_dropout), "0.0",
         "Dropout of a pair's logits before their gate."),
    CHOICE(MOL("gating_combination_type"), IN(retrieval.mol.combination), "glu_silu|glu_silu_ln",
           "'glu_silu'", "How the three gates are combined."),
    RATE(MOL("softmax_dropout_rate"), IN(retrieval.mol.gate_dropout), "0.2",
         "Dropout of the mixture's weights."),
#undef MOL
    TYPED("get_similarity_function.bf16_training", OPT_BOOL, OPT_NO_EFFECT,
          IN(retrieval.mol.is_bf16), "False",
          "The similarity alone in bfloat16; here it has the type of the model."),

    INT("create_data_loader.prefetch_factor", IN(data.prefetch_factor), 1, 65536, "128",
        "Batches prepared ahead."),
    INT_OR_NONE("create_data_loader.num_workers", IN(data.n_workers), 0, 1024,
                "the cores of the machine", "Threads that prepare batches."),
    FLAG("create_data_loader.drop_last", IN(data.drops_last), "False",
         "Leave out the last, smaller batch of an epoch."),
};
const size_t n_options = sizeof option_table / sizeof option_table[0];

const option_class option_classes[] = {
    {"TrainerArgs", FAMILY_NVIDIA, false, "The training loop."},
    {"DataArgs", FAMILY_NVIDIA, false, "Loading of data, in older files."},
    {"TrainingArgs", FAMILY_NVIDIA, false, "The training loop, in older files."},
    {"DatasetArgs", FAMILY_NVIDIA, false, "Real data."},
    {"BenchmarkDatasetArgs", FAMILY_NVIDIA, false,
     "Generated data; used where DatasetArgs.dataset_name is not bound."},
    {"NetworkArgs", FAMILY_NVIDIA, false, "The model."},
    {"OptimizerArgs", FAMILY_NVIDIA, false, "The optimizer."},
    {"TensorModelParallelArgs", FAMILY_NVIDIA, false, "Sharing of layers."},
    {"DistributedDataParallelArgs", FAMILY_NVIDIA, false, "Only in the oldest files."},
    {"RankingArgs", FAMILY_NVIDIA, false, "The ranking task; binding it chooses the task."},
    {"RetrievalArgs", FAMILY_NVIDIA, false, "The retrieval task; binding it chooses the task."},
    {"EmbeddingArgs", FAMILY_NVIDIA, true, "A static table, one per scope."},
    {"DynamicEmbeddingArgs", FAMILY_NVIDIA, true, "A table that grows and evicts, one per scope."},
    {"FeatureArgs", FAMILY_NVIDIA, true, "Generated features, one group per scope."},
    {"RandomDistribution", FAMILY_NVIDIA, true, "Random numbers of generated features."},
    {"train_fn", FAMILY_META, false, "Everything but the encoder."},
    {"hstu_encoder", FAMILY_META, false, "The model where main_module is 'HSTU'."},
    {"sasrec_encoder", FAMILY_META, false, "The model where main_module is 'SASRec'."},
    {"fuxi_encoder", FAMILY_META, false, "The model where main_module is 'FuXi'."},
    {"esasrec_encoder", FAMILY_META, false, "The model where main_module is 'eSASRec'; ours."},
    {"create_mol_interaction_module", FAMILY_META, false,
     "The similarity where interaction_module_type is 'MoL'."},
    {"get_similarity_function", FAMILY_META, false, "Precision of the similarity."},
    {"create_data_loader", FAMILY_META, false, "Loading of data."},
};
const size_t n_option_classes = sizeof option_classes / sizeof option_classes[0];
