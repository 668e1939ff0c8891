#include "dist/tcp.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/range.h"
#include "base/thread.h"
#include "dist/net.h"
#include "dist/tcp_int.h"
#include "dist/watch.h"

enum { TURN_MS = 100, GONE_TURNS = 200, HEADER_BYTES = 8, MOST_BYTES = 1 << 30 };

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

static status check_header(const transport *t, const exchange_args *a, int r) {
    const tcp_state *s = t->state;
    if (s->flow[r].header_in == a->n_to[r]) return OK;
    return fail(ERR_USAGE,
                "rank %d sends %" PRId64 " bytes to rank %d, which expects %" PRId64
                ": the ranks do not make the same calls",
                r, s->flow[r].header_in, t->rank, a->n_to[r]);
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
        if (is_head && f->n_in == HEADER_BYTES) TRY(check_header(t, a, r));
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
    tcp_state *s = t->state;
    int64_t *none;
    void **nowhere;
    (void)s;
    TRY(MEM_NEW(&none, (size_t)t->size));
    status st = MEM_NEW(&nowhere, (size_t)t->size);
    if (st == OK) {
        exchange_args a = {(const void *const *)nowhere, none, nowhere, none};
        st = tcp_exchange(t, &a);
        mem_free(nowhere);
    }
    mem_free(none);
    return st;
}

static void tcp_note_step(transport *t, uint64_t step) {
    watch_note_step(((tcp_state *)t->state)->w, step);
}

static void end(transport *t, bool is_failure) {
    tcp_state *s = t->state;
    watch_destroy(s->w, is_failure);
    tcp_mesh_close(&s->mesh);
    mem_free(s->flow);
    mem_free(s->polls);
    mem_free(s);
    mem_free(t);
}

/* A rank that noticed the end of the job has nothing to say but what the watch found. */
static status tcp_leave(transport *t, status st) {
    tcp_state *s = t->state;
    int rank = t->rank;
    failure f;
    failure_save(&f, st);
    status watched = st != OK && st != ERR_INTERRUPTED ? watch_check(s->w) : OK;
    if (watched != OK) failure_save(&f, watched);
    end(t, st != OK && st != ERR_INTERRUPTED);
    if (st == OK) return OK;
    st = failure_restore(&f);
    if (watched != OK || rank == 0 || status_reason()[0] == '\0') return st;
    bool is_same_for_all = st == ERR_USAGE || st == ERR_CONFIG || st == ERR_INTERRUPTED;
    return is_same_for_all ? fail(st, "%s", "") : fail_prefix(st, "rank %d", rank);
}

static void tcp_destroy(transport *t) {
    end(t, false);
}

static const transport_ops tcp_ops = {.name = "tcp",
                                      .exchange = tcp_exchange,
                                      .barrier = tcp_barrier,
                                      .note_step = tcp_note_step,
                                      .leave = tcp_leave,
                                      .destroy = tcp_destroy};

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
    char(*hosts)[WATCH_HOST_BYTES];
    TRY(mem_alloc((void **)&hosts, (size_t)o->size, sizeof *hosts));
    for (int r = 0; r < o->size; r++)
        snprintf(hosts[r], sizeof hosts[r], "%s", s->mesh.peer[r].host);
    watch_options w = {.rank = o->rank,
                       .size = o->size,
                       .listener = s->mesh.listener,
                       .address = o->address,
                       .port = o->port,
                       .job = s->mesh.job,
                       .secret = o->secret != NULL ? o->secret : "",
                       .hosts = (const char(*)[WATCH_HOST_BYTES])hosts,
                       .timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : TCP_START_MS,
                       .silence_ms = o->silence_ms,
                       .is_patient = o->is_patient};
    status st = watch_create(&s->w, &w);
    mem_free(hosts);
    return st;
}

static status build(transport *t, const tcp_start *o) {
    tcp_state *s = t->state;
    TRY(MEM_NEW(&s->flow, (size_t)t->size));
    TRY(MEM_NEW(&s->polls, (size_t)t->size));
    TRY(tcp_mesh_open(&s->mesh, o));
    count_local(t, &s->mesh, o);
    TRY(start_watch(s, o));
    net_close(&s->mesh.listener);
    return OK;
}

status tcp_create(transport **out, const tcp_start *o) {
    transport *t;
    tcp_state *s;
    *out = NULL;
    if (o->size < 1 || o->size > TCP_MAX_RANKS || o->rank < 0 || o->rank >= o->size)
        return fail(ERR_USAGE, "RANK %d of WORLD_SIZE %d: the size may be 1 to %d", o->rank,
                    o->size, TCP_MAX_RANKS);
    TRY(MEM_NEW(&t, 1));
    status st = MEM_NEW(&s, 1);
    if (st != OK) {
        mem_free(t);
        return st;
    }
    *t = (transport){.ops = &tcp_ops, .rank = o->rank, .size = o->size, .state = s};
    s->mesh.listener = -1;
    st = build(t, o);
    if (st == OK) {
        *out = t;
        return OK;
    }
    failure f;
    failure_save(&f, st);
    end(t, true);
    return failure_restore(&f);
}
