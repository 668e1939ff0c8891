/* Strangers at the door of a job: none of them ends or delays it. */
#include "dist/net.h"

#include <fcntl.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "test.h"

enum { MOST = 256, CROWD = 300 }; /* that may wait at a time, and more */

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

/* Connections that say nothing, but the first ones, which say hello. */
static void gather_crowd(int crowd[CROWD], int port, int n_hello) {
    const handshake_hello h = {.magic = 0x50545348, .rank = 7};
    for (int i = 0; i < CROWD; i++) {
        CHECK_OK(net_connect(&crowd[i], "127.0.0.1", port, 1000));
        if (i < n_hello) CHECK_OK(net_send(crowd[i], &h, sizeof h, 1000));
    }
}

static void close_crowd(int crowd[CROWD]) {
    for (int i = 0; i < CROWD; i++)
        net_close(&crowd[i]);
}

TEST(handshake_lets_a_rank_in_beside_a_crowd) {
    for (int says_hello = 0; says_hello < 2; says_hello++) {
        handshake *at;
        int port, listener = open_door(&at, &port), crowd[CROWD];
        gather_crowd(crowd, port, says_hello ? CROWD : 0);
        check_enters(at, port);
        check_enters(at, port);
        close_crowd(crowd);
        handshake_destroy(at);
        net_close(&listener);
    }
}

/* What one side of the handshake proves itself with. */
static void prove_as(const char *who, const void *nonce, const handshake_hello *h,
                     unsigned char proof[HMAC_BYTES]) {
    const hmac_part parts[] = {{who, 6}, {nonce, HANDSHAKE_NONCE_BYTES}, {h, sizeof *h}};
    hmac_sha256(secret, strlen(secret), parts, 3, proof);
}

/* A proof takes a while through a slow network; strangers come after the rank, of which n_hello say
 * hello. */
static void check_slow_rank(int n_hello) {
    handshake *at;
    handshake_guest g;
    int fd, port, listener = open_door(&at, &port), crowd[CROWD];
    handshake_hello h = {.magic = 0x50545348, .protocol = HANDSHAKE_PROTOCOL, .rank = 7};
    unsigned char challenge[HANDSHAKE_NONCE_BYTES + HMAC_BYTES], proof[HMAC_BYTES], admitted;
    CHECK_OK(net_connect(&fd, "127.0.0.1", port, 1000));
    CHECK_OK(net_send(fd, &h, sizeof h, 1000));
    gather_crowd(crowd, port, n_hello);
    CHECK_OK(handshake_next(at, 250, &g));
    CHECK_EQ(g.fd, -1);
    CHECK_OK(net_receive(fd, challenge, sizeof challenge, 1000));
    prove_as("a rank", challenge, &h, proof);
    CHECK_OK(net_send(fd, proof, sizeof proof, 1000));
    CHECK_OK(handshake_next(at, 1000, &g));
    CHECK(g.fd >= 0 && g.hello.rank == 7);
    CHECK_OK(net_receive(fd, &admitted, 1, 1000));
    close_crowd(crowd);
    net_close(&fd);
    net_close(&g.fd);
    handshake_destroy(at);
    net_close(&listener);
}

TEST(handshake_waits_for_the_proof_of_a_slow_rank) {
    check_slow_rank(0);
    check_slow_rank(MOST / 2 - 1); /* with the rank, half of those that may wait */
}

/* Answers a hello as the real side does, but sends the caller away when its proof comes. */
static void send_away_late(int listener) {
    struct {
        unsigned char nonce[HANDSHAKE_NONCE_BYTES], proof[HMAC_BYTES];
    } challenge = {.nonce = {1}};
    char address[NET_ADDRESS_BYTES];
    unsigned char proof[HMAC_BYTES];
    handshake_hello h;
    int fd;
    CHECK_OK(net_accept(&fd, listener, 5000, address));
    CHECK_OK(net_receive(fd, &h, sizeof h, 1000));
    prove_as("rank 0", challenge.nonce, &h, challenge.proof);
    CHECK_OK(net_send(fd, &challenge, sizeof challenge, 1000));
    CHECK_OK(net_receive(fd, proof, sizeof proof, 1000));
    net_close(&fd);
}

TEST(handshake_enters_again_when_its_proof_came_too_late) {
    handshake *at;
    handshake_guest g;
    int port, listener = open_door(&at, &port);
    entrant e = {.port = port, .secret = secret, .hello = {.rank = 7}};
    pthread_t thread;
    char word[4];
    CHECK(pthread_create(&thread, NULL, enter, &e) == 0);
    send_away_late(listener);
    CHECK_OK(handshake_next(at, 2000, &g));
    pthread_join(thread, NULL);
    CHECK_OK(e.st);
    CHECK(g.fd >= 0 && g.hello.rank == 7);
    CHECK_OK(net_send(g.fd, "word", 4, 1000));
    CHECK_OK(net_receive(e.fd, word, 4, 1000));
    net_close(&e.fd);
    net_close(&g.fd);
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
    while (pthread_tryjoin_np(thread, NULL) != 0) {
        CHECK_OK(handshake_next(at, 20, &g));
        CHECK_EQ(g.fd, -1);
    }
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

/* A network of this process alone, in which 40000 is the only port that connections get. */
static bool has_one_port(void) {
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    bool is_up = ioctl(fd, SIOCSIFFLAGS, &lo) == 0;
    close(fd);
    fd = open("/proc/sys/net/ipv4/ip_local_port_range", O_WRONLY);
    is_up = is_up && write(fd, "40000 40000", 11) == 11;
    close(fd);
    return is_up;
}

/* A rank that waits for rank 0 must neither reach itself nor take its port. */
TEST(net_does_not_connect_to_itself) {
    int fd, port;
    if (!has_one_port()) SKIP_TEST("no network namespaces here");
    CHECK_FAILS(net_connect(&fd, "127.0.0.1", 40000, 100), ERR_IO, "port 40000");
    CHECK_OK(net_listen(&fd, "127.0.0.1", 40000, &port));
    net_close(&fd);
}
