/* Dense layers (ops.h): products by matmul.cu, and the passes around them, which are bound by
 * bytes.
 *
 * Forward: the product with bias and residual in its epilogue writes z, one pass computes y from
 * it; where z is not kept, cuBLASLt's own epilogues (relu, and gelu by tanh) save that pass.
 * Backward: one pass turns dy into dz in place and sums the columns for dbias; then the two
 * products.  Weights and biases are float32: 16-bit activations are multiplied with a copy in
 * their type, made each time (for 1024 x 4096 that is 25 MB, 1 % of the time of its product with
 * 131168 rows) or, for inference, once (linear_pack). */
#include "cuda/core/kernel.cuh"
#include "cuda/gemm/linear_f.cuh"

enum { LINEAR_THREADS = 256 };

typedef struct copy_job {
    int64_t n_packs; /* of the weight */
    const float *w, *bias;
    int32_t n_bias;
    void *to_w, *to_bias;
} copy_job;

/* A thread copies N elements of the weight, or one of the bias. */
template <typename T, int N> static __global__ void linear_copy_any_kernel(copy_job j) {
    int64_t i = (int64_t)blockIdx.x * LINEAR_THREADS + threadIdx.x;
    if (i < j.n_packs) {
        pack<float, N> from = ((const pack<float, N> *)j.w)[i];
        pack<T, N> to;
#pragma unroll
        for (int c = 0; c < N; c++)
            to.v[c] = from_float<T>(from.v[c]);
        ((pack<T, N> *)j.to_w)[i] = to;
    } else if (i - j.n_packs < j.n_bias) {
        ((T *)j.to_bias)[i - j.n_packs] = from_float<T>(j.bias[i - j.n_packs]);
    }
}

template <typename T> static status copy_launch(backend *be, const linear_args *a, copy_job j) {
    int64_t size = (int64_t)a->n_in * a->n_out;
    bool is_packed = can_pack(a->w, size, size, sizeof(float), 4);
    j.n_packs = is_packed ? size / 4 : size;
    return cuda_launch(be, "the copy of a weight",
                       is_packed ? linear_copy_any_kernel<T, 4> : linear_copy_any_kernel<T, 1>,
                       cuda_div_up(j.n_packs + j.n_bias, LINEAR_THREADS), LINEAR_THREADS, 0, j);
}

/* The weight and the bias in the type of the products, in `room` where that takes a copy. */
typedef struct weights {
    const void *w, *bias;
} weights;

static size_t weights_bytes(const backend *be, const linear_args *a) {
    if (be->act == ACT_F32) return 0;
    return cuda_align((size_t)a->n_in * (size_t)a->n_out * 2) + cuda_align((size_t)a->n_out * 2);
}

static status take_weights(backend *be, const linear_args *a, const float *bias, void *room,
                           weights *out) {
    *out = {a->w, bias};
    if (be->act == ACT_F32) return OK;
    char *to_bias = (char *)room + cuda_align((size_t)a->n_in * (size_t)a->n_out * 2);
    copy_job j = {0, a->w, bias, bias != NULL ? a->n_out : 0, room, to_bias};
    *out = {room, bias != NULL ? to_bias : NULL};
    if (be->act == ACT_BF16) return copy_launch<__nv_bfloat16>(be, a, j);
    return copy_launch<__half>(be, a, j);
}

/* y = f(z), N elements a thread. */
template <typename T, int N>
static __global__ void linear_epilogue_any_kernel(int64_t n_packs, epilogue f, const T *z, T *y) {
    int64_t i = (int64_t)blockIdx.x * LINEAR_THREADS + threadIdx.x;
    if (i >= n_packs) return;
    pack<T, N> x = ((const pack<T, N> *)z)[i];
    linear_f<T, N>(f, &x);
    ((pack<T, N> *)y)[i] = x;
}

template <typename T>
static status f_launch(backend *be, epilogue f, int64_t n, const void *z, void *y) {
    enum { N = 16 / sizeof(T) };
    bool is_packed = can_pack(z, n, n, sizeof(T), N) && can_pack(y, n, n, sizeof(T), N);
    int64_t n_packs = is_packed ? n / N : n;
    return cuda_launch(
        be, "the activation of a layer",
        is_packed ? linear_epilogue_any_kernel<T, N> : linear_epilogue_any_kernel<T, 1>,
        cuda_div_up(n_packs, LINEAR_THREADS), LINEAR_THREADS, 0, n_packs, f, (const T *)z, (T *)y);
}

