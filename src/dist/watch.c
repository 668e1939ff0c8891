#include "dist/watch.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "dist/net.h"

enum { MAGIC = 0x57545348, HELLO_MS = 5000, TURN_MS = 50, MOST_MS = 200, TEXT_BYTES = 512 };
enum { STALL_SECONDS = 120 }; /* one message may take long in a slow network */

typedef enum { HELLO, BEAT, BYE, FAILED, LOST_CLOSED, LOST_SILENT, STANDING } beat_kind;

typedef struct beat {
    uint32_t magic, kind;
    uint64_t step; /* 1 + the last step; 0: none yet */
    uint64_t wait; /* of a BEAT: base/range.h */
    int64_t rank;  /* whose step it is */
} beat;

/* The connection to one rank. */
typedef struct watch_link {
    int fd, rank;
    bool is_over;  /* it has left */
    int64_t quiet; /* ms since it was heard */
    uint64_t step, wait;
    bool has_moved; /* the wait of its last heartbeats is another one, or none */
    size_t n_in;
    beat in;
} watch_link;

struct watch {
    int rank, size, n_links, silence_ms;
    bool is_patient, has_thread;
    watch_link *link; /* (n_links): rank 0 to all, the others to rank 0 */
    struct pollfd *polls;
    char (*hosts)[WATCH_HOST_BYTES]; /* (size) */
    pthread_t thread;
    atomic_uint_fast64_t step;
    uint64_t wait, own_wait; /* what this rank waits for, and what it did in the turn before */
    watch_stall stall;
    atomic_int leaving; /* 1: finished, 2: failed by itself */
    atomic_int ended;   /* the job has ended; text is set */
    atomic_int heard;   /* and the rank knows it */
    char text[TEXT_BYTES];
    int64_t grace; /* ms since then */
};

void watch_note_step(watch *w, uint64_t step) {
    atomic_store(&w->step, step + 1);
}

status watch_check(watch *w) {
    if (w == NULL || atomic_load(&w->ended) == 0) return OK;
    atomic_store(&w->heard, 1);
    return fail(ERR_IO, "%s", w->text);
}

static void send_beat(const watch *w, watch_link *l, beat_kind kind, int64_t rank, uint64_t step) {
    beat b = {.magic = MAGIC,
              .kind = (uint32_t)kind,
              .step = step,
              .wait = waits_read(&w->wait),
              .rank = rank};
    if (l->fd < 0 || l->is_over) return;
    /* A full buffer means that the other side does not read: it will be missed soon enough. */
    (void)!send(l->fd, &b, sizeof b, MSG_NOSIGNAL);
}

static void send_all(watch *w, beat_kind kind, int64_t rank, uint64_t step, int but) {
    for (int i = 0; i < w->n_links; i++)
        if (w->link[i].rank != but) send_beat(w, &w->link[i], kind, rank, step);
}

/* The first rank of each machine speaks where rank 0 cannot. */
static bool may_speak(const watch *w) {
    for (int r = 1; r < w->rank; r++)
        if (strcmp(w->hosts[r], w->hosts[w->rank]) == 0) return false;
    return true;
}

const char *watch_step_text(uint64_t step, char text[WATCH_STEP_BYTES]) {
    if (step == 0)
        snprintf(text, WATCH_STEP_BYTES, "before its first step");
    else
        snprintf(text, WATCH_STEP_BYTES, "at step %" PRIu64, step - 1);
    return text;
}

status watch_stall_init(watch_stall *s, int default_seconds) {
    int seconds = 0;
    TRY(env_stall_seconds(default_seconds, &seconds));
    *s = (watch_stall){.most_ms = (int64_t)seconds * 1000};
    return OK;
}

bool watch_stall_add(watch_stall *s, bool has_moved, int64_t ms) {
    s->ms = has_moved ? 0 : s->ms + ms;
    return s->most_ms > 0 && s->ms > s->most_ms;
}

bool watch_has_moved(uint64_t before, uint64_t now) {
    return waits_kind(now) == WAIT_NONE || now != before;
}

static void end_job(watch *w, beat_kind kind, int rank, uint64_t step, bool is_told) {
    char at[WATCH_STEP_BYTES];
    if (atomic_load(&w->ended) != 0) return;
    if (kind != FAILED && kind != STANDING && !is_told && may_speak(w))
        snprintf(w->text, sizeof w->text, "rank %d on %.63s was lost %s: %s; the job ends", rank,
                 w->hosts[rank], watch_step_text(step, at),
                 kind == LOST_SILENT ? "it does not answer" : "its connection was closed");
    atomic_store(&w->ended, 1);
    if (w->rank == 0) send_all(w, kind, rank, step, rank);
}

