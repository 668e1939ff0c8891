/* Loading: gin bindings, checked against the option table, into one config; the instances that
 * references stand for; then defaults that follow from other values, and checks across values. */
#include "config/config.h"
#include "config/metric_list.h"
#include "config/options.h"

typedef struct loader {
    config *c;
    gin_config gin;
    option_builder builder; /* makes the instances that references stand for */
    int n_instances;        /* made so far */
} loader;

/* Room for the member of any option, used when a value is only compared or checked. */
typedef union scratch {
    int64_t integer;
    config_dtype dtype;
    config_weights weights;
    config_distributions distributions;
    config_features features;
    config_embeddings embeddings;
} scratch;

bool config_class_is_active(const config *c, const option_class *class_) {
    const char *name = class_->name;
    if (class_->is_instance || class_->family != c->family) return false;
    if (strcmp(name, "DatasetArgs") == 0) return !c->is_benchmark;
    if (strcmp(name, "BenchmarkDatasetArgs") == 0) return c->is_benchmark;
    if (strcmp(name, "RankingArgs") == 0) return c->task == TASK_RANKING;
    if (strcmp(name, "RetrievalArgs") == 0) return c->task == TASK_RETRIEVAL;
    if (strcmp(name, "hstu_encoder") == 0) return c->model == MODEL_HSTU_RESEARCH;
    if (strcmp(name, "sasrec_encoder") == 0) return c->model == MODEL_SASREC;
    if (strcmp(name, "fuxi_encoder") == 0) return c->model == MODEL_FUXI;
    if (strcmp(name, "esasrec_encoder") == 0) return c->model == MODEL_ESASREC;
    if (strcmp(name, "create_mol_interaction_module") == 0 ||
        strcmp(name, "get_similarity_function") == 0)
        return c->retrieval.similarity == SIMILARITY_MOL;
    return true;
}

static const gin_binding *find_bound(const loader *l, const option *o) {
    return gin_find(&l->gin, "", option_class_of(o)->name, option_field(o));
}

static const option *alias_target(const option *o) {
    for (size_t i = 0; i < n_options; i++)
        if (strcmp(option_table[i].name, o->choices) == 0) return &option_table[i];
    return NULL;
}

/* Checks a bound value by the rules of `target` and stores it; errors name the spelling that the
 * file used. */
static status store_bound(loader *l, const option *target, const option *spelling,
                          const gin_value *v, void *member) {
    option named = *target;
    named.name = spelling->name;
    if (!(spelling->flags & OPT_BF16)) return option_store(&named, v, &l->builder, member);
    bool is_bf16 = false;
    named = (option){.name = spelling->name, .type = OPT_BOOL};
    TRY(option_store(&named, v, &l->builder, &is_bf16));
    *(config_dtype *)member = is_bf16 ? DTYPE_BFLOAT16 : DTYPE_FLOAT32;
    return OK;
}

/* Two spellings of one option from the same origin (files, or the command line) must have the same
 * value. */
static status check_agreement(loader *l, const option *o, const gin_binding *a,
                              const option *spelling, const gin_binding *b) {
    scratch x = {0}, y = {0};
    char place_a[512], place_b[512];
    TRY(store_bound(l, o, o, a->value, &x));
    TRY(store_bound(l, o, spelling, b->value, &y));
    /* bf16 = False says only what the dtype is not. */
    bool is_other_half =
        spelling->flags & OPT_BF16 && !b->value->boolean && x.dtype != DTYPE_BFLOAT16;
    if (memcmp(&x, &y, sizeof x) == 0 || is_other_half) return OK;
    return fail(ERR_CONFIG, "%s: %s contradicts %s at %s; they are two spellings of one option",
                gin_place(place_b, sizeof place_b, b->file, b->line), spelling->name, o->name,
                gin_place(place_a, sizeof place_a, a->file, a->line));
}

/* The binding in force for a root option, whatever its spelling; NULL: none.  Two spellings with
 * two values are ERR_CONFIG naming both places. */
static status find_in_force(loader *l, const option *o, const gin_binding **out,
                            const option **spelling) {
    const gin_binding *best = find_bound(l, o);
    *spelling = o;
    for (size_t i = 0; i < n_options; i++) {
        const option *alias = &option_table[i];
        if (alias->type != OPT_ALIAS || strcmp(alias->choices, o->name) != 0) continue;
        const gin_binding *b = find_bound(l, alias);
        if (b == NULL || (best != NULL && best->is_override && !b->is_override)) continue;
        if (best != NULL && b->is_override == best->is_override) {
            TRY(check_agreement(l, o, best, alias, b));
            continue;
        }
        best = b;
        *spelling = alias;
    }
    *out = best;
    return OK;
}

