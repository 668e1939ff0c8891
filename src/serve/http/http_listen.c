#include "serve/http/http_listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* A listening socket of `a`.  With is_shared, several of this process have the same address. */
static status listen_at(const struct addrinfo *a, bool is_shared, int *out) {
    int yes = 1;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return fail_errno("a socket cannot be made");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (is_shared) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return fail_errno("it cannot be listened on");
    }
    *out = fd;
    return OK;
}

static int port_of(int fd) {
    struct sockaddr_storage s;
    socklen_t n = sizeof s;
    if (getsockname(fd, (struct sockaddr *)&s, &n) != 0) return 0;
    return ntohs(s.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&s)->sin6_port
                                         : ((struct sockaddr_in *)&s)->sin_port);
}

/* A first socket alone, so that a port that another server has is refused and not shared with it.
 */
static status listen_all(http_sockets *h, struct addrinfo *a) {
    TRY(listen_at(a, false, &h->fd[0]));
    h->port = port_of(h->fd[0]);
    if (h->n == 1) return OK;
    close(h->fd[0]);
    h->fd[0] = -1;
    if (a->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)a->ai_addr)->sin6_port = htons((uint16_t)h->port);
    else
        ((struct sockaddr_in *)a->ai_addr)->sin_port = htons((uint16_t)h->port);
    for (int i = 0; i < h->n; i++)
        TRY(listen_at(a, true, &h->fd[i]));
    return OK;
}

status http_listen(http_sockets *h, const char *host, int port_wanted, int n) {
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char port[16];
    *h = (http_sockets){.n = n};
    memset(h->fd, -1, sizeof h->fd);
    snprintf(port, sizeof port, "%d", port_wanted);
    int error = getaddrinfo(host, port, &want, &found);
    if (error != 0) return fail(ERR_IO, "host %.200s: %s", host, gai_strerror(error));
    status st = listen_all(h, found);
    freeaddrinfo(found);
    if (st != OK) return fail_prefix(st, "%.200s port %d", host, port_wanted);
    return OK;
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

void http_unlisten(http_sockets *h) {
    for (int i = 0; i < h->n; i++)
        if (h->fd[i] >= 0) close(h->fd[i]);
    h->n = 0;
}
