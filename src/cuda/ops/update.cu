/* Optimizers (ops.h), and the small passes beside them: sum of squares, its factor, and y += x.
 *
 * One launch updates up to 40 weights, because most weights of a model are small, and a launch for
 * each would cost more than the work.  The blocks of a launch are assigned to the weights in order:
 * a block takes 4096 elements of a dense weight, or some rows of a table, one warp for each row.
 * Bound by bytes: one pass reads and writes weight, state and gradient and zeroes the gradient. */
#include "cuda/core/kernel.cuh"

enum { UPDATE_THREADS = 256, UPDATE_WARPS = UPDATE_THREADS / WARP, UPDATE_NUMBERS = 4096 };
enum { UPDATE_AT_ONCE = 40, PASS_THREADS = 256 };

/* One weight; 96 bytes, so that 40 fit the 4 KB of a kernel's arguments. */
typedef struct update_one {
    float *w, *grad, *m, *v;
    uint8_t *marks;
    const float *grad_scale;
    int64_t n;
    int32_t dim;
    int32_t rows_of_warp; /* 0: a dense weight, all numbers alike */
    optimizer_rule rule;
    uint32_t first_block;
    uint8_t kind;
    bool is_packed; /* float4 can be used */
} update_one;

typedef struct update_list {
    update_one of[UPDATE_AT_ONCE];
    int n;
} update_list;

/* Updates one element of a weight; g is its scaled gradient. */
__device__ static inline void update_number(const update_one &u, float g, float *w, float *m,
                                            float *v) {
    if (u.kind == OPT_ADAMW) {
        optimizer_adamw(&u.rule, g, w, m, v);
    } else if (u.kind == OPT_ADAGRAD) {
        *m += g * g;
        optimizer_adagrad(&u.rule, g, *m, w);
    } else {
        optimizer_sgd(&u.rule, g, w);
    }
}

/* Numbers i .. i + 3. */
__device__ static inline void update_quad(const update_one &u, float scale, int64_t i) {
    bool has_m = u.kind != OPT_SGD, has_v = u.kind == OPT_ADAMW;
    float4 g = *(const float4 *)(u.grad + i), w = *(const float4 *)(u.w + i), m = {}, v = {};
    if (has_m) m = *(const float4 *)(u.m + i);
    if (has_v) v = *(const float4 *)(u.v + i);
    update_number(u, g.x * scale, &w.x, &m.x, &v.x);
    update_number(u, g.y * scale, &w.y, &m.y, &v.y);
    update_number(u, g.z * scale, &w.z, &m.z, &v.z);
    update_number(u, g.w * scale, &w.w, &m.w, &v.w);
    *(float4 *)(u.w + i) = w;
    if (has_m) *(float4 *)(u.m + i) = m;
    if (has_v) *(float4 *)(u.v + i) = v;
    *(float4 *)(u.grad + i) = make_float4(0, 0, 0, 0);
}

__device__ static inline void update_single(const update_one &u, float scale, int64_t i) {
    bool has_m = u.kind != OPT_SGD, has_v = u.kind == OPT_ADAMW;
    float w = u.w[i], m = has_m ? u.m[i] : 0, v = has_v ? u.v[i] : 0;
    update_number(u, u.grad[i] * scale, &w, &m, &v);
    u.w[i] = w;
    if (has_m) u.m[i] = m;
    if (has_v) u.v[i] = v;
    u.grad[i] = 0;
}

/* Elements i .. i + count - 1, by n_lanes threads.  A scale of 0 means that the step is skipped. */
__device__ static inline void update_span(const update_one &u, float scale, int64_t i, int count,
                                          int lane, int n_lanes) {
    int n_quads = u.is_packed && scale != 0 ? count / 4 : 0;
    for (int q = lane; q < n_quads; q += n_lanes)
        update_quad(u, scale, i + 4 * q);
    for (int k = 4 * n_quads + lane; k < count; k += n_lanes)
        if (scale != 0)
            update_single(u, scale, i + k);
        else
            u.grad[i + k] = 0;
}

