/* The dense ops of the CPU backend: matrix products beside OpenBLAS's, and the passes bound by
 * bytes in GB/s.
 *
 *   make bench && build/release/bench/bench_dense_cpu [--products] [--csv FILE] [THREADS]
 *
 * Products: every dense layer of the models in configs/, forward and backward, as the ops do them
 * (packing included), and OpenBLAS on the same matrices.  The two take turns, the fastest run of a
 * turn counts, and the medians of all turns are compared, so that a core that is slower for a while
 * (a virtual machine's) is slower for both.  With one thread that is the time of the thread, which
 * other programs hardly disturb.  OpenBLAS is loaded when this runs: without it there are our
 * figures alone.  It reads OPENBLAS_CORETYPE; bench/products.sh measures with its own choice and
 * with the best. `--products` leaves the passes out, `--csv` appends the rows to a file. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/machine.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/sort.h"
#include "base/thread.h"
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

/* OpenBLAS, as far as it is needed here; sgemm is NULL where there is none. */
typedef struct openblas {
    void (*sgemm)(int order, int op_a, int op_b, int m, int n, int k, float alpha, const float *a,
                  int a_row, const float *b, int b_row, float beta, float *c, int c_row);
    void (*set_num_threads)(int n);
    char *(*get_corename)(void);
} openblas;

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 }; /* cblas.h */

