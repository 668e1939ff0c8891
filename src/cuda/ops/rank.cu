/* rank, as ops.h states it.
 *
 * Every score is a sum over the columns in order, one fused multiply-add after the other, wherever
 * it is computed: the score of a row has the same bits as a target, as a competitor and as a seen
 * row, so that comparisons are exact.  This is why the product is our own: tiles of 64 queries by
 * 256 rows, a warp for 8 queries and each thread with 8 x 8 sums, bound by the multiply-adds: for
 * 64 of them a warp reads shared memory 10 times (2 of the reads are the same for all lanes), while
 * the next 8 columns are on their way to registers.
 *
 * Ranks: each tile counts the rows that beat the targets, then one warp for each query subtracts
 * the seen rows.  No scores are stored.  The k best: scores of a piece of the corpus go to scratch
 * memory, and one block for each query keeps its best in shared memory.  A corpus of 16 bits is
 * searched without storing scores (topk.cu). */
#include "cuda/core/kernel.cuh"
#include "cuda/ops/topk.cuh"

enum { QUERY_TILE = 64, ROW_TILE = 256, DEPTH = 8, RANK_THREADS = 256, SIDE = 8, PACK = 4 };
static_assert(QUERY_TILE / SIDE * WARP == RANK_THREADS && ROW_TILE == WARP * SIDE, "a warp a row");

/* The k best: 32 KiB of keys, room for the best and one round of new ones. */
enum { BEST_THREADS = 512, SELECT_LOADS = 4, SELECT_ROUND = BEST_THREADS * SELECT_LOADS };
enum { RANK_MAX_K = 1024, N_KEYS = 4096 };
static_assert(RANK_MAX_K + SELECT_ROUND <= N_KEYS, "no room for a round");

/* Scores in scratch memory: 16 MiB, but at least 64 queries if there are that many. */
enum { MAX_SCORES = 1 << 22, MIN_GROUP = QUERY_TILE, MAX_GROUP = 1 << 20 };

typedef struct rank_job {
    rank_args a;
    const float *query;        /* (n_queries, dim) */
    float *own;                /* (n_queries): the target's score */
    int32_t *above, *rank;     /* (n_queries) each */
    int32_t first_query;       /* of the group at hand */
    int32_t n_group;           /* queries of it */
    int32_t first_row, n_rows; /* of the corpus: the piece at hand */
    float *scores;             /* (n_group, n_rows) */
    const uint64_t **bits;     /* (n_queries): rank_args.allowed on the device; or NULL */
    key *kept;                 /* (n_queries, k): the best so far, best first */
    int32_t *n_kept;           /* (n_queries) */
    int32_t *best;             /* (n_queries, k) */
    float *best_score;         /* (n_queries, k) */
} rank_job;

template <typename T>
static __global__ void rank_convert_any_kernel(int64_t n, const T *from, float *to) {
    int64_t i = (int64_t)blockIdx.x * RANK_THREADS + threadIdx.x;
    if (i < n) to[i] = to_float(from[i]);
}

__device__ static inline float score_of(const rank_job &j, int64_t query, int64_t row) {
    const float *x = j.query + query * j.a.dim, *y = j.a.corpus + row * j.a.dim;
    float sum = 0;
    for (int c = 0; c < j.a.dim; c++)
        sum = fmaf(x[c], y[c], sum);
    return sum;
}

/* Loads DEPTH columns of some rows to registers; zeros outside, which change no sum. */
template <int ROWS>
__device__ static inline void fetch_tile(float (&to)[ROWS * DEPTH / RANK_THREADS],
                                         const float *from, int64_t first, int64_t end, int column,
                                         int dim) {
    int c = column + (int)threadIdx.x % DEPTH;
    int64_t row = first + threadIdx.x / DEPTH;
#pragma unroll
    for (int s = 0; s < ROWS * DEPTH / RANK_THREADS; s++, row += RANK_THREADS / DEPTH)
        to[s] = row < end && c < dim ? from[row * dim + c] : 0;
}

/* And from there to shared memory, transposed: four rows of eight columns a warp, each in its own
 * bank. */
template <int ROWS>
__device__ static inline void put_tile(float (*to)[ROWS + PACK],
                                       const float (&from)[ROWS * DEPTH / RANK_THREADS]) {
#pragma unroll
    for (int s = 0; s < ROWS * DEPTH / RANK_THREADS; s++)
        to[threadIdx.x % DEPTH][threadIdx.x / DEPTH + s * (RANK_THREADS / DEPTH)] = from[s];
}

