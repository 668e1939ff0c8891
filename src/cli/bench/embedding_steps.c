/* The bench of dynamic tables: whole steps: dedup, find or insert, staging, update.  Ids follow a
 * power law; ten tables at once, with rows twice as long as elsewhere in this bench, is the
 * workload that dynamicemb and FBGEMM publish.  A step is timed twice: through src/embed, with ids
 * in host memory, table by table; and through the device calls of ops/table.h, with all ids in one
 * table. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench/embedding_int.h"

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
    int64_t slots = b->o.slots > 0 ? b->o.slots : (int64_t)(b->o.max_gib * 4194304 / 4);
    embed_config shape = {.dim = (int32_t)b->o.dim,
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
} tables_ctx;

static int64_t ten_dim(const embed_bench *b) {
    return 2 * b->o.dim;
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
    size_t n = (size_t)(b->n * ten_dim(b));
    float *y, *want = NULL;
    TRY(mem_alloc_raw((void **)&y, n, sizeof *y));
    status st = mem_alloc_raw((void **)&want, n, sizeof *want);
    if (st == OK) st = look_up_tables(c, 0);
    if (st == OK) st = b->be->ops->copy_out(b->be, y, b->rows, n * sizeof *y);
    for (int k = 0; st == OK && k < N_TABLES; k++)
        st = check_table(c, k, y, want, f);
    mem_free(y);
    mem_free(want);
    return st;
}

static status run_tables(tables_ctx *c) {
    embed_bench *b = c->b;
    double rate = 0;
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
    int64_t all = b->o.slots > 0 ? b->o.slots : (int64_t)(b->o.max_gib * 4194304 / 4);
    embed_config shape = {.dim = (int32_t)ten_dim(b),
                          .policy = POLICY_LRU,
                          .capacity = {all / N_TABLES < 4096 ? 4096 : all / N_TABLES, 0},
                          .max_batch = b->n,
                          .first = FIRST_UNIFORM,
                          .first_scale = 0.1f};
    tables_ctx c = {.b = b};
    size_t bytes = (size_t)(N_BATCHES * b->n) * 8;
    for (int k = 0; k <= N_TABLES; k++)
        c.begin[k] = b->n * k / N_TABLES;
    TRY(mem_alloc_raw((void **)&c.ids, bytes, 1));
    draw_zipf(b, c.ids, N_BATCHES * b->n, shape.capacity[0]);
    status st = b->be->ops->alloc(b->be, (void **)&c.on_device, bytes);
    if (st == OK) st = b->be->ops->copy_in(b->be, c.on_device, c.ids, bytes);
    for (int k = 0; st == OK && k < N_TABLES; k++)
        st = embed_create(&c.t[k], b->be, &shape);
    if (st == OK) st = run_tables(&c);
    for (int k = 0; k < N_TABLES; k++)
        embed_destroy(c.t[k]);
    if (c.on_device != NULL) b->be->ops->release(b->be, c.on_device);
    mem_free(c.ids);
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
static status compare_step(verbs_ctx *c, float *before, float *after, int32_t *inverse,
                           int32_t *times, embed_figure *f) {
    embed_bench *b = c->b;
    int64_t dim = ten_dim(b), n = b->n * dim;
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

static status check_step(verbs_ctx *c, embed_figure *f) {
    size_t n = (size_t)(c->b->n * ten_dim(c->b));
    float *before, *after = NULL;
    int32_t *inverse = NULL, *times = NULL;
    TRY(mem_alloc_raw((void **)&before, n, sizeof *before));
    status st = mem_alloc_raw((void **)&after, n, sizeof *after);
    if (st == OK) st = MEM_NEW(&inverse, (size_t)c->b->n);
    if (st == OK) st = MEM_NEW(&times, (size_t)c->b->n);
    if (st == OK) st = compare_step(c, before, after, inverse, times, f);
    mem_free(before);
    mem_free(after);
    mem_free(inverse);
    mem_free(times);
    return st;
}

/* The high bits of an id are the number of its table. */
static status fill_verbs(verbs_ctx *c) {
    embed_bench *b = c->b;
    int64_t n = N_BATCHES * b->n, n_grad = b->n * ten_dim(b);
    uint64_t *ids;
    float *dy = NULL;
    TRY(mem_alloc_raw((void **)&ids, (size_t)n, sizeof *ids));
    draw_zipf(b, ids, n, c->l.n_buckets * TABLE_SLOTS / N_TABLES);
    for (int64_t i = 0; i < n; i++)
        ids[i] = ids[i] >> 16 | (uint64_t)(i % b->n * N_TABLES / b->n) << 48;
    status st = b->be->ops->copy_in(b->be, c->ids, ids, (size_t)n * sizeof *ids);
    mem_free(ids);
    if (st == OK) st = mem_alloc_raw((void **)&dy, (size_t)n_grad, sizeof *dy);
    for (int64_t i = 0; st == OK && i < n_grad; i++)
        dy[i] = STEP_GRAD;
    if (st == OK) st = b->be->ops->copy_in(b->be, c->dy, dy, (size_t)n_grad * sizeof *dy);
    mem_free(dy);
    return st;
}

