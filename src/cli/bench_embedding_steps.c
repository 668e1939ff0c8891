/* hstu bench embedding: whole steps: dedup, find or insert, staging, update.  Ids follow a power
 * law; ten tables at once is the workload that dynamicemb and FBGEMM publish. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench_embedding.h"

enum { N_TABLES = 10 };

typedef struct step_ctx {
    bench *b;
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

/* Ids by a power law of exponent 1.05 over as many as the table has slots, by its inverse. */
static void draw_zipf(const bench *b, uint64_t *ids, int64_t n, int64_t n_ids) {
    double top = pow((double)n_ids + 1, -0.05);
    for (int64_t i = 0; i < n; i++) {
        double u = rng_uniform64((uint32_t)(table_hash(b->salt + (uint64_t)i) >> 32),
                                 (uint32_t)table_hash(b->salt + (uint64_t)i));
        double x = pow(1 - u * (1 - top), -20);
        ids[i] = table_hash((uint64_t)x); /* ids are no small numbers */
    }
}

static status bench_one(bench *b) {
    int64_t slots = b->o.slots > 0 ? b->o.slots : (int64_t)(b->o.max_gib * 4194304 / 4);
    embed_config shape = {.dim = (int32_t)b->o.dim,
                          .opt = ROW_ROWWISE_ADAGRAD,
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
        st = bench_rate(b, step_call, &c, &rate);
        if (st == OK)
            st =
                bench_show(b, i == 1 ? "ids of a training step, Zipf 1.05" : "ids of an evaluation",
                           "", rate * (double)b->n, 0);
    }
    embed_destroy(c.t);
    mem_free(c.ids);
    return st;
}

/* ---- ten tables ------------------------------------------------------------------------------ */

typedef struct tables_ctx {
    bench *b;
    embed_table *t[N_TABLES];
    int64_t begin[N_TABLES + 1];
    uint64_t *ids;       /* (N_BATCHES, n) host */
    uint64_t *on_device; /* the same */
} tables_ctx;

/* Every table's share of the ids: fetched, and stepped by SGD. */
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

/* What a lookup reads must be what a find reads. */
static status check_lookup(tables_ctx *c) {
    bench *b = c->b;
    size_t bytes = (size_t)b->o.dim * sizeof(float);
    float *row;
    TRY(mem_alloc((void **)&row, 2 * (size_t)b->o.dim, sizeof *row));
    status st = look_up_tables(c, 0);
    for (int k = 0; st == OK && k < N_TABLES; k++) {
        int64_t i = c->begin[k];
        st = embed_find(c->t[k], 1, c->ids + i, (int32_t)b->o.dim, row, NULL);
        if (st == OK)
            st = b->be->ops->copy_out(b->be, row + b->o.dim, b->rows + i * b->o.dim, bytes);
        if (st == OK && memcmp(row, row + b->o.dim, bytes) != 0)
            st = fail(ERR_FORMAT, "a lookup in ten tables read another row than a find");
    }
    mem_free(row);
    return st;
}

static status run_tables(tables_ctx *c) {
    bench *b = c->b;
    double rate = 0;
    char size[32];
    TRY(bench_rate(b, train_tables, c, &rate));
    snprintf(size, sizeof size, "%.3f ms", 1e3 / rate);
    TRY(bench_show(b, "10 tables, a step of SGD", size, rate * (double)b->n, 0));
    TRY(check_lookup(c));
    TRY(bench_rate(b, look_up_tables, c, &rate));
    snprintf(size, sizeof size, "%.3f ms", 1e3 / rate);
    return bench_show(b, "10 tables, evaluation", size, rate * (double)b->n, (double)b->o.dim * 4);
}

static status bench_ten(bench *b) {
    int64_t all = b->o.slots > 0 ? b->o.slots : (int64_t)(b->o.max_gib * 4194304 / 4);
    embed_config shape = {.dim = (int32_t)b->o.dim,
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

status bench_steps(bench *b) {
    TRY(bench_one(b));
    return bench_ten(b);
}
