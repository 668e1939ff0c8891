/* Dense layers over few rows on Hopper, 16-bit, for inference: y = f(x w^T + bias), and the same
 * followed by the norm of a sum (linear_norm_args in ops/ops.h).
 *
 * With a hundred rows a layer is bound by latency: the launch of its kernels and the loads of its
 * weights.  So a kernel starts while the previous one still runs (cuda_launch_early) and loads its
 * weights, which depend on no kernel, before it waits for x.  A block, one warpgroup, owns 64 rows
 * x 64 columns; all blocks run at once, and the tiles of most sums fit into shared memory as a
 * whole, so that hardly any copy waits for a product.  Before a norm the sum over n_in is cut into
 * parts, which blocks leave in memory as float32; the norm's kernel adds them in a fixed order, a
 * block a row.  No cluster: adding the parts through distributed shared memory takes 1.9 us, as
 * long as a kernel. */
#include "cuda/attn/sm90/attn_sm90.cuh"
#include "cuda/core/kernel.cuh"
#include "cuda/gemm/linear_f.cuh"

enum {
    SMALL_TILE = 64,
    SMALL_TILE_BYTES = SMALL_TILE * PART_BYTES,
    SMALL_STAGE_BYTES = 2 * SMALL_TILE_BYTES
};
enum { MAX_STAGES = 13, MAX_SUM_PARTS = 6, NORM_COLUMNS = 8 };

/* One launch. */
typedef struct small_job {
    CUtensorMap x, w;
    int32_t n, n_out;
    int32_t n_steps, n_stages; /* tiles of 64 along n_in; of the ring */
    epilogue f;
    const void *bias; /* (n_out), or NULL */
    void *y;          /* (n, n_out) */
    float *parts;     /* (gridDim.z, n, n_out) instead of y, or NULL */
} small_job;

/* The block's steps of the sum: first .. first + n - 1. */
typedef struct small_steps {
    int first, n;
} small_steps;

__device__ static inline small_steps small_steps_of(const small_job &job) {
    int part = (int)blockIdx.z, n_parts = (int)gridDim.z;
    int first = part * job.n_steps / n_parts;
    return {first, (part + 1) * job.n_steps / n_parts - first};
}

__device__ static inline void small_load_w(const small_job &job, char *stage, uint64_t *full,
                                           int step) {
    barrier_expect(full, SMALL_STAGE_BYTES);
    tile_load(stage, &job.w, full, step * SMALL_TILE, (int)blockIdx.x * SMALL_TILE);
}

__device__ static inline void small_load_x(const small_job &job, char *stage, uint64_t *full,
                                           int step) {
    tile_load(stage + SMALL_TILE_BYTES, &job.x, full, step * SMALL_TILE,
              (int)blockIdx.y * SMALL_TILE);
}

/* The block's sums, while stages that are done are loaded again. */
template <typename T>
__device__ static inline void small_multiply(const small_job &job, small_steps steps,
                                             uint64_t *full, char *ring,
                                             float (&sum)[SMALL_TILE / 2]) {
    int at = 0, parity = 0;
    for (int i = 0; i < steps.n; i++) {
        char *stage = ring + at * SMALL_STAGE_BYTES;
        barrier_wait(&full[at], (uint32_t)parity);
        uint64_t x = tile_describe(stage + SMALL_TILE_BYTES, 16), w = tile_describe(stage, 16);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < SMALL_TILE / 16; k++)
            wgmma_ss<T, SMALL_TILE>(sum, tile_move(x, k * 32), tile_move(w, k * 32), i + k > 0);
        wgmma_commit();
        if (i + job.n_stages < steps.n) { /* rare: most sums fit into the ring */
            wgmma_wait<0>();
            __syncthreads();
            if (threadIdx.x == 0) {
                small_load_w(job, stage, &full[at], steps.first + i + job.n_stages);
                small_load_x(job, stage, &full[at], steps.first + i + job.n_stages);
            }
            __syncwarp();
        }
        if (++at == job.n_stages) {
            at = 0;
            parity ^= 1;
        }
    }
    wgmma_wait<0>();
}

/* Leaves the sums as a part; the thread's rows are row and row + 8. */
__device__ static inline void small_leave(const small_job &job, int row,
                                          const float (&sum)[SMALL_TILE / 2]) {
    float *to = job.parts + (int64_t)blockIdx.z * job.n * job.n_out + blockIdx.x * SMALL_TILE +
                threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + 8 * r >= job.n) continue;
        float *at = to + (int64_t)(row + 8 * r) * job.n_out;
#pragma unroll
        for (int c = 0; c < SMALL_TILE / 8; c++)
            __stcg((float2 *)(at + 8 * c), make_float2(sum[4 * c + 2 * r], sum[4 * c + 2 * r + 1]));
    }
}

