/* The engine's models and requests; its users are in engine_users.c. */
#include "serve/engine.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "serve/engine_int.h"
#include "serve/waiter.h"

enum { DEFAULT_QUEUE = 1024, MAX_BATCH = 4096 };
#define DEFAULT_DEADLINE_NS 1000000000u
#define DEFAULT_ERASE_NS    60000000000u

static void set_defaults(engine_config *c) {
    if (c->device == NULL) c->device = "auto";
    if (c->max_queue <= 0) c->max_queue = DEFAULT_QUEUE;
    if (c->max_user_events == 0) c->max_user_events = 1 << 20;
    if (c->deadline_ns == 0) c->deadline_ns = DEFAULT_DEADLINE_NS;
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
    if (st != OK) {
        engine_destroy(e);
        return st;
    }
    *out = e;
    return OK;
}

/* A caller looks at its slot until it leaves: after its answer was given, too.  Nobody is woken
 * when the last one leaves, so this looks now and then. */
static void wait_for_callers(engine *e) {
    enum { LOOK_NS = 1000000 };
    for (unsigned n; (n = atomic_load(&e->n_inside)) > 0;)
        thread_sleep_while(&e->n_inside, n, clock_ns() + LOOK_NS);
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

bool engine_wait_idle(engine *e, uint64_t timeout_ns) {
    uint64_t until = clock_ns() + timeout_ns;
    for (int i = 0; i < engine_n_models(e); i++)
        if (!slot_wait_idle(engine_slot(e, i), until)) return false;
    return true;
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
    TRY(slot_create(&s, name, e->config.max_queue, e->config.deadline_ns));
    slot_set_model(s, m);
    e->slots[e->n_slots] = s;
    atomic_fetch_add(&e->n_slots, 1);
    return OK;
}

/* Under the load lock. */
static status load(engine *e, const char *name, const char *path) {
    served_config c = {.path = path,
                       .device = e->config.device,
                       .data = e->data,
                       .n_threads = e->config.n_threads,
                       .max_batch = e->config.max_batch,
                       .max_tokens = e->config.max_tokens,
                       .kv_pages = e->config.kv_pages,
                       .kv_host_pages = e->config.kv_host_pages,
                       .loads_always = e->config.loads_always,
                       .has_fp8_kv = e->config.has_fp8_kv,
                       .has_int8_items = e->config.has_int8_items};
    served *m;
    int i = engine_find_model(e, name);
    TRY(served_open(&m, &c));
    if (i >= 0) {
        status checked = served_checked(m);
        if (checked != OK)
            served_drop(m);
        else
            slot_set_model(engine_slot(e, i), m);
        return checked;
    }
    status st = add_slot(e, name, m);
    if (st != OK) served_drop(m);
    return st;
}

status engine_load(engine *e, const char *name, const char *path) {
    TRY(check_name(name));
    pthread_mutex_lock(&e->load_lock);
    status st = load(e, name, path);
    pthread_mutex_unlock(&e->load_lock);
    return st;
}

static status no_such_model(int index) {
    return fail(ERR_USAGE, "there is no model number %d", index);
}

status engine_model(engine *e, int index, engine_model_info *out) {
    slot *s = engine_slot(e, index);
    if (s == NULL) return no_such_model(index);
    served *m = slot_keep_model(s);
    served_info(m, s->name, out);
    served_drop(m);
    return OK;
}

status engine_model_stats(engine *e, int index, engine_stats *out) {
    slot *s = engine_slot(e, index);
    if (s == NULL) return no_such_model(index);
    slot_stats(s, out);
    engine_user_stats(e, out);
    return OK;
}

status engine_item_of(engine *e, int index, uint32_t number, engine_item *out) {
    slot *s = engine_slot(e, index);
    if (s == NULL) return no_such_model(index);
    served *m = slot_keep_model(s);
    bool has = number >= 1 && number <= m->names->n_items;
    if (has) *out = served_item_names(m, number);
    served_drop(m);
    return has ? OK : fail(ERR_USAGE, "the model has no item number %u", number);
}

status engine_wait_checked(engine *e, int index) {
    slot *s = engine_slot(e, index);
    if (s == NULL) return no_such_model(index);
    served *m = slot_keep_model(s);
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

typedef struct row_query {
    uint32_t first, n;
    float *out;
} row_query;

static status read_rows(served *m, void *ctx) {
    const row_query *q = ctx;
    const item_table *t = &m->table;
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
    slot *s = engine_slot(e, index);
    return s != NULL ? slot_call(s, read_rows, &q) : no_such_model(index);
}

typedef struct page_visit {
    void (*fn)(void *ctx, const engine_page *p);
    void *ctx;
} page_visit;

static status visit_pages(served *m, void *ctx) {
    const page_visit *v = ctx;
    int32_t n = m->store.n_pages;
    for (int32_t i = 0; m->cache != NULL && i < n + m->store.n_host_pages; i++) {
        bool is_host = i >= n;
        kv_page_view p = is_host ? kv_cache_view_host(m->cache, i - n) : kv_cache_view(m->cache, i);
        engine_page out = {.page = i,
                           .owner = p.key,
                           .n_tokens = p.n_tokens,
                           .first = p.first,
                           .age = p.age,
                           .is_pinned = p.is_pinned,
                           .is_host = is_host};
        v->fn(v->ctx, &out);
    }
    return OK;
}

status engine_visit_pages(engine *e, int index, void (*fn)(void *ctx, const engine_page *p),
                          void *ctx) {
    page_visit v = {fn, ctx};
    slot *s = engine_slot(e, index);
    return s != NULL ? slot_call(s, visit_pages, &v) : no_such_model(index);
}

status engine_work_of(engine *e, int index, const engine_shape *shape, engine_work *out) {
    slot *s = engine_slot(e, index);
    if (s == NULL) return no_such_model(index);
    served *m = slot_keep_model(s);
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
    slot *s = engine_slot(e, index);
    return s != NULL ? slot_call(s, call_backend, &c) : no_such_model(index);
}

const char *engine_stage_name(engine_stage s) {
    static const char *const names[ENGINE_STAGES] = {"queue", "build", "layers", "head"};
    return names[s];
}

static engine_outcome outcome_of(status st) {
    if (st == ERR_USAGE || st == ERR_UNSUPPORTED || st == ERR_CONFIG) return ENGINE_BAD;
    return ENGINE_FAILED;
}

/* The answer's memory with its model, whose reference it takes; the job in it.  is_own: the caller
 * will probably run it. */
static status prepare(engine *e, slot *s, const engine_request *r, served *m, bool is_own,
                      engine_answer *out, job **j) {
    status st = MEM_NEW(&out->memory, 1);
    if (st != OK) {
        served_drop(m);
        return st;
    }
    size_t n = r->n_history + r->n_extra + r->n_candidates; /* about what they take, in one block */
    arena_init(&out->memory->arena, (1 << 14) + (n < 1 << 16 ? n : 1 << 16) * 96);
    out->memory->model = m;
    snprintf(out->model, sizeof out->model, "%s", s->name);
    snprintf(out->version, sizeof out->version, "%s", m->version_text);
    out->n_columns = m->columns.n;
    out->columns = m->columns.names;
    job_users from = {&e->users, &e->users_lock, .finds_pages = !is_own};
    return job_make(j, out, r, &from);
}

/* Ends a request that never came into a queue. */
static void answer_early(engine_answer *out, engine_outcome outcome, const char *why,
                         engine_done done, void *ctx) {
    out->outcome = outcome;
    snprintf(out->error, sizeof out->error, "%s", why);
    done(ctx, out);
}

static uint64_t deadline_of(const engine *e, slot *s, const engine_request *r, uint64_t arrived) {
    uint64_t all = r->deadline_ns;
    if (all == 0) all = e->config.learns_deadline ? slot_patience(s) : e->config.deadline_ns;
    return arrived + all - (r->after_ns < all / 2 ? r->after_ns : all / 2);
}

static void refuse(slot *s, const engine_request *r, engine_answer *out) {
    slot_count(s, r->task, ENGINE_OVERLOAD);
    out->outcome = ENGINE_OVERLOAD;
}

bool engine_has_time(engine *e, const engine_request *r, engine_answer *out) {
    uint64_t arrived = r->arrived_ns > 0 ? r->arrived_ns : clock_ns();
    slot *s = engine_slot(e, r->model);
    *out = (engine_answer){0};
    if (s == NULL || slot_has_time(s, deadline_of(e, s, r, arrived), r->priority, out)) return true;
    refuse(s, r, out);
    return false;
}

/* Returns the job where its caller, who waits for it, is to make the items of the answer; else
 * NULL. */
static job *submit(engine *e, const engine_request *r, engine_answer *out, bool may_run,
                   bool is_awaited, engine_done done, void *ctx) {
    uint64_t now = clock_ns();
    job *j = NULL;
    *out = (engine_answer){0};
    slot *s = engine_slot(e, r->model);
    if (s == NULL) {
        answer_early(out, ENGINE_NO_MODEL, "there is no such model", done, ctx);
        return NULL;
    }
    if (atomic_load(&e->is_closing)) {
        slot_count(s, r->task, ENGINE_CLOSING);
        answer_early(out, ENGINE_CLOSING, "the server is shutting down", done, ctx);
        return NULL;
    }
    uint64_t arrived = r->arrived_ns > 0 ? r->arrived_ns : now;
    uint64_t deadline = deadline_of(e, s, r, arrived);
    slot_terms terms = {deadline, r->priority, r->was_asked, may_run};
    served *m;
    bool is_own;
    if (!slot_expect(s, &terms, out, &m, &is_own)) {
        refuse(s, r, out);
        done(ctx, out);
        return NULL;
    }
    status st = prepare(e, s, r, m, is_own, out, &j);
    if (st != OK) {
        slot_expect_none(s);
        slot_count(s, r->task, outcome_of(st));
        answer_early(out, outcome_of(st), status_reason(), done, ctx);
        return NULL;
    }
    j->done = done;
    j->is_gone = r->is_gone;
    j->ctx = ctx;
    j->submit_ns = arrived;
    j->deadline_ns = deadline;
    j->is_awaited = is_awaited && j->m->is_ranking;
    j->is_left = r->makes_items && !may_run && j->m->is_ranking;
    if (j->is_left) out->memory->job = j;
    slot_submit(s, j, may_run);
    return is_awaited && j->is_awaited ? j : NULL;
}

void engine_submit(engine *e, const engine_request *r, engine_answer *out, engine_done done,
                   void *ctx) {
    atomic_fetch_add(&e->n_inside, 1);
    (void)submit(e, r, out, r->may_run, false, done, ctx);
    atomic_fetch_sub(&e->n_inside, 1);
}

static void ask(engine *e, const engine_request *r, engine_answer *out) {
    waiter w;
    waiter_init(&w);
    job *j = submit(e, r, out, true, true, waiter_wake, &w);
    if (j == NULL) {
        waiter_wait(&w, NULL, NULL);
        return;
    }
    status st = job_name_candidates(j);
    waiter_wait(&w, engine_slot(e, r->model), j);
    if (out->outcome != ENGINE_OK) return;
    if (st == OK) st = job_answer_candidates(j);
    if (st == OK) return;
    out->outcome = ENGINE_FAILED;
    snprintf(out->error, sizeof out->error, "%s", status_reason());
}

void engine_ask(engine *e, const engine_request *r, engine_answer *out) {
    atomic_fetch_add(&e->n_inside, 1);
    ask(e, r, out);
    atomic_fetch_sub(&e->n_inside, 1);
}

status engine_make_items(engine_answer *a) {
    job *j = a->memory != NULL ? a->memory->job : NULL;
    if (j == NULL || a->outcome != ENGINE_OK) return OK;
    a->memory->job = NULL;
    j->out = a; /* which may be a copy */
    return job_answer_candidates(j);
}

void engine_release_memory(struct engine_answer_memory *memory) {
    if (memory == NULL) return;
    served_drop(memory->model);
    arena_fini(&memory->arena);
    mem_free(memory);
}

void engine_answer_release(engine_answer *a) {
    engine_release_memory(a->memory);
    a->memory = NULL;
    a->items = NULL;
    a->n_items = 0;
    a->vector = NULL;
}
