/* Start, stop, and the way of a call: route, key, answer, log. */
#include "serve/http/server.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/thread.h"
#include "serve/http/server_int.h"

enum {
    N_WORKERS = 16, /* they wait for the disk, not for the CPU */
    MAX_LATER = 1024,
    KEEPER_NS = 250000000,  /* the beat of /v1/stream */
    LARGE_BODY = 256 << 10, /* bytes that are read in about a millisecond */
    MAX_LARGE = 64,
    COMPACT_AT_START = 1 << 20
};

typedef struct route {
    const char *method, *path; /* a star is one part of any text */
    route_name name;
    void (*serve)(call *c);
    unsigned role; /* that a key needs for it; 0: it needs no key */
} route;

static const route routes[] = {
    {"POST", "v1/recommend", ROUTE_RECOMMEND, serve_recommend, KEY_READ},
    {"POST", "v1/rank", ROUTE_RANK, serve_rank, KEY_READ},
    {"POST", "rerank", ROUTE_RERANK, serve_rerank, KEY_READ},
    {"POST", "v1/rerank", ROUTE_RERANK, serve_rerank, KEY_READ},
    {"POST", "v2/rerank", ROUTE_RERANK, serve_rerank, KEY_READ},
    {"POST", "v1/events", ROUTE_EVENTS, serve_events, KEY_EVENTS},
    {"GET", "v1/users", ROUTE_USERS, serve_list_users, KEY_READ},
    {"GET", "v1/users/*", ROUTE_USERS, serve_get_user, KEY_READ},
    {"DELETE", "v1/users/*", ROUTE_USERS, serve_delete_user, KEY_ADMIN},
    {"GET", "v1/models", ROUTE_MODELS, serve_models, KEY_READ},
    {"POST", "v1/models/*/reload", ROUTE_RELOAD, serve_reload, KEY_ADMIN},
    {"GET", "v1/stream", ROUTE_STREAM, serve_stream, KEY_READ},
    {"GET", "v1/cache", ROUTE_PAGE, serve_cache, KEY_READ},
    {"GET", "v1/map", ROUTE_PAGE, serve_map, KEY_READ},
    {"GET", "v1/items", ROUTE_PAGE, serve_items, KEY_READ},
    {"GET", "v2", ROUTE_KSERVE, serve_kserve, KEY_READ},
    {"GET", "v2/health/live", ROUTE_HEALTH, serve_kserve_live, 0},
    {"GET", "v2/health/ready", ROUTE_HEALTH, serve_kserve_ready, 0},
    {"GET", "v2/models/stats", ROUTE_KSERVE, serve_kserve_stats, KEY_READ},
    {"GET", "v2/models/*", ROUTE_KSERVE, serve_kserve_model, KEY_READ},
    {"GET", "v2/models/*/config", ROUTE_KSERVE, serve_kserve_config, KEY_READ},
    {"GET", "v2/models/*/stats", ROUTE_KSERVE, serve_kserve_stats, KEY_READ},
    {"GET", "v2/models/*/versions/*/config", ROUTE_KSERVE, serve_kserve_config, KEY_READ},
    {"GET", "v2/models/*/versions/*/stats", ROUTE_KSERVE, serve_kserve_stats, KEY_READ},
    {"GET", "v2/models/*/ready", ROUTE_KSERVE, serve_kserve_model_ready, KEY_READ},
    {"POST", "v2/models/*/infer", ROUTE_INFER, serve_infer, KEY_READ},
    {"GET", "v2/models/*/versions/*", ROUTE_KSERVE, serve_kserve_model, KEY_READ},
    {"GET", "v2/models/*/versions/*/ready", ROUTE_KSERVE, serve_kserve_model_ready, KEY_READ},
    {"POST", "v2/models/*/versions/*/infer", ROUTE_INFER, serve_infer, KEY_READ},
    {"GET", "health", ROUTE_HEALTH, serve_health, 0},
    {"GET", "v1/status", ROUTE_STATUS, serve_status, KEY_READ},
    {"GET", "metrics", ROUTE_METRICS, serve_metrics_text, KEY_READ},
    {"GET", "", ROUTE_PAGE, serve_page, 0},
    {NULL, NULL, ROUTE_OTHER, NULL, 0},
};

