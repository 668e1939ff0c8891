/* /v1/recommend, /v1/rank, /rerank and /v1/similar: read, ask the engine, write the answer and,
 * where it is asked for, the reasons. */
#include <semaphore.h>

#include "serve/http/server_int.h"

/* A call that asks the engine; in the call's arena. */
typedef struct asking {
    call *c;
    request_ask r;
    engine_answer answer;
    uint64_t answered_ns; /* when the engine was done */
    int model;            /* its number */
    int n_columns;
    int *column;              /* (n_columns) of the answer, in the order asked for */
    int32_t top_k;            /* where the server orders the items itself, by the first task */
    const engine_item **item; /* (n_items), in the order of the answer */
    size_t n_items;
    engine_user_events given; /* the request's events */
    engine_added added;
    engine_change change;
} asking;

enum { ANSWER_BYTES = 2 << 10 }; /* of most answers */

/* Why these items?  By leaving events out: the newest events of the history are removed one at a
 * time, and the items are scored again.  How much an item's score falls is what the event does for
 * it, all that follows included: an exact statement about the model, not about the user. */

enum { MAX_EVENTS = 24, MAX_ITEMS = 16 };

static void count_answer(void *done, engine_answer *a) {
    sem_post(done);
}

/* A history without one event; skip = n: all of it. */
static const engine_event *without(const engine_event *all, size_t n, size_t skip,
                                   engine_event *out) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (i != skip) out[k++] = all[i];
    return out;
}

static float value_of(const engine_answer *a, size_t item) {
    return a->outcome == ENGINE_OK && item < a->n_items ? a->items[item].values[0] : NAN;
}

/* Answer 0 is of the whole history; answer j + 1 of that without event first + j. */
static void write_effects(json_writer *w, const engine_answer *answer, int n,
                          const engine_answer *a, size_t n_items) {
    json_key_array(w, "items");
    for (size_t i = 0; i < n_items; i++) {
        float whole = value_of(&answer[0], i);
        json_object_open(w);
        write_id(w, "item", &a->items[i].id);
        json_key_array(w, "effects");
        for (int j = 1; j < n; j++)
            write_number(w, whole - value_of(&answer[j], i));
        json_array_close(w);
        json_object_close(w);
    }
    json_array_close(w);
}

/* Of a longer history the newest events. */
static status copy_history(arena *memory, engine *e, const request_ask *r, engine_event **out,
                           size_t *n, engine_user *user) {
    *user = (engine_user){0};
    if (!r->ask.has_history)
        TRY(engine_get_user(e, r->ask.user, ENGINE_NEWEST, REQUEST_MAX_EXPLAINED, user));
    size_t n_own = r->ask.has_history ? r->ask.n_history : user->n_events;
    *n = n_own + r->ask.n_extra;
    TRY(ARENA_NEW(memory, out, *n));
    for (size_t i = 0; i < n_own && r->ask.has_history; i++)
        (*out)[i] = r->ask.history[i];
    for (size_t i = 0; i < n_own && !r->ask.has_history; i++)
        (*out)[i] = (engine_event){.item = user->events[i].item,
                                   .has_time = true,
                                   .time = user->events[i].time,
                                   .time_ns = user->events[i].time_ns,
                                   .action = user->events[i].action};
    for (size_t i = 0; i < r->ask.n_extra; i++)
        (*out)[n_own + i] = r->ask.extra[i];
    return OK;
}

