/* 1. The card: what is there, what it can do at best, and a first kernel.
 *
 * The kernel counts its own threads: every thread of the grid adds one.  So the program knows that
 * the card runs code at all, and how long it takes to start some. */
#include "learn.h"

__global__ void count_threads(unsigned long long *counter) {
    atomicAdd(counter, 1ull);
}

__global__ void nothing(void) {
}

static void launch_nothing(void *ctx) {
    (void)ctx;
    nothing<<<1, 1>>>();
}

typedef struct copy {
    void *to, *from;
    size_t bytes;
} copy;

static void launch_copy(void *ctx) {
    copy *c = (copy *)ctx;
    CHECK(cudaMemcpyAsync(c->to, c->from, c->bytes, cudaMemcpyDeviceToDevice));
}

static void show(const machine *m) {
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 0));
    printf("memory %.1f GB, %d bits wide; L2 cache %.1f MB\n", p.totalGlobalMem / 1e9,
           attribute(cudaDevAttrGlobalMemoryBusWidth), p.l2CacheSize / 1e6);
    printf("%d multiprocessors at up to %.0f MHz; each: %d threads, %d registers, %.0f KB shared "
           "memory\n",
           m->n_multiprocessors, m->clock_hz / 1e6, p.maxThreadsPerMultiProcessor,
           p.regsPerMultiprocessor, p.sharedMemPerMultiprocessor / 1024.0);
    printf("a block: up to %d threads, %.0f KB shared memory (%.0f KB if asked for); a warp: %d "
           "threads\n",
           p.maxThreadsPerBlock, p.sharedMemPerBlock / 1024.0, p.sharedMemPerBlockOptin / 1024.0,
           p.warpSize);
    printf(
        "at best: memory %.2f TB/s, float32 %.1f TFLOP/s, bfloat16 in tensor cores %.0f TFLOP/s\n",
        m->memory_bytes_s / 1e12, m->float_flops / 1e12, m->tensor_flops / 1e12);
    printf("so a byte has time for %.0f float32 operations, or %.0f in tensor cores\n",
           m->float_flops / m->memory_bytes_s, m->tensor_flops / m->memory_bytes_s);
}

int main(void) {
    enum { BLOCKS = 1000, THREADS = 256 };
    machine m = find_machine();
    unsigned long long counted = 0,
                       *counter = (unsigned long long *)on_gpu(&counted, sizeof counted);
    title(&m, "1. Device query");
    show(&m);

    count_threads<<<BLOCKS, THREADS>>>(counter);
    CHECK(cudaGetLastError());                   /* was the launch accepted? */
    from_gpu(&counted, counter, sizeof counted); /* waits for the kernel */
    if (counted != (unsigned long long)BLOCKS * THREADS) {
        fprintf(stderr, "WRONG: the kernel counted %llu threads, not %d\n", counted,
                BLOCKS * THREADS);
        return 1;
    }
    printf("a grid of %d blocks of %d threads counted %llu\n", BLOCKS, THREADS, counted);

    copy c = {NULL, NULL, (size_t)1 << 30};
    c.from = on_gpu(NULL, c.bytes);
    CHECK(cudaMalloc(&c.to, c.bytes));
    report(&m, "an empty kernel", time_ms(launch_nothing, NULL), 0, 0, 0, -1);
    report(&m, "a copy of 1 GB (read and written)", time_ms(launch_copy, &c), 2.0 * c.bytes, 0, 0,
           -1);
    return 0;
}
