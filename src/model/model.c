#include "model/model.h"

#include "model/model_int.h"

/* From a config to a model: its parts, their sizes, and the order of parameters. */

enum { MAX_WIDTH = 1 << 16, MAX_LAYERS = 512, MAX_LENGTH = 1 << 24 };

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

/* What the two families' configs cannot combine. */
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

/* Meta's research models, whose files and checkpoints differ from NVIDIA's in many small things:
 * the functions below say which. */
static bool is_research(const config *c) {
    return c->model != MODEL_HSTU;
}

/* N of the research models: the slots the reference pads every history to, and those of contextual
 * tokens, which the reference has none of. */
static int64_t research_length(const config *c, int32_t n_context) {
    return n_context + c->data.max_history + c->network.output_length + 1;
}

static init_rule item_rule(const config *c) {
    if (!is_research(c)) return input_table_rule(ITEM_FEATURE);
    return (init_rule){.kind = INIT_TRUNCATED, .scale = 0.02};
}

/* HSTU gives the positions of the research models Glorot's deviation; SASRec keeps the original
 * one. */
static init_rule position_rule(const config *c, int64_t n_places) {
    int64_t dim = c->network.hidden_size;
    switch (c->model) {
    case MODEL_HSTU:
        return (init_rule){.kind = INIT_UNIFORM, .scale = sqrt(1.0 / (double)n_places)};
    case MODEL_SASREC:
        return (init_rule){.kind = INIT_TRUNCATED, .scale = sqrt(1.0 / (double)dim)};
    case MODEL_HSTU_RESEARCH:
    case MODEL_FUXI:
    case MODEL_ESASREC:
        break;
    }
    return init_xavier_normal(n_places, dim);
}

static status attach_tables(model *m, const config *c) {
    for (int i = 0; i < m->dynamic.n; i++) {
        dynamic_table *t = &m->dynamic.item[i];
        TRY(dynamic_attach(&m->dynamic, t, c, input_rows(&m->input, t->feature), &m->memory));
    }
    for (int i = m->dynamic.n; i < m->dynamic.n_all; i++) {
        dynamic_table *t = &m->dynamic.item[i];
        TRY(dynamic_attach_static(&m->dynamic, t, input_rows(&m->input, t->feature),
                                  input_own_rows(&m->input, t->feature), &m->memory));
    }
    return OK;
}

/* The table of a feature, if it is dynamic; what this rank holds of it, if it is static and ranks
 * hold it together. */
static bool is_dynamic_feature(model *m, int32_t f, input_held *held) {
    const dynamic_table *t = dynamic_find(&m->dynamic, f);
    *held = (input_held){0};
    if (t == NULL || t->rows == NULL) return t != NULL;
    *held = (input_held){t->rows, t->n_own, (int64_t)t->last + 1};
    return false;
}

static loss_type loss_of(const config_retrieval *r) {
    if (r->loss == LOSS_FULL_SOFTMAX) return LOSS_ALL_ITEMS;
    if (r->negatives != NEGATIVES_IN_BATCH) return LOSS_CATALOGUE;
    return r->shares_negatives ? LOSS_LABELS : LOSS_IN_BATCH;
}

/* Whether the gradients of a bank of so many rows are listed by row (input.h): where a pass uses
 * few of them.  A pass of the CPU is one of 8 leaves of the batch, and its dense gradients would
 * cost several passes over the table each.
 *
 * Rows that miss steps of a dense AdamW catch up by sums that converge for beta1 < beta2^2. */
static bool is_listed(const model *m, const config *c, const model_limits *l, int64_t n_rows) {
    enum { FEW_HOST = 4096, FEW = 1 << 16, MOST_SHARE = 32 };
    const config_retrieval *r = &c->retrieval;
    const config_optimizer *o = &c->optimizer;
    int64_t n = (int64_t)l->max_users * (l->max_events + l->n_context), n_each = 3;
    loss_config loss = {.type = loss_of(r),
                        .n_negatives = (int32_t)r->n_negatives,
                        .has_log_q = r->logq != LOGQ_NONE};
    bool is_catalogue = !m->is_ranking && loss.type == LOSS_CATALOGUE;
    if (!l->can_list || m->dynamic.n_all > 0 || l->content != NULL || o->average > 0) return false;
    if (!config_has_sparse_rows(c) && !(o->beta1 < .99 * o->beta2 * o->beta2)) return false;
    if (!m->is_ranking && !retrieval_can_list(&loss, n)) return false;
    if (is_catalogue) n_each += r->n_negatives;
    int64_t least = m->be->is_host ? n * n_each / MOST_SHARE : 2 * n * n_each;
    return n_rows > (m->be->is_host ? FEW_HOST : FEW) && n_rows > least;
}

