#include "serve/engine/engine.h"

#include <semaphore.h>

#include "serve/engine/replicas.h"
#include "serve/state/user_writer.h"

struct engine {
    engine_config config;
    char device[ENGINE_MAX_REPLICAS][16];
    int n_devices;
    seq_file *data;
    replicas models[ENGINE_MAX_MODELS]; /* (n_models); never removed, added under the load lock */
    atomic_int n_models;
    atomic_bool is_closing;
    atomic_uint n_inside;       /* callers of engine_ask and engine_submit */
    pthread_mutex_t load_lock;  /* one load at a time */
    user_writer *writer;        /* changes the users */
    pthread_mutex_t users_lock; /* of what follows, and of the models' maps of items */
    users users;
    /* Whoever reads users with a model holds it for reading, around the lock of the users: the data
     * and the maps of all models are exchanged together. */
    pthread_rwlock_t gate;
};

enum { DEFAULT_QUEUE = 1024, MAX_BATCH = 4096 };
static const size_t DEFAULT_QUEUE_BYTES = (size_t)1 << 30;
static const uint64_t DEFAULT_ERASE_NS = 60000000000u;

static void set_defaults(engine_config *c) {
    if (c->device == NULL) c->device = "auto";
    if (c->max_queue <= 0) c->max_queue = DEFAULT_QUEUE;
    if (c->max_user_events == 0) c->max_user_events = 1 << 20;
    if (c->max_queue_bytes == 0) c->max_queue_bytes = DEFAULT_QUEUE_BYTES;
    if (c->erase_within_ns == 0) c->erase_within_ns = DEFAULT_ERASE_NS;
}

/* Replicas must answer alike, so all are CPUs or all are GPUs. */
static status read_devices(engine *e, const char *list) {
    bool is_good = true;
    for (const char *at = list; at != NULL && is_good;) {
        size_t n = strcspn(at, ",");
        is_good = e->n_devices < ENGINE_MAX_REPLICAS && n > 0 && n < sizeof e->device[0] &&
                  (at == list || (list[0] == 'c' && strncmp(at, list, 3) == 0));
        if (is_good) memcpy(e->device[e->n_devices++], at, n);
        at = at[n] == ',' ? at + n + 1 : NULL;
    }
    if (!is_good)
        return fail(ERR_USAGE,
                    "--device %.80s: give auto, cpu, cuda or cuda:N, or up to %d devices of one "
                    "kind, as in cuda:0,cuda:1",
                    list, ENGINE_MAX_REPLICAS);
    if (e->n_devices == 1 || e->config.n_threads > 0) return OK;
    return env_threads_of(e->n_devices, &e->config.n_threads);
}

static status open_data(const engine *e, const char *path, seq_file **data, users *u) {
    pool *workers;
    if (path == NULL) return users_init(u, NULL, e->config.max_user_events);
    TRY(pool_create(&workers, 1));
    status st = seq_file_open(data, path, workers);
    pool_destroy(workers);
    return st == OK ? users_init(u, *data, e->config.max_user_events) : st;
}

status engine_create(engine **out, const engine_config *c) {
    engine *e;
    *out = NULL;
    if (c->max_batch > MAX_BATCH)
        return fail(ERR_USAGE, "max_batch is %d; at most %d requests run together", c->max_batch,
                    MAX_BATCH);
    TRY(MEM_NEW(&e, 1));
    e->config = *c;
    set_defaults(&e->config);
    pthread_mutex_init(&e->load_lock, NULL);
    pthread_mutex_init(&e->users_lock, NULL);
    rwlock_init(&e->gate);
    status st = read_devices(e, e->config.device);
    if (st == OK) st = open_data(e, e->config.data, &e->data, &e->users);
    if (st == OK)
        st = user_writer_create(&e->writer, &e->users, &e->users_lock, e->config.state,
                                e->config.erase_within_ns);
    return CREATED(st, out, e, engine_destroy);
}

/* A caller looks at its slot until it leaves: after its answer was given, too.  Nobody is woken
 * when the last one leaves, so this looks now and then. */
static void wait_for_callers(engine *e) {
    const struct timespec look = {.tv_nsec = 1000000};
    while (atomic_load(&e->n_inside) > 0)
        nanosleep(&look, NULL);
}

void engine_destroy(engine *e) {
    if (e == NULL) return;
    engine_drain(e);
    for (int i = 0; i < e->n_models; i++)
        replicas_stop(&e->models[i]);
    wait_for_callers(e);
    for (int i = 0; i < e->n_models; i++)
        replicas_fini(&e->models[i]);
    user_writer_destroy(e->writer);
    users_fini(&e->users);
    seq_file_close(e->data);
    pthread_mutex_destroy(&e->load_lock);
    pthread_mutex_destroy(&e->users_lock);
    pthread_rwlock_destroy(&e->gate);
    mem_free(e);
}

