/* sampled_softmax (ops.h), second half: the gradient of the table.
 *
 * A use is a row of the table that a loss row scored, with a weight; the gradient of l2(row) is the
 * sum of weight * query over its uses.  The sums are computed in scratch memory by atomic additions
 * of packs of 4 in the L2 cache, which bound the time; then the derivative of l2 is applied to each
 * row once.  Where a table is so small that a block uses each row several times, the block sorts
 * its uses by row first and adds each row once: in ML-1M (3883 rows, 141 loss rows of 129 uses a
 * block) that leaves a fifth of the additions.  In deterministic mode the sums of a block have a
 * fixed order, and those of all blocks are added as 64-bit integers, whose order does not matter.
 */
#include "cuda/ops/sampled_softmax.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP, SORT_THREADS = 1024 };

/* Sorting pays from this many uses of a row on, in one block; putting them in order (order_uses)
 * takes a time that grows with the square of their number. */
enum { MIN_USES_OF_ROW = 2, MAX_ORDERED_USES = 64, MAX_SORT_ROWS = 65535 };

/* One warp for each loss row.  Padding rows may hold anything. */
static __global__ void __launch_bounds__(THREADS)
    sampled_softmax_table_largest_any_kernel(softmax_job j) {
    int64_t m = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    unsigned largest = 0;
    if (m >= j.a.n || j.a.positive[m] < 0) return;
    for (int c = (int)threadIdx.x % WARP; c < j.a.dim; c += WARP) {
        unsigned bits = __float_as_uint(fabsf(act_at(j.a.query, j.act, m * j.a.dim + c)));
        largest = bits > largest ? bits : largest;
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (threadIdx.x % WARP == 0) atomicMax(j.largest, largest);
}

/* The exponent of 1 / unit.  The weights of a loss row add up to at most w = 2 grad_scale /
 * temperature, so a sum is at most n * w * (largest |element| of the queries); in units it must
 * stay below 2^61.  With 18500 rows the unit is then 2^-45 of the most that one row can add. */
__device__ static inline int fixed_bits(const softmax_job &j) {
    double factor = fabs((double)*j.a.grad_scale / (double)j.a.temperature);
    double bound = 2.0 * (double)j.a.n * factor * (double)__uint_as_float(*j.largest);
    return bound > 0 && isfinite(bound) ? 60 - ilogb(bound) : 0;
}

__device__ static inline void fixed_add(unsigned long long *sum, float x, double scale) {
    atomicAdd(sum, (unsigned long long)__double2ll_rn((double)x * scale));
}

/* Integers cannot represent NaN: `largest` does. */
__device__ static inline void note_infinite(const softmax_job &j, int64_t m) {
    int64_t own = m * ((int64_t)j.a.n_negatives + 1) + j.a.n_negatives;
    if (j.a.positive[m] >= 0 && !isfinite(j.weight[own])) atomicMax(j.largest, 0x7fc00000u);
}

__device__ static inline float4 scaled(float w, float4 q) {
    return make_float4(w * q.x, w * q.y, w * q.z, w * q.w);
}

__device__ static inline void add_pack(float *sum, float4 x) {
#if __CUDA_ARCH__ >= 900
    atomicAdd((float4 *)sum, x);
#else
    atomicAdd(&sum[0], x.x);
    atomicAdd(&sum[1], x.y);
    atomicAdd(&sum[2], x.z);
    atomicAdd(&sum[3], x.w);
#endif
}

__device__ static inline void add_pack_fixed(unsigned long long *sum, float weight, float4 q,
                                             double scale) {
    fixed_add(&sum[0], weight * q.x, scale);
    fixed_add(&sum[1], weight * q.y, scale);
    fixed_add(&sum[2], weight * q.z, scale);
    fixed_add(&sum[3], weight * q.w, scale);
}

/* One warp for each loss row, whose query is in shared memory, padded with zeros.  The packs of its
 * uses are assigned to the lanes in order, so that no lane idles where a row is not a multiple of
 * 32 packs. */
template <bool IS_FIXED>
static __global__ void __launch_bounds__(THREADS)
    sampled_softmax_table_add_any_kernel(softmax_job j) {
    extern __shared__ float4 room[];
    int64_t m = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP, n_packs = j.width / 4;
    float4 *query = room + (int)threadIdx.x / WARP * n_packs;
    if (m >= j.a.n || j.a.positive[m] < 0) return;
    for (int c = lane; c < j.width; c += WARP)
        ((float *)query)[c] = c < j.a.dim ? act_at(j.a.query, j.act, m * j.a.dim + c) : 0;
    __syncwarp();
    const float *weight = j.weight + m * ((int64_t)j.a.n_negatives + 1);
    const int32_t *negative = j.a.negative + m * j.a.n_negatives;
    double scale = IS_FIXED ? ldexp(1.0, fixed_bits(j)) : 0;
    if (IS_FIXED && lane == 0) note_infinite(j, m);
    int use = lane / n_packs, p = lane % n_packs;
    int use_step = WARP / n_packs, p_step = WARP % n_packs;
    while (use <= j.a.n_negatives) {
        int64_t v = use < j.a.n_negatives ? negative[use] : j.a.positive[m];
        float w = weight[use];
        if (w != 0 && IS_FIXED)
            add_pack_fixed((unsigned long long *)j.sum + v * j.width + p * 4, w, query[p], scale);
        else if (w != 0)
            add_pack((float *)j.sum + v * j.width + p * 4, scaled(w, query[p]));
        use += use_step, p += p_step;
        if (p >= n_packs) p -= n_packs, use++;
    }
}

/* The shared memory of a block: `rows` loss rows and all their uses. */
typedef struct sorted {
    float4 *query;       /* (rows, width / 4), zeros after E */
    float *weight;       /* (rows, R + 1): the uses, sorted by table row */
    int *end;            /* (V): where the uses of a row end and the uses of the next row begin */
    unsigned short *who; /* (rows, R + 1): the loss rows of the uses */
} sorted;

static size_t sorted_bytes(const softmax_job &j, int64_t rows) {
    int64_t n_uses = rows * ((int64_t)j.a.n_negatives + 1);
    return (size_t)(rows * j.width + n_uses + j.a.n_rows) * 4 + (size_t)n_uses * 2;
}

__device__ static inline sorted sorted_at(float4 *room, const softmax_job &j, int rows) {
    sorted s;
    s.query = room;
    s.weight = (float *)(room + rows * (j.width / 4));
    s.end = (int *)(s.weight + rows * (j.a.n_negatives + 1));
    s.who = (unsigned short *)(s.end + j.a.n_rows);
    return s;
}

/* Use u of the loss rows from `first` on: its row of the table and its weight; -1 for none. */
__device__ static inline int32_t use_at(const softmax_job &j, int64_t first, int u, int *who,
                                        float *weight) {
    int n_uses = j.a.n_negatives + 1, r;
    *who = u / n_uses, r = u % n_uses;
    int64_t m = first + *who;
    int32_t positive = j.a.positive[m];
    if (positive < 0) return -1;
    *weight = j.weight[m * n_uses + r];
    if (*weight == 0) return -1;
    return r < j.a.n_negatives ? j.a.negative[m * j.a.n_negatives + r] : positive;
}

/* The sum of x over all threads before this one; a block of 32 warps. */
__device__ static inline int sum_before(int x) {
    __shared__ int warps[WARP];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, sum = x;
    for (int d = 1; d < WARP; d *= 2) {
        int y = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += y;
    }
    if (lane == WARP - 1) warps[warp] = sum;
    __syncthreads();
    int before = lane < warp ? warps[lane] : 0;
    return warp_sum(before) + sum - x;
}

/* Counts of uses to where they begin. */
__device__ static inline void counts_to_begins(int *count, int n) {
    int part = (n + SORT_THREADS - 1) / SORT_THREADS, first = (int)threadIdx.x * part, sum = 0;
    int end = first + part < n ? first + part : n;
    for (int v = first; v < end; v++)
        sum += count[v];
    int begin = sum_before(sum);
    for (int v = first; v < end; v++) {
        int next = begin + count[v];
        count[v] = begin;
        begin = next;
    }
}

/* A counting sort: `end` holds the counts, then where each row's uses begin and, after all uses are
 * placed, where they end. */
__device__ static inline void sort_uses(const softmax_job &j, const sorted &s, int64_t first,
                                        int n_uses) {
    int who;
    float weight;
    for (int u = (int)threadIdx.x; u < n_uses; u += SORT_THREADS) {
        int32_t v = use_at(j, first, u, &who, &weight);
        if (v >= 0) atomicAdd(&s.end[v], 1);
    }
    __syncthreads();
    counts_to_begins(s.end, j.a.n_rows);
    __syncthreads();
    for (int u = (int)threadIdx.x; u < n_uses; u += SORT_THREADS) {
        int32_t v = use_at(j, first, u, &who, &weight);
        if (v < 0) continue;
        int at = atomicAdd(&s.end[v], 1);
        s.who[at] = (unsigned short)who;
        s.weight[at] = weight;
    }
    __syncthreads();
}

/* The sum over a block's uses begin .. end - 1, which are of one row of the table, of pack p. */
__device__ static inline void add_uses(float *to, const sorted &s, int begin, int end, int n_packs,
                                       int p) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (int u = begin; u < end; u++) {
        float4 x = scaled(s.weight[u], s.query[s.who[u] * n_packs + p]);
        sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
    }
    add_pack(to, sum);
}