static int64_t count_context_values(const model_limits *l) {
    int64_t n = 0;
    for (int32_t f = 0; f < l->n_context; f++)
        n += l->n_context_values[f];
    return n;
}

static status add_input(model *m, const config *c, const model_limits *l) {
    const config_network *n = &c->network;
    bool *is_dynamic;
    input_held *held, held_items;
    TRY(NN_NEW_HOST(&m->memory, &is_dynamic, l->n_context));
    TRY(NN_NEW_HOST(&m->memory, &held, l->n_context));
    for (int32_t f = 0; f < l->n_context; f++)
        is_dynamic[f] = is_dynamic_feature(m, f, &held[f]);
    bool has_dynamic_items = is_dynamic_feature(m, ITEM_FEATURE, &held_items);
    int32_t n_context = config_reads_context(c) ? l->n_context : 0;
    int32_t n_actions = config_reads_actions(c) ? l->n_actions : 0;
    int64_t n_places = is_research(c) ? research_length(c, n_context) : n->n_position_buckets;
    TRY(check_range("the number of positions", n_places, 1, MAX_LENGTH));
    bool has_mlp = c->task == TASK_RANKING;
    input_config in = {.dim = m->dim,
                       .item_dim = has_mlp && n->item_dim > 0 ? (int32_t)n->item_dim : 0,
                       .context_dim = n->contextual_dim > 0 ? (int32_t)n->contextual_dim : 0,
                       .n_items = l->n_items,
                       .n_actions = n_actions,
                       .adds_actions = is_research(c) && n_actions > 0,
                       .n_context = n_context,
                       .n_context_values = l->n_context_values,
                       .n_places = (int32_t)n_places,
                       .names = is_research(c) ? NAMES_META : NAMES_NVIDIA,
                       .item_rule = item_rule(c),
                       .position_rule = position_rule(c, n_places),
                       .has_marks = config_has_sparse_rows(c),
                       .lists_events = is_listed(m, c, l, l->n_items + count_context_values(l)),
                       .lists_contexts = is_listed(m, c, l, count_context_values(l)),
                       .has_dynamic_items = has_dynamic_items,
                       .is_dynamic = is_dynamic,
                       .held_items = held_items,
                       .held = held,
                       .dropout_rate = (float)n->input_dropout};
    TRY(input_add_params(&m->input, &in, &m->params));
    return attach_tables(m, c);
}

/* The N of 1 / N is a constant of the config, not the longest of a batch. */
static double scaling_length(const config *c, int32_t n_context) {
    if (is_research(c)) return (double)research_length(c, n_context);
    if (c->network.scaling_length > 0) return (double)c->network.scaling_length;
    return n_context + (c->task == TASK_RANKING ? 2.0 : 1.0) *
                           (double)(c->data.max_history + c->data.max_candidates);
}

static status check_fp8(const config *c) {
    if (!c->network.is_fp8 || c->model != MODEL_SASREC) return OK;
    return fail(ERR_UNSUPPORTED,
                "%s: fp8 products are those of HSTU layers, and this is a SASRec model; build it "
                "with --dtype bfloat16",
                c->file);
}

/* Ranks share the tokens of a batch, and in the attention the heads. */
static status check_sequence(const model *m, const config *c) {
    const config_network *n = &c->network;
    if (m->sequence == NULL) return OK;
    int size = m->sequence->size;
    bool is_hstu = c->model == MODEL_HSTU || c->model == MODEL_HSTU_RESEARCH;
    if (m->tensor != NULL || !is_hstu || size > HSTU_MAX_PARTS)
        return fail(ERR_UNSUPPORTED, "%s: its sequences cannot be cut over ranks%s", c->file,
                    m->tensor != NULL ? " whose layers are cut, too" : "");
    if (n->n_heads % size == 0) return OK;
    return fail(ERR_CONFIG,
                "%s: the %lld attention heads do not divide among --sequence-parallel %d ranks, "
                "each of which computes whole heads; choose a number that divides them",
                c->file, (long long)n->n_heads, size);
}