void engine_drain(engine *e) {
    atomic_store(&e->is_closing, true);
}

static replicas *find_replicas(engine *e, int index) {
    return index >= 0 && index < atomic_load(&e->n_models) ? &e->models[index] : NULL;
}

slot *engine_slot(engine *e, int index, int replica) {
    const replicas *r = find_replicas(e, index);
    return r != NULL && replica >= 0 && replica < r->n ? r->slot[replica] : NULL;
}

int engine_n_models(engine *e) {
    return atomic_load(&e->n_models);
}

int engine_n_replicas(engine *e) {
    return e->n_devices;
}

int engine_find_model(engine *e, const char *name) {
    int found = -1, n = engine_n_models(e);
    if (name == NULL || name[0] == '\0') found = n > 0 ? 0 : -1;
    for (int i = 0; i < n && found < 0; i++)
        if (strcmp(e->models[i].slot[0]->name, name) == 0) found = i;
    return found;
}

/* Names are part of addresses and of metrics. */
static status check_name(const char *name) {
    size_t n = strlen(name);
    if (n == 0 || n >= sizeof((slot *)0)->name)
        return fail(ERR_USAGE, "a model's name of %zu bytes; it must have 1 to %zu", n,
                    sizeof((slot *)0)->name - 1);
    for (size_t i = 0; i < n; i++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", name[i]) ==
            NULL)
            return fail(ERR_USAGE,
                        "the name '%.64s' of a model may have letters, digits, '.', '_' "
                        "and '-' only",
                        name);
    return OK;
}

/* A new name, with its models. */
static status add_model(engine *e, const char *name, served *const *m) {
    replicas *r = &e->models[e->n_models];
    if (e->n_models == ENGINE_MAX_MODELS)
        return fail(ERR_USAGE, "at most %d models can be served", ENGINE_MAX_MODELS);
    TRY(replicas_init(r, name, e->n_devices, e->config.max_queue, e->config.max_queue_bytes));
    replicas_set_models(r, m);
    atomic_fetch_add(&e->n_models, 1);
    return OK;
}

/* Opens the model on each device: the same checkpoint, even if a new one appears meanwhile.  A
 * device that is lost may fail again: then its model is NULL. */
static status open_replicas(engine *e, const replicas *old, const char *path, const seq_file *data,
                            served **m) {
    const trained *t = NULL; /* of the first one */
    status st = OK;
    for (int i = 0; i < e->n_devices; i++) {
        engine_config c = e->config;
        c.device = e->device[i];
        st = served_open(&m[i], &c, t != NULL ? t->folder : path, data);
        if (st != OK && (old == NULL || !slot_is_lost(old->slot[i], NULL))) return st;
        if (st != OK) log_warn("replica %d (%s) stays lost: %s", i, c.device, status_reason());
        if (st != OK) continue;
        const trained *own = &m[i]->trained;
        if (t == NULL) t = own;
        if (own->origin.step != t->origin.step || own->engine.weight_hash != t->engine.weight_hash)
            return fail(ERR_IO, "%s was replaced while it was opened; load it again", path);
        snprintf(m[i]->path, sizeof m[i]->path, "%s", path);
    }
    return t != NULL ? OK : st;
}

/* The same for a model that is replaced, and waits until its content is checked. */
static status open_checked(engine *e, const replicas *old, const char *path, const seq_file *data,
                           served **m) {
    TRY(open_replicas(e, old, path, data, m));
    for (int i = 0; i < e->n_devices && old != NULL; i++)
        if (m[i] != NULL) TRY(served_checked(m[i]));
    return OK;
}

/* Under the load lock. */
static status load(engine *e, const char *name, const char *path) {
    served *m[ENGINE_MAX_REPLICAS] = {0};
    replicas *r = find_replicas(e, engine_find_model(e, name));
    status st = open_checked(e, r, path, e->data, m);
    if (st == OK && r == NULL)
        st = add_model(e, name, m);
    else if (st == OK)
        replicas_set_models(r, m);
    for (int i = 0; i < e->n_devices && st != OK; i++)
        served_drop(m[i]);
    return st;
}

status engine_load(engine *e, const char *name, const char *path) {
    TRY(check_name(name));
    pthread_mutex_lock(&e->load_lock);
    status st = load(e, name, path);
    pthread_mutex_unlock(&e->load_lock);
    return st;
}

