/* Listening sockets of an HTTP server, and how many connections the system lets it have. */
#ifndef HSTU_SERVE_HTTP_HTTP_LISTEN_H
#define HSTU_SERVE_HTTP_HTTP_LISTEN_H

#include "serve/http/http.h"

enum { HTTP_MAX_THREADS = 8 };

typedef struct http_sockets {
    int fd[HTTP_MAX_THREADS]; /* -1: none */
    int n, port;
} http_sockets;

/* n sockets on one address, between which the kernel spreads connections.  port 0: any that is
 * free. http_unlisten must follow in any case. */
status http_listen(http_sockets *h, const char *host, int port, int n);
void http_unlisten(http_sockets *h);

/* Raises the limit on open files as far as the system allows, and lowers s->max_connections to what
 * it then permits. */
void http_fit_descriptors(http_settings *s);

#endif
