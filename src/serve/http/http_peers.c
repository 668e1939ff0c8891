/* The connections of an HTTP server: the sockets they come from, who is connected, what each one is
 * doing since when, and the reaper that ends those whose deadlines have passed. */
#include "serve/http/http_int.h"

#ifdef HSTU_HAS_MICROHTTPD
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "dist/net.h"

static status listen_at(const struct addrinfo *a, bool is_shared, int *out) {
    *out = net_listen_at(a->ai_addr, a->ai_addrlen, is_shared);
    return *out >= 0 ? OK : fail_errno("cannot listen on it");
}

/* A first socket alone, so that a port that another server has is refused and not shared with it.
 */
static status listen_all(http_server *h, struct addrinfo *a) {
    TRY(listen_at(a, false, &h->fd[0]));
    h->port = net_port(h->fd[0]);
    if (h->n_daemons == 1) return OK;
    close(h->fd[0]);
    h->fd[0] = -1;
    if (a->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)a->ai_addr)->sin6_port = htons((uint16_t)h->port);
    else
        ((struct sockaddr_in *)a->ai_addr)->sin_port = htons((uint16_t)h->port);
    for (int i = 0; i < h->n_daemons; i++)
        TRY(listen_at(a, true, &h->fd[i]));
    return OK;
}

status http_listen(http_server *h) {
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", h->set.port);
    int error = getaddrinfo(h->set.host, port, &want, &found);
    if (error != 0) return fail(ERR_IO, "host %.200s: %s", h->set.host, gai_strerror(error));
    status st = listen_all(h, found);
    freeaddrinfo(found);
    return st == OK ? OK : fail_prefix(st, "%.200s port %d", h->set.host, h->set.port);
}

/* Each connection is a file descriptor; the system's limit may be lower than ours. */
void http_fit_descriptors(http_settings *s) {
    enum { OTHER_FILES = 128 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    rlim_t want = (rlim_t)s->max_connections + OTHER_FILES;
    if (limit.rlim_cur < want) {
        limit.rlim_cur = limit.rlim_max < want ? limit.rlim_max : want;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < want)
        s->max_connections = limit.rlim_cur > 2 * OTHER_FILES ? (int)limit.rlim_cur - OTHER_FILES
                                                              : (int)limit.rlim_cur / 2;
    if (s->max_per_address > s->max_connections) s->max_per_address = s->max_connections;
}

enum { REAP_NS = 100000000, SENT_IN_TIME = 2 << 20 };

void http_set_phase(peer *p, phase at) {
    p->since_ns = clock_ns();
    p->at = at;
}

/* Large ones are few enough to be summed. */
bool http_hold(http_server *h, peer *p, size_t n_bytes) {
    size_t all = n_bytes, own = n_bytes, most = h->set.max_held_bytes;
    if (n_bytes <= SMALL_BYTES) n_bytes = 0;
    if (n_bytes == p->held_bytes) return true; /* mostly none */
    pthread_mutex_lock(&h->lock);
    for (const peer *q = h->peers.next; q != &h->peers && n_bytes > 0; q = q->next) {
        if (q == p) continue;
        all += q->held_bytes;
        if (q->address == p->address) own += q->held_bytes;
    }
    bool has_room = n_bytes == 0 || (all <= most && own <= most / 2);
    if (has_room) p->held_bytes = n_bytes;
    pthread_mutex_unlock(&h->lock);
    return has_room;
}

/* The owner of an IPv6 network has all its addresses: they count as one. */
static uint64_t address_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    uint64_t address = 0;
    if (i == NULL || i->client_addr == NULL) return 0;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)i->client_addr;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)i->client_addr;
    if (i->client_addr->sa_family == AF_INET)
        address = v4->sin_addr.s_addr;
    else if (i->client_addr->sa_family == AF_INET6)
        memcpy(&address, &v6->sin6_addr.s6_addr[IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? 8 : 0],
               sizeof address);
    return address;
}

void http_refuse_at_socket(peer *p, int code, const char *words, const char *remedy) {
    char text[512], body[256];
    int n_body = snprintf(body, sizeof body, "{\"error\":\"%s\"}\n", remedy);
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                     "Connection: close\r\n\r\n%s",
                     code, words, n_body, body);
    if (p->is_shut) return;
    p->is_shut = true;
    if (send(p->fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) errno = 0;
    shutdown(p->fd, SHUT_RDWR);
}

/* The deadlines of a connection; 0: it is in time, else the code that refuses it. */
static int overdue(const http_settings *s, const peer *p, uint64_t now) {
    phase at = p->at;
    uint64_t since = p->since_ns, ms = now > since ? (now - since) / 1000000 : 0;
    if (p->is_shut) return 0;
    if (at == READS_HEADER && ms > (uint64_t)s->header_ms) return 408;
    if (at == READS_BODY && ms > (uint64_t)s->body_ms) return 408;
    /* A client that reads slower than that only holds memory. */
    if (at == SENDS_ANSWER && ms > (uint64_t)s->answer_ms * (1 + p->n_sending / SENT_IN_TIME))
        return -1;
    return at == IS_IDLE && ms > (uint64_t)s->idle_ms ? -1 : 0;
}

