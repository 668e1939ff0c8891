/* Inside the HTTP server: its connections, which http_peers.c looks after, and their sockets. */
#pragma once

#ifdef HSTU_HAS_MICROHTTPD
#include <microhttpd.h>
#include <stdatomic.h>

#include "serve/http/http.h"

enum {
    HTTP_MAX_THREADS = 8,
    SMALL_BYTES = 64 << 10 /* a body or an answer that only the number of connections bounds */
};

/* What a connection is doing, for the reaper. */
typedef enum { READS_HEADER, READS_BODY, IS_IDLE, IS_HANDLED, SENDS_ANSWER } phase;

/* One connection, from accept to close.  Its thread alone changes the phase, without the lock, but
 * for IS_HANDLED: a connection that was shut down before is not handled. */
typedef struct peer {
    struct peer *next, *previous;
    int fd;
    _Atomic phase at;
    atomic_uint_fast64_t since_ns; /* when the phase began; set before it */
    uint64_t address;              /* of IPv6 the network */
    size_t held_bytes;             /* of a large body or answer */
    atomic_size_t n_sending;       /* bytes of the answer */
    bool is_shut;                  /* under the lock */
} peer;

struct http_server {
    http_settings set;
    struct MHD_Daemon *daemon[HTTP_MAX_THREADS];
    int fd[HTTP_MAX_THREADS]; /* listening sockets; -1: none */
    int port;
    int n_daemons;
    bool has_each_core; /* as many threads as cores */
    pthread_mutex_t lock;
    int n_prompt; /* threads that have seen a connection */
    peer peers;   /* head of a ring */
    int64_t n_open, n_accepted;
    atomic_int_fast64_t n_unanswered;
    const peer *last_from;  /* who sent the last whole request, */
    uint64_t last_ns;       /* and when it came */
    atomic_bool is_closing; /* answers close their connections */
    /* Exchanges that can continue: some are resumed, the others wait in order. */
    int n_resumed;
    struct exchange *first_ready, *last_ready;
    bool has_reaper, is_stopping;
    pthread_cond_t wake;
    pthread_t reaper;
};

/* Listens on one address with a socket for each daemon, between which the kernel spreads
 * connections; sets the port. */
status http_listen(http_server *h);

/* Raises the limit on open files as far as the system allows, and lowers s->max_connections to what
 * it then permits. */
void http_fit_descriptors(http_settings *s);

void http_set_phase(peer *p, phase at);

/* Lets a connection have so many bytes of a body or of an answer, instead of those that it had.
 * False: there is no room.  Small ones always have it. */
bool http_hold(http_server *h, peer *p, size_t n_bytes);

/* Writes an error past libmicrohttpd, which has no way to answer a request that is not whole, and
 * ends the connection.  Under the lock: the closing notice takes it, so fd is open. */
void http_refuse_at_socket(peer *p, int code, const char *words, const char *remedy);

/* For libmicrohttpd: a connection was accepted or is about to be closed; a request line has come.
 */
void http_on_connection(void *context, struct MHD_Connection *c, void **socket_context,
                        enum MHD_ConnectionNotificationCode what);
void *http_on_request_line(void *context, const char *uri, struct MHD_Connection *c);

peer *http_peer_of(struct MHD_Connection *c); /* NULL: it is not watched */

/* How long the last bytes of a connection have waited in its socket, for a thread that had others
 * to serve. */
uint64_t http_waited_ns(const peer *p);

void *http_reap(void *server); /* the reaper's thread */

/* Ends connections that wait for bytes, and waits a second at most for the others. */
void http_end_idle(http_server *h);
#endif
