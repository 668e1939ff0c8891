/* A load on a server: threads with a connection each, plain sockets and
 * HTTP/1.1. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "bench/serve_load.h"

enum { HOST_BYTES = 256, MAX_THREADS = 1024, ANSWER_SECONDS = 60, MAX_ANSWER = 1 << 26 };

typedef struct http_target {
    load_target target;
    char host[HOST_BYTES], port[8], model[128];
    struct addrinfo *addresses;
    pthread_mutex_t lock; /* of target.error */
} http_target;

/* One round of requests. */
typedef struct http_round {
    http_target *t;
    const load_set *s;
    const uint64_t *at; /* or NULL */
    load_outcome *out;
    uint64_t start;
    atomic_size_t next;
} http_round;

typedef struct connection {
    int fd; /* -1: not open */
    buf in; /* what was received */
} connection;

static void note_failure(http_target *t, const char *text) {
    pthread_mutex_lock(&t->lock);
    if (t->target.error[0] == '\0')
        snprintf(t->target.error, sizeof t->target.error, "%.200s", text);
    pthread_mutex_unlock(&t->lock);
}

static void hang_up(connection *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    buf_clear(&c->in);
}

static bool dial(const http_target *t, connection *c) {
    struct timeval limit = {.tv_sec = ANSWER_SECONDS};
    int on = 1;
    for (const struct addrinfo *a = t->addresses; a != NULL && c->fd < 0; a = a->ai_next) {
        c->fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (c->fd >= 0 && connect(c->fd, a->ai_addr, a->ai_addrlen) != 0) hang_up(c);
    }
    if (c->fd < 0) return false;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return true;
}

static bool send_all(int fd, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes += sent;
        n -= (size_t)sent;
    }
    return true;
}

static bool receive(connection *c) {
    char piece[16384];
    ssize_t got = recv(c->fd, piece, sizeof piece, 0);
    return got > 0 && c->in.n_bytes < MAX_ANSWER && buf_append(&c->in, piece, (size_t)got) == OK;
}

/* The value of a header between the status line and the body; NULL: it is not
 * there. */
static const char *find_header(const char *head, const char *body, const char *name) {
    size_t n = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line != NULL && line + 2 < body;
         line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, n) == 0 && line[2 + n] == ':')
            return line + 3 + n + strspn(line + 3 + n, " ");
    return NULL;
}

/* Whether a body in chunks is whole; *end is where the next answer begins. */
static bool has_chunks(const char *text, size_t n, size_t at, size_t *end) {
    for (;;) {
        char *after;
        const char *line = text + at;
        if (at >= n || strstr(line, "\r\n") == NULL) return false;
        unsigned long bytes = strtoul(line, &after, 16);
        const char *data = strstr(after, "\r\n");
        if (data == NULL || bytes > MAX_ANSWER) return false;
        at = (size_t)(data + 2 - text) + bytes + 2;
        if (at > n) return false;
        if (bytes == 0) break;
    }
    *end = at;
    return true;
}

/* One answer: its status code, 0 where the connection failed. */
static int read_answer(connection *c, size_t *body_at, bool *is_last) {
    for (;;) {
        const char *text = buf_str(&c->in), *head_end = strstr(text, "\r\n\r\n");
        if (head_end != NULL) {
            size_t at = (size_t)(head_end + 4 - text), end = 0;
            const char *length = find_header(text, head_end + 2, "Content-Length");
            const char *coding = find_header(text, head_end + 2, "Transfer-Encoding");
            const char *closing = find_header(text, head_end + 2, "Connection");
            bool is_whole =
                coding != NULL
                    ? has_chunks(text, c->in.n_bytes, at, &end)
                    : c->in.n_bytes >= at + (length != NULL ? strtoul(length, NULL, 10) : 0);
            *body_at = at;
            *is_last = closing != NULL && strncasecmp(closing, "close", 5) == 0;
            if (is_whole) return strncmp(text, "HTTP/1.", 7) == 0 ? atoi(text + 9) : 0;
        }
        if (!receive(c)) return 0;
    }
}

/* A number in the answer's text; a quote inside of a string is escaped, so this
 * is the member. */
static int32_t member(const char *body, const char *key) {
    const char *found = strstr(body, key);
    return found != NULL ? (int32_t)strtol(found + strlen(key), NULL, 10) : 0;
}

static void write_head(const http_target *t, const load_request *r, buf *out) {
    static const char *const paths[] = {"/v1/recommend", "/v1/rank"};
    buf_clear(out);
    if (r->route == LOAD_INFER)
        (void)buf_printf(out, "POST /v2/models/%s/infer HTTP/1.1\r\n", t->model);
    else
        (void)buf_printf(out, "POST %s HTTP/1.1\r\n", paths[r->route]);
    (void)buf_printf(out,
                     "Host: %s\r\nContent-Type: "
                     "application/json\r\nContent-Length: %zu\r\n\r\n",
                     t->host, r->n_bytes);
    (void)buf_append(out, r->body, r->n_bytes);
}

