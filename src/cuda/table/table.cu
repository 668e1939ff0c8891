/* Dynamic tables on a GPU (ops/table.h): their memory, the table of verbs, and the verbs that read
 * or change entries alone: find, lookup, erase, scan, stamp, carry.
 *
 * Host memory is managed memory that stays on the host.  The driver populates and maps it with
 * pages of 2 MiB; pinned memory is always mapped with small pages, and random row reads then suffer
 * TLB misses: rows of 256 bytes at random places of 16 GiB are read at 50.9 GB/s from managed
 * memory and at 9.7 GB/s from pinned memory (H200, 2026-11-15). */
#include "cuda/table/table.cuh"

/* Advises the driver on managed memory: where it stays, and who accesses it.  The functions
 * changed with CUDA 13. */
#if CUDART_VERSION >= 13000
static cudaError_t advise(void *memory, size_t bytes, cudaMemoryAdvise what, int device) {
    cudaMemLocation where = {cudaMemLocationTypeDevice, device};
    if (device == cudaCpuDeviceId) where = {cudaMemLocationTypeHost, 0};
    return cudaMemAdvise(memory, bytes, what, where);
}

static cudaError_t fill_on_host(void *memory, size_t bytes, cudaStream_t stream) {
    cudaMemLocation host = {cudaMemLocationTypeHost, 0};
    return cudaMemPrefetchAsync(memory, bytes, host, 0, stream);
}
#else
static cudaError_t advise(void *memory, size_t bytes, cudaMemoryAdvise what, int device) {
    return cudaMemAdvise(memory, bytes, what, device);
}

static cudaError_t fill_on_host(void *memory, size_t bytes, cudaStream_t stream) {
    return cudaMemPrefetchAsync(memory, bytes, cudaCpuDeviceId, stream);
}
#endif

/* The driver populates it with whole pages, in stream order. */
static cudaError_t alloc_managed(cuda_state *s, void **out, size_t bytes) {
    cudaError_t error = cudaMallocManaged(out, bytes, cudaMemAttachGlobal);
    if (error == cudaSuccess)
        error = advise(*out, bytes, cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId);
    if (error == cudaSuccess) error = advise(*out, bytes, cudaMemAdviseSetAccessedBy, s->device);
    if (error == cudaSuccess) error = fill_on_host(*out, bytes, s->stream);
    if (error != cudaSuccess && *out != NULL) cudaFree(*out);
    return error;
}

/* Where host and device cannot access managed memory concurrently, pinned memory is used. */
static status alloc_on_host(cuda_state *s, void **out, size_t bytes) {
    int can_share = 0;
    CUDA_TRY(cudaDeviceGetAttribute(&can_share, cudaDevAttrConcurrentManagedAccess, s->device));
    cudaError_t error =
        can_share ? alloc_managed(s, out, bytes) : cudaHostAlloc(out, bytes, cudaHostAllocMapped);
    if (error == cudaSuccess) return OK;
    *out = NULL;
    cudaGetLastError();
    return fail(ERR_NOMEM,
                "there is no host memory of %.1f GB that the GPU can reach (%s); give the table "
                "less",
                (double)bytes / 1e9, cudaGetErrorString(error));
}

status cuda_table_alloc(backend *be, void **out, size_t bytes, table_memory where) {
    size_t size = bytes > 0 ? bytes : 1;
    *out = NULL;
    if (where == TABLE_ON_HOST) return alloc_on_host(cuda_of(be), out, size);
    CUDA_TRY(cudaMalloc(out, size));
    return OK;
}

/* Both ways of freeing wait for the device. */
void cuda_table_release(backend *be, void *memory, table_memory where) {
    cudaPointerAttributes what;
    (void)be;
    (void)where;
    if (memory == NULL) return;
    cudaError_t error = cudaPointerGetAttributes(&what, memory);
    if (error == cudaSuccess && what.type == cudaMemoryTypeHost)
        cudaFreeHost(memory);
    else
        cudaFree(memory);
    cudaGetLastError();
}

const table_ops cuda_table_ops = {
#define TABLE_OP(result, name, parameters, test) .name = cuda_table_##name,
#include "ops/table_ops.def"
};

