#include "tune/search_exact.h"

#include <math.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/rng.h"
#include "tune/rank_stats.h"

/* Every operator alone: after it all tensors between operators exist and hold numbers. */
enum { UNFUSED = 0x5555 };

/* Timings of the plans that are compared. */
enum { FINAL_ROUNDS = 9 };

/* Tile parameters slower than this times the best so far are timed once. */
static const double hopeless = 1.2;

typedef struct exact_job {
    plan_runner *r;
    const exact_options *o;
    exact_result *out;
    const chain *c;
    progress bar;
} exact_job;

static status check_stop(const exact_job *j) {
    if (j->o->is_stopped == NULL || !j->o->is_stopped()) return OK;
    return fail(ERR_INTERRUPTED, "interrupted");
}

/* Whether operators first..last are one kernel: a plan of them alone. */
static bool find_kernel(const exact_job *j, int first, int last, plan_kernel *out) {
    kernel_template from = plan_runner_template(j->r, first, last);
    *out = (plan_kernel){.first = first, .last = last, .from = from, .segment = 0};
    return from != TEMPLATE_NONE;
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

/* One choice of a kernel; INFINITY where it is not exact enough. */
static status time_choice(exact_job *j, const plan_kernel *k, double best, double *ms) {
    bool is_fast_gelu =
        plan_runner_tile_params(j->r, k->first, k->last).library == LIBRARY_FAST_GELU;
    TRY(check_stop(j));
    TRY(plan_runner_time_kernel(j->r, k, 1, ms));
    if (*ms <= best * hopeless) TRY(plan_runner_time_kernel(j->r, k, j->o->rounds, ms));
    j->out->n_timed++;
    if (*ms >= best || !is_fast_gelu) return OK;
    bool right;
    TRY(is_right(j, k, &right));
    if (!right) *ms = INFINITY;
    return OK;
}

/* The fastest tile parameters of a kernel, which are set, and its time. */
static status time_tiles(exact_job *j, const plan_kernel *k, double *best) {
    int n_tiles, fastest = 0;
    *best = INFINITY;
    TRY(plan_runner_n_tiles(j->r, k->first, k->last, &n_tiles));
    for (int tile = 0; tile < n_tiles; tile++) {
        double ms;
        plan_runner_set_tile(j->r, k->first, k->last, tile);
        bool is_generated = plan_runner_tile_params(j->r, k->first, k->last).library == GENERATED;
        if (is_generated && j->o->max_tiles > 0 && tile >= j->o->max_tiles) continue;
        TRY(time_choice(j, k, *best, &ms));
        if (ms < *best) {
            *best = ms;
            fastest = tile;
        }
    }
    plan_runner_set_tile(j->r, k->first, k->last, fastest);
    return OK;
}

static status time_kernels(exact_job *j) {
    kernel_times *t = &j->out->kernels;
    t->hand_written = NAN;
    for (int i = 0; i < CHAIN_OPS * CHAIN_OPS; i++) {
        int first = i / CHAIN_OPS, last = i % CHAIN_OPS;
        plan_kernel k;
        t->ms[first][last] = NAN;
        progress_update(&j->bar, (uint64_t)i);
        if (last < first || !find_kernel(j, first, last, &k)) continue;
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
    e->rank = 1;
    for (int i = 0; i < n && st == OK; i++) {
        uint16_t value = plan_canonical(j->c, (uint16_t)rng_draw64(key, (uint64_t)i, 1).word[0]);
        double ms = 0;
        if (!plan_runner_has_hand_written(j->r)) value &= 0x7fff;
        st = check_stop(j);
        if (st == OK) st = plan_runner_time(j->r, value, j->o->rounds, &ms);
        if (st == OK) st = plan_times_add(&e->checked, value, ms);
        sum[i] = search_sum(j->c, plan_runner_shape(j->r), &e->kernels, value);
        sum[n + i] = ms;
        e->rank += ms < e->found.ms;
        progress_update(&j->bar, (uint64_t)(CHAIN_OPS * CHAIN_OPS + i));
    }
    e->n_checked = n;
    if (st == OK) e->r2 = stats_r2(sum, sum + n, (size_t)n);
    if (st == OK) st = stats_spearman(sum, sum + n, (size_t)n, &e->spearman);
    mem_free(sum);
    return st;
}

/* Sets the kernels of a plan to ops of the backend; false: one of them cannot be. */
static bool set_library(exact_job *j, const plan_program *p) {
    bool has_all = true;
    for (int i = 0; i < p->n_kernels; i++) {
        const plan_kernel *k = &p->kernel[i];
        if (k->from == TEMPLATE_HAND_WRITTEN) continue;
        int choice = plan_runner_find_library(j->r, k->first, k->last, LIBRARY_FAST_GELU);
        if (choice < 0) choice = plan_runner_find_library(j->r, k->first, k->last, LIBRARY);
        if (choice < 0) has_all = false;
        if (choice >= 0) plan_runner_set_tile(j->r, k->first, k->last, choice);
    }
    return has_all;
}

/* The plan that src/nn/bert_layer.c has by hand: timed, and taken where it is right and faster than
 * the one found, since sums of kernels cannot tell plans that are nearly alike. */
static status time_hand_fused(exact_job *j) {
    exact_result *e = j->out;
    plan_program p;
    plan_error error;
    uint16_t value;
    int before[CHAIN_OPS];
    if (j->c != chain_of(CHAIN_BERT) || !plan_runner_has_hand_written(j->r)) return OK;
    TRY(plan_from_segments("1-2,3-7,8-10,11-12,13-15", true, &value));
    plan_runner_lower(j->r, value, &p);
    for (int i = 0; i < p.n_kernels; i++)
        before[i] = plan_runner_tile(j->r, p.kernel[i].first, p.kernel[i].last);
    status st = OK, checked = ERR_NUMERIC;
    if (set_library(j, &p)) {
        checked = plan_runner_check(j->r, value, &error);
        st = checked == ERR_NUMERIC ? OK : checked;
        if (st == OK) st = plan_runner_time(j->r, value, FINAL_ROUNDS, &e->hand_fused_ms);
    }
    if (st == OK && checked == OK && e->hand_fused_ms < e->found.ms) {
        e->found = (plan_time){value, e->hand_fused_ms};
        e->predicted_ms = search_sum(j->c, plan_runner_shape(j->r), &e->kernels, value);
        return OK;
    }
    for (int i = 0; i < p.n_kernels; i++)
        plan_runner_set_tile(j->r, p.kernel[i].first, p.kernel[i].last, before[i]);
    return st;
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
    TRY(plan_runner_time(j->r, e->found.value, FINAL_ROUNDS, &e->found.ms));
    e->seconds = (double)(clock_ns() - start) * 1e-9;
    TRY(time_hand_fused(j));
    TRY(plan_runner_time(j->r, UNFUSED, FINAL_ROUNDS, &e->unfused_ms));
    return check_sums(j);
}

status exact_search(plan_runner *r, const exact_options *o, exact_result *out) {
    exact_job j = {.r = r, .o = o, .out = out, .c = plan_runner_chain(r)};
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
