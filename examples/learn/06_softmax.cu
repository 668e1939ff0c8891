/* 6. Softmax of rows: as few passes over memory as possible.
 *
 *     y[i] = exp(x[i] - max) / sum over j of exp(x[j] - max)
 * needs the maximum before the sum and the sum before the result: three passes.  The online form
 * keeps both at once: when a larger maximum comes, the sum so far is scaled by exp(old - new). That
 * saves a pass, and it is what lets attention forget its scores (program 7).  A row that fits into
 * the registers of a block is read once. */
#include "learn.h"

enum {
    ROWS = 16384,
    COLUMNS = 4096,
    THREADS = 256,
    WARPS = THREADS / 32,
    OWN = COLUMNS / THREADS / 4
};

/* A thread a row: neighbours read addresses 16 KB apart, so each load of a warp is 32 transactions.
 */
__global__ void softmax_thread(const float *x, float *y) {
    size_t row = (size_t)(blockIdx.x * blockDim.x + threadIdx.x) * COLUMNS;
    float largest = -INFINITY, sum = 0;
    for (int i = 0; i < COLUMNS; i++)
        largest = fmaxf(largest, x[row + i]);
    for (int i = 0; i < COLUMNS; i++)
        sum += expf(x[row + i] - largest);
    for (int i = 0; i < COLUMNS; i++)
        y[row + i] = expf(x[row + i] - largest) / sum;
}

/* A running maximum, and the sum of exp(x - maximum). */
typedef struct running {
    float largest, sum;
} running;

__device__ static running join(running a, running b) {
    float largest = fmaxf(a.largest, b.largest);
    running both = {largest, 0};
    if (largest == -INFINITY) return both; /* nothing yet: exp(-inf + inf) would be NaN */
    both.sum = a.sum * __expf(a.largest - largest) + b.sum * __expf(b.largest - largest);
    return both;
}

/* The join over all threads of the block, for every thread. */
__device__ static running block_join(running mine) {
    __shared__ running part[WARPS];
    for (int step = 16; step > 0; step /= 2) {
        running other = {__shfl_xor_sync(0xffffffffu, mine.largest, step),
                         __shfl_xor_sync(0xffffffffu, mine.sum, step)};
        mine = join(mine, other);
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = part[0];
    for (int i = 1; i < WARPS; i++)
        mine = join(mine, part[i]);
    return mine;
}

/* A block a row, two passes: maximum and sum at once, then the results. */
__global__ void softmax_online(const float4 *x, float4 *y) {
    size_t row = (size_t)blockIdx.x * (COLUMNS / 4);
    running mine = {-INFINITY, 0};
    for (int i = threadIdx.x; i < COLUMNS / 4; i += THREADS) {
        float4 v = x[row + i];
        running next = {fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)), 0};
        next.sum = __expf(v.x - next.largest) + __expf(v.y - next.largest) +
                   __expf(v.z - next.largest) + __expf(v.w - next.largest);
        mine = join(mine, next);
    }
    mine = block_join(mine);
    float scale = 1 / mine.sum;
    for (int i = threadIdx.x; i < COLUMNS / 4; i += THREADS) {
        float4 v = x[row + i];
        y[row + i] =
            make_float4(scale * __expf(v.x - mine.largest), scale * __expf(v.y - mine.largest),
                        scale * __expf(v.z - mine.largest), scale * __expf(v.w - mine.largest));
    }
}

/* A block a row, one pass: 16 numbers a thread stay in registers. */
__global__ void softmax_registers(const float4 *x, float4 *y) {
    size_t row = (size_t)blockIdx.x * (COLUMNS / 4);
    float4 v[OWN];
    running mine = {-INFINITY, 0};
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        v[i] = x[row + i * THREADS + threadIdx.x];
        mine.largest = fmaxf(mine.largest, fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)));
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        v[i] = make_float4(__expf(v[i].x - mine.largest), __expf(v[i].y - mine.largest),
                           __expf(v[i].z - mine.largest), __expf(v[i].w - mine.largest));
        mine.sum += v[i].x + v[i].y + v[i].z + v[i].w;
    }
    running all = block_join(mine);
    float scale = __expf(mine.largest - all.largest) /
                  all.sum; /* the exponentials above are of this thread's maximum */
#pragma unroll
    for (int i = 0; i < OWN; i++)
        y[row + i * THREADS + threadIdx.x] =
            make_float4(scale * v[i].x, scale * v[i].y, scale * v[i].z, scale * v[i].w);
}

typedef struct problem {
    float *x, *y;
} problem;

static void launch_thread(void *ctx) {
    problem *p = (problem *)ctx;
    softmax_thread<<<ROWS / 64, 64>>>(p->x, p->y);
}

static void launch_online(void *ctx) {
    problem *p = (problem *)ctx;
    softmax_online<<<ROWS, THREADS>>>((const float4 *)p->x, (float4 *)p->y);
}

static void launch_registers(void *ctx) {
    problem *p = (problem *)ctx;
    softmax_registers<<<ROWS, THREADS>>>((const float4 *)p->x, (float4 *)p->y);
}

/* One row by its formula, in float64. */
static void softmax_row(const float *x, double *y) {
    double largest = x[0], sum = 0;
    for (int i = 1; i < COLUMNS; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int i = 0; i < COLUMNS; i++)
        sum += y[i] = exp(x[i] - largest);
    for (int i = 0; i < COLUMNS; i++)
        y[i] /= sum;
}

int main(void) {
    static const struct {
        const char *name;
        void (*launch)(void *);
    } ways[] = {{"a thread a row, three passes", launch_thread},
                {"a block a row, online, two passes", launch_online},
                {"a block a row, one pass", launch_registers}};
    size_t n = (size_t)ROWS * COLUMNS, bytes = n * sizeof(float);
    machine m = find_machine();
    float *x = (float *)host_memory(bytes), *y = (float *)host_memory(bytes);
    double want[COLUMNS];
    title(&m, "6. Softmax of 16384 rows of 4096 numbers");
    fill_random(x, n, 8);
    for (size_t i = 0; i < n; i++)
        x[i] = 20 * x[i] + 200; /* exp(220) is no float: without the maximum it fails */
    problem p = {(float *)on_gpu(x, bytes), NULL};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        double error = 0;
        p.y = (float *)on_gpu(NULL, bytes);
        double ms = time_ms(ways[w].launch, &p);
        from_gpu(y, p.y, bytes);
        CHECK(cudaFree(p.y));
        for (int row = 0; row < ROWS; row += 7) { /* 2341 rows, every place in a block and a warp */
            softmax_row(&x[(size_t)row * COLUMNS], want);
            double e = compare(ways[w].name, &y[(size_t)row * COLUMNS], want, COLUMNS, 1e-5);
            if (e > error) error = e;
        }
        report(&m, ways[w].name, ms, 2.0 * bytes, 0, 0,
               error); /* what must be moved: read once, written once */
    }
    return 0;
}
