/* 4. A matrix product in float32: reuse.
 *
 * C = A B of n x n numbers is 2 n^3 operations on 12 n^2 bytes, so it can be bound by arithmetic,
 * if what was loaded is used often enough.  One thread an element loads 8 bytes for each
 * multiplication and addition.  A tile of 32 x 32 in shared memory uses each loaded number 32
 * times.  A tile of 128 x 128, of which each thread computes 8 x 8 numbers in registers, also reads
 * shared memory 8 times less. */
#include "learn.h"

enum { SIDE = 32 }; /* of the tile in shared memory */
enum {
    TILE = 128,
    DEPTH = 8,
    OWN = 8
}; /* of the tile in registers: 16 x 16 threads of 8 x 8 numbers */

__global__ void product_plain(int n, const float *a, const float *b, float *c) {
    int row = blockIdx.y * SIDE + threadIdx.y, column = blockIdx.x * SIDE + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k++)
        sum += a[(size_t)row * n + k] * b[(size_t)k * n + column];
    c[(size_t)row * n + column] = sum;
}

__global__ void product_shared(int n, const float *a, const float *b, float *c) {
    __shared__ float as[SIDE][SIDE], bs[SIDE][SIDE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * SIDE + y,
        column = blockIdx.x * SIDE + x;
    float sum = 0;
    for (int k0 = 0; k0 < n; k0 += SIDE) {
        as[y][x] = a[(size_t)row * n + k0 + x];
        bs[y][x] = b[(size_t)(k0 + y) * n + column];
        __syncthreads(); /* the tile is complete */
        for (int k = 0; k < SIDE; k++)
            sum += as[y][k] * bs[k][x];
        __syncthreads(); /* nobody reads it any more */
    }
    c[(size_t)row * n + column] = sum;
}

/* Numbers 4 i .. 4 i + 3 and 64 + 4 i .. of a row in shared memory: two loads of 16 bytes,
 * neighbours for neighbours. */
__device__ static void load_eight(float out[OWN], const float *row, int i) {
    float4 low = *(const float4 *)&row[4 * i], high = *(const float4 *)&row[TILE / 2 + 4 * i];
    out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
    out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
}

__global__ void __launch_bounds__(256)
    product_registers(int n, const float *a, const float *b, float *c) {
    __shared__ __align__(
        16) float as[DEPTH][TILE + 4]; /* transposed: a column of A is a row here */
    __shared__ __align__(16) float bs[DEPTH][TILE];
    int t = threadIdx.x, x = t % 16, y = t / 16, row0 = blockIdx.y * TILE,
        column0 = blockIdx.x * TILE;
    float sum[OWN][OWN] = {{0}};
    for (int k0 = 0; k0 < n; k0 += DEPTH) {
        float4 v = *(const float4 *)&a[(size_t)(row0 + t / 2) * n + k0 + t % 2 * 4];
        as[t % 2 * 4 + 0][t / 2] = v.x;
        as[t % 2 * 4 + 1][t / 2] = v.y;
        as[t % 2 * 4 + 2][t / 2] = v.z;
        as[t % 2 * 4 + 3][t / 2] = v.w;
        *(float4 *)&bs[t / 32][t % 32 * 4] =
            *(const float4 *)&b[(size_t)(k0 + t / 32) * n + column0 + t % 32 * 4];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            float ra[OWN], rb[OWN];
            load_eight(ra, as[k], y);
            load_eight(rb, bs[k], x);
#pragma unroll
            for (int i = 0; i < OWN; i++)
#pragma unroll
                for (int j = 0; j < OWN; j++)
                    sum[i][j] += ra[i] * rb[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float *row = &c[(size_t)(row0 + i / 4 * (TILE / 2) + 4 * y + i % 4) * n + column0];
        *(float4 *)&row[4 * x] = make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
        *(float4 *)&row[TILE / 2 + 4 * x] = make_float4(sum[i][4], sum[i][5], sum[i][6], sum[i][7]);
    }
}

typedef struct problem {
    int n;
    float *a, *b, *c;
} problem;

static void launch_plain(void *ctx) {
    problem *p = (problem *)ctx;
    product_plain<<<dim3(p->n / SIDE, p->n / SIDE), dim3(SIDE, SIDE)>>>(p->n, p->a, p->b, p->c);
}

static void launch_shared(void *ctx) {
    problem *p = (problem *)ctx;
    product_shared<<<dim3(p->n / SIDE, p->n / SIDE), dim3(SIDE, SIDE)>>>(p->n, p->a, p->b, p->c);
}

static void launch_registers(void *ctx) {
    problem *p = (problem *)ctx;
    product_registers<<<dim3(p->n / TILE, p->n / TILE), 256>>>(p->n, p->a, p->b, p->c);
}

/* Freivalds' check: C = A B has C x = A (B x) for every x.  For a random x a wrong element shows,
 * and the check takes 6 n^2 operations instead of 2 n^3. */
static double check(const char *name, int n, const float *a, const float *b, const float *c) {
    size_t rows = (size_t)n * sizeof(double);
    float *x = (float *)host_memory((size_t)n * sizeof *x),
          *got = (float *)host_memory((size_t)n * sizeof *got);
    double *bx = (double *)host_memory(rows), *want = (double *)host_memory(rows);
    fill_random(x, (size_t)n, 7);
    for (int i = 0; i < n; i++) {
        bx[i] = 0;
        for (int j = 0; j < n; j++)
            bx[i] += (double)b[(size_t)i * n + j] * x[j];
    }
    for (int i = 0; i < n; i++) {
        double sum = 0;
        want[i] = 0;
        for (int j = 0; j < n; j++) {
            want[i] += a[(size_t)i * n + j] * bx[j];
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
    } ways[] = {{"a thread an element", launch_plain},
                {"tiles in shared memory", launch_shared},
                {"8 x 8 in registers", launch_registers}};
    enum { N = 4096 };
    size_t count = (size_t)N * N, bytes = count * sizeof(float);
    machine m = find_machine();
    float *a = (float *)host_memory(bytes), *b = (float *)host_memory(bytes),
          *c = (float *)host_memory(bytes);
    title(&m, "4. Matrix product, float32, 4096 x 4096");
    fill_random(a, count, 4);
    fill_random(b, count, 5);
    problem p = {N, (float *)on_gpu(a, bytes), (float *)on_gpu(b, bytes), NULL};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        p.c = (float *)on_gpu(NULL, bytes);
        double ms = time_ms(ways[i].launch, &p);
        from_gpu(c, p.c, bytes);
        CHECK(cudaFree(p.c));
        report(&m, ways[i].name, ms, 0, 2.0 * N * N * N, m.float_flops,
               check(ways[i].name, N, a, b, c));
    }
    return 0;
}
