/* Instances: the tables, features and distributions that @scope/Class() stands for. */
#include <stdio.h>
#include <string.h>

#include "config/loader.h"

enum { MAX_INSTANCES = 1024 }; /* tables, features and distributions of a config */

static status fail_instance(const gin_value *reference, const char *class_name, const char *what) {
    char place[512];
    return fail(ERR_CONFIG, "%s: %.100s%s%s %s",
                gin_place(place, sizeof place, reference->file, reference->line), reference->scope,
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
            TRY(loader_store_default(l, o, member));
    }
    return OK;
}

static status store_instance(loader *l, const option_class *class_, const gin_value *reference,
                             void *instance) {
    buf missing;
    char what[512];
    buf_init(&missing);
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

status loader_build(void *ctx, const option_class *class_, const gin_value *reference,
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
typedef struct predefined {
    const char *dataset, *feature, *table;
    int64_t capacity;
    bool is_dynamic;
} predefined;

static const predefined predefined_tables[] = {
    {"kuairand-pure", "user_active_degree", "user_active_degree", 10, false},
    {"kuairand-pure", "follow_user_num_range", "follow_user_num_range", 9, false},
    {"kuairand-pure", "fans_user_num_range", "fans_user_num_range", 10, false},
    {"kuairand-pure", "friend_user_num_range", "friend_user_num_range", 8, false},
    {"kuairand-pure", "register_days_range", "register_days_range", 8, false},
    {"kuairand-pure", "action_weights", "action_weights", 226, false},
    {"kuairand-pure", "video_id", "video_id", 10000000, true},
    {"kuairand-pure", "user_id", "user_id", 10000000, true},
    {"kuairand-1k", "user_active_degree", "user_active_degree", 8, false},
    {"kuairand-1k", "follow_user_num_range", "follow_user_num_range", 9, false},
    {"kuairand-1k", "fans_user_num_range", "fans_user_num_range", 9, false},
    {"kuairand-1k", "friend_user_num_range", "friend_user_num_range", 8, false},
    {"kuairand-1k", "register_days_range", "register_days_range", 8, false},
    {"kuairand-1k", "action_weights", "action_weights", 233, false},
    {"kuairand-1k", "video_id", "video_id", 10000000, true},
    {"kuairand-1k", "user_id", "user_id", 10000000, true},
    {"kuairand-27k", "user_active_degree", "user_active_degree", 10, false},
    {"kuairand-27k", "follow_user_num_range", "follow_user_num_range", 9, false},
    {"kuairand-27k", "fans_user_num_range", "fans_user_num_range", 10, false},
    {"kuairand-27k", "friend_user_num_range", "friend_user_num_range", 8, false},
    {"kuairand-27k", "register_days_range", "register_days_range", 8, false},
    {"kuairand-27k", "action_weights", "action_weights", 246, false},
    {"kuairand-27k", "video_id", "video_id", 32038725, true},
    {"kuairand-27k", "user_id", "user_id", 10000000, true},
    {"ml-1m", "sex", "sex", 3, false},
    {"ml-1m", "age_group", "age_group", 8, false},
    {"ml-1m", "occupation", "occupation", 22, false},
    {"ml-1m", "zip_code", "zip_code", 3440, false},
    {"ml-1m", "rating", "action_weights", 11, false},
    {"ml-1m", "movie_id", "movie_id", 10000000, true},
    {"ml-1m", "user_id", "user_id", 10000000, true},
    {"ml-20m", "rating", "action_weights", 11, false},
    {"ml-20m", "movie_id", "movie_id", 10000000, true},
    {"ml-20m", "user_id", "user_id", 10000000, true},
};
enum { N_PREDEFINED = sizeof predefined_tables / sizeof predefined_tables[0] };

/* The defaults of the class, then the values of the row. */
static status fill_predefined(loader *l, const predefined *p, config_embedding *table) {
    const char *class_name = p->is_dynamic ? "DynamicEmbeddingArgs" : "EmbeddingArgs";
    for (size_t i = 0; i < n_options; i++) {
        const option *o = &option_table[i];
        if (strcmp(option_class_of(o)->name, class_name) == 0 && o->value != NULL)
            TRY(loader_store_default(l, o, (char *)table + o->offset));
    }
    table->scope = table->table_name = p->table;
    table->is_dynamic = p->is_dynamic;
    table->capacity = p->capacity;
    TRY(ARENA_NEW(&l->c->memory, &table->feature_names.item, 1));
    table->feature_names.item[0] = p->feature;
    table->feature_names.n = 1;
    table->sharding = p->is_dynamic ? SHARDING_MODEL_PARALLEL : SHARDING_DATA_PARALLEL;
    if (!p->is_dynamic) return OK;
    bool is_ml20m_user = strcmp(p->dataset, "ml-20m") == 0 && strcmp(p->feature, "user_id") == 0;
    table->gpu_capacity_ratio = 0.5;
    /* The reference caches the user table of ml-20m whatever the pipeline. */
    table->has_caching = l->c->trainer.pipeline == PIPELINE_PREFETCH || is_ml20m_user;
    return OK;
}

status loader_add_predefined_tables(loader *l) {
    config *c = l->c;
    TRY(ARENA_NEW(&c->memory, &c->embeddings.item, N_PREDEFINED));
    for (size_t i = 0; i < N_PREDEFINED; i++)
        if (strcmp(predefined_tables[i].dataset, c->data.dataset_name) == 0)
            TRY(fill_predefined(l, &predefined_tables[i], &c->embeddings.item[c->embeddings.n++]));
    return OK;
}