/* New data on its way in, then the old one on its way out. */
typedef struct exchange {
    engine *e;
    replicas *r;                        /* of the model that is replaced, */
    served *fresh[ENGINE_MAX_REPLICAS]; /* and its new models; NULL: the device stays lost */
    seq_file *data;
    users users;
    struct {
        served *m; /* a reference, so that nothing large is freed under locks */
        vocabulary_map map;
    } * models; /* (n_models): those that are loaded now, replica by replica */
    int n_models;
} exchange;

static status open_exchange(exchange *x, const char *path) {
    engine *e = x->e;
    TRY(open_data(e, path, &x->data, &x->users));
    if (x->users.ticks <= e->users.ticks) return user_writer_erase(e->writer, &x->users);
    return fail(ERR_CONFIG,
                "%s: its times are finer (%lld a second) than those of the data in use (%lld); "
                "restart the server with --data",
                path, (long long)x->users.ticks, (long long)e->users.ticks);
}

/* Maps from the new data to the models that stay. */
static status map_models(exchange *x) {
    engine *e = x->e;
    pool *workers;
    status st = OK;
    TRY(MEM_NEW(&x->models, (size_t)(e->n_models * e->n_devices)));
    TRY(pool_create(&workers, 1));
    for (int i = 0; i < e->n_models * e->n_devices && st == OK; i++) {
        const replicas *r = &e->models[i / e->n_devices];
        served *m = x->models[i].m = slot_keep_model(r->slot[i % e->n_devices]);
        x->n_models++;
        if (r != x->r || x->fresh[i % e->n_devices] == NULL)
            st = vocabulary_map_init(&x->models[i].map, m->trained.vocabulary, x->data, workers);
        if (st != OK) st = fail_prefix(st, "model %s", r->slot[0]->name);
    }
    pool_destroy(workers);
    return st;
}

/* While events wait, and only they. */
static status run_exchange(exchange *x) {
    engine *e = x->e;
    TRY(users_take(&x->users, &e->users));
    pthread_rwlock_wrlock(&e->gate);
    pthread_mutex_lock(&e->users_lock);
    users old = e->users;
    seq_file *old_data = e->data;
    e->users = x->users;
    e->data = x->data;
    x->users = old;
    x->data = old_data;
    for (int i = 0; i < x->n_models; i++)
        if (x->models[i].map.item != NULL) served_set_map(x->models[i].m, &x->models[i].map);
    replicas_set_models(x->r, x->fresh);
    memset(x->fresh, 0, sizeof x->fresh);
    pthread_mutex_unlock(&e->users_lock);
    pthread_rwlock_unlock(&e->gate);
    return OK;
}

static void close_exchange(exchange *x) {
    for (int i = 0; i < x->n_models; i++) {
        vocabulary_map_fini(&x->models[i].map);
        served_drop(x->models[i].m);
    }
    for (int i = 0; i < x->e->n_devices; i++)
        served_drop(x->fresh[i]);
    mem_free(x->models);
    users_fini(&x->users);
    seq_file_close(x->data);
}

status engine_reload(engine *e, const char *name, const char *path, const char *data) {
    exchange x = {.e = e, .r = find_replicas(e, engine_find_model(e, name))};
    if (x.r == NULL || data == NULL) return engine_load(e, name, path);
    pthread_mutex_lock(&e->load_lock);
    status st = open_exchange(&x, data);
    if (st == OK) st = open_checked(e, x.r, path, x.data, x.fresh);
    if (st == OK) st = map_models(&x);
    user_writer_pause(e->writer, true);
    if (st == OK) st = run_exchange(&x);
    user_writer_pause(e->writer, false);
    close_exchange(&x);
    pthread_mutex_unlock(&e->load_lock);
    return st;
}

static status find_model(engine *e, int index, replicas **out) {
    *out = find_replicas(e, index);
    return *out != NULL ? OK : fail(ERR_USAGE, "there is no model number %d", index);
}

/* A model with a reference. */
static status keep_model(engine *e, int index, served **out) {
    replicas *r;
    TRY(find_model(e, index, &r));
    *out = slot_keep_model(replicas_first(r));
    return OK;
}

status engine_model(engine *e, int index, engine_model_info *out) {
    served *m;
    size_t n = 0;
    TRY(keep_model(e, index, &m));
    served_info(m, e->models[index].slot[0]->name, out);
    served_drop(m);
    for (int i = 0; i < e->n_devices && e->n_devices > 1; i++)
        n += (size_t)snprintf(out->device + n, sizeof out->device - n, "%s%s", i > 0 ? "," : "",
                              e->device[i]);
    return OK;
}

