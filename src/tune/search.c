#include "tune/search.h"

#include "base/autotune.h"
#include "tune/cost_model.h"

const char *const search_names[] = {"exact", "xgboost", "random", "anneal", "grouped", NULL};

void search_result_fini(search_result *r) {
    plan_times_fini(&r->measured);
}

/* The programs an oracle knows, and the answers so far. */
typedef struct search {
    const plan_oracle *o;
    int budget;
    search_result *out;
    rng_key key;
    uint64_t seed, n_draws;
    uint16_t *program; /* (n_programs) canonical codes that the oracle knows */
    size_t n_programs;
    bool *is_program; /* (PLAN_CODES) */
    double *ms;       /* (PLAN_CODES) answers; NAN: not asked */
} search;

/* 0 .. n - 1. */
static uint32_t draw(search *s, uint32_t n) {
    return rng_below(rng_draw64(s->key, s->n_draws++, 0).word[0], n);
}

/* [0, 1). */
static double draw_uniform(search *s) {
    return rng_uniform(rng_draw64(s->key, s->n_draws++, 0).word[0]);
}

static bool is_over(const search *s) {
    return s->out->measured.n >= (size_t)s->budget || s->out->measured.n >= s->n_programs;
}

static bool is_known(const search *s, uint16_t value) {
    return s->is_program[plan_canonical(s->o->c, value)];
}

/* The time of a plan; a program counts against the budget the first time only. */
static status ask(search *s, uint16_t value, double *ms) {
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

static uint16_t random_plan(search *s) {
    return s->program[draw(s, (uint32_t)s->n_programs)];
}

/* Random plans that were not asked before, up to n measurements in all. */
static status ask_random(search *s, size_t n) {
    double ms;
    while (!is_over(s) && s->out->measured.n < n)
        TRY(ask(s, random_plan(s), &ms));
    return OK;
}

static status run_random(search *s) {
    return ask_random(s, (size_t)s->budget);
}

/* The labels of all operators after a boundary are inverted: the boundary changes, no other does.
 */
static uint16_t flip_boundary(uint16_t value, int boundary) {
    return (uint16_t)(value ^ ((1u << (CHAIN_OPS - 1 - boundary)) - 1));
}

/* Boundary 0..13, or bit 0. */
static uint16_t change_one(uint16_t value, uint32_t what) {
    return what < CHAIN_OPS - 1 ? flip_boundary(value, (int)what) : (uint16_t)(value ^ 0x8000);
}

enum { MAX_IDLE = 2000 }; /* questions in a row whose answer is known: the search is stuck */

/* The temperature is a share of the time: from 0.3 to 0.003 over the budget. */
static status run_anneal(search *s) {
    double ms, next_ms;
    uint16_t at = random_plan(s);
    TRY(ask(s, at, &ms));
    for (int idle = 0; !is_over(s) && idle < MAX_IDLE; idle++) {
        uint16_t next = change_one(at, draw(s, CHAIN_OPS));
        size_t before = s->out->measured.n;
        if (!is_known(s, next)) continue;
        TRY(ask(s, next, &next_ms));
        if (s->out->measured.n > before) idle = 0;
        double temperature = 0.3 * pow(0.01, (double)s->out->measured.n / s->budget);
        bool is_taken = next_ms <= ms || draw_uniform(s) < exp(-(next_ms - ms) / ms / temperature);
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
    double at = draw_uniform(s);
    for (int i = 0; i + 1 < n; i++) {
        if (at < g[i].probability) return &g[i];
        at -= g[i].probability;
    }
    return &g[n - 1];
}

/* The boundaries of one group are drawn again; the attention's are all joined half of the time. */
static uint16_t draw_again(search *s, uint16_t value, const group *g) {
    bool is_joined = g->has_bit0 && draw(s, 2) == 0;
    for (int b = g->first; b <= g->last; b++) {
        bool is_cut = ((value >> (CHAIN_OPS - 1 - b) ^ value >> (CHAIN_OPS - 2 - b)) & 1) != 0;
        bool wants_cut = !is_joined && draw(s, 2) == 1;
        if (is_cut != wants_cut) value = flip_boundary(value, b);
    }
    return g->has_bit0 && draw(s, 2) == 0 ? (uint16_t)(value ^ 0x8000) : value;
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
    TRY(ask(s, random_plan(s), &ms));
    for (int idle = 0; !is_over(s) && idle < MAX_IDLE; idle++) {
        group *g = draw_group(s, groups, n);
        double best = s->out->best.ms;
        size_t before = s->out->measured.n;
        uint16_t next = draw_again(s, s->out->best.value, g);
        for (int more = idle / 20; more > 0; more--) /* known all around: further away */
            next = draw_again(s, next, draw_group(s, groups, n));
        if (!is_known(s, next)) continue;
        TRY(ask(s, next, &ms));
        if (s->out->measured.n == before) continue;
        idle = 0;
        g->n_better += ms < best;
        if (s->out->measured.n % 4 == 0) reward(groups, n);
    }
    return OK;
}

/* Kernels as unknowns: one for each legal segment, and the hand-written attention last. */
typedef struct unknowns {
    int index[CHAIN_OPS][CHAIN_OPS]; /* -1: no kernel */
    int n;
} unknowns;

enum { MAX_UNKNOWNS = CHAIN_OPS * (CHAIN_OPS + 1) / 2 + 1 };

static unknowns list_unknowns(const plan_oracle *o) {
    unknowns u = {.n = 0};
    for (int first = 0; first < CHAIN_OPS; first++)
        for (int last = 0; last < CHAIN_OPS; last++) {
            bool is_kernel =
                last >= first && plan_template(o->c, &o->shape, first, last, NULL) != TEMPLATE_NONE;
            u.index[first][last] = is_kernel ? u.n++ : -1;
        }
    u.n++;
    return u;
}

static int unknown_of(const unknowns *u, const plan_kernel *k) {
    return k->from == TEMPLATE_HAND_WRITTEN ? u->n - 1 : u->index[k->first][k->last];
}

/* Solves a x = b in place for a symmetric positive definite matrix, by Cholesky. */
static void solve(double *a, double *b, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            double sum = a[i * n + j];
            for (int k = 0; k < j; k++)
                sum -= a[i * n + k] * a[j * n + k];
            a[i * n + j] = i == j ? sqrt(fmax(sum, 1e-300)) : sum / a[j * n + j];
        }
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++)
            b[i] -= a[i * n + k] * b[k];
        b[i] /= a[i * n + i];
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int k = i + 1; k < n; k++)
            b[i] -= a[k * n + i] * b[k];
        b[i] /= a[i * n + i];
    }
}

