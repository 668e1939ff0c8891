/* Losses of a ranking head (ops.h).  With binary labels a thread owns a logit, with class labels a
 * warp owns a row.  The loss is summed in double: each block leaves one partial sum, and one block
 * adds those in order.  A head has few columns, so this is bound by latency. */
#include "cuda/core/kernel.cuh"

enum { LOSS_THREADS = 256, LOSS_BLOCKS_PER_SM = 4 };

/* Binary cross entropy with logits, as max(z, 0) - z y + ln(1 + exp(-|z|)): no term overflows. */
template <typename T>
__device__ static inline float bits_loss(const logits_loss_args &a, int64_t i, float grad_scale) {
    int64_t n = i / a.n_columns;
    int k = (int)(i - n * a.n_columns);
    float z = to_float(((const T *)a.logits)[i]), small = expf(-fabsf(z));
    float target = (float)((uint32_t)a.label[n] >> k & 1);
    float loss = fmaxf(z, 0) - z * target + log1pf(small);
    float gradient = ((z >= 0 ? 1 : small) / (1 + small) - target) * grad_scale;
    if (a.label[n] < 0) loss = gradient = 0;
    if (a.losses != NULL) a.losses[i] = loss;
    if (a.dlogits != NULL) ((T *)a.dlogits)[i] = from_float<T>(gradient);
    return loss;
}

/* ln sum_k exp(z_k - max) + max - z_label of row n, in every lane; the gradient is softmax - one
 * hot.  A label that is not a class makes loss and gradients NaN, at which a training run stops:
 * the CPU refuses such a label, but a kernel cannot report an error. */
template <typename T>
__device__ static inline float classes_loss(const logits_loss_args &a, int64_t n,
                                            float grad_scale) {
    const T *z = (const T *)a.logits + n * a.n_columns;
    T *dz = (T *)a.dlogits + n * a.n_columns;
    int lane = (int)threadIdx.x % WARP, label = a.label[n];
    float max = -INFINITY, sum = 0, loss = 0, one = label < a.n_columns ? 1.0f : NAN;
    if (label >= 0) {
        float at_label = label < a.n_columns ? to_float(z[label]) : NAN;
        for (int k = lane; k < a.n_columns; k += WARP)
            max = fmaxf(max, to_float(z[k]));
        max = warp_max(max);
        for (int k = lane; k < a.n_columns; k += WARP)
            sum += expf(to_float(z[k]) - max);
        sum = warp_sum(sum);
        loss = logf(sum) + (max - at_label);
    }
    for (int k = lane; a.dlogits != NULL && k < a.n_columns; k += WARP) {
        float hit = k == label || label >= a.n_columns ? one : 0;
        float gradient = (expf(to_float(z[k]) - max) / sum - hit) * grad_scale;
        dz[k] = from_float<T>(label < 0 ? 0 : gradient);
    }
    if (a.losses != NULL && lane == 0) a.losses[n] = loss;
    return loss;
}

/* partials: (blocks). */
template <typename T>
static __global__ void __launch_bounds__(LOSS_THREADS)
    logits_loss_rows_any_kernel(const logits_loss_args a, double *partials) {
    __shared__ double room[WARP];
    float grad_scale = a.dlogits != NULL ? *a.grad_scale : 0;
    int64_t thread = (int64_t)blockIdx.x * LOSS_THREADS + threadIdx.x;
    int64_t n_threads = (int64_t)gridDim.x * LOSS_THREADS;
    double sum = 0;
    if (a.is_bits) {
        for (int64_t i = thread; i < a.n * a.n_columns; i += n_threads)
            sum += bits_loss<T>(a, i, grad_scale);
    } else {
        for (int64_t n = thread / WARP; n < a.n; n += n_threads / WARP) {
            float loss = classes_loss<T>(a, n, grad_scale);
            if (threadIdx.x % WARP == 0) sum += loss;
        }
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(LOSS_THREADS)
    logits_loss_sum_any_kernel(const double *partials, int n, double *loss) {
    __shared__ double room[WARP];
    double sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += LOSS_THREADS)
        sum += partials[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) *loss += sum;
}

status cuda_logits_loss(backend *be, const logits_loss_args *a) {
    int64_t most = (int64_t)cuda_of(be)->n_multiprocessors * LOSS_BLOCKS_PER_SM;
    int64_t n_blocks = cuda_div_up(a->n * (a->is_bits ? a->n_columns : WARP), LOSS_THREADS);
    cudaStream_t stream = cuda_of(be)->stream;
    void *partials;
    if (a->is_bits && a->n_columns > 31)
        return fail(ERR_UNSUPPORTED, "%d tasks were asked for; a label has 31 bits", a->n_columns);
    if (a->n == 0 || a->n_columns == 0) return OK;
    if (n_blocks > most) n_blocks = most;
    TRY(cuda_scratch(be, (size_t)n_blocks * sizeof(double), &partials));
    CUDA_WITH_ACT(be, logits_loss_rows_any_kernel<T>
                  <<<(unsigned)n_blocks, LOSS_THREADS, 0, stream>>>(*a, (double *)partials));
    TRY(cuda_launched("logits_loss"));
    return cuda_launch(be, "the sum of logits_loss", logits_loss_sum_any_kernel, 1, LOSS_THREADS, 0,
                       (const double *)partials, (int)n_blocks, a->loss);
}
