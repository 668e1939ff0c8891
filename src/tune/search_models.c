/* The searches that fit a model to the times so far: kernels by least squares, and XGBoost. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tune/cost_model.h"
#include "tune/search_int.h"

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
    while (!search_is_over(s)) {
        TRY(fit_kernels(s, u, ms));
        if (!best_sum(s, lists, ms, &next)) return OK;
        TRY(search_ask(s, next, &answer));
    }
    return OK;
}

/* Most of the budget on random plans; the rest on what their solution says is fastest, solved
 * again each time. */
status search_run_exact(search *s) {
    unknowns u = list_unknowns(s->o);
    kernel_list *lists;
    int n_random = s->budget - s->budget / 4;
    if (n_random > 2 * u.n) n_random = 2 * u.n;
    TRY(search_ask_random(s, (size_t)n_random));
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

typedef struct guess {
    uint16_t value;
    double ms;
} guess;

static int by_guess(const void *a, const void *b) {
    double x = ((const guess *)a)->ms, y = ((const guess *)b)->ms;
    return (x > y) - (x < y);
}

/* Predicts every program that was not asked, and asks the best ones, but the last of a batch at
 * random. */
static status ask_best(search *s, const cost_model *m, uint16_t *values, double *ms,
                       guess *guesses) {
    size_t n = 0;
    for (size_t i = 0; i < s->n_programs; i++)
        if (isnan(s->ms[s->program[i]])) values[n++] = s->program[i];
    TRY(cost_model_predict(m, values, n, ms));
    for (size_t i = 0; i < n; i++)
        guesses[i] = (guess){values[i], ms[i]};
    qsort(guesses, n, sizeof *guesses, by_guess);
    for (size_t i = 0; i < BATCH - 1 && i < n && !search_is_over(s); i++) {
        double answer;
        TRY(search_ask(s, guesses[i].value, &answer));
    }
    return search_ask_random(s, s->out->measured.n + 1);
}

status search_run_xgboost(search *s) {
    uint16_t *values = NULL;
    double *ms = NULL;
    guess *guesses = NULL;
    status st = MEM_NEW(&values, s->n_programs);
    if (st == OK) st = MEM_NEW(&ms, s->n_programs);
    if (st == OK) st = MEM_NEW(&guesses, s->n_programs);
    if (st == OK) st = search_ask_random(s, FIRST_RANDOM);
    while (st == OK && !search_is_over(s)) {
        cost_model *m = NULL;
        st = cost_model_fit(&m, s->out->measured.item, s->out->measured.n, s->seed);
        if (st == OK) st = ask_best(s, m, values, ms, guesses);
        cost_model_destroy(m);
    }
    mem_free(values);
    mem_free(ms);
    mem_free(guesses);
    return st;
}
