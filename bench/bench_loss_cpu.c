/* What the sampled softmax of a CPU step costs, as a whole and by its passes.
 *
 *   bench_loss_cpu [threads [queries [negatives [dim [rows]]]]]
 *
 * The defaults are an ML-1M batch.  The passes are static functions, so their source is included
 * here under other names; best of several runs. */
#define cpu_sampled_softmax         passes_sampled_softmax
#define cpu_sampled_softmax_scratch passes_sampled_softmax_scratch
#include "../src/cpu/sampled_softmax.c"
#undef cpu_sampled_softmax
#undef cpu_sampled_softmax_scratch

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"

enum { RUNS = 20 };

typedef struct setting {
    int n_threads;
    int64_t n;
    int32_t n_negatives, dim, n_rows;
} setting;

static void fill(float *x, int64_t n, uint32_t stream) {
    rng_key key = rng_make_key(stream, RNG_TEST);
    for (int64_t i = 0; i < n; i++)
        x[i] = rng_uniform(rng_draw64(key, (uint64_t)i, 0).word[0]) - 0.5f;
}

static float grad_scale;

static status make_args(backend *be, const setting *s, sampled_softmax_args *a) {
    float *query, *table, *dquery, *dtable;
    int32_t *positive, *negative;
    double *loss;
    char *scratch;
    TRY(MEM_NEW(&query, (size_t)(s->n * s->dim)));
    TRY(MEM_NEW(&dquery, (size_t)(s->n * s->dim)));
    TRY(MEM_NEW(&table, (size_t)s->n_rows * (size_t)s->dim));
    TRY(MEM_NEW(&dtable, (size_t)s->n_rows * (size_t)s->dim));
    TRY(MEM_NEW(&positive, (size_t)s->n));
    TRY(MEM_NEW(&negative, (size_t)(s->n * s->n_negatives)));
    TRY(MEM_NEW(&loss, 1));
    TRY(MEM_NEW(&scratch,
                be->ops->sampled_softmax_scratch(be, s->n, s->n_negatives, s->dim, s->n_rows)));
    fill(query, s->n * s->dim, 1);
    fill(table, (int64_t)s->n_rows * s->dim, 2);
    rng_key key = rng_make_key(3, RNG_TEST);
    for (int64_t i = 0; i < s->n; i++)
        positive[i] =
            (int32_t)rng_below(rng_draw64(key, (uint64_t)i, 0).word[0], (uint32_t)s->n_rows);
    for (int64_t i = 0; i < s->n * s->n_negatives; i++)
        negative[i] =
            (int32_t)rng_below(rng_draw64(key, (uint64_t)i, 1).word[0], (uint32_t)s->n_rows);
    grad_scale = 1 / (float)s->n;
    *a = (sampled_softmax_args){.n = s->n,
                                .n_negatives = s->n_negatives,
                                .dim = s->dim,
                                .n_rows = s->n_rows,
                                .query = query,
                                .table = table,
                                .positive = positive,
                                .negative = negative,
                                .normalises = true,
                                .eps = 1e-6f,
                                .temperature = 0.05f,
                                .grad_scale = &grad_scale,
                                .loss = loss,
                                .dquery = dquery,
                                .dtable = dtable,
                                .scratch = scratch};
    return OK;
}

/* Time by the clock, and time of all threads together, which other programs disturb less. */
typedef struct cost {
    double wall_ms, cpu_ms;
} cost;

static double now_ms(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

typedef struct work {
    backend *be;
    const sampled_softmax_args *a; /* the whole op, where pass is NULL */
    pool_fn pass;
    int64_t n_chunks;
    job *j;
} work;

static status work_run(const work *w) {
    if (w->pass == NULL) return w->be->ops->sampled_softmax(w->be, w->a);
    return pool_run(w->be->workers, w->n_chunks, w->pass, w->j);
}

/* The best of several runs. */
static cost measure(const work *w) {
    cost best = {1e9, 1e9};
    for (int run = 0; run < RUNS; run++) {
        double wall = now_ms(CLOCK_MONOTONIC), cpu = now_ms(CLOCK_PROCESS_CPUTIME_ID);
        if (work_run(w) != OK) exit(1);
        wall = now_ms(CLOCK_MONOTONIC) - wall, cpu = now_ms(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        best.wall_ms = wall < best.wall_ms ? wall : best.wall_ms;
        best.cpu_ms = cpu < best.cpu_ms ? cpu : best.cpu_ms;
    }
    return best;
}

static void print_cost(const char *name, const work *w) {
    cost c = measure(w);
    printf("%-24s %8.2f %8.2f\n", name, c.wall_ms, c.cpu_ms);
}

static status bench(const setting *s) {
    pool *p;
    backend *be;
    sampled_softmax_args a;
    TRY(pool_create(&p, s->n_threads));
    TRY(backend_create_cpu(&be, p));
    TRY(make_args(be, s, &a));
    sampled_softmax_args forward = a;
    forward.dquery = NULL;
    job j = job_begin(be, &a), j_forward = job_begin(be, &forward);
    int64_t n_blocks = cpu_n_chunks(a.n_rows, BLOCK_ROWS);
    printf("%lld queries, %d negatives, E = %d, V = %d, %d threads\n", (long long)s->n,
           s->n_negatives, s->dim, s->n_rows, s->n_threads);
    printf("%-24s %8s %8s\n", "ms", "clock", "CPU");
    print_cost("forward and backward", &(work){be, &a, NULL, 0, NULL});
    print_cost("forward only", &(work){be, &forward, NULL, 0, NULL});
    print_cost("pass 1, unit rows", &(work){be, NULL, normalise_block, n_blocks, &j});
    print_cost("pass 2, forward only", &(work){be, NULL, query_chunk, j.n_chunks, &j_forward});
    print_cost("pass 2, with gradient", &(work){be, NULL, query_chunk, j.n_chunks, &j});
    print_cost("pass 3, dtable", &(work){be, NULL, table_bucket, j.n_buckets, &j});
    backend_destroy(be);
    pool_destroy(p);
    return OK;
}

int main(int argc, char **argv) {
    setting s = {.n_threads = 2, .n = 15000, .n_negatives = 128, .dim = 50, .n_rows = 3884};
    if (argc > 1) s.n_threads = atoi(argv[1]);
    if (argc > 2) s.n = atoll(argv[2]);
    if (argc > 3) s.n_negatives = atoi(argv[3]);
    if (argc > 4) s.dim = atoi(argv[4]);
    if (argc > 5) s.n_rows = atoi(argv[5]);
    if (bench(&s) == OK) return 0;
    fprintf(stderr, "bench_loss_cpu: %s\n", status_reason());
    return 1;
}
