/* The page at / and what it shows beside answers: /v1/stream, /v1/cache, /v1/items, /v1/map.
 *
 * The page is server_page.html, in the program.  Each answer has a new nonce, which the page's own
 * script and style carry: the browser runs nothing else, and fetches from nowhere else. */
#include <sys/random.h>

#include "serve/http/server_int.h"

TEXT_FILE(server_page, "src/serve/http/server_page.html");

static const char mark[] = "NONCE";

static void make_nonce(char text[33]) {
    unsigned char bytes[16] = {0};
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) memset(bytes, 0x5a, sizeof bytes);
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

static status write_page(buf *out, const char *nonce) {
    const char *at = server_page, *next;
    while ((next = strstr(at, mark)) != NULL) {
        TRY(buf_append(out, at, (size_t)(next - at)));
        TRY(buf_text(out, nonce));
        at = next + strlen(mark);
    }
    return buf_text(out, at);
}

status serve_page(call *c, json_writer *w) {
    char nonce[33], policy[320];
    make_nonce(nonce);
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; "
             "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             nonce, nonce);
    TRY(write_page(&c->body, nonce));
    http_set_header(c->x, "Content-Security-Policy", policy);
    http_set_header(c->x, "X-Content-Type-Options", "nosniff");
    http_set_header(c->x, "Referrer-Policy", "no-referrer");
    http_set_header(c->x, "Cache-Control", "no-store");
    call_reply(c, 200, "text/html; charset=utf-8");
    return OK;
}

static void write_times(json_writer *w, const char *key, const engine_times *t) {
    json_key_object(w, key);
    JSON_FIELDS(w, FIELD("n", t->n), FIELD("sum_s", (double)t->sum_ns / 1e9));
    json_key_array(w, "count");
    for (int i = 0; i <= ENGINE_BUCKETS; i++)
        json_int(w, (int64_t)t->count[i]);
    json_array_close(w);
    json_object_close(w);
}

static void write_model_state(json_writer *w, const engine_model_info *m, const engine_stats *s) {
    json_object_open(w);
    JSON_FIELDS(w, FIELD("name", m->name), FIELD("version", m->version),
                FIELD("queue_requests", s->queue_requests), FIELD("queue_tokens", s->queue_tokens),
                FIELD("batches", s->n_batches), FIELD("batch_requests", s->batch_requests),
                FIELD("batch_tokens", s->tokens_computed), FIELD("tokens_reused", s->tokens_reused),
                FIELD("tokens_computed", s->tokens_computed), FIELD("evictions", s->kv_evictions),
                FIELD("pages_used", s->kv_pages_used), FIELD("pages_free", s->kv_pages_free),
                FIELD("host_pages_used", s->kv_host_used),
                FIELD("tokens_loaded", s->tokens_loaded));
    json_key_object(w, "stages");
    for (engine_stage i = 0; i < ENGINE_STAGES; i++)
        json_key_double(w, engine_stage_name(i), (double)s->stages[i].sum_ns / 1e9);
    json_object_close(w);
    json_object_close(w);
}

/* One event of the stream: totals since the start, of which a reader takes differences. */
static status write_state(server *s, buf *out) {
    engine_times asks = metrics_ask_times(&s->metrics);
    json_writer w;
    json_begin_object(&w, out, 0);
    json_key_int(&w, "requests", (int64_t)metrics_n_requests(&s->metrics));
    write_times(&w, "asks", &asks);
    json_key_array(&w, "models");
    for (int i = 0; i < engine_n_models(s->engine); i++) {
        engine_model_info m;
        engine_stats stats;
        if (engine_model(s->engine, i, &m) != OK) continue;
        if (engine_model_stats(s->engine, i, &stats) != OK) continue;
        write_model_state(&w, &m, &stats);
    }
    json_array_close(&w);
    return json_finish_object(&w);
}

static status write_event(server *s, buf *out) {
    TRY(buf_text(out, "data: "));
    TRY(write_state(s, out));
    return buf_text(out, "\n\n");
}

