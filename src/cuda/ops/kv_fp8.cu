/* kv_fp8, as ops.h states it.
 *
 * A warp owns a head of a row, of the keys or of the values: it finds the largest number, then
 * converts.  Pages are converted once for each pass that reads or writes them, so bytes are the
 * limit: three times those of the narrow pages in 16 bits. */
#include <cuda_fp8.h>

#include "cuda/core/act.cuh"
#include "cuda/core/reduce.cuh"

enum { FP8_THREADS = 256, FP8_HEADS = FP8_THREADS / 32 };

/* fp8_exponent of base/half.h. */
__device__ static int fp8_exponent_of(float largest) {
    int exponent;
    if (!(largest > 0) || !isfinite(largest)) return 0;
    float part = frexpf(largest, &exponent);
    exponent -= part <= 0.875f ? 9 : 8;
    return max(-100, min(exponent, 100));
}

__device__ static uint8_t fp8_of(float x) {
    return (uint8_t)__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

__device__ static float fp8_value(uint8_t x) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)x, __NV_E4M3)));
}

/* The largest exponent: numbers of float16 must not be rounded up to infinity. */
template <typename T> __device__ static int exponent_most(const T *) {
    return 100;
}
template <> __device__ int exponent_most<__half>(const __half *) {
    return 7;
}

/* The exponent for the n numbers of a head; every lane has it. */
template <typename T> __device__ static int head_exponent(const T *x, int n) {
    float largest = 0;
    for (int i = (int)threadIdx.x % 32; i < n; i += 32)
        largest = fmaxf(largest, fabsf(to_float(x[i])));
    return min(fp8_exponent_of(__shfl_sync(~0u, warp_max(largest), 0)), exponent_most(x));
}

/* Head `at` of all heads of all rows, keys first. */
template <typename T>
static __global__ void __launch_bounds__(FP8_THREADS)
    kv_fp8_round_any_kernel(const __grid_constant__ kv_fp8_args a) {
    int64_t at = (int64_t)blockIdx.x * FP8_HEADS + threadIdx.x / 32, all = a.n * a.n_heads;
    if (at >= 2 * all) return;
    bool is_key = at < all;
    if (!is_key) at -= all;
    int64_t row = at / a.n_heads, head = at % a.n_heads;
    int n = is_key ? a.dim_qk : a.dim_v;
    T *x = is_key ? (T *)a.k + row * a.stride_k + head * n : (T *)a.v + row * a.stride_v + head * n;
    int exponent = head_exponent(x, n);
    float down = ldexpf(1, -exponent), up = ldexpf(1, exponent);
    for (int i = (int)threadIdx.x % 32; i < n; i += 32)
        x[i] = from_float<T>(fp8_value(fp8_of(to_float(x[i]) * down)) * up);
}

/* Head `at` of the heads of page blockIdx.y, keys first. */
template <typename T>
static __global__ void __launch_bounds__(FP8_THREADS)
    kv_fp8_page_any_kernel(const __grid_constant__ kv_fp8_args a, int64_t page_bytes) {
    int at = (int)(blockIdx.x * FP8_HEADS + threadIdx.x / 32), all = a.page_len * a.n_heads;
    if (at >= 2 * all) return;
    bool is_key = at < all;
    int head = is_key ? at : at - all, n = is_key ? a.dim_qk : a.dim_v;
    uint8_t *page = a.narrow + a.page[blockIdx.y] * page_bytes;
    uint8_t *values = page + (int64_t)all * a.dim_qk;
    int8_t *exponents = (int8_t *)(values + (int64_t)all * a.dim_v);
    uint8_t *narrow = (is_key ? page : values) + (int64_t)head * n;
    T *wide = (T *)(is_key ? a.pages_k : a.pages_v) + blockIdx.y * a.stride + (int64_t)head * n;
    bool is_pack = a.kind == KV_PACK;
    int exponent = is_pack ? head_exponent(wide, n) : exponents[at];
    float scale = ldexpf(1, is_pack ? -exponent : exponent);
    for (int i = (int)threadIdx.x % 32; i < n; i += 32)
        if (is_pack)
            narrow[i] = fp8_of(to_float(wide[i]) * scale);
        else
            wide[i] = from_float<T>(fp8_value(narrow[i]) * scale);
    if (is_pack && threadIdx.x % 32 == 0) exponents[at] = (int8_t)exponent;
}

template <typename T> static status round_rows(backend *be, const kv_fp8_args *a) {
    int64_t n_blocks = cuda_div_up(2 * a->n * a->n_heads, FP8_HEADS);
    kv_fp8_round_any_kernel<T><<<(unsigned)n_blocks, FP8_THREADS, 0, cuda_of(be)->stream>>>(*a);
    return cuda_launched("keys and values to 8 bits");
}

template <typename T> static status convert_pages(backend *be, const kv_fp8_args *a) {
    int64_t heads = 2 * (int64_t)a->page_len * a->n_heads;
    dim3 grid((unsigned)cuda_div_up(heads, FP8_HEADS), (unsigned)a->n_pages);
    int64_t bytes = kv_fp8_page_bytes(a->page_len, a->n_heads, a->dim_qk, a->dim_v);
    kv_fp8_page_any_kernel<T><<<grid, FP8_THREADS, 0, cuda_of(be)->stream>>>(*a, bytes);
    return cuda_launched("pages in 8 bits");
}

enum { MAX_GRID_Y = 65535 };

status cuda_kv_fp8(backend *be, const kv_fp8_args *a) {
    if (a->kind == KV_ROUND) {
        if (a->n == 0) return OK;
        CUDA_WITH_ACT(be, return round_rows<T>(be, a));
    }
    for (int32_t first = 0; first < a->n_pages; first += MAX_GRID_Y) {
        kv_fp8_args part = *a;
        int64_t skipped = first * a->stride * (int64_t)act_bytes(be->act);
        part.n_pages = a->n_pages - first < MAX_GRID_Y ? a->n_pages - first : MAX_GRID_Y;
        part.page += first;
        part.pages_k = (char *)a->pages_k + skipped;
        part.pages_v = (char *)a->pages_v + skipped;
        status st = OK;
        CUDA_WITH_ACT(be, st = convert_pages<T>(be, &part));
        TRY(st);
    }
    return OK;
}
