/* learn.h: what the programs of docs/learn.md share: errors, the peaks of the card, timing, and
 * comparison with a plain CPU result.  Everything is static, so that a program is one file and this
 * header: nvcc -O3 -arch=sm_90 03_reduction.cu */
#ifndef LEARN_H
#define LEARN_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every call of CUDA can fail, and a kernel's failure is reported by a later call: so each call is
 * checked, and a failure names its line. */
#define CHECK(call) learn_check((call), #call, __FILE__, __LINE__)

static void learn_check(cudaError_t error, const char *call, const char *file, int line) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, cudaGetErrorString(error));
    exit(1);
}

/* What the card can do at best: its highest clocks times its units.  No program reaches all of it.
 */
typedef struct machine {
    char name[128];
    int sm; /* 90 for compute capability 9.0 */
    int n_multiprocessors;
    double clock_hz;
    double memory_bytes_s;
    double float_flops;  /* float32, without tensor cores */
    double tensor_flops; /* bfloat16 in tensor cores, dense */
} machine;

static int attribute(cudaDeviceAttr which) {
    int value = 0;
    CHECK(cudaDeviceGetAttribute(&value, which, 0));
    return value;
}

/* Multiply-adds of one multiprocessor and clock, from NVIDIA's tables: float32, then bfloat16 in
 * tensor cores. */
static void units_of(int sm, int *floats, int *tensors) {
    *floats = sm == 80 ? 64 : 128;
    *tensors = sm < 80         ? 0
               : sm == 80      ? 1024
               : sm < 90       ? 512
               : sm == 90      ? 2048
               : sm / 10 == 10 ? 4096
                               : 512;
}

static machine find_machine(void) {
    machine m;
    cudaDeviceProp properties;
    int n = 0, floats, tensors;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        fprintf(stderr, "no GPU that CUDA can use here; 'nvidia-smi' or 'hstu doctor' says why\n");
        exit(77); /* tests take 77 for "cannot run here" */
    }
    CHECK(cudaGetDeviceProperties(&properties, 0));
    snprintf(m.name, sizeof m.name, "%.127s", properties.name);
    m.sm = properties.major * 10 + properties.minor;
    m.n_multiprocessors = properties.multiProcessorCount;
    m.clock_hz = attribute(cudaDevAttrClockRate) * 1e3;
    /* Two transfers a clock and wire. */
    m.memory_bytes_s = 2.0 * attribute(cudaDevAttrMemoryClockRate) * 1e3 *
                       attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
    units_of(m.sm, &floats, &tensors);
    m.float_flops = 2.0 * floats * m.n_multiprocessors * m.clock_hz;
    m.tensor_flops = 2.0 * tensors * m.n_multiprocessors * m.clock_hz;
    return m;
}

/* Random numbers in -1..1, the same in every run. */
static float random_float(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int64_t)(*state >> 33) - (1 << 30)) / (1 << 30);
}

static void fill_random(float *x, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(&seed);
}

static void *host_memory(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL) {
        fprintf(stderr, "%zu bytes of memory are not there\n", bytes);
        exit(1);
    }
    return memory;
}

/* An array on the GPU, a copy of `from`, or poisoned with NaN where there is nothing to copy: a
 * result that a kernel forgot to write cannot look right. */
static void *on_gpu(const void *from, size_t bytes) {
    void *memory = NULL;
    CHECK(cudaMalloc(&memory, bytes));
    if (from != NULL)
        CHECK(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
    else
        CHECK(cudaMemset(memory, 0xff, bytes));
    return memory;
}

static void from_gpu(void *to, const void *from, size_t bytes) {
    CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

/* The largest difference between two arrays as a share of the largest value; ends the program where
 * it is above `tolerance`.  NaN is never within a tolerance. */
static double compare(const char *what, const float *got, const double *want, size_t n,
                      double tolerance) {
    double worst = 0, largest = 0;
    size_t where = 0;
    for (size_t i = 0; i < n; i++) {
        double off = fabs(got[i] - want[i]);
        if (!(off <= worst)) worst = off, where = i;
        if (fabs(want[i]) > largest) largest = fabs(want[i]);
        if (isnan(off)) break;
    }
    double relative = largest > 0 ? worst / largest : worst;
    if (!(relative <= tolerance)) {
        fprintf(stderr, "%s: WRONG: element %zu is %g and should be %g (tolerance %g of %g)\n",
                what, where, got[where], want[where], tolerance, largest);
        exit(1);
    }
    return relative;
}

/* The median time of 21 launches, in milliseconds, by events on the GPU; 3 launches before them
 * warm up. */
static double time_ms(void (*launch)(void *), void *ctx) {
    enum { RUNS = 21 };
    float ms[RUNS];
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    for (int i = -3; i < RUNS; i++) {
        CHECK(cudaEventRecord(start));
        launch(ctx);
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaGetLastError());
        if (i >= 0) CHECK(cudaEventElapsedTime(&ms[i], start, end));
    }
    for (int i = 1; i < RUNS; i++) /* a few numbers: insertion sort */
        for (int j = i; j > 0 && ms[j - 1] > ms[j]; j--) {
            float swap = ms[j];
            ms[j] = ms[j - 1];
            ms[j - 1] = swap;
        }
    CHECK(cudaEventDestroy(start));
    CHECK(cudaEventDestroy(end));
    return ms[RUNS / 2];
}

/* A line of a table; bytes or flops of 0 are left out, `peak` is what flops are compared with. */
static void report(const machine *m, const char *what, double ms, double bytes, double flops,
                   double peak, double error) {
    printf("%-34s %9.4f ms", what, ms);
    if (bytes > 0)
        printf("  %7.1f GB/s %5.1f %%", bytes / ms / 1e6,
               100 * bytes / (ms * 1e-3) / m->memory_bytes_s);
    if (flops > 0)
        printf("  %8.2f TFLOP/s %5.1f %%", flops / ms / 1e9, 100 * flops / (ms * 1e-3) / peak);
    if (error >= 0) printf("  error %.1e", error);
    printf("\n");
}

static void title(const machine *m, const char *what) {
    printf("%s, on %s (SM %d.%d)\n", what, m->name, m->sm / 10, m->sm % 10);
}

#endif
