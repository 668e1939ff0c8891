/* The k best rows of a corpus of 16 bits for up to 64 queries at a time (rank_args in ops.h): the
 * product on tensor cores with the selection behind it, so that no score is stored.
 *
 * One block a multiprocessor reads every n-th 256 rows of the corpus, each warp 32 of them straight
 * into the registers of the product: the columns of a row are multiplied in another order, the same
 * one for queries, so that a thread's columns are 16 contiguous bytes.  Scores that beat a query's
 * threshold, the k-th best so far of the block, join a list in shared memory, unless the row is one
 * that the query has seen; a list that might overflow is sorted, cut to k, and gives the next
 * threshold.  A second kernel merges the lists of all blocks.  Bound by the bytes of the corpus:
 * few scores pass once the first rows are read. */
#include <math.h>

#include "cuda/core/act.cuh"
#include "cuda/core/ptx.cuh"
#include "cuda/core/reduce.cuh"
#include "cuda/ops/rank_keys.cuh"

enum {
    QUERIES = 64, /* of a block */
    SCAN_THREADS = 256,
    WARP_ROWS = 32, /* of a round */
    BLOCK_ROWS = SCAN_THREADS / 32 * WARP_ROWS,
    AT_ONCE = BLOCK_ROWS / 2, /* keys that a list may get between two looks at its length */
    LIST = 256,               /* keys of a list */
    MOST = LIST - AT_ONCE,
    CHUNK = 64,                                  /* columns */
    FRAGMENTS = CHUNK / 16 * (QUERIES / 8) * 32, /* of queries, for a chunk */
    MERGE_THREADS = 512,
    MERGE_KEYS = 4096,
    MERGE_ROUND = 2048
};
static_assert(MOST + MERGE_ROUND <= MERGE_KEYS, "no room for a round");

typedef struct topk_job {
    rank_args a;
    key *lists; /* (blocks, n_queries, k), best first; 0: no row */
    int n_blocks;
    int32_t *best;     /* (n_queries, k) */
    float *best_score; /* (n_queries, k) */
} topk_job;

/* Shared memory of a scan: the queries as operands of the product follow. */
typedef struct topk_room {
    key lists[QUERIES][LIST];
    key worst[QUERIES]; /* what a key must beat */
    int n[QUERIES];
} topk_room;

/* A thread's columns of four rows of a chunk: row + 8 i, its columns 8 t .. 8 t + 7 of both
 * halves. */
template <typename T>
__device__ static inline void topk_load(const rank_args &a, int64_t row, int chunk,
                                        uint4 (&to)[4][2]) {
    int64_t last = a.n_corpus - 1;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t at = row + 8 * i < last ? row + 8 * i : last;
        const T *from = (const T *)a.corpus_act + at * a.dim + chunk * CHUNK + threadIdx.x % 4 * 8;
        to[i][0] = __ldg((const uint4 *)from);
        to[i][1] = __ldg((const uint4 *)(from + CHUNK / 2));
    }
}

/* acc[m]: scores of rows 16 m .. 16 m + 15 of the warp. */
template <typename T>
__device__ static inline void topk_multiply(const uint4 (&rows)[4][2], const uint2 *queries,
                                            float (&acc)[2][QUERIES / 8][4]) {
#pragma unroll
    for (int s = 0; s < CHUNK / 16; s++) {
        uint32_t left[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const uint4 &x = rows[2 * m][s / 2], &y = rows[2 * m + 1][s / 2];
            left[m][0] = s % 2 == 0 ? x.x : x.z;
            left[m][1] = s % 2 == 0 ? y.x : y.z;
            left[m][2] = s % 2 == 0 ? x.y : x.w;
            left[m][3] = s % 2 == 0 ? y.y : y.w;
        }
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++) {
            uint2 b = queries[(s * (QUERIES / 8) + n) * 32 + threadIdx.x % 32];
            mma_m16n8k16<T>(acc[0][n], left[0], b.x, b.y);
            mma_m16n8k16<T>(acc[1][n], left[1], b.x, b.y);
        }
    }
}