/* What a line of the access log says. */
static void log_call(const call *c, int code, uint64_t ns) {
    server *s = c->s;
    json_writer w;
    buf line;
    struct timespec now;
    char peer[HTTP_ADDRESS_BYTES];
    if (s->set.log == NULL) return;
    clock_gettime(CLOCK_REALTIME, &now);
    http_peer(c->x, peer);
    buf_init(&line);
    json_begin(&w, &line, 0);
    json_object_open(&w);
    json_key_double(&w, "time", (double)(now.tv_sec * 1000 + now.tv_nsec / 1000000) / 1000);
    json_key_string(&w, "id", c->id);
    json_key_string(&w, "peer", peer);
    if (c->key_name != NULL) json_key_string(&w, "key", c->key_name);
    json_key_string(&w, "method", c->x->method);
    json_key_string(&w, "path", c->x->path);
    json_key_int(&w, "code", code);
    json_key_int(&w, "us", (int64_t)(ns / 1000));
    if (c->model[0] != '\0') {
        json_key_string(&w, "model", c->model);
        json_key_int(&w, "tokens_reused", (int64_t)c->tokens_reused);
        json_key_int(&w, "tokens_computed", (int64_t)c->tokens_computed);
    }
    json_object_close(&w);
    if (json_finish(&w) == OK) s->set.log(s->set.log_ctx, buf_str(&line));
    buf_fini(&line);
}

static void call_free(call *c) {
    arena_fini(&c->memory);
    mem_free(c);
}

void call_reply(call *c, int code, const char *type, buf *body) {
    uint64_t ns = clock_ns() - c->x->arrived_ns;
    http_set_header(c->x, "X-Request-Id", c->id);
    metrics_count(&c->s->metrics, c->route, code, ns);
    log_call(c, code, ns);
    http_respond(c->x, code, type, body);
    call_free(c);
}

void call_reply_json(call *c, int code, buf *body) {
    if (buf_char(body, '\n') != OK) code = 503;
    call_reply(c, code, "application/json", body);
}

void call_fail(call *c, int code, const char *fmt, ...) {
    char reason[FAILURE_REASON_BYTES];
    json_writer w;
    buf body;
    va_list args;
    va_start(args, fmt);
    vsnprintf(reason, sizeof reason, fmt, args);
    va_end(args);
    buf_init(&body);
    json_begin(&w, &body, 0);
    json_object_open(&w);
    json_key_string(&w, "error", reason);
    json_object_close(&w);
    if (json_finish(&w) != OK) buf_clear(&body);
    call_reply_json(c, code, &body);
}

static int code_of(status st) {
    if (st == ERR_USAGE || st == ERR_UNSUPPORTED || st == ERR_CONFIG) return 400;
    return st == ERR_NOMEM || st == ERR_IO ? 503 : 500;
}

void call_fail_status(call *c, status st) {
    int code = code_of(st);
    if (code == 503) http_set_header(c->x, "Retry-After", "1");
    call_fail(c, code, "%s", status_reason());
}

void call_fail_outcome(call *c, const engine_answer *a) {
    static const int code[] = {
        [ENGINE_OK] = 200,       [ENGINE_BAD] = 400,     [ENGINE_NO_MODEL] = 404,
        [ENGINE_OVERLOAD] = 503, [ENGINE_CLOSING] = 503, [ENGINE_GONE] = 499,
        [ENGINE_FAILED] = 500};
    char seconds[16];
    if (code[a->outcome] == 503) {
        snprintf(seconds, sizeof seconds, "%u", a->retry_after_s > 0 ? a->retry_after_s : 1);
        http_set_header(c->x, "Retry-After", seconds);
    }
    call_fail(c, code[a->outcome], "%s", a->error);
}

void call_later(call *c, void (*fn)(void *call)) {
    if (workers_run(c->s->workers, fn, c)) return;
    http_set_header(c->x, "Retry-After", "1");
    call_fail(c, 503, "too many requests wait for the disk; try again in a second");
}

/* The client's id where it is harmless, else one of our own. */
static void choose_id(call *c) {
    const char *given = http_header(c->x, "X-Request-Id");
    size_t n = given != NULL ? strlen(given) : 0;
    bool is_good = n > 0 && n < REQUEST_ID_BYTES;
    for (size_t i = 0; i < n && is_good; i++)
        is_good = given[i] > ' ' && given[i] < 0x7f && given[i] != '"' && given[i] != '\\';
    if (is_good)
        memcpy(c->id, given, n + 1);
    else
        snprintf(c->id, sizeof c->id, "%016" PRIx64,
                 hash64_mix(c->s->id_salt + atomic_fetch_add(&c->s->next_id, 1)));
}

