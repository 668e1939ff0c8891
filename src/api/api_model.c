/* The models of hstu.h: over model/trained.h recommending, scoring, encoding and embeddings;
 * training as `hstu train` does it, with the lines of its log passed to a callback. */
#include <signal.h>

#include "api/api_int.h"
#include "config/config.h"
#include "hstu.h"
#include "model/checkpoint_load.h"
#include "model/trained.h"
#include "model/user_group.h"
#include "nn/input.h"
#include "train/files/run_config.h"
#include "train/loop/trainer.h"

enum { MAX_HISTORY = 1 << 27 }; /* events: far beyond any, to catch a length that is garbage */

typedef struct api_model {
    pool *workers;
    backend *be;
    seq_file *data; /* as opened; t.session.data is it in the numbering of the model */
    trained t;
    /* Of the last call, for the next one with the same settings. */
    user_group *recommender;
    int32_t k, keeps_seen;
    score_columns columns; /* of hstu_model_score */
} api_model;

_Static_assert((int)HSTU_MAX_K == (int)INFER_MAX_K, "the longest list is in hstu.h");

static void destroy_model(void *object) {
    api_model *m = object;
    user_group_destroy(m->recommender);
    score_columns_fini(&m->columns);
    trained_close(&m->t);
    seq_file_close(m->data);
    backend_destroy(m->be);
    pool_destroy(m->workers);
    mem_free(m);
}

const handle_type api_model_type = {"model", destroy_model, .survives_fork = false};

const seq_file *api_model_file(const void *object) {
    return ((const api_model *)object)->t.session.data;
}

void hstu_model_close(hstu_model *m) {
    handle_close(m, &api_model_type);
}

static status open_model(api_model *m, const char *run, const char *data, const char *device) {
    TRY(api_begin());
    TRY(api_need(run, "run"));
    TRY(pool_create_default(&m->workers));
    TRY(api_backend(&m->be, m->workers, device));
    if (data != NULL) TRY(seq_file_open(&m->data, data, m->workers));
    TRY(trained_open(&m->t, run, m->data, m->be, 0));
    return score_columns_init(&m->columns, &m->t.session);
}

hstu_status hstu_model_open(hstu_model **out, const char *run, const char *data,
                            const char *device) {
    api_model *m;
    API_TRY(api_need(out, "out"));
    *out = NULL;
    API_TRY(MEM_NEW(&m, 1));
    return (hstu_status)handle_open(out, &api_model_type, m, open_model(m, run, data, device));
}

/* The rows of items that are scored have the width of the table. */
static int32_t item_dim(const api_model *m) {
    const param *rows = model_rows(m->t.session.model, ITEM_FEATURE);
    return rows != NULL ? (int32_t)rows->shape[1] : model_dim(m->t.session.model);
}

static hstu_model_info info_of(const api_model *m) {
    const session *s = &m->t.session;
    return (hstu_model_info){.users = s->data->n_users,
                             .items = s->data->n_items,
                             .parameters = model_n_numbers(s->model),
                             .step = m->t.origin.step,
                             .dim = model_dim(s->model),
                             .item_dim = item_dim(m),
                             .n_scores = m->columns.n,
                             .is_retrieval = s->config->task == TASK_RETRIEVAL};
}

hstu_status hstu_model_get_info(const hstu_model *m, hstu_model_info *out) {
    handle *h;
    API_TRY(api_need(out, "out"));
    *out = (hstu_model_info){0};
    status st = handle_hold(&h, m, &api_model_type);
    if (st == OK) *out = info_of(handle_object(h));
    return handle_release(h, st);
}

/* The same handle: the functions of data take it for the model's file. */
const hstu_data *hstu_model_data(const hstu_model *m) {
    handle *h;
    status st = handle_hold(&h, m, &api_model_type);
    handle_release(h, st);
    return st == OK ? (const hstu_data *)m : NULL;
}

static const char *score_name(const score_columns *c, int32_t i) {
    return i >= 0 && i < c->n ? c->names[i] : NULL;
}

