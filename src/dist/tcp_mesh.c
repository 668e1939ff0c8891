/* How the ranks of tcp.h find each other: all report to rank 0, which tells everyone where the
 * others listen; then every rank connects to those before it. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/mem.h"
#include "dist/tcp_int.h"

enum {
    MAGIC = 0x50545348,
    PROTOCOL = 2,
    HELLO_MS = 5000,
    QUIET_MS = 3000,
    TEXT_BYTES = 256,
    NONCE = 16
};

typedef struct tcp_hello {
    uint32_t magic, protocol;
    int32_t rank, size, port, unused;
    uint64_t job; /* 0: to be told */
    char host[WATCH_HOST_BYTES];
    unsigned char nonce[NONCE]; /* drawn for this connection */
} tcp_hello;

/* Rank 0 shows that it knows the secret, by a number that it cannot have seen before. */
typedef struct tcp_challenge {
    unsigned char nonce[NONCE], proof[HMAC_BYTES];
} tcp_challenge;

/* Rank 0's answer: why the rank may not join, or "", and then the table of peers. */
typedef struct tcp_answer {
    uint32_t magic, unused;
    uint64_t job;
    char text[TEXT_BYTES];
} tcp_answer;

static int timeout_of(const tcp_start *o) {
    return o->timeout_ms > 0 ? o->timeout_ms : TCP_START_MS;
}

/* What is left of the time to start, at least 1. */
static int left_of(const tcp_start *o, uint64_t start) {
    int64_t left = timeout_of(o) - (int64_t)((clock_ns() - start) / 1000000);
    return left > 0 ? (int)left : 1;
}

static bool is_over(const tcp_start *o, uint64_t start) {
    return (int64_t)((clock_ns() - start) / 1000000) >= timeout_of(o);
}

static status draw(void *bytes, size_t n) {
    if (getrandom(bytes, n, 0) == (ssize_t)n) return OK;
    return fail_errno("random numbers of the system");
}

/* What rank 0 (is_first) or the rank that said hello proves itself with. */
static void prove(const tcp_start *o, bool is_first, const tcp_hello *h,
                  const unsigned char nonce[NONCE], unsigned char proof[HMAC_BYTES]) {
    const char *secret = o->secret != NULL ? o->secret : "";
    const hmac_part parts[] = {{is_first ? "rank 0" : "a rank", 6}, {nonce, NONCE}, {h, sizeof *h}};
    hmac_sha256(secret, strlen(secret), parts, 3, proof);
}

/* On rank 0: whether the rank that said hello knows the secret. */
static bool is_known(const tcp_start *o, int fd, const tcp_hello *h) {
    tcp_challenge c;
    unsigned char want[HMAC_BYTES], got[HMAC_BYTES];
    if (draw(c.nonce, sizeof c.nonce) != OK) return false;
    prove(o, true, h, c.nonce, c.proof);
    prove(o, false, h, c.nonce, want);
    return net_send(fd, &c, sizeof c, HELLO_MS) == OK &&
           net_receive(fd, got, sizeof got, HELLO_MS) == OK && hmac_equal(got, want);
}

/* On the rank that said hello: both sides prove themselves, rank 0 first. */
static status meet_first(const tcp_start *o, int fd, const tcp_hello *h, int timeout_ms) {
    tcp_challenge c;
    unsigned char proof[HMAC_BYTES];
    TRY(net_receive(fd, &c, sizeof c, timeout_ms));
    prove(o, true, h, c.nonce, proof);
    if (!hmac_equal(proof, c.proof))
        return fail(ERR_CONFIG, "it does not know the HSTU_JOB_SECRET of this rank: set the same "
                                "one for all ranks, or none");
    prove(o, false, h, c.nonce, proof);
    return net_send(fd, proof, sizeof proof, timeout_ms);
}

static tcp_hello hello_of(const tcp_mesh *m, const tcp_start *o) {
    tcp_hello h = {.magic = MAGIC,
                   .protocol = PROTOCOL,
                   .rank = o->rank,
                   .size = o->size,
                   .port = m->peer[o->rank].port,
                   .job = m->job};
    memcpy(h.host, m->peer[o->rank].host, sizeof h.host);
    return h;
}

