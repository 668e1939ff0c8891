/* Ranks that find each other by TCP, and the watch that misses them. */
#include "dist/tcp.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/range.h"
#include "base/thread.h"
#include "dist/net.h"
#include "dist/watch.h"
#include "train_test.h"

enum { MAX_RANKS = 5, LARGE = 1 << 20 };

/* Below the ports that systems give to connections: a test beside this one would get it otherwise,
 * between here and its use. */
static int free_port(void) {
    static unsigned n_asked;
    for (int tries = 0; tries < 1000; tries++) {
        int fd, port, wanted = 12000 + (int)(((unsigned)getpid() * 31 + 7 * n_asked++) % 18000);
        if (net_listen(&fd, "127.0.0.1", wanted, &port) != OK) continue;
        net_close(&fd);
        return port;
    }
    FAIL_TEST("no port from 12000 to 29999 is free");
}

static tcp_start start_of(int rank, int size, int port) {
    return (tcp_start){.rank = rank,
                       .size = size,
                       .local_rank = -1,
                       .local_size = -1,
                       .address = "127.0.0.1",
                       .port = port,
                       .timeout_ms = 20000,
                       .is_patient = true};
}

typedef struct member {
    tcp_start start;
    void (*fn)(transport *t);
    status st; /* of the start */
    char reason[512];
    pthread_t thread;
} member;

static void *member_main(void *arg) {
    member *m = arg;
    transport *t;
    m->st = tcp_create(&t, &m->start);
    snprintf(m->reason, sizeof m->reason, "%s", m->st != OK ? status_reason() : "");
    if (m->st != OK) return NULL;
    CHECK(t->rank == m->start.rank && t->size == m->start.size);
    CHECK(t->local_rank == t->rank && t->local_size == t->size);
    m->fn(t);
    return NULL;
}

static void run_members(member *m, int n) {
    for (int i = n - 1; i >= 0; i--)
        CHECK(pthread_create(&m[i].thread, NULL, member_main, &m[i]) == 0);
    for (int i = 0; i < n; i++)
        pthread_join(m[i].thread, NULL);
}

static uint8_t byte_of(int from, int to, int64_t i) {
    return (uint8_t)(i * 31 + from * 7 + to * 3 + i / 251);
}

/* Bytes from one rank to another: nothing, a little, and more than a socket holds. */
static int64_t bytes_of(int from, int to) {
    return from == to             ? 5
           : (from + to) % 3 == 0 ? 0
           : (from + to) % 3 == 1 ? 17 + from
                                  : LARGE + to;
}

static void exchange(transport *t) {
    const void *from[MAX_RANKS];
    void *to[MAX_RANKS];
    int64_t n_from[MAX_RANKS], n_to[MAX_RANKS];
    for (int round = 0; round < 3; round++) {
        for (int r = 0; r < t->size; r++) {
            uint8_t *out, *in;
            n_from[r] = bytes_of(t->rank, r);
            n_to[r] = bytes_of(r, t->rank);
            CHECK_OK(MEM_NEW(&out, (size_t)n_from[r] + 1));
            CHECK_OK(MEM_NEW(&in, (size_t)n_to[r] + 1));
            for (int64_t i = 0; i < n_from[r]; i++)
                out[i] = byte_of(t->rank, r, i + round);
            from[r] = out;
            to[r] = in;
        }
        exchange_args a = {from, n_from, to, n_to};
        CHECK_OK(t->ops->exchange(t, &a));
        for (int r = 0; r < t->size; r++) {
            const uint8_t *in = to[r];
            for (int64_t i = 0; i < n_to[r]; i++)
                if (in[i] != byte_of(r, t->rank, i + round)) CHECK_EQ(i, -1);
            CHECK_EQ(in[n_to[r]], 0);
            mem_free((void *)from[r]);
            mem_free(to[r]);
        }
        CHECK_OK(t->ops->barrier(t));
    }
    CHECK_OK(t->ops->leave(t, OK));
}

