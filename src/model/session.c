#include "model/session.h"

enum { MAX_SLOTS = 8, BITS_OF_ACTIONS = 8 };

static status check_sizes(const session *s) {
    if (s->data->n_items >= INT32_MAX - 1)
        return fail(ERR_CONFIG, "%s: %llu items; at most %d can be trained", s->data->path,
                    (unsigned long long)s->data->n_items, INT32_MAX - 2);
    return OK;
}

/* For codes of a source, unless a vocabulary says how many, the largest one must be searched. */
int32_t session_count_actions(const seq_file *data) {
    uint16_t most = 0;
    if (data->n_actions > 0) return data->n_actions;
    switch (data->actions) {
    case ACTION_NONE:
        return 0;
    case ACTION_STARS:
        return 5;
    case ACTION_HALF_STARS:
        return 10;
    case ACTION_BITS:
        return 1 << BITS_OF_ACTIONS;
    case ACTION_CODE:
        break;
    }
    for (uint64_t i = 0; i < data->n_events; i++)
        if (data->action[i] > most && data->action[i] != ACTION_UNKNOWN) most = data->action[i];
    return most + 1;
}

/* Ranking learns from actions: they must be there, and of the kind the head predicts. */
static status check_ranking(const session *s) {
    const config_ranking *r = &s->config->ranking;
    int64_t width = r->head.item[r->head.n - 1];
    bool is_bits = width == r->n_tasks, has_bits = s->data->actions == ACTION_BITS;
    const char *path = s->data->path, *file = s->config->file;
    if (s->data->actions == ACTION_NONE)
        return fail(ERR_CONFIG,
                    "%s: its events carry no actions, and ranking learns from them; use data with "
                    "ratings or signals, or a retrieval config",
                    path);
    if (is_bits && has_bits && r->n_tasks > BITS_OF_ACTIONS)
        return fail(ERR_CONFIG,
                    "%s: RankingArgs.num_tasks = %lld, but the actions of %s have %d "
                    "signals",
                    file, (long long)r->n_tasks, path, BITS_OF_ACTIONS);
    if (is_bits && !has_bits && s->data->actions != ACTION_CODE)
        return fail(ERR_CONFIG,
                    "%s: the head predicts %lld signal%s, but the actions of %s are ratings; end "
                    "RankingArgs.prediction_head_arch with %d (the classes), num_tasks = 1",
                    file, (long long)r->n_tasks, r->n_tasks == 1 ? "" : "s", path,
                    s->limits.n_actions);
    if (!is_bits && width < s->limits.n_actions)
        return fail(ERR_CONFIG,
                    "%s: the head predicts %lld classes, but the actions of %s have %d; end "
                    "RankingArgs.prediction_head_arch with at least %d",
                    file, (long long)width, path, s->limits.n_actions, s->limits.n_actions);
    return OK;
}

static void set_limits(session *s, int32_t max_users) {
    const config *c = s->config;
    bool is_ranking = c->task == TASK_RANKING;
    s->max_history = (int32_t)c->data.max_history;
    s->max_targets = is_ranking ? (int32_t)c->data.max_candidates : 1;
    for (int f = 0; f < s->data->n_context; f++) {
        s->n_context_values[f] = (int32_t)s->data->context[f].values.n;
        s->context_names[f] = s->data->context[f].name;
    }
    s->limits =
        (model_limits){.n_items = (int32_t)s->data->n_items,
                       .n_actions = config_reads_actions(c) ? session_count_actions(s->data) : 0,
                       .n_context = config_reads_context(c) ? s->data->n_context : 0,
                       .n_context_values = s->n_context_values,
                       .context_names = s->context_names,
                       .content = s->has_content ? s->data : NULL,
                       .max_users = max_users,
                       .max_events = s->max_history + s->max_targets,
                       .time_per_second = s->data->time_per_second,
                       .tensor = s->tensor,
                       .sequence = s->sequence,
                       .comm = s->comm,
                       .has_bf16_wire = s->has_bf16_wire};
}

static const act_type act_of[] = {[DTYPE_FLOAT32] = ACT_F32,
                                  [DTYPE_TF32] = ACT_F32,
                                  [DTYPE_BFLOAT16] = ACT_BF16,
                                  [DTYPE_FLOAT16] = ACT_F16};