/* The same for one element, as an integer; consecutive threads add to consecutive elements, so that
 * the L2 cache gets whole sectors. */
__device__ static inline void add_uses_fixed(unsigned long long *to, const sorted &s, int begin,
                                             int end, int width, int c, double scale) {
    const float *query = (const float *)s.query + c;
    float sum = 0;
    for (int u = begin; u < end; u++)
        sum += s.weight[u] * query[s.who[u] * width];
    fixed_add(to, sum, scale);
}

/* Whether a use comes after another one: by loss row, then by weight. */
__device__ static inline bool use_is_after(const sorted &s, int u, int who, float weight) {
    return s.who[u] != who ? s.who[u] > who : s.weight[u] > weight;
}

/* Puts the uses of each row in order, so that their sum has one: the counting sort leaves them in
 * any. */
__device__ static inline void order_uses(const sorted &s, int n_rows) {
    for (int v = (int)threadIdx.x; v < n_rows; v += SORT_THREADS) {
        int begin = v > 0 ? s.end[v - 1] : 0;
        for (int u = begin + 1; u < s.end[v]; u++) {
            unsigned short who = s.who[u];
            float weight = s.weight[u];
            int at = u;
            for (; at > begin && use_is_after(s, at - 1, who, weight); at--) {
                s.who[at] = s.who[at - 1];
                s.weight[at] = s.weight[at - 1];
            }
            s.who[at] = who;
            s.weight[at] = weight;
        }
    }
    __syncthreads();
}