template <typename T>
__device__ static inline void small_store(const small_job &job, int row,
                                          const float2 (&bias)[SMALL_TILE / 8],
                                          float (&sum)[SMALL_TILE / 2]) {
#pragma unroll
    for (int i = 0; i < SMALL_TILE / 2; i++) {
        sum[i] += i % 2 == 0 ? bias[i / 4].x : bias[i / 4].y;
        if (job.f == EPILOGUE_GELU_TANH) sum[i] *= sigmoid<T>(gelu_twice_u(sum[i]));
    }
    store_wide<T, SMALL_TILE>((T *)job.y + blockIdx.x * SMALL_TILE, job.n_out, row, job.n, 1.0f,
                              sum);
}

template <typename T>
__global__ void __launch_bounds__(GROUP, 1)
    linear_small_sm90_kernel(const __grid_constant__ small_job job) {
    extern __shared__ char shared[];
    __shared__ uint64_t full[MAX_STAGES];
    char *ring = shared + (1024 - shared_address(shared) % 1024) % 1024;
    small_steps steps = small_steps_of(job);
    int n_early = min(steps.n, job.n_stages);
    int row = (int)blockIdx.y * SMALL_TILE + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    float sum[SMALL_TILE / 2];
    float2 bias[SMALL_TILE / 8];
    if (threadIdx.x == 0) {
        tile_prefetch_map(&job.x);
        for (int i = 0; i < n_early; i++)
            barrier_init(&full[i], 1);
        barrier_init_done();
        for (int i = 0; i < n_early; i++)
            small_load_w(job, ring + i * SMALL_STAGE_BYTES, &full[i], steps.first + i);
    }
#pragma unroll
    for (int c = 0; c < SMALL_TILE / 8; c++) {
        const T *at = (const T *)job.bias + blockIdx.x * SMALL_TILE + 8 * c + threadIdx.x % 4 * 2;
        bias[c] = job.bias != NULL ? make_float2(to_float(at[0]), to_float(at[1]))
                                   : make_float2(0.0f, 0.0f);
    }
    __syncthreads();
    grid_launch_next();
    grid_wait();
    if (threadIdx.x == 0)
        for (int i = 0; i < n_early; i++)
            small_load_x(job, ring + i * SMALL_STAGE_BYTES, &full[i], steps.first + i);
    __syncwarp();
    small_multiply<T>(job, steps, full, ring, sum);
    if (job.parts != NULL)
        small_leave(job, row, sum);
    else
        small_store<T>(job, row, bias, sum);
}

/* A row of the norm: the sum of the parts, shift and residual. */
template <typename T>
__global__ void residual_norm_parts_sm90_kernel(const residual_norm_args a, const float *parts,
                                                int n_parts) {
    __shared__ float room[2][WARP];
    int c = (int)threadIdx.x * NORM_COLUMNS, warp = (int)threadIdx.x / WARP;
    int n_warps = ((int)blockDim.x + WARP - 1) / WARP;
    int64_t at = (int64_t)blockIdx.x * a.dim + c;
    float v[NORM_COLUMNS], weight[NORM_COLUMNS], bias[NORM_COLUMNS];
    columns<float, NORM_COLUMNS> part[MAX_SUM_PARTS];
    columns<T, NORM_COLUMNS> residual;
#pragma unroll
    for (int j = 0; j < NORM_COLUMNS; j++) {
        v[j] = a.shift != NULL ? a.shift[c + j] : 0.0f;
        weight[j] = a.weight[c + j];
        bias[j] = a.bias[c + j];
    }
    grid_launch_next();
    grid_wait();
#pragma unroll
    for (int p = 0; p < MAX_SUM_PARTS; p++)
        if (p < n_parts)
            part[p] = *(const columns<float, NORM_COLUMNS> *)(parts + p * a.n * a.dim + at);
    if (a.residual != NULL)
        residual = *(const columns<T, NORM_COLUMNS> *)((const T *)a.residual + at);
#pragma unroll
    for (int p = 0; p < MAX_SUM_PARTS; p++)
#pragma unroll
        for (int j = 0; j < NORM_COLUMNS; j++)
            if (p < n_parts) v[j] += column(part[p], j);
    float total = 0.0f, squares = 0.0f;
#pragma unroll
    for (int j = 0; j < NORM_COLUMNS; j++) {
        if (a.residual != NULL) v[j] += column(residual, j);
        total += v[j];
    }
    total = warp_sum(total);
    if (threadIdx.x % WARP == 0) room[0][warp] = total;
    __syncthreads();
    total = 0.0f;
    for (int w = 0; w < n_warps; w++)
        total += room[0][w];
    float mean = total / (float)a.dim;
#pragma unroll
    for (int j = 0; j < NORM_COLUMNS; j++)
        squares += (v[j] - mean) * (v[j] - mean);
    squares = warp_sum(squares);
    if (threadIdx.x % WARP == 0) room[1][warp] = squares;
    __syncthreads();
    squares = 0.0f;
    for (int w = 0; w < n_warps; w++)
        squares += room[1][w];
    float rstd = 1.0f / sqrtf(squares / (float)a.dim + a.eps);
#pragma unroll
    for (int j = 0; j < NORM_COLUMNS; j++)
        v[j] = (v[j] - mean) * rstd * weight[j] + bias[j];
    store_columns<true>((T *)a.y + (int64_t)blockIdx.x * a.dim, c, a.dim, v);
}

