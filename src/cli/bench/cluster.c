/* hstu bench cluster: the links and the cost of messages, the work of ranks, their steps, the
 * published figures, and the command, from top to bottom (contract: cluster.h). */
#include "cli/bench/cluster.h"

#include "cli/bench/bench.h"
#include "cli/bench/train.h"
#include "data/set/balance.h"
#include "data/synth/bench_data.h"
#include "nn/flops.h"

enum { N_DRAWN = 1 << 17, MIN_STEPS = 4, MAX_STEPS = 64 };
enum { MAX_COUNTS = 32, MEASURED_STEPS = 10, MAX_MEASURED = 1 << 20 };

/* bench/results/h200/train.csv, benchmark_ranking_fixed at 77a7e50. */
static const double H200_TFLOPS = 430.4;

static const cluster_links profiles[] = {
    {"nvlink-ndr", "DGX H100 or H200: NVLink 4, a 400 Gb/s NIC a GPU", 8, 371e9, 275e9, 47e9,
     false},
    {"nvlink-hdr", "H100 or H200 with NVLink 4, a 200 Gb/s NIC a GPU", 8, 371e9, 275e9, 23.5e9,
     false},
    {"nvlink5-ndr", "B200: NVLink 5, a 400 Gb/s NIC a GPU", 8, 722e9, 534e9, 47e9, false},
    {"a100-hdr", "A100 with NVLink 3, a 200 Gb/s NIC a GPU", 8, 240e9, 0, 23.5e9, false},
    {"nvlink-roce", "H100 with NVLink 4, four 200 Gb/s NICs for 8 GPUs", 8, 371e9, 275e9, 11.75e9,
     false},
    {"pcie-ethernet", "PCIe 4, one 25 Gb/s NIC for 4 GPUs", 4, 22e9, 0, .73e9, false},
    /* NCCL alone on an H200 with the MPS daemon: 96 GB/s a rank with 4 ranks, 47.5 with 8. */
    {"one-gpu", "ranks that share an H200, inside it (NCCL 2.30.3 or newer, MPS)", 64, 384e9, 0,
     384e9, true},
    /* An all-reduce of 180 MB on 2 ranks took 82 ms. */
    {"one-gpu-sockets", "ranks that share an H200, over sockets (MPS)", 1, 384e9, 0, 2.19e9, true},
};
enum { N_PROFILES = sizeof profiles / sizeof *profiles };

const cluster_links *cluster_profile(int i) {
    return i >= 0 && i < N_PROFILES ? &profiles[i] : NULL;
}

/* Microseconds of an algorithm: base, a hop inside a node, a hop between nodes; and the share of
 * the bandwidth that the protocol carries. */
typedef struct constants {
    double base, intra, inter, share;
} constants;

/* LL carries 4 of 8 bytes, LL128 120 of 128 and pauses a little. */
static const constants ring[] = {{6.6, 0.6, 2.7, .5}, {14, 1.9, 4, .86}, {8.4, 3.4, 14, 1}};
static const constants tree[] = {{6.8, 0.6, 5, .5}, {14, 1.25, 8.5, .86}, {8.4, 4, 14, .92}};
static const double NVLS_US = 25;

typedef struct shape {
    double n, nodes, intra; /* GPUs, nodes, GPUs of a node */
} shape;

static shape shape_of(const cluster_links *l, int n) {
    double intra = n < l->n_node ? n : l->n_node;
    return (shape){n, ceil(n / intra), intra};
}

static double slower(double a, double b) {
    return a < b ? a : b;
}

/* Every link of the ring carries 2 (n - 1) / n of the bytes; all NICs of a node share the step
 * between nodes. */
static double ring_seconds(const cluster_links *l, shape s, double bytes, const constants *k) {
    double link = s.nodes > 1 ? slower(l->gpu_link, s.intra * l->nic) : l->gpu_link;
    double steps = 2 * (s.n - 1), between = s.nodes > 1 ? 2 * s.nodes : 0;
    double us = k->base + (steps - between) * k->intra + between * k->inter;
    return us * 1e-6 + bytes * 2 * (s.n - 1) / s.n / (link * k->share);
}

