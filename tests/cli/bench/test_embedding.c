#include "cli/bench/embedding.h"

#include "test.h"

typedef struct seen {
    int n, fail_at; /* fails at this figure; 0: at none */
    int64_t n_checked;
} seen;

static status see(void *ctx, const embed_figure *f) {
    seen *s = ctx;
    CHECK(f->per_s > 0 || f->ms > 0);
    CHECK_EQ(f->n_wrong, 0);
    CHECK(f->peer == 0); /* HierarchicalKV runs on a GPU */
    s->n_checked += f->n_checked;
    return ++s->n == s->fail_at ? fail(ERR_IO, "no more figures") : OK;
}

static embed_bench *open_bench(backend *be, pool *p) {
    embed_bench_options o = {
        .max_gib = .001, .seconds = .001, .batch = 256, .dim = 6, .slots = 8192};
    embed_bench *b;
    CHECK_OK(embed_bench_create(&b, be, p, &o));
    return b;
}

TEST(embedding_figures_come_one_by_one) {
    backend *be;
    pool *p;
    seen s = {0};
    CHECK_OK(pool_create(&p, 2));
    CHECK_OK(backend_create_cpu(&be, p));
    embed_bench *b = open_bench(be, p);
    CHECK_EQ(embed_bench_n_keys(b), 128); /* a 64th of the slots */
    CHECK_OK(embed_bench_run(b, see, &s));
    CHECK_EQ(s.n, 16);
    CHECK(s.n_checked > 128 * 6);
    embed_bench_destroy(b);
    b = open_bench(be, p);
    s = (seen){.fail_at = 5};
    CHECK_FAILS(embed_bench_run(b, see, &s), ERR_IO, "no more figures");
    CHECK_EQ(s.n, 5);
    embed_bench_destroy(b);
    embed_bench_destroy(NULL);
    backend_destroy(be);
    pool_destroy(p);
}

TEST(embedding_needs_tables) {
    backend *be;
    pool *p;
    embed_bench *b;
    embed_bench_options o = {.max_gib = .001, .seconds = .001, .batch = 256, .dim = 6};
    CHECK_OK(pool_create(&p, 1));
    CHECK_OK(backend_create_cpu(&be, p));
    const struct table_ops *tables = be->tables;
    be->tables = NULL;
    CHECK_FAILS(embed_bench_create(&b, be, p, &o), ERR_UNSUPPORTED, "cpu has no dynamic tables");
    CHECK(b == NULL);
    be->tables = tables;
    backend_destroy(be);
    pool_destroy(p);
}
