/* 7. Attention with an online softmax: a chain of products whose middle is never stored.
 *
 *     out = softmax(alpha Q K^T) V          for each of B sequences and H heads; Q, K, V: (S, D)
 * The plain way stores all S x S scores: three kernels, and most of the time memory.  The other one
 * (FlashAttention's) keeps 64 rows of Q in the registers of a block and walks over K and V in tiles
 * of 64 keys: the scores of a tile are registers, pass through the online softmax of program 6, and
 * are at once the left side of the second product.  What the row has summed so far is rescaled when
 * its maximum grows. */
#include "learn.h"
#include "mma.cuh"

enum { B = 32, H = 4, S = 1024, D = 64 };
enum {
    ROWS = 64,
    KEYS = 64,
    THREADS = 128,
    LINE = D + 8
}; /* a padded row of shared memory, in numbers */

typedef __nv_bfloat16 bf16;

/* The plain way.  Rows are (b, s, h, d): token by token, as our library has them. */
__device__ static size_t row_of(int b, int h, int s) {
    return (((size_t)b * S + s) * H + h) * D;
}

__global__ void scores_plain(const bf16 *q, const bf16 *k, float alpha, float *scores) {
    __shared__ float qs[16][D],
        ks[16][D + 1]; /* one more: threads of a warp read 16 different rows of ks */
    int b = blockIdx.z / H, h = blockIdx.z % H, x = threadIdx.x, y = threadIdx.y;
    for (int d = x; d < D; d += 16) {
        qs[y][d] = __bfloat162float(q[row_of(b, h, blockIdx.y * 16 + y) + d]);
        ks[y][d] = __bfloat162float(k[row_of(b, h, blockIdx.x * 16 + y) + d]);
    }
    __syncthreads();
    float sum = 0;
    for (int d = 0; d < D; d++)
        sum += qs[y][d] * ks[x][d];
    scores[((size_t)blockIdx.z * S + blockIdx.y * 16 + y) * S + blockIdx.x * 16 + x] = alpha * sum;
}

