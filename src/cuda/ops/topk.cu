/* The k best rows of a corpus of 16 bits (rank_args in ops.h): the product on tensor cores with the
 * selection in its epilogue, so that no score is stored.
 *
 * A sample of the rows, cut into groups, gives a bound for each query: the k-th best of the best
 * rows of the groups, which k rows of the corpus reach.  A scan of the whole corpus lists the rows
 * that reach it, about k x stride of them in rows of any order, and the best of a list are the
 * result.  A list that overflows still gives a higher bound, the k-th best of its rows, and the
 * scan runs again; each time at least capacity - k rows of the list fall below the new bound, so
 * that this ends.  The result does not depend on any of this: it is exact. */
#include "cuda/core/ptx.cuh"
#include "cuda/ops/topk.cuh"

enum {
    TOPK_MAX = 1024,
    SELECT_THREADS = 1024,
    MAX_SORTED = 2 * TOPK_MAX,
    UNSAMPLED = 1024,       /* as many rows are listed without a bound */
    LEAST_CAPACITY = 4096,  /* of a list */
    LEAST_SAMPLE = 1 << 17, /* rows */
    KEY_DIGITS = 256        /* of a step of the selection, 8 bits */
};
static_assert((int)LEAST_CAPACITY > (int)TOPK_MAX, "a scan again must come closer to the end");

/* A batch's results, as the host gets them. */
typedef struct topk_out {
    int *n_overflows; /* lists that did */
    int32_t *best;    /* (n_queries, k) */
    float *score;     /* (n_queries, k) */
} topk_out;

/* Shared memory of a selection. */
typedef struct select_room {
    key keys[MAX_SORTED];
    key all, any; /* bits that all keys have, and that some have */
    int n, digit, n_above;
    int count[KEY_DIGITS];
} select_room;

/* How many keys there are that are not 0, and in which bits they differ. */
__device__ static int survey(select_room *room, const key *from, int n) {
    key all = ~(key)0, any = 0;
    int count = 0;
    if (threadIdx.x == 0) room->all = ~(key)0, room->any = 0, room->n = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += SELECT_THREADS) {
        key x = from[i];
        if (x == 0) continue;
        all &= x, any |= x;
        count++;
    }
    for (int lane = 16; lane > 0; lane /= 2) {
        all &= __shfl_xor_sync(0xffffffffu, all, lane);
        any |= __shfl_xor_sync(0xffffffffu, any, lane);
        count += __shfl_xor_sync(0xffffffffu, count, lane);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAnd(&room->all, all);
        atomicOr(&room->any, any);
        atomicAdd(&room->n, count);
    }
    __syncthreads();
    return room->n;
}

/* The first warp finds the digit with which the counts, from the highest digit down, reach
 * `wanted`; n_above: counts of higher ones. */
__device__ static void find_digit(select_room *room, int wanted) {
    int lane = (int)threadIdx.x, own = 0;
    if (lane >= 32) return;
    for (int i = 0; i < KEY_DIGITS / 32; i++)
        own += room->count[KEY_DIGITS - 1 - lane * (KEY_DIGITS / 32) - i];
    int up_to = own;
    for (int step = 1; step < 32; step *= 2) {
        int x = __shfl_up_sync(0xffffffffu, up_to, step);
        if (lane >= step) up_to += x;
    }
    if (up_to < wanted || up_to - own >= wanted) return;
    int above = up_to - own, digit = KEY_DIGITS - 1 - lane * (KEY_DIGITS / 32);
    while (above + room->count[digit] < wanted)
        above += room->count[digit--];
    room->digit = digit;
    room->n_above = above;
}

/* A key that the k best reach, and no more than `most` others beside them, as long as keys differ:
 * by 8 bits at a time, from the highest that differ on. */
__device__ static key find_floor(select_room *room, const key *from, int n, int k, int most) {
    int bits = 64 - __clzll((long long)(room->all ^ room->any)), above = 0;
    key floor = bits < 64 ? room->all >> bits << bits : 0;
    while (bits > 0) {
        int shift = bits > 8 ? bits - 8 : 0, width = bits - shift;
        __syncthreads();
        if (threadIdx.x < KEY_DIGITS) room->count[threadIdx.x] = 0;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n; i += SELECT_THREADS) {
            key x = from[i];
            if (x != 0 && (x ^ floor) >> shift >> width == 0)
                atomicAdd(&room->count[(int)(x >> shift) & ((1 << width) - 1)], 1);
        }
        __syncthreads();
        find_digit(room, k - above);
        __syncthreads();
        above += room->n_above;
        floor |= (key)room->digit << shift;
        if (above + room->count[room->digit] <= most) break;
        bits = shift;
    }
    __syncthreads();
    return floor;
}