/* Ranks share a layer by its heads. */
static status check_tensor(const model *m, const config *c) {
    const config_network *n = &c->network;
    if (m->tensor == NULL) return OK;
    int size = m->tensor->size;
    if (is_research(c) || size > HSTU_MAX_PARTS)
        return fail(ERR_UNSUPPORTED,
                    "%s: its layers cannot be cut over ranks; those of NVIDIA-style configs can",
                    c->file);
    int64_t n_columns = n->n_heads / size * n->dim_v;
    if (n->n_heads % size == 0 && !m->be->is_host &&
        n_columns % (m->be->act == ACT_F32 ? 4 : 8) != 0)
        return fail(ERR_UNSUPPORTED,
                    "%s: a rank has %lld columns of v, and a GPU cuts layers where they are a "
                    "multiple of 8; choose other NetworkArgs.kv_channels or fewer ranks",
                    c->file, (long long)n_columns);
    if (n->n_heads % size == 0) return OK;
    return fail(ERR_CONFIG,
                "%s: NetworkArgs.num_attention_heads = %lld does not divide among "
                "TensorModelParallelArgs.tensor_model_parallel_size = %d ranks (of a server: "
                "--tensor-parallel); choose a size that divides the heads, or 1",
                c->file, (long long)n->n_heads, size);
}

static void configure_hstu(const model *m, const config *c, hstu_layer_config *l) {
    const config_network *n = &c->network;
    *l = c->model == MODEL_FUXI ? hstu_layer_fuxi()
         : is_research(c)       ? hstu_layer_research()
                                : hstu_layer_fused();
    l->dim = m->dim;
    l->tensor = m->tensor;
    l->sequence = m->sequence;
    l->n_heads = (int32_t)n->n_heads / (m->tensor != NULL ? m->tensor->size : 1);
    l->dim_qk = (int32_t)n->dim_qk;
    l->dim_v = (int32_t)n->dim_v;
    l->eps = (float)n->norm_epsilon;
    l->scale = (float)(1 / scaling_length(c, m->input.config.n_context));
    l->dropout_rate = (float)n->dropout;
    l->recomputes_norm = n->recomputes_norm;
    l->recomputes_silu = n->recomputes_silu;
    l->is_fp8 = n->is_fp8;
    if (is_research(c)) {
        l->has_silu = n->linear_activation == LINEAR_SILU;
        l->has_bias = n->has_relative_bias;
        l->dim_ffn = (int32_t)(c->model == MODEL_FUXI ? n->ffn_hidden_size : 0);
        l->bias_len = (int32_t)research_length(c, m->input.config.n_context);
    } else {
        l->alpha = (float)(1 / sqrt((double)n->dim_qk));
    }
}

/* SASRec's layers and eSASRec's. */
static status check_softmax_layer(const config_network *n) {
    TRY(check_range("the width of the FFN", n->ffn_hidden_size, 1, MAX_WIDTH));
    if (n->hidden_size % n->n_heads != 0)
        return fail(ERR_CONFIG, "the width of the model does not divide among its heads");
    return OK;
}

static status configure_ligr(const model *m, const config *c, ligr_layer_config *l) {
    const config_network *n = &c->network;
    *l = (ligr_layer_config){.dim = m->dim,
                             .n_heads = (int32_t)n->n_heads,
                             .dim_ffn = (int32_t)n->ffn_hidden_size,
                             .eps = (float)n->norm_epsilon,
                             .dropout_rate = (float)n->dropout};
    return check_softmax_layer(n);
}

static status configure_sasrec(const model *m, const config *c, sasrec_layer_config *l) {
    const config_network *n = &c->network;
    TRY(check_softmax_layer(n));
    bool is_gelu = n->ffn_activation == ACTIVATION_GELU;
    *l = (sasrec_layer_config){.dim = m->dim,
                               .n_heads = (int32_t)n->n_heads,
                               .dim_ffn = (int32_t)n->ffn_hidden_size,
                               .f = is_gelu ? EPILOGUE_GELU : EPILOGUE_RELU,
                               .eps = (float)n->norm_epsilon,
                               .dropout_rate = (float)n->dropout};
    return OK;
}