/* A thread's place in the tile: the number of its s-th query and of its r-th row. */
__device__ static inline int tile_query(int s) {
    return (int)threadIdx.x / WARP * SIDE + s;
}

__device__ static inline int tile_row(int r) {
    return r / PACK * (WARP * PACK) + (int)threadIdx.x % WARP * PACK + r % PACK;
}

/* sum[s][r]: of the thread's queries and rows. */
__device__ static inline void score_tile(const rank_job &j, int64_t first_query, int64_t end_query,
                                         int64_t first_row, int64_t end_row,
                                         float (&sum)[SIDE][SIDE]) {
    __shared__ alignas(16) float query[DEPTH][QUERY_TILE + PACK];
    __shared__ alignas(16) float corpus[DEPTH][ROW_TILE + PACK];
    float next_query[QUERY_TILE * DEPTH / RANK_THREADS], next_row[ROW_TILE * DEPTH / RANK_THREADS];
    fetch_tile<QUERY_TILE>(next_query, j.query, first_query, end_query, 0, j.a.dim);
    fetch_tile<ROW_TILE>(next_row, j.a.corpus, first_row, end_row, 0, j.a.dim);
    for (int column = 0; column < j.a.dim; column += DEPTH) {
        put_tile<QUERY_TILE>(query, next_query);
        put_tile<ROW_TILE>(corpus, next_row);
        __syncthreads();
        if (column + DEPTH < j.a.dim) {
            int next = column + DEPTH;
            fetch_tile<QUERY_TILE>(next_query, j.query, first_query, end_query, next, j.a.dim);
            fetch_tile<ROW_TILE>(next_row, j.a.corpus, first_row, end_row, next, j.a.dim);
        }
#pragma unroll
        for (int c = 0; c < DEPTH; c++) {
            pack<float, PACK> a[SIDE / PACK], b[SIDE / PACK];
#pragma unroll
            for (int h = 0; h < SIDE / PACK; h++) {
                a[h] = *(const pack<float, PACK> *)&query[c][tile_query(h * PACK)];
                b[h] = *(const pack<float, PACK> *)&corpus[c][tile_row(h * PACK)];
            }
#pragma unroll
            for (int s = 0; s < SIDE; s++)
#pragma unroll
                for (int r = 0; r < SIDE; r++)
                    sum[s][r] = fmaf(a[s / PACK].v[s % PACK], b[r / PACK].v[r % PACK], sum[s][r]);
        }
        __syncthreads();
    }
}

static __global__ void rank_own_any_kernel(rank_job j) {
    int64_t q = (int64_t)blockIdx.x * RANK_THREADS + threadIdx.x;
    if (q < j.a.n_queries) j.own[q] = score_of(j, q, j.a.target[q]);
}

/* A NaN score beats the target, and a target's NaN score beats nothing: a broken model must not
 * look good. */
__device__ static inline bool is_above(float score, int64_t row, float own, int64_t target) {
    return row < target ? !(score < own) : row > target && !(score <= own);
}

static __global__ void __launch_bounds__(RANK_THREADS, 2) rank_count_any_kernel(rank_job j) {
    int64_t first_query = (int64_t)blockIdx.y * QUERY_TILE,
            first_row = (int64_t)blockIdx.x * ROW_TILE;
    int n_rows = j.a.n_corpus - (int)first_row;
    float sum[SIDE][SIDE] = {};
    score_tile(j, first_query, j.a.n_queries, first_row, j.a.n_corpus, sum);
#pragma unroll
    for (int s = 0; s < SIDE; s++) {
        int64_t q = first_query + tile_query(s);
        if (q >= j.a.n_queries) return; /* the whole warp */
        float own = j.own[q];
        int target = j.a.target[q] - (int)first_row; /* of two int32: it fits */
        int n = 0;
#pragma unroll
        for (int r = 0; r < SIDE; r++)
            n += tile_row(r) < n_rows && is_above(sum[s][r], tile_row(r), own, target);
        n = warp_sum(n);
        if (threadIdx.x % WARP == 0 && n > 0) atomicAdd(&j.above[q], n);
    }
}

/* One warp for each query subtracts its seen rows from the count, once even if listed twice.  A
 * target whose score is NaN ranks below all other rows, seen or not. */
