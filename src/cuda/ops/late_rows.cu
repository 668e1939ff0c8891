/* Rows of large tables by lists (ops.h): list_rows, read_rows, late_step, and the update of listed
 * rows.
 *
 * Listing sorts (row, place of the use); a row is listed where its run begins, and its number is
 * the count of runs before it: counted in blocks of LIST_THREADS uses, whose sums one block adds
 * up. All other kernels give a warp to a row.  Bound by bytes: rows are read and written once. */
#include "cuda/core/kernel.cuh"

enum { LIST_THREADS = 1024, LIST_WARPS = LIST_THREADS / WARP };
enum { LATE_THREADS = 256, LATE_WARPS = LATE_THREADS / WARP };

/* The layout of the scratch memory. */
typedef struct list_room {
    uint32_t *keys, *sorted, *places, *order; /* (n) each */
    int32_t *before;                          /* (n_blocks): runs that begin before a block */
    void *sort;
    size_t sort_bytes;
} list_room;

/* Uses that are none have the key n_table, which sorts last. */
static __global__ void __launch_bounds__(LIST_THREADS)
    list_keys_any_kernel(const row_uses use, int32_t n_table, uint32_t first, uint32_t *keys,
                         uint32_t *places) {
    int64_t i = (int64_t)blockIdx.x * LIST_THREADS + threadIdx.x;
    if (i >= use.n) return;
    int32_t index = use.index[i];
    keys[first + i] = (uint32_t)(index < 0 ? n_table : min(index + use.first, n_table));
    places[first + i] = first + (uint32_t)i;
}

__device__ static inline bool begins_run(const uint32_t *sorted, int n, uint32_t n_table, int i) {
    return i < n && sorted[i] < n_table && (i == 0 || sorted[i - 1] != sorted[i]);
}

static __global__ void __launch_bounds__(LIST_THREADS)
    list_counts_any_kernel(int n, uint32_t n_table, const uint32_t *sorted, int32_t *before) {
    int i = (int)(blockIdx.x * LIST_THREADS + threadIdx.x);
    int count = __syncthreads_count(begins_run(sorted, n, n_table, i));
    if (threadIdx.x == 0) before[blockIdx.x] = count;
}

/* The sum of x over the threads of the block up to this one; *all: over the block. */
__device__ static inline int32_t list_prefix(int32_t x, int32_t *all) {
    __shared__ int32_t sums[LIST_WARPS];
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    for (int step = 1; step < WARP; step *= 2) {
        int32_t left = __shfl_up_sync(0xffffffffu, x, step);
        if (lane >= step) x += left;
    }
    if (lane == WARP - 1) sums[warp] = x;
    __syncthreads();
    int32_t sum = 0;
    for (int w = 0; w < LIST_WARPS; w++) {
        if (w < warp) x += sums[w];
        sum += sums[w];
    }
    __syncthreads();
    *all = sum;
    return x;
}

static __global__ void __launch_bounds__(LIST_THREADS)
    list_sums_any_kernel(int n_blocks, int32_t *before, int32_t *n_rows) {
    int32_t done = 0;
    for (int first = 0; first < n_blocks; first += LIST_THREADS) {
        int i = first + (int)threadIdx.x;
        int32_t count = i < n_blocks ? before[i] : 0, all;
        int32_t sum = list_prefix(count, &all);
        if (i < n_blocks) before[i] = done + sum - count;
        done += all;
    }
    if (threadIdx.x == 0) *n_rows = done;
}

static __global__ void __launch_bounds__(LIST_THREADS)
    list_numbers_any_kernel(int n, const list_rows_args a, const list_room room) {
    int i = (int)(blockIdx.x * LIST_THREADS + threadIdx.x);
    bool is_first = begins_run(room.sorted, n, (uint32_t)a.n_table, i);
    int32_t all, number = room.before[blockIdx.x] + list_prefix(is_first, &all) - 1;
    if (i >= n) return;
    bool is_none = room.sorted[i] >= (uint32_t)a.n_table;
    if (is_first) a.rows[number] = (int32_t)room.sorted[i];
    int64_t place = room.order[i];
    for (int k = 0; k < a.n_uses; place -= a.use[k++].n) {
        if (place >= a.use[k].n) continue;
        a.use[k].index[place] = is_none ? -1 : number;
        return;
    }
}

