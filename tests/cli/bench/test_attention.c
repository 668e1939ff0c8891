#include "cli/bench/attention.h"

#include "base/thread.h"
#include "test.h"

typedef struct seen {
    int n, fail_at; /* fails at this row; 0: at none */
    attn_row last;
    attn_shape shape;
    double flops;
} seen;

static status see(void *ctx, const attn_row *row) {
    seen *s = ctx;
    s->last = *row;
    s->shape = row->p->shape;
    s->flops = row->p->flops;
    return ++s->n == s->fail_at ? fail(ERR_IO, "no more rows") : OK;
}

TEST(attention_rows_come_one_by_one) {
    backend *be;
    pool *p;
    attn_bench b;
    seen s = {0};
    const attn_row *r = &s.last;
    CHECK_OK(pool_create(&p, 2));
    CHECK_OK(backend_create_cpu(&be, p));
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.dim = 32, .length = 50}, false));
    CHECK(b.peak > 1e8 && !b.has_peers);
    if (test_is_brief()) { /* instead of in the next test: the row takes seconds in a sanitizer */
        s.fail_at = 1;
        CHECK_FAILS(attn_bench_run(&b, see, &s), ERR_IO, "no more rows");
    } else {
        CHECK_OK(attn_bench_run(&b, see, &s));
    }
    CHECK_EQ(s.n, 1);
    CHECK(s.shape.dim == 32 && s.shape.max_len == 50 && s.shape.is_jagged);
    CHECK(r->error < 1e-3);
    double fwd = r->seconds[PASS_FORWARD][TIMED_PLAIN], bwd = r->seconds[PASS_BACKWARD][0];
    CHECK(fabs(r->tflops[PASS_FORWARD][TIMED_PLAIN] * 1e12 * fwd / s.flops - 1) < 1e-9);
    CHECK(fabs(r->tflops[PASS_BACKWARD][TIMED_PLAIN] * 1e12 * bwd / s.flops - 2.5) < 1e-9);
    CHECK(isnan(r->seconds[PASS_FORWARD][TIMED_REPLAY])); /* a CPU records nothing */
    CHECK(isnan(r->ratio[PASS_FORWARD][TIMED_PLAIN]));    /* the peers ran on a GPU */
    CHECK_EQ(b.n_ratios[PASS_FORWARD][TIMED_PLAIN], 0);
    backend_destroy(be);
    pool_destroy(p);
}

TEST(attention_filters_shapes_and_stops) {
    backend *be;
    attn_bench b;
    seen s = {.fail_at = 1};
    int n_seen = test_is_brief() ? 0 : 1;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_FAILS(attn_bench_open(&b, be, &(attn_filter){.mask = "spiral"}, false), ERR_USAGE,
                "no row has this --dim, --length and --mask");
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.length = 50}, false));
    if (n_seen > 0) CHECK_FAILS(attn_bench_run(&b, see, &s), ERR_IO, "no more rows");
    CHECK_EQ(s.n, n_seen);
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.length = 16384}, false));
    CHECK_OK(attn_bench_run(&b, see, &s)); /* only for a GPU */
    CHECK_EQ(s.n, n_seen);
    CHECK_EQ(b.n_left_out, 2);
    backend_destroy(be);
}

/* The lengths that were drawn show in the count of operations. */
TEST(attention_draws_by_its_seed) {
    backend *be;
    attn_bench b, other;
    seen s = {.fail_at = 1};
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.dim = 32, .length = 50}, false));
    CHECK_OK(attn_bench_open(&other, be, &(attn_filter){.dim = 32, .length = 50}, false));
    CHECK(b.seed != other.seed);
    CHECK_OK(attn_bench_open(&b, be, &(attn_filter){.dim = 32, .length = 50, .seed = 7}, false));
    CHECK_EQ(b.seed, 7);
    if (!test_is_brief()) { /* a sanitizer sees these lines in the next test */
        CHECK_FAILS(attn_bench_run(&b, see, &s), ERR_IO, "no more rows");
        double flops = s.flops;
        s.n = 0;
        CHECK_FAILS(attn_bench_run(&b, see, &s), ERR_IO, "no more rows");
        CHECK(s.flops == flops);
    }
    backend_destroy(be);
}