static __global__ void __launch_bounds__(RANK_THREADS) rank_finish_any_kernel(rank_job j) {
    int64_t q = (int64_t)blockIdx.x * (RANK_THREADS / WARP) + threadIdx.x / WARP;
    if (q >= j.a.n_queries) return;
    float own = j.own[q];
    int32_t target = j.a.target[q], n_seen_above = 0;
    int32_t first = j.a.seen_offsets != NULL ? j.a.seen_offsets[q] : 0;
    int32_t end = j.a.seen_offsets != NULL ? j.a.seen_offsets[q + 1] : 0;
    bool is_seen = own == -INFINITY;
    for (int32_t i = first + (int32_t)threadIdx.x % WARP; i < end; i += WARP) {
        int32_t row = j.a.seen[i];
        if (i > first && j.a.seen[i - 1] == row) continue;
        is_seen |= row == target;
        n_seen_above += is_above(score_of(j, q, row), row, own, target);
    }
    is_seen = __any_sync(0xffffffffu, is_seen);
    n_seen_above = isnan(own) ? 0 : warp_sum(n_seen_above);
    if (threadIdx.x % WARP == 0)
        j.rank[q] = is_seen ? j.a.n_corpus + 1 : j.above[q] - n_seen_above + 1;
}

static status find_ranks(backend *be, const rank_job &j) {
    cudaStream_t stream = cuda_of(be)->stream;
    dim3 grid((unsigned)cuda_div_up(j.a.n_corpus, ROW_TILE),
              (unsigned)cuda_div_up(j.a.n_queries, QUERY_TILE));
    unsigned n_blocks = (unsigned)cuda_div_up(j.a.n_queries, RANK_THREADS);
    CUDA_TRY(cudaMemsetAsync(j.above, 0, (size_t)j.a.n_queries * sizeof *j.above, stream));
    rank_own_any_kernel<<<n_blocks, RANK_THREADS, 0, stream>>>(j);
    rank_count_any_kernel<<<grid, RANK_THREADS, 0, stream>>>(j);
    TRY(cuda_launch(be, "the ranks of targets", rank_finish_any_kernel,
                    cuda_div_up(j.a.n_queries, RANK_THREADS / WARP), RANK_THREADS, 0, j));
    return cuda_copy_out(be, j.a.rank, j.rank, (size_t)j.a.n_queries * sizeof *j.a.rank);
}

static __global__ void __launch_bounds__(RANK_THREADS, 2) rank_scores_any_kernel(rank_job j) {
    int64_t in_group = (int64_t)blockIdx.y * QUERY_TILE, in_piece = (int64_t)blockIdx.x * ROW_TILE;
    float sum[SIDE][SIDE] = {};
    score_tile(j, j.first_query + in_group, (int64_t)j.first_query + j.n_group,
               j.first_row + in_piece, (int64_t)j.first_row + j.n_rows, sum);
#pragma unroll
    for (int q = 0; q < SIDE; q++) {
#pragma unroll
        for (int r = 0; r < SIDE; r++) {
            int64_t query = in_group + tile_query(q), row = in_piece + tile_row(r);
            if (query < j.n_group && row < j.n_rows) j.scores[query * j.n_rows + row] = sum[q][r];
        }
    }
}

/* One block for each query of the group excludes its seen rows. */
static __global__ void __launch_bounds__(RANK_THREADS) rank_seen_any_kernel(rank_job j) {
    int64_t q = (int64_t)j.first_query + blockIdx.x;
    float *scores = j.scores + (int64_t)blockIdx.x * j.n_rows;
    int32_t end = j.a.seen_offsets[q + 1];
    for (int32_t i = j.a.seen_offsets[q] + (int32_t)threadIdx.x; i < end; i += RANK_THREADS) {
        int64_t row = (int64_t)j.a.seen[i] - j.first_row;
        if (row >= 0 && row < j.n_rows) scores[row] = -INFINITY;
    }
}

/* Excludes rows that a query of the group does not allow; a column of the grid for each query. */
static __global__ void __launch_bounds__(RANK_THREADS) rank_allowed_any_kernel(rank_job j) {
    const uint64_t *bits = j.bits[j.first_query + blockIdx.x];
    int64_t row = (int64_t)blockIdx.y * RANK_THREADS + threadIdx.x;
    if (row < j.n_rows && !rank_allows(bits, j.first_row + row))
        j.scores[(int64_t)blockIdx.x * j.n_rows + row] = -INFINITY;
}

/* One block for each query: rows that beat the k-th best so far join the keys, which are sorted and
 * cut to k whenever a further round might not fit. */