static status add_layers(model *m, const config *c) {
    layer_config l = {.type = c->model == MODEL_SASREC    ? LAYER_SASREC
                              : c->model == MODEL_ESASREC ? LAYER_LIGR
                                                          : LAYER_HSTU};
    if (l.type == LAYER_SASREC)
        TRY(configure_sasrec(m, c, &l.sasrec));
    else if (l.type == LAYER_LIGR)
        TRY(configure_ligr(m, c, &l.ligr));
    else
        configure_hstu(m, c, &l.hstu);
    TRY(NN_NEW_HOST(&m->memory, &m->layers, m->n_layers));
    m->first_layer_param = m->params.n;
    for (int i = 0; i < m->n_layers; i++) {
        l.path_rate = (float)(c->network.stochastic_depth * (i + 1) / m->n_layers);
        TRY(layer_add_params(&m->layers[i], &l, &m->params, &(layer_place){.index = i}));
    }
    m->n_layer_params = m->params.n - m->first_layer_param;
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
    return ranking_add_params(&m->ranking, &net, is_bits ? LOSS_BITS : LOSS_CLASSES, &m->params);
}

/* The row of the corpus for each item: i - 1 for item i, unless the table is dynamic. */
static status alloc_corpus(model *m, const dynamic_table *items) {
    catalogue *c = &m->corpus;
    int32_t n = c->n = items != NULL ? items->last : m->input.config.n_items;
    TRY(NN_NEW_HOST(&m->memory, &c->item, n));
    TRY(NN_NEW_HOST(&m->memory, &c->row, (int64_t)n + 1));
    for (int32_t i = 0; i <= n; i++)
        c->row[i] = i - 1;
    for (int32_t i = 0; i < n; i++)
        c->item[i] = i + 1;
    if (items != NULL) TRY(NN_NEW(&m->memory, &c->rows, (int64_t)n * m->dim));
    if (!m->retrieval.loss.normalises_items) return OK;
    TRY(NN_NEW(&m->memory, &c->normed, (int64_t)n * m->dim));
    return NN_NEW(&m->memory, &c->scale, n);
}

static double loss_weight(const config_retrieval *r, const char *name) {
    for (size_t i = 0; i < r->loss_weights.n; i++)
        if (strcmp(r->loss_weights.name[i], name) == 0) return r->loss_weights.weight[i];
    return 0;
}

static status add_mol(model *m, const config *c) {
    const config_retrieval *r = &c->retrieval;
    const config_mol *f = &r->mol;
    int64_t n_user = (int64_t)f->user_hash.n, n_logits = f->n_query * f->n_item;
    int64_t most = mol_max_negatives(n_logits > 0 ? n_logits : 1);
    TRY(check_range("the number of tables of users, uid_embedding_hash_sizes,", n_user, 0,
                    MOL_USERS < f->n_query ? MOL_USERS : f->n_query - 1));
    TRY(check_range("the number of logits of a pair", n_logits, 1, 1024));
    if (r->n_negatives < 1 || r->n_negatives > most)
        return fail(ERR_UNSUPPORTED,
                    "%s: a mixture of %lld logits takes 1 to %lld negatives of a position; bind "
                    "train_fn.num_negatives",
                    c->file, (long long)n_logits, (long long)most);
    mol_config own = {.dim = m->dim,
                      .n_query = (int32_t)f->n_query,
                      .n_item = (int32_t)f->n_item,
                      .dim_dot = (int32_t)f->dim,
                      .n_user = (int32_t)n_user,
                      .query = {.hidden = f->query_hidden > 0 ? (int32_t)f->query_hidden : 0,
                                .gate_hidden = (int32_t)f->query_gate,
                                .f = f->query_glu == 0 ? EPILOGUE_GELU : EPILOGUE_SILU,
                                .dropout = (float)f->query_dropout},
                      .item = {.hidden = f->item_hidden > 0 ? (int32_t)f->item_hidden : 0,
                               .gate_hidden = (int32_t)f->item_gate,
                               .f = f->item_glu == 0 ? EPILOGUE_GELU : EPILOGUE_SILU,
                               .dropout = (float)f->item_dropout},
                      .pair_hidden = (int32_t)f->pair_gate,
                      .temperature = (float)f->temperature,
                      .eps = (float)f->epsilon,
                      .user_dropout = (float)f->user_dropout,
                      .pair_dropout = (float)f->pair_gate_dropout,
                      .gate_dropout = (float)f->gate_dropout,
                      .balance = (float)loss_weight(r, "mi_loss"),
                      .user_penalty = (float)loss_weight(r, "uid_embedding_l2_norm")};
    for (int64_t i = 0; i < n_user; i++)
        own.hash[i] = (uint32_t)f->user_hash.item[i];
    m->retrieval.loss.mol = &m->mol;
    return mol_add_params(&m->mol, &own, &m->params);
}