/* y = silu(y) in place, and keys and values to their pages; lengths and strides of `put` count
 * packs of N numbers. */
template <typename T, int N>
static __global__ void linear_silu_put_any_kernel(int64_t n_packs, int32_t n_across, pack<T, N> *y,
                                                  int32_t first_k, int32_t first_v,
                                                  const __grid_constant__ kv_put_args put) {
    int64_t i = (int64_t)blockIdx.x * LINEAR_THREADS + threadIdx.x;
    if (i >= n_packs) return;
    int64_t row = i / n_across;
    int column = (int)(i - row * n_across), key = column - first_k, value = column - first_v;
    bool is_key = (unsigned)key < (unsigned)put.dim_k;
    bool is_kept = is_key || (unsigned)value < (unsigned)put.dim_v;
    int slot = is_kept ? put.slot[row] : -1;
    pack<T, N> x = y[i];
    linear_f<T, N>(EPILOGUE_SILU, &x);
    y[i] = x;
    if (slot < 0) return;
    int64_t page = slot / put.page_len * put.stride, at = slot % put.page_len;
    if (is_key)
        ((pack<T, N> *)put.pages_k)[page + at * put.dim_k + key] = x;
    else
        ((pack<T, N> *)put.pages_v)[page + at * put.dim_v + value] = x;
}

/* Whether the activation and op kv_put can be one pass over y. */
static bool can_silu_put(const backend *be, const linear_args *a, const kv_put_args *p) {
    size_t size = act_bytes(be->act);
    int n = (int)(16 / size);
    if (p == NULL || a->f != EPILOGUE_SILU || a->z != NULL) return false;
    return can_pack(a->y, a->n_out, a->n_out, size, n) &&
           can_pack(p->k, p->stride_k, p->dim_k, size, n) &&
           can_pack(p->v, p->stride_v, p->dim_v, size, n) &&
           can_pack(p->pages_k, p->stride, p->dim_k, size, n) &&
           can_pack(p->pages_v, p->stride, p->dim_v, size, n);
}

template <typename T> static status silu_put(backend *be, const linear_args *a, kv_put_args put) {
    enum { N = 16 / sizeof(T) };
    int64_t n_packs = a->n * a->n_out / N;
    int32_t first_k = (int32_t)(((const T *)put.k - (const T *)a->y) / N);
    int32_t first_v = (int32_t)(((const T *)put.v - (const T *)a->y) / N);
    put.dim_k /= N, put.dim_v /= N, put.stride /= N;
    return cuda_launch(be, "the activation of a layer, and keys and values to pages",
                       linear_silu_put_any_kernel<T, N>, cuda_div_up(n_packs, LINEAR_THREADS),
                       LINEAR_THREADS, 0, n_packs, a->n_out / N, (pack<T, N> *)a->y, first_k,
                       first_v, put);
}

status cuda_activate(backend *be, epilogue f, int64_t n, const void *z, void *y) {
    if (n == 0) return OK;
    CUDA_WITH_ACT(be, return f_launch<T>(be, f, n, z, y));
}

/* A packed weight, and its bias after it, both in the type of the activations.  On Hopper in 16
 * bits the weight is (n_out, n_in), as the kernels of linear_large_sm90.cu read it.  The weight and
 * bias of a norm before it are then part of both: norm(x) W + bias = rstd (x W' - mean sums) +
 * shift, where W' = diag(weight) W, sums are those of W' over n_in, as rounded, and shift = bias W
 * (that of the norm) + bias; sums and shift follow, in float32. */
static bool is_turned(const backend *be) {
    return cuda_of(be)->sm == 90 && be->act != ACT_F32;
}

static linear_parts parts_of(const backend *be, void *packed, int32_t n_in, int32_t n_out) {
    size_t size = act_bytes(be->act), room = cuda_align((size_t)n_out * sizeof(float));
    char *w = (char *)packed, *bias = w + cuda_align((size_t)n_in * (size_t)n_out * size);
    char *sums = bias + cuda_align((size_t)n_out * size);
    size_t more = is_turned(be) ? 2 * room : 0, bytes = (size_t)(sums - w) + more;
    char *codes = w + bytes, *scales = codes + cuda_align((size_t)n_in * (size_t)n_out);
    return {
        w, bias, (float *)sums, (float *)(sums + room), bytes, (uint8_t *)codes, (float *)scales};
}