TEST(tcp_exchanges_between_all_pairs) {
    for (int size = 1; size <= MAX_RANKS; size++) {
        member m[MAX_RANKS];
        int port = free_port();
        for (int r = 0; r < size; r++)
            m[r] = (member){.start = start_of(r, size, port), .fn = exchange};
        run_members(m, size);
        for (int r = 0; r < size; r++)
            CHECK_EQ(m[r].st, OK);
    }
}

/* What is not a rank disturbs nothing. */
static void *intrude(void *arg) {
    int fd, port = *(int *)arg;
    char junk[300];
    memset(junk, 'x', sizeof junk);
    CHECK_OK(net_connect(&fd, "127.0.0.1", port, 10000));
    CHECK_OK(net_send(fd, junk, sizeof junk, 1000));
    usleep(100000);
    net_close(&fd);
    return NULL;
}

static void *be_late(void *arg) {
    usleep(300000);
    return member_main(arg);
}

TEST(tcp_ignores_what_is_not_a_rank) {
    int port = free_port();
    pthread_t intruder, late;
    member m[2] = {{.start = start_of(0, 2, port), .fn = exchange},
                   {.start = start_of(1, 2, port), .fn = exchange}};
    CHECK(pthread_create(&m[0].thread, NULL, member_main, &m[0]) == 0);
    CHECK(pthread_create(&intruder, NULL, intrude, &port) == 0);
    CHECK(pthread_create(&late, NULL, be_late, &m[1]) == 0);
    pthread_join(m[0].thread, NULL);
    pthread_join(intruder, NULL);
    pthread_join(late, NULL);
    CHECK(m[0].st == OK && m[1].st == OK);
}

/* Comes when another rank, with another secret, was sent away. */
static void *be_second(void *arg) {
    member *m = arg;
    member stranger = *m;
    transport *t;
    stranger.start.secret = stranger.start.secret[0] == '\0' ? "guess" : "";
    CHECK_FAILS(tcp_create(&t, &stranger.start), ERR_CONFIG,
                "it does not know the HSTU_JOB_SECRET of this rank");
    return member_main(m);
}

TEST(tcp_ranks_prove_that_they_know_the_secret) {
    static const char *const secrets[] = {"", "a long secret of the job"};
    log_set_level(LOG_QUIET);
    for (int i = 0; i < 2; i++) {
        int port = free_port();
        member m[2] = {{.start = start_of(0, 2, port), .fn = exchange},
                       {.start = start_of(1, 2, port), .fn = exchange}};
        m[0].start.secret = m[1].start.secret = secrets[i];
        CHECK(pthread_create(&m[0].thread, NULL, member_main, &m[0]) == 0);
        CHECK(pthread_create(&m[1].thread, NULL, be_second, &m[1]) == 0);
        pthread_join(m[0].thread, NULL);
        pthread_join(m[1].thread, NULL);
        CHECK(m[0].st == OK && m[1].st == OK);
    }
}

/* One who does not know the secret repeats what it saw of another start. */
static void *repeat(void *arg) {
    int fd;
    static unsigned char proof[32];
    char hello[112], challenge[48];
    CHECK_OK(net_connect(&fd, "127.0.0.1", *(int *)arg, 10000));
    memset(hello, 0, sizeof hello);
    memcpy(hello, "HSTP\x02\0\0\0\x01\0\0\0\x02\0\0\0", 16);
    CHECK_OK(net_send(fd, hello, sizeof hello, 10000));
    CHECK_OK(net_receive(fd, challenge, sizeof challenge, 10000));
    CHECK_OK(net_send(fd, proof, sizeof proof, 10000));
    CHECK(net_receive(fd, challenge, 1, 10000) != OK); /* closed without an answer */
    net_close(&fd);
    return NULL;
}

