/* unique of a batch of ids (ops/table.h).  A stable sort of (high half of the hash, place)
 * puts equal ids side by side, their places ascending; then the heads of runs are counted, which
 * gives each block of 1024 places the number of its first run.
 *
 * Sorting by half of the hash halves the passes of the sort, which bound the time (H200, 2^20 ids:
 * 0.22 ms with whole hashes). Different ids seldom share the high half: a dozen pairs among 350
 * 000.  Such runs are found and repaired, a block each: sorted by the low half, stably, in time
 * linear in their length even for adversarial ids. */
#include "cuda/table/table.cuh"

enum { MEND_THREADS = 256, MEND_WARPS = MEND_THREADS / 32, MEND_BLOCKS = 64, DIGITS = 256 };

/* The layout of the scratch memory. */
typedef struct unique_room {
    uint32_t *halves, *sorted_halves; /* (n) each: high halves of hashes */
    uint32_t *places, *order;         /* (n) each */
    uint64_t *sorted;                 /* (n): hashes in the order of `order` */
    uint32_t *is_mixed;               /* (n): of the run that begins here */
    uint32_t *mixed;                  /* (n): where runs of different hashes begin */
    uint32_t *n_mixed;                /* (1) */
    unsigned long long *counts; /* (n_blocks): runs that begin in a block, then their prefix sums */
    void *sort;
    size_t sort_bytes;
} unique_room;

static __global__ void __launch_bounds__(TABLE_THREADS)
    table_unique_hash_any_kernel(int64_t n, const uint64_t *ids, const unique_room room) {
    int64_t i = (int64_t)blockIdx.x * TABLE_THREADS + threadIdx.x;
    if (i == 0) *room.n_mixed = 0;
    if (i >= n) return;
    room.halves[i] = (uint32_t)(table_hash(ids[i]) >> 32);
    room.places[i] = (uint32_t)i;
    room.is_mixed[i] = 0;
}

/* The first of the n sorted halves that is not below `half`. */
__device__ static inline int64_t first_not_below(const uint32_t *halves, int64_t n, uint64_t half) {
    int64_t low = 0, high = n;
    BISECT(low, high, halves[middle] < half);
    return low;
}

/* Writes each hash next to its place; lists each run that has one high half but different
 * hashes. */
static __global__ void __launch_bounds__(TABLE_THREADS)
    table_unique_list_mixed_any_kernel(int64_t n, const uint64_t *ids, const unique_room room) {
    int64_t i = (int64_t)blockIdx.x * TABLE_THREADS + threadIdx.x;
    if (i >= n) return;
    uint64_t hash = table_hash(ids[room.order[i]]);
    room.sorted[i] = hash;
    if (i == 0 || table_hash(ids[room.order[i - 1]]) == hash) return;
    uint32_t half = (uint32_t)(hash >> 32);
    if (room.sorted_halves[i - 1] != half) return;
    int64_t first = first_not_below(room.sorted_halves, n, half);
    if (atomicExch(&room.is_mixed[first], 1u) == 0)
        room.mixed[atomicAdd(room.n_mixed, 1u)] = (uint32_t)first;
}

/* At most MEND_THREADS entries: each thread counts the entries that sort before its own. */
__device__ static inline void mend_short(const uint64_t *ids, uint32_t *order, int n) {
    __shared__ uint32_t low[MEND_THREADS];
    int t = (int)threadIdx.x, rank = 0;
    uint32_t place = t < n ? order[t] : 0;
    if (t < n) low[t] = (uint32_t)table_hash(ids[place]);
    __syncthreads();
    for (int j = 0; j < n && t < n; j++)
        rank += low[j] < low[t] || (low[j] == low[t] && j < t);
    if (t < n) order[rank] = place;
    __syncthreads();
}

/* begin[d]: the entries with a smaller digit. */
__device__ static inline void count_digits(const uint64_t *ids, const uint32_t *from, int64_t n,
                                           int shift, uint32_t *begin) {
    begin[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += MEND_THREADS)
        atomicAdd(&begin[(uint32_t)table_hash(ids[from[i]]) >> shift & (DIGITS - 1)], 1u);
    __syncthreads();
    if (threadIdx.x == 0)
        for (uint32_t d = 0, sum = 0; d < DIGITS; d++) {
            uint32_t count = begin[d];
            begin[d] = sum;
            sum += count;
        }
    __syncthreads();
}

/* One pass of a radix sort: 256 entries at a time are placed by their digits, in order. */
__device__ static inline void sort_digits(const uint64_t *ids, const uint32_t *from, uint32_t *to,
                                          int64_t n, int shift) {
    __shared__ uint32_t begin[DIGITS], counts[MEND_WARPS][DIGITS];
    int t = (int)threadIdx.x, warp = t / 32;
    count_digits(ids, from, n, shift, begin);
    for (int64_t first = 0; first < n; first += MEND_THREADS) {
        bool is_there = first + t < n;
        uint32_t place = is_there ? from[first + t] : 0;
        uint32_t digit = (uint32_t)table_hash(ids[place]) >> shift & (DIGITS - 1);
        for (int w = 0; w < MEND_WARPS; w++)
            counts[w][t] = 0;
        unsigned peers = __match_any_sync(ALL_LANES, is_there ? digit : (uint32_t)DIGITS);
        int rank = __popc(peers & ((1u << warp_lane()) - 1));
        __syncthreads();
        if (is_there && rank == 0) counts[warp][digit] = (uint32_t)__popc(peers);
        __syncthreads();
        uint32_t at = begin[digit] + (uint32_t)rank;
        for (int w = 0; w < warp; w++)
            at += counts[w][digit];
        if (is_there) to[at] = place;
        __syncthreads();
        for (int w = 0; w < MEND_WARPS; w++)
            begin[t] += counts[w][t];
        __syncthreads();
    }
}

