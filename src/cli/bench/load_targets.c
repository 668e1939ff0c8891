/* The targets of a load: an engine in this process, and a server over HTTP. */
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>

#include "base/machine.h"
#include "cli/bench/load.h"
#include "serve/http/request.h"

/* An engine in this process: the engine's threads answer.  In an open loop one thread sends; in a
 * closed one as many clients ask at once as cores allow, as they would ask a server's threads. */

enum { MAX_FLIGHTS = 4096, MAX_SENDERS = 8 };

typedef struct engine_target engine_target;

/* A request on its way; its answer must stay until it is done. */
typedef struct flight {
    engine_answer answer;
    engine_target *target;
    load_outcome *out;
    struct flight *next; /* of those that are free */
} flight;

struct engine_target {
    load_target target;
    engine *e;
    pthread_mutex_t lock;
    pthread_cond_t is_back;
    flight *flights, *idle;
    int n_flights, n_idle;
    int n_takers; /* threads that wait for a flight */
};

static flight *take_flight(engine_target *t) {
    pthread_mutex_lock(&t->lock);
    t->n_takers++;
    while (t->idle == NULL)
        pthread_cond_wait(&t->is_back, &t->lock);
    t->n_takers--;
    flight *f = t->idle;
    t->idle = f->next;
    t->n_idle--;
    pthread_mutex_unlock(&t->lock);
    return f;
}

static void note_failure(load_target *t, const char *text) {
    if (t->error[0] == '\0') snprintf(t->error, sizeof t->error, "%.200s", text);
}

static void give_back(engine_target *t, flight *f) {
    pthread_mutex_lock(&t->lock);
    if (f->out->kind == LOAD_FAILED) note_failure(&t->target, f->answer.error);
    f->next = t->idle;
    t->idle = f;
    t->n_idle++;
    /* Nobody is woken in vain: this thread has other answers to give. */
    if (t->n_takers > 0 || t->n_idle == t->n_flights) pthread_cond_signal(&t->is_back);
    pthread_mutex_unlock(&t->lock);
}

static load_kind kind_of(engine_outcome outcome) {
    switch (outcome) {
    case ENGINE_OK:
        return LOAD_OK;
    case ENGINE_OVERLOAD:
    case ENGINE_CLOSING:
        return LOAD_REFUSED;
    case ENGINE_BAD:
    case ENGINE_NO_MODEL:
    case ENGINE_GONE:
    case ENGINE_FAILED:
        break;
    }
    return LOAD_FAILED;
}

static void finish(void *ctx, engine_answer *a) {
    flight *f = ctx;
    load_outcome *o = f->out;
    if (engine_make_items(a) != OK) a->outcome = ENGINE_FAILED;
    o->done_ns = o->read_ns = clock_ns();
    o->kind = kind_of(a->outcome);
    o->tokens_reused = a->tokens_reused;
    o->tokens_computed = a->tokens_computed;
    engine_answer_release(a);
    give_back(f->target, f);
}

static void sleep_until(uint64_t ns) {
    struct timespec at = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0)
        continue;
}

/* How a client asks: without waiting, on its own thread where nothing else is to be done, or so
 * that it waits for its answer. */
typedef enum { SEND_ON, SEND_OR_RUN, SEND_AND_WAIT } send_kind;

static void send_one(engine_target *t, const request_ask *r, send_kind kind, flight *f) {
    engine_request ask = r->ask;
    engine_added added;
    ask.run_ns = kind == SEND_OR_RUN ? UINT64_MAX : 0;
    status st = OK;
    f->out->sent_ns = clock_ns();
    if (f->out->intended_ns == 0) f->out->intended_ns = f->out->sent_ns;
    if (r->n_events > 0) st = engine_add_events(t->e, r->ask.user, r->events, r->n_events, &added);
    if (st == OK && kind == SEND_AND_WAIT) {
        engine_ask(t->e, &ask, &f->answer);
        finish(f, &f->answer);
        return;
    }
    if (st == OK) {
        engine_submit(t->e, &ask, &f->answer, finish, f);
        return;
    }
    f->answer = (engine_answer){.outcome = ENGINE_FAILED};
    snprintf(f->answer.error, sizeof f->answer.error, "%s", status_reason());
    finish(f, &f->answer);
}

