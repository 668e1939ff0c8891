/* 3. A sum of many numbers: threads that must work together.
 *
 * Three ways.  Atomic additions of every thread to one number wait for each other.  A tree in
 * shared memory needs one atomic addition a block.  Shuffles exchange registers inside a warp
 * without memory and without barriers, and each thread first adds many elements by itself.  The
 * last one is bound by the bandwidth of memory, as a sum should be. */
#include "learn.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

__global__ void sum_atomic(size_t n, const float *x, float *sum) {
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;
    if (i < n) atomicAdd(sum, x[i]);
}

__global__ void sum_tree(size_t n, const float *x, float *sum) {
    __shared__ float part[THREADS];
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads(); /* outside of the if: every thread of the block must come here */
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(sum, part[0]);
}

__device__ static float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* A grid of a fixed size: each thread takes every (grid size)th vector of four. */
__global__ void sum_shuffle(size_t n, const float4 *x, float *sum) {
    __shared__ float part[WARPS];
    float mine = 0;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n / 4;
         i += (size_t)gridDim.x * THREADS) {
        float4 v = x[i];
        mine += v.x + v.y + v.z + v.w;
    }
    mine = warp_sum(mine);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
        mine = warp_sum(threadIdx.x < WARPS ? part[threadIdx.x] : 0);
        if (threadIdx.x == 0) atomicAdd(sum, mine);
    }
}

typedef struct problem {
    size_t n;
    float *x, *sum;
    int n_multiprocessors;
} problem;

static unsigned blocks_of(size_t n) {
    return (unsigned)((n + THREADS - 1) / THREADS);
}

static void launch_atomic(void *ctx) {
    problem *p = (problem *)ctx;
    CHECK(cudaMemsetAsync(p->sum, 0, sizeof(float)));
    sum_atomic<<<blocks_of(p->n), THREADS>>>(p->n, p->x, p->sum);
}

static void launch_tree(void *ctx) {
    problem *p = (problem *)ctx;
    CHECK(cudaMemsetAsync(p->sum, 0, sizeof(float)));
    sum_tree<<<blocks_of(p->n), THREADS>>>(p->n, p->x, p->sum);
}

static void launch_shuffle(void *ctx) {
    problem *p = (problem *)ctx;
    CHECK(cudaMemsetAsync(p->sum, 0, sizeof(float)));
    sum_shuffle<<<8 * p->n_multiprocessors, THREADS>>>(p->n, (const float4 *)p->x, p->sum);
}

int main(void) {
    static const struct {
        const char *name;
        void (*launch)(void *);
    } ways[] = {{"an atomic addition an element", launch_atomic},
                {"a tree in shared memory", launch_tree},
                {"shuffles, many elements a thread", launch_shuffle}};
    size_t n = ((size_t)1 << 26) + 4;
    machine m = find_machine();
    float *x = (float *)host_memory(n * sizeof *x), got;
    double want = 0;
    title(&m, "3. Reduction");
    fill_random(x, n, 3);
    /* One in eight is 1, the others are 0: the sum stays below 2^24, up to which floats count
     * exactly.  So every order of the additions gives the same bits, and one element that is
     * missing shows.  (Of 2^26 numbers around 0.5, single atomic additions would lose two thirds:
     * 0.5 added to 2^24 is 2^24.) */
    for (size_t i = 0; i < n; i++) {
        x[i] = x[i] > 0.75f;
        want += x[i];
    }
    problem p = {n, (float *)on_gpu(x, n * sizeof *x), (float *)on_gpu(NULL, sizeof(float)),
                 m.n_multiprocessors};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        double ms = time_ms(ways[i].launch, &p);
        from_gpu(&got, p.sum, sizeof got);
        report(&m, ways[i].name, ms, (double)n * sizeof *x, 0, 0,
               compare(ways[i].name, &got, &want, 1, 0));
    }
    return 0;
}
