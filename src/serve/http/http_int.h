/* Inside the HTTP server: what the files share that know libmicrohttpd. */
#ifndef HSTU_SERVE_HTTP_HTTP_INT_H
#define HSTU_SERVE_HTTP_HTTP_INT_H

#ifdef HSTU_HAS_MICROHTTPD
#include <microhttpd.h>
#include <pthread.h>

#include "serve/http/http.h"
#include "serve/http/http_listen.h"

enum {
    MAX_ANSWER_HEADERS = 8,
    HEADER_VALUE_BYTES = 320,
    SMALL_BYTES = 64 << 10 /* a body or an answer that only the number of connections bounds */
};

/* What a connection is doing, for the reaper. */
typedef enum { READS_HEADER, READS_BODY, IS_IDLE, IS_HANDLED, SENDS_ANSWER } phase;

/* One connection, from accept to close. */
typedef struct peer {
    struct peer *next, *previous;
    int fd;
    phase at;
    uint64_t since_ns; /* when the phase began */
    uint64_t address;  /* of IPv6 the network */
    size_t held_bytes; /* of a large body or answer */
    size_t n_sending;  /* bytes of the answer */
    bool is_shut;
} peer;

typedef struct answer_header {
    const char *name; /* a constant */
    char value[HEADER_VALUE_BYTES];
} answer_header;

struct http_exchange {
    http_server *server;
    struct MHD_Connection *connection;
    peer *from;
    const char *method, *path;
    buf body;
    size_t body_room; /* bytes that the body may grow to before it needs room again */
    uint64_t arrived_ns;
    void *context;     /* the handler's */
    bool is_whole;     /* the handler has it */
    bool is_leaving;   /* its connection is gone */
    bool is_suspended; /* nobody of the server looks at it */
    bool is_resumed;   /* and now it is a thread's turn to */
    struct http_exchange *next_ready;
    bool is_answered;
    void (*then)(void *ctx, http_exchange *x); /* answers it, or NULL */
    void *then_ctx;
    bool is_refused; /* over a limit: the rest of its bytes is thrown away */
    int code;
    const char *type;
    int n_headers;
    buf answer;
    http_stream *stream;
    answer_header header[MAX_ANSWER_HEADERS]; /* the last: it need not be zeroed */
};

/* Shared by its writer and libmicrohttpd; the last one to leave frees it. */
struct http_stream {
    pthread_mutex_t lock;
    struct MHD_Connection *connection;
    buf waiting;
    size_t taken; /* of waiting, sent already */
    int fd;
    bool is_suspended, is_closed, is_gone;
};

struct http_server {
    http_settings set;
    struct MHD_Daemon *daemon[HTTP_MAX_THREADS];
    http_sockets at;
    int n_daemons;
    bool has_each_core; /* as many threads as cores */
    pthread_mutex_t lock;
    int n_prompt; /* threads that have seen a connection */
    peer peers;   /* head of a ring */
    int64_t n_open, n_accepted, n_unanswered;
    bool is_closing; /* answers close their connections */
    /* Exchanges that can go on: as many as are resumed at a time, the others in order. */
    int n_resumed;
    http_exchange *first_ready, *last_ready;
    bool has_reaper, is_stopping;
    pthread_cond_t wake;
    pthread_t reaper;
};

/* http_peers.c: the list of connections and their deadlines. */
void http_set_phase(http_server *h, peer *p, phase at);
bool http_hold(http_server *h, peer *p, size_t n_bytes);
void http_refuse_at_socket(peer *p, int code, const char *words, const char *remedy);
void http_on_connection(void *context, struct MHD_Connection *c, void **socket_context,
                        enum MHD_ConnectionNotificationCode what);
void *http_on_request_line(void *context, const char *uri, struct MHD_Connection *c);
uint64_t http_waited_ns(const peer *p);
peer *http_peer_of(struct MHD_Connection *c);
void *http_reap(void *server); /* the reaper's thread */
void http_end_idle(http_server *h);

/* Marks the exchange answered, and lets the server's thread go on with it. */
void http_finish_answer(http_exchange *x);

/* http_stream.c: the body of a streamed answer. */
ssize_t http_stream_read(void *stream, uint64_t position, char *out, size_t max);
void http_stream_leave(void *stream);
#endif

#endif
