/* Deadlines and bounds of connections. */
#include "base/clock.h"
#include "http_echo.h"

/* A byte at a time: activity does not prolong the deadline. */
static void send_slowly(int port, const char *begin, int *out_code) {
    int fd = client_open(port);
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    CHECK(client_send(fd, begin, strlen(begin)));
    for (int i = 0; i < 200 && poll(&readable, 1, 0) == 0; i++) {
        client_send(fd, "a", 1);
        usleep(20000);
    }
    char *text = client_read(fd);
    *out_code = client_code(text);
    CHECK_CONTAINS(text, "send it at once");
    free(text);
    close(fd);
}

TEST(http_limits_the_time_of_a_request) {
    echo e;
    int code;
    http_settings s = settings(&e);
    s.header_ms = s.body_ms = 300;
    start(&e, &s);
    int port = http_port(e.server);
    send_slowly(port, "GET /", &code);
    CHECK_EQ(code, 408);
    send_slowly(port, "GET / HTTP/1.1\r\nHost: ", &code);
    CHECK_EQ(code, 408);
    send_slowly(port, "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n", &code);
    CHECK_EQ(code, 408);
    stop(&e);
    CHECK_EQ(e.n_refused[408], 3);
}

TEST(http_limits_the_time_of_a_later_request) {
    static const char first[] = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";
    echo e;
    http_settings s = settings(&e);
    s.header_ms = 200;
    s.idle_ms = 700;
    start(&e, &s);
    int fd = client_open(http_port(e.server));
    CHECK(client_send(fd, first, strlen(first)));
    char *text = client_read(fd);
    CHECK_EQ(client_code(text), 200);
    free(text);
    usleep(400000); /* idle for longer than headers may take */
    CHECK(client_send(fd, first, strlen(first)));
    text = client_read(fd);
    CHECK_EQ(client_code(text), 200);
    free(text);
    uint64_t before = clock_ns();
    text = client_read(fd); /* idle for too long: closed without a word */
    CHECK_STR(text, "");
    CHECK(clock_ns() - before > 500000000u);
    free(text);
    close(fd);
    stop(&e);
}

static int open_big(int port) {
    static const char ask[] = "GET /big HTTP/1.1\r\nHost: t\r\n\r\n";
    int fd = client_open(port);
    CHECK(client_send(fd, ask, strlen(ask)));
    return fd;
}

/* The status of an answer whose rest stays unread. */
static int code_of(int fd) {
    char head[16] = "";
    CHECK_EQ(recv(fd, head, 12, MSG_WAITALL), 12);
    return client_code(head);
}

static void wait_until_open(echo *e, int64_t n) {
    for (int i = 0; i < 10000 && http_get_stats(e->server).n_open != n; i++)
        usleep(1000);
    CHECK_EQ(http_get_stats(e->server).n_open, n);
}

/* Nobody reads, or somebody reads a little now and then: both end. */
TEST(http_ends_answers_that_nobody_reads) {
    echo e;
    http_settings s = settings(&e);
    s.answer_ms = 400;
    start(&e, &s);
    int fd = open_big(http_port(e.server));
    CHECK_EQ(code_of(fd), 200);
    wait_until_open(&e, 0);
    close(fd);
    stop(&e);
}

TEST(http_bounds_large_answers) {
    echo e;
    http_settings s = settings(&e);
    s.max_held_bytes = 3 * BIG_BYTES; /* of which one address may have half: one answer */
    start(&e, &s);
    int first = open_big(http_port(e.server));
    CHECK_EQ(code_of(first), 200);
    int second = open_big(http_port(e.server));
    CHECK_EQ(code_of(second), 503);
    char *text = client_read(second);
    CHECK_CONTAINS(text, "unread");
    free(text);
    close(second);
    text = client_ask(http_port(e.server), "GET", "/small", "", ""); /* others are served */
    CHECK_EQ(client_code(text), 200);
    free(text);
    close(first);
    wait_until_open(&e, 0);
    second = open_big(http_port(e.server));
    CHECK_EQ(code_of(second), 200);
    close(second);
    stop(&e);
    CHECK_EQ(e.n_refused[503], 1);
}

TEST(http_bounds_large_bodies) {
    static const char ask[] = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n";
    enum { N = 8, SENT = 999999 };
    echo e;
    int fd[N], n_refused = 0;
    char *body = calloc(1, SENT);
    http_settings s = settings(&e);
    s.max_held_bytes = 4 << 20; /* an address: 2 MiB, so two such bodies */
    start(&e, &s);
    for (int i = 0; i < N; i++) {
        fd[i] = client_open(http_port(e.server));
        CHECK(client_send(fd[i], ask, strlen(ask)));
        client_send(fd[i], body, SENT); /* a byte is missing */
    }
    for (int i = 0; i < N; i++) {
        struct pollfd readable = {.fd = fd[i], .events = POLLIN};
        n_refused += poll(&readable, 1, i == N - 1 ? 2000 : 200) == 1;
    }
    CHECK(n_refused >= N - 2);
    char *text = client_ask(http_port(e.server), "POST", "/", "", "small");
    CHECK_EQ(client_code(text), 200);
    free(text);
    for (int i = 0; i < N; i++)
        close(fd[i]);
    wait_until_open(&e, 0);
    text = malloc(SENT + 2);
    memset(text, 'x', SENT + 1);
    text[SENT + 1] = '\0';
    char *answered = client_ask(http_port(e.server), "POST", "/", "", text);
    CHECK_EQ(client_code(answered), 200);
    free(answered);
    free(text);
    free(body);
    stop(&e);
    CHECK(e.n_refused[503] >= N - 2);
}