TEST(tcp_ignores_a_wrong_proof) {
    int port = free_port();
    pthread_t intruder, late;
    log_set_level(LOG_QUIET);
    member m[2] = {{.start = start_of(0, 2, port), .fn = exchange},
                   {.start = start_of(1, 2, port), .fn = exchange}};
    CHECK(pthread_create(&m[0].thread, NULL, member_main, &m[0]) == 0);
    CHECK(pthread_create(&intruder, NULL, repeat, &port) == 0);
    pthread_join(intruder, NULL);
    CHECK(pthread_create(&late, NULL, member_main, &m[1]) == 0);
    pthread_join(m[0].thread, NULL);
    pthread_join(late, NULL);
    CHECK(m[0].st == OK && m[1].st == OK);
}

static void never(transport *t) {
    (void)t;
    CHECK_EQ(0, 1);
}

enum { HELLO_BYTES = 112, SILENT = 20 };

/* A hello of another version, and connections that say nothing. */
static void intrude_silently(int port, int fds[SILENT + 1]) {
    char hello[HELLO_BYTES] = "HSTP\x63\0\0\0\x01\0\0\0\x02";
    for (int i = 0; i <= SILENT; i++)
        CHECK_OK(net_connect(&fds[i], "127.0.0.1", port, 10000));
    CHECK_OK(net_send(fds[SILENT], hello, sizeof hello, 1000));
}

TEST(tcp_job_starts_beside_strangers) {
    int port = free_port(), fds[SILENT + 1];
    log_set_level(LOG_QUIET);
    member m[3];
    for (int r = 0; r < 3; r++) {
        m[r] = (member){.start = start_of(r, 3, port), .fn = exchange};
        m[r].start.secret = "correct horse";
    }
    CHECK(pthread_create(&m[0].thread, NULL, member_main, &m[0]) == 0);
    intrude_silently(port, fds);
    uint64_t start = clock_ns();
    for (int r = 1; r < 3; r++)
        CHECK(pthread_create(&m[r].thread, NULL, member_main, &m[r]) == 0);
    for (int r = 0; r < 3; r++)
        pthread_join(m[r].thread, NULL);
    for (int r = 0; r < 3; r++)
        CHECK_EQ(m[r].st, OK);
    CHECK(clock_ns() - start < 5000000000u);
    for (int i = 0; i <= SILENT; i++)
        net_close(&fds[i]);
}

/* A rank of another version that knows the secret, if only the empty one, is told and named.
 * Versions before 4 expect no acknowledgement of their proof. */
static void check_version(char version) {
    int port = free_port(), fd;
    char hello[HELLO_BYTES] = "HSTP\x63\0\0\0\x01\0\0\0\x02", challenge[48], answer[272];
    unsigned char proof[HMAC_BYTES];
    member first = {.start = start_of(0, 2, port), .fn = never};
    CHECK(pthread_create(&first.thread, NULL, member_main, &first) == 0);
    hello[4] = version;
    CHECK_OK(net_connect(&fd, "127.0.0.1", port, 10000));
    CHECK_OK(net_send(fd, hello, sizeof hello, 1000));
    CHECK_OK(net_receive(fd, challenge, sizeof challenge, 1000));
    const hmac_part parts[] = {{"a rank", 6}, {challenge, 16}, {hello, sizeof hello}};
    hmac_sha256("", 0, parts, 3, proof);
    CHECK_OK(net_send(fd, proof, sizeof proof, 1000));
    if (version >= 4) CHECK_OK(net_receive(fd, answer, 1, 1000));
    CHECK_OK(net_receive(fd, answer, sizeof answer, 1000));
    CHECK_CONTAINS(answer + 16, "another version of hstu");
    pthread_join(first.thread, NULL);
    CHECK_EQ(first.st, ERR_CONFIG);
    CHECK_CONTAINS(first.reason, "another version of hstu than rank 0");
    net_close(&fd);
}

TEST(tcp_names_a_rank_of_another_version) {
    check_version(3);
    check_version(99);
}

/* The first warning. */
typedef struct heard {
    atomic_int has_one;
    char line[256];
} heard;

static void hear_warning(void *ctx, log_level level, const char *line) {
    heard *h = ctx;
    if (level != LOG_WARN || atomic_load(&h->has_one)) return;
    snprintf(h->line, sizeof h->line, "%s", line);
    atomic_store(&h->has_one, 1);
}

