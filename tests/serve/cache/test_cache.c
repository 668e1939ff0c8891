/* The KV cache of serving changes no answer: random schedules on models whose histories have
 * several pages, against two engines on the same model, one with a small KV cache and one without.
 *
 * A schedule appends events, also late ones, erases users, asks for whole histories that are cut or
 * edited in the middle, and asks several things at once, so that they share batches; the cache is
 * so small that pages are evicted all the time.  Now and then the model is reloaded, or the engine
 * with the cache is ended and a new one is given the users' records.  On the CPU answers are
 * compared bit by bit, on a GPU within a tolerance. */
#include <math.h>
#include <pthread.h>

#include "base/rng.h"
#include "device.h"
#include "serve_test.h"

enum {
    USERS = 8,       /* that events are added to */
    BURST = 6,       /* requests at once, at most */
    CANDIDATES = 24, /* of a request, at most */
    STEPS = 6,       /* of a schedule */
    RELOAD_EVERY = 97,
    RESTART_EVERY = 61,
    TOP_K = 8
};

typedef struct cache_check_config {
    const char *run, *data;
    int64_t n; /* schedules */
    int64_t seed;
    int64_t kv_host_pages; /* of the second tier, from which pages are always loaded; 0: none */
    bool has_fp8_kv;       /* of both engines */
} cache_check_config;

typedef struct cache_check_result {
    uint64_t n_schedules, n_answers, n_different;
    uint64_t tokens_reused, tokens_computed, tokens_loaded, n_evictions, n_reloads, n_restarts;
    char first[160]; /* the first difference, in words; "" */
} cache_check_result;

/* One request of a burst, with all that it points to. */
typedef struct probe {
    engine_request request;
    engine_answer cached, plain;
    engine_id candidate[CANDIDATES];
    engine_event *history; /* (max_history + 20) */
} probe;

typedef struct check {
    const cache_check_config *c;
    cache_check_result *out;
    engine *cached, *plain;
    engine_model_info info;
    probe probes[BURST];
    uint64_t n_drawn;
    int64_t now; /* of the newest event */
    pthread_mutex_t lock;
    pthread_cond_t done;
    int n_waiting;
} check;

static uint32_t draw(check *k, uint32_t n) {
    uint64_t i = k->n_drawn++;
    rng_block b = rng_draw64(rng_make_key((uint64_t)k->c->seed, RNG_TEST), i, 0);
    return rng_below(b.word[0], n);
}

static double tolerance(void) {
    return test_on.kind == ON_CUDA ? .01 : 0;
}

static status open_engine(const check *k, int64_t kv_pages, engine **out) {
    char device[32] = "cpu";
    if (test_on.kind == ON_CUDA) snprintf(device, sizeof device, "cuda:%d", test_on.number);
    engine_config c = {.data = k->c->data,
                       .device = device,
                       .n_threads = 1,
                       .kv_pages = kv_pages,
                       .kv_host_pages = kv_pages > 0 ? k->c->kv_host_pages : 0,
                       .loads_always = true,
                       .has_fp8_kv = k->c->has_fp8_kv,
                       .deadline_ns = 600000000000u};
    TRY(engine_create(out, &c));
    status st = engine_load(*out, "check", k->c->run);
    if (st != OK) {
        engine_destroy(*out);
        *out = NULL;
    }
    return st;
}

/* As many as five full histories need. */
static int64_t choose_pages(const check *k) {
    return 5 * (2 * (int64_t)k->info.max_history / 64 + 1);
}

static status open_engines(check *k) {
    TRY(open_engine(k, 0, &k->plain));
    TRY(engine_model(k->plain, 0, &k->info));
    TRY(open_engine(k, choose_pages(k), &k->cached));
    TRY(engine_model(k->cached, 0, &k->info));
    if (!k->info.is_cached) return fail(ERR_UNSUPPORTED, "%s", k->info.cache_note);
    for (int i = 0; i < BURST; i++)
        TRY(MEM_NEW(&k->probes[i].history, (size_t)k->info.max_history + 20));
    return OK;
}

static engine_id item_id(check *k, uint32_t number) {
    engine_item item = {.number = 0};
    if (engine_item_of(k->plain, 0, number, &item) != OK) item.id.number = -1;
    return item.id;
}