/* A connection that the server closed meanwhile is opened again, once. */
static int exchange(http_target *t, connection *c, const buf *request, size_t *body_at) {
    for (int round = 0; round < 2; round++) {
        bool was_open = c->fd >= 0, is_last = false;
        if (!was_open && !dial(t, c)) return 0;
        buf_clear(&c->in);
        int code = send_all(c->fd, buf_str(request), request->n_bytes)
                       ? read_answer(c, body_at, &is_last)
                       : 0;
        if (code != 0) {
            if (is_last) { /* the text stays */
                close(c->fd);
                c->fd = -1;
            }
            return code;
        }
        hang_up(c);
        if (!was_open) return 0;
    }
    return 0;
}

static void judge(http_target *t, load_outcome *o, int code, const char *body) {
    o->kind = code == 200 ? LOAD_OK : code == 503 || code == 429 ? LOAD_REFUSED : LOAD_FAILED;
    if (o->kind == LOAD_OK) {
        o->tokens_reused = member(body, "\"tokens_reused\":");
        o->tokens_computed = member(body, "\"tokens_computed\":");
    }
    if (o->kind == LOAD_FAILED) {
        char text[256];
        snprintf(text, sizeof text, "%s %d: %.160s",
                 code == 0 ? "no answer, connection lost" : "HTTP", code, body);
        note_failure(t, text);
    }
}

static void sleep_until(uint64_t ns) {
    struct timespec at = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0)
        continue;
}

static void *send_some(void *argument) {
    http_round *r = argument;
    connection c = {.fd = -1};
    buf request;
    buf_init(&c.in);
    buf_init(&request);
    for (;;) {
        size_t i = atomic_fetch_add(&r->next, 1), body_at = 0;
        if (i >= r->s->n) break;
        load_outcome *o = &r->out[i];
        write_head(r->t, &r->s->item[i], &request);
        if (r->at != NULL) {
            o->intended_ns = r->start + r->at[i];
            sleep_until(o->intended_ns);
        }
        o->sent_ns = clock_ns();
        if (r->at == NULL) o->intended_ns = o->sent_ns;
        int code = exchange(r->t, &c, &request, &body_at);
        o->done_ns = clock_ns();
        judge(r->t, o, code, code != 0 ? buf_str(&c.in) + body_at : "");
    }
    hang_up(&c);
    buf_fini(&c.in);
    buf_fini(&request);
    return NULL;
}

static status run(load_target *target, const load_set *s, const load_plan *p, const uint64_t *at,
                  load_outcome *out) {
    http_round r = {.t = (http_target *)target, .s = s, .at = at, .out = out, .start = clock_ns()};
    pthread_t threads[MAX_THREADS];
    int n = p->concurrency < 1 ? 1 : p->concurrency > MAX_THREADS ? MAX_THREADS : p->concurrency;
    int started = 0, code = 0;
    atomic_init(&r.next, 0);
    for (; started < n && code == 0; started += code == 0)
        code = pthread_create(&threads[started], NULL, send_some, &r);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return started > 0 ? OK : fail(ERR_IO, "no thread for the load: %s", strerror(code));
}

static void close_target(load_target *target) {
    http_target *t = (http_target *)target;
    if (t->addresses != NULL) freeaddrinfo(t->addresses);
    pthread_mutex_destroy(&t->lock);
    mem_free(t);
}

/* http://HOST[:PORT][/] */
static status read_url(http_target *t, const char *url) {
    const char *host = strncmp(url, "http://", 7) == 0 ? url + 7 : url;
    size_t n = strcspn(host, ":/");
    const char *port = host[n] == ':' ? host + n + 1 : "80";
    size_t digits = strspn(port, "0123456789");
    if (n == 0 || n >= HOST_BYTES || digits == 0 || digits > 5 ||
        (port[digits] != '\0' && strcmp(port + digits, "/") != 0 && host[n] == ':'))
        return fail(ERR_USAGE, "--server %.100s: give http://HOST:PORT", url);
    snprintf(t->host, sizeof t->host, "%.*s", (int)n, host);
    snprintf(t->port, sizeof t->port, "%.*s", (int)digits, port);
    return OK;
}

static status open_target(http_target *t, const char *url, const char *model) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    TRY(read_url(t, url));
    if (model != NULL && snprintf(t->model, sizeof t->model, "%s", model) >= (int)sizeof t->model)
        return fail(ERR_USAGE, "--model %.60s: the name is too long", model);
    int code = getaddrinfo(t->host, t->port, &hints, &t->addresses);
    if (code != 0) return fail(ERR_IO, "%s: %s", t->host, gai_strerror(code));
    connection c = {.fd = -1};
    buf_init(&c.in);
    bool is_there = dial(t, &c);
    hang_up(&c);
    buf_fini(&c.in);
    return is_there ? OK : fail_errno("%s port %s: nobody answers", t->host, t->port);
}

status load_target_http(load_target **out, const char *url, const char *model) {
    http_target *t;
    *out = NULL;
    TRY(MEM_NEW(&t, 1));
    t->target = (load_target){.run = run, .close = close_target};
    pthread_mutex_init(&t->lock, NULL);
    status st = open_target(t, url, model);
    if (st != OK) {
        close_target(&t->target);
        return st;
    }
    *out = &t->target;
    return OK;
}