/* Allocates all memory of the step; after a failure the rest is NULL. */
static status make_verbs(verbs_ctx *c, void *memory[], int n_memory) {
    embed_bench *b = c->b;
    const ops *o = b->be->ops;
    size_t n = (size_t)b->n, rows = n * (size_t)ten_dim(b) * sizeof(float);
    int64_t slots = embed_bench_slots(b) / 2;
    c->l.n_buckets = slots / TABLE_SLOTS < 64 ? 64 : slots / TABLE_SLOTS;
    c->l.row_bytes = ten_dim(b) * 4 + (ten_dim(b) % 4 != 0) * 8;
    size_t index_bytes = (size_t)c->l.n_buckets * TABLE_BUCKET_BYTES;
    const size_t bytes[] = {N_BATCHES * n * 8, n * 8, 8, n * 4, n * 4, (n + 1) * 4, rows, rows};
    for (int i = 0; i < n_memory; i++)
        TRY(o->alloc(b->be, &memory[i], bytes[i]));
    c->ids = memory[0], c->keys = memory[1], c->n_keys = memory[2], c->inverse = memory[3];
    c->order = memory[4], c->begin = memory[5], c->dy = memory[6], c->grad = memory[7];
    TRY(b->v->alloc(b->be, (void **)&c->l.index, index_bytes, TABLE_ON_DEVICE));
    TRY(o->zero(b->be, c->l.index, index_bytes));
    return b->v->alloc(b->be, (void **)&c->l.rows,
                       (size_t)(c->l.n_buckets * TABLE_SLOTS * c->l.row_bytes), TABLE_ON_DEVICE);
}

static status bench_verbs(embed_bench *b) {
    enum { N_MEMORY = 8 };
    void *memory[N_MEMORY] = {NULL};
    verbs_ctx c = {.b = b};
    double rate = 0;
    embed_figure f = {.what = "10 tables in one, SGD by verbs", .size = ""};
    status st = make_verbs(&c, memory, N_MEMORY);
    if (st == OK) st = fill_verbs(&c);
    if (st == OK) st = check_step(&c, &f);
    if (st == OK) st = embed_bench_rate(b, step_by_verbs, &c, &rate);
    f.per_s = rate * (double)b->n;
    f.ms = 1e3 / rate;
    if (st == OK) st = embed_bench_report(b, &f);
    for (int i = 0; i < N_MEMORY; i++)
        if (memory[i] != NULL) b->be->ops->release(b->be, memory[i]);
    if (c.l.index != NULL) b->v->release(b->be, c.l.index, TABLE_ON_DEVICE);
    if (c.l.rows != NULL) b->v->release(b->be, c.l.rows, TABLE_ON_DEVICE);
    return st;
}

status embed_bench_steps(embed_bench *b) {
    TRY(bench_one(b));
    TRY(bench_ten(b));
    return bench_verbs(b);
}