/* find, lookup and erase of a level.  A warp owns 32 keys: the probe of table.cuh
 * finds their places, and lookup moves their rows in the same kernel, so that the probe of one warp
 * overlaps with the row copies of another.  Bound by bytes: 64 of digests and one sector of entries
 * for each key, and its row twice. */

static __global__ void __launch_bounds__(TABLE_THREADS)
    table_find_any_kernel(const table_level l, const table_find_args a) {
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (warp_first() >= n) return;
    found_key f = find_key(l, a.keys, i, n);
    if (i >= n) return;
    bool is_there = f.place >= 0;
    a.slot[i] = is_there ? f.bucket * TABLE_SLOTS + f.place : -1;
    if (a.out_stamps != NULL) a.out_stamps[i] = is_there ? table_stamps(&l, f.bucket)[f.place] : 0;
    if (a.rule == SCORE_KEEP && a.out_scores == NULL) return;
    uint64_t score = 0;
    if (is_there) {
        uint64_t *at = &table_entries(&l, f.bucket)[f.place].score;
        uint64_t w = a.scores != NULL ? a.scores[i] : a.score;
        score = table_touched(a.rule, a.rule == SCORE_SET ? 0 : *at, w);
        if (a.rule != SCORE_KEEP) *at = score;
    }
    if (a.out_scores != NULL) a.out_scores[i] = score;
}

status cuda_table_find(backend *be, const table_level *l, const table_find_args *a) {
    if (a->n == 0) return OK;
    return cuda_launch(be, "find", table_find_any_kernel, table_blocks(a->n), TABLE_THREADS, 0, *l,
                       *a);
}

static __global__ void __launch_bounds__(TABLE_THREADS)
    table_erase_any_kernel(const table_level l, const table_erase_args a) {
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (warp_first() >= n) return;
    found_key f = find_key(l, a.keys, i, n);
    if (f.place >= 0) table_digests(&l, f.bucket)[f.place] = 0;
    if (i < n && a.slot != NULL) a.slot[i] = f.place >= 0 ? f.bucket * TABLE_SLOTS + f.place : -1;
    int n_erased = __popc(__ballot_sync(ALL_LANES, f.place >= 0));
    if (a.n_erased != NULL && warp_lane() == 0 && n_erased > 0)
        atomicAdd((unsigned long long *)a.n_erased, (unsigned long long)n_erased);
}

status cuda_table_erase(backend *be, const table_level *l, const table_erase_args *a) {
    cudaStream_t stream = cuda_of(be)->stream;
    if (a->n_erased != NULL) CUDA_TRY(cudaMemsetAsync(a->n_erased, 0, sizeof(int64_t), stream));
    if (a->n == 0) return OK;
    return cuda_launch(be, "erase", table_erase_any_kernel, table_blocks(a->n), TABLE_THREADS, 0,
                       *l, *a);
}

/* The kernel's arguments for all parts; kernel parameters are limited to 4 KB. */
typedef struct lookup_parts {
    int32_t n_parts, dim;
    const uint64_t *keys;
    float *y;
    uint8_t *is_found;
    table_level level[TABLE_MAX_PARTS];
    int64_t begin[TABLE_MAX_PARTS + 1];
    table_first first[TABLE_MAX_PARTS];
} lookup_parts;

static_assert(sizeof(lookup_parts) <= 4000, "parameters of a kernel");

/* Writes the initial values of the warp's missing keys: a row at a time, by all lanes. */
__device__ static inline void write_first(const lookup_parts &a, int part, uint64_t key,
                                          float *missing) {
    for (unsigned rest = __ballot_sync(ALL_LANES, missing != NULL); rest != 0; rest &= rest - 1) {
        int j = __ffs((int)rest) - 1;
        const table_first f = a.first[__shfl_sync(ALL_LANES, part, j)];
        uint64_t its_key = __shfl_sync(ALL_LANES, (unsigned long long)key, j);
        float *y = lane_pointer(missing, j);
        for (int c = warp_lane(); c < a.dim; c += 32)
            y[c] = table_first_value(&f, its_key, (uint32_t)c);
    }
}