/* Bodies are read before the clock starts: this target measures the engine, not the parser. */
static status read_bodies(const load_set *s, arena *a, request_ask **out) {
    TRY(mem_alloc((void **)out, s->n + 1, sizeof **out));
    for (size_t i = 0; i < s->n; i++) {
        const load_request *r = &s->item[i];
        status st = r->route == LOAD_RANK ? request_rank_read(a, r->body, r->n_bytes, &(*out)[i])
                    : r->route == LOAD_RECOMMEND
                        ? request_recommend_read(a, r->body, r->n_bytes, &(*out)[i])
                        : fail(ERR_UNSUPPORTED, "tensors need a --server");
        if (st != OK) return fail_prefix(st, "request %zu", i + 1);
    }
    return OK;
}

static status make_flights(engine_target *t, int n) {
    t->idle = NULL;
    TRY(MEM_NEW(&t->flights, (size_t)n));
    for (int i = 0; i < n; i++) {
        t->flights[i].target = t;
        t->flights[i].next = t->idle;
        t->idle = &t->flights[i];
    }
    t->n_idle = t->n_flights = n;
    return OK;
}

static void wait_for_all(engine_target *t) {
    pthread_mutex_lock(&t->lock);
    while (t->n_idle < t->n_flights)
        pthread_cond_wait(&t->is_back, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

/* One round of requests. */
typedef struct lockstep {
    engine_target *t;
    const load_set *s;
    const uint64_t *at; /* or NULL */
    load_outcome *out;
    request_ask *asks;
    uint64_t start;
    send_kind kind;
    atomic_int n_ready; /* senders, which begin together */
    atomic_bool has_begun;
    atomic_size_t next;
} lockstep;

/* Reads a request's events, as the thread of a server that has parsed it did. */
static void touch(const request_ask *r) {
    const volatile char *at = (const volatile char *)r->ask.history;
    for (size_t i = 0; i < r->ask.n_history * sizeof *r->ask.history; i += 64)
        (void)at[i];
}

/* Not asleep: to wake takes as long as to ask. */
static void wait_for_begin(const lockstep *r) {
    enum { LOOKS = 1 << 14 };
    for (int i = 0; !atomic_load(&r->has_begun); i++)
        i < LOOKS ? thread_pause() : (void)sched_yield();
}

/* Requests from the i-th on, the first of them in a flight that was taken for it. */
static void send_from(lockstep *r, size_t i, flight *f) {
    for (; i < r->s->n; i = atomic_fetch_add(&r->next, 1), f = NULL) {
        if (f == NULL) f = take_flight(r->t);
        f->out = &r->out[i];
        if (r->at != NULL) {
            r->out[i].intended_ns = r->start + r->at[i];
            sleep_until(r->out[i].intended_ns);
        }
        send_one(r->t, &r->asks[i], r->kind, f);
    }
}

/* The first request of a sender. */
static size_t take_first(lockstep *r, flight **f) {
    size_t i = atomic_fetch_add(&r->next, 1);
    *f = i < r->s->n ? take_flight(r->t) : NULL;
    if (i < r->s->n) touch(&r->asks[i]);
    return i;
}

static void *send_all(void *context) {
    lockstep *r = context;
    flight *f;
    size_t first = take_first(r, &f);
    atomic_fetch_add(&r->n_ready, 1);
    wait_for_begin(r);
    send_from(r, first, f);
    return NULL;
}

static int count_senders(const lockstep *r, int n_flights) {
    machine m;
    machine_ask(&m);
    int n = r->at != NULL ? 1 : m.n_usable_cores;
    n = n < n_flights ? n : n_flights;
    return n < 1 ? 1 : n < MAX_SENDERS ? n : MAX_SENDERS;
}

/* This thread is one of the senders; the others are as many as can be started. */
static void send_with(lockstep *r, int n_senders, int n_flights) {
    pthread_t thread[MAX_SENDERS];
    flight *f;
    int n = 0;
    while (n < n_senders - 1 && pthread_create(&thread[n], NULL, send_all, r) == 0)
        n++;
    r->kind = r->at != NULL ? SEND_ON : n + 1 < n_flights ? SEND_OR_RUN : SEND_AND_WAIT;
    while (atomic_load(&r->n_ready) < n)
        sched_yield();
    size_t first = take_first(r, &f);
    r->start = clock_ns();
    atomic_store(&r->has_begun, true);
    send_from(r, first, f);
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
}

static status run_engine(load_target *target, const load_set *s, const load_plan *p,
                         const uint64_t *at, load_outcome *out) {
    lockstep r = {.t = (engine_target *)target, .s = s, .at = at, .out = out};
    arena a;
    int n = at != NULL ? MAX_FLIGHTS : p->concurrency < 1 ? 1 : p->concurrency;
    arena_init(&a, 1 << 16);
    status st = read_bodies(s, &a, &r.asks);
    if (st == OK) st = make_flights(r.t, n);
    if (st == OK) {
        send_with(&r, count_senders(&r, n), n);
        wait_for_all(r.t);
    }
    mem_free(r.t->flights);
    r.t->flights = NULL;
    mem_free(r.asks);
    arena_fini(&a);
    return st;
}

static void close_engine_target(load_target *target) {
    engine_target *t = (engine_target *)target;
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->is_back);
    mem_free(t);
}

status load_target_engine(load_target **out, engine *e) {
    engine_target *t;
    *out = NULL;
    TRY(MEM_NEW(&t, 1));
    t->target = (load_target){.run = run_engine, .close = close_engine_target};
    t->e = e;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->is_back, NULL);
    *out = &t->target;
    return OK;
}