static void take_beat(watch *w, watch_link *l, const beat *b) {
    bool is_rank = b->rank >= 0 && b->rank < w->size;
    l->quiet = 0;
    if (b->magic != MAGIC || !is_rank) return;
    if (b->kind == BEAT) {
        l->step = b->step;
        l->has_moved = l->has_moved || watch_has_moved(l->wait, b->wait);
        l->wait = b->wait;
    }
    if (b->kind == BYE) l->is_over = true;
    if (b->kind == FAILED) {
        l->is_over = l->rank == b->rank;
        end_job(w, FAILED, (int)b->rank, b->step, true);
    }
    if (w->rank > 0 && (b->kind == LOST_CLOSED || b->kind == LOST_SILENT || b->kind == STANDING))
        end_job(w, (beat_kind)b->kind, (int)b->rank, b->step, true);
}

static void read_link(watch *w, watch_link *l) {
    for (;;) {
        ssize_t n = recv(l->fd, (char *)&l->in + l->n_in, sizeof l->in - l->n_in, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) {
            net_close(&l->fd);
            if (!l->is_over) end_job(w, LOST_CLOSED, l->rank, l->step, false);
            l->is_over = true;
            return;
        }
        l->n_in += (size_t)n;
        if (l->n_in < sizeof l->in) continue;
        l->n_in = 0;
        take_beat(w, l, &l->in);
    }
}

static void listen_once(watch *w) {
    for (int i = 0; i < w->n_links; i++)
        w->polls[i] = (struct pollfd){.fd = w->link[i].fd, .events = POLLIN};
    if (poll(w->polls, (nfds_t)w->n_links, TURN_MS) <= 0) return;
    for (int i = 0; i < w->n_links; i++)
        if (w->link[i].fd >= 0 && w->polls[i].revents != 0) read_link(w, &w->link[i]);
}

static void count_silence(watch *w, int64_t ms) {
    for (int i = 0; i < w->n_links; i++) {
        watch_link *l = &w->link[i];
        if (l->is_over || l->fd < 0) continue;
        l->quiet += ms;
        if (l->quiet > w->silence_ms) end_job(w, LOST_SILENT, l->rank, l->step, false);
    }
}

/* Writes " rank 1 on HOST waits for the GPU", as far as there is room. */
static size_t add_wait(watch *w, size_t n, int rank, uint64_t wait) {
    if (n >= sizeof w->text) return n;
    return n + (size_t)snprintf(w->text + n, sizeof w->text - n, "%s rank %d on %.63s waits for %s",
                                rank > 0 ? "," : "", rank, w->hosts[rank],
                                waits_name(waits_kind(wait)));
}

/* Rank 0 ends a job in which all ranks wait, each in one and the same wait. */
static void count_standing(watch *w, int64_t ms) {
    uint64_t own = waits_read(&w->wait);
    bool has_moved = watch_has_moved(w->own_wait, own);
    w->own_wait = own;
    for (int i = 0; i < w->n_links; i++) {
        has_moved = has_moved || w->link[i].has_moved || w->link[i].is_over;
        w->link[i].has_moved = false;
    }
    if (!watch_stall_add(&w->stall, has_moved, ms)) return;
    char at[WATCH_STEP_BYTES];
    size_t n = (size_t)snprintf(
        w->text, sizeof w->text,
        "no rank made progress for %d s, %s; the job ends:", (int)(w->stall.most_ms / 1000),
        watch_step_text(atomic_load(&w->step), at));
    n = add_wait(w, n, 0, own);
    for (int i = 0; i < w->n_links; i++)
        n = add_wait(w, n, w->link[i].rank, w->link[i].wait);
    end_job(w, STANDING, 0, atomic_load(&w->step), false);
}

/* The rank waits for something that will not come. */
static void end_process(const watch *w) {
    if (w->text[0] != '\0') {
        log_set_level(LOG_WARN);
        log_warn("%s", w->text);
    }
    kill(getpid(), SIGKILL);
}

static void *watch_main(void *arg) {
    watch *w = arg;
    int64_t since_beat = WATCH_BEAT_MS;
    uint64_t before = clock_ns();
    while (atomic_load(&w->leaving) == 0) {
        if (since_beat >= WATCH_BEAT_MS) {
            send_all(w, BEAT, w->rank, atomic_load(&w->step), -1);
            since_beat = 0;
        }
        listen_once(w);
        uint64_t now = clock_ns();
        int64_t ms = (int64_t)((now - before) / 1000000);
        if (ms == 0) continue;
        before = now;
        if (ms > MOST_MS) ms = MOST_MS; /* this process did not run itself */
        since_beat += ms;
        if (atomic_load(&w->ended) == 0) count_silence(w, ms);
        if (atomic_load(&w->ended) == 0 && w->rank == 0) count_standing(w, ms);
        if (atomic_load(&w->ended) == 0) continue;
        w->grace += ms;
        int most = atomic_load(&w->heard) ? 3 * WATCH_GRACE_MS : WATCH_GRACE_MS;
        if (w->grace > most && !w->is_patient) end_process(w);
    }
    send_all(w, atomic_load(&w->leaving) == 1 ? BYE : FAILED, w->rank, atomic_load(&w->step), -1);
    return NULL;
}

