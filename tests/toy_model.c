#include "toy_model.h"

#include "device.h"
#include "test.h"

const char *toy_kind_name(toy_kind kind) {
    static const char *const name[] = {"hstu-research", "sasrec",    "own",
                                       "retrieval",     "rank bits", "rank classes",
                                       "rank mlp",      "fuxi",      "esasrec"};
    return name[kind];
}

static bool is_ranking(toy_kind kind) {
    return kind == TOY_RANK_BITS || kind == TOY_RANK_CLASSES || kind == TOY_RANK_MLP;
}

static int n_targets(toy_kind kind) {
    return !is_ranking(kind) ? 1 : kind == TOY_RANK_CLASSES ? 0 : 3;
}

config toy_model_config(toy_kind kind, double rate) {
    static int64_t bits[] = {12, 3}, classes[] = {8};
    bool is_meta = kind == TOY_HSTU_RESEARCH || kind == TOY_SASREC || kind == TOY_OWN ||
                   kind == TOY_FUXI || kind == TOY_ESASREC;
    config c = {.family = is_meta ? FAMILY_META : FAMILY_NVIDIA,
                .task = is_ranking(kind) ? TASK_RANKING : TASK_RETRIEVAL,
                .model = kind == TOY_SASREC    ? MODEL_SASREC
                         : kind == TOY_FUXI    ? MODEL_FUXI
                         : kind == TOY_ESASREC ? MODEL_ESASREC
                         : is_meta             ? MODEL_HSTU_RESEARCH
                                               : MODEL_HSTU};
    c.data.max_history = TOY_EVENTS - n_targets(kind);
    c.data.max_candidates = is_ranking(kind) ? n_targets(kind) : 0;
    c.network = (config_network){.n_layers = 2,
                                 .hidden_size = 12,
                                 .n_heads = 2,
                                 .dim_qk = 6,
                                 .dim_v = 6,
                                 .input_dropout = rate,
                                 .dropout = rate,
                                 .stochastic_depth = rate,
                                 .norm_epsilon = is_meta ? 1e-6 : 1e-5,
                                 .is_causal = true,
                                 .target_group_size = 1,
                                 .n_position_buckets = 40,
                                 .item_dim = kind == TOY_RANK_MLP ? 5 : -1,
                                 .contextual_dim = kind == TOY_RANK_MLP ? 7 : -1,
                                 .scaling_length = -1,
                                 .output_length = 2,
                                 .ffn_hidden_size = 10,
                                 .ffn_activation = ACTIVATION_GELU,
                                 .has_relative_bias = true};
    c.network.has_user_features = c.network.has_action_input = kind == TOY_OWN;
    c.network.has_first_loss = kind == TOY_OWN;
    c.ranking = (config_ranking){
        .head = {kind == TOY_RANK_CLASSES ? classes : bits, kind == TOY_RANK_CLASSES ? 1 : 2},
        .activation = ACTIVATION_GELU,
        .has_bias = true,
        .n_tasks = kind == TOY_RANK_CLASSES ? 1 : 3};
    c.retrieval = (config_retrieval){.n_negatives = 5,
                                     .temperature = 1,
                                     .norm_epsilon = 1e-6,
                                     .negatives = is_meta ? NEGATIVES_LOCAL : NEGATIVES_IN_BATCH,
                                     .has_item_norm = true};
    return c;
}

model_limits toy_model_limits(toy_kind kind) {
    static const int32_t values[TOY_FEATURES] = {4, 9};
    return (model_limits){.n_items = TOY_ITEMS,
                          .n_actions = is_ranking(kind) || kind == TOY_OWN ? TOY_ACTIONS : 0,
                          .n_context = TOY_FEATURES,
                          .n_context_values = values,
                          .max_users = TOY_USERS,
                          .max_events = TOY_EVENTS,
                          .time_per_second = 1000};
}

void toy_model_open(toy_model *t, toy_kind kind, double rate, int n_threads) {
    pool *workers;
    backend *be;
    CHECK_OK(pool_create(&workers, n_threads));
    CHECK_OK(test_backend(&be, workers));
    toy_model_open_on(t, kind, rate, be);
    t->workers = workers;
}

void toy_model_open_on(toy_model *t, toy_kind kind, double rate, backend *be) {
    model_limits limits = toy_model_limits(kind);
    t->c = toy_model_config(kind, rate);
    t->be = be;
    t->workers = NULL;
    t->m = NULL;
    t->p = NULL;
    toy_model_remake(t, &limits, 77);
}

void toy_model_remake(toy_model *t, const model_limits *limits, uint64_t seed) {
    pass_config c = {.max_users = limits->max_users, .is_training = true};
    pass_destroy(t->p);
    model_destroy(t->m);
    CHECK_OK(model_create(&t->m, t->be, &t->c, limits));
    CHECK_OK(pass_create(&t->p, t->m, &c));
    CHECK_OK(model_init(t->m, seed));
}

void toy_model_close(toy_model *t) {
    pass_destroy(t->p);
    model_destroy(t->m);
    backend_destroy(t->be);
    pool_destroy(t->workers);
}

static uint32_t draw(uint64_t seed, uint32_t what, uint32_t i, uint32_t n) {
    return rng_below(rng_draw(rng_make_key(seed, RNG_TEST), what, i, 0, 0).word[0], n);
}

static void point(toy_batch *t) {
    t->b = (batch){.n_context = TOY_FEATURES,
                   .offsets = t->offsets,
                   .users = t->users,
                   .n_targets = t->n_targets,
                   .item = t->item,
                   .action = t->action,
                   .time = t->time,
                   .context = t->context};
}