/* A rank that is lost while rank 0 waits for others is named at once, and may come again. */
TEST(tcp_rank_may_report_again) {
    int port = free_port(), fd;
    heard h = {0};
    member m[3];
    handshake_hello lost = {.rank = 1, .size = 3, .kind = HANDSHAKE_REPORT, .host = "there"};
    for (int r = 0; r < 3; r++)
        m[r] = (member){.start = start_of(r, 3, port), .fn = exchange};
    log_set_sink(hear_warning, &h);
    CHECK(pthread_create(&m[0].thread, NULL, member_main, &m[0]) == 0);
    CHECK_OK(handshake_enter(&fd, "127.0.0.1", port, "", &lost, 10000));
    net_close(&fd);
    for (int i = 0; i < 100 && !atomic_load(&h.has_one); i++)
        usleep(10000);
    CHECK(atomic_load(&h.has_one));
    CHECK_CONTAINS(h.line, "rank 1 on there was lost");
    for (int r = 1; r < 3; r++)
        CHECK(pthread_create(&m[r].thread, NULL, member_main, &m[r]) == 0);
    for (int r = 0; r < 3; r++) {
        pthread_join(m[r].thread, NULL);
        CHECK_EQ(m[r].st, OK);
    }
    log_set_sink(NULL, NULL);
}

TEST(tcp_listens_at_the_address_of_rank_0_only) {
    int port = free_port(), fd;
    member m[2] = {{.start = start_of(0, 2, port), .fn = exchange},
                   {.start = start_of(1, 2, port), .fn = exchange}};
    CHECK(pthread_create(&m[0].thread, NULL, member_main, &m[0]) == 0);
    CHECK_OK(net_connect(&fd, "127.0.0.1", port, 10000));
    net_close(&fd);
    CHECK_FAILS(net_connect(&fd, "127.0.0.2", port, 100), ERR_IO, "127.0.0.2");
    CHECK(pthread_create(&m[1].thread, NULL, member_main, &m[1]) == 0);
    for (int r = 0; r < 2; r++)
        pthread_join(m[r].thread, NULL);
    CHECK(m[0].st == OK && m[1].st == OK);
}

TEST(tcp_refuses_ranks_that_do_not_fit) {
    int port = free_port();
    member m[3] = {{.start = start_of(0, 2, port), .fn = never},
                   {.start = start_of(1, 3, port), .fn = never}};
    run_members(m, 2);
    for (int r = 0; r < 2; r++) {
        CHECK_EQ(m[r].st, ERR_CONFIG);
        CHECK_CONTAINS(m[r].reason, "has WORLD_SIZE 3, rank 0 has 2");
    }
    port = free_port();
    m[0] = (member){.start = start_of(0, 3, port), .fn = never};
    m[1] = m[2] = (member){.start = start_of(1, 3, port), .fn = never};
    run_members(m, 3);
    CHECK_EQ(m[0].st, ERR_CONFIG);
    CHECK_CONTAINS(m[0].reason, "RANK 1 is used twice");
    CHECK(m[1].st != OK && m[2].st != OK);
    transport *t;
    tcp_start wrong = start_of(2, 2, port);
    CHECK_FAILS(tcp_create(&t, &wrong), ERR_USAGE, "RANK 2 of WORLD_SIZE 2");
}

/* What a rank 0 that knows the secret, but is not hstu, answers a rank of three. */
typedef struct first_rank {
    struct {
        char magic[4], unused[4];
        uint64_t job;
        char text[256];
        struct {
            char host[WATCH_HOST_BYTES], address[NET_ADDRESS_BYTES];
            int32_t port;
        } peer[3];
    } says;
    size_t n; /* bytes of it that are sent */
    int listener;
    void (*then)(int port); /* calls the rank where it listens, before rank 2 does; or NULL */
} first_rank;

enum { ANSWER_BYTES = 272, ALL_BYTES = ANSWER_BYTES + 3 * 132, JOB = 77 };