static void welcome(watch *w, const watch_options *o, handshake_guest *g, int *n) {
    const handshake_hello *h = &g->hello;
    bool is_ours = h->kind == HANDSHAKE_WATCH && h->job == o->job && h->rank > 0;
    if (!is_ours || h->rank >= w->size || w->link[h->rank - 1].fd >= 0) {
        net_close(&g->fd);
        return;
    }
    w->link[h->rank - 1].fd = g->fd;
    ++*n;
}

/* All learn that all have come: from then on silence counts. */
static status connect_all(watch *w, const watch_options *o, handshake *at) {
    int64_t end = net_now_ms() + o->timeout_ms;
    beat go = {.magic = MAGIC, .kind = HELLO};
    for (int n = 0; n < w->n_links;) {
        handshake_guest g;
        int64_t left = end - net_now_ms();
        if (left <= 0)
            return fail(ERR_IO, "%d of %d ranks did not join in %d s", w->n_links - n, w->size,
                        o->timeout_ms / 1000);
        TRY(handshake_next(at, (int)left, &g));
        if (g.fd >= 0) welcome(w, o, &g, &n);
    }
    for (int i = 0; i < w->n_links; i++) {
        status st = net_send(w->link[i].fd, &go, sizeof go, HELLO_MS);
        if (st != OK) return fail_prefix(st, "rank %d on %s", i + 1, w->hosts[i + 1]);
    }
    return OK;
}

static status open_handshake(watch *w, const watch_options *o) {
    handshake *at;
    TRY(handshake_create(&at, o->listener, o->secret));
    status st = connect_all(w, o, at);
    handshake_destroy(at);
    return st;
}

static status connect_first(watch *w, const watch_options *o) {
    handshake_hello h = {.rank = o->rank, .size = o->size, .kind = HANDSHAKE_WATCH, .job = o->job};
    beat go;
    int *fd = &w->link[0].fd;
    status st = handshake_enter(fd, o->address, o->port, o->secret, &h, o->timeout_ms);
    if (st == OK) st = net_receive(*fd, &go, sizeof go, o->timeout_ms);
    return st == OK ? OK : fail_prefix(st, "rank 0 on %s", w->hosts[0]);
}

static status begin(watch *w, const watch_options *o) {
    size_t n = (size_t)w->size;
    TRY(MEM_NEW(&w->link, (size_t)w->n_links));
    for (int i = 0; i < w->n_links; i++)
        w->link[i] = (watch_link){.fd = -1, .rank = w->rank == 0 ? i + 1 : 0};
    TRY(MEM_NEW(&w->polls, (size_t)w->n_links));
    TRY(mem_alloc((void **)&w->hosts, n, sizeof *w->hosts));
    for (size_t r = 0; r < n; r++)
        memcpy(w->hosts[r], o->hosts + r * o->host_stride, sizeof *w->hosts);
    TRY(w->rank == 0 ? open_handshake(w, o) : connect_first(w, o));
    if (pthread_create(&w->thread, NULL, watch_main, w) != 0)
        return fail(ERR_IO, "cannot start the heartbeat thread");
    w->has_thread = true;
    return OK;
}

status watch_create(watch **out, const watch_options *o) {
    watch *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1));
    w->rank = o->rank;
    w->size = o->size;
    w->n_links = o->rank == 0 ? o->size - 1 : 1;
    w->silence_ms = o->silence_ms > 0 ? o->silence_ms : WATCH_SILENCE_MS;
    w->is_patient = o->is_patient;
    status st = watch_stall_init(&w->stall, STALL_SECONDS);
    if (st == OK) st = begin(w, o);
    if (st == OK) {
        waits_share(&w->wait);
        *out = w;
        return OK;
    }
    failure f;
    failure_save(&f, st);
    watch_destroy(w, true);
    return failure_restore(&f);
}

void watch_destroy(watch *w, bool is_failure) {
    if (w == NULL) return;
    waits_share(NULL);
    atomic_store(&w->leaving, is_failure ? 2 : 1);
    if (w->has_thread) pthread_join(w->thread, NULL);
    for (int i = 0; i < w->n_links && w->link != NULL; i++)
        net_close(&w->link[i].fd);
    MEM_FREE(w->link, w->polls, w->hosts, w);
}