/* Rows of a dynamic table are those of a batch: not the catalogue, and not numbered as items. */
static status check_dynamic_loss(const config *c, const dynamic_table *items) {
    const config_retrieval *r = &c->retrieval;
    if (items == NULL) return OK;
    if (loss_of(r) == LOSS_CATALOGUE || loss_of(r) == LOSS_ALL_ITEMS)
        return fail(ERR_CONFIG,
                    "%s: negatives from the whole catalogue need all rows in every step, but the "
                    "item table '%s' is dynamic; choose negatives of the batch, or a static table",
                    c->file, items->config->table_name);
    if (r->loss == LOSS_GBCE || r->logq != LOGQ_NONE)
        return fail(ERR_CONFIG,
                    "%s: %s needs the whole catalogue, but the item table '%s' is dynamic; choose "
                    "another loss, or a static table",
                    c->file, r->loss == LOSS_GBCE ? "'GBCELoss'" : "logq_correction",
                    items->config->table_name);
    return OK;
}

static status add_retrieval(model *m, const config *c, const model_limits *l) {
    const config_retrieval *r = &c->retrieval;
    const dynamic_table *items = dynamic_find(&m->dynamic, ITEM_FEATURE);
    TRY(check_dynamic_loss(c, items));
    TRY(check_range("the number of negatives", r->n_negatives, -1, 1 << 20));
    if (!(r->temperature > 0) || !(r->norm_epsilon >= 0))
        return fail(ERR_CONFIG, "the temperature must be above 0 and the norm's epsilon not below");
    m->retrieval = (retrieval_head){
        .dim = m->dim,
        .has_layer_norm = is_research(c) && c->network.user_norm == USER_NORM_LAYER,
        .eps = (float)r->norm_epsilon,
        .loss = {.type = loss_of(r),
                 .kind = r->loss == LOSS_BCE    ? PAIRS_BCE
                         : r->loss == LOSS_GBCE ? PAIRS_GBCE
                                                : PAIRS_SOFTMAX,
                 .width = m->dim,
                 .item = m->input.item,
                 .n_items = m->input.config.n_items,
                 .listed = m->input.events.is_listed ? &m->input.events : NULL,
                 .max_labels = (int64_t)l->max_users * l->max_events,
                 .n_negatives = r->n_negatives > 0 ? (int32_t)r->n_negatives : 0,
                 .normalises_items = r->has_item_norm,
                 .eps = (float)r->norm_epsilon,
                 .temperature = (float)r->temperature,
                 .calibration = (float)r->gbce_calibration,
                 .smoothing = (float)r->label_smoothing,
                 .is_shared = r->shares_negatives && loss_of(r) == LOSS_CATALOGUE,
                 .needs_counts = config_needs_popularity(c),
                 .has_log_q = r->logq != LOGQ_NONE,
                 .corrects_positive = r->logq == LOGQ_OF_ALL}};
    if (r->similarity == SIMILARITY_MOL) TRY(add_mol(m, c));
    return alloc_corpus(m, items);
}

/* Last, so that all other parameters have the first values that they have without content. */
static status add_content(model *m, const config *c, const seq_file *data) {
    if (dynamic_find(&m->dynamic, ITEM_FEATURE) != NULL)
        return fail(ERR_CONFIG,
                    "%s: item features need all rows in every step, but the item table is dynamic; "
                    "use a static table, or leave the features out",
                    c->file);
    return content_add_params(&m->content, m->input.item, data, (float)c->network.item_id_dropout,
                              &m->params);
}

