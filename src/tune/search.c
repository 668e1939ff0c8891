#include "tune/search.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/text.h"
#include "tune/search_int.h"

static const char *const names[N_SEARCHES] = {"exact", "xgboost", "random", "anneal", "grouped"};

const char *search_name(search_kind kind) {
    return names[kind];
}

status search_find(const char *name, search_kind *out) {
    for (int i = 0; i < N_SEARCHES; i++) {
        *out = (search_kind)i;
        if (strcmp(name, names[i]) == 0) return OK;
    }
    const char *near = nearest_name(name, names, N_SEARCHES);
    return fail(ERR_USAGE,
                "--search %.40s: the searches are exact, xgboost, random, anneal and grouped%s%s%s",
                name, near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                near != NULL ? "'?" : "");
}

void search_result_fini(search_result *r) {
    plan_times_fini(&r->measured);
}

double search_best_after(const search_result *r, size_t n) {
    double best = INFINITY;
    for (size_t i = 0; i < n && i < r->measured.n; i++)
        best = fmin(best, r->measured.item[i].ms);
    return best;
}

uint32_t search_draw(search *s, uint32_t n) {
    return rng_below(rng_draw64(s->key, s->n_draws++, 0).word[0], n);
}

double search_uniform(search *s) {
    return rng_uniform(rng_draw64(s->key, s->n_draws++, 0).word[0]);
}

bool search_is_over(const search *s) {
    return s->out->measured.n >= (size_t)s->budget || s->out->measured.n >= s->n_programs;
}

bool search_knows(const search *s, uint16_t value) {
    return s->is_program[plan_canonical(s->o->c, value)];
}

status search_ask(search *s, uint16_t value, double *ms) {
    uint16_t canonical = plan_canonical(s->o->c, value);
    *ms = s->ms[canonical];
    if (!isnan(*ms)) return OK;
    TRY(s->o->measure(s->o->ctx, canonical, ms));
    s->ms[canonical] = *ms;
    TRY(plan_times_add(&s->out->measured, canonical, *ms));
    if (s->out->measured.n == 1 || *ms < s->out->best.ms)
        s->out->best = (plan_time){canonical, *ms};
    return OK;
}

uint16_t search_random_plan(search *s) {
    return s->program[search_draw(s, (uint32_t)s->n_programs)];
}

/* Random plans that were not asked before, up to n measurements in all. */
status search_ask_random(search *s, size_t n) {
    double ms;
    while (!search_is_over(s) && s->out->measured.n < n)
        TRY(search_ask(s, search_random_plan(s), &ms));
    return OK;
}

static status run_random(search *s) {
    return search_ask_random(s, (size_t)s->budget);
}

/* The labels of all operators after a boundary are inverted: the boundary changes, no other does.
 */
uint16_t search_flip_boundary(uint16_t value, int boundary) {
    return (uint16_t)(value ^ ((1u << (CHAIN_OPS - 1 - boundary)) - 1));
}

/* Boundary 0..13, or bit 0. */
static uint16_t change_one(uint16_t value, uint32_t what) {
    return what < CHAIN_OPS - 1 ? search_flip_boundary(value, (int)what)
                                : (uint16_t)(value ^ 0x8000);
}

enum { MAX_IDLE = 2000 }; /* questions in a row whose answer is known: the search is stuck */

/* The temperature is a share of the time: from 0.3 to 0.003 over the budget. */
static status run_anneal(search *s) {
    double ms, next_ms;
    uint16_t at = search_random_plan(s);
    TRY(search_ask(s, at, &ms));
    for (int idle = 0; !search_is_over(s) && idle < MAX_IDLE; idle++) {
        uint16_t next = change_one(at, search_draw(s, CHAIN_OPS));
        size_t before = s->out->measured.n;
        if (!search_knows(s, next)) continue;
        TRY(search_ask(s, next, &next_ms));
        if (s->out->measured.n > before) idle = 0;
        double temperature = 0.3 * pow(0.01, (double)s->out->measured.n / s->budget);
        bool is_taken =
            next_ms <= ms || search_uniform(s) < exp(-(next_ms - ms) / ms / temperature);
        if (is_taken) {
            at = next;
            ms = next_ms;
        }
    }
    return OK;
}

/* Groups of boundaries: before the attention, inside it with bit 0, then two at a time. */
enum { MAX_GROUPS = 10 };
typedef struct group {
    int first, last; /* boundaries */
    bool has_bit0;
    double probability;
    int n_better;
} group;