/* A server: plain sockets and HTTP/1.1, all connections on one thread, which waits for all of them
 * at once.  It often shares the machine with the server it measures: a thread for each connection
 * would take as much of the cores as the server, and send late.  An answer counts from when the
 * kernel had its last byte, which is not the server's fault where this thread reads it later. */

enum {
    HOST_BYTES = 256,
    MAX_CONNECTIONS = 1024,
    ANSWER_SECONDS = 60,
    MAX_ANSWER = 1 << 26,
    MAX_EVENTS = 64 /* of the sockets that are looked at before the clock again */
};

typedef struct http_target {
    load_target target;
    char host[HOST_BYTES], port[8], model[128];
    struct addrinfo *addresses;
} http_target;

typedef struct connection {
    int fd;         /* -1: not open */
    bool is_busy;   /* with request `item` */
    bool was_used;  /* the server may have closed it meanwhile */
    bool is_second; /* it had, and this is the second try */
    size_t item;
    buf out, in;      /* the request; what was received of the answer */
    uint64_t came_ns; /* the newest bytes of the answer */
    size_t sent;
    struct connection *next; /* of those that are idle */
} connection;

/* One round of requests. */
typedef struct http_round {
    http_target *t;
    const load_set *s;
    const uint64_t *at; /* or NULL */
    load_outcome *out;
    uint64_t start;
    size_t next, n_done;
    int events, timer; /* descriptors */
    connection *all, *idle;
    int n_all;
} http_round;

static void hang_up(connection *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->was_used = false;
}

static bool dial(const http_target *t, connection *c) {
    struct timeval limit = {.tv_sec = ANSWER_SECONDS}; /* also of connect */
    int on = 1;
    for (const struct addrinfo *a = t->addresses; a != NULL && c->fd < 0; a = a->ai_next) {
        c->fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (c->fd < 0) continue;
        setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(c->fd, a->ai_addr, a->ai_addrlen) != 0) hang_up(c);
    }
    if (c->fd < 0) return false;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(c->fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    return true;
}

/* The value of a header between the status line and the body; NULL: it is not there. */
static const char *find_header(const char *head, const char *body, const char *name) {
    size_t n = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line != NULL && line + 2 < body;
         line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, n) == 0 && line[2 + n] == ':')
            return line + 3 + n + strspn(line + 3 + n, " ");
    return NULL;
}

/* Whether a body in chunks is whole; *end is where the next answer begins. */
static bool has_chunks(const char *text, size_t n, size_t at, size_t *end) {
    for (;;) {
        char *after;
        const char *line = text + at;
        if (at >= n || strstr(line, "\r\n") == NULL) return false;
        unsigned long bytes = strtoul(line, &after, 16);
        const char *data = strstr(after, "\r\n");
        if (data == NULL || bytes > MAX_ANSWER) return false;
        at = (size_t)(data + 2 - text) + bytes + 2;
        if (at > n) return false;
        if (bytes == 0) break;
    }
    *end = at;
    return true;
}

