/* The dense ops of the CPU backend: matrix products against a plain cblas_sgemm of the same shape
 * on one thread, and the passes bound by bytes in GB/s.
 *
 *   make bench && build/release/bench/bench_dense_cpu [THREADS]
 *
 * Prints one line a case: the best of several runs.  With one thread "share" is what the cutting
 * into chunks, the bias and the activation leave of OpenBLAS's own rate. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "ops/ops.h"

static void must(status st) {
    if (st == OK) return;
    fprintf(stderr, "%s\n", status_reason());
    exit(1);
}

static float *numbers(int64_t n) {
    float *x;
    rng_key key = rng_make_key(1, RNG_TEST);
    must(MEM_NEW(&x, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        x[i] = rng_uniform(rng_draw64(key, (uint64_t)i, 0).word[0]) - 0.5f;
    return x;
}

/* Seconds of the fastest of the runs that fit in about a second, at least two. */
#define BEST(seconds, call)                                                                        \
    do {                                                                                           \
        uint64_t begin_ = clock_ns(), best_ = UINT64_MAX;                                          \
        for (int run_ = 0; run_ < 2 || (run_ < 200 && clock_ns() - begin_ < 1000000000u);          \
             run_++) {                                                                             \
            uint64_t t_ = clock_ns();                                                              \
            call;                                                                                  \
            t_ = clock_ns() - t_;                                                                  \
            if (t_ < best_) best_ = t_;                                                            \
        }                                                                                          \
        (seconds) = (double)best_ * 1e-9;                                                          \
    } while (0)

static void bench_linear(backend *be, int64_t n, int32_t n_in, int32_t n_out, epilogue f) {
    static const char *const names[] = {"none", "silu", "relu", "gelu"};
    int64_t size = (int64_t)n_in * n_out;
    float *x = numbers(n * n_in), *w = numbers(size), *bias = numbers(n_out);
    float *z = numbers(n * n_out), *y = numbers(n * n_out), *dy = numbers(n * n_out);
    float *dx = numbers(n * n_in), *dw = numbers(size), *dbias = numbers(n_out);
    linear_args a = {.n = n,
                     .n_in = n_in,
                     .n_out = n_out,
                     .f = f,
                     .x = x,
                     .w = w,
                     .bias = bias,
                     .z = z,
                     .y = y,
                     .dy = dy,
                     .dx = dx,
                     .dw = dw,
                     .dbias = dbias};
    double plain, forward, backward, flops = 2.0 * (double)n * (double)size;
    BEST(plain, cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n, n_out, n_in, 1, x,
                            n_in, w, n_out, 0, y, n_out));
    BEST(forward, must(be->ops->linear_fwd(be, &a)));
    BEST(backward, must(be->ops->linear_bwd(be, &a)));
    printf("linear %7lld x %4d x %4d %s: sgemm %6.1f GFLOP/s, forward %6.1f (share %.2f), "
           "backward %6.1f (share %.2f)\n",
           (long long)n, n_in, n_out, names[f], flops / plain * 1e-9, flops / forward * 1e-9,
           plain / forward, 2 * flops / backward * 1e-9, 2 * plain / backward);
    float *all[] = {x, w, bias, z, y, dy, dx, dw, dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

static void report(const char *name, int64_t n, int32_t dim, int passes, double seconds) {
    printf("%-14s %7lld x %4d: %8.3f ms, %6.2f GB/s\n", name, (long long)n, dim, seconds * 1e3,
           (double)passes * 4 * (double)n * dim / seconds * 1e-9);
}

/* `passes` counts the arrays of (n, dim) that must be read or written once. */
static void bench_passes(backend *be, int64_t n, int32_t dim) {
    float *x = numbers(n * dim), *u = numbers(n * dim), *y = numbers(n * dim);
    float *dy = numbers(n * dim), *dx = numbers(n * dim), *du = numbers(n * dim);
    float *mean = numbers(n), *rstd = numbers(n), *weight = numbers(dim), *bias = numbers(dim);
    float *dweight = numbers(dim), *dbias = numbers(dim);
    uint32_t *row;
    double seconds;
    must(MEM_NEW(&row, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        row[i] = (uint32_t)i;
    dropout drop = {
        .rate = 0.2f, .key = rng_make_key(1, RNG_DROPOUT), .user = row, .position = row};
    norm_args norm = {.n = n,
                      .dim = dim,
                      .eps = 1e-6f,
                      .x = x,
                      .weight = weight,
                      .bias = bias,
                      .y = y,
                      .mean = mean,
                      .rstd = rstd,
                      .dy = dy,
                      .dx = dx,
                      .dweight = dweight,
                      .dbias = dbias};
    gate_args gate = {.n = n,
                      .dim = dim,
                      .eps = 1e-6f,
                      .o = x,
                      .u = u,
                      .stride_u = dim,
                      .y = y,
                      .drop = drop,
                      .mean = mean,
                      .rstd = rstd,
                      .dy = dy,
                      .d_o = dx,
                      .du = du};
    dropout_args dropped = {.n = n, .dim = dim, .x = x, .y = y, .drop = drop};
    BEST(seconds, must(be->ops->norm_fwd(be, &norm)));
    report("norm forward", n, dim, 2, seconds);
    BEST(seconds, must(be->ops->norm_bwd(be, &norm)));
    report("norm backward", n, dim, 3, seconds);
    BEST(seconds, must(be->ops->gate_fwd(be, &gate)));
    report("gate forward", n, dim, 3, seconds);
    BEST(seconds, must(be->ops->gate_bwd(be, &gate)));
    report("gate backward", n, dim, 5, seconds);
    BEST(seconds, must(be->ops->dropout(be, &dropped)));
    report("dropout", n, dim, 2, seconds);
    update_args update = {.kind = OPT_ADAMW,
                          .n = n * dim,
                          .w = x,
                          .grad = dy,
                          .m = u,
                          .v = du,
                          .lr = 1e-9f,
                          .beta1 = 0.9f,
                          .beta2 = 0.98f,
                          .eps = 1e-8f,
                          .step = 1};
    BEST(seconds, must(be->ops->update(be, &update, 1)));
    report("adamw", n, dim, 8, seconds);
    float *all[] = {x, u, y, dy, dx, du, mean, rstd, weight, bias, dweight, dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    mem_free(row);
}

int main(int argc, char **argv) {
    pool *workers;
    backend *be;
    int n_threads = argc > 1 ? atoi(argv[1]) : 1;
    must(pool_create(&workers, n_threads));
    must(backend_create_cpu(&be, workers));
    bench_linear(be, 15000, 50, 200, EPILOGUE_NONE);
    bench_linear(be, 15000, 50, 200, EPILOGUE_SILU);
    bench_linear(be, 15000, 200, 50, EPILOGUE_NONE);
    bench_linear(be, 15000, 256, 1024, EPILOGUE_SILU);
    bench_linear(be, 8192, 1024, 4096, EPILOGUE_SILU);
    bench_passes(be, 15000, 50);
    bench_passes(be, 15000, 256);
    backend_destroy(be);
    pool_destroy(workers);
    return 0;
}
