/* The load of the serving benches: what is drawn, sent and counted. */
#include "cli/bench/load.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/http/server.h"
#include "serve_test.h"

TEST(load_percentiles_are_values) {
    double x[100];
    for (int i = 0; i < 100; i++)
        x[i] = i + 1;
    CHECK(load_percentile(x, 100, .5) == 51 && load_percentile(x, 100, .99) == 100);
    CHECK(load_percentile(x, 100, 1) == 100 && load_percentile(x, 1, .999) == 1);
    CHECK(load_percentile(x, 0, .5) == 0);
}

static load_draw some_draw(uint64_t n) {
    return (load_draw){.items = {NULL, 50},
                       .n_requests = n,
                       .n_users = 100000,
                       .zipf = 1,
                       .returning = 0.75,
                       .history_mean = 20,
                       .history_deviation = 5,
                       .new_mean = 2,
                       .new_deviation = 1,
                       .max_history = 60,
                       .top_k = 10,
                       .seed = 5};
}

static int count_user(const load_set *s, const char *name) {
    char member[64];
    int n = 0;
    snprintf(member, sizeof member, "\"user\":\"%s\"", name);
    for (size_t i = 0; i < s->n; i++)
        n += strstr(s->item[i].body, member) != NULL;
    return n;
}

TEST(load_draws_users_who_return) {
    load_set s;
    load_draw d = some_draw(4000);
    double events = 0;
    int n_first = 0;
    load_set_init(&s);
    CHECK_OK(load_set_draw(&s, &d));
    CHECK(s.n == 4000);
    for (size_t i = 0; i < s.n; i++) {
        bool is_first = s.item[i].n_events > 8; /* 2 +- 1 are never so many */
        n_first += is_first;
        if (is_first) events += s.item[i].n_events;
        CHECK(s.item[i].route == LOAD_RECOMMEND && s.item[i].is_timed);
    }
    CHECK(n_first > 900 && n_first < 1100); /* a quarter */
    CHECK(fabs(events / n_first - 20) < 1);
    /* Zipf: the first user is seen about twice as often as the second one. */
    int a = count_user(&s, "load-5-0"), b = count_user(&s, "load-5-1");
    CHECK(a > b && a < 4 * b && a > 100);
    load_set_fini(&s);
}

TEST(load_sets_survive_a_file) {
    load_set s, t;
    load_draw d = some_draw(50);
    const char *path = run_path("set.jsonl");
    d.n_candidates = 7;
    load_set_init(&s);
    load_set_init(&t);
    CHECK_OK(load_set_draw(&s, &d));
    CHECK_OK(load_set_write(&s, path));
    CHECK_OK(load_set_read(&t, path));
    CHECK(t.n == 50);
    for (size_t i = 0; i < 50; i++) {
        CHECK(t.item[i].route == LOAD_RANK && t.item[i].n_candidates == 7);
        CHECK(t.item[i].n_events == s.item[i].n_events && t.item[i].n_bytes == s.item[i].n_bytes);
        CHECK(memcmp(t.item[i].body, s.item[i].body, s.item[i].n_bytes) == 0);
    }
    load_set_fini(&t);
    FILE *f = fopen(path, "w");
    fputs("{\"inputs\": []}\n\n{\"user\": 1}\n{\"user\": }\n", f);
    fclose(f);
    load_set_init(&t);
    CHECK_FAILS(load_set_read(&t, path), ERR_FORMAT, "line 4");
    CHECK(t.n == 2 && t.item[0].route == LOAD_INFER && t.item[1].route == LOAD_RECOMMEND);
    load_set_fini(&t);
    load_set_fini(&s);
}

/* A server that takes 10 ms for each request and refuses the last one. */
static status run_slowly(load_target *t, const load_set *s, const load_plan *p, const uint64_t *at,
                         load_outcome *out) {
    uint64_t now = 1000000000;
    (void)t;
    (void)p;
    for (size_t i = 0; i < s->n; i++) {
        out[i].intended_ns = at != NULL ? 1000000000 + at[i] : now;
        out[i].sent_ns = now > out[i].intended_ns ? now : out[i].intended_ns;
        now = out[i].done_ns = out[i].sent_ns + 10000000;
        out[i].kind = i + 1 < s->n ? LOAD_OK : LOAD_REFUSED;
        out[i].tokens_reused = 3;
        out[i].tokens_computed = 2;
    }
    return OK;
}