/* Users of a batch of training and of evaluation. */
static void set_batches(session *s) {
    const config_trainer *c = &s->config->trainer;
    s->train_batch = (int32_t)(c->train_batch_size * c->batch_ranks);
    s->eval_batch = (int32_t)c->eval_batch_size;
    if (c->eval_user_max_batch_size != CONFIG_NONE && c->eval_user_max_batch_size < s->eval_batch)
        s->eval_batch = (int32_t)c->eval_user_max_batch_size;
}

static status choose_targets(session *s) {
    status st =
        seq_actions_parse(s->data, s->config->network.target_actions, &s->limits.target_actions);
    if (st == OK && s->limits.target_actions != 0 && s->config->task == TASK_RANKING)
        st = fail(ERR_CONFIG, "they are for retrieval; ranking learns all actions");
    return st == OK ? OK : fail_prefix(st, "target actions");
}

status session_seen(const session *s, const char *text, seen_rule *out) {
    const char *targets = s->config->network.target_actions;
    bool has_targets = targets != NULL && targets[0] != '\0';
    *out = (seen_rule){.keeps_all = text != NULL ? strcmp(text, "none") == 0 : has_targets};
    if (text == NULL || out->keeps_all || strcmp(text, "all") == 0) return OK;
    status st = seq_actions_parse(s->data, text, &out->actions);
    return st == OK ? OK : fail_prefix(st, "seen items (all, none, or actions)");
}

/* A model for batches of so many users. */
static status open_model(session *s, int32_t max_users, bool can_list) {
    const config *c = s->config;
    backend *be = s->be;
    TRY(config_check_trainable(c));
    TRY(check_sizes(s));
    set_limits(s, max_users);
    if (can_list) TRY(choose_targets(s));
    s->limits.can_list = can_list;
    if (c->task == TASK_RANKING) TRY(check_ranking(s));
    config_dtype dtype = c->network.dtype;
    TRY(be->ops->set_precision(be, act_of[dtype], c->network.has_tf32 || dtype == DTYPE_TF32));
    if (c->network.is_fp8 && be->is_host)
        log_info("note: the CPU rounds as fp8 products do and computes in float32; to serve from a "
                 "CPU, build with --dtype float32");
    else if (act_of[dtype] != be->act)
        log_info("note: the CPU computes in float32; the config's %s is kept for a GPU",
                 dtype == DTYPE_BFLOAT16 ? "bfloat16" : "float16");
    status st = model_create(&s->model, be, c, &s->limits);
    if (st == OK) s->params = model_params(s->model, &s->n_params);
    return st;
}

status session_open_ranks(session *s, const config *c, const seq_file *data, backend *be,
                          const session_ranks *ranks) {
    *s = (session){.config = c,
                   .data = data,
                   .be = be,
                   .comm = ranks->data,
                   .tensor = ranks->tensor,
                   .sequence = ranks->sequence,
                   .world = ranks->world,
                   .has_bf16_wire = ranks->has_bf16_wire};
    set_batches(s);
    s->has_content = c->network.has_item_features && content_is_there(data);
    /* Evaluation has its own pass (evaluate.h), possibly for more users. */
    bool is_alone = comm_size(s->comm) == 1 && s->tensor == NULL && s->sequence == NULL &&
                    c->trainer.accumulation_steps == 1;
    TRY(open_model(s, s->train_batch > s->eval_batch ? s->train_batch : s->eval_batch,
                   !ranks->sums_whole && (be->is_host || is_alone)));
    /* A rank trains on a part of each batch at a time (dist/leaf_step.h). */
    int n_ranks = s->comm != NULL ? s->comm->size : 1;
    pass_config train = {.max_users = s->train_batch,
                         .is_training = true,
                         .max_events = n_ranks > 1 ? session_part_events(s, n_ranks) : 0};
    return pass_create(&s->train, s->model, &train);
}

status session_open(session *s, const config *c, const seq_file *data, backend *be) {
    return session_open_ranks(s, c, data, be, &(session_ranks){0});
}

status session_open_inference(session *s, const config *c, const seq_file *data, backend *be,
                              int32_t max_users, comm *tensor) {
    *s = (session){.config = c, .data = data, .be = be, .tensor = tensor};
    set_batches(s);
    return open_model(s, max_users > 0 ? max_users : s->eval_batch, false);
}