static status store_default(loader *l, const option *o, void *member) {
    gin_value *value;
    TRY(gin_read_value(&l->gin, o->name, o->value, &value));
    return option_store(o, value, &l->builder, member);
}

/* Where an option is bound, "file:line", or the file's name if it is not. */
static const char *place_of(loader *l, const char *class_name, const char *field, char *text,
                            size_t n) {
    const option *o = option_find(class_name, field), *spelling;
    const gin_binding *b = NULL;
    if (o != NULL && find_in_force(l, o, &b, &spelling) == OK && b != NULL)
        return gin_place(text, n, b->file, b->line);
    snprintf(text, n, "%s", l->c->file);
    return text;
}

enum { MAX_INSTANCES = 1024 }; /* tables, features and distributions of a config */

static status fail_instance(const gin_value *reference, const char *class_name, const char *what) {
    return gin_fail(reference->file, reference->line, "%.100s%s%s %s", reference->scope,
                    *reference->scope ? "/" : "", class_name, what);
}

/* The fields of one instance: bound in its scope or without a scope, else the defaults. */
static status store_fields(loader *l, const option_class *class_, const gin_value *reference,
                           void *instance, buf *missing) {
    for (size_t i = 0; i < n_options; i++) {
        const option *o = &option_table[i];
        void *member = (char *)instance + o->offset;
        if (option_class_of(o) != class_ || o->type == OPT_RETIRED) continue;
        const gin_binding *b = gin_find(&l->gin, reference->scope, class_->name, option_field(o));
        if (b != NULL)
            TRY(option_store(o, b->value, &l->builder, member));
        else if (o->flags & OPT_REQUIRED)
            TRY(buf_printf(missing, "%s%s", missing->n_bytes > 0 ? ", " : "", option_field(o)));
        else
            TRY(store_default(l, o, member));
    }
    return OK;
}

static status store_instance(loader *l, const option_class *class_, const gin_value *reference,
                             void *instance) {
    buf missing = {0};
    char what[512];
    status st = store_fields(l, class_, reference, instance, &missing);
    if (st == OK && missing.n_bytes > 0) {
        snprintf(what, sizeof what, "is used but not bound: %s", buf_str(&missing));
        st = fail_instance(reference, class_->name, what);
    }
    buf_fini(&missing);
    return st;
}

static status check_distribution(const config_distribution *d, const gin_value *reference) {
    if (d->kind == DIST_UNIFORM && d->high == CONFIG_NONE)
        return fail_instance(reference, "RandomDistribution",
                             "is uniform and needs 'high', one more than its largest value");
    if (d->high != CONFIG_NONE && d->high < d->low + (d->kind == DIST_UNIFORM))
        return fail_instance(reference, "RandomDistribution", "has no value between low and high");
    return OK;
}

/* Lengths end at max_sequence_length where no other bound is given. */
static status complete_feature(config_feature *f, const gin_value *reference) {
    config_distribution *d = f->seqlen_dist;
    if (f->feature_names.n == 0)
        return fail_instance(reference, "FeatureArgs", "has no feature_names");
    if (d != NULL && d->high == CONFIG_NONE) d->high = f->max_sequence_length;
    if (d != NULL && d->high > f->max_sequence_length)
        return fail_instance(reference, "FeatureArgs",
                             "has a seqlen_dist.high above its max_sequence_length");
    if (d != NULL) TRY(check_distribution(d, reference));
    for (size_t i = 0; i < f->value_dists.n; i++)
        TRY(check_distribution(&f->value_dists.item[i], reference));
    return OK;
}

