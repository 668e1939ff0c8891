/* What the page shows beside answers: /v1/stream, /v1/cache, /v1/items. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "serve/http/server_int.h"

static void write_times(json_writer *w, const char *key, const engine_times *t) {
    json_key(w, key);
    json_object_open(w);
    json_key_int(w, "n", (int64_t)t->n);
    json_key_double(w, "sum_s", t->sum_s);
    json_key(w, "count");
    json_array_open(w);
    for (int i = 0; i <= ENGINE_BUCKETS; i++)
        json_int(w, (int64_t)t->count[i]);
    json_array_close(w);
    json_object_close(w);
}

static void write_model_state(json_writer *w, const engine_model_info *m, const engine_stats *s) {
    json_object_open(w);
    json_key_string(w, "name", m->name);
    json_key_string(w, "version", m->version);
    json_key_int(w, "queue_requests", (int64_t)s->queue_requests);
    json_key_int(w, "queue_tokens", (int64_t)s->queue_tokens);
    json_key_int(w, "batches", (int64_t)s->n_batches);
    json_key_int(w, "batch_requests", (int64_t)s->batch_requests);
    json_key_int(w, "batch_tokens", (int64_t)s->batch_tokens);
    json_key_int(w, "tokens_reused", (int64_t)s->tokens_reused);
    json_key_int(w, "tokens_computed", (int64_t)s->tokens_computed);
    json_key_int(w, "evictions", (int64_t)s->kv_evictions);
    json_key_int(w, "pages_used", s->kv_pages_used);
    json_key_int(w, "pages_free", s->kv_pages_free);
    json_key_int(w, "host_pages_used", s->kv_host_used);
    json_key_int(w, "tokens_loaded", (int64_t)s->tokens_loaded);
    json_key(w, "stages");
    json_object_open(w);
    for (engine_stage i = 0; i < ENGINE_STAGES; i++)
        json_key_double(w, engine_stage_name(i), s->stages[i].sum_s);
    json_object_close(w);
    json_object_close(w);
}

/* One event of the stream: totals since the start, of which a reader takes differences. */
static status write_state(server *s, buf *out) {
    engine_times asks = metrics_ask_times(&s->metrics);
    json_writer w;
    json_begin(&w, out, 0);
    json_object_open(&w);
    json_key_int(&w, "requests", (int64_t)metrics_n_requests(&s->metrics));
    write_times(&w, "asks", &asks);
    json_key(&w, "models");
    json_array_open(&w);
    for (int i = 0; i < engine_n_models(s->engine); i++) {
        engine_model_info m;
        engine_stats stats;
        if (engine_model(s->engine, i, &m) != OK) continue;
        if (engine_model_stats(s->engine, i, &stats) != OK) continue;
        write_model_state(&w, &m, &stats);
    }
    json_array_close(&w);
    json_object_close(&w);
    return json_finish(&w);
}

static status write_event(server *s, buf *out) {
    TRY(buf_text(out, "data: "));
    TRY(write_state(s, out));
    return buf_text(out, "\n\n");
}

void watchers_publish(server *s) {
    buf text;
    pthread_mutex_lock(&s->lock);
    int n = s->n_watchers;
    pthread_mutex_unlock(&s->lock);
    if (n == 0) return;
    buf_init(&text);
    status st = write_event(s, &text);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_watchers && st == OK;) {
        if (http_stream_write(s->watcher[i], text.data, text.n_bytes)) {
            i++;
            continue;
        }
        http_stream_close(s->watcher[i]);
        s->watcher[i] = s->watcher[--s->n_watchers];
    }
    pthread_mutex_unlock(&s->lock);
    buf_fini(&text);
}

void watchers_close(server *s) {
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_watchers; i++)
        http_stream_close(s->watcher[i]);
    s->n_watchers = 0;
    pthread_mutex_unlock(&s->lock);
}

/* The call ends here; the stream goes on. */
void serve_stream(call *c) {
    server *s = c->s;
    pthread_mutex_lock(&s->lock);
    bool has_room = s->n_watchers < MAX_WATCHERS && atomic_load(&s->is_ready);
    pthread_mutex_unlock(&s->lock);
    if (!has_room) {
        http_set_header(c->x, "Retry-After", "5");
        call_fail(c, 503, "at most %d watch at a time", MAX_WATCHERS);
        return;
    }
    metrics_count(&s->metrics, c->route, 200, 0);
    http_set_header(c->x, "X-Request-Id", c->id);
    http_set_header(c->x, "Cache-Control", "no-store");
    http_stream *stream = http_respond_stream(c->x, "text/event-stream");
    arena_fini(&c->memory);
    mem_free(c);
    if (stream == NULL) return;
    pthread_mutex_lock(&s->lock);
    bool is_late = s->n_watchers == MAX_WATCHERS || !atomic_load(&s->is_ready);
    if (!is_late) s->watcher[s->n_watchers++] = stream;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (is_late) http_stream_close(stream);
}

