/* The k best rows of a corpus of 16 bits (rank_args in ops.h): the product on tensor cores with the
 * selection behind it, so that no score is stored.
 *
 * A sample of the rows, cut into groups, gives a bound for each query: the k-th best of the best
 * rows of the groups, which k rows of the corpus reach.  A scan of the whole corpus lists the rows
 * that reach it, about k x stride of them in rows of any order, and the best of a list are the
 * result.  A list that overflows still gives a higher bound, the k-th best of its rows, and the
 * scan runs again; each time at least capacity - k rows of the list fall below the new bound, so
 * that this ends.  The result does not depend on any of this: it is exact.
 */
#include <string.h>

#include "base/mem.h"
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

/* Carves parts out of scratch memory; with NULL it only counts bytes. */
static void *take(char *memory, size_t *bytes, size_t n, size_t size) {
    void *at = memory != NULL ? memory + *bytes : NULL;
    *bytes += cuda_align(n * size);
    return at;
}

static size_t lay_out(topk_job *j, topk_out *out, char *memory) {
    size_t bytes = 0, n = (size_t)j->a.n_queries, n_best = n * (size_t)j->a.k;
    out->best = (int32_t *)take(memory, &bytes, 2 * n_best + 1, sizeof(int32_t));
    out->score = (float *)(out->best + n_best);
    out->n_overflows = (int *)(out->score + n_best);
    j->maxima = (key *)take(memory, &bytes, n * (size_t)j->n_groups, sizeof(key));
    j->bounds = (key *)take(memory, &bytes, n, sizeof(key));
    j->n_listed = (int *)take(memory, &bytes, n, sizeof(int));
    j->lists = (key *)take(memory, &bytes, n * (size_t)j->capacity, sizeof(key));
    j->bits = (const uint64_t **)take(memory, &bytes, rank_bits_bytes(&j->a), 1);
    return bytes;
}

/* Bounds by the sample, or none. */
static status bound(backend *be, const topk_scan *scan, const topk_job *whole) {
    topk_job j = *whole;
    j.is_sample = true;
    j.n_tiles = j.a.n_corpus / scan->tile / j.stride;
    if (j.n_groups > 0) TRY(scan->run(be, &j));
    topk_bound_any_kernel<<<(unsigned)j.a.n_queries, SELECT_THREADS, 0, cuda_of(be)->stream>>>(j);
    return cuda_launched("the bounds of a search");
}

/* Scans until no list overflows.  `host` has room for the results and the number of overflows. */
static status collect(backend *be, const topk_scan *scan, const topk_job *j, const topk_out *out,
                      int32_t *host) {
    cudaStream_t stream = cuda_of(be)->stream;
    size_t n = 2 * (size_t)j->a.n_queries * (size_t)j->a.k;
    do {
        CUDA_TRY(cudaMemsetAsync(out->n_overflows, 0, sizeof(int), stream));
        TRY(scan->run(be, j));
        topk_select_any_kernel<<<(unsigned)j->a.n_queries, SELECT_THREADS, 0, stream>>>(*j, *out);
        TRY(cuda_launched("the selection of a search"));
        TRY(cuda_copy_out(be, host, out->best, (n + 1) * sizeof *host));
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
    TRY(MEM_NEW(&host, 2 * (size_t)(a->n_queries < most ? a->n_queries : most) * (size_t)a->k + 1));
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