/* Least squares with a little weight on small times, so that kernels never seen together apart have
 * one, too. */
static status fit_kernels(const search *s, const unknowns *u, double *ms) {
    static const double ridge = 1e-6;
    int n = u->n;
    double *a;
    TRY(MEM_NEW(&a, (size_t)n * (size_t)n));
    memset(ms, 0, (size_t)n * sizeof *ms);
    for (int i = 0; i < n; i++)
        a[i * n + i] = ridge;
    for (size_t m = 0; m < s->out->measured.n; m++) {
        plan_program p;
        plan_lower(s->o->c, &s->o->shape, s->out->measured.item[m].value, &p);
        for (int i = 0; i < p.n_kernels; i++) {
            int row = unknown_of(u, &p.kernel[i]);
            ms[row] += s->out->measured.item[m].ms;
            for (int k = 0; k < p.n_kernels; k++)
                a[row * n + unknown_of(u, &p.kernel[k])] += 1;
        }
    }
    solve(a, ms, n);
    mem_free(a);
    return OK;
}

/* The kernels of every program that the oracle knows, as unknowns; -1 ends a list. */
typedef int16_t kernel_list[CHAIN_OPS + 1];

static void list_kernels(const search *s, const unknowns *u, kernel_list *lists) {
    for (size_t i = 0; i < s->n_programs; i++) {
        plan_program p;
        plan_lower(s->o->c, &s->o->shape, s->program[i], &p);
        for (int k = 0; k < p.n_kernels; k++)
            lists[i][k] = (int16_t)unknown_of(u, &p.kernel[k]);
        lists[i][p.n_kernels] = -1;
    }
}