/* s += mean(g^2), w -= lr g / (sqrt(s) + eps): a warp makes two passes over the row. */
__device__ static inline void update_rowwise_adagrad(const update_one &u, float scale, int64_t row,
                                                     int lane) {
    float *w = u.w + row * u.dim, *grad = u.grad + row * u.dim;
    float squares = 0, rate = 0;
    if (scale != 0) {
        for (int c = lane; c < u.dim; c += WARP)
            squares += (grad[c] * scale) * (grad[c] * scale);
        float s = u.m[row] + warp_sum(squares) / (float)u.dim;
        rate = optimizer_row_rate(&u.rule, s, scale);
        __syncwarp(); /* every lane has read the old s */
        if (lane == 0) u.m[row] = s;
    }
    for (int c = lane; c < u.dim; c += WARP) {
        if (scale != 0) w[c] -= rate * grad[c];
        grad[c] = 0;
    }
}

/* A warp reads the marks of up to 32 rows at once, and then updates the marked rows in turn. */
__device__ static inline void update_rows(const update_one &u, float scale, int64_t block) {
    int lane = (int)threadIdx.x % WARP;
    int64_t first = (block * UPDATE_WARPS + (int)threadIdx.x / WARP) * u.rows_of_warp;
    int64_t mine = first + lane, n_rows = u.n / u.dim;
    bool is_mine = lane < u.rows_of_warp && mine < n_rows;
    is_mine = is_mine && (u.marks == NULL || u.marks[mine] != 0);
    for (unsigned todo = __ballot_sync(0xffffffffu, is_mine); todo != 0; todo &= todo - 1) {
        int64_t row = first + __ffs((int)todo) - 1;
        if (u.kind == OPT_ROWWISE_ADAGRAD)
            update_rowwise_adagrad(u, scale, row, lane);
        else
            update_span(u, scale, row * u.dim, u.dim, lane, WARP);
    }
    if (is_mine && u.marks != NULL) u.marks[mine] = 0;
}

static __global__ void __launch_bounds__(UPDATE_THREADS)
    update_weights_any_kernel(const __grid_constant__ update_list list) {
    int low = 0, high = list.n - 1; /* the last weight that begins at this block or before */
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (list.of[middle].first_block <= blockIdx.x)
            low = middle;
        else
            high = middle - 1;
    }
    const update_one &u = list.of[low];
    int64_t block = blockIdx.x - u.first_block;
    float scale = u.grad_scale != NULL ? *u.grad_scale : 1;
    if (u.rows_of_warp > 0) {
        update_rows(u, scale, block);
        return;
    }
    int64_t first = block * UPDATE_NUMBERS;
    int count = (int)min((int64_t)UPDATE_NUMBERS, u.n - first);
    update_span(u, scale, first, count, (int)threadIdx.x, UPDATE_THREADS);
}

/* A warp takes few rows where there are few, so that a small table is spread over the whole GPU. */
static int32_t rows_of_warp(const backend *be, const update_args *a) {
    int64_t rows = a->n / a->dim / ((int64_t)cuda_of(be)->n_multiprocessors * 64);
    return rows < 1 ? 1 : rows > 32 ? 32 : (int32_t)rows;
}

static bool is_packed(const update_args *a, int64_t dim) {
    bool is =
        can_pack(a->w, dim, dim, sizeof(float), 4) && can_pack(a->grad, dim, dim, sizeof(float), 4);
    if (a->kind == OPT_ADAMW || a->kind == OPT_ADAGRAD)
        is = is && can_pack(a->m, dim, dim, sizeof(float), 4);
    return is && (a->kind != OPT_ADAMW || can_pack(a->v, dim, dim, sizeof(float), 4));
}

static update_one one_of(const backend *be, const update_args *a) {
    bool is_dense = a->marks == NULL && a->kind != OPT_ROWWISE_ADAGRAD;
    update_one u = {};
    u.w = a->w;
    u.grad = a->grad;
    u.m = a->m;
    u.v = a->v;
    u.marks = a->marks;
    u.grad_scale = a->grad_scale;
    u.n = a->n;
    u.dim = a->dim;
    u.rows_of_warp = is_dense ? 0 : rows_of_warp(be, a);
    u.rule =
        optimizer_rule_make(a->kind, a->lr, a->beta1, a->beta2, a->eps, a->weight_decay, a->step);
    u.kind = (uint8_t)a->kind;
    u.is_packed = is_packed(a, is_dense ? 4 : a->dim);
    return u;
}