/* The status code of the answer once all of it is there, else 0; -1: it is no HTTP. */
static int find_answer(const connection *c, size_t *body_at, bool *is_last) {
    const char *text = buf_str(&c->in), *head_end = strstr(text, "\r\n\r\n");
    if (head_end == NULL) return 0;
    size_t at = (size_t)(head_end + 4 - text), end = 0;
    const char *length = find_header(text, head_end + 2, "Content-Length");
    const char *coding = find_header(text, head_end + 2, "Transfer-Encoding");
    const char *closing = find_header(text, head_end + 2, "Connection");
    bool is_whole = coding != NULL
                        ? has_chunks(text, c->in.n_bytes, at, &end)
                        : c->in.n_bytes >= at + (length != NULL ? strtoul(length, NULL, 10) : 0);
    *body_at = at;
    *is_last = closing != NULL && strncasecmp(closing, "close", 5) == 0;
    if (!is_whole) return 0;
    int code = strncmp(text, "HTTP/1.", 7) == 0 ? atoi(text + 9) : 0;
    return code > 0 ? code : -1;
}

/* A number in the answer's text; a quote inside of a string is escaped, so this is the member. */
static int32_t member(const char *body, const char *key) {
    const char *found = strstr(body, key);
    return found != NULL ? (int32_t)strtol(found + strlen(key), NULL, 10) : 0;
}

static void write_head(const http_target *t, const load_request *r, buf *out) {
    static const char *const paths[] = {"/v1/recommend", "/v1/rank"};
    buf_clear(out);
    if (r->route == LOAD_INFER)
        (void)buf_printf(out, "POST /v2/models/%s/infer HTTP/1.1\r\n", t->model);
    else
        (void)buf_printf(out, "POST %s HTTP/1.1\r\n", paths[r->route]);
    (void)buf_printf(out,
                     "Host: %s\r\nContent-Type: "
                     "application/json\r\nContent-Length: %zu\r\n\r\n",
                     t->host, r->n_bytes);
    (void)buf_append(out, r->body, r->n_bytes);
}

static void judge(http_target *t, load_outcome *o, int code, const char *body) {
    o->kind = code == 200 ? LOAD_OK : code == 503 || code == 429 ? LOAD_REFUSED : LOAD_FAILED;
    if (o->kind == LOAD_OK) {
        o->tokens_reused = member(body, "\"tokens_reused\":");
        o->tokens_computed = member(body, "\"tokens_computed\":");
    }
    if (o->kind == LOAD_FAILED) {
        note_failure(&t->target,
                     show_printf("%s %d: %.160s", code == 0 ? "no answer, connection lost" : "HTTP",
                                 code, body));
    }
}

/* Opens a connection that does not block from then on. */
static bool open_connection(http_round *r, connection *c) {
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (!dial(r->t, c)) return false;
    int flags = fcntl(c->fd, F_GETFL);
    if (flags >= 0 && fcntl(c->fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
        epoll_ctl(r->events, EPOLL_CTL_ADD, c->fd, &e) == 0)
        return true;
    hang_up(c);
    return false;
}

/* code: 0 or less where there is no answer. */
static void finish_http(http_round *r, connection *c, int code, size_t body_at) {
    load_outcome *o = &r->out[c->item];
    o->read_ns = clock_ns();
    o->done_ns =
        code > 0 && c->came_ns > o->sent_ns && c->came_ns < o->read_ns ? c->came_ns : o->read_ns;
    judge(r->t, o, code > 0 ? code : 0, code > 0 ? buf_str(&c->in) + body_at : "");
    c->was_used = true;
    if (code <= 0) hang_up(c);
    c->is_busy = false;
    c->next = r->idle;
    r->idle = c;
    r->n_done++;
}

/* False: the connection is lost. */
static bool send_rest(connection *c) {
    while (c->sent < c->out.n_bytes) {
        ssize_t n = send(c->fd, buf_str(&c->out) + c->sent, c->out.n_bytes - c->sent, MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        c->sent += (size_t)n;
    }
    return true;
}

/* When the kernel had the bytes of a message, by clock_ns; 0: it does not say.  Its stamps are of
 * the time of day: what has passed since is the same by both clocks. */
static uint64_t arrival_of(struct msghdr *m) {
    struct timespec then, now;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c != NULL; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPNS) continue;
        memcpy(&then, CMSG_DATA(c), sizeof then);
        clock_gettime(CLOCK_REALTIME, &now);
        int64_t since =
            (int64_t)(now.tv_sec - then.tv_sec) * 1000000000 + now.tv_nsec - then.tv_nsec;
        return since > 0 ? clock_ns() - (uint64_t)since : 0;
    }
    return 0;
}

