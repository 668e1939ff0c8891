#include "cli/bench/serve_load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

double load_percentile(const double *sorted, size_t n, double p) {
    size_t i = (size_t)((double)n * p);
    return n == 0 ? 0 : sorted[i < n ? i : n - 1];
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarise(double *ms, size_t n, load_times *out) {
    *out = (load_times){.n = n};
    if (n == 0) return;
    qsort(ms, n, sizeof *ms, compare);
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ms[i];
    out->mean = sum / (double)n;
    out->min = ms[0];
    out->max = ms[n - 1];
    out->p50 = load_percentile(ms, n, .5);
    out->p90 = load_percentile(ms, n, .9);
    out->p95 = load_percentile(ms, n, .95);
    out->p99 = load_percentile(ms, n, .99);
    out->p999 = load_percentile(ms, n, .999);
}

static double ms_between(uint64_t from, uint64_t to) {
    return (double)(int64_t)(to - from) / 1e6;
}

/* The times of one kind of outcome. */
typedef double (*outcome_ms)(const load_outcome *o);
static double latency_ms(const load_outcome *o) {
    return ms_between(o->intended_ns, o->done_ns);
}
static double answer_ms(const load_outcome *o) {
    return ms_between(o->sent_ns, o->done_ns);
}

static void collect(const load_outcome *o, size_t n, load_kind kind, outcome_ms of, double *ms,
                    load_times *out) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (o[i].is_timed && o[i].kind == kind) ms[count++] = of(&o[i]);
    summarise(ms, count, out);
}

static void count_outcomes(const load_set *s, const load_outcome *o, load_report *out) {
    uint64_t first = UINT64_MAX, last = 0;
    double busy_ms = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (!o[i].is_timed) continue;
        out->n++;
        out->n_ok += o[i].kind == LOAD_OK;
        out->n_refused += o[i].kind == LOAD_REFUSED;
        out->n_failed += o[i].kind == LOAD_FAILED;
        out->tokens_reused += (uint64_t)o[i].tokens_reused;
        out->tokens_computed += (uint64_t)o[i].tokens_computed;
        out->n_events += s->item[i].n_events;
        if (o[i].kind == LOAD_OK) out->n_candidates += s->item[i].n_candidates;
        if (o[i].sent_ns < first) first = o[i].sent_ns;
        if (o[i].done_ns > last) last = o[i].done_ns;
        busy_ms += ms_between(o[i].sent_ns, o[i].done_ns);
    }
    out->wall_s = out->n > 0 ? ms_between(first, last) / 1e3 : 0;
    if (out->wall_s <= 0) return;
    out->throughput = (double)out->n_ok / out->wall_s;
    out->concurrency = busy_ms / 1e3 / out->wall_s;
}

static status make_report(const load_set *s, const load_outcome *o, load_report *out) {
    double *ms;
    size_t n = 0;
    TRY(MEM_NEW_RAW(&ms, s->n + 1));
    *out = (load_report){0};
    count_outcomes(s, o, out);
    for (size_t i = 0; i < s->n; i++)
        if (o[i].is_timed) ms[n++] = ms_between(o[i].intended_ns, o[i].sent_ns);
    qsort(ms, n, sizeof *ms, compare);
    out->late_ms = load_percentile(ms, n, .99);
    n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (o[i].is_timed) ms[n++] = ms_between(o[i].done_ns, o[i].read_ns);
    qsort(ms, n, sizeof *ms, compare);
    out->read_ms = load_percentile(ms, n, .99);
    collect(o, s->n, LOAD_OK, latency_ms, ms, &out->latency);
    collect(o, s->n, LOAD_OK, answer_ms, ms, &out->answer);
    collect(o, s->n, LOAD_REFUSED, answer_ms, ms, &out->refusal);
    mem_free(ms);
    return OK;
}

/* Random numbers of the gaps. */
typedef struct gap_source {
    rng_key key;
    uint64_t n;
} gap_source;

static double uniform(gap_source *g) {
    rng_block b = rng_draw64(g->key, g->n++, 1);
    return (rng_uniform64(b.word[0], b.word[1]) * 9007199254740992.0 + 0.5) / 9007199254740993.0;
}

static double normal(gap_source *g) {
    double radius = sqrt(-2 * log(uniform(g)));
    return radius * cos(6.283185307179586 * uniform(g));
}

/* Gamma of mean 1 and the given shape (Marsaglia and Tsang, 2000). */
static double gamma_gap(gap_source *g, double shape) {
    double a = shape < 1 ? shape + 1 : shape, d = a - 1.0 / 3, c = 1 / sqrt(9 * d), x, v;
    double boost = shape < 1 ? pow(uniform(g), 1 / shape) : 1;
    do {
        do {
            x = normal(g);
            v = 1 + c * x;
        } while (v <= 0);
        v = v * v * v;
    } while (log(uniform(g)) > 0.5 * x * x + d - d * v + d * log(v));
    return boost * d * v / shape;
}