/* Up and down: chains in the nodes, a tree of the nodes. */
static double tree_seconds(const cluster_links *l, shape s, double bytes, const constants *k) {
    double link = s.nodes > 1 ? slower(l->gpu_link, s.intra * l->nic) : l->gpu_link;
    double us = k->base + 2 * ((s.intra - 1) * k->intra + ceil(log2(s.nodes)) * k->inter);
    return us * 1e-6 + 2 * bytes / (link * k->share);
}

/* The switch adds inside a node; between nodes a tree, of which an inner node sends twice. */
static double nvls_seconds(const cluster_links *l, shape s, double bytes) {
    double between = s.intra * l->nic / (s.nodes > 2 ? 2 : 1);
    double rate = s.nodes > 1 ? slower(l->nvls, between) : l->nvls;
    double us = NVLS_US + 2 * ceil(log2(s.nodes)) * tree[2].inter;
    return us * 1e-6 + bytes / rate;
}

static void take_faster(double seconds, const char *name, double *best, const char **how) {
    if (!(seconds < *best)) return;
    *best = seconds;
    *how = name;
}

double cluster_all_reduce(const cluster_links *l, int n, double bytes, const char **how) {
    static const char *const names[2][3] = {{"ring, LL", "ring, LL128", "ring, Simple"},
                                            {"tree, LL", "tree, LL128", "tree, Simple"}};
    const char *name = "none";
    double best = INFINITY;
    shape s = shape_of(l, n);
    for (int i = 0; n > 1 && i < 3; i++) {
        take_faster(ring_seconds(l, s, bytes, &ring[i]), names[0][i], &best, &name);
        take_faster(tree_seconds(l, s, bytes, &tree[i]), names[1][i], &best, &name);
    }
    if (n > 1 && l->nvls > 0 && s.intra > 2)
        take_faster(nvls_seconds(l, s, bytes), s.nodes > 1 ? "NVLS tree" : "NVLS", &best, &name);
    if (how != NULL) *how = name;
    return n > 1 ? best : 0;
}

/* Pairs of GPUs, 32 at a time; the parts inside and outside a node travel at the same time. */
double cluster_all_to_all(const cluster_links *l, int n, double bytes) {
    enum { AT_A_TIME = 32 };
    shape s = shape_of(l, n);
    const constants *k = &ring[2];
    if (n <= 1) return 0;
    double inside = bytes * (s.intra - 1) / s.n / l->gpu_link;
    double outside = bytes * (s.n - s.intra) / s.n / l->nic;
    double us = k->base + ceil((s.n - 1) / AT_A_TIME) * (s.nodes > 1 ? k->inter : k->intra);
    return us * 1e-6 + (inside > outside ? inside : outside);
}

/* Weights of a product and its bias. */
static double dense(double from, double to) {
    return from * to + to;
}

/* Parameters that every rank has: layers, input MLPs, the head. */
static double count_dense(const config *c) {
    const config_network *w = &c->network;
    double e = (double)w->hidden_size, inner = (double)(w->n_heads * w->dim_v), from = e, sum;
    double uvqk = 2 * (double)w->n_heads * (double)(w->dim_qk + w->dim_v);
    sum = (double)w->n_layers * (dense(e, uvqk) + dense(inner, e) + 2 * e + 2 * inner);
    if (c->task == TASK_RANKING && w->item_dim > 0)
        sum += dense((double)w->item_dim, e) + dense(e, e);
    if (w->contextual_dim > 0) sum += dense((double)w->contextual_dim, e) + dense(e, e);
    for (size_t i = 0; c->task == TASK_RANKING && i < c->ranking.head.n; i++) {
        sum += dense(from, (double)c->ranking.head.item[i]);
        from = (double)c->ranking.head.item[i];
    }
    return sum;
}

/* The group of generated features with the items. */
static const config_feature *item_feature(const config *c) {
    const config_features *f = &c->benchmark.features;
    for (size_t i = 0; c->is_benchmark && i < f->n; i++)
        for (size_t k = 0; k < f->item[i].feature_names.n; k++)
            if (c->benchmark.item_feature != NULL &&
                strcmp(f->item[i].feature_names.item[k], c->benchmark.item_feature) == 0)
                return &f->item[i];
    return NULL;
}

static double zipf_alpha(const config_distribution *d) {
    return d->kind == DIST_ZIPF ? d->alpha > 1 ? d->alpha : 1.5 : 0;
}