const char *hstu_model_score_name(const hstu_model *m, int32_t i) {
    handle *h;
    status st = handle_hold(&h, m, &api_model_type);
    const char *name = st == OK ? score_name(&((api_model *)handle_object(h))->columns, i) : NULL;
    handle_release(h, st);
    return name;
}

static status check_users(const api_model *m, const uint64_t *users, uint64_t n) {
    uint64_t n_users = m->t.session.data->n_users;
    if (n > 0) TRY(api_need(users, "users"));
    for (uint64_t i = 0; i < n; i++)
        if (users[i] >= n_users)
            return fail(ERR_USAGE, "user %" PRIu64 " is out of range: there are %" PRIu64, users[i],
                        n_users);
    return OK;
}

/* Recommending. */

static status make_recommender(api_model *m, int32_t k, int32_t keeps_seen, const char *rules) {
    static const char *const seen[] = {NULL, "all", "none"};
    session *s = &m->t.session;
    keeps_seen = keeps_seen < 0 ? -1 : keeps_seen != 0;
    if (m->recommender == NULL || m->k != k || m->keeps_seen != keeps_seen) {
        user_group_destroy(m->recommender);
        m->recommender = NULL;
        user_group_config c = {
            .k = k, .max_users = s->eval_batch, .exclude_seen = seen[1 + keeps_seen]};
        TRY(user_group_create(&m->recommender, s, &c));
        m->k = k;
        m->keeps_seen = keeps_seen;
    }
    user_group_clear(m->recommender);
    return user_group_set_rules(m->recommender, NULL, rules);
}

/* What to take of each user: its best items, or the values of its candidates. */
typedef struct wanted {
    int32_t k;
    uint32_t *item; /* (n_users, k), as is score; NULL: values */
    float *score;
    float *values; /* (n_users, n_values) */
    size_t n_values;
} wanted;

static void take_user(const user_group *g, int32_t user, uint64_t at, const wanted *w) {
    if (w->item == NULL) {
        memcpy(w->values + at * w->n_values, user_group_values(g, user),
               w->n_values * sizeof *w->values);
        return;
    }
    recommendation found = user_group_best(g, user);
    for (int32_t i = 0; i < w->k; i++) {
        w->item[at * (uint64_t)w->k + (uint64_t)i] = i < found.n ? found.item[i] : 0;
        w->score[at * (uint64_t)w->k + (uint64_t)i] = i < found.n ? found.score[i] : NAN;
    }
}

static status run_users(const api_model *m, user_group *g, const uint64_t *users, uint64_t n_users,
                        const wanted *w) {
    for (uint64_t at = 0, first = 0; at < n_users; first = at) {
        user_group_clear(g);
        for (; at < n_users; at++) {
            user_events u = user_events_of(m->t.session.data, users[at]);
            if (!user_group_fits(g, &u)) break;
            TRY(user_group_add(g, &u));
        }
        TRY(user_group_run(g));
        for (uint64_t i = first; i < at; i++)
            take_user(g, (int32_t)(i - first), i, w);
    }
    return OK;
}

static status check_results(uint64_t n_users, int32_t k, const uint32_t *item, const float *score) {
    if (k < 1 || k > INFER_MAX_K)
        return fail(ERR_USAGE, "k is %d; it must be 1 to %d", k, INFER_MAX_K);
    if (n_users == 0) return OK;
    TRY(api_need(item, "item"));
    return api_need(score, "score");
}

static status recommend_users(api_model *m, const uint64_t *users, uint64_t n_users, int32_t k,
                              int32_t keeps_seen, const char *rules, uint32_t *item, float *score) {
    TRY(check_users(m, users, n_users));
    TRY(check_results(n_users, k, item, score));
    TRY(make_recommender(m, k, keeps_seen, rules));
    return run_users(m, m->recommender, users, n_users, &(wanted){k, item, score, NULL, 0});
}

