/* The load of `hstu bench latency`, `throughput` and `dataset`: requests against an engine in this
 * process, or against a server over HTTP, and what became of them.
 *
 * A request is the body that a client would send, JSON, whichever target gets it: a set of requests
 * is drawn (users by Zipf's law, some of them returning) or read from a file.  In a closed loop a
 * fixed number of requests is always on its way; in an open loop each one has a time at which it is
 * to be sent, and its latency counts from that time, also where the sender is late: a slow server
 * cannot slow down the clock that measures it. */
#pragma once

#include "cli/bench/bench.h"
#include "cli/serve/serve.h"
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

/* The items that requests are about: those of an engine's first model, or the ids 1..n. */
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

/* For one latency: n whole histories of n_events events, each of another user. is_cached: before
 * each one, the same without its last n_new events is asked. */
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

/* A target (load_targets.c). */
typedef struct load_target load_target;
struct load_target {
    /* Sends all requests.  at (n): nanoseconds after the start, or NULL in a closed loop. */
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

/* Percentile p of n sorted values as trtllm-bench has it: value number n p, no interpolation. */
double load_percentile(const double *sorted, size_t n, double p);

status load_run(load_target *t, const load_set *s, const load_plan *p, load_report *out);

/* Where requests come from: a file, or else a draw, in which each round has users of its own. */
typedef struct load_source {
    const char *file; /* or NULL */
    load_draw draw;   /* for rounds: without the number of requests, and with the first seed */
} load_source;

/* Sends the requests of a round: n of them where they are drawn. */
status load_run_round(load_target *t, const load_source *from, uint64_t n, uint64_t round,
                      const load_plan *p, load_report *out);

/* The highest rate at which p99 <= slo_ms and at most 1 % are refused, by bisection of open loops
 * between none and twice the rate of a closed one; the log tells each rate. */
typedef struct load_search {
    load_target *target;
    load_source source;
    load_plan plan; /* of all rounds; the rate and the seed are theirs */
    double slo_ms;
    double capacity; /* requests a second of a closed loop */
    int n_rounds;
    double seconds; /* of a round */
} load_search;
status load_search_rate(const load_search *s, double *rate, load_report *best);

/* Options of a target and of the requests; the initial values are the defaults. */
typedef struct load_args {
    const char *path; /* RUN or ENGINE; or NULL */
    const char *server, *model, *dataset, *report;
    engine_config engine;
    load_draw draw; /* load_args_source fills in what the model decides */
    int64_t items, seed;
} load_args;

/* Options of the engine of a load_args. */
#define LOAD_ENGINE_OPTIONS(l)                                                                     \
    OPT_TEXT("--device", &(l).engine.device, "DEVICE", WORK_DEVICES),                              \
        OPT_INT("--kv-pages", &(l).engine.kv_pages, "N", 0, INT32_MAX,                             \
                "Pages of the KV cache; 0: no cache."),                                            \
        OPT_INT("--kv-host-pages", &(l).engine.kv_host_pages, "N", 0, INT32_MAX, KV_HOST_PAGES),   \
        OPT_CHOICE("--kv-load", &(l).engine.loads_always, "RULE", kv_args_loads, KV_LOADS),        \
        OPT_CHOICE("--kv-dtype", &(l).engine.has_fp8_kv, "TYPE", kv_args_dtypes, KV_DTYPES),       \
        OPT_INT("--max-tokens", &(l).engine.max_tokens, "N", 1, 1 << 24,                           \
                "Computed tokens per batch.")

load_args load_args_default(void);

/* --seed, or without it one that no earlier bench used where a server may remember its users, and
 * else 1. */
uint64_t load_args_seed(const load_args *a);

/* The target that the options name, and the items for requests. */
typedef struct load_rig {
    engine *e; /* NULL: only a server */
    load_target *target;
    load_items items;
    engine_model_info info; /* of the engine's model; name "" without one */
    uint32_t max_history;
} load_rig;

status load_rig_open(load_rig *r, const load_args *a, uint64_t deadline_ms);
void load_rig_close(load_rig *r); /* a failed open too */

/* The requests that the options describe. */
load_source load_args_source(const load_args *a, const load_rig *r);

/* The server, or the RUN or ENGINE. */
const char *load_target_name(const load_args *a);

/* Items to rank in a request: --candidates, or else `usual` for a ranking model and none for a
 * retrieval model. */
uint32_t load_candidates(const load_args *a, const load_rig *r, uint32_t usual);

/* "cold" is without a cache, "memory" the CPU's pages, "gpu" those of a GPU. */
const char *load_cache_name(const load_rig *r);

/* Members of an open object; and trtllm-bench's sections. */
void load_report_write(json_writer *w, const load_report *r);
void load_report_print(const load_report *r);

/* A report as JSON, which begins with the bench and the target.  load_json_save ends it; after a
 * success (st) it writes it to --report-json FILE (NULL: to no file). */
json_writer *load_json_open(const char *name, const load_args *a);
status load_json_save(const char *path, status st);

/* The roofline: what a request takes at the measured peaks of its device.  The products and the
 * attention at the speed of a large product, and beside them the weights, the cached keys and
 * values, the new ones and the catalogue once through memory at the speed of a large copy:
 * whichever takes longer.  It is no bound: what stays in a cache is read faster. */
typedef struct serve_roofline {
    double flop_s, byte_s; /* a second, of the device */
} serve_roofline;

/* Measures the device of an engine's first model; it takes about a second.  A device without the
 * memory for that has no roofline, nor has one of which nothing is known (e is NULL): a warning
 * says so. */
serve_roofline serve_roofline_measure(engine *e);

/* Milliseconds of a batch; NAN: not known. */
double serve_roofline_ms(const serve_roofline *f, engine *e, const engine_shape *shape);

/* Growing: users who come back with longer histories, as in NVIDIA's end-to-end benchmark of its KV
 * cache (16 requests, histories growing by 256 tokens to 4096, 256 candidates): some users send
 * their requests at the same time, wait for all answers, and send the next ones.  Everything
 * between request and answer counts: embeddings, cache, layers, head and queue. */
enum { GROWING_MAX = 256 }; /* requests of a user */

typedef struct growing_plan {
    load_items items;
    uint32_t n_users, n_requests; /* at the same time; one after the other */
    uint32_t n_events;            /* of the last histories; request i has i parts of n_requests */
    uint32_t n_candidates, top_k;
    uint32_t n_warmup, n_repeats; /* of all requests, each time with other users */
    uint64_t seed;
} growing_plan;

typedef struct growing_report {
    double total_ms;                       /* of all requests of the users, median of the repeats */
    double least_ms, most_ms;              /* of the repeats */
    double round_ms[GROWING_MAX];          /* (n_requests): each, of the median repeat */
    double tokens_reused, tokens_computed; /* of one repeat */
    double round_reused[GROWING_MAX], round_computed[GROWING_MAX]; /* of these, each request's */
} growing_report;

/* ERR_IO: some requests were not answered, and why. */
status serve_growing(load_target *t, const growing_plan *p, growing_report *out);