static status write_reasons(arena *memory, server *s, const engine_event *history, size_t n_history,
                            size_t n_before, const engine_answer *a, int model, json_writer *w) {
    size_t first = n_history > MAX_EVENTS ? n_history - MAX_EVENTS : 0;
    size_t n_items = a->n_items < MAX_ITEMS ? a->n_items : MAX_ITEMS;
    int n = (int)(n_history - first) + 1;
    engine_id *ids;
    engine_event *part;
    engine_answer *answer;
    sem_t done;
    TRY(ARENA_NEW(memory, &ids, n_items));
    TRY(ARENA_NEW(memory, &part, n_history));
    TRY(ARENA_NEW(memory, &answer, (size_t)n));
    for (size_t i = 0; i < n_items; i++)
        ids[i] = a->items[i].id;
    sem_init(&done, 0, 0);
    for (int j = 0; j < n; j++) {
        size_t skip = j == 0 ? n_history : first + (size_t)j - 1;
        engine_request r = {.task = ENGINE_RANK,
                            .model = model,
                            .has_history = true,
                            .history = without(history, n_history, skip, part),
                            .n_history = n_history - (j > 0),
                            .candidates = ids,
                            .n_candidates = n_items,
                            .keeps_seen = true,
                            .deadline_ns = 30000000000u};
        engine_submit(s->engine, &r, &answer[j], count_answer, &done);
    }
    for (int i = 0; i < n;)
        i += sem_wait(&done) == 0; /* or a signal came */
    sem_destroy(&done);
    for (int j = 0; j < n; j++)
        if (engine_make_items(&answer[j]) != OK) answer[j].outcome = ENGINE_FAILED;
    JSON_FIELDS(w, FIELD("first_event", n_before + first), FIELD("events", n_history - first));
    write_effects(w, answer, n, a, n_items);
    for (int j = 0; j < n; j++)
        engine_answer_release(&answer[j]);
    return OK;
}

/* Writes the member "why". */
static status explain(server *s, const request_ask *r, const engine_answer *a, int model,
                      json_writer *w) {
    arena memory;
    engine_event *history = NULL;
    size_t n = 0;
    engine_user user;
    arena_init(&memory, 64 << 10);
    json_key_object(w, "why");
    json_key_string(w, "method", "leave one event out: how much the item's score falls without it");
    status st = copy_history(&memory, s->engine, r, &history, &n, &user);
    if (st == OK && a->source == ENGINE_FROM_MODEL)
        st = write_reasons(&memory, s, history, n, user.first, a, model, w);
    json_object_close(w);
    engine_user_release(&user);
    arena_fini(&memory);
    return st;
}

static void write_item(json_writer *w, const asking *q, const engine_item *item) {
    const engine_answer *a = &q->answer;
    json_object_open(w);
    write_id(w, "item", &item->id);
    write_title(w, item->title, item->title_bytes);
    json_key(w, "score");
    write_number(w, item->values[q->column[0]]);
    if (a->n_columns > 1) {
        json_key_object(w, "scores");
        for (int i = 0; i < q->n_columns; i++) {
            json_key(w, a->columns[q->column[i]]);
            write_number(w, item->values[q->column[i]]);
        }
        json_object_close(w);
    }
    if (q->r.ask.task == ENGINE_RANK) json_key_int(w, "index", item->place);
    if (item->number == 0) json_key_bool(w, "is_unknown", true);
    json_object_close(w);
}

static void write_facts(json_writer *w, const asking *q) {
    const engine_answer *a = &q->answer;
    json_key(w, "history");
    JSON_OBJECT(w, FIELD("events", a->n_events), FIELD("window", a->n_window),
                FIELD("unknown", a->n_unknown_events));
    JSON_FIELDS(w, FIELD("unknown_items", a->n_unknown), FIELD("tokens_reused", a->tokens_reused));
    if (a->tokens_loaded > 0) json_key_int(w, "tokens_loaded", a->tokens_loaded);
    json_key_int(w, "tokens_computed", a->tokens_computed);
    json_key(w, "batch");
    JSON_OBJECT(w, FIELD("requests", a->batch_requests), FIELD("tokens", a->batch_tokens));
    json_key(w, "timing_us");
    JSON_OBJECT(w, FIELD("parse", (int64_t)((q->c->parsed_ns - q->c->x->arrived_ns) / 1000)),
                FIELD("queue", (int64_t)(a->queue_ns / 1000)),
                FIELD("embed", (int64_t)(a->build_ns / 1000)),
                FIELD("layers", (int64_t)(a->layers_ns / 1000)),
                FIELD("head", (int64_t)(a->head_ns / 1000)),
                FIELD("total", (int64_t)((clock_ns() - q->c->x->arrived_ns) / 1000)));
}