static status sort_uses(backend *be, list_room *room, int n, int32_t n_table) {
    int bits = 1;
    while (n_table >> bits != 0)
        bits++;
    return cuda_sort_pairs(be, room->sort, &room->sort_bytes, room->keys, room->sorted,
                           room->places, room->order, n, bits);
}

status cuda_list_rows(backend *be, const list_rows_args *a) {
    cudaStream_t stream = cuda_of(be)->stream;
    list_room room = {};
    int64_t n_all = 0;
    uint32_t first = 0;
    char *memory;
    for (int k = 0; k < a->n_uses; k++)
        n_all += a->use[k].n;
    CUDA_TRY(cudaMemsetAsync(a->n, 0, sizeof *a->n, stream));
    if (n_all == 0) return OK;
    if (n_all > INT32_MAX / 2)
        return fail(ERR_UNSUPPORTED, "%lld uses of rows in a batch; use smaller batches",
                    (long long)n_all);
    int n = (int)n_all;
    int64_t n_blocks = cuda_div_up(n, LIST_THREADS);
    size_t bytes = cuda_align((size_t)n * sizeof(uint32_t));
    size_t before_bytes = cuda_align((size_t)n_blocks * sizeof(int32_t));
    TRY(sort_uses(be, &room, n, a->n_table)); /* without memory it tells how much it needs */
    TRY(cuda_scratch(be, 4 * bytes + before_bytes + room.sort_bytes, (void **)&memory));
    room.keys = (uint32_t *)memory;
    room.sorted = (uint32_t *)(memory + bytes);
    room.places = (uint32_t *)(memory + 2 * bytes);
    room.order = (uint32_t *)(memory + 3 * bytes);
    room.before = (int32_t *)(memory + 4 * bytes);
    room.sort = memory + 4 * bytes + before_bytes;
    for (int k = 0; k < a->n_uses; first += (uint32_t)a->use[k++].n)
        if (a->use[k].n > 0)
            TRY(cuda_launch(be, "the keys of list_rows", list_keys_any_kernel,
                            cuda_div_up(a->use[k].n, LIST_THREADS), LIST_THREADS, 0, a->use[k],
                            a->n_table, first, room.keys, room.places));
    TRY(sort_uses(be, &room, n, a->n_table));
    CUDA_TRY(cudaMemsetAsync(a->rows, 0xff, (size_t)n * sizeof *a->rows, stream));
    TRY(cuda_launch(be, "the counts of list_rows", list_counts_any_kernel, n_blocks, LIST_THREADS,
                    0, n, (uint32_t)a->n_table, (const uint32_t *)room.sorted, room.before));
    TRY(cuda_launch(be, "the sums of list_rows", list_sums_any_kernel, 1, LIST_THREADS, 0,
                    (int)n_blocks, room.before, a->n));
    return cuda_launch(be, "list_rows", list_numbers_any_kernel, n_blocks, LIST_THREADS, 0, n, *a,
                       room);
}

static __global__ void __launch_bounds__(LATE_THREADS) read_rows_any_kernel(read_rows_args a) {
    int lane = (int)threadIdx.x % WARP;
    int64_t i = (int64_t)blockIdx.x * LATE_WARPS + threadIdx.x / WARP;
    if (i >= a.n) return;
    int64_t row = a.rows != NULL ? a.rows[i] : i, at = row * a.dim;
    bool is_late = row >= 0 && a.late.last != NULL;
    missed_steps k = {};
    if (is_late) k = *late_missed(&a.late, row);
    __syncwarp();
    for (int c = lane; c < a.dim; c += WARP) {
        float w = row < 0 ? 0 : a.w[at + c];
        if (is_late) w = missed_weight(&k, w, a.m[at + c], a.v[at + c]);
        if (a.y != NULL) {
            a.y[i * a.dim + c] = w;
        } else if (row >= 0) {
            a.w[at + c] = w;
            a.m[at + c] *= k.m;
            a.v[at + c] *= k.v;
        }
    }
    if (a.y == NULL && is_late && lane == 0) a.late.last[row] = 0;
}

status cuda_read_rows(backend *be, const read_rows_args *a) {
    if (a->n == 0) return OK;
    return cuda_launch(be, "read_rows", read_rows_any_kernel, cuda_div_up(a->n, LATE_WARPS),
                       LATE_THREADS, 0, *a);
}

