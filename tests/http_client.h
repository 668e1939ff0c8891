/* A client for tests of the server: sockets on this machine, and nothing that a library would mend
 * or hide. */
#ifndef HSTU_TESTS_HTTP_CLIENT_H
#define HSTU_TESTS_HTTP_CLIENT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "test.h"

enum { CLIENT_BYTES = 1 << 20, CLIENT_SECONDS = 20 };

static inline int client_open(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval limit = {.tv_sec = CLIENT_SECONDS};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

/* Sends all of it; false: the server has closed. */
static inline bool client_send(int fd, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* Reads until the end of one answer (Content-Length), or until the server closes; the caller frees.
 */
static inline char *client_read(int fd) {
    char *text = malloc(CLIENT_BYTES);
    size_t n = 0;
    for (;;) {
        ssize_t got = recv(fd, text + n, CLIENT_BYTES - 1 - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
        text[n] = '\0';
        const char *body = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "Content-Length:");
        if (body != NULL && length != NULL && length < body &&
            n >= (size_t)(body + 4 - text) + strtoul(length + 15, NULL, 10))
            break;
    }
    text[n] = '\0';
    return text;
}

/* One request on a connection of its own: the whole answer, headers included. */
static inline char *client_ask(int port, const char *method, const char *path, const char *headers,
                               const char *body) {
    size_t n_body = strlen(body);
    char *text = malloc(n_body + strlen(headers) + strlen(path) + 256);
    int n = sprintf(text, "%s %s HTTP/1.1\r\nHost: test\r\n%sContent-Length: %zu\r\n\r\n%s", method,
                    path, headers, n_body, body);
    int fd = client_open(port);
    client_send(fd, text, (size_t)n);
    free(text);
    text = client_read(fd);
    close(fd);
    return text;
}

/* The status of an answer; 0: there is none. */
static inline int client_code(const char *answer) {
    return strncmp(answer, "HTTP/1.1 ", 9) == 0 ? atoi(answer + 9) : 0;
}

static inline const char *client_body(const char *answer) {
    const char *body = strstr(answer, "\r\n\r\n");
    return body != NULL ? body + 4 : "";
}

#endif
