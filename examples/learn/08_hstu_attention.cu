/* 8. HSTU attention: SiLU instead of softmax, jagged sequences, causal.
 *
 *     out_i = 1 / N  sum over j <= i of silu(alpha q_i . k_j) v_j        silu(x) = x / (1 +
 * exp(-x)) Program 7 with less: without a maximum and a sum, nothing is rescaled, and tiles are
 * independent of each other.  Sequences lie one after the other without padding; offsets[b] is the
 * first row of sequence b.  A block has 64 queries of one sequence and head; tiles of keys after
 * its last query are never loaded, and only the tile on the diagonal needs a mask.  Blocks with the
 * most keys start first, so that no long one is left for the end.
 *
 * Ours (src/cuda/attn) computes the same, with TMA, wgmma, a producer warp and persistent blocks on
 * Hopper: `hstu bench attention` times it on these shapes. */
#include "learn.h"
#include "mma.cuh"

enum { H = 4, D = 64 };
enum { ROWS = 64, KEYS = 64, THREADS = 128, LINE = D + 8 };

typedef __nv_bfloat16 bf16;

typedef struct problem {
    int n_sequences, max_length;
    int *offsets;          /* (n_sequences + 1) */
    bf16 *q, *k, *v, *out; /* (tokens, H, D) */
    float alpha;
} problem;

/* silu(x) = h + h tanh(h) with h = x / 2: one special function. */
__device__ static float silu(float x) {
    float h = 0.5f * x, t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(h));
    return h + h * t;
}

/* The plain way: a thread a row of the result, everything from memory. */
__global__ void hstu_plain(problem p) {
    int b = blockIdx.z, h = blockIdx.y, first = p.offsets[b], length = p.offsets[b + 1] - first;
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= length) return;
    float sum[D] = {0}, query[D];
    for (int d = 0; d < D; d++)
        query[d] = __bfloat162float(p.q[((size_t)(first + i) * H + h) * D + d]);
    for (int j = 0; j <= i; j++) {
        size_t key = ((size_t)(first + j) * H + h) * D;
        float score = 0;
        for (int d = 0; d < D; d++)
            score += query[d] * __bfloat162float(p.k[key + d]);
        score = p.alpha * score / (1 + __expf(-p.alpha * score));
        for (int d = 0; d < D; d++)
            sum[d] += score * __bfloat162float(p.v[key + d]);
    }
    for (int d = 0; d < D; d++)
        p.out[((size_t)(first + i) * H + h) * D + d] =
            __float2bfloat16(sum[d] / (float)p.max_length);
}

/* Rows `first` .. `first` + 63 of a sequence to shared memory; those after its last row are zeros.
 */
__device__ static void load_rows(bf16 *to, const bf16 *sequence, int first, int length) {
    for (int i = threadIdx.x; i < ROWS * D / 8; i += THREADS) {
        int row = first + i / 8;
        bool is_there = row < length;
        cp_async_16(&to[i / 8 * LINE + i % 8 * 8],
                    &sequence[(size_t)(is_there ? row : 0) * H * D + i % 8 * 8], is_there);
    }
}

/* As in program 7. */
__device__ static void multiply_keys(float scores[8][4], const uint32_t fq[4][4], const bf16 *ks) {
    int lane = threadIdx.x % 32, matrix = lane / 8, line = lane % 8;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int d = 0; d < 4; d++) {
            uint32_t fk[4];
            ldmatrix_x4(fk, &ks[(16 * j + matrix / 2 * 8 + line) * LINE + 16 * d + matrix % 2 * 8]);
            mma_m16n8k16(scores[2 * j], fq[d], fk[0], fk[1]);
            mma_m16n8k16(scores[2 * j + 1], fq[d], fk[2], fk[3]);
        }
}

__device__ static void multiply_values(float out[8][4], const float p[8][4], const bf16 *vs) {
    int lane = threadIdx.x % 32, matrix = lane / 8, line = lane % 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
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

/* Scores become silu(alpha score); on the diagonal tile, those of later keys become zero. */
__device__ static void silu_tile(float scores[8][4], float alpha, bool is_diagonal) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = 16 * warp + lane / 4 + e / 2 * 8, key = 8 * j + lane % 4 * 2 + e % 2;
            float s = silu(alpha * scores[j][e]);
            scores[j][e] = is_diagonal && key > row ? 0 : s;
        }
}

