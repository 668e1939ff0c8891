/* HTTP: the seam over libmicrohttpd, which no other file knows.
 *
 * A server accepts connections on its own threads, reads one request at a time from each, whole,
 * within limits, and passes it to a handler as an exchange.  The handler (on a thread of the
 * server) or any thread it hands the exchange to answers it once, now or later.  What breaks a
 * limit never reaches the handler: headers over 16 KiB are answered 431, a body over its limit 413,
 * a request that takes longer than its deadline from the first to the last byte 408.  Bodies and
 * answers over 64 KiB are bounded together, for all clients and for each address: what does not fit
 * is answered 503.  A client that does not read its answer is disconnected.
 *
 * Without libmicrohttpd http_start fails and says what to install. */
#pragma once

#include "base/base.h"

typedef struct http_server http_server;
typedef struct http_stream http_stream;

enum { HTTP_ADDRESS_BYTES = 64 };

/* A request on its way to its answer; its texts live until it is answered.  The path is as it was
 * sent, with its percent signs. */
typedef struct http_exchange {
    const char *method, *path;
    const char *body; /* (n_body), and a NUL; when the request is whole */
    size_t n_body;
    /* clock_ns() when its headers came, also where they waited in the socket, to about a tick of
     * the kernel. */
    uint64_t arrived_ns;
    bool is_leaving; /* the client has disconnected: answer now */
    /* No other request is unanswered, and the last one came on the same connection or a while ago.
     */
    bool is_lone;
    void *context; /* the handler's own, from begin to handle */
} http_exchange;

typedef struct http_settings {
    const char *host; /* a name or an address to listen on */
    int port;         /* 0: any that is free */
    int n_threads;    /* 0: by the cores, one for each four, two to eight */
    int max_connections, max_per_address;
    size_t max_header_bytes; /* of the request line and all headers; at most 24 KiB */
    size_t max_body_bytes;
    int header_ms, body_ms; /* from the first to the last byte; a new connection sends at once */
    int idle_ms;            /* a connection without a request is closed after this time */
    int answer_ms;          /* to read an answer, and as long again for each 2 MiB of it */
    size_t max_held_bytes;  /* bodies and answers over 64 KiB; one address has half of it */
    /* The headers of a request have come and are good: may answer it before its body is read.  May
     * be NULL. */
    void (*begin)(void *ctx, http_exchange *x);
    /* One whole request; it must be answered, by any thread, once. */
    void (*handle)(void *ctx, http_exchange *x);
    /* A request that begin left unanswered ended before it was whole.  May be NULL. */
    void (*gone)(void *ctx, http_exchange *x);
    /* A request that was refused here: 400, 408, 413, 415, 431 or 503.  May be NULL. */
    void (*refused)(void *ctx, int code);
    void *ctx;
} http_settings;

/* Defaults for all but host, port and the functions. */
http_settings http_default_settings(void);

typedef struct http_stats {
    int64_t n_open;       /* connections now */
    int64_t n_accepted;   /* since the start */
    int64_t n_unanswered; /* exchanges with the handler */
} http_stats;

/* ERR_IO where the address cannot be had, ERR_UNSUPPORTED without libmicrohttpd. */
status http_start(http_server **out, const http_settings *s);
int http_port(const http_server *h);
http_stats http_get_stats(http_server *h);

/* Accepts no new connection, and closes each one after its answer; running requests continue. */
void http_stop_accepting(http_server *h);

/* Closes everything.  All exchanges must be answered and all streams closed.  NULL is fine. */
void http_stop(http_server *h);

/* The version of libmicrohttpd; NULL: not in this build. */
const char *http_library_version(void);

/* A parameter of the query, as it was sent, or a header of the request; NULL: it is not there. */
const char *http_query(const http_exchange *x, const char *name);
const char *http_header(const http_exchange *x, const char *name);

/* A parameter of the query that is none of `names`, which spaces separate; NULL: there is none. */
const char *http_query_other(const http_exchange *x, const char *names);
void http_peer(const http_exchange *x, char text[HTTP_ADDRESS_BYTES]);

/* Whether the client has disconnected: ask before work that takes long. */
bool http_is_cancelled(const http_exchange *x);

/* A header of the answer; before http_respond.  Lack of memory leaves it out. */
void http_set_header(http_exchange *x, const char *name, const char *value);

/* Answers; takes over the body's memory (the caller is left an empty one).  The exchange is
 * gone afterwards. */
void http_respond(http_exchange *x, int code, const char *type, buf *body);

/* Has fn answer it, on a thread of the server, also if the client has disconnected: for threads
 * that must not spend time on the text of an answer.  The caller must not touch the exchange
 * afterwards. fn may have the exchange wait for another http_continue, unless it is_leaving. */
void http_continue(http_exchange *x, void (*fn)(void *ctx), void *ctx);

/* Answers with a stream that stays open until it is closed, such as server-sent events; *out
 * belongs to the caller.  NULL for lack of memory: the exchange is answered 503 then. */
http_stream *http_respond_stream(http_exchange *x, const char *type);

/* Adds to the stream.  False: the client has disconnected or does not read; close it then. */
bool http_stream_write(http_stream *s, const char *text, size_t n);
void http_stream_close(http_stream *s); /* the caller's share; NULL is fine */

/* Decodes percent signs (and plus signs as blanks, where asked) in place of a copy: n bytes of
 * `from` into `out` (out_bytes, with a NUL).  False: a bad escape, a NUL or too long. */
bool http_decode(const char *from, size_t n, bool is_query, char *out, size_t out_bytes);