/* Puts the best of n keys, at least k if there are that many, into room->keys, best first, and
 * returns how many it put there.  Keys of 0 do not count; others are all different. */
__device__ static int select_best(select_room *room, const key *from, int n, int k) {
    int most = k <= MAX_SORTED / 4 ? MAX_SORTED / 2 : MAX_SORTED;
    int n_keys = survey(room, from, n);
    key floor = n_keys > most ? find_floor(room, from, n, k, most) : 1;
    __syncthreads();
    if (threadIdx.x == 0) room->n = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += SELECT_THREADS) {
        key x = from[i];
        if (x >= floor) room->keys[atomicAdd(&room->n, 1)] = x;
    }
    __syncthreads();
    n_keys = room->n;
    sort_keys<SELECT_THREADS>(room->keys, n_keys);
    return n_keys;
}

/* One block for each query: its bound by the sample, and an empty list. */
static __global__ void __launch_bounds__(SELECT_THREADS)
    topk_bound_any_kernel(const __grid_constant__ topk_job j) {
    __shared__ select_room room;
    int n = j.n_groups > 0
                ? select_best(&room, j.maxima + (int64_t)blockIdx.x * j.n_groups, j.n_groups, j.a.k)
                : 0;
    if (threadIdx.x > 0) return;
    j.bounds[blockIdx.x] = n >= j.a.k ? room.keys[j.a.k - 1] : 0;
    j.n_listed[blockIdx.x] = 0;
}

/* One block for each query: the best of its list, the bound that they give, and an empty list. */
static __global__ void __launch_bounds__(SELECT_THREADS)
    topk_select_any_kernel(const __grid_constant__ topk_job j, const topk_out out) {
    __shared__ select_room room;
    int k = j.a.k, n_listed = j.n_listed[blockIdx.x];
    int n = select_best(&room, j.lists + (int64_t)blockIdx.x * j.capacity,
                        min(n_listed, j.capacity), k);
    for (int i = (int)threadIdx.x; i < k; i += SELECT_THREADS) {
        out.best[(int64_t)blockIdx.x * k + i] = i < n ? key_row(room.keys[i]) : -1;
        out.score[(int64_t)blockIdx.x * k + i] = i < n ? key_score(room.keys[i]) : -INFINITY;
    }
    __syncthreads(); /* all have read the length */
    if (threadIdx.x > 0) return;
    if (n >= k) j.bounds[blockIdx.x] = room.keys[k - 1];
    if (n_listed > j.capacity) atomicAdd(out.n_overflows, 1);
    j.n_listed[blockIdx.x] = 0;
}

/* The scan for SM 8.0 and later: a warp takes tiles of 32 rows, straight from memory into the
 * registers of the product, one tile ahead.  The columns of a row are multiplied in another order,
 * the same one for queries, so that a thread's columns are 16 contiguous bytes.  Queries of 64
 * columns stay in registers.  Bound by the bytes of the corpus. */

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
    bool is_half = be->act == ACT_F16;
    return cuda_launch(be, "the search of a corpus",
                       j->is_sample ? topk_scan_any_kernel<true> : topk_scan_any_kernel<false>,
                       grid, ANY_THREADS, 0, *j, is_half);
}

static topk_scan topk_scan_any(const backend *be, const rank_args *a) {
    (void)a;
    return (topk_scan){ANY_TILE, 2 * TOPK_QUERIES, cuda_of(be)->n_multiprocessors * ANY_WARPS * 4,
                       scan};
}

bool cuda_topk_can(const backend *be, const rank_args *a) {
    return be->act != ACT_F32 && a->corpus_act != NULL && a->target == NULL && a->k > 0 &&
           a->k <= TOPK_MAX && a->dim % TOPK_COLUMNS == 0 && (uintptr_t)a->corpus_act % 16 == 0 &&
           (uintptr_t)a->query % 8 == 0;
}

static topk_scan scan_of(const backend *be, const rank_args *a) {
    return topk_can_sm90(be, a) ? topk_scan_sm90(be, a) : topk_scan_any(be, a);
}

/* One of so many tiles is sampled: a larger sample takes longer, and leaves fewer rows to list.
 * Microseconds of a search of 10 M rows x 64 for 64 queries, H200, 2026-11-16:
 *     stride     8    16    32    64   128
 *     k = 10   405   387   390   392   461
 *     k = 100  462   516   602   671   782
 *     k = 1000 907  1028  1288  1706  2427 */