static int64_t blocks_of(const update_one *u) {
    if (u->rows_of_warp == 0) return cuda_div_up(u->n, UPDATE_NUMBERS);
    return cuda_div_up(u->n / u->dim, (int64_t)u->rows_of_warp * UPDATE_WARPS);
}

static bool has_work(const update_args *a) {
    bool is_dense = a->marks == NULL && a->kind != OPT_ROWWISE_ADAGRAD;
    return a->rows == NULL && a->n > 0 && (is_dense || (a->dim > 0 && a->n >= a->dim));
}

status cuda_update(backend *be, const update_args *a, int n) {
    for (int i = 0; i < n;) {
        update_list list;
        int64_t n_blocks = 0;
        for (list.n = 0; i < n && list.n < UPDATE_AT_ONCE; i++) {
            if (a[i].rows != NULL) TRY(cuda_update_listed(be, &a[i]));
            if (!has_work(&a[i])) continue;
            update_one u = one_of(be, &a[i]);
            u.first_block = (uint32_t)n_blocks;
            n_blocks += blocks_of(&u);
            list.of[list.n++] = u;
        }
        if (list.n == 0) continue;
        TRY(cuda_launch(be, "update", update_weights_any_kernel, n_blocks, UPDATE_THREADS, 0,
                        list));
    }
    return OK;
}

/* Averages, up to 80 weights a launch; blocks are assigned as those of `update`. */
enum { AVERAGE_AT_ONCE = 80 };

typedef struct average_one {
    average_args a;
    uint32_t first_block;
} average_one;

typedef struct average_list {
    average_one of[AVERAGE_AT_ONCE];
    int n;
    float share;
} average_list;

static __global__ void __launch_bounds__(UPDATE_THREADS)
    average_weights_any_kernel(const __grid_constant__ average_list list) {
    int which = 0;
    while (which + 1 < list.n && list.of[which + 1].first_block <= blockIdx.x)
        which++;
    const average_args &a = list.of[which].a;
    int64_t first = (int64_t)(blockIdx.x - list.of[which].first_block) * UPDATE_NUMBERS;
    int64_t end = min(a.n, first + UPDATE_NUMBERS);
    for (int64_t i = first + threadIdx.x; i < end; i += UPDATE_THREADS)
        a.average[i] += list.share * (a.w[i] - a.average[i]);
}

status cuda_average(backend *be, const average_args *a, int n, float decay) {
    for (int i = 0; i < n;) {
        average_list list;
        int64_t n_blocks = 0;
        list.share = 1 - decay;
        for (list.n = 0; i < n && list.n < AVERAGE_AT_ONCE; i++) {
            if (a[i].n == 0) continue;
            list.of[list.n].a = a[i];
            list.of[list.n++].first_block = (uint32_t)n_blocks;
            n_blocks += cuda_div_up(a[i].n, UPDATE_NUMBERS);
        }
        if (list.n == 0) continue;
        TRY(cuda_launch(be, "average", average_weights_any_kernel, n_blocks, UPDATE_THREADS, 0,
                        list));
    }
    return OK;
}

