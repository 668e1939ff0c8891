/* Mixture of logits (ops.h): gated layers, indices, auxiliary losses and the softmax over the pairs
 * of a row; the pairs themselves are in mol_pairs.cu.  A warp has a row of the softmax; sums run in
 * a fixed order. */
#include "cuda/core/kernel.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP };

template <typename T> static __global__ void mol_glu_fwd_any_kernel(const mol_glu_args a) {
    int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x, i = k / a.dim, c = k % a.dim;
    if (i >= a.n) return;
    float x = to_float(((const T *)a.z)[2 * i * a.dim + c]);
    float up = to_float(((const T *)a.z)[(2 * i + 1) * a.dim + c]);
    float f = a.f == EPILOGUE_SILU ? x / (1 + __expf(-x)) : x * normcdff(x);
    ((T *)a.y)[k] = from_float<T>(f * up);
}

template <typename T> static __global__ void mol_glu_bwd_any_kernel(const mol_glu_args a) {
    int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x, i = k / a.dim, c = k % a.dim;
    if (i >= a.n) return;
    float x = to_float(((const T *)a.z)[2 * i * a.dim + c]);
    float up = to_float(((const T *)a.z)[(2 * i + 1) * a.dim + c]);
    float g = to_float(((const T *)a.dy)[k]), f, slope;
    if (a.f == EPILOGUE_SILU) {
        float s = 1 / (1 + __expf(-x));
        f = x * s;
        slope = s * (1 + x * (1 - s));
    } else {
        float cdf = normcdff(x);
        f = x * cdf;
        slope = cdf + x * 0.39894228f * __expf(-0.5f * x * x);
    }
    ((T *)a.dz)[2 * i * a.dim + c] = from_float<T>(g * up * slope);
    ((T *)a.dz)[(2 * i + 1) * a.dim + c] = from_float<T>(g * f);
}

static unsigned blocks_of(int64_t n) {
    return (unsigned)cuda_div_up(n, THREADS);
}

status cuda_mol_glu_fwd(backend *be, const mol_glu_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    CUDA_WITH_ACT(be, return cuda_launch(be, "glu", mol_glu_fwd_any_kernel<T>,
                                         blocks_of(a->n * a->dim), THREADS, 0, *a));
}

status cuda_mol_glu_bwd(backend *be, const mol_glu_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    CUDA_WITH_ACT(be, return cuda_launch(be, "the gradient of glu", mol_glu_bwd_any_kernel<T>,
                                         blocks_of(a->n * a->dim), THREADS, 0, *a));
}

static __global__ void mol_index_any_kernel(const mol_index_args a) {
    int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int n_each = a.n_negatives + 1;
    int64_t i = k / n_each;
    int j = (int)(k % n_each);
    if (i >= a.n) return;
    bool is_empty = a.positive != NULL && a.positive[i] < 0;
    if (a.item != NULL)
        a.item[k] = is_empty            ? -1
                    : j < a.n_negatives ? a.negative[i * a.n_negatives + j]
                                        : a.positive[i];
    for (int t = 0; t < a.n_user && j == 0; t++)
        a.user_row[t * a.user_stride + i] =
            is_empty || a.user[i] == MOL_NOBODY ? -1 : (int32_t)(a.user[i] % a.hash[t]) + 1;
}

status cuda_mol_index(backend *be, const mol_index_args *a) {
    if (a->n == 0) return OK;
    return cuda_launch(be, "mol_index", mol_index_any_kernel,
                       blocks_of(a->n * (a->n_negatives + 1)), THREADS, 0, *a);
}

/* One block for each column, then one for all. */
static __global__ void __launch_bounds__(THREADS)
    mol_balance_columns_any_kernel(const mol_balance_args a, double *parts) {
    __shared__ double room[WARP];
    int c = (int)blockIdx.x;
    double sum = 0, entropy = 0, n = 0;
    for (int64_t i = threadIdx.x; i < a.n; i += THREADS) {
        if (a.item[i] < 0) continue;
        float gate = a.gate[i * a.dim + c];
        sum += (double)gate;
        entropy -= (double)(gate * logf(gate + 1e-6f));
        n += 1;
    }
    sum = block_sum(sum, room);
    entropy = block_sum(entropy, room);
    n = block_sum(n, room);
    if (threadIdx.x != 0) return;
    double mean = sum / fmax(n, 1.0);
    a.mean[c] = (float)mean;
    parts[c] = entropy + n * mean * log(mean + 1e-6);
}

