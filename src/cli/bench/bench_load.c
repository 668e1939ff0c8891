#include "cli/bench/bench_load.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/thread.h"

load_args load_args_default(void) {
    return (load_args){.device = "auto",
                       .kv_pages = -1,
                       .items = 1000,
                       .seed = -1,
                       .requests = 1000,
                       .users = 1000000,
                       .top_k = 10,
                       .zipf = 1,
                       .returning = 0.8,
                       .history_mean = 100,
                       .history_deviation = 30,
                       .new_mean = 3,
                       .new_deviation = 2};
}

uint64_t load_args_seed(const load_args *a) {
    static uint64_t chosen;
    if (a->seed >= 0) return (uint64_t)a->seed;
    if (chosen == 0) chosen = a->server != NULL ? clock_ns() / 1000 : 1;
    return chosen;
}

static status open_engine(load_rig *r, const load_args *a, uint64_t deadline_ms) {
    engine_config c = {.data = a->data,
                       .device = a->device,
                       .max_batch = (int32_t)a->max_batch,
                       .max_tokens = (int32_t)a->max_tokens,
                       .kv_pages = a->kv_pages,
                       .kv_host_pages = a->kv_host_pages,
                       .deadline_ns = deadline_ms * 1000000};
    TRY(kv_args_dtype(a->kv_dtype, &c.has_fp8_kv));
    TRY(kv_args_load(a->kv_load, &c.loads_always));
    TRY(engine_create(&r->e, &c));
    TRY(engine_load(r->e, "model", a->path));
    TRY(engine_model(r->e, 0, &r->info));
    kv_args_tell(&r->info);
    r->items = (load_items){r->e, r->info.n_items};
    r->max_history = (uint32_t)r->info.max_history;
    return OK;
}

status load_rig_open(load_rig *r, const load_args *a, uint64_t deadline_ms) {
    *r = (load_rig){.items = {NULL, (uint64_t)a->items}, .max_history = 4096};
    if (a->path == NULL && a->server == NULL)
        return fail(ERR_USAGE, "what to ask? Name a RUN or an ENGINE, or --server URL");
    mem_keep_freed(); /* as a server does */
    if (a->path != NULL) TRY(open_engine(r, a, deadline_ms));
    if (a->server != NULL) return load_target_http(&r->target, a->server, a->model);
    return load_target_engine(&r->target, r->e);
}

void load_rig_close(load_rig *r) {
    if (r->target != NULL) r->target->close(r->target);
    engine_destroy(r->e);
    *r = (load_rig){0};
}

load_draw load_args_draw(const load_args *a, const load_rig *r, uint64_t n, uint64_t round) {
    bool is_ranking = strcmp(r->info.task, "ranking") == 0;
    return (load_draw){.items = r->items,
                       .n_requests = n,
                       .n_users = (uint64_t)a->users,
                       .zipf = a->zipf,
                       .returning = a->returning,
                       .history_mean = a->history_mean,
                       .history_deviation = a->history_deviation,
                       .new_mean = a->new_mean,
                       .new_deviation = a->new_deviation,
                       .max_history = r->max_history,
                       .n_candidates =
                           (uint32_t)(is_ranking && a->candidates == 0 ? 100 : a->candidates),
                       .top_k = (uint32_t)a->top_k,
                       .seed = load_args_seed(a) + round};
}

const char *load_cache_name(const load_rig *r) {
    if (r->e == NULL) return "the server's";
    if (!r->info.is_cached) return "cold";
    return strncmp(r->info.device, "cuda", 4) == 0 ? "gpu" : "memory";
}

void load_times_write(json_writer *w, const char *key, const load_times *t) {
    json_key(w, key);
    json_object_open(w);
    json_key_double(w, "minimum", t->min);
    json_key_double(w, "maximum", t->max);
    json_key_double(w, "average", t->mean);
    json_key_double(w, "p50", t->p50);
    json_key_double(w, "p90", t->p90);
    json_key_double(w, "p95", t->p95);
    json_key_double(w, "p99", t->p99);
    json_key_double(w, "p99.9", t->p999);
    json_object_close(w);
}