static __global__ void __launch_bounds__(BEST_THREADS) rank_select_any_kernel(rank_job j) {
    __shared__ key keys[N_KEYS];
    __shared__ int n_shared;
    int64_t q = (int64_t)j.first_query + blockIdx.x;
    const float *scores = j.scores + (int64_t)blockIdx.x * j.n_rows;
    int k = j.a.k, n = j.n_kept[q];
    for (int i = (int)threadIdx.x; i < n; i += BEST_THREADS)
        keys[i] = j.kept[q * k + i];
    if (threadIdx.x == 0) n_shared = n;
    __syncthreads();
    key worst = n == k ? keys[k - 1] : 0;
    for (int64_t first = 0; first < j.n_rows; first += SELECT_ROUND) {
#pragma unroll
        for (int s = 0; s < SELECT_LOADS; s++) {
            int64_t row = first + s * BEST_THREADS + threadIdx.x;
            float score = row < j.n_rows ? scores[row] : -INFINITY;
            if (!(score > -INFINITY)) continue;
            key mine = key_of(score, (int32_t)(j.first_row + row));
            if (mine > worst) keys[atomicAdd(&n_shared, 1)] = mine;
        }
        __syncthreads();
        n = n_shared;
        if (n + SELECT_ROUND > N_KEYS || first + SELECT_ROUND >= j.n_rows) {
            sort_keys<BEST_THREADS>(keys, n);
            n = n < k ? n : k;
            worst = n == k ? keys[k - 1] : 0;
        }
        __syncthreads(); /* all have read the count and the worst */
        if (threadIdx.x == 0) n_shared = n;
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < n; i += BEST_THREADS)
        j.kept[q * k + i] = keys[i];
    if (threadIdx.x == 0) j.n_kept[q] = n;
}

static __global__ void rank_best_any_kernel(rank_job j) {
    int64_t i = (int64_t)blockIdx.x * RANK_THREADS + threadIdx.x;
    if (i >= (int64_t)j.a.n_queries * j.a.k) return;
    bool is_there = i % j.a.k < j.n_kept[i / j.a.k];
    j.best[i] = is_there ? key_row(j.kept[i]) : -1;
    j.best_score[i] = is_there ? key_score(j.kept[i]) : -INFINITY;
}

static int32_t group_size(const rank_args *a) {
    int64_t n = MAX_SCORES / a->n_corpus;
    n = n < MIN_GROUP ? (int64_t)MIN_GROUP : n > MAX_GROUP ? (int64_t)MAX_GROUP : n;
    return (int32_t)(n < a->n_queries ? n : a->n_queries);
}

static status find_best_of_group(backend *be, rank_job j) {
    cudaStream_t stream = cuda_of(be)->stream;
    int64_t piece = MAX_SCORES / group_size(&j.a), n_corpus = j.a.n_corpus;
    for (int64_t row = 0; row < n_corpus; row += piece) {
        j.first_row = (int32_t)row;
        j.n_rows = (int32_t)(n_corpus - row < piece ? n_corpus - row : piece);
        dim3 grid((unsigned)cuda_div_up(j.n_rows, ROW_TILE),
                  (unsigned)cuda_div_up(j.n_group, QUERY_TILE));
        rank_scores_any_kernel<<<grid, RANK_THREADS, 0, stream>>>(j);
        if (j.a.seen_offsets != NULL)
            rank_seen_any_kernel<<<(unsigned)j.n_group, RANK_THREADS, 0, stream>>>(j);
        grid = dim3((unsigned)j.n_group, (unsigned)cuda_div_up(j.n_rows, RANK_THREADS));
        if (j.bits != NULL) rank_allowed_any_kernel<<<grid, RANK_THREADS, 0, stream>>>(j);
        rank_select_any_kernel<<<(unsigned)j.n_group, BEST_THREADS, 0, stream>>>(j);
    }
    return cuda_launched("the best rows of a corpus");
}

static status find_best(backend *be, rank_job j) {
    cudaStream_t stream = cuda_of(be)->stream;
    int64_t n = (int64_t)j.a.n_queries * j.a.k, group = group_size(&j.a);
    CUDA_TRY(cudaMemsetAsync(j.n_kept, 0, (size_t)j.a.n_queries * sizeof *j.n_kept, stream));
    for (int64_t first = 0; first < j.a.n_queries; first += group) {
        j.first_query = (int32_t)first;
        j.n_group = (int32_t)(j.a.n_queries - first < group ? j.a.n_queries - first : group);
        TRY(find_best_of_group(be, j));
    }
    TRY(cuda_launch(be, "the best rows of a corpus", rank_best_any_kernel,
                    cuda_div_up(n, RANK_THREADS), RANK_THREADS, 0, j));
    TRY(cuda_copy_out(be, j.a.best, j.best, (size_t)n * sizeof *j.a.best));
    return cuda_copy_out(be, j.a.best_score, j.best_score, (size_t)n * sizeof *j.a.best_score);
}