/* Of the programs that were not asked yet, the one with the smallest sum; false: all were. */
static bool best_sum(const search *s, const kernel_list *lists, const double *ms, uint16_t *out) {
    double best = INFINITY;
    for (size_t i = 0; i < s->n_programs; i++) {
        double sum = 0;
        for (int k = 0; lists[i][k] >= 0; k++)
            sum += ms[lists[i][k]];
        if (!(sum < best) || !isnan(s->ms[s->program[i]])) continue;
        best = sum;
        *out = s->program[i];
    }
    return best < INFINITY;
}

static status ask_sums(search *s, const unknowns *u, const kernel_list *lists) {
    double ms[MAX_UNKNOWNS], answer;
    uint16_t next;
    while (!is_over(s)) {
        TRY(fit_kernels(s, u, ms));
        if (!best_sum(s, lists, ms, &next)) return OK;
        TRY(ask(s, next, &answer));
    }
    return OK;
}

/* Most of the budget on random plans; the rest on what their solution says is fastest, solved
 * again each time. */
static status run_exact(search *s) {
    unknowns u = list_unknowns(s->o);
    kernel_list *lists;
    int n_random = s->budget - s->budget / 4;
    if (n_random > 2 * u.n) n_random = 2 * u.n;
    TRY(ask_random(s, (size_t)n_random));
    TRY(MEM_NEW(&lists, s->n_programs));
    list_kernels(s, &u, lists);
    status st = ask_sums(s, &u, (const kernel_list *)lists);
    mem_free(lists);
    return st;
}

double search_sum(const chain *c, const chain_shape *shape, const kernel_times *t, uint16_t value) {
    plan_program p;
    double sum = 0;
    plan_lower(c, shape, value, &p);
    for (int i = 0; i < p.n_kernels; i++)
        sum += p.kernel[i].from == TEMPLATE_HAND_WRITTEN
                   ? t->hand_written
                   : t->ms[p.kernel[i].first][p.kernel[i].last];
    return sum;
}

/* best[i]: the fastest way through operators 0..i-1; from[i]: where its last kernel begins. */
plan_time search_shortest_path(const chain *c, const kernel_times *t) {
    double best[CHAIN_OPS + 1] = {0};
    int from[CHAIN_OPS + 1] = {0};
    bool is_cut[CHAIN_OPS + 1] = {false};
    double generated = t->ms[c->attention_first][c->attention_last];
    bool is_hand_written =
        t->hand_written < generated || (isnan(generated) && !isnan(t->hand_written));
    for (int end = 1; end <= CHAIN_OPS; end++) {
        best[end] = INFINITY;
        for (int first = 0; first < end; first++) {
            bool is_attention = first == c->attention_first && end - 1 == c->attention_last;
            double ms = is_attention && is_hand_written ? t->hand_written : t->ms[first][end - 1];
            if (!(best[first] + ms < best[end])) continue; /* NAN: no kernel */
            best[end] = best[first] + ms;
            from[end] = first;
        }
    }
    bool has_attention = false;
    for (int end = CHAIN_OPS; end > 0; end = from[end]) {
        is_cut[from[end]] = true;
        has_attention |= from[end] == c->attention_first && end - 1 == c->attention_last;
    }
    unsigned value = has_attention && is_hand_written ? 1 : 0, label = 0;
    for (int op = 0; op < CHAIN_OPS; op++) {
        if (op > 0 && is_cut[op]) label = !label;
        value = value << 1 | label;
    }
    return (plan_time){(uint16_t)value, best[CHAIN_OPS]};
}

enum { FIRST_RANDOM = 16, BATCH = 8 };

/* Predicts every program that was not asked, and asks the best ones, but the last of a batch at
 * random. */