/* The sum of a block's share: four elements at a time, then the remainder. */
static __global__ void __launch_bounds__(PASS_THREADS)
    sum_squares_chunks_any_kernel(int64_t n, int64_t n_quads, const float *x, double *partials,
                                  double *out) {
    __shared__ double room[WARP];
    int64_t thread = (int64_t)blockIdx.x * PASS_THREADS + threadIdx.x;
    int64_t n_threads = (int64_t)gridDim.x * PASS_THREADS;
    double sum = 0;
#pragma unroll 4
    for (int64_t q = thread; q < n_quads; q += n_threads) {
        float4 v = ((const float4 *)x)[q];
        sum += (double)v.x * v.x + (double)v.y * v.y + ((double)v.z * v.z + (double)v.w * v.w);
    }
    for (int64_t i = 4 * n_quads + thread; i < n; i += n_threads)
        sum += (double)x[i] * x[i];
    sum = block_sum(sum, room);
    if (threadIdx.x != 0) return;
    if (gridDim.x == 1)
        *out += sum;
    else
        partials[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(PASS_THREADS)
    sum_squares_partials_any_kernel(int n, const double *partials, double *out) {
    __shared__ double room[WARP];
    double sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += PASS_THREADS)
        sum += partials[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) *out += sum;
}

/* The sum of squares in integers, for --deterministic: each square is rounded to a multiple of
 * 2^-60 times a power of two above the largest one, and then added exactly.  So the sum depends
 * neither on the order nor on zeros between the numbers: the gradient of a table in shards, of
 * which only the rows of the batch are there, has the bits of a whole table's. */
typedef struct squares_sum {
    unsigned int largest; /* bits of the largest magnitude: larger numbers have larger ones */
    unsigned int n_done;  /* blocks */
    unsigned long long high, low;
} squares_sum;

enum { SQUARES_BITS = 60, SQUARES_LOW_BITS = 30 };
#define SQUARES_INFINITE 0x7f800000u

__device__ static inline unsigned int magnitude_bits(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}

/* The largest of a block's share: four elements at a time, then the remainder. */
static __global__ void __launch_bounds__(PASS_THREADS)
    sum_squares_largest_any_kernel(int64_t n, int64_t n_quads, const float *x, squares_sum *sum) {
    __shared__ unsigned int room;
    int64_t thread = (int64_t)blockIdx.x * PASS_THREADS + threadIdx.x;
    int64_t n_threads = (int64_t)gridDim.x * PASS_THREADS;
    unsigned int most = 0;
    if (threadIdx.x == 0) room = 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t q = thread; q < n_quads; q += n_threads) {
        float4 v = ((const float4 *)x)[q];
        most = max(most, max(max(magnitude_bits(v.x), magnitude_bits(v.y)),
                             max(magnitude_bits(v.z), magnitude_bits(v.w))));
    }
    for (int64_t i = 4 * n_quads + thread; i < n; i += n_threads)
        most = max(most, magnitude_bits(x[i]));
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, lane));
    if (threadIdx.x % WARP == 0) atomicMax(&room, most);
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(&sum->largest, room);
}

typedef struct long_sum {
    unsigned long long high, low;
} long_sum;

__device__ static inline void add_square(long_sum *to, float x, double scale) {
    unsigned long long square = __double2ull_rn((double)x * x * scale);
    to->high += square >> SQUARES_LOW_BITS;
    to->low += square & ((1ull << SQUARES_LOW_BITS) - 1);
}

/* The block that is done last adds the result to *out. */
static __global__ void __launch_bounds__(PASS_THREADS)
    sum_squares_exact_any_kernel(int64_t n, int64_t n_quads, const float *x, squares_sum *sum,
                                 double *out) {
    __shared__ unsigned long long room[WARP];
    int64_t thread = (int64_t)blockIdx.x * PASS_THREADS + threadIdx.x;
    int64_t n_threads = (int64_t)gridDim.x * PASS_THREADS;
    unsigned int largest = sum->largest;
    int exponent = 0;
    (void)frexp((double)__uint_as_float(largest), &exponent); /* every square < 2^(2 exponent) */
    double scale = ldexp(1.0, SQUARES_BITS - 2 * exponent);
    long_sum own = {0, 0};
    if (largest < SQUARES_INFINITE) {
#pragma unroll 4
        for (int64_t q = thread; q < n_quads; q += n_threads) {
            float4 v = ((const float4 *)x)[q];
            add_square(&own, v.x, scale);
            add_square(&own, v.y, scale);
            add_square(&own, v.z, scale);
            add_square(&own, v.w, scale);
        }
        for (int64_t i = 4 * n_quads + thread; i < n; i += n_threads)
            add_square(&own, x[i], scale);
    }
    own.high = block_sum(own.high, room);
    own.low = block_sum(own.low, room);
    if (threadIdx.x != 0) return;
    atomicAdd(&sum->high, own.high);
    atomicAdd(&sum->low, own.low);
    __threadfence();
    if (atomicAdd(&sum->n_done, 1u) != gridDim.x - 1) return;
    __threadfence();
    double high = (double)atomicAdd(&sum->high, 0ull), low = (double)atomicAdd(&sum->low, 0ull);
    double total = (high * (1 << SQUARES_LOW_BITS) + low) / scale;
    if (largest >= SQUARES_INFINITE) total = __uint_as_float(largest); /* or not a number */
    *out += total;
}

