/* Why these items?  By leaving events out: the newest events of the history are removed one at a
 * time, and the items are scored again.  How much an item's score falls is what the event does for
 * it, all that follows included: an exact statement about the model, not about the user. */
#include <math.h>
#include <pthread.h>

#include "serve/http/server_int.h"

enum { MAX_EVENTS = 24, MAX_ITEMS = 16 };

/* The questions that are out, and who waits for them. */
typedef struct round_of {
    pthread_mutex_t lock;
    pthread_cond_t done;
    int n_left;
} round_of;

typedef struct question {
    round_of *all;
    engine_request r;
    engine_answer answer;
} question;

static void answered(void *context, engine_answer *a) {
    question *q = context;
    (void)a;
    pthread_mutex_lock(&q->all->lock);
    if (--q->all->n_left == 0) pthread_cond_signal(&q->all->done);
    pthread_mutex_unlock(&q->all->lock);
}

static void ask_all(engine *e, question *q, int n) {
    round_of all = {.n_left = n};
    pthread_mutex_init(&all.lock, NULL);
    pthread_cond_init(&all.done, NULL);
    for (int i = 0; i < n; i++) {
        q[i].all = &all;
        engine_submit(e, &q[i].r, &q[i].answer, answered, &q[i]);
    }
    pthread_mutex_lock(&all.lock);
    while (all.n_left > 0)
        pthread_cond_wait(&all.done, &all.lock);
    pthread_mutex_unlock(&all.lock);
    pthread_cond_destroy(&all.done);
    pthread_mutex_destroy(&all.lock);
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

/* Question 0 is the whole history; question j + 1 leaves out event first + j. */
static void write_effects(json_writer *w, const question *q, int n, const engine_answer *a,
                          size_t n_items) {
    json_key(w, "items");
    json_array_open(w);
    for (size_t i = 0; i < n_items; i++) {
        float whole = value_of(&q[0].answer, i);
        json_object_open(w);
        json_key(w, "item");
        write_id(w, &a->items[i].id);
        json_key(w, "effects");
        json_array_open(w);
        for (int j = 1; j < n; j++) {
            float effect = whole - value_of(&q[j].answer, i);
            isfinite(effect) ? json_float(w, effect) : json_null(w);
        }
        json_array_close(w);
        json_object_close(w);
    }
    json_array_close(w);
}

/* Of a longer history the newest events: there are copies of it for each question. */
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
    question *q;
    TRY(ARENA_NEW(memory, &ids, n_items));
    TRY(ARENA_NEW(memory, &q, (size_t)n));
    for (size_t i = 0; i < n_items; i++)
        ids[i] = a->items[i].id;
    for (int j = 0; j < n; j++) {
        engine_event *part;
        size_t skip = j == 0 ? n_history : first + (size_t)j - 1;
        TRY(ARENA_NEW(memory, &part, n_history));
        q[j].r = (engine_request){.task = ENGINE_RANK,
                                  .model = model,
                                  .has_history = true,
                                  .history = without(history, n_history, skip, part),
                                  .n_history = n_history - (j > 0),
                                  .candidates = ids,
                                  .n_candidates = n_items,
                                  .keeps_seen = true,
                                  .deadline_ns = 30000000000u};
    }
    ask_all(s->engine, q, n);
    json_key_int(w, "first_event", (int64_t)(n_before + first));
    json_key_int(w, "events", (int64_t)(n_history - first));
    write_effects(w, q, n, a, n_items);
    for (int j = 0; j < n; j++)
        engine_answer_release(&q[j].answer);
    return OK;
}

status explain_write(server *s, const request_ask *r, const engine_answer *a, int model,
                     json_writer *w) {
    arena memory;
    engine_event *history = NULL;
    size_t n = 0;
    engine_user user;
    arena_init(&memory, 64 << 10);
    json_object_open(w);
    json_key_string(w, "method", "leave one event out: how much the item's score falls without it");
    status st = copy_history(&memory, s->engine, r, &history, &n, &user);
    if (st == OK && a->source == ENGINE_FROM_MODEL)
        st = write_reasons(&memory, s, history, n, user.first, a, model, w);
    json_object_close(w);
    engine_user_release(&user);
    arena_fini(&memory);
    return st;
}