static status ask_best(search *s, const cost_model *m, plan_time *guesses) {
    size_t n = 0;
    for (size_t i = 0; i < s->n_programs; i++)
        if (isnan(s->ms[s->program[i]])) guesses[n++].value = s->program[i];
    TRY(cost_model_predict(m, guesses, n));
    qsort(guesses, n, sizeof *guesses, plan_time_by_ms);
    for (size_t i = 0; i < BATCH - 1 && i < n && !is_over(s); i++) {
        double answer;
        TRY(ask(s, guesses[i].value, &answer));
    }
    return ask_random(s, s->out->measured.n + 1);
}

static status run_xgboost(search *s) {
    plan_time *guesses;
    TRY(MEM_NEW(&guesses, s->n_programs));
    status st = ask_random(s, FIRST_RANDOM);
    while (st == OK && !is_over(s)) {
        cost_model *m = NULL;
        st = cost_model_fit(&m, s->out->measured.item, s->out->measured.n, s->seed);
        if (st == OK) st = ask_best(s, m, guesses);
        cost_model_destroy(m);
    }
    mem_free(guesses);
    return st;
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
    return s->n_programs > 0 ? OK : fail(ERR_FORMAT, "there are no plan times to search");
}

status search_run(search_kind kind, const plan_oracle *o, int budget, uint64_t seed,
                  search_result *out) {
    static status (*const runs[N_SEARCHES])(search *) = {run_exact, run_xgboost, run_random,
                                                         run_anneal, run_grouped};
    search s = {
        .o = o, .budget = budget, .out = out, .key = rng_make_key(seed, RNG_SHUFFLE), .seed = seed};
    *out = (search_result){0};
    status st = list_programs(&s);
    if (st == OK) st = runs[kind](&s);
    MEM_FREE(s.program, s.is_program, s.ms);
    if (st != OK) search_result_fini(out);
    return st;
}

/* Every operator alone: after it all tensors between operators exist and hold numbers. */
enum { UNFUSED = 0x5555 };

/* Timings of the plans that are compared. */
enum { FINAL_ROUNDS = 9 };

typedef struct exact_job {
    plan_runner *r;
    const exact_options *o;
    exact_result *out;
    const chain *c;
    const chain_shape *shape;
    progress bar;
} exact_job;

static status check_stop(const exact_job *j) {
    if (j->o->is_stopped == NULL || !j->o->is_stopped()) return OK;
    return fail(ERR_INTERRUPTED, "interrupted");
}

/* Whether a plan with this kernel, as it is set now, and every other operator alone is right. */
static status is_right(exact_job *j, const plan_kernel *k, bool *out) {
    uint16_t value = UNFUSED;
    plan_error error;
    for (int op = k->first; op < k->last; op++) /* joins op and op + 1: inverts all labels after */
        value ^= (uint16_t)((1u << (CHAIN_OPS - 1 - op)) - 1);
    status st = plan_runner_check(j->r, value, &error);
    *out = st == OK;
    return st == ERR_NUMERIC ? OK : st;
}

/* A kernel whose tile parameters take turns. */
typedef struct kernel_turns {
    exact_job *j;
    const plan_kernel *k;
    runner_kernel *own;
    int tile[EMIT_MAX_TILES];
    enum { GELU_UNKNOWN, GELU_RIGHT, GELU_WRONG } fast_gelu;
} kernel_turns;

/* INFINITY where a choice is not exact enough. */
static status time_choice(void *ctx, int i, double *seconds) {
    kernel_turns *t = ctx;
    exact_job *j = t->j;
    const plan_kernel *k = t->k;
    double ms;
    t->own->tile = t->tile[i];
    bool is_fast_gelu = t->own->params[t->tile[i]].library == LIBRARY_FAST_GELU;
    *seconds = INFINITY;
    TRY(check_stop(j));
    if (is_fast_gelu && t->fast_gelu == GELU_UNKNOWN) {
        bool right;
        TRY(is_right(j, k, &right));
        t->fast_gelu = right ? GELU_RIGHT : GELU_WRONG;
    }
    if (is_fast_gelu && t->fast_gelu == GELU_WRONG) return OK;
    TRY(plan_runner_time_kernel(j->r, k, 1, &ms));
    *seconds = ms * 1e-3;
    return OK;
}

