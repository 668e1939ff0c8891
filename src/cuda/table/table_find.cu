/* find, lookup and erase of a level (ops/table.h).  A warp owns 32 keys: the probe of table.cuh
 * finds their places, and lookup moves their rows in the same kernel, so that the probe of one warp
 * overlaps with the row copies of another.  Bound by bytes: 64 of digests and one sector of entries
 * for each key, and its row twice. */
#include <string.h>

#include "cuda/table/table.cuh"

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
    table_find_any_kernel<<<table_blocks(a->n), TABLE_THREADS, 0, cuda_of(be)->stream>>>(*l, *a);
    return cuda_launched("find");
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
    table_erase_any_kernel<<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
    return cuda_launched("erase");
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
