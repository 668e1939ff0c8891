/* 5. The same product in tensor cores: bfloat16 numbers, float32 sums.
 *
 * A warp multiplies small matrices with one instruction.  First by the library's fragments (wmma),
 * straight from memory: right, and slow, because the tensor cores wait for loads.  Then with
 * everything they need: tiles of 128 x 128 x 32 in shared memory, four pipeline stages of
 * asynchronous copies in flight, ldmatrix to fill registers, mma.sync.  Hopper's own products of
 * warpgroups (wgmma), which mma.sync cannot keep up with, are in src/cuda/attn/sm90. */
#include <mma.h>

#include "learn.h"
#include "mma.cuh"

enum { TILE = 128, DEPTH = 32, STAGES = 4, THREADS = 256 };
/* Rows of shared memory are padded by 16 bytes, so that the eight rows of a matrix that ldmatrix
 * reads are in different banks. */
enum { A_ROW = DEPTH + 8, B_ROW = TILE + 8, A_TILE = TILE * A_ROW, B_TILE = DEPTH * B_ROW };
enum { SHARED_BYTES = STAGES * (A_TILE + B_TILE) * 2 };

typedef __nv_bfloat16 bf16;

__global__ void product_wmma(int n, const bf16 *a, const bf16 *b, float *c) {
    using namespace nvcuda;
    int warp = threadIdx.x / 32, row = blockIdx.y * 64 + warp / 4 * 32,
        column = blockIdx.x * 64 + warp % 4 * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2];
    wmma::fill_fragment(sum[0], 0.0f);
    wmma::fill_fragment(sum[1], 0.0f);
    for (int k = 0; k < n; k += 16) {
        wmma::load_matrix_sync(fb, &b[(size_t)k * n + column], n);
        for (int i = 0; i < 2; i++) {
            wmma::load_matrix_sync(fa, &a[(size_t)(row + 16 * i) * n + k], n);
            wmma::mma_sync(sum[i], fa, fb, sum[i]);
        }
    }
    for (int i = 0; i < 2; i++)
        wmma::store_matrix_sync(&c[(size_t)(row + 16 * i) * n + column], sum[i], n,
                                wmma::mem_row_major);
}

/* Starts the copies of one pipeline stage: 128 x 32 of A and 32 x 128 of B, 512 pieces of 16 bytes
 * each. */
__device__ static void load_stage(bf16 *as, bf16 *bs, const bf16 *a, const bf16 *b, int n, int row0,
                                  int column0, int k0) {
    for (int i = threadIdx.x; i < 512; i += THREADS) {
        int row = i / 4, k = i % 4 * 8;
        cp_async_16(&as[row * A_ROW + k], &a[(size_t)(row0 + row) * n + k0 + k]);
        row = i / 16, k = i % 16 * 8;
        cp_async_16(&bs[row * B_ROW + k], &b[(size_t)(k0 + row) * n + column0 + k]);
    }
}

/* One pipeline stage's products: a warp has 64 x 32 of the tile, as 4 x 4 tiles of 16 x 8. */
__device__ static void multiply_stage(float sum[4][4][4], const bf16 *as, const bf16 *bs, int row0,
                                      int column0) {
    int lane = threadIdx.x % 32, matrix = lane / 8, line = lane % 8;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t fa[4][4], fb[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            ldmatrix_x4(fa[i],
                        &as[(row0 + 16 * i + matrix % 2 * 8 + line) * A_ROW + k + matrix / 2 * 8]);
#pragma unroll
        for (int j = 0; j < 2; j++)
            ldmatrix_x4_trans(
                fb[j],
                &bs[(k + matrix % 2 * 8 + line) * B_ROW + column0 + 16 * j + matrix / 2 * 8]);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_m16n8k16(sum[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
    }
}

__global__ void __launch_bounds__(THREADS)
    product_mma(int n, const bf16 *a, const bf16 *b, float *c) {
    extern __shared__ __align__(16) bf16 shared[];
    bf16 *as = shared, *bs = shared + STAGES * A_TILE;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = blockIdx.y * TILE,
        column0 = blockIdx.x * TILE;
    int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32, n_steps = n / DEPTH;
    float sum[4][4][4] = {{{0}}};
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < n_steps)
            load_stage(&as[s * A_TILE], &bs[s * B_TILE], a, b, n, row0, column0, s * DEPTH);
        cp_async_commit(); /* a group a stage, even an empty one: the waits below count groups */
    }
    for (int step = 0; step < n_steps; step++) {
        int stage = step % STAGES, next = step + STAGES - 1;
        cp_async_wait<STAGES - 2>(); /* this thread's part of the stage is there */
        __syncthreads(); /* everybody's is, and nobody reads the stage that is loaded next */
        if (next < n_steps)
            load_stage(&as[next % STAGES * A_TILE], &bs[next % STAGES * B_TILE], a, b, n, row0,
                       column0, next * DEPTH);
        cp_async_commit();
        multiply_stage(sum, &as[stage * A_TILE], &bs[stage * B_TILE], warp_row, warp_column);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            size_t row = row0 + warp_row + 16 * i + lane / 4,
                   column = column0 + warp_column + 8 * j + lane % 4 * 2;
            *(float2 *)&c[row * n + column] = make_float2(sum[i][j][0], sum[i][j][1]);
            *(float2 *)&c[(row + 8) * n + column] = make_float2(sum[i][j][2], sum[i][j][3]);
        }
}