__global__ void softmax_plain(float *scores) { /* a warp a row */
    float *row = &scores[((size_t)blockIdx.x * 4 + threadIdx.x / 32) * S], largest = -INFINITY,
          sum = 0;
    for (int i = threadIdx.x % 32; i < S; i += 32)
        largest = fmaxf(largest, row[i]);
    for (int step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    for (int i = threadIdx.x % 32; i < S; i += 32)
        sum += row[i] = __expf(row[i] - largest);
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    for (int i = threadIdx.x % 32; i < S; i += 32)
        row[i] /= sum;
}

__global__ void values_plain(const float *scores, const bf16 *v,
                             float *out) { /* a thread an element of four rows */
    int b = blockIdx.y / H, h = blockIdx.y % H, s = blockIdx.x * 4, d = threadIdx.x;
    const float *p = &scores[((size_t)blockIdx.y * S + s) * S];
    float sum[4] = {0};
    for (int j = 0; j < S; j++) {
        float value = __bfloat162float(v[row_of(b, h, j) + d]);
        for (int i = 0; i < 4; i++)
            sum[i] += p[(size_t)i * S + j] * value;
    }
    for (int i = 0; i < 4; i++)
        out[row_of(b, h, s + i) + d] = sum[i];
}

/* The fused way.  Copies 64 rows of D numbers to shared memory, 512 pieces of 16 bytes. */
__device__ static void load_rows(bf16 *to, const bf16 *from, int b, int h, int first) {
    for (int i = threadIdx.x; i < ROWS * D / 8; i += THREADS)
        cp_async_16(&to[i / 8 * LINE + i % 8 * 8], &from[row_of(b, h, first + i / 8) + i % 8 * 8]);
}

/* scores (16 x 64 of a warp, as eight tiles of 16 x 8) = Q K^T of one tile of keys. */
__device__ static void multiply_keys(float scores[8][4], const uint32_t fq[4][4], const bf16 *ks) {
    int lane = threadIdx.x % 32, matrix = lane / 8, line = lane % 8;
#pragma unroll
    for (int j = 0; j < 4; j++) /* 16 keys */
#pragma unroll
        for (int d = 0; d < 4; d++) { /* 16 numbers of a head */
            uint32_t fk[4];           /* keys are rows of shared memory, columns of the product: no
                                         transposition */
            ldmatrix_x4(fk, &ks[(16 * j + matrix / 2 * 8 + line) * LINE + 16 * d + matrix % 2 * 8]);
            mma_m16n8k16(scores[2 * j], fq[d], fk[0], fk[1]);
            mma_m16n8k16(scores[2 * j + 1], fq[d], fk[2], fk[3]);
        }
}

/* out += P V.  The scores of a thread are where the left side of a product wants them: two tiles of
 * 16 x 8 make one of 16 x 16. */
__device__ static void multiply_values(float out[8][4], const float p[8][4], const bf16 *vs) {
    int lane = threadIdx.x % 32, matrix = lane / 8, line = lane % 8;
#pragma unroll
    for (int j = 0; j < 4; j++) { /* 16 keys */
        uint32_t fp[4] = {pack(p[2 * j][0], p[2 * j][1]), pack(p[2 * j][2], p[2 * j][3]),
                          pack(p[2 * j + 1][0], p[2 * j + 1][1]),
                          pack(p[2 * j + 1][2], p[2 * j + 1][3])};
#pragma unroll
        for (int d = 0; d < 4; d++) {
            uint32_t fv[4];
            ldmatrix_x4_trans(
                fv, &vs[(16 * j + matrix % 2 * 8 + line) * LINE + 16 * d + matrix / 2 * 8]);
            mma_m16n8k16(out[2 * d], fp, fv[0], fv[1]);
            mma_m16n8k16(out[2 * d + 1], fp, fv[2], fv[3]);
        }
    }
}

/* One tile of the online softmax: scores become exp(score - maximum); a thread has two rows, four
 * threads share a row. */
__device__ static void online_step(float scores[8][4], float out[8][4], float largest[2],
                                   float sum[2], float alpha) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = largest[r];
#pragma unroll
        for (int j = 0; j < 8; j++)
            top = fmaxf(top, alpha * fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        float scale = __expf(largest[r] - top); /* 0 at the first tile: exp(-inf) */
        largest[r] = top;
        sum[r] *= scale;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            out[j][2 * r] *= scale, out[j][2 * r + 1] *= scale;
            scores[j][2 * r] = __expf(alpha * scores[j][2 * r] - top);
            scores[j][2 * r + 1] = __expf(alpha * scores[j][2 * r + 1] - top);
            sum[r] += scores[j][2 * r] + scores[j][2 * r + 1];
        }
    }
}

