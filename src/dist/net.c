#include "dist/net.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

enum { RETRY_MS = 50 };

void net_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

int64_t net_now_ms(void) {
    return (int64_t)(clock_ns() / 1000000);
}

int net_left_ms(int64_t end) {
    int64_t left = end - net_now_ms();
    return left > 0 ? (int)left : 1;
}

/* Whether the socket is ready before `end`. */
static bool wait_for(int fd, short events, int64_t end) {
    for (;;) {
        int64_t left = end - net_now_ms();
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, left > 0 ? (int)left : 0);
        if (n > 0) return true;
        if (n == 0 || errno != EINTR) return false;
    }
}

static void set_options(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int net_listen_at(const void *address, unsigned n, bool is_shared) {
    int family = ((const struct sockaddr *)address)->sa_family, on = 1, off = 0;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (is_shared) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address, n) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int net_port(int fd) {
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &n) != 0) return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

static int listen_on_all(int port) {
    struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = net_listen_at(&any6, sizeof any6, false);
    return fd >= 0 ? fd : net_listen_at(&any4, sizeof any4, false);
}

bool net_is_loopback(const char *address) {
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strncmp(address, "::ffff:127.", 11) == 0;
}

static void name_address(const void *address, socklen_t n, char text[NET_ADDRESS_BYTES]) {
    if (getnameinfo(address, n, text, NET_ADDRESS_BYTES, NULL, 0, NI_NUMERICHOST) != 0)
        text[0] = '\0';
}

/* Debian's /etc/hosts gives a machine's own name the address 127.0.1.1, where no other machine
 * reaches it. */
static bool is_alias(const char *host, const struct addrinfo *a) {
    char address[NET_ADDRESS_BYTES];
    name_address(a->ai_addr, a->ai_addrlen, address);
    return net_is_loopback(address) && strcmp(host, address) != 0 &&
           strncmp(host, "localhost", 9) != 0;
}

/* Listens at an address of this machine, IPv4 first; EADDRNOTAVAIL: the host has none. */
static int listen_on_host(const char *host, int port) {
    static const int families[] = {AF_INET, AF_INET6};
    char service[16];
    int fd = -1, error = EADDRNOTAVAIL;
    snprintf(service, sizeof service, "%d", port);
    for (int i = 0; i < 2 && fd < 0; i++) {
        struct addrinfo *list, hints = {.ai_family = families[i], .ai_socktype = SOCK_STREAM};
        if (getaddrinfo(host, service, &hints, &list) != 0) continue;
        for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
            if (is_alias(host, a)) continue;
            fd = net_listen_at(a->ai_addr, a->ai_addrlen, false);
            if (fd < 0 && errno != EAFNOSUPPORT) error = errno;
        }
        freeaddrinfo(list);
    }
    errno = error;
    return fd;
}

status net_listen(int *out, const char *host, int port, int *bound) {
    *out = host != NULL ? listen_on_host(host, port) : -1;
    if (*out < 0 && host != NULL && errno != EADDRNOTAVAIL)
        return fail_errno("listening on %s, port %d", host, port);
    if (*out < 0) {
        if (host != NULL)
            log_info("%s is no address of this machine that others reach: listening on all of its "
                     "addresses",
                     host);
        *out = listen_on_all(port);
    }
    if (*out < 0) return fail_errno("listening on port %d", port);
    *bound = net_port(*out);
    return OK;
}

/* Where nothing listens at a port that the system also hands out, a connection can get that very
 * port and reach itself.  It is reset, so that the port is free at once for who is to listen. */
static bool is_own_end(int fd) {
    const struct linger reset = {.l_onoff = 1};
    struct sockaddr_storage own = {0}, other = {0};
    socklen_t n = sizeof own, m = sizeof other;
    return getsockname(fd, (struct sockaddr *)&own, &n) == 0 &&
           getpeername(fd, (struct sockaddr *)&other, &m) == 0 && n == m &&
           memcmp(&own, &other, n) == 0 &&
           setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0;
}

/* One attempt at one address; errno says why not. */
static int connect_once(const struct addrinfo *a, int64_t end) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t n = sizeof error;
    if (fd < 0) return -1;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS && !wait_for(fd, POLLOUT, end))
        error = ETIMEDOUT;
    else if (error == EINPROGRESS && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0)
        error = errno;
    if (error == 0 && is_own_end(fd)) error = ECONNREFUSED;
    if (error == 0) return fd;
    close(fd);
    errno = error;
    return -1;
}

