#include "train/loop/generated.h"

#include "data/set/seq_file.h"

/* The loader has checked that every feature that is used has both. */
static const config_feature *feature_of(const config *c, const char *name) {
    const config_features *all = &c->benchmark.features;
    for (size_t i = 0; i < all->n; i++)
        if (config_has_text(&all->item[i].feature_names, name)) return &all->item[i];
    return NULL;
}

static int64_t capacity_of(const config *c, const char *name) {
    for (size_t i = 0; i < c->embeddings.n; i++)
        if (config_has_text(&c->embeddings.item[i].feature_names, name))
            return c->embeddings.item[i].capacity;
    return 1;
}

static status rule_of(const config *c, const char *name, const config_distribution *d, int64_t most,
                      draw_rule *out) {
    static const draw_kind kinds[] = {DRAW_UNIFORM, DRAW_NORMAL, DRAW_ZIPF, DRAW_LOGNORMAL};
    *out = (draw_rule){.kind = kinds[d->kind],
                       .low = d->low,
                       .high = most,
                       .mean = d->mean,
                       .deviation = d->std,
                       .alpha = isnan(d->alpha) ? 1.5 : d->alpha,
                       .is_clamped = d->high != CONFIG_NONE};
    if (d->high != CONFIG_NONE) {
        int64_t high = d->kind == DIST_UNIFORM ? d->high - 1 : d->high;
        if (high < most) out->high = high;
    }
    if (d->kind == DIST_LOGNORMAL && isnan(d->std)) out->deviation = d->mean / 2;
    bool is_bell = d->kind == DIST_NORMAL || d->kind == DIST_LOGNORMAL;
    if (is_bell && (isnan(out->mean) || isnan(out->deviation)))
        return fail(ERR_CONFIG, "%s: %s/RandomDistribution of '%s' needs a mean%s", c->file,
                    d->scope, name, d->kind == DIST_NORMAL ? " and a std" : "");
    if (out->low > out->high)
        return fail(ERR_CONFIG,
                    "%s: %s/RandomDistribution.low = %" PRId64 ", but '%s' ends with %" PRId64,
                    c->file, d->scope, out->low, name, out->high);
    return OK;
}

/* Values of a feature, 0..most: as its distribution says, or uniform. */
static status value_rule(const config *c, const char *name, int64_t most, draw_rule *out) {
    const config_distributions *dists = &feature_of(c, name)->value_dists;
    *out = (draw_rule){.kind = DRAW_UNIFORM, .high = most};
    for (size_t i = 0; i < dists->n; i++)
        if (strcmp(dists->name[i], name) == 0) return rule_of(c, name, &dists->item[i], most, out);
    return OK;
}

static status length_rule(const config *c, draw_rule *out) {
    const char *name = c->benchmark.item_feature;
    const config_feature *f = feature_of(c, name);
    int64_t most = f->max_sequence_length;
    *out = (draw_rule){.kind = DRAW_UNIFORM, .low = most, .high = most};
    if (!f->is_jagged) return OK;
    if (f->seqlen_dist != NULL) return rule_of(c, name, f->seqlen_dist, most, out);
    out->low = 0;
    out->high = most - 1;
    return OK;
}

/* An action must be a row of the action table, fit 16 bits and, where it is also the label of a
 * classification, be one of the classes. */
static int64_t largest_action(const config *c) {
    const config_ranking *r = &c->ranking;
    int64_t most = capacity_of(c, c->benchmark.action_feature) - 1;
    if (most >= ACTION_UNKNOWN) most = ACTION_UNKNOWN - 1;
    if (c->task != TASK_RANKING) return most;
    int64_t width = r->head.item[r->head.n - 1];
    return width != r->n_tasks && most >= width ? width - 1 : most;
}

static status describe_actions(bench_data_config *out, const config *c) {
    const config_benchmark *b = &c->benchmark;
    out->has_actions = b->action_feature != NULL;
    if (!out->has_actions && c->task == TASK_RANKING)
        return fail(ERR_CONFIG,
                    "%s: ranking learns from actions; bind "
                    "BenchmarkDatasetArgs.action_feature_name",
                    c->file);
    if (!out->has_actions) return OK;
    if (feature_of(c, b->action_feature) != feature_of(c, b->item_feature))
        return fail(ERR_CONFIG,
                    "%s: every item has an action, so '%s' and '%s' must share one FeatureArgs",
                    c->file, b->item_feature, b->action_feature);
    return value_rule(c, b->action_feature, largest_action(c), &out->action);
}

static status describe_context(bench_data_config *out, const config *c) {
    const config_texts *names = &c->benchmark.contextual_features;
    if (names->n > CONTEXT_MAX)
        return fail(ERR_CONFIG, "%s: %zu contextual features; %d are the most", c->file, names->n,
                    CONTEXT_MAX);
    for (size_t i = 0; i < names->n; i++) {
        const char *name = names->item[i];
        const config_feature *f = feature_of(c, name);
        if (f->is_jagged || f->max_sequence_length != 1)
            return fail(ERR_CONFIG,
                        "%s: the contextual feature '%s' has one value a user; bind "
                        "%s/FeatureArgs.max_sequence_length = 1 and is_jagged = False",
                        c->file, name, f->scope);
        out->context[i].name = name;
        TRY(value_rule(c, name, capacity_of(c, name) - 1, &out->context[i].value));
        out->n_context++;
    }
    return OK;
}

/* As many users as are needed so that the training users, seven of ten (split.h), fill whole
 * steps. */
static uint64_t count_users(const config *c) {
    int64_t n_batches = c->benchmark.n_batches;
    if (n_batches > GENERATED_BATCHES) n_batches = GENERATED_BATCHES;
    uint64_t n_train = (uint64_t)(n_batches * c->trainer.train_batch_size) *
                       (uint64_t)(c->trainer.batch_ranks * c->trainer.accumulation_steps);
    uint64_t n = n_train * 10 / 7;
    while ((n * 7 + 5) / 10 < n_train)
        n++;
    return n;
}

status generated_describe(bench_data_config *out, const config *c) {
    const char *item = c->benchmark.item_feature;
    *out = (bench_data_config){.seed = (uint64_t)c->trainer.seed};
    TRY(config_check_trainable(c));
    out->n_users = count_users(c);
    TRY(length_rule(c, &out->length));
    TRY(value_rule(c, item, capacity_of(c, item) - 1, &out->item));
    TRY(describe_actions(out, c));
    return describe_context(out, c);
}

typedef struct writing {
    bench_data_config data;
    builder_stats stats;
} writing;

static status write_data(void *ctx, const char *folder, pool *p) {
    writing *w = ctx;
    return bench_data_write(&w->data, folder, p, &w->stats);
}

status generated_open(seq_file **out, const config *c, pool *p) {
    writing w;
    *out = NULL;
    TRY(generated_describe(&w.data, c));
    TRY(temp_data_open(out, write_data, &w, p));
    log_info("note: generated %" PRIu64 " users with %" PRIu64
             " events; the tables hold the %" PRIu64 " items that occur, of the %" PRId64
             " that the config has room for",
             w.stats.n_users, w.stats.n_events, w.stats.n_items,
             capacity_of(c, c->benchmark.item_feature));
    return OK;
}
