#include "dist/tcp.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "dist/net.h"
#include "dist/watch.h"

enum { MAGIC = 0x50545348, SEND_MS = 1000, QUIET_MS = 3000, TURN_MS = 100, TEXT_BYTES = 256 };
enum { GONE_TURNS = 200, HEADER_BYTES = 8, MOST_BYTES = 1 << 30 };

/* What all know of a rank. */
typedef struct tcp_peer {
    char host[WATCH_HOST_BYTES];
    char address[NET_ADDRESS_BYTES]; /* "": that of rank 0, whose machine it is on */
    int32_t port;
} tcp_peer;

/* The connections of a rank to all others.  All ranks report to rank 0, which tells everyone where
 * the others listen; then every rank connects to those before it. */
typedef struct tcp_mesh {
    int size;
    int *fd;        /* (size); -1: itself */
    tcp_peer *peer; /* (size) */
    int listener;
    uint64_t job; /* drawn by rank 0 */
} tcp_mesh;

/* Rank 0's answer: why the rank may not join, or "", and then the table of peers. */
typedef struct tcp_answer {
    uint32_t magic, unused;
    uint64_t job;
    char text[TEXT_BYTES];
} tcp_answer;

static int timeout_of(const tcp_start *o) {
    return o->timeout_ms > 0 ? o->timeout_ms : TCP_START_MS;
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

static status gather_ranks(tcp_mesh *m, const tcp_start *o, handshake *at, int64_t end) {
    bool is_said = false;
    for (int n = 0; n < m->size - 1;) {
        char missing[TEXT_BYTES];
        handshake_guest g;
        list_missing(m, missing);
        if (net_now_ms() >= end)
            return fail(ERR_IO,
                        "%d ranks are expected; these did not report to port %d within %d s:%s",
                        m->size, o->port, timeout_of(o) / 1000, missing);
        int left = net_left_ms(end);
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

static status answer_ranks(const tcp_mesh *m, int64_t end) {
    tcp_answer answer = {.magic = MAGIC, .job = m->job};
    size_t n = (size_t)m->size * sizeof *m->peer;
    for (int r = 1; r < m->size; r++) {
        status st = net_send(m->fd[r], &answer, sizeof answer, net_left_ms(end));
        if (st == OK) st = net_send(m->fd[r], m->peer, n, net_left_ms(end));
        if (st != OK) return fail_prefix(st, "rank %d on %s", r, m->peer[r].host);
    }
    return OK;
}

static status report(tcp_mesh *m, const tcp_start *o, int64_t end) {
    handshake_hello h = hello_of(m, o, HANDSHAKE_REPORT);
    tcp_answer answer;
    status st = handshake_enter(&m->fd[0], o->address, o->port, secret_of(o), &h, net_left_ms(end));
    if (st == OK) st = net_receive(m->fd[0], &answer, sizeof answer, net_left_ms(end));
    if (st != OK)
        return fail_prefix(st, "rank 0 at %s, port %d (MASTER_ADDR, MASTER_PORT)", o->address,
                           o->port);
    answer.text[TEXT_BYTES - 1] = '\0';
    if (answer.magic != MAGIC)
        return fail(ERR_IO, "what listens at %s, port %d is not hstu", o->address, o->port);
    if (answer.text[0] != '\0') return fail(ERR_CONFIG, "%s", answer.text);
    m->job = answer.job;
    TRY(net_receive(m->fd[0], m->peer, (size_t)m->size * sizeof *m->peer, net_left_ms(end)));
    for (int r = 0; r < m->size; r++) {
        m->peer[r].host[WATCH_HOST_BYTES - 1] = '\0';
        m->peer[r].address[NET_ADDRESS_BYTES - 1] = '\0';
    }
    return OK;
}

/* Ranks between 0 and this one are called, those after it call. */
static status call_others(tcp_mesh *m, const tcp_start *o, int64_t end) {
    handshake_hello h = hello_of(m, o, HANDSHAKE_PEER);
    for (int r = 1; r < o->rank; r++) {
        const tcp_peer *p = &m->peer[r];
        const char *address = p->address[0] != '\0' ? p->address : o->address;
        status st =
            handshake_enter(&m->fd[r], address, p->port, secret_of(o), &h, net_left_ms(end));
        if (st != OK) return fail_prefix(st, "rank %d on %s", r, p->host);
    }
    return OK;
}

static status wait_for_others(tcp_mesh *m, const tcp_start *o, handshake *at, int64_t end) {
    for (int n = o->rank + 1; n < m->size;) {
        handshake_guest g;
        const handshake_hello *h = &g.hello;
        if (net_now_ms() >= end)
            return fail(ERR_IO, "%d ranks did not connect to rank %d on %s within %d s",
                        m->size - n, o->rank, m->peer[o->rank].host, timeout_of(o) / 1000);
        TRY(handshake_next(at, net_left_ms(end), &g));
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

static status connect_ranks(tcp_mesh *m, const tcp_start *o, handshake *at, int64_t end) {
    if (o->rank == 0) {
        if (getrandom(&m->job, sizeof m->job, 0) != sizeof m->job) m->job = clock_ns();
        TRY(gather_ranks(m, o, at, end));
        return answer_ranks(m, end);
    }
    TRY(report(m, o, end));
    TRY(call_others(m, o, end));
    return wait_for_others(m, o, at, end);
}

static status mesh_open(tcp_mesh *m, const tcp_start *o) {
    int64_t end = net_now_ms() + timeout_of(o);
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
    st = connect_ranks(m, o, at, end);
    handshake_destroy(at);
    return st;
}

/* A failed open too. */
static void mesh_close(tcp_mesh *m) {
    for (int r = 0; r < m->size && m->fd != NULL; r++)
        net_close(&m->fd[r]);
    net_close(&m->listener);
    MEM_FREE(m->fd, m->peer);
    *m = (tcp_mesh){.listener = -1};
}

/* How far the messages to and from a rank are, headers included. */
typedef struct tcp_flow {
    int64_t header_out, header_in;
    int64_t n_out, n_in; /* bytes done */
} tcp_flow;

typedef struct tcp_state {
    tcp_mesh mesh;
    watch *w;
    tcp_flow *flow; /* (size) */
    struct pollfd *polls;
} tcp_state;

/* The watch's connection to the rank ends, too, and the watch knows its step: it gets a second to
 * notice. */
static status gone(tcp_state *s, int rank) {
    for (int i = 0; i < GONE_TURNS; i++) {
        TRY(watch_check(s->w));
        usleep(1000000 / GONE_TURNS);
    }
    return fail(ERR_IO, "rank %d on %.63s closed its connection", rank, s->mesh.peer[rank].host);
}

static bool is_done(const tcp_state *s, const exchange_args *a, int r) {
    const tcp_flow *f = &s->flow[r];
    if (a->n_from[r] == NO_MESSAGE) return true;
    return f->n_out == HEADER_BYTES + a->n_from[r] && f->n_in == HEADER_BYTES + a->n_to[r];
}

/* Sends what the connection takes. */
static status push(tcp_state *s, const exchange_args *a, int r) {
    tcp_flow *f = &s->flow[r];
    while (f->n_out < HEADER_BYTES + a->n_from[r]) {
        int64_t head = f->n_out < HEADER_BYTES ? HEADER_BYTES - f->n_out : 0;
        int64_t done = f->n_out - HEADER_BYTES + head, left = a->n_from[r] - done;
        struct iovec parts[2] = {{(char *)&f->header_out + HEADER_BYTES - head, (size_t)head},
                                 {a->n_from[r] > 0 ? (char *)a->from[r] + done : NULL,
                                  (size_t)(left < MOST_BYTES ? left : MOST_BYTES)}};
        struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t n = sendmsg(s->mesh.fd[r], &m, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return OK;
        if (n < 0) return gone(s, r);
        f->n_out += n;
    }
    return OK;
}

/* Takes what has come, never bytes of the next message. */
static status pull(const transport *t, const exchange_args *a, int r) {
    tcp_state *s = t->state;
    tcp_flow *f = &s->flow[r];
    while (f->n_in < HEADER_BYTES + a->n_to[r]) {
        bool is_head = f->n_in < HEADER_BYTES;
        int64_t left = is_head ? HEADER_BYTES - f->n_in : HEADER_BYTES + a->n_to[r] - f->n_in;
        char *to =
            is_head ? (char *)&f->header_in + f->n_in : (char *)a->to[r] + (f->n_in - HEADER_BYTES);
        ssize_t n = recv(s->mesh.fd[r], to, (size_t)(left < MOST_BYTES ? left : MOST_BYTES), 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return OK;
        if (n <= 0) return gone(s, r);
        f->n_in += n;
        if (is_head && f->n_in == HEADER_BYTES) TRY(transport_check_size(t, a, r, f->header_in));
    }
    return OK;
}

static status run_round(const transport *t, const exchange_args *a, int *n_left) {
    tcp_state *s = t->state;
    *n_left = 0;
    for (int r = 0; r < t->size; r++) {
        if (r == t->rank || is_done(s, a, r)) continue;
        TRY(push(s, a, r));
        TRY(pull(t, a, r));
        if (is_done(s, a, r)) continue;
        const tcp_flow *f = &s->flow[r];
        short events = f->n_in < HEADER_BYTES + a->n_to[r] ? POLLIN : 0;
        if (f->n_out < HEADER_BYTES + a->n_from[r]) events |= POLLOUT;
        s->polls[(*n_left)++] = (struct pollfd){.fd = s->mesh.fd[r], .events = events};
    }
    return OK;
}

static status tcp_exchange(transport *t, const exchange_args *a) {
    tcp_state *s = t->state;
    int n_left;
    transport_copy_own(t, a);
    for (int r = 0; r < t->size; r++)
        s->flow[r] = (tcp_flow){.header_out = a->n_from[r]};
    wait_kind before = waits_begin(WAIT_RANKS);
    for (;;) {
        status st = watch_check(s->w);
        if (st == OK) st = run_round(t, a, &n_left);
        if (st != OK || n_left == 0) {
            waits_end(before);
            return st;
        }
        /* Bytes that move are no standing still: another wait. */
        if (poll(s->polls, (nfds_t)n_left, TURN_MS) > 0) (void)waits_begin(WAIT_RANKS);
    }
}

/* Empty messages between all pairs. */
static status tcp_barrier(transport *t) {
    char none = 0;
    return transport_gather(t, &none, 0, &none);
}

static void tcp_note_step(transport *t, uint64_t step) {
    watch_note_step(((tcp_state *)t->state)->w, step);
}

static void end(transport *t, bool is_failure) {
    tcp_state *s = t->state;
    watch_destroy(s->w, is_failure);
    mesh_close(&s->mesh);
    MEM_FREE(s->flow, s->polls);
    transport_free(t);
}

static status tcp_leave(transport *t, status st) {
    tcp_state *s = t->state;
    st = watch_leave(s->w, t->rank, st);
    s->w = NULL;
    end(t, false);
    return st;
}

static const transport_ops tcp_ops = {.name = "tcp",
                                      .exchange = tcp_exchange,
                                      .barrier = tcp_barrier,
                                      .note_step = tcp_note_step,
                                      .leave = tcp_leave};

/* A rank's place among those of its machine. */
static void count_local(transport *t, const tcp_mesh *m, const tcp_start *o) {
    t->local_rank = t->local_size = 0;
    for (int r = 0; r < t->size; r++) {
        bool is_here = strcmp(m->peer[r].host, m->peer[t->rank].host) == 0;
        t->local_size += is_here;
        t->local_rank += is_here && r < t->rank;
    }
    if (o->local_rank >= 0) t->local_rank = o->local_rank;
    if (o->local_size > 0) t->local_size = o->local_size;
}

static status start_watch(tcp_state *s, const tcp_start *o) {
    watch_options w = {.rank = o->rank,
                       .size = o->size,
                       .listener = s->mesh.listener,
                       .address = o->address,
                       .port = o->port,
                       .job = s->mesh.job,
                       .secret = secret_of(o),
                       .hosts = s->mesh.peer[0].host,
                       .host_stride = sizeof *s->mesh.peer,
                       .timeout_ms = timeout_of(o),
                       .silence_ms = o->silence_ms,
                       .is_patient = o->is_patient};
    return watch_create(&s->w, &w);
}

static status build(transport *t, const tcp_start *o) {
    tcp_state *s = t->state;
    TRY(MEM_NEW(&s->flow, (size_t)t->size));
    TRY(MEM_NEW(&s->polls, (size_t)t->size));
    TRY(mesh_open(&s->mesh, o));
    count_local(t, &s->mesh, o);
    TRY(start_watch(s, o));
    net_close(&s->mesh.listener);
    return OK;
}

status tcp_create(transport **out, const tcp_start *o) {
    transport *t;
    *out = NULL;
    if (o->size < 1 || o->size > TCP_MAX_RANKS || o->rank < 0 || o->rank >= o->size)
        return fail(ERR_USAGE, "RANK %d of WORLD_SIZE %d: the size may be 1 to %d", o->rank,
                    o->size, TCP_MAX_RANKS);
    TRY(transport_new(&t, &tcp_ops, sizeof(tcp_state)));
    t->rank = o->rank;
    t->size = o->size;
    ((tcp_state *)t->state)->mesh.listener = -1;
    status st = build(t, o);
    if (st == OK) {
        *out = t;
        return OK;
    }
    failure f;
    failure_save(&f, st);
    end(t, true);
    return failure_restore(&f);
}