static void *answer_a_rank(void *arg) {
    const first_rank *f = arg;
    handshake *at;
    handshake_guest g;
    CHECK_OK(handshake_create(&at, f->listener, ""));
    CHECK_OK(handshake_next(at, 10000, &g));
    CHECK(g.fd >= 0 && g.hello.kind == HANDSHAKE_REPORT);
    CHECK_OK(net_send(g.fd, &f->says, f->n, 1000));
    int port = g.hello.port, fd = g.fd, peer;
    if (f->then != NULL) {
        f->then(port);
        handshake_hello h = {.rank = 2, .kind = HANDSHAKE_PEER, .job = JOB};
        CHECK_OK(handshake_enter(&peer, "127.0.0.1", port, "", &h, 5000));
        CHECK_OK(handshake_next(at, 10000, &g));
        CHECK(g.fd >= 0 && g.hello.kind == HANDSHAKE_WATCH && g.hello.job == JOB);
        net_close(&g.fd);
        net_close(&peer);
    }
    net_close(&fd);
    handshake_destroy(at);
    return NULL;
}

static status join_first(first_rank *f, int rank, int timeout_ms) {
    transport *t;
    pthread_t thread;
    int port;
    CHECK_OK(net_listen(&f->listener, "127.0.0.1", 0, &port));
    CHECK(pthread_create(&thread, NULL, answer_a_rank, f) == 0);
    tcp_start s = start_of(rank, 3, port);
    s.timeout_ms = timeout_ms;
    status st = tcp_create(&t, &s);
    pthread_join(thread, NULL);
    net_close(&f->listener);
    return st;
}

/* No text is longer than its place, whatever rank 0 sends. */
TEST(tcp_does_not_trust_the_first_rank) {
    first_rank f = {.says = {.magic = "HTTP"}, .n = ANSWER_BYTES};
    char x[256] = "rank 1 on ";
    CHECK_FAILS(join_first(&f, 2, 5000), ERR_IO, "is not hstu");
    memcpy(f.says.magic, "HSTP", 4);
    f.n = ANSWER_BYTES - 1;
    CHECK_FAILS(join_first(&f, 2, 5000), ERR_IO, "rank 0 at 127.0.0.1");
    f.n = ALL_BYTES - 1;
    CHECK_FAILS(join_first(&f, 2, 5000), ERR_IO, "has gone");
    f.n = ALL_BYTES;
    memset(&f.says.peer[1], 'x', sizeof f.says.peer[1]);
    memset(x + 10, 'x', WATCH_HOST_BYTES - 1);
    CHECK_FAILS(join_first(&f, 2, 300), ERR_IO, strcat(x, ": "));
    memset(f.says.text, 'x', sizeof f.says.text);
    memset(x, 'x', sizeof x - 1);
    CHECK_EQ(join_first(&f, 2, 5000), ERR_CONFIG);
    CHECK_STR(status_reason(), x);
}

/* Each one comes in, as it knows the secret, and is sent away; the right one is not. */
static void send_wrong_peers(int port) {
    static const handshake_hello wrong[] = {{.rank = 2, .kind = HANDSHAKE_REPORT, .job = JOB},
                                            {.rank = 2, .kind = HANDSHAKE_PEER, .job = JOB + 1},
                                            {.rank = 1, .kind = HANDSHAKE_PEER, .job = JOB},
                                            {.rank = 3, .kind = HANDSHAKE_PEER, .job = JOB},
                                            {.rank = -1, .kind = HANDSHAKE_PEER, .job = JOB}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        handshake_hello h = wrong[i];
        int fd;
        char byte;
        CHECK_OK(handshake_enter(&fd, "127.0.0.1", port, "", &h, 5000));
        CHECK_FAILS(net_receive(fd, &byte, 1, 5000), ERR_IO, "has gone");
        net_close(&fd);
    }
}