const char *source_name(engine_source s) {
    static const char *const names[] = {[ENGINE_FROM_MODEL] = "model",
                                        [ENGINE_FROM_POPULAR] = "popular",
                                        [ENGINE_FROM_NOTHING] = "nothing"};
    return names[s];
}

static void write_vector(json_writer *w, const engine_answer *a) {
    json_key_array(w, "vector");
    for (int32_t i = 0; i < a->dim; i++)
        write_number(w, a->vector[i]);
    json_array_close(w);
}

static void write_answerer(json_writer *w, const asking *q) {
    const engine_answer *a = &q->answer;
    JSON_FIELDS(w, FIELD("request_id", q->c->id), FIELD("model", a->model),
                FIELD("model_version", a->version), FIELD("source", source_name(a->source)));
}

static void write_items(json_writer *w, const asking *q) {
    json_key_array(w, "items");
    for (size_t i = 0; i < q->n_items; i++)
        write_item(w, q, q->item[i]);
    json_array_close(w);
}

static status write_answer(call *c, json_writer *w) {
    const asking *q = c->state;
    const engine_answer *a = &q->answer;
    write_answerer(w, q);
    if (q->r.ask.has_user) write_id(w, "user", &q->r.ask.user);
    write_items(w, q);
    if (q->r.ask.wants_vector && a->vector != NULL) write_vector(w, a);
    if (q->r.wants_why) TRY(explain(c->s, &q->r, a, q->model, w));
    write_facts(w, q);
    return OK;
}

/* The answer of the rerank API, as vLLM and others give it. */
static status write_reranked(call *c, json_writer *w) {
    const asking *q = c->state;
    const engine_answer *a = &q->answer;
    JSON_FIELDS(w, FIELD("id", c->id), FIELD("model", a->model));
    json_key(w, "usage");
    JSON_OBJECT(w, FIELD("total_tokens", (int64_t)a->tokens_reused + a->tokens_computed));
    json_key_array(w, "results");
    for (size_t i = 0; i < a->n_items; i++) {
        const engine_item *item = &a->items[i];
        json_object_open(w);
        json_key_int(w, "index", item->place);
        if (q->r.returns_documents) {
            char digits[24];
            engine_id id = id_as_text(&q->r.ask.candidates[item->place], digits);
            json_key_object(w, "document");
            write_id(w, "text", &id);
            json_object_close(w);
        }
        json_key(w, "relevance_score");
        write_number(w, item->values[0]);
        json_object_close(w);
    }
    json_array_close(w);
    return OK;
}

/* Which columns, in which order. */
static status choose_columns(asking *q) {
    const engine_answer *a = &q->answer;
    bool is_all = q->r.n_tasks == 0;
    q->n_columns = is_all ? a->n_columns : q->r.n_tasks;
    TRY(ARENA_NEW(&q->c->memory, &q->column, (size_t)q->n_columns));
    for (int t = 0; t < q->n_columns; t++) {
        int i = is_all ? t : 0;
        while (!is_all && i < a->n_columns && strcmp(a->columns[i], q->r.tasks[t]) != 0)
            i++;
        if (i == a->n_columns)
            return fail(ERR_USAGE, "tasks: %.64s has no '%.64s'; GET /v1/models lists them",
                        a->model, q->r.tasks[t]);
        q->column[t] = i;
    }
    return OK;
}

static float key_of(const asking *q, const engine_item *item) {
    float value = item->values[q->column[0]];
    return isnan(value) ? -INFINITY : value;
}

