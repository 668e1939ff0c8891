/* From a config to a model: which parts, of which sizes, in which order of parameters. */
#include <math.h>
#include <stdio.h>

#include "nn/model_int.h"

enum { MAX_WIDTH = 1 << 16, MAX_LAYERS = 512, MAX_LENGTH = 1 << 24 };
enum { MAX_RECORDED_EVENTS = 1 << 16 };

/* A number of the config that becomes an int32. */
static status check_range(const char *what, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return OK;
    return fail(ERR_CONFIG, "%s is %lld; it must be %lld to %lld", what, (long long)value,
                (long long)low, (long long)high);
}

static status check_network(const config_network *n) {
    TRY(check_range("the number of layers", n->n_layers, 0, MAX_LAYERS));
    TRY(check_range("the width of the model", n->hidden_size, 1, MAX_WIDTH));
    TRY(check_range("the number of heads", n->n_heads, 1, 1024));
    TRY(check_range("the width of q and k of a head", n->dim_qk, 1, MAX_WIDTH / 4));
    TRY(check_range("the width of v of a head", n->dim_v, 1, MAX_WIDTH / 4));
    TRY(check_range("the width of all heads", n->n_heads * (n->dim_qk + n->dim_v), 1,
                    4 * MAX_WIDTH));
    TRY(check_range("the width of the item table", n->item_dim, -1, MAX_WIDTH));
    return check_range("the width of the contextual tables", n->contextual_dim, -1, MAX_WIDTH);
}

static status check_limits(const config *c, const model_limits *l) {
    TRY(check_range("the number of items", l->n_items, 1, INT32_MAX - 2));
    TRY(check_range("the number of actions", l->n_actions, 0, 65536));
    TRY(check_range("the number of contextual features", l->n_context, 0, 1024));
    TRY(check_range("the users of a batch", l->max_users, 1, INT32_MAX / 2));
    TRY(check_range("the events of a user", l->max_events, 1, MAX_LENGTH));
    TRY(check_range("the longest history", c->data.max_history, 1, MAX_LENGTH));
    TRY(check_range("the most candidates", c->data.max_candidates, 0, MAX_LENGTH));
    if (l->time_per_second < 1)
        return fail(ERR_CONFIG, "the data's time has %lld ticks a second; it must be 1 or more",
                    (long long)l->time_per_second);
    for (int32_t f = 0; f < l->n_context; f++)
        TRY(check_range("the values of a contextual feature", l->n_context_values[f], 1,
                        INT32_MAX - 2));
    if (c->task == TASK_RANKING && l->n_actions == 0)
        return fail(ERR_CONFIG, "ranking learns from actions, and the data have none; train "
                                "retrieval with --task retrieval, or use other data");
    return OK;
}

/* What the two families' files say between the lines. */
static status check_task(const config *c) {
    const config_network *n = &c->network;
    bool is_ranking = c->task == TASK_RANKING;
    if (c->model != MODEL_HSTU && is_ranking)
        return fail(ERR_CONFIG, "the research models are made for retrieval, not for ranking");
    if (!is_ranking && n->item_dim > 0 && n->item_dim != n->hidden_size)
        return fail(ERR_CONFIG,
                    "retrieval scores items by their rows, so NetworkArgs.item_embedding_dim = "
                    "%lld must be hidden_size = %lld",
                    (long long)n->item_dim, (long long)n->hidden_size);
    if (n->target_group_size != 1 && c->model == MODEL_HSTU && is_ranking)
        return fail(ERR_CONFIG,
                    "NetworkArgs.target_group_size = %lld would show a candidate the actions of "
                    "other candidates; bind 1",
                    (long long)n->target_group_size);
    return OK;
}

static bool is_research(const config *c) {
    return c->model != MODEL_HSTU;
}

/* N of the research models: the slots the reference pads every history to. */
static int64_t research_length(const config *c) {
    return c->data.max_history + c->network.output_length + 1;
}

static bool has_action_tokens(const config *c) {
    return c->task == TASK_RANKING;
}

/* The rows that the input has for a dynamic table. */
static const param *rows_of(const model *m, const dynamic_table *t) {
    return t->feature == ITEM_FEATURE ? m->input.item : m->input.context[t->feature];
}

static status attach_tables(model *m, const config *c) {
    for (int i = 0; i < m->dynamic.n; i++) {
        dynamic_table *t = &m->dynamic.item[i];
        TRY(dynamic_attach(&m->dynamic, t, c, rows_of(m, t), &m->memory));
    }
    return OK;
}

