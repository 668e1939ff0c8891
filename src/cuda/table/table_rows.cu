/* Rows of a level by slot (ops/table.h): read, write, init, update.  A warp owns 32 slots; lanes
 * share a row, 16 bytes each, and have several rows in flight (table.cuh).  Bound by bytes: of
 * device memory, or of the bus where the rows are in host memory. */
#include "cuda/table/table.cuh"

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
    return cuda_launch(be, "read of rows",
                       is_packed(a->staging, a->stride, a->n_floats)
                           ? table_rows_read_any_kernel<float4>
                           : table_rows_read_any_kernel<float>,
                       table_blocks(a->n), TABLE_THREADS, 0, *l, *a);
}

status cuda_table_write(backend *be, const table_level *l, const table_rows_args *a) {
    if (a->n == 0 || a->n_floats == 0) return OK;
    return cuda_launch(be, "write of rows",
                       is_packed(a->staging, a->stride, a->n_floats)
                           ? table_rows_write_any_kernel<float4>
                           : table_rows_write_any_kernel<float>,
                       table_blocks(a->n), TABLE_THREADS, 0, *l, *a);
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
    if (a->staging != NULL && is_packed(a->staging, a->stride, a->dim)) {
        return cuda_launch(be, "first values and read of rows", table_rows_init_any_kernel<true>,
                           table_blocks(a->n), TABLE_THREADS, 0, *l, *a);
    }
    TRY(cuda_launch(be, "first values of rows", table_rows_init_any_kernel<false>,
                    table_blocks(a->n), TABLE_THREADS, 0, *l, *a));
    return read_staging(be, l, a);
}

/* update of rows by their optimizer (ops/table.h).  Lanes share a row, 16 bytes each, and have
 * NUMBERS_AT_ONCE rows in flight before the first is computed.  Bound by bytes: reads the gradient,
 * reads and writes values and state. */

enum { NUMBERS_AT_ONCE = 4, UPDATE_ROWS = 8 /* of a warp */ };

/* One element: its value, its optimizer state (two floats), and its gradient. */
template <opt_kind OPT>
__device__ static inline void update_number(const optimizer_rule &r, float g, float &w, float &s,
                                            float &v) {
    if (OPT == OPT_ADAGRAD) s += g * g;
    if (OPT == OPT_SGD)
        optimizer_sgd(&r, g, &w);
    else if (OPT == OPT_ADAMW)
        optimizer_adamw(&r, g, &w, &s, &v);
    else
        optimizer_adagrad(&r, g, s, &w);
}

template <opt_kind OPT>
__device__ static inline void update_piece(const optimizer_rule &r, float scale, float g, float &w,
                                           float &s, float &v) {
    update_number<OPT>(r, scale * g, w, s, v);
}

template <opt_kind OPT>
__device__ static inline void update_piece(const optimizer_rule &r, float scale, float4 g,
                                           float4 &w, float4 &s, float4 &v) {
    update_number<OPT>(r, scale * g.x, w.x, s.x, v.x);
    update_number<OPT>(r, scale * g.y, w.y, s.y, v.y);
    update_number<OPT>(r, scale * g.z, w.z, s.z, v.z);
    update_number<OPT>(r, scale * g.w, w.w, s.w, v.w);
}

__device__ static inline float squares(float g) {
    return g * g;
}

__device__ static inline float squares(float4 g) {
    return g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w;
}

__device__ static inline void set_all(float &s, float x) {
    s = x;
}

__device__ static inline void set_all(float4 &s, float x) {
    s = make_float4(x, x, x, x);
}

/* The state of row-wise AdaGrad for a row, updated with this gradient; all lanes of the team get
 * it, and all lanes of the warp must call.  A NULL row reads nothing. */
template <typename P>
__device__ static inline float rowwise_state(const float *row, const float *grad, float scale,
                                             int dim, int first, int n_lanes) {
    float sum = 0;
    if (row != NULL)
        for (int c = first; c < dim / piece_size<P>::NUMBERS; c += n_lanes)
            sum += squares(__ldcg((const P *)grad + c));
    for (int step = n_lanes / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, step);
    return row != NULL ? row[dim] + scale * scale * sum / (float)dim : 0;
}

