/* pool and pool_grad of lookups (ops/table.h).
 *
 * pool: lanes share a row or a bag 16 bytes each; without bags it is a copy of rows.
 * pool_grad: one popular key may own half of the batch, so the sorted list of places is cut into
 * chunks of 32, not the groups, as in rows.cu: lanes share a chunk and add up runs of one key.  A
 * group within one chunk is written directly; of a longer group each chunk stores a partial sum,
 * and a second kernel adds the partial sums, with a warp where they are few and a block where they
 * are many.  The order of a sum depends on the batch alone.  Bound by the bytes of y or dy. */
#include "cuda/table/table.cuh"

__device__ static inline void operator+=(float4 &x, float4 y) {
    x = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

__device__ static inline float4 operator*(float w, float4 x) {
    return make_float4(w * x.x, w * x.y, w * x.z, w * x.w);
}

__device__ static inline const float *place_row(const table_level &l, const table_pool_args &a,
                                                int64_t i) {
    int64_t at = a.inverse != NULL ? a.inverse[i] : i;
    if (at >= 0 && a.slot != NULL) at = a.slot[at];
    return at >= 0 ? table_row(&l, at) : NULL;
}

template <typename P>
static __global__ void __launch_bounds__(TABLE_THREADS)
    table_pool_expand_any_kernel(const table_level l, const table_pool_args a) {
    int64_t i = warp_first() + warp_lane();
    if (warp_first() >= a.n) return;
    const float *row = i < a.n ? place_row(l, a, i) : NULL;
    float *y = i < a.n ? a.y + i * a.dim : NULL;
    move_rows<true>((const P *)row, (P *)y, a.dim / piece_size<P>::NUMBERS);
}

/* threadIdx.x goes over the columns of a bag, threadIdx.y over bags. */
template <typename P, bool IS_WEIGHTED>
static __global__ void __launch_bounds__(TABLE_THREADS, 4)
    table_pool_bags_any_kernel(const table_level l, const table_pool_args a) {
    int64_t b = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (b >= a.n_bags) return;
    int64_t first = a.offsets[b], end = a.offsets[b + 1];
    int n_pieces = a.dim / piece_size<P>::NUMBERS;
    for (int c = (int)threadIdx.x; c < n_pieces; c += (int)blockDim.x) {
        P sum = {};
#pragma unroll 4
        for (int64_t i = first; i < end; i++) {
            const P *row = (const P *)place_row(l, a, i);
            if (row != NULL) sum += IS_WEIGHTED ? a.weights[i] * __ldcg(row + c) : __ldcg(row + c);
        }
        __stcs((P *)(a.y + b * a.dim) + c, sum);
    }
}

template <typename P>
static void launch_pool(backend *be, const table_level *l, const table_pool_args *a) {
    cudaStream_t stream = cuda_of(be)->stream;
    if (a->offsets == NULL) {
        table_pool_expand_any_kernel<P><<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
        return;
    }
    unsigned n_lanes = 8;
    while (n_lanes < 32 && (int)n_lanes < a->dim / piece_size<P>::NUMBERS)
        n_lanes *= 2;
    dim3 threads(n_lanes, TABLE_THREADS / n_lanes);
    unsigned n_blocks = (unsigned)cuda_div_up(a->n_bags, threads.y);
    if (a->weights != NULL)
        table_pool_bags_any_kernel<P, true><<<n_blocks, threads, 0, stream>>>(*l, *a);
    else
        table_pool_bags_any_kernel<P, false><<<n_blocks, threads, 0, stream>>>(*l, *a);
}

status cuda_table_pool(backend *be, const table_level *l, const table_pool_args *a) {
    if ((a->offsets == NULL ? a->n : a->n_bags) == 0 || a->dim == 0) return OK;
    if (is_packed(a->y, a->dim, a->dim))
        launch_pool<float4>(be, l, a);
    else
        launch_pool<float>(be, l, a);
    return cuda_launched("pool");
}

enum { CHUNK = 32, CHUNK_LANES = 8, GRAD_AT_ONCE = 8, FEW_CHUNKS = 8 };

/* A block has at most 32 chunks, since the entries of all are in shared memory. */
enum { BLOCK_ENTRIES = TABLE_THREADS / CHUNK_LANES * CHUNK };

/* Partial sums: a chunk can have one group that continues from the previous chunk (slot 0) and
 * another that begins in it and continues (slot 1), whose number is in tail. */
typedef struct grad_cut {
    int64_t n_chunks;
    float *partials; /* (n_chunks, 2, stride) */
    int64_t stride;  /* dim, rounded up to 4 */
    int32_t *tail;   /* (n_chunks): or -1 */
} grad_cut;

/* An entry of the order: its group and the row of its gradient. */
typedef struct grad_entry {
    int32_t group, row;
} grad_entry;

/* The last r of low .. high with begin[r] <= k. */
__device__ static inline int64_t owner(const int32_t *begin, int64_t low, int64_t high, int64_t k) {
    BISECT(low, high, begin[middle + 1] <= k);
    return low;
}

/* Stores the sum of a run of a chunk: entries from .. to - 1 of `count`. */
template <typename P>
__device__ static inline void end_run(const table_pool_grad_args &a, const grad_cut &cut,
                                      int64_t chunk, int32_t group, int from, int to, int count,
                                      int c, P sum) {
    int64_t first = chunk * CHUNK;
    bool came_in = from == 0 && a.begin[group] < first;
    bool goes_on = to == count && a.begin[group + 1] > first + count;
    if (!came_in && !goes_on) {
        __stcg((P *)(a.grad + (int64_t)group * a.dim) + c, sum);
        return;
    }
    *((P *)(cut.partials + (2 * chunk + !came_in) * cut.stride) + c) = sum;
    if (!came_in && c == 0) cut.tail[chunk] = group;
}

/* Sums the runs of one chunk, piece c of each; several rows of dy are in flight at once. */
template <typename P>
__device__ static inline void sum_chunk(const table_pool_grad_args &a, const grad_cut &cut,
                                        int64_t chunk, const grad_entry *entries, int count,
                                        int c) {
    P sum = {};
    int from = 0;
    for (int e = 0; e < count; e += GRAD_AT_ONCE) {
        P x[GRAD_AT_ONCE];
#pragma unroll
        for (int u = 0; u < GRAD_AT_ONCE; u++) {
            int64_t row = entries[min(e + u, count - 1)].row;
            x[u] = __ldcs((const P *)(a.dy + row * a.dim) + c);
        }
#pragma unroll
        for (int u = 0; u < GRAD_AT_ONCE; u++) {
            int here = e + u;
            if (here >= count) break;
            sum += x[u];
            if (here + 1 < count && entries[here + 1].group == entries[here].group) continue;
            end_run(a, cut, chunk, entries[here].group, from, here + 1, count, c, sum);
            from = here + 1;
            sum = {};
        }
    }
}

/* threadIdx.x goes over the columns of a chunk, threadIdx.y over chunks. */
template <typename P>
static __global__ void __launch_bounds__(TABLE_THREADS)
    table_pool_chunks_any_kernel(const table_pool_grad_args a, const grad_cut cut) {
    __shared__ grad_entry entries[BLOCK_ENTRIES];
    __shared__ int64_t ends[2];
    int n_groups = (int)table_count(a.n_groups, a.n_real);
    int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    int64_t first = (int64_t)blockIdx.x * blockDim.y * CHUNK;
    int n_entries = (int)min(a.n - first, (int64_t)blockDim.y * CHUNK);
    if (n_groups == 0) return;
    if (thread < 2)
        ends[thread] = owner(a.begin, 0, n_groups - 1, thread == 0 ? first : first + n_entries - 1);
    __syncthreads();
    for (int e = thread; e < n_entries; e += TABLE_THREADS)
        entries[e] = {(int32_t)owner(a.begin, ends[0], ends[1], first + e), a.order[first + e]};
    __syncthreads();
    int64_t chunk = first / CHUNK + threadIdx.y;
    if (chunk >= cut.n_chunks) return;
    int at = (int)threadIdx.y * CHUNK, count = min(CHUNK, n_entries - at);
    if (threadIdx.x == 0) cut.tail[chunk] = -1;
    for (int c = (int)threadIdx.x; c < a.dim / piece_size<P>::NUMBERS; c += (int)blockDim.x)
        sum_chunk<P>(a, cut, chunk, entries + at, count, c);
}

/* The partials of chunk p of the group that begins in chunk q. */
template <typename P>
__device__ static inline P partial(const grad_cut &cut, int64_t q, int64_t p, int c) {
    return __ldcg((const P *)(cut.partials + (2 * p + (p == q)) * cut.stride) + c);
}

/* A group of few chunks, by a warp. */
template <typename P>
__device__ static inline void add_few(const table_pool_grad_args &a, const grad_cut &cut, int64_t q,
                                      int64_t last, int32_t group) {
    for (int c = warp_lane(); c < a.dim / piece_size<P>::NUMBERS; c += 32) {
        P x[FEW_CHUNKS] = {}, sum = {};
#pragma unroll
        for (int p = 0; p < FEW_CHUNKS; p++)
            if (q + p <= last) x[p] = partial<P>(cut, q, q + p, c);
#pragma unroll
        for (int p = 0; p < FEW_CHUNKS; p++)
            sum += x[p];
        __stcg((P *)(a.grad + (int64_t)group * a.dim) + c, sum);
    }
}

/* A group of many chunks, by all warps of a block: each warp adds every 8th chunk, then one warp
 * adds their sums. */
template <typename P>
__device__ static inline void add_many(const table_pool_grad_args &a, const grad_cut &cut,
                                       int64_t q, int64_t last, int32_t group) {
    __shared__ P sums[TABLE_WARPS][32];
    int warp = (int)threadIdx.x / 32, lane = warp_lane();
    int n_pieces = a.dim / piece_size<P>::NUMBERS;
    for (int first = 0; first < n_pieces; first += 32) {
        int c = first + lane;
        P sum = {};
        if (c < n_pieces) {
#pragma unroll 8
            for (int64_t p = q + warp; p <= last; p += TABLE_WARPS)
                sum += partial<P>(cut, q, p, c);
        }
        sums[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && c < n_pieces) {
            sum = {};
            for (int w = 0; w < TABLE_WARPS; w++)
                sum += sums[w][lane];
            __stcg((P *)(a.grad + (int64_t)group * a.dim) + c, sum);
        }
        __syncthreads();
    }
}

/* A warp owns the group that begins in its chunk and continues in the next; the whole block sums
 * long groups together. */
template <typename P>
static __global__ void __launch_bounds__(TABLE_THREADS, 4)
    table_pool_tails_any_kernel(const table_pool_grad_args a, const grad_cut cut) {
    __shared__ int32_t groups[TABLE_WARPS];
    int warp = (int)threadIdx.x / 32;
    int64_t first = (int64_t)blockIdx.x * TABLE_WARPS, q = first + warp;
    int32_t group = q < cut.n_chunks ? cut.tail[q] : -1;
    if (table_count(a.n_groups, a.n_real) == 0) return;
    int64_t last = group >= 0 ? (a.begin[group + 1] - 1) / CHUNK : 0;
    bool is_long = group >= 0 && last - q >= FEW_CHUNKS;
    if (warp_lane() == 0) groups[warp] = is_long ? group : -1;
    if (group >= 0 && !is_long) add_few<P>(a, cut, q, last, group);
    if (!__syncthreads_or(is_long)) return;
    for (int w = 0; w < TABLE_WARPS; w++)
        if (groups[w] >= 0)
            add_many<P>(a, cut, first + w, (a.begin[groups[w] + 1] - 1) / CHUNK, groups[w]);
}

template <typename P>
static status launch_pool_grad(backend *be, const table_pool_grad_args *a, const grad_cut *cut) {
    unsigned n_lanes = CHUNK_LANES;
    while (n_lanes < 32 && (int)n_lanes < a->dim / piece_size<P>::NUMBERS)
        n_lanes *= 2;
    dim3 threads(n_lanes, TABLE_THREADS / n_lanes);
    TRY(cuda_launch(be, "pool_grad", table_pool_chunks_any_kernel<P>,
                    cuda_div_up(cut->n_chunks, threads.y), threads, 0, *a, *cut));
    return cuda_launch(be, "pool_grad's groups of many chunks", table_pool_tails_any_kernel<P>,
                       cuda_div_up(cut->n_chunks, TABLE_WARPS), TABLE_THREADS, 0, *a, *cut);
}

status cuda_table_pool_grad(backend *be, const table_pool_grad_args *a) {
    grad_cut cut = {cuda_div_up(a->n, CHUNK), NULL, cuda_div_up(a->dim, 4) * 4, NULL};
    void *memory;
    if (a->n == 0 || a->dim == 0) return OK;
    size_t partials_bytes = cuda_align((size_t)(2 * cut.n_chunks * cut.stride) * sizeof(float));
    size_t tail_bytes = (size_t)cut.n_chunks * sizeof *cut.tail;
    TRY(cuda_scratch(be, partials_bytes + tail_bytes, &memory));
    cut.partials = (float *)memory;
    cut.tail = (int32_t *)((char *)memory + partials_bytes);
    bool packs = is_packed(a->dy, a->dim, a->dim) && is_packed(a->grad, a->dim, a->dim);
    return packs ? launch_pool_grad<float4>(be, a, &cut) : launch_pool_grad<float>(be, a, &cut);
}
