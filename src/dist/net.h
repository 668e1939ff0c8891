/* Sockets for the start of a job: connecting, listening, and small messages with a time limit.
 * Sockets do not block and close on exec. */
#ifndef HSTU_DIST_NET_H
#define HSTU_DIST_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { NET_ADDRESS_BYTES = 64 };

/* Listens at the host's address, where this machine has it, else (and for NULL) on all addresses of
 * this machine; port 0: any.  *bound is the port. */
status net_listen(int *out, const char *host, int port, int *bound);

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

#endif