/* NUMBERS_AT_ONCE rows, which the lanes of a team share. */
template <typename P, opt_kind OPT>
__device__ static inline void
update_rows(const optimizer_rule &r, float scale, float *const row[NUMBERS_AT_ONCE],
            const float *const grad[NUMBERS_AT_ONCE], const float state[NUMBERS_AT_ONCE], int dim,
            int first, int n_lanes) {
    int n_pieces = dim / piece_size<P>::NUMBERS;
    for (int c = first; c < n_pieces; c += n_lanes) {
        P g[NUMBERS_AT_ONCE] = {}, w[NUMBERS_AT_ONCE] = {}, s[NUMBERS_AT_ONCE] = {},
          v[NUMBERS_AT_ONCE] = {};
#pragma unroll
        for (int u = 0; u < NUMBERS_AT_ONCE; u++) {
            if (row[u] == NULL) continue;
            const P *numbers = (const P *)row[u];
            g[u] = __ldcs((const P *)grad[u] + c);
            w[u] = __ldcg(numbers + c);
            if (OPT == OPT_ADAMW || OPT == OPT_ADAGRAD) s[u] = __ldcg(numbers + n_pieces + c);
            if (OPT == OPT_ADAMW) v[u] = __ldcg(numbers + 2 * n_pieces + c);
            if (OPT == OPT_ROWWISE_ADAGRAD) set_all(s[u], state[u]);
        }
#pragma unroll
        for (int u = 0; u < NUMBERS_AT_ONCE; u++) {
            if (row[u] == NULL) continue;
            P *numbers = (P *)row[u];
            update_piece<OPT>(r, scale, g[u], w[u], s[u], v[u]);
            __stcg(numbers + c, w[u]);
            if (OPT == OPT_ADAMW || OPT == OPT_ADAGRAD) __stcg(numbers + n_pieces + c, s[u]);
            if (OPT == OPT_ADAMW) __stcg(numbers + 2 * n_pieces + c, v[u]);
        }
    }
}

template <typename P, opt_kind OPT>
static __global__ void __launch_bounds__(TABLE_THREADS)
    table_update_rows_any_kernel(const table_level l, const table_update_args a,
                                 const optimizer_rule r) {
    int64_t n = table_count(a.n, a.n_real);
    int64_t begin = ((int64_t)blockIdx.x * TABLE_WARPS + threadIdx.x / 32) * UPDATE_ROWS;
    float scale = a.grad_scale != NULL ? *a.grad_scale : 1.0f;
    if (begin >= n || scale == 0) return;
    int lane = warp_lane(), n_lanes = row_lanes(a.dim / piece_size<P>::NUMBERS);
    int first = lane & (n_lanes - 1), n_teams = 32 / n_lanes;
    int64_t slot = -1;
    if (lane < UPDATE_ROWS && begin + lane < n) slot = a.slot[begin + lane];
    if (slot >= 0) table_stamps(&l, slot / TABLE_SLOTS)[slot % TABLE_SLOTS] = a.stamp;
    for (int j = lane / n_lanes; j - lane / n_lanes < UPDATE_ROWS; j += NUMBERS_AT_ONCE * n_teams) {
        float *row[NUMBERS_AT_ONCE], state[NUMBERS_AT_ONCE];
        const float *grad[NUMBERS_AT_ONCE];
#pragma unroll
        for (int u = 0; u < NUMBERS_AT_ONCE; u++) {
            int at = j + u * n_teams;
            int64_t s = __shfl_sync(ALL_LANES, slot, at % 32);
            row[u] = at < UPDATE_ROWS && s >= 0 ? table_row(&l, s) : NULL;
            grad[u] = a.grad + (begin + at) * a.dim;
            state[u] = 0;
            if (OPT == OPT_ROWWISE_ADAGRAD)
                state[u] = rowwise_state<P>(row[u], grad[u], scale, a.dim, first, n_lanes);
        }
        update_rows<P, OPT>(r, scale, row, grad, state, a.dim, first, n_lanes);
        __syncwarp();
#pragma unroll
        for (int u = 0; u < NUMBERS_AT_ONCE; u++)
            if (OPT == OPT_ROWWISE_ADAGRAD && row[u] != NULL && first == 0)
                row[u][a.dim] = state[u];
    }
}

template <opt_kind OPT>
static void launch_update(backend *be, const table_level *l, const table_update_args *a,
                          const optimizer_rule *r) {
    cudaStream_t stream = cuda_of(be)->stream;
    unsigned n_blocks = (unsigned)cuda_div_up(a->n, UPDATE_ROWS * TABLE_WARPS);
    if (is_packed(a->grad, a->dim, a->dim))
        table_update_rows_any_kernel<float4, OPT>
            <<<n_blocks, TABLE_THREADS, 0, stream>>>(*l, *a, *r);
    else
        table_update_rows_any_kernel<float, OPT>
            <<<n_blocks, TABLE_THREADS, 0, stream>>>(*l, *a, *r);
}

status cuda_table_update(backend *be, const table_level *l, const table_update_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    optimizer_rule r =
        optimizer_rule_make(a->opt, a->lr, a->beta1, a->beta2, a->eps, a->weight_decay, a->step);
    if (a->opt == OPT_SGD) launch_update<OPT_SGD>(be, l, a, &r);
    if (a->opt == OPT_ADAMW) launch_update<OPT_ADAMW>(be, l, a, &r);
    if (a->opt == OPT_ADAGRAD) launch_update<OPT_ADAGRAD>(be, l, a, &r);
    if (a->opt == OPT_ROWWISE_ADAGRAD) launch_update<OPT_ROWWISE_ADAGRAD>(be, l, a, &r);
    return cuda_launched("update of rows");
}