/* One block repairs a run: sorts it by the low halves of the hashes, stably. */
static __global__ void __launch_bounds__(MEND_THREADS)
    table_unique_mend_any_kernel(int64_t n, const uint64_t *ids, const unique_room room) {
    for (uint32_t r = blockIdx.x; r < *room.n_mixed; r += gridDim.x) {
        int64_t first = room.mixed[r];
        uint64_t half = room.sorted_halves[first];
        int64_t length = first_not_below(room.sorted_halves, n, half + 1) - first;
        uint32_t *order = room.order + first, *spare = room.places + first;
        if (length <= MEND_THREADS)
            mend_short(ids, order, (int)length);
        else
            for (int shift = 0; shift < 32; shift += 16) {
                sort_digits(ids, order, spare, length, shift);
                sort_digits(ids, spare, order, length, shift + 8);
            }
        for (int64_t i = threadIdx.x; i < length; i += MEND_THREADS)
            room.sorted[first + i] = table_hash(ids[order[i]]);
        __syncthreads();
    }
}

__device__ static inline bool is_head(int64_t n, const uint64_t *sorted, int64_t i) {
    return i < n && (i == 0 || sorted[i] != sorted[i - 1]);
}

static __global__ void __launch_bounds__(SCAN_THREADS)
    table_unique_count_heads_any_kernel(int64_t n, const unique_room room) {
    int64_t i = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    int count = __syncthreads_count(is_head(n, room.sorted, i));
    if (threadIdx.x == 0) room.counts[blockIdx.x] = (unsigned long long)count;
}

static __global__ void __launch_bounds__(SCAN_THREADS)
    table_unique_number_any_kernel(const unique_room room, const table_unique_args a) {
    int64_t i = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    bool head = is_head(a.n, room.sorted, i);
    unsigned long long all, before = block_prefix(head, &all);
    if (i >= a.n) return;
    int64_t u = (int64_t)(room.counts[blockIdx.x] + before) - !head;
    a.inverse[room.order[i]] = (int32_t)u;
    if (i == a.n - 1 && a.begin != NULL) a.begin[u + 1] = (int32_t)a.n;
    if (!head) return;
    a.keys[u] = table_unhash(room.sorted[i]);
    if (a.begin != NULL) a.begin[u] = (int32_t)i;
}

static status sort(backend *be, const table_unique_args *a, unique_room *room) {
    return cuda_sort_pairs(be, room->sort, &room->sort_bytes, room->halves, room->sorted_halves,
                           room->places, room->order, (int)a->n, 32);
}

static size_t make_room(unique_room *room, char *memory, const table_unique_args *a) {
    char *at = memory;
    size_t n = (size_t)a->n;
    cuda_cut(&at, n, &room->halves);
    cuda_cut(&at, n, &room->sorted_halves);
    cuda_cut(&at, n, &room->places);
    cuda_cut(&at, n, &room->order);
    cuda_cut(&at, n, &room->sorted);
    cuda_cut(&at, n, &room->is_mixed);
    cuda_cut(&at, n, &room->mixed);
    cuda_cut(&at, 1, &room->n_mixed);
    cuda_cut(&at, n / SCAN_THREADS + 1, &room->counts);
    cuda_cut(&at, room->sort_bytes, (char **)&room->sort);
    if (a->order != NULL) room->order = (uint32_t *)a->order;
    return (size_t)(at - memory);
}

static status set_empty(backend *be, const table_unique_args *a) {
    cudaStream_t stream = cuda_of(be)->stream;
    CUDA_TRY(cudaMemsetAsync(a->n_unique, 0, sizeof *a->n_unique, stream));
    if (a->begin != NULL) CUDA_TRY(cudaMemsetAsync(a->begin, 0, sizeof *a->begin, stream));
    return OK;
}

static status sort_hashes(backend *be, const table_unique_args *a, unique_room *room) {
    cudaStream_t stream = cuda_of(be)->stream;
    unsigned n_blocks = table_blocks(a->n);
    TRY(cuda_launch(be, "the hashes of unique", table_unique_hash_any_kernel, n_blocks,
                    TABLE_THREADS, 0, a->n, a->ids, *room));
    TRY(sort(be, a, room));
    table_unique_list_mixed_any_kernel<<<n_blocks, TABLE_THREADS, 0, stream>>>(a->n, a->ids, *room);
    return cuda_launch(be, "the order of unique", table_unique_mend_any_kernel, MEND_BLOCKS,
                       MEND_THREADS, 0, a->n, a->ids, *room);
}

status cuda_table_unique(backend *be, const table_unique_args *a) {
    unique_room room = {};
    void *memory;
    if (a->n == 0) return set_empty(be, a);
    TRY(sort(be, a, &room)); /* without memory it tells how much it needs */
    TRY(cuda_scratch(be, make_room(&room, NULL, a), &memory));
    make_room(&room, (char *)memory, a);
    TRY(sort_hashes(be, a, &room));
    unsigned n_blocks = (unsigned)cuda_div_up(a->n, SCAN_THREADS);
    TRY(cuda_launch(be, "the runs of unique", table_unique_count_heads_any_kernel, n_blocks,
                    SCAN_THREADS, 0, a->n, room));
    TRY(cuda_table_sum(be, n_blocks, room.counts, a->n_unique));
    return cuda_launch(be, "the numbers of unique", table_unique_number_any_kernel, n_blocks,
                       SCAN_THREADS, 0, room, *a);
}
