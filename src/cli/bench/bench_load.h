/* What `hstu bench latency`, `throughput` and `dataset` share: options of a
 * load, its target, and how a report is written. */
#ifndef HSTU_CLI_BENCH_BENCH_LOAD_H
#define HSTU_CLI_BENCH_BENCH_LOAD_H

#include "cli/bench/serve_growing.h"
#include "cli/serve/serve.h"
#include "format/json.h"

/* Options of a target and of the requests; the initial values are the defaults.
 */
typedef struct load_args {
    const char *path; /* RUN or ENGINE; or NULL */
    const char *server, *model, *data, *device, *dataset, *report;
    const char *kv_load, *kv_dtype;
    int64_t kv_pages, kv_host_pages, max_batch, max_tokens, items, seed;
    int64_t requests, users, candidates, top_k;
    double zipf, returning, history_mean, history_deviation, new_mean, new_deviation;
} load_args;

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

/* The draw that the options describe. */
load_draw load_args_draw(const load_args *a, const load_rig *r, uint64_t n, uint64_t round);

/* "cold" is without a cache, "memory" the CPU's pages, "gpu" those of a GPU. */
const char *load_cache_name(const load_rig *r);

/* Members of an open object: "latency_ms": {"p50", ...}. */
void load_times_write(json_writer *w, const char *key, const load_times *t);
void load_report_write(json_writer *w, const load_report *r);
void load_report_print(const load_report *r); /* trtllm-bench's sections */

/* `bench latency --growing`: its table, and the report.  p->items and n_candidates are set here;
 * n_events 0: the longest history that the model reads. */
status load_growing(const load_args *a, const growing_plan *p);

/* Writes an object to --report-json FILE; NULL: nothing. */
status load_save_report(const char *path, const buf *json);

#endif