hstu_status hstu_model_recommend(hstu_model *m, const uint64_t *users, uint64_t n_users, int32_t k,
                                 int32_t keeps_seen, uint32_t *item, float *score) {
    return hstu_model_recommend_by_rules(m, users, n_users, k, keeps_seen, NULL, item, score);
}

hstu_status hstu_model_recommend_by_rules(hstu_model *m, const uint64_t *users, uint64_t n_users,
                                          int32_t k, int32_t keeps_seen, const char *rules,
                                          uint32_t *item, float *score) {
    RETURN_WITHIN(m, &api_model_type,
                  recommend_users(object, users, n_users, k, keeps_seen, rules, item, score));
}

/* Arrays that a caller leaves out: actions are unknown, times as untimed_seconds says. */
typedef struct history_copy {
    uint16_t *action;
    int64_t *time;
    user_events events;
} history_copy;

static status copy_history(const api_model *m, const hstu_history *h, history_copy *out) {
    const seq_file *data = m->t.session.data;
    TRY(api_need(h, "history"));
    if (h->length > 0) TRY(api_need(h->item, "history->item"));
    if (h->length > MAX_HISTORY)
        return fail(ERR_USAGE, "a history of %" PRIu64 " events; at most %d are possible",
                    h->length, (int)MAX_HISTORY);
    for (uint64_t i = 0; i < h->length; i++)
        if (h->item[i] < 1 || h->item[i] > data->n_items)
            return fail(ERR_USAGE, "item %" PRIu32 " is out of range: there are %" PRIu64,
                        h->item[i], data->n_items);
    if (h->action == NULL) TRY(MEM_NEW(&out->action, (size_t)h->length));
    for (uint64_t i = 0; h->action == NULL && i < h->length; i++)
        out->action[i] = ACTION_UNKNOWN;
    if (h->time == NULL) TRY(MEM_NEW(&out->time, (size_t)h->length));
    for (uint64_t i = 0; i < h->length && h->time == NULL; i++)
        out->time[i] = untimed_seconds(i) * data->time_per_second;
    out->events = (user_events){.user = data->n_users,
                                .n = h->length,
                                .item = h->item,
                                .action = h->action != NULL ? h->action : out->action,
                                .time = h->time != NULL ? h->time : out->time};
    return OK;
}

static status recommend_events(api_model *m, const user_events *events, int32_t k,
                               int32_t keeps_seen, const char *rules, uint32_t *item,
                               float *score) {
    TRY(check_results(1, k, item, score));
    TRY(make_recommender(m, k, keeps_seen, rules));
    TRY(user_group_add(m->recommender, events));
    TRY(user_group_run(m->recommender));
    take_user(m->recommender, 0, 0, &(wanted){k, item, score, NULL, 0});
    return OK;
}

hstu_status hstu_model_recommend_history(hstu_model *m, const hstu_history *history, int32_t k,
                                         int32_t keeps_seen, uint32_t *item, float *score) {
    return hstu_model_recommend_history_by_rules(m, history, k, keeps_seen, NULL, item, score);
}

hstu_status hstu_model_recommend_history_by_rules(hstu_model *m, const hstu_history *history,
                                                  int32_t k, int32_t keeps_seen, const char *rules,
                                                  uint32_t *item, float *score) {
    handle *h;
    history_copy copy = {0};
    status st = handle_enter(&h, m, &api_model_type);
    if (st == OK) st = copy_history(handle_object(h), history, &copy);
    if (st == OK)
        st = recommend_events(handle_object(h), &copy.events, k, keeps_seen, rules, item, score);
    MEM_FREE(copy.action, copy.time);
    return handle_leave(h, st);
}

/* Scoring. */

static status check_candidates(const api_model *m, const uint32_t *candidates, int32_t n) {
    uint64_t n_items = m->t.session.data->n_items;
    if (n < 0) return fail(ERR_USAGE, "%d candidates", n);
    if (n > 0) TRY(api_need(candidates, "candidates"));
    for (int32_t i = 0; i < n; i++)
        if (candidates[i] < 1 || candidates[i] > n_items)
            return fail(ERR_USAGE, "item %" PRIu32 " is out of range: there are %" PRIu64,
                        candidates[i], n_items);
    return OK;
}

