/* 2. Vector addition: one thread an element, and where the memory is.
 *
 * c[i] = a[i] + b[i] reads 8 bytes and writes 4 for one addition: only the bandwidth of memory
 * counts.  The same kernel runs on memory of the card, and on unified memory, which moves between
 * the card and the host when either touches it. */
#include "learn.h"

enum { THREADS = 256 };

__global__ void add(size_t n, const float *a, const float *b, float *c) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i]; /* the last block may be larger than what is left */
}

/* The same, four elements a thread with one load of 16 bytes each. */
__global__ void add_vectors(size_t n, const float4 *a, const float4 *b, float4 *c) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n / 4) return;
    float4 x = a[i], y = b[i];
    c[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

typedef struct problem {
    size_t n;
    float *a, *b, *c;
} problem;

static void launch_add(void *ctx) {
    problem *p = (problem *)ctx;
    add<<<(unsigned)((p->n + THREADS - 1) / THREADS), THREADS>>>(p->n, p->a, p->b, p->c);
}

static void launch_add_vectors(void *ctx) {
    problem *p = (problem *)ctx;
    add_vectors<<<(unsigned)((p->n / 4 + THREADS - 1) / THREADS), THREADS>>>(
        p->n, (float4 *)p->a, (float4 *)p->b, (float4 *)p->c);
}

/* One launch, in milliseconds: for memory whose first touch costs what later ones do not. */
static double once_ms(void (*launch)(void *), problem *p) {
    float ms;
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaEventRecord(start));
    launch(p);
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, start, end));
    return ms;
}

/* Asks for the pages before the kernel does. */
static void prefetch(const void *memory, size_t bytes) {
#if CUDART_VERSION >= 13000
    cudaMemLocation here;
    memset(&here, 0, sizeof here);
    here.type = cudaMemLocationTypeDevice;
    CHECK(cudaMemPrefetchAsync(memory, bytes, here, 0, 0));
#else
    CHECK(cudaMemPrefetchAsync(memory, bytes, 0, 0));
#endif
}

int main(void) {
    size_t n = ((size_t)1 << 26) + 4, bytes = n * sizeof(float); /* not a multiple of a block */
    machine m = find_machine();
    float *a = (float *)host_memory(bytes), *b = (float *)host_memory(bytes),
          *got = (float *)host_memory(bytes);
    double *want = (double *)host_memory(n * sizeof *want), moved = 3.0 * bytes;
    problem p = {n, NULL, NULL, NULL}, managed = {n, NULL, NULL, NULL};
    title(&m, "2. Vector addition");
    fill_random(a, n, 1);
    fill_random(b, n, 2);
    for (size_t i = 0; i < n; i++)
        want[i] = (float)(a[i] + b[i]);

    p.a = (float *)on_gpu(a, bytes);
    p.b = (float *)on_gpu(b, bytes);
    p.c = (float *)on_gpu(NULL, bytes);
    double ms = time_ms(launch_add, &p);
    from_gpu(got, p.c, bytes);
    report(&m, "one element a thread", ms, moved, 0, 0, compare("add", got, want, n, 0));
    CHECK(cudaMemset(p.c, 0xff, bytes));
    ms = time_ms(launch_add_vectors, &p);
    from_gpu(got, p.c, bytes);
    report(&m, "four elements a thread", ms, moved, 0, 0, compare("add_vectors", got, want, n, 0));

    if (attribute(cudaDevAttrConcurrentManagedAccess)) {
        CHECK(cudaMallocManaged(&managed.a, bytes));
        CHECK(cudaMallocManaged(&managed.b, bytes));
        CHECK(cudaMallocManaged(&managed.c, bytes));
        memcpy(managed.a, a, bytes); /* the host touches these pages first */
        memcpy(managed.b, b, bytes);
        report(&m, "unified memory, first touch", once_ms(launch_add, &managed), moved, 0, 0, -1);
        ms = time_ms(launch_add, &managed);
        double error =
            compare("managed", managed.c, want, n, 0); /* reading c here moves it to the host */
        report(&m, "unified memory, again", ms, moved, 0, 0, error);
        memcpy(managed.a, a, bytes);
        memcpy(managed.b, b, bytes);
        prefetch(managed.a, bytes);
        prefetch(managed.b, bytes);
        prefetch(managed.c, bytes);
        CHECK(cudaDeviceSynchronize());
        ms = once_ms(launch_add, &managed);
        error = compare("prefetched", managed.c, want, n, 0);
        report(&m, "unified memory, prefetched", ms, moved, 0, 0, error);
    } else {
        printf("unified memory: this system moves all of it with every launch; left out\n");
    }
    return 0;
}