void session_close(session *s) {
    pass_destroy(s->train);
    model_destroy(s->model);
    s->train = NULL;
    s->model = NULL;
}

uint64_t session_memory_bytes(const session *s) {
    return model_memory_bytes(s->model) + (s->train != NULL ? pass_memory_bytes(s->train) : 0);
}

split_rule session_split(const config *c, bool has_validation) {
    if (has_validation) return split_rule_of(SPLIT_LEAVE_TWO_OUT);
    return split_rule_of(c->family == FAMILY_META ? SPLIT_LEAVE_ONE_OUT : SPLIT_BY_USER);
}

status session_check_split(const session *s, const split_rule *rule) {
    if (s->max_targets > 0 || rule->kind == SPLIT_BY_USER || rule->kind == SPLIT_NONE) return OK;
    return fail(ERR_CONFIG,
                "%s: ranking without candidates scores every event of a user, those of training "
                "included; hold out whole users (--split by-user), or set max_num_candidates",
                s->config->file);
}

batcher_config session_train_batches(const session *s, split_rule rule, uint64_t seed) {
    const config *c = s->config;
    batcher_config b = batcher_config_default();
    b.split = rule;
    b.part = PART_TRAIN;
    b.split_seed = SESSION_SPLIT_SEED;
    b.seed = seed;
    b.batch_size = s->train_batch;
    b.max_history = s->max_history;
    b.max_targets = s->max_targets;
    b.n_micro = (int32_t)c->trainer.accumulation_steps;
    b.is_shuffled = c->data.is_shuffled;
    b.is_balanced = c->trainer.is_balanced;
    b.drops_last = c->data.drops_last;
    /* Making batches is a small part of a step on the CPU: one thread is enough. */
    b.n_threads = c->data.n_workers == 0 ? 0 : 1;
    b.n_slots = c->data.prefetch_factor < 2           ? 2
                : c->data.prefetch_factor > MAX_SLOTS ? MAX_SLOTS
                                                      : (int)c->data.prefetch_factor;
    return b;
}

batcher_config session_eval_batches(const session *s, split_rule rule, split_part part) {
    batcher_config b = session_train_batches(s, rule, 0);
    b.part = part;
    b.batch_size = s->eval_batch;
    b.n_micro = 1;
    b.is_shuffled = b.is_balanced = b.drops_last = false;
    b.n_threads = 0;
    return b;
}

/* counts (V): the training events of each item. */
static void count_events(const session *s, split_rule rule, uint32_t *counts) {
    split sp = split_make(s->data, rule, SESSION_SPLIT_SEED);
    event_range range;
    for (uint64_t u = 0; u < s->data->n_users; u++)
        if (split_range(&sp, PART_TRAIN, u, &range))
            for (uint64_t e = range.begin; e < range.end; e++)
                counts[s->data->item[e] - 1]++;
}

status session_set_items(session *s, split_rule rule) {
    uint32_t *counts;
    uint8_t *is_warm = NULL;
    if (!s->has_content && !model_needs_counts(s->model)) return OK;
    TRY(MEM_NEW(&counts, (size_t)s->data->n_items));
    count_events(s, rule, counts);
    status st = s->has_content ? MEM_NEW(&is_warm, (size_t)s->data->n_items) : OK;
    for (uint64_t i = 0; st == OK && is_warm != NULL && i < s->data->n_items; i++)
        is_warm[i] = counts[i] > 0;
    if (st == OK && is_warm != NULL) st = model_set_warm(s->model, is_warm);
    if (st == OK) st = model_set_counts(s->model, counts);
    MEM_FREE(is_warm, counts);
    return st;
}

uint64_t session_epoch_tokens(const session *s, split_rule rule) {
    split sp = split_make(s->data, rule, SESSION_SPLIT_SEED);
    uint64_t n = 0, most = (uint64_t)s->max_history + (uint64_t)s->max_targets;
    event_range range;
    for (uint64_t u = 0; u < s->data->n_users; u++)
        if (split_range(&sp, PART_TRAIN, u, &range))
            n += range.end - range.begin < most ? range.end - range.begin : most;
    return n;
}