/* The fastest tile parameters of a kernel, which are set, and its time. */
static status time_tiles(exact_job *j, const plan_kernel *k, double *best_ms) {
    kernel_turns t = {.j = j, .k = k};
    int n = 0, best;
    TRY(plan_runner_kernel(j->r, k->first, k->last, &t.own));
    for (int tile = 0; tile < t.own->n_tiles; tile++) {
        bool is_generated = t.own->params[tile].library == GENERATED;
        if (is_generated && j->o->max_tiles > 0 && tile >= j->o->max_tiles) continue;
        t.tile[n++] = tile;
    }
    j->out->n_timed += n;
    TRY(autotune_find(n, j->o->rounds, time_choice, &t, &best, best_ms));
    *best_ms *= 1e3;
    t.own->tile = t.tile[best];
    return OK;
}

static status time_kernels(exact_job *j) {
    kernel_times *t = &j->out->kernels;
    t->hand_written = NAN;
    for (int i = 0; i < CHAIN_OPS * CHAIN_OPS; i++) {
        int first = i / CHAIN_OPS, last = i % CHAIN_OPS;
        plan_kernel k = {.first = first, .last = last};
        t->ms[first][last] = NAN;
        progress_update(&j->bar, (uint64_t)i);
        if (last >= first) k.from = plan_template(j->c, j->shape, first, last, NULL);
        if (k.from == TEMPLATE_NONE) continue;
        j->out->n_segments++;
        TRY(time_tiles(j, &k, &t->ms[first][last]));
    }
    plan_kernel hand = {.first = j->c->attention_first,
                        .last = j->c->attention_last,
                        .from = TEMPLATE_HAND_WRITTEN};
    if (!plan_runner_has_hand_written(j->r)) return OK;
    return plan_runner_time_kernel(j->r, &hand, j->o->rounds, &t->hand_written);
}

/* Times random plans as a whole, and compares with the sums of their kernels. */
static status check_sums(exact_job *j) {
    rng_key key = rng_make_key(j->o->seed, RNG_SHUFFLE);
    exact_result *e = j->out;
    double *sum;
    int n = j->o->n_checks;
    if (n < 2) return OK;
    TRY(MEM_NEW(&sum, 2 * (size_t)n));
    status st = OK;
    e->position = 1;
    for (int i = 0; i < n && st == OK; i++) {
        uint16_t value = plan_canonical(j->c, (uint16_t)rng_draw64(key, (uint64_t)i, 1).word[0]);
        double ms = 0;
        if (!plan_runner_has_hand_written(j->r)) value &= 0x7fff;
        st = check_stop(j);
        if (st == OK) st = plan_runner_time(j->r, value, j->o->rounds, &ms);
        if (st == OK) st = plan_times_add(&e->checked, value, ms);
        sum[i] = search_sum(j->c, j->shape, &e->kernels, value);
        sum[n + i] = ms;
        e->position += ms < e->found.ms;
        progress_update(&j->bar, (uint64_t)(CHAIN_OPS * CHAIN_OPS + i));
    }
    e->n_checked = n;
    if (st == OK) e->r2 = explained_variance(sum, sum + n, (size_t)n);
    if (st == OK) st = rank_correlation(sum, sum + n, (size_t)n, &e->spearman);
    mem_free(sum);
    return st;
}

/* A whole plan and the tile parameters of its kernels. */
typedef struct whole_plan {
    uint16_t value;
    plan_program p;
    runner_kernel *kernel[CHAIN_OPS]; /* NULL: the hand-written one */
    int tile[CHAIN_OPS];
} whole_plan;

static status get_tiles(const exact_job *j, whole_plan *w) {
    plan_runner_lower(j->r, w->value, &w->p);
    for (int i = 0; i < w->p.n_kernels; i++) {
        const plan_kernel *k = &w->p.kernel[i];
        if (k->from == TEMPLATE_HAND_WRITTEN) continue;
        TRY(plan_runner_kernel(j->r, k->first, k->last, &w->kernel[i]));
        w->tile[i] = w->kernel[i]->tile;
    }
    return OK;
}

