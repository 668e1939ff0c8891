/* Keys and values in pages (attn_pages, kv_put_args in ops.h): written by op kv_put, and collected
 * for attention kernels that read contiguous rows.
 *
 * kv_put: a thread copies 16 bytes of a row, or one element where rows are not aligned; the limit
 * is bytes.  Collecting: a warp owns a row; twice the bytes of the cache are moved besides the
 * attention's own read, which attn_sm90_paged.cu and attn_sm80_fwd.cu save. */
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
    kv_put_any_kernel<P><<<(unsigned)n_blocks, PUT_THREADS, 0, cuda_of(be)->stream>>>(a);
    return cuda_launched("keys and values to pages");
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