/* A hello of something that speaks our language; others are not worth a word. */
static bool read_hello(int fd, tcp_hello *h) {
    if (net_receive(fd, h, sizeof *h, HELLO_MS) != OK || h->magic != MAGIC) return false;
    h->host[sizeof h->host - 1] = '\0';
    return true;
}

static const char *why_not(const tcp_mesh *m, const tcp_start *o, const tcp_hello *h,
                           char text[TEXT_BYTES]) {
    text[0] = '\0';
    if (h->protocol != PROTOCOL)
        snprintf(text, TEXT_BYTES, "a process on %s has another version of hstu than rank 0",
                 h->host);
    else if (h->size != o->size)
        snprintf(text, TEXT_BYTES, "rank %d on %s has WORLD_SIZE %d, rank 0 has %d", h->rank,
                 h->host, h->size, o->size);
    else if (h->rank <= 0 || h->rank >= o->size)
        snprintf(text, TEXT_BYTES, "a process on %s has RANK %d; there are %d ranks", h->host,
                 h->rank, o->size);
    else if (m->fd[h->rank] >= 0)
        snprintf(text, TEXT_BYTES, "RANK %d is used twice, on %s and on %s", h->rank,
                 m->peer[h->rank].host, h->host);
    return text[0] != '\0' ? text : NULL;
}

static bool is_loopback(const char *address) {
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strncmp(address, "::ffff:127.", 11) == 0;
}

/* A rank has reported: it is noted, or sent away, which ends the job. */
static status note_rank(tcp_mesh *m, const tcp_start *o, int fd, const char *address) {
    tcp_hello h;
    tcp_answer answer = {.magic = MAGIC};
    if (!read_hello(fd, &h)) {
        net_close(&fd);
        return OK;
    }
    if (h.protocol == PROTOCOL && !is_known(o, fd, &h)) {
        log_warn(
            "a process at %s that says to be rank %d does not know the HSTU_JOB_SECRET; it was "
            "sent away",
            address, h.rank);
        net_close(&fd);
        return OK;
    }
    if (why_not(m, o, &h, answer.text) != NULL) {
        (void)net_send(fd, &answer, sizeof answer, HELLO_MS);
        net_close(&fd);
        return fail(ERR_CONFIG, "%s", answer.text);
    }
    tcp_peer *p = &m->peer[h.rank];
    m->fd[h.rank] = fd;
    memcpy(p->host, h.host, sizeof p->host);
    p->port = h.port;
    if (!is_loopback(address)) snprintf(p->address, sizeof p->address, "%s", address);
    return OK;
}

/* " 1, 3": the ranks that are not there. */
static void list_missing(const tcp_mesh *m, char text[TEXT_BYTES]) {
    size_t n = 0;
    text[0] = '\0';
    for (int r = 1; r < m->size && n + 16 < TEXT_BYTES; r++)
        if (m->fd[r] < 0) n += (size_t)snprintf(text + n, TEXT_BYTES - n, " %d", r);
}

static status gather_ranks(tcp_mesh *m, const tcp_start *o, uint64_t start) {
    bool is_said = false;
    for (int n = 0; n < m->size - 1;) {
        char address[NET_ADDRESS_BYTES], missing[TEXT_BYTES];
        int fd;
        list_missing(m, missing);
        if (is_over(o, start))
            return fail(ERR_IO, "of %d ranks these did not report to port %d within %d s:%s",
                        m->size, o->port, timeout_of(o) / 1000, missing);
        int left = left_of(o, start);
        if (net_accept(&fd, m->listener, is_said || left < QUIET_MS ? left : QUIET_MS, address) ==
            OK) {
            TRY(note_rank(m, o, fd, address));
        } else if (!is_said) {
            log_info("rank 0 waits at port %d for%s of %d ranks, %d s more at most", o->port,
                     missing, m->size, left_of(o, start) / 1000);
            is_said = true;
        }
        n = 0;
        for (int r = 1; r < m->size; r++)
            n += m->fd[r] >= 0;
    }
    tcp_answer answer = {.magic = MAGIC, .job = m->job};
    for (int r = 1; r < m->size; r++) {
        TRY(net_send(m->fd[r], &answer, sizeof answer, left_of(o, start)));
        TRY(net_send(m->fd[r], m->peer, (size_t)m->size * sizeof *m->peer, left_of(o, start)));
    }
    return OK;
}