void toy_batch_make(toy_batch *t, toy_kind kind, uint64_t seed) {
    static const int32_t length[TOY_USERS] = {2, 1, 5, TOY_EVENTS, 9, 3};
    memset(t, 0, sizeof *t);
    point(t);
    for (int u = 0; u < TOY_USERS; u++) {
        t->users[u] = 1000 + 7 * (uint64_t)u;
        t->n_targets[u] = length[u] > n_targets(kind) ? n_targets(kind) : length[u] - 1;
        t->offsets[u + 1] = t->offsets[u] + length[u];
        for (uint32_t f = 0; f < TOY_FEATURES; f++)
            t->context[u * TOY_FEATURES + (int)f] = draw(seed, 100 + f, (uint32_t)u, 4);
    }
    t->b.n_users = TOY_USERS;
    t->b.n_tokens = t->offsets[TOY_USERS];
    int64_t time = 978300000000;
    for (int32_t i = 0; i < t->b.n_tokens; i++) {
        t->item[i] = 1 + draw(seed, 1, (uint32_t)i, TOY_ITEMS);
        t->action[i] = (uint16_t)draw(seed, 2, (uint32_t)i, TOY_ACTIONS);
        t->time[i] = time += 1000 * (int64_t)draw(seed, 3, (uint32_t)i, 100000);
    }
}

void toy_batch_take(toy_batch *t, const toy_batch *from, int user) {
    int32_t first = from->offsets[user], n = from->offsets[user + 1] - first;
    memset(t, 0, sizeof *t);
    point(t);
    t->b.n_users = 1;
    t->b.n_tokens = t->offsets[1] = n;
    t->users[0] = from->users[user];
    t->n_targets[0] = from->n_targets[user];
    memcpy(t->item, from->item + first, (size_t)n * sizeof *t->item);
    memcpy(t->action, from->action + first, (size_t)n * sizeof *t->action);
    memcpy(t->time, from->time + first, (size_t)n * sizeof *t->time);
    memcpy(t->context, from->context + user * TOY_FEATURES, TOY_FEATURES * sizeof *t->context);
}

double toy_model_train(toy_model *t, const batch *b, uint32_t step) {
    model_step at = {5, step, 1};
    double loss = 0;
    CHECK_OK(param_list_clear_grads(&t->m->params));
    CHECK_OK(pass_train(t->p, b, &at, NULL));
    CHECK_OK(pass_take_loss(t->p, &loss));
    return loss;
}

float *toy_model_hidden(toy_model *t, int64_t *n) {
    *n = (int64_t)t->p->plan.n_tokens * t->m->dim;
    float *out = malloc((size_t)*n * sizeof *out + 1);
    CHECK(out != NULL);
    CHECK_OK(
        t->be->ops->copy_out(t->be, out, t->p->hidden[t->m->n_layers], (size_t)*n * sizeof *out));
    return out;
}

double toy_direction(const float *grad, int64_t n, uint64_t seed, double *direction) {
    double length = 0, slope = 0, norm = 0;
    for (int64_t k = 0; k < n; k++)
        length += (double)grad[k] * (double)grad[k];
    length = sqrt(length);
    for (int64_t k = 0; k < n; k++) {
        rng_block w = rng_draw64(rng_make_key(seed, RNG_TEST), (uint64_t)k, 1);
        double random = (2 * (double)rng_uniform(w.word[0]) - 1) * sqrt(3.0 / (double)n);
        direction[k] = (double)grad[k] / length + random;
        norm += direction[k] * direction[k];
    }
    for (int64_t k = 0; k < n; k++) {
        direction[k] /= sqrt(norm);
        slope += direction[k] * (double)grad[k];
    }
    return slope;
}

void toy_enlarge(toy_model *t) {
    for (int i = 0; i < t->m->params.n; i++) {
        param *p = &t->m->params.item[i];
        for (int64_t k = 0; k < p->n; k++) {
            rng_block w = rng_draw64(rng_make_key(3, RNG_TEST), (uint64_t)k, (uint64_t)i);
            p->value[k] += 0.4f * (2 * rng_uniform(w.word[0]) - 1);
        }
    }
}

/* The loss with a parameter moved by h along a direction. */
static double loss_at(toy_model *t, const batch *b, param *p, const float *from,
                      const double *direction, double h) {
    for (int64_t k = 0; k < p->n; k++)
        p->value[k] = (float)((double)from[k] + h * direction[k]);
    return toy_model_train(t, b, 9);
}

void toy_check_gradient(toy_model *t, const batch *b, param *p, double h) {
    size_t bytes = (size_t)p->n * sizeof(float);
    float *from = malloc(bytes), *grad = malloc(bytes);
    double *direction = malloc((size_t)p->n * sizeof *direction);
    CHECK(from != NULL && grad != NULL && direction != NULL);
    toy_model_train(t, b, 9);
    memcpy(from, p->value, bytes);
    memcpy(grad, p->grad, bytes);
    double slope = toy_direction(grad, p->n, 11, direction);
    double got =
        (8 * (loss_at(t, b, p, from, direction, h) - loss_at(t, b, p, from, direction, -h)) -
         loss_at(t, b, p, from, direction, 2 * h) + loss_at(t, b, p, from, direction, -2 * h)) /
        (12 * h);
    if (!(fabs(got - slope) <= 0.02 * fabs(slope) + 2e-3))
        FAIL_TEST("%s: the slope is %g, the gradient says %g", p->name, got, slope);
    memcpy(p->value, from, bytes);
    free(from);
    free(grad);
    free(direction);
}