status engine_model_stats(engine *e, int index, engine_stats *out) {
    replicas *r;
    TRY(find_model(e, index, &r));
    replicas_stats(r, out);
    pthread_mutex_lock(&e->users_lock);
    out->events_added = e->users.n_added;
    out->events_duplicate = e->users.n_duplicates;
    pthread_mutex_unlock(&e->users_lock);
    return OK;
}

bool engine_get_replica(engine *e, int index, int replica, engine_replica *out) {
    slot *s = engine_slot(e, index, replica);
    if (s == NULL) return false;
    *out = (engine_replica){0};
    out->is_lost = slot_is_lost(s, out->why);
    snprintf(out->device, sizeof out->device, "%s", e->device[replica]);
    slot_stats(s, &out->stats);
    return true;
}

status engine_item_of(engine *e, int index, uint32_t number, engine_item *out) {
    served *m;
    TRY(keep_model(e, index, &m));
    bool has = number >= 1 && number <= m->names->n_items;
    if (has) *out = served_item_names(m, number);
    served_drop(m);
    return has ? OK : fail(ERR_USAGE, "the model has no item number %u", number);
}

status engine_wait_checked(engine *e, int index) {
    served *m;
    TRY(keep_model(e, index, &m));
    status st = served_checked(m);
    served_drop(m);
    return st;
}

bool engine_is_checked(engine *e, int index) {
    served *m;
    if (keep_model(e, index, &m) != OK) return true;
    bool is_checked = served_is_checked(m);
    served_drop(m);
    return is_checked;
}

/* Counted as a caller inside, for engine_destroy. */
static status call_slot(engine *e, int index, status (*fn)(served *m, void *ctx), void *ctx) {
    replicas *r;
    TRY(find_model(e, index, &r));
    atomic_fetch_add(&e->n_inside, 1);
    status st = slot_call(replicas_first(r), fn, ctx);
    atomic_fetch_sub(&e->n_inside, 1);
    return st;
}

typedef struct row_query {
    uint32_t first, n;
    float *out;
} row_query;

static status read_rows(served *m, void *ctx) {
    const row_query *q = ctx;
    const item_table *t = &m->infer.table;
    if (q->first < 1 || q->first > m->names->n_items + 1 || q->n > m->names->n_items + 1 - q->first)
        return fail(ERR_USAGE, "the model has items 1 to %llu",
                    (unsigned long long)m->names->n_items);
    memset(q->out, 0, (size_t)q->n * (size_t)t->dim * sizeof *q->out);
    for (uint32_t i = 0; i < q->n; i++) {
        int32_t row = t->items.row[q->first + i];
        if (row >= 0) TRY(item_table_read(t, row, 1, q->out + (size_t)i * (size_t)t->dim));
    }
    return OK;
}

status engine_item_rows(engine *e, int index, uint32_t first, uint32_t n, float *out) {
    row_query q = {first, n, out};
    return call_slot(e, index, read_rows, &q);
}

typedef struct page_query {
    int64_t most;
    engine_page *out;
    int64_t *n;
} page_query;

static status read_pages(served *m, void *ctx) {
    const page_query *q = ctx;
    *q->n = m->cache != NULL ? (int64_t)m->store.n_pages + m->store.n_host_pages : 0;
    for (int32_t i = 0; i < *q->n && i < q->most; i++)
        q->out[i] = kv_cache_view(m->cache, i);
    return OK;
}

status engine_pages(engine *e, int index, int64_t most, engine_page *out, int64_t *n) {
    page_query q = {most, out, n};
    return call_slot(e, index, read_pages, &q);
}

status engine_work_of(engine *e, int index, const engine_shape *shape, engine_work *out) {
    served *m;
    TRY(keep_model(e, index, &m));
    *out = served_work(m, shape);
    served_drop(m);
    return OK;
}

typedef struct backend_call {
    status (*fn)(struct backend *be, void *ctx);
    void *ctx;
} backend_call;

static status call_backend(served *m, void *ctx) {
    const backend_call *c = ctx;
    return c->fn(m->compute.be, c->ctx);
}

status engine_with_backend(engine *e, int index, status (*fn)(struct backend *be, void *ctx),
                           void *ctx) {
    backend_call c = {fn, ctx};
    return call_slot(e, index, call_backend, &c);
}

const char *engine_stage_name(engine_stage s) {
    static const char *const names[ENGINE_STAGES] = {"queue", "build", "layers", "head"};
    return names[s];
}

