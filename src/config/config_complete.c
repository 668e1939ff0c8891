/* The end of loading: defaults that follow from other values, and checks across values. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "config/loader.h"
#include "config/metric_list.h"

/* Values that Meta's train.py hard-codes. */
static void fix_meta(config *c) {
    c->network.dtype = c->network.is_bf16 ? DTYPE_BFLOAT16 : DTYPE_FLOAT32;
    c->network.norm_epsilon = c->model == MODEL_SASREC ? 1e-8 : 1e-6;
    c->network.is_causal = true;
    c->network.item_dim = c->network.contextual_dim = c->network.scaling_length = -1;
    c->network.target_group_size = 1;
    c->optimizer.kind = OPTIMIZER_ADAM;
    c->optimizer.beta1 = 0.9;
    c->optimizer.beta2 = 0.98;
    c->optimizer.epsilon = 1e-8;
    c->data.is_shuffled = true;
    c->trainer.tensor_parallel = 1;
    c->trainer.wire = WIRE_FLOAT32;
    c->trainer.max_train_iters = c->trainer.max_eval_iters = CONFIG_NONE;
    c->trainer.log_interval = c->trainer.eval_interval;
    c->trainer.checkpoint_interval = -1;
    c->trainer.pipeline = PIPELINE_NATIVE;
}

/* Values that NVIDIA's retrieval_gr.py and its trainer hard-code. */
static void fix_nvidia(config *c) {
    c->network.dim_v = c->network.dim_qk;
    c->network.input_dropout = c->network.dropout;
    c->network.is_bf16 = c->network.dtype == DTYPE_BFLOAT16;
    c->data.positional_sampling_ratio = 1;
    c->trainer.n_epochs = 1;
    c->trainer.full_eval_every = 1;
    c->trainer.checkpoint_epochs = -1;
    c->trainer.eval_user_max_batch_size = CONFIG_NONE;
    c->retrieval.has_item_norm = true;
}

/* The head dimension from the model dimension, where it is not given or has no option. */
static status divide_heads(loader *l, const char *class_name, const char *width_name) {
    config_network *n = &l->c->network;
    char place[512];
    if (n->hidden_size % n->n_heads != 0)
        return fail(ERR_CONFIG, "%s: %s = %lld does not divide among %lld heads",
                    loader_place(l, class_name, width_name, place, sizeof place), width_name,
                    (long long)n->hidden_size, (long long)n->n_heads);
    n->dim_qk = n->dim_v = n->hidden_size / n->n_heads;
    return OK;
}

static status complete_ranking(loader *l) {
    config_ranking *r = &l->c->ranking;
    char place[512];
    if (r->head.item == NULL) {
        TRY(ARENA_NEW(&l->c->memory, &r->head.item, 2));
        r->head.item[0] = 512;
        r->head.item[1] = r->n_tasks;
        r->head.n = 2;
    }
    loader_place(l, "RankingArgs", "prediction_head_arch", place, sizeof place);
    if (r->head.n == 0)
        return fail(ERR_CONFIG, "%s: RankingArgs.prediction_head_arch is empty", place);
    int64_t last = r->head.item[r->head.n - 1];
    if (last != r->n_tasks && r->n_tasks != 1)
        return fail(ERR_CONFIG,
                    "%s: RankingArgs.prediction_head_arch ends with %lld, but there are "
                    "%lld tasks; it must end with the number of tasks, or with the classes of one",
                    place, (long long)last, (long long)r->n_tasks);
    return OK;
}

static status complete_retrieval(loader *l) {
    const config_texts *metrics = &l->c->retrieval.metrics;
    char place[512];
    metric m;
    for (size_t i = 0; i < metrics->n; i++)
        if (metric_parse(&m, metrics->item[i], TASK_RETRIEVAL) != OK)
            return fail_prefix(
                ERR_CONFIG, "%s: RetrievalArgs.eval_metrics",
                loader_place(l, "RetrievalArgs", "eval_metrics", place, sizeof place));
    return OK;
}

static bool has_text(const config_texts *texts, const char *text) {
    for (size_t i = 0; i < texts->n; i++)
        if (strcmp(texts->item[i], text) == 0) return true;
    return false;
}

/* A feature of generated data must be in a FeatureArgs and have a table. */
static status check_feature(loader *l, const char *field, const char *feature) {
    const config *c = l->c;
    char place[512];
    bool is_generated = false, has_table = false;
    for (size_t i = 0; i < c->benchmark.features.n; i++)
        is_generated |= has_text(&c->benchmark.features.item[i].feature_names, feature);
    for (size_t i = 0; i < c->embeddings.n; i++)
        has_table |= has_text(&c->embeddings.item[i].feature_names, feature);
    if (is_generated && has_table) return OK;
    return fail(ERR_CONFIG, "%s: BenchmarkDatasetArgs.%s: the feature '%.100s' is in no %s",
                loader_place(l, "BenchmarkDatasetArgs", field, place, sizeof place), field, feature,
                is_generated ? "table of embedding_args" : "FeatureArgs of feature_args");
}

