/* Start, stop, and the way of a call: route, access, answer, log. */
#include "serve/http/server.h"

#include <arpa/inet.h>
#include <sys/random.h>

#include "serve/http/server_int.h"

enum {
    N_WORKERS = 16, /* they wait for the disk, not for the CPU */
    MAX_LATER = 1024,
    KEEPER_NS = 250000000,  /* the beat of /v1/stream */
    LARGE_BODY = 256 << 10, /* bytes that are read in about a millisecond */
    MAX_LARGE = 64,
    HOST_BYTES = 256
};

#define R(method, path, name, fn, needs) {method, path, ROUTE_##name, serve_##fn, needs, #fn},
const server_route server_routes[] = {SERVER_ROUTES(R){0}};
#undef R

void log_begin(json_writer *w, buf *line) {
    *line = (buf){0};
    json_begin_object(w, line, 0);
}

void log_end(server *s, json_writer *w, buf *line) {
    json_object_close(w);
    if (json_finish(w) == OK && s->set.log != NULL) s->set.log(s->set.log_ctx, buf_str(line));
    buf_fini(line);
}

/* Writes a line of the access log. */
static void log_call(const call *c, int code, uint64_t ns) {
    json_writer w;
    buf line;
    struct timespec now;
    char peer[HTTP_ADDRESS_BYTES];
    if (c->s->set.log == NULL) return;
    clock_gettime(CLOCK_REALTIME, &now);
    http_peer(c->x, peer);
    log_begin(&w, &line);
    JSON_FIELDS(&w, FIELD("time", (double)(now.tv_sec * 1000 + now.tv_nsec / 1000000) / 1000),
                FIELD("id", c->id), FIELD("peer", peer));
    if (c->trace[0] != '\0')
        JSON_FIELDS(&w, FIELD("traceparent", c->trace), FIELD("parent_span", c->parent_span));
    if (c->key_name != NULL) json_key_string(&w, "key", c->key_name);
    JSON_FIELDS(&w, FIELD("method", c->x->method), FIELD("path", c->x->path), FIELD("code", code),
                FIELD("us", (int64_t)(ns / 1000)));
    if (c->model[0] != '\0')
        JSON_FIELDS(&w, FIELD("model", c->model), FIELD("tokens_reused", c->tokens_reused),
                    FIELD("tokens_computed", c->tokens_computed));
    log_end(c->s, &w, &line);
}

static void call_free(call *c) {
    buf_fini(&c->body);
    arena_fini(&c->memory);
    mem_free(c);
}

void call_reply(call *c, int code, const char *type) {
    uint64_t ns = clock_ns() - c->x->arrived_ns;
    call_set_headers(c);
    metrics_count(&c->s->metrics, c->route, code, ns);
    log_call(c, code, ns);
    http_respond(c->x, code, type, &c->body);
    call_free(c);
}

static void reply_json(call *c, int code) {
    if (buf_char(&c->body, '\n') != OK) code = 503;
    call_reply(c, code, "application/json");
}

status call_write(call *c, status (*fn)(call *c, json_writer *w)) {
    buf_clear(&c->body);
    json_begin_object(&c->w, &c->body, 0);
    TRY(fn(c, &c->w));
    return json_finish_object(&c->w);
}