/* The option_builder.build of the loader: a table, feature or distribution of @scope/Class(). */
static status build_instance(void *ctx, const option_class *class_, const gin_value *reference,
                             void *instance) {
    loader *l = ctx;
    const char *scope = reference->scope;
    /* A few lines of references to lists of references can ask for a huge number of instances. */
    if (++l->n_instances > MAX_INSTANCES)
        return fail_instance(reference, class_->name, "is one instance too many");
    TRY(store_instance(l, class_, reference, instance));
    if (strcmp(class_->name, "RandomDistribution") == 0) {
        ((config_distribution *)instance)->scope = scope;
        return OK;
    }
    if (strcmp(class_->name, "FeatureArgs") == 0) {
        ((config_feature *)instance)->scope = scope;
        return complete_feature(instance, reference);
    }
    config_embedding *table = instance;
    table->scope = scope;
    table->is_dynamic = strcmp(class_->name, "DynamicEmbeddingArgs") == 0;
    if (table->is_dynamic) table->sharding = SHARDING_MODEL_PARALLEL;
    if (table->evict == STRATEGY_TIMESTAMP || table->evict == STRATEGY_KLRU)
        table->evict = STRATEGY_LRU;
    if (table->evict == STRATEGY_KLFU) table->evict = STRATEGY_LFU;
    if (table->feature_names.n == 0)
        return fail_instance(reference, class_->name, "has no feature_names");
    return OK;
}

/* What the reference project builds for each data set it knows: tables of one feature each, the
 * large ones dynamic with half of their rows on the device. */
static const char *const predefined_sets[] = {"kuairand-pure", "kuairand-1k", "kuairand-27k",
                                              "ml-1m", "ml-20m"};
enum { N_SETS = sizeof predefined_sets / sizeof predefined_sets[0] };

typedef struct predefined {
    const char *feature, *table;
    bool is_dynamic;
    int64_t capacity[N_SETS]; /* 0: the data set has no such feature */
} predefined;

static const predefined predefined_tables[] = {
    {"user_active_degree", "user_active_degree", false, {10, 8, 10, 0, 0}},
    {"follow_user_num_range", "follow_user_num_range", false, {9, 9, 9, 0, 0}},
    {"fans_user_num_range", "fans_user_num_range", false, {10, 9, 10, 0, 0}},
    {"friend_user_num_range", "friend_user_num_range", false, {8, 8, 8, 0, 0}},
    {"register_days_range", "register_days_range", false, {8, 8, 8, 0, 0}},
    {"action_weights", "action_weights", false, {226, 233, 246, 0, 0}},
    {"video_id", "video_id", true, {10000000, 10000000, 32038725, 0, 0}},
    {"sex", "sex", false, {0, 0, 0, 3, 0}},
    {"age_group", "age_group", false, {0, 0, 0, 8, 0}},
    {"occupation", "occupation", false, {0, 0, 0, 22, 0}},
    {"zip_code", "zip_code", false, {0, 0, 0, 3440, 0}},
    {"rating", "action_weights", false, {0, 0, 0, 11, 11}},
    {"movie_id", "movie_id", true, {0, 0, 0, 10000000, 10000000}},
    {"user_id", "user_id", true, {10000000, 10000000, 10000000, 10000000, 10000000}},
};
enum { N_PREDEFINED = sizeof predefined_tables / sizeof predefined_tables[0] };

/* The defaults of the class, then the values of the row. */
static status fill_predefined(loader *l, const predefined *p, int set, config_embedding *table) {
    const char *class_name = p->is_dynamic ? "DynamicEmbeddingArgs" : "EmbeddingArgs";
    for (size_t i = 0; i < n_options; i++) {
        const option *o = &option_table[i];
        if (strcmp(option_class_of(o)->name, class_name) == 0 && o->value != NULL)
            TRY(store_default(l, o, (char *)table + o->offset));
    }
    table->scope = table->table_name = p->table;
    table->is_dynamic = p->is_dynamic;
    table->capacity = p->capacity[set];
    TRY(ARENA_NEW(&l->c->memory, &table->feature_names.item, 1));
    table->feature_names.item[0] = p->feature;
    table->feature_names.n = 1;
    table->sharding = p->is_dynamic ? SHARDING_MODEL_PARALLEL : SHARDING_DATA_PARALLEL;
    if (!p->is_dynamic) return OK;
    bool is_ml20m_user =
        strcmp(predefined_sets[set], "ml-20m") == 0 && strcmp(p->feature, "user_id") == 0;
    table->gpu_capacity_ratio = 0.5;
    /* The reference caches the user table of ml-20m whatever the pipeline. */
    table->has_caching = l->c->trainer.pipeline == PIPELINE_PREFETCH || is_ml20m_user;
    return OK;
}

static status add_predefined_tables(loader *l) {
    config *c = l->c;
    TRY(ARENA_NEW(&c->memory, &c->embeddings.item, N_PREDEFINED));
    int set = 0;
    while (set < N_SETS && strcmp(predefined_sets[set], c->data.dataset_name) != 0)
        set++;
    for (size_t i = 0; i < N_PREDEFINED && set < N_SETS; i++)
        if (predefined_tables[i].capacity[set] > 0)
            TRY(fill_predefined(l, &predefined_tables[i], set,
                                &c->embeddings.item[c->embeddings.n++]));
    return OK;
}

