/* Inside tcp: the connections of a rank to all others (tcp_mesh.c), over which tcp.c exchanges. */
#ifndef HSTU_DIST_TCP_INT_H
#define HSTU_DIST_TCP_INT_H

#include "dist/net.h"
#include "dist/tcp.h"
#include "dist/watch.h"

/* What all know of a rank. */
typedef struct tcp_peer {
    char host[WATCH_HOST_BYTES];
    char address[NET_ADDRESS_BYTES]; /* "": that of rank 0, whose machine it is on */
    int32_t port;
} tcp_peer;

typedef struct tcp_mesh {
    int size;
    int *fd;        /* (size); -1: itself */
    tcp_peer *peer; /* (size) */
    int listener;
    uint64_t job; /* drawn by rank 0 */
} tcp_mesh;

status tcp_mesh_open(tcp_mesh *m, const tcp_start *o);
void tcp_mesh_close(tcp_mesh *m); /* a failed open too */

#endif