static status score_users(api_model *m, const uint64_t *users, uint64_t n_users,
                          const uint32_t *candidates, int32_t n_candidates, float *out) {
    session *s = &m->t.session;
    user_group *r = NULL;
    TRY(check_users(m, users, n_users));
    TRY(check_candidates(m, candidates, n_candidates));
    if (n_candidates == 0 || n_users == 0) return OK;
    TRY(api_need(out, "out"));
    user_group_config c = {
        .candidate = candidates, .n_candidates = n_candidates, .max_users = s->eval_batch};
    TRY(user_group_create(&r, s, &c));
    wanted values = {.values = out, .n_values = (size_t)n_candidates * (size_t)m->columns.n};
    status st = run_users(m, r, users, n_users, &values);
    user_group_destroy(r);
    return st;
}

hstu_status hstu_model_score(hstu_model *m, const uint64_t *users, uint64_t n_users,
                             const uint32_t *candidates, int32_t n_candidates, float *out) {
    RETURN_WITHIN(m, &api_model_type,
                  score_users(object, users, n_users, candidates, n_candidates, out));
}

/* Embeddings. */

static status read_embeddings(api_model *m, float *out) {
    item_table t;
    TRY(api_need(out, "out"));
    status st = item_table_init(&t, m->t.session.model);
    if (st == OK && t.dim != item_dim(m))
        st = fail(ERR_UNSUPPORTED, "the dynamic table of items is narrower than the model");
    if (st == OK)
        memset(out, 0, (size_t)(m->t.session.data->n_items + 1) * (size_t)t.dim * sizeof *out);
    for (int32_t row = 0; st == OK && row < t.items.n; row++)
        st = item_table_read(&t, row, 1, out + (int64_t)t.items.item[row] * t.dim);
    item_table_fini(&t);
    return st;
}

hstu_status hstu_model_item_embeddings(hstu_model *m, float *out) {
    RETURN_WITHIN(m, &api_model_type, read_embeddings(object, out));
}

static status find_similar(api_model *m, uint32_t to, int32_t k, uint32_t *item, float *cosine) {
    item_table t;
    int32_t n = 0;
    TRY(check_results(1, k, item, cosine));
    status st = item_table_init(&t, m->t.session.model);
    if (st == OK) st = similar_items(&t, to, NULL, k, (int32_t *)item, cosine, &n);
    item_table_fini(&t);
    for (; st == OK && n < k; n++) {
        item[n] = 0;
        cosine[n] = NAN;
    }
    return st;
}

hstu_status hstu_model_similar(hstu_model *m, uint32_t to, int32_t k, uint32_t *item,
                               float *cosine) {
    RETURN_WITHIN(m, &api_model_type, find_similar(object, to, k, item, cosine));
}

static status encode(api_model *m, pass *p, histories *h, const uint64_t *users, uint64_t n_users,
                     float *out) {
    session *s = &m->t.session;
    int32_t dim = model_dim(s->model);
    uint64_t at = 0;
    while (at < n_users) {
        const void *states;
        uint64_t first = at;
        histories_clear(h);
        for (; at < n_users && h->view.n_users < h->max_users; at++) {
            user_events u = user_events_of(s->data, users[at]);
            TRY(histories_add(h, &u, NULL, 0));
        }
        TRY(pass_encode(p, &h->view, &states));
        TRY(backend_read_act(s->be, out + first * (uint64_t)dim, states,
                             (size_t)h->view.n_users * (size_t)dim));
    }
    return OK;
}

