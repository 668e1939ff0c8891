#include "serve/engine/engine.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/thread.h"
#include "serve/engine/slot.h"
#include "serve/state/user_writer.h"

struct engine {
    engine_config config;
    char device[64];
    seq_file *data;
    slot *slots[ENGINE_MAX_MODELS]; /* (n_slots); never removed, added under the load lock */
    atomic_int n_slots;
    atomic_bool is_closing;
    atomic_uint n_inside;       /* callers of engine_ask and engine_submit */
    pthread_mutex_t load_lock;  /* one load at a time */
    user_writer *writer;        /* changes the users */
    pthread_mutex_t users_lock; /* of what follows, and of the models' maps of items */
    users users;
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

static status open_data(engine *e) {
    pool *workers;
    if (e->config.data == NULL) return users_init(&e->users, NULL, e->config.max_user_events);
    TRY(pool_create(&workers, 1));
    status st = seq_file_open(&e->data, e->config.data, workers);
    pool_destroy(workers);
    return st == OK ? users_init(&e->users, e->data, e->config.max_user_events) : st;
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
    snprintf(e->device, sizeof e->device, "%s", e->config.device);
    e->config.device = e->device;
    status st = open_data(e);
    if (st == OK)
        st = user_writer_create(&e->writer, &e->users, &e->users_lock, e->config.state,
                                e->config.erase_within_ns);
    if (st == OK)
        *out = e;
    else
        engine_destroy(e);
    return st;
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
    for (int i = 0; i < e->n_slots; i++)
        slot_stop(e->slots[i]);
    wait_for_callers(e);
    for (int i = 0; i < e->n_slots; i++)
        slot_destroy(e->slots[i]);
    user_writer_destroy(e->writer);
    users_fini(&e->users);
    seq_file_close(e->data);
    pthread_mutex_destroy(&e->load_lock);
    pthread_mutex_destroy(&e->users_lock);
    mem_free(e);
}

void engine_drain(engine *e) {
    atomic_store(&e->is_closing, true);
}

slot *engine_slot(engine *e, int index) {
    return index >= 0 && index < atomic_load(&e->n_slots) ? e->slots[index] : NULL;
}

int engine_n_models(engine *e) {
    return atomic_load(&e->n_slots);
}

int engine_find_model(engine *e, const char *name) {
    int found = -1, n = engine_n_models(e);
    if (name == NULL || name[0] == '\0') found = n > 0 ? 0 : -1;
    for (int i = 0; i < n && found < 0; i++)
        if (strcmp(e->slots[i]->name, name) == 0) found = i;
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

/* A slot for a new name, with its model. */
static status add_slot(engine *e, const char *name, served *m) {
    slot *s;
    if (e->n_slots == ENGINE_MAX_MODELS)
        return fail(ERR_USAGE, "at most %d models can be served", ENGINE_MAX_MODELS);
    TRY(slot_create(&s, name, e->config.max_queue, e->config.max_queue_bytes));
    slot_set_model(s, m);
    e->slots[e->n_slots] = s;
    atomic_fetch_add(&e->n_slots, 1);
    return OK;
}

/* Under the load lock. */
static status load(engine *e, const char *name, const char *path) {
    served *m;
    slot *s = engine_slot(e, engine_find_model(e, name));
    TRY(served_open(&m, &e->config, path, e->data));
    status st = s != NULL ? served_checked(m) : add_slot(e, name, m);
    if (st != OK)
        served_drop(m);
    else if (s != NULL)
        slot_set_model(s, m);
    return st;
}

status engine_load(engine *e, const char *name, const char *path) {
    TRY(check_name(name));
    pthread_mutex_lock(&e->load_lock);
    status st = load(e, name, path);
    pthread_mutex_unlock(&e->load_lock);
    return st;
}

static status find_slot(engine *e, int index, slot **out) {
    *out = engine_slot(e, index);
    return *out != NULL ? OK : fail(ERR_USAGE, "there is no model number %d", index);
}

/* A model with a reference. */
static status keep_model(engine *e, int index, served **out) {
    slot *s;
    TRY(find_slot(e, index, &s));
    *out = slot_keep_model(s);
    return OK;
}

status engine_model(engine *e, int index, engine_model_info *out) {
    served *m;
    TRY(keep_model(e, index, &m));
    served_info(m, e->slots[index]->name, out);
    served_drop(m);
    return OK;
}

status engine_model_stats(engine *e, int index, engine_stats *out) {
    slot *s;
    TRY(find_slot(e, index, &s));
    slot_stats(s, out);
    pthread_mutex_lock(&e->users_lock);
    out->events_added = e->users.n_added;
    out->events_duplicate = e->users.n_duplicates;
    pthread_mutex_unlock(&e->users_lock);
    return OK;
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
    slot *s = engine_slot(e, index);
    if (s == NULL) return true;
    served *m = slot_keep_model(s);
    bool is_checked = served_is_checked(m);
    served_drop(m);
    return is_checked;
}

/* Counted as a caller inside, for engine_destroy. */
static status call_slot(engine *e, int index, status (*fn)(served *m, void *ctx), void *ctx) {
    slot *s;
    TRY(find_slot(e, index, &s));
    atomic_fetch_add(&e->n_inside, 1);
    status st = slot_call(s, fn, ctx);
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

typedef struct page_visit {
    void (*fn)(void *ctx, const engine_page *p);
    void *ctx;
} page_visit;

static status visit_pages(served *m, void *ctx) {
    const page_visit *v = ctx;
    int32_t n = m->store.n_pages + m->store.n_host_pages;
    for (int32_t i = 0; m->cache != NULL && i < n; i++) {
        engine_page p = kv_cache_view(m->cache, i);
        v->fn(v->ctx, &p);
    }
    return OK;
}

status engine_visit_pages(engine *e, int index, void (*fn)(void *ctx, const engine_page *p),
                          void *ctx) {
    page_visit v = {fn, ctx};
    return call_slot(e, index, visit_pages, &v);
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

bool engine_has_time(engine *e, const engine_request *r, engine_answer *out) {
    slot *s = engine_slot(e, r->model);
    slot_terms terms = terms_of(e, r);
    *out = (engine_answer){0};
    if (s == NULL || slot_admits(s, &terms, out)) return true;
    (void)refuse(s, r, out, ENGINE_OVERLOAD, NULL);
    return false;
}

/* The job of a request; NULL: *out says why there is none. */
static job *make_job(engine *e, slot *s, const engine_request *r, engine_answer *out) {
    job *j;
    *out = (engine_answer){0};
    if (s == NULL) return refuse(s, r, out, ENGINE_NO_MODEL, "there is no such model");
    if (atomic_load(&e->is_closing))
        return refuse(s, r, out, ENGINE_CLOSING, "the server is shutting down");
    slot_terms terms = terms_of(e, r);
    if (!r->was_asked && !slot_admits(s, &terms, out))
        return refuse(s, r, out, ENGINE_OVERLOAD, NULL);
    status st = prepare(e, s, r, out, &j);
    if (st != OK) return refuse(s, r, out, outcome_of(st), status_reason());
    j->submit_ns = terms.arrived_ns;
    j->deadline_ns = terms.deadline_ns;
    j->has_deadline = terms.deadline_ns > 0;
    j->was_admitted = r->was_asked || !j->has_deadline; /* else its own cost counts */
    j->bytes = j->arena->used_bytes;
    return j;
}

void engine_submit(engine *e, const engine_request *r, engine_answer *out, engine_done done,
                   void *ctx) {
    atomic_fetch_add(&e->n_inside, 1);
    slot *s = engine_slot(e, r->model);
    job *j = make_job(e, s, r, out);
    if (j != NULL) {
        j->done = done;
        j->is_gone = r->is_gone;
        j->ctx = ctx;
        j->is_left = r->makes_items && !r->may_run && j->m->is_ranking;
        if (j->is_left) out->memory->job = j;
        slot_submit(s, j, r->may_run);
    } else {
        done(ctx, out);
    }
    atomic_fetch_sub(&e->n_inside, 1);
}

void engine_ask(engine *e, const engine_request *r, engine_answer *out) {
    atomic_fetch_add(&e->n_inside, 1);
    slot *s = engine_slot(e, r->model);
    job *j = make_job(e, s, r, out);
    if (j != NULL) {
        j->is_left = j->m->is_ranking;
        if (j->is_left) out->memory->job = j;
        slot_ask(s, j);
    }
    if (engine_make_items(out) != OK) (void)refuse(NULL, r, out, ENGINE_FAILED, status_reason());
    atomic_fetch_sub(&e->n_inside, 1);
}

status engine_make_items(engine_answer *a) {
    job *j = a->memory != NULL ? a->memory->job : NULL;
    if (j == NULL || a->outcome != ENGINE_OK) return OK;
    a->memory->job = NULL;
    j->out = a; /* which may be a copy */
    return job_answer_candidates(j);
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
        out[i] = slot_keep_model(engine_slot(e, i));
    return n;
}

static void drop_models(served **models, int n) {
    for (int i = 0; i < n; i++)
        served_drop(models[i]);
}

/* How many items no model knows; an action that the first model has no row for is refused, as the
 * event would never count. */
static status check_events(served *const *models, int n_models, const engine_event *events,
                           size_t n, size_t *n_unknown) {
    *n_unknown = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t item = 0;
        for (int m = 0; m < n_models && item == 0; m++) {
            status st = served_find_id(models[m], &events[i].item, "the item", &item);
            if (st != OK) return fail_prefix(st, "event %zu", i + 1);
        }
        *n_unknown += item == 0;
        if (n_models == 0 || !models[0]->is_ranking) continue;
        int32_t n_actions = models[0]->s->limits.n_actions;
        if (events[i].action >= n_actions)
            return fail(ERR_USAGE, "event %zu: its action is %u, but the model knows 0..%d", i + 1,
                        events[i].action, n_actions - 1);
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

/* A caller that waits for its change. */
typedef struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
} waiting;

static void wake(void *context, engine_change *c) {
    waiting *w = context;
    (void)c;
    pthread_mutex_lock(&w->lock);
    w->is_done = true;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
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
    waiting w = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};
    engine_submit_change(e, c, wake, &w);
    pthread_mutex_lock(&w.lock);
    while (!w.is_done)
        pthread_cond_wait(&w.done, &w.lock);
    pthread_mutex_unlock(&w.lock);
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
        /* Ids of the data are in its map; others may move when more come. */
        if (from.item > e->users.n_data_items)
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
    slot *of_items = engine_slot(e, 0);
    if (of_items != NULL) out->memory->model = slot_keep_model(of_items);
    pthread_mutex_lock(&e->users_lock);
    status st = read_user(e, &id, first, n, out);
    pthread_mutex_unlock(&e->users_lock);
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

/* The data never changes: the lock is taken for those who are found, one at a time. */
status engine_list_users(engine *e, const char *prefix, uint64_t from, size_t n, engine_id *out,
                         size_t *n_found, uint64_t *next) {
    enum { LOOKED_AT = 1 << 22 };
    uint64_t n_users = e->data != NULL ? e->data->n_users : 0, u = from;
    size_t n_prefix = strlen(prefix);
    *n_found = 0;
    for (; u < n_users && *n_found < n && u - from < LOOKED_AT; u++) {
        id_text text;
        engine_id id;
        if (users_data_name(&e->users, u, &id, &text) != OK) continue;
        if (text.n < n_prefix || memcmp(text.text, prefix, n_prefix) != 0) continue;
        if (is_known(e, &text)) out[(*n_found)++] = id;
    }
    *next = u < n_users ? u : 0;
    return OK;
}

uint64_t engine_n_users(engine *e) {
    pthread_mutex_lock(&e->users_lock);
    uint64_t n = e->users.n_known;
    pthread_mutex_unlock(&e->users_lock);
    return n;
}