static void read_feature(const config *c, const config_feature *f, cluster_work *w) {
    w->max_length = f->max_sequence_length;
    w->lengths = !f->is_jagged            ? LENGTHS_FIXED
                 : f->seqlen_dist == NULL ? LENGTHS_UNIFORM
                                          : LENGTHS_ZIPF;
    if (w->lengths == LENGTHS_ZIPF) {
        w->length_alpha = zipf_alpha(f->seqlen_dist);
        if (w->length_alpha == 0) w->lengths = LENGTHS_UNIFORM;
    }
    for (size_t i = 0; i < f->value_dists.n; i++)
        if (strcmp(f->value_dists.name[i], c->benchmark.item_feature) == 0)
            w->id_alpha = zipf_alpha(&f->value_dists.item[i]);
}

status cluster_work_of(const config *c, cluster_work *out) {
    const config_feature *f = item_feature(c);
    const config_network *n = &c->network;
    cluster_work w = {.c = c, .batch = c->trainer.train_batch_size, .lengths = LENGTHS_FIXED};
    *out = (cluster_work){0};
    if (w.batch < 1 || w.batch > 1 << 20)
        return fail(ERR_CONFIG, "%s: a batch size from 1 to 2^20 is needed for a prediction",
                    c->file);
    w.max_length = c->data.max_history;
    w.n_context = c->is_benchmark ? (int32_t)c->benchmark.contextual_features.n : 0;
    for (size_t i = 0; i < c->embeddings.n; i++)
        if (c->embeddings.item[i].capacity > w.n_ids) w.n_ids = c->embeddings.item[i].capacity;
    if (f != NULL) read_feature(c, f, &w);
    if (w.max_length < 1 || w.max_length > 1 << 20)
        return fail(ERR_CONFIG, "%s: histories of up to %lld events; 1 to 2^20 can be predicted",
                    c->file, (long long)w.max_length);
    if (w.n_ids < 1) w.n_ids = 1 << 20;
    w.dense_bytes = 4 * count_dense(c);
    w.row_bytes = 4 * (double)(n->item_dim > 0 ? n->item_dim : n->hidden_size);
    *out = w;
    return OK;
}

/* The sum over ids of 1 - (1 - p)^n: the first ids one by one, the rest in bins that grow by 1 %
 * and have the probability of their middle. */
double cluster_unique(double n, double alpha, double n_ids) {
    enum { ONE_BY_ONE = 4096 };
    double total = 0, sum = 0;
    if (!(alpha > 1)) return n_ids * -expm1(n * log1p(-1 / (n_ids > 1 ? n_ids : 2)));
    for (int turn = 0; turn < 2; turn++)
        for (double k = 1; k <= n_ids;) {
            double width = k < ONE_BY_ONE ? 1 : floor(k * .01);
            if (k + width > n_ids + 1) width = n_ids + 1 - k;
            double weight = pow(k + (width - 1) / 2, -alpha);
            if (turn == 0)
                total += width * weight;
            else
                sum += width * -expm1(n * log1p(-weight / total * .9999999999));
            k += width;
        }
    return sum;
}

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

/* As generated data have them; what is above the maximum becomes it. */
static void draw_lengths(draws *d, uint64_t step) {
    const cluster_work *w = d->w;
    rng_key key = rng_make_key(step + 1, RNG_SYNTH);
    draw_rule rule = {.low = w->max_length, .high = w->max_length, .is_clamped = true};
    if (w->lengths == LENGTHS_UNIFORM) rule = (draw_rule){.high = w->max_length - 1};
    if (w->lengths == LENGTHS_ZIPF) {
        rule.kind = DRAW_ZIPF;
        rule.low = 1;
        rule.alpha = w->length_alpha;
    }
    for (int64_t i = 0; i < d->n_users; i++)
        d->length[i] = (int32_t)draw_number(&rule, key, (uint32_t)i, 0, 0);
}

static int longer(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x < y) - (x > y);
}