void watchers_publish(server *s) {
    buf text = {0};
    pthread_mutex_lock(&s->lock);
    int n = s->n_watchers;
    pthread_mutex_unlock(&s->lock);
    if (n == 0) return;
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

/* The call ends here; the stream stays open. */
status serve_stream(call *c, json_writer *w) {
    server *s = c->s;
    pthread_mutex_lock(&s->lock);
    bool has_room = s->n_watchers < MAX_WATCHERS && atomic_load(&s->is_ready);
    pthread_mutex_unlock(&s->lock);
    if (!has_room) {
        http_set_header(c->x, "Retry-After", "5");
        return call_refuse(c, 503, "at most %d clients can watch at a time", MAX_WATCHERS);
    }
    metrics_count(&s->metrics, c->route, 200, 0);
    call_set_headers(c);
    http_set_header(c->x, "Cache-Control", "no-store");
    http_stream *stream = http_respond_stream(c->x, "text/event-stream");
    arena_fini(&c->memory);
    mem_free(c);
    if (stream == NULL) return OK;
    pthread_mutex_lock(&s->lock);
    bool is_late = s->n_watchers == MAX_WATCHERS || !atomic_load(&s->is_ready);
    if (!is_late) s->watcher[s->n_watchers++] = stream;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (is_late) http_stream_close(stream);
    return OK;
}

static void write_kv_page(json_writer *w, const engine_page *p) {
    enum { OWNERS = 1 << 24 };
    json_array_open(w);
    json_int(w, p->page);
    json_int(w, (int64_t)(p->owner % OWNERS));
    json_int(w, p->n_tokens);
    json_int(w, (int64_t)p->age);
    json_int(w, p->is_pinned);
    json_int(w, p->is_host);
    json_array_close(w);
}

/* [page, owner, tokens, batches since its last use, pinned, on the host]; pages of the host are
 * numbered after those of the device. */
status serve_cache(call *c, json_writer *w) {
    enum { MOST = 8192 };
    engine_page *page;
    int64_t n;
    int model;
    TRY(call_find_model(c, http_query(c->x, "model"), &model));
    TRY(ARENA_NEW_RAW(&c->memory, &page, MOST));
    TRY(engine_pages(c->s->engine, model, MOST, page, &n));
    json_key_int(w, "tokens_a_page", 64);
    json_key_array(w, "pages");
    for (int64_t i = 0; i < n && i < MOST; i++)
        write_kv_page(w, &page[i]);
    json_array_close(w);
    json_key_int(w, "n_pages", n);
    return OK;
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

/* Items whose titles or ids contain a text: for the page's choice of an event to add. */
status serve_items(call *c, json_writer *w) {
    enum { MOST = 1000, LOOKED_AT = 200000 };
    char text[128], digits[24];
    size_t n = 0, most = 20;
    int model;
    TRY(call_find_model(c, http_query(c->x, "model"), &model));
    TRY(call_query_text(c, "search", text, sizeof text));
    TRY(call_query_number(c, "limit", 1, MOST, &most));
    json_key_array(w, "items");
    pthread_mutex_lock(&c->s->reload_lock);
    for (uint32_t i = 1; i < LOOKED_AT && n < most; i++) {
        engine_item item;
        if (engine_item_of(c->s->engine, model, i, &item) != OK) break;
        engine_id id = id_as_text(&item.id, digits);
        bool is_match = (id.n == strlen(text) && memcmp(id.text, text, id.n) == 0) ||
                        (item.title != NULL ? has_part(item.title, item.title_bytes, text)
                                            : has_part(id.text, id.n, text));
        if (!is_match) continue;
        n++;
        json_object_open(w);
        write_id(w, "item", &item.id);
        write_title(w, item.title, item.title_bytes);
        json_object_close(w);
    }
    pthread_mutex_unlock(&c->s->reload_lock);
    json_array_close(w);
    return OK;
}

static void write_place(json_writer *w, const engine_item *item, const float *row, int32_t dim) {
    json_array_open(w);
    write_id(w, NULL, &item->id);
    json_array_open(w);
    for (int32_t k = 0; k < dim; k++)
        json_float(w, row[k]);
    json_array_close(w);
    if (item->title != NULL) json_string_n(w, item->title, item->title_bytes);
    json_array_close(w);
}

static status write_map(call *c, json_writer *w, int model) {
    enum { MOST = 2500 };
    engine_model_info m;
    engine_item item;
    float *row;
    TRY(engine_model(c->s->engine, model, &m));
    TRY(ARENA_NEW(&c->memory, &row, (size_t)m.dim));
    JSON_FIELDS(w, FIELD("model", m.name), FIELD("version", m.version), FIELD("of", m.n_items));
    json_key_array(w, "items");
    uint32_t stride = (uint32_t)((m.n_items + MOST - 1) / MOST);
    for (uint32_t i = 1; i <= m.n_items; i += stride) {
        TRY(engine_item_rows(c->s->engine, model, i, 1, row));
        TRY(engine_item_of(c->s->engine, model, i, &item));
        write_place(w, &item, row, m.dim);
    }
    json_array_close(w);
    return OK;
}

/* Items from all over the catalogue as [id, embedding row, title], which the page lays out. */
status serve_map(call *c, json_writer *w) {
    int model;
    TRY(call_find_model(c, http_query(c->x, "model"), &model));
    pthread_mutex_lock(&c->s->reload_lock); /* names are valid while no model is replaced */
    status st = write_map(c, w, model);
    pthread_mutex_unlock(&c->s->reload_lock);
    return st;
}
