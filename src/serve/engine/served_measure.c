/* What a model's server measures before it is ready: the costs of computing a token and of loading
 * a page, between which requests choose, and what 8-bit keys and values change. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "serve/engine/served.h"

enum { CANDIDATES = 64, REPEATS = 3, MOVED = 32 };

/* A made-up history, and candidates where the model ranks. */
typedef struct trial {
    uint32_t *item;
    uint16_t *action;
    int64_t *time;
    uint32_t candidate[CANDIDATES];
    int32_t n_candidates;
} trial;

static status make_trial(trial *t, const served *m) {
    size_t n = (size_t)m->s->max_history;
    uint32_t n_items = (uint32_t)m->names->n_items;
    int32_t most = m->infer.max_part < CANDIDATES ? m->infer.max_part : CANDIDATES;
    *t = (trial){.n_candidates = m->is_ranking ? most : 0};
    TRY(MEM_NEW(&t->item, n));
    TRY(MEM_NEW(&t->action, n));
    TRY(MEM_NEW(&t->time, n));
    for (size_t i = 0; i < n; i++) {
        t->item[i] = 1 + (uint32_t)(i * 7919 % n_items);
        t->time[i] = (int64_t)i * 60 * m->names->time_per_second;
    }
    for (uint32_t i = 0; i < CANDIDATES; i++)
        t->candidate[i] = 1 + i % n_items;
    return OK;
}

static void free_trial(trial *t) {
    mem_free(t->item);
    mem_free(t->action);
    mem_free(t->time);
}

/* Runs the last n events of the history; (n_rows, width) results, memory of the pass. */
static status run_trial(served *m, const trial *t, int32_t n, const void **out,
                        int64_t *n_numbers) {
    int64_t n_rows;
    int32_t from = m->s->max_history - n;
    user_events u = {.n = (uint64_t)n,
                     .item = t->item + from,
                     .action = t->action + from,
                     .time = t->time + from};
    histories_clear(&m->infer.batch);
    TRY(histories_add(&m->infer.batch, &u, t->candidate, t->n_candidates));
    if (m->is_ranking) {
        TRY(pass_score(m->infer.pass, &m->infer.batch.view, out, &n_rows));
        *n_numbers = n_rows * m->infer.columns.width;
    } else {
        TRY(pass_encode(m->infer.pass, &m->infer.batch.view, out));
        *n_numbers = m->infer.table.dim;
    }
    return m->compute.be->ops->sync(m->compute.be);
}

/* The least of a few times. */
static status time_trial(served *m, const trial *t, int32_t n, double *seconds) {
    const void *out;
    int64_t n_numbers;
    *seconds = INFINITY;
    for (int i = 0; i <= REPEATS; i++) { /* the first one warms up */
        uint64_t start = clock_ns();
        TRY(run_trial(m, t, n, &out, &n_numbers));
        if (i > 0) *seconds = fmin(*seconds, (double)(clock_ns() - start) / 1e9);
    }
    return OK;
}

/* The FLOPs of a history cost the same at any length; what every request costs besides is not part
 * of the choice. */
static status measure_compute(served *m, const trial *t) {
    int32_t longest = m->s->max_history, shorter = longest / 4 > 0 ? longest / 4 : 1;
    int32_t length[2] = {longest, shorter};
    double s[2], flops[2];
    for (int i = 0; i < 2; i++) {
        int32_t n = m->infer.n_context + m->infer.per_event * length[i] + t->n_candidates;
        TRY(time_trial(m, t, length[i], &s[i]));
        flops[i] = served_flops(m, n, t->n_candidates, 0);
    }
    double rate = flops[0] > flops[1] ? (s[0] - s[1]) / (flops[0] - flops[1]) : 0;
    if (rate < 0) rate = 0;
    m->costs.token_s = rate * m->flops_token;
    m->costs.pair_s = rate * m->flops_pair;
    return OK;
}

static status time_loads(served *m, const kv_move *moves, int32_t n, double *seconds) {
    *seconds = INFINITY;
    for (int i = 0; i <= REPEATS; i++) {
        uint64_t start = clock_ns();
        TRY(kv_store_move_all(&m->store, moves, n));
        if (i > 0) *seconds = fmin(*seconds, (double)(clock_ns() - start) / 1e9);
    }
    return OK;
}

/* Nothing is in the pages yet.  The fixed part is what one page costs beyond its share. */
static status measure_load(served *m) {
    int32_t n = m->store.n_pages < m->store.n_host_pages ? m->store.n_pages : m->store.n_host_pages;
    kv_move moves[MOVED];
    double one, all;
    if (n > MOVED) n = MOVED;
    for (int32_t i = 0; i < n; i++)
        moves[i] = (kv_move){i, i};
    TRY(time_loads(m, moves, 1, &one));
    TRY(time_loads(m, moves, n, &all));
    m->costs.page_s = n > 1 && all > one ? (all - one) / (n - 1) : all / n;
    m->costs.load_s = one > m->costs.page_s ? one - m->costs.page_s : 0;
    /* A GPU copies beside its computation, layer by layer. */
    m->costs.n_stages = m->compute.be->card != NULL ? m->store.n_layers : 1;
    return OK;
}

static status read_trial(served *m, const trial *t, float **out, int64_t *n) {
    const void *results;
    *out = NULL;
    TRY(run_trial(m, t, m->s->max_history, &results, n));
    TRY(MEM_NEW(out, (size_t)*n));
    return backend_read_act(m->compute.be, *out, results, (size_t)*n);
}

static status measure_fp8(served *m, const trial *t) {
    float *exact = NULL, *rounded = NULL;
    int64_t n = 0;
    pass_set_fp8_kv(m->infer.pass, false);
    status st = read_trial(m, t, &exact, &n);
    pass_set_fp8_kv(m->infer.pass, true);
    if (st == OK) st = read_trial(m, t, &rounded, &n);
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < n && st == OK; i++) {
        largest = fmax(largest, fabs((double)exact[i]));
        worst = fmax(worst, fabs((double)exact[i] - (double)rounded[i]));
    }
    m->fp8_error = largest > 0 ? worst / largest : 0;
    mem_free(exact);
    mem_free(rounded);
    return st;
}

status served_measure(served *m, const served_config *c) {
    trial t = {0};
    bool has_host = m->cache != NULL && m->store.n_host_pages > 0 && !c->loads_always;
    if (!has_host && !m->has_fp8_kv) return OK;
    status st = make_trial(&t, m);
    if (st == OK && m->has_fp8_kv) st = measure_fp8(m, &t);
    if (st == OK && has_host) st = measure_compute(m, &t);
    if (st == OK && has_host) st = measure_load(m);
    if (st == OK && has_host) kv_cache_set_costs(m->cache, &m->costs);
    free_trial(&t);
    return st;
}