TEST(tcp_rank_takes_no_wrong_peer) {
    first_rank f = {.says = {.magic = "HSTP", .job = JOB}, .n = ALL_BYTES};
    f.then = send_wrong_peers;
    memcpy(f.says.peer[0].host, "there", 6);
    CHECK_FAILS(join_first(&f, 1, 5000), ERR_IO, "rank 0 on there");
}

static void *be_first(void *arg) {
    member *m = arg;
    transport *t;
    CHECK_OK(tcp_create(&t, &m->start));
    CHECK_OK(t->ops->leave(t, OK));
    return NULL;
}

/* Rank 0 tells all ranks where each one listens; one without an address is on rank 0's machine. */
TEST(tcp_first_rank_tells_who_is_where) {
    int port = free_port(), fd[3];
    first_rank f[3];
    member first = {.start = start_of(0, 3, port)};
    CHECK(pthread_create(&first.thread, NULL, be_first, &first) == 0);
    for (int r = 1; r < 3; r++) {
        handshake_hello h = {.rank = r, .size = 3, .port = 1000 + r};
        memset(h.host, 'a' + r, sizeof h.host); /* without an end */
        CHECK_OK(handshake_enter(&fd[r], "127.0.0.1", port, "", &h, 5000));
    }
    for (int r = 1; r < 3; r++) {
        CHECK_OK(net_receive(fd[r], &f[r].says, ALL_BYTES, 5000));
        CHECK(memcmp(f[r].says.magic, "HSTP", 4) == 0 && f[r].says.text[0] == '\0');
        CHECK(f[r].says.job == f[1].says.job && f[r].says.peer[0].port == port);
        for (int q = 1; q < 3; q++) {
            CHECK_EQ(f[r].says.peer[q].port, 1000 + q);
            CHECK_EQ(f[r].says.peer[q].address[0], '\0');
            CHECK(f[r].says.peer[q].host[62] == 'a' + q && f[r].says.peer[q].host[63] == '\0');
        }
    }
    for (int r = 1; r < 3; r++) {
        handshake_hello h = {.rank = r, .size = 3, .kind = HANDSHAKE_WATCH, .job = f[1].says.job};
        net_close(&fd[r]);
        CHECK_OK(handshake_enter(&fd[r], "127.0.0.1", port, "", &h, 5000));
    }
    pthread_join(first.thread, NULL);
    for (int r = 1; r < 3; r++)
        net_close(&fd[r]);
}

/* A hello that rank 0 cannot use: one of an earlier start is ignored, a wrong number ends the job.
 */
TEST(tcp_first_rank_takes_no_wrong_rank) {
    static const struct {
        handshake_hello hello;
        const char *why; /* NULL: ignored */
    } cases[] = {
        {{.rank = 1, .size = 2, .kind = HANDSHAKE_PEER, .host = "there"}, NULL},
        {{.rank = 1, .size = 2, .kind = HANDSHAKE_WATCH, .host = "there"}, NULL},
        {{.rank = 0, .size = 2, .host = "there"}, "on there has RANK 0; there are 2 ranks"},
        {{.rank = 2, .size = 2, .host = "there"}, "on there has RANK 2; there are 2 ranks"},
        {{.rank = -1, .size = 2, .host = "there"}, "on there has RANK -1; there are 2 ranks"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int port = free_port(), fd;
        char byte;
        handshake_hello h = cases[i].hello;
        member m[2] = {{.start = start_of(0, 2, port), .fn = exchange},
                       {.start = start_of(1, 2, port), .fn = exchange}};
        CHECK(pthread_create(&m[0].thread, NULL, member_main, &m[0]) == 0);
        CHECK_OK(handshake_enter(&fd, "127.0.0.1", port, "", &h, 5000));
        if (cases[i].why == NULL) {
            CHECK_FAILS(net_receive(fd, &byte, 1, 5000), ERR_IO, "has gone");
            member_main(&m[1]);
            CHECK_EQ(m[1].st, OK);
        }
        pthread_join(m[0].thread, NULL);
        CHECK_EQ(m[0].st, cases[i].why == NULL ? OK : ERR_CONFIG);
        CHECK_CONTAINS(m[0].reason, cases[i].why == NULL ? "" : cases[i].why);
        net_close(&fd);
    }
}

TEST(tcp_names_ranks_that_do_not_come) {
    transport *t;
    int port = free_port();
    tcp_start first = start_of(0, 3, port), second = start_of(1, 3, port);
    first.timeout_ms = second.timeout_ms = 300;
    CHECK_FAILS(tcp_create(&t, &first), ERR_IO, "did not report to port");
    CHECK_CONTAINS(status_reason(), ": 1 2");
    CHECK_FAILS(tcp_create(&t, &second), ERR_IO, "MASTER_ADDR");
}

/* Rank 1 is a process; what the test does to it. */
static pid_t start_victim(int port, int silence_ms, void (*fn)(transport *t), bool is_patient) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    transport *t;
    tcp_start s = start_of(1, 2, port);
    s.silence_ms = silence_ms;
    s.is_patient = is_patient;
    if (tcp_create(&t, &s) == OK) fn(t);
    _exit(0);
}

