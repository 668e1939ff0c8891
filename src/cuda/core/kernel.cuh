/* What kernels and their launchers share: launches, scratch memory, activations of three types with
 * one interface, packed columns of rows, dropout, sums over a warp or a block, and kernels that
 * start early.
 *
 * Arithmetic is float32 everywhere; the type of activations only says how elements are stored. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/core/cuda.h"

/* Allows a kernel to use `bytes` of dynamic shared memory; both launchers below do so. */
#define CUDA_ALLOW_SHARED(kernel, bytes)                                                           \
    cudaFuncSetAttribute((kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))

/* Launches a kernel on the backend's stream; `what` names it in messages.  Arguments are converted
 * to the kernel's types. */
template <typename... PARAMETERS, typename... ARGUMENTS>
static inline status cuda_launch(const backend *be, const char *what, void (*kernel)(PARAMETERS...),
                                 dim3 n_blocks, dim3 n_threads, size_t shared_bytes,
                                 const ARGUMENTS &...arguments) {
    if (shared_bytes > 0) CUDA_TRY(CUDA_ALLOW_SHARED(kernel, shared_bytes));
    kernel<<<n_blocks, n_threads, shared_bytes, cuda_of(be)->stream>>>(arguments...);
    return cuda_launched(what);
}

/* Like cuda_launch, for a kernel that may start while the last blocks of the previous kernel of the
 * stream still run (programmatic dependent launch, SM 9.0), in a CUDA graph as well; in clusters of
 * n_cluster blocks.  Each of its threads calls early_begin (below) or grid_wait (ptx_sm90.cuh)
 * before the kernel touches memory, including threads and blocks without work: the next kernel
 * relies on the previous one being complete, too. */
template <typename... PARAMETERS, typename... ARGUMENTS>
static inline status cuda_launch_clusters(const backend *be, const char *what, int n_cluster,
                                          void (*kernel)(PARAMETERS...), dim3 n_blocks,
                                          dim3 n_threads, size_t shared_bytes,
                                          const ARGUMENTS &...arguments) {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    if (shared_bytes > 0) CUDA_TRY(CUDA_ALLOW_SHARED(kernel, shared_bytes));
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)n_cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.gridDim = n_blocks;
    config.blockDim = n_threads;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = cuda_of(be)->stream;
    config.attrs = attributes;
    config.numAttrs = cuda_of(be)->sm < 90 ? 0 : n_cluster > 1 ? 2 : 1;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
    return error == cudaSuccess ? OK : cuda_failed(error, what);
}

/* ... without clusters. */
template <typename... PARAMETERS, typename... ARGUMENTS>
static inline status cuda_launch_early(const backend *be, const char *what,
                                       void (*kernel)(PARAMETERS...), dim3 n_blocks, dim3 n_threads,
                                       size_t shared_bytes, const ARGUMENTS &...arguments) {
    return cuda_launch_clusters(be, what, 1, kernel, n_blocks, n_threads, shared_bytes,
                                arguments...);
}

/* *out = the next n elements of scratch memory, 256-byte aligned; *at, which may be NULL to count
 * bytes alone, is moved past them. */
template <typename T> static inline void cuda_cut(char **at, size_t n, T **out) {
    *out = (T *)*at;
    *at += cuda_align(n * sizeof(T));
}

__device__ static inline float to_float(float x) {
    return x;
}
__device__ static inline float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
__device__ static inline float to_float(__half x) {
    return __half2float(x);
}

template <typename T> __device__ static inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x) {
    return x;
}
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ inline __half from_float<__half>(float x) {
    return __float2half_rn(x);
}

/* N elements that are read or written at once; their address must be a multiple of their total
 * size. */
template <typename T, int N> struct alignas(sizeof(T) * N) pack { T v[N]; };

/* Whether rows of `dim` elements of `size` bytes, `stride` elements apart, starting at p, can be
 * read in packs of n. */
static inline bool can_pack(const void *p, int64_t stride, int64_t dim, size_t size, int n) {
    return (uintptr_t)p % (size * (size_t)n) == 0 && stride % n == 0 && dim % n == 0;
}

static inline bool is_aligned(const void *p, uintptr_t bytes) {
    return (uintptr_t)p % bytes == 0;
}

/* Runs `...` with T as the backend's type of activations: CUDA_WITH_ACT(be, return launch<T>(a)).
 */
