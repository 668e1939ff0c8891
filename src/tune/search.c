#include "tune/search.h"

#include "base/autotune.h"

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

/* Every operator alone: after it all tensors between operators exist and hold numbers. */
enum { UNFUSED = 0x5555 };

/* Timings of the plans that are compared. */
enum { FINAL_ROUNDS = 9 };

typedef struct search_job {
    plan_runner *r;
    const search_options *o;
    search_result *out;
    const chain *c;
    progress bar;
} search_job;

static status check_stop(const search_job *j) {
    if (j->o->is_stopped == NULL || !j->o->is_stopped()) return OK;
    return fail(ERR_INTERRUPTED, "interrupted");
}

/* Whether a plan with this kernel, as it is set now, and every other operator alone is right. */
static status is_right(search_job *j, const plan_kernel *k, bool *out) {
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
    search_job *j;
    const plan_kernel *k;
    int tile[EMIT_MAX_TILES];
    enum { GELU_UNKNOWN, GELU_RIGHT, GELU_WRONG } fast_gelu;
} kernel_turns;

/* INFINITY where a choice is not exact enough. */
static status time_choice(void *ctx, int i, double *seconds) {
    kernel_turns *t = ctx;
    search_job *j = t->j;
    const plan_kernel *k = t->k;
    double ms;
    plan_runner_set_tile(j->r, k->first, k->last, t->tile[i]);
    bool is_fast_gelu =
        plan_runner_tile_params(j->r, k->first, k->last).library == LIBRARY_FAST_GELU;
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
static status time_tiles(search_job *j, const plan_kernel *k, double *best_ms) {
    kernel_turns t = {.j = j, .k = k};
    int n_tiles, n = 0, best;
    TRY(plan_runner_n_tiles(j->r, k->first, k->last, &n_tiles));
    for (int tile = 0; tile < n_tiles; tile++) {
        plan_runner_set_tile(j->r, k->first, k->last, tile);
        bool is_generated = plan_runner_tile_params(j->r, k->first, k->last).library == GENERATED;
        if (is_generated && j->o->max_tiles > 0 && tile >= j->o->max_tiles) continue;
        t.tile[n++] = tile;
    }
    j->out->n_timed += n;
    TRY(autotune_find(n, j->o->rounds, time_choice, &t, &best, best_ms));
    *best_ms *= 1e3;
    plan_runner_set_tile(j->r, k->first, k->last, t.tile[best]);
    return OK;
}

static status time_kernels(search_job *j) {
    kernel_times *t = &j->out->kernels;
    t->hand_written = NAN;
    for (int i = 0; i < CHAIN_OPS * CHAIN_OPS; i++) {
        int first = i / CHAIN_OPS, last = i % CHAIN_OPS;
        plan_kernel k = {.first = first, .last = last};
        t->ms[first][last] = NAN;
        progress_update(&j->bar, (uint64_t)i);
        if (last >= first) k.from = plan_runner_template(j->r, first, last);
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

/* The share of the variance of measurements y that predictions x explain; below 0 if the mean would
 * be better; NAN if y is constant. */
static double explained_variance(const double *x, const double *y, int n) {
    double mean = 0, total = 0, left = 0;
    for (int i = 0; i < n; i++)
        mean += y[i] / n;
    for (int i = 0; i < n; i++) {
        total += (y[i] - mean) * (y[i] - mean);
        left += (y[i] - x[i]) * (y[i] - x[i]);
    }
    return total > 0 ? 1 - left / total : NAN;
}

/* Times random plans as a whole, and compares with the sums of their kernels. */
static status check_sums(search_job *j) {
    rng_key key = rng_make_key(j->o->seed, RNG_SHUFFLE);
    search_result *e = j->out;
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
        sum[i] = search_sum(j->c, plan_runner_shape(j->r), &e->kernels, value);
        sum[n + i] = ms;
        e->position += ms < e->found.ms;
        progress_update(&j->bar, (uint64_t)(CHAIN_OPS * CHAIN_OPS + i));
    }
    e->n_checked = n;
    if (st == OK) e->r2 = explained_variance(sum, sum + n, n);
    mem_free(sum);
    return st;
}

/* A whole plan and the tile parameters of its kernels. */
typedef struct whole_plan {
    uint16_t value;
    plan_program p;
    int tile[CHAIN_OPS];
} whole_plan;

static void get_tiles(const search_job *j, whole_plan *w) {
    plan_runner_lower(j->r, w->value, &w->p);
    for (int i = 0; i < w->p.n_kernels; i++)
        w->tile[i] = plan_runner_tile(j->r, w->p.kernel[i].first, w->p.kernel[i].last);
}

static void set_tiles(search_job *j, const whole_plan *w) {
    for (int i = 0; i < w->p.n_kernels; i++)
        plan_runner_set_tile(j->r, w->p.kernel[i].first, w->p.kernel[i].last, w->tile[i]);
}

/* Ops of the backend for every kernel; false: one of them is none. */
static bool choose_library(search_job *j, whole_plan *w) {
    for (int i = 0; i < w->p.n_kernels; i++) {
        const plan_kernel *k = &w->p.kernel[i];
        if (k->from == TEMPLATE_HAND_WRITTEN) continue;
        w->tile[i] = plan_runner_find_library(j->r, k->first, k->last, LIBRARY_FAST_GELU);
        if (w->tile[i] < 0) w->tile[i] = plan_runner_find_library(j->r, k->first, k->last, LIBRARY);
        if (w->tile[i] < 0) return false;
    }
    return true;
}

/* The plan that src/encode/bert_layer.c has by hand; false: the ops of the backend cannot run it.
 */
static status find_hand_fused(search_job *j, whole_plan *w, bool *out) {
    *out = j->c == chain_of(CHAIN_BERT) && plan_runner_has_hand_written(j->r);
    TRY(plan_from_segments("1-2,3-7,8-10,11-12,13-15", true, &w->value));
    get_tiles(j, w);
    *out = *out && choose_library(j, w);
    return OK;
}

/* Times the plan found and the one by hand, in turns and rested, since they are nearly alike.  The
 * faster one is taken, where it is right: sums of kernels do not tell such plans apart. */
static status time_found(search_job *j) {
    search_result *e = j->out;
    whole_plan plan[2] = {{.value = e->found.value}};
    double ms[2][FINAL_ROUNDS];
    bool has_hand;
    plan_error error;
    get_tiles(j, &plan[0]);
    TRY(find_hand_fused(j, &plan[1], &has_hand));
    for (int round = 0; round < FINAL_ROUNDS; round++)
        for (int i = 0; i < 1 + has_hand; i++) {
            set_tiles(j, &plan[i]);
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
    set_tiles(j, &plan[takes_hand]);
    if (!takes_hand) return OK;
    e->found = (plan_time){plan[1].value, e->hand_fused_ms};
    e->predicted_ms = search_sum(j->c, plan_runner_shape(j->r), &e->kernels, e->found.value);
    return OK;
}

static status search_all(search_job *j) {
    plan_error error;
    search_result *e = j->out;
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

status search_run(plan_runner *r, const search_options *o, search_result *out) {
    search_job j = {.r = r, .o = o, .out = out, .c = plan_runner_chain(r)};
    *out = (search_result){.r2 = NAN, .hand_fused_ms = NAN};
    progress_begin(&j.bar, "kernels", "kernels", (uint64_t)(CHAIN_OPS * CHAIN_OPS + o->n_checks));
    status st = search_all(&j);
    progress_end(&j.bar);
    return st;
}