/* Values that Meta's train.py hard-codes. */
static void fix_meta(config *c) {
    c->network.dtype = c->network.is_bf16 ? DTYPE_BFLOAT16 : DTYPE_FLOAT32;
    c->network.norm_epsilon = c->model == MODEL_SASREC    ? 1e-8
                              : c->model == MODEL_ESASREC ? 1e-5
                                                          : 1e-6;
    if (c->model == MODEL_FUXI || c->model == MODEL_ESASREC)
        c->network.ffn_hidden_size = c->network.ffn_multiply * c->network.hidden_size;
    if (c->model == MODEL_FUXI && c->network.has_single_stage) c->network.ffn_hidden_size = 0;
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
                    place_of(l, class_name, width_name, place, sizeof place), width_name,
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
    place_of(l, "RankingArgs", "prediction_head_arch", place, sizeof place);
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
            return fail_prefix(ERR_CONFIG, "%s: RetrievalArgs.eval_metrics",
                               place_of(l, "RetrievalArgs", "eval_metrics", place, sizeof place));
    return OK;
}

/* A feature of generated data must be in a FeatureArgs and have a table. */
static status check_feature(loader *l, const char *field, const char *feature) {
    const config *c = l->c;
    char place[512];
    bool is_generated = false, has_table = false;
    for (size_t i = 0; i < c->benchmark.features.n; i++)
        is_generated |= config_has_text(&c->benchmark.features.item[i].feature_names, feature);
    for (size_t i = 0; i < c->embeddings.n; i++)
        has_table |= config_has_text(&c->embeddings.item[i].feature_names, feature);
    if (is_generated && has_table) return OK;
    return fail(ERR_CONFIG, "%s: BenchmarkDatasetArgs.%s: the feature '%.100s' is in no %s",
                place_of(l, "BenchmarkDatasetArgs", field, place, sizeof place), field, feature,
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
        if (config_has_text(&b->features.item[i].feature_names, b->item_feature))
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
    TRY(find_in_force(l, o, &b, &spelling));
    if (b != NULL) return store_bound(l, o, spelling, b->value, &l->c->embeddings);
    warn_of_unused_tables(l);
    TRY(add_predefined_tables(l));
    if (l->c->embeddings.n == 0 && strcmp(l->c->data.dataset_name, "own") != 0)
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
                    place_of(l, "NetworkArgs", "kernel_backend", place, sizeof place),
                    c->network.backend == BACKEND_TRITON ? "triton" : "pytorch");
    if (c->network.scaling_length == 0)
        return fail(ERR_CONFIG,
                    "%s: NetworkArgs.scaling_seqlen = 0 would divide by zero; -1 is the longest "
                    "possible sequence",
                    place_of(l, "NetworkArgs", "scaling_seqlen", place, sizeof place));
    if (c->network.dim_qk == CONFIG_NONE) TRY(divide_heads(l, "NetworkArgs", "hidden_size"));
    if (c->trainer.eval_batch_size == CONFIG_NONE)
        c->trainer.eval_batch_size = c->trainer.train_batch_size;
    fix_nvidia(c);
    TRY(c->task == TASK_RANKING ? complete_ranking(l) : complete_retrieval(l));
    TRY(c->is_benchmark ? complete_benchmark(l) : complete_dataset(l));
    return check_table_names(l);
}

static status complete(loader *l) {
    if (l->c->family == FAMILY_NVIDIA) return complete_nvidia(l);
    fix_meta(l->c);
    bool is_softmax = l->c->model == MODEL_SASREC || l->c->model == MODEL_ESASREC;
    return is_softmax ? divide_heads(l, "train_fn", "item_embedding_dim") : OK;
}

/* Checks one binding: whether there is such an option, and whether the value fits it. */
static status check_binding(loader *l, const gin_binding *b) {
    scratch room = {0};
    char place[512];
    option_builder only_check = {.memory = &l->c->memory};
    const option *o = option_find(b->class_name, b->field);
    if (o == NULL) return option_fail_unknown(b);
    gin_place(place, sizeof place, b->file, b->line);
    if (o->type == OPT_RETIRED)
        log_info("note: %s: %s has no effect here. %s", place, o->name, o->help);
    if (*b->scope != '\0' && !option_class_of(o)->is_instance)
        log_warn("%s: %s/%s is never used: nothing runs inside the scope '%s'", place, b->scope,
                 o->name, b->scope);
    if (o->type == OPT_ALIAS) return store_bound(l, alias_target(o), o, b->value, &room);
    return option_store(o, b->value, &only_check, &room);
}