size_t rank_bits_bytes(const rank_args *a) {
    size_t n_words = ((size_t)a->n_corpus + 63) / 64, n = 0;
    if (a->allowed == NULL) return 0;
    for (int32_t q = 0; q < a->n_queries; q++)
        n += a->allowed[q] != NULL ? n_words : 0;
    return ((size_t)a->n_queries + n) * sizeof(uint64_t);
}

/* Queries that share a bitmap share its copy, if they follow each other. */
status rank_bits_send(backend *be, const rank_args *a, void *memory, const uint64_t ***out) {
    size_t n_words = ((size_t)a->n_corpus + 63) / 64, n = (size_t)a->n_queries;
    const uint64_t **host;
    status st = OK;
    *out = NULL;
    if (a->allowed == NULL) return OK;
    uint64_t *to = (uint64_t *)memory + n;
    TRY(MEM_NEW(&host, n));
    for (size_t q = 0; q < n && st == OK; q++) {
        if (a->allowed[q] == NULL) continue;
        host[q] = q > 0 && a->allowed[q] == a->allowed[q - 1] ? host[q - 1] : to;
        if (host[q] != to) continue;
        st = cuda_copy_in(be, to, a->allowed[q], n_words * sizeof *to);
        to += n_words;
    }
    if (st == OK) st = cuda_copy_in(be, memory, host, n * sizeof *host);
    mem_free(host);
    *out = (const uint64_t **)memory;
    return st;
}

static size_t lay_out(const backend *be, rank_job *j, char *memory) {
    char *at = memory;
    size_t n = (size_t)j->a.n_queries, n_best = n * (size_t)j->a.k;
    float *query;
    cuda_cut(&at, be->act != ACT_F32 ? n * (size_t)j->a.dim : 0, &query);
    j->query = be->act != ACT_F32 ? query : (const float *)j->a.query;
    cuda_cut(&at, n, &j->own);
    cuda_cut(&at, n, &j->above);
    cuda_cut(&at, n, &j->rank);
    if (j->a.k == 0) return (size_t)(at - memory);
    cuda_cut(&at, MAX_SCORES, &j->scores);
    cuda_cut(&at, rank_bits_bytes(&j->a), (char **)&j->bits);
    cuda_cut(&at, n_best, &j->kept);
    cuda_cut(&at, n, &j->n_kept);
    cuda_cut(&at, n_best, &j->best);
    cuda_cut(&at, n_best, &j->best_score);
    return (size_t)(at - memory);
}

template <typename T> static status convert(backend *be, const rank_job &j) {
    int64_t n = (int64_t)j.a.n_queries * j.a.dim;
    unsigned n_blocks = (unsigned)cuda_div_up(n, RANK_THREADS);
    return cuda_launch(be, "the conversion of queries", rank_convert_any_kernel<T>, n_blocks,
                       RANK_THREADS, 0, n, (const T *)j.a.query, (float *)j.query);
}

status cuda_rank(backend *be, const rank_args *a) {
    rank_job j = {};
    void *memory;
    j.a = *a;
    if (a->n_queries == 0) return OK;
    if (a->n_corpus == 0) return rank_in_nothing(a);
    if (a->k > RANK_MAX_K)
        return fail(ERR_UNSUPPORTED, "a search for the %d best rows; a GPU finds at most %d", a->k,
                    RANK_MAX_K);
    if (cuda_topk_can(be, a)) return cuda_topk(be, a);
    TRY(cuda_scratch(be, lay_out(be, &j, NULL), &memory));
    lay_out(be, &j, (char *)memory);
    if (be->act == ACT_BF16) TRY(convert<__nv_bfloat16>(be, j));
    if (be->act == ACT_F16) TRY(convert<__half>(be, j));
    if (a->rank != NULL) TRY(find_ranks(be, j));
    if (a->k == 0) return OK;
    TRY(rank_bits_send(be, a, j.bits, &j.bits));
    return find_best(be, j);
}
