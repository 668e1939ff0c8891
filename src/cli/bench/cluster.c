/* Steps of ranks, drawn and timed by the model (contract: cluster.h). */
#include "cli/bench/cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "data/set/balance.h"
#include "nn/flops.h"

enum { N_DRAWN = 1 << 17, MIN_STEPS = 4, MAX_STEPS = 64 };

/* What is drawn for one step of all ranks. */
typedef struct draws {
    const cluster_work *w;
    const cluster_rank *r;
    int n_gpus;
    int64_t n_users;
    double *cost, *tokens; /* (max_length + 1): FLOPs and tokens of a user by its events */
    int32_t *length;       /* (n_users) */
    int32_t *group;        /* (n_users): its rank */
    double *load;          /* (n_gpus): FLOPs */
    balancer *equal;       /* BALANCE_EQUAL */
} draws;

/* Sums over steps. */
typedef struct sums {
    double mean, largest, slowest, tokens;
} sums;

static void fill_costs(draws *d) {
    for (int32_t n = 0; n <= d->w->max_length; n++) {
        int32_t offsets[2] = {0, n}, n_targets = 0;
        batch one = {.n_users = 1, .offsets = offsets, .n_targets = &n_targets};
        flops f = flops_of_batch(d->w->c, d->w->n_context, &one, true);
        d->cost[n] = flops_layers(&f);
        d->tokens[n] = (double)f.n_tokens;
    }
}

static double uniform(const rng_block *b, int which) {
    return rng_uniform64(b->word[2 * which], b->word[2 * which + 1]);
}

/* Devroye's rejection, as generated data; values above max become max. */
static int64_t draw_zipf(double alpha, int64_t max, rng_key key, uint64_t at) {
    double less = alpha - 1, top = pow(2, less);
    for (uint64_t attempt = 0;; attempt++) {
        rng_block b = rng_draw64(key, at, attempt);
        double k = floor(pow(1 - uniform(&b, 0), -1 / less)), ratio = pow(1 + 1 / k, less);
        bool is_huge = !(k < 1e15); /* the probability is 1 there, and not a number computed */
        if (is_huge || uniform(&b, 1) * k * (ratio - 1) / (top - 1) <= ratio / top)
            return k > (double)max || is_huge ? max : (int64_t)k;
    }
}

static void draw_lengths(draws *d, uint64_t step) {
    const cluster_work *w = d->w;
    rng_key key = rng_make_key(step + 1, RNG_SYNTH);
    for (int64_t i = 0; i < d->n_users; i++) {
        rng_block b = rng_draw64(key, (uint64_t)i, 0);
        int64_t n = w->max_length;
        if (w->lengths == LENGTHS_UNIFORM) n = (int64_t)(uniform(&b, 0) * (double)w->max_length);
        if (w->lengths == LENGTHS_ZIPF)
            n = draw_zipf(w->length_alpha, w->max_length, key, (uint64_t)i);
        d->length[i] = (int32_t)n;
    }
}

static int longer(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x < y) - (x > y);
}

/* The heap's top is the rank with the least work: moves it down to its place. */
static void sink(const double *load, int32_t *heap, int n) {
    int32_t rank = heap[0];
    int i = 0;
    for (int child = 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && load[heap[child + 1]] < load[heap[child]]) child++;
        if (load[rank] <= load[heap[child]]) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = rank;
}

/* The longest user that is left goes to the rank with the least work. */
static void divide_lpt(draws *d) {
    int32_t *heap = d->group; /* not needed otherwise */
    qsort(d->length, (size_t)d->n_users, sizeof *d->length, longer);
    for (int32_t i = 0; i < d->n_gpus; i++)
        heap[i] = i;
    for (int64_t i = 0; i < d->n_users; i++) {
        d->load[heap[0]] += d->cost[d->length[i]];
        sink(d->load, heap, d->n_gpus);
    }
}

static void divide(draws *d) {
    memset(d->load, 0, (size_t)d->n_gpus * sizeof *d->load);
    if (d->r->balance == BALANCE_LPT) {
        divide_lpt(d);
        return;
    }
    if (d->r->balance == BALANCE_EQUAL) balancer_run(d->equal, d->length, d->n_users, d->group);
    for (int64_t i = 0; i < d->n_users; i++) {
        int64_t rank = d->r->balance == BALANCE_EQUAL ? d->group[i] : i / d->w->batch;
        d->load[rank] += d->cost[d->length[i]];
    }
}

static void add_step(draws *d, uint64_t step, sums *s) {
    rng_key key = rng_make_key(step + 1, RNG_TEST);
    double sum = 0, largest = 0, slowest = 0;
    draw_lengths(d, step);
    for (int64_t i = 0; i < d->n_users; i++)
        s->tokens += d->tokens[d->length[i]] / d->n_gpus;
    divide(d);
    for (int i = 0; i < d->n_gpus; i++) {
        rng_block b = rng_draw64(key, (uint64_t)i, 0);
        double normal =
            sqrt(-2 * log(1 - uniform(&b, 0))) * cos(6.283185307179586 * uniform(&b, 1));
        double time = d->load[i] * (1 + d->r->spread * normal);
        sum += d->load[i];
        if (d->load[i] > largest) largest = d->load[i];
        if (time > slowest) slowest = time;
    }
    s->mean += sum / d->n_gpus;
    s->largest += largest;
    s->slowest += slowest;
}

static void draws_fini(draws *d) {
    mem_free(d->cost);
    mem_free(d->tokens);
    mem_free(d->length);
    mem_free(d->group);
    mem_free(d->load);
    balancer_destroy(d->equal);
}