template <typename P, bool HAS_FIRST>
static __global__ void __launch_bounds__(TABLE_THREADS, HAS_FIRST ? 3 : 4)
    table_lookup_any_kernel(const __grid_constant__ lookup_parts a) {
    __shared__ probe_room rooms[TABLE_WARPS];
    int64_t n = a.begin[a.n_parts], i = warp_first() + warp_lane(), at = min(i, n - 1);
    if (warp_first() >= n) return;
    int part = 0;
    while (at >= a.begin[part + 1])
        part++;
    uint64_t key = __ldcs(a.keys + at), h = table_hash(key);
    const table_level &l = a.level[part];
    int64_t bucket = table_bucket(h, l.n_buckets);
    int place = probe(&rooms[threadIdx.x / 32], table_digests(&l, bucket), key, table_digest(h));
    if (i < n && a.is_found != NULL) a.is_found[i] = place >= 0;
    const float *row = NULL;
    float *y = NULL;
    if (i < n) y = a.y + i * a.dim;
    if (i < n && place >= 0) row = table_row(&l, bucket * TABLE_SLOTS + place);
    bool is_first = HAS_FIRST && place < 0;
    move_rows<true>((const P *)row, (P *)(is_first ? NULL : y), a.dim / piece_size<P>::NUMBERS);
    if (HAS_FIRST) write_first(a, part, key, is_first ? y : NULL);
}

template <typename P, bool HAS_FIRST>
static void launch_lookup(backend *be, const lookup_parts *parts) {
    unsigned n_blocks = table_blocks(parts->begin[parts->n_parts]);
    table_lookup_any_kernel<P, HAS_FIRST>
        <<<n_blocks, TABLE_THREADS, 0, cuda_of(be)->stream>>>(*parts);
}

status cuda_table_lookup(backend *be, const table_lookup_args *a) {
    lookup_parts parts = {};
    int64_t n = a->begin[a->n_parts];
    if (n == 0) return OK;
    parts.n_parts = a->n_parts;
    parts.dim = a->dim;
    parts.keys = a->keys;
    parts.y = a->y;
    parts.is_found = a->is_found;
    size_t n_parts = (size_t)a->n_parts;
    memcpy(parts.level, a->levels, n_parts * sizeof *a->levels);
    memcpy(parts.begin, a->begin, (n_parts + 1) * sizeof *a->begin);
    if (a->first != NULL) memcpy(parts.first, a->first, n_parts * sizeof *a->first);
    bool packs = is_packed(a->y, a->dim, a->dim);
    if (a->first == NULL)
        packs ? launch_lookup<float4, false>(be, &parts) : launch_lookup<float, false>(be, &parts);
    else
        packs ? launch_lookup<float4, true>(be, &parts) : launch_lookup<float, true>(be, &parts);
    return cuda_launched("lookup");
}

/* scan, stamp and carry of a level, and the prefix sum that scan and unique need.
 *
 * scan must list entries in the order of slots: a thread owns a slot, a block 16 buckets.  A first
 * kernel counts the wanted entries of each block, a single block computes the prefix sum, and a
 * second kernel writes each entry to its place.  Bound by bytes: the index is read twice, digests
 * of all slots, scores and stamps of the used ones. */

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
    return cuda_launch(be, "the sum of counts", table_scan_sum_any_kernel, 1, SCAN_THREADS, 0, n,
                       counts, total);
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
    TRY(cuda_launch(be, "the counts of scan", table_scan_count_any_kernel, n_blocks, SCAN_THREADS,
                    0, *l, *a, counts));
    TRY(cuda_table_sum(be, n_blocks, counts, a->n));
    if (a->keys == NULL && a->scores == NULL && a->stamps == NULL && a->slot == NULL) return OK;
    return cuda_launch(be, "scan", table_scan_write_any_kernel, n_blocks, SCAN_THREADS, 0, *l, *a,
                       counts);
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
    return cuda_launch(be, "stamp", table_stamp_any_kernel, table_blocks(a->n), TABLE_THREADS, 0,
                       *l, *a);
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
    return cuda_launch(be, "what keys take along", table_carry_any_kernel, table_blocks(a->n),
                       TABLE_THREADS, 0, *a);
}