static engine_outcome outcome_of(status st) {
    if (st == ERR_USAGE || st == ERR_UNSUPPORTED || st == ERR_CONFIG) return ENGINE_BAD;
    return ENGINE_FAILED;
}

/* The answer's memory with its model, and the job in it. */
static status prepare(engine *e, slot *s, const engine_request *r, engine_answer *out, job **j) {
    TRY(MEM_NEW(&out->memory, 1));
    size_t n = r->n_history + r->n_extra + r->n_candidates; /* about what they take, in one block */
    arena_init(&out->memory->arena, (1 << 14) + (n < 1 << 16 ? n : 1 << 16) * 96);
    served *m = out->memory->model = slot_keep_model(s);
    snprintf(out->model, sizeof out->model, "%s", s->name);
    snprintf(out->version, sizeof out->version, "%s", m->version_text);
    out->n_columns = m->infer.columns.n;
    out->columns = m->infer.columns.names;
    job_users from = {&e->users, &e->users_lock};
    return job_make(j, out, r, &from);
}

/* A request that never comes into a queue. */
static job *refuse(slot *s, const engine_request *r, engine_answer *out, engine_outcome outcome,
                   const char *why) {
    if (s != NULL) slot_count(s, r->task, outcome);
    out->outcome = outcome;
    if (why != NULL) snprintf(out->error, sizeof out->error, "%s", why);
    return NULL;
}

/* The caller's own time after the answer is taken from a deadline, half of it at most. */
static slot_terms terms_of(const engine *e, const engine_request *r) {
    uint64_t all = r->deadline_ns > 0 ? r->deadline_ns : e->config.deadline_ns;
    slot_terms t = {.arrived_ns = r->arrived_ns > 0 ? r->arrived_ns : clock_ns(),
                    .priority = r->priority};
    if (all > 0)
        t.deadline_ns = t.arrived_ns + all - (r->after_ns < all / 2 ? r->after_ns : all / 2);
    return t;
}

/* What chooses the replica: the user, or the first events of a history that comes without one. */
static uint64_t key_of(const engine_request *r) {
    enum { FIRST = 4 };
    uint64_t key = 0;
    id_text id;
    if (r->has_user) return id_text_make(&id, &r->user, "") == OK ? hash64(id.text, id.n, 0) : 0;
    for (size_t i = 0; i < r->n_history && i < FIRST; i++)
        if (id_text_make(&id, &r->history[i].item, "") == OK) key = hash64(id.text, id.n, key + 1);
    return key;
}

bool engine_has_time(engine *e, const engine_request *r, engine_answer *out) {
    const replicas *of = find_replicas(e, r->model);
    slot_terms terms = terms_of(e, r);
    int home;
    *out = (engine_answer){0};
    if (of == NULL || replicas_choose(of, 0, &terms, false, &home, out) != NULL) return true;
    (void)refuse(of->slot[0], r, out, out->outcome, NULL);
    return false;
}

/* The job of a request, and its slot; NULL: *out says why there is none. */
static job *make_job(engine *e, const engine_request *r, engine_answer *out, slot **s) {
    const replicas *of = find_replicas(e, r->model);
    int home;
    job *j;
    *out = (engine_answer){0};
    if (of == NULL) return refuse(NULL, r, out, ENGINE_NO_MODEL, "there is no such model");
    if (atomic_load(&e->is_closing))
        return refuse(of->slot[0], r, out, ENGINE_CLOSING, "the server is shutting down");
    if (tensor_group_check(e->config.group) != OK)
        return refuse(of->slot[0], r, out, ENGINE_CLOSING, status_reason());
    slot_terms terms = terms_of(e, r);
    uint64_t key = of->n > 1 ? key_of(r) : 0;
    *s = replicas_choose(of, key, &terms, r->was_asked, &home, out);
    if (*s == NULL) return refuse(of->slot[home], r, out, out->outcome, NULL);
    *out = (engine_answer){0}; /* without the words of those that were full */
    pthread_rwlock_rdlock(&e->gate);
    status st = prepare(e, *s, r, out, &j);
    pthread_rwlock_unlock(&e->gate);
    if (st != OK) return refuse(*s, r, out, outcome_of(st), status_reason());
    j->submit_ns = terms.arrived_ns;
    j->deadline_ns = terms.deadline_ns;
    j->has_deadline = terms.deadline_ns > 0;
    j->was_admitted = r->was_asked || !j->has_deadline; /* else its own cost counts */
    j->bytes = j->arena->used_bytes;
    j->key = key;
    j->home = home;
    return j;
}