status net_connect(int *out, const char *host, int port, int timeout_ms) {
    struct addrinfo *list = NULL, hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const struct timespec turn = {.tv_nsec = RETRY_MS * 1000000L};
    int64_t end = net_now_ms() + timeout_ms;
    char service[16];
    *out = -1;
    snprintf(service, sizeof service, "%d", port);
    for (;;) {
        /* A name, too, may be known only later: that of a pod that is just starting. */
        int code = getaddrinfo(host, service, &hints, &list);
        if (code == 0) {
            for (const struct addrinfo *a = list; a != NULL && *out < 0; a = a->ai_next)
                *out = connect_once(a, end);
            int error = errno;
            freeaddrinfo(list);
            errno = error;
        }
        if (*out >= 0) break;
        if (net_now_ms() >= end)
            return code != 0 ? fail(ERR_IO, "%s: %s", host, gai_strerror(code))
                             : fail_errno("connecting to %s, port %d", host, port);
        nanosleep(&turn, NULL);
    }
    set_options(*out);
    return OK;
}

status net_accept(int *out, int listener, int timeout_ms, char address[NET_ADDRESS_BYTES]) {
    struct sockaddr_storage from = {0};
    socklen_t n = sizeof from;
    *out = -1;
    address[0] = '\0';
    if (!wait_for(listener, POLLIN, net_now_ms() + timeout_ms)) return fail(ERR_IO, "%s", "");
    *out = accept4(listener, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (*out < 0) return fail(ERR_IO, "%s", ""); /* it has gone again */
    set_options(*out);
    name_address(&from, n, address);
    return OK;
}

bool net_is_gone(int fd) {
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

/* All bytes in one direction before the time is over. */
static status move_bytes(int fd, void *bytes, size_t n, bool is_send, int timeout_ms) {
    int64_t end = net_now_ms() + timeout_ms;
    for (size_t done = 0; done < n;) {
        char *at = (char *)bytes + done;
        ssize_t now = is_send ? send(fd, at, n - done, MSG_NOSIGNAL) : recv(fd, at, n - done, 0);
        if (now == 0 && !is_send) return fail(ERR_IO, "the other side has gone");
        if (now > 0) done += (size_t)now;
        if (now >= 0 || errno == EINTR) continue;
        if (errno != EAGAIN) return fail_errno(is_send ? "sending" : "receiving");
        if (!wait_for(fd, is_send ? POLLOUT : POLLIN, end))
            return fail(ERR_IO, is_send ? "sending took too long" : "no answer in time");
    }
    return OK;
}

status net_send(int fd, const void *bytes, size_t n, int timeout_ms) {
    return move_bytes(fd, (void *)(uintptr_t)bytes, n, true, timeout_ms);
}

status net_receive(int fd, void *bytes, size_t n, int timeout_ms) {
    return move_bytes(fd, bytes, n, false, timeout_ms);
}

/* A process has HELLO_MS to say hello and PROOF_MS to prove itself; where MOST_CALLERS wait, those
 * that must make room have had CROWD_MS. */
enum { HELLO_MS = 2000, PROOF_MS = 10000, CROWD_MS = 100, TURN_MS = 20 };
enum { MAGIC = 0x50545348, MOST_CALLERS = 256, MOST_WARNINGS = 8 };
/* The acknowledgement, which ranks wait for since this protocol. */
enum { ADMITTED = 1, ADMITTED_SINCE = 4 };

/* The answer to a hello. */
typedef struct challenge {
    unsigned char nonce[HANDSHAKE_NONCE_BYTES], proof[HMAC_BYTES];
} challenge;

/* A connection that has not proved itself. */
typedef struct caller {
    handshake_guest guest;
    int64_t since;
    size_t n_hello, n_proof; /* bytes that have come */
    unsigned char want[HMAC_BYTES], proof[HMAC_BYTES];
} caller;

struct handshake {
    int listener, n, n_warnings;
    const char *secret;
    caller waiting[MOST_CALLERS]; /* (n), in the order they came */
    struct pollfd polls[MOST_CALLERS + 1];
};

static status draw(void *bytes, size_t n) {
    if (getrandom(bytes, n, 0) == (ssize_t)n) return OK;
    return fail_errno("reading random numbers of the system");
}

/* What the side that listens (is_first) or the one that said hello proves itself with. */
static void prove(const char *secret, bool is_first, const handshake_hello *h,
                  const unsigned char nonce[HANDSHAKE_NONCE_BYTES],
                  unsigned char proof[HMAC_BYTES]) {
    const hmac_part parts[] = {
        {is_first ? "rank 0" : "a rank", 6}, {nonce, HANDSHAKE_NONCE_BYTES}, {h, sizeof *h}};
    hmac_sha256(secret, strlen(secret), parts, 3, proof);
}

status handshake_create(handshake **out, int listener, const char *secret) {
    TRY(MEM_NEW(out, 1));
    (*out)->listener = listener;
    (*out)->secret = secret;
    return OK;
}

void handshake_destroy(handshake *g) {
    for (int i = 0; g != NULL && i < g->n; i++)
        net_close(&g->waiting[i].guest.fd);
    mem_free(g);
}

static void forget(handshake *g, int i) {
    memmove(&g->waiting[i], &g->waiting[i + 1], (size_t)(--g->n - i) * sizeof *g->waiting);
}

/* Strangers must not fill the log, either. */
static void send_away(handshake *g, int i, const char *why) {
    if (why != NULL && g->n_warnings < MOST_WARNINGS)
        log_warn("a process at %s was rejected: it %s%s", g->waiting[i].guest.address, why,
                 ++g->n_warnings == MOST_WARNINGS ? " (further ones are not logged)" : "");
    net_close(&g->waiting[i].guest.fd);
    forget(g, i);
}

/* Reads what has come of n bytes; false: the process has gone. */
static bool hear(int fd, void *bytes, size_t n, size_t *n_in) {
    while (*n_in < n) {
        ssize_t now = recv(fd, (char *)bytes + *n_in, n - *n_in, 0);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0 && errno == EAGAIN) return true;
        if (now <= 0) return false;
        *n_in += (size_t)now;
    }
    return true;
}

static bool challenge_caller(const handshake *g, caller *c) {
    challenge out;
    if (draw(out.nonce, sizeof out.nonce) != OK) return false;
    prove(g->secret, true, &c->guest.hello, out.nonce, out.proof);
    prove(g->secret, false, &c->guest.hello, out.nonce, c->want);
    return send(c->guest.fd, &out, sizeof out, MSG_NOSIGNAL) == (ssize_t)sizeof out;
}

/* A caller that does not hear this comes again. */
static bool admit(const caller *c) {
    static const unsigned char admitted = ADMITTED;
    return c->guest.hello.protocol < ADMITTED_SINCE ||
           send(c->guest.fd, &admitted, 1, MSG_NOSIGNAL) == 1;
}

static bool has_hello(const caller *c) {
    return c->n_hello == sizeof c->guest.hello;
}

/* One step of a caller; *why is set where it must go, to "" where that is not worth a word. */
static bool has_proved(const handshake *g, caller *c, const char **why) {
    handshake_hello *h = &c->guest.hello;
    bool is_new = !has_hello(c);
    if (is_new && !hear(c->guest.fd, h, sizeof *h, &c->n_hello)) *why = "";
    if (c->n_hello >= sizeof h->magic && h->magic != MAGIC) *why = "is not a rank of hstu";
    if (*why != NULL || !has_hello(c)) return false;
    if (is_new && !challenge_caller(g, c)) *why = "does not read";
    if (*why == NULL && !hear(c->guest.fd, c->proof, sizeof c->proof, &c->n_proof))
        *why = "disconnected before it proved to know the HSTU_JOB_SECRET";
    if (*why != NULL || c->n_proof < sizeof c->proof) return false;
    if (!hmac_equal(c->proof, c->want))
        *why = "does not know the HSTU_JOB_SECRET";
    else if (!admit(c))
        *why = "";
    return *why == NULL;
}

/* Whether a caller has come in. */
static bool hear_callers(handshake *g, handshake_guest *out) {
    for (int i = 0; i < g->n;) {
        const char *why = NULL;
        if (has_proved(g, &g->waiting[i], &why)) {
            *out = g->waiting[i].guest;
            out->hello.host[HANDSHAKE_HOST_BYTES - 1] = '\0';
            forget(g, i);
            return true;
        }
        int most = has_hello(&g->waiting[i]) ? PROOF_MS : HELLO_MS;
        bool is_late = net_now_ms() - g->waiting[i].since > most;
        if (why == NULL && is_late) why = "did not identify itself in time";
        if (why != NULL)
            send_away(g, i, why[0] != '\0' ? why : NULL);
        else
            i++;
    }
    return false;
}

/* Where all places are taken, the oldest caller without a hello makes room: a proof may be on its
 * way.  A stranger, too, can say hello: where more than half of the callers have, the oldest of all
 * makes room. */
static int who_makes_room(const handshake *g) {
    int n_hello = 0, silent = 0;
    for (int i = g->n - 1; i >= 0; i--) {
        n_hello += has_hello(&g->waiting[i]);
        if (!has_hello(&g->waiting[i])) silent = i;
    }
    return n_hello > MOST_CALLERS / 2 ? 0 : silent;
}

static void take_callers(handshake *g) {
    for (int fd;;) {
        int i = g->n == MOST_CALLERS ? who_makes_room(g) : 0;
        if (g->n == MOST_CALLERS && net_now_ms() - g->waiting[i].since > CROWD_MS)
            send_away(g, i, "did not identify itself, and others wait");
        if (g->n == MOST_CALLERS) return;
        caller *c = &g->waiting[g->n];
        *c = (caller){.since = net_now_ms()};
        if (net_accept(&fd, g->listener, 0, c->guest.address) != OK) return;
        c->guest.fd = fd;
        g->n++;
    }
}

static void wait_for_callers(handshake *g, int64_t ms) {
    int room = g->n < MOST_CALLERS;
    for (int i = 0; i < g->n; i++)
        g->polls[i] = (struct pollfd){.fd = g->waiting[i].guest.fd, .events = POLLIN};
    g->polls[g->n] = (struct pollfd){.fd = g->listener, .events = POLLIN};
    (void)poll(g->polls, (nfds_t)(g->n + room), ms < TURN_MS ? (int)ms : TURN_MS);
}

status handshake_next(handshake *g, int timeout_ms, handshake_guest *out) {
    int64_t end = net_now_ms() + timeout_ms;
    *out = (handshake_guest){.fd = -1};
    for (;;) {
        take_callers(g);
        int64_t left = end - net_now_ms();
        if (hear_callers(g, out) || left <= 0) return OK;
        wait_for_callers(g, left);
    }
}

/* On the side that connected: both sides prove themselves, the other first, and it lets this one
 * in. */
static status prove_both(int fd, const char *secret, const handshake_hello *h, int64_t end) {
    challenge c;
    unsigned char proof[HMAC_BYTES], admitted;
    TRY(net_send(fd, h, sizeof *h, net_left_ms(end)));
    TRY(net_receive(fd, &c, sizeof c, net_left_ms(end)));
    prove(secret, true, h, c.nonce, proof);
    if (!hmac_equal(proof, c.proof))
        return fail(ERR_CONFIG, "it does not know the HSTU_JOB_SECRET of this rank: set the same "
                                "one for all ranks, or none; or it runs another version of hstu");
    prove(secret, false, h, c.nonce, proof);
    TRY(net_send(fd, proof, sizeof proof, net_left_ms(end)));
    TRY(net_receive(fd, &admitted, 1, net_left_ms(end)));
    return admitted == ADMITTED ? OK : fail(ERR_CONFIG, "it runs another version of hstu");
}

status handshake_enter(int *fd, const char *address, int port, const char *secret,
                       handshake_hello *h, int timeout_ms) {
    const struct timespec turn = {.tv_nsec = TURN_MS * 1000000L};
    int64_t end = net_now_ms() + timeout_ms;
    h->magic = MAGIC;
    h->protocol = HANDSHAKE_PROTOCOL;
    for (;;) {
        TRY(draw(h->nonce, sizeof h->nonce));
        TRY(net_connect(fd, address, port, net_left_ms(end)));
        status st = prove_both(*fd, secret, h, end);
        if (st == OK) return OK;
        net_close(fd);
        if (st != ERR_IO || net_now_ms() >= end) return st;
        nanosleep(&turn, NULL);
    }
}