static void reap(http_server *h) {
    int n_late = 0;
    pthread_mutex_lock(&h->lock);
    uint64_t now = clock_ns();
    for (peer *p = h->peers.next; p != &h->peers; p = p->next) {
        int code = overdue(&h->set, p, now);
        if (code == 408)
            http_refuse_at_socket(p, 408, "Request Timeout", "the request took too long to arrive");
        if (code == -1) {
            p->is_shut = true;
            shutdown(p->fd, SHUT_RDWR);
        }
        n_late += code == 408;
    }
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < n_late && h->set.refused != NULL; i++)
        h->set.refused(h->set.ctx, 408);
}

void *http_reap(void *context) {
    http_server *h = context;
    pthread_mutex_lock(&h->lock);
    while (!h->is_stopping) {
        cond_wait_until(&h->wake, &h->lock, clock_ns() + REAP_NS);
        pthread_mutex_unlock(&h->lock);
        reap(h);
        pthread_mutex_lock(&h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* Connections that wait for bytes are ended, and their ends and those of answers on their way
 * awaited for a second at most: the library (0.9.75) reads through NULL where it answers a
 * malformed request while it is being stopped. */
void http_end_idle(http_server *h) {
    const struct timespec pause = {.tv_nsec = 1000000};
    for (int ms = 0; ms < 1000; ms++) {
        bool is_any = false;
        pthread_mutex_lock(&h->lock);
        for (peer *p = h->peers.next; p != &h->peers; p = p->next) {
            bool waits = p->at != IS_HANDLED && p->at != SENDS_ANSWER;
            if (waits && !p->is_shut) shutdown(p->fd, SHUT_RDWR);
            p->is_shut = p->is_shut || waits;
            is_any = is_any || p->at != IS_HANDLED;
        }
        pthread_mutex_unlock(&h->lock);
        if (!is_any) return;
        nanosleep(&pause, NULL);
    }
}

/* Threads of the library, once each: a client that is refused is told at once.  Where there is one
 * for each core, each stays on its own: two on one core would wait for each other, while on the
 * other one nothing runs that they could not interrupt. */
static void be_prompt(http_server *h) {
    static _Thread_local bool is_prompt;
    if (is_prompt) return;
    is_prompt = true;
    thread_prompt();
    pthread_mutex_lock(&h->lock);
    int index = h->n_prompt++;
    pthread_mutex_unlock(&h->lock);
    if (h->has_each_core) thread_stay(index);
}

/* Without memory for its record a connection is not watched, and refused when its first request
 * arrives. */
void http_on_connection(void *context, struct MHD_Connection *c, void **socket_context,
                        enum MHD_ConnectionNotificationCode what) {
    http_server *h = context;
    peer *p = *socket_context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        be_prompt(h);
        if (MEM_NEW(&p, 1) != OK) return;
        p->fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        p->since_ns = clock_ns();
        p->address = address_of(c);
        int yes = 1;
        unsigned unread_ms = (unsigned)h->set.answer_ms; /* of streams, too */
        setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        setsockopt(p->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unread_ms, sizeof unread_ms);
        *socket_context = p;
    }
    if (p == NULL) return;
    bool is_start = what == MHD_CONNECTION_NOTIFY_STARTED;
    pthread_mutex_lock(&h->lock);
    peer *after = is_start ? h->peers.previous : p->previous;
    if (is_start) {
        p->previous = after;
        p->next = &h->peers;
    }
    after->next = is_start ? p : p->next;
    (is_start ? &h->peers : p->next)->previous = is_start ? p : after;
    h->n_open += is_start ? 1 : -1;
    h->n_accepted += is_start;
    if (h->last_from == p) h->last_from = NULL;
    pthread_mutex_unlock(&h->lock);
    if (is_start) return;
    *socket_context = NULL;
    mem_free(p);
}

/* The kernel counts in its ticks of 1 to 10 ms; one is taken off, which may be the end
 * of a tick and no time at all. */
uint64_t http_waited_ns(const peer *p) {
    struct tcp_info info;
    struct timespec tick;
    socklen_t n = sizeof info;
    if (getsockopt(p->fd, IPPROTO_TCP, TCP_INFO, &info, &n) != 0 ||
        clock_getres(CLOCK_MONOTONIC_COARSE, &tick) != 0) {
        errno = 0;
        return 0;
    }
    uint64_t waited = (uint64_t)info.tcpi_last_data_recv * 1000000, least = (uint64_t)tick.tv_nsec;
    return waited > least ? waited - least : 0;
}

peer *http_peer_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i != NULL ? i->socket_context : NULL;
}

/* The request line has arrived: from here on the headers of a connection that was idle have their
 * own deadline. */
void *http_on_request_line(void *context, const char *uri, struct MHD_Connection *c) {
    peer *p = http_peer_of(c);
    if (p != NULL && p->at == IS_IDLE) http_set_phase(p, READS_HEADER);
    return NULL;
}
#endif