static status report(tcp_mesh *m, const tcp_start *o, uint64_t start) {
    tcp_hello h = hello_of(m, o);
    tcp_answer answer;
    TRY(draw(h.nonce, sizeof h.nonce));
    status st = net_connect(&m->fd[0], o->address, o->port, left_of(o, start));
    if (st != OK) return fail_prefix(st, "rank 0 (MASTER_ADDR, MASTER_PORT)");
    TRY(net_send(m->fd[0], &h, sizeof h, left_of(o, start)));
    st = meet_first(o, m->fd[0], &h, left_of(o, start));
    if (st == OK) st = net_receive(m->fd[0], &answer, sizeof answer, left_of(o, start));
    if (st != OK)
        return fail_prefix(st, "rank 0 at %s, port %d (MASTER_ADDR, MASTER_PORT)", o->address,
                           o->port);
    answer.text[TEXT_BYTES - 1] = '\0';
    if (answer.magic != MAGIC)
        return fail(ERR_IO, "what listens at %s, port %d is not hstu", o->address, o->port);
    if (answer.text[0] != '\0') return fail(ERR_CONFIG, "%s", answer.text);
    m->job = answer.job;
    TRY(net_receive(m->fd[0], m->peer, (size_t)m->size * sizeof *m->peer, left_of(o, start)));
    for (int r = 0; r < m->size; r++) {
        m->peer[r].host[WATCH_HOST_BYTES - 1] = '\0';
        m->peer[r].address[NET_ADDRESS_BYTES - 1] = '\0';
    }
    return OK;
}

/* Ranks between 0 and this one are called, those after it call. */
static status call_others(tcp_mesh *m, const tcp_start *o, uint64_t start) {
    tcp_hello h = hello_of(m, o);
    for (int r = 1; r < o->rank; r++) {
        const tcp_peer *p = &m->peer[r];
        const char *address = p->address[0] != '\0' ? p->address : o->address;
        status st = net_connect(&m->fd[r], address, p->port, left_of(o, start));
        if (st == OK) st = net_send(m->fd[r], &h, sizeof h, left_of(o, start));
        if (st != OK) return fail_prefix(st, "rank %d on %s", r, p->host);
    }
    return OK;
}

static status wait_for_others(tcp_mesh *m, const tcp_start *o, uint64_t start) {
    for (int n = o->rank + 1; n < m->size;) {
        char address[NET_ADDRESS_BYTES];
        tcp_hello h;
        int fd;
        if (is_over(o, start))
            return fail(ERR_IO, "%d ranks did not connect to rank %d on %s within %d s",
                        m->size - n, o->rank, m->peer[o->rank].host, timeout_of(o) / 1000);
        if (net_accept(&fd, m->listener, left_of(o, start), address) != OK) continue;
        if (!read_hello(fd, &h) || h.job != m->job || h.rank <= o->rank || h.rank >= m->size ||
            m->fd[h.rank] >= 0) {
            net_close(&fd);
            continue;
        }
        m->fd[h.rank] = fd;
        n++;
    }
    return OK;
}

status tcp_mesh_open(tcp_mesh *m, const tcp_start *o) {
    uint64_t start = clock_ns();
    int port;
    *m = (tcp_mesh){.size = o->size, .listener = -1};
    TRY(MEM_NEW(&m->fd, (size_t)m->size));
    for (int r = 0; r < m->size; r++)
        m->fd[r] = -1;
    TRY(MEM_NEW(&m->peer, (size_t)m->size));
    status st = net_listen(&m->listener, o->rank == 0 ? o->port : 0, &port);
    if (st != OK && o->rank == 0)
        return fail_prefix(st, "MASTER_PORT (another job may use it: take another port)");
    TRY(st);
    m->peer[o->rank].port = port;
    gethostname(m->peer[o->rank].host, WATCH_HOST_BYTES - 1);
    if (o->rank == 0) {
        if (getrandom(&m->job, sizeof m->job, 0) != sizeof m->job) m->job = clock_ns();
        return gather_ranks(m, o, start);
    }
    TRY(report(m, o, start));
    TRY(call_others(m, o, start));
    return wait_for_others(m, o, start);
}

void tcp_mesh_close(tcp_mesh *m) {
    for (int r = 0; r < m->size && m->fd != NULL; r++)
        net_close(&m->fd[r]);
    net_close(&m->listener);
    mem_free(m->fd);
    mem_free(m->peer);
    *m = (tcp_mesh){.listener = -1};
}