/* Splits and decodes the path.  False: an escape is wrong, or it has too many or too long parts. */
static bool split_path(call *c) {
    const char *at = c->x->path;
    if (*at == '/') at++;
    if (*at == '\0') return true;
    for (;;) {
        size_t n = strcspn(at, "/");
        if (c->n_parts == MAX_PARTS || !http_decode(at, n, false, c->part[c->n_parts], PART_BYTES))
            return false;
        c->n_parts++;
        if (at[n] == '\0') return true;
        at += n + 1;
    }
}

static bool matches(const call *c, const char *pattern) {
    int i = 0;
    while (*pattern != '\0') {
        size_t n = strcspn(pattern, "/");
        bool is_any = n == 1 && pattern[0] == '*';
        if (i == c->n_parts) return false;
        if (is_any ? c->part[i][0] == '\0'
                   : strlen(c->part[i]) != n || memcmp(c->part[i], pattern, n) != 0)
            return false;
        i++;
        pattern += n + (pattern[n] == '/');
    }
    return i == c->n_parts;
}

/* NULL: none; *allowed then has the methods of the path, if there is any. */
static const route *find_route(const call *c, char allowed[64]) {
    const char *method = c->x->method;
    if (strcmp(method, "HEAD") == 0) method = "GET";
    allowed[0] = '\0';
    for (const route *r = routes; r->method != NULL; r++) {
        if (!matches(c, r->path)) continue;
        if (strcmp(r->method, method) == 0) return r;
        snprintf(allowed + strlen(allowed), 64 - strlen(allowed), "%s%s",
                 allowed[0] != '\0' ? ", " : "", r->method);
    }
    return NULL;
}

/* Finds the route; false: the call is answered. */
static bool choose_route(call *c) {
    char allowed[64];
    if (!split_path(c)) {
        call_fail(c, 400, "the path has a wrong escape, or too many or too long parts");
        return false;
    }
    const route *r = find_route(c, allowed);
    if (r != NULL) {
        c->route = r->name;
        c->serve = r->serve;
        return call_admit(c, r->role);
    }
    if (allowed[0] != '\0') {
        http_set_header(c->x, "Allow", allowed);
        call_fail(c, 405, "%.20s is not for this path; use %s", c->x->method, allowed);
    } else {
        call_fail(c, 404, "there is nothing at %.200s; docs/serving.md lists all paths",
                  c->x->path);
    }
    return false;
}

/* The headers are there: whoever may not send this is told so before its body is read. */
static void begin(void *context, http_exchange *x) {
    call *c;
    buf none;
    buf_init(&none);
    if (MEM_NEW_RAW(&c, 1) != OK) {
        http_respond(x, 503, "application/json", &none);
        return;
    }
    memset(c, 0, offsetof(call, part));
    c->s = context;
    c->x = x;
    c->route = ROUTE_OTHER;
    c->parsed_ns = x->arrived_ns;
    choose_id(c);
    if (choose_route(c)) x->context = c;
}

static void serve_large(void *context) {
    call *c = context;
    c->serve(c);
}

static void handle(void *context, http_exchange *x) {
    server *s = context;
    call *c = x->context;
    size_t n_body = x->n_body;
    /* The tree of a JSON text takes about eight times its bytes: one block for most requests. */
    arena_init(&c->memory, (4 << 10) + 8 * (n_body < 32 << 10 ? n_body : 32 << 10));
    if (n_body <= LARGE_BODY)
        c->serve(c);
    else if (!workers_run(s->large, serve_large, c)) {
        http_set_header(x, "Retry-After", "1");
        call_fail(c, 503, "too many large requests wait; send less in one, or try again");
    }
}

static void forget(void *context, http_exchange *x) {
    (void)context;
    call_free(x->context);
}

static void count_refused(void *context, int code) {
    server *s = context;
    metrics_count(&s->metrics, ROUTE_OTHER, code, 0);
}