static bool receive_all(connection *c) {
    char piece[16384];
    union {
        struct cmsghdr head; /* for its alignment */
        char bytes[CMSG_SPACE(sizeof(struct timespec))];
    } control;
    for (;;) {
        struct iovec to = {.iov_base = piece, .iov_len = sizeof piece};
        struct msghdr m = {.msg_iov = &to,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof control};
        ssize_t n = recvmsg(c->fd, &m, 0);
        if (n > 0) c->came_ns = arrival_of(&m);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        if (n == 0 || c->in.n_bytes >= MAX_ANSWER || buf_append(&c->in, piece, (size_t)n) != OK)
            return false;
        if ((size_t)n < sizeof piece) return true;
    }
}

static void go_on(http_round *r, connection *c);

static void send_again(http_round *r, connection *c) {
    buf_clear(&c->in);
    c->sent = 0;
    if (c->fd < 0 && !open_connection(r, c))
        finish_http(r, c, 0, 0);
    else if (!send_rest(c))
        go_on(r, c);
}

/* Sends and receives as much as is possible now.  A connection that the server closed before the
 * request came is opened again, once. */
static void go_on(http_round *r, connection *c) {
    size_t body_at = 0;
    bool is_last = false;
    bool is_open = send_rest(c) && receive_all(c);
    int code = find_answer(c, &body_at, &is_last);
    if (code != 0) {
        finish_http(r, c, code, body_at);
        if (is_last || !is_open) hang_up(c);
    } else if (!is_open && c->was_used && !c->is_second && c->in.n_bytes == 0) {
        hang_up(c);
        c->is_second = true;
        send_again(r, c);
    } else if (!is_open) {
        finish_http(r, c, 0, 0);
    }
}

/* The next request, on an idle connection. */
static void begin_next(http_round *r) {
    connection *c = r->idle;
    size_t i = r->next++;
    load_outcome *o = &r->out[i];
    r->idle = c->next;
    c->item = i;
    c->is_busy = true;
    c->is_second = false;
    write_head(r->t, &r->s->item[i], &c->out);
    o->sent_ns = clock_ns();
    o->intended_ns = r->at != NULL ? r->start + r->at[i] : o->sent_ns;
    send_again(r, c);
}

/* Nanoseconds until the next request is to be sent; 0: now. */
static uint64_t time_left(const http_round *r) {
    uint64_t now = clock_ns(), then = r->at != NULL ? r->start + r->at[r->next] : 0;
    return then > now ? then - now : 0;
}

