/* Keys and values in pages (attn_pages, kv_put_args, kv_fp8_args in ops.h): written by op kv_put,
 * collected for attention kernels that read contiguous rows, and converted to 8 bits and back.
 *
 * kv_put: a thread copies 16 bytes of a row, or one element where rows are not aligned; the limit
 * is bytes.  Collecting: a warp owns a row; twice the bytes of the cache are moved besides the
 * attention's own read, which attn_sm90_paged.cu and attn_sm80_fwd.cu save. */
#include <cuda_fp8.h>

#include "cuda/core/kernel.cuh"

enum { PUT_THREADS = 256, KV_THREADS = 128, KV_ROWS = KV_THREADS / 32 };

template <typename T> __device__ static void copy_row(T *to, const T *from, int dim) {
    for (int c = (int)threadIdx.x % 32; c < dim; c += 32)
        to[c] = from[c];
}

/* Lengths and strides of `a` count elements of P. */
template <typename P>
static __global__ void __launch_bounds__(PUT_THREADS)
    kv_put_any_kernel(const __grid_constant__ kv_put_args a) {
    int64_t at = (int64_t)blockIdx.x * PUT_THREADS + threadIdx.x;
    int width = a.dim_k + a.dim_v, column = (int)(at % width);
    int64_t i = at / width;
    int slot = i < a.n ? a.slot[i] : -1;
    if (slot < 0) return;
    int64_t page = slot / a.page_len * a.stride, row = slot % a.page_len;
    bool is_key = column < a.dim_k;
    if (is_key)
        ((P *)a.pages_k)[page + row * a.dim_k + column] = ((const P *)a.k)[i * a.stride_k + column];
    column -= a.dim_k;
    if (!is_key)
        ((P *)a.pages_v)[page + row * a.dim_v + column] = ((const P *)a.v)[i * a.stride_v + column];
}

template <typename P> static status put(backend *be, const kv_put_args *from, int n) {
    kv_put_args a = *from;
    a.dim_k /= n;
    a.dim_v /= n;
    a.stride_k /= n;
    a.stride_v /= n;
    a.stride /= n;
    int64_t n_blocks = cuda_div_up(a.n * (a.dim_k + a.dim_v), PUT_THREADS);
    return cuda_launch(be, "keys and values to pages", kv_put_any_kernel<P>, n_blocks, PUT_THREADS,
                       0, a);
}

status cuda_kv_put(backend *be, const kv_put_args *a) {
    int size = (int)act_bytes(be->act), n = 16 / size;
    if (a->n == 0) return OK;
    bool is_packed = can_pack(a->k, a->stride_k, a->dim_k, size, n) &&
                     can_pack(a->v, a->stride_v, a->dim_v, size, n) &&
                     can_pack(a->pages_k, a->stride, a->dim_k, size, n) &&
                     can_pack(a->pages_v, a->stride, a->dim_v, size, n);
    if (is_packed) return put<uint4>(be, a, n);
    return be->act == ACT_F32 ? put<uint32_t>(be, a, 1) : put<uint16_t>(be, a, 1);
}

/* Row j of sequence blockIdx.y, from its page or from k and v. */
template <typename T>
static __global__ void __launch_bounds__(KV_THREADS)
    kv_collect_any_kernel(const __grid_constant__ attn_args a, T *k, T *v) {
    int b = (int)blockIdx.y, j = (int)(blockIdx.x * KV_ROWS + threadIdx.x / 32);
    const attn_pages &p = a.pages;
    int first = p.offsets[b], n = p.offsets[b + 1] - first;
    int row_k = a.offsets_k[b], n_paged = n - (a.offsets_k[b + 1] - row_k);
    if (j >= n) return;
    int dim_k = a.n_heads * a.dim_qk, dim_v = a.n_heads * a.dim_v;
    const T *from_k = (const T *)a.k + (int64_t)(row_k + j - n_paged) * a.stride_k;
    const T *from_v = (const T *)a.v + (int64_t)(row_k + j - n_paged) * a.stride_v;
    if (j < n_paged) {
        int64_t page = p.table[(int64_t)b * p.max_pages + j / p.page_len], row = j % p.page_len;
        from_k = (const T *)p.k + page * p.stride + row * dim_k;
        from_v = (const T *)p.v + page * p.stride + row * dim_v;
    }
    copy_row(k + (int64_t)(first + j) * dim_k, from_k, dim_k);
    copy_row(v + (int64_t)(first + j) * dim_v, from_v, dim_v);
}

template <typename T> static status collect(backend *be, const attn_args *from, attn_args *a) {
    int64_t n = (int64_t)from->n_sequences * from->max_len_k;
    int64_t dim_k = (int64_t)from->n_heads * from->dim_qk;
    int64_t dim_v = (int64_t)from->n_heads * from->dim_v;
    size_t k_bytes = cuda_align((size_t)(n * dim_k) * sizeof(T));
    char *room = NULL;
    TRY(cuda_mask_scratch(be, k_bytes + (size_t)(n * dim_v) * sizeof(T), (void **)&room));
    dim3 grid((unsigned)cuda_div_up(from->max_len_k, KV_ROWS), (unsigned)from->n_sequences);
    kv_collect_any_kernel<T>
        <<<grid, KV_THREADS, 0, cuda_of(be)->stream>>>(*from, (T *)room, (T *)(room + k_bytes));
    *a = *from;
    a->k = room;
    a->v = room + k_bytes;
    a->stride_k = dim_k;
    a->stride_v = dim_v;
    a->offsets_k = from->pages.offsets;
    a->n_rows_k = 0;
    a->pages.table = NULL;
    return cuda_launched("keys and values from pages");
}

status cuda_attn_collect(backend *be, const attn_args *from, attn_args *a) {
    if (from->n_sequences == 0 || from->max_len_k == 0) {
        *a = *from;
        a->pages.table = NULL;
        return OK;
    }
    return be->act == ACT_F32 ? collect<uint32_t>(be, from, a) : collect<uint16_t>(be, from, a);
}

/* kv_fp8: a warp owns a head of a row, of the keys or of the values: it finds the largest number,
 * then converts.  Pages are converted once for each pass that reads or writes them; bound by bytes:
 * three times those of the narrow pages in 16 bits. */
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
    return cuda_launch(be, "keys and values to 8 bits", kv_fp8_round_any_kernel<T>, n_blocks,
                       FP8_THREADS, 0, *a);
}

template <typename T> static status convert_pages(backend *be, const kv_fp8_args *a) {
    int64_t heads = 2 * (int64_t)a->page_len * a->n_heads;
    dim3 grid((unsigned)cuda_div_up(heads, FP8_HEADS), (unsigned)a->n_pages);
    int64_t bytes = kv_fp8_page_bytes(a->page_len, a->n_heads, a->dim_qk, a->dim_v);
    return cuda_launch(be, "pages in 8 bits", kv_fp8_page_any_kernel<T>, grid, FP8_THREADS, 0, *a,
                       bytes);
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