status call_refuse(call *c, int code, const char *fmt, ...) {
    char reason[FAILURE_REASON_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(reason, sizeof reason, fmt, args);
    va_end(args);
    c->refusal = code;
    return fail(ERR_USAGE, "%s", reason);
}

static int code_of(status st) {
    if (st == ERR_USAGE || st == ERR_UNSUPPORTED || st == ERR_CONFIG) return 400;
    return st == ERR_NOMEM || st == ERR_IO ? 503 : 500;
}

static status write_error(call *c, json_writer *w) {
    json_key_string(w, "error", status_reason());
    return OK;
}

void call_answer(call *c, status st) {
    int code = st == OK ? 200 : c->refusal != 0 ? c->refusal : code_of(st);
    if (code == 503 && c->refusal == 0) http_set_header(c->x, "Retry-After", "1");
    if (st != OK && call_write(c, write_error) != OK) buf_clear(&c->body);
    reply_json(c, code);
}

status call_refuse_outcome(call *c, const engine_answer *a) {
    static const int code[] = {
        [ENGINE_OK] = 200,       [ENGINE_BAD] = 400,     [ENGINE_NO_MODEL] = 404,
        [ENGINE_OVERLOAD] = 503, [ENGINE_CLOSING] = 503, [ENGINE_GONE] = 499,
        [ENGINE_FAILED] = 500};
    char seconds[16];
    if (code[a->outcome] == 503) {
        snprintf(seconds, sizeof seconds, "%u", a->retry_after_s > 0 ? a->retry_after_s : 1);
        http_set_header(c->x, "Retry-After", seconds);
    }
    return call_refuse(c, code[a->outcome], "%s", a->error);
}

static void note_change(void *context, engine_change *change) {
    call *c = context;
    http_continue(c->x, c->then, c);
}

void call_change(call *c, engine_change *change, void (*then)(void *call)) {
    c->then = then;
    engine_submit_change(c->s->engine, change, note_change, c);
}

void call_later(call *c, void (*fn)(void *call)) {
    if (workers_run(c->s->workers, fn, c)) return;
    http_set_header(c->x, "Retry-After", "1");
    call_answer(
        c, call_refuse(c, 503, "too many requests are waiting for the disk; retry in a second"));
}

void write_id(json_writer *w, const char *key, const engine_id *id) {
    if (key != NULL) json_key(w, key);
    id->text != NULL ? json_string_n(w, id->text, id->n) : json_int(w, id->number);
}

void write_user_id(call *c, const char *key, const engine_id *id, bool is_text) {
    engine_id number = {0};
    bool is_number = !is_text && id->text != NULL && seq_id_number(id->text, id->n, &number.number);
    write_id(&c->w, key, is_number ? &number : id);
}

void write_title(json_writer *w, const char *title, size_t n) {
    if (title == NULL) return;
    json_key(w, "title");
    json_string_n(w, title, n);
}

void write_number(json_writer *w, float value) {
    isfinite(value) ? json_float(w, value) : json_null(w);
}

engine_id id_as_text(const engine_id *id, char digits[24]) {
    if (id->text != NULL) return *id;
    return (engine_id){.text = digits, .n = (size_t)snprintf(digits, 24, "%" PRId64, id->number)};
}

status call_find_model(call *c, const char *name, int *out) {
    *out = engine_find_model(c->s->engine, name);
    if (*out >= 0) return OK;
    return call_refuse(c, 404, "there is no model '%.64s'; GET /v1/models lists them", name);
}

status call_path_model(call *c, int *out, engine_model_info *info) {
    TRY(call_find_model(c, c->part[2], out));
    TRY(engine_model(c->s->engine, *out, info));
    if (c->n_parts < 5 || strcmp(c->part[4], info->version) == 0) return OK;
    return call_refuse(c, 404, "model %s has version %s, not '%.64s'; GET /v1/models lists both",
                       info->name, info->version, c->part[4]);
}

status call_query_text(call *c, const char *name, char *out, size_t out_bytes) {
    const char *text = http_query(c->x, name);
    out[0] = '\0';
    if (text == NULL || http_decode(text, strlen(text), true, out, out_bytes)) return OK;
    return fail(ERR_USAGE, "%s: invalid escape, or too long", name);
}

status call_query_number(call *c, const char *name, int64_t min, int64_t max, size_t *out) {
    const char *text = http_query(c->x, name);
    int64_t number;
    if (text == NULL) return OK;
    if (!seq_id_number(text, strlen(text), &number) || number < min || number > max)
        return fail(ERR_USAGE, "%s: expected an integer from %lld to %lld", name, (long long)min,
                    (long long)max);
    *out = (size_t)number;
    return OK;
}

uint64_t server_log_dropped(const server *s) {
    return s->set.log_dropped != NULL ? s->set.log_dropped(s->set.log_ctx) : 0;
}

static uint64_t make_id(server *s) {
    return hash64_mix(s->id_salt + atomic_fetch_add(&s->next_id, 1));
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
        snprintf(c->id, sizeof c->id, "%016" PRIx64, make_id(c->s));
}

/* Whether n digits of a hexadecimal number follow, and then `end`. */
static bool has_digits(const char *text, size_t n, char end) {
    return strspn(text, "0123456789abcdef") == n && text[n] == end;
}

/* W3C Trace Context: the request is a span of its own in the client's trace.  Versions after 00 may
 * add fields; a number that is 0 is none. */
static void choose_trace(call *c) {
    const char *t = http_header(c->x, "traceparent");
    bool is_first = t != NULL && strncmp(t, "00", 2) == 0;
    if (t == NULL || strncmp(t, "ff", 2) == 0 || !has_digits(t, 2, '-') ||
        !has_digits(t + 3, 32, '-') || strspn(t + 3, "0") == 32 || !has_digits(t + 36, 16, '-') ||
        strspn(t + 36, "0") == 16 ||
        !(has_digits(t + 53, 2, '\0') || (!is_first && has_digits(t + 53, 2, '-'))))
        return;
    snprintf(c->parent_span, sizeof c->parent_span, "%.16s", t + 36);
    snprintf(c->trace, sizeof c->trace, "00-%.32s-%016" PRIx64 "-%.2s", t + 3, make_id(c->s),
             t + 53);
}

void call_set_headers(call *c) {
    http_set_header(c->x, "X-Request-Id", c->id);
    if (c->trace[0] != '\0') http_set_header(c->x, "traceparent", c->trace);
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
    while (*pattern != '\0' && *pattern != '?') {
        size_t n = strcspn(pattern, "/?");
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
static const server_route *find_route(const call *c, char allowed[64]) {
    const char *method = c->x->method;
    if (strcmp(method, "HEAD") == 0) method = "GET";
    allowed[0] = '\0';
    for (const server_route *r = server_routes; r->method != NULL; r++) {
        if (!matches(c, r->path)) continue;
        if (strcmp(r->method, method) == 0) return r;
        snprintf(allowed + strlen(allowed), 64 - strlen(allowed), "%s%s",
                 allowed[0] != '\0' ? ", " : "", r->method);
    }
    return NULL;
}

/* The host without its port and, of IPv6, its brackets. */
static bool read_host(const char *header, char host[HOST_BYTES]) {
    bool has_brackets = header[0] == '[';
    size_t n = has_brackets ? strcspn(header, "]") : strcspn(header, ":");
    const char *port = header + n + (has_brackets && header[n] != '\0');
    if (n >= HOST_BYTES || (*port != '\0' && *port != ':')) return false;
    if (*port == ':' && port[1 + strspn(port + 1, "0123456789")] != '\0') return false;
    memcpy(host, header + has_brackets, n - has_brackets);
    host[n - has_brackets] = '\0';
    return true;
}

static bool is_address(const char *host) {
    unsigned char bytes[16];
    return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

/* A name that leads here by anybody's DNS would make a page of theirs one of ours, for a browser on
 * this machine or in its network (DNS rebinding).  An address, or one of our own names, cannot. */
static bool is_our_host(const server *s, const char *header) {
    char host[HOST_BYTES];
    if (!read_host(header, host)) return false;
    if (is_address(host) || strcasecmp(host, "localhost") == 0 ||
        strcasecmp(host, s->machine) == 0 || strcasecmp(host, s->set.http.host) == 0)
        return true;
    for (size_t i = 0; i < s->set.n_allow_hosts; i++) {
        const char *allowed = s->set.allow_hosts[i];
        if (strcmp(allowed, "*") == 0 || strcasecmp(allowed, host) == 0) return true;
    }
    return false;
}

/* Where keys are asked for, a page that has none gets nowhere, whatever its host; checks of health
 * tell nothing. */
static bool has_good_host(const call *c) {
    const char *host = http_header(c->x, "Host");
    bool is_checked = c->s->keys == NULL || c->s->set.n_allow_hosts > 0;
    return !is_checked || host == NULL || c->route == ROUTE_HEALTH || is_our_host(c->s, host);
}

/* A page of another site, in a browser of somebody who can reach this server, may not change
 * anything: browsers tell where a script comes from. */
static bool is_foreign(const call *c) {
    const char *origin = http_header(c->x, "Origin"), *host = http_header(c->x, "Host");
    const char *forwarded = http_header(c->x, "X-Forwarded-Host");
    if (origin == NULL || strcmp(c->x->method, "GET") == 0) return false;
    const char *from = strstr(origin, "://");
    if (from == NULL) return true;
    from += 3;
    return !(host != NULL && strcasecmp(from, host) == 0) &&
           !(forwarded != NULL && strcasecmp(from, forwarded) == 0);
}

/* "Authorization: Bearer KEY" or "X-Api-Key: KEY". */
static status check_key(call *c) {
    const char *text = http_header(c->x, "Authorization");
    if (text != NULL && strncasecmp(text, "Bearer ", 7) == 0)
        text += 7;
    else
        text = http_header(c->x, "X-Api-Key");
    key_verdict v = api_keys_use(c->s->keys, text, clock_ns(), &c->key_name, &c->roles);
    if (v == KEY_OK) return OK;
    if (v == KEY_OVER_QUOTA) {
        atomic_fetch_add(&c->s->metrics.rejected_quota, 1);
        http_set_header(c->x, "Retry-After", "1");
        return call_refuse(c, 429, "quota exceeded; retry in a second");
    }
    http_set_header(c->x, "WWW-Authenticate", "Bearer");
    return call_refuse(c, 401, "API key required: send 'Authorization: Bearer KEY'");
}

status call_may(call *c, unsigned role) {
    if ((c->roles & role) == role) return OK;
    return call_refuse(c, 403, "the key of %s lacks the role %s", c->key_name, key_role_name(role));
}

/* Whether the request may come in, by its headers alone: its host, its key, the page that sent it.
 * role: that it needs, 0: none. */
static status check_entry(call *c, unsigned role) {
    c->roles = KEY_ALL;
    if (!has_good_host(c))
        return call_refuse(c, 403,
                           "'%.100s' is not a host name of this server; allow it with --allow-host "
                           "NAME, or --allow-host '*' for any",
                           http_header(c->x, "Host"));
    if (c->s->keys != NULL && role != 0) {
        TRY(check_key(c));
        TRY(call_may(c, role));
    }
    return is_foreign(c) ? call_refuse(c, 403, "cross-origin request refused") : OK;
}

/* Parameters are as strict as members of a body, so that typing mistakes are noticed; what checks
 * health, scrapes metrics or links to the page may add its own. */
static status check_query(call *c, const server_route *r) {
    bool is_open = r->name == ROUTE_HEALTH || r->name == ROUTE_METRICS || r->serve == serve_page;
    const char *names = r->path + strcspn(r->path, "?");
    names += *names == '?';
    const char *other = is_open ? NULL : http_query_other(c->x, names);
    if (other == NULL) return OK;
    return fail(ERR_USAGE, "there is no parameter '%.64s' here; this path takes %s", other,
                *names != '\0' ? names : "none");
}

static status choose_route(call *c) {
    char allowed[64];
    if (!split_path(c))
        return fail(ERR_USAGE, "the path has an invalid escape, or too many or too long parts");
    const server_route *r = find_route(c, allowed);
    if (r != NULL) {
        c->route = r->name;
        c->at = r;
        TRY(check_entry(c, r->needs & KEY_ALL));
        return check_query(c, r);
    }
    if (allowed[0] == '\0')
        return call_refuse(c, 404, "nothing at %.200s; docs/server.md lists all paths", c->x->path);
    http_set_header(c->x, "Allow", allowed);
    return call_refuse(c, 405, "%.20s is not allowed for this path; use %s", c->x->method, allowed);
}

/* The headers are there: whoever may not send this is told so before its body is read. */
static void begin(void *context, http_exchange *x) {
    call *c;
    buf none = {0};
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
    choose_trace(c);
    status st = choose_route(c);
    if (st == OK)
        x->context = c;
    else
        call_answer(c, st);
}

static void serve(void *context) {
    call *c = context;
    bool answers = (c->at->needs & ANSWERS_ITSELF) != 0;
    status st = answers ? c->at->serve(c, NULL) : call_write(c, c->at->serve);
    if (!answers || st != OK) call_answer(c, st);
}

static void handle(void *context, http_exchange *x) {
    server *s = context;
    call *c = x->context;
    size_t n_body = x->n_body;
    /* The tree of a JSON text takes about eight times its bytes: one block for most requests. */
    arena_init(&c->memory, (4 << 10) + 8 * (n_body < 32 << 10 ? n_body : 32 << 10));
    if (c->at->needs & ON_WORKER)
        call_later(c, serve);
    else if (n_body <= LARGE_BODY)
        serve(c);
    else if (!workers_run(s->large, serve, c)) {
        http_set_header(x, "Retry-After", "1");
        call_answer(
            c, call_refuse(c, 503,
                           "too many large requests are waiting; send smaller ones, or retry"));
    }
}

static void forget(void *context, http_exchange *x) {
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
    engine_id id = id_as_text(user, digits);
    int at = (int)(hash64(id.text, id.n, 0x5eed) % (uint64_t)s->total_share);
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
    pthread_mutex_init(&s->reload_lock, NULL);
    pthread_mutex_init(&s->shown.lock, NULL);
    cond_init(&s->wake);
    gethostname(s->machine, sizeof s->machine - 1);
    if (getrandom(&s->id_salt, sizeof s->id_salt, 0) != sizeof s->id_salt) s->id_salt = clock_ns();
    status st = MEM_NEW(&s->shown.list, SHOWN_USERS);
    if (st == OK) st = start(s);
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

void server_stop(server *s) {
    if (s == NULL) return;
    if (s->http != NULL) server_drain(s, 0);
    atomic_store(&s->is_stopping, true);
    pthread_mutex_lock(&s->lock);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (s->has_keeper) pthread_join(s->keeper, NULL);
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
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->reload_lock);
    pthread_mutex_destroy(&s->shown.lock);
    mem_free(s->shown.list);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}