size_t cuda_linear_packed_bytes(backend *be, int32_t n_in, int32_t n_out) {
    return parts_of(be, NULL, n_in, n_out).bytes;
}

enum { TURN = 32, TURN_ROWS = 8 };

/* to (n, m) = diag(scale) from (m, n), transposed, a tile of 32 x 32 a block; from (n, m) where it
 * is transposed already. */
template <typename T>
static __global__ void linear_turn_any_kernel(int32_t m, int32_t n, bool is_transposed,
                                              const float *from, const float *scale, T *to) {
    __shared__ float tile[TURN][TURN + 1];
    int x = (int)(blockIdx.x * TURN + threadIdx.x), y = (int)(blockIdx.y * TURN + threadIdx.y);
    for (int i = 0; i < TURN; i += TURN_ROWS)
        if (x < n && y + i < m && !is_transposed)
            tile[threadIdx.y + i][threadIdx.x] = from[(int64_t)(y + i) * n + x];
    __syncthreads();
    x = (int)(blockIdx.y * TURN + threadIdx.x);
    y = (int)(blockIdx.x * TURN + threadIdx.y);
    for (int i = 0; i < TURN; i += TURN_ROWS) {
        if (x >= m || y + i >= n) continue;
        int64_t at = (int64_t)(y + i) * m + x;
        float w = is_transposed ? from[at] : tile[threadIdx.x][threadIdx.y + i];
        to[at] = from_float<T>(scale != NULL ? w * scale[x] : w);
    }
}

/* Sums, shift and bias, a warp for each of n_out columns. */
template <typename T>
static __global__ void __launch_bounds__(LINEAR_THREADS)
    linear_fold_any_kernel(const linear_args a, const float *norm_bias, linear_parts to) {
    int lane = (int)threadIdx.x % 32;
    int64_t n = (int64_t)blockIdx.x * (LINEAR_THREADS / 32) + threadIdx.x / 32;
    float sum = 0, shift = 0;
    if (n >= a.n_out) return;
    for (int64_t k = lane; k < a.n_in; k += 32) {
        sum += to_float(((const T *)to.w)[n * a.n_in + k]);
        if (norm_bias != NULL)
            shift += norm_bias[k] * a.w[a.is_transposed ? n * a.n_in + k : k * a.n_out + n];
    }
    sum = warp_sum(sum);
    shift = warp_sum(shift) + (a.bias != NULL ? a.bias[n] : 0);
    if (lane > 0) return;
    to.sums[n] = sum;
    to.shift[n] = shift;
    ((T *)to.bias)[n] = from_float<T>(shift);
}

template <typename T>
static status pack_turned(backend *be, const linear_args *a, const norm_args *norm,
                          linear_parts to) {
    dim3 grid((unsigned)cuda_div_up(a->n_out, TURN), (unsigned)cuda_div_up(a->n_in, TURN));
    const float *weight = norm != NULL ? norm->weight : NULL;
    const float *bias = norm != NULL ? norm->bias : NULL;
    if (a->n_in == 0 || a->n_out == 0) return OK;
    TRY(cuda_launch(be, "the transposed copy of a weight", linear_turn_any_kernel<T>, grid,
                    dim3(TURN, TURN_ROWS), 0, a->n_in, a->n_out, a->is_transposed, a->w, weight,
                    (T *)to.w));
    TRY(cuda_launch(be, "the sums of a weight", linear_fold_any_kernel<T>,
                    cuda_div_up(a->n_out, LINEAR_THREADS / 32), LINEAR_THREADS, 0, *a, bias, to));
    return be->ops->sync(be); /* kernels read it before the one before them is complete */
}

static status check_fp8(const backend *be) {
    const cuda_state *s = cuda_of(be);
    if (s->sm == 90 && be->act == ACT_BF16) return OK;
    return fail(ERR_UNSUPPORTED,
                "8-bit products (fp8) need a GPU of SM 9.0 (such as H100 or H200) and bfloat16 "
                "activations; %s is %s, SM %d.%d: use --dtype bfloat16",
                s->name, s->card, s->sm / 10, s->sm % 10);
}

