/* The bench of dynamic tables: pooled lookups, sums of bags of rows. */
#include <stdio.h>

#include "base/mem.h"
#include "cli/bench/embedding_int.h"

typedef struct pool_ctx {
    embed_bench *b;
    const table_level *l;
    int64_t *offsets; /* of bags, on the device */
} pool_ctx;

static status pool_call(void *ctx, int round) {
    const pool_ctx *c = ctx;
    embed_bench *b = c->b;
    table_pool_args a = {.n = b->n,
                         .n_bags = b->n / BAG,
                         .offsets = c->offsets,
                         .slot = (const int64_t *)b->keys[round],
                         .dim = (int32_t)b->o.dim,
                         .y = b->rows};
    return b->v->pool(b->be, c->l, &a);
}

/* All rows are 1, so every sum is the number of rows. */
static status check_pool(pool_ctx *c, int64_t *n_wrong) {
    embed_bench *b = c->b;
    int64_t n = b->n / BAG * b->o.dim;
    float *y;
    *n_wrong = 0;
    TRY(pool_call(c, 0));
    TRY(mem_alloc_raw((void **)&y, (size_t)n, sizeof *y));
    status st = b->be->ops->copy_out(b->be, y, b->rows, (size_t)n * sizeof *y);
    for (int64_t i = 0; st == OK && i < n; i++)
        *n_wrong += y[i] != (float)BAG;
    mem_free(y);
    return st;
}

static status bench_pool_level(embed_bench *b, pool_ctx *c, int64_t n_rows, const char *size) {
    double rate = 0;
    int64_t n_wrong;
    for (int r = 0; r < N_BATCHES; r++) {
        for (int64_t i = 0; i < b->n; i++)
            b->host[i] = (uint64_t)embed_bench_draw_slot(b, n_rows, (int64_t)r * b->n + i);
        TRY(b->be->ops->copy_in(b->be, b->keys[r], b->host, (size_t)b->n * 8));
    }
    TRY(check_pool(c, &n_wrong));
    TRY(embed_bench_rate(b, pool_call, c, &rate));
    embed_figure f = {.what = "pooled gather, bags of 32",
                      .size = size,
                      .per_s = rate * (double)b->n,
                      .bytes = (double)b->o.dim * 4,
                      .n_checked = b->n / BAG * b->o.dim,
                      .n_wrong = n_wrong};
    return embed_bench_report(b, &f);
}

static status fill_ones(embed_bench *b, const table_level *l, int64_t n_rows) {
    size_t bytes = 1 << 22, all = (size_t)(n_rows * l->row_bytes);
    float *ones;
    TRY(mem_alloc_raw((void **)&ones, bytes, 1));
    for (size_t i = 0; i < bytes / sizeof *ones; i++)
        ones[i] = 1;
    status st = OK;
    for (size_t at = 0; st == OK && at < all; at += bytes)
        st = b->be->ops->copy_in(b->be, l->rows + at, ones, all - at < bytes ? all - at : bytes);
    mem_free(ones);
    return st;
}

status embed_bench_pool(embed_bench *b, double gib) {
    char size[32];
    int64_t row_bytes = embed_bench_row_bytes(b);
    int64_t n_rows = (int64_t)(gib * EMBED_GIBI) / row_bytes;
    table_level l = {.row_bytes = row_bytes};
    pool_ctx c = {.b = b, .l = &l};
    void *rows = NULL, *offsets = NULL;
    if (n_rows < 1) n_rows = 1;
    snprintf(size, sizeof size, "%.3g GiB", gib);
    status st = b->v->alloc(b->be, &rows, (size_t)(n_rows * row_bytes), TABLE_ON_DEVICE);
    l.rows = rows;
    if (st == OK) st = fill_ones(b, &l, n_rows);
    if (st == OK) st = b->be->ops->alloc(b->be, &offsets, ((size_t)b->n / BAG + 1) * 8);
    for (int64_t i = 0; i <= b->n / BAG; i++)
        b->host[i] = (uint64_t)(i * BAG);
    if (st == OK) st = b->be->ops->copy_in(b->be, offsets, b->host, ((size_t)b->n / BAG + 1) * 8);
    c.offsets = offsets;
    if (st == OK) st = bench_pool_level(b, &c, n_rows, size);
    if (offsets != NULL) b->be->ops->release(b->be, offsets);
    if (rows != NULL) b->v->release(b->be, rows, TABLE_ON_DEVICE);
    return st;
}
