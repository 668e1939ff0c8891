/* Rows of tables with their moments (contract: gather_args in ops/ops.h) on Hopper, bfloat16: for
 * the tokens of a pass without training, whose first product then norms them itself
 * (linear_large_sm90.cu), and for tokens that are chosen of all.
 *
 * A warp owns a row and holds it in registers: the moments are of what is stored.  The limit is
 * bytes, or with few rows latency: of the index, of the row, and of two sums over a warp. */
#include "cuda/core/kernel.cuh"

enum {
    MOMENT_V = 8,                                /* columns of a pack */
    MOMENT_PARTS = 4,                            /* packs of a lane, at most */
    MOMENT_DIM = MOMENT_PARTS * WARP * MOMENT_V, /* columns of a row, at most */
    MOMENT_WARPS = 4                             /* of a block */
};

typedef struct moments_job {
    gather_args a;
    float2 *moments; /* (n): of whole rows */
} moments_job;

/* The lane's packs of a row, all loaded at once; zeros where there is none. */
template <typename S>
__device__ static inline void moments_load(columns<S, MOMENT_V> (&x)[MOMENT_PARTS], const S *row,
                                           bool is_there, int dim) {
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int p = 0; p < MOMENT_PARTS; p++)
        x[p] = load_columns<true, MOMENT_V>(row, (p * WARP + lane) * MOMENT_V, is_there ? dim : 0);
}

/* Clears row i of the blank arrays. */
__device__ static inline void moments_blank(const gather_blank &b, int64_t i) {
    int n = b.dim * (int)sizeof(__nv_bfloat16) / (int)sizeof(uint4);
    for (int k = 0; k < b.n_arrays; k++)
        for (int c = (int)threadIdx.x % WARP; c < n; c += WARP)
            ((uint4 *)b.rows[k])[i * n + c] = make_uint4(0, 0, 0, 0);
}

template <typename S>
static __global__ void __launch_bounds__(MOMENT_WARPS *WARP)
    gather_moments_sm90_kernel(const moments_job j) {
    typedef __nv_bfloat16 T;
    const gather_args &a = j.a;
    int lane = (int)threadIdx.x % WARP;
    int64_t i = (int64_t)blockIdx.x * MOMENT_WARPS + threadIdx.x / WARP;
    early_begin();
    if (i >= a.n) return;
    int64_t row = a.index[i], other = a.other != NULL ? a.other_index[i] : -1;
    columns<S, MOMENT_V> x[MOMENT_PARTS];
    columns<float, MOMENT_V> more[MOMENT_PARTS];
    moments_load<S>(x, gather_row<S>(a, row), row >= 0, a.dim);
    moments_load<float>(more, a.other + other * a.dim, other >= 0, a.dim);
    if (a.other != NULL && other < 0) moments_blank(a.blank, i);
    float sum = 0, squares = 0;
    columns<T, MOMENT_V> y[MOMENT_PARTS];
#pragma unroll
    for (int p = 0; p < MOMENT_PARTS; p++) {
#pragma unroll
        for (int k = 0; k < MOMENT_V; k += 2) {
            float low = a.scale * column(x[p], k) + column(more[p], k);
            float high = a.scale * column(x[p], k + 1) + column(more[p], k + 1);
            y[p].word[k / 2] = column_bits(from_float<T>(low)) | column_bits(from_float<T>(high))
                                                                     << 16;
            sum += column(y[p], k) + column(y[p], k + 1);
        }
        int c = (p * WARP + lane) * MOMENT_V;
        if (c < a.dim) *(columns<T, MOMENT_V> *)((T *)a.y + i * a.dim + c) = y[p];
    }
    sum = warp_sum(sum);
    float mean = sum / (float)a.dim;
#pragma unroll
    for (int p = 0; p < MOMENT_PARTS; p++)
#pragma unroll
        for (int k = 0; k < MOMENT_V; k++) {
            float apart = column(y[p], k) - mean;
            if ((p * WARP + lane) * MOMENT_V < a.dim) squares += apart * apart;
        }
    squares = warp_sum(squares);
    if (lane == 0) j.moments[i] = make_float2(sum, squares);
}

bool cuda_gather_moments_can(const backend *be, const gather_args *a) {
    const int v = MOMENT_V;
    if (cuda_of(be)->sm != 90 || be->act != ACT_BF16 || a->moments == NULL) return false;
    bool is_packed = a->dim <= MOMENT_DIM && a->drop.rate == 0 && a->more == NULL &&
                     can_pack(a->table, a->dim, a->dim, a->is_act ? 2 : sizeof(float), v) &&
                     can_pack(a->other, a->dim, a->dim, sizeof(float), v) &&
                     can_pack(a->y, a->dim, a->dim, 2, v);
    for (int k = 0; k < a->n_far; k++)
        is_packed =
            is_packed && can_pack(a->far[k].rows, a->far[k].stride, a->dim, sizeof(float), v);
    for (int k = 0; k < a->blank.n_arrays; k++)
        is_packed = is_packed && can_pack(a->blank.rows[k], a->blank.dim, a->blank.dim, 2, v);
    return is_packed;
}

status cuda_gather_moments(backend *be, const gather_args *a) {
    moments_job j = {*a, (float2 *)a->moments->parts};
    a->moments->width = a->dim;
    a->moments->of = a->y;
    auto kernel =
        a->is_act ? gather_moments_sm90_kernel<__nv_bfloat16> : gather_moments_sm90_kernel<float>;
    return cuda_launch_early(be, "gather with moments", kernel, cuda_div_up(a->n, MOMENT_WARPS),
                             MOMENT_WARPS * WARP, 0, j);
}