status cuda_linear_pack(backend *be, const linear_packed_args *packed) {
    const linear_args *a = &packed->layer;
    weights w;
    linear_parts to = parts_of(be, packed->packed, a->n_in, a->n_out);
    if (packed->is_fp8) TRY(check_fp8(be));
    if (is_turned(be) && be->act == ACT_BF16) {
        TRY(pack_turned<__nv_bfloat16>(be, a, packed->norm, to));
        return packed->is_fp8 ? cuda_linear_fp8_pack(be, a, &to) : OK;
    }
    if (is_turned(be)) return pack_turned<__half>(be, a, packed->norm, to);
    if (be->act != ACT_F32) return take_weights(be, a, a->bias, packed->packed, &w);
    TRY(cuda_copy(be, to.w, a->w, (size_t)a->n_in * (size_t)a->n_out * sizeof(float)));
    if (a->bias == NULL) return OK;
    return cuda_copy(be, to.bias, a->bias, (size_t)a->n_out * sizeof(float));
}

/* Whether the product's own epilogue is the activation: not in float32, where its gelu is not exact
 * enough, nor for sides for which cuBLASLt may have no such kernel. */
static bool is_fused(const backend *be, const linear_args *a) {
    return a->z == NULL && (a->f == EPILOGUE_RELU || a->f == EPILOGUE_GELU_TANH) &&
           be->act != ACT_F32 && a->n_in % 8 == 0 && a->n_out % 8 == 0;
}

/* The product and its activation, then op kv_put where `put` is not NULL. */
static status forward(backend *be, const linear_args *a, weights w, bool is_w_transposed,
                      int32_t kernel, const kv_put_args *put) {
    cuda_product p = {};
    p.m = a->n, p.n = a->n_out, p.k = a->n_in;
    p.a = a->x, p.row_a = a->n_in;
    p.is_b_transposed = is_w_transposed;
    p.b = w.w, p.row_b = is_w_transposed ? a->n_in : a->n_out;
    p.type = p.type_d = cuda_act_type(be->act);
    p.c = a->residual, p.bias = w.bias;
    p.d = a->f != EPILOGUE_NONE && a->z != NULL ? a->z : a->y, p.row_d = a->n_out;
    p.f = is_fused(be, a) ? a->f : EPILOGUE_NONE;
    p.kernel = kernel;
    TRY(cuda_matmul(be, &p));
    if (can_silu_put(be, a, put)) CUDA_WITH_ACT(be, return silu_put<T>(be, a, *put));
    if (a->f != p.f) TRY(cuda_activate(be, a->f, a->n * a->n_out, p.d, a->y));
    return put != NULL ? cuda_kv_put(be, put) : OK;
}

status cuda_linear_fwd(backend *be, const linear_args *a) {
    size_t bytes = weights_bytes(be, a);
    void *room = NULL;
    weights w;
    if (a->n == 0 || a->n_in == 0 || a->n_out == 0) return OK;
    if (bytes > 0) TRY(cuda_scratch(be, bytes, &room));
    TRY(take_weights(be, a, a->bias, room, &w));
    return forward(be, a, w, a->is_transposed, 0, NULL);
}

status cuda_linear_packed(backend *be, const linear_packed_args *packed) {
    const linear_args *a = &packed->layer;
    linear_parts p = parts_of(be, packed->packed, a->n_in, a->n_out);
    bool is_large = cuda_linear_large_can(be, packed);
    bool is_folded = packed->norm != NULL && is_turned(be); /* the norm's weight and bias */
    if (packed->moments != NULL) packed->moments->width = 0;
    if (a->n == 0 || a->n_in == 0 || a->n_out == 0) return OK;
    if (cuda_linear_fp8_can(be, packed)) return cuda_linear_fp8(be, packed, &p);
    if (packed->norm != NULL && !(is_large && cuda_linear_large_norms(packed))) {
        norm_args norm = *packed->norm;
        if (is_folded) norm.weight = norm.bias = NULL;
        TRY(cuda_norm_fwd(be, &norm));
    }
    if (is_large) return cuda_linear_large(be, packed, &p);
    if (cuda_linear_small_can(be, packed)) return cuda_linear_small(be, packed);
    weights w = {p.w, a->bias != NULL || is_folded ? p.bias : NULL};
    return forward(be, a, w, a->is_transposed || is_turned(be), packed->kernel, packed->put);
}