void engine_submit(engine *e, const engine_request *r, engine_answer *out, engine_done done,
                   void *ctx) {
    slot *s = NULL;
    atomic_fetch_add(&e->n_inside, 1);
    job *j = make_job(e, r, out, &s);
    if (j != NULL) {
        j->done = done;
        j->is_gone = r->is_gone;
        j->ctx = ctx;
        out->memory->job = j;
        slot_submit(s, j, r->run_ns);
    } else {
        done(ctx, out);
    }
    atomic_fetch_sub(&e->n_inside, 1);
}

static void wake_asker(void *done, engine_answer *a) {
    sem_post(done);
}

static void wait_for(sem_t *done) {
    while (sem_wait(done) != 0) /* a signal came */
        ;
    sem_destroy(done);
}

void engine_ask(engine *e, const engine_request *r, engine_answer *out) {
    engine_request own = *r;
    sem_t done;
    sem_init(&done, 0, 0);
    own.run_ns = UINT64_MAX;
    own.is_gone = NULL;
    atomic_fetch_add(&e->n_inside, 1);
    engine_submit(e, &own, out, wake_asker, &done);
    wait_for(&done);
    if (engine_make_items(out) != OK) (void)refuse(NULL, r, out, ENGINE_FAILED, status_reason());
    atomic_fetch_sub(&e->n_inside, 1);
}

status engine_make_items(engine_answer *a) {
    job *j = a->memory != NULL ? a->memory->job : NULL;
    if (j == NULL || a->outcome != ENGINE_OK) return OK;
    a->memory->job = NULL;
    j->out = a; /* which may be a copy */
    return job_answer(j);
}

typedef struct similar_call {
    const engine_request *r;
    engine_answer *out;
} similar_call;

static status answer_similar(served *m, void *ctx) {
    const similar_call *c = ctx;
    c->out->memory->model = m;
    served_keep(m);
    snprintf(c->out->version, sizeof c->out->version, "%s", m->version_text);
    return job_similar(c->out, c->r);
}

/* A CPU needs no turn: the rows of a model that is loaded do not change. */
status engine_similar(engine *e, const engine_request *r, engine_answer *out) {
    similar_call c = {r, out};
    served *m;
    *out = (engine_answer){0};
    if (r->n_candidates == 0 || r->top_k < 1 || r->top_k > ENGINE_MAX_K)
        return fail(ERR_USAGE, "give items, and a top_k from 1 to %d", ENGINE_MAX_K);
    TRY(keep_model(e, r->model, &m));
    status st = MEM_NEW(&out->memory, 1);
    if (st == OK) {
        arena_init(&out->memory->arena, 1 << 14);
        snprintf(out->model, sizeof out->model, "%s", e->models[r->model].slot[0]->name);
        st = served_checked(m);
    }
    if (st == OK)
        st = m->compute.be->is_host ? answer_similar(m, &c)
                                    : call_slot(e, r->model, answer_similar, &c);
    served_drop(m);
    return st;
}

static void release_memory(struct engine_answer_memory *memory) {
    if (memory == NULL) return;
    served_drop(memory->model);
    arena_fini(&memory->arena);
    mem_free(memory);
}

void engine_answer_release(engine_answer *a) {
    release_memory(a->memory);
    a->memory = NULL;
    a->items = NULL;
    a->n_items = 0;
    a->vector = NULL;
}

/* The engine's users: events, erasure, reading back; the lock and the checks around users.h. */

/* Each model with a reference; returns how many. */
static int keep_models(engine *e, served **out) {
    int n = engine_n_models(e);
    for (int i = 0; i < n; i++)
        (void)keep_model(e, i, &out[i]);
    return n;
}

static void drop_models(served **models, int n) {
    for (int i = 0; i < n; i++)
        served_drop(models[i]);
}

static status read_action_name(const seq_file *data, engine_event *e, size_t i) {
    if (seq_find_action(data, e->action_name, e->action_bytes, &e->action)) return OK;
    return fail(ERR_USAGE, "event %zu: there is no action '%.*s'; %s%.200s", i + 1,
                (int)(e->action_bytes < 60 ? e->action_bytes : 60), e->action_name,
                data->action_map != NULL ? "the data have " : "the data name none: send its number",
                data->action_map != NULL ? data->action_map : "");
}

status engine_read_ratings(engine *e, int index, engine_event *events, size_t n) {
    served *m = NULL;
    status st = OK;
    for (size_t i = 0; i < n && st == OK; i++) {
        if (events[i].half_stars == 0 && events[i].action_name == NULL) continue;
        if (m == NULL) TRY(keep_model(e, index, &m));
        if (events[i].action_name != NULL)
            st = read_action_name(m->s->data, &events[i], i);
        else if (!seq_find_rating(m->s->data, events[i].half_stars / 2.0, &events[i].action))
            st = fail(ERR_USAGE,
                      "event %zu: the data have no rating %g; send another \"rating\", or "
                      "an \"action\"",
                      i + 1, events[i].half_stars / 2.0);
        events[i].half_stars = 0;
        events[i].action_name = NULL;
    }
    if (m != NULL) served_drop(m);
    return st;
}

