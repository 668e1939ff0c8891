/* The bench of dynamic tables: whole steps: dedup, find or insert, staging, update.  Ids follow a
 * power law; ten tables at once, with rows twice as long as elsewhere in this bench, is the
 * workload that dynamicemb and FBGEMM publish.  A step is timed twice: through src/embed, with ids
 * in host memory, table by table; and through the device calls of ops/table.h, with all ids in one
 * table. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench/embedding.h"

enum { N_TABLES = 10 };

typedef struct step_ctx {
    embed_bench *b;
    embed_table *t;
    uint64_t *ids; /* (N_BATCHES, n) host */
    bool updates;
    int64_t step;
} step_ctx;

static status step_call(void *ctx, int round) {
    step_ctx *c = ctx;
    const embed_batch *fetched;
    embed_step_args args = {.lr = 0.01f, .eps = 1e-6f, .step = ++c->step};
    TRY(embed_fetch(c->t, c->updates ? FETCH_INSERT : FETCH_ZERO, c->b->n, c->ids + round * c->b->n,
                    NULL, &fetched));
    return c->updates ? embed_update(c->t, c->b->rows, &args) : OK;
}

/* Draws ids by a power law of exponent 1.05, over as many ids as the table has slots, by inverting
 * its distribution. */
static void draw_zipf(const embed_bench *b, uint64_t *ids, int64_t n, int64_t n_ids) {
    double top = pow((double)n_ids + 1, -0.05);
    for (int64_t i = 0; i < n; i++) {
        double u = rng_uniform64((uint32_t)(table_hash(b->salt + (uint64_t)i) >> 32),
                                 (uint32_t)table_hash(b->salt + (uint64_t)i));
        double x = pow(1 - u * (1 - top), -20);
        ids[i] = table_hash((uint64_t)x); /* ids are no small numbers */
    }
}

static status bench_one(embed_bench *b) {
    int64_t slots = b->slots > 0 ? b->slots : (int64_t)(b->max_gib * 4194304 / 4);
    embed_config shape = {.dim = (int32_t)b->dim,
                          .opt = OPT_ROWWISE_ADAGRAD,
                          .policy = POLICY_LRU,
                          .capacity = {slots < 4096 ? 4096 : slots, 0},
                          .max_batch = b->n,
                          .first = FIRST_UNIFORM,
                          .first_scale = 0.1f};
    step_ctx c = {.b = b};
    double rate = 0;
    TRY(mem_alloc_raw((void **)&c.ids, (size_t)(N_BATCHES * b->n), 8));
    draw_zipf(b, c.ids, N_BATCHES * b->n, shape.capacity[0]);
    status st = embed_create(&c.t, b->be, &shape);
    for (int i = 1; st == OK && i >= 0; i--) {
        c.updates = i == 1;
        st = embed_bench_rate(b, step_call, &c, &rate);
        embed_figure f = {.what =
                              i == 1 ? "ids of a training step, Zipf 1.05" : "ids of an evaluation",
                          .size = "",
                          .per_s = rate * (double)b->n,
                          .ms = 1e3 / rate};
        if (st == OK) st = embed_bench_report(b, &f);
    }
    embed_destroy(c.t);
    mem_free(c.ids);
    return st;
}

typedef struct tables_ctx {
    embed_bench *b;
    embed_table *t[N_TABLES];
    int64_t begin[N_TABLES + 1];
    uint64_t *ids;       /* (N_BATCHES, n) host */
    uint64_t *on_device; /* the same */
    nn_memory memory;
} tables_ctx;

static int64_t ten_dim(const embed_bench *b) {
    return 2 * b->dim;
}

/* For each table: fetches its share of the ids and updates the rows by SGD. */
static status train_tables(void *ctx, int round) {
    tables_ctx *c = ctx;
    embed_step_args args = {.lr = 0.01f, .step = 1};
    for (int k = 0; k < N_TABLES; k++) {
        const embed_batch *fetched;
        TRY(embed_fetch(c->t[k], FETCH_INSERT, c->begin[k + 1] - c->begin[k],
                        c->ids + round * c->b->n + c->begin[k], NULL, &fetched));
        TRY(embed_update(c->t[k], c->b->rows, &args));
    }
    return OK;
}

static status look_up_tables(void *ctx, int round) {
    tables_ctx *c = ctx;
    return embed_lookup(c->t, N_TABLES, c->begin, c->on_device + round * c->b->n, c->b->rows, NULL);
}

/* A lookup must read the same rows as a find. */
static status check_table(tables_ctx *c, int k, const float *y, float *want, embed_figure *f) {
    int64_t dim = ten_dim(c->b), n = (c->begin[k + 1] - c->begin[k]) * dim;
    TRY(embed_find(c->t[k], c->begin[k + 1] - c->begin[k], c->ids + c->begin[k], (int32_t)dim, want,
                   NULL));
    for (int64_t i = 0; i < n; i++)
        f->n_wrong += y[c->begin[k] * dim + i] != want[i];
    f->n_checked += n;
    return OK;
}