static openblas openblas_load(int n_threads) {
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    openblas o = {0};
    void *library = NULL;
    setenv("OPENBLAS_THREAD_TIMEOUT", "22", 0); /* 2^22 cycles: see let_threads_sleep */
    for (int i = 0; i < 2 && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return o;
    *(void **)&o.sgemm = dlsym(library, "cblas_sgemm");
    *(void **)&o.set_num_threads = dlsym(library, "openblas_set_num_threads");
    *(void **)&o.get_corename = dlsym(library, "openblas_get_corename");
    if (o.sgemm == NULL || o.set_num_threads == NULL || o.get_corename == NULL)
        return (openblas){0};
    o.set_num_threads(n_threads);
    return o;
}

typedef struct bench {
    backend *be;
    openblas blas;
    int n_threads;
    FILE *csv;
    char cpu[128];
    double log_sum; /* of the ratios */
    double worst;
    int n_rows;
} bench;

/* A dense layer of a model, or the corpus its queries are held against. */
typedef struct layer {
    const char *name;
    int64_t n;
    int32_t n_in, n_out;
    bool is_transposed; /* W is (n_out, n_in) */
    bool is_rank;
} layer;

/* Tokens of a batch: 128 users of ML-1M; 128 users of ML-20M with two tokens an event. */
static const layer layers[] = {
    {"1024^3", 1024, 1024, 1024, false, false},
    {"hstu-final uvqk", 13690, 50, 200, false, false},
    {"hstu-final out", 13690, 50, 50, true, false},
    {"hstu-final corpus", 128, 50, 3883, true, true},
    {"10^5 items x 32", 128, 32, 100000, true, true},
    {"10^6 items x 32", 128, 32, 1000000, true, true},
    {"10^5 items x 256", 128, 256, 100000, true, true},
    {"sasrec kv", 13690, 50, 100, true, false},
    {"sasrec q, out, ffn", 13690, 50, 50, true, false},
    {"ranking uvqk", 8192, 128, 2048, true, false},
    {"ranking out", 16384, 512, 128, true, false},
    {"ranking head 1", 2560, 128, 512, true, false},
    {"ranking head 2", 2560, 512, 10, true, false},
};

typedef enum { FORWARD, TO_WEIGHTS, BACKWARD, RANK } pass;

/* What a pass works on. */
typedef struct problem {
    const layer *l;
    linear_args a;
    rank_args rank;
    float *score; /* OpenBLAS's results */
} problem;

static void run_ours(backend *be, const problem *p, pass what) {
    linear_args a = p->a;
    if (what == TO_WEIGHTS) a.dx = NULL;
    if (what == RANK)
        must(be->ops->rank(be, &p->rank));
    else if (what == FORWARD)
        must(be->ops->linear_fwd(be, &a));
    else
        must(be->ops->linear_bwd(be, &a));
}

static void run_openblas(const openblas *o, const problem *p, pass what) {
    const linear_args *a = &p->a;
    int n = (int)a->n, n_in = a->n_in, n_out = a->n_out, w_row = a->is_transposed ? n_in : n_out;
    int straight = a->is_transposed ? TRANSPOSED : PLAIN;
    int back = a->is_transposed ? PLAIN : TRANSPOSED;
    if (what == FORWARD || what == RANK)
        o->sgemm(ROW_MAJOR, PLAIN, straight, n, n_out, n_in, 1, a->x, n_in, a->w, w_row, 0,
                 what == RANK ? p->score : a->y, n_out);
    if (what == BACKWARD)
        o->sgemm(ROW_MAJOR, PLAIN, back, n, n_in, n_out, 1, a->dy, n_out, a->w, w_row, 0, a->dx,
                 n_in);
    if (what == BACKWARD || what == TO_WEIGHTS) {
        if (a->is_transposed)
            o->sgemm(ROW_MAJOR, TRANSPOSED, PLAIN, n_out, n_in, n, 1, a->dy, n_out, a->x, n_in, 1,
                     a->dw, n_in);
        else
            o->sgemm(ROW_MAJOR, TRANSPOSED, PLAIN, n_in, n_out, n, 1, a->x, n_in, a->dy, n_out, 1,
                     a->dw, n_out);
    }
}

static uint64_t now_ns(int n_threads) {
    struct timespec t;
    if (n_threads > 1) return clock_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t process_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* After a product OpenBLAS's threads wait for the next one in a loop that keeps a core from ours:
 * 2^28 cycles, .1 s, in Debian's.  Waits until the process has used no CPU for 5 ms. */
static void let_threads_sleep(void) {
    struct timespec t = {.tv_nsec = 5000000};
    uint64_t used = 5000000;
    for (int i = 0; i < 200 && used > 500000; i++) {
        uint64_t before = process_ns();
        nanosleep(&t, NULL);
        used = process_ns() - before;
    }
}

enum { MAX_TURNS = 64 };

/* The fastest of the runs of a turn of some 20 ms, at least two. */
static double turn(const bench *b, const problem *p, pass what, bool is_ours) {
    uint64_t best = UINT64_MAX;
    if (is_ours && b->n_threads > 1) let_threads_sleep();
    uint64_t begin = clock_ns();
    for (int run = 0; run < 2 || clock_ns() - begin < 20000000u; run++) {
        uint64_t t = now_ns(b->n_threads);
        if (is_ours)
            run_ours(b->be, p, what);
        else
            run_openblas(&b->blas, p, what);
        t = now_ns(b->n_threads) - t;
        if (t < best) best = t;
    }
    return (double)best * 1e-9;
}

/* Turns for some .6 s: the medians of the seconds of a run, and of their ratios. */
static void race(const bench *b, const problem *p, pass what, double *ours, double *theirs,
                 double *ratio) {
    double own[MAX_TURNS], other[MAX_TURNS], ratios[MAX_TURNS];
    uint64_t begin = clock_ns();
    int n = 0;
    for (; n < 5 || (n < MAX_TURNS && clock_ns() - begin < 600000000u); n++) {
        own[n] = turn(b, p, what, true);
        other[n] = b->blas.sgemm != NULL ? turn(b, p, what, false) : 0;
        ratios[n] = other[n] / own[n];
    }
    *ours = median(own, n);
    *theirs = median(other, n);
    *ratio = median(ratios, n);
}

static void race_pass(bench *b, const problem *p, pass what) {
    static const char *const names[] = {"forward", "to weights", "backward", "rank"};
    const linear_args *a = &p->a;
    double ours, theirs, ratio;
    double flops = (what == BACKWARD ? 4.0 : 2.0) * (double)a->n * a->n_in * a->n_out;
    race(b, p, what, &ours, &theirs, &ratio);
    bool has_openblas = b->blas.sgemm != NULL;
    printf("%-19s %-10s %6lld x %4d x %4d  %7.1f", p->l->name, names[what], (long long)a->n,
           a->n_in, a->n_out, flops / ours * 1e-9);
    if (has_openblas) {
        printf("  %7.1f  %5.2f", flops / theirs * 1e-9, ratio);
        b->log_sum += log(ratio);
        b->worst = b->n_rows == 0 || ratio < b->worst ? ratio : b->worst;
        b->n_rows++;
    }
    printf("\n");
    if (b->csv != NULL)
        fprintf(b->csv, "\"%s\",%s,%s,%d,\"%s\",%s,%lld,%d,%d,%.1f,%.1f,%.2f\n", b->cpu,
                backend_cpu_products(), has_openblas ? b->blas.get_corename() : "", b->n_threads,
                p->l->name, names[what], (long long)a->n, a->n_in, a->n_out, flops / ours * 1e-9,
                has_openblas ? flops / theirs * 1e-9 : 0, has_openblas ? ratio : 0);
}

static void race_layer(bench *b, const layer *l) {
    int64_t size = (int64_t)l->n_in * l->n_out;
    problem p = {.l = l};
    int32_t *target, *rank;
    p.a = (linear_args){.n = l->n,
                        .n_in = l->n_in,
                        .n_out = l->n_out,
                        .is_transposed = l->is_transposed,
                        .x = numbers(l->n * l->n_in),
                        .w = numbers(size),
                        .y = numbers(l->n * l->n_out),
                        .dy = numbers(l->n * l->n_out),
                        .dx = numbers(l->n * l->n_in),
                        .dw = numbers(size)};
    p.score = numbers(l->n * l->n_out);
    must(MEM_NEW(&target,
                 (size_t)l->n)); /* row 0 for all: without a rank to find, rank does nothing */
    must(MEM_NEW(&rank, (size_t)l->n));
    p.rank = (rank_args){.n_queries = (int32_t)l->n,
                         .n_corpus = l->n_out,
                         .dim = l->n_in,
                         .query = p.a.x,
                         .corpus = p.a.w,
                         .target = target,
                         .rank = rank};
    if (l->is_rank)
        race_pass(b, &p, RANK);
    else
        for (pass what = FORWARD; what <= BACKWARD; what++)
            race_pass(b, &p, what);
    void *all[] = {(void *)p.a.x, (void *)p.a.w, p.a.y,  p.a.dy, p.a.dx,
                   p.a.dw,        p.score,       target, rank};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

static void bench_products(bench *b) {
    machine host;
    machine_ask(&host);
    snprintf(b->cpu, sizeof b->cpu, "%s", host.cpu);
    printf("%s, %d thread%s: ours is %s, OpenBLAS %s\n", b->cpu, b->n_threads,
           b->n_threads > 1 ? "s" : "", backend_cpu_products(),
           b->blas.sgemm != NULL ? b->blas.get_corename() : "is not here");
    printf("%-19s %-10s %20s  %7s  %7s  %5s\n", "layer", "pass", "rows x in x out", "GFLOP/s",
           "OpenBLAS", "ratio");
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        race_layer(b, &layers[i]);
    if (b->n_rows > 0)
        printf("ratio: geometric mean %.2f, worst %.2f\n", exp(b->log_sum / b->n_rows), b->worst);
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
    bench b = {.n_threads = 1};
    bool is_products_only = false;
    pool *workers;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--products") == 0)
            is_products_only = true;
        else if (strcmp(argv[i], "--csv") == 0 && i + 1 < argc)
            b.csv = fopen(argv[++i], "a");
        else
            b.n_threads = atoi(argv[i]);
    }
    must(pool_create(&workers, b.n_threads));
    must(backend_create_cpu(&b.be, workers));
    b.blas = openblas_load(b.n_threads);
    bench_products(&b);
    if (!is_products_only) {
        bench_passes(b.be, 15000, 50);
        bench_passes(b.be, 15000, 256);
    }
    if (b.csv != NULL) fclose(b.csv);
    backend_destroy(b.be);
    pool_destroy(workers);
    return 0;
}