/* How many items no model knows; an action that the data of the first model cannot have is refused,
 * as the event would never count, or make other data of them. */
static status check_events(served *const *models, int n_models, const engine_event *events,
                           size_t n, size_t *n_unknown) {
    *n_unknown = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t item = 0;
        for (int m = 0; m < n_models && item == 0; m++) {
            status st = served_find_id(models[m], &events[i].item, "the item", &item);
            if (st != OK) return fail_prefix(st, "events[%zu]", i);
        }
        *n_unknown += item == 0;
        if (n_models == 0) continue;
        const seq_file *data = models[0]->s->data;
        int32_t n_actions = models[0]->s->limits.n_actions;
        if (n_actions == 0) n_actions = action_kind_count(data->actions);
        if (events[i].action >= n_actions && events[i].action != ACTION_UNKNOWN)
            return fail(ERR_USAGE, "events[%zu]: its action is %u, but the model knows 0..%d%s", i,
                        events[i].action, n_actions - 1,
                        data->actions == ACTION_STARS        ? ", which is the rating - 1"
                        : data->actions == ACTION_HALF_STARS ? ", which is 2 * the rating - 1"
                                                             : "");
    }
    return OK;
}

static status check_change(engine *e, engine_change *c) {
    served *models[ENGINE_MAX_MODELS];
    int n_models = keep_models(e, models);
    status st = OK;
    for (size_t i = 0; i < c->n_users && st == OK; i++) {
        c->added[i] = (engine_added){0};
        st = check_events(models, n_models, c->users[i].events, c->users[i].n_events,
                          &c->added[i].n_unknown);
        if (st != OK && c->n_users > 1) st = fail_prefix(st, "users[%zu]", i);
    }
    drop_models(models, n_models);
    return st;
}

static void wake_changer(void *done, engine_change *c) {
    sem_post(done);
}

void engine_submit_change(engine *e, engine_change *c, engine_change_done done, void *ctx) {
    c->done = done;
    c->ctx = ctx;
    c->st = c->users != NULL ? check_change(e, c) : OK;
    if (c->st == OK) {
        user_writer_submit(e->writer, c);
        return;
    }
    failure_save(&c->why, c->st);
    done(ctx, c);
}

static status run_change(engine *e, engine_change *c) {
    sem_t done;
    sem_init(&done, 0, 0);
    engine_submit_change(e, c, wake_changer, &done);
    wait_for(&done);
    return c->st == OK ? OK : failure_restore(&c->why);
}

status engine_add_events(engine *e, engine_id user, const engine_event *events, size_t n,
                         engine_added *out) {
    engine_user_events one = {.user = user, .events = events, .n_events = n};
    engine_change c = {.users = &one, .n_users = 1, .added = out};
    return run_change(e, &c);
}

status engine_erase_user(engine *e, engine_id user, bool *existed) {
    engine_change c = {.user = user};
    status st = run_change(e, &c);
    *existed = c.existed;
    return st;
}

status engine_new_events(engine *e, engine_id user, const engine_event *events, size_t n,
                         engine_event *out, size_t *n_out) {
    engine_user_events one = {.user = user, .events = events, .n_events = n};
    engine_added added;
    engine_change c = {.users = &one, .n_users = 1, .added = &added};
    id_text id;
    status st = OK;
    *n_out = 0;
    TRY(id_text_make(&id, &user, "the user"));
    TRY(check_change(e, &c));
    pthread_mutex_lock(&e->users_lock);
    for (size_t i = 0; i < n && st == OK; i++) {
        bool is_known = false;
        st = users_has_event(&e->users, &id, &events[i], &is_known);
        if (st == OK && !is_known) out[(*n_out)++] = events[i];
    }
    if (st == OK) st = users_have_room(&e->users, &id, *n_out);
    pthread_mutex_unlock(&e->users_lock);
    return st;
}

bool engine_knows_item(engine *e, const engine_id *item) {
    served *models[ENGINE_MAX_MODELS];
    uint32_t number = 0;
    int n_models = keep_models(e, models);
    for (int m = 0; m < n_models && number == 0; m++)
        if (served_find_id(models[m], item, "the item", &number) != OK) number = 0;
    drop_models(models, n_models);
    return number != 0;
}

