#include "cli/bench/serve_growing.h"

#include <math.h>
#include <stdlib.h>

/* One repeat. */
typedef struct turn {
    double total_ms, reused, computed;
    double round_ms[GROWING_MAX], round_reused[GROWING_MAX], round_computed[GROWING_MAX];
} turn;

static status ask_round(load_target *t, const growing_plan *p, uint32_t i, uint64_t seed,
                        turn *out) {
    load_set set;
    load_report r;
    load_single d = {.items = p->items,
                     .n = p->n_users,
                     .n_events = (uint32_t)((uint64_t)p->n_events * (i + 1) / p->n_requests),
                     .n_candidates = p->n_candidates,
                     .top_k = p->top_k,
                     .seed = seed};
    load_plan plan = {.concurrency = (int)p->n_users};
    load_set_init(&set);
    status st = load_set_single(&set, &d);
    if (st == OK) st = load_run(t, &set, &plan, &r);
    load_set_fini(&set);
    TRY(st);
    if (r.n_ok < r.n)
        return fail(ERR_IO, "%llu of %llu requests were not answered: %s",
                    (unsigned long long)(r.n - r.n_ok), (unsigned long long)r.n, r.error);
    out->round_ms[i] = r.wall_s * 1e3;
    out->total_ms += r.wall_s * 1e3;
    out->round_reused[i] = (double)r.tokens_reused;
    out->round_computed[i] = (double)r.tokens_computed;
    out->reused += out->round_reused[i];
    out->computed += out->round_computed[i];
    return OK;
}

static int by_total(const void *a, const void *b) {
    double x = ((const turn *)a)->total_ms, y = ((const turn *)b)->total_ms;
    return (x > y) - (x < y);
}

static status run(load_target *t, const growing_plan *p, turn *turns) {
    for (uint32_t n = 0; n < p->n_warmup + p->n_repeats; n++) {
        turn *at = &turns[n < p->n_warmup ? 0 : n - p->n_warmup];
        *at = (turn){0};
        for (uint32_t i = 0; i < p->n_requests; i++)
            TRY(ask_round(t, p, i, p->seed + n, at));
    }
    return OK;
}

status serve_growing(load_target *t, const growing_plan *p, growing_report *out) {
    turn *turns;
    if (p->n_requests < 1 || p->n_requests > GROWING_MAX || p->n_requests > p->n_events)
        return fail(ERR_USAGE,
                    "%u growing requests to %u events; 1 to %d, each longer than the "
                    "one before",
                    p->n_requests, p->n_events, GROWING_MAX);
    if (p->n_users < 1 || p->n_repeats < 1)
        return fail(ERR_USAGE, "growing requests of %u users, %u times", p->n_users, p->n_repeats);
    TRY(MEM_NEW(&turns, p->n_repeats));
    status st = run(t, p, turns);
    if (st == OK) {
        qsort(turns, p->n_repeats, sizeof *turns, by_total);
        const turn *middle = &turns[p->n_repeats / 2];
        *out = (growing_report){.total_ms = middle->total_ms,
                                .least_ms = turns[0].total_ms,
                                .most_ms = turns[p->n_repeats - 1].total_ms,
                                .tokens_reused = middle->reused,
                                .tokens_computed = middle->computed};
        for (uint32_t i = 0; i < p->n_requests; i++) {
            out->round_ms[i] = middle->round_ms[i];
            out->round_reused[i] = middle->round_reused[i];
            out->round_computed[i] = middle->round_computed[i];
        }
    }
    mem_free(turns);
    return st;
}

double growing_l20_ms(uint32_t n_users, bool has_cache) {
    static const struct {
        uint32_t n_users;
        double plain, cached;
    } published[] = {{1, 89.7, 70.6}, {2, 129.9, 76.9}, {4, 222.5, 110.8}, {8, 411.6, 159.3}};
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (published[i].n_users == n_users)
            return has_cache ? published[i].cached : published[i].plain;
    return NAN;
}