/* The same bits on any number of ranks. */
static status sum_squares_exactly(backend *be, int64_t n, int64_t n_blocks, const float *grad,
                                  double *out) {
    int64_t n_quads = can_pack(grad, 4, 4, sizeof(float), 4) ? n / 4 : 0;
    cudaStream_t stream = cuda_of(be)->stream;
    void *memory = NULL;
    TRY(cuda_scratch(be, sizeof(squares_sum), &memory));
    squares_sum *sum = (squares_sum *)memory;
    CUDA_TRY(cudaMemsetAsync(sum, 0, sizeof *sum, stream));
    TRY(cuda_launch(be, "the largest number of sum_squares", sum_squares_largest_any_kernel,
                    n_blocks, PASS_THREADS, 0, n, n_quads, grad, sum));
    return cuda_launch(be, "sum_squares", sum_squares_exact_any_kernel, n_blocks, PASS_THREADS, 0,
                       n, n_quads, grad, sum, out);
}

status cuda_sum_squares(backend *be, int64_t n, const float *grad, double *out) {
    int64_t most = (int64_t)cuda_of(be)->n_multiprocessors * 8;
    int64_t n_blocks = cuda_div_up(n, 16 * PASS_THREADS);
    int64_t n_quads = can_pack(grad, 4, 4, sizeof(float), 4) ? n / 4 : 0;
    void *partials = NULL;
    if (n == 0) return OK;
    if (n_blocks > most) n_blocks = most;
    if (cuda_of(be)->is_deterministic) return sum_squares_exactly(be, n, n_blocks, grad, out);
    if (n_blocks > 1) TRY(cuda_scratch(be, (size_t)n_blocks * sizeof(double), &partials));
    TRY(cuda_launch(be, "sum_squares", sum_squares_chunks_any_kernel, n_blocks, PASS_THREADS, 0, n,
                    n_quads, grad, (double *)partials, out));
    if (n_blocks == 1) return OK;
    return cuda_launch(be, "the sum of sum_squares", sum_squares_partials_any_kernel, 1,
                       PASS_THREADS, 0, (int)n_blocks, (const double *)partials, out);
}

static __global__ void grad_factor_one_any_kernel(const grad_factor_args a) {
    double norm = a.base * sqrt(*a.sum);
    double factor = a.clip > 0 && norm > a.clip ? a.base * (a.clip / norm) : a.base;
    *a.factor = isfinite(*a.sum) ? (float)factor : 0;
    if (a.norm != NULL) *a.norm = norm;
}

status cuda_grad_factor(backend *be, const grad_factor_args *a) {
    return cuda_launch(be, "grad_factor", grad_factor_one_any_kernel, 1, 1, 0, *a);
}

/* A thread adds one pack; the last one adds the remainder. */
template <typename T, int V>
static __global__ void __launch_bounds__(PASS_THREADS)
    add_rows_any_kernel(int64_t n, const T *x, T *y) {
    int64_t i = ((int64_t)blockIdx.x * PASS_THREADS + threadIdx.x) * V;
    if (i + V <= n) {
        pack<T, V> a = *(const pack<T, V> *)(x + i), b = *(const pack<T, V> *)(y + i);
#pragma unroll
        for (int j = 0; j < V; j++)
            b.v[j] = from_float<T>(to_float(b.v[j]) + to_float(a.v[j]));
        *(pack<T, V> *)(y + i) = b;
        return;
    }
    for (; i < n; i++)
        y[i] = from_float<T>(to_float(y[i]) + to_float(x[i]));
}

template <typename T> static status add(backend *be, int64_t n, const void *x, void *y) {
    const int v = 16 / (int)sizeof(T);
    bool is_packed = can_pack(x, v, v, sizeof(T), v) && can_pack(y, v, v, sizeof(T), v);
    return cuda_launch(be, "add", is_packed ? add_rows_any_kernel<T, v> : add_rows_any_kernel<T, 1>,
                       cuda_div_up(n, (is_packed ? v : 1) * PASS_THREADS), PASS_THREADS, 0, n,
                       (const T *)x, (T *)y);
}

status cuda_add(backend *be, int64_t n, const void *x, void *y) {
    if (n == 0) return OK;
    CUDA_WITH_ACT(be, return add<T>(be, n, x, y));
}
