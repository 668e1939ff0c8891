/* unique of a batch of ids (ops/table.h).  A stable sort of (hash, place) by CUB puts equal ids
 * side by side, their places ascending; then heads of runs are counted, and each block of 1024
 * places knows the number of its first run.  It has a file of its own because the sort takes long
 * to compile.  The limit is the sort: eight passes over 12 bytes a place. */
#include <cub/device/device_radix_sort.cuh>

#include "cuda/table.cuh"

/* What lies in the scratch memory. */
typedef struct unique_room {
    uint64_t *hashes, *sorted;  /* (n) each */
    uint32_t *places, *order;   /* (n) each */
    unsigned long long *counts; /* (n_blocks): runs that begin in a block, then in those before */
    void *sort;
    size_t sort_bytes;
} unique_room;

static __global__ void __launch_bounds__(TABLE_THREADS)
    hash_kernel(int64_t n, const uint64_t *ids, const unique_room room) {
    int64_t i = (int64_t)blockIdx.x * TABLE_THREADS + threadIdx.x;
    if (i >= n) return;
    room.hashes[i] = table_hash(ids[i]);
    room.places[i] = (uint32_t)i;
}

__device__ static inline bool is_head(int64_t n, const uint64_t *sorted, int64_t i) {
    return i < n && (i == 0 || sorted[i] != sorted[i - 1]);
}

static __global__ void __launch_bounds__(SCAN_THREADS)
    count_heads_kernel(int64_t n, const unique_room room) {
    int64_t i = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    int count = __syncthreads_count(is_head(n, room.sorted, i));
    if (threadIdx.x == 0) room.counts[blockIdx.x] = (unsigned long long)count;
}

static __global__ void __launch_bounds__(SCAN_THREADS)
    number_kernel(const unique_room room, const table_unique_args a) {
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

static cudaError_t sort(const table_unique_args *a, unique_room *room, cudaStream_t stream) {
    return cub::DeviceRadixSort::SortPairs(room->sort, room->sort_bytes, room->hashes, room->sorted,
                                           room->places, room->order, (int)a->n, 0, 64, stream);
}

static size_t make_room(unique_room *room, char *memory, const table_unique_args *a) {
    char *at = memory;
    size_t n = (size_t)a->n;
    room->hashes = (uint64_t *)cut_room(&at, n * sizeof *room->hashes);
    room->sorted = (uint64_t *)cut_room(&at, n * sizeof *room->sorted);
    room->places = (uint32_t *)cut_room(&at, n * sizeof *room->places);
    room->order = (uint32_t *)cut_room(&at, n * sizeof *room->order);
    room->counts =
        (unsigned long long *)cut_room(&at, (n / SCAN_THREADS + 1) * sizeof *room->counts);
    room->sort = cut_room(&at, room->sort_bytes);
    if (a->order != NULL) room->order = (uint32_t *)a->order;
    return (size_t)(at - memory);
}

static status set_empty(backend *be, const table_unique_args *a) {
    cudaStream_t stream = cuda_of(be)->stream;
    CUDA_TRY(cudaMemsetAsync(a->n_unique, 0, sizeof *a->n_unique, stream));
    if (a->begin != NULL) CUDA_TRY(cudaMemsetAsync(a->begin, 0, sizeof *a->begin, stream));
    return OK;
}

status cuda_table_unique(backend *be, const table_unique_args *a) {
    cudaStream_t stream = cuda_of(be)->stream;
    unique_room room = {};
    void *memory;
    if (a->n == 0) return set_empty(be, a);
    CUDA_TRY(sort(a, &room, stream)); /* without memory it tells how much it needs */
    TRY(cuda_scratch(be, make_room(&room, NULL, a), &memory));
    make_room(&room, (char *)memory, a);
    unsigned n_blocks = (unsigned)cuda_div_up(a->n, SCAN_THREADS);
    hash_kernel<<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(a->n, a->ids, room);
    TRY(cuda_launched("the hashes of unique"));
    CUDA_TRY(sort(a, &room, stream));
    count_heads_kernel<<<n_blocks, SCAN_THREADS, 0, stream>>>(a->n, room);
    TRY(cuda_launched("the runs of unique"));
    TRY(cuda_table_sum(be, n_blocks, room.counts, a->n_unique));
    number_kernel<<<n_blocks, SCAN_THREADS, 0, stream>>>(room, *a);
    return cuda_launched("the numbers of unique");
}