/* loss += weight * the sum of n parts. */
static __global__ void __launch_bounds__(THREADS)
    mol_sum_any_kernel(int64_t n, const double *parts, double weight, double *loss) {
    __shared__ double room[WARP];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum += parts[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) *loss += weight * sum;
}

static status add_parts(backend *be, int64_t n, const double *parts, double weight, double *loss) {
    return cuda_launch(be, "the sum of losses", mol_sum_any_kernel, 1, THREADS, 0, n, parts, weight,
                       loss);
}

status cuda_mol_balance(backend *be, const mol_balance_args *a) {
    void *parts;
    TRY(cuda_scratch(be, (size_t)a->dim * sizeof(double), &parts));
    TRY(cuda_launch(be, "mol_balance", mol_balance_columns_any_kernel, (unsigned)a->dim, THREADS, 0,
                    *a, (double *)parts));
    return add_parts(be, a->dim, (double *)parts, (double)a->weight, a->loss);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    mol_penalty_any_kernel(const mol_penalty_args a, double *parts) {
    __shared__ double room[WARP];
    float factor = 2 * *a.grad_scale * a.weight;
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.n;
         i += (int64_t)gridDim.x * THREADS) {
        float x = to_float(((const T *)a.x)[i]);
        T *dx = (T *)a.dx + i;
        sum += (double)(x * x);
        *dx = from_float<T>(to_float(*dx) + factor * x);
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

template <typename T>
static status penalty_of(backend *be, const mol_penalty_args *a, double *parts, unsigned n_blocks) {
    return cuda_launch(be, "mol_penalty", mol_penalty_any_kernel<T>, n_blocks, THREADS, 0, *a,
                       parts);
}

status cuda_mol_penalty(backend *be, const mol_penalty_args *a) {
    enum { MOST_BLOCKS = 256 };
    unsigned n_blocks = blocks_of(a->n);
    void *parts;
    if (a->n == 0) return OK;
    if (n_blocks > MOST_BLOCKS) n_blocks = MOST_BLOCKS;
    TRY(cuda_scratch(be, n_blocks * sizeof(double), &parts));
    CUDA_WITH_ACT(be, TRY(penalty_of<T>(be, a, (double *)parts, n_blocks)));
    return add_parts(be, n_blocks, (double *)parts, (double)a->weight, a->loss);
}

/* A warp for a row. */
static __global__ void __launch_bounds__(THREADS)
    mol_loss_any_kernel(const mol_loss_args a, double *parts) {
    int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int n = a.n_negatives, lane = (int)threadIdx.x % WARP;
    if (i >= a.n) return;
    const int32_t *item = a.item + i * (n + 1);
    float *sim = a.sim + i * (n + 1), scale = 1 / a.temperature, largest = -INFINITY, sum = 0;
    bool is_empty = item[n] < 0;
    float positive = sim[n] * scale;
    __syncwarp();
    for (int j = lane; j <= n; j += WARP)
        largest = fmaxf(largest, j < n && item[j] == item[n] ? -50000.0f : sim[j] * scale);
    largest = warp_max(largest);
    for (int j = lane; j <= n; j += WARP)
        sum += expf((j < n && item[j] == item[n] ? -50000.0f : sim[j] * scale) - largest);
    sum = warp_sum(sum);
    for (int j = lane; j <= n; j += WARP) {
        float p = expf(sim[j] * scale - largest) / sum - (j == n ? 1.0f : 0.0f);
        bool is_hit = j < n && item[j] == item[n];
        sim[j] = is_empty || is_hit ? 0 : *a.grad_scale * scale * p;
    }
    if (lane == 0) parts[i] = is_empty ? 0 : (double)(logf(sum) + largest - positive);
}

status cuda_mol_loss(backend *be, const mol_loss_args *a) {
    void *parts;
    if (a->n == 0) return OK;
    TRY(cuda_scratch(be, (size_t)a->n * sizeof(double), &parts));
    TRY(cuda_launch(be, "mol_loss", mol_loss_any_kernel, (unsigned)cuda_div_up(a->n, WARPS),
                    THREADS, 0, *a, (double *)parts));
    return add_parts(be, a->n, (double *)parts, 1, a->loss);
}
