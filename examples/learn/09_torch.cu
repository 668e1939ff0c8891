/* 9. Your kernel in somebody else's program: a library function that takes a stream.
 *
 * y = x * silu(x . w) for each row: the row is kept in shared memory whose size is known only at
 * the launch.  kernel<<<blocks, threads, bytes, stream>>>: `bytes` of dynamic shared memory, found
 * through an extern array; above 48 KB a kernel must ask for them first.  The stream is the
 * caller's: work on one stream runs in order, work on two may run side by side.
 *
 * As a program it checks itself, once on each of two streams, and says which machine code runs.  As
 * a library (nvcc -shared) 09_torch.py calls it on torch's tensors and torch's stream. */
#include "learn.h"

enum { THREADS = 256, MOST_BYTES = 48 << 10 };

/* A block a row: loads it once, sums over the block, writes it scaled. */
__global__ void gate_rows(int dim, const float *x, const float *w, float *y) {
    extern __shared__ float row[]; /* (dim + THREADS / 32): the row, then a sum a warp */
    const float *from = x + (size_t)blockIdx.x * dim;
    float *sums = row + dim, sum = 0;
    for (int i = threadIdx.x; i < dim; i += THREADS) {
        row[i] = from[i];
        sum += row[i] * w[i];
    }
    for (int lane = 16; lane > 0; lane /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    float score = 0;
    for (int i = 0; i < THREADS / 32; i++)
        score += sums[i];
    float gate = score / (1 + __expf(-score));
    for (int i = threadIdx.x; i < dim; i += THREADS)
        y[(size_t)blockIdx.x * dim + i] = row[i] * gate;
}

/* What a library offers: plain types, no exceptions, an error as a number, and no waiting: the
 * caller's stream has the work when this returns. */
extern "C" int learn_gate_rows(int n, int dim, const float *x, const float *w, float *y,
                               void *stream) {
    size_t bytes = ((size_t)dim + THREADS / 32) * sizeof(float);
    if (n == 0) return 0;
    if (bytes > MOST_BYTES) {
        cudaError_t error = cudaFuncSetAttribute(
            gate_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (error != cudaSuccess) return (int)error;
    }
    gate_rows<<<(unsigned)n, THREADS, bytes, (cudaStream_t)stream>>>(dim, x, w, y);
    return (int)cudaGetLastError();
}

extern "C" const char *learn_error_text(int error) {
    return cudaGetErrorString((cudaError_t)error);
}

typedef struct problem {
    int n, dim;
    float *x, *w, *y;
    cudaStream_t stream;
} problem;

static void launch(void *ctx) {
    problem *p = (problem *)ctx;
    CHECK((cudaError_t)learn_gate_rows(p->n, p->dim, p->x, p->w, p->y, p->stream));
}

static void expect(int n, int dim, const float *x, const float *w, double *want) {
    for (int r = 0; r < n; r++) {
        double score = 0;
        for (int i = 0; i < dim; i++)
            score += (double)x[(size_t)r * dim + i] * w[i];
        for (int i = 0; i < dim; i++)
            want[(size_t)r * dim + i] = x[(size_t)r * dim + i] * score / (1 + exp(-score));
    }
}

/* A fat binary has machine code for some cards and PTX, a portable assembly, for later ones, which
 * the driver compiles ("JIT") at the first use and caches. */
static void tell_code(const machine *m) {
    cudaFuncAttributes a;
    CHECK(cudaFuncGetAttributes(&a, gate_rows));
    printf("code for SM %d.%d, from PTX of %d.%d: %s\n", a.binaryVersion / 10, a.binaryVersion % 10,
           a.ptxVersion / 10, a.ptxVersion % 10,
           a.binaryVersion == m->sm ? "made for this card" : "made for an older one of its family");
}

int main(void) {
    enum { N = 8192, DIM = 4096, WIDE = 16384, FEW = 64 };
    machine m = find_machine();
    size_t count = (size_t)N * DIM, bytes = count * sizeof(float);
    float *x = (float *)host_memory(bytes), *w = (float *)host_memory(WIDE * sizeof *w),
          *got = (float *)host_memory(bytes);
    double *want = (double *)host_memory(count * sizeof *want);
    fill_random(x, count, 1);
    fill_random(w, WIDE, 2);
    for (int i = 0; i < WIDE; i++)
        w[i] *= 0.05f;
    title(&m, "9. A kernel as a library function: gated rows");
    tell_code(&m);
    problem p = {N,
                 DIM,
                 (float *)on_gpu(x, bytes),
                 (float *)on_gpu(w, WIDE * sizeof *w),
                 (float *)on_gpu(NULL, bytes),
                 0};
    double ms = time_ms(launch, &p);
    expect(N, DIM, x, w, want);
    from_gpu(got, p.y, bytes);
    report(&m, "8192 rows of 4096", ms, 2.0 * bytes, 0, 0, compare("rows", got, want, count, 1e-5));

    /* 64 KB a row: more than 48, so it is asked for; on a second stream, which the copy waits for.
     */
    cudaStream_t second;
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    problem wide = {FEW, WIDE, p.x, p.w, p.y, second};
    CHECK(cudaMemset(p.y, 0xff, bytes));
    CHECK(cudaDeviceSynchronize()); /* the memset is on another stream */
    launch(&wide);
    size_t some = (size_t)FEW * WIDE;
    CHECK(cudaMemcpyAsync(got, p.y, some * sizeof *got, cudaMemcpyDeviceToHost, second));
    CHECK(cudaStreamSynchronize(second));
    expect(FEW, WIDE, x, w, want);
    printf("64 rows of 16384, 64 KB of shared memory, another stream: error %.1e\n",
           compare("wide rows", got, want, some, 1e-5));
    return 0;
}