/* Says once what a file binds in vain. */
static void note_no_effect(const loader *l) {
    char names[512] = "";
    for (size_t i = 0; i < l->gin.n_bindings; i++) {
        const gin_binding *b = l->gin.bindings[i];
        const option *o = option_find(b->class_name, b->field);
        if (o != NULL && o->flags & OPT_NO_EFFECT)
            text_add(names, sizeof names, "%s%s", names[0] != '\0' ? ", " : "", o->name);
    }
    if (names[0] != '\0') log_info("note: %s: read, but of no effect here: %s", l->c->file, names);
}

/* `--set learning_rate=1` would define a macro that nothing uses, where an option was meant. */
static status check_bare_names(const loader *l) {
    for (size_t i = 0; i < l->gin.n_bindings; i++) {
        const gin_binding *b = l->gin.bindings[i];
        char names[256] = "";
        if (*b->class_name != '\0' || !b->is_override || b->is_used) continue;
        for (size_t k = 0; k < n_options; k++) {
            const option *o = &option_table[k];
            if (strcmp(option_field(o), b->field) == 0 &&
                option_class_of(o)->family == l->c->family)
                text_add(names, sizeof names, "%s%s", *names != '\0' ? " or " : "", o->name);
        }
        return gin_fail(b->file, b->line, "'%s' has no class: write %s", b->field,
                        *names != '\0' ? names : "Class.field=value");
    }
    return OK;
}

/* Checks every binding and finds the file's family from the classes it binds. */
static status check_bindings(loader *l) {
    const gin_binding *first[FAMILY_NVIDIA + 1] = {0};
    char meta[512], nvidia[512];
    for (size_t i = 0; i < l->gin.n_bindings; i++) {
        const gin_binding *b = l->gin.bindings[i];
        if (*b->class_name == '\0') continue;
        TRY(check_binding(l, b));
        config_family family = option_class_of(option_find(b->class_name, b->field))->family;
        if (first[family] == NULL) first[family] = b;
    }
    const gin_binding *m = first[FAMILY_META], *n = first[FAMILY_NVIDIA];
    if (m != NULL && n != NULL)
        return fail(ERR_CONFIG,
                    "%s binds %s.%s, which is Meta's, but %s binds %s.%s, which is "
                    "NVIDIA's; a config follows one of the two",
                    gin_place(meta, sizeof meta, m->file, m->line), m->class_name, m->field,
                    gin_place(nvidia, sizeof nvidia, n->file, n->line), n->class_name, n->field);
    if (m == NULL && n == NULL)
        return fail(ERR_CONFIG,
                    "%s binds no option; a config binds train_fn.* (Meta's names) or "
                    "NetworkArgs.* and others (NVIDIA's names)",
                    l->c->file);
    l->c->family = m != NULL ? FAMILY_META : FAMILY_NVIDIA;
    return check_bare_names(l);
}

/* The first binding of a class outside any scope. */
static const gin_binding *first_of_class(const loader *l, const char *class_name) {
    for (size_t i = 0; i < l->gin.n_bindings; i++)
        if (*l->gin.bindings[i]->scope == '\0' &&
            strcmp(l->gin.bindings[i]->class_name, class_name) == 0)
            return l->gin.bindings[i];
    return NULL;
}

static status choose_nvidia_task(loader *l, const char *wanted) {
    char first[512], second[512];
    const gin_binding *ranking = first_of_class(l, "RankingArgs");
    const gin_binding *retrieval = first_of_class(l, "RetrievalArgs");
    if (wanted != NULL) {
        l->c->task = strcmp(wanted, "ranking") == 0 ? TASK_RANKING : TASK_RETRIEVAL;
        return OK;
    }
    if (ranking != NULL && retrieval != NULL)
        return fail(ERR_CONFIG,
                    "RankingArgs is bound at %s and RetrievalArgs at %s; say which "
                    "with --task ranking or --task retrieval",
                    gin_place(first, sizeof first, ranking->file, ranking->line),
                    gin_place(second, sizeof second, retrieval->file, retrieval->line));
    if (ranking == NULL && retrieval == NULL)
        log_info("note: %s binds neither RankingArgs nor RetrievalArgs; the task is ranking "
                 "(--task retrieval for the other)",
                 l->c->file);
    l->c->task = retrieval != NULL ? TASK_RETRIEVAL : TASK_RANKING;
    return OK;
}

