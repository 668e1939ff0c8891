#include "serve/http/http.h"

#include "base/rng.h"
#include "base/thread.h"
#include "http_echo.h"
#include "oom.h"

TEST(http_is_missing_or_starts) {
    echo e = {0};
    http_settings s = settings(&e);
    if (http_library_version() == NULL) {
        CHECK_FAILS(http_start(&e.server, &s), ERR_UNSUPPORTED, "libmicrohttpd-dev");
        CHECK(e.server == NULL);
        return;
    }
    start(&e, &s);
    CHECK(http_port(e.server) > 0);
    stop(&e);
}

TEST(http_passes_requests_and_answers) {
    echo e;
    http_settings s = settings(&e);
    start(&e, &s);
    char *text =
        client_ask(http_port(e.server), "POST", "/a%20b?q=x%20y", "X-Test: seen\r\n", "hello");
    CHECK_EQ(client_code(text), 200);
    CHECK_STR(client_body(text), "POST /a%20b 5 [hello] seen 127.0.0.1 x%20y");
    CHECK_CONTAINS(text, "X-Echo: yes");
    free(text);
    text = client_ask(http_port(e.server), "GET", "/", "", "");
    CHECK_STR(client_body(text), "GET / 0 [] - 127.0.0.1 -");
    free(text);
    stop(&e);
}

TEST(http_keeps_connections) {
    static const char two[] =
        "GET /1 HTTP/1.1\r\nHost: t\r\n\r\nGET /2 HTTP/1.1\r\nHost: t\r\n\r\n";
    echo e;
    http_settings s = settings(&e);
    start(&e, &s);
    int fd = client_open(http_port(e.server));
    for (int i = 0; i < 20; i++) {
        CHECK(client_send(fd, two, strlen(two) / 2));
        char *text = client_read(fd);
        CHECK_CONTAINS(text, "GET /1 0");
        free(text);
    }
    CHECK_EQ(http_get_stats(e.server).n_accepted, 1);
    close(fd);
    stop(&e);
}

TEST(http_answers_later_from_another_thread) {
    static const char ask[] = "POST /later HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi";
    enum { N = 16 };
    echo e;
    int fd[N];
    http_settings s = settings(&e);
    start(&e, &s);
    for (int i = 0; i < N; i++) {
        fd[i] = client_open(http_port(e.server));
        CHECK(client_send(fd[i], ask, strlen(ask)));
    }
    wait_for(&e, N);
    CHECK_EQ(http_get_stats(e.server).n_unanswered, N);
    for (int i = N - 1; i > 0; i--)
        answer(e.later[i]);
    http_continue(e.later[0], answer_then, e.later[0]); /* on the server's thread */
    for (int i = 0; i < N; i++) {
        char *text = client_read(fd[i]);
        CHECK_CONTAINS(text, "POST /later 2 [hi]");
        free(text);
        close(fd[i]);
    }
    CHECK_EQ(http_get_stats(e.server).n_unanswered, 0);
    char *text = client_ask(http_port(e.server), "GET", "/then", "", "");
    CHECK_CONTAINS(text, "GET /then 0");
    free(text);
    stop(&e);
}

/* Answers that come at once take turns; a connection that is gone takes none, and whoever stops the
 * server does not wait for them. */
/* Sends a request that is answered when it is seen, and returns whether it was a lone one. */
static bool ask_later(echo *e, int fd, bool is_answered, uint64_t *arrived_ns) {
    static const char ask[] = "GET /later HTTP/1.1\r\nHost: t\r\n\r\n";
    int n = e->n_later;
    CHECK(client_send(fd, ask, strlen(ask)));
    wait_for(e, n + 1);
    http_exchange *x = e->later[n];
    bool is_lone = x->is_lone;
    *arrived_ns = x->arrived_ns;
    if (!is_answered) return is_lone;
    answer(x);
    free(client_read(fd));
    return is_lone;
}

