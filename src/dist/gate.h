/* Gate: how processes of a job let each other in.  A process that connects says hello; then the two
 * sides prove to each other that they know the job's secret, the one that listens first, by an
 * HMAC-SHA-256 of numbers drawn for this connection.  Nothing that a stranger says is believed,
 * answered or shown before that.
 *
 * The side that listens takes many connections at once and waits for none of them: whoever is
 * silent, slow or wrong is sent away, while others come in.  One thread at a time. */
#ifndef HSTU_DIST_GATE_H
#define HSTU_DIST_GATE_H

#include "dist/net.h"

enum { GATE_PROTOCOL = 3, GATE_HOST_BYTES = 64, GATE_NONCE_BYTES = 16 };

typedef enum gate_kind { GATE_REPORT, GATE_PEER, GATE_WATCH } gate_kind;

/* The same bytes in every version of hstu: a rank of another version, too, proves itself before it
 * is told so. */
typedef struct gate_hello {
    uint32_t magic, protocol; /* set by gate_enter */
    int32_t rank, size, port, kind;
    uint64_t job; /* 0: to be told */
    char host[GATE_HOST_BYTES];
    unsigned char nonce[GATE_NONCE_BYTES]; /* set by gate_enter */
} gate_hello;

/* Who has come in: fd is the caller's; -1: nobody in time. */
typedef struct gate_guest {
    int fd;
    gate_hello hello;
    char address[NET_ADDRESS_BYTES];
} gate_guest;

typedef struct gate gate;

/* The listener and the secret stay the caller's and must outlive the gate. */
status gate_create(gate **out, int listener, const char *secret);
status gate_next(gate *g, int timeout_ms, gate_guest *out);
void gate_destroy(gate *g); /* NULL is fine; sends away who has not come in */

/* Connects and proves itself, again and again until the time is over: a crowded gate may send a
 * slow process away.  ERR_CONFIG: the other side does not know the secret. */
status gate_enter(int *fd, const char *address, int port, const char *secret, gate_hello *h,
                  int timeout_ms);

#endif