TEST(load_latency_counts_from_the_intended_time) {
    load_set s;
    load_target slow = {.run = run_slowly};
    load_report r;
    load_draw d = some_draw(101);
    load_plan open = {.rate = 200}, closed = {.concurrency = 1};
    load_set_init(&s);
    CHECK_OK(load_set_draw(&s, &d));
    CHECK_OK(load_run(&slow, &s, &closed, &r));
    CHECK(r.n == 101 && r.n_ok == 100 && r.n_refused == 1 && r.refusal.n == 1);
    CHECK(fabs(r.latency.p50 - 10) < 1e-6 && fabs(r.refusal.max - 10) < 1e-6);
    CHECK(fabs(r.wall_s - 1.01) < 1e-6 && fabs(r.throughput - 100 / 1.01) < 1e-6);
    CHECK(r.tokens_reused == 303 && r.tokens_computed == 202 && fabs(r.concurrency - 1) < 1e-6);
    /* Twice as many as it can do: the last ones wait for half a second. */
    CHECK_OK(load_run(&slow, &s, &open, &r));
    CHECK(r.latency.max > 300 && r.latency.p50 > 100 && r.late_ms > 300);
    CHECK(r.refusal.max < 11 && r.answer.n == 100 && r.answer.max < 11);
    load_set_fini(&s);
}

/* A server that takes i + 1 ms for request i, in no order, and refuses every n-th where n > 0. */
typedef struct ramp_target {
    load_target target;
    size_t refuses;
} ramp_target;

static status run_ramp(load_target *t, const load_set *s, const load_plan *p, const uint64_t *at,
                       load_outcome *out) {
    size_t refuses = ((const ramp_target *)t)->refuses;
    (void)p;
    for (size_t i = 0; i < s->n; i++) {
        uint64_t took = refuses > 0 ? 1 : i * 777 % s->n + 1;
        out[i].intended_ns = out[i].sent_ns = 1000000000 + (at != NULL ? at[i] : 0);
        out[i].done_ns = out[i].sent_ns + took * 1000000;
        out[i].read_ns = out[i].done_ns + 2 * took * 1000000;
        out[i].kind = refuses > 0 && i % refuses == refuses - 1 ? LOAD_REFUSED : LOAD_OK;
    }
    return OK;
}

TEST(load_reports_each_percentile) {
    load_set s;
    ramp_target t = {.target = {.run = run_ramp}};
    load_report r;
    load_draw d = some_draw(2000);
    load_plan closed = {.concurrency = 1};
    load_set_init(&s);
    CHECK_OK(load_set_draw(&s, &d));
    CHECK_OK(load_run(&t.target, &s, &closed, &r));
    const double want[] = {1, 1001, 1801, 1901, 1981, 1999, 2000, 1000.5, 3962};
    const double got[] = {r.latency.min, r.latency.p50,  r.latency.p90,
                          r.latency.p95, r.latency.p99,  r.latency.p999,
                          r.latency.max, r.latency.mean, r.read_ms};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (fabs(got[i] - want[i]) > 1e-6) FAIL_TEST("%zu: %g, not %g", i, got[i], want[i]);
    CHECK(r.latency.n == 2000 && r.late_ms == 0);
    load_set_fini(&s);
}

/* Gaps of any shape have the mean that the rate says. */
static status note_times(load_target *t, const load_set *s, const load_plan *p, const uint64_t *at,
                         load_outcome *out) {
    (void)out;
    double mean = (double)at[s->n - 1] / (double)(s->n - 1) / 1e9;
    snprintf(t->error, sizeof t->error, "%s", fabs(mean * p->rate - 1) < 0.1 ? "" : "off");
    return OK;
}