/* A block owns 32 packs of columns and goes down its group of rows, ROWS_Y rows at a time; a thread
 * has LOADS rows in flight. */
enum {
    PACKS_X = 32,
    ROWS_Y = LINEAR_THREADS / PACKS_X,
    LOADS = 2,
    MIN_DZ_GROUP = ROWS_Y * LOADS * 4
};

typedef struct dz_job {
    int64_t n, group_rows;
    int32_t n_out;
    epilogue f;
    const void *z;
    void *dy;
    float *partials; /* (groups, n_out): sums of the columns, or NULL */
} dz_job;

/* Up to LOADS rows, ROWS_Y apart: all are read before the first is written. */
template <typename T, int N>
__device__ static inline void dz_rows(const dz_job &j, int64_t row, int64_t end, int64_t column,
                                      float (&sum)[N]) {
    pack<T, N> dy[LOADS], z[LOADS];
#pragma unroll
    for (int r = 0; r < LOADS; r++) {
        int64_t at = (row + r * ROWS_Y) * j.n_out + column;
        if (row + r * ROWS_Y >= end) continue;
        dy[r] = *(const pack<T, N> *)((const T *)j.dy + at);
        if (j.f != EPILOGUE_NONE) z[r] = *(const pack<T, N> *)((const T *)j.z + at);
    }
#pragma unroll
    for (int r = 0; r < LOADS; r++) {
        int64_t at = (row + r * ROWS_Y) * j.n_out + column;
        if (row + r * ROWS_Y >= end) continue;
        linear_df<T, N>(j.f, z[r], &dy[r]);
#pragma unroll
        for (int c = 0; c < N; c++)
            sum[c] += to_float(dy[r].v[c]);
        if (j.f != EPILOGUE_NONE) *(pack<T, N> *)((T *)j.dy + at) = dy[r];
    }
}

template <typename T, int N>
static __global__ void __launch_bounds__(LINEAR_THREADS) linear_bwd_dz_any_kernel(dz_job j) {
    __shared__ float room[ROWS_Y][PACKS_X * N + 1];
    int x = (int)threadIdx.x % PACKS_X, y = (int)threadIdx.x / PACKS_X;
    int64_t first_column = (int64_t)blockIdx.y * (PACKS_X * N), column = first_column + x * N;
    int64_t first = blockIdx.x * j.group_rows;
    int64_t end = first + j.group_rows < j.n ? first + j.group_rows : j.n;
    float sum[N] = {};
    if (column < j.n_out) {
        for (int64_t row = first + y; row < end; row += ROWS_Y * LOADS)
            dz_rows<T, N>(j, row, end, column, sum);
    }
    if (j.partials == NULL) return;
#pragma unroll
    for (int c = 0; c < N; c++)
        room[y][x * N + c] = sum[c];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < PACKS_X * N && first_column + i < j.n_out;
         i += LINEAR_THREADS) {
        float total = 0;
        for (int r = 0; r < ROWS_Y; r++)
            total += room[r][i];
        j.partials[(int64_t)blockIdx.x * j.n_out + first_column + i] = total;
    }
}

/* dbias += the groups' sums, in a fixed order: a block owns 32 columns, a row of threads every
 * eighth group. */
static __global__ void __launch_bounds__(LINEAR_THREADS)
    linear_bwd_dbias_any_kernel(int32_t n_groups, int32_t n_out, const float *partials,
                                float *dbias) {
    __shared__ float room[ROWS_Y][PACKS_X];
    int x = (int)threadIdx.x % PACKS_X, y = (int)threadIdx.x / PACKS_X;
    int64_t column = (int64_t)blockIdx.x * PACKS_X + x;
    float sum = 0;
    if (column < n_out) {
#pragma unroll 4
        for (int32_t g = y; g < n_groups; g += ROWS_Y)
            sum += partials[(int64_t)g * n_out + column];
    }
    room[y][x] = sum;
    __syncthreads();
    if (y > 0 || column >= n_out) return;
    for (int r = 1; r < ROWS_Y; r++)
        sum += room[r][x];
    dbias[column] += sum;
}

static int dz_pack(const backend *be, const linear_args *a) {
    size_t size = act_bytes(be->act);
    int n = (int)(16 / size);
    bool is_packed = can_pack(a->dy, a->n_out, a->n_out, size, n) &&
                     (a->f == EPILOGUE_NONE || can_pack(a->z, a->n_out, a->n_out, size, n));
    return is_packed ? n : 1;
}

