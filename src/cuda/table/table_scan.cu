/* scan, stamp and carry of a level (ops/table.h), and the sum that scan and unique need.
 *
 * scan must list entries in the order of slots: a thread owns a slot, a block 16 buckets.  A first
 * kernel counts the wanted entries of each block, a single block computes the prefix sum, and a
 * second kernel writes each entry to its place.  Bound by bytes: the index is read twice, digests
 * of all slots, scores and stamps of the used ones. */
#include "cuda/table/table.cuh"

/* One block: replaces each count by the sum of the counts before it, and sets *total to the sum of
 * all. */
static __global__ void __launch_bounds__(SCAN_THREADS)
    table_scan_sum_any_kernel(int64_t n, unsigned long long *counts, int64_t *total) {
    unsigned long long sum = 0, all;
    for (int64_t first = 0; first < n; first += SCAN_THREADS) {
        int64_t i = first + threadIdx.x;
        unsigned long long before = block_prefix(i < n ? counts[i] : 0, &all);
        if (i < n) counts[i] = sum + before;
        sum += all;
    }
    if (threadIdx.x == 0) *total = (int64_t)sum;
}

status cuda_table_sum(backend *be, int64_t n, unsigned long long *counts, int64_t *total) {
    table_scan_sum_any_kernel<<<1, SCAN_THREADS, 0, cuda_of(be)->stream>>>(n, counts, total);
    return cuda_launched("the sum of counts");
}

__device__ static inline bool is_wanted(const table_level &l, const table_scan_args &a,
                                        int64_t slot) {
    int64_t bucket = slot / TABLE_SLOTS, place = slot % TABLE_SLOTS;
    if (bucket >= a.first + a.n_buckets || table_digests(&l, bucket)[place] == 0) return false;
    uint64_t score = table_entries(&l, bucket)[place].score;
    uint32_t stamp = table_stamps(&l, bucket)[place] & ~TABLE_CLEAN;
    return score >= a.min_score && score <= a.max_score && stamp >= a.min_stamp &&
           stamp <= a.max_stamp;
}

__device__ static inline int64_t scan_slot(const table_scan_args &a) {
    return a.first * TABLE_SLOTS + (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
}

static __global__ void __launch_bounds__(SCAN_THREADS)
    table_scan_count_any_kernel(const table_level l, const table_scan_args a,
                                unsigned long long *counts) {
    int count = __syncthreads_count(is_wanted(l, a, scan_slot(a)));
    if (threadIdx.x == 0) counts[blockIdx.x] = (unsigned long long)count;
}

static __global__ void __launch_bounds__(SCAN_THREADS)
    table_scan_write_any_kernel(const table_level l, const table_scan_args a,
                                const unsigned long long *counts) {
    int64_t slot = scan_slot(a), bucket = slot / TABLE_SLOTS, place = slot % TABLE_SLOTS;
    bool wanted = is_wanted(l, a, slot);
    unsigned long long all, at = counts[blockIdx.x] + block_prefix(wanted, &all);
    if (!wanted) return;
    if (a.keys != NULL) a.keys[at] = table_entries(&l, bucket)[place].key;
    if (a.scores != NULL) a.scores[at] = table_entries(&l, bucket)[place].score;
    if (a.stamps != NULL) a.stamps[at] = table_stamps(&l, bucket)[place];
    if (a.slot != NULL) a.slot[at] = slot;
}

status cuda_table_scan(backend *be, const table_level *l, const table_scan_args *a) {
    cudaStream_t stream = cuda_of(be)->stream;
    int64_t n_blocks = cuda_div_up(a->n_buckets * TABLE_SLOTS, SCAN_THREADS);
    void *memory;
    if (n_blocks == 0) {
        CUDA_TRY(cudaMemsetAsync(a->n, 0, sizeof *a->n, stream));
        return OK;
    }
    TRY(cuda_scratch(be, (size_t)n_blocks * sizeof(unsigned long long), &memory));
    unsigned long long *counts = (unsigned long long *)memory;
    table_scan_count_any_kernel<<<(unsigned)n_blocks, SCAN_THREADS, 0, stream>>>(*l, *a, counts);
    TRY(cuda_launched("the counts of scan"));
    TRY(cuda_table_sum(be, n_blocks, counts, a->n));
    if (a->keys == NULL && a->scores == NULL && a->stamps == NULL && a->slot == NULL) return OK;
    table_scan_write_any_kernel<<<(unsigned)n_blocks, SCAN_THREADS, 0, stream>>>(*l, *a, counts);
    return cuda_launched("scan");
}

static __global__ void __launch_bounds__(TABLE_THREADS)
    table_stamp_any_kernel(const table_level l, const table_stamp_args a) {
    int64_t i = (int64_t)blockIdx.x * TABLE_THREADS + threadIdx.x;
    if (i >= table_count(a.n, a.n_real)) return;
    int64_t slot = a.slot[i];
    if (slot < 0) return;
    table_stamps(&l, slot / TABLE_SLOTS)[slot % TABLE_SLOTS] =
        a.stamps != NULL ? a.stamps[i] : a.stamp;
}

status cuda_table_stamp(backend *be, const table_level *l, const table_stamp_args *a) {
    if (a->n == 0) return OK;
    table_stamp_any_kernel<<<table_blocks(a->n), TABLE_THREADS, 0, cuda_of(be)->stream>>>(*l, *a);
    return cuda_launched("stamp");
}

static __global__ void __launch_bounds__(TABLE_THREADS)
    table_carry_any_kernel(const table_carry_args a) {
    int64_t i = (int64_t)blockIdx.x * TABLE_THREADS + threadIdx.x;
    if (i >= table_count(a.n, a.n_real)) return;
    bool is_below = a.slot[i] >= 0;
    uint64_t w = a.given != NULL ? a.given[i] : a.score;
    a.is_below[i] = is_below;
    a.scores[i] = is_below ? table_touched(a.rule, a.scores[i], w) : w;
    if (!is_below) a.stamps[i] = a.stamp;
}

status cuda_table_carry(backend *be, const table_carry_args *a) {
    if (a->n == 0) return OK;
    table_carry_any_kernel<<<table_blocks(a->n), TABLE_THREADS, 0, cuda_of(be)->stream>>>(*a);
    return cuda_launched("what keys take along");
}