TEST(load_gaps_have_the_rate) {
    load_set s;
    load_target t = {.run = note_times};
    load_report r;
    load_draw d = some_draw(4000);
    const double shapes[] = {0.4, 1, 5};
    load_set_init(&s);
    CHECK_OK(load_set_draw(&s, &d));
    for (int i = 0; i < 3; i++) {
        load_plan p = {.rate = 1000, .burstiness = shapes[i], .seed = 3};
        CHECK_OK(load_run(&t, &s, &p, &r));
        if (r.error[0] != '\0') FAIL_TEST("shape %g", shapes[i]);
    }
    load_set_fini(&s);
}

/* Ten milliseconds a request, none refused: a queue of Poisson arrivals whose p99 grows with the
 * rate. */
static int n_rounds;
static status run_all(load_target *t, const load_set *s, const load_plan *p, const uint64_t *at,
                      load_outcome *out) {
    TRY(run_slowly(t, s, p, at, out));
    out[s->n - 1].kind = LOAD_OK;
    n_rounds++;
    return OK;
}

TEST(load_finds_the_highest_rate) {
    load_target t = {.run = run_all};
    load_report best;
    double rate;
    load_search s = {.target = &t,
                     .slo_ms = 60,
                     .capacity = 100,
                     .source = {.draw = some_draw(0)},
                     .plan = {.concurrency = 1},
                     .n_rounds = 8,
                     .seconds = 20};
    CHECK_OK(load_search_rate(&s, &rate, &best));
    CHECK(n_rounds == 8 && rate > 55 && rate < 100);
    CHECK(best.latency.p99 <= 60 && best.latency.p99 > 20);
    s.slo_ms = 5; /* less than a request takes */
    CHECK_OK(load_search_rate(&s, &rate, &best));
    CHECK(rate == 0 && best.n == 0);
}

/* A rate at which one of a hundred requests is refused is fine, two are too many. */
TEST(load_rate_allows_few_refusals) {
    ramp_target t = {.target = {.run = run_ramp}};
    load_report best;
    double rate;
    load_search s = {.target = &t.target,
                     .slo_ms = 5,
                     .capacity = 100,
                     .source = {.draw = some_draw(0)},
                     .plan = {.concurrency = 1},
                     .n_rounds = 3,
                     .seconds = 20};
    t.refuses = 100;
    CHECK_OK(load_search_rate(&s, &rate, &best));
    CHECK(rate > 100 && best.n_refused > 0);
    t.refuses = 50;
    CHECK_OK(load_search_rate(&s, &rate, &best));
    CHECK(rate == 0 && best.n == 0);
}

/* Warm requests, a prefix of each before, reuse it; cold ones do not. */
static void check_states(load_target *t, engine *e, uint64_t n_items) {
    for (int is_cached = 0; is_cached < 2; is_cached++) {
        load_set s;
        load_report r;
        load_plan p = {.concurrency = 1};
        load_single d = {.items = {e, n_items},
                         .n = 6,
                         .n_events = 140,
                         .n_new = 5,
                         .top_k = 3,
                         .is_cached = is_cached == 1,
                         .seed = (uint64_t)is_cached};
        load_set_init(&s);
        CHECK_OK(load_set_single(&s, &d));
        CHECK(s.n == (is_cached ? 12 : 6));
        CHECK_OK(load_run(t, &s, &p, &r));
        if (r.n_ok != 6) FAIL_TEST("%s", r.error);
        CHECK(r.n == 6 && r.tokens_reused + r.tokens_computed == 6 * 140);
        CHECK(is_cached ? r.tokens_reused >= 6 * 128 : r.tokens_reused == 0);
        load_set_fini(&s);
    }
}

static const char *long_run(void) {
    static const char *const set[] = {"train_fn.max_sequence_length=150"};
    return serve_run("run", retrieval_gin, set, 1);
}

