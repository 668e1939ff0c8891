/* Rows of a level by slot (ops/table.h): read, write, init, update.  A warp owns 32 slots; lanes
 * share a row, 16 bytes each, and have several rows in flight (table.cuh).  Bound by bytes: of
 * device memory, or of the bus where the rows are in host memory. */
#include "cuda/table/table_first.cuh"

/* The row of the warp's slot, or NULL where there is none or it is skipped. */
__device__ static inline float *slot_row(const table_level &l, const int64_t *slot,
                                         const uint8_t *only, int64_t i, int64_t n) {
    if (i >= n || (only != NULL && only[i] == 0)) return NULL;
    int64_t s = __ldcs((const long long *)slot + i);
    return s >= 0 ? table_row(&l, s) : NULL;
}

template <typename P>
static __global__ void __launch_bounds__(TABLE_THREADS)
    table_rows_read_any_kernel(const table_level l, const table_rows_args a) {
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (warp_first() >= n) return;
    const float *row = slot_row(l, a.slot, NULL, i, n);
    float *to = i < n ? a.staging + i * a.stride : NULL;
    move_rows<true>((const P *)row, (P *)to, a.n_floats / piece_size<P>::NUMBERS);
}

template <typename P>
static __global__ void __launch_bounds__(TABLE_THREADS)
    table_rows_write_any_kernel(const table_level l, const table_rows_args a) {
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (warp_first() >= n) return;
    float *row = slot_row(l, a.slot, a.only, i, n);
    const float *from = row != NULL ? a.staging + i * a.stride : NULL;
    move_rows<false>((const P *)from, (P *)row, a.n_floats / piece_size<P>::NUMBERS);
}

status cuda_table_read(backend *be, const table_level *l, const table_rows_args *a) {
    if (a->n == 0 || a->n_floats == 0) return OK;
    cudaStream_t stream = cuda_of(be)->stream;
    if (is_packed(a->staging, a->stride, a->n_floats))
        table_rows_read_any_kernel<float4>
            <<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
    else
        table_rows_read_any_kernel<float><<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
    return cuda_launched("read of rows");
}

status cuda_table_write(backend *be, const table_level *l, const table_rows_args *a) {
    if (a->n == 0 || a->n_floats == 0) return OK;
    cudaStream_t stream = cuda_of(be)->stream;
    if (is_packed(a->staging, a->stride, a->n_floats))
        table_rows_write_any_kernel<float4>
            <<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
    else
        table_rows_write_any_kernel<float>
            <<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
    return cuda_launched("write of rows");
}

/* With staging, which then is packed, rows that are not new are read in the same pass: their loads
 * overlap with the arithmetic of the new ones. */
template <bool HAS_STAGING>
static __global__ void __launch_bounds__(TABLE_THREADS, 4)
    table_rows_init_any_kernel(const table_level l, const table_init_args a) {
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (warp_first() >= n) return;
    float *row = slot_row(l, a.slot, NULL, i, n);
    float *to = HAS_STAGING && i < n ? a.staging + i * a.stride : NULL;
    bool is_new = row != NULL && (a.only == NULL || a.only[i] != 0);
    if (HAS_STAGING)
        work_on_rows<FIRST_AND_READ>(a, row, to, is_new, is_new ? a.keys[i] : 0);
    else
        write_first(a, is_new ? row : NULL, NULL, is_new ? a.keys[i] : 0);
}

/* The rest of init's work where staging cannot be written in fours. */
static status read_staging(backend *be, const table_level *l, const table_init_args *a) {
    table_rows_args rows = {a->n, a->n_real, a->slot, NULL, a->dim, a->staging, a->stride};
    return a->staging != NULL ? cuda_table_read(be, l, &rows) : OK;
}

status cuda_table_init(backend *be, const table_level *l, const table_init_args *a) {
    if (a->n == 0) return OK;
    cudaStream_t stream = cuda_of(be)->stream;
    if (a->staging != NULL && is_packed(a->staging, a->stride, a->dim)) {
        table_rows_init_any_kernel<true><<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
        return cuda_launched("first values and read of rows");
    }
    table_rows_init_any_kernel<false><<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
    TRY(cuda_launched("first values of rows"));
    return read_staging(be, l, a);
}