/* A block owns `rows` loss rows; when their uses are sorted, a thread owns packs of rows of the
 * table, and reads the queries from shared memory. */
template <bool IS_FIXED>
static __global__ void __launch_bounds__(SORT_THREADS)
    sampled_softmax_table_add_sorted_any_kernel(softmax_job j, int rows) {
    extern __shared__ float4 room[];
    sorted s = sorted_at(room, j, rows);
    int64_t first = (int64_t)blockIdx.x * rows;
    int n = j.a.n - first < rows ? (int)(j.a.n - first) : rows, n_packs = j.width / 4;
    for (int v = (int)threadIdx.x; v < j.a.n_rows; v += SORT_THREADS)
        s.end[v] = 0;
    for (int i = (int)threadIdx.x; i < n * j.width; i += SORT_THREADS) {
        int c = i % j.width;
        int64_t at = (first + i / j.width) * j.a.dim + c;
        ((float *)s.query)[i] = c < j.a.dim ? act_at(j.a.query, j.act, at) : 0;
    }
    double scale = IS_FIXED ? ldexp(1.0, fixed_bits(j)) : 0;
    for (int i = (int)threadIdx.x; IS_FIXED && i < n; i += SORT_THREADS)
        note_infinite(j, first + i);
    __syncthreads();
    sort_uses(j, s, first, n * (j.a.n_negatives + 1));
    if (IS_FIXED) order_uses(s, j.a.n_rows);
    /* Parts of a row: elements of integers, packs of floats. */
    int n_parts = IS_FIXED ? j.width : n_packs;
    for (int i = (int)threadIdx.x; i < j.a.n_rows * n_parts; i += SORT_THREADS) {
        int v = i / n_parts, p = i % n_parts;
        int begin = v > 0 ? s.end[v - 1] : 0, end = s.end[v];
        if (begin == end) continue;
        if constexpr (IS_FIXED)
            add_uses_fixed((unsigned long long *)j.sum + i, s, begin, end, j.width, p, scale);
        else
            add_uses((float *)j.sum + i * 4, s, begin, end, n_packs, p);
    }
}