static void *keep(void *context) {
    server *s = context;
    pthread_mutex_lock(&s->lock);
    while (!atomic_load(&s->is_stopping)) {
        cond_wait_until(&s->wake, &s->lock, clock_ns() + KEEPER_NS);
        pthread_mutex_unlock(&s->lock);
        watchers_publish(s);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int choose_model(server *s, const char *name, const engine_id *user) {
    char digits[24];
    if (name != NULL && name[0] != '\0') return engine_find_model(s->engine, name);
    if (s->total_share == 0 || user == NULL) return 0;
    const char *text = user->text;
    size_t n = user->n;
    if (text == NULL) {
        n = (size_t)snprintf(digits, sizeof digits, "%" PRId64, user->number);
        text = digits;
    }
    int at = (int)(hash64(text, n, 0x5eed) % (uint64_t)s->total_share);
    for (int i = 0; i < s->set.n_models; i++) {
        at -= s->set.models[i].share;
        if (at < 0) return i;
    }
    return 0;
}

static status start(server *s) {
    http_settings h = s->set.http;
    h.begin = begin;
    h.handle = handle;
    h.gone = forget;
    h.refused = count_refused;
    h.ctx = s;
    if (s->set.keys != NULL) TRY(api_keys_open(&s->keys, s->set.keys));
    size_t n_open = s->keys != NULL ? api_keys_without_roles(s->keys) : 0;
    if (n_open > 0)
        log_warn("%s: keys without roles (%zu) may do everything, reload and erase included; add "
                 "read, events or admin to their lines",
                 s->set.keys, n_open);
    TRY(engine_create(&s->engine, &s->set.engine));
    for (int i = 0; i < s->set.n_models; i++) {
        TRY(engine_load(s->engine, s->set.models[i].name, s->set.models[i].path));
        s->total_share += s->set.models[i].share;
    }
    TRY(workers_create(&s->workers, N_WORKERS, MAX_LATER));
    TRY(workers_create(&s->large, 1, MAX_LARGE));
    TRY(http_start(&s->http, &h));
    if (pthread_create(&s->keeper, NULL, keep, s) != 0)
        return fail(ERR_IO, "a thread cannot be started");
    s->has_keeper = true;
    atomic_store(&s->is_ready, true);
    return OK;
}

status server_start(server **out, const server_config *c) {
    server *s;
    *out = NULL;
    TRY(MEM_NEW(&s, 1));
    s->set = *c;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->map_lock, NULL);
    pthread_mutex_init(&s->reload_lock, NULL);
    cond_init(&s->wake);
    if (getrandom(&s->id_salt, sizeof s->id_salt, 0) != sizeof s->id_salt) s->id_salt = clock_ns();
    status st = start(s);
    if (st != OK) {
        failure f;
        failure_save(&f, st);
        server_stop(s);
        return failure_restore(&f);
    }
    *out = s;
    return OK;
}

int server_port(const server *s) {
    return http_port(s->http);
}

engine *server_engine(server *s) {
    return s->engine;
}

void server_set_ready(server *s, bool is_ready) {
    atomic_store(&s->is_ready, is_ready);
}

static void wait_ms(int ms) {
    struct timespec t = {.tv_nsec = ms * 1000000L};
    nanosleep(&t, NULL);
}

bool server_drain(server *s, uint64_t timeout_ns) {
    uint64_t begin = clock_ns();
    server_set_ready(s, false);
    watchers_close(s);
    http_stop_accepting(s->http);
    while (http_get_stats(s->http).n_unanswered > 0) {
        if (clock_ns() - begin > timeout_ns) return false;
        wait_ms(5);
    }
    return true;
}

static void stop_threads(server *s) {
    atomic_store(&s->is_stopping, true);
    if (s->has_keeper) {
        pthread_mutex_lock(&s->lock);
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->keeper, NULL);
    }
}

void server_stop(server *s) {
    if (s == NULL) return;
    if (s->http != NULL) server_drain(s, 0);
    stop_threads(s);
    watchers_close(s);
    if (s->engine != NULL) engine_drain(s->engine);
    /* Every call is answered, if only by a refusal; then nothing holds the server's memory. */
    while (s->http != NULL && http_get_stats(s->http).n_unanswered > 0)
        wait_ms(2);
    workers_destroy(s->large);
    workers_destroy(s->workers);
    http_stop(s->http);
    engine_destroy(s->engine);
    api_keys_close(s->keys);
    item_maps_free(s);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->reload_lock);
    pthread_mutex_destroy(&s->map_lock);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}