__global__ void __launch_bounds__(THREADS)
    attention_online(const bf16 *q, const bf16 *k, const bf16 *v, float alpha, float *out) {
    __shared__ __align__(16) bf16 ks[2][KEYS * LINE], vs[2][KEYS * LINE];
    int b = blockIdx.y / H, h = blockIdx.y % H, row0 = blockIdx.x * ROWS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, matrix = lane / 8, line = lane % 8;
    uint32_t fq[4][4];
    float sums[8][4] = {{0}}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

    load_rows(ks[1], q, b, h, row0); /* Q passes through the buffer that is not needed yet */
    cp_async_commit();
    load_rows(ks[0], k, b, h, 0);
    load_rows(vs[0], v, b, h, 0);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
#pragma unroll
    for (int d = 0; d < 4; d++)
        ldmatrix_x4(fq[d],
                    &ks[1][(16 * warp + matrix % 2 * 8 + line) * LINE + 16 * d + matrix / 2 * 8]);
    for (int tile = 0; tile < S / KEYS; tile++) {
        float scores[8][4] = {{0}};
        cp_async_wait<0>();
        __syncthreads(); /* the tile is there, and nobody reads the other buffer any more */
        if (tile + 1 < S / KEYS) {
            load_rows(ks[(tile + 1) % 2], k, b, h, (tile + 1) * KEYS);
            load_rows(vs[(tile + 1) % 2], v, b, h, (tile + 1) * KEYS);
            cp_async_commit();
        }
        multiply_keys(scores, fq, ks[tile % 2]);
        online_step(scores, sums, largest, sum, alpha);
        multiply_values(sums, scores, vs[tile % 2]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) { /* the sums of the four threads of a row, then the division */
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        float *row = &out[row_of(b, h, row0 + 16 * warp + lane / 4 + 8 * r)];
#pragma unroll
        for (int j = 0; j < 8; j++)
            *(float2 *)&row[8 * j + lane % 4 * 2] =
                make_float2(sums[j][2 * r] / sum[r], sums[j][2 * r + 1] / sum[r]);
    }
}

typedef struct problem {
    bf16 *q, *k, *v;
    float *scores, *out, alpha;
} problem;

static void launch_plain(void *ctx) {
    problem *p = (problem *)ctx;
    scores_plain<<<dim3(S / 16, S / 16, B * H), dim3(16, 16)>>>(p->q, p->k, p->alpha, p->scores);
    softmax_plain<<<B * H * S / 4, 128>>>(p->scores);
    values_plain<<<dim3(S / 4, B * H), D>>>(p->scores, p->v, p->out);
}

static void launch_online(void *ctx) {
    problem *p = (problem *)ctx;
    attention_online<<<dim3(S / ROWS, B * H), THREADS>>>(p->q, p->k, p->v, p->alpha, p->out);
}

/* One row of the result by its formula, in float64. */
static void attention_row(const uint16_t *q, const uint16_t *k, const uint16_t *v, int b, int h,
                          int s, double alpha, double *out) {
    double score[S], sum = 0, largest = -INFINITY;
    size_t i = (((size_t)b * S + s) * H + h) * D;
    for (int j = 0; j < S; j++) {
        size_t key = (((size_t)b * S + j) * H + h) * D;
        score[j] = 0;
        for (int d = 0; d < D; d++)
            score[j] += (double)bf16_value(q[i + d]) * bf16_value(k[key + d]);
        score[j] *= alpha;
        largest = score[j] > largest ? score[j] : largest;
    }
    for (int d = 0; d < D; d++)
        out[d] = 0;
    for (int j = 0; j < S; j++)
        sum += score[j] = exp(score[j] - largest);
    for (int j = 0; j < S; j++)
        for (int d = 0; d < D; d++)
            out[d] += score[j] / sum * bf16_value(v[(((size_t)b * S + j) * H + h) * D + d]);
}

int main(void) {
    /* The fused way rounds its probabilities to bfloat16, 8 bits, before the second product. */
    static const struct {
        const char *name;
        void (*launch)(void *);
        double tolerance;
    } ways[] = {{"scores in memory, three kernels", launch_plain, 1e-4},
                {"online softmax, one kernel", launch_online, 1e-2}};
    size_t n = (size_t)B * S * H * D;
    machine m = find_machine();
    uint16_t *host[3];
    uint64_t seed = 9;
    float *out = (float *)host_memory(n * sizeof *out);
    title(&m, "7. Attention, 32 sequences of 1024, 4 heads of 64");
    for (int i = 0; i < 3; i++) {
        host[i] = (uint16_t *)host_memory(n * 2);
        for (size_t j = 0; j < n; j++)
            host[i][j] = bf16_of(2 * random_float(&seed));
    }
    problem p = {(bf16 *)on_gpu(host[0], n * 2),
                 (bf16 *)on_gpu(host[1], n * 2),
                 (bf16 *)on_gpu(host[2], n * 2),
                 NULL,
                 NULL,
                 1 / sqrtf(D)};
    p.scores = (float *)on_gpu(NULL, (size_t)B * H * S * S * sizeof(float));
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        double error = 0, want[D];
        p.out = (float *)on_gpu(NULL, n * sizeof *out);
        double ms = time_ms(ways[w].launch, &p);
        from_gpu(out, p.out, n * sizeof *out);
        CHECK(cudaFree(p.out));
        for (int i = 0; i < B * H; i++)
            for (int s = i % 37; s < S; s += 37) { /* every place in a tile, of some head */
                attention_row(host[0], host[1], host[2], i / H, i % H, s, p.alpha, want);
                double e = compare(ways[w].name, &out[(((size_t)(i / H) * S + s) * H + i % H) * D],
                                   want, D, ways[w].tolerance);
                if (e > error) error = e;
            }
        /* Bytes: what must be moved, q, k, v and out; not what the plain way moves besides. */
        report(&m, ways[w].name, ms, 3.0 * n * 2 + n * 4.0, 4.0 * B * H * S * S * D, m.tensor_flops,
               error);
    }
    return 0;
}
