/* Deadlines and bounds of connections. */
#include "base/thread.h"
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
    CHECK_CONTAINS(text, "the request took too long to arrive");
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

static int ask_big(int fd) {
    static const char ask[] = "GET /big HTTP/1.1\r\nHost: t\r\n\r\n";
    CHECK(client_send(fd, ask, strlen(ask)));
    return fd;
}

static int open_big(int port) {
    return ask_big(client_open(port));
}

/* From another address of this machine: 127.0.0.`last`. */
static int open_big_from(int port, uint32_t last) {
    struct sockaddr_in own = {.sin_family = AF_INET}, to = own;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    own.sin_addr.s_addr = htonl(0x7f000000 + last);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)port);
    CHECK(bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return ask_big(fd);
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

/* A stream has no end that a deadline could be for: the kernel ends it when its reader takes
 * nothing for that long. */
TEST(http_ends_streams_that_nobody_reads) {
    static const char ask[] = "GET /stream HTTP/1.1\r\nHost: t\r\n\r\n";
    static char text[200 << 10];
    echo e;
    int small = 4096, fd = socket(AF_INET, SOCK_STREAM, 0);
    http_settings s = settings(&e);
    s.answer_ms = 400;
    start(&e, &s);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)http_port(e.server))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0 && client_send(fd, ask, strlen(ask)));
    pthread_mutex_lock(&e.lock);
    while (e.stream == NULL)
        pthread_cond_wait(&e.wake, &e.lock);
    pthread_mutex_unlock(&e.lock);
    CHECK(http_stream_write(e.stream, text, sizeof text));
    bool is_open = true;
    for (int i = 0; i < 200 && is_open; i++) { /* as a server goes on writing to it */
        usleep(50000);
        is_open = http_stream_write(e.stream, text, 1);
    }
    CHECK(!is_open);
    http_stream_close(e.stream);
    close(fd);
    stop(&e);
}

/* Reading a little now and then keeps neither connection nor memory. */
TEST(http_ends_answers_that_are_read_slowly) {
    echo e;
    static char some[16 << 10];
    http_settings s = settings(&e);
    s.answer_ms = 250; /* so that 16 MiB have 2.25 s, at 8 MB a second */
    start(&e, &s);
    int fd = open_big(http_port(e.server));
    CHECK_EQ(code_of(fd), 200);
    for (int i = 0; i < 500 && http_get_stats(e.server).n_open > 0; i++) {
        recv(fd, some, sizeof some, MSG_DONTWAIT);
        usleep(20000);
    }
    CHECK_EQ(http_get_stats(e.server).n_open, 0);
    close(fd);
    stop(&e);
}

/* Room comes back when an answer is read, also where its connection stays. */
TEST(http_frees_room_with_the_answer) {
    echo e;
    static char some[1 << 20];
    http_settings s = settings(&e);
    s.max_held_bytes = 3 * BIG_BYTES;
    start(&e, &s);
    int first = open_big(http_port(e.server));
    for (size_t n = 0; n < BIG_BYTES;) {
        ssize_t got = recv(first, some, sizeof some, 0);
        CHECK(got > 0);
        n += (size_t)got;
    }
    int second = open_big(http_port(e.server));
    CHECK_EQ(code_of(second), 200);
    close(first);
    close(second);
    stop(&e);
}

/* All addresses together have a bound as well. */
TEST(http_bounds_large_answers_of_all) {
    echo e;
    int fd[3];
    http_settings s = settings(&e);
    s.max_held_bytes = 5 * BIG_BYTES / 2;
    start(&e, &s);
    for (uint32_t i = 0; i < 3; i++) {
        fd[i] = open_big_from(http_port(e.server), 2 + i);
        CHECK_EQ(code_of(fd[i]), i < 2 ? 200 : 503);
    }
    for (int i = 0; i < 3; i++)
        close(fd[i]);
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
    int fd[N];
    char *body = calloc(1, SENT);
    http_settings s = settings(&e);
    s.max_held_bytes = 4 << 20; /* an address: 2 MiB, so two such bodies */
    start(&e, &s);
    for (int i = 0; i < N; i++) {
        fd[i] = client_open(http_port(e.server));
        CHECK(client_send(fd[i], ask, strlen(ask)));
        client_send(fd[i], body, SENT); /* a byte is missing */
    }
    wait_refused(&e, 503, N - 2);
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
