#include "base/mem.h"
#include "base/pool.h"
#include "oom.h"
#include "test.h"

typedef struct sum_job {
    double partial[1000];
    int n_runs[1000];
    pool *nested;
} sum_job;

static status sum_chunk(void *ctx, int64_t chunk, int worker) {
    sum_job *job = ctx;
    (void)worker;
    double sum = 0;
    for (int i = 0; i < 100; i++)
        sum += 1.0 / (double)(chunk * 100 + i + 1);
    job->partial[chunk] = sum;
    job->n_runs[chunk]++;
    return OK;
}

TEST(pool_same_bits_with_any_threads) {
    static sum_job one, many;
    for (int n_threads = 1; n_threads <= 7; n_threads += 2) {
        pool *p;
        sum_job *job = n_threads == 1 ? &one : &many;
        memset(job, 0, sizeof *job);
        CHECK_OK(pool_create(&p, n_threads));
        CHECK_EQ(pool_n_threads(p), n_threads);
        for (int run = 0; run < 20; run++)
            CHECK_OK(pool_run(p, 1000, sum_chunk, job));
        for (int i = 0; i < 1000; i++)
            CHECK_EQ(job->n_runs[i], 20);
        if (n_threads > 1) CHECK(memcmp(one.partial, many.partial, sizeof one.partial) == 0);
        pool_destroy(p);
    }
}

static status fail_some(void *ctx, int64_t chunk, int worker) {
    (void)ctx, (void)worker;
    return chunk >= 37 ? fail(ERR_FORMAT, "chunk %d is bad", (int)chunk) : OK;
}

TEST(pool_reports_the_lowest_failure) {
    pool *p;
    CHECK_OK(pool_create(&p, 4));
    for (int run = 0; run < 200; run++)
        CHECK_FAILS(pool_run(p, 1000, fail_some, NULL), ERR_FORMAT, "chunk 37 is bad");
    static sum_job job;
    CHECK_OK(pool_run(p, 1000, sum_chunk, &job)); /* and works again afterwards */
    pool_destroy(p);
}

static status nested_chunk(void *ctx, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    sum_job *inner;
    TRY(MEM_NEW(&inner, 1));
    status st = pool_run(ctx, 50, sum_chunk, inner);
    mem_free(inner);
    return st;
}

TEST(pool_nested_runs_stay_on_their_thread) {
    pool *p;
    CHECK_OK(pool_create(&p, 3));
    CHECK_OK(pool_run(p, 20, nested_chunk, p));
    pool_destroy(p);
}

static status worker_in_range(void *ctx, int64_t chunk, int worker) {
    (void)chunk;
    return worker >= 0 && worker < pool_n_threads(ctx) ? OK : fail(ERR_FORMAT, "worker %d", worker);
}

TEST(pool_edges) {
    pool *p;
    CHECK_FAILS(pool_create(&p, 0), ERR_USAGE, "1 to 256");
    CHECK_FAILS(pool_create(&p, 257), ERR_USAGE, "1 to 256");
    CHECK(p == NULL);
    pool_destroy(NULL);
    CHECK_OK(pool_create(&p, 2));
    CHECK_OK(pool_run(p, 0, fail_some, NULL));
    CHECK_OK(pool_run(p, 100, worker_in_range, p));
    pool_destroy(p);
    CHECK_OK(pool_run(NULL, 10, fail_some, NULL));
}

static status make_pool(void *ctx) {
    (void)ctx;
    pool *p;
    status st = pool_create(&p, 2);
    pool_destroy(p);
    return st;
}

TEST(pool_survives_no_memory) {
    CHECK_EQ(oom_at_each_allocation(make_pool, NULL), 2);
}
