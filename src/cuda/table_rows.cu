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

/* Rows begin at multiples of 16 bytes and are filled up to one, so all is written in fours. */
static __global__ void __launch_bounds__(TABLE_THREADS)
    init_kernel(const table_level l, const table_init_args a) {
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (warp_first() >= n) return;
    float *row = slot_row(l, a.slot, a.only, i, n);
    unsigned long long key = row != NULL ? a.keys[i] : 0;
    int n_pieces = (int)((a.dim + a.n_state + 3) / 4);
    int n_lanes = row_lanes(n_pieces), lane = warp_lane(), n_teams = 32 / n_lanes;
    /* Lanes are compacted by rows to write: few of a batch are new. */
    unsigned rest = __ballot_sync(ALL_LANES, row != NULL);
    for (; rest != 0;) {
        int j = 0;
        bool is_on = false;
        for (int t = 0; t < n_teams && rest != 0; t++, rest &= rest - 1)
            if (t == lane / n_lanes) {
                j = __ffs((int)rest) - 1;
                is_on = true;
            }
        float4 *to = (float4 *)lane_pointer(row, j);
        uint64_t its_key = __shfl_sync(ALL_LANES, key, j);
        for (int c = lane & (n_lanes - 1); is_on && c < n_pieces; c += n_lanes)
            __stcg(to + c, first_values(a, its_key, 4 * c));
        __syncwarp();
    }
}

status cuda_table_init(backend *be, const table_level *l, const table_init_args *a) {
    if (a->n == 0) return OK;
    init_kernel<<<table_blocks(a->n), TABLE_THREADS, 0, cuda_of(be)->stream>>>(*l, *a);
    return cuda_launched("first values of rows");
}