typedef struct problem {
    int n;
    bf16 *a, *b;
    float *c;
} problem;

static void launch_wmma(void *ctx) {
    problem *p = (problem *)ctx;
    product_wmma<<<dim3(p->n / 64, p->n / 64), 256>>>(p->n, p->a, p->b, p->c);
}

static void launch_mma(void *ctx) {
    problem *p = (problem *)ctx;
    CHECK(cudaFuncSetAttribute(product_mma, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               SHARED_BYTES));
    product_mma<<<dim3(p->n / TILE, p->n / TILE), THREADS, SHARED_BYTES>>>(p->n, p->a, p->b, p->c);
}

/* Freivalds' check, as in the program before. */
static double check(const char *name, int n, const uint16_t *a, const uint16_t *b, const float *c) {
    float *x = (float *)host_memory((size_t)n * sizeof *x),
          *got = (float *)host_memory((size_t)n * sizeof *got);
    double *bx = (double *)host_memory((size_t)n * sizeof *bx),
           *want = (double *)host_memory((size_t)n * sizeof *want);
    fill_random(x, (size_t)n, 7);
    for (int i = 0; i < n; i++) {
        bx[i] = 0;
        for (int j = 0; j < n; j++)
            bx[i] += (double)bf16_value(b[(size_t)i * n + j]) * x[j];
    }
    for (int i = 0; i < n; i++) {
        double sum = 0;
        want[i] = 0;
        for (int j = 0; j < n; j++) {
            want[i] += bf16_value(a[(size_t)i * n + j]) * bx[j];
            sum += (double)c[(size_t)i * n + j] * x[j];
        }
        got[i] = (float)sum;
    }
    double error = compare(name, got, want, (size_t)n, 1e-5);
    free(x), free(got), free(bx), free(want);
    return error;
}

int main(void) {
    static const struct {
        const char *name;
        void (*launch)(void *);
    } ways[] = {{"wmma, from memory", launch_wmma},
                {"mma, four stages in shared memory", launch_mma}};
    enum { N = 8192 };
    size_t count = (size_t)N * N;
    machine m = find_machine();
    uint16_t *a = (uint16_t *)host_memory(count * 2), *b = (uint16_t *)host_memory(count * 2);
    float *c = (float *)host_memory(count * sizeof *c);
    uint64_t seed = 6;
    title(&m, "5. Matrix product, bfloat16 in tensor cores, 8192 x 8192");
    for (size_t i = 0; i < count; i++) {
        a[i] = bf16_of(random_float(&seed));
        b[i] = bf16_of(random_float(&seed));
    }
    problem p = {N, (bf16 *)on_gpu(a, count * 2), (bf16 *)on_gpu(b, count * 2), NULL};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        p.c = (float *)on_gpu(NULL, count * sizeof *c);
        double ms = time_ms(ways[i].launch, &p);
        from_gpu(c, p.c, count * sizeof *c);
        CHECK(cudaFree(p.c));
        report(&m, ways[i].name, ms, 0, 2.0 * N * N * N, m.tensor_flops,
               check(ways[i].name, N, a, b, c));
    }
    return 0;
}