static status check_lookup(tables_ctx *c, embed_figure *f) {
    embed_bench *b = c->b;
    int64_t n = b->n * ten_dim(b);
    float *y, *want;
    TRY(NN_NEW_HOST(&c->memory, &y, n));
    TRY(NN_NEW_HOST(&c->memory, &want, n));
    TRY(look_up_tables(c, 0));
    TRY(b->be->ops->copy_out(b->be, y, b->rows, (size_t)n * sizeof *y));
    for (int k = 0; k < N_TABLES; k++)
        TRY(check_table(c, k, y, want, f));
    return OK;
}

static status run_tables(tables_ctx *c, const embed_config *shape) {
    embed_bench *b = c->b;
    int64_t n_ids = N_BATCHES * b->n;
    double rate = 0;
    TRY(NN_NEW_HOST(&c->memory, &c->ids, n_ids));
    TRY(NN_NEW(&c->memory, &c->on_device, n_ids));
    draw_zipf(b, c->ids, n_ids, shape->capacity[0]);
    TRY(b->be->ops->copy_in(b->be, c->on_device, c->ids, (size_t)n_ids * sizeof *c->ids));
    for (int k = 0; k < N_TABLES; k++)
        TRY(embed_create(&c->t[k], b->be, shape));
    TRY(embed_bench_rate(b, train_tables, c, &rate));
    embed_figure step = {.what = "10 tables, a step of SGD",
                         .size = "",
                         .per_s = rate * (double)b->n,
                         .ms = 1e3 / rate};
    TRY(embed_bench_report(b, &step));
    embed_figure f = {.what = "10 tables, evaluation", .size = ""};
    TRY(check_lookup(c, &f));
    TRY(embed_bench_rate(b, look_up_tables, c, &rate));
    f.per_s = rate * (double)b->n;
    f.ms = 1e3 / rate;
    f.bytes = (double)ten_dim(b) * 4;
    return embed_bench_report(b, &f);
}

static status bench_ten(embed_bench *b) {
    int64_t all = b->slots > 0 ? b->slots : (int64_t)(b->max_gib * 4194304 / 4);
    embed_config shape = {.dim = (int32_t)ten_dim(b),
                          .policy = POLICY_LRU,
                          .capacity = {all / N_TABLES < 4096 ? 4096 : all / N_TABLES, 0},
                          .max_batch = b->n,
                          .first = FIRST_UNIFORM,
                          .first_scale = 0.1f};
    tables_ctx c = {.b = b};
    for (int k = 0; k <= N_TABLES; k++)
        c.begin[k] = b->n * k / N_TABLES;
    nn_memory_init(&c.memory, b->be);
    status st = run_tables(&c, &shape);
    for (int k = 0; k < N_TABLES; k++)
        embed_destroy(c.t[k]);
    nn_memory_fini(&c.memory);
    return st;
}

typedef struct verbs_ctx {
    embed_bench *b;
    table_level l;
    uint64_t *ids;   /* (N_BATCHES, n) on the device, as all below */
    uint64_t *keys;  /* (n) */
    int64_t *n_keys; /* (1) */
    int32_t *inverse, *order, *begin;
    float *dy, *grad; /* (n, 2 dim) */
    uint64_t score;
    nn_memory memory;
} verbs_ctx;

static const float STEP_RATE = 1e-3f, STEP_GRAD = 0.5f;

static status pool_ids(verbs_ctx *c) {
    embed_bench *b = c->b;
    table_pool_args read = {.n = b->n,
                            .slot = b->slot,
                            .inverse = c->inverse,
                            .dim = (int32_t)ten_dim(b),
                            .y = b->rows};
    return b->v->pool(b->be, &c->l, &read);
}

static status step_by_verbs(void *ctx, int round) {
    verbs_ctx *c = ctx;
    embed_bench *b = c->b;
    int32_t dim = (int32_t)ten_dim(b);
    table_unique_args unique = {
        b->n, c->ids + round * b->n, c->keys, c->n_keys, c->inverse, c->order, c->begin};
    table_init_args init = {.dim = dim,
                            .first = {FIRST_UNIFORM, rng_make_key(1, RNG_TABLE),
                                      (float)table_first_unit(FIRST_UNIFORM, 0.05), 0}};
    table_place_args place = {.n = b->n,
                              .n_real = c->n_keys,
                              .keys = c->keys,
                              .is_ordered = true,
                              .rule = SCORE_SET,
                              .score = ++c->score,
                              .stamp = 1,
                              .evict = EVICT_SMALLEST,
                              .slot = b->slot,
                              .is_new = b->is_new,
                              .counts = b->counts,
                              .init = &init};
    table_pool_grad_args grad = {.n = b->n,
                                 .order = c->order,
                                 .begin = c->begin,
                                 .n_groups = b->n,
                                 .n_real = c->n_keys,
                                 .dim = dim,
                                 .dy = c->dy,
                                 .grad = c->grad};
    table_update_args update = {.n = b->n,
                                .n_real = c->n_keys,
                                .slot = b->slot,
                                .dim = dim,
                                .grad = c->grad,
                                .lr = STEP_RATE,
                                .step = 1,
                                .stamp = 1};
    TRY(b->v->unique(b->be, &unique));
    TRY(b->v->place(b->be, &c->l, &place));
    TRY(pool_ids(c));
    TRY(b->v->pool_grad(b->be, &grad));
    return b->v->update(b->be, &c->l, &update);
}