/* Loss rows of a block where sorting pays, else 0. */
static int sorted_rows(const cuda_state *cuda, const softmax_job &j) {
    int64_t room = cuda->max_block_shared - 1024 - (int64_t)sorted_bytes(j, 0);
    int64_t rows = cuda_div_up(j.a.n, cuda->n_multiprocessors);
    int64_t fits = room / (int64_t)(sorted_bytes(j, 1) - sorted_bytes(j, 0));
    if (room < 0) return 0;
    rows = rows < fits ? rows : fits;
    rows = rows < MAX_SORT_ROWS ? rows : (int64_t)MAX_SORT_ROWS;
    int64_t n_uses = rows * ((int64_t)j.a.n_negatives + 1);
    if (j.is_fixed && n_uses > MAX_ORDERED_USES * (int64_t)j.a.n_rows) return 0;
    return n_uses >= MIN_USES_OF_ROW * (int64_t)j.a.n_rows ? (int)rows : 0;
}

/* One warp for each row of the table: dtable += d l2(row) / d row applied to g, which is (g - u (u
 * . g)) /
 * |row|, or g / eps below eps.  Rows without a use are left alone. */
template <bool IS_FIXED>
static __global__ void __launch_bounds__(THREADS)
    sampled_softmax_table_finish_any_kernel(softmax_job j) {
    int64_t v = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    if (v >= j.a.n_rows) return;
    const long long *fixed = (const long long *)j.sum + v * j.width;
    const float *sum = (const float *)j.sum + v * j.width;
    const float *row = j.a.table + v * j.a.dim;
    float signed_scale = j.a.normalises ? j.scale[v] : -1, scale = fabsf(signed_scale);
    double unit = 0, along = 0;
    if (IS_FIXED)
        unit = isfinite(__uint_as_float(*j.largest)) ? ldexp(1.0, -fixed_bits(j)) : (double)NAN;
    bool is_used = false;
    for (int c = lane; c < j.a.dim; c += WARP) {
        double g = IS_FIXED ? (double)fixed[c] * unit : (double)sum[c];
        is_used |= IS_FIXED ? fixed[c] != 0 : sum[c] != 0;
        along += (double)(row[c] * scale) * g;
    }
    if (!__any_sync(0xffffffffu, is_used)) return;
    along = signed_scale > 0 ? warp_sum(along) : 0;
    for (int c = lane; c < j.a.dim; c += WARP) {
        float g = IS_FIXED ? (float)((double)fixed[c] * unit) : sum[c];
        j.a.dtable[v * j.a.dim + c] += scale * (g - (float)along * (row[c] * scale));
    }
}

template <bool IS_FIXED> static status launch(backend *be, const softmax_job &j, int sort_rows) {
    const char *what = "the gradient of a table in a sampled softmax";
    int64_t n_loss_blocks = cuda_div_up(j.a.n, WARPS);
    size_t query_bytes = WARPS * (size_t)j.width * sizeof(float);
    if (IS_FIXED)
        TRY(cuda_launch(be, what, sampled_softmax_table_largest_any_kernel, n_loss_blocks, THREADS,
                        0, j));
    if (sort_rows > 0)
        TRY(cuda_launch(be, what, sampled_softmax_table_add_sorted_any_kernel<IS_FIXED>,
                        cuda_div_up(j.a.n, sort_rows), SORT_THREADS, sorted_bytes(j, sort_rows), j,
                        sort_rows));
    else
        TRY(cuda_launch(be, what, sampled_softmax_table_add_any_kernel<IS_FIXED>, n_loss_blocks,
                        THREADS, query_bytes, j));
    return cuda_launch(be, what, sampled_softmax_table_finish_any_kernel<IS_FIXED>,
                       cuda_div_up(j.a.n_rows, WARPS), THREADS, 0, j);
}

status softmax_table_gradient(backend *be, const softmax_job *j) {
    cudaStream_t stream = cuda_of(be)->stream;
    size_t cell = j->is_fixed ? sizeof(int64_t) : sizeof(float);
    if (j->a.n_rows == 0) return OK;
    CUDA_TRY(cudaMemsetAsync(j->largest, 0, sizeof *j->largest, stream));
    CUDA_TRY(cudaMemsetAsync(j->sum, 0, (size_t)j->a.n_rows * (size_t)j->width * cell, stream));
    int sort_rows = sorted_rows(cuda_of(be), *j);
    return j->is_fixed ? launch<true>(be, *j, sort_rows) : launch<false>(be, *j, sort_rows);
}