static status complete_benchmark(loader *l) {
    const config_benchmark *b = &l->c->benchmark;
    int64_t longest = 0;
    TRY(check_feature(l, "item_feature_name", b->item_feature));
    if (b->action_feature != NULL) TRY(check_feature(l, "action_feature_name", b->action_feature));
    for (size_t i = 0; i < b->contextual_features.n; i++)
        TRY(check_feature(l, "contextual_feature_names", b->contextual_features.item[i]));
    for (size_t i = 0; i < b->features.n; i++)
        if (has_text(&b->features.item[i].feature_names, b->item_feature))
            longest = b->features.item[i].max_sequence_length;
    l->c->data.max_history = longest;
    return OK;
}

/* A table that is bound, but in no list, is not made: most likely the list was forgotten. */
static void warn_of_unused_tables(const loader *l) {
    char place[512];
    for (size_t i = 0; i < l->gin.n_bindings; i++) {
        const gin_binding *b = l->gin.bindings[i];
        if (strcmp(b->class_name, "DynamicEmbeddingArgs") != 0 &&
            strcmp(b->class_name, "EmbeddingArgs") != 0)
            continue;
        log_warn("%s: %.100s/%s has no effect, for no list names it; bind "
                 "BenchmarkDatasetArgs.embedding_args = [@%.100s/%s()]",
                 gin_place(place, sizeof place, b->file, b->line), b->scope, b->class_name,
                 b->scope, b->class_name);
        return;
    }
}

/* Real data: the tables given, or those that belong to the data set. */
static status complete_dataset(loader *l) {
    const option *o = option_find("BenchmarkDatasetArgs", "embedding_args"), *spelling;
    const gin_binding *b;
    TRY(loader_find(l, o, &b, &spelling));
    if (b != NULL) return loader_store(l, o, spelling, b->value, &l->c->embeddings);
    warn_of_unused_tables(l);
    TRY(loader_add_predefined_tables(l));
    if (l->c->embeddings.n == 0)
        log_info("note: %s: no tables are predefined for the data set '%s'; they follow the data",
                 l->c->file, l->c->data.dataset_name);
    return OK;
}

/* Two tables of one name would share one name in a checkpoint. */
static status check_table_names(loader *l) {
    const config_embeddings *t = &l->c->embeddings;
    for (size_t i = 0; i < t->n; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(t->item[i].table_name, t->item[j].table_name) == 0)
                return fail(ERR_CONFIG,
                            "%s: two tables have the table_name '%.100s' (%.100s and "
                            "%.100s)",
                            l->c->file, t->item[i].table_name, t->item[j].scope, t->item[i].scope);
    return OK;
}

static status complete_nvidia(loader *l) {
    config *c = l->c;
    char place[512];
    if (c->network.backend != BACKEND_CUTLASS)
        return fail(ERR_CONFIG,
                    "%s: NetworkArgs.kernel_backend = '%s' is not here: hstu.c has its "
                    "own kernels and calls them 'cutlass'; bind that, or leave it out",
                    loader_place(l, "NetworkArgs", "kernel_backend", place, sizeof place),
                    c->network.backend == BACKEND_TRITON ? "triton" : "pytorch");
    if (c->network.scaling_length == 0)
        return fail(ERR_CONFIG,
                    "%s: NetworkArgs.scaling_seqlen = 0 would divide by zero; -1 is the longest "
                    "possible sequence",
                    loader_place(l, "NetworkArgs", "scaling_seqlen", place, sizeof place));
    if (c->network.dim_qk == CONFIG_NONE) TRY(divide_heads(l, "NetworkArgs", "hidden_size"));
    if (c->trainer.eval_batch_size == CONFIG_NONE)
        c->trainer.eval_batch_size = c->trainer.train_batch_size;
    fix_nvidia(c);
    TRY(c->task == TASK_RANKING ? complete_ranking(l) : complete_retrieval(l));
    TRY(c->is_benchmark ? complete_benchmark(l) : complete_dataset(l));
    return check_table_names(l);
}

status loader_complete(loader *l) {
    if (l->c->family == FAMILY_NVIDIA) return complete_nvidia(l);
    fix_meta(l->c);
    return l->c->model == MODEL_SASREC ? divide_heads(l, "train_fn", "item_embedding_dim") : OK;
}