static status draws_init(draws *d) {
    size_t n_lengths = (size_t)d->w->max_length + 1;
    size_t n_groups = (size_t)(d->n_users > d->n_gpus ? d->n_users : d->n_gpus);
    TRY(MEM_NEW(&d->cost, n_lengths));
    TRY(MEM_NEW(&d->tokens, n_lengths));
    TRY(MEM_NEW(&d->length, (size_t)d->n_users));
    TRY(MEM_NEW(&d->group, n_groups));
    TRY(MEM_NEW(&d->load, (size_t)d->n_gpus));
    if (d->r->balance == BALANCE_EQUAL)
        TRY(balancer_create(&d->equal, d->n_users, d->n_gpus, (int32_t)d->w->max_length));
    fill_costs(d);
    return OK;
}

static status draw_steps(const cluster_work *w, const cluster_rank *r, int n_gpus, sums *out) {
    draws d = {.w = w, .r = r, .n_gpus = n_gpus, .n_users = w->batch * n_gpus};
    int64_t n_steps = N_DRAWN / d.n_users;
    n_steps = n_steps < MIN_STEPS ? MIN_STEPS : n_steps > MAX_STEPS ? MAX_STEPS : n_steps;
    *out = (sums){0};
    status st = draws_init(&d);
    for (int64_t i = 0; st == OK && i < n_steps; i++)
        add_step(&d, (uint64_t)i, out);
    draws_fini(&d);
    double n = (double)n_steps;
    *out = (sums){out->mean / n, out->largest / n, out->slowest / n, out->tokens / n};
    return st;
}

/* What of the all-reduce is not hidden.  Reduced after the backward pass: all of it.  Layer by
 * layer: the gradients of a layer are sent while the layers before it are computed. */
static double exposed_dense(const cluster_work *w, const cluster_rank *r, const cluster_links *l,
                            int n, double compute_s) {
    double n_parts = (double)w->c->network.n_layers, finish = 0;
    if (!r->overlaps) return cluster_all_reduce(l, n, w->dense_bytes, NULL);
    double backward = compute_s * 2 / 3,
           part = cluster_all_reduce(l, n, w->dense_bytes / n_parts, NULL);
    for (double i = 1; i <= n_parts; i++) {
        double ready = backward * i / n_parts;
        finish = (finish > ready ? finish : ready) + part;
    }
    return n > 1 ? finish - backward : 0;
}

static const char *name_limit(const cluster_row *row) {
    double balance_s = row->compute_s * (1 / row->balance - 1);
    struct {
        double loss;
        const char *name;
    } all[] = {{balance_s, "imbalance of the lengths"},
               {row->wait_s - balance_s, "spread of the ranks' speed"},
               {row->exposed_s, "all-reduce of dense gradients"},
               {row->rows_s, "exchange of embedding rows"},
               {row->small_s, "latency of small messages"}};
    int most = 0;
    for (int i = 1; i < 5; i++)
        if (all[i].loss > all[most].loss) most = i;
    return row->n_gpus > 1 && all[most].loss > 0 ? all[most].name : "computing";
}

status cluster_predict(const cluster_work *w, const cluster_rank *r, const cluster_links *l,
                       int n_gpus, cluster_row *out) {
    sums s;
    cluster_row row = {.n_gpus = n_gpus};
    *out = (cluster_row){0};
    if (n_gpus < 1 || n_gpus > CLUSTER_MAX_GPUS || w->batch * n_gpus > INT32_MAX)
        return fail(ERR_USAGE, "%d GPUs: a prediction is for 1 to %d, and 2^31 users in all",
                    n_gpus, CLUSTER_MAX_GPUS);
    if (!(r->flops > 0) || !(r->fixed_s >= 0) || !(r->spread >= 0 && r->spread < 1))
        return fail(ERR_USAGE, "the speed must be above 0, the fixed time at least 0, the spread "
                               "from 0 to 1");
    cluster_links own = *l;
    cluster_rank rank = *r;
    if (l->is_one_gpu) {
        own.gpu_link /= n_gpus;
        rank.flops /= n_gpus;
        l = &own;
        r = &rank;
    }
    TRY(draw_steps(w, r, n_gpus, &s));
    row.work = s.mean;
    row.tokens = s.tokens;
    row.compute_s = s.mean / r->flops;
    row.wait_s = n_gpus > 1 ? (s.slowest - s.mean) / r->flops : 0;
    row.balance = s.mean > 0 ? s.mean / s.largest : 1;
    row.dense_s = cluster_all_reduce(l, n_gpus, w->dense_bytes, &row.how);
    row.exposed_s = exposed_dense(w, r, l, n_gpus, row.compute_s);
    /* A ranking event is two tokens, of which one is an item. */
    double n_ids = s.tokens / (w->c->task == TASK_RANKING ? 2 : 1);
    row.unique_ids = cluster_unique(n_ids, w->id_alpha, (double)w->n_ids);
    row.rows_s = 2 * cluster_all_to_all(l, n_gpus, row.unique_ids * w->row_bytes);
    row.small_s = cluster_all_reduce(l, n_gpus, 8, NULL);
    row.step_s = row.compute_s + row.wait_s + r->fixed_s + row.exposed_s + row.rows_s + row.small_s;
    row.efficiency = (row.compute_s + r->fixed_s) / row.step_s;
    row.limit = name_limit(&row);
    *out = row;
    return OK;
}