/* A client is alone while nobody else waits, and where the last request was its own or long ago. */
TEST(http_knows_a_lone_client) {
    enum { LONG_NS = 2000000 };
    echo e;
    uint64_t first_ns, ns;
    http_settings s = settings(&e);
    start(&e, &s);
    int one = client_open(http_port(e.server)), other = client_open(http_port(e.server));
    CHECK(ask_later(&e, one, true, &first_ns));
    CHECK(ask_later(&e, one, true, &first_ns));
    bool is_lone = ask_later(&e, other, true, &ns);
    CHECK_EQ(is_lone, ns > first_ns + LONG_NS);
    CHECK(ask_later(&e, other, false, &ns));
    http_exchange *waiting = e.later[e.n_later - 1];
    usleep(10000);
    CHECK(!ask_later(&e, one, true, &ns));
    answer(waiting);
    usleep(10000);
    CHECK(ask_later(&e, other, true, &ns));
    close(one);
    close(other);
    stop(&e);
}

TEST(http_answers_in_turns) {
    static const char ask[] = "POST /later HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi";
    enum { N = 32 };
    struct linger reset = {.l_onoff = 1};
    echo e;
    int fd[N];
    http_settings s = settings(&e);
    start(&e, &s);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            fd[i] = client_open(http_port(e.server));
            CHECK(client_send(fd[i], ask, strlen(ask)));
            wait_for(&e, i + 1); /* in this order */
        }
        for (int i = 0; i < N && round == 0; i += 2) {
            CHECK_EQ(setsockopt(fd[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
            close(fd[i]);
        }
        for (int i = 0; i < N; i++)
            i % 3 == 0 ? http_continue(e.later[i], answer_then, e.later[i]) : answer(e.later[i]);
        for (int i = 1; i < N && round == 0; i += 2) {
            char *text = client_read(fd[i]);
            CHECK_CONTAINS(text, "POST /later 2 [hi]");
            free(text);
            close(fd[i]);
        }
        e.n_later = 0;
    }
    for (int i = 0; i < 60000 && http_get_stats(e.server).n_unanswered > 0; i++)
        usleep(1000); /* those of http_continue */
    stop(&e);
    for (int i = 0; i < N; i++)
        close(fd[i]);
}

/* Holds the only thread of the server. */
static void hold(void *context, http_exchange *x) {
    echo *e = context;
    pthread_mutex_lock(&e->lock);
    if (strcmp(x->path, "/held") == 0) {
        e->n_later = 1;
        pthread_cond_broadcast(&e->wake);
        while (e->n_later == 1)
            pthread_cond_wait(&e->wake, &e->lock);
    } else {
        e->arrived_ns = x->arrived_ns;
    }
    pthread_mutex_unlock(&e->lock);
    answer(x);
}

/* A request that waits in its socket has arrived when it came there. */
TEST(http_counts_the_time_in_the_socket) {
    static const char first[] = "GET /held HTTP/1.1\r\nHost: t\r\n\r\n";
    static const char second[] = "GET /next HTTP/1.1\r\nHost: t\r\n\r\n";
    enum { WAIT_NS = 400000000, SLACK_NS = 300000000 };
    echo e;
    http_settings s = settings(&e);
    s.n_threads = 1;
    s.handle = hold;
    start(&e, &s);
    int fd = client_open(http_port(e.server)), next = client_open(http_port(e.server));
    CHECK(client_send(fd, first, strlen(first)));
    wait_for(&e, 1);
    uint64_t before = clock_ns();
    CHECK(client_send(next, second, strlen(second)));
    uint64_t sent = clock_ns();
    while (clock_ns() < sent + WAIT_NS)
        usleep(1000);
    pthread_mutex_lock(&e.lock);
    e.n_later = 0;
    pthread_cond_broadcast(&e.wake);
    pthread_mutex_unlock(&e.lock);
    char *text = client_read(next);
    CHECK_CONTAINS(text, "GET /next");
    free(text);
    CHECK(e.arrived_ns + SLACK_NS > before && e.arrived_ns < sent + SLACK_NS);
    close(fd);
    close(next);
    stop(&e);
}

TEST(http_notices_who_has_gone) {
    static const char ask[] = "GET /later HTTP/1.1\r\nHost: t\r\n\r\n";
    echo e;
    http_settings s = settings(&e);
    start(&e, &s);
    int fd = client_open(http_port(e.server));
    CHECK(client_send(fd, ask, strlen(ask)));
    wait_for(&e, 1);
    CHECK(!http_is_cancelled(e.later[0]));
    close(fd);
    for (int i = 0; i < 1000 && !http_is_cancelled(e.later[0]); i++)
        usleep(1000);
    CHECK(http_is_cancelled(e.later[0]));
    answer(e.later[0]);
    /* One that is to be answered by the server's own thread is answered as well, also where the
     * connection was reset: then libmicrohttpd never asks for the answer. */
    struct linger reset = {.l_onoff = 1};
    fd = client_open(http_port(e.server));
    CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    CHECK(client_send(fd, ask, strlen(ask)));
    wait_for(&e, 2);
    close(fd);
    for (int i = 0; i < 1000 && !http_is_cancelled(e.later[1]); i++)
        usleep(1000);
    http_continue(e.later[1], answer_then, e.later[1]);
    for (int i = 0; i < 5000 && http_get_stats(e.server).n_unanswered > 0; i++)
        usleep(1000);
    CHECK_EQ(http_get_stats(e.server).n_unanswered, 0);
    stop(&e);
}

TEST(http_limits_headers_and_bodies) {
    echo e;
    http_settings s = settings(&e);
    s.max_body_bytes = 1000;
    start(&e, &s);
    int port = http_port(e.server);
    char *long_text = calloc(1, 20001);
    memset(long_text, 'x', 1000);
    char *text = client_ask(port, "POST", "/", "", long_text);
    CHECK_EQ(client_code(text), 200);
    free(text);
    memset(long_text, 'x', 1001);
    text = client_ask(port, "POST", "/", "", long_text);
    CHECK_EQ(client_code(text), 413);
    CHECK_CONTAINS(text, "{\"error\":\"the body has more than 1000 bytes; send less");
    free(text);
    char *headers = calloc(1, 20100);
    memset(long_text, 'x', 17000);
    sprintf(headers, "X-Long: %s\r\n", long_text);
    text = client_ask(port, "GET", "/", headers, "");
    CHECK_EQ(client_code(text), 431);
    CHECK_CONTAINS(text, "{\"error\":\"the headers have more than 16384 bytes\"}");
    free(text);
    free(headers);
    /* A body whose length is not announced. */
    int fd = client_open(port);
    static const char begin[] = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    CHECK(client_send(fd, begin, strlen(begin)));
    for (int i = 0; i < 50; i++)
        if (!client_send(fd, "64\r\n", 4) || !client_send(fd, long_text, 0x64) ||
            !client_send(fd, "\r\n", 2))
            break;
    text = client_read(fd);
    CHECK_EQ(client_code(text), 413);
    free(text);
    close(fd);
    free(long_text);
    stop(&e);
    CHECK_EQ(e.n_refused[413], 2);
    CHECK_EQ(e.n_refused[431], 1);
}

/* Where a proxy may find another end of the body, nothing after the headers may be read as a
 * request. */
TEST(http_refuses_ambiguous_lengths_and_compressed_bodies) {
    static const struct {
        const char *headers;
        int code;
        const char *why;
    } cases[] = {
        {"Content-Length: 2\r\nContent-Length: 5", 400, "said twice"},
        {"Content-Length: 0\r\nContent-Length: 0", 400, "said twice"},
        {"Content-Length: 2\r\nTransfer-Encoding: chunked", 400, "said twice"},
        {"Content-Length: 2\r\nContent-Encoding: gzip", 415, "without Content-Encoding"},
        {"Content-Length : 2", 400, "malformed"},
        {"Content-Length\t: 2", 400, "malformed"},
        {"Transfer-Encoding : chunked", 400, "malformed"},
        {"X-A(b): c\r\nContent-Length: 2", 400, "malformed"},
        {"X-A: b\rContent-Length: 9\r\nContent-Length: 2", 400, "malformed"},
        {"Transfer-Encoding: xchunked", 400, "only one"},
        {"Transfer-Encoding: chunked, identity", 400, "only one"},
        {"Transfer-Encoding: gzip, chunked", 400, "only one"},
        {"Transfer-Encoding: identity", 400, "only one"},
        {"Host: other\r\nContent-Length: 2", 400, "more than one Host"},
    };
    echo e;
    http_settings s = settings(&e);
    start(&e, &s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char ask[300];
        int n = snprintf(ask, sizeof ask,
                         "POST / HTTP/1.1\r\nHost: t\r\n%s\r\n\r\nhi"
                         "GET /second HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
                         cases[i].headers);
        int fd = client_open(http_port(e.server));
        CHECK(client_send(fd, ask, (size_t)n));
        char *text = client_read(fd);
        CHECK_EQ(client_code(text), cases[i].code);
        CHECK_CONTAINS(text, cases[i].why);
        CHECK(text != NULL && strstr(text + 1, "HTTP/1.1") == NULL);
        free(text);
        close(fd);
    }
    char *text =
        client_ask(http_port(e.server), "POST", "/", "Content-Encoding: identity\r\n", "hi");
    CHECK_EQ(client_code(text), 200);
    free(text);
    int fd = client_open(http_port(e.server));
    static const char old[] = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
                              "0\r\n\r\n";
    CHECK(client_send(fd, old, strlen(old)));
    text = client_read(fd);
    CHECK_EQ(client_code(text), 400);
    CHECK_CONTAINS(text, "HTTP/1.0 has no chunks");
    free(text);
    close(fd);
    stop(&e);
    CHECK_EQ(e.n_refused[400], (int)(sizeof cases / sizeof *cases));
}

/* Answers who has no key before the body; counts those who do not send it. */
static void begin(void *context, http_exchange *x) {
    if (http_header(x, "X-Test") == NULL)
        answer(x);
    else
        x->context = context;
}

static void gone(void *context, http_exchange *x) {
    echo *e = context;
    CHECK(x->context == e);
    refused(e, 0);
}

TEST(http_can_answer_before_the_body) {
    static const char ask[] = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n";
    echo e;
    http_settings s = settings(&e);
    s.begin = begin;
    s.gone = gone;
    start(&e, &s);
    int fd = client_open(http_port(e.server));
    CHECK(client_send(fd, ask, strlen(ask)) && client_send(fd, "\r\n", 2));
    char *text = client_read(fd);
    CHECK_CONTAINS(text, "POST / 0 []");
    CHECK_CONTAINS(text, "Connection: close");
    free(text);
    CHECK_EQ(recv(fd, (char[1]){0}, 1, 0), 0);
    close(fd);
    text = client_ask(http_port(e.server), "GET", "/a", "", ""); /* nothing follows: it stays */
    CHECK_CONTAINS(text, "GET /a 0");
    CHECK(strstr(text, "Connection: close") == NULL);
    free(text);
    text = client_ask(http_port(e.server), "POST", "/", "X-Test: yes\r\n", "hello");
    CHECK_CONTAINS(text, "POST / 5 [hello] yes");
    free(text);
    CHECK_EQ(http_get_stats(e.server).n_unanswered, 0);
    fd = client_open(http_port(e.server));
    CHECK(client_send(fd, ask, strlen(ask)) && client_send(fd, "X-Test: a\r\n\r\nhalf", 17));
    close(fd);
    wait_refused(&e, 0, 1);
    stop(&e);
    CHECK_EQ(e.n_refused[0], 1);
}

/* Starts a server, and a client that reads a stream of it; returns the client. */
static int open_stream(echo *e) {
    static const char ask[] = "GET /stream HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    http_settings s = settings(e);
    start(e, &s);
    int fd = client_open(http_port(e->server));
    CHECK(client_send(fd, ask, strlen(ask)));
    pthread_mutex_lock(&e->lock);
    while (e->stream == NULL)
        pthread_cond_wait(&e->wake, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return fd;
}

TEST(http_streams_until_it_is_closed) {
    echo e;
    int fd = open_stream(&e);
    for (int i = 0; i < 5; i++) {
        CHECK(http_stream_write(e.stream, "data: 1\n\n", 9));
        usleep(2000);
    }
    http_stream_close(e.stream);
    char *text = client_read(fd);
    CHECK_CONTAINS(text, "text/event-stream");
    int n = 0;
    for (const char *at = text; (at = strstr(at, "data: 1")) != NULL; at++)
        n++;
    CHECK_EQ(n, 5);
    free(text);
    close(fd);
    stop(&e);
}

TEST(http_stream_ends_with_its_reader) {
    echo e;
    int fd = open_stream(&e);
    close(fd);
    int n = 0;
    while (n < 5000 && http_stream_write(e.stream, "data: 1\n\n", 9)) {
        usleep(1000);
        n++;
    }
    CHECK(n < 5000);
    http_stream_close(e.stream);
    stop(&e);
}

/* Bytes of any kind, whole and broken requests, connections that end anywhere. */
TEST(http_survives_any_bytes) {
    static const char *const parts[] = {"GET / HTTP/1.1\r\nHost: t\r\n\r\n",
                                        "POST /x HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999"
                                        "99999999999\r\n\r\n",
                                        "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                                        "ffffffffffffffffff\r\nabc",
                                        "GET /%00%zz HTTP/1.1\r\nHost: t\r\n\r\n",
                                        "GET / HTTP/9.9\r\n\r\n",
                                        "\r\n\r\n\r\n"};
    echo e;
    http_settings s = settings(&e);
    start(&e, &s);
    for (uint64_t i = 0; i < 300; i++) {
        char bytes[300];
        int fd = client_open(http_port(e.server));
        for (uint64_t k = 0; k < 3; k++) {
            rng_block r = rng_draw(rng_make_key(7, RNG_TEST), (uint32_t)i, (uint32_t)k, 0, 0);
            const char *part = parts[r.word[0] % 6];
            if (r.word[1] % 2 == 0) {
                client_send(fd, part, r.word[2] % (strlen(part) + 1));
                continue;
            }
            for (size_t b = 0; b < sizeof bytes; b++)
                bytes[b] = (char)(r.word[3] * (b * 2654435761u + 12345u) >> 13);
            client_send(fd, bytes, r.word[2] % sizeof bytes);
        }
        close(fd);
    }
    char *text = client_ask(http_port(e.server), "GET", "/alive", "", "");
    CHECK_EQ(client_code(text), 200);
    free(text);
    stop(&e);
}

TEST(http_refuses_a_port_in_use) {
    echo e;
    http_server *second;
    http_settings s = settings(&e);
    s.n_threads = 3;
    start(&e, &s);
    s.port = http_port(e.server);
    CHECK_FAILS(http_start(&second, &s), ERR_IO, "cannot listen on it: Address already in use");
    s.host = "no.such.host.invalid";
    CHECK_FAILS(http_start(&second, &s), ERR_IO, "no.such.host.invalid");
    stop(&e);
}

TEST(http_decodes_strictly) {
    char out[8];
    CHECK(http_decode("a%2Fb+c", 7, false, out, sizeof out) && strcmp(out, "a/b+c") == 0);
    CHECK(http_decode("a+%41", 5, true, out, sizeof out) && strcmp(out, "a A") == 0);
    CHECK(!http_decode("%4", 2, false, out, sizeof out));
    CHECK(!http_decode("%", 1, false, out, sizeof out));
    CHECK(!http_decode("%4g", 3, false, out, sizeof out));
    CHECK(!http_decode("%00", 3, false, out, sizeof out));
    CHECK(!http_decode("12345678", 8, false, out, sizeof out));
    CHECK(http_decode("1234567", 7, false, out, sizeof out));
}

static status start_and_stop(void *context) {
    http_server *h;
    TRY(http_start(&h, context));
    http_stop(h);
    return OK;
}

TEST(http_reports_lack_of_memory) {
    echo e = {0};
    http_settings s = settings(&e);
    if (http_library_version() == NULL) SKIP_TEST("this build has no libmicrohttpd");
    CHECK(oom_at_each_allocation(start_and_stop, &s) > 0);
}