/* An item of the model, or now and then one that it does not know. */
static engine_id some_item(check *k) {
    if (draw(k, 30) == 0) return (engine_id){.number = -12345, .n = 1};
    return item_id(k, 1 + draw(k, (uint32_t)k->info.n_items));
}

static engine_id user_id(int i) {
    static const char *const names[USERS] = {"ann", "ben", "cid", "dee",
                                             "eva", "fay", "gus", "hal"};
    return (engine_id){.text = names[i], .n = strlen(names[i])};
}

static engine_id some_user(check *k) {
    return user_id((int)draw(k, USERS));
}

/* Events in order, late ones, bursts and single ones; to both engines. */
static status add_events(check *k) {
    engine_event e[40];
    engine_added added;
    engine_id user = some_user(k);
    uint32_t n = draw(k, 3) == 0 ? 40 : 1 + draw(k, 4);
    bool is_late = draw(k, 6) == 0;
    for (uint32_t i = 0; i < n; i++) {
        k->now += draw(k, 4) == 0 ? 0 : 1 + draw(k, 5000);
        int64_t time = is_late ? k->now - (int64_t)draw(k, 100000) : k->now;
        e[i] = (engine_event){
            .item = some_item(k), .has_time = true, .time = time, .action = (uint16_t)draw(k, 2)};
    }
    TRY(engine_add_events(k->cached, user, e, n, &added));
    return engine_add_events(k->plain, user, e, n, &added);
}

static status erase(check *k) {
    engine_id user = some_user(k);
    bool existed;
    TRY(engine_erase_user(k->cached, user, &existed));
    return engine_erase_user(k->plain, user, &existed);
}

/* A whole history: one of three, cut anywhere, and perhaps with another item in the middle. */
static void make_history(check *k, probe *p) {
    uint32_t who = draw(k, 3), n = 1 + draw(k, (uint32_t)k->info.max_history + 19);
    uint32_t edit = draw(k, 3) == 0 ? draw(k, n) : n, n_items = (uint32_t)k->info.n_items;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t number = 1 + (who * 31 + i * (7 + who) + (i == edit)) % n_items;
        p->history[i] = (engine_event){.item = item_id(k, number),
                                       .has_time = true,
                                       .time = 1000000000 + (int64_t)i * 100,
                                       .action = (uint16_t)((i + who) % 2)};
    }
    p->request.has_history = true;
    p->request.history = p->history;
    p->request.n_history = n;
}

static void make_probe(check *k, probe *p) {
    bool is_ranking = strcmp(k->info.task, "ranking") == 0 || draw(k, 8) == 0;
    p->request = (engine_request){.task = is_ranking ? ENGINE_RANK : ENGINE_RECOMMEND,
                                  .top_k = is_ranking ? 0 : TOP_K};
    if (draw(k, 2) == 0) {
        make_history(k, p);
    } else {
        p->request.has_user = true;
        p->request.user = some_user(k);
    }
    p->request.run_ns = draw(k, 2) == 0 ? UINT64_MAX : 0;
    if (!is_ranking) return;
    p->request.candidates = p->candidate;
    p->request.n_candidates = 1 + draw(k, CANDIDATES);
    for (size_t i = 0; i < p->request.n_candidates; i++)
        p->candidate[i] = some_item(k);
}

static void count_down(void *ctx, engine_answer *a) {
    check *k = ctx;
    (void)a;
    pthread_mutex_lock(&k->lock);
    if (--k->n_waiting == 0) pthread_cond_signal(&k->done);
    pthread_mutex_unlock(&k->lock);
}

static void ask_together(check *k, int n) {
    k->n_waiting = n;
    for (int i = 0; i < n; i++)
        engine_submit(k->cached, &k->probes[i].request, &k->probes[i].cached, count_down, k);
    pthread_mutex_lock(&k->lock);
    while (k->n_waiting > 0)
        pthread_cond_wait(&k->done, &k->lock);
    pthread_mutex_unlock(&k->lock);
}

static bool is_equal(float a, float b) {
    if (memcmp(&a, &b, sizeof a) == 0) return true;
    return tolerance() > 0 && fabs((double)a - (double)b) <= tolerance();
}