/* The roofline grows with the work: what is cached is read, not computed. */
TEST(roofline_of_a_request) {
    engine *e = serve_open(long_run(), NULL, 200);
    serve_roofline f = serve_roofline_measure(e);
    engine_shape cold = {.n_users = 1, .n_computed = 100}, cached = cold, two = cold;
    engine_work a, b, c;
    cached.n_computed = 10;
    cached.n_reused = 90;
    two.n_users = 2;
    CHECK_OK(engine_work_of(e, 0, &cold, &a));
    CHECK_OK(engine_work_of(e, 0, &cached, &b));
    CHECK_OK(engine_work_of(e, 0, &two, &c));
    CHECK(a.flops > b.flops && b.flops > 0 && b.bytes > 0 && a.bytes > b.bytes);
    CHECK(c.flops == 2 * a.flops && c.bytes > a.bytes && c.bytes < 2 * a.bytes);
    CHECK(f.flop_s > 0 && f.byte_s > 0);
    double ms = serve_roofline_ms(&f, e, &cold);
    CHECK(ms >= a.flops / f.flop_s * 1e3 && ms >= a.bytes / f.byte_s * 1e3 && ms < 1000);
    f.byte_s = 0;
    CHECK(isnan(serve_roofline_ms(&f, e, &cold)));
    CHECK_FAILS(engine_work_of(e, 1, &cold, &a), ERR_USAGE, "no model number 1");
    engine_destroy(e);
    f = serve_roofline_measure(NULL);
    CHECK(f.byte_s == 0 && isnan(serve_roofline_ms(&f, NULL, &cold)));
}

TEST(load_on_an_engine) {
    engine *e = serve_open(long_run(), NULL, 200);
    load_target *t;
    load_set s;
    load_report r;
    load_draw d = some_draw(300);
    CHECK_OK(load_target_engine(&t, e));
    check_states(t, e, 60);
    load_set_init(&s);
    d.items = (load_items){e, 60};
    CHECK_OK(load_set_draw(&s, &d));
    load_plan closed = {.concurrency = 8}, open = {.rate = 2000};
    CHECK_OK(load_run(t, &s, &closed, &r));
    CHECK(r.n_ok == 300 && r.latency.p50 > 0 && r.latency.min <= r.latency.p50 &&
          r.latency.p50 <= r.latency.p99 && r.latency.p99 <= r.latency.max);
    CHECK(r.concurrency <= 8.01 && r.tokens_computed > 0);
    CHECK_OK(load_run(t, &s, &open, &r));
    CHECK(r.n_ok + r.n_refused == 300 && r.wall_s > 0.1);
    load_set_fini(&s);
    t->close(t);
    engine_destroy(e);
}

/* A server that closes every connection after an answer without a word, and one that says nothing.
 */
typedef struct rude_server {
    int fd, n_answers;
    const char *answer; /* or NULL: silent */
} rude_server;

static void *serve_rudely(void *argument) {
    rude_server *r = argument;
    for (int fd; (fd = accept(r->fd, NULL, NULL)) >= 0; close(fd)) {
        char text[4096];
        ssize_t n = recv(fd, text, sizeof text, 0); /* the requests of the test are short */
        if (n <= 0 || r->answer == NULL) continue;
        r->n_answers++;
        size_t all = strlen(r->answer),
               body = (size_t)(strstr(r->answer, "\r\n\r\n") + 4 - r->answer);
        for (size_t sent = 0; sent < all; sent += 7) { /* in pieces, the body late */
            if (sent >= body && sent < body + 7) usleep(2000);
            (void)!send(fd, r->answer + sent, all - sent < 7 ? all - sent : 7, MSG_NOSIGNAL);
        }
    }
    return NULL;
}

static void ask_rudely(const char *answer, load_report *out) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    rude_server r = {.fd = socket(AF_INET, SOCK_STREAM, 0), .answer = answer};
    pthread_t thread;
    load_target *t;
    load_set s;
    load_plan p = {.concurrency = 1};
    char url[64];
    CHECK(r.fd >= 0 && bind(r.fd, (struct sockaddr *)&at, n) == 0 && listen(r.fd, 16) == 0);
    CHECK(getsockname(r.fd, (struct sockaddr *)&at, &n) == 0);
    CHECK(pthread_create(&thread, NULL, serve_rudely, &r) == 0);
    snprintf(url, sizeof url, "127.0.0.1:%d", ntohs(at.sin_port));
    CHECK_OK(load_target_http(&t, url, NULL));
    load_set_init(&s);
    load_draw d = some_draw(9);
    d.history_mean = 2;
    d.history_deviation = 0;
    CHECK_OK(load_set_draw(&s, &d));
    CHECK_OK(load_run(t, &s, &p, out));
    load_set_fini(&s);
    t->close(t);
    shutdown(r.fd, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(r.fd);
    CHECK_EQ(r.n_answers, answer == NULL ? 0 : 9);
}

