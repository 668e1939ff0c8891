/* Who says what when ranks are lost, leave, or only wait.  Ranks are threads. */
#include "dist/watch.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/range.h"
#include "dist/net.h"
#include "dist/tcp.h"
#include "test.h"

enum { RANKS = 5, JOB = 77, BEAT_BYTES = 32 };

/* Two ranks beside rank 0, two on another machine. */
static const char hosts[RANKS][WATCH_HOST_BYTES] = {"a", "a", "a", "b", "b"};

typedef struct watcher {
    watch_options o;
    watch *w;
    status st;
    char reason[256];
    pthread_t thread;
} watcher;

static watch_options options_of(int rank, int size, int listener, int port) {
    return (watch_options){.rank = rank,
                           .size = size,
                           .listener = listener,
                           .address = "127.0.0.1",
                           .port = port,
                           .job = JOB,
                           .secret = "s",
                           .hosts = hosts[0],
                           .host_stride = sizeof hosts[0],
                           .timeout_ms = 10000,
                           .silence_ms = 400,
                           .is_patient = true};
}

static void start(watcher *w, void *(*fn)(void *), watch_options o) {
    *w = (watcher){.o = o};
    CHECK(pthread_create(&w->thread, NULL, fn, w) == 0);
}

static void *watch_until_the_end(void *arg) {
    watcher *w = arg;
    CHECK_OK(watch_create(&w->w, &w->o));
    for (int i = 0; i < 1000 && w->st == OK; i++) {
        w->st = watch_check(w->w);
        usleep(5000);
    }
    snprintf(w->reason, sizeof w->reason, "%s", w->st != OK ? status_reason() : "");
    watch_destroy(w->w, false);
    return NULL;
}

/* Where rank 0 itself is lost, one rank of each machine says so, also of its own machine. */
TEST(watch_one_rank_of_a_machine_speaks) {
    static const bool speaks[RANKS] = {false, true, false, true, false};
    int listener, port, fds[RANKS];
    handshake *at;
    watcher w[RANKS];
    CHECK_OK(net_listen(&listener, "127.0.0.1", 0, &port));
    CHECK_OK(handshake_create(&at, listener, "s"));
    for (int r = 1; r < RANKS; r++)
        start(&w[r], watch_until_the_end, options_of(r, RANKS, -1, port));
    for (int r = 1; r < RANKS; r++) {
        handshake_guest g;
        CHECK_OK(handshake_next(at, 10000, &g));
        CHECK(g.fd >= 0 && g.hello.kind == HANDSHAKE_WATCH && g.hello.job == JOB);
        fds[r] = g.fd;
    }
    static const char go[BEAT_BYTES];
    for (int r = 1; r < RANKS; r++)
        CHECK_OK(net_send(fds[r], go, sizeof go, 1000));
    for (int r = 1; r < RANKS; r++)
        net_close(&fds[r]); /* without a farewell */
    for (int r = 1; r < RANKS; r++) {
        pthread_join(w[r].thread, NULL);
        CHECK_EQ(w[r].st, ERR_IO);
        CHECK_EQ(strstr(w[r].reason, "rank 0 on a was lost before its first step") != NULL,
                 speaks[r]);
        CHECK_EQ(w[r].reason[0] == '\0', !speaks[r]);
    }
    handshake_destroy(at);
    net_close(&listener);
}

static void *watch_and_leave(void *arg) {
    watcher *w = arg;
    CHECK_OK(watch_create(&w->w, &w->o));
    usleep(100000);
    watch_destroy(w->w, false);
    return NULL;
}

/* Neither its closed connection nor its silence is a loss. */
TEST(watch_lets_a_rank_leave_that_has_finished) {
    int listener, port;
    watch *first;
    watcher other;
    CHECK_OK(net_listen(&listener, "127.0.0.1", 0, &port));
    start(&other, watch_and_leave, options_of(1, 2, -1, port));
    watch_options o = options_of(0, 2, listener, port);
    CHECK_OK(watch_create(&first, &o));
    pthread_join(other.thread, NULL);
    for (int i = 0; i < 12; i++) {
        CHECK_OK(watch_check(first));
        usleep(50000);
    }
    watch_destroy(first, false);
    net_close(&listener);
}

static void *watch_and_wait(void *arg) {
    watcher *w = arg;
    CHECK_OK(watch_create(&w->w, &w->o));
    wait_kind before = waits_begin(WAIT_RANKS);
    for (int i = 0; i < 16 && w->st == OK; i++) {
        usleep(50000);
        w->st = watch_check(w->w);
    }
    waits_end(before);
    watch_destroy(w->w, false);
    return NULL;
}

