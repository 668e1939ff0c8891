/* hstu bench latency --growing: requests of users whose histories grow, with the cache and
 * without; bench/serve_growing.h measures. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench/bench_load.h"
#include "cli/bench/serve_floor.h"
#include "cli/bench/serve_growing.h"

typedef struct growing_row {
    const char *cache;
    char note[128];    /* why nothing is reused; "" */
    double l20, floor; /* ms; NAN: not known */
    growing_report report;
} growing_row;

/* The least time of all requests. */
static double find_floor(const load_rig *rig, const growing_plan *p, const growing_report *g) {
    serve_floor f = serve_floor_measure(rig->e);
    double ms = 0;
    for (uint32_t i = 0; i < p->n_requests; i++) {
        engine_shape s = {.n_users = (int32_t)p->n_users,
                          .n_candidates = (int32_t)p->n_candidates,
                          .n_computed = g->round_computed[i] / p->n_users,
                          .n_reused = g->round_reused[i] / p->n_users};
        ms += serve_floor_ms(&f, rig->e, &s);
    }
    return ms;
}

/* NVIDIA's figures are of 16 requests to 4096 tokens, two an event. */
static bool is_published(const load_rig *rig, const growing_plan *p) {
    return strcmp(rig->info.task, "ranking") == 0 && p->n_requests == 16 && p->n_events == 2048 &&
           p->n_candidates == 256;
}

static status measure(const load_args *a, growing_plan p, bool has_cache, growing_row *row) {
    load_rig rig;
    load_args own = *a;
    if (!has_cache && a->server == NULL) own.kv_pages = 0;
    status st = load_rig_open(&rig, &own, 600000);
    bool is_ranking = strcmp(rig.info.task, "ranking") == 0;
    p.items = rig.items;
    p.n_candidates = (uint32_t)(is_ranking && a->candidates == 0 ? 256 : a->candidates);
    if (p.n_events == 0) p.n_events = rig.max_history;
    if (st == OK && p.n_events > rig.max_history)
        st =
            fail(ERR_USAGE, "--history %u: the model reads %u events", p.n_events, rig.max_history);
    if (st == OK) {
        row->cache = has_cache ? load_cache_name(&rig) : "none";
        snprintf(row->note, sizeof row->note, "%s", has_cache ? rig.info.cache_note : "");
        row->l20 = is_published(&rig, &p) ? growing_l20_ms(p.n_users, has_cache) : NAN;
        st = serve_growing(rig.target, &p, &row->report);
        if (st == OK) row->floor = find_floor(&rig, &p, &row->report);
    }
    load_rig_close(&rig);
    return st;
}

static void print_row(const growing_plan *p, const growing_row *r) {
    const growing_report *g = &r->report;
    printf("%5u  %-12s %9.2f %9.2f %9.2f %9.3f %9.3f %9.0f %9.0f", p->n_users, r->cache,
           g->total_ms, g->least_ms, g->most_ms, g->round_ms[0], g->round_ms[p->n_requests - 1],
           g->tokens_reused, g->tokens_computed);
    isnan(r->l20) ? (void)printf("         -") : (void)printf(" %9.1f", r->l20);
    if (!isnan(r->floor)) printf(" %9.2f %7.1f", r->floor, 100 * r->floor / g->total_ms);
    printf("\n");
    if (r->note[0] != '\0') printf("       nothing is reused: %s\n", r->note);
    (void)fflush(stdout);
}

static void write_row(json_writer *w, const growing_plan *p, const growing_row *r) {
    json_object_open(w);
    json_key_string(w, "cache", r->cache);
    json_key_double(w, "total_ms", r->report.total_ms);
    json_key_double(w, "minimum_ms", r->report.least_ms);
    json_key_double(w, "maximum_ms", r->report.most_ms);
    json_key(w, "round_ms");
    json_array_open(w);
    for (uint32_t i = 0; i < p->n_requests; i++)
        json_double(w, r->report.round_ms[i]);
    json_array_close(w);
    json_key_double(w, "tokens_reused", r->report.tokens_reused);
    json_key_double(w, "tokens_computed", r->report.tokens_computed);
    if (!isnan(r->l20)) json_key_double(w, "nvidia_l20_ms", r->l20);
    if (!isnan(r->floor)) {
        json_key_double(w, "floor_ms", r->floor);
        json_key_double(w, "percent_of_floor", 100 * r->floor / r->report.total_ms);
    }
    json_object_close(w);
}

static status save(const load_args *a, const growing_plan *p, const growing_row *rows, int n) {
    buf json;
    json_writer w;
    if (a->report == NULL) return OK;
    buf_init(&json);
    json_begin(&w, &json, 2);
    json_object_open(&w);
    json_key_string(&w, "bench", "growing");
    json_key_string(&w, "engine", a->server != NULL ? a->server : a->path);
    json_key_int(&w, "users", p->n_users);
    json_key_int(&w, "requests", p->n_requests);
    json_key(&w, "rows");
    json_array_open(&w);
    for (int i = 0; i < n; i++)
        write_row(&w, p, &rows[i]);
    json_array_close(&w);
    json_object_close(&w);
    status st = json_finish(&w);
    if (st == OK) st = load_save_report(a->report, &json);
    buf_fini(&json);
    return st;
}

status load_growing(const load_args *a, const growing_plan *p) {
    growing_row rows[2];
    int n = a->server != NULL ? 1 : 2; /* a server has the cache that it has */
    printf("%s: %u users at the same time, %u requests each, histories growing evenly; "
           "milliseconds of all of them, median of %u\n",
           a->server != NULL ? a->server : a->path, p->n_users, p->n_requests, p->n_repeats);
    printf("%5s  %-12s %9s %9s %9s %9s %9s %9s %9s %9s", "users", "cache", "total", "least", "most",
           "first", "last", "reused", "computed", "L20 ms*");
    if (a->server == NULL) printf(" %9s %7s", "floor**", "% of it");
    printf("\n");
    for (int i = 0; i < n; i++) {
        TRY(measure(a, *p, i == 0, &rows[i]));
        print_row(p, &rows[i]);
    }
    printf("* NVIDIA's recsys-examples on an L20, end to end: 16 requests to 4096 tokens, 8 "
           "layers, width 1024,\n  4 heads x 256, bf16, 256 candidates.\n");
    if (a->server == NULL)
        printf("** the least milliseconds of this work at the device's measured peaks.\n");
    return save(a, p, rows, n);
}
