/* The scan of topk.cuh for SM 8.0 and later.
 *
 * A warp takes tiles of 32 rows, straight from memory into the registers of the product, one tile
 * ahead.  The columns of a row are multiplied in another order, the same one for queries, so that a
 * thread's columns are 16 contiguous bytes.  Queries of 64 columns stay in registers.  Bound by
 * the bytes of the corpus. */
#include "cuda/core/ptx.cuh"
#include "cuda/ops/topk.cuh"

enum {
    ANY_THREADS = 256,
    ANY_WARPS = ANY_THREADS / 32,
    ANY_TILE = 32, /* rows */
    SLABS = TOPK_QUERIES / 16,
    STEPS = TOPK_COLUMNS / 16 /* of a product over a chunk */
};

/* A thread's columns of four rows of a chunk: row + 8 i, its columns 8 t .. 8 t + 7 of both
 * halves.  Rows beyond the last are the last again. */
__device__ static inline void load_rows(const rank_args &a, int64_t row, int chunk,
                                        uint4 (&to)[4][2]) {
    int64_t last = a.n_corpus - 1;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t at = row + 8 * i < last ? row + 8 * i : last;
        const uint16_t *from = (const uint16_t *)a.corpus_act + at * a.dim + chunk * TOPK_COLUMNS +
                               threadIdx.x % 4 * 8;
        to[i][0] = __ldcs((const uint4 *)from);
        to[i][1] = __ldcs((const uint4 *)(from + TOPK_COLUMNS / 2));
    }
}

/* Queries as left operands, their columns in the order of the rows'. */
__device__ static inline void load_queries(const rank_args &a, int first, int chunk,
                                           uint32_t (&to)[SLABS][STEPS][4]) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < SLABS * STEPS * 2; i++) {
        int s = i / 2 % STEPS, slab = i / 2 / STEPS,
            query = first + slab * 16 + i % 2 * 8 + lane / 4;
        int column = chunk * TOPK_COLUMNS + s / 2 * (TOPK_COLUMNS / 2) + lane % 4 * 8 + s % 2 * 4;
        uint2 x = make_uint2(0, 0);
        if (query < a.n_queries)
            x = __ldg((const uint2 *)((const uint16_t *)a.query + (int64_t)query * a.dim + column));
        to[slab][s][i % 2] = x.x;
        to[slab][s][2 + i % 2] = x.y;
    }
}

template <typename T>
__device__ static inline void multiply(const uint4 (&rows)[4][2],
                                       const uint32_t (&queries)[SLABS][STEPS][4],
                                       float (&sums)[SLABS][ANY_TILE / 2]) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 &x = rows[i][s / 2];
            uint32_t low = s % 2 == 0 ? x.x : x.z, high = s % 2 == 0 ? x.y : x.w;
#pragma unroll
            for (int slab = 0; slab < SLABS; slab++)
                mma_m16n8k16<T>(sums[slab] + 4 * i, queries[slab][s], low, high);
        }
    }
}

/* Blocks of a row of the grid share 64 queries. */
template <bool IS_SAMPLE>
static __global__ void __launch_bounds__(ANY_THREADS, 1)
    topk_scan_any_kernel(const __grid_constant__ topk_job j, bool is_half) {
    __shared__ topk_buffer buffers[ANY_WARPS];
    const rank_args &a = j.a;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int n_chunks = a.dim / TOPK_COLUMNS, first_query = (int)blockIdx.y * TOPK_QUERIES;
    int query = first_query + lane / 4; /* the thread's first */
    topk_buffer *buffer = &buffers[warp];
    uint32_t queries[SLABS][STEPS][4];
    float least[SLABS][2];
    topk_best<1> best[SLABS][2];
    if (lane == 0) buffer->n = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < SLABS * 2; i++) {
        least[i / 2][i % 2] = IS_SAMPLE ? 0 : topk_least(j, query + i * 8);
        topk_best_init(best[i / 2][i % 2]);
    }
    load_queries(a, first_query, 0, queries);
    uint4 rows[4][2], next[4][2];
    int64_t i = (int64_t)blockIdx.x * ANY_WARPS + warp, step = (int64_t)gridDim.x * ANY_WARPS;
    if (i < j.n_tiles) load_rows(a, topk_tile(j, i) * ANY_TILE + lane / 4, 0, next);
    for (; i < j.n_tiles; i += step) {
        int64_t row = topk_tile(j, i) * ANY_TILE;
        float sums[SLABS][ANY_TILE / 2] = {};
        for (int c = 0; c < n_chunks; c++) {
            bool is_last = c + 1 == n_chunks;
#pragma unroll
            for (int r = 0; r < 8; r++)
                rows[r / 2][r % 2] = next[r / 2][r % 2];
            if (!is_last)
                load_rows(a, row + lane / 4, c + 1, next);
            else if (i + step < j.n_tiles)
                load_rows(a, topk_tile(j, i + step) * ANY_TILE + lane / 4, 0, next);
            if (n_chunks > 1) load_queries(a, first_query, c, queries);
            if (is_half)
                multiply<__half>(rows, queries, sums);
            else
                multiply<__nv_bfloat16>(rows, queries, sums);
        }
        row += lane % 4 * 2;
#pragma unroll
        for (int s = 0; s < SLABS; s++) {
            if (IS_SAMPLE)
                topk_keep_best(best[s], row, sums[s]);
            else
                topk_collect(j, buffer, query + 16 * s, row, sums[s], least[s][0], least[s][1]);
        }
    }
    if (!IS_SAMPLE) {
        topk_flush(j, buffer);
        return;
    }
    int group = ((int)blockIdx.x * ANY_WARPS + warp) * 4 + lane % 4;
#pragma unroll
    for (int s = 0; s < SLABS * 2; s++)
        topk_store_best(j, best[s / 2][s % 2], query + 8 * s, group);
}

static status scan(backend *be, const topk_job *j) {
    dim3 grid((unsigned)cuda_of(be)->n_multiprocessors,
              (unsigned)cuda_div_up(j->a.n_queries, TOPK_QUERIES));
    cudaStream_t stream = cuda_of(be)->stream;
    bool is_half = be->act == ACT_F16;
    if (j->is_sample)
        topk_scan_any_kernel<true><<<grid, ANY_THREADS, 0, stream>>>(*j, is_half);
    else
        topk_scan_any_kernel<false><<<grid, ANY_THREADS, 0, stream>>>(*j, is_half);
    return cuda_launched("the search of a corpus");
}

topk_scan topk_scan_any(const backend *be, const rank_args *a) {
    (void)a;
    return (topk_scan){ANY_TILE, 2 * TOPK_QUERIES, cuda_of(be)->n_multiprocessors * ANY_WARPS * 4,
                       scan};
}