static void *join_and_go(void *arg) {
    const watcher *w = arg;
    const struct linger reset = {.l_onoff = 1};
    for (int r = 1; r < 3; r++) {
        handshake_hello h = {.rank = r, .size = 3, .kind = HANDSHAKE_WATCH, .job = JOB};
        int fd;
        CHECK_OK(handshake_enter(&fd, "127.0.0.1", w->o.port, "s", &h, 10000));
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        net_close(&fd);
    }
    return NULL;
}

/* A rank that goes before all have joined is named. */
TEST(watch_names_a_rank_that_goes_before_the_start) {
    int listener, port;
    watch *first;
    watcher others;
    CHECK_OK(net_listen(&listener, "127.0.0.1", 0, &port));
    watch_options o = options_of(0, 3, listener, port);
    start(&others, join_and_go, o);
    CHECK_FAILS(watch_create(&first, &o), ERR_IO, "rank 1 on a");
    pthread_join(others.thread, NULL);
    net_close(&listener);
}

/* A rank joins once, with its own number and job; who comes otherwise is sent away. */
static void *join_rightly_and_wrongly(void *arg) {
    static const struct {
        handshake_hello hello;
        bool is_right;
    } cases[] = {{{.rank = 1, .kind = HANDSHAKE_PEER, .job = JOB}, false},
                 {{.rank = 1, .kind = HANDSHAKE_WATCH, .job = JOB + 1}, false},
                 {{.rank = 0, .kind = HANDSHAKE_WATCH, .job = JOB}, false},
                 {{.rank = 3, .kind = HANDSHAKE_WATCH, .job = JOB}, false},
                 {{.rank = 1, .kind = HANDSHAKE_WATCH, .job = JOB}, true},
                 {{.rank = 1, .kind = HANDSHAKE_WATCH, .job = JOB}, false},
                 {{.rank = 2, .kind = HANDSHAKE_WATCH, .job = JOB}, true}};
    const watcher *w = arg;
    int fds[7];
    char go[BEAT_BYTES];
    for (int i = 0; i < 7; i++) {
        handshake_hello h = cases[i].hello;
        CHECK_OK(handshake_enter(&fds[i], "127.0.0.1", w->o.port, "s", &h, 10000));
        if (!cases[i].is_right) CHECK_FAILS(net_receive(fds[i], go, 1, 10000), ERR_IO, "has gone");
    }
    for (int i = 0; i < 7; i++)
        if (cases[i].is_right) CHECK_OK(net_receive(fds[i], go, sizeof go, 10000));
    for (int i = 0; i < 7; i++)
        net_close(&fds[i]);
    return NULL;
}

TEST(watch_takes_each_rank_once) {
    int listener, port;
    watch *first;
    watcher others;
    CHECK_OK(net_listen(&listener, "127.0.0.1", 0, &port));
    watch_options o = options_of(0, 3, listener, port);
    start(&others, join_rightly_and_wrongly, o);
    CHECK_OK(watch_create(&first, &o));
    pthread_join(others.thread, NULL);
    watch_destroy(first, false);
    net_close(&listener);
}

/* HSTU_STALL_SECONDS=0: ranks may wait for each other for ever. */
TEST(watch_of_ranks_that_wait_can_be_turned_off) {
    int listener, port;
    watcher w[2];
    CHECK_OK(net_listen(&listener, "127.0.0.1", 0, &port));
    setenv("HSTU_STALL_SECONDS", "0", 1);
    for (int r = 0; r < 2; r++)
        start(&w[r], watch_and_wait, options_of(r, 2, r == 0 ? listener : -1, port));
    for (int r = 0; r < 2; r++) {
        pthread_join(w[r].thread, NULL);
        CHECK_EQ(w[r].st, OK);
    }
    unsetenv("HSTU_STALL_SECONDS");
    net_close(&listener);
}

/* The start under mpirun, on another transport: MPI tells all ranks where rank 0 listens. */
static void *watch_as_mpi(void *arg) {
    watcher *w = arg;
    transport *t;
    tcp_start s = {.rank = w->o.rank,
                   .size = w->o.size,
                   .local_rank = -1,
                   .local_size = -1,
                   .address = "127.0.0.1",
                   .port = w->o.port,
                   .is_patient = true};
    CHECK_OK(tcp_create(&t, &s));
    CHECK_OK(watch_create_over(&w->w, t));
    CHECK(w->w != NULL);
    CHECK_OK(watch_check(w->w));
    CHECK_OK(t->ops->barrier(t));
    watch_destroy(w->w, false);
    CHECK_OK(t->ops->leave(t, OK));
    return NULL;
}

TEST(watch_of_mpi_ranks_starts) {
    int listener, port;
    watcher w[3];
    CHECK_OK(net_listen(&listener, "127.0.0.1", 0, &port));
    net_close(&listener);
    for (int r = 0; r < 3; r++)
        start(&w[r], watch_as_mpi, options_of(r, 3, -1, port));
    for (int r = 0; r < 3; r++)
        pthread_join(w[r].thread, NULL);
}