/* Where answers may differ within a tolerance, so may the order of items. */
static bool is_same(const engine_answer *a, const engine_answer *b) {
    if (a->outcome != b->outcome || a->source != b->source) return false;
    if (a->source == ENGINE_FROM_POPULAR) return true; /* counts may be a second old */
    if (a->n_items != b->n_items) return false;
    for (size_t i = 0; i < a->n_items; i++) {
        if (tolerance() == 0 && a->items[i].number != b->items[i].number) return false;
        for (int c = 0; c < a->n_columns; c++)
            if (!is_equal(a->items[i].values[c], b->items[i].values[c])) return false;
    }
    return true;
}

static void judge(check *k, const probe *p) {
    cache_check_result *out = k->out;
    out->n_answers++;
    out->tokens_reused += (uint64_t)p->cached.tokens_reused;
    out->tokens_computed += (uint64_t)p->cached.tokens_computed;
    out->tokens_loaded += (uint64_t)p->cached.tokens_loaded;
    if (is_same(&p->cached, &p->plain)) return;
    if (out->n_different++ == 0)
        snprintf(out->first, sizeof out->first,
                 "schedule %llu: %d tokens reused, %d computed, outcomes %d and %d: %.60s",
                 (unsigned long long)out->n_schedules, p->cached.tokens_reused,
                 p->cached.tokens_computed, p->cached.outcome, p->plain.outcome, p->cached.error);
}

static void ask(check *k) {
    int n = 1 + (int)draw(k, BURST);
    for (int i = 0; i < n; i++)
        make_probe(k, &k->probes[i]);
    ask_together(k, n);
    for (int i = 0; i < n; i++) {
        probe *p = &k->probes[i];
        CHECK_OK(engine_make_items(&p->cached));
        engine_ask(k->plain, &p->request, &p->plain);
        judge(k, p);
        engine_answer_release(&p->cached);
        engine_answer_release(&p->plain);
    }
}

/* The history of a user, as another engine has it. */
static status copy_user(engine *from, engine *to, engine_id user) {
    engine_user u;
    engine_event *events = NULL;
    engine_added added;
    TRY(engine_get_user(from, user, 0, SIZE_MAX, &u));
    status st = MEM_NEW(&events, u.n_events);
    for (size_t i = 0; st == OK && i < u.n_events; i++)
        events[i] = (engine_event){.item = u.events[i].item,
                                   .has_time = true,
                                   .time = u.events[i].time,
                                   .time_ns = u.events[i].time_ns,
                                   .action = u.events[i].action};
    if (st == OK && u.n_events > 0) st = engine_add_events(to, user, events, u.n_events, &added);
    mem_free(events);
    engine_user_release(&u);
    return st;
}

static void count_evictions(check *k) {
    engine_stats s;
    if (k->cached != NULL && engine_model_stats(k->cached, 0, &s) == OK)
        k->out->n_evictions += s.kv_evictions;
}

/* The users' events lead from one engine to the next. */
static status restart(check *k) {
    engine *next;
    TRY(open_engine(k, choose_pages(k), &next));
    status st = OK;
    for (int i = 0; i < USERS && st == OK; i++)
        st = copy_user(k->cached, next, user_id(i));
    if (st != OK) {
        engine_destroy(next);
        return st;
    }
    count_evictions(k);
    engine_destroy(k->cached);
    k->cached = next;
    k->out->n_restarts++;
    return OK;
}

static status run_schedule(check *k) {
    for (int step = 0; step < STEPS; step++) {
        uint32_t what = draw(k, 20);
        if (what < 9) TRY(add_events(k));
        if (what == 9) TRY(erase(k));
        if (what > 9) ask(k);
    }
    k->out->n_schedules++;
    if (k->out->n_schedules % RELOAD_EVERY == 0) {
        TRY(engine_load(k->cached, "check", k->c->run));
        k->out->n_reloads++;
    }
    return k->out->n_schedules % RESTART_EVERY == 0 ? restart(k) : OK;
}