static int64_t count_tiles(const linear_args *a) {
    return cuda_div_up(a->n, SMALL_TILE) * (a->n_out / SMALL_TILE);
}

bool cuda_linear_small_can(const backend *be, const linear_packed_args *packed) {
    const linear_args *a = &packed->layer;
    return cuda_of(be)->sm == 90 && be->act != ACT_F32 && packed->kernel == LINEAR_FASTEST &&
           a->n > 0 && a->is_transposed && a->z == NULL && a->residual == NULL &&
           (a->f == EPILOGUE_NONE || a->f == EPILOGUE_GELU_TANH) && a->n_in % SMALL_TILE == 0 &&
           a->n_out % SMALL_TILE == 0 && count_tiles(a) <= cuda_of(be)->n_multiprocessors &&
           is_aligned(a->x, 16) && is_aligned(a->y, 16) && is_aligned(packed->packed, 16);
}

template <typename T>
static status launch(backend *be, const linear_packed_args *packed, int n_parts, float *parts) {
    const linear_args *a = &packed->layer;
    small_job job = {};
    size_t w_bytes = cuda_align((size_t)a->n_in * (size_t)a->n_out * sizeof(T));
    int most = (int)cuda_div_up(a->n_in / SMALL_TILE, n_parts);
    job.n = (int32_t)a->n;
    job.n_out = a->n_out;
    job.n_steps = a->n_in / SMALL_TILE;
    job.n_stages = most < MAX_STAGES ? most : MAX_STAGES;
    job.f = a->f;
    job.bias = a->bias != NULL ? (const char *)packed->packed + w_bytes : NULL;
    job.y = a->y;
    job.parts = parts;
    int bytes = job.n_stages * SMALL_STAGE_BYTES + 1024;
    TRY(sm90a_map(&job.x, be->act, a->x, a->n, a->n_in, a->n_in));
    TRY(sm90a_map(&job.w, be->act, packed->packed, a->n_out, a->n_in, a->n_in));
    return cuda_launch_early(be, "a dense layer over few rows", linear_small_sm90_kernel<T>,
                             dim3((unsigned)(a->n_out / SMALL_TILE),
                                  (unsigned)cuda_div_up(a->n, SMALL_TILE), (unsigned)n_parts),
                             GROUP, bytes, job);
}

status cuda_linear_small(backend *be, const linear_packed_args *a) {
    return be->act == ACT_BF16 ? launch<__nv_bfloat16>(be, a, 1, NULL)
                               : launch<__half>(be, a, 1, NULL);
}

bool cuda_linear_norm_small_can(const backend *be, const linear_norm_args *a) {
    const residual_norm_args *r = &a->norm;
    return cuda_linear_small_can(be, &a->linear) && a->linear.layer.f == EPILOGUE_NONE &&
           a->linear.layer.bias == NULL && r->dim <= 1024 && r->dim % (WARP * NORM_COLUMNS) == 0 &&
           is_aligned(r->residual, 16) && is_aligned(r->y, 16);
}

/* Parts of the sum such that all blocks run at once; no more than shorten it. */
static int choose_parts(const backend *be, const linear_args *a) {
    int n_steps = a->n_in / SMALL_TILE, best = 1;
    int64_t most = cuda_of(be)->n_multiprocessors / count_tiles(a);
    for (int p = 2; p <= MAX_SUM_PARTS && p <= most && p <= n_steps; p++)
        if (cuda_div_up(n_steps, p) < cuda_div_up(n_steps, best)) best = p;
    return best;
}

template <typename T> static status run_norm(backend *be, const linear_norm_args *a) {
    int n_parts = choose_parts(be, &a->linear.layer);
    void *parts;
    size_t n = (size_t)a->linear.layer.n * (size_t)a->linear.layer.n_out;
    TRY(cuda_scratch(be, (size_t)n_parts * n * sizeof(float), &parts));
    TRY(launch<T>(be, &a->linear, n_parts, (float *)parts));
    return cuda_launch_early(be, "the norm of a dense layer over few rows",
                             residual_norm_parts_sm90_kernel<T>, a->norm.n,
                             a->norm.dim / NORM_COLUMNS, 0, a->norm, (const float *)parts, n_parts);
}

status cuda_linear_norm_small(backend *be, const linear_norm_args *a) {
    return be->act == ACT_BF16 ? run_norm<__nv_bfloat16>(be, a) : run_norm<__half>(be, a);
}