void load_report_write(json_writer *w, const load_report *r) {
    json_key(w, "request_info");
    json_object_open(w);
    json_key_int(w, "num_requests", (int64_t)r->n);
    json_key_int(w, "answered", (int64_t)r->n_ok);
    json_key_int(w, "refused", (int64_t)r->n_refused);
    json_key_int(w, "failed", (int64_t)r->n_failed);
    json_key_double(w, "avg_num_concurrent_requests", r->concurrency);
    json_key_double(w, "avg_events", r->n > 0 ? (double)r->n_events / (double)r->n : 0);
    json_object_close(w);
    json_key(w, "performance");
    json_object_open(w);
    json_key_double(w, "total_latency_ms", 1e3 * r->wall_s);
    json_key_double(w, "avg_request_latency_ms", r->latency.mean);
    json_key_double(w, "request_throughput_req_s", r->throughput);
    json_key_double(w, "candidates_s", r->wall_s > 0 ? (double)r->n_candidates / r->wall_s : 0);
    json_key_int(w, "tokens_reused", (int64_t)r->tokens_reused);
    json_key_int(w, "tokens_computed", (int64_t)r->tokens_computed);
    load_times_write(w, "request_latency_percentiles_ms", &r->latency);
    load_times_write(w, "request_latency_from_sending_ms", &r->answer);
    if (r->n_refused > 0) load_times_write(w, "refusal_percentiles_ms", &r->refusal);
    json_key_double(w, "send_lateness_p99_ms", r->late_ms);
    json_key_double(w, "read_lateness_p99_ms", r->read_ms);
    json_object_close(w);
}

static void print_times(const char *what, const load_times *t) {
    printf("%s P50    : %.3f\n%s P90    : %.3f\n%s P95    : %.3f\n%s P99    : "
           "%.3f\n%s P99.9  : "
           "%.3f\n%s MINIMUM: %.3f\n%s MAXIMUM: %.3f\n%s AVERAGE: %.3f\n",
           what, t->p50, what, t->p90, what, t->p95, what, t->p99, what, t->p999, what, t->min,
           what, t->max, what, t->mean);
}

void load_report_print(const load_report *r) {
    uint64_t tokens = r->tokens_reused + r->tokens_computed;
    printf("\nREQUEST DETAILS\nNumber of requests:                %llu (%llu "
           "answered, %llu refused, "
           "%llu failed)\n",
           (unsigned long long)r->n, (unsigned long long)r->n_ok, (unsigned long long)r->n_refused,
           (unsigned long long)r->n_failed);
    printf("Number of concurrent requests:     %.2f\n", r->concurrency);
    printf("Average events sent:               %.1f\n",
           r->n > 0 ? (double)r->n_events / (double)r->n : 0);
    printf("\nPERFORMANCE OVERVIEW\nRequest Throughput (req/sec):      %.1f\n", r->throughput);
    printf("Total Latency (ms):                %.1f\n", 1e3 * r->wall_s);
    printf("Average request latency (ms):      %.3f\n", r->latency.mean);
    printf("Tokens reused / computed:          %llu / %llu (%.1f %% reused)\n",
           (unsigned long long)r->tokens_reused, (unsigned long long)r->tokens_computed,
           tokens > 0 ? 100 * (double)r->tokens_reused / (double)tokens : 0);
    if (r->n_candidates > 0 && r->wall_s > 0)
        printf("Candidates (per second):           %.0f\n", (double)r->n_candidates / r->wall_s);
    printf("\n-- Request Latency Breakdown (ms) --\n");
    print_times("[Latency]", &r->latency);
    if (r->late_ms > 0) { /* an open loop, where the sender can be late itself */
        printf("\n-- Request Latency from the moment of sending (ms) --\n");
        print_times("[Answer] ", &r->answer);
    }
    if (r->n_refused > 0) {
        printf("\n-- Refusals (ms) --\n");
        print_times("[Refusal]", &r->refusal);
    }
    if (r->late_ms > 1)
        printf(
            "\nnote: 1 %% of the requests were sent %.1f ms late or more: the sender limits this "
            "rate\n",
            r->late_ms);
    if (r->error[0] != '\0') printf("\nfirst failure: %s\n", r->error);
}

status load_save_report(const char *path, const buf *json) {
    out_file *f;
    if (path == NULL) return OK;
    TRY(out_file_create(&f, path));
    status st = out_file_write(f, buf_str(json), json->n_bytes);
    if (st == OK) st = out_file_write(f, "\n", 1);
    return out_file_end(f, st);
}