static void wait_at_barrier(transport *t) {
    t->ops->note_step(t, 41);
    (void)t->ops->barrier(t);
    sleep(60);
}

static void check_loss(int signal, const char *want) {
    transport *t;
    int port = free_port();
    pid_t victim = start_victim(port, 1500, wait_at_barrier, true);
    tcp_start s = start_of(0, 2, port);
    s.silence_ms = 1500;
    CHECK_OK(tcp_create(&t, &s));
    CHECK_OK(t->ops->barrier(t));
    usleep(1200000); /* a heartbeat tells the step */
    kill(victim, signal);
    uint64_t start = clock_ns();
    CHECK_FAILS(t->ops->barrier(t), ERR_IO, want);
    CHECK_CONTAINS(status_reason(), "was lost at step 41");
    CHECK(clock_ns() - start < 10000000000u);
    CHECK_FAILS(t->ops->barrier(t), ERR_IO, want);
    CHECK_FAILS(t->ops->leave(t, ERR_IO), ERR_IO, want);
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
}

TEST(tcp_misses_a_killed_rank) {
    check_loss(SIGKILL, "its connection was closed");
}

TEST(tcp_misses_a_stopped_rank) {
    check_loss(SIGSTOP, "it does not answer");
}

static void wait_for_a_gpu(transport *t) {
    (void)t->ops->barrier(t);
    (void)waits_begin(WAIT_GPU);
    sleep(60);
}

/* Both ranks run and answer, and wait for each other. */
TEST(tcp_ends_a_job_that_only_waits) {
    transport *t;
    int port = free_port(), how;
    setenv("HSTU_STALL_SECONDS", "1", 1);
    pid_t victim = start_victim(port, 5000, wait_for_a_gpu, false);
    tcp_start s = start_of(0, 2, port);
    s.silence_ms = 5000;
    CHECK_OK(tcp_create(&t, &s));
    unsetenv("HSTU_STALL_SECONDS");
    CHECK_OK(t->ops->barrier(t));
    CHECK_FAILS(t->ops->barrier(t), ERR_IO, "no rank made progress for 1 s, before its first step");
    CHECK_CONTAINS(status_reason(), "rank 0 on ");
    CHECK_CONTAINS(status_reason(), " waits for other ranks, rank 1 on ");
    CHECK_CONTAINS(status_reason(), " waits for the GPU");
    CHECK_FAILS(t->ops->leave(t, ERR_IO), ERR_IO, "no rank made progress");
    CHECK_EQ(waitpid(victim, &how, 0), victim);
    CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL); /* by its own thread */
}

static void fail_by_itself(transport *t) {
    (void)t->ops->barrier(t);
    (void)t->ops->leave(t, fail(ERR_IO, "no space left"));
}