static status plan_times(const load_plan *p, size_t n, uint64_t **out) {
    gap_source g = {rng_make_key(p->seed, RNG_TEST), 0};
    double at = 0;
    *out = NULL;
    if (p->rate <= 0) return OK;
    TRY(MEM_NEW_RAW(out, n + 1));
    for (size_t i = 0; i < n; i++) {
        (*out)[i] = (uint64_t)at;
        at += gamma_gap(&g, p->burstiness > 0 ? p->burstiness : 1) * 1e9 / p->rate;
    }
    return OK;
}

status load_run(load_target *t, const load_set *s, const load_plan *p, load_report *out) {
    load_outcome *outcomes;
    uint64_t *at = NULL;
    TRY(MEM_NEW(&outcomes, s->n + 1));
    for (size_t i = 0; i < s->n; i++)
        outcomes[i].is_timed = s->item[i].is_timed;
    t->error[0] = '\0';
    status st = plan_times(p, s->n, &at);
    if (st == OK) st = t->run(t, s, p, at, outcomes);
    if (st == OK) st = make_report(s, outcomes, out);
    if (st == OK) snprintf(out->error, sizeof out->error, "%s", t->error);
    mem_free(at);
    mem_free(outcomes);
    return st;
}

static bool is_within(const load_search *s, const load_report *r) {
    return r->n_ok > 0 && r->n_failed == 0 && r->latency.p99 <= s->slo_ms &&
           r->n_refused * 100 <= r->n;
}

static status try_rate(const load_search *s, int round, double rate, load_report *r) {
    load_set set;
    load_plan plan = {.concurrency = s->concurrency,
                      .rate = rate,
                      .burstiness = s->burstiness,
                      .seed = (uint64_t)round + 1};
    double n = rate * s->seconds < 50 ? 50 : rate * s->seconds;
    load_set_init(&set);
    status st = s->draw(s->ctx, (uint64_t)round, (uint64_t)n, &set);
    if (st == OK) st = load_run(s->target, &set, &plan, r);
    load_set_fini(&set);
    if (st == OK && s->tell != NULL) s->tell(s->ctx, rate, r);
    return st;
}

status load_search_rate(const load_search *s, double *rate, load_report *best) {
    double low = 0, high = 2 * s->capacity;
    *rate = 0;
    *best = (load_report){0};
    for (int round = 0; round < s->n_rounds; round++) {
        load_report r;
        double middle = round == 0 ? s->capacity / 2 : (low + high) / 2;
        TRY(try_rate(s, round, middle, &r));
        bool is_fine = is_within(s, &r);
        if (is_fine) {
            low = *rate = middle;
            *best = r;
        } else {
            high = middle;
        }
    }
    return OK;
}

/* Bars of the project's charts, measured by pixel: columns are the tokens in
 * the cache. */
double load_l20_ms(int batch, int n_tokens, int n_new) {
    static const struct {
        int batch, n_tokens;
        double ms[6]; /* cached: 0, 1/2, 3/4, 7/8, 15/16, 31/32 of the tokens */
    } rows[] = {{1, 4096, {8.53, 5.98, 3.47, 3.04, 2.79, 2.72}},
                {1, 2048, {3.94, 2.46, 2.03, 1.77, 1.70, NAN}},
                {1, 1024, {1.94, 1.51, 1.26, 1.20, NAN, NAN}},
                {1, 512, {1.25, 1.01, .94, NAN, NAN, NAN}},
                {1, 256, {.86, .81, NAN, NAN, NAN, NAN}},
                {1, 128, {.74, NAN, NAN, NAN, NAN, NAN}},
                {8, 4096, {71.5, 43.2, 25.0, 16.5, 10.7, 9.30}},
                {8, 2048, {30.3, 17.8, 11.5, 7.75, 6.35, NAN}},
                {8, 1024, {14.1, 9.08, 6.20, 4.87, NAN, NAN}},
                {8, 512, {7.75, 5.39, 4.21, NAN, NAN, NAN}},
                {8, 256, {4.87, 3.84, NAN, NAN, NAN, NAN}},
                {8, 128, {3.62, NAN, NAN, NAN, NAN, NAN}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int c = 0; c < 6; c++)
            if (rows[i].batch == batch && rows[i].n_tokens == n_tokens && n_tokens >> c == n_new)
                return rows[i].ms[c];
    return NAN;
}