/* One block: there are at most LATE_STEPS + 1 steps. */
static __global__ void __launch_bounds__(LATE_THREADS) late_step_any_kernel(late_step_args a) {
    bool is_skipped = a.grad_scale != NULL && *a.grad_scale == 0;
    for (int i = (int)threadIdx.x; i < a.now && !is_skipped; i += LATE_THREADS)
        missed_add(&a.late.sums[i], &a.rule, &a.late.missed[i]);
    if (threadIdx.x != 0) return;
    missed_begin(&a.late.sums[a.now], &a.late.missed[a.now]);
    float *rule = a.late.rules + (int64_t)a.now * LATE_RULE;
    rule[0] = is_skipped ? 1 : a.rule.decay;
    rule[1] = is_skipped ? 0 : a.rule.rate;
    rule[2] = is_skipped ? 0 : a.rule.root;
}

status cuda_late_step(backend *be, const late_step_args *a) {
    return cuda_launch(be, "late_step", late_step_any_kernel, 1, LATE_THREADS, 0, *a);
}

__device__ static inline void update_number(opt_kind kind, const optimizer_rule *rule, float g,
                                            float *w, float *m, float *v) {
    if (kind == OPT_ADAMW) {
        optimizer_adamw(rule, g, w, m, v);
    } else if (kind == OPT_ADAGRAD) {
        *m += g * g;
        optimizer_adagrad(rule, g, *m, w);
    } else {
        optimizer_sgd(rule, g, w);
    }
}

/* s += mean(g^2), w -= lr g / (sqrt(s) + eps). */
__device__ static inline void update_rowwise(const update_args &a, const optimizer_rule *rule,
                                             float scale, const float *grad, int64_t row,
                                             int lane) {
    float squares = 0;
    for (int c = lane; c < a.dim; c += WARP)
        squares += (grad[c] * scale) * (grad[c] * scale);
    float s = a.m[row] + warp_sum(squares) / (float)a.dim;
    float rate = optimizer_row_rate(rule, s, scale);
    __syncwarp(); /* every lane has read the old s */
    if (lane == 0) a.m[row] = s;
    for (int c = lane; c < a.dim; c += WARP)
        a.w[row * a.dim + c] -= rate * grad[c];
}

static __global__ void __launch_bounds__(LATE_THREADS)
    update_listed_any_kernel(const update_args a, const optimizer_rule rule) {
    int lane = (int)threadIdx.x % WARP;
    int64_t i = (int64_t)blockIdx.x * LATE_WARPS + threadIdx.x / WARP;
    float scale = a.grad_scale != NULL ? *a.grad_scale : 1;
    if (i >= a.n / a.dim || a.rows[i] < 0 || scale == 0) return;
    int64_t row = a.rows[i], at = row * a.dim;
    const float *grad = a.grad + i * a.dim;
    if (a.kind == OPT_ROWWISE_ADAGRAD) {
        update_rowwise(a, &rule, scale, grad, row, lane);
        return;
    }
    bool is_late = a.late.last != NULL, has_m = a.kind != OPT_SGD, has_v = a.kind == OPT_ADAMW;
    missed_steps k = {};
    if (is_late) k = *late_missed(&a.late, row);
    __syncwarp();
#pragma unroll 1
    for (int c = lane; c < a.dim; c += WARP) {
        float w = a.w[at + c], m = has_m ? a.m[at + c] : 0, v = has_v ? a.v[at + c] : 0;
        if (is_late) {
            w = missed_weight(&k, w, m, v);
            m *= k.m;
            v *= k.v;
        }
        update_number(a.kind, &rule, grad[c] * scale, &w, &m, &v);
        a.w[at + c] = w;
        if (has_m) a.m[at + c] = m;
        if (has_v) a.v[at + c] = v;
    }
    if (is_late && lane == 0) a.late.last[row] = (float)a.now;
}

status cuda_update_listed(backend *be, const update_args *a) {
    if (a->dim <= 0 || a->n < a->dim) return OK;
    optimizer_rule rule =
        optimizer_rule_make(a->kind, a->lr, a->beta1, a->beta2, a->eps, a->weight_decay, a->step);
    return cuda_launch(be, "the update of listed rows", update_listed_any_kernel,
                       cuda_div_up(a->n / a->dim, LATE_WARPS), LATE_THREADS, 0, *a, rule);
}