static void set_tiles(const whole_plan *w) {
    for (int i = 0; i < w->p.n_kernels; i++)
        if (w->kernel[i] != NULL) w->kernel[i]->tile = w->tile[i];
}

/* Ops of the backend for every kernel, GELU by tanh where it can be, at their last rank; false: one
 * of them is none. */
static bool choose_library(whole_plan *w) {
    for (int i = 0; i < w->p.n_kernels; i++) {
        const runner_kernel *k = w->kernel[i];
        if (k == NULL) continue;
        w->tile[i] = k->n_tiles - 1;
        if (k->params[w->tile[i]].library == GENERATED) return false;
    }
    return true;
}

/* The plan that src/encode/bert_layer.c has by hand; false: the ops of the backend cannot run it.
 */
static status find_hand_fused(exact_job *j, whole_plan *w, bool *out) {
    *out = j->c == chain_of(CHAIN_BERT) && plan_runner_has_hand_written(j->r);
    TRY(plan_from_segments("1-2,3-7,8-10,11-12,13-15", true, &w->value));
    TRY(get_tiles(j, w));
    *out = *out && choose_library(w);
    return OK;
}

/* Times the plan found and the one by hand, in turns and rested, since they are nearly alike.  The
 * faster one is taken, where it is right: sums of kernels do not tell such plans apart. */
static status time_found(exact_job *j) {
    exact_result *e = j->out;
    whole_plan plan[2] = {{.value = e->found.value}};
    double ms[2][FINAL_ROUNDS];
    bool has_hand;
    plan_error error;
    TRY(get_tiles(j, &plan[0]));
    TRY(find_hand_fused(j, &plan[1], &has_hand));
    for (int round = 0; round < FINAL_ROUNDS; round++)
        for (int i = 0; i < 1 + has_hand; i++) {
            set_tiles(&plan[i]);
            plan_runner_rest(j->r);
            TRY(plan_runner_time(j->r, plan[i].value, 1, &ms[i][round]));
        }
    e->found.ms = median(ms[0], FINAL_ROUNDS);
    if (has_hand) e->hand_fused_ms = median(ms[1], FINAL_ROUNDS);
    bool takes_hand = e->hand_fused_ms < e->found.ms; /* not where it is NAN */
    if (takes_hand) {
        status st = plan_runner_check(j->r, plan[1].value, &error);
        if (st != OK && st != ERR_NUMERIC) return st;
        takes_hand = st == OK;
    }
    set_tiles(&plan[takes_hand]);
    if (!takes_hand) return OK;
    e->found = (plan_time){plan[1].value, e->hand_fused_ms};
    e->predicted_ms = search_sum(j->c, j->shape, &e->kernels, e->found.value);
    return OK;
}

static status search_all(exact_job *j) {
    plan_error error;
    exact_result *e = j->out;
    uint64_t start = clock_ns();
    TRY(plan_runner_prepare_all(j->r, j->o->max_tiles));
    TRY(plan_runner_check(j->r, UNFUSED, &error));
    TRY(time_kernels(j));
    e->found = search_shortest_path(j->c, &e->kernels);
    e->predicted_ms = e->found.ms;
    TRY(plan_runner_check(j->r, e->found.value, &error));
    TRY(time_found(j));
    e->seconds = (double)(clock_ns() - start) * 1e-9;
    TRY(plan_runner_time(j->r, UNFUSED, FINAL_ROUNDS, &e->unfused_ms));
    return check_sums(j);
}

status exact_search(plan_runner *r, const exact_options *o, exact_result *out) {
    const chain_problem *p = plan_runner_problem(r);
    exact_job j = {.r = r, .o = o, .out = out, .c = p->c, .shape = &p->shape};
    *out = (exact_result){.r2 = NAN, .spearman = NAN, .hand_fused_ms = NAN};
    progress_begin(&j.bar, "kernels", "kernels", (uint64_t)(CHAIN_OPS * CHAIN_OPS + o->n_checks));
    status st = search_all(&j);
    progress_end(&j.bar);
    if (st != OK) exact_result_fini(out);
    return st;
}

void exact_result_fini(exact_result *e) {
    plan_times_fini(&e->checked);
}
