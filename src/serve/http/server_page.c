/* The page at / and what it shows beside answers: /v1/stream, /v1/cache, /v1/items, /v1/map.
 *
 * The page is server_page.html, in the program.  Each answer has a new nonce, which the page's own
 * script and style carry: the browser runs nothing else, and fetches from nowhere else. */
#include <sys/random.h>

#include "serve/http/server_int.h"

enum { MAP_ITEMS = 2500, MAP_ITERATIONS = 40 };

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

void serve_page(call *c) {
    char nonce[33], policy[320];
    make_nonce(nonce);
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; "
             "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             nonce, nonce);
    status st = write_page(&c->body, nonce);
    if (st != OK) {
        call_fail_status(c, st);
        return;
    }
    http_set_header(c->x, "Content-Security-Policy", policy);
    http_set_header(c->x, "X-Content-Type-Options", "nosniff");
    http_set_header(c->x, "Referrer-Policy", "no-referrer");
    http_set_header(c->x, "Cache-Control", "no-store");
    call_reply(c, 200, "text/html; charset=utf-8");
}

static void write_times(json_writer *w, const char *key, const engine_times *t) {
    json_key_object(w, key);
    json_key_int(w, "n", (int64_t)t->n);
    json_key_double(w, "sum_s", (double)t->sum_ns / 1e9);
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
                FIELD("batch_tokens", s->batch_tokens), FIELD("tokens_reused", s->tokens_reused),
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
void serve_stream(call *c) {
    server *s = c->s;
    pthread_mutex_lock(&s->lock);
    bool has_room = s->n_watchers < MAX_WATCHERS && atomic_load(&s->is_ready);
    pthread_mutex_unlock(&s->lock);
    if (!has_room) {
        http_set_header(c->x, "Retry-After", "5");
        call_fail(c, 503, "at most %d clients can watch at a time", MAX_WATCHERS);
        return;
    }
    metrics_count(&s->metrics, c->route, 200, 0);
    call_set_headers(c);
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

typedef struct page_list {
    json_writer *w;
    int64_t n;
} page_list;

static void write_kv_page(void *context, const engine_page *p) {
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
    int model = call_find_model(c, http_query(c->x, "model"));
    if (model < 0) return;
    page_list list = {call_begin(c), 0};
    json_key_int(list.w, "tokens_a_page", 64);
    json_key_array(list.w, "pages");
    status st = engine_visit_pages(c->s->engine, model, write_kv_page, &list);
    json_array_close(list.w);
    json_key_int(list.w, "n_pages", list.n);
    call_end(c, st);
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
void serve_items(call *c) {
    enum { MOST = 1000, LOOKED_AT = 200000 };
    char text[128], digits[24];
    size_t n = 0, most = 20;
    int model = call_find_model(c, http_query(c->x, "model"));
    if (model < 0 || !call_query_text(c, "search", text, sizeof text) ||
        !call_query_number(c, "limit", 1, MOST, &most))
        return;
    json_writer *w = call_begin(c);
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
    call_end(c, OK);
}

/* The map of the items: their embedding rows, normed, are projected to the two directions in which
 * they differ most (principal components, by power iteration); the answer carries the directions
 * too, so that the page can put a user's vector on the map.  Made once for each version of a model.
 */
/* A map while it is made. */
typedef struct drawing {
    int32_t dim;
    uint32_t n, stride;
    float *rows; /* (n, dim), normed, then centred */
    float *mean; /* (dim) */
    float *axis; /* (2, dim) */
} drawing;

static float dot(const float *a, const float *b, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return (float)sum;
}

static void norm(float *a, int32_t n) {
    float length = sqrtf(dot(a, a, n));
    for (int32_t i = 0; i < n && length > 0; i++)
        a[i] /= length;
}

static void centre(drawing *d) {
    for (uint32_t i = 0; i < d->n; i++) {
        norm(d->rows + (size_t)i * (size_t)d->dim, d->dim);
        for (int32_t k = 0; k < d->dim; k++)
            d->mean[k] += d->rows[(size_t)i * (size_t)d->dim + (size_t)k] / (float)d->n;
    }
    for (uint32_t i = 0; i < d->n; i++)
        for (int32_t k = 0; k < d->dim; k++)
            d->rows[(size_t)i * (size_t)d->dim + (size_t)k] -= d->mean[k];
}

/* axis = the largest eigenvector of rows' covariance that is orthogonal to `other`. */
static void find_axis(const drawing *d, float *axis, const float *other, float *next) {
    for (int32_t k = 0; k < d->dim; k++)
        axis[k] = (float)((k * 7919 + 13) % 101) - 50;
    for (int step = 0; step < MAP_ITERATIONS; step++) {
        if (other != NULL) {
            float part = dot(axis, other, d->dim);
            for (int32_t k = 0; k < d->dim; k++)
                axis[k] -= part * other[k];
        }
        norm(axis, d->dim);
        memset(next, 0, (size_t)d->dim * sizeof *next);
        for (uint32_t i = 0; i < d->n; i++) {
            const float *row = d->rows + (size_t)i * (size_t)d->dim;
            float along = dot(row, axis, d->dim);
            for (int32_t k = 0; k < d->dim; k++)
                next[k] += along * row[k];
        }
        memcpy(axis, next, (size_t)d->dim * sizeof *axis);
    }
    norm(axis, d->dim);
}

static status read_rows(arena *a, engine *e, int model, const engine_model_info *m, drawing *d) {
    d->dim = m->dim;
    d->stride = (uint32_t)((m->n_items + MAP_ITEMS - 1) / MAP_ITEMS);
    if (d->stride == 0) d->stride = 1;
    d->n = (uint32_t)(m->n_items / d->stride);
    TRY(ARENA_NEW(a, &d->rows, (size_t)d->n * (size_t)d->dim));
    TRY(ARENA_NEW(a, &d->mean, (size_t)d->dim));
    TRY(ARENA_NEW(a, &d->axis, 3 * (size_t)d->dim));
    for (uint32_t i = 0; i < d->n; i++)
        TRY(engine_item_rows(e, model, 1 + i * d->stride, 1, d->rows + (size_t)i * (size_t)d->dim));
    centre(d);
    find_axis(d, d->axis, NULL, d->axis + 2 * d->dim);
    find_axis(d, d->axis + d->dim, d->axis, d->axis + 2 * d->dim);
    return OK;
}

static void write_floats(json_writer *w, const char *key, const float *value, int32_t n) {
    json_key_array(w, key);
    for (int32_t i = 0; i < n; i++)
        json_float(w, value[i]);
    json_array_close(w);
}

/* Three digits are more than a screen shows. */
static void write_coordinate(json_writer *w, float x) {
    json_double(w, round((double)x * 1000) / 1000);
}

static status write_map(engine *e, int model, const engine_model_info *m, const drawing *d,
                        buf *out) {
    json_writer w;
    json_begin_object(&w, out, 0);
    JSON_FIELDS(&w, FIELD("model", m->name), FIELD("version", m->version), FIELD("of", m->n_items));
    write_floats(&w, "mean", d->mean, d->dim);
    write_floats(&w, "x_axis", d->axis, d->dim);
    write_floats(&w, "y_axis", d->axis + d->dim, d->dim);
    json_key_array(&w, "items");
    for (uint32_t i = 0; i < d->n; i++) {
        const float *row = d->rows + (size_t)i * (size_t)d->dim;
        engine_item item;
        if (engine_item_of(e, model, 1 + i * d->stride, &item) != OK) break;
        json_array_open(&w);
        write_id(&w, NULL, &item.id);
        write_coordinate(&w, dot(row, d->axis, d->dim));
        write_coordinate(&w, dot(row, d->axis + d->dim, d->dim));
        if (item.title != NULL) json_string_n(&w, item.title, item.title_bytes);
        json_array_close(&w);
    }
    json_array_close(&w);
    return json_finish_object(&w);
}

static status draw(engine *e, int model, buf *out) {
    engine_model_info m;
    drawing d = {0};
    arena memory;
    arena_init(&memory, 1 << 20);
    status st = engine_model(e, model, &m);
    if (st == OK) st = read_rows(&memory, e, model, &m, &d);
    if (st == OK) st = write_map(e, model, &m, &d, out);
    arena_fini(&memory);
    return st;
}

void item_maps_free(server *s) {
    for (int i = 0; i < ENGINE_MAX_MODELS; i++)
        buf_fini(&s->map[i].text);
}

/* The map of the present version into `out`; under the lock of maps. */
static status find_map(server *s, int model, buf *out) {
    engine_model_info info;
    item_map *m = &s->map[model];
    TRY(engine_model(s->engine, model, &info));
    if (m->text.n_bytes == 0 || strcmp(m->version, info.version) != 0) {
        buf_clear(&m->text);
        status st = draw(s->engine, model, &m->text);
        if (st != OK) buf_clear(&m->text);
        TRY(st);
        memcpy(m->version, info.version, sizeof m->version);
    }
    return buf_append(out, m->text.data, m->text.n_bytes);
}

void serve_map(call *c) {
    int model = call_find_model(c, http_query(c->x, "model"));
    if (model < 0) return;
    pthread_mutex_lock(&c->s->reload_lock); /* names are valid while no model is replaced */
    pthread_mutex_lock(&c->s->map_lock);
    status st = find_map(c->s, model, &c->body);
    pthread_mutex_unlock(&c->s->map_lock);
    pthread_mutex_unlock(&c->s->reload_lock);
    call_answer(c, st);
}
