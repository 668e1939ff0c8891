#include "dist/net.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum { RETRY_MS = 50, BACKLOG = 1024 };

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

/* A socket that listens at the address; errno says why not. */
static int listen_at(const void *address, socklen_t n) {
    int family = ((const struct sockaddr *)address)->sa_family, on = 1, off = 0;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address, n) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static int listen_on_all(int port) {
    struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = listen_at(&any6, sizeof any6);
    return fd >= 0 ? fd : listen_at(&any4, sizeof any4);
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
            fd = listen_at(a->ai_addr, a->ai_addrlen);
            if (fd < 0 && errno != EAFNOSUPPORT) error = errno;
        }
        freeaddrinfo(list);
    }
    errno = error;
    return fd;
}

status net_listen(int *out, const char *host, int port, int *bound) {
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof at;
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
    if (getsockname(*out, (struct sockaddr *)&at, &n) != 0) {
        status st = fail_errno("the port of a socket");
        net_close(out);
        return st;
    }
    *bound = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                            : ((struct sockaddr_in *)&at)->sin_port);
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

static int connect_any(const struct addrinfo *list, int64_t end) {
    int fd = -1;
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next)
        fd = connect_once(a, end);
    return fd;
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
            *out = connect_any(list, end);
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