/* The heap's top is the rank with the least work: moves it down to its place. */
static void sift_down(const double *load, int32_t *heap, int n) {
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
        sift_down(d->load, heap, d->n_gpus);
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
        double normal = sqrt(-2 * log(1 - rng_uniform_pair(&b, 0))) *
                        cos(6.283185307179586 * rng_uniform_pair(&b, 1));
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
    MEM_FREE(d->cost, d->tokens, d->length, d->group, d->load);
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

/* NVIDIA's figures on 16 H100 (bench/results/peers/cluster.csv): each from the others by the model.
 *
 * Given: the step of one fixed shape, of which the GPUs were idle for a part and NCCL was exposed
 * for a part.  So the speed of a GPU that computes and the fixed part of a step are known.  The
 * speed without a balancer gives the speed of their first kernels.  Nothing of what is compared
 * below goes into it. */
typedef struct published {
    double step_flop, step_s, idle_s, exposed_s, zipf_flops, first_flops, balanced_flops;
} published;
enum { PUBLISHED_GPUS = 16 };

static published read_published(void) {
#define FIGURE(scale, key) scale *bench_peer("cluster", key, 0)
    return (published){FIGURE(1e12, "step_tflop"),
                       FIGURE(1e-3, "step_ms"),
                       FIGURE(1e-3, "idle_ms"),
                       FIGURE(1e-3, "exposed_ms"),
                       FIGURE(1e12, "zipf_tflops"),
                       FIGURE(1e12, "first_tflops"),
                       FIGURE(1e12, "first_balanced_tflops")};
}

static bool is_known(const published *p) {
    return isfinite(p->step_flop + p->step_s + p->idle_s + p->exposed_s + p->zipf_flops +
                    p->first_flops + p->balanced_flops);
}

/* Their model: 8 layers, 4 heads of 256, width 1024, item rows of 128 floats, 32 users a GPU. */
static config their_config(void) {
    config c = {.task = TASK_RANKING, .file = "published"};
    c.network = (config_network){.n_layers = 8,
                                 .hidden_size = 1024,
                                 .n_heads = 4,
                                 .dim_qk = 256,
                                 .dim_v = 256,
                                 .item_dim = 128,
                                 .contextual_dim = 256};
    c.trainer.train_batch_size = 32;
    c.data.max_history = 2048;
    return c;
}

/* The exposed communication of the fixed shape: 2048 items, as many actions, 3 contextual tokens;
 * gradients after the backward pass, ids sent during the step before. */
static status exposed_of_fixed(const published *p, const cluster_work *w, double spread,
                               const cluster_links *l, double speed, double *out) {
    cluster_row row;
    cluster_rank r = {.flops = speed, .fixed_s = p->idle_s, .spread = spread};
    TRY(cluster_predict(w, &r, l, PUBLISHED_GPUS, &row));
    *out = row.exposed_s + row.rows_s + row.small_s + row.wait_s;
    return OK;
}

/* The step of other kernels is found from their speed without a balancer; then what the balancer
 * gains with them. */
static status gain_of_balancer(const published *p, const cluster_work *w, double spread,
                               const cluster_links *l, double *out) {
    cluster_row none, equal;
    cluster_rank r = {.flops = 1e14, .fixed_s = p->idle_s, .spread = spread};
    for (int i = 0; i < 20; i++) { /* the speed at which the step has 75.6 TFLOP/s: it converges */
        TRY(cluster_predict(w, &r, l, PUBLISHED_GPUS, &none));
        r.flops *= p->first_flops / (none.work / none.step_s);
    }
    r.balance = BALANCE_EQUAL;
    TRY(cluster_predict(w, &r, l, PUBLISHED_GPUS, &equal));
    *out = none.step_s / equal.step_s * equal.work / none.work;
    return OK;
}

status cluster_published(double spread, cluster_check out[CLUSTER_CHECKS]) {
    published p = read_published();
    config c = their_config();
    cluster_work w;
    const cluster_links *l = cluster_profile(0);
    double speed = p.step_flop / (p.step_s - p.idle_s - p.exposed_s);
    cluster_row row;
    out[0] = (cluster_check){"exposed NCCL, 4099 tokens a user", "ms", p.exposed_s * 1e3, NAN};
    out[1] = (cluster_check){"speed of a GPU, lengths by Zipf 1.2", "TFLOP/s", p.zipf_flops * 1e-12,
                             NAN};
    out[2] = (cluster_check){"gain of the balancer, likewise", "x",
                             p.balanced_flops / p.first_flops, NAN};
    if (!is_known(&p)) return OK;
    TRY(cluster_work_of(&c, &w));
    w.n_context = 3;
    w.n_ids = 50000000;
    w.id_alpha = 1.05;
    TRY(exposed_of_fixed(&p, &w, spread, l, speed, &out[0].model));
    out[0].model *= 1e3;
    w.lengths = LENGTHS_ZIPF;
    w.length_alpha = w.id_alpha = 1.2;
    w.max_length = 4096;
    w.n_context = 0;
    cluster_rank r = {speed, p.idle_s, spread, false, BALANCE_EQUAL};
    TRY(cluster_predict(&w, &r, l, PUBLISHED_GPUS, &row));
    out[1].model = row.work / row.step_s * 1e-12;
    return gain_of_balancer(&p, &w, spread, l, &out[2].model);
}

static const char *const balance_names[] = {"none", "equal", "lpt", NULL};

typedef struct bench_args {
    const char *gpus, *file, *measured, *device, *lengths;
    arg_list overrides;
    double tflops, fixed_ms, spread;
    bool is_late, is_json;
    int profile, balance; /* cluster_balance */
    int64_t count[MAX_COUNTS];
    int n_counts;
    const char *source; /* of the speed */
} bench_args;

static status read_lengths(const char *text, cluster_work *w) {
    char *end;
    if (strcmp(text, "fixed") == 0) {
        w->lengths = LENGTHS_FIXED;
    } else if (strcmp(text, "uniform") == 0) {
        w->lengths = LENGTHS_UNIFORM;
    } else if (strncmp(text, "zipf:", 5) == 0) {
        w->lengths = LENGTHS_ZIPF;
        w->length_alpha = strtod(text + 5, &end);
        if (end == text + 5 || *end != '\0' || !(w->length_alpha > 1 && w->length_alpha <= 20))
            return fail(ERR_USAGE, "--lengths %.40s: zipf needs a number from 1 to 20, as zipf:1.2",
                        text);
    } else {
        return fail(ERR_USAGE, "--lengths %.40s: must be fixed, uniform or zipf:ALPHA", text);
    }
    return OK;
}

/* The speed from what `hstu bench train --json` printed. */
static status read_measured(bench_args *a) {
    arena memory;
    const json_value *object;
    arena_init(&memory, 4096);
    status st = json_read_file(&memory, a->measured, MAX_MEASURED, &object);
    if (st == OK) st = json_member_double(object, "tflop_per_s", &a->tflops);
    if (st != OK) st = fail_prefix(st, "--measured");
    arena_fini(&memory);
    a->source = a->measured;
    return st;
}

static status measure(bench_args *a, const config *c) {
    work w;
    train_bench_result r = {0};
    TRY(work_open(&w, NULL, a->device));
    status st = train_bench_data(&w.data, c, w.workers);
    if (st == OK) st = train_bench_run(c, w.data, &w.be, MEASURED_STEPS, &r);
    train_bench_fini(&r);
    work_close(&w);
    a->tflops = r.speed / 1e12;
    a->source = "measured here";
    return st;
}

static void print_assumptions(const bench_args *a, const cluster_work *w, const cluster_rank *r,
                              const cluster_links *l) {
    static const char *const balances[] = {"none", "equal numbers of users", "LPT"};
    printf("\nAssumed:\n");
    printf("  one GPU     %.1f TFLOP/s end to end (%s), %.1f ms a step fixed\n", a->tflops,
           a->source, a->fixed_ms);
    printf("  links       %s: %s; %.0f GB/s in a node of %d, %.1f GB/s a GPU between nodes\n",
           l->name, l->what, l->gpu_link * 1e-9, l->n_node, l->nic * 1e-9);
    if (l->is_one_gpu)
        printf("              all ranks share one GPU: each has 1/G of its speed and links\n");
    printf("  batch       %" PRId64 " users a GPU; lengths ", w->batch);
    if (w->lengths == LENGTHS_ZIPF)
        printf("by Zipf %.2f up to %" PRId64, w->length_alpha, w->max_length);
    else
        printf("%s %" PRId64, w->lengths == LENGTHS_FIXED ? "all" : "uniform up to", w->max_length);
    printf("; balance: %s\n", balances[r->balance]);
    printf("  messages    %.1f MB of dense gradients, %s; rows of %.0f bytes there and back once "
           "for each different id, without ids\n",
           w->dense_bytes * 1e-6,
           r->overlaps ? "layer by layer during the backward pass" : "after the backward pass",
           w->row_bytes);
    printf("  spread      %.2f %%: deviation of the ranks' speed; with it the model has the "
           "published exposed NCCL below\n",
           100 * r->spread);
    printf("  NCCL        constants of its own tuning (latency of base and hops, protocols), "
           "fastest algorithm\n");
}

static void print_checks(const cluster_check *check) {
    printf("\nThe model against NVIDIA's figures on 16 H100, each from the others:\n");
    for (int i = 0; i < CLUSTER_CHECKS; i++) {
        const cluster_check *c = &check[i];
        if (isnan(c->model))
            printf("  %-36s published %7s %-8s model %7s\n", c->what, "-", c->unit, "-");
        else
            printf("  %-36s published %7.2f %-8s model %7.2f  (%+.1f %%)\n", c->what, c->published,
                   c->unit, c->model, 100 * (c->model / c->published - 1));
    }
}

/* In the table, or as an object where there is a writer. */
static void put_row(bench *table, json_writer *j, const cluster_row *row) {
    if (j != NULL) json_object_open(j);
    bench_put(table, j,
              CELLS(COLUMN("GPUs", "  6", "gpus", row->n_gpus),
                    COLUMN("step ms", " 9.2f", "step_ms", row->step_s * 1e3),
                    COLUMN("TFLOP/s", " 9.1f", "tflop_per_s_gpu", row->work / row->step_s * 1e-12),
                    COLUMN("   of one", " 7.1f %%", NULL, 100 * row->efficiency),
                    MEMBER("efficiency", row->efficiency),
                    MEMBER("tflop_per_step", row->work * 1e-12),
                    MEMBER("tokens_per_step", row->tokens),
                    COLUMN("compute", " 9.2f", "compute_ms", row->compute_s * 1e3),
                    COLUMN("wait", " 9.2f", "wait_ms", row->wait_s * 1e3),
                    MEMBER("balance", row->balance), MEMBER("all_reduce_ms", row->dense_s * 1e3),
                    COLUMN("gradient", " 9.2f", "all_reduce_exposed_ms", row->exposed_s * 1e3),
                    COLUMN("rows", " 9.2f", NULL, (row->rows_s + row->small_s) * 1e3),
                    MEMBER("rows_ms", row->rows_s * 1e3), MEMBER("small_ms", row->small_s * 1e3),
                    MEMBER("unique_ids", row->unique_ids), MEMBER("all_reduce", row->how),
                    COLUMN("largest loss", "  0", "limit", row->limit)));
    if (j != NULL) json_object_close(j);
}

static status print_json(const bench_args *a, const cluster_work *w, const cluster_rank *r,
                         const cluster_links *l, const cluster_row *rows,
                         const cluster_check *check) {
    json_writer *j = json_line_open();
    JSON_FIELDS(j, FIELD("bench", "cluster"), FIELD("config", w->c->file),
                FIELD("profile", l->name), FIELD("gpu_tflop_per_s", a->tflops),
                FIELD("gpu_source", a->source), FIELD("fixed_ms", a->fixed_ms),
                FIELD("spread", r->spread), FIELD("balance", balance_names[a->balance]),
                FIELD("overlap", r->overlaps), FIELD("batch", w->batch),
                FIELD("dense_bytes", w->dense_bytes), FIELD("row_bytes", w->row_bytes));
    json_key_array(j, "rows");
    for (int i = 0; i < a->n_counts; i++)
        put_row(NULL, j, &rows[i]);
    json_array_close(j);
    json_key_array(j, "published");
    for (int i = 0; i < CLUSTER_CHECKS; i++) {
        JSON_OBJECT(j, FIELD("what", check[i].what), FIELD("unit", check[i].unit),
                    FIELD("published", check[i].published), FIELD("model", check[i].model));
    }
    json_array_close(j);
    return json_line_print();
}

static status predict(bench_args *a, const config *c) {
    cluster_work w;
    cluster_row rows[MAX_COUNTS];
    cluster_check check[CLUSTER_CHECKS];
    const cluster_links *l = cluster_profile(a->profile);
    cluster_rank r = {.spread = a->spread / 100,
                      .fixed_s = a->fixed_ms / 1e3,
                      .overlaps = !a->is_late,
                      .balance = (cluster_balance)a->balance};
    bench table = {0};
    TRY(cluster_work_of(c, &w));
    if (a->lengths != NULL) TRY(read_lengths(a->lengths, &w));
    if (a->measured != NULL) TRY(read_measured(a));
    if (a->device != NULL) TRY(measure(a, c));
    if (a->measured == NULL && a->device == NULL && a->tflops != H200_TFLOPS) a->source = "given";
    r.flops = a->tflops * 1e12;
    for (int i = 0; i < a->n_counts; i++)
        TRY(cluster_predict(&w, &r, l, (int)a->count[i], &rows[i]));
    TRY(cluster_published(r.spread, check));
    if (a->is_json) return print_json(a, &w, &r, l, rows, check);
    bench_title(&table, "A training step on many GPUs, predicted: %s", c->file);
    for (int i = 0; i < a->n_counts; i++)
        put_row(&table, NULL, &rows[i]);
    print_assumptions(a, &w, &r, l);
    print_checks(check);
    return OK;
}

static status run(bench_args *a) {
    config *c;
    char path[CONFIG_PATH_BYTES];
    config_source source = {
        .path = path, .overrides = a->overrides.item, .n_overrides = a->overrides.n_items};
    TRY(args_read_numbers("--gpus", a->gpus, CLUSTER_MAX_GPUS, a->count, MAX_COUNTS, &a->n_counts));
    if (a->measured != NULL && a->device != NULL)
        return fail(ERR_USAGE, "--measured and --device exclude each other");
    config_path_find(a->file, path);
    TRY(config_load(&c, &source));
    status st = predict(a, c);
    config_destroy(c);
    return st;
}

status bench_cluster(int argc, char **argv) {
    bench_args a = {.gpus = "1,8,64,512",
                    .file = "configs/benchmark_ranking_fixed.gin",
                    .balance = BALANCE_LPT,
                    .tflops = H200_TFLOPS,
                    .spread = .7,
                    .source = "an H200, bench/results/h200/train.csv"};
    const char *profile_names[N_PROFILES + 1] = {NULL};
    for (int i = 0; i < N_PROFILES; i++)
        profile_names[i] = profiles[i].name;
    const arg_option options[] = {
        OPT_TEXT("--gpus", &a.gpus, "LIST", "Numbers of GPUs to predict for (default 1,8,64,512)."),
        OPT_CHOICE(
            "--profile", &a.profile, "NAME", profile_names,
            "Interconnect: nvlink-ndr (default), nvlink-hdr, nvlink5-ndr, a100-hdr, nvlink-roce or "
            "pcie-ethernet; one-gpu and one-gpu-sockets: G ranks that share one GPU."),
        OPT_TEXT("--gin-config-file", &a.file, "FILE",
                 "Config file (default configs/benchmark_ranking_fixed.gin); its batch size is per "
                 "GPU."),
        OPT_LIST("--set", &a.overrides, "Class.field=value",
                 "Override one binding of the config file; may be repeated."),
        OPT_DOUBLE("--tflops", &a.tflops, "F",
                   "Speed of one GPU, as counted by 'hstu bench train' (default 430.4, an H200)."),
        OPT_TEXT("--measured", &a.measured, "FILE",
                 "Read the speed from the output of 'hstu bench train --json'."),
        OPT_TEXT("--device", &a.device, "DEVICE",
                 "Measure the speed on this device: auto, cpu, cuda or cuda:N."),
        OPT_DOUBLE(
            "--fixed-ms", &a.fixed_ms, "MS",
            "Part of a step that does not depend on the batch (default 0: included in the speed)."),
        OPT_DOUBLE("--spread", &a.spread, "PERCENT",
                   "Standard deviation of the GPUs' speed, in percent (default 0.7)."),
        OPT_TEXT("--lengths", &a.lengths, "HOW",
                 "Sequence lengths: fixed, uniform or zipf:ALPHA (default: as the config generates "
                 "them, otherwise fixed)."),
        OPT_CHOICE(
            "--balance", &a.balance, "HOW", balance_names,
            "Load balancing: none, equal (the same number of users per GPU) or lpt (default)."),
        OPT_FLAG("--no-overlap", &a.is_late,
                 "Reduce the gradients after the backward pass instead of during it."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench cluster [options]",
        .summary = "Predict the time of a training step on many GPUs from the speed of one, the "
                   "message sizes and an alpha-beta model with NCCL's constants. Shows the share "
                   "of computing and the largest loss.",
        .options = options,
        .notes = "This is a prediction, not a measurement. It prints its assumptions and its error "
                 "on published figures for 16 GPUs; docs/ranks.md explains the model.\n"};
    ARGS_PARSE(&spec, NULL, NULL);
    return run(&a);
}
