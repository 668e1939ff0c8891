/* How the ranks of tcp.h find each other: all report to rank 0, which tells everyone where the
 * others listen; then every rank connects to those before it. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "dist/handshake.h"
#include "dist/tcp_int.h"

enum { MAGIC = 0x50545348, SEND_MS = 1000, QUIET_MS = 3000, TURN_MS = 100, TEXT_BYTES = 256 };

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

static const char *secret_of(const tcp_start *o) {
    return o->secret != NULL ? o->secret : "";
}

static handshake_hello hello_of(const tcp_mesh *m, const tcp_start *o, handshake_kind kind) {
    handshake_hello h = {.rank = o->rank,
                         .size = o->size,
                         .port = m->peer[o->rank].port,
                         .kind = kind,
                         .job = m->job};
    memcpy(h.host, m->peer[o->rank].host, sizeof h.host);
    return h;
}

static const char *why_not(const tcp_mesh *m, const tcp_start *o, const handshake_hello *h,
                           char text[TEXT_BYTES]) {
    text[0] = '\0';
    if (h->protocol != HANDSHAKE_PROTOCOL)
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

/* A rank has reported: it is noted, or sent away, which ends the job: it knows the secret. */
static status note_rank(tcp_mesh *m, const tcp_start *o, handshake_guest *g) {
    const handshake_hello *h = &g->hello;
    tcp_answer answer = {.magic = MAGIC};
    if (why_not(m, o, h, answer.text) != NULL) {
        (void)net_send(g->fd, &answer, sizeof answer, SEND_MS);
        net_close(&g->fd);
        return fail(ERR_CONFIG, "%s", answer.text);
    }
    tcp_peer *p = &m->peer[h->rank];
    m->fd[h->rank] = g->fd;
    *p = (tcp_peer){.port = h->port};
    memcpy(p->host, h->host, sizeof p->host);
    if (!net_is_loopback(g->address)) snprintf(p->address, sizeof p->address, "%s", g->address);
    return OK;
}

/* " 1, 3": the ranks that are not there. */
static void list_missing(const tcp_mesh *m, char text[TEXT_BYTES]) {
    size_t n = 0;
    text[0] = '\0';
    for (int r = 1; r < m->size && n + 16 < TEXT_BYTES; r++)
        if (m->fd[r] < 0) n += (size_t)snprintf(text + n, TEXT_BYTES - n, " %d", r);
}

/* Ranks that have gone since they reported may come again; how many. */
static int drop_lost(tcp_mesh *m) {
    int n = 0;
    for (int r = 1; r < m->size; r++) {
        if (m->fd[r] < 0 || !net_is_gone(m->fd[r])) continue;
        log_warn("rank %d on %s was lost while rank 0 waited for others; it may report again", r,
                 m->peer[r].host);
        net_close(&m->fd[r]);
        n++;
    }
    return n;
}

static status gather_ranks(tcp_mesh *m, const tcp_start *o, handshake *at, uint64_t start) {
    bool is_said = false;
    for (int n = 0; n < m->size - 1;) {
        char missing[TEXT_BYTES];
        handshake_guest g;
        list_missing(m, missing);
        if (is_over(o, start))
            return fail(ERR_IO, "of %d ranks these did not report to port %d within %d s:%s",
                        m->size, o->port, timeout_of(o) / 1000, missing);
        int left = left_of(o, start);
        if (!is_said && timeout_of(o) - left >= QUIET_MS) {
            log_info("rank 0 waits at %s, port %d for%s of %d ranks, %d s more at most", o->address,
                     o->port, missing, m->size, left / 1000);
            is_said = true;
        }
        TRY(handshake_next(at, left < TURN_MS ? left : TURN_MS, &g));
        n -= drop_lost(m);
        if (g.fd >= 0 && g.hello.kind != HANDSHAKE_REPORT) { /* of an earlier start */
            net_close(&g.fd);
        } else if (g.fd >= 0) {
            TRY(note_rank(m, o, &g));
            n++;
        }
    }
    return OK;
}

