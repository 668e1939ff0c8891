/* An HTTP server on libmicrohttpd, which only this file and http_peers.c know.
 *
 * Each thread of the server is a daemon of its own on a listening socket of its own; the kernel
 * spreads connections over them.  An exchange whose handler returns without an answer is suspended;
 * the answer resumes it.  libmicrohttpd's own time-out is for inactivity and starts again with
 * every byte, so a reaper checks total deadlines: a connection that is still sending when its
 * deadline passes gets 408 written to its socket, which is then shut down.  One lock guards the
 * list of connections and the state of each exchange; it is held for a few instructions, or for
 * a write that does not block. */
#include "serve/http/http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/machine.h"
#include "serve/http/http_int.h"

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool http_decode(const char *from, size_t n, bool is_query, char *out, size_t out_bytes) {
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        char c = from[i];
        if (c == '+' && is_query) c = ' ';
        if (c == '%') {
            int high = i + 2 < n ? hex_digit(from[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(from[i + 2]) : -1;
            if (low < 0) return false;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (c == '\0' || length + 1 >= out_bytes) return false;
        out[length++] = c;
    }
    out[length] = '\0';
    return true;
}

http_settings http_default_settings(void) {
    return (http_settings){.host = "127.0.0.1",
                           .port = 8080,
                           .max_connections = 4096,
                           .max_per_address = 1024,
                           .max_header_bytes = 16 << 10,
                           .max_body_bytes = 8 << 20,
                           .header_ms = 5000,
                           .body_ms = 10000,
                           .idle_ms = 60000,
                           .answer_ms = 30000,
                           .max_held_bytes = 256 << 20};
}

#ifdef HSTU_HAS_MICROHTTPD
enum {
    CONNECTION_BYTES = 32 << 10, /* read buffer and headers of a connection */
    MOST_RESUMED = 2,            /* exchanges of a thread */
    STREAM_BYTES = 256 << 10,    /* unread, at most */
    QUIET_NS = 2000000,          /* without a request: the next one is probably alone, too */
    RECENT_NS = 5000000,         /* since a request came: its client is taken to be there still */
    MAX_ANSWER_HEADERS = 8,
    HEADER_VALUE_BYTES = 320
};

typedef struct answer_header {
    const char *name; /* a constant */
    char value[HEADER_VALUE_BYTES];
} answer_header;

typedef struct exchange {
    http_exchange x; /* the first: what the handler sees */
    http_server *server;
    struct MHD_Connection *connection;
    peer *from;
    buf body;
    size_t body_room;  /* bytes that the body may grow to before it needs room again */
    bool is_whole;     /* the handler has it */
    bool is_suspended; /* no thread of the server looks at it */
    bool is_resumed;   /* and now it is a thread's turn to */
    struct exchange *next_ready;
    bool is_answered;
    void (*then)(void *ctx); /* answers it, or NULL */
    void *then_ctx;
    bool is_refused; /* over a limit: the rest of its bytes is thrown away */
    int code;
    const char *type;
    int n_headers;
    buf answer;
    http_stream *stream;
    answer_header header[MAX_ANSWER_HEADERS]; /* the last: it need not be zeroed */
} exchange;

/* Shared by its writer and libmicrohttpd; the last one to leave frees it. */
struct http_stream {
    pthread_mutex_t lock;
    struct MHD_Connection *connection;
    buf waiting;
    size_t taken; /* of waiting, sent already */
    int fd;
    bool is_suspended, is_closed, is_gone;
};

static exchange *inside(const http_exchange *x) {
    return (exchange *)x;
}

const char *http_library_version(void) {
    return MHD_get_version();
}

/* Paths and parameters stay as they were sent; http_decode decodes a part of a path at a time. */
static size_t keep_escapes(void *context, struct MHD_Connection *c, char *text) {
    return strlen(text);
}

const char *http_query(const http_exchange *x, const char *name) {
    return MHD_lookup_connection_value(inside(x)->connection, MHD_GET_ARGUMENT_KIND, name);
}

typedef struct name_search {
    const char *names, *other;
} name_search;

static enum MHD_Result find_other(void *context, enum MHD_ValueKind kind, const char *name,
                                  const char *value) {
    name_search *s = context;
    size_t n = strlen(name);
    for (const char *at = s->names; *at != '\0'; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == n && memcmp(at, name, n) == 0) return MHD_YES;
    s->other = name;
    return MHD_NO;
}

const char *http_query_other(const http_exchange *x, const char *names) {
    name_search s = {names, NULL};
    MHD_get_connection_values(inside(x)->connection, MHD_GET_ARGUMENT_KIND, find_other, &s);
    return s.other;
}

const char *http_header(const http_exchange *x, const char *name) {
    return MHD_lookup_connection_value(inside(x)->connection, MHD_HEADER_KIND, name);
}

void http_peer(const http_exchange *x, char text[HTTP_ADDRESS_BYTES]) {
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(inside(x)->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const void *address = NULL;
    text[0] = '\0';
    if (i == NULL || i->client_addr == NULL) return;
    int family = i->client_addr->sa_family;
    if (family == AF_INET) address = &((const struct sockaddr_in *)i->client_addr)->sin_addr;
    if (family == AF_INET6) address = &((const struct sockaddr_in6 *)i->client_addr)->sin6_addr;
    if (address != NULL && inet_ntop(family, address, text, HTTP_ADDRESS_BYTES) == NULL)
        text[0] = '\0';
}

bool http_is_cancelled(const http_exchange *x) {
    if (clock_ns() - x->arrived_ns < RECENT_NS) return false;
    struct pollfd p = {.fd = inside(x)->from->fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void http_set_header(http_exchange *of, const char *name, const char *value) {
    exchange *x = inside(of);
    if (x->n_headers == MAX_ANSWER_HEADERS) return;
    answer_header *h = &x->header[x->n_headers++];
    h->name = name;
    snprintf(h->value, sizeof h->value, "%s", value);
}

/* A thread of the library goes through all connections that are resumed before it looks at its
 * sockets again.  The answers of a batch come at once, and new requests, most of which are refused
 * under overload, would wait for all of them: so only a few at a time are resumed, and each one
 * that is done resumes the next; so does each new request, or answers would wait for as many
 * refusals as there are connections.  All under the lock. */
static void resume_now(http_server *h, exchange *x) {
    h->n_resumed++;
    x->is_resumed = true;
    MHD_resume_connection(x->connection);
}

static void resume(http_server *h, exchange *x) {
    if (!x->is_suspended) return;
    x->is_suspended = false;
    if (h->n_resumed < MOST_RESUMED * h->n_daemons || h->is_stopping) {
        resume_now(h, x);
        return;
    }
    x->next_ready = NULL;
    *(h->first_ready != NULL ? &h->last_ready->next_ready : &h->first_ready) = x;
    h->last_ready = x;
}

static void resume_next(http_server *h) {
    exchange *x = h->first_ready;
    if (x == NULL) return;
    h->first_ready = x->next_ready;
    resume_now(h, x);
}

/* The exchange has had its turn, or its connection is closed. */
static void end_turn(http_server *h, exchange *x) {
    if (!x->is_resumed) return;
    x->is_resumed = false;
    h->n_resumed--;
    if (h->n_resumed < MOST_RESUMED * h->n_daemons || h->is_stopping) resume_next(h);
}

/* Marks the exchange answered, and lets the server's thread continue with it. */
static void finish_answer(exchange *x) {
    http_server *h = x->server;
    pthread_mutex_lock(&h->lock);
    h->n_unanswered--;
    x->is_answered = true;
    resume(h, x);
    pthread_mutex_unlock(&h->lock);
}

void http_respond(http_exchange *of, int code, const char *type, buf *body) {
    exchange *x = inside(of);
    x->code = code;
    x->type = type;
    x->answer = *body;
    *body = (buf){0};
    finish_answer(x);
}

void http_continue(http_exchange *of, void (*fn)(void *ctx), void *ctx) {
    exchange *x = inside(of);
    http_server *h = x->server;
    pthread_mutex_lock(&h->lock);
    x->then = fn;
    x->then_ctx = ctx;
    resume(h, x);
    pthread_mutex_unlock(&h->lock);
}

/* Streams: what a writer adds waits in memory until libmicrohttpd asks for it. */

http_stream *http_respond_stream(http_exchange *of, const char *type) {
    exchange *x = inside(of);
    http_stream *s;
    buf none = {0};
    if (MEM_NEW(&s, 1) != OK) {
        http_respond(of, 503, "application/json", &none);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    s->connection = x->connection;
    s->fd = x->from->fd;
    x->stream = s;
    x->code = 200;
    x->type = type;
    finish_answer(x);
    return s;
}

/* Waits for more where there is none: the connection sleeps until a write resumes it. */
static ssize_t stream_read(void *context, uint64_t position, char *out, size_t max) {
    http_stream *s = context;
    pthread_mutex_lock(&s->lock);
    size_t n = s->waiting.n_bytes - s->taken;
    if (n > max) n = max;
    if (n > 0) memcpy(out, s->waiting.data + s->taken, n);
    s->taken += n;
    if (s->taken == s->waiting.n_bytes) {
        buf_clear(&s->waiting);
        s->taken = 0;
    }
    bool is_end = n == 0 && s->is_closed;
    if (n == 0 && !is_end) {
        s->is_suspended = true;
        MHD_suspend_connection(s->connection);
    }
    pthread_mutex_unlock(&s->lock);
    return is_end ? MHD_CONTENT_READER_END_OF_STREAM : (ssize_t)n;
}

static void stream_resume(http_stream *s) {
    if (s->is_suspended) MHD_resume_connection(s->connection);
    s->is_suspended = false;
}

/* Ends the share of the writer or of libmicrohttpd: sets its flag. */
static void stream_end(http_stream *s, bool *own) {
    pthread_mutex_lock(&s->lock);
    *own = true;
    bool is_last = s->is_closed && s->is_gone;
    if (!is_last && s->is_closed) stream_resume(s);
    pthread_mutex_unlock(&s->lock);
    if (!is_last) return;
    pthread_mutex_destroy(&s->lock);
    buf_fini(&s->waiting);
    mem_free(s);
}

static void stream_leave(void *context) {
    http_stream *s = context;
    stream_end(s, &s->is_gone);
}

bool http_stream_write(http_stream *s, const char *text, size_t n) {
    pthread_mutex_lock(&s->lock);
    bool is_good = !s->is_gone && s->waiting.n_bytes - s->taken + n <= STREAM_BYTES &&
                   buf_append(&s->waiting, text, n) == OK;
    /* A reader that is too slow would hold its connection and what waits for as long as it likes.
     * The library closes the socket after it has left the stream. */
    if (!is_good && !s->is_gone) shutdown(s->fd, SHUT_RDWR);
    if (is_good) stream_resume(s);
    pthread_mutex_unlock(&s->lock);
    return is_good;
}

void http_stream_close(http_stream *s) {
    if (s != NULL) stream_end(s, &s->is_closed);
}

static struct MHD_Response *make_response(exchange *x) {
    if (x->stream != NULL) {
        struct MHD_Response *s = MHD_create_response_from_callback(
            MHD_SIZE_UNKNOWN, 16 << 10, stream_read, x->stream, stream_leave);
        if (s != NULL) x->stream = NULL; /* its share is the response's now */
        return s;
    }
    struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback(
        x->answer.n_bytes, x->answer.data, mem_free);
    if (r != NULL) x->answer = (buf){0}; /* it frees the text */
    return r;
}

/* Bounds the memory of answers that their clients have not read yet. */
static void fit_answer(exchange *x) {
    http_server *h = x->server;
    buf_fini(&x->body);
    if (http_hold(h, x->from, x->answer.n_bytes)) return;
    buf_fini(&x->answer);
    x->code = 503;
    x->type = "application/json";
    (void)buf_text(&x->answer, "{\"error\":\"too many large answers are unread; read them, ask for "
                               "less, or raise --max-buffered\"}\n");
    if (h->set.refused != NULL) h->set.refused(h->set.ctx, 503);
}

static enum MHD_Result send_answer(exchange *x) {
    bool is_stream = x->stream != NULL;
    fit_answer(x);
    x->from->n_sending = x->answer.n_bytes;
    struct MHD_Response *r = make_response(x);
    if (r == NULL) return MHD_NO;
    if (!is_stream) http_set_phase(x->from, SENDS_ANSWER);
    if (x->type != NULL) MHD_add_response_header(r, "Content-Type", x->type);
    if (x->server->is_closing || x->is_refused) MHD_add_response_header(r, "Connection", "close");
    for (int i = 0; i < x->n_headers; i++)
        MHD_add_response_header(r, x->header[i].name, x->header[i].value);
    enum MHD_Result done = MHD_queue_response(x->connection, (unsigned)x->code, r);
    MHD_destroy_response(r);
    return done;
}

/* What the headers of a request say about its size and its form. */
typedef struct {
    size_t n_bytes;
    int n_lengths, n_hosts;                   /* headers that tell where the body ends; Host */
    const char *length, *encoding, *transfer; /* of the last such header; NULL: none */
    bool is_malformed;
} header_facts;

/* Names are tokens (RFC 9110, 5.6.2) and values have no control characters: a proxy may read a
 * header differently whose name ends with a blank, or whose value has a CR. */
static bool is_well_formed(const char *key, const char *value) {
    static const char others[] = "!#$%&'*+-.^_`|~";
    const char *c = key;
    while (isalnum((unsigned char)*c) || (*c != '\0' && strchr(others, *c) != NULL))
        c++;
    if (c == key || *c != '\0') return false;
    for (c = value != NULL ? value : ""; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' && *c != '\t') return false;
    return true;
}

static enum MHD_Result add_header(void *context, enum MHD_ValueKind kind, const char *key,
                                  const char *value) {
    header_facts *f = context;
    bool is_length = strcasecmp(key, "Content-Length") == 0;
    bool is_transfer = strcasecmp(key, "Transfer-Encoding") == 0;
    f->n_bytes += strlen(key) + (value != NULL ? strlen(value) : 0) + 4;
    if (is_length) f->length = value;
    if (is_transfer) f->transfer = value;
    if (strcasecmp(key, "Content-Encoding") == 0) f->encoding = value;
    f->n_lengths += is_length || is_transfer;
    f->n_hosts += strcasecmp(key, "Host") == 0;
    f->is_malformed = f->is_malformed || !is_well_formed(key, value);
    return MHD_YES;
}

/* Refuses a request whose headers have arrived. */
static enum MHD_Result refuse(exchange *x, int code, const char *why) {
    if (x->server->set.refused != NULL) x->server->set.refused(x->server->set.ctx, code);
    x->is_refused = true;
    x->code = code;
    x->type = "application/json";
    if (buf_printf(&x->answer, "{\"error\":\"%s\"}\n", why) != OK) return MHD_NO;
    return send_answer(x);
}

/* Why a proxy and the library may disagree about the end of the request: the rest of the bytes
 * would be a second request, which was never checked (request smuggling).  NULL: it is plain. */
static const char *find_ambiguity(const header_facts *f, const char *version) {
    if (f->is_malformed)
        return "a header is malformed: its name is followed by a colon at once, and its value has "
               "no control characters";
    if (f->n_lengths > 1)
        return "the body's length is said twice; send one Content-Length, or chunks";
    if (f->n_hosts > 1) return "there is more than one Host header";
    if (f->transfer == NULL) return NULL;
    if (strcasecmp(f->transfer, "chunked") != 0)
        return "Transfer-Encoding: chunked is the only one that is read";
    return strcmp(version, "HTTP/1.0") == 0 ? "HTTP/1.0 has no chunks; send Content-Length" : NULL;
}

/* `begin` may answer a request without its body.  The connection ends where one would
 * follow; else the library would end it, too, for an answer that is queued here, and it is queued
 * with the end of the request. */
static enum MHD_Result ask_begin(exchange *x, bool has_body) {
    http_server *h = x->server;
    h->n_unanswered++;
    h->set.begin(h->set.ctx, &x->x);
    x->is_refused = x->is_answered && has_body;
    if (x->is_refused) return send_answer(x);
    h->n_unanswered -= !x->is_answered;
    return MHD_YES;
}

/* The headers are whole: the limits that can be checked now. */
static enum MHD_Result begin_request(exchange *x, const char *version) {
    http_server *h = x->server;
    header_facts f = {.n_bytes = strlen(x->x.path) + strlen(x->x.method)};
    char why[160];
    http_set_phase(x->from, READS_BODY);
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, add_header, &f);
    if (f.n_bytes > h->set.max_header_bytes) {
        snprintf(why, sizeof why, "the headers have more than %zu bytes", h->set.max_header_bytes);
        return refuse(x, 431, why);
    }
    const char *ambiguity = find_ambiguity(&f, version);
    if (ambiguity != NULL) return refuse(x, 400, ambiguity);
    if (f.encoding != NULL && strcasecmp(f.encoding, "identity") != 0)
        return refuse(x, 415,
                      "compressed bodies are not supported; send it without Content-Encoding");
    unsigned long long n_body = f.length != NULL ? strtoull(f.length, NULL, 10) : 0;
    if (n_body > h->set.max_body_bytes) {
        snprintf(why, sizeof why, "the body has more than %zu bytes; send less in one request",
                 h->set.max_body_bytes);
        return refuse(x, 413, why);
    }
    x->body_room = SMALL_BYTES;
    /* Without memory the body itself is refused. */
    if (n_body > 0) (void)buf_reserve(&x->body, n_body < SMALL_BYTES ? n_body : SMALL_BYTES);
    return h->set.begin != NULL ? ask_begin(x, n_body > 0 || f.transfer != NULL) : MHD_YES;
}

/* Room for a body grows with what has come, not with what was announced. */
static bool has_room(exchange *x, size_t n) {
    size_t room = x->body_room, most = x->server->set.max_body_bytes;
    if (n <= room) return true;
    while (room < n)
        room *= 2;
    x->body_room = room < most ? room : most;
    return http_hold(x->server, x->from, x->body_room);
}

/* Some of the body.  A length that was not announced is found out here. */
static void add_body(exchange *x, const char *bytes, size_t n) {
    http_server *h = x->server;
    if (x->is_refused) return;
    bool is_long = n > h->set.max_body_bytes - x->body.n_bytes;
    if (!is_long && has_room(x, x->body.n_bytes + n) && buf_append(&x->body, bytes, n) == OK)
        return;
    x->is_refused = true;
    buf_fini(&x->body);
    pthread_mutex_lock(&h->lock);
    if (is_long)
        http_refuse_at_socket(x->from, 413, "Content Too Large", "the body is too long; send less");
    else
        http_refuse_at_socket(x->from, 503, "Service Unavailable",
                              "no memory for more large bodies; send less or retry later");
    pthread_mutex_unlock(&h->lock);
    if (h->set.refused != NULL) h->set.refused(h->set.ctx, is_long ? 413 : 503);
}

/* Sends the answer, or waits for it.  What continues the exchange may have it wait once more. */
static enum MHD_Result go_on(exchange *x) {
    http_server *h = x->server;
    for (;;) {
        pthread_mutex_lock(&h->lock); /* whoever answered has left it */
        end_turn(h, x);
        void (*then)(void *ctx) = x->then;
        bool is_answered = x->is_answered, is_ready = is_answered || then != NULL;
        x->then = NULL;
        if (!is_ready) {
            x->is_suspended = true;
            MHD_suspend_connection(x->connection);
        }
        pthread_mutex_unlock(&h->lock);
        if (is_answered) return send_answer(x);
        if (!is_ready) return MHD_YES;
        then(x->then_ctx);
    }
}

/* The request is whole: the handler has it until it is answered. */
static enum MHD_Result pass_on(exchange *x) {
    http_server *h = x->server;
    pthread_mutex_lock(&h->lock);
    x->from->at = IS_HANDLED;
    x->x.is_lone = h->n_unanswered == 0 &&
                   (h->last_from == x->from || x->x.arrived_ns > h->last_ns + QUIET_NS);
    h->last_from = x->from;
    h->last_ns = x->x.arrived_ns;
    bool is_lost = x->from->is_shut || x->is_refused;
    h->n_unanswered += !is_lost && !x->is_answered;
    resume_next(h);
    pthread_mutex_unlock(&h->lock);
    if (is_lost) return MHD_NO;
    if (x->is_answered) return send_answer(x);
    x->is_whole = true;
    x->x.body = buf_str(&x->body);
    x->x.n_body = x->body.n_bytes;
    h->set.handle(h->set.ctx, &x->x);
    return go_on(x);
}

/* libmicrohttpd calls this for the headers, for each piece of the body, for its end, and once more
 * when a suspended exchange was resumed. */
static enum MHD_Result on_access(void *context, struct MHD_Connection *c, const char *url,
                                 const char *method, const char *version, const char *data,
                                 size_t *n_data, void **request) {
    http_server *h = context;
    exchange *x = *request;
    if (x == NULL) {
        peer *p = http_peer_of(c);
        if (p == NULL || MEM_NEW_RAW(&x, 1) != OK) return MHD_NO;
        memset(x, 0, offsetof(exchange, header));
        x->server = h;
        x->connection = c;
        x->from = p;
        x->x.method = method;
        x->x.path = url;
        x->x.body = "";
        x->x.arrived_ns = clock_ns() - http_waited_ns(p);
        *request = x;
        return begin_request(x, version);
    }
    if (*n_data > 0) {
        add_body(x, data, *n_data);
        *n_data = 0;
        return MHD_YES;
    }
    return x->is_whole ? go_on(x) : pass_on(x);
}

static void on_completed(void *context, struct MHD_Connection *c, void **request,
                         enum MHD_RequestTerminationCode how) {
    http_server *h = context;
    exchange *x = *request;
    if (x == NULL) return;
    if (x->is_resumed) {
        pthread_mutex_lock(&h->lock);
        end_turn(h, x);
        pthread_mutex_unlock(&h->lock);
    }
    /* A client that disconnected while it waited: what holds the exchange must still release it. */
    x->x.is_leaving = true;
    if (x->is_whole && !x->is_answered && x->then != NULL) x->then(x->then_ctx);
    if (!x->is_whole && x->x.context != NULL && h->set.gone != NULL) h->set.gone(h->set.ctx, &x->x);
    if (x->stream != NULL) stream_leave(x->stream);
    (void)http_hold(h, x->from, 0);
    http_set_phase(x->from, IS_IDLE);
    buf_fini(&x->body);
    buf_fini(&x->answer);
    mem_free(x);
    *request = NULL;
}

static void say_nothing(void *context, const char *format, va_list values) {
}

/* A thread's share of a limit.  The kernel spreads connections by chance: a sixteenth more, so that
 * as many as the limit find a place. */
static unsigned share_of(const http_server *h, int limit) {
    return h->n_daemons == 1 ? (unsigned)limit : (unsigned)(limit / h->n_daemons + limit / 16 + 1);
}

static status start_daemon(http_server *h, int i) {
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_TURBO |
                     MHD_USE_ERROR_LOG;
    const http_settings *s = &h->set;
    h->daemon[i] = MHD_start_daemon(
        flags, (uint16_t)h->port, NULL, NULL, on_access, h, MHD_OPTION_EXTERNAL_LOGGER, say_nothing,
        NULL, MHD_OPTION_LISTEN_SOCKET, h->fd[i], MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_NOTIFY_CONNECTION, http_on_connection, h, MHD_OPTION_URI_LOG_CALLBACK,
        http_on_request_line, h, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL,
        MHD_OPTION_CONNECTION_LIMIT, share_of(h, s->max_connections),
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, share_of(h, s->max_per_address),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
#if MHD_VERSION >= 0x00097600
        MHD_OPTION_CLIENT_DISCIPLINE_LVL, 1,
#else
        MHD_OPTION_STRICT_FOR_CLIENT, 1,
#endif
        MHD_OPTION_END);
    if (h->daemon[i] == NULL)
        return fail(ERR_IO, "libmicrohttpd could not start on port %d", h->port);
    return OK;
}

/* Where there are few cores, threads that compute have them too.  Of two threads each has enough to
 * do for half of its share, and so runs as soon as a request comes; one alone would need more than
 * its share under overload, and wait for a core with all that it could refuse. */
static void choose_n_daemons(http_server *h, int wanted) {
    machine m;
    machine_ask(&m);
    if (wanted == 0) {
        wanted = m.n_usable_cores / 4;
        if (wanted < 2 && m.n_usable_cores > 1) wanted = 2;
    }
    h->n_daemons = wanted < 1 ? 1 : wanted > HTTP_MAX_THREADS ? HTTP_MAX_THREADS : wanted;
    h->has_each_core = h->n_daemons > 1 && h->n_daemons == m.n_usable_cores;
}

static status start(http_server *h) {
    TRY(http_listen(h));
    for (int i = 0; i < h->n_daemons; i++)
        TRY(start_daemon(h, i));
    if (pthread_create(&h->reaper, NULL, http_reap, h) != 0)
        return fail(ERR_IO, "a thread cannot be started");
    h->has_reaper = true;
    return OK;
}

status http_start(http_server **out, const http_settings *s) {
    http_server *h;
    *out = NULL;
    TRY(MEM_NEW(&h, 1));
    h->set = *s;
    choose_n_daemons(h, s->n_threads);
    h->peers.next = h->peers.previous = &h->peers;
    memset(h->fd, -1, sizeof h->fd);
    pthread_mutex_init(&h->lock, NULL);
    cond_init(&h->wake);
    http_fit_descriptors(&h->set);
    status st = start(h);
    return CREATED(st, out, h, http_stop);
}

int http_port(const http_server *h) {
    return h->port;
}

http_stats http_get_stats(http_server *h) {
    pthread_mutex_lock(&h->lock);
    http_stats s = {h->n_open, h->n_accepted, h->n_unanswered};
    pthread_mutex_unlock(&h->lock);
    return s;
}

void http_stop_accepting(http_server *h) {
    pthread_mutex_lock(&h->lock);
    bool is_first = !h->is_closing;
    h->is_closing = true;
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < h->n_daemons && is_first; i++)
        if (h->daemon[i] != NULL) MHD_quiesce_daemon(h->daemon[i]);
}

void http_stop(http_server *h) {
    if (h == NULL) return;
    http_stop_accepting(h);
    pthread_mutex_lock(&h->lock);
    h->is_stopping = true;
    while (h->first_ready != NULL)
        resume_next(h); /* the library stops without suspended connections only */
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    if (h->has_reaper) pthread_join(h->reaper, NULL);
    http_end_idle(h);
    for (int i = 0; i < h->n_daemons; i++)
        if (h->daemon[i] != NULL) MHD_stop_daemon(h->daemon[i]);
    for (int i = 0; i < HTTP_MAX_THREADS; i++)
        if (h->fd[i] >= 0) close(h->fd[i]);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    mem_free(h);
}

#else
/* A build without libmicrohttpd: without a server there is no exchange and no stream. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define NEVER(...)                                                                                 \
    __VA_ARGS__ {                                                                                  \
        abort();                                                                                   \
    }

const char *http_library_version(void) {
    return NULL;
}

status http_start(http_server **out, const http_settings *s) {
    *out = NULL;
    return fail(ERR_UNSUPPORTED, "this build has no HTTP server; install libmicrohttpd "
                                 "(apt-get install libmicrohttpd-dev), then make");
}

void http_stop(http_server *h) {
}

NEVER(int http_port(const http_server *h));
NEVER(http_stats http_get_stats(http_server *h));
NEVER(void http_stop_accepting(http_server *h));
NEVER(const char *http_query(const http_exchange *x, const char *name));
NEVER(const char *http_query_other(const http_exchange *x, const char *names));
NEVER(const char *http_header(const http_exchange *x, const char *name));
NEVER(void http_peer(const http_exchange *x, char text[HTTP_ADDRESS_BYTES]));
NEVER(bool http_is_cancelled(const http_exchange *x));
NEVER(void http_set_header(http_exchange *x, const char *name, const char *value));
NEVER(void http_respond(http_exchange *x, int code, const char *type, buf *body));
NEVER(void http_continue(http_exchange *x, void (*fn)(void *ctx), void *ctx));
NEVER(http_stream *http_respond_stream(http_exchange *x, const char *type));
NEVER(bool http_stream_write(http_stream *s, const char *text, size_t n));
NEVER(void http_stream_close(http_stream *s));
#endif