/* The timer ends the next wait in time. */
static void set_timer(const http_round *r) {
    uint64_t then = r->start + r->at[r->next];
    struct itimerspec t = {
        .it_value = {.tv_sec = (time_t)(then / 1000000000), .tv_nsec = (long)(then % 1000000000)}};
    timerfd_settime(r->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

/* Requests that nobody answers. */
static void give_up(http_round *r, uint64_t now) {
    for (int i = 0; i < r->n_all; i++) {
        connection *c = &r->all[i];
        if (!c->is_busy || now - r->out[c->item].sent_ns < ANSWER_SECONDS * 1000000000ull) continue;
        finish_http(r, c, 0, 0);
    }
}

static void work_through(http_round *r) {
    struct epoll_event e[MAX_EVENTS];
    uint64_t looked = r->start;
    while (r->n_done < r->s->n) {
        while (r->next < r->s->n && r->idle != NULL && time_left(r) == 0)
            begin_next(r);
        if (r->n_done == r->s->n) break;
        if (r->next < r->s->n && r->idle != NULL) set_timer(r);
        int n = epoll_wait(r->events, e, MAX_EVENTS, 1000);
        for (int i = 0; i < n; i++) {
            connection *c = e[i].data.ptr;
            if (c == NULL) continue; /* the timer */
            if (c->is_busy)
                go_on(r, c);
            else if (c->fd >= 0 && (e[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
                hang_up(c);
        }
        if (clock_ns() - looked < 1000000000) continue;
        looked = clock_ns();
        give_up(r, looked);
    }
}

static status open_round(http_round *r) {
    struct epoll_event e = {.events = EPOLLIN | EPOLLET};
    TRY(MEM_NEW(&r->all, (size_t)r->n_all));
    for (int i = r->n_all; i-- > 0;) {
        connection *c = &r->all[i];
        c->fd = -1;
        c->next = r->idle;
        r->idle = c;
    }
    r->events = epoll_create1(EPOLL_CLOEXEC);
    r->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (r->events < 0 || r->timer < 0 || epoll_ctl(r->events, EPOLL_CTL_ADD, r->timer, &e) != 0)
        return fail_errno("the sockets cannot be watched");
    for (int i = 0; i < r->n_all && i < (int)r->s->n; i++)
        (void)open_connection(r, &r->all[i]); /* one that fails is opened again when it is needed */
    return OK;
}

static void close_round(http_round *r) {
    for (int i = 0; r->all != NULL && i < r->n_all; i++) {
        hang_up(&r->all[i]);
        buf_fini(&r->all[i].in);
        buf_fini(&r->all[i].out);
    }
    if (r->events >= 0) close(r->events);
    if (r->timer >= 0) close(r->timer);
    mem_free(r->all);
}

static status run_http(load_target *target, const load_set *s, const load_plan *p,
                       const uint64_t *at, load_outcome *out) {
    int n = p->concurrency < 1 ? 1 : p->concurrency;
    http_round r = {.t = (http_target *)target,
                    .s = s,
                    .at = at,
                    .out = out,
                    .events = -1,
                    .timer = -1,
                    .n_all = n < MAX_CONNECTIONS ? n : MAX_CONNECTIONS};
    status st = open_round(&r);
    r.start = clock_ns();
    if (st == OK) work_through(&r);
    close_round(&r);
    return st;
}

static void close_http_target(load_target *target) {
    http_target *t = (http_target *)target;
    if (t->addresses != NULL) freeaddrinfo(t->addresses);
    mem_free(t);
}

/* http://HOST[:PORT][/] */
static status read_url(http_target *t, const char *url) {
    const char *host = strncmp(url, "http://", 7) == 0 ? url + 7 : url;
    size_t n = strcspn(host, ":/");
    const char *port = host[n] == ':' ? host + n + 1 : "80";
    size_t digits = strspn(port, "0123456789");
    if (n == 0 || n >= HOST_BYTES || digits == 0 || digits > 5 ||
        (port[digits] != '\0' && strcmp(port + digits, "/") != 0 && host[n] == ':'))
        return fail(ERR_USAGE, "--server %.100s: give http://HOST:PORT", url);
    snprintf(t->host, sizeof t->host, "%.*s", (int)n, host);
    snprintf(t->port, sizeof t->port, "%.*s", (int)digits, port);
    return OK;
}

static status open_target(http_target *t, const char *url, const char *model) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    TRY(read_url(t, url));
    if (model != NULL && snprintf(t->model, sizeof t->model, "%s", model) >= (int)sizeof t->model)
        return fail(ERR_USAGE, "--model %.60s: the name is too long", model);
    int code = getaddrinfo(t->host, t->port, &hints, &t->addresses);
    if (code != 0) return fail(ERR_IO, "%s: %s", t->host, gai_strerror(code));
    connection c = {.fd = -1};
    bool is_there = dial(t, &c);
    hang_up(&c);
    return is_there ? OK : fail_errno("%s port %s: cannot connect", t->host, t->port);
}

status load_target_http(load_target **out, const char *url, const char *model) {
    http_target *t;
    *out = NULL;
    TRY(MEM_NEW(&t, 1));
    t->target = (load_target){.run = run_http, .close = close_http_target};
    status st = open_target(t, url, model);
    if (st != OK) {
        close_http_target(&t->target);
        return st;
    }
    *out = &t->target;
    return OK;
}