/* Rows of a group: some blocks for each multiprocessor, whatever the number of columns. */
static int64_t dz_group_rows(backend *be, const linear_args *a) {
    int64_t across = cuda_div_up(a->n_out, PACKS_X * dz_pack(be, a));
    int64_t n_groups = cuda_div_up((int64_t)cuda_of(be)->n_multiprocessors * 8, across);
    int64_t rows = cuda_div_up(a->n, n_groups);
    return rows < MIN_DZ_GROUP ? (int64_t)MIN_DZ_GROUP : rows;
}

template <typename T> static status dz_launch(backend *be, const linear_args *a, const dz_job &j) {
    enum { N = 16 / sizeof(T) };
    int pack_size = dz_pack(be, a);
    dim3 grid((unsigned)cuda_div_up(j.n, j.group_rows),
              (unsigned)cuda_div_up(j.n_out, PACKS_X * pack_size));
    return cuda_launch(be, "the gradient of a layer's activation",
                       pack_size > 1 ? linear_bwd_dz_any_kernel<T, N>
                                     : linear_bwd_dz_any_kernel<T, 1>,
                       grid, LINEAR_THREADS, 0, j);
}

/* dz in place of dy, and dbias. */
static status backward_f(backend *be, const linear_args *a, float *partials) {
    dz_job j = {a->n,
                dz_group_rows(be, a),
                a->n_out,
                a->f,
                a->z,
                a->dy,
                a->dbias != NULL ? partials : NULL};
    if (a->f == EPILOGUE_NONE && a->dbias == NULL) return OK;
    CUDA_WITH_ACT(be, TRY(dz_launch<T>(be, a, j)));
    if (a->dbias == NULL) return OK;
    return cuda_launch(be, "the gradient of a bias", linear_bwd_dbias_any_kernel,
                       cuda_div_up(a->n_out, PACKS_X), LINEAR_THREADS, 0,
                       (int32_t)cuda_div_up(a->n, j.group_rows), a->n_out, partials, a->dbias);
}

/* dx (+)= dz W^T */
static status backward_to_x(backend *be, const linear_args *a, void *room) {
    weights w;
    if (a->dx == NULL) return OK;
    TRY(take_weights(be, a, NULL, room, &w));
    cuda_product p = {};
    p.m = a->n, p.n = a->n_in, p.k = a->n_out;
    p.a = a->dy, p.row_a = a->n_out;
    p.b = w.w, p.row_b = a->is_transposed ? a->n_in : a->n_out;
    p.is_b_transposed = !a->is_transposed;
    p.type = p.type_d = cuda_act_type(be->act);
    p.d = a->dx, p.row_d = a->n_in;
    p.c = a->adds_dx ? a->dx : NULL;
    return cuda_matmul(be, &p);
}

/* dW += x^T dz, or its transpose dz^T x: a sum over all rows. */
static status backward_to_w(backend *be, const linear_args *a) {
    cuda_product p = {};
    p.m = a->is_transposed ? a->n_out : a->n_in;
    p.n = a->is_transposed ? a->n_in : a->n_out;
    p.k = a->n;
    p.a = a->is_transposed ? a->dy : a->x, p.row_a = p.m;
    p.b = a->is_transposed ? a->x : a->dy, p.row_b = p.n;
    p.is_a_transposed = true;
    p.type = cuda_act_type(be->act), p.type_d = CUDA_R_32F;
    p.c = p.d = a->dw, p.row_d = p.n;
    return cuda_matmul(be, &p);
}

status cuda_linear_bwd(backend *be, const linear_args *a) {
    char *room = NULL;
    if (a->n == 0 || a->n_in == 0 || a->n_out == 0) return OK;
    size_t w_bytes = a->dx != NULL ? weights_bytes(be, a) : 0, bytes = w_bytes;
    if (a->dbias != NULL)
        bytes += (size_t)(cuda_div_up(a->n, dz_group_rows(be, a)) * a->n_out) * sizeof(float);
    if (bytes > 0) TRY(cuda_scratch(be, bytes, (void **)&room));
    TRY(backward_f(be, a, (float *)(room + w_bytes)));
    TRY(backward_to_x(be, a, room));
    return backward_to_w(be, a);
}
