/* The bench of dynamic tables: whole steps through src/embed, table by table: dedup, find or
 * insert, staging, update.  Ids are in host memory and follow a power law; ten tables at once, with
 * rows twice as long as elsewhere in this bench, is the workload that dynamicemb and FBGEMM
 * publish. */
#include "cli/bench/embedding.h"

enum { N_TABLES = 10 };

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

typedef struct tables_ctx {
    embed_bench *b;
    int n_tables;
    bool is_evaluation; /* rows are read, not updated */
    int64_t step;
    embed_table *t[N_TABLES];
    int64_t begin[N_TABLES + 1];
    uint64_t *ids;       /* (N_BATCHES, n) host */
    uint64_t *on_device; /* the same */
    nn_memory memory;
} tables_ctx;

static int64_t ten_dim(const embed_bench *b) {
    return 2 * b->dim;
}

/* For each table: fetches its share of the ids and updates the rows. */
static status step_tables(void *ctx, int round) {
    tables_ctx *c = ctx;
    embed_step_args args = {.lr = 0.01f, .eps = 1e-6f, .step = ++c->step};
    for (int k = 0; k < c->n_tables; k++) {
        const embed_batch *fetched;
        TRY(embed_fetch(c->t[k], c->is_evaluation ? FETCH_ZERO : FETCH_INSERT,
                        c->begin[k + 1] - c->begin[k], c->ids + round * c->b->n + c->begin[k], NULL,
                        &fetched));
        if (!c->is_evaluation) TRY(embed_update(c->t[k], c->b->rows, &args));
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

/* Tables that share the slots, and ids for them. */
static status make_tables(tables_ctx *c, int32_t dim, opt_kind opt) {
    embed_bench *b = c->b;
    int64_t all = b->slots > 0 ? b->slots : (int64_t)(b->max_gib * 4194304 / 4);
    int64_t n_slots = all / c->n_tables < 4096 ? 4096 : all / c->n_tables;
    embed_config shape = {.dim = dim,
                          .opt = opt,
                          .policy = POLICY_LRU,
                          .capacity = {n_slots, 0},
                          .max_batch = b->n,
                          .first = FIRST_UNIFORM,
                          .first_scale = 0.1f};
    TRY(NN_NEW_HOST(&c->memory, &c->ids, N_BATCHES * b->n));
    draw_zipf(b, c->ids, N_BATCHES * b->n, n_slots);
    for (int k = 0; k < c->n_tables; k++) {
        c->begin[k + 1] = b->n * (k + 1) / c->n_tables;
        TRY(embed_create(&c->t[k], b->be, &shape));
    }
    return OK;
}

static status run_one(tables_ctx *c) {
    embed_bench *b = c->b;
    TRY(make_tables(c, (int32_t)b->dim, OPT_ROWWISE_ADAGRAD));
    TRY(embed_bench_time(b, step_tables, c,
                         (embed_figure){"ids of a training step, Zipf 1.05", .size = ""}));
    c->is_evaluation = true;
    return embed_bench_time(b, step_tables, c, (embed_figure){"ids of an evaluation", .size = ""});
}

static status run_ten(tables_ctx *c) {
    embed_bench *b = c->b;
    int64_t n_ids = N_BATCHES * b->n;
    embed_figure f = {"10 tables, evaluation", .size = "", .bytes = (double)ten_dim(b) * 4};
    TRY(make_tables(c, (int32_t)ten_dim(b), OPT_SGD));
    TRY(NN_NEW(&c->memory, &c->on_device, n_ids));
    TRY(b->be->ops->copy_in(b->be, c->on_device, c->ids, (size_t)n_ids * sizeof *c->ids));
    TRY(embed_bench_time(b, step_tables, c,
                         (embed_figure){"10 tables, a step of SGD", .size = ""}));
    TRY(check_lookup(c, &f));
    return embed_bench_time(b, look_up_tables, c, f);
}

static status bench_tables(embed_bench *b, int n_tables, status (*run)(tables_ctx *c)) {
    tables_ctx c = {.b = b, .n_tables = n_tables};
    nn_memory_init(&c.memory, b->be);
    status st = run(&c);
    for (int k = 0; k < n_tables; k++)
        embed_destroy(c.t[k]);
    nn_memory_fini(&c.memory);
    return st;
}

status embed_bench_steps(embed_bench *b) {
    TRY(bench_tables(b, 1, run_one));
    return bench_tables(b, N_TABLES, run_ten);
}
