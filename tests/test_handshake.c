/* Strangers at the door of a job: none of them ends or delays it. */
#include "dist/handshake.h"

#include <pthread.h>

#include "base/hmac.h"
#include "base/log.h"
#include "test.h"

enum { CROWD = 300 }; /* more than may wait at a time */

static const char secret[] = "correct horse";

typedef struct entrant {
    int port, fd;
    const char *secret;
    handshake_hello hello;
    status st;
} entrant;

static void *enter(void *arg) {
    entrant *e = arg;
    e->st = handshake_enter(&e->fd, "127.0.0.1", e->port, e->secret, &e->hello, 10000);
    return NULL;
}

static int open_door(handshake **out, int *port) {
    int listener;
    log_set_level(LOG_QUIET);
    CHECK_OK(net_listen(&listener, "127.0.0.1", 0, port));
    CHECK_OK(handshake_create(out, listener, secret));
    return listener;
}

/* The entrant comes in, whoever else waits. */
static void check_enters(handshake *at, int port) {
    entrant e = {.port = port, .secret = secret, .hello = {.rank = 7, .host = "here"}};
    pthread_t thread;
    handshake_guest g;
    int64_t start = net_now_ms();
    CHECK(pthread_create(&thread, NULL, enter, &e) == 0);
    CHECK_OK(handshake_next(at, 10000, &g));
    CHECK(net_now_ms() - start < 1800); /* sooner than silent ones are sent away without need */
    CHECK(g.fd >= 0 && g.hello.rank == 7 && g.hello.protocol == HANDSHAKE_PROTOCOL);
    CHECK_STR(g.hello.host, "here");
    CHECK_STR(g.address, "127.0.0.1");
    pthread_join(thread, NULL);
    CHECK_OK(e.st);
    /* What follows belongs to the guest. */
    char word[4];
    CHECK_OK(net_send(e.fd, "word", 4, 1000));
    CHECK_OK(net_receive(g.fd, word, 4, 1000));
    net_close(&e.fd);
    net_close(&g.fd);
}

TEST(handshake_lets_a_rank_in_beside_a_silent_crowd) {
    handshake *at;
    int port, listener = open_door(&at, &port), crowd[CROWD];
    for (int i = 0; i < CROWD; i++)
        CHECK_OK(net_connect(&crowd[i], "127.0.0.1", port, 1000));
    check_enters(at, port);
    check_enters(at, port);
    for (int i = 0; i < CROWD; i++)
        net_close(&crowd[i]);
    handshake_destroy(at);
    net_close(&listener);
}

/* Whether the other side has closed the connection. */
static bool is_closed(int fd) {
    char byte;
    return net_receive(fd, &byte, 1, 0) != OK &&
           strstr(status_reason(), "no answer in time") == NULL;
}

/* Every way to come without the secret: nobody enters, and the connection is closed. */
TEST(handshake_sends_strangers_away) {
    handshake *at;
    handshake_guest g;
    int fd, slow, port, listener = open_door(&at, &port);
    handshake_hello h = {.magic = 0x50545348, .rank = 7};
    CHECK_OK(net_connect(&slow, "127.0.0.1", port, 1000));
    CHECK_OK(net_send(slow, &h, sizeof h / 2, 1000));
    for (int way = 0; way < 4; way++) {
        char answer[48], proof[HMAC_BYTES] = {0};
        CHECK_OK(net_connect(&fd, "127.0.0.1", port, 1000));
        h.protocol = way == 1 ? 99 : HANDSHAKE_PROTOCOL;
        if (way == 0) CHECK_OK(net_send(fd, "GET / HTTP/1.1\r\n\r\n", 18, 1000));
        if (way > 0) CHECK_OK(net_send(fd, &h, sizeof h, 1000));
        CHECK_OK(handshake_next(at, 50, &g));
        CHECK_EQ(g.fd, -1);
        if (way > 0) { /* of another version too: a challenge, which it gives back in way 2 */
            CHECK_OK(net_receive(fd, answer, sizeof answer, 1000));
            CHECK_OK(net_send(fd, way == 2 ? answer + 16 : proof, sizeof proof, 1000));
            CHECK_OK(handshake_next(at, 50, &g));
            CHECK_EQ(g.fd, -1);
        }
        CHECK(is_closed(fd) && !is_closed(slow));
        net_close(&fd);
    }
    check_enters(at, port);
    CHECK_OK(handshake_next(at, 2000, &g));
    CHECK(g.fd == -1 && is_closed(slow));
    net_close(&slow);
    handshake_destroy(at);
    net_close(&listener);
}

TEST(handshake_must_know_the_secret_too) {
    handshake *at;
    handshake_guest g;
    int port, listener = open_door(&at, &port);
    entrant e = {.port = port, .secret = "another", .hello = {.rank = 1}};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, enter, &e) == 0);
    CHECK_OK(handshake_next(at, 300, &g));
    CHECK_EQ(g.fd, -1);
    pthread_join(thread, NULL);
    CHECK_EQ(e.st, ERR_CONFIG);
    handshake_destroy(at);
    net_close(&listener);
}

/* Each address of 127.0.0.0/8 is one of this machine. */
TEST(net_listens_at_one_address) {
    int listener, fd, port;
    CHECK_OK(net_listen(&listener, "127.0.0.1", 0, &port));
    CHECK_OK(net_connect(&fd, "127.0.0.1", port, 1000));
    net_close(&fd);
    CHECK_FAILS(net_connect(&fd, "127.0.0.2", port, 100), ERR_IO, "127.0.0.2");
    int second, other;
    CHECK_FAILS(net_listen(&second, "127.0.0.1", port, &other), ERR_IO, "127.0.0.1");
    net_close(&listener);
    /* A host that is not this machine, such as the address of a service. */
    log_set_level(LOG_QUIET);
    static const char *const elsewhere[] = {"192.0.2.1", "no-such-host.invalid"};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(net_listen(&listener, elsewhere[i], 0, &port));
        CHECK_OK(net_connect(&fd, "127.0.0.2", port, 1000));
        net_close(&fd);
        net_close(&listener);
    }
}