static int sample_stride(const rank_args *a) {
    int64_t most = a->k <= 16 ? 32 : 8, fits = a->n_corpus / LEAST_SAMPLE;
    return (int)(fits < 1 ? 1 : fits < most ? fits : most);
}

/* Rows and scores of the best, and the number of overflows; whole 16 bytes are copied fastest. */
static size_t out_words(const rank_args *a) {
    return (2 * (size_t)a->n_queries * (size_t)a->k + 1 + 3) / 4 * 4;
}

static size_t lay_out(topk_job *j, topk_out *out, char *memory) {
    char *at = memory;
    size_t n = (size_t)j->a.n_queries, n_best = n * (size_t)j->a.k;
    cuda_cut(&at, out_words(&j->a), &out->best);
    out->score = (float *)(out->best + n_best);
    out->n_overflows = (int *)(out->score + n_best);
    cuda_cut(&at, n * (size_t)j->n_groups, &j->maxima);
    cuda_cut(&at, n, &j->bounds);
    cuda_cut(&at, n, &j->n_listed);
    cuda_cut(&at, n * (size_t)j->capacity, &j->lists);
    cuda_cut(&at, rank_bits_bytes(&j->a), (char **)&j->bits);
    return (size_t)(at - memory);
}

/* Bounds by the sample, or none. */
static status bound(backend *be, const topk_scan *scan, const topk_job *whole) {
    topk_job j = *whole;
    j.is_sample = true;
    j.n_tiles = j.a.n_corpus / scan->tile / j.stride;
    if (j.n_groups > 0) TRY(scan->run(be, &j));
    return cuda_launch(be, "the bounds of a search", topk_bound_any_kernel, j.a.n_queries,
                       SELECT_THREADS, 0, j);
}

/* Scans until no list overflows.  `host` has room for the results and the number of overflows. */
static status collect(backend *be, const topk_scan *scan, const topk_job *j, const topk_out *out,
                      int32_t *host) {
    cudaStream_t stream = cuda_of(be)->stream;
    size_t n = 2 * (size_t)j->a.n_queries * (size_t)j->a.k;
    do {
        CUDA_TRY(cudaMemsetAsync(out->n_overflows, 0, sizeof(int), stream));
        TRY(scan->run(be, j));
        TRY(cuda_launch(be, "the selection of a search", topk_select_any_kernel, j->a.n_queries,
                        SELECT_THREADS, 0, *j, *out));
        TRY(cuda_copy_out(be, host, out->best, out_words(&j->a) * sizeof *host));
    } while (host[n] > 0);
    return OK;
}

static status search(backend *be, const rank_args *a, int32_t *host) {
    topk_scan scan = scan_of(be, a);
    topk_job j = {};
    topk_out out = {};
    char *memory = NULL;
    j.a = *a;
    j.n_tiles = cuda_div_up(a->n_corpus, scan.tile);
    j.stride = sample_stride(a);
    j.n_groups = a->n_corpus <= UNSAMPLED ? 0 : scan.n_groups;
    j.capacity = 4 * a->k * j.stride > LEAST_CAPACITY ? 4 * a->k * j.stride : (int)LEAST_CAPACITY;
    TRY(cuda_scratch(be, lay_out(&j, &out, NULL), (void **)&memory));
    lay_out(&j, &out, memory);
    TRY(rank_bits_send(be, a, j.bits, &j.bits));
    TRY(bound(be, &scan, &j));
    TRY(collect(be, &scan, &j, &out, host));
    size_t n = (size_t)a->n_queries * (size_t)a->k;
    memcpy(a->best, host, n * sizeof *a->best);
    memcpy(a->best_score, host + n, n * sizeof *a->best_score);
    return OK;
}

/* Each batch is done, its results on the host, before the next one takes scratch memory. */
status cuda_topk(backend *be, const rank_args *a) {
    int most = scan_of(be, a).n_queries;
    int32_t *host;
    status st = OK;
    TRY(MEM_NEW(&host, out_words(a)));
    for (int64_t first = 0; first < a->n_queries && st == OK; first += most) {
        rank_args part = *a;
        part.n_queries = (int32_t)(a->n_queries - first < most ? a->n_queries - first : most);
        part.query = (const char *)a->query + first * a->dim * (int64_t)act_bytes(be->act);
        if (a->seen_offsets != NULL) part.seen_offsets = a->seen_offsets + first;
        if (a->allowed != NULL) part.allowed = a->allowed + first;
        part.best = a->best + first * a->k;
        part.best_score = a->best_score + first * a->k;
        st = search(be, &part, host);
    }
    mem_free(host);
    return st;
}