/* Contextual tokens see the whole history only where no loss position is in the history. */
static layout_config plan_of(const model *m, const config *c, const model_limits *l) {
    const input_config *in = &m->input.config;
    bool has_candidates = m->is_ranking && c->data.max_candidates > 0;
    bool is_classes = m->is_ranking && m->ranking.loss.type == LOSS_CLASSES;
    return (layout_config){.is_ranking = m->is_ranking,
                           .has_actions = in->n_actions > 0 && !in->adds_actions,
                           .adds_actions = in->adds_actions,
                           .has_candidates = has_candidates,
                           .target_actions = l->target_actions,
                           .has_first_loss =
                               !m->is_ranking && in->n_context > 0 && c->network.has_first_loss,
                           .has_context_mask = has_candidates && in->n_context > 0 &&
                                               !c->network.has_no_contextual_mask,
                           .has_times = m->n_layers > 0 && m->layers[0].needs_times,
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
                           .item_dropout = (float)c->network.item_dropout,
                           .is_merged = m->input.is_merged,
                           .action_row = m->input.action_row,
                           .context_row = m->input.context_row};
}

/* Not with in-batch negatives: their number differs from batch to batch, and with R = 0 so does the
 * number of negatives of each position. */
static bool can_record(const model *m) {
    const loss_config *loss = &m->retrieval.loss;
    return m->is_ranking || loss->type == LOSS_ALL_ITEMS ||
           (loss->type == LOSS_CATALOGUE && loss->n_negatives > 0);
}

/* Fills a zeroed model: its parts and their parameters. */
static status make(model *m, const config *c, const model_limits *limits) {
    int32_t *values;
    model_limits l = *limits;
    TRY(check_network(&c->network));
    TRY(check_limits(c, limits));
    TRY(check_task(c));
    m->is_ranking = c->task == TASK_RANKING;
    m->dim = (int32_t)c->network.hidden_size;
    m->n_layers = (int)c->network.n_layers;
    m->tensor = limits->tensor;
    m->sequence = limits->sequence;
    TRY(check_tensor(m, c));
    TRY(check_fp8(c));
    TRY(check_sequence(m, c));
    TRY(NN_NEW_HOST(&m->memory, &values, l.n_context));
    for (int32_t f = 0; f < l.n_context; f++)
        values[f] = limits->n_context_values[f];
    l.n_context_values = values;
    TRY(dynamic_choose(&m->dynamic, c, &l, values, &m->memory));
    TRY(param_list_init(&m->params, &m->memory,
                        40 + l.n_context + 16 * m->n_layers + 2 * MLP_MAX_LAYERS));
    TRY(add_input(m, c, &l));
    TRY(add_layers(m, c));
    TRY(m->is_ranking ? add_ranking(m, c) : add_retrieval(m, c, &l));
    if (l.content != NULL) TRY(add_content(m, c, l.content));
    m->plan = plan_of(m, c, &l);
    m->can_record = can_record(m);
    return OK;
}

/* The model itself. */

status model_create(model **out, backend *be, const config *c, const model_limits *limits) {
    model *m;
    *out = NULL;
    TRY(MEM_NEW(&m, 1));
    m->be = be;
    nn_memory_init(&m->memory, be);
    range_begin("weights", RANGE_NO_NUMBER);
    status st = make(m, c, limits);
    range_end();
    return CREATED(st, out, m, model_destroy);
}

void model_destroy(model *m) {
    if (m == NULL) return;
    dynamic_fini(&m->dynamic);
    nn_memory_fini(&m->memory);
    mem_free(m);
}

param *model_params(model *m, int *n) {
    *n = m->params.n;
    return m->params.item;
}

status model_alloc_grads(model *m) {
    range_begin("gradients", RANGE_NO_NUMBER);
    status st = param_list_alloc_grads(&m->params);
    if (st == OK) st = input_alloc_grads(&m->input, &m->memory);
    range_end();
    TRY(st);
    for (int i = 0; i < m->dynamic.n_all; i++) {
        dynamic_table *t = &m->dynamic.item[i];
        dynamic_set_grad(t, input_rows(&m->input, t->feature));
    }
    return OK;
}

status model_pack_layers(model *m) {
    bool is_packed = m->be->act != ACT_F32;
    if (m->has_packed_layers) return OK;
    m->has_packed_layers = true;
    for (int i = 0; i < m->n_layers; i++) {
        hstu_layer *l = &m->layers[i].hstu;
        if (m->layers[i].kind != &hstu_layer_kind) continue;
        if (is_packed || l->config.is_fp8) TRY(hstu_layer_pack(l, &m->memory));
        if (i == m->n_layers - 1) TRY(hstu_layer_split(l, &m->memory));
    }
    return OK;
}