static status alloc_grads(model *m) {
    TRY(param_list_alloc_grads(&m->params));
    TRY(input_alloc_grads(&m->input, &m->memory));
    for (int i = 0; i < m->dynamic.n; i++)
        dynamic_set_grad(&m->dynamic.item[i], rows_of(m, &m->dynamic.item[i]));
    return OK;
}

static status add_input(model *m, const config *c, const model_limits *l) {
    const config_network *n = &c->network;
    bool *is_dynamic;
    TRY(NN_NEW_HOST(&m->memory, &is_dynamic, l->n_context));
    for (int32_t f = 0; f < l->n_context; f++)
        is_dynamic[f] = dynamic_find(&m->dynamic, f) != NULL;
    int64_t n_places = is_research(c) ? research_length(c) : n->n_position_buckets;
    TRY(check_range("the number of positions", n_places, 1, MAX_LENGTH));
    bool has_mlp = c->task == TASK_RANKING;
    input_config in = {.dim = m->dim,
                       .item_dim = has_mlp && n->item_dim > 0 ? (int32_t)n->item_dim : 0,
                       .context_dim = n->contextual_dim > 0 ? (int32_t)n->contextual_dim : 0,
                       .n_items = l->n_items,
                       .n_actions = has_action_tokens(c) ? l->n_actions : 0,
                       .n_context = is_research(c) ? 0 : l->n_context,
                       .n_context_values = l->n_context_values,
                       .n_places = (int32_t)n_places,
                       .is_research = is_research(c),
                       .is_sasrec = c->model == MODEL_SASREC,
                       .has_marks = c->family == FAMILY_NVIDIA,
                       .has_dynamic_items = dynamic_find(&m->dynamic, ITEM_FEATURE) != NULL,
                       .is_dynamic = is_dynamic,
                       .dropout_rate = (float)n->input_dropout};
    TRY(input_add_params(&m->input, &in, &m->params));
    return attach_tables(m, c);
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* The N of 1 / N is a constant of the config, not the longest of a batch. */
static double scaling_length(const config *c, int32_t n_context) {
    if (is_research(c)) return (double)research_length(c);
    if (c->network.scaling_length > 0) return (double)c->network.scaling_length;
    return n_context + (has_action_tokens(c) ? 2.0 : 1.0) *
                           (double)(c->data.max_history + c->data.max_candidates);
}

static hstu_layer_config hstu_config(const model *m, const config *c) {
    const config_network *n = &c->network;
    bool research = is_research(c);
    return (hstu_layer_config){.dim = m->dim,
                               .n_heads = (int32_t)n->n_heads,
                               .dim_qk = (int32_t)n->dim_qk,
                               .dim_v = (int32_t)n->dim_v,
                               .is_research = research,
                               .has_silu = !research || n->linear_activation == LINEAR_SILU,
                               .has_residual = true,
                               .has_bias = research && n->has_relative_bias,
                               .bias_len = research ? (int32_t)research_length(c) : 0,
                               .target_group = 1,
                               .eps = (float)n->norm_epsilon,
                               .alpha = research ? 1 : (float)(1 / sqrt((double)n->dim_qk)),
                               .scale = (float)(1 / scaling_length(c, m->input.config.n_context)),
                               .dropout_rate = (float)n->dropout,
                               .recomputes_norm = n->recomputes_norm,
                               .recomputes_silu = n->recomputes_silu};
}

static status add_hstu_layers(model *m, const config *c) {
    hstu_layer_config layer = hstu_config(m, c);
    TRY(NN_NEW_HOST(&m->memory, &m->hstu, m->n_layers));
    for (int i = 0; i < m->n_layers; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "%s._attention_layers.%d.",
                 is_research(c) ? "_hstu" : "_hstu_block", i);
        layer.site = 1 + (uint32_t)i;
        TRY(hstu_layer_add_params(&m->hstu[i], &layer, &m->params, prefix));
    }
    return OK;
}

static status add_sasrec_layers(model *m, const config *c) {
    const config_network *n = &c->network;
    TRY(check_range("the width of the FFN", n->ffn_hidden_size, 1, MAX_WIDTH));
    if (n->hidden_size % n->n_heads != 0)
        return fail(ERR_CONFIG, "the width of the model does not divide among its heads");
    sasrec_layer_config layer = {.dim = m->dim,
                                 .n_heads = (int32_t)n->n_heads,
                                 .dim_ffn = (int32_t)n->ffn_hidden_size,
                                 .f = n->ffn_activation == ACTIVATION_GELU ? EPILOGUE_GELU
                                                                           : EPILOGUE_RELU,
                                 .eps = (float)n->norm_epsilon,
                                 .dropout_rate = (float)n->dropout};
    TRY(NN_NEW_HOST(&m->memory, &m->sasrec, m->n_layers));
    for (int i = 0; i < m->n_layers; i++) {
        layer.site = 1 + SASREC_SITES * (uint32_t)i;
        TRY(sasrec_layer_add_params(&m->sasrec[i], &layer, &m->params, i));
    }
    return OK;
}

