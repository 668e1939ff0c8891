/* hstu bench cache: does the KV cache of serving change an answer?  Random schedules against two
 * engines on the same model, one with a small KV cache and one without, whose answers must be
 * equal.
 *
 * A schedule appends events, also late ones, erases users, asks for whole histories that are cut or
 * edited in the middle, and asks several things at once, so that they share batches; the cache is
 * so small that pages are evicted all the time.  Now and then the model is reloaded, or the engine
 * with the cache is ended and a new one is given the users' records.  On the CPU answers are
 * compared bit by bit, elsewhere within a tolerance. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/bench/bench.h"
#include "cli/serve/serve.h"
#include "serve/engine/engine.h"

enum {
    USERS = 8,       /* that events are added to */
    BURST = 6,       /* requests at once, at most */
    CANDIDATES = 24, /* of a request, at most */
    STEPS = 6,       /* of a schedule */
    RELOAD_EVERY = 97,
    RESTART_EVERY = 61,
    TOP_K = 8
};

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

static status open_engine(const check *k, int64_t kv_pages, engine **out) {
    engine_config c = {.data = k->c->data,
                       .device = k->c->device,
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

static int64_t choose_pages(const check *k) {
    if (k->c->kv_pages > 0) return k->c->kv_pages;
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

static bool is_equal(const check *k, float a, float b) {
    if (memcmp(&a, &b, sizeof a) == 0) return true;
    return k->c->tolerance > 0 && fabs((double)a - (double)b) <= k->c->tolerance;
}

/* Where answers may differ within a tolerance, so may the order of items. */
static bool is_same(const check *k, const engine_answer *a, const engine_answer *b) {
    if (a->outcome != b->outcome || a->source != b->source) return false;
    if (a->source == ENGINE_FROM_POPULAR) return true; /* counts may be a second old */
    if (a->n_items != b->n_items) return false;
    for (size_t i = 0; i < a->n_items; i++) {
        if (k->c->tolerance == 0 && a->items[i].number != b->items[i].number) return false;
        for (int c = 0; c < a->n_columns; c++)
            if (!is_equal(k, a->items[i].values[c], b->items[i].values[c])) return false;
    }
    return true;
}

static void judge(check *k, const probe *p) {
    cache_check_result *out = k->out;
    out->n_answers++;
    out->tokens_reused += (uint64_t)p->cached.tokens_reused;
    out->tokens_computed += (uint64_t)p->cached.tokens_computed;
    out->tokens_loaded += (uint64_t)p->cached.tokens_loaded;
    if (is_same(k, &p->cached, &p->plain)) return;
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

status cache_check(const cache_check_config *c, cache_check_result *out) {
    progress bar;
    check k = {.c = c, .out = out, .now = 1000000000};
    *out = (cache_check_result){0};
    pthread_mutex_init(&k.lock, NULL);
    pthread_cond_init(&k.done, NULL);
    status st = open_engines(&k);
    progress_begin(&bar, "checking", "schedules", (uint64_t)c->n);
    while (st == OK && out->n_schedules < (uint64_t)c->n) {
        st = run_schedule(&k);
        progress_update(&bar, out->n_schedules);
    }
    progress_end(&bar);
    count_evictions(&k);
    engine_destroy(k.cached);
    engine_destroy(k.plain);
    for (int i = 0; i < BURST; i++)
        mem_free(k.probes[i].history);
    pthread_mutex_destroy(&k.lock);
    pthread_cond_destroy(&k.done);
    return st;
}

static status print_json(const cache_check_config *a, const cache_check_result *r) {
    json_writer *w = json_line_open();
    JSON_FIELDS(w, FIELD("bench", "cache"), FIELD("device", a->device), FIELD("seed", a->seed),
                FIELD("schedules", r->n_schedules), FIELD("answers", r->n_answers),
                FIELD("different", r->n_different), FIELD("tokens_reused", r->tokens_reused),
                FIELD("tokens_loaded", r->tokens_loaded),
                FIELD("tokens_computed", r->tokens_computed),
                FIELD("pages_evicted", r->n_evictions), FIELD("reloads", r->n_reloads),
                FIELD("restarts", r->n_restarts));
    return json_line_print();
}

static void print_text(const cache_check_result *r) {
    char a[SHOW_BYTES], b[SHOW_BYTES], c[SHOW_BYTES], d[SHOW_BYTES];
    printf("%s schedules, %s answers with the cache: %" PRIu64 " differ from those without it\n",
           show_count(a, r->n_schedules), show_count(b, r->n_answers), r->n_different);
    printf("%s tokens reused (%s of them from host memory), ", show_count(a, r->tokens_reused),
           show_count(d, r->tokens_loaded));
    printf("%s computed; ", show_count(b, r->tokens_computed));
    printf("%s pages evicted, %" PRIu64 " reloads, %" PRIu64 " restarts\n",
           show_count(c, r->n_evictions), r->n_reloads, r->n_restarts);
}

static status run(const cache_check_config *c, bool is_json) {
    cache_check_result r;
    TRY(cache_check(c, &r));
    if (is_json)
        TRY(print_json(c, &r));
    else
        print_text(&r);
    return r.n_different == 0 ? OK : fail(ERR_NUMERIC, "the cache changed answers; %s", r.first);
}

status bench_cache(int argc, char **argv) {
    cache_check_config a = {.device = "cpu", .n = 1000, .seed = 1};
    bool is_json = false;
    const arg_option options[] = {
        OPT_TEXT("--data", &a.data, "DIR", "Prepared data with the users to start from."),
        OPT_INT("--n", &a.n, "N", 1, 1 << 30, "Number of schedules (default 1000)."),
        OPT_INT("--seed", &a.seed, "S", 0, INT64_MAX, "Seed of the schedules (default 1)."),
        OPT_INT("--kv-pages", &a.kv_pages, "P", 1, 1 << 24,
                "Pages of 64 tokens in the cache (default: enough for five full histories, so that "
                "pages are evicted constantly)."),
        OPT_INT("--kv-host-pages", &a.kv_host_pages, "P", 0, 1 << 24,
                "Pages of a second tier in host memory; all of them are loaded (default 0: no "
                "second tier)."),
        OPT_CHOICE("--kv-dtype", &a.has_fp8_kv, "TYPE", kv_args_dtypes, KV_DTYPES),
        OPT_DOUBLE(
            "--tolerance", &a.tolerance, "X",
            "Allowed difference between two numbers (default 0: bit for bit, as on the CPU)."),
        OPT_TEXT("--device", &a.device, "DEVICE", "cpu (default), auto, cuda or cuda:N."),
        OPT_FLAG("--json", &is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench cache RUN [--data DIR] [--n 10000]",
        .summary =
            "Check that the KV cache never changes an answer. Random schedules (ordered and late "
            "events, erased users, truncated or edited histories, concurrent requests, evictions, "
            "reloads, restarts) run on an engine with a cache and on one without.",
        .options = options,
        .min_positional = 1,
        .max_positional = 1};
    ARGS_PARSE(&spec, &a.run, NULL);
    return run(&a, is_json);
}