status model_pack(model *m) {
    bool is_packed = m->be->act != ACT_F32;
    TRY(dynamic_freeze(&m->dynamic, &m->input, &m->memory, &m->plan.items, &m->plan.contexts));
    TRY(model_pack_layers(m));
    return m->is_ranking && is_packed ? mlp_pack(&m->ranking.net, &m->memory) : OK;
}

param_range model_dense_grads(model *m) {
    return m->params.dense_grads;
}

param_range model_layer_grads(model *m) {
    if (m->n_layer_params == 0) return (param_range){0};
    const param *first = &m->params.item[m->first_layer_param];
    const param *last = first + m->n_layer_params - 1;
    return (param_range){first->grad, last->grad + last->n - first->grad};
}

int model_n_layers(const model *m) {
    return m->n_layers;
}

/* Where the gradients of parameter i begin among the dense ones; tables have theirs elsewhere. */
static float *dense_grad(const model *m, int i) {
    const param_range *all = &m->params.dense_grads;
    while (i < m->params.n && m->params.item[i].is_table)
        i++;
    return i < m->params.n ? m->params.item[i].grad : all->first + all->n;
}

/* Every layer has the same number of parameters. */
param_range model_part_grads(model *m, int part) {
    int n = m->n_layers, each = n > 0 ? m->n_layer_params / n : 0;
    float *first =
        part < 0 ? m->params.dense_grads.first : dense_grad(m, m->first_layer_param + part * each);
    float *end = part < n ? dense_grad(m, m->first_layer_param + (part + 1) * each)
                          : m->params.dense_grads.first + m->params.dense_grads.n;
    return (param_range){first, end - first};
}

int model_listed_banks(model *m, bank *out[2]) {
    int n = 0;
    if (m->input.events.is_listed) out[n++] = &m->input.events;
    if (m->input.contexts.is_listed) out[n++] = &m->input.contexts;
    return n;
}

status model_read_listed(model *m, const param *p, float *to_host) {
    bank *listed[2];
    int n = model_listed_banks(m, listed);
    memset(to_host, 0, (size_t)p->n * sizeof *to_host);
    for (int i = 0; i < n; i++) {
        const bank *b = listed[i];
        int64_t first = (p->value - b->value) / b->dim;
        for (int64_t k = 0; k < b->step.n; k++) {
            int32_t row;
            TRY(m->be->ops->copy_out(m->be, &row, b->step.rows + k, sizeof row));
            if (row < first || row >= first + p->shape[0]) continue;
            TRY(m->be->ops->copy_out(m->be, to_host + (row - first) * b->dim,
                                     b->step.grad + k * b->dim, (size_t)b->dim * sizeof(float)));
        }
    }
    return OK;
}

dynamic_tables *model_tables(model *m) {
    return &m->dynamic;
}

param *model_rows(model *m, int32_t feature) {
    if (feature >= m->input.config.n_context || dynamic_find(&m->dynamic, feature) != NULL)
        return NULL;
    return input_rows(&m->input, feature);
}

param *model_action_rows(model *m) {
    return m->input.action;
}

status model_init(model *m, uint64_t seed) {
    TRY(dynamic_clear(&m->dynamic));
    TRY(param_list_start(&m->params, seed));
    return content_start(&m->content);
}

content_rows *model_content(model *m) {
    return &m->content;
}

/* Items that training never sees are no negatives: nothing would ever pull them back. */
status model_set_warm(model *m, const uint8_t *is_warm) {
    content_rows *c = &m->content;
    if (c->item == NULL) return OK;
    TRY(content_set_warm(c, is_warm));
    m->retrieval.loss.pool = c->n_warm < c->args.n ? c->warm : NULL;
    m->retrieval.loss.n_pool = c->n_warm;
    return content_make(c);
}

/* A pool in which every item has as many places as training events, at least one if it has any: in
 * proportion where that were too many.  Returns its places. */
static int64_t fill_places(const uint32_t *counts, int64_t n_items, int32_t *places) {
    enum { MOST = 1 << 20 };
    double total = 0, most = n_items > MOST / 2 ? (double)n_items : (double)MOST - (double)n_items;
    int64_t n = 0;
    for (int64_t i = 0; i < n_items; i++)
        total += counts[i];
    for (int64_t i = 0; i < n_items; i++) {
        double place = total > most ? floor(counts[i] * (most / total)) : counts[i];
        places[i] = counts[i] == 0 ? 0 : place < 1 ? 1 : (int32_t)place;
        n += places[i];
    }
    return n;
}

