/* Sockets for the start of a job: connecting, listening, small messages with a time limit, and the
 * handshake by which processes of a job let each other in.  Sockets do not block and close on exec.
 *
 * Handshake: a process that connects says hello; then the two sides prove to each other that they
 * know the job's secret, the one that listens first, by an HMAC-SHA-256 of numbers drawn for this
 * connection.  Nothing that a stranger says is believed, answered or shown before that.  Last, the
 * side that listens acknowledges with one byte.  It takes many connections at once and waits for
 * none of them: whoever is silent, slow or wrong is rejected, while others come in.  One thread at
 * a time. */
#pragma once

#include "base/base.h"

enum { NET_ADDRESS_BYTES = 64 };

/* Listens at the host's address, where this machine has it, else (and for NULL) on all addresses of
 * this machine; port 0: any.  *bound is the port. */
status net_listen(int *out, const char *host, int port, int *bound);

/* Its two steps: a socket that listens at a sockaddr of n bytes, or -1 with errno, where is_shared
 * says that several of this process have this address; and the port of a socket, 0: it has none. */
int net_listen_at(const void *address, unsigned n, bool is_shared);
int net_port(int fd);

/* Connects, trying again until the time is over: the other side may not listen yet. */
status net_connect(int *out, const char *host, int port, int timeout_ms);

/* The next connection, and the address it came from; ERR_IO "": none came in time. */
status net_accept(int *out, int listener, int timeout_ms, char address[NET_ADDRESS_BYTES]);

/* All bytes, or ERR_IO: the time is over, or the other side has gone. */
status net_send(int fd, const void *bytes, size_t n, int timeout_ms);
status net_receive(int fd, void *bytes, size_t n, int timeout_ms);

bool net_is_gone(int fd); /* the other side has closed the connection, or it broke */
void net_close(int *fd);  /* -1 is fine; sets -1 */

bool net_is_loopback(const char *address); /* as net_accept writes it */
int64_t net_now_ms(void);                  /* of a clock that never goes back */
int net_left_ms(int64_t end);              /* from now until then, at least 1 */

enum { HANDSHAKE_PROTOCOL = 4, HANDSHAKE_HOST_BYTES = 64, HANDSHAKE_NONCE_BYTES = 16 };

typedef enum handshake_kind { HANDSHAKE_REPORT, HANDSHAKE_PEER, HANDSHAKE_WATCH } handshake_kind;

/* The same bytes in every version of hstu: a rank of another version, too, proves itself before it
 * is told so. */
typedef struct handshake_hello {
    uint32_t magic, protocol; /* set by handshake_enter */
    int32_t rank, size, port, kind;
    uint64_t job; /* 0: to be told */
    char host[HANDSHAKE_HOST_BYTES];
    unsigned char nonce[HANDSHAKE_NONCE_BYTES]; /* set by handshake_enter */
} handshake_hello;

/* Who has come in: fd is the caller's; -1: nobody in time. */
typedef struct handshake_guest {
    int fd;
    handshake_hello hello;
    char address[NET_ADDRESS_BYTES];
} handshake_guest;

typedef struct handshake handshake;

/* The listener and the secret stay the caller's and must outlive it. */
status handshake_create(handshake **out, int listener, const char *secret);
status handshake_next(handshake *g, int timeout_ms, handshake_guest *out);
void handshake_destroy(handshake *g); /* NULL is fine; sends away who has not come in */

/* Connects, proves itself and waits for the acknowledgement, again and again until the time is
 * over: a crowded listener may send a slow process away.  ERR_CONFIG: the other side does not know
 * the secret. */
status handshake_enter(int *fd, const char *address, int port, const char *secret,
                       handshake_hello *h, int timeout_ms);