void engine_get_state(engine *e, engine_state_stats *out) {
    user_writer_stats(e->writer, out);
}

/* The events out->first .. out->first + out->n_events - 1. */
static status copy_events(engine *e, const user_history *h, served *m, arena *a, engine_user *out) {
    engine_past_event *events;
    TRY(ARENA_NEW(a, &events, out->n_events));
    if (m != NULL) TRY(served_know_items(m, &e->users));
    for (size_t i = 0; i < out->n_events; i++) {
        stored_event from = user_history_at(h, out->first + i);
        engine_past_event *to = &events[i];
        uint32_t item = m != NULL ? served_item(m, &e->users, from.item) : 0;
        to->item = users_item_id(&e->users, from.item);
        /* They may move when more come, and go with the data. */
        if (to->item.text != NULL)
            TRY(arena_copy_text(a, to->item.text, to->item.n, &to->item.text));
        users_time(&e->users, from.time, &to->time, &to->time_ns);
        to->action = from.action;
        to->is_known = item != 0;
        if (item == 0) continue;
        engine_item names = served_item_names(m, item);
        to->title = names.title;
        to->title_bytes = names.title_bytes;
    }
    out->events = events;
    return OK;
}

/* Under the lock of the users. */
static status read_user(engine *e, const id_text *id, size_t first, size_t n, engine_user *out) {
    user_history h = users_history(&e->users, id);
    if (first == ENGINE_NEWEST) first = h.n > n ? h.n - n : 0;
    out->n_total = h.n;
    out->first = first < h.n ? first : h.n;
    out->n_events = h.n - out->first < n ? h.n - out->first : n;
    out->is_known = h.is_known;
    out->is_from_data = h.data_user < e->users.n_data_users;
    out->version = h.version;
    return copy_events(e, &h, out->memory->model, &out->memory->arena, out);
}

status engine_get_user(engine *e, engine_id user, size_t first, size_t n, engine_user *out) {
    id_text id;
    *out = (engine_user){0};
    TRY(id_text_make(&id, &user, "the user"));
    TRY(MEM_NEW(&out->memory, 1));
    arena_init(&out->memory->arena, 1 << 12);
    pthread_rwlock_rdlock(&e->gate);
    if (engine_n_models(e) > 0) (void)keep_model(e, 0, &out->memory->model);
    pthread_mutex_lock(&e->users_lock);
    status st = read_user(e, &id, first, n, out);
    pthread_mutex_unlock(&e->users_lock);
    pthread_rwlock_unlock(&e->gate);
    if (st != OK) engine_user_release(out);
    return st;
}

void engine_user_release(engine_user *u) {
    release_memory(u->memory);
    *u = (engine_user){0};
}

static bool is_known(engine *e, const id_text *id) {
    pthread_mutex_lock(&e->users_lock);
    bool known = users_history(&e->users, id).is_known;
    pthread_mutex_unlock(&e->users_lock);
    return known;
}

/* While the gate is held the data stays: the lock is taken for those who are found, one at a time.
 */
status engine_list_users(engine *e, arena *a, const char *prefix, uint64_t from, size_t n,
                         engine_id *out, size_t *n_found, uint64_t *next) {
    enum { LOOKED_AT = 1 << 22 };
    size_t n_prefix = strlen(prefix);
    status st = OK;
    pthread_rwlock_rdlock(&e->gate);
    uint64_t n_users = e->data != NULL ? e->data->n_users : 0, u = from;
    *n_found = 0;
    for (; u < n_users && *n_found < n && u - from < LOOKED_AT && st == OK; u++) {
        id_text text;
        engine_id id;
        if (users_data_name(&e->users, u, &id, &text) != OK) continue;
        if (text.n < n_prefix || memcmp(text.text, prefix, n_prefix) != 0) continue;
        if (!is_known(e, &text)) continue;
        if (id.text != NULL) st = arena_copy_text(a, id.text, id.n, &id.text);
        out[(*n_found)++] = id;
    }
    *next = u < n_users ? u : 0;
    pthread_rwlock_unlock(&e->gate);
    return st;
}

bool engine_has_text_users(engine *e) {
    pthread_mutex_lock(&e->users_lock);
    bool has_text = e->users.data != NULL && e->users.data->has_text_users;
    pthread_mutex_unlock(&e->users_lock);
    return has_text;
}

uint64_t engine_n_users(engine *e) {
    pthread_mutex_lock(&e->users_lock);
    uint64_t n = e->users.n_known;
    pthread_mutex_unlock(&e->users_lock);
    return n;
}