static status answer_ranks(const tcp_mesh *m, const tcp_start *o, uint64_t start) {
    tcp_answer answer = {.magic = MAGIC, .job = m->job};
    size_t n = (size_t)m->size * sizeof *m->peer;
    for (int r = 1; r < m->size; r++) {
        status st = net_send(m->fd[r], &answer, sizeof answer, left_of(o, start));
        if (st == OK) st = net_send(m->fd[r], m->peer, n, left_of(o, start));
        if (st != OK) return fail_prefix(st, "rank %d on %s", r, m->peer[r].host);
    }
    return OK;
}

static status report(tcp_mesh *m, const tcp_start *o, uint64_t start) {
    handshake_hello h = hello_of(m, o, HANDSHAKE_REPORT);
    tcp_answer answer;
    status st =
        handshake_enter(&m->fd[0], o->address, o->port, secret_of(o), &h, left_of(o, start));
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
    handshake_hello h = hello_of(m, o, HANDSHAKE_PEER);
    for (int r = 1; r < o->rank; r++) {
        const tcp_peer *p = &m->peer[r];
        const char *address = p->address[0] != '\0' ? p->address : o->address;
        status st =
            handshake_enter(&m->fd[r], address, p->port, secret_of(o), &h, left_of(o, start));
        if (st != OK) return fail_prefix(st, "rank %d on %s", r, p->host);
    }
    return OK;
}

static status wait_for_others(tcp_mesh *m, const tcp_start *o, handshake *at, uint64_t start) {
    for (int n = o->rank + 1; n < m->size;) {
        handshake_guest g;
        const handshake_hello *h = &g.hello;
        if (is_over(o, start))
            return fail(ERR_IO, "%d ranks did not connect to rank %d on %s within %d s",
                        m->size - n, o->rank, m->peer[o->rank].host, timeout_of(o) / 1000);
        TRY(handshake_next(at, left_of(o, start), &g));
        if (g.fd < 0) continue;
        if (h->kind != HANDSHAKE_PEER || h->job != m->job || h->rank <= o->rank ||
            h->rank >= m->size || m->fd[h->rank] >= 0) {
            net_close(&g.fd);
            continue;
        }
        m->fd[h->rank] = g.fd;
        n++;
    }
    return OK;
}

static status connect_ranks(tcp_mesh *m, const tcp_start *o, handshake *at, uint64_t start) {
    if (o->rank == 0) {
        if (getrandom(&m->job, sizeof m->job, 0) != sizeof m->job) m->job = clock_ns();
        TRY(gather_ranks(m, o, at, start));
        return answer_ranks(m, o, start);
    }
    TRY(report(m, o, start));
    TRY(call_others(m, o, start));
    return wait_for_others(m, o, at, start);
}

status tcp_mesh_open(tcp_mesh *m, const tcp_start *o) {
    uint64_t start = clock_ns();
    int port;
    *m = (tcp_mesh){.size = o->size, .listener = -1};
    TRY(MEM_NEW(&m->fd, (size_t)m->size));
    for (int r = 0; r < m->size; r++)
        m->fd[r] = -1;
    TRY(MEM_NEW(&m->peer, (size_t)m->size));
    status st = net_listen(&m->listener, o->address, o->rank == 0 ? o->port : 0, &port);
    if (st != OK && o->rank == 0)
        return fail_prefix(st, "MASTER_PORT (another job may use it: take another port)");
    TRY(st);
    m->peer[o->rank].port = port;
    gethostname(m->peer[o->rank].host, WATCH_HOST_BYTES - 1);
    handshake *at;
    TRY(handshake_create(&at, m->listener, secret_of(o)));
    st = connect_ranks(m, o, at, start);
    handshake_destroy(at);
    return st;
}

void tcp_mesh_close(tcp_mesh *m) {
    for (int r = 0; r < m->size && m->fd != NULL; r++)
        net_close(&m->fd[r]);
    net_close(&m->listener);
    mem_free(m->fd);
    mem_free(m->peer);
    *m = (tcp_mesh){.listener = -1};
}