static int make_groups(const chain *c, group *g) {
    int n = 0, first = c->attention_first;
    if (first > 0) g[n++] = (group){.first = 0, .last = first - 1};
    g[n++] = (group){.first = first, .last = c->attention_last - 1, .has_bit0 = true};
    for (int b = c->attention_last; b < CHAIN_OPS - 1; b += 2)
        g[n++] = (group){.first = b, .last = b + 1 < CHAIN_OPS - 1 ? b + 1 : b};
    for (int i = 0; i < n; i++)
        g[i].probability = 1.0 / n;
    return n;
}

static group *draw_group(search *s, group *g, int n) {
    double at = search_uniform(s);
    for (int i = 0; i + 1 < n; i++) {
        if (at < g[i].probability) return &g[i];
        at -= g[i].probability;
    }
    return &g[n - 1];
}

/* The boundaries of one group are drawn again; the attention's are all joined half of the time. */
static uint16_t draw_again(search *s, uint16_t value, const group *g) {
    bool is_joined = g->has_bit0 && search_draw(s, 2) == 0;
    for (int b = g->first; b <= g->last; b++) {
        bool is_cut = ((value >> (CHAIN_OPS - 1 - b) ^ value >> (CHAIN_OPS - 2 - b)) & 1) != 0;
        bool wants_cut = !is_joined && search_draw(s, 2) == 1;
        if (is_cut != wants_cut) value = search_flip_boundary(value, b);
    }
    return g->has_bit0 && search_draw(s, 2) == 0 ? (uint16_t)(value ^ 0x8000) : value;
}

/* Groups that improved the best plan get half as much again; no group falls below 2 %. */
static void reward(group *g, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        if (g[i].n_better > 0) g[i].probability *= 1.5;
        g[i].probability = fmax(g[i].probability, 0.02);
        g[i].n_better = 0;
        sum += g[i].probability;
    }
    for (int i = 0; i < n; i++)
        g[i].probability /= sum;
}

static status run_grouped(search *s) {
    group groups[MAX_GROUPS];
    int n = make_groups(s->o->c, groups);
    double ms;
    TRY(search_ask(s, search_random_plan(s), &ms));
    for (int idle = 0; !search_is_over(s) && idle < MAX_IDLE; idle++) {
        group *g = draw_group(s, groups, n);
        double best = s->out->best.ms;
        size_t before = s->out->measured.n;
        uint16_t next = draw_again(s, s->out->best.value, g);
        for (int more = idle / 20; more > 0; more--) /* known all around: further away */
            next = draw_again(s, next, draw_group(s, groups, n));
        if (!search_knows(s, next)) continue;
        TRY(search_ask(s, next, &ms));
        if (s->out->measured.n == before) continue;
        idle = 0;
        g->n_better += ms < best;
        if (s->out->measured.n % 4 == 0) reward(groups, n);
    }
    return OK;
}

static status list_programs(search *s) {
    const plan_oracle *o = s->o;
    TRY(MEM_NEW(&s->program, PLAN_PROGRAMS));
    TRY(MEM_NEW(&s->is_program, PLAN_CODES));
    TRY(MEM_NEW(&s->ms, PLAN_CODES));
    for (unsigned v = 0; v < PLAN_CODES; v++) {
        s->ms[v] = NAN;
        s->is_program[v] = plan_canonical(o->c, (uint16_t)v) == v &&
                           (o->contains == NULL || o->contains(o->ctx, (uint16_t)v));
        if (s->is_program[v]) s->program[s->n_programs++] = (uint16_t)v;
    }
    return s->n_programs > 0 ? OK : fail(ERR_FORMAT, "no times of plans to search");
}

status search_run(search_kind kind, const plan_oracle *o, int budget, uint64_t seed,
                  search_result *out) {
    static status (*const runs[N_SEARCHES])(search *) = {search_run_exact, search_run_xgboost,
                                                         run_random, run_anneal, run_grouped};
    search s = {
        .o = o, .budget = budget, .out = out, .key = rng_make_key(seed, RNG_SHUFFLE), .seed = seed};
    *out = (search_result){0};
    status st = list_programs(&s);
    if (st == OK) st = runs[kind](&s);
    mem_free(s.program);
    mem_free(s.is_program);
    mem_free(s.ms);
    if (st != OK) search_result_fini(out);
    return st;
}