TEST(load_on_a_server_that_hangs_up) {
    load_report r;
#define BODY "{\"tokens_computed\":3}"
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n" BODY,
        "HTTP/1.1 200 OK\r\nX: 1\r\ncontent-length:21\r\nConnection: Close\r\n\r\n" BODY,
        "HTTP/1.1 200 OK\r\nContent-Lengths: 1\r\nContent-Length: 21\r\n\r\n" BODY,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        "7\r\n{\"token\r\ne\r\ns_computed\":3}\r\n0\r\n\r\n"};
    for (int i = 0; i < 4; i++) {
        ask_rudely(answers[i], &r);
        CHECK(r.n_ok == 9 && r.n_failed == 0);
        /* a number that chunks part is not read */
        CHECK_EQ(r.tokens_computed, i < 3 ? 27 : 0);
    }
    ask_rudely("HTTP/1.1 503 Full\r\nContent-Length: 0\r\n\r\n", &r);
    CHECK(r.n_ok == 0 && r.n_refused == 9);
    ask_rudely(NULL, &r);
    CHECK(r.n_ok == 0 && r.n_failed == 9 && strstr(r.error, "connection lost") != NULL);
}

TEST(load_on_a_server) {
    server *s;
    load_target *t;
    char url[64];
    if (http_library_version() == NULL) SKIP_TEST("no libmicrohttpd");
    server_model served_model = {.name = "m", .path = long_run(), .share = 1};
    server_config c = {.http = http_default_settings(),
                       .models = &served_model,
                       .n_models = 1,
                       .engine = {.device = "cpu", .n_threads = 1, .kv_pages = 200}};
    c.http.host = "127.0.0.1";
    CHECK_FAILS(load_target_http(&t, "http://:80", NULL), ERR_USAGE, "HOST:PORT");
    CHECK_FAILS(load_target_http(&t, "http://127.0.0.1:1", NULL), ERR_IO, "cannot connect");
    CHECK_OK(server_start(&s, &c));
    snprintf(url, sizeof url, "http://127.0.0.1:%d", server_port(s));
    CHECK_OK(load_target_http(&t, url, "m"));
    engine *e = server_engine(s);
    check_states(t, e, 60);
    /* Tensors go as they are; what the server does not understand is a failure with its words. */
    load_set set;
    load_report r;
    load_plan p = {.concurrency = 3};
    FILE *f = fopen(run_path("infer.jsonl"), "w");
    for (int i = 0; i < 20; i++)
        fprintf(f,
                "{\"inputs\": [{\"name\": \"USER_IDS\", \"shape\": [1], \"datatype\": \"INT64\", "
                "\"data\": [%d]}]}\n",
                i);
    fputs("{\"user\": 7, \"nonsense\": 1}\n", f);
    fclose(f);
    load_set_init(&set);
    CHECK_OK(load_set_read(&set, run_path("infer.jsonl")));
    CHECK_OK(load_run(t, &set, &p, &r));
    CHECK(r.n_ok == 20 && r.n_failed == 1 && strstr(r.error, "nonsense") != NULL);
    load_set_fini(&set);
    /* An open loop: more than there are connections for wait for one. */
    load_plan open = {.concurrency = 2, .rate = 3000};
    load_draw d = some_draw(200);
    load_set_init(&set);
    CHECK_OK(load_set_draw(&set, &d));
    CHECK_OK(load_run(t, &set, &open, &r));
    CHECK(r.n_ok + r.n_refused == 200 && r.n_ok > 0 && r.concurrency <= 2.01 && r.wall_s > .02);
    CHECK(r.latency.min > 0 && r.latency.p99 >= r.answer.p50);
    load_set_fini(&set);
    t->close(t);
    server_stop(s);
}

