/* A server for tests of HTTP that echoes what it is sent. */
#ifndef HSTU_TESTS_HTTP_ECHO_H
#define HSTU_TESTS_HTTP_ECHO_H

#include <pthread.h>

#include "http_client.h"
#include "serve/http/http.h"
#include "test.h"

/* A handler that echoes; /later is answered by another thread, /stream without an end. */
typedef struct echo {
    http_server *server;
    int n_refused[600];
    http_exchange *later[64];
    int n_later;
    uint64_t arrived_ns;
    http_stream *stream;
    bool is_cancelled;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} echo;

static inline void answer(http_exchange *x) {
    buf text = {0};
    size_t n = x->n_body;
    const char *body = x->body, *header = http_header(x, "X-Test");
    char peer[HTTP_ADDRESS_BYTES];
    http_peer(x, peer);
    CHECK_OK(buf_printf(&text, "%s %s %zu [", x->method, x->path, n));
    CHECK_OK(buf_append(&text, body, n));
    CHECK_OK(buf_printf(&text, "] %s %s %s", header != NULL ? header : "-", peer,
                        http_query(x, "q") != NULL ? http_query(x, "q") : "-"));
    http_set_header(x, "X-Echo", "yes");
    http_respond(x, 200, "text/plain", &text);
    CHECK(text.data == NULL);
}

static inline void answer_then(void *exchange) {
    answer(exchange);
}

/* An answer that no socket takes at once. */
enum { BIG_BYTES = 16 << 20 };

static inline void answer_big(http_exchange *x) {
    buf text = {0};
    CHECK_OK(buf_reserve(&text, BIG_BYTES));
    memset(text.data, 'x', BIG_BYTES);
    text.n_bytes = BIG_BYTES;
    http_respond(x, 200, "text/plain", &text);
}

static inline void handle(void *context, http_exchange *x) {
    echo *e = context;
    if (strcmp(x->path, "/big") == 0) {
        answer_big(x);
        return;
    }
    if (strcmp(x->path, "/then") == 0) {
        http_continue(x, answer_then, x);
        return;
    }
    if (strcmp(x->path, "/stream") == 0) {
        http_stream *s = http_respond_stream(x, "text/event-stream");
        pthread_mutex_lock(&e->lock);
        e->stream = s;
    } else if (strcmp(x->path, "/later") == 0) {
        pthread_mutex_lock(&e->lock);
        e->later[e->n_later++] = x;
    } else {
        answer(x);
        return;
    }
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

static inline void refused(void *context, int code) {
    echo *e = context;
    pthread_mutex_lock(&e->lock);
    e->n_refused[code]++;
    pthread_mutex_unlock(&e->lock);
}

/* Waits until `n` requests were refused with a code. */
static inline void wait_refused(echo *e, int code, int n) {
    for (int i = 0, now = 0; i < 10000 && now < n; i++) {
        usleep(1000);
        pthread_mutex_lock(&e->lock);
        now = e->n_refused[code];
        pthread_mutex_unlock(&e->lock);
    }
}

static inline http_settings settings(echo *e) {
    http_settings s = http_default_settings();
    s.port = 0;
    s.handle = handle;
    s.refused = refused;
    s.ctx = e;
    return s;
}

static inline void start(echo *e, const http_settings *s) {
    if (http_library_version() == NULL) SKIP_TEST("this build has no libmicrohttpd");
    *e = (echo){0};
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    CHECK_OK(http_start(&e->server, s));
}

static inline void stop(echo *e) {
    http_stop(e->server);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
}

/* Waits until `n` exchanges have to be answered. */
static inline void wait_for(echo *e, int n) {
    pthread_mutex_lock(&e->lock);
    while (e->n_later < n)
        pthread_cond_wait(&e->wake, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

#endif