static status cache_check(const cache_check_config *c, cache_check_result *out) {
    check k = {.c = c, .out = out, .now = 1000000000};
    *out = (cache_check_result){0};
    pthread_mutex_init(&k.lock, NULL);
    pthread_cond_init(&k.done, NULL);
    status st = open_engines(&k);
    while (st == OK && out->n_schedules < (uint64_t)c->n)
        st = run_schedule(&k);
    count_evictions(&k);
    engine_destroy(k.cached);
    engine_destroy(k.plain);
    for (int i = 0; i < BURST; i++)
        mem_free(k.probes[i].history);
    pthread_mutex_destroy(&k.lock);
    pthread_cond_destroy(&k.done);
    return st;
}

static void check_tiers(const char *gin, const char *const *set, size_t n_set, uint64_t n,
                        int64_t host_pages, bool is_fp8) {
    cache_check_config c = {.run = serve_run("long", gin, set, n_set),
                            .data = synth_folder(),
                            .n = (int64_t)n,
                            .seed = 7,
                            .kv_host_pages = host_pages,
                            .has_fp8_kv = is_fp8};
    cache_check_result r;
    CHECK_OK(cache_check(&c, &r));
    CHECK((r.tokens_loaded > r.tokens_reused / 16) == (host_pages > 0));
    if (r.n_different != 0) FAIL_TEST("%s", r.first);
    CHECK(r.n_schedules == n && r.n_answers > 4 * n);
    if (r.tokens_reused < r.tokens_computed / 4 || r.n_evictions < n / 4)
        FAIL_TEST("%llu tokens reused, %llu computed, %llu pages evicted: that proves little",
                  (unsigned long long)r.tokens_reused, (unsigned long long)r.tokens_computed,
                  (unsigned long long)r.n_evictions);
    CHECK(r.n_reloads == n / 97 && r.n_restarts == n / 61);
}

static void check_model(const char *gin, const char *const *set, size_t n_set, uint64_t n) {
    check_tiers(gin, set, n_set, n, 0, false);
}

/* Position and time bias: the last row of a history changes with the next event. */
TEST(serve_check_of_research_retrieval) {
    static const char *const set[] = {"train_fn.max_sequence_length=150",
                                      "hstu_encoder.num_blocks=2"};
    check_model(retrieval_gin, set, 2, test_is_brief() ? 98 : 130);
}

/* FuXi's channels read the values in the pages, and the time of the next event. */
TEST(serve_check_of_fuxi) {
    static const char *const set[] = {"train_fn.max_sequence_length=150",
                                      "train_fn.main_module='FuXi'", "fuxi_encoder.num_heads=2",
                                      "fuxi_encoder.dqk=6", "fuxi_encoder.dv=5"};
    check_model(retrieval_gin, set, 5, test_is_brief() ? 98 : 130);
}

/* Items and actions in turn, candidates that are never kept. */
TEST(serve_check_of_ranking) {
    static const char *const set[] = {"DatasetArgs.max_history_seqlen=90",
                                      "NetworkArgs.num_layers=2",
                                      "NetworkArgs.disable_contextual_mask=True"};
    check_model(ranking_gin, set, 3, test_is_brief() ? 98 : 130);
}

/* Pages that come back from host memory, and keys and values in 8 bits: with the cache and without,
 * they are rounded alike, so that answers stay equal to the bit. */
static const char *const tier_set[] = {
    "DatasetArgs.max_history_seqlen=90", "NetworkArgs.num_layers=2", "NetworkArgs.hidden_size=16",
    "NetworkArgs.num_attention_heads=2", "NetworkArgs.disable_contextual_mask=True"};

TEST(serve_check_of_two_tiers) {
    check_tiers(ranking_gin, tier_set, 5, test_is_brief() ? 16 : 40, 12, false);
}

TEST(serve_check_of_two_tiers_in_8_bits) {
    check_tiers(ranking_gin, tier_set, 5, test_is_brief() ? 16 : 40, 12, true);
}

/* Nothing is reused where a new event changes older rows. */
TEST(serve_check_refuses_what_cannot_be_reused) {
    static const char *const sets[] = {"train_fn.main_module='SASRec'",
                                       "train_fn.main_module='eSASRec'"};
    for (int i = 0; i < 2; i++) {
        cache_check_config c = {
            .run = serve_run(i ? "esasrec" : "sasrec", retrieval_gin, &sets[i], 1)};
        cache_check_result r;
        CHECK_FAILS(cache_check(&c, &r), ERR_UNSUPPORTED, "softmax");
    }
}