/* Users who come back with longer histories. */
enum { USERS = 3, REQUESTS = 4, EVENTS = 10, MAX_BODY = 4096 };

/* Answers take one ms for each event of the longest history, twice as long in every other repeat;
 * remembers histories. */
typedef struct slow_target {
    load_target target;
    int n_rounds;
    bool refuses;
    uint32_t n_events[64];
    char body[USERS][MAX_BODY];
    bool are_prefixes;
} slow_target;

/* The events of a body: what comes before the bracket that closes the history. */
static size_t history_bytes(const char *body) {
    return (size_t)(strchr(body, ']') - body);
}

static status run_growing(load_target *t, const load_set *s, const load_plan *p, const uint64_t *at,
                          load_outcome *out) {
    slow_target *own = (slow_target *)t;
    int repeat = own->n_rounds / REQUESTS;
    bool is_first = own->n_rounds % REQUESTS == 0;
    (void)p;
    CHECK(at == NULL && s->n == USERS && own->n_rounds < 64);
    own->n_events[own->n_rounds++] = s->item[0].n_events;
    for (size_t i = 0; i < s->n; i++) {
        const load_request *r = &s->item[i];
        CHECK(r->n_bytes < MAX_BODY && r->is_timed);
        if (!is_first && strncmp(r->body, own->body[i], history_bytes(own->body[i])) != 0)
            own->are_prefixes = false;
        memcpy(own->body[i], r->body, r->n_bytes);
        own->body[i][r->n_bytes] = '\0';
        out[i] = (load_outcome){.intended_ns = 1000,
                                .sent_ns = 1000,
                                .done_ns = 1000 + r->n_events * 1000000u * (repeat % 2 + 1),
                                .kind = own->refuses && i == 1 ? LOAD_REFUSED : LOAD_OK,
                                .tokens_reused = 2,
                                .tokens_computed = 5,
                                .is_timed = true};
    }
    return OK;
}

static growing_plan some_plan(void) {
    return (growing_plan){.items = {NULL, 100},
                          .n_users = USERS,
                          .n_requests = REQUESTS,
                          .n_events = EVENTS,
                          .n_candidates = 5,
                          .top_k = 3,
                          .n_warmup = 1,
                          .n_repeats = 3,
                          .seed = 5};
}

TEST(growing_histories_continue_and_times_add_up) {
    slow_target slow = {.target = {.run = run_growing}, .are_prefixes = true};
    growing_plan p = some_plan();
    growing_report r;
    CHECK_OK(serve_growing(&slow.target, &p, &r));
    CHECK(slow.n_rounds == 4 * REQUESTS && slow.are_prefixes);
    for (int i = 0; i < slow.n_rounds; i++) { /* 2, 5, 7, 10 of 10 */
        static const uint32_t want[REQUESTS] = {2, 5, 7, 10};
        CHECK(slow.n_events[i] == want[i % REQUESTS]);
    }
    /* Repeats after the warm-up take 48, 24 and 48 ms. */
    CHECK(fabs(r.total_ms - 48) < 1e-6 && fabs(r.least_ms - 24) < 1e-6);
    CHECK(fabs(r.most_ms - 48) < 1e-6 && fabs(r.round_ms[3] - 20) < 1e-6);
    CHECK(r.tokens_reused == 2 * USERS * REQUESTS && r.tokens_computed == 5 * USERS * REQUESTS);
}

TEST(growing_says_what_was_not_answered) {
    slow_target slow = {.target = {.run = run_growing}, .refuses = true};
    growing_plan p = some_plan();
    growing_report r;
    CHECK_FAILS(serve_growing(&slow.target, &p, &r), ERR_IO, "1 of 3 requests");
    p.n_requests = EVENTS + 1;
    CHECK_FAILS(serve_growing(&slow.target, &p, &r), ERR_USAGE, "growing requests");
    p = some_plan();
    p.n_repeats = 0;
    CHECK_FAILS(serve_growing(&slow.target, &p, &r), ERR_USAGE, "0 times");
}