/* It says itself why; the others end and are silent. */
TEST(tcp_ends_with_a_rank_that_fails) {
    transport *t;
    int port = free_port();
    pid_t victim = start_victim(port, 5000, fail_by_itself, true);
    tcp_start s = start_of(0, 2, port);
    CHECK_OK(tcp_create(&t, &s));
    status st = t->ops->barrier(t); /* the other may have left before all of it has come */
    if (st == OK) st = t->ops->barrier(t);
    CHECK_EQ(st, ERR_IO);
    usleep(200000);
    CHECK_EQ(t->ops->leave(t, ERR_IO), ERR_IO);
    CHECK_STR(status_reason(), "");
    waitpid(victim, NULL, 0);
}

static void expect_too_much(transport *t) {
    int64_t word = 0, all[2], n[2] = {8, 8}, n_to[2] = {8, 8};
    const void *from[2] = {&word, &word};
    void *to[2] = {&all[0], &all[1]};
    n_to[1 - t->rank] = t->rank == 0 ? 4 : 8;
    exchange_args a = {from, n, to, n_to};
    status st = t->ops->exchange(t, &a);
    if (t->rank == 0) CHECK_FAILS(st, ERR_USAGE, "the ranks do not make the same calls");
    transport_destroy(t);
}

TEST(tcp_compares_the_sizes_of_both_sides) {
    int port = free_port();
    member m[2] = {{.start = start_of(0, 2, port), .fn = expect_too_much},
                   {.start = start_of(1, 2, port), .fn = expect_too_much}};
    run_members(m, 2);
}

/* The program, started as torchrun does, has the bits of one process. */
TEST(tcp_same_bits_as_one_process) {
    char *text, gin[512];
    snprintf(gin, sizeof gin, "%s/c.gin", test_folder());
    FILE *f = fopen(gin, "w");
    CHECK(f != NULL && fputs(ranking_gin, f) >= 0 && fclose(f) == 0);
    const char *what = "HSTU_THREADS=1 '%s' train --gin-config-file '%s' --data '%s' --max-iters 5 "
                       "--device cpu --batch-per step --out '%s/%s'";
    char one[4096], two[4096];
    snprintf(one, sizeof one, what, test_program(), gin, synth_folder(), test_folder(), "one");
    snprintf(two, sizeof two, what, test_program(), gin, synth_folder(), test_folder(), "two");
    int code = test_command(&text, "%s", one);
    CHECK_EQ(code, 0);
    free(text);
    code = test_command(&text,
                        "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d; (RANK=1 %s) & "
                        "RANK=0 %s && wait $!",
                        free_port(), two, two);
    if (code != 0) fprintf(stderr, "%s\n", text);
    CHECK_EQ(code, 0);
    free(text);
    char a[600], b[600];
    snprintf(a, sizeof a, "%s", run_path("one"));
    snprintf(b, sizeof b, "%s", run_path("two"));
    CHECK(same_file(a, b, "model.safetensors") && same_file(a, b, "optimizer.safetensors"));
}

TEST(tcp_variables_that_make_no_sense) {
    static const char *const wrong[][2] = {
        {"RANK=2 WORLD_SIZE=2 MASTER_ADDR=localhost", "RANK is '2'"},
        {"RANK=x WORLD_SIZE=2 MASTER_ADDR=localhost", "RANK is 'x'"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=99999", "MASTER_PORT is '99999'"},
        {"RANK=0 WORLD_SIZE=0 MASTER_ADDR=localhost", "WORLD_SIZE is '0'"},
        {"RANK=0 WORLD_SIZE=2", "MASTER_ADDR is not set"}, /* not alone, beside the others */
        {"RANK= WORLD_SIZE=2 MASTER_ADDR=localhost", "RANK is not set"},
        {"WORLD_SIZE=2 MASTER_ADDR=localhost", "RANK is not set"},
        {"RANK=0 MASTER_ADDR=localhost", "WORLD_SIZE is not set"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *text;
        int code = test_command(&text,
                                "%s '%s' train --gin-config-file configs/demo.gin "
                                "--data x --out x --device cpu",
                                wrong[i][0], test_program());
        CHECK_EQ(code, 2);
        CHECK_CONTAINS(text, wrong[i][1]);
        free(text);
    }
}