status watch_leave(watch *w, int rank, status st) {
    bool is_failure = st != OK && st != ERR_INTERRUPTED;
    bool is_same_for_all = st == ERR_USAGE || st == ERR_CONFIG || st == ERR_INTERRUPTED;
    failure f;
    failure_save(&f, st);
    status watched = is_failure ? watch_check(w) : OK;
    if (watched != OK) failure_save(&f, watched);
    watch_destroy(w, is_failure);
    if (st == OK) return OK;
    st = failure_restore(&f);
    if (watched != OK || rank == 0 || status_reason()[0] == '\0') return st;
    return is_same_for_all ? fail(st, "%s", "") : fail_prefix(st, "rank %d", rank);
}

enum { MAX_ADDRESSES = 8, PROBE_MS = 1500, START_MS = 15000 };

/* Where a rank is. */
typedef struct place {
    char host[WATCH_HOST_BYTES];
    char address[MAX_ADDRESSES][NET_ADDRESS_BYTES]; /* of rank 0's machine, but 127.0.0.1 */
    uint64_t job;
    int64_t port;
} place;

static void list_addresses(place *p) {
    struct ifaddrs *all;
    int n = 0;
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *i = all; i != NULL && n < MAX_ADDRESSES; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET) continue;
        if (!(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) continue;
        if (getnameinfo(i->ifa_addr, sizeof(struct sockaddr_in), p->address[n], NET_ADDRESS_BYTES,
                        NULL, 0, NI_NUMERICHOST) == 0)
            n++;
    }
    freeifaddrs(all);
}

/* The first address at which rank 0 answers. */
static const char *reach(const place *first, const place *own) {
    if (strcmp(first->host, own->host) == 0) return "127.0.0.1";
    for (int i = 0; i < MAX_ADDRESSES && first->address[i][0] != '\0'; i++) {
        int fd;
        if (net_connect(&fd, first->address[i], (int)first->port, PROBE_MS) != OK) continue;
        net_close(&fd);
        return first->address[i];
    }
    return NULL;
}

static status create_at(watch **out, transport *t, const place *all, int listener) {
    const place *own = &all[t->rank];
    const char *address = t->rank == 0 ? "" : reach(&all[0], own);
    if (address == NULL) return fail(ERR_IO, "rank 0 on %s cannot be reached", all[0].host);
    char secret[17]; /* the transport told it to ranks of this job only */
    snprintf(secret, sizeof secret, "%016" PRIx64, all[0].job);
    watch_options o = {.rank = t->rank,
                       .size = t->size,
                       .listener = listener,
                       .address = address,
                       .port = (int)all[0].port,
                       .job = all[0].job,
                       .secret = secret,
                       .hosts = all[0].host,
                       .host_stride = sizeof *all,
                       .timeout_ms = START_MS};
    return watch_create(out, &o);
}

/* All watch, or none. */
static status settle(watch **out, transport *t, status st) {
    int64_t own = st != OK, *all;
    char why[256];
    snprintf(why, sizeof why, "%s", st != OK ? status_reason() : "another rank cannot");
    TRY(MEM_NEW(&all, (size_t)t->size));
    st = transport_gather(t, &own, sizeof own, all);
    bool has_failed = false;
    for (int r = 0; r < t->size; r++)
        has_failed = has_failed || all[r] != 0;
    mem_free(all);
    if (st == OK && !has_failed) return OK;
    watch_destroy(*out, false);
    *out = NULL;
    if (st == OK)
        log_warn("ranks cannot watch each other over the network (%s): a rank that is stopped will "
                 "not be noticed",
                 why);
    return st;
}

status watch_create_over(watch **out, transport *t) {
    place own = {.port = 0}, *all;
    int listener = -1, port = 0;
    *out = NULL;
    gethostname(own.host, sizeof own.host - 1);
    if (t->rank == 0 && net_listen(&listener, NULL, 0, &port) == OK) {
        own.port = port;
        list_addresses(&own);
        if (getrandom(&own.job, sizeof own.job, 0) != sizeof own.job) own.job = (uint64_t)getpid();
    }
    status st = MEM_NEW(&all, (size_t)t->size);
    if (st == OK) st = transport_gather(t, &own, sizeof own, all);
    if (st == OK) {
        status made = all[0].port > 0 ? create_at(out, t, all, listener)
                                      : fail(ERR_IO, "rank 0 cannot listen");
        st = settle(out, t, made);
    }
    mem_free(all);
    net_close(&listener);
    return st;
}