/* Compares the rows before a step and after it: all gradients are equal, so an id's row moves by
 * how often it is in the batch. */
static status check_step(verbs_ctx *c, embed_figure *f) {
    embed_bench *b = c->b;
    int64_t dim = ten_dim(b), n = b->n * dim;
    float *before, *after;
    int32_t *inverse, *times;
    TRY(NN_NEW_HOST(&c->memory, &before, n));
    TRY(NN_NEW_HOST(&c->memory, &after, n));
    TRY(NN_NEW_HOST(&c->memory, &inverse, b->n));
    TRY(NN_NEW_HOST(&c->memory, &times, b->n));
    TRY(step_by_verbs(c, 0));
    TRY(b->be->ops->copy_out(b->be, before, b->rows, (size_t)n * sizeof *before));
    TRY(pool_ids(c));
    TRY(b->be->ops->copy_out(b->be, after, b->rows, (size_t)n * sizeof *after));
    TRY(b->be->ops->copy_out(b->be, inverse, c->inverse, (size_t)b->n * sizeof *inverse));
    for (int64_t i = 0; i < b->n; i++)
        times[inverse[i]]++;
    for (int64_t i = 0; i < n; i++) {
        float want = before[i] - STEP_RATE * STEP_GRAD * (float)times[inverse[i / dim]];
        f->n_wrong += !(fabsf(after[i] - want) <= 1e-6f * (1 + fabsf(want)));
    }
    f->n_checked = n;
    return OK;
}

/* The high bits of an id are the number of its table. */
static status make_verbs(verbs_ctx *c) {
    embed_bench *b = c->b;
    nn_memory *m = &c->memory;
    int64_t n = b->n, n_ids = N_BATCHES * n, n_grad = n * ten_dim(b);
    uint64_t *ids;
    float *dy;
    TRY(NN_NEW(m, &c->ids, n_ids));
    TRY(NN_NEW(m, &c->keys, n));
    TRY(NN_NEW(m, &c->n_keys, 1));
    TRY(NN_NEW(m, &c->inverse, n));
    TRY(NN_NEW(m, &c->order, n));
    TRY(NN_NEW(m, &c->begin, n + 1));
    TRY(NN_NEW(m, &c->dy, n_grad));
    TRY(NN_NEW(m, &c->grad, n_grad));
    TRY(NN_NEW_HOST(m, &ids, n_ids));
    TRY(NN_NEW_HOST(m, &dy, n_grad));
    draw_zipf(b, ids, n_ids, c->l.n_buckets * TABLE_SLOTS / N_TABLES);
    for (int64_t i = 0; i < n_ids; i++)
        ids[i] = ids[i] >> 16 | (uint64_t)(i % n * N_TABLES / n) << 48;
    for (int64_t i = 0; i < n_grad; i++)
        dy[i] = STEP_GRAD;
    TRY(b->be->ops->copy_in(b->be, c->ids, ids, (size_t)n_ids * sizeof *ids));
    return b->be->ops->copy_in(b->be, c->dy, dy, (size_t)n_grad * sizeof *dy);
}

static status bench_verbs(embed_bench *b) {
    verbs_ctx c = {.b = b};
    double rate = 0;
    embed_figure f = {.what = "10 tables in one, SGD by verbs", .size = ""};
    int64_t row_bytes = ten_dim(b) * 4 + (ten_dim(b) % 4 != 0) * 8;
    nn_memory_init(&c.memory, b->be);
    status st = embed_level_create(b, &c.l, embed_bench_slots(b) / 2, row_bytes, TABLE_ON_DEVICE);
    if (st == OK) st = make_verbs(&c);
    if (st == OK) st = check_step(&c, &f);
    if (st == OK) st = embed_bench_rate(b, step_by_verbs, &c, &rate);
    f.per_s = rate * (double)b->n;
    f.ms = 1e3 / rate;
    if (st == OK) st = embed_bench_report(b, &f);
    embed_level_destroy(b, &c.l, TABLE_ON_DEVICE);
    nn_memory_fini(&c.memory);
    return st;
}

status embed_bench_steps(embed_bench *b) {
    TRY(bench_one(b));
    TRY(bench_ten(b));
    return bench_verbs(b);
}