__global__ void __launch_bounds__(THREADS) hstu_fused(problem p) {
    __shared__ __align__(16) bf16 ks[2][KEYS * LINE], vs[2][KEYS * LINE];
    int b = blockIdx.z, h = blockIdx.y, first = p.offsets[b], length = p.offsets[b + 1] - first;
    int last = gridDim.x - 1 - blockIdx.x,
        row0 = last * ROWS; /* the tile on the diagonal is number `last`, too */
    if (row0 >= length) return;
    const bf16 *k = &p.k[((size_t)first * H + h) * D], *v = &p.v[((size_t)first * H + h) * D];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, matrix = lane / 8, line = lane % 8;
    uint32_t fq[4][4];
    float sums[8][4] = {{0}}, scale = 1 / (float)p.max_length;

    load_rows(ks[1], &p.q[((size_t)first * H + h) * D], row0, length);
    cp_async_commit();
    load_rows(ks[0], k, 0, length);
    load_rows(vs[0], v, 0, length);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
#pragma unroll
    for (int d = 0; d < 4; d++)
        ldmatrix_x4(fq[d],
                    &ks[1][(16 * warp + matrix % 2 * 8 + line) * LINE + 16 * d + matrix / 2 * 8]);
    for (int tile = 0; tile <= last; tile++) {
        float scores[8][4] = {{0}};
        cp_async_wait<0>();
        __syncthreads();
        if (tile < last) {
            load_rows(ks[(tile + 1) % 2], k, (tile + 1) * KEYS, length);
            load_rows(vs[(tile + 1) % 2], v, (tile + 1) * KEYS, length);
            cp_async_commit();
        }
        multiply_keys(scores, fq, ks[tile % 2]);
        silu_tile(scores, p.alpha, tile == last);
        multiply_values(sums, scores, vs[tile % 2]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = row0 + 16 * warp + lane / 4 + 8 * r;
        if (row >= length) continue;
        uint32_t *out = (uint32_t *)&p.out[((size_t)(first + row) * H + h) * D];
#pragma unroll
        for (int j = 0; j < 8; j++)
            out[4 * j + lane % 4] = pack(scale * sums[j][2 * r], scale * sums[j][2 * r + 1]);
    }
}

static void launch_plain(void *ctx) {
    problem *p = (problem *)ctx;
    hstu_plain<<<dim3((p->max_length + 63) / 64, H, p->n_sequences), 64>>>(*p);
}

static void launch_fused(void *ctx) {
    problem *p = (problem *)ctx;
    hstu_fused<<<dim3((p->max_length + ROWS - 1) / ROWS, H, p->n_sequences), THREADS>>>(*p);
}

/* Row i of a sequence and head by the formula, in float64. */
static void hstu_row(const uint16_t *q, const uint16_t *k, const uint16_t *v, int i,
                     const problem *p, double *out) {
    for (int d = 0; d < D; d++)
        out[d] = 0;
    for (int j = 0; j <= i; j++) {
        double x = 0;
        for (int d = 0; d < D; d++)
            x +=
                (double)bf16_value(q[(size_t)i * H * D + d]) * bf16_value(k[(size_t)j * H * D + d]);
        x *= p->alpha;
        for (int d = 0; d < D; d++)
            out[d] += x / (1 + exp(-x)) * bf16_value(v[(size_t)j * H * D + d]) / p->max_length;
    }
}

static double check(const char *name, const problem *p, const int *offsets, uint16_t *const host[3],
                    const uint16_t *out) {
    double worst = 0, want[D];
    float got[D];
    int step = p->max_length > 1024
                   ? 293
                   : 29; /* primes: every place in a tile, of some sequence and head */
    for (int b = 0; b < p->n_sequences; b++)
        for (int h = 0; h < H; h++) {
            int length = offsets[b + 1] - offsets[b];
            size_t at = ((size_t)offsets[b] * H + h) * D;
            for (int i = (7 * b + 3 * h) % 29; i < length;
                 i = i + step < length || i == length - 1 ? i + step : length - 1) {
                hstu_row(host[0] + at, host[1] + at, host[2] + at, i, p,
                         want); /* the last row, too */
                for (int d = 0; d < D; d++)
                    got[d] = bf16_value(out[at + (size_t)i * H * D + d]);
                double e = compare(name, got, want, D, 2e-2);
                if (e > worst) worst = e;
            }
        }
    return worst;
}

/* Lengths: all max_length, or 1..max_length at random. */
static void run(const machine *m, int n_sequences, int max_length, int is_jagged) {
    static const struct {
        const char *name;
        void (*launch)(void *);
    } ways[] = {{"a thread a row", launch_plain}, {"tiles in tensor cores", launch_fused}};
    problem p = {n_sequences, max_length, NULL, NULL, NULL, NULL, NULL, 1 / sqrtf(D)};
    int *offsets = (int *)host_memory((size_t)(n_sequences + 1) * sizeof *offsets);
    uint64_t seed = 10;
    uint16_t *host[3];
    double pairs = 0;
    offsets[0] = 0;
    for (int b = 0; b < n_sequences; b++) {
        int length = is_jagged ? 1 + (int)((random_float(&seed) * 0.5f + 0.5f) * (max_length - 1))
                               : max_length;
        offsets[b + 1] = offsets[b] + length;
        pairs += (double)length * length / 2;
    }
    size_t n = (size_t)offsets[n_sequences] * H * D;
    for (int i = 0; i < 3; i++) {
        host[i] = (uint16_t *)host_memory(n * 2);
        for (size_t j = 0; j < n; j++)
            host[i][j] = bf16_of(2 * random_float(&seed));
    }
    uint16_t *out = (uint16_t *)host_memory(n * 2);
    p.offsets = (int *)on_gpu(offsets, (size_t)(n_sequences + 1) * sizeof *offsets);
    p.q = (bf16 *)on_gpu(host[0], n * 2), p.k = (bf16 *)on_gpu(host[1], n * 2),
    p.v = (bf16 *)on_gpu(host[2], n * 2);
    printf("%d sequences of %s%d, %d tokens\n", n_sequences, is_jagged ? "1.." : "", max_length,
           offsets[n_sequences]);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        p.out = (bf16 *)on_gpu(NULL, n * 2);
        double ms = time_ms(ways[w].launch, &p);
        from_gpu(out, p.out, n * 2);
        CHECK(cudaFree(p.out));
        report(m, ways[w].name, ms, 8.0 * n, 4.0 * H * D * pairs, m->tensor_flops,
               check(ways[w].name, &p, offsets, host, out));
    }
    CHECK(cudaFree(p.offsets));
    CHECK(cudaFree(p.q));
    CHECK(cudaFree(p.k));
    CHECK(cudaFree(p.v));
    free(offsets), free(host[0]), free(host[1]), free(host[2]), free(out);
}

int main(void) {
    machine m = find_machine();
    title(&m, "8. HSTU attention, 4 heads of 64, causal");
    run(&m, 32, 1024, 0);
    run(&m, 32, 4096, 0);
    run(&m, 128, 512, 1);
    return 0;
}