/* Higher numbers first, then the order of the request. */
static int compare_items(const void *a, const void *b, void *context) {
    const engine_item *x = *(const engine_item *const *)a, *y = *(const engine_item *const *)b;
    float p = key_of(context, x), q = key_of(context, y);
    if (p != q) return p > q ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* The engine orders by its first number; where another one is asked for, the server does by that.
 */
static status order_items(asking *q) {
    const engine_answer *a = &q->answer;
    TRY(ARENA_NEW(&q->c->memory, &q->item, a->n_items));
    q->n_items = a->n_items;
    for (size_t i = 0; i < a->n_items; i++)
        q->item[i] = &a->items[i];
    if (q->top_k == 0) return OK;
    qsort_r(q->item, q->n_items, sizeof *q->item, compare_items, q);
    if (q->n_items > (size_t)q->top_k) q->n_items = (size_t)q->top_k;
    return OK;
}

static status write_body(asking *q) {
    TRY(engine_make_items(&q->answer));
    TRY(choose_columns(q));
    TRY(order_items(q));
    return call_write(q->c, q->c->route == ROUTE_RERANK ? write_reranked : write_answer);
}

/* How long an answer waits for its turn on a thread of the HTTP server and takes to be written: the
 * answers of a batch come at once, and the last of them must be in time, too.  It follows longer
 * ones quickly and shorter ones slowly. */
static void learn_reply(server *s, uint64_t ns) {
    uint64_t known = atomic_load(&s->reply_ns);
    atomic_store(&s->reply_ns, ns > known ? known + (ns - known) / 4 : known - (known - ns) / 64);
}

/* Ends the call, and with it q. */
static void finish(void *context) {
    call *c = context;
    asking *q = c->state;
    call_answer(c, q->change.st == OK ? OK : failure_restore(&q->change.why));
}

/* Now that nothing else can fail: the answer leaves once the events are on disk. */
static void add_events(asking *q) {
    if (q->c->x->is_leaving) {
        call_answer(q->c, fail(ERR_IO, "client disconnected: its events were not stored"));
        return;
    }
    q->given = (engine_user_events){q->r.ask.user, q->r.events, q->r.n_events};
    q->change = (engine_change){.users = &q->given, .n_users = 1, .added = &q->added};
    call_change(q->c, &q->change, finish);
}

static status write_reply(asking *q) {
    call *c = q->c;
    const engine_answer *a = &q->answer;
    uint64_t begin = clock_ns();
    snprintf(c->model, sizeof c->model, "%s", a->model);
    c->tokens_reused = (uint64_t)a->tokens_reused;
    c->tokens_computed = (uint64_t)a->tokens_computed;
    http_set_header(c->x, "X-Hstu-Variant", c->model);
    (void)buf_reserve(&c->body, ANSWER_BYTES); /* it grows where that is too little */
    status st = write_body(q);
    uint64_t end = clock_ns();
    metrics_stages(&c->s->metrics, c->parsed_ns - c->x->arrived_ns, end - begin);
    if (!q->r.wants_why) learn_reply(c->s, end - q->answered_ns);
    return st;
}

/* Its events came before the list that it gets. */
static void note_list(const asking *q) {
    const engine_request *r = &q->r.ask;
    engine_user_events given = {r->user, q->r.events, q->r.n_events};
    engine_added added = {.n_added = given.n_events};
    for (size_t i = 0; i < given.n_events; i++)
        added.n_unknown += !engine_knows_item(q->c->s->engine, &given.events[i].item);
    if (given.n_events > 0) shown_compare(q->c->s, &given, &added);
    shown_note(q->c->s, q->model, &r->user, &q->answer);
}

/* On a thread of the HTTP server, or on a worker: finding reasons takes many questions. */
static void reply(void *context) {
    call *c = context;
    asking *q = c->state;
    engine_answer a = q->answer;
    status st = a.outcome == ENGINE_OK ? write_reply(q) : call_refuse_outcome(c, &a);
    if (st == OK && c->route == ROUTE_RECOMMEND && q->r.ask.has_user) note_list(q);
    if (st == OK && q->r.n_events > 0)
        add_events(q);
    else
        call_answer(c, st);
    engine_answer_release(&a);
}

/* On a thread of the engine, which leaves the writing to others. */
static void answered(void *context, engine_answer *a) {
    asking *q = context;
    q->answered_ns = clock_ns();
    if (q->r.wants_why && a->outcome == ENGINE_OK)
        call_later(q->c, reply);
    else
        http_continue(q->c->x, reply, q->c);
}

/* A question that a shadow model is asked beside another: its answer goes to the log alone. */
typedef struct shadow {
    server *s;
    char id[REQUEST_ID_BYTES];
    engine_answer answer;
} shadow;

static void log_shadow(void *context, engine_answer *a) {
    enum { LOGGED_ITEMS = 10 };
    shadow *h = context;
    json_writer w;
    buf line;
    if (engine_make_items(a) != OK) a->outcome = ENGINE_FAILED;
    log_begin(&w, &line);
    JSON_FIELDS(
        &w, FIELD("shadow", a->model), FIELD("id", h->id), FIELD("outcome", a->outcome),
        FIELD("us", (int64_t)((a->queue_ns + a->build_ns + a->layers_ns + a->head_ns) / 1000)));
    json_key_array(&w, "items");
    for (size_t i = 0; i < a->n_items && i < LOGGED_ITEMS; i++)
        write_id(&w, NULL, &a->items[i].id);
    json_array_close(&w);
    log_end(h->s, &w, &line);
    engine_answer_release(a);
    mem_free(h);
}

static void ask_shadows(const asking *q) {
    server *s = q->c->s;
    for (int i = 0; i < s->set.n_models; i++) {
        shadow *h;
        engine_request r = q->r.ask;
        if (!s->set.models[i].is_shadow || i == q->model || MEM_NEW(&h, 1) != OK) continue;
        h->s = s;
        memcpy(h->id, q->c->id, sizeof h->id);
        r.model = i;
        r.was_asked = false;
        engine_submit(s->engine, &r, &h->answer, log_shadow, h);
    }
}

static bool is_gone(void *context) {
    const asking *q = context;
    return http_is_cancelled(q->c->x);
}

static void submit(asking *q) {
    ask_shadows(q);
    q->r.ask.is_gone = is_gone;
    q->r.ask.run_ns = call_run_ns(q->c);
    engine_submit(q->c->s->engine, &q->r.ask, &q->answer, answered, q);
}

/* The answer counts the events of the request as if they were stored, and they are stored when it
 * is there: so of a request that is refused, or fails, nothing is kept. */
static status take_events(asking *q) {
    engine_request *r = &q->r.ask;
    engine_event *all;
    size_t n_new;
    TRY(ARENA_NEW(&q->c->memory, &all, q->r.n_events + r->n_extra));
    TRY(engine_new_events(q->c->s->engine, r->user, q->r.events, q->r.n_events, all, &n_new));
    for (size_t i = 0; i < r->n_extra; i++)
        all[n_new + i] = r->extra[i];
    r->extra = all;
    r->n_extra += n_new;
    return OK;
}

/* Whether a text holds a term; `place` is where the term has a letter that requests seldom have, so
 * that memchr passes over most of them. */
static bool has_term(const char *text, size_t n, const char *term, size_t place) {
    size_t length = strlen(term);
    if (n < length) return false;
    const char *at = text + place, *end = text + n - (length - 1 - place);
    while ((at = memchr(at, term[place], (size_t)(end - at))) != NULL) {
        if (memcmp(at - place, term, length) == 0) return true;
        at++;
    }
    return false;
}

/* Whether a request may set its own deadline, priority or model: by its text, so that most requests
 * need not be parsed. */
static bool names_terms(const char *body, size_t n) {
    if (memchr(body, '\\', n) != NULL) return true; /* one of them might be written with escapes */
    return has_term(body, n, "\"deadline_ms\"", 9) || has_term(body, n, "\"priority\"", 8) ||
           has_term(body, n, "\"model\"", 5);
}

/* Under overload most of the work would be parsing requests that are then refused: admission comes
 * first.  *was_asked: the engine decided, and its answer holds for the request. */
static status ask_unread(call *c, bool *was_asked) {
    engine_answer refusal;
    engine_request any = {.task = c->route == ROUTE_RECOMMEND ? ENGINE_RECOMMEND : ENGINE_RANK,
                          .arrived_ns = c->x->arrived_ns,
                          .after_ns = atomic_load(&c->s->reply_ns)};
    *was_asked = c->s->set.n_models == 1 && !names_terms(c->x->body, c->x->n_body);
    if (!*was_asked) return OK;
    bool has_time = engine_has_time(c->s->engine, &any, &refusal);
    status st = has_time ? OK : call_refuse_outcome(c, &refusal);
    engine_answer_release(&refusal);
    return st;
}

/* The events are the arena's, and nobody else has them yet. */
static status read_ratings(engine *e, request_ask *r) {
    TRY(engine_read_ratings(e, r->ask.model, (engine_event *)r->ask.history, r->ask.n_history));
    TRY(engine_read_ratings(e, r->ask.model, (engine_event *)r->ask.extra, r->ask.n_extra));
    return engine_read_ratings(e, r->ask.model, (engine_event *)r->events, r->n_events);
}

static status ask(call *c, status (*read)(arena *a, const char *body, size_t n, request_ask *out)) {
    bool was_asked;
    asking *q;
    TRY(ask_unread(c, &was_asked));
    TRY(ARENA_NEW(&c->memory, &q, 1));
    TRY(read(&c->memory, c->x->body, c->x->n_body, &q->r));
    c->state = q;
    c->parsed_ns = clock_ns();
    q->c = c;
    q->model = choose_model(c->s, q->r.model, q->r.ask.has_user ? &q->r.ask.user : NULL);
    if (q->model < 0)
        return call_refuse(c, 404, "there is no model '%s'; GET /v1/models lists them", q->r.model);
    q->r.ask.model = q->model;
    TRY(read_ratings(c->s->engine, &q->r));
    if (q->r.n_tasks > 0 && q->r.ask.task == ENGINE_RANK) {
        q->top_k = q->r.ask.top_k;
        q->r.ask.top_k = 0;
    }
    q->r.ask.arrived_ns = c->x->arrived_ns;
    q->r.ask.after_ns = atomic_load(&c->s->reply_ns);
    q->r.ask.was_asked = was_asked;
    if (q->r.n_events > 0) {
        TRY(call_may(c, KEY_EVENTS));
        TRY(take_events(q));
    }
    submit(q);
    return OK;
}

static status answer_similar(asking *q, json_writer *w) {
    call *c = q->c;
    TRY(engine_similar(c->s->engine, &q->r.ask, &q->answer));
    TRY(choose_columns(q));
    TRY(order_items(q));
    snprintf(c->model, sizeof c->model, "%s", q->answer.model);
    write_answerer(w, q);
    write_items(w, q);
    json_key_int(w, "unknown_items", (int64_t)q->answer.n_unknown);
    return OK;
}

status serve_similar(call *c, json_writer *w) {
    asking q = {.c = c};
    TRY(request_similar_read(&c->memory, c->x->body, c->x->n_body, &q.r));
    TRY(call_find_model(c, q.r.model, &q.r.ask.model));
    status st = answer_similar(&q, w);
    engine_answer_release(&q.answer);
    return st;
}

status serve_recommend(call *c, json_writer *w) {
    return ask(c, request_recommend_read);
}

status serve_rank(call *c, json_writer *w) {
    return ask(c, request_rank_read);
}

status serve_rerank(call *c, json_writer *w) {
    return ask(c, request_rerank_read);
}
