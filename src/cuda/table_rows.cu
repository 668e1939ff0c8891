/* Rows of a level by slot (ops/table.h): read, write, init, update.  A warp owns 32 slots; lanes
 * share a row 16 bytes each and have several rows on their way at once (table.cuh).  The limit is
 * bytes: of device memory, or of the bus where the rows lie in host memory. */
#include "cuda/table.cuh"

/* ---- read, write ----------------------------------------------------------------------------- */

/* The row of the warp's slot, or NULL where there is none or it is left out. */
__device__ static inline float *slot_row(const table_level &l, const int64_t *slot,
                                         const uint8_t *only, int64_t i, int64_t n) {
    if (i >= n || (only != NULL && only[i] == 0)) return NULL;
    int64_t s = __ldcs((const long long *)slot + i);
    return s >= 0 ? table_row(&l, s) : NULL;
}

template <typename P>
static __global__ void __launch_bounds__(TABLE_THREADS)
    read_kernel(const table_level l, const table_rows_args a) {
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (warp_first() >= n) return;
    const float *row = slot_row(l, a.slot, NULL, i, n);
    float *to = i < n ? a.staging + i * a.stride : NULL;
    move_rows<true>((const P *)row, (P *)to, a.n_floats / piece_size<P>::NUMBERS);
}

template <typename P>
static __global__ void __launch_bounds__(TABLE_THREADS)
    write_kernel(const table_level l, const table_rows_args a) {
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
        read_kernel<float4><<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
    else
        read_kernel<float><<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
    return cuda_launched("read of rows");
}

status cuda_table_write(backend *be, const table_level *l, const table_rows_args *a) {
    if (a->n == 0 || a->n_floats == 0) return OK;
    cudaStream_t stream = cuda_of(be)->stream;
    if (is_packed(a->staging, a->stride, a->n_floats))
        write_kernel<float4><<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
    else
        write_kernel<float><<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
    return cuda_launched("write of rows");
}

/* ---- init ------------------------------------------------------------------------------------ */

/* Columns c .. c + 3 of a new row; uniform numbers take one draw for all four. */
__device__ static inline float4 first_values(const table_init_args &a, uint64_t key, int c) {
    float x[4];
    if (a.first.kind == FIRST_UNIFORM && c + 4 <= a.dim) {
        rng_block b =
            rng_draw(a.first.key, (uint32_t)key, (uint32_t)(key >> 32), (uint32_t)c / 4, 0);
#pragma unroll
        for (int k = 0; k < 4; k++)
            x[k] = (float)((int32_t)(b.word[k] >> 8) * 2 - 16777216) * a.first.unit;
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x[k] = a.first.state;
            if (c + k < a.dim) x[k] = table_first_value(&a.first, key, (uint32_t)(c + k));
        }
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

/* Writes the rows of the warp's lanes that are not NULL; and what goes to staging, where `to` is
 * not NULL.  Rows begin at multiples of 16 bytes and are filled up to one, so all is written in
 * fours. */
__device__ static inline void write_first(const table_init_args &a, float *row, float *to,
                                          unsigned long long key) {
    int n_pieces = (int)((a.dim + a.n_state + 3) / 4), n_values = a.dim / 4;
    int n_lanes = row_lanes(n_pieces), lane = warp_lane(), n_teams = 32 / n_lanes;
    unsigned rest = __ballot_sync(ALL_LANES, row != NULL);
    while (rest != 0) { /* a team takes one of the next rows each: few of a batch are new */
        int j = -1;
        for (int t = 0; t < n_teams && rest != 0; t++, rest &= rest - 1)
            if (t == lane / n_lanes) j = __ffs((int)rest) - 1;
        float4 *its_row = (float4 *)lane_pointer(row, max(j, 0));
        float4 *its_to = (float4 *)lane_pointer(to, max(j, 0));
        uint64_t its_key = __shfl_sync(ALL_LANES, key, max(j, 0));
        for (int c = lane & (n_lanes - 1); j >= 0 && c < n_pieces; c += n_lanes) {
            float4 x = first_values(a, its_key, 4 * c);
            __stcg(its_row + c, x);
            if (its_to != NULL && c < n_values) __stcs(its_to + c, x);
        }
        __syncwarp();
    }
}

/* With staging, which is packed then, rows that are not new are read in the same pass: their bytes
 * hide the arithmetic of the new ones. */
template <bool HAS_STAGING>
static __global__ void __launch_bounds__(TABLE_THREADS, 4)
    init_kernel(const table_level l, const table_init_args a) {
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (warp_first() >= n) return;
    float *row = slot_row(l, a.slot, NULL, i, n);
    float *to = HAS_STAGING && i < n ? a.staging + i * a.stride : NULL;
    bool is_new = row != NULL && (a.only == NULL || a.only[i] != 0);
    write_first(a, is_new ? row : NULL, is_new ? to : NULL, is_new ? a.keys[i] : 0);
    if (HAS_STAGING)
        move_rows<true>((const float4 *)(is_new ? NULL : row), (float4 *)(is_new ? NULL : to),
                        a.dim / 4);
}

/* What init does besides where staging cannot be written in fours. */
static status read_staging(backend *be, const table_level *l, const table_init_args *a) {
    table_rows_args rows = {a->n, a->n_real, a->slot, NULL, a->dim, a->staging, a->stride};
    return a->staging != NULL ? cuda_table_read(be, l, &rows) : OK;
}

status cuda_table_init(backend *be, const table_level *l, const table_init_args *a) {
    if (a->n == 0) return OK;
    cudaStream_t stream = cuda_of(be)->stream;
    if (a->staging != NULL && is_packed(a->staging, a->stride, a->dim)) {
        init_kernel<true><<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
        return cuda_launched("first values and read of rows");
    }
    init_kernel<false><<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a);
    TRY(cuda_launched("first values of rows"));
    return read_staging(be, l, a);
}