/* The model of ?model=NAME; answers 404 where there is none. */
static int model_of(call *c) {
    const char *name = http_query(c->x, "model");
    int model = engine_find_model(c->s->engine, name);
    if (model < 0) call_fail(c, 404, "there is no model '%.64s'", name);
    return model;
}

typedef struct page_list {
    json_writer *w;
    int64_t n;
} page_list;

static void write_page(void *context, const engine_page *p) {
    enum { MAX_PAGES = 8192, OWNERS = 1 << 24 };
    page_list *l = context;
    if (l->n++ >= MAX_PAGES) return;
    json_array_open(l->w);
    json_int(l->w, p->page);
    json_int(l->w, (int64_t)(p->owner % OWNERS));
    json_int(l->w, p->n_tokens);
    json_int(l->w, (int64_t)p->age);
    json_int(l->w, p->is_pinned);
    json_int(l->w, p->is_host);
    json_array_close(l->w);
}

/* [page, owner, tokens, batches since its last use, pinned, on the host]; pages of the host are
 * numbered after those of the device. */
void serve_cache(call *c) {
    int model = model_of(c);
    json_writer w;
    buf body;
    page_list list = {&w, 0};
    if (model < 0) return;
    buf_init(&body);
    json_begin(&w, &body, 0);
    json_object_open(&w);
    json_key_int(&w, "tokens_a_page", 64);
    json_key(&w, "pages");
    json_array_open(&w);
    status st = engine_visit_pages(c->s->engine, model, write_page, &list);
    json_array_close(&w);
    json_key_int(&w, "n_pages", list.n);
    json_object_close(&w);
    if (st == OK) st = json_finish(&w);
    st == OK ? call_reply_json(c, 200, &body) : call_fail_status(c, st);
    buf_fini(&body);
}

static bool has_part(const char *text, size_t n, const char *part) {
    size_t n_part = strlen(part);
    for (size_t at = 0; at + n_part <= n; at++) {
        size_t k = 0;
        while (k < n_part &&
               tolower((unsigned char)text[at + k]) == tolower((unsigned char)part[k]))
            k++;
        if (k == n_part) return true;
    }
    return false;
}

/* Items whose titles or ids have a text in them: for the page's choice of an event to add. */
static void find_items(void *context) {
    enum { FOUND = 20, LOOKED_AT = 200000 };
    call *c = context;
    char text[128] = "";
    const char *query = http_query(c->x, "search");
    int n = 0, model = model_of(c);
    json_writer w;
    buf body;
    if (model < 0) return;
    if (query != NULL && !http_decode(query, strlen(query), true, text, sizeof text)) {
        call_fail(c, 400, "search: a wrong escape, or too long");
        return;
    }
    buf_init(&body);
    json_begin(&w, &body, 0);
    json_object_open(&w);
    json_key(&w, "items");
    json_array_open(&w);
    pthread_mutex_lock(&c->s->reload_lock);
    for (uint32_t i = 1; i < LOOKED_AT && n < FOUND; i++) {
        engine_item item;
        if (engine_item_of(c->s->engine, model, i, &item) != OK) break;
        char digits[24];
        const char *id = item.id.text;
        size_t n_id = item.id.n;
        if (id == NULL) {
            n_id = (size_t)snprintf(digits, sizeof digits, "%lld", (long long)item.id.number);
            id = digits;
        }
        bool is_match = (n_id == strlen(text) && memcmp(id, text, n_id) == 0) ||
                        (item.title != NULL ? has_part(item.title, item.title_bytes, text)
                                            : has_part(id, n_id, text));
        if (!is_match) continue;
        n++;
        json_object_open(&w);
        json_key(&w, "item");
        write_id(&w, &item.id);
        if (item.title != NULL) {
            json_key(&w, "title");
            json_string_n(&w, item.title, item.title_bytes);
        }
        json_object_close(&w);
    }
    pthread_mutex_unlock(&c->s->reload_lock);
    json_array_close(&w);
    json_object_close(&w);
    status st = json_finish(&w);
    st == OK ? call_reply_json(c, 200, &body) : call_fail_status(c, st);
    buf_fini(&body);
}

void serve_items(call *c) {
    call_later(c, find_items);
}
