/* Serve load: requests against an engine in this process, or against a server
 * over HTTP, and what became of them.
 *
 * A request is the body that a client would send, JSON, whichever target gets
 * it: a set of requests is drawn (users by Zipf's law, some of them returning)
 * or read from a file.  In a closed loop a fixed number of requests is always
 * on its way; in an open loop each one has a time at which it is to be sent,
 * and its latency counts from that time, also where the sender is late: a slow
 * server cannot slow down the clock that measures it. */
#ifndef HSTU_CLI_BENCH_SERVE_LOAD_H
#define HSTU_CLI_BENCH_SERVE_LOAD_H

#include "base/mem.h"
#include "serve/engine/engine.h"

/* Where a body goes: /v1/recommend, /v1/rank, or /v2/models/NAME/infer, which
 * any KServe v2 server has. */
typedef enum { LOAD_RECOMMEND, LOAD_RANK, LOAD_INFER } load_route;

typedef struct load_request {
    load_route route;
    const char *body; /* (n_bytes) */
    size_t n_bytes;
    uint32_t n_events, n_candidates; /* in the body */
    bool is_timed;                   /* false: it only prepares the next one */
} load_request;

typedef struct load_set {
    arena arena; /* of the bodies */
    load_request *item;
    size_t n, capacity;
} load_set;

void load_set_init(load_set *s);
void load_set_fini(load_set *s);

/* One JSON object a line.  "candidates" makes it a rank, "inputs" an infer.
 * ERR_FORMAT: which line is wrong and why. */
status load_set_read(load_set *s, const char *path);
status load_set_write(const load_set *s, const char *path);

/* The items that requests are about: those of an engine's first model, or the
 * ids 1..n. */
typedef struct load_items {
    engine *e; /* or NULL */
    uint64_t n;
} load_items;

typedef struct load_draw {
    load_items items;
    uint64_t n_requests, n_users; /* users: at most so many */
    double zipf;                  /* exponent of the users' frequencies; 0: all alike */
    double returning;             /* share of the requests that come from a user seen before */
    double history_mean, history_deviation; /* events in the first request of a user */
    double new_mean, new_deviation;         /* and in each later one */
    uint32_t max_history;
    uint32_t n_candidates; /* 0: recommendations */
    uint32_t top_k;
    uint64_t seed; /* also part of the users' names: sets of two seeds have no
                      user in common */
} load_draw;
status load_set_draw(load_set *s, const load_draw *d);

/* For one latency: n whole histories of n_events events, each of another user.
 * is_cached: before each one, the same without its last n_new events is asked.
 */
typedef struct load_single {
    load_items items;
    uint32_t n, n_events, n_new, n_candidates, top_k;
    bool is_cached;
    bool is_far; /* these come before all others instead, so that a small cache has evicted them */
    uint64_t seed;
} load_single;
status load_set_single(load_set *s, const load_single *d);

/* What became of a request. */
typedef enum { LOAD_OK, LOAD_REFUSED, LOAD_FAILED } load_kind; /* refused: 429 or 503 */
typedef struct load_outcome {
    uint64_t intended_ns, done_ns; /* by clock_ns; intended: when it was to be sent */
    uint64_t sent_ns;
    uint64_t read_ns; /* when this program came to read the answer that was there at done_ns */
    load_kind kind;
    int32_t tokens_reused, tokens_computed; /* where the answer says so */
    bool is_timed;
} load_outcome;

typedef struct load_plan {
    int concurrency;   /* requests on their way, or connections of an open loop */
    double rate;       /* requests a second; 0: a closed loop */
    double burstiness; /* shape of the gaps' gamma distribution; 1: Poisson */
    uint64_t seed;
} load_plan;

/* A target; serve_load_engine.c and serve_load_http.c. */
typedef struct load_target load_target;
struct load_target {
    /* Sends all requests.  at (n): nanoseconds after the start, or NULL in a
     * closed loop. */
    status (*run)(load_target *t, const load_set *s, const load_plan *p, const uint64_t *at,
                  load_outcome *out);
    void (*close)(load_target *t);
    char error[256]; /* the first failure, in words; "" */
};

/* The engine stays the caller's. */
status load_target_engine(load_target **out, engine *e);
/* url: http://HOST[:PORT]; model: of LOAD_INFER, or NULL. */
status load_target_http(load_target **out, const char *url, const char *model);

typedef struct load_times {
    uint64_t n;
    double mean, min, max, p50, p90, p95, p99, p999; /* milliseconds */
} load_times;

typedef struct load_report {
    uint64_t n, n_ok, n_refused, n_failed;
    double wall_s;      /* from the first send to the last answer */
    double throughput;  /* answers a second */
    double concurrency; /* mean: the sum of the latencies over the wall */
    double late_ms;     /* open loop: 99th percentile of how late requests were sent */
    double read_ms;     /* and of how late answers were read; latencies are without it */
    load_times latency; /* of answers, from the intended time */
    load_times answer;  /* of answers, from the moment they were sent */
    load_times refusal; /* of refusals, from the moment they were sent */
    uint64_t tokens_reused, tokens_computed, n_events, n_candidates;
    char error[256];
} load_report;

/* Percentile p of n sorted values as trtllm-bench has it: value number n p, no
 * interpolation. */
double load_percentile(const double *sorted, size_t n, double p);

status load_run(load_target *t, const load_set *s, const load_plan *p, load_report *out);

/* The highest rate at which p99 <= slo_ms and at most 1 % are refused, by
 * bisection of open loops between none and twice the rate of a closed one. draw
 * makes the requests of each round. */
typedef struct load_search {
    load_target *target;
    double slo_ms;
    double capacity; /* requests a second of a closed loop */
    int concurrency, n_rounds;
    double seconds; /* of a round */
    double burstiness;
    status (*draw)(void *ctx, uint64_t round, uint64_t n, load_set *out);
    void (*tell)(void *ctx, double rate, const load_report *r); /* or NULL */
    void *ctx;
} load_search;
status load_search_rate(const load_search *s, double *rate, load_report *best);

/* NVIDIA's published milliseconds on an L20 (recsys-examples: 8 layers, width
 * 1024, 4 heads x 256, bf16, 256 candidates, layers only) for a batch of
 * histories of n_tokens tokens, of which n_new are not in the cache; NAN: not
 * among them. */
double load_l20_ms(int batch, int n_tokens, int n_new);

#endif