/* Is the row in the query's list, which ascends? */
__device__ static bool topk_has_seen(const rank_args &a, int query, int32_t row) {
    if (a.seen_offsets == NULL) return false;
    int low = a.seen_offsets[query], high = a.seen_offsets[query + 1];
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (a.seen[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low < a.seen_offsets[query + 1] && a.seen[low] == row;
}

/* A score that passed the threshold.  Returns whether its list must be cut before it gets AT_ONCE
 * more.  Not inlined: 64 copies of it would not fit the instruction cache. */
__device__ static __noinline__ bool topk_push(const rank_args &a, topk_room *room, int first_query,
                                              int query, int64_t row, float score) {
    if (row >= a.n_corpus || !(score > -INFINITY)) return false;
    key mine = key_of(score, (int32_t)row);
    if (mine <= room->worst[query] || topk_has_seen(a, first_query + query, (int32_t)row))
        return false;
    int at = atomicAdd(&room->n[query], 1);
    room->lists[query][at] = mine;
    return at + 1 > MOST;
}

/* A warp sorts a list, best first, and cuts it to k. */
__device__ static void topk_cut(topk_room *room, int query, int k) {
    key *list = room->lists[query];
    int lane = (int)threadIdx.x % 32, n = room->n[query];
    for (int i = n + lane; i < LIST; i += 32)
        list[i] = 0;
    for (int run = 2; run <= LIST; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            __syncwarp();
            for (int i = lane; i < LIST / 2; i += 32) {
                int low = 2 * i - (i & (step - 1));
                key x = list[low], y = list[low + step];
                bool is_descending = (low & run) == 0;
                if ((x < y) == is_descending) list[low] = y, list[low + step] = x;
            }
        }
    }
    __syncwarp();
    if (lane != 0) return;
    room->n[query] = n < k ? n : k;
    room->worst[query] = n < k ? 0 : list[k - 1];
}

/* The thread's queries are 8 n + 2 t and the next one. */
__device__ static inline void topk_thresholds(const topk_room *room, int n_queries,
                                              float (&least)[QUERIES / 4]) {
#pragma unroll
    for (int i = 0; i < QUERIES / 4; i++) {
        int query = i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
        key worst = room->worst[query];
        least[i] = query >= n_queries ? INFINITY : worst == 0 ? -INFINITY : key_score(worst);
    }
}

/* Half of a round's scores.  A score that is infinite passes only for queries there are. */
__device__ static inline bool topk_offer(const rank_args &a, topk_room *room, int first_query,
                                         int n_queries, int64_t row,
                                         const float (&acc)[QUERIES / 8][4],
                                         const float (&least)[QUERIES / 4]) {
    bool is_full = false, is_any = false;
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++)
        is_any |= acc[i / 4][i % 4] >= least[i / 4 * 2 + i % 2];
    if (!is_any) return false;
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++) {
        int n = i / 4, e = i % 4;
        if (acc[n][e] >= least[2 * n + e % 2]) {
            int query = 8 * n + (int)threadIdx.x % 4 * 2 + e % 2;
            if (query < n_queries)
                is_full |= topk_push(a, room, first_query, query, row + e / 2 * 8, acc[n][e]);
        }
    }
    return is_full;
}

template <typename T>
static __global__ void __launch_bounds__(SCAN_THREADS, 1)
    topk_scan_any_kernel(const __grid_constant__ topk_job j) {
    extern __shared__ char shared[];
    topk_room *room = (topk_room *)shared;
    uint2 *queries = (uint2 *)(room + 1);
    const rank_args &a = j.a;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n_chunks = a.dim / CHUNK;
    int first_query = (int)blockIdx.y * QUERIES,
        n_queries = min(a.n_queries - first_query, QUERIES);
    for (int i = (int)threadIdx.x; i < n_chunks * FRAGMENTS; i += SCAN_THREADS) {
        int query = i / 32 % (QUERIES / 8) * 8 + i % 32 / 4,
            s = i / (QUERIES / 8 * 32) % (CHUNK / 16);
        int column = i / FRAGMENTS * CHUNK + s / 2 * (CHUNK / 2) + i % 4 * 8 + s % 2 * 4;
        uint2 x = make_uint2(0, 0);
        if (query < n_queries)
            x = *(const uint2 *)((const T *)a.query + (int64_t)(first_query + query) * a.dim +
                                 column);
        queries[i] = x;
    }
    for (int q = (int)threadIdx.x; q < QUERIES; q += SCAN_THREADS) {
        room->n[q] = 0;
        room->worst[q] = 0;
    }
    __syncthreads();
    float least[QUERIES / 4];
    topk_thresholds(room, n_queries, least);
    int64_t row0 = (int64_t)blockIdx.x * BLOCK_ROWS, step = (int64_t)j.n_blocks * BLOCK_ROWS;
    int64_t own = warp * WARP_ROWS + lane / 4; /* the thread's first row of a round */
    uint4 rows[4][2], next[4][2];
    if (row0 < a.n_corpus) topk_load<T>(a, row0 + own, 0, next);
    for (; row0 < a.n_corpus; row0 += step) {
        float acc[2][QUERIES / 8][4] = {};
        for (int c = 0; c < n_chunks; c++) {
            bool is_last = c + 1 == n_chunks;
#pragma unroll
            for (int i = 0; i < 8; i++)
                rows[i / 2][i % 2] = next[i / 2][i % 2];
            if (!is_last || row0 + step < a.n_corpus)
                topk_load<T>(a, (is_last ? row0 + step : row0) + own, is_last ? 0 : c + 1, next);
            topk_multiply<T>(rows, queries + c * FRAGMENTS, acc);
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
            bool is_full =
                topk_offer(a, room, first_query, n_queries, row0 + own + 16 * m, acc[m], least);
            if (!__syncthreads_or(is_full)) continue;
            for (int q = warp; q < QUERIES; q += SCAN_THREADS / 32)
                if (room->n[q] > MOST) topk_cut(room, q, a.k);
            __syncthreads();
            topk_thresholds(room, n_queries, least);
        }
    }
    __syncthreads();
    for (int q = warp; q < n_queries; q += SCAN_THREADS / 32) {
        topk_cut(room, q, a.k);
        __syncwarp();
        key *to = j.lists + ((int64_t)blockIdx.x * a.n_queries + first_query + q) * a.k;
        for (int i = lane; i < a.k; i += 32)
            to[i] = room->lists[q][i];
    }
}