static status add_ranking(model *m, const config *c) {
    const config_ranking *r = &c->ranking;
    TRY(check_range("the number of layers of RankingArgs.prediction_head_arch", (int64_t)r->head.n,
                    1, MLP_MAX_LAYERS));
    mlp_config net = {.n_layers = (int)r->head.n,
                      .f = r->activation == ACTIVATION_GELU ? EPILOGUE_GELU : EPILOGUE_RELU,
                      .has_bias = r->has_bias};
    net.width[0] = m->dim;
    for (size_t i = 0; i < r->head.n; i++) {
        TRY(check_range("a width of RankingArgs.prediction_head_arch", r->head.item[i], 1,
                        MAX_WIDTH));
        net.width[i + 1] = (int32_t)r->head.item[i];
    }
    bool is_bits = r->head.item[r->head.n - 1] == r->n_tasks;
    if (is_bits) TRY(check_range("RankingArgs.num_tasks, bits of the action,", r->n_tasks, 1, 16));
    return ranking_add_params(&m->ranking, &net, is_bits, &m->params);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Batches are filled up to whole buckets where their passes can be recorded: not with in-batch
 * negatives, whose number differs from batch to batch; and not where a batch is so large that
 * launching its kernels one by one costs nothing. */
static int32_t bucket_of(const model *m, const config *c, const model_limits *l) {
    const config_retrieval *r = &c->retrieval;
    bool is_in_batch =
        !m->is_ranking && (r->negatives == NEGATIVES_IN_BATCH || r->n_negatives <= 0);
    bool is_large = (int64_t)l->max_users * l->max_events > MAX_RECORDED_EVENTS;
    return is_in_batch || is_large ? 0 : m->be->token_bucket;
}

/* Contextual tokens see the whole history only where no loss lies in the history. */
static plan_config plan_of(const model *m, const config *c, const model_limits *l) {
    const input_config *in = &m->input.config;
    bool has_candidates = m->is_ranking && c->data.max_candidates > 0;
    bool is_classes = m->is_ranking && !m->ranking.is_bits;
    return (plan_config){.is_ranking = m->is_ranking,
                         .has_actions = in->n_actions > 0,
                         .has_candidates = has_candidates,
                         .has_context_mask = has_candidates && in->n_context > 0 &&
                                             !c->network.has_no_contextual_mask,
                         .has_times =
                             m->hstu != NULL && m->n_layers > 0 && m->hstu[0].config.has_bias,
                         .n_items = in->n_items,
                         .n_actions = in->n_actions,
                         .n_context = in->n_context,
                         .n_context_values = in->n_context_values,
                         .n_labels = is_classes ? ranking_n_columns(&m->ranking) : 0,
                         .n_places = in->n_places,
                         .max_len = is_research(c) ? in->n_places : 0,
                         .max_users = l->max_users,
                         .max_events = l->max_events,
                         .max_targets = (int32_t)c->data.max_candidates,
                         .time_per_second = l->time_per_second,
                         .bucket = bucket_of(m, c, l),
                         .is_merged = m->input.is_merged,
                         .action_row = m->input.action_row,
                         .context_row = m->input.context_row};
}

static status alloc_layers(model *m, int64_t max_tokens) {
    if (m->n_layers == 0) return OK;
    TRY(m->hstu != NULL
            ? hstu_scratch_alloc(&m->hstu_scratch, &m->hstu[0].config, &m->memory, max_tokens)
            : sasrec_scratch_alloc(&m->sasrec_scratch, &m->sasrec[0].config, &m->memory,
                                   max_tokens));
    for (int i = 0; i < m->n_layers; i++)
        TRY(m->hstu != NULL
                ? hstu_layer_alloc(&m->hstu[i], &m->hstu_scratch, &m->memory, max_tokens)
                : sasrec_layer_alloc(&m->sasrec[i], &m->memory, max_tokens));
    return OK;
}

/* Which row of the corpus each item is: i - 1 for item i, until a dynamic table says otherwise. */
static status alloc_corpus(model *m, int32_t n_items, bool is_dynamic) {
    m->n_corpus = n_items;
    TRY(NN_NEW_HOST(&m->memory, &m->corpus_item, n_items));
    TRY(NN_NEW_HOST(&m->memory, &m->corpus_row, (int64_t)n_items + 1));
    for (int32_t i = 0; i <= n_items; i++)
        m->corpus_row[i] = i - 1;
    for (int32_t i = 0; i < n_items; i++)
        m->corpus_item[i] = i + 1;
    return is_dynamic ? NN_NEW(&m->memory, &m->corpus, (int64_t)n_items * m->dim) : OK;
}

static status alloc_head(model *m, const config *c, int64_t max_loss, int64_t max_tokens) {
    const config_retrieval *r = &c->retrieval;
    if (m->is_ranking) return ranking_alloc(&m->ranking, &m->memory, max_loss, max_tokens);
    const dynamic_table *items = dynamic_find(&m->dynamic, ITEM_FEATURE);
    int32_t n_corpus = items != NULL ? items->last : m->input.config.n_items;
    if (items != NULL && r->negatives != NEGATIVES_IN_BATCH)
        return fail(ERR_CONFIG,
                    "%s: negatives from the whole catalogue need all rows in every step, but the "
                    "item table '%s' is dynamic; choose negatives of the batch, or a static table",
                    c->file, items->config->table_name);
    TRY(alloc_corpus(m, n_corpus, items != NULL));
    TRY(check_range("the number of negatives", r->n_negatives, -1, 1 << 20));
    if (!(r->temperature > 0) || !(r->norm_epsilon >= 0))
        return fail(ERR_CONFIG, "the temperature must be above 0 and the norm's epsilon not below");
    retrieval_config head = {.dim = m->dim,
                             .n_items = m->input.config.n_items,
                             .n_corpus = n_corpus,
                             .corpus_rows = m->corpus,
                             .n_negatives = r->n_negatives > 0 ? (int32_t)r->n_negatives : 0,
                             .is_in_batch = r->negatives == NEGATIVES_IN_BATCH,
                             .normalises_items = r->has_item_norm,
                             .has_layer_norm =
                                 is_research(c) && c->network.user_norm == USER_NORM_LAYER,
                             .eps = (float)r->norm_epsilon,
                             .temperature = (float)r->temperature};
    return retrieval_alloc(&m->retrieval, &head, m->input.item, &m->memory, max_loss, max_tokens);
}

static status alloc_all(model *m, const config *c, const model_limits *l) {
    plan_config p = plan_of(m, c, l);
    TRY(plan_alloc(&m->plan, &p, &m->memory));
    int64_t max_tokens = m->plan.max_tokens, max_loss = plan_max_loss(&p);
    TRY(input_alloc(&m->input, &m->memory, max_tokens, l->max_users));
    TRY(alloc_layers(m, max_tokens));
    TRY(NN_NEW_HOST(&m->memory, &m->hidden, m->n_layers + 1));
    for (int i = 0; i <= m->n_layers; i++)
        TRY(nn_new_act(&m->memory, &m->hidden[i], max_tokens, m->dim));
    TRY(nn_new_act(&m->memory, &m->d_hidden, max_tokens, m->dim));
    TRY(NN_NEW(&m->memory, &m->loss, 1));
    return alloc_head(m, c, max_loss, max_tokens);
}

status model_make(model *m, const config *c, const model_limits *limits) {
    int32_t *values;
    model_limits l = *limits;
    TRY(check_network(&c->network));
    TRY(check_limits(c, limits));
    TRY(check_task(c));
    m->is_ranking = c->task == TASK_RANKING;
    m->dim = (int32_t)c->network.hidden_size;
    m->n_layers = (int)c->network.n_layers;
    TRY(NN_NEW_HOST(&m->memory, &values, l.n_context));
    for (int32_t f = 0; f < l.n_context; f++)
        values[f] = limits->n_context_values[f];
    l.n_context_values = values;
    TRY(dynamic_choose(&m->dynamic, c, &l, values, &m->memory));
    TRY(param_list_init(&m->params, &m->memory,
                        16 + l.n_context + 8 * m->n_layers + 2 * MLP_MAX_LAYERS));
    TRY(add_input(m, c, &l));
    TRY(c->model == MODEL_SASREC ? add_sasrec_layers(m, c) : add_hstu_layers(m, c));
    if (m->is_ranking) TRY(add_ranking(m, c));
    TRY(alloc_grads(m));
    return alloc_all(m, c, &l);
}