/* An item without events is never a label and never drawn; its logarithm is not used. */
static status set_log_q(model *m, const int32_t *places, int64_t n_places, double n_draws) {
    loss_config *loss = &m->retrieval.loss;
    staged_f32 log_q;
    TRY(STAGED_NEW(&m->memory, &log_q, loss->n_items));
    for (int32_t i = 0; i < loss->n_items; i++)
        log_q.host[i] = places[i] > 0 ? (float)log(n_draws * places[i] / (double)n_places) : 0;
    loss->log_q = log_q.device;
    loss->host_log_q = log_q.host;
    return STAGED_SEND(m->be, &log_q, loss->n_items);
}

static status set_pool(model *m, const int32_t *places, int64_t n_places) {
    loss_config *loss = &m->retrieval.loss;
    staged_i32 list;
    int32_t at = 0;
    TRY(STAGED_NEW(&m->memory, &list, n_places));
    for (int32_t i = 0; i < loss->n_items; i++)
        for (int32_t k = 0; k < places[i]; k++)
            list.host[at++] = i;
    loss->pool = list.device;
    loss->n_pool = at;
    return STAGED_SEND(m->be, &list, n_places);
}

bool model_needs_counts(const model *m) {
    return !m->is_ranking && m->retrieval.loss.needs_counts;
}

status model_set_counts(model *m, const uint32_t *counts) {
    loss_config *loss = &m->retrieval.loss;
    int32_t *places;
    if (!model_needs_counts(m)) return OK;
    TRY(NN_NEW_HOST(&m->memory, &places, loss->n_items));
    int64_t n = fill_places(counts, loss->n_items, places);
    if (n == 0) return fail(ERR_CONFIG, "no item has a training event to draw negatives by");
    bool is_drawn = loss->type == LOSS_CATALOGUE;
    if (is_drawn) TRY(set_pool(m, places, n));
    return loss->has_log_q ? set_log_q(m, places, n, is_drawn ? loss->n_negatives : 1) : OK;
}

comm *model_tensor(const model *m) {
    return m->tensor;
}

int64_t model_count_loss(const model *m, const batch *b) {
    return batch_layout_count_loss(&m->plan, b);
}

status model_corpus(model *m, model_items *out) {
    const catalogue *c = &m->corpus;
    const loss_config *loss = &m->retrieval.loss;
    if (m->is_ranking) return fail(ERR_CONFIG, "a ranking model has no corpus to search in");
    *out = (model_items){.n = c->n, .item = c->item, .row = c->row};
    if (c->rows != NULL) TRY(dynamic_read_items(&m->dynamic, c->rows, c->item, c->row, &out->n));
    const float *rows = c->rows != NULL ? c->rows : m->input.item->value + m->dim;
    out->rows = c->normed != NULL ? c->normed : rows;
    if (c->normed == NULL) return OK;
    if (c->mapped != NULL) {
        out->rows = c->mapped;
        return OK;
    }
    l2_args l2 = {.n = out->n,
                  .dim = m->dim,
                  .is_f32 = true,
                  .eps = loss->eps,
                  .x = rows,
                  .y = c->normed,
                  .scale = c->scale};
    return m->be->ops->l2_fwd(m->be, &l2);
}

bool model_can_map_items(const model *m) {
    const input *in = &m->input;
    return !m->is_ranking && m->be->card == NULL && m->corpus.rows == NULL && in->is_merged &&
           in->events.n_rows == in->config.n_items + 1;
}

bool model_normalises_items(const model *m) {
    return m->corpus.normed != NULL;
}

const param *model_item_param(const model *m) {
    return m->input.item;
}

/* Nothing writes to parameters without training. */
void model_map_items(model *m, const float *rows, const float *normed) {
    m->input.item->value = m->input.events.value = (float *)(uintptr_t)rows;
    m->corpus.mapped = normed;
}

int32_t model_dim(const model *m) {
    return m->dim;
}

int64_t model_n_numbers(const model *m) {
    return m->params.n_numbers;
}

uint64_t model_memory_bytes(const model *m) {
    return m->memory.device_bytes;
}