#define CUDA_WITH_ACT(be, ...)                                                                     \
    do {                                                                                           \
        if ((be)->act == ACT_BF16) {                                                               \
            using T = __nv_bfloat16;                                                               \
            __VA_ARGS__;                                                                           \
        } else if ((be)->act == ACT_F16) {                                                         \
            using T = __half;                                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using T = float;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

static inline cudaDataType_t cuda_act_type(act_type act) {
    return act == ACT_BF16 ? CUDA_R_16BF : act == ACT_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* A dropout inside a kernel (the draws of ops.h); drop_begin has read the step. */
typedef struct drop_row {
    float rate, scale;
    uint32_t threshold; /* rng_uniform(word) >= rate if word >= threshold */
    rng_key key;
    uint32_t step, site, user, position;
} drop_row;

/* The dropout of one row; cheap where the rate is 0.  rng_uniform(word) >= rate is tested in
 * integers: both sides times 2^24 are exact, and an integer is >= x exactly if it is >= ceil(x). */
__device__ static inline drop_row drop_begin(const dropout &d, int64_t row) {
    drop_row r;
    r.rate = d.rate;
    if (d.rate > 0) {
        r.scale = 1.0f / (1.0f - d.rate);
        r.threshold = (uint32_t)ceilf(d.rate * 16777216.0f) << 8;
        r.key = d.key;
        r.step = *d.step;
        r.site = d.site;
        r.user = d.user[row];
        r.position = d.position[row];
    }
    return r;
}

/* The factors of columns 4 c .. 4 c + 3. */
__device__ static inline float4 drop_factors(const drop_row &r, uint32_t c) {
    if (!(r.rate > 0)) return make_float4(1, 1, 1, 1);
    rng_block w = rng_draw(r.key, r.position, r.user, r.step, r.site << 16 | c);
    return make_float4(
        w.word[0] >= r.threshold ? r.scale : 0, w.word[1] >= r.threshold ? r.scale : 0,
        w.word[2] >= r.threshold ? r.scale : 0, w.word[3] >= r.threshold ? r.scale : 0);
}

/* The factor of one column. */
__device__ static inline float drop_factor(const drop_row &r, uint32_t column) {
    if (!(r.rate > 0)) return 1;
    rng_block w = rng_draw(r.key, r.position, r.user, r.step, r.site << 16 | column / 4);
    uint32_t word = column % 4 == 0   ? w.word[0]
                    : column % 4 == 1 ? w.word[1]
                    : column % 4 == 2 ? w.word[2]
                                      : w.word[3];
    return word >= r.threshold ? r.scale : 0;
}

/* Neighbouring columns of a row, V at a time: what the passes over rows share.
 *
 * Rows whose addresses and widths allow it are read in packs of 16 bytes of activations; others (50
 * columns, say) element by element, but still V neighbours a thread, because one random draw serves
 * four columns.  V is 4 or 8, and a pack begins at a column that is a multiple of V.  PACKED are
 * the columns of one pack of activations, LOOSE those of a thread where rows cannot be packed. */
template <typename T> struct columns_of {
    static constexpr int PACKED = 16 / (int)sizeof(T), LOOSE = 4;
};

/* V columns in their memory format.  Whole words, because the compiler splits a struct of 16-bit
 * elements wherever it is copied. */
template <typename T, int V> struct alignas(sizeof(T) * V) columns {
    uint32_t word[V * sizeof(T) / 4];
};

template <int V> __device__ static inline float column(const columns<float, V> &x, int j) {
    return __uint_as_float(x.word[j]);
}
template <int V> __device__ static inline float column(const columns<__nv_bfloat16, V> &x, int j) {
    uint32_t w = x.word[j / 2];
    return __uint_as_float(j % 2 == 0 ? w << 16 : w & 0xffff0000u);
}
template <int V> __device__ static inline float column(const columns<__half, V> &x, int j) {
    uint32_t w = x.word[j / 2];
    return __half2float(__ushort_as_half((unsigned short)(j % 2 == 0 ? w : w >> 16)));
}

__device__ static inline uint32_t column_bits(float x) {
    return __float_as_uint(x);
}
__device__ static inline uint32_t column_bits(__nv_bfloat16 x) {
    return __bfloat16_as_ushort(x);
}
__device__ static inline uint32_t column_bits(__half x) {
    return __half_as_ushort(x);
}

/* Columns c .. c + V - 1 of a row of `dim`; zeros beyond its end. */
template <bool IS_PACKED, int V, typename T>
__device__ static inline columns<T, V> load_columns(const T *row, int c, int dim) {
    constexpr int A_WORD = 4 / (int)sizeof(T);
    columns<T, V> x;
#pragma unroll
    for (int k = 0; k < V / A_WORD; k++)
        x.word[k] = 0;
    if constexpr (IS_PACKED) {
        if (c < dim) x = *(const columns<T, V> *)(row + c);
    } else {
#pragma unroll
        for (int j = 0; j < V; j++)
            if (c + j < dim) x.word[j / A_WORD] |= column_bits(row[c + j]) << 16 * (j % A_WORD);
    }
    return x;
}

/* Writes V columns; those beyond the row's end are skipped. */
template <bool IS_PACKED, int V, typename T>
__device__ static inline void store_columns(T *row, int c, int dim, const float (&y)[V]) {
    if constexpr (IS_PACKED) {
        pack<T, V> out;
#pragma unroll
        for (int j = 0; j < V; j++)
            out.v[j] = from_float<T>(y[j]);
        if (c < dim) *(pack<T, V> *)(row + c) = out;
    } else {
#pragma unroll
        for (int j = 0; j < V; j++)
            if (c + j < dim) row[c + j] = from_float<T>(y[j]);
    }
}

/* y[j] *= the dropout's factor of column c + j. */
template <int V>
__device__ static inline void drop_columns(const drop_row &drop, int c, float (&y)[V]) {
    if (!(drop.rate > 0)) return;
#pragma unroll
    for (int j = 0; j < V; j += 4) {
        float4 factor = drop_factors(drop, (uint32_t)(c + j) / 4);
        y[j] *= factor.x;
        y[j + 1] *= factor.y;
        y[j + 2] *= factor.z;
        y[j + 3] *= factor.w;
    }
}

/* Blocks of 256 threads: threadIdx.x goes over the packs of a row, threadIdx.y over rows. */
typedef struct row_grid {
    dim3 blocks, threads;
} row_grid;

static inline row_grid row_grid_of(int64_t n, int32_t dim, int v) {
    int64_t n_packs = cuda_div_up(dim, v);
    unsigned x = 8;
    while (x < n_packs && x < 256)
        x *= 2;
    unsigned y = 256 / x;
    row_grid g = {dim3((unsigned)cuda_div_up(n, y)), dim3(x, y)};
    return g;
}

__device__ static inline int64_t row_grid_row(void) {
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

enum { WARP = 32 };

/* The sum over a warp, for every lane; like block_sum in a fixed order, the same bits every time.
 */
template <typename T> __device__ static inline T warp_sum(T x) {
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

__device__ static inline float warp_max(float x) {
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}

/* Every thread of a block of whole warps gets the sum; `room` is shared memory for 32 floats, free
 * again when this returns. */
template <typename T> __device__ static inline T block_sum(T x, T *room) {
    int warp = (int)threadIdx.x / WARP, n_warps = ((int)blockDim.x + WARP - 1) / WARP;
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) room[warp] = x;
    __syncthreads();
    x = threadIdx.x % WARP < n_warps ? room[threadIdx.x % WARP] : T(0);
    x = warp_sum(x);
    __syncthreads();
    return x;
}

/* Kernels that start while the last blocks of the previous one still run (programmatic dependent
 * launch, SM 9.0): between short kernels this saves the time to start one.
 *
 * Each thread of such a kernel calls early_begin before the kernel touches memory that another
 * kernel may write or read: it lets the next kernel start where there is room, and waits until the
 * previous one is complete.  Files that use it are compiled for each architecture on its own. */
__device__ static inline void early_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

/* The same without letting the next kernel start: it, and those after it, may read what this one
 * writes before they wait (as the attention reads sequences and pages, attn_args.is_repeated). */
__device__ static inline void early_begin_alone() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Where a row of the tables of a gather is (gather_args in ops/ops.h). */

template <typename S>
__device__ static inline const S *gather_row(const gather_args &a, int64_t i) {
    const S *row = (const S *)a.table + i * a.dim;
    if (sizeof(S) == sizeof(float))
        for (int k = 0; k < a.n_far && i >= a.far[k].from; k++)
            row = (const S *)(a.far[k].rows + (i - a.far[k].from) * a.far[k].stride);
    return row;
}