static status encode_users(api_model *m, const uint64_t *users, uint64_t n_users, float *out) {
    session *s = &m->t.session;
    pass *p = NULL;
    histories h = {0};
    TRY(check_users(m, users, n_users));
    if (s->config->task != TASK_RETRIEVAL)
        return fail(ERR_UNSUPPORTED,
                    "a ranking model scores candidates; it has no state of a user");
    if (n_users == 0) return OK;
    TRY(api_need(out, "out"));
    status st = pass_create(&p, s->model, &(pass_config){.max_users = s->eval_batch});
    if (st == OK) st = histories_init(&h, s, s->eval_batch);
    if (st == OK) st = encode(m, p, &h, users, n_users, out);
    histories_fini(&h);
    pass_destroy(p);
    return st;
}

hstu_status hstu_model_encode(hstu_model *m, const uint64_t *users, uint64_t n_users, float *out) {
    RETURN_WITHIN(m, &api_model_type, encode_users(object, users, n_users, out));
}

/* Training. */

_Static_assert(sizeof(sig_atomic_t) == sizeof(int32_t), "the flag of a caller is polled in place");

void hstu_train_defaults(hstu_train_args *out) {
    if (out == NULL) return;
    *out = (hstu_train_args){.device = "auto"};
}

typedef struct train_job {
    const hstu_train_args *args;
    volatile int32_t own_stop;
    volatile int32_t *stop; /* the caller's, or own_stop */
    config *config;
    pool *workers;
    backend *be;
    seq_file *data;
    session session;
} train_job;

static status tell(void *ctx, const train_event *e, const char *json) {
    train_job *j = ctx;
    if (j->args->callback != NULL && j->args->callback(j->args->ctx, json) != 0)
        __atomic_store_n(j->stop, 1, __ATOMIC_RELAXED);
    return OK;
}

static status load_config(train_job *j) {
    const hstu_train_args *a = j->args;
    if (a->config == NULL && a->is_resume) return checkpoint_run_config(&j->config, a->run);
    if (a->config == NULL) return fail(ERR_USAGE, "a config is needed: a gin file");
    for (int32_t i = 0; i < a->n_overrides; i++)
        if (a->overrides == NULL || a->overrides[i] == NULL)
            return fail(ERR_USAGE, "override %d of %d is NULL", i + 1, a->n_overrides);
    config_source source = {.path = a->config,
                            .overrides = a->overrides,
                            .n_overrides = a->n_overrides > 0 ? (size_t)a->n_overrides : 0};
    TRY(config_load(&j->config, &source));
    if (a->is_resume) run_config_keep_batch(j->config, a->run);
    return OK;
}

static status run(train_job *j) {
    const hstu_train_args *a = j->args;
    TRY(api_begin());
    if (a->epochs < 0 || a->n_overrides < 0)
        return fail(ERR_USAGE, "epochs and n_overrides must not be negative");
    if (a->data == NULL || a->run == NULL)
        return fail(ERR_USAGE, "training needs data and the folder of a run");
    TRY(load_config(j));
    if (a->epochs > 0) {
        j->config->trainer.n_epochs = a->epochs;
        j->config->trainer.max_train_iters = CONFIG_NONE;
    }
    TRY(config_check_trainable(j->config));
    TRY(pool_create_default(&j->workers));
    TRY(api_backend(&j->be, j->workers, a->device));
    TRY(seq_file_open(&j->data, a->data, j->workers));
    TRY(session_open(&j->session, j->config, j->data, j->be));
    train_options o = train_options_default();
    o.run = a->run;
    o.n_epochs = a->epochs;
    o.is_resume = a->is_resume != 0;
    o.has_validation = a->has_validation != 0;
    o.stop = j->stop;
    o.observer = tell;
    o.ctx = j;
    return trainer_run(&j->session, &o);
}

hstu_status hstu_train(const hstu_train_args *args) {
    train_job j = {.args = args};
    status st = api_need(args, "args");
    if (st != OK) return (hstu_status)st;
    j.stop = args->stop != NULL ? args->stop : &j.own_stop;
    st = run(&j);
    failure f;
    failure_save(&f, st);
    session_close(&j.session);
    seq_file_close(j.data);
    backend_destroy(j.be);
    pool_destroy(j.workers);
    config_destroy(j.config);
    return (hstu_status)(st == OK ? OK : failure_restore(&f));
}