/* Task, model and kind of data, which decide which classes are active. */
static status choose(loader *l, const char *task) {
    config *c = l->c;
    if (task != NULL && strcmp(task, "ranking") != 0 && strcmp(task, "retrieval") != 0)
        return fail(ERR_USAGE, "--task %s: the tasks are ranking and retrieval", task);
    if (c->family == FAMILY_META) {
        c->task = TASK_RETRIEVAL;
        if (task != NULL && strcmp(task, "ranking") == 0)
            return fail(ERR_CONFIG,
                        "%s: Meta's research configs train retrieval; --task ranking "
                        "needs a config with NVIDIA's names",
                        c->file);
        return OK;
    }
    c->model = MODEL_HSTU;
    /* As in the reference: generated data where no data set is named. */
    c->is_benchmark = find_bound(l, option_find("DatasetArgs", "dataset_name")) == NULL &&
                      first_of_class(l, "BenchmarkDatasetArgs") != NULL;
    return choose_nvidia_task(l, task);
}

/* Stores every root option of an active class; the error names every required option that is
 * missing. */
static status store_values(loader *l) {
    buf missing = {0};
    status st = OK;
    for (size_t i = 0; i < n_options && st == OK; i++) {
        const option *o = &option_table[i], *spelling;
        const gin_binding *b;
        void *member = (char *)l->c + o->offset;
        if (o->type == OPT_ALIAS || o->type == OPT_RETIRED) continue;
        if (!config_class_is_active(l->c, option_class_of(o))) continue;
        st = find_in_force(l, o, &b, &spelling);
        if (st != OK) break;
        if (b != NULL)
            st = store_bound(l, o, spelling, b->value, member);
        else if (o->flags & OPT_REQUIRED)
            st = buf_printf(&missing, "%s%s", missing.n_bytes > 0 ? ", " : "", o->name);
        else
            st = store_default(l, o, member);
    }
    if (st == OK && missing.n_bytes > 0)
        st = fail(ERR_CONFIG, "%s: required options are not bound: %s", l->c->file,
                  buf_str(&missing));
    buf_fini(&missing);
    return st;
}

static status copy_overrides(config *c, const config_source *source) {
    TRY(ARENA_NEW(&c->memory, &c->overrides.item, source->n_overrides));
    for (; c->overrides.n < source->n_overrides; c->overrides.n++)
        TRY(arena_copy_text(&c->memory, source->overrides[c->overrides.n],
                            strlen(source->overrides[c->overrides.n]),
                            &c->overrides.item[c->overrides.n]));
    return OK;
}

static status load(loader *l, const config_source *source) {
    const char *name = source->path != NULL ? source->path : source->text_name;
    TRY(arena_copy_text(&l->c->memory, name, strlen(name), &l->c->file));
    TRY(copy_overrides(l->c, source));
    if (source->path != NULL)
        TRY(gin_read_file(&l->gin, source->path));
    else
        TRY(gin_read_text(&l->gin, name, source->text, source->text_bytes));
    for (size_t i = 0; i < source->n_overrides; i++)
        TRY(gin_override(&l->gin, source->overrides[i]));
    TRY(gin_finish(&l->gin));
    TRY(check_bindings(l));
    if (source->path != NULL) note_no_effect(l); /* not again when a run brings its config back */
    TRY(choose(l, source->task));
    TRY(store_values(l));
    return complete(l);
}

status config_load(config **out, const config_source *source) {
    loader l = {0};
    *out = NULL;
    TRY(MEM_NEW(&l.c, 1));
    arena_init(&l.c->memory, 1 << 13);
    gin_init(&l.gin);
    l.builder = (option_builder){.memory = &l.c->memory, .build = build_instance, .ctx = &l};
    status st = load(&l, source);
    l.c->gin_text = l.gin.memory;
    l.gin.memory = (arena){0};
    gin_fini(&l.gin);
    if (st != OK) {
        config_destroy(l.c);
        return st;
    }
    *out = l.c;
    return OK;
}

void config_destroy(config *c) {
    if (c == NULL) return;
    arena_fini(&c->memory);
    arena_fini(&c->gin_text);
    mem_free(c);
}