/* One block for each query merges its lists: keys that beat the k-th best so far join, and all are
 * sorted and cut to k where a further round might not fit. */
static __global__ void __launch_bounds__(MERGE_THREADS) topk_merge_any_kernel(topk_job j) {
    __shared__ key keys[MERGE_KEYS];
    __shared__ int n_shared;
    int k = j.a.k, n = 0, n_all = j.n_blocks * k;
    key worst = 0;
    if (threadIdx.x == 0) n_shared = 0;
    __syncthreads();
    for (int first = 0; first < n_all; first += MERGE_ROUND) {
        for (int i = first + (int)threadIdx.x; i < min(first + MERGE_ROUND, n_all);
             i += MERGE_THREADS) {
            key mine = j.lists[((int64_t)(i / k) * j.a.n_queries + blockIdx.x) * k + i % k];
            if (mine > worst) keys[atomicAdd(&n_shared, 1)] = mine;
        }
        __syncthreads();
        n = n_shared;
        if (n + MERGE_ROUND > MERGE_KEYS || first + MERGE_ROUND >= n_all) {
            sort_keys<MERGE_THREADS>(keys, n);
            n = n < k ? n : k;
            worst = n == k ? keys[k - 1] : 0;
        }
        __syncthreads(); /* all have read the count and the worst */
        if (threadIdx.x == 0) n_shared = n;
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < k; i += MERGE_THREADS) {
        j.best[(int64_t)blockIdx.x * k + i] = i < n ? key_row(keys[i]) : -1;
        j.best_score[(int64_t)blockIdx.x * k + i] = i < n ? key_score(keys[i]) : -INFINITY;
    }
}

static size_t scan_bytes(const rank_args *a) {
    return sizeof(topk_room) + (size_t)(a->dim / CHUNK) * FRAGMENTS * sizeof(uint2);
}

bool cuda_topk_can(const backend *be, const rank_args *a) {
    return be->act != ACT_F32 && a->corpus_act != NULL && a->target == NULL && a->k > 0 &&
           a->k <= MOST && a->dim % CHUNK == 0 && (uintptr_t)a->corpus_act % 16 == 0 &&
           (uintptr_t)a->query % 8 == 0 && scan_bytes(a) <= (size_t)cuda_of(be)->max_block_shared;
}

template <typename T> static status scan(backend *be, const topk_job &j) {
    size_t bytes = scan_bytes(&j.a);
    dim3 grid((unsigned)j.n_blocks, (unsigned)cuda_div_up(j.a.n_queries, QUERIES));
    CUDA_TRY(CUDA_ALLOW_SHARED(topk_scan_any_kernel<T>, bytes));
    topk_scan_any_kernel<T><<<grid, SCAN_THREADS, bytes, cuda_of(be)->stream>>>(j);
    return cuda_launched("the search of a corpus");
}

status cuda_topk(backend *be, const rank_args *a) {
    topk_job j = {};
    cudaStream_t stream = cuda_of(be)->stream;
    int64_t n_rounds = cuda_div_up(a->n_corpus, BLOCK_ROWS);
    size_t n = (size_t)a->n_queries * (size_t)a->k;
    char *memory = NULL;
    j.a = *a;
    j.n_blocks = (int)(n_rounds < cuda_of(be)->n_multiprocessors ? n_rounds
                                                                 : cuda_of(be)->n_multiprocessors);
    size_t lists = cuda_align((size_t)j.n_blocks * n * sizeof(key)), best = cuda_align(n * 4);
    TRY(cuda_scratch(be, lists + 2 * best, (void **)&memory));
    j.lists = (key *)memory;
    j.best = (int32_t *)(memory + lists);
    j.best_score = (float *)(memory + lists + best);
    TRY(be->act == ACT_BF16 ? scan<__nv_bfloat16>(be, j) : scan<__half>(be, j));
    topk_merge_any_kernel<<<(unsigned)a->n_queries, MERGE_THREADS, 0, stream>>>(j);
    TRY(cuda_launched("the merge of a search"));
    TRY(cuda_copy_out(be, a->best, j.best, n * sizeof *a->best));
    return cuda_copy_out(be, a->best_score, j.best_score, n * sizeof *a->best_score);
}
